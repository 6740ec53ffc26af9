//! See [`mlgw_fuzz::targets::rules`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| mlgw_fuzz::targets::rules::run(data));

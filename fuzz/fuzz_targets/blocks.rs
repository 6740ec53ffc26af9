//! See [`mlgw_fuzz::targets::blocks`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| mlgw_fuzz::targets::blocks::run(data));

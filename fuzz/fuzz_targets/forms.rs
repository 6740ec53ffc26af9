//! See [`mlgw_fuzz::targets::forms`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| mlgw_fuzz::targets::forms::run(data));

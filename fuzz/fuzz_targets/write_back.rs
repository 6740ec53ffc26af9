//! See [`mlgw_fuzz::targets::write_back`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| mlgw_fuzz::targets::write_back::run(data));

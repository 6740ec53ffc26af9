//! See [`mlgw_fuzz::targets::signatures`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| mlgw_fuzz::targets::signatures::run(data));

//! See [`mlgw_fuzz::targets::requests`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| mlgw_fuzz::targets::requests::run(data));

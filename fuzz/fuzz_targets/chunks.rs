//! See [`mlgw_fuzz::targets::chunks`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| mlgw_fuzz::targets::chunks::run(data));

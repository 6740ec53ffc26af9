//! See [`mlgw_fuzz::targets::traces`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| mlgw_fuzz::targets::traces::run(data));

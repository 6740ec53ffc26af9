//! See [`mlgw_fuzz::targets::policies`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| mlgw_fuzz::targets::policies::run(data));

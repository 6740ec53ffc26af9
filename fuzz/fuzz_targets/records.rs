//! See [`mlgw_fuzz::targets::records`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| mlgw_fuzz::targets::records::run(data));

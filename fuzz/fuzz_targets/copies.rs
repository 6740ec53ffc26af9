//! See [`mlgw_fuzz::targets::copies`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| mlgw_fuzz::targets::copies::run(data));

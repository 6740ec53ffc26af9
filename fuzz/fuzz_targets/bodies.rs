//! See [`mlgw_fuzz::targets::bodies`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| mlgw_fuzz::targets::bodies::run(data));

//! See [`mlgw_fuzz::targets::documents`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| mlgw_fuzz::targets::documents::run(data));

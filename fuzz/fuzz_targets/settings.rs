//! See [`mlgw_fuzz::targets::settings`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| mlgw_fuzz::targets::settings::run(data));

//! See [`mlgw_fuzz::targets::keys`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| mlgw_fuzz::targets::keys::run(data));

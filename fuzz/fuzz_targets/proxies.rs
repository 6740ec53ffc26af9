//! See [`mlgw_fuzz::targets::proxies`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| mlgw_fuzz::targets::proxies::run(data));

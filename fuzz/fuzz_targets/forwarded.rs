//! See [`mlgw_fuzz::targets::forwarded`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| mlgw_fuzz::targets::forwarded::run(data));

//! See [`mlgw_fuzz::targets::segments`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| mlgw_fuzz::targets::segments::run(data));

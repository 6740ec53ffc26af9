//! See [`mlgw_fuzz::targets::decisions`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| mlgw_fuzz::targets::decisions::run(data));

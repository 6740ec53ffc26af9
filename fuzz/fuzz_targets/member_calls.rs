//! See [`mlgw_fuzz::targets::member_calls`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| mlgw_fuzz::targets::member_calls::run(data));

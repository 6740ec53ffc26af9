//! See [`mlgw_fuzz::targets::peers`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| mlgw_fuzz::targets::peers::run(data));

//! See [`mlgw_fuzz::targets::log_entries`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| mlgw_fuzz::targets::log_entries::run(data));

//! See [`mlgw_fuzz::targets::manifests`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| mlgw_fuzz::targets::manifests::run(data));

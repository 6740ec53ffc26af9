//! See [`mlgw_fuzz::targets::answers`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| mlgw_fuzz::targets::answers::run(data));

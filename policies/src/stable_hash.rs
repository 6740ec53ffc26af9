//! Hashes that are stable across machines and versions, for names in logs and generated workloads.

/// Hash of `text` that is stable across machines and versions: FNV-1a, its bits mixed by [`mix`].
#[must_use]
pub fn hash(seed: u64, text: &str) -> u64 {
    let fnv = text.bytes().fold(0xcbf2_9ce4_8422_2325 ^ mix(seed), |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    mix(fnv)
}

/// Spreads the bits of a number: the output step of SplitMix64 (Steele et al., "Fast splittable pseudorandom
/// number generators", 2014).
#[must_use]
pub fn mix(number: u64) -> u64 {
    let mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

//! Block ids: 64-bit hashes of (bucket, key, block number), computed alike by every component.
//!
//! Invariant: the same seed and name give the same id in every version and on every machine, because ids are
//! stored on disk. Two blocks can collide (about one set in 400,000 of 10 million blocks each); the owner of
//! an index by id defines how it treats the second block.

use std::ops::Range;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Seed of the ids of servers. Their on-disk indexes contain ids of this seed: another seed would leave
/// blocks there that can no longer be evicted.
pub const BLOCK_ID_SEED: u64 = 0x6D6C_6777;

/// Returns the id of block `block` of an object; never zero.
#[must_use]
pub fn block_id(seed: u64, bucket: u64, key: &str, block: u64) -> u64 {
    let object = xxh3_64_with_seed(key.as_bytes(), seed ^ bucket.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    // Zero means "no id".
    mix_hash(object ^ block.wrapping_mul(0xD6E8_FEB8_6659_FD93)).max(1)
}

/// Returns the numbers of the blocks that a byte range touches.
#[must_use]
pub fn touched_blocks(range: &Range<u64>, block_bytes: u64) -> Range<u64> {
    if range.is_empty() {
        return 0..0;
    }
    range.start / block_bytes..(range.end - 1) / block_bytes + 1
}

/// Mixes the bits of a combined hash (the finalizer of SplitMix64, Steele et al. 2014).
pub(crate) fn mix_hash(mut hash: u64) -> u64 {
    hash = (hash ^ hash >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    hash = (hash ^ hash >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    hash ^ hash >> 31
}

/// Hasher of maps whose keys are hashes already.
pub type BuildPassThroughHasher = std::hash::BuildHasherDefault<PassThroughHasher>;

/// Hasher that passes 64-bit hashes through unchanged.
#[derive(Clone, Debug, Default)]
pub struct PassThroughHasher(u64);

impl std::hash::Hasher for PassThroughHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

#[cfg(test)]
mod tests {
    use super::block_id;

    #[test]
    fn ids_depend_on_every_part_and_are_stable() {
        let id = block_id(1, 2, "key", 3);
        assert_eq!(id, 12_144_715_577_883_874_026);
        for other in [block_id(0, 2, "key", 3), block_id(1, 0, "key", 3), block_id(1, 2, "kex", 3)] {
            assert_ne!(other, id);
        }
        assert_ne!(block_id(1, 2, "key", 4), id);
    }
}

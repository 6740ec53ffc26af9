//! CRC32C of stored bytes, seeded with their location.
//!
//! A checksum that starts from the block's identity verifies only at that location: a block that a bug or a
//! disk wrote to the wrong place fails its check even if its bytes are intact.

use crate::ids::{BodyId, SegmentId, SegmentSeed};
use crc_fast::{CrcAlgorithm, Digest};

/// CRC32C (Castagnoli) of `bytes`.
#[must_use]
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// CRC32C of bytes that are added in pieces.
pub struct Crc32c(Digest);

impl Default for Crc32c {
    fn default() -> Self {
        Self(Digest::new(CrcAlgorithm::Crc32Iscsi))
    }
}

impl Crc32c {
    /// Adds the next piece.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The checksum of all pieces.
    #[must_use]
    pub fn finish(&self) -> u32 {
        #[expect(clippy::cast_possible_truncation, reason = "a 32-bit CRC in a 64-bit return")]
        let crc = self.0.finalize() as u32;
        crc
    }
}

/// Bytes of the stamp in a seed.
const STAMP_BYTES: usize = 8;

/// Location of a stored block; its checksum is seeded with all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockIdentity {
    /// The segment that holds the block.
    pub segment: SegmentId,
    /// Seed of the segment.
    pub seed: SegmentSeed,
    /// The body that the bytes belong to.
    pub body: BodyId,
    /// Offset of the block's first byte in the segment file.
    pub offset: u64,
}

impl BlockIdentity {
    /// CRC32C over the identity (stamp, unless it is 0; segment, generation, body, offset; little-endian)
    /// followed by the block's stored bytes.
    #[must_use]
    pub fn crc32c(&self, stored: &[u8]) -> u32 {
        let mut crc = Crc32c::default();
        let seed = self.seed_bytes();
        let from = if self.seed.stamp.0 == 0 { STAMP_BYTES } else { 0 };
        crc.update(&seed[from..]);
        crc.update(stored);
        crc.finish()
    }

    fn seed_bytes(&self) -> [u8; STAMP_BYTES + 28] {
        let mut seed = [0; STAMP_BYTES + 28];
        seed[..8].copy_from_slice(&self.seed.stamp.0.to_le_bytes());
        seed[8..16].copy_from_slice(&self.segment.0.to_le_bytes());
        seed[16..20].copy_from_slice(&self.seed.generation.0.to_le_bytes());
        seed[20..28].copy_from_slice(&self.body.0.to_le_bytes());
        seed[28..].copy_from_slice(&self.offset.to_le_bytes());
        seed
    }
}

#[cfg(test)]
mod tests {
    use super::{BlockIdentity, crc32c};
    use crate::ids::{BodyId, Generation, SegmentId, SegmentSeed, SegmentStamp};

    const SEED: SegmentSeed = SegmentSeed { generation: Generation(1), stamp: SegmentStamp(0x1234) };
    const HERE: BlockIdentity =
        BlockIdentity { segment: SegmentId(7), seed: SEED, body: BodyId(9), offset: 4096 };

    #[test]
    fn is_castagnoli() {
        // The check value of CRC-32/ISCSI in Koopman's and Cook's catalogues.
        assert_eq!(crc32c(b"123456789"), 0xE306_9283);
    }

    #[test]
    fn seeds_of_format_1_are_unchanged() {
        let here = BlockIdentity { seed: SegmentSeed::unstamped(Generation(1)), ..HERE };
        let seed = [7u64.to_le_bytes().as_slice(), &1u32.to_le_bytes(), &9u64.to_le_bytes()].concat();
        let seeded = [seed.as_slice(), &4096u64.to_le_bytes(), b"bytes"].concat();
        assert_eq!(here.crc32c(b"bytes"), crc32c(&seeded));
        let stamped = [0x1234u64.to_le_bytes().as_slice(), &seeded].concat();
        assert_eq!(HERE.crc32c(b"bytes"), crc32c(&stamped));
    }

    #[test]
    fn a_block_verifies_only_where_it_belongs() {
        let crc = HERE.crc32c(b"bytes");
        assert_eq!(crc, HERE.crc32c(b"bytes"));
        assert_ne!(crc, HERE.crc32c(b"bytez"));
        for elsewhere in [
            BlockIdentity { segment: SegmentId(8), ..HERE },
            BlockIdentity { seed: SegmentSeed { generation: Generation(2), ..SEED }, ..HERE },
            BlockIdentity { seed: SegmentSeed { stamp: SegmentStamp(0x1235), ..SEED }, ..HERE },
            BlockIdentity { seed: SegmentSeed::unstamped(Generation(1)), ..HERE },
            BlockIdentity { body: BodyId(10), ..HERE },
            BlockIdentity { offset: 8192, ..HERE },
        ] {
            assert_ne!(crc, elsewhere.crc32c(b"bytes"), "{elsewhere:?}");
        }
    }
}

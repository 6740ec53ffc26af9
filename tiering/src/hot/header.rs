//! The first 64 bytes of a segment file: which segment this is.
//!
//! Pure functions on bytes. The header is written and synced before the segment takes a record
//! and never changes. Records do not need it to verify (their checksums are seeded with what the
//! catalogue says of the segment); it is what salvage and scrub go by. Every byte is described in
//! docs/formats-segment.md.

use mlgw_common::checksum::crc32c;
use mlgw_common::ids::{Generation, SegmentId};
use mlgw_common::limits::BLOCK_BYTES;
use mlgw_common::{Clock, Timestamp};
use mlgw_metadata::schema::SegmentClass;

/// Length of the header; the first record begins here.
pub const SEGMENT_HEADER_BYTES: u64 = 64;
/// Version of the segment format that this program writes.
pub const SEGMENT_VERSION: u16 = 1;

const MAGIC: [u8; 8] = *b"mlgw-seg";
const CRC_AT: usize = SEGMENT_HEADER_BYTES as usize - 4;

/// What the header of a segment file says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentHeader {
    /// The segment.
    pub id: SegmentId,
    /// Its generation.
    pub generation: Generation,
    /// What kind of records it was opened for.
    pub class: SegmentClass,
    /// When it was made.
    pub created: Timestamp,
}

/// Why bytes are not a segment header that this program reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderFault {
    /// Fewer than 64 bytes.
    #[error("the file ends within the segment header")]
    Short,
    /// Other first bytes.
    #[error("not a segment file")]
    Magic,
    /// The checksum does not match.
    #[error("the segment header is damaged")]
    Crc,
    /// A version, class or block size that this program does not know.
    #[error("a segment of a format this program does not read (version {version})")]
    Unsupported {
        /// The version it states.
        version: u16,
    },
}

impl SegmentHeader {
    /// A header made now.
    pub fn new(id: SegmentId, generation: Generation, class: SegmentClass, clock: &dyn Clock) -> Self {
        Self { id, generation, class, created: clock.now() }
    }

    /// The header's bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; SEGMENT_HEADER_BYTES as usize] {
        let mut out = [0; SEGMENT_HEADER_BYTES as usize];
        out[..8].copy_from_slice(&MAGIC);
        out[8..10].copy_from_slice(&SEGMENT_VERSION.to_le_bytes());
        out[10] = self.class as u8;
        out[12..16].copy_from_slice(&self.generation.0.to_le_bytes());
        out[16..24].copy_from_slice(&self.id.0.to_le_bytes());
        out[24..28].copy_from_slice(&(BLOCK_BYTES as u32).to_le_bytes());
        out[32..40].copy_from_slice(&self.created.0.to_le_bytes());
        let crc = crc32c(&out[..CRC_AT]);
        out[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Reads a header from the first bytes of a file.
    ///
    /// # Errors
    /// What is wrong with the bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, HeaderFault> {
        let (head, _) = bytes.split_first_chunk::<64>().ok_or(HeaderFault::Short)?;
        if head[..8] != MAGIC {
            return Err(HeaderFault::Magic);
        }
        if crc32c(&head[..CRC_AT]) != u32_at(head, CRC_AT) {
            return Err(HeaderFault::Crc);
        }
        let version = u16::from_le_bytes([head[8], head[9]]);
        let unsupported = HeaderFault::Unsupported { version };
        if version != SEGMENT_VERSION || u64::from(u32_at(head, 24)) != BLOCK_BYTES {
            return Err(unsupported);
        }
        Ok(Self {
            id: SegmentId(u64_at(head, 16)),
            generation: Generation(u32_at(head, 12)),
            class: SegmentClass::try_from(i32::from(head[10])).map_err(|_| unsupported)?,
            created: Timestamp(u64_at(head, 32) as i64),
        })
    }
}

fn u32_at(bytes: &[u8; 64], at: usize) -> u32 {
    let mut out = [0; 4];
    out.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(out)
}

fn u64_at(bytes: &[u8; 64], at: usize) -> u64 {
    let mut out = [0; 8];
    out.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GOLDEN: &str = "6d6c67772d736567010000000300000015cd5b070000000000000100000000000068e5cf8b010000\
                          0000000000000000000000000000000000000000b9c0090f";

    fn golden() -> SegmentHeader {
        SegmentHeader {
            id: SegmentId(123_456_789),
            generation: Generation(3),
            class: SegmentClass::Small,
            created: Timestamp(1_700_000_000_000),
        }
    }

    #[test]
    fn the_bytes_of_version_1_stay_as_they_are() {
        let bytes = golden().encode();
        assert_eq!(crate::hot::tests::hex(&bytes), GOLDEN);
        assert_eq!(SegmentHeader::decode(&bytes), Ok(golden()));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(id: u64, generation: u32, class in 0i32..4, created: i64) {
            let class = SegmentClass::try_from(class).unwrap();
            let header = SegmentHeader {
                id: SegmentId(id), generation: Generation(generation), class, created: Timestamp(created),
            };
            prop_assert_eq!(SegmentHeader::decode(&header.encode()), Ok(header));
        }

        #[test]
        fn no_flipped_bit_goes_unseen(bit in 0usize..512) {
            let mut bytes = golden().encode();
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(SegmentHeader::decode(&bytes).is_err());
        }

        #[test]
        fn any_bytes_are_decoded_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..130)) {
            prop_assert!(SegmentHeader::decode(&bytes).is_err());
        }
    }
}

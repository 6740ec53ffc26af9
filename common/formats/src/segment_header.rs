//! Header of a segment file: its first 64 bytes, which name the segment and the server that wrote it.
//!
//! Pure functions on bytes. The header is written and synced before the first record is, and never changes.
//! Records verify without it: their checksums are seeded from the catalogue's record of the segment. The
//! header is compared with that record before the first read of the file and before its removal. Every byte
//! is described in docs/formats-segment.md.
//!
//! Version 2 carries the segment's stamp and its owner. A segment without a stamp has a header of version 1.

use crate::schema::SegmentClass;
use mlgw_common::checksum::crc32c;
use mlgw_common::ids::{Generation, SegmentId, SegmentSeed, SegmentStamp};
use mlgw_common::limits::BLOCK_BYTES;
use mlgw_common::{ClusterId, Identity, Incarnation, Timestamp};

/// Length of the header in bytes; the first record begins here.
pub const SEGMENT_HEADER_BYTES: u64 = 64;
/// Version of the segment format that this program writes.
pub const SEGMENT_VERSION: u16 = 2;
/// Version of segments without a stamp.
const UNSTAMPED_VERSION: u16 = 1;

const MAGIC: [u8; 8] = *b"mlgw-seg";
const CRC_AT: usize = SEGMENT_HEADER_BYTES as usize - 4;
/// Version 1 read the clock once for the catalogue's record and again for the header. The header's time is
/// later, because the command was synced in between, or a little earlier if the clock was adjusted.
const UNSTAMPED_LATER_MS_MAX: i64 = 60_000;
const UNSTAMPED_EARLIER_MS_MAX: i64 = 1_000;
/// A header of version 1 that is later than its record by more than this belongs to another server, unless
/// the first record in the file is older than the segment: in that case a writer waited for a slow creation.
const UNSTAMPED_SURE_MS_MAX: i64 = 1_000;

/// A segment that was just created in the catalogue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewSegment {
    /// Id of the segment.
    pub id: SegmentId,
    /// Seed of the checksums of its records.
    pub seed: SegmentSeed,
    /// Creation time in the catalogue's record.
    pub created: Timestamp,
}

/// Contents of the header of a segment file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentHeader {
    /// Id of the segment.
    pub id: SegmentId,
    /// Seed of the checksums of its records.
    pub seed: SegmentSeed,
    /// Kind of records that the segment was created for.
    pub class: SegmentClass,
    /// Creation time.
    pub created: Timestamp,
    /// Cluster of the server that wrote the file; 0 in version 1.
    pub cluster: ClusterId,
    /// Incarnation of the server that wrote the file; 0 in version 1.
    pub incarnation: Incarnation,
}

/// Reason why bytes are not a segment header that this program reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderFault {
    /// Fewer than 64 bytes.
    #[error("the file ends within the segment header")]
    Short,
    /// The magic number differs.
    #[error("not a segment file")]
    Magic,
    /// The checksum does not match.
    #[error("the segment header is damaged")]
    Crc,
    /// A version, class or block size that this program does not know.
    #[error("the segment has format {version}, which this version of mlgw cannot read")]
    Unsupported {
        /// The version in the header.
        version: u16,
    },
}

impl SegmentHeader {
    /// Returns the header of a newly created segment, written by `owner`.
    #[must_use]
    pub fn of(new: &NewSegment, class: SegmentClass, owner: &Identity) -> Self {
        let NewSegment { id, seed, created } = *new;
        let stamped = seed.stamp.0 != 0;
        let cluster = if stamped { owner.cluster } else { ClusterId(0) };
        let incarnation = if stamped { owner.incarnation } else { Incarnation(0) };
        Self { id, seed, class, created, cluster, incarnation }
    }

    /// True if the header belongs to segment `id`, whose record has this seed and creation time.
    #[must_use]
    pub fn is_header_of(&self, id: SegmentId, seed: SegmentSeed, created: Option<Timestamp>) -> bool {
        let Some(created) = created else { return (self.id, self.seed) == (id, seed) };
        let later_ms = self.created.0.saturating_sub(created.0);
        let in_time = match self.seed.stamp.0 {
            0 => (-UNSTAMPED_EARLIER_MS_MAX..=UNSTAMPED_LATER_MS_MAX).contains(&later_ms),
            _ => later_ms == 0,
        };
        (self.id, self.seed) == (id, seed) && in_time
    }

    /// True if the header alone does not prove that a file of version 1 belongs to a record with this
    /// creation time.
    #[must_use]
    pub fn is_inconclusive(&self, created: Timestamp) -> bool {
        self.seed.stamp.0 == 0 && self.created.0.saturating_sub(created.0) > UNSTAMPED_SURE_MS_MAX
    }

    /// Returns the header's bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; SEGMENT_HEADER_BYTES as usize] {
        let mut out = [0; SEGMENT_HEADER_BYTES as usize];
        out[..8].copy_from_slice(&MAGIC);
        out[10] = self.class as u8;
        out[12..16].copy_from_slice(&self.seed.generation.0.to_le_bytes());
        out[16..24].copy_from_slice(&self.id.0.to_le_bytes());
        out[24..28].copy_from_slice(&(BLOCK_BYTES as u32).to_le_bytes());
        if self.seed.stamp.0 == 0 {
            out[8..10].copy_from_slice(&UNSTAMPED_VERSION.to_le_bytes());
            out[32..40].copy_from_slice(&self.created.0.to_le_bytes());
        } else {
            out[8..10].copy_from_slice(&SEGMENT_VERSION.to_le_bytes());
            out[28..36].copy_from_slice(&self.created.0.to_le_bytes());
            out[36..44].copy_from_slice(&self.seed.stamp.0.to_le_bytes());
            out[44..52].copy_from_slice(&self.cluster.0.to_le_bytes());
            out[52..60].copy_from_slice(&self.incarnation.0.to_le_bytes());
        }
        let crc = crc32c(&out[..CRC_AT]);
        out[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Decodes a header from the first bytes of a file.
    ///
    /// # Errors
    /// Names the first defect of the bytes.
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
        if u64::from(u32_at(head, 24)) != BLOCK_BYTES {
            return Err(unsupported);
        }
        let (created_at, stamp, cluster, incarnation) = match version {
            UNSTAMPED_VERSION => (32, 0, 0, 0),
            SEGMENT_VERSION => (28, u64_at(head, 36), u64_at(head, 44), u64_at(head, 52)),
            _ => return Err(unsupported),
        };
        if version == SEGMENT_VERSION && stamp == 0 {
            return Err(unsupported);
        }
        let generation = Generation(u32_at(head, 12));
        Ok(Self {
            id: SegmentId(u64_at(head, 16)),
            seed: SegmentSeed { generation, stamp: SegmentStamp(stamp) },
            class: SegmentClass::try_from(i32::from(head[10])).map_err(|_| unsupported)?,
            created: Timestamp(u64_at(head, created_at) as i64),
            cluster: ClusterId(cluster),
            incarnation: Incarnation(incarnation),
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
            seed: SegmentSeed::unstamped(Generation(3)),
            class: SegmentClass::Small,
            created: Timestamp(1_700_000_000_000),
            cluster: ClusterId(0),
            incarnation: Incarnation(0),
        }
    }

    const GOLDEN_2: &str = "6d6c67772d736567020000000300000015cd5b0700000000000001000068e5cf8b01000008070605\
                            0403020118171615141312112827262524232221c43291fd";

    fn golden_2() -> SegmentHeader {
        SegmentHeader {
            seed: SegmentSeed { generation: Generation(3), stamp: SegmentStamp(0x0102_0304_0506_0708) },
            cluster: ClusterId(0x1112_1314_1516_1718),
            incarnation: Incarnation(0x2122_2324_2526_2728),
            ..golden()
        }
    }

    #[test]
    fn the_encoding_of_each_version_is_stable() {
        for (header, golden) in [(golden(), GOLDEN), (golden_2(), GOLDEN_2)] {
            let bytes = header.encode();
            assert_eq!(mlgw_common::hex::text(&bytes), golden);
            assert_eq!(SegmentHeader::decode(&bytes), Ok(header));
        }
    }

    #[test]
    fn a_header_is_that_of_one_record() {
        let SegmentHeader { id, seed, created, .. } = golden_2();
        let at = |ms: i64| Some(Timestamp(created.0 + ms));
        let other = SegmentSeed { stamp: SegmentStamp(9), ..seed };
        assert!(golden_2().is_header_of(id, seed, at(0)));
        for (id, seed, created) in [
            (SegmentId(1), seed, at(0)),
            (id, other, at(0)),
            (id, seed, at(1)),
            (id, seed, at(-1)),
            (id, SegmentSeed::unstamped(seed.generation), at(0)),
        ] {
            assert!(!golden_2().is_header_of(id, seed, created), "{id} {seed:?} {created:?}");
        }
        // Version 1 has only the creation time, which was read from the clock twice.
        let seed = golden().seed;
        for (record_ms, same) in [(0, true), (-60_000, true), (1_000, true), (-60_001, false), (1_001, false)]
        {
            assert_eq!(golden().is_header_of(id, seed, at(record_ms)), same, "{record_ms}");
        }
        assert!(golden().is_header_of(id, seed, None) && !golden().is_header_of(id, other, None));
    }

    proptest! {
        #[test]
        fn a_written_header_is_read_back(
            id: u64, generation: u32, class in 0i32..4, created: i64,
            stamp: u64, cluster: u64, incarnation: u64,
        ) {
            let class = SegmentClass::try_from(class).unwrap();
            let seed = SegmentSeed { generation: Generation(generation), stamp: SegmentStamp(stamp) };
            let minted = NewSegment { id: SegmentId(id), seed, created: Timestamp(created) };
            let owner = Identity {
                cluster: ClusterId(cluster), incarnation: Incarnation(incarnation), ..Identity::default()
            };
            let header = SegmentHeader::of(&minted, class, &owner);
            prop_assert_eq!(SegmentHeader::decode(&header.encode()), Ok(header));
            prop_assert!(header.is_header_of(minted.id, seed, Some(minted.created)));
        }

        #[test]
        fn every_flipped_bit_is_detected(bit in 0usize..512) {
            for header in [golden(), golden_2()] {
                let mut bytes = header.encode();
                bytes[bit / 8] ^= 1 << (bit % 8);
                prop_assert!(SegmentHeader::decode(&bytes).is_err());
            }
        }

        #[test]
        fn any_bytes_are_decoded_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..130)) {
            prop_assert!(SegmentHeader::decode(&bytes).is_err());
        }
    }
}

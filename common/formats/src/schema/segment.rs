//! `segment` (group 0, at the segment id): what each segment is and where its copies are.
//!
//! A sealed segment's length is decided by a command and never changes. Every node keeps the
//! whole family in memory in short form ([`SegmentSummary`]).

use crate::key::{self, BadKey, Family};
use mlgw_common::{Generation, SegmentId, SegmentSeed, SegmentStamp, Timestamp};

/// A segment.
#[derive(Clone, PartialEq, Eq, prost::Message, serde::Serialize, serde::Deserialize)]
pub struct SegmentRecord {
    /// Its id.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// How often it was written anew; 1 for the first writing.
    #[prost(uint32, tag = "2")]
    pub generation: u32,
    /// What it is for.
    #[prost(enumeration = "SegmentClass", tag = "3")]
    pub class: i32,
    /// Whether it is still appended to.
    #[prost(enumeration = "SegmentState", tag = "4")]
    pub state: i32,
    /// Its length in bytes once sealed.
    #[prost(uint64, tag = "5")]
    pub length: u64,
    /// When it was created, milliseconds since the epoch.
    #[prost(int64, tag = "6")]
    pub created_ms: i64,
    /// Its copies.
    #[prost(message, repeated, tag = "7")]
    pub replicas: Vec<Replica>,
    /// While it is open: its first so many bytes are whole records on stable media, so recovery
    /// need not read them.
    #[prost(uint64, tag = "8")]
    pub marked: u64,
    /// A random number that was minted with it, which seeds the checksums of its records; 0: format 1,
    /// without one.
    #[prost(fixed64, tag = "9")]
    pub stamp: u64,
}

impl SegmentRecord {
    /// Its id.
    #[must_use]
    pub const fn segment_id(&self) -> SegmentId {
        SegmentId(self.id)
    }

    /// What seeds the checksums of its records.
    #[must_use]
    pub const fn seed(&self) -> SegmentSeed {
        SegmentSeed { generation: Generation(self.generation), stamp: SegmentStamp(self.stamp) }
    }

    /// Its short form.
    #[must_use]
    pub fn summary(&self) -> SegmentSummary {
        let first = self.replicas.first();
        SegmentSummary {
            length: self.length,
            seed: self.seed(),
            created: Timestamp(self.created_ms),
            class: self.class(),
            state: self.state(),
            node: first.map_or(0, |r| r.node),
            tier: first.map_or(0, |r| r.tier),
        }
    }
}

/// A copy of a segment.
#[derive(Clone, PartialEq, Eq, prost::Message, serde::Serialize, serde::Deserialize)]
pub struct Replica {
    /// The node that holds it.
    #[prost(uint64, tag = "1")]
    pub node: u64,
    /// Which of the node's tiers: 0 is hot, 1 is cold, 2 is an upstream.
    #[prost(uint32, tag = "2")]
    pub tier: u32,
    /// Where in that tier: a directory's name, or an upstream's.
    #[prost(string, tag = "3")]
    pub location: String,
    /// In an upstream: the number that tells its object from others that were ever stored of the segment.
    #[prost(uint64, tag = "4")]
    pub copy: u64,
    /// In an upstream, encrypted: the object's key, sealed.
    #[prost(bytes = "vec", tag = "5")]
    pub sealed_key: Vec<u8>,
    /// In an upstream: the incarnation of the server that stored the object, which is in the object's name. 0
    /// is an object of an earlier version, whose name has none.
    #[prost(fixed64, tag = "6")]
    pub incarnation: u64,
}

/// What a segment is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum SegmentClass {
    /// Chunks of at most 64 KiB or so from many bodies.
    Small = 0,
    /// Large chunks from many bodies.
    Large = 1,
    /// One body's own.
    Own = 2,
    /// Bodies of scratch buckets.
    Scratch = 3,
    /// Chunks that compaction moved: what lived longer than its neighbours.
    Moved = 4,
}

/// Whether a segment is still appended to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum SegmentState {
    /// Appended to by the node that created it.
    Open = 0,
    /// Never changes again.
    Sealed = 1,
}

/// A segment in at most 64 bytes with its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentSummary {
    /// Its length in bytes once sealed.
    pub length: u64,
    /// What seeds the checksums of its records.
    pub seed: SegmentSeed,
    /// When it was created.
    pub created: Timestamp,
    /// What it is for.
    pub class: SegmentClass,
    /// Whether it is still appended to.
    pub state: SegmentState,
    /// The node of its first copy.
    pub node: u64,
    /// The tier of its first copy.
    pub tier: u32,
}

const _: () = assert!(size_of::<(SegmentId, SegmentSummary)>() <= 64);

/// The row of a segment.
#[must_use]
pub fn row(segment: SegmentId) -> Vec<u8> {
    key::numbered(Family::Segment, segment.0)
}

/// The segment in a row.
///
/// # Errors
/// When it is no row of this family.
pub fn key_of(row: &[u8]) -> Result<SegmentId, BadKey> {
    key::number_of(Family::Segment, row).map(SegmentId)
}

#[cfg(test)]
mod tests {
    use super::{Replica, SegmentRecord, key_of, row};
    use crate::schema::golden;
    use mlgw_common::SegmentId;
    use proptest::{prop_assert_eq, proptest};

    proptest! {
        #[test]
        fn rows_sort_by_id(a: u64, b: u64) {
            prop_assert_eq!(row(SegmentId(a)).cmp(&row(SegmentId(b))), a.cmp(&b));
            prop_assert_eq!(key_of(&row(SegmentId(a))), Ok(SegmentId(a)));
        }
    }

    #[test]
    fn the_record_has_these_bytes() {
        let segment = SegmentRecord {
            id: 3,
            generation: 1,
            class: 2,
            state: 1,
            length: 300,
            created_ms: 1_700_000_000_123,
            replicas: vec![Replica { node: 1, tier: 2, location: "d".into(), ..Replica::default() }],
            marked: 0,
            stamp: 0,
        };
        golden::check(&segment, include_str!("golden/segment.hex"));
        let open = SegmentRecord { state: 0, length: 0, marked: 300, ..segment.clone() };
        golden::check(&open, include_str!("golden/segment_marked.hex"));
        let stamped = SegmentRecord { stamp: 0x0102_0304_0506_0708, ..segment.clone() };
        golden::check(&stamped, include_str!("golden/segment_stamped.hex"));
        let upstream = Replica { copy: 77, sealed_key: vec![1, 2, 3], ..segment.replicas[0].clone() };
        let spilled = SegmentRecord { replicas: vec![upstream], ..segment };
        golden::check(&spilled, include_str!("golden/segment_upstream.hex"));
    }
}

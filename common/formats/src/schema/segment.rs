//! Segments and the locations of their replicas. Rows: `segment` in group 0, keyed by segment id.
//!
//! The length of a sealed segment is decided by a command and never changes. Every node keeps the whole
//! family in memory in short form ([`SegmentSummary`]).

use super::BadRecord;
use crate::key::{self, BadKey, Family};
use mlgw_common::{Generation, NodeId, SegmentId, SegmentSeed, SegmentStamp, SegmentTier, Timestamp};

/// A segment.
#[derive(Clone, PartialEq, Eq, prost::Message, serde::Serialize, serde::Deserialize)]
pub struct SegmentRecord {
    /// Id of the segment.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// Number of times that the segment was written anew under its id; 1 for the first writing.
    #[prost(uint32, tag = "2")]
    pub generation: u32,
    /// Class of the segment.
    #[prost(enumeration = "SegmentClass", tag = "3")]
    pub class: i32,
    /// Open or sealed.
    #[prost(enumeration = "SegmentState", tag = "4")]
    pub state: i32,
    /// Length in bytes once sealed.
    #[prost(uint64, tag = "5")]
    pub length: u64,
    /// Creation time, milliseconds since the epoch.
    #[prost(int64, tag = "6")]
    pub created_ms: i64,
    /// Replicas of the segment.
    #[prost(message, repeated, tag = "7")]
    pub replicas: Vec<Replica>,
    /// While the segment is open: the length of its prefix that consists of whole records on stable media,
    /// which recovery need not read.
    #[prost(uint64, tag = "8")]
    pub marked: u64,
    /// Random number that seeds the checksums of its records; 0 for format 1, which has none.
    #[prost(fixed64, tag = "9")]
    pub stamp: u64,
    /// Number of replicas that have synced an append before it is acknowledged; 0 before cluster version 3,
    /// when it was one.
    #[prost(uint32, tag = "10")]
    #[serde(default)]
    pub write_quorum: u32,
    /// Number of changes of `replicas` since cluster version 3.
    #[prost(uint64, tag = "12")]
    #[serde(default)]
    pub changes: u64,
    /// Id of the set on whose nodes its replicas belong, since cluster version 6; before it the first set.
    #[prost(uint32, tag = "13")]
    #[serde(default)]
    pub set: u32,
}

impl SegmentRecord {
    /// Returns the segment's id.
    #[must_use]
    pub const fn segment_id(&self) -> SegmentId {
        SegmentId(self.id)
    }

    /// Returns the seed of the checksums of its records.
    #[must_use]
    pub const fn seed(&self) -> SegmentSeed {
        SegmentSeed { generation: Generation(self.generation), stamp: SegmentStamp(self.stamp) }
    }

    /// Returns the node that appends to the segment, compacts, moves and removes it.
    #[must_use]
    pub fn owner(&self) -> Option<NodeId> {
        self.replicas.first().map(|replica| NodeId(replica.node))
    }

    /// True if the node is the owner.
    #[must_use]
    pub fn is_owned_by(&self, node: NodeId) -> bool {
        self.owner() == Some(node)
    }

    /// Returns the number of replicas that have synced an append before it is acknowledged.
    #[must_use]
    pub fn quorum(&self) -> usize {
        usize::try_from(self.write_quorum.max(1)).unwrap_or(usize::MAX)
    }

    /// True if an upstream has the segment. Then it has no other replica.
    #[must_use]
    pub fn is_at_upstream(&self) -> bool {
        self.replicas.iter().any(|replica| replica.tier() == Ok(SegmentTier::Upstream))
    }

    /// Returns the replica that a node holds.
    #[must_use]
    pub fn replica_of(&self, node: NodeId) -> Option<&Replica> {
        self.replicas.iter().find(|replica| replica.node == node.0)
    }

    /// Returns the tier of the replica that a node holds, or of the first replica if the node holds none.
    ///
    /// # Errors
    /// Returns [`BadRecord::Tier`] if this version does not know that tier.
    pub fn tier_for(&self, node: NodeId) -> Result<SegmentTier, BadRecord> {
        let replica = self.replica_of(node).or_else(|| self.replicas.first());
        replica.map_or(Ok(SegmentTier::Hot), Replica::tier)
    }

    /// Returns the short form of the record for a node.
    ///
    /// # Errors
    /// Those of [`Self::tier_for`].
    pub fn summary_for(&self, node: NodeId) -> Result<SegmentSummary, BadRecord> {
        Ok(SegmentSummary {
            length: self.length,
            seed: self.seed(),
            created: Timestamp(self.created_ms),
            class: self.class(),
            state: self.state(),
            tier: self.tier_for(node)?,
            is_local: self.replica_of(node).is_some(),
            set: self.set,
        })
    }
}

/// A replica of a segment.
#[derive(Clone, PartialEq, Eq, prost::Message, serde::Serialize, serde::Deserialize)]
pub struct Replica {
    /// The node that holds it.
    #[prost(uint64, tag = "1")]
    pub node: u64,
    /// Tier of the node, as [`SegmentTier::number`].
    #[prost(uint32, tag = "2")]
    pub tier: u32,
    /// Location in that tier: the name of a directory or of an upstream.
    #[prost(string, tag = "3")]
    pub location: String,
    /// In an upstream: number that distinguishes the object from other objects ever stored for the segment.
    #[prost(uint64, tag = "4")]
    pub copy: u64,
    /// In an upstream, if encrypted: the object's key, sealed.
    #[prost(bytes = "vec", tag = "5")]
    pub sealed_key: Vec<u8>,
    /// In an upstream: incarnation of the server that stored the object, which is part of the object's name.
    /// 0 for an object of an earlier version, whose name has no incarnation.
    #[prost(fixed64, tag = "6")]
    pub incarnation: u64,
    /// True if damage was found in the replica. Its good blocks are still read.
    #[prost(bool, tag = "7")]
    #[serde(default)]
    pub is_suspect: bool,
}

impl Replica {
    /// Returns the tier of the replica.
    ///
    /// # Errors
    /// Returns [`BadRecord::Tier`] if this version does not know the tier's number.
    pub fn tier(&self) -> Result<SegmentTier, BadRecord> {
        SegmentTier::from_number(self.tier).ok_or(BadRecord::Tier(self.tier))
    }
}

/// Class of a segment: the kind of chunks in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum SegmentClass {
    /// Chunks of at most 64 KiB or so from many bodies.
    Small = 0,
    /// Large chunks from many bodies.
    Large = 1,
    /// Chunks of a single body.
    Own = 2,
    /// Chunks of scratch buckets.
    Scratch = 3,
    /// Chunks that compaction moved because they outlived their neighbors.
    Moved = 4,
}

/// State of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum SegmentState {
    /// Appended to by the node that created it.
    Open = 0,
    /// Immutable.
    Sealed = 1,
}

/// Short form of a segment's record: at most 64 bytes together with the id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentSummary {
    /// Length in bytes once sealed.
    pub length: u64,
    /// Seed of the checksums of its records.
    pub seed: SegmentSeed,
    /// Creation time.
    pub created: Timestamp,
    /// Class of the segment.
    pub class: SegmentClass,
    /// Open or sealed.
    pub state: SegmentState,
    /// Tier, as [`SegmentRecord::tier_for`].
    pub tier: SegmentTier,
    /// True if the node has a replica.
    pub is_local: bool,
    /// Id of its set.
    pub set: u32,
}

const _: () = assert!(size_of::<(SegmentId, SegmentSummary)>() <= 64);

/// Returns the row key of a segment.
#[must_use]
pub fn row(segment: SegmentId) -> Vec<u8> {
    key::number_key(Family::Segment, segment.0)
}

/// Returns the segment in a row key.
///
/// # Errors
/// Returns [`BadKey`] if `row` is not a key of this family.
pub fn key_of(row: &[u8]) -> Result<SegmentId, BadKey> {
    key::parse_number_key(Family::Segment, row).map(SegmentId)
}

#[cfg(test)]
mod tests {
    use super::{Replica, SegmentRecord, key_of, row};
    use crate::schema::{BadRecord, golden};
    use mlgw_common::{NodeId, SegmentId, SegmentTier};
    use proptest::{prop_assert_eq, proptest};

    proptest! {
        #[test]
        fn rows_sort_by_id(a: u64, b: u64) {
            prop_assert_eq!(row(SegmentId(a)).cmp(&row(SegmentId(b))), a.cmp(&b));
            prop_assert_eq!(key_of(&row(SegmentId(a))), Ok(SegmentId(a)));
        }
    }

    #[test]
    fn an_unknown_tier_is_an_error_and_never_another_tier() {
        let at = |node, tier| Replica { node, tier, ..Replica::default() };
        let record = |replicas| SegmentRecord { replicas, ..SegmentRecord::default() };
        let (cold, newer) = (record(vec![at(2, 9), at(1, 1)]), record(vec![at(1, 9), at(2, 1)]));
        assert_eq!(
            cold.tier_for(NodeId(1)),
            Ok(SegmentTier::Cold),
            "the replica of another node is not read"
        );
        assert_eq!(newer.tier_for(NodeId(1)), Err(BadRecord::Tier(9)));
        assert_eq!(newer.tier_for(NodeId(3)), Err(BadRecord::Tier(9)));
        assert_eq!(newer.summary_for(NodeId(1)), Err(BadRecord::Tier(9)));
    }

    #[test]
    fn the_first_replica_is_the_owners() {
        let at = |node, tier| Replica { node, tier, ..Replica::default() };
        let record = SegmentRecord { replicas: vec![at(2, 0), at(1, 0)], ..SegmentRecord::default() };
        assert_eq!((record.owner(), record.is_owned_by(NodeId(1))), (Some(NodeId(2)), false));
        let is_local = |node| record.summary_for(NodeId(node)).unwrap().is_local;
        assert_eq!([1, 2, 3].map(is_local), [true, true, false]);
        let spilled = SegmentRecord { replicas: vec![at(2, 2)], ..SegmentRecord::default() };
        assert_eq!((spilled.is_at_upstream(), record.is_at_upstream()), (true, false));
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
            ..SegmentRecord::default()
        };
        golden::check(&segment, include_str!("golden/segment.hex"));
        let open = SegmentRecord { state: 0, length: 0, marked: 300, ..segment.clone() };
        golden::check(&open, include_str!("golden/segment_marked.hex"));
        let stamped = SegmentRecord { stamp: 0x0102_0304_0506_0708, ..segment.clone() };
        golden::check(&stamped, include_str!("golden/segment_stamped.hex"));
        let upstream = Replica { copy: 77, sealed_key: vec![1, 2, 3], ..segment.replicas[0].clone() };
        let spilled = SegmentRecord { replicas: vec![upstream], ..segment.clone() };
        golden::check(&spilled, include_str!("golden/segment_upstream.hex"));
        let suspect = Replica { node: 2, is_suspect: true, ..Replica::default() };
        let replicas = vec![segment.replicas[0].clone(), suspect];
        let copied = SegmentRecord { replicas, write_quorum: 2, changes: 2, ..segment };
        golden::check(&copied, include_str!("golden/segment_copied.hex"));
        let in_set = SegmentRecord { set: 300, ..copied };
        golden::check(&in_set, include_str!("golden/segment_in_set.hex"));
    }
}

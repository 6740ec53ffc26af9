//! Commands that create, seal, fence, relocate and remove segments.
//!
//! The order at the end of a segment's life is fixed. The segment is sealed. It is fenced in every object
//! group, after which no record can begin to refer to it. Remaining references are relocated, one extent at a
//! time. When no reference is left its record is removed. Only then may its file be removed.

use crate::schema::{Extent, Replica};

/// Creates a segment to append to. Replies with [`Reply::Segment`](super::Reply::Segment).
#[derive(Clone, PartialEq, prost::Message)]
pub struct CreateSegment {
    /// Class of the segment.
    #[prost(enumeration = "crate::schema::SegmentClass", tag = "1")]
    pub class: i32,
    /// Node that writes the segment.
    #[prost(uint64, tag = "2")]
    pub node: u64,
    /// Location in that node's hot tier.
    #[prost(string, tag = "3")]
    pub location: String,
    /// Creation time, milliseconds since the epoch.
    #[prost(int64, tag = "4")]
    pub created_ms: i64,
    /// Random number that seeds its checksums, not 0. Versions that wrote format 1 sent 0.
    #[prost(fixed64, tag = "5")]
    pub stamp: u64,
    /// Replicas on other nodes, to which the writer sends what it appends; none before cluster version 3.
    #[prost(message, repeated, tag = "6")]
    pub followers: Vec<Replica>,
    /// Number of replicas that have synced an append before it is acknowledged; 0 without followers.
    #[prost(uint32, tag = "7")]
    pub write_quorum: u32,
    /// Id of its set; the first one before cluster version 6.
    #[prost(uint32, tag = "8")]
    pub set: u32,
}

/// Sets a segment's final length. Repeatable with the same length; the first seal decides.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct SealSegment {
    /// The segment.
    #[prost(uint64, tag = "1")]
    pub segment: u64,
    /// Length of the segment in bytes.
    #[prost(uint64, tag = "2")]
    pub length: u64,
    /// The replicas from now on, that of the owner first. Those that are not known to have the whole length
    /// are marked as suspect. Empty, as before cluster version 3: they stay as they are.
    #[prost(message, repeated, tag = "3")]
    pub replicas: Vec<Replica>,
}

/// Raises the length up to which an open segment consists of whole records on stable media. The length never
/// shrinks. Ignored once the segment is sealed.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct MarkSegment {
    /// The segment.
    #[prost(uint64, tag = "1")]
    pub segment: u64,
    /// End of a record in the segment, in bytes.
    #[prost(uint64, tag = "2")]
    pub length: u64,
}

/// Ends new references to a segment in one group. Repeatable; never undone.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct FenceSegment {
    /// The segment.
    #[prost(uint64, tag = "1")]
    pub segment: u64,
}

/// Changes the location of one chunk of a body if the body's map has the expected one: compare and set.
/// Neither the bucket's epoch nor its state matters, because only the location of bytes changes.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RelocateExtent {
    /// The bucket, which together with the key determines the group and the object.
    #[prost(uint64, tag = "1")]
    pub bucket_id: u64,
    /// The key.
    #[prost(string, tag = "2")]
    pub key: String,
    /// The body.
    #[prost(uint64, tag = "3")]
    pub body_id: u64,
    /// Part whose row or pages contain the extent; 0 if the object's do.
    #[prost(uint32, tag = "4")]
    pub part: u32,
    /// First byte of the page that contains the extent; `None` if the record itself does.
    #[prost(uint64, optional, tag = "5")]
    pub page: Option<u64>,
    /// Expected current extent.
    #[prost(message, required, tag = "6")]
    pub from: Extent,
    /// New extent, of the same length.
    #[prost(message, required, tag = "7")]
    pub to: Extent,
}

/// Changes the location of a replica of a sealed segment, whose bytes have been copied already, if the record
/// has the expected one: compare and set. Repeatable. A move to or from an upstream replaces all replicas.
/// References to the segment are unaffected: they name the segment, not its location.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PlaceSegment {
    /// The segment.
    #[prost(uint64, tag = "1")]
    pub segment: u64,
    /// Expected current location.
    #[prost(message, required, tag = "2")]
    pub from: Replica,
    /// New location.
    #[prost(message, required, tag = "3")]
    pub to: Replica,
    /// Expected number of changes of the replicas. `None` before cluster version 3: then the segment must
    /// have the expected replica alone, and changes are not counted.
    #[prost(uint64, optional, tag = "4")]
    pub changes: Option<u64>,
}

/// Replaces the list of replicas of a sealed segment, if it was changed the expected number of times: compare
/// and set. Repeatable. Every replica in the list has the bytes already.
#[derive(Clone, PartialEq, prost::Message)]
pub struct SetReplicas {
    /// The segment.
    #[prost(uint64, tag = "1")]
    pub segment: u64,
    /// Expected number of changes.
    #[prost(uint64, tag = "2")]
    pub changes: u64,
    /// The replicas, that of the owner first; at least one.
    #[prost(message, repeated, tag = "3")]
    pub replicas: Vec<Replica>,
}

/// Removes a segment that is sealed, fenced and without references. Repeatable.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct RemoveSegment {
    /// The segment.
    #[prost(uint64, tag = "1")]
    pub segment: u64,
    /// Groups in whose applied state the proposer saw the segment fenced and without references. They must
    /// include every group that owns keys and may refer to segments of its set. Empty before cluster version
    /// 3: then group 0 checks its own rows.
    #[prost(uint32, repeated, tag = "2")]
    pub released_in: Vec<u32>,
}

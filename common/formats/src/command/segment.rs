//! Commands of segments: made, sealed, fenced, emptied, removed.
//!
//! The order of a segment's end is fixed. It is sealed; fenced in every object group, after which
//! no record can begin to refer to it; what still does is relocated, one extent at a time; and when
//! nothing refers to it any more its record is removed. Only then may its file go.

use crate::schema::{Extent, Replica};

/// A segment to append to. Answers [`Reply::Segment`](super::Reply::Segment).
#[derive(Clone, PartialEq, prost::Message)]
pub struct CreateSegment {
    /// What it is for.
    #[prost(enumeration = "crate::schema::SegmentClass", tag = "1")]
    pub class: i32,
    /// The node that writes it.
    #[prost(uint64, tag = "2")]
    pub node: u64,
    /// Where in that node's hot tier.
    #[prost(string, tag = "3")]
    pub location: String,
    /// When, milliseconds since the epoch.
    #[prost(int64, tag = "4")]
    pub created_ms: i64,
    /// A random number for its checksums, not 0; 0 was sent by versions that wrote format 1.
    #[prost(fixed64, tag = "5")]
    pub stamp: u64,
}

/// A segment's final length. Repeatable with the same length.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct SealSegment {
    /// The segment.
    #[prost(uint64, tag = "1")]
    pub segment: u64,
    /// Its length in bytes.
    #[prost(uint64, tag = "2")]
    pub length: u64,
}

/// How much of an open segment is whole records on stable media. Never shrinks; ignored once the
/// segment is sealed.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct MarkSegment {
    /// The segment.
    #[prost(uint64, tag = "1")]
    pub segment: u64,
    /// The end of a record in it.
    #[prost(uint64, tag = "2")]
    pub length: u64,
}

/// The end of new references to a segment in one group. Repeatable; never undone.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct FenceSegment {
    /// The segment.
    #[prost(uint64, tag = "1")]
    pub segment: u64,
}

/// Another place for one chunk of a body, if the body's map names it where it was: compare and set.
/// It concerns bytes only, so neither the bucket's epoch nor its state matters.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RelocateExtent {
    /// The bucket, which with the key says which group and which object.
    #[prost(uint64, tag = "1")]
    pub bucket_id: u64,
    /// The key.
    #[prost(string, tag = "2")]
    pub key: String,
    /// The body.
    #[prost(uint64, tag = "3")]
    pub body_id: u64,
    /// The part whose row or pages name the chunk; 0 when the object's do.
    #[prost(uint32, tag = "4")]
    pub part: u32,
    /// The first byte of the page that names it; none when the record itself does.
    #[prost(uint64, optional, tag = "5")]
    pub page: Option<u64>,
    /// What is there.
    #[prost(message, required, tag = "6")]
    pub from: Extent,
    /// What is to be there: as many bytes.
    #[prost(message, required, tag = "7")]
    pub to: Extent,
}

/// Another place for a sealed segment, whose bytes are there already, if it is where the command says:
/// compare and set. Repeatable. What refers to the segment is not concerned: it names the segment, not its
/// place.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PlaceSegment {
    /// The segment.
    #[prost(uint64, tag = "1")]
    pub segment: u64,
    /// Where it is.
    #[prost(message, required, tag = "2")]
    pub from: Replica,
    /// Where it is to be.
    #[prost(message, required, tag = "3")]
    pub to: Replica,
}

/// The end of a segment that is sealed, fenced and referred to by nothing. Repeatable.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct RemoveSegment {
    /// The segment.
    #[prost(uint64, tag = "1")]
    pub segment: u64,
}

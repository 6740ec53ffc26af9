//! Commands of what is cluster-wide but no bucket: ids, segments, access keys, members.

use crate::schema::{Credential, Node};

/// A range of body ids. Answers [`Reply::Bodies`](super::Reply::Bodies).
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct LeaseBodies {
    /// How many.
    #[prost(uint64, tag = "1")]
    pub count: u64,
}

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

/// A new or changed access key.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PutCredential {
    /// All of it.
    #[prost(message, required, tag = "1")]
    pub credential: Credential,
}

/// An access key's end.
#[derive(Clone, PartialEq, prost::Message)]
pub struct DeleteCredential {
    /// The access key.
    #[prost(string, tag = "1")]
    pub access_key: String,
}

/// A member of the cluster.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PutNode {
    /// All of it.
    #[prost(message, required, tag = "1")]
    pub node: Node,
}

/// Where the keys from a first one on are. Only on ranges that hold nothing yet.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PutPartition {
    /// The first key's bucket.
    #[prost(uint64, tag = "1")]
    pub bucket_id: u64,
    /// The first key; empty for the bucket's first.
    #[prost(bytes = "vec", tag = "2")]
    pub key: Vec<u8>,
    /// The group that holds them.
    #[prost(uint32, tag = "3")]
    pub group: u32,
}

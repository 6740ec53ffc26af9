//! Commands of what is cluster-wide but no bucket: ids, timelines, access keys, members.

use crate::schema::{Credential, Node};

/// A range of body ids. Answers [`Reply::Bodies`](super::Reply::Bodies).
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct LeaseBodies {
    /// How many.
    #[prost(uint64, tag = "1")]
    pub count: u64,
}

/// The timeline of the commands that follow. Repeatable; ids are skipped once per timeline.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct BeginIncarnation {
    /// The cluster.
    #[prost(fixed64, tag = "1")]
    pub cluster: u64,
    /// The incarnation.
    #[prost(fixed64, tag = "2")]
    pub incarnation: u64,
    /// Body and segment ids that are not handed out: an older timeline may have handed them out.
    #[prost(uint64, tag = "3")]
    pub skipped_ids: u64,
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

/// The key of upload ids, where there is none yet. Answers [`Reply::Done`](super::Reply::Done) in either
/// case.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct PutUploadKey {
    /// 16 random bytes.
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
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

//! Commands that concern no bucket: they lease ids, begin timelines, and change access keys and members.

use crate::schema::{Credential, Node};

/// Leases a range of body ids. Replies with [`Reply::Bodies`](super::Reply::Bodies).
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct LeaseBodies {
    /// Number of ids.
    #[prost(uint64, tag = "1")]
    pub count: u64,
}

/// Begins the timeline of the commands that follow. Idempotent; ids are skipped once per timeline.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct BeginIncarnation {
    /// The cluster.
    #[prost(fixed64, tag = "1")]
    pub cluster: u64,
    /// The incarnation.
    #[prost(fixed64, tag = "2")]
    pub incarnation: u64,
    /// Number of body and segment ids to skip, because an older timeline may have handed them out.
    #[prost(uint64, tag = "3")]
    pub skipped_ids: u64,
}

/// Creates or changes an access key.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PutCredential {
    /// The whole access key; its quota is set by another command.
    #[prost(message, required, tag = "1")]
    pub credential: Credential,
}

/// Deletes an access key.
#[derive(Clone, PartialEq, prost::Message)]
pub struct DeleteCredential {
    /// The access key.
    #[prost(string, tag = "1")]
    pub access_key: String,
}

/// Sets the key of upload ids if there is none yet. Replies with [`Reply::Done`](super::Reply::Done) in
/// either case.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct PutUploadKey {
    /// 16 random bytes.
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
}

/// Raises the cluster's version. Every member must know it.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct SetClusterVersion {
    /// The version.
    #[prost(uint32, tag = "1")]
    pub version: u32,
}

/// Marks an entry of the log after which each member digests its rows. It changes no row. Members of a
/// cluster compare the digests, which are equal unless a member has other rows than the log makes. Replies
/// with [`Reply::Done`](super::Reply::Done).
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct CompareRows {}

/// Identifies the batch that it ends, which a member proposed to a leader on another node: that member finds
/// the batch in the log if no answer arrives. It changes no row. Replies with
/// [`Reply::Done`](super::Reply::Done).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, prost::Message)]
pub struct TagBatch {
    /// Node id of the member.
    #[prost(uint64, tag = "1")]
    pub node: u64,
    /// Number that no other batch of the member has in this group.
    #[prost(fixed64, tag = "2")]
    pub number: u64,
}

/// Adds or changes a member of the cluster.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PutNode {
    /// The whole member.
    #[prost(message, required, tag = "1")]
    pub node: Node,
}

/// Assigns all keys from `key` upward to a Raft group. Allowed only on a range without rows.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PutPartition {
    /// Bucket of the first key.
    #[prost(uint64, tag = "1")]
    pub bucket_id: u64,
    /// The first key; empty for the bucket's first.
    #[prost(bytes = "vec", tag = "2")]
    pub key: Vec<u8>,
    /// Group that holds the keys.
    #[prost(uint32, tag = "3")]
    pub group: u32,
}

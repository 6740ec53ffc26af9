//! Commands of membership: tokens, nodes and authorities, and of the duty node. All are of group 0, and of
//! cluster version 2 unless the command or a field says otherwise.

use crate::schema::{AuthorityRecord, Duty, RecordedStart};

/// Creates a token with which one node may join.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct CreateJoinToken {
    /// Random id of the token; not 0.
    #[prost(fixed64, tag = "1")]
    pub token: u64,
    /// SHA-256 of its secret.
    #[prost(bytes = "vec", tag = "2")]
    pub secret_hash: Vec<u8>,
    /// First moment at which it is refused.
    #[prost(int64, tag = "3")]
    pub expires_ms: i64,
    /// The access key that creates it.
    #[prost(string, tag = "4")]
    pub created_by: String,
    /// Time of the command, milliseconds since the epoch.
    #[prost(int64, tag = "5")]
    pub now_ms: i64,
}

/// Removes a token.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct RemoveJoinToken {
    /// Id of the token.
    #[prost(fixed64, tag = "1")]
    pub token: u64,
}

/// Admits a node that presents a token. Replies with [`Reply::Node`](super::Reply::Node). The same node, by
/// its key, is given the same id again.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct AdmitNode {
    /// Id of the token.
    #[prost(fixed64, tag = "1")]
    pub token: u64,
    /// SHA-256 of the secret that the node presented.
    #[prost(bytes = "vec", tag = "2")]
    pub secret_hash: Vec<u8>,
    /// SHA-256 of the public key of the node's certificate.
    #[prost(bytes = "vec", tag = "3")]
    pub key_hash: Vec<u8>,
    /// Name for operators; may be empty.
    #[prost(string, tag = "4")]
    pub name: String,
    /// Address at which other nodes connect to it.
    #[prost(string, tag = "5")]
    pub address: String,
    /// Role of the node.
    #[prost(enumeration = "crate::schema::NodeRole", tag = "6")]
    pub role: i32,
    /// Newest cluster version that the node's build knows.
    #[prost(uint32, tag = "7")]
    pub cluster_version: u32,
    /// The node's build.
    #[prost(string, tag = "8")]
    pub build: String,
    /// Time of the command, milliseconds since the epoch.
    #[prost(int64, tag = "9")]
    pub now_ms: i64,
}

/// Adds the cluster's next certificate authority, or replaces the seal of a recorded one. Replies with
/// [`Reply::Authority`](super::Reply::Authority).
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct PutAuthority {
    /// The authority. Number 0 adds it; the number of a recorded one replaces its sealed key.
    #[prost(message, required, tag = "1")]
    pub authority: AuthorityRecord,
    /// Number of the newest authority when the command was built; 0 if there was none. Rejected if a newer
    /// one exists.
    #[prost(uint64, tag = "2")]
    pub after: u64,
}

/// Removes an authority that is not the newest one.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct RemoveAuthority {
    /// Number of the authority.
    #[prost(uint64, tag = "1")]
    pub number: u64,
}

/// Records a node's report about itself. Replies with [`Reply::Node`](super::Reply::Node).
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ReportNode {
    /// Id of the node.
    #[prost(uint64, tag = "1")]
    pub node: u64,
    /// Address at which other nodes connect to it.
    #[prost(string, tag = "2")]
    pub address: String,
    /// Newest cluster version that its build knows.
    #[prost(uint32, tag = "3")]
    pub cluster_version: u32,
    /// Its build.
    #[prost(string, tag = "4")]
    pub build: String,
    /// Its start.
    #[prost(message, required, tag = "5")]
    pub start: RecordedStart,
    /// SHA-256 of the public key of its certificate; empty leaves the recorded one.
    #[prost(bytes = "vec", tag = "6")]
    pub key_hash: Vec<u8>,
    /// True if the node serves: a joining node becomes active.
    #[prost(bool, tag = "7")]
    pub is_serving: bool,
    /// Time of the command, milliseconds since the epoch.
    #[prost(int64, tag = "8")]
    pub now_ms: i64,
    /// Number of the authority that signed its certificate; 0 if it states none: both
    /// recorded ones stay. Of cluster version 5.
    #[prost(uint64, tag = "9")]
    pub authority: u64,
    /// Number of the newest authority that it trusts; 0 if it states none. Of cluster version 5.
    #[prost(uint64, tag = "10")]
    pub trusted_authority: u64,
}

impl ReportNode {
    /// True if the report names authorities, which a build of cluster version 4 does not know.
    #[must_use]
    pub const fn has_authorities(&self) -> bool {
        self.authority != 0 || self.trusted_authority != 0
    }
}

/// Changes the role of a node. Replies with [`Reply::Node`](super::Reply::Node).
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct SetNodeRole {
    /// Id of the node.
    #[prost(uint64, tag = "1")]
    pub node: u64,
    /// The role. A storage node becomes a gateway only while it is joining or draining.
    #[prost(enumeration = "crate::schema::NodeRole", tag = "2")]
    pub role: i32,
}

/// Begins or ends the draining of a node. Replies with [`Reply::Node`](super::Reply::Node).
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct DrainNode {
    /// Id of the node.
    #[prost(uint64, tag = "1")]
    pub node: u64,
    /// False ends the draining.
    #[prost(bool, tag = "2")]
    pub is_draining: bool,
    /// Id of the node that takes its place; 0 if none does. Of cluster version 5.
    #[prost(uint64, tag = "3")]
    pub replaced_by: u64,
}

/// Removes a node for ever. While it is in the membership of the system group, the node is only marked; a
/// repetition after its membership ended removes it. Replies with [`Reply::Node`](super::Reply::Node).
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct RemoveNode {
    /// Id of the node.
    #[prost(uint64, tag = "1")]
    pub node: u64,
    /// Time of the command, milliseconds since the epoch.
    #[prost(int64, tag = "2")]
    pub now_ms: i64,
    /// True if no segment needed the node while it was draining: if its draining was ended since, nothing
    /// changes. Of cluster version 5.
    #[prost(bool, tag = "3")]
    pub is_drained: bool,
}

/// Changes the duty node, or how far it has taken over. Of cluster version 5. Rejected unless the present
/// duty [may be followed](Duty::may_be_followed_by) by this one. Replies with
/// [`Reply::Done`](super::Reply::Done).
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct SetDuty {
    /// The duty node from now on.
    #[prost(message, required, tag = "1")]
    pub duty: Duty,
}

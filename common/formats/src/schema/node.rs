//! Nodes of the cluster. Rows: `node` in group 0, keyed by node id. A server that is not in a cluster has
//! one.
//!
//! Ids grow and are never used again. The row of a removed node stays for a while as history. An id below the
//! next one without a row was removed too.

use crate::key::{Family, KeyWriter};
use mlgw_common::NodeId;
use serde::{Deserialize, Serialize};

/// A node of the cluster. Fields from `name` on are of cluster version 2, those from `authority` on of
/// version 5.
#[derive(Clone, PartialEq, Eq, prost::Message, Serialize, Deserialize)]
pub struct Node {
    /// Id of the node.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// Address at which other nodes connect to it; empty if there are none.
    #[prost(string, tag = "2")]
    pub address: String,
    /// Time of joining, milliseconds since the epoch, as are the following times.
    #[prost(int64, tag = "3")]
    pub joined_ms: i64,
    /// Name for operators; may be empty.
    #[prost(string, tag = "4")]
    pub name: String,
    /// Role of the node.
    #[prost(enumeration = "NodeRole", tag = "5")]
    pub role: i32,
    /// State of its membership.
    #[prost(enumeration = "NodeState", tag = "6")]
    pub state: i32,
    /// SHA-256 of the public key of its certificate; empty if it has none yet.
    #[prost(bytes = "vec", tag = "7")]
    pub key_hash: Vec<u8>,
    /// Newest cluster version that its build knows; 0 if it has not reported one.
    #[prost(uint32, tag = "8")]
    pub cluster_version: u32,
    /// Its build, as `mlgw --version` prints it.
    #[prost(string, tag = "9")]
    pub build: String,
    /// Its newest start; `None` if it has not reported one.
    #[prost(message, optional, tag = "10")]
    pub start: Option<RecordedStart>,
    /// Time of its newest report; 0 if there was none.
    #[prost(int64, tag = "11")]
    pub reported_ms: i64,
    /// Time of its removal; 0 before that.
    #[prost(int64, tag = "12")]
    pub removed_ms: i64,
    /// Number of the authority that signed the certificate that it uses; 0 if it has not reported one.
    #[prost(uint64, tag = "13")]
    #[serde(default)]
    pub authority: u64,
    /// Number of the newest authority that it trusts; 0 if it has not reported one.
    #[prost(uint64, tag = "14")]
    #[serde(default)]
    pub trusted_authority: u64,
    /// Id of the node that takes its place while it is drained, and after that; 0 if none does.
    #[prost(uint64, tag = "15")]
    #[serde(default)]
    pub replaced_by: u64,
}

impl Node {
    /// Returns the node's id.
    #[must_use]
    pub const fn node_id(&self) -> NodeId {
        NodeId(self.id)
    }

    /// True unless the node is being removed or was removed.
    #[must_use]
    pub fn is_staying(&self) -> bool {
        match self.state() {
            NodeState::Active | NodeState::Joining | NodeState::Draining => true,
            NodeState::Leaving | NodeState::Removed => false,
        }
    }

    /// True if the node was removed: its id is refused for ever.
    #[must_use]
    pub fn is_removed(&self) -> bool {
        self.state() == NodeState::Removed
    }

    /// True if a field is set that a build of cluster version 1 does not know.
    #[must_use]
    pub const fn has_membership_fields(&self) -> bool {
        !self.name.is_empty()
            || self.role != 0
            || self.state != 0
            || !self.key_hash.is_empty()
            || self.cluster_version != 0
            || !self.build.is_empty()
            || self.start.is_some()
            || self.reported_ms != 0
            || self.removed_ms != 0
            || self.has_authorities()
            || self.replaced_by != 0
    }

    /// True if a field is set that a build of cluster version 4 does not know.
    #[must_use]
    pub const fn has_authorities(&self) -> bool {
        self.authority != 0 || self.trusted_authority != 0
    }
}

/// Role of a node.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration, Serialize, Deserialize,
)]
#[repr(i32)]
pub enum NodeRole {
    /// Stores segments and object groups.
    Storage = 0,
    /// Stores nothing but the system group; forwards requests.
    Gateway = 1,
}

/// State of a node's membership.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration, Serialize, Deserialize,
)]
#[repr(i32)]
pub enum NodeState {
    /// Serves. The only node of a server that is not in a cluster is in this state.
    Active = 0,
    /// Admitted; has not reported that it serves.
    Joining = 1,
    /// Gives up its data and its votes where others can take them. Can become active again.
    Draining = 2,
    /// Removed by an operator and still in the membership of the system group.
    Leaving = 3,
    /// Removed for ever.
    Removed = 4,
}

impl std::fmt::Display for NodeState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Active => "active",
            Self::Joining => "joining",
            Self::Draining => "draining",
            Self::Leaving => "being removed",
            Self::Removed => "removed",
        })
    }
}

/// Start of a node's process, by which wiped, cloned and restored disks are recognized.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message, Serialize, Deserialize)]
pub struct RecordedStart {
    /// Timeline of the node's data.
    #[prost(fixed64, tag = "1")]
    pub incarnation: u64,
    /// Number of the start: grows by one with each.
    #[prost(uint64, tag = "2")]
    pub counter: u64,
    /// Random number of the start.
    #[prost(fixed64, tag = "3")]
    pub nonce: u64,
}

/// Returns the row key of a node.
#[must_use]
pub fn row(node: NodeId) -> Vec<u8> {
    KeyWriter::new(Family::Node).u64(node.0).finish()
}

#[cfg(test)]
mod tests {
    use super::{Node, NodeRole, NodeState, RecordedStart, row};
    use crate::schema::golden;
    use mlgw_common::NodeId;
    use proptest::{prop_assert_eq, proptest};

    proptest! {
        #[test]
        fn rows_sort_by_id(a: u64, b: u64) {
            prop_assert_eq!(row(NodeId(a)).cmp(&row(NodeId(b))), a.cmp(&b));
        }
    }

    #[test]
    fn the_record_has_these_bytes() {
        let node = Node { id: 1, address: "h:1".into(), joined_ms: 1_700_000_000_123, ..Node::default() };
        golden::check(&node, include_str!("golden/node.hex"));
        assert!(!node.has_membership_fields() && node.is_staying());
        let member = Node {
            name: "n".into(),
            role: NodeRole::Gateway as i32,
            state: NodeState::Removed as i32,
            key_hash: vec![7; 32],
            cluster_version: 2,
            build: "mlgw 0.1.0".into(),
            start: Some(RecordedStart { incarnation: 0x0102_0304, counter: 300, nonce: 5 }),
            reported_ms: 1_700_000_000_124,
            removed_ms: 1_700_000_000_125,
            ..node
        };
        golden::check(&member, include_str!("golden/node_member.hex"));
        let rotated = Node { authority: 300, trusted_authority: 301, replaced_by: 3, ..member.clone() };
        golden::check(&rotated, include_str!("golden/node_rotated.hex"));
        assert!(member.has_membership_fields() && member.is_removed() && !member.is_staying());
    }

    #[test]
    fn every_later_field_is_recognized() {
        let first = Node { id: 1, address: "h:1".into(), joined_ms: 5, ..Node::default() };
        let later = [
            Node { name: "n".into(), ..first.clone() },
            Node { role: 1, ..first.clone() },
            Node { state: 1, ..first.clone() },
            Node { key_hash: vec![1], ..first.clone() },
            Node { cluster_version: 1, ..first.clone() },
            Node { build: "b".into(), ..first.clone() },
            Node { start: Some(RecordedStart::default()), ..first.clone() },
            Node { reported_ms: 1, ..first.clone() },
            Node { removed_ms: 1, ..first.clone() },
            Node { authority: 1, ..first.clone() },
            Node { trusted_authority: 1, ..first.clone() },
            Node { replaced_by: 1, ..first.clone() },
        ];
        assert!(later.iter().all(Node::has_membership_fields));
    }
}

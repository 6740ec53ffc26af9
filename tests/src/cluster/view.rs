//! The document of `GET /v1/cluster`, limited to the fields that the tests read.

use std::collections::BTreeSet;

use serde::Deserialize;

/// The cluster as one of its nodes describes it.
#[derive(Debug, Deserialize)]
pub(super) struct ClusterView {
    pub(super) duty: Option<usize>,
    pub(super) duty_term: u64,
    /// `waiting`, `active`, `left` or `ended`.
    pub(super) duty_phase: String,
    pub(super) findings: Vec<FindingView>,
    pub(super) authority_change: Option<AuthorityChangeView>,
    pub(super) cluster_version: u32,
    pub(super) upgrade: Option<UpgradeView>,
    pub(super) copies: CopiesView,
    pub(super) leaving: Vec<LeavingView>,
    pub(super) sets: Vec<SetView>,
    pub(super) rebalance: Option<RebalanceView>,
    pub(super) moving_groups: Vec<u32>,
    pub(super) sets_wait: Option<String>,
    /// Empty while nodes of an earlier version answer.
    #[serde(default)]
    pub(super) rows: Vec<RowsView>,
    pub(super) nodes: Vec<NodeView>,
    pub(super) groups: Vec<GroupView>,
}

/// A finding.
#[derive(Debug, Deserialize)]
pub(super) struct FindingView {
    pub(super) what: String,
}

/// Replacement of the authority of the cluster.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct AuthorityChangeView {
    pub(super) authority: u64,
    pub(super) without_trust: Vec<usize>,
}

/// Upgrade to a later cluster version.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct UpgradeView {
    pub(super) version: u32,
    pub(super) without: Vec<usize>,
}

/// Copies of segments.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(super) struct CopiesView {
    pub(super) wanted: usize,
    pub(super) segments: usize,
    /// Bytes of the sealed segments, each counted once.
    pub(super) bytes: u64,
    pub(super) below_segments: usize,
    pub(super) suspect_segments: usize,
    pub(super) open_segments: usize,
    pub(super) off_set_segments: usize,
    /// Bytes in segments of other sets than that of their group; `None` if they cannot be read.
    pub(super) off_set_bytes: Option<u64>,
}

/// A storage node that leaves.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(super) struct LeavingView {
    pub(super) node: usize,
    pub(super) done: bool,
}

/// A set of nodes.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct SetView {
    pub(super) nodes: Vec<usize>,
    pub(super) groups: Vec<u32>,
    pub(super) guests: Vec<u32>,
}

/// Comparison of the rows of a group.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct RowsView {
    pub(super) group: u32,
    pub(super) differing: Vec<usize>,
    pub(super) undecided: bool,
    pub(super) without: Vec<usize>,
}

/// A rebalance that is under way.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct RebalanceView {}

/// A node.
#[derive(Debug, Deserialize)]
pub(super) struct NodeView {
    pub(super) id: usize,
    pub(super) name: String,
    pub(super) address: String,
    pub(super) role: String,
    pub(super) state: String,
    pub(super) own: bool,
    pub(super) duty: bool,
    pub(super) reachable: Option<bool>,
    pub(super) clock_skew_ms: Option<i64>,
    pub(super) differing_settings: Vec<String>,
}

/// A Raft group. It has members if the responding node leads it.
#[derive(Debug, Deserialize)]
pub(super) struct GroupView {
    pub(super) id: u32,
    pub(super) leader: Option<usize>,
    pub(super) members: Vec<GroupMemberView>,
}

/// A member of a group.
#[derive(Debug, Deserialize)]
pub(super) struct GroupMemberView {
    pub(super) node: usize,
    /// `voter` or `learner`.
    pub(super) part: String,
    pub(super) lag_bytes: u64,
}

impl ClusterView {
    /// True if the duty node may write at origins.
    pub(super) fn duty_acts(&self) -> bool {
        self.duty_phase == "active"
    }

    pub(super) fn node(&self, id: usize) -> Option<&NodeView> {
        self.nodes.iter().find(|node| node.id == id)
    }
}

impl GroupView {
    /// Nodes with this part in the group.
    pub(super) fn with_part(&self, part: &str) -> BTreeSet<usize> {
        let members = self.members.iter().filter(|member| member.part == part);
        members.map(|member| member.node).collect()
    }
}

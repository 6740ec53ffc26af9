//! The cluster: its nodes, its Raft groups, and tokens for new nodes.
//!
//! Field names and their order are a stable interface for programs.

use crate::HealthFinding;
use crate::words::words;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The cluster, as one of its nodes knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ClusterInfo {
    /// Id of the cluster: 16 hexadecimal digits.
    pub cluster: String,
    /// Id of the node that responds.
    pub node: u64,
    /// Id of the node that does what runs once per cluster; absent while the responding node knows of none.
    pub duty: Option<u64>,
    /// Number of the take-over by that node; each one has a higher term than all before it.
    pub duty_term: u64,
    /// How far that node has taken over.
    pub duty_phase: ClusterDutyPhase,
    /// Reason for which a change of a group's members waits; absent if none waits.
    pub waits: Option<String>,
    /// End of the validity of the responding node's certificate. It is renewed earlier.
    pub certificate_expires: String,
    /// Replacement of the cluster's certificate authority that is under way; absent if there is none.
    pub authority_change: Option<ClusterAuthorityChange>,
    /// Version of the cluster. No node uses what only later versions have.
    pub cluster_version: u32,
    /// Upgrade to a later cluster version that is under way; absent if there is none.
    pub upgrade: Option<ClusterUpgradeInfo>,
    /// Findings with advice, worst first.
    pub findings: Vec<HealthFinding>,
    /// Copies of segments on the storage nodes.
    pub copies: ClusterCopiesInfo,
    /// Storage nodes that are drained or being removed, sorted by id.
    pub leaving: Vec<ClusterLeavingInfo>,
    /// Sets of storage nodes, sorted by id. Empty while every storage node is a member of every group.
    pub sets: Vec<ClusterSetInfo>,
    /// The rebalance that is under way; absent if there is none.
    pub rebalance: Option<ClusterRebalanceInfo>,
    /// Ids of the groups whose votes are moving to the nodes of their sets; only groups with a member on the
    /// responding node are known.
    pub moving_groups: Vec<u32>,
    /// What the next change of the sets waits for; absent if none waits, and if the responding node is not in
    /// the first set.
    pub sets_wait: Option<String>,
    /// The last comparison of the rows of each group with a member on the responding node, sorted by group.
    /// Groups that were not compared since the start of that node are missing.
    pub rows: Vec<ClusterRowsInfo>,
    /// Nodes, sorted by id; those that were removed recently are included.
    pub nodes: Vec<ClusterNodeInfo>,
    /// Raft groups with a member on the responding node, and all others once there are sets; sorted by id.
    pub groups: Vec<ClusterGroupInfo>,
}

/// Replacement of the certificate authority of the cluster. The nodes carry it out automatically.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ClusterAuthorityChange {
    /// Number of the new authority.
    pub authority: u64,
    /// Ids of the nodes that have not reported that they trust it. It signs no certificate before.
    pub without_trust: Vec<u64>,
    /// Ids of the nodes that have not reported a certificate that it signed. The old authority is removed
    /// when there are none.
    pub without_certificate: Vec<u64>,
}

/// Upgrade of a cluster. Its version is raised automatically when all nodes have reported that they know it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ClusterUpgradeInfo {
    /// The newest version that the responding node knows.
    pub version: u32,
    /// Ids of the nodes that have not reported that they know it; nodes that are down count.
    pub without: Vec<u64>,
}

/// Copies of segments, counted over the records of all segments. Segments at an upstream need no copies on
/// nodes. What is appended to an open segment is on two nodes before it is acknowledged, or on one if there
/// is no other storage node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ClusterCopiesInfo {
    /// Number of nodes that should have a copy of each sealed segment: 3, or all storage nodes that stay if
    /// there are fewer.
    pub wanted: u32,
    /// Number of sealed segments.
    pub segments: u64,
    /// Bytes of these segments; each is counted once.
    pub bytes: u64,
    /// Number of sealed segments with fewer intact copies than wanted.
    pub below_segments: u64,
    /// Bytes of these segments; each is counted once.
    pub below_bytes: u64,
    /// Number of sealed segments with a copy in which damage was found.
    pub suspect_segments: u64,
    /// Number of open segments.
    pub open_segments: u64,
    /// Number of sealed segments with a copy on a node outside of their set. Such copies are removed when the
    /// nodes of the set have all copies.
    pub off_set_segments: u64,
    /// Bytes that objects have in segments of other sets than that of their group, in the groups with a
    /// member on the responding node. They are moved to the nodes of the set in the background. Absent if the
    /// node cannot read them.
    pub off_set_bytes: Option<u64>,
}

/// A set of storage nodes. The nodes of a group's set vote in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ClusterSetInfo {
    /// Id of the set; the nodes of set 0 also have the rows of all groups.
    pub id: u32,
    /// Ids of its nodes.
    pub nodes: Vec<u64>,
    /// Ids of its groups.
    pub groups: Vec<u32>,
    /// Ids of the groups that were in it: their objects may have bytes in segments of it.
    pub guests: Vec<u32>,
}

/// A rebalance that is under way. It ends automatically.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ClusterRebalanceInfo {
    /// Time of the request.
    pub requested: String,
    /// Access key that requested it.
    pub by: String,
}

/// Answer to the request of a rebalance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ClusterRebalanceChange {
    /// True if a rebalance was under way before the request.
    pub already_running: bool,
}

/// Segments that a storage node still has while it is drained or removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ClusterLeavingInfo {
    /// Id of the node.
    pub node: u64,
    /// Number of sealed segments that the node owns or has a copy of.
    pub segments: u64,
    /// Number of those of them that have all their copies on other nodes.
    pub copied_segments: u64,
    /// Number of open segments with a copy on the node.
    pub open_segments: u64,
    /// Number of sets that the node is in. Another node takes its place in one after the other.
    pub sets: u64,
    /// Number of groups of objects in which the node votes; only groups with a member on the responding node
    /// are counted. It gives up the votes that another node can take.
    pub votes: u64,
    /// True if no segment and no set needs the node any more.
    pub done: bool,
    /// Id of the node that takes its place; absent if none does. Such a node is removed automatically when it
    /// is done.
    pub replaced_by: Option<u64>,
}

/// Comparison of the rows that the members of a Raft group have. They are the same unless a member diverged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ClusterRowsInfo {
    /// Id of the group.
    pub group: u32,
    /// Index of the log entry after which the rows were compared.
    pub index: u64,
    /// Time of the result, by the clock of the leader.
    pub compared: String,
    /// Ids of the nodes whose rows differ from those of most members. A node stays here until a comparison
    /// finds its rows equal, or it leaves the group.
    pub differing: Vec<u64>,
    /// True if the rows differ and those of no member are those of most: then the differing nodes are all
    /// that were compared.
    pub undecided: bool,
    /// Ids of the nodes that were not compared: they did not answer, or have restarted meanwhile.
    pub without: Vec<u64>,
}

/// A node of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ClusterNodeInfo {
    /// Id of the node, which is never used again.
    pub id: u64,
    /// Name for operators; may be empty.
    pub name: String,
    /// Address at which other nodes connect to it; empty if it has stated none.
    pub address: String,
    /// Role of the node.
    pub role: ClusterNodeRole,
    /// State of its membership.
    pub state: ClusterNodeState,
    /// Build that the node reported; empty if it has not reported one.
    pub build: String,
    /// Newest cluster version that its build supports; 0 if it has not reported one.
    pub cluster_version: u32,
    /// Time of joining.
    pub joined: String,
    /// True for the node that responds.
    pub own: bool,
    /// True for the duty node, which runs jobs and rules, and serves remote-backed buckets.
    pub duty: bool,
    /// True if it answers the responding node; absent before the first attempt.
    pub reachable: Option<bool>,
    /// True if it answers, serves requests for objects itself, and does not stop; absent before the first
    /// attempt. A gateway serves none itself.
    pub serves: Option<bool>,
    /// Bytes of segments in its hot tier; absent for a gateway, for a node that does not answer, and for one
    /// whose version does not state it.
    pub used_bytes: Option<u64>,
    /// Bytes that its hot tier can still store; absent as the used bytes are.
    pub free_bytes: Option<u64>,
    /// Index of the last log entry of the system group that it has applied; absent for a node that does not
    /// answer, and for one whose version does not state it.
    pub applied: Option<u64>,
    /// Deviation of its clock from the median of the nodes that answer, in milliseconds: positive if it is
    /// ahead. Absent for a node that does not answer, while two clocks differ and none is known to be right,
    /// and for a node whose version does not state its time.
    pub clock_skew_ms: Option<i64>,
    /// Names of its settings that all nodes should share, and that differ from those of most nodes. Empty for
    /// a node that has not stated its settings to the responding node.
    pub differing_settings: Vec<String>,
}

/// A Raft group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ClusterGroupInfo {
    /// Id of the group; 0 is the system group.
    pub id: u32,
    /// Id of the node that leads the group; absent while the responding node knows of none.
    pub leader: Option<u64>,
    /// Members; empty unless the responding node leads the group.
    pub members: Vec<ClusterMemberInfo>,
}

/// A member of a Raft group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ClusterMemberInfo {
    /// Id of the node.
    pub node: u64,
    /// Part of the member in the group.
    pub part: ClusterMemberPart,
    /// Bytes of the log that the member does not have yet.
    pub lag_bytes: u64,
}

/// A new join token.
#[derive(Clone, Serialize, Deserialize, JsonSchema)]
pub struct NewJoinTokenInfo {
    /// The token, which contains a secret; no later response contains it.
    pub token: String,
    /// Id of the token.
    pub id: String,
    /// Time from which the token admits no node.
    pub expires: String,
}

impl fmt::Debug for NewJoinTokenInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NewJoinTokenInfo")
            .field("id", &self.id)
            .field("expires", &self.expires)
            .finish_non_exhaustive()
    }
}

/// Request to drain a node.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DrainNodeRequest {
    /// Copies that each segment keeps, 2 or 3; as many active storage nodes must be left. If absent, 3.
    #[serde(default)]
    #[schemars(range(min = 2, max = 3))]
    pub to_copies: Option<u64>,
}

/// Request to replace a storage node by another one.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplaceNodeRequest {
    /// Id of the active storage node that takes its place.
    pub with: u64,
    /// True if the node never returns: it is removed at once. What only it had is lost.
    #[serde(default)]
    pub lost: bool,
}

/// Request to remove a node.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RemoveNodeRequest {
    /// True if the node never returns: it is removed although segments need it. What only it had is lost.
    #[serde(default)]
    pub lost: bool,
}

/// State of a node after a change of its membership.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ClusterNodeChange {
    /// Id of the node.
    pub node: u64,
    /// State of its membership.
    pub state: ClusterNodeState,
}

words! {
    /// Phase of a term of duty.
    ClusterDutyPhase {
        /// Runs jobs and rules, and serves remote-backed buckets. Writes of an earlier term may still take
        /// effect at origins, so the node does not write there yet.
        Waiting = "waiting",
        /// Writes at origins too.
        Active = "active",
        /// Has stopped, while the outcome of a write at an origin was unknown: another node takes over, and
        /// waits before it writes there.
        Left = "left",
        /// Has stopped: another node takes over at once.
        Ended = "ended",
    }
}

words! {
    /// Role of a node.
    ClusterNodeRole {
        /// Stores segments, and is a member of all groups.
        Storage = "storage",
        /// Forwards requests, and is a member of the system group alone.
        Gateway = "gateway",
    }
}

words! {
    /// State of a node's membership.
    ClusterNodeState {
        /// Admitted; has not reported that it serves.
        Joining = "joining",
        /// Serves.
        Active = "active",
        /// Gives up its data and its votes where other nodes can take them.
        Draining = "draining",
        /// Removed by an operator, and still a member of a group.
        Leaving = "leaving",
        /// Removed for ever.
        Removed = "removed",
    }
}

words! {
    /// Part of a member in a Raft group.
    ClusterMemberPart {
        /// Its sync of a log entry counts.
        Voter = "voter",
        /// Receives the log and does not vote.
        Learner = "learner",
    }
}

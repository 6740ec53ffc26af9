//! Status of the cluster as this node sees it.

use crate::authorities::{AuthorityChange, authority_change};
use crate::facts::{GroupWaits, lacking_version};
use crate::probes::{Probes, has_majority};
use crate::services::NodeServices;
use crate::set_facts::{NodeAnswers, SetsStatus, sets_status};
use crate::sets::set_rows;
use mlgw_common::{ClockComparison, ClusterId, NodeId, Timestamp};
use mlgw_formats::node_load::NodeLoad;
use mlgw_formats::schema::{DutyPhase, Node, NodeRole, NodeState};
use mlgw_membership::skew_of;
use mlgw_metadata::{Catalogue, MemberRole, RowComparison};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Status of the cluster.
#[derive(Clone, Debug)]
pub struct ClusterStatus {
    /// The cluster.
    pub cluster: ClusterId,
    /// This node.
    pub node: NodeId,
    /// The node that does what runs once per cluster, as the rows name it.
    pub duty: Option<NodeId>,
    /// Number of its take-over.
    pub duty_term: u64,
    /// How far it has taken over.
    pub duty_phase: DutyPhase,
    /// All nodes with a record, by id.
    pub nodes: Vec<NodeStatus>,
    /// The groups on this node and, once there are sets, those that other nodes have, by id.
    pub groups: Vec<GroupStatus>,
    /// Sets of nodes, and what moves between them.
    pub sets: SetsStatus,
    /// The newest comparison of the rows of each group on this node, as far as this node knows it.
    pub rows: BTreeMap<u32, RowComparison>,
    /// Reason for which the membership of a group that this node leads waits.
    pub waits: Option<String>,
    /// The clock of this node, compared with those of the nodes that answer.
    pub clock: ClockComparison,
    /// End of the validity of this node's certificate.
    pub certificate_expires: Timestamp,
    /// Replacement of the authority that is under way.
    pub authority_change: Option<AuthorityChange>,
    /// Version of the cluster: that of its oldest node, until all have reported a later one.
    pub cluster_version: u32,
    /// The upgrade to the newest version that this node knows, while the cluster has an older one.
    pub upgrade: Option<ClusterUpgrade>,
}

/// An upgrade that is under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterUpgrade {
    /// The version that the cluster gets.
    pub version: u32,
    /// Nodes that have not reported that they know it, by id. The version is raised when there are none.
    pub without: Vec<NodeId>,
}

/// Status of a node.
#[derive(Clone, Debug)]
pub struct NodeStatus {
    /// Its id.
    pub id: NodeId,
    /// Name for operators; may be empty.
    pub name: String,
    /// Address at which other nodes connect to it.
    pub address: String,
    /// Its role.
    pub role: NodeRole,
    /// State of its membership.
    pub state: NodeState,
    /// Its build.
    pub build: String,
    /// Newest cluster version that its build knows.
    pub cluster_version: u32,
    /// Time of its admission, milliseconds since the epoch.
    pub joined_ms: i64,
    /// True for the node that answers.
    pub is_own: bool,
    /// True for the duty node, which serves remote-backed buckets and runs jobs.
    pub is_duty: bool,
    /// True if it answers this node; `None` if it was not called yet.
    pub reachable: Option<bool>,
    /// True if it answers, serves requests and does not stop; `None` if it was not called yet. A gateway
    /// serves none.
    pub serves: Option<bool>,
    /// The node that takes its place, while it is drained for it.
    pub replaced_by: Option<NodeId>,
    /// Its load; `None` while it does not answer, or if its version states none.
    pub load: Option<NodeLoad>,
    /// Deviation of its clock from the median of all nodes that answer, in milliseconds, if it is known.
    pub clock_skew_ms: Option<i64>,
    /// Names of its settings that all nodes should share and that differ from those of most nodes.
    pub differing_settings: Vec<String>,
}

/// Status of a group.
#[derive(Clone, Debug)]
pub struct GroupStatus {
    /// Its id.
    pub id: u32,
    /// True if this node has a member of it. Otherwise its leader is unknown.
    pub is_here: bool,
    /// Its leader, if this node knows it.
    pub leader: Option<NodeId>,
    /// True if most of its voters answer this node; without a member here most nodes of its set.
    pub has_majority: bool,
    /// Its members; empty if another node leads it.
    pub members: Vec<GroupMemberStatus>,
}

/// Status of a member of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupMemberStatus {
    /// Its node.
    pub node: NodeId,
    /// True if it votes.
    pub is_voter: bool,
    /// Bytes of log that it lacks.
    pub lag_bytes: u64,
}

/// What a status is collected from.
pub(crate) struct StatusSources<'a> {
    pub(crate) cluster: ClusterId,
    pub(crate) own: NodeId,
    pub(crate) catalogue: &'a Catalogue,
    pub(crate) probes: &'a Probes,
    pub(crate) services: &'a NodeServices,
    pub(crate) waits: &'a GroupWaits,
    pub(crate) clock: ClockComparison,
    pub(crate) certificate_expires: Timestamp,
}

impl StatusSources<'_> {
    /// Collects the status.
    pub(crate) fn collect(&self) -> ClusterStatus {
        let nodes = self.catalogue.nodes();
        let duty = self.catalogue.duty();
        let answers = NodeAnswers::of(self.catalogue, self.probes, self.services);
        let waits = self.waits.lock().values().next().map(ToString::to_string);
        let mut differing = self.services.settings().differing(self.own, &nodes);
        ClusterStatus {
            cluster: self.cluster,
            node: self.own,
            duty: Some(duty.node_id()).filter(|node| nodes.iter().any(|known| known.node_id() == *node)),
            duty_term: duty.term,
            duty_phase: duty.phase(),
            nodes: nodes
                .iter()
                .map(|node| {
                    let differing = differing.remove(&node.node_id()).unwrap_or_default();
                    self.node_status(node, duty.node_id(), differing)
                })
                .collect(),
            groups: self.group_statuses(),
            sets: sets_status(self.catalogue, answers),
            rows: self.rows(),
            waits,
            clock: self.clock,
            certificate_expires: self.certificate_expires,
            authority_change: self.authority_change(&nodes),
            cluster_version: self.catalogue.cluster_version(),
            upgrade: self.upgrade(&nodes),
        }
    }

    /// The results without nodes that have left the cluster since.
    fn rows(&self) -> BTreeMap<u32, RowComparison> {
        let known = self.catalogue.row_comparisons().into_iter();
        known
            .map(|(group, known)| {
                let mut rows = known.comparison;
                rows.differing.retain(|node| self.catalogue.is_in_group(group, *node));
                rows.without.retain(|node| self.catalogue.is_in_group(group, *node));
                (group, rows)
            })
            .collect()
    }

    fn upgrade(&self, nodes: &[Arc<Node>]) -> Option<ClusterUpgrade> {
        let version = self.catalogue.known_cluster_version();
        let without = || lacking_version(nodes, version).collect();
        (self.catalogue.cluster_version() < version).then(|| ClusterUpgrade { version, without: without() })
    }

    /// A store that cannot be read is reported by everything else.
    fn authority_change(&self, nodes: &[Arc<Node>]) -> Option<AuthorityChange> {
        authority_change(&self.catalogue.authorities().ok()?, nodes)
    }

    fn node_status(&self, node: &Node, duty: NodeId, differing_settings: Vec<String>) -> NodeStatus {
        let id = node.node_id();
        let is_own = id == self.own;
        NodeStatus {
            id,
            name: node.name.clone(),
            address: node.address.clone(),
            role: node.role(),
            state: node.state(),
            build: node.build.clone(),
            cluster_version: node.cluster_version,
            joined_ms: node.joined_ms,
            is_own,
            is_duty: id == duty,
            reachable: if is_own { Some(true) } else { self.probes.answers(id) },
            serves: match is_own {
                true => Some(self.services.is_serving()),
                false => self.probes.answers(id).map(|_| self.probes.serves(id)),
            },
            replaced_by: (node.replaced_by != 0).then_some(NodeId(node.replaced_by)),
            load: if is_own { Some(self.services.load()) } else { self.probes.load(id) },
            clock_skew_ms: self.clock_skew_ms(id),
            differing_settings,
        }
    }

    fn clock_skew_ms(&self, id: NodeId) -> Option<i64> {
        match self.clock {
            ClockComparison::Compared { skew_ms } if id == self.own => Some(skew_ms),
            comparison => skew_of(self.probes.clock(id)?, comparison),
        }
    }

    /// The groups on this node and, once there are sets, those that other nodes have.
    fn group_statuses(&self) -> Vec<GroupStatus> {
        let here: BTreeSet<u32> = self.catalogue.groups().into_iter().collect();
        let sets = set_rows(self.catalogue);
        if sets.is_empty() {
            return here.into_iter().map(|id| self.group_status(id)).collect();
        }
        let all: BTreeSet<u32> = self.catalogue.object_groups().union(&here).copied().collect();
        let status = |id: u32| match here.contains(&id) {
            true => self.group_status(id),
            false => self.status_elsewhere(id, &sets.nodes_of_group(id).into_iter().collect()),
        };
        all.into_iter().map(status).collect()
    }

    /// Status of a group without a member on this node. `nodes`, those of its set, count as its voters.
    fn status_elsewhere(&self, id: u32, nodes: &BTreeSet<NodeId>) -> GroupStatus {
        let has_majority = has_majority(nodes, self.own, self.probes);
        GroupStatus { id, is_here: false, leader: None, has_majority, members: Vec::new() }
    }

    fn group_status(&self, id: u32) -> GroupStatus {
        let members = self.catalogue.members(id).map(|group| {
            let members = group.members.iter().map(|member| GroupMemberStatus {
                node: member.node,
                is_voter: member.role == MemberRole::Voter,
                lag_bytes: member.lag_bytes,
            });
            members.collect()
        });
        GroupStatus {
            id,
            is_here: true,
            leader: self.catalogue.leader(id),
            has_majority: has_majority(&self.catalogue.voters(id), self.own, self.probes),
            members: members.unwrap_or_default(),
        }
    }
}

//! Carries out the decisions about the members of the groups that this node leads.
//!
//! For each group: collect the facts, decide one step, carry it out, and begin again. No step depends on an
//! earlier one, so a step that failed or whose outcome is unknown is decided anew from the facts. Nothing is
//! stored here.

use crate::copies::ClusterStorageNodes;
use crate::facts::{GroupWaits, SYSTEM_GROUP, decision_input};
use crate::probes::Probes;
use crate::replacing::ReplacedNodes;
use crate::rotation::end_rotation;
use crate::routes::serving_nodes;
use crate::services::NodeServices;
use mlgw_common::NodeId;
use mlgw_common::limits::PROMOTION_LAG_BYTES_MAX;
use mlgw_common::time::timeout;
use mlgw_formats::cluster_version::CLUSTER_VERSION;
use mlgw_formats::schema::Node;
use mlgw_membership::{MemberStep, WaitReason, decide};
use mlgw_metadata::{BarrierScope, Catalogue, ChangeMembersError, GroupMembers};
use std::sync::Arc;
use std::time::Duration;

/// Longest time until the facts are collected again.
const INTERVAL: Duration = Duration::from_millis(500);

/// The driver of a node.
pub(crate) struct MembershipDriver {
    pub(crate) own: NodeId,
    pub(crate) catalogue: Catalogue,
    pub(crate) probes: Arc<Probes>,
    pub(crate) services: NodeServices,
    pub(crate) waits: GroupWaits,
}

impl MembershipDriver {
    /// Decides and acts until the future is dropped.
    pub(crate) async fn run(self) {
        let mut replaced = ReplacedNodes::default();
        let storage = ClusterStorageNodes {
            own: self.own,
            catalogue: self.catalogue.clone(),
            probes: Arc::clone(&self.probes),
        };
        loop {
            let changed = self.catalogue.node_changed();
            for group in self.catalogue.groups() {
                self.advance(group).await;
            }
            self.raise_cluster_version().await;
            end_rotation(&self.catalogue).await;
            replaced.advance(&storage).await;
            // Whether the time or a change ended the wait makes no difference.
            let _ = timeout(INTERVAL, changed).await;
        }
    }

    /// Raises the version of the cluster when every node has reported a build that knows it, if this node
    /// leads the system group.
    async fn raise_cluster_version(&self) {
        let nodes = self.catalogue.nodes();
        let mut staying = nodes.iter().filter(|node| !node.is_removed());
        let is_due = self.catalogue.cluster_version() < CLUSTER_VERSION
            && self.catalogue.members(SYSTEM_GROUP).is_ok()
            && staying.all(|node| node.cluster_version >= CLUSTER_VERSION);
        if !is_due {
            return;
        }
        match self.catalogue.raise_cluster_version(CLUSTER_VERSION).await {
            Ok(()) => tracing::info!(version = CLUSTER_VERSION, "raised the version of the cluster"),
            Err(error) => tracing::warn!(%error, "the version of the cluster was not raised"),
        }
    }

    /// Takes the next step of a group, if this node leads it.
    async fn advance(&self, group: u32) {
        let Some((members, step)) = self.decide(group) else {
            self.record_wait(group, None);
            return;
        };
        let wait = if let MemberStep::Wait(reason) = &step { Some(*reason) } else { None };
        self.record_wait(group, wait);
        let done = match step {
            MemberStep::Idle | MemberStep::Wait(_) => self.spread_leader(&members).await,
            MemberStep::RecordRemoval(_) if group != SYSTEM_GROUP => self.spread_leader(&members).await,
            _ => self.carry_out_if_current(group).await,
        };
        if let Err(error) = done {
            tracing::info!(group, %error, "a change of the members was not carried out; it is decided again");
        }
    }

    /// Decides by the facts that this node has now; `None` if it does not lead the group.
    fn decide(&self, group: u32) -> Option<(GroupMembers, MemberStep)> {
        let members = self.catalogue.members(group).ok()?;
        let input = decision_input(&members, &self.catalogue.nodes(), |node| self.probes.contact(node));
        Some((members, decide(&input)))
    }

    /// Carries out the step that follows from current rows. The membership is in the log of a new leader, and
    /// the rows of nodes may not have been applied yet.
    async fn carry_out_if_current(&self, group: u32) -> Result<(), ChangeMembersError> {
        if self.catalogue.barrier(BarrierScope::System).await.is_err() {
            return Ok(());
        }
        match self.decide(group) {
            Some((_, step)) => self.carry_out(group, step).await,
            None => Ok(()),
        }
    }

    async fn carry_out(&self, group: u32, step: MemberStep) -> Result<(), ChangeMembersError> {
        let catalogue = &self.catalogue;
        tracing::info!(group, ?step, "changing the members");
        match step {
            MemberStep::Idle | MemberStep::Wait(_) => Ok(()),
            MemberStep::AddLearner(node) => catalogue.add_learner(group, node).await,
            MemberStep::RemoveLearner(node) => catalogue.remove_member(group, node).await,
            MemberStep::ChangeVoters(change) => catalogue.change_voters(group, &change.voters).await,
            MemberStep::TransferLeader { to } => catalogue.transfer_leader(group, to).await,
            MemberStep::RecordRemoval(node) => self.record_removal(node).await,
        }
    }

    /// Records that a node is removed, once no group has it. Every group has a member on this node, which
    /// leads the system group, and after the barriers it knows the newest membership. A node that leaves is
    /// added to no group.
    async fn record_removal(&self, node: NodeId) -> Result<(), ChangeMembersError> {
        for scope in [BarrierScope::System, BarrierScope::AllGroups] {
            self.catalogue.barrier(scope).await.map_err(|_| ChangeMembersError::InProgress)?;
        }
        if !self.catalogue.has_all_groups() || self.catalogue.is_in_any_group(node) {
            return Err(ChangeMembersError::InProgress);
        }
        let recorded = self.catalogue.remove_node(node).await;
        recorded.map(drop).map_err(|error| ChangeMembersError::NodeFailed { node, why: error.to_string() })
    }

    /// Transfers the leadership to the node that the group is assigned to, so that leaderships are spread
    /// over the nodes, and none is with a node whose disk is full or slow.
    async fn spread_leader(&self, members: &GroupMembers) -> Result<(), ChangeMembersError> {
        let own = self.catalogue.node();
        let load = |node| if node == own { Some(self.services.load()) } else { self.probes.load(node) };
        let is_fit = |node| load(node).is_none_or(|load| load.can_lead());
        let assigned = assigned_leader(members.group, &self.catalogue.nodes(), is_fit);
        let Some(assigned) = assigned else { return Ok(()) };
        if members.leader == assigned || !self.can_lead(members, assigned) {
            return Ok(());
        }
        tracing::info!(group = members.group, node = %assigned, "transferring the leadership");
        self.catalogue.transfer_leader(members.group, assigned).await
    }

    fn can_lead(&self, members: &GroupMembers, node: NodeId) -> bool {
        let is_voter = members.voters.contains(&node) && members.outgoing.is_none();
        let status = members.members.iter().find(|member| member.node == node);
        let is_caught_up =
            status.is_some_and(|of| of.last_contact.is_some() && of.lag_bytes <= PROMOTION_LAG_BYTES_MAX);
        // A node that starts or stops answers, and does not serve.
        is_voter && is_caught_up && self.probes.serves(node)
    }

    fn record_wait(&self, group: u32, wait: Option<WaitReason>) {
        let mut waits = self.waits.lock();
        if waits.get(&group) == wait.as_ref() {
            return;
        }
        match wait {
            Some(reason) => {
                tracing::info!(group, %reason, "the members of a group wait");
                waits.insert(group, reason);
            }
            None => {
                waits.remove(&group);
            }
        }
    }
}

/// The node that leads a group if it can: the first serving node for the system group, whose duties it has,
/// and one node after the other for groups of objects. Nodes that see the same loads assign alike. A node
/// that is not fit leads nothing, unless none is.
fn assigned_leader(group: u32, nodes: &[Arc<Node>], is_fit: impl Fn(NodeId) -> bool) -> Option<NodeId> {
    let serving = serving_nodes(nodes);
    let fit: Vec<NodeId> = serving.iter().copied().filter(|node| is_fit(*node)).collect();
    let candidates = if fit.is_empty() { serving } else { fit };
    let turn = group.saturating_sub(1) as usize;
    candidates.get(turn % candidates.len().max(1)).copied()
}

#[cfg(test)]
mod tests {
    use super::assigned_leader;
    use mlgw_common::NodeId;
    use mlgw_formats::schema::{Node, NodeState};
    use std::sync::Arc;

    #[test]
    fn leaderships_are_spread_over_the_active_storage_nodes() {
        let node = |id, state: NodeState| Arc::new(Node { id, state: state as i32, ..Node::default() });
        let nodes = [
            node(2, NodeState::Active),
            node(1, NodeState::Active),
            node(3, NodeState::Draining),
            node(4, NodeState::Active),
        ];
        let assigned: Vec<_> = (0..5).filter_map(|group| assigned_leader(group, &nodes, |_| true)).collect();
        assert_eq!(assigned, [1, 1, 2, 4, 1].map(NodeId));
        assert_eq!(assigned_leader(1, &[], |_| true), None);
    }

    #[test]
    fn a_node_that_is_not_fit_leads_nothing_unless_none_is() {
        let node = |id| Arc::new(Node { id, state: NodeState::Active as i32, ..Node::default() });
        let nodes = [1, 2, 3].map(node);
        let assigned = |unfit: &[u64]| -> Vec<u64> {
            let leader = |group| assigned_leader(group, &nodes, |node| !unfit.contains(&node.get()));
            (0..4).filter_map(leader).map(NodeId::get).collect()
        };
        assert_eq!(assigned(&[1]), [2, 2, 3, 2]);
        assert_eq!(assigned(&[2, 3]), [1, 1, 1, 1]);
        assert_eq!(assigned(&[1, 2, 3]), assigned(&[]));
    }
}

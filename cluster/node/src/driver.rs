//! Carries out the decisions about the members of the groups that this node leads.
//!
//! For each group: collect the facts, decide one step, carry it out, and begin again. No step depends on an
//! earlier one, so a step that failed or whose outcome is unknown is decided anew from the facts. Nothing is
//! stored here: only additions that failed are remembered for a while, so that other steps go on meanwhile.

use crate::copies::ClusterStorageNodes;
use crate::facts::{GroupWaits, SYSTEM_GROUP, decision_input, lacking_version};
use crate::mover::move_sets;
use crate::own_groups::follow_sets;
use crate::probes::Probes;
use crate::removals::NodeRemovals;
use crate::replacing::ReplacedNodes;
use crate::rotation::end_rotation;
use crate::routes::serving_nodes;
use crate::services::NodeServices;
use crate::set_facts::NodeAnswers;
use crate::sets::set_rows;
use mlgw_common::NodeId;
use mlgw_common::limits::PROMOTION_LAG_BYTES_MAX;
use mlgw_common::time::{Instant, timeout};
use mlgw_formats::schema::{Duty, DutyPhase, NodeState};
use mlgw_membership::{Contact, MemberStep, SetRows, WaitReason, decide};
use mlgw_metadata::{BarrierScope, Catalogue, ChangeMembersError, GroupMembers};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// Longest time until the facts are collected again.
const INTERVAL: Duration = Duration::from_millis(500);

/// Time until a node that could not be added to a group is added again.
const ADDED_AGAIN: Duration = Duration::from_secs(15);

/// Time for which a node answers before the duty returns to it.
const SETTLED_MS: u64 = 10_000;

/// The driver of a node.
pub(crate) struct MembershipDriver {
    pub(crate) own: NodeId,
    pub(crate) catalogue: Catalogue,
    pub(crate) probes: Arc<Probes>,
    pub(crate) services: NodeServices,
    pub(crate) waits: GroupWaits,
    pub(crate) failed: FailedAdditions,
    pub(crate) removals: Arc<NodeRemovals>,
}

/// Nodes that could not be added to groups, and when.
#[derive(Debug, Default)]
pub(crate) struct FailedAdditions {
    at: Mutex<BTreeMap<(u32, NodeId), Instant>>,
}

impl FailedAdditions {
    fn record(&self, group: u32, node: NodeId) {
        self.at.lock().insert((group, node), Instant::now());
    }

    /// Nodes that could not be added to a group a short time ago.
    fn of(&self, group: u32) -> BTreeSet<NodeId> {
        let mut at = self.at.lock();
        at.retain(|_, failed| failed.elapsed() < ADDED_AGAIN);
        at.keys().filter(|(of, _)| *of == group).map(|(_, node)| *node).collect()
    }
}

impl MembershipDriver {
    /// Decides and acts until the future is dropped, changes the sets, and follows them: a group that this
    /// node leaves, or whose members change, must not delay the others, nor a group without a majority.
    pub(crate) async fn run(self) {
        let (catalogue, probes, services) =
            (self.catalogue.clone(), Arc::clone(&self.probes), self.services.clone());
        let answers = || NodeAnswers::of(&catalogue, &probes, &services);
        let following = follow_sets(catalogue.clone(), services.clone());
        let removals = Arc::clone(&self.removals);
        let recording = removals.record(&catalogue);
        tokio::join!(following, move_sets(catalogue.clone(), answers), recording, self.drive());
    }

    async fn drive(self) {
        let mut replaced = ReplacedNodes::default();
        let storage = ClusterStorageNodes {
            own: self.own,
            catalogue: self.catalogue.clone(),
            probes: Arc::clone(&self.probes),
            replicas: self.services.replicas(),
        };
        loop {
            let changed = self.catalogue.node_changed();
            let sets = set_rows(&self.catalogue);
            for group in self.catalogue.groups() {
                self.advance(group, &sets).await;
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
        let (nodes, version) = (self.catalogue.nodes(), self.catalogue.known_cluster_version());
        let is_due = self.catalogue.cluster_version() < version
            && self.catalogue.members(SYSTEM_GROUP).is_ok()
            && lacking_version(&nodes, version).next().is_none();
        if !is_due {
            return;
        }
        match self.catalogue.raise_cluster_version(version).await {
            Ok(()) => tracing::info!(version, "raised the version of the cluster"),
            Err(error) => tracing::warn!(%error, "the version of the cluster was not raised"),
        }
    }

    /// Takes the next step of a group, if this node leads it.
    async fn advance(&self, group: u32, sets: &SetRows) {
        let Some((members, step)) = self.decide(group, sets) else {
            self.record_wait(group, None);
            return;
        };
        let wait = if let MemberStep::Wait(reason) = &step { Some(*reason) } else { None };
        self.record_wait(group, wait);
        let done = match step {
            MemberStep::Idle | MemberStep::Wait(_) => self.spread_leader(&members, sets).await,
            // No step is carried out by old rows, so another member is to lead.
            _ if self.has_old_rows(group) => self.spread_leader(&members, sets).await,
            _ => self.carry_out_if_current(group).await,
        };
        if let Err(error) = done {
            tracing::info!(group, %error, "a change of the members was not carried out; it is decided again");
        }
    }

    /// True if this node decides about a group by old rows of the system group.
    fn has_old_rows(&self, group: u32) -> bool {
        group != SYSTEM_GROUP && !self.catalogue.has_recent_system_rows()
    }

    /// Decides by the facts that this node has now; `None` if it does not lead the group.
    fn decide(&self, group: u32, sets: &SetRows) -> Option<(GroupMembers, MemberStep)> {
        let members = self.catalogue.members(group).ok()?;
        let nodes = self.catalogue.nodes();
        let mut input = decision_input(&members, &nodes, sets, |node| self.probes.contact(node));
        input.failed = self.failed.of(group);
        // A group without a member on this node may have the node.
        let has_all = self.catalogue.has_all_groups();
        for (node, facts) in &mut input.nodes {
            if group == SYSTEM_GROUP && facts.state == NodeState::Leaving {
                facts.is_held |= !has_all || self.catalogue.is_in_any_group(*node);
                // Other steps go on meanwhile.
                facts.is_held |= self.removals.is_due(*node);
            }
        }
        let step = decide(&input);
        Some((members, step))
    }

    /// Carries out the step that follows from current rows. The membership is in the log of a new leader, and
    /// the rows of nodes may not have been applied yet.
    async fn carry_out_if_current(&self, group: u32) -> Result<(), ChangeMembersError> {
        if self.catalogue.barrier(BarrierScope::System).await.is_err() {
            return Ok(());
        }
        match self.decide(group, &set_rows(&self.catalogue)) {
            Some((_, step)) => self.carry_out(group, step).await,
            None => Ok(()),
        }
    }

    async fn carry_out(&self, group: u32, step: MemberStep) -> Result<(), ChangeMembersError> {
        let catalogue = &self.catalogue;
        tracing::info!(group, ?step, "changing the members");
        match step {
            MemberStep::Idle | MemberStep::Wait(_) => Ok(()),
            MemberStep::AddLearner(node) => {
                let added = catalogue.add_learner(group, node).await;
                if matches!(added, Err(ChangeMembersError::NodeFailed { .. })) {
                    self.failed.record(group, node);
                }
                added
            }
            MemberStep::RemoveLearner(node) => catalogue.remove_member(group, node).await,
            MemberStep::ChangeVoters(change) => catalogue.change_voters(group, &change.voters).await,
            MemberStep::TransferLeader { to } => catalogue.transfer_leader(group, to).await,
            MemberStep::RecordRemoval(node) => {
                self.removals.request(node);
                Ok(())
            }
        }
    }

    /// Transfers the leadership to the node that the group is assigned to, so that leaderships are spread
    /// over the nodes, and none is with a node whose disk is full or slow, or whose rows of the system group
    /// are old.
    async fn spread_leader(&self, members: &GroupMembers, sets: &SetRows) -> Result<(), ChangeMembersError> {
        let own = self.catalogue.node();
        let load = |node| if node == own { Some(self.services.load()) } else { self.probes.load(node) };
        let is_fit = |node| load(node).is_none_or(|load| load.can_lead());
        let can_have_duty = |node| load(node).is_none_or(|load| load.can_have_duty());
        let can_lead = |node: NodeId| match node == members.leader {
            true => !self.services.is_stopping(),
            false => self.can_lead(members, node),
        };
        let mut serving = serving_nodes(&self.catalogue.nodes());
        serving.retain(|node| sets.may_lead(members.group, *node));
        let fit = match members.group {
            SYSTEM_GROUP => fit_nodes(&fit_nodes(&serving, can_have_duty), is_fit),
            _ => fit_nodes(&serving, is_fit),
        };
        let assigned = match members.group {
            SYSTEM_GROUP => {
                let is_settled = |node| node == members.leader || is_settled(self.probes.contact(node));
                let first = serving.first().filter(|node| fit.contains(node) && is_settled(**node));
                system_leader(first.copied(), &fit, &self.catalogue.duty(), members.leader, can_lead)
            }
            group => object_leader(group, &fit, members.leader, can_lead),
        };
        let Some(assigned) = assigned.filter(|node| *node != members.leader) else { return Ok(()) };
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

/// The nodes that are fit, such as those whose disks are neither full nor slow; all of them if there is none.
/// Nodes that see the same loads choose alike.
fn fit_nodes(serving: &[NodeId], is_fit: impl Fn(NodeId) -> bool) -> Vec<NodeId> {
    let fit: Vec<NodeId> = serving.iter().copied().filter(|node| is_fit(*node)).collect();
    if fit.is_empty() { serving.to_vec() } else { fit }
}

/// The node that leads the system group, and so has the duty. `None` if none of the fit nodes can.
///
/// The duty returns to the node with the lowest id, which has the clean copies of most reads, when that is
/// settled, and only from a node that can hand it over completely. Otherwise the duty node leads, which needs
/// no hand-over; else the present leader stays, also if the duty node has stopped. `first` is the active node
/// with the lowest id, with sets of the home nodes, if it is fit and settled.
fn system_leader(
    first: Option<NodeId>,
    fit: &[NodeId],
    duty: &Duty,
    leader: NodeId,
    can_lead: impl Fn(NodeId) -> bool,
) -> Option<NodeId> {
    let preferred = first.filter(|_| match duty.phase() {
        DutyPhase::Waiting | DutyPhase::Left => false,
        DutyPhase::Active | DutyPhase::Ended => true,
    });
    let holder = Some(duty.node_id()).filter(|_| !duty.is_over());
    let present = holder.into_iter().chain([leader]).filter(|node| fit.contains(node));
    let candidates = preferred.into_iter().chain(present).chain(fit.iter().copied());
    candidates.into_iter().find(|node| can_lead(*node))
}

/// True if a node has answered for so long that it probably stays.
const fn is_settled(contact: Contact) -> bool {
    match contact {
        Contact::Reachable { for_ms } => for_ms >= SETTLED_MS,
        Contact::Unreachable { .. } => false,
    }
}

/// The node that is to lead a group of objects; `None` if it cannot yet.
///
/// It is the assigned one. An unfit leader does not wait for that node, which it may not reach: it hands over
/// to another fit one that can lead.
fn object_leader(
    group: u32,
    fit: &[NodeId],
    leader: NodeId,
    can_lead: impl Fn(NodeId) -> bool,
) -> Option<NodeId> {
    let assigned = assigned_leader(group, fit).filter(|node| can_lead(*node));
    if assigned.is_some() || fit.contains(&leader) {
        return assigned;
    }
    let able: Vec<NodeId> = fit.iter().copied().filter(|node| can_lead(*node)).collect();
    assigned_leader(group, &able)
}

/// The node that leads a group of objects if it can: one fit node after the other.
fn assigned_leader(group: u32, candidates: &[NodeId]) -> Option<NodeId> {
    let turn = group.saturating_sub(1) as usize;
    candidates.get(turn % candidates.len().max(1)).copied()
}

#[cfg(test)]
mod tests {
    use super::{
        ADDED_AGAIN, FailedAdditions, assigned_leader, fit_nodes, object_leader, serving_nodes, system_leader,
    };
    use mlgw_common::NodeId;
    use mlgw_common::time::sleep;
    use mlgw_formats::schema::{Duty, DutyPhase, Node, NodeState};
    use std::sync::Arc;

    #[tokio::test(start_paused = true)]
    async fn a_node_that_could_not_be_added_to_a_group_is_not_added_for_a_while() {
        let failed = FailedAdditions::default();
        failed.record(2, NodeId(4));
        assert_eq!((failed.of(1), failed.of(2)), ([].into(), [NodeId(4)].into()));
        sleep(ADDED_AGAIN).await;
        assert_eq!(failed.of(2), [].into());
    }

    #[test]
    fn leaderships_are_spread_over_the_active_storage_nodes() {
        let node = |id, state: NodeState| Arc::new(Node { id, state: state as i32, ..Node::default() });
        let nodes = [
            node(2, NodeState::Active),
            node(1, NodeState::Active),
            node(3, NodeState::Draining),
            node(4, NodeState::Active),
        ];
        let serving = serving_nodes(&nodes);
        let assigned: Vec<_> = (1..5).filter_map(|group| assigned_leader(group, &serving)).collect();
        assert_eq!(assigned, [1, 2, 4, 1].map(NodeId));
        assert_eq!(assigned_leader(1, &[]), None);
    }

    #[test]
    fn a_node_that_is_not_fit_leads_nothing_unless_none_is() {
        let fit = |unfit: &[u64]| fit_nodes(&[1, 2, 3].map(NodeId), |node| !unfit.contains(&node.get()));
        let assigned = |unfit: &[u64]| -> Vec<u64> {
            let fit = fit(unfit);
            (1..4).filter_map(|group| assigned_leader(group, &fit)).map(NodeId::get).collect()
        };
        assert_eq!(assigned(&[1]), [2, 3, 2]);
        assert_eq!(assigned(&[2, 3]), [1, 1, 1]);
        assert_eq!(assigned(&[1, 2, 3]), assigned(&[]));
        let system = |unfit: &[u64], leader| {
            system_leader(None, &fit(unfit), &duty(1, DutyPhase::Active), NodeId(leader), |_| true)
        };
        assert_eq!(system(&[1], 1), Some(NodeId(2)), "the duty moves away from a node with a slow disk");
        assert_eq!(system(&[1], 3), Some(NodeId(3)));
        assert_eq!(system(&[1, 2, 3], 1), Some(NodeId(1)));
    }

    #[test]
    fn an_unfit_leader_hands_a_group_over_to_a_node_that_it_reaches() {
        let led_by = |group: u32, fit: &[u64], leader: u64, able: &[u64]| {
            let fit: Vec<NodeId> = fit.iter().copied().map(NodeId).collect();
            object_leader(group, &fit, NodeId(leader), |node| able.contains(&node.get())).map(NodeId::get)
        };
        assert_eq!(led_by(2, &[1, 2, 3], 1, &[1, 2, 3]), Some(2), "it is assigned to node 2");
        assert_eq!(led_by(2, &[1, 2, 3], 1, &[1, 3]), None, "a fit leader waits for the assigned node");
        // Node 4 is unfit, and does not reach node 2.
        assert_eq!(
            (1..4).map(|group| led_by(group, &[1, 2, 3], 4, &[1, 3])).collect::<Vec<_>>(),
            [Some(1), Some(3), Some(3)]
        );
        assert_eq!(led_by(2, &[1, 2, 3], 4, &[1, 2, 3]), Some(2), "it is handed over once");
        assert_eq!(led_by(2, &[1, 2, 3], 4, &[]), None);
    }

    /// The leader of the system group, of nodes 1, 2 and 4 that serve.
    fn led_by(duty: Duty, leader: u64, able: &[u64], settled: &[u64]) -> Option<u64> {
        let is_in = |nodes: &[u64], node: NodeId| nodes.contains(&node.get());
        let (fit, first) = ([1, 2, 4].map(NodeId), Some(NodeId(1)).filter(|node| is_in(settled, *node)));
        system_leader(first, &fit, &duty, NodeId(leader), |node| is_in(able, node)).map(NodeId::get)
    }

    fn duty(node: u64, phase: DutyPhase) -> Duty {
        Duty { node, term: 5, phase: phase as i32 }
    }

    #[test]
    fn the_system_group_is_led_by_the_duty_node_or_stays_where_it_is() {
        let acting = |node| duty(node, DutyPhase::Active);
        assert_eq!(led_by(acting(1), 2, &[1, 2, 4], &[2]), Some(1), "it has the duty already");
        assert_eq!(led_by(acting(1), 2, &[2, 4], &[2]), Some(2), "node 1 is lost");
        // Node 3 stores nothing or leaves; node 2 stops.
        assert_eq!(led_by(acting(1), 3, &[2, 3, 4], &[3]), Some(2));
        assert_eq!(led_by(acting(2), 2, &[1, 4], &[2]), Some(1));
        assert_eq!(led_by(acting(2), 2, &[], &[2]), None);
    }

    #[test]
    fn the_duty_needs_a_node_that_can_do_its_work_more_than_a_fast_disk() {
        let all = [1, 2, 4].map(NodeId);
        let able = fit_nodes(&all, |node| node != NodeId(1));
        assert_eq!(fit_nodes(&able, |node| node == NodeId(1)), [2, 4].map(NodeId), "both have slow disks");
        assert_eq!(fit_nodes(&able, |node| node != NodeId(2)), [NodeId(4)]);
    }

    #[test]
    fn the_leader_stays_when_the_duty_node_has_stopped() {
        for phase in [DutyPhase::Left, DutyPhase::Ended] {
            assert_eq!(led_by(duty(2, phase), 4, &[1, 2, 4], &[2]), Some(4), "{phase:?}");
        }
    }

    #[test]
    fn the_duty_returns_to_the_first_node_when_that_is_settled_and_the_hand_over_is_complete() {
        let all = [1, 2, 4];
        assert_eq!(led_by(duty(2, DutyPhase::Active), 2, &all, &[2]), Some(2), "it has just started");
        assert_eq!(led_by(duty(2, DutyPhase::Active), 2, &all, &all), Some(1));
        assert_eq!(led_by(duty(2, DutyPhase::Waiting), 2, &all, &all), Some(2));
        assert_eq!(led_by(duty(2, DutyPhase::Ended), 1, &all, &all), Some(1));
        assert_eq!(led_by(duty(2, DutyPhase::Left), 2, &all, &all), Some(2), "it has to wait anyway");
        assert_eq!(led_by(duty(2, DutyPhase::Active), 2, &[2, 4], &all), Some(2), "it cannot lead");
    }
}

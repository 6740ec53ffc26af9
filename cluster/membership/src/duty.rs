//! Decisions about the duty node: the storage node that does what runs once per cluster.
//!
//! Each storage node decides for itself, by the row of the duty node and by what it knows of the others. The
//! node that leads the system group takes the duty over, each time with a higher term. The caller carries a
//! step out, collects the facts anew and decides again.
//!
//! Invariants:
//! - A node begins only in a term whose row it wrote, and stops when it finds another term in the row.
//! - A node that answers is asked for the duty by the change of the leader, and has time to stop by itself.
//! - A node acts on an origin at once only if the one before it has stopped. Otherwise it waits until the
//!   lease of that node has ended and its requests to origins cannot have an effect any more.

use crate::facts::Contact;
use mlgw_common::NodeId;
use mlgw_common::limits::{DUTY_LEASE_MARGIN_MS, DUTY_LEASE_MS, ORIGIN_CHANGE_MS_MAX};
use mlgw_formats::schema::{Duty, DutyPhase};

/// Time for which a node leads before it takes the duty over from one that does not answer.
const SETTLED_MS: u64 = 500;

/// Time for which another node leads before the duty node hands over to it: an election may be followed by a
/// transfer back.
const YIELD_MS: u64 = 1_500;

/// Time without an answer after which the duty node counts as lost.
const LOST_MS: u64 = 1_000;

/// Longest time in which a duty node that answers stops by itself. It covers the requests in progress.
const HAND_OVER_MS: u64 = 10_000;

/// Time after a take-over from a node that has not stopped, until its lease has ended. It serves no
/// remote-backed bucket from then on.
pub const LEASE_WAIT_MS: u64 = DUTY_LEASE_MS + DUTY_LEASE_MARGIN_MS;

/// Time after a take-over from a node that has not stopped, until nothing that it sent to an origin can have
/// an effect any more.
pub const ORIGIN_WAIT_MS: u64 = LEASE_WAIT_MS + ORIGIN_CHANGE_MS_MAX;

/// What a storage node knows about the duty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DutyFacts {
    /// The node that decides.
    pub own: NodeId,
    /// True if it is an active storage node that does not stop.
    pub is_able: bool,
    /// True if every node knows terms of duty. Before that the duty node does not change.
    pub knows_terms: bool,
    /// The leader of the system group, if it is known.
    pub leader: Option<NodeLeader>,
    /// The row.
    pub duty: Duty,
    /// Contact with the node in the row, if it is another one.
    pub holder: Contact,
    /// The term in which the duty runs on this node.
    pub held: Option<HeldDuty>,
}

/// The leader of the system group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeLeader {
    /// The node.
    pub node: NodeId,
    /// True if it can take the duty over: it is an active storage node.
    pub is_able: bool,
    /// Time for which it leads, in milliseconds, as far as this node knows.
    pub for_ms: u64,
}

/// A term in which the duty runs on this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldDuty {
    /// The term.
    pub term: u64,
    /// Time since the row of the term was written, in milliseconds.
    pub for_ms: u64,
}

/// The next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DutyStep {
    /// Change nothing.
    Wait,
    /// Begin the duty without a change of the row, which names this node for ever until terms are known.
    Begin,
    /// Write this row, and begin the duty.
    TakeOver(Duty),
    /// Write this row: acts on origins begin.
    Act(Duty),
    /// Stop, and record that everything ended if that is certain.
    HandOver,
    /// Stop. Another node has the duty.
    Stop,
}

/// Returns the next step of a storage node.
#[must_use]
pub fn decide_duty(facts: &DutyFacts) -> DutyStep {
    match facts.held {
        Some(held) => step_of_holder(facts, held),
        None if !facts.is_able => DutyStep::Wait,
        None if !facts.knows_terms => match facts.duty.node_id() == facts.own {
            true => DutyStep::Begin,
            false => DutyStep::Wait,
        },
        None => step_of_candidate(facts),
    }
}

fn step_of_holder(facts: &DutyFacts, held: HeldDuty) -> DutyStep {
    let DutyFacts { own, duty, .. } = facts;
    if duty.node_id() != *own || duty.term != held.term || duty.phase() == DutyPhase::Ended {
        return DutyStep::Stop;
    }
    let is_wanted_elsewhere = facts.leader.is_some_and(|leader| {
        let is_settled = leader.for_ms >= YIELD_MS || !facts.is_able;
        leader.node != *own && leader.is_able && is_settled
    });
    if facts.knows_terms && is_wanted_elsewhere {
        return DutyStep::HandOver;
    }
    match duty.phase() {
        DutyPhase::Waiting if held.for_ms >= ORIGIN_WAIT_MS => {
            DutyStep::Act(Duty { phase: DutyPhase::Writing as i32, ..*duty })
        }
        DutyPhase::Waiting | DutyPhase::Writing | DutyPhase::Ended => DutyStep::Wait,
    }
}

fn step_of_candidate(facts: &DutyFacts) -> DutyStep {
    let DutyFacts { own, duty, .. } = facts;
    let Some(leader) = facts.leader.filter(|leader| leader.node == *own) else { return DutyStep::Wait };
    let take_over = |phase: DutyPhase| {
        DutyStep::TakeOver(Duty { node: own.get(), term: duty.term + 1, phase: phase as i32 })
    };
    let is_own = duty.node_id() == *own;
    match duty.phase() {
        DutyPhase::Ended => take_over(DutyPhase::Writing),
        // An earlier process of this node.
        DutyPhase::Writing if is_own => take_over(DutyPhase::Writing),
        DutyPhase::Waiting if is_own => take_over(DutyPhase::Waiting),
        DutyPhase::Waiting | DutyPhase::Writing => match is_given_up(facts, leader.for_ms) {
            true => take_over(DutyPhase::Waiting),
            false => DutyStep::Wait,
        },
    }
}

/// True if the node in the row is lost, or has had enough time to stop.
const fn is_given_up(facts: &DutyFacts, leads_for_ms: u64) -> bool {
    let is_lost = match facts.holder {
        Contact::Unreachable { for_ms } => for_ms >= LOST_MS && leads_for_ms >= SETTLED_MS,
        Contact::Reachable { .. } => false,
    };
    is_lost || leads_for_ms >= HAND_OVER_MS
}

#[cfg(test)]
mod tests {
    use super::{
        Contact, DutyFacts, DutyStep, HAND_OVER_MS, HeldDuty, LOST_MS, NodeLeader, ORIGIN_WAIT_MS,
        SETTLED_MS, YIELD_MS, decide_duty,
    };
    use mlgw_common::NodeId;
    use mlgw_formats::schema::Duty;
    use mlgw_formats::schema::DutyPhase::{self, Ended, Waiting, Writing};

    fn duty(node: u64, term: u64, phase: DutyPhase) -> Duty {
        Duty { node, term, phase: phase as i32 }
    }

    fn leader_for(node: u64, for_ms: u64) -> Option<NodeLeader> {
        Some(NodeLeader { node: NodeId(node), is_able: true, for_ms })
    }

    fn leader(node: u64) -> Option<NodeLeader> {
        leader_for(node, YIELD_MS)
    }

    /// Node 2 leads, and node 1 has the duty and answers.
    fn facts() -> DutyFacts {
        DutyFacts {
            own: NodeId(2),
            is_able: true,
            knows_terms: true,
            leader: leader(2),
            duty: duty(1, 5, Writing),
            holder: Contact::Reachable { for_ms: 9_000 },
            held: None,
        }
    }

    #[test]
    fn the_leader_takes_over_from_a_node_that_is_lost_and_does_not_act_yet() {
        let lost = |for_ms| DutyFacts { holder: Contact::Unreachable { for_ms }, ..facts() };
        assert_eq!(decide_duty(&lost(LOST_MS)), DutyStep::TakeOver(duty(2, 6, Waiting)));
        assert_eq!(decide_duty(&lost(LOST_MS - 1)), DutyStep::Wait, "not called yet, or for a moment only");
        let new_leader = DutyFacts { leader: leader_for(2, SETTLED_MS - 1), ..lost(LOST_MS) };
        assert_eq!(decide_duty(&new_leader), DutyStep::Wait);
        for other in [None, leader(3)] {
            assert_eq!(decide_duty(&DutyFacts { leader: other, ..lost(LOST_MS) }), DutyStep::Wait);
        }
        assert_eq!(decide_duty(&DutyFacts { is_able: false, ..lost(LOST_MS) }), DutyStep::Wait);
    }

    #[test]
    fn a_node_that_answers_has_time_to_stop_and_then_the_leader_acts_at_once() {
        assert_eq!(decide_duty(&facts()), DutyStep::Wait);
        let ended = DutyFacts { duty: duty(1, 5, Ended), ..facts() };
        assert_eq!(decide_duty(&ended), DutyStep::TakeOver(duty(2, 6, Writing)));
        let hangs = DutyFacts { leader: leader_for(2, HAND_OVER_MS), ..facts() };
        assert_eq!(decide_duty(&hangs), DutyStep::TakeOver(duty(2, 6, Waiting)));
    }

    #[test]
    fn a_restarted_duty_node_goes_on_where_it_was() {
        for phase in [Waiting, Writing] {
            let own = DutyFacts { duty: duty(2, 5, phase), ..facts() };
            assert_eq!(decide_duty(&own), DutyStep::TakeOver(duty(2, 6, phase)));
            assert_eq!(decide_duty(&DutyFacts { leader: leader(1), ..own }), DutyStep::Wait);
        }
    }

    #[test]
    fn a_holder_stops_when_another_term_has_begun() {
        let held = Some(HeldDuty { term: 5, for_ms: 0 });
        let holder = DutyFacts { duty: duty(2, 5, Writing), held, ..facts() };
        assert_eq!(decide_duty(&holder), DutyStep::Wait);
        for other in [duty(1, 6, Waiting), duty(2, 6, Writing), duty(2, 5, Ended)] {
            assert_eq!(decide_duty(&DutyFacts { duty: other, ..holder }), DutyStep::Stop, "{other:?}");
        }
    }

    #[test]
    fn a_holder_hands_over_to_a_leader_that_can_take_over() {
        let held = Some(HeldDuty { term: 5, for_ms: 0 });
        let holder = DutyFacts { duty: duty(2, 5, Writing), held, leader: leader(3), ..facts() };
        assert_eq!(decide_duty(&holder), DutyStep::HandOver);
        let gateway = Some(NodeLeader { node: NodeId(3), is_able: false, for_ms: YIELD_MS });
        // The leadership may return.
        let new = leader_for(3, YIELD_MS - 1);
        for kept in [None, gateway, new, leader(2)] {
            assert_eq!(decide_duty(&DutyFacts { leader: kept, ..holder }), DutyStep::Wait, "{kept:?}");
        }
        // A node that stops keeps the duty until there is another leader.
        let stops = DutyFacts { is_able: false, ..holder };
        assert_eq!(decide_duty(&DutyFacts { leader: None, ..stops }), DutyStep::Wait);
        assert_eq!(decide_duty(&DutyFacts { leader: new, ..stops }), DutyStep::HandOver);
    }

    #[test]
    fn acts_begin_after_the_lease_and_the_last_request_of_the_node_before() {
        let held = |for_ms| DutyFacts {
            duty: duty(2, 6, Waiting),
            held: Some(HeldDuty { term: 6, for_ms }),
            ..facts()
        };
        assert_eq!(decide_duty(&held(ORIGIN_WAIT_MS - 1)), DutyStep::Wait);
        assert_eq!(decide_duty(&held(ORIGIN_WAIT_MS)), DutyStep::Act(duty(2, 6, Writing)));
    }

    #[test]
    fn until_terms_are_known_the_duty_stays_where_the_cluster_began() {
        let old = DutyFacts { knows_terms: false, duty: Duty::FIRST, ..facts() };
        assert_eq!(decide_duty(&old), DutyStep::Wait);
        let first = DutyFacts { own: NodeId(1), ..old };
        assert_eq!(decide_duty(&first), DutyStep::Begin);
        let held = DutyFacts { held: Some(HeldDuty { term: 0, for_ms: 0 }), ..first };
        assert_eq!(decide_duty(&held), DutyStep::Wait, "whoever leads");
        assert_eq!(decide_duty(&DutyFacts { knows_terms: true, ..held }), DutyStep::HandOver);
    }

    /// What a node that was cut off or stopped still does when the next one begins.
    #[test]
    fn two_nodes_never_hold_the_duty_with_the_same_term() {
        let held = Some(HeldDuty { term: 5, for_ms: 0 });
        let former = DutyFacts { own: NodeId(1), held, leader: leader(1), ..facts() };
        let lost = DutyFacts { holder: Contact::Unreachable { for_ms: LOST_MS }, ..facts() };
        let DutyStep::TakeOver(next) = decide_duty(&lost) else { panic!("node 2 takes over") };
        assert!(facts().duty.may_be_followed_by(&next) && next.term > 5);
        assert_eq!(decide_duty(&DutyFacts { duty: next, ..former }), DutyStep::Stop);
    }
}

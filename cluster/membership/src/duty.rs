//! Decisions about the duty node: the storage node that does what runs once per cluster.
//!
//! Each storage node decides for itself, by the row of the duty node and by its facts about the others. The
//! node that leads the system group takes the duty over, each time with a higher term. The caller carries a
//! step out, collects the facts anew and decides again.
//!
//! Invariants:
//! - A node begins only in a term whose row it wrote, and stops when it finds another term in the row.
//! - A node that answers is asked for the duty by the change of the leader, and has time to stop by itself.
//! - A node acts on an origin at once only if the term before has ended. Otherwise it waits until nothing
//!   that was sent in earlier terms can have an effect any more. If the node of such a term has not stopped,
//!   the wait begins with the end of its lease.
//! - A node waits too after a term of its own, except for the time that has passed in the process that took
//!   this term over.
//! - A term without a number, from before terms were known, ends as soon as they are.

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

/// Time after the last request of a node that has stopped, until nothing that it sent to an origin can have
/// an effect any more.
pub const LEFT_WAIT_MS: u64 = ORIGIN_CHANGE_MS_MAX + DUTY_LEASE_MARGIN_MS;

/// Waits of a term, in milliseconds from when its row was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DutyWaits {
    /// Time until no other node has a lease.
    pub serve_ms: u64,
    /// Time until nothing that was sent in earlier terms can have an effect at an origin. Not less than
    /// `serve_ms`.
    pub act_ms: u64,
}

impl DutyWaits {
    /// After a term that has ended.
    pub const NONE: Self = Self { serve_ms: 0, act_ms: 0 };

    /// After a term whose node has stopped.
    pub const LEFT: Self = Self { serve_ms: 0, act_ms: LEFT_WAIT_MS };

    /// After a term whose node may still run.
    pub const LOST: Self = Self { serve_ms: LEASE_WAIT_MS, act_ms: ORIGIN_WAIT_MS };
}

/// Facts from which a storage node decides about the duty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DutyFacts {
    /// The node that decides.
    pub own: NodeId,
    /// True if it is an active storage node that does not stop, and no other node is more fit for the duty.
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
    /// What is left of the waits of the term in the row, if this process took it over.
    pub own_waits: Option<DutyWaits>,
    /// False if no bucket is remote-backed: then an earlier process of this node changed no origin that is
    /// still in use.
    pub has_origins: bool,
}

impl DutyFacts {
    /// The waits after an earlier process of this node, which sent nothing after its end.
    #[must_use]
    pub const fn restart_waits(&self) -> DutyWaits {
        if self.has_origins { DutyWaits::LEFT } else { DutyWaits::NONE }
    }
}

/// The leader of the system group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeLeader {
    /// The node.
    pub node: NodeId,
    /// True if it can take the duty over: it is an active storage node with the rows of all groups, and no
    /// other node is more fit.
    pub is_able: bool,
    /// Time for which it leads and could take the duty over, in milliseconds, as observed by this node.
    pub for_ms: u64,
}

/// A term in which the duty runs on this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldDuty {
    /// The term.
    pub term: u64,
    /// False for a term that began before terms were known: its commands have none.
    pub has_number: bool,
    /// True if acts on origins were allowed.
    pub acts: bool,
    /// What is left of the time until acts on origins may begin, in milliseconds.
    pub act_ms: u64,
}

/// The next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DutyStep {
    /// Change nothing.
    Wait,
    /// Begin the duty without a change of the row, which names this node for ever until terms are known.
    Begin,
    /// Write this row, and begin the duty after these waits.
    TakeOver(Duty, DutyWaits),
    /// Write this row: acts on origins may begin.
    Act(Duty),
    /// Allow acts on origins: the row permits them.
    AllowActs,
    /// Stop, and record if the outcome of everything is known.
    HandOver,
    /// Stop. Another node has the duty.
    Stop,
}

/// Returns the phase in which the term in `duty` is over. `is_complete` is true if the outcome of everything
/// that was sent in it is known, and `act_ms` is what is left of its wait for earlier terms.
#[must_use]
pub fn phase_at_end(duty: &Duty, is_complete: bool, act_ms: u64) -> DutyPhase {
    match duty.phase() {
        DutyPhase::Active if is_complete && act_ms == 0 => DutyPhase::Ended,
        DutyPhase::Waiting | DutyPhase::Active | DutyPhase::Left => DutyPhase::Left,
        DutyPhase::Ended => DutyPhase::Ended,
    }
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
    if duty.node_id() != *own || duty.term != held.term || duty.is_over() {
        return DutyStep::Stop;
    }
    let is_wanted_elsewhere = facts.leader.is_some_and(|leader| {
        let is_settled = leader.for_ms >= YIELD_MS || !facts.is_able;
        leader.node != *own && leader.is_able && is_settled
    });
    if facts.knows_terms && (is_wanted_elsewhere || !held.has_number) {
        return DutyStep::HandOver;
    }
    match duty.phase() {
        DutyPhase::Waiting if held.act_ms == 0 => {
            DutyStep::Act(Duty { phase: DutyPhase::Active as i32, ..*duty })
        }
        // The answer to an `Act` may have been lost.
        DutyPhase::Active if !held.acts => DutyStep::AllowActs,
        DutyPhase::Waiting | DutyPhase::Active | DutyPhase::Left | DutyPhase::Ended => DutyStep::Wait,
    }
}

fn step_of_candidate(facts: &DutyFacts) -> DutyStep {
    let DutyFacts { own, duty, own_waits, .. } = facts;
    let Some(leader) = facts.leader.filter(|leader| leader.node == *own) else { return DutyStep::Wait };
    let take_over = |phase: DutyPhase, waits: DutyWaits| {
        DutyStep::TakeOver(Duty { node: own.get(), term: duty.term + 1, phase: phase as i32 }, waits)
    };
    let is_own = duty.node_id() == *own;
    match duty.phase() {
        DutyPhase::Ended => take_over(DutyPhase::Active, DutyWaits::NONE),
        DutyPhase::Left => take_over(DutyPhase::Waiting, own_waits.unwrap_or(DutyWaits::LEFT)),
        DutyPhase::Active if is_own => {
            take_over(DutyPhase::Waiting, own_waits.unwrap_or(facts.restart_waits()))
        }
        // The term may have begun before the lease of another node had ended.
        DutyPhase::Waiting if is_own => take_over(DutyPhase::Waiting, own_waits.unwrap_or(DutyWaits::LOST)),
        DutyPhase::Waiting | DutyPhase::Active => match is_given_up(facts, leader.for_ms) {
            true => take_over(DutyPhase::Waiting, DutyWaits::LOST),
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
mod simulation;
#[cfg(test)]
mod tests;

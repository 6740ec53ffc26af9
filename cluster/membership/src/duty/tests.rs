//! Tests of single decisions.

use super::{
    Contact, DutyFacts, DutyStep, DutyWaits, HAND_OVER_MS, HeldDuty, LOST_MS, NodeLeader, SETTLED_MS,
    YIELD_MS, decide_duty, phase_at_end,
};
use mlgw_common::NodeId;
use mlgw_formats::schema::Duty;
use mlgw_formats::schema::DutyPhase::{self, Active, Ended, Left, Waiting};

fn duty(node: u64, term: u64, phase: DutyPhase) -> Duty {
    Duty { node, term, phase: phase as i32 }
}

fn leader_for(node: u64, for_ms: u64) -> Option<NodeLeader> {
    Some(NodeLeader { node: NodeId(node), is_able: true, for_ms })
}

fn leader(node: u64) -> Option<NodeLeader> {
    leader_for(node, YIELD_MS)
}

fn held(term: u64) -> HeldDuty {
    HeldDuty { term, has_number: true, acts: true, act_ms: 0 }
}

/// Node 2 leads, and node 1 has the duty and answers.
fn facts() -> DutyFacts {
    DutyFacts {
        own: NodeId(2),
        is_able: true,
        knows_terms: true,
        leader: leader(2),
        duty: duty(1, 5, Active),
        holder: Contact::Reachable { for_ms: 9_000 },
        held: None,
        own_waits: None,
        has_origins: true,
    }
}

/// The take-over of node 2 after term 5.
fn take_over(phase: DutyPhase, waits: DutyWaits) -> DutyStep {
    DutyStep::TakeOver(duty(2, 6, phase), waits)
}

#[test]
fn the_leader_takes_over_from_a_node_that_is_lost_and_does_not_act_yet() {
    let lost = |for_ms| DutyFacts { holder: Contact::Unreachable { for_ms }, ..facts() };
    assert_eq!(decide_duty(&lost(LOST_MS)), take_over(Waiting, DutyWaits::LOST));
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
    assert_eq!(decide_duty(&ended), take_over(Active, DutyWaits::NONE));
    let hangs = DutyFacts { leader: leader_for(2, HAND_OVER_MS), ..facts() };
    assert_eq!(decide_duty(&hangs), take_over(Waiting, DutyWaits::LOST));
}

#[test]
fn after_a_node_that_stopped_in_doubt_the_leader_serves_at_once_and_acts_later() {
    let left = DutyFacts { duty: duty(1, 5, Left), leader: leader_for(2, 0), ..facts() };
    assert_eq!(decide_duty(&left), take_over(Waiting, DutyWaits::LEFT));
    assert_eq!(DutyWaits::LEFT.serve_ms, 0);
}

#[test]
fn a_restarted_duty_node_does_not_know_what_the_process_before_it_sent() {
    for (phase, waits) in [(Waiting, DutyWaits::LOST), (Active, DutyWaits::LEFT), (Left, DutyWaits::LEFT)] {
        let own = DutyFacts { duty: duty(2, 5, phase), ..facts() };
        assert_eq!(decide_duty(&own), take_over(Waiting, waits));
        assert_eq!(decide_duty(&DutyFacts { leader: leader(1), ..own }), DutyStep::Wait);
    }
}

#[test]
fn a_restarted_duty_node_of_a_cluster_without_origins_has_nothing_to_wait_for() {
    let own = DutyFacts { duty: duty(2, 5, Active), has_origins: false, ..facts() };
    assert_eq!(decide_duty(&own), take_over(Waiting, DutyWaits::NONE));
    let waiting = DutyFacts { duty: duty(2, 5, Waiting), ..own };
    assert_eq!(decide_duty(&waiting), take_over(Waiting, DutyWaits::LOST), "another node may have a lease");
}

#[test]
fn a_process_waits_only_for_the_rest_of_its_own_term() {
    let rest = DutyWaits { serve_ms: 0, act_ms: 7_000 };
    for phase in [Waiting, Active, Left] {
        let again = DutyFacts { duty: duty(2, 5, phase), own_waits: Some(rest), ..facts() };
        assert_eq!(decide_duty(&again), take_over(Waiting, rest));
    }
}

#[test]
fn a_holder_stops_when_another_term_has_begun() {
    let holder = DutyFacts { duty: duty(2, 5, Active), held: Some(held(5)), ..facts() };
    assert_eq!(decide_duty(&holder), DutyStep::Wait);
    for other in [duty(1, 6, Waiting), duty(2, 6, Active), duty(2, 5, Left), duty(2, 5, Ended)] {
        assert_eq!(decide_duty(&DutyFacts { duty: other, ..holder }), DutyStep::Stop, "{other:?}");
    }
}

#[test]
fn a_holder_hands_over_to_a_leader_that_can_take_over() {
    let holder = DutyFacts { duty: duty(2, 5, Active), held: Some(held(5)), leader: leader(3), ..facts() };
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
fn acts_begin_after_the_waits() {
    let waiting = |act_ms| DutyFacts {
        duty: duty(2, 6, Waiting),
        held: Some(HeldDuty { acts: false, act_ms, ..held(6) }),
        ..facts()
    };
    assert_eq!(decide_duty(&waiting(1)), DutyStep::Wait);
    assert_eq!(decide_duty(&waiting(0)), DutyStep::Act(duty(2, 6, Active)));
}

#[test]
fn acts_are_allowed_by_the_row_also_if_the_answer_to_its_change_was_lost() {
    let acting =
        DutyFacts { duty: duty(2, 6, Active), held: Some(HeldDuty { acts: false, ..held(6) }), ..facts() };
    assert_eq!(decide_duty(&acting), DutyStep::AllowActs);
    assert_eq!(decide_duty(&DutyFacts { held: Some(held(6)), ..acting }), DutyStep::Wait);
}

#[test]
fn until_terms_are_known_the_duty_stays_where_the_cluster_began() {
    let old = DutyFacts { knows_terms: false, duty: Duty::FIRST, ..facts() };
    assert_eq!(decide_duty(&old), DutyStep::Wait);
    let first = DutyFacts { own: NodeId(1), ..old };
    assert_eq!(decide_duty(&first), DutyStep::Begin);
    let unnumbered = HeldDuty { has_number: false, ..held(0) };
    let held = DutyFacts { held: Some(unnumbered), ..first };
    assert_eq!(decide_duty(&held), DutyStep::Wait, "also while another node leads");
}

#[test]
fn a_term_without_a_number_ends_when_terms_are_known() {
    let unnumbered = HeldDuty { has_number: false, ..held(0) };
    let first = DutyFacts { own: NodeId(1), duty: Duty::FIRST, held: Some(unnumbered), ..facts() };
    for leads in [None, leader(1), leader(2)] {
        assert_eq!(decide_duty(&DutyFacts { leader: leads, ..first }), DutyStep::HandOver, "{leads:?}");
    }
}

#[test]
fn a_term_ends_only_if_nothing_of_it_or_of_an_earlier_one_can_have_an_effect() {
    let at_end = |phase, is_complete, act_ms| phase_at_end(&duty(2, 5, phase), is_complete, act_ms);
    assert_eq!(at_end(Active, true, 0), Ended);
    assert_eq!(at_end(Active, false, 0), Left, "an outcome is unknown");
    assert_eq!(at_end(Active, true, 1), Left, "an earlier process may have sent something");
    assert_eq!(at_end(Waiting, true, 0), Left, "an earlier term may have an effect");
}

/// What a node that was cut off or stopped still does when the next one begins.
#[test]
fn two_nodes_never_hold_the_duty_with_the_same_term() {
    let former = DutyFacts { own: NodeId(1), held: Some(held(5)), leader: leader(1), ..facts() };
    let lost = DutyFacts { holder: Contact::Unreachable { for_ms: LOST_MS }, ..facts() };
    let DutyStep::TakeOver(next, _) = decide_duty(&lost) else { panic!("node 2 takes over") };
    assert!(facts().duty.may_be_followed_by(&next) && next.term > 5);
    assert_eq!(decide_duty(&DutyFacts { duty: next, ..former }), DutyStep::Stop);
}

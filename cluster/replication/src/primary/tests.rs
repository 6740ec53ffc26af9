//! Cases of the primary: acknowledgements, seals and their outcomes, and followers that fail or trail.

use super::{PrimaryEffect, PrimarySegment, PrimaryStart, SealOutcome, SendRange, TRAIL_BYTES_MAX};
use crate::epoch::{SealProposal, SegmentEpoch};
use mlgw_common::{NodeId, SegmentId};
use std::time::Duration;

const EPOCH: SegmentEpoch = SegmentEpoch { term: 3, attempt: 0 };
const OWN: NodeId = NodeId(1);
const A: NodeId = NodeId(2);
const B: NodeId = NodeId(3);
const START: Duration = Duration::ZERO;

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// A segment with two followers that have its header of 10 bytes; 100 bytes are written.
fn segment(write_quorum: usize) -> PrimarySegment {
    let replicas = vec![OWN, A, B];
    let mut segment =
        PrimarySegment::new(PrimaryStart { segment: SegmentId(7), epoch: EPOCH, replicas, write_quorum });
    segment.append(10);
    segment.own_synced(10, START);
    segment.opened(A, 10, START);
    segment.opened(B, 10, START);
    assert_eq!(segment.acknowledged_length(), 10);
    segment.append(100);
    segment
}

fn acknowledge(length: u64) -> PrimaryEffect {
    PrimaryEffect::Acknowledge { length }
}

fn propose(length: u64, replicas: &[NodeId]) -> PrimaryEffect {
    let replicas = replicas.to_vec();
    PrimaryEffect::ProposeSeal(SealProposal { segment: SegmentId(7), epoch: EPOCH, length, replicas })
}

#[test]
fn what_the_quorum_and_the_primary_have_synced_is_acknowledged() {
    let mut two = segment(2);
    assert_eq!(two.acknowledged_by(A, 60, START), [], "the primary has not synced");
    assert_eq!(two.acknowledged_by(B, 80, START), [], "two followers are not enough");
    assert_eq!(two.own_synced(50, START), [acknowledge(50)]);
    assert_eq!(two.own_synced(100, START), [acknowledge(80)]);
    assert_eq!(two.acknowledged_by(A, 100, START), [acknowledge(100)]);

    let mut all = segment(3);
    assert_eq!(all.own_synced(100, START), []);
    assert_eq!(all.acknowledged_by(A, 100, START), []);
    assert_eq!(all.acknowledged_by(B, 30, START), [acknowledge(30)]);

    let mut one = segment(1);
    assert_eq!(one.own_synced(100, START), [acknowledge(100)]);
}

#[test]
fn a_follower_that_acknowledged_and_then_failed_counts_and_is_named() {
    let mut segment = segment(2);
    segment.own_synced(100, START);
    segment.acknowledged_by(A, 100, START);
    segment.acknowledged_by(B, 40, START);
    assert_eq!(segment.follower_failed(A, START), [propose(100, &[OWN, A])]);
    assert!(!segment.takes_appends());
    assert!(!segment.is_in_step(A) && segment.is_in_step(B));
    assert_eq!(segment.next_send(B), None, "nothing is sent after the proposal");
    assert_eq!(segment.acknowledged_by(B, 100, START), []);
}

#[test]
fn a_seal_without_trouble_waits_until_everybody_has_everything() {
    let mut segment = segment(2);
    assert_eq!(segment.request_seal(START), []);
    assert!(!segment.takes_appends());
    segment.own_synced(100, START);
    assert_eq!(segment.acknowledged_by(A, 100, START), [acknowledge(100)]);
    assert_eq!(segment.next_send(B), Some(SendRange { from: 10, to: 100 }));
    assert_eq!(segment.acknowledged_by(B, 100, START), [propose(100, &[OWN, A, B])]);
}

#[test]
fn a_failure_of_the_own_disk_seals_at_the_acknowledged_length() {
    let mut segment = segment(2);
    segment.own_synced(70, START);
    segment.acknowledged_by(A, 100, START);
    assert_eq!(segment.own_failed(START), [propose(70, &[OWN, A])]);
}

#[test]
fn the_record_decides_about_a_proposed_seal() {
    let mut segment = segment(2);
    segment.own_synced(100, START);
    segment.acknowledged_by(A, 60, START);
    let proposal = propose(60, &[OWN, A]);
    assert_eq!(segment.follower_failed(B, START), [proposal.clone()]);
    assert_eq!(segment.acknowledged_by(A, 100, START), [], "nothing is acknowledged meanwhile");
    assert_eq!(segment.seal_outcome(SealOutcome::Unknown), [PrimaryEffect::ReadRecord]);
    assert_eq!(segment.seal_outcome(SealOutcome::StillOpen), [proposal]);
    let recorded = SealOutcome::Recorded { length: 80 };
    let truncate = PrimaryEffect::Truncate { length: 80 };
    let again = PrimaryEffect::AppendAgain { beyond: 80 };
    assert_eq!(segment.seal_outcome(recorded), [acknowledge(80), truncate, again]);
    assert_eq!(segment.seal_outcome(recorded), []);
    assert_eq!(segment.next_send(A), None);
}

#[test]
fn a_seal_by_a_recovery_ends_a_segment_that_is_appended_to() {
    let mut segment = segment(2);
    segment.own_synced(100, START);
    let again = PrimaryEffect::AppendAgain { beyond: 10 };
    let truncate = PrimaryEffect::Truncate { length: 10 };
    assert_eq!(segment.seal_outcome(SealOutcome::Recorded { length: 10 }), [truncate, again]);
    assert!(!segment.takes_appends());
    assert_eq!(segment.request_seal(START), []);
}

#[test]
fn a_follower_that_trails_in_time_is_dropped() {
    let mut segment = segment(2);
    segment.own_synced(100, START);
    segment.acknowledged_by(A, 100, ms(200));
    assert_eq!(segment.tick(ms(1_100)), []);
    let dropped = PrimaryEffect::Dropped { node: B };
    assert_eq!(segment.tick(ms(1_101)), [dropped, propose(100, &[OWN, A])]);
    assert_eq!(segment.tick(ms(9_000)), [], "the seal is proposed");
}

#[test]
fn a_follower_that_keeps_up_is_not_dropped() {
    let mut segment = segment(2);
    for step in 0..100 {
        let (end, now) = (100 + step, ms(step * 50));
        segment.append(end);
        segment.own_synced(end, now);
        segment.acknowledged_by(A, end, now);
        assert_eq!(segment.tick(now), [], "{step}");
        segment.acknowledged_by(B, end.saturating_sub(15).max(10), now);
    }
}

#[test]
fn a_follower_that_trails_in_bytes_is_dropped() {
    let mut segment = segment(2);
    let end = 10 + TRAIL_BYTES_MAX;
    segment.append(end + 1);
    segment.own_synced(end + 1, START);
    segment.acknowledged_by(A, end, START);
    assert_eq!(segment.tick(START), []);
    segment.acknowledged_by(A, end + 1, START);
    assert_eq!(segment.tick(START)[0], PrimaryEffect::Dropped { node: B });
}

#[test]
fn bytes_are_sent_from_where_the_follower_ends() {
    let mut segment = segment(2);
    assert_eq!(segment.next_send(A), Some(SendRange { from: 10, to: 100 }));
    segment.sent(A, 100);
    assert_eq!(segment.next_send(A), None);
    assert_eq!(segment.resume(A, 40, START), []);
    assert_eq!(segment.next_send(A), Some(SendRange { from: 40, to: 100 }));
    assert_eq!(segment.next_send(NodeId(9)), None);
    segment.own_synced(100, START);
    segment.acknowledged_by(A, 50, START);
    assert_eq!(segment.resume(A, 40, START), [propose(50, &[OWN, A])], "it lost what it acknowledged");
}

#[test]
fn a_follower_that_never_opened_is_sent_nothing() {
    let replicas = vec![OWN, A];
    let start = PrimaryStart { segment: SegmentId(7), epoch: EPOCH, replicas, write_quorum: 2 };
    let mut segment = PrimarySegment::new(start);
    segment.append(10);
    segment.own_synced(10, START);
    assert_eq!(segment.next_send(A), None);
    assert_eq!(segment.follower_failed(A, START), [propose(0, &[OWN, A])], "nothing is missing at length 0");
}

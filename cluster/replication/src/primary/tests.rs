//! Cases of the primary: acknowledgements, seals, and followers that fail or trail.

use super::{PrimaryEffect, PrimarySegment, PrimaryStart, SealProposal, TRAIL_BYTES_MAX};
use mlgw_common::{NodeId, SegmentId};
use std::time::Duration;

const OWN: NodeId = NodeId(1);
const A: NodeId = NodeId(2);
const B: NodeId = NodeId(3);
const START: Duration = Duration::ZERO;

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// A segment with two followers, a header of 10 bytes, and 100 bytes written in total.
fn segment(write_quorum: usize) -> PrimarySegment {
    let replicas = vec![OWN, A, B];
    let mut segment = PrimarySegment::new(PrimaryStart { segment: SegmentId(7), replicas, write_quorum });
    segment.append(10);
    segment.own_synced(10, START);
    segment.acknowledged_by(A, 10, START);
    segment.acknowledged_by(B, 10, START);
    assert_eq!(segment.acknowledged_length(), 10);
    segment.append(100);
    segment
}

fn acknowledge(length: u64) -> PrimaryEffect {
    PrimaryEffect::Acknowledge { length }
}

fn propose(length: u64, replicas: &[NodeId]) -> PrimaryEffect {
    let replicas = replicas.to_vec();
    PrimaryEffect::ProposeSeal(SealProposal { segment: SegmentId(7), length, replicas })
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
    assert_eq!(segment.acknowledged_by(B, 100, START), [], "nothing follows the proposal");
}

#[test]
fn a_seal_without_trouble_waits_until_everybody_has_everything() {
    let mut segment = segment(2);
    assert_eq!(segment.request_seal(START), []);
    assert!(!segment.takes_appends());
    segment.own_synced(100, START);
    assert_eq!(segment.acknowledged_by(A, 100, START), [acknowledge(100)]);
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
fn nothing_is_acknowledged_after_the_proposal() {
    let mut segment = segment(2);
    segment.own_synced(100, START);
    segment.acknowledged_by(A, 60, START);
    assert_eq!(segment.follower_failed(B, START), [propose(60, &[OWN, A])]);
    assert_eq!(segment.acknowledged_by(A, 100, START), []);
    assert_eq!((segment.acknowledged_length(), segment.takes_appends()), (60, false));
    assert_eq!(segment.request_seal(START), [], "a seal is proposed once");
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

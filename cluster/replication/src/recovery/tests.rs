//! Cases of recovery: who counts, the length, copies and the seal.

use super::{
    CloseAnswer, RecoveryPlan, RecoveryRecord, RecoveryStep, ReplicaContent, SegmentRecovery, TailCopy,
};
use crate::epoch::{SealProposal, SegmentEpoch};
use crate::stretch::Stretch;
use mlgw_common::{NodeId, SegmentId};

const EPOCH: SegmentEpoch = SegmentEpoch { term: 4, attempt: 1 };

/// A recovery of a segment at the nodes 1, 2 and 3.
fn recovery(write_quorum: usize) -> SegmentRecovery {
    let replicas = vec![NodeId(1), NodeId(2), NodeId(3)];
    SegmentRecovery::new(RecoveryRecord { segment: SegmentId(7), replicas, write_quorum }, EPOCH)
}

fn answer(recovery: &mut SegmentRecovery, node: u64, content: ReplicaContent) {
    recovery.answered(CloseAnswer { node: NodeId(node), epoch: EPOCH, content });
}

fn synced(length: u64) -> ReplicaContent {
    ReplicaContent::Synced { length }
}

fn scanned(valid: &[(u64, u64)]) -> ReplicaContent {
    ReplicaContent::Scanned { valid: valid.iter().map(|(from, to)| Stretch::from(*from..*to)).collect() }
}

fn waits(recovery: &SegmentRecovery) -> Option<(Vec<u64>, usize)> {
    match recovery.step() {
        RecoveryStep::Wait { missing, needed } => Some((missing.iter().map(|node| node.0).collect(), needed)),
        RecoveryStep::Proceed(_) => None,
    }
}

fn plan(recovery: &SegmentRecovery) -> RecoveryPlan {
    match recovery.step() {
        RecoveryStep::Proceed(plan) => plan,
        RecoveryStep::Wait { missing, .. } => panic!("it waits for {missing:?}"),
    }
}

fn copy(source: u64, target: u64, from: u64, to: u64) -> TailCopy {
    TailCopy { source: NodeId(source), target: NodeId(target), epoch: EPOCH, stretch: Stretch { from, to } }
}

fn seal(length: u64, replicas: &[u64]) -> Option<SealProposal> {
    let replicas = replicas.iter().copied().map(NodeId).collect();
    Some(SealProposal { segment: SegmentId(7), epoch: EPOCH, length, replicas })
}

#[test]
fn as_many_answers_are_needed_as_the_recorded_quorum_leaves_room_for() {
    for (write_quorum, needed) in [(1, 3), (2, 2), (3, 1)] {
        let mut recovery = recovery(write_quorum);
        assert_eq!(waits(&recovery), Some((vec![1, 2, 3], needed)));
        for (at, node) in [3, 2, 1].into_iter().take(needed).enumerate() {
            assert_eq!(waits(&recovery).unwrap().1, needed - at);
            answer(&mut recovery, node, synced(10));
        }
        assert_eq!(waits(&recovery), None);
    }
}

#[test]
fn only_distinct_answers_of_own_replicas_in_this_epoch_count() {
    let mut recovery = recovery(2);
    answer(&mut recovery, 2, synced(10));
    answer(&mut recovery, 2, synced(10));
    answer(&mut recovery, 9, synced(10));
    answer(&mut recovery, 3, ReplicaContent::Lost);
    let old = SegmentEpoch { term: 4, attempt: 0 };
    recovery.answered(CloseAnswer { node: NodeId(1), epoch: old, content: synced(10) });
    assert_eq!(waits(&recovery), Some((vec![1, 3], 1)));
    answer(&mut recovery, 1, scanned(&[]));
    assert_eq!(waits(&recovery), None, "a primary that restarted counts once it answered");
    recovery.lost(NodeId(2));
    assert_eq!(waits(&recovery), Some((vec![2, 3], 1)));
}

#[test]
fn the_longest_replica_gives_the_length_and_the_others_its_tail() {
    let mut recovery = recovery(2);
    answer(&mut recovery, 2, synced(60));
    answer(&mut recovery, 3, scanned(&[(0, 10), (10, 40)]));
    let first = plan(&recovery);
    assert_eq!((first.length, first.seal), (60, None), "one replica is not enough");
    assert_eq!(first.copies, [copy(2, 3, 40, 60)]);
    let stale = TailCopy { epoch: SegmentEpoch::default(), ..first.copies[0] };
    recovery.copied(&stale);
    assert_eq!(plan(&recovery).seal, None);
    recovery.copied(&first.copies[0]);
    let last = plan(&recovery);
    assert_eq!((last.seal, last.copies), (seal(60, &[2, 3]), vec![]));
}

#[test]
fn damage_is_filled_from_another_replica() {
    let mut recovery = recovery(2);
    answer(&mut recovery, 1, scanned(&[(0, 20), (30, 60)]));
    answer(&mut recovery, 2, scanned(&[(0, 10), (20, 50)]));
    answer(&mut recovery, 3, scanned(&[]));
    let plan = plan(&recovery);
    assert_eq!((plan.length, &plan.damage, &plan.seal), (60, &vec![], &None));
    let expected = [
        copy(2, 1, 20, 30),
        copy(1, 2, 10, 20),
        copy(1, 2, 50, 60),
        copy(1, 3, 0, 20),
        copy(2, 3, 20, 30),
        copy(1, 3, 30, 60),
    ];
    assert_eq!(plan.copies, expected);
    plan.copies[..3].iter().for_each(|copy| recovery.copied(copy));
    let RecoveryStep::Proceed(plan) = recovery.step() else { panic!("it is fenced") };
    assert_eq!((plan.seal, plan.copies), (seal(60, &[1, 2]), vec![copy(1, 3, 0, 60)]));
}

#[test]
fn damage_everywhere_is_reported_and_shortens_nothing() {
    let mut recovery = recovery(2);
    answer(&mut recovery, 1, scanned(&[(0, 20), (30, 60)]));
    answer(&mut recovery, 2, scanned(&[(0, 25), (40, 60)]));
    let first = plan(&recovery);
    assert_eq!((first.length, &first.damage), (60, &vec![Stretch { from: 25, to: 30 }]));
    assert_eq!(first.copies, [copy(2, 1, 20, 25), copy(1, 2, 30, 40)]);
    first.copies.iter().for_each(|copy| recovery.copied(copy));
    assert_eq!(plan(&recovery).seal, seal(60, &[1, 2]));
}

#[test]
fn a_source_that_turns_out_to_be_damaged_is_replaced_and_keeps_its_length() {
    let mut recovery = recovery(2);
    answer(&mut recovery, 1, synced(60));
    answer(&mut recovery, 2, synced(50));
    answer(&mut recovery, 3, scanned(&[]));
    assert_eq!(plan(&recovery).copies[0], copy(1, 2, 50, 60));
    recovery.unreadable(NodeId(1), Stretch { from: 30, to: 60 });
    let plan = plan(&recovery);
    assert_eq!((plan.length, &plan.damage), (60, &vec![Stretch { from: 50, to: 60 }]));
    assert_eq!(plan.copies, [copy(2, 1, 30, 50), copy(1, 3, 0, 30), copy(2, 3, 30, 50)]);
    assert_eq!(plan.seal, None, "the first one lacks what the second one has");
}

#[test]
fn the_seal_names_as_many_as_answered_if_those_are_fewer_than_the_quorum() {
    let mut recovery = recovery(3);
    answer(&mut recovery, 3, synced(30));
    assert_eq!(plan(&recovery).seal, seal(30, &[3]));
    answer(&mut recovery, 1, synced(30));
    assert_eq!(plan(&recovery).seal, seal(30, &[1, 3]), "in the order of the record");
    assert_eq!((recovery.unanswered(), recovery.epoch()), (vec![NodeId(2)], EPOCH));
}

#[test]
fn a_segment_that_was_never_opened_is_sealed_empty() {
    let mut recovery = recovery(2);
    answer(&mut recovery, 2, scanned(&[]));
    answer(&mut recovery, 3, scanned(&[]));
    let plan = plan(&recovery);
    assert_eq!((plan.length, plan.seal, plan.copies), (0, seal(0, &[2, 3]), vec![]));
}

//! Cases of a replica: the right to append, Close in every state, and copies of a recovery.

use super::{AppendRefusal, ClosedLength, FollowerReplica, OpenRefusal, ReplicaEffect, ReplicaOnDisk};
use crate::epoch::SegmentEpoch;
use crate::stretch::Stretch;

const CREATED: SegmentEpoch = SegmentEpoch { term: 3, attempt: 0 };

fn epoch(attempt: u32) -> SegmentEpoch {
    SegmentEpoch { term: 4, attempt }
}

fn stretch(from: u64, to: u64) -> Stretch {
    Stretch { from, to }
}

fn persist(attempt: u32) -> ReplicaEffect {
    ReplicaEffect::PersistClose { epoch: epoch(attempt) }
}

fn closed(attempt: u32, length: ClosedLength) -> ReplicaEffect {
    ReplicaEffect::Closed { epoch: epoch(attempt), length }
}

/// A replica that is open, with a header of 10 bytes.
fn opened() -> FollowerReplica {
    let mut replica = FollowerReplica::at_start(ReplicaOnDisk::default());
    assert_eq!(replica.open(CREATED), [ReplicaEffect::Create]);
    assert_eq!(replica.created(10), [ReplicaEffect::Opened]);
    assert!(replica.may_append());
    replica
}

/// A replica that restarted with a file of 50 bytes.
fn restarted() -> FollowerReplica {
    FollowerReplica::at_start(ReplicaOnDisk { file_bytes: Some(50), closed: None })
}

#[test]
fn appends_are_acknowledged_when_they_are_synced() {
    let mut replica = opened();
    assert_eq!(replica.append(CREATED, stretch(10, 20)), [ReplicaEffect::Write(stretch(10, 20))]);
    assert_eq!(replica.append(CREATED, stretch(20, 30)), [ReplicaEffect::Write(stretch(20, 30))]);
    assert_eq!(replica.written(20), [ReplicaEffect::Sync { length: 20 }]);
    assert_eq!(replica.written(30), [], "a sync is in progress");
    let effects = [ReplicaEffect::Acknowledge { length: 20 }, ReplicaEffect::Sync { length: 30 }];
    assert_eq!(replica.synced(20), effects);
    assert_eq!(replica.synced(30), [ReplicaEffect::Acknowledge { length: 30 }]);
}

#[test]
fn appends_need_the_right_and_the_end_of_the_file() {
    let refused = |refusal| [ReplicaEffect::AppendRefused(refusal)];
    let no_right = refused(AppendRefusal::NoRight);
    let mut replica = opened();
    let wrong = refused(AppendRefusal::WrongOffset { end: 10, synced: 10 });
    assert_eq!(replica.append(CREATED, stretch(11, 20)), wrong);
    assert_eq!(replica.append(CREATED, stretch(9, 20)), wrong);
    assert_eq!(replica.append(epoch(0), stretch(10, 20)), no_right);
    assert_eq!(restarted().append(CREATED, stretch(50, 60)), no_right);
    assert_eq!(replica.failed(), no_right);
    assert_eq!(replica.append(CREATED, stretch(10, 20)), no_right, "its disk has failed");
}

#[test]
fn a_file_is_opened_once_over_nothing() {
    let exists = [ReplicaEffect::OpenRefused(OpenRefusal::FileExists)];
    assert_eq!(opened().open(CREATED), exists);
    assert_eq!(restarted().open(CREATED), exists);
    let marker = ReplicaOnDisk { file_bytes: None, closed: Some(epoch(1)) };
    let refused = [ReplicaEffect::OpenRefused(OpenRefusal::Closed)];
    assert_eq!(FollowerReplica::at_start(marker).open(CREATED), refused);
    let mut closing = FollowerReplica::at_start(ReplicaOnDisk::default());
    closing.close(epoch(1));
    assert_eq!(closing.open(CREATED), refused);
}

#[test]
fn close_waits_for_the_write_and_the_sync_and_is_durable_first() {
    let mut replica = opened();
    replica.append(CREATED, stretch(10, 20));
    assert_eq!(replica.close(epoch(1)), [], "a write is in progress");
    assert!(!replica.may_append());
    let refused = [ReplicaEffect::AppendRefused(AppendRefusal::NoRight)];
    assert_eq!(replica.append(CREATED, stretch(20, 30)), refused);
    assert_eq!(replica.written(20), [ReplicaEffect::Sync { length: 20 }]);
    assert_eq!(replica.synced(20), [ReplicaEffect::Acknowledge { length: 20 }, persist(1)]);
    assert_eq!(replica.close_persisted(epoch(1)), [closed(1, ClosedLength::Synced(20))]);
    assert_eq!(replica.closed_epoch(), Some(epoch(1)));
}

#[test]
fn close_without_a_file_makes_a_marker() {
    let mut replica = FollowerReplica::at_start(ReplicaOnDisk::default());
    assert_eq!(replica.close(epoch(1)), [persist(1)]);
    assert_eq!(replica.close_persisted(epoch(1)), [closed(1, ClosedLength::Scan)]);
}

#[test]
fn a_replica_that_restarted_syncs_and_is_scanned() {
    let mut replica = restarted();
    assert_eq!(replica.close(epoch(1)), [ReplicaEffect::Sync { length: 50 }]);
    assert_eq!(replica.synced(50), [persist(1)], "nothing is acknowledged");
    assert_eq!(replica.close_persisted(epoch(1)), [closed(1, ClosedLength::Scan)]);
}

#[test]
fn the_highest_close_counts() {
    let mut replica = opened();
    assert_eq!(replica.close(epoch(2)), [persist(2)]);
    let refused = [ReplicaEffect::CloseRefused { closed: epoch(2) }];
    assert_eq!(replica.close(epoch(1)), refused);
    assert_eq!(replica.close(epoch(3)), [persist(3)]);
    assert_eq!(replica.close_persisted(epoch(2)), [], "a later one is on its way");
    assert_eq!(replica.close_persisted(epoch(3)), [closed(3, ClosedLength::Synced(10))]);
    assert_eq!(replica.close(epoch(3)), [persist(3)], "a repeated one is answered again");
    assert_eq!(replica.close_persisted(epoch(3)), [closed(3, ClosedLength::Synced(10))]);
    let kept = ReplicaOnDisk { file_bytes: Some(10), closed: Some(epoch(3)) };
    assert_eq!(
        FollowerReplica::at_start(kept).close(CREATED),
        [ReplicaEffect::CloseRefused { closed: epoch(3) }]
    );
}

#[test]
fn copies_carry_the_epoch_of_the_close() {
    let mut replica = opened();
    let copy = stretch(10, 30);
    assert_eq!(replica.copy(epoch(1), copy), [ReplicaEffect::CopyRefused], "it is not closed");
    replica.close(epoch(2));
    replica.close_persisted(epoch(2));
    assert_eq!(replica.copy(epoch(1), copy), [ReplicaEffect::CopyRefused]);
    assert_eq!(replica.copy(epoch(2), copy), [ReplicaEffect::WriteCopy { epoch: epoch(2), stretch: copy }]);
    assert_eq!(replica.close(epoch(3)), [], "a copy is in progress");
    let done = ReplicaEffect::Copied { epoch: epoch(2), stretch: copy };
    assert_eq!(replica.copied(epoch(2), copy), [done, persist(3)]);
    assert_eq!(replica.copy(epoch(2), copy), [ReplicaEffect::CopyRefused]);
    assert_eq!(replica.close_persisted(epoch(3)), [closed(3, ClosedLength::Scan)], "a copy may leave a hole");
}

#[test]
fn the_file_is_cut_off_when_the_seal_is_applied() {
    let mut replica = restarted();
    assert_eq!(replica.sealed(40), [ReplicaEffect::Truncate { length: 40 }]);
    assert_eq!(replica.close(epoch(1)), [ReplicaEffect::IsSealed { length: 40 }]);
    assert_eq!(replica.copy(epoch(1), stretch(40, 50)), [ReplicaEffect::IsSealed { length: 40 }]);
    assert_eq!(replica.open(CREATED), [ReplicaEffect::OpenRefused(OpenRefusal::Closed)]);
    assert_eq!(restarted().sealed(50), []);
    let mut open = opened();
    open.sealed(10);
    let refused = [ReplicaEffect::AppendRefused(AppendRefusal::NoRight)];
    assert_eq!(open.append(CREATED, stretch(10, 20)), refused);
}

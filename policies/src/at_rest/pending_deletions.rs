//! Scheduled deletions of checkpoints.
//!
//! A checkpoint that a rule calls expired is recorded with the time at which its grace period ends.
//! Invariant: a checkpoint that is no longer expired is not deleted, whatever was recorded. The grace period
//! starts again if any file of the checkpoint was read or written since it was recorded, or if the grace
//! period was shortened. Nothing is deleted in the pass that records it, so the entry is durable and visible
//! first.

use crate::checkpoints::DeletionGuard;
use mlgw_common::limits::PENDING_DELETIONS_MAX;
use std::collections::BTreeMap;
use std::time::Duration;

/// A checkpoint that may be deleted, as of now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpiredCheckpoint {
    /// Bucket id.
    pub bucket: u64,
    /// Prefix of the checkpoint, as returned by [`crate::checkpoints::CheckpointIndex::prefix_of`] for its
    /// keys.
    pub prefix: String,
    /// The rule that lets it expire.
    pub rule: String,
    /// Grace period between expiry and deletion.
    pub grace: Duration,
    /// Time of the last known read or write of any of its files, in milliseconds since 1970.
    pub last_used_ms: i64,
    /// Position of its last write in the catalogue's sequence.
    pub seq: u64,
    /// Number of files.
    pub files: u64,
    /// Bytes of all files.
    pub bytes: u64,
    /// Guards that keep the rule from deleting it at present.
    pub guards: Vec<DeletionGuard>,
}

/// A checkpoint whose deletion is pending.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingDeletion {
    /// Bucket id.
    pub bucket: u64,
    /// Prefix of the checkpoint.
    pub prefix: String,
    /// The rule.
    pub rule: String,
    /// Time at which the entry was recorded, in milliseconds since 1970.
    pub recorded_ms: i64,
    /// Time at which the deletion is due, in milliseconds since 1970.
    pub due_ms: i64,
    /// Position of the checkpoint's last write in the catalogue's sequence when it was recorded; 0 in entries
    /// of older versions.
    pub seq: u64,
    /// Number of files.
    pub files: u64,
    /// Bytes of all files.
    pub bytes: u64,
}

impl PendingDeletion {
    fn new(now_ms: i64, of: &ExpiredCheckpoint) -> Self {
        let ExpiredCheckpoint { bucket, prefix, rule, seq, files, bytes, .. } = of.clone();
        let (recorded_ms, due_ms) = (now_ms, due_ms(now_ms, of.grace));
        Self { bucket, prefix, rule, recorded_ms, due_ms, seq, files, bytes }
    }
}

/// All pending deletions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PendingDeletions {
    entries: BTreeMap<(u64, String), PendingDeletion>,
}

impl PendingDeletions {
    /// Restores the pending deletions from recorded entries.
    #[must_use]
    pub fn of(notes: impl Iterator<Item = PendingDeletion>) -> Self {
        Self {
            entries: notes
                .map(|note| ((note.bucket, note.prefix.clone()), note))
                .take(PENDING_DELETIONS_MAX)
                .collect(),
        }
    }

    /// Returns all entries, by bucket and prefix.
    pub fn entries(&self) -> impl Iterator<Item = &PendingDeletion> {
        self.entries.values()
    }

    /// Updates the entries with the checkpoints that are expired now. Returns those that are to be deleted;
    /// their entries remain until the checkpoints are gone.
    pub fn update(&mut self, now_ms: i64, expired: &[ExpiredCheckpoint]) -> Vec<PendingDeletion> {
        let before = std::mem::take(&mut self.entries);
        let mut due = Vec::new();
        for checkpoint in expired.iter().take(PENDING_DELETIONS_MAX) {
            let name = (checkpoint.bucket, checkpoint.prefix.clone());
            // A shorter grace period starts anew, which leaves time to reverse the change.
            let is_same = |note: &&PendingDeletion| {
                note.rule == checkpoint.rule && due_ms(note.recorded_ms, checkpoint.grace) >= note.due_ms
            };
            // Any write since then makes it another checkpoint, whatever its Last-Modified: the Last-Modified
            // of a long write is the time at which the write began.
            let is_used_since = |note: &&PendingDeletion| {
                checkpoint.last_used_ms >= note.recorded_ms || checkpoint.seq > note.seq
            };
            let earlier = before.get(&name).filter(is_same).filter(|note| !is_used_since(note));
            let note = match earlier {
                Some(note) => PendingDeletion {
                    due_ms: due_ms(note.recorded_ms, checkpoint.grace),
                    recorded_ms: note.recorded_ms,
                    ..PendingDeletion::new(now_ms, checkpoint)
                },
                None => PendingDeletion::new(now_ms, checkpoint),
            };
            if earlier.is_some() && note.due_ms <= now_ms {
                due.push(note.clone());
            }
            self.entries.insert(name, note);
        }
        due
    }
}

fn due_ms(recorded_ms: i64, grace: Duration) -> i64 {
    recorded_ms.saturating_add(i64::try_from(grace.as_millis()).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::{ExpiredCheckpoint, PendingDeletions};
    use proptest::prelude::*;
    use std::time::Duration;

    fn expired(prefix: &str, grace_ms: u64, touched_ms: i64) -> ExpiredCheckpoint {
        ExpiredCheckpoint {
            bucket: 1,
            prefix: prefix.to_owned(),
            rule: "few".to_owned(),
            grace: Duration::from_millis(grace_ms),
            last_used_ms: touched_ms,
            files: 2,
            bytes: 10,
            seq: 0,
            guards: Vec::new(),
        }
    }

    fn due(pending: &mut PendingDeletions, now_ms: i64, all: &[ExpiredCheckpoint]) -> Vec<String> {
        pending.update(now_ms, all).into_iter().map(|note| note.prefix).collect()
    }

    #[test]
    fn a_checkpoint_is_deleted_after_its_grace_and_never_in_the_first_pass() {
        let mut pending = PendingDeletions::default();
        let one = [expired("a/", 10, 0)];
        assert_eq!(due(&mut pending, 100, &one), [""; 0]);
        assert_eq!(
            pending.entries().map(|note| (note.recorded_ms, note.due_ms)).collect::<Vec<_>>(),
            [(100, 110)]
        );
        assert_eq!(due(&mut pending, 109, &one), [""; 0]);
        let mut later = PendingDeletions::of(pending.entries().cloned());
        assert_eq!(due(&mut later, 110, &one), ["a/"], "the grace period also survives a restart");
        assert_eq!(due(&mut later, 111, &one), ["a/"], "the deletion stays due until it is done");
        assert_eq!((due(&mut later, 112, &[]), later.entries().count()), (vec![], 0));
        let at_once = [expired("b/", 0, 0)];
        assert_eq!(due(&mut pending, 200, &at_once), [""; 0]);
        assert_eq!(due(&mut pending, 200, &at_once), ["b/"]);
    }

    #[test]
    fn a_checkpoint_used_or_retained_meanwhile_starts_its_grace_again() {
        let mut pending = PendingDeletions::default();
        due(&mut pending, 100, &[expired("a/", 10, 0)]);
        assert_eq!(due(&mut pending, 115, &[expired("a/", 10, 105)]), [""; 0]);
        assert_eq!(due(&mut pending, 120, &[expired("a/", 10, 105)]), [""; 0]);
        assert_eq!(due(&mut pending, 125, &[expired("a/", 10, 105)]), ["a/"]);
        due(&mut pending, 126, &[]);
        assert_eq!(due(&mut pending, 130, &[expired("a/", 10, 0)]), [""; 0]);
        let other = ExpiredCheckpoint { rule: "other".to_owned(), ..expired("a/", 10, 0) };
        assert_eq!(due(&mut pending, 200, &[other]), [""; 0], "each rule has its own grace period");
        let mut pending = PendingDeletions::default();
        due(&mut pending, 100, &[expired("a/", 1000, 0)]);
        assert_eq!(
            due(&mut pending, 500, &[expired("a/", 10, 0)]),
            [""; 0],
            "a shorter grace period begins now"
        );
        assert_eq!(due(&mut pending, 509, &[expired("a/", 10, 0)]), [""; 0]);
        assert_eq!(
            due(&mut pending, 511, &[expired("a/", 20, 0)]),
            [""; 0],
            "a longer grace period begins at its original start"
        );
        assert_eq!(due(&mut pending, 520, &[expired("a/", 20, 0)]), ["a/"]);
    }

    #[test]
    fn what_was_written_since_waits_anew_though_it_looks_older() {
        let mut pending = PendingDeletions::default();
        due(&mut pending, 100, &[expired("a/", 10, 50)]);
        // A write that began before the note and ended after it.
        let again = [ExpiredCheckpoint { seq: 7, ..expired("a/", 10, 60) }];
        assert_eq!(due(&mut pending, 115, &again), [""; 0]);
        assert_eq!(due(&mut pending, 124, &again), [""; 0]);
        assert_eq!(due(&mut pending, 125, &again), ["a/"]);
    }

    proptest! {
        #[test]
        fn nothing_is_deleted_before_its_grace_since_the_last_use(
            steps in prop::collection::vec((1i64..8, any::<bool>(), any::<bool>()), 1..40),
            grace in 0u64..12,
        ) {
            let mut pending = PendingDeletions::default();
            let (mut now, mut since, mut touched) = (0, None::<i64>, -1);
            for (step, is_said, is_touched) in steps {
                now += step;
                if is_touched {
                    touched = now;
                }
                let all = [expired("a/", grace, touched)];
                let goes = pending.update(now, if is_said { &all } else { &[] });
                if !is_said {
                    since = None;
                }
                if !goes.is_empty() {
                    let since = since.expect("the deletion was reported before");
                    prop_assert!(now >= since + grace as i64 && touched < since);
                }
                if is_said && since.is_none_or(|since| touched >= since) {
                    since = Some(now);
                }
            }
        }
    }
}

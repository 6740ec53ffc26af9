//! Scheduled deletions of checkpoints.
//!
//! A checkpoint that a rule calls expired is recorded with the time at which its grace period ends. Always: a
//! checkpoint that is no longer expired is not deleted, whatever was recorded. The grace period starts again
//! if any file of the checkpoint was read or written since it was recorded, or if the grace period was
//! shortened. Nothing is deleted in the pass that records it, so the entry is durable and visible first.

use crate::checkpoints::MustStay;
use mlgw_common::limits::DOOMED_MAX;
use std::collections::BTreeMap;
use std::time::Duration;

/// A checkpoint that may be deleted, as of now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superfluous {
    /// Bucket id.
    pub bucket: u64,
    /// Prefix of the checkpoint, as returned by [`crate::checkpoints::Checkpoints::prefix_of`] for its keys.
    pub prefix: String,
    /// The rule that lets it expire.
    pub rule: String,
    /// Grace period between expiry and deletion.
    pub grace: Duration,
    /// Time of the last known read or write of any of its files, in milliseconds since 1970.
    pub touched_ms: i64,
    /// Position of its last write in the catalogue's sequence.
    pub seq: u64,
    /// Number of files.
    pub files: u64,
    /// Bytes of all files.
    pub bytes: u64,
    /// Guards that keep the rule from deleting it at present.
    pub stays: Vec<MustStay>,
}

/// A checkpoint whose deletion is pending.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// Bucket id.
    pub bucket: u64,
    /// Prefix of the checkpoint.
    pub prefix: String,
    /// The rule.
    pub rule: String,
    /// Time at which the entry was recorded, in milliseconds since 1970.
    pub noted_ms: i64,
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

impl Note {
    fn new(now_ms: i64, of: &Superfluous) -> Self {
        let Superfluous { bucket, prefix, rule, seq, files, bytes, .. } = of.clone();
        let (noted_ms, due_ms) = (now_ms, due_ms(now_ms, of.grace));
        Self { bucket, prefix, rule, noted_ms, due_ms, seq, files, bytes }
    }
}

/// All pending deletions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Doomed {
    notes: BTreeMap<(u64, String), Note>,
}

impl Doomed {
    /// Restores the pending deletions from recorded entries.
    #[must_use]
    pub fn of(notes: impl Iterator<Item = Note>) -> Self {
        Self {
            notes: notes.map(|note| ((note.bucket, note.prefix.clone()), note)).take(DOOMED_MAX).collect(),
        }
    }

    /// Returns all entries, by bucket and prefix.
    pub fn notes(&self) -> impl Iterator<Item = &Note> {
        self.notes.values()
    }

    /// Updates the entries with the checkpoints that are expired now. Returns those that are to be deleted;
    /// their entries remain until the checkpoints are gone.
    pub fn round(&mut self, now_ms: i64, superfluous: &[Superfluous]) -> Vec<Note> {
        let before = std::mem::take(&mut self.notes);
        let mut due = Vec::new();
        for of in superfluous.iter().take(DOOMED_MAX) {
            let name = (of.bucket, of.prefix.clone());
            // A shorter grace period starts anew, which leaves time to reverse the change.
            let is_same =
                |note: &&Note| note.rule == of.rule && due_ms(note.noted_ms, of.grace) >= note.due_ms;
            // Any write since then makes it another checkpoint, whatever its Last-Modified: the Last-Modified
            // of a long write is the time at which the write began.
            let is_touched = |note: &&Note| of.touched_ms >= note.noted_ms || of.seq > note.seq;
            let waits = before.get(&name).filter(is_same).filter(|note| !is_touched(note));
            let note = match waits {
                Some(note) => Note {
                    due_ms: due_ms(note.noted_ms, of.grace),
                    noted_ms: note.noted_ms,
                    ..Note::new(now_ms, of)
                },
                None => Note::new(now_ms, of),
            };
            if waits.is_some() && note.due_ms <= now_ms {
                due.push(note.clone());
            }
            self.notes.insert(name, note);
        }
        due
    }
}

fn due_ms(noted_ms: i64, grace: Duration) -> i64 {
    noted_ms.saturating_add(i64::try_from(grace.as_millis()).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::{Doomed, Superfluous};
    use proptest::prelude::*;
    use std::time::Duration;

    fn superfluous(prefix: &str, grace_ms: u64, touched_ms: i64) -> Superfluous {
        Superfluous {
            bucket: 1,
            prefix: prefix.to_owned(),
            rule: "few".to_owned(),
            grace: Duration::from_millis(grace_ms),
            touched_ms,
            files: 2,
            bytes: 10,
            seq: 0,
            stays: Vec::new(),
        }
    }

    fn due(doomed: &mut Doomed, now_ms: i64, all: &[Superfluous]) -> Vec<String> {
        doomed.round(now_ms, all).into_iter().map(|note| note.prefix).collect()
    }

    #[test]
    fn a_checkpoint_is_deleted_after_its_grace_and_never_in_the_first_pass() {
        let mut doomed = Doomed::default();
        let one = [superfluous("a/", 10, 0)];
        assert_eq!(due(&mut doomed, 100, &one), [""; 0]);
        assert_eq!(doomed.notes().map(|note| (note.noted_ms, note.due_ms)).collect::<Vec<_>>(), [(100, 110)]);
        assert_eq!(due(&mut doomed, 109, &one), [""; 0]);
        let mut later = Doomed::of(doomed.notes().cloned());
        assert_eq!(due(&mut later, 110, &one), ["a/"], "also after a restart");
        assert_eq!(due(&mut later, 111, &one), ["a/"], "until it is gone");
        assert_eq!((due(&mut later, 112, &[]), later.notes().count()), (vec![], 0));
        let at_once = [superfluous("b/", 0, 0)];
        assert_eq!(due(&mut doomed, 200, &at_once), [""; 0]);
        assert_eq!(due(&mut doomed, 200, &at_once), ["b/"]);
    }

    #[test]
    fn a_checkpoint_used_or_retained_meanwhile_starts_its_grace_again() {
        let mut doomed = Doomed::default();
        due(&mut doomed, 100, &[superfluous("a/", 10, 0)]);
        assert_eq!(due(&mut doomed, 115, &[superfluous("a/", 10, 105)]), [""; 0]);
        assert_eq!(due(&mut doomed, 120, &[superfluous("a/", 10, 105)]), [""; 0]);
        assert_eq!(due(&mut doomed, 125, &[superfluous("a/", 10, 105)]), ["a/"]);
        due(&mut doomed, 126, &[]);
        assert_eq!(due(&mut doomed, 130, &[superfluous("a/", 10, 0)]), [""; 0]);
        let other = Superfluous { rule: "other".to_owned(), ..superfluous("a/", 10, 0) };
        assert_eq!(due(&mut doomed, 200, &[other]), [""; 0], "another rule has its own grace");
        let mut doomed = Doomed::default();
        due(&mut doomed, 100, &[superfluous("a/", 1000, 0)]);
        assert_eq!(due(&mut doomed, 500, &[superfluous("a/", 10, 0)]), [""; 0], "the shorter one begins now");
        assert_eq!(due(&mut doomed, 509, &[superfluous("a/", 10, 0)]), [""; 0]);
        assert_eq!(
            due(&mut doomed, 511, &[superfluous("a/", 20, 0)]),
            [""; 0],
            "and a longer one when it did"
        );
        assert_eq!(due(&mut doomed, 520, &[superfluous("a/", 20, 0)]), ["a/"]);
    }

    #[test]
    fn what_was_written_since_waits_anew_though_it_looks_older() {
        let mut doomed = Doomed::default();
        due(&mut doomed, 100, &[superfluous("a/", 10, 50)]);
        // A write that began before the note and ended after it.
        let again = [Superfluous { seq: 7, ..superfluous("a/", 10, 60) }];
        assert_eq!(due(&mut doomed, 115, &again), [""; 0]);
        assert_eq!(due(&mut doomed, 124, &again), [""; 0]);
        assert_eq!(due(&mut doomed, 125, &again), ["a/"]);
    }

    proptest! {
        #[test]
        fn nothing_is_deleted_before_its_grace_since_the_last_use(
            steps in prop::collection::vec((1i64..8, any::<bool>(), any::<bool>()), 1..40),
            grace in 0u64..12,
        ) {
            let (mut doomed, mut now, mut since, mut touched) = (Doomed::default(), 0, None::<i64>, -1);
            for (step, is_said, is_touched) in steps {
                now += step;
                if is_touched {
                    touched = now;
                }
                let all = [superfluous("a/", grace, touched)];
                let goes = doomed.round(now, if is_said { &all } else { &[] });
                if !is_said {
                    since = None;
                }
                if !goes.is_empty() {
                    let since = since.expect("it was said before");
                    prop_assert!(now >= since + grace as i64 && touched < since);
                }
                if is_said && since.is_none_or(|since| touched >= since) {
                    since = Some(now);
                }
            }
        }
    }
}

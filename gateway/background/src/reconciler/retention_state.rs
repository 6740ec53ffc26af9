//! State of the reconciler that outlives a pass and that other components read: pending deletions of
//! checkpoints, counts of actions, and rule matches on more than one object.
//!
//! Pending deletions are stored in `DATA/deletions` ([`mod@file`]), the intervals between the checkpoints of
//! runs in `DATA/spacings`. Both files are replaced as a whole at each change. A checkpoint is deleted only
//! if it was recorded there, durably, for a whole grace period before. After a power loss during a write,
//! the file has either the previous or the new content. A damaged file is ignored and logged as an error:
//! the grace periods of its entries start again.

mod file;

use crate::line_file::LineFileError;
use mlgw_common::private_file;
use mlgw_common::{Lineage, regular};
use mlgw_policies::at_rest::{
    AreaRuleMatches, ExpiredCheckpoint, InactivePins, PendingDeletion, PendingDeletions,
};
use mlgw_policies::checkpoints::{CheckpointSpacings, DeletionGuard};
use mlgw_policies::language::{ActionKind, Word as _};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Name of the file of pending deletions.
pub const FILE_NAME: &str = "deletions";
/// Name of the file of intervals between checkpoints.
pub const SPACINGS_NAME: &str = "spacings";

/// Outcome of an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RuleActionOutcome {
    /// The action was carried out.
    Done,
    /// The action was postponed: there is no room, or the flash budget is exhausted.
    NoRoom,
    /// The action failed.
    Failed,
}

impl RuleActionOutcome {
    const ALL: [Self; 3] = [Self::Done, Self::NoRoom, Self::Failed];

    /// Returns the name of the outcome.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::NoRoom => "no_room",
            Self::Failed => "failed",
        }
    }
}

/// See the module documentation.
pub struct RetentionState {
    dir: PathBuf,
    lineage: Lineage,
    pending: Mutex<PendingDeletions>,
    counts: Mutex<BTreeMap<(ActionKind, RuleActionOutcome), u64>>,
    areas: Mutex<Arc<AreaRuleMatches>>,
    inactive_pins: Mutex<Arc<InactivePins>>,
    /// Guards of checkpoints whose deletion is due, by bucket and prefix.
    due_guards: Mutex<BTreeMap<(u64, String), String>>,
    /// Guards of the other pending checkpoints, as known to the last pass.
    pending_guards: Mutex<BTreeMap<(u64, String), Vec<DeletionGuard>>>,
    spacings: Mutex<CheckpointSpacings>,
}

impl RetentionState {
    /// Opens the state in the data directory of a server. Blocks the calling thread.
    ///
    /// # Errors
    /// I/O errors.
    pub fn open(data_dir: &Path, lineage: Lineage) -> io::Result<Self> {
        let lost = "pending deletions of checkpoints discarded; their grace periods start again";
        let notes =
            read_or_default(&data_dir.join(FILE_NAME), |bytes| file::parse_deletions(&lineage, bytes), lost)?;
        let lost =
            "intervals between checkpoints discarded; they are derived again from the stored checkpoints";
        let read = |bytes: &[u8]| file::parse_spacings(&lineage, bytes);
        let spacings = read_or_default(&data_dir.join(SPACINGS_NAME), read, lost)?;
        Ok(Self {
            dir: data_dir.to_owned(),
            lineage,
            pending: Mutex::new(PendingDeletions::of(notes.into_iter())),
            counts: Mutex::default(),
            areas: Mutex::default(),
            inactive_pins: Mutex::default(),
            due_guards: Mutex::default(),
            pending_guards: Mutex::default(),
            spacings: Mutex::new(spacings),
        })
    }

    /// Returns the pending deletions.
    #[must_use]
    pub fn pending_deletions(&self) -> Vec<PendingDeletion> {
        self.pending.lock().entries().cloned().collect()
    }

    /// Records the expired checkpoints durably, and returns those whose deletion is due. Blocks the calling
    /// thread.
    ///
    /// # Errors
    /// I/O errors; then nothing is deleted.
    pub fn record_expired(
        &self,
        now_ms: i64,
        expired: &[ExpiredCheckpoint],
    ) -> io::Result<Vec<PendingDeletion>> {
        let mut current = self.pending.lock();
        let mut updated = current.clone();
        let due = updated.update(now_ms, expired);
        if updated != *current {
            let bytes = file::serialize_deletions(&self.lineage.own, updated.entries());
            private_file::write(&self.dir, &self.dir.join(FILE_NAME), &bytes)?;
            *current = updated;
        }
        let name = |of: &ExpiredCheckpoint| (of.bucket, of.prefix.clone());
        let names: BTreeSet<_> = expired.iter().map(name).collect();
        // Entries of checkpoints without a place are kept as well, so that these come last as long as they
        // stay.
        self.due_guards.lock().retain(|name, _| names.contains(name));
        let held = expired.iter().filter(|of| !of.guards.is_empty());
        *self.pending_guards.lock() = held.map(|of| (name(of), of.guards.clone())).collect();
        Ok(due)
    }

    /// Returns the intervals between the checkpoints of runs.
    pub fn spacings(&self) -> CheckpointSpacings {
        self.spacings.lock().clone()
    }

    /// Records the intervals durably. Blocks the calling thread.
    pub(super) fn record_spacings(&self, spacings: CheckpointSpacings) -> io::Result<()> {
        let mut held = self.spacings.lock();
        if *held != spacings {
            let bytes = file::serialize_spacings(&self.lineage.own, &spacings);
            private_file::write(&self.dir, &self.dir.join(SPACINGS_NAME), &bytes)?;
            *held = spacings;
        }
        Ok(())
    }

    /// Returns the rule matches on datasets, checkpoints and prefixes of the last pass.
    #[must_use]
    pub fn areas(&self) -> Arc<AreaRuleMatches> {
        Arc::clone(&self.areas.lock())
    }

    /// Replaces the rule matches on areas.
    pub(super) fn set_areas(&self, areas: Arc<AreaRuleMatches>) {
        *self.areas.lock() = areas;
    }

    /// Returns the pins that are inactive since the last pass.
    #[must_use]
    pub fn inactive_pins(&self) -> Arc<InactivePins> {
        Arc::clone(&self.inactive_pins.lock())
    }

    /// Replaces the inactive pins.
    pub(super) fn set_inactive_pins(&self, unheld: InactivePins) {
        *self.inactive_pins.lock() = Arc::new(unheld);
    }

    /// Returns the guard that keeps a checkpoint with a pending or due deletion.
    #[must_use]
    pub fn guard(&self, bucket: u64, prefix: &str) -> Option<String> {
        let due = self.due_guards.lock().get(&(bucket, prefix.to_owned())).cloned();
        self.pending_guard(bucket, prefix).or(due)
    }

    /// Returns the guards that will prevent a pending deletion.
    pub(super) fn pending_guard(&self, bucket: u64, prefix: &str) -> Option<String> {
        self.pending_guards
            .lock()
            .get(&(bucket, prefix.to_owned()))
            .map(|doubts| DeletionGuard::reasons(doubts))
    }

    /// Sets the guard that prevented a due deletion; `None` if it was carried out or not due. Returns true if
    /// the guard has changed.
    pub(super) fn set_guard(&self, note: &PendingDeletion, why: Option<&str>) -> bool {
        let (mut stays, name) = (self.due_guards.lock(), (note.bucket, note.prefix.clone()));
        let before = match why {
            Some(why) => stays.insert(name, why.to_owned()),
            None => stays.remove(&name),
        };
        before.as_deref() != why
    }

    /// Adds to the count of an outcome.
    pub fn count(&self, action: ActionKind, outcome: RuleActionOutcome, count: u64) {
        *self.counts.lock().entry((action, outcome)).or_default() += count;
    }

    /// Returns the counts since the start, for every combination of action and outcome.
    #[must_use]
    pub fn counts(&self) -> Vec<(&'static str, &'static str, u64)> {
        let counts = self.counts.lock();
        let all = ActionKind::ALL.iter().filter(|kind| mlgw_policies::at_rest::is_at_rest(**kind));
        let each = all.flat_map(|kind| RuleActionOutcome::ALL.map(|outcome| (*kind, outcome)));
        each.map(|key| (key.0.name(), key.1.name(), counts.get(&key).copied().unwrap_or(0))).collect()
    }
}

/// Reads a file. Returns the default if the file is missing, or damaged, which is logged with the message
/// `lost`.
fn read_or_default<T: Default>(
    path: &Path,
    read: impl FnOnce(&[u8]) -> Result<T, LineFileError>,
    lost: &str,
) -> io::Result<T> {
    match regular::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(T::default()),
        bytes => Ok(read(&bytes?).unwrap_or_else(|why| {
            tracing::error!(%why, "{lost}");
            T::default()
        })),
    }
}

#[cfg(test)]
mod tests {
    use super::{CheckpointSpacings, FILE_NAME, Lineage, RetentionState, RuleActionOutcome, SPACINGS_NAME};
    use crate::line_file::tests::lineages;
    use mlgw_policies::at_rest::ExpiredCheckpoint;
    use mlgw_policies::language::ActionKind;
    use std::fs;
    use std::time::Duration;

    fn expired_checkpoint(prefix: &str) -> ExpiredCheckpoint {
        ExpiredCheckpoint {
            bucket: 3,
            prefix: prefix.into(),
            rule: "few".into(),
            grace: Duration::from_millis(10),
            last_used_ms: 0,
            files: 1,
            bytes: 5,
            seq: 0,
            guards: Vec::new(),
        }
    }

    #[test]
    fn pending_deletions_survive_a_restart_and_a_damaged_file_starts_again() {
        let room = tempfile::tempdir().unwrap();
        let open = || RetentionState::open(room.path(), Lineage::default()).unwrap();
        assert!(
            open()
                .record_expired(100, &[expired_checkpoint("a/"), expired_checkpoint("b/")])
                .unwrap()
                .is_empty()
        );
        assert_eq!(open().pending_deletions().len(), 2);
        assert_eq!(open().record_expired(110, &[expired_checkpoint("b/")]).unwrap()[0].prefix, "b/");
        assert_eq!(open().pending_deletions().len(), 1, "a cancelled deletion is removed");
        let path = room.path().join(FILE_NAME);
        let damaged = fs::read_to_string(&path).unwrap().replace("b/", "c/");
        fs::write(&path, damaged).unwrap();
        assert!(open().pending_deletions().is_empty());
        assert!(open().record_expired(200, &[expired_checkpoint("c/")]).unwrap().is_empty());
    }

    #[test]
    fn deletions_of_another_timeline_do_not_happen() {
        let room = tempfile::tempdir().unwrap();
        let (first, restored) = lineages();
        let open = |lineage: &Lineage| RetentionState::open(room.path(), lineage.clone()).unwrap();
        let spacings: CheckpointSpacings = [((3, "run/step-#/".to_owned()), 100)].into_iter().collect();
        open(&first).record_expired(100, &[expired_checkpoint("a/")]).unwrap();
        open(&first).record_spacings(spacings.clone()).unwrap();
        assert_eq!((open(&first).pending_deletions().len(), open(&first).spacings()), (1, spacings));
        // The bucket's id may be that of another bucket now.
        assert_eq!(
            (open(&restored).pending_deletions().len(), open(&restored).spacings()),
            (0, CheckpointSpacings::default())
        );
        assert!(
            open(&restored).record_expired(110, &[expired_checkpoint("a/")]).unwrap().is_empty(),
            "its grace period starts again"
        );
        assert_eq!(open(&restored).pending_deletions()[0].due_ms, 120);
    }

    #[test]
    fn intervals_between_checkpoints_survive_a_restart() {
        let room = tempfile::tempdir().unwrap();
        let open = || RetentionState::open(room.path(), Lineage::default()).unwrap();
        let spacings: CheckpointSpacings = [((3, "run/step-#/".to_owned()), 100)].into_iter().collect();
        open().record_spacings(spacings.clone()).unwrap();
        assert_eq!(open().spacings(), spacings);
        fs::write(room.path().join(SPACINGS_NAME), "x").unwrap();
        assert_eq!(open().spacings(), CheckpointSpacings::default());
    }

    #[test]
    fn counts_of_all_actions_and_outcomes_begin_at_zero() {
        let room = tempfile::tempdir().unwrap();
        let standing = RetentionState::open(room.path(), Lineage::default()).unwrap();
        assert_eq!(standing.counts().len(), 21);
        standing.count(ActionKind::Evict, RuleActionOutcome::Done, 3);
        let counted: Vec<_> = standing.counts().into_iter().filter(|count| count.2 > 0).collect();
        assert_eq!(counted, [("evict", "done", 3)]);
    }
}

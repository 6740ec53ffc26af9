//! The decision log: every move, retention and eviction of data, with its reason.
//!
//! The code that makes a decision holds a handle ([`Decisions`]) and records the result as a
//! [`DecisionKind`], a [`DecisionReason`] and an [`DecisionOutcome`]. Invariants: the log is bounded
//! ([`DECISIONS_MAX`] entries, the newest are kept); recording never fails and never waits for a disk. Equal
//! decisions within a short time share one entry with a count, so ten thousand objects of one bucket are one
//! line, and so is a move that fails in every pass. The byte totals by place and reason are computed here and
//! nowhere else, so that metrics and log agree.
//!
//! Entries are appended to a small file once a second, without a sync ([`log_file`]). After a power loss the
//! last entries may be missing and the last line torn; nothing depends on them.

mod log_file;

pub use log_file::{DecisionFileError, FILE_NAMES, check_file};
use mlgw_formats::decision_entry::{DecisionEntry, PlacementDecision};
pub use mlgw_formats::decision_words::{DecisionKind, DecisionOutcome, DecisionPlace, DecisionReason};

use log_file::DecisionFile;
use mlgw_common::Clock;
use mlgw_common::ids::BucketId;
use mlgw_common::limits::DECISIONS_MAX;
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Number of the newest entries that are searched for an equal one.
const MERGE_WINDOW_ENTRIES: usize = 64;
/// Interval between writes of new entries to the file.
const WRITE_EVERY: Duration = Duration::from_secs(1);

/// Selects entries of the log.
#[derive(Clone, Copy, Debug, Default)]
pub struct DecisionFilter {
    /// Maximum number of entries.
    pub limit: usize,
    /// Only entries of this kind.
    pub kind: Option<DecisionKind>,
    /// Only entries about objects of this bucket.
    pub bucket: Option<BucketId>,
}

/// Bytes moved, by source, destination and reason.
pub type MovedBytes = BTreeMap<(DecisionPlace, DecisionPlace, DecisionReason), u64>;

/// The decision log. Clones share one log.
#[derive(Clone)]
pub struct Decisions {
    inner: Arc<DecisionsInner>,
}

struct DecisionsInner {
    clock: Arc<dyn Clock>,
    log: Mutex<DecisionLogState>,
    /// Locked during a write to the file; never locked together with `log`.
    file: Mutex<Option<DecisionFile>>,
}

struct DecisionLogState {
    entries: VecDeque<DecisionEntry>,
    next: u64,
    /// Sequence number of the first entry that may have changed since the last write.
    unwritten_from: u64,
    moved: MovedBytes,
}

impl Decisions {
    /// Creates a log in memory that is not persisted.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self::with(clock, None, VecDeque::new())
    }

    /// Opens the log in `dir` and loads the entries that earlier processes wrote there. Must be called within
    /// a tokio runtime, which writes new entries every second.
    ///
    /// # Errors
    /// When a file was written by a newer version, or cannot be read or written.
    pub fn open(dir: &Path, clock: Arc<dyn Clock>) -> Result<Self, DecisionFileError> {
        let (kept, entries) = DecisionFile::open(dir)?;
        let decisions = Self::with(clock, Some(kept), entries);
        tokio::spawn(write_periodically(Arc::downgrade(&decisions.inner)));
        Ok(decisions)
    }

    fn with(clock: Arc<dyn Clock>, kept: Option<DecisionFile>, entries: VecDeque<DecisionEntry>) -> Self {
        let next = entries.back().map_or(1, |entry| entry.seq + 1);
        let log = DecisionLogState { entries, next, unwritten_from: next, moved: zeroed_moves() };
        Self { inner: Arc::new(DecisionsInner { clock, log: Mutex::new(log), file: Mutex::new(kept) }) }
    }

    /// Records a decision.
    pub fn record(&self, decided: &PlacementDecision<'_>) {
        self.record_because(decided, &"");
    }

    /// Records a decision that was not carried out, with the error.
    pub fn record_because(&self, decided: &PlacementDecision<'_>, error: &dyn std::fmt::Display) {
        let (now, error) = (self.inner.clock.now(), error.to_string());
        let mut log = self.inner.log.lock();
        if decided.bytes > 0 && decided.outcome == DecisionOutcome::Done {
            *log.moved.entry((decided.from, decided.to, decided.cause.reason)).or_default() += decided.bytes;
        }
        let alike = |entry: &&mut DecisionEntry| entry.can_merge(now, decided);
        if let Some(entry) = log.entries.iter_mut().rev().take(MERGE_WINDOW_ENTRIES).find(alike) {
            entry.add(now, decided, &error);
            let seq = entry.seq;
            log.unwritten_from = log.unwritten_from.min(seq);
            return;
        }
        let mut entry = DecisionEntry::begin(log.next, now, decided);
        entry.add(now, decided, &error);
        log.next += 1;
        if log.entries.len() == DECISIONS_MAX {
            log.entries.pop_front();
        }
        log.entries.push_back(entry);
    }

    /// Returns the newest entries that match the filter, newest first.
    #[must_use]
    pub fn list(&self, filter: DecisionFilter) -> Vec<DecisionEntry> {
        let log = self.inner.log.lock();
        let matches = |entry: &&DecisionEntry| {
            filter.kind.is_none_or(|kind| entry.kind == kind)
                && filter.bucket.is_none_or(|bucket| entry.bucket == Some(bucket.0))
        };
        log.entries.iter().rev().filter(matches).take(filter.limit).cloned().collect()
    }

    /// Bytes moved since the start.
    #[must_use]
    pub fn moved_bytes(&self) -> MovedBytes {
        self.inner.log.lock().moved.clone()
    }

    /// Writes all unwritten entries to the file. Blocks the calling thread.
    pub fn write(&self) {
        self.inner.write();
    }
}

/// Counters at zero for the moves that every server makes eventually, so that a metrics system sees the first
/// move as an increase.
fn zeroed_moves() -> MovedBytes {
    use DecisionPlace::{Cold, Copies, Hot, Nowhere, Origin, Upstream};
    let usual = [
        (Hot, Hot, DecisionReason::Compaction),
        (Hot, Cold, DecisionReason::Watermark),
        (Hot, Upstream, DecisionReason::Watermark),
        (Cold, Upstream, DecisionReason::Watermark),
        (Cold, Hot, DecisionReason::Job),
        (Upstream, Hot, DecisionReason::Job),
        (Origin, Copies, DecisionReason::Read),
        (Origin, Copies, DecisionReason::Job),
        (Origin, Hot, DecisionReason::Job),
        (Copies, Nowhere, DecisionReason::Watermark),
        (Copies, Nowhere, DecisionReason::Policy),
        (Hot, Cold, DecisionReason::Rule),
        (Hot, Upstream, DecisionReason::Rule),
        (Cold, Hot, DecisionReason::Rule),
        (Copies, Nowhere, DecisionReason::Rule),
        (Hot, Origin, DecisionReason::WriteBack),
    ];
    usual.into_iter().map(|usual| (usual, 0)).collect()
}

impl DecisionsInner {
    fn write(&self) {
        let mut kept = self.file.lock();
        let Some(kept) = kept.as_mut() else { return };
        let changed: Vec<DecisionEntry> = {
            let mut log = self.log.lock();
            let from = log.unwritten_from;
            log.unwritten_from = log.next;
            let since = log.entries.partition_point(|entry| entry.seq < from);
            log.entries.range(since..).cloned().collect()
        };
        kept.write(&changed);
    }
}

/// Writes new entries every second until all handles are dropped.
async fn write_periodically(decisions: Weak<DecisionsInner>) {
    loop {
        mlgw_common::time::sleep(WRITE_EVERY).await;
        let Some(inner) = decisions.upgrade() else { return };
        if tokio::task::spawn_blocking(move || inner.write()).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests;

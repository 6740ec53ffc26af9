//! The decision log: every move, retention and eviction of data, with its reason.
//!
//! The code that makes a decision holds a handle ([`Decisions`]) and records the result as a [`Kind`], a
//! [`Reason`] and an [`Outcome`]. Invariants: the log is bounded ([`DECISIONS_MAX`] entries, the newest are
//! kept); recording never fails and never waits for a disk. Equal decisions within a short time share one
//! entry with a count, so ten thousand objects of one bucket are one line, and so is a move that fails in
//! every pass. The byte totals by place and reason are computed here and nowhere else, so that metrics and
//! log agree.
//!
//! Entries are appended to a small file once a second, without a sync ([`kept`]). After a power loss the last
//! entries may be missing and the last line torn; nothing depends on them.

mod kept;

pub use kept::{FILE_NAMES, KeepError, check_file};
use mlgw_formats::decision_entry::{Decided, Entry};
pub use mlgw_formats::decision_words::{Kind, Outcome, Place, Reason};

use kept::Kept;
use mlgw_common::Clock;
use mlgw_common::ids::BucketId;
use mlgw_common::limits::DECISIONS_MAX;
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Number of the newest entries that are searched for an equal one.
const ALIKE_LOOKED_AT: usize = 64;
/// Interval between writes of new entries to the file.
const WRITE_EVERY: Duration = Duration::from_secs(1);

/// Selects entries of the log.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wanted {
    /// Maximum number of entries.
    pub limit: usize,
    /// Only entries of this kind.
    pub kind: Option<Kind>,
    /// Only entries about objects of this bucket.
    pub bucket: Option<BucketId>,
}

/// Bytes moved, by source, destination and reason.
pub type Moved = BTreeMap<(Place, Place, Reason), u64>;

/// The decision log. Clones share one log.
#[derive(Clone)]
pub struct Decisions {
    inner: Arc<Inner>,
}

struct Inner {
    clock: Arc<dyn Clock>,
    log: Mutex<Log>,
    /// Locked during a write to the file; never locked together with `log`.
    kept: Mutex<Option<Kept>>,
}

struct Log {
    entries: VecDeque<Entry>,
    next: u64,
    /// Sequence number of the first entry that may have changed since the last write.
    unwritten_from: u64,
    moved: Moved,
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
    pub fn open(dir: &Path, clock: Arc<dyn Clock>) -> Result<Self, KeepError> {
        let (kept, entries) = Kept::open(dir)?;
        let decisions = Self::with(clock, Some(kept), entries);
        tokio::spawn(keep(Arc::downgrade(&decisions.inner)));
        Ok(decisions)
    }

    fn with(clock: Arc<dyn Clock>, kept: Option<Kept>, entries: VecDeque<Entry>) -> Self {
        let next = entries.back().map_or(1, |entry| entry.seq + 1);
        let log = Log { entries, next, unwritten_from: next, moved: usual_moves() };
        Self { inner: Arc::new(Inner { clock, log: Mutex::new(log), kept: Mutex::new(kept) }) }
    }

    /// Records a decision.
    pub fn record(&self, decided: &Decided<'_>) {
        self.record_because(decided, &"");
    }

    /// Records a decision that was not carried out, with the error.
    pub fn record_because(&self, decided: &Decided<'_>, error: &dyn std::fmt::Display) {
        let (now, error) = (self.inner.clock.now(), error.to_string());
        let mut log = self.inner.log.lock();
        if decided.bytes > 0 && decided.outcome == Outcome::Done {
            *log.moved.entry((decided.from, decided.to, decided.why.reason)).or_default() += decided.bytes;
        }
        let alike = |entry: &&mut Entry| entry.is_alike(now, decided);
        if let Some(entry) = log.entries.iter_mut().rev().take(ALIKE_LOOKED_AT).find(alike) {
            entry.add(now, decided, &error);
            let seq = entry.seq;
            log.unwritten_from = log.unwritten_from.min(seq);
            return;
        }
        let mut entry = Entry::begin(log.next, now, decided);
        entry.add(now, decided, &error);
        log.next += 1;
        if log.entries.len() == DECISIONS_MAX {
            log.entries.pop_front();
        }
        log.entries.push_back(entry);
    }

    /// Returns the newest entries that match the filter, newest first.
    #[must_use]
    pub fn list(&self, wanted: Wanted) -> Vec<Entry> {
        let log = self.inner.log.lock();
        let is_wanted = |entry: &&Entry| {
            wanted.kind.is_none_or(|kind| entry.kind == kind)
                && wanted.bucket.is_none_or(|bucket| entry.bucket == Some(bucket.0))
        };
        log.entries.iter().rev().filter(is_wanted).take(wanted.limit).cloned().collect()
    }

    /// Bytes moved since the start.
    #[must_use]
    pub fn moved(&self) -> Moved {
        self.inner.log.lock().moved.clone()
    }

    /// Writes all unwritten entries to the file. Blocks.
    pub fn write(&self) {
        self.inner.write();
    }
}

/// Counters at zero for the moves that every server makes eventually, so that a metrics system sees the first
/// move as an increase.
fn usual_moves() -> Moved {
    use Place::{Cold, Copies, Hot, Nowhere, Origin, Upstream};
    let usual = [
        (Hot, Hot, Reason::Compaction),
        (Hot, Cold, Reason::Watermark),
        (Hot, Upstream, Reason::Watermark),
        (Cold, Upstream, Reason::Watermark),
        (Cold, Hot, Reason::Job),
        (Upstream, Hot, Reason::Job),
        (Origin, Copies, Reason::Read),
        (Origin, Copies, Reason::Job),
        (Origin, Hot, Reason::Job),
        (Copies, Nowhere, Reason::Watermark),
        (Copies, Nowhere, Reason::Policy),
        (Hot, Cold, Reason::Rule),
        (Hot, Upstream, Reason::Rule),
        (Cold, Hot, Reason::Rule),
        (Copies, Nowhere, Reason::Rule),
        (Hot, Origin, Reason::WriteBack),
    ];
    usual.into_iter().map(|usual| (usual, 0)).collect()
}

impl Inner {
    fn write(&self) {
        let mut kept = self.kept.lock();
        let Some(kept) = kept.as_mut() else { return };
        let changed: Vec<Entry> = {
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
async fn keep(decisions: Weak<Inner>) {
    loop {
        tokio::time::sleep(WRITE_EVERY).await;
        let Some(inner) = decisions.upgrade() else { return };
        if tokio::task::spawn_blocking(move || inner.write()).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests;

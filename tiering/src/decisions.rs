//! The log of decisions: what was moved, kept or let go of, and why.
//!
//! Whoever decides has a handle ([`Decisions`]) and records what came of it in the words of [`Kind`], [`Reason`] and [`Outcome`]. Always:
//! the log is bounded ([`DECISIONS_MAX`]), the newest stay; recording never fails and never waits for a disk. What is alike and
//! follows shortly is one entry that counts, so ten thousand objects of one bucket are one line and a move that fails with every round is,
//! too. The sums of bytes by place and reason are taken here and nowhere else, so that metrics and log agree.
//!
//! Entries are appended to a small file once a second, without a sync ([`kept`]). When power fails the last ones may be missing and the
//! last line torn; nothing depends on them.

mod kept;
mod words;

pub use kept::KeepError;
pub use words::{Kind, Outcome, Place, Reason};

use kept::Kept;
use mlgw_common::ids::{BucketId, SegmentId};
use mlgw_common::limits::{DECISION_WHY_BYTES_MAX, DECISIONS_MAX};
use mlgw_common::{Clock, Timestamp};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// What succeeds and is alike within this time is one entry.
const ALIKE_MS: i64 = 1000;
/// The same of what does not succeed, which is tried again and again.
const ALIKE_REFUSED_MS: i64 = 60_000;
/// So many of the last entries are looked at for one that is alike.
const ALIKE_LOOKED_AT: usize = 64;
/// How often entries are written.
const WRITE_EVERY: Duration = Duration::from_secs(1);

/// What a decision is about.
#[derive(Clone, Copy, Debug)]
pub enum What<'a> {
    /// A segment of the hot tier, the cold one or an upstream.
    Segment(SegmentId),
    /// An object of a bucket.
    Object(BucketId, &'a str),
    /// Several objects of a bucket.
    Objects {
        /// The bucket.
        bucket: BucketId,
        /// How many.
        count: u64,
        /// What their keys begin with.
        prefix: &'a str,
    },
}

/// A decision that was made.
#[derive(Clone, Copy, Debug)]
pub struct Decided<'a> {
    /// What was to be done.
    pub kind: Kind,
    /// With what.
    pub what: What<'a>,
    /// Where it was.
    pub from: Place,
    /// Where it was to go.
    pub to: Place,
    /// Its bytes; those that were moved, when it was done in part.
    pub bytes: u64,
    /// Why.
    pub why: Why,
    /// What came of it.
    pub outcome: Outcome,
}

/// A reason; of a job, with its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Why {
    /// The reason.
    pub reason: Reason,
    /// The job's number, of [`Reason::Job`].
    pub job: Option<u64>,
}

impl From<Reason> for Why {
    fn from(reason: Reason) -> Self {
        Self { reason, job: None }
    }
}

impl Why {
    /// A job does it.
    #[must_use]
    pub const fn job(id: u64) -> Self {
        Self { reason: Reason::Job, job: Some(id) }
    }
}

/// An entry of the log: a decision, or several that are alike.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Its number; a later entry has a greater one.
    pub seq: u64,
    /// When it was made, the first of several, in milliseconds since 1970.
    pub at_ms: i64,
    /// When the last of them was.
    pub until_ms: i64,
    /// What was to be done.
    pub kind: Kind,
    /// The segment, when it is about one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub segment: Option<u64>,
    /// The bucket, when it is about objects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bucket: Option<u64>,
    /// The object's key, or the first one's, or what their keys begin with.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub key: String,
    /// How many segments or objects, each as often as it was tried.
    pub count: u64,
    /// Where they were.
    pub from: Place,
    /// Where they were to go.
    pub to: Place,
    /// Bytes in all.
    pub bytes: u64,
    /// Why.
    pub reason: Reason,
    /// The job's number, when it was a job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<u64>,
    /// What came of it.
    pub outcome: Outcome,
    /// What went wrong, in words, the last time.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub error: String,
}

impl Entry {
    fn begin(seq: u64, now: Timestamp, decided: &Decided<'_>) -> Self {
        let (segment, bucket, key) = match decided.what {
            What::Segment(segment) => (Some(segment.0), None, ""),
            What::Object(bucket, key) => (None, Some(bucket.0), key),
            What::Objects { bucket, prefix, .. } => (None, Some(bucket.0), prefix),
        };
        Self {
            seq,
            at_ms: now.as_millis(),
            until_ms: now.as_millis(),
            kind: decided.kind,
            segment,
            bucket,
            key: key.to_owned(),
            count: 0,
            from: decided.from,
            to: decided.to,
            bytes: 0,
            reason: decided.why.reason,
            job: decided.why.job,
            outcome: decided.outcome,
            error: String::new(),
        }
    }

    /// Whether a decision of now is one more of the same.
    fn is_alike(&self, now: Timestamp, decided: &Decided<'_>) -> bool {
        let (segment, bucket) = match decided.what {
            What::Segment(segment) => (Some(segment.0), None),
            What::Object(bucket, _) | What::Objects { bucket, .. } => (None, Some(bucket.0)),
        };
        let within = if self.outcome == Outcome::Done { ALIKE_MS } else { ALIKE_REFUSED_MS };
        (self.kind, self.from, self.to, self.reason, self.job, self.outcome)
            == (decided.kind, decided.from, decided.to, decided.why.reason, decided.why.job, decided.outcome)
            && (self.segment, self.bucket) == (segment, bucket)
            && (0..within).contains(&(now.as_millis() - self.at_ms))
    }

    fn add(&mut self, now: Timestamp, decided: &Decided<'_>, error: &str) {
        self.count += match decided.what {
            What::Objects { count, .. } => count,
            What::Segment(_) | What::Object(..) => 1,
        };
        self.bytes += decided.bytes;
        self.until_ms = now.as_millis();
        if !error.is_empty() {
            let end = error.floor_char_boundary(DECISION_WHY_BYTES_MAX);
            error[..end].clone_into(&mut self.error);
        }
    }
}

/// Which entries are asked for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wanted {
    /// At most so many.
    pub limit: usize,
    /// Only of this kind.
    pub kind: Option<Kind>,
    /// Only about objects of this bucket.
    pub bucket: Option<BucketId>,
}

/// Bytes that were moved, by where from, where to and why.
pub type Moved = BTreeMap<(Place, Place, Reason), u64>;

/// The log of decisions. Clones are the same.
#[derive(Clone)]
pub struct Decisions {
    inner: Arc<Inner>,
}

struct Inner {
    clock: Arc<dyn Clock>,
    log: Mutex<Log>,
    /// Held while it is written; never with the log.
    kept: Mutex<Option<Kept>>,
}

struct Log {
    entries: VecDeque<Entry>,
    next: u64,
    /// The entries that changed since they were written are not before this number.
    unwritten_from: u64,
    moved: Moved,
}

impl Decisions {
    /// A log that ends with the process.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self::with(clock, None, VecDeque::new())
    }

    /// The log that is kept in `dir`, with what earlier processes kept there. Called within a tokio runtime, it is written every second.
    ///
    /// # Errors
    /// When what is there was written by a newer version, or cannot be read or written.
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

    /// Records a decision that was not carried out, with what went wrong.
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

    /// The newest entries that are wanted, the newest first.
    #[must_use]
    pub fn list(&self, wanted: Wanted) -> Vec<Entry> {
        let log = self.inner.log.lock();
        let is_wanted = |entry: &&Entry| {
            wanted.kind.is_none_or(|kind| entry.kind == kind)
                && wanted.bucket.is_none_or(|bucket| entry.bucket == Some(bucket.0))
        };
        log.entries.iter().rev().filter(is_wanted).take(wanted.limit).cloned().collect()
    }

    /// Bytes that were moved since the start.
    #[must_use]
    pub fn moved(&self) -> Moved {
        self.inner.log.lock().moved.clone()
    }

    /// Writes what is not written yet. Blocks.
    pub fn write(&self) {
        self.inner.write();
    }
}

/// What a server does sooner or later is counted from nothing on, so that the first time is seen as a change.
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

/// Writes now and then until nobody has the log any more.
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

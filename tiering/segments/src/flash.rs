//! What is written to the hot tier's flash, and how much of it the server may write by itself: flash wears
//! out by being written.
//!
//! Everything that is written there is counted by its cause. With a budget of so many bytes a day, what the
//! server writes by itself goes on while something is left of it: clean copies, segments that come up,
//! compaction. What clients write is taken off the same budget and never refused. What is not used is saved
//! up for an hour, no longer. Always: over any time the server by itself writes no more than the budget of
//! that time and an hour, and what was under way when it was used up ([`bucket`]).
//!
//! What is left is in a small file, replaced whole once a minute and at the end, so that a restart does not
//! give the day anew. When power fails, a minute of writes is forgotten.

mod bucket;

use crate::hot::state_file;
use bucket::Bucket;
use mlgw_common::Clock;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How often the file is replaced, while anything is written.
const KEEP_EVERY: Duration = Duration::from_mins(1);
/// The format of the file.
pub(crate) const FORMAT: u32 = 1;

/// Why something is written to flash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Cause {
    /// Clients write it, or a sync imports it.
    Client,
    /// Clean copies of what bound buckets front, also when they are kept on.
    Copies,
    /// Segments that come up from another tier.
    Promote,
    /// What lives in segments that are emptied.
    Compaction,
}

impl Cause {
    /// All of them, in their order.
    pub const ALL: [Self; 4] = [Self::Client, Self::Copies, Self::Promote, Self::Compaction];

    /// Its name in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Copies => "copies",
            Self::Promote => "promote",
            Self::Compaction => "compaction",
        }
    }
}

/// The flash of a node. Clones are the same.
#[derive(Clone)]
pub struct Flash {
    inner: Arc<Inner>,
}

struct Inner {
    clock: Arc<dyn Clock>,
    /// Whether there is a budget: who writes asks that first.
    is_bound: AtomicBool,
    bucket: Mutex<Bucket>,
    written: [AtomicU64; Cause::ALL.len()],
    path: Option<PathBuf>,
    /// Something changed since the file was replaced.
    is_changed: AtomicBool,
}

/// The file.
#[derive(Serialize, Deserialize)]
struct Content {
    format: u32,
    /// Bytes that were left; less than none when more was written.
    left_bytes: i64,
    /// When, in milliseconds since 1970.
    at_ms: i64,
}

impl Flash {
    /// Flash without a budget.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self::with(clock, Bucket::new(0), None)
    }

    /// Flash with a budget of so many bytes a day (0: none), of which the file at `path` says what is left.
    /// Called within a tokio runtime, it is replaced every minute.
    ///
    /// # Errors
    /// When the file cannot be read, or a newer version wrote it.
    pub fn open(path: PathBuf, bytes_per_day: u64, clock: Arc<dyn Clock>) -> io::Result<Self> {
        let kept: Option<Content> = state_file::read(&path, FORMAT)?;
        let mut bucket = Bucket::new(bytes_per_day);
        if let Some(kept) = kept {
            bucket.restore(kept.left_bytes, kept.at_ms);
        }
        let flash = Self::with(clock, bucket, Some(path));
        tokio::spawn(keep(Arc::downgrade(&flash.inner)));
        Ok(flash)
    }

    fn with(clock: Arc<dyn Clock>, bucket: Bucket, path: Option<PathBuf>) -> Self {
        let inner = Inner {
            clock,
            is_bound: AtomicBool::new(bucket.is_bound()),
            bucket: Mutex::new(bucket),
            written: Default::default(),
            path,
            is_changed: AtomicBool::new(false),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Sets another budget; what was used of the old one stays used.
    pub fn set_budget(&self, bytes_per_day: u64) {
        let mut bucket = self.inner.bucket.lock();
        bucket.set(self.inner.now_ms(), bytes_per_day);
        self.inner.is_bound.store(bucket.is_bound(), Relaxed);
    }

    /// Whether the server may begin to write something by itself now.
    #[must_use]
    pub fn allows(&self) -> bool {
        !self.inner.is_bound.load(Relaxed) || self.inner.bucket.lock().left(self.inner.now_ms()) > 0
    }

    /// So many bytes were written.
    pub fn wrote(&self, cause: Cause, bytes: u64) {
        self.inner.written[cause as usize].fetch_add(bytes, Relaxed);
        if self.inner.is_bound.load(Relaxed) {
            let now_ms = self.inner.now_ms();
            self.inner.bucket.lock().take(now_ms, bytes, cause != Cause::Client);
            self.inner.is_changed.store(true, Relaxed);
        }
    }

    /// Bytes that were written since the start, by cause.
    #[must_use]
    pub fn written(&self) -> [(Cause, u64); Cause::ALL.len()] {
        Cause::ALL.map(|cause| (cause, self.inner.written[cause as usize].load(Relaxed)))
    }

    /// Bytes that are left now; less than none when more was written. Nothing without a budget.
    #[must_use]
    pub fn left_bytes(&self) -> Option<i64> {
        let bucket = self.inner.bucket.lock();
        bucket.is_bound().then(|| bucket.left(self.inner.now_ms()))
    }

    /// Replaces the file, if anything was written since. Blocks.
    pub fn keep(&self) {
        self.inner.keep();
    }
}

impl Inner {
    fn now_ms(&self) -> i64 {
        self.clock.now().as_millis()
    }

    fn keep(&self) {
        let Some(path) = self.path.as_ref().filter(|_| self.is_changed.swap(false, Relaxed)) else { return };
        let at_ms = self.now_ms();
        let content = Content { format: FORMAT, left_bytes: self.bucket.lock().left(at_ms), at_ms };
        if let Err(error) = state_file::replace(path, &content) {
            tracing::warn!(path = %path.display(), %error, "what is left of the flash budget is not kept");
        }
    }
}

/// Replaces the file now and then until nobody has the flash any more.
async fn keep(flash: Weak<Inner>) {
    loop {
        tokio::time::sleep(KEEP_EVERY).await;
        let Some(inner) = flash.upgrade() else { return };
        if tokio::task::spawn_blocking(move || inner.keep()).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Cause, Flash};
    use mlgw_common::Timestamp;
    use mlgw_common::clock::ManualClock;
    use mlgw_common::limits::MIB;
    use std::sync::Arc;

    const DAY: u64 = 24 * MIB;
    const HOUR_MS: i64 = 3_600_000;

    #[tokio::test]
    async fn a_restart_finds_what_was_used_and_time_gives_it_back() {
        let dir = tempfile::tempdir().unwrap();
        let clock = Arc::new(ManualClock::default());
        clock.set(Timestamp(1_000_000));
        let open = |bytes| Flash::open(dir.path().join("flash.json"), bytes, clock.clone()).unwrap();
        let flash = open(DAY);
        assert!(flash.allows() && flash.left_bytes() == Some(MIB as i64), "an hour's worth");
        flash.wrote(Cause::Copies, 2 * MIB);
        assert!(!flash.allows());
        assert_eq!(flash.written().map(|(_, bytes)| bytes), [0, 2 * MIB, 0, 0]);
        flash.keep();
        let flash = open(DAY);
        assert_eq!((flash.allows(), flash.left_bytes()), (false, Some(-(MIB as i64))), "it is not forgotten");
        clock.set(Timestamp(1_000_000 + HOUR_MS + 1000));
        assert!(flash.allows(), "an hour later it is paid");
        flash.set_budget(0);
        flash.wrote(Cause::Compaction, 1 << 40);
        assert_eq!((flash.allows(), flash.left_bytes()), (true, None));
        std::fs::write(dir.path().join("flash.json"), b"{\"format\":1,\"left").unwrap();
        assert_eq!(open(DAY).left_bytes(), Some(MIB as i64), "a torn file counts as none");
        std::fs::write(dir.path().join("flash.json"), b"{\"format\":2}").unwrap();
        assert!(Flash::open(dir.path().join("flash.json"), DAY, clock.clone()).is_err());
    }

    #[test]
    fn without_a_budget_everything_is_counted_and_nothing_refused() {
        let flash = Flash::new(Arc::new(ManualClock::default()));
        Cause::ALL.into_iter().for_each(|cause| flash.wrote(cause, 1 << 50));
        assert!(flash.allows() && flash.written().iter().all(|(_, bytes)| *bytes == 1 << 50));
    }
}

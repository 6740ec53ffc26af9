//! Accounting of writes to the hot tier's flash and a daily budget for the server's own writes: writes wear
//! out flash.
//!
//! All writes are counted by cause. With a budget in bytes per day, the server's own writes (clean copies,
//! promotion, compaction) start only while budget remains. Client writes are charged to the same budget and
//! never refused. Unused budget accumulates for one hour at most. Invariant: over any time the server's own
//! writes do not exceed the budget of that time plus an hour, plus the writes that were in progress when the
//! budget ran out ([`bucket`]).
//!
//! The remaining budget is stored in a small file, which is replaced atomically once a minute and at
//! shutdown, so that a restart does not grant the day's budget again. A power loss forgets up to one minute
//! of writes.

mod bucket;

use crate::hot::state_file;
use bucket::FlashTokenBucket;
use mlgw_common::Clock;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Interval between replacements of the file, while anything is written.
const SAVE_INTERVAL: Duration = Duration::from_mins(1);
/// Format version of the file.
pub(crate) const FORMAT: u32 = 1;

/// Cause of a write to flash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FlashWriteCause {
    /// A client's write, the import of a sync, or a copy of a segment that another node owns: the bytes of
    /// its clients, which no budget delays.
    Client,
    /// Clean copies of objects of remote-backed buckets, including copies that are rewritten to be retained.
    Copies,
    /// Segments promoted from another tier.
    Promote,
    /// Live records moved out of segments that are being compacted.
    Compaction,
}

impl FlashWriteCause {
    /// All causes, in order.
    pub const ALL: [Self; 4] = [Self::Client, Self::Copies, Self::Promote, Self::Compaction];

    /// Name of the cause in metrics.
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

/// The flash of a node. Clones share one account.
#[derive(Clone)]
pub struct FlashBudget {
    inner: Arc<FlashBudgetInner>,
}

struct FlashBudgetInner {
    clock: Arc<dyn Clock>,
    /// True if there is a budget; read without the lock on every write.
    is_limited: AtomicBool,
    bucket: Mutex<FlashTokenBucket>,
    written: [AtomicU64; FlashWriteCause::ALL.len()],
    path: Option<PathBuf>,
    /// True if the budget changed since the file was last replaced.
    is_changed: AtomicBool,
}

/// Content of the file.
#[derive(Serialize, Deserialize)]
struct Content {
    format: u32,
    /// Bytes that remained; negative after overspending.
    left_bytes: i64,
    /// Time of that, in milliseconds since 1970.
    at_ms: i64,
}

impl FlashBudget {
    /// Creates an account without a budget.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self::with(clock, FlashTokenBucket::new(0), None)
    }

    /// Creates an account with a budget of `bytes_per_day` (0: unlimited) and loads the remainder from the
    /// file at `path`. Must be called within a tokio runtime, which replaces the file every minute.
    ///
    /// # Errors
    /// When the file cannot be read or was written by a newer version.
    pub fn open(path: PathBuf, bytes_per_day: u64, clock: Arc<dyn Clock>) -> io::Result<Self> {
        let kept: Option<Content> = state_file::read(&path, FORMAT)?;
        let mut bucket = FlashTokenBucket::new(bytes_per_day);
        if let Some(kept) = kept {
            bucket.restore(kept.left_bytes, kept.at_ms);
        }
        let flash = Self::with(clock, bucket, Some(path));
        tokio::spawn(save_periodically(Arc::downgrade(&flash.inner)));
        Ok(flash)
    }

    fn with(clock: Arc<dyn Clock>, bucket: FlashTokenBucket, path: Option<PathBuf>) -> Self {
        let inner = FlashBudgetInner {
            clock,
            is_limited: AtomicBool::new(bucket.is_limited()),
            bucket: Mutex::new(bucket),
            written: Default::default(),
            path,
            is_changed: AtomicBool::new(false),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Sets another budget; a debt of the old budget remains.
    pub fn set_budget(&self, bytes_per_day: u64) {
        let mut bucket = self.inner.bucket.lock();
        bucket.set(self.inner.now_ms(), bytes_per_day);
        self.inner.is_limited.store(bucket.is_limited(), Relaxed);
    }

    /// True if the server may start a write of its own now.
    #[must_use]
    pub fn can_start_own_write(&self) -> bool {
        !self.inner.is_limited.load(Relaxed) || self.inner.bucket.lock().remaining(self.inner.now_ms()) > 0
    }

    /// Records a write of `bytes`.
    pub fn record_write(&self, cause: FlashWriteCause, bytes: u64) {
        self.inner.written[cause as usize].fetch_add(bytes, Relaxed);
        if self.inner.is_limited.load(Relaxed) {
            let now_ms = self.inner.now_ms();
            let mut bucket = self.inner.bucket.lock();
            match cause {
                FlashWriteCause::Client => bucket.charge_client(now_ms, bytes),
                FlashWriteCause::Copies | FlashWriteCause::Promote | FlashWriteCause::Compaction => {
                    bucket.charge_own(now_ms, bytes);
                }
            }
            drop(bucket);
            self.inner.is_changed.store(true, Relaxed);
        }
    }

    /// Bytes written since the start, by cause.
    #[must_use]
    pub fn written(&self) -> [(FlashWriteCause, u64); FlashWriteCause::ALL.len()] {
        FlashWriteCause::ALL.map(|cause| (cause, self.inner.written[cause as usize].load(Relaxed)))
    }

    /// Remaining bytes now, negative after overspending; `None` without a budget.
    #[must_use]
    pub fn remaining_bytes(&self) -> Option<i64> {
        let bucket = self.inner.bucket.lock();
        bucket.is_limited().then(|| bucket.remaining(self.inner.now_ms()))
    }

    /// Replaces the file if anything was written since the last time. Blocks the calling thread.
    pub fn save(&self) {
        self.inner.keep();
    }
}

impl FlashBudgetInner {
    fn now_ms(&self) -> i64 {
        self.clock.now().as_millis()
    }

    fn keep(&self) {
        let Some(path) = self.path.as_ref().filter(|_| self.is_changed.swap(false, Relaxed)) else { return };
        let at_ms = self.now_ms();
        let content = Content { format: FORMAT, left_bytes: self.bucket.lock().remaining(at_ms), at_ms };
        if let Err(error) = state_file::replace(path, &content) {
            tracing::warn!(path = %path.display(), %error, "failed to store the remaining flash budget");
        }
    }
}

/// Replaces the file every minute until all handles are dropped.
async fn save_periodically(flash: Weak<FlashBudgetInner>) {
    loop {
        mlgw_common::time::sleep(SAVE_INTERVAL).await;
        let Some(inner) = flash.upgrade() else { return };
        if tokio::task::spawn_blocking(move || inner.keep()).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{FlashBudget, FlashWriteCause};
    use mlgw_common::Timestamp;
    use mlgw_common::clock::ManualClock;
    use mlgw_common::limits::MIB;
    use std::sync::Arc;

    const DAY: u64 = 24 * MIB;
    const HOUR_MS: i64 = 3_600_000;

    #[tokio::test]
    async fn used_budget_survives_a_restart_and_refills_with_time() {
        let dir = tempfile::tempdir().unwrap();
        let clock = Arc::new(ManualClock::default());
        clock.set(Timestamp(1_000_000));
        let open = |bytes| FlashBudget::open(dir.path().join("flash.json"), bytes, clock.clone()).unwrap();
        let flash = open(DAY);
        assert!(
            flash.can_start_own_write() && flash.remaining_bytes() == Some(MIB as i64),
            "an hour's worth"
        );
        flash.record_write(FlashWriteCause::Copies, 2 * MIB);
        assert!(!flash.can_start_own_write());
        assert_eq!(flash.written().map(|(_, bytes)| bytes), [0, 2 * MIB, 0, 0]);
        flash.save();
        let flash = open(DAY);
        assert_eq!(
            (flash.can_start_own_write(), flash.remaining_bytes()),
            (false, Some(-(MIB as i64))),
            "it is still stored"
        );
        clock.set(Timestamp(1_000_000 + HOUR_MS + 1000));
        assert!(flash.can_start_own_write(), "an hour later it is paid");
        flash.set_budget(0);
        flash.record_write(FlashWriteCause::Compaction, 1 << 40);
        assert_eq!((flash.can_start_own_write(), flash.remaining_bytes()), (true, None));
        std::fs::write(dir.path().join("flash.json"), b"{\"format\":1,\"left").unwrap();
        assert_eq!(open(DAY).remaining_bytes(), Some(MIB as i64), "a torn file counts as none");
        std::fs::write(dir.path().join("flash.json"), b"{\"format\":2}").unwrap();
        assert!(FlashBudget::open(dir.path().join("flash.json"), DAY, clock.clone()).is_err());
    }

    #[test]
    fn without_a_budget_writes_are_counted_and_never_refused() {
        let flash = FlashBudget::new(Arc::new(ManualClock::default()));
        FlashWriteCause::ALL.into_iter().for_each(|cause| flash.record_write(cause, 1 << 50));
        assert!(flash.can_start_own_write() && flash.written().iter().all(|(_, bytes)| *bytes == 1 << 50));
    }
}

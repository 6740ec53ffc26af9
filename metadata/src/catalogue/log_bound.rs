//! Bound on the length of the log. A proposer wakes the purge job once the log exceeds its bound, and waits
//! for the purge once the log is half as long again.
//!
//! The bound is wide while another member needs the older entries: it receives a snapshot, or it answers and
//! lacks so much that a purge might leave it only a snapshot. The bound becomes narrow when a purge has made
//! the log so short. Until then the wide one is that of the proposers.
//!
//! Without the wait, the log would grow by all that writers append while a purge flushes the state, which is
//! unbounded on a slow disk. No proposer waits before the purge job runs, because opening proposes too, nor
//! after the job has ended.

use super::options::ProposeError;
use crate::raft::remote::APPEND_MAX;
use mlgw_common::time::timeout;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::Notify;

/// Longest time that a command waits for a purge. Clients wait longer.
const WAIT: Duration = Duration::from_secs(10);

// A purge of entries that a leader is sending waits for that call.
const _: () = assert!(WAIT.as_millis() > APPEND_MAX.as_millis());

/// Multiple of the bound that the log may reach while another member needs its older entries.
const WIDE_FACTOR: u64 = 4;

/// Bound on the length of the log.
#[derive(Debug)]
pub(super) struct LogBound {
    /// Bytes beyond which the log is purged while the bound is narrow.
    narrow_bytes: u64,
    is_wide: AtomicBool,
    /// True while the purge job runs.
    is_purging: AtomicBool,
    exceeded: Notify,
    purged: Notify,
}

impl LogBound {
    pub(super) fn new(narrow_bytes: u64) -> Self {
        Self {
            narrow_bytes,
            is_wide: AtomicBool::new(false),
            is_purging: AtomicBool::new(false),
            exceeded: Notify::new(),
            purged: Notify::new(),
        }
    }

    /// Bytes beyond which the log is purged while the bound is narrow.
    pub(super) fn narrow_bytes(&self) -> u64 {
        self.narrow_bytes
    }

    /// Bytes beyond which the log is purged while the bound is wide.
    pub(super) fn wide_bytes(&self) -> u64 {
        self.narrow_bytes.saturating_mul(WIDE_FACTOR)
    }

    /// Bytes beyond which the log is purged.
    pub(super) fn bytes_max(&self) -> u64 {
        if self.is_wide.load(Ordering::Relaxed) { self.wide_bytes() } else { self.narrow_bytes }
    }

    /// Records whether another member needs the older entries of the log, which has `bytes`. Returns true if
    /// a purge is due.
    ///
    /// The bound becomes wide at once, and proposers that wait for a purge continue. It becomes narrow once
    /// the log is so short, because proposers would have to wait for the purge of a longer one.
    pub(super) fn update(&self, bytes: u64, is_old_log_needed: bool) -> bool {
        if is_old_log_needed {
            if !self.is_wide.swap(true, Ordering::Relaxed) {
                self.purged.notify_waiters();
            }
            return bytes > self.bytes_max();
        }
        let is_long = bytes > self.narrow_bytes;
        if !is_long {
            self.is_wide.store(false, Ordering::Relaxed);
        }
        is_long
    }

    fn is_full(&self, bytes: u64) -> bool {
        let half_longer = self.bytes_max().saturating_add(self.narrow_bytes / 2);
        self.is_purging.load(Ordering::Relaxed) && bytes > half_longer
    }

    /// Admits a command; call this before proposing it. `bytes` returns the current length of the log. Waits
    /// for a purge if the log is too long.
    ///
    /// # Errors
    /// [`ProposeError::Overloaded`] if the wait takes too long.
    pub(super) async fn admit(&self, bytes: impl Fn() -> u64) -> Result<(), ProposeError> {
        if bytes() <= self.bytes_max() {
            return Ok(());
        }
        self.exceeded.notify_one();
        let waited = timeout(WAIT, async {
            while self.is_full(bytes()) {
                let purged = self.purged.notified();
                tokio::pin!(purged);
                // Registers the waiter before the check, so that a purge after the check still wakes it.
                purged.as_mut().enable();
                if self.is_full(bytes()) {
                    purged.await;
                }
            }
        });
        waited.await.map_err(|_| ProposeError::Overloaded)
    }

    /// Records the start of the purge job.
    pub(super) fn purging_began(&self) {
        self.is_purging.store(true, Ordering::Relaxed);
    }

    /// Records the end of the purge job: no proposer waits from now on.
    pub(super) fn purging_ended(&self) {
        self.is_purging.store(false, Ordering::Relaxed);
        self.purged.notify_waiters();
    }

    /// Waits until the log exceeds its bound.
    pub(super) async fn wait_exceeded(&self) {
        self.exceeded.notified().await;
    }

    /// Wakes proposers after a purge.
    pub(super) fn notify_purged(&self) {
        self.purged.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::LogBound;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

    #[tokio::test]
    async fn proposers_wait_while_the_log_exceeds_its_bound_by_half() {
        let (bound, length) = (Arc::new(LogBound::new(100)), Arc::new(AtomicU64::new(150)));
        let admit = |of: &Arc<LogBound>| {
            let (bound, length) = (of.clone(), length.clone());
            tokio::spawn(async move { bound.admit(|| length.load(SeqCst)).await })
        };
        bound.purging_began();
        assert_eq!(admit(&bound).await.unwrap(), Ok(()));
        bound.wait_exceeded().await;
        length.store(151, SeqCst);
        let waits = admit(&bound);
        tokio::task::yield_now().await;
        bound.notify_purged();
        tokio::task::yield_now().await;
        assert!(!waits.is_finished(), "the log is as long as before");
        length.store(90, SeqCst);
        bound.notify_purged();
        assert_eq!(waits.await.unwrap(), Ok(()));
        length.store(1000, SeqCst);
        let waits = admit(&bound);
        tokio::task::yield_now().await;
        bound.purging_ended();
        assert_eq!(waits.await.unwrap(), Ok(()), "the log is no longer purged");
    }

    #[tokio::test]
    async fn a_wide_bound_is_four_times_the_narrow_one() {
        let bound = LogBound::new(100);
        bound.purging_began();
        assert!(bound.update(101, false));
        assert!(!bound.update(400, true));
        assert_eq!(bound.admit(|| 450).await, Ok(()));
        assert!(bound.is_full(451), "not without end");
        assert!(bound.update(401, true));
    }

    #[tokio::test]
    async fn the_bound_becomes_narrow_with_a_purge() {
        let bound = LogBound::new(100);
        bound.purging_began();
        assert!(!bound.update(300, true));
        assert!(bound.update(300, false), "no member needs the older entries");
        assert_eq!(bound.admit(|| 300).await, Ok(()), "proposers do not wait for that purge");
        assert!(!bound.update(100, false));
        assert!(bound.is_full(151));
    }

    #[tokio::test]
    async fn proposers_continue_when_the_bound_becomes_wider() {
        let bound = Arc::new(LogBound::new(100));
        bound.purging_began();
        let waiting = bound.clone();
        let waits = tokio::spawn(async move { waiting.admit(|| 200).await });
        tokio::task::yield_now().await;
        assert!(!waits.is_finished());
        assert!(!bound.update(200, true));
        tokio::task::yield_now().await;
        assert!(waits.is_finished());
    }

    #[tokio::test]
    async fn proposers_do_not_wait_before_the_purge_job_runs() {
        let bound = LogBound::new(100);
        assert_eq!(bound.admit(|| 1000).await, Ok(()));
    }
}

//! The bound of the log's length: whoever proposes wakes the job that purges as soon as the log is long, and
//! waits for it when the log is half as long again.
//!
//! Without waiting, the log would grow by whatever writers append while a purge flushes the state; a slow
//! disk has no bound for that. Nobody waits before the job runs, as opening proposes too, nor once it has
//! ended.

use super::options::ProposeError;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::timeout;

/// How long a command waits for a purge: what a client waits anyway before it tries again.
const WAIT: Duration = Duration::from_secs(5);

/// How long the log may be.
#[derive(Debug)]
pub(super) struct LogBound {
    /// Bytes beyond which it is to be purged.
    bytes_max: u64,
    /// Whether somebody purges it.
    kept: AtomicBool,
    long: Notify,
    purged: Notify,
}

impl LogBound {
    pub(super) fn new(bytes_max: u64) -> Self {
        Self { bytes_max, kept: AtomicBool::new(false), long: Notify::new(), purged: Notify::new() }
    }

    /// Bytes beyond which the log is to be purged.
    pub(super) fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    fn is_full(&self, bytes: u64) -> bool {
        self.kept.load(Ordering::Relaxed) && bytes > self.bytes_max.saturating_add(self.bytes_max / 2)
    }

    /// To be called before a command is proposed; `bytes` says how long the log is. Waits for a purge when it
    /// is too long.
    ///
    /// # Errors
    /// [`ProposeError::Overloaded`] when that takes too long.
    pub(super) async fn admit(&self, bytes: impl Fn() -> u64) -> Result<(), ProposeError> {
        if bytes() <= self.bytes_max {
            return Ok(());
        }
        self.long.notify_one();
        let waited = timeout(WAIT, async {
            while self.is_full(bytes()) {
                let purged = self.purged.notified();
                tokio::pin!(purged);
                // Listening from here on, so that a purge after the look is heard.
                purged.as_mut().enable();
                if self.is_full(bytes()) {
                    purged.await;
                }
            }
        });
        waited.await.map_err(|_| ProposeError::Overloaded)
    }

    /// From now on somebody purges the log, or no longer.
    pub(super) fn keep(&self, kept: bool) {
        self.kept.store(kept, Ordering::Relaxed);
        self.purged.notify_waiters();
    }

    /// Waits until the log is long.
    pub(super) async fn long(&self) {
        self.long.notified().await;
    }

    /// The log was purged.
    pub(super) fn purged(&self) {
        self.purged.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::LogBound;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

    #[tokio::test]
    async fn who_proposes_waits_while_the_log_is_half_as_long_again() {
        let (bound, length) = (Arc::new(LogBound::new(100)), Arc::new(AtomicU64::new(150)));
        let admit = |of: &Arc<LogBound>| {
            let (bound, length) = (of.clone(), length.clone());
            tokio::spawn(async move { bound.admit(|| length.load(SeqCst)).await })
        };
        bound.keep(true);
        assert_eq!(admit(&bound).await.unwrap(), Ok(()));
        bound.long().await;
        length.store(151, SeqCst);
        let waits = admit(&bound);
        tokio::task::yield_now().await;
        bound.purged();
        tokio::task::yield_now().await;
        assert!(!waits.is_finished(), "it is as long as before");
        length.store(90, SeqCst);
        bound.purged();
        assert_eq!(waits.await.unwrap(), Ok(()));
        length.store(1000, SeqCst);
        let waits = admit(&bound);
        tokio::task::yield_now().await;
        bound.keep(false);
        assert_eq!(waits.await.unwrap(), Ok(()), "nobody purges it any more");
    }

    #[tokio::test]
    async fn nobody_waits_before_somebody_purges() {
        let bound = LogBound::new(100);
        assert_eq!(bound.admit(|| 1000).await, Ok(()));
    }
}

//! Finds a disk whose syncs take too long: also one that does not end, and those that ended recently.
//!
//! A node with such a disk leads no group and should get no requests while other nodes can serve them. In
//! memory; a start begins without a slow sync.

use crate::limits::{SYNC_CALM_MS, SYNC_SLOW_MS};
use crate::time::Instant;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// A sync that ends later is slow.
const SLOW: Duration = Duration::from_millis(SYNC_SLOW_MS);

/// Time without a slow sync after which a disk is not slow any more.
const CALM: Duration = Duration::from_millis(SYNC_CALM_MS);

/// The syncs of a disk.
#[derive(Debug, Default)]
pub struct SyncWatch(Mutex<WatchedSyncs>);

#[derive(Debug, Default)]
struct WatchedSyncs {
    /// Begins of the syncs in progress, one for each thread that syncs.
    begun: Vec<Instant>,
    /// End of the last slow sync.
    slow_end: Option<Instant>,
}

impl SyncWatch {
    /// Runs a sync.
    pub fn watch<T>(&self, sync: impl FnOnce() -> T) -> T {
        let _guard = SyncGuard::begin(self);
        sync()
    }

    /// True if a sync takes longer than a second, or has done so recently.
    #[must_use]
    pub fn is_slow(&self) -> bool {
        self.with(|syncs| {
            let is_late = syncs.begun.iter().any(|begun| begun.elapsed() > SLOW);
            is_late || syncs.slow_end.is_some_and(|end| end.elapsed() < CALM)
        })
    }

    fn with<T>(&self, act: impl FnOnce(&mut WatchedSyncs) -> T) -> T {
        // Nothing panics while the lock is held, so what it guards is whole.
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A sync in progress.
struct SyncGuard<'a> {
    watch: &'a SyncWatch,
    begun: Instant,
}

impl<'a> SyncGuard<'a> {
    fn begin(watch: &'a SyncWatch) -> Self {
        let begun = Instant::now();
        watch.with(|syncs| syncs.begun.push(begun));
        Self { watch, begun }
    }
}

impl Drop for SyncGuard<'_> {
    fn drop(&mut self) {
        let (begun, now) = (self.begun, Instant::now());
        self.watch.with(|syncs| {
            if let Some(at) = syncs.begun.iter().position(|other| *other == begun) {
                syncs.begun.swap_remove(at);
            }
            if now.duration_since(begun) > SLOW {
                syncs.slow_end = Some(now);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::{CALM, SLOW, SyncGuard, SyncWatch};
    use std::time::Duration;
    use tokio::time::advance;

    const STEP: Duration = Duration::from_millis(1);

    #[tokio::test(start_paused = true)]
    async fn a_sync_that_does_not_end_is_slow() {
        let watch = SyncWatch::default();
        let (first, second) = (SyncGuard::begin(&watch), SyncGuard::begin(&watch));
        advance(SLOW).await;
        assert!(!watch.is_slow());
        drop(first);
        advance(STEP).await;
        assert!(watch.is_slow(), "the other one is in progress");
        drop(second);
        assert!(watch.is_slow());
    }

    #[tokio::test(start_paused = true)]
    async fn a_disk_is_slow_until_it_was_fast_for_a_while() {
        let watch = SyncWatch::default();
        let slow = SyncGuard::begin(&watch);
        advance(SLOW + STEP).await;
        drop(slow);
        advance(CALM - STEP).await;
        assert_eq!(watch.watch(|| 7), 7);
        assert!(watch.is_slow(), "one fast sync is not enough");
        advance(STEP).await;
        assert!(!watch.is_slow());
    }

    #[test]
    fn a_sync_that_panics_is_no_sync_in_progress() {
        let watch = SyncWatch::default();
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| watch.watch(|| panic!("no"))));
        assert!(caught.is_err() && watch.with(|syncs| syncs.begun.is_empty()));
    }
}

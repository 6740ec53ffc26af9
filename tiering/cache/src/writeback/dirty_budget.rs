//! Budget of dirty data: the bytes and writes that are not at their origins.
//!
//! A writer acquires a share before its body is read, and waits for it in order of arrival, so writers are as
//! fast as their origins. The share is released when the origin has the write. Dirty writes found by a start
//! take shares as well, and may exceed the budget.

use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, TryAcquireError};

/// Unit in which bytes are counted, because the numbers of a semaphore have 32 bits.
const PAGE_BYTES: u64 = 4096;
/// Maximum number of dirty writes: each takes a few hundred bytes of memory, a little more than 1 KiB for the
/// longest keys.
const WRITES_MAX: usize = 1 << 17;
/// Maximum wait of a writer. Clients give up after some tens of seconds.
const PATIENCE: Duration = Duration::from_secs(10);

/// Share of the dirty budget.
#[derive(Debug)]
pub struct DirtyShare {
    _pages: Option<OwnedSemaphorePermit>,
    _write: Option<OwnedSemaphorePermit>,
}

/// Budget of dirty bytes and writes.
#[derive(Debug)]
pub(super) struct DirtyBudget {
    bytes_max: u64,
    patience: Duration,
    pages: Arc<Semaphore>,
    writes: Arc<Semaphore>,
}

fn pages_of(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(PAGE_BYTES)).unwrap_or(u32::MAX)
}

impl DirtyBudget {
    /// Creates a budget of `bytes_max` bytes.
    pub(super) fn new(bytes_max: u64) -> Self {
        let pages = Arc::new(Semaphore::new(pages_of(bytes_max) as usize));
        Self { bytes_max, patience: PATIENCE, pages, writes: Arc::new(Semaphore::new(WRITES_MAX)) }
    }

    /// True if a write of this size can ever be accepted.
    pub(super) fn fits(&self, bytes: u64) -> bool {
        bytes <= self.bytes_max && pages_of(bytes) < u32::MAX
    }

    /// Waits for the share of a write of `bytes` bytes; `None` after a timeout. A write that exceeds the
    /// budget takes all of it, alone, because its bytes are already here.
    pub(super) async fn acquire(&self, bytes: u64) -> Option<DirtyShare> {
        let taken = mlgw_common::time::timeout(self.patience, async {
            let write = self.writes.clone().acquire_owned().await.ok()?;
            let pages = match pages_of(bytes.min(self.bytes_max)) {
                0 => None,
                pages => Some(self.pages.clone().acquire_many_owned(pages).await.ok()?),
            };
            Some(DirtyShare { _pages: pages, _write: Some(write) })
        });
        taken.await.ok().flatten()
    }

    /// Takes a share for a write that already exists, as far as the budget allows.
    pub(super) fn acquire_existing(&self, bytes: u64) -> DirtyShare {
        let pages = u32::try_from(self.pages.available_permits()).unwrap_or(u32::MAX).min(pages_of(bytes));
        let taken = |result: Result<OwnedSemaphorePermit, TryAcquireError>| result.ok();
        let pages = taken(self.pages.clone().try_acquire_many_owned(pages));
        DirtyShare { _pages: pages, _write: taken(self.writes.clone().try_acquire_owned()) }
    }
}

#[cfg(test)]
mod tests {
    use super::{DirtyBudget, PAGE_BYTES};
    use std::time::Duration;

    #[tokio::test]
    async fn a_writer_without_a_share_waits_and_is_then_rejected() {
        let room = DirtyBudget { patience: Duration::from_millis(50), ..DirtyBudget::new(10 * PAGE_BYTES) };
        assert!(room.fits(10 * PAGE_BYTES) && !room.fits(10 * PAGE_BYTES + 1));
        let first = room.acquire(9 * PAGE_BYTES).await.unwrap();
        let _second = room.acquire(1).await.unwrap();
        let _none = room.acquire(0).await.expect("a delete takes no bytes");
        assert!(room.acquire(1).await.is_none());
        assert!(room.acquire(11 * PAGE_BYTES).await.is_none(), "not all of it is free");
        let waiting = room.acquire(9 * PAGE_BYTES);
        let (waiting, ()) = tokio::join!(waiting, async move { drop(first) });
        assert!(waiting.is_some());
    }

    #[tokio::test]
    async fn existing_writes_may_exceed_the_budget() {
        let room = DirtyBudget { patience: Duration::from_millis(50), ..DirtyBudget::new(10 * PAGE_BYTES) };
        let old: Vec<_> = (0..3).map(|_| room.acquire_existing(6 * PAGE_BYTES)).collect();
        assert!(room.acquire(1).await.is_none());
        drop(old);
        let whole = room.acquire(11 * PAGE_BYTES).await.unwrap();
        assert!(room.acquire(1).await.is_none());
        drop(whole);
        assert!(room.acquire(10 * PAGE_BYTES).await.is_some());
    }
}

//! How much may be dirty: bytes and writes that origins have not.
//!
//! Who writes takes a place before its body is read, and waits for one in the order of coming; so writers get
//! as fast as their origins. A place is given back when the origin has the write. What a start finds dirty
//! takes places too, and may be more than there are.

use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, TryAcquireError};

/// Bytes are counted in pages, for a semaphore's numbers are of 32 bits.
const PAGE_BYTES: u64 = 4096;
/// Writes that may be dirty: a few hundred bytes of memory each, a little more than 1 KiB for the longest
/// keys.
const WRITES_MAX: usize = 1 << 17;
/// How long a writer waits for a place. Clients give up after some tens of seconds.
const PATIENCE: Duration = Duration::from_secs(10);

/// A share of what may be dirty.
#[derive(Debug)]
pub struct Place {
    _pages: Option<OwnedSemaphorePermit>,
    _write: Option<OwnedSemaphorePermit>,
}

/// What may be dirty.
#[derive(Debug)]
pub(super) struct Room {
    bytes_max: u64,
    patience: Duration,
    pages: Arc<Semaphore>,
    writes: Arc<Semaphore>,
}

fn pages_of(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(PAGE_BYTES)).unwrap_or(u32::MAX)
}

impl Room {
    /// Room for so many bytes.
    pub(super) fn new(bytes_max: u64) -> Self {
        let pages = Arc::new(Semaphore::new(pages_of(bytes_max) as usize));
        Self { bytes_max, patience: PATIENCE, pages, writes: Arc::new(Semaphore::new(WRITES_MAX)) }
    }

    /// Whether so many bytes could ever be dirty.
    pub(super) fn fits(&self, bytes: u64) -> bool {
        bytes <= self.bytes_max && pages_of(bytes) < u32::MAX
    }

    /// A place for a write of so many bytes; none when there was none for too long. One that fits nowhere
    /// gets all there is, alone: its bytes are here already.
    pub(super) async fn place(&self, bytes: u64) -> Option<Place> {
        let taken = tokio::time::timeout(self.patience, async {
            let write = self.writes.clone().acquire_owned().await.ok()?;
            let pages = match pages_of(bytes.min(self.bytes_max)) {
                0 => None,
                pages => Some(self.pages.clone().acquire_many_owned(pages).await.ok()?),
            };
            Some(Place { _pages: pages, _write: Some(write) })
        });
        taken.await.ok().flatten()
    }

    /// A place for a write that is there already: as much of it as there is.
    pub(super) fn place_of_old(&self, bytes: u64) -> Place {
        let pages = u32::try_from(self.pages.available_permits()).unwrap_or(u32::MAX).min(pages_of(bytes));
        let taken = |result: Result<OwnedSemaphorePermit, TryAcquireError>| result.ok();
        let pages = taken(self.pages.clone().try_acquire_many_owned(pages));
        Place { _pages: pages, _write: taken(self.writes.clone().try_acquire_owned()) }
    }
}

#[cfg(test)]
mod tests {
    use super::{PAGE_BYTES, Room};
    use std::time::Duration;

    #[tokio::test]
    async fn who_finds_no_room_waits_and_then_is_refused() {
        let room = Room { patience: Duration::from_millis(50), ..Room::new(10 * PAGE_BYTES) };
        assert!(room.fits(10 * PAGE_BYTES) && !room.fits(10 * PAGE_BYTES + 1));
        let first = room.place(9 * PAGE_BYTES).await.unwrap();
        let _second = room.place(1).await.unwrap();
        let _none = room.place(0).await.expect("what deletes takes no bytes");
        assert!(room.place(1).await.is_none());
        assert!(room.place(11 * PAGE_BYTES).await.is_none(), "all is not free");
        let waiting = room.place(9 * PAGE_BYTES);
        let (waiting, ()) = tokio::join!(waiting, async move { drop(first) });
        assert!(waiting.is_some());
    }

    #[tokio::test]
    async fn what_a_start_finds_may_be_more_than_there_is_room_for() {
        let room = Room { patience: Duration::from_millis(50), ..Room::new(10 * PAGE_BYTES) };
        let old: Vec<_> = (0..3).map(|_| room.place_of_old(6 * PAGE_BYTES)).collect();
        assert!(room.place(1).await.is_none());
        drop(old);
        let whole = room.place(11 * PAGE_BYTES).await.unwrap();
        assert!(room.place(1).await.is_none());
        drop(whole);
        assert!(room.place(10 * PAGE_BYTES).await.is_some());
    }
}

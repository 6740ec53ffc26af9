//! Computes the MD5s of several bodies side by side, in the lanes of vector instructions.
//!
//! One MD5 cannot be parallelised, and takes longer than all other work on a large body. Eight MD5s side by
//! side cost little more than one. This module therefore collects the chunks of all bodies. [`schedule`]
//! decides which of them are hashed together and when, a few blocking threads run the batches, and [`kernel`]
//! is the computation. [`small`] bodies are not worth a switch of threads: the callers hash them, also
//! together.
//!
//! Invariant: a digest is that of the bytes in the order in which they were pushed. The callers bound the
//! number of queued chunks, because a chunk keeps its memory until it is hashed. Dropping a stream drops its
//! chunks. All state is in memory, so a power failure changes nothing.

mod kernel;
mod schedule;
mod small;
mod state;

#[cfg(test)]
mod tests;

use bytes::Bytes;
use fearless_simd::Level;
use parking_lot::Mutex;
use schedule::{LaneSchedule, StreamId};
use small::PendingBodies;
pub use small::PendingMd5;
use state::{Md5State, update_all};
use std::sync::Arc;
use thiserror::Error;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// Processors per worker. There is at least one worker.
const PROCESSORS_PER_WORKER: usize = 4;

/// The hasher of a server. Clones share its streams and workers.
#[derive(Clone)]
pub struct Md5Hasher(Arc<HasherState>);

struct HasherState {
    runtime: Handle,
    level: Level,
    workers_max: usize,
    work: Mutex<Work>,
    pending: PendingBodies,
}

struct Work {
    schedule: LaneSchedule<HashChunk>,
    /// Token; each worker keeps a clone. A worker that panics also drops its clone.
    seats: Arc<()>,
}

/// A chunk of a stream.
struct HashChunk {
    md5: Arc<Mutex<Md5State>>,
    bytes: Bytes,
    /// Notifies the pusher that the chunk is hashed.
    hashed: oneshot::Sender<()>,
}

/// Error of a chunk that was not hashed because the server is stopping or its stream was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the server is stopping")]
pub struct Stopped;

impl Md5Hasher {
    /// Returns a hasher that computes on blocking threads of `runtime`, one per four processors.
    #[must_use]
    pub fn new(runtime: Handle) -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let workers_max = (processors / PROCESSORS_PER_WORKER).max(1);
        let work = Mutex::new(Work { schedule: LaneSchedule::new(), seats: Arc::default() });
        Self(Arc::new(HasherState {
            runtime,
            level: Level::new(),
            workers_max,
            work,
            pending: PendingBodies::default(),
        }))
    }

    /// Opens a stream for a body.
    #[must_use]
    pub fn open(&self) -> Md5Stream {
        let id = self.0.work.lock().schedule.open();
        Md5Stream { shared: Arc::clone(&self.0), id, md5: Arc::new(Mutex::new(Md5State::new())), pushed: 0 }
    }
}

/// The MD5 of a body that arrives in chunks.
pub struct Md5Stream {
    shared: Arc<HasherState>,
    id: StreamId,
    md5: Arc<Mutex<Md5State>>,
    pushed: u64,
}

impl Md5Stream {
    /// Adds the next chunk of the body. The returned future completes when the chunk is hashed. It fails if
    /// the stream is dropped before.
    pub fn push(&mut self, bytes: Bytes) -> impl Future<Output = Result<(), Stopped>> + use<> {
        let (hashed, waits) = oneshot::channel();
        let length = bytes.len();
        let chunk = HashChunk { md5: Arc::clone(&self.md5), bytes, hashed };
        self.pushed += 1;
        self.shared.change(|schedule| schedule.push(self.id, length, chunk));
        async { waits.await.map_err(|_| Stopped) }
    }

    /// Declares that the caller waits for the first `chunks` of the body. Their batches become due
    /// immediately.
    pub fn expedite(&self, chunks: u64) {
        assert!(chunks <= self.pushed, "a caller waits only for chunks that it has pushed");
        self.shared.change(|schedule| schedule.expedite(self.id, chunks));
    }

    /// Declares that the caller waits for all chunks so far, like [`Md5Stream::expedite`].
    pub fn expedite_all(&self) {
        self.expedite(self.pushed);
    }

    /// Returns the MD5 of the body after adding its last chunk.
    ///
    /// # Errors
    /// When the server is stopping.
    pub async fn finish(mut self, last: Bytes) -> Result<[u8; 16], Stopped> {
        let hashed = self.push(last);
        self.expedite_all();
        hashed.await?;
        let md5 = std::mem::replace(&mut *self.md5.lock(), Md5State::new());
        Ok(md5.finish())
    }
}

impl Drop for Md5Stream {
    fn drop(&mut self) {
        let left = self.shared.change(|schedule| schedule.close(self.id));
        drop(left);
    }
}

impl HasherState {
    /// Changes the schedule, and starts a batch if one is due.
    fn change<T>(self: &Arc<Self>, change: impl FnOnce(&mut LaneSchedule<HashChunk>) -> T) -> T {
        let mut work = self.work.lock();
        let changed = change(&mut work.schedule);
        // One of the references belongs to the work itself.
        if Arc::strong_count(&work.seats) <= self.workers_max {
            let batch = work.schedule.begin();
            if !batch.is_empty() {
                let (shared, seat) = (Arc::clone(self), Arc::clone(&work.seats));
                drop(work);
                self.runtime.spawn_blocking(move || shared.compute(batch, seat));
            }
        }
        changed
    }

    /// Computes this batch and all that become due meanwhile.
    fn compute(&self, mut batch: Vec<(StreamId, HashChunk)>, seat: Arc<()>) {
        loop {
            {
                let mut md5s: Vec<_> = batch.iter().map(|(_, chunk)| chunk.md5.lock()).collect();
                let chunks = batch.iter().map(|(_, chunk)| &chunk.bytes[..]);
                update_all(self.level, md5s.iter_mut().map(|md5| &mut **md5).zip(chunks));
            }
            let ids: Vec<_> = batch.iter().map(|(id, _)| *id).collect();
            for (_, chunk) in batch {
                // The receiver may have been dropped with the request.
                let _ = chunk.hashed.send(());
            }
            let mut work = self.work.lock();
            work.schedule.end(ids);
            batch = work.schedule.begin();
            if batch.is_empty() {
                // Dropped while the lock is held, so a later push finds the seat free.
                drop(seat);
                return;
            }
        }
    }
}

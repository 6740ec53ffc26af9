//! MD5 of several bodies at once.
//!
//! MD5 cannot be spread within a body, and takes longer than all else that is done with a large one. But several bodies
//! can be hashed side by side, in the lanes of vector instructions, for little more than the price of one. So
//! their chunks come together here: [`schedule`] decides which of them go in lockstep and when, a few threads of the
//! runtime carry it out, and [`kernel`] is what they compute. [`small`] bodies are not worth a thread's hop: they are
//! hashed by those who bring them, but also together.
//!
//! How much waits here is for those to bound who bring it: their chunks hold memory until they are hashed. A stream
//! that is dropped takes what it had here with it, and nobody waits for it any more. The digest is that of
//! the bytes in the order in which they were pushed. All of it is in memory, and of bodies that nobody has acknowledged: power
//! failure leaves nothing behind.

mod kernel;
mod running;
mod schedule;
mod small;

#[cfg(test)]
mod tests;

use bytes::Bytes;
use fearless_simd::Level;
use parking_lot::Mutex;
use running::{Running, update_all};
use schedule::{Schedule, StreamId};
pub use small::Left;
use small::Lying;
use std::sync::Arc;
use thiserror::Error;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// Of so many processors one may compute MD5s in lockstep, but one at least.
const PROCESSORS_PER_WORKER: usize = 4;

/// The hasher of a server. Clones share it.
#[derive(Clone)]
pub struct Hasher(Arc<Shared>);

struct Shared {
    runtime: Handle,
    level: Level,
    workers_max: usize,
    work: Mutex<Work>,
    lying: Lying,
}

struct Work {
    schedule: Schedule<Chunk>,
    /// Each worker has a clone: one that ends badly gives up its seat, too.
    seats: Arc<()>,
}

/// Bytes of a stream that are to be hashed.
struct Chunk {
    md5: Arc<Mutex<Running>>,
    bytes: Bytes,
    /// Told that they were.
    hashed: oneshot::Sender<()>,
}

/// The server stops: what was not yet hashed never will be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the server stops")]
pub struct Stopped;

impl Hasher {
    /// A hasher that computes on blocking threads of `runtime`: a quarter of the processors at once.
    #[must_use]
    pub fn new(runtime: Handle) -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let workers_max = (processors / PROCESSORS_PER_WORKER).max(1);
        let work = Mutex::new(Work { schedule: Schedule::new(), seats: Arc::default() });
        Self(Arc::new(Shared { runtime, level: Level::new(), workers_max, work, lying: Lying::default() }))
    }

    /// Begins the MD5 of a body.
    #[must_use]
    pub fn open(&self) -> Stream {
        let id = self.0.work.lock().schedule.open();
        Stream { shared: Arc::clone(&self.0), id, md5: Arc::new(Mutex::new(Running::new())), pushed: 0 }
    }
}

/// The MD5 of a body that comes chunk by chunk.
pub struct Stream {
    shared: Arc<Shared>,
    id: StreamId,
    md5: Arc<Mutex<Running>>,
    pushed: u64,
}

impl Stream {
    /// Adds the next chunk of the body. What is returned waits until it was hashed, for as long as the stream lives.
    pub fn push(&mut self, bytes: Bytes) -> impl Future<Output = Result<(), Stopped>> + use<> {
        let (hashed, waits) = oneshot::channel();
        let length = bytes.len();
        let chunk = Chunk { md5: Arc::clone(&self.md5), bytes, hashed };
        self.pushed += 1;
        self.shared.change(|schedule| schedule.push(self.id, length, chunk));
        async { waits.await.map_err(|_| Stopped) }
    }

    /// Says that the first `chunks` of the body are waited for, so they shall not wait for others.
    pub fn hurry(&self, chunks: u64) {
        self.shared.change(|schedule| schedule.hurry(self.id, chunks));
    }

    /// As [`Stream::hurry`], for all chunks so far.
    pub fn hurry_all(&self) {
        self.hurry(self.pushed);
    }

    /// The MD5 of the body, of which `last` is the last chunk.
    ///
    /// # Errors
    /// When the server stops meanwhile.
    pub async fn finish(mut self, last: Bytes) -> Result<[u8; 16], Stopped> {
        let hashed = self.push(last);
        self.hurry_all();
        hashed.await?;
        let md5 = std::mem::replace(&mut *self.md5.lock(), Running::new());
        Ok(md5.finish())
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let left = self.shared.change(|schedule| schedule.close(self.id));
        drop(left);
    }
}

impl Shared {
    /// Changes the schedule, and has a batch computed if that made one due.
    fn change<T>(self: &Arc<Self>, change: impl FnOnce(&mut Schedule<Chunk>) -> T) -> T {
        let mut work = self.work.lock();
        let changed = change(&mut work.schedule);
        // One of them is the list's own.
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

    /// Computes this batch and all that are due after it.
    fn compute(&self, mut batch: Vec<(StreamId, Chunk)>, seat: Arc<()>) {
        loop {
            {
                let mut md5s: Vec<_> = batch.iter().map(|(_, chunk)| chunk.md5.lock()).collect();
                let chunks = batch.iter().map(|(_, chunk)| &chunk.bytes[..]);
                update_all(self.level, md5s.iter_mut().map(|md5| &mut **md5).zip(chunks));
            }
            let ids: Vec<_> = batch.iter().map(|(id, _)| *id).collect();
            for (_, chunk) in batch {
                // Nobody waits any more where the client is gone.
                let _ = chunk.hashed.send(());
            }
            let mut work = self.work.lock();
            work.schedule.end(ids);
            batch = work.schedule.begin();
            if batch.is_empty() {
                // Before anybody else looks: what is pushed from now on finds the seat free.
                drop(seat);
                return;
            }
        }
    }
}

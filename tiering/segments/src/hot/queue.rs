//! The queue of a segment writer: chunks that wait to be written, bounded in bytes.
//!
//! An append acquires permits for its bytes first and waits for them while the queue is full; they are
//! released after its reply. If the future of a waiting append is dropped, the chunk is still written
//! and the reply is discarded.
//!
//! Clients whose appends were acknowledged together send their next ones shortly after each other, and a
//! writer that syncs for the first of them makes all others wait for a second sync. So the writer lets chunks
//! gather until as many wait as it served last, and while requests that it served are about to end and their
//! clients to return: two groups that alternate, one at the segment and one at the log, need twice the syncs
//! for the same rate. The wait is limited to about the duration of a sync.

use mlgw_common::time::Instant;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};
use tokio::sync::{Semaphore, oneshot};

use super::AppendError;
use super::holds::SegmentHold;
use super::location::RecordLocation;
use mlgw_formats::segment_payload::Payload;
use mlgw_formats::segment_record::RecordOwner;

/// A chunk that is queued, or being written.
pub(super) struct PendingChunk {
    pub(super) owner: RecordOwner,
    pub(super) data: Payload,
    /// Bytes of the chunk's record.
    pub(super) bytes: usize,
    pub(super) arrived: Instant,
}

/// Sends the result of an append to its request. The receiver is gone if the request was dropped.
pub(super) type AppendReply = oneshot::Sender<Result<StoredAppend, AppendError>>;

pub(super) struct PendingAppend {
    pub(super) chunk: PendingChunk,
    pub(super) reply: AppendReply,
}

/// Location of a stored chunk, and the hold on its segment until the catalogue names the chunk.
pub(super) struct StoredAppend {
    pub(super) location: RecordLocation,
    pub(super) hold: SegmentHold,
}

/// The way in which a writer ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QueueClose {
    /// Write the waiting chunks and seal the segment.
    Seal,
    /// Fail the waiting chunks and leave the segment to recovery, as after a kill of the process.
    Abandon,
}

pub(super) enum WriterTask {
    Batch(Vec<PendingAppend>),
    /// Begin another segment if the open one was given up.
    Roll,
    Closed(QueueClose),
}

/// The queue was closed; the chunk was not queued.
#[derive(Debug)]
pub(super) struct QueueClosed;

pub(super) struct AppendQueue {
    state: Mutex<AppendQueueState>,
    arrived: Condvar,
    room: Arc<Semaphore>,
}

/// Interval at which a gathering writer checks whether the requests it waits for have ended.
const GATHER_STEP: Duration = Duration::from_micros(200);

/// Conditions under which a writer delays a batch.
pub(super) struct GatherLimits<F> {
    /// Maximum delay.
    pub(super) patience: Duration,
    /// Number of chunks to expect.
    pub(super) expected: usize,
    /// Number of served requests that have not ended yet.
    pub(super) unfinished: F,
}

struct AppendQueueState {
    waiting: Vec<PendingAppend>,
    /// Requests that did not end while the last batch gathered, which are not waited for again.
    lingering: usize,
    /// Number of waiting chunks at which the writer is woken.
    wake_at: usize,
    roll: bool,
    close: Option<QueueClose>,
    last_push: Instant,
}

impl AppendQueue {
    /// Creates a queue whose waiting bytes are taken from `room`.
    pub(super) fn new(room: Arc<Semaphore>) -> Self {
        let state = AppendQueueState {
            waiting: Vec::new(),
            lingering: 0,
            wake_at: 1,
            roll: false,
            close: None,
            last_push: Instant::now(),
        };
        Self { state: Mutex::new(state), arrived: Condvar::new(), room }
    }

    /// Queues a chunk, after waiting for space in the queue. Returns the receiver of the result.
    pub(super) async fn push(
        &self,
        owner: &RecordOwner,
        data: &Payload,
        bytes: usize,
    ) -> Result<oneshot::Receiver<Result<StoredAppend, AppendError>>, QueueClosed> {
        let permit = self.room.acquire_many(bytes as u32).await.map_err(|_| QueueClosed)?;
        let (reply, answer) = oneshot::channel();
        let arrived = Instant::now();
        let chunk = PendingChunk { owner: owner.clone(), data: data.clone(), bytes, arrived };
        let mut state = self.state.lock();
        if state.close.is_some() {
            return Err(QueueClosed);
        }
        state.last_push = arrived;
        state.waiting.push(PendingAppend { chunk, reply });
        let wake = state.waiting.len() >= state.wake_at;
        drop(state);
        permit.forget();
        if wake {
            self.arrived.notify_one();
        }
        Ok(answer)
    }

    /// Returns all waiting chunks as soon as there are any and no more are expected soon. Blocks the calling
    /// thread.
    pub(super) fn next_task(&self, gather: GatherLimits<impl Fn() -> usize>) -> WriterTask {
        let mut state = self.state.lock();
        loop {
            if let Some(QueueClose::Abandon) = state.close {
                return WriterTask::Closed(QueueClose::Abandon);
            }
            if !state.waiting.is_empty() {
                self.gather(&mut state, &gather);
                return WriterTask::Batch(std::mem::take(&mut state.waiting));
            }
            if let Some(close) = state.close {
                return WriterTask::Closed(close);
            }
            if std::mem::take(&mut state.roll) {
                return WriterTask::Roll;
            }
            self.arrived.wait(&mut state);
        }
    }

    /// Waits while more chunks are expected soon.
    fn gather(
        &self,
        state: &mut MutexGuard<'_, AppendQueueState>,
        gather: &GatherLimits<impl Fn() -> usize>,
    ) {
        let begin = Instant::now();
        state.wake_at = gather.expected;
        state.lingering = loop {
            let unfinished = (gather.unfinished)();
            let more_come = state.waiting.len() < gather.expected || unfinished > state.lingering;
            let left = gather.patience.saturating_sub(begin.elapsed());
            if state.close.is_some() || !more_come || left.is_zero() {
                break unfinished;
            }
            self.arrived.wait_for(state, left.min(GATHER_STEP));
        };
        state.wake_at = 1;
    }

    /// Releases the permits of chunks that were replied to.
    pub(super) fn release_room(&self, bytes: usize) {
        self.room.add_permits(bytes);
    }

    /// Wakes the writer, without a chunk, to begin another segment if the open one was given up.
    pub(super) fn roll(&self) {
        self.state.lock().roll = true;
        self.arrived.notify_one();
    }

    /// Closes the queue. The first call determines how the writer ends.
    pub(super) fn close(&self, close: QueueClose) {
        self.state.lock().close.get_or_insert(close);
        self.arrived.notify_one();
    }

    /// Closes the queue and fails the waiting chunks by dropping them.
    pub(super) fn abandon(&self) {
        let mut state = self.state.lock();
        state.close.get_or_insert(QueueClose::Abandon);
        self.room.add_permits(state.waiting.drain(..).map(|pending| pending.chunk.bytes).sum());
    }

    pub(super) fn idle_for(&self) -> Duration {
        self.state.lock().last_push.elapsed()
    }
}

#[cfg(test)]
mod tests {
    use super::{AppendQueue, GatherLimits, RecordOwner, WriterTask};
    use bytes::Bytes;
    use mlgw_common::ids::{BodyId, BucketId};
    use mlgw_common::{ObjectKey, Timestamp};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use std::time::Duration;
    use tokio::sync::Semaphore;

    /// Longer than any test: a wait for this long would hang.
    const LONG: Duration = Duration::from_secs(3600);

    fn queue() -> AppendQueue {
        AppendQueue::new(Arc::new(Semaphore::new(1000)))
    }

    fn push(queue: &AppendQueue) {
        let owner = RecordOwner {
            bucket: BucketId(1),
            key: ObjectKey::new("key").unwrap(),
            body: BodyId(1),
            part: None,
            offset: 0,
            written: Timestamp(0),
        };
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        drop(runtime.block_on(queue.push(&owner, &Bytes::from_static(b"body").into(), 1)).unwrap());
    }

    fn taken(
        queue: &AppendQueue,
        patience: Duration,
        expected: usize,
        unfinished: impl Fn() -> usize,
    ) -> usize {
        match queue.next_task(GatherLimits { patience, expected, unfinished }) {
            WriterTask::Batch(batch) => batch.len(),
            WriterTask::Roll | WriterTask::Closed(_) => 0,
        }
    }

    #[test]
    fn a_single_append_is_written_immediately() {
        let queue = queue();
        push(&queue);
        assert_eq!(taken(&queue, LONG, 0, || 0), 1);
        push(&queue);
        assert_eq!(taken(&queue, LONG, 1, || 0), 1);
    }

    #[test]
    fn a_batch_waits_for_as_many_chunks_as_the_last_one() {
        let queue = queue();
        std::thread::scope(|scope| {
            scope.spawn(|| (0..3).for_each(|_| push(&queue)));
            assert_eq!(taken(&queue, LONG, 3, || 0), 3);
        });
        push(&queue);
        assert_eq!(taken(&queue, Duration::ZERO, 3, || 0), 1, "no other request arrives");
    }

    #[test]
    fn a_batch_waits_for_ending_requests_but_for_lingering_ones_only_once() {
        let queue = queue();
        let unfinished = AtomicUsize::new(2);
        push(&queue);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                unfinished.store(1, SeqCst);
                push(&queue);
                unfinished.store(0, SeqCst);
            });
            assert_eq!(taken(&queue, LONG, 1, || unfinished.load(SeqCst)), 2);
        });
        push(&queue);
        assert_eq!(taken(&queue, Duration::ZERO, 1, || 5), 1, "the wait ends");
        push(&queue);
        assert_eq!(taken(&queue, LONG, 1, || 5), 1, "the same five are still waiting");
    }
}

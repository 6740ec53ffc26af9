//! Queues of the segment writers: one shared by small chunks, one shared by large chunks, one for moved
//! chunks, one for chunks that leave the tier next, and a bounded number of writers with a body of their own.
//!
//! An own writer is started for the body's first chunk and ends when the body is finished, was idle for a
//! minute, or the tier stops. When all own writers are taken, a body uses the shared writer of large chunks:
//! its chunks are as safe, but freed by compaction rather than by unlink.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use mlgw_common::ids::BodyId;
use mlgw_common::limits::{
    CHUNK_BYTES_MAX, LARGE_CHUNK_BYTES_MIN, LARGE_QUEUE_BYTES_MAX, MOVED_QUEUE_BYTES_MAX,
    SMALL_QUEUE_BYTES_MAX,
};
use mlgw_formats::schema::SegmentClass;
use mlgw_formats::segment_record::HEAD_BYTES_MAX;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, mpsc};

use super::queue::{AppendQueue, QueueClose};
use super::writer::{SegmentWriter, WriterShared};

// A chunk whose record is larger than its queue would wait forever.
const _: () = {
    assert!(LARGE_CHUNK_BYTES_MIN + HEAD_BYTES_MAX <= SMALL_QUEUE_BYTES_MAX);
    assert!(CHUNK_BYTES_MAX as usize + HEAD_BYTES_MAX <= LARGE_QUEUE_BYTES_MAX);
    assert!(CHUNK_BYTES_MAX as usize + HEAD_BYTES_MAX <= MOVED_QUEUE_BYTES_MAX);
};

pub(super) struct WriterQueues {
    shared: Arc<WriterShared>,
    large_room: Arc<Semaphore>,
    small: Arc<AppendQueue>,
    large: Arc<AppendQueue>,
    moved: Arc<AppendQueue>,
    leaving: Arc<AppendQueue>,
    own: Mutex<OwnWriterQueues>,
}

struct OwnWriterQueues {
    queues: HashMap<BodyId, Arc<AppendQueue>>,
    /// Maximum number of own writers.
    queues_max: usize,
    /// Every writer thread holds a clone; when all are dropped the receiver's channel closes. `None` once the
    /// tier stops.
    running: Option<mpsc::Sender<()>>,
}

impl WriterQueues {
    /// Starts the shared writers; up to `own_max` bodies get writers of their own. The returned channel
    /// closes when the last writer has ended.
    pub(super) fn start(shared: Arc<WriterShared>, own_max: usize) -> io::Result<(Self, mpsc::Receiver<()>)> {
        let (running, ended) = mpsc::channel(1);
        let large_room = Arc::new(Semaphore::new(LARGE_QUEUE_BYTES_MAX));
        let small_room = Arc::new(Semaphore::new(SMALL_QUEUE_BYTES_MAX));
        let small = start_writer(&shared, SegmentClass::Small, small_room, running.clone())?;
        let large = start_writer(&shared, SegmentClass::Large, large_room.clone(), running.clone())?;
        let moved_room = Arc::new(Semaphore::new(MOVED_QUEUE_BYTES_MAX));
        let moved = start_writer(&shared, SegmentClass::Moved, moved_room.clone(), running.clone())?;
        let gathered = start_writer(&shared, SegmentClass::Moved, moved_room, running.clone())?;
        let own = Mutex::new(OwnWriterQueues {
            queues: HashMap::new(),
            queues_max: own_max,
            running: Some(running),
        });
        Ok((Self { shared, large_room, small, large, moved, leaving: gathered, own }, ended))
    }

    /// Returns the queue of moved chunks. They have a segment of their own, so that requests do not wait
    /// behind them and long-lived chunks are stored together.
    pub(super) fn moved(&self) -> &Arc<AppendQueue> {
        &self.moved
    }

    /// Returns the queue of chunks that leave the tier next, which are stored apart from chunks that stay.
    pub(super) fn leaving(&self) -> &Arc<AppendQueue> {
        &self.leaving
    }

    /// Requests that the writers begin other segments where the open ones were given up.
    pub(super) fn roll(&self) {
        let own: Vec<_> = self.own.lock().queues.values().cloned().collect();
        let shared = [&self.small, &self.large, &self.moved, &self.leaving];
        own.iter().chain(shared).for_each(|lane| lane.roll());
    }

    /// Returns the queue of the shared writer for chunks of this size.
    pub(super) fn shared(&self, chunk_bytes: usize) -> &Arc<AppendQueue> {
        if chunk_bytes < LARGE_CHUNK_BYTES_MIN { &self.small } else { &self.large }
    }

    /// Returns the queue of the body's own writer, started if needed; `None` if all own writers are taken.
    pub(super) fn own(&self, body: BodyId) -> Option<Arc<AppendQueue>> {
        let mut own = self.own.lock();
        if let Some(lane) = own.queues.get(&body) {
            return Some(lane.clone());
        }
        if own.queues.len() >= own.queues_max {
            return None;
        }
        let running = own.running.clone()?;
        match start_writer(&self.shared, SegmentClass::Own, self.large_room.clone(), running) {
            Ok(lane) => {
                own.queues.insert(body, lane.clone());
                Some(lane)
            }
            Err(error) => {
                tracing::warn!(%error, "failed to start a writer; the body shares one");
                None
            }
        }
    }

    /// Seals the body's own segment, if it has one.
    pub(super) fn finish_own(&self, body: BodyId) {
        if let Some(lane) = self.own.lock().queues.remove(&body) {
            lane.close(QueueClose::Seal);
        }
    }

    /// Seals the own segments of bodies that got no chunk for `idle_max`.
    pub(super) fn seal_idle(&self, idle_max: Duration) {
        self.own.lock().queues.retain(|_, lane| {
            let keep = lane.idle_for() < idle_max;
            if !keep {
                lane.close(QueueClose::Seal);
            }
            keep
        });
    }

    /// Closes every queue.
    pub(super) fn close(&self, close: QueueClose) {
        let mut own = self.own.lock();
        own.running = None;
        for (_, lane) in own.queues.drain() {
            lane.close(close);
        }
        self.small.close(close);
        self.large.close(close);
        self.moved.close(close);
        self.leaving.close(close);
    }
}

fn start_writer(
    shared: &Arc<WriterShared>,
    class: SegmentClass,
    room: Arc<Semaphore>,
    running: mpsc::Sender<()>,
) -> io::Result<Arc<AppendQueue>> {
    let queue = Arc::new(AppendQueue::new(room));
    let writer = SegmentWriter::new(class, shared.clone(), queue.clone());
    let ends = WriterEndGuard { queue: queue.clone(), _running: running };
    std::thread::Builder::new().name(format!("segment-{class:?}")).spawn(move || {
        let _ends = ends;
        writer.run();
    })?;
    Ok(queue)
}

/// Closes the queue when its writer ends for any reason, also a panic, so that no append waits for a dead
/// thread.
struct WriterEndGuard {
    queue: Arc<AppendQueue>,
    _running: mpsc::Sender<()>,
}

impl Drop for WriterEndGuard {
    fn drop(&mut self) {
        self.queue.abandon();
    }
}

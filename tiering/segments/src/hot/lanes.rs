//! Which writer a chunk goes to: one shared by small chunks, one shared by large ones, one for chunks that
//! are moved, one for those that are gathered to leave the tier, and a bounded number that each belong to one
//! body.
//!
//! An `Own` writer comes with the body's first chunk and goes when the body is finished, was idle
//! for a minute, or the tier stops. A body that comes when all are taken shares the writer of
//! large chunks: its chunks are stored as safely, only freed by compaction rather than by unlink.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use mlgw_common::ids::BodyId;
use mlgw_common::limits::{
    LARGE_CHUNK_BYTES_MIN, LARGE_QUEUE_BYTES_MAX, MOVED_QUEUE_BYTES_MAX, SMALL_QUEUE_BYTES_MAX,
};
use mlgw_formats::schema::SegmentClass;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, mpsc};

use super::queue::{Close, Queue};
use super::writer::{Shared, Writer};

pub(super) struct Lanes {
    shared: Arc<Shared>,
    large_room: Arc<Semaphore>,
    small: Arc<Queue>,
    large: Arc<Queue>,
    moved: Arc<Queue>,
    gathered: Arc<Queue>,
    own: Mutex<Own>,
}

struct Own {
    lanes: HashMap<BodyId, Arc<Queue>>,
    /// How many there may be.
    lanes_max: usize,
    /// Every writer thread holds a clone; when all are gone the receiver hears of it. Nothing
    /// once the tier stops.
    running: Option<mpsc::Sender<()>>,
}

impl Lanes {
    /// Starts the shared writers; bodies may have `own_max` of their own. The receiver ends when the last
    /// writer has.
    pub(super) fn start(shared: Arc<Shared>, own_max: usize) -> io::Result<(Self, mpsc::Receiver<()>)> {
        let (running, ended) = mpsc::channel(1);
        let large_room = Arc::new(Semaphore::new(LARGE_QUEUE_BYTES_MAX));
        let small_room = Arc::new(Semaphore::new(SMALL_QUEUE_BYTES_MAX));
        let small = start_writer(&shared, SegmentClass::Small, small_room, running.clone())?;
        let large = start_writer(&shared, SegmentClass::Large, large_room.clone(), running.clone())?;
        let moved_room = Arc::new(Semaphore::new(MOVED_QUEUE_BYTES_MAX));
        let moved = start_writer(&shared, SegmentClass::Moved, moved_room.clone(), running.clone())?;
        let gathered = start_writer(&shared, SegmentClass::Moved, moved_room, running.clone())?;
        let own = Mutex::new(Own { lanes: HashMap::new(), lanes_max: own_max, running: Some(running) });
        Ok((Self { shared, large_room, small, large, moved, gathered, own }, ended))
    }

    /// The queue of the writer of chunks that are moved. They have a segment of their own, so that
    /// requests do not wait behind them and what lives long comes to lie together.
    pub(super) fn moved(&self) -> &Arc<Queue> {
        &self.moved
    }

    /// The queue of the writer of chunks that leave the tier next. What stays does not lie beside them.
    pub(super) fn gathered(&self) -> &Arc<Queue> {
        &self.gathered
    }

    /// Has the writers begin other segments whose open ones were given up.
    pub(super) fn roll(&self) {
        let own: Vec<_> = self.own.lock().lanes.values().cloned().collect();
        let shared = [&self.small, &self.large, &self.moved, &self.gathered];
        own.iter().chain(shared).for_each(|lane| lane.roll());
    }

    /// The queue of the shared writer for chunks of this size.
    pub(super) fn shared(&self, chunk_bytes: usize) -> &Arc<Queue> {
        if chunk_bytes < LARGE_CHUNK_BYTES_MIN { &self.small } else { &self.large }
    }

    /// The queue of the body's own writer, started if need be; nothing when all are taken.
    pub(super) fn own(&self, body: BodyId) -> Option<Arc<Queue>> {
        let mut own = self.own.lock();
        if let Some(lane) = own.lanes.get(&body) {
            return Some(lane.clone());
        }
        if own.lanes.len() >= own.lanes_max {
            return None;
        }
        let running = own.running.clone()?;
        match start_writer(&self.shared, SegmentClass::Own, self.large_room.clone(), running) {
            Ok(lane) => {
                own.lanes.insert(body, lane.clone());
                Some(lane)
            }
            Err(error) => {
                tracing::warn!(%error, "cannot start a writer; the body shares one");
                None
            }
        }
    }

    /// Seals the body's own segment, if it has one.
    pub(super) fn finish_own(&self, body: BodyId) {
        if let Some(lane) = self.own.lock().lanes.remove(&body) {
            lane.close(Close::Seal);
        }
    }

    /// Seals the own segments of bodies that got no chunk for that long.
    pub(super) fn seal_idle(&self, idle_max: Duration) {
        self.own.lock().lanes.retain(|_, lane| {
            let keep = lane.idle_for() < idle_max;
            if !keep {
                lane.close(Close::Seal);
            }
            keep
        });
    }

    /// Closes every writer.
    pub(super) fn close(&self, close: Close) {
        let mut own = self.own.lock();
        own.running = None;
        for (_, lane) in own.lanes.drain() {
            lane.close(close);
        }
        self.small.close(close);
        self.large.close(close);
        self.moved.close(close);
        self.gathered.close(close);
    }
}

fn start_writer(
    shared: &Arc<Shared>,
    class: SegmentClass,
    room: Arc<Semaphore>,
    running: mpsc::Sender<()>,
) -> io::Result<Arc<Queue>> {
    let queue = Arc::new(Queue::new(room));
    let writer = Writer::new(class, shared.clone(), queue.clone());
    let ends = Ends { queue: queue.clone(), _running: running };
    std::thread::Builder::new().name(format!("segment-{class:?}")).spawn(move || {
        let _ends = ends;
        writer.run();
    })?;
    Ok(queue)
}

/// Closes the queue when its writer ends for whatever reason, so that no append waits for a
/// thread that is gone.
struct Ends {
    queue: Arc<Queue>,
    _running: mpsc::Sender<()>,
}

impl Drop for Ends {
    fn drop(&mut self) {
        self.queue.abandon();
    }
}

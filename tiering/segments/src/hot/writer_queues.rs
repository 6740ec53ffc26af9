//! Queues of the segment writers: one shared by small chunks, one shared by large chunks, one for moved
//! chunks, one for chunks that leave the tier next, and a bounded number of writers with a body of their own.
//!
//! Once there are sets of nodes, each set in which this node is has such shared writers, started with their
//! first chunk: a segment has chunks of the object groups of one set. All sets share the bytes that may wait.
//! When this node has left a set, the set's writers seal their segments and end. Those of the first set
//! always run; their open segments are given up by the recovery of open segments.
//!
//! An own writer is started for the body's first chunk and ends when the body is finished, was idle for a
//! minute, or the tier stops. When all own writers are taken, a body uses the shared writer of large chunks:
//! its chunks are as safe, but freed by compaction rather than by unlink.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use mlgw_common::ids::BodyId;
use mlgw_common::limits::{
    CHUNK_BYTES_MAX, LARGE_CHUNK_BYTES_MIN, LARGE_QUEUE_BYTES_MAX, MOVED_QUEUE_BYTES_MAX,
    SMALL_QUEUE_BYTES_MAX,
};
use mlgw_formats::schema::SegmentClass;
use mlgw_formats::schema::set::FIRST_SET;
use mlgw_formats::segment_record::HEAD_BYTES_MAX;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, mpsc};

use super::AppendError;
use super::queue::{AppendQueue, QueueClose};
use super::writer::{SegmentWriter, WriterShared};

// A chunk whose record is larger than its queue would wait forever.
const _: () = {
    assert!(LARGE_CHUNK_BYTES_MIN + HEAD_BYTES_MAX <= SMALL_QUEUE_BYTES_MAX);
    assert!(CHUNK_BYTES_MAX as usize + HEAD_BYTES_MAX <= LARGE_QUEUE_BYTES_MAX);
    assert!(CHUNK_BYTES_MAX as usize + HEAD_BYTES_MAX <= MOVED_QUEUE_BYTES_MAX);
};

/// Kind of a shared writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum QueueKind {
    /// Small chunks.
    Small,
    /// Large chunks.
    Large,
    /// Moved chunks. They have a segment of their own, so that requests do not wait behind them and
    /// long-lived chunks are stored together.
    Moved,
    /// Chunks that leave the tier next, which are stored apart from chunks that stay.
    Leaving,
}

impl QueueKind {
    /// Returns the kind for chunks of this size.
    pub(super) const fn for_bytes(chunk_bytes: usize) -> Self {
        if chunk_bytes < LARGE_CHUNK_BYTES_MIN { Self::Small } else { Self::Large }
    }

    const fn class(self) -> SegmentClass {
        match self {
            Self::Small => SegmentClass::Small,
            Self::Large => SegmentClass::Large,
            Self::Moved | Self::Leaving => SegmentClass::Moved,
        }
    }
}

pub(super) struct WriterQueues {
    shared: Arc<WriterShared>,
    rooms: QueueRooms,
    /// Queues of the shared writers of the first set.
    first: FirstSetQueues,
    started: Mutex<StartedQueues>,
}

/// Bytes that may wait in the queues. All sets share them.
struct QueueRooms {
    small: Arc<Semaphore>,
    large: Arc<Semaphore>,
    moved: Arc<Semaphore>,
}

struct FirstSetQueues {
    small: Arc<AppendQueue>,
    large: Arc<AppendQueue>,
    moved: Arc<AppendQueue>,
    leaving: Arc<AppendQueue>,
}

/// Queues of the writers that are started when they are needed.
struct StartedQueues {
    /// Shared writers of other sets than the first, by set. This node is in the set, or was in it when the
    /// queues were last looked at.
    shared: BTreeMap<(u32, QueueKind), Arc<AppendQueue>>,
    own: HashMap<BodyId, OwnQueue>,
    /// Maximum number of own writers.
    own_max: usize,
    /// Every writer thread holds a clone; when all are dropped the receiver's channel closes. `None` once the
    /// tier stops.
    running: Option<mpsc::Sender<()>>,
}

/// Queue of the own writer of a body.
struct OwnQueue {
    /// Set of its segments.
    set: u32,
    queue: Arc<AppendQueue>,
}

impl QueueRooms {
    fn new() -> Self {
        Self {
            small: Arc::new(Semaphore::new(SMALL_QUEUE_BYTES_MAX)),
            large: Arc::new(Semaphore::new(LARGE_QUEUE_BYTES_MAX)),
            moved: Arc::new(Semaphore::new(MOVED_QUEUE_BYTES_MAX)),
        }
    }

    const fn of(&self, kind: QueueKind) -> &Arc<Semaphore> {
        match kind {
            QueueKind::Small => &self.small,
            QueueKind::Large => &self.large,
            QueueKind::Moved | QueueKind::Leaving => &self.moved,
        }
    }
}

impl FirstSetQueues {
    const fn all(&self) -> [&Arc<AppendQueue>; 4] {
        [&self.small, &self.large, &self.moved, &self.leaving]
    }

    const fn of(&self, kind: QueueKind) -> &Arc<AppendQueue> {
        match kind {
            QueueKind::Small => &self.small,
            QueueKind::Large => &self.large,
            QueueKind::Moved => &self.moved,
            QueueKind::Leaving => &self.leaving,
        }
    }
}

impl WriterQueues {
    /// Starts the shared writers of the first set; up to `own_max` bodies get writers of their own. The
    /// returned channel closes when the last writer has ended.
    pub(super) fn start(shared: Arc<WriterShared>, own_max: usize) -> io::Result<(Self, mpsc::Receiver<()>)> {
        let (running, ended) = mpsc::channel(1);
        let rooms = QueueRooms::new();
        let start = |kind: QueueKind| {
            start_writer(&shared, kind.class(), FIRST_SET, rooms.of(kind).clone(), running.clone())
        };
        let first = FirstSetQueues {
            small: start(QueueKind::Small)?,
            large: start(QueueKind::Large)?,
            moved: start(QueueKind::Moved)?,
            leaving: start(QueueKind::Leaving)?,
        };
        let (started, own) = (BTreeMap::new(), HashMap::new());
        let started = StartedQueues { shared: started, own, own_max, running: Some(running) };
        Ok((Self { shared, rooms, first, started: Mutex::new(started) }, ended))
    }

    /// Requests that the writers begin other segments where the open ones were given up.
    pub(super) fn roll(&self) {
        let started = self.started.lock();
        let own = started.own.values().map(|own| &own.queue);
        let queues: Vec<_> = own.chain(started.shared.values()).cloned().collect();
        drop(started);
        queues.iter().chain(self.first.all()).for_each(|queue| queue.roll());
    }

    /// Returns the queue of the shared writer of this kind for segments of a set, started if needed.
    ///
    /// # Errors
    /// [`AppendError::Stopping`] once the tier stops; [`AppendError::Io`] if no thread could be started.
    pub(super) fn shared(&self, set: u32, kind: QueueKind) -> Result<Cow<'_, Arc<AppendQueue>>, AppendError> {
        if set == FIRST_SET {
            return Ok(Cow::Borrowed(self.first.of(kind)));
        }
        let mut started = self.started.lock();
        if let Some(queue) = started.shared.get(&(set, kind)) {
            return Ok(Cow::Owned(queue.clone()));
        }
        let running = started.running.clone().ok_or(AppendError::Stopping)?;
        let queue = start_writer(&self.shared, kind.class(), set, self.rooms.of(kind).clone(), running);
        let queue = queue.map_err(|error| {
            tracing::error!(set, ?kind, %error, "failed to start a writer");
            AppendError::Io
        })?;
        started.shared.insert((set, kind), queue.clone());
        Ok(Cow::Owned(queue))
    }

    /// True if a closed queue is not used any more, and the chunk gets another one: the body was finished or
    /// idle, or this node has left the set. False if its writer has ended by itself.
    pub(super) fn is_replaced(&self, queue: &Arc<AppendQueue>) -> bool {
        let started = self.started.lock();
        let own = started.own.values().map(|own| &own.queue);
        let mut used = self.first.all().into_iter().chain(started.shared.values()).chain(own);
        started.running.is_some() && !used.any(|used| Arc::ptr_eq(used, queue))
    }

    /// Closes the queues of all sets that are not among `own`, except those of the first one, which have a
    /// writer in any case. Chunks that wait are written, and the segments sealed.
    pub(super) fn close_left(&self, own: &BTreeSet<u32>) {
        let mut started = self.started.lock();
        let keeps = |set: u32, queue: &AppendQueue| {
            let is_kept = set == FIRST_SET || own.contains(&set);
            if !is_kept {
                queue.close(QueueClose::Seal);
            }
            is_kept
        };
        started.shared.retain(|(set, _), queue| keeps(*set, queue));
        started.own.retain(|_, own| keeps(own.set, &own.queue));
    }

    /// Returns the queue of the body's own writer for segments of a set, started if needed; `None` if all own
    /// writers are taken. If its writer has segments of another set, that one ends.
    pub(super) fn own(&self, body: BodyId, set: u32) -> Option<Arc<AppendQueue>> {
        let mut started = self.started.lock();
        match started.own.get(&body) {
            Some(own) if own.set == set => return Some(own.queue.clone()),
            Some(other) => {
                other.queue.close(QueueClose::Seal);
                started.own.remove(&body);
            }
            None => {}
        }
        if started.own.len() >= started.own_max {
            return None;
        }
        let running = started.running.clone()?;
        match start_writer(&self.shared, SegmentClass::Own, set, self.rooms.large.clone(), running) {
            Ok(queue) => {
                started.own.insert(body, OwnQueue { set, queue: queue.clone() });
                Some(queue)
            }
            Err(error) => {
                tracing::warn!(%error, "failed to start a writer; the body shares one");
                None
            }
        }
    }

    /// Seals the body's own segment, if it has one.
    pub(super) fn finish_own(&self, body: BodyId) {
        if let Some(own) = self.started.lock().own.remove(&body) {
            own.queue.close(QueueClose::Seal);
        }
    }

    /// Seals the own segments of bodies that got no chunk for `idle_max`.
    pub(super) fn seal_idle(&self, idle_max: Duration) {
        self.started.lock().own.retain(|_, own| {
            let keep = own.queue.idle_for() < idle_max;
            if !keep {
                own.queue.close(QueueClose::Seal);
            }
            keep
        });
    }

    /// Closes every queue.
    pub(super) fn close(&self, close: QueueClose) {
        let mut started = self.started.lock();
        started.running = None;
        started.own.drain().for_each(|(_, own)| own.queue.close(close));
        let shared = std::mem::take(&mut started.shared);
        shared.values().chain(self.first.all()).for_each(|queue| queue.close(close));
    }
}

fn start_writer(
    shared: &Arc<WriterShared>,
    class: SegmentClass,
    set: u32,
    room: Arc<Semaphore>,
    running: mpsc::Sender<()>,
) -> io::Result<Arc<AppendQueue>> {
    let queue = Arc::new(AppendQueue::new(room));
    let writer = SegmentWriter::new(class, set, shared.clone(), queue.clone());
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

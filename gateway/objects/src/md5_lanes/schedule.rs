//! Decides which chunks are hashed together and when. It has no bytes, threads or clock.
//!
//! The more streams a batch has, the less each of them costs, so a batch waits until every open stream has a
//! chunk. It begins immediately when a caller waits for its result, when it is full, and when the queued
//! chunks are large in total. A batch does not wait for a stream that had no chunk when the previous batch
//! began, until that stream gets a chunk. A batch takes the oldest chunk of each stream, so the chunks of a
//! stream are hashed in order. Streams with waiting callers go first, then those with the oldest chunks. All
//! state is in memory, so a power failure changes nothing.

use mlgw_common::limits::{LOCKSTEP_LANES_MAX, UNHASHED_BYTES_MAX};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The id of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct StreamId(u64);

/// A stream that has a chunk to hash. The order is the one in which batches take them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ReadyStream {
    /// True if no caller waits for its next chunk.
    is_relaxed: bool,
    /// The number of its next chunk among all chunks.
    came: u64,
    id: StreamId,
}

/// All open streams with their queued chunks (`C`).
pub(super) struct LaneSchedule<C> {
    streams: BTreeMap<StreamId, ScheduledStream<C>>,
    /// Streams with a chunk that a batch may take.
    ready: BTreeSet<ReadyStream>,
    /// Streams without a chunk that a batch waits for.
    awaited: BTreeSet<StreamId>,
    /// Streams in running batches.
    running: usize,
    /// Bytes of all queued chunks.
    bytes: usize,
    opened: u64,
    pushed: u64,
}

struct ScheduledStream<C> {
    queue: VecDeque<QueuedHashChunk<C>>,
    /// Chunks that batches have taken so far.
    taken: u64,
    /// The number of chunks, from the first, that the caller waits for.
    expedited: u64,
    running: bool,
}

struct QueuedHashChunk<C> {
    came: u64,
    bytes: usize,
    chunk: C,
}

impl<C> ScheduledStream<C> {
    /// Returns its entry in the order if it has a chunk that a batch may take.
    fn ready_entry(&self, id: StreamId) -> Option<ReadyStream> {
        let next = self.queue.front().filter(|_| !self.running)?;
        Some(ReadyStream { is_relaxed: self.expedited <= self.taken, came: next.came, id })
    }
}

impl<C> LaneSchedule<C> {
    pub(super) const fn new() -> Self {
        Self {
            streams: BTreeMap::new(),
            ready: BTreeSet::new(),
            awaited: BTreeSet::new(),
            running: 0,
            bytes: 0,
            opened: 0,
            pushed: 0,
        }
    }

    /// Opens a stream. Batches wait for it.
    pub(super) fn open(&mut self) -> StreamId {
        let id = StreamId(self.opened);
        self.opened += 1;
        self.streams
            .insert(id, ScheduledStream { queue: VecDeque::new(), taken: 0, expedited: 0, running: false });
        self.awaited.insert(id);
        id
    }

    /// Closes a stream and returns its queued chunks.
    pub(super) fn close(&mut self, id: StreamId) -> Vec<C> {
        let Some(stream) = self.streams.remove(&id) else { return Vec::new() };
        self.awaited.remove(&id);
        stream
            .ready_entry(id)
            .iter()
            .for_each(|place| assert!(self.ready.remove(place), "a stream that is taken was ready"));
        self.bytes -= stream.queue.iter().map(|queued| queued.bytes).sum::<usize>();
        stream.queue.into_iter().map(|queued| queued.chunk).collect()
    }

    /// Adds the next chunk of a stream.
    pub(super) fn push(&mut self, id: StreamId, bytes: usize, chunk: C) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        stream.queue.push_back(QueuedHashChunk { came: self.pushed, bytes, chunk });
        self.pushed += 1;
        self.bytes += bytes;
        self.awaited.remove(&id);
        self.ready.extend(stream.ready_entry(id));
    }

    /// Declares that the caller of a stream waits for its first `chunks`.
    pub(super) fn expedite(&mut self, id: StreamId, chunks: u64) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        stream
            .ready_entry(id)
            .iter()
            .for_each(|place| assert!(self.ready.remove(place), "a stream that is taken was ready"));
        stream.expedited = stream.expedited.max(chunks);
        self.ready.extend(stream.ready_entry(id));
    }

    /// Returns the next batch if one is due: one chunk of each stream. It runs until [`LaneSchedule::end`].
    pub(super) fn begin(&mut self) -> Vec<(StreamId, C)> {
        if !self.is_due() {
            return Vec::new();
        }
        self.awaited.clear();
        let mut batch = Vec::new();
        while batch.len() < LOCKSTEP_LANES_MAX
            && let Some(ReadyStream { id, .. }) = self.ready.pop_first()
            && let Some(stream) = self.streams.get_mut(&id)
            && let Some(next) = stream.queue.pop_front()
        {
            assert!(!stream.running, "a batch takes one chunk of a stream at a time");
            assert!(next.bytes <= self.bytes, "the bytes of queued chunks are counted");
            stream.taken += 1;
            stream.running = true;
            self.running += 1;
            self.bytes -= next.bytes;
            batch.push((id, next.chunk));
        }
        batch
    }

    /// Returns the bytes of all queued chunks.
    #[cfg(test)]
    pub(super) fn waiting_bytes(&self) -> usize {
        self.bytes
    }

    fn is_due(&self) -> bool {
        let Some(first) = self.ready.first() else { return false };
        let complete = self.awaited.is_empty() && self.running == 0;
        complete
            || !first.is_relaxed
            || self.ready.len() >= LOCKSTEP_LANES_MAX
            || self.bytes >= UNHASHED_BYTES_MAX
    }

    /// Ends a batch.
    pub(super) fn end(&mut self, batch: impl IntoIterator<Item = StreamId>) {
        for id in batch {
            assert!(self.running > 0, "a batch ends once");
            self.running -= 1;
            // The stream may have been closed meanwhile.
            let Some(stream) = self.streams.get_mut(&id) else { continue };
            stream.running = false;
            match stream.ready_entry(id) {
                Some(place) => assert!(self.ready.insert(place), "a running stream was not ready"),
                None => assert!(self.awaited.insert(id), "a running stream was not awaited"),
            }
        }
    }
}

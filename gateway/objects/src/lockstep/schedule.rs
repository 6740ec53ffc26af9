//! Who is hashed when, and with whom: decisions without bytes or threads.
//!
//! The more streams go in lockstep the less each of them costs, so a batch waits until every open stream has something
//! for it. It does not wait long. It begins at once when somebody waits for its result, when it is as large as
//! it can be, and when much lies here; and a stream that a batch began without is not waited for again until it
//! has brought something. No time is looked at. Of each stream a batch takes the oldest chunk, so chunks of a stream are
//! hashed in their order; who is waited for goes first, then what lies longest. All of it is in memory.

use mlgw_common::limits::{LOCKSTEP_LANES_MAX, UNHASHED_BYTES_MAX};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Names a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct StreamId(u64);

/// The place of a stream among those that are ready. In this order they are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    /// Nobody waits for its next chunk.
    calm: bool,
    /// When its next chunk came, among all chunks.
    came: u64,
    id: StreamId,
}

/// All open streams, with the chunks (`C`) of each that are to be hashed.
pub(super) struct Schedule<C> {
    streams: BTreeMap<StreamId, Stream<C>>,
    /// Streams with a chunk that may be taken.
    ready: BTreeSet<Place>,
    /// Streams without a chunk that are waited for.
    awaited: BTreeSet<StreamId>,
    /// Streams in batches.
    running: usize,
    /// Bytes of all chunks here.
    bytes: usize,
    opened: u64,
    pushed: u64,
}

struct Stream<C> {
    queue: VecDeque<Queued<C>>,
    /// Chunks that were taken so far.
    taken: u64,
    /// As many chunks, from the first, are waited for.
    hurried: u64,
    running: bool,
}

struct Queued<C> {
    came: u64,
    bytes: usize,
    chunk: C,
}

impl<C> Stream<C> {
    /// Its place, when it has a chunk that may be taken.
    fn place(&self, id: StreamId) -> Option<Place> {
        let next = self.queue.front().filter(|_| !self.running)?;
        Some(Place { calm: self.hurried <= self.taken, came: next.came, id })
    }
}

impl<C> Schedule<C> {
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

    /// Opens a stream, which others wait for.
    pub(super) fn open(&mut self) -> StreamId {
        let id = StreamId(self.opened);
        self.opened += 1;
        self.streams.insert(id, Stream { queue: VecDeque::new(), taken: 0, hurried: 0, running: false });
        self.awaited.insert(id);
        id
    }

    /// Forgets a stream and returns what it still had here.
    pub(super) fn close(&mut self, id: StreamId) -> Vec<C> {
        let Some(stream) = self.streams.remove(&id) else { return Vec::new() };
        self.awaited.remove(&id);
        stream
            .place(id)
            .iter()
            .for_each(|place| assert!(self.ready.remove(place), "who may be taken is ready"));
        self.bytes -= stream.queue.iter().map(|queued| queued.bytes).sum::<usize>();
        stream.queue.into_iter().map(|queued| queued.chunk).collect()
    }

    /// Adds the next chunk of a stream.
    pub(super) fn push(&mut self, id: StreamId, bytes: usize, chunk: C) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        stream.queue.push_back(Queued { came: self.pushed, bytes, chunk });
        self.pushed += 1;
        self.bytes += bytes;
        self.awaited.remove(&id);
        self.ready.extend(stream.place(id));
    }

    /// Says that the owner of a stream waits for its first `chunks`, counted from its beginning.
    pub(super) fn hurry(&mut self, id: StreamId, chunks: u64) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        stream
            .place(id)
            .iter()
            .for_each(|place| assert!(self.ready.remove(place), "who may be taken is ready"));
        stream.hurried = stream.hurried.max(chunks);
        self.ready.extend(stream.place(id));
    }

    /// The next batch, if one is to begin: of each stream one chunk. It runs until [`Schedule::end`].
    pub(super) fn begin(&mut self) -> Vec<(StreamId, C)> {
        if !self.is_due() {
            return Vec::new();
        }
        self.awaited.clear();
        let mut batch = Vec::new();
        while batch.len() < LOCKSTEP_LANES_MAX
            && let Some(Place { id, .. }) = self.ready.pop_first()
            && let Some(stream) = self.streams.get_mut(&id)
            && let Some(next) = stream.queue.pop_front()
        {
            stream.taken += 1;
            stream.running = true;
            self.running += 1;
            self.bytes -= next.bytes;
            batch.push((id, next.chunk));
        }
        batch
    }

    /// Bytes of all chunks that were not yet taken.
    #[cfg(test)]
    pub(super) fn waiting_bytes(&self) -> usize {
        self.bytes
    }

    fn is_due(&self) -> bool {
        let Some(first) = self.ready.first() else { return false };
        let complete = self.awaited.is_empty() && self.running == 0;
        complete || !first.calm || self.ready.len() >= LOCKSTEP_LANES_MAX || self.bytes >= UNHASHED_BYTES_MAX
    }

    /// Says that a batch was hashed.
    pub(super) fn end(&mut self, batch: impl IntoIterator<Item = StreamId>) {
        for id in batch {
            self.running -= 1;
            // A stream may have been closed meanwhile.
            let Some(stream) = self.streams.get_mut(&id) else { continue };
            stream.running = false;
            match stream.place(id) {
                Some(place) => assert!(self.ready.insert(place), "who was running was not ready"),
                None => assert!(self.awaited.insert(id), "who was running was not awaited"),
            }
        }
    }
}

//! Chunks that wait for their writer, bounded in bytes.
//!
//! Whoever appends takes the bytes' worth of permits first and waits for them when the queue is
//! full; the writer gives them back when it has answered. A future that is dropped while its
//! chunk waits changes nothing: the chunk is written and the answer goes nowhere.
//!
//! Clients that were answered together come back one behind the other, and a writer that syncs for
//! the first of them makes all others wait for a second sync. So while chunks keep coming the
//! writer lets them gather, as long as the last sync took at most.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::{Condvar, Mutex, MutexGuard};
use tokio::sync::{Semaphore, oneshot};

use super::AppendError;
use super::holds::Hold;
use super::location::Location;
use super::record::Owner;

pub(super) struct Pending {
    pub(super) owner: Owner,
    pub(super) data: Bytes,
    /// Bytes of its record.
    pub(super) bytes: usize,
    pub(super) arrived: Instant,
    pub(super) reply: oneshot::Sender<Result<Placed, AppendError>>,
}

/// Where a chunk was stored, and what keeps its segment until the chunk is named.
pub(super) struct Placed {
    pub(super) location: Location,
    pub(super) hold: Hold,
}

/// How a writer ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Close {
    /// Writes what waits and seals its segment.
    Seal,
    /// Answers what waits with an error and leaves the segment to recovery, as a killed process
    /// would.
    Abandon,
}

pub(super) enum Taken {
    Batch(Vec<Pending>),
    /// Begin another segment if the open one was given up.
    Roll,
    Closed(Close),
}

/// The queue was closed; nothing was taken.
#[derive(Debug)]
pub(super) struct Closed;

pub(super) struct Queue {
    state: Mutex<State>,
    arrived: Condvar,
    room: Arc<Semaphore>,
}

/// While chunks gather, the next is waited for this long: a few times what lies between two
/// requests of a busy server, and no less than the system's timers can tell apart.
const GATHER_STEP: Duration = Duration::from_micros(100);

struct State {
    waiting: Vec<Pending>,
    /// The writer looks again by itself: nobody needs to wake it.
    gathering: bool,
    roll: bool,
    close: Option<Close>,
    used: Instant,
}

impl Queue {
    /// A queue whose waiting bytes are taken from `room`.
    pub(super) fn new(room: Arc<Semaphore>) -> Self {
        let state =
            State { waiting: Vec::new(), gathering: false, roll: false, close: None, used: Instant::now() };
        Self { state: Mutex::new(state), arrived: Condvar::new(), room }
    }

    /// Puts a chunk in line, waiting for room first.
    pub(super) async fn push(
        &self,
        owner: &Owner,
        data: &Bytes,
        bytes: usize,
    ) -> Result<oneshot::Receiver<Result<Placed, AppendError>>, Closed> {
        let permit = self.room.acquire_many(bytes as u32).await.map_err(|_| Closed)?;
        let (reply, answer) = oneshot::channel();
        let arrived = Instant::now();
        let pending = Pending { owner: owner.clone(), data: data.clone(), bytes, arrived, reply };
        let mut state = self.state.lock();
        if state.close.is_some() {
            return Err(Closed);
        }
        state.used = arrived;
        state.waiting.push(pending);
        let wake = !state.gathering;
        drop(state);
        permit.forget();
        if wake {
            self.arrived.notify_one();
        }
        Ok(answer)
    }

    /// Everything that waits, as soon as anything does, or once it has gathered for `patience` at
    /// most. Blocks.
    pub(super) fn take(&self, patience: Duration) -> Taken {
        let mut state = self.state.lock();
        loop {
            if let Some(Close::Abandon) = state.close {
                return Taken::Closed(Close::Abandon);
            }
            if !state.waiting.is_empty() {
                self.gather(&mut state, patience);
                return Taken::Batch(std::mem::take(&mut state.waiting));
            }
            if let Some(close) = state.close {
                return Taken::Closed(close);
            }
            if std::mem::take(&mut state.roll) {
                return Taken::Roll;
            }
            self.arrived.wait(&mut state);
        }
    }

    /// Waits while chunks keep coming.
    fn gather(&self, state: &mut MutexGuard<'_, State>, patience: Duration) {
        let begin = Instant::now();
        state.gathering = true;
        let mut seen = 0;
        while state.close.is_none() && state.waiting.len() > seen && begin.elapsed() + GATHER_STEP <= patience
        {
            seen = state.waiting.len();
            self.arrived.wait_for(state, GATHER_STEP);
        }
        state.gathering = false;
    }

    /// Gives back the room of chunks that were answered.
    pub(super) fn answered(&self, bytes: usize) {
        self.room.add_permits(bytes);
    }

    /// Has the writer begin another segment if the open one was given up, without a chunk for it.
    pub(super) fn roll(&self) {
        self.state.lock().roll = true;
        self.arrived.notify_one();
    }

    /// Takes no more chunks. A first close stands.
    pub(super) fn close(&self, close: Close) {
        self.state.lock().close.get_or_insert(close);
        self.arrived.notify_one();
    }

    /// Takes no more chunks and answers those that wait by dropping them.
    pub(super) fn abandon(&self) {
        let mut state = self.state.lock();
        state.close.get_or_insert(Close::Abandon);
        self.room.add_permits(state.waiting.drain(..).map(|pending| pending.bytes).sum());
    }

    pub(super) fn idle_for(&self) -> Duration {
        self.state.lock().used.elapsed()
    }
}

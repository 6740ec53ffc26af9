//! Admission to a disk: lanes with a share each, so that no class of traffic starves another.
//!
//! A disk executes [`DISK_PLACES`] requests at a time; more would only slow down all of them. A request that
//! finds a free slot starts immediately. When all slots are taken, requests wait in lanes, and freed slots
//! are assigned by start-time fair queueing with depth ([`schedule`]): each lane gets its weight's share of
//! the bytes, an idle lane leaves its share to the others, and a request of a lane that was idle goes next.
//! Within a lane, ranks share in the same way. Invariants: no request waits while a slot is free; the holder
//! of a slot never waits for another slot, so slots are always released.
//!
//! Nothing is persisted.

mod lane;
mod schedule;

pub use lane::{Lane, Turn};

use lane::RANKS;
use mlgw_common::histogram::{Durations, Histogram};
use mlgw_common::limits::DISK_PLACES;
use mlgw_policies::language::{Priority, Word as _};
use parking_lot::Mutex;
use schedule::Schedule;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// Fixed cost of a request in addition to its bytes: about what a disk of 1 GB/s transfers in the 60 µs that
/// even the smallest request takes.
const REQUEST_COST_BYTES: u64 = 64 << 10;

/// Flag in the state word: at least one request waits. The bits below count the slots in use.
const WAITING: u64 = 1 << 63;

/// The slots of a disk. Clones share them.
#[derive(Clone)]
pub struct Fair {
    inner: Arc<Inner>,
}

struct Inner {
    state: AtomicU64,
    places: u64,
    /// Locked briefly, never across an await.
    waiting: Mutex<Waiting>,
    waits: [Histogram; Lane::ALL.len()],
}

type Waiting = Schedule<oneshot::Sender<Grant>, RANKS>;

/// The disk queues of a node, one per class of device so that slow disks do not delay fast ones. Clones share
/// them.
#[derive(Clone, Default)]
pub struct DiskQueues {
    /// Queue of the hot tier's disk, which also holds the clean copies.
    pub hot: Fair,
    /// Queue of the cold tier's disks.
    pub cold: Fair,
}

impl DiskQueues {
    /// True if all slots of at least one queue are taken, so that a new request may have to wait.
    #[must_use]
    pub fn are_busy(&self) -> bool {
        self.hot.is_busy() || self.cold.is_busy()
    }

    /// Returns the queue of the disk that holds a tier's segments, by the tier number in their records.
    pub(crate) fn of_tier(&self, tier: u32) -> &Fair {
        if tier == 0 { &self.hot } else { &self.cold }
    }
}

/// Metrics of a disk queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FairMetrics {
    /// Slots in use.
    pub taken: u64,
    /// By lane: its name, the number of waiting requests, and the wait times of all requests admitted since
    /// the start.
    pub lanes: Vec<(&'static str, u64, Durations)>,
}

/// A slot at the disk, released on drop.
#[must_use]
pub struct Place<'f> {
    inner: &'f Arc<Inner>,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.inner.leave();
    }
}

/// A slot on its way to a waiter; released if the waiter does not take it.
struct Grant {
    inner: Option<Arc<Inner>>,
}

impl Drop for Grant {
    fn drop(&mut self) {
        if let Some(inner) = self.inner.take() {
            inner.leave();
        }
    }
}

impl Default for Fair {
    fn default() -> Self {
        Self::new(DISK_PLACES)
    }
}

impl Fair {
    /// Creates the queue of a disk that executes at most this many requests at a time (at least one).
    #[must_use]
    pub fn new(places: usize) -> Self {
        let mut ranks = [0; RANKS];
        Priority::ALL.iter().for_each(|rank| ranks[*rank as usize] = Turn::weight_of(*rank));
        let inner = Inner {
            state: AtomicU64::new(0),
            places: places.max(1) as u64,
            waiting: Mutex::new(Schedule::new(Lane::ALL.map(Lane::weight), ranks)),
            waits: Default::default(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Returns a slot if one is free and no request waits.
    pub fn try_enter(&self, lane: Lane) -> Option<Place<'_>> {
        let inner = &self.inner;
        let mut state = inner.state.load(Relaxed);
        // With [`WAITING`] set the state is greater than any number of slots.
        while state < inner.places {
            match inner.state.compare_exchange_weak(state, state + 1, Acquire, Relaxed) {
                Ok(_) => {
                    inner.waits[lane as usize].record(Duration::ZERO);
                    return Some(Place { inner });
                }
                Err(other) => state = other,
            }
        }
        None
    }

    /// Waits for a slot for a request of `bytes`. Cancel-safe: if the future is dropped, the slot goes to
    /// another waiter.
    pub async fn enter(&self, turn: impl Into<Turn>, bytes: u64) -> Place<'_> {
        let turn = turn.into();
        if let Some(place) = self.try_enter(turn.lane) {
            return place;
        }
        // Boxed because the slow path is rare and its future is large.
        Box::pin(self.wait(turn, bytes)).await
    }

    /// Like [`Fair::enter`], for a thread that may block.
    pub fn enter_blocking(&self, lane: Lane, bytes: u64) -> Place<'_> {
        if let Some(place) = self.try_enter(lane) {
            return place;
        }
        let begun = Instant::now();
        let grant = self.inner.queue(lane.into(), bytes).blocking_recv();
        self.inner.granted(lane, begun, grant)
    }

    async fn wait(&self, turn: Turn, bytes: u64) -> Place<'_> {
        let begun = Instant::now();
        let grant = self.inner.queue(turn, bytes).await;
        self.inner.granted(turn.lane, begun, grant)
    }

    fn is_busy(&self) -> bool {
        self.inner.state.load(Relaxed) >= self.inner.places
    }

    /// Returns the current metrics.
    #[must_use]
    pub fn metrics(&self) -> FairMetrics {
        let waiting = self.inner.waiting.lock().waiting();
        let lane = |lane: Lane| {
            let at = lane as usize;
            (lane.name(), waiting[at] as u64, self.inner.waits[at].snapshot())
        };
        FairMetrics {
            taken: self.inner.state.load(Relaxed) & !WAITING,
            lanes: Lane::ALL.into_iter().map(lane).collect(),
        }
    }
}

impl Inner {
    /// Queues a request in its lane and returns the receiver of its slot.
    fn queue(self: &Arc<Self>, turn: Turn, bytes: u64) -> oneshot::Receiver<Grant> {
        let (reply, grant) = oneshot::channel();
        let mut waiting = self.waiting.lock();
        let cost = bytes.saturating_add(REQUEST_COST_BYTES);
        waiting.arrive(turn.lane as usize, turn.rank as usize, cost, reply);
        // A release after this line sees the flag and assigns the slot; a release before it left a free slot,
        // which the call below assigns.
        self.state.fetch_or(WAITING, AcqRel);
        self.give_out(&mut waiting);
        grant
    }

    fn granted(
        self: &Arc<Self>,
        lane: Lane,
        begun: Instant,
        grant: Result<Grant, oneshot::error::RecvError>,
    ) -> Place<'_> {
        self.waits[lane as usize].record(begun.elapsed());
        match grant {
            Ok(mut grant) => grant.inner = None,
            // Unreachable: every queued request is answered, since the schedule lives as long as `self`. If
            // it happened, running without a slot would be better than never running.
            Err(_) => drop(self.state.fetch_add(1, AcqRel)),
        }
        Place { inner: self }
    }

    fn leave(self: &Arc<Self>) {
        // Another thread may be about to clear the flag; then the schedule is empty and this call is a no-op.
        if self.state.fetch_sub(1, AcqRel) & WAITING != 0 {
            let mut waiting = self.waiting.lock();
            self.give_out(&mut waiting);
        }
    }

    /// Assigns free slots to waiting requests.
    fn give_out(self: &Arc<Self>, waiting: &mut Waiting) {
        while !waiting.is_empty() {
            let take = |state: u64| (state & !WAITING < self.places).then_some(state + 1);
            if self.state.fetch_update(AcqRel, Relaxed, take).is_err() {
                return;
            }
            if !self.give(waiting) {
                self.state.fetch_sub(1, AcqRel);
            }
        }
        self.state.fetch_and(!WAITING, AcqRel);
    }

    /// Gives a slot, already counted as taken, to the next live waiter. Returns false if there is none.
    fn give(self: &Arc<Self>, waiting: &mut Waiting) -> bool {
        while let Some(reply) = waiting.next() {
            match reply.send(Grant { inner: Some(self.clone()) }) {
                Ok(()) => return true,
                // The waiter was dropped; the slot stays counted, for the next waiter.
                Err(mut grant) => grant.inner = None,
            }
        }
        false
    }
}

#[cfg(test)]
mod tests;

//! Who goes to a disk next: lanes that each have a share, so that none starves another.
//!
//! A disk takes [`DISK_PLACES`] requests at a time; with more it would only be slower for all. Who finds a
//! place free goes at once. When all are taken, requests wait in lanes, and places that become free are given
//! out by start-time fair queueing with depth ([`schedule`]): each lane gets its weight's share of the bytes,
//! a lane that has nothing to do leaves its share to the others, and a request of a lane that was idle goes
//! next; within a lane it is the same with ranks. Always: nobody waits while a place is free; whoever has a
//! place waits for no other one, so places always come back.
//!
//! Nothing is kept over a restart.

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

/// What a request costs beyond its bytes: about what a disk of 1 GB/s does in the 60 µs that a request takes
/// however small it is.
const REQUEST_COST_BYTES: u64 = 64 << 10;

/// Set in the state while somebody waits; below it the places that are taken.
const WAITING: u64 = 1 << 63;

/// The places of a disk. Clones are the same.
#[derive(Clone)]
pub struct Fair {
    inner: Arc<Inner>,
}

struct Inner {
    state: AtomicU64,
    places: u64,
    /// Held for moments, never across anything that waits.
    waiting: Mutex<Waiting>,
    waits: [Histogram; Lane::ALL.len()],
}

type Waiting = Schedule<oneshot::Sender<Grant>, RANKS>;

/// The disks of a node: what is fast is not held up by what is slow. Clones are the same.
#[derive(Clone, Default)]
pub struct DiskQueues {
    /// That of the hot tier, and of clean copies.
    pub hot: Fair,
    /// Those of the cold tier.
    pub cold: Fair,
}

impl DiskQueues {
    /// Whether on one of them all places are taken: who comes now may have to wait.
    #[must_use]
    pub fn are_busy(&self) -> bool {
        self.hot.is_busy() || self.cold.is_busy()
    }

    /// The places of the disk that a tier's segments are on, by the number in their records.
    pub(crate) fn of_tier(&self, tier: u32) -> &Fair {
        if tier == 0 { &self.hot } else { &self.cold }
    }
}

/// What is told of the places of a disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FairMetrics {
    /// Places that are taken.
    pub taken: u64,
    /// For each lane: requests that wait, and how long those waited that have a place since the start.
    pub lanes: Vec<(&'static str, u64, Durations)>,
}

/// A place at the disk, given back when it is dropped.
#[must_use]
pub struct Place<'f> {
    inner: &'f Arc<Inner>,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.inner.leave();
    }
}

/// A place on its way to who waits for it; given back when nobody takes it.
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
    /// A disk that takes so many requests at a time, at least one.
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

    /// A place now, if one is free and nobody waits.
    pub fn try_enter(&self, lane: Lane) -> Option<Place<'_>> {
        let inner = &self.inner;
        let mut state = inner.state.load(Relaxed);
        // With somebody waiting the state is greater than any number of places.
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

    /// A place for a request of so many bytes. The future may be dropped: then another gets the place.
    pub async fn enter(&self, turn: impl Into<Turn>, bytes: u64) -> Place<'_> {
        let turn = turn.into();
        if let Some(place) = self.try_enter(turn.lane) {
            return place;
        }
        // Rare, and larger than what goes at once.
        Box::pin(self.wait(turn, bytes)).await
    }

    /// The same, for a thread that may block.
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

    /// What is told of it.
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
    /// Puts a request in its lane.
    fn queue(self: &Arc<Self>, turn: Turn, bytes: u64) -> oneshot::Receiver<Grant> {
        let (reply, grant) = oneshot::channel();
        let mut waiting = self.waiting.lock();
        let cost = bytes.saturating_add(REQUEST_COST_BYTES);
        waiting.arrive(turn.lane as usize, turn.rank as usize, cost, reply);
        // Whoever leaves from now on comes by here; who left before has left a place.
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
            // Those who wait are answered, for the schedule is there as long as this is. Were it not so, to
            // go without would be better than not at all.
            Err(_) => drop(self.state.fetch_add(1, AcqRel)),
        }
        Place { inner: self }
    }

    fn leave(self: &Arc<Self>) {
        // Another thread may be about to see that nobody waits any more: then there is nobody to be found.
        if self.state.fetch_sub(1, AcqRel) & WAITING != 0 {
            let mut waiting = self.waiting.lock();
            self.give_out(&mut waiting);
        }
    }

    /// Gives free places to those who wait.
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

    /// Gives a place that is taken to the next who still waits for it; says whether there was one.
    fn give(self: &Arc<Self>, waiting: &mut Waiting) -> bool {
        while let Some(reply) = waiting.next() {
            match reply.send(Grant { inner: Some(self.clone()) }) {
                Ok(()) => return true,
                // It was given up; the place is still taken, for the next one.
                Err(mut grant) => grant.inner = None,
            }
        }
        false
    }
}

#[cfg(test)]
mod tests;

//! Admission to a disk: lanes with a share each, so that no class of traffic starves another.
//!
//! A disk executes [`DISK_SLOTS`] requests at a time; more would only slow down all of them. A request that
//! finds a free slot starts immediately. When all slots are taken, requests wait in lanes, and freed slots
//! are assigned by start-time fair queueing with depth ([`schedule`]): each lane gets its weight's share of
//! the bytes, an idle lane leaves its share to the others, and a request of a lane that was idle goes next.
//! Within a lane, ranks share in the same way. Invariants: no request waits while a slot is free; the holder
//! of a slot never waits for another slot, so slots are always released.
//!
//! Nothing is persisted.

mod lane;
mod schedule;

pub use lane::ServiceClass;
pub use mlgw_policies::language::Lane;

use lane::{LANES, RANKS, weight_of_lane};
use mlgw_common::SegmentTier;
use mlgw_common::histogram::{DurationHistogram, Durations};
use mlgw_common::limits::DISK_SLOTS;
use mlgw_common::time::Instant;
use mlgw_policies::language::{Priority, Word as _};
use parking_lot::Mutex;
use schedule::FairSchedule;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed};
use std::time::Duration;
use tokio::sync::oneshot;

/// Fixed cost of a request in addition to its bytes: about what a disk of 1 GB/s transfers in the 60 µs that
/// even the smallest request takes.
const REQUEST_COST_BYTES: u64 = 64 << 10;

/// Flag in the state word: at least one request waits. The bits below count the slots in use.
const WAITING_FLAG: u64 = 1 << 63;

/// The slots of a disk. Clones share them.
#[derive(Clone)]
pub struct DiskQueue {
    inner: Arc<DiskQueueInner>,
}

struct DiskQueueInner {
    state: AtomicU64,
    slots: u64,
    /// Locked briefly, never across an await.
    waiting: Mutex<WaitingRequests>,
    wait_times: [DurationHistogram; LANES],
}

type WaitingRequests = FairSchedule<oneshot::Sender<SlotGrant>, RANKS>;

/// The disk queues of a node, one per class of device so that slow disks do not delay fast ones. Clones share
/// them.
#[derive(Clone, Default)]
pub struct DiskQueues {
    /// Queue of the hot tier's disk, which also holds the clean copies.
    pub hot: DiskQueue,
    /// Queue of the cold tier's disks.
    pub cold: DiskQueue,
}

impl DiskQueues {
    /// True if all slots of at least one queue are taken, so that a new request may have to wait.
    #[must_use]
    pub fn is_any_busy(&self) -> bool {
        self.hot.is_busy() || self.cold.is_busy()
    }

    /// Returns the queue of the disk that holds a tier's segments.
    pub(crate) fn for_tier(&self, tier: SegmentTier) -> &DiskQueue {
        match tier {
            SegmentTier::Hot => &self.hot,
            SegmentTier::Cold | SegmentTier::Upstream => &self.cold,
        }
    }
}

/// Metrics of a disk queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiskQueueMetrics {
    /// Slots in use.
    pub slots_in_use: u64,
    /// By lane: its name, the number of waiting requests, and the wait times of all requests admitted since
    /// the start.
    pub lanes: Vec<(&'static str, u64, Durations)>,
}

/// A slot at the disk, released on drop.
#[must_use]
pub struct DiskSlot<'f> {
    inner: &'f Arc<DiskQueueInner>,
}

impl Drop for DiskSlot<'_> {
    fn drop(&mut self) {
        self.inner.release();
    }
}

/// A slot on its way to a waiter; released if the waiter does not take it.
struct SlotGrant {
    inner: Option<Arc<DiskQueueInner>>,
}

impl Drop for SlotGrant {
    fn drop(&mut self) {
        if let Some(inner) = self.inner.take() {
            inner.release();
        }
    }
}

impl Default for DiskQueue {
    fn default() -> Self {
        Self::new(DISK_SLOTS)
    }
}

impl DiskQueue {
    /// Creates the queue of a disk that executes at most this many requests at a time (at least one).
    #[must_use]
    pub fn new(slots: usize) -> Self {
        let mut ranks = [0; RANKS];
        Priority::ALL.iter().for_each(|rank| ranks[*rank as usize] = ServiceClass::weight_of(*rank));
        let lanes = Lane::ALL.iter().map(|lane| weight_of_lane(*lane));
        let inner = DiskQueueInner {
            state: AtomicU64::new(0),
            slots: slots.max(1) as u64,
            waiting: Mutex::new(FairSchedule::new(lanes, ranks)),
            wait_times: Default::default(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Returns a slot if one is free and no request waits.
    pub fn try_acquire(&self, lane: Lane) -> Option<DiskSlot<'_>> {
        let inner = &self.inner;
        let mut state = inner.state.load(Relaxed);
        // With [`WAITING_FLAG`] set the state is greater than any number of slots.
        while state < inner.slots {
            match inner.state.compare_exchange_weak(state, state + 1, Acquire, Relaxed) {
                Ok(_) => {
                    inner.wait_times[lane as usize].record(Duration::ZERO);
                    return Some(DiskSlot { inner });
                }
                Err(other) => state = other,
            }
        }
        None
    }

    /// Waits for a slot for a request of `bytes`. Cancel-safe: if the future is dropped, the slot goes to
    /// another waiter.
    pub async fn acquire(&self, turn: impl Into<ServiceClass>, bytes: u64) -> DiskSlot<'_> {
        let turn = turn.into();
        if let Some(place) = self.try_acquire(turn.lane) {
            return place;
        }
        // Boxed because the slow path is rare and its future is large.
        Box::pin(self.wait(turn, bytes)).await
    }

    /// Like [`DiskQueue::acquire`], for a thread that may block.
    pub fn acquire_blocking(&self, lane: Lane, bytes: u64) -> DiskSlot<'_> {
        if let Some(place) = self.try_acquire(lane) {
            return place;
        }
        let begun = Instant::now();
        let grant = self.inner.enqueue(lane.into(), bytes).blocking_recv();
        self.inner.finish_wait(lane, begun, grant)
    }

    async fn wait(&self, turn: ServiceClass, bytes: u64) -> DiskSlot<'_> {
        let begun = Instant::now();
        let grant = self.inner.enqueue(turn, bytes).await;
        self.inner.finish_wait(turn.lane, begun, grant)
    }

    fn is_busy(&self) -> bool {
        self.inner.state.load(Relaxed) >= self.inner.slots
    }

    /// Returns the current metrics.
    #[must_use]
    pub fn metrics(&self) -> DiskQueueMetrics {
        let waiting = self.inner.waiting.lock().waiting();
        let lane = |lane: Lane| {
            let at = lane as usize;
            (lane.name(), waiting[at] as u64, self.inner.wait_times[at].snapshot())
        };
        DiskQueueMetrics {
            slots_in_use: self.inner.state.load(Relaxed) & !WAITING_FLAG,
            lanes: Lane::ALL.iter().copied().map(lane).collect(),
        }
    }
}

impl DiskQueueInner {
    /// Queues a request in its lane and returns the receiver of its slot.
    fn enqueue(self: &Arc<Self>, turn: ServiceClass, bytes: u64) -> oneshot::Receiver<SlotGrant> {
        let (reply, grant) = oneshot::channel();
        let mut waiting = self.waiting.lock();
        let cost = bytes.saturating_add(REQUEST_COST_BYTES);
        waiting.push(turn.lane as usize, turn.rank as usize, cost, reply);
        // A release after this line sees the flag and assigns the slot; a release before it left a free slot,
        // which the call below assigns.
        self.state.fetch_or(WAITING_FLAG, AcqRel);
        self.grant_free_slots(&mut waiting);
        grant
    }

    fn finish_wait(
        self: &Arc<Self>,
        lane: Lane,
        begun: Instant,
        grant: Result<SlotGrant, oneshot::error::RecvError>,
    ) -> DiskSlot<'_> {
        self.wait_times[lane as usize].record(begun.elapsed());
        match grant {
            Ok(mut grant) => grant.inner = None,
            // Unreachable: every queued request is answered, since the schedule lives as long as `self`. If
            // it happened, running without a slot would be better than never running.
            Err(_) => drop(self.state.fetch_add(1, AcqRel)),
        }
        DiskSlot { inner: self }
    }

    fn release(self: &Arc<Self>) {
        // Another thread may be about to clear the flag; then the schedule is empty and this call is a no-op.
        let before = self.state.fetch_sub(1, AcqRel);
        assert!(before & !WAITING_FLAG > 0, "a released slot was taken");
        if before & WAITING_FLAG != 0 {
            let mut waiting = self.waiting.lock();
            self.grant_free_slots(&mut waiting);
        }
    }

    /// Assigns free slots to waiting requests.
    fn grant_free_slots(self: &Arc<Self>, waiting: &mut WaitingRequests) {
        while !waiting.is_empty() {
            let take = |state: u64| (state & !WAITING_FLAG < self.slots).then_some(state + 1);
            if self.state.fetch_update(AcqRel, Relaxed, take).is_err() {
                return;
            }
            if !self.grant_to_next(waiting) {
                self.state.fetch_sub(1, AcqRel);
            }
        }
        self.state.fetch_and(!WAITING_FLAG, AcqRel);
    }

    /// Gives a slot, already counted as taken, to the next live waiter. Returns false if there is none.
    fn grant_to_next(self: &Arc<Self>, waiting: &mut WaitingRequests) -> bool {
        while let Some(reply) = waiting.pop() {
            match reply.send(SlotGrant { inner: Some(self.clone()) }) {
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

//! Placing: moves whole sealed segments between the hot tier, the cold tier and upstreams (spill and
//! promotion).
//!
//! Chunks of the segment that are read so often that they should stay are appended elsewhere in the hot tier
//! first. Then the segment is copied, the copy verified, and the segment's record changed to name the new
//! location, by compare and set. The old file is removed only after that change survives power loss and the
//! file is not pinned. References to the segment do not change. Readers find it through its record; a reader
//! that has the old file open continues to read it.
//!
//! Chunks that leave the tier because of a rule share segments with chunks that stay: the smaller part is
//! appended elsewhere first.
//!
//! The decisions are pure ([`choose`], [`job`]); `driver` carries them out at a bounded rate, one segment
//! after the other, in parallel with compaction: each claims a segment first, so that the two never work on
//! the same one.
//!
//! At a power loss: before the copy has its final name there is a file that is ignored; before the record
//! names the new location the copy is unused; after it the old file is. A start removes these files;
//! objects at upstreams are listed as leftovers and removed by the next pass.

pub(super) mod choose;
mod copy;
pub(super) mod driver;
mod fetch;
pub(super) mod heat;
pub(super) mod job;
pub(super) mod leftover_objects;
pub(super) mod reservation;
mod separation;
pub(super) mod stoppable_wait;
mod store;

use std::collections::{BTreeSet, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use mlgw_common::ids::{BodyId, SegmentId};
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::space::DiskSpace;
use choose::TierFill;
use mlgw_formats::decision_entry::{DecisionCause, RuleName};
use mlgw_formats::decision_words::DecisionReason;

/// Settings of moves between tiers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacingSettings {
    /// Percentage of the hot tier's capacity above which it spills.
    pub high_percent: u64,
    /// Percentage down to which it then spills.
    pub low_percent: u64,
    /// Maximum bytes of segments that are copied per second.
    pub bytes_per_second: u64,
}

impl Default for PlacingSettings {
    fn default() -> Self {
        Self { high_percent: 85, low_percent: 80, bytes_per_second: 256 << 20 }
    }
}

/// A request to move segments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlacingOrder {
    /// Move all sealed segments of the hot tier to the next lower tier.
    DrainHot,
    /// Move all segments of the cold tier to the hot tier.
    DrainCold,
    /// Move all segments of all upstreams to the hot tier.
    DrainUpstream,
    /// Promote these segments to the hot tier.
    Promote {
        /// The segments.
        segments: Vec<SegmentId>,
        /// The reason, for the decision log.
        why: DecisionCause,
    },
    /// Spill these segments from the hot tier; bodies in them that stay are appended elsewhere first.
    Spill {
        /// The segments and the bodies that leave.
        leaving: RuleSpill,
        /// True to move them as far as the upstream if there is one, from the cold tier as well.
        to_upstream: bool,
    },
    /// Append the bodies that leave these segments to segments of their own in the hot tier and seal those,
    /// so that they can be spilled.
    Gather(RuleSpill),
}

/// Bodies that leave the hot tier because of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleSpill {
    /// The segments with these bodies. Open ones are sealed.
    pub segments: Vec<SegmentId>,
    /// The bodies in them that leave.
    pub bodies: Arc<HashSet<BodyId>>,
    /// Name of the rule.
    pub rule: RuleName,
}

impl PlacingOrder {
    /// The reason of the moves, for the decision log.
    pub(super) fn why(&self) -> DecisionCause {
        match self {
            Self::DrainHot | Self::DrainCold | Self::DrainUpstream => DecisionReason::Drain.into(),
            Self::Promote { why, .. } => *why,
            Self::Spill { leaving, .. } | Self::Gather(leaving) => leaving.why(),
        }
    }

    /// The bodies that leave, if the order comes from a rule.
    fn rule_spill(&self) -> Option<&RuleSpill> {
        match self {
            Self::Spill { leaving, .. } | Self::Gather(leaving) => Some(leaving),
            Self::DrainHot | Self::DrainCold | Self::DrainUpstream | Self::Promote { .. } => None,
        }
    }
}

/// Progress of moves since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlacingStatus {
    /// Bytes of segments moved to the cold tier.
    pub spilled_bytes: u64,
    /// Bytes of segments moved from the cold tier to the hot tier.
    pub promoted_bytes: u64,
    /// Bytes of segments stored at upstreams.
    pub stored_bytes: u64,
    /// Bytes of segments fetched from upstreams.
    pub fetched_bytes: u64,
    /// Objects at upstreams that no record names and that could not be removed yet.
    pub leftover_objects: u64,
    /// Bytes of segments that are chosen and not moved yet.
    pub waiting_bytes: u64,
    /// Segments whose old files are removed when their readers finish.
    pub draining_segments: u64,
    /// Moves that failed and will be retried.
    pub failed: u64,
    /// Orders carried out, as far as possible.
    pub orders_done: u64,
    /// Passes that have ended since the start.
    pub passes: u64,
}

/// State shared by the driver and the callers of the tier.
#[derive(Debug, Default)]
pub(super) struct Placing {
    settings: Mutex<PlacingSettings>,
    orders: Mutex<PlacingOrderQueue>,
    /// Segments pinned by rules.
    pinned: Mutex<Arc<HashSet<SegmentId>>>,
    /// Segments with chunks that leave the tier next.
    leaving_segments: Mutex<BTreeSet<SegmentId>>,
    wake: Notify,
    /// True if the next pass removes leftover objects, regardless of the interval.
    sweep_requested: AtomicBool,
    passes_begun: AtomicU64,
    passes_ended: AtomicU64,
    spilled_bytes: AtomicU64,
    promoted_bytes: AtomicU64,
    stored_bytes: AtomicU64,
    fetched_bytes: AtomicU64,
    leftover_objects: AtomicU64,
    waiting_bytes: AtomicU64,
    draining_segments: AtomicU64,
    failed: AtomicU64,
}

#[derive(Debug, Default)]
struct PlacingOrderQueue {
    waiting: VecDeque<PlacingOrder>,
    done: u64,
}

impl Placing {
    pub(super) fn new(settings: PlacingSettings) -> Self {
        Self { settings: Mutex::new(settings), ..Self::default() }
    }

    pub(super) fn settings(&self) -> PlacingSettings {
        *self.settings.lock()
    }

    pub(super) fn set_settings(&self, settings: PlacingSettings) {
        *self.settings.lock() = settings;
    }

    /// Starts a pass now, or after the current one. Returns the number of ended passes at which that pass has
    /// ended.
    pub(super) fn start_pass(&self) -> u64 {
        // The count is read before the wake-up, since the pass may start immediately.
        let round = self.passes_begun.load(Relaxed) + 1;
        self.wake.notify_one();
        round
    }

    /// Starts a pass that removes leftover objects.
    pub(super) fn request_sweep(&self) {
        self.sweep_requested.store(true, Relaxed);
        self.wake.notify_one();
    }

    /// Called when a segment was sealed: starts a pass if the tier is so full that it spills.
    pub(super) fn segment_sealed(&self, space: &DiskSpace) {
        let fill = TierFill { used_bytes: space.used_bytes(), room_bytes: space.room_bytes() };
        if fill.excess_bytes(self.settings()) > 0 {
            self.start_pass();
        }
    }

    /// Waits until a pass is due.
    async fn next_pass(&self, interval: Duration) {
        // Due on a wake-up and on a timeout alike.
        drop(mlgw_common::time::timeout(interval, self.wake.notified()).await);
        self.passes_begun.fetch_add(1, Relaxed);
    }

    fn pass_ended(&self) {
        let ended = self.passes_ended.fetch_add(1, Relaxed) + 1;
        assert!(ended <= self.passes_begun.load(Relaxed), "a pass of moves ends after it began");
    }

    /// Queues an order. Returns the number of done orders at which this one is done.
    pub(super) fn queue_order(&self, order: PlacingOrder) -> u64 {
        let mut orders = self.orders.lock();
        orders.waiting.push_back(order);
        orders.done + orders.waiting.len() as u64
    }

    pub(super) fn set_pinned(&self, segments: HashSet<SegmentId>) {
        *self.pinned.lock() = Arc::new(segments);
    }

    pub(super) fn pinned(&self) -> Arc<HashSet<SegmentId>> {
        self.pinned.lock().clone()
    }

    /// Records that a chunk which leaves the tier next was appended to a segment.
    pub(super) fn add_leaving_segment(&self, segment: SegmentId) {
        self.leaving_segments.lock().insert(segment);
    }

    fn take_leaving_segments(&self) -> BTreeSet<SegmentId> {
        std::mem::take(&mut *self.leaving_segments.lock())
    }

    /// Returns the order to carry out now.
    fn current_order(&self) -> Option<PlacingOrder> {
        self.orders.lock().waiting.front().cloned()
    }

    /// Removes the current order, which was carried out as far as possible.
    fn order_done(&self) {
        let mut orders = self.orders.lock();
        if orders.waiting.pop_front().is_some() {
            orders.done += 1;
        }
    }

    pub(super) fn status(&self) -> PlacingStatus {
        PlacingStatus {
            spilled_bytes: self.spilled_bytes.load(Relaxed),
            promoted_bytes: self.promoted_bytes.load(Relaxed),
            stored_bytes: self.stored_bytes.load(Relaxed),
            fetched_bytes: self.fetched_bytes.load(Relaxed),
            leftover_objects: self.leftover_objects.load(Relaxed),
            waiting_bytes: self.waiting_bytes.load(Relaxed),
            draining_segments: self.draining_segments.load(Relaxed),
            failed: self.failed.load(Relaxed),
            orders_done: self.orders.lock().done,
            passes: self.passes_ended.load(Relaxed),
        }
    }
}

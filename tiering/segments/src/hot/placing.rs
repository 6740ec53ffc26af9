//! Moves whole sealed segments between the hot tier, the cold one and upstreams: spill and promote.
//!
//! What of a segment is read so much that it should stay is first appended elsewhere in the hot tier. Then
//! the segment is copied, the copy is proven, then its record names the new place, by compare and set; only
//! then, and only when that survives power loss and nobody copies the old file, the old file goes. What
//! refers to the segment is not concerned. Readers find it through its record wherever it is; who has the old
//! file open reads on from it.
//!
//! What leaves because a rule says so shares its segments with what stays: the smaller part is appended
//! elsewhere first (`leaving.rs`).
//!
//! Deciding is pure ([`choose`], [`job`]); `driver` carries it out at a bounded rate, one segment after the
//! other, beside compaction: each claims a segment first (`in_hand.rs`), so that the two never have the same
//! one in hand.
//!
//! When power fails: before the copy has its name there is a file that counts for nothing; before the record
//! names the new place the copy is one too many; after it the old file is. A start removes each of them; of
//! objects in upstreams a list is kept (`hot/away/leftovers.rs`), and they go with the next round.

pub(super) mod choose;
mod copy;
pub(super) mod driver;
mod fetch;
pub(super) mod heat;
pub(super) mod job;
mod leaving;
mod room;
mod store;

use std::collections::{BTreeSet, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use mlgw_common::ids::{BodyId, SegmentId};
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::space::Space;
use choose::Fill;
use mlgw_formats::decision_entry::{RuleName, Why};
use mlgw_formats::decision_words::Reason;

/// How segments are moved between tiers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacingSettings {
    /// Percent of its room from which on the hot tier spills.
    pub high_percent: u64,
    /// Percent down to which it does then.
    pub low_percent: u64,
    /// Bytes of segments that are copied in a second at most.
    pub bytes_per_second: u64,
}

impl Default for PlacingSettings {
    fn default() -> Self {
        Self { high_percent: 85, low_percent: 80, bytes_per_second: 256 << 20 }
    }
}

/// What somebody asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// Everything out of the hot tier that is sealed, into the next one below.
    DrainHot,
    /// Everything out of the cold tier, into the hot one.
    DrainCold,
    /// Everything out of all upstreams, into the hot tier.
    DrainUpstream,
    /// These segments into the hot tier.
    Promote {
        /// Which.
        segments: Vec<SegmentId>,
        /// Why.
        why: Why,
    },
    /// These segments out of the hot tier, but for what of them stays: that is appended elsewhere first.
    Spill {
        /// Which, and what of them.
        leaving: Leaving,
        /// Whether as far down as upstreams, where there is one; what is in the cold tier, too.
        to_upstream: bool,
    },
    /// What leaves these segments, into sealed segments of its own in the hot tier, so that these can be
    /// spilled.
    Gather(Leaving),
}

/// What is to leave the hot tier because a rule says so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leaving {
    /// The segments. Open ones are sealed.
    pub segments: Vec<SegmentId>,
    /// The bodies in them that leave.
    pub bodies: Arc<HashSet<BodyId>>,
    /// The rule.
    pub rule: RuleName,
}

impl Order {
    /// Why what it moves is moved.
    pub(super) fn why(&self) -> Why {
        match self {
            Self::DrainHot | Self::DrainCold | Self::DrainUpstream => Reason::Drain.into(),
            Self::Promote { why, .. } => *why,
            Self::Spill { leaving, .. } | Self::Gather(leaving) => leaving.why(),
        }
    }

    /// What leaves by it, of a rule's order.
    fn leaving(&self) -> Option<&Leaving> {
        match self {
            Self::Spill { leaving, .. } | Self::Gather(leaving) => Some(leaving),
            Self::DrainHot | Self::DrainCold | Self::DrainUpstream | Self::Promote { .. } => None,
        }
    }
}

/// What was moved since the start, and what is left to be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlacingStatus {
    /// Bytes of segments that were moved down, to the cold tier.
    pub spilled_bytes: u64,
    /// Bytes of segments that were moved up, from there.
    pub promoted_bytes: u64,
    /// Bytes of segments that were stored in upstreams.
    pub stored_bytes: u64,
    /// Bytes of segments that were fetched from there.
    pub fetched_bytes: u64,
    /// Objects in upstreams that nothing names and that could not be removed yet.
    pub leftover_objects: u64,
    /// Bytes that are chosen to be moved and are not yet.
    pub waiting_bytes: u64,
    /// Segments whose old files go when whoever copies them is done.
    pub draining_segments: u64,
    /// Moves that were given up, to be tried again.
    pub failed: u64,
    /// Orders that are carried out, as far as they can be.
    pub orders_done: u64,
    /// Rounds that have ended since the start.
    pub rounds: u64,
}

/// What the driver shares with whoever asks.
#[derive(Debug, Default)]
pub(super) struct Placing {
    settings: Mutex<PlacingSettings>,
    orders: Mutex<Orders>,
    /// Segments that rules pin.
    kept: Mutex<Arc<HashSet<SegmentId>>>,
    /// Segments that got what leaves the tier next.
    gathered: Mutex<BTreeSet<SegmentId>>,
    wake: Notify,
    /// The next round removes objects that no record names, whenever the last one was.
    sweeps_next: AtomicBool,
    begun: AtomicU64,
    ended: AtomicU64,
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
struct Orders {
    waiting: VecDeque<Order>,
    done: u64,
}

impl Placing {
    pub(super) fn new(settings: PlacingSettings) -> Self {
        Self { settings: Mutex::new(settings), ..Self::default() }
    }

    pub(super) fn settings(&self) -> PlacingSettings {
        *self.settings.lock()
    }

    pub(super) fn set(&self, settings: PlacingSettings) {
        *self.settings.lock() = settings;
    }

    /// Begins a pass at once, or after the current one. Returns the number of passes that have ended when
    /// that one has.
    pub(super) fn go_on(&self) -> u64 {
        // In this order: the round that is woken may begin at once.
        let round = self.begun.load(Relaxed) + 1;
        self.wake.notify_one();
        round
    }

    /// Has objects that no record names removed in the next round, which begins now.
    pub(super) fn sweep_next(&self) {
        self.sweeps_next.store(true, Relaxed);
        self.wake.notify_one();
    }

    /// A segment was sealed: has a round begin if the tier is filled so far that it spills.
    pub(super) fn sealed(&self, space: &Space) {
        let fill = Fill { used_bytes: space.used_bytes(), room_bytes: space.room_bytes() };
        if fill.excess_bytes(self.settings()) > 0 {
            self.go_on();
        }
    }

    /// Waits until a round is due.
    async fn next_round(&self, interval: Duration) {
        // Woken or not, it is time.
        drop(tokio::time::timeout(interval, self.wake.notified()).await);
        self.begun.fetch_add(1, Relaxed);
    }

    fn round_ended(&self) {
        self.ended.fetch_add(1, Relaxed);
    }

    /// Queues an order; returns the number of orders that are done when it is.
    pub(super) fn ask(&self, order: Order) -> u64 {
        let mut orders = self.orders.lock();
        orders.waiting.push_back(order);
        orders.done + orders.waiting.len() as u64
    }

    pub(super) fn set_kept(&self, segments: HashSet<SegmentId>) {
        *self.kept.lock() = Arc::new(segments);
    }

    pub(super) fn kept(&self) -> Arc<HashSet<SegmentId>> {
        self.kept.lock().clone()
    }

    /// Something that leaves the tier next was appended to a segment.
    pub(super) fn gathered(&self, segment: SegmentId) {
        self.gathered.lock().insert(segment);
    }

    fn take_gathered(&self) -> BTreeSet<SegmentId> {
        std::mem::take(&mut *self.gathered.lock())
    }

    /// The order that is to be carried out now.
    fn order(&self) -> Option<Order> {
        self.orders.lock().waiting.front().cloned()
    }

    /// It is carried out, as far as it can be.
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
            rounds: self.ended.load(Relaxed),
        }
    }
}

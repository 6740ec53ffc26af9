//! Waits for space: wakes the workers that free it, bounds the wait, and decides when an append is refused.
//!
//! An append that does not fit wakes compaction and spilling, and waits. A scan of all segments after its
//! arrival decides if the missing bytes become free within seconds ([`shortage`]). If two scans find that
//! they do not, the tier is full; if it takes longer than the caller waits, the refusal is temporary
//! (`SlowDown`). Waiting appends hold no lock and no space, and one scan at a time serves all of them.

pub(super) mod shortage;

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, watch};

use super::compaction::choose::SegmentFacts;
use super::compaction::driver::look;
use super::space::Space;
use super::{AppendError, Inner};
use shortage::{Given, Progress, Prospects};

/// Minimum pause between two scans.
const LOOK_PAUSE: Duration = Duration::from_millis(100);
/// Pause after a scan as a multiple of its duration: a scan of a million segments takes long.
const LOOK_SHARE: u32 = 4;

/// The result of the latest scan.
#[derive(Clone, Copy, Debug, Default)]
struct Found {
    /// Number of the scan, from 1.
    look: u64,
    prospects: Prospects,
}

/// State shared by waiting appends and the scanning task.
#[derive(Debug, Default)]
pub(super) struct Relief {
    wanted: Notify,
    /// Number of waiting appends.
    waiting: AtomicUsize,
    /// Largest number of bytes that one of them waits for; 0 if none waits.
    wanted_bytes: AtomicU64,
    /// Number of scans started.
    begun: AtomicU64,
    found: watch::Sender<Found>,
}

impl Relief {
    /// Waits until `bytes` more fit and `may_take` returns true.
    ///
    /// # Errors
    /// [`AppendError::Full`] if they will not fit, [`AppendError::NoRoomYet`] if they do not fit before
    /// `until`.
    pub(super) async fn wait(
        &self,
        space: &Space,
        bytes: u64,
        may_take: &(dyn Fn() -> bool + Sync),
        until: Instant,
    ) -> Result<(), AppendError> {
        let _waits = Waits::begin(self, bytes);
        let before = self.begun.load(Acquire);
        let mut found = self.found.subscribe();
        let mut refused_by = None;
        loop {
            // Registered before the check for space, so that no release in between is missed.
            let mut freed = std::pin::pin!(space.freed_some());
            freed.as_mut().enable();
            self.wanted_bytes.fetch_max(bytes.max(1), Relaxed);
            let fits = space.has_room(bytes);
            if fits && may_take() {
                return Ok(());
            }
            let Found { look, prospects } = *found.borrow_and_update();
            if look > before && !fits && !prospects.will_have(space.lacking_bytes(bytes)) {
                // A segment between two claims is missed by one scan and found by the next.
                if *refused_by.get_or_insert(look) < look {
                    return Err(AppendError::Full);
                }
            } else {
                refused_by = None;
            }
            self.wake();
            tokio::select! {
                () = freed => {}
                changed = found.changed() => drop(changed),
                () = tokio::time::sleep_until(until.into()) => return Err(AppendError::NoRoomYet),
            }
        }
    }

    /// Bytes that must become free for the largest waiting append.
    pub(super) fn lacking_bytes(&self, space: &Space) -> u64 {
        match self.wanted_bytes.load(Relaxed) {
            0 => 0,
            bytes => space.lacking_bytes(bytes),
        }
    }

    /// Requests a scan, or ends the task after the tier was dropped.
    pub(super) fn wake(&self) {
        self.wanted.notify_one();
    }
}

/// Counts a waiting append until it is dropped.
struct Waits<'r>(&'r Relief);

impl<'r> Waits<'r> {
    fn begin(relief: &'r Relief, bytes: u64) -> Self {
        relief.waiting.fetch_add(1, AcqRel);
        relief.wanted_bytes.fetch_max(bytes.max(1), Relaxed);
        Self(relief)
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        // An append that arrives at this moment registers its bytes again when the next scan wakes it.
        if self.0.waiting.fetch_sub(1, AcqRel) == 1 {
            self.0.wanted_bytes.store(0, Relaxed);
        }
    }
}

/// Scans while appends wait, until the tier is dropped.
pub(super) async fn run(tier: Weak<Inner>, relief: Arc<Relief>) {
    let mut progress = Progress::default();
    loop {
        relief.wanted.notified().await;
        let Some(inner) = tier.upgrade() else { return };
        let Some(catalogue) = inner.catalogue.clone() else { return };
        inner.compaction.go_on();
        inner.placing.go_on();
        let (number, began) = (relief.begun.fetch_add(1, AcqRel) + 1, Instant::now());
        let in_hand_bytes = inner.in_hand.frees_bytes();
        match look(&inner, &catalogue).await {
            Ok(facts) => {
                let mut prospects = prospects(&inner, &facts, in_hand_bytes);
                prospects.is_stalled = progress.is_stalled(Instant::now(), inner.shared.space.freed_bytes());
                relief.found.send_replace(Found { look: number, prospects });
            }
            // Waiting appends get a temporary refusal.
            Err(error) => tracing::warn!(%error, "the room that will become free is not known"),
        }
        drop(inner);
        tokio::time::sleep(LOOK_PAUSE.max(began.elapsed() * LOOK_SHARE)).await;
    }
}

/// True if whole segments can be spilled to free space, according to the latest scan.
pub(super) fn can_spill(inner: &Inner, facts: &[SegmentFacts]) -> bool {
    let is_stalled = inner.relief.found.borrow().prospects.is_stalled;
    !is_stalled && prospects(inner, facts, 0).spillable_bytes > 0
}

/// Computes the prospects. `in_hand_bytes` is measured before `facts` were gathered, so that work finished in
/// between is counted twice rather than missed.
fn prospects(inner: &Inner, facts: &[SegmentFacts], in_hand_bytes: u64) -> Prospects {
    let kept = inner.placing.kept();
    let (_, cold_room_bytes) = inner.volumes.cold_bytes();
    let given = Given {
        in_hand_bytes: in_hand_bytes.max(inner.in_hand.frees_bytes()),
        is_in_hand: &|segment| inner.in_hand.holds(segment),
        is_kept: &|segment| kept.contains(&segment),
        held_back: &inner.compaction.held_back(),
        // The free space of an upstream is unknown.
        below_room_bytes: if inner.away.target().is_some() { u64::MAX } else { cold_room_bytes },
        moved_room_bytes: inner.shared.space.moved_room_bytes(),
    };
    Prospects::new(facts, &given)
}

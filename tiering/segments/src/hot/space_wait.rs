//! Waits for space: wakes the workers that free it, bounds the wait, and decides when an append is refused.
//!
//! An append that does not fit wakes compaction and spilling, and waits. A scan of all segments after its
//! arrival decides whether the missing bytes become free within seconds ([`shortage`]). If two scans find
//! that they do not, the tier is full; if it takes longer than the caller waits, the refusal is temporary
//! (`SlowDown`). Waiting appends hold no lock and no space, and one scan at a time serves all of them.

pub(super) mod shortage;

use mlgw_common::time::Instant;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::{Notify, watch};

use super::compaction::choose::SegmentStats;
use super::compaction::stats::segment_stats;
use super::space::DiskSpace;
use super::{AppendError, HotTierInner};
use shortage::{ProspectInputs, ShortageProgress, SpaceProspects};

/// Minimum pause between two scans.
const SCAN_PAUSE: Duration = Duration::from_millis(100);
/// Pause after a scan as a multiple of its duration: a scan of a million segments takes long.
const SCAN_PAUSE_FACTOR: u32 = 4;

/// The result of the latest scan.
#[derive(Clone, Copy, Debug, Default)]
struct SpaceScanResult {
    /// Number of the scan, from 1.
    scan: u64,
    prospects: SpaceProspects,
}

/// State shared by waiting appends and the scanning task.
#[derive(Debug, Default)]
pub(super) struct SpaceWaiters {
    scan_requested: Notify,
    /// Number of waiting appends.
    waiting: AtomicUsize,
    /// Largest number of bytes that one of them waits for; 0 if none waits.
    wanted_bytes: AtomicU64,
    /// Number of scans started.
    scans_begun: AtomicU64,
    latest: watch::Sender<SpaceScanResult>,
}

impl SpaceWaiters {
    /// Waits until `bytes` more fit and `may_take` returns true.
    ///
    /// # Errors
    /// [`AppendError::Full`] if they will not fit, [`AppendError::NoRoomYet`] if they do not fit before
    /// `until`.
    pub(super) async fn wait(
        &self,
        space: &DiskSpace,
        bytes: u64,
        may_take: &(dyn Fn() -> bool + Sync),
        until: Instant,
    ) -> Result<(), AppendError> {
        let _waits = WaitingAppendGuard::begin(self, bytes);
        let before = self.scans_begun.load(Acquire);
        let mut found = self.latest.subscribe();
        let mut refused_by = None;
        loop {
            // Registered before the check for space, so that no release in between is missed.
            let mut freed = std::pin::pin!(space.space_freed());
            freed.as_mut().enable();
            self.wanted_bytes.fetch_max(bytes.max(1), Relaxed);
            let fits = space.has_room(bytes);
            if fits && may_take() {
                return Ok(());
            }
            let SpaceScanResult { scan: look, prospects } = *found.borrow_and_update();
            if look > before && !fits && !prospects.can_free(space.missing_bytes(bytes)) {
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
                () = mlgw_common::time::sleep_until(until) => return Err(AppendError::NoRoomYet),
            }
        }
    }

    /// Bytes that must become free for the largest waiting append.
    pub(super) fn missing_bytes(&self, space: &DiskSpace) -> u64 {
        match self.wanted_bytes.load(Relaxed) {
            0 => 0,
            bytes => space.missing_bytes(bytes),
        }
    }

    /// Requests a scan, or ends the task after the tier was dropped.
    pub(super) fn wake(&self) {
        self.scan_requested.notify_one();
    }
}

/// Counts a waiting append until it is dropped.
struct WaitingAppendGuard<'r>(&'r SpaceWaiters);

impl<'r> WaitingAppendGuard<'r> {
    fn begin(relief: &'r SpaceWaiters, bytes: u64) -> Self {
        relief.waiting.fetch_add(1, AcqRel);
        relief.wanted_bytes.fetch_max(bytes.max(1), Relaxed);
        Self(relief)
    }
}

impl Drop for WaitingAppendGuard<'_> {
    fn drop(&mut self) {
        // An append that arrives at this moment registers its bytes again when the next scan wakes it.
        if self.0.waiting.fetch_sub(1, AcqRel) == 1 {
            self.0.wanted_bytes.store(0, Relaxed);
        }
    }
}

/// Scans while appends wait, until the tier is dropped.
pub(super) async fn run(tier: Weak<HotTierInner>, relief: Arc<SpaceWaiters>) {
    let mut progress = ShortageProgress::default();
    loop {
        relief.scan_requested.notified().await;
        let Some(inner) = tier.upgrade() else { return };
        let Some(catalogue) = inner.catalogue.clone() else { return };
        inner.compaction.wake_now();
        inner.placing.start_pass();
        let (number, began) = (relief.scans_begun.fetch_add(1, AcqRel) + 1, Instant::now());
        let in_hand_bytes = inner.claims.expected_free_bytes();
        match segment_stats(&inner, &catalogue).await {
            Ok(facts) => {
                let mut prospects = prospects(&inner, &facts, in_hand_bytes);
                prospects.is_stalled = progress.is_stalled(Instant::now(), inner.shared.space.freed_bytes());
                relief.latest.send_replace(SpaceScanResult { scan: number, prospects });
            }
            // Waiting appends get a temporary refusal.
            Err(error) => tracing::warn!(%error, "cannot determine how much space will become free"),
        }
        drop(inner);
        mlgw_common::time::sleep(SCAN_PAUSE.max(began.elapsed() * SCAN_PAUSE_FACTOR)).await;
    }
}

/// True if whole segments can be spilled to free space, according to the latest scan.
pub(super) fn can_spill(inner: &HotTierInner, facts: &[SegmentStats]) -> bool {
    let is_stalled = inner.space_waiters.latest.borrow().prospects.is_stalled;
    !is_stalled && prospects(inner, facts, 0).spillable_bytes > 0
}

/// Computes the prospects. `in_hand_bytes` is measured before `facts` were gathered, so that work finished in
/// between is counted twice rather than missed.
fn prospects(inner: &HotTierInner, facts: &[SegmentStats], in_hand_bytes: u64) -> SpaceProspects {
    let kept = inner.placing.pinned();
    let (_, cold_room_bytes) = inner.volumes.cold_bytes();
    let given = ProspectInputs {
        in_hand_bytes: in_hand_bytes.max(inner.claims.expected_free_bytes()),
        is_claimed: &|segment| inner.claims.is_claimed(segment),
        is_pinned: &|segment| kept.contains(&segment),
        held_back: &inner.compaction.held_back(),
        // The free space of an upstream is unknown.
        below_room_bytes: if inner.remote_tier.spill_target().is_some() { u64::MAX } else { cold_room_bytes },
        moved_room_bytes: inner.shared.space.moved_room_bytes(),
    };
    SpaceProspects::new(facts, &given)
}

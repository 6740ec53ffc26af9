//! Compaction: frees the space of unreferenced bytes.
//!
//! Dead bytes are the bytes of a segment that the catalogue does not refer to: from deletes, overwrites, and
//! refused or aborted bodies. A segment without references is released by removing its file. A segment with
//! enough dead bytes is emptied first: its referenced chunks are appended elsewhere and their references
//! changed, chunk by chunk, by compare and set.
//!
//! The decisions are pure ([`choose`], [`job`]); `driver` carries them out at a bounded rate. Three rules
//! protect referenced bytes:
//! 1. A segment with appends in flight is neither compacted nor released, nor is any segment before recovery
//!    is complete. (The driver starts after recovery.)
//! 2. A segment is fenced in every object group first; from then on it can only lose references.
//! 3. Readers pin segments. A segment is released only when it is not pinned, on this node and on the other
//!    storage nodes; a reader that finds it released looks its object up again.
//!
//! A file is removed only after all changes that freed it survive power loss, whatever the configured
//! durability. So at a power loss at any step, either the file and its record are there, or the bytes that
//! replaced them. A file whose record is gone is removed at the next start; a segment that was fenced and not
//! emptied is emptied then, from its beginning.

pub(super) mod choose;
mod death_rate;
pub(super) mod driver;
pub(super) mod job;
mod moving;
mod readers;
pub(super) mod stats;

pub(super) use choose::HeldBackSegments;
pub(super) use driver::seal;
pub(super) use moving::{
    LiveChunk, RelocationLog, RelocationTarget, blocking, chunk_owner, move_chunk, move_matching, relocation,
    wait_until,
};
pub use moving::{MoveStepError, UnreadableChunks};

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::pace::ByteRateLimiter;
use super::relocating::RelocatingCounters;

/// Settings of compaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompactionSettings {
    /// Percentage of dead bytes at which a segment is emptied.
    pub dead_percent: u64,
    /// The same for segments in the cold tier.
    pub cold_dead_percent: u64,
    /// Maximum bytes of segments that compaction reads per second.
    pub bytes_per_second: u64,
    /// Interval between passes.
    pub interval: Duration,
    /// A segment whose dead bytes would double within this time at their current rate is left until the rate
    /// falls; zero disables this.
    pub patience: Duration,
}

impl Default for CompactionSettings {
    fn default() -> Self {
        Self {
            dead_percent: 30,
            cold_dead_percent: 50,
            bytes_per_second: 64 << 20,
            interval: Duration::from_secs(5),
            patience: Duration::from_mins(1),
        }
    }
}

/// Progress of compaction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CompactionStatus {
    /// Dead bytes in all segments, as of the last pass.
    pub garbage_bytes: u64,
    /// Bytes of chunks that were appended elsewhere since the start.
    pub moved_bytes: u64,
    /// Bytes of files that were removed since the start.
    pub freed_bytes: u64,
    /// Segments that were released since the start.
    pub freed_segments: u64,
    /// Segments with dead bytes that cannot be emptied, because a referenced chunk in them does not verify.
    pub held_back_segments: u64,
    /// Segments that will be released when their last reader finishes.
    pub draining_segments: u64,
    /// Passes that have ended since the start.
    pub passes: u64,
}

/// State shared by the driver and the callers of the tier.
#[derive(Debug)]
pub(super) struct Compaction {
    settings: Mutex<CompactionSettings>,
    /// Threshold requested for the next pass.
    requested_percent: Mutex<Option<u64>>,
    wake: Notify,
    stopped: AtomicBool,
    stopping: Notify,
    garbage_bytes: AtomicU64,
    moved_bytes: AtomicU64,
    freed_bytes: AtomicU64,
    freed_segments: AtomicU64,
    held_back: Mutex<HeldBackSegments>,
    draining_segments: AtomicU64,
    passes_begun: AtomicU64,
    passes_ended: AtomicU64,
    /// Rate of the reads of compaction, and of relocating.
    pub(super) pace: ByteRateLimiter,
    pub(super) relocating: RelocatingCounters,
}

impl Compaction {
    pub(super) fn new(settings: CompactionSettings) -> Self {
        Self {
            settings: Mutex::new(settings),
            requested_percent: Mutex::default(),
            wake: Notify::new(),
            stopped: AtomicBool::new(false),
            stopping: Notify::new(),
            garbage_bytes: AtomicU64::new(0),
            moved_bytes: AtomicU64::new(0),
            freed_bytes: AtomicU64::new(0),
            freed_segments: AtomicU64::new(0),
            held_back: Mutex::default(),
            draining_segments: AtomicU64::new(0),
            passes_begun: AtomicU64::new(0),
            passes_ended: AtomicU64::new(0),
            pace: ByteRateLimiter::default(),
            relocating: RelocatingCounters::default(),
        }
    }

    pub(super) fn settings(&self) -> CompactionSettings {
        *self.settings.lock()
    }

    pub(super) fn set_settings(&self, settings: CompactionSettings) {
        *self.settings.lock() = settings;
        self.wake.notify_one();
    }

    /// Requests a pass now, with another threshold. Returns the number of ended passes at which this pass has
    /// ended.
    pub(super) fn request_pass(&self, dead_percent: u64) -> u64 {
        let mut requested = self.requested_percent.lock();
        *requested = Some(requested.map_or(dead_percent, |other| other.min(dead_percent)));
        self.wake.notify_one();
        self.passes_begun.load(Relaxed) + 1
    }

    pub(super) fn stop(&self) {
        self.stopped.store(true, Relaxed);
        self.stopping.notify_waiters();
        self.wake.notify_one();
    }

    /// Waits until the workers of the tier are to stop.
    pub(super) async fn until_stopped(&self) {
        let stopping = self.stopping.notified();
        tokio::pin!(stopping);
        // Registers the waiter before the check, so that a stop after the check still wakes it.
        stopping.as_mut().enable();
        if !self.is_stopped() {
            stopping.await;
        }
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.load(Relaxed)
    }

    /// Segments that could not be emptied, with the number of references that were left.
    pub(super) fn held_back(&self) -> HeldBackSegments {
        self.held_back.lock().clone()
    }

    pub(super) fn status(&self) -> CompactionStatus {
        CompactionStatus {
            garbage_bytes: self.garbage_bytes.load(Relaxed),
            moved_bytes: self.moved_bytes.load(Relaxed),
            freed_bytes: self.freed_bytes.load(Relaxed),
            freed_segments: self.freed_segments.load(Relaxed),
            held_back_segments: self.held_back.lock().len() as u64,
            draining_segments: self.draining_segments.load(Relaxed),
            passes: self.passes_ended.load(Relaxed),
        }
    }

    /// Starts the next pass immediately.
    pub(super) fn wake_now(&self) {
        self.wake.notify_one();
    }

    /// Waits until a pass is due and returns the requested threshold, if any. `None` when the tier stops.
    async fn next_pass(&self) -> Option<Option<u64>> {
        if !self.is_stopped() && self.requested_percent.lock().is_none() {
            // Due on a wake-up and on a timeout alike.
            drop(mlgw_common::time::timeout(self.settings().interval, self.wake.notified()).await);
        }
        if self.is_stopped() {
            return None;
        }
        // Under one lock: a request after this point is for the pass after this one.
        let mut requested = self.requested_percent.lock();
        self.passes_begun.fetch_add(1, Relaxed);
        Some(requested.take())
    }

    fn pass_ended(&self) {
        let ended = self.passes_ended.fetch_add(1, Relaxed) + 1;
        assert!(ended <= self.passes_begun.load(Relaxed), "a pass of compaction ends after it began");
    }
}

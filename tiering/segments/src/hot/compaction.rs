//! Gives back the space of what nothing refers to any more.
//!
//! Dead bytes are what a segment holds less what the catalogue refers to in it: deletes,
//! overwrites, refused and aborted bodies alike. A segment in which nothing is referred to is
//! released by removing its file. One in which enough is dead is emptied first: what is still
//! referred to is appended elsewhere and renamed, chunk by chunk, by compare and set.
//!
//! Deciding is pure ([`choose`], [`job`]); `driver` carries it out at a bounded rate. Three rules
//! keep what is referred to:
//! 1. A segment with appends in flight, or before recovery is complete, is neither compacted nor
//!    released. (There is no driver before recovery is complete.)
//! 2. It is fenced in every object group first; from then on its references only become fewer.
//! 3. Readers pin. It goes when nobody has it pinned, and who finds it gone looks again.
//!
//! And its file goes only after everything that freed it survives power loss, whatever the
//! durability. So power may fail at any step: the file and its record are there, or what replaced
//! its bytes is. A file whose record is gone is removed at the next start; a segment that was fenced
//! and not emptied is emptied then, from its beginning.

pub(super) mod choose;
pub(super) mod driver;
mod dying;
pub(super) mod job;
mod moving;

pub(super) use choose::HeldBack;
pub(super) use driver::{blocking, seal};
pub use moving::StepError;
pub(super) use moving::{Live, Picked, To, chunk_owner, move_one, pick_out};

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// How compaction goes about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompactionSettings {
    /// Percent of a segment's bytes that must be dead before it is emptied.
    pub dead_percent: u64,
    /// The same of segments in the cold tier.
    pub cold_dead_percent: u64,
    /// Bytes of segments that it reads in a second at most.
    pub bytes_per_second: u64,
    /// How often it looks for dead bytes.
    pub interval: Duration,
    /// A segment that dies so fast that its dead bytes double within this time is left until it does
    /// not; zero leaves none.
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

/// How far compaction is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CompactionStatus {
    /// Dead bytes, as of the last look.
    pub garbage_bytes: u64,
    /// Bytes of chunks that were appended elsewhere, since the start.
    pub moved_bytes: u64,
    /// Bytes of files that were removed, since the start.
    pub freed_bytes: u64,
    /// Segments that were released, since the start.
    pub freed_segments: u64,
    /// Segments with dead bytes that cannot be emptied, because a chunk that is referred to in them
    /// does not verify.
    pub held_back_segments: u64,
    /// Segments that are released when their last reader is done.
    pub draining_segments: u64,
    /// Rounds that have ended since the start.
    pub rounds: u64,
}

/// What the driver shares with whoever asks.
#[derive(Debug)]
pub(super) struct Compaction {
    settings: Mutex<CompactionSettings>,
    /// A threshold that somebody asked for, for the next round.
    asked: Mutex<Option<u64>>,
    wake: Notify,
    stopped: AtomicBool,
    garbage_bytes: AtomicU64,
    moved_bytes: AtomicU64,
    freed_bytes: AtomicU64,
    freed_segments: AtomicU64,
    held_back: Mutex<HeldBack>,
    draining_segments: AtomicU64,
    begun: AtomicU64,
    ended: AtomicU64,
}

impl Compaction {
    pub(super) fn new(settings: CompactionSettings) -> Self {
        Self {
            settings: Mutex::new(settings),
            asked: Mutex::default(),
            wake: Notify::new(),
            stopped: AtomicBool::new(false),
            garbage_bytes: AtomicU64::new(0),
            moved_bytes: AtomicU64::new(0),
            freed_bytes: AtomicU64::new(0),
            freed_segments: AtomicU64::new(0),
            held_back: Mutex::default(),
            draining_segments: AtomicU64::new(0),
            begun: AtomicU64::new(0),
            ended: AtomicU64::new(0),
        }
    }

    pub(super) fn settings(&self) -> CompactionSettings {
        *self.settings.lock()
    }

    pub(super) fn set(&self, settings: CompactionSettings) {
        *self.settings.lock() = settings;
        self.wake.notify_one();
    }

    /// Asks for a round now, with another threshold; returns the number of rounds that will have
    /// ended when it has.
    pub(super) fn ask(&self, dead_percent: u64) -> u64 {
        let mut asked = self.asked.lock();
        *asked = Some(asked.map_or(dead_percent, |other| other.min(dead_percent)));
        self.wake.notify_one();
        self.begun.load(Relaxed) + 1
    }

    pub(super) fn stop(&self) {
        self.stopped.store(true, Relaxed);
        self.wake.notify_one();
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.load(Relaxed)
    }

    /// Segments that could not be emptied, with the references that were left.
    pub(super) fn held_back(&self) -> HeldBack {
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
            rounds: self.ended.load(Relaxed),
        }
    }

    /// Has the next round begin at once.
    pub(super) fn go_on(&self) {
        self.wake.notify_one();
    }

    /// Waits until a round is due, and returns the threshold that was asked for, if any. Nothing
    /// when the tier stops.
    async fn next_round(&self) -> Option<Option<u64>> {
        if !self.is_stopped() && self.asked.lock().is_none() {
            // Woken or not, it is time.
            drop(tokio::time::timeout(self.settings().interval, self.wake.notified()).await);
        }
        if self.is_stopped() {
            return None;
        }
        // Under one lock: whoever asks meanwhile asks for the round after this one.
        let mut asked = self.asked.lock();
        self.begun.fetch_add(1, Relaxed);
        Some(asked.take())
    }

    fn round_ended(&self) {
        self.ended.fetch_add(1, Relaxed);
    }
}

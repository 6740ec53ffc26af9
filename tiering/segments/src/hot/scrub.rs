//! Scrub: every sealed segment is read from the disk now and then, slowly, and verified.
//!
//! A pass goes through the segments in the order of their ids at a bounded rate, past the page
//! cache. Where bytes belong to no intact record, the catalogue says whether anything refers to
//! them: what does is a bad block. Bad blocks are quarantined: listed, with the object and the range
//! that they are of, until nothing refers to them any more. Reads of other ranges go on; a read of
//! theirs answers an error, as every read is verified by itself. A read that meets one has its
//! segment looked at at once. After the segments a pass compares some objects with their checksums
//! ([`objects`]). With one tier there is no other copy to mend them from.
//!
//! How far a pass is and what is bad are in a file of this node, replaced whole and synced, so
//! after power loss a pass goes on with the segment it was at. The file says what this disk has:
//! the catalogue is about what exists.

mod objects;
mod progress;
mod quarantine;

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mlgw_common::ids::SegmentId;
use mlgw_common::{Clock, Timestamp};
use mlgw_formats::schema::{SegmentRecord, SegmentState};
use mlgw_metadata::Catalogue;
use parking_lot::{Condvar, Mutex};

pub use objects::{Compared, Proofs, SHARES};
pub(crate) use progress::FORMAT as SCRUB_FORMAT;
pub use progress::ScrubStatus;
pub use quarantine::BadBlock;

use super::HotTier;
use super::catalogue::UPSTREAM;
use super::dirs::SegmentDirs;
use super::pace::Pace;
use super::scan::Scan;
use objects::ObjectPlace;

/// How long after the beginning of a pass the next one begins.
const PASS_EVERY_MS: i64 = 24 * 60 * 60 * 1000;
/// How often it is looked whether a pass is due.
const GLANCE: Duration = Duration::from_secs(1);

/// How to scrub.
#[derive(Clone)]
pub struct ScrubOptions {
    /// The directories of segments.
    pub segments: SegmentDirs,
    /// The file that says how far it is.
    pub state: PathBuf,
    /// Bytes that are read in a second; 0: no pass begins by itself, and one that is asked for is
    /// not held back.
    pub bytes_per_second: u64,
    /// How long after the catalogue was walked for suspicious segments it is walked for others, and how
    /// often it is looked whether what is listed is still referred to.
    pub walk_every: Duration,
    /// The time of day.
    pub clock: Arc<dyn Clock>,
    /// What compares objects with their checksums; none where only segments are read.
    pub proofs: Option<Arc<dyn Proofs>>,
}

/// Scrubs until it is dropped.
pub struct Scrub {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    options: ScrubOptions,
    catalogue: Catalogue,
    hot: HotTier,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    status: ScrubStatus,
    walked: Option<Instant>,
    forgotten: Instant,
    pace: Pace,
    stop: bool,
}

/// What is to be done next.
enum Next {
    Segment(SegmentRecord),
    Objects(ObjectPlace),
    Suspects(BTreeSet<u64>),
    Forget,
    /// The pass is at its end.
    End,
    Stop,
}

impl Scrub {
    /// Begins scrubbing what `hot` keeps. A pass that was under way goes on.
    ///
    /// # Errors
    /// When the file cannot be read, is of a newer format, or no thread starts.
    pub fn start(options: ScrubOptions, catalogue: Catalogue, hot: HotTier) -> io::Result<Self> {
        let mut status = ScrubStatus::read(&options.state)?;
        if status.began_ms == 0 {
            // A new directory: its first pass is due in a day.
            status.began_ms = options.clock.now().as_millis();
        }
        let state =
            State { status, walked: None, forgotten: Instant::now(), pace: Pace::default(), stop: false };
        let shared = Shared { options, catalogue, hot, state: Mutex::new(state), changed: Condvar::new() };
        let shared = Arc::new(shared);
        let on_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("scrub".into()).spawn(move || on_thread.run())?;
        Ok(Self { shared, thread: Mutex::new(Some(thread)) })
    }

    /// Begins a pass now, unless one is under way.
    pub fn begin(&self) {
        let mut state = self.shared.state.lock();
        if !state.status.running {
            state.begin(self.shared.options.clock.now());
        }
        self.shared.changed.notify_all();
    }

    /// Ends it, and waits until it has ended.
    pub fn stop(&self) {
        self.shared.state.lock().stop = true;
        self.shared.changed.notify_all();
        if self.thread.lock().take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("scrubbing ended badly");
        }
    }

    /// Stretches of objects that are bad and listed.
    #[must_use]
    pub fn quarantined(&self) -> u64 {
        self.shared.state.lock().status.bad.len() as u64
    }

    /// How far it is, and what is bad.
    #[must_use]
    pub fn status(&self) -> ScrubStatus {
        self.shared.state.lock().status.clone()
    }
}

impl Drop for Scrub {
    fn drop(&mut self) {
        self.stop();
    }
}

impl State {
    /// Hears of places that reads found damaged. What is listed already is not looked at again.
    fn met(&mut self, places: &BTreeSet<(SegmentId, u64)>) {
        let bad = &self.status.bad;
        let listed = |segment: u64, offset| bad.iter().any(|b| b.segment == segment && b.offset == offset);
        let new = places.iter().filter(|(segment, offset)| !listed(segment.0, *offset));
        self.status.suspects.extend(new.map(|(segment, _)| segment.0));
    }

    fn begin(&mut self, now: Timestamp) {
        let status = &mut self.status;
        (status.running, status.began_ms, status.after, status.read_bytes) = (true, now.as_millis(), 0, 0);
        status.objects = Some(ObjectPlace::default());
        // What was bad may be deleted, or moved, by now.
        status.suspects.extend(status.bad.iter().filter(|bad| !bad.whole).map(|bad| bad.segment));
    }
}

impl Shared {
    fn run(self: &Arc<Self>) {
        loop {
            let done = match self.next() {
                Next::Stop => return,
                Next::Segment(record) => self.segment(&record),
                Next::Objects(place) => self.objects(&place),
                Next::Suspects(segments) => self.look_closely(&segments),
                Next::Forget => {
                    self.forget();
                    Ok(())
                }
                Next::End => {
                    self.end();
                    Ok(())
                }
            };
            if let Err(error) = done.and_then(|()| self.write()) {
                tracing::warn!(%error, "scrubbing");
                self.wait_until(Instant::now() + GLANCE);
            }
        }
    }

    /// Waits for something to do.
    fn next(&self) -> Next {
        loop {
            let mut state = self.state.lock();
            if state.stop {
                return Next::Stop;
            }
            state.met(&self.hot.take_suspects());
            let now = self.options.clock.now();
            let due = now.as_millis() - state.status.began_ms >= PASS_EVERY_MS;
            if !state.status.running && due && self.options.bytes_per_second > 0 {
                state.begin(now);
            }
            let record = if state.status.running { self.segment_after(state.status.after) } else { None };
            let at_end = state.status.running && record.is_none();
            let waited = state.walked.is_none_or(|at| at.elapsed() >= self.options.walk_every);
            if !state.status.suspects.is_empty() && (at_end || waited) {
                return Next::Suspects(std::mem::take(&mut state.status.suspects));
            }
            if !state.status.bad.is_empty() && state.forgotten.elapsed() >= self.options.walk_every {
                return Next::Forget;
            }
            match record {
                Some(record) => return Next::Segment(record),
                None if state.status.running => match &state.status.objects {
                    Some(place) => return Next::Objects(place.clone()),
                    None => return Next::End,
                },
                None => drop(self.changed.wait_for(&mut state, GLANCE)),
            }
        }
    }

    fn segment_after(&self, after: u64) -> Option<SegmentRecord> {
        let records = self.catalogue.segments().unwrap_or_default();
        // What is in an upstream is for the upstream to keep; reads of it are verified all the same.
        let sealed = |record: &SegmentRecord| {
            record.state() == SegmentState::Sealed && record.length > 0 && record.summary().tier != UPSTREAM
        };
        records
            .into_iter()
            .filter(|record| record.id > after && sealed(record))
            .min_by_key(|record| record.id)
    }

    fn end(&self) {
        let mut state = self.state.lock();
        let status = &mut state.status;
        (status.running, status.ended_ms) = (false, self.options.clock.now().as_millis());
        status.passes += 1;
        tracing::info!(status.read_bytes, bad = status.bad.len(), "a scrub of the segments ended");
    }

    /// Reads a segment from the disk, at the bounded rate. One that cannot be read is suspicious;
    /// one that is gone was released meanwhile, or is lost: the catalogue says which.
    fn segment(self: &Arc<Self>, record: &SegmentRecord) -> io::Result<()> {
        let whole = self.is_whole(record).unwrap_or(false);
        let mut state = self.state.lock();
        if state.stop {
            return Ok(());
        }
        state.status.after = record.id;
        if !whole {
            state.status.suspects.insert(record.id);
        }
        Ok(())
    }

    /// Compares some objects with their checksums.
    fn objects(&self, place: &ObjectPlace) -> io::Result<()> {
        let next = self.compare_some(place)?;
        self.state.lock().status.objects = next;
        Ok(())
    }

    /// Whether a segment's file is intact records from its beginning to its end. One that was damaged
    /// before a start can lie behind where that start sealed the segment, so all of it counts.
    fn is_whole(self: &Arc<Self>, record: &SegmentRecord) -> io::Result<bool> {
        let (id, seed, tier) = (record.segment_id(), record.seed(), record.summary().tier);
        let file = self.options.segments.open(id, tier)?;
        let bytes = file.metadata()?.len();
        let shared = Arc::clone(self);
        let hold = move |file: &File, offset, bytes| shared.hold(file, offset, bytes);
        let found = Scan::new(file, id, seed, 0)?.paced(Box::new(hold));
        let found = found.in_background(self.hot.queues().of_tier(tier).clone()).survey(&mut |_| {})?;
        Ok(found.damaged_bytes == 0 && found.length == bytes)
    }

    /// Before `bytes` are read: has them read from the disk, when they are due.
    fn hold(&self, file: &File, offset: u64, bytes: u64) -> io::Result<()> {
        rustix::fs::fadvise(file, offset, std::num::NonZeroU64::new(bytes), rustix::fs::Advice::DontNeed)?;
        if self.options.bytes_per_second > 0 {
            let due = self.state.lock().pace.due(Instant::now(), bytes, self.options.bytes_per_second);
            self.wait_until(due);
        }
        let mut state = self.state.lock();
        state.status.read_bytes += bytes;
        if state.stop { Err(io::Error::other("stopping")) } else { Ok(()) }
    }

    fn wait_until(&self, until: Instant) {
        let mut state = self.state.lock();
        while !state.stop && !self.changed.wait_until(&mut state, until).timed_out() {}
    }

    fn write(&self) -> io::Result<()> {
        let status = self.state.lock().status.clone();
        status.write(&self.options.state)
    }
}

//! Scrub: reads every sealed local segment from the disk periodically, at a low rate, and verifies it.
//!
//! A pass visits the segments in the order of their ids at a bounded rate, bypassing the page cache. Where
//! bytes belong to no intact record, the catalogue is searched for references to them: referenced ones are
//! bad blocks. Bad blocks are quarantined: listed, with the affected object and range, until nothing refers
//! to them any more. Reads of other ranges are not affected; a read of a bad range fails, since every read is
//! verified. A segment in which a read found damage is examined immediately. After the segments a pass
//! compares some objects with their checksums ([`objects`]).
//!
//! Damage is reported to the driver of replicas, which heals the segment if another node has a replica. A
//! healed segment is searched again, so that its blocks leave the list. Without another replica nothing is
//! repaired.
//!
//! The progress and the bad blocks are in a file of this node, which is replaced atomically and synced, so
//! after a power loss a pass continues with its current segment. The file is not part of the catalogue
//! because it describes the state of this disk.

mod objects;
mod progress;
mod quarantine;

use mlgw_common::time::Instant;
use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use mlgw_common::ids::{NodeId, SegmentId};
use mlgw_common::{Clock, SegmentTier, Timestamp};
use mlgw_formats::schema::{Replica, SegmentRecord, SegmentState};
use mlgw_metadata::Catalogue;
use parking_lot::{Condvar, Mutex};

pub use objects::{OBJECT_PASSES, ObjectComparison, ObjectVerifier};
pub(crate) use progress::FORMAT as SCRUB_FORMAT;
pub use progress::ScrubStatus;
pub use quarantine::BadBlock;

use super::HotTier;
use super::dirs::SegmentDirs;
use super::pace::ByteRateLimiter;
use super::scan::SegmentScan;
use objects::ObjectPosition;

/// Time between the starts of two passes.
const PASS_EVERY_MS: i64 = 24 * 60 * 60 * 1000;
/// Interval at which the scrub checks whether there is work.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Options of a scrub.
#[derive(Clone)]
pub struct ScrubOptions {
    /// The segment directories.
    pub segments: SegmentDirs,
    /// Path of the state file.
    pub state: PathBuf,
    /// Maximum bytes read per second; 0: passes start only on request, without a limit.
    pub bytes_per_second: u64,
    /// Minimum time between two searches of the catalogue for references to suspicious segments, and interval
    /// at which listed blocks are checked for remaining references.
    pub search_interval: Duration,
    /// The wall clock.
    pub clock: Arc<dyn Clock>,
    /// Compares objects with their checksums; `None` to read only segments.
    pub proofs: Option<Arc<dyn ObjectVerifier>>,
}

/// A running scrub; it stops on drop.
pub struct Scrub {
    shared: Arc<ScrubShared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct ScrubShared {
    options: ScrubOptions,
    catalogue: Catalogue,
    hot: HotTier,
    state: Mutex<ScrubState>,
    changed: Condvar,
}

struct ScrubState {
    status: ScrubStatus,
    searched: Option<Instant>,
    forgotten: Instant,
    pace: ByteRateLimiter,
    stop: bool,
}

/// The next task of the scrub.
enum ScrubTask {
    Segment(SegmentRecord),
    Objects(ObjectPosition),
    Suspects(BTreeSet<u64>),
    Forget,
    /// The pass is complete.
    End,
    Stop,
}

impl Scrub {
    /// Starts a scrub of the segments of `hot`. An interrupted pass continues.
    ///
    /// # Errors
    /// When the state file cannot be read or is of a newer format, or no thread can be started.
    pub fn start(options: ScrubOptions, catalogue: Catalogue, hot: HotTier) -> io::Result<Self> {
        let mut status = ScrubStatus::read(&options.state)?;
        if status.began_ms == 0 {
            // A new state file: the first pass is due in a day.
            status.began_ms = options.clock.now().as_millis();
        }
        let state = ScrubState {
            status,
            searched: None,
            forgotten: Instant::now(),
            pace: ByteRateLimiter::default(),
            stop: false,
        };
        let shared =
            ScrubShared { options, catalogue, hot, state: Mutex::new(state), changed: Condvar::new() };
        let shared = Arc::new(shared);
        let on_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("scrub".into()).spawn(move || on_thread.run())?;
        Ok(Self { shared, thread: Mutex::new(Some(thread)) })
    }

    /// Starts a pass now, unless one is running.
    pub fn start_pass(&self) {
        let mut state = self.shared.state.lock();
        if !state.status.running {
            state.start_pass(self.shared.options.clock.now());
        }
        self.shared.changed.notify_all();
    }

    /// Stops the scrub and waits until it has ended.
    pub fn stop(&self) {
        self.shared.state.lock().stop = true;
        self.shared.changed.notify_all();
        if self.thread.lock().take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the scrub panicked");
        }
    }

    /// Number of listed bad ranges of objects.
    #[must_use]
    pub fn quarantined_blocks(&self) -> u64 {
        self.shared.state.lock().status.bad.len() as u64
    }

    /// Returns the progress and the bad blocks.
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

/// True if a pass of the node reads the segment: the sealed ones with a local replica. Segments at an
/// upstream are the upstream's responsibility; reads of them are still verified.
#[must_use]
pub fn is_scrubbed(record: &SegmentRecord, node: NodeId) -> bool {
    let is_local = |replica: &Replica| replica.tier() != Ok(SegmentTier::Upstream);
    record.state() == SegmentState::Sealed
        && record.length > 0
        && record.replica_of(node).is_some_and(is_local)
}

/// Condition of the file of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SegmentCondition {
    /// All of it consists of intact records.
    Whole,
    /// The bytes after the sealed length do not.
    TrailingBytes,
    /// Bytes up to the sealed length do not, or the file cannot be read.
    Damaged,
}

impl ScrubState {
    /// Adds locations at which reads found damage, and returns their segments. Listed locations are not
    /// examined again.
    fn add_suspects(&mut self, places: &BTreeSet<(SegmentId, u64)>) -> BTreeSet<SegmentId> {
        let bad = &self.status.bad;
        let listed = |segment: u64, offset| bad.iter().any(|b| b.segment == segment && b.offset == offset);
        let new = places.iter().filter(|(segment, offset)| !listed(segment.0, *offset));
        let segments: BTreeSet<SegmentId> = new.map(|(segment, _)| *segment).collect();
        self.status.suspects.extend(segments.iter().map(|segment| segment.0));
        segments
    }

    fn start_pass(&mut self, now: Timestamp) {
        let status = &mut self.status;
        (status.running, status.began_ms, status.after, status.read_bytes) = (true, now.as_millis(), 0, 0);
        status.objects = Some(ObjectPosition::default());
        // Bad blocks may be deleted or moved by now.
        status.suspects.extend(status.bad.iter().filter(|bad| !bad.whole).map(|bad| bad.segment));
    }
}

impl ScrubShared {
    fn run(self: &Arc<Self>) {
        loop {
            let done = match self.next_task() {
                ScrubTask::Stop => return,
                ScrubTask::Segment(record) => self.scrub_segment(&record),
                ScrubTask::Objects(place) => self.scrub_objects(&place),
                ScrubTask::Suspects(segments) => self.search_bad_blocks(&segments),
                ScrubTask::Forget => {
                    self.drop_unreferenced();
                    Ok(())
                }
                ScrubTask::End => {
                    self.end_pass();
                    Ok(())
                }
            };
            if let Err(error) = done.and_then(|()| self.write()) {
                tracing::warn!(%error, "scrubbing");
                self.wait_until(Instant::now() + CHECK_INTERVAL);
            }
        }
    }

    /// Waits for the next task.
    fn next_task(&self) -> ScrubTask {
        loop {
            let mut state = self.state.lock();
            if state.stop {
                return ScrubTask::Stop;
            }
            let damaged = state.add_suspects(&self.hot.take_suspects());
            self.hot.report_damage(damaged);
            state.status.suspects.extend(self.hot.take_healed().iter().map(|segment| segment.0));
            let now = self.options.clock.now();
            let due = now.as_millis() - state.status.began_ms >= PASS_EVERY_MS;
            if !state.status.running && due && self.options.bytes_per_second > 0 {
                state.start_pass(now);
            }
            let record = if state.status.running { self.segment_after(state.status.after) } else { None };
            let at_end = state.status.running && record.is_none();
            let waited = state.searched.is_none_or(|at| at.elapsed() >= self.options.search_interval);
            if !state.status.suspects.is_empty() && (at_end || waited) {
                return ScrubTask::Suspects(std::mem::take(&mut state.status.suspects));
            }
            if !state.status.bad.is_empty() && state.forgotten.elapsed() >= self.options.search_interval {
                return ScrubTask::Forget;
            }
            match record {
                Some(record) => return ScrubTask::Segment(record),
                None if state.status.running => match &state.status.objects {
                    Some(place) => return ScrubTask::Objects(place.clone()),
                    None => return ScrubTask::End,
                },
                None => drop(self.changed.wait_for(&mut state, CHECK_INTERVAL)),
            }
        }
    }

    fn segment_after(&self, after: u64) -> Option<SegmentRecord> {
        let (records, node) = (self.catalogue.segments().unwrap_or_default(), self.hot.node());
        let left = records.into_iter().filter(|record| record.id > after && is_scrubbed(record, node));
        left.min_by_key(|record| record.id)
    }

    fn end_pass(&self) {
        let mut state = self.state.lock();
        let status = &mut state.status;
        (status.running, status.ended_ms) = (false, self.options.clock.now().as_millis());
        status.passes += 1;
        tracing::info!(status.read_bytes, bad = status.bad.len(), "scrub of the segments finished");
    }

    /// Reads a segment from the disk, at the bounded rate. A segment that cannot be read becomes a suspect; a
    /// missing one was either released in the meantime or is lost, which the catalogue decides.
    fn scrub_segment(self: &Arc<Self>, record: &SegmentRecord) -> io::Result<()> {
        let condition = self.condition(record).unwrap_or(SegmentCondition::Damaged);
        let mut state = self.state.lock();
        if state.stop {
            return Ok(());
        }
        state.status.after = record.id;
        if condition != SegmentCondition::Whole {
            state.status.suspects.insert(record.id);
        }
        if condition == SegmentCondition::Damaged {
            self.hot.report_damage([record.segment_id()]);
        }
        Ok(())
    }

    /// Compares some objects with their checksums.
    fn scrub_objects(&self, place: &ObjectPosition) -> io::Result<()> {
        let next = self.compare_some(place)?;
        self.state.lock().status.objects = next;
        Ok(())
    }

    /// Reads a segment's file from beginning to end. The part after the sealed length is read as well: a
    /// start may have sealed a damaged segment before records that follow the damage.
    fn condition(self: &Arc<Self>, record: &SegmentRecord) -> io::Result<SegmentCondition> {
        let tier = record.tier_for(self.hot.node()).map_err(io::Error::other)?;
        let (id, seed) = (record.segment_id(), record.seed());
        let file = self.options.segments.open(id, tier)?;
        let bytes = file.metadata()?.len();
        let shared = Arc::clone(self);
        let hold = move |file: &File, offset, bytes| shared.before_read(file, offset, bytes);
        let found = SegmentScan::new(file, id, seed, 0)?.with_throttle(Box::new(hold));
        let found = found.with_disk_queue(self.hot.queues().for_tier(tier).clone()).survey(&mut |_| {})?;
        Ok(if found.damaged_bytes > 0 || found.length < record.length {
            SegmentCondition::Damaged
        } else if found.length < bytes {
            SegmentCondition::TrailingBytes
        } else {
            SegmentCondition::Whole
        })
    }

    /// Callback before `bytes` are read: waits until they are due and drops them from the page cache.
    fn before_read(&self, file: &File, offset: u64, bytes: u64) -> io::Result<()> {
        rustix::fs::fadvise(file, offset, std::num::NonZeroU64::new(bytes), rustix::fs::Advice::DontNeed)?;
        if self.options.bytes_per_second > 0 {
            let due = self.state.lock().pace.due_at(Instant::now(), bytes, self.options.bytes_per_second);
            self.wait_until(due);
        }
        let mut state = self.state.lock();
        state.status.read_bytes += bytes;
        if state.stop { Err(io::Error::other("stopping")) } else { Ok(()) }
    }

    fn wait_until(&self, until: Instant) {
        let mut state = self.state.lock();
        while !state.stop && !self.changed.wait_until(&mut state, until.into_std()).timed_out() {}
    }

    fn write(&self) -> io::Result<()> {
        let status = self.state.lock().status.clone();
        status.write(&self.options.state)
    }
}

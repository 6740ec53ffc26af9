//! Jobs: what is done with datasets, in the background, and by the clock.
//!
//! A job is a record of the catalogue ([`mlgw_formats::schema::Job`]); what is here carries it out. Always:
//! a dataset has one job at work at most, for the catalogue refuses a second; doing a job again does no harm,
//! for each looks first whether it is done already; how far it is, is noted every few seconds together with
//! where it would go on.
//!
//! When power fails a job goes on from its last note. What it did after that is found done.

mod census;
mod clear;
pub mod cron;
mod import;
mod listing;
mod live;
mod migrate;
mod promote;
pub mod residency;
mod runner;
mod shuffle;
mod sync;
mod warm;

pub use live::Pace;
pub use migrate::is_empty as is_nothing_there;

use live::Live;
use mlgw_cache::bound::Bound;
use mlgw_cache::copies::PinnedCopies;
use mlgw_cache::writeback::WriteBack;
use mlgw_common::Clock;
use mlgw_common::limits::{JOB_BLOCKS_MAX, MIB};
use mlgw_formats::schema::{Dataset, Found, Job, JobKind, JobOrder, JobState};
use mlgw_metadata::Catalogue;
use mlgw_objects::Objects;
use mlgw_objects::memory::Memory;
use mlgw_policy_runtime::Policies;
use mlgw_segments::decisions::Decisions;
use mlgw_segments::tiers::Tiers;
use parking_lot::Mutex;
use residency::Residency;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Memory of all imports together: eight of up to five chunks each, and what their connections hold.
const IMPORT_MEMORY_BYTES: u64 = 64 * MIB;

/// All jobs of this node.
pub struct Jobs {
    catalogue: Catalogue,
    tiers: Tiers,
    bound: Bound,
    decisions: Decisions,
    clock: Arc<dyn Clock>,
    /// This node's name, for who asks where data is.
    node: String,
    /// Those that are at work here.
    live: Mutex<BTreeMap<u64, Arc<Live>>>,
    counts: Mutex<BTreeMap<(JobKind, JobState), u64>>,
    moved: Mutex<BTreeMap<JobKind, Moved>>,
    residency: Mutex<BTreeMap<String, Arc<Residency>>>,
    pins: Mutex<Vec<PinnedCopies>>,
    /// What rules pin.
    rule_pins: Mutex<Vec<PinnedCopies>>,
    /// One for each block that jobs have in flight.
    blocks: Arc<Semaphore>,
    memory: Memory,
    stop: CancellationToken,
    tasks: TaskTracker,
}

/// What jobs of a kind have moved since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Objects.
    pub objects: u64,
    /// Bytes.
    pub bytes: u64,
}

/// Why a job's work ended before it was done.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Stop {
    /// It cannot be done.
    Failed(String),
    /// Somebody does not want it any more.
    Cancelled,
    /// The server stops; it goes on after the next start.
    Stopping,
}

/// What jobs use besides the catalogue and the tiers.
#[derive(Clone)]
pub struct JobContext {
    /// Stores what a sync imports.
    pub objects: Arc<Objects>,
    /// Selects what of it is compressed.
    pub policies: Arc<Policies>,
    /// Writes that have not reached their origin, which a migration waits for.
    pub writeback: WriteBack,
}

/// What a job's work has at hand.
struct Work {
    jobs: Arc<Jobs>,
    context: JobContext,
    dataset: Arc<Dataset>,
    job: Job,
    live: Arc<Live>,
}

/// What came of a job's work: what it found of the dataset, if it looked at all of it.
type Outcome = Result<Option<Found>, Stop>;

impl Jobs {
    /// Nothing is at work yet.
    #[must_use]
    pub fn new(
        catalogue: Catalogue,
        tiers: Tiers,
        bound: Bound,
        decisions: Decisions,
        clock: Arc<dyn Clock>,
        node: String,
    ) -> Arc<Self> {
        Arc::new(Self {
            catalogue,
            tiers,
            bound,
            decisions,
            clock,
            node,
            live: Mutex::default(),
            counts: Mutex::default(),
            moved: Mutex::default(),
            residency: Mutex::default(),
            pins: Mutex::default(),
            rule_pins: Mutex::default(),
            blocks: Arc::new(Semaphore::new(JOB_BLOCKS_MAX)),
            memory: Memory::new(IMPORT_MEMORY_BYTES, 100, None),
            stop: CancellationToken::new(),
            tasks: TaskTracker::new(),
        })
    }

    /// The record of a job as it is, with how far it is by now if it is at work here; and how fast.
    #[must_use]
    pub fn look_at(&self, job: &Job) -> (Job, Option<Pace>) {
        match self.live.lock().get(&job.id) {
            Some(live) if !job.has_ended() => {
                (Job { progress: live.shown(), ..job.clone() }, Some(live.pace()))
            }
            _ => (job.clone(), None),
        }
    }

    /// Jobs that have ended since the start, by kind and what came of them.
    #[must_use]
    pub fn ended(&self) -> BTreeMap<(JobKind, JobState), u64> {
        self.counts.lock().clone()
    }

    /// What jobs have moved since the start, by kind.
    #[must_use]
    pub fn moved(&self) -> BTreeMap<JobKind, Moved> {
        let mut moved = self.moved.lock().clone();
        for live in self.live.lock().values() {
            let (objects, bytes) = live.moved();
            let sum = moved.entry(live.kind).or_default();
            (sum.objects, sum.bytes) = (sum.objects + objects, sum.bytes + bytes);
        }
        moved
    }

    /// Ends the work; what is not done goes on after the next start.
    pub async fn stop(&self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

/// A kind's name.
#[must_use]
pub const fn kind_name(kind: JobKind) -> &'static str {
    match kind {
        JobKind::Warm => "warm",
        JobKind::Sync => "sync",
        JobKind::Evict => "evict",
        JobKind::Clear => "clear",
        JobKind::Migrate => "migrate",
    }
}

/// The kind of a name.
#[must_use]
pub fn kind_of(name: &str) -> Option<JobKind> {
    KINDS.into_iter().find(|kind| kind_name(*kind) == name)
}

/// Every kind.
pub const KINDS: [JobKind; 5] =
    [JobKind::Warm, JobKind::Sync, JobKind::Evict, JobKind::Clear, JobKind::Migrate];

/// An order's name.
#[must_use]
pub const fn order_name(order: JobOrder) -> &'static str {
    match order {
        JobOrder::Sequential => "sequential",
        JobOrder::Shuffled => "shuffled",
        JobOrder::ShardShuffled => "shard-shuffled",
    }
}

/// The order of a name.
#[must_use]
pub fn order_of(name: &str) -> Option<JobOrder> {
    ORDERS.into_iter().find(|order| order_name(*order) == name)
}

/// Every order.
pub const ORDERS: [JobOrder; 3] = [JobOrder::Sequential, JobOrder::Shuffled, JobOrder::ShardShuffled];

/// What the name of a dataset begins with that stands for a whole bucket, for jobs that are done with that.
/// No other dataset's name does.
const OF_BUCKET: &str = "bucket:";

/// The dataset that stands for a bucket.
#[must_use]
pub fn dataset_of_bucket(bucket: &str) -> String {
    format!("{OF_BUCKET}{bucket}")
}

/// Whether a dataset is one that somebody made, and not one that stands for a bucket.
#[must_use]
pub fn is_shown(dataset: &Dataset) -> bool {
    !dataset.name.starts_with(OF_BUCKET)
}

/// A state's name.
#[must_use]
pub const fn state_name(state: JobState) -> &'static str {
    match state {
        JobState::Queued => "queued",
        JobState::Running => "running",
        JobState::Done => "done",
        JobState::Failed => "failed",
        JobState::Cancelled => "cancelled",
    }
}

/// The parts of a dataset that a job is about: its slices, narrowed to what the job was asked for.
fn parts(dataset: &Dataset, prefix: &str) -> Vec<String> {
    let whole = [String::new()];
    let slices = if dataset.slices.is_empty() { &whole[..] } else { &dataset.slices };
    let narrowed = slices.iter().filter_map(|slice| {
        if slice.starts_with(prefix) {
            Some(slice.clone())
        } else {
            prefix.starts_with(slice.as_str()).then(|| prefix.to_owned())
        }
    });
    narrowed.collect()
}

#[cfg(test)]
mod tests {
    use super::{KINDS, kind_name, kind_of, parts};
    use mlgw_formats::schema::Dataset;

    #[test]
    fn a_job_is_about_the_slices_or_what_is_within_them() {
        let of = |slices: &[&str], prefix: &str| {
            let slices = slices.iter().map(|&slice| slice.to_owned()).collect();
            parts(&Dataset { slices, ..Dataset::default() }, prefix)
        };
        assert_eq!(of(&[], ""), [""]);
        assert_eq!(of(&[], "a/"), ["a/"]);
        assert_eq!(of(&["a/", "b/"], ""), ["a/", "b/"]);
        assert_eq!(of(&["a/", "b/"], "b/c"), ["b/c"]);
        assert_eq!(of(&["ab/", "ac/"], "a"), ["ab/", "ac/"]);
        assert!(of(&["a/"], "c").is_empty());
    }

    #[test]
    fn kinds_are_found_by_their_names() {
        for kind in KINDS {
            assert_eq!(kind_of(kind_name(kind)), Some(kind));
        }
        assert_eq!(kind_of("sideways"), None);
    }
}

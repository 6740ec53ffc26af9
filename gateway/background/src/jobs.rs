//! Jobs: work on datasets that runs in the background, on request or on schedule.
//!
//! A job is a record of the catalogue ([`mlgw_formats::schema::Job`]), which this module carries out. A
//! dataset has at most one active job, because the catalogue refuses a second one. Running a job again is
//! harmless, because each first checks what is done already. Progress and the resume position are recorded
//! together every few seconds.
//!
//! After a power loss a job resumes from its last recorded position, in a cluster on the next duty node.
//! Later work is found done.

mod census;
mod clear;
pub mod cron;
mod import;
mod listing;
mod migrate;
mod promote;
pub mod residency;
mod runner;
mod running_job;
mod shuffle;
mod sync;
mod warm;

pub use migrate::is_empty as is_nothing_there;
pub use running_job::JobPace;

use mlgw_cache::copies::PinnedCopies;
use mlgw_cache::remote_backed::RemoteBackedBuckets;
use mlgw_cache::writeback::WriteBack;
use mlgw_common::limits::{JOB_BLOCKS_MAX, MIB};
use mlgw_common::{CheckedClock, Clock};
use mlgw_formats::schema::{Dataset, DatasetSize, Job, JobKind, JobState};
use mlgw_metadata::Catalogue;
use mlgw_objects::ObjectLayer;
use mlgw_objects::memory::RequestMemory;
use mlgw_policy_runtime::Policies;
use mlgw_remote::origin::OriginFence;
use mlgw_segments::decisions::Decisions;
use mlgw_segments::tiers::Tiers;
use parking_lot::Mutex;
use residency::Residency;
use running_job::RunningJob;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Memory budget of all imports together: eight imports of up to five chunks each, plus the buffers of their
/// connections.
const IMPORT_MEMORY_BYTES: u64 = 64 * MIB;

/// All jobs of this node.
pub struct Jobs {
    catalogue: Catalogue,
    tiers: Tiers,
    bound: RemoteBackedBuckets,
    decisions: Decisions,
    clock: Arc<dyn Clock>,
    /// The same clock, compared with those of other nodes.
    checked_clock: CheckedClock,
    /// Term of the duty node, which recorded steps carry; `None` without one.
    duty_term: Option<u64>,
    /// Jobs that are running here.
    live: Mutex<BTreeMap<u64, Arc<RunningJob>>>,
    counts: Mutex<BTreeMap<(JobKind, JobState), u64>>,
    moved: Mutex<BTreeMap<JobKind, JobMoveTotals>>,
    residency: Mutex<BTreeMap<String, Arc<Residency>>>,
    pins: Mutex<Vec<PinnedCopies>>,
    /// Copies that rules pin.
    rule_pins: Mutex<Vec<PinnedCopies>>,
    /// Permits for the blocks that jobs have in flight.
    blocks: Arc<Semaphore>,
    memory: RequestMemory,
    /// No job begins any more, and running ones record nothing more of their work.
    closed: CancellationToken,
    /// Running jobs end at once.
    stop: CancellationToken,
    tasks: TaskTracker,
}

/// Objects and bytes that jobs of one kind have moved since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JobMoveTotals {
    /// Number of objects.
    pub objects: u64,
    /// Bytes of these objects.
    pub bytes: u64,
}

/// Reason why a job stopped before it was done.
#[derive(Clone, Debug, PartialEq, Eq)]
enum JobStop {
    /// The job failed, with the cause.
    Failed(String),
    /// The job was cancelled.
    Cancelled,
    /// The server stops, or the lease of the duty node has ended; the job is continued later.
    Stopping,
}

/// Dependencies of jobs besides the catalogue and the tiers.
#[derive(Clone)]
pub struct JobContext {
    /// Object layer, which stores the objects that a sync imports.
    pub objects: Arc<ObjectLayer>,
    /// Running policy, which selects imported objects for compression.
    pub policies: Arc<Policies>,
    /// Writes that have not reached their origin, which a migration waits for.
    pub writeback: WriteBack,
    /// Permission of the duty node of a cluster: without its lease, jobs stop and are continued later.
    pub lease: Option<OriginFence>,
}

/// A running job and its dependencies.
struct JobRun {
    jobs: Arc<Jobs>,
    context: JobContext,
    dataset: Arc<Dataset>,
    job: Job,
    live: Arc<RunningJob>,
}

/// Result of a job: totals of the dataset if the job visited all of it.
type JobOutcome = Result<Option<DatasetSize>, JobStop>;

impl Jobs {
    /// Creates the job runner; no job is running yet. With the term of a duty node it also continues jobs of
    /// other nodes.
    #[must_use]
    pub fn new(
        catalogue: Catalogue,
        tiers: Tiers,
        bound: RemoteBackedBuckets,
        decisions: Decisions,
        clock: CheckedClock,
        duty_term: Option<u64>,
    ) -> Arc<Self> {
        Arc::new(Self {
            catalogue,
            tiers,
            bound,
            decisions,
            clock: Arc::new(clock.clone()),
            checked_clock: clock,
            duty_term,
            live: Mutex::default(),
            counts: Mutex::default(),
            moved: Mutex::default(),
            residency: Mutex::default(),
            pins: Mutex::default(),
            rule_pins: Mutex::default(),
            blocks: Arc::new(Semaphore::new(JOB_BLOCKS_MAX)),
            memory: RequestMemory::new(IMPORT_MEMORY_BYTES, 100, None),
            closed: CancellationToken::new(),
            stop: CancellationToken::new(),
            tasks: TaskTracker::new(),
        })
    }

    /// Returns the record of a job with its current progress, and its speed if it runs here.
    #[must_use]
    pub fn current_state(&self, job: &Job) -> (Job, Option<JobPace>) {
        match self.live.lock().get(&job.id) {
            Some(live) if !job.has_ended() => {
                (Job { progress: live.shown_progress(), ..job.clone() }, Some(live.pace()))
            }
            _ => (job.clone(), None),
        }
    }

    /// Returns the number of jobs that have ended since the start, by kind and final state.
    #[must_use]
    pub fn ended(&self) -> BTreeMap<(JobKind, JobState), u64> {
        self.counts.lock().clone()
    }

    /// Returns what jobs have moved since the start, by kind.
    #[must_use]
    pub fn moved(&self) -> BTreeMap<JobKind, JobMoveTotals> {
        let mut moved = self.moved.lock().clone();
        for live in self.live.lock().values() {
            let (objects, bytes) = live.moved();
            let sum = moved.entry(live.kind).or_default();
            (sum.objects, sum.bytes) = (sum.objects + objects, sum.bytes + bytes);
        }
        moved
    }

    /// Claims and creates no further job. What running ones do from now on is not recorded, since it may
    /// fail because the server stops: it is done again later. They end between two objects.
    pub fn close(&self) {
        self.closed.cancel();
    }

    /// Ends all jobs. Does not wait for them.
    pub fn cancel(&self) {
        self.close();
        self.stop.cancel();
    }

    /// Stops all jobs; unfinished ones resume after the next start.
    pub async fn stop(&self) {
        self.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

/// Returns the name of a kind.
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

/// All kinds.
pub const KINDS: [JobKind; 5] =
    [JobKind::Warm, JobKind::Sync, JobKind::Evict, JobKind::Clear, JobKind::Migrate];

/// Prefix of the names of internal datasets, which represent a whole bucket for jobs on buckets. Names of
/// other datasets never begin with it.
const BUCKET_DATASET_PREFIX: &str = "bucket:";

/// Returns the name of the internal dataset that represents a bucket.
#[must_use]
pub fn dataset_of_bucket(bucket: &str) -> String {
    format!("{BUCKET_DATASET_PREFIX}{bucket}")
}

/// Returns true if a dataset was created by a user, and not internally for a bucket.
#[must_use]
pub fn is_user_dataset(dataset: &Dataset) -> bool {
    !dataset.name.starts_with(BUCKET_DATASET_PREFIX)
}

/// Returns the name of a state.
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

/// Returns the prefixes that a job covers: the slices of the dataset, restricted to the prefix of the job.
fn covered_prefixes(dataset: &Dataset, prefix: &str) -> Vec<String> {
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
    use super::covered_prefixes;
    use mlgw_formats::schema::Dataset;

    #[test]
    fn a_job_covers_its_slices_restricted_to_its_prefix() {
        let of = |slices: &[&str], prefix: &str| {
            let slices = slices.iter().map(|&slice| slice.to_owned()).collect();
            covered_prefixes(&Dataset { slices, ..Dataset::default() }, prefix)
        };
        assert_eq!(of(&[], ""), [""]);
        assert_eq!(of(&[], "a/"), ["a/"]);
        assert_eq!(of(&["a/", "b/"], ""), ["a/", "b/"]);
        assert_eq!(of(&["a/", "b/"], "b/c"), ["b/c"]);
        assert_eq!(of(&["ab/", "ac/"], "a"), ["ab/", "ac/"]);
        assert!(of(&["a/"], "c").is_empty());
    }
}

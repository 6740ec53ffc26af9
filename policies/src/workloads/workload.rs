//! State of one workload, and its update by each access.

use super::dataset_use::{DatasetRole, DatasetUse};
use super::evidence::PhaseEvidence;
use super::model_loads::ModelLoads;
use super::rate::DecayingRate;
use super::{AccessContext, WorkloadIdentity};
use crate::access::{Access, Op};
use crate::checkpoints::GroupId;
use crate::engine::{CacheEngine, DatasetId};
use crate::language::{FileType, Phase};
use xxhash_rust::xxh3::xxh3_64;

/// Maximum number of datasets that are remembered for a workload.
pub(super) const DATASETS_MAX: usize = 8;
/// Maximum number of callers that are distinguished in a workload.
pub(super) const CALLERS_MAX: usize = 64;
/// Number of reads between two updates of a role. Undecided roles are updated at every read until
/// [`UNDECIDED_READS_MAX`] reads.
const ROLE_UPDATE_READS: u32 = 8;
const UNDECIDED_READS_MAX: u32 = 64;
/// Minimum length of a pause between batches, as a multiple of the mean gap between requests; the next
/// constant is the number of gaps in the mean.
const PAUSE: f64 = 3.0;
const GAPS: f64 = 64.0;
/// Number of batches from which on their mean size is reported.
const BATCHES_MIN: u64 = 8;
/// Reads between writes of different checkpoints, if names do not identify checkpoints.
const READS_BETWEEN_SAVES: u32 = 32;

/// State of a workload. Times are in microseconds.
#[derive(Clone, Debug)]
pub struct TrackedWorkload {
    /// Id: the family in hexadecimal.
    pub id: Box<str>,
    /// Caller family of the workload.
    family: u64,
    /// Announced attributes.
    pub identity: WorkloadIdentity,
    /// Time of the first request.
    pub first_us: u64,
    /// Time of the last request.
    pub last_us: u64,
    /// Current phase, if known.
    pub phase: Option<Phase>,
    /// Time at which the phase began.
    pub phase_since_us: u64,
    /// Evidence for the phase.
    pub phase_evidence: PhaseEvidence,
    /// Completed epochs over its training sets, as far as they are read in passes.
    pub epochs: u32,
    /// Maximum of `epochs` so far: epochs in the totals of all workloads are never subtracted.
    pub(super) epochs_counted: u32,
    /// Completed epochs over training sets that are no longer remembered.
    epochs_before: u32,
    /// Batches read: derived from the announced batch size, or bursts of reads with pauses between them.
    pub batches: u64,
    /// Requests for data, each for an object or a range of one.
    pub items: u64,
    /// Bytes read.
    pub bytes_read: u64,
    /// Bytes written.
    pub bytes_written: u64,
    /// Number of checkpoints whose write has started.
    pub saves: u32,
    /// Time at which the write of the last checkpoint started.
    pub saved_us: Option<u64>,
    /// Recent time between two checkpoints.
    pub save_interval_us: Option<u64>,
    /// The last checkpoint, if names identify its files.
    pub saved: Option<GroupId>,
    /// Datasets that the workload reads.
    pub datasets: Vec<DatasetUse>,
    /// True if its attributes have been set since the start of the process.
    pub(super) is_introduced: bool,
    /// Bit mask of the frameworks that the user agent indicates.
    pub(super) agent_frameworks: u32,
    pub(super) trials: u32,
    pub(super) changes: u32,
    pub(super) candidate: Option<Phase>,
    pub(super) candidate_reads: u32,
    pub(super) loads: ModelLoads,
    callers: Vec<(u64, u64)>,
    rate: DecayingRate,
    reads_since_write: u32,
    gap_us: f64,
    item_us: u64,
    training_items: u64,
    previous: DatasetId,
    /// The dataset of the last write; the flag is true if it holds checkpoints.
    written: Option<(DatasetId, bool)>,
}

impl TrackedWorkload {
    pub(super) fn new(family: u64, now_us: u64) -> Self {
        Self {
            id: format!("{family:016x}").into(),
            family,
            identity: WorkloadIdentity::default(),
            first_us: now_us,
            last_us: now_us,
            phase: None,
            phase_since_us: now_us,
            phase_evidence: PhaseEvidence::Started,
            epochs: 0,
            epochs_counted: 0,
            epochs_before: 0,
            batches: 0,
            items: 0,
            bytes_read: 0,
            bytes_written: 0,
            saves: 0,
            saved_us: None,
            save_interval_us: None,
            saved: None,
            datasets: Vec::new(),
            is_introduced: false,
            agent_frameworks: 0,
            trials: 0,
            changes: 0,
            candidate: None,
            candidate_reads: 0,
            loads: ModelLoads::default(),
            callers: Vec::new(),
            rate: DecayingRate::default(),
            reads_since_write: 0,
            gap_us: 0.0,
            item_us: 0,
            training_items: 0,
            previous: DatasetId::default(),
            written: None,
        }
    }

    /// Records an access. Returns the dataset if it has just become a training set of the workload.
    pub(super) fn record(&mut self, access: &Access<'_>, what: &AccessContext<'_>) -> Option<DatasetId> {
        self.last_us = access.at_us;
        self.record_caller(access.caller.id, access.at_us);
        match access.op {
            Op::Read => self.record_read(access, what),
            Op::Write => {
                self.record_write(access, what);
                None
            }
            Op::Delete => None,
        }
    }

    fn record_caller(&mut self, id: u64, now_us: u64) {
        if let Some(known) = self.callers.iter_mut().find(|(known, _)| *known == id) {
            known.1 = now_us;
        } else if self.callers.len() < CALLERS_MAX {
            self.callers.push((id, now_us));
        } else if let Some(oldest) = self.callers.iter_mut().min_by_key(|(_, last_us)| *last_us) {
            *oldest = (id, now_us);
        }
    }

    fn record_read(&mut self, access: &Access<'_>, what: &AccessContext<'_>) -> Option<DatasetId> {
        let dataset = what.engine.dataset_id(what.seen);
        let at = self.dataset_index(dataset, access, what);
        let bytes = access.range.end.saturating_sub(access.range.start);
        self.bytes_read = self.bytes_read.saturating_add(bytes);
        self.reads_since_write = self.reads_since_write.saturating_add(1);
        let is_new_visit = self.previous != dataset;
        self.previous = dataset;
        let set = &mut self.datasets[at];
        set.visits += u32::from(is_new_visit);
        if !set.is_described {
            what.describe(access.key, set);
        }
        // The hash is spread over all bits, because caller ids may not be.
        let caller = access.caller.id.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        set.largest = set.largest.max(access.size);
        set.read(access.at_us, xxh3_64(access.key.as_bytes()), caller, &access.range);
        let is_open = set.role == DatasetRole::Undecided && set.reads <= UNDECIDED_READS_MAX;
        let mut begun = None;
        if is_open || is_new_visit || set.reads.is_multiple_of(ROLE_UPDATE_READS) {
            begun = self.update_role(at, what, access.at_us);
        }
        let role = self.datasets[at].role;
        if matches!(role, DatasetRole::Training | DatasetRole::Validation | DatasetRole::Evaluation) {
            self.record_item(access.at_us, role);
            if is_new_visit {
                self.loads.end();
            }
        } else {
            self.loads.read(access.at_us, caller, bytes);
        }
        self.record_phase(at, access.at_us);
        begun
    }

    /// Index of a dataset among the remembered ones; adds it if necessary.
    fn dataset_index(&mut self, dataset: DatasetId, access: &Access<'_>, what: &AccessContext<'_>) -> usize {
        if let Some(at) = self.datasets.iter().position(|set| set.dataset == dataset) {
            return at;
        }
        // A dataset that was merged into another one continues under the id of the latter.
        if let Some(at) = self.datasets.iter().position(|set| what.engine.dataset_now(set.dataset) == dataset)
        {
            self.datasets[at].dataset = dataset;
            return at;
        }
        let set = DatasetUse::new(dataset, access.bucket, what.dataset_name(), access.at_us);
        if self.datasets.len() < DATASETS_MAX {
            self.datasets.push(set);
            return self.datasets.len() - 1;
        }
        let place =
            |at: &usize| (self.datasets[*at].role == DatasetRole::Training, self.datasets[*at].last_us);
        let at = (0..DATASETS_MAX).min_by_key(place).unwrap_or(0);
        let replaced = std::mem::replace(&mut self.datasets[at], set);
        if replaced.role == DatasetRole::Training {
            self.epochs_before = self.epochs_before.max(replaced.epochs);
        }
        at
    }

    /// Updates the role of a dataset. Returns the dataset if it has just become a training set of the
    /// workload.
    fn update_role(&mut self, at: usize, what: &AccessContext<'_>, now_us: u64) -> Option<DatasetId> {
        let set = &mut self.datasets[at];
        let pattern = set.pattern(what.engine, what.seen, now_us);
        let had = set.epochs;
        set.record_passes(what.engine.passes(what.seen), pattern);
        if set.epochs < had {
            self.epochs = self.epochs_before;
        }
        self.count_epochs();
        let (role, why) = self.changed_role(at, pattern, what)?;
        let set = &mut self.datasets[at];
        let was = std::mem::replace(&mut set.role, role);
        set.evidence = why;
        if role != DatasetRole::Training || was == DatasetRole::Training {
            return None;
        }
        let dataset = set.dataset;
        self.count_epochs();
        Some(dataset)
    }

    /// Updates the number of epochs from those of the training sets.
    fn count_epochs(&mut self) {
        let trained = self.datasets_with_role(DatasetRole::Training).map(|set| set.epochs);
        self.epochs = trained.fold(self.epochs, u32::max);
        self.epochs_counted = self.epochs_counted.max(self.epochs);
    }

    fn record_item(&mut self, now_us: u64, role: DatasetRole) {
        self.items += 1;
        self.rate.count(now_us, 1.0);
        if role != DatasetRole::Training {
            return;
        }
        self.training_items += 1;
        let gap_us = now_us.saturating_sub(self.item_us) as f64;
        if self.item_us > 0 {
            let is_pause = gap_us > PAUSE * self.gap_us && self.gap_us > 0.0;
            self.batches += u64::from(is_pause && self.identity.batch_size.is_none());
            // The time of a stop, for a checkpoint or permanently, is not a gap between requests.
            let counted = gap_us.min(if self.gap_us > 0.0 { 64.0 * self.gap_us } else { gap_us });
            self.gap_us += (counted - self.gap_us) / GAPS.min(self.training_items as f64);
        }
        if let Some(size) = self.identity.batch_size {
            self.batches = self.training_items / u64::from(size.max(1));
        }
        self.item_us = now_us;
    }

    fn record_write(&mut self, access: &Access<'_>, what: &AccessContext<'_>) {
        self.bytes_written = self.bytes_written.saturating_add(access.size);
        if !self.is_of_checkpoint(access, what) {
            return;
        }
        let is_new = match (what.checkpoint, self.saved) {
            (Some(group), Some(saved)) => group != saved,
            (Some(_), None) => true,
            (None, _) => self.saves == 0 || self.reads_since_write >= READS_BETWEEN_SAVES,
        };
        self.reads_since_write = 0;
        if !is_new {
            return;
        }
        if let Some(saved_us) = self.saved_us {
            let took_us = access.at_us.saturating_sub(saved_us);
            self.save_interval_us =
                Some(self.save_interval_us.map_or(took_us, |before| before.midpoint(took_us)));
        }
        self.saves += 1;
        (self.saved, self.saved_us) = (what.checkpoint, Some(access.at_us));
        self.enter(Phase::CheckpointSave, PhaseEvidence::WritesCheckpoint, access.at_us);
    }

    /// True if a write belongs to a checkpoint: by its name; otherwise, for a workload with a training set,
    /// if it is at least as large as its mean read.
    fn is_of_checkpoint(&mut self, access: &Access<'_>, what: &AccessContext<'_>) -> bool {
        if what.checkpoint.is_some() {
            return true;
        }
        let dataset = what.engine.dataset_id(what.seen);
        let is_named = match self.written {
            Some((written, is_named)) if written == dataset => is_named,
            _ => matches!(what.program.file_type(access.key), Some(FileType::Checkpoint | FileType::Model)),
        };
        self.written = Some((dataset, is_named));
        let trained = self.datasets.iter().filter(|set| set.role == DatasetRole::Training);
        is_named
            || trained
                .map(|set| set.bytes / u64::from(set.reads.max(1)))
                .min()
                .is_some_and(|bytes| access.size >= bytes)
    }

    /// A copy with the epochs at `now_us`: includes passes that ended with a read after the last update of
    /// the role.
    #[must_use]
    pub fn with_current_epochs(&self, engine: &CacheEngine, now_us: u64) -> Self {
        let mut it = self.clone();
        for (set, epochs) in it.datasets.iter_mut().zip(self.epochs_of_datasets(engine, now_us)) {
            set.epochs = epochs;
        }
        it.count_epochs();
        it
    }

    /// Epochs counted for the workload at `now_us`; the number never decreases.
    pub(super) fn counted_now(&self, engine: &CacheEngine, now_us: u64) -> u32 {
        let of_sets = self.datasets.iter().zip(self.epochs_of_datasets(engine, now_us));
        let trained = of_sets.filter(|(set, _)| set.role == DatasetRole::Training).map(|(_, epochs)| epochs);
        trained.fold(self.epochs_counted, u32::max)
    }

    fn epochs_of_datasets<'a>(
        &'a self,
        engine: &'a CacheEngine,
        now_us: u64,
    ) -> impl Iterator<Item = u32> + 'a {
        self.datasets.iter().map(move |set| {
            // The end of the first pass cannot be detected, and the end of a later pass is counted once.
            if set.passes == 0 || set.epochs > set.passes {
                return set.epochs;
            }
            let dataset = engine.dataset_now(set.dataset);
            let passes =
                engine.passes(engine.access_of_family(now_us, dataset, self.family, self.caller_ids()));
            set.epochs_with(passes)
        })
    }

    /// Number of callers that have sent a request within `idle_us`.
    #[must_use]
    pub fn workers(&self, now_us: u64, idle_us: u64) -> usize {
        self.callers.iter().filter(|(_, last_us)| now_us.saturating_sub(*last_us) <= idle_us).count()
    }

    /// Ids of the callers that are distinguished.
    pub(crate) fn caller_ids(&self) -> impl Iterator<Item = u64> {
        self.callers.iter().map(|(id, _)| *id)
    }

    pub(super) fn callers(&self) -> u32 {
        self.callers.len() as u32
    }

    /// Recent data requests per second.
    #[must_use]
    pub fn items_per_second(&self, now_us: u64) -> f64 {
        self.rate.per_second(now_us)
    }

    /// Objects per batch: the announced number, or the mean number between pauses.
    #[must_use]
    pub fn batch_size(&self) -> Option<f64> {
        let seen = self.batches >= BATCHES_MIN;
        let declared = self.identity.batch_size.map(f64::from);
        declared.or_else(|| seen.then(|| self.training_items as f64 / self.batches as f64))
    }

    /// Datasets with this role.
    pub fn datasets_with_role(&self, role: DatasetRole) -> impl Iterator<Item = &DatasetUse> {
        self.datasets.iter().filter(move |set| set.role == role)
    }

    /// Bit mask of the frameworks that the user agent or the names of its datasets indicate.
    #[must_use]
    pub fn frameworks(&self) -> u32 {
        self.datasets.iter().fold(self.agent_frameworks, |all, set| all | set.frameworks)
    }

    pub(crate) const fn agent_frameworks(&self) -> u32 {
        self.agent_frameworks
    }

    /// Number of phase changes.
    #[must_use]
    pub const fn changes(&self) -> u32 {
        self.changes
    }

    /// Evidence for the phase, as a sentence.
    #[must_use]
    pub fn evidence(&self) -> String {
        self.phase_evidence.to_string()
    }
}

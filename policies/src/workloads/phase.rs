//! Phase of a workload: derived from the roles of its datasets and the current accesses to them.
//!
//! Roles follow from the order, passes and size of reads; the phase is that of the last few reads. A single
//! stray read of another dataset changes nothing, and neither does idleness: a workload that stops stays in
//! its phase.

use super::AccessContext;
use super::dataset_use::{DatasetRole, DatasetUse, FEW_KEYS};
use super::evidence::PhaseEvidence;
use super::workload::TrackedWorkload;
use crate::engine::{DatasetPattern, ReadOrder};
use crate::language::{FileType, Phase};

/// Reads of a dataset other than the training set before its role is decided.
const BESIDE_READS_MIN: u32 = 4;
/// Fraction of the training set's reads per pass above which another dataset is a training set, too.
const BESIDE_SHARE: f64 = 0.6;
/// Reads of a dataset before it can count as interleaved with the training set; the next constant is the
/// mean number of reads per visit below which it does.
const INTERLEAVED_READS_MIN: u32 = 32;
const INTERLEAVED_VISIT_READS: f64 = 3.0;
/// Number of passes over the training set from which on a newly read dataset is no longer assumed to be a
/// validation set.
const PASSES_MAX: u32 = 2;
/// Minimum size of model files, as a multiple of the size of evaluation data.
const MODEL_TIMES: u64 = 8;
/// Minimum size of model files whose type is unknown: indexes and configuration files are reloaded, too.
const MODEL_BYTES_MIN: u64 = 64 << 20;
/// Mean number of opens per file from which on files count as reloaded.
const LOADS_MIN: f64 = 1.5;
/// Waves of loads without data reads, or number of callers, from which on a model counts as served.
const SERVED_WAVES: u32 = 2;
const SERVED_CALLERS: u32 = 32;
/// Maximum number of reads that confirm a new phase: one, plus one for each caller, because callers do not
/// change phases simultaneously.
const CONFIRMING_READS_MAX: u32 = 8;
/// Number of similarly named workloads on one dataset that make a search.
pub(super) const TRIALS_MIN: u32 = 3;

impl TrackedWorkload {
    /// The new role of a dataset and the evidence; `None` if the role does not change.
    pub(super) fn changed_role(
        &self,
        at: usize,
        pattern: Option<DatasetPattern>,
        what: &AccessContext<'_>,
    ) -> Option<(DatasetRole, PhaseEvidence)> {
        let set = &self.datasets[at];
        let (role, why) = self.role_of(at, pattern, what)?;
        (role != set.role).then_some((role, why))
    }

    fn role_of(
        &self,
        at: usize,
        pattern: Option<DatasetPattern>,
        what: &AccessContext<'_>,
    ) -> Option<(DatasetRole, PhaseEvidence)> {
        let set = &self.datasets[at];
        match set.file_type {
            Some(FileType::Checkpoint | FileType::Model) => {
                return Some((DatasetRole::Model, PhaseEvidence::ReadsModel));
            }
            Some(FileType::Index | FileType::Metadata) => {
                return Some((DatasetRole::Small, PhaseEvidence::Started));
            }
            _ => {}
        }
        if pattern == Some(DatasetPattern::Checkpoint) {
            return Some((DatasetRole::Model, PhaseEvidence::ReadsModel));
        }
        let trained = self.other_training_set(at);
        if let Some(trained) = trained {
            if what.is_validation || pattern == Some(DatasetPattern::Validation) {
                return Some((DatasetRole::Validation, PhaseEvidence::BetweenPasses));
            }
            return if set.role == DatasetRole::Training {
                None
            } else {
                self.role_beside_training(set, trained)
            };
        }
        // A dataset with more files than any model is data.
        if set.role == DatasetRole::Model && set.keys() <= FEW_KEYS {
            return None;
        }
        if set.keys() <= FEW_KEYS && set.file_type.is_none() && set.role == DatasetRole::Undecided {
            // A few files of unknown type are a model if each new caller loads all of them. Batches come in
            // waves, too, but from the same callers, and with different files each.
            let is_whole = f64::from(set.opens) >= LOADS_MIN * f64::from(set.keys());
            let are_others = self.loads.waves() <= self.loads.callers() + 1;
            if set.largest >= MODEL_BYTES_MIN && is_whole && are_others && self.is_serving() {
                return Some((DatasetRole::Model, PhaseEvidence::ReadsModel));
            }
            if !set.is_reopened() || self.loads.waves() > 1 {
                return None;
            }
        }
        self.role_without_training(at, pattern)
    }

    /// The largest of the other training sets. A workload that writes no checkpoints and reads without
    /// passes is not training.
    fn other_training_set(&self, at: usize) -> Option<&DatasetUse> {
        let own = self.datasets[at].dataset;
        let others = self.datasets_with_role(DatasetRole::Training).filter(|set| set.dataset != own);
        others.filter(|set| self.saves > 0 || !set.is_served()).max_by_key(|set| set.reads)
    }

    /// Role of a dataset beside a training set.
    fn role_beside_training(
        &self,
        set: &DatasetUse,
        trained: &DatasetUse,
    ) -> Option<(DatasetRole, PhaseEvidence)> {
        if set.reads < BESIDE_READS_MIN {
            return None;
        }
        let is_as_large = set.reads_of_pass() > BESIDE_SHARE * trained.reads_of_pass();
        let is_interleaved =
            set.reads >= INTERLEAVED_READS_MIN && set.reads_of_visit() < INTERLEAVED_VISIT_READS;
        if is_as_large || is_interleaved {
            return Some((DatasetRole::Training, PhaseEvidence::ReadsOtherAsMuch));
        }
        let has_other =
            self.datasets_with_role(DatasetRole::Validation).any(|other| other.dataset != set.dataset);
        let comes_again = set.visits > 1 && set.passes > 0;
        match set.role {
            DatasetRole::Validation => None,
            DatasetRole::Evaluation if !comes_again => None,
            _ if comes_again || (trained.passes < PASSES_MAX && !has_other) => {
                Some((DatasetRole::Validation, PhaseEvidence::BetweenPasses))
            }
            _ => Some((DatasetRole::Evaluation, PhaseEvidence::ReadsNewDataset)),
        }
    }

    /// Role of a dataset if there is no training set.
    fn role_without_training(
        &self,
        at: usize,
        pattern: Option<DatasetPattern>,
    ) -> Option<(DatasetRole, PhaseEvidence)> {
        let set = &self.datasets[at];
        if set.is_served() {
            let why = if set.is_uneven() { PhaseEvidence::Skewed } else { PhaseEvidence::NoPasses };
            return Some((if self.saves == 0 { DatasetRole::Serving } else { DatasetRole::Training }, why));
        }
        if set.passes > 0 {
            return Some((DatasetRole::Training, PhaseEvidence::RepeatsDataset { passes: set.passes }));
        }
        let Some(DatasetPattern::Epochs(order)) = pattern else { return None };
        if matches!(order, ReadOrder::Shuffled | ReadOrder::ShardShuffled) {
            return Some((DatasetRole::Training, PhaseEvidence::Shuffles));
        }
        if !set.is_data() {
            None
        } else if self.saves == 0 && self.has_read_model(set) {
            Some((DatasetRole::Evaluation, PhaseEvidence::InOrderAfterModel))
        } else {
            Some((DatasetRole::Training, PhaseEvidence::ReadsInOrder))
        }
    }

    /// True if the workload has read a model before the dataset: a dataset with that role, or one with few
    /// and much larger files.
    fn has_read_model(&self, set: &DatasetUse) -> bool {
        self.datasets.iter().filter(|other| other.dataset != set.dataset).any(|other| {
            let is_large = other.keys() <= FEW_KEYS && other.largest / MODEL_TIMES >= set.largest;
            other.role == DatasetRole::Model || (other.role == DatasetRole::Undecided && is_large)
        })
    }

    /// The phase that a read of a dataset indicates.
    fn phase_of(&self, set: &DatasetUse) -> Option<(Phase, PhaseEvidence)> {
        match set.role {
            DatasetRole::Training if self.trials >= TRIALS_MIN => {
                Some((Phase::Tuning, PhaseEvidence::SimilarTrials { workloads: self.trials }))
            }
            DatasetRole::Training => Some((Phase::Training, set.evidence)),
            DatasetRole::Validation => Some((Phase::Validation, PhaseEvidence::BetweenPasses)),
            DatasetRole::Evaluation => Some((Phase::Evaluation, set.evidence)),
            DatasetRole::Serving => Some((Phase::Inference, set.evidence)),
            DatasetRole::Model if self.is_serving() => {
                let (waves, callers) = (self.loads.waves(), self.loads.callers());
                Some((Phase::Inference, PhaseEvidence::ReloadsModel { waves, callers }))
            }
            DatasetRole::Model => Some((Phase::Initialization, PhaseEvidence::ReadsModel)),
            DatasetRole::Small | DatasetRole::Undecided => None,
        }
    }

    /// True if a model is loaded for callers other than those that loaded it first.
    fn is_serving(&self) -> bool {
        let callers = self.loads.callers();
        self.loads.waves() >= SERVED_WAVES && callers > 1 || callers >= SERVED_CALLERS
    }

    /// Updates the phase after a read of a dataset.
    pub(super) fn record_phase(&mut self, at: usize, now_us: u64) {
        let Some((phase, why)) = self.phase_of(&self.datasets[at]) else {
            if self.phase.is_none() {
                self.enter(Phase::Initialization, PhaseEvidence::Started, now_us);
            }
            return;
        };
        if self.phase == Some(phase) {
            self.candidate_reads = 0;
            return;
        }
        self.candidate_reads = if self.candidate == Some(phase) { self.candidate_reads + 1 } else { 1 };
        self.candidate = Some(phase);
        // A single read does not end the write of a checkpoint; continued reads do.
        let is_saving = self.phase == Some(Phase::CheckpointSave);
        let reads_needed = if is_saving { 2 } else { (1 + self.callers()).min(CONFIRMING_READS_MAX) };
        if self.phase.is_none() || self.candidate_reads >= reads_needed {
            self.enter(phase, why, now_us);
        }
    }

    pub(super) fn enter(&mut self, phase: Phase, why: PhaseEvidence, now_us: u64) {
        (self.candidate, self.candidate_reads) = (None, 0);
        self.phase_evidence = why;
        if self.phase != Some(phase) {
            (self.phase, self.phase_since_us) = (Some(phase), now_us);
            self.changes += 1;
        }
    }
}

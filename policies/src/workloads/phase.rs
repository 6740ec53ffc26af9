//! Phase of a workload: derived from the roles of its datasets and the current accesses to them.
//!
//! Roles follow from the order, passes and size of reads; the phase is that of the last few reads. A single
//! stray read of another dataset changes nothing, and neither does idleness: a workload that stops stays in
//! its phase.

use super::set::{Role, Set};
use super::why::Why;
use super::workload::Workload;
use crate::engine::{Order, Pattern};
use crate::language::{FileType, Phase};

/// Maximum number of keys of a model.
pub(super) const FEW_KEYS: u32 = 24;
/// Reads of a dataset other than the training set before its role is decided.
const BESIDE_READS_MIN: u32 = 4;
/// Fraction of the training set's reads per pass above which another dataset is a training set, too.
const BESIDE_SHARE: f64 = 0.6;
/// Reads of a dataset before it can count as interleaved with the training set; the next constant is the
/// mean number of reads per visit below which it does.
const MINGLED_READS: u32 = 32;
const MINGLED_RUN: f64 = 3.0;
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
const RUN_MAX: u32 = 8;
/// Number of similarly named workloads on one dataset that make a search.
pub(super) const TRIALS_MIN: u32 = 3;

impl Workload {
    /// The new role of a dataset and the evidence; `None` if the role does not change.
    pub(super) fn judge(
        &self,
        at: usize,
        pattern: Option<Pattern>,
        is_validation: bool,
    ) -> Option<(Role, Why)> {
        let set = &self.sets[at];
        let (role, why) = self.role_of(at, pattern, is_validation)?;
        (role != set.role).then_some((role, why))
    }

    fn role_of(&self, at: usize, pattern: Option<Pattern>, is_validation: bool) -> Option<(Role, Why)> {
        let set = &self.sets[at];
        match set.file_type {
            Some(FileType::Checkpoint | FileType::Model) => return Some((Role::Model, Why::ReadsModel)),
            Some(FileType::Index | FileType::Metadata) => return Some((Role::Small, Why::Begun)),
            _ => {}
        }
        if pattern == Some(Pattern::Checkpoint) {
            return Some((Role::Model, Why::ReadsModel));
        }
        let trained = self.trained_beside(at);
        if let Some(trained) = trained {
            if is_validation || pattern == Some(Pattern::Validation) {
                return Some((Role::Validation, Why::BetweenPasses));
            }
            return if set.role == Role::Training { None } else { self.beside(set, trained) };
        }
        // A dataset with more files than any model is data.
        if set.role == Role::Model && set.keys() <= FEW_KEYS {
            return None;
        }
        if set.keys() <= FEW_KEYS && set.file_type.is_none() && set.role == Role::Undecided {
            // A few files of unknown type are a model if each new caller loads all of them. Batches come in
            // waves, too, but from the same callers, and with different files each.
            let is_whole = f64::from(set.opens) >= LOADS_MIN * f64::from(set.keys());
            let are_others = self.loads.waves() <= self.loads.callers() + 1;
            if set.largest >= MODEL_BYTES_MIN && is_whole && are_others && self.is_serving() {
                return Some((Role::Model, Why::ReadsModel));
            }
            if !set.comes_again() || self.loads.waves() > 1 {
                return None;
            }
        }
        self.alone(at, pattern)
    }

    /// The largest of the other training sets. A workload that writes no checkpoints and reads without
    /// passes is not training.
    fn trained_beside(&self, at: usize) -> Option<&Set> {
        let own = self.sets[at].dataset;
        let others = self.sets_of(Role::Training).filter(|set| set.dataset != own);
        others.filter(|set| self.saves > 0 || !set.is_served()).max_by_key(|set| set.reads)
    }

    /// Role of a dataset beside a training set.
    fn beside(&self, set: &Set, trained: &Set) -> Option<(Role, Why)> {
        if set.reads < BESIDE_READS_MIN {
            return None;
        }
        let is_as_large = set.reads_of_pass() > BESIDE_SHARE * trained.reads_of_pass();
        let is_mingled = set.reads >= MINGLED_READS && set.reads_of_visit() < MINGLED_RUN;
        if is_as_large || is_mingled {
            return Some((Role::Training, Why::ReadsMore));
        }
        let has_other = self.sets_of(Role::Validation).any(|other| other.dataset != set.dataset);
        let comes_again = set.visits > 1 && set.passes > 0;
        match set.role {
            Role::Validation => None,
            Role::Evaluation if !comes_again => None,
            _ if comes_again || (trained.passes < PASSES_MAX && !has_other) => {
                Some((Role::Validation, Why::BetweenPasses))
            }
            _ => Some((Role::Evaluation, Why::ReadsAnother)),
        }
    }

    /// Role of a dataset if there is no training set.
    fn alone(&self, at: usize, pattern: Option<Pattern>) -> Option<(Role, Why)> {
        let set = &self.sets[at];
        if set.is_served() {
            let why = if set.is_uneven() { Why::Skewed } else { Why::NoPasses };
            return Some((if self.saves == 0 { Role::Serving } else { Role::Training }, why));
        }
        if set.passes > 0 {
            return Some((Role::Training, Why::ComesBack { passes: set.passes }));
        }
        let Some(Pattern::Epochs(order)) = pattern else { return None };
        if matches!(order, Order::Shuffled | Order::ShardShuffled) {
            return Some((Role::Training, Why::Shuffles));
        }
        if !set.is_data() {
            None
        } else if self.saves == 0 && self.has_read_model(set) {
            Some((Role::Evaluation, Why::InOrderAfterModel))
        } else {
            Some((Role::Training, Why::ReadsInOrder))
        }
    }

    /// True if the workload has read a model before the dataset: a dataset with that role, or one with few
    /// and much larger files.
    fn has_read_model(&self, set: &Set) -> bool {
        self.sets.iter().filter(|other| other.dataset != set.dataset).any(|other| {
            let is_large = other.keys() <= FEW_KEYS && other.largest / MODEL_TIMES >= set.largest;
            other.role == Role::Model || (other.role == Role::Undecided && is_large)
        })
    }

    /// The phase that a read of a dataset indicates.
    fn phase_of(&self, set: &Set) -> Option<(Phase, Why)> {
        match set.role {
            Role::Training if self.trials >= TRIALS_MIN => {
                Some((Phase::Tuning, Why::AreAlike { workloads: self.trials }))
            }
            Role::Training => Some((Phase::Training, set.why)),
            Role::Validation => Some((Phase::Validation, Why::BetweenPasses)),
            Role::Evaluation => Some((Phase::Evaluation, set.why)),
            Role::Serving => Some((Phase::Inference, set.why)),
            Role::Model if self.is_serving() => {
                let (waves, callers) = (self.loads.waves(), self.loads.callers());
                Some((Phase::Inference, Why::LoadsAgain { waves, callers }))
            }
            Role::Model => Some((Phase::Initialization, Why::ReadsModel)),
            Role::Small | Role::Undecided => None,
        }
    }

    /// True if a model is loaded for callers other than those that loaded it first.
    fn is_serving(&self) -> bool {
        let callers = self.loads.callers();
        self.loads.waves() >= SERVED_WAVES && callers > 1 || callers >= SERVED_CALLERS
    }

    /// Updates the phase after a read of a dataset.
    pub(super) fn note_phase(&mut self, at: usize, now_us: u64) {
        let Some((phase, why)) = self.phase_of(&self.sets[at]) else {
            if self.phase.is_none() {
                self.enter(Phase::Initialization, Why::Begun, now_us);
            }
            return;
        };
        if self.phase == Some(phase) {
            self.run = 0;
            return;
        }
        self.run = if self.candidate == Some(phase) { self.run + 1 } else { 1 };
        self.candidate = Some(phase);
        // A single read does not end the write of a checkpoint; continued reads do.
        let is_saving = self.phase == Some(Phase::CheckpointSave);
        let wanted = if is_saving { 2 } else { (1 + self.callers()).min(RUN_MAX) };
        if self.phase.is_none() || self.run >= wanted {
            self.enter(phase, why, now_us);
        }
    }

    pub(super) fn enter(&mut self, phase: Phase, why: Why, now_us: u64) {
        (self.candidate, self.run) = (None, 0);
        self.why = why;
        if self.phase != Some(phase) {
            (self.phase, self.since_us) = (Some(phase), now_us);
            self.changes += 1;
        }
    }
}

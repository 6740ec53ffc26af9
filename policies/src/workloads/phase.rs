//! Which phase a workload is in: what the datasets that it reads are to it, and what it does with them now.
//!
//! Roles come from order, passes and size of what is read; the phase is that of the last few reads. A stray
//! read of something else changes nothing, and neither does silence: a workload that stops stays in the phase
//! in which it was.

use super::set::{Role, Set};
use super::why::Why;
use super::workload::Workload;
use crate::engine::{Order, Pattern};
use crate::language::{FileType, Phase};

/// Of fewer keys a model may be made.
pub(super) const FEW_KEYS: u32 = 24;
/// Reads of a dataset beside the one that is trained with before it is told what it is.
const BESIDE_READS_MIN: u32 = 4;
/// A dataset of more than this share of what is trained with is trained with, too.
const BESIDE_SHARE: f64 = 0.6;
/// Reads of two datasets in turns are mingled, when so many of one do not come to this many in a row.
const MINGLED_READS: u32 = 32;
const MINGLED_RUN: f64 = 3.0;
/// Whoever has not been read between so many passes is not what is read between passes.
const PASSES_MAX: u32 = 2;
/// The files of a model are so many times as large as those of what it is evaluated with.
const MODEL_TIMES: u64 = 8;
/// Smaller files are no models, unless somebody says so: indexes and configuration are loaded again, too.
const MODEL_BYTES_MIN: u64 = 64 << 20;
/// Files that are opened so often are loaded again.
const LOADS_MIN: f64 = 1.5;
/// A model that was loaded so often without data, or by so many, is served.
const SERVED_WAVES: u32 = 2;
const SERVED_CALLERS: u32 = 32;
/// Reads that show a phase: one, and one more for each caller, as they do not change at once.
const RUN_MAX: u32 = 8;
/// Workloads that are alike and train with one dataset are a search.
pub(super) const TRIALS_MIN: u32 = 3;

impl Workload {
    /// What a dataset turns out to be, if that is another thing than was thought.
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
        // More files than any model has are data after all.
        if set.role == Role::Model && set.keys() <= FEW_KEYS {
            return None;
        }
        if set.keys() <= FEW_KEYS && set.file_type.is_none() && set.role == Role::Undecided {
            // A few files, and nobody says what they are: if whoever comes loads all of them, a model.
            // Batches come in waves, too, but of the same callers, and each of other files.
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

    /// The largest of the other datasets that it trains with; who writes no checkpoint and reads without
    /// passes does not train.
    fn trained_beside(&self, at: usize) -> Option<&Set> {
        let own = self.sets[at].dataset;
        let others = self.sets_of(Role::Training).filter(|set| set.dataset != own);
        others.filter(|set| self.saves > 0 || !set.is_served()).max_by_key(|set| set.reads)
    }

    /// What a dataset is beside one that is trained with.
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

    /// What a dataset is while none is trained with.
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

    /// Whether it has read a model before a dataset: by its name, or few keys, all of them much larger.
    fn has_read_model(&self, set: &Set) -> bool {
        self.sets.iter().filter(|other| other.dataset != set.dataset).any(|other| {
            let is_large = other.keys() <= FEW_KEYS && other.largest / MODEL_TIMES >= set.largest;
            other.role == Role::Model || (other.role == Role::Undecided && is_large)
        })
    }

    /// Its phase, as a read of a dataset shows it.
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

    /// Whether a model is loaded for others than those who loaded it first.
    fn is_serving(&self) -> bool {
        let callers = self.loads.callers();
        self.loads.waves() >= SERVED_WAVES && callers > 1 || callers >= SERVED_CALLERS
    }

    /// A dataset is read: what phase that is.
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
        // Writing ends when reading goes on.
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

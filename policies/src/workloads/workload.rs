//! A workload: what is known of it, and what each of its accesses adds.

use super::loads::Loads;
use super::rate::Rate;
use super::set::{Role, Set};
use super::why::Why;
use super::{Identity, What};
use crate::access::{Access, Op};
use crate::checkpoints::GroupId;
use crate::engine::{DatasetId, Engine};
use crate::language::{FileType, Phase};
use xxhash_rust::xxh3::xxh3_64;

/// Datasets that are remembered of a workload.
pub(super) const SETS_MAX: usize = 8;
/// Callers that are told apart.
pub(super) const CALLERS_MAX: usize = 64;
/// Roles are looked at again once in so many reads, and so are undecided ones once they have been looked at
/// for long.
const LOOK_EVERY: u32 = 8;
const LOOKS_MAX: u32 = 64;
/// A pause between batches is so many times as long as requests are apart, on average over so many.
const PAUSE: f64 = 3.0;
const GAPS: f64 = 64.0;
/// Batches from which on their size is told.
const BATCHES_MIN: u64 = 8;
/// Reads between writes that belong to different checkpoints, where no name says so.
const READS_BETWEEN_SAVES: u32 = 32;

/// What is known of a workload. Times are in microseconds.
#[derive(Clone, Debug)]
pub struct Workload {
    /// Its id: of its family, in hexadecimal.
    pub id: Box<str>,
    /// The family that it is.
    family: u64,
    /// What it says of itself.
    pub identity: Identity,
    /// When it came.
    pub first_us: u64,
    /// When it asked for something last.
    pub last_us: u64,
    /// What it is doing, as far as that is known.
    pub phase: Option<Phase>,
    /// Since when.
    pub since_us: u64,
    /// Why that is thought.
    pub why: Why,
    /// Epochs that it has completed over what it trains with, as far as what it reads is read in passes.
    pub epochs: u32,
    /// As many as that ever was: what has been counted for all workloads stays counted.
    pub(super) counted: u32,
    /// As many as there were of what it trained with and is not remembered any more.
    epochs_before: u32,
    /// Batches that it has read: as many as it says, or bursts of reads with pauses between them.
    pub batches: u64,
    /// Requests for data: an object each, or a range of one.
    pub items: u64,
    /// Bytes that it has read.
    pub bytes_read: u64,
    /// Bytes that it has written.
    pub bytes_written: u64,
    /// Checkpoints that it has begun to write.
    pub saves: u32,
    /// When it began the last one.
    pub saved_us: Option<u64>,
    /// How long it is between two, lately.
    pub save_interval_us: Option<u64>,
    /// The last one, where names tell which files are one.
    pub saved: Option<GroupId>,
    /// The datasets that it reads.
    pub sets: Vec<Set>,
    /// Whether it has said who it is since the start.
    pub(super) is_introduced: bool,
    /// Of its frameworks a bit each, by user agent.
    pub(super) agent_frameworks: u32,
    pub(super) trials: u32,
    pub(super) changes: u32,
    pub(super) candidate: Option<Phase>,
    pub(super) run: u32,
    pub(super) loads: Loads,
    callers: Vec<(u64, u64)>,
    rate: Rate,
    reads_since_write: u32,
    gap_us: f64,
    item_us: u64,
    training_items: u64,
    previous: DatasetId,
    /// The dataset that was written to last, and whether it is of checkpoints.
    written: Option<(DatasetId, bool)>,
}

impl Workload {
    pub(super) fn new(family: u64, now_us: u64) -> Self {
        Self {
            id: format!("{family:016x}").into(),
            family,
            identity: Identity::default(),
            first_us: now_us,
            last_us: now_us,
            phase: None,
            since_us: now_us,
            why: Why::Begun,
            epochs: 0,
            counted: 0,
            epochs_before: 0,
            batches: 0,
            items: 0,
            bytes_read: 0,
            bytes_written: 0,
            saves: 0,
            saved_us: None,
            save_interval_us: None,
            saved: None,
            sets: Vec::new(),
            is_introduced: false,
            agent_frameworks: 0,
            trials: 0,
            changes: 0,
            candidate: None,
            run: 0,
            loads: Loads::default(),
            callers: Vec::new(),
            rate: Rate::default(),
            reads_since_write: 0,
            gap_us: 0.0,
            item_us: 0,
            training_items: 0,
            previous: DatasetId::default(),
            written: None,
        }
    }

    /// Notes an access. Answers the dataset that turned out to be one that it trains with.
    pub(super) fn note(&mut self, access: &Access<'_>, what: &What<'_>) -> Option<DatasetId> {
        self.last_us = access.at_us;
        self.note_caller(access.caller.id, access.at_us);
        match access.op {
            Op::Read => self.note_read(access, what),
            Op::Write => {
                self.note_write(access, what);
                None
            }
            Op::Delete => None,
        }
    }

    fn note_caller(&mut self, id: u64, now_us: u64) {
        if let Some(known) = self.callers.iter_mut().find(|(known, _)| *known == id) {
            known.1 = now_us;
        } else if self.callers.len() < CALLERS_MAX {
            self.callers.push((id, now_us));
        } else if let Some(oldest) = self.callers.iter_mut().min_by_key(|(_, last_us)| *last_us) {
            *oldest = (id, now_us);
        }
    }

    fn note_read(&mut self, access: &Access<'_>, what: &What<'_>) -> Option<DatasetId> {
        let dataset = what.engine.dataset_id(what.seen);
        let at = self.set_of(dataset, access, what);
        let bytes = access.range.end.saturating_sub(access.range.start);
        self.bytes_read = self.bytes_read.saturating_add(bytes);
        self.reads_since_write = self.reads_since_write.saturating_add(1);
        let comes = self.previous != dataset;
        self.previous = dataset;
        let set = &mut self.sets[at];
        set.visits += u32::from(comes);
        if !set.is_described {
            what.describe(access.key, set);
        }
        // Spread over all bits, as the ids of callers may not be.
        let caller = access.caller.id.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        set.largest = set.largest.max(access.size);
        set.read(access.at_us, xxh3_64(access.key.as_bytes()), caller, bytes, access.range.start == 0);
        let is_open = set.role == Role::Undecided && set.reads <= LOOKS_MAX;
        let mut begun = None;
        if is_open || comes || set.reads.is_multiple_of(LOOK_EVERY) {
            begun = self.look(at, what, access.at_us);
        }
        let role = self.sets[at].role;
        if matches!(role, Role::Training | Role::Validation | Role::Evaluation) {
            self.note_item(access.at_us, role);
            if comes {
                self.loads.end();
            }
        } else {
            self.loads.read(access.at_us, caller, bytes);
        }
        self.note_phase(at, access.at_us);
        begun
    }

    /// The place of a dataset among those that are remembered.
    fn set_of(&mut self, dataset: DatasetId, access: &Access<'_>, what: &What<'_>) -> usize {
        if let Some(at) = self.sets.iter().position(|set| set.dataset == dataset) {
            return at;
        }
        // What became part of another one goes on as that.
        if let Some(at) = self.sets.iter().position(|set| what.engine.dataset_now(set.dataset) == dataset) {
            self.sets[at].dataset = dataset;
            return at;
        }
        let set = Set::new(dataset, (access.bucket, what.set_name()), access.at_us);
        if self.sets.len() < SETS_MAX {
            self.sets.push(set);
            return self.sets.len() - 1;
        }
        let place = |at: &usize| (self.sets[*at].role == Role::Training, self.sets[*at].last_us);
        let at = (0..SETS_MAX).min_by_key(place).unwrap_or(0);
        let gone = std::mem::replace(&mut self.sets[at], set);
        if gone.role == Role::Training {
            self.epochs_before = self.epochs_before.max(gone.epochs);
        }
        at
    }

    /// Looks what a dataset is to it. Answers which one if it has just turned out to be one that it trains
    /// with.
    fn look(&mut self, at: usize, what: &What<'_>, now_us: u64) -> Option<DatasetId> {
        let set = &mut self.sets[at];
        let pattern = set.pattern(what.engine, what.seen, now_us);
        let had = set.epochs;
        set.note_passes(what.engine.passes(what.seen), pattern);
        if set.epochs < had {
            self.epochs = self.epochs_before;
        }
        self.count_epochs();
        let (role, why) = self.judge(at, pattern, what.is_validation)?;
        let set = &mut self.sets[at];
        let was = std::mem::replace(&mut set.role, role);
        set.why = why;
        if role != Role::Training || was == Role::Training {
            return None;
        }
        let dataset = set.dataset;
        self.count_epochs();
        Some(dataset)
    }

    /// Takes in how many epochs there are of what it trains with.
    fn count_epochs(&mut self) {
        let trained = self.sets_of(Role::Training).map(|set| set.epochs);
        self.epochs = trained.fold(self.epochs, u32::max);
        self.counted = self.counted.max(self.epochs);
    }

    fn note_item(&mut self, now_us: u64, role: Role) {
        self.items += 1;
        self.rate.count(now_us, 1.0);
        if role != Role::Training {
            return;
        }
        self.training_items += 1;
        let gap_us = now_us.saturating_sub(self.item_us) as f64;
        if self.item_us > 0 {
            let is_pause = gap_us > PAUSE * self.gap_us && self.gap_us > 0.0;
            self.batches += u64::from(is_pause && self.identity.batch_size.is_none());
            // A stop, for a checkpoint or for good, is no gap between requests.
            let counted = gap_us.min(if self.gap_us > 0.0 { 64.0 * self.gap_us } else { gap_us });
            self.gap_us += (counted - self.gap_us) / GAPS.min(self.training_items as f64);
        }
        if let Some(size) = self.identity.batch_size {
            self.batches = self.training_items / u64::from(size.max(1));
        }
        self.item_us = now_us;
    }

    fn note_write(&mut self, access: &Access<'_>, what: &What<'_>) {
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
        self.enter(Phase::CheckpointSave, Why::Writes, access.at_us);
    }

    /// Whether a write is one of a checkpoint: by its name; without one, of what trains, if it is no smaller
    /// than what that reads at once.
    fn is_of_checkpoint(&mut self, access: &Access<'_>, what: &What<'_>) -> bool {
        if what.checkpoint.is_some() {
            return true;
        }
        let dataset = what.engine.dataset_id(what.seen);
        let is_named = match self.written {
            Some((written, is_named)) if written == dataset => is_named,
            _ => matches!(what.program.file_type(access.key), Some(FileType::Checkpoint | FileType::Model)),
        };
        self.written = Some((dataset, is_named));
        let trained = self.sets.iter().filter(|set| set.role == Role::Training);
        is_named
            || trained
                .map(|set| set.bytes / u64::from(set.reads.max(1)))
                .min()
                .is_some_and(|bytes| access.size >= bytes)
    }

    /// The same as of now: with passes that ended with a read after which nobody looked.
    #[must_use]
    pub fn caught_up(&self, engine: &Engine, now_us: u64) -> Self {
        let mut it = self.clone();
        for (set, epochs) in it.sets.iter_mut().zip(self.epochs_of_sets(engine, now_us)) {
            set.epochs = epochs;
        }
        it.count_epochs();
        it
    }

    /// Epochs that were counted for it, as of now: they never get less.
    pub(super) fn counted_now(&self, engine: &Engine, now_us: u64) -> u32 {
        let of_sets = self.sets.iter().zip(self.epochs_of_sets(engine, now_us));
        let trained = of_sets.filter(|(set, _)| set.role == Role::Training).map(|(_, epochs)| epochs);
        trained.fold(self.counted, u32::max)
    }

    fn epochs_of_sets<'a>(&'a self, engine: &'a Engine, now_us: u64) -> impl Iterator<Item = u32> + 'a {
        self.sets.iter().map(move |set| {
            // Of the first pass nobody knows where it ends, and the end of another one is seen once.
            if set.passes == 0 || set.epochs > set.passes {
                return set.epochs;
            }
            let dataset = engine.dataset_now(set.dataset);
            let passes = engine.passes(engine.unseen(now_us, dataset, self.family, self.caller_ids()));
            set.epochs_with(passes)
        })
    }

    /// Callers that have asked for something within so long.
    #[must_use]
    pub fn workers(&self, now_us: u64, idle_us: u64) -> usize {
        self.callers.iter().filter(|(_, last_us)| now_us.saturating_sub(*last_us) <= idle_us).count()
    }

    /// Those that are told apart.
    pub(crate) fn caller_ids(&self) -> impl Iterator<Item = u64> {
        self.callers.iter().map(|(id, _)| *id)
    }

    pub(super) fn callers(&self) -> u32 {
        self.callers.len() as u32
    }

    /// Requests for data a second, lately.
    #[must_use]
    pub fn items_per_second(&self, now_us: u64) -> f64 {
        self.rate.per_second(now_us)
    }

    /// Objects that it reads at once, as it says or as pauses show.
    #[must_use]
    pub fn batch_size(&self) -> Option<f64> {
        let seen = self.batches >= BATCHES_MIN;
        let declared = self.identity.batch_size.map(f64::from);
        declared.or_else(|| seen.then(|| self.training_items as f64 / self.batches as f64))
    }

    /// Datasets that are this to it.
    pub fn sets_of(&self, role: Role) -> impl Iterator<Item = &Set> {
        self.sets.iter().filter(move |set| set.role == role)
    }

    /// A bit for each framework that its user agent or the names of what it reads speak for.
    #[must_use]
    pub fn frameworks(&self) -> u32 {
        self.sets.iter().fold(self.agent_frameworks, |all, set| all | set.frameworks)
    }

    pub(crate) const fn agent_frameworks(&self) -> u32 {
        self.agent_frameworks
    }

    /// How often its phase has changed.
    #[must_use]
    pub const fn changes(&self) -> u32 {
        self.changes
    }

    /// Why it is thought to be in its phase, in a sentence.
    #[must_use]
    pub fn evidence(&self) -> String {
        self.why.to_string()
    }
}

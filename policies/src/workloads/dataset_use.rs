//! A dataset that a workload reads, and its role for the workload.
//!
//! Keys and callers are counted in 64 bits each, one bit per hash, which is enough to distinguish few from
//! many, and new ones from known ones.

use super::evidence::PhaseEvidence;
use super::frameworks;
use super::open_statistics::OpenStatistics;
use super::rate::DecayingRate;
use crate::engine::{CacheEngine, DatasetId, DatasetPattern, ObservedAccess, PassProgress};
use crate::language::{FileType, Program};
use std::ops::Range;

/// Maximum number of keys of a model.
pub(super) const FEW_KEYS: u32 = 24;
/// Number of opens in the running mean of repeated opens by the same caller. The next constant is the share
/// above which the opens of few keys count as repeated; a smaller share may be due to bit collisions.
const REOPENED_OPENS: f32 = 16.0;
const REOPENED_SHARE: f32 = 0.75;

/// Mean number of opens per object from which on reads without passes count as serving.
const SERVED_OPENS_MIN: f64 = 4.0;

/// Role of a dataset for a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DatasetRole {
    /// Not known yet.
    Undecided,
    /// The workload trains with it.
    Training,
    /// Read between passes over the training set.
    Validation,
    /// Read once.
    Evaluation,
    /// A model, or its checkpoints.
    Model,
    /// Configuration, indexes and similar files.
    Small,
    /// Parts are read repeatedly, to answer requests.
    Serving,
}

impl DatasetRole {
    /// Name of the role.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Undecided => "undecided",
            Self::Training => "training",
            Self::Validation => "validation",
            Self::Evaluation => "evaluation",
            Self::Model => "model",
            Self::Small => "small",
            Self::Serving => "serving",
        }
    }
}

/// A dataset that a workload reads.
#[derive(Clone, Debug)]
pub struct DatasetUse {
    /// Id of the dataset in the engine.
    pub dataset: DatasetId,
    /// Id of the bucket.
    pub bucket: u64,
    /// Name of the dataset when it was first read: a folder and the pattern of its file names.
    pub name: Box<str>,
    /// Role for the workload.
    pub role: DatasetRole,
    /// Evidence for the role.
    pub evidence: PhaseEvidence,
    /// Type of its files, by their names.
    pub file_type: Option<FileType>,
    /// Bit mask of the program's frameworks that its names indicate.
    pub frameworks: u32,
    /// True if the file type and the frameworks come from a key under the current program.
    pub(super) is_described: bool,
    /// Number of read requests.
    pub reads: u32,
    /// Number of read requests that start at the first byte of an object.
    pub(super) opens: u32,
    /// Bytes requested.
    pub bytes: u64,
    /// Size of the largest object that was read, in bytes.
    pub largest: u64,
    /// Passes that a job of the workload has completed and after which it has started another.
    pub passes: u32,
    /// Completed passes, as of the last check, including the last one before it is repeated.
    pub epochs: u32,
    /// True if it is read repeatedly without passes; no passes are counted then.
    pub(super) is_without_passes: bool,
    /// Values of `passes` and `epochs` if all apparent passes were real.
    apparent: (u32, u32),
    /// Number of blocks of a pass; during the first pass, of its part so far; without passes, of all known
    /// blocks.
    pub blocks: u32,
    /// Time of the first read.
    pub first_us: u64,
    /// Time of the last read; the next field is the time of the read before.
    pub last_us: u64,
    pub(super) before_us: u64,
    /// Recent requests per second.
    pub(super) rate: DecayingRate,
    /// Statistics of the opens of its objects.
    open_statistics: OpenStatistics,
    /// Number of times that the workload switched to it from another dataset.
    pub(super) visits: u32,
    keys: u64,
    callers: u64,
    /// Pairs of opened key and caller: 256 bits by hash. The next field is the recent share of opens that
    /// repeat a pair.
    pairs: [u64; 4],
    reopened_share: f32,
}

/// Selects one of 64 bits by the highest bits of a hash.
pub(super) const fn bit(hash: u64) -> u64 {
    1 << (hash >> 58)
}

/// Estimates a number of distinct items from a bitmap of 64 bits: linear counting (Whang et al., 1990).
pub(super) fn count(bits: u64) -> u32 {
    let free = f64::from(bits.count_zeros().max(1));
    (64.0 * (64.0 / free).ln()).round() as u32
}

impl DatasetUse {
    pub(super) fn new(dataset: DatasetId, bucket: u64, name: Box<str>, now_us: u64) -> Self {
        Self {
            dataset,
            bucket,
            name,
            role: DatasetRole::Undecided,
            evidence: PhaseEvidence::Started,
            file_type: None,
            frameworks: 0,
            is_described: false,
            reads: 0,
            opens: 0,
            bytes: 0,
            largest: 0,
            passes: 0,
            epochs: 0,
            is_without_passes: false,
            apparent: (0, 0),
            blocks: 0,
            first_us: now_us,
            last_us: now_us,
            before_us: now_us,
            rate: DecayingRate::default(),
            open_statistics: OpenStatistics::default(),
            visits: 0,
            keys: 0,
            callers: 0,
            pairs: [0; 4],
            reopened_share: 0.0,
        }
    }

    /// Sets the file type and frameworks that a key indicates under a program.
    pub(super) fn describe(&mut self, program: &Program, key: &str) {
        self.file_type = program.file_type(key);
        self.frameworks = frameworks(program, key, None);
    }

    /// Discards the results of the previous program. Until the next read, a key that matches the name
    /// pattern is evaluated instead, if the dataset has one.
    pub(super) fn program_changed(&mut self, program: &Program) {
        self.is_described = false;
        if self.is_of_folder() {
            (self.file_type, self.frameworks) = (None, 0);
        } else {
            self.describe(program, &self.name.replace('#', "0"));
        }
    }

    /// True if the dataset is everything in or below a folder; its keys need not be similar then.
    pub(crate) fn is_of_folder(&self) -> bool {
        self.name.is_empty() || self.name.ends_with('/')
    }

    /// Bit mask of the frameworks that its keys indicate, or `None` if no key has been evaluated under the
    /// current program.
    pub(crate) fn described(&self) -> Option<u32> {
        self.is_described.then_some(self.frameworks)
    }

    /// Records a read by a caller of a range of a key; caller and key are hashes.
    pub(super) fn read(&mut self, now_us: u64, key: u64, caller: u64, range: &Range<u64>) {
        self.reads = self.reads.saturating_add(1);
        if range.start == 0 {
            self.opens = self.opens.saturating_add(1);
            let pair = (key ^ caller.rotate_left(17)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let word = &mut self.pairs[(pair >> 62) as usize];
            let mark = bit(pair << 2);
            let is_again = if *word & mark == 0 { 0.0 } else { 1.0 };
            self.reopened_share += (is_again - self.reopened_share) / REOPENED_OPENS;
            *word |= mark;
            self.open_statistics.open(key, now_us.saturating_sub(self.last_us));
        }
        self.bytes = self.bytes.saturating_add(range.end.saturating_sub(range.start));
        self.keys |= bit(key);
        self.callers |= bit(caller);
        (self.before_us, self.last_us) = (self.last_us, now_us);
        self.rate.count(now_us, 1.0);
    }

    /// Approximate number of keys that were read; the estimate saturates at 266.
    #[must_use]
    pub fn keys(&self) -> u32 {
        count(self.keys)
    }

    /// True if it is data according to its file names, or because it has more files than any model.
    pub(super) fn is_data(&self) -> bool {
        matches!(self.file_type, Some(FileType::Shard | FileType::Sample)) || self.keys() > FEW_KEYS
    }

    /// Access pattern of its reads. A dataset that is data is never classified as a checkpoint, even if it
    /// was written through the gateway.
    #[must_use]
    pub(crate) fn pattern(
        &self,
        engine: &CacheEngine,
        seen: ObservedAccess,
        now_us: u64,
    ) -> Option<DatasetPattern> {
        match engine.pattern(seen, now_us) {
            Some(DatasetPattern::Checkpoint) if self.is_data() => engine.pattern_of_reads(seen, now_us),
            pattern => pattern,
        }
    }

    /// Updates the numbers of passes from those of the engine, given the access pattern.
    pub(super) fn record_passes(&mut self, passes: Option<PassProgress>, pattern: Option<DatasetPattern>) {
        self.is_without_passes =
            pattern == Some(DatasetPattern::Skewed) && !self.open_statistics.is_in_passes();
        if let Some(passes) = &passes {
            self.apparent = (self.apparent.0.max(passes.completed), self.apparent.1.max(passes.over));
        }
        if self.is_without_passes {
            (self.passes, self.epochs) = (0, 0);
            self.blocks = passes.map_or(self.blocks, |passes| passes.known);
        } else if let Some(passes) = passes {
            self.passes =
                self.passes.max(self.real_passes(self.apparent.0, passes.completed, passes.void_passes));
            self.epochs = self.epochs_with(Some(passes));
            self.blocks = if passes.completed > 0 { passes.blocks } else { self.blocks.max(passes.read) };
        }
    }

    /// True if reads without passes have continued for long enough to rule out training: a small dataset
    /// that ranks share looks like that for a pass or two.
    pub(super) fn is_served(&self) -> bool {
        self.is_without_passes && f64::from(self.opens) >= SERVED_OPENS_MIN * f64::from(self.keys())
    }

    /// Completed passes, given the current numbers of the engine.
    pub(crate) fn epochs_with(&self, passes: Option<PassProgress>) -> u32 {
        match passes {
            Some(passes) if !self.is_without_passes => {
                self.epochs.max(self.real_passes(self.apparent.1, passes.over, passes.void_passes))
            }
            _ => self.epochs,
        }
    }

    /// Number of real passes among `seeming` apparent ones, where `now` are counted now and `void` of them
    /// are invalid. If each object was read as often as the others, all apparent passes are real.
    fn real_passes(&self, seeming: u32, now: u32, void: u32) -> u32 {
        if self.open_statistics.is_in_passes() { seeming.max(now) } else { now.saturating_sub(void) }
    }

    /// True if its objects are read about equally often; false if unknown.
    pub(crate) fn is_even(&self) -> bool {
        self.open_statistics.is_even()
    }

    /// True if some objects are read much more often than others; false if unknown.
    pub(super) fn is_uneven(&self) -> bool {
        self.open_statistics.is_uneven()
    }

    /// True if objects are requested in groups with pauses between them; false if unknown.
    pub(crate) fn is_in_groups(&self) -> bool {
        self.open_statistics.is_in_groups()
    }

    /// Approximate number of callers that have read it.
    #[must_use]
    pub fn callers(&self) -> u32 {
        count(self.callers)
    }

    /// Mean number of requests per pass, as far as passes are known.
    pub(super) fn reads_of_pass(&self) -> f64 {
        f64::from(self.reads) / f64::from(self.passes + 1)
    }

    /// True if callers reopen objects that they have opened before.
    pub(super) fn is_reopened(&self) -> bool {
        self.reopened_share > REOPENED_SHARE
    }

    /// Mean number of reads per visit.
    pub(super) fn reads_of_visit(&self) -> f64 {
        f64::from(self.reads) / f64::from(self.visits.max(1))
    }

    /// Time between the current read and the previous one; `None` if there is no previous read.
    pub(crate) fn recency_us(&self, now_us: u64) -> Option<u64> {
        let before_us = if self.last_us == now_us { self.before_us } else { self.last_us };
        (self.reads > 1 || self.last_us < now_us).then(|| now_us.saturating_sub(before_us))
    }

    /// Recent requests per hour and object; `None` if the number of objects is unknown.
    #[must_use]
    pub fn reads_an_hour(&self, now_us: u64) -> Option<f64> {
        let is_known = (self.passes > 0 || self.is_without_passes) && self.blocks > 0;
        is_known.then(|| self.rate.per_second(now_us) * 3600.0 / f64::from(self.blocks))
    }
}

#[cfg(test)]
mod tests {
    use super::{DatasetId, DatasetUse};

    #[test]
    fn few_keys_are_distinguished_from_many() {
        let mut set = DatasetUse::new(DatasetId::default(), 1, "".into(), 0);
        for key in 0..200_u64 {
            set.read(key, key.wrapping_mul(0x9e37_79b9_7f4a_7c15), 0, &(0..10));
            if key == 9 {
                assert!((7..=13).contains(&set.keys()), "{}", set.keys());
            }
        }
        assert!(set.keys() > 100 && set.callers() == 1);
    }
}

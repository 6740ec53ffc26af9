//! What a workload reads: a dataset, and what it is to the workload.
//!
//! Keys and callers are counted in 64 bits each: a bit by hash is enough to tell few from many, and a new one
//! from those that were there.

use super::frameworks;
use super::manner::Manner;
use super::phase::FEW_KEYS;
use super::rate::Rate;
use super::why::Why;
use crate::engine::{DatasetId, Engine, Passes, Pattern, Seen};
use crate::language::{FileType, Program};

/// Opens over which it is averaged whether they are of what the same caller has opened before; of few keys,
/// more than this share is more than by the chance that bits are the same.
const AGAIN_OPENS: f32 = 16.0;
const AGAIN_SHARE: f32 = 0.75;

/// Objects are read in no passes for long by whom they are read so often, each on average.
const SERVED_MIN: f64 = 4.0;

/// What a dataset is to a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// That is not known yet.
    Undecided,
    /// It trains with it.
    Training,
    /// It reads it between passes of what it trains with.
    Validation,
    /// It reads it once.
    Evaluation,
    /// A model, or checkpoints of one.
    Model,
    /// Configuration, indexes and the like.
    Small,
    /// It reads some of it again and again, to answer somebody.
    Serving,
}

impl Role {
    /// Its word.
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
pub struct Set {
    /// Which one of the engine's it is.
    pub dataset: DatasetId,
    /// The bucket's id.
    pub bucket: u64,
    /// What it was called when it was read first: a folder, and what its files are called.
    pub name: Box<str>,
    /// What it is to the workload.
    pub role: Role,
    /// Why that is thought.
    pub why: Why,
    /// What kind of files its names say it holds.
    pub file_type: Option<FileType>,
    /// The frameworks that its names speak for: a bit for each of a program's.
    pub frameworks: u32,
    /// Whether these two are what a key of it has said to the program in force.
    pub(super) is_described: bool,
    /// Requests that read it.
    pub reads: u32,
    /// Those of them that began with the first byte of an object.
    pub(super) opens: u32,
    /// Bytes that they asked for.
    pub bytes: u64,
    /// Bytes of the largest object of it that was read.
    pub largest: u64,
    /// Passes that a job of the workload has been through and has come back from.
    pub passes: u32,
    /// Passes that are over, as far as was looked: the last one before it comes back, too.
    pub epochs: u32,
    /// Whether it is read again and again in no passes: then none is counted.
    pub(super) is_without_passes: bool,
    /// What both would be if all were passes that look like some.
    seeming: (u32, u32),
    /// Blocks of such a pass; before the first is over, of what was read of it; without passes, of all that
    /// is known.
    pub blocks: u32,
    /// When it was read first.
    pub first_us: u64,
    /// When it was read last, and when before that.
    pub last_us: u64,
    pub(super) before_us: u64,
    /// Requests a second, lately.
    pub(super) rate: Rate,
    /// In which manner its objects are opened.
    manner: Manner,
    /// How often the workload came to it from another.
    pub(super) visits: u32,
    keys: u64,
    callers: u64,
    /// Keys that were opened, each with its caller: 256 bits by hash; and the share of opens lately that were
    /// of one that was there.
    pairs: [u64; 4],
    again: f32,
}

/// A bit of 64.
pub(super) const fn bit(hash: u64) -> u64 {
    1 << (hash >> 58)
}

/// How many there are, of whom so many of 64 bits are set: linear counting (Whang et al., 1990).
pub(super) fn count(bits: u64) -> u32 {
    let free = f64::from(bits.count_zeros().max(1));
    (64.0 * (64.0 / free).ln()).round() as u32
}

impl Set {
    pub(super) fn new(dataset: DatasetId, (bucket, name): (u64, Box<str>), now_us: u64) -> Self {
        Self {
            dataset,
            bucket,
            name,
            role: Role::Undecided,
            why: Why::Begun,
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
            seeming: (0, 0),
            blocks: 0,
            first_us: now_us,
            last_us: now_us,
            before_us: now_us,
            rate: Rate::default(),
            manner: Manner::default(),
            visits: 0,
            keys: 0,
            callers: 0,
            pairs: [0; 4],
            again: 0.0,
        }
    }

    /// What a key of it says to a program.
    pub(super) fn describe(&mut self, program: &Program, key: &str) {
        self.file_type = program.file_type(key);
        self.frameworks = frameworks(program, key, None);
    }

    /// What was said to the last program holds no more. Until it is read again, a key like its own speaks for
    /// it, if it has keys that are alike.
    pub(super) fn program_changed(&mut self, program: &Program) {
        self.is_described = false;
        if self.is_of_folder() {
            (self.file_type, self.frameworks) = (None, 0);
        } else {
            self.describe(program, &self.name.replace('#', "0"));
        }
    }

    /// Whether it is all that is in a folder, or below it: then its keys need not be alike.
    pub(crate) fn is_of_folder(&self) -> bool {
        self.name.is_empty() || self.name.ends_with('/')
    }

    /// The bits of the frameworks that its keys speak for, if they have been asked under the program in
    /// force.
    pub(crate) fn described(&self) -> Option<u32> {
        self.is_described.then_some(self.frameworks)
    }

    /// Somebody reads a key of it, both by hash, from its first byte on or not.
    pub(super) fn read(&mut self, now_us: u64, key: u64, caller: u64, bytes: u64, is_open: bool) {
        self.reads = self.reads.saturating_add(1);
        if is_open {
            self.opens = self.opens.saturating_add(1);
            let pair = (key ^ caller.rotate_left(17)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let word = &mut self.pairs[(pair >> 62) as usize];
            let mark = bit(pair << 2);
            let is_again = if *word & mark == 0 { 0.0 } else { 1.0 };
            self.again += (is_again - self.again) / AGAIN_OPENS;
            *word |= mark;
            self.manner.open(key, now_us.saturating_sub(self.last_us));
        }
        self.bytes = self.bytes.saturating_add(bytes);
        self.keys |= bit(key);
        self.callers |= bit(caller);
        (self.before_us, self.last_us) = (self.last_us, now_us);
        self.rate.count(now_us, 1.0);
    }

    /// About how many keys of it were read; more than about 250 are not told apart.
    #[must_use]
    pub fn keys(&self) -> u32 {
        count(self.keys)
    }

    /// Whether it is data by the names of its files, or because there are more of them than any model has.
    pub(super) fn is_data(&self) -> bool {
        matches!(self.file_type, Some(FileType::Shard | FileType::Sample)) || self.keys() > FEW_KEYS
    }

    /// In which pattern it is read. Data is no checkpoint, whoever wrote it.
    #[must_use]
    pub(crate) fn pattern(&self, engine: &Engine, seen: Seen, now_us: u64) -> Option<Pattern> {
        match engine.pattern(seen, now_us) {
            Some(Pattern::Checkpoint) if self.is_data() => engine.pattern_of_reads(seen, now_us),
            pattern => pattern,
        }
    }

    /// Notes how far the workload is with it, as the engine sees it, in this pattern.
    pub(super) fn note_passes(&mut self, passes: Option<Passes>, pattern: Option<Pattern>) {
        self.is_without_passes = pattern == Some(Pattern::Skewed) && !self.manner.is_in_passes();
        if let Some(passes) = &passes {
            self.seeming = (self.seeming.0.max(passes.whole), self.seeming.1.max(passes.over));
        }
        if self.is_without_passes {
            (self.passes, self.epochs) = (0, 0);
            self.blocks = passes.map_or(self.blocks, |passes| passes.known);
        } else if let Some(passes) = passes {
            self.passes = self.passes.max(self.among(self.seeming.0, passes.whole, passes.void));
            self.epochs = self.epochs_with(Some(passes));
            self.blocks = if passes.whole > 0 { passes.blocks } else { self.blocks.max(passes.read) };
        }
    }

    /// Whether it is read so for long enough that it is clear that nobody trains with it: a small dataset
    /// that ranks share seems so for a pass or two.
    pub(super) fn is_served(&self) -> bool {
        self.is_without_passes && f64::from(self.opens) >= SERVED_MIN * f64::from(self.keys())
    }

    /// Passes that are over, as the engine sees them now.
    pub(crate) fn epochs_with(&self, passes: Option<Passes>) -> u32 {
        match passes {
            Some(passes) if !self.is_without_passes => {
                self.epochs.max(self.among(self.seeming.1, passes.over, passes.void))
            }
            _ => self.epochs,
        }
    }

    /// How many of seeming passes are some, of which there were so many, and which a job has been through
    /// now. Where each object was read as often as the others, whatever looked irregular was regular.
    fn among(&self, seeming: u32, now: u32, void: u32) -> u32 {
        if self.manner.is_in_passes() { seeming.max(now) } else { now.saturating_sub(void) }
    }

    /// Whether its objects are read about as often as each other, as far as that can be told.
    pub(crate) fn is_even(&self) -> bool {
        self.manner.is_even()
    }

    /// Whether some are read much more often than others, as far as that can be told.
    pub(super) fn is_uneven(&self) -> bool {
        self.manner.is_uneven()
    }

    /// Whether they are asked for many at once, and then none for a while.
    pub(crate) fn is_in_groups(&self) -> bool {
        self.manner.is_in_groups()
    }

    /// About how many callers have read it.
    #[must_use]
    pub fn callers(&self) -> u32 {
        count(self.callers)
    }

    /// Requests of a pass, as far as passes are known.
    pub(super) fn reads_of_pass(&self) -> f64 {
        f64::from(self.reads) / f64::from(self.passes + 1)
    }

    /// Whether callers open what they themselves have opened before.
    pub(super) fn comes_again(&self) -> bool {
        self.again > AGAIN_SHARE
    }

    /// Reads for each time that the workload came to it.
    pub(super) fn reads_of_visit(&self) -> f64 {
        f64::from(self.reads) / f64::from(self.visits.max(1))
    }

    /// How long it was not read before it was read now.
    pub(crate) fn recency_us(&self, now_us: u64) -> Option<u64> {
        let before_us = if self.last_us == now_us { self.before_us } else { self.last_us };
        (self.reads > 1 || self.last_us < now_us).then(|| now_us.saturating_sub(before_us))
    }

    /// Requests an hour for each object, lately, where it is known how many there are.
    #[must_use]
    pub fn reads_an_hour(&self, now_us: u64) -> Option<f64> {
        let is_known = (self.passes > 0 || self.is_without_passes) && self.blocks > 0;
        is_known.then(|| self.rate.per_second(now_us) * 3600.0 / f64::from(self.blocks))
    }
}

#[cfg(test)]
mod tests {
    use super::{DatasetId, Set};

    #[test]
    fn few_are_told_from_many() {
        let mut set = Set::new(DatasetId::default(), (1, "".into()), 0);
        for key in 0..200_u64 {
            set.read(key, key.wrapping_mul(0x9e37_79b9_7f4a_7c15), 0, 10, true);
            if key == 9 {
                assert!((7..=13).contains(&set.keys()), "{}", set.keys());
            }
        }
        assert!(set.keys() > 100 && set.callers() == 1);
    }
}

//! Access plans: a client tells what it will read, so that nobody has to guess.
//!
//! A plan is a list of keys and how they are read: in the order of the list, or as a sampler of that seed
//! shuffles it in each epoch, by all ranks of a job or by one. Orders are not stored but drawn
//! ([`Plan::epochs`]), exactly as the sampler itself draws them. A plan is read from a document that people
//! and programs write (`crate::language::PlanDocument`), and written down as bytes ([`Plan::to_bytes`]).
//!
//! Always: the same plan gives the same orders on every machine. What it holds is bounded: [`KEYS_MAX`] keys
//! of [`TEXT_BYTES_MAX`] bytes. It is a claim, no fact: who follows it has to see whether the client does.

mod keys;
mod mersenne;
mod stored;

pub use keys::Keys;
pub use stored::BadPlan;

use mersenne::Mersenne;
use std::sync::Arc;
use thiserror::Error;

/// Most keys of a plan, those that it lists again counted again: ImageNet's 1.3 million fit.
pub const KEYS_MAX: usize = 1 << 21;
/// Most bytes of all keys of a plan.
pub const TEXT_BYTES_MAX: usize = 256 << 20;
/// Most epochs.
pub const EPOCHS_MAX: u32 = 1_000_000;
/// Most ranks of a job.
pub const RANKS_MAX: u32 = 1 << 16;

/// Who draws the order of an epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Sampler {
    /// Nobody: keys are read in the order of the list.
    #[default]
    Sequential,
    /// PyTorch's `DistributedSampler`: `torch.randperm` by a generator whose seed is that of the plan and the
    /// epoch's number.
    TorchDistributed,
    /// PyTorch's `DataLoader(shuffle=True, generator=g)` after `g.manual_seed(seed)`, made once and used for
    /// all epochs.
    TorchRandom,
    /// NumPy's `RandomState(seed + epoch).permutation`.
    NumpyPermutation,
}

/// How the keys of a plan are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// Who draws the order.
    pub sampler: Sampler,
    /// What it is drawn from.
    pub seed: u64,
    /// The first epoch that is read, and how many there are.
    pub first_epoch: u32,
    /// How many there are.
    pub epochs: u32,
    /// Among how many ranks the order is dealt out.
    pub ranks: u32,
    /// Whose reads these are; those of all ranks unless said.
    pub rank: Option<u32>,
    /// What does not come out even among ranks is left out; else the first keys are read again.
    pub drop_last: bool,
}

impl Default for Reading {
    fn default() -> Self {
        Self {
            sampler: Sampler::Sequential,
            seed: 0,
            first_epoch: 0,
            epochs: 1,
            ranks: 1,
            rank: None,
            drop_last: false,
        }
    }
}

/// Why there is no such plan.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum WrongPlan {
    /// More keys than may be.
    #[error("the plan has more than {KEYS_MAX} keys")]
    TooManyKeys,
    /// Longer names than may be.
    #[error("the keys of the plan take more than {TEXT_BYTES_MAX} bytes")]
    TooLong,
    /// No epoch reads anything.
    #[error("the plan reads nothing")]
    Empty,
    /// There is no such number of epochs.
    #[error("the plan has {0} epochs: there may be 1 to {EPOCHS_MAX}, and the last is numbered so at most")]
    Epochs(u32),
    /// There is no such number of ranks.
    #[error("the plan is for {0} ranks: there may be 1 to {RANKS_MAX}")]
    Ranks(u32),
    /// No rank has this number.
    #[error("there is no rank {rank} of {ranks}")]
    Rank {
        /// What was asked for.
        rank: u32,
        /// How many there are.
        ranks: u32,
    },
    /// Ranks of a sampler that does not deal anything out.
    #[error("only the samplers sequential and torch_distributed deal keys out to ranks")]
    Undealt,
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    pub(crate) keys: Arc<Keys>,
    /// The list, by numbers of keys, where a key stands in it twice; otherwise each number is itself.
    list: Vec<u32>,
    reading: Reading,
}

impl Plan {
    /// A plan to read these keys so.
    ///
    /// # Errors
    /// When it is larger than it may be, or makes no sense.
    pub fn new<'a>(listed: impl IntoIterator<Item = &'a str>, reading: Reading) -> Result<Self, WrongPlan> {
        reading.check()?;
        let (keys, list) = Keys::of(listed)?;
        let plan = Self { keys: Arc::new(keys), list, reading };
        if plan.length() == 0 { Err(WrongPlan::Empty) } else { Ok(plan) }
    }

    /// The same plan on a longer list of keys, in which its own have these numbers.
    pub(crate) fn on(&self, keys: &Arc<Keys>, numbers: &[u32]) -> Self {
        let is_same = self.list.is_empty()
            && numbers.len() == keys.len() as usize
            && numbers.iter().enumerate().all(|(at, number)| at == *number as usize);
        let items = 0..self.items();
        let list = if is_same {
            Vec::new()
        } else {
            items
                .map(|item| numbers[self.list.get(item as usize).map_or(item, |key| *key) as usize])
                .collect()
        };
        Self { keys: Arc::clone(keys), list, reading: self.reading }
    }

    /// Its keys, each once.
    #[must_use]
    pub fn keys(&self) -> &Keys {
        &self.keys
    }

    /// How they are read.
    #[must_use]
    pub const fn reading(&self) -> Reading {
        self.reading
    }

    /// Reads of an epoch.
    #[must_use]
    pub fn length(&self) -> u32 {
        let Reading { ranks, rank, .. } = self.reading;
        let dealt = self.dealt();
        if rank.is_some() { dealt / ranks } else { dealt }
    }

    /// Items of the list.
    fn items(&self) -> u32 {
        if self.list.is_empty() { self.keys.len() } else { self.list.len() as u32 }
    }

    /// Items that are dealt out in an epoch, to all ranks.
    fn dealt(&self) -> u32 {
        let Reading { ranks, drop_last, .. } = self.reading;
        let items = self.items();
        if drop_last { items / ranks * ranks } else { items.div_ceil(ranks) * ranks }
    }

    /// The orders of its epochs, one after the other, by numbers of keys. Draws for a million keys take some
    /// ten milliseconds.
    #[must_use]
    pub fn epochs(&self) -> Epochs {
        let mut epochs = Epochs {
            generator: Mersenne::new(self.reading.seed),
            plan: self.clone(),
            next: self.reading.first_epoch,
        };
        if self.reading.sampler == Sampler::TorchRandom {
            for _ in 0..self.reading.first_epoch {
                epochs.torch_epoch();
            }
        }
        epochs
    }
}

impl Sampler {
    /// All of them.
    pub const ALL: [Self; 4] =
        [Self::Sequential, Self::TorchDistributed, Self::TorchRandom, Self::NumpyPermutation];

    /// What it is called in a document.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sequential => "sequential",
            Self::TorchDistributed => "torch_distributed",
            Self::TorchRandom => "torch_random",
            Self::NumpyPermutation => "numpy_permutation",
        }
    }
}

impl Reading {
    pub(crate) fn check(&self) -> Result<(), WrongPlan> {
        let last = self.first_epoch.saturating_add(self.epochs);
        if self.epochs == 0 || last > EPOCHS_MAX {
            return Err(WrongPlan::Epochs(self.epochs));
        }
        if !(1..=RANKS_MAX).contains(&self.ranks) {
            return Err(WrongPlan::Ranks(self.ranks));
        }
        if let Some(rank) = self.rank.filter(|rank| *rank >= self.ranks) {
            return Err(WrongPlan::Rank { rank, ranks: self.ranks });
        }
        let deals = matches!(self.sampler, Sampler::Sequential | Sampler::TorchDistributed);
        if deals || self.ranks == 1 { Ok(()) } else { Err(WrongPlan::Undealt) }
    }
}

/// Orders of epochs.
#[derive(Clone, Debug)]
pub struct Epochs {
    plan: Plan,
    /// Of the sampler that goes on with one generator.
    generator: Mersenne,
    next: u32,
}

impl Epochs {
    /// Which epoch comes next.
    #[must_use]
    pub const fn upcoming(&self) -> u32 {
        self.next
    }

    /// A loader draws a seed for its workers, of two numbers; its sampler a permutation and, when that has
    /// been read, another of which it reads nothing (`RandomSampler.__iter__` since PyTorch 1.9).
    fn torch_epoch(&mut self) -> Vec<u32> {
        let items = self.plan.items();
        self.generator.skip(2);
        let order = self.generator.torch_permutation(items);
        self.generator.skip(items.saturating_sub(1));
        order
    }

    fn items(&mut self, epoch: u32) -> Vec<u32> {
        let Reading { sampler, seed, .. } = self.plan.reading;
        let seed = seed.wrapping_add(u64::from(epoch));
        let items = self.plan.items();
        match sampler {
            Sampler::Sequential => (0..items).collect(),
            Sampler::TorchDistributed => Mersenne::new(seed).torch_permutation(items),
            Sampler::TorchRandom => self.torch_epoch(),
            Sampler::NumpyPermutation => Mersenne::new(seed).numpy_permutation(items),
        }
    }
}

impl Iterator for Epochs {
    type Item = Vec<u32>;

    fn next(&mut self) -> Option<Vec<u32>> {
        let Reading { first_epoch, epochs, ranks, rank, .. } = self.plan.reading;
        if self.next >= first_epoch + epochs {
            return None;
        }
        let items = self.items(self.next);
        self.next += 1;
        let dealt = items.iter().cycle().take(self.plan.dealt() as usize);
        let read =
            dealt.skip(rank.unwrap_or(0) as usize).step_by(if rank.is_some() { ranks as usize } else { 1 });
        let key = |item: &u32| self.plan.list.get(*item as usize).copied().unwrap_or(*item);
        Some(read.map(key).collect())
    }
}

#[cfg(test)]
mod tests;

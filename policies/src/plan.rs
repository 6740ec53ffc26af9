//! Access plans, in which a client announces its future reads.
//!
//! A plan is a list of keys and the order in which they are read: that of the list, or that of a sampler
//! which shuffles the list in each epoch from a seed, for all ranks of a job or for one. Orders are not
//! stored. They are drawn ([`Plan::epochs`]) exactly as the sampler itself draws them. A plan is parsed from
//! a document that people and programs write (`crate::language::PlanDocument`), and stored as bytes
//! ([`Plan::to_bytes`]).
//!
//! The same plan gives the same orders on every machine. Its size is bounded by [`KEYS_MAX`] keys of
//! [`TEXT_BYTES_MAX`] bytes in total. A plan is an announcement, not a fact: its user must check that the
//! client follows it.

mod keys;
mod mersenne_twister;
mod stored;

pub use keys::PlanKeys;
pub use stored::StoredPlanError;

use mersenne_twister::MersenneTwister;
use std::sync::Arc;
use thiserror::Error;

/// Maximum number of keys in the list of a plan, duplicates included. ImageNet with its 1.3 million images
/// fits.
pub const KEYS_MAX: usize = 1 << 21;
/// Maximum number of bytes of all keys of a plan.
pub const TEXT_BYTES_MAX: usize = 256 << 20;
/// Maximum number of epochs, and of the number of the last epoch plus one.
pub const EPOCHS_MAX: u32 = 1_000_000;
/// Maximum number of ranks of a job.
pub const RANKS_MAX: u32 = 1 << 16;
const _: () = assert!(KEYS_MAX + RANKS_MAX as usize <= u32::MAX as usize, "an epoch's reads have numbers");
const _: () = assert!(TEXT_BYTES_MAX <= u32::MAX as usize, "positions of keys are numbers of 32 bits");

/// Sampler that draws the order of an epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Sampler {
    /// No sampler: keys are read in the order of the list.
    #[default]
    Sequential,
    /// PyTorch's `DistributedSampler`: `torch.randperm` with a generator seeded by the sum of the plan's seed
    /// and the epoch.
    TorchDistributed,
    /// PyTorch's `DataLoader(shuffle=True, generator=g)` after `g.manual_seed(seed)`, created once and used
    /// for all epochs.
    TorchRandom,
    /// NumPy's `RandomState(seed + epoch).permutation`.
    NumpyPermutation,
}

/// Order in which the keys of a plan are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanSchedule {
    /// Sampler of the order.
    pub sampler: Sampler,
    /// Seed of the sampler.
    pub seed: u64,
    /// First epoch that is read.
    pub first_epoch: u32,
    /// Number of epochs.
    pub epochs: u32,
    /// Number of ranks to which the order is dealt.
    pub ranks: u32,
    /// Rank whose reads the plan has; none for the reads of all ranks.
    pub rank: Option<u32>,
    /// Handling of keys that cannot be dealt evenly: if true, they are left out; otherwise the first keys are
    /// read again.
    pub drop_last: bool,
}

impl Default for PlanSchedule {
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

/// Reason why a plan is invalid.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum InvalidAccessPlan {
    /// More keys than [`KEYS_MAX`].
    #[error("the plan has more than {KEYS_MAX} keys")]
    TooManyKeys,
    /// More bytes of keys than [`TEXT_BYTES_MAX`].
    #[error("the keys of the plan take more than {TEXT_BYTES_MAX} bytes")]
    TooLong,
    /// No reads in an epoch.
    #[error("the plan reads nothing")]
    Empty,
    /// Invalid number of epochs.
    #[error(
        "the plan has {0} epochs; at least 1 is required, and the last epoch number is at most \
        {EPOCHS_MAX}"
    )]
    Epochs(u32),
    /// Invalid number of ranks.
    #[error("the plan is for {0} ranks; 1 to {RANKS_MAX} are allowed")]
    Ranks(u32),
    /// Rank that is not below the number of ranks.
    #[error("rank {rank} is out of range: the plan has {ranks} ranks")]
    Rank {
        /// The requested rank.
        rank: u32,
        /// The number of ranks.
        ranks: u32,
    },
    /// Several ranks with a sampler that does not support them.
    #[error("only the samplers sequential and torch_distributed distribute keys to ranks")]
    RanksUnsupported,
}

/// An access plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    pub(crate) keys: Arc<PlanKeys>,
    /// The list as numbers of keys, if a key is in it more than once; otherwise empty, because item and
    /// number are the same.
    list: Vec<u32>,
    schedule: PlanSchedule,
}

impl Plan {
    /// Creates a plan.
    ///
    /// # Errors
    /// The plan exceeds a limit, is inconsistent, or reads nothing.
    pub fn new<'a>(
        listed: impl IntoIterator<Item = &'a str>,
        reading: PlanSchedule,
    ) -> Result<Self, InvalidAccessPlan> {
        reading.check()?;
        let (keys, list) = PlanKeys::from_list(listed)?;
        let plan = Self { keys: Arc::new(keys), list, schedule: reading };
        if plan.epoch_length() == 0 { Err(InvalidAccessPlan::Empty) } else { Ok(plan) }
    }

    /// Returns the same plan on a longer list of keys, in which its keys have the numbers `numbers`.
    pub(crate) fn with_keys(&self, keys: &Arc<PlanKeys>, numbers: &[u32]) -> Self {
        assert_eq!(numbers.len(), self.keys.len() as usize, "each key has its number in the longer list");
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
        Self { keys: Arc::clone(keys), list, schedule: self.schedule }
    }

    /// Returns the keys, each once.
    #[must_use]
    pub fn keys(&self) -> &PlanKeys {
        &self.keys
    }

    /// Returns the order in which the keys are read.
    #[must_use]
    pub const fn schedule(&self) -> PlanSchedule {
        self.schedule
    }

    /// Returns the number of reads in an epoch.
    #[must_use]
    pub fn epoch_length(&self) -> u32 {
        let PlanSchedule { ranks, rank, .. } = self.schedule;
        let dealt = self.dealt_items();
        if rank.is_some() { dealt / ranks } else { dealt }
    }

    /// Returns the number of items in the list.
    fn items(&self) -> u32 {
        if self.list.is_empty() { self.keys.len() } else { self.list.len() as u32 }
    }

    /// Returns the number of items that all ranks together read in an epoch.
    fn dealt_items(&self) -> u32 {
        let PlanSchedule { ranks, drop_last, .. } = self.schedule;
        let items = self.items();
        if drop_last { items / ranks * ranks } else { items.div_ceil(ranks) * ranks }
    }

    /// Returns the orders of the epochs, each as numbers of keys. Drawing a million keys takes some ten
    /// milliseconds.
    #[must_use]
    pub fn epochs(&self) -> PlanEpochs {
        let mut epochs = PlanEpochs {
            generator: MersenneTwister::new(self.schedule.seed),
            plan: self.clone(),
            next: self.schedule.first_epoch,
        };
        if self.schedule.sampler == Sampler::TorchRandom {
            for _ in 0..self.schedule.first_epoch {
                epochs.torch_epoch();
            }
        }
        epochs
    }
}

impl Sampler {
    /// All samplers.
    pub const ALL: [Self; 4] =
        [Self::Sequential, Self::TorchDistributed, Self::TorchRandom, Self::NumpyPermutation];

    /// Returns the name of the sampler in documents.
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

impl PlanSchedule {
    pub(crate) fn check(&self) -> Result<(), InvalidAccessPlan> {
        let last = self.first_epoch.saturating_add(self.epochs);
        if self.epochs == 0 || last > EPOCHS_MAX {
            return Err(InvalidAccessPlan::Epochs(self.epochs));
        }
        if !(1..=RANKS_MAX).contains(&self.ranks) {
            return Err(InvalidAccessPlan::Ranks(self.ranks));
        }
        if let Some(rank) = self.rank.filter(|rank| *rank >= self.ranks) {
            return Err(InvalidAccessPlan::Rank { rank, ranks: self.ranks });
        }
        let deals = matches!(self.sampler, Sampler::Sequential | Sampler::TorchDistributed);
        if deals || self.ranks == 1 { Ok(()) } else { Err(InvalidAccessPlan::RanksUnsupported) }
    }
}

/// Iterator over the orders of epochs.
#[derive(Clone, Debug)]
pub struct PlanEpochs {
    plan: Plan,
    /// Generator of [`Sampler::TorchRandom`], which is used for all epochs.
    generator: MersenneTwister,
    next: u32,
}

impl PlanEpochs {
    /// Returns the number of the next epoch.
    #[must_use]
    pub const fn next_epoch(&self) -> u32 {
        self.next
    }

    /// Draws one epoch of [`Sampler::TorchRandom`]. The loader draws a seed for its workers, which takes two
    /// numbers. The sampler then draws a permutation and, after that has been read, another one which it does
    /// not use (`RandomSampler.__iter__` since PyTorch 1.9).
    fn torch_epoch(&mut self) -> Vec<u32> {
        let items = self.plan.items();
        self.generator.skip(2);
        let order = self.generator.torch_permutation(items);
        self.generator.skip(items.saturating_sub(1));
        order
    }

    fn epoch_items(&mut self, epoch: u32) -> Vec<u32> {
        let PlanSchedule { sampler, seed, .. } = self.plan.schedule;
        let seed = seed.wrapping_add(u64::from(epoch));
        let items = self.plan.items();
        match sampler {
            Sampler::Sequential => (0..items).collect(),
            Sampler::TorchDistributed => MersenneTwister::new(seed).torch_permutation(items),
            Sampler::TorchRandom => self.torch_epoch(),
            Sampler::NumpyPermutation => MersenneTwister::new(seed).numpy_permutation(items),
        }
    }
}

impl Iterator for PlanEpochs {
    type Item = Vec<u32>;

    fn next(&mut self) -> Option<Vec<u32>> {
        let PlanSchedule { first_epoch, epochs, ranks, rank, .. } = self.plan.schedule;
        if self.next >= first_epoch + epochs {
            return None;
        }
        let items = self.epoch_items(self.next);
        self.next += 1;
        let dealt = items.iter().cycle().take(self.plan.dealt_items() as usize);
        let read =
            dealt.skip(rank.unwrap_or(0) as usize).step_by(if rank.is_some() { ranks as usize } else { 1 });
        let key = |item: &u32| self.plan.list.get(*item as usize).copied().unwrap_or(*item);
        Some(read.map(key).collect())
    }
}

#[cfg(test)]
mod tests;

//! The lanes in which requests wait for a disk, the ranks within them, and the shares of both.

use mlgw_policies::Rank;
use mlgw_policies::language::{self, Priority, Word as _};

/// Whose a request is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lane {
    /// What clients write: a training run waits for its checkpoint.
    Checkpoint,
    /// Reads of those who serve a model: people wait for them.
    Inference,
    /// All other reads of clients.
    #[default]
    Training,
    /// What the server does by itself: compaction, spill and promote, scrub, clean copies, write-back.
    Background,
}

impl Lane {
    /// All of them, in their order.
    pub const ALL: [Self; 4] = [Self::Checkpoint, Self::Inference, Self::Training, Self::Background];

    /// Its name in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Checkpoint => "checkpoint",
            Self::Inference => "inference",
            Self::Training => "training",
            Self::Background => "background",
        }
    }

    /// Its share when all have something to do.
    pub(super) const fn weight(self) -> u64 {
        match self {
            Self::Checkpoint | Self::Inference | Self::Training => 4,
            Self::Background => 1,
        }
    }
}

impl From<language::Lane> for Lane {
    fn from(named: language::Lane) -> Self {
        match named {
            language::Lane::Checkpoint => Self::Checkpoint,
            language::Lane::Inference => Self::Inference,
            language::Lane::Training => Self::Training,
            language::Lane::Background => Self::Background,
        }
    }
}

/// Ranks within a lane.
pub(super) const RANKS: usize = Priority::ALL.len();

/// Where a request waits: in this lane, with this rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// With whom it shares the disk.
    pub lane: Lane,
    /// How much it matters among those.
    pub rank: Priority,
}

impl Turn {
    /// Where it waits instead, if a rule says so.
    #[must_use]
    pub fn ruled(self, rank: Option<Rank>) -> Self {
        rank.map_or(self, |Rank { lane, priority }| Self {
            lane: lane.map_or(self.lane, Lane::from),
            rank: priority,
        })
    }

    /// The share of a rank of what its lane gets, when all ranks have something to do.
    pub(super) const fn weight_of(rank: Priority) -> u64 {
        match rank {
            Priority::Low => 1,
            Priority::Normal => 4,
            Priority::High => 8,
            Priority::Urgent => 16,
        }
    }
}

impl Default for Turn {
    fn default() -> Self {
        Lane::default().into()
    }
}

impl From<language::Lane> for Turn {
    fn from(named: language::Lane) -> Self {
        Self::from(Lane::from(named))
    }
}

impl From<Lane> for Turn {
    fn from(lane: Lane) -> Self {
        Self { lane, rank: Priority::Normal }
    }
}

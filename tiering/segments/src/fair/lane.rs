//! Lanes in which requests wait for a disk, the ranks within a lane, and the weights of both.

use mlgw_policies::RequestRank;
use mlgw_policies::language::{self, Priority, Word as _};

/// The class of traffic of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lane {
    /// Writes of clients: a training run waits for its checkpoint.
    Checkpoint,
    /// Reads by inference servers: end users wait for them.
    Inference,
    /// All other reads of clients.
    #[default]
    Training,
    /// Work that the server itself starts: compaction, spill and promotion, scrub, clean copies, write-back.
    Background,
}

impl Lane {
    /// All lanes, in order.
    pub const ALL: [Self; 4] = [Self::Checkpoint, Self::Inference, Self::Training, Self::Background];

    /// Name of the lane in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Checkpoint => "checkpoint",
            Self::Inference => "inference",
            Self::Training => "training",
            Self::Background => "background",
        }
    }

    /// Weight of the lane when all lanes are busy.
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

/// Number of ranks in a lane.
pub(super) const RANKS: usize = Priority::ALL.len();

/// The queue in which a request waits: its lane and its rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServiceClass {
    /// Lane whose share of the disk the request uses.
    pub lane: Lane,
    /// Priority within the lane.
    pub rank: Priority,
}

impl ServiceClass {
    /// Returns the turn with the lane and the priority of a matching rule, if there is one.
    #[must_use]
    pub fn with_rule_rank(self, rank: Option<RequestRank>) -> Self {
        rank.map_or(self, |RequestRank { lane, priority }| Self {
            lane: lane.map_or(self.lane, Lane::from),
            rank: priority,
        })
    }

    /// Weight of a rank within its lane when all ranks are busy.
    pub(super) const fn weight_of(rank: Priority) -> u64 {
        match rank {
            Priority::Low => 1,
            Priority::Normal => 4,
            Priority::High => 8,
            Priority::Urgent => 16,
        }
    }
}

impl Default for ServiceClass {
    fn default() -> Self {
        Lane::default().into()
    }
}

impl From<language::Lane> for ServiceClass {
    fn from(named: language::Lane) -> Self {
        Self::from(Lane::from(named))
    }
}

impl From<Lane> for ServiceClass {
    fn from(lane: Lane) -> Self {
        Self { lane, rank: Priority::Normal }
    }
}

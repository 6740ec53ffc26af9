//! Lanes in which requests wait for a disk, the ranks within a lane, and the weights of both.

use mlgw_policies::RequestRank;
use mlgw_policies::language::{Lane, Priority, Word as _};

/// Number of lanes.
pub(super) const LANES: usize = Lane::ALL.len();

/// Returns the weight of a lane when all lanes are busy.
pub(super) const fn weight_of_lane(lane: Lane) -> u64 {
    match lane {
        // A training run waits for its checkpoint, end users wait for inference.
        Lane::Checkpoint | Lane::Inference | Lane::Training => 4,
        // Compaction, spill and promotion, scrub, clean copies, write-back.
        Lane::Background => 1,
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
            lane: lane.unwrap_or(self.lane),
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

impl From<Lane> for ServiceClass {
    fn from(lane: Lane) -> Self {
        Self { lane, rank: Priority::Normal }
    }
}

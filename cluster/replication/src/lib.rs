//! Decisions about the replicas of segments: how one is appended to, sealed, recovered and repaired.
//!
//! Everything here is pure: state machines take events and return effects, and functions take facts and
//! return decisions. There is no I/O, no clock and no chance; the current time is a parameter. A driver
//! carries effects out, in the order in which they were returned, and reports their completion as events.
//!
//! - [`primary`]: the primary of an open segment. It acknowledges what W replicas have synced, and seals.
//! - [`follower`]: the replica of an open segment on another node.
//! - [`health`]: the peers that are left out of open segments because they answer late.
//! - [`recovery`]: sealing a segment whose primary is gone.
//! - [`repair`]: copies of sealed segments.
//!
//! Each rule of these decisions is listed in [`rules`]; a simulation of nodes, disks and messages leaves each
//! of them out and then loses data, or stalls. After a power loss a node creates its state machines
//! anew: the right to append is gone, what was synced is on the disk.

mod backoff;
pub mod follower;
pub mod health;
pub mod primary;
pub mod recovery;
pub mod repair;
pub mod rules;
#[cfg(test)]
mod simulation;
pub mod views;

pub use follower::FollowedState;
pub use health::{PeerChange, PeerHealth};
pub use primary::{PrimaryEffect, PrimarySegment, PrimaryStart, SealProposal};
pub use recovery::{
    ClosedAnswer, ListedReplicas, RecoveredSeal, SealWait, SealedReplica, decide_seal, needed_answers,
};
pub use repair::{
    COPIES, CopyCounts, LeavingCounts, RepairInput, RepairKind, RepairTask, ReplicaFacts, SegmentFacts,
    count_copies, count_leaving, is_lost, next_tasks, wanted_copies,
};
pub use views::{StorageNode, StorageViews};

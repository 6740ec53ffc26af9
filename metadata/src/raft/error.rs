//! Reasons that a group does not reply to a command. Each states whether the command may be in the log.

use crate::catalogue::options::BarrierError;
use mlgw_common::NodeId;
use mlgw_formats::command::Reject;
use mlgw_formats::log_types::RaftTypes;
use openraft::errors::{ClientWriteError, ForwardToLeader, LinearizableReadError, RaftError};

/// Reason that a command has no reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum GroupError {
    /// The state did not allow the command; nothing changed.
    Rejected(Reject),
    /// Too many commands wait; the command is not in the log.
    Overloaded,
    /// This member does not lead the group; the command is not in the log and will not enter it.
    NotLeader {
        /// The leader, if this member knows it.
        leader: Option<NodeId>,
    },
    /// A later leadership committed an entry without the command, so it will never be applied.
    Discarded,
    /// The group changed its leader, or stopped, while the command was being replicated. The command may have
    /// been applied, and another leader may still apply it.
    UnknownOutcome,
    /// The group stopped; the command is not in the log.
    Stopped,
}

impl GroupError {
    /// The reason that Raft refused an entry.
    pub(crate) fn of_write(error: ClientWriteError<RaftTypes>) -> Self {
        match error {
            ClientWriteError::ForwardToLeader(to) => Self::not_leader(&to),
            // A membership change or a precondition is no part of a batch; an unknown outcome is the safe
            // reading of an error that cannot happen.
            ClientWriteError::LogEntryDiscarded(_)
            | ClientWriteError::ChangeMembershipError(_)
            | ClientWriteError::PreconditionFailed(_) => Self::UnknownOutcome,
        }
    }

    /// The error of a member that follows another one.
    pub(crate) fn not_leader(forward: &ForwardToLeader<RaftTypes>) -> Self {
        Self::NotLeader { leader: forward.leader_id.map(NodeId) }
    }
}

/// The reason that Raft did not confirm a read.
pub(crate) fn barrier_error(error: RaftError<RaftTypes, LinearizableReadError<RaftTypes>>) -> BarrierError {
    match error {
        RaftError::APIError(LinearizableReadError::ForwardToLeader(to)) => {
            BarrierError::NotLeader { leader: to.leader_id.map(NodeId) }
        }
        RaftError::APIError(LinearizableReadError::QuorumNotEnough(_)) => BarrierError::NoQuorum,
        RaftError::Fatal(_) => BarrierError::Stopping,
    }
}

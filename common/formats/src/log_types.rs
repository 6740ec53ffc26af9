//! Type configuration of openraft.

use crate::log_batch::{Batch, Outcomes};
use openraft::impls::leader_id_adv::LeaderId;
use openraft::{BasicNode, OptionalSend, RaftTypeConfig};

/// Marker type that carries mlgw's openraft configuration.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct RaftTypes;

impl RaftTypeConfig for RaftTypes {
    type D = Batch;
    type R = Outcomes;
    type NodeId = u64;
    type Node = BasicNode;
    type Term = u64;
    type LeaderId = LeaderId<u64, u64>;
    type Vote = openraft::Vote<Self::LeaderId>;
    type Payload = openraft::EntryPayload<Batch, u64, BasicNode>;
    type Entry = openraft::Entry<LeaderId<u64, u64>, Self::Payload>;
    type AsyncRuntime = openraft::impls::TokioRuntime;
    type Responder<T>
        = OutcomeCallback<T>
    where
        T: OptionalSend + 'static;
    type Batch<T>
        = openraft::impls::InlineBatch<T>
    where
        T: OptionalSend + 'static;
    type ErrorSource = openraft::impls::BoxedErrorSource;
}

/// Position of a log entry: leader id and index.
pub type LogId = openraft::alias::LogIdOf<RaftTypes>;
/// An entry of the Raft log.
pub type RaftLogEntry = <RaftTypes as RaftTypeConfig>::Entry;
/// A vote of a member.
pub type Vote = <RaftTypes as RaftTypeConfig>::Vote;
/// A term and its leader.
pub type Leadership = LeaderId<u64, u64>;
/// A membership and the id of the log entry that set it.
pub type StoredMembership = openraft::alias::StoredMembershipOf<RaftTypes>;
/// Metadata of a snapshot: its last log id and membership.
pub type SnapshotMeta = openraft::alias::SnapshotMetaOf<RaftTypes>;
/// Callback that receives the outcome of a proposed entry, run on the thread that completes it.
pub struct OutcomeCallback<T>(pub Box<dyn FnOnce(T) + Send>);

impl<T: OptionalSend + 'static> openraft::raft::responder::Responder<RaftTypes, T> for OutcomeCallback<T> {
    fn on_complete(self, result: T) {
        (self.0)(result);
    }
}

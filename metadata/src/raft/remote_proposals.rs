//! Proposals of a member to the leader on another node.
//!
//! A proposal names the leadership that this member knows. The leader refuses it under another one, so an old
//! proposal cannot enter the log of a later term. **A proposal that may have reached the leader is never sent
//! to it again.** If no answer comes, this member finds its tag among the entries that it applies, or an
//! entry of a later leadership ([`super::outcomes`]). In the second case no entry with the batch will ever be
//! committed, and its commands may be proposed to the next leader. If neither comes in time, the outcome is
//! unknown.

use super::error::GroupError;
use super::group::Group;
use super::outcomes::OutcomeExpected;
use super::peers::{MemberLane, PeerError};
use super::queue::{self, InFlightBatch, OutgoingBatch};
use super::remote::RemoteNetwork;
use bytes::Bytes;
use mlgw_common::NodeId;
use mlgw_common::time::{Instant, timeout};
use mlgw_formats::cluster_version::TAGS_CLUSTER_VERSION;
use mlgw_formats::command::{Change, Command, TagBatch};
use mlgw_formats::log_batch::{Outcomes, encode_into};
use mlgw_formats::log_entry;
use mlgw_formats::log_types::{Leadership, LogId};
use mlgw_formats::member_calls::{DeclineReason, DeclineReply, MemberReply, MemberRequest, ProposeCall};
use std::time::Duration;

/// Longest time that the leader may take for a proposal.
const PROPOSE_MAX: Duration = Duration::from_secs(8);

/// Longest time that a follower waits for the entry of a proposal, after the leader has answered.
const APPLY_MAX: Duration = Duration::from_secs(2);

/// Longest time that a follower waits until a proposal without an answer is settled: an election takes up to
/// four seconds. The caller waits [`OUTCOME_WAIT`](super::group::OUTCOME_WAIT) in all.
const UNSETTLED_MAX: Duration = Duration::from_secs(8);

/// Time in which a leader that lost its leadership may still answer a proposal without a tag.
const GRACE: Duration = Duration::from_millis(500);

impl Group {
    /// Sends a batch to the leader on another node, and answers its commands when this member has applied
    /// them. The next batch does not wait until one without an answer is settled.
    pub(super) async fn send_to_leader(
        self,
        network: RemoteNetwork,
        outgoing: OutgoingBatch,
        in_flight: InFlightBatch,
    ) {
        let OutgoingBatch { batch, leadership, answers } = outgoing;
        let tag = self.next_tag();
        let expected = self.outcomes.expect();
        let calling = self.propose_at_leader(&network, leadership, tagged(batch.encoded, tag));
        let answered = tokio::select! {
            biased;
            answered = calling => answered,
            () = self.leadership_ended(leadership, tag) => Err(GroupError::UnknownOutcome),
        };
        if let (Err(GroupError::UnknownOutcome), Some(tag)) = (&answered, tag) {
            in_flight.done();
            self.take_turn();
            // A member that ends does not wait for the batch, which must not keep its stores open.
            drop(self);
            let settled = outcomes_when_settled(expected, tag, leadership).await;
            return queue::send_results(answers, settled.map(|(id, found)| without_tag(id, found, true)));
        }
        let applied = match answered {
            Ok(id) => outcomes_of(expected, id).await,
            Err(error) => Err(error),
        };
        queue::send_results(answers, applied.map(|(id, found)| without_tag(id, found, tag.is_some())));
        in_flight.done();
        self.take_turn();
    }

    /// Proposes a batch to the leader, and returns its entry.
    async fn propose_at_leader(
        &self,
        network: &RemoteNetwork,
        leadership: Leadership,
        batch: Bytes,
    ) -> Result<LogId, GroupError> {
        let leader = NodeId(leadership.node_id);
        if self.known_leadership() != Ok(leadership) {
            return Err(GroupError::NotLeader { leader: None });
        }
        let request =
            MemberRequest::Propose(ProposeCall { term: leadership.term, node: leader.get(), batch });
        match network.call(leader, MemberLane::Log, request, Instant::now() + PROPOSE_MAX).await {
            Ok(MemberReply::Proposed(position)) => Ok(log_entry::log_id_from_position(&position)),
            Ok(MemberReply::Declined(declined)) => Err(declined_proposal(&declined)),
            Err(PeerError::NotSent(_) | PeerError::Refused(_)) => {
                Err(GroupError::NotLeader { leader: Some(leader) })
            }
            Ok(_) | Err(PeerError::Unknown(_)) => Err(GroupError::UnknownOutcome),
        }
    }

    /// Returns when another leadership is known. A batch without a tag has no outcome then, so its leader has
    /// some more time for an answer.
    async fn leadership_ended(&self, leadership: Leadership, tag: Option<TagBatch>) {
        let wait = self.raft.wait(None);
        let _ = wait.metrics(|m| m.vote.leader_id != leadership, "another leadership").await;
        if tag.is_none() {
            mlgw_common::time::sleep(GRACE).await;
        }
    }

    /// The tag of the next batch, if every member knows tags.
    fn next_tag(&self) -> Option<TagBatch> {
        let is_known = self.watcher.cluster_version() >= TAGS_CLUSTER_VERSION;
        is_known.then(|| TagBatch { node: self.node, number: self.batch_numbers.next() })
    }
}

/// The encoding of a batch, with its tag as the last command.
fn tagged(batch: Bytes, tag: Option<TagBatch>) -> Bytes {
    let Some(tag) = tag else { return batch };
    let mut encoded = Vec::from(batch);
    encode_into(&Command::from(Change::TagBatch(tag)), &mut encoded);
    encoded.into()
}

/// The outcomes of a batch's commands without that of its tag.
fn without_tag(id: LogId, mut outcomes: Outcomes, is_tagged: bool) -> (u64, Outcomes) {
    if is_tagged {
        outcomes.0.pop();
    }
    (id.index, outcomes)
}

/// The outcomes of an entry that the leader has answered with.
async fn outcomes_of(expected: OutcomeExpected, id: LogId) -> Result<(LogId, Outcomes), GroupError> {
    match timeout(APPLY_MAX, expected.wait(id)).await {
        Ok(Ok(outcomes)) => Ok((id, outcomes)),
        Ok(Err(_)) | Err(_) => Err(GroupError::UnknownOutcome),
    }
}

/// The entry and the outcomes of a batch without an answer.
async fn outcomes_when_settled(
    expected: OutcomeExpected,
    tag: TagBatch,
    leadership: Leadership,
) -> Result<(LogId, Outcomes), GroupError> {
    match timeout(UNSETTLED_MAX, expected.settled(tag, leadership)).await {
        Ok(Ok(Some(found))) => Ok(found),
        Ok(Ok(None)) => Err(GroupError::Discarded),
        Ok(Err(_)) | Err(_) => Err(GroupError::UnknownOutcome),
    }
}

/// The error of a proposal that the leader declined.
fn declined_proposal(declined: &DeclineReply) -> GroupError {
    match declined.known_reason() {
        DeclineReason::NotLeader | DeclineReason::Stopping => {
            GroupError::NotLeader { leader: declined.leader.map(NodeId) }
        }
        DeclineReason::Overloaded => GroupError::Overloaded,
        DeclineReason::UnknownOutcome | DeclineReason::NoQuorum => GroupError::UnknownOutcome,
    }
}

//! Members of a group: their status, and changes of the membership.
//!
//! Voters are 1, 3 or 5, never 2 or 4 except inside a joint change. A learner becomes a voter only when it
//! has nearly the whole log, counted in bytes. A leader hands its leadership over before it is demoted or
//! removed. All calls are for the leader.

use super::error::GroupError;
use super::group::Group;
use crate::store_error::StoreError;
use mlgw_common::NodeId;
use mlgw_common::limits::PROMOTION_LAG_BYTES_MAX;
use mlgw_formats::log_types::RaftTypes;
use openraft::Instant as _;
use openraft::async_runtime::WatchReceiver as _;
use openraft::error::{ChangeMembershipError, ClientWriteError, RaftError};
use openraft::{BasicNode, ChangeMembers, LogIdOptionExt as _, RaftMetrics};
use std::collections::BTreeSet;
use std::time::Duration;

/// Numbers of voters that a group may have.
const VOTERS_ALLOWED: [usize; 3] = [1, 3, 5];

/// Longest time that a change of the membership may take.
const CHANGE_MAX: Duration = Duration::from_secs(30);

/// Longest time until a committed change is published in the metrics.
const PUBLISH_MAX: Duration = Duration::from_secs(5);

/// Longest time that a transfer of the leadership may take.
const TRANSFER_MAX: Duration = Duration::from_secs(5);

/// Log bytes beyond which a lag is not counted exactly. Counting reads the log, several times a second.
const LAG_COUNTED_MAX: u64 = PROMOTION_LAG_BYTES_MAX;

/// Part of a member in its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberRole {
    /// Its answer counts for quorums.
    Voter,
    /// It receives the log only.
    Learner,
}

/// A member as its leader sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberStatus {
    /// Its node.
    pub node: NodeId,
    /// Its part.
    pub role: MemberRole,
    /// Last entry that its log is known to have.
    pub matched: Option<u64>,
    /// Entries that it lacks.
    pub lag_entries: u64,
    /// Bytes of these entries. More than [`PROMOTION_LAG_BYTES_MAX`] are not counted exactly; a member that
    /// needs a snapshot lacks the bytes of the whole state.
    pub lag_bytes: u64,
    /// Time since it last answered; `None` if it never did under this leader.
    pub last_contact: Option<Duration>,
}

/// The members of a group as its leader sees them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupMembers {
    /// The group.
    pub group: u32,
    /// The leader, which is this node.
    pub leader: NodeId,
    /// Its term.
    pub term: u64,
    /// The last entry of its log.
    pub last: u64,
    /// True while the newest membership is not committed.
    pub is_changing: bool,
    /// The voters; in a joint change those after it.
    pub voters: BTreeSet<NodeId>,
    /// The voters before a joint change; `None` if there is none.
    pub outgoing: Option<BTreeSet<NodeId>>,
    /// The members, by node.
    pub members: Vec<MemberStatus>,
}

/// Error of a change of the members.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChangeMembersError {
    /// Another node leads the group, or this node has no member of it.
    #[error("this node does not lead the group: ask {}", whom(*.leader))]
    NotLeader {
        /// The leader, if this node knows it.
        leader: Option<NodeId>,
    },
    /// Another change is in progress; repeat it later.
    #[error("another change of the members is in progress")]
    InProgress,
    /// A learner lacks too much of the log; repeat the change later.
    #[error("node {node} lacks {lag_bytes} bytes of the log: wait until it has received them")]
    NotCaughtUp {
        /// The learner.
        node: NodeId,
        /// Bytes that it lacks.
        lag_bytes: u64,
    },
    /// The change is never allowed as it is.
    #[error("{0}")]
    NotAllowed(String),
    /// The other node did not answer, or refused.
    #[error("node {node} did not join the group: {why}")]
    NodeFailed {
        /// The node.
        node: NodeId,
        /// The reason.
        why: String,
    },
    /// The change may take effect, or not; read the members again.
    #[error("it is unknown whether the change takes effect: list the members")]
    UnknownOutcome,
}

fn whom(leader: Option<NodeId>) -> String {
    leader.map_or_else(|| "its leader".to_owned(), |node| format!("node {node}"))
}

impl From<StoreError> for ChangeMembersError {
    fn from(error: StoreError) -> Self {
        Self::NotAllowed(error.0)
    }
}

type Changed = Result<(), ChangeMembersError>;

/// Time since a follower on `node` last answered, as its leader knows it: since what it answered was sent.
pub(super) fn last_contact(metrics: &RaftMetrics<RaftTypes>, node: u64) -> Option<Duration> {
    let contact = metrics.heartbeat.as_ref().and_then(|all| all.get(&node)?.as_ref());
    contact.map(|at| at.elapsed())
}

impl Group {
    /// Fails on a member that does not lead.
    pub(crate) fn check_leading(&self) -> Changed {
        self.leadership().map(drop).map_err(|error| match error {
            GroupError::NotLeader { leader } => ChangeMembersError::NotLeader { leader },
            _ => ChangeMembersError::NotLeader { leader: None },
        })
    }

    /// The members; for the leader.
    pub(crate) fn members(&self) -> Result<GroupMembers, ChangeMembersError> {
        self.check_leading()?;
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched().clone();
        let membership = metrics.membership_config.membership().clone();
        let voters: BTreeSet<u64> = membership.voter_ids().collect();
        let mut members = Vec::new();
        for (node, _) in membership.nodes() {
            let role = if voters.contains(node) { MemberRole::Voter } else { MemberRole::Learner };
            members.push(self.status(&metrics, *node, role)?);
        }
        let (voters, outgoing) = voters_of(membership.get_joint_config());
        Ok(GroupMembers {
            group: self.id,
            leader: NodeId(self.node),
            term: metrics.current_term,
            last: metrics.last_log_index.unwrap_or(0),
            is_changing: metrics.membership_config != metrics.committed_membership_config,
            voters,
            outgoing,
            members,
        })
    }

    /// The voters as this member knows them, those that leave in a joint change included.
    pub(crate) fn voters(&self) -> BTreeSet<NodeId> {
        let metrics = self.raft.metrics();
        let voters: Vec<u64> = metrics.borrow_watched().membership_config.membership().voter_ids().collect();
        voters.into_iter().map(NodeId).collect()
    }

    /// True if a node is a voter or a learner of the group, as this member knows it.
    pub(crate) fn has_node(&self, node: NodeId) -> bool {
        let metrics = self.raft.metrics();
        metrics.borrow_watched().membership_config.membership().get_node(&node.0).is_some()
    }

    /// True if a node is a member, or will be or was one by a change that is not committed.
    pub(super) fn may_have_node(&self, node: NodeId) -> bool {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        let memberships = [&metrics.membership_config, &metrics.committed_membership_config];
        memberships.iter().any(|of| of.membership().get_node(&node.0).is_some())
    }

    fn status(
        &self,
        metrics: &RaftMetrics<RaftTypes>,
        node: u64,
        role: MemberRole,
    ) -> Result<MemberStatus, ChangeMembersError> {
        if node == self.node {
            let matched = metrics.last_log_index;
            let last_contact = Some(Duration::ZERO);
            let node = NodeId(node);
            return Ok(MemberStatus { node, role, matched, lag_entries: 0, lag_bytes: 0, last_contact });
        }
        let matched = metrics.replication.as_ref().and_then(|all| all.get(&node)).copied().flatten();
        let matched = matched.map(|id| id.index);
        let last_contact = last_contact(metrics, node);
        let end = metrics.last_log_index.map_or(0, |last| last + 1);
        let next = matched.map_or(0, |matched| matched + 1);
        let needs_snapshot = metrics.purged.next_index() > next;
        let lag_bytes = match needs_snapshot {
            true => self.state_bytes().max(PROMOTION_LAG_BYTES_MAX + 1),
            false => self.log.bytes_between(next, end, LAG_COUNTED_MAX)?,
        };
        let lag_entries = end.saturating_sub(next);
        Ok(MemberStatus { node: NodeId(node), role, matched, lag_entries, lag_bytes, last_contact })
    }

    /// Adds a learner. Its node has an empty member of the group.
    pub(crate) async fn add_learner(&self, node: NodeId) -> Changed {
        self.check_leading()?;
        let info = BasicNode { addr: String::new() };
        let nodes = ChangeMembers::AddNodes([(node.get(), info)].into());
        self.change(nodes).await
    }

    /// Makes these members the voters; those that were voters before stay as learners. A joint change that an
    /// earlier leader left is finished by a change to its own voters.
    pub(crate) async fn change_voters(&self, voters: &BTreeSet<NodeId>) -> Changed {
        let members = self.members()?;
        if !VOTERS_ALLOWED.contains(&voters.len()) {
            return Err(ChangeMembersError::NotAllowed(format!(
                "a group has 1, 3 or 5 voters and not {}: add the nodes together",
                voters.len()
            )));
        }
        let is_joint = members.outgoing.is_some() && *voters != members.voters;
        if members.is_changing || is_joint {
            return Err(ChangeMembersError::InProgress);
        }
        if !voters.contains(&members.leader) {
            return Err(ChangeMembersError::NotAllowed(
                "the leader stays a voter: transfer its leadership first".to_owned(),
            ));
        }
        let status_of = |node: &NodeId| members.members.iter().find(|member| member.node == *node);
        if let Some(stranger) = voters.iter().find(|voter| status_of(voter).is_none()) {
            let why = format!("node {stranger} is no member: add it as a learner first");
            return Err(ChangeMembersError::NotAllowed(why));
        }
        let lags = |member: &&MemberStatus| {
            member.role == MemberRole::Learner && member.lag_bytes > PROMOTION_LAG_BYTES_MAX
        };
        if let Some(late) = voters.iter().filter_map(status_of).find(lags) {
            return Err(ChangeMembersError::NotCaughtUp { node: late.node, lag_bytes: late.lag_bytes });
        }
        let voters = voters.iter().map(|voter| voter.get()).collect();
        self.change(ChangeMembers::ReplaceAllVoters(voters)).await
    }

    /// Removes a learner.
    pub(crate) async fn remove_member(&self, node: NodeId) -> Changed {
        let members = self.members()?;
        let Some(member) = members.members.iter().find(|member| member.node == node) else { return Ok(()) };
        if member.role == MemberRole::Voter {
            return Err(ChangeMembersError::NotAllowed(format!(
                "node {node} is a voter: make it a learner first"
            )));
        }
        self.change(ChangeMembers::RemoveNodes([node.get()].into())).await
    }

    async fn change(&self, change: ChangeMembers<u64, BasicNode>) -> Changed {
        let changing = self.raft.change_membership(change, true);
        let written = match mlgw_common::time::timeout(CHANGE_MAX, changing).await {
            Ok(Ok(written)) => written.log_id,
            Ok(Err(error)) => return Err(change_error(error)),
            Err(_) => return Err(ChangeMembersError::UnknownOutcome),
        };
        // The members are read from metrics, which are published a moment after the change.
        let is_published = move |metrics: &RaftMetrics<RaftTypes>| {
            *metrics.committed_membership_config.log_id() >= Some(written)
        };
        let wait = self.raft.wait(Some(PUBLISH_MAX));
        let published = wait.metrics(is_published, "the change is published").await;
        published.map(drop).map_err(|_| ChangeMembersError::UnknownOutcome)
    }

    /// Transfers the leadership to a voter, and waits until it leads.
    pub(crate) async fn transfer_leader(&self, to: NodeId) -> Changed {
        let members = self.members()?;
        let target = members.members.iter().find(|member| member.node == to);
        if target.is_none_or(|target| target.role != MemberRole::Voter) {
            return Err(ChangeMembersError::NotAllowed(format!("node {to} is no voter of the group")));
        }
        if to.get() == self.node {
            return Ok(());
        }
        self.member_lease.hand_over();
        let triggered = self.raft.trigger().transfer_leader(to.get()).await;
        triggered.map_err(|_| ChangeMembersError::UnknownOutcome)?;
        // The core has begun the transfer when it answers this. If it does not, there is no lease again.
        let last = self.raft.with_raft_state(|state| state.vote_ref().leader_id).await;
        self.member_lease.handed_over(last.map_err(|_| ChangeMembersError::UnknownOutcome)?);
        let leads = self.raft.wait(Some(TRANSFER_MAX)).current_leader(to.get(), "the leadership moved").await;
        leads.map(drop).map_err(|_| ChangeMembersError::UnknownOutcome)
    }
}

/// The voters of a configuration, and those that leave if it is joint.
fn voters_of(joint: &[BTreeSet<u64>]) -> (BTreeSet<NodeId>, Option<BTreeSet<NodeId>>) {
    let nodes = |ids: &BTreeSet<u64>| ids.iter().copied().map(NodeId).collect::<BTreeSet<_>>();
    let outgoing = (joint.len() > 1).then(|| joint.first().map(nodes).unwrap_or_default());
    (joint.last().map(nodes).unwrap_or_default(), outgoing)
}

fn change_error(error: RaftError<RaftTypes, ClientWriteError<RaftTypes>>) -> ChangeMembersError {
    match error {
        RaftError::APIError(ClientWriteError::ForwardToLeader(to)) => {
            ChangeMembersError::NotLeader { leader: to.leader_id.map(NodeId) }
        }
        RaftError::APIError(ClientWriteError::ChangeMembershipError(
            ChangeMembershipError::InProgress(_) | ChangeMembershipError::UncommittedLeaderLog(_),
        )) => ChangeMembersError::InProgress,
        RaftError::APIError(ClientWriteError::ChangeMembershipError(error)) => {
            ChangeMembersError::NotAllowed(error.to_string())
        }
        RaftError::APIError(
            ClientWriteError::LogEntryDiscarded(_) | ClientWriteError::PreconditionFailed(_),
        )
        | RaftError::Fatal(_) => ChangeMembersError::UnknownOutcome,
    }
}

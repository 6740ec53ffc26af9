//! Members of groups: calls from other nodes, and changes of the membership.
//!
//! A member that leaves its group stops and keeps its files. They have its vote and its log: a node that came
//! back without them could vote with a voter of an earlier membership, and so help a second leader. A start
//! opens the members of all files; those that have left stop again when a leader confirms it. Before a member
//! stops or is created, it is recorded that this node may lack changes of the group (`behind.rs`).

use super::Catalogue;
use super::groups::SYSTEM_GROUP;
use super::inner::CatalogueInner;
use crate::raft::group::Group;
use crate::raft::members::{ChangeMembersError, GroupMembers};
use crate::raft::peers::{CallRefused, MemberLane};
use crate::raft::remote::RemoteNetwork;
use crate::raft::serve::declined;
use crate::raft::snapshot_receiver::IncomingSnapshot;
use crate::store::group_dirs::stored_groups;
use crate::store_error::{ReadError, StoreError};
use bytes::Bytes;
use mlgw_common::NodeId;
use mlgw_common::limits::{GROUP_ID_MAX, NODE_GROUPS_MAX};
use mlgw_common::time::Instant;
use mlgw_formats::cluster_version::SETS_CLUSTER_VERSION;
use mlgw_formats::member_calls::{
    CreateMemberCall, DeclineReason, EmptyReply, MemberAnswer, MemberCall, MemberReply, MemberRequest,
};
use mlgw_formats::member_snapshot::SnapshotHead;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// Longest time that another node may take to create a member.
const CREATE_MAX: Duration = Duration::from_secs(10);

impl Catalogue {
    /// Serves a call of another node of the cluster. The transport has checked that the call is from `from`.
    ///
    /// # Errors
    /// If the call is refused; nothing was done then.
    pub async fn serve_call(&self, from: NodeId, call: Bytes) -> Result<Bytes, CallRefused> {
        self.inner.serve_call(from, call).await
    }

    /// Accepts the head of a snapshot from another node, whose body is received then.
    ///
    /// # Errors
    /// If the snapshot is refused.
    pub fn accept_snapshot(&self, from: NodeId, head: &[u8]) -> Result<IncomingSnapshot, CallRefused> {
        let head = SnapshotHead::read(head)?;
        self.inner.member(head.group)?.accept_snapshot(from, head)
    }

    /// Ids of the groups that have a member on this node.
    #[must_use]
    pub fn groups(&self) -> Vec<u32> {
        self.inner.groups.all().iter().map(|group| group.id).collect()
    }

    /// Ids of the groups that hold objects or may get some, also of those without a member on this node.
    #[must_use]
    pub fn object_groups(&self) -> BTreeSet<u32> {
        self.inner.object_groups()
    }

    /// Voters of a group as this node knows them; empty without a member of the group.
    #[must_use]
    pub fn voters(&self, group: u32) -> BTreeSet<NodeId> {
        self.inner.groups.get(group).map(|member| member.voters()).unwrap_or_default()
    }

    /// True if a group on this node has a node as a voter or a learner, as this node knows it.
    #[must_use]
    pub fn is_in_any_group(&self, node: NodeId) -> bool {
        self.inner.groups.all().iter().any(|member| member.has_node(node))
    }

    /// True if a group has a node as a voter or a learner, as this node knows it. False without a member of
    /// the group here.
    #[must_use]
    pub fn is_in_group(&self, group: u32, node: NodeId) -> bool {
        self.inner.groups.get(group).is_some_and(|member| member.has_node(node))
    }

    /// True for a node of a cluster, also while it is the only one.
    #[must_use]
    pub fn is_clustered(&self) -> bool {
        self.inner.opener.peers.is_some()
    }

    /// True if this node has a member of every group of the cluster.
    #[must_use]
    pub fn has_all_groups(&self) -> bool {
        self.inner.has_all_groups()
    }

    /// The node that leads a group, if this node knows it. It may lead no more.
    #[must_use]
    pub fn leader(&self, group: u32) -> Option<NodeId> {
        self.inner.groups.get(group)?.leader()
    }

    /// True if this node leads the system group, so that it does what runs once per cluster.
    #[must_use]
    pub fn leads_system_group(&self) -> bool {
        self.inner.leads_system_group()
    }

    /// Members of a group, as its leader sees them.
    ///
    /// # Errors
    /// [`ChangeMembersError::NotLeader`] on another node.
    pub fn members(&self, group: u32) -> Result<GroupMembers, ChangeMembersError> {
        self.inner.changing(group)?.members()
    }

    /// Adds a node to a group as a learner, which receives everything the group has.
    ///
    /// # Errors
    /// [`ChangeMembersError::NotLeader`] on another node; if the node does not answer.
    pub async fn add_learner(&self, group: u32, node: NodeId) -> Result<(), ChangeMembersError> {
        let member = self.inner.changing(group)?;
        member.check_leading()?;
        self.inner.create_member_at(group, node).await?;
        member.add_learner(node).await
    }

    /// Makes these members the voters of a group. Former voters stay as learners. A joint change that an
    /// earlier leader left is finished by naming the voters after it.
    ///
    /// # Errors
    /// [`ChangeMembersError::NotLeader`] on another node; if the number is not 1, 3 or 5, this node would
    /// lose its vote, or a learner lacks too much of the log.
    pub async fn change_voters(
        &self,
        group: u32,
        voters: &BTreeSet<NodeId>,
    ) -> Result<(), ChangeMembersError> {
        self.inner.changing(group)?.change_voters(voters).await
    }

    /// Removes a learner from a group. The rows on its node stay there.
    ///
    /// # Errors
    /// [`ChangeMembersError::NotLeader`] on another node; if the node is a voter.
    pub async fn remove_member(&self, group: u32, node: NodeId) -> Result<(), ChangeMembersError> {
        self.inner.changing(group)?.remove_member(node).await
    }

    /// Stops the member of a group on this node, if the leader confirms that this node was removed from the
    /// group. Returns true if the member has stopped. The question goes to `nodes`, to the home nodes, and to
    /// each leader that this node or one of them names. The files of the member stay, and it starts again
    /// when this node is added to the group. No member stops while the disk is full: it would wait for space.
    ///
    /// # Errors
    /// If the state was not flushed, and the member has stopped; or if it could not be recorded that the rows
    /// become old, and the member goes on.
    pub async fn leave_group(&self, group: u32, nodes: &[NodeId]) -> Result<bool, ReadError> {
        assert_ne!(group, SYSTEM_GROUP, "every node is a member of the system group");
        Ok(self.inner.leave_group(group, nodes).await?)
    }

    /// Ids of the groups whose members on this node were stopped, and have files.
    #[must_use]
    pub fn left_groups(&self) -> Vec<u32> {
        let mut left = stored_groups(&self.inner.opener.dir);
        left.retain(|group| self.inner.groups.get(*group).is_none());
        left
    }

    /// Starts the member of a group that was stopped. It does nothing until its leader sends it something.
    ///
    /// # Errors
    /// If its files cannot be opened, as while a reader still has them open.
    pub async fn reopen_group(&self, group: u32) -> Result<(), CallRefused> {
        match self.left_groups().contains(&group) {
            true => self.inner.create_member(group).await,
            false => Ok(()),
        }
    }

    /// Transfers the leadership of a group to another voter, and waits until it leads.
    ///
    /// # Errors
    /// [`ChangeMembersError::NotLeader`] on another node; if the voter does not take over in time.
    pub async fn transfer_leader(&self, group: u32, to: NodeId) -> Result<(), ChangeMembersError> {
        self.inner.changing(group)?.transfer_leader(to).await
    }
}

impl CatalogueInner {
    pub(super) fn member(&self, group: u32) -> Result<Arc<Group>, CallRefused> {
        self.groups.get(group).ok_or_else(|| CallRefused(format!("this node has no member of group {group}")))
    }

    fn changing(&self, group: u32) -> Result<Arc<Group>, ChangeMembersError> {
        self.groups.get(group).ok_or(ChangeMembersError::NotLeader { leader: None })
    }

    async fn serve_call(self: &Arc<Self>, from: NodeId, call: Bytes) -> Result<Bytes, CallRefused> {
        let (group, request) = MemberCall::read(call)?;
        if self.is_stopping() {
            return Err(CallRefused("the catalogue is stopping".into()));
        }
        match &request {
            MemberRequest::CreateMember(_) => self.create_member(group).await?,
            MemberRequest::IsMember(_) if self.resident.known_version < SETS_CLUSTER_VERSION => {
                return Err(CallRefused("this version does not know questions about members".into()));
            }
            MemberRequest::Propose(_) if self.log_bound.admit(|| self.log_bytes()).await.is_err() => {
                return Ok(MemberAnswer::encode_reply(declined(DeclineReason::Overloaded, None)));
            }
            _ => {}
        }
        let reply = match request {
            MemberRequest::Saga(saga) => self.serve_saga(saga).await?,
            MemberRequest::Readers(readers) => self.serve_readers(readers).await?,
            MemberRequest::Usage(usage) => self.serve_usage(&usage)?,
            MemberRequest::RowVerdict(verdict) => self.serve_verdict(from, group, &verdict)?,
            MemberRequest::Heartbeats(heartbeats) => self.serve_heartbeats(from, heartbeats).await?,
            request => self.member(group)?.serve(from, request).await?,
        };
        Ok(MemberAnswer::encode_reply(reply))
    }

    async fn leave_group(&self, group: u32, nodes: &[NodeId]) -> Result<bool, StoreError> {
        let Some(member) = self.groups.get(group) else { return Ok(true) };
        if self.log.space().is_waiting() {
            return Ok(false);
        }
        // While votes move to the nodes of its set, a node outside it leads: a home node, or the last leader.
        let asked = nodes.iter().copied().chain(member.leader()).chain(self.resident.home_nodes());
        // Nodes that do not answer are waited for before the locks are taken.
        let Some(leader) = member.removed_by(&asked.collect()).await else { return Ok(false) };
        drop(member);
        let Some(member) = self.begin_stop(group, leader).await? else { return Ok(false) };
        // Without the locks: commands in flight, and a disk that becomes full, make it last.
        let stopped = member.shutdown().await;
        // Its files are closed before it can be created again.
        drop(member);
        self.groups.end_stop(group);
        stopped?;
        tracing::info!(group, "this node left the group");
        Ok(true)
    }

    /// Removes the member of a group from the map, if `leader` confirms again that this node was removed from
    /// the group. The member stops then.
    async fn begin_stop(&self, group: u32, leader: NodeId) -> Result<Option<Arc<Group>>, StoreError> {
        // The log of a member that stops is not purged.
        let _copying = self.copying.lock().await;
        // A leader that adds this node again is refused until the member has stopped.
        let _creating = self.opener.creating.lock().await;
        let Some(member) = self.groups.get(group) else { return Ok(None) };
        // It may have been added again meanwhile.
        if member.removed_by(&[leader].into()).await.is_none() {
            return Ok(None);
        }
        self.record_behind(group).await?;
        let stopping = self.groups.begin_stop(group);
        // Other nodes change these objects from now on.
        self.resident.objects.clear();
        Ok(stopping)
    }

    /// Creates a member of a group, unless this node has one: with the files of one that was stopped, else
    /// an empty one.
    async fn create_member(&self, group: u32) -> Result<(), CallRefused> {
        let _creating = self.opener.creating.lock().await;
        let is_here = self.groups.get(group).is_some();
        let is_full = group > GROUP_ID_MAX || self.groups.all().len() >= NODE_GROUPS_MAX;
        if self.opener.peers.is_none() || (is_full && !is_here) {
            return Err(CallRefused("this node takes no further group".into()));
        }
        if self.groups.is_stopping(group) {
            return Err(CallRefused(format!("the member of group {group} on this node is stopping")));
        }
        // A member that is here may have been removed from the group without a trace on this node.
        self.record_behind(group).await?;
        if is_here {
            return Ok(());
        }
        let member = self.opener.create(group).await?;
        self.groups.add(member);
        Ok(())
    }

    /// Creates an empty member of a group on another node.
    async fn create_member_at(&self, group: u32, node: NodeId) -> Result<(), ChangeMembersError> {
        let failed = |why: String| ChangeMembersError::NodeFailed { node, why };
        if node == self.resident.node {
            return Ok(());
        }
        let peers = self.opener.peers.as_ref().ok_or_else(|| failed("this node has no peers".into()))?;
        let network = RemoteNetwork { peers: Arc::clone(peers), group };
        let request = MemberRequest::CreateMember(CreateMemberCall {});
        let called = network.call(node, MemberLane::Control, request, Instant::now() + CREATE_MAX).await;
        match called.map_err(|error| failed(error.to_string()))? {
            MemberReply::MemberExists(EmptyReply {}) => Ok(()),
            other => Err(failed(format!("an answer that does not fit: {other:?}"))),
        }
    }
}

//! Leadership of a group as this member knows it, and the leases and barriers that depend on it.

use super::barrier::BARRIER_WAIT;
use super::error::GroupError;
use super::group::Group;
use crate::catalogue::options::BarrierError;
use mlgw_common::NodeId;
use mlgw_common::time::{time_since_boot, timeout};
use mlgw_formats::log_types::{Leadership, RaftTypes};
use openraft::async_runtime::WatchReceiver as _;
use openraft::{LogIdOptionExt as _, RaftMetrics};
use std::time::Duration;

impl Group {
    /// The leadership of this member.
    pub(crate) fn leadership(&self) -> Result<Leadership, GroupError> {
        let leader = self.raft.as_leader().map_err(|forward| GroupError::not_leader(&forward))?;
        Ok(leader.to_committed_leader_id())
    }

    /// The leadership of this member, or the one of another member that this one knows. It may be over.
    pub(super) fn known_leadership(&self) -> Result<Leadership, GroupError> {
        let own = self.leadership();
        if own.is_ok() || self.network.is_none() {
            return own;
        }
        let vote = self.raft.metrics().borrow_watched().vote;
        if vote.committed && vote.leader_id.node_id != self.node { Ok(vote.leader_id) } else { own }
    }

    /// The leadership of this member if no other member can have acknowledged a change until now, and if the
    /// applied state contains every change that earlier leaders acknowledged.
    ///
    /// A read is current if this returns the same leadership after the last row as [`Self::begin_lease`] did
    /// before the first one.
    pub(crate) fn lease(&self) -> Option<Leadership> {
        self.member_lease.of(&self.raft.metrics().borrow_watched(), self.node)
    }

    /// Returns the lease under which a read begins; `None` if it has to wait at a barrier. Waits until this
    /// member has applied every entry that another one may have applied: it may have been read there.
    ///
    /// # Errors
    /// If this member stops, or does not apply the entries in time.
    pub(crate) async fn begin_lease(&self) -> Result<Option<Leadership>, BarrierError> {
        let Some(leadership) = self.lease() else { return Ok(None) };
        let sent = self.member_lease.sent_committed();
        let applied = self.raft.metrics().borrow_watched().last_applied.index();
        if applied < Some(sent) {
            let waited = timeout(BARRIER_WAIT, self.applied(sent)).await;
            waited.unwrap_or(Err(BarrierError::NoQuorum))?;
        }
        Ok(Some(leadership))
    }

    /// Number of the other members if this one leads: they expect heartbeats.
    pub(crate) fn followers(&self) -> usize {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        let members = metrics.membership_config.membership().nodes().count();
        if metrics.state.is_leader() { members.saturating_sub(1) } else { 0 }
    }

    /// The leader, if this member knows one.
    pub(crate) fn leader(&self) -> Option<NodeId> {
        self.raft.metrics().borrow_watched().current_leader.map(NodeId)
    }

    /// Waits until this member leads; false if the group stops. The future does not keep the group open.
    pub(crate) fn until_leading(&self) -> impl Future<Output = bool> + Send + use<> {
        let (node, wait) = (self.node, self.raft.wait(None));
        let leads = move |m: &RaftMetrics<RaftTypes>| m.current_leader == Some(node) && m.state.is_leader();
        async move { wait.metrics(leads, "leads").await.is_ok() }
    }

    /// Waits until this member no longer leads under `leadership`. The future does not keep the group open.
    pub(crate) fn until_not_leading(
        &self,
        leadership: Leadership,
    ) -> impl Future<Output = ()> + Send + use<> {
        let wait = self.raft.wait(None);
        let ended = move |m: &RaftMetrics<RaftTypes>| !m.state.is_leader() || m.vote.leader_id != leadership;
        async move {
            // An error means that the group stops.
            let _ = wait.metrics(ended, "leads no more").await;
        }
    }

    /// True if this member is the only voter, and its state contains every acknowledged change.
    pub(crate) fn is_alone(&self) -> bool {
        self.lone_voter.is_sure()
    }

    /// Waits until the applied state contains every change that was acknowledged before the call, by any
    /// member. Returns at once on a lone voter.
    ///
    /// # Errors
    /// If no leader confirms that in time.
    pub(crate) async fn barrier(&self) -> Result<(), BarrierError> {
        if self.lone_voter.is_sure() {
            return Ok(());
        }
        let confirm = || {
            let group = self.clone();
            move || group.clone().confirm()
        };
        self.barriers.confirmed(confirm).await
    }

    /// True if this member has applied every change that was acknowledged more than `age` ago, by any member:
    /// a barrier that passed began since. Always true on a lone voter.
    pub(crate) fn has_rows_within(&self, age: Duration) -> bool {
        self.lone_voter.is_sure() || self.confirmation.is_within(age)
    }

    /// Waits until this member has applied what was committed when the leader confirmed that it leads.
    async fn confirm(self) -> Result<(), BarrierError> {
        let begun = time_since_boot();
        match &self.network {
            Some(network) => self.confirm_at_leader(network).await?,
            None => self.confirm_own_leadership().await?,
        }
        self.confirmation.record(begun);
        Ok(())
    }

    /// Confirms with a quorum that this member leads, and waits until it has applied what was committed then.
    pub(super) async fn confirm_own_leadership(&self) -> Result<(), BarrierError> {
        let read = self.shared_read_index().await?;
        self.applied(read.index).await
    }
}

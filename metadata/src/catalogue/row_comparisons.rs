//! Comparisons of the rows of a group's members, in the background.
//!
//! The leader proposes a command after whose entry each member digests its rows (`raft/row_digests.rs`). It
//! collects the digests and sends the result to all members, so that each of them can report it. A difference
//! means that a member applied the log differently, or that its rows were changed on disk: no other check
//! finds that. Nothing is repaired here. Results are in memory, and end with the process.

use super::Catalogue;
use super::inner::CatalogueInner;
use super::known_comparisons::{KnownComparison, RowComparisonCounts};
use super::options::ProposeError;
use super::row_verdict::{ComparisonOutcome, MemberDigests, RowComparison};
use crate::raft::group::Group;
use crate::raft::members::ChangeMembersError;
use crate::raft::peers::{CallRefused, MemberLane};
use crate::raft::remote::RemoteNetwork;
use crate::raft::row_digests::{DIGEST_MAX, RowDigest};
use futures_util::future::join_all;
use mlgw_common::NodeId;
use mlgw_common::time::{Instant, sleep};
use mlgw_formats::cluster_version::COMPARISON_CLUSTER_VERSION;
use mlgw_formats::command::{Change, Command, CompareRows};
use mlgw_formats::member_calls::{EmptyReply, MemberReply, MemberRequest, RowDigestCall, RowVerdict};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// Longest time until a member answers a question.
const ANSWER_MAX: Duration = Duration::from_secs(2);

/// Pause before members are asked again, and the longest one: it doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// Longest time until the digests are collected: a member may begin late.
const COLLECT_MAX: Duration = DIGEST_MAX.saturating_add(Duration::from_mins(1));

/// Error of a comparison.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompareRowsError {
    /// This node does not lead the group.
    #[error(transparent)]
    Members(#[from] ChangeMembersError),
    /// The entry of the comparison may be missing in the log.
    #[error(transparent)]
    Propose(#[from] ProposeError),
}

impl Catalogue {
    /// True if all nodes of the cluster know comparisons of rows.
    #[must_use]
    pub fn has_row_comparisons(&self) -> bool {
        self.is_clustered() && self.cluster_version() >= COMPARISON_CLUSTER_VERSION
    }

    /// Compares the rows of the members of a group that this node leads. Returns `None` if it is the only
    /// member. A difference is logged as an error.
    ///
    /// # Errors
    /// If this node does not lead the group, or the command of the comparison was not applied.
    pub async fn compare_rows(&self, group: u32) -> Result<Option<RowComparison>, CompareRowsError> {
        self.inner.compare_rows(group).await
    }

    /// The newest comparison of each group with a member on this node, as far as this node knows it.
    #[must_use]
    pub fn row_comparisons(&self) -> BTreeMap<u32, KnownComparison> {
        let mut known = self.inner.row_comparisons.all();
        known.retain(|group, _| self.inner.groups.get(*group).is_some());
        known
    }

    /// Counts of the comparisons that this node made.
    #[must_use]
    pub fn row_comparison_counts(&self) -> RowComparisonCounts {
        self.inner.row_comparisons.counts()
    }
}

impl CatalogueInner {
    async fn compare_rows(&self, group: u32) -> Result<Option<RowComparison>, CompareRowsError> {
        let member = self.groups.get(group).ok_or(ChangeMembersError::NotLeader { leader: None })?;
        let nodes: Vec<NodeId> = member.members()?.members.iter().map(|member| member.node).collect();
        if nodes.len() < 2 {
            return Ok(None);
        }
        let compare = Arc::new(Command::from(Change::CompareRows(CompareRows {})));
        let index = self.apply_in(group, compare).await?.index;
        let digests = self.collect_digests(&member, &nodes, index).await;
        let before = self.row_comparisons.get(group);
        let now = self.clock.now();
        let (comparison, outcome) = RowComparison::of(index, now, &digests, before.as_ref());
        report(group, &comparison, outcome);
        self.row_comparisons.count(outcome);
        self.row_comparisons.record(group, comparison.clone());
        self.send_verdict(group, &nodes, &comparison.message()).await;
        Ok(Some(comparison))
    }

    /// Asks all members for their digests until none is pending. A member that does not answer when all
    /// others have, has none.
    async fn collect_digests(&self, member: &Group, nodes: &[NodeId], index: u64) -> MemberDigests {
        let deadline = Instant::now() + COLLECT_MAX;
        let mut digests: BTreeMap<NodeId, RowDigest> =
            nodes.iter().map(|node| (*node, RowDigest::Pending)).collect();
        let mut pause = FIRST_PAUSE;
        loop {
            let pending = digests.iter().filter(|(_, digest)| **digest == RowDigest::Pending);
            let asking = pending.map(|(node, _)| async move {
                let digest = match *node == self.resident.node {
                    true => Some(member.row_digest(index)),
                    false => self.ask_digest(member.id, *node, index).await,
                };
                (*node, digest)
            });
            let answers = join_all(asking).await;
            let is_pending = answers.iter().any(|(_, digest)| *digest == Some(RowDigest::Pending));
            digests.extend(answers.into_iter().filter_map(|(node, digest)| Some((node, digest?))));
            if !is_pending || Instant::now() >= deadline || self.is_stopping() {
                break;
            }
            sleep(pause).await;
            pause = (2 * pause).min(PAUSE_MAX);
        }
        let given = |digest| if let RowDigest::Done(sum) = digest { Some(sum) } else { None };
        digests.into_iter().map(|(node, digest)| (node, given(digest))).collect()
    }

    /// The digest of another member; `None` if it does not answer.
    async fn ask_digest(&self, group: u32, node: NodeId, index: u64) -> Option<RowDigest> {
        let request = MemberRequest::RowDigest(RowDigestCall { index });
        match self.call_member(group, node, request).await? {
            MemberReply::RowDigest(reply) => Some(RowDigest::of_reply(&reply)),
            _ => None,
        }
    }

    /// Sends the result to the other members. One that does not get it reports the result of a later one.
    async fn send_verdict(&self, group: u32, nodes: &[NodeId], verdict: &RowVerdict) {
        let others = nodes.iter().filter(|node| **node != self.resident.node);
        let sending =
            others.map(|node| self.call_member(group, *node, MemberRequest::RowVerdict(verdict.clone())));
        join_all(sending).await;
    }

    async fn call_member(&self, group: u32, node: NodeId, request: MemberRequest) -> Option<MemberReply> {
        let network = RemoteNetwork { peers: Arc::clone(self.opener.peers.as_ref()?), group };
        let called = network.call(node, MemberLane::Control, request, Instant::now() + ANSWER_MAX).await;
        called.inspect_err(|error| tracing::debug!(group, %node, %error, "a member does not answer")).ok()
    }

    /// Records the result of a comparison that the leader sent.
    ///
    /// # Errors
    /// If this node knows another leader.
    pub(super) fn serve_verdict(
        &self,
        from: NodeId,
        group: u32,
        verdict: &RowVerdict,
    ) -> Result<MemberReply, CallRefused> {
        if self.member(group)?.leader() != Some(from) {
            return Err(CallRefused(format!("node {from} does not lead group {group}")));
        }
        self.row_comparisons.record(group, RowComparison::of_message(verdict));
        Ok(MemberReply::VerdictRecorded(EmptyReply {}))
    }
}

/// Logs the result of a comparison.
fn report(group: u32, comparison: &RowComparison, outcome: ComparisonOutcome) {
    let RowComparison { index, differing, without, .. } = comparison;
    let list =
        |nodes: &BTreeSet<NodeId>| nodes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    match (outcome, comparison.is_undecided) {
        (ComparisonOutcome::Different, false) => tracing::error!(
            group,
            index,
            nodes = list(differing),
            "the rows of these nodes differ from those of most members: remove the nodes, and add them anew"
        ),
        (ComparisonOutcome::Different, true) => tracing::error!(
            group,
            index,
            nodes = list(differing),
            "the rows of these nodes differ, and none are those of most members"
        ),
        (ComparisonOutcome::Incomplete, _) => {
            tracing::info!(group, index, nodes = list(without), "no digest of the rows of these nodes");
        }
        (ComparisonOutcome::Equal, _) => tracing::debug!(group, index, "all members have the same rows"),
    }
}

//! Records that nodes are removed, beside the passes of the driver.
//!
//! A removal is recorded once no group has the node. The rows of a group on this node may be older than its
//! membership, so a barrier of each group confirms that. Each group is confirmed by itself and once, since a
//! node that leaves is added to no group. So a group without a majority delays no pass of the driver, no
//! confirmation of another group, and no removal if it confirmed before. Nothing is stored: under another
//! leader of the system group all groups confirm again.

use crate::facts::SYSTEM_GROUP;
use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use mlgw_common::NodeId;
use mlgw_common::time::{Instant, sleep, timeout};
use mlgw_formats::schema::NodeState;
use mlgw_metadata::{BarrierScope, Catalogue};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::sync::Notify;

/// Pause before the next barriers of groups that did not confirm, and the longest wait for barriers before
/// those of later requests begin.
const RETRY: Duration = Duration::from_millis(500);

/// Removals that are due.
#[derive(Debug, Default)]
pub(crate) struct NodeRemovals {
    due: Mutex<DueRemovals>,
    requested: Notify,
}

#[derive(Debug, Default)]
struct DueRemovals {
    by_node: BTreeMap<NodeId, DueRemoval>,
    /// Number of requests that have been made.
    requests: u64,
}

/// The removal of a node.
#[derive(Clone, Debug)]
struct DueRemoval {
    /// Number of its request.
    request: u64,
    /// The groups that have confirmed it.
    confirmed: BTreeSet<u32>,
}

/// Barriers of groups that have begun. Each confirms the requests from before its begin.
#[derive(Default)]
struct GroupBarriers<'b> {
    groups: BTreeSet<u32>,
    answers: FuturesUnordered<BoxFuture<'b, GroupAnswer>>,
}

struct GroupAnswer {
    group: u32,
    /// Number of the newest request when the barrier began.
    newest_request: u64,
    has_passed: bool,
}

impl<'b> GroupBarriers<'b> {
    fn begin(&mut self, group: u32, newest_request: u64, barrier: impl Future<Output = bool> + Send + 'b) {
        if self.groups.insert(group) {
            let answer = async move { GroupAnswer { group, newest_request, has_passed: barrier.await } };
            self.answers.push(Box::pin(answer));
        }
    }

    /// Waits for the next one that ends, until `end`. `None` if there is none.
    async fn next(&mut self, end: Instant) -> Option<GroupAnswer> {
        let left = end.saturating_duration_since(Instant::now());
        let answer = timeout(left, self.answers.next()).await.ok().flatten()?;
        self.groups.remove(&answer.group);
        Some(answer)
    }
}

impl NodeRemovals {
    /// Requests that the removal of a node is recorded, which no group has as far as this node knows. Returns
    /// at once.
    pub(crate) fn request(&self, node: NodeId) {
        {
            let mut due = self.due.lock();
            due.requests += 1;
            let new = DueRemoval { request: due.requests, confirmed: BTreeSet::new() };
            due.by_node.entry(node).or_insert(new);
        }
        self.requested.notify_one();
    }

    /// True until the removal is recorded, or is decided anew because a group has the node.
    pub(crate) fn is_due(&self, node: NodeId) -> bool {
        self.due.lock().by_node.contains_key(&node)
    }

    /// Records the requested removals until the future is dropped.
    pub(crate) async fn record(&self, catalogue: &Catalogue) {
        let confirms = |group| {
            let (catalogue, scope) = (catalogue.clone(), BTreeSet::from([group]));
            async move { catalogue.barrier(BarrierScope::Groups(&scope)).await.is_ok() }
        };
        let mut barriers = GroupBarriers::default();
        loop {
            self.requested.notified().await;
            let mut waiting = BTreeSet::new();
            while !self.due.lock().by_node.is_empty() {
                let lacking = self.advance(catalogue, &confirms, &mut barriers).await;
                if lacking != waiting && !lacking.is_empty() {
                    tracing::info!(groups = ?lacking, "removals of nodes wait for groups to confirm them");
                }
                waiting = lacking;
                sleep(RETRY).await;
            }
        }
    }

    /// Begins the barriers of the remaining groups, and records the removals that all groups have confirmed.
    /// `confirms` returns true if this node has the newest membership of a group. Barriers that last longer
    /// stay in `barriers`. Returns the groups that have not confirmed all removals.
    async fn advance<'b, F>(
        &self,
        catalogue: &Catalogue,
        confirms: impl Fn(u32) -> F,
        barriers: &mut GroupBarriers<'b>,
    ) -> BTreeSet<u32>
    where
        F: Future<Output = bool> + Send + 'b,
    {
        if catalogue.members(SYSTEM_GROUP).is_err() {
            // Another node leads the system group, and decides.
            self.due.lock().by_node.clear();
            *barriers = GroupBarriers::default();
            return BTreeSet::new();
        }
        // The rows of nodes, and the membership of the system group.
        if catalogue.barrier(BarrierScope::System).await.is_err() {
            return BTreeSet::from([SYSTEM_GROUP]);
        }
        let state = |node: &NodeId| catalogue.node_record(*node).map(|node| node.state());
        self.due.lock().by_node.retain(|node, _| state(node) == Some(NodeState::Leaving));
        let (newest_request, lacking) = self.not_confirmed(&catalogue.object_groups());
        for group in lacking {
            barriers.begin(group, newest_request, confirms(group));
        }
        let (end, mut refused) = (Instant::now() + RETRY, BTreeSet::new());
        self.record_confirmed(catalogue).await;
        while let Some(answer) = barriers.next(end).await {
            if answer.has_passed {
                self.add(catalogue, &answer);
                self.record_confirmed(catalogue).await;
            } else {
                refused.insert(answer.group);
            }
        }
        refused.extend(&barriers.groups);
        refused
    }

    /// Records the removals that all groups have confirmed.
    async fn record_confirmed(&self, catalogue: &Catalogue) {
        let groups = catalogue.object_groups();
        let due = self.due.lock().by_node.clone();
        for (node, DueRemoval { confirmed, .. }) in due {
            if catalogue.is_in_any_group(node) {
                // The driver removes it there first.
                self.end(node);
            } else if groups.is_subset(&confirmed) && catalogue.has_all_groups() {
                if let Err(error) = catalogue.remove_node(node).await {
                    tracing::info!(%node, %error, "a removal was not recorded; it is decided again");
                }
                self.end(node);
            }
        }
    }

    /// Number of the newest request, and the groups that have not confirmed every one that is due.
    fn not_confirmed(&self, groups: &BTreeSet<u32>) -> (u64, BTreeSet<u32>) {
        let due = self.due.lock();
        let lacking = due.by_node.values().flat_map(|of| groups.difference(&of.confirmed).copied());
        (due.requests, lacking.collect())
    }

    /// Adds a group to those that have confirmed the removals, except of nodes that it has. A removal that
    /// was requested meanwhile is not confirmed: the node may have been added to a group after the barrier
    /// began and before it left.
    fn add(&self, catalogue: &Catalogue, answer: &GroupAnswer) {
        for (node, of) in &mut self.due.lock().by_node {
            if of.request <= answer.newest_request && !catalogue.is_in_group(answer.group, *node) {
                of.confirmed.insert(answer.group);
            }
        }
    }

    fn end(&self, node: NodeId) {
        self.due.lock().by_node.remove(&node);
    }
}

#[cfg(test)]
mod tests {
    use super::{GroupBarriers, NodeRemovals};
    use mlgw_common::{NodeId, SystemClock};
    use mlgw_formats::cluster_version::SETS_CLUSTER_VERSION;
    use mlgw_formats::command::{Change, Command, PutNode};
    use mlgw_formats::schema::{Node, NodeState};
    use mlgw_metadata::{Catalogue, CatalogueOptions};
    use std::collections::BTreeSet;
    use std::path::Path;
    use std::sync::Arc;
    use tokio::sync::watch;

    /// A catalogue of groups 0 to 2, with the nodes 2 and 3, which leave and are in no group, and without
    /// requested removals.
    async fn with_nodes_that_leave(dir: &Path) -> (Catalogue, NodeRemovals) {
        let options = CatalogueOptions::new(dir.to_owned(), Arc::new(SystemClock));
        let catalogue = Catalogue::open(CatalogueOptions { groups: 3, ..options }).await.unwrap();
        catalogue.raise_cluster_version(SETS_CLUSTER_VERSION).await.unwrap();
        for id in [2, 3, 4] {
            let put = PutNode { node: Node { id, ..Node::default() } };
            catalogue.propose(Command::from(Change::PutNode(put))).await.unwrap();
        }
        // A node in a set is marked only.
        catalogue.put_set(0, &[1, 2, 3].map(NodeId), 0).await.unwrap();
        for id in [2, 3] {
            catalogue.remove_node(NodeId(id)).await.unwrap();
        }
        catalogue.put_set(0, &[1, 4].map(NodeId), 1).await.unwrap();
        (catalogue, NodeRemovals::default())
    }

    /// The groups that have confirmed the removal of a node.
    fn confirmed(removals: &NodeRemovals, id: u64) -> BTreeSet<u32> {
        removals.due.lock().by_node[&NodeId(id)].confirmed.clone()
    }

    /// Advances with barriers that end at once.
    async fn advance(
        removals: &NodeRemovals,
        catalogue: &Catalogue,
        passes: impl Fn(u32) -> bool,
    ) -> BTreeSet<u32> {
        let confirms = |group| std::future::ready(passes(group));
        removals.advance(catalogue, confirms, &mut GroupBarriers::default()).await
    }

    fn state_of(catalogue: &Catalogue, id: u64) -> NodeState {
        catalogue.node_record(NodeId(id)).unwrap().state()
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_removal_waits_only_for_groups_that_have_not_confirmed_it() {
        let dir = tempfile::tempdir().unwrap();
        let (catalogue, removals) = with_nodes_that_leave(dir.path()).await;
        let all_but = |lost: u32| move |group: u32| group != lost;
        removals.request(NodeId(2));
        assert_eq!(advance(&removals, &catalogue, all_but(1)).await, [1].into());
        assert!(removals.is_due(NodeId(2)) && state_of(&catalogue, 2) == NodeState::Leaving);
        assert_eq!(confirmed(&removals, 2), [0, 2].into(), "the others have confirmed it");
        // Another group has lost its majority when this one has one again.
        removals.request(NodeId(3));
        assert_eq!(advance(&removals, &catalogue, all_but(2)).await, [2].into());
        assert_eq!(state_of(&catalogue, 2), NodeState::Removed, "group 2 had confirmed it before");
        assert_eq!(state_of(&catalogue, 3), NodeState::Leaving);
        assert!(!removals.is_due(NodeId(2)) && removals.is_due(NodeId(3)));
        assert_eq!(advance(&removals, &catalogue, all_but(9)).await, [].into());
        assert_eq!((state_of(&catalogue, 3), removals.is_due(NodeId(3))), (NodeState::Removed, false));
        catalogue.shutdown().await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_barrier_that_does_not_end_delays_no_confirmation_of_another_group() {
        let dir = tempfile::tempdir().unwrap();
        let (catalogue, removals) = with_nodes_that_leave(dir.path()).await;
        let (end, ended) = watch::channel(false);
        let confirms = |group: u32| {
            let mut ended = ended.clone();
            async move { group != 1 || ended.wait_for(|ended| *ended).await.is_ok() }
        };
        let mut barriers = GroupBarriers::default();
        removals.request(NodeId(2));
        assert_eq!(removals.advance(&catalogue, confirms, &mut barriers).await, [1].into());
        assert_eq!(confirmed(&removals, 2), [0, 2].into());
        removals.request(NodeId(3));
        assert_eq!(removals.advance(&catalogue, confirms, &mut barriers).await, [1].into());
        assert_eq!(confirmed(&removals, 3), [0, 2].into(), "a later request does not wait either");
        // The barrier began before the second request, and confirms the first one.
        end.send(true).unwrap();
        assert_eq!(removals.advance(&catalogue, confirms, &mut barriers).await, [].into());
        assert_eq!([2, 3].map(|id| state_of(&catalogue, id)), [NodeState::Removed, NodeState::Leaving]);
        removals.advance(&catalogue, confirms, &mut barriers).await;
        assert_eq!(state_of(&catalogue, 3), NodeState::Removed);
        catalogue.shutdown().await;
    }

    /// A removal ended and was requested anew while the barrier of a group was under way.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_barrier_confirms_no_request_that_is_made_after_it_began() {
        let dir = tempfile::tempdir().unwrap();
        let (catalogue, removals) = with_nodes_that_leave(dir.path()).await;
        let (end, ended) = watch::channel(false);
        let confirms = |_: u32| {
            let mut ended = ended.clone();
            async move { ended.wait_for(|ended| *ended).await.is_ok() }
        };
        let mut barriers = GroupBarriers::default();
        removals.request(NodeId(2));
        assert_eq!(removals.advance(&catalogue, confirms, &mut barriers).await, [0, 1, 2].into());
        removals.end(NodeId(2));
        removals.request(NodeId(2));
        end.send(true).unwrap();
        removals.advance(&catalogue, confirms, &mut barriers).await;
        assert_eq!((confirmed(&removals, 2), state_of(&catalogue, 2)), ([].into(), NodeState::Leaving));
        removals.advance(&catalogue, confirms, &mut barriers).await;
        assert_eq!(state_of(&catalogue, 2), NodeState::Removed);
        catalogue.shutdown().await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_group_does_not_confirm_a_removal_that_is_requested_after_its_barrier_began() {
        let dir = tempfile::tempdir().unwrap();
        let (catalogue, removals) = with_nodes_that_leave(dir.path()).await;
        removals.request(NodeId(2));
        let requests_another = |_| {
            removals.request(NodeId(3));
            true
        };
        advance(&removals, &catalogue, requests_another).await;
        assert_eq!([2, 3].map(|id| state_of(&catalogue, id)), [NodeState::Removed, NodeState::Leaving]);
        assert_eq!(confirmed(&removals, 3), [].into());
        advance(&removals, &catalogue, |_| true).await;
        assert_eq!(state_of(&catalogue, 3), NodeState::Removed);
        catalogue.shutdown().await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn only_nodes_that_leave_are_recorded_as_removed() {
        let dir = tempfile::tempdir().unwrap();
        let (catalogue, removals) = with_nodes_that_leave(dir.path()).await;
        removals.request(NodeId(4));
        advance(&removals, &catalogue, |_| true).await;
        assert_eq!((state_of(&catalogue, 4), removals.is_due(NodeId(4))), (NodeState::Active, false));
        catalogue.shutdown().await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_requested_removal_is_recorded_beside_the_caller() {
        let dir = tempfile::tempdir().unwrap();
        let (catalogue, removals) = with_nodes_that_leave(dir.path()).await;
        removals.request(NodeId(2));
        tokio::select! {
            () = removals.record(&catalogue) => {}
            () = async {
                loop {
                    let changed = catalogue.node_changed();
                    if state_of(&catalogue, 2) == NodeState::Removed {
                        return;
                    }
                    changed.await;
                }
            } => {}
        }
        catalogue.shutdown().await;
    }
}

//! Records that nodes are removed, beside the passes of the driver.
//!
//! A removal is recorded once no group has the node. The rows of a group on this node may be older than its
//! membership, so a barrier of each group confirms that. Each group is confirmed by itself and once, since a
//! node that leaves is added to no group. So a group without a majority delays no pass of the driver, and no
//! removal if it confirmed before. Nothing is stored: under another leader of the system group all groups
//! confirm again.

use crate::facts::SYSTEM_GROUP;
use futures_util::future::join_all;
use mlgw_common::NodeId;
use mlgw_common::time::sleep;
use mlgw_formats::schema::NodeState;
use mlgw_metadata::{BarrierScope, Catalogue};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::sync::Notify;

/// Pause before the next barriers of groups that did not confirm.
const RETRY: Duration = Duration::from_millis(500);

/// Removals that are due, with the groups that have confirmed each of them.
#[derive(Debug, Default)]
pub(crate) struct NodeRemovals {
    due: Mutex<BTreeMap<NodeId, BTreeSet<u32>>>,
    requested: Notify,
}

impl NodeRemovals {
    /// Requests that the removal of a node is recorded, which no group has as far as this node knows. Returns
    /// at once.
    pub(crate) fn request(&self, node: NodeId) {
        self.due.lock().entry(node).or_default();
        self.requested.notify_one();
    }

    /// True until the removal is recorded, or is decided anew because a group has the node.
    pub(crate) fn is_due(&self, node: NodeId) -> bool {
        self.due.lock().contains_key(&node)
    }

    /// Records the requested removals until the future is dropped.
    pub(crate) async fn record(&self, catalogue: &Catalogue) {
        let confirms = |group| {
            let (catalogue, scope) = (catalogue.clone(), BTreeSet::from([group]));
            async move { catalogue.barrier(BarrierScope::Groups(&scope)).await.is_ok() }
        };
        loop {
            self.requested.notified().await;
            let mut waiting = BTreeSet::new();
            while !self.due.lock().is_empty() {
                let lacking = self.advance(catalogue, &confirms).await;
                if lacking != waiting && !lacking.is_empty() {
                    tracing::info!(groups = ?lacking, "removals of nodes wait for groups to confirm them");
                }
                waiting = lacking;
                sleep(RETRY).await;
            }
        }
    }

    /// Has the remaining groups confirm the removals, and records those that all groups have confirmed.
    /// `confirms` returns true if this node has the newest membership of a group. Returns the other groups.
    async fn advance<F>(&self, catalogue: &Catalogue, confirms: impl Fn(u32) -> F) -> BTreeSet<u32>
    where
        F: Future<Output = bool>,
    {
        if catalogue.members(SYSTEM_GROUP).is_err() {
            // Another node leads the system group, and decides.
            self.due.lock().clear();
            return BTreeSet::new();
        }
        // The rows of nodes, and the membership of the system group.
        if catalogue.barrier(BarrierScope::System).await.is_err() {
            return BTreeSet::from([SYSTEM_GROUP]);
        }
        let state = |node: &NodeId| catalogue.node_record(*node).map(|node| node.state());
        self.due.lock().retain(|node, _| state(node) == Some(NodeState::Leaving));
        let groups = catalogue.object_groups();
        let (due, not_confirmed) = self.not_confirmed(&groups);
        let confirming = not_confirmed.into_iter().map(|group| {
            let confirmed = confirms(group);
            async move { (group, confirmed.await) }
        });
        let answers = join_all(confirming).await;
        let confirmed = groups_of(&answers, |is_confirmed| is_confirmed);
        for (node, by) in self.add(catalogue, &due, &confirmed) {
            if catalogue.is_in_any_group(node) {
                // The driver removes it there first.
                self.end(node);
            } else if groups.is_subset(&by) && catalogue.has_all_groups() {
                if let Err(error) = catalogue.remove_node(node).await {
                    tracing::info!(%node, %error, "a removal was not recorded; it is decided again");
                }
                self.end(node);
            }
        }
        groups_of(&answers, |is_confirmed| !is_confirmed)
    }

    /// The nodes whose removals are due, and the groups that have not confirmed every one of them.
    fn not_confirmed(&self, groups: &BTreeSet<u32>) -> (BTreeSet<NodeId>, BTreeSet<u32>) {
        let due = self.due.lock();
        let lacking = due.values().flat_map(|by| groups.difference(by).copied());
        (due.keys().copied().collect(), lacking.collect())
    }

    /// Adds groups to those that have confirmed the removals of `nodes`, except of the nodes that they have.
    /// A removal that was requested meanwhile is not confirmed: the node may have been added to a group after
    /// the barrier began and before it left. Returns all removals that are due.
    fn add(
        &self,
        catalogue: &Catalogue,
        nodes: &BTreeSet<NodeId>,
        confirmed: &BTreeSet<u32>,
    ) -> BTreeMap<NodeId, BTreeSet<u32>> {
        let mut due = self.due.lock();
        for (node, by) in due.iter_mut().filter(|(node, _)| nodes.contains(node)) {
            by.extend(confirmed.iter().filter(|group| !catalogue.is_in_group(**group, *node)));
        }
        due.clone()
    }

    fn end(&self, node: NodeId) {
        self.due.lock().remove(&node);
    }
}

/// The groups with these answers.
fn groups_of(answers: &[(u32, bool)], is_meant: impl Fn(bool) -> bool) -> BTreeSet<u32> {
    answers.iter().filter(|(_, answer)| is_meant(*answer)).map(|(group, _)| *group).collect()
}

#[cfg(test)]
mod tests {
    use super::NodeRemovals;
    use mlgw_common::{NodeId, SystemClock};
    use mlgw_formats::cluster_version::SETS_CLUSTER_VERSION;
    use mlgw_formats::command::{Change, Command, PutNode};
    use mlgw_formats::schema::{Node, NodeState};
    use mlgw_metadata::{Catalogue, CatalogueOptions};
    use std::path::Path;
    use std::sync::Arc;

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

    fn state_of(catalogue: &Catalogue, id: u64) -> NodeState {
        catalogue.node_record(NodeId(id)).unwrap().state()
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_removal_waits_only_for_groups_that_have_not_confirmed_it() {
        let dir = tempfile::tempdir().unwrap();
        let (catalogue, removals) = with_nodes_that_leave(dir.path()).await;
        let all_but = |lost: u32| move |group: u32| std::future::ready(group != lost);
        removals.request(NodeId(2));
        assert_eq!(removals.advance(&catalogue, all_but(1)).await, [1].into());
        assert!(removals.is_due(NodeId(2)) && state_of(&catalogue, 2) == NodeState::Leaving);
        assert_eq!(removals.due.lock()[&NodeId(2)], [0, 2].into(), "the others have confirmed it");
        // Another group has lost its majority when this one has one again.
        removals.request(NodeId(3));
        assert_eq!(removals.advance(&catalogue, all_but(2)).await, [2].into());
        assert_eq!(state_of(&catalogue, 2), NodeState::Removed, "group 2 had confirmed it before");
        assert_eq!(state_of(&catalogue, 3), NodeState::Leaving);
        assert!(!removals.is_due(NodeId(2)) && removals.is_due(NodeId(3)));
        assert_eq!(removals.advance(&catalogue, all_but(9)).await, [].into());
        assert_eq!((state_of(&catalogue, 3), removals.is_due(NodeId(3))), (NodeState::Removed, false));
        catalogue.shutdown().await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_group_does_not_confirm_a_removal_that_is_requested_after_its_barrier_began() {
        let dir = tempfile::tempdir().unwrap();
        let (catalogue, removals) = with_nodes_that_leave(dir.path()).await;
        removals.request(NodeId(2));
        let requests_another = |_| {
            removals.request(NodeId(3));
            std::future::ready(true)
        };
        removals.advance(&catalogue, requests_another).await;
        assert_eq!([2, 3].map(|id| state_of(&catalogue, id)), [NodeState::Removed, NodeState::Leaving]);
        assert_eq!(removals.due.lock()[&NodeId(3)], [].into());
        removals.advance(&catalogue, |_| std::future::ready(true)).await;
        assert_eq!(state_of(&catalogue, 3), NodeState::Removed);
        catalogue.shutdown().await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn only_nodes_that_leave_are_recorded_as_removed() {
        let dir = tempfile::tempdir().unwrap();
        let (catalogue, removals) = with_nodes_that_leave(dir.path()).await;
        removals.request(NodeId(4));
        removals.advance(&catalogue, |_| std::future::ready(true)).await;
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

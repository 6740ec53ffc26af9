//! Replacement of a storage node by another one: `mlgw cluster replace OLD --with NEW`.
//!
//! The old node is drained, and its row names the new one, which takes its places in the sets. When no
//! segment needs the old node, the leader of the system group removes it. The row is the only state, so after
//! a power loss the next leader continues. A node that does not answer is removed at once as lost.

use crate::copies::ClusterStorageNodes;
use crate::facts::SYSTEM_GROUP;
use crate::leaving::{DRAIN_COPIES, DRAIN_COPIES_MIN, LeaveError, RemovedNode, left_on};
use crate::node::ClusterNode;
use mlgw_common::NodeId;
use mlgw_common::time::Instant;
use mlgw_formats::schema::{Node, NodeRole, NodeState};
use mlgw_metadata::{BarrierScope, Catalogue};
use std::sync::Arc;
use std::time::Duration;

/// Interval at which the segments of a node that is replaced are counted.
const COUNT_INTERVAL: Duration = Duration::from_secs(5);

/// Fate of a node that is replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplacedNode {
    /// It runs, and is drained first.
    Running,
    /// It never returns. What only it had is lost.
    Lost,
}

impl ClusterNode {
    /// Begins to replace the storage node `old` by `new`, and returns the record of `old`. It is removed when
    /// no segment needs it; a lost one at once.
    ///
    /// # Errors
    /// See [`LeaveError`].
    pub async fn replace(&self, old: NodeId, new: NodeId, fate: ReplacedNode) -> Result<Node, LeaveError> {
        let known = self.current_node(old).await?;
        let catalogue = &self.shared.catalogue;
        check_replacement(&catalogue.nodes(), &known, new)?;
        match fate {
            ReplacedNode::Lost => self.remove_for(old, RemovedNode::Lost, Some(new)).await,
            ReplacedNode::Running if self.shared.probes.is_silent(old) => {
                Err(LeaveError::Silent { node: old })
            }
            ReplacedNode::Running => {
                let copies = copies_without(&catalogue.nodes(), old);
                self.drain_for(old, copies, Some(new)).await
            }
        }
    }
}

/// Copies that segments keep when a node is replaced: as many as before the new node was there.
fn copies_without(nodes: &[Arc<Node>], old: NodeId) -> usize {
    let stays = |node: &&Arc<Node>| {
        node.role() == NodeRole::Storage && node.state() == NodeState::Active && node.node_id() != old
    };
    nodes.iter().filter(stays).count().clamp(DRAIN_COPIES_MIN, DRAIN_COPIES)
}

/// Checks that `new` can take the place of `old`.
fn check_replacement(nodes: &[Arc<Node>], old: &Node, new: NodeId) -> Result<(), LeaveError> {
    if old.role() == NodeRole::Gateway {
        return Err(LeaveError::Gateway { node: old.node_id() });
    }
    let is_fit = |node: &Arc<Node>| {
        node.node_id() == new && node.role() == NodeRole::Storage && node.state() == NodeState::Active
    };
    match new != old.node_id() && nodes.iter().any(is_fit) {
        true => Ok(()),
        false => Err(LeaveError::NoReplacement { node: new }),
    }
}

/// Removes replaced nodes that no segment needs any more.
#[derive(Debug, Default)]
pub(crate) struct ReplacedNodes {
    due: Option<Instant>,
}

impl ReplacedNodes {
    /// Removes what can be removed, if this node leads the system group.
    pub(crate) async fn advance(&mut self, storage: &ClusterStorageNodes) {
        let catalogue = &storage.catalogue;
        let replaced = replaced_nodes(&catalogue.nodes());
        let is_due = self.due.is_none_or(|due| due <= Instant::now());
        if replaced.is_empty() || !is_due || catalogue.members(SYSTEM_GROUP).is_err() {
            return;
        }
        self.due = Some(Instant::now() + COUNT_INTERVAL);
        // A new leader may not have applied the rows of its predecessor yet.
        if catalogue.barrier(BarrierScope::System).await.is_err() {
            return;
        }
        for node in replaced {
            match left_on(storage, node).await {
                Ok(left) if left.is_done() => remove(catalogue, node).await,
                Ok(_) => {}
                Err(error) => tracing::warn!(%node, %error, "segments of a replaced node are not counted"),
            }
        }
    }
}

/// Removes a drained node, unless its drain was ended meanwhile.
async fn remove(catalogue: &Catalogue, node: NodeId) {
    match catalogue.remove_drained_node(node).await {
        Ok(_) => tracing::info!(%node, "a replaced node is drained and is removed"),
        Err(error) => tracing::warn!(%node, %error, "a replaced node was not removed yet"),
    }
}

/// Draining nodes that another one replaces.
fn replaced_nodes(nodes: &[Arc<Node>]) -> Vec<NodeId> {
    let is_replaced = |node: &&Arc<Node>| node.state() == NodeState::Draining && node.replaced_by != 0;
    nodes.iter().filter(is_replaced).map(|node| node.node_id()).collect()
}

#[cfg(test)]
mod tests {
    use super::{check_replacement, copies_without, replaced_nodes};
    use crate::test_nodes::{node, storage};
    use mlgw_common::NodeId;
    use mlgw_formats::schema::{Node, NodeRole, NodeState};
    use std::sync::Arc;

    #[test]
    fn an_active_storage_node_takes_the_place_of_another_one() {
        let nodes = [
            storage(1),
            storage(2),
            node(3, NodeRole::Storage, NodeState::Joining),
            node(4, NodeRole::Gateway, NodeState::Active),
            node(5, NodeRole::Storage, NodeState::Draining),
            storage(6),
        ];
        let fits = |new| check_replacement(&nodes, &nodes[1], NodeId(new)).is_ok();
        assert_eq!([1, 2, 3, 4, 5, 6, 7].map(fits), [true, false, false, false, false, true, false]);
        assert!(check_replacement(&nodes, &nodes[3], NodeId(6)).is_err(), "a gateway has nothing to take");
    }

    #[test]
    fn segments_keep_as_many_copies_as_before_the_new_node_joined() {
        let count = |ids: u64| copies_without(&(1..=ids).map(storage).collect::<Vec<_>>(), NodeId(2));
        assert_eq!([2, 3, 4, 5].map(count), [2, 2, 3, 3]);
    }

    #[test]
    fn a_node_is_replaced_while_it_is_drained_for_another_one() {
        let of = |id, state: NodeState, replaced_by| {
            Arc::new(Node { id, state: state as i32, replaced_by, ..Node::default() })
        };
        let nodes = [
            of(1, NodeState::Draining, 0),
            of(2, NodeState::Draining, 4),
            of(3, NodeState::Leaving, 4),
            of(4, NodeState::Active, 4),
        ];
        assert_eq!(replaced_nodes(&nodes), [NodeId(2)]);
    }
}

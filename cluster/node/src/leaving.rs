//! Nodes that leave the cluster: they are drained and removed, or removed because they are lost.
//!
//! A drained node gives up its votes, its leaderships and its replicas where other nodes can take them; a
//! node is removed when no segment needs it. Checks here are made on current rows, before the command and
//! after it, because another node may be drained at the same time. The rows of nodes are the only state.

use crate::contact::reached_by;
use crate::copies::{ClusterStorageNodes, LeavingNode};
use crate::node::ClusterNode;
use mlgw_common::NodeId;
use mlgw_formats::cluster_version::DUTY_CLUSTER_VERSION;
use mlgw_formats::schema::{Duty, Node, NodeRole, NodeState, SegmentRecord};
use mlgw_metadata::{BarrierError, BarrierScope, ProposeError, ReadError};
use mlgw_replication::COPIES;
use std::sync::Arc;
use tokio::task::{JoinError, spawn_blocking};

/// Copies of each segment that a drain keeps, unless fewer are accepted.
pub const DRAIN_COPIES: usize = COPIES;

/// Fewest storage nodes that stay when a node is drained: an append is acknowledged when two have it.
pub const DRAIN_COPIES_MIN: usize = 2;

/// Fate of a node that is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemovedNode {
    /// It is drained: no segment needs it.
    Drained,
    /// It never returns. What only it had is lost.
    Lost,
}

/// Reason for which a node does not leave.
#[derive(Debug, thiserror::Error)]
pub enum LeaveError {
    /// There is no such node.
    #[error("node {node} is not in the cluster")]
    NoSuchNode {
        /// The node.
        node: NodeId,
    },
    /// Segments of the node are at an upstream. While the node runs, it alone deletes there.
    #[error(
        "{segments} segments of node {node} are at an upstream: move them back with `mlgw tier drain \
         upstream` first. If the node is lost, `mlgw cluster remove {node} --lost` gives them to another node"
    )]
    AtUpstream {
        /// The node.
        node: NodeId,
        /// Its segments there.
        segments: usize,
    },
    /// The duty of the node cannot move to another one yet.
    #[error(
        "node {node} is the duty node, and no other node can take its work over before cluster version \
         {DUTY_CLUSTER_VERSION}: upgrade all nodes, and wait until `mlgw cluster status` reports this version"
    )]
    DutyStays {
        /// The node.
        node: NodeId,
    },
    /// Too few storage nodes would be left.
    #[error(
        "without node {node} {left} active storage nodes are left, and {copies} copies need as many: add a \
         node first, or accept fewer copies with --to-copies {DRAIN_COPIES_MIN}, which needs \
         {DRAIN_COPIES_MIN} nodes"
    )]
    TooFewNodes {
        /// The node.
        node: NodeId,
        /// Storage nodes that would be left.
        left: usize,
        /// Copies that segments are to keep.
        copies: usize,
    },
    /// The node is not drained.
    #[error(
        "node {node} is not drained: run `mlgw cluster drain {node}` first, or give --lost if it is lost"
    )]
    NotDraining {
        /// The node.
        node: NodeId,
    },
    /// Segments still need the node.
    #[error(
        "{segments} segments are still on node {node}: wait until `mlgw cluster status` reports that it is \
         drained"
    )]
    NotDrained {
        /// The node.
        node: NodeId,
        /// Segments with a replica on it.
        segments: u64,
    },
    /// Sets still have the node.
    #[error(
        "node {node} is in {sets} sets of nodes, and another one takes its place there first: wait until \
         `mlgw cluster status` reports that it is drained"
    )]
    InSets {
        /// The node.
        node: NodeId,
        /// Sets with it.
        sets: u64,
    },
    /// A node that is to be removed as lost answers, or was not called yet.
    #[error("node {node} answers, or was not called since the start: drain it, stop it first, or wait")]
    Answers {
        /// The node.
        node: NodeId,
    },
    /// A node that is to be removed as lost answers another node.
    #[error(
        "node {node} does not answer this node, but it answers node {by}, so it is not lost: repair the \
         network between them, or drain it"
    )]
    AnswersAnother {
        /// The node.
        node: NodeId,
        /// The node that it answers.
        by: NodeId,
    },
    /// A node that is to be replaced does not answer.
    #[error(
        "node {node} does not answer, so it cannot be drained: start it, or give --lost if it never returns"
    )]
    Silent {
        /// The node.
        node: NodeId,
    },
    /// A gateway has nothing that another node could take.
    #[error("node {node} is a gateway and has no objects: join another one, and remove it")]
    Gateway {
        /// The node.
        node: NodeId,
    },
    /// The node that is to take the place of another one cannot.
    #[error(
        "node {node} is no other active storage node: join it, start it, and wait until `mlgw cluster \
         status` reports it as active"
    )]
    NoReplacement {
        /// The node.
        node: NodeId,
    },
    /// The rows of this node may be old.
    #[error(transparent)]
    Barrier(#[from] BarrierError),
    /// The catalogue cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The task that counts segments failed.
    #[error("the segments of the node were not counted: {0}")]
    Count(#[from] JoinError),
    /// The change was not recorded.
    #[error(transparent)]
    Propose(#[from] ProposeError),
}

impl ClusterNode {
    /// Begins to drain a node, and returns its record. At least `copies` active storage nodes must be left.
    ///
    /// # Errors
    /// See [`LeaveError`].
    pub async fn drain(&self, node: NodeId, copies: usize) -> Result<Node, LeaveError> {
        let known = self.current_node(node).await?;
        if known.state() == NodeState::Draining {
            return Ok(Node::clone(&known));
        }
        self.drain_for(node, copies, None).await
    }

    /// Drains a node that may leave, whose place `new` takes if it is given.
    pub(crate) async fn drain_for(
        &self,
        node: NodeId,
        copies: usize,
        new: Option<NodeId>,
    ) -> Result<Node, LeaveError> {
        let catalogue = &self.shared.catalogue;
        check_left(&catalogue.nodes(), node, copies)?;
        check_duty(catalogue.cluster_version(), &catalogue.duty(), node)?;
        self.check_upstream(node).await?;
        let drained = catalogue.drain_node(node, new).await?;
        self.current_node(node).await?;
        // Another node may have been drained meanwhile, or a segment of this one moved to an upstream.
        let checked = match check_left(&catalogue.nodes(), node, copies) {
            Ok(()) => self.check_upstream(node).await,
            refused => refused,
        };
        if let Err(error) = checked {
            catalogue.undrain_node(node).await?;
            return Err(error);
        }
        Ok(drained)
    }

    /// Ends the draining of a node, and returns its record.
    ///
    /// # Errors
    /// See [`LeaveError`].
    pub async fn undrain(&self, node: NodeId) -> Result<Node, LeaveError> {
        self.current_node(node).await?;
        Ok(self.shared.catalogue.undrain_node(node).await?)
    }

    /// Removes a node for ever, and returns its record. It is removed when the leaders of all groups have
    /// taken it out of them; until then it is leaving.
    ///
    /// # Errors
    /// See [`LeaveError`].
    pub async fn remove(&self, node: NodeId, fate: RemovedNode) -> Result<Node, LeaveError> {
        self.remove_for(node, fate, None).await
    }

    /// Removes a node. `new` takes the places of a lost one in its sets if it is given.
    pub(crate) async fn remove_for(
        &self,
        node: NodeId,
        fate: RemovedNode,
        new: Option<NodeId>,
    ) -> Result<Node, LeaveError> {
        let known = self.current_node(node).await?;
        let catalogue = &self.shared.catalogue;
        check_duty(catalogue.cluster_version(), &catalogue.duty(), node)?;
        match (known.role(), known.state(), fate) {
            // These have no segments.
            (NodeRole::Gateway, _, _) | (NodeRole::Storage, NodeState::Joining, _) => {}
            (NodeRole::Storage, NodeState::Leaving | NodeState::Removed, _) => {
                return Ok(Node::clone(&known));
            }
            (NodeRole::Storage, NodeState::Active | NodeState::Draining, RemovedNode::Lost) => {
                // Other nodes become the owners of its segments at upstreams too.
                self.check_lost(node).await?;
                if new.is_some() {
                    // The row names the new node from now on. If the removal fails, the drain goes on.
                    catalogue.drain_node(node, new).await?;
                }
                return Ok(catalogue.remove_node(node).await?);
            }
            (NodeRole::Storage, NodeState::Active, RemovedNode::Drained) => {
                return Err(LeaveError::NotDraining { node });
            }
            (NodeRole::Storage, NodeState::Draining, RemovedNode::Drained) => {
                self.check_drained(node).await?;
                return Ok(self.shared.catalogue.remove_drained_node(node).await?);
            }
        }
        self.check_upstream(node).await?;
        Ok(self.shared.catalogue.remove_node(node).await?)
    }

    /// Checks that a node answers no node of the cluster that can be asked.
    async fn check_lost(&self, node: NodeId) -> Result<(), LeaveError> {
        let own = self.shared.own;
        if node == own || !self.shared.probes.is_silent(node) {
            return Err(LeaveError::Answers { node });
        }
        let nodes = self.shared.catalogue.nodes();
        let others = nodes.iter().filter(|of| !of.is_removed()).map(|of| of.node_id());
        let others = others.filter(|other| ![node, own].contains(other));
        match reached_by(&self.shared.transport, node, others).await {
            Some(by) => Err(LeaveError::AnswersAnother { node, by }),
            None => Ok(()),
        }
    }

    async fn check_drained(&self, node: NodeId) -> Result<(), LeaveError> {
        let left = left_on(&self.storage(), node).await?;
        match (left.is_done(), left.counts.segments + left.open_segments) {
            (true, _) => Ok(()),
            (false, 0) => Err(LeaveError::InSets { node, sets: left.sets }),
            (false, segments) => Err(LeaveError::NotDrained { node, segments }),
        }
    }

    /// Checks that no segment of a node is at an upstream.
    async fn check_upstream(&self, node: NodeId) -> Result<(), LeaveError> {
        let catalogue = self.shared.catalogue.clone();
        let records = spawn_blocking(move || catalogue.segments()).await??;
        let is_there = |of: &&SegmentRecord| of.is_at_upstream() && of.replica_of(node).is_some();
        match records.iter().filter(is_there).count() {
            0 => Ok(()),
            segments => Err(LeaveError::AtUpstream { node, segments }),
        }
    }

    /// Returns the record of a node that may leave, from current rows.
    pub(crate) async fn current_node(&self, node: NodeId) -> Result<Arc<Node>, LeaveError> {
        let catalogue = &self.shared.catalogue;
        catalogue.barrier(BarrierScope::System).await?;
        let known = catalogue.node_record(node).filter(|node| !node.is_removed());
        known.ok_or(LeaveError::NoSuchNode { node })
    }
}

/// Counts the segments that a node has.
///
/// # Errors
/// If they cannot be read.
pub(crate) async fn left_on(storage: &ClusterStorageNodes, node: NodeId) -> Result<LeavingNode, LeaveError> {
    let storage = storage.clone();
    Ok(spawn_blocking(move || storage.left_on(node)).await??)
}

/// Checks that the duty can move away from a node, if the node has it.
const fn check_duty(cluster_version: u32, duty: &Duty, node: NodeId) -> Result<(), LeaveError> {
    if duty.node == node.get() && cluster_version < DUTY_CLUSTER_VERSION {
        return Err(LeaveError::DutyStays { node });
    }
    Ok(())
}

/// Checks that enough storage nodes are left without one.
fn check_left(nodes: &[Arc<Node>], node: NodeId, copies: usize) -> Result<(), LeaveError> {
    let stores = |of: &&Arc<Node>| of.role() == NodeRole::Storage;
    if !nodes.iter().filter(stores).any(|of| of.node_id() == node) {
        return Ok(());
    }
    let stays = |of: &&Arc<Node>| of.node_id() != node && of.state() == NodeState::Active;
    let left = nodes.iter().filter(stores).filter(stays).count();
    if left < copies.max(DRAIN_COPIES_MIN) {
        return Err(LeaveError::TooFewNodes { node, left, copies });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{LeaveError, check_duty, check_left};
    use crate::test_nodes::node;
    use mlgw_common::NodeId;
    use mlgw_formats::cluster_version::DUTY_CLUSTER_VERSION;
    use mlgw_formats::schema::{Duty, Node, NodeRole, NodeState};
    use std::sync::Arc;

    /// Storage nodes that would be left and are too few, if they are.
    fn too_few(nodes: &[Arc<Node>], leaving: u64, copies: usize) -> Option<usize> {
        match check_left(nodes, NodeId(leaving), copies) {
            Ok(()) => None,
            Err(LeaveError::TooFewNodes { left, .. }) => Some(left),
            Err(other) => panic!("{other}"),
        }
    }

    #[test]
    fn the_duty_node_leaves_only_when_its_duty_can_move() {
        let leaves = |version, node| check_duty(version, &Duty::FIRST, NodeId(node)).is_ok();
        assert!(!leaves(DUTY_CLUSTER_VERSION - 1, 1) && leaves(DUTY_CLUSTER_VERSION - 1, 2));
        assert!(leaves(DUTY_CLUSTER_VERSION, 1));
    }

    #[test]
    fn a_node_is_drained_only_while_enough_active_storage_nodes_are_left() {
        let mut nodes: Vec<Arc<Node>> =
            (1..=4).map(|id| node(id, NodeRole::Storage, NodeState::Active)).collect();
        nodes.push(node(5, NodeRole::Gateway, NodeState::Active));
        assert_eq!(too_few(&nodes, 2, 3), None);
        assert_eq!(too_few(&nodes, 5, 3), None, "a gateway has no copies");
        nodes[2] = node(3, NodeRole::Storage, NodeState::Draining);
        assert_eq!(too_few(&nodes, 2, 3), Some(2));
        assert_eq!(too_few(&nodes, 2, 2), None);
        nodes[3] = node(4, NodeRole::Storage, NodeState::Joining);
        assert_eq!(too_few(&nodes, 2, 2), Some(1));
        assert_eq!(too_few(&nodes, 2, 0), Some(1), "an append needs two nodes");
    }

    #[test]
    fn a_refusal_names_the_remedy() {
        let refused = LeaveError::TooFewNodes { node: NodeId(2), left: 2, copies: 3 };
        assert!(refused.to_string().contains("--to-copies 2"), "{refused}");
        assert!(LeaveError::NotDraining { node: NodeId(2) }.to_string().contains("mlgw cluster drain 2"));
    }
}

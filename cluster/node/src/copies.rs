//! Replicas of segments: the nodes that may have them, and how many sealed segments have fewer than wanted.
//!
//! All nodes count alike, from the rows of segments and of nodes. Nothing is stored here.

use crate::probes::Probes;
use mlgw_common::NodeId;
use mlgw_formats::schema::{Node, NodeRole, NodeState, Replica, SegmentRecord, SegmentState};
use mlgw_metadata::{Catalogue, ReadError};
use mlgw_replication::{COPIES, CopyCounts, ReplicaFacts, SegmentFacts, StorageNode, count_copies};
use mlgw_segments::hot::StorageNodes;
use std::sync::Arc;

/// Copies of segments, as this node sees them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopyStatus {
    /// Copies that each sealed segment gets: three, or one on each storage node if there are fewer.
    pub wanted: u32,
    /// Sealed segments.
    pub counts: CopyCounts,
    /// Open segments. What is appended to them is acknowledged when two nodes have synced it, or one if there
    /// is no other storage node.
    pub open_segments: u64,
}

/// The storage nodes of the cluster, from the rows of nodes and the probes.
pub(crate) struct ClusterStorageNodes {
    pub(crate) own: NodeId,
    pub(crate) catalogue: Catalogue,
    pub(crate) probes: Arc<Probes>,
}

impl StorageNodes for ClusterStorageNodes {
    fn storage_nodes(&self) -> Vec<StorageNode> {
        storage_nodes(&self.catalogue.nodes(), self.own, |node| self.probes.answers(node) == Some(true))
    }
}

impl ClusterStorageNodes {
    /// Counts the copies of all segments.
    ///
    /// # Errors
    /// If the catalogue cannot be read.
    pub(crate) fn copies(&self) -> Result<CopyStatus, ReadError> {
        Ok(count(&self.catalogue.segments()?, &self.storage_nodes()))
    }
}

/// The nodes that have replicas of segments, or will have them. A node that has joined and never served is
/// not one yet: writes do not wait for it. This node is always reachable, another one while it answers.
pub(crate) fn storage_nodes(
    nodes: &[Arc<Node>],
    own: NodeId,
    answers: impl Fn(NodeId) -> bool,
) -> Vec<StorageNode> {
    let has_served = |node: &Arc<Node>| node.node_id() == own || !matches!(node.state(), NodeState::Joining);
    let stores =
        |node: &&Arc<Node>| node.role() == NodeRole::Storage && !node.is_removed() && has_served(node);
    let described = |node: &Arc<Node>| {
        let node = node.node_id();
        StorageNode { node, is_reachable: node == own || answers(node) }
    };
    nodes.iter().filter(stores).map(described).collect()
}

fn count(records: &[SegmentRecord], nodes: &[StorageNode]) -> CopyStatus {
    let facts: Vec<SegmentFacts> = records.iter().filter_map(sealed_facts).collect();
    let open = records.iter().filter(|record| record.state() == SegmentState::Open);
    CopyStatus {
        wanted: u32::try_from(COPIES.min(nodes.len())).unwrap_or(u32::MAX),
        counts: count_copies(COPIES, nodes, &facts),
        open_segments: open.count() as u64,
    }
}

/// Facts of a sealed segment; `None` if it is open, or has no byte that could be copied.
fn sealed_facts(record: &SegmentRecord) -> Option<SegmentFacts> {
    if record.state() != SegmentState::Sealed || record.length == 0 {
        return None;
    }
    let facts =
        |replica: &Replica| ReplicaFacts { node: NodeId(replica.node), is_suspect: replica.is_suspect };
    Some(SegmentFacts {
        segment: record.segment_id(),
        bytes: record.length,
        changes: record.changes,
        replicas: record.replicas.iter().map(facts).collect(),
        is_at_upstream: record.is_at_upstream(),
    })
}

#[cfg(test)]
mod tests {
    use super::{CopyStatus, count, storage_nodes};
    use mlgw_common::NodeId;
    use mlgw_formats::schema::{Node, NodeRole, NodeState, Replica, SegmentRecord, SegmentState};
    use mlgw_replication::{CopyCounts, StorageNode};
    use std::sync::Arc;

    fn reachable(ids: &[u64]) -> Vec<StorageNode> {
        ids.iter().map(|id| StorageNode { node: NodeId(*id), is_reachable: true }).collect()
    }

    fn sealed(id: u64, length: u64, nodes: &[u64]) -> SegmentRecord {
        let on = |node: &u64| Replica { node: *node, ..Replica::default() };
        SegmentRecord {
            id,
            state: SegmentState::Sealed as i32,
            length,
            replicas: nodes.iter().map(on).collect(),
            ..SegmentRecord::default()
        }
    }

    #[test]
    fn storage_nodes_that_stay_are_listed_and_those_that_answer_are_reachable() {
        let node = |id, role: NodeRole, state: NodeState| {
            Arc::new(Node { id, role: role as i32, state: state as i32, ..Node::default() })
        };
        let nodes = [
            node(1, NodeRole::Storage, NodeState::Active),
            node(2, NodeRole::Storage, NodeState::Active),
            node(3, NodeRole::Storage, NodeState::Leaving),
            node(4, NodeRole::Storage, NodeState::Removed),
            node(5, NodeRole::Gateway, NodeState::Active),
            node(6, NodeRole::Storage, NodeState::Joining),
        ];
        let listed = storage_nodes(&nodes, NodeId(1), |node| node.get() >= 3);
        let listed: Vec<(u64, bool)> = listed.iter().map(|of| (of.node.get(), of.is_reachable)).collect();
        assert_eq!(listed, [(1, true), (2, false), (3, true)]);
    }

    #[test]
    fn sealed_segments_are_counted_and_open_ones_listed_apart() {
        let suspect = Replica { node: 3, is_suspect: true, ..Replica::default() };
        let mut damaged = sealed(3, 300, &[1, 2]);
        damaged.replicas.push(suspect);
        let open = SegmentRecord { state: SegmentState::Open as i32, ..sealed(4, 0, &[1]) };
        let records =
            [sealed(1, 100, &[1, 2, 3]), sealed(2, 200, &[1, 2]), damaged, open, sealed(5, 0, &[1])];
        let counts =
            CopyCounts { segments: 3, bytes: 600, below_segments: 2, below_bytes: 500, suspect_segments: 1 };
        let status = count(&records, &reachable(&[1, 2, 3]));
        assert_eq!(status, CopyStatus { wanted: 3, counts, open_segments: 1 });
        // Two nodes have two copies each.
        let status = count(&records, &reachable(&[1, 2]));
        assert_eq!((status.wanted, status.counts.below_segments), (2, 0));
        assert_eq!(count(&records, &reachable(&[1, 2, 3, 4])).wanted, 3);
    }

    #[test]
    fn segments_at_an_upstream_need_no_copies() {
        let mut spilled = sealed(1, 100, &[1]);
        spilled.replicas[0].tier = 2;
        let status = count(&[spilled], &reachable(&[1, 2, 3]));
        assert_eq!(status.counts.below_segments, 0);
    }
}

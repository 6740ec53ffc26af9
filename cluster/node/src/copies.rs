//! Replicas of segments: the nodes that may have them, how many sealed segments have fewer than wanted, and
//! what nodes that leave still have.
//!
//! All nodes count alike, from the rows of segments and of nodes. Nothing is stored here.

use crate::probes::Probes;
use crate::replicas::ServedReplicas;
use mlgw_common::{NodeId, SegmentId};
use mlgw_formats::schema::{Node, NodeRole, NodeSet, NodeState, Replica, SegmentRecord, SegmentState};
use mlgw_metadata::{Catalogue, ReadError};
use mlgw_replication::{
    COPIES, CopyCounts, LeavingCounts, ReplicaFacts, SegmentFacts, StorageNode, StorageViews, count_copies,
    count_leaving, is_lost, wanted_copies,
};
use mlgw_segments::hot::StorageNodes;
use std::sync::{Arc, Weak};

/// Copies of segments, as this node sees them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CopyStatus {
    /// Copies that each sealed segment gets: three, or one on each storage node that stays if there are
    /// fewer.
    pub wanted: u32,
    /// Sealed segments.
    pub counts: CopyCounts,
    /// Open segments. What is appended to them is acknowledged when two nodes have synced it, or one if there
    /// is no other storage node.
    pub open_segments: u64,
    /// Sealed segments with a replica on a node that stays outside of their set.
    pub off_set_segments: u64,
    /// Referenced bytes in segments of other sets than that of their group, over the groups with a member on
    /// this node. The leaders of the groups move them. `None` if they cannot be read.
    pub off_set_bytes: Option<u64>,
    /// Storage nodes that are drained or being removed, by id.
    pub leaving: Vec<LeavingNode>,
    /// Sealed segments whose replicas were all on removed nodes: their bytes are lost.
    pub lost: Vec<SegmentId>,
}

/// Segments that a node still has while it leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeavingNode {
    /// The node.
    pub node: NodeId,
    /// Its sealed segments.
    pub counts: LeavingCounts,
    /// Open segments with a replica on it.
    pub open_segments: u64,
    /// Sets that it is in.
    pub sets: u64,
    /// Groups of objects in which it votes, among those with a member on this node.
    pub votes: u64,
}

impl LeavingNode {
    /// True if no segment and no set needs the node any more.
    #[must_use]
    pub const fn is_done(&self) -> bool {
        self.counts.segments == 0 && self.open_segments == 0 && self.sets == 0
    }
}

/// The storage nodes of the cluster, from the rows of nodes and the probes.
#[derive(Clone)]
pub(crate) struct ClusterStorageNodes {
    pub(crate) own: NodeId,
    pub(crate) catalogue: Catalogue,
    pub(crate) probes: Arc<Probes>,
    /// The own replicas. Weak, since their server uses the storage nodes.
    pub(crate) replicas: Weak<ServedReplicas>,
}

impl StorageNodes for ClusterStorageNodes {
    fn storage_nodes(&self) -> Vec<StorageNode> {
        let is_full = |node| match node == self.own {
            true => self.replicas.upgrade().is_some_and(|own| own.is_full()),
            false => self.probes.load(node).and_then(|load| load.is_full) == Some(true),
        };
        let answers = |node| self.probes.answers(node) == Some(true);
        storage_nodes(&self.catalogue.nodes(), self.own, answers, is_full)
    }

    fn views(&self) -> StorageViews {
        let sets = self.catalogue.sets();
        let nodes = |set: &Arc<NodeSet>| set.nodes.iter().copied().map(NodeId).collect();
        StorageViews::new(self.storage_nodes(), sets.iter().map(|set| (set.id, nodes(set))))
    }
}

impl ClusterStorageNodes {
    /// Counts the copies of all segments.
    ///
    /// # Errors
    /// If the catalogue cannot be read.
    pub(crate) fn copies(&self) -> Result<CopyStatus, ReadError> {
        Ok(self.copies_of(&self.catalogue.segments()?))
    }

    /// Counts the copies of all segments, from their rows.
    pub(crate) fn copies_of(&self, records: &[SegmentRecord]) -> CopyStatus {
        let mut status = count(records, &self.views());
        // Other reads report a store that cannot be read.
        status.off_set_bytes = self.catalogue.off_set_bytes().ok();
        status.leaving.iter_mut().for_each(|leaving| self.add_places(leaving));
        status
    }

    /// Returns what a node has, as if it were leaving.
    ///
    /// # Errors
    /// If the catalogue cannot be read.
    pub(crate) fn left_on(&self, node: NodeId) -> Result<LeavingNode, ReadError> {
        let records = self.catalogue.segments()?;
        let mut left = left_on(node, &records, &sealed(&records), &self.views());
        self.add_places(&mut left);
        Ok(left)
    }

    /// Adds the sets and the votes that a node has.
    fn add_places(&self, leaving: &mut LeavingNode) {
        let catalogue = &self.catalogue;
        let votes = |group: &&u32| catalogue.voters(**group).contains(&leaving.node);
        leaving.votes = catalogue.object_groups().iter().filter(votes).count() as u64;
        leaving.sets = catalogue.sets().iter().filter(|set| set.contains(leaving.node)).count() as u64;
    }
}

/// The nodes that have replicas of segments, or will have them. A node that has joined and never served is
/// not one yet: writes do not wait for it. This node is always reachable, another one while it answers.
pub(crate) fn storage_nodes(
    nodes: &[Arc<Node>],
    own: NodeId,
    answers: impl Fn(NodeId) -> bool,
    is_full: impl Fn(NodeId) -> bool,
) -> Vec<StorageNode> {
    let has_served = |node: &Arc<Node>| node.node_id() == own || !matches!(node.state(), NodeState::Joining);
    let stores =
        |node: &&Arc<Node>| node.role() == NodeRole::Storage && !node.is_removed() && has_served(node);
    let described = |node: &Arc<Node>| {
        let is_leaving = matches!(node.state(), NodeState::Draining | NodeState::Leaving);
        let node = node.node_id();
        let is_reachable = node == own || answers(node);
        StorageNode { node, is_reachable, is_leaving, is_full: is_full(node) }
    };
    nodes.iter().filter(stores).map(described).collect()
}

fn count(records: &[SegmentRecord], views: &StorageViews) -> CopyStatus {
    let nodes = views.all();
    let sealed = sealed(records);
    let with_bytes: Vec<SegmentFacts> = sealed.iter().filter(|facts| facts.bytes > 0).cloned().collect();
    let open = records.iter().filter(|record| record.state() == SegmentState::Open);
    let leaving = nodes.iter().filter(|node| node.is_leaving).map(|node| node.node);
    let lost = with_bytes.iter().filter(|facts| is_lost(facts, nodes)).map(|facts| facts.segment);
    CopyStatus {
        wanted: u32::try_from(wanted_copies(COPIES, nodes)).unwrap_or(u32::MAX),
        counts: count_copies(COPIES, views, &with_bytes),
        open_segments: open.count() as u64,
        off_set_segments: sealed.iter().filter(|facts| is_off_set(facts, views)).count() as u64,
        off_set_bytes: None,
        leaving: leaving.map(|node| left_on(node, records, &sealed, views)).collect(),
        lost: lost.collect(),
    }
}

/// True if a segment has a replica on a node that stays in the cluster, and is not in the set of the segment.
/// A segment at an upstream keeps its owner.
fn is_off_set(segment: &SegmentFacts, views: &StorageViews) -> bool {
    let stays =
        |nodes: &[StorageNode], id: NodeId| nodes.iter().any(|node| node.node == id && !node.is_leaving);
    let is_outside = |node: NodeId| stays(views.all(), node) && !stays(views.of(segment.set), node);
    !segment.is_at_upstream && segment.replicas.iter().any(|replica| is_outside(replica.node))
}

/// Counts the segments that a node has.
fn left_on(
    node: NodeId,
    records: &[SegmentRecord],
    sealed: &[SegmentFacts],
    views: &StorageViews,
) -> LeavingNode {
    let is_open =
        |record: &&SegmentRecord| record.state() == SegmentState::Open && record.replica_of(node).is_some();
    let open_segments = records.iter().filter(is_open).count() as u64;
    LeavingNode { node, counts: count_leaving(COPIES, views, sealed, node), open_segments, sets: 0, votes: 0 }
}

/// Facts of the sealed segments.
fn sealed(records: &[SegmentRecord]) -> Vec<SegmentFacts> {
    records.iter().filter(|record| record.state() == SegmentState::Sealed).map(facts_of).collect()
}

fn facts_of(record: &SegmentRecord) -> SegmentFacts {
    let facts =
        |replica: &Replica| ReplicaFacts { node: NodeId(replica.node), is_suspect: replica.is_suspect };
    SegmentFacts {
        segment: record.segment_id(),
        set: record.set,
        bytes: record.length,
        changes: record.changes,
        replicas: record.replicas.iter().map(facts).collect(),
        is_at_upstream: record.is_at_upstream(),
    }
}

#[cfg(test)]
mod tests {
    use super::{CopyStatus, LeavingNode, count, storage_nodes};
    use crate::test_nodes::node;
    use mlgw_common::{NodeId, SegmentId};
    use mlgw_formats::schema::{NodeRole, NodeState, Replica, SegmentRecord, SegmentState};
    use mlgw_replication::{CopyCounts, LeavingCounts, StorageNode, StorageViews};

    fn reachable(ids: &[u64]) -> Vec<StorageNode> {
        let node = |id: &u64| StorageNode {
            node: NodeId(*id),
            is_reachable: true,
            is_leaving: false,
            is_full: false,
        };
        ids.iter().map(node).collect()
    }

    fn counted(records: &[SegmentRecord], nodes: &[StorageNode]) -> CopyStatus {
        count(records, &nodes.to_vec().into())
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
        let nodes = [
            node(1, NodeRole::Storage, NodeState::Active),
            node(2, NodeRole::Storage, NodeState::Active),
            node(3, NodeRole::Storage, NodeState::Leaving),
            node(4, NodeRole::Storage, NodeState::Removed),
            node(5, NodeRole::Gateway, NodeState::Active),
            node(6, NodeRole::Storage, NodeState::Joining),
            node(7, NodeRole::Storage, NodeState::Draining),
        ];
        let listed = storage_nodes(&nodes, NodeId(1), |node| node.get() >= 3, |node| node.get() < 3);
        assert!(listed.iter().all(|of| of.is_full == (of.node.get() < 3)), "this node too: {listed:?}");
        let described = |of: &StorageNode| (of.node.get(), of.is_reachable, of.is_leaving);
        let listed: Vec<(u64, bool, bool)> = listed.iter().map(described).collect();
        assert_eq!(listed, [(1, true, false), (2, false, false), (3, true, true), (7, true, true)]);
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
        let status = counted(&records, &reachable(&[1, 2, 3]));
        let expected = CopyStatus { wanted: 3, counts, open_segments: 1, ..CopyStatus::default() };
        assert_eq!(status, expected);
        // Two nodes have two copies each.
        let status = counted(&records, &reachable(&[1, 2]));
        assert_eq!((status.wanted, status.counts.below_segments), (2, 0));
        assert_eq!(counted(&records, &reachable(&[1, 2, 3, 4])).wanted, 3);
    }

    #[test]
    fn segments_of_a_node_that_leaves_are_counted_until_none_is_left() {
        let mut nodes = reachable(&[1, 2, 3]);
        nodes[2].is_leaving = true;
        let open = SegmentRecord { state: SegmentState::Open as i32, ..sealed(3, 0, &[1, 3]) };
        let records = [sealed(1, 100, &[1, 2, 3]), sealed(2, 100, &[3, 1]), open, sealed(4, 0, &[3])];
        let status = counted(&records, &nodes);
        let counts = LeavingCounts { segments: 3, copied_segments: 2 };
        let expected = LeavingNode { node: NodeId(3), counts, open_segments: 1, sets: 0, votes: 0 };
        assert_eq!(status.leaving, [expected]);
        assert_eq!((status.wanted, status.counts.below_segments), (2, 1));
        assert!(!status.leaving[0].is_done());
        let status = counted(&[sealed(1, 100, &[1, 2])], &nodes);
        assert!(status.leaving[0].is_done());
        assert!(
            !LeavingNode { sets: 1, ..status.leaving[0] }.is_done(),
            "another node takes its place first"
        );
    }

    #[test]
    fn segments_with_a_replica_outside_of_their_set_are_counted() {
        let of_set = |id, set, nodes: &[u64]| SegmentRecord { set, ..sealed(id, 100, nodes) };
        let mut nodes = reachable(&[1, 2, 3, 4, 5]);
        nodes[4].is_leaving = true;
        let sets = [(0, vec![1, 2, 3]), (1, vec![2, 3, 4])];
        let sets = sets.map(|(id, nodes)| (id, nodes.into_iter().map(NodeId).collect()));
        let views = StorageViews::new(nodes, sets);
        let mut spilled = of_set(5, 1, &[1]);
        spilled.replicas[0].tier = 2;
        let records = [
            of_set(1, 0, &[1, 2, 3]),
            of_set(2, 1, &[1, 2, 3]),
            of_set(3, 1, &[2, 3, 4]),
            of_set(4, 0, &[1, 5]),
            spilled,
        ];
        let off_set = |records: &[SegmentRecord]| count(records, &views).off_set_segments;
        assert_eq!(records.each_ref().map(|record| off_set(std::slice::from_ref(record))), [0, 1, 0, 0, 0]);
        assert_eq!(counted(&records, &reachable(&[1, 2, 3, 4, 5])).off_set_segments, 0, "without sets");
    }

    #[test]
    fn segments_whose_replicas_were_on_removed_nodes_are_lost() {
        let records = [sealed(1, 100, &[3]), sealed(2, 100, &[3, 2]), sealed(3, 0, &[3])];
        assert_eq!(counted(&records, &reachable(&[1, 2])).lost, [SegmentId(1)]);
    }

    #[test]
    fn replicas_outside_of_the_set_of_a_segment_are_no_copies() {
        let of_set = |set, record| SegmentRecord { set, ..record };
        let records = [sealed(1, 100, &[1, 2, 3]), of_set(1, sealed(2, 100, &[1, 2, 3]))];
        let sets = [(0, vec![NodeId(1), NodeId(2), NodeId(3)]), (1, vec![NodeId(2), NodeId(3), NodeId(4)])];
        let status = count(&records, &StorageViews::new(reachable(&[1, 2, 3, 4]), sets));
        assert_eq!((status.counts.segments, status.counts.below_segments), (2, 1));
        assert_eq!(status.leaving, [], "node 1 stays in the cluster");
    }

    #[test]
    fn segments_at_an_upstream_need_no_copies() {
        let mut spilled = sealed(1, 100, &[1]);
        spilled.replicas[0].tier = 2;
        let status = counted(&[spilled], &reachable(&[1, 2, 3]));
        assert_eq!(status.counts.below_segments, 0);
    }
}

//! The storage nodes as the segments of each set see them. Pure.
//!
//! The replicas of a segment belong on the nodes of its set. For a segment, a node outside of its set is like
//! one that leaves: its replica is a source and no copy, it is dropped when the nodes of the set have all
//! copies, and another node becomes the owner in its place. So a change of a set needs no order of its own.
//! A set none of whose nodes stays has no meaning: its segments are kept where they are. While too few of its
//! nodes stay to have all copies, replicas on other nodes are kept as well, until the set is filled.

use mlgw_common::NodeId;
use std::collections::BTreeMap;

/// A node that stores segments. The node that decides is one of them, and reachable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StorageNode {
    /// Id of the node.
    pub node: NodeId,
    /// True if the node answers.
    pub is_reachable: bool,
    /// True if the node gives up its replicas, because it is drained or being removed.
    pub is_leaving: bool,
    /// True if the node has no space for further segments.
    pub is_full: bool,
}

/// The storage nodes, and those of each set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StorageViews {
    all: Vec<StorageNode>,
    sets: BTreeMap<u32, Vec<NodeId>>,
    /// All nodes, as the segments of a set see them.
    by_set: BTreeMap<u32, Vec<StorageNode>>,
}

impl StorageViews {
    /// Returns the views of `nodes` in a cluster with these sets, which may have none.
    pub fn new(nodes: Vec<StorageNode>, sets: impl IntoIterator<Item = (u32, Vec<NodeId>)>) -> Self {
        let sets: BTreeMap<u32, Vec<NodeId>> = sets.into_iter().collect();
        let stays = |node: &StorageNode, set: &[NodeId]| !node.is_leaving && set.contains(&node.node);
        let has_nodes = |set: &[NodeId]| nodes.iter().any(|node| stays(node, set));
        let view = |(id, set): (&u32, &Vec<NodeId>)| {
            let seen = |node: &StorageNode| StorageNode { is_leaving: !stays(node, set), ..*node };
            has_nodes(set).then(|| (*id, nodes.iter().map(seen).collect::<Vec<_>>()))
        };
        let by_set = sets.iter().filter_map(view).collect();
        Self { all: nodes, sets, by_set }
    }

    /// All nodes.
    #[must_use]
    pub fn all(&self) -> &[StorageNode] {
        &self.all
    }

    /// All nodes, as the segments of a set see them.
    #[must_use]
    pub fn of(&self, set: u32) -> &[StorageNode] {
        self.by_set.get(&set).unwrap_or(&self.all)
    }

    /// All nodes, as the segments of the first set see them: its nodes have the rows of all groups.
    #[must_use]
    pub fn of_first(&self) -> &[StorageNode] {
        self.sets.keys().next().map_or(&self.all, |first| self.of(*first))
    }

    /// All nodes, as the node `own` sees them when it appends to a segment of a set. They are those of the
    /// set's view, or if no other node of the set stays, all nodes without regard to sets: then a segment has
    /// its replicas where there are nodes, and not fewer.
    #[must_use]
    pub fn for_writer(&self, set: u32, own: NodeId) -> &[StorageNode] {
        let nodes = self.of(set);
        let has_others = nodes.iter().any(|node| node.node != own && !node.is_leaving);
        if has_others { nodes } else { &self.all }
    }

    /// True if the node gives up its replicas of the segments of a set.
    #[must_use]
    pub fn is_leaving(&self, set: u32, node: NodeId) -> bool {
        self.of(set).iter().any(|of| of.node == node && of.is_leaving)
    }

    /// Returns the views without one of the nodes.
    #[must_use]
    pub fn without(&self, node: NodeId) -> Self {
        let nodes = self.all.iter().filter(|other| other.node != node).copied().collect();
        Self::new(nodes, self.sets.clone())
    }
}

impl From<Vec<StorageNode>> for StorageViews {
    /// The views of a cluster without sets.
    fn from(nodes: Vec<StorageNode>) -> Self {
        Self::new(nodes, [])
    }
}

#[cfg(test)]
mod tests {
    use super::{StorageNode, StorageViews};
    use mlgw_common::NodeId;

    fn views(leaving: &[u64], sets: &[(u32, &[u64])]) -> StorageViews {
        let node = |id| StorageNode {
            node: NodeId(id),
            is_reachable: true,
            is_leaving: leaving.contains(&id),
            is_full: false,
        };
        let ids = |(set, nodes): &(u32, &[u64])| (*set, nodes.iter().copied().map(NodeId).collect());
        StorageViews::new((1..=5).map(node).collect(), sets.iter().map(ids))
    }

    fn leaving(nodes: &[StorageNode]) -> Vec<u64> {
        nodes.iter().filter(|node| node.is_leaving).map(|node| node.node.0).collect()
    }

    #[test]
    fn nodes_outside_of_the_set_leave_its_segments() {
        let views = views(&[2], &[(0, &[1, 2, 3]), (4, &[3, 4, 5])]);
        assert_eq!(leaving(views.of(0)), [2, 4, 5]);
        assert_eq!(leaving(views.of(4)), [1, 2]);
        assert_eq!(leaving(views.of(7)), [2], "there is no such set");
        assert_eq!(leaving(views.all()), [2]);
        assert_eq!(leaving(views.of_first()), [2, 4, 5]);
        assert_eq!(leaving(StorageViews::from(views.all().to_vec()).of_first()), [2], "there are no sets");
    }

    #[test]
    fn the_writer_of_a_set_without_other_nodes_sees_all_nodes() {
        let views = views(&[5], &[(0, &[1, 2]), (1, &[4, 5]), (2, &[9])]);
        assert_eq!(leaving(views.for_writer(0, NodeId(1))), [3, 4, 5]);
        assert_eq!(leaving(views.for_writer(0, NodeId(3))), [3, 4, 5], "node 3 is in another set");
        assert_eq!(leaving(views.for_writer(1, NodeId(4))), [5], "node 5 leaves");
        assert_eq!(leaving(views.for_writer(1, NodeId(5))), [1, 2, 3, 5]);
        assert_eq!(leaving(views.for_writer(2, NodeId(1))), [5], "node 9 was removed");
        let gives_up = |set| (1..=5).filter(|node| views.is_leaving(set, NodeId(*node))).collect::<Vec<_>>();
        assert_eq!([gives_up(0), gives_up(1), gives_up(2)], [vec![3, 4, 5], vec![1, 2, 3, 5], vec![5]]);
    }

    #[test]
    fn a_set_without_a_node_that_stays_keeps_its_segments_where_they_are() {
        let views = views(&[3], &[(0, &[3, 9]), (1, &[3, 4])]);
        assert_eq!(leaving(views.of(0)), [3]);
        assert_eq!(leaving(views.of(1)), [1, 2, 3, 5]);
        assert_eq!(leaving(views.without(NodeId(4)).of(1)), [3]);
    }
}

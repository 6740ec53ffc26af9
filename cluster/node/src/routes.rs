//! The range map of forwarding, from the rows of nodes.
//!
//! Until segments are replicated, all keys belong to the store of the cluster: the storage node with the
//! lowest id, on which the cluster was initialized. It cannot be removed yet, so the map never changes once
//! it is known.

use mlgw_common::NodeId;
use mlgw_formats::schema::{Node, NodeRole};
use mlgw_forwarding::route::RangeMembers;
use mlgw_forwarding::{MapEpoch, RouteTable};
use std::sync::Arc;

/// Epoch of the map.
const KNOWN: MapEpoch = MapEpoch(1);

/// The node that has the bytes of all objects; `None` while no row is known.
pub(crate) fn store_node(nodes: &[Arc<Node>]) -> Option<NodeId> {
    let storage = nodes.iter().filter(|node| node.role() == NodeRole::Storage && !node.is_removed());
    storage.map(|node| node.node_id()).min()
}

/// The map. Without a known node it is of the first epoch and has no member.
pub(crate) fn route_table(nodes: &[Arc<Node>]) -> RouteTable {
    match store_node(nodes) {
        Some(store) => RouteTable::new(KNOWN, RangeMembers { members: vec![store], leader: Some(store) }),
        None => RouteTable::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::{KNOWN, route_table, store_node};
    use mlgw_common::NodeId;
    use mlgw_formats::schema::{Node, NodeRole};
    use mlgw_forwarding::route::RouteTarget;
    use mlgw_forwarding::{MapEpoch, RouteTable};
    use std::sync::Arc;

    fn node(id: u64, role: NodeRole) -> Arc<Node> {
        Arc::new(Node { id, role: role as i32, ..Node::default() })
    }

    #[test]
    fn all_keys_belong_to_the_storage_node_with_the_lowest_id() {
        let nodes = [node(1, NodeRole::Gateway), node(2, NodeRole::Storage), node(3, NodeRole::Storage)];
        assert_eq!(store_node(&nodes), Some(NodeId(2)));
        let table = route_table(&nodes);
        assert_eq!(table.epoch, KNOWN);
        let target = RouteTarget { bucket: Some("bucket"), key: Some("key") };
        assert!(table.is_owner(NodeId(2), target) && !table.is_owner(NodeId(3), target));
        assert!(table.is_owner(NodeId(2), RouteTarget::default()));
        assert_eq!(route_table(&[]), RouteTable::default());
        assert_eq!(RouteTable::default().epoch, MapEpoch(0));
    }
}

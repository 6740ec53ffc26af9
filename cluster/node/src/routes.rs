//! The range map of forwarding, from the rows of nodes.
//!
//! Until open segments are replicated, all keys belong to the store of the cluster ([`STORE_NODE`]). It
//! cannot be removed yet, so the map never changes once it is known.

use mlgw_common::NodeId;
use mlgw_formats::schema::Node;
use mlgw_forwarding::route::RangeMembers;
use mlgw_forwarding::{MapEpoch, RouteTable};
use std::sync::Arc;

/// Epoch of the map.
const KNOWN: MapEpoch = MapEpoch(1);

/// The node that has the bytes of all objects: the server on which `mlgw cluster init` ran. No other node
/// ever gets its id.
pub const STORE_NODE: NodeId = NodeId::SINGLE;

/// The store of the cluster; `None` while this node does not have its row.
pub(crate) fn store_node(nodes: &[Arc<Node>]) -> Option<NodeId> {
    nodes.iter().any(|node| node.node_id() == STORE_NODE).then_some(STORE_NODE)
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
    use super::{KNOWN, STORE_NODE, route_table, store_node};
    use mlgw_common::NodeId;
    use mlgw_formats::schema::Node;
    use mlgw_forwarding::route::RouteTarget;
    use mlgw_forwarding::{MapEpoch, RouteTable};
    use std::sync::Arc;

    fn nodes(ids: &[u64]) -> Vec<Arc<Node>> {
        ids.iter().map(|id| Arc::new(Node { id: *id, ..Node::default() })).collect()
    }

    #[test]
    fn all_keys_belong_to_the_node_on_which_the_cluster_began() {
        assert_eq!(store_node(&nodes(&[1, 2, 3])), Some(STORE_NODE));
        let table = route_table(&nodes(&[1, 2, 3]));
        assert_eq!(table.epoch, KNOWN);
        let target = RouteTarget { bucket: Some("bucket"), key: Some("key") };
        assert!(table.is_owner(STORE_NODE, target) && !table.is_owner(NodeId(2), target));
        assert!(table.is_owner(STORE_NODE, RouteTarget::default()));
    }

    #[test]
    fn without_the_row_of_the_store_there_is_no_member() {
        for known in [nodes(&[]), nodes(&[2, 3])] {
            assert_eq!((store_node(&known), route_table(&known)), (None, RouteTable::default()));
        }
        assert_eq!(RouteTable::default().epoch, MapEpoch(0));
    }
}

//! What the transport takes from the rows of nodes: addresses, and the ids that are refused for ever.

use mlgw_common::NodeId;
use mlgw_formats::schema::Node;
use mlgw_transport::PeerAddress;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Addresses in the rows of nodes that are not removed. A row without a valid address has none here: the
/// node has not reported one yet.
pub(crate) fn addresses(nodes: &[Arc<Node>]) -> BTreeMap<NodeId, PeerAddress> {
    let staying = nodes.iter().filter(|node| !node.is_removed());
    staying.filter_map(|node| Some((node.node_id(), node.address.parse().ok()?))).collect()
}

/// Ids that are removed: by their rows, and those below the newest row whose row made room for another one.
pub(crate) fn removed(nodes: &[Arc<Node>]) -> BTreeSet<NodeId> {
    let known: BTreeSet<u64> = nodes.iter().map(|node| node.id).collect();
    let newest = known.last().copied().unwrap_or(0);
    let without_row = (1..newest).filter(|id| !known.contains(id)).map(NodeId);
    let by_row = nodes.iter().filter(|node| node.is_removed()).map(|node| node.node_id());
    by_row.chain(without_row).collect()
}

#[cfg(test)]
mod tests {
    use super::{addresses, removed};
    use mlgw_common::NodeId;
    use mlgw_formats::schema::{Node, NodeState};
    use std::sync::Arc;

    fn node(id: u64, address: &str, state: NodeState) -> Arc<Node> {
        Arc::new(Node { id, address: address.to_owned(), state: state as i32, ..Node::default() })
    }

    #[test]
    fn removed_ids_have_no_address_and_stay_removed_without_a_row() {
        let nodes = [
            node(1, "one:1", NodeState::Active),
            node(3, "three:1", NodeState::Removed),
            node(4, "", NodeState::Joining),
            node(6, "six:1", NodeState::Leaving),
        ];
        let known = addresses(&nodes);
        let ids: Vec<u64> = known.keys().map(|id| id.0).collect();
        assert_eq!(ids, [1, 6]);
        assert_eq!(removed(&nodes), [2, 3, 5].map(NodeId).into());
        assert_eq!(removed(&[]), [].into());
    }
}

//! The range map of forwarding, from the rows of nodes and buckets.
//!
//! Every storage node serves all keys, with one exception. Requests for remote-backed buckets belong to the
//! duty node, which alone has their clean copies and sends their writes to the origins. A member checks the
//! exception by its own rows of buckets and of the duty node, so a map that is out of date costs a forwarding
//! node one refusal that names the owner. Therefore the map has one epoch only.

use mlgw_common::NodeId;
use mlgw_formats::schema::{Bucket, Node, NodeRole, NodeState};
use mlgw_forwarding::route::RangeMembers;
use mlgw_forwarding::{MapEpoch, RouteTable};
use mlgw_metadata::Catalogue;
use std::sync::Arc;

/// Epoch of the map.
const KNOWN: MapEpoch = MapEpoch(1);

/// The storage nodes that serve requests, or will when they have started, by id. A draining node still serves
/// reads of its own clients, but other nodes forward nothing to it.
pub(crate) fn serving_nodes(nodes: &[Arc<Node>]) -> Vec<NodeId> {
    let serves = |node: &&Arc<Node>| node.role() == NodeRole::Storage && node.state() == NodeState::Active;
    let mut serving: Vec<NodeId> = nodes.iter().filter(serves).map(|node| node.node_id()).collect();
    serving.sort_unstable();
    serving
}

/// The map that follows from the rows of this node.
pub(crate) fn current_table(catalogue: &Catalogue) -> RouteTable {
    let buckets = catalogue.buckets(None, None, usize::MAX);
    route_table(&catalogue.nodes(), catalogue.duty().node_id(), buckets.iter().map(|bucket| &**bucket))
}

/// The map. Without a serving node it is of the first epoch and has no member.
fn route_table<'a>(
    nodes: &[Arc<Node>],
    duty: NodeId,
    buckets: impl IntoIterator<Item = &'a Bucket>,
) -> RouteTable {
    let members = serving_nodes(nodes);
    if members.is_empty() {
        return RouteTable::default();
    }
    let mut table = RouteTable::new(KNOWN, RangeMembers { members, leader: None });
    let at_duty = RangeMembers { members: vec![duty], leader: Some(duty) };
    for bucket in buckets.into_iter().filter(|bucket| bucket.binding.is_some()) {
        table.add_whole_bucket(&bucket.name, at_duty.clone());
    }
    table
}

#[cfg(test)]
mod tests {
    use super::{KNOWN, route_table, serving_nodes};
    use crate::test_nodes::{node, storage};
    use mlgw_common::NodeId;
    use mlgw_formats::schema::{Binding, Bucket, NodeRole, NodeState};
    use mlgw_forwarding::route::RouteTarget;
    use mlgw_forwarding::{MapEpoch, RouteTable};

    fn in_bucket(bucket: &str) -> RouteTarget<'_> {
        RouteTarget { bucket: Some(bucket), key: Some("key") }
    }

    #[test]
    fn every_storage_node_serves_and_remote_backed_buckets_belong_to_the_duty_node() {
        let bound =
            Bucket { name: "bound".to_owned(), binding: Some(Binding::default()), ..Bucket::default() };
        let local = Bucket { name: "local".to_owned(), ..Bucket::default() };
        let table = route_table(&[storage(3), storage(1), storage(2)], NodeId(2), [&bound, &local]);
        assert_eq!(table.epoch, KNOWN);
        for id in [1, 2, 3].map(NodeId) {
            assert!(table.is_owner(id, in_bucket("local")) && table.is_owner(id, in_bucket("unknown")));
            assert!(table.is_owner(id, RouteTarget::default()));
            assert_eq!(table.is_owner(id, in_bucket("bound")), id == NodeId(2));
        }
        assert_eq!(table.members_of(in_bucket("bound")).leader, Some(NodeId(2)));
    }

    #[test]
    fn nodes_that_store_nothing_or_do_not_serve_are_not_in_the_map() {
        let nodes = [
            storage(1),
            node(2, NodeRole::Storage, NodeState::Joining),
            node(3, NodeRole::Gateway, NodeState::Active),
            node(4, NodeRole::Storage, NodeState::Draining),
            node(5, NodeRole::Storage, NodeState::Leaving),
            node(6, NodeRole::Storage, NodeState::Removed),
        ];
        assert_eq!(serving_nodes(&nodes), [NodeId(1)]);
    }

    #[test]
    fn without_rows_of_serving_nodes_there_is_no_member() {
        for known in [vec![], vec![node(1, NodeRole::Storage, NodeState::Joining)]] {
            assert_eq!(route_table(&known, NodeId(1), []), RouteTable::default());
        }
        assert_eq!(RouteTable::default().epoch, MapEpoch(0));
    }
}

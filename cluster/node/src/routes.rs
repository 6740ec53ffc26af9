//! The range map of forwarding, from the rows of nodes and buckets.
//!
//! Every storage node serves all keys, with two exceptions. Requests for remote-backed buckets belong to the
//! duty node, which alone has their clean copies and sends their writes to the origins. Once there are sets,
//! a key belongs to the nodes that have its group. A member checks both by its own rows and groups, so a map
//! that is out of date costs a forwarding node one refusal that names another node. Therefore the map has one
//! epoch only.

use crate::sets::set_rows;
use mlgw_common::NodeId;
use mlgw_formats::schema::{Bucket, Node, NodeRole, NodeState};
use mlgw_forwarding::route::{RangeMembers, RangeRoute};
use mlgw_forwarding::{MapEpoch, RouteTable};
use mlgw_membership::{MemberPlace, SetRows};
use mlgw_metadata::Catalogue;
use std::collections::BTreeMap;
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
    let facts = RouteFacts {
        nodes: &catalogue.nodes(),
        duty: catalogue.duty().node_id(),
        sets: &set_rows(catalogue),
        ranges: &|bucket: &Bucket| catalogue.bucket_ranges(bucket.bucket_id()),
    };
    route_table(&facts, buckets.iter().map(|bucket| &**bucket))
}

/// Function that returns the first key and the group of the ranges of a bucket.
type BucketRanges<'a> = dyn Fn(&Bucket) -> Vec<(Vec<u8>, u32)> + 'a;

/// Facts from which the map follows.
struct RouteFacts<'a> {
    nodes: &'a [Arc<Node>],
    duty: NodeId,
    sets: &'a SetRows,
    ranges: &'a BucketRanges<'a>,
}

/// The map. Without a serving node it is of the first epoch and has no member.
fn route_table<'a>(facts: &RouteFacts<'_>, buckets: impl IntoIterator<Item = &'a Bucket>) -> RouteTable {
    let members = serving_nodes(facts.nodes);
    if members.is_empty() {
        return RouteTable::default();
    }
    let mut table = RouteTable::new(KNOWN, RangeMembers::new(members.clone(), None));
    if !facts.sets.is_empty() {
        let all = members.iter().copied().filter(|node| facts.sets.has_all_groups(*node)).collect();
        table.set_all_groups(RangeMembers::new(all, None));
    }
    let at_duty = RangeMembers::new(vec![facts.duty], Some(facts.duty));
    // Many ranges belong to the same group.
    let mut groups = BTreeMap::new();
    let mut of_group =
        |group: u32| groups.entry(group).or_insert_with(|| group_members(facts, group, &members)).clone();
    for bucket in buckets {
        if bucket.binding.is_some() {
            table.add_whole_bucket(&bucket.name, at_duty.clone());
        } else if !facts.sets.is_empty()
            && let Some(ranges) = ranges_of(facts, bucket, &mut of_group)
            && let Err(error) = table.add_bucket(&bucket.name, ranges)
        {
            tracing::warn!(%error, "requests for a bucket are routed to any node");
        }
    }
    table
}

/// The serving nodes that have a group: those that may vote in it, and the others that have all groups.
fn group_members(facts: &RouteFacts<'_>, group: u32, serving: &[NodeId]) -> RangeMembers {
    let votes = |node: &NodeId| facts.sets.place(group, *node) == MemberPlace::Votes;
    let (members, mut others): (Vec<_>, Vec<_>) = serving.iter().copied().partition(votes);
    others.retain(|node| facts.sets.has_all_groups(*node));
    RangeMembers { members, leader: None, others }
}

/// The ranges of a bucket with the members of their groups; `None` if no node of a group serves.
fn ranges_of(
    facts: &RouteFacts<'_>,
    bucket: &Bucket,
    mut of_group: impl FnMut(u32) -> RangeMembers,
) -> Option<Vec<RangeRoute>> {
    let route = |(begin, group): (Vec<u8>, u32)| {
        let group = of_group(group);
        let is_served = !(group.members.is_empty() && group.others.is_empty());
        let begin = String::from_utf8(begin).ok().filter(|_| is_served)?;
        Some(RangeRoute { begin, group })
    };
    (facts.ranges)(bucket).into_iter().map(route).collect()
}

#[cfg(test)]
mod tests {
    use super::{KNOWN, RouteFacts, route_table, serving_nodes};
    use crate::test_nodes::{in_every_state, node, storage};
    use mlgw_common::NodeId;
    use mlgw_formats::schema::{Binding, Bucket, GroupSet, Node, NodeRole, NodeSet, NodeState};
    use mlgw_forwarding::route::RouteTarget;
    use mlgw_forwarding::{MapEpoch, RouteTable};
    use mlgw_membership::SetRows;
    use std::sync::Arc;

    /// The bucket `split` has its keys from `m` on in group 2; all others are in group 1.
    fn ranges(bucket: &Bucket) -> Vec<(Vec<u8>, u32)> {
        match bucket.name.as_str() {
            "split" => vec![(vec![], 1), (b"m".to_vec(), 2)],
            _ => vec![(vec![], 1)],
        }
    }

    fn facts<'a>(nodes: &'a [Arc<Node>], duty: u64, sets: &'a SetRows) -> RouteFacts<'a> {
        RouteFacts { nodes, duty: NodeId(duty), sets, ranges: &ranges }
    }

    fn in_bucket(bucket: &str) -> RouteTarget<'_> {
        RouteTarget { bucket: Some(bucket), key: Some("key") }
    }

    #[test]
    fn every_storage_node_serves_and_remote_backed_buckets_belong_to_the_duty_node() {
        let bound =
            Bucket { name: "bound".to_owned(), binding: Some(Binding::default()), ..Bucket::default() };
        let local = Bucket { name: "local".to_owned(), ..Bucket::default() };
        let nodes = [storage(3), storage(1), storage(2)];
        let table = route_table(&facts(&nodes, 2, &SetRows::default()), [&bound, &local]);
        assert_eq!(table.epoch, KNOWN);
        let has = |id, target| table.members_of(target).has_node(id);
        for id in [1, 2, 3].map(NodeId) {
            assert!(has(id, in_bucket("local")) && has(id, in_bucket("unknown")));
            assert!(has(id, RouteTarget::default()));
            assert_eq!(has(id, in_bucket("bound")), id == NodeId(2));
        }
        assert_eq!(table.members_of(in_bucket("bound")).leader, Some(NodeId(2)));
    }

    #[test]
    fn with_sets_a_key_belongs_to_the_nodes_that_have_its_group() {
        let set = |id, nodes: &[u64]| Arc::new(NodeSet { id, nodes: nodes.to_vec(), changes: 1 });
        let of_group = GroupSet { set: 1, ..GroupSet::first(2) };
        let sets = SetRows::new([set(0, &[1, 2, 3]), set(1, &[3, 4, 5])], [Arc::new(of_group)]);
        let nodes = [1, 2, 3, 4, 5].map(storage);
        let local = |name: &str| Bucket { name: name.to_owned(), ..Bucket::default() };
        let buckets = [local("whole"), local("split")];
        let table = route_table(&facts(&nodes, 1, &sets), &buckets);
        let members = |bucket, key| {
            let found = table.members_of(RouteTarget { bucket: Some(bucket), key });
            let ids = |nodes: &[NodeId]| nodes.iter().map(|node| node.get()).collect::<Vec<_>>();
            (ids(&found.members), ids(&found.others))
        };
        assert_eq!(members("whole", Some("z")), (vec![1, 2, 3], vec![]));
        assert_eq!(members("whole", None), (vec![1, 2, 3], vec![]));
        assert_eq!(members("split", Some("a")), (vec![1, 2, 3], vec![]));
        let of_last = (vec![3, 4, 5], vec![1, 2]);
        assert_eq!(members("split", Some("z")), of_last, "nodes of the first set have all groups");
        assert_eq!(members("split", None), (vec![1, 2, 3], vec![]), "a listing needs all ranges");
        assert_eq!(members("unknown", None), (vec![1, 2, 3, 4, 5], vec![]));
        let without_first = route_table(&facts(&nodes[3..], 1, &sets), &buckets);
        assert_eq!(without_first.members_of(in_bucket("whole")).members, [4, 5].map(NodeId), "any node");
    }

    #[test]
    fn nodes_that_store_nothing_or_do_not_serve_are_not_in_the_map() {
        assert_eq!(serving_nodes(&in_every_state()), [NodeId(1)]);
    }

    #[test]
    fn without_rows_of_serving_nodes_there_is_no_member() {
        for known in [vec![], vec![node(1, NodeRole::Storage, NodeState::Joining)]] {
            let table = route_table(&facts(&known, 1, &SetRows::default()), []);
            assert_eq!(table, RouteTable::default());
        }
        assert_eq!(RouteTable::default().epoch, MapEpoch(0));
    }
}

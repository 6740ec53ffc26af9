//! Sets of storage nodes, the sets of object groups, and the rebalance that is requested, from memory. They
//! follow the rows of group 0.

use super::{BarrierScope, Catalogue, ProposeError};
use mlgw_common::{BucketId, NodeId, ObjectKey};
use mlgw_formats::command::{AssignGroup, Change, Command, EndRebalance, PutSet, RequestRebalance};
use mlgw_formats::schema::set::FIRST_SET;
use mlgw_formats::schema::{GroupSet, NodeSet, Rebalance};
use std::collections::BTreeSet;
use std::sync::Arc;

impl Catalogue {
    /// All sets, by id; empty while every storage node is a member of every group.
    /// [`Catalogue::node_changed`] reports their changes.
    #[must_use]
    pub fn sets(&self) -> Vec<Arc<NodeSet>> {
        self.inner.resident.sets.read().values().cloned().collect()
    }

    /// True if there are sets. Copies nothing.
    #[must_use]
    pub fn has_sets(&self) -> bool {
        self.inner.resident.has_sets()
    }

    /// The sets of the object groups that were ever assigned to one, by group. All other groups are in the
    /// first set. [`Catalogue::node_changed`] reports their changes.
    #[must_use]
    pub fn group_sets(&self) -> Vec<Arc<GroupSet>> {
        self.inner.resident.group_sets.read().values().cloned().collect()
    }

    /// Another node that has the rows of `scope`, as far as this node knows; `None` if this node has them.
    /// It has those of the groups in which it votes, and all of them if it is in the first set, or there are
    /// no sets.
    #[must_use]
    pub fn other_node_with(&self, scope: BarrierScope<'_>) -> Option<NodeId> {
        let (inner, own) = (&self.inner, self.node());
        if !inner.resident.has_sets() {
            return None;
        }
        let sets = inner.resident.sets.read();
        let first = sets.get(&u64::from(FIRST_SET))?;
        let is_first = first.contains(own);
        let is_here = |group: &u32| {
            let member = inner.groups.get(*group);
            member.is_some_and(|member| is_first || member.voters().contains(&own))
        };
        let group = inner.groups_in(scope).into_iter().find(|group| !is_here(group))?;
        let of_set = sets.get(&u64::from(inner.resident.set_of_group(group).set));
        let listed = first.nodes.iter().chain(of_set.iter().flat_map(|set| &set.nodes)).copied().map(NodeId);
        let leader = inner.groups.get(group).and_then(|member| member.leader());
        leader.into_iter().chain(listed).find(|node| *node != own)
    }

    /// True if the nodes of a set that does not have this node store the bytes of a key, and they vote in its
    /// group. False without sets, and until the votes of a group that moves are there.
    #[must_use]
    pub fn is_stored_elsewhere(&self, bucket: BucketId, key: &ObjectKey) -> bool {
        let (inner, own) = (&self.inner, self.node());
        let resident = &inner.resident;
        if !resident.has_sets() {
            return false;
        }
        let group = resident.group_of(bucket, key.as_bytes());
        let sets = resident.sets.read();
        let Some(set) = sets.get(&u64::from(resident.set_of_group(group).set)) else { return false };
        let voters = || inner.groups.get(group).map(|member| member.voters());
        !set.contains(own) && voters().is_some_and(|voters| voters.iter().all(|node| set.contains(*node)))
    }

    /// The set to whose segments the node `own` appends chunks of a key: that of the key's group if the node
    /// is in it, else the first one if the node is in that, else one in which the group was. `None` if the
    /// node is in none of them. The first set while there are no sets.
    ///
    /// Records of the group may refer to segments of each of them, by the rows of this node. A move of the
    /// group that this node has not applied yet does not end that: the group becomes a guest of the set in
    /// which it was. The end of the guest does, so the node checks the set again when the chunk is stored
    /// ([`Catalogue::may_refer_to`]).
    #[must_use]
    pub fn set_for(&self, own: NodeId, bucket: BucketId, key: &ObjectKey) -> Option<u32> {
        let resident = &self.inner.resident;
        if !resident.has_sets() {
            return Some(FIRST_SET);
        }
        let of = resident.set_of_group(resident.group_of(bucket, key.as_bytes()));
        let sets = resident.sets.read();
        let has_node = |set: &u32| sets.get(&u64::from(*set)).is_some_and(|set| set.contains(own));
        [of.set, FIRST_SET].into_iter().chain(of.guest_of).find(has_node)
    }

    /// True if this node may append a chunk of a key again that is in a segment of `set`, in the background.
    /// False if it would only move the chunk to the first set, because the node has the rows of all groups,
    /// though neither the chunk nor the key's group is in that set.
    #[must_use]
    pub fn keeps_set(&self, bucket: BucketId, key: &ObjectKey, set: u32) -> bool {
        let resident = &self.inner.resident;
        let group_set = || resident.set_of_group(resident.group_of(bucket, key.as_bytes())).set;
        set == FIRST_SET
            || self.set_for(self.node(), bucket, key).is_some_and(|to| to != FIRST_SET)
            || group_set() == FIRST_SET
    }

    /// The sets in which a node is; `None` while there are no sets.
    #[must_use]
    pub fn sets_of(&self, node: NodeId) -> Option<BTreeSet<u32>> {
        let resident = &self.inner.resident;
        let sets = resident.has_sets().then(|| resident.sets.read())?;
        Some(sets.values().filter(|set| set.contains(node)).map(|set| set.id).collect())
    }

    /// True if `scope` has one of `groups`, as far as this node knows. Without groups nothing is looked up.
    #[must_use]
    pub fn has_any_in(&self, scope: BarrierScope<'_>, groups: &BTreeSet<u32>) -> bool {
        !groups.is_empty() && !self.inner.groups_in(scope).is_disjoint(groups)
    }

    /// Completes when a bucket, or the group of a range of keys, changes after this call, even if the change
    /// comes before the first poll.
    pub fn bucket_changed(&self) -> impl Future<Output = ()> + '_ {
        self.inner.resident.bucket_changed.notified()
    }

    /// The ranges of a bucket in order: first key, and group.
    #[must_use]
    pub fn bucket_ranges(&self, bucket: BucketId) -> Vec<(Vec<u8>, u32)> {
        self.inner.resident.ranges(bucket, b"")
    }

    /// Creates a set, or replaces its nodes, if it was changed `changes` times; 0 creates it.
    ///
    /// # Errors
    /// [`Reject::SetChanged`](mlgw_formats::command::Reject::SetChanged) if it was changed meanwhile; if a
    /// node that is added does not store data, or does not serve; those of [`Catalogue::propose`].
    pub async fn put_set(&self, set: u32, nodes: &[NodeId], changes: u64) -> Result<(), ProposeError> {
        let nodes = nodes.iter().map(|node| node.0).collect();
        let put = Change::PutSet(PutSet { set, nodes, changes });
        self.propose(Command::from(put)).await.map(drop)
    }

    /// Assigns an object group to a set, if its set was changed `changes` times.
    ///
    /// # Errors
    /// [`Reject::GroupAssigned`](mlgw_formats::command::Reject::GroupAssigned) if it was changed meanwhile;
    /// [`Reject::NoSuchSet`](mlgw_formats::command::Reject::NoSuchSet);
    /// [`Reject::TooManyGuestSets`](mlgw_formats::command::Reject::TooManyGuestSets); those of
    /// [`Catalogue::propose`].
    pub async fn assign_group(&self, group: u32, set: u32, changes: u64) -> Result<(), ProposeError> {
        let assign = Change::AssignGroup(AssignGroup { group, set, changes });
        self.propose(Command::from(assign)).await.map(drop)
    }

    /// The rebalance that is requested; `None` without one. [`Catalogue::node_changed`] reports its changes.
    #[must_use]
    pub fn rebalance(&self) -> Option<Arc<Rebalance>> {
        self.inner.resident.rebalance()
    }

    /// Requests a rebalance in the name of `by`. It replaces one that was requested before.
    ///
    /// # Errors
    /// Those of [`Catalogue::propose`].
    pub async fn request_rebalance(&self, by: &str) -> Result<(), ProposeError> {
        let requested_ms = self.inner.clock.now().as_millis();
        let rebalance = Rebalance { requested_ms, by: by.to_owned() };
        let request = Change::RequestRebalance(RequestRebalance { rebalance });
        self.propose(Command::from(request)).await.map(drop)
    }

    /// Ends a rebalance, unless another one was requested meanwhile.
    ///
    /// # Errors
    /// Those of [`Catalogue::propose`].
    pub async fn end_rebalance(&self, rebalance: Rebalance) -> Result<(), ProposeError> {
        let end = Change::EndRebalance(EndRebalance { rebalance });
        self.propose(Command::from(end)).await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::super::CatalogueOptions;
    use super::super::testing::{bucket, key, options};
    use super::{BarrierScope, Catalogue, Change, Command, NodeId, ProposeError};
    use crate::apply::is_released;
    use mlgw_common::SegmentId;
    use mlgw_formats::cluster_version::SETS_CLUSTER_VERSION;
    use mlgw_formats::command::{CreateSegment, PutNode, Reject, Reply, SealSegment};
    use mlgw_formats::schema::Node;
    use std::collections::BTreeSet;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn sets_wait_for_their_cluster_version_and_outlive_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let catalogue = Catalogue::open(options(dir.path())).await.unwrap();
        let refused = catalogue.put_set(0, &[NodeId::SINGLE], 0).await;
        let needs = SETS_CLUSTER_VERSION;
        assert_eq!(refused, Err(ProposeError::NotFinalized { needs, has: 1 }));
        catalogue.raise_cluster_version(needs).await.unwrap();
        let changed = catalogue.node_changed();
        catalogue.put_set(0, &[NodeId::SINGLE], 0).await.unwrap();
        changed.await;
        catalogue.put_set(1, &[NodeId::SINGLE], 0).await.unwrap();
        let changed = catalogue.node_changed();
        catalogue.assign_group(3, 1, 0).await.unwrap();
        changed.await;
        assert_eq!(catalogue.rebalance(), None);
        let changed = catalogue.node_changed();
        catalogue.request_rebalance("AK").await.unwrap();
        changed.await;
        let requested = catalogue.rebalance();
        assert!(requested.as_ref().is_some_and(|of| of.by == "AK" && of.requested_ms > 0), "{requested:?}");
        let late = catalogue.assign_group(3, 0, 0).await;
        assert_eq!(late, Err(ProposeError::Rejected(Reject::GroupAssigned { group: 3 })));
        let (sets, groups) = (catalogue.sets(), catalogue.group_sets());
        assert_eq!(sets.iter().map(|set| (set.id, set.changes)).collect::<Vec<_>>(), [(0, 1), (1, 1)]);
        assert_eq!(groups.iter().map(|of| (of.group, of.set)).collect::<Vec<_>>(), [(3, 1)]);
        catalogue.shutdown().await;

        let catalogue = Catalogue::open(options(dir.path())).await.unwrap();
        assert_eq!((catalogue.sets(), catalogue.group_sets()), (sets, groups));
        assert_eq!(catalogue.rebalance(), requested);
        let changed = catalogue.node_changed();
        catalogue.end_rebalance(requested.unwrap().as_ref().clone()).await.unwrap();
        changed.await;
        assert_eq!(catalogue.rebalance(), None);
        catalogue.shutdown().await;
    }

    /// Adds the rows of storage nodes that serve.
    async fn add_nodes(catalogue: &Catalogue, ids: std::ops::RangeInclusive<u64>) {
        for id in ids {
            let put = PutNode { node: Node { id, ..Node::default() } };
            catalogue.propose(Command::from(Change::PutNode(put))).await.unwrap();
        }
    }

    /// Group 1 has the keys of the bucket. It is in set 1 at first, and moves to set 2, and to set 3.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_node_appends_to_a_set_that_has_it_and_to_which_the_group_may_refer() {
        let dir = tempfile::tempdir().unwrap();
        let options = CatalogueOptions { groups: 2, ..options(dir.path()) };
        let catalogue = Catalogue::open(options).await.unwrap();
        let bucket = bucket(&catalogue, "data").await.bucket_id();
        let appends_to = || [1, 2, 3, 4, 5, 6].map(|own| catalogue.set_for(NodeId(own), bucket, &key("k")));
        catalogue.raise_cluster_version(SETS_CLUSTER_VERSION).await.unwrap();
        add_nodes(&catalogue, 2..=6).await;
        assert_eq!(appends_to(), [Some(0); 6], "there are no sets");
        assert_eq!(catalogue.sets_of(NodeId(1)), None);
        for (set, nodes) in [(0, [1, 2]), (1, [2, 3]), (2, [4, 1]), (3, [5, 4])] {
            catalogue.put_set(set, &nodes.map(NodeId), 0).await.unwrap();
        }
        assert_eq!(catalogue.sets_of(NodeId(4)), Some([2, 3].into()));
        assert_eq!(appends_to(), [Some(0), Some(0), None, None, None, None]);
        catalogue.assign_group(1, 1, 0).await.unwrap();
        assert_eq!(appends_to(), [Some(0), Some(1), Some(1), None, None, None]);
        let keeps = |set| catalogue.keeps_set(bucket, &key("k"), set);
        assert!(keeps(0) && !keeps(1), "this node is in the first set alone");
        catalogue.assign_group(1, 2, 1).await.unwrap();
        assert_eq!(appends_to(), [Some(2), Some(0), Some(1), Some(2), None, None], "it was in set 1");
        assert!(keeps(0) && keeps(1), "this node is in set 2");
        catalogue.assign_group(1, 3, 2).await.unwrap();
        assert_eq!(appends_to(), [Some(0), Some(0), Some(1), Some(3), Some(3), None]);
        catalogue.shutdown().await;

        let options = CatalogueOptions { groups: 2, ..super::super::testing::options(dir.path()) };
        let catalogue = Catalogue::open(options).await.unwrap();
        assert_eq!(catalogue.set_for(NodeId(5), bucket, &key("k")), Some(3), "after a restart");
        catalogue.shutdown().await;
    }

    /// A sealed segment of a set.
    async fn segment_of(catalogue: &Catalogue, set: u32) -> SegmentId {
        let create = CreateSegment { node: 1, location: "d".into(), set, ..CreateSegment::default() };
        let created = catalogue.propose(Command::from(Change::CreateSegment(create))).await;
        let Ok(Reply::Segment(record)) = created else { panic!("{created:?}") };
        let seal = SealSegment { segment: record.id, length: 4096, ..SealSegment::default() };
        catalogue.propose(Command::from(Change::SealSegment(seal))).await.unwrap();
        record.segment_id()
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_segment_is_fenced_in_the_groups_that_may_refer_to_it() {
        let dir = tempfile::tempdir().unwrap();
        let options = CatalogueOptions { groups: 4, ..options(dir.path()) };
        let catalogue = Catalogue::open(options).await.unwrap();
        catalogue.raise_cluster_version(SETS_CLUSTER_VERSION).await.unwrap();
        for set in 0..3 {
            catalogue.put_set(set, &[NodeId::SINGLE], 0).await.unwrap();
        }
        for (group, set, changes) in [(1, 1, 0), (2, 1, 0), (2, 2, 1), (3, 2, 0)] {
            catalogue.assign_group(group, set, changes).await.unwrap();
        }
        for (set, referrers) in [(0, vec![0, 1, 2, 3]), (1, vec![1, 2]), (2, vec![2, 3])] {
            let segment = segment_of(&catalogue, set).await;
            let early = catalogue.remove_segment(segment).await;
            assert_eq!(early, Err(ProposeError::Rejected(Reject::SegmentInUse)), "it is not fenced");
            catalogue.fence_segment(segment).await.unwrap();
            let is_fenced = |group: &u32| {
                is_released(&*catalogue.inner.state_of_group(*group).unwrap(), segment).unwrap()
            };
            let fenced: Vec<u32> = (0..4).filter(is_fenced).collect();
            assert_eq!(fenced, referrers, "set {set}");
            assert_eq!(catalogue.segment_usage(segment).unwrap().extents, 0);
            catalogue.remove_segment(segment).await.unwrap();
            assert_eq!(catalogue.segment_record(segment).unwrap(), None);
        }
        catalogue.shutdown().await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn rows_of_a_group_that_is_not_here_are_on_another_node() {
        let dir = tempfile::tempdir().unwrap();
        let options = CatalogueOptions { groups: 2, ..options(dir.path()) };
        let catalogue = Catalogue::open(options).await.unwrap();
        let bucket = bucket(&catalogue, "data").await.bucket_id();
        assert_eq!(catalogue.bucket_ranges(bucket), [(Vec::new(), 1)]);
        let object = key("k");
        let own = BTreeSet::from([0]);
        let scopes = [
            BarrierScope::System,
            BarrierScope::Key(bucket, &object),
            BarrierScope::Bucket(bucket),
            BarrierScope::AllGroups,
            BarrierScope::Groups(&own),
        ];
        let others = || scopes.map(|scope| catalogue.other_node_with(scope).map(NodeId::get));
        catalogue.raise_cluster_version(SETS_CLUSTER_VERSION).await.unwrap();
        assert_eq!(others(), [None; 5], "there are no sets");
        let put = PutNode { node: Node { id: 2, ..Node::default() } };
        catalogue.propose(Command::from(Change::PutNode(put))).await.unwrap();
        catalogue.put_set(0, &[NodeId(2)], 0).await.unwrap();
        assert_eq!(others(), [None; 5], "this node votes in all groups");
        let has_any = |lost: &[u32]| {
            let lost = lost.iter().copied().collect();
            scopes.map(|scope| catalogue.has_any_in(scope, &lost))
        };
        assert_eq!(has_any(&[]), [false; 5]);
        assert_eq!(has_any(&[0]), [true, false, false, true, true]);
        assert_eq!(has_any(&[1, 9]), [false, true, true, true, false]);
        let changed = catalogue.bucket_changed();
        self::bucket(&catalogue, "other").await;
        changed.await;
        let gone = catalogue.inner.groups.remove(1).unwrap();
        assert_eq!(others(), [None, Some(2), Some(2), Some(2), None]);
        gone.shutdown().await.unwrap();
        catalogue.shutdown().await;
    }
}

//! The groups that have a member on this node. They come and go while the catalogue is open.
//!
//! The system group is on every node and stays until the catalogue is shut down.

use crate::raft::group::Group;
use crate::store_error::StoreError;
use arc_swap::ArcSwap;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

pub(crate) use mlgw_formats::schema::set::SYSTEM_GROUP;

fn without_system_group() -> StoreError {
    StoreError("this node has no member of the system group".to_owned())
}

type ById = BTreeMap<u32, Arc<Group>>;

/// Members of this node by group.
pub(super) struct Groups {
    system: Arc<Group>,
    by_id: ArcSwap<ById>,
    /// Serializes changes of the map.
    changing: Mutex<()>,
    /// Members that left the map and have not stopped yet.
    stopping: Mutex<ById>,
}

impl Groups {
    /// Members of a node, by group.
    ///
    /// # Errors
    /// If the node has no member of the system group.
    pub(super) fn new(members: impl IntoIterator<Item = Group>) -> Result<Self, StoreError> {
        let by_id: ById = members.into_iter().map(|member| (member.id, Arc::new(member))).collect();
        let system = by_id.get(&SYSTEM_GROUP).cloned().ok_or_else(without_system_group)?;
        let by_id = ArcSwap::from_pointee(by_id);
        Ok(Self { system, by_id, changing: Mutex::new(()), stopping: Mutex::default() })
    }

    /// The member of the system group.
    pub(super) fn system(&self) -> &Arc<Group> {
        &self.system
    }

    /// The member of the group `id`, if this node has one.
    pub(super) fn get(&self, id: u32) -> Option<Arc<Group>> {
        self.by_id.load().get(&id).cloned()
    }

    /// All members, by id; the system group comes first.
    pub(super) fn all(&self) -> Vec<Arc<Group>> {
        self.by_id.load().values().cloned().collect()
    }

    /// True if this node is the only voter of each of its groups, and they contain every acknowledged change.
    pub(super) fn are_alone(&self) -> bool {
        self.by_id.load().values().all(|group| group.is_alone())
    }

    /// Bytes of log since the last purge, over all groups. Allocates nothing: every proposal calls it.
    pub(super) fn log_bytes(&self) -> u64 {
        self.by_id.load().values().map(|group| group.log_bytes()).sum()
    }

    /// Adds the member of another group. Returns false if this node has one already.
    pub(super) fn add(&self, member: Group) -> bool {
        let _changing = self.changing.lock();
        let mut by_id = ById::clone(&self.by_id.load());
        let is_new = !by_id.contains_key(&member.id);
        if is_new {
            by_id.insert(member.id, Arc::new(member));
            self.by_id.store(Arc::new(by_id));
        }
        is_new
    }

    /// Removes and returns the member of a group other than the system group. Calls in progress keep it open.
    pub(super) fn remove(&self, id: u32) -> Option<Arc<Group>> {
        assert_ne!(id, SYSTEM_GROUP, "the system group stays");
        let _changing = self.changing.lock();
        let mut by_id = ById::clone(&self.by_id.load());
        let removed = by_id.remove(&id);
        self.by_id.store(Arc::new(by_id));
        removed
    }

    /// Removes the member of a group other than the system group, which stops then. Until
    /// [`Groups::end_stop`] it is one of [`Groups::all_open`], which an end of the catalogue flushes.
    pub(super) fn begin_stop(&self, id: u32) -> Option<Arc<Group>> {
        let member = self.get(id)?;
        // First, so that it is never in neither of them.
        self.stopping.lock().insert(id, member);
        self.remove(id)
    }

    /// Forgets a member that has stopped.
    pub(super) fn end_stop(&self, id: u32) {
        self.stopping.lock().remove(&id);
    }

    /// All members that have their files open: those of [`Groups::all`], and those that are stopping.
    pub(super) fn all_open(&self) -> Vec<Arc<Group>> {
        let mut open = self.all();
        open.extend(self.stopping.lock().values().cloned());
        open
    }

    /// True while the member of the group `id` stops, which has its files open.
    pub(super) fn is_stopping(&self, id: u32) -> bool {
        self.stopping.lock().contains_key(&id)
    }
}

#[cfg(test)]
mod tests {
    use crate::catalogue::options::ProposeError;
    use crate::catalogue::testing::{bucket, do_put, key, options};
    use crate::catalogue::{Catalogue, CatalogueOptions};
    use crate::raft::group::{Group, GroupParts};
    use crate::raft::machine::Watcher;
    use crate::store::options as store_options;
    use crate::store::state::StateStore;
    use crate::view::RowReader as _;
    use mlgw_common::{NodeId, SegmentId};
    use mlgw_formats::cluster_version::CLUSTER_VERSION;
    use mlgw_formats::command::{Change, Command, MirrorBucket, PutPartition};
    use mlgw_formats::schema::meta::MetaRow;
    use mlgw_formats::schema::set::FIRST_SET;
    use std::ops::Bound;
    use std::path::Path;
    use std::sync::Arc;

    async fn member(catalogue: &Catalogue, dir: &Path, id: u32) -> Group {
        let inner = catalogue.inner();
        let cache = store_options::cache(1 << 20);
        let parts = GroupParts {
            id,
            node: NodeId::SINGLE.get(),
            log: inner.log.clone(),
            store: StateStore::open(&dir.join(format!("group-{id}")), &cache, 4 << 20).unwrap(),
            watcher: Arc::clone(&inner.resident) as Arc<dyn Watcher>,
            cluster_version: CLUSTER_VERSION,
            fatal: Arc::clone(&inner.fatal),
            peers: None,
            heartbeats: None,
            digest_pace: Arc::default(),
        };
        Group::open(parts).await.unwrap()
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_group_comes_and_goes_while_the_catalogue_is_open() {
        let dir = tempfile::tempdir().unwrap();
        let catalogue = Catalogue::open(options(dir.path())).await.unwrap();
        let bucket = bucket(&catalogue, "data").await;
        do_put(&catalogue, &bucket, "a", 1).await;

        assert!(catalogue.inner().groups.add(member(&catalogue, dir.path(), 1).await));
        let mirror = Command::from(Change::MirrorBucket(MirrorBucket::from(&*bucket)));
        catalogue.inner().propose_to(1, Arc::new(mirror)).await.unwrap();
        let partition = PutPartition { bucket_id: bucket.id, key: b"m".to_vec(), group: 1 };
        let changed = catalogue.bucket_changed();
        catalogue.propose(Command::from(Change::PutPartition(partition))).await.unwrap();
        changed.await;
        do_put(&catalogue, &bucket, "n", 1).await;
        let keys = |catalogue: &Catalogue| {
            let reader = catalogue.reader();
            let found = reader.scan(bucket.bucket_id(), Bound::Unbounded);
            found.map(|found| Some(found.ok()?.0.as_str().to_owned())).collect::<Vec<_>>()
        };
        assert_eq!(keys(&catalogue), [Some("a".to_owned()), Some("n".to_owned())]);
        assert_eq!(catalogue.usage(bucket.bucket_id()).unwrap().objects, 2);

        let gone = catalogue.inner().groups.remove(1).unwrap();
        assert!(catalogue.object(bucket.bucket_id(), &key("a")).unwrap().is_some());
        assert!(catalogue.object(bucket.bucket_id(), &key("o")).is_err(), "another node has the group");
        assert!(catalogue.usage(bucket.bucket_id()).is_err(), "a part of the sum is missing");
        let usages = catalogue.segment_usages().unwrap();
        assert_eq!(usages.total(SegmentId(1), FIRST_SET), None, "its references would count as dead");
        assert_eq!(catalogue.usage_here(bucket.bucket_id()).unwrap().objects, 1);
        let reader = catalogue.reader();
        let mut here = reader.scan(bucket.bucket_id(), Bound::Unbounded).of_own_groups();
        assert_eq!(here.by_ref().map(|found| found.unwrap().0).collect::<Vec<_>>(), [key("a")]);
        assert_eq!(here.skipped_ranges(), 1);
        let mut extents = 0;
        let elsewhere = catalogue.each_extent(&mut |_| {
            extents += 1;
            Ok(())
        });
        assert_eq!((elsewhere.unwrap(), extents), ([1].into(), 1));
        assert!(catalogue.segment_usage(SegmentId(1)).is_err());
        assert!(catalogue.referenced_bytes().is_err());
        let put =
            crate::catalogue::testing::put(crate::catalogue::testing::version(mlgw_common::BodyId(9), 0));
        let put = Command::object(&bucket, &key("n"), crate::catalogue::testing::NOW, put);
        assert_eq!(catalogue.propose(put).await, Err(ProposeError::NotLeader { leader: None }));
        gone.shutdown().await.unwrap();
        drop(gone);
        assert!(catalogue.inner().groups.add(member(&catalogue, dir.path(), 1).await), "it returns");
        assert_eq!(keys(&catalogue).len(), 2);
        catalogue.shutdown().await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_member_that_stops_when_the_catalogue_ends_is_flushed() {
        let dir = tempfile::tempdir().unwrap();
        let options = || CatalogueOptions { groups: 2, ..options(dir.path()) };
        let catalogue = Catalogue::open(options()).await.unwrap();
        let bucket = bucket(&catalogue, "data").await;
        assert_eq!(catalogue.inner().groups_of(bucket.bucket_id()), [1].into());
        do_put(&catalogue, &bucket, "a", 1).await;
        let groups = &catalogue.inner().groups;
        let stopping = groups.begin_stop(1).unwrap();
        assert!(groups.get(1).is_none() && groups.is_stopping(1));
        let applied = || {
            let row = MetaRow::Applied.row();
            (stopping.state().get_flushed(&row).unwrap(), stopping.state().get(&row).unwrap())
        };
        assert_ne!(applied().0, applied().1);
        // The task that stopped it is dropped.
        catalogue.inner().shutdown().await;
        assert_eq!(applied().0, applied().1);
    }
}

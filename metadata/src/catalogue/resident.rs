//! Rows that are small and read by every request, in memory: buckets, access keys, nodes, segments,
//! partitions, sets, datasets, jobs and policy versions; and the most recently read objects.
//!
//! They follow the groups' rows: they change after the write that changed the rows (objects also before it)
//! and before any command is answered, so a caller that got an answer reads its own write.

use super::dead::DeadChunks;
use crate::raft::machine::Watcher;
use crate::row_cache::RowCache;
use crate::store_error::StoreError;
use crate::view::{FreedChunk, RowChanges, RowReader};
use mlgw_common::{BodyId, BucketId, NodeId, SegmentId};
use mlgw_formats::cluster_version::FIRST_CLUSTER_VERSION;
use mlgw_formats::key::{BadKey, Family, parse_number_key};
use mlgw_formats::schema::meta::{ClusterVersion, Counter, MetaRow};
use mlgw_formats::schema::partition::PartitionStart;
use mlgw_formats::schema::segment::SegmentSummary;
use mlgw_formats::schema::set::{FIRST_SET, MemberPlace};
use mlgw_formats::schema::{
    Bucket, BucketState, Credential, Dataset, Duty, GroupSet, Job, Node, NodeSet, Partition, PolicyVersion,
    Rebalance, SegmentRecord, decode, job, partition, segment,
};
use parking_lot::{Mutex, RwLock};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};
use tokio::sync::Notify;

/// Key of the row with the cluster's version.
const CLUSTER_VERSION_ROW: [u8; 2] = [Family::Meta as u8, MetaRow::ClusterVersion as u8];

/// Key of the row with the duty node.
const DUTY_ROW: [u8; 2] = [Family::Meta as u8, MetaRow::Duty as u8];

/// Key of the row with the rebalance that is requested.
const REBALANCE_ROW: [u8; 2] = [Family::Meta as u8, MetaRow::Rebalance as u8];

/// Key of the row with the next node's id.
const NEXT_NODE_ROW: [u8; 2] = [Family::Meta as u8, MetaRow::NextNode as u8];

/// Bytes for objects while rows are loaded that replace all others. None are objects.
const FRESH_OBJECTS_BYTES: usize = 1 << 16;

/// Rows of a family that are loaded at a time.
const LOAD_ROWS: usize = 4096;

/// Number of readers of each pinned body.
#[derive(Debug, Default)]
pub(super) struct Pins(pub(super) Mutex<HashMap<BodyId, u32>>);

impl Pins {
    pub(super) fn is_pinned(&self, body: BodyId) -> bool {
        self.0.lock().contains_key(&body)
    }
}

/// Row families that are kept in memory.
pub(crate) struct Resident {
    /// The node whose tiers the short forms of segments have.
    pub(super) node: NodeId,
    /// The newest cluster version that this build knows.
    pub(super) known_version: u32,
    cluster_version: AtomicU32,
    duty: RwLock<Duty>,
    /// The rebalance that is requested.
    rebalance: RwLock<Option<Arc<Rebalance>>>,
    pub(crate) buckets: RwLock<BTreeMap<String, Arc<Bucket>>>,
    /// Upstreams of the remote-backed buckets; `None` from a change of `buckets` until they are read again.
    /// Locked before `buckets`.
    bound_upstreams: Mutex<Option<Arc<BTreeSet<String>>>>,
    credentials: RwLock<BTreeMap<String, Arc<Credential>>>,
    /// Nodes by id, removed ones that have a row included.
    pub(super) nodes: RwLock<BTreeMap<NodeId, Arc<Node>>>,
    /// The next node's id; 0 if no node ever joined.
    next_node: AtomicU64,
    segments: RwLock<HashMap<SegmentId, SegmentSummary>>,
    partitions: RwLock<BTreeMap<PartitionStart, u32>>,
    /// Sets of nodes by id.
    pub(super) sets: RwLock<BTreeMap<u64, Arc<NodeSet>>>,
    /// True if there are sets. Each append reads it.
    has_sets: AtomicBool,
    /// Sets of object groups by group, for those that were ever assigned to one.
    pub(super) group_sets: RwLock<BTreeMap<u64, Arc<GroupSet>>>,
    pub(super) datasets: RwLock<BTreeMap<String, Arc<Dataset>>>,
    pub(super) jobs: RwLock<BTreeMap<u64, Arc<Job>>>,
    pub(super) policies: RwLock<BTreeMap<u64, Arc<PolicyVersion>>>,
    /// Bodies in the release queues of all groups.
    pub(crate) releases: AtomicI64,
    /// Wakes the job that frees queued bodies.
    pub(crate) release_added: Notify,
    /// Wakes waiters for a change of a bucket, or of a range of keys.
    pub(crate) bucket_changed: Notify,
    /// Wakes waiters for a change of a dataset or a job.
    pub(super) job_changed: Notify,
    /// Wakes waiters for a change of a node, of the duty node, of a set, of the set of a group or of the
    /// rebalance.
    pub(super) node_changed: Notify,
    /// Wakes the duty node to resume a saga that broke off.
    pub(super) saga_broken: Notify,
    /// Bodies that are being read.
    pub(super) pins: Pins,
    /// Chunks that are known to be dead.
    pub(super) dead: DeadChunks,
    /// Cached objects of all groups.
    pub(super) objects: RowCache,
}

impl Resident {
    /// Empty, for the node `node`, whose build knows the cluster version `known_version`, with a cache of
    /// `objects_bytes` bytes for objects.
    pub(crate) fn new(node: NodeId, known_version: u32, objects_bytes: usize) -> Self {
        Self {
            node,
            known_version,
            cluster_version: AtomicU32::new(FIRST_CLUSTER_VERSION),
            duty: RwLock::new(Duty::FIRST),
            rebalance: RwLock::default(),
            buckets: RwLock::default(),
            bound_upstreams: Mutex::default(),
            credentials: RwLock::default(),
            nodes: RwLock::default(),
            next_node: AtomicU64::default(),
            segments: RwLock::default(),
            partitions: RwLock::default(),
            sets: RwLock::default(),
            has_sets: AtomicBool::default(),
            group_sets: RwLock::default(),
            datasets: RwLock::default(),
            jobs: RwLock::default(),
            policies: RwLock::default(),
            releases: AtomicI64::default(),
            release_added: Notify::default(),
            bucket_changed: Notify::default(),
            job_changed: Notify::default(),
            node_changed: Notify::default(),
            saga_broken: Notify::default(),
            pins: Pins::default(),
            dead: DeadChunks::default(),
            objects: RowCache::new(objects_bytes),
        }
    }

    /// The group that holds `key` of `bucket`.
    pub(crate) fn group_of(&self, bucket: BucketId, key: &[u8]) -> u32 {
        let partitions = self.partitions.read();
        if partitions.len() <= 1 {
            return partitions.values().next().copied().unwrap_or(0);
        }
        let at = PartitionStart { bucket, key: key.to_vec() };
        partitions.range(..=at).next_back().map_or(0, |(_, group)| *group)
    }

    /// Ids of the groups that hold ranges of keys.
    pub(crate) fn object_groups(&self) -> BTreeSet<u32> {
        self.partitions.read().values().copied().collect()
    }

    /// Number of ranges of existing buckets in each group that has some. A bucket without a range of its own
    /// counts as one. The range at the very beginning does not count: no bucket needs to be in it.
    pub(crate) fn ranges_by_group(&self) -> BTreeMap<u32, usize> {
        let buckets: Vec<BucketId> = self.buckets.read().values().map(|bucket| bucket.bucket_id()).collect();
        let mut ranges = BTreeMap::new();
        for group in buckets.into_iter().flat_map(|bucket| self.ranges(bucket, b"")).map(|(_, group)| group) {
            *ranges.entry(group).or_default() += 1;
        }
        ranges
    }

    /// Ranges of `bucket` from `key` on, in order: first key and group.
    pub(crate) fn ranges(&self, bucket: BucketId, key: &[u8]) -> Vec<(Vec<u8>, u32)> {
        let at = PartitionStart { bucket, key: key.to_vec() };
        let partitions = self.partitions.read();
        let mut ranges = vec![(key.to_vec(), self.first_group(&partitions, &at))];
        let later = (Bound::Excluded(at), Bound::Unbounded);
        for (start, group) in partitions.range(later).take_while(|(start, _)| start.bucket == bucket) {
            ranges.push((start.key.clone(), *group));
        }
        ranges
    }

    fn first_group(&self, partitions: &BTreeMap<PartitionStart, u32>, at: &PartitionStart) -> u32 {
        partitions.range(..=at).next_back().map_or(0, |(_, group)| *group)
    }

    /// True if group 0 has rows of the whole cluster only: the first range then belongs to another group.
    pub(crate) fn is_divided(&self) -> bool {
        self.partitions.read().get(&PartitionStart::default()).is_some_and(|group| *group != 0)
    }

    /// True if the map of partitions was set up.
    pub(crate) fn is_partitioned(&self) -> bool {
        self.partitions.read().contains_key(&PartitionStart::default())
    }

    /// The version of the cluster.
    pub(crate) fn cluster_version(&self) -> u32 {
        self.cluster_version.load(Ordering::Acquire)
    }

    /// The duty node.
    pub(crate) fn duty(&self) -> Duty {
        *self.duty.read()
    }

    fn set_duty(&self, row: &[u8]) -> Result<(), StoreError> {
        *self.duty.write() = decode(row)?;
        Ok(())
    }

    /// The rebalance that is requested.
    pub(super) fn rebalance(&self) -> Option<Arc<Rebalance>> {
        self.rebalance.read().clone()
    }

    fn set_rebalance(&self, row: Option<&[u8]>) -> Result<(), StoreError> {
        *self.rebalance.write() = row.map(|row| decode(row).map(Arc::new)).transpose()?;
        Ok(())
    }

    fn set_cluster_version(&self, row: &[u8]) -> Result<(), StoreError> {
        let version = decode::<ClusterVersion>(row)?.version;
        if version > self.known_version {
            return Err(StoreError(format!(
                "the cluster has version {version}, and this mlgw knows version {} at most: start the newer \
                 mlgw",
                self.known_version
            )));
        }
        self.cluster_version.store(version, Ordering::Release);
        Ok(())
    }

    /// The next node's id; every lower one from 1 on was allocated. 0 if no node ever joined.
    pub(super) fn next_node(&self) -> u64 {
        self.next_node.load(Ordering::Acquire)
    }

    fn set_next_node(&self, row: &[u8]) -> Result<(), StoreError> {
        self.next_node.store(decode::<Counter>(row)?.next, Ordering::Release);
        Ok(())
    }

    pub(crate) fn bucket(&self, name: &str) -> Option<Arc<Bucket>> {
        self.buckets.read().get(name).cloned()
    }

    /// True if a bucket is being created or deleted.
    pub(super) fn has_unfinished_buckets(&self) -> bool {
        self.buckets.read().values().any(|bucket| bucket.state() != BucketState::Active)
    }

    /// The upstreams of the remote-backed buckets, without buckets that are being created.
    pub(super) fn bound_upstreams(&self) -> Arc<BTreeSet<String>> {
        let mut known = self.bound_upstreams.lock();
        let upstreams = known.get_or_insert_with(|| {
            let buckets = self.buckets.read();
            let visible = buckets.values().filter(|bucket| bucket.state() != BucketState::Creating);
            let bindings = visible.filter_map(|bucket| bucket.binding.as_ref());
            Arc::new(bindings.map(|binding| binding.upstream.clone()).collect())
        });
        Arc::clone(upstreams)
    }

    /// Publishes a change of `buckets`.
    fn buckets_changed(&self) {
        *self.bound_upstreams.lock() = None;
        self.bucket_changed.notify_waiters();
    }

    pub(crate) fn credential(&self, access_key: &str) -> Option<Arc<Credential>> {
        self.credentials.read().get(access_key).cloned()
    }

    pub(crate) fn credentials(&self) -> Vec<Arc<Credential>> {
        self.credentials.read().values().cloned().collect()
    }

    pub(crate) fn segment(&self, id: SegmentId) -> Option<SegmentSummary> {
        self.segments.read().get(&id).copied()
    }

    /// True if there are sets of nodes.
    pub(super) fn has_sets(&self) -> bool {
        self.has_sets.load(Ordering::Acquire)
    }

    fn sets_changed(&self) {
        self.has_sets.store(!self.sets.read().is_empty(), Ordering::Release);
    }

    /// The set of a group.
    pub(super) fn set_of_group(&self, group: u32) -> GroupSet {
        let known = self.group_sets.read().get(&u64::from(group)).cloned();
        known.map_or_else(|| GroupSet::first(group), |of| GroupSet::clone(&of))
    }

    /// The place of this node in a group.
    pub(super) fn place_in(&self, group: u32) -> MemberPlace {
        let sets = self.sets.read();
        let find = |set: u32| sets.get(&u64::from(set)).map(|set| &**set);
        self.set_of_group(group).place(self.node, find)
    }

    /// The nodes of the first set, which have the rows of all groups; none while there are no sets.
    pub(super) fn home_nodes(&self) -> Vec<NodeId> {
        let sets = self.sets.read();
        let first = sets.get(&u64::from(FIRST_SET));
        first.into_iter().flat_map(|set| set.nodes.iter().copied().map(NodeId)).collect()
    }

    fn set(&self, row: &[u8], change: Option<&[u8]>) -> Result<(), StoreError> {
        match row.first().copied() {
            Some(byte) if byte == Family::Bucket as u8 => {
                set(&self.buckets, name(row)?, change.map(|v| decode(v).map(Arc::new)).transpose()?);
                self.buckets_changed();
            }
            Some(byte) if byte == Family::Credential as u8 => {
                set(&self.credentials, name(row)?, change.map(|v| decode(v).map(Arc::new)).transpose()?);
            }
            Some(byte) if byte == Family::Node as u8 => {
                let id = NodeId(parse_number_key(Family::Node, row)?);
                set(&self.nodes, id, change.map(|v| decode(v).map(Arc::new)).transpose()?);
                self.node_changed.notify_waiters();
            }
            Some(byte) if byte == Family::Segment as u8 => {
                let id = segment::key_of(row)?;
                let record: Option<SegmentRecord> = change.map(decode).transpose()?;
                match record {
                    Some(record) => self.segments.write().insert(id, record.summary_for(self.node)?),
                    None => {
                        self.dead.remove_segment(id);
                        self.segments.write().remove(&id)
                    }
                };
            }
            Some(byte) if byte == Family::Partition as u8 => {
                let record: Option<Partition> = change.map(decode).transpose()?;
                set(&self.partitions, partition::parse_row_key(row)?, record.map(|p| p.group));
                // Another group may hold the objects of this range now.
                self.objects.clear();
                self.bucket_changed.notify_waiters();
            }
            Some(byte) if byte == Family::Set as u8 => {
                let id = parse_number_key(Family::Set, row)?;
                set(&self.sets, id, change.map(|v| decode(v).map(Arc::new)).transpose()?);
                self.sets_changed();
                self.node_changed.notify_waiters();
            }
            Some(byte) if byte == Family::GroupSet as u8 => {
                let group = parse_number_key(Family::GroupSet, row)?;
                set(&self.group_sets, group, change.map(|v| decode(v).map(Arc::new)).transpose()?);
                self.node_changed.notify_waiters();
            }
            Some(byte) if byte == Family::Dataset as u8 => {
                set(&self.datasets, name(row)?, change.map(|v| decode(v).map(Arc::new)).transpose()?);
                self.job_changed.notify_waiters();
            }
            Some(byte) if byte == Family::Job as u8 => {
                set(&self.jobs, job::key_of(row)?.1, change.map(|v| decode(v).map(Arc::new)).transpose()?);
                self.job_changed.notify_waiters();
            }
            Some(byte) if byte == Family::Policy as u8 => {
                let number = parse_number_key(Family::Policy, row)?;
                set(&self.policies, number, change.map(|v| decode(v).map(Arc::new)).transpose()?);
            }
            _ => {}
        }
        Ok(())
    }

    fn load(&self, rows: &dyn RowReader, family: Family) -> Result<(), StoreError> {
        let mut from = family.start();
        loop {
            let page = rows.range(&from, &family.end(), LOAD_ROWS)?;
            for (row, value) in &page {
                self.set(row, Some(value))?;
            }
            match page.into_iter().next_back() {
                Some((mut last, _)) => {
                    last.push(0);
                    from = last;
                }
                None => return Ok(()),
            }
        }
    }
}

fn name(row: &[u8]) -> Result<String, StoreError> {
    Ok(String::from_utf8(row[1..].to_vec()).map_err(|_| BadKey)?)
}

fn set<K: Ord, V>(map: &RwLock<BTreeMap<K, V>>, key: K, value: Option<V>) {
    match value {
        Some(value) => map.write().insert(key, value),
        None => map.write().remove(&key),
    };
}

/// Changes of rows that are kept in memory, in the order in which they become visible. The ranges come first,
/// as in [`Resident::replaced`]: a request that finds a new bucket finds its ranges too. Another group of the
/// bucket would accept its keys as well.
fn resident_changes(changes: &RowChanges) -> impl Iterator<Item = (&Vec<u8>, &Option<Vec<u8>>)> {
    let is_range = |row: &[u8]| row.first() == Some(&(Family::Partition as u8));
    let all = changes.range(Family::Bucket.start()..Family::GroupSet.end());
    let ranges = all.clone().filter(move |(row, _)| is_range(row));
    ranges.chain(all.filter(move |(row, _)| !is_range(row)))
}

fn object_rows(changes: &RowChanges) -> impl Iterator<Item = &Vec<u8>> {
    changes.range(Family::Object.start()..Family::Object.end()).map(|(row, _)| row)
}

impl Watcher for Resident {
    fn cluster_version(&self) -> u32 {
        self.cluster_version()
    }

    fn changing(&self, changes: &RowChanges) {
        object_rows(changes).for_each(|row| self.objects.begin_change(row));
    }

    fn changed(&self, group: u32, changes: &RowChanges, freed: &[FreedChunk]) -> Result<(), StoreError> {
        self.dead.record(freed);
        object_rows(changes).for_each(|row| self.objects.end_change(row));
        if changes.range(Family::Release.start()..Family::Release.end()).next().is_some() {
            self.release_added.notify_one();
        }
        if group != 0 {
            return Ok(());
        }
        if let Some(Some(row)) = changes.get(CLUSTER_VERSION_ROW.as_slice()) {
            self.set_cluster_version(row)?;
        }
        if let Some(Some(row)) = changes.get(DUTY_ROW.as_slice()) {
            self.set_duty(row)?;
            self.node_changed.notify_waiters();
        }
        if let Some(row) = changes.get(REBALANCE_ROW.as_slice()) {
            self.set_rebalance(row.as_deref())?;
            self.node_changed.notify_waiters();
        }
        for (row, change) in resident_changes(changes) {
            self.set(row, change.as_deref())?;
        }
        // After the rows: an id below it without a row is that of a removed node.
        if let Some(Some(row)) = changes.get(NEXT_NODE_ROW.as_slice()) {
            self.set_next_node(row)?;
        }
        Ok(())
    }

    fn replaced(&self, group: u32, rows: &dyn RowReader) -> Result<(), StoreError> {
        self.release_added.notify_one();
        self.objects.clear();
        if group != 0 {
            return Ok(());
        }
        if let Some(row) = rows.get(&CLUSTER_VERSION_ROW)? {
            self.set_cluster_version(&row)?;
        }
        if let Some(row) = rows.get(&DUTY_ROW)? {
            self.set_duty(&row)?;
        }
        self.set_rebalance(rows.get(&REBALANCE_ROW)?.as_deref())?;
        // Each map is replaced as a whole: no reader misses a row meanwhile, and so denies what exists.
        let fresh = Self::new(self.node, self.known_version, FRESH_OBJECTS_BYTES);
        let families = [
            Family::Bucket,
            Family::Credential,
            Family::Node,
            Family::Partition,
            Family::Segment,
            Family::Dataset,
            Family::Job,
            Family::Policy,
            Family::Set,
            Family::GroupSet,
        ];
        for family in families {
            fresh.load(rows, family)?;
        }
        let next_node = rows.get(&NEXT_NODE_ROW)?;
        // Before the buckets, so that a request that finds a new bucket finds its ranges too. Another group
        // of the bucket would accept its keys as well.
        *self.partitions.write() = fresh.partitions.into_inner();
        *self.buckets.write() = fresh.buckets.into_inner();
        *self.credentials.write() = fresh.credentials.into_inner();
        *self.nodes.write() = fresh.nodes.into_inner();
        *self.sets.write() = fresh.sets.into_inner();
        *self.group_sets.write() = fresh.group_sets.into_inner();
        self.sets_changed();
        *self.segments.write() = fresh.segments.into_inner();
        *self.datasets.write() = fresh.datasets.into_inner();
        *self.jobs.write() = fresh.jobs.into_inner();
        *self.policies.write() = fresh.policies.into_inner();
        // Another group may hold the objects of a range now.
        self.objects.clear();
        self.buckets_changed();
        self.node_changed.notify_waiters();
        self.job_changed.notify_waiters();
        // After the nodes: an id below it without a row is that of a removed node.
        next_node.map_or(Ok(()), |row| self.set_next_node(&row))
    }
}

impl Resident {
    /// Number of bodies that wait in the release queues.
    pub(crate) fn releases_waiting(&self) -> u64 {
        self.releases.load(Ordering::Relaxed).try_into().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::{Resident, resident_changes};
    use crate::raft::machine::Watcher as _;
    use crate::store_error::StoreError;
    use crate::view::{MemoryRows, Row, RowChanges, RowReader};
    use mlgw_common::{BucketId, NodeId};
    use mlgw_formats::cluster_version::CLUSTER_VERSION;
    use mlgw_formats::schema::{Bucket, BucketState, Partition, bucket, encode, partition};

    /// Rows whose readers find the bucket of `resident` at every read.
    struct WatchedRows<'a> {
        rows: MemoryRows,
        resident: &'a Resident,
    }

    impl RowReader for WatchedRows<'_> {
        fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
            assert!(self.resident.bucket("data").is_some(), "a bucket that exists is missing meanwhile");
            self.rows.get(key)
        }

        fn range(&self, from: &[u8], end: &[u8], max: usize) -> Result<Vec<Row>, StoreError> {
            assert!(self.resident.bucket("data").is_some(), "a bucket that exists is missing meanwhile");
            self.rows.range(from, end, max)
        }
    }

    #[test]
    fn the_ranges_of_a_new_bucket_become_visible_before_it() {
        let start = partition::PartitionStart { bucket: BucketId(7), key: b"m".to_vec() };
        let rows = [bucket::row("data"), partition::row_key(&start), bucket::row("other")];
        let changes: RowChanges = rows.iter().map(|row| (row.clone(), Some(Vec::new()))).collect();
        let visible: Vec<&Vec<u8>> = resident_changes(&changes).map(|(row, _)| row).collect();
        assert_eq!(visible, [&rows[1], &rows[0], &rows[2]]);
    }

    #[test]
    fn rows_that_replace_all_others_are_never_missing_meanwhile() {
        let state = BucketState::Active as i32;
        let found = Bucket { name: "data".into(), id: 7, state, ..Bucket::default() };
        let mut rows = MemoryRows::default();
        rows.0.insert(bucket::row("data"), encode(&found));
        let start = partition::PartitionStart::default();
        rows.0.insert(partition::row_key(&start), encode(&Partition { group: 1 }));
        let resident = Resident::new(NodeId(1), CLUSTER_VERSION, 1 << 16);
        resident.replaced(0, &rows).unwrap();
        assert!(resident.is_partitioned());
        rows.0.remove(&bucket::row("data"));
        let other = Bucket { name: "other".into(), id: 8, state, ..Bucket::default() };
        rows.0.insert(bucket::row("other"), encode(&other));
        let watched = WatchedRows { rows, resident: &resident };
        resident.replaced(0, &watched).unwrap();
        assert!(resident.bucket("data").is_none() && resident.bucket("other").is_some());
    }
}

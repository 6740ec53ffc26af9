//! The catalogue's public interface: propose, read, shut down.
//!
//! [`Catalogue`] is cheap to clone. Reads answer from the applied state without a round through Raft; with
//! one voter that is linearizable, and a member with peers waits at a [`Catalogue::barrier`] first. Names,
//! access keys and segments are small and every request reads them, so they are also kept in memory. The
//! copies in memory change before the command is answered.

#[cfg(test)]
mod allotment_simulation;
mod allotment_steps;
mod allotments;
mod behind;
#[cfg(test)]
mod bench;
pub(crate) mod checkpoints;
mod cluster;
#[cfg(test)]
mod cluster_rows_tests;
#[cfg(test)]
mod cluster_tests;
mod copies;
#[cfg(test)]
mod cut_tests;
mod datasets;
mod dead;
#[cfg(test)]
mod division_tests;
#[cfg(test)]
mod full_disk_tests;
mod groups;
#[cfg(test)]
mod guest_simulation;
mod guest_steps;
mod heartbeats;
mod inner;
mod jobs;
mod known_comparisons;
mod known_usage;
mod leader_work;
mod leases;
#[cfg(test)]
mod leaving_tests;
#[cfg(test)]
mod left_group_tests;
mod log_bound;
#[cfg(test)]
mod log_tests;
mod members;
#[cfg(test)]
mod model;
#[cfg(test)]
pub(crate) mod model_tests;
mod off_set;
#[cfg(test)]
mod off_set_tests;
mod open;
mod opener;
pub mod options;
mod pins;
#[cfg(test)]
mod placement_tests;
mod policies;
#[cfg(test)]
mod quota_cluster_tests;
#[cfg(test)]
mod quota_tests;
mod quotas;
pub mod reader;
mod reader_nodes;
mod readers;
#[cfg(test)]
mod readers_tests;
pub(crate) mod resident;
#[cfg(test)]
mod row_comparison_tests;
mod row_comparisons;
mod row_verdict;
#[cfg(test)]
mod saga_simulation;
mod saga_steps;
#[cfg(test)]
mod saga_tests;
mod sagas;
#[cfg(test)]
mod segment_tests;
mod segment_usages;
mod segments;
mod sets;
mod slice_shares;
#[cfg(test)]
mod split_tests;
mod stop_signal;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
mod unexpected_reply;
mod usage_elsewhere;

pub use crate::durability::Durability;
pub use crate::raft::members::{ChangeMembersError, GroupMembers, MemberRole, MemberStatus};
pub use crate::raft::peers::{CallRefused, MemberLane, MemberPeers, PeerError, PeerFuture, SnapshotBytes};
pub use crate::raft::snapshot_receiver::IncomingSnapshot;
pub use cluster::{NewJoinToken, NodeReport};
pub use copies::CutError;
pub use dead::DeadSet;
pub use known_comparisons::{KnownComparison, RowComparisonCounts};
pub use known_usage::UsageOf;
pub use leases::ReadLeases;
pub use off_set::{GroupChunk, GroupChunks, OffSetUsages};
pub use options::{
    BarrierError, BarrierScope, CatalogueMetrics, CatalogueOptions, CheckpointOptions, CreateBucketError,
    DeleteBucketError, FatalHandler, NewBucket, OpenError, ProposeError,
};
pub use pins::Pin;
pub use reader::{ObjectScan, PageScan, PartScan, Reader, StoredVersion, UploadScan};
pub use row_comparisons::CompareRowsError;
pub use row_verdict::RowComparison;
pub use segment_usages::SegmentUsages;
pub use segments::{ChunkOwner, Reference};

use crate::copy::{Copier, CopyError};
use crate::offline::{ReferencedExtent, bodies};
use crate::store::state::{BlockCaching, StateDb};
use crate::store_error::{ReadError, StoreError};
use crate::view::RowReader;
use groups::SYSTEM_GROUP;
use inner::CatalogueInner;
use mlgw_common::limits::{PUT_ROWS_AGE_MS_MAX, SYSTEM_ROWS_AGE_MS_MAX, UPLOAD_KEY_BYTES};
use mlgw_common::{BodyId, BucketId, BucketName, NodeId, ObjectKey, PartNumber, SegmentId, Timestamp};
use mlgw_formats::cluster_version::SERVING_CLUSTER_VERSION;
use mlgw_formats::command::{Change, Command, ObjectChange, PutUploadKey, Reply};
use mlgw_formats::key::Family;
use mlgw_formats::schema::meta::{EarlierTimelines, MetaRow, Timeline, UploadKey};
use mlgw_formats::schema::release::{Release, ReleaseScope};
use mlgw_formats::schema::segment::SegmentSummary;
use mlgw_formats::schema::usage::{bucket_row, segment_row};
use mlgw_formats::schema::{
    BadRecord, Binding, Bucket, BucketState, BucketUsage, Credential, ObjectVersion, PartRecord,
    SegmentRecord, SegmentUsage, Upload, decode, object, part, release, upload,
};
use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

const SYSTEM_ROWS_AGE_MAX: Duration = Duration::from_millis(SYSTEM_ROWS_AGE_MS_MAX);
const PUT_ROWS_AGE_MAX: Duration = Duration::from_millis(PUT_ROWS_AGE_MS_MAX);

/// The catalogue. Clones share their state.
#[derive(Clone)]
pub struct Catalogue {
    inner: Arc<CatalogueInner>,
}

impl Catalogue {
    /// Opens or creates the catalogue in `options.dir`. When this returns, the log has been applied, and
    /// interrupted bucket creations and deletions have been resumed.
    ///
    /// # Errors
    /// If the directory cannot be read or written, or holds a format that this version does not know.
    pub async fn open(options: CatalogueOptions) -> Result<Self, OpenError> {
        Ok(Self { inner: open::open(options).await? })
    }

    /// The version of the cluster.
    #[must_use]
    pub fn cluster_version(&self) -> u32 {
        self.inner.resident.cluster_version()
    }

    /// The newest cluster version that this node knows: that of the build, unless the options lower it.
    #[must_use]
    pub fn known_cluster_version(&self) -> u32 {
        self.inner.resident.known_version
    }

    /// Raises the version of the cluster: commands of that version are allowed from then on. Every node,
    /// those that are down as well, must have reported that it knows the version; one that does not know it
    /// stops.
    ///
    /// # Errors
    /// [`Reject::VersionNotReported`](mlgw_formats::command::Reject::VersionNotReported); if the version is
    /// lower than the cluster's; those of [`Catalogue::propose`].
    pub async fn raise_cluster_version(&self, version: u32) -> Result<(), ProposeError> {
        self.inner.raise_cluster_version(version).await
    }

    /// The node whose member of each group this is.
    #[must_use]
    pub fn node(&self) -> NodeId {
        self.inner.resident.node
    }

    /// Proposes a command and waits until it is durable and applied. The command determines the group. An
    /// object command that is rejected for a stale epoch or a frozen bucket is proposed again with the
    /// current record of the bucket; every other rejection is returned. Dropping the future does not cancel
    /// the command.
    ///
    /// # Errors
    /// If the command was rejected, too many commands wait already, or the catalogue stops.
    pub async fn propose(&self, command: impl Into<Arc<Command>>) -> Result<Reply, ProposeError> {
        self.inner.propose(command.into()).await
    }

    /// True if this node is the only voter of all of its groups, so that reads need no barrier.
    #[must_use]
    pub fn is_alone(&self) -> bool {
        self.inner.groups.are_alone()
    }

    /// Waits until reads return every change that was acknowledged before the call, by any node. Returns at
    /// once on a server without peers.
    ///
    /// # Errors
    /// If this node does not lead a group of the scope, or cannot confirm that it does.
    pub async fn barrier(&self, scope: BarrierScope<'_>) -> Result<(), BarrierError> {
        self.inner.barrier(scope).await
    }

    /// True if the rows of the system group on this node, such as buckets and access keys, contain every
    /// change that any node acknowledged more than [`SYSTEM_ROWS_AGE_MS_MAX`] ago. If not, a barrier of that
    /// group makes them current. Always true if this node is its only voter. Reads an atomic and a clock.
    #[must_use]
    pub fn has_recent_system_rows(&self) -> bool {
        self.inner.groups.system().has_rows_within(SYSTEM_ROWS_AGE_MAX)
    }

    /// True if the rows on this node of the system group and of the group of `key` contain every change that
    /// any node acknowledged more than [`PUT_ROWS_AGE_MS_MAX`] ago. Barriers of both groups make them so.
    #[must_use]
    pub fn has_recent_rows_for_put(&self, bucket: BucketId, key: &ObjectKey) -> bool {
        let has_recent = |id| {
            let group = self.inner.groups.get(id);
            group.is_some_and(|group| group.has_rows_within(PUT_ROWS_AGE_MAX))
        };
        has_recent(SYSTEM_GROUP) && has_recent(self.inner.resident.group_of(bucket, key.as_bytes()))
    }

    /// Returns a command that changes one key of a bucket, for [`Catalogue::propose`].
    ///
    /// The Last-Modified of an object grows with each version: another node, whose clock differs, may have
    /// written the one before. It stays as sent while a member may be of a build that ignores this, and in a
    /// remote-backed bucket: one node writes it, and compares the time with those of the origin.
    #[must_use]
    pub fn object_command(
        &self,
        bucket: &Bucket,
        key: &ObjectKey,
        now: Timestamp,
        change: ObjectChange,
    ) -> Command {
        let mut command = Command::object(bucket, key, now, change);
        let is_known = self.cluster_version() >= SERVING_CLUSTER_VERSION;
        if let Some(Change::Object(object)) = &mut command.change {
            object.grows_times = is_known && bucket.binding.is_none() && object.has_time();
        }
        command
    }

    /// Creates a bucket in every object group.
    ///
    /// # Errors
    /// If the name is taken or the owner has the maximum number of buckets.
    pub async fn create_bucket(&self, bucket: NewBucket) -> Result<Arc<Bucket>, CreateBucketError> {
        self.inner.create_bucket(bucket).await
    }

    /// Deletes an empty bucket and its uploads in progress.
    ///
    /// # Errors
    /// If the bucket does not exist or is not empty.
    pub async fn delete_bucket(&self, name: &BucketName) -> Result<(), DeleteBucketError> {
        self.inner.delete_bucket(name).await
    }

    /// Changes the binding of a remote-backed bucket from `from` to `to`. In a cluster the duty node does so,
    /// in its term.
    ///
    /// # Errors
    /// [`Reject::BucketBusy`](mlgw_formats::command::Reject::BucketBusy) if the bucket's binding is not
    /// `from` any more; [`Reject::DutyTaken`](mlgw_formats::command::Reject::DutyTaken) if another term has
    /// begun; those of [`Catalogue::propose`].
    pub async fn rebind_bucket(
        &self,
        bucket: &Bucket,
        from: Binding,
        to: Binding,
        duty_term: Option<u64>,
    ) -> Result<Arc<Bucket>, ProposeError> {
        self.inner.rebind_bucket(bucket, from, to, duty_term).await
    }

    /// The bucket `name`, unless it is still being created.
    #[must_use]
    pub fn bucket(&self, name: &str) -> Option<Arc<Bucket>> {
        self.inner.resident.bucket(name).filter(|bucket| bucket.state() != BucketState::Creating)
    }

    /// At most `max` buckets of `owner` (or of all owners), ordered by name, beginning after `after`.
    #[must_use]
    pub fn buckets(&self, owner: Option<&str>, after: Option<&str>, max: usize) -> Vec<Arc<Bucket>> {
        let after = after.map_or(Bound::Unbounded, |name| Bound::Excluded(name.to_owned()));
        let buckets = self.inner.resident.buckets.read();
        let visible = buckets.range((after, Bound::Unbounded)).map(|(_, bucket)| bucket);
        let owned = visible.filter(|bucket| owner.is_none_or(|owner| bucket.owner == owner));
        owned.filter(|bucket| bucket.state() != BucketState::Creating).take(max).cloned().collect()
    }

    /// Names of the upstreams of all remote-backed buckets, from memory. They are collected again only after
    /// a change of a bucket.
    #[must_use]
    pub fn bound_upstreams(&self) -> Arc<BTreeSet<String>> {
        self.inner.resident.bound_upstreams()
    }

    /// Current version of `key`: one lookup in memory, or one point read.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn object(&self, bucket: BucketId, key: &ObjectKey) -> Result<Option<ObjectVersion>, ReadError> {
        let row = object::row(bucket, key.as_bytes());
        let cache = &self.inner.resident.objects;
        if let Some(kept) = cache.get(&row) {
            return Ok(Some(decode(&kept).map_err(StoreError::from)?));
        }
        let ticket = cache.ticket(&row);
        let state = self.inner.state_of(bucket, key.as_bytes())?;
        let Some(value) = state.get_pinned(&row)? else { return Ok(None) };
        let version = decode(&value).map_err(StoreError::from)?;
        cache.insert(ticket, &row, &value);
        Ok(Some(version))
    }

    /// Reader for scans. It keeps the state of each group open, so use it for one request only.
    #[must_use]
    pub fn reader(&self) -> Reader {
        self.reader_with(BlockCaching::Keep)
    }

    /// Reader for scans over most of the catalogue: what they read does not displace what requests read.
    #[must_use]
    pub fn background_reader(&self) -> Reader {
        self.reader_with(BlockCaching::Bypass)
    }

    fn reader_with(&self, caching: BlockCaching) -> Reader {
        let states = self.inner.groups.all().iter().map(|group| (group.id, group.state())).collect();
        Reader::new(Arc::clone(&self.inner.resident), states, caching)
    }

    /// Prevents the map of a body from being freed, by any node, until the pin is dropped. Take the pin
    /// before reading a body that has pages. Look the object up again if a page is missing even so, or if
    /// [`Catalogue::is_being_released`] shows that the pin came too late.
    #[must_use]
    pub fn pin(&self, body: BodyId) -> Pin {
        Pin::new(Arc::clone(&self.inner.resident), body)
    }

    /// True if no record names `body` of `key` any more and its map waits to be freed or is being freed: a
    /// reader that pins the body now may find only a part of the map.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn is_being_released(
        &self,
        bucket: BucketId,
        key: &ObjectKey,
        body: BodyId,
    ) -> Result<bool, ReadError> {
        let state = self.inner.state_of(bucket, key.as_bytes())?;
        let waiting = read::<Release>(&state, &release::row(body))?;
        Ok(waiting.is_some_and(|release| release.scope == ReleaseScope::Whole as i32))
    }

    /// The upload `body` of `key`.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn upload(
        &self,
        bucket: BucketId,
        key: &ObjectKey,
        body: BodyId,
    ) -> Result<Option<Upload>, ReadError> {
        let state = self.inner.state_of(bucket, key.as_bytes())?;
        read(&state, &upload::row(bucket, key.as_bytes(), body))
    }

    /// A part with all its extents, of an upload or of the object that the upload became.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn part(
        &self,
        bucket: BucketId,
        key: &ObjectKey,
        body: BodyId,
        number: PartNumber,
    ) -> Result<Option<PartRecord>, ReadError> {
        let state = self.inner.state_of(bucket, key.as_bytes())?;
        let Some(mut found) = read::<PartRecord>(&state, &part::row(body, number))? else { return Ok(None) };
        if found.paged_extents > 0 {
            let reader = self.reader();
            for page in reader.part_pages(bucket, key, body, number, 0) {
                found.extents.extend(page?.1.extents);
            }
        }
        Ok(Some(found))
    }

    /// Allocates a body id that was never allocated before.
    ///
    /// # Errors
    /// If a new range of ids was needed and could not be leased.
    pub async fn body_id(&self) -> Result<BodyId, ProposeError> {
        self.inner.body_id().await
    }

    /// The key that encrypts upload ids. A catalogue without a key stores `candidate`, which must be random.
    /// Call this before any body id is allocated.
    ///
    /// # Errors
    /// If the key could not be read or stored.
    pub async fn upload_key(&self, candidate: [u8; UPLOAD_KEY_BYTES]) -> Result<UploadKey, OpenError> {
        let kept = || {
            let kept = read::<UploadKey>(&self.inner.groups.system().state(), &MetaRow::UploadKey.row());
            kept.map_err(|error| OpenError::Store(error.to_string()))
        };
        if let Some(key) = kept()? {
            return Ok(key);
        }
        let put = Change::PutUploadKey(PutUploadKey { key: candidate.to_vec() });
        self.propose(Command::from(put)).await.map_err(|error| OpenError::Raft(error.to_string()))?;
        kept()?.ok_or_else(|| OpenError::Store("the key of upload IDs is missing".to_owned()))
    }

    /// The timeline of this catalogue and those that it descends from; `None` if it has no identity.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn timelines(&self) -> Result<Option<(Timeline, EarlierTimelines)>, ReadError> {
        let state = self.inner.groups.system().state();
        let Some(own) = read(&state, &MetaRow::Incarnation.row())? else { return Ok(None) };
        Ok(Some((own, read(&state, &MetaRow::EarlierTimelines.row())?.unwrap_or_default())))
    }

    /// Usage of a bucket, summed over its groups.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn usage(&self, bucket: BucketId) -> Result<BucketUsage, ReadError> {
        let mut usage = BucketUsage::default();
        for state in self.inner.object_states()? {
            let share: Option<BucketUsage> = read(&state, &bucket_row(bucket))?;
            usage.add(&share.unwrap_or_default());
        }
        Ok(usage)
    }

    /// Usage of a bucket, summed over those of its groups that have a member on this node.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn usage_here(&self, bucket: BucketId) -> Result<BucketUsage, ReadError> {
        self.inner.usage_without(&UsageOf::Bucket(bucket), &BTreeSet::new())
    }

    /// Referenced extents and bytes of a segment, summed over the groups that may refer to it.
    ///
    /// # Errors
    /// If the store cannot be read, or one of these groups has no member on this node.
    pub fn segment_usage(&self, segment: SegmentId) -> Result<SegmentUsage, ReadError> {
        let mut usage = SegmentUsage::default();
        for group in self.inner.referrers_of(segment) {
            let state = self.inner.state_of_group(group)?;
            let share: SegmentUsage = read(&state, &segment_row(segment))?.unwrap_or_default();
            usage.add(&share);
        }
        Ok(usage)
    }

    /// Referenced bytes of all segments. Reads each segment's counters.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn referenced_bytes(&self) -> Result<u64, ReadError> {
        let mut bytes = 0;
        for state in self.inner.object_states()? {
            let mut rows = state.rows(&Family::SegmentUsage.start(), &Family::SegmentUsage.end());
            while let Some((_, value)) = rows.next()? {
                bytes += decode::<SegmentUsage>(value).map_err(StoreError::from)?.bytes;
            }
        }
        Ok(bytes)
    }

    /// Records of all segments, ordered by id.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn segments(&self) -> Result<Vec<SegmentRecord>, ReadError> {
        let state = self.inner.groups.system().state();
        let rows = state.range(&Family::Segment.start(), &Family::Segment.end(), usize::MAX)?;
        let records: Result<Vec<SegmentRecord>, BadRecord> =
            rows.iter().map(|(_, value)| decode(value)).collect();
        Ok(records.map_err(StoreError::from)?)
    }

    /// The record of a segment; `None` if there is none.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub fn segment_record(&self, id: SegmentId) -> Result<Option<SegmentRecord>, ReadError> {
        read(&self.inner.groups.system().state(), &mlgw_formats::schema::segment::row(id))
    }

    /// Summary of a segment, from memory.
    #[must_use]
    pub fn segment(&self, id: SegmentId) -> Option<SegmentSummary> {
        self.inner.resident.segment(id)
    }

    /// The access key `access_key`, from memory.
    #[must_use]
    pub fn credential(&self, access_key: &str) -> Option<Arc<Credential>> {
        self.inner.resident.credential(access_key)
    }

    /// All access keys, in order.
    #[must_use]
    pub fn credentials(&self) -> Vec<Arc<Credential>> {
        self.inner.resident.credentials()
    }

    /// Calls `each` with every referenced extent of the groups on this node, in the order of buckets and keys
    /// of each group. Returns the groups whose extents other nodes have. Blocks while it reads the whole
    /// catalogue.
    ///
    /// # Errors
    /// Those of `each`, or if the store cannot be read.
    pub fn each_extent(
        &self,
        each: &mut dyn FnMut(&ReferencedExtent<'_>) -> Result<(), StoreError>,
    ) -> Result<BTreeSet<u32>, ReadError> {
        let elsewhere = self.inner.object_groups_elsewhere();
        self.inner.object_states_here().iter().try_for_each(|state| bodies::each_extent(state, each))?;
        Ok(elsewhere)
    }

    /// Adds a consistent copy of the catalogue, under `prefix`, to the copy that `copier` makes. Every
    /// command that was answered before the call is in it.
    ///
    /// # Errors
    /// If the catalogue cannot be read or the copy cannot be written.
    pub async fn copy_into(&self, copier: Copier, prefix: &str) -> Result<Copier, CopyError> {
        self.inner.copy_into(copier, prefix.to_owned()).await
    }

    /// Adds a copy of the catalogue of a cluster, under `prefix`, to the copy that `copier` makes: states of
    /// all groups, and a log that begins after them. Every command that any node answered before the call is
    /// in it, and every segment and body to which the copied object groups refer is in the copied system
    /// group, if no segment is released meanwhile. A bucket that is deleted meanwhile may have a mirror left.
    /// Mirrors of other buckets may be missing or old, until the catalogue is recovered.
    ///
    /// # Errors
    /// If no majority confirms the newest state, the catalogue cannot be read, or the copy not be written.
    pub async fn copy_cut_into(&self, copier: Copier, prefix: &str) -> Result<Copier, CutError> {
        self.inner.copy_cut_into(copier, prefix.to_owned()).await
    }

    /// Log entries on stable media, over all groups: the floor below which the log must never end. On a
    /// member with peers it is 0.
    #[must_use]
    pub fn synced_entries(&self) -> u64 {
        self.inner.synced_entries()
    }

    /// True if a sync of the log takes longer than a second, or has done so in the last seconds, or while the
    /// log or a state waits for space.
    #[must_use]
    pub fn is_log_slow(&self) -> bool {
        let log = &self.inner.log;
        log.figures().sync_watch.is_slow() || log.space().is_waiting()
    }

    /// Metrics for `/metrics`.
    #[must_use]
    pub fn metrics(&self) -> CatalogueMetrics {
        self.inner.metrics()
    }

    /// Shuts the catalogue down: refuses new commands, finishes those under way, and flushes and syncs
    /// everything, so that the next open replays nothing. Clones fail with [`ProposeError::Stopping`]
    /// afterwards. The directory can be opened again once the last clone and reader are dropped; without any,
    /// that is when this returns.
    pub async fn shutdown(self) {
        self.inner.shutdown().await;
        let closing = self.inner.closing();
        let shared = Arc::downgrade(&self.inner);
        drop(self);
        closing.wait(&shared).await;
    }
}

#[cfg(test)]
impl Catalogue {
    /// Shared state, for tests.
    pub(crate) fn inner(&self) -> &Arc<CatalogueInner> {
        &self.inner
    }
}

fn read<M: prost::Message + Default>(state: &StateDb, row: &[u8]) -> Result<Option<M>, ReadError> {
    let value = state.get_pinned(row)?;
    Ok(value.map(|bytes| decode(&bytes)).transpose().map_err(StoreError::from)?)
}

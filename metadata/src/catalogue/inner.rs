//! State that all clones of a catalogue share, and the path of a proposal through it.

use super::allotments::{Allotments, FullSlice};
use super::checkpoints::Checkpoints;
use super::groups::{Groups, SYSTEM_GROUP};
use super::known_comparisons::RowComparisons;
use super::known_usage::UsageElsewhere;
use super::log_bound::LogBound;
use super::opener::GroupOpener;
use super::options::{BarrierError, BarrierScope, CatalogueMetrics, FatalHandler, ProposeError};
use super::reader_nodes::ReaderQuestions;
use super::resident::Resident;
use super::stop_signal::StopSignal;
use super::unexpected_reply::unreachable_reply;
use crate::raft::error::GroupError;
use crate::raft::queue::AppliedReply;
use crate::store::log::LogStore;
use crate::store::state::StateDb;
use crate::store_error::ReadError;
use mlgw_common::limits::BODY_ID_LEASE;
use mlgw_common::{BodyId, BucketId, Clock, SegmentId};
use mlgw_formats::cluster_version::FIRST_CLUSTER_VERSION;
use mlgw_formats::command::{Change, Command, LeaseBodies, ObjectCommand, Reject, Reply, SetClusterVersion};
use mlgw_formats::log_types::Leadership;
use mlgw_formats::schema::Bucket;
use mlgw_formats::schema::set::FIRST_SET;
use parking_lot::Mutex as SyncMutex;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::task::JoinHandle;

/// Maximum number of times that an object command is proposed again with a fresh copy of its bucket.
const RETRIES_MAX: usize = 10;

/// Longest time that a command waits for its bucket to change before it is proposed again.
const BUCKET_WAIT: Duration = Duration::from_millis(50);

/// openraft's tasks end shortly after its core and release the stores then.
const CLOSE_CHECK: Duration = Duration::from_millis(1);
const CLOSE_CHECKS_MAX: usize = 5_000;

pub(crate) struct CatalogueInner {
    /// The groups that have a member on this node.
    pub(super) groups: Groups,
    pub(super) opener: GroupOpener,
    pub(super) log: LogStore,
    pub(super) resident: Arc<Resident>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) lease_reads: bool,
    pub(super) readers: ReaderQuestions,
    pub(super) usage_elsewhere: UsageElsewhere,
    pub(super) row_comparisons: RowComparisons,
    pub(super) fatal: FatalHandler,
    pub(super) log_bound: Arc<LogBound>,
    pub(super) checkpoints: Checkpoints,
    /// Held while a copy is made, and while the log is purged.
    pub(super) copying: Mutex<()>,
    /// Serializes changes of buckets and quotas that span groups.
    pub(super) saga: Mutex<()>,
    pub(super) allotments: Allotments,
    pub(super) bodies: SyncMutex<Range<u64>>,
    pub(super) leasing: Mutex<()>,
    pub(super) stop: Arc<StopSignal>,
    pub(super) jobs: SyncMutex<Vec<JoinHandle<()>>>,
}

impl CatalogueInner {
    pub(super) fn is_stopping(&self) -> bool {
        self.stop.is_stopped()
    }

    /// Ids of the groups that hold objects or may get some. The system group of a cluster gets none.
    pub(super) fn object_groups(&self) -> BTreeSet<u32> {
        let mut groups = self.resident.object_groups();
        let own = self.groups.all();
        let may_get_some = |id: &u32| self.opener.peers.is_none() || *id != SYSTEM_GROUP;
        groups.extend(own.iter().map(|group| group.id).filter(may_get_some));
        groups
    }

    /// Ids of the groups whose records may refer to segments of a set.
    pub(super) fn referrers(&self, set: u32) -> BTreeSet<u32> {
        let mut groups = self.object_groups();
        groups.retain(|group| self.resident.set_of_group(*group).may_refer_to(set));
        groups
    }

    /// Ids of the groups whose records may refer to a segment.
    pub(super) fn referrers_of(&self, segment: SegmentId) -> BTreeSet<u32> {
        let set = self.resident.segment(segment).map_or(FIRST_SET, |segment| segment.set);
        self.referrers(set)
    }

    /// True if this node has a member of every group that owns a range.
    pub(super) fn has_all_groups(&self) -> bool {
        self.resident.object_groups().iter().all(|id| self.groups.get(*id).is_some())
    }

    /// Log entries on stable media that every start of this node must find. A member with peers names none:
    /// a later leader may replace entries that are synced and not committed.
    pub(super) fn synced_entries(&self) -> u64 {
        match &self.opener.peers {
            Some(_) if !self.groups.are_alone() => 0,
            _ => self.log.synced_entries(),
        }
    }

    /// Ids of the groups that hold keys of a bucket.
    pub(super) fn groups_of(&self, bucket: BucketId) -> BTreeSet<u32> {
        self.resident.ranges(bucket, b"").into_iter().map(|(_, group)| group).collect()
    }

    /// Groups for `count` ranges of a new bucket: all groups in turn, those with the fewest ranges first, and
    /// of those in the order of their ids. Group 0 has rows of the whole server as well, so it is the last of
    /// its equals. Empty if there is only one group, so that its map of partitions stays as it is. A divided
    /// catalogue has no objects in group 0.
    pub(super) fn groups_for_ranges(&self, count: usize) -> Vec<u32> {
        let mut candidates = self.object_groups();
        if self.resident.is_divided() {
            candidates.remove(&SYSTEM_GROUP);
        }
        if candidates.len() <= 1 {
            return Vec::new();
        }
        let ranges = self.resident.ranges_by_group();
        let mut groups: Vec<u32> = candidates.into_iter().collect();
        groups.sort_by_key(|group| (ranges.get(group).copied().unwrap_or_default(), *group == SYSTEM_GROUP));
        groups.into_iter().cycle().take(count).collect()
    }

    /// State of a group.
    pub(super) fn state_of_group(&self, id: u32) -> Result<Arc<StateDb>, ReadError> {
        let group = self.groups.get(id);
        group.map(|group| group.state()).ok_or(ReadError::GroupElsewhere { group: id })
    }

    /// States of all groups that hold objects or may get some. Without one of them, a sum over the groups
    /// would be too low, and referenced bytes would count as dead.
    pub(super) fn object_states(&self) -> Result<Vec<Arc<StateDb>>, ReadError> {
        self.object_groups().into_iter().map(|id| self.state_of_group(id)).collect()
    }

    /// Ids of the groups that hold objects or may get some, and have no member on this node.
    pub(super) fn object_groups_elsewhere(&self) -> BTreeSet<u32> {
        self.object_groups().into_iter().filter(|id| self.groups.get(*id).is_none()).collect()
    }

    /// Ids of the groups that hold objects or may get some, and have a member on this node.
    pub(super) fn object_groups_here(&self) -> BTreeSet<u32> {
        self.object_groups().into_iter().filter(|id| self.groups.get(*id).is_some()).collect()
    }

    /// States of those groups.
    pub(super) fn object_states_here(&self) -> Vec<Arc<StateDb>> {
        let here = self.object_groups().into_iter().filter_map(|id| self.groups.get(id));
        here.map(|group| group.state()).collect()
    }

    /// State of the group that holds `key` of `bucket`.
    pub(super) fn state_of(&self, bucket: BucketId, key: &[u8]) -> Result<Arc<StateDb>, ReadError> {
        self.state_of_group(self.resident.group_of(bucket, key))
    }

    pub(super) async fn propose(self: &Arc<Self>, command: Arc<Command>) -> Result<Reply, ProposeError> {
        if self.is_stopping() {
            return Err(ProposeError::Stopping);
        }
        let Some(Change::Object(object)) = &command.change else {
            return self.propose_to(SYSTEM_GROUP, Arc::clone(&command)).await;
        };
        let group = self.resident.group_of(object.bucket(), object.key.as_bytes());
        let outcome = self.propose_current(group, object, &command).await;
        let Err(ProposeError::Rejected(refused)) = &outcome else { return outcome };
        match FullSlice::of(refused, object.bucket_id, group) {
            // Boxed, so that other commands do not pay for it.
            Some(full) => Box::pin(self.propose_with_room(group, object, &command, full)).await,
            None => outcome,
        }
    }

    /// Proposes an object command, and again if its bucket has changed.
    pub(super) async fn propose_current(
        &self,
        group: u32,
        object: &ObjectCommand,
        command: &Arc<Command>,
    ) -> Result<Reply, ProposeError> {
        match self.propose_to(group, Arc::clone(command)).await {
            Err(ProposeError::Rejected(why @ (Reject::StaleEpoch | Reject::BucketFrozen))) => {
                self.retry(group, object, why).await
            }
            outcome => outcome,
        }
    }

    /// Proposes an object command again with the current record of its bucket. This is safe: the command was
    /// rejected, so it changed nothing, and the bucket has the same id and the same settings that shape the
    /// command.
    async fn retry(
        &self,
        group: u32,
        object: &ObjectCommand,
        mut why: Reject,
    ) -> Result<Reply, ProposeError> {
        for _ in 0..RETRIES_MAX {
            let changed = self.resident.bucket_changed.notified();
            let Some(bucket) = self.bucket_by_id(object.bucket_id) else {
                return Err(Reject::NoSuchBucket.into());
            };
            if bucket.epoch == object.epoch {
                // A deletion is being decided: no other condition rejects a command with the current epoch.
                let _ = mlgw_common::time::timeout(BUCKET_WAIT, changed).await;
            }
            let Some(bucket) = self.bucket_by_id(object.bucket_id) else {
                return Err(Reject::NoSuchBucket.into());
            };
            let again = ObjectCommand { epoch: bucket.epoch, ..object.clone() };
            match self.propose_to(group, Arc::new(Command::from(Change::Object(again)))).await {
                Err(ProposeError::Rejected(again @ (Reject::StaleEpoch | Reject::BucketFrozen))) => {
                    why = again
                }
                outcome => return outcome,
            }
        }
        Err(why.into())
    }

    pub(super) fn bucket_by_id(&self, id: u64) -> Option<Arc<Bucket>> {
        self.resident.buckets.read().values().find(|bucket| bucket.id == id).cloned()
    }

    pub(super) async fn propose_to(&self, group: u32, command: Arc<Command>) -> Result<Reply, ProposeError> {
        self.apply_in(group, command).await.map(|applied| applied.reply)
    }

    /// Like [`CatalogueInner::propose_to`]. Returns the log index too.
    pub(super) async fn apply_in(
        &self,
        group: u32,
        command: Arc<Command>,
    ) -> Result<AppliedReply, ProposeError> {
        self.check_finalized(&command)?;
        self.submit(group, command).await
    }

    /// Proposes a command in the system group, for the log of one leadership only.
    pub(super) async fn propose_under(
        &self,
        leadership: Leadership,
        command: Arc<Command>,
    ) -> Result<Reply, ProposeError> {
        self.apply_under(leadership, command).await.map(|applied| applied.reply)
    }

    /// Like [`CatalogueInner::propose_under`]. Returns the log index too.
    pub(super) async fn apply_under(
        &self,
        leadership: Leadership,
        command: Arc<Command>,
    ) -> Result<AppliedReply, ProposeError> {
        self.check_finalized(&command)?;
        self.log_bound.admit(|| self.log_bytes()).await?;
        self.groups.system().propose_under(leadership, command).await.map_err(propose_error)
    }

    /// Checks that every member knows a command.
    fn check_finalized(&self, command: &Command) -> Result<(), ProposeError> {
        let needs = command.change.as_ref().map_or(FIRST_CLUSTER_VERSION, Change::cluster_version);
        let has = self.resident.cluster_version();
        if needs > has { Err(ProposeError::NotFinalized { needs, has }) } else { Ok(()) }
    }

    /// Raises the version of the cluster, whose members must all know it.
    pub(super) async fn raise_cluster_version(&self, version: u32) -> Result<(), ProposeError> {
        let known = self.resident.known_version;
        if version > known {
            let what = format!("this mlgw knows cluster version {known} at most");
            return Err(Reject::Malformed { what }.into());
        }
        let raise = Command::from(Change::SetClusterVersion(SetClusterVersion { version }));
        self.submit(SYSTEM_GROUP, Arc::new(raise)).await.map(drop)
    }

    async fn submit(&self, group: u32, command: Arc<Command>) -> Result<AppliedReply, ProposeError> {
        self.log_bound.admit(|| self.log_bytes()).await?;
        let Some(group) = self.groups.get(group) else {
            return Err(ProposeError::NotLeader { leader: None });
        };
        group.propose(command).await.map_err(propose_error)
    }

    /// Waits until the groups of `scope` contain every acknowledged change.
    pub(super) async fn barrier(&self, scope: BarrierScope<'_>) -> Result<(), BarrierError> {
        if matches!(scope, BarrierScope::System) {
            return self.groups.system().barrier().await;
        }
        let passing = self.groups_in(scope).into_iter().map(|id| async move {
            let group = self.groups.get(id).ok_or(BarrierError::NotLeader { leader: None })?;
            group.barrier().await
        });
        futures_util::future::try_join_all(passing).await.map(drop)
    }

    /// Ids of the groups of `scope`.
    pub(super) fn groups_in(&self, scope: BarrierScope<'_>) -> BTreeSet<u32> {
        match scope {
            BarrierScope::System => BTreeSet::from([SYSTEM_GROUP]),
            BarrierScope::Key(bucket, key) => {
                BTreeSet::from([self.resident.group_of(bucket, key.as_bytes())])
            }
            BarrierScope::Bucket(bucket) => self.groups_of(bucket),
            BarrierScope::AllGroups => self.object_groups(),
            BarrierScope::Groups(groups) => groups.clone(),
        }
    }

    /// Bytes of log since the last purge, over all groups.
    pub(super) fn log_bytes(&self) -> u64 {
        self.groups.log_bytes()
    }

    pub(super) async fn body_id(&self) -> Result<BodyId, ProposeError> {
        loop {
            if let Some(id) = self.bodies.lock().next() {
                return Ok(BodyId(id));
            }
            let _leasing = self.leasing.lock().await;
            if !self.bodies.lock().is_empty() {
                continue;
            }
            let lease = Command::from(Change::LeaseBodies(LeaseBodies { count: BODY_ID_LEASE }));
            match self.propose_to(SYSTEM_GROUP, Arc::new(lease)).await? {
                Reply::Bodies { first } => *self.bodies.lock() = first..first + BODY_ID_LEASE,
                other => unreachable_reply(&other),
            }
        }
    }

    pub(super) fn metrics(&self) -> CatalogueMetrics {
        let log = self.log.figures();
        let mut metrics = CatalogueMetrics {
            log_syncs: log.syncs.snapshot(),
            log_bytes_appended: log.bytes_appended.load(Ordering::Relaxed),
            releases_waiting: self.resident.releases_waiting(),
            quota_divisions: self.allotments.divided(),
            object_misses: self.resident.objects.misses(),
            log_bytes: self.log_bytes(),
            object_cache_bytes: self.resident.objects.bytes(),
            ..CatalogueMetrics::default()
        };
        for group in self.groups.all() {
            let figures = group.figures();
            metrics.entries_applied += figures.entries.load(Ordering::Relaxed);
            metrics.commands_applied += figures.commands.load(Ordering::Relaxed);
            metrics.commands_rejected += figures.rejected.load(Ordering::Relaxed);
            metrics.batches_tagged += figures.tagged.load(Ordering::Relaxed);
            metrics.snapshots_installed += figures.installed.load(Ordering::Relaxed);
            metrics.snapshots += group.snapshots().load(Ordering::Relaxed);
            metrics.queued += group.queued() as u64;
            metrics.commit_wait.add(&group.wait_times().snapshot());
        }
        metrics
    }

    /// Handles on the stores that must be closed before the directory can be opened again.
    pub(super) fn closing(&self) -> Closing {
        let groups = self.groups.all_open();
        let states = groups.iter().map(|group| group.state().open_token());
        Closing(states.chain([self.log.open_token()]).collect())
    }

    pub(super) async fn shutdown(&self) {
        self.stop.stop();
        self.log.space().end();
        let jobs = std::mem::take(&mut *self.jobs.lock());
        for job in jobs {
            if let Err(error) = job.await {
                tracing::error!(%error, "a background job panicked");
            }
        }
        // The functions may keep this catalogue open.
        self.readers.set_segment_pins(None);
        self.readers.set_pin_of_all(None);
        self.readers.set_policy_check(None);
        for group in self.groups.all_open() {
            if let Err(error) = group.shutdown().await {
                tracing::error!(group = group.id, %error,
                    "failed to flush the state; the next start replays the log");
            }
        }
        let log = self.log.clone();
        let flushed = tokio::task::spawn_blocking(move || {
            let flushed = log.flush();
            log.end();
            flushed
        });
        let flushed = flushed.await;
        if !matches!(flushed, Ok(Ok(()))) {
            tracing::error!("failed to flush the log; the next start recovers it");
        }
    }
}

/// The error of a proposal in a group.
pub(super) fn propose_error(error: GroupError) -> ProposeError {
    match error {
        GroupError::Rejected(reject) => ProposeError::Rejected(reject),
        GroupError::Overloaded => ProposeError::Overloaded,
        GroupError::NotLeader { leader } => ProposeError::NotLeader { leader },
        GroupError::Discarded => ProposeError::NotLeader { leader: None },
        GroupError::UnknownOutcome => ProposeError::UnknownOutcome,
        GroupError::Stopped => ProposeError::Stopping,
    }
}

/// Stores that are closed when their last owner drops them.
pub(super) struct Closing(Vec<Weak<()>>);

impl Closing {
    /// Waits until the stores are closed. Returns early if another clone shares the catalogue.
    pub(super) async fn wait(self, shared: &Weak<CatalogueInner>) {
        for _ in 0..CLOSE_CHECKS_MAX {
            let closed = self.0.iter().all(|store| store.strong_count() == 0);
            // Another clone closes the stores when it is dropped, on a thread that the runtime waits for.
            if closed || shared.strong_count() > 0 {
                return;
            }
            mlgw_common::time::sleep(CLOSE_CHECK).await;
        }
        tracing::warn!("a reader still has the catalogue open");
    }
}

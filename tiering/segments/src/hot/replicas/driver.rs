//! Carries out the decisions about the copies on this node, a few at a time.
//!
//! Each pass marks local replicas in which damage was found, reads all records, and carries out the tasks
//! that follow from them; then the sweep removes redundant files. A task claims its segment, as compaction
//! and moves between tiers do, and reads the record again. It ends with a change of the record that compares
//! the record's counter: if another node was faster, the next pass decides anew. A failed task is repeated
//! later, with a growing pause.
//!
//! While a directory is not used, the replicas in it are left alone: what is missing there is not lost yet.
//!
//! Nothing is persisted. After a power loss the first pass decides from the records and the files.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream;
use mlgw_common::ids::{NodeId, SegmentId};
use mlgw_common::time::{Instant, doubled_wait};
use mlgw_formats::cluster_version::REPLICATION_CLUSTER_VERSION;
use mlgw_formats::schema::{Replica, SegmentRecord};
use mlgw_metadata::{Catalogue, ProposeError};
use mlgw_replication::{
    COPIES, RepairInput, RepairKind, RepairTask, StorageViews, next_tasks, wanted_copies,
};
use parking_lot::Mutex;

use super::Replication;
use super::fetch::{CopyPlan, ReplicaCopy, copy_replica};
use super::home::ReplicaHome;
use super::progress::count;
use super::recorded::{
    RecordedSegments, is_local, marked_replicas, replicas_owned_by, replicas_with, replicas_without,
};
use super::sweep::{ReplicaSweep, SweepContext};
use crate::hot::HotTierInner;
use crate::hot::claims::ClaimOwner;
use crate::hot::compaction::{Compaction, MoveStepError, blocking};
use crate::hot::placing::stoppable_wait::until_stopped;

/// Interval between passes.
const PASS_INTERVAL: Duration = Duration::from_secs(2);
/// Minimum pause between passes as a multiple of the time that the records took: a node with many segments
/// spends at most a twentieth of a core on them.
const PASS_PAUSE_FACTOR: u32 = 20;
/// Maximum duration of the tasks of a pass; after it the next pass reads all records again.
const PASS_MAX: Duration = Duration::from_secs(30);
/// Maximum duration of the marks at the beginning of a pass.
const MARKS_MAX: Duration = Duration::from_secs(5);
/// Tasks at a time: one copy is verified while the bytes of the next one arrive.
const TASKS_AT_ONCE: usize = 2;
/// Maximum number of tasks per pass.
const TASKS_MAX: usize = 64;
/// Pause after the first failure of a task; doubled after each further one.
const RETRY_MS_MIN: u64 = 1_000;
const RETRY_MS_MAX: u64 = 60_000;
/// Failures of a task after which places that a reachable source fails to read count as damaged there.
const UNREADABLE_AFTER: u32 = 3;
/// Time for which damage that no replica can heal is not reported again.
const DAMAGED_PAUSE: Duration = Duration::from_hours(1);

/// Runs the driver until the tier stops or is dropped.
pub(in crate::hot) async fn run(
    tier: Weak<HotTierInner>,
    replication: Arc<Replication>,
    compaction: Arc<Compaction>,
) {
    let mut driver = ReplicaDriver::default();
    let mut pause = PassPause { least: Duration::ZERO, longest: Duration::ZERO };
    loop {
        replication.next_pass(&compaction, pause.least, pause.longest).await;
        let Some(inner) = tier.upgrade().filter(|_| !compaction.is_stopped()) else { return };
        let Some(catalogue) = inner.catalogue.clone() else { return };
        pause = PassPause { least: Duration::ZERO, longest: PASS_INTERVAL };
        if catalogue.cluster_version() < REPLICATION_CLUSTER_VERSION {
            continue;
        }
        count(&replication.counters.passes, 1);
        let views = replication.views();
        let context = PassContext { inner: &inner, catalogue: &catalogue, replication: &replication, views };
        match driver.run_pass(&context).await {
            Ok(next) => pause = next,
            Err(MoveStepError::Stopping) => return,
            Err(_) if compaction.is_stopped() => return,
            Err(error) => tracing::warn!(%error, "a pass over the replicas of this node failed"),
        }
    }
}

#[cfg(test)]
impl Replication {
    /// Number of passes that the driver has begun.
    pub(in crate::hot) fn passes(&self) -> u64 {
        self.counters.passes.load(std::sync::atomic::Ordering::Relaxed)
    }
}

/// Pause until the next pass: the least after a wake-up, and the longest.
#[derive(Clone, Copy)]
struct PassPause {
    least: Duration,
    longest: Duration,
}

/// The parts of the tier that a pass uses, and the storage nodes at its start as each set sees them.
struct PassContext<'a> {
    inner: &'a Arc<HotTierInner>,
    catalogue: &'a Catalogue,
    replication: &'a Arc<Replication>,
    views: StorageViews,
}

/// A task that failed.
struct TaskBackoff {
    failures: u32,
    due: Instant,
}

/// The result of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TaskEnd {
    /// The record was changed.
    Done,
    /// Another worker has claimed the segment.
    Claimed,
    /// The record has changed since the decision.
    Outdated,
    /// It is repeated later.
    Failed,
    /// The pass has taken too long: the next one decides anew.
    Deferred,
}

/// The driver of the copies of this node.
#[derive(Default)]
struct ReplicaDriver {
    backoff: Mutex<HashMap<SegmentId, TaskBackoff>>,
    /// Copies of this process that no record lists yet, because another node was faster.
    verified: Mutex<HashMap<SegmentId, ReplicaCopy>>,
    /// Segments with damage that no replica can heal, and the time at which that was found.
    damaged: Mutex<HashMap<SegmentId, Instant>>,
    sweep: ReplicaSweep,
}

impl ReplicaDriver {
    async fn run_pass(&mut self, context: &PassContext<'_>) -> Result<PassPause, MoveStepError> {
        self.mark_suspects(context).await?;
        let begun = Instant::now();
        let (recorded, tasks) = self.decide(context).await?;
        let least = begun.elapsed() * PASS_PAUSE_FACTOR;
        let changed: Vec<SegmentId> = tasks.iter().map(|task| task.segment).collect();
        let has_more = self.carry_out_all(context, tasks).await?;
        // Of all nodes: a set that is too small gives up no copy elsewhere.
        let wanted_copies = wanted_copies(COPIES, context.views.all()).max(1);
        let PassContext { inner, catalogue, replication, views } = context;
        let sweep = SweepContext { inner, catalogue, replication, views, wanted_copies };
        for removed in self.sweep.run(&sweep, &recorded).await? {
            self.verified.lock().remove(&removed);
        }
        self.sweep.add_listed(changed);
        let longest = if has_more { least } else { PASS_INTERVAL.max(least) };
        Ok(PassPause { least, longest })
    }

    /// Reads the records and returns them with the tasks that follow from them.
    async fn decide(
        &self,
        context: &PassContext<'_>,
    ) -> Result<(RecordedSegments, Vec<RepairTask>), MoveStepError> {
        let now = Instant::now();
        let busy: BTreeSet<SegmentId> = {
            let backoff = self.backoff.lock();
            backoff.iter().filter(|(_, failed)| failed.due > now).map(|(segment, _)| *segment).collect()
        };
        let (inner, catalogue) = (context.inner.clone(), context.catalogue.clone());
        let nodes = context.views.clone();
        let decided = blocking(move || {
            let own = inner.node;
            let recorded = RecordedSegments::of(own, &catalogue.segments()?);
            let mut busy = busy;
            busy.extend(inner.in_refused_directories(recorded.listed.iter().copied())?);
            let segments = &recorded.facts;
            let (copies, tasks_max) = (COPIES, TASKS_MAX);
            let input = RepairInput { own, copies, nodes: &nodes, segments, busy: &busy, tasks_max };
            let mut tasks = next_tasks(&input);
            // Without a directory in use there is no place for a copy.
            tasks.retain(|task| task.kind != RepairKind::Copy || inner.used_directories().next().is_some());
            Ok((recorded, tasks))
        });
        let (recorded, tasks) = decided.await?;
        self.backoff.lock().retain(|segment, _| recorded.contains(*segment));
        self.verified.lock().retain(|segment, _| recorded.contains(*segment));
        Ok((recorded, tasks))
    }

    /// Carries out tasks for a limited time. Returns true if there is more to do immediately.
    async fn carry_out_all(
        &self,
        context: &PassContext<'_>,
        tasks: Vec<RepairTask>,
    ) -> Result<bool, MoveStepError> {
        let (until, is_full) = (Instant::now() + PASS_MAX, tasks.len() >= TASKS_MAX);
        let carried_out = stream::iter(tasks).map(|task| self.carry_out_before(context, task, until));
        let mut ends = pin!(carried_out.buffer_unordered(TASKS_AT_ONCE));
        let (mut has_progress, mut has_more) = (false, false);
        while let Some(end) = ends.next().await {
            match end? {
                TaskEnd::Done => has_progress = true,
                TaskEnd::Outdated | TaskEnd::Deferred => has_more = true,
                TaskEnd::Claimed | TaskEnd::Failed => {}
            }
        }
        Ok(has_more || (is_full && has_progress))
    }

    /// Carries out a task unless it is too late for that, and repeats it later if it fails.
    ///
    /// # Errors
    /// Only when the tier stops.
    async fn carry_out_before(
        &self,
        context: &PassContext<'_>,
        task: RepairTask,
        until: Instant,
    ) -> Result<TaskEnd, MoveStepError> {
        if context.inner.compaction.is_stopped() {
            return Err(MoveStepError::Stopping);
        }
        if Instant::now() > until {
            return Ok(TaskEnd::Deferred);
        }
        let end = self.carry_out(context, &task).await;
        if context.inner.compaction.is_stopped() && end.is_err() {
            return Err(MoveStepError::Stopping);
        }
        match end {
            Ok(end) => {
                if end != TaskEnd::Claimed {
                    self.backoff.lock().remove(&task.segment);
                }
                Ok(end)
            }
            Err(error) => {
                self.retry_later(context, &task, &error);
                Ok(TaskEnd::Failed)
            }
        }
    }

    fn retry_later(&self, context: &PassContext<'_>, task: &RepairTask, error: &MoveStepError) {
        count(&context.replication.counters.failed_tasks, 1);
        let now = Instant::now();
        let mut backoff = self.backoff.lock();
        let failed = backoff.entry(task.segment).or_insert(TaskBackoff { failures: 0, due: now });
        failed.failures += 1;
        failed.due = now + doubled_wait(failed.failures, RETRY_MS_MIN, RETRY_MS_MAX);
        tracing::warn!(segment = %task.segment, kind = ?task.kind, failed.failures, %error,
            "a task for a replica of this node failed; it is repeated");
    }

    async fn carry_out(
        &self,
        context: &PassContext<'_>,
        task: &RepairTask,
    ) -> Result<TaskEnd, MoveStepError> {
        let claim = context.inner.claims.claim(task.segment, ClaimOwner::Replication, 0);
        let Some(_claim) = claim else { return Ok(TaskEnd::Claimed) };
        let record = context.catalogue.segment_record(task.segment)?;
        let Some(record) = record.filter(|record| record.changes == task.changes) else {
            return Ok(TaskEnd::Outdated);
        };
        let done = match task.kind {
            RepairKind::Copy => self.copy(context, &record, &task.sources).await,
            RepairKind::Heal => self.heal(context, &record, &task.sources).await,
            RepairKind::TakeOver => take_over(context, &record).await,
            RepairKind::Forget => forget_removed(context, &record).await,
            RepairKind::Drop => self.drop_replica(context, &record).await,
        };
        match done {
            Err(MoveStepError::Propose(ProposeError::Rejected(why))) => {
                tracing::debug!(segment = %task.segment, %why, "another change of the record was faster");
                Ok(TaskEnd::Outdated)
            }
            done => done.map(|()| TaskEnd::Done),
        }
    }

    /// Adds a replica of this node to the record.
    async fn copy(
        &self,
        context: &PassContext<'_>,
        record: &SegmentRecord,
        sources: &[NodeId],
    ) -> Result<(), MoveStepError> {
        let (inner, segment) = (context.inner, record.segment_id());
        let verified = self.verified.lock().get(&segment).copied();
        let copied = match verified.filter(|copied| copied.home.has_file(inner, segment)) {
            Some(copied) => copied,
            None => self.fetch(context, record, sources).await?,
        };
        self.verified.lock().insert(segment, copied);
        let own = Replica { is_suspect: copied.is_partial, ..copied.home.replica(inner) };
        let replicas = replicas_with(record, own);
        context.catalogue.set_replicas(segment, record.changes, replicas).await?;
        self.verified.lock().remove(&segment);
        self.remember_damage(segment, copied);
        count(&context.replication.counters.copied_segments, 1);
        tracing::debug!(%segment, "copied a segment from another node");
        Ok(())
    }

    /// Heals the local replica and clears its mark.
    async fn heal(
        &self,
        context: &PassContext<'_>,
        record: &SegmentRecord,
        sources: &[NodeId],
    ) -> Result<(), MoveStepError> {
        let (inner, segment) = (context.inner, record.segment_id());
        let healed = self.fetch(context, record, sources).await?;
        if healed.is_partial {
            // The mark stays: a replica that is not read now may have what is missing.
            return Err(io::Error::other("a replica with missing bytes could not be read").into());
        }
        let replicas = replicas_with(record, healed.home.replica(inner));
        context.catalogue.set_replicas(segment, record.changes, replicas).await?;
        self.remember_damage(segment, healed);
        count(&context.replication.counters.healed_segments, 1);
        context.replication.healed.lock().insert(segment);
        tracing::info!(%segment, healed.damaged_bytes, "healed the replica of a segment");
        Ok(())
    }

    /// Removes the local replica from the record; the sweep removes its file. The owner keeps its replica and
    /// heals it: the record names it as the node that appends, compacts and moves.
    async fn drop_replica(
        &self,
        context: &PassContext<'_>,
        record: &SegmentRecord,
    ) -> Result<(), MoveStepError> {
        let own = context.inner.node;
        if record.is_owned_by(own) {
            let nodes = context.views.all().iter().filter(|node| node.is_reachable && node.node != own);
            let has_replica = |node: &NodeId| record.replica_of(*node).is_some();
            let is_marked = |node: &NodeId| record.replica_of(*node).is_some_and(|of| of.is_suspect);
            let mut sources: Vec<NodeId> = nodes.map(|node| node.node).filter(has_replica).collect();
            sources.sort_by_key(is_marked);
            return self.heal(context, record, &sources).await;
        }
        let mut replicas = record.replicas.clone();
        replicas.retain(|replica| replica.node != own.0);
        assert!(!replicas.is_empty(), "the last replica of a segment is never dropped");
        Ok(context.catalogue.set_replicas(record.segment_id(), record.changes, replicas).await?)
    }

    async fn fetch(
        &self,
        context: &PassContext<'_>,
        record: &SegmentRecord,
        sources: &[NodeId],
    ) -> Result<ReplicaCopy, MoveStepError> {
        let PassContext { inner, replication, views, .. } = context;
        let others = views.all().iter().map(|node| node.node).filter(|node| *node != inner.node);
        let failures = self.backoff.lock().get(&record.segment_id()).map_or(0, |failed| failed.failures);
        let plan = CopyPlan {
            record,
            sources,
            holders: others.filter(|node| record.replica_of(*node).is_some()).collect(),
            accepts_unreadable: failures >= UNREADABLE_AFTER,
        };
        let copied = until_stopped(inner, copy_replica(inner, replication, &plan)).await?;
        count(&replication.counters.damaged_bytes, copied.damaged_bytes);
        Ok(copied)
    }

    fn remember_damage(&self, segment: SegmentId, copy: ReplicaCopy) {
        if copy.damaged_bytes > 0 {
            self.damaged.lock().insert(segment, Instant::now());
        }
    }

    /// Marks the local replicas of suspicious segments in their records.
    async fn mark_suspects(&self, context: &PassContext<'_>) -> Result<(), MoveStepError> {
        self.damaged.lock().retain(|_, found| found.elapsed() < DAMAGED_PAUSE);
        context.replication.add_suspects(context.inner.reader.take_unreadable());
        let suspects = std::mem::take(&mut *context.replication.suspects.lock());
        let (begun, mut is_refused) = (Instant::now(), false);
        for segment in suspects {
            // The next pass continues. Without a leader no other mark is accepted either.
            if self.damaged.lock().contains_key(&segment) || is_refused || begun.elapsed() > MARKS_MAX {
                context.replication.add_suspects([segment]);
                continue;
            }
            match mark_suspect(context, segment).await {
                Ok(SuspectMark::Made) => {}
                Ok(SuspectMark::NotYet) => context.replication.add_suspects([segment]),
                Err(error) => {
                    is_refused = !matches!(error, MoveStepError::Propose(ProposeError::Rejected(_)));
                    context.replication.add_suspects([segment]);
                    tracing::debug!(%segment, %error, "marking the replica of a segment as suspect");
                }
            }
            if context.inner.compaction.is_stopped() {
                return Err(MoveStepError::Stopping);
            }
        }
        Ok(())
    }
}

/// Makes this node the owner of a sealed segment whose owner leaves or was removed.
///
/// The former owner may be compacting or moving the segment. That is harmless: its moves compare the change
/// counter of the record, as this change does. Relocations of chunks compare the location of each chunk. The
/// record is removed only when no group refers to the segment, and then it does not matter which node does
/// it.
async fn take_over(context: &PassContext<'_>, record: &SegmentRecord) -> Result<(), MoveStepError> {
    let PassContext { inner, catalogue, .. } = context;
    let (segment, own) = (record.segment_id(), inner.node);
    let is_known = |node: NodeId| context.views.all().iter().any(|of| of.node == node);
    if record.owner().is_some_and(|owner| !is_known(owner) && !catalogue.is_removed_node(owner)) {
        return Err(io::Error::other("the owner is unknown and was not removed").into());
    }
    if let Some(stored) = record.replicas.first().filter(|_| record.is_at_upstream()) {
        if !inner.remote_tier.upstreams().contains_key(&stored.location) {
            let what = format!("the upstream {} with the segment is not configured here", stored.location);
            return Err(io::Error::other(what).into());
        }
        let to = Replica { node: own.0, ..stored.clone() };
        catalogue.place_segment(segment, record.changes, stored.clone(), to).await?;
        inner.remote_tier.invalidate(segment);
    } else {
        let listed = record.replica_of(own).cloned();
        assert!(listed.is_some() || record.length == 0, "an owner has a file of a segment with bytes");
        let replica = listed.unwrap_or_else(|| ReplicaHome::Hot.replica(inner));
        let replicas = replicas_owned_by(record, replica);
        catalogue.set_replicas(segment, record.changes, replicas).await?;
    }
    tracing::info!(%segment, from = ?record.owner(), "took over a segment of a node that leaves");
    Ok(())
}

/// Removes the entries of removed nodes from the record of a segment that this node owns.
async fn forget_removed(context: &PassContext<'_>, record: &SegmentRecord) -> Result<(), MoveStepError> {
    let is_known = |node: NodeId| context.views.all().iter().any(|of| of.node == node);
    let replicas =
        replicas_without(record, |node| !is_known(node) && context.catalogue.is_removed_node(node));
    if replicas.is_empty() || replicas.len() == record.replicas.len() {
        return Err(io::Error::other("the record lists a node that is unknown and was not removed").into());
    }
    Ok(context.catalogue.set_replicas(record.segment_id(), record.changes, replicas).await?)
}

/// The result of marking a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SuspectMark {
    /// The record marks the replica, or has none of this node.
    Made,
    /// The replica is the only one, or the segment is open: it is marked when there is another. Or it may be
    /// in a directory that is not used.
    NotYet,
}

async fn mark_suspect(context: &PassContext<'_>, segment: SegmentId) -> Result<SuspectMark, MoveStepError> {
    let Some(record) = context.catalogue.segment_record(segment)? else { return Ok(SuspectMark::Made) };
    let own = context.inner.node;
    let of = context.inner.clone();
    if blocking(move || Ok(of.may_be_in_refused_directory(segment))).await? {
        return Ok(SuspectMark::NotYet);
    }
    let Some(replicas) = marked_replicas(&record, own) else {
        let is_here = record.replica_of(own).is_some_and(|replica| is_local(replica) && !replica.is_suspect);
        return Ok(if is_here { SuspectMark::NotYet } else { SuspectMark::Made });
    };
    tracing::warn!(%segment, "the replica of a segment on this node is suspect");
    context.catalogue.set_replicas(segment, record.changes, replicas).await?;
    Ok(SuspectMark::Made)
}

//! Recovery of open segments whose writer is gone: closes enough of their replicas and seals them.
//!
//! A node recovers the segments that an earlier process of it left open. Those of nodes that do not answer
//! for a while are recovered by the leader of the system group, and by the first storage node that answers.
//! All replicas in the record are closed at the same time. The seal follows from their answers by a pure
//! rule, `decide_seal` of `mlgw-replication`: it names all replicas except those without a file. Those that
//! may lack bytes are marked, and the repair of sealed segments pulls what they lack. If the last record of a
//! replica may be damaged, the seal waits for the nodes that may have it.
//!
//! The same pass gives up open segments of this node that have fewer replicas than they could have, because a
//! storage node has joined or returned: the next segments have more. It also gives up those with a replica on
//! a node that leaves, all those of this node if it leaves itself. A node outside of a segment's set is one
//! that leaves, for this segment.
//!
//! A removed node never answers. If the others are too few to have every acknowledged byte, the segment is
//! sealed at what they have, and the possible loss is logged as an error.
//!
//! Any node may recover any segment at any time without a further loss: the first seal decides, and every
//! seal has all acknowledged bytes that are left. Nothing is stored. After a power loss the next pass begins
//! anew, and closed replicas give the same answers.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::stream::FuturesUnordered;
use futures_util::{StreamExt as _, stream};
use mlgw_common::Timestamp;
use mlgw_common::ids::{NodeId, SegmentId};
use mlgw_common::time::{Instant, timeout, timeout_at};
use mlgw_formats::schema::{Replica, SegmentRecord, SegmentState};
use mlgw_formats::segment_calls::{CloseReplica, ClosedReplica};
use mlgw_metadata::Catalogue;
use mlgw_replication::{
    COPIES, ClosedAnswer, ListedReplicas, RecoveredSeal, SealWait, SealedReplica, StorageNode, StorageViews,
    decide_seal, needed_answers,
};

use super::Replication;
use super::lost_files;
use crate::hot::compaction::{Compaction, MoveStepError, blocking};
use crate::hot::map::MapError;
use crate::hot::placing::stoppable_wait::until_stopped;
use crate::hot::{HotTier, HotTierInner};

/// Interval between passes.
const PASS_INTERVAL: Duration = Duration::from_secs(2);
/// Minimum pause between passes as a multiple of the time that the records took.
const PASS_PAUSE_FACTOR: u32 = 20;
/// Time for which a node does not answer before its segments are recovered.
pub(in crate::hot) const UNREACHABLE_MIN: Duration = Duration::from_secs(10);
/// Segments that are recovered at the same time.
const RECOVERIES_MAX: usize = 4;
/// Wait for the remaining replicas when enough are closed: those that answer need no copy.
const REMAINING_WAIT_MAX: Duration = Duration::from_secs(5);
/// Age at which an open segment with fewer replicas than there are nodes is given up.
const NARROW_MS_MAX: i64 = 60_000;
/// Interval at which a segment whose seal waits for answers is reported.
const REPORT_INTERVAL: Duration = Duration::from_secs(30);

/// Runs the recovery until the tier stops or is dropped.
pub(in crate::hot) async fn run(
    tier: Weak<HotTierInner>,
    replication: Arc<Replication>,
    compaction: Arc<Compaction>,
) {
    let mut recovery = OpenSegmentRecovery::default();
    loop {
        let Some(inner) = tier.upgrade() else { return };
        let pass = recovery.run_pass(&inner, &replication, Instant::now());
        let pause = match until_stopped(&inner, pass).await {
            Ok(pause) => pause,
            Err(MoveStepError::Stopping) => return,
            Err(error) => {
                tracing::warn!(%error, "a pass over open segments failed");
                PASS_INTERVAL
            }
        };
        drop(inner);
        if timeout(pause, compaction.until_stopped()).await.is_ok() {
            return;
        }
    }
}

/// State of the recovery between passes.
#[derive(Default)]
pub(in crate::hot) struct OpenSegmentRecovery {
    /// Owners of open segments that do not answer, and the begin of that.
    unreachable: HashMap<NodeId, Instant>,
    /// Segments whose recovery has begun, which is logged once.
    begun: BTreeSet<SegmentId>,
    /// Segments whose seal waits for answers, and the time of their last report.
    reported: HashMap<SegmentId, Instant>,
}

impl OpenSegmentRecovery {
    /// Recovers the segments that are due at `now`, which increases from pass to pass. Returns the pause
    /// until the next pass.
    pub(in crate::hot) async fn run_pass(
        &mut self,
        inner: &Arc<HotTierInner>,
        replication: &Arc<Replication>,
        now: Instant,
    ) -> Result<Duration, MoveStepError> {
        let Some(catalogue) = inner.catalogue.clone() else { return Ok(PASS_INTERVAL) };
        if !inner.shared.segments.map.is_replicated() {
            return Ok(PASS_INTERVAL);
        }
        let views = replication.views();
        let nodes = views.all();
        let begun = Instant::now();
        let OpenRecords { left, of_others, own_open } = open_records(inner, catalogue.clone()).await?;
        let pause = PASS_INTERVAL.max(begun.elapsed() * PASS_PAUSE_FACTOR);
        let narrow = narrow_segments(&own_open, inner.node, &views, inner.shared.segments.clock.now());
        if !narrow.is_empty() {
            narrow.iter().for_each(|segment| inner.shared.segments.holds.give_up(*segment));
            inner.writer_queues.roll();
        }
        lost_files::end_replicas(inner, replication, &own_open).await?;
        let unreachable = self.unreachable(&of_others, nodes, now);
        let is_due =
            |record: &SegmentRecord| record.owner().is_some_and(|owner| unreachable.contains(&owner));
        // Any node may recover a segment. A gateway that leads the system group has no replicas.
        let first = nodes.iter().filter(|node| node.is_reachable).map(|node| node.node).min();
        let coordinates = catalogue.leads_system_group() || first == Some(inner.node);
        let others = of_others.into_iter().filter(|record| coordinates && is_due(record));
        let due: Vec<SegmentRecord> = left.into_iter().chain(others).collect();
        self.reported.retain(|segment, _| due.iter().any(|record| record.segment_id() == *segment));
        self.note_begun(due.iter().map(SegmentRecord::segment_id).collect());
        let recover = |record: SegmentRecord| {
            let (inner, replication) = (inner.clone(), replication.clone());
            async move { recover_segment(&inner, &replication, &record).await }
        };
        let mut recoveries = stream::iter(due).map(recover).buffer_unordered(RECOVERIES_MAX);
        while let Some(ended) = recoveries.next().await {
            if let Err(missing) = ended {
                self.report(&missing, now);
            }
        }
        Ok(pause)
    }

    /// Returns the owners that do not answer for long enough.
    fn unreachable(
        &mut self,
        records: &[SegmentRecord],
        nodes: &[StorageNode],
        now: Instant,
    ) -> BTreeSet<NodeId> {
        let is_reachable = |owner: NodeId| nodes.iter().any(|node| node.node == owner && node.is_reachable);
        let owners: BTreeSet<NodeId> =
            records.iter().filter_map(SegmentRecord::owner).filter(|owner| !is_reachable(*owner)).collect();
        self.unreachable.retain(|node, _| owners.contains(node));
        for owner in owners {
            self.unreachable.entry(owner).or_insert(now);
        }
        let is_gone = |since: Instant| now.saturating_duration_since(since) >= UNREACHABLE_MIN;
        self.unreachable.iter().filter(|(_, since)| is_gone(**since)).map(|(node, _)| *node).collect()
    }

    fn note_begun(&mut self, due: BTreeSet<SegmentId>) {
        for segment in due.difference(&self.begun) {
            tracing::info!(%segment, "recovers an open segment");
        }
        self.begun = due;
    }

    fn report(&mut self, missing: &MissingAnswers, now: Instant) {
        let last = self.reported.get(&missing.segment);
        if last.is_none_or(|last| now.saturating_duration_since(*last) >= REPORT_INTERVAL) {
            self.reported.insert(missing.segment, now);
            let (nodes, reason) = match &missing.wait {
                SealWait::TooFewAnswers(nodes) => (nodes, "too few of its replicas answer"),
                SealWait::UncertainEnd(nodes) => {
                    (nodes, "the last record of a replica may be damaged; waits for the named nodes")
                }
            };
            tracing::warn!(segment = %missing.segment, ?nodes, reason,
                "an open segment is not recovered; repeated");
        }
    }
}

/// Open segments.
struct OpenRecords {
    /// Those that an earlier process of this node left.
    left: Vec<SegmentRecord>,
    /// Those of other nodes.
    of_others: Vec<SegmentRecord>,
    /// Those that this process appends to, or creates.
    own_open: Vec<SegmentRecord>,
}

/// Returns the open segments of the node `own` that have a replica on a node that leaves, or fewer replicas
/// than they could have. Of the latter, one that was opened without any follower is given up at once. One
/// with some is given up after a while, so that a node that comes and goes does not cause many short
/// segments, and not for a full node, which would not follow the next segment either.
fn narrow_segments(
    open: &[SegmentRecord],
    own: NodeId,
    views: &StorageViews,
    now: Timestamp,
) -> Vec<SegmentId> {
    let is_given_up =
        |record: &&SegmentRecord| is_narrow(record, own, views.for_writer(record.set, own), now);
    open.iter().filter(is_given_up).map(SegmentRecord::segment_id).collect()
}

/// Returns true if a segment is given up. `nodes` are the storage nodes as its writer sees them.
fn is_narrow(record: &SegmentRecord, own: NodeId, nodes: &[StorageNode], now: Timestamp) -> bool {
    let is_usable = |node: &&StorageNode| !node.is_leaving && (node.is_reachable || node.node == own);
    let usable = nodes.iter().filter(is_usable).count();
    // This node appends to the segment in any case.
    let has_space = |node: &&StorageNode| node.node == own || !node.is_full;
    let with_space = nodes.iter().filter(is_usable).filter(has_space).count();
    let does_any_stay = nodes.iter().any(|node| node.node != own && !node.is_leaving);
    let leaves = |replica: &Replica| {
        nodes.iter().any(|node| node.node.0 == replica.node && node.is_leaving && does_any_stay)
    };
    let age_ms = now.as_millis().saturating_sub(record.created_ms);
    let has_too_few = match record.replicas.len() {
        1 => usable > 1,
        replicas => replicas < COPIES.min(with_space) && age_ms >= NARROW_MS_MAX,
    };
    has_too_few || record.replicas.iter().any(leaves)
}

async fn open_records(inner: &Arc<HotTierInner>, catalogue: Catalogue) -> Result<OpenRecords, MoveStepError> {
    let of = inner.clone();
    blocking(move || {
        let appends = of.shared.segments.appends.as_ref();
        // Held while the records are read. A segment that is being created is looked at in a later pass.
        let paused = appends.and_then(|appends| appends.pause_creations());
        // Before the records: a segment that is created meanwhile has a higher id.
        let next = catalogue.next_segment()?;
        let mut records = catalogue.segments()?;
        records.retain(|record| record.state() == SegmentState::Open);
        let mut own_open = records.clone();
        own_open.retain(|record| record.is_owned_by(of.node));
        let is_removed = |node: NodeId| catalogue.is_removed_node(node);
        records.retain(|record| record.replicas.len() > 1 || record.owner().is_some_and(is_removed));
        let (mut left, of_others): (Vec<_>, Vec<_>) =
            records.into_iter().partition(|record| record.is_owned_by(of.node));
        match appends.filter(|_| paused.is_some()) {
            Some(appends) => {
                let open = left.iter().map(SegmentRecord::segment_id).collect();
                let created = appends.retain_created(&open, next);
                left.retain(|record| !created.contains(&record.segment_id()));
            }
            None => left.clear(),
        }
        own_open.retain(|record| !left.iter().any(|left| left.id == record.id));
        Ok(OpenRecords { left, of_others, own_open })
    })
    .await
}

/// A segment that was not sealed because answers are missing.
struct MissingAnswers {
    segment: SegmentId,
    wait: SealWait,
}

/// Closes the replicas of a segment and seals it. A seal that fails is repeated by the next pass.
async fn recover_segment(
    inner: &Arc<HotTierInner>,
    replication: &Replication,
    record: &SegmentRecord,
) -> Result<(), MissingAnswers> {
    let (segment, nodes) = (record.segment_id(), listed_nodes(record));
    let is_removed =
        |node: &NodeId| inner.catalogue.as_ref().is_some_and(|catalogue| catalogue.is_removed_node(*node));
    let removed: BTreeSet<NodeId> = nodes.iter().copied().filter(is_removed).collect();
    let answers = close_all(inner, replication, record, &removed).await;
    let listed = ListedReplicas { nodes: &nodes, write_quorum: record.quorum(), removed: &removed };
    let decided = decide_seal(&listed, &answers).map_err(|wait| MissingAnswers { segment, wait })?;
    let RecoveredSeal { length, replicas: named, may_miss_bytes } = decided;
    if may_miss_bytes {
        tracing::error!(%segment, length, ?removed,
            "an open segment is sealed at what is left of it: acknowledged bytes may be lost with the nodes \
             that were removed");
    }
    let recorded = |of: &SealedReplica| {
        let listed = record.replica_of(of.node).cloned();
        listed.map(|listed| Replica { is_suspect: of.is_suspect, ..listed })
    };
    let replicas = named.iter().filter_map(recorded).collect();
    match inner.shared.segments.map.seal(segment, length, replicas).await {
        Ok(()) => tracing::info!(%segment, length, replicas = ?named, "recovered an open segment"),
        Err(MapError::SealedElsewhere) => {
            tracing::info!(%segment, length, "an open segment was sealed by another node at another length");
        }
        Err(error) => tracing::debug!(%segment, length, %error, "an open segment is not sealed yet"),
    }
    Ok(())
}

/// Nodes with a replica, the owner first.
fn listed_nodes(record: &SegmentRecord) -> Vec<NodeId> {
    record.replicas.iter().map(|replica| NodeId(replica.node)).collect()
}

/// Closes all replicas of a segment but those on removed nodes. When enough have answered, the others are
/// awaited for a limited time.
async fn close_all(
    inner: &Arc<HotTierInner>,
    replication: &Replication,
    record: &SegmentRecord,
    removed: &BTreeSet<NodeId>,
) -> BTreeMap<NodeId, ClosedAnswer> {
    let nodes = listed_nodes(record);
    let needed = needed_answers(nodes.len(), record.quorum());
    let nodes = nodes.into_iter().filter(|node| !removed.contains(node));
    let mut closing: FuturesUnordered<_> =
        nodes.map(|node| async move { (node, close(inner, replication, record, node).await) }).collect();
    let (mut answers, mut until) = (BTreeMap::new(), None);
    loop {
        let next = match until {
            None => closing.next().await,
            Some(until) => timeout_at(until, closing.next()).await.ok().flatten(),
        };
        match next {
            Some((node, Ok(answer))) => {
                answers.insert(node, answer);
            }
            Some((node, Err(error))) => {
                tracing::debug!(segment = %record.segment_id(), %node, %error, "a replica was not closed");
            }
            None => return answers,
        }
        let files = answers.values().filter(|answer: &&ClosedAnswer| answer.has_file);
        if until.is_none() && files.count() >= needed {
            until = Some(Instant::now() + REMAINING_WAIT_MAX);
        }
    }
}

async fn close(
    inner: &Arc<HotTierInner>,
    replication: &Replication,
    record: &SegmentRecord,
    node: NodeId,
) -> io::Result<ClosedAnswer> {
    let request = CloseReplica::new(record.segment_id(), record.seed()).encode_request();
    let answer = if node == inner.node {
        let tier = HotTier { inner: inner.clone() };
        tier.close_replica(&request).await.map_err(io::Error::other)?
    } else {
        replication.options.peers.close(node, request).await?
    };
    let ClosedReplica { has_file, length, damaged_bytes, uncertain_bytes } =
        ClosedReplica::decode_answer(&answer).map_err(io::Error::other)?;
    Ok(ClosedAnswer { has_file, length, damaged_bytes, uncertain_bytes })
}

#[cfg(test)]
mod tests {
    use super::narrow_segments;
    use mlgw_common::Timestamp;
    use mlgw_common::ids::{NodeId, SegmentId};
    use mlgw_formats::schema::{Replica, SegmentRecord};
    use mlgw_replication::{StorageNode, StorageViews};

    fn open(id: u64, nodes: &[u64]) -> SegmentRecord {
        let replica = |node: &u64| Replica { node: *node, ..Replica::default() };
        let replicas = nodes.iter().map(replica).collect();
        SegmentRecord { id, created_ms: 1_000, replicas, ..SegmentRecord::default() }
    }

    /// A reachable node.
    fn node(id: u64) -> StorageNode {
        StorageNode { node: NodeId(id), is_reachable: true, is_leaving: false, is_full: false }
    }

    /// Nodes 1 to `count`, all reachable; those in `leaving` leave.
    fn nodes(count: u64, leaving: &[u64]) -> StorageViews {
        let leaves = |id| StorageNode { is_leaving: leaving.contains(&id), ..node(id) };
        (1..=count).map(leaves).collect::<Vec<_>>().into()
    }

    #[test]
    fn a_segment_with_a_replica_outside_of_its_set_is_given_up() {
        let of = |id, set, nodes: &[u64]| SegmentRecord { set, ..open(id, nodes) };
        let records = [of(1, 0, &[1, 2, 3]), of(2, 1, &[1, 4]), of(3, 2, &[1]), of(4, 3, &[1, 2])];
        let given_up = |sets: &[(u32, &[u64])], now| {
            let sets = sets.iter().map(|(set, ids)| (*set, ids.iter().copied().map(NodeId).collect()));
            let views = StorageViews::new((1..=4).map(node).collect(), sets);
            narrow_segments(&records, NodeId(1), &views, Timestamp(now))
        };
        let sets: [(u32, &[u64]); 4] = [(0, &[1, 2, 3]), (1, &[4, 1]), (2, &[1]), (3, &[9])];
        assert_eq!(given_up(&sets, 1_000), [SegmentId(3)], "any node follows: set 2 has no other node");
        assert_eq!(
            given_up(&sets, 61_000),
            [SegmentId(3), SegmentId(4)],
            "set 1 has two nodes, and set 3 none"
        );
        let sets: [(u32, &[u64]); 4] = [(0, &[1, 2, 4]), (1, &[4, 2]), (2, &[1, 4]), (3, &[1, 2])];
        assert_eq!(given_up(&sets, 1_000), [1, 2, 3].map(SegmentId), "node 3 left set 0, node 1 set 1");
    }

    #[test]
    fn a_segment_with_a_replica_on_a_node_that_leaves_is_given_up() {
        let records = [open(1, &[1, 2]), open(2, &[1, 3])];
        let given_up =
            |leaving: &[u64]| narrow_segments(&records, NodeId(1), &nodes(3, leaving), Timestamp(1_000));
        assert_eq!(given_up(&[]), []);
        assert_eq!(given_up(&[3]), [SegmentId(2)]);
        assert_eq!(given_up(&[1]), [SegmentId(1), SegmentId(2)], "this node leaves");
        assert_eq!(given_up(&[2, 3]), [], "no other node stays");
    }

    #[test]
    fn a_segment_with_too_few_replicas_is_given_up_and_a_pair_only_after_a_while() {
        let records = [open(1, &[1]), open(2, &[1, 2]), open(3, &[1, 2, 3])];
        let given_up = |count, now| narrow_segments(&records, NodeId(1), &nodes(count, &[]), Timestamp(now));
        assert_eq!(given_up(1, 1_000_000), []);
        assert_eq!(given_up(2, 1_000), [SegmentId(1)]);
        assert_eq!(given_up(3, 60_999), [SegmentId(1)]);
        assert_eq!(given_up(3, 61_000), [SegmentId(1), SegmentId(2)]);
    }

    #[test]
    fn a_pair_is_not_given_up_for_a_full_node() {
        let records = [open(1, &[1]), open(2, &[1, 2])];
        let mut nodes = nodes(3, &[]).all().to_vec();
        nodes[2].is_full = true;
        let given_up = |nodes: &[StorageNode]| {
            narrow_segments(&records, NodeId(1), &nodes.to_vec().into(), Timestamp(61_000))
        };
        assert_eq!(given_up(&nodes), [SegmentId(1)], "the next one has two replicas");
        (nodes[0].is_full, nodes[2].is_full) = (true, false);
        assert_eq!(given_up(&nodes), [SegmentId(1), SegmentId(2)]);
    }
}

//! Recovery of open segments whose writer is gone: closes enough of their replicas and seals them.
//!
//! A node recovers the segments that an earlier process of it left open. Those of nodes that do not answer
//! for a while are recovered by the leader of the system group, and by the first storage node that answers.
//! All replicas in the record are closed at the same time. When so many have answered that the others are fewer than the write quorum, nothing more can be
//! acknowledged, and each acknowledged byte is in one of the answers. So the segment is sealed at the largest
//! length. The seal names the owner and every replica that has a file; those that lack bytes are marked, and
//! the repair of sealed segments pulls what they lack.
//!
//! The same pass gives up open segments of this node that have fewer replicas than they could have, because a
//! storage node has joined or returned: the next segments have more.
//!
//! Any node may recover any segment at any time without a loss: the first seal decides, and every seal has
//! all acknowledged bytes. Nothing is stored. After a power loss the next pass begins anew, and closed
//! replicas give the same answers.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::stream::FuturesUnordered;
use futures_util::{StreamExt as _, stream};
use mlgw_common::Timestamp;
use mlgw_common::ids::{NodeId, SegmentId};
use mlgw_common::time::{Instant, sleep, timeout_at};
use mlgw_formats::schema::{Replica, SegmentRecord, SegmentState};
use mlgw_formats::segment_calls::{CloseReplica, ClosedReplica};
use mlgw_metadata::Catalogue;
use mlgw_replication::{COPIES, StorageNode};

use super::Replication;
use crate::hot::compaction::{Compaction, MoveStepError, blocking};
use crate::hot::map::MapError;
use crate::hot::placing::stoppable_wait::until_stopped;
use crate::hot::{HotTier, HotTierInner};

/// Interval between passes.
const PASS_INTERVAL: Duration = Duration::from_secs(2);
/// Minimum pause between passes as a multiple of the time that the records took.
const PASS_PAUSE_FACTOR: u32 = 20;
/// Interval at which the wait between passes looks for a stop.
const STOP_CHECK: Duration = Duration::from_millis(200);
/// Time for which a node does not answer before its segments are recovered.
pub(in crate::hot) const UNREACHABLE_MIN: Duration = Duration::from_secs(10);
/// Segments that are recovered at the same time.
const RECOVERIES_MAX: usize = 4;
/// Wait for the remaining replicas when enough are closed: those that answer need no copy.
const REMAINING_WAIT_MAX: Duration = Duration::from_secs(5);
/// Age at which an open segment with fewer replicas than there are nodes is given up.
const NARROW_MS_MAX: i64 = 60_000;
/// Interval at which a segment with too few answers is reported.
const REPORT_INTERVAL: Duration = Duration::from_secs(30);

/// A seal that follows from the answers of closed replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
struct RecoverySeal {
    length: u64,
    /// The replicas with a file, and the owner's; empty if no replica has bytes.
    replicas: Vec<Replica>,
}

/// Number of replicas that must be closed before the segment is sealed.
fn needed_answers(record: &SegmentRecord) -> usize {
    (record.replicas.len() + 1).saturating_sub(record.quorum()).max(1)
}

/// Decides the seal of an open segment. `answers` has closed replicas by node; nodes that the record does not
/// list do not count. A replica without a file may never have been opened, or its disk was lost with
/// acknowledged bytes: it counts only when all replicas have answered.
///
/// The owner stays the first replica, whether it answered or not: it serves the segment when it returns, and
/// pulls what it lacks.
///
/// # Errors
/// The nodes whose answers are missing, if there are too few answers.
fn decide_seal(
    record: &SegmentRecord,
    answers: &BTreeMap<NodeId, ClosedReplica>,
) -> Result<RecoverySeal, Vec<NodeId>> {
    let answer_of = |replica: &Replica| answers.get(&NodeId(replica.node)).copied();
    let with_file = |replica: &Replica| answer_of(replica).filter(|answer| answer.has_file);
    let have_all_answered = record.replicas.iter().all(|replica| answer_of(replica).is_some());
    let files: Vec<ClosedReplica> = record.replicas.iter().filter_map(with_file).collect();
    if files.len() < needed_answers(record) && !have_all_answered {
        let missing = record.replicas.iter().filter(|replica| with_file(replica).is_none());
        return Err(missing.map(|replica| NodeId(replica.node)).collect());
    }
    let length = files.iter().map(|answer| answer.length).max().unwrap_or(0);
    if length == 0 {
        return Ok(RecoverySeal { length, replicas: Vec::new() });
    }
    // What is bad in all replicas stays bad. One of them must be the source of the others.
    let longest = files.iter().filter(|answer| answer.length == length);
    let least_damage = longest.map(|answer| answer.damaged_bytes).min().unwrap_or(0);
    let is_source = |answer: ClosedReplica| answer.length == length && answer.damaged_bytes == least_damage;
    let is_named =
        |replica: &&Replica| with_file(replica).is_some() || record.owner() == Some(NodeId(replica.node));
    let marked = |replica: &Replica| Replica {
        is_suspect: !with_file(replica).is_some_and(is_source),
        ..replica.clone()
    };
    Ok(RecoverySeal { length, replicas: record.replicas.iter().filter(is_named).map(marked).collect() })
}

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
        let until = Instant::now() + pause;
        while Instant::now() < until {
            if compaction.is_stopped() {
                return;
            }
            sleep(STOP_CHECK).await;
        }
    }
}

/// State of the recovery between passes.
#[derive(Default)]
pub(in crate::hot) struct OpenSegmentRecovery {
    /// Owners of open segments that do not answer, and the begin of that.
    unreachable: HashMap<NodeId, Instant>,
    /// Segments with too few answers, and the time of their last report.
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
        let nodes = replication.options.nodes.storage_nodes();
        let begun = Instant::now();
        let OpenRecords { left, of_others, own_open } = open_records(inner, catalogue.clone()).await?;
        let pause = PASS_INTERVAL.max(begun.elapsed() * PASS_PAUSE_FACTOR);
        let reachable = nodes.iter().filter(|node| node.is_reachable || node.node == inner.node).count();
        let narrow = narrow_segments(&own_open, COPIES.min(reachable), inner.shared.segments.clock.now());
        if !narrow.is_empty() {
            narrow.iter().for_each(|segment| inner.shared.segments.holds.give_up(*segment));
            inner.writer_queues.roll();
        }
        let unreachable = self.unreachable(&of_others, &nodes, now);
        let is_due =
            |record: &SegmentRecord| record.owner().is_some_and(|owner| unreachable.contains(&owner));
        // Any node may recover a segment. A gateway that leads the system group has no replicas.
        let first = nodes.iter().filter(|node| node.is_reachable).map(|node| node.node).min();
        let coordinates = catalogue.is_on_duty() || first == Some(inner.node);
        let others = of_others.into_iter().filter(|record| coordinates && is_due(record));
        let due: Vec<SegmentRecord> = left.into_iter().chain(others).collect();
        self.reported.retain(|segment, _| due.iter().any(|record| record.segment_id() == *segment));
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

    fn report(&mut self, missing: &MissingAnswers, now: Instant) {
        let last = self.reported.get(&missing.segment);
        if last.is_none_or(|last| now.saturating_duration_since(*last) >= REPORT_INTERVAL) {
            self.reported.insert(missing.segment, now);
            tracing::warn!(segment = %missing.segment, nodes = ?missing.nodes,
                "an open segment is not recovered: too few of its replicas answer; repeated");
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

/// Returns the open segments that have fewer replicas than they could have. One that was opened without any
/// follower is given up at once; one with some is given up after a while, so that a node that comes and goes
/// does not cause many short segments.
fn narrow_segments(open: &[SegmentRecord], wanted: usize, now: Timestamp) -> Vec<SegmentId> {
    let age_ms = |record: &SegmentRecord| now.as_millis().saturating_sub(record.created_ms);
    let is_narrow = |record: &&SegmentRecord| {
        let has_waited = record.replicas.len() == 1 || age_ms(record) >= NARROW_MS_MAX;
        record.replicas.len() < wanted && has_waited
    };
    open.iter().filter(is_narrow).map(SegmentRecord::segment_id).collect()
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
        records.retain(|record| record.replicas.len() > 1);
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

/// A segment that was not sealed because too few replicas answered.
struct MissingAnswers {
    segment: SegmentId,
    nodes: Vec<NodeId>,
}

/// Closes the replicas of a segment and seals it. A seal that fails is repeated by the next pass.
async fn recover_segment(
    inner: &Arc<HotTierInner>,
    replication: &Replication,
    record: &SegmentRecord,
) -> Result<(), MissingAnswers> {
    let segment = record.segment_id();
    let answers = close_all(inner, replication, record).await;
    let RecoverySeal { length, replicas } =
        decide_seal(record, &answers).map_err(|nodes| MissingAnswers { segment, nodes })?;
    let named: Vec<u64> = replicas.iter().map(|replica| replica.node).collect();
    match inner.shared.segments.map.seal(segment, length, replicas).await {
        Ok(()) => tracing::info!(%segment, length, replicas = ?named, "recovered an open segment"),
        Err(MapError::SealedElsewhere) => {
            tracing::info!(%segment, length, "an open segment was sealed by another node at another length");
        }
        Err(error) => tracing::debug!(%segment, length, %error, "an open segment is not sealed yet"),
    }
    Ok(())
}

/// Closes all replicas of a segment. When enough have answered, the others are awaited for a limited time.
async fn close_all(
    inner: &Arc<HotTierInner>,
    replication: &Replication,
    record: &SegmentRecord,
) -> BTreeMap<NodeId, ClosedReplica> {
    let nodes = record.replicas.iter().map(|replica| NodeId(replica.node));
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
        let files = answers.values().filter(|answer: &&ClosedReplica| answer.has_file);
        if until.is_none() && files.count() >= needed_answers(record) {
            until = Some(Instant::now() + REMAINING_WAIT_MAX);
        }
    }
}

async fn close(
    inner: &Arc<HotTierInner>,
    replication: &Replication,
    record: &SegmentRecord,
    node: NodeId,
) -> io::Result<ClosedReplica> {
    let request = CloseReplica::new(record.segment_id(), record.seed()).encode_request();
    let answer = if node == inner.node {
        let tier = HotTier { inner: inner.clone() };
        tier.close_replica(&request).await.map_err(io::Error::other)?
    } else {
        replication.options.peers.close(node, request).await?
    };
    ClosedReplica::decode_answer(&answer).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::{RecoverySeal, decide_seal, narrow_segments, needed_answers};
    use mlgw_common::Timestamp;
    use mlgw_common::ids::{NodeId, SegmentId};
    use mlgw_formats::schema::{Replica, SegmentRecord};
    use mlgw_formats::segment_calls::ClosedReplica;
    use std::collections::BTreeMap;

    fn record(nodes: &[u64], write_quorum: u32) -> SegmentRecord {
        let replica = |node: &u64| Replica { node: *node, ..Replica::default() };
        let replicas = nodes.iter().map(replica).collect();
        SegmentRecord { id: 7, replicas, write_quorum, ..SegmentRecord::default() }
    }

    /// The length, and each node with its mark; or the nodes that are missed.
    type Decided = Result<(u64, Vec<(u64, bool)>), Vec<NodeId>>;

    /// Answers as node, length and damaged bytes. A replica of length 0 has no file.
    fn decided(record: &SegmentRecord, answers: &[(u64, u64, u64)]) -> Decided {
        let answer = |&(node, length, damaged_bytes): &(u64, u64, u64)| {
            (NodeId(node), ClosedReplica { has_file: length > 0, length, damaged_bytes })
        };
        let answers: BTreeMap<NodeId, ClosedReplica> = answers.iter().map(answer).collect();
        let RecoverySeal { length, replicas } = decide_seal(record, &answers)?;
        Ok((length, replicas.iter().map(|replica| (replica.node, replica.is_suspect)).collect()))
    }

    #[test]
    fn so_many_answers_are_needed_that_no_quorum_is_left() {
        for (replicas, quorum, needed) in [(3, 2, 2), (2, 2, 1), (3, 3, 1), (3, 1, 3), (2, 0, 2)] {
            let replicas = &[1, 2, 3][..replicas];
            assert_eq!(needed_answers(&record(replicas, quorum)), needed, "{replicas:?} {quorum}");
        }
        let three = record(&[1, 2, 3], 2);
        assert_eq!(decided(&three, &[(2, 500, 0)]), Err(vec![NodeId(1), NodeId(3)]));
        // A node that is not in the record never counts.
        assert_eq!(decided(&three, &[(2, 500, 0), (9, 900, 0)]), Err(vec![NodeId(1), NodeId(3)]));
    }

    #[test]
    fn a_replica_without_a_file_counts_only_when_all_have_answered() {
        let (three, pair) = (record(&[1, 2, 3], 2), record(&[1, 2], 2));
        assert_eq!(decided(&three, &[(2, 500, 0), (3, 0, 0)]), Err(vec![NodeId(1), NodeId(3)]));
        assert_eq!(decided(&pair, &[(1, 0, 0)]), Err(vec![NodeId(1), NodeId(2)]), "the owner lost its disk");
        assert_eq!(decided(&pair, &[(1, 0, 0), (2, 500, 0)]), Ok((500, vec![(1, true), (2, false)])));
        let all = [(1, 0, 0), (2, 500, 0), (3, 0, 0)];
        assert_eq!(decided(&three, &all), Ok((500, vec![(1, true), (2, false)])));
    }

    #[test]
    fn the_largest_length_is_sealed_and_shorter_replicas_are_marked() {
        let three = record(&[1, 2, 3], 2);
        let expected = Ok((500, vec![(1, true), (2, false), (3, true)]));
        assert_eq!(decided(&three, &[(1, 400, 0), (2, 500, 0), (3, 64, 0)]), expected);
    }

    #[test]
    fn a_damaged_replica_is_marked_and_never_shortens_the_segment() {
        let three = record(&[1, 2, 3], 2);
        assert_eq!(decided(&three, &[(1, 500, 9), (2, 500, 0)]), Ok((500, vec![(1, true), (2, false)])));
        let longest = Ok((500, vec![(1, true), (2, false), (3, true)]));
        assert_eq!(decided(&three, &[(1, 400, 0), (2, 500, 9), (3, 500, 20)]), longest, "no other is whole");
    }

    #[test]
    fn an_owner_that_does_not_answer_stays_the_owner_and_is_marked() {
        let three = record(&[1, 2, 3], 2);
        let shorter = Ok((500, vec![(1, true), (2, true), (3, false)]));
        assert_eq!(decided(&three, &[(2, 400, 0), (3, 500, 0)]), shorter);
        let equal = Ok((500, vec![(1, true), (2, false), (3, false)]));
        assert_eq!(decided(&three, &[(2, 500, 0), (3, 500, 0)]), equal);
        let pair = record(&[1, 2], 2);
        assert_eq!(decided(&pair, &[(2, 500, 0)]), Ok((500, vec![(1, true), (2, false)])));
    }

    #[test]
    fn a_segment_with_too_few_replicas_is_given_up_and_a_pair_only_after_a_while() {
        let open = |id, nodes: &[u64]| SegmentRecord { id, created_ms: 1_000, ..record(nodes, 2) };
        let records = [open(1, &[1]), open(2, &[1, 2]), open(3, &[1, 2, 3])];
        let given_up = |wanted, now| narrow_segments(&records, wanted, Timestamp(now));
        assert_eq!(given_up(1, 1_000_000), []);
        assert_eq!(given_up(2, 1_000), [SegmentId(1)]);
        assert_eq!(given_up(3, 60_999), [SegmentId(1)]);
        assert_eq!(given_up(3, 61_000), [SegmentId(1), SegmentId(2)]);
    }

    #[test]
    fn a_segment_without_bytes_keeps_its_list() {
        let three = record(&[1, 2, 3], 2);
        assert_eq!(decided(&three, &[(1, 0, 0), (2, 0, 0), (3, 0, 0)]), Ok((0, vec![])));
        let all = [(1, 64, 0), (2, 0, 0), (3, 0, 0)];
        assert_eq!(decided(&three, &all), Ok((64, vec![(1, false)])));
    }
}

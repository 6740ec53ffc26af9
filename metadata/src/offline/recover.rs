//! Makes the catalogue of a node of a cluster that of a server without peers, after the loss of all other
//! nodes: `mlgw cluster recover`.
//!
//! The states of all groups are linked into a new directory, and the whole log is applied, also entries that
//! were not known to be committed: a majority may have acknowledged them. The node becomes node 1 and the
//! only voter. Ids of bodies and segments continue far above those that the other nodes may have given out.
//!
//! The states of the groups may be of different times: of a node that was behind in one of them, or of a
//! backup. Creations and deletions of buckets are continued by the first start. The mirrors of active buckets
//! are brought in line with the system group here, because no saga does that.
//!
//! In a cluster with sets of nodes, a node may have some of the groups only, and old rows of groups that it
//! left. It is refused if keys belong to a group whose current rows it lacks. A node that has a place in a
//! group and never confirmed that it has all rows is refused too, unless the caller accepts the loss.
//!
//! Invariants: nothing in the old directory is changed. The new catalogue is checked as a start would check
//! it. After a power loss the new directory is complete if this had returned; the caller decides which of
//! them counts.

use super::Offline;
use super::divide::{
    ClosedGroups, DivideError, NewGroup, failed, link_states, open_log, open_sound, sync_new, write_log,
};
use super::finding::ProgressCallback;
use super::scratch::Scratch;
use crate::apply::{apply, seq_of};
use crate::identity::ExpectedServer;
use crate::store_error::StoreError;
use crate::view::{RowChanges, RowReader, View};
use mlgw_common::limits::RECOVERY_SKIPPED_IDS;
use mlgw_common::{Identity, Lineage, NodeId, SegmentTier, Timestamp};
use mlgw_formats::command::{BeginIncarnation, Change, Command};
use mlgw_formats::key::Family;
use mlgw_formats::schema::meta::{Member, MembershipRecord, MetaRow, Voters};
use mlgw_formats::schema::partition::{PartitionStart, parse_row_key};
use mlgw_formats::schema::set::FIRST_SET;
use mlgw_formats::schema::{
    Bucket, BucketState, Duty, DutyPhase, Job, JobState, Mirror, Node, Partition, Rebalance, Replica,
    SegmentRecord, SegmentState, bucket, decode, encode, node,
};
use mlgw_formats::store_files;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Treatment of groups whose rows may lack acknowledged changes ([`Offline::old_groups`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OldRows {
    /// The recovery is refused.
    Refuse,
    /// What these rows have is recovered, and the rest is lost.
    Accept,
}

/// Description of a recovery.
pub struct CatalogueRecovery<'a> {
    /// The catalogue of the node, which no server may be using.
    pub old: &'a Path,
    /// The new catalogue; empty or absent.
    pub new: &'a Path,
    /// The node.
    pub node: NodeId,
    /// The server that the old catalogue must belong to.
    pub expected: Option<ExpectedServer>,
    /// Identity of the recovered server, whose parts are not marked yet.
    pub lineage: Lineage,
    /// Time of the recovery.
    pub now: Timestamp,
    /// Treatment of groups whose rows may be old.
    pub old_rows: OldRows,
}

/// A recovered catalogue. Its scratch copy is removed with it.
pub struct RecoveredCatalogue {
    /// The new catalogue.
    pub catalogue: Offline,
    /// Number of log entries that were applied.
    pub entries: u64,
    /// Groups whose rows may lack acknowledged changes.
    pub old_groups: Vec<u32>,
    _scratch: Scratch,
}

/// Makes the catalogue of a server without peers. `scratch` is an empty directory. The new catalogue is
/// durable when this returns.
///
/// # Errors
/// See [`DivideError`]. An incomplete new catalogue may be left.
pub fn recover_catalogue(
    recovery: &CatalogueRecovery<'_>,
    scratch: &Path,
    watch: ProgressCallback<'_>,
) -> Result<RecoveredCatalogue, DivideError> {
    let owner = Scratch(scratch.to_owned());
    let CatalogueRecovery { old, new, node, .. } = *recovery;
    assert!(recovery.lineage.marking, "a recovered server marks its parts at its first start");
    let before = open_sound(old, &scratch.join("before"), node, recovery.expected.as_ref(), watch)?;
    let missing = before.missing_groups()?;
    if !missing.is_empty() {
        return Err(DivideError::MissingGroups { groups: missing, homes: before.home_nodes() });
    }
    let old_groups = before.old_groups()?;
    if recovery.old_rows == OldRows::Refuse && !old_groups.is_empty() {
        return Err(DivideError::OldGroups { groups: old_groups, homes: before.home_nodes() });
    }
    let (ends, groups) = (before.referenced_ends()?, before.groups());
    drop(before);
    let old = ClosedGroups { dir: old, groups: &groups };
    let entries = build(recovery, &old, &ends, &scratch.join("building"), watch)?;
    let expected = ExpectedServer { lineage: recovery.lineage.clone(), floor: 0 };
    let catalogue = open_sound(new, &scratch.join("after"), NodeId::SINGLE, Some(&expected), watch)?;
    Ok(RecoveredCatalogue { catalogue, entries, old_groups, _scratch: owner })
}

fn build(
    recovery: &CatalogueRecovery<'_>,
    old: &ClosedGroups<'_>,
    ends: &BTreeMap<u64, u64>,
    scratch: &Path,
    watch: ProgressCallback<'_>,
) -> Result<u64, DivideError> {
    let new = recovery.new;
    store_files::make_dir(new).map_err(failed(new))?;
    let log = open_log(&old.dir.join("log"), scratch)?;
    let (groups, entries) = link_states(old, new, &log, watch)?;
    let system = groups.iter().find(|of| of.group == 0);
    let buckets = system.map_or(Ok(Vec::new()), |of| active_buckets(&of.state))?;
    for NewGroup { group, state, .. } in &groups {
        let mut changes = membership_changes(state)?;
        changes.extend(mirror_changes(&buckets, *group, state)?);
        if *group == 0 {
            changes.extend(system_changes(recovery, ends, state)?);
        }
        state.write(&changes)?;
        state.flush()?;
    }
    // The log gets the identity of the recovered server at its first start.
    write_log(new, &log, &groups, &[])?;
    drop(groups);
    sync_new(new, watch)?;
    Ok(entries)
}

/// Makes node 1 the only member of a group.
fn membership_changes(state: &impl RowReader) -> Result<RowChanges, StoreError> {
    let row = MetaRow::Membership.row();
    let known: MembershipRecord = state.get(&row)?.as_deref().map(decode).transpose()?.unwrap_or_default();
    let alone = MembershipRecord {
        configs: vec![Voters { nodes: vec![NodeId::SINGLE.0] }],
        members: vec![Member { node: NodeId::SINGLE.0, address: String::new() }],
        ..known
    };
    Ok([(row, Some(encode(&alone)))].into())
}

/// A bucket, with the groups of its keys.
struct PlacedBucket {
    record: Bucket,
    groups: BTreeSet<u32>,
}

/// Reads the active buckets from the state of the system group.
fn active_buckets(system: &impl RowReader) -> Result<Vec<PlacedBucket>, StoreError> {
    let rows = |family: Family| system.range(&family.start(), &family.end(), usize::MAX);
    let mut ranges = BTreeMap::new();
    for (key, value) in rows(Family::Partition)? {
        ranges.insert(parse_row_key(&key)?, decode::<Partition>(&value)?.group);
    }
    let mut active = Vec::new();
    for (_, value) in rows(Family::Bucket)? {
        let record: Bucket = decode(&value)?;
        if record.state() != BucketState::Active {
            continue;
        }
        let first = PartitionStart { bucket: record.bucket_id(), key: Vec::new() };
        let of_first_key = ranges.range(..=first.clone()).next_back().map_or(0, |(_, group)| *group);
        let later = ranges.range(first.clone()..).take_while(|(start, _)| start.bucket == first.bucket);
        let groups = later.map(|(_, group)| *group).chain([of_first_key]).collect();
        active.push(PlacedBucket { record, groups });
    }
    Ok(active)
}

/// Rows of a group with the mirrors of active buckets that differ from their records. A bucket whose mirror
/// is missing, frozen or of another epoch could never be written.
fn mirror_changes(
    buckets: &[PlacedBucket],
    group: u32,
    state: &impl RowReader,
) -> Result<RowChanges, StoreError> {
    let mut changes = RowChanges::new();
    for PlacedBucket { record, .. } in buckets.iter().filter(|of| of.groups.contains(&group)) {
        let row = bucket::mirror_row(record.bucket_id());
        let known: Option<Mirror> = state.get(&row)?.as_deref().map(decode).transpose()?;
        let mirror = Mirror {
            versioning: record.versioning,
            lock_default: record.lock_default,
            epoch: record.epoch,
            frozen: false,
            quota: record.quota,
            slice: known.as_ref().and_then(|known| known.slice?.within(record.quota.as_ref())),
            duty_term: known.as_ref().map_or(0, |mirror| mirror.duty_term),
        };
        if known.as_ref() != Some(&mirror) {
            changes.insert(row, Some(encode(&mirror)));
        }
    }
    Ok(changes)
}

/// Rows of the system group that name nodes, the timeline, and the next ids.
fn system_changes(
    recovery: &CatalogueRecovery<'_>,
    ends: &BTreeMap<u64, u64>,
    state: &impl RowReader,
) -> Result<RowChanges, StoreError> {
    let mut changes = RowChanges::new();
    for family in [Family::Node, Family::JoinToken, Family::Authority, Family::Set, Family::GroupSet] {
        let rows = state.range(&family.start(), &family.end(), usize::MAX)?;
        changes.extend(rows.into_iter().map(|(key, _)| (key, None)));
    }
    let own = Node { id: NodeId::SINGLE.0, joined_ms: recovery.now.as_millis(), ..Node::default() };
    changes.insert(node::row(NodeId::SINGLE), Some(encode(&own)));
    changes.insert(MetaRow::NextNode.row(), None);
    changes.insert(Rebalance::row(), None);
    changes.extend(timeline_changes(recovery.lineage.own, state)?);
    changes.extend(duty_changes(state)?);
    for (key, value) in state.range(&Family::Segment.start(), &Family::Segment.end(), usize::MAX)? {
        let record: SegmentRecord = decode(&value)?;
        let end = ends.get(&record.id).copied().unwrap_or(0);
        changes.insert(key, Some(encode(&recovered_segment(record, recovery.node, end))));
    }
    Ok(changes)
}

/// Ends the term of duty of a node that is destroyed, and assigns its running jobs to the survivor. Terms go
/// on from there, because the groups reject earlier ones.
fn duty_changes(state: &impl RowReader) -> Result<RowChanges, StoreError> {
    let mut changes = RowChanges::new();
    if let Some(known) = state.get(&Duty::row())? {
        let ended = Duty { node: NodeId::SINGLE.0, phase: DutyPhase::Ended as i32, ..decode(&known)? };
        changes.insert(Duty::row(), Some(encode(&ended)));
    }
    for (key, value) in state.range(&Family::Job.start(), &Family::Job.end(), usize::MAX)? {
        let job: Job = decode(&value)?;
        if job.state() == JobState::Running {
            changes.insert(key, Some(encode(&Job { node: NodeId::SINGLE.0, ..job })));
        }
    }
    Ok(changes)
}

/// Ends the timeline of the old cluster, and begins the next one far above the ids that other nodes may have
/// given out.
fn timeline_changes(own: Identity, state: &impl RowReader) -> Result<RowChanges, StoreError> {
    let begin = Command::from(Change::BeginIncarnation(BeginIncarnation {
        cluster: own.cluster.0,
        incarnation: own.incarnation.0,
        skipped_ids: RECOVERY_SKIPPED_IDS,
    }));
    let mut view = View::new(state);
    apply(&mut view, &begin, seq_of(0, 0))?.map_err(|reject| StoreError(reject.to_string()))?;
    Ok(view.into_changes().0)
}

/// The record of a segment whose other replicas are destroyed. One that this node does not have is sealed up
/// to its last referenced byte, so that what is missing is known. The marked length of an open segment is
/// that of its owner: a follower may have less, so its file is read from the beginning.
fn recovered_segment(record: SegmentRecord, node: NodeId, referenced_end: u64) -> SegmentRecord {
    let at_upstream = record.replicas.iter().find(|of| of.tier() == Ok(SegmentTier::Upstream)).cloned();
    let here = at_upstream.or_else(|| record.replica_of(node).cloned());
    let is_lost = here.is_none();
    let marked = if record.is_owned_by(node) { record.marked } else { 0 };
    let replica = Replica { node: NodeId::SINGLE.0, is_suspect: false, ..here.unwrap_or_default() };
    let changes = record.changes + 1;
    let (replicas, set) = (vec![replica], FIRST_SET);
    let mut recovered = SegmentRecord { replicas, write_quorum: 1, changes, marked, set, ..record };
    if is_lost && recovered.state() == SegmentState::Open {
        recovered.set_state(SegmentState::Sealed);
        recovered.length = referenced_end;
    }
    recovered
}

#[cfg(test)]
mod tests {
    use super::super::ReferencedExtent;
    use super::{
        CatalogueRecovery, OldRows, active_buckets, membership_changes, mirror_changes, recovered_segment,
        system_changes,
    };
    use crate::view::{MemoryRows, RowReader as _};
    use mlgw_common::limits::RECOVERY_SKIPPED_IDS;
    use mlgw_common::{
        BodyId, BucketId, ClusterId, Identity, Incarnation, Lineage, NodeId, NodeName, SegmentTier, Timestamp,
    };
    use mlgw_formats::key::Family;
    use mlgw_formats::schema::meta::{
        Counter, EarlierTimelines, LogPosition, Member, MembershipRecord, MetaRow, Timeline, Voters,
    };
    use mlgw_formats::schema::partition::{PartitionStart, row_key};
    use mlgw_formats::schema::{
        AuthorityRecord, Bucket, BucketState, Duty, DutyPhase, Extent, GroupSet, Job, JobState,
        JoinTokenRecord, Mirror, Node, NodeSet, NodeState, Partition, Rebalance, Replica, SegmentRecord,
        SegmentState, authority, bucket, decode, encode, job, join_token, node, segment, set,
    };
    use std::collections::BTreeMap;
    use std::path::Path;

    /// A row of a record.
    fn put(rows: &mut MemoryRows, key: Vec<u8>, record: &impl prost::Message) {
        rows.0.insert(key, encode(record));
    }

    fn segment_on(nodes: &[u64], state: SegmentState) -> SegmentRecord {
        let replica = |node: &u64| Replica { node: *node, is_suspect: true, ..Replica::default() };
        SegmentRecord {
            id: 7,
            state: state as i32,
            length: if state == SegmentState::Open { 0 } else { 100 },
            marked: 50,
            replicas: nodes.iter().map(replica).collect(),
            write_quorum: 2,
            set: 4,
            ..SegmentRecord::default()
        }
    }

    #[test]
    fn the_survivor_is_node_1_of_another_cluster_and_gives_out_higher_ids() {
        let mut rows = MemoryRows::default();
        for id in 1..=3 {
            put(
                &mut rows,
                node::row(NodeId(id)),
                &Node { id, state: NodeState::Active as i32, ..Node::default() },
            );
        }
        put(&mut rows, authority::row(2), &AuthorityRecord::default());
        put(&mut rows, join_token::row(9), &JoinTokenRecord::default());
        put(&mut rows, set::row(0), &NodeSet { id: 0, nodes: vec![1, 2, 3], changes: 1 });
        put(&mut rows, set::group_row(1), &GroupSet::first(1));
        put(&mut rows, Rebalance::row(), &Rebalance::default());
        put(&mut rows, MetaRow::NextNode.row(), &Counter { next: 4 });
        put(&mut rows, MetaRow::NextBody.row(), &Counter { next: 500 });
        put(&mut rows, MetaRow::NextSegment.row(), &Counter { next: 60 });
        put(&mut rows, MetaRow::NextJob.row(), &Counter { next: 3 });
        put(&mut rows, MetaRow::Incarnation.row(), &Timeline { cluster: 5, incarnation: 6 });
        put(&mut rows, segment::row(mlgw_common::SegmentId(7)), &segment_on(&[1, 2], SegmentState::Sealed));
        put(&mut rows, Duty::row(), &Duty { node: 2, term: 7, phase: DutyPhase::Waiting as i32 });
        let job_of = |id, node, state: JobState| Job { id, node, state: state as i32, ..Job::default() };
        put(&mut rows, job::row("d", 1), &job_of(1, 2, JobState::Running));
        put(&mut rows, job::row("d", 2), &job_of(2, 0, JobState::Queued));
        let own = Identity { cluster: ClusterId(8), node: NodeName(2), incarnation: Incarnation(9) };
        let recovery = CatalogueRecovery {
            old: Path::new("old"),
            new: Path::new("new"),
            node: NodeId(2),
            expected: None,
            lineage: Lineage { own, marking: true, ..Lineage::default() },
            now: Timestamp(1_000),
            old_rows: OldRows::Refuse,
        };
        let changes = system_changes(&recovery, &BTreeMap::new(), &rows).unwrap();
        rows.write(changes);
        let count = |family: Family| rows.range(&family.start(), &family.end(), 10).unwrap().len();
        assert_eq!([Family::Node, Family::Authority, Family::JoinToken].map(count), [1, 0, 0]);
        assert_eq!([Family::Set, Family::GroupSet].map(count), [0, 0]);
        assert_eq!(rows.get(&Rebalance::row()).unwrap(), None);
        let counter = |row: MetaRow| {
            let value = rows.get(&row.row()).unwrap();
            value.map(|value| decode::<Counter>(&value).unwrap().next)
        };
        assert_eq!(counter(MetaRow::NextBody), Some(500 + RECOVERY_SKIPPED_IDS));
        assert_eq!(counter(MetaRow::NextSegment), Some(60 + RECOVERY_SKIPPED_IDS));
        assert_eq!((counter(MetaRow::NextNode), counter(MetaRow::NextJob)), (None, Some(3)));
        let duty = rows.get(&Duty::row()).unwrap().unwrap();
        let ended = Duty { node: 1, term: 7, phase: DutyPhase::Ended as i32 };
        assert_eq!(decode::<Duty>(&duty).unwrap(), ended);
        let node_of = |id| decode::<Job>(&rows.get(&job::row("d", id)).unwrap().unwrap()).unwrap().node;
        assert_eq!([1, 2].map(node_of), [1, 0], "the survivor continues the jobs of the others");
        let timeline = rows.get(&MetaRow::Incarnation.row()).unwrap().unwrap();
        assert_eq!(decode::<Timeline>(&timeline).unwrap(), Timeline { cluster: 8, incarnation: 9 });
        let earlier = rows.get(&MetaRow::EarlierTimelines.row()).unwrap().unwrap();
        let ended = decode::<EarlierTimelines>(&earlier).unwrap().ended[0];
        assert_eq!((ended.incarnation, ended.bodies_before), (6, 500), "later ids are of other nodes");
    }

    #[test]
    fn a_record_ends_after_its_head_and_its_stored_bytes() {
        let extent = Extent { offset: 100, head_bytes: 80, stored_bytes: 1_000, ..Extent::default() };
        let (bucket, body) = (BucketId(1), BodyId(1));
        let of = ReferencedExtent { bucket, key: b"k", body, part: None, offset: 0, extent: &extent };
        assert_eq!(of.end(), 1_180);
    }

    #[test]
    fn an_active_bucket_is_writable_although_its_groups_are_of_an_earlier_time() {
        let mut system = MemoryRows::default();
        let second = PartitionStart { bucket: BucketId(5), key: b"m".to_vec() };
        for (start, group) in [(PartitionStart::default(), 1), (second, 2)] {
            put(&mut system, row_key(&start), &Partition { group });
        }
        for (id, state) in [(5, BucketState::Active), (6, BucketState::Deleting)] {
            let name = format!("bucket-{id}");
            let record =
                Bucket { id, name: name.clone(), state: state as i32, epoch: 3, ..Bucket::default() };
            put(&mut system, bucket::row(&name), &record);
        }
        let buckets = active_buckets(&system).unwrap();
        assert_eq!(buckets.len(), 1, "the first start continues the deletion of bucket 6");
        let row = bucket::mirror_row(BucketId(5));
        let recovered = |group, before: Option<&Mirror>| {
            let mut rows = MemoryRows::default();
            before.into_iter().for_each(|mirror| put(&mut rows, row.clone(), mirror));
            let changes = mirror_changes(&buckets, group, &rows).unwrap();
            rows.write(changes);
            rows.get(&row).unwrap().map(|row| decode::<Mirror>(&row).unwrap())
        };
        let current = Mirror { epoch: 3, ..Mirror::default() };
        assert_eq!(recovered(1, None), Some(current.clone()), "it was created later");
        let frozen = Mirror { epoch: 2, frozen: true, duty_term: 4, ..Mirror::default() };
        let kept = Mirror { duty_term: 4, ..current };
        assert_eq!(recovered(2, Some(&frozen)), Some(kept), "its deletion was refused later");
        assert_eq!(recovered(3, None), None, "the group has none of its keys");
    }

    #[test]
    fn node_1_is_the_only_voter_of_each_group() {
        let mut rows = MemoryRows::default();
        let position = Some(LogPosition { term: 1, node: 3, index: 40 });
        let three = MembershipRecord {
            position,
            configs: vec![Voters { nodes: vec![1, 2] }, Voters { nodes: vec![1, 2, 3] }],
            members: vec![Member { node: 1, address: "a".into() }],
        };
        put(&mut rows, MetaRow::Membership.row(), &three);
        let changes = membership_changes(&rows).unwrap();
        rows.write(changes);
        let row = rows.get(&MetaRow::Membership.row()).unwrap().unwrap();
        let alone: MembershipRecord = decode(&row).unwrap();
        assert_eq!((alone.position, alone.configs), (position, vec![Voters { nodes: vec![1] }]));
        assert_eq!(alone.members.len(), 1);
    }

    #[test]
    fn replicas_of_destroyed_nodes_are_left_out_and_lost_segments_are_sealed() {
        let of = |nodes: &[u64], state| recovered_segment(segment_on(nodes, state), NodeId(2), 80);
        let kept = of(&[1, 2, 3], SegmentState::Sealed);
        assert_eq!((kept.replicas.len(), kept.replicas[0].node, kept.length), (1, 1, 100));
        assert_eq!((kept.replicas[0].is_suspect, kept.quorum(), kept.changes), (false, 1, 1));
        assert_eq!(kept.set, 0, "there are no sets any more");
        let open = of(&[1, 2], SegmentState::Open);
        assert_eq!((open.state(), open.replicas.len()), (SegmentState::Open, 1));
        assert_eq!(open.marked, 0, "its follower may have less than the owner marked");
        assert_eq!(of(&[2, 1], SegmentState::Open).marked, 50);
        let lost = of(&[1, 3], SegmentState::Open);
        assert_eq!((lost.state(), lost.length, lost.replicas[0].node), (SegmentState::Sealed, 80, 1));
        assert_eq!(of(&[1, 3], SegmentState::Sealed).length, 100);
        let tier = SegmentTier::Upstream.number();
        let spilled = Replica { node: 3, tier, location: "lake".into(), ..Replica::default() };
        let record = SegmentRecord { replicas: vec![spilled], ..segment_on(&[], SegmentState::Sealed) };
        let kept = recovered_segment(record, NodeId(2), 0);
        assert!(kept.is_at_upstream() && kept.owner() == Some(NodeId(1)));
    }
}

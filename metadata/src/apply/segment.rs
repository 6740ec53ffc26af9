//! Segments: created, marked, sealed, moved, copied and removed in group 0, and fenced in every object group.

use super::bucket::next_id;
use super::{fence as fences, malformed, ranges, set as sets};
use crate::store_error::StoreError;
use crate::view::{ApplyError, View};
use mlgw_common::{NodeId, SegmentId, SegmentTier};
use mlgw_formats::command::{
    CreateSegment, FenceSegment, MarkSegment, PlaceSegment, Reject, RemoveSegment, Reply, SealSegment,
    SetReplicas,
};
use mlgw_formats::schema::meta::MetaRow;
use mlgw_formats::schema::set::FIRST_SET;
use mlgw_formats::schema::usage::segment_row;
use mlgw_formats::schema::{Replica, SegmentRecord, SegmentState, SegmentUsage, segment};
use std::collections::BTreeSet;

pub(super) fn create(view: &mut View<'_>, command: &CreateSegment) -> Result<Reply, ApplyError> {
    let own =
        Replica { node: command.node, tier: 0, location: command.location.clone(), ..Replica::default() };
    let replicas: Vec<Replica> = std::iter::once(own).chain(command.followers.iter().cloned()).collect();
    let quorum = usize::try_from(command.write_quorum).unwrap_or(usize::MAX);
    if !are_on_distinct_nodes(&replicas) || quorum > replicas.len() {
        return Err(malformed("a segment has one replica on each node, and no larger write quorum"));
    }
    sets::check_exists(view, command.set)?;
    let record = SegmentRecord {
        id: next_id(view, MetaRow::NextSegment, 1)?,
        generation: 1,
        class: command.class,
        state: SegmentState::Open as i32,
        created_ms: command.created_ms,
        replicas,
        stamp: command.stamp,
        write_quorum: command.write_quorum,
        set: command.set,
        ..SegmentRecord::default()
    };
    view.put(segment::row(record.segment_id()), &record);
    Ok(Reply::Segment(record))
}

pub(super) fn seal(view: &mut View<'_>, command: &SealSegment) -> Result<Reply, ApplyError> {
    let row = segment::row(SegmentId(command.segment));
    let mut record: SegmentRecord = view.get(&row)?.ok_or(Reject::NoSuchSegment)?;
    if record.state() == SegmentState::Sealed {
        return if record.length == command.length {
            Ok(Reply::Segment(record))
        } else {
            Err(Reject::SegmentSealed.into())
        };
    }
    if !command.replicas.is_empty() {
        // Only nodes that were to follow the writer can have bytes.
        let is_known = |replica: &Replica| record.replica_of(NodeId(replica.node)).is_some();
        let has_whole = command.replicas.iter().any(|replica| !replica.is_suspect);
        if !command.replicas.iter().all(is_known) || !are_on_distinct_nodes(&command.replicas) || !has_whole {
            return Err(malformed("the seal names other replicas than the segment was created with"));
        }
        record.replicas.clone_from(&command.replicas);
        record.changes += 1;
    }
    record.state = SegmentState::Sealed as i32;
    record.length = command.length;
    record.marked = 0;
    view.put(row, &record);
    Ok(Reply::Segment(record))
}

fn are_on_distinct_nodes(replicas: &[Replica]) -> bool {
    let nodes: BTreeSet<u64> = replicas.iter().map(|replica| replica.node).collect();
    nodes.len() == replicas.len()
}

pub(super) fn mark(view: &mut View<'_>, command: MarkSegment) -> Result<Reply, ApplyError> {
    let row = segment::row(SegmentId(command.segment));
    let mut record: SegmentRecord = view.get(&row)?.ok_or(Reject::NoSuchSegment)?;
    if record.state() == SegmentState::Open && record.marked < command.length {
        record.marked = command.length;
        view.put(row, &record);
    }
    Ok(Reply::Done)
}

pub(super) fn place(view: &mut View<'_>, command: &PlaceSegment) -> Result<Reply, ApplyError> {
    let row = segment::row(SegmentId(command.segment));
    let record: SegmentRecord = view.get(&row)?.ok_or(Reject::NoSuchSegment)?;
    let placed = match command.changes {
        None => placed_alone(&record, command),
        Some(changes) => placed_among(&record, command, changes),
    };
    let placed = placed.ok_or(Reject::SegmentElsewhere)?;
    if placed != record {
        view.put(row, &placed);
    }
    Ok(Reply::Segment(placed))
}

/// The record of a segment after the move of its only replica, by a command of before cluster version 3;
/// `None` if the command is rejected.
fn placed_alone(record: &SegmentRecord, command: &PlaceSegment) -> Option<SegmentRecord> {
    let is_at = |place: &Replica| record.replicas == std::slice::from_ref(place);
    if is_at(&command.to) {
        return Some(record.clone());
    }
    let is_movable = record.state() == SegmentState::Sealed && is_at(&command.from);
    is_movable.then(|| SegmentRecord { replicas: vec![command.to.clone()], ..record.clone() })
}

/// The record of a segment after the move of one of its replicas; `None` if the command is rejected. An
/// upstream has the segment for all nodes, so a move to or from one replaces the whole list.
fn placed_among(record: &SegmentRecord, command: &PlaceSegment, changes: u64) -> Option<SegmentRecord> {
    let (from, to) = (&command.from, &command.to);
    if record.changes == changes.saturating_add(1) && record.replicas.contains(to) {
        return Some(record.clone());
    }
    let position = record.replicas.iter().position(|replica| replica == from)?;
    if record.state() != SegmentState::Sealed || record.changes != changes {
        return None;
    }
    let is_upstream = |place: &Replica| place.tier() == Ok(SegmentTier::Upstream);
    let mut replicas = record.replicas.clone();
    if is_upstream(from) || is_upstream(to) {
        replicas = vec![to.clone()];
    } else {
        replicas[position] = to.clone();
    }
    Some(SegmentRecord { replicas, changes: changes + 1, ..record.clone() })
}

pub(super) fn set_replicas(view: &mut View<'_>, command: &SetReplicas) -> Result<Reply, ApplyError> {
    if command.replicas.is_empty() || !are_on_distinct_nodes(&command.replicas) {
        return Err(malformed("a segment has at least one replica, and at most one on each node"));
    }
    let row = segment::row(SegmentId(command.segment));
    let mut record: SegmentRecord = view.get(&row)?.ok_or(Reject::NoSuchSegment)?;
    if record.changes == command.changes.saturating_add(1) && record.replicas == command.replicas {
        return Ok(Reply::Segment(record));
    }
    // A move to an upstream that was proposed before cluster version 3 did not count its change.
    let is_outdated = record.changes != command.changes || record.is_at_upstream();
    if record.state() != SegmentState::Sealed || is_outdated {
        return Err(Reject::SegmentElsewhere.into());
    }
    record.replicas.clone_from(&command.replicas);
    record.changes += 1;
    view.put(row, &record);
    Ok(Reply::Segment(record))
}

pub(super) fn fence(view: &mut View<'_>, command: FenceSegment) -> Result<Reply, ApplyError> {
    let segment = SegmentId(command.segment);
    if segment.0 == 0 {
        return Err(malformed("the fence has no segment"));
    }
    fences::fence_segment(view, segment)?;
    let row = segment_row(segment);
    if let Some(usage) = view.get::<SegmentUsage>(&row)? {
        view.put(row, &SegmentUsage { fenced: true, ..usage });
    }
    Ok(Reply::Done)
}

/// Removes a segment that every group has released that may refer to it. In a catalogue of several groups the
/// proposer has looked at each of them: a group that has released a segment never refers to it again, so a
/// later change of that group does not matter. A group that it does not name may refer to it if it owns keys
/// by now, and is or was in the set of the segment by now.
pub(super) fn remove(view: &mut View<'_>, command: &RemoveSegment) -> Result<Reply, ApplyError> {
    let segment = SegmentId(command.segment);
    let row = segment::row(segment);
    let Some(record) = view.get::<SegmentRecord>(&row)? else { return Ok(Reply::Done) };
    let is_released = if command.released_in.is_empty() && record.set == FIRST_SET {
        fences::is_fenced(view, segment)? && !view.has(&segment_row(segment))?
    } else {
        let named = |group: &u32| command.released_in.contains(group);
        referrers(view, record.set)?.iter().all(named)
    };
    if record.state() != SegmentState::Sealed || !is_released {
        return Err(Reject::SegmentInUse.into());
    }
    view.delete(row);
    Ok(Reply::Done)
}

/// The groups that own keys and may refer to segments of a set.
fn referrers(view: &View<'_>, set: u32) -> Result<BTreeSet<u32>, StoreError> {
    let mut referrers = BTreeSet::new();
    for group in ranges::owning_groups(view)? {
        if sets::of_group(view, group)?.may_refer_to(set) {
            referrers.insert(group);
        }
    }
    Ok(referrers)
}

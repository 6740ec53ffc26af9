//! Segments: created, marked, sealed and moved in group 0, fenced in every object group, removed in group 0.

use super::bucket::next_id;
use super::{fence as fences, malformed};
use crate::view::{ApplyError, View};
use mlgw_common::SegmentId;
use mlgw_formats::command::{
    CreateSegment, FenceSegment, MarkSegment, PlaceSegment, Reject, RemoveSegment, Reply, SealSegment,
};
use mlgw_formats::schema::meta::MetaRow;
use mlgw_formats::schema::usage::segment_row;
use mlgw_formats::schema::{Replica, SegmentRecord, SegmentState, SegmentUsage, segment};

pub(super) fn create(view: &mut View<'_>, command: &CreateSegment) -> Result<Reply, ApplyError> {
    let record = SegmentRecord {
        id: next_id(view, MetaRow::NextSegment, 1)?,
        generation: 1,
        class: command.class,
        state: SegmentState::Open as i32,
        length: 0,
        created_ms: command.created_ms,
        replicas: vec![Replica {
            node: command.node,
            tier: 0,
            location: command.location.clone(),
            ..Replica::default()
        }],
        marked: 0,
        stamp: command.stamp,
    };
    view.put(segment::row(record.segment_id()), &record);
    Ok(Reply::Segment(record))
}

pub(super) fn seal(view: &mut View<'_>, command: SealSegment) -> Result<Reply, ApplyError> {
    let row = segment::row(SegmentId(command.segment));
    let mut record: SegmentRecord = view.get(&row)?.ok_or(Reject::NoSuchSegment)?;
    if record.state() == SegmentState::Sealed {
        return if record.length == command.length {
            Ok(Reply::Segment(record))
        } else {
            Err(Reject::SegmentSealed.into())
        };
    }
    record.state = SegmentState::Sealed as i32;
    record.length = command.length;
    record.marked = 0;
    view.put(row, &record);
    Ok(Reply::Segment(record))
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
    let mut record: SegmentRecord = view.get(&row)?.ok_or(Reject::NoSuchSegment)?;
    let is_at = |place: &Replica| record.replicas == std::slice::from_ref(place);
    if is_at(&command.to) {
        return Ok(Reply::Segment(record));
    }
    if record.state() != SegmentState::Sealed || !is_at(&command.from) {
        return Err(Reject::SegmentElsewhere.into());
    }
    record.replicas = vec![command.to.clone()];
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

/// Removes a segment. The proposer has checked that no other group references it; this group checks its own
/// rows.
pub(super) fn remove(view: &mut View<'_>, command: RemoveSegment) -> Result<Reply, ApplyError> {
    let segment = SegmentId(command.segment);
    let row = segment::row(segment);
    let Some(record) = view.get::<SegmentRecord>(&row)? else { return Ok(Reply::Done) };
    let sealed = record.state() == SegmentState::Sealed;
    if !sealed || !fences::is_fenced(view, segment)? || view.has(&segment_row(segment))? {
        return Err(Reject::SegmentInUse.into());
    }
    view.delete(row);
    Ok(Reply::Done)
}

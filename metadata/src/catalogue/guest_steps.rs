//! Steps that end that a group is a guest of a set, over the groups of a catalogue or those of a simulation
//! (`guest_simulation.rs`). What holds, also after a power loss, is in `off_set.rs`.

use super::groups::SYSTEM_GROUP;
use super::options::ProposeError;
use crate::apply::is_released;
use crate::store_error::StoreError;
use crate::view::RowReader;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use mlgw_common::SegmentId;
use mlgw_formats::command::{Change, EndGuest, FenceSegment, Reply};
use mlgw_formats::schema::usage::segment_row;
use mlgw_formats::schema::{GroupSet, SegmentRecord};

/// Fences that are proposed at a time.
const FENCES_AT_ONCE: usize = 64;

/// The groups that the node of these steps reads, and to which it proposes commands.
pub(super) trait GuestGroups: Sync {
    /// Reads the unfenced segments of a set by the rows of the node, which may be old. `None` if the group
    /// refers to a segment of the set by them.
    fn read_unfenced(
        &self,
        group: u32,
        set: u32,
    ) -> impl Future<Output = Result<Option<UnfencedSegments>, ProposeError>> + Send;

    /// Proposes a command to a group.
    fn propose_to(
        &self,
        group: u32,
        change: Change,
    ) -> impl Future<Output = Result<Reply, ProposeError>> + Send;
}

/// Segments of a set that are not fenced in a group, which refers to no segment of the set.
pub(super) struct UnfencedSegments {
    /// Id of the next segment, from before the segments of the set were read.
    pub(super) next_segment: SegmentId,
    /// The segments. The group may still begin to refer to them.
    pub(super) segments: Vec<SegmentId>,
}

/// Searches the rows of all segments for those of a set that are not fenced in a group, by the rows of the
/// group. The id of the next segment was read before.
pub(super) fn unfenced_segments(
    next_segment: SegmentId,
    records: &[SegmentRecord],
    group: &dyn RowReader,
    set: u32,
) -> Result<Option<UnfencedSegments>, StoreError> {
    let mut segments = Vec::new();
    for record in records.iter().filter(|record| record.set == set) {
        let segment = record.segment_id();
        if is_released(group, segment)? {
            continue;
        }
        if group.get(&segment_row(segment))?.is_some() {
            return Ok(None);
        }
        segments.push(segment);
    }
    Ok(Some(UnfencedSegments { next_segment, segments }))
}

/// Ends that a group is a guest of a set: fences every segment of the set in the group, reads the references
/// again, and then changes the row. Returns false if there are references. `of` is the row as it was read.
pub(super) async fn end_guest(
    groups: &impl GuestGroups,
    of: &GroupSet,
    set: u32,
) -> Result<bool, ProposeError> {
    let (group, changes) = (of.group, of.changes);
    let Some(before) = groups.read_unfenced(group, set).await? else { return Ok(false) };
    let next_segment = before.next_segment.0;
    let fences = before
        .segments
        .into_iter()
        .map(|segment| groups.propose_to(group, Change::FenceSegment(FenceSegment { segment: segment.0 })));
    let fencing = stream::iter(fences).buffer_unordered(FENCES_AT_ONCE);
    fencing.try_for_each(|_| std::future::ready(Ok(()))).await?;
    // A command that was proposed before may have referred to a segment until it was fenced.
    let after = groups.read_unfenced(group, set).await?;
    if after.is_none_or(|after| !after.segments.is_empty()) {
        return Ok(false);
    }
    groups.propose_to(SYSTEM_GROUP, Change::EndGuest(EndGuest { group, set, changes, next_segment })).await?;
    Ok(true)
}

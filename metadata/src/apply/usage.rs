//! Counters: what buckets hold and what segments are referenced for.
//!
//! Every reference is counted here when a record begins to hold it, so this is also where a fenced
//! segment refuses new ones. A segment that has references says so itself; only the first reference
//! to one looks at the ranges.

use super::fence;
use crate::command::Reject;
use crate::schema::usage::{bucket_row, segment_row};
use crate::schema::{BucketUsage, Extent, SegmentUsage};
use crate::view::{ApplyError, StoreError, View};
use mlgw_common::BucketId;
use std::collections::BTreeMap;

/// Changes a bucket's counters.
pub(super) fn bucket(
    view: &mut View<'_>,
    bucket: BucketId,
    change: impl FnOnce(&mut BucketUsage),
) -> Result<(), StoreError> {
    let row = bucket_row(bucket);
    let mut usage: BucketUsage = view.get(&row)?.unwrap_or_default();
    change(&mut usage);
    view.put(row, &usage);
    Ok(())
}

/// Counts extents that a record refers to from now on, unless their segment is fenced.
pub(super) fn refer<'e>(
    view: &mut View<'_>,
    extents: impl IntoIterator<Item = &'e Extent>,
) -> Result<(), ApplyError> {
    for (segment, sum) in by_segment(extents) {
        let row = segment_row(segment.into());
        let known: Option<SegmentUsage> = view.get(&row)?;
        let fenced = match &known {
            Some(usage) => usage.fenced,
            None => fence::is_raised(view, segment.into())?,
        };
        if fenced {
            return Err(Reject::SegmentFenced { segment }.into());
        }
        let mut usage = known.unwrap_or_default();
        usage.add(&sum);
        view.put(row, &usage);
    }
    Ok(())
}

/// Counts extents that no record refers to any more.
pub(super) fn unrefer<'e>(
    view: &mut View<'_>,
    extents: impl IntoIterator<Item = &'e Extent>,
) -> Result<(), StoreError> {
    let freed = extents.into_iter().inspect(|extent| view.free(extent.segment.into(), extent.offset));
    for (segment, sum) in by_segment(freed) {
        let row = segment_row(segment.into());
        let usage: SegmentUsage = view.get(&row)?.unwrap_or_default();
        let (Some(bytes), Some(extents)) =
            (usage.bytes.checked_sub(sum.bytes), usage.extents.checked_sub(sum.extents))
        else {
            return Err(StoreError(format!("segment {segment} is referenced less than its extents say")));
        };
        if extents == 0 {
            view.delete(row);
        } else {
            view.put(row, &SegmentUsage { bytes, extents, ..usage });
        }
    }
    Ok(())
}

fn by_segment<'e>(extents: impl IntoIterator<Item = &'e Extent>) -> BTreeMap<u64, SegmentUsage> {
    let mut sums = BTreeMap::<u64, SegmentUsage>::new();
    for extent in extents {
        let sum = sums.entry(extent.segment).or_default();
        sum.bytes += extent.record_bytes();
        sum.extents += 1;
    }
    sums
}

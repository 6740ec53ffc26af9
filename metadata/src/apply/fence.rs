//! Fenced segments, which must not be referenced again, as ranges that never touch each other.

use crate::store_error::StoreError;
use crate::view::View;
use mlgw_common::SegmentId;
use mlgw_formats::key::Family;
use mlgw_formats::schema::decode;
use mlgw_formats::schema::fence::{self, FencedRange};

/// True if `segment` is fenced.
pub(super) fn is_fenced(view: &View<'_>, segment: SegmentId) -> Result<bool, StoreError> {
    Ok(range_from(view, segment)?.is_some_and(|(first, _)| first <= segment.0))
}

/// Fences `segment`, merging it with the ranges next to it.
pub(super) fn fence_segment(view: &mut View<'_>, segment: SegmentId) -> Result<(), StoreError> {
    assert!(segment.0 > 0, "segment ids begin at 1");
    let behind = range_from(view, segment)?;
    if behind.is_some_and(|(first, _)| first <= segment.0) {
        return Ok(());
    }
    let before_row = fence::row(SegmentId(segment.0.saturating_sub(1)));
    let before: Option<FencedRange> = view.get(&before_row)?;
    let first = before.map_or(segment.0, |range| range.first);
    if before.is_some() {
        view.delete(before_row);
    }
    let last = match behind {
        Some((first, last)) if first == segment.0 + 1 => last,
        _ => segment,
    };
    view.put(fence::row(last), &FencedRange { first });
    Ok(())
}

/// First and last segment of the first range that ends at or after `segment`.
fn range_from(view: &View<'_>, segment: SegmentId) -> Result<Option<(u64, SegmentId)>, StoreError> {
    let rows = view.range(&fence::row(segment), &Family::Fence.end(), 1)?;
    let Some((row, value)) = rows.first() else { return Ok(None) };
    Ok(Some((decode::<FencedRange>(value)?.first, fence::key_of(row)?)))
}

#[cfg(test)]
mod tests {
    use super::{fence_segment, is_fenced};
    use crate::view::{MemoryRows, View};
    use mlgw_common::SegmentId;
    use proptest::{prop_assert_eq, proptest};
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn fenced_ranges_match_a_set_and_never_touch(segments in proptest::collection::vec(1u64..40, 0..60)) {
            let rows = MemoryRows::default();
            let mut view = View::new(&rows);
            let mut set = BTreeSet::new();
            for segment in segments {
                fence_segment(&mut view, SegmentId(segment)).unwrap();
                set.insert(segment);
            }
            for segment in 0..42 {
                prop_assert_eq!(is_fenced(&view, SegmentId(segment)).unwrap(), set.contains(&segment));
            }
            let stretches = set.iter().filter(|&&segment| !set.contains(&(segment + 1))).count();
            view.keep_changes();
            let mut stored = MemoryRows::default();
            stored.write(view.into_changes().0);
            prop_assert_eq!(stored.0.len(), stretches);
        }
    }
}

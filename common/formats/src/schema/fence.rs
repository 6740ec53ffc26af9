//! Segments that no record of a group may refer to. Rows: `fence`, keyed by the last segment of a range.
//!
//! A segment is fenced permanently before it is compacted or released: a proposal that was in flight when the
//! segment was removed is rejected whenever it arrives. Ids are never reused and most segments are removed
//! sooner or later, so fences are stored as ranges without gaps between them. Their number is at most that of
//! the live segments, plus one.

use crate::key::{BadKey, Family, KeyReader, KeyWriter};
use mlgw_common::SegmentId;

/// A range of fenced segments. Its last segment is the row's key.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct FencedRange {
    /// First segment of the range.
    #[prost(uint64, tag = "1")]
    pub first: u64,
}

/// Returns the row key of the range that ends with `last`.
#[must_use]
pub fn row(last: SegmentId) -> Vec<u8> {
    KeyWriter::new(Family::Fence).u64(last.0).finish()
}

/// Returns the last segment of a row's range.
///
/// # Errors
/// Returns [`BadKey`] if `row` is not a key of this family.
pub fn key_of(row: &[u8]) -> Result<SegmentId, BadKey> {
    let mut fields = KeyReader::new(Family::Fence, row)?;
    let last = SegmentId(fields.u64()?);
    fields.end()?;
    Ok(last)
}

#[cfg(test)]
mod tests {
    use super::{FencedRange, key_of, row};
    use crate::schema::golden;
    use mlgw_common::SegmentId;
    use proptest::{prop_assert_eq, proptest};

    proptest! {
        #[test]
        fn rows_sort_by_last_segment(a: u64, b: u64) {
            prop_assert_eq!(row(SegmentId(a)).cmp(&row(SegmentId(b))), a.cmp(&b));
            prop_assert_eq!(key_of(&row(SegmentId(a))), Ok(SegmentId(a)));
        }
    }

    #[test]
    fn the_record_has_these_bytes() {
        golden::check(&FencedRange { first: 300 }, include_str!("golden/fence.hex"));
    }
}

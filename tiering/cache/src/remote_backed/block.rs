//! Division of an origin's objects into blocks. Pure arithmetic.

use mlgw_common::limits::COPY_BLOCK_BYTES;
use std::ops::Range;

/// Returns the block that contains byte `at`.
pub(super) const fn number_at(at: u64) -> u64 {
    at / COPY_BLOCK_BYTES
}

/// Returns the byte range of block `number` of an object of `size` bytes.
pub(super) fn range(number: u64, size: u64) -> Range<u64> {
    let first = number.saturating_mul(COPY_BLOCK_BYTES).min(size);
    first..first.saturating_add(COPY_BLOCK_BYTES).min(size)
}

/// Returns the blocks that a range touches.
pub(super) fn touched_by(range: &Range<u64>) -> Range<u64> {
    mlgw_policies::touched_blocks(range, COPY_BLOCK_BYTES)
}

#[cfg(test)]
mod tests {
    use super::{number_at, range, touched_by};
    use mlgw_common::limits::COPY_BLOCK_BYTES as BLOCK;
    use proptest::{prop_assert, prop_assert_eq, proptest};

    proptest! {
        #[test]
        fn blocks_cover_an_object_without_gaps(size in 1..5 * BLOCK) {
            let blocks = touched_by(&(0..size));
            prop_assert_eq!((range(blocks.start, size).start, range(blocks.end - 1, size).end), (0, size));
            for number in blocks.start..blocks.end {
                let range = range(number, size);
                prop_assert!(
                    !range.is_empty()
                        && number_at(range.start) == number
                        && number_at(range.end - 1) == number
                );
            }
        }

        #[test]
        fn a_range_touches_the_blocks_of_its_ends(first in 0..4 * BLOCK, bytes in 1..BLOCK) {
            let blocks = touched_by(&(first..first + bytes));
            prop_assert_eq!((blocks.start, blocks.end), (number_at(first), number_at(first + bytes - 1) + 1));
        }
    }

    #[test]
    fn blocks_beyond_the_end_are_empty() {
        assert!(range(2, BLOCK).is_empty() && range(u64::MAX, 5).is_empty());
    }
}

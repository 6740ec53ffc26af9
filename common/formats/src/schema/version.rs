//! Versions that are not current. Rows: `version`, keyed by (bucket id, escaped key, !seq), newest first.
//!
//! The value is an [`ObjectVersion`](super::ObjectVersion), as in `object`. No code writes this family until
//! versioning is supported; the key is fixed now so that the format need not change then.

use crate::key::{self, BadKey, Family, KeyReader};
use mlgw_common::{BucketId, Seq};
use std::borrow::Cow;

/// Returns the row key of `key`'s version `seq`.
#[must_use]
pub fn row(bucket: BucketId, key: &[u8], seq: Seq) -> Vec<u8> {
    key::named_key(Family::Version, bucket, key).u64(!seq.0).finish()
}

/// Returns the bucket, the object key and the sequence number in a row key.
///
/// # Errors
/// Returns [`BadKey`] if `row` is not a key of this family.
pub fn key_of(row: &[u8]) -> Result<(BucketId, Cow<'_, [u8]>, Seq), BadKey> {
    let mut fields = KeyReader::new(Family::Version, row)?;
    let bucket = BucketId(fields.u64()?);
    let key = fields.name()?;
    let seq = Seq(!fields.u64()?);
    fields.end()?;
    Ok((bucket, key, seq))
}

#[cfg(test)]
mod tests {
    use super::{key_of, row};
    use mlgw_common::{BucketId, Seq};
    use proptest::prelude::{any, prop};
    use proptest::{prop_assert_eq, proptest};
    use std::cmp::Reverse;

    proptest! {
        #[test]
        fn rows_sort_by_key_and_then_newest_first(
            a in prop::collection::vec(0u8..3, 1..6),
            b in prop::collection::vec(0u8..3, 1..6),
            x in any::<u64>(),
            y in any::<u64>(),
        ) {
            let (p, q) = (row(BucketId(1), &a, Seq(x)), row(BucketId(1), &b, Seq(y)));
            prop_assert_eq!(p.cmp(&q), (&a, Reverse(x)).cmp(&(&b, Reverse(y))));
            let (bucket, key, seq) = key_of(&p).unwrap();
            prop_assert_eq!((bucket, key.as_ref(), seq), (BucketId(1), &a[..], Seq(x)));
        }
    }

    #[test]
    fn the_key_has_these_bytes() {
        let mut expected = vec![0x12, 0, 0, 0, 0, 0, 0, 0, 1, b'k', 0, 1];
        expected.extend([0xFF; 7]);
        expected.push(0xFD);
        assert_eq!(row(BucketId(1), b"k", Seq(2)), expected);
    }
}

//! Bodies whose pages and part rows wait to be freed. Rows: `release`, keyed by body id.
//!
//! `apply` of a delete changes one record and queues the body here. Bounded commands free the rows step by
//! step and store their position in the record.

use crate::key::{self, BadKey, Family};
use mlgw_common::BodyId;

/// A body in the release queue.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Release {
    /// Rows to free.
    #[prost(enumeration = "ReleaseScope", tag = "1")]
    pub scope: i32,
    /// Parts up to this number have been visited.
    #[prost(uint32, tag = "2")]
    pub after_part: u32,
}

/// Rows of a body to free.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum ReleaseScope {
    /// All its pages and parts.
    Whole = 0,
    /// Parts that its part index does not contain.
    UnnamedParts = 1,
}

/// Returns the row key of a queued body.
#[must_use]
pub fn row(body: BodyId) -> Vec<u8> {
    key::number_key(Family::Release, body.0)
}

/// Returns the body in a row key.
///
/// # Errors
/// Returns [`BadKey`] if `row` is not a key of this family.
pub fn key_of(row: &[u8]) -> Result<BodyId, BadKey> {
    key::parse_number_key(Family::Release, row).map(BodyId)
}

#[cfg(test)]
mod tests {
    use super::{Release, key_of, row};
    use crate::schema::golden;
    use mlgw_common::BodyId;
    use proptest::{prop_assert_eq, proptest};

    proptest! {
        #[test]
        fn rows_sort_by_body(a: u64, b: u64) {
            prop_assert_eq!(row(BodyId(a)).cmp(&row(BodyId(b))), a.cmp(&b));
            prop_assert_eq!(key_of(&row(BodyId(a))), Ok(BodyId(a)));
        }
    }

    #[test]
    fn the_record_has_these_bytes() {
        let release = Release { scope: 1, after_part: 300 };
        golden::check(&release, include_str!("golden/release.hex"));
    }
}

//! `release` (at the body id): bodies whose pages and part rows wait to be freed.
//!
//! `apply` of a delete touches one record and puts the rest here; bounded commands free it row by
//! row, and remember how far they came in the record itself.

use crate::key::{self, BadKey, Family};
use mlgw_common::BodyId;

/// A body that waits.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Release {
    /// What of it goes.
    #[prost(enumeration = "ReleaseScope", tag = "1")]
    pub scope: i32,
    /// Parts up to this number have been looked at.
    #[prost(uint32, tag = "2")]
    pub after_part: u32,
}

/// What of a body goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum ReleaseScope {
    /// All its pages and parts.
    Whole = 0,
    /// Parts that its part index does not name.
    UnnamedParts = 1,
}

/// The row of a waiting body.
#[must_use]
pub fn row(body: BodyId) -> Vec<u8> {
    key::numbered(Family::Release, body.0)
}

/// The body in a row.
///
/// # Errors
/// When it is no row of this family.
pub fn key_of(row: &[u8]) -> Result<BodyId, BadKey> {
    key::number_of(Family::Release, row).map(BodyId)
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

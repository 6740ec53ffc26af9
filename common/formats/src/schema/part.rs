//! Parts of multipart objects. Rows: `part`, keyed by (body id, part number); `part_extent`, keyed by (body
//! id, part number, first byte).
//!
//! Parts stay at the keys of their UploadPart requests: the completed object reads the same rows. A part with
//! few extents contains them; a longer one has pages, so that completing an upload of 10,000 large parts
//! reads 10,000 small rows.

use super::extent::Extent;
use super::object::Checksum;
use crate::key::{self, BadKey, Family, KeyReader};
use mlgw_common::{BodyId, PartNumber, Seq, Timestamp};

/// Maximum extents in a part's own row: 8 MiB, the usual part size of the AWS tools.
pub const PART_INLINE_EXTENTS_MAX: usize = 8;

/// A part of an upload, or of the completed object.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PartRecord {
    /// Sequence number of the write in its group, which distinguishes a part from its replacement. Set by
    /// `apply`.
    #[prost(uint64, tag = "1")]
    pub seq: u64,
    /// Length in bytes.
    #[prost(uint64, tag = "2")]
    pub size: u64,
    /// ETag without quotes.
    #[prost(string, tag = "3")]
    pub etag: String,
    /// Time of the write, milliseconds since the epoch.
    #[prost(int64, tag = "4")]
    pub modified_ms: i64,
    /// Checksums from the client or computed by mlgw.
    #[prost(message, repeated, tag = "5")]
    pub checksums: Vec<Checksum>,
    /// Extents of the part. In a command: all of them. In the part's row: those of a part that has few.
    #[prost(message, repeated, tag = "6")]
    pub extents: Vec<Extent>,
    /// Number of extents if they are in pages, else 0; set by `apply`.
    #[prost(uint32, tag = "7")]
    pub paged_extents: u32,
}

impl PartRecord {
    /// Returns the part's sequence number, which distinguishes it from its replacement.
    #[must_use]
    pub const fn order(&self) -> Seq {
        Seq(self.seq)
    }

    /// Returns the time of the write.
    #[must_use]
    pub const fn modified(&self) -> Timestamp {
        Timestamp(self.modified_ms)
    }
}

/// Returns the row key of a part.
#[must_use]
pub fn row(body: BodyId, number: PartNumber) -> Vec<u8> {
    key::body_key(Family::Part, body).u16(number.get()).finish()
}

/// Returns the smallest row key of a part with a larger number than `number`.
#[must_use]
pub fn row_after(body: BodyId, number: u16) -> Vec<u8> {
    key::after_prefix(key::body_key(Family::Part, body).u16(number).finish())
}

/// Returns the start of the row keys of a body's parts.
#[must_use]
pub fn rows_start(body: BodyId) -> Vec<u8> {
    key::body_key(Family::Part, body).finish()
}

/// Returns the end of the row keys of a body's parts, exclusive.
#[must_use]
pub fn rows_end(body: BodyId) -> Vec<u8> {
    key::after_prefix(rows_start(body))
}

/// Returns the body and the part number in a row key.
///
/// # Errors
/// Returns [`BadKey`] if `row` is not a key of this family.
pub fn key_of(row: &[u8]) -> Result<(BodyId, PartNumber), BadKey> {
    let mut fields = KeyReader::new(Family::Part, row)?;
    let body = BodyId(fields.u64()?);
    let number = PartNumber::new(u32::from(fields.u16()?)).ok_or(BadKey)?;
    fields.end()?;
    Ok((body, number))
}

/// Returns the row key of the page of a part's extents that begins at byte `first` of the part.
#[must_use]
pub fn page_row(body: BodyId, number: PartNumber, first: u64) -> Vec<u8> {
    key::body_key(Family::PartExtent, body).u16(number.get()).u64(first).finish()
}

/// Returns the end of the row keys of a part's pages, exclusive.
#[must_use]
pub fn pages_end(body: BodyId, number: PartNumber) -> Vec<u8> {
    key::after_prefix(key::body_key(Family::PartExtent, body).u16(number.get()).finish())
}

/// Returns body, part number and first byte in the row key of a page.
///
/// # Errors
/// Returns [`BadKey`] if `row` is not a key of this family.
pub fn page_key_of(row: &[u8]) -> Result<(BodyId, PartNumber, u64), BadKey> {
    let mut fields = KeyReader::new(Family::PartExtent, row)?;
    let body = BodyId(fields.u64()?);
    let number = PartNumber::new(u32::from(fields.u16()?)).ok_or(BadKey)?;
    let first = fields.u64()?;
    fields.end()?;
    Ok((body, number, first))
}

#[cfg(test)]
mod tests {
    use super::{PartRecord, key_of, page_key_of, page_row, pages_end, row, row_after, rows_end, rows_start};
    use crate::schema::{Checksum, extent, golden};
    use mlgw_common::{BodyId, PartNumber};
    use proptest::{prop_assert, prop_assert_eq, proptest};

    proptest! {
        #[test]
        fn rows_sort_by_body_and_number(a: u64, b: u64, x in 1u32..=10_000, y in 1u32..=10_000, byte: u64) {
            let (m, n) = (PartNumber::new(x).unwrap(), PartNumber::new(y).unwrap());
            let (p, q) = (row(BodyId(a), m), row(BodyId(b), n));
            prop_assert_eq!(p.cmp(&q), (a, x).cmp(&(b, y)));
            prop_assert_eq!(key_of(&p), Ok((BodyId(a), m)));
            prop_assert!(rows_start(BodyId(a)) < p && p < rows_end(BodyId(a)));
            prop_assert_eq!(row(BodyId(a), n) >= row_after(BodyId(a), m.get()), y > x);
            let page = page_row(BodyId(a), m, byte);
            prop_assert_eq!(page_key_of(&page), Ok((BodyId(a), m, byte)));
            prop_assert!(page < pages_end(BodyId(a), m));
        }
    }

    #[test]
    fn the_record_has_these_bytes() {
        let part = PartRecord {
            seq: 4097,
            size: 300,
            etag: "9a".into(),
            modified_ms: 1_700_000_000_123,
            checksums: vec![Checksum { algorithm: 1, kind: 0, value: vec![1, 2, 3, 4] }],
            extents: vec![extent::tests::full()],
            paged_extents: 12,
        };
        golden::check(&part, include_str!("golden/part.hex"));
    }
}

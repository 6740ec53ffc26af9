//! Multipart uploads in progress. Rows: `upload`, keyed by (bucket id, escaped key, body id).
//!
//! Clients see the body id encrypted, as the upload id (`UploadKey`). The row is deleted when the upload is
//! completed or aborted. Its parts become those of the object (completed) or wait in `release` (aborted).

use super::object::{EncryptionEnvelope, Pair, Retention};
use crate::key::{self, BadKey, Family, KeyReader, KeyWriter};
use mlgw_common::{BodyId, BucketId, Timestamp};
use std::borrow::Cow;

/// A multipart upload.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Upload {
    /// Id of the body that the upload becomes.
    #[prost(uint64, tag = "1")]
    pub body_id: u64,
    /// The object's key.
    #[prost(string, tag = "2")]
    pub key: String,
    /// Time of the start, milliseconds since the epoch.
    #[prost(int64, tag = "3")]
    pub initiated_ms: i64,
    /// Owner id.
    #[prost(string, tag = "4")]
    pub owner: String,
    /// System headers of the future object.
    #[prost(message, repeated, tag = "5")]
    pub headers: Vec<Pair>,
    /// User metadata of the future object.
    #[prost(message, repeated, tag = "6")]
    pub metadata: Vec<Pair>,
    /// Tags of the future object.
    #[prost(message, repeated, tag = "7")]
    pub tags: Vec<Pair>,
    /// Storage class of the future object.
    #[prost(string, tag = "8")]
    pub storage_class: String,
    /// Checksum algorithm of the parts, if the client requested one.
    #[prost(enumeration = "super::object::ChecksumAlgorithm", optional, tag = "9")]
    pub checksum_algorithm: Option<i32>,
    /// Input of the object's checksum.
    #[prost(enumeration = "super::object::ChecksumKind", optional, tag = "10")]
    pub checksum_kind: Option<i32>,
    /// Encryption of the future object.
    #[prost(message, optional, tag = "11")]
    pub encryption: Option<EncryptionEnvelope>,
    /// Retention of the future object.
    #[prost(message, optional, tag = "12")]
    pub retention: Option<Retention>,
    /// Legal hold of the future object.
    #[prost(bool, tag = "13")]
    pub legal_hold: bool,
    /// Bytes of its parts; maintained by `apply`.
    #[prost(uint64, tag = "14")]
    pub part_bytes: u64,
    /// The access key that the parts and the object are charged to; empty if none.
    #[prost(string, tag = "15")]
    pub payer: String,
}

impl Upload {
    /// Returns the body id of the upload.
    #[must_use]
    pub const fn body(&self) -> BodyId {
        BodyId(self.body_id)
    }

    /// Returns the time of the start.
    #[must_use]
    pub const fn initiated(&self) -> Timestamp {
        Timestamp(self.initiated_ms)
    }
}

/// Returns the row key of an upload.
#[must_use]
pub fn row(bucket: BucketId, key: &[u8], body: BodyId) -> Vec<u8> {
    key::named_key(Family::Upload, bucket, key).u64(body.0).finish()
}

/// Returns the smallest row key of an upload whose object key begins with `prefix` or sorts after it.
#[must_use]
pub fn row_from(bucket: BucketId, prefix: &[u8]) -> Vec<u8> {
    KeyWriter::with_capacity(Family::Upload, prefix.len() + 16).u64(bucket.0).name_prefix(prefix).finish()
}

/// Returns the smallest row key after all uploads of `key`.
#[must_use]
pub fn row_after_key(bucket: BucketId, key: &[u8]) -> Vec<u8> {
    key::after_prefix(key::named_key(Family::Upload, bucket, key).finish())
}

/// Returns the end of a bucket's row keys, exclusive.
#[must_use]
pub fn rows_end(bucket: BucketId) -> Vec<u8> {
    key::after_prefix(KeyWriter::new(Family::Upload).u64(bucket.0).finish())
}

/// Returns the bucket, the object key and the body id in a row key.
///
/// # Errors
/// Returns [`BadKey`] if `row` is not a key of this family.
pub fn key_of(row: &[u8]) -> Result<(BucketId, Cow<'_, [u8]>, BodyId), BadKey> {
    let mut fields = KeyReader::new(Family::Upload, row)?;
    let bucket = BucketId(fields.u64()?);
    let key = fields.name()?;
    let body = BodyId(fields.u64()?);
    fields.end()?;
    Ok((bucket, key, body))
}

#[cfg(test)]
mod tests {
    use super::{Upload, key_of, row, row_from, rows_end};
    use crate::schema::{EncryptionEnvelope, Pair, Retention, golden};
    use mlgw_common::{BodyId, BucketId};
    use proptest::prelude::{any, prop};
    use proptest::{prop_assert, prop_assert_eq, proptest};

    proptest! {
        #[test]
        fn rows_sort_by_key_and_then_id(
            a in prop::collection::vec(0u8..3, 1..6),
            b in prop::collection::vec(0u8..3, 1..6),
            x in any::<u64>(),
            y in any::<u64>(),
        ) {
            let id = BucketId(1);
            let (p, q) = (row(id, &a, BodyId(x)), row(id, &b, BodyId(y)));
            prop_assert_eq!(p.cmp(&q), (&a, x).cmp(&(&b, y)));
            prop_assert!(p < rows_end(id) && p >= row_from(id, &a));
            let (bucket, key, body) = key_of(&p).unwrap();
            prop_assert_eq!((bucket, key.as_ref(), body), (id, &a[..], BodyId(x)));
        }
    }

    #[test]
    fn the_record_has_these_bytes() {
        let upload = Upload {
            body_id: 9,
            key: "k".into(),
            initiated_ms: 1_700_000_000_123,
            owner: "o".into(),
            headers: vec![Pair::new("content-type", "x")],
            metadata: vec![Pair::new("a", "b")],
            tags: vec![Pair::new("k", "v")],
            storage_class: "S".into(),
            checksum_algorithm: Some(0),
            checksum_kind: Some(1),
            encryption: Some(EncryptionEnvelope { algorithm: "AES256".into(), ..Default::default() }),
            retention: Some(Retention { mode: 1, until_ms: 5 }),
            legal_hold: true,
            part_bytes: 300,
            payer: String::new(),
        };
        golden::check(&upload, include_str!("golden/upload.hex"));
        let paid = Upload { body_id: 9, payer: "AK".into(), ..Upload::default() };
        golden::check(&paid, include_str!("golden/upload_paid.hex"));
    }
}

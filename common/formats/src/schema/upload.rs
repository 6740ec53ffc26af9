//! `upload`: multipart uploads in progress, at (bucket id, escaped key, body id).
//!
//! Clients see the body id encrypted, as the upload id (`UploadKey`). The row goes when the upload is
//! completed or aborted; its parts stay (completed) or wait in `release` (aborted).

use super::object::{EncryptionEnvelope, Pair, Retention};
use crate::key::{self, BadKey, Family, KeyReader, KeyWriter};
use mlgw_common::{BodyId, BucketId, Timestamp};
use std::borrow::Cow;

/// A multipart upload.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Upload {
    /// The id of the body that it becomes.
    #[prost(uint64, tag = "1")]
    pub body_id: u64,
    /// The object's key.
    #[prost(string, tag = "2")]
    pub key: String,
    /// When it began, milliseconds since the epoch.
    #[prost(int64, tag = "3")]
    pub initiated_ms: i64,
    /// Owner id.
    #[prost(string, tag = "4")]
    pub owner: String,
    /// As the object will have them.
    #[prost(message, repeated, tag = "5")]
    pub headers: Vec<Pair>,
    /// As the object will have them.
    #[prost(message, repeated, tag = "6")]
    pub metadata: Vec<Pair>,
    /// As the object will have them.
    #[prost(message, repeated, tag = "7")]
    pub tags: Vec<Pair>,
    /// As the object will have it.
    #[prost(string, tag = "8")]
    pub storage_class: String,
    /// The algorithm its parts are checked by, when one was asked for.
    #[prost(enumeration = "super::object::ChecksumAlgorithm", optional, tag = "9")]
    pub checksum_algorithm: Option<i32>,
    /// What its checksum will cover.
    #[prost(enumeration = "super::object::ChecksumKind", optional, tag = "10")]
    pub checksum_kind: Option<i32>,
    /// As the object will have it.
    #[prost(message, optional, tag = "11")]
    pub encryption: Option<EncryptionEnvelope>,
    /// As the object will have it.
    #[prost(message, optional, tag = "12")]
    pub retention: Option<Retention>,
    /// As the object will have it.
    #[prost(bool, tag = "13")]
    pub legal_hold: bool,
    /// Bytes of its parts, kept by `apply`.
    #[prost(uint64, tag = "14")]
    pub part_bytes: u64,
    /// The access key that its parts and the object count for; empty for nobody.
    #[prost(string, tag = "15")]
    pub payer: String,
}

impl Upload {
    /// Its id.
    #[must_use]
    pub const fn body(&self) -> BodyId {
        BodyId(self.body_id)
    }

    /// When it began.
    #[must_use]
    pub const fn initiated(&self) -> Timestamp {
        Timestamp(self.initiated_ms)
    }
}

/// The row of an upload.
#[must_use]
pub fn row(bucket: BucketId, key: &[u8], body: BodyId) -> Vec<u8> {
    key::named(Family::Upload, bucket, key).u64(body.0).finish()
}

/// The smallest row of an upload whose key begins with `prefix` or comes after it.
#[must_use]
pub fn row_from(bucket: BucketId, prefix: &[u8]) -> Vec<u8> {
    KeyWriter::with_capacity(Family::Upload, prefix.len() + 16).u64(bucket.0).name_prefix(prefix).finish()
}

/// The smallest row after all uploads of `key`.
#[must_use]
pub fn row_after_key(bucket: BucketId, key: &[u8]) -> Vec<u8> {
    key::after_prefix(key::named(Family::Upload, bucket, key).finish())
}

/// The end of a bucket's rows.
#[must_use]
pub fn rows_end(bucket: BucketId) -> Vec<u8> {
    key::after_prefix(KeyWriter::new(Family::Upload).u64(bucket.0).finish())
}

/// Bucket, key and upload in a row.
///
/// # Errors
/// When it is no row of this family.
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

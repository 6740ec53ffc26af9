//! Current versions of keys. Rows: `object`, keyed by (bucket id, escaped key), so that a lookup is a point
//! read.
//!
//! A record contains the fields that HEAD and LIST need and at most [`INLINE_EXTENTS_MAX`] extents; a larger
//! body has pages in `extent`. Invariant: a version names exactly one body and a body belongs to exactly one
//! version.
//!
//! [`INLINE_EXTENTS_MAX`]: mlgw_common::limits::INLINE_EXTENTS_MAX

use super::extent::Extent;
use crate::key::{self, BadKey, Family, KeyReader, KeyWriter};
use mlgw_common::{BodyId, BucketId, Seq, Timestamp};
use std::borrow::Cow;

/// A version of an object.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ObjectVersion {
    /// Sequence number of the write in its group; set by `apply`, which ignores the command's value.
    #[prost(uint64, tag = "1")]
    pub seq: u64,
    /// Body of the version; 0 for a delete marker.
    #[prost(uint64, tag = "2")]
    pub body_id: u64,
    /// Length in bytes, as clients see it.
    #[prost(uint64, tag = "3")]
    pub size: u64,
    /// Last-Modified, milliseconds since the epoch.
    #[prost(int64, tag = "4")]
    pub modified_ms: i64,
    /// ETag without quotes.
    #[prost(string, tag = "5")]
    pub etag: String,
    /// True if the version has a version id; otherwise it is the `null` version.
    #[prost(bool, tag = "6")]
    pub versioned: bool,
    /// True for a delete marker.
    #[prost(bool, tag = "7")]
    pub delete_marker: bool,
    /// Stored system headers, names in lower case.
    #[prost(message, repeated, tag = "8")]
    pub headers: Vec<Pair>,
    /// User metadata, names in lower case without `x-amz-meta-`.
    #[prost(message, repeated, tag = "9")]
    pub metadata: Vec<Pair>,
    /// Tags, in the order in which the client sent them.
    #[prost(message, repeated, tag = "10")]
    pub tags: Vec<Pair>,
    /// Checksums from the client or computed by mlgw.
    #[prost(message, repeated, tag = "11")]
    pub checksums: Vec<Checksum>,
    /// Storage class; empty is STANDARD.
    #[prost(string, tag = "12")]
    pub storage_class: String,
    /// Owner id.
    #[prost(string, tag = "13")]
    pub owner: String,
    /// Extents of the body, if they fit in the record.
    #[prost(message, repeated, tag = "14")]
    pub extents: Vec<Extent>,
    /// Number of parts of a multipart upload, else 0.
    #[prost(uint32, tag = "15")]
    pub part_count: u32,
    /// Encryption of the body.
    #[prost(message, optional, tag = "16")]
    pub encryption: Option<EncryptionEnvelope>,
    /// Object Lock retention.
    #[prost(message, optional, tag = "17")]
    pub retention: Option<Retention>,
    /// True if a legal hold is set.
    #[prost(bool, tag = "18")]
    pub legal_hold: bool,
    /// Source from which a sync imported the object; `None` if a client wrote it.
    #[prost(message, optional, boxed, tag = "19")]
    pub imported: Option<Box<Imported>>,
    /// The access key that the version is charged to; empty if none.
    #[prost(string, tag = "20")]
    pub payer: String,
    /// Meaning of the ETag of an origin's object. ETags of mlgw's own objects are always plain.
    #[prost(enumeration = "EtagKind", tag = "21")]
    pub etag_kind: i32,
    /// Number of tags that an origin reports. The tags of mlgw's own objects are in `tags`.
    #[prost(uint32, tag = "22")]
    pub tag_count: u32,
}

/// Meaning of an origin's ETag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum EtagKind {
    /// Strong; the MD5 of the bytes if it is 32 hexadecimal digits.
    Plain = 0,
    /// Strong, computed in an unknown way.
    Opaque = 1,
    /// Weak: it identifies a version and matches no `If-Match`.
    Weak = 2,
}

/// Source of an imported object.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Imported {
    /// The upstream's name.
    #[prost(string, tag = "1")]
    pub upstream: String,
    /// ETag at the upstream, without quotes.
    #[prost(string, tag = "2")]
    pub etag: String,
}

impl ObjectVersion {
    /// Returns the version's body.
    #[must_use]
    pub const fn body(&self) -> BodyId {
        BodyId(self.body_id)
    }

    /// Returns the version's sequence number.
    #[must_use]
    pub const fn order(&self) -> Seq {
        Seq(self.seq)
    }

    /// Returns Last-Modified.
    #[must_use]
    pub const fn modified(&self) -> Timestamp {
        Timestamp(self.modified_ms)
    }

    /// True if the body's map is in `extent` pages instead of the record.
    #[must_use]
    pub const fn is_paged(&self) -> bool {
        self.size > 0 && self.extents.is_empty() && !self.delete_marker
    }
}

/// Fields of a version that listings return: a subset of [`ObjectVersion`] under the same tags, so that
/// decoding it skips the rest.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ObjectSummary {
    /// See [`ObjectVersion::seq`].
    #[prost(uint64, tag = "1")]
    pub seq: u64,
    /// See [`ObjectVersion::size`].
    #[prost(uint64, tag = "3")]
    pub size: u64,
    /// See [`ObjectVersion::modified_ms`].
    #[prost(int64, tag = "4")]
    pub modified_ms: i64,
    /// See [`ObjectVersion::etag`].
    #[prost(string, tag = "5")]
    pub etag: String,
    /// See [`ObjectVersion::versioned`].
    #[prost(bool, tag = "6")]
    pub versioned: bool,
    /// See [`ObjectVersion::delete_marker`].
    #[prost(bool, tag = "7")]
    pub delete_marker: bool,
    /// See [`ObjectVersion::checksums`].
    #[prost(message, repeated, tag = "11")]
    pub checksums: Vec<ChecksumNames>,
    /// See [`ObjectVersion::storage_class`].
    #[prost(string, tag = "12")]
    pub storage_class: String,
    /// See [`ObjectVersion::owner`].
    #[prost(string, tag = "13")]
    pub owner: String,
    /// See [`ObjectVersion::part_count`].
    #[prost(uint32, tag = "15")]
    pub part_count: u32,
}

/// A name and a value.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Pair {
    /// The name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// The value.
    #[prost(string, tag = "2")]
    pub value: String,
}

impl Pair {
    /// Returns a pair of `name` and `value`.
    pub fn new(name: impl Into<String>, value: impl Into<String>) -> Self {
        Self { name: name.into(), value: value.into() }
    }
}

/// A checksum of an object or part.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Checksum {
    /// Algorithm of the checksum.
    #[prost(enumeration = "ChecksumAlgorithm", tag = "1")]
    pub algorithm: i32,
    /// Input of the checksum: all bytes, or the parts' checksums.
    #[prost(enumeration = "ChecksumKind", tag = "2")]
    pub kind: i32,
    /// The raw value, not base64.
    #[prost(bytes = "vec", tag = "3")]
    pub value: Vec<u8>,
}

/// A [`Checksum`] without its value, under the same tags.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ChecksumNames {
    /// See [`Checksum::algorithm`].
    #[prost(enumeration = "ChecksumAlgorithm", tag = "1")]
    pub algorithm: i32,
    /// See [`Checksum::kind`].
    #[prost(enumeration = "ChecksumKind", tag = "2")]
    pub kind: i32,
}

/// The checksum algorithms of S3.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum ChecksumAlgorithm {
    /// CRC-32 (ISO HDLC).
    Crc32 = 0,
    /// CRC-32C (Castagnoli).
    Crc32C = 1,
    /// CRC-64/NVME.
    Crc64Nvme = 2,
    /// SHA-1.
    Sha1 = 3,
    /// SHA-256.
    Sha256 = 4,
}

/// Input of a checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum ChecksumKind {
    /// All bytes.
    FullObject = 0,
    /// The concatenated checksums of the parts.
    Composite = 1,
}

/// Encryption of a body. The data key is wrapped by the key that `key_id` names.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct EncryptionEnvelope {
    /// `AES256`, `aws:kms`, or `customer`.
    #[prost(string, tag = "1")]
    pub algorithm: String,
    /// The key that wraps the data key.
    #[prost(string, tag = "2")]
    pub key_id: String,
    /// The wrapped data key.
    #[prost(bytes = "vec", tag = "3")]
    pub wrapped_key: Vec<u8>,
    /// MD5 of a customer-provided key, to detect a wrong key.
    #[prost(bytes = "vec", tag = "4")]
    pub customer_key_md5: Vec<u8>,
}

/// Object Lock retention.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Retention {
    /// GOVERNANCE or COMPLIANCE.
    #[prost(enumeration = "super::bucket::LockMode", tag = "1")]
    pub mode: i32,
    /// End of the retention, milliseconds since the epoch.
    #[prost(int64, tag = "2")]
    pub until_ms: i64,
}

/// Returns the row key of `key`'s current version.
#[must_use]
pub fn row(bucket: BucketId, key: &[u8]) -> Vec<u8> {
    key::named_key(Family::Object, bucket, key).finish()
}

/// Returns the smallest row key of an object key that begins with `prefix` or sorts after it.
#[must_use]
pub fn row_from(bucket: BucketId, prefix: &[u8]) -> Vec<u8> {
    KeyWriter::with_capacity(Family::Object, prefix.len() + 16).u64(bucket.0).name_prefix(prefix).finish()
}

/// Returns the end of a bucket's row keys, exclusive.
#[must_use]
pub fn rows_end(bucket: BucketId) -> Vec<u8> {
    key::after_prefix(KeyWriter::new(Family::Object).u64(bucket.0).finish())
}

/// Returns the bucket and the object key in a row key.
///
/// # Errors
/// Returns [`BadKey`] if `row` is not a key of this family.
#[inline]
pub fn key_of(row: &[u8]) -> Result<(BucketId, Cow<'_, [u8]>), BadKey> {
    let mut fields = KeyReader::new(Family::Object, row)?;
    let bucket = BucketId(fields.u64()?);
    let key = fields.name()?;
    fields.end()?;
    Ok((bucket, key))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::{
        Checksum, ChecksumAlgorithm, ChecksumKind, ChecksumNames, EncryptionEnvelope, Imported,
        ObjectSummary, ObjectVersion, Pair, Retention, key_of, row, row_from, rows_end,
    };
    use crate::schema::{self, extent, golden};
    use mlgw_common::BucketId;
    use proptest::prelude::{any, prop};
    use proptest::{prop_assert, prop_assert_eq, proptest};
    use prost::Message;

    /// Returns a version with nearly every field set.
    pub(crate) fn full() -> ObjectVersion {
        ObjectVersion {
            seq: 4097,
            body_id: 9,
            size: 300,
            modified_ms: 1_700_000_000_123,
            etag: "9a-2".into(),
            versioned: true,
            delete_marker: true,
            headers: vec![Pair::new("content-type", "text/plain")],
            metadata: vec![Pair::new("a", "b")],
            tags: vec![Pair::new("k", "v")],
            checksums: vec![Checksum {
                algorithm: ChecksumAlgorithm::Sha256 as i32,
                kind: ChecksumKind::Composite as i32,
                value: vec![1, 2],
            }],
            storage_class: "S".into(),
            owner: "o".into(),
            extents: vec![extent::tests::full()],
            part_count: 2,
            encryption: Some(EncryptionEnvelope {
                algorithm: "AES256".into(),
                key_id: "k1".into(),
                wrapped_key: vec![7],
                customer_key_md5: vec![8],
            }),
            retention: Some(Retention { mode: 2, until_ms: 5 }),
            legal_hold: true,
            imported: None,
            payer: String::new(),
            etag_kind: 0,
            tag_count: 0,
        }
    }

    proptest! {
        #[test]
        fn rows_sort_as_their_keys_and_give_them_back(
            a in prop::collection::vec(0u8..3, 1..6),
            b in prop::collection::vec(0u8..3, 1..6),
            bucket in any::<u64>(),
        ) {
            let id = BucketId(bucket);
            prop_assert_eq!(row(id, &a).cmp(&row(id, &b)), a.cmp(&b));
            let at = row(id, &a);
            let (back, key) = key_of(&at).unwrap();
            prop_assert_eq!((back, key.as_ref()), (id, &a[..]));
            prop_assert!(row(id, &a) < rows_end(id));
            prop_assert_eq!(row(id, &a) >= row_from(id, &b), a >= b);
        }
    }

    #[test]
    fn a_summary_reads_a_version() {
        let version = full();
        let summary: ObjectSummary = schema::decode(&schema::encode(&version)).unwrap();
        assert_eq!((summary.seq, summary.size, summary.part_count), (4097, 300, 2));
        assert_eq!(summary.etag, version.etag);
        let names =
            version.checksums.iter().map(|of| ChecksumNames { algorithm: of.algorithm, kind: of.kind });
        assert_eq!(summary.checksums, names.collect::<Vec<_>>());
    }

    #[test]
    fn the_record_has_these_bytes() {
        golden::check(&full(), include_str!("golden/object.hex"));
        let imported = Some(Box::new(Imported { upstream: "u".into(), etag: "e-2".into() }));
        let version = ObjectVersion { size: 1, imported, ..ObjectVersion::default() };
        golden::check(&version, include_str!("golden/object_imported.hex"));
        let paid = ObjectVersion { size: 1, payer: "AK".into(), ..ObjectVersion::default() };
        golden::check(&paid, include_str!("golden/object_paid.hex"));
        assert!(full().encoded_len() < 256);
    }
}

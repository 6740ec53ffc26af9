//! Commands of one key: put, delete, update, and those of [`upload`](super::upload).

use super::upload::{AbortUpload, CompleteUpload, CreateUpload, PutPart};
use crate::schema::{ExtentPage, ObjectVersion, Pair};
use mlgw_common::{BucketId, Epoch};

/// A change of one key of a bucket.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ObjectCommand {
    /// The bucket.
    #[prost(uint64, tag = "1")]
    pub bucket_id: u64,
    /// The bucket's epoch when the command was built.
    #[prost(uint64, tag = "2")]
    pub epoch: u64,
    /// The key.
    #[prost(string, tag = "3")]
    pub key: String,
    /// The time of day when the command was built, milliseconds since the epoch.
    #[prost(int64, tag = "4")]
    pub now_ms: i64,
    /// What is to change.
    #[prost(oneof = "ObjectChange", tags = "5, 6, 7, 8, 9, 10, 11")]
    pub change: Option<ObjectChange>,
}

impl ObjectCommand {
    /// The bucket.
    #[must_use]
    pub const fn bucket(&self) -> BucketId {
        BucketId(self.bucket_id)
    }

    /// The bucket's epoch when the command was built.
    #[must_use]
    pub const fn built_at(&self) -> Epoch {
        Epoch(self.epoch)
    }
}

/// What an [`ObjectCommand`] changes.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum ObjectChange {
    /// A new version. Answers [`Reply::Written`](super::Reply::Written).
    #[prost(message, tag = "5")]
    Put(PutObject),
    /// No version any more. Answers [`Reply::Deleted`](super::Reply::Deleted).
    #[prost(message, tag = "6")]
    Delete(DeleteObject),
    /// Other metadata of the same body. Answers [`Reply::Written`](super::Reply::Written).
    #[prost(message, tag = "7")]
    Update(UpdateObject),
    /// An upload in parts. Answers [`Reply::Done`](super::Reply::Done).
    #[prost(message, tag = "8")]
    CreateUpload(CreateUpload),
    /// A part of an upload. Answers [`Reply::Part`](super::Reply::Part).
    #[prost(message, tag = "9")]
    PutPart(PutPart),
    /// A version from an upload's parts. Answers [`Reply::Written`](super::Reply::Written).
    #[prost(message, tag = "10")]
    CompleteUpload(CompleteUpload),
    /// No upload any more. Answers [`Reply::Done`](super::Reply::Done).
    #[prost(message, tag = "11")]
    AbortUpload(AbortUpload),
}

/// A new version of a key.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PutObject {
    /// The version; its `seq` is set by `apply`.
    #[prost(message, required, tag = "1")]
    pub version: ObjectVersion,
    /// The body's map, in order, when it is longer than the record holds; then the version's own
    /// extents are empty.
    #[prost(message, repeated, tag = "2")]
    pub pages: Vec<ExtentPage>,
    /// What must hold of the version it replaces.
    #[prost(message, required, tag = "3")]
    pub conditions: Conditions,
    /// It counts, but no quota refuses it: the record of a deletion that has still to be done elsewhere.
    #[prost(bool, tag = "4")]
    pub is_exempt: bool,
}

/// The end of a key's current version.
#[derive(Clone, PartialEq, prost::Message)]
pub struct DeleteObject {
    /// What must hold of the version that goes.
    #[prost(message, required, tag = "1")]
    pub conditions: Conditions,
}

/// Other metadata of the same body.
#[derive(Clone, PartialEq, prost::Message)]
pub struct UpdateObject {
    /// The body that the current version must have; otherwise the command is refused as a
    /// failed precondition.
    #[prost(uint64, tag = "1")]
    pub expected_body: u64,
    /// What changes.
    #[prost(oneof = "update_object::Update", tags = "2, 3")]
    pub update: Option<update_object::Update>,
    /// What else must hold of the version.
    #[prost(message, required, tag = "4")]
    pub conditions: Conditions,
}

/// The kinds of [`UpdateObject`].
pub mod update_object {
    /// What changes.
    #[derive(Clone, PartialEq, prost::Oneof)]
    pub enum Update {
        /// The tags; Last-Modified stays.
        #[prost(message, tag = "2")]
        SetTags(super::SetTags),
        /// Headers and user metadata: a copy of an object onto itself.
        #[prost(message, tag = "3")]
        Replace(super::Replace),
    }
}

/// Other tags.
#[derive(Clone, PartialEq, prost::Message)]
pub struct SetTags {
    /// All of them.
    #[prost(message, repeated, tag = "1")]
    pub tags: Vec<Pair>,
}

/// Other headers and user metadata.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Replace {
    /// All stored system headers.
    #[prost(message, repeated, tag = "1")]
    pub headers: Vec<Pair>,
    /// All user metadata.
    #[prost(message, repeated, tag = "2")]
    pub metadata: Vec<Pair>,
    /// All tags, when they change too.
    #[prost(message, optional, tag = "3")]
    pub tags: Option<SetTags>,
    /// The new Last-Modified, milliseconds since the epoch.
    #[prost(int64, tag = "4")]
    pub modified_ms: i64,
    /// The new storage class.
    #[prost(string, tag = "5")]
    pub storage_class: String,
}

/// What must hold of a key's current version, checked where the change is made.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Conditions {
    /// It exists and has one of these ETags. No version: [`Reject::NoSuchKey`](super::Reject::NoSuchKey).
    #[prost(message, optional, tag = "1")]
    pub if_match: Option<EtagCondition>,
    /// It does not exist or has none of these ETags.
    #[prost(message, optional, tag = "2")]
    pub if_none_match: Option<EtagCondition>,
    /// It exists and has this length.
    #[prost(uint64, optional, tag = "3")]
    pub if_match_size: Option<u64>,
    /// It exists and was modified in this second.
    #[prost(int64, optional, tag = "4")]
    pub if_match_modified_ms: Option<i64>,
    /// It exists and is this very version, by its place in the order of versions.
    #[prost(uint64, optional, tag = "5")]
    pub if_match_seq: Option<u64>,
}

/// ETags to compare with.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct EtagCondition {
    /// `*`: every ETag.
    #[prost(bool, tag = "1")]
    pub any: bool,
    /// ETags without quotes.
    #[prost(string, repeated, tag = "2")]
    pub etags: Vec<String>,
}

impl EtagCondition {
    /// `*`.
    #[must_use]
    pub const fn any() -> Self {
        Self { any: true, etags: Vec::new() }
    }

    /// One of `etags`.
    #[must_use]
    pub const fn one_of(etags: Vec<String>) -> Self {
        Self { any: false, etags }
    }

    /// Whether `etag` is among them.
    #[must_use]
    pub fn contains(&self, etag: &str) -> bool {
        self.any || self.etags.iter().any(|e| e == etag)
    }
}

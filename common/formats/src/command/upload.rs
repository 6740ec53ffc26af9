//! Commands of multipart uploads, and the one that frees what they and large bodies leave.

use super::object::Conditions;
use crate::schema::{Checksum, Pair, Part, Upload};

/// An upload in parts.
#[derive(Clone, PartialEq, prost::Message)]
pub struct CreateUpload {
    /// The upload; its key is the command's.
    #[prost(message, required, tag = "1")]
    pub upload: Upload,
}

/// A part of an upload; replaces an earlier one of its number.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PutPart {
    /// The upload.
    #[prost(uint64, tag = "1")]
    pub body_id: u64,
    /// The part's number.
    #[prost(uint32, tag = "2")]
    pub number: u32,
    /// The part, with all its extents; its `seq` is set by `apply`.
    #[prost(message, required, tag = "3")]
    pub part: Part,
}

/// A version from an upload's parts.
///
/// Repeatable: while the key's current version has this body, it answers as it did the first time.
#[derive(Clone, PartialEq, prost::Message)]
pub struct CompleteUpload {
    /// The upload.
    #[prost(uint64, tag = "1")]
    pub body_id: u64,
    /// The parts, by ascending number.
    #[prost(message, repeated, tag = "2")]
    pub parts: Vec<NamedPart>,
    /// The version's ETag, without quotes.
    #[prost(string, tag = "3")]
    pub etag: String,
    /// The version's checksums.
    #[prost(message, repeated, tag = "4")]
    pub checksums: Vec<Checksum>,
    /// What must hold of the version it replaces.
    #[prost(message, required, tag = "5")]
    pub conditions: Conditions,
    /// The version's Last-Modified, milliseconds since the epoch.
    #[prost(int64, tag = "6")]
    pub modified_ms: i64,
    /// Headers of the version that its upload did not know, behind those of the upload.
    #[prost(message, repeated, tag = "7")]
    pub headers: Vec<Pair>,
}

/// A part as a complete names it.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct NamedPart {
    /// Its number.
    #[prost(uint32, tag = "1")]
    pub number: u32,
    /// The `seq` of its row as the proposer read it: a part replaced since is refused.
    #[prost(uint64, tag = "2")]
    pub seq: u64,
}

/// No upload any more.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct AbortUpload {
    /// The upload.
    #[prost(uint64, tag = "1")]
    pub body_id: u64,
}

/// Frees rows of a body that waits in the release queue.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct ReleaseBody {
    /// The body.
    #[prost(uint64, tag = "1")]
    pub body_id: u64,
    /// How many rows to look at at most.
    #[prost(uint32, tag = "2")]
    pub rows_max: u32,
    /// The scope that was waiting when nobody was seen reading the body. When another one waits by
    /// now the object is gone since, and who began to read it before must be looked for again.
    #[prost(enumeration = "crate::schema::ReleaseScope", optional, tag = "3")]
    pub scope: Option<i32>,
}

//! Commands that begin, fill, complete and abort multipart uploads, and the command that frees the rows of
//! released bodies.

use super::conditions::Conditions;
use crate::schema::{Checksum, Pair, PartRecord, Upload};

/// Begins a multipart upload.
#[derive(Clone, PartialEq, prost::Message)]
pub struct CreateUpload {
    /// The upload; the command's key is its key.
    #[prost(message, required, tag = "1")]
    pub upload: Upload,
}

/// Writes a part of an upload. An earlier part with the same number is replaced.
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
    pub part: PartRecord,
}

/// Makes a version of an upload's parts.
///
/// Repeatable: while the key's current version has this body, the reply is that of the first time.
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
    /// Conditions on the version that is replaced.
    #[prost(message, required, tag = "5")]
    pub conditions: Conditions,
    /// The version's Last-Modified, milliseconds since the epoch.
    #[prost(int64, tag = "6")]
    pub modified_ms: i64,
    /// Headers that were not known when the upload began, appended to those of the upload.
    #[prost(message, repeated, tag = "7")]
    pub headers: Vec<Pair>,
}

/// A part as named by a CompleteMultipartUpload request.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct NamedPart {
    /// Number of the part.
    #[prost(uint32, tag = "1")]
    pub number: u32,
    /// The `seq` of the part's row as the proposer read it. A part that was replaced since is rejected.
    #[prost(uint64, tag = "2")]
    pub seq: u64,
}

/// Aborts an upload.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct AbortUpload {
    /// The upload.
    #[prost(uint64, tag = "1")]
    pub body_id: u64,
}

/// Frees rows of a body in the release queue.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct ReleaseBody {
    /// The body.
    #[prost(uint64, tag = "1")]
    pub body_id: u64,
    /// Maximum number of rows to visit.
    #[prost(uint32, tag = "2")]
    pub rows_max: u32,
    /// Scope of the release when the proposer found no reader of the body. If the queued scope differs by
    /// now, the object was deleted in between; the command is a no-op, and the proposer must check for
    /// readers again.
    #[prost(enumeration = "crate::schema::ReleaseScope", optional, tag = "3")]
    pub scope: Option<i32>,
}

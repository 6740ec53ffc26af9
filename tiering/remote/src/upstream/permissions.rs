//! Kinds of requests that a check tries, and the permission that each needs at each kind of store, so that a
//! rejection names the permission to grant.

use super::settings::UpstreamKind;

/// Kind of request that a step of a check tries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CheckVerb {
    /// The address is reachable: its name, a connection, TLS.
    Reach,
    /// The store accepts the credentials.
    Credentials,
    /// Lists segments.
    List,
    /// Writes an object in one piece.
    Write,
    /// Reads that object.
    Read,
    /// Reads a range of that object.
    Range,
    /// Writes an object in two parts.
    Multipart,
    /// Aborts an upload.
    Abort,
    /// Deletes the objects.
    Delete,
}

/// Returns the permission that `verb` needs; `None` if it needs none.
pub(super) fn permission(kind: UpstreamKind, verb: CheckVerb) -> Option<&'static str> {
    use CheckVerb::{Abort, Delete, List, Multipart, Range, Read, Write};
    if matches!(verb, CheckVerb::Reach | CheckVerb::Credentials) {
        return None;
    }
    let right = match (kind, verb) {
        (UpstreamKind::S3, List) => "s3:ListBucket",
        (UpstreamKind::S3, Write | Multipart) => "s3:PutObject",
        (UpstreamKind::S3, Read | Range) => "s3:GetObject",
        (UpstreamKind::S3, Delete) => "s3:DeleteObject",
        (UpstreamKind::S3, Abort) => "s3:AbortMultipartUpload",
        (UpstreamKind::Gcs, List) => "storage.objects.list",
        (UpstreamKind::Gcs, Write) => {
            "storage.objects.create and storage.objects.delete, to overwrite an object"
        }
        (UpstreamKind::Gcs, Multipart) => "storage.multipartUploads.create and storage.objects.create",
        (UpstreamKind::Gcs, Read | Range) => "storage.objects.get",
        (UpstreamKind::Gcs, Delete) => "storage.objects.delete",
        (UpstreamKind::Gcs, Abort) => "storage.multipartUploads.abort",
        (UpstreamKind::Azure, List) => "Microsoft.Storage/…/containers/blobs/read, for the container",
        (UpstreamKind::Azure, Read | Range) => "Microsoft.Storage/…/containers/blobs/read",
        (UpstreamKind::Azure, Write | Multipart | Abort) => "Microsoft.Storage/…/containers/blobs/write",
        (UpstreamKind::Azure, Delete) => "Microsoft.Storage/…/containers/blobs/delete",
        (UpstreamKind::Oss, List) => "oss:ListObjects",
        (UpstreamKind::Oss, Write | Multipart) => "oss:PutObject",
        (UpstreamKind::Oss, Read | Range) => "oss:GetObject",
        (UpstreamKind::Oss, Delete) => "oss:DeleteObject",
        (UpstreamKind::Oss, Abort) => "oss:AbortMultipartUpload",
        (UpstreamKind::Cos, List) => "cos:GetBucket",
        (UpstreamKind::Cos, Write) => "cos:PutObject",
        (UpstreamKind::Cos, Multipart) => {
            "cos:InitiateMultipartUpload, cos:UploadPart and cos:CompleteMultipartUpload"
        }
        (UpstreamKind::Cos, Read | Range) => "cos:GetObject and cos:HeadObject",
        (UpstreamKind::Cos, Delete) => "cos:DeleteObject",
        (UpstreamKind::Cos, Abort) => "cos:AbortMultipartUpload",
        (UpstreamKind::Obs, List) => "obs:bucket:ListBucket",
        (UpstreamKind::Obs, Write | Multipart) => "obs:object:PutObject",
        (UpstreamKind::Obs, Read | Range) => "obs:object:GetObject",
        (UpstreamKind::Obs, Delete) => "obs:object:DeleteObject",
        (UpstreamKind::Obs, Abort) => "obs:object:AbortMultipartUpload",
        (UpstreamKind::WebHdfs | UpstreamKind::Fs, List | Read | Range) => "reading the directory (r-x)",
        (UpstreamKind::WebHdfs | UpstreamKind::Fs, _) => "writing to the directory (rwx)",
        (_, CheckVerb::Reach | CheckVerb::Credentials) => return None,
    };
    Some(right)
}

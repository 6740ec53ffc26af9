//! Tags of objects of remote-backed buckets. They are kept at the origin only.

use super::{RemoteBackedBucket, origin_error, origin_write_error};
use crate::request::AuthenticatedRequest;
use crate::response::{S3Result, empty, xml};
use crate::{IncomingBody, document, tagging};
use http::StatusCode;
use mlgw_wire::elements::TaggingDocument;
use mlgw_wire::target::check_version;

/// GetObjectTagging.
///
/// # Errors
/// Those of S3.
pub(super) async fn get(request: &AuthenticatedRequest<'_>, remote_backed: &RemoteBackedBucket) -> S3Result {
    check_version(request.query.raw("versionId"))?;
    let tags = remote_backed.cached.tags(request.key()?).await;
    Ok(xml(tagging::tagging_document(&tags.map_err(|error| origin_error(error, remote_backed))?)))
}

/// PutObjectTagging.
///
/// # Errors
/// Those of S3.
pub(super) async fn put(
    request: &AuthenticatedRequest<'_>,
    remote_backed: &RemoteBackedBucket,
    upload: IncomingBody<'_>,
) -> S3Result {
    check_version(request.query.raw("versionId"))?;
    let tags = TaggingDocument::tags(&document::read(request, upload, document::DOCUMENT_TERMS).await?)?;
    let set = remote_backed.cached.set_tags(request.key()?, &tags).await;
    set.map_err(|error| origin_write_error(error, remote_backed))?;
    Ok(empty(StatusCode::OK))
}

/// DeleteObjectTagging.
///
/// # Errors
/// Those of S3.
pub(super) async fn delete(
    request: &AuthenticatedRequest<'_>,
    remote_backed: &RemoteBackedBucket,
) -> S3Result {
    check_version(request.query.raw("versionId"))?;
    let set = remote_backed.cached.set_tags(request.key()?, &[]).await;
    set.map_err(|error| origin_write_error(error, remote_backed))?;
    Ok(empty(StatusCode::NO_CONTENT))
}

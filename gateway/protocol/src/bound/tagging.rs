//! Tags of objects of remote-backed buckets. They are kept at the origin only.

use super::{Fronted, told, told_of_write};
use crate::request::Request;
use crate::response::{S3Result, empty, xml};
use crate::{Upload, document, tagging};
use http::StatusCode;
use mlgw_wire::elements::TaggingDocument;
use mlgw_wire::target::check_version;

/// GetObjectTagging.
///
/// # Errors
/// Those of S3.
pub(super) async fn get(request: &Request<'_>, fronted: &Fronted) -> S3Result {
    check_version(request.query.raw("versionId"))?;
    let tags = fronted.bound.tags(request.key()?).await;
    Ok(xml(tagging::document_of(&tags.map_err(|error| told(error, fronted))?)))
}

/// PutObjectTagging.
///
/// # Errors
/// Those of S3.
pub(super) async fn put(request: &Request<'_>, fronted: &Fronted, upload: Upload<'_>) -> S3Result {
    check_version(request.query.raw("versionId"))?;
    let tags = TaggingDocument::tags(&document::read(request, upload, document::TERMS).await?)?;
    let set = fronted.bound.set_tags(request.key()?, &tags).await;
    set.map_err(|error| told_of_write(error, fronted))?;
    Ok(empty(StatusCode::OK))
}

/// DeleteObjectTagging.
///
/// # Errors
/// Those of S3.
pub(super) async fn delete(request: &Request<'_>, fronted: &Fronted) -> S3Result {
    check_version(request.query.raw("versionId"))?;
    let set = fronted.bound.set_tags(request.key()?, &[]).await;
    set.map_err(|error| told_of_write(error, fronted))?;
    Ok(empty(StatusCode::NO_CONTENT))
}

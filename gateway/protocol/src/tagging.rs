//! GetObjectTagging, PutObjectTagging, DeleteObjectTagging.
//!
//! Tags belong to a version. Changing them keeps its body, ETag and modification time.

use super::get::find_object;
use super::request::AuthenticatedRequest;
use super::response::{S3Result, empty, xml};
use super::{Gateway, IncomingBody, document};
use http::StatusCode;
use mlgw_formats::command::update_object::Update;
use mlgw_formats::command::{Conditions, ObjectChange, Reject, SetTags, UpdateObject};
use mlgw_formats::schema::Pair;
use mlgw_metadata::ProposeError;
use mlgw_objects::read::FoundObject;
use mlgw_wire::elements::TaggingDocument;
use mlgw_wire::error::{Code, S3Error};
use mlgw_wire::xml::Xml;
use std::sync::Arc;

/// GetObjectTagging.
///
/// # Errors
/// Those of S3.
pub fn get(gateway: &Arc<Gateway>, request: &AuthenticatedRequest<'_>) -> S3Result {
    Ok(xml(tagging_document(&find_object(gateway, request)?.object.tags)))
}

/// Returns the document that lists `tags`.
pub(super) fn tagging_document(tags: &[Pair]) -> String {
    let mut out = Xml::new("Tagging");
    out.open("TagSet");
    let mut tags: Vec<&Pair> = tags.iter().collect();
    tags.sort_by(|a, b| a.name.cmp(&b.name));
    for tag in tags {
        out.open("Tag").text("Key", &tag.name).text("Value", &tag.value).close("Tag");
    }
    out.close("TagSet");
    out.finish("Tagging")
}

/// PutObjectTagging.
///
/// # Errors
/// Those of S3.
pub async fn put(
    gateway: &Arc<Gateway>,
    request: &AuthenticatedRequest<'_>,
    upload: IncomingBody<'_>,
) -> S3Result {
    let tags = TaggingDocument::tags(&document::read(request, upload, document::DOCUMENT_TERMS).await?)?;
    set(gateway, request, tags).await?;
    Ok(empty(StatusCode::OK))
}

/// DeleteObjectTagging.
///
/// # Errors
/// Those of S3.
pub async fn delete(gateway: &Arc<Gateway>, request: &AuthenticatedRequest<'_>) -> S3Result {
    set(gateway, request, Vec::new()).await?;
    Ok(empty(StatusCode::NO_CONTENT))
}

async fn set(gateway: &Gateway, request: &AuthenticatedRequest<'_>, tags: Vec<Pair>) -> Result<(), S3Error> {
    let found = find_object(gateway, request)?;
    update(gateway, request, &found, Update::SetTags(SetTags { tags })).await
}

/// Changes the description of a version; its body stays.
///
/// # Errors
/// `OperationAborted` if the version was replaced meanwhile; errors of
/// [`mlgw_objects::ObjectLayer::propose_object`].
pub(super) async fn update(
    gateway: &Gateway,
    request: &AuthenticatedRequest<'_>,
    found: &FoundObject,
    update: Update,
) -> Result<(), S3Error> {
    let change = ObjectChange::Update(UpdateObject {
        expected_body: found.object.body_id,
        update: Some(update),
        conditions: Conditions::default(),
    });
    let proposed = gateway.objects.propose_object(&found.bucket, &found.key, request.now, change).await;
    proposed.map(|_| ()).map_err(|error| match error {
        ProposeError::Rejected(Reject::PreconditionFailed) => S3Error::new(Code::OperationAborted),
        error => error.into(),
    })
}

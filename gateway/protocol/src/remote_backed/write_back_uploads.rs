//! Multipart uploads to buckets in write-back mode. Their parts are stored here, like those of uploads to
//! local buckets. A completed upload is a write like any other, sent to the origin with the part boundaries
//! that its client chose.
//!
//! The record of an upload has the name that the write will have; the object's key is among its headers. An
//! upload that is unknown here was created at the origin before the bucket was in write-back mode, and
//! continues there.
//!
//! Invariant: the conditions of a complete still hold when it is acknowledged, with respect to all writes
//! through this node. A power failure leaves an upload with its parts, or a write that is acknowledged or
//! can be repeated.

use super::write_back::{self, check_metadata_with_mark, commit};
use super::{RemoteBackedBucket, origin_error};
use crate::conditions;
use crate::copy;
use crate::keep_alive;
use crate::list::ListingParameters;
use crate::multipart::{
    MultipartUploadPage, UploadMarkers, abort_of, completion, create_named, list_parts_of, read_document,
    result_document, upload_part_of, uploads_response,
};
use crate::object_headers;
use crate::request::AuthenticatedRequest;
use crate::response::{S3Response, S3Result, xml};
use crate::{Gateway, IncomingBody};
use mlgw_cache::writeback::record::{WriteFacts, WriteMark, record_name, unmarked};
use mlgw_cache::writeback::{KeyTurn, WriteBackQueue};
use mlgw_common::ObjectKey;
use mlgw_common::limits::LOOKUP_RETRIES_MAX;
use mlgw_formats::command::Conditions;
use mlgw_formats::schema::{self, ObjectVersion};
use mlgw_objects::multipart::UploadHandle;
use mlgw_remote::origin::OriginError;
use mlgw_wire::error::S3Error;
use mlgw_wire::operation::Operation;
use std::collections::BTreeMap;
use std::sync::Arc;

/// CreateMultipartUpload.
///
/// # Errors
/// Those of S3.
pub(super) async fn create(
    gateway: &Arc<Gateway>,
    request: &AuthenticatedRequest<'_>,
    remote_backed: &RemoteBackedBucket,
) -> S3Result {
    let key = request.key()?;
    let body = gateway.objects.catalogue.body_id().await?;
    let mut description = object_headers::parse_description(request)?;
    check_metadata_with_mark(&description, remote_backed, body)?;
    WriteFacts::put_key(key, &mut description.headers);
    let named = UploadHandle { bucket: remote_backed.bucket.clone(), key: record_name(body), body };
    create_named(gateway, request, &named, description).await
}

/// Returns the upload that a request names, if it is stored here and belongs to the request's key.
///
/// # Errors
/// Fails if the catalogue cannot be read.
pub(super) fn find(
    gateway: &Gateway,
    request: &AuthenticatedRequest<'_>,
    remote_backed: &RemoteBackedBucket,
) -> Result<Option<(UploadHandle, schema::Upload)>, S3Error> {
    let id = request.query.raw("uploadId").unwrap_or_default();
    let (Some(body), Some(_)) = (gateway.upload_ids.body(id), &remote_backed.queue) else { return Ok(None) };
    let named = UploadHandle { bucket: remote_backed.bucket.clone(), key: record_name(body), body };
    let found = gateway.objects.catalogue.upload(named.bucket.bucket_id(), &named.key, body)?;
    let key = request.key()?;
    let found = found.filter(|upload| WriteFacts::key_of(&upload.headers).as_ref() == Some(key));
    Ok(found.map(|upload| (named, upload)))
}

/// Runs a request on an upload that is stored here.
///
/// # Errors
/// Those of S3.
pub(super) async fn with_upload(
    gateway: &Arc<Gateway>,
    operation: Operation,
    request: &AuthenticatedRequest<'_>,
    remote_backed: &RemoteBackedBucket,
    body: IncomingBody<'_>,
    named: UploadHandle,
    record: schema::Upload,
) -> S3Result {
    use Operation as O;
    match operation {
        O::UploadPart => upload_part_of(gateway, request, body, &named, &record).await,
        O::UploadPartCopy => copy::upload_part_copy_of(gateway, request, named, &record).await,
        O::ListParts => list_parts_of(gateway, request, &named, &record),
        O::AbortMultipartUpload => abort_of(gateway, request.now, &named).await,
        _ => complete(gateway, request, remote_backed, body, named, &record).await,
    }
}

async fn complete(
    gateway: &Arc<Gateway>,
    request: &AuthenticatedRequest<'_>,
    remote_backed: &RemoteBackedBucket,
    body: IncomingBody<'_>,
    named: UploadHandle,
    record: &schema::Upload,
) -> S3Result {
    let Some(queue) = remote_backed.queue.clone() else {
        return Err(S3Error::internal("the bucket has no write-back queue"));
    };
    let (key, after) = (request.key()?.clone(), queue.acked());
    let conditions = conditions::write_conditions(request)?;
    let document = read_document(request, body).await?;
    let completion = completion(gateway, request, &named, record, &document)?;
    let (gateway, remote_backed, now) = (gateway.clone(), remote_backed.clone(), request.now);
    keep_alive::respond(async move {
        let place = write_back::reserve_dirty(&gateway, completion.bytes()).await?;
        let turns = WriteTurns::take(&gateway, &remote_backed, &queue, &key, &conditions).await?;
        gateway.objects.tiers.hot.seal_own(named.body);
        let facts = WriteFacts::of_write(key.clone(), after, queue.known_etag(&key));
        let mut headers = Vec::new();
        facts.put_rest(&mut headers);
        let new = (named.key.clone(), facts, place);
        let durable = async move {
            let conditions = Conditions::default();
            Ok(gateway.objects.complete_upload(&named, completion, conditions, headers, now).await?)
        };
        let object = commit(&remote_backed, &queue, new, Some(turns.key_turn), durable).await?;
        Ok(result_document(&remote_backed.bucket, &key, &object))
    })
    .await
}

/// Turns held from the evaluation of a write's conditions until the write has its sequence number.
struct WriteTurns {
    key_turn: KeyTurn,
    _condition_turn: Option<KeyTurn>,
}

impl WriteTurns {
    /// Waits for the turns and checks that the conditions hold.
    async fn take(
        gateway: &Gateway,
        remote_backed: &RemoteBackedBucket,
        queue: &WriteBackQueue,
        key: &ObjectKey,
        conditions: &Conditions,
    ) -> Result<Self, S3Error> {
        if *conditions == Conditions::default() {
            return Ok(Self { key_turn: queue.key_turn(key).await, _condition_turn: None });
        }
        let of_conditions = write_back::condition_turn(queue, key).await?;
        for _ in 0..LOOKUP_RETRIES_MAX {
            let latest = queue.latest(key).map(|write| write.seq);
            let current = current_object(gateway, remote_backed, queue, key).await?;
            let of_key = queue.key_turn(key).await;
            if queue.latest(key).map(|write| write.seq) == latest {
                conditions::check_write(conditions, current.as_ref())?;
                return Ok(Self { key_turn: of_key, _condition_turn: Some(of_conditions) });
            }
        }
        Err(write_back::attempts_exhausted(gateway))
    }
}

/// Returns the current object of a key, as a GET would see it.
async fn current_object(
    gateway: &Gateway,
    remote_backed: &RemoteBackedBucket,
    queue: &WriteBackQueue,
    key: &ObjectKey,
) -> Result<Option<ObjectVersion>, S3Error> {
    if let Some(write) = queue.latest(key) {
        if write.facts.is_delete {
            return Ok(None);
        }
        if let Some(object) = gateway.objects.current(remote_backed.bucket.bucket_id(), &write.name)? {
            return Ok(Some(object));
        }
        // The origin has it now.
    }
    match remote_backed.cached.head_origin(key).await {
        Ok(object) => Ok(Some(unmarked(&object).unwrap_or(object))),
        Err(OriginError::NoSuchKey) => Ok(None),
        Err(error) => Err(origin_error(error, remote_backed)),
    }
}

/// Returns the response to a complete that was done before and whose upload is therefore gone; `None` if
/// there was none.
///
/// # Errors
/// Those of S3.
pub(super) async fn repeated_complete(
    gateway: &Gateway,
    request: &AuthenticatedRequest<'_>,
    remote_backed: &RemoteBackedBucket,
    queue: &WriteBackQueue,
) -> Result<Option<S3Response>, S3Error> {
    let id = request.query.raw("uploadId").unwrap_or_default();
    let Some(body) = gateway.upload_ids.body(id) else { return Ok(None) };
    let key = request.key()?;
    let mark = WriteMark::new(&remote_backed.bucket, queue.timelines(), body, "");
    let object = match queue.latest(key).filter(|write| write.name == record_name(body)) {
        Some(write) => gateway.objects.current(remote_backed.bucket.bucket_id(), &write.name)?,
        None => match remote_backed.cached.head_origin(key).await {
            Ok(object) => {
                WriteMark::of_object(&object).filter(|found| found.is_of_write(&mark)).and(unmarked(&object))
            }
            Err(_) => None,
        },
    };
    Ok(object.map(|object| xml(result_document(&remote_backed.bucket, key, &object))))
}

/// ListMultipartUploads: the uploads that are stored here. Each page scans all uploads of the bucket and
/// keeps about one page of them in memory.
///
/// # Errors
/// Those of S3.
pub(super) fn list_uploads(
    gateway: &Gateway,
    request: &AuthenticatedRequest<'_>,
    remote_backed: &RemoteBackedBucket,
) -> S3Result {
    let listing = ListingParameters::parse(request, "max-uploads")?;
    let markers = UploadMarkers::parse(gateway, request)?;
    let key_marker = &*markers.key;
    let reader = gateway.objects.catalogue.reader();
    let mut uploads = BTreeMap::new();
    for found in reader.uploads(remote_backed.bucket.bucket_id(), None) {
        let (_, mut upload) = found?;
        let Some(key) = WriteFacts::key_of(&upload.headers) else { continue };
        if !key.as_str().starts_with(&*listing.keys.prefix) || key.as_str() < key_marker {
            continue;
        }
        upload.key = key.as_str().to_owned();
        // One upload represents its common prefix.
        let group = listing.keys.common_prefix(key.as_str());
        let place = group.map_or((upload.key.clone(), upload.body_id), |group| (group.to_owned(), 0));
        uploads.insert(place, upload);
        // Uploads of the marker's own key may be on an earlier page, so they are not counted.
        let beyond = uploads.range((format!("{key_marker}\0"), 0)..).count();
        if beyond > listing.keys.max_keys + 1 {
            uploads.pop_last();
        }
    }
    let page = MultipartUploadPage::of(uploads.into_values(), &listing, &markers);
    uploads_response(gateway, request, &remote_backed.bucket, &listing, &markers, &page)
}

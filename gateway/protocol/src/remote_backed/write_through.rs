//! PutObject, DeleteObject and DeleteObjects of buckets in write-through mode.
//!
//! Conditions are passed to the origin, because it alone knows the current object at the moment of the
//! write. Invariant: 200 means that the origin has the write.

use super::passed_headers::pass_headers;
use super::send::{RemoteBodyTarget, send};
use super::shown_etags::{origin_etags, pass_conditions};
use super::{RemoteBackedBucket, origin_write_error};
use crate::delete;
use crate::object_headers;
use crate::request::AuthenticatedRequest;
use crate::response::{S3Result, empty};
use crate::{Gateway, IncomingBody};
use futures_util::{StreamExt as _, stream};
use http::{HeaderMap, HeaderName, StatusCode};
use mlgw_cache::writeback::record::WriteMark;
use mlgw_objects::put::Description;
use mlgw_wire::elements::{DeleteDocument, ObjectToDelete};
use mlgw_wire::error::S3Error;
use mlgw_wire::origin_headers::describe_as;
use mlgw_wire::target::check_version;
use mlgw_wire::values::header_value;
use std::collections::BTreeMap;

/// Conditions of a write.
pub(super) const CONDITIONS: &[&str] = &["if-match", "if-none-match"];
/// Conditions of a delete.
const DELETE_CONDITIONS: &[&str] = &["if-match", "x-amz-if-match-size", "x-amz-if-match-last-modified-time"];
/// Concurrent deletes of one DeleteObjects. At 20 ms a delete, an origin deletes a thousand keys in less
/// than a second.
const CONCURRENT_DELETES: usize = 32;

/// PutObject.
///
/// # Errors
/// Those of S3.
pub(super) async fn put_object(
    request: &AuthenticatedRequest<'_>,
    remote_backed: &RemoteBackedBucket,
    upload: IncomingBody<'_>,
) -> S3Result {
    let mut headers = description_headers(request, remote_backed)?;
    pass_conditions(request, CONDITIONS, remote_backed, request.key()?, &mut headers).await;
    let written =
        send(request, remote_backed, upload, RemoteBodyTarget::Object(request.key()?), headers).await?;
    let mut response = empty(StatusCode::OK);
    response.headers_mut().extend(written.headers);
    Ok(response)
}

/// DeleteObject.
///
/// # Errors
/// Those of S3.
pub(super) async fn delete_object(
    request: &AuthenticatedRequest<'_>,
    remote_backed: &RemoteBackedBucket,
) -> S3Result {
    check_version(request.query.raw("versionId"))?;
    let mut headers = HeaderMap::new();
    let key = request.key()?;
    pass_conditions(request, DELETE_CONDITIONS, remote_backed, key, &mut headers).await;
    let deleted = remote_backed.cached.delete(key, &headers).await;
    let mut response = empty(StatusCode::NO_CONTENT);
    response.headers_mut().extend(deleted.map_err(|error| origin_write_error(error, remote_backed))?.headers);
    Ok(response)
}

/// DeleteObjects, as one delete per key: each key is checked and ordered separately, and some origins lack
/// the operation.
///
/// # Errors
/// Those of S3; the error of a single key is in the response's document.
pub(super) async fn delete_objects(
    gateway: &Gateway,
    request: &AuthenticatedRequest<'_>,
    remote_backed: &RemoteBackedBucket,
    upload: IncomingBody<'_>,
) -> S3Result {
    let document = delete::read_document(request, upload).await?;
    // Collected eagerly: the compiler does not find the futures of a borrowing closure to be `Send`.
    let deletes: Vec<_> =
        document.objects.iter().map(|entry| delete_one(request, remote_backed, entry)).collect();
    let results = delete_many(&document, deletes).await;
    delete::answer(&document, gateway, request, results)
}

/// Deletes many keys concurrently; deletes of the same key run in the document's order. Returns the results
/// in the document's order.
pub(super) async fn delete_many(
    document: &DeleteDocument,
    deletes: Vec<impl Future<Output = Result<(), S3Error>>>,
) -> Vec<Result<(), S3Error>> {
    let mut of_key = BTreeMap::<&str, Vec<_>>::new();
    for (number, (entry, delete)) in document.objects.iter().zip(deletes).enumerate() {
        of_key.entry(&entry.key).or_default().push((number, delete));
    }
    let keys: Vec<_> = of_key.into_values().map(run_in_order).collect();
    let mut results = stream::iter(keys).buffer_unordered(CONCURRENT_DELETES).concat().await;
    results.sort_unstable_by_key(|(number, _)| *number);
    results.into_iter().map(|(_, result)| result).collect()
}

async fn run_in_order<T>(futures: Vec<(usize, impl Future<Output = T>)>) -> Vec<(usize, T)> {
    let mut results = Vec::with_capacity(futures.len());
    for (number, future) in futures {
        results.push((number, future.await));
    }
    results
}

/// Deletes one key at the origin.
///
/// # Errors
/// Those of S3.
pub(super) async fn delete_one(
    request: &AuthenticatedRequest<'_>,
    remote_backed: &RemoteBackedBucket,
    entry: &ObjectToDelete,
) -> Result<(), S3Error> {
    let key = delete::key_of(entry, request)?;
    let etag = match &entry.etag {
        Some(etag) => Some(origin_etags(etag.trim(), remote_backed, &key).await),
        None => None,
    };
    let conditions = [etag.as_deref(), entry.size.as_deref(), entry.modified.as_deref()];
    let lines = DELETE_CONDITIONS
        .iter()
        .zip(conditions)
        .filter_map(|(name, value)| Some((HeaderName::from_static(name), header_value(value?.trim()))));
    let deleted = remote_backed.cached.delete(&key, &lines.collect()).await;
    deleted.map(drop).map_err(|error| origin_write_error(error, remote_backed))
}

/// Returns the request's description of its object, as headers. In write-back mode it carries the write
/// mark, as the writes of the queue do.
///
/// # Errors
/// Those of [`object_headers::parse_description`].
pub(super) fn description_headers(
    request: &AuthenticatedRequest<'_>,
    remote_backed: &RemoteBackedBucket,
) -> Result<HeaderMap, S3Error> {
    let Description { headers: stored, metadata, tags: _ } = object_headers::parse_description(request)?;
    let mut headers = HeaderMap::new();
    describe_as(&stored, &metadata, &mut headers);
    pass_headers(request, &["x-amz-tagging", "x-amz-storage-class"], &mut headers);
    if let Some(queue) = &remote_backed.queue {
        WriteMark::of_write_through(&remote_backed.bucket, queue.timelines()).put(&mut headers);
    }
    Ok(headers)
}

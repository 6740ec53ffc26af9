//! PutObject, DeleteObject and DeleteObjects of buckets in write-through mode, and the headers that are
//! passed to an origin.
//!
//! Conditions are passed to the origin, because it alone knows the current object at the moment of the
//! write. Invariant: 200 means that the origin has the write.

use super::send::{To, send};
use super::shown::{at_origin, pass_conditions};
use super::{Fronted, told_of_write};
use crate::delete;
use crate::object_headers;
use crate::request::Request;
use crate::response::{S3Result, empty};
use crate::{Gateway, Upload};
use futures_util::{StreamExt as _, stream};
use http::{HeaderMap, HeaderName, StatusCode};
use mlgw_cache::writeback::record::Mark;
use mlgw_objects::put::Description;
use mlgw_wire::elements::{DeleteDocument, Doomed};
use mlgw_wire::error::S3Error;
use mlgw_wire::origin_headers::describe_as;
use mlgw_wire::target::check_version;
use mlgw_wire::values::header_value;
use std::collections::BTreeMap;

/// Conditions of a write.
pub(super) const CONDITIONS: &[&str] = &["if-match", "if-none-match"];
/// Conditions of a delete.
const OF_DELETE: &[&str] = &["if-match", "x-amz-if-match-size", "x-amz-if-match-last-modified-time"];
/// Concurrent deletes of one DeleteObjects. At 20 ms a delete, an origin deletes a thousand keys in less
/// than a second.
const DELETES_AT_ONCE: usize = 32;

/// PutObject.
///
/// # Errors
/// Those of S3.
pub(super) async fn put_object(request: &Request<'_>, fronted: &Fronted, upload: Upload<'_>) -> S3Result {
    let mut headers = described(request, fronted)?;
    pass_conditions(request, CONDITIONS, fronted, request.key()?, &mut headers).await;
    let written = send(request, fronted, upload, To::Object(request.key()?), headers).await?;
    let mut response = empty(StatusCode::OK);
    response.headers_mut().extend(written.headers);
    Ok(response)
}

/// DeleteObject.
///
/// # Errors
/// Those of S3.
pub(super) async fn delete_object(request: &Request<'_>, fronted: &Fronted) -> S3Result {
    check_version(request.query.raw("versionId"))?;
    let mut headers = HeaderMap::new();
    let key = request.key()?;
    pass_conditions(request, OF_DELETE, fronted, key, &mut headers).await;
    let deleted = fronted.bound.delete(key, &headers).await;
    let mut response = empty(StatusCode::NO_CONTENT);
    response.headers_mut().extend(deleted.map_err(|error| told_of_write(error, fronted))?.headers);
    Ok(response)
}

/// DeleteObjects, as one delete per key: each key is checked and ordered separately, and some origins lack
/// the operation.
///
/// # Errors
/// Those of S3; the error of a single key is in the answer's document.
pub(super) async fn delete_objects(
    gateway: &Gateway,
    request: &Request<'_>,
    fronted: &Fronted,
    upload: Upload<'_>,
) -> S3Result {
    let document = delete::read_document(request, upload).await?;
    // Collected eagerly: the compiler does not find the futures of a borrowing closure to be `Send`.
    let deletes: Vec<_> =
        document.objects.iter().map(|doomed| delete_one(request, fronted, doomed)).collect();
    let results = many(&document, deletes).await;
    delete::answer(&document, gateway, request, results)
}

/// Deletes many keys concurrently; deletes of the same key run in the document's order. Returns the results
/// in the document's order.
pub(super) async fn many(
    document: &DeleteDocument,
    deletes: Vec<impl Future<Output = Result<(), S3Error>>>,
) -> Vec<Result<(), S3Error>> {
    let mut of_key = BTreeMap::<&str, Vec<_>>::new();
    for (number, (doomed, delete)) in document.objects.iter().zip(deletes).enumerate() {
        of_key.entry(&doomed.key).or_default().push((number, delete));
    }
    let keys: Vec<_> = of_key.into_values().map(one_after_another).collect();
    let mut results = stream::iter(keys).buffer_unordered(DELETES_AT_ONCE).concat().await;
    results.sort_unstable_by_key(|(number, _)| *number);
    results.into_iter().map(|(_, result)| result).collect()
}

async fn one_after_another<T>(futures: Vec<(usize, impl Future<Output = T>)>) -> Vec<(usize, T)> {
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
    request: &Request<'_>,
    fronted: &Fronted,
    doomed: &Doomed,
) -> Result<(), S3Error> {
    let key = delete::key_of(doomed, request)?;
    let etag = match &doomed.etag {
        Some(etag) => Some(at_origin(etag.trim(), fronted, &key).await),
        None => None,
    };
    let conditions = [etag.as_deref(), doomed.size.as_deref(), doomed.modified.as_deref()];
    let lines = OF_DELETE
        .iter()
        .zip(conditions)
        .filter_map(|(name, value)| Some((HeaderName::from_static(name), header_value(value?.trim()))));
    let deleted = fronted.bound.delete(&key, &lines.collect()).await;
    deleted.map(drop).map_err(|error| told_of_write(error, fronted))
}

/// Returns the request's description of its object, as headers. In write-back mode it carries the write
/// mark, as the writes of the queue do.
///
/// # Errors
/// Those of [`object_headers::description`].
pub(super) fn described(request: &Request<'_>, fronted: &Fronted) -> Result<HeaderMap, S3Error> {
    let Description { headers: stored, metadata, tags: _ } = object_headers::description(request)?;
    let mut headers = HeaderMap::new();
    describe_as(&stored, &metadata, &mut headers);
    pass(request, &["x-amz-tagging", "x-amz-storage-class"], &mut headers);
    if let Some(queue) = &fronted.queue {
        Mark::of_through(&fronted.bucket, queue.timelines()).put(&mut headers);
    }
    Ok(headers)
}

/// Copies the named headers unchanged.
pub(super) fn pass(request: &Request<'_>, names: &[&'static str], to: &mut HeaderMap) {
    for name in names {
        for value in request.head.headers.get_all(*name) {
            to.append(HeaderName::from_static(name), value.clone());
        }
    }
}

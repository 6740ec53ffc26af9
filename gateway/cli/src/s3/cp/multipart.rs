//! Multipart uploads: created, filled by parts, and completed or aborted.

use super::copy_run::{CopyRun, ItemFailure};
use super::open_upload::OpenUpload;
use super::parts::{CheckedBytes, ObjectPartRange, StoredPart, crc_of_parts, crc_text};
use crate::s3::client::{S3Request, copy_source};
use crate::s3::failure::S3Failure;
use crate::s3::path::RemotePath;
use crate::s3::range::ByteRange;
use crate::s3::xml::{PartReceipt, complete_document, parse_etag, parse_upload_id, unquoted};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, header};
use mlgw_formats::checksum::Algorithm;

/// Name of the header with the checksum of an object or a part.
pub(super) const CRC_HEADER: &str = Algorithm::Crc64Nvme.header();

/// Returns the headers of an upload whose parts have checksums that make one of the whole object.
pub(super) fn checksum_headers() -> HeaderMap {
    let algorithm = ("x-amz-checksum-algorithm", Algorithm::Crc64Nvme.name());
    let kind = ("x-amz-checksum-type", "FULL_OBJECT");
    let pairs = [algorithm, kind]
        .map(|(name, value)| (header::HeaderName::from_static(name), HeaderValue::from_static(value)));
    HeaderMap::from_iter(pairs)
}

/// Returns a checksum as the value of a header.
pub(super) fn crc_value(crc: u64) -> HeaderValue {
    // Base64 has no character that a header refuses.
    HeaderValue::from_str(&crc_text(crc)).unwrap_or_else(|_| HeaderValue::from_static(""))
}

/// Creates an upload. It is aborted at the end of the command unless it is completed.
///
/// # Errors
/// The server refused it.
pub(super) async fn create(
    run: &CopyRun<'_>,
    object: &RemotePath,
    headers: HeaderMap,
) -> Result<OpenUpload, ItemFailure> {
    let request = S3Request::new(Method::POST, object.clone()).with_query("uploads", "");
    let request = request.with_headers(headers).not_idempotent();
    let failed = |failure| run.failure(failure, object);
    let document = run.client.document(&request).await.map_err(failed)?.into_body();
    let id = parse_upload_id(&document).map_err(|error| failed(S3Failure::InvalidResponse(error)))?;
    let upload = OpenUpload { object: object.clone(), id };
    run.add_upload(upload.clone());
    Ok(upload)
}

/// Sends a part.
///
/// # Errors
/// The server refused it.
pub(super) async fn put_part(
    run: &CopyRun<'_>,
    upload: &OpenUpload,
    number: usize,
    part: CheckedBytes,
) -> Result<StoredPart, ItemFailure> {
    let (length, crc) = (part.length(), part.crc);
    let request = upload
        .request(Method::PUT)
        .with_query("partNumber", &number.to_string())
        .with_header(CRC_HEADER, crc_value(crc))
        .with_body(part.bytes);
    let failed = |failure| run.failure(failure, &upload.object);
    let response = run.client.document(&request).await.map_err(failed)?;
    let etag = response.headers().get(header::ETAG).and_then(|etag| etag.to_str().ok());
    let etag = etag.ok_or_else(|| failed(S3Failure::InvalidResponse("a part without an ETag".to_owned())))?;
    run.add_progress(length);
    let receipt = PartReceipt { number, etag: unquoted(etag), checksum: Some(crc_text(crc)) };
    Ok(StoredPart { receipt, crc, length })
}

/// Copies a part of another object in the server, if that object has this ETag.
///
/// # Errors
/// The server refused it.
pub(super) async fn copy_part(
    run: &CopyRun<'_>,
    upload: &OpenUpload,
    source: &CopySource<'_>,
    part: ObjectPartRange,
) -> Result<PartReceipt, ItemFailure> {
    let failed = |failure| run.failure(failure, source.object);
    let range = ByteRange::between(part.range.start, part.range.end).header();
    let range =
        HeaderValue::from_str(&range).map_err(|error| failed(S3Failure::Invalid(error.to_string())))?;
    let request = upload
        .request(Method::PUT)
        .with_query("partNumber", &part.number.to_string())
        .with_header("x-amz-copy-source", copy_source(source.object))
        .with_header("x-amz-copy-source-range", range)
        .with_header("x-amz-copy-source-if-match", source.etag.clone())
        .with_long_timeout();
    let copied = run.client.document(&request).await.map_err(S3Failure::of_condition);
    let document = copied.map_err(failed)?.into_body();
    let etag = parse_etag(&document, "CopyPartResult");
    let etag = etag.map_err(|error| failed(S3Failure::InvalidResponse(error)))?;
    run.add_progress(part.range.end - part.range.start);
    Ok(PartReceipt { number: part.number, etag, checksum: None })
}

/// Source of a copied part.
pub(super) struct CopySource<'a> {
    pub(super) object: &'a RemotePath,
    /// ETag that the source must have.
    pub(super) etag: &'a HeaderValue,
}

/// Completes an upload of parts with checksums. The server verifies the checksum of the object.
/// Returns the size of the object.
///
/// # Errors
/// The server refused it. The upload is aborted then.
pub(super) async fn complete_checked(
    run: &CopyRun<'_>,
    upload: &OpenUpload,
    mut parts: Vec<StoredPart>,
) -> Result<u64, ItemFailure> {
    parts.sort_by_key(|part| part.receipt.number);
    let bytes = parts.iter().map(|part| part.length).sum();
    let mut headers = checksum_headers();
    headers.remove("x-amz-checksum-algorithm");
    headers.insert(CRC_HEADER, crc_value(crc_of_parts(&parts)));
    let receipts: Vec<PartReceipt> = parts.into_iter().map(|part| part.receipt).collect();
    complete(run, upload, &receipts, headers).await?;
    Ok(bytes)
}

/// Completes an upload of parts in the order of their numbers.
///
/// # Errors
/// The server refused it.
pub(super) async fn complete(
    run: &CopyRun<'_>,
    upload: &OpenUpload,
    parts: &[PartReceipt],
    headers: HeaderMap,
) -> Result<(), ItemFailure> {
    assert!(parts.is_sorted_by_key(|part| part.number), "S3 takes the parts of an object in their order");
    let request = upload
        .request(Method::POST)
        .with_headers(headers)
        .with_body(Bytes::from(complete_document(parts)))
        .with_long_timeout();
    let failed = |failure| run.failure(failure, &upload.object);
    let document = run.client.document(&request).await.map_err(failed)?.into_body();
    parse_etag(&document, "CompleteMultipartUploadResult")
        .map_err(|error| failed(S3Failure::InvalidResponse(error)))?;
    Ok(())
}

/// Ends an upload: it is complete, or else it is aborted.
pub(super) async fn end<T>(
    run: &CopyRun<'_>,
    upload: &OpenUpload,
    completed: Result<T, ItemFailure>,
) -> Result<T, ItemFailure> {
    if completed.is_err() {
        upload.abort(run.client).await;
    }
    run.remove_upload(upload);
    completed
}

//! Multipart uploads to buckets in write-through mode. Their ids are the origin's, and no state is kept
//! here.

use super::passed_headers::pass_headers;
use super::send::{RemoteBodyTarget, send};
use super::shown_etags::pass_conditions;
use super::write_through::{CONDITIONS, description_headers};
use super::{RemoteBackedBucket, origin_error, origin_write_error};
use crate::keep_alive::{self, LongOperationResult};
use crate::list::{ListingParameters, write_owner};
use crate::multipart::part_number;
use crate::request::AuthenticatedRequest;
use crate::response::{S3Result, empty, long_xml, xml};
use crate::{IncomingBody, document};
use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use mlgw_body::BodyTerms;
use mlgw_common::Timestamp;
use mlgw_common::limits::PAGE_KEYS_MAX;
use mlgw_formats::checksum::Algorithm;
use mlgw_formats::schema::Pair;
use mlgw_remote::origin::{ListQuery, PartPage, UploadPage, UploadsQuery};
use mlgw_wire::error::{Code, S3Error};
use mlgw_wire::xml::Xml;
use std::borrow::Cow;

/// CreateMultipartUpload.
///
/// # Errors
/// Those of S3.
pub(super) async fn create(
    request: &AuthenticatedRequest<'_>,
    remote_backed: &RemoteBackedBucket,
) -> S3Result {
    let key = request.key()?;
    let mut headers = description_headers(request, remote_backed)?;
    pass_headers(request, &["x-amz-checksum-algorithm", "x-amz-checksum-type"], &mut headers);
    let begun = remote_backed.cached.create_upload(key, &headers).await;
    let begun = begun.map_err(|error| origin_write_error(error, remote_backed))?;
    let mut out = Xml::new("InitiateMultipartUploadResult");
    out.text("Bucket", &remote_backed.bucket.name).text("Key", key.as_str()).text("UploadId", &begun.id);
    let mut response = xml(out.finish("InitiateMultipartUploadResult"));
    response.headers_mut().extend(begun.headers);
    Ok(response)
}

/// Parses the id of the upload that a request names.
pub(super) fn upload_id<'a>(request: &AuthenticatedRequest<'a>) -> Result<Cow<'a, str>, S3Error> {
    let id = request.query.get_non_empty("uploadId")?;
    id.ok_or_else(|| S3Error::new(Code::NoSuchUpload).field("UploadId", ""))
}

/// UploadPart.
///
/// # Errors
/// Those of S3.
pub(super) async fn upload_part(
    request: &AuthenticatedRequest<'_>,
    remote_backed: &RemoteBackedBucket,
    upload: IncomingBody<'_>,
) -> S3Result {
    let (id, number) = (upload_id(request)?, u32::from(part_number(request)?.get()));
    let to = RemoteBodyTarget::Part(request.key()?, &id, number);
    let written = send(request, remote_backed, upload, to, HeaderMap::new()).await?;
    let mut response = empty(StatusCode::OK);
    response.headers_mut().extend(written.headers);
    Ok(response)
}

/// CompleteMultipartUpload. The client's document is passed on unchanged, because only the origin knows the
/// parts.
///
/// # Errors
/// Those of S3.
pub(super) async fn complete(
    request: &AuthenticatedRequest<'_>,
    remote_backed: &RemoteBackedBucket,
    upload: IncomingBody<'_>,
) -> S3Result {
    let (key, id) = (request.key()?.clone(), upload_id(request)?.into_owned());
    let mut headers = HeaderMap::new();
    pass_conditions(request, CONDITIONS, remote_backed, &key, &mut headers).await;
    pass_headers(request, &["x-amz-checksum-type", "x-amz-mp-object-size"], &mut headers);
    Algorithm::ALL.iter().for_each(|algorithm| pass_headers(request, &[algorithm.header()], &mut headers));
    // A checksum in the headers covers the object, not this document.
    let terms = BodyTerms { checksum_headers: false, ..document::DOCUMENT_TERMS };
    let document = document::read(request, upload, terms).await?;
    let remote_backed = remote_backed.clone();
    keep_alive::respond(async move {
        let named = Bytes::copy_from_slice(&document);
        let made = remote_backed.cached.complete(&key, &id, &headers, named).await;
        let made = made.map_err(|error| origin_write_error(error, &remote_backed))?;
        let bucket = &remote_backed.bucket.name;
        let mut out = Xml::new("CompleteMultipartUploadResult");
        out.text("Location", &format!("/{bucket}/{key}")).text("Bucket", bucket).text("Key", key.as_str());
        out.etag(&made.etag);
        write_checksums(&mut out, &made.checksums);
        Ok(LongOperationResult {
            document: out.finish("CompleteMultipartUploadResult"),
            headers: made.headers,
        })
    })
    .await
}

/// Writes the checksum elements of the origin.
pub(super) fn write_checksums(out: &mut Xml, checksums: &[Pair]) {
    for checksum in checksums {
        out.text(&checksum.name, &checksum.value);
    }
}

/// AbortMultipartUpload.
///
/// # Errors
/// Those of S3.
pub(super) async fn abort(
    request: &AuthenticatedRequest<'_>,
    remote_backed: &RemoteBackedBucket,
) -> S3Result {
    let aborted = remote_backed.cached.abort(request.key()?, &upload_id(request)?).await;
    aborted.map_err(|error| origin_write_error(error, remote_backed))?;
    Ok(empty(StatusCode::NO_CONTENT))
}

/// ListParts.
///
/// # Errors
/// Those of S3.
pub(super) async fn list_parts(
    request: &AuthenticatedRequest<'_>,
    remote_backed: &RemoteBackedBucket,
) -> S3Result {
    let (key, id) = (request.key()?, upload_id(request)?);
    let after = request.query.number("part-number-marker")?.unwrap_or(0);
    let after = u32::try_from(after).unwrap_or(u32::MAX);
    let max = request.query.number("max-parts")?.unwrap_or(PAGE_KEYS_MAX as u64);
    let max = usize::try_from(max).unwrap_or(PAGE_KEYS_MAX).min(PAGE_KEYS_MAX);
    let page = remote_backed.cached.list_parts(key, &id, after, max).await;
    let page = page.map_err(|error| origin_error(error, remote_backed))?;
    let mut out = Xml::new("ListPartsResult");
    out.text("Bucket", &remote_backed.bucket.name).text("Key", key.as_str()).text("UploadId", &id);
    write_owner(&mut out, "Initiator", &remote_backed.bucket.owner);
    write_owner(&mut out, "Owner", &remote_backed.bucket.owner);
    write_parts(&mut out, &page, max);
    out.value("PartNumberMarker", after).value("MaxParts", max);
    long_xml(request.memory, out.finish("ListPartsResult"))
}

fn write_parts(out: &mut Xml, page: &PartPage, max: usize) {
    out.text("StorageClass", &page.storage_class);
    out.optional("ChecksumAlgorithm", page.checksum_algorithm.as_deref());
    out.optional("ChecksumType", page.checksum_type.as_deref());
    if let Some(last) = page.next.or_else(|| page.parts.last().map(|part| part.number)) {
        out.value("NextPartNumberMarker", last);
    }
    // A page without parts has no last part at which the next page could begin.
    out.value("IsTruncated", max > 0 && page.next.is_some());
    for part in &page.parts {
        out.open("Part").value("PartNumber", part.number);
        out.time("LastModified", Timestamp(part.modified_ms)).etag(&part.etag).value("Size", part.size);
        write_checksums(out, &part.checksums);
        out.close("Part");
    }
}

/// ListMultipartUploads.
///
/// # Errors
/// Those of S3.
pub(super) async fn list_uploads(
    request: &AuthenticatedRequest<'_>,
    remote_backed: &RemoteBackedBucket,
) -> S3Result {
    let listing = ListingParameters::parse(request, "max-uploads")?;
    let key_marker = request.query.get("key-marker")?.unwrap_or_default();
    // Ignored without a key marker.
    let id_marker =
        request.query.get("upload-id-marker")?.filter(|_| !key_marker.is_empty()).unwrap_or_default();
    let keys = ListQuery {
        prefix: listing.keys.prefix.to_string(),
        delimiter: listing.keys.delimiter.as_deref().unwrap_or_default().to_owned(),
        start_after: key_marker.to_string(),
        token: None,
        max_keys: listing.keys.max_keys,
    };
    let query = UploadsQuery { keys, id_marker: id_marker.to_string() };
    let page =
        remote_backed.cached.list_uploads(query).await.map_err(|error| origin_error(error, remote_backed))?;
    let mut out = Xml::new("ListMultipartUploadsResult");
    out.text("Bucket", &remote_backed.bucket.name).text("KeyMarker", &listing.encode_name(&key_marker));
    out.text("UploadIdMarker", &id_marker);
    out.text("Prefix", &listing.encode_name(&listing.keys.prefix));
    listing.write_parameters(&mut out);
    out.value("MaxUploads", listing.keys.max_keys);
    write_uploads(&mut out, &listing, &page, &remote_backed.bucket.owner);
    long_xml(request.memory, out.finish("ListMultipartUploadsResult"))
}

fn write_uploads(out: &mut Xml, listing: &ListingParameters<'_>, page: &UploadPage, owner: &str) {
    if let Some((key, id)) = &page.next {
        out.text("NextKeyMarker", &listing.encode_name(key)).text("NextUploadIdMarker", id);
    }
    out.value("IsTruncated", page.next.is_some());
    for upload in &page.uploads {
        out.open("Upload").text("Key", &listing.encode_name(&upload.key)).text("UploadId", &upload.id);
        write_owner(out, "Initiator", owner);
        write_owner(out, "Owner", owner);
        out.text("StorageClass", &upload.storage_class).time("Initiated", Timestamp(upload.initiated_ms));
        write_checksums(out, &upload.checksums);
        out.close("Upload");
    }
    for group in &page.groups {
        out.open("CommonPrefixes").text("Prefix", &listing.encode_name(group)).close("CommonPrefixes");
    }
}

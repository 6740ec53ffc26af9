//! CreateMultipartUpload, UploadPart, CompleteMultipartUpload, AbortMultipartUpload, ListParts,
//! ListMultipartUploads.
//!
//! An upload is identified by the id of the body that it becomes. Parts stay where UploadPart stored them;
//! completing writes one record and an index of the parts. Clients receive the id encrypted
//! ([`super::upload_ids`]). A complete whose response was lost can be repeated.

use super::list::write_owner;
use super::object_headers;
use super::request::AuthenticatedRequest;
use super::response::{S3Result, empty, long_xml, xml};
use super::{Gateway, IncomingBody};
use crate::put::{BodySource, writer};
use http::{HeaderValue, StatusCode, header};
use mlgw_body::RequestBody;
use mlgw_common::limits::PAGE_KEYS_MAX;
use mlgw_common::{PartNumber, Timestamp};
use mlgw_formats::checksum;
use mlgw_formats::checksum::Algorithm;
use mlgw_formats::schema::{self, Bucket, ChecksumKind, PartRecord};
use mlgw_objects::ObjectError;
use mlgw_objects::multipart::UploadHandle;
use mlgw_objects::put::{Description, STORAGE_CLASS};
use mlgw_wire::checksums;
use mlgw_wire::error::{Code, S3Error};
use mlgw_wire::values::etag_value;
use mlgw_wire::xml::Xml;
use std::sync::Arc;

mod complete;
mod uploads;

pub use complete::complete;
pub(super) use complete::{completion, read_document, result_document};
pub use uploads::list_uploads;
pub(super) use uploads::{MultipartUploadPage, UploadMarkers, uploads_response};

/// CreateMultipartUpload.
///
/// # Errors
/// Those of S3.
pub async fn create(gateway: &Arc<Gateway>, request: &AuthenticatedRequest<'_>) -> S3Result {
    let bucket = gateway.bucket(request.bucket())?;
    let body = gateway.objects.catalogue.body_id().await?;
    let named = UploadHandle { bucket, key: request.key()?.clone(), body };
    create_named(gateway, request, &named, object_headers::parse_description(request)?).await
}

/// Starts the upload `named` for an object whose key clients see as the request's key.
///
/// # Errors
/// Those of S3.
pub(super) async fn create_named(
    gateway: &Gateway,
    request: &AuthenticatedRequest<'_>,
    named: &UploadHandle,
    description: Description,
) -> S3Result {
    let checksum = requested_checksum(request)?;
    let Description { headers, metadata, tags } = description;
    let upload = schema::Upload { headers, metadata, tags, ..schema::Upload::default() };
    let writer = writer(&request.principal);
    gateway.objects.create_upload(named, upload, writer, checksum, request.now).await?;
    let mut out = Xml::new("InitiateMultipartUploadResult");
    out.text("Bucket", &named.bucket.name).text("Key", request.key()?.as_str());
    out.text("UploadId", &gateway.upload_ids.id(named.body));
    let mut response = xml(out.finish("InitiateMultipartUploadResult"));
    if let Some((algorithm, kind)) = checksum {
        let headers = response.headers_mut();
        headers.insert("x-amz-checksum-algorithm", HeaderValue::from_static(algorithm.name()));
        headers.insert("x-amz-checksum-type", HeaderValue::from_static(checksums::kind_name(kind)));
    }
    Ok(response)
}

/// Parses the algorithm and kind that `x-amz-checksum-algorithm` and `-type` request.
pub(super) fn requested_checksum(
    request: &AuthenticatedRequest<'_>,
) -> Result<Option<(Algorithm, ChecksumKind)>, S3Error> {
    let kind = request.header("x-amz-checksum-type")?.map(str::to_ascii_uppercase);
    let Some(name) = request.header("x-amz-checksum-algorithm")? else {
        return match kind {
            None => Ok(None),
            Some(_) => Err(invalid_request(
                "The x-amz-checksum-type header can only be used with the x-amz-checksum-algorithm header.",
            )),
        };
    };
    let algorithm = Algorithm::from_name(name);
    let algorithm =
        algorithm.ok_or_else(|| invalid_request("Checksum algorithm provided is unsupported."))?;
    let whole = matches!(algorithm, Algorithm::Crc64Nvme);
    match kind.as_deref() {
        None if whole => Ok(Some((algorithm, ChecksumKind::FullObject))),
        None => Ok(Some((algorithm, ChecksumKind::Composite))),
        Some("FULL_OBJECT") if algorithm.is_crc() => Ok(Some((algorithm, ChecksumKind::FullObject))),
        Some("COMPOSITE") if !whole => Ok(Some((algorithm, ChecksumKind::Composite))),
        Some(kind) => {
            let why = format!("The {kind} checksum type cannot be used with the {name} checksum algorithm.");
            Err(invalid_request(why))
        }
    }
}

fn invalid_request(why: impl Into<std::borrow::Cow<'static, str>>) -> S3Error {
    S3Error::new(Code::InvalidRequest).message(why)
}

/// Parses `uploadId`. The upload need not exist.
///
/// # Errors
/// `NoSuchBucket`; `NoSuchUpload` for an id that this server never issued.
pub(super) fn named_upload(
    gateway: &Gateway,
    request: &AuthenticatedRequest<'_>,
) -> Result<UploadHandle, S3Error> {
    let id = request.query.raw("uploadId").unwrap_or_default();
    let body = gateway.upload_ids.body(id).ok_or_else(|| no_such_upload(id))?;
    let bucket = gateway.bucket(request.bucket())?;
    Ok(UploadHandle { bucket, key: request.key()?.clone(), body })
}

/// Returns the record of an upload.
///
/// # Errors
/// `NoSuchUpload`.
pub(super) fn find_upload(gateway: &Gateway, named: &UploadHandle) -> Result<schema::Upload, S3Error> {
    gateway.objects.upload(named).map_err(|error| match error {
        ObjectError::NoSuchUpload(body) => no_such_upload(&gateway.upload_ids.id(body)),
        error => error.into(),
    })
}

fn no_such_upload(id: &str) -> S3Error {
    S3Error::new(Code::NoSuchUpload).field("UploadId", id)
}

/// Parses the part number of a request.
///
/// # Errors
/// `InvalidArgument`.
pub(super) fn part_number(request: &AuthenticatedRequest<'_>) -> Result<PartNumber, S3Error> {
    let text = request.query.raw("partNumber").unwrap_or_default();
    let number = text.parse().ok().and_then(PartNumber::new);
    number.ok_or_else(|| {
        let why = "Part number must be an integer between 1 and 10000, inclusive";
        S3Error::invalid_argument(why, "partNumber", text)
    })
}

/// UploadPart.
///
/// # Errors
/// Those of S3.
pub async fn upload_part(
    gateway: &Arc<Gateway>,
    request: &AuthenticatedRequest<'_>,
    upload: IncomingBody<'_>,
) -> S3Result {
    let named = self::named_upload(gateway, request)?;
    let record = find_upload(gateway, &named)?;
    upload_part_of(gateway, request, upload, &named, &record).await
}

/// UploadPart to the upload `named`, whose record is `record`.
///
/// # Errors
/// Those of S3.
pub(super) async fn upload_part_of(
    gateway: &Arc<Gateway>,
    request: &AuthenticatedRequest<'_>,
    upload: IncomingBody<'_>,
    named: &UploadHandle,
    record: &schema::Upload,
) -> S3Result {
    let number = part_number(request)?;
    let kept = checksum_of_parts(&named.bucket, record);
    let body = BodySource(RequestBody::new(
        upload.incoming,
        request.head,
        upload.payload,
        gateway.body_terms(kept),
    )?);
    let declared = body.0.declared_algorithm();
    checksums::check_part(checksum::upload_checksum_type(record), declared)?;
    gateway.objects.check_quota_of_part(
        &named.bucket,
        &named.key,
        record,
        number,
        body.0.decoded_length(),
    )?;
    let compression = gateway.part_compression(request, &named.bucket, record)?;
    let stored = gateway.objects.store(request.memory, named.part(number), body, compression).await?;
    let mut response = empty(StatusCode::OK);
    response.headers_mut().insert(header::ETAG, etag_value(&stored.etag));
    if let Some(shown) = declared.or(kept) {
        checksums::add_header_of(shown, &stored.checksums, response.headers_mut());
    }
    gateway.objects.put_part(named, number, request.now, stored).await?;
    Ok(response)
}

/// Returns the checksum that is kept for each part of an upload, from which that of the whole is computed.
/// An upload to a bucket in write-back mode is completed at its origin, which computes its own checksum if
/// the client requests none.
pub(super) fn checksum_of_parts(bucket: &Bucket, record: &schema::Upload) -> Option<Algorithm> {
    let requested = checksum::upload_checksum_type(record).map(|(algorithm, _)| algorithm);
    requested.or_else(|| bucket.binding.is_none().then_some(checksum::DEFAULT_ALGORITHM))
}

/// AbortMultipartUpload.
///
/// # Errors
/// Those of S3.
pub async fn abort(gateway: &Arc<Gateway>, request: &AuthenticatedRequest<'_>) -> S3Result {
    abort_of(gateway, request.now, &self::named_upload(gateway, request)?).await
}

/// AbortMultipartUpload of the upload `named`.
///
/// # Errors
/// Those of S3.
pub(super) async fn abort_of(gateway: &Gateway, now: Timestamp, named: &UploadHandle) -> S3Result {
    gateway.objects.abort_upload(named, now).await?;
    Ok(empty(StatusCode::NO_CONTENT))
}

/// ListParts.
///
/// # Errors
/// Those of S3.
pub fn list_parts(gateway: &Arc<Gateway>, request: &AuthenticatedRequest<'_>) -> S3Result {
    let named = self::named_upload(gateway, request)?;
    let upload = find_upload(gateway, &named)?;
    list_parts_of(gateway, request, &named, &upload)
}

/// ListParts of the upload `named`, whose record is `upload`.
///
/// # Errors
/// Those of S3.
pub(super) fn list_parts_of(
    gateway: &Gateway,
    request: &AuthenticatedRequest<'_>,
    named: &UploadHandle,
    upload: &schema::Upload,
) -> S3Result {
    let after = request.query.number("part-number-marker")?.unwrap_or(0);
    let max = request.query.number("max-parts")?.unwrap_or(PAGE_KEYS_MAX as u64);
    let max = usize::try_from(max).unwrap_or(PAGE_KEYS_MAX).min(PAGE_KEYS_MAX);
    let reader = gateway.objects.catalogue.reader();
    let marker = u16::try_from(after).unwrap_or(u16::MAX);
    let scan = reader.parts(named.bucket.bucket_id(), &named.key, named.body, marker);
    let mut parts = scan.take(max + 1).collect::<Result<Vec<_>, _>>()?;
    // A page without parts has no last part at which the next page could begin.
    let truncated = max > 0 && parts.len() > max;
    parts.truncate(max);
    let mut out = Xml::new("ListPartsResult");
    out.text("Bucket", &named.bucket.name).text("Key", request.key()?.as_str());
    out.text("UploadId", &gateway.upload_ids.id(named.body));
    write_owner(&mut out, "Initiator", &upload.owner);
    write_owner(&mut out, "Owner", &upload.owner);
    out.text("StorageClass", STORAGE_CLASS);
    write_checksum(&mut out, upload);
    out.value("PartNumberMarker", after);
    if let Some((last, _)) = parts.last() {
        out.value("NextPartNumberMarker", last);
    }
    out.value("MaxParts", max).value("IsTruncated", truncated);
    for (number, part) in &parts {
        write_part(&mut out, *number, part);
    }
    long_xml(request.memory, out.finish("ListPartsResult"))
}

/// Writes the checksum that the upload was created with.
fn write_checksum(out: &mut Xml, upload: &schema::Upload) {
    if let Some((algorithm, kind)) = checksum::upload_checksum_type(upload) {
        out.text("ChecksumAlgorithm", algorithm.name()).text("ChecksumType", checksums::kind_name(kind));
    }
}

fn write_part(out: &mut Xml, number: PartNumber, part: &PartRecord) {
    out.open("Part").value("PartNumber", number);
    out.time("LastModified", Timestamp(part.modified_ms)).etag(&part.etag).value("Size", part.size);
    for checksum in &part.checksums {
        let algorithm = checksum::algorithm_from_stored(checksum.algorithm());
        out.text(checksums::xml_element(algorithm), &checksums::wire_value(checksum, 0));
    }
    out.close("Part");
}

//! GetObjectAttributes.

use super::Gateway;
use super::get::{GetError, answer_from_object};
use super::object_headers::http_date;
use super::request::AuthenticatedRequest;
use super::response::{S3Response, S3Result, xml};
use http::header;
use mlgw_common::limits::PAGE_KEYS_MAX;
use mlgw_common::{BodyId, PartNumber, Timestamp};
use mlgw_formats::checksum;
use mlgw_formats::schema::{Checksum, PartRange};
use mlgw_objects::put::STORAGE_CLASS;
use mlgw_objects::read::FoundObject;
use mlgw_objects::reader::BodyReadError;
use mlgw_wire::checksums;
use mlgw_wire::error::{Code, S3Error};
use mlgw_wire::xml::Xml;
use std::sync::Arc;

/// Values that `x-amz-object-attributes` may have.
const ATTRIBUTE_NAMES: [&str; 5] = ["ETag", "Checksum", "ObjectParts", "StorageClass", "ObjectSize"];

/// GetObjectAttributes.
///
/// # Errors
/// Those of S3.
pub fn get_object_attributes(gateway: &Arc<Gateway>, request: &AuthenticatedRequest<'_>) -> S3Result {
    let requested = requested_attributes(request)?;
    answer_from_object(gateway, request, |found| attributes_document(gateway, request, found, &requested))
}

fn attributes_document(
    gateway: &Gateway,
    request: &AuthenticatedRequest<'_>,
    found: &FoundObject,
    requested: &[&str],
) -> Result<S3Response, GetError> {
    let object = &found.object;
    let mut out = Xml::new("GetObjectAttributesResponse");
    for name in ATTRIBUTE_NAMES.iter().filter(|name| requested.contains(name)) {
        match *name {
            "ETag" => drop(out.text("ETag", &object.etag)),
            "Checksum" if !object.checksums.is_empty() => {
                out.open("Checksum");
                write_checksums(&mut out, &object.checksums, object.part_count);
                for checksum in &object.checksums {
                    out.text("ChecksumType", checksums::kind_name(checksum.kind()));
                }
                out.close("Checksum");
            }
            "ObjectParts" if object.part_count > 0 => write_parts(&mut out, gateway, request, found)?,
            "StorageClass" => drop(out.text("StorageClass", STORAGE_CLASS)),
            "ObjectSize" => drop(out.value("ObjectSize", object.size)),
            _ => {}
        }
    }
    let mut response = xml(out.finish("GetObjectAttributesResponse"));
    let modified = http_date(Timestamp(object.modified_ms));
    response.headers_mut().insert(header::LAST_MODIFIED, modified);
    Ok(response)
}

/// Returns the requested attributes, from one header line or several.
fn requested_attributes<'a>(request: &'a AuthenticatedRequest<'_>) -> Result<Vec<&'a str>, S3Error> {
    let lines = request.head.headers.get_all("x-amz-object-attributes").iter();
    let text: Vec<&str> = lines.filter_map(|line| line.to_str().ok()).collect();
    let names = text.iter().flat_map(|line| line.split(',')).map(str::trim).filter(|name| !name.is_empty());
    let names: Vec<&str> = names.collect();
    if names.is_empty() || names.iter().any(|name| !ATTRIBUTE_NAMES.contains(name)) {
        let why = "Invalid attribute name specified.";
        return Err(S3Error::new(Code::InvalidArgument)
            .message(why)
            .field("ArgumentName", "x-amz-object-attributes"));
    }
    Ok(names)
}

fn write_checksums(out: &mut Xml, checksums: &[Checksum], part_count: u32) {
    for checksum in checksums {
        let algorithm = checksum::algorithm_from_stored(checksum.algorithm());
        out.text(checksums::xml_element(algorithm), &checksums::wire_value(checksum, part_count));
    }
}

fn number(request: &AuthenticatedRequest<'_>, name: &'static str, default: usize) -> Result<usize, S3Error> {
    let Some(text) = request.header(name)? else { return Ok(default) };
    text.trim()
        .parse()
        .map_err(|_| S3Error::invalid_argument(format!("{name} must be a whole number"), name, text))
}

/// Returns the offset of the first byte of part `at`, counted from 0.
fn first_byte(parts: &[PartRange], at: usize) -> u64 {
    parts[..at].iter().map(|part| part.bytes).sum()
}

/// Writes one page of the parts. Parts are numbered from 1 in the order in which they lie in the object.
fn write_parts(
    out: &mut Xml,
    gateway: &Gateway,
    request: &AuthenticatedRequest<'_>,
    found: &FoundObject,
) -> Result<(), GetError> {
    let max = number(request, "x-amz-max-parts", PAGE_KEYS_MAX)?.min(PAGE_KEYS_MAX);
    let after = number(request, "x-amz-part-number-marker", 0)?;
    let pin = gateway.objects.catalogue.pin(found.object.body());
    let parts = found.part_ranges(&gateway.objects, &pin)?;
    let page: Vec<_> = parts.iter().enumerate().skip(after).take(max).collect();
    let last = page.last().map_or(after, |(at, _)| at + 1);
    out.open("ObjectParts").value("PartsCount", parts.len()).value("PartNumberMarker", after);
    out.value("NextPartNumberMarker", last).value("MaxParts", max).value("IsTruncated", last < parts.len());
    let algorithm = found.object.checksums.first().map(|checksum| checksum.algorithm);
    for (at, range) in page {
        let number = PartNumber::new(range.number).ok_or_else(|| S3Error::internal("an index has part 0"))?;
        let body = BodyId(found.object.body_id);
        let part = gateway.objects.catalogue.part(found.bucket.bucket_id(), &found.key, body, number);
        let part = part
            .map_err(BodyReadError::from)?
            .ok_or_else(|| BodyReadError::Missing(first_byte(&parts, at)))?;
        // As AWS: parts are listed only if each has a checksum of the algorithm that the object has.
        let of_part = part.checksums.iter().find(|one| algorithm == Some(one.algorithm));
        let Some(of_part) = of_part else { continue };
        out.open("Part").value("PartNumber", at + 1).value("Size", range.bytes);
        write_checksums(out, std::slice::from_ref(of_part), 0);
        out.close("Part");
    }
    out.close("ObjectParts");
    Ok(())
}

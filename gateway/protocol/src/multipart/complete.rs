//! CompleteMultipartUpload.
//!
//! The parts that the client names are compared with the stored ones; the ETag and checksum of the whole
//! are computed from theirs. No byte of the object is read or written. While the completed object is the
//! current version, a repeated request gets the same response.

use crate::conditions;
use crate::document;
use crate::keep_alive;
use crate::request::AuthenticatedRequest;
use crate::response::S3Result;
use crate::{Gateway, IncomingBody};
use mlgw_body::BodyTerms;
use mlgw_common::limits::{OBJECT_BYTES_MAX, PART_BYTES_MIN, PART_NUMBER_MAX};
use mlgw_common::{ObjectKey, PartNumber};
use mlgw_formats::checksum;
use mlgw_formats::checksum::Algorithm;
use mlgw_formats::schema::{self, Bucket, Checksum, ChecksumKind, ObjectVersion, PartRecord};
use mlgw_objects::multipart::{Completion, UploadHandle, combine};
use mlgw_wire::checksums;
use mlgw_wire::elements::{ClientPart, CompleteDocument};
use mlgw_wire::error::{Code, S3Error};
use mlgw_wire::xml::Xml;
use mlgw_wire::xml_input::parse;
use std::sync::Arc;

/// CompleteMultipartUpload.
///
/// # Errors
/// Those of S3.
pub async fn complete(
    gateway: &Arc<Gateway>,
    request: &AuthenticatedRequest<'_>,
    upload: IncomingBody<'_>,
) -> S3Result {
    let named = super::named_upload(gateway, request)?;
    let conditions = conditions::write_conditions(request)?;
    let document = read_document(request, upload).await?;
    let current = gateway.objects.current(named.bucket.bucket_id(), &named.key)?;
    if let Some(object) = current.as_ref().filter(|object| object.body_id == named.body.get()) {
        return Ok(crate::response::xml(result_document(&named.bucket, &named.key, object)));
    }
    let record = super::find_upload(gateway, &named)?;
    conditions::check_write(&conditions, current.as_ref())?;
    let completion = completion(gateway, request, &named, &record, &document)?;
    gateway.objects.tiers.hot.seal_own(named.body);
    let (gateway, now) = (gateway.clone(), request.now);
    keep_alive::respond(async move {
        let completed = gateway.objects.complete_upload(&named, completion, conditions, Vec::new(), now);
        let (object, _) = completed.await?;
        Ok(result_document(&named.bucket, &named.key, &object))
    })
    .await
}

/// Reads the document of a complete.
///
/// # Errors
/// `MalformedXML`, and errors of the body.
pub(crate) async fn read_document(
    request: &AuthenticatedRequest<'_>,
    upload: IncomingBody<'_>,
) -> Result<CompleteDocument, S3Error> {
    // A checksum in the headers covers the object, not this document.
    let terms = BodyTerms { checksum_headers: false, ..document::DOCUMENT_TERMS };
    let document = document::read(request, upload, terms).await?;
    parse(&document)
}

/// Parses the object size that `x-amz-mp-object-size` states.
fn stated_size(request: &AuthenticatedRequest<'_>) -> Result<Option<u64>, S3Error> {
    let Some(text) = request.header("x-amz-mp-object-size")? else { return Ok(None) };
    let why = "x-amz-mp-object-size must be a whole number";
    text.trim().parse().map(Some).map_err(|_| S3Error::invalid_argument(why, "x-amz-mp-object-size", text))
}

/// Returns the stored parts that the document names, in order. For a composite checksum the document must
/// state the checksum of each part.
fn named_parts(
    gateway: &Gateway,
    named: &UploadHandle,
    upload: Option<(Algorithm, ChecksumKind)>,
    document: &CompleteDocument,
) -> Result<Vec<(PartNumber, PartRecord)>, S3Error> {
    if document.parts.is_empty() || document.parts.len() > usize::from(PART_NUMBER_MAX) {
        let why = format!("A CompleteMultipartUpload request must name 1 to {PART_NUMBER_MAX} parts.");
        return Err(S3Error::new(Code::MalformedXML).message(why));
    }
    if !document.parts.is_sorted_by(|a, b| a.number < b.number) {
        return Err(S3Error::new(Code::InvalidPartOrder));
    }
    let find = |client: &ClientPart| {
        let invalid = || S3Error::new(Code::InvalidPart).field("PartNumber", client.number.to_string());
        let number = PartNumber::new(client.number).ok_or_else(invalid)?;
        let part =
            gateway.objects.catalogue.part(named.bucket.bucket_id(), &named.key, named.body, number)?;
        let part = part.filter(|part| part.etag == conditions::unquote(&client.etag)).ok_or_else(invalid)?;
        let wrong = |checksum: &&Checksum| {
            let stated = client.client_checksum(checksum::algorithm_from_stored(checksum.algorithm()));
            stated.is_some_and(|stated| stated != checksums::wire_value(checksum, 0))
        };
        if part.checksums.iter().any(|checksum| wrong(&checksum)) {
            return Err(invalid());
        }
        match upload {
            Some((algorithm, ChecksumKind::Composite)) if client.client_checksum(algorithm).is_none() => {
                Err(missing_checksum(algorithm, number))
            }
            _ => Ok((number, part)),
        }
    };
    document.parts.iter().map(find).collect()
}

fn missing_checksum(algorithm: Algorithm, part: PartNumber) -> S3Error {
    let name = algorithm.name().to_ascii_lowercase();
    S3Error::new(Code::InvalidRequest).message(format!(
        "The upload was created using a {name} checksum. The complete request must include the checksum for \
         each part. It was missing for part {part} in the request."
    ))
}

/// Checks the sizes of the parts and of the whole.
fn check_sizes(parts: &[(PartNumber, PartRecord)], expected: Option<u64>) -> Result<(), S3Error> {
    let (_last, others) = parts.split_last().unwrap_or((&parts[0], &[]));
    if let Some((number, part)) = others.iter().find(|(_, part)| part.size < PART_BYTES_MIN) {
        return Err(S3Error::new(Code::EntityTooSmall)
            .field("ProposedSize", part.size.to_string())
            .field("MinSizeAllowed", PART_BYTES_MIN.to_string())
            .field("PartNumber", number.to_string())
            .field("ETag", part.etag.clone()));
    }
    let bytes: u64 = parts.iter().map(|(_, part)| part.size).sum();
    if bytes > OBJECT_BYTES_MAX {
        return Err(S3Error::new(Code::EntityTooLarge));
    }
    if expected.is_some_and(|expected| expected != bytes) {
        let why = "The provided 'x-amz-mp-object-size' header value does not match what was computed";
        return Err(S3Error::new(Code::InvalidRequest).message(why));
    }
    Ok(())
}

/// Returns the object that the named parts form.
///
/// # Errors
/// Errors of the document, of the parts, or of the size and checksums that the request states.
pub(crate) fn completion(
    gateway: &Gateway,
    request: &AuthenticatedRequest<'_>,
    named: &UploadHandle,
    upload: &schema::Upload,
    document: &CompleteDocument,
) -> Result<Completion, S3Error> {
    let requested = checksum::upload_checksum_type(upload);
    let parts = named_parts(gateway, named, requested, document)?;
    check_sizes(&parts, stated_size(request)?)?;
    let kind = requested.map_or(ChecksumKind::FullObject, |(_, kind)| kind);
    let whole = match super::checksum_of_parts(&named.bucket, upload) {
        Some(algorithm) => combine(algorithm, kind, &parts)?,
        None => None,
    };
    check_type(request, kind)?;
    check_stated(request, whole.as_ref(), &parts)?;
    Ok(Completion::new(&parts, whole))
}

/// Checks the checksum type that the request states for the whole.
fn check_type(request: &AuthenticatedRequest<'_>, kind: ChecksumKind) -> Result<(), S3Error> {
    let expected = checksums::kind_name(kind);
    match request.header("x-amz-checksum-type")?.map(str::trim) {
        Some(stated) if !stated.eq_ignore_ascii_case(expected) => {
            let why = format!(
                "The upload was created using the {expected} checksum mode. The complete request must use \
                 the same checksum mode."
            );
            Err(S3Error::new(Code::BadDigest).message(why))
        }
        _ => Ok(()),
    }
}

/// Checks the checksums that the request states for the whole. A checksum by another algorithm than the
/// upload's is compared if the parts have one by that algorithm.
fn check_stated(
    request: &AuthenticatedRequest<'_>,
    of_whole: Option<&Checksum>,
    parts: &[(PartNumber, PartRecord)],
) -> Result<(), S3Error> {
    let kept = of_whole.map(|checksum| checksum::algorithm_from_stored(checksum.algorithm()));
    for algorithm in Algorithm::ALL.iter().copied() {
        let Some(stated) = request.header(algorithm.header())? else { continue };
        let other = match kept {
            Some(kept) if kept == algorithm => None,
            _ => combine(algorithm, ChecksumKind::FullObject, parts)?,
        };
        let found = match (&other, of_whole) {
            (Some(other), _) => other,
            (None, Some(whole)) if kept == Some(algorithm) => whole,
            (None, Some(_)) => return Err(checksums::mismatch(kept.unwrap_or(algorithm), Some(algorithm))),
            // Parts that earlier versions stored without a checksum: there is nothing to compare.
            (None, None) => continue,
        };
        if !is_stated_checksum(found, stated.trim(), parts.len()) {
            return Err(S3Error::new(Code::BadDigest));
        }
    }
    Ok(())
}

fn is_stated_checksum(checksum: &Checksum, stated: &str, part_count: usize) -> bool {
    let whole = checksums::wire_value(checksum, u32::try_from(part_count).unwrap_or(u32::MAX));
    // Some clients omit the number of parts from a composite checksum.
    stated == whole || Some(stated) == whole.rsplit_once('-').map(|(bare, _)| bare)
}

/// Returns the document of the response: the object exists.
pub(crate) fn result_document(bucket: &Bucket, key: &ObjectKey, object: &ObjectVersion) -> String {
    let bucket = &bucket.name;
    let mut out = Xml::new("CompleteMultipartUploadResult");
    out.text("Location", &format!("/{bucket}/{key}")).text("Bucket", bucket).text("Key", key.as_str());
    out.etag(&object.etag);
    for checksum in &object.checksums {
        let algorithm = checksum::algorithm_from_stored(checksum.algorithm());
        out.text(checksums::xml_element(algorithm), &checksums::wire_value(checksum, object.part_count));
        out.text("ChecksumType", checksums::kind_name(checksum.kind()));
    }
    out.finish("CompleteMultipartUploadResult")
}

#[cfg(test)]
mod tests {
    use super::{Algorithm, CompleteDocument};
    use crate::conditions::unquote;
    use mlgw_wire::xml_input::parse;

    #[test]
    fn etags_parse_in_every_quoting_and_children_in_every_order() {
        let text = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
            <CompleteMultipartUpload xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">\n\
            <Part><PartNumber>1</PartNumber><ETag>\"aa\"</ETag></Part>\n\
            <Part> <ETag>&quot;aa&quot;</ETag> <PartNumber>2</PartNumber> </Part>\n\
            <Part><ChecksumCRC32>AAAAAA==</ChecksumCRC32><ETag>&#34;aa&#34;</ETag><PartNumber>3</PartNumber>\
            </Part>\n\
            <Part><PartNumber>4</PartNumber><ETag>aa</ETag></Part></CompleteMultipartUpload>";
        let document: CompleteDocument = parse(text.as_bytes()).unwrap();
        assert_eq!(document.parts.len(), 4);
        assert!(document.parts.iter().all(|part| unquote(&part.etag) == "aa"));
        assert_eq!(document.parts[2].client_checksum(Algorithm::Crc32), Some("AAAAAA=="));
    }
}

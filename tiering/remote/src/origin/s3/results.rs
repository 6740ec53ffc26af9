//! Documents that an S3 origin returns for writes, and tags in both directions. Pure.

use super::head::unquoted;
use super::refusal::error_of_response;
use super::xml;
use crate::origin::{OriginCopyReceipt, OriginError, PartLine, PartPage, UploadLine, UploadPage};
use http::{HeaderMap, StatusCode};
use mlgw_common::Timestamp;
use mlgw_formats::schema::Pair;
use serde::{Deserialize, Serialize};

/// Text content of an element.
#[derive(Deserialize)]
struct ElementText {
    #[serde(rename = "$text", default)]
    text: String,
}

/// Checksum elements with their values.
#[derive(Deserialize, Default)]
#[serde(default)]
struct ChecksumElements {
    #[serde(rename = "ChecksumCRC32")]
    crc32: Option<ElementText>,
    #[serde(rename = "ChecksumCRC32C")]
    crc32c: Option<ElementText>,
    #[serde(rename = "ChecksumCRC64NVME")]
    crc64nvme: Option<ElementText>,
    #[serde(rename = "ChecksumSHA1")]
    sha1: Option<ElementText>,
    #[serde(rename = "ChecksumSHA256")]
    sha256: Option<ElementText>,
    #[serde(rename = "ChecksumAlgorithm")]
    algorithm: Option<ElementText>,
    #[serde(rename = "ChecksumType")]
    kind: Option<ElementText>,
}

impl ChecksumElements {
    fn pairs(self) -> Vec<Pair> {
        let all = [
            ("ChecksumCRC32", self.crc32),
            ("ChecksumCRC32C", self.crc32c),
            ("ChecksumCRC64NVME", self.crc64nvme),
            ("ChecksumSHA1", self.sha1),
            ("ChecksumSHA256", self.sha256),
            ("ChecksumAlgorithm", self.algorithm),
            ("ChecksumType", self.kind),
        ];
        all.into_iter().filter_map(|(name, value)| Some(Pair::new(name, value?.text))).collect()
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct CopyResultDocument {
    #[serde(rename = "ETag")]
    etag: String,
    #[serde(default)]
    last_modified: String,
    #[serde(flatten)]
    checksums: ChecksumElements,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct CreateUploadDocument {
    upload_id: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct PartsDocument {
    #[serde(default)]
    is_truncated: bool,
    next_part_number_marker: Option<u32>,
    #[serde(default)]
    storage_class: String,
    checksum_algorithm: Option<String>,
    checksum_type: Option<String>,
    #[serde(rename = "Part", default)]
    parts: Vec<PartElement>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct PartElement {
    part_number: u32,
    #[serde(default)]
    last_modified: String,
    #[serde(rename = "ETag")]
    etag: String,
    size: u64,
    #[serde(flatten)]
    checksums: ChecksumElements,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct UploadsDocument {
    #[serde(default)]
    is_truncated: bool,
    encoding_type: Option<String>,
    #[serde(default)]
    next_key_marker: String,
    #[serde(default)]
    next_upload_id_marker: String,
    #[serde(rename = "Upload", default)]
    uploads: Vec<UploadElement>,
    #[serde(default)]
    common_prefixes: Vec<xml::CommonPrefix>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct UploadElement {
    key: String,
    upload_id: String,
    #[serde(default)]
    initiated: String,
    #[serde(default)]
    storage_class: String,
    #[serde(flatten)]
    checksums: ChecksumElements,
}

#[derive(Deserialize, Serialize)]
#[serde(rename = "Tagging", rename_all = "PascalCase")]
struct Tagging {
    tag_set: TagSet,
}

#[derive(Default, Deserialize, Serialize)]
struct TagSet {
    #[serde(rename = "Tag", default)]
    tags: Vec<Tag>,
}

#[derive(Deserialize, Serialize)]
#[serde(rename_all = "PascalCase")]
struct Tag {
    key: String,
    value: String,
}

/// Returns a document as text.
pub(super) fn text(document: &[u8]) -> Result<&str, OriginError> {
    str::from_utf8(document).map_err(invalid_document)
}

fn invalid_document(why: impl std::fmt::Display) -> OriginError {
    OriginError::InvalidResponse(format!("invalid document: {why}"))
}

fn read<'d, T: Deserialize<'d>>(document: &'d [u8]) -> Result<T, OriginError> {
    quick_xml::de::from_str(text(document)?).map_err(invalid_document)
}

fn time_ms(text: &str) -> i64 {
    Timestamp::parse_rfc3339(text).map_or(0, Timestamp::as_millis)
}

/// Parses the result of a copy or of a completed upload. Returns the error if the document is an `<Error>`
/// after a 200.
pub(super) fn parse_copy_receipt(document: &[u8]) -> Result<OriginCopyReceipt, OriginError> {
    let (code, _) = xml::parse_error(document);
    if xml::root_name(text(document)?) == Some("Error") {
        return Err(error_of_response(status_of(&code), &HeaderMap::new(), document));
    }
    let CopyResultDocument { etag, last_modified, checksums } = read(document)?;
    let modified_ms = time_ms(&last_modified);
    let etag = unquoted(&etag);
    if etag.is_empty() {
        return Err(invalid_document("the created object has no ETag"));
    }
    Ok(OriginCopyReceipt { etag, modified_ms, checksums: checksums.pairs(), headers: HeaderMap::new() })
}

/// Returns the status that an error would have had if it had been known before the response began.
fn status_of(code: &str) -> StatusCode {
    match code {
        "InternalError" => StatusCode::INTERNAL_SERVER_ERROR,
        "SlowDown" | "ServiceUnavailable" => StatusCode::SERVICE_UNAVAILABLE,
        "AccessDenied" => StatusCode::FORBIDDEN,
        "NoSuchKey" | "NoSuchBucket" | "NoSuchUpload" | "NoSuchVersion" => StatusCode::NOT_FOUND,
        "ConditionalRequestConflict" | "OperationAborted" => StatusCode::CONFLICT,
        "PreconditionFailed" => StatusCode::PRECONDITION_FAILED,
        "InvalidRange" => StatusCode::RANGE_NOT_SATISFIABLE,
        "NotImplemented" => StatusCode::NOT_IMPLEMENTED,
        _ => StatusCode::BAD_REQUEST,
    }
}

/// Parses the id of a created upload.
pub(super) fn upload_id(document: &[u8]) -> Result<String, OriginError> {
    let CreateUploadDocument { upload_id } = read(document)?;
    // An action on an upload without an id would act on the object instead.
    match upload_id.is_empty() {
        true => Err(invalid_document("the created upload has no ID")),
        false => Ok(upload_id),
    }
}

/// Parses a page of parts.
pub(super) fn parts(document: &[u8]) -> Result<PartPage, OriginError> {
    xml::check_root(text(document)?, "ListPartsResult")?;
    let listed: PartsDocument = read(document)?;
    let line = |part: PartElement| PartLine {
        number: part.part_number,
        etag: unquoted(&part.etag),
        size: part.size,
        modified_ms: time_ms(&part.last_modified),
        checksums: part.checksums.pairs(),
    };
    let next = listed.next_part_number_marker.filter(|_| listed.is_truncated);
    if listed.is_truncated && next.is_none() {
        return Err(invalid_document("the list of parts is truncated and has no next marker"));
    }
    let mut parts: Vec<_> = listed.parts.into_iter().map(line).collect();
    parts.sort_by_key(|part| part.number);
    Ok(PartPage {
        parts,
        checksum_algorithm: listed.checksum_algorithm,
        checksum_type: listed.checksum_type,
        storage_class: listed.storage_class,
        next,
    })
}

/// Parses a page of uploads.
pub(super) fn uploads(document: &[u8]) -> Result<UploadPage, OriginError> {
    xml::check_root(text(document)?, "ListMultipartUploadsResult")?;
    let listed: UploadsDocument = read(document)?;
    let is_encoded = listed.encoding_type.as_deref() == Some("url");
    let name =
        |name: String| if is_encoded { xml::decoded(&name).map_err(invalid_document) } else { Ok(name) };
    let line = |upload: UploadElement| {
        if upload.key.is_empty() || upload.upload_id.is_empty() {
            return Err(invalid_document("an upload has no key or no ID"));
        }
        Ok(UploadLine {
            key: name(upload.key)?,
            id: upload.upload_id,
            initiated_ms: time_ms(&upload.initiated),
            storage_class: upload.storage_class,
            checksums: upload.checksums.pairs(),
        })
    };
    let next = (name(listed.next_key_marker)?, listed.next_upload_id_marker);
    if listed.is_truncated && next.0.is_empty() {
        return Err(invalid_document("the list of uploads is truncated and has no next marker"));
    }
    let mut uploads = listed.uploads.into_iter().map(line).collect::<Result<Vec<_>, OriginError>>()?;
    uploads.sort_by(|a, b| a.key.cmp(&b.key));
    Ok(UploadPage {
        uploads,
        groups: listed
            .common_prefixes
            .into_iter()
            .map(|group| name(group.prefix))
            .collect::<Result<_, _>>()?,
        next: listed.is_truncated.then_some(next),
    })
}

/// Checks a document about an object's attributes and returns it unchanged.
pub(super) fn attributes(document: &[u8]) -> Result<&str, OriginError> {
    let text = text(document)?;
    match xml::root_name(text).is_some_and(|root| root.starts_with("GetObjectAttributes")) {
        true => Ok(text),
        false => Err(invalid_document("it contains no object attributes")),
    }
}

/// Parses the tags of a document.
pub(super) fn tags(document: &[u8]) -> Result<Vec<Pair>, OriginError> {
    let Tagging { tag_set } = read(document)?;
    Ok(tag_set.tags.into_iter().map(|tag| Pair::new(tag.key, tag.value)).collect())
}

/// Builds a document of tags.
pub(super) fn tagging(tags: &[Pair]) -> Result<String, OriginError> {
    let tag = |tag: &Pair| Tag { key: tag.name.clone(), value: tag.value.clone() };
    let tagging = Tagging { tag_set: TagSet { tags: tags.iter().map(tag).collect() } };
    quick_xml::se::to_string(&tagging).map_err(invalid_document)
}

#[cfg(test)]
mod tests {
    use super::xml::root_name;
    use super::{attributes, parse_copy_receipt, parts, tagging, tags, upload_id, uploads};
    use crate::origin::OriginError;
    use mlgw_formats::schema::Pair;

    #[test]
    fn a_copy_succeeds_or_returns_its_late_error() {
        let document = b"<?xml version=\"1.0\"?>\n   <CopyObjectResult xmlns=\"x\">\
            <LastModified>2022-10-12T17:50:00.000Z</LastModified><ETag>&quot;abc&quot;</ETag>\
            <ChecksumCRC32>AAAAAA==</ChecksumCRC32></CopyObjectResult>";
        let copy = parse_copy_receipt(document).unwrap();
        assert_eq!((copy.etag.as_str(), copy.modified_ms), ("abc", 1_665_597_000_000));
        assert_eq!(copy.checksums, [Pair::new("ChecksumCRC32", "AAAAAA==")]);
        let late = |code: &str| {
            let text =
                format!("<?xml version=\"1.0\"?> <Error><Code>{code}</Code><Message>m</Message></Error>");
            parse_copy_receipt(text.as_bytes()).unwrap_err()
        };
        assert_eq!(late("InternalError"), OriginError::Failed(500));
        assert_eq!(late("SlowDown"), OriginError::Throttled(None));
        assert_eq!(late("PreconditionFailed"), OriginError::Changed);
        assert_eq!(late("InvalidPart"), OriginError::refused(400, "InvalidPart", "m"));
        for cut in [&b""[..], b"<CopyObjectResult>", b"<CopyObjectResult></CopyObjectResult>", b"\xff"] {
            assert!(matches!(parse_copy_receipt(cut), Err(OriginError::InvalidResponse(_))), "{cut:?}");
        }
        let empty = b"<CopyObjectResult><ETag>\"\"</ETag></CopyObjectResult>";
        assert!(
            matches!(parse_copy_receipt(empty), Err(OriginError::InvalidResponse(_))),
            "an ETag is not empty"
        );
        assert_eq!(
            (root_name("<!-- <a> --><b/>"), root_name("<?x?><Error>"), root_name("")),
            (Some("a"), Some("Error"), None)
        );
    }

    #[test]
    fn a_page_of_a_proxy_is_not_an_s3_document() {
        let page = b"<html><head><title>Welcome</title></head><body>Please log in.</body></html>";
        let is_invalid = |error: Option<OriginError>| matches!(error, Some(OriginError::InvalidResponse(_)));
        assert!(is_invalid(parse_copy_receipt(page).err()) && is_invalid(upload_id(page).err()));
        assert!(is_invalid(parts(page).err()) && is_invalid(uploads(page).err()));
        assert!(is_invalid(tags(page).err()) && is_invalid(attributes(page).err()));
        let late = b"<Error><Code>InternalError</Code></Error>";
        assert!(is_invalid(attributes(late).err()) && is_invalid(parts(late).err()));
        let real = b"<GetObjectAttributesResponse><ETag>x</ETag></GetObjectAttributesResponse>";
        assert!(attributes(real).unwrap().contains("<ETag>x</ETag>"));
    }

    #[test]
    fn parts_are_listed_page_by_page() {
        let document = b"<ListPartsResult><UploadId>u</UploadId><StorageClass>STANDARD</StorageClass>\
            <IsTruncated>true</IsTruncated><NextPartNumberMarker>7</NextPartNumberMarker>\
            <ChecksumAlgorithm>CRC32</ChecksumAlgorithm>\
            <Part><PartNumber>7</PartNumber><ETag>\"e\"</ETag><Size>5</Size>\
            <ChecksumCRC32>AA==</ChecksumCRC32></Part>\
            </ListPartsResult>";
        let page = parts(document).unwrap();
        assert_eq!((page.next, page.checksum_algorithm.as_deref()), (Some(7), Some("CRC32")));
        assert_eq!((page.parts[0].number, page.parts[0].size, page.parts[0].etag.as_str()), (7, 5, "e"));
        assert_eq!(page.parts[0].checksums, [Pair::new("ChecksumCRC32", "AA==")]);
        assert!(parts(b"<ListPartsResult><IsTruncated>true</IsTruncated></ListPartsResult>").is_err());
    }

    #[test]
    fn uploads_are_listed_with_names_decoded() {
        let document = b"<ListMultipartUploadsResult><EncodingType>url</EncodingType>\
            <IsTruncated>true</IsTruncated>\
            <NextKeyMarker>a%2Fb</NextKeyMarker><NextUploadIdMarker>u</NextUploadIdMarker>\
            <Upload><Key>a%2Fb</Key><UploadId>u</UploadId><Initiated>2022-10-12T17:50:00.000Z</Initiated>\
            </Upload>\
            <CommonPrefixes><Prefix>a+c/</Prefix></CommonPrefixes></ListMultipartUploadsResult>";
        let page = uploads(document).unwrap();
        assert_eq!((page.uploads[0].key.as_str(), page.uploads[0].initiated_ms), ("a/b", 1_665_597_000_000));
        assert_eq!((page.groups, page.next), (vec!["a c/".to_owned()], Some(("a/b".into(), "u".into()))));
        assert_eq!(upload_id(b"<R><UploadId>x/+=</UploadId></R>"), Ok("x/+=".into()));
    }

    #[test]
    fn parts_and_uploads_are_sorted() {
        let document =
            b"<ListPartsResult><Part><PartNumber>2</PartNumber><ETag>b</ETag><Size>1</Size></Part>\
            <Part><PartNumber>1</PartNumber><ETag>a</ETag><Size>1</Size></Part></ListPartsResult>";
        let numbers: Vec<_> = parts(document).unwrap().parts.iter().map(|part| part.number).collect();
        assert_eq!(numbers, [1, 2]);
        let document = b"<ListMultipartUploadsResult><Upload><Key>b</Key><UploadId>1</UploadId></Upload>\
            <Upload><Key>a</Key><UploadId>3</UploadId></Upload>\
            <Upload><Key>a</Key><UploadId>2</UploadId></Upload></ListMultipartUploadsResult>";
        let page = uploads(document).unwrap();
        let found: Vec<_> = page.uploads.iter().map(|line| (line.key.as_str(), line.id.as_str())).collect();
        assert_eq!(found, [("a", "3"), ("a", "2"), ("b", "1")]);
    }

    #[test]
    fn an_upload_has_a_key_and_an_id() {
        for document in [
            "<R><UploadId/></R>",
            "<ListMultipartUploadsResult><Upload><Key>k</Key><UploadId/></Upload>\
             </ListMultipartUploadsResult>",
            "<ListMultipartUploadsResult><Upload><Key></Key><UploadId>u</UploadId></Upload>\
             </ListMultipartUploadsResult>",
        ] {
            let document = document.as_bytes();
            assert!(
                upload_id(document).is_err()
                    && uploads(document).map_or(true, |page| page.uploads.is_empty())
            );
        }
    }

    #[test]
    fn tags_survive_a_round_trip() {
        let given = [Pair::new("a", "1 < 2"), Pair::new("b", "")];
        let document = tagging(&given).unwrap();
        assert_eq!(tags(document.as_bytes()).unwrap(), given, "{document}");
        assert_eq!(tags(b"<Tagging><TagSet/></Tagging>").unwrap(), []);
    }
}

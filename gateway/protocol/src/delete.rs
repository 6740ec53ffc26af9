//! DeleteObject and DeleteObjects.
//!
//! Deleting a key that does not exist succeeds. The keys of one DeleteObjects are proposed together, so
//! that the catalogue commits them with few syncs; each key has its own result.

use super::access_hooks;
use super::conditions::parse_etags;
use super::request::AuthenticatedRequest;
use super::response::{S3Result, empty, long_xml};
use super::{Gateway, IncomingBody, document};
use futures_util::future::join_all;
use http::StatusCode;
use mlgw_common::ObjectKey;
use mlgw_common::limits::DELETE_OBJECTS_KEYS_MAX;
use mlgw_formats::command::Conditions;
use mlgw_formats::schema::Bucket;
use mlgw_wire::access::RequiredPermission;
use mlgw_wire::elements::{DeleteDocument, ObjectToDelete};
use mlgw_wire::error::{Code, S3Error};
use mlgw_wire::target::check_version;
use mlgw_wire::xml::Xml;
use mlgw_wire::xml_input::parse;
use std::sync::Arc;

/// DeleteObject.
///
/// # Errors
/// Those of S3.
pub async fn delete_object(gateway: &Arc<Gateway>, request: &AuthenticatedRequest<'_>) -> S3Result {
    let bucket = gateway.bucket(request.bucket())?;
    check_version(request.query.raw("versionId"))?;
    let given = DeleteConditions {
        etag: request.header("if-match")?,
        size: request.header("x-amz-if-match-size")?,
        modified: request.header("x-amz-if-match-last-modified-time")?,
    };
    gateway.objects.delete(&bucket, request.key()?, request.now, given.parse()?).await?;
    Ok(empty(StatusCode::NO_CONTENT))
}

/// Conditions of a delete, as header or element text.
struct DeleteConditions<'a> {
    etag: Option<&'a str>,
    size: Option<&'a str>,
    modified: Option<&'a str>,
}

impl DeleteConditions<'_> {
    fn parse(&self) -> Result<Conditions, S3Error> {
        let invalid = |name: &'static str, value: &str| {
            S3Error::invalid_argument(format!("{name} is not well-formed"), name, value)
        };
        let size = |text: &str| text.trim().parse().map_err(|_| invalid("x-amz-if-match-size", text));
        let time = |text: &str| {
            let secs = parse_time_secs(text.trim());
            secs.map(|secs| secs * 1000).ok_or_else(|| invalid("x-amz-if-match-last-modified-time", text))
        };
        Ok(Conditions {
            if_match: self.etag.map(parse_etags),
            if_match_size: self.size.map(size).transpose()?,
            if_match_modified_ms: self.modified.map(time).transpose()?,
            ..Conditions::default()
        })
    }
}

/// Parses a time in either of the two formats that clients send, to seconds since the Unix epoch.
fn parse_time_secs(text: &str) -> Option<i64> {
    if let Ok(time) = text.parse::<jiff::Timestamp>() {
        return Some(time.as_second());
    }
    let time = httpdate::parse_http_date(text).ok()?;
    i64::try_from(time.duration_since(std::time::UNIX_EPOCH).ok()?.as_secs()).ok()
}

/// DeleteObjects.
///
/// # Errors
/// Those of S3; the error of a single key is in the response's document.
pub async fn delete_objects(
    gateway: &Arc<Gateway>,
    request: &AuthenticatedRequest<'_>,
    upload: IncomingBody<'_>,
) -> S3Result {
    let bucket = gateway.bucket(request.bucket())?;
    let document = read_document(request, upload).await?;
    let deletes = document.objects.iter().map(|entry| delete_one(gateway, &bucket, request, entry));
    let results = join_all(deletes).await;
    answer(&document, gateway, request, results)
}

/// Reads the document of a DeleteObjects.
///
/// # Errors
/// `MalformedXML`; errors of the body.
pub(super) async fn read_document(
    request: &AuthenticatedRequest<'_>,
    upload: IncomingBody<'_>,
) -> Result<DeleteDocument, S3Error> {
    let text = document::read(request, upload, document::DOCUMENT_TERMS).await?;
    let document: DeleteDocument = parse(&text)?;
    if document.objects.is_empty() || document.objects.len() > DELETE_OBJECTS_KEYS_MAX {
        let why = format!("A DeleteObjects request must name 1 to {DELETE_OBJECTS_KEYS_MAX} keys.");
        return Err(S3Error::new(Code::MalformedXML).message(why));
    }
    Ok(document)
}

/// Returns the response with the result of each key, and reports the deleted keys to the policy engine.
///
/// # Errors
/// `SlowDown` if there is no memory for the response.
pub(super) fn answer(
    document: &DeleteDocument,
    gateway: &Gateway,
    request: &AuthenticatedRequest<'_>,
    results: Vec<Result<(), S3Error>>,
) -> S3Result {
    assert_eq!(results.len(), document.objects.len(), "every key of the request has a result");
    let mut out = Xml::new("DeleteResult");
    for (entry, result) in document.objects.iter().zip(results) {
        if result.is_ok() {
            access_hooks::record_delete(gateway, request, &entry.key);
        }
        match result {
            Ok(()) if document.quiet => {}
            Ok(()) => {
                out.open("Deleted").text("Key", &entry.key);
                out.optional("VersionId", entry.version_id.as_deref()).close("Deleted");
            }
            Err(error) => {
                out.open("Error").text("Key", &entry.key);
                out.optional("VersionId", entry.version_id.as_deref());
                out.text("Code", error.code().as_str()).text("Message", error.text()).close("Error");
            }
        }
    }
    long_xml(request.memory, out.finish("DeleteResult"))
}

/// Returns the key of an element after checking that the caller may delete it.
///
/// # Errors
/// `AccessDenied`, `NoSuchVersion`, `InvalidArgument`.
pub(super) fn key_of(
    entry: &ObjectToDelete,
    request: &AuthenticatedRequest<'_>,
) -> Result<ObjectKey, S3Error> {
    let key = ObjectKey::new(&entry.key).map_err(|_| S3Error::new(Code::InvalidArgument))?;
    if !request.principal.allows(RequiredPermission::Write, Some(request.bucket()), Some(key.as_str())) {
        return Err(S3Error::new(Code::AccessDenied));
    }
    check_version(entry.version_id.as_deref())?;
    Ok(key)
}

async fn delete_one(
    gateway: &Gateway,
    bucket: &Bucket,
    request: &AuthenticatedRequest<'_>,
    entry: &ObjectToDelete,
) -> Result<(), S3Error> {
    let key = key_of(entry, request)?;
    let given = DeleteConditions {
        etag: entry.etag.as_deref(),
        size: entry.size.as_deref(),
        modified: entry.modified.as_deref(),
    };
    Ok(gateway.objects.delete(bucket, &key, request.now, given.parse()?).await?)
}

#[cfg(test)]
mod tests {
    use super::{DeleteDocument, parse_time_secs};
    use mlgw_wire::xml_input::parse;

    #[test]
    fn the_document_keeps_every_byte_of_a_key() {
        let text = "<Delete xmlns=\"x\"><Object><Key> a&amp;b/ </Key></Object><Quiet>true</Quiet>\
                    <Object><VersionId>null</VersionId><Key>..</Key></Object></Delete>";
        let document: DeleteDocument = parse(text.as_bytes()).unwrap();
        assert!(document.quiet);
        assert_eq!(document.objects[0].key, " a&b/ ");
        assert_eq!(document.objects[1].version_id.as_deref(), Some("null"));
    }

    #[test]
    fn times_come_in_two_forms() {
        assert_eq!(parse_time_secs("2023-11-14T22:13:20Z"), Some(1_700_000_000));
        assert_eq!(parse_time_secs("Tue, 14 Nov 2023 22:13:20 GMT"), Some(1_700_000_000));
        assert_eq!(parse_time_secs("soon"), None);
    }
}

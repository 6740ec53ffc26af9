//! Headers that describe an object, in requests that create it and in responses.
//!
//! Stored system headers keep their values as sent. Names of user metadata are in lower case, because HTTP
//! header names have no case and clients compare them in lower case.

use super::request::AuthenticatedRequest;
use http::{HeaderMap, HeaderName, HeaderValue, header};
use mlgw_body::encoding::stored_content_encoding;
use mlgw_common::Timestamp;
use mlgw_common::header_text::{decode_text, latin1, metadata_from_wire};
use mlgw_common::limits::USER_METADATA_BYTES_MAX;
use mlgw_formats::schema::{EtagKind, ObjectVersion, Pair};
use mlgw_objects::put::Description;
use mlgw_wire::error::{Code, S3Error};
use mlgw_wire::tags::parse_tags_query;
use mlgw_wire::values::{etag_value, header_value, metadata_value, stored_value};

/// System headers that are stored with the object and returned with it, each with the query parameter that
/// overrides it on a signed GET.
pub static STORED_HEADERS: [(HeaderName, &str); 7] = [
    (header::CONTENT_TYPE, "response-content-type"),
    (header::CONTENT_ENCODING, "response-content-encoding"),
    (header::CONTENT_LANGUAGE, "response-content-language"),
    (header::CONTENT_DISPOSITION, "response-content-disposition"),
    (header::CACHE_CONTROL, "response-cache-control"),
    (header::EXPIRES, "response-expires"),
    (HeaderName::from_static(WEBSITE_REDIRECT), ""),
];

/// Stored header that belongs to a single object and is not copied.
pub const WEBSITE_REDIRECT: &str = "x-amz-website-redirect-location";

const METADATA_PREFIX: &str = "x-amz-meta-";
const DEFAULT_TYPE: &str = "binary/octet-stream";
/// Parses the description of a new object from the headers of a PUT, copy or create.
///
/// # Errors
/// `MetadataTooLarge`, `InvalidTag`, or `InvalidArgument` for a stored header that is not ISO-8859-1.
pub fn parse_description(request: &AuthenticatedRequest<'_>) -> Result<Description, S3Error> {
    let tags = request.header("x-amz-tagging")?.map(parse_tags_query).transpose()?.unwrap_or_default();
    Ok(Description {
        headers: stored_headers(&request.head.headers)?,
        metadata: user_metadata(&request.head.headers)?,
        tags,
    })
}

fn stored_headers(headers: &HeaderMap) -> Result<Vec<Pair>, S3Error> {
    let mut stored = Vec::new();
    for (name, _) in STORED_HEADERS.iter().filter(|(name, _)| *name != header::CONTENT_ENCODING) {
        let Some(value) = headers.get(name) else { continue };
        stored.push(Pair { name: name.as_str().to_owned(), value: latin1_text(name, value.as_bytes())? });
    }
    if let Some(value) = stored_content_encoding(headers) {
        let name = header::CONTENT_ENCODING;
        stored.push(Pair { name: name.as_str().to_owned(), value: latin1_text(&name, &value)? });
    }
    stored.retain(|pair| !pair.value.is_empty());
    Ok(stored)
}

fn user_metadata(headers: &HeaderMap) -> Result<Vec<Pair>, S3Error> {
    let mut metadata: Vec<Pair> = Vec::new();
    for name in headers.keys() {
        let Some(short) = name.as_str().strip_prefix(METADATA_PREFIX) else { continue };
        let values = headers.get_all(name).iter().map(|value| metadata_from_wire(value.as_bytes()));
        let value = values.collect::<Vec<_>>().join(",");
        metadata.push(Pair { name: short.to_owned(), value });
    }
    check_metadata(&metadata)?;
    metadata.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(metadata)
}

/// Checks the size of user metadata.
///
/// # Errors
/// `MetadataTooLarge`.
pub fn check_metadata(metadata: &[Pair]) -> Result<(), S3Error> {
    let bytes: usize = metadata.iter().map(|pair| pair.name.len() + pair.value.len()).sum();
    if bytes > USER_METADATA_BYTES_MAX {
        return Err(S3Error::new(Code::MetadataTooLarge)
            .field("Size", bytes.to_string())
            .field("MaxSizeAllowed", USER_METADATA_BYTES_MAX.to_string()));
    }
    Ok(())
}

/// Returns the text of a stored header. A response must be able to carry it as ISO-8859-1.
fn latin1_text(name: &HeaderName, value: &[u8]) -> Result<String, S3Error> {
    let text = decode_text(value);
    match latin1(&text) {
        Some(_) => Ok(text.into_owned()),
        None => Err(not_latin1(name.as_str(), &text)),
    }
}

/// Returns the refusal of a header value that no response could carry.
fn not_latin1(name: &str, value: &str) -> S3Error {
    S3Error::invalid_argument("Header value cannot be represented using ISO-8859-1.", name, value)
}

/// Writes the description of `object` to `headers`: everything except length, range and checksums.
pub fn write_description(object: &ObjectVersion, headers: &mut HeaderMap) {
    headers.insert(header::LAST_MODIFIED, http_date(Timestamp(object.modified_ms)));
    headers.insert(header::ETAG, etag_of(object));
    headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(DEFAULT_TYPE));
    for pair in &object.headers {
        if let Ok(name) = HeaderName::from_bytes(pair.name.as_bytes()) {
            let value = stored_value(&name, &pair.value);
            headers.insert(name, value);
        }
    }
    for pair in &object.metadata {
        if let Ok(name) = HeaderName::from_bytes(format!("{METADATA_PREFIX}{}", pair.name).as_bytes()) {
            headers.insert(name, metadata_value(&pair.value));
        }
    }
    let tags = object.tags.len().max(object.tag_count as usize);
    if tags > 0 {
        headers.insert("x-amz-tagging-count", HeaderValue::from(tags));
    }
}

/// Returns the ETag of an object. It is weak only if the origin's is.
fn etag_of(object: &ObjectVersion) -> HeaderValue {
    match object.etag_kind() {
        EtagKind::Weak => header_value(&format!("W/\"{}\"", object.etag)),
        EtagKind::Plain | EtagKind::Opaque => etag_value(&object.etag),
    }
}

/// Applies the `response-*` parameters of a signed GET.
///
/// # Errors
/// `InvalidArgument` if a value is not valid in a header.
pub fn override_headers(request: &AuthenticatedRequest<'_>, headers: &mut HeaderMap) -> Result<(), S3Error> {
    for (name, parameter) in STORED_HEADERS.iter().filter(|(_, parameter)| !parameter.is_empty()) {
        let Some(value) = request.query.get(parameter)? else { continue };
        let bytes = latin1(&value).ok_or_else(|| not_latin1(parameter, &value))?;
        let value = HeaderValue::from_bytes(&bytes)
            .map_err(|_| S3Error::invalid_argument("not a header value", *parameter, &*value))?;
        headers.insert(name, value);
    }
    Ok(())
}

/// Returns a time in the format of HTTP dates.
#[must_use]
pub fn http_date(time: Timestamp) -> HeaderValue {
    let secs = u64::try_from(time.as_secs()).unwrap_or(0);
    let date = httpdate::HttpDate::from(std::time::UNIX_EPOCH + std::time::Duration::from_secs(secs));
    header_value(&date.to_string())
}

#[cfg(test)]
mod tests {
    use super::http_date;
    use mlgw_common::Timestamp;

    #[test]
    fn dates_are_http_dates() {
        assert_eq!(http_date(Timestamp(1_700_000_000_123)), "Tue, 14 Nov 2023 22:13:20 GMT");
    }
}

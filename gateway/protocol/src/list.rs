//! ListObjects and ListObjectsV2: their parameters, and their pages as documents.
//!
//! [`mlgw_objects::list`] reads the pages. No state is kept between requests: a continuation token is the
//! last name of its page.

use super::Gateway;
use super::request::AuthenticatedRequest;
use super::response::{S3Result, long_xml};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as TOKEN;
use mlgw_common::Timestamp;
use mlgw_common::limits::PAGE_KEYS_MAX;
use mlgw_formats::checksum;
use mlgw_formats::schema::ObjectSummary;
use mlgw_objects::list::{ListedItem, Page, Selection};
use mlgw_objects::put::STORAGE_CLASS;
use mlgw_wire::checksums;
use mlgw_wire::error::{Code, S3Error};
use mlgw_wire::xml::Xml;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use std::borrow::Cow;
use std::sync::Arc;

/// Characters that `encoding-type=url` leaves unescaped, as AWS does.
const URL_ESCAPED: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~').remove(b'/').remove(b'*');

/// Parameters of a listing, for both versions of the operation.
#[derive(Default)]
pub(super) struct ListingParameters<'a> {
    /// Selection of keys.
    pub(super) keys: Selection<'a>,
    /// True if keys are percent-encoded in the response.
    pub(super) url_encoded: bool,
}

impl<'a> ListingParameters<'a> {
    /// Parses the parameters that all listings share; `max` is the name of the page limit's parameter.
    ///
    /// # Errors
    /// `InvalidArgument`.
    pub(super) fn parse(request: &AuthenticatedRequest<'a>, max: &'static str) -> Result<Self, S3Error> {
        let requested = request.query.number(max)?.unwrap_or(PAGE_KEYS_MAX as u64);
        let url_encoded = match request.query.raw("encoding-type") {
            None | Some("") => false,
            Some("url") => true,
            Some(other) => {
                let why = "Invalid Encoding Method specified in Request";
                return Err(S3Error::invalid_argument(why, "encoding-type", other));
            }
        };
        let keys = Selection {
            prefix: request.query.get("prefix")?.unwrap_or_default(),
            delimiter: request.query.get_non_empty("delimiter")?,
            max_keys: usize::try_from(requested).unwrap_or(PAGE_KEYS_MAX).min(PAGE_KEYS_MAX),
        };
        Ok(Self { keys, url_encoded })
    }

    /// Returns a key as it appears in the response.
    pub(super) fn encode_name<'k>(&self, key: &'k str) -> Cow<'k, str> {
        if self.url_encoded { utf8_percent_encode(key, URL_ESCAPED).into() } else { Cow::Borrowed(key) }
    }

    /// Writes the elements that repeat parameters of the request, except the prefix.
    pub(super) fn write_parameters(&self, out: &mut Xml) {
        if let Some(delimiter) = &self.keys.delimiter {
            out.text("Delimiter", &self.encode_name(delimiter));
        }
        if self.url_encoded {
            out.text("EncodingType", "url");
        }
    }
}

/// Presence of the owner in the lines of a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OwnerElement {
    Shown,
    Omitted,
}

fn write_items(out: &mut Xml, listing: &ListingParameters<'_>, page: &Page, owner: OwnerElement) {
    for item in &page.items {
        match item {
            ListedItem::Object(key, summary) => {
                write_object(out, &listing.encode_name(key.as_str()), summary, owner)
            }
            ListedItem::CommonPrefix(group) => {
                out.open("CommonPrefixes")
                    .text("Prefix", &listing.encode_name(group))
                    .close("CommonPrefixes");
            }
        }
    }
}

fn write_object(out: &mut Xml, key: &str, object: &ObjectSummary, owner: OwnerElement) {
    out.open("Contents").text("Key", key);
    write_details(out, object, owner);
    out.close("Contents");
}

/// Writes the attributes that a listing shows of an object besides its name.
pub(super) fn write_details(out: &mut Xml, object: &ObjectSummary, owner: OwnerElement) {
    out.time("LastModified", Timestamp(object.modified_ms)).etag(&object.etag);
    for checksum in &object.checksums {
        let algorithm = checksum::algorithm_from_stored(checksum.algorithm()).name();
        let kind = checksums::kind_name(checksum.kind());
        out.raw(&["<ChecksumAlgorithm>", algorithm, "</ChecksumAlgorithm>"]);
        out.raw(&["<ChecksumType>", kind, "</ChecksumType>"]);
    }
    out.value("Size", object.size);
    if owner == OwnerElement::Shown {
        write_owner(out, "Owner", &object.owner);
    }
    let class = if object.storage_class.is_empty() { STORAGE_CLASS } else { &object.storage_class };
    out.text("StorageClass", class);
}

/// Writes an `Owner` or `Initiator` element.
pub(super) fn write_owner(out: &mut Xml, tag: &str, id: &str) {
    out.open(tag).text("ID", id).text("DisplayName", "mlgw").close(tag);
}

/// ListObjects.
///
/// # Errors
/// Those of S3.
pub fn list_objects(gateway: &Arc<Gateway>, request: &AuthenticatedRequest<'_>) -> S3Result {
    let bucket = gateway.bucket(request.bucket())?;
    let listing = ListingParameters::parse(request, "max-keys")?;
    let marker = request.query.get("marker")?.unwrap_or_default();
    let page = gateway.objects.list(bucket.bucket_id(), &listing.keys, &marker)?;
    long_xml(request.memory, write_v1(&bucket.name, &listing, &marker, &page))
}

/// Returns a page as the document of ListObjects.
pub(super) fn write_v1(bucket: &str, listing: &ListingParameters<'_>, marker: &str, page: &Page) -> String {
    let mut out = Xml::new("ListBucketResult");
    out.text("Name", bucket).text("Prefix", &listing.encode_name(&listing.keys.prefix));
    listing.write_parameters(&mut out);
    out.text("Marker", &listing.encode_name(marker)).value("MaxKeys", listing.keys.max_keys);
    out.value("IsTruncated", page.truncated);
    // AWS returns NextMarker only with a delimiter. Without one, the last key is the next marker.
    if let (true, true, Some(last)) = (page.truncated, listing.keys.delimiter.is_some(), page.items.last()) {
        out.text("NextMarker", &listing.encode_name(last.name()));
    }
    write_items(&mut out, listing, page, OwnerElement::Shown);
    out.finish("ListBucketResult")
}

/// ListObjectsV2.
///
/// # Errors
/// Those of S3.
pub fn list_objects_v2(gateway: &Arc<Gateway>, request: &AuthenticatedRequest<'_>) -> S3Result {
    let bucket = gateway.bucket(request.bucket())?;
    let listing = ListingParameters::parse(request, "max-keys")?;
    let start_after = request.query.get("start-after")?;
    let after = match request.query.get_non_empty("continuation-token")? {
        Some(token) => Cow::Owned(decode_token(&token)?),
        None => start_after.unwrap_or_default(),
    };
    let page = gateway.objects.list(bucket.bucket_id(), &listing.keys, &after)?;
    let next = page.items.last().filter(|_| page.truncated).map(|last| encode_token(last.name()));
    long_xml(request.memory, write_v2(request, &bucket.name, &listing, &page, next.as_deref())?)
}

/// Returns a page as the document of ListObjectsV2; `next` is the token of the following page.
pub(super) fn write_v2(
    request: &AuthenticatedRequest<'_>,
    bucket: &str,
    listing: &ListingParameters<'_>,
    page: &Page,
    next: Option<&str>,
) -> Result<String, S3Error> {
    let start_after = request.query.get("start-after")?;
    let token = request.query.get("continuation-token")?;
    let owner = match request.query.raw("fetch-owner") {
        Some("true") => OwnerElement::Shown,
        _ => OwnerElement::Omitted,
    };
    let mut out = Xml::new("ListBucketResult");
    out.text("Name", bucket).text("Prefix", &listing.encode_name(&listing.keys.prefix));
    listing.write_parameters(&mut out);
    out.value("MaxKeys", listing.keys.max_keys).value("KeyCount", page.items.len());
    out.optional("StartAfter", start_after.as_deref().map(|s| listing.encode_name(s)).as_deref());
    out.optional("ContinuationToken", token.as_deref());
    out.value("IsTruncated", page.truncated);
    out.optional("NextContinuationToken", next);
    write_items(&mut out, listing, page, owner);
    Ok(out.finish("ListBucketResult"))
}

/// Returns the continuation token that encodes `text`, here the last name of the preceding page.
pub(super) fn encode_token(text: &str) -> String {
    TOKEN.encode(text)
}

/// Decodes a continuation token.
pub(super) fn decode_token(token: &str) -> Result<String, S3Error> {
    let name = TOKEN.decode(token).ok().and_then(|bytes| String::from_utf8(bytes).ok());
    name.filter(|name| !name.is_empty()).ok_or_else(|| {
        S3Error::new(Code::InvalidArgument)
            .message("The continuation token provided is incorrect")
            .field("ArgumentName", "continuation-token")
    })
}

#[cfg(test)]
mod tests {
    use super::ListingParameters;

    #[test]
    fn url_encoding_keeps_slashes() {
        let listing = ListingParameters { url_encoded: true, ..ListingParameters::default() };
        assert_eq!(listing.encode_name("a b/ü+%\n"), "a%20b/%C3%BC%2B%25%0A");
    }
}

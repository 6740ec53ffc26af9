//! ListObjects and ListObjectsV2: pages of keys in byte order, rolled up at a delimiter.
//!
//! A page reads the catalogue in one pass from where it begins; a group of keys behind a delimiter
//! costs one jump, however many keys it has.

use mlgw_objects::checksum;
use super::checksums;
use super::error::{Code, S3Error};
use mlgw_objects::put::STORAGE_CLASS;
use super::request::Request;
use super::response::{S3Result, long_xml};
use super::xml::Xml;
use super::Gateway;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as TOKEN;
use mlgw_common::limits::PAGE_KEYS_MAX;
use mlgw_common::{BucketId, ObjectKey, Timestamp};
use mlgw_metadata::Entry;
use mlgw_metadata::schema::ObjectSummary;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use std::borrow::Cow;
use std::ops::Bound;
use std::sync::Arc;

/// What `encoding-type=url` leaves alone, as AWS does.
const URL_KEEPS: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~').remove(b'/').remove(b'*');

/// What a listing asks for, in either version of the operation.
pub(super) struct Listing<'a> {
    pub(super) prefix: Cow<'a, str>,
    pub(super) delimiter: Option<Cow<'a, str>>,
    pub(super) max_keys: usize,
    pub(super) url_encoded: bool,
}

impl<'a> Listing<'a> {
    /// Reads the parameters that all listings share; `max` is the name of the page's limit.
    ///
    /// # Errors
    /// `InvalidArgument`.
    pub(super) fn of(request: &Request<'a>, max: &'static str) -> Result<Self, S3Error> {
        let asked = request.query.number(max)?.unwrap_or(PAGE_KEYS_MAX as u64);
        let url_encoded = match request.query.raw("encoding-type") {
            None | Some("") => false,
            Some("url") => true,
            Some(other) => {
                let why = "Invalid Encoding Method specified in Request";
                return Err(S3Error::invalid_argument(why, "encoding-type", other));
            }
        };
        Ok(Self {
            prefix: request.query.get("prefix")?.unwrap_or_default(),
            delimiter: request.query.get_filled("delimiter")?,
            max_keys: usize::try_from(asked).unwrap_or(PAGE_KEYS_MAX).min(PAGE_KEYS_MAX),
            url_encoded,
        })
    }

    /// A key as the answer carries it.
    pub(super) fn show<'k>(&self, key: &'k str) -> Cow<'k, str> {
        if self.url_encoded { utf8_percent_encode(key, URL_KEEPS).into() } else { Cow::Borrowed(key) }
    }

    /// The group that `key` is rolled up in, if the delimiter comes behind the prefix.
    pub(super) fn common_prefix<'k>(&self, key: &'k str) -> Option<&'k str> {
        let delimiter = self.delimiter.as_deref()?;
        let rest = key.get(self.prefix.len()..)?;
        let at = rest.find(delimiter)?;
        key.get(..self.prefix.len() + at + delimiter.len())
    }

    /// The elements that repeat the request, but for the prefix.
    pub(super) fn echo(&self, out: &mut Xml) {
        if let Some(delimiter) = &self.delimiter {
            out.text("Delimiter", &self.show(delimiter));
        }
        if self.url_encoded {
            out.text("EncodingType", "url");
        }
    }
}

/// The smallest string of bytes that is greater than every string that begins with `prefix`;
/// nothing when there is none.
pub(super) fn after_prefix(prefix: &str) -> Option<Vec<u8>> {
    let mut bytes = prefix.as_bytes().to_vec();
    while let Some(last) = bytes.pop() {
        if last < u8::MAX {
            bytes.push(last + 1);
            return Some(bytes);
        }
    }
    None
}

/// One line of a page.
pub(super) enum Item {
    Object(ObjectKey, ObjectSummary),
    CommonPrefix(String),
}

impl Item {
    pub(super) fn name(&self) -> &str {
        match self {
            Self::Object(key, _) => key.as_str(),
            Self::CommonPrefix(prefix) => prefix,
        }
    }
}

/// A page.
#[derive(Default)]
pub(super) struct Page {
    pub(super) items: Vec<Item>,
    pub(super) truncated: bool,
}

/// Reads one page: what comes behind `after` in byte order. `after` may be a group that an earlier
/// page ended with; the whole group is behind it then.
pub(super) fn page(
    gateway: &Gateway,
    bucket: BucketId,
    listing: &Listing<'_>,
    after: &str,
) -> Result<Page, S3Error> {
    let mut page = Page { items: Vec::new(), truncated: false };
    if listing.max_keys == 0 {
        return Ok(page);
    }
    let prefix = &*listing.prefix;
    let Some(begin) = begin(listing, after) else { return Ok(page) };
    let reader = gateway.objects.catalogue.reader();
    let mut scan = reader.scan(bucket, begin.as_ref().map(Vec::as_slice));
    while let Some((key, entry)) = scan.next().transpose()? {
        if !key.as_str().starts_with(prefix) {
            break;
        }
        let Some(item) = item(listing, &key, &entry)? else { continue };
        if page.items.len() == listing.max_keys {
            page.truncated = true;
            break;
        }
        if let Item::CommonPrefix(group) = &item {
            match after_prefix(group) {
                Some(next) => scan.seek(Bound::Included(&next)),
                None => break,
            }
        }
        page.items.push(item);
    }
    Ok(page)
}

/// Where a page begins; nothing when it is beyond all keys.
fn begin(listing: &Listing<'_>, after: &str) -> Option<Bound<Vec<u8>>> {
    if listing.common_prefix(after).is_some_and(|group| group == after) && after.starts_with(&*listing.prefix)
    {
        return after_prefix(after).map(Bound::Included);
    }
    if after >= &*listing.prefix && !after.is_empty() {
        return Some(Bound::Excluded(after.as_bytes().to_vec()));
    }
    Some(Bound::Included(listing.prefix.as_bytes().to_vec()))
}

fn item(listing: &Listing<'_>, key: &ObjectKey, entry: &Entry) -> Result<Option<Item>, S3Error> {
    if let Some(group) = listing.common_prefix(key.as_str()) {
        return Ok(Some(Item::CommonPrefix(group.to_owned())));
    }
    let summary = entry.summary()?;
    Ok((!summary.delete_marker).then(|| Item::Object(key.clone(), summary)))
}

fn write_items(out: &mut Xml, listing: &Listing<'_>, page: &Page, owner: bool) {
    for item in &page.items {
        match item {
            Item::Object(key, summary) => write_object(out, &listing.show(key.as_str()), summary, owner),
            Item::CommonPrefix(group) => {
                out.open("CommonPrefixes").text("Prefix", &listing.show(group)).close("CommonPrefixes");
            }
        }
    }
}

fn write_object(out: &mut Xml, key: &str, object: &ObjectSummary, owner: bool) {
    out.open("Contents").text("Key", key);
    write_details(out, object, owner);
    out.close("Contents");
}

/// What a listing shows of an object besides its name.
pub(super) fn write_details(out: &mut Xml, object: &ObjectSummary, owner: bool) {
    out.time("LastModified", Timestamp(object.modified_ms)).etag(&object.etag);
    for checksum in &object.checksums {
        let algorithm = checksum::algorithm(checksum.algorithm()).name();
        let kind = checksums::kind_name(checksum.kind());
        out.raw(&["<ChecksumAlgorithm>", algorithm, "</ChecksumAlgorithm>"]);
        out.raw(&["<ChecksumType>", kind, "</ChecksumType>"]);
    }
    out.value("Size", object.size);
    if owner {
        write_owner(out, "Owner", &object.owner);
    }
    let class = if object.storage_class.is_empty() { STORAGE_CLASS } else { &object.storage_class };
    out.text("StorageClass", class);
}

/// An `Owner` or `Initiator` element.
pub(super) fn write_owner(out: &mut Xml, tag: &str, id: &str) {
    out.open(tag).text("ID", id).text("DisplayName", "mlgw").close(tag);
}

/// ListObjects.
///
/// # Errors
/// Those of S3.
pub fn list_objects(gateway: &Arc<Gateway>, request: &Request<'_>) -> S3Result {
    let bucket = gateway.bucket(request.bucket())?;
    let listing = Listing::of(request, "max-keys")?;
    let marker = request.query.get("marker")?.unwrap_or_default();
    let page = page(gateway, bucket.bucket_id(), &listing, &marker)?;
    long_xml(request.memory, write_v1(&bucket.name, &listing, &marker, &page))
}

/// A page as ListObjects answers it.
pub(super) fn write_v1(bucket: &str, listing: &Listing<'_>, marker: &str, page: &Page) -> String {
    let mut out = Xml::new("ListBucketResult");
    out.text("Name", bucket).text("Prefix", &listing.show(&listing.prefix));
    listing.echo(&mut out);
    out.text("Marker", &listing.show(marker)).value("MaxKeys", listing.max_keys);
    out.value("IsTruncated", page.truncated);
    // AWS gives NextMarker only with a delimiter; without one the last key serves.
    if let (true, true, Some(last)) = (page.truncated, listing.delimiter.is_some(), page.items.last()) {
        out.text("NextMarker", &listing.show(last.name()));
    }
    write_items(&mut out, listing, page, true);
    out.finish("ListBucketResult")
}

/// ListObjectsV2.
///
/// # Errors
/// Those of S3.
pub fn list_objects_v2(gateway: &Arc<Gateway>, request: &Request<'_>) -> S3Result {
    let bucket = gateway.bucket(request.bucket())?;
    let listing = Listing::of(request, "max-keys")?;
    let start_after = request.query.get("start-after")?;
    let after = match request.query.get_filled("continuation-token")? {
        Some(token) => Cow::Owned(open_token(&token)?),
        None => start_after.unwrap_or_default(),
    };
    let page = page(gateway, bucket.bucket_id(), &listing, &after)?;
    let next = page.items.last().filter(|_| page.truncated).map(|last| token(last.name()));
    long_xml(request.memory, write_v2(request, &bucket.name, &listing, &page, next.as_deref())?)
}

/// A page as ListObjectsV2 answers it; `next` is the token of the page behind it.
pub(super) fn write_v2(
    request: &Request<'_>,
    bucket: &str,
    listing: &Listing<'_>,
    page: &Page,
    next: Option<&str>,
) -> Result<String, S3Error> {
    let start_after = request.query.get("start-after")?;
    let token = request.query.get("continuation-token")?;
    let fetch_owner = request.query.raw("fetch-owner") == Some("true");
    let mut out = Xml::new("ListBucketResult");
    out.text("Name", bucket).text("Prefix", &listing.show(&listing.prefix));
    listing.echo(&mut out);
    out.value("MaxKeys", listing.max_keys).value("KeyCount", page.items.len());
    out.optional("StartAfter", start_after.as_deref().map(|s| listing.show(s)).as_deref());
    out.optional("ContinuationToken", token.as_deref());
    out.value("IsTruncated", page.truncated);
    out.optional("NextContinuationToken", next);
    write_items(&mut out, listing, page, fetch_owner);
    Ok(out.finish("ListBucketResult"))
}

/// The continuation token that says `text`: here the last name of the page before.
pub(super) fn token(text: &str) -> String {
    TOKEN.encode(text)
}

/// What a continuation token says.
pub(super) fn open_token(token: &str) -> Result<String, S3Error> {
    let name = TOKEN.decode(token).ok().and_then(|bytes| String::from_utf8(bytes).ok());
    name.filter(|name| !name.is_empty()).ok_or_else(|| {
        S3Error::new(Code::InvalidArgument)
            .message("The continuation token provided is incorrect")
            .field("ArgumentName", "continuation-token")
    })
}

#[cfg(test)]
mod tests {
    use super::{Listing, after_prefix, begin};
    use std::borrow::Cow;
    use std::ops::Bound;

    fn listing(prefix: &'static str, delimiter: &'static str) -> Listing<'static> {
        Listing {
            prefix: Cow::Borrowed(prefix),
            delimiter: (!delimiter.is_empty()).then_some(Cow::Borrowed(delimiter)),
            max_keys: 10,
            url_encoded: true,
        }
    }

    #[test]
    fn a_group_ends_at_the_first_delimiter_behind_the_prefix() {
        assert_eq!(listing("a/", "/").common_prefix("a/b/c/d"), Some("a/b/"));
        assert_eq!(listing("a/", "/").common_prefix("a/b"), None);
        assert_eq!(listing("", "::").common_prefix("x::y"), Some("x::"));
        assert_eq!(listing("", "").common_prefix("a/b"), None);
    }

    #[test]
    fn a_page_begins_behind_a_whole_group_or_a_key() {
        assert_eq!(begin(&listing("", "/"), "a/"), Some(Bound::Included(b"a0".to_vec())));
        assert_eq!(begin(&listing("", "/"), "a/b"), Some(Bound::Excluded(b"a/b".to_vec())));
        assert_eq!(begin(&listing("p", "/"), ""), Some(Bound::Included(b"p".to_vec())));
        assert_eq!(begin(&listing("p", "/"), "a"), Some(Bound::Included(b"p".to_vec())));
    }

    #[test]
    fn what_comes_behind_a_prefix() {
        assert_eq!(after_prefix("a"), Some(b"b".to_vec()));
        assert_eq!(after_prefix(""), None);
        let next = after_prefix("\u{10FFFF}").unwrap();
        assert!(next.as_slice() > "\u{10FFFF}\u{10FFFF}".as_bytes());
    }

    #[test]
    fn url_encoding_keeps_slashes() {
        assert_eq!(listing("", "").show("a b/ü+%\n"), "a%20b/%C3%BC%2B%25%0A");
    }
}

//! XML documents of S3, as far as the commands need them. Pure.

use percent_encoding::percent_decode_str;
use serde::Deserialize;
use std::fmt::Write as _;

/// A page of keys.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct KeyPage {
    /// Common prefixes, in byte order.
    pub(super) prefixes: Vec<String>,
    /// Objects, in byte order.
    pub(super) objects: Vec<KeyLine>,
    /// Token of the next page; `None` on the last page.
    pub(super) next: Option<String>,
}

/// An object of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KeyLine {
    pub(super) key: String,
    pub(super) size: u64,
    /// Time of the last write, as RFC 3339.
    pub(super) modified: String,
    pub(super) etag: String,
}

/// A page of buckets.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct BucketPage {
    pub(super) buckets: Vec<BucketLine>,
    /// Token of the next page; `None` on the last page.
    pub(super) next: Option<String>,
}

/// A bucket of a listing.
#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct BucketLine {
    pub(super) name: String,
    #[serde(default)]
    pub(super) creation_date: String,
}

/// A part of an upload, as a CompleteMultipartUpload document names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PartReceipt {
    pub(super) number: usize,
    pub(super) etag: String,
    /// CRC64NVME in base64, if it is known.
    pub(super) checksum: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct KeyPageElement {
    #[serde(default)]
    is_truncated: bool,
    next_continuation_token: Option<String>,
    encoding_type: Option<String>,
    #[serde(default)]
    contents: Vec<ContentsElement>,
    #[serde(default)]
    common_prefixes: Vec<PrefixElement>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ContentsElement {
    key: String,
    size: u64,
    #[serde(default)]
    last_modified: String,
    #[serde(rename = "ETag", default)]
    etag: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct PrefixElement {
    prefix: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct BucketPageElement {
    continuation_token: Option<String>,
    #[serde(default)]
    buckets: BucketsElement,
}

#[derive(Default, Deserialize)]
struct BucketsElement {
    #[serde(rename = "Bucket", default)]
    buckets: Vec<BucketLine>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct ErrorElement {
    code: String,
    message: String,
}

#[derive(Deserialize)]
struct EtagElement {
    #[serde(rename = "ETag")]
    etag: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct UploadIdElement {
    upload_id: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct TaggingElement {
    #[serde(default)]
    tag_set: TagSetElement,
}

#[derive(Default, Deserialize)]
struct TagSetElement {
    #[serde(rename = "Tag", default)]
    tags: Vec<TagElement>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct TagElement {
    key: String,
    value: String,
}

/// Parses a document with this root.
fn parse<'d, T: Deserialize<'d>>(document: &'d [u8], root: &str) -> Result<T, String> {
    let text = str::from_utf8(document).map_err(|error| error.to_string())?;
    match root_name(text) {
        Some(found) if found == root => quick_xml::de::from_str(text).map_err(|error| error.to_string()),
        found => Err(format!("{} instead of {root}", found.unwrap_or("no document"))),
    }
}

/// Returns the name of the first element.
fn root_name(text: &str) -> Option<&str> {
    let element = text.split('<').find(|piece| piece.starts_with(|c: char| c.is_ascii_alphabetic()))?;
    element.split(|c: char| c.is_ascii_whitespace() || c == '>' || c == '/').next()
}

/// Parses a page of a ListObjectsV2.
///
/// # Errors
/// The document is not such a page.
pub(super) fn parse_key_page(document: &[u8]) -> Result<KeyPage, String> {
    let page: KeyPageElement = parse(document, "ListBucketResult")?;
    let is_encoded = page.encoding_type.as_deref() == Some("url");
    let name = |name: String| if is_encoded { decoded(&name) } else { Ok(name) };
    let line = |line: ContentsElement| {
        let ContentsElement { key, size, last_modified, etag } = line;
        Ok(KeyLine { key: name(key)?, size, modified: last_modified, etag: unquoted(&etag) })
    };
    let prefixes = page.common_prefixes.into_iter().map(|element| name(element.prefix));
    let next = page.next_continuation_token.filter(|token| page.is_truncated && !token.is_empty());
    if page.is_truncated && next.is_none() {
        return Err("a truncated page without a continuation token".to_owned());
    }
    Ok(KeyPage {
        prefixes: prefixes.collect::<Result<_, _>>()?,
        objects: page.contents.into_iter().map(line).collect::<Result<_, String>>()?,
        next,
    })
}

/// Decodes a name with `encoding-type=url`, in which `+` is a space as in a form.
fn decoded(name: &str) -> Result<String, String> {
    let spaced = name.replace('+', " ");
    let decoded = percent_decode_str(&spaced).decode_utf8().map_err(|error| error.to_string())?;
    Ok(decoded.into_owned())
}

/// Parses a page of a ListBuckets.
///
/// # Errors
/// The document is not such a page.
pub(super) fn parse_bucket_page(document: &[u8]) -> Result<BucketPage, String> {
    let page: BucketPageElement = parse(document, "ListAllMyBucketsResult")?;
    let next = page.continuation_token.filter(|token| !token.is_empty());
    Ok(BucketPage { buckets: page.buckets.buckets, next })
}

/// Returns code and message of an error document; `None` if the document is not one.
pub(super) fn parse_error(document: &[u8]) -> Option<(String, String)> {
    let error: ErrorElement = parse(document, "Error").ok()?;
    Some((error.code, error.message))
}

/// Returns the id of a created upload.
///
/// # Errors
/// The document has none. A request without an id would act on the object instead.
pub(super) fn parse_upload_id(document: &[u8]) -> Result<String, String> {
    let UploadIdElement { upload_id } = parse(document, "InitiateMultipartUploadResult")?;
    if upload_id.is_empty() { Err("an upload without an id".to_owned()) } else { Ok(upload_id) }
}

/// Returns the ETag of an object or a part that was made from others.
///
/// # Errors
/// The document is not the result with this root.
pub(super) fn parse_etag(document: &[u8], root: &str) -> Result<String, String> {
    parse(document, root).map(|EtagElement { etag }| unquoted(&etag))
}

/// Returns the tags of an object in the form of the header `x-amz-tagging`.
///
/// # Errors
/// The document is not a set of tags.
pub(super) fn parse_tags(document: &[u8]) -> Result<String, String> {
    let TaggingElement { tag_set } = parse(document, "Tagging")?;
    let encode = crate::path_segment;
    let pairs = tag_set.tags.iter().map(|tag| format!("{}={}", encode(&tag.key), encode(&tag.value)));
    Ok(pairs.collect::<Vec<_>>().join("&"))
}

/// Returns the document that completes an upload. The parts are in the order of their numbers.
pub(super) fn complete_document(parts: &[PartReceipt]) -> String {
    let mut out = String::from("<CompleteMultipartUpload>");
    for PartReceipt { number, etag, checksum } in parts {
        let etag = quick_xml::escape::escape(etag.as_str());
        let _ = write!(out, "<Part><PartNumber>{number}</PartNumber><ETag>&quot;{etag}&quot;</ETag>");
        if let Some(checksum) = checksum {
            let _ = write!(out, "<ChecksumCRC64NVME>{checksum}</ChecksumCRC64NVME>");
        }
        out.push_str("</Part>");
    }
    out + "</CompleteMultipartUpload>"
}

/// Removes the quotes of an ETag.
pub(super) fn unquoted(etag: &str) -> String {
    etag.trim_matches('"').to_owned()
}

#[cfg(test)]
mod tests {
    use super::{
        KeyLine, PartReceipt, complete_document, parse_bucket_page, parse_error, parse_etag, parse_key_page,
        parse_tags, parse_upload_id,
    };

    #[test]
    fn a_page_has_decoded_keys_and_a_token() {
        let page = parse_key_page(
            br#"<?xml version="1.0"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">
            <IsTruncated>true</IsTruncated><NextContinuationToken>t&amp;</NextContinuationToken>
            <EncodingType>url</EncodingType>
            <Contents><Key>a+b%2F%25c</Key><LastModified>2022-10-12T17:50:00.000Z</LastModified>
              <ETag>&quot;x-2&quot;</ETag><Size>5</Size></Contents>
            <CommonPrefixes><Prefix>%C3%BC/</Prefix></CommonPrefixes>
            <Contents><Key>z</Key><Size>0</Size></Contents></ListBucketResult>"#,
        )
        .unwrap();
        assert_eq!((page.prefixes.as_slice(), page.next.as_deref()), (&["ü/".to_owned()][..], Some("t&")));
        let first = KeyLine {
            key: "a b/%c".into(),
            size: 5,
            modified: "2022-10-12T17:50:00.000Z".into(),
            etag: "x-2".into(),
        };
        assert_eq!((&page.objects[0], page.objects[1].key.as_str()), (&first, "z"));
    }

    #[test]
    fn pages_that_cannot_be_followed_are_refused() {
        for document in [
            "<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>",
            "<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken/></ListBucketResult>",
            "<ListBucketResult><EncodingType>url</EncodingType><Contents><Key>%ff</Key><Size>1</Size>\
             </Contents></ListBucketResult>",
            "<html><body>Log in.</body></html>",
            "",
        ] {
            assert!(parse_key_page(document.as_bytes()).is_err(), "{document}");
        }
        let last = "<ListBucketResult><IsTruncated>false</IsTruncated>\
                    <NextContinuationToken>t</NextContinuationToken></ListBucketResult>";
        assert_eq!(parse_key_page(last.as_bytes()).unwrap().next, None);
    }

    #[test]
    fn other_documents_have_their_values() {
        let buckets = b"<ListAllMyBucketsResult><Buckets><Bucket><Name>a</Name>\
            <CreationDate>T</CreationDate></Bucket><Bucket><Name>b</Name></Bucket></Buckets>\
            </ListAllMyBucketsResult>";
        let page = parse_bucket_page(buckets).unwrap();
        assert_eq!((page.buckets[0].creation_date.as_str(), page.buckets[1].name.as_str()), ("T", "b"));
        let none = b"<ListAllMyBucketsResult><Buckets/></ListAllMyBucketsResult>";
        assert_eq!(parse_bucket_page(none).unwrap().buckets, []);
        let last = b"<ListAllMyBucketsResult><Buckets/><ContinuationToken/></ListAllMyBucketsResult>";
        assert_eq!(parse_bucket_page(last).unwrap().next, None);
        let error = b"<Error><Code>NoSuchKey</Code><Message>No.</Message></Error>";
        assert_eq!(parse_error(error), Some(("NoSuchKey".into(), "No.".into())));
        assert_eq!(parse_error(b"<html></html>"), None);
        let copied = b"<CopyPartResult><ETag>\"e\"</ETag></CopyPartResult>";
        assert_eq!(parse_etag(copied, "CopyPartResult"), Ok("e".into()));
        assert!(parse_etag(error, "CopyPartResult").is_err());
        let id = |id: &str| {
            format!(
                "<InitiateMultipartUploadResult><UploadId>{id}</UploadId>\
             </InitiateMultipartUploadResult>"
            )
        };
        assert_eq!(parse_upload_id(id("u1").as_bytes()), Ok("u1".into()));
        assert!(parse_upload_id(id("").as_bytes()).is_err());
        let tags = b"<Tagging><TagSet><Tag><Key>a b</Key><Value>c&amp;d</Value></Tag>\
            <Tag><Key>e</Key><Value/></Tag></TagSet></Tagging>";
        assert_eq!(parse_tags(tags), Ok("a%20b=c%26d&e=".into()));
    }

    #[test]
    fn an_upload_is_completed_by_its_parts() {
        let part = |number, checksum: Option<&str>| PartReceipt {
            number,
            etag: "e<".into(),
            checksum: checksum.map(str::to_owned),
        };
        let expected = "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber>\
            <ETag>&quot;e&lt;&quot;</ETag><ChecksumCRC64NVME>AA==</ChecksumCRC64NVME></Part>\
            <Part><PartNumber>2</PartNumber><ETag>&quot;e&lt;&quot;</ETag></Part></CompleteMultipartUpload>";
        assert_eq!(complete_document(&[part(1, Some("AA==")), part(2, None)]), expected);
    }
}

//! XML documents of an S3 origin.

use super::head::{check_size, part_count, unquoted};
use crate::origin::{ListLine, ListPage, OriginError};
use mlgw_common::Timestamp;
use mlgw_formats::schema::ObjectVersion;
use percent_encoding::percent_decode_str;
use serde::Deserialize;

/// Maximum length of a document: a page of 1,000 keys of 1,024 bytes each, every byte encoded, is below 4
/// MiB.
pub(super) const DOCUMENT_BYTES_MAX: usize = 8 << 20;

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ListDocument {
    #[serde(default)]
    is_truncated: bool,
    next_continuation_token: Option<String>,
    encoding_type: Option<String>,
    #[serde(default)]
    contents: Vec<ListedObject>,
    #[serde(default)]
    common_prefixes: Vec<CommonPrefix>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ListedObject {
    key: String,
    #[serde(default)]
    last_modified: String,
    #[serde(rename = "ETag", default)]
    etag: String,
    size: u64,
    #[serde(default)]
    storage_class: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct CommonPrefix {
    pub(super) prefix: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct ErrorDocument {
    code: String,
    message: String,
}

/// Parses a page of keys from a ListObjectsV2 document.
pub(super) fn parse_list_page(document: &[u8]) -> Result<ListPage, OriginError> {
    let invalid = |what: String| OriginError::InvalidResponse(format!("invalid listing: {what}"));
    let text = str::from_utf8(document).map_err(|error| invalid(error.to_string()))?;
    check_root(text, "ListBucketResult")?;
    let listed: ListDocument = quick_xml::de::from_str(text).map_err(|error| invalid(error.to_string()))?;
    let is_encoded = listed.encoding_type.as_deref() == Some("url");
    let name = |name: String| if is_encoded { decoded(&name).map_err(invalid) } else { Ok(name) };
    let objects = listed.contents.into_iter().map(|line| {
        check_size(line.size)?;
        let etag = unquoted(&line.etag);
        let object = ObjectVersion {
            size: line.size,
            modified_ms: Timestamp::parse_rfc3339(&line.last_modified).map_or(0, Timestamp::as_millis),
            part_count: part_count(&etag),
            etag,
            storage_class: line.storage_class,
            ..ObjectVersion::default()
        };
        Ok(ListLine::Object(name(line.key)?, Box::new(object)))
    });
    let groups = listed.common_prefixes.into_iter().map(|group| Ok(ListLine::Group(name(group.prefix)?)));
    let mut lines = objects.chain(groups).collect::<Result<Vec<_>, OriginError>>()?;
    lines.sort_by(|a, b| a.name().cmp(b.name()));
    let next = listed.next_continuation_token.filter(|token| listed.is_truncated && !token.is_empty());
    if listed.is_truncated && next.is_none() {
        return Err(invalid("it is truncated and has no continuation token".to_owned()));
    }
    Ok(ListPage { lines, next })
}

/// Checks that a document is of the requested kind: a proxy's page may be well-formed XML, but lacks the
/// content. Some stores end the name of the root with `Response`.
pub(super) fn check_root(text: &str, expected: &str) -> Result<(), OriginError> {
    let is_kind =
        |root: &str| root.strip_suffix("Response").is_some_and(|kind| expected == format!("{kind}Result"));
    match root_name(text) {
        Some(root) if root == expected || is_kind(root) => Ok(()),
        root => {
            let found = root.unwrap_or("nothing");
            Err(OriginError::InvalidResponse(format!("a document {found:?} instead of {expected:?}")))
        }
    }
}

/// Returns the name of the first element.
pub(super) fn root_name(text: &str) -> Option<&str> {
    let element =
        text.split('<').find(|piece| piece.starts_with(|first: char| first.is_ascii_alphabetic()))?;
    element.split(|end: char| end.is_ascii_whitespace() || end == '>' || end == '/').next()
}

/// Decodes a name with `encoding-type=url`, in which `+` is a space as in a form.
pub(super) fn decoded(name: &str) -> Result<String, String> {
    let spaced = name.replace('+', " ");
    let decoded = percent_decode_str(&spaced).decode_utf8().map_err(|error| error.to_string())?;
    Ok(decoded.into_owned())
}

/// Returns code and message of an error document; empty strings if it is not one.
pub(super) fn parse_error(document: &[u8]) -> (String, String) {
    let text = str::from_utf8(document).unwrap_or_default();
    let error: ErrorDocument = quick_xml::de::from_str(text).unwrap_or_default();
    (error.code, error.message)
}

#[cfg(test)]
mod tests {
    use super::{parse_error, parse_list_page};
    use crate::origin::ListLine;
    use proptest::prelude::{any, proptest};

    const PAGE: &str = r#"<?xml version="1.0"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">
        <Name>b</Name><IsTruncated>true</IsTruncated><EncodingType>url</EncodingType>
        <NextContinuationToken>t</NextContinuationToken>
        <Contents><Key>a+b%2Fc</Key><LastModified>2022-10-12T17:50:00.000Z</LastModified>
          <ETag>&quot;x-2&quot;</ETag><Size>5</Size><StorageClass>STANDARD</StorageClass></Contents>
        <CommonPrefixes><Prefix>a%20a/</Prefix></CommonPrefixes>
        <Contents><Key>z</Key><ETag>"y"</ETag><Size>0</Size></Contents></ListBucketResult>"#;

    #[test]
    fn a_page_is_in_byte_order_with_names_decoded() {
        let page = parse_list_page(PAGE.as_bytes()).unwrap();
        let names: Vec<_> = page.lines.iter().map(ListLine::name).collect();
        assert_eq!((names, page.next.as_deref()), (vec!["a a/", "a b/c", "z"], Some("t")));
        let ListLine::Object(_, object) = &page.lines[1] else { panic!("{:?}", page.lines) };
        assert_eq!((object.etag.as_str(), object.size, object.part_count), ("x-2", 5, 2));
        assert_eq!(object.modified_ms, 1_665_597_000_000);
    }

    proptest! {
        #[test]
        fn no_document_panics(garbage in any::<Vec<u8>>(), cut in 0..PAGE.len(), flip in 0..PAGE.len()) {
            let mut document = PAGE.as_bytes()[..cut].to_vec();
            if let Some(byte) = document.get_mut(flip) {
                *byte ^= 1;
            }
            for document in [&garbage, &document] {
                let _ = (parse_list_page(document), parse_error(document));
            }
        }
    }

    #[test]
    fn a_document_that_is_not_a_page_is_invalid() {
        let truncated = "<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>";
        let bad_name = "<ListBucketResult><EncodingType>url</EncodingType><Contents><Key>%ff</Key>\
                        <Size>1</Size>\
                        </Contents></ListBucketResult>";
        let huge = "<ListBucketResult><Contents><Key>k</Key><Size>9223372036854775808</Size></Contents>\
                    </ListBucketResult>";
        let welcome = "<html><body>Welcome. Please log in.</body></html>";
        let late = "<Error><Code>InternalError</Code></Error>";
        for document in ["", "<html>", truncated, bad_name, huge, welcome, late] {
            assert!(parse_list_page(document.as_bytes()).is_err(), "{document}");
        }
    }

    #[test]
    fn an_error_has_a_code_and_a_message() {
        let document = b"<Error><Code>NoSuchKey</Code><Message>No.</Message><Key>k</Key></Error>";
        assert_eq!(parse_error(document), ("NoSuchKey".into(), "No.".into()));
        assert_eq!(parse_error(b"<html>"), (String::new(), String::new()));
    }
}

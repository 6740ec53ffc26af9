//! Requests that change an origin, and their results.
//!
//! Headers keep the names of S3 and pass unchanged: metadata, conditions and checksums. Invariant: a
//! successful result means that the write is stored. After an error,
//! [`OriginError::is_undone`](super::OriginError::is_undone) is true if the write certainly had no effect.
//!
//! A write that a power failure interrupts was not acknowledged: it is stored whole, or not at all.

use super::read::check_length;
use super::{ListQuery, OriginBody, OriginError};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, header};
use mlgw_formats::schema::Pair;
use quick_xml::escape::escape;
use tokio::sync::oneshot;

/// Bytes of an object or part to write.
pub enum OriginContent {
    /// Bytes in memory, which can be sent again.
    Whole(Bytes),
    /// Bytes that arrive from a client, which can be sent only once.
    Streaming(Streamed),
}

impl OriginContent {
    /// Number of bytes.
    #[must_use]
    pub fn length(&self) -> u64 {
        match self {
            Self::Whole(bytes) => bytes.len() as u64,
            Self::Streaming(streamed) => streamed.bytes,
        }
    }
}

/// Bytes that arrive from a client while they are sent. If they end early, the origin does not receive the
/// rest and discards the write.
pub struct Streamed {
    /// Number of bytes.
    pub bytes: u64,
    /// Byte stream.
    pub pieces: OriginBody,
    /// Checksum that is known only after the last byte.
    pub trailer: Option<ChecksumTrailer>,
}

/// Checksum sent after the bytes that it covers.
pub struct ChecksumTrailer {
    /// Header name, such as `x-amz-checksum-crc32`.
    pub name: HeaderName,
    /// Length of the value as text, in bytes.
    pub value_bytes: usize,
    /// Value, sent before the last piece of the stream.
    pub value: oneshot::Receiver<String>,
}

/// Result of a write: the response headers that S3 clients understand, the ETag among them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OriginWriteReceipt {
    /// Response headers.
    pub headers: HeaderMap,
    /// True if the ETag proves nothing, so that a HEAD must confirm the write.
    pub is_unproven: bool,
}

impl OriginWriteReceipt {
    /// Returns the ETag without quotes, if the response has one.
    #[must_use]
    pub fn etag(&self) -> Option<String> {
        let etag = self.headers.get(header::ETAG)?.to_str().ok()?;
        Some(etag.trim().trim_matches('"').to_owned())
    }
}

/// Builds the CompleteMultipartUpload document. A part consists of its number, its ETag without quotes, and
/// its checksum elements.
#[must_use]
pub fn complete_document<'p>(parts: impl Iterator<Item = (u32, &'p str, Vec<Pair>)>) -> Bytes {
    let mut out = "<CompleteMultipartUpload xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">".to_owned();
    for (number, etag, checksums) in parts {
        out += &format!("<Part><PartNumber>{number}</PartNumber><ETag>&quot;{}&quot;</ETag>", escape(etag));
        for Pair { name, value } in checksums {
            out += &format!("<{name}>{}</{name}>", escape(&*value));
        }
        out += "</Part>";
    }
    Bytes::from(out + "</CompleteMultipartUpload>")
}

/// Result of a copy or of a completed upload.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OriginCopyReceipt {
    /// ETag without quotes.
    pub etag: String,
    /// Time of the last change in milliseconds since 1970; the answer to a completed upload does not contain
    /// it.
    pub modified_ms: i64,
    /// Checksum elements, such as `ChecksumCRC32`.
    pub checksums: Vec<Pair>,
    /// Response headers that S3 clients understand.
    pub headers: HeaderMap,
}

/// Reference to a multipart upload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OriginUploadRef<'a> {
    /// Key of the future object.
    pub key: &'a str,
    /// Upload id assigned by the origin.
    pub id: &'a str,
}

/// Result of creating a multipart upload.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CreatedOriginUpload {
    /// Upload id.
    pub id: String,
    /// Response headers that S3 clients understand.
    pub headers: HeaderMap,
}

/// Page of parts of a multipart upload.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PartPage {
    /// Parts by ascending number.
    pub parts: Vec<PartLine>,
    /// Checksum algorithm, if the upload was created with one.
    pub checksum_algorithm: Option<String>,
    /// `COMPOSITE` or `FULL_OBJECT`, if the upload was created with a checksum algorithm.
    pub checksum_type: Option<String>,
    /// Storage class.
    pub storage_class: String,
    /// Part number after which the next page begins; `None` on the last page.
    pub next: Option<u32>,
}

/// Part of a multipart upload, as a listing describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PartLine {
    /// Part number.
    pub number: u32,
    /// ETag without quotes.
    pub etag: String,
    /// Length in bytes.
    pub size: u64,
    /// Time of the last write in milliseconds since 1970.
    pub modified_ms: i64,
    /// Checksum elements.
    pub checksums: Vec<Pair>,
}

/// Parameters of a listing of multipart uploads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UploadsQuery {
    /// Prefix, delimiter and page length. Uploads are listed after those of the key `start_after`.
    pub keys: ListQuery,
    /// Upload id within the key `start_after` after which uploads are listed.
    pub id_marker: String,
}

/// Page of multipart uploads in progress.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UploadPage {
    /// Uploads by key; within a key, in the order of the origin.
    pub uploads: Vec<UploadLine>,
    /// Prefixes of the groups of further keys.
    pub groups: Vec<String>,
    /// Key and upload id after which the next page begins; `None` on the last page.
    pub next: Option<(String, String)>,
}

/// Multipart upload in progress, as a listing describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UploadLine {
    /// Key of the future object.
    pub key: String,
    /// Upload id.
    pub id: String,
    /// Creation time in milliseconds since 1970.
    pub initiated_ms: i64,
    /// Storage class.
    pub storage_class: String,
    /// Checksum elements.
    pub checksums: Vec<Pair>,
}

impl PartPage {
    /// Returns the page if it has at most `max` parts and its continuation lies after `after`, so that a
    /// listing makes progress.
    pub(crate) fn within(self, after: u32, max: usize) -> Result<Self, OriginError> {
        check_length(self.parts.len(), max)?;
        match self.next {
            Some(next) if next <= after && max > 0 => Err(OriginError::InvalidResponse(format!(
                "the list of parts after {after} continues at {next}"
            ))),
            _ => Ok(self),
        }
    }
}

impl UploadPage {
    /// Returns the page if it lies within `query` and its continuation advances, so that a listing makes
    /// progress.
    pub(crate) fn within(self, query: &UploadsQuery) -> Result<Self, OriginError> {
        let UploadsQuery { keys, id_marker } = query;
        check_length(self.uploads.len() + self.groups.len(), keys.max_keys)?;
        let names = self.uploads.iter().map(|upload| &upload.key).chain(&self.groups);
        if let Some(name) = names.into_iter().find(|name| !name.starts_with(&keys.prefix)) {
            return Err(OriginError::InvalidResponse(format!(
                "{name:?} does not begin with {:?}",
                keys.prefix
            )));
        }
        let is_back = |(key, id): &(String, String)| {
            *key < keys.start_after || (*key == keys.start_after && id == id_marker)
        };
        match &self.next {
            Some(next) if is_back(next) => Err(OriginError::InvalidResponse(format!(
                "the list of uploads after {:?} continues at {:?}",
                keys.start_after, next.0
            ))),
            _ => Ok(self),
        }
    }
}

/// XML document that passes unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OriginDocument {
    /// Text of the document.
    pub text: String,
    /// Response headers that S3 clients understand.
    pub headers: HeaderMap,
}

#[cfg(test)]
mod tests {
    use super::{Pair, PartLine, PartPage, UploadLine, UploadPage, UploadsQuery, complete_document};
    use crate::origin::ListQuery;

    #[test]
    fn parts_lie_within_their_query() {
        let page =
            |parts, next| PartPage { parts: vec![PartLine::default(); parts], next, ..PartPage::default() };
        assert!(page(2, Some(5)).within(4, 2).is_ok() && page(0, None).within(4, 2).is_ok());
        assert!(page(3, None).within(4, 2).is_err() && page(1, Some(4)).within(4, 2).is_err());
        assert!(page(0, Some(4)).within(4, 0).is_ok(), "none were requested");
    }

    #[test]
    fn uploads_lie_within_their_query() {
        let keys =
            ListQuery { prefix: "p/".into(), start_after: "p/b".into(), max_keys: 2, ..ListQuery::default() };
        let query = UploadsQuery { keys, id_marker: "u".into() };
        let upload = |key: &str| UploadLine { key: key.into(), id: "u".into(), ..UploadLine::default() };
        let page = |keys: &[&str], next: Option<(&str, &str)>| UploadPage {
            uploads: keys.iter().map(|key| upload(key)).collect(),
            groups: Vec::new(),
            next: next.map(|(key, id)| (key.into(), id.into())),
        };
        assert!(page(&["p/b", "p/c"], Some(("p/b", "v"))).within(&query).is_ok());
        for (keys, next) in [
            (&["q"][..], None),
            (&["p/b", "p/c", "p/d"], None),
            (&["p/b"], Some(("p/b", "u"))),
            (&["p/b"], Some(("p/a", "v"))),
        ] {
            assert!(page(keys, next).within(&query).is_err(), "{keys:?} {next:?}");
        }
    }

    #[test]
    fn an_upload_is_completed_by_its_parts_in_order() {
        let parts = [(1, "a", vec![Pair::new("ChecksumCRC32", "x==")]), (2, "b&", vec![])];
        assert_eq!(
            complete_document(parts.into_iter()),
            "<CompleteMultipartUpload xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">\
             <Part><PartNumber>1</PartNumber><ETag>&quot;a&quot;</ETag><ChecksumCRC32>x==</ChecksumCRC32>\
             </Part>\
             <Part><PartNumber>2</PartNumber><ETag>&quot;b&amp;&quot;</ETag></Part></CompleteMultipartUpload>"
        );
    }
}

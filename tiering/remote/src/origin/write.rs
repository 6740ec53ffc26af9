//! What changes an origin, and what it says of that.
//!
//! Headers have S3's own names and pass as they are: what an object is like, on what conditions, with which
//! checksums. Always: who gets an answer knows that the write is there. Of one that failed,
//! [`OriginError::is_undone`](super::OriginError::is_undone) says whether it surely is not.
//!
//! What power failure interrupts was not acknowledged: it is there whole, or not at all.

use super::read::bounded;
use super::{Body, ListQuery, OriginError};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, header};
use mlgw_formats::schema::Pair;
use quick_xml::escape::escape;
use tokio::sync::oneshot;

/// The bytes of an object or part that is written.
pub enum Content {
    /// They are in memory: they can be sent again.
    Whole(Bytes),
    /// They come as they come, and can be sent once.
    Stream(Streamed),
}

impl Content {
    /// The number of bytes.
    #[must_use]
    pub fn length(&self) -> u64 {
        match self {
            Self::Whole(bytes) => bytes.len() as u64,
            Self::Stream(streamed) => streamed.bytes,
        }
    }
}

/// Bytes that come as they come. When they end early the origin is left without the rest, and discards what
/// it has.
pub struct Streamed {
    /// How many there are.
    pub bytes: u64,
    /// They.
    pub pieces: Body,
    /// The checksum that is known only at their end.
    pub trailer: Option<Trailer>,
}

/// A checksum that follows the bytes that it is of.
pub struct Trailer {
    /// Its header, as `x-amz-checksum-crc32`.
    pub name: HeaderName,
    /// How long its value is, as text.
    pub value_bytes: usize,
    /// The value, before the last piece.
    pub value: oneshot::Receiver<String>,
}

/// What an origin says of a write: those of its headers that clients know, the ETag among them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// They.
    pub headers: HeaderMap,
    /// Whether its ETag proves nothing, so that a HEAD has to show the write.
    pub is_unproven: bool,
}

impl Written {
    /// The ETag without quotes, if the origin says it.
    #[must_use]
    pub fn etag(&self) -> Option<String> {
        let etag = self.headers.get(header::ETAG)?.to_str().ok()?;
        Some(etag.trim().trim_matches('"').to_owned())
    }
}

/// The document that completes an upload of parts with these numbers, ETags without quotes, and elements
/// about their checksums.
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

/// What an origin says of a copy, or of an upload that was completed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Made {
    /// Its ETag, without quotes.
    pub etag: String,
    /// When it changed, as milliseconds since 1970; an upload's answer does not say.
    pub modified_ms: i64,
    /// Elements about its checksums, such as `ChecksumCRC32`.
    pub checksums: Vec<Pair>,
    /// Headers that clients know.
    pub headers: HeaderMap,
}

/// An upload in parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UploadOf<'a> {
    /// The key that it is for.
    pub key: &'a str,
    /// Its id, as the origin gave it.
    pub id: &'a str,
}

/// An upload that was begun.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Begun {
    /// Its id.
    pub id: String,
    /// Headers that clients know.
    pub headers: HeaderMap,
}

/// Parts of an upload.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PartPage {
    /// In the order of their numbers.
    pub parts: Vec<PartLine>,
    /// The algorithm of its checksums, if it was begun with one.
    pub checksum_algorithm: Option<String>,
    /// `COMPOSITE` or `FULL_OBJECT`, likewise.
    pub checksum_type: Option<String>,
    /// Its storage class.
    pub storage_class: String,
    /// The number behind which the next page begins; nothing when this is the last.
    pub next: Option<u32>,
}

/// A part.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PartLine {
    /// Its number.
    pub number: u32,
    /// Its ETag, without quotes.
    pub etag: String,
    /// Its length.
    pub size: u64,
    /// When it was written, as milliseconds since 1970.
    pub modified_ms: i64,
    /// Elements about its checksums.
    pub checksums: Vec<Pair>,
}

/// Which page of uploads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UploadsQuery {
    /// Prefix, delimiter and length of a page; uploads come behind those of the key `start_after`.
    pub keys: ListQuery,
    /// Or behind the one of that key with this id.
    pub id_marker: String,
}

/// Uploads that have not ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UploadPage {
    /// By key, and then as the origin has them.
    pub uploads: Vec<UploadLine>,
    /// What the keys of others begin with.
    pub groups: Vec<String>,
    /// The key and the id behind which the next page begins; nothing when this is the last.
    pub next: Option<(String, String)>,
}

/// An upload.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UploadLine {
    /// The key that it is for.
    pub key: String,
    /// Its id.
    pub id: String,
    /// When it was begun, as milliseconds since 1970.
    pub initiated_ms: i64,
    /// Its storage class.
    pub storage_class: String,
    /// Elements about its checksums.
    pub checksums: Vec<Pair>,
}

impl PartPage {
    /// The page, if it is one of at most `max` parts behind the number `after`: who goes on behind it gets
    /// further.
    pub(crate) fn within(self, after: u32, max: usize) -> Result<Self, OriginError> {
        bounded(self.parts.len(), max)?;
        match self.next {
            Some(next) if next <= after && max > 0 => {
                Err(OriginError::Nonsense(format!("parts behind {after} go on behind {next}")))
            }
            _ => Ok(self),
        }
    }
}

impl UploadPage {
    /// The page, if it is one of those that `query` asks for: who goes on behind it gets further.
    pub(crate) fn within(self, query: &UploadsQuery) -> Result<Self, OriginError> {
        let UploadsQuery { keys, id_marker } = query;
        bounded(self.uploads.len() + self.groups.len(), keys.max_keys)?;
        let names = self.uploads.iter().map(|upload| &upload.key).chain(&self.groups);
        if let Some(name) = names.into_iter().find(|name| !name.starts_with(&keys.prefix)) {
            return Err(OriginError::Nonsense(format!("{name:?} does not begin with {:?}", keys.prefix)));
        }
        let is_back = |(key, id): &(String, String)| {
            *key < keys.start_after || (*key == keys.start_after && id == id_marker)
        };
        match &self.next {
            Some(next) if is_back(next) => Err(OriginError::Nonsense(format!(
                "uploads behind {:?} go on behind {:?}",
                keys.start_after, next.0
            ))),
            _ => Ok(self),
        }
    }
}

/// A document that passes as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Document {
    /// Its text.
    pub text: String,
    /// Headers that clients know.
    pub headers: HeaderMap,
}

#[cfg(test)]
mod tests {
    use super::{Pair, PartLine, PartPage, UploadLine, UploadPage, UploadsQuery, complete_document};
    use crate::origin::ListQuery;

    #[test]
    fn parts_lie_within_what_was_asked_for() {
        let page =
            |parts, next| PartPage { parts: vec![PartLine::default(); parts], next, ..PartPage::default() };
        assert!(page(2, Some(5)).within(4, 2).is_ok() && page(0, None).within(4, 2).is_ok());
        assert!(page(3, None).within(4, 2).is_err() && page(1, Some(4)).within(4, 2).is_err());
        assert!(page(0, Some(4)).within(4, 0).is_ok(), "none were asked for");
    }

    #[test]
    fn uploads_lie_within_what_was_asked_for() {
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
             <Part><PartNumber>1</PartNumber><ETag>&quot;a&quot;</ETag><ChecksumCRC32>x==</ChecksumCRC32></Part>\
             <Part><PartNumber>2</PartNumber><ETag>&quot;b&amp;&quot;</ETag></Part></CompleteMultipartUpload>"
        );
    }
}

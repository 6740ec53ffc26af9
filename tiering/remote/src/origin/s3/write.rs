//! Writes to an S3 origin.
//!
//! Invariants: a 200 whose document is an error, as slow copies return it, is an error. Bytes that were sent
//! are acknowledged by an ETag that is their MD5, or are reported as unproven. A delete returns no document.

use super::outgoing::{Outgoing, broken};
use super::sum::Sum;
use super::{Asked, S3Origin, accepted, head, results, url, xml};
use crate::origin::etag::judge_written;
use crate::origin::retry::Again;
use crate::origin::{Content, Document, Etag, Made, OriginError, Written};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, header};
use mlgw_carrier::Incoming;
use mlgw_formats::schema::Pair;

/// Condition headers: a retry of a write that was already executed would fail because of them.
const CONDITIONS: [&str; 5] = [
    "if-match",
    "if-none-match",
    "x-amz-if-match-last-modified-time",
    "x-amz-if-match-size",
    "x-amz-write-offset-bytes",
];

/// Returns the retry safety of a write with these headers.
fn again(headers: &HeaderMap) -> Again {
    match CONDITIONS.iter().any(|name| headers.contains_key(*name)) {
        true => Again::IfUndone,
        false => Again::Always,
    }
}

impl S3Origin {
    pub(super) async fn put(
        &self,
        key: &str,
        headers: &HeaderMap,
        content: Content,
    ) -> Result<Written, OriginError> {
        self.write("put", &self.base.object(key), headers, content).await
    }

    /// Writes bytes to a URL.
    pub(super) async fn write(
        &self,
        operation: &'static str,
        url: &str,
        headers: &HeaderMap,
        content: Content,
    ) -> Result<Written, OriginError> {
        let (method, again, success) = (Method::PUT, again(headers), accepted::WRITTEN);
        let asked = Asked { operation, method, url, headers, again, long: false, success };
        let mut sent = Sum::of(headers, self.trust);
        let answer = match content {
            Content::Whole(bytes) => {
                let answer = self.again(&asked, || Outgoing::whole(bytes.clone())).await?;
                if Etag::of(answer.headers(), self.trust).is_some_and(|etag| etag.md5().is_some()) {
                    sent.add_whole(&bytes);
                }
                answer
            }
            Content::Stream(streamed) => self.once(&asked, Outgoing::stream(sent.along(streamed))).await?,
        };
        let etag = Etag::of(answer.headers(), self.trust);
        let headers = head::known(answer.headers());
        match judge_written(etag.as_ref(), sent.end(), &self.name) {
            Ok(is_unproven) => Ok(Written { headers, is_unproven }),
            Err(error) if etag.is_none() => Err(self.explained(answer, error).await),
            Err(error) => Err(error),
        }
    }

    /// Adds to an error the code and the message in the document of its response.
    async fn explained(&self, answer: Response<Incoming>, error: OriginError) -> OriginError {
        let document = self.transport.document(answer.into_body(), xml::DOCUMENT_BYTES_MAX).await;
        match document.map(|document| xml::error(&document)) {
            Ok((code, message)) if !code.is_empty() => {
                OriginError::Unconfirmed(format!("{error}, and with the error {code} {message}"))
            }
            _ => error,
        }
    }

    /// Checks that a response has no document, and returns its headers for clients.
    pub(super) async fn nothing(&self, answer: Response<Incoming>) -> Result<HeaderMap, OriginError> {
        let (head, body) = answer.into_parts();
        let document = self.transport.document(body, xml::DOCUMENT_BYTES_MAX).await.map_err(broken)?;
        accepted::nothing(&document)?;
        Ok(head::known(&head.headers))
    }

    pub(super) async fn delete(&self, key: &str, headers: &HeaderMap) -> Result<Written, OriginError> {
        let url = self.base.object(key);
        let (operation, method, success) = ("delete", Method::DELETE, accepted::EMPTY);
        let again = again(headers);
        let asked = Asked { operation, method, url: &url, headers, again, long: false, success };
        let answer = self.again(&asked, Outgoing::nothing).await?;
        Ok(Written { headers: self.nothing(answer).await?, is_unproven: false })
    }

    pub(super) async fn copy(
        &self,
        key: &str,
        source: &str,
        headers: &HeaderMap,
    ) -> Result<Made, OriginError> {
        self.make_copy(&self.base.object(key), source, headers).await
    }

    /// Copies an object of this origin to a URL.
    pub(super) async fn make_copy(
        &self,
        url: &str,
        source: &str,
        headers: &HeaderMap,
    ) -> Result<Made, OriginError> {
        let source = HeaderValue::from_str(&url::source(&self.bucket, source));
        let source = source.map_err(|error| OriginError::Nonsense(error.to_string()))?;
        let mut headers = headers.clone();
        headers.insert(HeaderName::from_static("x-amz-copy-source"), source);
        // A copy of gigabytes that may be in progress is not started a second time.
        let (again, success, method) = (Again::IfUndone, accepted::WRITTEN, Method::PUT);
        let asked = Asked { operation: "copy", method, url, headers: &headers, again, long: true, success };
        let answer = self.again(&asked, || Outgoing::whole(Bytes::new())).await?;
        self.made(answer).await
    }

    /// Parses the result of a copy or of a completed upload, which may be an error after a 200.
    pub(super) async fn made(&self, answer: Response<Incoming>) -> Result<Made, OriginError> {
        let (head, body) = answer.into_parts();
        let document = self.transport.document(body, xml::DOCUMENT_BYTES_MAX).await.map_err(broken)?;
        Ok(Made { headers: head::known(&head.headers), ..results::made(&document)? })
    }

    pub(super) async fn tags(&self, key: &str) -> Result<Vec<Pair>, OriginError> {
        let url = self.base.object_with(key, &[("tagging", "")]);
        results::tags(self.read("get_tags", &url, &HeaderMap::new()).await?.1.as_ref())
    }

    pub(super) async fn set_tags(&self, key: &str, tags: &[Pair]) -> Result<(), OriginError> {
        let url = self.base.object_with(key, &[("tagging", "")]);
        let (method, document) = match tags {
            [] => (Method::DELETE, Bytes::new()),
            tags => (Method::PUT, Bytes::from(results::tagging(tags)?)),
        };
        let (operation, headers) = ("set_tags", xml_headers());
        let (again, success) = (Again::Always, accepted::EMPTY);
        let asked = Asked { operation, method, url: &url, headers: &headers, again, long: false, success };
        let answer = self.again(&asked, || Outgoing::whole(document.clone())).await?;
        self.nothing(answer).await.map(drop)
    }

    pub(super) async fn attributes(&self, key: &str, headers: &HeaderMap) -> Result<Document, OriginError> {
        let url = self.base.object_with(key, &[("attributes", "")]);
        let (headers, document) = self.read("attributes", &url, headers).await?;
        Ok(Document { text: results::attributes(&document)?.to_owned(), headers })
    }

    /// Reads a document, and the headers of its response that clients understand.
    pub(super) async fn read(
        &self,
        operation: &'static str,
        url: &str,
        headers: &HeaderMap,
    ) -> Result<(HeaderMap, Bytes), OriginError> {
        let (head, body) = self.ask(operation, Method::GET, url, headers).await?.into_parts();
        let document = self.transport.document(body, xml::DOCUMENT_BYTES_MAX).await?;
        Ok((head::known(&head.headers), document))
    }
}

/// Headers of an XML document that is sent.
pub(super) fn xml_headers() -> HeaderMap {
    HeaderMap::from_iter([(header::CONTENT_TYPE, HeaderValue::from_static("application/xml"))])
}

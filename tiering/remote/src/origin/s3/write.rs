//! Writes to an S3 origin.
//!
//! Invariants: a 200 whose document is an error, as slow copies return it, is an error. Bytes that were sent
//! are acknowledged by an ETag that is their MD5, or are reported as unproven. A delete returns no document.

use super::outgoing::{OutgoingBody, as_connection_lost};
use super::sent_md5::SentMd5;
use super::transport::OriginPatience;
use super::{OriginRequest, S3Origin, head, results, success, url, xml};
use crate::origin::etag::check_write_etag;
use crate::origin::retry::RetrySafety;
use crate::origin::{
    Etag, OriginContent, OriginCopyReceipt, OriginDocument, OriginError, OriginWriteReceipt,
};
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
fn retry_safety(headers: &HeaderMap) -> RetrySafety {
    match CONDITIONS.iter().any(|name| headers.contains_key(*name)) {
        true => RetrySafety::IfUndone,
        false => RetrySafety::Idempotent,
    }
}

impl S3Origin {
    pub(super) async fn put(
        &self,
        key: &str,
        headers: &HeaderMap,
        content: OriginContent,
    ) -> Result<OriginWriteReceipt, OriginError> {
        self.write("put", &self.base.object(key), headers, content).await
    }

    /// Writes bytes to a URL.
    pub(super) async fn write(
        &self,
        operation: &'static str,
        url: &str,
        headers: &HeaderMap,
        content: OriginContent,
    ) -> Result<OriginWriteReceipt, OriginError> {
        let (method, again, success) = (Method::PUT, retry_safety(headers), success::WRITTEN);
        let patience = OriginPatience::Usual;
        let request =
            OriginRequest { operation, method, url, headers, retry_safety: again, patience, success };
        let mut sent = SentMd5::for_headers(headers, self.trust);
        let answer = match content {
            OriginContent::Whole(bytes) => {
                let answer =
                    self.send_with_retries(&request, || OutgoingBody::in_memory(bytes.clone())).await?;
                if Etag::from_headers(answer.headers(), self.trust).is_some_and(|etag| etag.md5().is_some()) {
                    sent.add_whole(&bytes);
                }
                answer
            }
            OriginContent::Streaming(streamed) => {
                self.send_once(&request, OutgoingBody::streaming(sent.observe(streamed))).await?
            }
        };
        let etag = Etag::from_headers(answer.headers(), self.trust);
        let headers = head::client_headers(answer.headers());
        match check_write_etag(etag.as_ref(), sent.finish(), &self.name) {
            Ok(is_unproven) => Ok(OriginWriteReceipt { headers, is_unproven }),
            Err(error) if etag.is_none() => Err(self.with_document(answer, error).await),
            Err(error) => Err(error),
        }
    }

    /// Adds to an error the code and the message in the document of its response.
    async fn with_document(&self, answer: Response<Incoming>, error: OriginError) -> OriginError {
        let document = self.transport.document(answer.into_body(), xml::DOCUMENT_BYTES_MAX).await;
        match document.map(|document| xml::parse_error(&document)) {
            Ok((code, message)) if !code.is_empty() => {
                OriginError::Unconfirmed(format!("{error}, and with the error {code} {message}"))
            }
            _ => error,
        }
    }

    /// Checks that a response has no document, and returns its headers for clients.
    pub(super) async fn check_no_document(
        &self,
        answer: Response<Incoming>,
    ) -> Result<HeaderMap, OriginError> {
        let (head, body) = answer.into_parts();
        let document =
            self.transport.document(body, xml::DOCUMENT_BYTES_MAX).await.map_err(as_connection_lost)?;
        success::check_empty(&document)?;
        Ok(head::client_headers(&head.headers))
    }

    pub(super) async fn delete(
        &self,
        key: &str,
        headers: &HeaderMap,
    ) -> Result<OriginWriteReceipt, OriginError> {
        let url = self.base.object(key);
        let (operation, method, success) = ("delete", Method::DELETE, success::EMPTY);
        let again = retry_safety(headers);
        let request = OriginRequest {
            operation,
            method,
            url: &url,
            headers,
            retry_safety: again,
            patience: OriginPatience::Usual,
            success,
        };
        let answer = self.send_with_retries(&request, OutgoingBody::empty).await?;
        Ok(OriginWriteReceipt { headers: self.check_no_document(answer).await?, is_unproven: false })
    }

    pub(super) async fn copy(
        &self,
        key: &str,
        source: &str,
        headers: &HeaderMap,
    ) -> Result<OriginCopyReceipt, OriginError> {
        self.make_copy(&self.base.object(key), source, headers).await
    }

    /// Copies an object of this origin to a URL.
    pub(super) async fn make_copy(
        &self,
        url: &str,
        source: &str,
        headers: &HeaderMap,
    ) -> Result<OriginCopyReceipt, OriginError> {
        let source = HeaderValue::from_str(&url::copy_source(&self.bucket, source));
        let source = source.map_err(|error| OriginError::InvalidResponse(error.to_string()))?;
        let mut headers = headers.clone();
        headers.insert(HeaderName::from_static("x-amz-copy-source"), source);
        // A copy of gigabytes that may be in progress is not started a second time.
        let (again, success, method) = (RetrySafety::IfUndone, success::WRITTEN, Method::PUT);
        let request = OriginRequest {
            operation: "copy",
            method,
            url,
            headers: &headers,
            retry_safety: again,
            patience: OriginPatience::Long,
            success,
        };
        let answer = self.send_with_retries(&request, || OutgoingBody::in_memory(Bytes::new())).await?;
        self.copy_receipt(answer).await
    }

    /// Parses the result of a copy or of a completed upload, which may be an error after a 200.
    pub(super) async fn copy_receipt(
        &self,
        answer: Response<Incoming>,
    ) -> Result<OriginCopyReceipt, OriginError> {
        let (head, body) = answer.into_parts();
        let document =
            self.transport.document(body, xml::DOCUMENT_BYTES_MAX).await.map_err(as_connection_lost)?;
        Ok(OriginCopyReceipt {
            headers: head::client_headers(&head.headers),
            ..results::parse_copy_receipt(&document)?
        })
    }

    pub(super) async fn tags(&self, key: &str) -> Result<Vec<Pair>, OriginError> {
        let url = self.base.object_with(key, &[("tagging", "")]);
        results::tags(self.read_document("get_tags", &url, &HeaderMap::new()).await?.1.as_ref())
    }

    pub(super) async fn set_tags(&self, key: &str, tags: &[Pair]) -> Result<(), OriginError> {
        let url = self.base.object_with(key, &[("tagging", "")]);
        let (method, document) = match tags {
            [] => (Method::DELETE, Bytes::new()),
            tags => (Method::PUT, Bytes::from(results::tagging(tags)?)),
        };
        let (operation, headers) = ("set_tags", xml_headers());
        let (again, success) = (RetrySafety::Idempotent, success::EMPTY);
        let request = OriginRequest {
            operation,
            method,
            url: &url,
            headers: &headers,
            retry_safety: again,
            patience: OriginPatience::Usual,
            success,
        };
        let answer = self.send_with_retries(&request, || OutgoingBody::in_memory(document.clone())).await?;
        self.check_no_document(answer).await.map(drop)
    }

    pub(super) async fn attributes(
        &self,
        key: &str,
        headers: &HeaderMap,
    ) -> Result<OriginDocument, OriginError> {
        let url = self.base.object_with(key, &[("attributes", "")]);
        let (headers, document) = self.read_document("attributes", &url, headers).await?;
        Ok(OriginDocument { text: results::attributes(&document)?.to_owned(), headers })
    }

    /// Reads a document, and the headers of its response that clients understand.
    pub(super) async fn read_document(
        &self,
        operation: &'static str,
        url: &str,
        headers: &HeaderMap,
    ) -> Result<(HeaderMap, Bytes), OriginError> {
        let (head, body) = self.send_read(operation, Method::GET, url, headers).await?.into_parts();
        let document = self.transport.document(body, xml::DOCUMENT_BYTES_MAX).await?;
        Ok((head::client_headers(&head.headers), document))
    }
}

/// Headers of an XML document that is sent.
pub(super) fn xml_headers() -> HeaderMap {
    HeaderMap::from_iter([(header::CONTENT_TYPE, HeaderValue::from_static("application/xml"))])
}

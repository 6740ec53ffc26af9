//! Reads an object as a stream.
//!
//! A body that breaks off is continued from its next byte, if the object is still the same one. A whole body
//! is compared with the checksum or the ETag of the object.

use super::body_check::BodyCheck;
use super::client::{S3Client, S3Request, random_fraction};
use super::failure::{Idempotency, S3Failure, WAITS};
use super::path::RemotePath;
use super::range::{ByteRange, ContentRange, parse_content_range};
use backon::{BackoffBuilder as _, ExponentialBackoff};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, header};
use http_body_util::BodyExt as _;
use mlgw_carrier::{Incoming, innermost};
use mlgw_common::time::{sleep, timeout};
use std::ops::Range;
use std::time::Duration;

/// Time limit for the next bytes of a body.
const BODY_TIMEOUT: Duration = Duration::from_mins(1);
/// Largest object whose checksum is requested together with its bytes. A remote-backed bucket fetches a
/// larger one in parallel only if the checksum is requested before.
const CHECKSUM_WITH_BODY_MAX: u64 = 8 << 20;

/// An object that is being read.
pub(super) struct ObjectReader<'a> {
    client: &'a S3Client,
    object: &'a RemotePath,
    body: Incoming,
    /// ETag with which the rest of a broken body is requested.
    etag: Option<HeaderValue>,
    /// Bytes that are still to be read.
    left: Range<u64>,
    check: BodyCheck,
    /// Backoff of the attempts to resume a broken body.
    waits: ExponentialBackoff,
}

impl<'a> ObjectReader<'a> {
    /// Opens a whole object. `listed_size` is its size, if it is known.
    ///
    /// # Errors
    /// The request failed.
    pub(super) async fn open(
        client: &'a S3Client,
        object: &'a RemotePath,
        listed_size: Option<u64>,
    ) -> Result<Self, S3Failure> {
        let request = S3Request::new(Method::GET, object.clone());
        let mode = HeaderValue::from_static("ENABLED");
        let (request, known) = match listed_size {
            Some(size) if size <= CHECKSUM_WITH_BODY_MAX => {
                (request.with_header("x-amz-checksum-mode", mode), None)
            }
            // The GET returns the same error with an error document.
            _ => (request, head(client, object).await.ok()),
        };
        let response = client.send(&request).await?;
        let size = match content_of(&response)? {
            None => size_of(response.headers())?,
            Some(content) if content.is_whole() => content.bytes.end,
            Some(_) => return Err(another_range()),
        };
        let (reader, headers) = Self::reading(client, object, response, 0..size);
        let is_same = |known: &HeaderMap| {
            known.get(header::ETAG).is_some_and(|etag| Some(etag) == headers.get(header::ETAG))
        };
        let headers = known.filter(is_same).unwrap_or(headers);
        Ok(Self { check: BodyCheck::of_headers(&headers), ..reader })
    }

    /// Opens a range of an object.
    ///
    /// # Errors
    /// The request failed.
    pub(super) async fn open_range(
        client: &'a S3Client,
        object: &'a RemotePath,
        range: ByteRange,
    ) -> Result<Self, S3Failure> {
        let request = S3Request::new(Method::GET, object.clone()).with_header("range", range_value(range)?);
        let response = client.send(&request).await?;
        let bytes = held_bytes(&response, range)?;
        Ok(Self::reading(client, object, response, bytes).0)
    }

    /// Returns the reader of a response that holds these bytes, and the headers of the response.
    fn reading(
        client: &'a S3Client,
        object: &'a RemotePath,
        response: Response<Incoming>,
        left: Range<u64>,
    ) -> (Self, HeaderMap) {
        let (head, body) = response.into_parts();
        let etag = strong_etag(&head.headers).cloned();
        let reader = Self { client, object, body, etag, left, check: BodyCheck::None, waits: WAITS.build() };
        (reader, head.headers)
    }

    /// Number of bytes that are still to be read.
    pub(super) const fn bytes_left(&self) -> u64 {
        self.left.end - self.left.start
    }

    /// Returns the next bytes; `None` at the end of a body that is complete and verified.
    ///
    /// # Errors
    /// The body broke off and cannot be continued, or its bytes are wrong.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, S3Failure> {
        while !self.left.is_empty() {
            let broken = match timeout(BODY_TIMEOUT, self.body.frame()).await {
                Ok(Some(Ok(frame))) => match frame.into_data() {
                    Ok(bytes) if bytes.len() as u64 > self.bytes_left() => {
                        return Err(S3Failure::InvalidResponse("more bytes than announced".to_owned()));
                    }
                    Ok(bytes) => {
                        self.left.start += bytes.len() as u64;
                        self.waits = WAITS.build();
                        self.check.update(&bytes);
                        return Ok(Some(bytes));
                    }
                    Err(_trailers) => continue,
                },
                Ok(None) => "the body ended early".to_owned(),
                Ok(Some(Err(error))) => innermost(&error),
                Err(_) => "the body stopped".to_owned(),
            };
            self.resume(S3Failure::CutBody(broken)).await?;
        }
        self.finish()
    }

    fn finish(&mut self) -> Result<Option<Bytes>, S3Failure> {
        let check = std::mem::replace(&mut self.check, BodyCheck::None);
        check.finish().map(|()| None).map_err(S3Failure::Corrupt)
    }

    /// Requests the rest of the body.
    async fn resume(&mut self, broken: S3Failure) -> Result<(), S3Failure> {
        let wait = broken.wait(Idempotency::Idempotent, self.waits.next(), random_fraction());
        let (Some(wait), Some(etag)) = (wait, self.etag.clone()) else { return Err(broken) };
        sleep(wait).await;
        let rest = ByteRange::between(self.left.start, self.left.end);
        let request = S3Request::new(Method::GET, self.object.clone())
            .with_header("range", range_value(rest)?)
            .with_header("if-match", etag.clone());
        let response = self.client.send(&request).await.map_err(S3Failure::of_condition)?;
        if response.headers().get(header::ETAG) != Some(&etag) {
            return Err(S3Failure::Replaced);
        }
        if held_bytes(&response, rest)? != self.left {
            return Err(another_range());
        }
        self.body = response.into_body();
        Ok(())
    }
}

/// Returns the headers of an object, with its checksums.
///
/// # Errors
/// The request failed. The response to a HEAD has no document, so the failure has no code.
pub(super) async fn head(client: &S3Client, object: &RemotePath) -> Result<HeaderMap, S3Failure> {
    let request = S3Request::new(Method::HEAD, object.clone())
        .with_header("x-amz-checksum-mode", HeaderValue::from_static("ENABLED"));
    Ok(client.send(&request).await?.headers().clone())
}

/// Returns the size of an object from its headers.
///
/// # Errors
/// They have none.
pub(super) fn size_of(headers: &HeaderMap) -> Result<u64, S3Failure> {
    let length = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    length.ok_or_else(|| S3Failure::InvalidResponse("no Content-Length".to_owned()))
}

fn range_value(range: ByteRange) -> Result<HeaderValue, S3Failure> {
    HeaderValue::from_str(&range.header()).map_err(|error| S3Failure::Invalid(error.to_string()))
}

/// Returns the ETag of an object, unless it is weak: a condition with a weak one is never met.
pub(super) fn strong_etag(headers: &HeaderMap) -> Option<&HeaderValue> {
    headers.get(header::ETAG).filter(|etag| !etag.as_bytes().starts_with(b"W/"))
}

/// Returns the range that a response holds; `None` if it holds the whole object.
///
/// # Errors
/// The response holds no bytes of an object, or its headers contradict each other.
fn content_of(response: &Response<Incoming>) -> Result<Option<ContentRange>, S3Failure> {
    match response.status() {
        StatusCode::OK => Ok(None),
        StatusCode::PARTIAL_CONTENT => {
            let text = response.headers().get(header::CONTENT_RANGE).and_then(|value| value.to_str().ok());
            let content = text.and_then(parse_content_range);
            let content = content.ok_or_else(|| S3Failure::InvalidResponse("no Content-Range".to_owned()))?;
            // A body in chunks has no length.
            let length = size_of(response.headers()).ok();
            if length.is_some_and(|length| length != content.bytes.end - content.bytes.start) {
                let problem = "Content-Length and Content-Range differ";
                return Err(S3Failure::InvalidResponse(problem.to_owned()));
            }
            Ok(Some(content))
        }
        status => Err(S3Failure::InvalidResponse(format!("{status} instead of an object"))),
    }
}

/// Returns the bytes of a response, which must be those of the requested range.
fn held_bytes(response: &Response<Incoming>, range: ByteRange) -> Result<Range<u64>, S3Failure> {
    let content = content_of(response)?.filter(|content| range.is_held_by(content));
    content.map(|content| content.bytes).ok_or_else(another_range)
}

fn another_range() -> S3Failure {
    S3Failure::InvalidResponse("another range than requested".to_owned())
}

#[cfg(test)]
mod tests {
    use super::ObjectReader;
    use crate::canned_server::{CannedServer, response};
    use crate::s3::failure::S3Failure;
    use crate::s3::path::RemotePath;
    use crate::s3::range::parse_range;

    const OBJECT: &str = "0123456789";

    /// A response to a GET.
    fn answer(status: &str, etag: &str, length: usize, range: &str, body: &str) -> String {
        let length = length.to_string();
        let headers = [("etag", etag), ("content-length", &length), ("content-range", range)];
        let headers: Vec<_> = headers.into_iter().filter(|(_, value)| !value.is_empty()).collect();
        response(status, &headers, body)
    }

    /// Reads an object, or a range of it. Returns the bytes, and the requests.
    fn read(range: &str, responses: Vec<String>) -> (Result<String, S3Failure>, Vec<String>) {
        let server = CannedServer::start(responses);
        let (client, object) = (server.client(), RemotePath::new("b", "k"));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let read = async {
            let mut reader = match range {
                "" => ObjectReader::open(&client, &object, Some(OBJECT.len() as u64)).await?,
                range => ObjectReader::open_range(&client, &object, parse_range(range).unwrap()).await?,
            };
            let mut text = String::new();
            while let Some(bytes) = reader.next().await? {
                text += str::from_utf8(&bytes).unwrap();
            }
            Ok(text)
        };
        (runtime.block_on(read), server.requests())
    }

    #[test]
    fn a_response_of_other_bytes_is_refused() {
        let whole = answer("200 OK", "\"e\"", 10, "", OBJECT);
        let as_range = answer("206 Partial Content", "\"e\"", 10, "bytes 0-9/10", OBJECT);
        let part = answer("206 Partial Content", "\"e\"", 3, "bytes 2-4/10", "234");
        let short = answer("206 Partial Content", "\"e\"", 5, "bytes 0-9/10", "01234");
        for (range, response, bytes) in [
            ("", &whole, Some(OBJECT)),
            ("", &as_range, Some(OBJECT)),
            ("", &part, None),
            ("", &short, None),
            ("0-9", &short, None),
            ("2-4", &part, Some("234")),
            ("2-4", &whole, None),
            ("2-4", &as_range, None),
            ("2-5", &part, None),
            ("-3", &part, None),
            ("0-9", &answer("204 No Content", "\"e\"", 0, "", ""), None),
        ] {
            let (read, _) = read(range, vec![response.clone()]);
            assert_eq!(read.as_deref().ok(), bytes, "{range:?} of {response}");
            assert!(bytes.is_some() || matches!(read, Err(S3Failure::InvalidResponse(_))), "{read:?}");
        }
    }

    #[test]
    fn a_broken_body_continues_only_with_the_same_object() {
        let broken = || answer("200 OK", "\"e\"", 10, "", &OBJECT[..4]);
        let rest = |etag: &str| answer("206 Partial Content", etag, 6, "bytes 4-9/10", &OBJECT[4..]);
        let (whole, requests) = read("", vec![broken(), rest("\"e\"")]);
        assert_eq!(whole.as_deref(), Ok(OBJECT));
        assert!(requests[1].contains("range: bytes=4-9\r\n") && requests[1].contains("if-match: \"e\"\r\n"));
        let gone = answer("412 Precondition Failed", "", 0, "", "");
        for replaced in [gone, rest("\"other\""), rest("")] {
            assert_eq!(read("", vec![broken(), replaced]).0, Err(S3Failure::Replaced));
        }
        let again = answer("200 OK", "\"e\"", 10, "", OBJECT);
        assert!(matches!(read("", vec![broken(), again]).0, Err(S3Failure::InvalidResponse(_))));
        let weak = answer("200 OK", "W/\"e\"", 10, "", &OBJECT[..4]);
        assert!(matches!(read("", vec![weak]).0, Err(S3Failure::CutBody(_))));
    }
}

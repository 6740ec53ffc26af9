//! Reads an object as a stream.
//!
//! A body that breaks off is continued from its next byte, if the object is still the same one. A whole body
//! is compared with the checksum or the ETag of the object.

use super::body_check::BodyCheck;
use super::client::{S3Client, S3Request, random_fraction};
use super::failure::{Repetition, S3Failure, WAITS};
use super::path::RemotePath;
use super::range::{ByteRange, parse_content_range};
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
    etag: Option<HeaderValue>,
    /// Bytes that are still to be read.
    left: Range<u64>,
    check: BodyCheck,
    /// Longest waits before the next tries to continue a broken body.
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
            // A failure is reported by the GET, which has a document that explains it.
            _ => (request, head(client, object).await.ok()),
        };
        let (reader, headers) = Self::start(client, object, &request).await?;
        let etag = headers.get(header::ETAG);
        let headers = known.filter(|known| known.get(header::ETAG) == etag).unwrap_or(headers);
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
        Ok(Self::start(client, object, &request).await?.0)
    }

    async fn start(
        client: &'a S3Client,
        object: &'a RemotePath,
        request: &S3Request,
    ) -> Result<(Self, HeaderMap), S3Failure> {
        let response = client.send(request).await?;
        let left = range_of(&response)?;
        let (head, body) = response.into_parts();
        let etag = head.headers.get(header::ETAG).cloned();
        Ok((
            Self { client, object, body, etag, left, check: BodyCheck::None, waits: WAITS.build() },
            head.headers,
        ))
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
                        return Err(S3Failure::Nonsense("more bytes than announced".to_owned()));
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
            self.resume(S3Failure::Broken(broken)).await?;
        }
        self.finish()
    }

    fn finish(&mut self) -> Result<Option<Bytes>, S3Failure> {
        let check = std::mem::replace(&mut self.check, BodyCheck::None);
        match check.finish() {
            Ok(()) => Ok(None),
            Err(value) => Err(S3Failure::Nonsense(format!("the bytes do not match the {value}"))),
        }
    }

    /// Requests the rest of the body.
    async fn resume(&mut self, broken: S3Failure) -> Result<(), S3Failure> {
        let wait = broken.wait(Repetition::Harmless, self.waits.next(), random_fraction());
        let (Some(wait), Some(etag)) = (wait, self.etag.clone()) else { return Err(broken) };
        sleep(wait).await;
        let rest = ByteRange::between(self.left.start, self.left.end);
        let request = S3Request::new(Method::GET, self.object.clone())
            .with_header("range", range_value(rest)?)
            .with_header("if-match", etag);
        let response = self.client.send(&request).await?;
        if range_of(&response)? != self.left {
            return Err(S3Failure::Nonsense("another range than requested".to_owned()));
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
    length.ok_or_else(|| S3Failure::Nonsense("no Content-Length".to_owned()))
}

fn range_value(range: ByteRange) -> Result<HeaderValue, S3Failure> {
    HeaderValue::from_str(&range.header()).map_err(|error| S3Failure::Invalid(error.to_string()))
}

/// Returns the bytes of the object that a response holds.
fn range_of(response: &Response<Incoming>) -> Result<Range<u64>, S3Failure> {
    if response.status() != StatusCode::PARTIAL_CONTENT {
        return Ok(0..size_of(response.headers())?);
    }
    let text = response.headers().get(header::CONTENT_RANGE).and_then(|value| value.to_str().ok());
    let range = text.and_then(parse_content_range);
    range.ok_or_else(|| S3Failure::Nonsense("no Content-Range".to_owned()))
}

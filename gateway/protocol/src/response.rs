//! Responses: the body type of every response, and small functions that build responses.
//!
//! A body of known length always has a Content-Length, because clients refuse chunked downloads. The one
//! exception is the response of a long copy, which keeps its connection alive with white space.

use bytes::Bytes;
use futures_util::stream::BoxStream;
use futures_util::{Stream, StreamExt};
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use http_body::{Frame, SizeHint};
use mlgw_objects::memory::Account;
use mlgw_wire::error::S3Error;
use std::pin::Pin;
use std::task::{Context, Poll};

/// Error of a body that fails after its head was sent; the connection is closed.
pub type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// Body of a response.
pub enum ResponseBody {
    /// No bytes, or all of them in one piece.
    Full(Option<Bytes>),
    /// A stream of known length.
    Sized {
        /// Bytes still to be sent.
        left_bytes: u64,
        /// The stream.
        stream: BoxStream<'static, Result<Bytes, BodyError>>,
    },
    /// A stream of unknown length: white space, then a document.
    KeptAlive(BoxStream<'static, Result<Bytes, BodyError>>),
}

impl http_body::Body for ResponseBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match self.get_mut() {
            Self::Full(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Sized { left_bytes, stream } => {
                let next = stream.poll_next_unpin(cx);
                if let Poll::Ready(Some(Ok(bytes))) = &next {
                    *left_bytes = left_bytes.saturating_sub(bytes.len() as u64);
                }
                next.map_ok(Frame::data)
            }
            Self::KeptAlive(stream) => stream.poll_next_unpin(cx).map_ok(Frame::data),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Full(bytes) => bytes.is_none(),
            Self::Sized { left_bytes, .. } => *left_bytes == 0,
            Self::KeptAlive(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Full(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |b| b.len() as u64)),
            Self::Sized { left_bytes, .. } => SizeHint::with_exact(*left_bytes),
            Self::KeptAlive(_) => SizeHint::default(),
        }
    }
}

impl ResponseBody {
    /// Returns a body without bytes.
    #[must_use]
    pub const fn empty() -> Self {
        Self::Full(None)
    }

    /// Returns a body of one piece.
    #[must_use]
    pub fn full(bytes: impl Into<Bytes>) -> Self {
        let bytes = bytes.into();
        Self::Full((!bytes.is_empty()).then_some(bytes))
    }

    /// Returns a body of `bytes` bytes, read from `stream`.
    pub fn sized(bytes: u64, stream: impl Stream<Item = Result<Bytes, BodyError>> + Send + 'static) -> Self {
        Self::Sized { left_bytes: bytes, stream: stream.boxed() }
    }
}

impl From<Bytes> for ResponseBody {
    fn from(bytes: Bytes) -> Self {
        Self::full(bytes)
    }
}

/// A response of S3.
pub type S3Response = Response<ResponseBody>;
/// The result of every operation.
pub type S3Result = Result<S3Response, S3Error>;

/// Initial capacity of the header map: enough for the headers of a GET, so that the map does not grow.
const USUAL_HEADERS: usize = 12;

/// Returns a response without a body.
#[must_use]
pub fn empty(status: StatusCode) -> S3Response {
    let mut response = Response::new(ResponseBody::empty());
    *response.status_mut() = status;
    *response.headers_mut() = HeaderMap::with_capacity(USUAL_HEADERS);
    response
}

/// Returns a response with an XML document.
#[must_use]
pub fn xml(document: String) -> S3Response {
    let mut response = Response::new(ResponseBody::full(document));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/xml"));
    response
}

/// Returns a response with a document that may be large, charged to the connection's memory.
///
/// # Errors
/// `SlowDown` if memory is short.
pub fn long_xml(memory: &Account, document: String) -> S3Result {
    let mut response = xml(String::new());
    *response.body_mut() = ResponseBody::full(memory.cover(document.into())?);
    Ok(response)
}

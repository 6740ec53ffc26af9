//! Answers: the body type of every response and the small helpers that build them.
//!
//! A body with a known length always says so, because clients refuse chunked downloads. The one
//! exception keeps a connection alive with white space while a long copy runs.

use bytes::Bytes;
use futures_util::stream::BoxStream;
use futures_util::{Stream, StreamExt};
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use http_body::{Frame, SizeHint};
use mlgw_objects::memory::Account;
use mlgw_wire::error::S3Error;
use std::pin::Pin;
use std::task::{Context, Poll};

/// Why a body that had begun could not be finished; the connection is cut.
pub type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// The body of an answer.
pub enum ResponseBody {
    /// Nothing, or all of it at once.
    Full(Option<Bytes>),
    /// A stream whose length is known.
    Sized {
        /// What is still to come.
        left_bytes: u64,
        /// The bytes.
        stream: BoxStream<'static, Result<Bytes, BodyError>>,
    },
    /// A stream whose length is not known: white space and then a document.
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
    /// No bytes.
    #[must_use]
    pub const fn empty() -> Self {
        Self::Full(None)
    }

    /// A body of one piece.
    #[must_use]
    pub fn full(bytes: impl Into<Bytes>) -> Self {
        let bytes = bytes.into();
        Self::Full((!bytes.is_empty()).then_some(bytes))
    }

    /// A body of `bytes` bytes that come from `stream`.
    pub fn sized(bytes: u64, stream: impl Stream<Item = Result<Bytes, BodyError>> + Send + 'static) -> Self {
        Self::Sized { left_bytes: bytes, stream: stream.boxed() }
    }
}

impl From<Bytes> for ResponseBody {
    fn from(bytes: Bytes) -> Self {
        Self::full(bytes)
    }
}

/// An answer of S3.
pub type S3Response = Response<ResponseBody>;
/// What every operation returns.
pub type S3Result = Result<S3Response, S3Error>;

/// As many headers as describe an object and its answer: its table need not grow.
const USUAL_HEADERS: usize = 12;

/// An answer without a body.
#[must_use]
pub fn empty(status: StatusCode) -> S3Response {
    let mut response = Response::new(ResponseBody::empty());
    *response.status_mut() = status;
    *response.headers_mut() = HeaderMap::with_capacity(USUAL_HEADERS);
    response
}

/// A document.
#[must_use]
pub fn xml(document: String) -> S3Response {
    let mut response = Response::new(ResponseBody::full(document));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/xml"));
    response
}

/// A document that may be large, with the memory that it takes.
///
/// # Errors
/// `SlowDown` when there is none.
pub fn long_xml(memory: &Account, document: String) -> S3Result {
    let mut response = xml(String::new());
    *response.body_mut() = ResponseBody::full(memory.cover(document.into())?);
    Ok(response)
}

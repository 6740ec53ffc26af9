//! Request bodies sent to an S3 origin, and the side that is waited for while they are sent.
//!
//! Invariant: a streaming body has exactly as many bytes as its headers promise, or it ends with an error;
//! then the connection is closed and the origin stores nothing. Time spent waiting for this gateway's client
//! does not count against the origin.

use super::chunked;
use crate::origin::{OriginBody, OriginError, Streamed};
use bytes::Bytes;
use futures_util::StreamExt as _;
use http::{HeaderMap, HeaderName, HeaderValue, header};
use http_body::{Frame, SizeHint};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full};
use mlgw_carrier::SignableBody;
use mlgw_common::time::Instant;
use parking_lot::Mutex;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::Duration;

/// Body of a request.
pub(super) type OriginRequestBody = UnsyncBoxBody<Bytes, io::Error>;

/// Body with its headers, its part of the signature, and its progress.
pub(super) struct OutgoingBody {
    pub(super) body: OriginRequestBody,
    /// Headers that describe the body.
    pub(super) headers: HeaderMap,
    /// Form in which the signature covers the body.
    pub(super) signable: SignableBody<'static>,
    pub(super) progress: Arc<SendProgress>,
}

impl OutgoingBody {
    /// Creates an empty body without a Content-Length, as reads send it.
    pub(super) fn empty() -> Self {
        Self::unsigned(http_body_util::Empty::new().map_err(|never| match never {}).boxed_unsync())
    }

    /// Creates a body of bytes in memory. The Content-Length is sent even if it is 0.
    pub(super) fn in_memory(bytes: Bytes) -> Self {
        let (length, sent) = (HeaderValue::from(bytes.len()), bytes.len() as u64);
        let mut outgoing = Self::unsigned(Full::new(bytes).map_err(|never| match never {}).boxed_unsync());
        outgoing.headers.insert(header::CONTENT_LENGTH, length);
        outgoing.progress.sent_bytes.store(sent, Relaxed);
        outgoing
    }

    fn unsigned(body: OriginRequestBody) -> Self {
        let (headers, turn) = (HeaderMap::new(), Arc::new(SendProgress::waiting_for_origin()));
        Self { body, headers, signable: SignableBody::UnsignedPayload, progress: turn }
    }

    /// Creates a body of bytes that arrive while they are sent.
    pub(super) fn streaming(streamed: Streamed) -> Self {
        let turn = Arc::new(SendProgress::waiting_for_origin());
        let mut headers = HeaderMap::new();
        let Streamed { bytes, pieces, trailer } = streamed;
        let (bytes, pieces, signable) = match trailer {
            None => (bytes, pieces, SignableBody::UnsignedPayload),
            Some(trailer) => {
                headers.insert(
                    HeaderName::from_static("x-amz-decoded-content-length"),
                    HeaderValue::from(bytes),
                );
                headers.insert(
                    HeaderName::from_static("x-amz-trailer"),
                    HeaderValue::from(trailer.name.clone()),
                );
                headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("aws-chunked"));
                let length = chunked::framed_length(bytes, &trailer);
                let framed = chunked::framed(bytes, pieces, trailer);
                (length, framed, SignableBody::StreamingUnsignedPayloadTrailer)
            }
        };
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from(bytes));
        let body = ExactLengthBody { pieces, left: bytes, turn: turn.clone() }.boxed_unsync();
        Self { body, headers, signable, progress: turn }
    }
}

/// Adds the headers of a body to those of its object. The encoding of the transfer precedes the object's own
/// Content-Encoding.
pub(super) fn merge_headers(headers: HeaderMap, to: &mut HeaderMap) {
    for (name, value) in headers {
        let Some(name) = name else { continue };
        let own = to.get(&name).filter(|_| name == header::CONTENT_ENCODING);
        let both = own.and_then(|own| Some(format!("{},{}", value.to_str().ok()?, own.to_str().ok()?)));
        to.insert(name, both.and_then(|both| HeaderValue::from_str(&both).ok()).unwrap_or(value));
    }
}

/// Progress of a request: the side that is waited for, and the bytes sent.
#[derive(Debug)]
pub(super) struct SendProgress {
    /// Start of the wait for the origin; `None` while the client is waited for.
    origin_since: Mutex<Option<Instant>>,
    /// Bytes that the connection accepted.
    sent_bytes: AtomicU64,
}

impl SendProgress {
    fn waiting_for_origin() -> Self {
        Self { origin_since: Mutex::new(Some(Instant::now())), sent_bytes: AtomicU64::new(0) }
    }

    fn set_origin_since(&self, since: Option<Instant>) {
        *self.origin_since.lock() = since;
    }

    /// Returns the number of bytes sent.
    pub(super) fn sent_bytes(&self) -> u64 {
        self.sent_bytes.load(Relaxed)
    }

    /// Returns the time that the origin has left of `patience`; `None` if it has expired.
    pub(super) fn time_left(&self, patience: Duration) -> Option<Duration> {
        match *self.origin_since.lock() {
            None => Some(patience),
            Some(since) => patience.checked_sub(since.elapsed()).filter(|left| !left.is_zero()),
        }
    }
}

/// Stream that is checked to have exactly the announced length.
struct ExactLengthBody {
    pieces: OriginBody,
    left: u64,
    turn: Arc<SendProgress>,
}

impl http_body::Body for ExactLengthBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let this = self.get_mut();
        let wrong = |why: &str| Some(Err(io::Error::other(why.to_owned())));
        match this.pieces.poll_next_unpin(cx) {
            Poll::Pending => {
                this.turn.set_origin_since(None);
                Poll::Pending
            }
            Poll::Ready(next) => {
                this.turn.set_origin_since(Some(Instant::now()));
                Poll::Ready(match next {
                    Some(Ok(piece)) => match this.left.checked_sub(piece.len() as u64) {
                        Some(left) => {
                            this.left = left;
                            this.turn.sent_bytes.fetch_add(piece.len() as u64, Relaxed);
                            Some(Ok(Frame::data(piece)))
                        }
                        None => wrong("the body has more bytes than declared"),
                    },
                    Some(Err(error)) => Some(Err(io::Error::other(error))),
                    None if this.left == 0 => None,
                    None => wrong("the client's body was aborted"),
                })
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

/// Turns an unreachable origin into a lost connection: a write whose response broke off may have been
/// executed.
pub(super) fn as_connection_lost(error: OriginError) -> OriginError {
    match error {
        OriginError::Unreachable(why) => OriginError::ConnectionLost(why),
        error => error,
    }
}

#[cfg(test)]
mod tests {
    use super::{OutgoingBody, SendProgress};
    use crate::origin::{OriginError, Streamed};
    use bytes::Bytes;
    use futures_util::stream::{self, StreamExt as _};
    use http_body_util::BodyExt as _;
    use std::time::Duration;

    async fn sent(bytes: u64, pieces: Vec<Result<Bytes, OriginError>>) -> Option<Bytes> {
        let streamed = Streamed { bytes, pieces: stream::iter(pieces).boxed(), trailer: None };
        Some(OutgoingBody::streaming(streamed).body.collect().await.ok()?.to_bytes())
    }

    #[tokio::test]
    async fn a_stream_has_the_announced_length_or_fails() {
        let piece = |text: &'static str| Ok(Bytes::from_static(text.as_bytes()));
        assert_eq!(sent(5, vec![piece("he"), piece("llo")]).await, Some(Bytes::from_static(b"hello")));
        assert_eq!(sent(5, vec![piece("he")]).await, None);
        assert_eq!(sent(5, vec![piece("he"), piece("llo!")]).await, None);
        assert_eq!(sent(5, vec![piece("he"), Err(OriginError::TimedOut)]).await, None);
    }

    #[test]
    fn waiting_for_the_client_does_not_use_up_the_origins_time() {
        let turn = SendProgress::waiting_for_origin();
        assert!(
            turn.time_left(Duration::from_secs(60)).is_some() && turn.time_left(Duration::ZERO).is_none()
        );
        turn.set_origin_since(None);
        assert_eq!(turn.time_left(Duration::ZERO), Some(Duration::ZERO));
    }
}

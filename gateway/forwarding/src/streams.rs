//! The transport as forwarding uses it: one stream to a member, with a head and a body in each direction.

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http_body::{Body, Frame};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Empty};
use mlgw_common::NodeId;
use std::error::Error;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

/// Error of a stream that broke off.
pub type StreamFault = Box<dyn Error + Send + Sync>;

/// One direction of a stream, after its head.
pub type MemberBody = UnsyncBoxBody<Bytes, StreamFault>;

/// Result of a poll of a direction.
pub(crate) type PolledFrame = Poll<Option<Result<Frame<Bytes>, StreamFault>>>;

/// Polls a body for its next bytes, which are not empty. Trailers of HTTP are skipped: they have no meaning
/// in S3, and those of aws-chunked are part of the bytes.
pub(crate) fn poll_bytes<B>(body: &mut B, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, B::Error>>>
where
    B: Body<Data = Bytes> + Unpin,
{
    loop {
        match ready!(Pin::new(&mut *body).poll_frame(cx)) {
            Some(Ok(frame)) => {
                let Ok(bytes) = frame.into_data() else { continue };
                if !bytes.is_empty() {
                    return Poll::Ready(Some(Ok(bytes)));
                }
            }
            Some(Err(error)) => return Poll::Ready(Some(Err(error))),
            None => return Poll::Ready(None),
        }
    }
}

/// Returns a direction without bytes.
#[must_use]
pub fn empty_body() -> MemberBody {
    UnsyncBoxBody::new(Empty::new().map_err(|never| match never {}))
}

/// The other side's half of a stream.
pub struct OpenedStream {
    /// Its head.
    pub head: Bytes,
    /// Its body.
    pub body: MemberBody,
}

/// Error of opening a stream.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamOpenError {
    /// Nothing of the request reached the member.
    #[error("the member cannot be reached: {0}")]
    NotSent(String),
    /// As many streams to the member are open as there may be. Nothing of the request reached it.
    #[error("no stream to the member is free: {0}")]
    Busy(String),
    /// The stream broke off before the head of the other side arrived.
    #[error("the connection to the member broke off: {0}")]
    Lost(String),
}

/// Opens streams to other members.
///
/// An implementation keeps these promises:
/// - The future is ready when the other side's head has arrived, whether or not `body` was read.
/// - Both bodies flow at the same time and with flow control: a side that does not read stops the other side.
/// - An error of `body`, or a drop of the returned body before its end, ends the stream: the other side's
///   body ends with an error, and its answer is dropped. The end of `body` without an error is the only clean
///   end that the other side sees.
/// - When the stream has ended, or the future or the returned body was dropped, `body` is dropped or polled
///   again.
pub trait MemberStreams: Send + Sync + 'static {
    /// Returns true if `member` has announced that it stops, or has not begun to serve. It is tried last.
    fn is_stopping(&self, member: NodeId) -> bool;

    /// Opens a stream to `member`. It does not wait for a free one.
    fn open(
        &self,
        member: NodeId,
        head: Bytes,
        body: MemberBody,
    ) -> BoxFuture<'_, Result<OpenedStream, StreamOpenError>>;
}

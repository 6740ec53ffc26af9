//! The answer of a member as bytes: its frames, then its body.
//!
//! A transport polls an answer only while the other side has room for bytes, so the handler of a change runs
//! in a task of its own. Dropping the stream drops the handler.

use crate::answer::{AnswerFrame, ForwardedAnswerHead};
use crate::streams::{PolledFrame, StreamFault};
use bytes::{Bytes, BytesMut};
use http::Response;
use http_body::{Body, Frame};
use mlgw_common::limits::SMALL_BODY_BYTES;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::sync::oneshot;

/// Initial capacity for frames: the head of a usual answer.
const USUAL_HEAD_BYTES: usize = 1024;

/// Bytes of an answer. `F` is the future of the answer, `B` its body, `K` is kept until the stream is
/// dropped.
pub struct AnswerStream<F, B, K> {
    state: AnswerProgress<F, B>,
    _kept: K,
}

enum AnswerProgress<F, B> {
    /// The handler has not answered.
    Awaited { answer: F, wanted: Option<oneshot::Receiver<()>> },
    /// The head was sent.
    Body(B),
    /// Everything was sent, or the stream failed.
    Ended,
}

impl<F, B, K> AnswerStream<F, B, K> {
    /// Returns the bytes of `answer`. `wanted` is notified when the handler reads the body of the request; it
    /// is `None` if the forwarding node does not wait for that.
    pub const fn new(answer: F, wanted: Option<oneshot::Receiver<()>>, kept: K) -> Self {
        Self { state: AnswerProgress::Awaited { answer, wanted }, _kept: kept }
    }
}

impl<F, B, K> Body for AnswerStream<F, B, K>
where
    F: Future<Output = Result<Response<B>, StreamFault>> + Unpin,
    B: Body<Data = Bytes, Error = StreamFault> + Unpin,
    K: Unpin,
{
    type Data = Bytes;
    type Error = StreamFault;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> PolledFrame {
        let this = self.get_mut();
        let polled = match &mut this.state {
            AnswerProgress::Awaited { answer, wanted } => match ready!(poll_head(answer, wanted, cx)) {
                Ok(HeadProgress::Request(bytes)) => return Poll::Ready(Some(Ok(Frame::data(bytes)))),
                Ok(HeadProgress::Answered(response)) => match begin(response, cx) {
                    Ok((bytes, rest)) => {
                        this.state = rest.map_or(AnswerProgress::Ended, AnswerProgress::Body);
                        return Poll::Ready(Some(Ok(Frame::data(bytes))));
                    }
                    Err(error) => Some(Err(error)),
                },
                Err(error) => Some(Err(error)),
            },
            AnswerProgress::Body(body) => ready!(Pin::new(body).poll_frame(cx)),
            AnswerProgress::Ended => None,
        };
        if !matches!(polled, Some(Ok(_))) {
            this.state = AnswerProgress::Ended;
        }
        Poll::Ready(polled)
    }

    fn is_end_stream(&self) -> bool {
        match &self.state {
            AnswerProgress::Awaited { .. } => false,
            AnswerProgress::Body(body) => body.is_end_stream(),
            AnswerProgress::Ended => true,
        }
    }
}

/// Next event before the body of an answer.
enum HeadProgress<B> {
    /// The handler reads the body of the request. The value is the frame.
    Request(Bytes),
    /// The handler has answered.
    Answered(Response<B>),
}

fn poll_head<F, B>(
    answer: &mut F,
    wanted: &mut Option<oneshot::Receiver<()>>,
    cx: &mut Context<'_>,
) -> Poll<Result<HeadProgress<B>, StreamFault>>
where
    F: Future<Output = Result<Response<B>, StreamFault>> + Unpin,
{
    if let Some(receiver) = wanted
        && let Poll::Ready(notified) = Pin::new(receiver).poll(cx)
    {
        *wanted = None;
        if notified.is_ok() {
            let mut bytes = BytesMut::new();
            return Poll::Ready(match AnswerFrame::BodyRequest.write(&mut bytes) {
                Ok(()) => Ok(HeadProgress::Request(bytes.freeze())),
                Err(error) => Err(error.into()),
            });
        }
    }
    Pin::new(answer).poll(cx).map_ok(HeadProgress::Answered)
}

/// Returns the head of an answer as bytes, with its body if it is small and ready, and the rest of the body.
fn begin<B>(mut response: Response<B>, cx: &mut Context<'_>) -> Result<(Bytes, Option<B>), StreamFault>
where
    B: Body<Data = Bytes, Error = StreamFault> + Unpin,
{
    let body_bytes = response.body().size_hint().exact();
    let head = ForwardedAnswerHead::of(&mut response, body_bytes);
    let mut bytes = BytesMut::with_capacity(USUAL_HEAD_BYTES);
    AnswerFrame::Head(head).write(&mut bytes)?;
    let mut body = response.into_body();
    let is_small = body_bytes.is_some_and(|bytes| bytes <= SMALL_BODY_BYTES as u64);
    while is_small && !body.is_end_stream() {
        match Pin::new(&mut body).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => {
                if let Ok(data) = frame.into_data() {
                    bytes.extend_from_slice(&data);
                }
            }
            Poll::Ready(Some(Err(error))) => return Err(error),
            Poll::Ready(None) => return Ok((bytes.freeze(), None)),
            Poll::Pending => break,
        }
    }
    let rest = (!body.is_end_stream()).then_some(body);
    Ok((bytes.freeze(), rest))
}

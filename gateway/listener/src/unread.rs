//! Handles the remainder of a request's body that its handler has not read when the answer is ready.
//!
//! On HTTP/1 the remainder precedes the next request of the connection, so the answer may promise another
//! request only after the remainder was read. A small remainder is read before the answer is sent, for at
//! most [`UNREAD_BODY_WAIT`]. If it is large, late or broken, or if the client waits for `100 Continue` and
//! may never send it, the answer carries `Connection: close`. The connection then lingers
//! ([`super::linger`]), because closing it while bytes arrive would make the client's system discard the
//! answer.
//!
//! On HTTP/2 other requests proceed in parallel. A remainder is still read for a while, also after the
//! answer: a client whose stream is reset while it sends often reports the reset instead of the answer.
//!
//! The remainder is taken over when the handler drops its body, however the handler stores it, so the rule
//! holds for every request of every listener. All state is in memory and empty after a restart.

use super::room::ConnectionState;
use super::watch::InFlight;
use bytes::Bytes;
use http::{HeaderValue, Response, Version, header};
use http_body::Body;
use http_body_util::BodyExt as _;
use mlgw_common::limits::UNREAD_BODY_BYTES_MAX;
use mlgw_common::time::{Instant, Sleep, sleep, timeout};
use mlgw_objects::memory::RequestMemory;
use parking_lot::Mutex;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio_util::sync::WaitForCancellationFutureOwned;

/// Time that an answer waits for a small remainder. A client that sends its body immediately needs a round
/// trip.
const UNREAD_BODY_WAIT: Duration = Duration::from_secs(1);
/// Interval between checks whether others wait for the memory of the connection.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// Time that the remainder of an HTTP/2 request is read after its answer.
const STREAM_LINGER: Duration = Duration::from_secs(5);

/// Receives the remainder of one body.
#[derive(Debug)]
pub struct UnreadBodySlot<B>(Arc<Mutex<Option<UnreadBody<B>>>>);

impl<B> Clone for UnreadBodySlot<B> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<B> UnreadBodySlot<B> {
    /// Returns an empty slot.
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::new(Mutex::new(None)))
    }

    /// Stores a remainder in the slot.
    pub fn put(&self, rest: UnreadBody<B>) {
        let before = self.0.lock().replace(rest);
        assert!(before.is_none(), "the remainder of a body is handed back once");
    }
}

impl<B> Default for UnreadBodySlot<B> {
    fn default() -> Self {
        Self::new()
    }
}

/// The remainder of a body. Its request is in flight until it is dropped.
#[derive(Debug)]
pub struct UnreadBody<B> {
    pub(super) body: B,
    /// True if the body was polled at all.
    pub(super) was_polled: bool,
    /// True if reading it has failed.
    pub(super) failed: bool,
    pub(super) _request: Option<InFlight>,
}

/// The properties of a request that decide about its remainder.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestFraming {
    /// HTTP version of the request.
    pub(super) version: Version,
    /// True if the client waits for `100 Continue` before it sends its body.
    pub(super) expects: bool,
    /// True if the client sends no request after this one.
    pub(super) closes: bool,
}

/// The treatment of a remainder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UnreadBodyPlan {
    /// The remainder is read before the answer is sent.
    Read,
    /// The answer is sent immediately, and no request follows it on its connection or stream.
    Leave,
}

/// Facts that decide about a remainder.
#[derive(Clone, Copy, Debug)]
struct RemainderFacts {
    /// True if the client waits for `100 Continue`.
    expects: bool,
    /// True if the body was polled, which sends `100 Continue` to the client.
    was_polled: bool,
    /// True if reading it has failed.
    failed: bool,
    /// Bytes that are left, if known.
    left: Option<u64>,
    /// True if the answer must not wait: others need the memory, or the connection closes.
    is_short: bool,
}

/// Decides about a remainder.
fn plan_unread(facts: RemainderFacts) -> UnreadBodyPlan {
    let may_never_come = facts.expects && !facts.was_polled;
    let is_small = facts.left.is_none_or(|bytes| bytes <= UNREAD_BODY_BYTES_MAX);
    if facts.failed || may_never_come || facts.is_short || !is_small {
        UnreadBodyPlan::Leave
    } else {
        UnreadBodyPlan::Read
    }
}

/// An answer that waits for the remainder of its request's body. It stops waiting when its connection must
/// make room.
pub(super) struct DelayedAnswer<B, R> {
    /// `None` after the answer was returned.
    answer: Option<Response<R>>,
    unread: Option<UnreadBody<B>>,
    bytes: u64,
    until: Instant,
    next_check: Pin<Box<Sleep>>,
    memory: RequestMemory,
    room_needed: Pin<Box<WaitForCancellationFutureOwned>>,
    state: Arc<ConnectionState>,
}

impl<B, R> Drop for DelayedAnswer<B, R> {
    fn drop(&mut self) {
        self.state.activity.end_body_wait();
    }
}

/// Next action for an answer.
pub(super) enum AnswerAction<B, R> {
    /// Send the answer.
    Send(Response<R>),
    /// Send the answer after the remainder was read.
    Wait(Box<DelayedAnswer<B, R>>),
}

/// Decides how to send `answer` after the handler has answered, given the unread body in `slot`. While others
/// wait for `memory`, which the connection occupies, the answer does not wait.
pub(super) fn finish_answer<B, R>(
    slot: &UnreadBodySlot<B>,
    framing: RequestFraming,
    state: &Arc<ConnectionState>,
    memory: &RequestMemory,
    answer: Response<R>,
) -> AnswerAction<B, R>
where
    B: Body<Data = Bytes> + Send + Unpin + 'static,
{
    let rest = slot.0.lock().take();
    let Some(rest) = rest else {
        // Read to its end, or kept by a task that outlives the handler, whose end is unknown.
        let is_kept = Arc::strong_count(&slot.0) > 1;
        return AnswerAction::Send(if is_kept {
            with_connection_close(answer, framing.version)
        } else {
            answer
        });
    };
    if rest.body.is_end_stream() && !rest.failed {
        return AnswerAction::Send(answer);
    }
    // An answer that closes the connection is followed by no request, so it need not wait.
    let closes = answer.headers().get(header::CONNECTION).is_some_and(|value| value == "close");
    let facts = RemainderFacts {
        expects: framing.expects && framing.version == Version::HTTP_11,
        was_polled: rest.was_polled,
        failed: rest.failed,
        left: rest.body.size_hint().exact(),
        is_short: memory.is_short() || closes,
    };
    match plan_unread(facts) {
        UnreadBodyPlan::Leave => AnswerAction::Send(answer_before_unread(answer, rest, framing.version)),
        UnreadBodyPlan::Read => {
            state.activity.begin_body_wait();
            AnswerAction::Wait(Box::new(DelayedAnswer {
                answer: Some(answer),
                unread: Some(rest),
                bytes: 0,
                until: Instant::now() + UNREAD_BODY_WAIT,
                next_check: Box::pin(sleep(CHECK_INTERVAL)),
                memory: memory.clone(),
                room_needed: Box::pin(state.room_needed.clone().cancelled_owned()),
                state: Arc::clone(state),
            }))
        }
    }
}

impl<B, R> DelayedAnswer<B, R>
where
    B: Body<Data = Bytes> + Send + Unpin + 'static,
{
    /// Returns the answer after the remainder was read or abandoned.
    pub(super) fn poll(&mut self, version: Version, cx: &mut Context<'_>) -> Poll<Response<R>> {
        let whole = ready!(self.poll_rest(cx));
        let (answer, rest) = (self.answer.take(), self.unread.take());
        // An answer is taken once.
        let Some(answer) = answer else { return Poll::Pending };
        Poll::Ready(match rest {
            Some(rest) if !whole => answer_before_unread(answer, rest, version),
            _ => answer,
        })
    }

    /// Returns true if the remainder was read to its end.
    fn poll_rest(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
        let Some(rest) = &mut self.unread else { return Poll::Ready(true) };
        loop {
            match Pin::new(&mut rest.body).poll_frame(cx) {
                Poll::Ready(None) => return Poll::Ready(true),
                Poll::Ready(Some(Err(_))) => return Poll::Ready(false),
                Poll::Ready(Some(Ok(frame))) => {
                    self.bytes += frame.data_ref().map_or(0, |data| data.len() as u64);
                    if self.bytes > UNREAD_BODY_BYTES_MAX {
                        return Poll::Ready(false);
                    }
                    if rest.body.is_end_stream() {
                        return Poll::Ready(true);
                    }
                }
                Poll::Pending if self.room_needed.as_mut().poll(cx).is_ready() => return Poll::Ready(false),
                Poll::Pending => {
                    ready!(self.next_check.as_mut().poll(cx));
                    if Instant::now() >= self.until || self.memory.is_short() {
                        return Poll::Ready(false);
                    }
                    self.next_check.as_mut().reset(Instant::now() + CHECK_INTERVAL);
                }
            }
        }
    }
}

/// Returns the answer for a remainder that is not awaited.
fn answer_before_unread<B, R>(answer: Response<R>, rest: UnreadBody<B>, version: Version) -> Response<R>
where
    B: Body<Data = Bytes> + Send + Unpin + 'static,
{
    if version == Version::HTTP_2 && !rest.failed {
        tokio::spawn(timeout(STREAM_LINGER, async move {
            let mut rest = rest;
            while let Some(Ok(_)) = rest.body.frame().await {}
        }));
        return answer;
    }
    with_connection_close(answer, version)
}

/// Returns the answer with `Connection: close`, unless it is HTTP/2.
fn with_connection_close<R>(mut answer: Response<R>, version: Version) -> Response<R> {
    if version <= Version::HTTP_11 {
        answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    answer
}

#[cfg(test)]
mod tests;

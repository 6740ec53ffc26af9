//! The body of a request with a minimum rate: a client that sends almost nothing is cut off.
//!
//! Only the time in which the server waits for the client counts, so a body that the server itself reads
//! slowly is never cut. In each window of such waiting at least `rate_min` bytes a second must arrive, and at
//! least one byte. Otherwise the body ends with [`BodyFault::TooSlow`] and its request with `RequestTimeout`.
//! The rule applies to each body separately, also to one of many on an HTTP/2 connection.
//!
//! A body that is dropped before its end is handed back to its connection ([`super::unread`]).

use super::unread::{UnreadBody, UnreadBodySlot};
use super::watch::{InFlight, MinimumTransferRate};
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use mlgw_common::time::Instant;
use mlgw_common::time::Sleep;
use mlgw_wire::error::{Code, S3Error};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

/// Error of a body that is incomplete.
#[derive(Debug, thiserror::Error)]
pub enum BodyFault {
    /// The client sent too little for too long.
    #[error("the client sends its body too slowly")]
    TooSlow,
    /// The connection or its framing broke.
    #[error(transparent)]
    Connection(#[from] hyper::Error),
}

impl From<BodyFault> for S3Error {
    fn from(fault: BodyFault) -> Self {
        match fault {
            BodyFault::TooSlow => S3Error::new(Code::RequestTimeout),
            BodyFault::Connection(error) => S3Error::new(Code::IncompleteBody).caused_by(error),
        }
    }
}

/// A request's body. Its request counts as in flight until the body is dropped.
#[derive(Debug)]
pub struct PacedRequestBody<B = hyper::body::Incoming> {
    /// `None` after the body was handed back.
    body: Option<B>,
    meter: RateMeter,
    /// True if the body was polled. On HTTP/1.1 the first poll sends `100 Continue`.
    was_polled: bool,
    end: BodyProgress,
    /// Slot for the unread remainder. `None` for a body without bytes.
    unread: Option<UnreadBodySlot<B>>,
    /// Request in flight. `None` for a body without bytes.
    request: Option<InFlight>,
}

/// Progress of reading a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BodyProgress {
    /// More bytes may arrive.
    Open,
    /// The body was read to its end.
    Whole,
    /// The body broke off, or was too slow.
    Failed,
}

#[derive(Debug)]
struct RateMeter {
    min_rate: MinimumTransferRate,
    waited: Duration,
    bytes: u64,
    since: Option<Instant>,
    timer: Option<Pin<Box<Sleep>>>,
}

impl<B: Body> PacedRequestBody<B> {
    /// Applies a minimum rate to `body`. The second value receives the unread remainder when the body is
    /// dropped. It is `None` for a body without bytes.
    pub fn new(
        body: B,
        min_rate: MinimumTransferRate,
        request: impl FnOnce() -> InFlight,
    ) -> (Self, Option<UnreadBodySlot<B>>) {
        let (request, rest) = match body.is_end_stream() {
            true => (None, None),
            false => (Some(request()), Some(UnreadBodySlot::new())),
        };
        let meter = RateMeter { min_rate, waited: Duration::ZERO, bytes: 0, since: None, timer: None };
        (
            Self {
                body: Some(body),
                meter,
                was_polled: false,
                end: BodyProgress::Open,
                unread: rest.clone(),
                request,
            },
            rest,
        )
    }
}

impl<B> Drop for PacedRequestBody<B> {
    fn drop(&mut self) {
        let (Some(slot), Some(body)) = (self.unread.take(), self.body.take()) else { return };
        if self.end != BodyProgress::Whole {
            let failed = self.end == BodyProgress::Failed;
            slot.put(UnreadBody { body, was_polled: self.was_polled, failed, _request: self.request.take() });
        }
    }
}

impl RateMeter {
    fn record_bytes(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
        if let Some(since) = self.since.take() {
            self.waited += since.elapsed();
        }
    }

    /// Records that the server waits for the client, from now on if it did not before.
    fn record_wait(&mut self) {
        let now = Instant::now();
        self.waited += self.since.map_or(Duration::ZERO, |since| now - since);
        self.since = Some(now);
    }

    /// Returns ready when a window of waiting has passed with too few bytes.
    fn poll_too_slow(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            self.record_wait();
            if self.waited >= self.min_rate.window {
                if self.bytes < self.min_rate.bytes_min() {
                    return Poll::Ready(());
                }
                (self.waited, self.bytes) = (Duration::ZERO, 0);
            }
            // Armed once and not for every wait. A timer that fires early is armed again.
            let left = self.min_rate.window - self.waited;
            let timer = self.timer.get_or_insert_with(|| Box::pin(mlgw_common::time::sleep(left)));
            ready!(timer.as_mut().poll(cx));
            self.timer = None;
        }
    }
}

impl<B> Body for PacedRequestBody<B>
where
    B: Body<Data = Bytes> + Unpin,
    BodyFault: From<B::Error>,
{
    type Data = Bytes;
    type Error = BodyFault;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyFault>>> {
        let this = self.get_mut();
        let Some(body) = &mut this.body else { return Poll::Ready(None) };
        this.was_polled = true;
        match Pin::new(body).poll_frame(cx) {
            Poll::Ready(frame) => {
                let bytes =
                    frame.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref()).map_or(0, Bytes::len);
                this.meter.record_bytes(bytes);
                this.end = match &frame {
                    Some(Ok(_)) => BodyProgress::Open,
                    Some(Err(_)) => BodyProgress::Failed,
                    None => BodyProgress::Whole,
                };
                Poll::Ready(frame.map(|frame| frame.map_err(BodyFault::from)))
            }
            Poll::Pending => {
                ready!(this.meter.poll_too_slow(cx));
                this.end = BodyProgress::Failed;
                Poll::Ready(Some(Err(BodyFault::TooSlow)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(SizeHint::default, Body::size_hint)
    }
}

#[cfg(test)]
mod tests {
    use super::{BodyFault, MinimumTransferRate, PacedRequestBody};
    use crate::watch::Activity;
    use bytes::Bytes;
    use http_body::Frame;
    use http_body_util::{BodyExt as _, StreamBody};
    use std::time::Duration;
    use tokio::sync::mpsc;

    type Sender = mpsc::Sender<Result<Frame<Bytes>, BodyFault>>;

    /// Returns a body whose pieces arrive through a channel.
    fn body(
        pace: MinimumTransferRate,
    ) -> (Sender, PacedRequestBody<impl http_body::Body<Data = Bytes, Error = BodyFault> + Unpin>) {
        let (sender, mut pieces) = mpsc::channel(1);
        let stream = futures_util::stream::poll_fn(move |cx| pieces.poll_recv(cx));
        let activity = Activity::new();
        (sender, PacedRequestBody::new(StreamBody::new(stream), pace, || activity.request()).0)
    }

    fn piece(bytes: usize) -> Result<Frame<Bytes>, BodyFault> {
        Ok(Frame::data(Bytes::from(vec![0; bytes])))
    }

    #[tokio::test]
    async fn a_client_that_sends_nothing_is_cut_off() {
        let (_sender, mut body) = body(MinimumTransferRate { window: Duration::from_millis(5), rate_min: 0 });
        assert!(matches!(body.frame().await, Some(Err(BodyFault::TooSlow))));
    }

    /// Returns the error of a body after a whole window of waiting in which `bytes` arrived.
    async fn after_a_window(rate_min: u64, bytes: usize) -> Option<BodyFault> {
        let window = Duration::from_secs(3600);
        let (sender, mut body) = body(MinimumTransferRate { window, rate_min });
        sender.send(piece(bytes)).await.unwrap();
        assert!(matches!(body.frame().await, Some(Ok(_))));
        body.meter.waited = window;
        tokio::select! {
            biased;
            frame = body.frame() => frame.and_then(Result::err),
            () = std::future::ready(()) => None,
        }
    }

    #[tokio::test]
    async fn a_client_below_the_minimum_rate_is_cut_off_and_one_that_keeps_it_is_not() {
        assert!(matches!(after_a_window(1, 3599).await, Some(BodyFault::TooSlow)));
        assert!(after_a_window(1, 3600).await.is_none());
        assert!(after_a_window(0, 1).await.is_none());
    }

    #[tokio::test]
    async fn time_in_which_the_server_does_not_read_does_not_count() {
        let (sender, mut body) = body(MinimumTransferRate { window: Duration::from_millis(20), rate_min: 1 });
        sender.send(piece(1)).await.unwrap();
        assert!(matches!(body.frame().await, Some(Ok(_))));
        // The server is busy for longer than a window.
        mlgw_common::time::sleep(Duration::from_millis(40)).await;
        sender.send(piece(1)).await.unwrap();
        assert!(matches!(body.frame().await, Some(Ok(_))));
    }
}

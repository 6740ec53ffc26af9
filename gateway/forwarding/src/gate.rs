//! The gate between the body of a client and the stream to a member.
//!
//! The transport receives [`GatedBody`] when it opens the stream. It yields nothing until the member has
//! accepted the request and the gate is released: first [`GO`], then the bytes of the client. The gate keeps
//! the client's body, so it can be returned to its connection at any time.
//!
//! Invariants: the client's body is polled only after the release, and if the client waits for
//! `100 Continue`, only after [`BodyGate::open_body`]. A gate that is dropped before its body was sent ends
//! the stream with an error.

use crate::streams::{PolledFrame, StreamFault, poll_bytes};
use bytes::Bytes;
use http_body::{Body, Frame};
use mlgw_wire::error::S3Error;
use parking_lot::Mutex;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// Byte that precedes the body of a request, after which the member carries it out.
pub const GO: u8 = 1;
const GO_PIECE: &[u8] = &[GO];

/// Moment at which the body of the client is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyOpening {
    /// With the release of the gate.
    AtRelease,
    /// When the member's handler reads it, because the client waits for `100 Continue`.
    OnDemand,
}

/// Progress of a request's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GatePhase {
    /// No member has accepted the request on this stream.
    Closed,
    /// [`GO`] is due.
    Released,
    /// [`GO`] was sent. The body follows.
    Sending,
    /// Everything was sent.
    Finished,
    /// The rest of the body is not sent: the answer was complete before it, or its client failed.
    Withheld,
    /// The forwarding node has given up the stream.
    Withdrawn,
}

struct BodyGateState<B> {
    phase: GatePhase,
    is_body_open: bool,
    body: Option<B>,
    /// Error of the client's body, until it is taken.
    fault: Option<S3Error>,
    transport: Option<Waker>,
    forwarder: Option<Waker>,
}

impl<B> BodyGateState<B> {
    fn wake_transport(&mut self) {
        if let Some(waker) = self.transport.take() {
            waker.wake();
        }
    }
}

/// The forwarder's side of a gate.
pub(crate) struct BodyGate<B>(Arc<Mutex<BodyGateState<B>>>);

/// The transport's side of a gate.
pub(crate) struct GatedBody<B>(Arc<Mutex<BodyGateState<B>>>);

/// The forwarding node has given up the stream.
#[derive(Debug, thiserror::Error)]
#[error("the request was withdrawn")]
struct RequestWithdrawn;

/// The client did not send the rest of its body.
#[derive(Debug, thiserror::Error)]
#[error("the body of the client broke off")]
struct ClientBodyBroken;

impl<B> BodyGate<B> {
    /// Returns both sides of a closed gate.
    pub(crate) fn new() -> (Self, GatedBody<B>) {
        let state = Arc::new(Mutex::new(BodyGateState {
            phase: GatePhase::Closed,
            is_body_open: false,
            body: None,
            fault: None,
            transport: None,
            forwarder: None,
        }));
        (Self(Arc::clone(&state)), GatedBody(state))
    }

    /// Sends [`GO`] and then `body`.
    pub(crate) fn release(&self, body: B, opening: BodyOpening) {
        let mut state = self.0.lock();
        assert!(state.phase == GatePhase::Closed, "a gate is released once");
        state.phase = GatePhase::Released;
        state.body = Some(body);
        state.is_body_open = opening == BodyOpening::AtRelease;
        state.wake_transport();
    }

    /// Reads the body of the client from now on.
    pub(crate) fn open_body(&self) {
        let mut state = self.0.lock();
        state.is_body_open = true;
        state.wake_transport();
    }

    /// Waits for an error of the client's body.
    pub(crate) async fn fault(&self) -> S3Error {
        poll_fn(|cx| {
            let mut state = self.0.lock();
            if let Some(fault) = state.fault.take() {
                return Poll::Ready(fault);
            }
            state.forwarder = Some(cx.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// Returns the error of the client's body, if it has failed.
    pub(crate) fn take_fault(&self) -> Option<S3Error> {
        self.0.lock().fault.take()
    }
}

impl<B> BodyGate<B>
where
    B: Body<Data = Bytes> + Unpin,
    S3Error: From<B::Error>,
{
    /// Drops what is left of the client's body, which returns it to its connection. The stream stays open
    /// until the gate is dropped.
    pub(crate) fn withhold_rest(&self) {
        let mut state = self.0.lock();
        state.phase = if state.is_end() { GatePhase::Finished } else { GatePhase::Withheld };
        state.wake_transport();
        let body = state.body.take();
        drop(state);
        drop(body);
    }
}

impl<B> Drop for BodyGate<B> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        if state.phase != GatePhase::Finished {
            state.phase = GatePhase::Withdrawn;
        }
        state.wake_transport();
        let body = state.body.take();
        drop(state);
        drop(body);
    }
}

impl<B> BodyGateState<B>
where
    B: Body<Data = Bytes> + Unpin,
    S3Error: From<B::Error>,
{
    /// Polls the body of the client for its next bytes.
    fn poll_body(&mut self, cx: &mut Context<'_>) -> PolledFrame {
        let Some(body) = self.body.as_mut().filter(|_| self.is_body_open) else {
            self.transport = Some(cx.waker().clone());
            return Poll::Pending;
        };
        let Poll::Ready(polled) = poll_bytes(body, cx) else {
            // The forwarder may take the body.
            self.transport = Some(cx.waker().clone());
            return Poll::Pending;
        };
        Poll::Ready(match polled {
            Some(Ok(bytes)) => Some(Ok(Frame::data(bytes))),
            Some(Err(error)) => {
                self.phase = GatePhase::Withheld;
                self.fault = Some(error.into());
                if let Some(waker) = self.forwarder.take() {
                    waker.wake();
                }
                Some(Err(ClientBodyBroken.into()))
            }
            None => {
                self.phase = GatePhase::Finished;
                None
            }
        })
    }

    /// Returns true if no bytes follow.
    fn is_end(&self) -> bool {
        match self.phase {
            GatePhase::Finished => true,
            // The body need not be open: it has no bytes.
            GatePhase::Sending => self.body.as_ref().is_some_and(Body::is_end_stream),
            GatePhase::Closed | GatePhase::Released | GatePhase::Withheld | GatePhase::Withdrawn => false,
        }
    }
}

impl<B> Body for GatedBody<B>
where
    B: Body<Data = Bytes> + Unpin,
    S3Error: From<B::Error>,
{
    type Data = Bytes;
    type Error = StreamFault;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> PolledFrame {
        let mut state = self.0.lock();
        if state.is_end() {
            state.phase = GatePhase::Finished;
            return Poll::Ready(None);
        }
        match state.phase {
            GatePhase::Released => {
                state.phase = GatePhase::Sending;
                Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(GO_PIECE)))))
            }
            GatePhase::Sending => state.poll_body(cx),
            GatePhase::Finished => Poll::Ready(None),
            GatePhase::Withdrawn => Poll::Ready(Some(Err(RequestWithdrawn.into()))),
            GatePhase::Closed | GatePhase::Withheld => {
                state.transport = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.0.lock().is_end()
    }
}

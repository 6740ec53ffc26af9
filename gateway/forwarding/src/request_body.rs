//! The body of a forwarded request at the member that answers it.

use crate::gate::GO;
use crate::head::DeclaredBody;
use crate::streams::{MemberBody, PolledFrame, StreamFault, poll_bytes};
use bytes::{Buf as _, Bytes};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt as _;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::sync::oneshot;

/// The request ended before the forwarding node released it.
#[derive(Debug, thiserror::Error)]
#[error("the forwarding node withdrew the request")]
pub struct NotReleased;

/// The stream has bytes that the head of the request did not announce.
#[derive(Debug, thiserror::Error)]
#[error("the forwarded body is longer than announced")]
struct TooManyBytes;

/// Body of a forwarded request.
pub struct ForwardedRequestBody {
    stream: MemberBody,
    declared: DeclaredBody,
    /// Bytes that arrived with [`GO`].
    early: Bytes,
    received_bytes: u64,
    has_ended: bool,
    /// Notified when the body is polled for the first time.
    wanted: Option<oneshot::Sender<()>>,
}

impl ForwardedRequestBody {
    /// Returns the body that arrives on `stream`. `wanted` is notified when it is first read.
    #[must_use]
    pub fn new(stream: MemberBody, declared: DeclaredBody, wanted: Option<oneshot::Sender<()>>) -> Self {
        let has_ended = declared == DeclaredBody::Empty;
        Self { stream, declared, early: Bytes::new(), received_bytes: 0, has_ended, wanted }
    }

    /// Waits until the forwarding node releases the request. Nothing may be changed before.
    ///
    /// # Errors
    /// [`NotReleased`] if it gives up the request instead.
    pub async fn released(&mut self) -> Result<(), NotReleased> {
        loop {
            let frame = self.stream.frame().await.ok_or(NotReleased)?.map_err(|_| NotReleased)?;
            let Ok(mut bytes) = frame.into_data() else { continue };
            match bytes.first() {
                None => {}
                Some(&GO) => {
                    bytes.advance(1);
                    self.early = bytes;
                    return Ok(());
                }
                Some(_) => return Err(NotReleased),
            }
        }
    }

    fn count(&mut self, bytes: Bytes) -> Result<Frame<Bytes>, StreamFault> {
        self.received_bytes += bytes.len() as u64;
        match self.declared {
            DeclaredBody::Sized(all) if self.received_bytes > all => Err(TooManyBytes.into()),
            DeclaredBody::Empty => Err(TooManyBytes.into()),
            DeclaredBody::Sized(_) | DeclaredBody::Unsized => Ok(Frame::data(bytes)),
        }
    }
}

impl Body for ForwardedRequestBody {
    type Data = Bytes;
    type Error = StreamFault;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> PolledFrame {
        let this = self.get_mut();
        if this.has_ended {
            return Poll::Ready(None);
        }
        if let Some(wanted) = this.wanted.take() {
            // The receiver is gone only if the answer is not awaited any more.
            let _ = wanted.send(());
        }
        if !this.early.is_empty() {
            let early = std::mem::take(&mut this.early);
            return Poll::Ready(Some(this.count(early)));
        }
        let polled = ready!(poll_bytes(&mut this.stream, cx));
        this.has_ended = !matches!(polled, Some(Ok(_)));
        Poll::Ready(polled.map(|polled| this.count(polled?)))
    }

    fn is_end_stream(&self) -> bool {
        self.has_ended || self.size_hint().exact() == Some(0)
    }

    fn size_hint(&self) -> SizeHint {
        match self.declared {
            DeclaredBody::Empty => SizeHint::with_exact(0),
            DeclaredBody::Sized(all) => SizeHint::with_exact(all.saturating_sub(self.received_bytes)),
            DeclaredBody::Unsized => SizeHint::default(),
        }
    }
}

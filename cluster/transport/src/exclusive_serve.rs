//! Requests on an exclusive connection that a peer made: one after the other.
//!
//! Invariants are those of [`crate::inbound`]: no service is reached before the handshake passed, and nothing
//! but a short hello is read until then. The limit of requests is that of connections, because each has one
//! request at a time.
//!
//! A stream of appends is the last request of its connection ([`append_stream`]).
//!
//! At a stop the peer gets a goodbye, and what it sent before it could read that is still served.

use crate::append_stream;
use crate::body::empty_body;
use crate::channel::StreamClass;
use crate::exclusive_body::{poll_add, put_refusal, put_stream_answer};
use crate::framed_io::{Duplex, FramedIo};
use crate::frames::{
    AnswerStatus, Frame, FrameKind, ReceivedFrames, RequestFrame, RequestTarget, put_answer, put_frame,
};
use crate::handshake::HANDSHAKE_LIMIT;
use crate::inbound::{CallEnd, InboundConnection, PeerSession};
use crate::peer::ConnectionKind;
use crate::service::{IncomingCall, IncomingStream, PeerBody};
use mlgw_common::time::{Instant, timeout};
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

/// Time for which the head of an answer waits for its body: sent together, they wake the peer once.
pub(crate) const HEAD_WAIT: Duration = Duration::from_millis(20);

/// Time for which a request is served that crosses a goodbye.
pub(crate) const GOODBYE_WAIT: Duration = Duration::from_millis(250);

/// Serves a connection until it ends.
pub(crate) async fn serve(io: impl Duplex + 'static, inbound: Arc<InboundConnection>) {
    tokio::select! {
        _ = serve_requests(FramedIo::new(io), &inbound) => {}
        () = inbound.state().ended.cancelled() => {}
    }
}

/// Serves requests until `None`: the connection ends.
async fn serve_requests(mut io: FramedIo, inbound: &InboundConnection) -> Option<()> {
    let hello = answer_hello(&mut io, inbound, ConnectionKind::Exclusive);
    let session = timeout(HANDSHAKE_LIMIT, hello).await.ok()??;
    io.receive(ReceivedFrames::Requests);
    loop {
        let request = next_request(&mut io, inbound).await?;
        if request.target == RequestTarget::Append {
            return append_stream::serve(io, inbound, session, request).await;
        }
        answer_request(&mut io, inbound, session, request).await?;
        io.shrink();
    }
}

/// Answers the hello of the peer; `None` if it is refused, or sends something else.
pub(crate) async fn answer_hello<'a>(
    io: &mut FramedIo,
    inbound: &'a InboundConnection,
    kind: ConnectionKind,
) -> Option<&'a PeerSession> {
    let Frame::Hello(hello) = io.frame().await.ok()?? else { return None };
    let answer = inbound.framed_hello(&hello, kind).await;
    put_frame(&mut io.outbox, FrameKind::Hello, &[&answer]);
    io.send().await.ok()?;
    inbound.session()
}

/// The next request; `None` if the connection ends.
async fn next_request(io: &mut FramedIo, inbound: &InboundConnection) -> Option<RequestFrame> {
    let frame = tokio::select! {
        biased;
        frame = io.frame() => Some(frame),
        () = inbound.state().stopping.cancelled() => None,
    };
    let frame = match frame {
        Some(frame) => frame,
        None => {
            put_frame(&mut io.outbox, FrameKind::Goodbye, &[]);
            io.send().await.ok()?;
            timeout(GOODBYE_WAIT, io.frame()).await.ok()?
        }
    };
    match frame {
        Ok(Some(Frame::Request(request))) => Some(request),
        Ok(_) | Err(_) => None,
    }
}

/// Answers a request. Returns `None` if the connection cannot be used for another one.
async fn answer_request(
    io: &mut FramedIo,
    inbound: &InboundConnection,
    session: &PeerSession,
    request: RequestFrame,
) -> Option<()> {
    let RequestFrame { target, service, wait, bytes } = request;
    let (peer, deadline) = (session.node, Instant::now() + wait);
    match target {
        RequestTarget::Call => {
            let call = IncomingCall { peer, channel: session.channel, service, body: bytes, deadline };
            match inbound.carry_out(call, ()).await {
                CallEnd::Answered(answer) => put_answer(&mut io.outbox, AnswerStatus::Answered, &answer),
                CallEnd::Refused(refusal) => put_refusal(io, refusal),
                CallEnd::Failed => put_answer(&mut io.outbox, AnswerStatus::Failed, &[]),
            }
        }
        RequestTarget::Stream if StreamClass::Request.channel() == session.channel => {
            let class = StreamClass::Request;
            let body = empty_body();
            let stream = IncomingStream { peer, class, service, head: bytes, body, deadline };
            let mut work = pin!(inbound.state().answer_stream(stream));
            let answer = poll_fn(|cx| match work.as_mut().poll(cx) {
                Poll::Ready(answer) => Poll::Ready(Some(answer)),
                Poll::Pending => poll_closed(io, cx).map(|()| None),
            });
            let answer = answer.await?;
            if let Some(body) = put_stream_answer(io, answer) {
                return send_body(io, body).await;
            }
        }
        RequestTarget::Stream | RequestTarget::Append => {
            put_answer(&mut io.outbox, AnswerStatus::NotUnderstood, &[]);
        }
    }
    io.send().await.ok()
}

/// Sends the head of an answer, which is in the outbox, and its body. `None` if the body fails, which closes
/// the connection and cuts the body off, or if the peer gives up.
async fn send_body(io: &mut FramedIo, body: PeerBody) -> Option<()> {
    let (head_bytes, mut body) = (io.outbox.len(), Some(body));
    let begun = poll_fn(|cx| match poll_add(io, &mut body, cx) {
        Poll::Ready(added) => Poll::Ready(added.ok()),
        Poll::Pending if io.outbox.len() > head_bytes => Poll::Ready(Some(())),
        Poll::Pending => poll_closed(io, cx).map(|()| None),
    });
    if let Ok(None) = timeout(HEAD_WAIT, begun).await {
        return None;
    }
    poll_fn(|cx| poll_send_body(io, &mut body, cx)).await
}

/// Ready when the peer has given the request up: it sends nothing before the end of the answer.
fn poll_closed(io: &mut FramedIo, cx: &mut Context<'_>) -> Poll<()> {
    io.poll_frame(cx).map(drop)
}

/// Sends the rest of the body of an answer, as [`send_body`].
fn poll_send_body(io: &mut FramedIo, body: &mut Option<PeerBody>, cx: &mut Context<'_>) -> Poll<Option<()>> {
    loop {
        if let Poll::Ready(Err(_)) = poll_add(io, body, cx) {
            return Poll::Ready(None);
        }
        let is_full = io.is_full();
        match ready!(io.poll_send(cx)) {
            Err(_) => return Poll::Ready(None),
            Ok(()) if body.is_none() => return Poll::Ready(Some(())),
            Ok(()) if is_full => {}
            Ok(()) => return poll_closed(io, cx).map(|()| None),
        }
    }
}

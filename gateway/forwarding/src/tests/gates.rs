//! The gate between the client's body and the stream.

use crate::gate::{BodyGate, BodyOpening, GO, GatedBody};
use crate::streams::StreamFault;
use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::stream;
use http_body::{Body as _, Frame};
use http_body_util::{BodyExt as _, Empty, StreamBody};
use mlgw_wire::error::{Code, S3Error};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

type Piece = Result<Frame<Bytes>, S3Error>;

/// Returns a body of these pieces that counts how many were read, and the count.
fn client(pieces: Vec<Result<&'static str, Code>>) -> (ClientPieces, Arc<AtomicUsize>) {
    let read = Arc::new(AtomicUsize::new(0));
    let (count, mut pieces) = (Arc::clone(&read), pieces.into_iter());
    let next = move |_: &mut std::task::Context<'_>| {
        count.fetch_add(1, Relaxed);
        std::task::Poll::Ready(pieces.next().map(|piece| {
            piece.map(|text| Frame::data(Bytes::from_static(text.as_bytes()))).map_err(S3Error::new)
        }))
    };
    (StreamBody::new(Box::pin(stream::poll_fn(Box::new(next)))), read)
}

type NextPiece = Box<dyn FnMut(&mut std::task::Context<'_>) -> std::task::Poll<Option<Piece>> + Send>;
type ClientPieces = StreamBody<std::pin::Pin<Box<stream::PollFn<NextPiece>>>>;

/// Returns what the transport gets now: `None` if it has to wait.
fn poll_now(body: &mut GatedBody<ClientPieces>) -> Option<Option<Result<Bytes, StreamFault>>> {
    let frame = body.frame().now_or_never()?;
    Some(frame.map(|frame| frame.map(|frame| frame.into_data().unwrap())))
}

fn bytes_now(body: &mut GatedBody<ClientPieces>) -> Bytes {
    poll_now(body).flatten().unwrap().unwrap()
}

#[test]
fn nothing_is_read_before_the_release_and_go_precedes_the_body() {
    let (body, read) = client(vec![Ok("ab"), Ok("c")]);
    let (gate, mut gated) = BodyGate::new();
    assert!(poll_now(&mut gated).is_none() && !gated.is_end_stream());
    gate.release(body, BodyOpening::AtRelease);
    assert_eq!(bytes_now(&mut gated)[..], [GO]);
    assert_eq!(read.load(Relaxed), 0);
    assert_eq!(bytes_now(&mut gated), "ab");
    assert_eq!(bytes_now(&mut gated), "c");
    assert!(matches!(poll_now(&mut gated), Some(None)));
    drop(gate);
    assert!(matches!(poll_now(&mut gated), Some(None)) && gated.is_end_stream(), "a clean end stays");
}

#[test]
fn a_body_that_is_awaited_is_read_on_demand_only() {
    let (body, read) = client(vec![Ok("a")]);
    let (gate, mut gated) = BodyGate::new();
    gate.release(body, BodyOpening::OnDemand);
    assert_eq!(bytes_now(&mut gated)[..], [GO]);
    assert!(poll_now(&mut gated).is_none());
    assert_eq!(read.load(Relaxed), 0, "the first poll would send 100 Continue");
    gate.open_body();
    assert_eq!(bytes_now(&mut gated), "a");
}

#[derive(Default)]
struct WakeCount(AtomicUsize);

impl std::task::Wake for WakeCount {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Relaxed);
    }
}

#[test]
fn the_transport_is_woken_by_the_release() {
    let (body, _) = client(vec![Ok("a")]);
    let (gate, mut gated) = BodyGate::new();
    let wakes = Arc::new(WakeCount::default());
    let waker = Arc::clone(&wakes).into();
    let mut context = std::task::Context::from_waker(&waker);
    assert!(std::pin::Pin::new(&mut gated).poll_frame(&mut context).is_pending());
    gate.release(body, BodyOpening::OnDemand);
    assert_eq!(wakes.0.load(Relaxed), 1);
}

#[tokio::test]
async fn an_error_of_the_client_ends_the_stream_with_an_error_and_reaches_the_forwarder() {
    let (body, _) = client(vec![Ok("a"), Err(Code::RequestTimeout)]);
    let (gate, mut gated) = BodyGate::new();
    gate.release(body, BodyOpening::AtRelease);
    assert_eq!(bytes_now(&mut gated)[..], [GO]);
    assert_eq!(bytes_now(&mut gated), "a");
    assert!(matches!(poll_now(&mut gated), Some(Some(Err(_)))));
    assert_eq!(gate.fault().await.code(), Code::RequestTimeout);
    assert!(poll_now(&mut gated).is_none(), "never a clean end");
}

#[test]
fn the_rest_of_a_body_is_withheld_until_the_gate_is_dropped() {
    let (body, _) = client(vec![Ok("a"), Ok("b")]);
    let (gate, mut gated) = BodyGate::new();
    gate.release(body, BodyOpening::AtRelease);
    assert_eq!(bytes_now(&mut gated)[..], [GO]);
    gate.withhold_rest();
    assert!(poll_now(&mut gated).is_none() && !gated.is_end_stream());
    drop(gate);
    assert!(matches!(poll_now(&mut gated), Some(Some(Err(_)))), "an end would look like a whole body");
}

#[test]
fn a_gate_that_is_dropped_before_the_release_withdraws_the_request() {
    let (gate, mut gated) = BodyGate::<ClientPieces>::new();
    drop(gate);
    assert!(matches!(poll_now(&mut gated), Some(Some(Err(_)))));
}

#[test]
fn a_body_without_bytes_ends_with_go() {
    let (gate, mut gated) = BodyGate::new();
    gate.release(Empty::<Bytes>::new(), BodyOpening::AtRelease);
    let go = gated.frame().now_or_never().unwrap().unwrap().unwrap();
    assert_eq!(go.into_data().unwrap()[..], [GO]);
    assert!(gated.is_end_stream());
}

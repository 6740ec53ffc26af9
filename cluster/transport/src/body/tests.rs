//! Tests of bodies without a connection: the gate, ends, and streams that are given up.

use super::{ReceivedBody, SentBody};
use crate::error::PeerBodyError;
use crate::service::PeerBody;
use crate::wire::{end_trailer, read_head};
use bytes::Bytes;
use futures_util::stream;
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::oneshot;

type Frames = Vec<Result<Frame<Bytes>, PeerBodyError>>;

fn data(text: &'static str) -> Result<Frame<Bytes>, PeerBodyError> {
    Ok(Frame::data(Bytes::from_static(text.as_bytes())))
}

fn body_of(frames: Frames) -> PeerBody {
    StreamBody::new(stream::iter(frames)).boxed_unsync()
}

fn failed() -> PeerBodyError {
    PeerBodyError::Failed("on purpose".to_owned())
}

/// The texts of a body, until its end or its error.
async fn texts(mut body: PeerBody) -> (String, Option<PeerBodyError>) {
    let mut text = String::new();
    while let Some(frame) = body.frame().await {
        match frame {
            Ok(frame) => text.push_str(str::from_utf8(frame.data_ref().unwrap()).unwrap()),
            Err(error) => return (text, Some(error)),
        }
    }
    (text, None)
}

#[tokio::test]
async fn a_body_is_polled_only_after_its_gate_opened() {
    let polls = Arc::new(AtomicUsize::new(0));
    let counted = polls.clone();
    let frames = stream::once(async move {
        counted.fetch_add(1, Ordering::SeqCst);
        data("body")
    });
    let (open, gate) = oneshot::channel();
    let (_answer, other_half) = oneshot::channel();
    let body = StreamBody::new(Box::pin(frames)).boxed_unsync();
    let mut sent = SentBody::request(b"head", body, gate, other_half, Vec::new());
    let head = sent.frame().await.unwrap().unwrap().into_data().unwrap();
    assert_eq!(&head[..], b"\0\0\0\x04head");
    let mut next = Box::pin(sent.frame());
    assert!(futures_util::poll!(&mut next).is_pending());
    assert_eq!(polls.load(Ordering::SeqCst), 0);
    open.send(()).unwrap();
    assert_eq!(&next.await.unwrap().unwrap().into_data().unwrap()[..], b"body");
    assert!(sent.frame().await.unwrap().unwrap().is_trailers());
    assert!(sent.frame().await.is_none());
}

#[tokio::test]
async fn a_gate_that_never_opens_fails_the_body() {
    let (open, gate) = oneshot::channel::<()>();
    let (_answer, other_half) = oneshot::channel();
    let mut sent = SentBody::request(b"", body_of(vec![data("body")]), gate, other_half, Vec::new());
    sent.frame().await.unwrap().unwrap();
    drop(open);
    assert!(matches!(sent.frame().await, Some(Err(PeerBodyError::Failed(_)))));
}

#[tokio::test]
async fn an_answer_that_is_dropped_before_its_end_fails_the_request() {
    for (frames, fails) in
        [(vec![data("a")], true), (vec![data("a"), Ok(Frame::trailers(end_trailer()))], false)]
    {
        let (open, gate) = oneshot::channel();
        open.send(()).unwrap();
        let (answer, other_half) = oneshot::channel();
        let mut sent = SentBody::request(b"", body_of(vec![data("body")]), gate, other_half, Vec::new());
        sent.frame().await.unwrap().unwrap();
        let received = ReceivedBody::new(Bytes::new(), body_of(frames), Some(answer), Vec::new());
        let (text, error) = texts(received.boxed_unsync()).await;
        assert_eq!((text.as_str(), error.is_some()), ("a", fails));
        assert_eq!(sent.frame().await.unwrap().is_err(), fails);
    }
}

#[tokio::test]
async fn only_a_marked_end_is_an_end() {
    let end = || Ok(Frame::trailers(end_trailer()));
    let other = || Ok(Frame::trailers(http::HeaderMap::new()));
    for (frames, cut) in [
        (vec![data("a"), data("b"), end()], false),
        (vec![data("a"), data("b")], true),
        (vec![data("a"), data("b"), other()], true),
        (vec![data("a"), data("b"), Err(failed())], true),
    ] {
        let received = ReceivedBody::new(Bytes::from_static(b"0"), body_of(frames), None, Vec::new());
        let (text, error) = texts(received.boxed_unsync()).await;
        assert_eq!(text, "0ab");
        assert_eq!(matches!(error, Some(PeerBodyError::Cut(_))), cut, "{error:?}");
    }
}

#[tokio::test]
async fn a_body_that_fails_is_not_ended() {
    let frames = vec![data("a"), Err(failed())];
    let mut sent = SentBody::answer(b"head", body_of(frames), Vec::new());
    let found = read_head(&mut sent).await.unwrap();
    assert_eq!(&found.head[..], b"head");
    let received = ReceivedBody::new(found.rest, sent, None, Vec::new());
    let (text, error) = texts(received.boxed_unsync()).await;
    assert_eq!(text, "a");
    assert_eq!(error, Some(PeerBodyError::Cut(failed().to_string())));
}

#[tokio::test]
async fn trailers_of_a_caller_are_not_taken_for_the_end() {
    let frames = vec![Ok(Frame::trailers(end_trailer())), data("late")];
    let sent = SentBody::answer(b"", body_of(frames), Vec::new());
    let received = ReceivedBody::new(Bytes::new(), sent, None, Vec::new());
    let (text, error) = texts(received.boxed_unsync()).await;
    assert_eq!((text.as_str(), error), ("\0\0\0\0late", None));
}

#[tokio::test]
async fn what_a_body_keeps_is_dropped_with_it() {
    let kept = Arc::new(());
    let body = SentBody::answer(b"", body_of(Vec::new()), vec![Box::new(kept.clone())]);
    assert_eq!(Arc::strong_count(&kept), 2);
    drop(body);
    assert_eq!(Arc::strong_count(&kept), 1);
}

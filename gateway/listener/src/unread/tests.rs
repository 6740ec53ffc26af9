//! Tests of the treatment of an unread remainder, for all ways in which a body can arrive.

use super::{
    AnswerAction, RemainderFacts, RequestFraming, RequestMemory, UNREAD_BODY_BYTES_MAX, UnreadBody,
    UnreadBodyPlan, UnreadBodySlot, finish_answer, plan_unread,
};
use crate::pace::{BodyFault, PacedRequestBody};
use crate::room::ConnectionState;
use crate::watch::{Activity, MinimumTransferRate};
use bytes::Bytes;
use http::{Response, Version, header};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use std::future::poll_fn;
use std::time::Duration;
use tokio::sync::mpsc;

const PIECE: usize = 1000;

#[test]
fn only_a_small_remainder_that_is_certain_to_arrive_is_awaited() {
    let small = Some(UNREAD_BODY_BYTES_MAX);
    // (expects, was_polled, failed, left, short)
    for (case, expected) in [
        ((false, false, false, small, false), UnreadBodyPlan::Read),
        ((false, true, false, Some(1), false), UnreadBodyPlan::Read),
        ((false, false, false, None, false), UnreadBodyPlan::Read),
        ((true, true, false, small, false), UnreadBodyPlan::Read),
        ((true, false, false, small, false), UnreadBodyPlan::Leave),
        ((false, true, true, small, false), UnreadBodyPlan::Leave),
        ((false, false, false, small, true), UnreadBodyPlan::Leave),
        ((false, false, false, Some(UNREAD_BODY_BYTES_MAX + 1), false), UnreadBodyPlan::Leave),
    ] {
        let (expects, was_polled, failed, left, is_short) = case;
        let facts = RemainderFacts { expects, was_polled, failed, left, is_short };
        assert_eq!(plan_unread(facts), expected, "{case:?}");
    }
}

/// A body of `sent` pieces. Its handler reads `read` of them and then answers.
struct Case {
    sent: usize,
    read: usize,
    /// True if the body ends after these pieces. If false, no more bytes arrive.
    ends: bool,
}

fn memory() -> RequestMemory {
    RequestMemory::new(1 << 30, 100, None)
}

/// Returns true if the answer closes the connection, or `None` if it is sent only after a wait.
async fn answer_of(case: Case, version: Version) -> Option<bool> {
    let (sender, mut pieces) = mpsc::channel::<Result<Frame<Bytes>, BodyFault>>(case.sent.max(1));
    for _ in 0..case.sent {
        sender.send(Ok(Frame::data(Bytes::from(vec![0; PIECE])))).await.unwrap();
    }
    let _open = (!case.ends).then_some(sender);
    let stream = StreamBody::new(futures_util::stream::poll_fn(move |cx| pieces.poll_recv(cx)));
    let pace = MinimumTransferRate { window: Duration::from_secs(3600), rate_min: 0 };
    let activity = Activity::new();
    let (mut body, slot) = PacedRequestBody::new(stream, pace, || activity.request());
    for _ in 0..case.read {
        body.frame().await.unwrap().unwrap();
    }
    drop(body);
    let framing = RequestFraming { version, expects: false, closes: false };
    let answer =
        match finish_answer(&slot.unwrap(), framing, &ConnectionState::new(), &memory(), Response::new(())) {
            AnswerAction::Send(answer) => answer,
            AnswerAction::Wait(mut finishing) => {
                // Unconstrained by the budget of the runtime, so that available pieces are read immediately.
                let polled = tokio::task::unconstrained(async {
                    tokio::select! {
                        biased;
                        answer = poll_fn(|cx| finishing.poll(version, cx)) => Some(answer),
                        () = std::future::ready(()) => None,
                    }
                });
                polled.await?
            }
        };
    Some(answer.headers().contains_key(header::CONNECTION))
}

#[tokio::test]
async fn a_remainder_that_has_arrived_is_read_and_one_that_is_too_long_closes() {
    let too_many = usize::try_from(UNREAD_BODY_BYTES_MAX).unwrap() / PIECE + 2;
    for (sent, read, ends, expected) in [
        (1, 0, true, Some(false)),
        (9, 0, true, Some(false)),
        (9, 4, true, Some(false)),
        (9, 9, true, Some(false)),
        (1, 0, false, None),
        (9, 4, false, None),
        (too_many, 0, true, Some(true)),
        (too_many, 0, false, Some(true)),
    ] {
        let closes = answer_of(Case { sent, read, ends }, Version::HTTP_11).await;
        assert_eq!(closes, expected, "{sent} pieces, {read} read, ends: {ends}");
    }
}

#[tokio::test]
async fn answers_on_http_2_have_no_connection_header() {
    let too_many = usize::try_from(UNREAD_BODY_BYTES_MAX).unwrap() / PIECE + 2;
    for sent in [1, too_many] {
        assert_eq!(answer_of(Case { sent, read: 0, ends: true }, Version::HTTP_2).await, Some(false));
    }
}

#[tokio::test]
async fn a_body_that_failed_or_is_still_referenced_closes_the_connection() {
    let closes = |next: AnswerAction<_, ()>| match next {
        AnswerAction::Send(answer) => {
            answer.headers().get(header::CONNECTION).is_some_and(|value| value == "close")
        }
        AnswerAction::Wait(_) => false,
    };
    let framing = RequestFraming { version: Version::HTTP_11, expects: false, closes: false };
    let empty = || StreamBody::new(futures_util::stream::pending::<Result<Frame<Bytes>, BodyFault>>());
    let slot = UnreadBodySlot::new();
    slot.put(UnreadBody { body: empty(), was_polled: true, failed: true, _request: None });
    assert!(closes(finish_answer(&slot, framing, &ConnectionState::new(), &memory(), Response::new(()))));
    let activity = Activity::new();
    let pace = MinimumTransferRate { window: Duration::from_secs(3600), rate_min: 0 };
    let (kept, slot) = PacedRequestBody::new(empty(), pace, || activity.request());
    assert!(closes(finish_answer(
        &slot.unwrap(),
        framing,
        &ConnectionState::new(),
        &memory(),
        Response::new(())
    )));
    drop(kept);
}

//! Tests of storing segments: whole or not at all, proven, and without sending arrived parts again.

use std::io;
use std::sync::Arc;

use super::*;
use crate::upstream::fake::{FakeS3Call, FakeS3Effect, FakeStore};

/// Two whole parts and a short one.
const BYTES: u64 = 2 * PART + 77;

#[tokio::test]
async fn a_segment_is_one_object_and_is_sent_once() {
    let (store, content) = (FakeStore::default(), content(BYTES));
    let upstream = upstream(&store);
    let stored = put(&upstream, &content, None).await.expect("stored");
    assert_eq!(stored, StoredSegment { object_bytes: BYTES, sent_bytes: BYTES });
    assert!(store.object(NAME).expect("there") == content);
    assert_eq!((store.names().len(), store.open_uploads()), (1, 0));
    assert_eq!(upstream.metrics().proven_bytes, BYTES);
    store.forget_calls();
    let again = put(&upstream, &content, None).await.expect("there");
    assert_eq!(again, StoredSegment { object_bytes: BYTES, sent_bytes: 0 });
    assert_eq!(
        (
            store.calls(FakeS3Call::CreateUpload),
            store.calls(FakeS3Call::Part(1)),
            store.calls(FakeS3Call::Get)
        ),
        (0, 0, 3)
    );
    let counted = upstream.metrics();
    assert_eq!((counted.puts, counted.puts_already_present, counted.sent_bytes >= BYTES), (2, 1, true));
}

#[tokio::test]
async fn segments_of_every_length_arrive_whole() {
    for bytes in [0, 1, PART - 1, PART, PART + 1, 3 * PART] {
        for encrypts in [false, true] {
            let (store, content, key) = (FakeStore::default(), content(bytes), key(1));
            let upstream = if encrypts { encrypted(&store) } else { upstream(&store) };
            let key = encrypts.then_some(&key);
            put(&upstream, &content, key).await.unwrap_or_else(|error| panic!("{bytes}: {error}"));
            let read = upstream.read(&object(bytes, key), 0, bytes).await.expect("read");
            assert!(read == content, "{bytes} {encrypts}");
            assert_eq!(
                upstream.length(OBJECT).await.expect("asked"),
                Some(object(bytes, key).object_bytes())
            );
        }
    }
}

#[tokio::test]
async fn only_the_part_that_failed_is_sent_again() {
    for effect in [FakeS3Effect::Status(500, "InternalError"), FakeS3Effect::Break, FakeS3Effect::BreakAfter]
    {
        let (store, content) = (FakeStore::default(), content(BYTES));
        store.fail(FakeS3Call::Part(2), 2, effect);
        let upstream = upstream(&store);
        put(&upstream, &content, None).await.expect("stored");
        let sent = [1, 2, 3].map(|part| store.calls(FakeS3Call::Part(part)));
        assert_eq!(sent, [1, 3, 1], "{effect:?}");
        assert!(store.object(NAME).expect("there") == content);
        assert_eq!(requests(&upstream, UpstreamOp::Write, UpstreamOutcome::Failed), 2);
        assert_eq!(upstream.metrics().retries, 2);
    }
}

#[tokio::test]
async fn an_upload_that_was_completed_though_no_answer_came_is_found() {
    let (store, content) = (FakeStore::default(), content(BYTES));
    store.fail(FakeS3Call::Complete, 1, FakeS3Effect::BreakAfter);
    let upstream = upstream(&store);
    put(&upstream, &content, None).await.expect("the object exists, whatever the response to the second try");
    assert_eq!(store.calls(FakeS3Call::Complete), 2);
    assert!(store.object(NAME).expect("there") == content);
}

#[tokio::test]
async fn damaged_objects_are_rejected_and_removed() {
    for (call, effect) in [
        (FakeS3Call::Part(2), FakeS3Effect::Flip),
        (FakeS3Call::Part(3), FakeS3Effect::Discard),
        (FakeS3Call::Complete, FakeS3Effect::Discard),
        (FakeS3Call::Get, FakeS3Effect::Short(17)),
    ] {
        let (store, content) = (FakeStore::default(), content(BYTES));
        store.fail(call, 1, effect);
        let failed = put(&upstream(&store), &content, None).await.expect_err("damaged");
        assert!(matches!(failed, UpstreamError::Corrupt { .. }), "{call:?} {effect:?}: {failed}");
        assert_eq!(store.object(NAME), None, "{call:?} {effect:?}");
        put(&upstream(&store), &content, None).await.expect("the next try");
        assert!(store.object(NAME).expect("there") == content);
    }
}

#[tokio::test]
async fn an_existing_object_that_differs_is_overwritten() {
    let content = content(BYTES);
    let mut bad = content.clone();
    bad[BYTES as usize - 1] ^= 1;
    for there in [bad, content[1..].to_vec(), Vec::new()] {
        let store = FakeStore::default();
        store.set_object(NAME, there);
        let stored = put(&upstream(&store), &content, None).await.expect("stored");
        assert_eq!(stored.sent_bytes, BYTES);
        assert!(store.object(NAME).expect("there") == content);
    }
}

#[tokio::test]
async fn a_store_that_is_down_is_tried_several_times_and_stays_retryable() {
    let (store, content) = (FakeStore::default(), content(BYTES));
    store.fail(FakeS3Call::Part(1), usize::MAX, FakeS3Effect::Status(502, "BadGateway"));
    let upstream = upstream(&store);
    let failed = put(&upstream, &content, None).await.expect_err("down");
    assert!(failed.is_retryable() && failed.to_string().contains("502"), "{failed}");
    // opendal sends the part once more when it sees the failure, the last time before the upload is given up.
    let tries = TUNING.retries + 1;
    assert!(
        (tries..=tries + 1).contains(&store.calls(FakeS3Call::Part(1))),
        "{}",
        store.calls(FakeS3Call::Part(1))
    );
    assert_eq!((store.open_uploads(), store.object(NAME)), (0, None));
    store.heal();
    put(&upstream, &content, None).await.expect("up again");
}

#[tokio::test]
async fn the_caller_may_cancel_at_any_part_and_nothing_is_left() {
    let content = content(BYTES);
    for stop_at in 0..3 {
        let store = FakeStore::default();
        let (mut parts, mut bytes) = (0, 0);
        let mut before = |more: u64| -> ThrottleFuture {
            (parts, bytes) = (parts + 1, bytes + more);
            let stops = parts > stop_at;
            Box::pin(async move { if stops { Err(io::Error::other("enough")) } else { Ok(()) } })
        };
        let failed = upstream(&store)
            .put_segment(&object(BYTES, None), file(&content), UploadResumption::never(), &mut before)
            .await;
        let failed = failed.expect_err("ended");
        assert!(matches!(failed, UpstreamError::Source { .. }), "{failed}");
        assert_eq!(
            bytes,
            [PART, 2 * PART, BYTES][stop_at],
            "it is notified of each part before the part is read"
        );
        assert_eq!((store.open_uploads(), store.object(NAME)), (0, None), "{stop_at}");
    }
}

#[tokio::test]
async fn an_upload_whose_future_is_dropped_is_aborted() {
    let (store, content) = (FakeStore::default(), content(BYTES));
    store.fail(FakeS3Call::Part(1), 1, FakeS3Effect::Hang);
    let upstream = Arc::new(upstream(&store));
    let putting = tokio::spawn({
        let upstream = upstream.clone();
        async move { put(&upstream, &content, None).await }
    });
    store.wait_for(FakeS3Call::Part(1), 1).await;
    putting.abort();
    putting.await.expect_err("it was dropped");
    store.wait_for(FakeS3Call::Abort, 1).await;
    while store.open_uploads() > 0 {
        tokio::task::yield_now().await;
    }
    // The request in flight released its slot.
    while upstream.metrics().in_flight > 0 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_file_that_is_too_short_is_not_stored() {
    let (store, content) = (FakeStore::default(), content(BYTES));
    let cut = file(&content[..BYTES as usize - 1]);
    let failed = upstream(&store)
        .put_segment(&object(BYTES, None), cut, UploadResumption::never(), &mut no_throttle)
        .await;
    let failed = failed.expect_err("too short");
    assert!(matches!(failed, UpstreamError::Source { .. }), "{failed}");
    assert_eq!((store.open_uploads(), store.object(NAME)), (0, None));
}

#[tokio::test]
async fn an_encrypted_segment_is_found_by_its_key_and_stored_again_with_another_one() {
    let (store, content) = (FakeStore::default(), content(BYTES));
    let upstream = encrypted(&store);
    let (one, other) = (key(1), key(2));
    put(&upstream, &content, Some(&one)).await.expect("stored");
    let stored = store.object(NAME).expect("there");
    assert_eq!(stored.len() as u64, object(BYTES, Some(&one)).object_bytes());
    assert!(!stored.windows(64).step_by(64).any(|window| window == &content[..64]));
    assert_eq!(put(&upstream, &content, Some(&one)).await.expect("there").sent_bytes, 0);
    assert_ne!(put(&upstream, &content, Some(&other)).await.expect("stored").sent_bytes, 0);
    let read = upstream.read(&object(BYTES, Some(&other)), 0, BYTES).await.expect("read");
    assert!(read == content);
}

#[tokio::test]
async fn a_store_that_requests_fewer_requests_receives_fewer() {
    let (store, content) = (FakeStore::default(), content(BYTES));
    let upstream = upstream(&store);
    put(&upstream, &content, None).await.expect("stored");
    let object = object(BYTES, None);
    let many = |store: &FakeStore| {
        store.forget_calls();
        futures_util::future::join_all((0..40).map(|n| upstream.read(&object, n, 1)))
    };
    let before = upstream.metrics().limit;
    store.fail(FakeS3Call::Get, 3, FakeS3Effect::Status(503, "SlowDown"));
    assert!(many(&store).await.into_iter().all(|read| read.is_ok()), "they are asked again");
    assert!(store.in_flight_max() as u64 <= before + 1, "{}", store.in_flight_max());
    assert_eq!(requests(&upstream, UpstreamOp::Read, UpstreamOutcome::SlowDown), 3);
    assert_eq!(upstream.metrics().in_flight, 0);
    let cut = upstream.metrics().limit;
    for _ in 0..50 {
        many(&store).await;
    }
    assert!(upstream.metrics().limit > cut.max(before), "{cut} of {before}, and it grows again");
}

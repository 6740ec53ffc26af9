//! Tests of range reads: the whole requested range, or an error that names the required action.

use super::*;
use crate::upstream::fake::{FakeS3Call, FakeS3Effect, FakeStore};

const BYTES: u64 = 400_000;

/// Returns a store that holds the segment.
fn filled() -> (FakeStore, Vec<u8>) {
    let (store, content) = (FakeStore::default(), content(BYTES));
    store.set_object(NAME, content.clone());
    (store, content)
}

async fn failed(upstream: &Upstream) -> UpstreamError {
    upstream.read(&object(BYTES, None), 1000, 500).await.expect_err("it failed")
}

#[tokio::test]
async fn a_read_fetches_its_range_and_nothing_else() {
    let (store, content) = filled();
    let upstream = upstream(&store);
    for (offset, length) in [(0, 1), (1000, 500), (BYTES - 1, 1), (0, BYTES)] {
        store.forget_calls();
        let read = upstream.read(&object(BYTES, None), offset, length).await.expect("read");
        assert!(read == content[offset as usize..(offset + length) as usize]);
        assert_eq!(store.ranges(), [(offset as usize, (offset + length - 1) as usize)]);
    }
    assert!(upstream.read(&object(BYTES, None), 5, 0).await.expect("nothing").is_empty());
    assert_eq!(store.calls(FakeS3Call::Head), 0, "its length is not requested");
    for (offset, length) in [(BYTES, 1), (0, BYTES + 1), (u64::MAX, 2)] {
        let failed = upstream.read(&object(BYTES, None), offset, length).await.expect_err("outside");
        assert!(matches!(failed, UpstreamError::Corrupt { .. }), "{failed}");
    }
}

#[tokio::test]
async fn a_read_of_an_encrypted_segment_fetches_the_frames_that_hold_it() {
    let (store, content, key) = (FakeStore::default(), content(BYTES), key(1));
    let upstream = encrypted(&store);
    put(&upstream, &content, Some(&key)).await.expect("stored");
    store.forget_calls();
    let read = upstream.read(&object(BYTES, Some(&key)), 70_000, 10).await.expect("read");
    assert!(read == content[70_000..70_010]);
    let frame = 65_536 + 16;
    assert_eq!(store.ranges(), [(64 + frame, 64 + 2 * frame - 1)]);
    let mut bad = store.object(NAME).expect("there");
    bad[64 + frame + 9] ^= 0x10;
    store.set_object(NAME, bad);
    let failed = upstream.read(&object(BYTES, Some(&key)), 70_000, 10).await.expect_err("damaged");
    assert!(
        matches!(failed, UpstreamError::Corrupt { .. }) && failed.to_string().contains("frame 1"),
        "{failed}"
    );
    let read = upstream.read(&object(BYTES, Some(&key)), 0, 65_536).await;
    assert!(read.is_ok(), "another frame");
    assert_eq!(upstream.metrics().corrupt_reads, 1);
}

#[tokio::test]
async fn errors_state_the_required_action() {
    let (store, _) = filled();
    let upstream = upstream(&store);
    type IsRight = fn(&UpstreamError) -> bool;
    let cases: [(FakeS3Effect, IsRight); 8] = [
        (FakeS3Effect::Status(404, "NoSuchKey"), |e| matches!(e, UpstreamError::Missing { .. })),
        (FakeS3Effect::Status(404, "NoSuchBucket"), |e| matches!(e, UpstreamError::Refused { .. })),
        (FakeS3Effect::Status(403, "AccessDenied"), |e| matches!(e, UpstreamError::Refused { .. })),
        (FakeS3Effect::Status(403, "InvalidAccessKeyId"), |e| matches!(e, UpstreamError::Refused { .. })),
        (FakeS3Effect::Status(416, "InvalidRange"), |e| matches!(e, UpstreamError::Truncated { .. })),
        (FakeS3Effect::Short(499), |e| {
            matches!(e, UpstreamError::Truncated { offset: 1000, wanted: 500, .. })
        }),
        (FakeS3Effect::IgnoreRange, |e| matches!(e, UpstreamError::UnexpectedAnswer { .. })),
        (FakeS3Effect::Status(400, "Odd"), |e| matches!(e, UpstreamError::UnexpectedAnswer { .. })),
    ];
    for (effect, is_right) in cases {
        store.forget_calls();
        store.fail(FakeS3Call::Get, 1, effect);
        let failed = failed(&upstream).await;
        assert!(is_right(&failed) && !failed.is_retryable(), "{effect:?}: {failed}");
        assert_eq!(store.calls(FakeS3Call::Get), 1, "{effect:?} is not retried");
    }
}

#[tokio::test]
async fn a_response_longer_than_requested_is_not_read() {
    let (store, _) = filled();
    let upstream = upstream(&store);
    store.fail(FakeS3Call::Get, 1, FakeS3Effect::IgnoreRange);
    let message = failed(&upstream).await.to_string();
    assert!(message.contains("may ignore ranges"), "{message}");
    assert_eq!(store.unread_pieces(), 3, "the rest of four pieces");
}

#[tokio::test]
async fn transient_errors_are_retried_a_limited_number_of_times() {
    for effect in [
        FakeS3Effect::Status(500, "InternalError"),
        FakeS3Effect::Status(503, "SlowDown"),
        FakeS3Effect::Status(429, "TooManyRequests"),
        FakeS3Effect::Break,
    ] {
        let (store, _) = filled();
        let upstream = upstream(&store);
        store.fail(FakeS3Call::Get, TUNING.retries, effect);
        upstream.read(&object(BYTES, None), 1000, 500).await.expect("the last try");
        assert_eq!(store.calls(FakeS3Call::Get), TUNING.retries + 1);
        store.fail(FakeS3Call::Get, usize::MAX, effect);
        let failed = failed(&upstream).await;
        assert!(failed.is_retryable(), "{effect:?}: {failed}");
        assert_eq!(store.calls(FakeS3Call::Get), 2 * (TUNING.retries + 1));
        assert_eq!(upstream.metrics().in_flight, 0);
    }
}

#[tokio::test]
async fn a_store_that_says_nothing_any_more_is_not_waited_for() {
    for effect in [FakeS3Effect::Hang, FakeS3Effect::Pause(200)] {
        let (store, _) = filled();
        let timeout = Duration::from_millis(5);
        let upstream = upstream_with(&UpstreamSettings { timeout, ..settings() }, &store);
        store.fail(FakeS3Call::Get, usize::MAX, effect);
        let failed = failed(&upstream).await;
        assert!(failed.is_retryable() && failed.to_string().contains("0.005 s"), "{effect:?}: {failed}");
        assert_eq!(requests(&upstream, UpstreamOp::Read, UpstreamOutcome::Failed), TUNING.retries as u64 + 1);
    }
}

#[tokio::test]
async fn a_dropped_read_releases_its_slot() {
    let (store, _) = filled();
    let upstream = upstream(&store);
    store.fail(FakeS3Call::Get, 1, FakeS3Effect::Hang);
    let object = object(BYTES, None);
    tokio::select! {
        _ = upstream.read(&object, 0, 1) => panic!("no response arrives"),
        () = store.wait_for(FakeS3Call::Get, 1) => {}
    }
    assert_eq!(upstream.metrics().in_flight, 0);
}

#[tokio::test]
async fn objects_are_listed_measured_and_removed() {
    let (store, _) = filled();
    store.set_object("pre/segments/0000000000000009-0000000000000001.seg", vec![1]);
    store.set_object("pre/segments/notes.txt", vec![1]);
    store.set_object("pre/other/000000000000000a.seg", vec![1]);
    let upstream = upstream(&store);
    let other = ObjectId { segment: SegmentId(9), copy: 1, ..OBJECT };
    assert_eq!(upstream.list().await.expect("listed"), [other, OBJECT]);
    assert_eq!(upstream.length(OBJECT).await.expect("asked"), Some(BYTES));
    upstream.remove(OBJECT).await.expect("removed");
    upstream.remove(OBJECT).await.expect("removing a missing object is not an error");
    assert_eq!(upstream.length(OBJECT).await.expect("asked"), None);
    store.fail(FakeS3Call::List, usize::MAX, FakeS3Effect::Status(403, "AccessDenied"));
    let failed = upstream.list().await.expect_err("refused");
    assert!(
        failed.to_string().contains("AccessDenied") && !failed.to_string().contains("segment"),
        "{failed}"
    );
}

#[tokio::test]
async fn no_secret_is_ever_shown() {
    let (store, _) = filled();
    let upstream = upstream(&store);
    let mut shown = format!("{upstream:?} {:?} {:?}", settings(), key(7));
    for effect in [
        FakeS3Effect::Status(403, "SignatureDoesNotMatch"),
        FakeS3Effect::Status(400, "Odd"),
        FakeS3Effect::Break,
        FakeS3Effect::IgnoreRange,
    ] {
        store.fail(FakeS3Call::Get, TUNING.retries + 1, effect);
        let failed = failed(&upstream).await;
        shown.push_str(&format!("{failed} {failed:?}"));
        store.heal();
    }
    for secret in [SECRET, "Signature=", "0707"] {
        assert!(!shown.contains(secret), "{secret} is in {shown}");
    }
}

#[tokio::test]
async fn requests_and_bytes_are_charged_to_the_budget() {
    let (store, _) = filled();
    let upstream = upstream_with(&UpstreamSettings { requests_per_second: 1, ..settings() }, &store);
    upstream.read(&object(BYTES, None), 0, 1).await.expect("the first one");
    let object = object(BYTES, None);
    // The second read is due in three quarters of a second; the test does not wait for it.
    let second = futures_util::FutureExt::now_or_never(Box::pin(upstream.read(&object, 0, 1)));
    assert!(second.is_none() && store.calls(FakeS3Call::Get) == 1);
}

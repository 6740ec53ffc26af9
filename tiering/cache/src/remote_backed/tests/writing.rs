//! Tests of write-through: a read after an acknowledged write returns that write, whichever lookups began
//! before.

use super::{Bench, CacheState, CachedBucket, MemoryOriginFault, drain, key};
use bytes::Bytes;
use http::HeaderMap;
use mlgw_common::ids::BucketId;
use mlgw_common::{Clock as _, Timestamp};
use mlgw_formats::schema::{BindMode, Binding, Bucket};
use mlgw_remote::origin::{ObjectPart, OriginContent, OriginError, OriginFence};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;

pub(super) fn bucket(bench: &Bench) -> CachedBucket {
    let mode = BindMode::WriteThrough as i32;
    let binding = Binding { upstream: "lake".into(), prefix: "p/".into(), mode, ttl_ms: None };
    bench.bound.bucket(&Bucket { id: 7, ..Bucket::default() }, &binding).unwrap()
}

async fn read(bucket: &CachedBucket) -> Result<(Vec<u8>, CacheState), OriginError> {
    let opened = bucket.open(&key("k"), ObjectPart::Whole).await?;
    let size = opened.object.size;
    Ok((drain(bucket, &opened, 0..size).await?, opened.state))
}

async fn write(bucket: &CachedBucket, content: &'static str) -> Result<(), OriginError> {
    let content = OriginContent::Whole(Bytes::from_static(content.as_bytes()));
    bucket.put(&key("k"), &HeaderMap::new(), content).await.map(drop)
}

async fn wait_for_requests(bench: &Bench, count: usize) {
    while bench.origin.log.lock().len() < count {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn an_acknowledged_write_drops_the_copy() {
    let bench = Bench::new().await;
    let bucket = bucket(&bench);
    for (content, bytes) in [("one", &b"one"[..]), ("three", b"three"), ("", b"")] {
        write(&bucket, content).await.unwrap();
        for state in [CacheState::Miss, CacheState::Hit] {
            assert_eq!(read(&bucket).await, Ok((bytes.to_vec(), state)));
            bench.wait_quiescent().await;
        }
    }
    bucket.delete(&key("k"), &HeaderMap::new()).await.unwrap();
    assert_eq!(read(&bucket).await, Err(OriginError::NoSuchKey));
    write(&bucket, "back").await.unwrap();
    assert_eq!(read(&bucket).await.unwrap().0, b"back", "the absence is not cached");
}

#[tokio::test]
async fn a_lookup_that_began_before_a_write_does_not_restore_the_old_object() {
    for before in [Some("old"), None] {
        let bench = Bench::new().await;
        let (bucket, go) = (bucket(&bench), Arc::new(Semaphore::new(0)));
        if let Some(old) = before {
            bench.origin.put("p/k", old.into());
        }
        bench.origin.fail(MemoryOriginFault::Hold(go.clone()));
        let early = tokio::spawn({
            let bucket = bucket.clone();
            async move { read(&bucket).await }
        });
        wait_for_requests(&bench, 1).await;
        write(&bucket, "new").await.unwrap();
        // A new lookup does not wait for the response to the earlier one.
        assert_eq!(read(&bucket).await.unwrap().0, b"new");
        go.add_permits(1);
        let early = early.await.unwrap();
        assert_eq!(early.ok().map(|(bytes, _)| bytes), before.map(|old| old.as_bytes().to_vec()));
        bench.wait_quiescent().await;
        for _ in 0..3 {
            assert_eq!(read(&bucket).await.unwrap().0, b"new");
        }
    }
}

#[tokio::test]
async fn while_a_write_is_in_flight_each_read_contacts_the_origin() {
    let bench = Bench::new().await;
    let (bucket, go) = (bucket(&bench), Arc::new(Semaphore::new(0)));
    write(&bucket, "old").await.unwrap();
    read(&bucket).await.unwrap();
    bench.wait_quiescent().await;
    bench.origin.take_log();
    bench.origin.fail(MemoryOriginFault::Hold(go.clone()));
    let writing = tokio::spawn({
        let bucket = bucket.clone();
        async move { write(&bucket, "new").await }
    });
    while bench.origin.objects.lock()["p/k"] != "new" {
        tokio::task::yield_now().await;
    }
    for times in 1..4 {
        assert_eq!(read(&bucket).await.unwrap().0, b"new");
        assert_eq!(bench.origin.log.lock().len(), times);
        bench.wait_quiescent().await;
    }
    bench.origin.fail(MemoryOriginFault::Fail(OriginError::TimedOut));
    assert_eq!(read(&bucket).await, Err(OriginError::TimedOut), "what may be old is not served instead");
    go.add_permits(1);
    writing.await.unwrap().unwrap();
    assert_eq!(read(&bucket).await.unwrap().0, b"new");
}

#[tokio::test]
async fn a_write_of_unknown_outcome_is_uncertain_until_it_can_no_longer_be_executed() {
    let bench = Bench::new().await;
    let bucket = bucket(&bench);
    write(&bucket, "old").await.unwrap();
    read(&bucket).await.unwrap();
    bench.wait_quiescent().await;
    let broken = OriginError::ConnectionLost("reset".into());
    bench.origin.fail(MemoryOriginFault::DoneAndFail(broken.clone()));
    assert_eq!(write(&bucket, "new").await, Err(broken.clone()));
    bench.origin.take_log();
    for times in 1..4 {
        assert_eq!(read(&bucket).await.unwrap().0, b"new");
        assert_eq!(bench.origin.log.lock().len(), times, "it may be done once more");
        bench.wait_quiescent().await;
    }
    bench.advance(61);
    for _ in 0..3 {
        assert_eq!(read(&bucket).await.unwrap().0, b"new");
        bench.wait_quiescent().await;
    }
    assert_eq!(bench.origin.take_log().len(), 4);
}

#[tokio::test]
async fn a_write_that_the_origin_did_not_answer_in_time_is_reported_until_it_can_no_longer_be_executed() {
    let bench = Bench::new().await;
    let bucket = bucket(&bench);
    let unanswered_for = || bucket.unanswered_for(&key("k"));
    let lost = OriginError::ConnectionLost("reset".into());
    let late = [OriginError::TimedOut, OriginError::Failed(504)].map(|error| (error, true));
    for (error, is_unanswered) in [(lost, false)].into_iter().chain(late) {
        bench.origin.fail(MemoryOriginFault::DoneAndFail(error.clone()));
        assert_eq!(write(&bucket, "new").await, Err(error.clone()));
        assert_eq!(unanswered_for().is_some(), is_unanswered, "{error}");
        write(&bucket, "again").await.unwrap();
        assert_eq!(unanswered_for().is_some(), is_unanswered, "{error}: it may still arrive");
        bench.advance(61);
        assert_eq!(unanswered_for(), None, "{error}");
    }
}

/// Reads the object `k`, and returns its bytes and the number of requests to the origin.
async fn counted_read(bench: &Bench, bucket: &CachedBucket) -> (Vec<u8>, usize) {
    bench.origin.take_log();
    let (bytes, _) = read(bucket).await.unwrap();
    bench.wait_quiescent().await;
    (bytes, bench.origin.take_log().len())
}

#[tokio::test]
async fn while_another_node_may_change_the_origin_no_answer_is_valid_for_later() {
    let (bench, fence) = (Bench::new().await, OriginFence::new());
    bench.bound.set_fence(fence.clone());
    let bucket = bucket(&bench);
    bench.origin.put("p/k", "old".into());
    assert_eq!(counted_read(&bench, &bucket).await, (b"old".to_vec(), 1));
    // The former node's write arrives at last.
    bench.origin.put("p/k", "new".into());
    assert_eq!(counted_read(&bench, &bucket).await, (b"new".to_vec(), 1));
    fence.open();
    bench.origin.put("p/k", "newer".into());
    assert_eq!(counted_read(&bench, &bucket).await, (b"newer".to_vec(), 1), "also by a slow origin");
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(30)).await;
    tokio::time::resume();
    for requests in [1, 0] {
        assert_eq!(counted_read(&bench, &bucket).await, (b"newer".to_vec(), requests));
    }
    // A lookup that ends after the term leaves nothing that the next term would find valid.
    bench.advance(31);
    let go = Arc::new(Semaphore::new(0));
    bench.origin.fail(MemoryOriginFault::Hold(go.clone()));
    let reading = tokio::spawn({
        let bucket = bucket.clone();
        async move { read(&bucket).await }
    });
    wait_for_requests(&bench, 1).await;
    fence.end(Duration::ZERO).await;
    go.add_permits(1);
    assert_eq!(reading.await.unwrap().unwrap().0, b"newer");
    bench.wait_quiescent().await;
    let copy = bench.bound.copies().unwrap().find(BucketId(7), &key("k")).unwrap();
    assert_eq!(copy.validated_ms, 0);
}

#[tokio::test]
async fn a_cancelled_write_is_uncertain_and_a_rejected_one_is_not() {
    let bench = Bench::new().await;
    let bucket = bucket(&bench);
    write(&bucket, "old").await.unwrap();
    read(&bucket).await.unwrap();
    bench.wait_quiescent().await;
    bench.origin.take_log();
    for undone in [OriginError::Changed, OriginError::Unreachable("refused".into())] {
        bench.origin.fail(MemoryOriginFault::Fail(undone.clone()));
        assert_eq!(write(&bucket, "new").await, Err(undone));
        assert_eq!(read(&bucket).await.unwrap(), (b"old".to_vec(), CacheState::Hit));
    }
    bench.advance(31);
    bench.origin.fail(MemoryOriginFault::Fail(OriginError::Unreachable("refused".into())));
    assert_eq!(read(&bucket).await.unwrap(), (b"old".to_vec(), CacheState::Stale));
    assert_eq!(bench.origin.take_log().len(), 1);
    bench.origin.fail(MemoryOriginFault::Hold(Arc::new(Semaphore::new(0))));
    let gone = mlgw_common::time::timeout(Duration::from_millis(1), write(&bucket, "new")).await;
    assert!(gone.is_err(), "its client disconnected");
    for times in 1..4 {
        assert_eq!(read(&bucket).await.unwrap().0, b"new");
        assert_eq!(bench.origin.log.lock().len(), times);
        bench.wait_quiescent().await;
    }
}

#[tokio::test]
async fn metadata_from_before_a_restart_is_revalidated() {
    let bench = Bench::reopenable(1 << 30).await;
    write(&bucket(&bench), "old").await.unwrap();
    read(&bucket(&bench)).await.unwrap();
    bench.wait_quiescent().await;
    // The write whose traces a crash has erased.
    bench.origin.put("p/k", b"new".to_vec());
    bench.clock.set(Timestamp(bench.clock.now().as_millis() + 1));
    let bench = bench.reopened().await;
    bench.origin.fail(MemoryOriginFault::Fail(OriginError::TimedOut));
    assert_eq!(read(&bucket(&bench)).await, Err(OriginError::TimedOut));
    assert_eq!(read(&bucket(&bench)).await.unwrap(), (b"new".to_vec(), CacheState::Miss));
}

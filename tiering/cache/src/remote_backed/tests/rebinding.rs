//! Tests of moving a bucket: all writes are tracked, no write happens while it is frozen, and known metadata
//! is revalidated.

use super::writing::bucket;
use super::{Bench, CacheState, key};
use crate::remote_backed::TrackedKeys;
use bytes::Bytes;
use http::HeaderMap;
use mlgw_common::{Clock as _, Timestamp};
use mlgw_remote::origin::{ListLine, ListPage, ListQuery, ObjectPart, OriginContent, OriginError};
use std::time::Duration;

const SOON: Duration = Duration::from_millis(20);

#[tokio::test]
async fn every_write_that_ends_while_tracked_is_recorded_whatever_its_result() {
    let bench = Bench::new().await;
    let bucket = bucket(&bench);
    let put = async |name: &str| {
        let content = OriginContent::Whole(Bytes::from_static(b"x"));
        bucket.put(&key(name), &HeaderMap::new(), content).await
    };
    put("before").await.unwrap();
    let listening = bucket.track_writes();
    put("a").await.unwrap();
    bucket.delete(&key("b"), &HeaderMap::new()).await.unwrap();
    bench.origin.fail(super::MemoryOriginFault::Fail(OriginError::TimedOut));
    assert!(put("c").await.is_err());
    drop(bucket.set_tags(&key("d"), &[]).await);
    let recorded =
        |changed: TrackedKeys| changed.keys.iter().map(|key| key.as_str().to_owned()).collect::<Vec<_>>();
    let changed = listening.take();
    assert_eq!(recorded(changed.clone()), ["a", "b", "c", "d"]);
    assert_eq!(listening.take(), TrackedKeys::default());
    listening.put_back(changed.keys);
    put("e").await.unwrap();
    assert_eq!(recorded(listening.take()), ["a", "b", "c", "d", "e"]);
    drop(listening);
    put("f").await.unwrap();
    assert_eq!(bucket.track_writes().take(), TrackedKeys::default(), "no keys were tracked");
}

#[tokio::test]
async fn a_write_delays_the_freeze_and_the_freeze_delays_writes() {
    let bench = Bench::new().await;
    let bucket = bucket(&bench);
    let pass = bucket.begin_write().await;
    assert!(bucket.freeze(SOON).await.is_none());
    // A freeze that was given up delays no write.
    drop(mlgw_common::time::timeout(SOON, bucket.begin_write()).await.unwrap());
    drop(pass);
    let frozen = bucket.freeze(SOON).await.unwrap();
    assert!(mlgw_common::time::timeout(SOON, bucket.begin_write()).await.is_err());
    bucket.forget();
    assert!(
        mlgw_common::time::timeout(SOON, bucket.begin_write()).await.is_err(),
        "to forget does not end it"
    );
    drop(frozen);
    mlgw_common::time::timeout(SOON, bucket.begin_write()).await.unwrap();
}

#[tokio::test]
async fn known_metadata_is_revalidated_and_identical_copies_stay() {
    let bench = Bench::new().await;
    bench.put(1, 1000);
    bench.read(ObjectPart::Whole).await.unwrap();
    bench.wait_quiescent().await;
    assert_eq!(bench.read(ObjectPart::Whole).await.unwrap().1, CacheState::Hit);
    let before = bench.origin.log.lock().len();
    let old = bench.bucket();
    old.mark_rebound();
    assert!(!old.is_current() && bench.bucket().is_current());
    bench.clock.set(Timestamp(bench.clock.now().as_millis() + 2));
    let (content, _) = bench.read(ObjectPart::Whole).await.unwrap();
    assert_eq!((content.len(), bench.origin.log.lock().len()), (1000, before + 1));
    bench.wait_quiescent().await;
    assert_eq!(bench.read(ObjectPart::Whole).await.unwrap().1, CacheState::Hit);
    assert_eq!(bench.origin.log.lock().len(), before + 1, "then it is valid");
}

#[tokio::test]
async fn responses_of_the_old_origin_are_not_stored() {
    let bench = Bench::new().await;
    let old = bench.bucket();
    old.mark_rebound();
    bench.put(1, 1000);
    old.open(&key("k"), ObjectPart::Whole).await.unwrap();
    assert_eq!(old.open(&key("none"), ObjectPart::Whole).await.err(), Some(OriginError::NoSuchKey));
    bench.wait_quiescent().await;
    let before = bench.origin.log.lock().len();
    bench.read(ObjectPart::Whole).await.unwrap();
    assert_eq!(bench.origin.log.lock().len(), before + 1, "it is requested again");
    assert_eq!(bench.bucket().head(&key("none")).await.err(), Some(OriginError::NoSuchKey));
    assert_eq!(bench.origin.log.lock().len(), before + 2);
}

#[tokio::test]
async fn an_object_that_changed_only_in_time_is_looked_up_again() {
    let bench = Bench::new().await;
    bench.put(1, 1000);
    bench.read(ObjectPart::Whole).await.unwrap();
    bench.wait_quiescent().await;
    for (modified_ms, is_looked_up) in [(None, false), (Some(999), false), (Some(5_000), true)] {
        bench.bucket().refresh("");
        bench.origin.fail(super::MemoryOriginFault::Fail(OriginError::NotModified(modified_ms)));
        let before = bench.origin.log.lock().len();
        bench.bucket().open(&key("k"), ObjectPart::Whole).await.unwrap();
        let heads = bench.origin.log.lock()[before..].iter().filter(|line| *line == "head").count();
        assert_eq!(heads, usize::from(is_looked_up), "{modified_ms:?}");
        bench.wait_quiescent().await;
        assert_eq!(bench.read(ObjectPart::Whole).await.unwrap().1, CacheState::Hit, "its bytes are kept");
    }
}

#[tokio::test]
async fn a_page_without_lines_does_not_end_a_listing() {
    let bench = Bench::new().await;
    let page = |lines, next: Option<&str>| ListPage { lines, next: next.map(str::to_owned) };
    let line = ListLine::Object("p/k".into(), Box::default());
    bench.origin.pages.lock().extend([
        page(vec![], Some("1")),
        page(vec![], Some("2")),
        page(vec![line], None),
    ]);
    let query = ListQuery { max_keys: 10, ..ListQuery::default() };
    let found = bench.bucket().list(query).await.unwrap();
    assert_eq!((found.lines.len(), found.lines[0].name(), found.next), (1, "k", None));
    assert_eq!(*bench.origin.log.lock(), ["list ", "list 1", "list 2"]);
}

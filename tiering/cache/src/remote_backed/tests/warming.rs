//! Tests of warming and clearing: each block is fetched once, whoever else needs it, by a clock that the test
//! sets.

use super::{BLOCK, Bench, CacheState, ObjectPart, key};
use crate::copies::PinnedCopies;
use crate::remote_backed::WarmedObject;
use mlgw_common::ids::BucketId;
use mlgw_common::limits::{JOB_BLOCKS_MAX, MIB};
use mlgw_common::{Clock as _, ObjectKey};
use mlgw_formats::schema::ObjectVersion;
use mlgw_remote::origin::OriginError;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;

impl Bench {
    /// Returns the metadata of the object `k` as a listing has it.
    async fn listed(&self) -> ObjectVersion {
        use mlgw_remote::origin::Origin as _;
        let object = self.origin.head("p/k").await.unwrap();
        self.origin.take_log();
        object
    }

    async fn warm(&self, listed: &ObjectVersion) -> Result<WarmedObject, OriginError> {
        let places = Arc::new(Semaphore::new(JOB_BLOCKS_MAX));
        let warmed = self.bucket().warm(&key("k"), listed, self.clock.now(), &places, &|_| {}).await;
        assert_eq!(places.available_permits(), JOB_BLOCKS_MAX, "all permits are returned");
        warmed
    }
}

fn fetched(bytes: u64) -> Result<WarmedObject, OriginError> {
    Ok(WarmedObject { fetched_bytes: bytes, refused_bytes: 0 })
}

#[tokio::test]
async fn a_warm_fetches_missing_blocks_once() {
    let bench = Bench::new().await;
    for (seed, bytes) in [(1, 0), (2, 5000), (3, 3 * MIB), (4, 3 * BLOCK + 17)] {
        let content = bench.put(seed, bytes as usize);
        let listed = bench.listed().await;
        assert_eq!(bench.warm(&listed).await, fetched(bytes), "{bytes}");
        bench.origin.take_log();
        assert_eq!(bench.warm(&listed).await, fetched(0), "{bytes}");
        let (read, state) = bench.read(ObjectPart::Whole).await.unwrap();
        assert!(read == content && state == CacheState::Hit, "{bytes}");
        assert!(bench.origin.take_log().is_empty(), "{bytes}");
    }
}

#[tokio::test]
async fn metadata_confirmed_by_a_listing_is_valid_again() {
    let bench = Bench::new().await;
    bench.put(1, 5000);
    let listed = bench.listed().await;
    bench.warm(&listed).await.unwrap();
    bench.origin.take_log();
    bench.advance(3600);
    bench.warm(&listed).await.unwrap();
    assert_eq!(bench.read(ObjectPart::Whole).await.unwrap().1, CacheState::Hit);
    assert!(bench.origin.take_log().is_empty());
}

#[tokio::test]
async fn a_reader_and_a_warm_fetch_each_block_once() {
    let bench = Bench::new().await;
    let content = bench.put(1, (3 * BLOCK) as usize);
    let listed = bench.listed().await;
    let (read, warmed) = tokio::join!(bench.whole(), bench.warm(&listed));
    assert!(read == content && warmed.is_ok());
    bench.wait_quiescent().await;
    assert_eq!(
        bench.origin.take_log(),
        ["whole"],
        "the warm job uses the rest of the reader's response, too"
    );
}

#[tokio::test]
async fn a_copy_that_may_be_old_is_no_success() {
    let bench = Bench::new().await;
    bench.put(1, 5000);
    bench.warm(&bench.listed().await).await.unwrap();
    bench.put(2, 5000);
    let listed = bench.listed().await;
    bench.origin.fail(super::MemoryOriginFault::Fail(OriginError::TimedOut));
    assert!(bench.warm(&listed).await.is_err_and(|error| error.is_transient()));
    assert_eq!(bench.warm(&listed).await, fetched(5000));
}

#[tokio::test]
async fn copies_that_were_not_read_for_the_given_time_are_dropped() {
    let bench = Bench::new().await;
    bench.put(1, 5000);
    bench.warm(&bench.listed().await).await.unwrap();
    let drop_unread = |secs| bench.bucket().drop_copies("", None, Some(Duration::from_secs(secs))).objects;
    bench.advance(1000);
    assert_eq!(drop_unread(1001), 0);
    // The read time is recorded.
    let bucket = bench.bucket();
    let opened = bucket.open(&key("k"), ObjectPart::Whole).await.unwrap();
    assert_eq!(bucket.record_response(&key("k"), &opened, &(0..5000)), CacheState::Hit);
    bench.advance(500);
    assert_eq!((drop_unread(501), drop_unread(500), drop_unread(0)), (0, 1, 0));
    assert_eq!(bucket.count_copies("", None).objects, 0);
}

#[tokio::test]
async fn scans_are_limited_to_their_prefix_and_count_copies() {
    let bench = Bench::new().await;
    bench.put(1, 5000);
    bench.warm(&bench.listed().await).await.unwrap();
    let bucket = bench.bucket();
    let count =
        |prefix: &str| (bucket.count_copies(prefix, None).objects, bucket.count_copies(prefix, None).bytes);
    assert_eq!((count(""), count("k"), count("l")), ((1, 5000), (1, 5000), (0, 0)));
    assert_eq!(bucket.drop_copies("l", None, None).objects, 0);
    let gone = bucket.drop_copies("k", None, None);
    assert_eq!((gone.objects, gone.bytes, gone.next), (1, 5000, None));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pinned_copies_are_not_evicted_and_cleared_ones_release_their_disk_space() {
    let bench = Bench::with_capacity(32 * MIB).await;
    let copies = bench.bound.copies().unwrap();
    copies.set_pins(vec![PinnedCopies {
        bucket: BucketId(7),
        prefixes: vec!["kept/".into()],
        keys: None,
        bytes_max: copies.pinned_bytes_max(),
    }]);
    let places = Arc::new(Semaphore::new(JOB_BLOCKS_MAX));
    let bucket = bench.bucket();
    let warm = async |name: String| {
        bench.origin.put(&format!("p/{name}"), vec![name.len() as u8; MIB as usize]);
        use mlgw_remote::origin::Origin as _;
        let listed = bench.origin.head(&format!("p/{name}")).await.unwrap();
        let key = ObjectKey::new(&name).unwrap();
        bucket.warm(&key, &listed, bench.clock.now(), &places, &|_| {}).await.unwrap();
    };
    for n in 0..8 {
        warm(format!("kept/{n}")).await;
    }
    let mut n = 0;
    while copies.metrics().evicted_bytes < 40 * MIB {
        warm(format!("other/{n}")).await;
        n += 1;
        assert!(n < 2000, "no eviction is necessary");
    }
    assert_eq!(bucket.count_copies("kept/", None).bytes, 8 * MIB);
    for prefix in ["kept/", "other/"] {
        assert!(bucket.drop_copies(prefix, None, None).objects > 0, "{prefix}");
    }
    let before = copies.metrics().used_bytes;
    assert!(bucket.release().await > 0 && copies.metrics().used_bytes < before);
}

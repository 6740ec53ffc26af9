//! Tests of read-ahead: expected blocks are requested once before they are read, and no decision changes.

use super::keeping::CALLER;
use super::{BLOCK, Bench, CacheState, MIB, ObjectPart, key};
use mlgw_common::Clock as _;
use mlgw_common::limits::JOB_BLOCKS_MAX;
use mlgw_remote::origin::Origin as _;
use std::sync::Arc;
use tokio::sync::Semaphore;

impl Bench {
    /// Counts the requests of the origin for each of these names since the last call.
    fn request_counts(&self, names: &[String]) -> Vec<usize> {
        let log = self.origin.take_keys();
        names
            .iter()
            .map(|name| log.iter().filter(|requested| **requested == format!("p/{name}")).count())
            .collect()
    }
}

#[tokio::test]
async fn objects_read_in_order_are_requested_ahead_and_each_once() {
    let bench = Bench::with_policy_driver(256 * MIB).await;
    let names: Vec<String> = (0..60).map(|n| format!("shards/shard-{n:05}.tar")).collect();
    names.iter().for_each(|name| bench.put_named(name, 100_000));
    bench.origin.take_keys();
    let mut ahead = 0;
    for (n, name) in names.iter().enumerate() {
        bench.get(name, ObjectPart::Whole, CALLER).await.unwrap();
        bench.finish_read_ahead().await;
        ahead += usize::from(
            n + 1 < names.len() && bench.origin.keys_so_far().contains(&format!("p/{}", names[n + 1])),
        );
    }
    assert!(ahead >= 50, "{ahead} of 59 were requested ahead");
    assert!(bench.request_counts(&names).iter().all(|times| *times == 1), "each once");
    bench.wait_consistent().await;
    let metrics = bench.policy_driver().metrics();
    assert!(metrics.ahead[0] + metrics.ahead[1] >= 50, "{metrics:?}");
}

#[tokio::test]
async fn parts_read_in_order_have_the_next_blocks_fetched() {
    let bench = Bench::with_policy_driver(256 * MIB).await;
    bench.put_named("large", 12 * BLOCK as usize);
    let part = BLOCK / 4;
    for n in 0..48 {
        bench.get("large", ObjectPart::Range { first: n * part, end: (n + 1) * part }, CALLER).await.unwrap();
        bench.finish_read_ahead().await;
    }
    let metrics = bench.policy_driver().metrics();
    assert!(metrics.ahead[0] + metrics.ahead[1] >= 6, "{metrics:?}");
    assert!(bench.origin.take_keys().len() <= 13, "each block once");
    bench.wait_consistent().await;
}

#[tokio::test]
async fn reads_in_random_order_are_not_read_ahead() {
    let bench = Bench::with_policy_driver(256 * MIB).await;
    let names: Vec<String> = (0..1000).map(|n| format!("set/{n:05}")).collect();
    names.iter().for_each(|name| bench.put_named(name, 1000));
    let mut rng = fastrand::Rng::with_seed(4);
    let mut order = names.clone();
    rng.shuffle(&mut order);
    bench.origin.take_keys();
    for name in &order {
        bench.get(name, ObjectPart::Whole, CALLER).await.unwrap();
        bench.finish_read_ahead().await;
    }
    let fetched = bench.origin.take_keys().len();
    assert!(
        fetched <= 1250,
        "almost nothing is fetched without a reader: {fetched}, {:?}",
        bench.policy_driver().metrics()
    );
}

#[tokio::test]
async fn a_block_read_ahead_and_then_warmed_is_kept_without_a_reader() {
    let bench = Bench::with_policy_driver(256 * MIB).await;
    let names: Vec<String> = (0..12).map(|n| format!("shards/shard-{n:05}.tar")).collect();
    names.iter().for_each(|name| bench.put_named(name, 100_000));
    for name in &names[..10] {
        bench.get(name, ObjectPart::Whole, CALLER).await.unwrap();
        bench.finish_read_ahead().await;
    }
    bench.origin.take_keys();
    let places = Arc::new(Semaphore::new(JOB_BLOCKS_MAX));
    for name in &names[10..] {
        let listed = bench.origin.head(&format!("p/{name}")).await.unwrap();
        bench.bucket().warm(&key(name), &listed, bench.clock.now(), &places, &|_| {}).await.unwrap();
    }
    bench.wait_consistent().await;
    for name in &names[10..] {
        assert_eq!(bench.get(name, ObjectPart::Whole, CALLER).await, Ok(CacheState::Hit), "{name}");
    }
    let requested = bench.origin.take_keys();
    assert!(!requested.contains(&format!("p/{}", names[10])), "it was in flight: {requested:?}");
}

//! Tests of retention by the policy engine: the copies present are those that it keeps, and readers get the
//! origin's bytes whatever it decides.

use super::{BLOCK, Bench, CacheState, MIB, MemoryOriginFault, ObjectPart, key, leak, open};
use crate::copies::{KeptPage, PinnedCopies};
use crate::policy_driver::{PolicyDriver, PolicyRequestContext};
use fastrand::Rng;
use mlgw_common::ids::BucketId;
use mlgw_policies::Caller;
use mlgw_policies::language::Program;
use mlgw_remote::origin::OriginError;
use std::collections::BTreeSet;
use std::sync::Arc;

fn rules() -> Arc<Program> {
    Arc::new(Program::compile_built_in().unwrap())
}

pub(super) const CALLER: Caller = Caller { id: 1, family: 1 };

impl Bench {
    pub(super) async fn with_policy_driver(capacity_bytes: u64) -> Self {
        let bench = Self::reopenable(capacity_bytes).await.with_new_policy_driver(capacity_bytes).await;
        leak(&bench.bound);
        bench
    }

    /// Reopens the buckets, as after a restart, with an empty engine.
    async fn with_new_policy_driver(self, capacity_bytes: u64) -> Self {
        self.bound.copies().unwrap().shutdown().await;
        let Self { room, origin, clock, bound } = self;
        drop(bound);
        let policy_driver = Some(PolicyDriver::new(1 << 16, rules(), &*clock));
        let bound = open(room.path(), origin.clone(), clock.clone(), capacity_bytes, policy_driver).await;
        Self { room, origin, clock, bound }
    }

    pub(super) fn policy_driver(&self) -> &PolicyDriver {
        self.bound.policy_driver().unwrap()
    }

    pub(super) fn put_named(&self, name: &str, bytes: usize) {
        let seed = mlgw_common::checksum::crc32c(name.as_bytes()) as u8;
        self.origin
            .put(&format!("p/{name}"), (0..bytes).map(|at| (at / 251) as u8 ^ at as u8 ^ seed).collect());
    }

    /// Reads as a client does. Returns the cache state of the response.
    pub(super) async fn get(
        &self,
        name: &str,
        part: ObjectPart,
        caller: Caller,
    ) -> Result<CacheState, OriginError> {
        let bucket = self.bucket();
        let opened = bucket.open(&key(name), part).await?;
        let range = super::of(part, opened.object.size);
        let state = bucket.record_response(&key(name), &opened, &range);
        let mut reader =
            bucket.read(&key(name), &opened, range.clone(), Some(&PolicyRequestContext::of_caller(caller)));
        let mut read = Vec::new();
        while let Some(piece) = reader.next().await? {
            read.extend_from_slice(&piece);
        }
        let whole = self.origin.objects.lock()[&format!("p/{name}")].clone();
        assert!(read == whole[range.start as usize..range.end as usize], "{name} {range:?}");
        Ok(state)
    }

    /// Returns the ids of the blocks present.
    fn present_ids(&self) -> BTreeSet<u64> {
        let (mut ids, mut from) = (BTreeSet::new(), None);
        loop {
            let KeptPage { blocks, next } = self.bound.copies().unwrap().kept_blocks(from);
            ids.extend(blocks.iter().map(|block| block.id));
            match next {
                Some(next) => from = Some(next),
                None => return ids,
            }
        }
    }

    /// Waits until no read-ahead is in flight.
    pub(super) async fn finish_read_ahead(&self) {
        let inner = self.bound.inner.as_ref().unwrap();
        while inner.read_ahead_permits.available_permits() < mlgw_common::limits::READ_AHEAD_OBJECTS_MAX {
            tokio::task::yield_now().await;
        }
    }

    /// Waits until all decisions are executed, and checks that the blocks present are those that the engine
    /// keeps.
    pub(super) async fn wait_consistent(&self) {
        self.wait_quiescent().await;
        let mut looks = 0;
        while self.present_ids() != self.kept() {
            looks += 1;
            assert!(looks < 2000, "here {} kept {}", self.present_ids().len(), self.kept().len());
            mlgw_common::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    }

    fn kept(&self) -> BTreeSet<u64> {
        self.policy_driver().kept_ids().into_iter().collect()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_blocks_present_are_those_of_the_engine_whatever_is_read_or_fails() {
    let bench = Arc::new(Bench::with_policy_driver(48 * MIB).await);
    let sizes = [100_000, 900_000, 3 * MIB as usize, BLOCK as usize + 5, 2 * BLOCK as usize + 4321];
    for n in 0..30 {
        bench.put_named(&format!("set/{n:03}"), sizes[n % 5]);
        bench.put_named(&format!("other/{n}/x"), sizes[n % 3]);
    }
    let readers: Vec<_> = (0..4)
        .map(|seed| {
            let bench = bench.clone();
            tokio::spawn(async move {
                let mut rng = Rng::with_seed(seed);
                for _ in 0..120 {
                    let n = rng.usize(..30);
                    let name = if rng.u8(..3) > 0 { format!("set/{n:03}") } else { format!("other/{n}/x") };
                    let part = match rng.u8(..4) {
                        0 => ObjectPart::Range { first: rng.u64(..50_000), end: 50_000 + rng.u64(1..50_000) },
                        1 => ObjectPart::Last(rng.u64(1..99_000)),
                        _ => ObjectPart::Whole,
                    };
                    match rng.u8(..20) {
                        0 => bench.origin.fail(MemoryOriginFault::Cut(rng.usize(..99_999))),
                        1 => bench.put_named(&name, 100_000 + rng.usize(..900_000)),
                        2 => bench.bound.copies().unwrap().forget(BucketId(7), &key(&name)),
                        _ => {}
                    }
                    // An object that is replaced during a read is read again by the gateway.
                    let read = bench.bucket().open(&key(&name), part).await;
                    let Ok(opened) = read else { continue };
                    let range = super::of(part, opened.object.size);
                    let caller = Caller { id: seed, family: 1 };
                    let mut reader = bench.bucket().read(
                        &key(&name),
                        &opened,
                        range,
                        Some(&PolicyRequestContext::of_caller(caller)),
                    );
                    while let Ok(Some(_)) = reader.next().await {
                        if rng.u8(..50) == 0 {
                            break;
                        }
                    }
                }
            })
        })
        .collect();
    for reader in readers {
        reader.await.unwrap();
    }
    bench.wait_consistent().await;
    assert!(bench.policy_driver().metrics().evicted > 0 && bench.policy_driver().metrics().bypassed > 0);
}

#[tokio::test]
async fn over_epochs_as_much_is_found_here_as_fits() {
    let bench = Bench::with_policy_driver(32 * MIB).await;
    let names: Vec<String> = (0..60).map(|n| format!("train/{n:05}.bin")).collect();
    names.iter().for_each(|name| bench.put_named(name, MIB as usize));
    let mut rng = Rng::with_seed(5);
    let mut hits = [0; 5];
    for hits in &mut hits {
        let mut order = names.clone();
        rng.shuffle(&mut order);
        for name in &order {
            let state = bench.get(name, ObjectPart::Whole, CALLER).await.unwrap();
            *hits += u32::from(state == CacheState::Hit);
            bench.wait_quiescent().await;
        }
        // The clock stands still; otherwise all objects would be revalidated.
    }
    let fits = bench.policy_driver().metrics().capacity_bytes / MIB;
    // No cache has more hits than fit; one that evicts by age has a seventh of that here.
    assert!(hits[0] == 0 && hits[2..].iter().all(|hits| u64::from(*hits) + 1 >= fits), "{hits:?} of {fits}");
    bench.wait_consistent().await;
}

#[tokio::test]
async fn a_pass_through_read_fetches_only_the_bytes_read() {
    let bench = Bench::with_policy_driver(16 * MIB).await;
    for n in 0..40 {
        bench.put_named(&format!("set/{n:02}"), 4 * MIB as usize);
    }
    // In the first pass everything that fits is kept; in the second one nothing is worth more than that.
    for n in (0..40).chain(0..40) {
        bench.get(&format!("set/{n:02}"), ObjectPart::Whole, CALLER).await.unwrap();
        bench.wait_quiescent().await;
    }
    let passes = (0..40).map(|n| format!("set/{n:02}"));
    let passed: Vec<String> = passes
        .filter(|name| !bench.present_ids().contains(&crate::copies::block_id(BucketId(7), &key(name), 0)))
        .collect();
    assert!(passed.len() > 30);
    bench.origin.take_log();
    // The order avoids read-ahead.
    for name in passed.iter().step_by(2).chain(passed.iter().skip(1).step_by(2)).rev() {
        bench.get(name, ObjectPart::Range { first: 1000, end: 3000 }, CALLER).await.unwrap();
    }
    bench.wait_quiescent().await;
    let log = bench.origin.take_log();
    assert!(log.iter().all(|requested| requested == "1000-3000"), "{log:?}");
    assert!(log.len() <= passed.len(), "each once");
    bench.wait_consistent().await;
}

#[tokio::test]
async fn an_opened_object_that_is_not_read_is_not_kept() {
    let bench = Bench::with_policy_driver(16 * MIB).await;
    bench.put_named("k", 5000);
    let bucket = bench.bucket();
    let opened = bucket.open(&key("k"), ObjectPart::Whole).await.unwrap();
    assert_eq!(bench.active_fetches(), 1, "its reader has not requested retention yet");
    drop(opened);
    bench.wait_consistent().await;
    assert!(bench.present_ids().is_empty());
    bench.get("k", ObjectPart::Whole, CALLER).await.unwrap();
    bench.wait_consistent().await;
    assert_eq!(bench.present_ids().len(), 1);
}

#[tokio::test]
async fn pinned_blocks_stay_and_unpinned_blocks_may_go() {
    let bench = Bench::with_policy_driver(32 * MIB).await;
    let pin = |slice: &str| PinnedCopies {
        bucket: BucketId(7),
        prefixes: vec![slice.to_owned()],
        keys: None,
        bytes_max: u64::MAX,
    };
    bench.bound.set_pins(vec![pin("kept/")]);
    for n in 0..8 {
        bench.put_named(&format!("kept/{n}"), MIB as usize);
        bench.get(&format!("kept/{n}"), ObjectPart::Whole, CALLER).await.unwrap();
    }
    for n in 0..100 {
        bench.put_named(&format!("other/{n}"), MIB as usize);
        bench.get(&format!("other/{n}"), ObjectPart::Whole, CALLER).await.unwrap();
    }
    bench.wait_consistent().await;
    assert_eq!(bench.policy_driver().metrics().pinned_bytes, 8 * MIB);
    assert_eq!(bench.bucket().count_copies("kept/", None).bytes, 8 * MIB);
    bench.bound.set_pins(vec![pin("other/1")]);
    let mut looks = 0;
    while bench.policy_driver().metrics().pinned_bytes == 8 * MIB && looks < 2000 {
        looks += 1;
        mlgw_common::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    let pinned = bench.bucket().count_copies("other/1", None).bytes;
    assert_eq!(
        bench.policy_driver().metrics().pinned_bytes,
        pinned.min(bench.bound.copies().unwrap().pinned_bytes_max())
    );
    bench.wait_consistent().await;
}

#[tokio::test]
async fn after_a_restart_the_blocks_present_are_accounted_for() {
    let bench = Bench::reopenable(32 * MIB).await.with_new_policy_driver(32 * MIB).await;
    for n in 0..20 {
        bench.put_named(&format!("set/{n:02}"), MIB as usize);
        bench.get(&format!("set/{n:02}"), ObjectPart::Whole, CALLER).await.unwrap();
    }
    bench.wait_consistent().await;
    let before = bench.present_ids();
    assert!(before.len() >= 15);
    let bench = bench.with_new_policy_driver(32 * MIB).await;
    bench.wait_consistent().await;
    assert_eq!(bench.present_ids(), before);
    // With less capacity some blocks are evicted.
    let bench = bench.with_new_policy_driver(16 * MIB).await;
    leak(&bench.bound);
    bench.wait_consistent().await;
    assert!(
        !bench.present_ids().is_empty()
            && bench.present_ids().len() < before.len()
            && bench.present_ids().is_subset(&before)
    );
}

//! Tests of blocks that are evicted while they are read: readers fetch them again, and never read a hole.

use super::{BLOCK, Bench, CacheState, ObjectPart, key};
use crate::copies::block_id;
use mlgw_common::ids::BucketId;
use mlgw_formats::decision_words::DecisionReason;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

impl Bench {
    fn ids(&self, blocks: u64) -> Vec<u64> {
        (0..blocks).map(|number| block_id(BucketId(7), &key("k"), number)).collect()
    }

    async fn evict(&self, blocks: u64) -> u64 {
        let copies = self.bound.copies().unwrap();
        copies.evict_blocks(&self.ids(blocks), DecisionReason::Policy.into()).await.blocks
    }
}

#[tokio::test]
async fn a_reader_in_the_middle_of_an_evicted_block_reads_on() {
    let bench = Bench::new().await;
    for (seed, bytes, blocks) in [(1, 900_000, 1), (2, 3 * BLOCK as usize + 17, 4)] {
        let content = bench.put(seed, bytes);
        bench.advance(31);
        bench.whole().await;
        bench.wait_quiescent().await;
        let bucket = bench.bucket();
        let opened = bucket.open(&key("k"), ObjectPart::Whole).await.unwrap();
        assert!(opened.state == CacheState::Hit);
        let mut reader = bucket.read(&key("k"), &opened, 0..opened.object.size, None);
        let mut read = reader.next().await.unwrap().unwrap().to_vec();
        assert!(read.len() < bytes, "it is in the middle of a chunk");
        bench.origin.take_log();
        assert_eq!(bench.evict(blocks).await, blocks);
        assert!(bench.bound.copies().unwrap().metrics().used_bytes < 100_000, "the disk is given back");
        while let Some(piece) = reader.next().await.unwrap() {
            read.extend_from_slice(&piece);
        }
        assert!(read == content);
        assert_eq!(bench.origin.take_log().len() as u64, blocks, "each is fetched once more");
        bench.wait_quiescent().await;
        assert!(bench.whole().await == content && bench.origin.take_log().is_empty(), "and kept");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_match_the_origin_however_often_blocks_are_evicted() {
    let bench = Arc::new(Bench::new().await);
    let content = Arc::new(bench.put(3, 2 * BLOCK as usize + 4321));
    let gone = Arc::new(AtomicU64::new(0));
    let readers: Vec<_> = (0..3)
        .map(|_| {
            let (bench, content, gone) = (bench.clone(), content.clone(), gone.clone());
            tokio::spawn(async move {
                while gone.load(Relaxed) < 40 {
                    assert!(bench.whole().await == *content);
                    // Reads from the page cache never yield; other tasks must run in between.
                    tokio::task::yield_now().await;
                }
            })
        })
        .collect();
    while readers.iter().any(|reader| !reader.is_finished()) {
        gone.fetch_add(bench.evict(3).await, Relaxed);
        mlgw_common::time::sleep(std::time::Duration::from_millis(3)).await;
    }
    for reader in readers {
        reader.await.unwrap();
    }
}

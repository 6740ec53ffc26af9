//! Random schedules against accounts and a map: every read returns the right bytes or no copy, and the
//! reported usage matches the disk.

use super::{BLOCK, Bench, MIB, all, copy_dir, id, key};
use crate::copies::tests::BUCKET;
use fastrand::Rng;

/// Number of objects; every fifth has several blocks.
const OBJECTS: u64 = 40;
const BLOCKS: u64 = 3;
const STEPS: u64 = 1200;

struct Model {
    bench: Bench,
    rng: Rng,
    /// Copy of the index at its last flush, if there was one.
    flushed: Option<tempfile::TempDir>,
    /// Reads that found a copy, and reads that found none.
    reads: [u64; 2],
}

impl Model {
    fn object(&mut self) -> (String, u64, u64) {
        let n = self.rng.u64(..OBJECTS);
        let is_large = n.is_multiple_of(5);
        let number = if is_large { self.rng.u64(..BLOCKS) } else { 0 };
        (format!("o/{n}"), number, if is_large { BLOCKS * BLOCK } else { 300_000 })
    }

    async fn step(mut self) -> Self {
        let (name, number, size) = self.object();
        match self.rng.u32(..100) {
            0..40 => self.keep(&name, number, size).await,
            40..60 => {
                let found = self.bench.read(&name, number).await.is_some();
                self.reads[usize::from(!found)] += 1;
            }
            60..80 => {
                let more = self.object();
                self.bench.evict(&[id(&name, number), id(&more.0, more.1)]).await;
            }
            80..84 => self.bench.copies.forget(BUCKET, &key(&name)),
            84..88 => drop(self.bench.record_object(&name, self.rng.u64(..3), size)),
            88..94 => drop(self.bench.copies.inner.run_pass().await),
            94..96 => {
                self.bench.copies.inner.flush().await.unwrap();
                let room = tempfile::tempdir().unwrap();
                copy_dir(&self.bench.room.path().join("index"), room.path());
                self.flushed = Some(room);
            }
            96..98 => self.bench = self.bench.reopened().await,
            98 if self.flushed.is_some() => return self.crash().await,
            _ => self.bench.check_given_back().await,
        }
        self
    }

    async fn keep(&mut self, name: &str, number: u64, size: u64) {
        let known = self.bench.copies.find(BUCKET, &key(name)).map(|copy| copy.object);
        let object = match known {
            Some(object) => object,
            None => self.bench.record_object(name, self.rng.u64(..3), size),
        };
        let bytes = match self.rng.u32(..10) {
            0..3 => self.rng.usize(1..6000),
            3..9 => self.rng.usize(1..300_000),
            _ => self.rng.usize(1..3 * MIB as usize),
        };
        self.bench.keep(name, &object, number, bytes).await;
    }

    /// Crashes: the index returns to the state of its last flush, the segments stay as they are.
    async fn crash(self) -> Self {
        let (capacity_bytes, holes) = (self.bench.capacity_bytes, self.bench.holes);
        let room = self.bench.end(false).await;
        std::fs::remove_dir_all(room.path().join("index")).unwrap();
        copy_dir(self.flushed.as_ref().unwrap().path(), &room.path().join("index"));
        let bench = Bench::over(room, capacity_bytes, holes).await;
        // A second crash goes back no further than the first one.
        Self { bench, flushed: None, ..self }
    }
}

impl Bench {
    async fn check_given_back(&self) {
        self.copies.inner.reclaim().await;
        self.check().await;
    }
}

async fn run(seed: u64, capacity_bytes: u64, holes: bool) {
    let bench = Bench::over(tempfile::tempdir().unwrap(), capacity_bytes, holes).await;
    let mut model = Model { bench, rng: Rng::with_seed(seed), flushed: None, reads: [0; 2] };
    for _ in 0..STEPS {
        model = model.step().await;
    }
    assert!(model.reads.iter().all(|reads| *reads > STEPS / 40), "both were seen: {:?}", model.reads);
    let bench = model.bench;
    bench.check_given_back().await;
    let ids: Vec<u64> = all(&bench.copies).map(|block| block.id).collect();
    bench.evict(&ids).await;
    bench.copies.inner.run_pass().await;
    bench.check().await;
    let metrics = bench.copies.metrics();
    // Only open segments remain, with edges in them.
    assert!(
        metrics.live_bytes == 0 && (!holes || bench.disk_bytes() <= 8 * super::SLACK_BYTES),
        "{metrics:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_schedule_returns_right_bytes_or_none() {
    for seed in 1..=3 {
        run(seed, 256 * MIB, true).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_schedule_is_right_with_little_space_and_without_holes() {
    run(4, 16 * MIB, true).await;
    run(5, 16 * MIB, false).await;
}

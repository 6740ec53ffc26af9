//! Time that ten million events take. Run by hand: `cargo test --release -p mlgw-lab -- --ignored
//! --nocapture speed`.

use crate::reference::{EpochHazard, Event, Sieve, optimum};
use mlgw_common::time::Instant;
use mlgw_policies::access::Op;
use mlgw_policies::reference::{Lru, NeverEvict, ReferenceCache, S3Fifo};

const EVENTS: usize = 10_000_000;
const BLOCKS: u32 = 1_000_000;

#[test]
#[ignore = "takes half a minute"]
fn speed() {
    let mut random = fastrand::Rng::with_seed(1);
    let skewed = |random: &mut fastrand::Rng| (random.f64().powi(3) * f64::from(BLOCKS)) as u32;
    let events: Vec<_> =
        (0..EVENTS).map(|_| Event { block: skewed(&mut random), bytes: 1000, op: Op::Read }).collect();
    let capacity = u64::from(BLOCKS) * 200;
    let caches: [(&str, Box<dyn ReferenceCache>); 4] = [
        ("lru", Box::new(Lru::new(capacity))),
        ("never-evict", Box::new(NeverEvict::new(capacity))),
        ("s3-fifo", Box::new(S3Fifo::new(capacity))),
        ("sieve", Box::new(Sieve::new(capacity))),
    ];
    for (name, mut cache) in caches {
        let begin = Instant::now();
        let hits = events.iter().filter(|e| cache.access(e.block, e.bytes, e.op)).count();
        println!("{name}: {:.2} s, hits {:.3}", begin.elapsed().as_secs_f64(), hits as f64 / EVENTS as f64);
    }
    let begin = Instant::now();
    let hits = optimum(&events, capacity).iter().filter(|o| **o == super::super::OptimumOutcome::Hit).count();
    println!("optimum: {:.2} s, hits {:.3}", begin.elapsed().as_secs_f64(), hits as f64 / EVENTS as f64);
    for jobs in [3, 8] {
        let mut cache = EpochHazard::new(100_000, jobs, 20_000);
        let begin = Instant::now();
        let hits = events.iter().enumerate().filter(|(at, e)| cache.access(at % jobs, e.block / 10)).count();
        println!("hazard, {jobs} jobs: {:.2} s, hits {hits}", begin.elapsed().as_secs_f64());
    }
}

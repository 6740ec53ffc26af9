//! Measurement of the cost of an append and of a cached read. Run with `cargo nextest run --release -p
//! mlgw-segments --run-ignored only --no-capture cost`.

use super::*;
use mlgw_common::time::Instant;

/// User and system time of this process in microseconds, with a resolution of 10,000.
fn cpu_micros() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let behind_name = stat.rsplit(')').next().unwrap();
    let ticks: f64 = behind_name.split_whitespace().skip(11).take(2).map(|t| t.parse::<f64>().unwrap()).sum();
    ticks * 10_000.0
}

#[tokio::test]
#[ignore = "a measurement"]
async fn cost_of_a_cached_read() {
    let (dir, map) = (tempfile::tempdir().unwrap(), Arc::new(MemoryMap::default()));
    let tier = open(dir.path(), &map).await;
    for length in [4096usize, 102_400, 262_144] {
        let mut extents = Vec::new();
        for body in 0..200u64 {
            extents.push((body, append(&tier, chunk(body, bytes_of(body, length))).await.unwrap()));
        }
        let rounds = 20_000_000 / (length + 4096);
        for (body, extent) in &extents {
            tier.read(extent, BodyId(*body), 0..length as u64, Lane::Training).await.unwrap();
        }
        let begun = Instant::now();
        for (body, extent) in extents.iter().cycle().take(rounds * 50) {
            std::hint::black_box(
                tier.read(extent, BodyId(*body), 0..length as u64, Lane::Training).await.unwrap(),
            );
        }
        let micros = begun.elapsed().as_secs_f64() * 1e6 / (rounds * 50) as f64;
        println!("read {length} bytes: {micros:.2} us, {:?} by disk", tier.metrics().reads_disk);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement"]
async fn cost_of_an_append() {
    for writers in [1u64, 8, 32, 128] {
        let (dir, map) = (tempfile::tempdir_in(".").unwrap(), Arc::new(MemoryMap::default()));
        let tier = open(dir.path(), &map).await;
        append(&tier, chunk(0, vec![1; 4096])).await.unwrap();
        let before = tier.metrics();
        let (begun, cpu) = (Instant::now(), cpu_micros());
        let each = if writers == 1 { 2000 } else { 100_000 / writers };
        let tasks = (0..writers).map(|writer| {
            let tier = tier.clone();
            let data = Bytes::from(bytes_of(writer, 4096));
            tokio::spawn(async move {
                for _ in 0..each {
                    append(&tier, chunk(writer, data.clone())).await.unwrap();
                }
            })
        });
        for task in tasks.collect::<Vec<_>>() {
            task.await.unwrap();
        }
        let (seconds, cpu) = (begun.elapsed().as_secs_f64(), cpu_micros() - cpu);
        let after = tier.metrics();
        let appends = (after.appends - before.appends) as f64;
        let (syncs, was) = (after.syncs[0].1, before.syncs[0].1);
        println!(
            "{writers} writers: {:.0} appends/s, {:.1} us CPU each, {:.3} syncs each, {:.0} us per sync",
            appends / seconds,
            cpu / appends,
            (syncs.count() - was.count()) as f64 / appends,
            (syncs.nanos - was.nanos) as f64 / 1e3 / (syncs.count() - was.count()) as f64,
        );
    }
}

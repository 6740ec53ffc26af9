//! Benchmarks, run by hand: `cargo test --release -p mlgw-metadata bench -- --ignored --nocapture`.

use super::testing::{bucket, do_put, key, options};
use super::{Catalogue, CatalogueOptions, Durability};
use mlgw_common::time::Instant;
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

fn cpu_us() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
    let ticks: f64 = fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap();
    ticks * 10_000.0
}

async fn writers(options: CatalogueOptions, writers: usize, each: usize) -> Catalogue {
    let catalogue = Catalogue::open(options).await.unwrap();
    let b = bucket(&catalogue, "data").await;
    let (start, cpu) = (Instant::now(), cpu_us());
    let tasks: Vec<_> = (0..writers)
        .map(|w| {
            let (catalogue, b) = (catalogue.clone(), b.clone());
            tokio::spawn(async move {
                for i in 0..each {
                    do_put(&catalogue, &b, &format!("dir/{w:02}/object-{i:08}"), 1000).await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let n = (writers * each) as f64;
    let metrics = catalogue.metrics();
    println!(
        "{writers} writers: {:.1} us/put wall per writer, {:.1} us/put overall, {:.1} us cpu/put, \
         {:.1} commands/entry, {} syncs",
        start.elapsed().as_secs_f64() * 1e6 / each as f64,
        start.elapsed().as_secs_f64() * 1e6 / n,
        (cpu_us() - cpu) / n,
        metrics.commands_applied as f64 / metrics.entries_applied as f64,
        metrics.log_syncs.count(),
    );
    catalogue
}

async fn figures(dir: &Path) {
    writers(options(&dir.join("one")), 1, 3_000).await.shutdown().await;
    let catalogue = writers(options(&dir.join("many")), 32, 8_000).await;
    let b = catalogue.bucket("data").unwrap();
    reads(&catalogue, &b, "memtable");
    catalogue.shutdown().await;
    let start = Instant::now();
    let catalogue = Catalogue::open(options(&dir.join("many"))).await.unwrap();
    println!("open after shutdown: {:?}", start.elapsed());
    reads(&catalogue, &b, "files");
    let rss = std::fs::read_to_string("/proc/self/status").unwrap();
    println!("{}", rss.lines().find(|l| l.starts_with("VmRSS")).unwrap());
    catalogue.shutdown().await;
    let start = Instant::now();
    let catalogue = Catalogue::open(options(&dir.join("empty"))).await.unwrap();
    println!("open empty: {:?}", start.elapsed());
    catalogue.shutdown().await;
}

fn reads(catalogue: &Catalogue, b: &mlgw_formats::schema::Bucket, from: &str) {
    for _ in 0..2 {
        let start = Instant::now();
        for i in 0..100_000usize {
            let k = key(&format!("dir/{:02}/object-{:08}", i % 32, i * 7919 % 8_000));
            assert!(catalogue.object(b.bucket_id(), &k).unwrap().is_some());
        }
        println!("object() from {from}: {:.2} us", start.elapsed().as_secs_f64() * 10.0);
    }
    let reader = catalogue.reader();
    let start = Instant::now();
    let (mut n, mut bytes) = (0u64, 0);
    for entry in reader.scan(b.bucket_id(), Bound::Unbounded) {
        bytes += entry.unwrap().1.summary().unwrap().size;
        n += 1;
    }
    println!(
        "scan from {from}: {:.0} entries/s ({n}, {bytes} bytes)",
        n as f64 / start.elapsed().as_secs_f64()
    );
}

fn rss_kib() -> i64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Cost of flushing the state and purging the log, in write latency and memory, at a million objects.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "prints figures"]
async fn snapshot() {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let with = CatalogueOptions { log_bytes_max: u64::MAX, ..options(dir.path()) };
    let catalogue =
        writers(CatalogueOptions { durability: Durability::Os, ..with }, 64, 1_000_000 / 64).await;
    catalogue.inner().compact().await.unwrap();
    let b = catalogue.bucket("data").unwrap();
    for snapshots in [false, true] {
        let stop = Arc::new(AtomicBool::new(false));
        let (writer, stopped, bucket) = (catalogue.clone(), Arc::clone(&stop), b.clone());
        let puts = tokio::spawn(async move {
            let (mut longest, mut count) = (Duration::ZERO, 0);
            while !stopped.load(Ordering::Relaxed) {
                let begun = Instant::now();
                do_put(&writer, &bucket, &format!("beside/{}", count % 10_000), 1000).await;
                longest = longest.max(begun.elapsed());
                count += 1;
            }
            (longest, count)
        });
        let (before, mut most) = (rss_kib(), 0);
        for _ in 0..10 {
            mlgw_common::time::sleep(Duration::from_millis(300)).await;
            if snapshots {
                let work = catalogue.inner().compact();
                tokio::pin!(work);
                while mlgw_common::time::timeout(Duration::from_millis(2), &mut work).await.is_err() {
                    most = most.max(rss_kib() - before);
                }
            }
            most = most.max(rss_kib() - before);
        }
        stop.store(true, Ordering::Relaxed);
        let (longest, count) = puts.await.unwrap();
        println!("snapshots {snapshots}: longest of {count} puts {longest:?}, RSS at most {most} KiB more");
    }
    catalogue.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "prints figures"]
async fn bench() {
    for place in ["/dev/shm", "/var/tmp"] {
        println!("== {place}");
        let dir = tempfile::tempdir_in(place).unwrap();
        figures(dir.path()).await;
    }
}

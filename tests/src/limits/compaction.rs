//! Segments are compacted continuously without an effect on clients: writers, readers, and slow readers of
//! objects that are replaced, moved and deleted meanwhile. In the end the disk holds the live objects.

use mlgw_common::time::Instant;
use std::path::Path;
use std::time::Duration;

use futures_util::future::{join_all, try_join_all};
use http::Method;

use super::{BUCKET, runtime};
use crate::content::TestContent;
use crate::raw::RawExchange;
use crate::s3::{S3TestClient, full_body};
use crate::seed::{Rng, seeded_rng};
use crate::server::{ServerProcess, ServerSetup};

const WRITERS: u64 = 4;
const WRITES: u64 = 120;
const KEYS: u64 = 6;
const SIZES: [usize; 5] = [1_000, 40_000, 300_000, 900_000, 3_000_000];

/// Sizes of bodies that no socket buffers as a whole: one of a few chunks, and one of many.
const SLOW_READ_SIZES: [usize; 2] = [4 << 20, 24 << 20];

/// Longest wait for space to be reclaimed. It is only reached if something is broken.
const WAIT_MAX: Duration = Duration::from_secs(60);

#[test]
fn space_is_reclaimed_while_clients_write_read_and_stall() {
    let dir = tempfile::tempdir().expect("a directory");
    let setup = ServerSetup::new(dir.path().join("mlgw-data"))
        .with("hot.segment_bytes", "1MiB")
        .with("hot.compact_dead_percent", "5")
        .with("hot.compact_interval", "20ms")
        .with("hot.compact_bytes_per_second", "1GiB");
    let rng = seeded_rng("compaction", 11);
    let segments = dir.path().join("mlgw-data/segments");
    let server = setup.start();
    let kept = runtime().block_on(async {
        let client = server.client();
        client.create_bucket(BUCKET).await.expect("made");
        let mut dawdlers = Vec::new();
        for (id, length) in (1_000_000..).zip(SLOW_READ_SIZES) {
            dawdlers.push(begin_to_read(&server, TestContent { id, length }).await);
        }
        let writers =
            (0..WRITERS).map(|number| tokio::spawn(write(server.client(), number, rng.fork(number))));
        let kept: Vec<_> =
            join_all(writers).await.into_iter().flat_map(|done| done.expect("a writer")).collect();
        for (content, mut exchange, answer) in dawdlers {
            let body = exchange.read_rest(&answer).await.expect("a slow reader is not cut off");
            assert_eq!(
                content.difference(&body),
                None,
                "the body is from the version at the start of the read"
            );
        }
        let live: u64 = kept.iter().map(|(_, content)| content.length as u64).sum();
        wait_until_at_most(&segments, live + live / 10 + (4 << 20), &server).await;
        read_all(&client, &kept).await;
        kept
    });
    server.stop();
    let server = setup.start();
    runtime().block_on(read_all(&server.client(), &kept));
    server.stop();
}

/// Puts an object, requests it, reads the head of the response, and deletes the object.
async fn begin_to_read(
    server: &ServerProcess,
    content: TestContent,
) -> (TestContent, RawExchange, crate::raw::RawHttpResponse) {
    let client = server.client();
    let key = format!("slow-{}", content.id);
    client.put(BUCKET, &key, full_body(content.bytes())).await.expect("stored");
    let path = format!("/{BUCKET}/{key}");
    let mut exchange = RawExchange::begin(&client, server.s3, Method::GET, &path, 0).await.expect("asked");
    let answer = exchange.answer().await.expect("answered");
    assert_eq!(answer.status, 200, "{}", answer.head);
    client.delete(BUCKET, &key).await.expect("deleted");
    (content, exchange, answer)
}

/// Overwrites keys of its own and reads them back. Returns the final objects.
async fn write(client: S3TestClient, number: u64, mut rng: Rng) -> Vec<(String, TestContent)> {
    let mut kept = std::collections::BTreeMap::new();
    for step in 0..WRITES {
        let key = format!("writer-{number}/{}", rng.below(KEYS));
        let content = TestContent { id: number << 32 | step, length: *rng.pick(&SIZES) };
        client.put(BUCKET, &key, full_body(content.bytes())).await.expect("stored");
        kept.insert(key, content);
        let picked = rng.index(kept.len());
        let (key, content) = kept.iter().nth(picked).map(|(k, c)| (k.clone(), *c)).expect("one exists");
        let body = client.get(BUCKET, &key).await.expect("read").body;
        assert_eq!(content.difference(&body), None, "{key}");
    }
    kept.into_iter().collect()
}

async fn read_all(client: &S3TestClient, kept: &[(String, TestContent)]) {
    let reads = kept.iter().map(|(key, content)| async move {
        let body = client.get(BUCKET, key).await?.body;
        assert_eq!(content.difference(&body), None, "{key}");
        Ok::<_, crate::s3::CallFailure>(())
    });
    try_join_all(reads).await.expect("every object exists");
}

async fn wait_until_at_most(segments: &Path, bytes_max: u64, server: &ServerProcess) {
    let begun = Instant::now();
    loop {
        let files = std::fs::read_dir(segments).expect("the segments").flatten();
        let named = files.filter(|file| file.file_name().to_string_lossy().ends_with(".seg"));
        // A file may be deleted between the listing and the look-up of its size.
        let bytes: u64 = named.filter_map(|file| file.metadata().ok()).map(|found| found.len()).sum();
        if bytes <= bytes_max {
            return eprintln!("compaction: {bytes} bytes are left of at most {bytes_max}");
        }
        assert!(begun.elapsed() < WAIT_MAX, "{bytes} bytes are left, not {bytes_max}\n{}", server.log());
        mlgw_common::time::sleep(Duration::from_millis(50)).await;
    }
}

//! Scrubbing of a running server: bad blocks, and no others, are found, listed and refused; a pass is
//! rate-limited, continues after a kill, and is not disturbed by compaction.

use super::directories::{BUCKET, setup};
use super::{assert_undamaged, runtime};
use crate::observability::scrape::Scrape;
use crate::s3::{S3TestClient, full_body};
use crate::server::{ServerProcess, ServerSetup};
use crate::stop_on_drop::StopOnDrop;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use http::Method;
use mlgw_common::time::Instant;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Runs a `tier` verb against the server of this setup; returns its document and exit status.
fn run_tier_command(setup: &ServerSetup, words: &[&str]) -> (Value, i32) {
    let (output, status) = setup.command(&[&["--output", "json", "tier"], words].concat());
    // The document is followed by the message of a failure.
    let mut documents = serde_json::Deserializer::from_str(&output).into_iter();
    let document = documents.next().and_then(Result::ok).unwrap_or_else(|| panic!("{words:?}: {output}"));
    (document, status.expect("the process exits"))
}

fn quarantined(server: &ServerProcess) -> f64 {
    Scrape::of(server).sum("mlgw_quarantined_blocks", &[("tier", "hot")])
}

/// Flips a bit in the second block of the object `bad`, the second one that was put.
fn flip_second_block(dir: &Path, length: usize) {
    let segments = fs::read_dir(dir.join("segments")).expect("listed").map(|e| e.expect("listed").path());
    let holds =
        |path: &Path| fs::read(path).is_ok_and(|file| file.windows(7).any(|w| w == b"mlgC\x01\x01\x00"));
    let path = segments.into_iter().find(|path| holds(path)).expect("a segment");
    let mut file = fs::read(&path).expect("read");
    let second =
        file.windows(4).enumerate().filter(|(_, w)| *w == b"mlgC").nth(1).expect("two records").0 - 4;
    let payload = second + 60 + "bad".len() + 4 * length.div_ceil(64 << 10);
    file[payload + 70_000] ^= 1;
    fs::write(&path, file).expect("written");
}

#[test]
fn only_the_bad_block_is_found_listed_and_refused() {
    let room = tempfile::tempdir().expect("a directory");
    let setup = setup(&room.path().join("data")).with("hot.scrub_bytes_per_second", "0");
    let bytes: Vec<u8> = (0..400_000u32).map(|i| (i % 251) as u8).collect();
    let server = setup.start();
    runtime().block_on(async {
        let client = server.client();
        client.create_bucket(BUCKET).await.expect("made");
        client.put(BUCKET, "sound", full_body(bytes.clone())).await.expect("stored");
        client.put(BUCKET, "bad", full_body(bytes.clone())).await.expect("stored");
    });
    server.stop();
    flip_second_block(&setup.data_dir, bytes.len());

    let server = setup.start();
    let (before, _) = run_tier_command(&setup, &["show", "hot"]);
    assert_eq!(before["bad"], json!([]), "no scrub has run yet");
    let (found, status) = run_tier_command(&setup, &["scrub", "hot", "--wait"]);
    assert_eq!(status, 1, "{found:#}");
    let expected = |found: &Value| {
        let bad = found["bad"].as_array().expect("a list");
        assert_eq!(bad.len(), 1, "{found:#}");
        assert_eq!((&bad[0]["bucket"], &bad[0]["key"]), (&BUCKET.into(), &"bad".into()));
        assert_eq!((&bad[0]["first"], &bad[0]["last"]), (&65_536.into(), &131_071.into()));
    };
    expected(&found);
    let scrape = Scrape::of(&server);
    assert!((scrape.sum("mlgw_corrupt_blocks_total", &[]) - 1.0).abs() < 0.5);
    assert!((quarantined(&server) - 1.0).abs() < 0.5);
    let (output, health) = setup.command(&["status"]);
    assert!(health == Some(1) && output.contains("1 stored blocks of the hot tier are bad"), "{output}");
    runtime().block_on(async {
        let client = server.client();
        assert!(client.get(BUCKET, "sound").await.expect("read").body == bytes);
        for (first, last) in [(0, 65_535), (131_072, 399_999)] {
            let part = client.get_range(BUCKET, "bad", (first, last)).await.expect("read").body;
            let range = usize::try_from(first).expect("fits")..=usize::try_from(last).expect("fits");
            assert!(part == bytes[range]);
        }
        client.get_range(BUCKET, "bad", (65_535, 65_536)).await.expect_err("one byte is damaged");
        client.get(BUCKET, "bad").await.expect_err("a part is damaged");
    });
    server.stop();

    // The findings are kept over a restart, and forgotten when nothing refers to the bad blocks any more.
    let server = setup.start();
    expected(&run_tier_command(&setup, &["show", "hot"]).0);
    runtime().block_on(server.client().delete(BUCKET, "bad")).expect("deleted");
    let (after, status) = run_tier_command(&setup, &["scrub", "hot", "--wait"]);
    assert_eq!((status, &after["bad"]), (0, &json!([])), "{after:#}");
    assert!(quarantined(&server) < 0.5);
    server.stop();
}

/// Puts an object in parts. `headers` go with the upload; `of_part` returns the checksum headers of a part.
async fn put_parts(
    client: &S3TestClient,
    key: &str,
    headers: &[(&'static str, String)],
    of_part: impl Fn(&[u8]) -> Vec<(&'static str, String)>,
    parts: &[Vec<u8>],
) {
    let at = format!("/{BUCKET}/{key}");
    let text = |body: &[u8]| String::from_utf8_lossy(body).into_owned();
    let begun =
        client.call(Method::POST, &format!("{at}?uploads="), headers, full_body("")).await.expect("begun");
    let begun = text(&begun.body);
    let id = begun.split_once("<UploadId>").and_then(|(_, rest)| rest.split_once('<')).expect("an id").0;
    let mut document = "<CompleteMultipartUpload>".to_owned();
    for (number, part) in (1..).zip(parts) {
        let url = format!("{at}?partNumber={number}&uploadId={id}");
        let sums = of_part(part);
        let put = client.call(Method::PUT, &url, &sums, full_body(part.clone())).await.expect("a part");
        let sum = sums.iter().map(|(_, sum)| format!("<ChecksumSHA256>{sum}</ChecksumSHA256>"));
        let (etag, sum) = (put.etag(), sum.collect::<String>());
        document += &format!("<Part><PartNumber>{number}</PartNumber><ETag>\"{etag}\"</ETag>{sum}</Part>");
    }
    document += "</CompleteMultipartUpload>";
    let done = client.call(Method::POST, &format!("{at}?uploadId={id}"), &[], full_body(document)).await;
    let done = text(&done.expect("completed").body);
    assert!(done.contains("CompleteMultipartUploadResult"), "{done}");
}

#[test]
fn checksums_of_objects_of_every_kind_match_in_fifty_passes() {
    let room = tempfile::tempdir().expect("a directory");
    let setup = setup(&room.path().join("data")).with("hot.scrub_bytes_per_second", "0");
    let server = setup.start();
    let sha256 = |bytes: &[u8]| BASE64_STANDARD.encode(Sha256::digest(bytes));
    let parts = [vec![1; 5 << 20], vec![2; 6_000_001], vec![3; 7]];
    runtime().block_on(async {
        let client = server.client();
        client.create_bucket(BUCKET).await.expect("made");
        for (key, body) in [("empty", vec![]), ("small", vec![7; 10]), ("large", vec![8; 20 << 20])] {
            client.put(BUCKET, key, full_body(body)).await.expect("stored");
        }
        let named = [("x-amz-checksum-sha256", sha256(b"named"))];
        client
            .call(Method::PUT, &format!("/{BUCKET}/named"), &named, full_body("named"))
            .await
            .expect("stored");
        put_parts(&client, "parts", &[], |_| vec![], &parts).await;
        let composite = [("x-amz-checksum-algorithm", "SHA256".to_owned())];
        let of_part = |part: &[u8]| vec![("x-amz-checksum-sha256", sha256(part))];
        put_parts(&client, "composite", &composite, of_part, &parts).await;
        let copied = [("x-amz-copy-source", format!("/{BUCKET}/composite"))];
        client.call(Method::PUT, &format!("/{BUCKET}/copy"), &copied, full_body("")).await.expect("copied");
    });
    let mut found = json!(null);
    for _ in 0..50 {
        let (pass, status) = run_tier_command(&setup, &["scrub", "hot", "--wait"]);
        assert_eq!((status, &pass["bad"]), (0, &json!([])), "{pass:#}");
        found = pass;
    }
    assert_eq!(found["scrub"]["compared_objects"], 7, "{found:#}");
    server.stop();
}

/// Bytes of each object below; a segment is slightly larger.
const OBJECT: u64 = 1_000_000;
const RATE: u64 = 1 << 20;

#[test]
fn a_pass_is_rate_limited_and_continues_after_a_kill() {
    let room = tempfile::tempdir().expect("a directory");
    let setup = ServerSetup::new(room.path().join("data"))
        .with("hot.segment_bytes", "1MiB")
        .with("hot.scrub_bytes_per_second", RATE);
    let mut server = setup.start();
    runtime().block_on(async {
        let client = server.client();
        client.create_bucket(BUCKET).await.expect("made");
        for n in 0..6u8 {
            let key = format!("object-{n}");
            client.put(BUCKET, &key, full_body(vec![n; OBJECT as usize])).await.expect("stored");
        }
    });
    let show = || run_tier_command(&setup, &["show", "hot"]).0["scrub"].clone();
    let number = |shown: &Value, name: &str| shown[name].as_u64().unwrap_or_else(|| panic!("{shown:#}"));
    // Taken before the pass: if the time until the command returns did not count, the pass would seem faster
    // than it is.
    let begun = Instant::now();
    run_tier_command(&setup, &["scrub", "hot"]);
    while number(&show(), "read_bytes") < 2 * OBJECT {
        assert!(begun.elapsed() < Duration::from_secs(60), "{:#}", show());
    }
    let midway = show();
    // All reads but the first wait for those before them.
    let least = (number(&midway, "read_bytes") - (1 << 20)) as f64 / RATE as f64;
    assert!(begun.elapsed().as_secs_f64() >= least * 0.9, "{:?} for {midway:#}", begun.elapsed());
    assert_eq!(midway["running"], true);
    server.kill();

    let server = setup.start();
    assert_eq!(show()["running"], true, "the scrub resumes on its own");
    let begun = Instant::now();
    while show()["running"] == true {
        assert!(begun.elapsed() < Duration::from_secs(60), "{:#}", show());
        mlgw_common::time::block_for(Duration::from_millis(50));
    }
    let ended = show();
    assert_eq!((&ended["passes"], &ended["began"]), (&1.into(), &midway["began"]), "{ended:#}");
    // Each segment counts once: segments read before the kill would count twice if the pass had started
    // again.
    assert_eq!(ended["read_bytes"], ended["total_bytes"], "{ended:#}");
    server.stop();
}

#[test]
fn scrubs_and_checks_find_nothing_wrong_during_compaction() {
    let room = tempfile::tempdir().expect("a directory");
    let setup = ServerSetup::new(room.path().join("data"))
        .with("hot.segment_bytes", "1MiB")
        .with("hot.compact_dead_percent", "5")
        .with("hot.compact_interval", "10ms")
        .with("hot.compact_bytes_per_second", "1GiB")
        .with("hot.scrub_bytes_per_second", "0")
        .with("catalogue.log_bytes_max", "256KiB")
        .with("catalogue.checkpoint_interval", "100ms");
    let mut server = setup.start();
    runtime().block_on(server.client().create_bucket(BUCKET)).expect("made");
    let mut freed = 0.0;
    for round in 0..3u32 {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                runtime().block_on(async {
                    let client = server.client();
                    for n in (0u32..).take_while(|_| !stop.load(Ordering::Relaxed)) {
                        let length = [300, 70_000, 400_000][n as usize % 3];
                        let key = format!("key-{}", n % 11);
                        client.put(BUCKET, &key, full_body(vec![n as u8; length])).await.expect("stored");
                    }
                });
            });
            let stopping = StopOnDrop(&stop);
            for _ in 0..5 {
                let (found, status) = run_tier_command(&setup, &["scrub", "hot", "--wait"]);
                assert_eq!((status, &found["bad"]), (0, &json!([])), "{found:#}\n{}", server.log());
            }
            drop(stopping);
            writer.join().expect("the writer");
        });
        let scrape = Scrape::of(&server);
        assert!(scrape.sum("mlgw_corrupt_blocks_total", &[]) < 0.5, "{}", server.log());
        freed += scrape.sum("mlgw_freed_bytes_total", &[]);
        if round == 1 {
            server.stop()
        } else {
            server.kill()
        }
        assert_undamaged(&setup.data_dir);
        server = setup.start();
    }
    assert!(freed > 10e6, "{freed} bytes were freed while it was scrubbed");
    server.stop();
    assert_undamaged(&setup.data_dir);
}

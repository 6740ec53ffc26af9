//! Rules that compress objects when they are written or at rest. Clients read back the same bytes, objects
//! take less space, and compressed objects survive everything that others survive.

use super::running::ServerBench;
use crate::content::TestContent;
use crate::s3::{S3TestClient, encode, full_body};
use crate::server::{ServerProcess, binary, runtime};
use bytes::Bytes;
use http::Method;
use md5::{Digest as _, Md5};
use mlgw_common::time::Instant;
use serde_json::Value;
use std::process::Command;
use std::time::Duration;

const BUCKET: &str = "lake";
const MIB: usize = 1 << 20;
/// Only reached if something is broken.
const PATIENCE: Duration = Duration::from_secs(60);

const POLICY: &str = "
version: 1
rules:
  - id: logs-small
    conditions:
      - {type: file_pattern, property: key, operator: matches, value: 'logs/**'}
    actions: [{type: compress, parameters: {level: 3, min_ratio: 1.5}}]
  - id: named-small
    conditions:
      - {type: file_context, property: tags.kind, operator: equals, value: text}
      - {type: file_context, property: size, operator: greater_than, value: 4KiB}
    actions: [{type: compress, parameters: {level: 1}}]
";

/// Returns `length` bytes of lines that resemble the log of a training run.
fn log_lines(length: usize) -> Bytes {
    let sum = |step: usize| step.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
    let line = |step: usize| {
        format!("step {step} loss {:.4} rate 0.0003 sum {:08x}\n", 1.0 / (step + 7) as f64, sum(step))
    };
    let mut text: Vec<u8> = (0..).flat_map(|step| line(step).into_bytes()).take(length + 64).collect();
    text.truncate(length);
    text.into()
}

fn noise(length: usize) -> Bytes {
    TestContent { id: 5, length }.bytes()
}

/// Storage of an object: its stored bytes, encodings and segments.
struct StoredForm {
    stored_bytes: u64,
    encodings: Vec<String>,
    segments: Vec<u64>,
}

fn stored_form(bench: &ServerBench, key: &str) -> StoredForm {
    let object = format!("s3://{BUCKET}/{key}");
    let (output, status) = bench.setup.command(&["--output", "json", "object", "show", &object]);
    assert_eq!(status, Some(0), "{output}");
    let shown: Value = serde_json::from_str(&output).expect("JSON");
    let extents = shown["extents"].as_array().expect("extents").clone();
    let number = |extent: &Value, field: &str| extent[field].as_u64().expect("a number");
    StoredForm {
        stored_bytes: extents.iter().map(|extent| number(extent, "stored_bytes")).sum(),
        encodings: extents.iter().map(|one| one["encoding"].as_str().expect("a word").to_owned()).collect(),
        segments: extents.iter().map(|extent| number(extent, "segment")).collect(),
    }
}

fn metric(bench: &ServerBench, name: &str) -> u64 {
    let (output, _) = bench.setup.command(&["status", "--metrics"]);
    let line = output.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("{name} is not in {output}")).trim().parse().expect("a number")
}

fn compressed_bytes(bench: &ServerBench) -> (u64, u64) {
    let of = |of: &str| metric(bench, &format!("mlgw_compression_bytes_total{{of=\"{of}\"}}"));
    (of("logical"), of("stored"))
}

fn all_are(shown: &StoredForm, encoding: &str) -> bool {
    !shown.encodings.is_empty() && shown.encodings.iter().all(|one| one == encoding)
}

/// Reads an object as a whole and in ranges with many different bounds.
async fn assert_reads_back(client: &S3TestClient, key: &str, expected: &Bytes) {
    let got = client.get(BUCKET, key).await.expect("read");
    assert!(got.body == expected, "{key} is unchanged");
    assert_eq!(got.header("content-length"), Some(&*expected.len().to_string()));
    let length = expected.len();
    for (first, last) in [
        (0, 0),
        (length - 1, length - 1),
        (65_530, 65_541),
        (65_536, 131_071),
        (MIB - 3, MIB + 70_000),
        (length / 2, length - 1),
    ] {
        if last < length {
            let got = client.get_range(BUCKET, key, (first as u64, last as u64)).await.expect("read");
            assert!(got.body == expected.slice(first..=last), "{key} from {first} to {last}");
        }
    }
}

async fn put_tagged(client: &S3TestClient, key: &str, tags: &str, body: Bytes) {
    let headers = [("x-amz-tagging", tags.to_owned()), ("x-amz-meta-epoch", "3".to_owned())];
    client.call(Method::PUT, &format!("/{BUCKET}/{key}"), &headers, full_body(body)).await.expect("stored");
}

/// Creates an object of one part, which is copied from another object.
async fn put_part_from(client: &S3TestClient, from: &str, to: &str) {
    let upload = client.create_upload(BUCKET, to).await.expect("begun");
    let path = format!("/{BUCKET}/{to}?partNumber=1&uploadId={}", encode(&upload));
    let source = [("x-amz-copy-source", format!("/{BUCKET}/{from}"))];
    let copied = client.call(Method::PUT, &path, &source, full_body("")).await.expect("copied");
    let text = String::from_utf8_lossy(&copied.body).into_owned();
    let (_, rest) = text.split_once("<ETag>").expect("an ETag");
    let etag = rest.split("</ETag>").next().expect("its end").replace("&quot;", "").replace("&#34;", "");
    client.complete(BUCKET, to, &upload, &[(1, etag.trim_matches('"').to_owned())]).await.expect("completed");
}

/// Puts objects that the policy covers in every way that S3 has, and returns their contents.
async fn fill(client: &S3TestClient) -> Vec<(&'static str, Bytes)> {
    let (text, small, large) = (log_lines(3 * MIB + 12_345), log_lines(20_000), log_lines(70 * MIB));
    let etag = client.put(BUCKET, "logs/a.log", full_body(text.clone())).await.expect("stored");
    assert_eq!(etag, crate::content::hex(&Md5::digest(&text)), "the ETag is that of the uploaded bytes");
    client.put(BUCKET, "logs/small.log", full_body(small.clone())).await.expect("stored");
    client.put(BUCKET, "raw/beside.bin", full_body(noise(200_000))).await.expect("stored");
    client.put(BUCKET, "logs/noise.bin", full_body(noise(2 * MIB + 1))).await.expect("stored");
    client.put(BUCKET, "logs/large.log", full_body(large.clone())).await.expect("stored");
    client.put(BUCKET, "raw/a.log", full_body(text.clone())).await.expect("stored");
    put_tagged(client, "raw/tagged.txt", "kind=text", text.clone()).await;
    put_tagged(client, "raw/tagged-small.txt", "kind=text", log_lines(4000)).await;
    for (from, to) in [("raw/a.log", "logs/copied.log"), ("logs/a.log", "raw/copied.log")] {
        let source = ("x-amz-copy-source", format!("/{BUCKET}/{from}"));
        let headers = [source, ("x-amz-checksum-algorithm", "CRC32C".to_owned())];
        client.call(Method::PUT, &format!("/{BUCKET}/{to}"), &headers, full_body("")).await.expect("copied");
    }
    let parts = [text.clone(), [noise(5 * MIB), text.clone()].concat().into()];
    let upload = client.create_upload(BUCKET, "logs/parts.log").await.expect("begun");
    let mut etags = Vec::new();
    for (number, part) in (1..).zip([large.slice(..6 * MIB), parts[1].clone(), small.clone()]) {
        let etag = client
            .put_part(BUCKET, "logs/parts.log", &upload, number, full_body(part))
            .await
            .expect("stored");
        etags.push((number, etag));
    }
    client.complete(BUCKET, "logs/parts.log", &upload, &etags).await.expect("completed");
    put_part_from(client, "raw/a.log", "logs/gathered.log").await;
    let whole_upload = [large.slice(..6 * MIB), parts[1].clone(), small.clone()].concat().into();
    vec![
        ("logs/a.log", text.clone()),
        ("logs/small.log", small),
        ("logs/noise.bin", noise(2 * MIB + 1)),
        ("logs/large.log", large),
        ("raw/beside.bin", noise(200_000)),
        ("raw/a.log", text.clone()),
        ("raw/tagged.txt", text.clone()),
        ("raw/tagged-small.txt", log_lines(4000)),
        ("logs/copied.log", text.clone()),
        ("logs/gathered.log", text.clone()),
        ("raw/copied.log", text),
        ("logs/parts.log", whole_upload),
    ]
}

fn check_stored(bench: &ServerBench, objects: &[(&'static str, Bytes)]) {
    for key in [
        "logs/a.log",
        "logs/small.log",
        "raw/tagged.txt",
        "logs/copied.log",
        "logs/gathered.log",
        "logs/large.log",
    ] {
        let (shown, bytes) =
            (stored_form(bench, key), objects.iter().find(|(one, _)| *one == key).expect("put"));
        assert!(all_are(&shown, "zstd"), "{key}: {:?}", shown.encodings);
        assert!(shown.stored_bytes * 2 < bytes.1.len() as u64, "{key}: {}", shown.stored_bytes);
    }
    for key in ["logs/noise.bin", "raw/a.log", "raw/tagged-small.txt", "raw/copied.log"] {
        let shown = stored_form(bench, key);
        assert!(all_are(&shown, "raw"), "{key}: {:?}", shown.encodings);
    }
    // Each part is judged by its own first chunk. The first chunk of the second part is noise, so the whole
    // part stays uncompressed.
    let parts = stored_form(bench, "logs/parts.log").encodings;
    assert_eq!(parts, [vec!["zstd"; 6], vec!["raw"; 9], vec!["zstd"; 1]].concat());
}

/// Returns the checksum with which a copy was made.
async fn checksum(client: &S3TestClient, key: &str) -> String {
    let mode = [("x-amz-checksum-mode", "ENABLED".to_owned())];
    let head =
        client.call(Method::HEAD, &format!("/{BUCKET}/{key}"), &mode, full_body("")).await.expect("exists");
    head.header("x-amz-checksum-crc32c").expect("a checksum").to_owned()
}

async fn read_all(server: &ServerProcess, objects: &[(&'static str, Bytes)]) {
    let client = server.client();
    for (key, bytes) in objects {
        assert_reads_back(&client, key, bytes).await;
    }
    let listed = client.list(BUCKET, 1000).await.expect("listed");
    let part = format!("/{BUCKET}/logs/parts.log?partNumber=2");
    let part = client.call(Method::GET, &part, &[], full_body("")).await.expect("a part");
    let (_, all) = objects.iter().find(|(key, _)| *key == "logs/parts.log").expect("put");
    assert!(part.body == all.slice(6 * MIB..all.len() - 20_000));
    assert_eq!(checksum(&client, "logs/copied.log").await, checksum(&client, "raw/copied.log").await);
    for (key, bytes) in objects {
        let row = listed.iter().find(|row| row.key == *key).expect("listed");
        assert_eq!(row.size, bytes.len() as u64, "{key}");
    }
}

fn new_bench() -> ServerBench {
    let bench = ServerBench::new();
    let setup = bench.setup.clone();
    let setup = setup.with("hot.compact_dead_percent", "5").with("hot.compact_interval", "20ms");
    ServerBench { setup, ..bench }
}

#[test]
fn compressed_objects_take_less_space_and_are_read_back_unchanged() {
    let bench = new_bench();
    let server = bench.setup.start();
    bench.run_json(&["apply", &bench.file("small.yaml", POLICY)]);
    let objects = runtime().block_on(async {
        let client = server.client();
        client.create_bucket(BUCKET).await.expect("made");
        let objects = fill(&client).await;
        read_all(&server, &objects).await;
        objects
    });
    check_stored(&bench, &objects);
    let (logical, stored) = compressed_bytes(&bench);
    assert!(logical > 80 << 20 && stored * 2 < logical, "{logical} {stored}");
    let chunks = |result| metric(&bench, &format!("mlgw_compression_chunks_total{{result=\"{result}\"}}"));
    assert!(chunks("compressed") > 80 && chunks("incompressible") >= 2 && chunks("no_memory") == 0);
    let of_bucket = metric(&bench, &format!("mlgw_bucket_bytes{{bucket=\"{BUCKET}\"}}"));
    assert_eq!(
        of_bucket,
        objects.iter().map(|(_, bytes)| bytes.len() as u64).sum::<u64>(),
        "as clients see them"
    );

    let mut server = server;
    server.kill();
    let server = bench.setup.start();
    runtime().block_on(read_all(&server, &objects));
    check_stored(&bench, &objects);

    // The small object shares a segment with the deleted one, so compaction moves it.
    let before = stored_form(&bench, "logs/small.log");
    runtime().block_on(async { server.client().delete(BUCKET, "raw/beside.bin").await.expect("deleted") });
    let begun = Instant::now();
    while stored_form(&bench, "logs/small.log").segments == before.segments {
        assert!(begun.elapsed() < PATIENCE, "never moved");
        mlgw_common::time::block_for(Duration::from_millis(50));
    }
    let left: Vec<_> = objects.into_iter().filter(|(key, _)| *key != "raw/beside.bin").collect();
    let after = stored_form(&bench, "logs/small.log");
    // A record may include the floor of the log (8 bytes) or not.
    assert!(
        after.stored_bytes.abs_diff(before.stored_bytes) <= 8,
        "{} {}",
        before.stored_bytes,
        after.stored_bytes
    );
    assert_eq!(after.encodings, before.encodings);
    runtime().block_on(read_all(&server, &left));
    let (output, status) = bench.setup.command(&["tier", "scrub", "hot", "--wait"]);
    assert_eq!(status, Some(0), "{output}");
    server.stop();
    assert_store_check(&bench);
}

#[test]
fn nothing_is_compressed_without_a_rule_that_acts() {
    let bench = ServerBench::new();
    let server = bench.setup.start();
    let put = |key: &'static str| {
        runtime().block_on(async {
            server.client().put(BUCKET, key, full_body(log_lines(MIB))).await.expect("stored");
        });
        assert!(all_are(&stored_form(&bench, key), "raw"), "{key}");
    };
    runtime().block_on(async { server.client().create_bucket(BUCKET).await.expect("made") });
    put("logs/before.log");
    let observing = POLICY.replace("{type: compress,", "{type: compress, stance: observe,");
    bench.run_json(&["apply", &bench.file("observing.yaml", &observing)]);
    put("logs/observed.log");
    assert_eq!(compressed_bytes(&bench), (0, 0));
    bench.run_json(&["apply", &bench.file("acting.yaml", POLICY)]);
    let text = log_lines(MIB);
    runtime().block_on(async {
        let client = server.client();
        client.put(BUCKET, "logs/acted.log", full_body(text.clone())).await.expect("stored");
        assert_reads_back(&client, "logs/acted.log", &text).await;
    });
    assert!(all_are(&stored_form(&bench, "logs/acted.log"), "zstd"));
    bench.run_json(&["rollback", "0"]);
    put("logs/after.log");
    runtime().block_on(assert_reads_back(&server.client(), "logs/acted.log", &text));
    server.stop();
}

#[test]
fn written_back_objects_reach_their_origin_uncompressed() {
    let room = super::temp_dir();
    let origin = crate::server::ServerSetup::new(room.path().join("origin")).start();
    runtime().block_on(async { origin.client().create_bucket("there").await.expect("made") });
    let bench = ServerBench::new();
    let setup = bench.setup.clone().with_upstream("far", origin.s3, "there", "5s");
    let bench = ServerBench { setup, ..bench };
    let server = bench.setup.start();
    bench.run_json(&["apply", &bench.file("small.yaml", POLICY)]);
    let words = ["bucket", "bind", BUCKET, "--upstream", "far", "--mode", "write-back"];
    let (output, status) = bench.setup.command(&words);
    assert_eq!(status, Some(0), "{output}");
    let text = log_lines(2 * MIB + 5);
    runtime().block_on(async {
        let client = server.client();
        client.put(BUCKET, "logs/a.log", full_body(text.clone())).await.expect("stored");
        assert_reads_back(&client, "logs/a.log", &text).await;
    });
    assert_eq!(compressed_bytes(&bench).0, 2 * MIB as u64, "the remaining five bytes do not shrink");
    let (output, status) = bench.setup.command(&["--quiet", "bucket", "flush", BUCKET]);
    assert_eq!(status, Some(0), "{output}");
    runtime().block_on(async {
        let there = origin.client().get("there", "logs/a.log").await.expect("read");
        assert!(there.body == text, "the origin receives the original bytes");
    });
    server.stop();
}

/// Returns a server with a cold tier whose policy reconciler visits its objects every second.
fn bench_with_cold_tier() -> ServerBench {
    let bench = new_bench();
    let cold = bench.dir.path().join("cold");
    std::fs::create_dir(&cold).expect("made");
    let setup = bench.setup.clone().with("cold.dirs", cold.display()).with("policy.look_every", "1s");
    let setup = setup.with("memory.capacity", "0").with("hot.segment_bytes", "16MiB");
    ServerBench { setup, ..bench }
}

/// Asserts that a check of the data of a stopped server finds nothing.
fn assert_store_check(bench: &ServerBench) {
    let cold = Some(bench.dir.path().join("cold")).filter(|dir| dir.exists());
    let done = Command::new(binary())
        .args(["store", "check"])
        .arg(&bench.setup.data_dir)
        .env_clear()
        .envs(cold.map(|dir| ("MLGW_COLD__DIRS", dir)))
        .output()
        .expect("the binary runs");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&[done.stdout, done.stderr].concat()));
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "never: {what}");
        mlgw_common::time::block_for(Duration::from_millis(100));
    }
}

fn tiers(bench: &ServerBench, key: &str) -> Vec<String> {
    let object = format!("s3://{BUCKET}/{key}");
    let (output, status) = bench.setup.command(&["--output", "json", "object", "show", &object]);
    assert_eq!(status, Some(0), "{output}");
    let shown: Value = serde_json::from_str(&output).expect("JSON");
    let tiers = shown["tiers"].as_array().expect("tiers").iter();
    tiers.map(|tier| tier["tier"].as_str().expect("a tier").to_owned()).collect()
}

/// Rule that compresses small objects of `late/` once they are stored.
const AT_REST_ONLY: &str = "
  - id: late-small
    conditions:
      - {type: file_pattern, property: key, operator: matches, value: 'late/**'}
      - {type: file_context, property: tier, operator: equals, value: hot}
    actions: [{type: compress}]
";
/// Rule that spills `logs/`.
const SPILL: &str = "
  - id: logs-down
    conditions:
      - {type: file_pattern, property: key, operator: matches, value: 'logs/**'}
    actions: [{type: spill}]
";

#[test]
fn existing_objects_are_compressed_at_rest_and_then_spilled() {
    let bench = bench_with_cold_tier();
    let server = bench.setup.start();
    let objects = runtime().block_on(async {
        let client = server.client();
        client.create_bucket(BUCKET).await.expect("made");
        fill(&client).await
    });
    assert!(
        objects.iter().all(|(key, _)| all_are(&stored_form(&bench, key), "raw")),
        "no rule compresses yet"
    );
    let etags = || -> Vec<_> {
        let listed = runtime().block_on(server.client().list(BUCKET, 1000)).expect("listed");
        listed.into_iter().map(|row| (row.key, row.etag, row.size)).collect()
    };
    let before = etags();
    bench.run_json(&["apply", &bench.file("small.yaml", &format!("{POLICY}{AT_REST_ONLY}"))]);
    let parts = [vec!["zstd"; 6], vec!["raw"; 9], vec!["zstd"; 1]].concat();
    let packed = ["logs/a.log", "logs/small.log", "raw/tagged.txt", "logs/copied.log", "logs/large.log"];
    wait_until("all objects are compressed", || {
        packed.iter().all(|key| all_are(&stored_form(&bench, key), "zstd"))
    });
    wait_until("each part separately", || stored_form(&bench, "logs/parts.log").encodings == parts);
    check_stored(&bench, &objects);
    runtime().block_on(read_all(&server, &objects));
    assert_eq!(etags(), before);
    let explained = bench.run(&["explain", &format!("s3://{BUCKET}/logs/a.log")]).0;
    assert!(explained.contains("zstd, 3.0 MiB as ") && explained.contains("logs-small"), "{explained}");
    let done = || metric(&bench, "mlgw_policy_actions_total{action=\"compress\",outcome=\"done\"}");
    assert!(done() >= 6, "{}", done());
    let decisions = bench.run_json(&["decisions", "--kind", "compress"]);
    let entries = decisions["decisions"].as_array().expect("decisions");
    assert!(
        entries.iter().all(|one| one["reason"] == "rule" && one["bytes"].as_u64() > Some(0)),
        "{entries:?}"
    );
    assert!(entries.iter().any(|one| one["rule"] == "logs-small"), "{entries:?}");
    // Objects that gain too little are not tried again in every pass. Another pass has run once this object
    // is compressed.
    let tried = || metric(&bench, "mlgw_compression_chunks_total{result=\"incompressible\"}");
    let once = tried();
    runtime().block_on(async {
        server.client().put(BUCKET, "late/a.log", full_body(log_lines(MIB))).await.expect("stored");
    });
    wait_until("a pass has ended", || all_are(&stored_form(&bench, "late/a.log"), "zstd"));
    assert_eq!(tried(), once);

    bench.run_json(&["apply", &bench.file("down.yaml", &format!("{POLICY}{SPILL}"))]);
    let logs = || objects.iter().map(|(key, _)| *key).filter(|key| key.starts_with("logs/"));
    wait_until("the logs are in the cold tier", || logs().all(|key| tiers(&bench, key) == ["cold"]));
    check_stored(&bench, &objects);
    runtime().block_on(read_all(&server, &objects));
    let mut server = server;
    server.kill();
    let server = bench.setup.start();
    runtime().block_on(read_all(&server, &objects));
    server.stop();
    assert_store_check(&bench);
}

#[test]
fn objects_are_compressed_before_the_same_rule_spills_them() {
    let bench = bench_with_cold_tier();
    let server = bench.setup.start();
    let text = log_lines(5 * MIB);
    runtime().block_on(async {
        let client = server.client();
        client.create_bucket(BUCKET).await.expect("made");
        client.put(BUCKET, "logs/a.log", full_body(text.clone())).await.expect("stored");
    });
    let both = POLICY.replace("min_ratio: 1.5}}]", "min_ratio: 1.5}}, {type: spill}]");
    bench.run_json(&["apply", &bench.file("both.yaml", &both)]);
    wait_until("the object is in the cold tier", || tiers(&bench, "logs/a.log") == ["cold"]);
    assert!(all_are(&stored_form(&bench, "logs/a.log"), "zstd"));
    runtime().block_on(assert_reads_back(&server.client(), "logs/a.log", &text));
    server.stop();
}

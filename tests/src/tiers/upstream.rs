//! Segments in an upstream, which is a second server behind a proxy: segments are spilled and promoted under
//! all kinds of events, and everything reads back.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use super::{BUCKET, TierObjects, assert_reads_back, filled, put_some, runtime};
use crate::content::TestContent;
use crate::proxy::{Fault, FaultProxy, Rule};
use crate::s3::{encode, full_body};
use crate::seed::Rng;
use crate::server::{ServerProcess, ServerSetup, binary};

/// The bucket for segments.
const SEGMENT_BUCKET: &str = "segments";

struct UpstreamBench {
    temp_dir: tempfile::TempDir,
    store: ServerProcess,
    proxy: FaultProxy,
    setup: ServerSetup,
}

impl UpstreamBench {
    fn new() -> Self {
        let room = tempfile::tempdir().expect("a directory");
        let store = ServerSetup::new(room.path().join("store")).start();
        runtime().block_on(store.client().create_bucket(SEGMENT_BUCKET)).expect("made");
        let proxy = FaultProxy::start(store.s3);
        let setup = setup(room.path().join("data"), &proxy);
        Self { temp_dir: room, store, proxy, setup }
    }

    fn run_json(&self, words: &[&str]) -> Value {
        let (output, status) = self.setup.command(&[&["--output", "json"], words].concat());
        assert_eq!(status, Some(0), "{words:?}: {output}");
        serde_json::from_str(&output).unwrap_or_else(|error| panic!("{error}: {output}"))
    }

    /// Names of the segment objects in the store.
    async fn stored(&self) -> Vec<String> {
        let listed = self.store.client().list(SEGMENT_BUCKET, 1000).await.expect("listed");
        let keys = listed.into_iter().map(|object| object.key);
        keys.filter(|key| key.starts_with("pre/segments/")).collect()
    }

    fn path(&self, name: &str) -> String {
        self.temp_dir.path().join(name).display().to_string()
    }

    fn check(&self) -> String {
        let check = Command::new(binary())
            .args(["store", "check", &self.path("data")])
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .output()
            .expect("the binary runs");
        let output = String::from_utf8_lossy(&[check.stdout, check.stderr].concat()).into_owned();
        assert_eq!(check.status.code(), Some(0), "{output}");
        output
    }
}

/// A server on `data_dir` that spills to the store behind `proxy`.
fn setup(data_dir: PathBuf, proxy: &FaultProxy) -> ServerSetup {
    ServerSetup::new(data_dir)
        .with_upstream("far", proxy.addr(), SEGMENT_BUCKET, "2s")
        .with("upstream.far.prefix", "pre/")
        .with("upstream.far.encrypt", true)
        .with("cold.upstream", "far")
        .with("cold.move_bytes_per_second", "10GiB")
        .with("hot.segment_bytes", "1MiB")
        .with("hot.compact_interval", "20ms")
        .with("memory.capacity", "0")
}

#[test]
fn a_tier_is_drained_to_an_upstream_read_from_there_and_drained_back() {
    let bench = UpstreamBench::new();
    let (server, objects) = filled(&bench.setup);
    let moved = bench.run_json(&["tier", "drain", "hot", "--wait"]);
    assert!(moved["spilled_bytes"].as_u64().is_some_and(|bytes| bytes > 5_000_000), "{moved}");
    let upstream = bench.run_json(&["upstream", "show", "far"]);
    runtime().block_on(async {
        assert_eq!(upstream["segments"].as_u64(), Some(bench.stored().await.len() as u64), "{upstream}");
        assert_reads_back(&server.client(), &objects).await;
    });
    let shown = bench.run_json(&["object", "show", &format!("s3://{BUCKET}/object-0")]).to_string();
    assert!(shown.contains("\"tier\":\"upstream\"") && !shown.contains("\"tier\":\"hot\""), "{shown}");
    server.stop();
    assert!(bench.check().contains("upstream far"), "skipped tiers are reported");
    let server = bench.setup.start();
    runtime().block_on(assert_reads_back(&server.client(), &objects));
    bench.run_json(&["tier", "drain", "upstream", "--wait"]);
    runtime().block_on(async {
        assert_eq!(bench.stored().await, Vec::<String>::new());
        assert_reads_back(&server.client(), &objects).await;
    });
    server.stop();
    assert!(!bench.check().contains("upstream far"));
}

#[test]
fn a_kill_while_segments_move_loses_nothing_and_leaves_no_object_behind() {
    let (bench, mut objects) = (UpstreamBench::new(), TierObjects::new());
    for round in 0..8 {
        println!("seed {round}");
        let mut random = Rng::new(round);
        let mut server = bench.setup.start();
        runtime().block_on(async {
            let client = server.client();
            if round == 0 {
                client.create_bucket(BUCKET).await.expect("made");
            }
            assert_reads_back(&client, &objects).await;
            put_some(&client, &mut random, &mut objects).await;
        });
        bench.run_json(&["tier", "drain", if round % 2 == 0 { "hot" } else { "upstream" }]);
        mlgw_common::time::block_for(Duration::from_millis(random.below(400)));
        server.kill();
    }
    let server = bench.setup.start();
    runtime().block_on(assert_reads_back(&server.client(), &objects));
    bench.run_json(&["tier", "drain", "upstream", "--wait"]);
    runtime().block_on(async {
        assert_eq!(bench.stored().await, Vec::<String>::new(), "no object is left behind");
        assert_reads_back(&server.client(), &objects).await;
    });
    server.stop();
    bench.check();
}

/// Number of uploads begun since the last call, and the numbers of the parts that were sent.
fn take_sent_parts(bench: &UpstreamBench) -> (usize, Vec<u32>) {
    let log = bench.proxy.log();
    bench.proxy.clear_log();
    let begun = log.iter().filter(|line| line.method == "POST" && line.target.ends_with("?uploads=")).count();
    let part = |target: &str| target.split_once("partNumber=")?.1.split('&').next()?.parse().ok();
    let mut parts: Vec<u32> =
        log.iter().filter(|line| line.method == "PUT").filter_map(|line| part(&line.target)).collect();
    parts.sort_unstable();
    // A part without a response is sent again.
    parts.dedup();
    (begun, parts)
}

/// Number of parts that the store has of the unfinished upload.
async fn parts_there(bench: &UpstreamBench) -> usize {
    let client = bench.store.client();
    let get = async |path: &str| {
        let answer = client.call(http::Method::GET, path, &[], full_body("")).await.expect("listed");
        String::from_utf8(answer.body.to_vec()).expect("text")
    };
    let uploads = get(&format!("/{SEGMENT_BUCKET}?uploads=")).await;
    let value = |name: &str| {
        let (_, rest) = uploads.split_once(&format!("<{name}>"))?;
        Some(rest.split_once('<')?.0.to_owned())
    };
    // The first key is the marker of the page.
    let (Some(id), Some((_, upload))) = (value("UploadId"), uploads.split_once("<Upload>")) else { return 0 };
    let key = upload.split_once("<Key>").and_then(|(_, rest)| rest.split_once('<')).expect("a key").0;
    get(&format!("/{SEGMENT_BUCKET}/{key}?uploadId={}", encode(&id))).await.matches("<PartNumber>").count()
}

/// A server with 45 MiB of objects in one sealed segment: six parts.
fn in_one_segment(setup: &ServerSetup) -> (ServerProcess, TierObjects) {
    let (server, mut objects) = (setup.start(), TierObjects::new());
    runtime().block_on(async {
        server.client().create_bucket(BUCKET).await.expect("made");
        for n in 0..5 {
            let bytes = TestContent { id: n, length: 9 << 20 }.bytes();
            let key = format!("large-{n}");
            server.client().put(BUCKET, &key, full_body(bytes.clone())).await.expect("stored");
            objects.insert(key, bytes);
        }
    });
    server.stop();
    (setup.start(), objects)
}

/// Starts to drain the segment, and kills the server when all of its parts except the fourth are stored.
fn kill_during_upload(bench: &UpstreamBench, setup: &ServerSetup, mut server: ServerProcess) {
    take_sent_parts(bench);
    let late = Rule::new(Fault::Delay { by: Duration::from_secs(3600) });
    bench.proxy.set_rules(vec![late.method("PUT").query("partNumber=4&")]);
    let (output, status) = setup.command(&["tier", "drain", "hot"]);
    assert_eq!(status, Some(0), "{output}");
    runtime().block_on(wait_until("five parts are uploaded", async || parts_there(bench).await == 5));
    server.kill();
    assert_eq!(take_sent_parts(bench), (1, vec![1, 2, 3, 4, 5, 6]));
    bench.proxy.set_rules(Vec::new());
}

async fn uploads_there(bench: &UpstreamBench) -> usize {
    bench.store.client().list_uploads(SEGMENT_BUCKET).await.expect("listed").len()
}

/// Waits until a condition is true.
async fn wait_until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    for _ in 0..3000 {
        if is_so().await {
            return;
        }
        mlgw_common::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("never: {what}");
}

#[test]
fn an_upload_interrupted_by_a_kill_is_continued_and_a_refused_one_is_aborted() {
    for encrypt in [true, false] {
        let bench = UpstreamBench::new();
        let setup =
            bench.setup.clone().with("upstream.far.encrypt", encrypt).with("hot.segment_bytes", "64MiB");
        let (server, objects) = in_one_segment(&setup);
        let denied = Rule::new(Fault::Status { status: 403, code: "AccessDenied".into() });
        bench.proxy.set_rules(vec![denied.method("PUT").query("partNumber=2&")]);
        let (output, status) = setup.command(&["tier", "drain", "hot", "--wait"]);
        assert!(status == Some(1) && output.contains("could not be moved"), "{output}");
        assert_eq!(runtime().block_on(uploads_there(&bench)), 0);

        kill_during_upload(&bench, &setup, server);
        let server = setup.start();
        let (output, status) = setup.command(&["tier", "drain", "hot", "--wait"]);
        assert_eq!(status, Some(0), "{output}");
        assert_eq!(take_sent_parts(&bench), (0, vec![4]), "encrypted: {encrypt}");
        runtime().block_on(async {
            assert_eq!(uploads_there(&bench).await, 0);
            assert_eq!(bench.stored().await.len(), 1);
            assert_reads_back(&server.client(), &objects).await;
        });
        server.stop();
        bench.check();
    }
}

#[test]
fn an_upload_of_a_removed_segment_is_aborted() {
    let bench = UpstreamBench::new();
    let setup = bench.setup.clone().with("hot.segment_bytes", "64MiB");
    let (server, objects) = in_one_segment(&setup);
    kill_during_upload(&bench, &setup, server);
    let server = setup.start();
    runtime().block_on(async {
        for key in objects.keys() {
            server.client().delete(BUCKET, key).await.expect("deleted");
        }
        wait_until("the upload is aborted", async || uploads_there(&bench).await == 0).await;
        assert_eq!(bench.stored().await, Vec::<String>::new());
    });
    server.stop();
    bench.check();
}

#[test]
fn an_unreachable_upstream_blocks_only_requests_for_its_segments() {
    let bench = UpstreamBench::new();
    let (server, objects) = filled(&bench.setup);
    bench.run_json(&["tier", "drain", "hot", "--wait"]);
    let unavailable =
        || vec![Rule::new(Fault::Status { status: 503, code: "SlowDown".to_owned() }).path("/")];
    bench.proxy.set_rules(unavailable());
    runtime().block_on(async {
        let client = server.client();
        client.put(BUCKET, "here", full_body(vec![7; 100])).await.expect("stored");
        assert_eq!(client.get(BUCKET, "here").await.expect("read").body, vec![7; 100]);
        let refused = client.get(BUCKET, "object-0").await.expect_err("the read is refused");
        assert!(format!("{refused:?}").contains("ServiceUnavailable"), "{refused:?}");
    });
    let (output, status) = bench.setup.command(&["tier", "drain", "upstream", "--wait"]);
    assert!(status == Some(1) && output.contains("could not be moved"), "{output}");
    bench.proxy.set_rules(Vec::new());
    runtime().block_on(assert_reads_back(&server.client(), &objects));
    server.stop();
}

#[test]
fn a_backup_reports_data_that_is_only_in_an_upstream() {
    let bench = UpstreamBench::new();
    let (server, objects) = filled(&bench.setup);
    bench.run_json(&["tier", "drain", "hot", "--wait"]);
    let backup = |to: &str, more: &[&str]| {
        let words = ["store", "backup", &bench.path("data"), &bench.path(to)];
        bench.setup.command(&[&words, more].concat())
    };
    let (output, status) = backup("refused", &[]);
    assert!(status == Some(1) && output.contains("tier drain upstream"), "{output}");
    let (output, status) = backup("copy", &["--leave-upstreams"]);
    assert_eq!(status, Some(0), "{output}");
    server.stop();
    let (output, status) = backup("closed", &["--leave-upstreams"]);
    assert_eq!(status, Some(0), "{output}");
    let restore = ["store", "restore", &bench.path("closed"), &bench.path("back")];
    let (output, status) = bench.setup.command(&restore);
    assert_eq!(status, Some(0), "{output}");
    let server = setup(bench.temp_dir.path().join("back"), &bench.proxy).start();
    runtime().block_on(assert_reads_back(&server.client(), &objects));
    server.stop();
}

//! Segments in an upstream, which is a second server behind a proxy: segments are spilled and promoted under
//! all kinds of events, and everything reads back.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use super::{BUCKET, Objects, filled, put_some, reads_back, runtime};
use crate::content::Content;
use crate::proxy::{Fault, FaultProxy, Rule};
use crate::s3::{encode, whole};
use crate::seed::Rng;
use crate::server::{Server, Setup, binary};

/// The bucket for segments.
const THERE: &str = "segments";

struct Bench {
    room: tempfile::TempDir,
    store: Server,
    proxy: FaultProxy,
    setup: Setup,
}

impl Bench {
    fn new() -> Self {
        let room = tempfile::tempdir().expect("a directory");
        let store = Setup::new(room.path().join("store")).start();
        runtime().block_on(store.client().create_bucket(THERE)).expect("made");
        let proxy = FaultProxy::start(store.s3);
        let setup = setup(room.path().join("data"), &proxy);
        Self { room, store, proxy, setup }
    }

    fn says(&self, words: &[&str]) -> Value {
        let (said, status) = self.setup.command(&[&["--output", "json"], words].concat());
        assert_eq!(status, Some(0), "{words:?}: {said}");
        serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}"))
    }

    /// Names of the segment objects in the store.
    async fn stored(&self) -> Vec<String> {
        let listed = self.store.client().list(THERE, 1000).await.expect("listed");
        let keys = listed.into_iter().map(|object| object.key);
        keys.filter(|key| key.starts_with("pre/segments/")).collect()
    }

    fn path(&self, name: &str) -> String {
        self.room.path().join(name).display().to_string()
    }

    fn check(&self) -> String {
        let check = Command::new(binary())
            .args(["store", "check", &self.path("data")])
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .output()
            .expect("the binary runs");
        let said = String::from_utf8_lossy(&[check.stdout, check.stderr].concat()).into_owned();
        assert_eq!(check.status.code(), Some(0), "{said}");
        said
    }
}

/// A server on `data_dir` that spills to the store behind `proxy`.
fn setup(data_dir: PathBuf, proxy: &FaultProxy) -> Setup {
    Setup::new(data_dir)
        .with_upstream("far", proxy.addr(), THERE, "2s")
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
    let bench = Bench::new();
    let (server, objects) = filled(&bench.setup);
    let moved = bench.says(&["tier", "drain", "hot", "--wait"]);
    assert!(moved["spilled_bytes"].as_u64().is_some_and(|bytes| bytes > 5_000_000), "{moved}");
    let upstream = bench.says(&["upstream", "show", "far"]);
    runtime().block_on(async {
        assert_eq!(upstream["segments"].as_u64(), Some(bench.stored().await.len() as u64), "{upstream}");
        reads_back(&server.client(), &objects).await;
    });
    let shown = bench.says(&["object", "show", &format!("s3://{BUCKET}/object-0")]).to_string();
    assert!(shown.contains("\"tier\":\"upstream\"") && !shown.contains("\"tier\":\"hot\""), "{shown}");
    server.stop();
    assert!(bench.check().contains("upstream far"), "what was not looked at is said");
    let server = bench.setup.start();
    runtime().block_on(reads_back(&server.client(), &objects));
    bench.says(&["tier", "drain", "upstream", "--wait"]);
    runtime().block_on(async {
        assert_eq!(bench.stored().await, Vec::<String>::new());
        reads_back(&server.client(), &objects).await;
    });
    server.stop();
    assert!(!bench.check().contains("upstream far"));
}

#[test]
fn a_kill_while_segments_move_loses_nothing_and_leaves_no_object_behind() {
    let (bench, mut objects) = (Bench::new(), Objects::new());
    for round in 0..8 {
        println!("seed {round}");
        let mut random = Rng::new(round);
        let mut server = bench.setup.start();
        runtime().block_on(async {
            let client = server.client();
            if round == 0 {
                client.create_bucket(BUCKET).await.expect("made");
            }
            reads_back(&client, &objects).await;
            put_some(&client, &mut random, &mut objects).await;
        });
        bench.says(&["tier", "drain", if round % 2 == 0 { "hot" } else { "upstream" }]);
        std::thread::sleep(Duration::from_millis(random.below(400)));
        server.kill();
    }
    let server = bench.setup.start();
    runtime().block_on(reads_back(&server.client(), &objects));
    bench.says(&["tier", "drain", "upstream", "--wait"]);
    runtime().block_on(async {
        assert_eq!(bench.stored().await, Vec::<String>::new(), "no object is left behind");
        reads_back(&server.client(), &objects).await;
    });
    server.stop();
    bench.check();
}

/// Number of uploads begun since the last call, and the numbers of the parts that were sent.
fn sent(bench: &Bench) -> (usize, Vec<u32>) {
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
async fn parts_there(bench: &Bench) -> usize {
    let client = bench.store.client();
    let get = async |path: &str| {
        let answer = client.call(http::Method::GET, path, &[], whole("")).await.expect("listed");
        String::from_utf8(answer.body.to_vec()).expect("text")
    };
    let uploads = get(&format!("/{THERE}?uploads=")).await;
    let value = |name: &str| {
        let (_, rest) = uploads.split_once(&format!("<{name}>"))?;
        Some(rest.split_once('<')?.0.to_owned())
    };
    // The first key is the marker of the page.
    let (Some(id), Some((_, upload))) = (value("UploadId"), uploads.split_once("<Upload>")) else { return 0 };
    let key = upload.split_once("<Key>").and_then(|(_, rest)| rest.split_once('<')).expect("a key").0;
    get(&format!("/{THERE}/{key}?uploadId={}", encode(&id))).await.matches("<PartNumber>").count()
}

/// A server with 45 MiB of objects in one sealed segment: six parts.
fn in_one_segment(setup: &Setup) -> (Server, Objects) {
    let (server, mut objects) = (setup.start(), Objects::new());
    runtime().block_on(async {
        server.client().create_bucket(BUCKET).await.expect("made");
        for n in 0..5 {
            let bytes = Content { id: n, length: 9 << 20 }.bytes();
            let key = format!("large-{n}");
            server.client().put(BUCKET, &key, whole(bytes.clone())).await.expect("stored");
            objects.insert(key, bytes);
        }
    });
    server.stop();
    (setup.start(), objects)
}

/// Starts to drain the segment, and kills the server when all of its parts except the fourth are stored.
fn cut_short(bench: &Bench, setup: &Setup, mut server: Server) {
    sent(bench);
    let late = Rule::new(Fault::Delay { by: Duration::from_secs(3600) });
    bench.proxy.set_rules(vec![late.method("PUT").query("partNumber=4&")]);
    let (said, status) = setup.command(&["tier", "drain", "hot"]);
    assert_eq!(status, Some(0), "{said}");
    runtime().block_on(until("five parts are there", async || parts_there(bench).await == 5));
    server.kill();
    assert_eq!(sent(bench), (1, vec![1, 2, 3, 4, 5, 6]));
    bench.proxy.set_rules(Vec::new());
}

async fn uploads_there(bench: &Bench) -> usize {
    bench.store.client().list_uploads(THERE).await.expect("listed").len()
}

/// Waits until a condition is true.
async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    for _ in 0..3000 {
        if is_so().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("never: {what}");
}

#[test]
fn an_upload_interrupted_by_a_kill_is_continued_and_a_refused_one_is_aborted() {
    for encrypt in [true, false] {
        let bench = Bench::new();
        let setup =
            bench.setup.clone().with("upstream.far.encrypt", encrypt).with("hot.segment_bytes", "64MiB");
        let (server, objects) = in_one_segment(&setup);
        let denied = Rule::new(Fault::Status { status: 403, code: "AccessDenied".into() });
        bench.proxy.set_rules(vec![denied.method("PUT").query("partNumber=2&")]);
        let (said, status) = setup.command(&["tier", "drain", "hot", "--wait"]);
        assert!(status == Some(1) && said.contains("could not be moved"), "{said}");
        assert_eq!(runtime().block_on(uploads_there(&bench)), 0);

        cut_short(&bench, &setup, server);
        let server = setup.start();
        let (said, status) = setup.command(&["tier", "drain", "hot", "--wait"]);
        assert_eq!(status, Some(0), "{said}");
        assert_eq!(sent(&bench), (0, vec![4]), "encrypted: {encrypt}");
        runtime().block_on(async {
            assert_eq!(uploads_there(&bench).await, 0);
            assert_eq!(bench.stored().await.len(), 1);
            reads_back(&server.client(), &objects).await;
        });
        server.stop();
        bench.check();
    }
}

#[test]
fn an_upload_of_a_removed_segment_is_aborted() {
    let bench = Bench::new();
    let setup = bench.setup.clone().with("hot.segment_bytes", "64MiB");
    let (server, objects) = in_one_segment(&setup);
    cut_short(&bench, &setup, server);
    let server = setup.start();
    runtime().block_on(async {
        for key in objects.keys() {
            server.client().delete(BUCKET, key).await.expect("deleted");
        }
        until("it is ended", async || uploads_there(&bench).await == 0).await;
        assert_eq!(bench.stored().await, Vec::<String>::new());
    });
    server.stop();
    bench.check();
}

#[test]
fn an_unreachable_upstream_blocks_only_requests_for_its_segments() {
    let bench = Bench::new();
    let (server, objects) = filled(&bench.setup);
    bench.says(&["tier", "drain", "hot", "--wait"]);
    let away = || vec![Rule::new(Fault::Status { status: 503, code: "SlowDown".to_owned() }).path("/")];
    bench.proxy.set_rules(away());
    runtime().block_on(async {
        let client = server.client();
        client.put(BUCKET, "here", whole(vec![7; 100])).await.expect("stored");
        assert_eq!(client.get(BUCKET, "here").await.expect("read").body, vec![7; 100]);
        let refused = client.get(BUCKET, "object-0").await.expect_err("it is there");
        assert!(format!("{refused:?}").contains("ServiceUnavailable"), "{refused:?}");
    });
    let (said, status) = bench.setup.command(&["tier", "drain", "upstream", "--wait"]);
    assert!(status == Some(1) && said.contains("could not be moved"), "{said}");
    bench.proxy.set_rules(Vec::new());
    runtime().block_on(reads_back(&server.client(), &objects));
    server.stop();
}

#[test]
fn a_backup_reports_data_that_is_only_in_an_upstream() {
    let bench = Bench::new();
    let (server, objects) = filled(&bench.setup);
    bench.says(&["tier", "drain", "hot", "--wait"]);
    let backup = |to: &str, more: &[&str]| {
        let words = ["store", "backup", &bench.path("data"), &bench.path(to)];
        bench.setup.command(&[&words, more].concat())
    };
    let (said, status) = backup("refused", &[]);
    assert!(status == Some(1) && said.contains("tier drain upstream"), "{said}");
    let (said, status) = backup("copy", &["--leave-upstreams"]);
    assert_eq!(status, Some(0), "{said}");
    server.stop();
    let (said, status) = backup("closed", &["--leave-upstreams"]);
    assert_eq!(status, Some(0), "{said}");
    let restore = ["store", "restore", &bench.path("closed"), &bench.path("back")];
    let (said, status) = bench.setup.command(&restore);
    assert_eq!(status, Some(0), "{said}");
    let server = setup(bench.room.path().join("back"), &bench.proxy).start();
    runtime().block_on(reads_back(&server.client(), &objects));
    server.stop();
}

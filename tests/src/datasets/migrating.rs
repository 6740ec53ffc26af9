//! Remote-backed buckets that are moved to another upstream while they are in use: no write is lost, and
//! readers see no change.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::Method;

use super::{DatasetBench, MIB, ORIGIN_BUCKET, OTHER_ORIGIN_BUCKET, id_of, runtime, wait_until};
use crate::content::TestContent;
use crate::proxy::{Fault, Rule};
use crate::s3::{S3TestClient, encode, full_body};

/// The bucket that is moved, its old key prefix at the origin, and its new one.
const BUCKET: &str = "moving";
const OLD_PREFIX: &str = "old/";
const NEW_PREFIX: &str = "new/";
const MODES: [&str; 3] = ["read-through", "write-through", "write-back"];
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

fn bound(mode: &str) -> DatasetBench {
    let bench = DatasetBench::new();
    bench.run(&[
        "bucket",
        "bind",
        BUCKET,
        "--upstream",
        "far",
        "--prefix",
        OLD_PREFIX,
        "--mode",
        mode,
        "--ttl",
        "1h",
    ]);
    bench
}

impl DatasetBench {
    fn migrate(&self, more: &[&str]) -> serde_json::Value {
        let words = ["bucket", "migrate", BUCKET, "--upstream", "near", "--prefix", NEW_PREFIX];
        self.run(&[&words[..], more].concat())
    }

    fn assert_bound_to(&self, upstream: &str, prefix: &str) {
        let shown = self.run(&["bucket", "show", BUCKET]);
        let binding = &shown["binding"];
        assert_eq!((&binding["upstream"], &binding["prefix"]), (&upstream.into(), &prefix.into()), "{shown}");
    }
}

fn path(bucket: &str, key: &str) -> String {
    format!("/{bucket}/{}", key.split('/').map(encode).collect::<Vec<_>>().join("/"))
}

/// All client-visible properties of an object.
#[derive(Debug, PartialEq, Eq)]
struct ObjectView {
    etag: String,
    headers: [Option<String>; 4],
    tags: String,
    body: bytes::Bytes,
}

async fn view_object(client: &S3TestClient, bucket: &str, key: &str) -> ObjectView {
    let found = client.get(bucket, key).await.unwrap_or_else(|error| panic!("{key:?} is there: {error:?}"));
    let tags = client.call(Method::GET, &format!("{}?tagging=", path(bucket, key)), &[], full_body("")).await;
    let header = |name| found.header(name).map(str::to_owned);
    ObjectView {
        etag: found.etag(),
        headers: ["content-type", "cache-control", "x-amz-meta-a", "content-encoding"].map(header),
        tags: String::from_utf8_lossy(&tags.expect("tags").body).into_owned(),
        body: found.body,
    }
}

#[test]
fn readers_see_no_change_for_objects_of_every_kind() {
    for mode in MODES {
        let bench = bound(mode);
        let runtime = runtime();
        let keys = runtime.block_on(objects_of_every_kind(&bench.origin_client()));
        let before = runtime.block_on(view_all(&bench.client(), &keys));
        let job = bench.migrate(&["--wait", "--quiet"]);
        assert_eq!((&job["state"], &job["objects_done"]), (&"done".into(), &keys.len().into()), "{job}");
        assert_eq!(job["moved_objects"], keys.len(), "{job}");
        bench.assert_bound_to("near", NEW_PREFIX);
        bench.take_requests("");
        let after = runtime.block_on(view_all(&bench.client(), &keys));
        for (key, seen) in &before {
            assert!(after[key] == *seen, "{mode}: {key:?} was {:?} and is {:?}", seen.etag, after[key].etag);
        }
        let requests = bench.take_requests("");
        assert!(
            requests.iter().all(|line| line.contains(OTHER_ORIGIN_BUCKET)),
            "the old origin gets no more requests: {requests:?}"
        );
        runtime.block_on(async {
            let kept = bench.origin_client().list(ORIGIN_BUCKET, 1000).await.expect("listed");
            assert_eq!(kept.len(), keys.len(), "the old origin keeps its objects");
            let listed = bench.client().list(BUCKET, 3).await.expect("listed");
            let names: Vec<&String> = listed.iter().map(|row| &row.key).collect();
            assert_eq!(names, keys.iter().collect::<Vec<_>>(), "{mode}");
        });
    }
}

#[test]
fn conditions_name_the_etags_that_readers_were_shown() {
    let bench = bound("write-through");
    runtime().block_on(async {
        objects_of_every_kind(&bench.origin_client()).await;
        let client = bench.client();
        let shown = client.head(BUCKET, "parts").await.expect("exists").etag();
        bench.migrate(&["--wait", "--quiet"]);
        assert_eq!(client.head(BUCKET, "parts").await.expect("exists").etag(), shown);
        let there = bench
            .origin_client()
            .head(OTHER_ORIGIN_BUCKET, &format!("{NEW_PREFIX}parts"))
            .await
            .expect("exists")
            .etag();
        assert!(there != shown && shown.ends_with("-2"), "the origin has another ETag: {there}");
        let with = async |method: Method, to: &str, name: &'static str, etag: &str| {
            let source = [("x-amz-copy-source", path(BUCKET, "parts")), (name, format!("\"{etag}\""))];
            let headers = if name.starts_with("x-amz-copy") { &source[..] } else { &source[1..] };
            let done = client.call(method, &path(BUCKET, to), headers, full_body("")).await;
            done.map(|answer| answer.etag()).map_err(|failure| failure.status())
        };
        let copy_if = "x-amz-copy-source-if-match";
        assert_eq!(with(Method::PUT, "copy", copy_if, "x").await, Err(Some(412)));
        with(Method::PUT, "copy", copy_if, &shown).await.expect("copied");
        let copied = client.get(BUCKET, "copy").await.expect("exists");
        assert_eq!(copied.etag(), there, "a copy has the origin's own ETag");
        assert_eq!(with(Method::GET, "parts", "if-none-match", &shown).await, Err(Some(304)));
        assert_eq!(with(Method::DELETE, "parts", "if-match", "x").await, Err(Some(412)));
        with(Method::PUT, "parts", "if-match", &shown).await.expect("overwritten");
        let etag = client.head(BUCKET, "parts").await.expect("exists").etag();
        with(Method::DELETE, "parts", "if-match", &etag).await.expect("deleted");
    });
}

/// Puts objects at the old origin, and returns their keys in byte order.
async fn objects_of_every_kind(client: &S3TestClient) -> Vec<String> {
    let described = [
        ("content-type", "text/x".to_owned()),
        ("cache-control", "no-cache".to_owned()),
        ("x-amz-meta-a", "ü b".to_owned()),
        ("x-amz-tagging", "t=1&u=%C3%BC".to_owned()),
    ];
    let mut keys: Vec<String> = ["../up", "a//b", "dir/", "plain", "ü/x y+&?"].map(str::to_owned).to_vec();
    for (id, key) in keys.iter().enumerate() {
        let body = TestContent { id: id as u64, length: id * 700_000 }.bytes();
        let there = path(ORIGIN_BUCKET, &format!("{OLD_PREFIX}{key}"));
        client.call(Method::PUT, &there, &described, full_body(body)).await.expect("stored");
    }
    // One object that exceeds a single request, and one whose ETag is computed from parts.
    let large = TestContent { id: 90, length: 70 * MIB }.bytes();
    client.put(ORIGIN_BUCKET, &format!("{OLD_PREFIX}large"), full_body(large)).await.expect("stored");
    let of_parts = format!("{OLD_PREFIX}parts");
    let upload = client.create_upload(ORIGIN_BUCKET, &of_parts).await.expect("begun");
    let mut parts = Vec::new();
    for (number, length) in [(1, 6 * MIB), (2, 100)] {
        let body = TestContent { id: u64::from(number), length }.bytes();
        let etag =
            client.put_part(ORIGIN_BUCKET, &of_parts, &upload, number, full_body(body)).await.expect("sent");
        parts.push((number, etag));
    }
    client.complete(ORIGIN_BUCKET, &of_parts, &upload, &parts).await.expect("complete");
    keys.extend(["large".to_owned(), "parts".to_owned()]);
    keys.sort();
    keys
}

async fn view_all(client: &S3TestClient, keys: &[String]) -> BTreeMap<String, ObjectView> {
    let mut all = BTreeMap::new();
    for key in keys {
        all.insert(key.clone(), view_object(client, BUCKET, key).await);
    }
    all
}

/// Puts objects at the old origin: `k000` and so on.
async fn fill(client: &S3TestClient, count: u64) {
    for n in 0..count {
        let body = TestContent { id: n, length: 20_000 }.bytes();
        client.put(ORIGIN_BUCKET, &format!("{OLD_PREFIX}k{n:03}"), full_body(body)).await.expect("stored");
    }
}

/// Waits for the next second, so that later writes have a later modification time than existing objects. A
/// write of another client within the same second counts as foreign.
fn wait_for_next_second() {
    let second = || std::time::UNIX_EPOCH.elapsed().expect("later than 1970").as_secs();
    let now = second();
    while second() == now {
        mlgw_common::time::block_for(Duration::from_millis(20));
    }
}

/// Writes and deletes keys of its own until `stop` is set. Returns the last acknowledged state of each key.
async fn write_until_stopped(
    client: S3TestClient,
    writer: u64,
    stop: Arc<AtomicBool>,
) -> BTreeMap<String, Option<TestContent>> {
    let mut last = BTreeMap::new();
    let mut step = 0;
    while !stop.load(Ordering::Relaxed) {
        step += 1;
        let key = format!("k{:03}", writer * 50 + step * 7 % 40);
        if step % 5 == 0 {
            client.delete(BUCKET, &key).await.expect("deleted");
            last.insert(key, None);
        } else {
            let content =
                TestContent { id: writer * 1_000_000 + step, length: 1000 + (step as usize % 7) * 30_000 };
            client.put(BUCKET, &key, full_body(content.bytes())).await.expect("acknowledged");
            let found = client.get(BUCKET, &key).await.expect("exists");
            assert!(found.body == content.bytes(), "{key}: the acknowledged write is readable");
            last.insert(key, Some(content));
        }
        mlgw_common::time::sleep(Duration::from_millis(3)).await;
    }
    last
}

#[test]
fn concurrent_writes_are_not_lost() {
    for mode in ["write-through", "write-back"] {
        let bench = bound(mode);
        let runtime = runtime();
        runtime.block_on(fill(&bench.origin_client(), 200));
        wait_for_next_second();
        let delay = |part: &str| Rule::new(Fault::Delay { by: Duration::from_millis(4) }).path(part);
        bench.proxy.set_rules(vec![delay(OTHER_ORIGIN_BUCKET)]);
        let stop = Arc::new(AtomicBool::new(false));
        let writers: Vec<_> = (0..3)
            .map(|writer| runtime.spawn(write_until_stopped(bench.client(), writer, stop.clone())))
            .collect();
        mlgw_common::time::block_for(Duration::from_millis(200));
        let job = bench.migrate(&["--wait", "--quiet"]);
        assert_eq!(job["state"], "done", "{job}");
        mlgw_common::time::block_for(Duration::from_millis(300));
        stop.store(true, Ordering::Relaxed);
        bench.proxy.set_rules(vec![]);
        let mut expected: BTreeMap<String, Option<TestContent>> =
            (0..200).map(|n| (format!("k{n:03}"), Some(TestContent { id: n, length: 20_000 }))).collect();
        runtime.block_on(async {
            for writer in writers {
                expected.extend(writer.await.expect("the writer succeeded"));
            }
        });
        if mode == "write-back" {
            let (output, status) = bench.setup.command(&["--quiet", "bucket", "flush", BUCKET]);
            assert_eq!(status, Some(0), "{output}");
        }
        bench.assert_bound_to("near", NEW_PREFIX);
        runtime.block_on(assert_all(&bench, &expected));
    }
}

/// Checks that reads here return the expected objects, and that the new origin has the same.
async fn assert_all(bench: &DatasetBench, expected: &BTreeMap<String, Option<TestContent>>) {
    for (key, content) in expected {
        let (here, there) = (
            bench.client().get(BUCKET, key).await,
            bench.origin_client().get(OTHER_ORIGIN_BUCKET, &format!("{NEW_PREFIX}{key}")).await,
        );
        match content {
            None => assert!(here.is_err() && there.is_err(), "{key} is deleted"),
            Some(content) => {
                let (here, there) = (here.expect("here"), there.expect("exists"));
                assert!(here.body == content.bytes() && there.body == content.bytes(), "{key}");
            }
        }
    }
    let there: usize = bench.origin_client().list(OTHER_ORIGIN_BUCKET, 1000).await.expect("listed").len();
    assert_eq!(there, expected.values().flatten().count(), "and nothing else");
}

#[test]
fn a_migration_resumes_after_a_kill_and_completes() {
    let mut bench = bound("write-through");
    let runtime = runtime();
    runtime.block_on(fill(&bench.origin_client(), 120));
    let stall = Rule::new(Fault::Delay { by: Duration::from_secs(3600) }).method("PUT").path("k050");
    bench.proxy.set_rules(vec![stall]);
    let id = id_of(&bench.migrate(&[]));
    wait_until("half of the job is done", || bench.job(id)["objects_done"] == 50);
    // Changes after an object's copy and before the kill are in no record.
    let tags = "<Tagging><TagSet><Tag><Key>a</Key><Value>b</Value></Tag></TagSet></Tagging>";
    runtime.block_on(async {
        let client = bench.client();
        client
            .put(BUCKET, "k003", full_body(TestContent { id: 999, length: 20_000 }.bytes()))
            .await
            .expect("stored");
        client.delete(BUCKET, "k004").await.expect("deleted");
        let tagging = format!("{}?tagging=", path(BUCKET, "k005"));
        client.call(Method::PUT, &tagging, &[], full_body(tags)).await.expect("tagged");
    });
    bench.crash(vec![]);
    bench.run(&["job", "wait", &id.to_string(), "--quiet"]);
    let job = bench.job(id);
    assert_eq!((&job["state"], &job["starts"]), (&"done".into(), &2.into()), "{job}");
    bench.assert_bound_to("near", NEW_PREFIX);
    let mut expected: BTreeMap<String, Option<TestContent>> =
        (0..120).map(|n| (format!("k{n:03}"), Some(TestContent { id: n, length: 20_000 }))).collect();
    expected.insert("k003".into(), Some(TestContent { id: 999, length: 20_000 }));
    expected.insert("k004".into(), None);
    runtime.block_on(async {
        assert_all(&bench, &expected).await;
        let seen = view_object(&bench.client(), BUCKET, "k005").await;
        assert!(seen.tags.contains("<Value>b<"), "{seen:?}");
    });
    // The bucket stays at its new place after another start.
    bench.crash(vec![]);
    bench.assert_bound_to("near", NEW_PREFIX);
    runtime.block_on(assert_all(&bench, &expected));
}

#[test]
fn a_cancelled_migration_leaves_the_bucket_in_place_and_can_be_repeated() {
    let bench = bound("write-through");
    let runtime = runtime();
    runtime.block_on(async {
        fill(&bench.origin_client(), 80).await;
        let large = TestContent { id: 90, length: 70 * MIB }.bytes();
        bench
            .origin_client()
            .put(ORIGIN_BUCKET, &format!("{OLD_PREFIX}a-large"), full_body(large))
            .await
            .expect("stored");
    });
    let stall =
        |part: &str| Rule::new(Fault::Delay { by: Duration::from_secs(3600) }).method("PUT").path(part);
    bench
        .proxy
        .set_rules(vec![stall("k070"), Rule { query: Some("partNumber=2".into()), ..stall("a-large") }]);
    let id = id_of(&bench.migrate(&[]));
    let uploads =
        || runtime.block_on(bench.origin_client().list_uploads(OTHER_ORIGIN_BUCKET)).expect("uploads");
    wait_until("an upload has begun", || !uploads().is_empty());
    bench.assert_refused(&["--yes", "bucket", "unbind", BUCKET], 4, "is being migrated");
    bench.assert_refused(
        &["bucket", "migrate", BUCKET, "--upstream", "near", "--prefix", "x/"],
        4,
        &format!("migrate, job {id}"),
    );
    bench.run(&["job", "cancel", &id.to_string()]);
    bench.assert_refused(&["job", "wait", &id.to_string(), "--quiet"], 1, "cancelled");
    bench.assert_bound_to("far", OLD_PREFIX);
    assert_eq!(uploads(), Vec::<String>::new(), "no unfinished upload remains at the target");
    bench.proxy.set_rules(vec![]);
    let write = async {
        let written = bench
            .client()
            .put(BUCKET, "k001", full_body(TestContent { id: 7, length: 20_000 }.bytes()))
            .await;
        written.expect("the write continues");
    };
    runtime.block_on(async {
        mlgw_common::time::timeout(WRITE_TIMEOUT, write).await.expect("the write is not blocked")
    });
    // A prefix with objects of others is refused, because they would be deleted.
    runtime.block_on(async {
        bench.origin_client().put(OTHER_ORIGIN_BUCKET, "theirs/k", full_body("x")).await.expect("stored");
    });
    bench.assert_refused(
        &["bucket", "migrate", BUCKET, "--upstream", "near", "--prefix", "theirs/"],
        4,
        "NotEmpty",
    );
    let job = bench.migrate(&["--wait", "--quiet"]);
    assert_eq!(job["state"], "done", "{job}");
    bench.assert_bound_to("near", NEW_PREFIX);
    runtime.block_on(async {
        bench.origin_client().delete(OTHER_ORIGIN_BUCKET, "theirs/k").await.expect("deleted");
        let mut expected: BTreeMap<String, Option<TestContent>> =
            (0..80).map(|n| (format!("k{n:03}"), Some(TestContent { id: n, length: 20_000 }))).collect();
        expected.insert("k001".into(), Some(TestContent { id: 7, length: 20_000 }));
        expected.insert("a-large".into(), Some(TestContent { id: 90, length: 70 * MIB }));
        assert_all(&bench, &expected).await;
    });
    bench.run(&["bucket", "unbind", BUCKET]);
    let jobs = bench.run(&["job", "list", "--dataset", &format!("bucket:{BUCKET}")]);
    assert_eq!(jobs["jobs"], serde_json::json!([]), "the finished jobs are forgotten");
}

#[test]
fn requests_to_upstreams_that_fail_at_times_are_retried() {
    let bench = bound("write-back");
    let runtime = runtime();
    runtime.block_on(fill(&bench.origin_client(), 150));
    let slow_down = Fault::Status { status: 503, code: "SlowDown".to_owned() };
    bench.proxy.set_rules(vec![
        Rule::new(Fault::CutRequest { after: 5000 })
            .method("PUT")
            .path(OTHER_ORIGIN_BUCKET)
            .probability(0.1, 1),
        Rule::new(Fault::CutAnswer { after: 9000 }).method("GET").path("k").probability(0.1, 2),
        Rule::new(Fault::CutBeforeAnswer).method("PUT").path(OTHER_ORIGIN_BUCKET).probability(0.1, 3),
        Rule::new(Fault::Truncate { after: 700 }).method("GET").path("/k").probability(0.1, 4),
        Rule::new(Fault::Corrupt { at: 1234 }).method("GET").path("/k").probability(0.03, 5),
        Rule::new(slow_down).probability(0.1, 6),
    ]);
    let job = bench.migrate(&["--wait", "--quiet"]);
    assert_eq!((&job["state"], &job["failed_objects"]), (&"done".into(), &0.into()), "{job}");
    bench.proxy.set_rules(vec![]);
    let expected =
        (0..150).map(|n| (format!("k{n:03}"), Some(TestContent { id: n, length: 20_000 }))).collect();
    runtime.block_on(assert_all(&bench, &expected));
}

#[test]
fn bits_that_flip_in_the_same_way_in_repeated_reads_are_not_copied() {
    let bench = bound("read-through");
    let runtime = runtime();
    runtime.block_on(fill(&bench.origin_client(), 1));
    // Enough flips that the read is refused, and one in the reads that check whether the ETag is wrong.
    let flips = Rule { times: Some(4), ..Rule::new(Fault::Corrupt { at: 1234 }) };
    bench.proxy.set_rules(vec![flips.method("GET").path(&format!("/{ORIGIN_BUCKET}/"))]);
    let job = bench.migrate(&["--wait", "--quiet"]);
    assert_eq!((&job["state"], &job["failed_objects"]), (&"done".into(), &0.into()), "{job}");
    bench.proxy.set_rules(vec![]);
    runtime
        .block_on(assert_all(&bench, &[("k000".into(), Some(TestContent { id: 0, length: 20_000 }))].into()));
}

#[test]
fn without_an_md5_etag_bytes_that_two_reads_agree_on_are_copied() {
    let bench = bound("read-through");
    let runtime = runtime();
    runtime.block_on(fill(&bench.origin_client(), 3));
    // The ETag looks like that of an object that its origin encrypts.
    let etag = "0123456789abcdef0123456789abcdef";
    let header = Fault::Header { name: "etag".into(), value: format!("\"{etag}\"") };
    bench.proxy.set_rules(vec![Rule::new(header).path(&format!("/{ORIGIN_BUCKET}/"))]);
    let job = bench.migrate(&["--wait", "--quiet"]);
    assert_eq!((&job["state"], &job["failed_objects"]), (&"done".into(), &0.into()), "{job}");
    bench.proxy.set_rules(vec![]);
    runtime.block_on(async {
        for n in 0..3 {
            let found = bench.client().get(BUCKET, &format!("k{n:03}")).await.expect("read");
            assert_eq!(TestContent { id: n, length: 20_000 }.difference(&found.body), None);
            assert_eq!(found.etag(), etag, "the ETag is unchanged");
        }
    });
}

#[test]
fn a_bucket_that_cannot_be_moved_is_refused_and_stays() {
    let bench = bound("read-through");
    runtime().block_on(async {
        bench.client().create_bucket("native").await.expect("made");
        fill(&bench.origin_client(), 3).await;
    });
    let migrate = ["bucket", "migrate"];
    for (words, what) in [
        (["native", "near", ""], "is not remote-backed"),
        ([BUCKET, "nowhere", ""], "is not configured"),
        ([BUCKET, "far", OLD_PREFIX], "overlaps with"),
        ([BUCKET, "far", "old/k"], "overlaps with"),
        ([BUCKET, "far", ""], "overlaps with"),
    ] {
        let [bucket, upstream, prefix] = words;
        let words = [&migrate[..], &[bucket, "--upstream", upstream, "--prefix", prefix]].concat();
        bench.assert_refused(&words, 4, what);
    }
    bench.assert_refused(&["bucket", "migrate", "none", "--upstream", "near"], 1, "NoSuchBucket");
    bench.assert_refused(&["dataset", "show", &format!("bucket:{BUCKET}")], 1, "NoSuchDataset");
    assert_eq!(bench.run(&["dataset", "list"])["datasets"], serde_json::json!([]));
    bench.assert_bound_to("far", OLD_PREFIX);
    // A move to another prefix of the same upstream is allowed.
    let job = bench.run(&[
        "bucket",
        "migrate",
        BUCKET,
        "--upstream",
        "far",
        "--prefix",
        "other/",
        "--wait",
        "--quiet",
    ]);
    assert_eq!(job["state"], "done", "{job}");
    assert_eq!(bench.run(&["dataset", "list"])["datasets"], serde_json::json!([]));
    bench.assert_bound_to("far", "other/");
}

#[test]
fn a_listing_continues_when_the_bucket_moves_between_its_pages() {
    for mode in MODES {
        let bench = bound(mode);
        runtime().block_on(async {
            fill(&bench.origin_client(), 12).await;
            let (there, body) = (bench.origin_client(), TestContent { id: 0, length: 10 }.bytes());
            for n in 0..4 {
                there
                    .put(ORIGIN_BUCKET, &format!("{OLD_PREFIX}dir/{n}"), full_body(body.clone()))
                    .await
                    .expect("stored");
            }
            let mut names = Vec::new();
            let mut token = String::new();
            for page in 0.. {
                let client = bench.client();
                let target = format!("/{BUCKET}?{token}delimiter=%2F&list-type=2&max-keys=1");
                let found = client.call(Method::GET, &target, &[], full_body("")).await.expect("listed").body;
                let text = String::from_utf8_lossy(&found).into_owned();
                let between = |from: &str, to: &str| {
                    text.split_once(from)
                        .and_then(|(_, rest)| rest.split_once(to))
                        .map(|(found, _)| found.to_owned())
                };
                let prefix = between("<CommonPrefixes><Prefix>", "<");
                names.extend(prefix.or_else(|| between("<Key>", "<")));
                if page == 0 || page == 4 {
                    let to = if page == 0 { "a/" } else { "b/" };
                    let words = ["bucket", "migrate", BUCKET, "--upstream", "near", "--prefix", to];
                    bench.run(&[&words[..], &["--wait", "--quiet"]].concat());
                }
                match between("<NextContinuationToken>", "<") {
                    Some(next) => token = format!("continuation-token={}&", encode(&next)),
                    None => break,
                }
            }
            let expected: Vec<String> =
                ["dir/".to_owned()].into_iter().chain((0..12).map(|n| format!("k{n:03}"))).collect();
            assert_eq!(names, expected, "{mode}");
        });
    }
}

//! Write-back: an acknowledged write is visible here immediately, and at the origin in its order, whatever
//! faults occur on either side.

mod bounds;
mod copies;
mod pages;
mod parts;
mod restored;

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use http::Method;

use super::{LENGTHS, MIB, ORIGIN_BUCKET, PREFIX, RemoteBench, bytes, origin_key, path, runtime, wait_until};
use crate::content::TestContent;
use crate::proxy::{Fault, Rule};
use crate::s3::{CallFailure, S3TestClient, encode, full_body};

/// The bucket here in write-back mode.
const BUCKET: &str = "back";

fn write_back_bench() -> RemoteBench {
    RemoteBench::with_mode(BUCKET, "write-back")
}

fn object_path(key: &str) -> String {
    path(BUCKET, key)
}

fn slow_down(method: &str) -> Rule {
    Rule::new(Fault::Status { status: 503, code: "SlowDown".to_owned() }).method(method)
}

/// Makes the origin refuse all writes.
fn hold_writes(bench: &RemoteBench) {
    bench.proxy.set_rules(vec![slow_down("PUT"), slow_down("DELETE")]);
}

/// Waits until the next second: origins list times in whole seconds.
async fn wait_for_next_second() {
    mlgw_common::time::sleep(Duration::from_millis(1100)).await;
}

fn release_writes(bench: &RemoteBench) {
    bench.proxy.set_rules(vec![]);
}

fn flush(bench: &RemoteBench) {
    let (output, status) = bench.setup.command(&["bucket", "flush", BUCKET]);
    assert_eq!(status, Some(0), "{output}");
}

async fn put(client: &S3TestClient, key: &str, id: u64, length: usize) {
    let etag = client.put(BUCKET, key, full_body(bytes(id, length))).await.expect("acknowledged");
    assert_eq!(etag, TestContent { id, length }.etag(), "{key}");
}

async fn assert_here(bench: &RemoteBench, key: &str, expected: &Bytes) {
    let found = bench.gateway.client().get(BUCKET, key).await.expect("the object is stored locally");
    assert!(found.body == *expected, "{key}: {} bytes for {}", found.body.len(), expected.len());
}

async fn assert_at_origin(bench: &RemoteBench, key: &str, expected: &Bytes) {
    let found = bench
        .origin_client()
        .get(ORIGIN_BUCKET, &origin_key(key))
        .await
        .expect("the object is at the origin");
    assert!(found.body == *expected, "{key}: {} bytes for {}", found.body.len(), expected.len());
}

async fn assert_everywhere(bench: &RemoteBench, key: &str, expected: &Bytes) {
    assert_here(bench, key, expected).await;
    assert_at_origin(bench, key, expected).await;
}

async fn keys_at_origin(bench: &RemoteBench) -> Vec<String> {
    let rows = bench.origin_client().list(ORIGIN_BUCKET, 1000).await.expect("listed");
    rows.into_iter().map(|row| row.key[PREFIX.len()..].to_owned()).collect()
}

async fn keys_here(bench: &RemoteBench, page: u32) -> Vec<String> {
    let rows = bench.gateway.client().list(BUCKET, page).await.expect("listed");
    rows.into_iter().map(|row| row.key).collect()
}

/// Returns the value of a metric without labels.
async fn metric(bench: &RemoteBench, name: &str) -> f64 {
    let (output, status) = bench.setup.command(&["status", "--metrics"]);
    assert_eq!(status, Some(0), "{output}");
    let line = output.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("{name} in {output}")).trim().parse().expect("a number")
}

#[test]
fn writes_are_visible_at_once_and_reach_the_origin_unchanged() {
    let bench = write_back_bench();
    runtime().block_on(async {
        let client = bench.gateway.client();
        let headers = [
            ("content-type", "text/x".to_owned()),
            ("content-encoding", "gzip".to_owned()),
            ("x-amz-meta-a", "ümläut".to_owned()),
            ("x-amz-tagging", "t=1%262".to_owned()),
        ];
        for version in [1, 2] {
            hold_writes(&bench);
            for (n, length) in LENGTHS.into_iter().enumerate() {
                let key = format!("a//{n} +ü");
                let body = full_body(bytes(version, length));
                client.call(Method::PUT, &object_path(&key), &headers, body).await.expect("acknowledged");
                assert_here(&bench, &key, &bytes(version, length)).await;
            }
            let listed = client.list(BUCKET, 4).await.expect("listed");
            let sizes: Vec<usize> = listed.iter().map(|row| row.size as usize).collect();
            assert_eq!(sizes, LENGTHS);
            assert_eq!(metric(&bench, "mlgw_dirty_bytes").await, LENGTHS.iter().sum::<usize>() as f64);
            release_writes(&bench);
            flush(&bench);
            assert_eq!(metric(&bench, "mlgw_dirty_bytes").await, 0.0);
            for (n, length) in LENGTHS.into_iter().enumerate() {
                let key = format!("a//{n} +ü");
                assert_everywhere(&bench, &key, &bytes(version, length)).await;
                let origin =
                    bench.origin_client().head(ORIGIN_BUCKET, &origin_key(&key)).await.expect("exists");
                let found = client.head(BUCKET, &key).await.expect("here");
                for name in ["etag", "content-type", "content-encoding", "x-amz-meta-a"] {
                    assert_eq!(found.header(name), origin.header(name), "{name}");
                }
                assert_eq!(found.header("x-amz-meta-a"), Some("=?UTF-8?B?w7xtbMOkdXQ=?="));
                assert!(origin.header("x-amz-meta-mlgw-write").is_some(), "the object is marked");
                assert_eq!(found.header("x-amz-meta-mlgw-write"), None, "the mark is not shown");
                let tags = format!("{}?tagging=", object_path(&key));
                let tags = client.call(Method::GET, &tags, &[], full_body("")).await.expect("tags").body;
                assert!(String::from_utf8_lossy(&tags).contains("<Value>1&amp;2</Value>"), "{tags:?}");
            }
        }
        assert_eq!(client.list(BUCKET, 2).await.expect("listed").len(), LENGTHS.len());
    });
}

#[test]
fn listings_merge_dirty_writes_with_the_origins_pages() {
    let bench = write_back_bench();
    let there = ["a/1", "a/2", "b", "b/gone/1", "b/gone/2", "c", "d/1", "e", "z/1"];
    let gone = ["b/gone/1", "b/gone/2", "c", "e", "z/1", "never"];
    let new = ["0", "a/15", "b", "c/new", "d/0", "f/x/y", "zz"];
    runtime().block_on(async {
        for key in there {
            bench.put(key, TestContent { id: 1, length: 10 }).await;
        }
        wait_for_next_second().await;
        hold_writes(&bench);
        let client = bench.gateway.client();
        for key in gone {
            client.delete(BUCKET, key).await.expect("acknowledged");
            assert!(client.get(BUCKET, key).await.expect_err("gone").is_not_found());
        }
        for key in new {
            put(&client, key, 2, 20).await;
        }
        // The listing as if all writes were at the origin.
        let mut expected: BTreeSet<&str> = there.into_iter().filter(|key| !gone.contains(key)).collect();
        expected.extend(new);
        let expected: Vec<String> = expected.into_iter().map(str::to_owned).collect();
        for page in [1, 2, 3, 5, 1000] {
            assert_eq!(keys_here(&bench, page).await, expected, "{page} a page");
        }
        let grouped = |keys: &[String]| -> Vec<String> {
            let name = |key: &String| key.split_inclusive('/').next().unwrap_or("").to_owned();
            keys.iter().map(name).collect::<BTreeSet<_>>().into_iter().collect()
        };
        for page in [1, 2, 1000] {
            assert_eq!(groups(&client, page).await, grouped(&expected), "{page} a page");
        }
        release_writes(&bench);
        flush(&bench);
        assert_eq!(keys_here(&bench, 3).await, expected);
        assert_eq!(keys_at_origin(&bench).await, expected);
    });
}

/// Returns keys and groups at a `/`, in the order of their pages.
async fn groups(client: &S3TestClient, page: usize) -> Vec<String> {
    let (mut names, mut marker) = (Vec::new(), String::new());
    loop {
        let path = format!("/{BUCKET}?delimiter=%2F&max-keys={page}&marker={}", encode(&marker));
        let body = client.call(Method::GET, &path, &[], full_body("")).await.expect("listed").body;
        let text = String::from_utf8_lossy(&body).into_owned();
        let body = text.split_once("</IsTruncated>").map_or("", |(_, body)| body);
        let keys = body.split("<Key>").skip(1).map(|rest| rest.split('<').next().unwrap_or(""));
        let groups = body.split("<CommonPrefixes>").skip(1).filter_map(|rest| rest.split(['<', '>']).nth(2));
        let mut found: Vec<String> = keys.chain(groups).map(str::to_owned).collect();
        found.sort();
        names.extend(found);
        if !text.contains("<IsTruncated>true") {
            return names;
        }
        marker = names.last().cloned().expect("a page with a successor is not empty");
    }
}

#[test]
fn writes_reach_the_origin_in_the_order_of_acknowledgement() {
    let bench = write_back_bench();
    let failing = |method: &str, seed| slow_down(method).probability(0.3, seed);
    let lost = Rule::new(Fault::CutBeforeAnswer).method("PUT").probability(0.2, 3);
    bench.proxy.set_rules(vec![failing("PUT", 1), failing("DELETE", 2), lost]);
    runtime().block_on(async {
        let client = bench.gateway.client();
        let writer = tokio::spawn(async move {
            for n in 0..40 {
                put(&client, &format!("{n:03}"), n, 2000).await;
            }
        });
        let mut most = 0;
        while most < 40 {
            let found = keys_at_origin(&bench).await;
            let expected: Vec<String> = (0..found.len()).map(|n| format!("{n:03}")).collect();
            assert_eq!(found, expected, "no key is missing before the last");
            assert!(found.len() >= most);
            most = found.len();
            mlgw_common::time::sleep(Duration::from_millis(5)).await;
        }
        writer.await.expect("written");
    });
    flush(&bench);
}

#[test]
fn writes_of_a_key_are_ordered_and_the_last_one_stays() {
    let bench = write_back_bench();
    runtime().block_on(async {
        hold_writes(&bench);
        let client = bench.gateway.client();
        for version in 1..6 {
            put(&client, "k", version, 1000).await;
            put(&client, "other", version, 500).await;
        }
        client.delete(BUCKET, "other").await.expect("acknowledged");
        assert_here(&bench, "k", &bytes(5, 1000)).await;
        assert!(client.get(BUCKET, "other").await.expect_err("gone").is_not_found());
        release_writes(&bench);
        flush(&bench);
        assert_everywhere(&bench, "k", &bytes(5, 1000)).await;
        assert_eq!(keys_at_origin(&bench).await, ["k"]);
        put(&client, "other", 9, 700).await;
        assert_here(&bench, "other", &bytes(9, 700)).await;
        flush(&bench);
        assert_everywhere(&bench, "other", &bytes(9, 700)).await;
    });
}

#[test]
fn overlapping_writes_are_sent_concurrently() {
    let bench = write_back_bench();
    bench.proxy.set_rules(vec![Rule::new(Fault::Delay { by: Duration::from_millis(300) }).method("PUT")]);
    runtime().block_on(async {
        hold_writes(&bench);
        let writers = (0..16).map(|n| {
            let client = bench.gateway.client();
            tokio::spawn(async move { put(&client, &n.to_string(), n, 1000).await })
        });
        for writer in writers.collect::<Vec<_>>() {
            writer.await.expect("written");
        }
        let delay = Duration::from_secs(2);
        bench.proxy.set_rules(vec![Rule::new(Fault::Delay { by: delay }).method("PUT")]);
        let begun = mlgw_common::time::Instant::now();
        flush(&bench);
        // One at a time would take 32 seconds, concurrently two. A busy machine needs more.
        assert!(begun.elapsed() < 16 * delay / 2, "{:?}", begun.elapsed());
        assert_eq!(keys_at_origin(&bench).await.len(), 16);
    });
}

#[test]
fn a_crash_before_and_after_the_origin_has_a_write_neither_loses_nor_repeats_it() {
    let mut bench = write_back_bench();
    let runtime = runtime();
    let puts = |bench: &RemoteBench| bench.take_requests().iter().filter(|line| *line == "PUT").count();
    // Before: no write reached the origin.
    hold_writes(&bench);
    runtime.block_on(async {
        put(&bench.gateway.client(), "k", 1, 100_000).await;
        put(&bench.gateway.client(), "large", 2, 3 * MIB).await;
    });
    bench.gateway.kill();
    bench.gateway = bench.setup.start();
    runtime.block_on(async {
        assert_here(&bench, "k", &bytes(1, 100_000)).await;
        assert_here(&bench, "large", &bytes(2, 3 * MIB)).await;
        assert_eq!(keys_here(&bench, 10).await, ["k", "large"]);
    });
    release_writes(&bench);
    flush(&bench);
    runtime.block_on(async {
        assert_everywhere(&bench, "k", &bytes(1, 100_000)).await;
        assert_everywhere(&bench, "large", &bytes(2, 3 * MIB)).await;
    });
    // After: the origin has the write, but the gateway does not know.
    for (id, length) in [(3, 1000), (4, 3 * MIB)] {
        bench.proxy.set_rules(vec![Rule::new(Fault::CutBeforeAnswer).method("PUT")]);
        runtime.block_on(async {
            put(&bench.gateway.client(), "k", id, length).await;
            let has_it = async || {
                bench
                    .origin_client()
                    .get(ORIGIN_BUCKET, &origin_key("k"))
                    .await
                    .is_ok_and(|got| got.body == bytes(id, length))
            };
            wait_until("the origin has it", has_it).await;
            // Before the gateway looks for the write again.
            bench.proxy.set_rules(vec![slow_down("HEAD"), slow_down("PUT")]);
        });
        bench.gateway.kill();
        bench.proxy.set_rules(vec![]);
        bench.take_requests();
        bench.gateway = bench.setup.start();
        runtime.block_on(assert_here(&bench, "k", &bytes(id, length)));
        flush(&bench);
        assert_eq!(puts(&bench), 0, "the queue was restored");
        runtime.block_on(assert_everywhere(&bench, "k", &bytes(id, length)));
    }
}

#[test]
fn an_object_is_shown_as_dirty_and_later_as_clean() {
    let bench = write_back_bench();
    let show = |key: &str| {
        let object = format!("s3://{BUCKET}/{key}");
        let (output, status) = bench.setup.command(&["--output", "json", "object", "show", &object]);
        (serde_json::from_str::<serde_json::Value>(&output).unwrap_or_default(), output, status)
    };
    hold_writes(&bench);
    runtime().block_on(put(&bench.gateway.client(), "dir/k", 1, 9 * MIB));
    let (shown, output, _) = show("dir/k");
    assert_eq!(
        (&shown["origin"]["dirty"], &shown["size"], &shown["whole"]),
        (&true.into(), &(9 * MIB).into(), &true.into()),
        "{output}"
    );
    assert_eq!(shown["origin"]["key"], format!("{PREFIX}dir/k"));
    release_writes(&bench);
    flush(&bench);
    let (shown, output, _) = show("dir/k");
    assert_eq!(
        (&shown["origin"]["dirty"], &shown["whole"], &shown["origin"]["upstream"]),
        (&false.into(), &false.into(), &"far".into()),
        "{output}"
    );
    runtime().block_on(assert_here(&bench, "dir/k", &bytes(1, 9 * MIB)));
    // Blocks are kept shortly after they were read.
    runtime().block_on(wait_until("the object is stored locally", async || show("dir/k").0["whole"] == true));
    let (shown, output, _) = show("dir/k");
    assert_eq!(shown["tiers"][0]["bytes"], 9 * MIB, "{output}");
    let (_, output, status) = show("none");
    assert!(status == Some(1) && output.contains("NoSuchKey"), "{output}");
    let (output, status) = bench.setup.command(&["object", "show", &format!("s3://{BUCKET}/dir/k")]);
    assert!(
        status == Some(0) && output.contains("clean: the origin has it") && output.contains("copies"),
        "{output}"
    );
}

#[test]
fn concurrent_writes_of_a_key_leave_the_last_at_the_origin() {
    let bench = write_back_bench();
    runtime().block_on(async {
        bench.proxy.set_rules(vec![Rule::new(Fault::Delay { by: Duration::from_millis(5) }).method("PUT")]);
        for round in 0..5 {
            let writers: Vec<_> = (0..8_u64)
                .map(|writer| {
                    let client = bench.gateway.client();
                    tokio::spawn(async move {
                        for n in 0..10 {
                            put(&client, "k", 1000 * round + 10 * writer + n, 500).await;
                        }
                    })
                })
                .collect();
            for writer in writers {
                writer.await.expect("written");
            }
            let last =
                bench.gateway.client().get(BUCKET, "k").await.expect("the object is stored locally").body;
            flush(&bench);
            assert_everywhere(&bench, "k", &last).await;
        }
    });
}

#[test]
fn writes_survive_kills_in_their_order() {
    let mut bench = write_back_bench();
    let runtime = runtime();
    let mut next = 0;
    for round in 0..4 {
        bench.proxy.set_rules(vec![
            Rule::new(Fault::Delay { by: Duration::from_millis(20) }).method("PUT"),
            slow_down("PUT").probability(0.2, round),
            Rule::new(Fault::CutBeforeAnswer).method("PUT").probability(0.2, round),
        ]);
        runtime.block_on(async {
            let client = bench.gateway.client();
            for _ in 0..15 {
                put(&client, &format!("{next:03}"), next, 3000).await;
                next += 1;
            }
        });
        bench.gateway.kill();
        runtime.block_on(async {
            let found = keys_at_origin(&bench).await;
            let expected: Vec<String> = (0..found.len()).map(|n| format!("{n:03}")).collect();
            assert_eq!(found, expected);
        });
        bench.gateway = bench.setup.start();
    }
    release_writes(&bench);
    runtime.block_on(async {
        let expected: Vec<String> = (0..next).map(|n| format!("{n:03}")).collect();
        assert_eq!(keys_here(&bench, 7).await, expected);
        flush(&bench);
        assert_eq!(keys_at_origin(&bench).await, expected);
        for n in 0..next {
            assert_everywhere(&bench, &format!("{n:03}"), &bytes(n, 3000)).await;
        }
    });
}

#[test]
fn writes_are_retried_through_network_faults() {
    let bench = write_back_bench();
    runtime().block_on(async {
        let client = bench.gateway.client();
        for (n, (length, rules)) in [
            (1000, vec![slow_down("PUT").times(5)]),
            (1000, vec![slow_down("HEAD").times(5)]),
            (3 * MIB, vec![Rule::new(Fault::CutRequest { after: 2 << 20 }).times(2)]),
            (3 * MIB, vec![Rule::new(Fault::CutBeforeAnswer).method("PUT").times(2)]),
            (1000, vec![Rule::new(Fault::Refuse).times(4)]),
        ]
        .into_iter()
        .enumerate()
        {
            let key = format!("{n}");
            bench.proxy.set_rules(rules.clone());
            put(&client, &key, n as u64, length).await;
            assert_here(&bench, &key, &bytes(n as u64, length)).await;
            flush(&bench);
            assert_everywhere(&bench, &key, &bytes(n as u64, length)).await;
            bench.proxy.set_rules(vec![Rule::new(Fault::CutBeforeAnswer).method("DELETE").times(1)]);
            client.delete(BUCKET, &key).await.expect("acknowledged");
            flush(&bench);
            assert_eq!(keys_at_origin(&bench).await, [""; 0], "{rules:?}");
        }
    });
}

#[test]
fn a_delete_is_not_sent_while_an_unanswered_write_may_still_arrive() {
    let bench = write_back_bench();
    runtime().block_on(async {
        let client = bench.gateway.client();
        // The gateway waits five seconds for a response.
        let late = Fault::Delay { by: Duration::from_secs(7) };
        bench.proxy.set_rules(vec![Rule::new(late).method("PUT").times(1)]);
        put(&client, "k", 1, 1000).await;
        flush(&bench);
        assert_everywhere(&bench, "k", &bytes(1, 1000)).await;
        client.delete(BUCKET, "k").await.expect("acknowledged");
        assert!(client.get(BUCKET, "k").await.expect_err("gone").is_not_found());
        wait_until("the late request is over", async || bench.proxy.counters().in_flight == 0).await;
        let requests = bench.take_requests();
        assert!(requests.iter().filter(|line| *line == "PUT").count() > 1, "{requests:?}");
        // It would have made the object again.
        assert!(!requests.iter().any(|line| line == "DELETE"), "{requests:?}");
        assert!(client.get(BUCKET, "k").await.expect_err("gone").is_not_found());
    });
}

#[test]
fn foreign_writes_are_reported_and_not_overwritten() {
    let mut bench = write_back_bench();
    let runtime = runtime();
    runtime.block_on(write_on_both_sides(&bench));
    let contested = |bench: &RemoteBench| {
        let (output, status) = bench.setup.command(&["bucket", "flush", BUCKET]);
        assert_eq!(status, Some(1), "{output}");
        assert!(["theirs", "gone", "new"].iter().all(|key| output.contains(&format!("{key:?}"))), "{output}");
        runtime.block_on(async {
            for key in ["theirs", "gone", "new"] {
                assert_at_origin(bench, key, &bytes(3, 70)).await;
            }
            assert_everywhere(bench, "mine", &bytes(2, 100)).await;
            assert_everywhere(bench, "after", &bytes(2, 50)).await;
            assert_here(bench, "theirs", &bytes(2, 200)).await;
            assert!(bench.gateway.client().get(BUCKET, "gone").await.expect_err("gone").is_not_found());
        });
        let (output, status) = bench.setup.command(&["--yes", "bucket", "unbind", BUCKET]);
        assert!(status != Some(0) && output.contains("flush"), "{output}");
    };
    contested(&bench);
    let (output, _) = bench.setup.command(&["--output", "json", "bucket", "flush", BUCKET]);
    assert!(output.starts_with('{') && output.contains("\"foreign_writes\": 3"), "{output}");
    bench.gateway.kill();
    bench.gateway = bench.setup.start();
    contested(&bench);
    runtime.block_on(async {
        let client = bench.gateway.client();
        let unless = [("if-none-match", "*".to_owned())];
        let refused = client.call(Method::PUT, &object_path("theirs"), &unless, full_body("x")).await;
        assert!(
            matches!(&refused, Err(CallFailure::Refused { status, .. }) if status.as_u16() == 409),
            "{refused:?}"
        );
        // A client that writes now has seen the foreign object, so its write is no conflict.
        put(&client, "theirs", 4, 80).await;
        wait_until("the object has arrived", async || {
            bench
                .origin_client()
                .get(ORIGIN_BUCKET, &origin_key("theirs"))
                .await
                .is_ok_and(|got| got.body == bytes(4, 80))
        })
        .await;
    });
    let (output, status) = bench.setup.command(&["--yes", "bucket", "flush", BUCKET, "--discard"]);
    assert!(status == Some(0) && output.contains("2 discarded"), "{output}");
    runtime.block_on(async {
        assert_everywhere(&bench, "theirs", &bytes(4, 80)).await;
        assert_everywhere(&bench, "gone", &bytes(3, 70)).await;
        assert_everywhere(&bench, "new", &bytes(3, 70)).await;
    });
    let (output, status) = bench.setup.command(&["--yes", "bucket", "unbind", BUCKET]);
    assert_eq!(status, Some(0), "{output}");
}

/// Writes keys through the gateway, whose writes to the origin are held back, and then three of them at the
/// origin.
async fn write_on_both_sides(bench: &RemoteBench) {
    for key in ["mine", "theirs", "gone"] {
        bench.put(key, TestContent { id: 1, length: 100 }).await;
    }
    wait_for_next_second().await;
    hold_writes(bench);
    let client = bench.gateway.client();
    put(&client, "mine", 2, 100).await;
    put(&client, "theirs", 2, 200).await;
    client.delete(BUCKET, "gone").await.expect("acknowledged");
    put(&client, "new", 2, 300).await;
    put(&client, "after", 2, 50).await;
    wait_for_next_second().await;
    for key in ["theirs", "gone", "new"] {
        bench.put(key, TestContent { id: 3, length: 70 }).await;
    }
    release_writes(bench);
}

/// Restarts the gateway with a changed setting.
fn write_back_bench_with(key: &str, value: &str) -> RemoteBench {
    let mut bench = write_back_bench();
    bench.gateway.send_sigterm();
    bench.gateway.wait_exit();
    bench.setup = bench.setup.clone().with(key, value).with("access_log.one_in", 1);
    bench.gateway = bench.setup.start();
    bench
}

#[test]
fn the_etag_shown_to_a_client_stays_when_the_origins_differs() {
    let bench = write_back_bench_with("s3.etag", "fast");
    runtime().block_on(async {
        let client = bench.gateway.client();
        let shown = client.put(BUCKET, "k", full_body(bytes(1, 1000))).await.expect("acknowledged");
        assert_ne!(shown, TestContent { id: 1, length: 1000 }.etag());
        flush(&bench);
        assert_eq!(client.head(BUCKET, "k").await.expect("here").etag(), shown);
        let origin = bench.origin_client().head(ORIGIN_BUCKET, &origin_key("k")).await.expect("exists");
        assert_eq!(origin.etag(), TestContent { id: 1, length: 1000 }.etag());
        for (etag, status) in [(shown, None), (origin.etag(), Some(412))] {
            let matching = [("if-match", format!("\"{etag}\""))];
            let got = client.call(Method::GET, &object_path("k"), &matching, full_body("")).await;
            assert_eq!(got.err().and_then(|failure| failure.status()), status);
        }
    });
}

#[test]
fn writes_that_go_through_follow_acknowledged_writes() {
    let bench = write_back_bench();
    runtime().block_on(async {
        let client = bench.gateway.client();
        bench.proxy.set_rules(vec![slow_down("PUT").times(2)]);
        put(&client, "source", 1, 6 * MIB).await;
        let copied = client.copy(BUCKET, "source", "copy").await.expect("copied");
        assert_eq!(copied, TestContent { id: 1, length: 6 * MIB }.etag());
        assert_everywhere(&bench, "copy", &bytes(1, 6 * MIB)).await;
        bench.proxy.set_rules(vec![slow_down("PUT").times(2)]);
        put(&client, "source", 2, 100).await;
        let etag = TestContent { id: 2, length: 100 }.etag();
        let matching = [("if-match", format!("\"{etag}\""))];
        let body = || full_body(bytes(3, 100));
        client.call(Method::PUT, &object_path("source"), &matching, body()).await.expect("unchanged");
        let refused = client.call(Method::PUT, &object_path("source"), &matching, body()).await;
        assert!(
            matches!(&refused, Err(CallFailure::Refused { status, .. }) if status.as_u16() == 412),
            "{refused:?}"
        );
        assert_everywhere(&bench, "source", &bytes(3, 100)).await;
        put(&client, "source", 4, 100).await;
        flush(&bench);
        assert_everywhere(&bench, "source", &bytes(4, 100)).await;
        let upload = client.create_upload(BUCKET, "parts").await.expect("begun");
        let body = full_body(bytes(5, 5 * MIB));
        let etag = client.put_part(BUCKET, "parts", &upload, 1, body).await.expect("stored");
        put(&client, "before", 6, 100).await;
        client.complete(BUCKET, "parts", &upload, &[(1, etag)]).await.expect("complete");
        assert_here(&bench, "parts", &bytes(5, 5 * MIB)).await;
        flush(&bench);
        assert_at_origin(&bench, "before", &bytes(6, 100)).await;
        assert_everywhere(&bench, "parts", &bytes(5, 5 * MIB)).await;
        assert_eq!(client.head(BUCKET, "parts").await.expect("exists").header("x-amz-meta-mlgw-write"), None);
        put(&client, "parts", 7, 100).await;
        flush(&bench);
        assert_everywhere(&bench, "parts", &bytes(7, 100)).await;
    });
}

#[test]
fn dirty_objects_count_toward_the_quota_and_deletes_are_never_refused() {
    let bench = write_back_bench();
    let command = |words: &[&str]| {
        let (output, status) = bench.setup.command(words);
        assert_eq!(status, Some(0), "{words:?}: {output}");
        output
    };
    command(&["bucket", "quota", BUCKET, "--bytes", "1MiB", "--objects", "2"]);
    let used = || {
        let output: serde_json::Value =
            serde_json::from_str(&command(&["--output", "json", "bucket", "show", BUCKET])).expect("JSON");
        (output["used"]["bytes"].as_u64(), output["used"]["objects"].as_u64())
    };
    hold_writes(&bench);
    let (client, runtime) = (bench.gateway.client(), runtime());
    let refused = |outcome: Result<String, CallFailure>| match outcome {
        Err(CallFailure::Refused { status, body }) if status == 403 => {
            assert!(body.contains("QuotaExceeded"), "{body}")
        }
        other => panic!("{other:?}"),
    };
    runtime.block_on(async {
        put(&client, "a", 1, 700_000).await;
        refused(client.put(BUCKET, "b", full_body(bytes(2, 700_000))).await);
        put(&client, "b", 2, 1000).await;
        refused(client.put(BUCKET, "c", full_body(bytes(3, 1))).await);
        for key in ["a", "b", "there already"] {
            client.delete(BUCKET, key).await.expect("a delete is never refused");
        }
        refused(client.put(BUCKET, "c", full_body(bytes(3, 1))).await);
    });
    assert_eq!(
        used(),
        (Some(701_000), Some(5)),
        "each write that is on its way counts, a delete without bytes"
    );
    release_writes(&bench);
    flush(&bench);
    assert_eq!(used(), (Some(0), Some(0)));
    runtime.block_on(async {
        put(&client, "c", 3, 1_000_000).await;
        flush(&bench);
        assert_everywhere(&bench, "c", &bytes(3, 1_000_000)).await;
        assert_eq!(keys_at_origin(&bench).await, ["c"]);
    });
}

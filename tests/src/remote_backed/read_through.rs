//! Read-through: every object of the origin is visible here immediately and unchanged, and is fetched once.

use std::process::Command;

use http::Method;

use super::{BUCKET, MIB, ORIGIN_BUCKET, PREFIX, RemoteBench, runtime, wait_until};
use crate::content::TestContent;
use crate::s3::{CallFailure, S3TestClient, encode, full_body};
use crate::server::{ServerSetup, binary};

const KEYS: [&str; 9] = ["a", "a//b", "a/../c", "dir/", "dir/x", "plus+and %", "ümläut/🦀", "z?query", "~"];

async fn put_with_headers(client: &S3TestClient, key: &str, n: u64) {
    let headers = [
        ("content-type", "image/png".to_owned()),
        ("cache-control", "no-cache".to_owned()),
        ("x-amz-meta-number", n.to_string()),
    ];
    let path = format!("/{ORIGIN_BUCKET}/{}", encode_path(&format!("{PREFIX}{key}")));
    let body = full_body(TestContent { id: n, length: 100 + 1000 * n as usize }.bytes());
    client.call(Method::PUT, &path, &headers, body).await.expect("stored");
}

/// Encodes a key for a path and keeps each `/`.
fn encode_path(key: &str) -> String {
    key.split('/').map(encode).collect::<Vec<_>>().join("/")
}

#[test]
fn every_object_of_an_origin_is_visible_at_once_and_unchanged() {
    let bench = RemoteBench::new("1h");
    runtime().block_on(async {
        let (here, there) = (bench.client(), bench.origin_client());
        for (n, key) in KEYS.iter().enumerate() {
            put_with_headers(&there, key, n as u64).await;
        }
        there.put(ORIGIN_BUCKET, "other/not-ours", full_body("x")).await.expect("stored");
        let listed = here.list(BUCKET, 2).await.expect("listed");
        let mut expected = there.list(ORIGIN_BUCKET, 1000).await.expect("listed");
        expected.retain(|row| row.key.starts_with(PREFIX));
        expected.iter_mut().for_each(|row| row.key = row.key[PREFIX.len()..].to_owned());
        assert_eq!(listed, expected);
        for key in KEYS {
            let at = |bucket: &str, key: &str| format!("/{bucket}/{}", encode_path(key));
            let there_path = at(ORIGIN_BUCKET, &format!("{PREFIX}{key}"));
            let expected = there.call(Method::GET, &there_path, &[], full_body("")).await.expect("read");
            // First from the origin, then from the copy.
            for _ in 0..2 {
                let found = here.call(Method::GET, &at(BUCKET, key), &[], full_body("")).await.expect("read");
                assert_eq!(found.body, expected.body, "{key}");
                for name in ["etag", "last-modified", "content-type", "cache-control", "x-amz-meta-number"] {
                    assert_eq!(found.header(name), expected.header(name), "{name} of {key}");
                }
            }
        }
    });
}

#[test]
fn groups_and_pages_are_those_of_the_origin() {
    let bench = RemoteBench::new("1h");
    runtime().block_on(async {
        for key in KEYS {
            bench.put(key, TestContent { id: 1, length: 10 }).await;
        }
        let (here, there) = (bench.client(), bench.origin_client());
        for query in
            ["delimiter=%2F", "prefix=dir%2F", "prefix=a&delimiter=%2F", "start-after=dir%2F", "max-keys=0"]
        {
            for version in ["list-type=2&encoding-type=url&", "encoding-type=url&"] {
                let there_query = query.replace("prefix=", "prefix=set%2F").replace("after=", "after=set%2F");
                let there_query = if query.contains("prefix=") {
                    there_query
                } else {
                    format!("{there_query}&prefix=set%2F")
                };
                let path = format!("/{ORIGIN_BUCKET}?{version}{there_query}");
                let expected =
                    names(&there.call(Method::GET, &path, &[], full_body("")).await.expect("listed").body);
                let expected: Vec<String> =
                    expected.iter().map(|name| name.replacen("set/", "", 1)).collect();
                let path = format!("/{BUCKET}?{version}{query}");
                let found = here.call(Method::GET, &path, &[], full_body("")).await.expect("listed");
                assert_eq!(names(&found.body), expected, "{version}{query}");
            }
        }
    });
}

/// Returns the keys and groups of a listing, in the order of its lines.
fn names(document: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(document).into_owned();
    let body = text.split_once("</IsTruncated>").map_or("", |(_, body)| body);
    let keys = body.split("<Key>").skip(1).map(|rest| rest.split('<').next().unwrap_or(""));
    let groups = body.split("<CommonPrefixes>").skip(1).filter_map(|rest| rest.split(['<', '>']).nth(2));
    keys.chain(groups).map(str::to_owned).collect()
}

#[test]
fn sixty_four_readers_of_a_cold_object_fetch_each_block_once() {
    let bench = RemoteBench::new("1h");
    runtime().block_on(async {
        let bytes = bench.put("large", TestContent { id: 1, length: 20 * MIB }).await;
        let readers = (0..64).map(|_| {
            let (client, bytes) = (bench.client(), bytes.clone());
            tokio::spawn(
                async move { assert!(client.get(BUCKET, "large").await.expect("read").body == bytes) },
            )
        });
        for reader in readers.collect::<Vec<_>>() {
            reader.await.expect("read");
        }
        let mut requests = bench.take_requests();
        requests.sort();
        let blocks = ["GET bytes=0-8388607", "GET bytes=16777216-20971519", "GET bytes=8388608-16777215"];
        assert_eq!(requests, blocks);
        let answer = bench.client().get(BUCKET, "large").await.expect("read");
        assert!(answer.body == bytes && bench.take_requests().is_empty());
        assert_eq!(answer.header("x-mlgw-cache"), Some("hit; tier=hot"));
    });
}

#[test]
fn a_range_fetches_its_blocks_and_no_others() {
    let bench = RemoteBench::new("1h");
    runtime().block_on(async {
        let bytes = bench.put("large", TestContent { id: 2, length: 40 * MIB }).await;
        let range = (20 * MIB as u64, 20 * MIB as u64 + 99);
        let found = bench.client().get_range(BUCKET, "large", range).await.expect("read");
        assert_eq!(found.body, bytes[20 * MIB..20 * MIB + 100]);
        assert_eq!(found.header("content-range"), Some("bytes 20971520-20971619/41943040"));
        assert_eq!(bench.take_requests(), ["GET bytes=16777216-25165823"]);
        let beyond = bench.client().get_range(BUCKET, "large", (1 << 40, 1 << 41)).await;
        assert!(matches!(&beyond, Err(failure) if failure.status() == Some(416)), "{beyond:?}");
        // The server has no metadata of this object yet.
        bench.put("unread", TestContent { id: 3, length: 40 * MIB }).await;
        let beyond = bench.client().get_range(BUCKET, "unread", (u64::MAX, u64::MAX)).await;
        assert!(matches!(&beyond, Err(failure) if failure.status() == Some(416)), "{beyond:?}");
        let fetched = bench.take_requests();
        assert!(fetched.iter().all(|request| *request != "GET"), "not the whole object: {fetched:?}");
    });
}

#[test]
fn fetched_blocks_survive_a_restart_and_a_kill() {
    let bench = RemoteBench::new("1h");
    let (runtime, content) = (runtime(), TestContent { id: 3, length: 3 * MIB });
    runtime.block_on(bench.put("k", content));
    let RemoteBench { dir: _room, origin: _origin, proxy, setup, gateway } = bench;
    let reads = |server: &crate::server::ServerProcess| {
        let found = runtime.block_on(server.client().get(BUCKET, "k")).expect("read");
        assert_eq!(content.difference(&found.body), None);
    };
    reads(&gateway);
    runtime.block_on(wait_until("the object is kept", async || {
        let found = gateway.client().get(BUCKET, "k").await.expect("read");
        found.header("x-mlgw-cache") == Some("hit; tier=hot")
    }));
    gateway.stop();
    proxy.clear_log();
    let mut gateway = setup.start();
    reads(&gateway);
    assert_eq!(proxy.log().len(), 0, "a copy survives a restart");
    gateway.kill();
    let gateway = setup.start();
    reads(&gateway);
    gateway.stop();
}

#[test]
fn a_refresh_takes_effect_at_once_and_without_one_metadata_stays_valid() {
    let bench = RemoteBench::new("1h");
    let runtime = runtime();
    let read = || runtime.block_on(bench.client().get(BUCKET, "k")).expect("read").body;
    let old = runtime.block_on(bench.put("k", TestContent { id: 4, length: 5000 }));
    assert_eq!(read(), old);
    let new = runtime.block_on(bench.put("k", TestContent { id: 5, length: 6000 }));
    assert_eq!(read(), old, "the origin's answer is cached for an hour");
    let (output, status) = bench.setup.command(&["bucket", "refresh", BUCKET]);
    assert!(status == Some(0) && output.contains("1 objects"), "{output}");
    assert_eq!(read(), new);
}

#[test]
fn writes_are_refused_and_configuration_is_read_only() {
    let bench = RemoteBench::new("1h");
    runtime().block_on(async {
        bench.put("k", TestContent { id: 6, length: 10 }).await;
        let here = bench.client();
        let refused = |failure: CallFailure| match failure {
            CallFailure::Refused { status, body } => format!("{} {body}", status.as_u16()),
            CallFailure::NoResponse(why) => panic!("{why}"),
        };
        let response = refused(here.put(BUCKET, "k", full_body("x")).await.expect_err("read only"));
        assert!(
            response.starts_with("403") && response.contains("read-through") && response.contains("far"),
            "{response}"
        );
        assert!(refused(here.delete(BUCKET, "k").await.expect_err("read only")).starts_with("403"));
        assert!(refused(here.create_upload(BUCKET, "k").await.expect_err("read only")).starts_with("403"));
        for (method, query) in [(Method::PUT, "?tagging"), (Method::PUT, "?versioning"), (Method::DELETE, "")]
        {
            let path = format!("/{BUCKET}{query}");
            let response = refused(here.call(method, &path, &[], full_body("")).await.expect_err("not here"));
            assert!(response.starts_with("501") && response.contains("far"), "{response}");
        }
        for query in ["?versioning", "?acl", "?location", "?logging"] {
            let path = format!("/{BUCKET}{query}");
            here.call(Method::GET, &path, &[], full_body("")).await.expect("answered as a local bucket");
        }
        let response = refused(here.get(BUCKET, "none").await.expect_err("does not exist"));
        assert!(response.starts_with("404") && response.contains("NoSuchKey"), "{response}");
        assert_eq!(
            bench.origin_client().list(ORIGIN_BUCKET, 10).await.expect("listed").len(),
            1,
            "nothing was changed at the origin"
        );
    });
}

#[test]
fn a_binding_that_cannot_work_is_refused_and_changes_nothing() {
    let bench = RemoteBench::new("1h");
    let refused = |arguments: &[&str], what: &str| {
        let (output, status) = bench.setup.command(&[&["bucket"], arguments].concat());
        assert!(status != Some(0) && output.contains(what), "{arguments:?}: {status:?} {output}");
    };
    refused(&["bind", "other", "--upstream", "none"], "Configured: far");
    let modes = "[possible values: read-through, write-through, write-back]";
    refused(&["bind", "other", "--upstream", "far", "--mode", "sideways"], modes);
    refused(&["bind", "other", "--upstream", "far", "--ttl", "soon"], "expected a duration");
    refused(&["bind", "O", "--upstream", "far"], "InvalidBucketName");
    refused(&["bind", BUCKET, "--upstream", "far"], "BucketAlreadyOwnedByYou");
    refused(&["--yes", "delete", BUCKET], "unbind");
    refused(&["show", "other"], "NoSuchBucket");
    let wrong = ServerSetup::new(bench.dir.path().join("wrong"));
    let wrong = wrong.with_upstream("far", bench.proxy.addr(), ORIGIN_BUCKET, "5s");
    let server = wrong.clone().with("upstream.far.secret_key", "not-the-secret").start();
    let (output, status) = wrong.command(&["bucket", "bind", "other", "--upstream", "far"]);
    assert!(
        status == Some(1) && output.contains("SignatureDoesNotMatch") && output.contains("far"),
        "{output}"
    );
    server.stop();
}

#[test]
fn a_conditional_listing_reports_if_the_page_is_unchanged() {
    let bench = RemoteBench::new("1h");
    runtime().block_on(async {
        bench.put("k", TestContent { id: 7, length: 10 }).await;
        for query in ["?list-type=2", "?prefix=k"] {
            let page = async |known: &str| {
                let known = [("if-none-match", known.to_owned())];
                bench.client().call(Method::GET, &format!("/{BUCKET}{query}"), &known, full_body("")).await
            };
            let first = page("\"other\"").await.expect("listed");
            let etag = first.header("etag").expect("a validator").to_owned();
            assert_eq!(first.header("age"), Some("0"));
            let same = page(&etag).await;
            assert!(same.is_err_and(|failure| failure.status() == Some(304)));
            bench.put("k", TestContent { id: 8, length: query.len() }).await;
            let changed = page(&etag).await.expect("the page has changed");
            assert!(changed.header("etag").is_some_and(|found| found != etag));
        }
    });
}

#[test]
fn unbinding_removes_the_bucket_here_and_keeps_the_origins_objects() {
    let bench = RemoteBench::new("1h");
    runtime().block_on(async {
        bench.put("k", TestContent { id: 7, length: 10 }).await;
        bench.client().get(BUCKET, "k").await.expect("read");
        let (output, status) = bench.setup.command(&["--yes", "bucket", "unbind", BUCKET]);
        assert_eq!(status, Some(0), "{output}");
        assert!(bench.client().get(BUCKET, "k").await.expect_err("gone").is_not_found());
        assert_eq!(bench.origin_client().list(ORIGIN_BUCKET, 10).await.expect("listed").len(), 1);
    });
}

#[test]
fn a_section_of_an_upstream_is_checked_and_its_secret_is_never_shown() {
    let room = tempfile::tempdir().expect("a directory");
    let file = room.path().join("mlgw.toml");
    let run = |text: &str, arguments: &[&str]| {
        std::fs::write(&file, text).expect("written");
        let done =
            Command::new(binary()).args(arguments).arg(&file).env_clear().output().expect("the gateway runs");
        (String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned(), done.status.success())
    };
    let whole = "[upstream.lake]\nbucket = \"b\"\ncredentials = \"static\"\naccess_key = \"AK\"\n\
        secret_key = \"hush\"\n";
    assert!(run(whole, &["config", "check"]).1);
    let (shown, _) = run(whole, &["config", "show", "--config"]);
    assert!(shown.contains("upstream.lake.bucket = \"b\"") && !shown.contains("hush"), "{shown}");
    for (text, what) in [
        ("[upstream.lake]\nbukket = \"b\"\n", "did you mean 'bucket'"),
        ("[upstream.lake]\nregion = \"x\"\n", "'upstream.lake.bucket' is required"),
        ("[upstream.lake]\nbucket = \"b\"\nkind = \"s4\"\n", "expected \"s3\""),
        ("[upstream.Lake]\nbucket = \"b\"\n", "lower-case"),
        ("[upstream]\nbucket = \"b\"\n", "[upstream.bucket]"),
        ("[upstream.lake]\nbucket = \"b\"\ncredentials = \"static\"\n", "'upstream.lake.access_key'"),
        ("[upstream.lake]\nbucket = \"b\"\naccess_key = \"AK\"\n", "\"static\""),
    ] {
        let (output, passed) = run(text, &["config", "check"]);
        assert!(!passed && output.contains(what), "{text}: {output}");
    }
}

#[test]
fn a_part_is_the_origins_even_after_the_object_is_replaced() {
    let bench = RemoteBench::new("1h");
    let lengths = [5 * MIB, 6 * MIB + 1, 100];
    let key = format!("{PREFIX}k");
    let put_in_parts = async |id: u64| {
        let there = bench.origin_client();
        let upload = there.create_upload(ORIGIN_BUCKET, &key).await.expect("begun");
        let (mut parts, mut done) = (Vec::new(), Vec::new());
        for (number, length) in (1u32..).zip(lengths) {
            let bytes = TestContent { id: id + u64::from(number), length }.bytes();
            let etag = there.put_part(ORIGIN_BUCKET, &key, &upload, number, full_body(bytes.clone())).await;
            done.push((number, etag.expect("stored")));
            parts.push(bytes);
        }
        there.complete(ORIGIN_BUCKET, &key, &upload, &done).await.expect("complete");
        parts
    };
    let here = |method: Method, number: u64| {
        let (client, target) = (bench.client(), format!("/{BUCKET}/k?partNumber={number}"));
        async move { client.call(method, &target, &[], full_body("")).await }
    };
    runtime().block_on(async {
        for id in [10, 20] {
            // The second time, other metadata of the object is cached and stays valid for an hour.
            let parts = put_in_parts(id).await;
            for (number, expected) in [3u64, 2, 1].into_iter().zip(parts.iter().rev()) {
                let got = here(Method::GET, number).await.expect("a part");
                assert!(got.body == *expected, "part {number}");
                let head = here(Method::HEAD, number).await.expect("a part");
                for found in [&got, &head] {
                    assert_eq!(found.header("x-amz-mp-parts-count"), Some("3"));
                    assert_eq!(found.header("content-length"), Some(expected.len().to_string().as_str()));
                }
                assert_eq!(got.header("content-range"), head.header("content-range"));
            }
        }
        for (number, status) in [(0, 400), (4, 416)] {
            let refused = here(Method::GET, number).await.expect_err("no such part");
            assert_eq!(refused.status(), Some(status), "{refused:?}");
        }
        put_with_headers(&bench.origin_client(), "whole", 1).await;
        let target = format!("/{BUCKET}/whole?partNumber=1");
        let got = bench.client().call(Method::GET, &target, &[], full_body("")).await.expect("one part");
        assert_eq!(got.body.len(), 1100);
    });
}

//! Write-through: an acknowledged write is at the origin unchanged, and no later read returns the previous
//! version.

use crate::remote_backed;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use bytes::Bytes;
use http::{Method, StatusCode};

use super::{LENGTHS, MIB, ORIGIN_BUCKET, RemoteBench, bytes, origin_key, path, runtime};
use crate::content::TestContent;
use crate::proxy::{Fault, Rule};
use crate::raw::RawExchange;
use crate::s3::{CallFailure, S3ClientResponse, S3TestClient, encode, full_body};

/// The bucket here in write-through mode.
const BUCKET: &str = "through";

type Headers<'a> = &'a [(&'static str, String)];

fn write_through_bench() -> RemoteBench {
    RemoteBench::with_mode(BUCKET, "write-through")
}

fn object_path(key: &str) -> String {
    path(BUCKET, key)
}

async fn put(
    client: &S3TestClient,
    key: &str,
    headers: Headers<'_>,
    body: Bytes,
) -> Result<S3ClientResponse, CallFailure> {
    client.call(Method::PUT, &object_path(key), headers, full_body(body)).await
}

/// Returns the status and code of a refusal.
fn refusal(result: Result<S3ClientResponse, CallFailure>) -> (u16, String) {
    match result.expect_err("refused") {
        CallFailure::Refused { status, body } => {
            let code = body.split_once("<Code>").and_then(|(_, rest)| rest.split_once("</Code>"));
            (status.as_u16(), code.map_or_else(String::new, |(code, _)| code.to_owned()))
        }
        CallFailure::NoResponse(why) => panic!("{why}"),
    }
}

/// Returns the refusal of a write. A client whose write is refused in transit may find the connection
/// broken before it can read the reason; that counts as 503, and the write is repeated.
async fn refusal_of(mut write: impl AsyncFnMut() -> Result<S3ClientResponse, CallFailure>) -> (u16, String) {
    for _ in 0..20 {
        let refused = refusal(write().await);
        if refused.0 != 503 {
            return refused;
        }
    }
    panic!("no reason was reported")
}

/// Checks that both sides have this object, with equal headers.
async fn assert_everywhere(bench: &RemoteBench, key: &str, expected: &Bytes) {
    let origin = bench
        .origin_client()
        .get(ORIGIN_BUCKET, &origin_key(key))
        .await
        .expect("the object is at the origin");
    assert!(origin.body == *expected, "{key}");
    for _ in 0..2 {
        let found = bench.gateway.client().get(BUCKET, key).await.expect("the object is stored locally");
        assert!(found.body == *expected, "{key}");
        for name in ["etag", "last-modified", "content-type", "content-encoding", "x-amz-meta-a"] {
            assert_eq!(found.header(name), origin.header(name), "{name} of {key}");
        }
    }
}

#[test]
fn acknowledged_writes_are_at_the_origin_unchanged() {
    let bench = write_through_bench();
    runtime().block_on(async {
        let client = bench.gateway.client();
        for (n, length) in LENGTHS.into_iter().enumerate() {
            for version in [1, 2] {
                let headers = [
                    ("content-type", format!("text/v{version}")),
                    ("content-encoding", "gzip".to_owned()),
                    ("x-amz-meta-a", "ümläut".to_owned()),
                    ("x-amz-tagging", "t=1%262".to_owned()),
                ];
                let (key, body) = (format!("a//{n} +ü"), bytes(version, length));
                let stored = put(&client, &key, &headers, body.clone()).await.expect("stored");
                assert_eq!(stored.etag(), TestContent { id: version, length }.etag());
                assert_everywhere(&bench, &key, &body).await;
                let tags = format!("{}?tagging=", object_path(&key));
                let tags = client.call(Method::GET, &tags, &[], full_body("")).await.expect("tags").body;
                assert!(String::from_utf8_lossy(&tags).contains("<Value>1&amp;2</Value>"), "{tags:?}");
            }
        }
        let listed = client.list(BUCKET, 2).await.expect("listed");
        assert_eq!(listed.len(), LENGTHS.len());
        for row in listed {
            client.delete(BUCKET, &row.key).await.expect("deleted");
            assert!(client.get(BUCKET, &row.key).await.expect_err("gone").is_not_found());
            assert!(
                bench
                    .origin_client()
                    .head(ORIGIN_BUCKET, &origin_key(&row.key))
                    .await
                    .expect_err("gone")
                    .is_not_found()
            );
        }
    });
}

#[test]
fn requests_without_a_valid_operation_do_not_reach_the_origin() {
    let bench = write_through_bench();
    let (client, body) = (bench.gateway.client(), bytes(1, 100));
    runtime().block_on(async {
        put(&client, "k", &[], body.clone()).await.expect("stored");
        bench.take_requests();
        for method in [Method::PUT, Method::POST, Method::DELETE] {
            for query in [
                "acl",
                "annotation&annotationName=n",
                "encryption",
                "legal-hold",
                "restore",
                "torrent",
                "attributes",
                "partNumber=1",
                "versionId=7&acl",
                "whatever",
                "%61cl",
            ] {
                let target = format!("{}?{query}", object_path("k"));
                let refused = client.call(method.clone(), &target, &[], full_body("<X/>")).await;
                let (status, code) = refusal(refused);
                assert!([400, 405, 501].contains(&status), "{method} ?{query}: {status} {code}");
            }
        }
        assert_eq!(bench.take_requests(), [""; 0], "nothing was sent");
        assert_everywhere(&bench, "k", &body).await;
    });
}

#[test]
fn many_are_deleted_and_copied_at_the_origin() {
    let bench = write_through_bench();
    runtime().block_on(async {
        let client = bench.gateway.client();
        for n in 0..40 {
            put(&client, &format!("{n}"), &[], bytes(n, 100)).await.expect("stored");
        }
        client.get(BUCKET, "7").await.expect("read");
        let copied = client.copy(BUCKET, "5", "7").await.expect("copied");
        assert_eq!(copied, TestContent { id: 5, length: 100 }.etag());
        assert_everywhere(&bench, "7", &bytes(5, 100)).await;
        let replace = [
            ("x-amz-copy-source", object_path("7")),
            ("x-amz-metadata-directive", "REPLACE".to_owned()),
            ("x-amz-meta-a", "other".to_owned()),
        ];
        client.call(Method::PUT, &object_path("7"), &replace, full_body("")).await.expect("replaced");
        assert_eq!(client.head(BUCKET, "7").await.expect("exists").header("x-amz-meta-a"), Some("other"));
        let unless =
            [("x-amz-copy-source", object_path("5")), ("x-amz-copy-source-if-match", "\"x\"".to_owned())];
        let refused = client.call(Method::PUT, &object_path("8"), &unless, full_body("")).await;
        assert_eq!(refusal(refused), (412, "PreconditionFailed".to_owned()));
        let refused = client.copy(BUCKET, "none", "8").await.map(|_| unreachable!());
        assert_eq!(refusal(refused), (404, "NoSuchKey".to_owned()));
        let native = [("x-amz-copy-source", "/native/k".to_owned())];
        client.create_bucket("native").await.expect("made");
        let refused = client.call(Method::PUT, &object_path("8"), &native, full_body("")).await;
        assert_eq!(refusal(refused), (404, "NoSuchKey".to_owned()));
        let rows: String = (0..40).map(|n| format!("<Object><Key>{n}</Key></Object>")).collect();
        let wrong = "<Object><Key>5</Key><ETag>x</ETag></Object>";
        let document = format!("<Delete><Object><Key>never</Key></Object>{wrong}{rows}</Delete>");
        let deleted =
            client.call(Method::POST, &format!("/{BUCKET}?delete="), &[], full_body(document)).await;
        let deleted = String::from_utf8_lossy(&deleted.expect("deleted").body).into_owned();
        let counts =
            ["<Deleted>", "<Code>PreconditionFailed</Code>"].map(|what| deleted.matches(what).count());
        assert_eq!(counts, [41, 1], "{deleted}");
        assert_eq!(bench.origin_client().list(ORIGIN_BUCKET, 1000).await.expect("listed"), []);
        assert!(client.get(BUCKET, "7").await.expect_err("gone").is_not_found());
    });
}

#[test]
fn conditions_are_evaluated_by_the_origin() {
    let bench = write_through_bench();
    runtime().block_on(async {
        let client = bench.gateway.client();
        let if_none = [("if-none-match", "*".to_owned())];
        let if_match = |etag: &str| [("if-match", format!("\"{etag}\""))];
        for length in [1000, 6 * MIB] {
            let key = format!("{length}");
            let failed = (412, "PreconditionFailed".to_owned());
            assert_eq!(
                refusal_of(async || put(&client, &key, &if_match("x"), bytes(0, length)).await).await,
                (404, "NoSuchKey".to_owned())
            );
            let one = put(&client, &key, &if_none, bytes(1, length)).await.expect("stored").etag();
            for conditions in [&if_none, &if_match("x")] {
                let put = async || put(&client, &key, conditions, bytes(2, length)).await;
                assert_eq!(refusal_of(put).await, failed);
            }
            assert_everywhere(&bench, &key, &bytes(1, length)).await;
            // Another client writes to the origin. Here the previous version stays cached for an hour; only
            // the origin knows the new one.
            let two = bench
                .origin_client()
                .put(ORIGIN_BUCKET, &origin_key(&key), full_body(bytes(2, length)))
                .await
                .expect("stored");
            let late = async || put(&client, &key, &if_match(&one), bytes(3, length)).await;
            assert_eq!(refusal_of(late).await, failed);
            put(&client, &key, &if_match(&two), bytes(3, length)).await.expect("stored");
            assert_everywhere(&bench, &key, &bytes(3, length)).await;
            let deleted =
                client.call(Method::DELETE, &object_path(&key), &if_match(&one), full_body("")).await;
            assert_eq!(refusal(deleted), failed);
        }
    });
}

#[test]
fn uploads_are_the_origins_own() {
    let bench = write_through_bench();
    runtime().block_on(async {
        let (client, origin) = (bench.gateway.client(), bench.origin_client());
        let upload = client.create_upload(BUCKET, "dir/large").await.expect("begun");
        assert_eq!(origin.list_uploads(ORIGIN_BUCKET).await.expect("listed"), std::slice::from_ref(&upload));
        assert_eq!(client.list_uploads(BUCKET).await.expect("listed"), std::slice::from_ref(&upload));
        put(&client, "source", &[], bytes(3, 6 * MIB)).await.expect("stored");
        let mut parts = Vec::new();
        for number in [1, 2] {
            let body = full_body(bytes(number.into(), 5 * MIB));
            let etag = client.put_part(BUCKET, "dir/large", &upload, number, body).await.expect("stored");
            parts.push((number, etag));
        }
        let target = format!("{}?partNumber=3&uploadId={}", object_path("dir/large"), encode(&upload));
        let range = [
            ("x-amz-copy-source", object_path("source")),
            ("x-amz-copy-source-range", "bytes=5-99".to_owned()),
        ];
        let copied = client.call(Method::PUT, &target, &range, full_body("")).await.expect("copied").body;
        let copied = String::from_utf8_lossy(&copied).into_owned();
        let etag = copied.split("&quot;").nth(1).expect("an ETag");
        parts.push((3, etag.to_owned()));
        let listed = client.list_parts(BUCKET, "dir/large", &upload).await.expect("listed");
        assert_eq!(
            listed,
            origin.list_parts(ORIGIN_BUCKET, &origin_key("dir/large"), &upload).await.expect("listed")
        );
        assert_eq!(listed.iter().map(|part| part.size).sum::<u64>(), 10 * MIB as u64 + 95);
        // Completing the upload invalidates the metadata that was cached before.
        client.get(BUCKET, "dir/large").await.expect_err("not yet");
        let wrong = client.complete(BUCKET, "dir/large", &upload, &[(1, "x".to_owned())]).await;
        assert_eq!(refusal(wrong.map(|_| unreachable!())), (400, "InvalidPart".to_owned()));
        client.complete(BUCKET, "dir/large", &upload, &parts).await.expect("complete");
        let copy = bytes(3, 6 * MIB).slice(5..100);
        let expected = [bytes(1, 5 * MIB), bytes(2, 5 * MIB), copy].concat();
        assert_everywhere(&bench, "dir/large", &expected.into()).await;
        let attributes = [("x-amz-object-attributes", "ETag,ObjectSize".to_owned())];
        let target = format!("{}?attributes=", object_path("dir/large"));
        let document =
            client.call(Method::GET, &target, &attributes, full_body("")).await.expect("attributes").body;
        assert!(String::from_utf8_lossy(&document).contains(&format!("<ObjectSize>{}<", 10 * MIB + 95)));
        let upload = client.create_upload(BUCKET, "aborted").await.expect("begun");
        client.abort(BUCKET, "aborted", &upload).await.expect("aborted");
        let gone = client.put_part(BUCKET, "aborted", &upload, 1, full_body("x")).await;
        assert_eq!(refusal(gone.map(|_| unreachable!())), (404, "NoSuchUpload".to_owned()));
        assert_eq!(origin.list_uploads(ORIGIN_BUCKET).await.expect("listed"), [""; 0]);
    });
}

/// Returns a body in one aws-chunked frame, followed by `trailer`.
fn framed(body: &[u8], signature: &str, trailer: &str) -> Vec<u8> {
    let end = if signature.is_empty() { String::new() } else { format!(";chunk-signature={signature}") };
    let head = format!("{:x}{end}\r\n", body.len());
    [head.as_bytes(), body, format!("\r\n0{end}\r\n{trailer}\r\n").as_bytes()].concat()
}

#[test]
fn an_invalid_body_leaves_nothing_at_the_origin() {
    let bench = write_through_bench();
    runtime().block_on(async {
        let client = bench.gateway.client();
        for length in [1000, 300_000, 5 * MIB] {
            let body = bytes(1, length);
            let md5 = [("content-md5", "AAAAAAAAAAAAAAAAAAAAAA==".to_owned())];
            assert_eq!(refusal(put(&client, "k", &md5, body.clone()).await).1, "BadDigest");
            let crc = [("x-amz-checksum-crc32c", "AAAAAA==".to_owned())];
            assert_eq!(refusal(put(&client, "k", &crc, body.clone()).await).1, "BadDigest");
            let chunked = |payload: &str, trailer: &str| {
                let mut headers = vec![
                    ("x-amz-content-sha256", payload.to_owned()),
                    ("content-encoding", "aws-chunked".to_owned()),
                    ("x-amz-decoded-content-length", length.to_string()),
                ];
                if !trailer.is_empty() {
                    headers.push(("x-amz-trailer", trailer.to_owned()));
                }
                headers
            };
            let trailed = chunked("STREAMING-UNSIGNED-PAYLOAD-TRAILER", "x-amz-checksum-crc32");
            let wrong = framed(&body, "", "x-amz-checksum-crc32:AAAAAA==\r\n");
            assert_eq!(refusal(put(&client, "k", &trailed, wrong.into()).await).1, "BadDigest");
            let signed = chunked("STREAMING-AWS4-HMAC-SHA256-PAYLOAD", "");
            let wrong = framed(&body, &"0".repeat(64), "");
            assert_eq!(refusal(put(&client, "k", &signed, wrong.into()).await).1, "SignatureDoesNotMatch");
            let upload = client.create_upload(BUCKET, "k").await.expect("begun");
            let target = format!("{}?partNumber=1&uploadId={}", object_path("k"), encode(&upload));
            let part = client.call(Method::PUT, &target, &crc, full_body(body.clone())).await;
            assert_eq!(refusal(part).1, "BadDigest");
            assert_eq!(client.list_parts(BUCKET, "k", &upload).await.expect("listed"), []);
        }
        let address = bench.gateway.s3;
        let mut gone = RawExchange::begin(&client, address, Method::PUT, &object_path("k"), 3 * MIB as u64)
            .await
            .expect("sent");
        gone.send(&vec![7; 2 * MIB]).await.expect("sent");
        drop(gone);
        mlgw_common::time::sleep(std::time::Duration::from_millis(200)).await;
        assert!(
            bench
                .origin_client()
                .head(ORIGIN_BUCKET, &origin_key("k"))
                .await
                .expect_err("nothing")
                .is_not_found()
        );
        assert_eq!(bench.origin_client().list(ORIGIN_BUCKET, 10).await.expect("listed"), []);
    });
}

#[test]
fn a_trailing_checksum_is_stored_by_the_origin() {
    let bench = write_through_bench();
    runtime().block_on(async {
        let client = bench.gateway.client();
        for length in [1000, 300_000, 5 * MIB] {
            let body = bytes(1, length);
            let crc = crc32(&body);
            let headers = [
                ("x-amz-content-sha256", "STREAMING-UNSIGNED-PAYLOAD-TRAILER".to_owned()),
                ("content-encoding", "aws-chunked,gzip".to_owned()),
                ("x-amz-decoded-content-length", length.to_string()),
                ("x-amz-trailer", "x-amz-checksum-crc32".to_owned()),
            ];
            let right = framed(&body, "", &format!("x-amz-checksum-crc32:{crc}\r\n"));
            let stored = put(&client, "k", &headers, right.into()).await.expect("stored");
            assert_eq!(stored.header("x-amz-checksum-crc32"), Some(&*crc));
            assert_everywhere(&bench, "k", &body).await;
            let mode = [("x-amz-checksum-mode", "ENABLED".to_owned())];
            for (client, path) in [
                (&client, object_path("k")),
                (&bench.origin_client(), format!("/{ORIGIN_BUCKET}/{}", origin_key("k"))),
            ] {
                let head = client.call(Method::HEAD, &path, &mode, full_body("")).await.expect("exists");
                assert_eq!(head.header("x-amz-checksum-crc32"), Some(&*crc));
            }
        }
    });
}

#[test]
fn a_write_of_unknown_outcome_fails_and_reads_return_the_origins_object() {
    let bench = write_through_bench();
    let cut = || Rule::new(Fault::CutBeforeAnswer).method("PUT");
    runtime().block_on(async {
        let client = bench.gateway.client();
        for (length, rule) in [(1000, cut()), (6 * MIB, cut().times(1))] {
            let key = format!("{length}");
            put(&client, &key, &[], bytes(1, length)).await.expect("stored");
            assert_everywhere(&bench, &key, &bytes(1, length)).await;
            bench.proxy.set_rules(vec![rule]);
            let lost = refusal(put(&client, &key, &[], bytes(2, length)).await);
            assert_eq!(lost, (503, "ServiceUnavailable".to_owned()));
            bench.proxy.set_rules(vec![]);
            assert_everywhere(&bench, &key, &bytes(2, length)).await;
            // Only the client can decide whether its first attempt succeeded.
            bench.proxy.set_rules(vec![cut().times(1)]);
            let unless = [("if-none-match", "*".to_owned())];
            let key = format!("new-{length}");
            assert_eq!(refusal(put(&client, &key, &unless, bytes(3, length)).await).0, 503);
            assert_everywhere(&bench, &key, &bytes(3, length)).await;
        }
        // A body in memory is sent again.
        bench.proxy.set_rules(vec![cut().times(2)]);
        put(&client, "again", &[], bytes(4, 1000)).await.expect("stored");
        assert_everywhere(&bench, "again", &bytes(4, 1000)).await;
        bench.proxy.set_rules(vec![Rule::new(Fault::CutBeforeAnswer).method("DELETE")]);
        client.delete(BUCKET, "again").await.expect_err("lost");
        bench.proxy.set_rules(vec![]);
        assert!(client.get(BUCKET, "again").await.expect_err("gone").is_not_found());
    });
}

#[test]
fn a_burst_of_503_is_retried_for_bodies_in_memory_and_else_returned() {
    let bench = write_through_bench();
    let burst = || {
        let slow = Fault::Status { status: 503, code: "SlowDown".to_owned() };
        Rule::new(slow).times(3)
    };
    runtime().block_on(async {
        let client = bench.gateway.client();
        for (key, headers) in [("plain", vec![]), ("unless", vec![("if-none-match", "*".to_owned())])] {
            bench.proxy.set_rules(vec![burst()]);
            put(&client, key, &headers, bytes(1, 1000)).await.expect("stored");
            assert_everywhere(&bench, key, &bytes(1, 1000)).await;
        }
        bench.proxy.set_rules(vec![burst()]);
        for _ in 0..3 {
            let refused = refusal(put(&client, "large", &[], bytes(2, 5 * MIB)).await);
            assert_eq!(refused, (503, "SlowDown".to_owned()));
        }
        put(&client, "large", &[], bytes(2, 5 * MIB)).await.expect("stored");
        assert_everywhere(&bench, "large", &bytes(2, 5 * MIB)).await;
        bench.proxy.set_rules(vec![burst()]);
        client.copy(BUCKET, "plain", "copied").await.expect("copied");
        bench.proxy.set_rules(vec![burst()]);
        client.delete(BUCKET, "plain").await.expect("deleted");
        // The connection breaks after half of a body.
        bench.proxy.set_rules(vec![Rule::new(Fault::CutRequest { after: 2 << 20 })]);
        assert_eq!(refusal(put(&client, "large", &[], bytes(3, 5 * MIB)).await).0, 503);
        bench.proxy.set_rules(vec![]);
        assert_everywhere(&bench, "large", &bytes(2, 5 * MIB)).await;
    });
}

/// Reads until `done`, and checks that no version is older than the last one acknowledged before the read.
async fn read_until_done(
    client: S3TestClient,
    length: usize,
    acked: Arc<AtomicU64>,
    done: Arc<AtomicBool>,
) -> u64 {
    let mut reads = 0;
    while !done.load(SeqCst) {
        let least = acked.load(SeqCst);
        let read = client.get(BUCKET, "k").await;
        let body = match read {
            Ok(answer) => answer.body,
            // A large response that overlaps a write is cut off.
            Err(CallFailure::NoResponse(_)) => continue,
            Err(refused) => panic!("{refused:?}"),
        };
        let content = TestContent::parse_identity(&body).expect("whole");
        assert!(content.id >= least && content.length == length, "{content} after {least}");
        assert_eq!(content.difference(&body), None);
        reads += 1;
    }
    reads
}

#[test]
fn no_read_returns_a_version_older_than_an_acknowledged_write() {
    for (length, versions) in [(500, 150), (400_000, 60), (9 * MIB, 12)] {
        let bench = write_through_bench();
        // Responses to reads that began before a write arrive after it.
        let late = Fault::Delay { by: std::time::Duration::from_millis(15) };
        bench.proxy.set_rules(vec![Rule::new(late).method("GET").probability(0.3, 7)]);
        runtime().block_on(async {
            let writer = bench.gateway.client();
            put(&writer, "k", &[], bytes(1, length)).await.expect("stored");
            let (acked, done) = (Arc::new(AtomicU64::new(1)), Arc::new(AtomicBool::new(false)));
            let readers: Vec<_> = (0..32)
                .map(|_| {
                    tokio::spawn(read_until_done(bench.gateway.client(), length, acked.clone(), done.clone()))
                })
                .collect();
            for version in 2..versions {
                put(&writer, "k", &[], bytes(version, length)).await.expect("stored");
                acked.store(version, SeqCst);
                if version % 3 == 0 {
                    mlgw_common::time::sleep(std::time::Duration::from_millis(20)).await;
                }
            }
            done.store(true, SeqCst);
            let mut reads = 0;
            for reader in readers {
                reads += reader.await.expect("no reader failed");
            }
            assert!(reads > 32, "{reads}");
        });
    }
}

#[test]
fn a_crash_does_not_restore_an_overwritten_version() {
    let mut bench = write_through_bench();
    runtime().block_on(async {
        put(&bench.gateway.client(), "k", &[], bytes(1, 1000)).await.expect("stored");
        assert_everywhere(&bench, "k", &bytes(1, 1000)).await;
    });
    // A stop persists the cached metadata; the later invalidation is lost by the kill.
    bench.gateway.send_sigterm();
    bench.gateway.wait_exit();
    bench.gateway = bench.setup.start();
    runtime().block_on(async {
        put(&bench.gateway.client(), "k", &[], bytes(2, 1000)).await.expect("stored");
    });
    bench.gateway.kill();
    bench.gateway = bench.setup.start();
    runtime().block_on(assert_everywhere(&bench, "k", &bytes(2, 1000)));
}

#[test]
fn unsupported_operations_are_refused_by_name() {
    let bench = write_through_bench();
    let client = bench.gateway.client();
    runtime().block_on(async {
        let form = [("content-type", "multipart/form-data; boundary=x".to_owned())];
        let post = client.call(Method::POST, &format!("/{BUCKET}"), &form, full_body("--x--")).await;
        let Err(CallFailure::Refused { status, body }) = post else { panic!("refused") };
        // The form is verified before the bucket is looked up: a form without a file learns nothing about
        // it.
        assert!(status == StatusCode::BAD_REQUEST && !body.contains("far"), "{body}");
        let refused = client.call(Method::PUT, &format!("/{BUCKET}?tagging="), &[], full_body("")).await;
        let Err(CallFailure::Refused { body, .. }) = refused else { panic!("refused") };
        assert!(body.contains("PutBucketTagging") && body.contains("far"), "{body}");
        let read_only =
            client.call(Method::PUT, &format!("/{}/k", remote_backed::BUCKET), &[], full_body("x")).await;
        assert_eq!(refusal(read_only), (403, "AccessDenied".to_owned()));
    });
}

/// Returns the CRC-32 of some bytes in base64. It is computed bit by bit, independently of the tested code.
fn crc32(bytes: &[u8]) -> String {
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ 0xEDB8_8320 } else { crc >> 1 };
        }
    }
    base64(&(!crc).to_be_bytes())
}

fn base64(four: &[u8; 4]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bits = u64::from(u32::from_be_bytes(*four)) << 4;
    let digit = |at: u32| char::from(DIGITS[(bits >> (30 - 6 * at) & 63) as usize]);
    (0..6).map(digit).chain("==".chars()).collect()
}

#[test]
fn tags_are_counted_as_at_the_origin() {
    let bench = write_through_bench();
    runtime().block_on(async {
        let client = bench.gateway.client();
        let tagged = [("x-amz-tagging", "a=1&b=2".to_owned())];
        bench
            .origin_client()
            .call(Method::PUT, &path(ORIGIN_BUCKET, &origin_key("k")), &tagged, full_body("x"))
            .await
            .expect("stored");
        let counted = async |expected: Option<&str>| {
            for method in [Method::HEAD, Method::GET, Method::HEAD] {
                let found =
                    client.call(method.clone(), &object_path("k"), &[], full_body("")).await.expect("read");
                assert_eq!(found.header("x-amz-tagging-count"), expected, "{method}");
            }
        };
        counted(Some("2")).await;
        let document = "<Tagging><TagSet><Tag><Key>c</Key><Value>3</Value></Tag></TagSet></Tagging>";
        let tags = format!("{}?tagging=", object_path("k"));
        client.call(Method::PUT, &tags, &[], full_body(document)).await.expect("set");
        counted(Some("1")).await;
        client.call(Method::DELETE, &tags, &[], full_body("")).await.expect("deleted");
        counted(None).await;
        put(&client, "k", &tagged, bytes(1, 10)).await.expect("stored");
        counted(Some("2")).await;
    });
}

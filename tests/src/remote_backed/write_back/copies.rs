//! Copies between remote-backed and local buckets: in every direction, a copy equals its source.

use http::Method;

use super::super::{self as remote_backed, RemoteBench, bytes, path, runtime, wait_until};
use super::{BUCKET, MIB, assert_here, flush, put, release_writes, slow_down, write_back_bench};
use crate::content::TestContent;
use crate::s3::{CallFailure, S3ClientResponse, S3TestClient, encode, full_body};

/// A local bucket, and one in write-through mode; `BUCKET` is in write-back mode.
const LOCAL_BUCKET: &str = "ours";
const THROUGH: &str = "through";

async fn copy(
    client: &S3TestClient,
    (bucket, key): (&str, &str),
    from: (&str, &str),
    headers: &[(&'static str, String)],
) -> Result<S3ClientResponse, CallFailure> {
    let source = [("x-amz-copy-source", path(from.0, from.1))];
    let target = path(bucket, key);
    client.call(Method::PUT, &target, &[&source, headers].concat(), full_body("")).await
}

fn bench_with_write_through() -> RemoteBench {
    let bench = write_back_bench();
    bench.bind(THROUGH, "1h", "write-through");
    bench
}

/// Makes the origin refuse writes of the object `dirty` until it is released.
fn hold_dirty(bench: &RemoteBench) {
    bench.proxy.set_rules(vec![slow_down("PUT").path("/dirty"), slow_down("POST").path("/dirty")]);
}

#[test]
fn objects_are_copied_between_buckets_of_every_kind() {
    let bench = bench_with_write_through();
    runtime().block_on(async {
        let client = bench.gateway.client();
        client.create_bucket(LOCAL_BUCKET).await.expect("made");
        let like = [
            ("content-type", "text/x".to_owned()),
            ("x-amz-meta-a", "ü".to_owned()),
            ("x-amz-tagging", "t=1".to_owned()),
        ];
        for (n, length) in [0, 1000, 3 * MIB, 17 * MIB + 5].into_iter().enumerate() {
            let (id, key) = (n as u64, format!("source {n}"));
            client
                .call(Method::PUT, &path(LOCAL_BUCKET, &key), &like, full_body(bytes(id, length)))
                .await
                .expect("stored");
            // From here to the origin and back, and also from a write that the origin does not have yet.
            for (from, to) in [
                ((LOCAL_BUCKET, key.clone()), (THROUGH, format!("through {n}"))),
                ((THROUGH, format!("through {n}")), (LOCAL_BUCKET, format!("back {n}"))),
                ((LOCAL_BUCKET, format!("back {n}")), (BUCKET, format!("late {n}"))),
                ((BUCKET, format!("late {n}")), (LOCAL_BUCKET, format!("again {n}"))),
            ] {
                copy(&client, (to.0, &to.1), (from.0, &from.1), &[]).await.expect("copied");
                let found = client.get(to.0, &to.1).await.expect("exists");
                assert!(found.body == bytes(id, length), "{from:?} to {to:?}: {} bytes", found.body.len());
                let values = ["content-type", "x-amz-meta-a"].map(|name| found.header(name));
                assert_eq!(values, [Some("text/x"), Some("=?UTF-8?B?w7w=?=")], "{from:?} to {to:?}");
                let tags = format!("{}?tagging=", path(to.0, &to.1));
                let tags = client.call(Method::GET, &tags, &[], full_body("")).await.expect("tags").body;
                assert!(String::from_utf8_lossy(&tags).contains("<Value>1<"), "{from:?} to {to:?}: {tags:?}");
            }
        }
        flush(&bench);
        hold_dirty(&bench);
        put(&client, "dirty", 7, 300_000).await;
        for bucket in [LOCAL_BUCKET, THROUGH] {
            copy(&client, (bucket, "of it"), (BUCKET, "dirty"), &[]).await.expect("copied");
            let found = client.get(bucket, "of it").await.expect("exists");
            assert!(found.body == bytes(7, 300_000), "{bucket}: {} bytes", found.body.len());
            assert_eq!(found.header("x-amz-meta-mlgw-write"), None, "{bucket}");
        }
        release_writes(&bench);
    });
}

#[test]
fn copies_honour_source_conditions_and_replaced_metadata() {
    let bench = bench_with_write_through();
    runtime().block_on(async {
        let client = bench.gateway.client();
        client.create_bucket(LOCAL_BUCKET).await.expect("made");
        put(&client, "k", 1, 1000).await;
        flush(&bench);
        let etag = client.head(BUCKET, "k").await.expect("exists").etag();
        for (from, to) in
            [((BUCKET, "k"), (LOCAL_BUCKET, "copy")), ((LOCAL_BUCKET, "copy"), (THROUGH, "copy"))]
        {
            let refused =
                |done: Result<S3ClientResponse, CallFailure>| done.err().and_then(|failure| failure.status());
            let not = [("x-amz-copy-source-if-none-match", etag.clone())];
            assert_eq!(refused(copy(&client, to, from, &not).await), Some(412));
            let other = [("x-amz-copy-source-if-match", "x".to_owned())];
            assert_eq!(refused(copy(&client, to, from, &other).await), Some(412));
            let missing = copy(&client, to, (from.0, "missing"), &[]).await;
            assert_eq!(refused(missing), Some(404));
            let instead = [
                ("x-amz-copy-source-if-match", etag.clone()),
                ("x-amz-metadata-directive", "REPLACE".to_owned()),
                ("x-amz-meta-b", "new".to_owned()),
            ];
            copy(&client, to, from, &instead).await.expect("copied");
            let found = client.get(to.0, to.1).await.expect("exists");
            assert_eq!((found.header("x-amz-meta-b"), &found.body), (Some("new"), &bytes(1, 1000)));
        }
        let absent = [("if-none-match", "*".to_owned())];
        let refused = copy(&client, (THROUGH, "copy"), (LOCAL_BUCKET, "copy"), &absent).await;
        assert_eq!(refused.err().and_then(|failure| failure.status()), Some(412));
    });
}

#[test]
fn parts_are_copied_from_buckets_of_every_kind() {
    let bench = bench_with_write_through();
    runtime().block_on(async {
        let client = bench.gateway.client();
        client.create_bucket(LOCAL_BUCKET).await.expect("made");
        client.put(LOCAL_BUCKET, "native", full_body(bytes(1, 7 * MIB))).await.expect("stored");
        put(&client, "far", 2, 7 * MIB).await;
        flush(&bench);
        hold_dirty(&bench);
        put(&client, "dirty", 3, 7 * MIB).await;
        let expected = (1..=3).flat_map(|id| bytes(id, 7 * MIB).slice(10..6 * MIB)).collect::<Vec<u8>>();
        for bucket in [LOCAL_BUCKET, THROUGH, BUCKET] {
            let upload = client.create_upload(bucket, "all").await.expect("begun");
            let mut parts = Vec::new();
            for (number, from) in (1..).zip([(LOCAL_BUCKET, "native"), (BUCKET, "far"), (BUCKET, "dirty")]) {
                let target =
                    format!("{}?partNumber={number}&uploadId={}", path(bucket, "all"), encode(&upload));
                let headers = [
                    ("x-amz-copy-source", path(from.0, from.1)),
                    ("x-amz-copy-source-range", format!("bytes=10-{}", 6 * MIB - 1)),
                ];
                let copied =
                    client.call(Method::PUT, &target, &headers, full_body("")).await.expect("copied").body;
                let copied = String::from_utf8_lossy(&copied).into_owned();
                parts.push((number, copied.split("&quot;").nth(1).expect("an ETag").to_owned()));
            }
            client.complete(bucket, "all", &upload, &parts).await.expect("complete");
            let found = client.get(bucket, "all").await.expect("exists");
            assert!(found.body == expected, "{bucket}: {} bytes", found.body.len());
        }
        release_writes(&bench);
        let there = async || {
            bench.origin_client().get(remote_backed::ORIGIN_BUCKET, &remote_backed::origin_key("all")).await
        };
        wait_until("the object has arrived", async || {
            there().await.is_ok_and(|found| found.body == expected)
        })
        .await;
        assert_here(&bench, "all", &expected.into()).await;
    });
}

#[test]
fn a_copy_of_an_object_of_parts_is_shown_with_its_own_etag() {
    let bench = bench_with_write_through();
    runtime().block_on(async {
        let client = bench.gateway.client();
        let upload = client.create_upload(BUCKET, "parts").await.expect("begun");
        let etag =
            client.put_part(BUCKET, "parts", &upload, 1, full_body(bytes(1, 5000))).await.expect("sent");
        let of_parts = client.complete(BUCKET, "parts", &upload, &[(1, etag)]).await.expect("complete");
        flush(&bench);
        for bucket in [BUCKET, THROUGH] {
            let if_match = [("x-amz-copy-source-if-match", of_parts.clone())];
            for (key, headers) in [("copy", &[][..]), ("conditional", &if_match[..])] {
                copy(&client, (bucket, key), (BUCKET, "parts"), headers).await.expect("copied");
                let found = client.get(bucket, key).await.expect("exists");
                assert!(found.body == bytes(1, 5000));
                assert_eq!(found.etag(), TestContent { id: 1, length: 5000 }.etag(), "{bucket} {key}");
            }
        }
    });
}

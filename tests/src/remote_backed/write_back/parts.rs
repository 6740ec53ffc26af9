//! Multipart uploads to a bucket in write-back mode: their parts are stored here, and sent with the
//! boundaries that the client chose.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use http::Method;
use sha2::{Digest as _, Sha256};

use super::{
    BUCKET, MIB, ORIGIN_BUCKET, RemoteBench, assert_at_origin, assert_everywhere, assert_here, bytes, flush,
    keys_at_origin, keys_here, object_path, origin_key, release_writes, runtime, slow_down, wait_until,
    write_back_bench, write_back_bench_with,
};
use crate::proxy::{Fault, Rule};
use crate::s3::{CallFailure, S3ClientResponse, S3TestClient, encode, full_body};

/// Lengths of parts with irregular boundaries.
const PARTS: [usize; 4] = [5 * MIB, 6 * MIB + 1, 5 * MIB + 77, 100];

/// Makes the origin refuse every request of an upload.
fn hold_parts(bench: &RemoteBench) {
    bench.proxy.set_rules(vec![slow_down("PUT"), slow_down("POST"), slow_down("DELETE")]);
}

fn content(id: u64) -> Vec<Bytes> {
    PARTS.iter().zip(id..).map(|(length, id)| bytes(id, *length)).collect()
}

async fn upload_parts(client: &S3TestClient, key: &str, parts: &[Bytes]) -> (String, Vec<(u32, String)>) {
    let upload = client.create_upload(BUCKET, key).await.expect("begun");
    let mut done = Vec::new();
    for (number, part) in (1..).zip(parts) {
        let etag =
            client.put_part(BUCKET, key, &upload, number, full_body(part.clone())).await.expect("stored");
        done.push((number, etag));
    }
    (upload, done)
}

async fn put_in_parts(client: &S3TestClient, key: &str, parts: &[Bytes]) -> String {
    let (upload, done) = upload_parts(client, key, parts).await;
    client.complete(BUCKET, key, &upload, &done).await.expect("complete")
}

async fn part(client: &S3TestClient, path: &str, number: usize) -> S3ClientResponse {
    client
        .call(Method::GET, &format!("{path}?partNumber={number}"), &[], full_body(""))
        .await
        .expect("a part")
}

/// Completes an upload on a condition. Returns the status if it is refused.
async fn complete_if(
    client: &S3TestClient,
    key: &str,
    (upload, parts): &(String, Vec<(u32, String)>),
    condition: (&'static str, String),
) -> Result<(), u16> {
    let row = |(number, etag): &(u32, String)| {
        format!("<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>")
    };
    let rows: String = parts.iter().map(row).collect();
    let document = format!("<CompleteMultipartUpload>{rows}</CompleteMultipartUpload>");
    let target = format!("{}?uploadId={}", object_path(key), encode(upload));
    let done = client.call(Method::POST, &target, &[condition], full_body(document)).await;
    done.map(drop).map_err(|failure| failure.status().unwrap_or_else(|| panic!("{failure:?}")))
}

#[test]
fn a_completed_upload_is_visible_here_and_has_the_same_parts_at_the_origin() {
    let bench = write_back_bench();
    hold_parts(&bench);
    runtime().block_on(async {
        let (client, parts) = (bench.gateway.client(), content(1));
        let (upload, done) = upload_parts(&client, "dir/large", &parts).await;
        assert_eq!(bench.take_requests(), [""; 0], "nothing is sent before the upload is complete");
        let sizes: Vec<usize> = client
            .list_parts(BUCKET, "dir/large", &upload)
            .await
            .expect("listed")
            .iter()
            .map(|part| part.size as usize)
            .collect();
        assert_eq!(sizes, PARTS);
        let other = client.create_upload(BUCKET, "dir/ä other").await.expect("begun");
        assert_eq!(client.list_uploads(BUCKET).await.expect("listed"), [upload.clone(), other.clone()]);
        client.abort(BUCKET, "dir/ä other", &other).await.expect("aborted");
        let gone = client.put_part(BUCKET, "dir/ä other", &other, 1, full_body("x")).await;
        assert!(
            gone.is_err_and(|failure| failure.status() == Some(503)),
            "the upload may have reached the origin"
        );
        assert!(client.get(BUCKET, "dir/large").await.expect_err("not yet").is_not_found());
        let etag = client.complete(BUCKET, "dir/large", &upload, &done).await.expect("complete");
        assert!(etag.ends_with("-4"), "{etag}");
        let again =
            client.complete(BUCKET, "dir/large", &upload, &done).await.expect("the answer may be lost");
        assert_eq!(again, etag);
        let all: Bytes = parts.concat().into();
        assert_here(&bench, "dir/large", &all).await;
        assert_eq!(part(&client, &object_path("dir/large"), 2).await.body, parts[1]);
        assert_eq!(keys_here(&bench, 10).await, ["dir/large"]);
        assert_eq!(client.list_uploads(BUCKET).await.expect("listed"), [""; 0]);

        release_writes(&bench);
        flush(&bench);
        assert_everywhere(&bench, "dir/large", &all).await;
        let path = format!("/{ORIGIN_BUCKET}/{}", origin_key("dir/large"));
        for (number, expected) in (1..).zip(&parts) {
            assert_eq!(part(&bench.origin_client(), &path, number).await.body, *expected, "part {number}");
            assert_eq!(
                part(&client, &object_path("dir/large"), number).await.body,
                *expected,
                "part {number} here"
            );
        }
        let origin =
            bench.origin_client().head(ORIGIN_BUCKET, &origin_key("dir/large")).await.expect("exists");
        assert_eq!(
            (origin.etag(), client.head(BUCKET, "dir/large").await.expect("here").etag()),
            (etag.clone(), etag.clone())
        );
        let again = client.complete(BUCKET, "dir/large", &upload, &done).await.expect("it exists");
        assert_eq!(again, etag);
        assert_eq!(bench.origin_client().list_uploads(ORIGIN_BUCKET).await.expect("listed"), [""; 0]);
    });
}

/// Returns the header, the element and the value of a part's checksum if an upload by this algorithm
/// requires it.
fn composite(algorithm: &str, part: &[u8]) -> Option<(&'static str, &'static str, String)> {
    match algorithm {
        "CRC32C" => {
            let value = BASE64_STANDARD.encode(mlgw_common::checksum::crc32c(part).to_be_bytes());
            Some(("x-amz-checksum-crc32c", "ChecksumCRC32C", value))
        }
        "SHA256" => {
            let value = BASE64_STANDARD.encode(Sha256::digest(part));
            Some(("x-amz-checksum-sha256", "ChecksumSHA256", value))
        }
        _ => None,
    }
}

#[test]
fn checksums_and_metadata_are_sent_with_the_parts() {
    let bench = write_back_bench();
    runtime().block_on(async {
        let client = bench.gateway.client();
        for (key, algorithm, kind) in
            [("a", "CRC32C", "COMPOSITE"), ("b", "CRC64NVME", "FULL_OBJECT"), ("c", "SHA256", "COMPOSITE")]
        {
            let headers = [
                ("content-type", "text/x".to_owned()),
                ("x-amz-meta-a", "ümläut".to_owned()),
                ("x-amz-tagging", "t=1".to_owned()),
                ("x-amz-checksum-algorithm", algorithm.to_owned()),
                ("x-amz-checksum-type", kind.to_owned()),
            ];
            let target = format!("{}?uploads=", object_path(key));
            let begun =
                client.call(Method::POST, &target, &headers, full_body("")).await.expect("begun").body;
            let begun = String::from_utf8_lossy(&begun).into_owned();
            let upload =
                begun.split_once("<UploadId>").and_then(|(_, rest)| rest.split_once('<')).expect("an id").0;
            let mut rows = String::new();
            for (number, content) in (1..).zip(content(3)) {
                let checksum = composite(algorithm, &content);
                let header: Vec<_> =
                    checksum.iter().map(|(header, _, value)| (*header, value.clone())).collect();
                let target = format!("{}?partNumber={number}&uploadId={}", object_path(key), encode(upload));
                let sent =
                    client.call(Method::PUT, &target, &header, full_body(content)).await.expect("stored");
                let element = checksum.map(|(_, element, value)| format!("<{element}>{value}</{element}>"));
                let (etag, element) = (sent.etag(), element.unwrap_or_default());
                rows +=
                    &format!("<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag>{element}</Part>");
            }
            let document = format!("<CompleteMultipartUpload>{rows}</CompleteMultipartUpload>");
            let target = format!("{}?uploadId={}", object_path(key), encode(upload));
            client.call(Method::POST, &target, &[], full_body(document)).await.expect("complete");
            let checked = [("x-amz-checksum-mode", "ENABLED".to_owned())];
            let checksum = format!("x-amz-checksum-{}", algorithm.to_lowercase());
            let mut headers_by_place = BTreeMap::new();
            for place in ["here", "flushed", "there"] {
                let (client, path) = match place {
                    "there" => (bench.origin_client(), format!("/{ORIGIN_BUCKET}/{}", origin_key(key))),
                    _ => (client.clone(), object_path(key)),
                };
                let found = client.call(Method::HEAD, &path, &checked, full_body("")).await.expect(place);
                let names = ["content-type", "x-amz-meta-a", "etag", &checksum];
                let values: Vec<_> = names.iter().map(|name| found.header(name).map(str::to_owned)).collect();
                assert!(values[3].is_some(), "{place}: {found:?}");
                headers_by_place.insert(place, values);
                flush(&bench);
            }
            assert_eq!(
                (&headers_by_place["here"], &headers_by_place["flushed"]),
                (&headers_by_place["there"], &headers_by_place["there"]),
                "{algorithm}"
            );
        }
    });
}

#[test]
fn only_missing_parts_are_sent_after_a_crash() {
    let mut bench = write_back_bench();
    let runtime = runtime();
    let parts = content(11);
    let all: Bytes = parts.concat().into();
    let numbers = |bench: &RemoteBench| -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for line in bench.proxy.log() {
            let of_part = line.target.split(['?', '&']).find_map(|field| field.strip_prefix("partNumber="));
            if let Some(number) = of_part.filter(|_| line.method == "PUT" && line.status == Some(200)) {
                *counts.entry(number.to_owned()).or_default() += 1;
            }
        }
        counts
    };
    // The third part fails, so nothing is completed.
    bench.proxy.set_rules(vec![slow_down("PUT").query("partNumber=3"), slow_down("POST").query("uploadId=")]);
    runtime.block_on(async {
        put_in_parts(&bench.gateway.client(), "k", &parts).await;
        wait_until("the other uploads have arrived", async || numbers(&bench).len() == 3).await;
    });
    bench.gateway.kill();
    bench.gateway = bench.setup.start();
    runtime.block_on(async {
        assert_here(&bench, "k", &all).await;
        assert_eq!(keys_at_origin(&bench).await, [""; 0]);
    });
    release_writes(&bench);
    flush(&bench);
    let expected: BTreeMap<String, usize> = (1..=4).map(|number| (number.to_string(), 1)).collect();
    assert_eq!(numbers(&bench), expected);
    // The origin has the object, but the gateway does not know.
    let parts = content(21);
    let all: Bytes = parts.concat().into();
    bench.proxy.set_rules(vec![Rule::new(Fault::CutBeforeAnswer).method("POST").query("uploadId=")]);
    runtime.block_on(async {
        put_in_parts(&bench.gateway.client(), "k", &parts).await;
        let has_it = async || {
            bench.origin_client().get(ORIGIN_BUCKET, &origin_key("k")).await.is_ok_and(|got| got.body == all)
        };
        wait_until("the origin has it", has_it).await;
        bench.proxy.set_rules(vec![slow_down("HEAD"), slow_down("PUT"), slow_down("POST")]);
    });
    bench.gateway.kill();
    release_writes(&bench);
    bench.proxy.clear_log();
    bench.gateway = bench.setup.start();
    flush(&bench);
    assert_eq!(numbers(&bench), BTreeMap::new(), "the queue was restored");
    runtime.block_on(async {
        assert_everywhere(&bench, "k", &all).await;
        assert_eq!(bench.origin_client().list_uploads(ORIGIN_BUCKET).await.expect("listed"), [""; 0]);
    });
}

#[test]
fn no_part_stays_at_the_origin_after_a_conflict() {
    let bench = write_back_bench();
    runtime().block_on(async {
        let parts = content(31);
        bench.proxy.set_rules(vec![slow_down("POST").query("uploadId=")]);
        put_in_parts(&bench.gateway.client(), "k", &parts).await;
        wait_until("the upload was begun", async || {
            !bench.origin_client().list_uploads(ORIGIN_BUCKET).await.expect("listed").is_empty()
        })
        .await;
        // A second later, because the origin's headers have whole seconds.
        mlgw_common::time::sleep(std::time::Duration::from_millis(1100)).await;
        bench
            .origin_client()
            .put(ORIGIN_BUCKET, &origin_key("k"), full_body(bytes(40, 50)))
            .await
            .expect("stored");
        release_writes(&bench);
        let (output, status) = bench.setup.command(&["bucket", "flush", BUCKET]);
        assert!(status == Some(1) && output.contains("\"k\""), "{output}");
        assert_at_origin(&bench, "k", &bytes(40, 50)).await;
        assert_here(&bench, "k", &parts.concat().into()).await;
        assert_eq!(bench.origin_client().list_uploads(ORIGIN_BUCKET).await.expect("listed"), [""; 0]);
    });
}

#[test]
fn conditions_of_a_complete_hold_against_concurrent_writes() {
    let bench = write_back_bench();
    runtime().block_on(async {
        let client = bench.gateway.client();
        let absent = ("if-none-match", "*".to_owned());
        let is = |etag: &str| ("if-match", format!("\"{etag}\""));
        let upload = upload_parts(&client, "k", &content(1)).await;
        assert_eq!(complete_if(&client, "k", &upload, is("x")).await, Err(404));
        complete_if(&client, "k", &upload, absent.clone()).await.expect("no object exists");
        let etag = client.head(BUCKET, "k").await.expect("here").etag();
        for is_flushed in [false, true] {
            let upload = upload_parts(&client, "k", &content(2)).await;
            assert_eq!(complete_if(&client, "k", &upload, absent.clone()).await, Err(412), "{is_flushed}");
            assert_eq!(complete_if(&client, "k", &upload, is("x")).await, Err(412), "{is_flushed}");
            client.abort(BUCKET, "k", &upload.0).await.expect("the upload still exists");
            flush(&bench);
        }
        let upload = upload_parts(&client, "k", &content(3)).await;
        complete_if(&client, "k", &upload, is(&etag)).await.expect("unchanged");
        assert_here(&bench, "k", &content(3).concat().into()).await;
        // Of several writers that require a key to be absent one succeeds, whether by upload or by PUT.
        for round in 0..4 {
            let key = format!("contested-{round}");
            let mut writers = Vec::new();
            for n in 0..6_u64 {
                let (client, key, absent) = (client.clone(), key.clone(), absent.clone());
                let id = 100 * (round + 1) + 10 * n;
                writers.push(tokio::spawn(async move {
                    if n % 2 == 0 {
                        let upload = upload_parts(&client, &key, &content(id)).await;
                        return complete_if(&client, &key, &upload, absent)
                            .await
                            .map(|()| content(id).concat());
                    }
                    let body = bytes(id, 3000);
                    let put = client
                        .call(Method::PUT, &object_path(&key), &[absent], full_body(body.clone()))
                        .await;
                    put.map(|_| body.to_vec())
                        .map_err(|failure: CallFailure| failure.status().expect("an answer"))
                }));
            }
            let mut winner = None;
            for writer in writers {
                match writer.await.expect("no panic") {
                    Ok(body) => assert!(winner.replace(body).is_none(), "two won {key}"),
                    Err(status) => assert_eq!(status, 412),
                }
            }
            flush(&bench);
            assert_everywhere(&bench, &key, &winner.expect("a winner").into()).await;
        }
    });
}

#[test]
fn an_upload_larger_than_the_dirty_limit_waits_until_it_is_the_only_one() {
    let bench = write_back_bench_with("bound.dirty_bytes_max", "1MiB");
    runtime().block_on(async {
        let (client, parts) = (bench.gateway.client(), content(1));
        bench.proxy.set_rules(vec![slow_down("PUT").times(3)]);
        super::put(&client, "small", 9, 1000).await;
        put_in_parts(&client, "large", &parts).await;
        assert_at_origin(&bench, "small", &bytes(9, 1000)).await;
        flush(&bench);
        assert_everywhere(&bench, "large", &parts.concat().into()).await;
    });
}

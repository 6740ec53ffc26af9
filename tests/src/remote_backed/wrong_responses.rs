//! Origins with wrong responses: no acknowledged write is lost, and no wrong byte is served. Correct
//! origins whose ETags are not MD5s, or whose listings have whole seconds, work.

use bytes::Bytes;
use http::Method;

use super::{LENGTHS, MIB, PREFIX, bytes, path, runtime, wait_until};
use crate::faulty_origin::{FaultOperation, FaultyOrigin, OriginNaming, RESPONSE_FAULTS, ResponseFault};
use crate::s3::{CallFailure, S3TestClient, full_body};
use crate::server::{ServerProcess, ServerSetup};

const READ_THROUGH: &str = "read";
const WRITE_THROUGH: &str = "through";
const WRITE_BACK: &str = "back";
/// Size of each part at the origin.
const PART: usize = 5 * MIB;

/// An origin, and a gateway with one bucket of each mode that is bound to it.
struct FaultyOriginBench {
    _room: tempfile::TempDir,
    origin: FaultyOrigin,
    setup: ServerSetup,
    gateway: ServerProcess,
}

impl FaultyOriginBench {
    fn new(manner: OriginNaming) -> Self {
        Self::with(manner, "auto")
    }

    fn with(manner: OriginNaming, etag: &str) -> Self {
        let room = tempfile::tempdir().expect("a directory");
        let origin = FaultyOrigin::start(manner);
        let setup = ServerSetup::new(room.path().join("gateway"));
        let setup = setup.with_upstream("far", origin.addr, "lake", "1s").with("upstream.far.etag", etag);
        let gateway = setup.start();
        for (bucket, mode) in
            [(READ_THROUGH, "read-through"), (WRITE_THROUGH, "write-through"), (WRITE_BACK, "write-back")]
        {
            // Every read contacts the origin.
            let bind = ["bucket", "bind", bucket, "--upstream", "far", "--prefix", PREFIX, "--ttl", "0s"];
            let (output, status) = setup.command(&[&bind[..], &["--mode", mode]].concat());
            assert_eq!(status, Some(0), "{output}");
        }
        Self { _room: room, origin, setup, gateway }
    }

    fn client(&self) -> S3TestClient {
        self.gateway.client()
    }

    fn flush(&self) -> (String, Option<i32>) {
        self.setup.command(&["bucket", "flush", WRITE_BACK])
    }

    fn assert_flushed(&self) {
        let (output, status) = self.flush();
        assert_eq!(status, Some(0), "{output}");
    }

    fn at_origin(&self, key: &str) -> Option<Bytes> {
        self.origin.get(&format!("{PREFIX}{key}"))
    }

    /// Puts an object in parts of [`PART`] bytes.
    async fn put_parts(&self, bucket: &str, key: &str, body: &Bytes) -> Result<(), CallFailure> {
        let (client, at) = (self.client(), path(bucket, key));
        let begun = client.call(Method::POST, &format!("{at}?uploads="), &[], full_body("")).await?.body;
        let begun = String::from_utf8_lossy(&begun).into_owned();
        let id = begun.split_once("<UploadId>").and_then(|(_, rest)| rest.split_once('<')).expect("an id").0;
        let mut document = "<CompleteMultipartUpload>".to_owned();
        for (n, part) in body.chunks(PART).enumerate() {
            let url = format!("{at}?partNumber={}&uploadId={id}", n + 1);
            let put = client.call(Method::PUT, &url, &[], full_body(Bytes::copy_from_slice(part))).await?;
            let (number, etag) = (n + 1, put.etag());
            document += &format!("<Part><PartNumber>{number}</PartNumber><ETag>\"{etag}\"</ETag></Part>");
        }
        document += "</CompleteMultipartUpload>";
        let url = format!("{at}?uploadId={id}");
        let done = client.call(Method::POST, &url, &[], full_body(document)).await?.body;
        let done = String::from_utf8_lossy(&done).into_owned();
        match done.contains("<Error>") {
            true => Err(CallFailure::NoResponse(done)),
            false => Ok(()),
        }
    }
}

fn faults_of(on: &[FaultOperation]) -> Vec<ResponseFault> {
    RESPONSE_FAULTS.iter().copied().filter(|lie| on.contains(&lie.operation())).collect()
}

#[test]
fn written_back_objects_stay_until_the_origin_really_has_them() {
    let bench = FaultyOriginBench::new(OriginNaming::Usual);
    runtime().block_on(async {
        let client = bench.client();
        for (n, lie) in faults_of(&[FaultOperation::Put]).into_iter().enumerate() {
            for (length, size) in [("short", 3000), ("long", 3 * MIB)] {
                let (key, body) = (format!("{n}-{length}"), bytes(n as u64, size));
                bench.origin.set_fault(Some(lie));
                client.put(WRITE_BACK, &key, full_body(body.clone())).await.expect("acknowledged");
                wait_until("the origin has sent false answers", async || bench.origin.fault_count() >= 2)
                    .await;
                assert_ne!(bench.at_origin(&key), Some(body.clone()), "{lie:?} does not store it");
                let found = client.get(WRITE_BACK, &key).await.expect("the object is stored locally");
                assert!(found.body == body, "{lie:?}: {} bytes", found.body.len());
                bench.origin.set_fault(None);
                bench.assert_flushed();
                assert_eq!(bench.at_origin(&key), Some(body.clone()), "{lie:?}");
                assert!(client.get(WRITE_BACK, &key).await.expect("read").body == body, "{lie:?}");
            }
        }
    });
}

#[test]
fn written_back_uploads_stay_until_the_origin_really_has_them() {
    let bench = FaultyOriginBench::new(OriginNaming::Usual);
    runtime().block_on(async {
        let client = bench.client();
        for (n, lie) in faults_of(&[FaultOperation::Part, FaultOperation::Complete]).into_iter().enumerate() {
            let (key, body) = (n.to_string(), bytes(n as u64, PART + 1000));
            bench.origin.set_fault(Some(lie));
            bench.put_parts(WRITE_BACK, &key, &body).await.expect("acknowledged");
            wait_until("the origin has sent false answers", async || bench.origin.fault_count() >= 2).await;
            assert!(
                client.get(WRITE_BACK, &key).await.expect("the object is stored locally").body == body,
                "{lie:?}"
            );
            bench.origin.set_fault(None);
            bench.assert_flushed();
            assert_eq!(bench.at_origin(&key), Some(body.clone()), "{lie:?}");
        }
        assert_eq!(bench.origin.uploads(), [], "no upload is left at the origin");
    });
}

#[test]
fn deleted_objects_stay_deleted_until_the_origin_has_deleted_them() {
    let bench = FaultyOriginBench::new(OriginNaming::Usual);
    runtime().block_on(async {
        let client = bench.client();
        for (n, lie) in faults_of(&[FaultOperation::Delete]).into_iter().enumerate() {
            let key = n.to_string();
            bench.origin.put(&format!("{PREFIX}{key}"), bytes(1, 100));
            // The read makes the object known here, whatever its time.
            client.get(WRITE_BACK, &key).await.expect("read");
            bench.origin.set_fault(Some(lie));
            client.delete(WRITE_BACK, &key).await.expect("acknowledged");
            let through = client.delete(WRITE_THROUGH, &key).await;
            assert!(
                matches!(&through, Err(CallFailure::Refused { status, .. }) if status.as_u16() == 503),
                "{through:?}"
            );
            wait_until("the origin has sent false answers", async || bench.origin.fault_count() >= 3).await;
            assert!(client.get(WRITE_BACK, &key).await.expect_err("gone").is_not_found(), "{lie:?}");
            bench.origin.set_fault(None);
            bench.assert_flushed();
            assert_eq!(bench.at_origin(&key), None, "{lie:?}");
        }
    });
}

#[test]
fn written_through_objects_are_acknowledged_only_if_the_origin_has_them() {
    let bench = FaultyOriginBench::new(OriginNaming::Usual);
    runtime().block_on(async {
        let client = bench.client();
        for (n, lie) in faults_of(&[FaultOperation::Put, FaultOperation::Part, FaultOperation::Complete])
            .into_iter()
            .enumerate()
        {
            let (key, body) = (n.to_string(), bytes(n as u64, PART + 1000));
            bench.origin.set_fault(Some(lie));
            let failed = match lie.operation() {
                FaultOperation::Put => {
                    client.put(WRITE_THROUGH, &key, full_body(body.clone())).await.map(drop)
                }
                _ => bench.put_parts(WRITE_THROUGH, &key, &body).await,
            };
            let fault_count = bench.origin.fault_count();
            bench.origin.set_fault(None);
            // Half of a multipart object has an ETag that looks correct. Only a later read can detect it.
            if lie == ResponseFault::StoresHalf(FaultOperation::Complete) {
                continue;
            }
            assert!(failed.is_err() && fault_count > 0, "{lie:?}: {failed:?}");
            if let Err(CallFailure::Refused { status, body }) = failed {
                assert_eq!(status.as_u16(), 503, "{lie:?}: {body}");
            }
        }
    });
}

#[test]
fn no_wrong_byte_of_an_object_whose_md5_is_known_is_served() {
    let bench = FaultyOriginBench::new(OriginNaming::Usual);
    runtime().block_on(async {
        let client = bench.client();
        let sizes = [("small", 300_000), ("block", 5 * MIB), ("large", 20 * MIB)];
        for lie in faults_of(&[FaultOperation::Get]) {
            for (n, (size, length)) in sizes.into_iter().enumerate() {
                if lie == ResponseFault::SlowBody && size != "small" {
                    continue;
                }
                for checksums in [false, true] {
                    let (key, body) = (format!("{lie:?}-{size}-{checksums}"), bytes(n as u64, length));
                    bench.origin.put(&format!("{PREFIX}{key}"), body.clone());
                    bench.origin.set_fault(Some(lie));
                    let headers: &[_] =
                        if checksums { &[("x-amz-checksum-mode", "ENABLED".to_owned())] } else { &[] };
                    let found =
                        client.call(Method::GET, &path(READ_THROUGH, &key), headers, full_body("")).await;
                    match found {
                        Ok(found) => assert!(found.body == body, "{lie:?} of {size}: wrong bytes"),
                        Err(CallFailure::Refused { status, body }) => {
                            assert_eq!(status.as_u16(), 503, "{lie:?} of {size}: {body}");
                        }
                        Err(CallFailure::NoResponse(_)) => {}
                    }
                    assert!(bench.origin.fault_count() > 0, "{lie:?} of {size}");
                    bench.origin.set_fault(None);
                    let found = client.get(READ_THROUGH, &key).await;
                    let found = found.unwrap_or_else(|why| panic!("{lie:?} of {size}: {why:?}"));
                    assert!(found.body == body, "{lie:?} of {size}: wrong bytes stay");
                }
            }
        }
    });
}

#[test]
fn an_error_names_the_fault_of_the_origin() {
    let bench = FaultyOriginBench::new(OriginNaming::Usual);
    runtime().block_on(async {
        let client = bench.client();
        bench.origin.put(&format!("{PREFIX}k"), bytes(1, 3000));
        for (lie, says) in [
            (ResponseFault::ReadNoEtag, "no ETag"),
            (ResponseFault::ReadNoLength, "Content-Length"),
            (ResponseFault::Huge, "50 TiB"),
            (ResponseFault::Flip, "upstream.far.etag = &quot;opaque&quot;"),
        ] {
            bench.origin.set_fault(Some(lie));
            let refused = client.get(READ_THROUGH, "k").await;
            let Err(CallFailure::Refused { status, body }) = &refused else { panic!("{lie:?}: {refused:?}") };
            assert_eq!(status.as_u16(), 503, "{lie:?}");
            let body = body.replace("\\\"", "&quot;").replace('"', "&quot;");
            assert!(body.contains(says), "{lie:?}: {body}");
        }
    });
}

#[test]
fn an_unexpected_length_is_an_error_even_if_the_etag_is_no_md5() {
    let bench = FaultyOriginBench::new(OriginNaming::Versions);
    runtime().block_on(async {
        let client = bench.client();
        for (n, size) in [300_000, 20 * MIB].into_iter().enumerate() {
            let (key, body) = (n.to_string(), bytes(3, size));
            bench.origin.put(&format!("{PREFIX}{key}"), body.clone());
            client.head(READ_THROUGH, &key).await.expect("known");
            for lie in [
                ResponseFault::Half,
                ResponseFault::Longer,
                ResponseFault::ErrorAsObject,
                ResponseFault::Compressed,
            ] {
                bench.origin.set_fault(Some(lie));
                if let Ok(found) = client.get(READ_THROUGH, &key).await {
                    assert!(found.body == body, "{lie:?}: {} bytes", found.body.len());
                }
                bench.origin.set_fault(None);
                assert!(client.get(READ_THROUGH, &key).await.expect("read").body == body, "{lie:?}");
            }
        }
    });
}

#[test]
fn a_length_that_the_origin_corrects_is_no_longer_used() {
    let bench = FaultyOriginBench::new(OriginNaming::Versions);
    runtime().block_on(async {
        let client = bench.client();
        for key in ["1", "2", "3"] {
            let body = bytes(4, 20 * MIB);
            bench.origin.put(&format!("{PREFIX}{key}"), body.clone());
            bench.origin.set_fault(Some(ResponseFault::LongTotal));
            assert!(client.get(READ_THROUGH, key).await.is_err(), "the body is shorter than its length");
            bench.origin.set_fault(None);
            assert!(client.get(READ_THROUGH, key).await.expect("read").body == body, "{key}");
        }
    });
}

#[test]
fn an_html_page_of_a_proxy_is_not_an_empty_listing() {
    let bench = FaultyOriginBench::new(OriginNaming::Usual);
    runtime().block_on(async {
        bench.origin.put(&format!("{PREFIX}k"), bytes(1, 10));
        for lie in faults_of(&[FaultOperation::List]) {
            bench.origin.set_fault(Some(lie));
            let listed = bench.client().list(READ_THROUGH, 10).await;
            assert!(
                matches!(&listed, Err(CallFailure::Refused { status, .. }) if status.as_u16() == 503),
                "{listed:?}"
            );
            bench.origin.set_fault(None);
            assert_eq!(bench.client().list(READ_THROUGH, 10).await.expect("listed").len(), 1);
        }
    });
}

#[test]
fn a_flush_ends_and_names_writes_that_the_origin_does_not_confirm() {
    let bench = FaultyOriginBench::new(OriginNaming::RandomHex);
    runtime().block_on(async {
        let body = bytes(1, 2000);
        bench.client().put(WRITE_BACK, "doubtful", full_body(body.clone())).await.expect("acknowledged");
        let (output, status) = bench.flush();
        assert_eq!(status, Some(1), "{output}");
        assert!(output.contains("doubtful") && output.contains("upstream.far.etag"), "{output}");
        let found = bench.client().get(WRITE_BACK, "doubtful").await.expect("the object is stored locally");
        assert!(found.body == body);
    });
}

#[test]
fn a_correct_origin_works_with_every_kind_of_etags_and_times() {
    for (manner, etag) in [
        (OriginNaming::Usual, "auto"),
        (OriginNaming::Usual, "opaque"),
        (OriginNaming::Kms, "auto"),
        (OriginNaming::RandomHex, "opaque"),
        (OriginNaming::Versions, "auto"),
        (OriginNaming::WholeSeconds, "auto"),
    ] {
        let bench = FaultyOriginBench::with(manner, etag);
        runtime().block_on(async {
            let client = bench.client();
            for (n, length) in LENGTHS.into_iter().enumerate() {
                for bucket in [WRITE_BACK, WRITE_THROUGH] {
                    let key = format!("{bucket}-{n}");
                    for version in [1, 2] {
                        let body = bytes(version, length);
                        client.put(bucket, &key, full_body(body.clone())).await.expect("acknowledged");
                        if bucket == WRITE_BACK {
                            bench.assert_flushed();
                        }
                        assert_eq!(bench.at_origin(&key), Some(body.clone()), "{manner:?} {key}");
                        for reader in [bucket, READ_THROUGH] {
                            let found = client.get(reader, &key).await.expect("read");
                            assert!(found.body == body, "{manner:?} {key} by {reader}");
                        }
                    }
                }
            }
            for bucket in [WRITE_BACK, WRITE_THROUGH] {
                let (key, body) = (format!("{bucket}-parts"), bytes(5, 2 * PART + 7));
                bench.put_parts(bucket, &key, &body).await.expect("acknowledged");
                if bucket == WRITE_BACK {
                    bench.assert_flushed();
                }
                assert_eq!(bench.at_origin(&key), Some(body.clone()), "{manner:?} {key}");
                assert!(client.get(READ_THROUGH, &key).await.expect("read").body == body, "{manner:?} {key}");
                client.delete(bucket, &key).await.expect("acknowledged");
            }
            bench.assert_flushed();
            assert_eq!((bench.at_origin("back-parts"), bench.at_origin("through-parts")), (None, None));
        });
    }
}

#[test]
fn an_object_read_before_is_no_conflict_if_times_have_whole_seconds() {
    let bench = FaultyOriginBench::new(OriginNaming::WholeSeconds);
    runtime().block_on(async {
        let client = bench.client();
        for n in 0..20 {
            let key = n.to_string();
            bench.origin.put(&format!("{PREFIX}{key}"), bytes(1, 100));
            client.get(WRITE_BACK, &key).await.expect("read");
            match n % 2 {
                0 => {
                    drop(client.put(WRITE_BACK, &key, full_body(bytes(2, 100))).await.expect("acknowledged"))
                }
                _ => client.delete(WRITE_BACK, &key).await.expect("acknowledged"),
            }
            bench.assert_flushed();
            let expected = (n % 2 == 0).then(|| bytes(2, 100));
            assert_eq!(bench.at_origin(&key), expected, "{key}");
        }
    });
}

#[test]
fn a_cold_object_is_fetched_once_and_by_one_request_if_its_checksum_is_requested() {
    let bench = FaultyOriginBench::new(OriginNaming::Versions);
    runtime().block_on(async {
        let client = bench.client();
        for length in [1, 9 * MIB, 20 * MIB, 40 * MIB + 1] {
            for checksums in [false, true] {
                let (key, body) = (format!("{length}-{checksums}"), bytes(4, length));
                bench.origin.put(&format!("{PREFIX}{key}"), body.clone());
                bench.origin.take_log();
                let headers: &[_] =
                    if checksums { &[("x-amz-checksum-mode", "ENABLED".to_owned())] } else { &[] };
                let found = client
                    .call(Method::GET, &path(READ_THROUGH, &key), headers, full_body(""))
                    .await
                    .expect("read");
                assert!(found.body == body, "{key}");
                let (log, sent) = bench.origin.take_log();
                assert_eq!(sent, length as u64, "{key}: {log:?}");
                let expected = if checksums { 1 } else { length.div_ceil(8 * MIB) };
                assert_eq!(log.len(), expected, "{key}: {log:?}");
                // All of it is kept as soon as it is on the disk.
                wait_until("the object is kept", async || {
                    let again = client.get(READ_THROUGH, &key).await.expect("read");
                    assert!(again.body == body, "{key}");
                    bench.origin.take_log().1 == 0
                })
                .await;
            }
        }
    });
}

#[test]
fn an_upload_of_unknown_id_is_found_and_aborted_and_no_other() {
    let mut bench = FaultyOriginBench::new(OriginNaming::Usual);
    let (before, used) = (format!("{PREFIX}k"), format!("{PREFIX}other"));
    let theirs = [bench.origin.begin_upload(&before), bench.origin.begin_upload(&used)];
    let body = bytes(1, PART + 1000);
    // Every response with an upload id is lost, and then the server is killed.
    bench.origin.set_fault(Some(ResponseFault::CreateUploadLost));
    runtime().block_on(async {
        bench.put_parts(WRITE_BACK, "k", &body).await.expect("acknowledged");
        wait_until("uploads are begun", async || bench.origin.fault_count() >= 2).await;
    });
    bench.gateway.kill();
    bench.gateway = bench.setup.start();
    bench.origin.set_fault(None);
    bench.assert_flushed();
    assert_eq!(bench.at_origin("k"), Some(body));
    let mut left: Vec<String> = bench.origin.uploads().into_iter().map(|(_, id)| id).collect();
    left.sort();
    let mut expected = theirs.to_vec();
    expected.sort();
    assert_eq!(left, expected, "foreign uploads stay");
}

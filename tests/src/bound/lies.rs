//! Origins with wrong responses: no acknowledged write is lost, and no wrong byte is served. Correct
//! origins whose ETags are not MD5s, or whose listings have whole seconds, work.

use bytes::Bytes;
use http::Method;

use super::{LENGTHS, MIB, PREFIX, bytes, path, runtime, until};
use crate::lying::{LIES, Lie, LyingOrigin, Manner, On};
use crate::s3::{Client, Failure, whole};
use crate::server::{Server, Setup};

const READ: &str = "read";
const THROUGH: &str = "through";
const BACK: &str = "back";
/// Size of each part at the origin.
const PART: usize = 5 * MIB;

/// An origin, and a gateway with one bucket of each mode that is bound to it.
struct Bench {
    _room: tempfile::TempDir,
    origin: LyingOrigin,
    setup: Setup,
    gateway: Server,
}

impl Bench {
    fn new(manner: Manner) -> Self {
        Self::with(manner, "auto")
    }

    fn with(manner: Manner, etag: &str) -> Self {
        let room = tempfile::tempdir().expect("a directory");
        let origin = LyingOrigin::start(manner);
        let setup = Setup::new(room.path().join("gateway"));
        let setup = setup.with_upstream("far", origin.addr, "lake", "1s").with("upstream.far.etag", etag);
        let gateway = setup.start();
        for (bucket, mode) in [(READ, "read-through"), (THROUGH, "write-through"), (BACK, "write-back")] {
            // Every read contacts the origin.
            let bind = ["bucket", "bind", bucket, "--upstream", "far", "--prefix", PREFIX, "--ttl", "0s"];
            let (said, status) = setup.command(&[&bind[..], &["--mode", mode]].concat());
            assert_eq!(status, Some(0), "{said}");
        }
        Self { _room: room, origin, setup, gateway }
    }

    fn client(&self) -> Client {
        self.gateway.client()
    }

    fn flush(&self) -> (String, Option<i32>) {
        self.setup.command(&["bucket", "flush", BACK])
    }

    fn is_clean(&self) {
        let (said, status) = self.flush();
        assert_eq!(status, Some(0), "{said}");
    }

    fn there(&self, key: &str) -> Option<Bytes> {
        self.origin.get(&format!("{PREFIX}{key}"))
    }

    /// Puts an object in parts of [`PART`] bytes.
    async fn put_parts(&self, bucket: &str, key: &str, body: &Bytes) -> Result<(), Failure> {
        let (client, at) = (self.client(), path(bucket, key));
        let begun = client.call(Method::POST, &format!("{at}?uploads="), &[], whole("")).await?.body;
        let begun = String::from_utf8_lossy(&begun).into_owned();
        let id = begun.split_once("<UploadId>").and_then(|(_, rest)| rest.split_once('<')).expect("an id").0;
        let mut document = "<CompleteMultipartUpload>".to_owned();
        for (n, part) in body.chunks(PART).enumerate() {
            let url = format!("{at}?partNumber={}&uploadId={id}", n + 1);
            let put = client.call(Method::PUT, &url, &[], whole(Bytes::copy_from_slice(part))).await?;
            let (number, etag) = (n + 1, put.etag());
            document += &format!("<Part><PartNumber>{number}</PartNumber><ETag>\"{etag}\"</ETag></Part>");
        }
        document += "</CompleteMultipartUpload>";
        let url = format!("{at}?uploadId={id}");
        let done = client.call(Method::POST, &url, &[], whole(document)).await?.body;
        let done = String::from_utf8_lossy(&done).into_owned();
        match done.contains("<Error>") {
            true => Err(Failure::Lost(done)),
            false => Ok(()),
        }
    }
}

fn lies(on: &[On]) -> Vec<Lie> {
    LIES.iter().copied().filter(|lie| on.contains(&lie.on())).collect()
}

#[test]
fn written_back_objects_stay_until_the_origin_really_has_them() {
    let bench = Bench::new(Manner::Usual);
    runtime().block_on(async {
        let client = bench.client();
        for (n, lie) in lies(&[On::Put]).into_iter().enumerate() {
            for (length, size) in [("short", 3000), ("long", 3 * MIB)] {
                let (key, body) = (format!("{n}-{length}"), bytes(n as u64, size));
                bench.origin.lie(Some(lie));
                client.put(BACK, &key, whole(body.clone())).await.expect("acknowledged");
                until("it lies", async || bench.origin.lies_told() >= 2).await;
                assert_ne!(bench.there(&key), Some(body.clone()), "{lie:?} does not store it");
                let found = client.get(BACK, &key).await.expect("it is here");
                assert!(found.body == body, "{lie:?}: {} bytes", found.body.len());
                bench.origin.lie(None);
                bench.is_clean();
                assert_eq!(bench.there(&key), Some(body.clone()), "{lie:?}");
                assert!(client.get(BACK, &key).await.expect("read").body == body, "{lie:?}");
            }
        }
    });
}

#[test]
fn written_back_uploads_stay_until_the_origin_really_has_them() {
    let bench = Bench::new(Manner::Usual);
    runtime().block_on(async {
        let client = bench.client();
        for (n, lie) in lies(&[On::Part, On::Complete]).into_iter().enumerate() {
            let (key, body) = (n.to_string(), bytes(n as u64, PART + 1000));
            bench.origin.lie(Some(lie));
            bench.put_parts(BACK, &key, &body).await.expect("acknowledged");
            until("it lies", async || bench.origin.lies_told() >= 2).await;
            assert!(client.get(BACK, &key).await.expect("it is here").body == body, "{lie:?}");
            bench.origin.lie(None);
            bench.is_clean();
            assert_eq!(bench.there(&key), Some(body.clone()), "{lie:?}");
        }
        assert_eq!(bench.origin.uploads(), [], "none is left there");
    });
}

#[test]
fn deleted_objects_stay_deleted_until_the_origin_has_deleted_them() {
    let bench = Bench::new(Manner::Usual);
    runtime().block_on(async {
        let client = bench.client();
        for (n, lie) in lies(&[On::Delete]).into_iter().enumerate() {
            let key = n.to_string();
            bench.origin.put(&format!("{PREFIX}{key}"), bytes(1, 100));
            // The read makes the object known here, whatever its time.
            client.get(BACK, &key).await.expect("read");
            bench.origin.lie(Some(lie));
            client.delete(BACK, &key).await.expect("acknowledged");
            let through = client.delete(THROUGH, &key).await;
            assert!(
                matches!(&through, Err(Failure::Refused { status, .. }) if status.as_u16() == 503),
                "{through:?}"
            );
            until("it lies", async || bench.origin.lies_told() >= 3).await;
            assert!(client.get(BACK, &key).await.expect_err("gone").is_not_found(), "{lie:?}");
            bench.origin.lie(None);
            bench.is_clean();
            assert_eq!(bench.there(&key), None, "{lie:?}");
        }
    });
}

#[test]
fn written_through_objects_are_acknowledged_only_if_the_origin_has_them() {
    let bench = Bench::new(Manner::Usual);
    runtime().block_on(async {
        let client = bench.client();
        for (n, lie) in lies(&[On::Put, On::Part, On::Complete]).into_iter().enumerate() {
            let (key, body) = (n.to_string(), bytes(n as u64, PART + 1000));
            bench.origin.lie(Some(lie));
            let failed = match lie.on() {
                On::Put => client.put(THROUGH, &key, whole(body.clone())).await.map(drop),
                _ => bench.put_parts(THROUGH, &key, &body).await,
            };
            let told = bench.origin.lies_told();
            bench.origin.lie(None);
            // Half of a multipart object has an ETag that looks correct. Only a later read can detect it.
            if lie == Lie::StoresHalf(On::Complete) {
                continue;
            }
            assert!(failed.is_err() && told > 0, "{lie:?}: {failed:?}");
            if let Err(Failure::Refused { status, body }) = failed {
                assert_eq!(status.as_u16(), 503, "{lie:?}: {body}");
            }
        }
    });
}

#[test]
fn no_wrong_byte_of_an_object_whose_md5_is_known_is_served() {
    let bench = Bench::new(Manner::Usual);
    runtime().block_on(async {
        let client = bench.client();
        let sizes = [("small", 300_000), ("block", 5 * MIB), ("large", 20 * MIB)];
        for lie in lies(&[On::Get]) {
            for (n, (size, length)) in sizes.into_iter().enumerate() {
                if lie == Lie::Drip && size != "small" {
                    continue;
                }
                for checksums in [false, true] {
                    let (key, body) = (format!("{lie:?}-{size}-{checksums}"), bytes(n as u64, length));
                    bench.origin.put(&format!("{PREFIX}{key}"), body.clone());
                    bench.origin.lie(Some(lie));
                    let asked: &[_] =
                        if checksums { &[("x-amz-checksum-mode", "ENABLED".to_owned())] } else { &[] };
                    let found = client.call(Method::GET, &path(READ, &key), asked, whole("")).await;
                    match found {
                        Ok(found) => assert!(found.body == body, "{lie:?} of {size}: wrong bytes"),
                        Err(Failure::Refused { status, body }) => {
                            assert_eq!(status.as_u16(), 503, "{lie:?} of {size}: {body}");
                        }
                        Err(Failure::Lost(_)) => {}
                    }
                    assert!(bench.origin.lies_told() > 0, "{lie:?} of {size}");
                    bench.origin.lie(None);
                    let found = client.get(READ, &key).await;
                    let found = found.unwrap_or_else(|why| panic!("{lie:?} of {size}: {why:?}"));
                    assert!(found.body == body, "{lie:?} of {size}: wrong bytes stay");
                }
            }
        }
    });
}

#[test]
fn an_error_names_the_fault_of_the_origin() {
    let bench = Bench::new(Manner::Usual);
    runtime().block_on(async {
        let client = bench.client();
        bench.origin.put(&format!("{PREFIX}k"), bytes(1, 3000));
        for (lie, says) in [
            (Lie::ReadNoEtag, "without ETag"),
            (Lie::ReadNoLength, "Content-Length"),
            (Lie::Huge, "50 TiB"),
            (Lie::Flip, "upstream.far.etag = &quot;opaque&quot;"),
        ] {
            bench.origin.lie(Some(lie));
            let refused = client.get(READ, "k").await;
            let Err(Failure::Refused { status, body }) = &refused else { panic!("{lie:?}: {refused:?}") };
            assert_eq!(status.as_u16(), 503, "{lie:?}");
            let body = body.replace("\\\"", "&quot;").replace('"', "&quot;");
            assert!(body.contains(says), "{lie:?}: {body}");
        }
    });
}

#[test]
fn an_unexpected_length_is_an_error_even_if_the_etag_is_no_md5() {
    let bench = Bench::new(Manner::Versions);
    runtime().block_on(async {
        let client = bench.client();
        for (n, size) in [300_000, 20 * MIB].into_iter().enumerate() {
            let (key, body) = (n.to_string(), bytes(3, size));
            bench.origin.put(&format!("{PREFIX}{key}"), body.clone());
            client.head(READ, &key).await.expect("known");
            for lie in [Lie::Half, Lie::More, Lie::ErrorAsObject, Lie::Packed] {
                bench.origin.lie(Some(lie));
                if let Ok(found) = client.get(READ, &key).await {
                    assert!(found.body == body, "{lie:?}: {} bytes", found.body.len());
                }
                bench.origin.lie(None);
                assert!(client.get(READ, &key).await.expect("read").body == body, "{lie:?}");
            }
        }
    });
}

#[test]
fn a_length_that_the_origin_corrects_is_no_longer_used() {
    let bench = Bench::new(Manner::Versions);
    runtime().block_on(async {
        let client = bench.client();
        for key in ["1", "2", "3"] {
            let body = bytes(4, 20 * MIB);
            bench.origin.put(&format!("{PREFIX}{key}"), body.clone());
            bench.origin.lie(Some(Lie::LongTotal));
            assert!(client.get(READ, key).await.is_err(), "it is shorter than its length");
            bench.origin.lie(None);
            assert!(client.get(READ, key).await.expect("read").body == body, "{key}");
        }
    });
}

#[test]
fn an_html_page_of_a_proxy_is_not_an_empty_listing() {
    let bench = Bench::new(Manner::Usual);
    runtime().block_on(async {
        bench.origin.put(&format!("{PREFIX}k"), bytes(1, 10));
        for lie in lies(&[On::List]) {
            bench.origin.lie(Some(lie));
            let listed = bench.client().list(READ, 10).await;
            assert!(
                matches!(&listed, Err(Failure::Refused { status, .. }) if status.as_u16() == 503),
                "{listed:?}"
            );
            bench.origin.lie(None);
            assert_eq!(bench.client().list(READ, 10).await.expect("listed").len(), 1);
        }
    });
}

#[test]
fn a_flush_ends_and_names_writes_that_the_origin_does_not_confirm() {
    let bench = Bench::new(Manner::RandomHex);
    runtime().block_on(async {
        let body = bytes(1, 2000);
        bench.client().put(BACK, "doubtful", whole(body.clone())).await.expect("acknowledged");
        let (said, status) = bench.flush();
        assert_eq!(status, Some(1), "{said}");
        assert!(said.contains("doubtful") && said.contains("upstream.far.etag"), "{said}");
        let found = bench.client().get(BACK, "doubtful").await.expect("it is here");
        assert!(found.body == body);
    });
}

#[test]
fn a_correct_origin_works_with_every_kind_of_etags_and_times() {
    for (manner, etag) in [
        (Manner::Usual, "auto"),
        (Manner::Usual, "opaque"),
        (Manner::Kms, "auto"),
        (Manner::RandomHex, "opaque"),
        (Manner::Versions, "auto"),
        (Manner::WholeSeconds, "auto"),
    ] {
        let bench = Bench::with(manner, etag);
        runtime().block_on(async {
            let client = bench.client();
            for (n, length) in LENGTHS.into_iter().enumerate() {
                for bucket in [BACK, THROUGH] {
                    let key = format!("{bucket}-{n}");
                    for version in [1, 2] {
                        let body = bytes(version, length);
                        client.put(bucket, &key, whole(body.clone())).await.expect("acknowledged");
                        if bucket == BACK {
                            bench.is_clean();
                        }
                        assert_eq!(bench.there(&key), Some(body.clone()), "{manner:?} {key}");
                        for reader in [bucket, READ] {
                            let found = client.get(reader, &key).await.expect("read");
                            assert!(found.body == body, "{manner:?} {key} by {reader}");
                        }
                    }
                }
            }
            for bucket in [BACK, THROUGH] {
                let (key, body) = (format!("{bucket}-parts"), bytes(5, 2 * PART + 7));
                bench.put_parts(bucket, &key, &body).await.expect("acknowledged");
                if bucket == BACK {
                    bench.is_clean();
                }
                assert_eq!(bench.there(&key), Some(body.clone()), "{manner:?} {key}");
                assert!(client.get(READ, &key).await.expect("read").body == body, "{manner:?} {key}");
                client.delete(bucket, &key).await.expect("acknowledged");
            }
            bench.is_clean();
            assert_eq!((bench.there("back-parts"), bench.there("through-parts")), (None, None));
        });
    }
}

#[test]
fn an_object_read_before_is_no_conflict_if_times_have_whole_seconds() {
    let bench = Bench::new(Manner::WholeSeconds);
    runtime().block_on(async {
        let client = bench.client();
        for n in 0..20 {
            let key = n.to_string();
            bench.origin.put(&format!("{PREFIX}{key}"), bytes(1, 100));
            client.get(BACK, &key).await.expect("read");
            match n % 2 {
                0 => drop(client.put(BACK, &key, whole(bytes(2, 100))).await.expect("acknowledged")),
                _ => client.delete(BACK, &key).await.expect("acknowledged"),
            }
            bench.is_clean();
            let expected = (n % 2 == 0).then(|| bytes(2, 100));
            assert_eq!(bench.there(&key), expected, "{key}");
        }
    });
}

#[test]
fn a_cold_object_is_fetched_once_and_by_one_request_if_its_checksum_is_requested() {
    let bench = Bench::new(Manner::Versions);
    runtime().block_on(async {
        let client = bench.client();
        for length in [1, 9 * MIB, 20 * MIB, 40 * MIB + 1] {
            for checksums in [false, true] {
                let (key, body) = (format!("{length}-{checksums}"), bytes(4, length));
                bench.origin.put(&format!("{PREFIX}{key}"), body.clone());
                bench.origin.take_log();
                let asked: &[_] =
                    if checksums { &[("x-amz-checksum-mode", "ENABLED".to_owned())] } else { &[] };
                let found =
                    client.call(Method::GET, &path(READ, &key), asked, whole("")).await.expect("read");
                assert!(found.body == body, "{key}");
                let (log, sent) = bench.origin.take_log();
                assert_eq!(sent, length as u64, "{key}: {log:?}");
                let expected = if checksums { 1 } else { length.div_ceil(8 * MIB) };
                assert_eq!(log.len(), expected, "{key}: {log:?}");
                // All of it is kept as soon as it is on the disk.
                until("it is kept", async || {
                    let again = client.get(READ, &key).await.expect("read");
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
    let mut bench = Bench::new(Manner::Usual);
    let (before, used) = (format!("{PREFIX}k"), format!("{PREFIX}other"));
    let theirs = [bench.origin.begin_upload(&before), bench.origin.begin_upload(&used)];
    let body = bytes(1, PART + 1000);
    // Every response with an upload id is lost, and then the server is killed.
    bench.origin.lie(Some(Lie::BeginLost));
    runtime().block_on(async {
        bench.put_parts(BACK, "k", &body).await.expect("acknowledged");
        until("uploads are begun", async || bench.origin.lies_told() >= 2).await;
    });
    bench.gateway.kill();
    bench.gateway = bench.setup.start();
    bench.origin.lie(None);
    bench.is_clean();
    assert_eq!(bench.there("k"), Some(body));
    let mut left: Vec<String> = bench.origin.uploads().into_iter().map(|(_, id)| id).collect();
    left.sort();
    let mut expected = theirs.to_vec();
    expected.sort();
    assert_eq!(left, expected, "what others began stays");
}

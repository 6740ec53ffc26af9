//! Quotas of buckets and of access keys: exact under concurrent writes, and unchanged by a crash.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use http::Method;
use serde_json::Value;

use super::{BUCKET, runtime};
use crate::raw::RawExchange;
use crate::s3::{CallFailure, S3TestClient, full_body};
use crate::server::{ServerProcess, ServerSetup};

const MIB: usize = 1 << 20;
const KIB: usize = 1 << 10;

/// A server with a bucket, and the commands of `mlgw` about it.
struct QuotaBench {
    dir: tempfile::TempDir,
    setup: ServerSetup,
    server: ServerProcess,
}

impl QuotaBench {
    fn new() -> Self {
        let room = tempfile::tempdir().expect("a directory");
        let setup = ServerSetup::new(room.path().join("mlgw-data"));
        let server = setup.start();
        runtime().block_on(server.client().create_bucket(BUCKET)).expect("made");
        Self { dir: room, setup, server }
    }

    fn client(&self) -> S3TestClient {
        self.server.client()
    }

    fn run(&self, words: &[&str]) -> Value {
        let (output, status) = self.setup.command(&[&["--output", "json", "--yes"], words].concat());
        assert_eq!(status, Some(0), "{words:?}: {output}");
        serde_json::from_str(&output).unwrap_or_else(|error| panic!("{words:?}: {error}: {output}"))
    }

    /// Sets the quota of the bucket with the options of its command.
    fn set_quota(&self, words: &[&str]) -> Value {
        self.run(&[&["bucket", "quota", BUCKET], words].concat())
    }

    /// Creates an access key that may write, with a quota.
    fn key(&self, words: &[&str]) -> (String, S3TestClient) {
        let made = self.run(&[&["access", "key", "create", "--role", "write"], words].concat());
        let (id, secret) = (&made["key"]["access_key"], &made["secret_access_key"]);
        let (id, secret) = (id.as_str().expect("an id"), secret.as_str().expect("a secret"));
        (id.to_owned(), S3TestClient::new(self.server.s3, id, secret))
    }

    /// Returns the bytes and objects that count toward the bucket's quota.
    fn used(&self) -> (u64, u64) {
        usage_of(&self.run(&["bucket", "show", BUCKET]))
    }

    fn used_by(&self, access_key: &str) -> (u64, u64) {
        usage_of(&self.run(&["access", "key", "show", access_key]))
    }

    fn metric(&self, name: &str) -> Option<u64> {
        let (output, status) = self.setup.command(&["status", "--metrics"]);
        assert_eq!(status, Some(0), "{output}");
        let line = output.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.map(|value| value.trim().parse().expect("a number"))
    }

    fn crash(&mut self) {
        self.server.kill();
        self.server = self.setup.start();
    }

    /// Stops the server and checks the whole store.
    fn stop(self) {
        self.server.stop();
        let data_dir = self.setup.data_dir.to_str().expect("a path").to_owned();
        let (output, status) = self.setup.command(&["store", "check", &data_dir]);
        assert_eq!(status, Some(0), "{output}");
        drop(self.dir);
    }
}

fn usage_of(output: &Value) -> (u64, u64) {
    let figure = |name: &str| output["used"][name].as_u64().unwrap_or_else(|| panic!("{name} in {output}"));
    (figure("bytes"), figure("objects"))
}

fn body(bytes: usize) -> crate::s3::ClientBody {
    full_body(vec![7; bytes])
}

/// Asserts that a quota refused the request, with `words` in the message.
fn assert_quota_refused<T: std::fmt::Debug>(outcome: Result<T, CallFailure>, words: &str) {
    match outcome {
        Err(CallFailure::Refused { status, body }) => {
            assert_eq!(status, 403, "{body}");
            assert!(body.contains("<Code>QuotaExceeded</Code>") && body.contains(words), "{body}");
        }
        other => panic!("{other:?} for {words}"),
    }
}

/// Acknowledged objects of the writers: sizes by key.
type Acknowledged = Arc<Mutex<BTreeMap<String, usize>>>;

/// Puts, replaces and deletes keys of its own. Returns the numbers of acknowledged and of refused writes.
async fn write(client: S3TestClient, number: usize, acknowledged: Acknowledged) -> (usize, usize) {
    let (mut stored, mut over) = (0, 0);
    for step in 0..30 {
        let key = format!("{number}/{}", step % 4);
        let bytes = 1 + (number * 7919 + step * 104_729) % (64 * KIB);
        if step % 7 == 6 {
            client.delete(BUCKET, &key).await.expect("deletes are never refused");
            acknowledged.lock().expect("lock is not poisoned").remove(&key);
            continue;
        }
        match client.put(BUCKET, &key, body(bytes)).await {
            Ok(_) => {
                stored += 1;
                acknowledged.lock().expect("lock is not poisoned").insert(key, bytes);
            }
            outcome => {
                assert_quota_refused(outcome, "quota");
                over += 1;
            }
        }
    }
    (stored, over)
}

#[test]
fn concurrent_writes_fill_a_quota_and_never_exceed_it() {
    let mut bench = QuotaBench::new();
    let limit = 1000 * KIB as u64;
    bench.set_quota(&["--bytes", "1000KiB", "--objects", "60"]);
    let (access_key, of_key) = bench.key(&["--quota-bytes", "400KiB"]);
    let acknowledged = Acknowledged::default();
    let (mut stored, mut over) = (0, 0);
    let done = Arc::new(AtomicBool::new(false));
    runtime().block_on(async {
        let writers: Vec<_> = (0..32)
            .map(|number| {
                let client = if number % 2 == 0 { bench.client() } else { of_key.clone() };
                tokio::spawn(write(client, number, acknowledged.clone()))
            })
            .collect();
        let (setup, stop, key) = (bench.setup.clone(), done.clone(), access_key.clone());
        let watcher = tokio::task::spawn_blocking(move || {
            let mut looks = 0;
            while !stop.load(Relaxed) || looks == 0 {
                for (words, limit) in [
                    (["bucket", "show", BUCKET].as_slice(), limit),
                    (&["access", "key", "show", &key], 400 << 10),
                ] {
                    let (output, status) = setup.command(&[&["--output", "json"], words].concat());
                    assert_eq!(status, Some(0), "{output}");
                    let (bytes, objects) = usage_of(&serde_json::from_str(&output).expect("JSON"));
                    assert!(bytes <= limit && objects <= 60, "{output}");
                }
                looks += 1;
            }
        });
        for writer in writers {
            let (ok, no) = writer.await.expect("no panic");
            (stored, over) = (stored + ok, over + no);
        }
        done.store(true, Relaxed);
        watcher.await.expect("never over");
    });
    assert!(stored > 60 && over > 60, "{stored} stored, {over} refused");
    let there = std::mem::take(&mut *acknowledged.lock().expect("lock is not poisoned"));
    let sum: usize = there.values().sum();
    assert_eq!(bench.used(), (sum as u64, there.len() as u64), "usage counts acknowledged writes only");
    let of_odd = there
        .iter()
        .filter(|(key, _)| key.split('/').next().is_some_and(|n| n.parse::<u32>().unwrap_or(0) % 2 == 1));
    let of_odd: Vec<usize> = of_odd.map(|(_, bytes)| *bytes).collect();
    let expected = (of_odd.iter().sum::<usize>() as u64, of_odd.len() as u64);
    assert_eq!(bench.used_by(&access_key), expected);
    bench.crash();
    assert_eq!((bench.used(), bench.used_by(&access_key)), ((sum as u64, there.len() as u64), expected));
    bench.stop();
}

#[test]
fn quotas_hold_after_a_crash_and_deletes_free_space() {
    let mut bench = QuotaBench::new();
    bench.set_quota(&["--bytes", "100KiB"]);
    let (access_key, of_key) = bench.key(&["--quota-objects", "1"]);
    let runtime = runtime();
    runtime.block_on(async {
        of_key.put(BUCKET, "own", body(10 * KIB)).await.expect("stored");
        assert_quota_refused(of_key.put(BUCKET, "second", body(1)).await, &access_key);
        of_key.put(BUCKET, "own", body(20 * KIB)).await.expect("one more object fits");
        bench.client().put(BUCKET, "a", body(80 * KIB)).await.expect("stored");
        assert_quota_refused(bench.client().put(BUCKET, "b", body(1)).await, "102400 bytes (100.0 KiB)");
        bench.client().put(BUCKET, "empty", body(0)).await.expect("no bytes");
    });
    bench.crash();
    let (client, of_key) = (bench.client(), bench.key(&[]).1);
    runtime.block_on(async {
        assert_quota_refused(client.put(BUCKET, "b", body(1)).await, "102400 bytes");
        assert_quota_refused(client.put(BUCKET, "a", body(80 * KIB + 1)).await, "102400 bytes");
        client.put(BUCKET, "a", body(80 * KIB)).await.expect("the size does not grow");
        client.delete(BUCKET, "a").await.expect("deleted");
        client.put(BUCKET, "b", body(80 * KIB)).await.expect("the quota has space again");
        // A client that replaces an object is charged for it.
        of_key.put(BUCKET, "own", body(20 * KIB)).await.expect("stored");
    });
    assert_eq!(bench.used_by(&access_key), (0, 0));
    // A quota below the current usage refuses writes that grow, and no others.
    let answer = bench.set_quota(&["--bytes", "1KiB"]);
    assert_eq!((&answer["quota"]["bytes"], &answer["quota"]["objects"]), (&Value::from(1024), &Value::Null));
    runtime.block_on(async {
        assert_quota_refused(client.put(BUCKET, "c", body(1)).await, "1024 bytes");
        client.put(BUCKET, "b", body(50 * KIB)).await.expect("the usage shrinks");
        client.delete(BUCKET, "own").await.expect("deleted");
    });
    assert_eq!(bench.metric("mlgw_bucket_quota_bytes{bucket=\"limits\"}"), Some(1024));
    assert_eq!(bench.metric("mlgw_bucket_quota_used_bytes{bucket=\"limits\"}"), Some(50 << 10));
    assert_eq!(bench.metric("mlgw_quota_refused_total{quota=\"bucket\"}"), Some(3));
    bench.set_quota(&["--bytes", "none"]);
    assert_eq!(bench.metric("mlgw_bucket_quota_bytes{bucket=\"limits\"}"), None);
    runtime.block_on(client.put(BUCKET, "c", body(MIB))).expect("stored");
    bench.stop();
}

#[test]
fn parts_count_until_completed_and_copies_count_as_objects() {
    let bench = QuotaBench::new();
    bench.set_quota(&["--bytes", "12MiB", "--objects", "2"]);
    let client = bench.client();
    let runtime = runtime();
    runtime.block_on(async {
        let upload = client.create_upload(BUCKET, "large").await.expect("begun");
        let put = |number, bytes| client.put_part(BUCKET, "large", &upload, number, body(bytes));
        let first = put(1, 6 * MIB).await.expect("stored");
        put(2, 6 * MIB).await.expect("stored");
        assert_quota_refused(put(3, 1).await, "12582912 bytes");
        assert_quota_refused(put(2, 6 * MIB + 1).await, "12582912 bytes");
        assert_quota_refused(client.put(BUCKET, "beside", body(1)).await, "12582912 bytes");
        let second = put(2, 5 * MIB).await.expect("the usage shrinks");
        client.complete(BUCKET, "large", &upload, &[(1, first), (2, second)]).await.expect("nothing grows");
    });
    assert_eq!(bench.used(), (11 << 20, 1));
    runtime.block_on(async {
        assert_quota_refused(client.copy(BUCKET, "large", "copy").await, "12582912 bytes");
        client.put(BUCKET, "small", body(KIB)).await.expect("stored");
        assert_quota_refused(client.copy(BUCKET, "small", "third").await, "2 objects");
        client.copy(BUCKET, "small", "large").await.expect("the usage shrinks");
    });
    assert_eq!(bench.used(), (2 << 10, 2));
    runtime.block_on(async {
        assert_quota_refused(client.create_upload(BUCKET, "third").await, "2 objects");
        client.delete(BUCKET, "small").await.expect("deleted");
        let upload = client.create_upload(BUCKET, "third").await.expect("begun");
        let etag = client.put_part(BUCKET, "third", &upload, 1, body(KIB)).await.expect("stored");
        client.put(BUCKET, "small", body(KIB)).await.expect("stored");
        let parts = [(1, etag)];
        assert_quota_refused(client.complete(BUCKET, "third", &upload, &parts).await, "2 objects");
        client.delete(BUCKET, "small").await.expect("deleted");
        client.complete(BUCKET, "third", &upload, &parts).await.expect("the upload still exists");
        let upload = client.create_upload(BUCKET, "large").await.expect("the upload replaces an object");
        client.put_part(BUCKET, "large", &upload, 1, body(11 * MIB)).await.expect("stored");
        client.abort(BUCKET, "large", &upload).await.expect("aborted");
    });
    assert_eq!(bench.used(), (2 << 10, 2));
    bench.stop();
}

#[test]
fn a_body_that_does_not_fit_is_refused_before_it_is_sent() {
    let bench = QuotaBench::new();
    bench.set_quota(&["--bytes", "1MiB"]);
    runtime().block_on(async {
        let client = bench.client();
        for path in [format!("/{BUCKET}/k"), format!("/{BUCKET}/other")] {
            let begun = RawExchange::begin(&client, bench.server.s3, Method::PUT, &path, 5 << 30).await;
            let mut exchange = begun.expect("sent");
            let answer = exchange.answer().await.expect("an answer");
            assert_eq!(answer.status, 403, "{answer:?}");
            let document = exchange.read_rest(&answer).await.expect("complete");
            let document = String::from_utf8_lossy(&document).into_owned();
            assert!(
                document.contains("<Limit>1048576</Limit>") && document.contains("<Used>0</Used>"),
                "{document}"
            );
        }
    });
    assert_eq!(bench.used(), (0, 0));
    bench.stop();
}

#[test]
fn commands_show_quotas_and_refuse_invalid_ones() {
    let bench = QuotaBench::new();
    bench.set_quota(&["--objects", "3"]);
    let command = |words: &[&str]| bench.setup.command(words);
    let (shown, status) = command(&["bucket", "quota", BUCKET]);
    assert!(status == Some(0) && shown.contains("0 of 3 objects (0%)"), "{shown}");
    assert!(command(&["bucket", "show", BUCKET]).0.contains("0 of 3 objects"));
    let (access_key, _) = bench.key(&["--quota-bytes", "10GiB"]);
    let (shown, _) = command(&["access", "key", "show", &access_key]);
    assert!(shown.contains("0 B of 10.0 GiB (0%)"), "{shown}");
    let answer =
        bench.run(&["access", "key", "update", &access_key, "--quota-bytes", "none", "--quota-objects", "5"]);
    assert_eq!((&answer["quota"]["bytes"], &answer["quota"]["objects"]), (&Value::Null, &Value::from(5)));
    for (words, what) in [
        (&["bucket", "quota", BUCKET, "--bytes", "much"][..], "expected a size"),
        (&["bucket", "quota", BUCKET, "--objects", "1.5"], "expected a whole number"),
        (&["bucket", "quota", "none-such", "--objects", "1"], "does not exist"),
        (&["access", "key", "update", crate::server::ACCESS_KEY, "--quota-bytes", "1"], "root"),
    ] {
        let (output, status) = command(words);
        assert!(status != Some(0) && output.contains(what), "{words:?}: {status:?} {output}");
    }
    bench.stop();
}

//! Repeated imports from several sources, also after a crash during the job.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::{DatasetBench, MIB, ORIGIN_BUCKET, OTHER_ORIGIN_BUCKET, id_of, runtime, wait_until};
use crate::proxy::{Fault, Rule};
use crate::s3::full_body;

const LOCAL_BUCKET: &str = "ours";

/// Reads every object of a bucket here, by key.
async fn read_all(bench: &DatasetBench, bucket: &str) -> BTreeMap<String, Bytes> {
    let mut found = BTreeMap::new();
    for listed in bench.client().list(bucket, 1000).await.expect("listed") {
        let body = bench.client().get(bucket, &listed.key).await.expect("read").body;
        found.insert(listed.key, body);
    }
    found
}

fn figures(job: &serde_json::Value) -> [u64; 3] {
    ["objects_done", "moved_objects", "deleted_objects"].map(|name| job[name].as_u64().expect("a number"))
}

#[test]
fn two_sources_are_imported_and_later_only_their_changes() {
    let bench = DatasetBench::new();
    let runtime = runtime();
    let mut expected = BTreeMap::new();
    runtime.block_on(async {
        bench.client().create_bucket(LOCAL_BUCKET).await.expect("made");
        for n in 0..30 {
            let length = [0, 100, 70_000, 3_000_000][n % 4];
            let bytes = bench.put(ORIGIN_BUCKET, &format!("set/k {n:02}+"), n as u64, length).await;
            expected.insert(format!("train/k {n:02}+"), bytes);
        }
        for n in 0..10 {
            let bytes = bench.put(OTHER_ORIGIN_BUCKET, &format!("v{n}"), 100 + n, 5000).await;
            expected.insert(format!("val/v{n}"), bytes);
        }
        bench.put(ORIGIN_BUCKET, "beside", 7, 100).await;
    });
    let sources = ["--source", "far/set/:train/", "--source", "near:val/"];
    bench.run(&[&["dataset", "create", "all", "--bucket", LOCAL_BUCKET][..], &sources].concat());
    let sync = |words: &[&str]| {
        figures(&bench.run(&[&["dataset", "sync", "all", "--wait", "--quiet"], words].concat()))
    };
    assert_eq!(sync(&[]), [40, 40, 0]);
    assert_eq!(runtime.block_on(read_all(&bench, LOCAL_BUCKET)), expected);
    assert_eq!(bench.run(&["dataset", "show", "all"])["readiness"], "ready");

    bench.take_requests("");
    assert_eq!(sync(&[]), [40, 0, 0], "all objects are local");
    assert!(
        bench.take_requests("").iter().all(|line| line.contains("list-type=2")),
        "the job lists and fetches nothing"
    );

    runtime.block_on(async {
        expected.insert("train/k 03+".into(), bench.put(ORIGIN_BUCKET, "set/k 03+", 500, 4000).await);
        expected.insert("val/new".into(), bench.put(OTHER_ORIGIN_BUCKET, "new", 501, 4000).await);
        bench.origin_client().delete(ORIGIN_BUCKET, "set/k 05+").await.expect("deleted");
        // Objects that a client wrote here are not imports.
        bench.client().put(LOCAL_BUCKET, "train/own", full_body("own")).await.expect("stored");
        expected.insert("train/own".into(), Bytes::from_static(b"own"));
    });
    assert_eq!(sync(&[]), [40, 2, 0]);
    assert_eq!(
        runtime.block_on(read_all(&bench, LOCAL_BUCKET)),
        expected,
        "nothing is deleted without a request"
    );
    expected.remove("train/k 05+");
    assert_eq!(sync(&["--delete"]), [40, 0, 1]);
    assert_eq!(runtime.block_on(read_all(&bench, LOCAL_BUCKET)), expected);
    assert_eq!(sync(&["--delete"]), [40, 0, 0]);
}

#[test]
fn metadata_and_tags_are_imported_with_an_object() {
    let bench = DatasetBench::new();
    runtime().block_on(async {
        bench.client().create_bucket(LOCAL_BUCKET).await.expect("made");
        let headers = [
            ("content-type", "image/png".to_owned()),
            ("x-amz-meta-number", "7".to_owned()),
            ("x-amz-tagging", "split=train&by=us".to_owned()),
        ];
        let path = format!("/{ORIGIN_BUCKET}/k");
        bench
            .origin_client()
            .call(http::Method::PUT, &path, &headers, full_body("abc"))
            .await
            .expect("stored");
    });
    bench.run(&["dataset", "create", "all", "--bucket", LOCAL_BUCKET, "--source", "far"]);
    bench.run(&["dataset", "sync", "all", "--wait", "--quiet"]);
    let found = runtime().block_on(bench.client().get(LOCAL_BUCKET, "k")).expect("read");
    assert_eq!(
        (found.header("content-type"), found.header("x-amz-meta-number")),
        (Some("image/png"), Some("7"))
    );
    assert_eq!(found.body, "abc");
    assert_eq!(found.header("x-amz-tagging-count"), Some("2"));
    let tags = runtime().block_on(async {
        let target = format!("/{LOCAL_BUCKET}/k?tagging=");
        bench.client().call(http::Method::GET, &target, &[], full_body("")).await.expect("an answer").body
    });
    let tags = String::from_utf8_lossy(&tags);
    assert!(tags.contains("<Key>split</Key><Value>train</Value>"), "{tags}");
}

#[test]
fn a_sync_resumes_after_a_kill_and_retries_a_failing_origin() {
    let mut bench = DatasetBench::new();
    let runtime = runtime();
    let mut expected = BTreeMap::new();
    runtime.block_on(async {
        bench.client().create_bucket(LOCAL_BUCKET).await.expect("made");
        for n in 0..60 {
            let key = format!("k{n:02}");
            expected.insert(key.clone(), bench.put(ORIGIN_BUCKET, &key, n, 200_000).await);
        }
        expected.insert("large".into(), bench.put(ORIGIN_BUCKET, "large", 99, 10 * MIB).await);
    });
    bench.run(&["dataset", "create", "all", "--bucket", LOCAL_BUCKET, "--source", "far"]);
    let stall = Fault::Stall { after: 1000, pause: std::time::Duration::from_secs(3600) };
    bench.proxy.set_rules(vec![Rule::new(stall).path("k30")]);
    let id = id_of(&bench.run(&["dataset", "sync", "all"]));
    wait_until("half of the job is done", || bench.job(id)["objects_done"] == 30);
    let cut = Rule::new(Fault::CutAnswer { after: 3_000_000 }).path("large").times(2);
    let busy = Rule::new(Fault::Status { status: 503, code: "SlowDown".into() }).times(3);
    bench.crash(vec![cut, busy]);
    let job = bench.run(&["job", "wait", &id.to_string(), "--quiet"]);
    assert_eq!((&job["state"], &job["starts"]), (&"done".into(), &2.into()), "{job}");
    assert_eq!((&job["objects_done"], &job["objects_total"]), (&61.into(), &61.into()), "{job}");
    assert_eq!(runtime.block_on(read_all(&bench, LOCAL_BUCKET)), expected);
    bench.proxy.set_rules(vec![]);
    let again = bench.run(&["dataset", "sync", "all", "--wait", "--quiet"]);
    assert_eq!(figures(&again), [61, 0, 0], "{again}");
}

#[test]
fn damaged_objects_are_not_imported() {
    let bench = DatasetBench::new();
    runtime().block_on(async {
        bench.client().create_bucket(LOCAL_BUCKET).await.expect("made");
        let headers = [("x-amz-checksum-crc32", "NSRBwg==".to_owned())];
        let path = format!("/{ORIGIN_BUCKET}/k");
        bench
            .origin_client()
            .call(http::Method::PUT, &path, &headers, full_body("abc"))
            .await
            .expect("stored");
    });
    bench.run(&["dataset", "create", "all", "--bucket", LOCAL_BUCKET, "--source", "far"]);
    bench.proxy.set_rules(vec![Rule::new(Fault::Corrupt { at: 1 }).path("/k")]);
    bench.assert_refused(&["dataset", "sync", "all", "--wait", "--quiet"], 1, "CRC32 checksum");
    assert!(runtime().block_on(bench.client().list(LOCAL_BUCKET, 10)).expect("listed").is_empty());
    bench.proxy.set_rules(vec![]);
    bench.run(&["dataset", "sync", "all", "--wait", "--quiet"]);
}

#[test]
fn a_sync_stops_at_the_quota_of_its_bucket_and_continues_with_more_room() {
    let bench = DatasetBench::new();
    let runtime = runtime();
    runtime.block_on(async {
        bench.client().create_bucket(LOCAL_BUCKET).await.expect("made");
        for n in 0..8 {
            bench.put(OTHER_ORIGIN_BUCKET, &format!("k{n}"), n, 100_000).await;
        }
    });
    bench.run(&["bucket", "quota", LOCAL_BUCKET, "--bytes", "450000"]);
    bench.run(&["dataset", "create", "all", "--bucket", LOCAL_BUCKET, "--source", "near"]);
    bench.assert_refused(&["dataset", "sync", "all", "--wait", "--quiet"], 1, "quota is 450000 bytes");
    let held = runtime.block_on(read_all(&bench, LOCAL_BUCKET));
    assert!(held.len() == 4, "{} objects", held.len());
    bench.run(&["bucket", "quota", LOCAL_BUCKET, "--bytes", "none"]);
    bench.run(&["dataset", "sync", "all", "--wait", "--quiet"]);
    assert_eq!(runtime.block_on(read_all(&bench, LOCAL_BUCKET)).len(), 8);
}

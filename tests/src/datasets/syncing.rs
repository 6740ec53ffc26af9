//! Repeated imports from several sources, also after a crash during the job.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::{Bench, MIB, POND, THERE, id_of, runtime, until};
use crate::proxy::{Fault, Rule};
use crate::s3::whole;

const OURS: &str = "ours";

/// Reads every object of a bucket here, by key.
async fn all(bench: &Bench, bucket: &str) -> BTreeMap<String, Bytes> {
    let mut found = BTreeMap::new();
    for listed in bench.here().list(bucket, 1000).await.expect("listed") {
        let body = bench.here().get(bucket, &listed.key).await.expect("read").body;
        found.insert(listed.key, body);
    }
    found
}

fn figures(job: &serde_json::Value) -> [u64; 3] {
    ["objects_done", "moved_objects", "deleted_objects"].map(|name| job[name].as_u64().expect("a number"))
}

#[test]
fn two_sources_are_imported_and_later_only_their_changes() {
    let bench = Bench::new();
    let runtime = runtime();
    let mut expected = BTreeMap::new();
    runtime.block_on(async {
        bench.here().create_bucket(OURS).await.expect("made");
        for n in 0..30 {
            let length = [0, 100, 70_000, 3_000_000][n % 4];
            let bytes = bench.put(THERE, &format!("set/k {n:02}+"), n as u64, length).await;
            expected.insert(format!("train/k {n:02}+"), bytes);
        }
        for n in 0..10 {
            let bytes = bench.put(POND, &format!("v{n}"), 100 + n, 5000).await;
            expected.insert(format!("val/v{n}"), bytes);
        }
        bench.put(THERE, "beside", 7, 100).await;
    });
    let sources = ["--source", "far/set/:train/", "--source", "near:val/"];
    bench.done(&[&["dataset", "create", "all", "--bucket", OURS][..], &sources].concat());
    let sync = |words: &[&str]| {
        figures(&bench.done(&[&["dataset", "sync", "all", "--wait", "--quiet"], words].concat()))
    };
    assert_eq!(sync(&[]), [40, 40, 0]);
    assert_eq!(runtime.block_on(all(&bench, OURS)), expected);
    assert_eq!(bench.done(&["dataset", "show", "all"])["readiness"], "ready");

    bench.asked("");
    assert_eq!(sync(&[]), [40, 0, 0], "all is here");
    assert!(bench.asked("").iter().all(|line| line.contains("list-type=2")), "it lists, and fetches nothing");

    runtime.block_on(async {
        expected.insert("train/k 03+".into(), bench.put(THERE, "set/k 03+", 500, 4000).await);
        expected.insert("val/new".into(), bench.put(POND, "new", 501, 4000).await);
        bench.there().delete(THERE, "set/k 05+").await.expect("deleted");
        // Objects that a client wrote here are not imports.
        bench.here().put(OURS, "train/own", whole("own")).await.expect("stored");
        expected.insert("train/own".into(), Bytes::from_static(b"own"));
    });
    assert_eq!(sync(&[]), [40, 2, 0]);
    assert_eq!(runtime.block_on(all(&bench, OURS)), expected, "nothing goes unless that was asked for");
    expected.remove("train/k 05+");
    assert_eq!(sync(&["--delete"]), [40, 0, 1]);
    assert_eq!(runtime.block_on(all(&bench, OURS)), expected);
    assert_eq!(sync(&["--delete"]), [40, 0, 0]);
}

#[test]
fn metadata_and_tags_are_imported_with_an_object() {
    let bench = Bench::new();
    runtime().block_on(async {
        bench.here().create_bucket(OURS).await.expect("made");
        let headers = [
            ("content-type", "image/png".to_owned()),
            ("x-amz-meta-number", "7".to_owned()),
            ("x-amz-tagging", "split=train&by=us".to_owned()),
        ];
        let path = format!("/{THERE}/k");
        bench.there().call(http::Method::PUT, &path, &headers, whole("abc")).await.expect("stored");
    });
    bench.done(&["dataset", "create", "all", "--bucket", OURS, "--source", "far"]);
    bench.done(&["dataset", "sync", "all", "--wait", "--quiet"]);
    let found = runtime().block_on(bench.here().get(OURS, "k")).expect("read");
    assert_eq!(
        (found.header("content-type"), found.header("x-amz-meta-number")),
        (Some("image/png"), Some("7"))
    );
    assert_eq!(found.body, "abc");
    assert_eq!(found.header("x-amz-tagging-count"), Some("2"));
    let tags = runtime().block_on(async {
        let target = format!("/{OURS}/k?tagging=");
        bench.here().call(http::Method::GET, &target, &[], whole("")).await.expect("told").body
    });
    let tags = String::from_utf8_lossy(&tags);
    assert!(tags.contains("<Key>split</Key><Value>train</Value>"), "{tags}");
}

#[test]
fn a_sync_resumes_after_a_kill_and_retries_a_failing_origin() {
    let mut bench = Bench::new();
    let runtime = runtime();
    let mut expected = BTreeMap::new();
    runtime.block_on(async {
        bench.here().create_bucket(OURS).await.expect("made");
        for n in 0..60 {
            let key = format!("k{n:02}");
            expected.insert(key.clone(), bench.put(THERE, &key, n, 200_000).await);
        }
        expected.insert("large".into(), bench.put(THERE, "large", 99, 10 * MIB).await);
    });
    bench.done(&["dataset", "create", "all", "--bucket", OURS, "--source", "far"]);
    let stall = Fault::Stall { after: 1000, pause: std::time::Duration::from_secs(3600) };
    bench.proxy.set_rules(vec![Rule::new(stall).path("k30")]);
    let id = id_of(&bench.done(&["dataset", "sync", "all"]));
    until("half of it is here", || bench.job(id)["objects_done"] == 30);
    let cut = Rule::new(Fault::CutAnswer { after: 3_000_000 }).path("large").times(2);
    let busy = Rule::new(Fault::Status { status: 503, code: "SlowDown".into() }).times(3);
    bench.crash(vec![cut, busy]);
    let job = bench.done(&["job", "wait", &id.to_string(), "--quiet"]);
    assert_eq!((&job["state"], &job["starts"]), (&"done".into(), &2.into()), "{job}");
    assert_eq!((&job["objects_done"], &job["objects_total"]), (&61.into(), &61.into()), "{job}");
    assert_eq!(runtime.block_on(all(&bench, OURS)), expected);
    bench.proxy.set_rules(vec![]);
    let again = bench.done(&["dataset", "sync", "all", "--wait", "--quiet"]);
    assert_eq!(figures(&again), [61, 0, 0], "{again}");
}

#[test]
fn damaged_objects_are_not_imported() {
    let bench = Bench::new();
    runtime().block_on(async {
        bench.here().create_bucket(OURS).await.expect("made");
        let headers = [("x-amz-checksum-crc32", "NSRBwg==".to_owned())];
        let path = format!("/{THERE}/k");
        bench.there().call(http::Method::PUT, &path, &headers, whole("abc")).await.expect("stored");
    });
    bench.done(&["dataset", "create", "all", "--bucket", OURS, "--source", "far"]);
    bench.proxy.set_rules(vec![Rule::new(Fault::Corrupt { at: 1 }).path("/k")]);
    bench.refused(&["dataset", "sync", "all", "--wait", "--quiet"], 1, "CRC32 checksum");
    assert!(runtime().block_on(bench.here().list(OURS, 10)).expect("listed").is_empty());
    bench.proxy.set_rules(vec![]);
    bench.done(&["dataset", "sync", "all", "--wait", "--quiet"]);
}

#[test]
fn a_sync_stops_at_the_quota_of_its_bucket_and_continues_with_more_room() {
    let bench = Bench::new();
    let runtime = runtime();
    runtime.block_on(async {
        bench.here().create_bucket(OURS).await.expect("made");
        for n in 0..8 {
            bench.put(POND, &format!("k{n}"), n, 100_000).await;
        }
    });
    bench.done(&["bucket", "quota", OURS, "--bytes", "450000"]);
    bench.done(&["dataset", "create", "all", "--bucket", OURS, "--source", "near"]);
    bench.refused(&["dataset", "sync", "all", "--wait", "--quiet"], 1, "quota is 450000 bytes");
    let held = runtime.block_on(all(&bench, OURS));
    assert!(held.len() == 4, "{} objects", held.len());
    bench.done(&["bucket", "quota", OURS, "--bytes", "none"]);
    bench.done(&["dataset", "sync", "all", "--wait", "--quiet"]);
    assert_eq!(runtime.block_on(all(&bench, OURS)).len(), 8);
}

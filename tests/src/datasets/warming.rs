//! A warmed dataset is read without the origin, also after a crash during the job, until it is cleared.

use super::{BUCKET, DatasetBench, MIB, ORIGIN_BUCKET, id_of, runtime, wait_until};
use crate::observability::scrape::Scrape;
use crate::proxy::{Fault, Rule};
use crate::s3::full_body;
use http::Method;

/// Puts objects of several sizes below `set/`, and one outside of it. Returns the count and bytes of those
/// below.
async fn fill(bench: &DatasetBench) -> (u64, u64) {
    let mut bytes = 0;
    for n in 0..40 {
        let length = [0, 100, 70_000, 1_500_000][n % 4];
        bench.put(ORIGIN_BUCKET, &format!("set/object {n:02}+"), n as u64, length).await;
        bytes += length as u64;
    }
    bench.put(ORIGIN_BUCKET, "set/large", 99, 20 * MIB).await;
    bench.put(ORIGIN_BUCKET, "beside", 98, 1000).await;
    (41, bytes + 20 * MIB as u64)
}

#[test]
fn a_warmed_dataset_is_read_without_the_origin_until_it_is_cleared() {
    let bench = DatasetBench::new();
    let runtime = runtime();
    let (objects, bytes) = runtime.block_on(fill(&bench));
    let made = bench.run(&["dataset", "create", "train", "--bucket", BUCKET, "--prefix", "set/"]);
    assert_eq!(made["readiness"], "unknown", "{made}");
    let job = bench.run(&["dataset", "warm", "train", "--wait", "--quiet"]);
    assert_eq!(job["state"], "done", "{job}");
    assert_eq!((&job["objects_done"], &job["bytes_done"]), (&objects.into(), &bytes.into()), "{job}");
    assert_eq!((&job["moved_bytes"], &job["counted"]), (&bytes.into(), &true.into()), "{job}");
    let shown = bench.run(&["dataset", "show", "train"]);
    assert_eq!((&shown["readiness"], &shown["bytes"]), (&"ready".into(), &bytes.into()), "{shown}");
    assert_eq!((&shown["cached_bytes"], &shown["objects"]), (&bytes.into(), &objects.into()), "{shown}");
    assert_eq!(shown["residency"][0]["tier"], "copies", "{shown}");
    assert_eq!(shown["residency"][0]["bytes"], bytes, "{shown}");
    let scrape = Scrape::of(bench.server());
    assert_eq!(
        scrape.sum("mlgw_dataset_resident_bytes", &[("dataset", "train"), ("tier", "copies")]),
        bytes as f64
    );
    assert_eq!(scrape.sum("mlgw_dataset_ready", &[("dataset", "train")]), 1.0);
    assert_eq!(scrape.sum("mlgw_job_ended_total", &[("kind", "warm"), ("result", "done")]), 1.0);

    bench.take_requests("");
    runtime.block_on(async {
        let there = bench.origin_client().list(ORIGIN_BUCKET, 1000).await.expect("listed");
        for listed in there.iter().filter(|listed| listed.key.starts_with("set/")) {
            let found = bench.client().get(BUCKET, &listed.key).await.expect("read");
            assert_eq!(found.header("x-mlgw-cache"), Some("hit; tier=hot"), "{}", listed.key);
            let expected = bench.origin_client().get(ORIGIN_BUCKET, &listed.key).await.expect("read");
            assert!(found.body == expected.body, "{}", listed.key);
        }
    });
    assert_eq!(bench.take_requests(""), [""; 0], "all reads hit");

    let again = bench.run(&["dataset", "warm", "train", "--wait", "--quiet"]);
    assert_eq!((&again["moved_bytes"], &again["bytes_done"]), (&0.into(), &bytes.into()), "{again}");
    assert!(
        bench.take_requests("").iter().all(|line| line.contains("list-type=2")),
        "the job lists and fetches nothing"
    );

    let cleared = bench.run(&["dataset", "clear", "train", "--wait", "--quiet"]);
    assert_eq!(cleared["moved_bytes"], bytes, "{cleared}");
    let shown = bench.run(&["dataset", "show", "train"]);
    assert_eq!((&shown["readiness"], &shown["cached_bytes"]), (&"cold".into(), &0.into()), "{shown}");
    runtime.block_on(async {
        let found = bench.client().get(BUCKET, "set/large").await.expect("read");
        assert_eq!(found.header("x-mlgw-cache"), Some("miss; tier=origin"));
    });
}

#[test]
fn a_warm_resumes_after_a_kill_and_completes() {
    let mut bench = DatasetBench::new();
    let runtime = runtime();
    runtime.block_on(async {
        for n in 0..60 {
            bench.put(ORIGIN_BUCKET, &format!("k{n:02}"), n, 200_000).await;
        }
    });
    bench.run(&["dataset", "create", "train", "--bucket", BUCKET]);
    let stall = Fault::Stall { after: 1000, pause: std::time::Duration::from_secs(3600) };
    bench.proxy.set_rules(vec![Rule::new(stall).path("k30")]);
    let id = id_of(&bench.run(&["dataset", "warm", "train"]));
    wait_until("half of the job is done", || bench.job(id)["objects_done"] == 30);
    bench.crash(vec![]);
    let job = bench.run(&["job", "wait", &id.to_string(), "--quiet"]);
    assert_eq!((&job["state"], &job["starts"]), (&"done".into(), &2.into()), "{job}");
    assert_eq!((&job["objects_done"], &job["objects_total"]), (&60.into(), &60.into()), "{job}");
    // The index of copies may have lost the last fetched blocks; a second warm fetches these only.
    bench.run(&["dataset", "warm", "train", "--wait", "--quiet"]);
    bench.take_requests("");
    runtime.block_on(async {
        for n in 0..60 {
            let found = bench.client().get(BUCKET, &format!("k{n:02}")).await.expect("read");
            let content = crate::content::TestContent { id: n, length: 200_000 };
            assert_eq!(content.difference(&found.body), None);
        }
    });
    assert_eq!(bench.take_requests(""), [""; 0]);
}

/// Returns the directory of each object that was read at the origin, in that order.
fn take_read_directories(bench: &DatasetBench) -> Vec<String> {
    let requests = bench.take_requests("");
    let paths = requests.iter().filter_map(|line| line.strip_prefix(&format!("GET /{ORIGIN_BUCKET}/")));
    let directory = |path: &str| path.rsplit_once('/').map(|(directory, _)| directory.to_owned());
    paths.filter(|path| !path.starts_with('?')).filter_map(directory).collect()
}

#[test]
fn a_warm_in_random_order_fetches_every_object_even_after_a_kill() {
    let mut bench = DatasetBench::new();
    let (directories, each) = (11, 110);
    let objects = directories * each;
    runtime().block_on(async {
        for n in 0..objects {
            bench.put(ORIGIN_BUCKET, &format!("{:02}/{:03}", n / each, n % each), n, 100).await;
        }
    });
    // Two slices, with two pages of keys in the larger one.
    bench.run(&["dataset", "create", "train", "--bucket", BUCKET, "--prefix", "0", "--prefix", "10"]);
    let warm = |bench: &DatasetBench, order: &str, words: &[&str]| {
        bench.run(&[&["dataset", "warm", "train", "--order", order], words].concat())
    };
    let spread = |bench: &DatasetBench| {
        let mut first = take_read_directories(bench);
        assert_eq!(first.len() as u64, objects, "each is read once");
        first.truncate(each as usize);
        first.iter().collect::<std::collections::BTreeSet<_>>().len()
    };
    let is_whole = |job: &serde_json::Value| {
        let is = |name: &str, expected: u64| assert_eq!(job[name], expected, "{name} of {job}");
        is("objects_done", objects);
        is("objects_total", objects);
        is("bytes_done", 100 * objects);
        is("bytes_total", 100 * objects);
        assert_eq!((&job["state"], &job["counted"]), (&"done".into(), &true.into()), "{job}");
    };
    bench.take_requests("");
    let job = warm(&bench, "shuffled", &["--wait", "--quiet"]);
    is_whole(&job);
    assert_eq!(job["order"], "shuffled");
    let shuffled = spread(&bench);
    assert!(shuffled > 6, "the first {each} are of {shuffled} directories");

    bench.run(&["dataset", "clear", "train", "--wait", "--quiet"]);
    bench.take_requests("");
    is_whole(&warm(&bench, "shard-shuffled", &["--wait", "--quiet"]));
    let sharded = spread(&bench);
    assert!(sharded <= 4, "the first {each} are of {sharded} directories");

    bench.run(&["dataset", "clear", "train", "--wait", "--quiet"]);
    let stall = Fault::Stall { after: 50, pause: std::time::Duration::from_secs(3600) };
    bench.proxy.set_rules(vec![Rule::new(stall).path("05/050")]);
    let id = id_of(&warm(&bench, "shuffled", &[]));
    wait_until("one request waits", || bench.take_requests("").iter().any(|line| line.contains("05/050")));
    bench.crash(vec![]);
    let job = bench.run(&["job", "wait", &id.to_string(), "--quiet"]);
    is_whole(&job);
    assert_eq!(job["starts"], 2, "{job}");
}

#[test]
fn changed_objects_are_fetched_again_and_failures_are_reported() {
    let bench = DatasetBench::new();
    let runtime = runtime();
    runtime.block_on(async {
        for n in 0..5 {
            bench.put(ORIGIN_BUCKET, &format!("k{n}"), n, 5000).await;
        }
    });
    bench.run(&["dataset", "create", "train", "--bucket", BUCKET]);
    bench.run(&["dataset", "warm", "train", "--wait", "--quiet"]);
    runtime.block_on(bench.put(ORIGIN_BUCKET, "k3", 77, 6000));
    let again = bench.run(&["dataset", "warm", "train", "--wait", "--quiet"]);
    assert_eq!((&again["moved_objects"], &again["moved_bytes"]), (&1.into(), &6000.into()), "{again}");
    let content = crate::content::TestContent { id: 77, length: 6000 };
    let found = runtime.block_on(bench.client().get(BUCKET, "k3")).expect("read");
    assert_eq!(content.difference(&found.body), None, "although cached metadata is valid for an hour");

    runtime.block_on(bench.put(ORIGIN_BUCKET, "k4", 78, 7000));
    let denied = Fault::Status { status: 403, code: "AccessDenied".into() };
    bench.proxy.set_rules(vec![Rule::new(denied).path("k4")]);
    bench.assert_refused(
        &["dataset", "warm", "train", "--wait", "--quiet"],
        1,
        "\"k4\": the origin denied access",
    );
    bench.proxy.set_rules(vec![]);
    bench.run(&["dataset", "warm", "train", "--wait", "--quiet"]);
}

#[test]
fn copies_are_evicted_by_the_time_since_their_last_read() {
    let bench = DatasetBench::new();
    runtime().block_on(async {
        for n in 0..10 {
            bench.put(ORIGIN_BUCKET, &format!("{}/{n}", ["a", "b"][n as usize % 2]), n, 5000).await;
        }
    });
    bench.run(&["dataset", "create", "train", "--bucket", BUCKET]);
    bench.run(&["dataset", "warm", "train", "--wait", "--quiet"]);
    let evict = |words: &[&str]| {
        let all = [&["dataset", "evict", "train", "--wait", "--quiet"], words].concat();
        bench.run(&all)["moved_objects"].as_u64()
    };
    assert_eq!(evict(&["--older-than", "1h"]), Some(0));
    assert_eq!(evict(&["--older-than", "0s", "--prefix", "a/"]), Some(5));
    assert_eq!(bench.run(&["dataset", "show", "train"])["readiness"], "partial");
    assert_eq!(evict(&["--older-than", "0s"]), Some(5));
    assert_eq!(bench.run(&["dataset", "show", "train"])["readiness"], "cold");
}

#[test]
fn a_dataset_that_does_not_fit_is_not_fetched_repeatedly() {
    let bench = DatasetBench::with_setup(|setup| setup.with("bound.capacity", "16MiB"));
    runtime().block_on(async {
        for n in 0..30 {
            bench.put(ORIGIN_BUCKET, &format!("k{n:02}"), n, MIB).await;
        }
    });
    bench.run(&["dataset", "create", "train", "--bucket", BUCKET]);
    bench.assert_refused(&["dataset", "warm", "train", "--wait", "--quiet"], 1, "bound.capacity");
    bench.run(&["dataset", "warm", "train", "--prefix", "k0", "--wait", "--quiet"]);
    let found = runtime().block_on(async {
        bench.client().call(Method::GET, &format!("/{BUCKET}/k05"), &[], full_body("")).await.expect("read")
    });
    assert_eq!(found.header("x-mlgw-cache"), Some("hit; tier=hot"));
}

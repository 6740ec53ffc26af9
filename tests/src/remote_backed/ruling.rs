//! A rule that a user applies takes effect on the cache immediately, until it is rolled back.

use super::keeping::key;
use super::{MIB, RemoteBench, path, runtime, wait_until};
use crate::content::TestContent;
use crate::proxy::{Fault, Rule};
use crate::remote_backed;
use crate::s3::full_body;
use crate::server::drop_page_cache;
use http::Method;
use std::time::Duration;

impl RemoteBench {
    /// Applies this policy, as a user would.
    pub(super) fn apply(&self, text: &str) {
        let file = self.dir.path().join("policy.yaml");
        std::fs::write(&file, text).expect("written");
        let (output, status) = self.setup.command(&["policy", "apply", file.to_str().expect("a path")]);
        assert_eq!(status, Some(0), "{output}");
    }

    /// Reads an object `times` times. Returns the number of cache hits.
    fn count_hits(&self, key: &str, times: u32) -> u32 {
        runtime().block_on(async {
            let mut hits = 0;
            for _ in 0..times {
                hits += u32::from(self.is_hit(key, None).await);
                // Blocks are on the disk shortly after the read that keeps them.
                for _ in 0..50 {
                    let object = format!("s3://{}/{key}", remote_backed::BUCKET);
                    if self.document(&["object", "show", &object])["whole"] == true {
                        break;
                    }
                    mlgw_common::time::sleep(std::time::Duration::from_millis(2)).await;
                }
            }
            hits
        })
    }
}

fn with_objects() -> RemoteBench {
    let bench = RemoteBench::with_capacity(64 * MIB);
    runtime().block_on(async {
        for n in 0..8 {
            bench.put(&key(n), TestContent { id: n, length: 50_000 }).await;
        }
    });
    bench
}

const NOTHING_KEPT: &str = "
version: 1
name: nothing-kept
rules:
  - id: no-copies
    priority: 10
    conditions: [{type: file_context, property: path, operator: equals, value: train/}]
    actions: [{type: cache, parameters: {keep: false}}]
";

#[test]
fn a_rule_without_copies_prevents_caching_until_rolled_back() {
    let bench = with_objects();
    assert_eq!(bench.count_hits(&key(0), 3), 2);
    bench.apply(NOTHING_KEPT);
    assert_eq!(bench.count_hits(&key(1), 3), 0);
    let (output, status) = bench.setup.command(&["policy", "rollback"]);
    assert_eq!(status, Some(0), "{output}");
    assert_eq!(bench.count_hits(&key(2), 3), 2);
}

#[test]
fn a_rule_that_keeps_on_the_third_read_causes_hits_from_the_fourth() {
    let bench = with_objects();
    bench.apply(
        "
version: 1
name: patient
rules:
  - id: third-time
    priority: 10
    conditions: [{type: file_context, property: extension, operator: equals, value: bin}]
    actions: [{type: intelligent_cache, parameters: {min_reads: 3}}]
",
    );
    assert_eq!(bench.count_hits(&key(3), 5), 2, "the fourth and the fifth");
}

#[test]
fn streamed_objects_are_not_kept() {
    let bench = with_objects();
    bench.apply(
        "
version: 1
name: through
rules:
  - id: through
    priority: 10
    conditions: [{type: file_context, property: size, operator: greater_than, value: 10KiB}]
    actions: [{type: stream, parameters: {ahead: 2}}]
",
    );
    assert_eq!(bench.count_hits(&key(4), 3), 0);
}

#[test]
fn streamed_objects_are_kept_if_their_rule_requests_it() {
    let bench = with_objects();
    for (number, actions) in (5..).zip([
        "{type: stream, parameters: {ahead: 2}}, {type: cache}",
        "{type: cache}, {type: stream, parameters: {ahead: 2}}",
        "{type: stream, parameters: {keep: true}}",
    ]) {
        bench.apply(&format!(
            "version: 1\nrules:\n- id: through\n  priority: 10\n  \
             conditions: [{{type: file_context, property: size, operator: greater_than, value: 10KiB}}]\n  \
             actions: [{actions}]\n"
        ));
        assert_eq!(bench.count_hits(&key(number), 3), 2, "{actions}");
    }
}

#[test]
fn a_rule_that_observes_changes_nothing() {
    let bench = with_objects();
    bench.apply(&NOTHING_KEPT.replace("    priority: 10\n", "    priority: 10\n    stance: observe\n"));
    assert_eq!(bench.count_hits(&key(5), 3), 2);
}

const INFERENCE_FIRST: &str = "
version: 1
name: first
rules:
  - id: serving-first
    priority: 10
    conditions: [{type: file_pattern, property: key, operator: matches, value: '*/serve*'}]
    actions: [{type: prioritize, parameters: {lane: inference, priority: urgent}}]
";

/// Returns the number of reads that waited for a disk in a lane.
fn disk_waits(bench: &RemoteBench, lane: &str) -> u64 {
    let metrics = bench.setup.command(&["status", "--metrics"]).0;
    let name = format!("mlgw_queue_wait_seconds_count{{queue=\"{lane}\"}} ");
    let line = metrics.lines().find_map(|line| line.strip_prefix(&name));
    line.unwrap_or_else(|| panic!("{name}: {metrics}")).parse().expect("a number")
}

#[test]
fn prioritized_reads_wait_in_their_lane_in_local_and_remote_backed_buckets() {
    const OWN: &str = "own";
    let bench = RemoteBench::with_capacity_and_setup(64 * MIB, |setup| setup.with("memory.capacity", "0"));
    let object = TestContent { id: 9, length: MIB };
    let keys = ["models/serve.bin", "models/train.bin"];
    runtime().block_on(async {
        bench.client().create_bucket(OWN).await.expect("made");
        for key in keys {
            bench.put(key, object).await;
            bench.client().put(OWN, key, full_body(object.bytes())).await.expect("stored");
        }
    });
    for key in keys {
        assert_eq!(bench.count_hits(key, 2), 1, "the object is kept");
    }
    let read = |bucket: &str, key: &str| {
        drop_page_cache(&bench.setup.data_dir);
        let before = ["inference", "training"].map(|lane| disk_waits(&bench, lane));
        let body = runtime().block_on(bench.client().get(bucket, key)).expect("read").body;
        assert!(body == object.bytes(), "{bucket}/{key}");
        let after = ["inference", "training"].map(|lane| disk_waits(&bench, lane));
        [after[0] > before[0], after[1] > before[1]]
    };
    for bucket in [OWN, super::BUCKET] {
        assert_eq!(read(bucket, keys[0]), [false, true], "{bucket}: no priority is reported");
    }
    bench.apply(INFERENCE_FIRST);
    for bucket in [OWN, super::BUCKET] {
        assert_eq!(read(bucket, keys[0]), [true, false], "{bucket}: the object has priority");
        assert_eq!(read(bucket, keys[1]), [false, true], "{bucket}: the other object does not");
    }
    let (output, status) = bench.setup.command(&["policy", "rollback"]);
    assert_eq!(status, Some(0), "{output}");
    assert_eq!(read(OWN, keys[0]), [false, true]);
}

/// Objects are read in a loop that exceeds the cache. With LRU no read hits; the engine without the rule
/// keeps as many objects as fit.
#[test]
fn a_rule_with_lru_applies_to_its_dataset() {
    const LRU: &str = "
version: 1
name: recent
rules:
  - id: loops-as-lru
    priority: 10
    conditions: [{type: file_context, property: path, operator: equals, value: train/}]
    actions: [{type: cache, parameters: {policy: lru}}]
";
    let passes = |bench: &RemoteBench| {
        runtime().block_on(async {
            let mut hits = 0;
            for pass in 0..4 {
                for n in 0..24 {
                    hits += u32::from(bench.is_hit(&key(n), None).await && pass > 1);
                }
            }
            hits
        })
    };
    let bench = || {
        let bench = RemoteBench::with_capacity(8 * MIB);
        runtime().block_on(async {
            for n in 0..24 {
                bench.put(&key(n), TestContent { id: n, length: MIB }).await;
            }
        });
        bench
    };
    assert!(passes(&bench()) >= 4, "as much of a loop as fits is kept");
    let other = bench();
    other.apply(LRU);
    assert_eq!(passes(&other), 0, "least recently read blocks are evicted first");
    let explained =
        other.document(&["policy", "explain", &format!("s3://{}/{}", remote_backed::BUCKET, key(0))]);
    assert_eq!(explained["recommendation"]["cache_policy"], "lru");
}

fn rules(actions: &str) -> String {
    format!(
        "
version: 1
name: of-test
rules:
  - id: of-test
    priority: 10
    conditions: [{{type: file_context, property: path, operator: equals, value: train/}}]
    actions: [{actions}]
"
    )
}

#[test]
fn workers_that_read_the_same_bytes_in_turn_share_one_fetch() {
    let bench = RemoteBench::with_capacity(64 * MIB);
    let read_twice = |n: u64| {
        runtime().block_on(async {
            bench.put(&key(n), TestContent { id: n, length: MIB }).await;
            bench.take_requests();
            for _ in 0..2 {
                let answer = bench.client().get(super::BUCKET, &key(n)).await.expect("read");
                assert!(answer.body == remote_backed::bytes(n, MIB));
            }
        });
        bench.proxy.log().iter().filter(|line| line.method == "GET" && line.target.contains(&key(n))).count()
    };
    bench.apply(&rules("{type: cache, parameters: {keep: false}}"));
    assert_eq!(read_twice(1), 2, "nothing is kept, and no request waits");
    bench.apply(&rules(
        "{type: cache, parameters: {keep: false}}, {type: coordinate, parameters: {window: 1h}}",
    ));
    assert_eq!(read_twice(2), 1, "the second read is within the window");
}

#[test]
fn a_rule_sets_the_read_ahead_depth_of_sequential_readers() {
    const READ: u64 = 40;
    let bench = RemoteBench::with_capacity(64 * MIB);
    runtime().block_on(async {
        for n in 0..3 * READ {
            bench.put(&key(n), TestContent { id: n, length: 20_000 }).await;
        }
    });
    // Returns the greatest distance from the current read to a key that was requested and not read yet.
    let furthest_ahead = |first: u64| {
        bench.take_requests();
        let was_requested = |n: u64| bench.proxy.log().iter().any(|line| line.target.contains(&key(n)));
        (first..first + READ / 2)
            .map(|n| {
                runtime().block_on(bench.is_hit(&key(n), None));
                (1..20).rev().find(|ahead| was_requested(n + ahead)).unwrap_or(0)
            })
            .max()
    };
    bench.apply(&rules("{type: prefetch, parameters: {depth: 1}}"));
    assert_eq!(furthest_ahead(0), Some(1));
    bench.apply(&rules("{type: prefetch, parameters: {depth: 16}}"));
    assert!(furthest_ahead(READ / 2) > Some(1));
    bench.apply(&rules("{type: prefetch, parameters: {depth: 16, next: blocks}}"));
    assert_eq!(furthest_ahead(3 * READ / 2), Some(0), "these objects have no more blocks");
    bench.apply(&rules("{type: prefetch, parameters: {depth: 16, next: planned}}"));
    assert_eq!(furthest_ahead(2 * READ), Some(0), "there is no plan");
    bench.apply(&rules("{type: prefetch, parameters: {depth: 16, next: shards}}"));
    assert!(furthest_ahead(5 * READ / 2) > Some(0));
}

#[test]
fn a_condition_on_upstream_latency_holds_once_the_upstream_is_slow() {
    let bench = with_objects();
    bench.apply(
        "
version: 1
name: not-when-slow
rules:
  - id: slow
    priority: 10
    conditions: [{type: system_context, property: upstream_latency, operator: greater_than, value: 200ms}]
    actions: [{type: cache, parameters: {keep: false}}]
",
    );
    assert_eq!(bench.count_hits(&key(0), 3), 2, "the origin answers immediately");
    bench
        .proxy
        .set_rules(vec![Rule::new(Fault::Delay { by: Duration::from_secs(2) }).method("GET").times(1)]);
    assert_eq!(bench.count_hits(&key(1), 2), 1, "the latency was unknown before");
    let holds = || {
        let explained =
            bench.document(&["policy", "explain", &format!("s3://{}/{}", remote_backed::BUCKET, key(2))]);
        let rules = explained["rules"].as_array().expect("rules").iter();
        rules.filter(|rule| rule["rule"] == "slow").any(|rule| rule["matched"] == true)
    };
    runtime().block_on(wait_until("the latency is known", async || holds()));
    assert_eq!(bench.count_hits(&key(2), 3), 0);
    let metrics = bench.setup.command(&["status", "--metrics"]).0;
    let waited = metrics
        .lines()
        .find(|line| line.starts_with("mlgw_upstream_duration_seconds_sum{upstream=\"far\",op=\"get\"}"));
    let seconds: f64 =
        waited.and_then(|line| line.split(' ').next_back()).expect("shown").parse().expect("a number");
    assert!(seconds >= 2.0, "{seconds}");
}

#[test]
fn a_condition_on_gpu_count_uses_the_clients_header() {
    let bench = with_objects();
    bench.apply(
        "
version: 1
name: large-jobs-alone
rules:
  - id: small-jobs
    priority: 10
    conditions: [{type: system_context, property: gpu_count, operator: less_than, value: 8}]
    actions: [{type: cache, parameters: {keep: false}}]
",
    );
    let is_hit = async |workload: &str, count: &str, key: &str| {
        let headers = [("x-mlgw-workload", workload.to_owned()), ("x-mlgw-gpu-count", count.to_owned())];
        let answer =
            bench.client().call(Method::GET, &path(super::BUCKET, key), &headers, full_body("")).await;
        answer.expect("read").header("x-mlgw-cache") == Some("hit; tier=hot")
    };
    runtime().block_on(async {
        assert!(!is_hit("small", "1", &key(0)).await);
        wait_until("a large job hits its earlier reads", async || is_hit("large", "64", &key(1)).await).await;
        assert!(!is_hit("small", "1", &key(0)).await, "a small job's reads are not kept");
    });
}

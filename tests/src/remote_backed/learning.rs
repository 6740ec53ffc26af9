//! The outcomes of copies are recorded, shadow caches run beside the cache, and bounds are adjusted by the
//! results. Each adjustment is a version of the policy that a user can roll back.

use super::keeping::key;
use super::{MIB, RemoteBench, runtime};
use crate::content::TestContent;
use crate::remote_backed;
use mlgw_common::time::Instant;
use serde_json::Value;
use std::time::Duration;

const OBJECTS: u64 = 120;

const CAUTIOUS: &str = "
version: 1
name: patient
rules:
  - id: sixth-time
    priority: 10
    conditions: [{type: file_context, property: extension, operator: equals, value: bin}]
    actions: [{type: intelligent_cache, parameters: {min_reads: 6}}]
";

fn bench() -> RemoteBench {
    let bench =
        RemoteBench::with_capacity_and_setup(64 * MIB, |setup| setup.with("policy.learn_every", "1s"));
    runtime().block_on(async {
        for n in 0..OBJECTS {
            bench.put(&key(n), TestContent { id: n, length: 10_000 }).await;
        }
    });
    bench
}

impl RemoteBench {
    fn read_all(&self, times: u32) {
        runtime().block_on(async {
            for _ in 0..times {
                for n in 0..OBJECTS {
                    self.is_hit(&key(n), None).await;
                }
            }
        });
    }

    /// Waits for a newest policy version that satisfies `is_so`, and returns it.
    fn wait_for_version(&self, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let begun = Instant::now();
        loop {
            let version = self.document(&["policy", "history"])["versions"][0].clone();
            if is_so(&version) {
                return version;
            }
            assert!(begun.elapsed() < Duration::from_secs(60), "never: {what}: {version:#}");
            mlgw_common::time::block_for(Duration::from_millis(50));
        }
    }

    fn copies_of(&self, rule: &str) -> Value {
        let outcomes = self.document(&["policy", "outcomes"]);
        let rules = outcomes["rules"].as_array().expect("rules").clone();
        rules.into_iter().find(|one| one["rule"] == rule).unwrap_or_else(|| panic!("{rule} in {outcomes:#}"))
    }
}

#[test]
fn a_too_cautious_bound_is_lowered_by_a_version_that_survives_a_kill_and_can_be_rolled_back() {
    let mut bench = bench();
    bench.apply(CAUTIOUS);
    bench.read_all(3);
    let learnt = bench.wait_for_version("a learned change", |version| version["kind"] == "learn");
    assert_eq!(learnt["who"], "learning");
    let changes = learnt["changes"].as_str().expect("a sentence");
    assert!(changes.starts_with("min_reads of rule sixth-time 6.00 -> 5.40, because "), "{changes}");
    assert!(changes.contains("blocks were requested again after they were not kept"), "{changes}");
    bench.gateway.kill();
    bench.gateway = bench.setup.start();
    assert_eq!(bench.wait_for_version("the object is kept", |_| true), learnt);
    let (output, status) = bench.setup.command(&["policy", "rollback"]);
    assert_eq!(status, Some(0), "{output}");
    let back = bench.wait_for_version("taken back", |version| version["kind"] == "rollback");
    assert_eq!(back["back_to"].as_u64().map(|to| to + 1), learnt["version"].as_u64());
    bench.setup.command(&["policy", "freeze"]);
    bench.read_all(3);
    mlgw_common::time::block_for(Duration::from_millis(2500));
    assert_eq!(bench.wait_for_version("no bound is learned", |_| true)["kind"], "freeze");
}

#[test]
fn outcomes_of_copies_are_listed_by_rule_and_shadow_caches_by_dataset() {
    let bench = bench();
    bench.read_all(1);
    let kept = bench.copies_of("engine")["kept_bytes"].as_u64();
    assert_eq!(kept, Some(OBJECTS * 10_000), "the first reads are kept while there is space");
    bench.read_all(1);
    let copies = bench.copies_of("engine");
    assert_eq!((copies["used_bytes"].as_u64(), copies["wasted_bytes"].as_u64()), (kept, Some(0)));
    let outcomes = bench.document(&["policy", "outcomes"]);
    let dataset = &outcomes["datasets"][0];
    assert_eq!(
        (dataset["bucket"].as_str(), dataset["keys"].as_str()),
        (Some(remote_backed::BUCKET), Some("train/#.bin"))
    );
    for cache in ["mlgw", "lru", "s3_fifo", "never_evict"] {
        assert_eq!(dataset[cache], 0.5, "{cache}: the second of two passes, {dataset}");
    }
    let metrics = bench.setup.command(&["status", "--metrics"]).0;
    for line in [
        format!("mlgw_policy_copies_bytes_total{{outcome=\"used\"}} {}\n", OBJECTS * 10_000),
        format!("mlgw_policy_blocks_total{{decision=\"hit\"}} {OBJECTS}\n"),
        "mlgw_policy_shadow_hit_percent{cache=\"never-evict\"} 50\n".to_owned(),
    ] {
        assert!(metrics.contains(&line), "{line} is not in {metrics}");
    }
}

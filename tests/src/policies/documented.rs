//! Each policy and plugin in docs/POLICIES.md, applied as a user would; at least one of its effects is
//! checked.
//!
//! The examples are taken unchanged from the documentation, except for sizes that a test would need long to
//! write. Its access plan is tested with PyTorch itself (`tests/clients/torch_tests/test_torch_plan.py`).

use super::acting::{put, save, wait_until};
use super::policy_testbed::{BYTES, LOCAL_BUCKET, PolicyTestbed, REMOTE_BUCKET};
use super::write;
use crate::s3::full_body;
use crate::server::runtime;
use bytes::Bytes;
use http::Method;
use serde_json::Value;
use std::fs;

const DOCUMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/POLICIES.md");

/// Returns the code block of a language that contains a text.
fn example(language: &str, text: &str) -> String {
    let document = fs::read_to_string(DOCUMENT).expect("the documentation");
    let opening = format!("```{language}\n");
    let blocks = document.split(&opening).skip(1).filter_map(|rest| rest.split("```").next());
    let found: Vec<&str> = blocks.filter(|block| block.contains(text)).collect();
    assert_eq!(found.len(), 1, "blocks with {text:?}");
    found[0].to_owned()
}

fn put_all(kitchen: &PolicyTestbed, keys: &[&str], length: usize) {
    for key in keys {
        runtime().block_on(put(&kitchen.client(), key, length));
    }
}

fn are_in(kitchen: &PolicyTestbed, keys: &[&str], tier: &str) -> bool {
    keys.iter().all(|key| kitchen.bench.is_in(key, tier))
}

/// Spills all local objects.
fn spill_all(kitchen: &PolicyTestbed, keys: &[&str]) {
    kitchen.apply_text(
        "version: 1\nrules:\n- id: all-down\n  conditions: [{type: file_pattern, property: key, \
         operator: matches, value: '*'}]\n  actions: [{type: spill}]\n",
    );
    wait_until("the object is in the cold tier", || are_in(kitchen, keys, "cold"));
}

#[test]
fn copies_of_tables_are_kept_by_lru() {
    let kitchen = PolicyTestbed::new();
    kitchen.apply_text(&example("yaml", "id: tables-as-lru"));
    assert_eq!(kitchen.kept_by_first_read("tables-as-lru", "tables/2026/a.parquet"), BYTES as u64);
    wait_until("the object is stored locally", || kitchen.is_hit("tables/2026/a.parquet"));
    assert_eq!(
        kitchen.kept_by_first_read("tables-as-lru", "others/a.parquet"),
        BYTES as u64,
        "no more requests than before"
    );
}

#[test]
fn the_tars_example_promotes_shards_compresses_crawls_and_pins_datasets() {
    let kitchen = PolicyTestbed::new();
    let shards = ["train/imagenet-000000.tar", "train/imagenet-000001.tar"];
    put_all(&kitchen, &shards, 100_000);
    spill_all(&kitchen, &shards);
    // Shards of a size that a test writes quickly.
    kitchen.apply_text(&example("yaml", "name: tars").replace("64MiB", "64KiB"));
    wait_until("the shards are in the hot tier again", || are_in(&kitchen, &shards, "hot"));
    assert!(kitchen.bench.decided("promote", "shards-near") > 0);

    let (crawled, text) = ("crawl/2026-11/part-0000.jsonl", Bytes::from("{\"url\": \"x\"}\n".repeat(10_000)));
    let client = kitchen.client();
    runtime().block_on(client.put(LOCAL_BUCKET, crawled, full_body(text.clone()))).expect("stored");
    let shown = kitchen.bench.run_json(&["object", "show", &format!("s3://{LOCAL_BUCKET}/{crawled}")]);
    let extents = shown["extents"].as_array().expect("extents");
    assert!(!extents.is_empty() && extents.iter().all(|one| one["encoding"] == "zstd"), "{shown:#}");
    assert_eq!(runtime().block_on(client.get(LOCAL_BUCKET, crawled)).expect("read").body, text);

    let keys: Vec<String> = (0..40).map(|n| format!("photos/{n:03}.jpg")).collect();
    keys.iter().for_each(|key| kitchen.put_at_origin(key));
    for _ in 0..3 {
        keys.iter().for_each(|key| _ = kitchen.is_hit(key));
    }
    wait_until("the dataset is pinned", || kitchen.pinned(&format!("s3://{REMOTE_BUCKET}/{}", keys[7])) == 1);
}

#[test]
fn logs_are_spilled_and_tars_are_pinned() {
    let kitchen = PolicyTestbed::new();
    let (logs, shards) = (["logs/2026-11-22.txt", "logs/2026-11-23.txt"], ["train/imagenet-000000.tar"]);
    put_all(&kitchen, &logs, BYTES);
    put_all(&kitchen, &shards, BYTES);
    kitchen.apply_text(&example("yaml", "name: down"));
    wait_until("the logs are in the cold tier", || are_in(&kitchen, &logs, "cold"));
    assert!(kitchen.bench.decided("spill", "logs-down") > 0);
    wait_until("the shard is pinned", || kitchen.bench.count("pin", "done") == 1);
    assert!(are_in(&kitchen, &shards, "hot"));
}

/// Returns the largest read-ahead depth for a machine with this memory and eight accelerators, by the
/// profiles of the example.
fn depth_max() -> u64 {
    let meminfo = fs::read_to_string("/proc/meminfo").expect("memory");
    let total = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:")).expect("complete");
    let kib: u64 = total.trim().trim_end_matches("kB").trim().parse().expect("a number");
    match kib >> 20 {
        512.. => 256,
        32.. => 64,
        _ => 8,
    }
}

#[test]
fn one_file_with_templates_frameworks_environments_and_profiles_takes_effect() {
    let kitchen = PolicyTestbed::with_setup(|setup| {
        setup.with("policy.environment", "production").with("policy.gpu_count", 8)
    });
    let (plain, release) = ("models/plain.bin", "models/7b.bin");
    put_all(&kitchen, &[plain], BYTES);
    let (path, headers) = (format!("/{LOCAL_BUCKET}/{release}"), [("x-amz-meta-release", "1.2".to_owned())]);
    runtime()
        .block_on(kitchen.client().call(Method::PUT, &path, &headers, full_body("a model")))
        .expect("stored");
    spill_all(&kitchen, &[plain, release]);
    kitchen.apply_text(&example("yaml", "id: run\n"));

    // A rule of the environment. Objects that share a segment with the released one are promoted with it.
    wait_until("the release is in the hot tier", || are_in(&kitchen, &[release], "hot"));
    wait_until("the decision is reported", || kitchen.bench.decided("promote", "releases-near") > 0);
    let is_due = |key: &str, rule: &str| {
        let explained = kitchen.bench.run_json(&["policy", "explain", &format!("s3://{key}")]);
        explained["due"].as_array().expect("actions").iter().any(|one| one["rule"] == rule)
    };
    assert!(
        is_due("lake/models/7b.bin", "releases-near") && !is_due("lake/models/plain.bin", "releases-near")
    );

    // The instance of the template.
    runtime().block_on(async {
        for step in 1..=7 {
            save(&kitchen.client(), "runs/llama", step).await;
        }
    });
    let first_of = |step: u32| format!("runs/llama/step-{step}/__0_0.distcp");
    wait_until("all but five are in the cold tier", || {
        are_in(&kitchen, &[&first_of(1), &first_of(2)], "cold")
    });
    assert!((3..=7).all(|step| are_in(&kitchen, &[&first_of(step)], "hot")));
    assert!(kitchen.bench.decided("spill", "llama.retain") > 0);

    // The instance of a plugin's template, the settings of the environment and of the machine, and the
    // disabled plugin.
    let effective = kitchen.bench.run_json(&["policy", "show", "--effective"])["policy"].clone();
    let has = |id: &str| effective["rules"].as_array().expect("rules").iter().any(|rule| rule["id"] == id);
    assert!(
        has("laion.ahead") && has("torch-models-load") && !has("tensorflow-checkpoint-index"),
        "{effective:#}"
    );
    assert_eq!(effective["settings"]["learning"], "off");
    assert_eq!(effective["settings"]["prefetch_depth_max"], depth_max());
    kitchen.put_at_origin("laion/00000.tar");
    assert!(is_due("front/laion/00000.tar", "laion.ahead"));
}

#[test]
fn a_plugin_raises_the_priority_of_indexes_for_streaming_clients() {
    let kitchen = PolicyTestbed::new();
    let plugin = kitchen.bench.dir.path().join("mosaicml.yaml");
    fs::write(&plugin, example("yaml", "framework: mosaicml")).expect("written");
    kitchen.bench.run(&["policy", "apply", "--framework", &plugin.display().to_string()]);
    kitchen.put_at_origin("c4/index.json");
    assert!(!kitchen.is_hit_for("c4/index.json", &[("user-agent", "mosaicml-streaming/0.7".to_owned())]));
    assert_eq!(kitchen.kept("mosaicml-index"), BYTES as u64);
    kitchen.put_at_origin("c5/index.json");
    assert!(!kitchen.is_hit("c5/index.json"));
    assert_eq!(kitchen.kept("mosaicml-index"), BYTES as u64, "the rule does not keep other objects");
}

#[test]
fn configured_files_and_plugins_run_from_the_start() {
    let config = example("toml", "[policy]");
    let kitchen = PolicyTestbed::with_setup(|setup| {
        let room = setup.data_dir.parent().expect("a room").to_owned();
        fs::create_dir(room.join("frameworks")).expect("made");
        write(&room, "policy.yaml", &example("yaml", "name: down"));
        write(&room.join("frameworks"), "mosaicml.yaml", &example("yaml", "framework: mosaicml"));
        write(&room, "mlgw.toml", &config.replace("/etc/mlgw", &room.display().to_string()));
        setup.with_preparation(&format!("export MLGW_CONFIG={}", room.join("mlgw.toml").display()))
    });
    let shown = kitchen.bench.run_json(&["policy", "show"]);
    assert_eq!((&shown["version"]["kind"], &shown["refused"]), (&"reload".into(), &Value::Null), "{shown:#}");
    let logs = ["logs/2026-11-22.txt"];
    put_all(&kitchen, &logs, BYTES);
    wait_until("the logs are in the cold tier", || are_in(&kitchen, &logs, "cold"));
    let explained =
        kitchen.bench.run_json(&["policy", "explain", &format!("s3://{LOCAL_BUCKET}/{}", logs[0])]);
    let fact = |name: &str| {
        let facts = explained["facts"].as_array().expect("facts").iter();
        facts.filter(|fact| fact["property"] == name).map(|fact| fact["value"].clone()).next()
    };
    assert_eq!((fact("environment"), fact("gpu_count")), (Some("production".into()), Some("8".into())));
}

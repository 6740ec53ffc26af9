//! Each recipe, applied as a user would; the effect of at least one of its rules is checked.

use super::acting::{put, save, wait_until};
use super::policy_testbed::{BYTES, LOCAL_BUCKET, PolicyTestbed};
use crate::content::TestContent;
use crate::s3::full_body;
use crate::server::{drop_page_cache, runtime};
use http::Method;

/// Metric of reads that waited for a disk in the inference lane.
const INFERENCE_WAITS: &str = "mlgw_queue_wait_seconds_count{queue=\"inference\"}";

#[test]
fn pytorch_keeps_the_validation_set() {
    let kitchen = PolicyTestbed::with_recipe("pytorch");
    assert_eq!(kitchen.kept_by_first_read("validation-sets", "val/0.bin"), BYTES as u64);
    assert_eq!(
        kitchen.kept_by_first_read("validation-sets", "train/0.bin"),
        BYTES as u64,
        "no more requests than before"
    );
}

#[test]
fn tensorflow_keeps_indexes_and_spills_old_checkpoints() {
    let kitchen = PolicyTestbed::with_recipe("tensorflow");
    assert_eq!(kitchen.kept_by_first_read("checkpoint-index", "run/model.ckpt-3.index"), BYTES as u64);
    runtime().block_on(async {
        for step in 1..=5 {
            for file in ["data-00000-of-00001", "index"] {
                put(&kitchen.client(), &format!("run/ckpt-{step}.{file}"), 20_000).await;
            }
        }
    });
    let is_in =
        |step: u32, tier: &str| kitchen.bench.is_in(&format!("run/ckpt-{step}.data-00000-of-00001"), tier);
    wait_until("all but the first and three are in the cold tier", || is_in(2, "cold"));
    assert!([1, 3, 4, 5].into_iter().all(|step| is_in(step, "hot")));
    assert!(kitchen.bench.decided("spill", "checkpoints-kept") > 0);
}

#[test]
fn huggingface_keeps_weights_and_the_small_files_of_models() {
    let kitchen = PolicyTestbed::with_recipe("huggingface");
    assert_eq!(kitchen.kept_by_first_read("small-files-of-models", "llama/config.json"), BYTES as u64);
    assert_eq!(kitchen.kept_by_first_read("safetensors-load", "llama/model.safetensors"), BYTES as u64);
}

#[test]
fn webdataset_keeps_indexes_of_shards() {
    let kitchen = PolicyTestbed::with_recipe("webdataset");
    assert_eq!(kitchen.kept_by_first_read("shard-indexes", "laion/00000.idx"), BYTES as u64);
}

#[test]
fn mosaicml_pins_the_index_of_a_stream() {
    let kitchen = PolicyTestbed::with_recipe("mosaicml");
    assert_eq!(kitchen.kept_by_first_read("streaming-index", "c4/index.json"), BYTES as u64);
    wait_until("the object is pinned", || kitchen.pinned("s3://front/c4/index.json") == 1);
    kitchen.put_at_origin("c4/shard.00000.mds");
    kitchen.is_hit("c4/shard.00000.mds");
    assert_eq!(kitchen.pinned("s3://front/c4/shard.00000.mds"), 0);
}

#[test]
fn checkpoints_keeps_the_configured_number_of_a_run_in_the_hot_tier() {
    let kitchen = PolicyTestbed::with_recipe("checkpoints");
    let name = |step: u32| format!("runs/llama/step-{step}/__0_0.distcp");
    runtime().block_on(async {
        for step in 1..=7 {
            save(&kitchen.client(), "runs/llama", step).await;
        }
    });
    let are_in = |steps: &[u32], tier: &str| steps.iter().all(|step| kitchen.bench.is_in(&name(*step), tier));
    wait_until("all but the first and five are in the cold tier", || are_in(&[2], "cold"));
    assert!(are_in(&[1, 3, 4, 5, 6, 7], "hot"));
}

#[test]
fn inference_reads_of_serving_workloads_go_first() {
    let kitchen = PolicyTestbed::with_recipe("inference");
    let object = TestContent { id: 5, length: 1 << 20 };
    runtime()
        .block_on(kitchen.client().put(LOCAL_BUCKET, "m.bin", full_body(object.bytes())))
        .expect("stored");
    let read = |workload: &str| {
        drop_page_cache(&kitchen.bench.setup.data_dir);
        let before = kitchen.figure(INFERENCE_WAITS);
        let headers = [("x-mlgw-workload", workload.to_owned())];
        let call = kitchen.server.client();
        let answer =
            runtime().block_on(call.call(Method::GET, "/lake/m.bin", &headers, full_body(""))).expect("read");
        assert!(answer.body == object.bytes());
        kitchen.figure(INFERENCE_WAITS) > before
    };
    assert!(!read("train-7b"));
    assert!(read("serve-7b"));
}

#[test]
fn inference_pins_released_models() {
    let kitchen = PolicyTestbed::with_recipe("inference");
    kitchen.put_tagged("llm/tried.gguf", "stage=staging");
    kitchen.put_tagged("llm/best.gguf", "stage=production");
    wait_until("the object is pinned", || kitchen.bench.count("pin", "done") == 1);
    kitchen.put_tagged("bert/model.safetensors", "stage=production");
    kitchen.put_tagged("bert/checkpoint-500/model.safetensors", "stage=production");
    let is_due = |key: &str| {
        let explained = kitchen.bench.run_json(&["policy", "explain", &format!("s3://{LOCAL_BUCKET}/{key}")]);
        let due = explained["due"].as_array().expect("actions").clone();
        due.iter().any(|one| one["rule"] == "released-models")
    };
    assert!(is_due("llm/best.gguf") && is_due("bert/model.safetensors"));
    assert!(!is_due("llm/tried.gguf") && !is_due("bert/checkpoint-500/model.safetensors"));
}

#[test]
fn research_does_not_cache_single_reads() {
    let kitchen = PolicyTestbed::with_recipe("research");
    assert!(!kitchen.is_decided_to_keep("notes/a.bin"));
    kitchen.bench.run(&["policy", "rollback"]);
    assert!(kitchen.is_decided_to_keep("notes/a.bin"), "without the recipe the object is kept");
}

#[test]
fn production_pins_golden_objects() {
    let kitchen = PolicyTestbed::with_recipe("production");
    kitchen.put_tagged("plain", "set=common");
    kitchen.put_tagged("best", "golden=yes");
    wait_until("the object is pinned", || kitchen.bench.count("pin", "done") == 1);
}

#[test]
fn general_keeps_no_copies_of_temporary_files() {
    let kitchen = PolicyTestbed::with_recipe("general");
    assert!(!kitchen.is_decided_to_keep("part.tmp"));
    assert!(kitchen.is_decided_to_keep("part.bin"));
}

#[test]
fn general_keeps_small_files_on_their_second_read() {
    let kitchen = PolicyTestbed::new();
    let key = "icons/a.bin";
    kitchen.apply_text("version: 1\nsettings: {cache: none}\n");
    kitchen.put_at_origin(key);
    assert!(!kitchen.is_hit(key));
    kitchen.apply_recipe("general");
    assert!(!kitchen.is_hit(key), "the object was not kept before");
    assert_eq!(kitchen.kept("small-files"), BYTES as u64);
    wait_until("the object is stored locally", || kitchen.is_hit(key));
    assert_eq!(
        kitchen.kept_by_first_read("small-files", "icons/b.bin"),
        BYTES as u64,
        "the rule does not apply after a single read"
    );
}

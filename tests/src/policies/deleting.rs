//! Objects that rules must not delete, seen through S3: anything that may be the last complete checkpoint
//! of its run, even if names are ambiguous.
//!
//! The names of the cases differ in two places, so that none looks like a part of another.

use super::acting::{BUCKET, TieredBench, put, retain, rule, start_with_bucket, tag, wait_until};
use crate::s3::{S3TestClient, full_body};
use crate::server::runtime;

/// Returns the keys of a `torch.distributed.checkpoint` of this many ranks.
fn dcp(folder: &str, ranks: u32) -> Vec<String> {
    let shards = (0..ranks).map(|rank| format!("{folder}/__{rank}_0.distcp"));
    shards.chain([format!("{folder}/.metadata")]).collect()
}

/// Returns the keys of a transformers model in this folder.
fn shards(folder: &str) -> Vec<String> {
    let files = ["-00001-of-00002.safetensors", "-00002-of-00002.safetensors", ".safetensors.index.json"];
    files.map(|end| format!("{folder}/model{end}")).to_vec()
}

/// Returns the key of a Megatron rank, which writes into a folder of its own.
fn rank(rank: u32, step: u32) -> String {
    format!("nemo/tp_rank_0{rank}/gpt-step={step}.ckpt")
}

fn owned(keys: &[&str]) -> Vec<String> {
    keys.iter().map(|key| (*key).to_owned()).collect()
}

/// Returns keys of checkpoints that are certainly expired.
fn expired_keys() -> Vec<String> {
    [
        [dcp("whole/w/step-1", 2), dcp("whole/w/step-2", 2)].concat(),
        [rank(0, 1), rank(1, 1), rank(0, 2), rank(1, 2)].to_vec(),
        (0..4).map(|at| format!("ranks/step={}-rank={}.ckpt", 1 + at / 2, at % 2)).collect(),
        ["pinned/p", "back/b", "sky/s"].map(|run| dcp(&format!("{run}/step-2"), 1)).concat(),
        owned(&["best/t/checkpoint-2/model.safetensors", "best/t/checkpoint-2/trainer_state.json"]),
    ]
    .concat()
}

/// Returns keys of checkpoints that are the newest, or may be needed for another reason.
fn kept_keys() -> Vec<String> {
    let of_runs = ["lr=1e-4-step=9", "lr=3e-4-step=5", "a-1-step-7", "a-2-step-7"];
    let numbered = ["1/ck/100", "1/ck/200", "2/ck/100", "3/ck/100"];
    [
        // One of two ranks failed.
        [rank(0, 3), rank(1, 3), rank(0, 4)].to_vec(),
        dcp("whole/w/step-3", 2),
        owned(&["whole/w/step-1/notes/mine.txt", "whole/w/step-4.txt"]),
        owned(&["ranks/step=3-rank=0.ckpt", "ranks/step=3-rank=1.ckpt"]),
        of_runs.map(|name| format!("runs/{name}.ckpt")).to_vec(),
        (1..=4).map(|shard| format!("shards/flax_model-0000{shard}-of-00004.msgpack")).collect(),
        [dcp("torn/t/step-1", 3), dcp("torn/t/step-2", 2), dcp("torn/t/step-3", 1)].concat(),
        [dcp("pinned/p/step-1", 1), dcp("pinned/p/step-3", 1)].concat(),
        [dcp("back/b/step-1", 1), dcp("back/b/step-3", 1)].concat(),
        numbered.map(|folder| shards(&format!("numbered/iter-{folder}"))).concat(),
        (1..=3).map(|shard| format!("tuned/hf_model_000{shard}_0.pt")).collect(),
        // A run that went back to an earlier step, and wrote 350 then.
        ["500", "350", "100"].map(|step| format!("again/g/step={step}.ckpt")).to_vec(),
        [dcp("sky/s/step-1", 1), dcp("sky/s/step-3", 1)].concat(),
        owned(&["best/t/checkpoint-1/model.safetensors", "best/t/checkpoint-1/trainer_state.json"]),
        owned(&["best/t/checkpoint-3/model.safetensors"]),
    ]
    .concat()
}

/// Files that name one of the checkpoints, and their contents.
const POINTERS: [(&str, &str); 3] = [
    ("back/b/latest", "step-1\n"),
    ("sky/s/latest_ckpt_global_step.txt", "1"),
    ("best/t/checkpoint-3/trainer_state.json", "{\n  \"best_model_checkpoint\": \"out/checkpoint-1\"\n}"),
];

/// An additional condition: the object does not have this tag.
const NOT_TAGGED_KEEP: &str = ", {type: file_context, property: tags.keep, operator: exists, value: false}";

fn write(client: &S3TestClient, keys: &[String]) {
    runtime().block_on(async {
        for key in keys {
            put(client, key, 1000).await;
        }
    });
}

fn listed(client: &S3TestClient) -> Vec<String> {
    let rows = runtime().block_on(client.list(BUCKET, 1000)).expect("listed");
    rows.into_iter().map(|row| row.key).collect()
}

/// Waits until all of these keys are deleted.
fn wait_until_deleted(client: &S3TestClient, keys: &[String]) {
    wait_until("expired checkpoints are deleted", || {
        let listed = listed(client);
        !keys.iter().any(|key| listed.contains(key))
    });
}

/// Waits until a plan lists the checkpoints that the rules would delete but that stay, with the reasons.
fn wait_for_plan(bench: &TieredBench, rules: &str) {
    let path = bench.dir.path().join("q.yaml");
    std::fs::write(&path, format!("version: 1\nrules:\n{rules}")).expect("written");
    let kept = "would be spilled: rule few retains others; not deleted:";
    let runs = format!(
        "s3://lake/numbered/iter-1/ (6 objects, 5.9 KiB) {kept} it contains checkpoints of its own, \
         like the folder of a run"
    );
    let named = format!("s3://lake/back/b/step-1/ (2 objects, 2.0 KiB) {kept} back/b/latest refers to it.\n");
    wait_until("plan lists the checkpoints that are kept", || {
        let output = bench.run(&["policy", "plan", &path.display().to_string()]);
        output.contains(&runs) && output.contains(&named)
    });
}

/// Ambiguous objects are not deleted: files of ranks, shards, runs side by side, and a checkpoint whose
/// successor is incomplete.
#[test]
fn what_may_be_the_last_complete_checkpoint_is_not_deleted() {
    let bench = TieredBench::new();
    let server = start_with_bucket(&bench);
    let client = server.client();
    let (goes, stays) = (expired_keys(), kept_keys());
    write(&client, &goes);
    write(&client, &stays);
    for (key, content) in POINTERS {
        // As long as the other files: a checkpoint must not be smaller than the one before it.
        runtime().block_on(client.put(BUCKET, key, full_body(format!("{content:<1000}")))).expect("stored");
    }
    let pin = rule("pinned", "pinned/p/step-1/*", "{type: pin}")
        .replace("  conditions", "  priority: 50\n  conditions");
    let rules = retain("keep_last: 1, delete: true, grace: 0s") + &pin;
    wait_for_plan(&bench, &rules);
    bench.apply(&rules);
    wait_until_deleted(&client, &goes);
    // Two more passes over all objects. Two checkpoints alone are no series.
    for step in 1..=5 {
        write(&client, &dcp(&format!("later/l/step-{step}"), 1));
        if step == 3 || step == 5 {
            let older = [step - 2, step - 1].map(|step| dcp(&format!("later/l/step-{step}"), 1));
            wait_until_deleted(&client, &older.concat());
        }
    }
    let pointers = POINTERS.map(|(key, _)| key.to_owned()).to_vec();
    let mut expected = [stays, dcp("later/l/step-5", 1), pointers].concat();
    expected.sort();
    assert_eq!(listed(&client), expected);
    server.stop();
}

#[test]
fn plan_and_explain_report_a_pointer_before_the_deletion_is_due() {
    let bench = TieredBench::new();
    let server = start_with_bucket(&bench);
    let client = server.client();
    write(&client, &[1, 2, 3].map(|step| dcp(&format!("run/step-{step}"), 1)).concat());
    bench.apply(&retain("keep_last: 1, delete: true, grace: 1h"));
    let planned = || bench.run(&["policy", "plan", &bench.dir.path().join("p.yaml").display().to_string()]);
    let is_deleted = "s3://lake/run/step-1/ (2 objects, 2.0 KiB) is deleted at ";
    wait_until("the older checkpoint waits", || planned().contains(is_deleted));
    runtime().block_on(client.put(BUCKET, "run/latest", full_body("step-1\n"))).expect("stored");
    let output = planned();
    assert!(output.contains("(2 objects, 2.0 KiB) is due for deletion at "), "{output}");
    assert!(output.contains(" and is kept: run/latest refers to it.\n"), "{output}");
    let output = bench.run(&["policy", "explain", "s3://lake/run/step-1/__0_0.distcp"]);
    assert!(output.contains("not deleted despite rule few: run/latest refers to it"), "{output}");
    server.stop();
}

#[test]
fn partly_matched_and_unmeasured_checkpoints_are_not_deleted() {
    let bench = TieredBench::new();
    let server = start_with_bucket(&bench);
    let client = server.client();
    let epoch = |epoch: u32, measure: &str| format!("best/epoch={epoch}{measure}.keras");
    let (worst, unmeasured) = (epoch(2, "-loss=0.55"), epoch(3, ""));
    // Epoch 5 is the newest, and may still be in progress.
    let others = [epoch(1, "-loss=0.25"), epoch(4, "-loss=0.45"), epoch(5, "-loss=0.5")];
    write(&client, &[1, 2, 3].map(|step| dcp(&format!("run/r/step-{step}"), 2)).concat());
    write(&client, &[&others[0], &worst, &unmeasured, &others[1], &others[2]].map(Clone::clone));
    // One file of the first checkpoint is tagged, and no other.
    runtime().block_on(tag(&client, "run/r/step-1/__1_0.distcp", "keep"));
    let rule = |id: &str, pattern: &str, condition: &str, keep: &str| {
        let parameters = format!("keep_last: 1, {keep}delete: true, grace: 0s");
        let retain = rule(id, pattern, &format!("{{type: retain, parameters: {{{parameters}}}}}"));
        retain.replace("'}]", &format!("'}}{condition}]"))
    };
    let rules = [
        rule("few", "run/*", NOT_TAGGED_KEEP, ""),
        rule("best", "best/*", "", "keep_best: 1, best_by: loss, "),
    ];
    bench.apply(&rules.concat());
    wait_until_deleted(&client, &[dcp("run/r/step-2", 2), vec![worst]].concat());
    let mut expected =
        [dcp("run/r/step-1", 2), dcp("run/r/step-3", 2), others.to_vec(), vec![unmeasured.clone()]].concat();
    expected.sort();
    assert_eq!(listed(&client), expected);
    for (key, why) in [
        ("run/r/step-1/__0_0.distcp", "despite rule few: the rule does not match all of its files"),
        (
            &unmeasured,
            "despite rule best: the rule keeps the best, and neither the checkpoint's metadata nor its name",
        ),
    ] {
        wait_until("explain names the reasons", || {
            bench.run(&["policy", "explain", &format!("s3://{BUCKET}/{key}")]).contains(why)
        });
    }
    server.stop();
}

#[test]
fn a_full_grace_period_follows_the_end_of_a_hold() {
    let bench = TieredBench::new();
    let server = start_with_bucket(&bench);
    let client = server.client();
    write(&client, &[1, 2, 3].map(|step| dcp(&format!("run/step-{step}"), 1)).concat());
    runtime().block_on(tag(&client, "run/step-1/__0_0.distcp", "keep"));
    let few = rule("few", "run/*", "{type: retain, parameters: {keep_last: 1, delete: true, grace: 1h}}");
    bench.apply(&few.replace("'}]", &format!("'}}{NOT_TAGGED_KEEP}]")));
    let recorded_at = || bench.deletions().into_iter().map(|(_, recorded)| recorded).max();
    wait_until("the checkpoint is recorded and stays", || {
        bench.run(&["policy", "plan"]).contains("is kept: the rule does not match all of its files")
    });
    let before = recorded_at();
    bench.apply(&few);
    wait_until("the grace period restarts", || recorded_at() > before);
    server.stop();
}

#[test]
fn milestones_stay_when_a_run_is_saved_less_often_after_a_kill() {
    let bench = TieredBench::new();
    let mut server = start_with_bucket(&bench);
    let steps = |run: &str, steps: &[u32]| -> Vec<String> {
        steps.iter().flat_map(|step| dcp(&format!("{run}/step-{step}"), 1)).collect()
    };
    let hundreds: Vec<u32> = (1..=10).map(|n| n * 100).collect();
    write(&server.client(), &steps("run/r", &hundreds));
    bench.apply(&retain("keep_last: 2, keep_every: 5, delete: true, grace: 0s"));
    let left = |client: &S3TestClient| {
        let rows = runtime().block_on(client.list(BUCKET, 1000)).expect("listed");
        let keys = rows.into_iter().map(|row| row.key);
        keys.filter_map(|key| key.strip_prefix("run/r/step-")?.strip_suffix("/.metadata")?.parse().ok())
            .collect::<std::collections::BTreeSet<u32>>()
    };
    let client = server.client();
    wait_until("every fifth checkpoint stays", || left(&client) == [100, 600, 900, 1000].into());
    server.kill();
    let server = bench.setup.start();
    let client = server.client();
    write(&client, &steps("run/r", &[2000, 3000, 4000]));
    let all = [100, 600, 2000, 3000, 4000].into();
    wait_until("no milestone is 900 or 1000", || left(&client) == all);
    // Two more passes over all objects.
    for run in ["one/a", "two/b"] {
        write(&client, &steps(run, &[1, 2, 3, 4, 5]));
        let second = format!("{run}/step-2/.metadata");
        wait_until("the second checkpoint is deleted", || {
            runtime().block_on(client.head(BUCKET, &second)).is_err()
        });
    }
    assert_eq!(left(&client), all);
    server.stop();
}

/// A run of three steps, and a file that names one of them: the run, its first step, and the key and
/// content of the file.
const NAMING_FILES: [(&str, u32, &str, &str); 7] = [
    ("best/a", 1100, "best/a/best", "step-1100"),
    ("text/b", 2100, "text/b/best_checkpoint.txt", "out/step-2100\n"),
    ("above/c", 3100, "above/PRODUCTION", "STEP-3100"),
    ("far/d/e", 4100, "deployed.json", "{\"path\": \"s3:\\/\\/lake\\/far\\/step-4100\"}"),
    ("name/f", 5100, "name/f/keep-step-5100", "x"),
    ("kept/g", 6100, "kept/g/step-6300/notes.txt", "went on from step-6100"),
    ("number/h", 7100, "number/h/serve", "7100\n"),
];

fn steps_of(run: &str, steps: &[u32]) -> Vec<String> {
    steps.iter().flat_map(|step| dcp(&format!("{run}/step-{step}"), 1)).collect()
}

/// A checkpoint that a small file names is kept, and so are the checkpoints that its own files name.
#[test]
fn checkpoints_named_by_a_small_file_stay_and_plan_names_the_file() {
    let bench = TieredBench::new();
    let server = start_with_bucket(&bench);
    let client = server.client();
    let (mut goes, mut stays) = (Vec::new(), Vec::new());
    for (run, first, file, content) in NAMING_FILES {
        write(&client, &steps_of(run, &[first, first + 100, first + 200]));
        runtime().block_on(client.put(BUCKET, file, full_body(content))).expect("stored");
        goes.extend(steps_of(run, &[first + 100]));
        stays.extend(steps_of(run, &[first, first + 200]));
        stays.push(file.to_owned());
    }
    // A neighboring file names the second checkpoint, whose notes name the first one.
    write(&client, &steps_of("chain/i", &[8100, 8200, 8300]));
    for (key, content) in [("chain/i/served", "step-8200"), ("chain/i/step-8200/notes.md", "from step-8100")]
    {
        runtime().block_on(client.put(BUCKET, key, full_body(content))).expect("stored");
        stays.push(key.to_owned());
    }
    stays.extend(steps_of("chain/i", &[8100, 8200, 8300]));
    // Larger files are not read, and text that only resembles a name does not count.
    write(&client, &steps_of("clear/j", &[9100, 9200, 9300]));
    let long = format!("step-9100\n{}", " ".repeat(65 << 10));
    for (key, content) in [("clear/j/log.txt", long.as_str()), ("clear/j/note", "step-91001 xstep-9200")] {
        runtime().block_on(client.put(BUCKET, key, full_body(content.to_owned()))).expect("stored");
        stays.push(key.to_owned());
    }
    goes.extend(steps_of("clear/j", &[9100, 9200]));
    stays.extend(steps_of("clear/j", &[9300]));
    let rules = retain("keep_last: 1, delete: true, grace: 0s");
    let path = bench.dir.path().join("q.yaml");
    std::fs::write(&path, format!("version: 1\nrules:\n{rules}")).expect("written");
    let output = bench.run(&["policy", "plan", &path.display().to_string()]);
    for (run, first, file, _) in NAMING_FILES {
        let line = format!(
            "s3://lake/{run}/step-{first}/ (2 objects, 2.0 KiB) would be spilled: rule few retains \
             others; not deleted: {file} refers to it.\n"
        );
        assert!(output.contains(&line), "{line}{output}");
    }
    bench.apply(&rules);
    wait_until_deleted(&client, &goes);
    // Two more passes over all objects.
    for run in ["later/k", "last/l"] {
        write(&client, &steps_of(run, &[1, 2, 3]));
        wait_until_deleted(&client, &steps_of(run, &[1, 2]));
        stays.extend(steps_of(run, &[3]));
    }
    stays.sort();
    assert_eq!(listed(&client), stays);
    // Every reason is listed. By now two checkpoints are left of each run.
    let output = bench.run(&["policy", "plan"]);
    for (run, first, file, _) in NAMING_FILES {
        let line = format!("s3://lake/{run}/step-{first}/ ");
        let found = output.lines().find(|one| one.starts_with(&line)).unwrap_or_default();
        let is_listed = found.ends_with(&format!("; {file} refers to it."));
        assert!(is_listed && found.contains("only two checkpoints have such a name"), "{line}: {output}");
    }
    server.stop();
}

/// In a folder with more small files than are read, any of the files may name a checkpoint.
#[test]
fn nothing_is_deleted_beside_more_small_files_than_are_read() {
    let bench = TieredBench::new();
    let server = start_with_bucket(&bench);
    let client = server.client();
    let runs = [steps_of("many/a", &[100, 200, 300]), steps_of("few/b", &[1, 2, 3])].concat();
    write(&client, &runs);
    let small: Vec<String> = (0..=1_000).map(|number| format!("many/a/note-{number:04}")).collect();
    runtime().block_on(async {
        for key in &small {
            client.put(BUCKET, key, full_body("n")).await.expect("stored");
        }
    });
    bench.apply(&retain("keep_last: 1, delete: true, grace: 0s"));
    wait_until_deleted(&client, &steps_of("few/b", &[1, 2]));
    let why =
        "more than 1000 small files, or more than 16777216 bytes of them, in \"many/a/\" may refer to it";
    wait_until("plan names the reason", || bench.run(&["policy", "plan"]).contains(why));
    let is_there = |key: &String| runtime().block_on(client.head(BUCKET, key)).is_ok();
    assert!(steps_of("many/a", &[100, 200, 300]).iter().all(is_there));
    // With one file fewer, all are read.
    runtime().block_on(client.delete(BUCKET, &small[0])).expect("deleted");
    wait_until_deleted(&client, &steps_of("many/a", &[100, 200]));
    server.stop();
}

/// Names with settings that look like steps, two that may be settings, and the best checkpoint by a measure
/// in its name.
#[test]
fn names_that_may_be_settings_and_the_best_checkpoint_are_not_deleted() {
    let bench = TieredBench::new();
    let server = start_with_bucket(&bench);
    let client = server.client();
    let folders =
        ["a/steps-1000", "a/steps-2000", "a/steps-3000", "b/ckpt10", "b/ckpt20", "c/iter10", "c/iter20"];
    let numbers = ["10", "20", "d/123450", "d/123460"];
    let mut stays: Vec<String> = folders.iter().chain(&numbers).flat_map(|folder| dcp(folder, 1)).collect();
    let losses = ["epoch=1-val_loss=0.10", "epoch=2-val_loss=0.90", "epoch=3-val_loss=0.50"];
    let [best, worst, newest] = losses.map(|name| format!("e/f/{name}.ckpt"));
    write(&client, &stays);
    write(&client, &[best.clone(), worst.clone(), newest.clone()]);
    stays.extend([best, newest]);
    bench.apply(&retain("keep_last: 1, delete: true, grace: 0s"));
    wait_until_deleted(&client, &[worst]);
    for run in ["later/k", "last/l"] {
        write(&client, &steps_of(run, &[1, 2, 3]));
        wait_until_deleted(&client, &steps_of(run, &[1, 2]));
        stays.extend(steps_of(run, &[3]));
    }
    stays.sort();
    assert_eq!(listed(&client), stays);
    let output = bench.run(&["policy", "plan"]);
    for (name, why) in [
        ("a/steps-1000/", "its name has numbers or words that may distinguish runs or parts, not only steps"),
        ("b/ckpt10/", "only two checkpoints have such a name, and the numbers may be settings, not steps"),
    ] {
        let line = format!("s3://lake/{name} (2 objects, 2.0 KiB) is due for deletion at ");
        let found = output.lines().find(|one| one.starts_with(&line));
        assert!(found.is_some_and(|one| one.contains(why)), "{name}: {output}");
    }
    server.stop();
}

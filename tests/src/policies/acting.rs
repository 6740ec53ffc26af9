//! Effects of rules on objects at rest, seen through S3: objects are spilled, promoted, pinned, evicted and
//! deleted.

use super::write;
use crate::content::TestContent;
use crate::s3::{S3TestClient, full_body};
use crate::server::{ServerProcess, ServerSetup, runtime};
use http::Method;
use mlgw_common::time::Instant;
use serde_json::Value;
use std::fs;
use std::time::Duration;

pub(super) const BUCKET: &str = "lake";

/// A server with a cold tier and small segments, whose policy reconciler visits its objects every second.
pub(super) struct TieredBench {
    pub(super) dir: tempfile::TempDir,
    pub(super) setup: ServerSetup,
}

impl TieredBench {
    pub(super) fn new() -> Self {
        let room = super::temp_dir();
        let cold = room.path().join("cold");
        fs::create_dir(&cold).expect("made");
        let setup = ServerSetup::new(room.path().join("data"))
            .with("cold.dirs", cold.display())
            .with("cold.move_bytes_per_second", "10GiB")
            .with("hot.segment_bytes", "1MiB")
            .with("hot.compact_interval", "20ms")
            .with("memory.capacity", "0")
            .with("policy.look_every", "1s");
        Self { dir: room, setup }
    }

    pub(super) fn run(&self, words: &[&str]) -> String {
        let (output, status) = self.setup.command(words);
        assert_eq!(status, Some(0), "{words:?}: {output}");
        output
    }

    pub(super) fn run_json(&self, words: &[&str]) -> Value {
        let output = self.run(&[&["--output", "json"], words].concat());
        serde_json::from_str(&output).unwrap_or_else(|error| panic!("{error}: {output}"))
    }

    /// Applies a policy with these rules.
    pub(super) fn apply(&self, rules: &str) {
        write(self.dir.path(), "p.yaml", &format!("version: 1\nrules:\n{rules}"));
        self.run(&["policy", "apply", &self.dir.path().join("p.yaml").display().to_string()]);
    }

    /// Returns the tiers of an object.
    fn tiers(&self, bucket: &str, key: &str) -> Vec<String> {
        let shown = self.run_json(&["object", "show", &format!("s3://{bucket}/{key}")]);
        let tiers = shown["tiers"].as_array().expect("tiers").iter();
        tiers.map(|tier| tier["tier"].as_str().expect("a tier").to_owned()).collect()
    }

    pub(super) fn is_in(&self, key: &str, tier: &str) -> bool {
        self.tiers(BUCKET, key) == [tier]
    }

    pub(super) fn count(&self, action: &str, outcome: &str) -> u64 {
        let metrics = self.run(&["status", "--metrics"]);
        let name = format!("mlgw_policy_actions_total{{action=\"{action}\",outcome=\"{outcome}\"}} ");
        let line = metrics.lines().find_map(|line| line.strip_prefix(&name));
        line.unwrap_or_else(|| panic!("{name}: {metrics}")).parse().expect("a number")
    }

    /// Counts the decisions of a kind that a rule has caused.
    pub(super) fn decided(&self, kind: &str, rule: &str) -> usize {
        let listed = self.run_json(&["policy", "decisions", "--kind", kind, "--limit", "1000"]);
        let listed = listed["decisions"].as_array().expect("decisions").iter();
        listed
            .filter(|one| one["reason"] == "rule" && one["rule"] == rule && one["outcome"] == "done")
            .count()
    }

    /// Returns the pending deletions: each prefix with its start of the grace period.
    pub(super) fn deletions(&self) -> Vec<(String, String)> {
        let path = self.dir.path().join("p.yaml").display().to_string();
        let plan = self.run_json(&["policy", "plan", &path]);
        let word = |one: &Value, name: &str| one[name].as_str().expect("a word").to_owned();
        let deletions = plan["deletions"].as_array().expect("deletions").iter();
        deletions.map(|one| (word(one, "objects"), word(one, "since"))).collect()
    }
}

pub(super) fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(90), "never: {what}");
        mlgw_common::time::block_for(Duration::from_millis(50));
    }
}

pub(super) fn content(key: &str, length: usize) -> bytes::Bytes {
    TestContent { id: key.bytes().map(u64::from).sum(), length }.bytes()
}

pub(super) async fn put(client: &S3TestClient, key: &str, length: usize) {
    client.put(BUCKET, key, full_body(content(key, length))).await.expect("stored");
}

async fn assert_reads_back(client: &S3TestClient, key: &str, length: usize) {
    assert_eq!(client.get(BUCKET, key).await.expect("read").body, content(key, length), "{key}");
}

pub(super) fn start_with_bucket(bench: &TieredBench) -> ServerProcess {
    let server = bench.setup.start();
    runtime().block_on(server.client().create_bucket(BUCKET)).expect("made");
    server
}

pub(super) fn rule(id: &str, pattern: &str, action: &str) -> String {
    format!(
        "- id: {id}\n  conditions: [{{type: file_pattern, property: key, operator: matches, \
         value: '{pattern}'}}]\n  actions: [{action}]\n"
    )
}

#[test]
fn only_spilled_objects_go_to_the_cold_tier_and_return_when_promoted() {
    let bench = TieredBench::new();
    let server = start_with_bucket(&bench);
    let objects: Vec<(String, usize)> = (0..12)
        .map(|n| {
            let folder = if n % 3 == 0 { "logs" } else { "train" };
            (format!("{folder}/{n}"), 3_000 + 40_000 * n)
        })
        .collect();
    runtime().block_on(async {
        for (key, length) in &objects {
            put(&server.client(), key, *length).await;
        }
    });
    let are_in = |tier: &str| {
        let mut logs = objects.iter().filter(|(key, _)| key.starts_with("logs/"));
        logs.all(|(key, _)| bench.is_in(key, tier))
    };
    let all_read_back = || {
        runtime().block_on(async {
            for (key, length) in &objects {
                assert_reads_back(&server.client(), key, *length).await;
            }
        });
    };
    bench.apply(&rule("logs-down", "logs/**", "{type: spill}"));
    wait_until("the logs are in the cold tier", || are_in("cold"));
    let others = || objects.iter().filter(|(key, _)| key.starts_with("train/"));
    assert!(others().all(|(key, _)| bench.is_in(key, "hot")), "objects in the same segments stay");
    all_read_back();
    wait_until("the decision is reported", || {
        bench.decided("spill", "logs-down") > 0 && bench.count("spill", "done") > 0
    });
    bench.apply(&rule("logs-up", "logs/**", "{type: promote}"));
    wait_until("the logs are in the hot tier", || are_in("hot"));
    all_read_back();
    wait_until("the decision is reported", || {
        bench.decided("promote", "logs-up") > 0 && bench.count("promote", "done") > 0
    });
    assert!(others().all(|(key, _)| bench.is_in(key, "hot")));
    server.stop();
}

#[test]
fn pinned_objects_stay_under_pressure_until_unpinned() {
    let bench = TieredBench::new();
    let setup = bench.setup.clone();
    let setup = setup
        .with("hot.capacity", "16MiB")
        .with("cold.spill_from_percent", "50")
        .with("cold.spill_to_percent", "30");
    let bench = TieredBench { setup, ..bench };
    let server = start_with_bucket(&bench);
    const LENGTH: usize = 900_000;
    let client = server.client();
    runtime().block_on(put(&client, "model/weights", LENGTH));
    bench.apply(&rule("model-stays", "model/*", "{type: pin}"));
    wait_until("the object is pinned", || bench.count("pin", "done") == 1);
    let fill = |from: usize| {
        runtime().block_on(async {
            for n in from..from + 14 {
                put(&client, &format!("data/{n}"), LENGTH).await;
            }
        });
    };
    let is_down = |n: usize| bench.is_in(&format!("data/{n}"), "cold");
    fill(0);
    wait_until("the tier spills unpinned objects", || is_down(0) && is_down(5));
    assert!(bench.is_in("model/weights", "hot"), "the oldest object stays");
    bench.apply(&rule("nothing", "none/*", "{type: pin}"));
    wait_until("the object is unpinned", || bench.count("unpin", "done") == 1);
    fill(14);
    wait_until("the object is spilled like all others", || bench.is_in("model/weights", "cold"));
    runtime().block_on(assert_reads_back(&client, "model/weights", LENGTH));
    server.stop();
}

#[test]
fn evicted_copies_are_fetched_again_and_pinned_copies_stay() {
    let room = super::temp_dir();
    let origin = ServerSetup::new(room.path().join("origin")).start();
    let setup = ServerSetup::new(room.path().join("data"))
        .with_upstream("far", origin.s3, "there", "5s")
        .with("policy.look_every", "1s");
    let bench = TieredBench { dir: room, setup };
    let keys = ["a.tar", "b.tar", "c.idx"];
    runtime().block_on(async {
        origin.client().create_bucket("there").await.expect("made");
        for key in keys {
            origin.client().put("there", key, full_body(content(key, 5000))).await.expect("stored");
        }
    });
    let server = bench.setup.start();
    bench.run(&["bucket", "bind", "here", "--upstream", "far", "--ttl", "1h"]);
    let read = |key: &str| {
        let answer = runtime().block_on(server.client().get("here", key)).expect("read");
        assert_eq!(answer.body, content(key, 5000));
        answer.header("x-mlgw-cache").expect("the header names the tier").to_owned()
    };
    for key in keys {
        read(key);
    }
    let is_here = |key: &str| bench.tiers("here", key).iter().any(|tier| tier == "copies");
    wait_until("all copies are kept", || keys.iter().all(|key| is_here(key)));
    assert!(keys.iter().all(|key| read(key).starts_with("hit")));
    let stays = rule("b-stays", "b.*", "{type: pin}").replace("  conditions", "  priority: 50\n  conditions");
    bench.apply(&(stays + &rule("tars-go", "*.tar", "{type: evict}")));
    wait_until("one copy is evicted", || !is_here("a.tar"));
    assert!(is_here("b.tar") && is_here("c.idx"), "pinned copies and copies without a rule stay");
    wait_until("the decision is reported", || {
        bench.decided("evict", "tars-go") > 0 && bench.count("evict", "done") > 0
    });
    assert_eq!((&read("b.tar")[..3], &read("c.idx")[..3], &read("a.tar")[..4]), ("hit", "hit", "miss"));
    let pinned = || bench.run_json(&["policy", "explain", "s3://here/b.tar"])["kept"]["pinned"].clone();
    wait_until("the engine has pinned the copy", || pinned() == 1);
    bench.apply(&rule("tars-go", "*.tar", "{type: evict}"));
    wait_until("the other copy is evicted, too", || !is_here("b.tar"));
    server.stop();
}

/// Puts a checkpoint with the files that `torch.distributed.checkpoint` writes.
pub(super) async fn save(client: &S3TestClient, run: &str, step: u32) {
    for file in ["__0_0.distcp", "__1_0.distcp", ".metadata"] {
        put(client, &format!("{run}/step-{step}/{file}"), 20_000).await;
    }
}

/// Deletes two objects in one request. Returns the number of accesses that the engine recorded meanwhile.
async fn recorded_deletions(bench: &TieredBench, client: &S3TestClient) -> u64 {
    let recorded = || {
        let metrics = bench.run(&["status", "--metrics"]);
        let line = metrics.lines().find_map(|line| line.strip_prefix("mlgw_policy_accesses_total "));
        line.expect("the figure").parse::<u64>().expect("a number")
    };
    put(client, "tmp/a", 100).await;
    put(client, "tmp/b", 100).await;
    let before = recorded();
    let document = "<Delete><Object><Key>tmp/a</Key></Object><Object><Key>tmp/b</Key></Object></Delete>";
    client
        .call(Method::POST, &format!("/{BUCKET}?delete="), &[], full_body(document))
        .await
        .expect("deleted");
    recorded() - before
}

fn first_of(step: u32) -> String {
    format!("run/step-{step}/__0_0.distcp")
}

/// Sets this tag on an object, and no other.
pub(super) async fn tag(client: &S3TestClient, key: &str, name: &str) {
    let tags = format!("<Tagging><TagSet><Tag><Key>{name}</Key><Value>1</Value></Tag></TagSet></Tagging>");
    let path = format!("/{BUCKET}/{key}?tagging");
    client.call(http::Method::PUT, &path, &[], full_body(tags)).await.expect("tagged");
}

pub(super) fn retain(parameters: &str) -> String {
    format!(
        "- id: few\n  conditions: [{{type: file_context, property: type, operator: equals, \
         value: checkpoint}}]\n  actions: [{{type: retain, target: checkpoint_group, \
         parameters: {{{parameters}}}}}]\n"
    )
}

#[test]
fn checkpoints_that_are_not_retained_are_spilled_and_the_newest_stay() {
    let bench = TieredBench::new();
    let server = start_with_bucket(&bench);
    runtime().block_on(async {
        for step in [100, 200, 300, 1000] {
            save(&server.client(), "run", step).await;
        }
    });
    wait_until("the newest is pinned without a rule", || bench.count("pin", "done") == 3);
    assert_eq!(runtime().block_on(recorded_deletions(&bench, &server.client())), 2);
    bench.apply(&retain("keep_last: 2"));
    let are_in = |steps: &[u32], tier: &str| steps.iter().all(|step| bench.is_in(&first_of(*step), tier));
    wait_until("older checkpoints are in the cold tier", || are_in(&[100, 200], "cold"));
    assert!(are_in(&[300, 1000], "hot"));
    let mut server = server;
    server.kill();
    let server = bench.setup.start();
    runtime().block_on(save(&server.client(), "run", 1100));
    wait_until("the next checkpoint is spilled after a kill, too", || are_in(&[300], "cold"));
    assert!(are_in(&[1000, 1100], "hot"));
    runtime().block_on(async {
        for step in [100, 200, 300, 1000, 1100] {
            assert_reads_back(&server.client(), &first_of(step), 20_000).await;
        }
    });
    server.stop();
}

#[test]
fn a_deletion_waits_for_its_grace_is_cancelled_by_a_rollback_and_spares_the_newest() {
    let bench = TieredBench::new();
    let server = start_with_bucket(&bench);
    let client = server.client();
    runtime().block_on(async {
        for step in [100, 200, 300] {
            save(&client, "run", step).await;
        }
        // This checkpoint is still being written, or was abandoned.
        put(&client, &first_of(400), 20_000).await;
    });
    let planned = |parameters: &str| {
        write(bench.dir.path(), "q.yaml", &format!("version: 1\nrules:\n{}", retain(parameters)));
        let plan =
            bench.run_json(&["policy", "plan", &bench.dir.path().join("q.yaml").display().to_string()]);
        let rows = plan["expired"].as_array().expect("checkpoints").clone();
        let row =
            |one: &Value| (one["objects"].as_str().expect("a prefix").to_owned(), one["is_deleted"] == true);
        rows.iter().map(row).collect::<Vec<_>>()
    };
    let step = |step: u32| format!("s3://lake/run/step-{step}/");
    wait_until("planned deletions are known in advance", || planned("keep_last: 2") == [(step(100), false)]);
    assert_eq!(planned("keep_last: 1, delete: true, grace: 1h"), [(step(100), true), (step(200), true)]);
    bench.apply(&retain("keep_last: 2"));
    assert_eq!(planned("keep_last: 2"), [], "the plan has no changes");
    bench.apply(&retain("keep_last: 1, delete: true, grace: 1h"));
    let prefixes = || bench.deletions().into_iter().map(|(prefix, _)| prefix).collect::<Vec<_>>();
    wait_until("two wait", || prefixes() == ["s3://lake/run/step-100/", "s3://lake/run/step-200/"]);
    let recorded_at =
        |prefix: &str| bench.deletions().into_iter().find(|one| one.0 == prefix).expect("noted").1;
    let before = recorded_at("s3://lake/run/step-100/");
    runtime().block_on(assert_reads_back(&client, &first_of(100), 20_000));
    wait_until("a read restarts the grace period", || recorded_at("s3://lake/run/step-100/") > before);
    let before = recorded_at("s3://lake/run/step-200/");
    runtime().block_on(client.copy(BUCKET, &first_of(200), "kept.bin")).expect("copied");
    wait_until("a copy restarts the grace period", || recorded_at("s3://lake/run/step-200/") > before);
    let before = recorded_at("s3://lake/run/step-200/");
    runtime().block_on(tag(&client, &first_of(200), "keep"));
    wait_until("a new tag restarts the grace period", || recorded_at("s3://lake/run/step-200/") > before);
    let path = bench.dir.path().join("p.yaml").display().to_string();
    let output = bench.run(&["policy", "plan", &path]);
    assert!(
        output.contains("s3://lake/run/step-200/ (3 objects, ") && output.contains("is deleted at"),
        "{output}"
    );
    let mut server = server;
    server.kill();
    let server = bench.setup.start();
    assert_eq!(prefixes().len(), 2, "recorded deletions are known immediately");
    let client = server.client();
    let is_there = |step: u32| runtime().block_on(client.head(BUCKET, &first_of(step))).is_ok();
    bench.run(&["policy", "rollback"]);
    wait_until("the deletion is cancelled", || prefixes().is_empty());
    assert!([100, 200, 300, 400].into_iter().all(is_there));
    bench.apply(&retain("keep_last: 1, delete: true, grace: 0s"));
    wait_until("older checkpoints are deleted", || !is_there(100) && !is_there(200));
    wait_until("nothing waits", || prefixes().is_empty());
    assert!(is_there(300) && is_there(400), "the newest complete checkpoint and the unfinished one stay");
    let listed = runtime().block_on(client.list(BUCKET, 1000)).expect("listed");
    assert_eq!(listed.len(), 5, "all objects of the others are deleted; the copy stays");
    let audit = fs::read_to_string(bench.setup.data_dir.join("audit/audit.log")).expect("the audit log");
    assert_eq!(audit.matches("policy.retain.delete").count(), 2, "{audit}");
    assert!(bench.decided("delete", "few") > 0 && bench.count("retain", "done") == 6);
    server.stop();
}

/// Only the objects of a checkpoint are deleted with it: `epoch-1` is a prefix of `epoch-10`, and
/// `epoch-1.pt` is a prefix of a neighboring file of the user.
#[test]
fn deleting_a_checkpoint_keeps_objects_whose_names_only_share_its_prefix() {
    let bench = TieredBench::new();
    let server = start_with_bucket(&bench);
    let client = server.client();
    let beside = ["run/epoch-1.pt.notes", "run/epoch-1-plot.png", "run/readme.txt"];
    let models = |steps: std::ops::RangeInclusive<u32>| steps.map(|step| format!("run/epoch-{step}.pt"));
    runtime().block_on(async {
        for key in models(1..=12) {
            put(&client, &key, 20_000).await;
        }
        for key in beside {
            put(&client, key, 100).await;
        }
    });
    // The last checkpoint is not known to be complete, so it is kept in addition to the two.
    bench.apply(&retain("keep_last: 2, delete: true, grace: 0s"));
    let listed = || {
        let rows = runtime().block_on(client.list(BUCKET, 1000)).expect("listed");
        rows.into_iter().map(|row| row.key).collect::<Vec<_>>()
    };
    let mut expected: Vec<String> = models(10..=12).chain(beside.map(str::to_owned)).collect();
    expected.sort();
    wait_until("older checkpoints are deleted", || models(1..=9).all(|key| !listed().contains(&key)));
    assert_eq!(listed(), expected);
    assert!(models(10..=12).all(|key| bench.is_in(&key, "hot")));
    server.stop();
}

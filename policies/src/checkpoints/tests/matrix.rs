//! Tests: deletions over all combinations of run folders, step folders and files.

use super::{MINUTE_US, NEWEST, new};
use crate::checkpoints::{CheckpointIndex, DeletionGuard, GroupId};
use std::collections::{BTreeMap, BTreeSet};

/// Run folders, by run number.
const RUNS: [fn(u64) -> String; 20] = [
    |run| format!("{run}"),
    |run| format!("471120{run}"),
    |run| format!("2026110{run}"),
    |run| format!("epoch_{run}"),
    |run| format!("ckpt-{run}"),
    |run| format!("v{run}"),
    |run| format!("run{run}"),
    |run| format!("2026-11-0{run}"),
    |run| format!("step_size_0.{run}"),
    |run| format!("warmup-steps-{run}00"),
    |run| format!("model-{run}b"),
    |run| format!("iter-{run}"),
    |run| format!("max_steps_{run}00"),
    |run| format!("step-{run}00"),
    |run| format!("checkpoint-{run}00"),
    |run| format!("global_step{run}"),
    |run| format!("seeds/{run}"),
    |run| format!("ep{run}"),
    |run| format!("{run}/model"),
    |run| format!("1/{run}"),
];
/// Path between a run and its steps.
const BETWEEN: [&str; 3] = ["/", "/ck/", "/checkpoints/default/"];
/// Step folders, by step number.
const STEPS: [fn(u64) -> String; 11] = [
    |step| format!("step-{step}"),
    |step| format!("step_{step}"),
    |step| format!("checkpoint-{step}"),
    |step| format!("ckpt_{step}"),
    |step| format!("global_step{step}"),
    |step| format!("iter_{step:07}"),
    |step| format!("epoch_{step}"),
    |step| format!("{step}"),
    |step| format!("ep1-ba{step}"),
    |step| format!("epoch=0-step={step}.ckpt"),
    |step| format!("ep_{step}"),
];
/// Content of a step folder, in the order of writing.
const FILES: [&[&str]; 11] = [
    &["__0_0.distcp", "__1_0.distcp", ".metadata"],
    &["weights/__0_0.distcp", "weights/.metadata"],
    &["model/__0_0.distcp", "model/.metadata", "optim/__0_0.distcp", "optim/.metadata"],
    &["model.pt", "optim.pt"],
    &["rank_0/model.pt", "rank_1/model.pt"],
    &["rank/0/model.pt", "rank/1/model.pt"],
    &["0/model.pt", "1/model.pt"],
    &["0/__0_0.distcp", "0/.metadata", "1/__0_0.distcp", "1/.metadata"],
    &[
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
        "trainer_state.json",
    ],
    &["default/manifest.ocdbt", "default/d/abc", "_CHECKPOINT_METADATA"],
    &["params/ocdbt.process_0/d/0af3", "params/manifest.ocdbt", "commit_success.txt"],
];

/// Steps of three runs.
#[derive(Clone, Copy, PartialEq)]
enum How {
    /// All have the same steps.
    Same,
    /// Each begins where the previous one ended.
    After,
    /// The first has one step, the second two.
    Growing,
}

/// Returns the keys by run and step, in the order of writing.
fn written(
    name: fn(u64) -> String,
    between: &str,
    step: fn(u64) -> String,
    files: &[&str],
    how: How,
) -> Vec<(u64, u64, String)> {
    let mut keys = Vec::new();
    for run in 1..=3 {
        for at in 1..=3 {
            let at = match how {
                How::Same => at,
                How::After => (run - 1) * 3 + at,
                How::Growing if at > run => continue,
                How::Growing => at,
            };
            let folder = format!("x/{}{between}{}", name(run), step(at * 100));
            keys.extend(files.iter().map(|file| (run, at, format!("{folder}/{file}"))));
        }
    }
    keys
}

/// Returns the index long after the last write.
fn known(keys: &[(u64, u64, String)]) -> CheckpointIndex {
    let mut known = new();
    for (at, (_, _, key)) in keys.iter().enumerate() {
        known.record_listed(MINUTE_US * (1 + at as u64), 1, key, 100);
    }
    known.mark_quiet(MINUTE_US * (1000 + keys.len() as u64));
    known
}

fn deletable(known: &CheckpointIndex) -> Vec<GroupId> {
    let all: Vec<_> = known.series().map(|series| series.id).collect();
    let goes = all.into_iter().flat_map(|series| known.retain(series, NEWEST, &|_| None));
    let mut doubts = known.deletion_checks();
    goes.filter(|id| doubts.guards_of(*id).is_empty()).collect()
}

/// Returns the remaining keys, with run and step, when nothing more is deleted.
fn remaining(keys: &[(u64, u64, String)]) -> BTreeSet<(u64, u64, String)> {
    let mut there: BTreeSet<_> = keys.iter().cloned().collect();
    let mut known = known(keys);
    loop {
        let goes = deletable(&known);
        if goes.is_empty() {
            return there;
        }
        for id in goes {
            let prefix = known.group(id).unwrap().prefix.to_owned();
            let gone: Vec<_> = there
                .iter()
                .filter(|(.., key)| CheckpointIndex::prefix_of(key) == Some(&prefix))
                .cloned()
                .collect();
            assert!(!gone.is_empty(), "{prefix}");
            for one in gone {
                known.record_delete(1, &one.2);
                there.remove(&one);
            }
        }
    }
}

#[test]
fn the_newest_of_every_run_stays_and_no_group_spans_two_runs() {
    let (mut all, mut cleaned) = (0, 0);
    for (name, between, step, files, how) in RUNS.iter().flat_map(|name| {
        BETWEEN.iter().flat_map(move |between| {
            STEPS.iter().flat_map(move |step| {
                FILES.iter().flat_map(move |files| {
                    [How::Same, How::After, How::Growing].map(|how| (*name, *between, *step, *files, how))
                })
            })
        })
    }) {
        let keys = written(name, between, step, files, how);
        let first = &keys[0].2;
        if first.starts_with("x/checkpoint-100/global_step100/") && how == How::Growing {
            // A run with one step and the same name as the step is a checkpoint of the Trainer of
            // transformers.
            continue;
        }
        let mut groups: BTreeMap<&str, BTreeSet<(u64, u64)>> = BTreeMap::new();
        for (run, step, key) in &keys {
            if let Some(prefix) = CheckpointIndex::prefix_of(key) {
                groups.entry(prefix).or_default().insert((*run, *step));
            }
        }
        let known = known(&keys);
        for (prefix, of) in groups.iter().filter(|(_, of)| of.len() > 1) {
            let key = keys.iter().find(|(.., key)| CheckpointIndex::prefix_of(key) == Some(prefix)).unwrap();
            let id = known.group_of(1, &key.2).unwrap().id;
            assert_eq!(
                known.deletion_guards(id).first(),
                Some(&DeletionGuard::HoldsSteps),
                "{prefix} {of:?}"
            );
        }
        let left = remaining(&keys);
        for run in 1..=3 {
            let newest = keys.iter().filter(|key| key.0 == run).map(|key| key.1).max().unwrap();
            let gone: Vec<_> =
                keys.iter().filter(|key| key.0 == run && key.1 == newest && !left.contains(key)).collect();
            assert!(gone.is_empty(), "{gone:?} of {first}");
        }
        // A checkpoint is deleted completely or not at all.
        let steps: BTreeSet<_> = left.iter().map(|key| (key.0, key.1)).collect();
        let torn: Vec<_> =
            keys.iter().filter(|key| steps.contains(&(key.0, key.1)) && !left.contains(key)).collect();
        assert!(torn.is_empty(), "{torn:?} of {first}");
        // Of runs with different progress, such as ranks after one of them failed, the common steps stay.
        if how != How::Growing {
            all += 1;
            cleaned += usize::from(steps.len() == 3);
        }
    }
    assert!(cleaned * 3 > all * 2, "{cleaned} of {all}: undoubted checkpoints are deleted");
}

//! Tests: lists of files as frameworks write them, and arbitrary writes and deletions compared with a model.

use super::{CheckpointIndex, Generation, Layout, Limits, RetentionRule};
use proptest::{collection::vec, prop_assert, prop_assert_eq, proptest};
use std::collections::{BTreeMap, BTreeSet};

mod best;
mod matrix;
mod uploads;

const MINUTE_US: u64 = 60_000_000;

fn new() -> CheckpointIndex {
    CheckpointIndex::new(Limits::default())
}

/// Writes files one after the other. Returns, after each write, whether the checkpoint of the first file is
/// complete.
fn complete_after(known: &mut CheckpointIndex, from_us: u64, files: &[&str]) -> Vec<bool> {
    let mut complete = Vec::new();
    for (at, key) in files.iter().enumerate() {
        known.record_write(from_us + at as u64, 1, key, 100);
        complete.push(known.group_of(1, files[0]).is_some_and(|it| it.is_complete()));
    }
    complete
}

const DCP: &[&str] = &[
    "r/step-500/__0_0.distcp",
    "r/step-500/__1_0.distcp",
    "r/step-500/__1_1.distcp",
    "r/step-500/.metadata",
];
const SAFETENSORS: &[&str] = &[
    "m/llama/config.json",
    "m/llama/model-00001-of-00003.safetensors",
    "m/llama/model-00002-of-00003.safetensors",
    "m/llama/model-00003-of-00003.safetensors",
    "m/llama/model.safetensors.index.json",
];
const TRAINER: &[&str] = &[
    "o/checkpoint-500/config.json",
    "o/checkpoint-500/generation_config.json",
    "o/checkpoint-500/model-00001-of-00002.safetensors",
    "o/checkpoint-500/model-00002-of-00002.safetensors",
    "o/checkpoint-500/model.safetensors.index.json",
    "o/checkpoint-500/tokenizer.json",
    "o/checkpoint-500/training_args.bin",
    "o/checkpoint-500/optimizer.pt",
    "o/checkpoint-500/scheduler.pt",
    "o/checkpoint-500/rng_state_0.pth",
    "o/checkpoint-500/trainer_state.json",
];
const LIGHTNING_FOLDER: &[&str] = &[
    "l/epoch=3-step=500.ckpt/__0_0.distcp",
    "l/epoch=3-step=500.ckpt/__1_0.distcp",
    "l/epoch=3-step=500.ckpt/.metadata",
    "l/epoch=3-step=500.ckpt/meta.pt",
];
const DEEPSPEED: &[&str] = &[
    "d/global_step500/mp_rank_00_model_states.pt",
    "d/global_step500/zero_pp_rank_0_mp_rank_00_optim_states.pt",
    "d/global_step500/zero_pp_rank_1_mp_rank_00_optim_states.pt",
    "d/latest",
    "d/zero_to_fp32.py",
];
const MEGATRON: &[&str] = &[
    "g/iter_0000500/mp_rank_00/model_optim_rng.pt",
    "g/iter_0000500/mp_rank_01/model_optim_rng.pt",
    "g/latest_checkpointed_iteration.txt",
];
const MEGATRON_DIST: &[&str] = &[
    "h/iter_0000500/common.pt",
    "h/iter_0000500/__0_0.distcp",
    "h/iter_0000500/__1_0.distcp",
    "h/iter_0000500/.metadata",
    "h/iter_0000500/metadata.json",
];
const ORBAX: &[&str] = &[
    "j/500/default/_METADATA",
    "j/500/default/ocdbt.process_0/d/0a1b",
    "j/500/default/ocdbt.process_1/manifest.ocdbt",
    "j/500/default/manifest.ocdbt",
    "j/500/commit_success.txt",
];
const TENSORFLOW: &[&str] =
    &["t/ckpt-500.data-00000-of-00002", "t/ckpt-500.data-00001-of-00002", "t/ckpt-500.index", "t/checkpoint"];

#[test]
fn each_framework_is_complete_when_it_has_written_the_last() {
    let (f, t) = (false, true);
    for (files, complete) in [
        (DCP, vec![f, f, f, t]),
        // The configuration alone does not identify the group; the shard names announce their total.
        (&SAFETENSORS[1..], vec![f, f, t, t]),
        (TRAINER, vec![f, f, f, f, f, f, f, f, f, f, t]),
        (LIGHTNING_FOLDER, vec![f, f, t, t]),
        (DEEPSPEED, vec![f, f, f, t, t]),
        (MEGATRON, vec![f, f, t]),
        (MEGATRON_DIST, vec![f, f, f, t, t]),
        (ORBAX, vec![f, f, f, f, t]),
        (TENSORFLOW, vec![f, f, t, t]),
        (&["l/epoch=3-step=500.ckpt"], vec![t]),
        (&["l/last.ckpt"], vec![t]),
        (&["m/bert/model.safetensors"], vec![t]),
        // Other files may follow.
        (&["p/ep1-ba500-rank0.pt", "p/ep1-ba500-rank1.pt"], vec![f, f]),
    ] {
        assert_eq!(complete_after(&mut new(), MINUTE_US, files), complete, "{files:?}");
    }
}

#[test]
fn a_listing_finds_what_the_writes_showed() {
    for files in [DCP, &SAFETENSORS[1..], TRAINER, LIGHTNING_FOLDER, DEEPSPEED, MEGATRON, ORBAX, TENSORFLOW] {
        let (mut written, mut listed) = (new(), new());
        let mut by_key: Vec<_> = files.iter().enumerate().collect();
        by_key.sort_by_key(|(_, key)| **key);
        complete_after(&mut written, MINUTE_US, files);
        for (at, key) in by_key {
            listed.record_listed(MINUTE_US + at as u64, 1, key, 100);
        }
        let shown = |known: &CheckpointIndex| {
            let found = known.group_of(1, files[0]).unwrap();
            (found.generation, found.files, found.bytes, found.step, found.layout, found.last)
        };
        assert_eq!(shown(&listed), shown(&written), "{files:?}");
        assert_eq!(shown(&listed).0, Some(0), "{files:?}");
    }
}

#[test]
fn late_extra_files_change_nothing() {
    let mut known = new();
    complete_after(&mut known, MINUTE_US, TRAINER);
    // Other ranks do not wait for the first.
    known.record_write(MINUTE_US + 100, 1, "o/checkpoint-500/rng_state_1.pth", 10);
    let found = known.group_of(1, TRAINER[0]).unwrap();
    assert_eq!((found.generation, found.files), (Some(0), 12));
    assert_eq!(known.group_of(1, "o/README.md"), None);
    assert_eq!(known.group_of(2, TRAINER[0]), None);
}

#[test]
fn a_rewritten_checkpoint_is_incomplete_until_the_end() {
    for files in [DCP, TRAINER, LIGHTNING_FOLDER, DEEPSPEED, MEGATRON, ORBAX, TENSORFLOW] {
        let mut known = new();
        complete_after(&mut known, MINUTE_US, files);
        let again = complete_after(&mut known, 2 * MINUTE_US, &files[..1]);
        assert_eq!(again, [false], "{files:?}");
        known.mark_quiet(60 * MINUTE_US);
        assert!(!known.group_of(1, files[0]).unwrap().is_complete(), "{files:?}: silence is not evidence");
        let again = complete_after(&mut known, 61 * MINUTE_US, files);
        assert_eq!(again.last(), Some(&true), "{files:?}");
    }
    let mut known = new();
    complete_after(&mut known, MINUTE_US, &SAFETENSORS[1..]);
    // Shards without an index are complete once all were rewritten.
    assert_eq!(complete_after(&mut known, 2 * MINUTE_US, &SAFETENSORS[1..4]), [false, false, true]);
}

#[test]
fn an_upload_in_any_order_is_complete_after_the_quiet_time() {
    let mut known = new();
    let mut order: Vec<&str> = DCP.to_vec();
    order.sort_unstable();
    assert_eq!(complete_after(&mut known, MINUTE_US, &order).last(), Some(&false));
    known.mark_quiet(5 * MINUTE_US);
    assert!(!known.group_of(1, DCP[0]).unwrap().is_complete());
    known.mark_quiet(12 * MINUTE_US);
    assert!(known.group_of(1, DCP[0]).unwrap().is_complete());
}

#[test]
fn plain_files_are_complete_when_the_next_begin_or_it_is_quiet() {
    let mut known = new();
    let is_complete = |known: &CheckpointIndex, key| known.group_of(1, key).unwrap().is_complete();
    known.record_write(MINUTE_US, 1, "p/model_step_500.pt", 10);
    known.record_write(2 * MINUTE_US, 1, "p/model_step_1000.pt", 10);
    assert!(is_complete(&known, "p/model_step_500.pt") && !is_complete(&known, "p/model_step_1000.pt"));
    known.mark_quiet(20 * MINUTE_US);
    assert!(is_complete(&known, "p/model_step_1000.pt"));
    // Numbers are compared as numbers.
    let series = known.series().next().unwrap();
    assert_eq!((series.name, series.groups), ("p/model_step_#", 2));
    assert_eq!(known.newest_complete(series.id).unwrap().step, Some(1000));
}

#[test]
fn shards_in_a_folder_of_a_step_are_complete_when_all_of_each_name_are_there() {
    let (f, t) = (false, true);
    let model = ["p/step_3/model-00001-of-00002.safetensors", "p/step_3/model-00002-of-00002.safetensors"];
    let index = "p/step_3/model.safetensors.index.json";
    let optimizer =
        ["p/step_3/optimizer-00001-of-00002.safetensors", "p/step_3/optimizer-00002-of-00002.safetensors"];
    for (files, complete) in [
        (vec![model[0], model[1], index], vec![f, t, t]),
        (vec!["p/step_3/config.json", index, model[1], model[0]], vec![f, f, f, t]),
        (vec![model[0], model[1], optimizer[0], optimizer[1]], vec![f, t, f, t]),
        (vec![model[0], optimizer[0], model[1], optimizer[1]], vec![f, f, f, t]),
        // The state beside them announces no total.
        (vec![model[0], model[1], "p/step_3/optimizer.pt"], vec![f, t, f]),
        (vec!["p/step_3/model.safetensors"], vec![f]),
        // Rewritten: incomplete until all were rewritten.
        (vec![model[0], model[1], model[0], model[1]], vec![f, t, f, t]),
    ] {
        let mut known = new();
        assert_eq!(complete_after(&mut known, MINUTE_US, &files), complete, "{files:?}");
        known.mark_quiet(60 * MINUTE_US);
        assert!(known.group_of(1, files[0]).unwrap().is_complete(), "{files:?}");
        known.record_delete(1, model[0]);
        let is_complete = known.group_of(1, files[0]).is_some_and(|one| one.is_complete());
        assert_eq!(is_complete, !files.contains(&model[0]), "{files:?}");
    }
}

#[test]
fn an_older_deepspeed_checkpoint_is_judged_by_the_pointed_one() {
    let mut known = new();
    let file = |step, rank| format!("d/global_step{step}/zero_pp_rank_{rank}_mp_rank_00_optim_states.pt");
    for (at, step) in [(1, 500), (2, 1000), (3, 1500)] {
        // One was interrupted.
        for rank in 0..if step == 1000 { 1 } else { 4 } {
            known.record_listed(at * MINUTE_US + rank, 1, &file(step, rank), 10);
        }
    }
    known.record_listed(4 * MINUTE_US, 1, "d/latest", 15);
    let complete = [500, 1000, 1500].map(|step| known.group_of(1, &file(step, 0)).unwrap().generation);
    assert_eq!(complete, [Some(1), None, Some(0)]);
}

#[test]
fn deletion_makes_a_group_incomplete_and_the_last_one_removes_it() {
    let mut known = new();
    complete_after(&mut known, MINUTE_US, DCP);
    known.record_delete(1, DCP[1]);
    assert!(!known.group_of(1, DCP[0]).unwrap().is_complete());
    let id = known.group_of(1, DCP[0]).unwrap().id;
    for key in DCP {
        known.record_delete(1, key);
    }
    assert_eq!((known.group(id), known.series().count(), known.memory_bytes()), (None, 0, 0));
}

fn write_steps(known: &mut CheckpointIndex, steps: impl Iterator<Item = u64>) {
    for step in steps {
        known.record_write(step * MINUTE_US, 1, &format!("r/step-{step}/__0_0.distcp"), 10);
        known.record_write(step * MINUTE_US + 1, 1, &format!("r/step-{step}/.metadata"), 1);
    }
}

/// Returns the steps that stay after a deletion of those that may be deleted.
fn retained(known: &mut CheckpointIndex, keep: RetentionRule) -> Vec<u64> {
    let series = known.series().next().unwrap().id;
    // The measure is best at step 7.
    let measure = |it: &Generation<'_>| it.step.map(|step| step.abs_diff(7) as f64);
    for id in known.retain(series, keep, &measure) {
        known.forget(id);
    }
    known.generations(series).iter().filter_map(|it| it.step).collect()
}

const NEWEST: RetentionRule = RetentionRule { last: 1, best: 0, lowest_is_best: true, every: 0 };

#[test]
fn the_newest_the_best_and_some_stay() {
    let after = |keep| {
        let mut known = new();
        write_steps(&mut known, 1..=20);
        retained(&mut known, keep)
    };
    assert_eq!(after(NEWEST), [20]);
    assert_eq!(after(RetentionRule { last: 0, ..NEWEST }), [20]);
    assert_eq!(after(RetentionRule { last: 3, ..NEWEST }), [18, 19, 20]);
    assert_eq!(after(RetentionRule { best: 2, ..NEWEST }), [7, 8, 20]);
    assert_eq!(after(RetentionRule { best: 1, lowest_is_best: false, ..NEWEST }), [20]);
    assert_eq!(after(RetentionRule { every: 5, ..NEWEST }), [1, 6, 11, 16, 20]);
}

#[test]
fn one_per_interval_stays_in_repeated_passes() {
    let mut known = new();
    for step in 1..=40 {
        write_steps(&mut known, step..=step);
        retained(&mut known, RetentionRule { last: 2, every: 5, ..NEWEST });
    }
    let stay = [1, 6, 11, 16, 21, 26, 31, 36, 39, 40];
    assert_eq!(retained(&mut known, RetentionRule { last: 2, every: 5, ..NEWEST }), stay);
    // A restarted server sees only existing checkpoints; intervals between those that stayed are not
    // intervals between saves.
    let mut listed = new();
    for step in [1, 6, 11, 16] {
        listed.record_listed(step, 1, &format!("r/step-{step}/__0_0.distcp"), 10);
        listed.record_listed(step, 1, &format!("r/step-{step}/.metadata"), 10);
    }
    assert_eq!(retained(&mut listed, RetentionRule { every: 5, ..NEWEST }), [1, 6, 11, 16]);
}

#[test]
fn a_restarted_run_loses_no_new_checkpoint() {
    let mut known = new();
    write_steps(&mut known, 100..=103);
    // Steps count from one again, and are written later.
    for step in 1..=3 {
        known.record_write(200 * MINUTE_US + step, 1, &format!("r/step-{step}/__0_0.distcp"), 10);
        known.record_write(200 * MINUTE_US + step, 1, &format!("r/step-{step}/.metadata"), 10);
    }
    known.record_write(300 * MINUTE_US, 1, "r/step-4/__0_0.distcp", 10);
    assert_eq!(retained(&mut known, NEWEST), [3, 4, 103]);
}

#[test]
fn memory_is_bounded_and_forgotten_groups_are_found_again() {
    let limits = Limits { memory_bytes_max: 20_000, ..Limits::default() };
    let mut known = CheckpointIndex::new(limits);
    for step in 1..=1000 {
        write_steps(&mut known, step..=step);
        assert!(known.memory_bytes() <= limits.memory_bytes_max);
    }
    let series = known.series().next().unwrap().id;
    let steps: Vec<_> = known.generations(series).iter().filter_map(|it| it.step).collect();
    assert_eq!(steps.last(), Some(&1000));
    assert!(steps.len() > 10 && steps.len() < 100 && steps.is_sorted(), "{}", steps.len());
    assert_eq!(known.group_of(1, "r/step-1/.metadata"), None);
    // A single group that is too large is counted, without the names of its files.
    for rank in 0..2000 {
        known.record_write(2000 * MINUTE_US, 1, &format!("r/step-2000/__{rank}_0.distcp"), 10);
    }
    known.record_write(2001 * MINUTE_US, 1, "r/step-2000/.metadata", 10);
    let found = known.group_of(1, "r/step-2000/.metadata").unwrap();
    assert_eq!((found.files, found.bytes, found.generation), (2001, 20_010, Some(0)));
    assert!(known.members(found.id).is_none() && known.memory_bytes() <= limits.memory_bytes_max);
}

#[test]
fn members_are_all_files_and_no_others() {
    let mut known = new();
    complete_after(&mut known, MINUTE_US, TRAINER);
    complete_after(&mut known, MINUTE_US, DCP);
    let found = known.group_of(1, TRAINER[3]).unwrap();
    let keys: BTreeSet<_> =
        known.members(found.id).unwrap().map(|(rest, ..)| format!("{}{rest}", found.prefix)).collect();
    assert_eq!(keys, TRAINER.iter().map(|key| (*key).to_owned()).collect());
    assert_eq!(found.layout, Layout::Transformers);
}

/// Returns one of a few files: of distributed checkpoints, of models in shards, and of single files.
fn key(kind: u8, step: u8, file: u8) -> String {
    match (kind, file) {
        (0, 3) => format!("r/step-{step}/.metadata"),
        (0, _) => format!("r/step-{step}/__{file}_0.distcp"),
        (1, _) => format!("m{step}/model-{:05}-of-00004.safetensors", file + 1),
        _ => format!("l/epoch={step}-step={}.ckpt", u32::from(step) * 100),
    }
}

/// Time of an event, its file, and whether it was written or deleted.
type Event = (u64, u8, bool);

/// Reference with unlimited memory: keeps every event of a group and searches them.
#[derive(Default)]
struct ReferenceModel {
    groups: BTreeMap<(u8, u8), Vec<Event>>,
}

impl ReferenceModel {
    fn there(&self, kind: u8, step: u8) -> BTreeMap<u8, u64> {
        let mut there = BTreeMap::new();
        for (at_us, file, is_write) in self.groups.get(&(kind, step)).into_iter().flatten() {
            if *is_write {
                there.insert(*file, *at_us);
            } else {
                there.remove(file);
            }
        }
        there
    }

    /// True if all four shards exist, and all were written since the first that replaced one of a complete
    /// set.
    fn is_complete(&self, kind: u8, step: u8) -> bool {
        let events = self.groups.get(&(kind, step)).map_or(&[][..], Vec::as_slice);
        match kind {
            0 => {
                let Some(last) = events.iter().rposition(|(_, file, is_write)| *file == 3 && *is_write)
                else {
                    return false;
                };
                let there = self.there(kind, step);
                there.contains_key(&3)
                    && there.len() > 1
                    && events[last + 1..].iter().all(|(_, file, _)| *file == 3)
            }
            1 => {
                let (mut there, mut pending) = (BTreeSet::new(), BTreeSet::new());
                for (_, file, is_write) in events {
                    if *is_write {
                        if there.len() == 4 && pending.is_empty() {
                            pending = there.clone();
                        }
                        there.insert(*file);
                    } else {
                        there.remove(file);
                    }
                    pending.remove(file);
                }
                there.len() == 4 && pending.is_empty()
            }
            _ => self.there(kind, step).len() == 1,
        }
    }
}

proptest! {
    #[test]
    fn matches_reference_model(
        steps in vec((0..3_u8, 1..4_u8, 0..4_u8, 0..5_u8), 1..120),
        last in 0..3_u32, best in 0..2_u32, every in 0..3_u32
    ) {
        let (mut known, mut model) = (new(), ReferenceModel::default());
        for (at, (kind, step, file, what)) in steps.into_iter().enumerate() {
            let file = if kind == 2 { 0 } else { file };
            let (at_us, name, is_write) = (at as u64 + 1, key(kind, step, file), what > 0);
            if is_write {
                known.record_write(at_us, 1, &name, 10);
            } else {
                known.record_delete(1, &name);
                if !model.there(kind, step).contains_key(&file) {
                    continue;
                }
            }
            model.groups.entry((kind, step)).or_default().push((at_us, file, is_write));
            if model.there(kind, step).is_empty() {
                model.groups.remove(&(kind, step));
            }
            for kind in 0..3 {
                let mut newer = 0;
                for step in (1..4).rev() {
                    let (found, there) = (known.group_of(1, &key(kind, step, 0)), model.there(kind, step));
                    prop_assert_eq!(found.is_some(), !there.is_empty());
                    let Some(found) = found else { continue };
                    let is_complete = model.is_complete(kind, step);
                    prop_assert_eq!(found.generation, is_complete.then_some(newer), "{} {}", kind, step);
                    prop_assert_eq!(found.files as usize, there.len());
                    // Each model is a series of its own.
                    newer += u32::from(is_complete && kind != 1);
                }
            }
            let keep = RetentionRule { last, best, lowest_is_best: true, every };
            let all: Vec<_> = known.series().map(|series| series.id).collect();
            for series in all {
                let goes = known.retain(series, keep, &|it| it.step.map(|step| step as f64));
                let newest = known.newest_complete(series);
                for id in goes {
                    let gone = known.group(id).unwrap();
                    let newest = newest.unwrap();
                    prop_assert!(newest.id != id && newest.step >= gone.step);
                    prop_assert!(gone.is_complete() || gone.last < newest.last);
                    prop_assert!(!gone.is_complete() || gone.generation.unwrap() >= last.max(1));
                }
            }
        }
        for (kind, step) in model.groups.keys().copied().collect::<Vec<_>>() {
            (0..4).for_each(|file| known.record_delete(1, &key(kind, step, file)));
        }
        prop_assert_eq!((known.series().count(), known.memory_bytes()), (0, 0));
    }
}

#[test]
fn repeated_listings_do_not_count_as_rewrites() {
    let mut known = new();
    for (at, key) in DCP.iter().enumerate() {
        known.record_write(10 + at as u64, 1, key, 100);
    }
    let before = known.completions();
    assert_eq!(before, (1, 13));
    known.record_if_unknown(50, 1, DCP[0], 100);
    assert_eq!(known.completions(), before);
    known.record_listed(50, 1, DCP[0], 100);
    assert_eq!(known.completions().0, 0);
    known.record_if_unknown(60, 2, DCP[0], 100);
    assert!(known.group_of(2, DCP[0]).is_some_and(|one| one.files == 1 && !one.is_complete()));
    assert!(CheckpointIndex::is_relevant(DCP[3]) && CheckpointIndex::is_relevant("d/latest"));
    assert!(!CheckpointIndex::is_relevant("train/0.tar"));
}

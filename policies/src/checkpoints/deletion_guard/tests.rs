//! Tests: checkpoints that look like more or less than they are, and those that may be deleted.

use super::{DeletionGuard, Incompleteness};
use crate::checkpoints::{CheckpointIndex, Limits, RetentionRule, WriteTime};
use proptest::collection::vec;
use proptest::prelude::{prop_assert_eq, proptest};

fn known(files: &[(&str, u64)]) -> CheckpointIndex {
    let mut known = CheckpointIndex::new(Limits::default());
    for (at, (key, bytes)) in files.iter().enumerate() {
        known.record_listed(at as u64, 1, key, *bytes);
    }
    // Ten minutes later.
    known.mark_quiet(1_000_000_000);
    known
}

/// Returns the first guard of a checkpoint except [`DeletionGuard::TooFewSteps`], which has tests of its own.
fn first_guard(known: &CheckpointIndex, key: &str) -> Option<DeletionGuard> {
    doubts(known, key).into_iter().find(|doubt| *doubt != DeletionGuard::TooFewSteps)
}

fn doubts(known: &CheckpointIndex, key: &str) -> Vec<DeletionGuard> {
    known.deletion_guards(known.group_of(1, key).unwrap().id)
}

const FIRST: [(&str, u64); 3] =
    [("r/step-1/__0_0.distcp", 10), ("r/step-1/__1_0.distcp", 10), ("r/step-1/.metadata", 1)];

#[test]
fn a_complete_newer_checkpoint_of_the_same_size_allows_deletion() {
    let second = [("r/step-2/__0_0.distcp", 10), ("r/step-2/__1_0.distcp", 9), ("r/step-2/.metadata", 1)];
    let both = known(&[FIRST, second].concat());
    assert_eq!(first_guard(&both, "r/step-1/.metadata"), None);
    assert_eq!(
        first_guard(&both, "r/step-2/.metadata"),
        Some(DeletionGuard::NoReplacement),
        "the checkpoint is the newest"
    );
}

#[test]
fn an_incomplete_rewritten_or_smaller_one_does_not() {
    let late = DeletionGuard::NewestIncomplete(Incompleteness::AfterLast);
    for (second, why) in [
        // A shard was deleted, or never written.
        (&[("r/step-2/__0_0.distcp", 20), ("r/step-2/.metadata", 1)][..], DeletionGuard::NoReplacement),
        // It was rewritten, and the writer was interrupted.
        (&[("r/step-2/__1_0.distcp", 10), ("r/step-2/.metadata", 1), ("r/step-2/__0_0.distcp", 10)], late),
        (
            &[("r/step-2/__0_0.distcp", 1), ("r/step-2/__1_0.distcp", 1), ("r/step-2/.metadata", 1)],
            DeletionGuard::NoReplacement,
        ),
    ] {
        let both = known(&[&FIRST[..], second].concat());
        assert_eq!(first_guard(&both, "r/step-1/.metadata"), Some(why), "{second:?}");
    }
    let plain =
        known(&[("r/epoch_2/model.pt", 9), ("r/epoch_2/optimizer.pt", 9), ("r/epoch_3/model.pt", 18)]);
    assert_eq!(first_guard(&plain, "r/epoch_2/model.pt"), Some(DeletionGuard::NoReplacement));
}

#[test]
fn checkpoints_with_the_same_step_stay() {
    let two = known(&[("llama-2-step-5.pt", 9), ("llama-3-step-5.pt", 9), ("llama-3-step-6.pt", 9)]);
    assert_eq!(first_guard(&two, "llama-2-step-5.pt"), Some(DeletionGuard::SameStep));
    assert_eq!(first_guard(&two, "llama-3-step-5.pt"), Some(DeletionGuard::SameStep));
}

#[test]
fn possible_runs_and_parts_of_others_stay() {
    let of_run = |run: u64, file: &'static str| (format!("ckpt-{run}/{file}"), 9);
    for (files, why) in [
        // Two runs, by the step and by the folder.
        (&["100/model.pt", "200/model.pt"][..], Some(DeletionGuard::HoldsSteps)),
        (&["model_step_100.pt", "model_step_200.pt"], Some(DeletionGuard::HoldsSteps)),
        (&["model.pt", "step-100/model.pt"], Some(DeletionGuard::HoldsSteps)),
        (&["model.pt", "0/.metadata"], Some(DeletionGuard::HoldsSteps)),
        (&["model.pt", "optim.pt"], None),
    ] {
        let files: Vec<_> =
            [1, 2].iter().flat_map(|run| files.iter().map(|file| of_run(*run, file))).collect();
        let files: Vec<_> = files.iter().map(|(key, bytes)| (key.as_str(), *bytes)).collect();
        let both = known(&files);
        assert_eq!(first_guard(&both, files[0].0), why, "{files:?}");
    }
    let ranks = [("step-9/ckpt_0/model.pt", 9), ("step-9/ckpt_1/model.pt", 9)];
    assert_eq!(first_guard(&known(&ranks), ranks[0].0), None);
    let beside = known(&[&ranks[..], &[("step-9/model.pt", 9)]].concat());
    assert_eq!(first_guard(&beside, ranks[0].0), Some(DeletionGuard::InsideAnother));
}

#[test]
fn sibling_runs_are_pruned_only_to_common_newer_steps() {
    for (one, other) in [
        ("nemo/tp_rank_00_pp_rank_000/gpt-step=S.ckpt", "nemo/tp_rank_01_pp_rank_001/gpt-step=S.ckpt"),
        ("mp_rank_00/model--step=S.ckpt", "mp_rank_01/model--step=S.ckpt"),
        ("flat/rank0-step=S.ckpt", "flat/rank1-step=S.ckpt"),
        ("tail/step=S-rank0.ckpt", "tail/step=S-rank1.ckpt"),
        ("rank_0_of_3/step=S.ckpt", "rank_1_of_3/step=S.ckpt"),
        ("cuda:0/step=S.ckpt", "cuda:1/step=S.ckpt"),
        ("0/step=S.ckpt", "1/step=S.ckpt"),
        ("part-00000-of-00003/step-S/.metadata", "part-00001-of-00003/step-S/.metadata"),
        ("stage0/global_stepS/.metadata", "stage1/global_stepS/.metadata"),
        ("rl/actor/step-S/.metadata", "rl/critic/step-S/.metadata"),
        ("flat/actor-step=S.ckpt", "flat/critic-step=S.ckpt"),
        ("host-a/step-S/.metadata", "host-b/step-S/.metadata"),
    ] {
        let key = |name: &str, step: u32| name.replace('S', &step.to_string());
        let [first, second] = [1000, 2000].map(|step| key(one, step));
        let [beside, beside_second] = [1000, 2000].map(|step| key(other, step));
        let of = |keys: &[&str]| first_of(keys);
        assert_eq!(of(&[&first, &second]), None, "{one}");
        assert_eq!(of(&[&first, &beside, &second]), Some(DeletionGuard::NotInSiblings), "{one}");
        assert_eq!(of(&[&first, &beside, &second, &beside_second]), None, "{one}");
        // Newer checkpoints that the runs do not have in common.
        let third = key(other, 3000);
        assert_eq!(of(&[&first, &beside, &second, &third]), Some(DeletionGuard::NotInSiblings), "{one}");
        assert_eq!(of(&[&first, &second, &beside_second]), None, "{one}: no other run has the first step");
    }
}

/// Returns the first guard of the first of these files, which are written in this order some minutes apart;
/// each with a shard before it if it is DCP's.
fn first_of(keys: &[&str]) -> Option<DeletionGuard> {
    first_every(300, keys)
}

/// Does the same with this many seconds between files.
fn first_every(seconds: u64, keys: &[&str]) -> Option<DeletionGuard> {
    let mut known = CheckpointIndex::new(Limits::default());
    for (at, key) in keys.iter().enumerate() {
        let at_us = at as u64 * seconds * 1_000_000;
        if key.ends_with(".metadata") {
            known.record_listed(at_us, 1, &key.replace(".metadata", "__0_0.distcp"), 9);
        }
        known.record_listed(at_us, 1, key, 9);
    }
    known.mark_quiet(u64::MAX);
    first_guard(&known, keys[0])
}

#[test]
fn parts_named_in_folder_and_file_are_siblings() {
    let twice = |part: &str, step: u32| format!("r/{part}/{part}_epoch_{step}.pth");
    for (one, other) in [("encoder", "optimizer"), ("actor", "critic"), ("G", "D"), ("net", "net_ema")] {
        let [first, second] = [5, 9].map(|step| twice(one, step));
        let [beside, beside_second] = [5, 9].map(|step| twice(other, step));
        assert_eq!(
            first_of(&[&first, &beside, &second]),
            Some(DeletionGuard::NotInSiblings),
            "{one} {other}"
        );
        assert_eq!(first_of(&[&first, &beside, &second, &beside_second]), None, "{one} {other}");
    }
    let net = |part: &str, step: u32| format!("r/{part}/net{part}_epoch_{step}.pth");
    assert_eq!(first_of(&[&net("G", 5), &net("D", 5), &net("G", 9)]), Some(DeletionGuard::NotInSiblings));
    let other = "r/b/c_epoch_5.pth";
    assert_eq!(first_of(&["r/a/a_epoch_5.pth", other, "r/a/a_epoch_9.pth"]), None, "two words differ");
}

#[test]
fn without_a_last_file_each_file_has_to_be_as_large() {
    let files = |step: u32, ranks: u32, last: u64| {
        let all = (0..ranks).map(move |rank| if rank + 1 < ranks { 9 } else { last });
        all.enumerate().map(move |(rank, bytes)| (format!("r/step_{step}/rank_{rank}.pt"), bytes))
    };
    for (ranks, last, why) in [
        (16, 9, None),
        // The writer was interrupted and left it empty, or did not reach it.
        (16, 0, Some(DeletionGuard::NoReplacement)),
        (15, 9, Some(DeletionGuard::NoReplacement)),
        // With twice as many ranks one file may be missing.
        (31, 9, Some(DeletionGuard::NoReplacement)),
    ] {
        let all: Vec<_> = files(1000, 16, 9).chain(files(2000, ranks, last)).collect();
        let both = known(&all.iter().map(|(key, bytes)| (key.as_str(), *bytes)).collect::<Vec<_>>());
        assert_eq!(first_guard(&both, &all[0].0), why, "{ranks} {last}");
    }
    let of_pickle = |bytes: u64, log: u64| {
        let files = |step: u32, bytes, log| {
            let files = [("model.safetensors", 95), ("optimizer.pkl", bytes), ("log.txt", log)];
            files.map(|(file, bytes)| (format!("r/step_{step}/{file}"), bytes))
        };
        let all = [files(10, 5, 9), files(20, bytes, log)].concat();
        first_guard(
            &known(&all.iter().map(|(key, bytes)| (key.as_str(), *bytes)).collect::<Vec<_>>()),
            &all[0].0,
        )
    };
    assert_eq!([of_pickle(5, 3), of_pickle(0, 9)], [None, Some(DeletionGuard::NoReplacement)]);
}

#[test]
fn rank_files_numbered_like_the_epoch_are_matched() {
    let files = |epoch: u64| {
        let ranks = (0..8).map(|rank| format!("random_states_{rank}.pkl"));
        let all = ranks.chain(["model.safetensors".to_owned()]);
        all.map(|file| format!("epoch_{epoch}/{file}")).collect::<Vec<_>>()
    };
    let keys: Vec<String> = (0..4).flat_map(files).collect();
    let known = known(&keys.iter().map(|key| (key.as_str(), 9)).collect::<Vec<_>>());
    let stays = |epoch: u64| first_guard(&known, &files(epoch)[0]).is_some();
    assert_eq!([0, 1, 2, 3].map(stays), [false, false, false, true]);
}

#[test]
fn numbered_files_written_at_once_may_be_parts() {
    let of = |name: &str, numbers: &[u32], seconds: u64| {
        let keys: Vec<_> = numbers.iter().map(|number| name.replace('N', &number.to_string())).collect();
        first_every(seconds, &keys.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let (together, ranks) = (Some(DeletionGuard::WrittenTogether), [0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(of("final/checkpoint_N.pt", &ranks, 0), together);
    assert_eq!(of("final/checkpoint_N.pt", &ranks, 59), together, "a slow disk");
    assert_eq!(of("final/checkpoint_N.pt", &ranks, 60), None, "each write takes some time");
    assert_eq!(of("final/ep_N.pt", &[0, 8, 16, 24], 3), together, "the first of each node");
    assert_eq!(of("final/checkpoint_N.ckpt", &ranks, 1), together, "for any file ending");
    let many: Vec<u32> = (0..256).collect();
    assert_eq!(of("final/checkpoint_N.pt", &many, 1), together, "however many");
    assert_eq!(of("eeg/epoch_N.h5", &ranks, 1), together, "segments");
    assert_eq!(of("run/epoch_N.pt", &ranks, 1), None, "ranks do not have such names");
    assert_eq!(of("run/checkpoint_N.pt", &[100, 200], 1), None, "ranks are less than a hundred apart");
    let back = [1, 2, 3, 4, 3].map(|step| format!("run/checkpoint_{step}.pt"));
    assert_eq!(
        first_every(300, &back.each_ref().map(String::as_str)),
        None,
        "the run resumed from an earlier step"
    );
    let mut slow = CheckpointIndex::new(Limits::default());
    for (rank, at) in [0, 0, 0, 500].into_iter().enumerate() {
        slow.record_listed(at * 1_000_000, 1, &format!("final/checkpoint_{rank}.pt"), 9);
    }
    slow.mark_quiet(u64::MAX);
    for rank in 0..3 {
        assert_eq!(
            self::first_guard(&slow, &format!("final/checkpoint_{rank}.pt")),
            together,
            "one rank is slow"
        );
    }
}

#[test]
fn a_partial_rewrite_replaces_nothing() {
    let plain = |step: u32| ["model.pt", "optim.pt"].map(|file| format!("r/step_{step}/{file}"));
    let items = |step: u32| {
        ["model/__0_0.distcp", "model/.metadata", "optim/__0_0.distcp", "optim/.metadata"]
            .map(|file| format!("r/step-{step}/{file}"))
    };
    for (first, second) in [(&plain(100)[..], &plain(200)[..]), (&items(100), &items(200))] {
        let stays = |anew: &[String]| {
            let all = [first, second, first, anew].concat();
            let files: Vec<_> = all.iter().map(|key| (key.as_str(), 9)).collect();
            first_guard(&known(&files), &first[0])
        };
        assert_eq!(stays(second), None, "all of the checkpoint");
        for half in 0..second.len() {
            assert!(stays(&second[..half]).is_some(), "{:?}", &second[..half]);
        }
    }
}

#[test]
fn a_checkpoint_written_in_two_goes_is_no_replacement() {
    const HOUR_US: u64 = 3_600_000_000;
    let files = |step: u32| ["model.pt", "optim.pt"].map(|file| format!("r/step_{step}/{file}"));
    for (anew_us, why) in [(None, None), (Some(5 * HOUR_US), Some(DeletionGuard::NoReplacement))] {
        let mut known = CheckpointIndex::new(Limits::default());
        let written = files(100).into_iter().map(|key| (0, key));
        let written = written.chain(files(200).into_iter().map(|key| (HOUR_US, key)));
        for (at_us, key) in written {
            let at_us = anew_us.filter(|_| key == files(200)[0]).unwrap_or(at_us);
            known.record_listed(at_us, 1, &key, 9);
        }
        known.record_listed(6 * HOUR_US, 1, "r/step_200/README.md", 9);
        known.mark_quiet(9 * HOUR_US);
        assert_eq!(first_guard(&known, &files(100)[0]), why, "{anew_us:?}");
    }
}

#[test]
fn a_key_named_like_a_series_is_no_checkpoint() {
    let mut known = CheckpointIndex::new(Limits::default());
    for key in
        ["ckpt-#-é/__0_0.distcp", "ckpt-100-é/.metadata", "run/step-#/x.distcp", "run/step-100/.metadata"]
    {
        known.record_listed(1, 1, key, 9);
    }
    assert!(known.group_of(1, "ckpt-#-é/__0_0.distcp").is_none());
    assert_eq!(known.group_of(1, "run/step-100/.metadata").unwrap().parent, "run/");
    assert_eq!(known.group_of(1, "ckpt-100-é/.metadata").unwrap().parent, "");
}

#[test]
fn checkpoints_written_after_a_run_went_back_stay() {
    let files = ["model.safetensors", "optimizer.bin", "scheduler.bin", "random_states_0.pkl"];
    let whole = |step: u32| files.map(|file| format!("out/checkpoint_{step}/{file}"));
    // The run went back to 200 and ended with 350, or was interrupted there.
    for (last, then) in [(4, "README.md"), (4, "results.json"), (4, "note.bin"), (1, "README.md")] {
        let steps = [100, 200, 300, 400, 500, 250];
        let mut keys: Vec<String> = steps.into_iter().flat_map(whole).collect();
        keys.extend(whole(350).into_iter().take(last));
        // A file added later to an old checkpoint makes it no newer.
        keys.push(format!("out/checkpoint_100/{then}"));
        let files: Vec<_> = keys.iter().map(|key| (key.as_str(), 9)).collect();
        let known = known(&files);
        let stays = |step: u32| first_guard(&known, &whole(step)[0]).is_some();
        assert_eq!(stays(250), last < 4, "{last} {then}: 350 is complete or not");
        assert_eq!((stays(350), stays(500)), (true, true), "{last} {then}");
        assert_eq!((stays(300), stays(400)), (false, false), "{last} {then}: the run was abandoned");
        assert!(!stays(200), "{last} {then}");
    }
}

#[test]
fn names_of_possible_runs_or_parts_stay() {
    let doubt = Some(DeletionGuard::Ambiguous);
    for (keys, why) in [
        // Numbers of models, tasks, settings and dates.
        (&["resnet_50_epoch_5.pth", "resnet_101_epoch_9.pth"][..], doubt),
        (&["learning_rate=0.001-epoch=5.ckpt", "learning_rate=0.01-epoch=9.ckpt"], doubt),
        (&["task-1-checkpoint-100/model.safetensors", "task-2-checkpoint-200/model.safetensors"], doubt),
        (&["gemma-2-step-900/.metadata", "gemma-3-step-1000/.metadata"], doubt),
        (&["20261123_epoch_5.pt", "20261124_epoch_9.pt"], doubt),
        // The part after the step.
        (&["m_epoch_5_seed1.pth", "m_epoch_9_seed2.pth"], Some(DeletionGuard::NoReplacement)),
        (&["m_epoch_5_bert.pth", "m_epoch_9_gpt.pth"], Some(DeletionGuard::NoReplacement)),
        (
            &["best_epoch_12_dropout_0.1.pt", "best_epoch_18_dropout_0.5.pt"],
            Some(DeletionGuard::NoReplacement),
        ),
        (
            &["best_epoch_12_warmup_steps_100.pt", "best_epoch_18_warmup_steps_500.pt"],
            Some(DeletionGuard::NoReplacement),
        ),
        (&["best_epoch_17_cv_1.pth", "best_epoch_23_cv_2.pth"], Some(DeletionGuard::NoReplacement)),
        (&["epoch_12/model_alpha_0.1.pt", "epoch_18/model_alpha_0.5.pt"], Some(DeletionGuard::NoReplacement)),
        // A number that may be a measure or that of a try.
        (&["test_1_epoch_10.pth", "test_2_epoch_20.pth"], doubt),
        (&["samples_100_epoch_40.pt", "samples_1000_epoch_60.pt"], doubt),
        (&["iter1-sft/model.safetensors", "iter2-rm/model.safetensors"], doubt),
        (&["iter1/model.safetensors", "iter2/model.safetensors"], doubt),
        (&["output_step1_llama/model.bin", "output_step2_llama/model.bin"], doubt),
        // Shards of one checkpoint, of torchtune and of Keras.
        (&["t/hf_model_0001_0.pt", "t/hf_model_0002_0.pt"], doubt),
        (&["m/model_00000.weights.h5", "m/model_00001.weights.h5"], doubt),
        // Job ids.
        (&["ckpts/4711201/.metadata", "ckpts/4711345/.metadata"], doubt),
        (&["ckpts/48121/.metadata", "ckpts/48130/.metadata"], doubt),
        (&["ckpts/48120/.metadata", "ckpts/48150/.metadata", "ckpts/48131/.metadata"], doubt),
        (&["iter10/model.safetensors", "iter11/model.safetensors", "iter9/model.safetensors"], doubt),
        (&["step_0/model.pt", "step_10/model.pt", "step_20/model.pt"], doubt),
        (&["step_10/model.pt", "step_20/model.pt", "step_0/model.pt"], None),
        // One of several models.
        (&["final/model_0.pt", "final/model_1.pt"], doubt),
        (&["final/pytorch_model_1.bin", "final/pytorch_model_2.bin"], doubt),
        // One of the others is a run.
        (
            &["x/ckpt-1/epoch_1.pth", "x/ckpt-2/epoch_1.pth", "x/ckpt-2/epoch_2.pth"],
            Some(DeletionGuard::HoldsSteps),
        ),
        (
            &["iter1/model.safetensors", "iter2/checkpoint-500/model.safetensors", "iter2/model.safetensors"],
            Some(DeletionGuard::HoldsSteps),
        ),
        (&["100/model/0/.metadata", "100/model/1/.metadata"], doubt),
    ] {
        assert_eq!(first_of(keys), why, "{keys:?}");
    }
}

#[test]
fn unambiguous_names_may_be_deleted() {
    for (keys, why) in [
        (&["m_epoch_5.pth", "m_epoch_9.pth"][..], None),
        (&["step_10/model.pt", "step_20/model.pt"], None),
        (&["epoch_1/model.pt", "epoch_2/model.pt"], None),
        (&["checkpoint_0/model.pt", "checkpoint_1/model.pt"], None),
        (&["m_epoch_5_optim.pth", "m_epoch_9_optim.pth"], None),
        (&["resnet50_epoch_5.pth", "resnet50_epoch_9.pth"], None),
        (&["m_epoch_5_acc_0.91.pth", "m_epoch_9_acc_0.93.pth"], None),
        (&["epoch=03-val_loss=0.25.keras", "epoch=09-val_loss=0.22.keras"], None),
        (&["step_100/model_100.pt", "step_200/model_200.pt"], None),
        (&["train_loss=1-epoch=5.ckpt", "train_loss=0.9-epoch=6.ckpt"], None),
        (&["model_0004999.pth", "model_0009999.pth"], None),
        (&["epoch=3-val_loss=0.25.ckpt", "epoch=4-val_loss=0.2.ckpt"], None),
        (
            &[
                "gpt--val_loss=2.3-step=100-consumed_samples=800.0.ckpt",
                "gpt--val_loss=2.1-step=200-consumed_samples=1600.0.ckpt",
            ],
            None,
        ),
        (&["seed1-step-5/.metadata", "seed1-step-6/.metadata"], None),
        (&["ep1-ba500/.metadata", "ep2-ba900/.metadata"], None),
        (&["checkpoint-5/model.safetensors", "checkpoint-6/model.safetensors"], None),
        (&["4711201/ck/100/.metadata", "4711201/ck/200/.metadata"], None),
        (&["ck/00000100/.metadata", "ck/00000200/.metadata"], None),
        (&["ck/12500/.metadata", "ck/25000/.metadata"], None),
        (&["ck/1/.metadata", "ck/2/.metadata"], None),
    ] {
        assert_eq!(first_of(keys), why, "{keys:?}");
    }
}

/// Returns the guards of the first of these files, which were written in this order some minutes apart.
fn doubts_of_first(keys: &[&str]) -> Vec<DeletionGuard> {
    let mut known = CheckpointIndex::new(Limits::default());
    for (at, key) in keys.iter().enumerate() {
        let at_us = at as u64 * 300_000_000;
        if key.ends_with(".metadata") {
            known.record_listed(at_us, 1, &key.replace(".metadata", "__0_0.distcp"), 9);
        }
        known.record_listed(at_us, 1, key, 9);
    }
    known.mark_quiet(u64::MAX);
    doubts(&known, keys[0])
}

#[test]
fn two_steps_are_no_series_and_three_are() {
    let two = [DeletionGuard::TooFewSteps];
    for name in [
        "ckptN/.metadata",
        "iterN/.metadata",
        "N/.metadata",
        "step-N/.metadata",
        "checkpoint-N/.metadata",
        "step-N/model.safetensors",
        "x/epoch=3-step=N.ckpt",
        "m_epoch_N.pth",
    ] {
        let keys: Vec<_> = [10, 20, 30].map(|step| name.replace('N', &step.to_string())).into();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        assert_eq!(doubts_of_first(&keys[..2]), two, "{name}");
        assert_eq!(doubts_of_first(&keys), [], "{name}");
    }
    // Job ids that end in a zero.
    assert_eq!(doubts_of_first(&["123450/.metadata", "123460/.metadata"]), two);
    // An incomplete one does not make it three.
    let torn = ["step-1/.metadata", "step-2/.metadata", "step-3/__0_0.distcp"];
    assert_eq!(doubts_of_first(&torn), two);
    // Parts of one checkpoint are deleted together or not at all.
    let ranks = ["r0/step-1/.metadata", "r1/step-1/.metadata", "r0/step-2/.metadata", "r1/step-2/.metadata"];
    assert_eq!(doubts_of_first(&[&ranks[..], &["r0/step-3/.metadata"]].concat()), two);
    let all = [&ranks[..], &["r0/step-3/.metadata", "r1/step-3/.metadata"]].concat();
    assert_eq!(doubts_of_first(&all), []);
}

#[test]
fn plural_words_number_settings() {
    for (name, doubts) in [
        ("steps-N/.metadata", &[DeletionGuard::Ambiguous][..]),
        ("stepsN/.metadata", &[DeletionGuard::Ambiguous]),
        ("x/Steps_N/model.safetensors", &[DeletionGuard::Ambiguous]),
        ("m_steps_N.pth", &[DeletionGuard::Ambiguous]),
        ("m_stepsN.ckpt", &[DeletionGuard::Ambiguous]),
        ("train_steps=N.ckpt", &[DeletionGuard::Ambiguous]),
        // A step beside it may be that of another setting.
        ("steps-1000-step-N/.metadata", &[DeletionGuard::Ambiguous]),
        ("step-N/.metadata", &[]),
    ] {
        let keys: Vec<_> = [1000, 2000, 3000, 4000].map(|step| name.replace('N', &step.to_string())).into();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        assert_eq!(doubts_of_first(&keys), doubts, "{name}");
    }
    // Not a series: no other plural words count.
    for name in ["epochs-N", "iters-N", "iterations-N", "checkpoints-N"] {
        let keys = [10, 20, 30].map(|step| format!("{}/.metadata", name.replace('N', &step.to_string())));
        let mut known = CheckpointIndex::new(Limits::default());
        for key in &keys {
            known.record_listed(1, 1, &key.replace(".metadata", "__0_0.distcp"), 9);
            known.record_listed(2, 1, key, 9);
        }
        assert_eq!(known.series().count(), 3, "{name}");
    }
}

#[test]
fn the_sequence_orders_writes_and_a_tie_keeps() {
    let name = |step: u32| format!("g/step={step}.ckpt");
    let stored = |steps: &[(u32, u64)], at_us: u64| {
        let mut known = CheckpointIndex::new(Limits::default());
        let mut in_order = steps.to_vec();
        in_order.sort_by_key(|(_, seq)| *seq);
        for (step, seq) in in_order {
            known.record_stored(WriteTime { seq, at_us }, 1, &name(step), 9);
        }
        known
    };
    for at_us in [0, 7_000, u64::from(u32::MAX)] {
        // A run that went back, all within a millisecond: 350 is newer than 500.
        let known = stored(&[(500, 1), (350, 2), (100, 3)], at_us);
        assert_eq!(doubts(&known, &name(350)), [DeletionGuard::NoReplacement], "{at_us}");
        let known = stored(&[(100, 1), (350, 2), (500, 3)], at_us);
        assert_eq!(doubts(&known, &name(350)), [], "{at_us}");
        assert_eq!(doubts(&known, &name(100)), [], "{at_us}");
    }
    // The order of the writes is unknown.
    let mut known = CheckpointIndex::new(Limits::default());
    for step in [100, 350, 500] {
        known.record_listed(7, 1, &name(step), 9);
    }
    assert_eq!(doubts(&known, &name(100)), [DeletionGuard::NoReplacement]);
}

proptest! {
    /// The result is the same for any clocks and any number of writes per millisecond.
    #[test]
    fn clocks_decide_nothing(
        steps in vec(1..6_u32, 3..12), times in vec(0..3_u64, 12), other in vec(0..3_u64, 12)
    ) {
        let judged = |times: &[u64]| {
            let mut known = CheckpointIndex::new(Limits::default());
            for (seq, step) in steps.iter().enumerate() {
                let at = WriteTime { seq: seq as u64 + 1, at_us: times[seq] * 1000 };
                known.record_stored(at, 1, &format!("g/step={}.ckpt", step * 100), 9);
            }
            let series = known.series().next().unwrap().id;
            let keep = RetentionRule { last: 1, best: 0, lowest_is_best: true, every: 0 };
            let goes = known.retain(series, keep, &|_| None);
            goes.into_iter()
                .map(|id| (known.group(id).unwrap().step, known.deletion_guards(id)))
                .collect::<Vec<_>>()
        };
        prop_assert_eq!(judged(&times), judged(&other));
    }
}

//! Tests: checkpoints of all layouts uploaded in any order, in part, or twice. Complete ones count, and
//! incomplete ones allow no deletion of older ones.

use super::{MINUTE_US, new};
use crate::checkpoints::{CheckpointIndex, DeletionGuard, Incompleteness};
use std::collections::BTreeMap;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Files of one step in the order of writing, with `@` for its number.
struct UploadCase {
    files: &'static [&'static str],
    /// End of the name of the last file, if there is one.
    mark: Option<&'static str>,
    /// True if names reveal a missing file with tensors, beside a complete checkpoint of its run.
    tells: bool,
}

const CASES: [UploadCase; 17] = [
    UploadCase {
        files: &[
            "o/checkpoint-@/config.json",
            "o/checkpoint-@/generation_config.json",
            "o/checkpoint-@/model.safetensors",
            "o/checkpoint-@/tokenizer_config.json",
            "o/checkpoint-@/special_tokens_map.json",
            "o/checkpoint-@/vocab.json",
            "o/checkpoint-@/merges.txt",
            "o/checkpoint-@/tokenizer.json",
            "o/checkpoint-@/training_args.bin",
            "o/checkpoint-@/optimizer.pt",
            "o/checkpoint-@/scheduler.pt",
            "o/checkpoint-@/rng_state.pth",
            "o/checkpoint-@/trainer_state.json",
        ],
        mark: Some("trainer_state.json"),
        tells: true,
    },
    UploadCase {
        files: &[
            "o/checkpoint-@/config.json",
            "o/checkpoint-@/model-00001-of-00003.safetensors",
            "o/checkpoint-@/model-00002-of-00003.safetensors",
            "o/checkpoint-@/model-00003-of-00003.safetensors",
            "o/checkpoint-@/model.safetensors.index.json",
            "o/checkpoint-@/vocab.txt",
            "o/checkpoint-@/training_args.bin",
            "o/checkpoint-@/optimizer.pt",
            "o/checkpoint-@/scheduler.pt",
            "o/checkpoint-@/rng_state_0.pth",
            "o/checkpoint-@/rng_state_1.pth",
            "o/checkpoint-@/trainer_state.json",
        ],
        mark: Some("trainer_state.json"),
        tells: true,
    },
    UploadCase {
        files: &[
            "o/checkpoint-@/pytorch_model-00001-of-00002.bin",
            "o/checkpoint-@/pytorch_model-00002-of-00002.bin",
            "o/checkpoint-@/pytorch_model.bin.index.json",
            "o/checkpoint-@/trainer_state.json",
        ],
        mark: Some("trainer_state.json"),
        tells: true,
    },
    UploadCase {
        files: &[
            "o/checkpoint-@/README.md",
            "o/checkpoint-@/adapter_config.json",
            "o/checkpoint-@/adapter_model.safetensors",
            "o/checkpoint-@/spiece.model",
            "o/checkpoint-@/training_args.bin",
            "o/checkpoint-@/optimizer.pt",
            "o/checkpoint-@/scheduler.pt",
            "o/checkpoint-@/rng_state.pth",
            "o/checkpoint-@/trainer_state.json",
        ],
        mark: Some("trainer_state.json"),
        tells: true,
    },
    // The Trainer with DeepSpeed, and with FSDP.
    UploadCase {
        files: &[
            "o/checkpoint-@/config.json",
            "o/checkpoint-@/model.safetensors",
            "o/checkpoint-@/global_step@/zero_pp_rank_0_mp_rank_00_model_states.pt",
            "o/checkpoint-@/global_step@/zero_pp_rank_0_mp_rank_00_optim_states.pt",
            "o/checkpoint-@/global_step@/zero_pp_rank_1_mp_rank_00_model_states.pt",
            "o/checkpoint-@/global_step@/zero_pp_rank_1_mp_rank_00_optim_states.pt",
            "o/checkpoint-@/latest",
            "o/checkpoint-@/zero_to_fp32.py",
            "o/checkpoint-@/trainer_state.json",
        ],
        mark: Some("trainer_state.json"),
        tells: true,
    },
    UploadCase {
        files: &[
            "o/checkpoint-@/pytorch_model_fsdp_0/__0_0.distcp",
            "o/checkpoint-@/pytorch_model_fsdp_0/__1_0.distcp",
            "o/checkpoint-@/pytorch_model_fsdp_0/.metadata",
            "o/checkpoint-@/optimizer_0/__0_0.distcp",
            "o/checkpoint-@/optimizer_0/__1_0.distcp",
            "o/checkpoint-@/optimizer_0/.metadata",
            "o/checkpoint-@/scheduler.pt",
            "o/checkpoint-@/trainer_state.json",
        ],
        mark: Some("trainer_state.json"),
        tells: true,
    },
    UploadCase {
        files: &[
            "r/step-@/__0_0.distcp",
            "r/step-@/__1_0.distcp",
            "r/step-@/__2_0.distcp",
            "r/step-@/.metadata",
        ],
        mark: Some(".metadata"),
        tells: false,
    },
    UploadCase {
        files: &[
            "r/step-@/model/__0_0.distcp",
            "r/step-@/model/__1_0.distcp",
            "r/step-@/model/.metadata",
            "r/step-@/optim/__0_0.distcp",
            "r/step-@/optim/__1_0.distcp",
            "r/step-@/optim/.metadata",
        ],
        mark: Some(".metadata"),
        tells: false,
    },
    UploadCase {
        files: &[
            "p/step_@/config.json",
            "p/step_@/model-00001-of-00003.safetensors",
            "p/step_@/model-00002-of-00003.safetensors",
            "p/step_@/model-00003-of-00003.safetensors",
            "p/step_@/model.safetensors.index.json",
        ],
        mark: None,
        tells: true,
    },
    UploadCase { files: &["l/epoch=0-step=@.ckpt"], mark: None, tells: true },
    UploadCase {
        files: &[
            "l/epoch=0-step=@.ckpt/__0_0.distcp",
            "l/epoch=0-step=@.ckpt/__1_0.distcp",
            "l/epoch=0-step=@.ckpt/.metadata",
            "l/epoch=0-step=@.ckpt/meta.pt",
        ],
        mark: Some(".metadata"),
        tells: false,
    },
    UploadCase {
        files: &[
            "d/global_step@/mp_rank_00_model_states.pt",
            "d/global_step@/zero_pp_rank_0_mp_rank_00_optim_states.pt",
            "d/global_step@/zero_pp_rank_1_mp_rank_00_optim_states.pt",
            "d/latest",
        ],
        mark: Some("latest"),
        tells: false,
    },
    UploadCase {
        files: &[
            "g/iter_0000@/mp_rank_00/model_optim_rng.pt",
            "g/iter_0000@/mp_rank_01/model_optim_rng.pt",
            "g/latest_checkpointed_iteration.txt",
        ],
        mark: Some("iteration.txt"),
        tells: false,
    },
    UploadCase {
        files: &[
            "h/iter_0000@/common.pt",
            "h/iter_0000@/__0_0.distcp",
            "h/iter_0000@/__1_0.distcp",
            "h/iter_0000@/.metadata",
            "h/iter_0000@/metadata.json",
        ],
        mark: Some(".metadata"),
        tells: false,
    },
    UploadCase {
        files: &[
            "j/@/default/_METADATA",
            "j/@/default/ocdbt.process_0/d/0a1b",
            "j/@/default/ocdbt.process_1/d/0c2d",
            "j/@/default/manifest.ocdbt",
            "j/@/_CHECKPOINT_METADATA",
        ],
        mark: Some("_CHECKPOINT_METADATA"),
        tells: false,
    },
    UploadCase {
        files: &[
            "t/ckpt-@.data-00000-of-00002",
            "t/ckpt-@.data-00001-of-00002",
            "t/ckpt-@.index",
            "t/checkpoint",
        ],
        mark: Some(".index"),
        tells: true,
    },
    UploadCase { files: &["q/epoch_@/model.pt", "q/epoch_@/optimizer.pt"], mark: None, tells: false },
];

const OLD: u64 = 500;
const NEW: u64 = 600;

impl UploadCase {
    fn keys(&self, step: u64) -> Vec<String> {
        self.files.iter().map(|file| file.replace('@', &step.to_string())).collect()
    }

    fn is_mark(&self, key: &str) -> bool {
        self.mark.is_some_and(|mark| key.ends_with(mark))
    }

    /// True if training cannot resume from a checkpoint without these.
    fn is_needed(&self, key: &str) -> bool {
        let name = &key[key.rfind('/').map_or(0, |slash| slash + 1)..];
        let is_extra = name == "training_args.bin" || name.starts_with("rng_state") || name == "meta.pt";
        let endings = [".safetensors", ".bin", ".pt", ".distcp", ".ckpt", ".ocdbt", "d/0a1b", "d/0c2d"];
        let is_tensor = key.contains(".data-") || endings.iter().any(|ending| key.ends_with(ending));
        self.is_mark(key) || (is_tensor && !is_extra)
    }

    fn is_incomplete(&self, there: &[String]) -> bool {
        self.keys(NEW).iter().any(|key| self.is_needed(key) && !there.contains(key))
    }
}

/// Returns the keys as written, by name, in reverse, and in twenty orders of parallel uploads.
fn orders(keys: &[String]) -> Vec<Vec<String>> {
    let mut by_name = keys.to_vec();
    by_name.sort();
    let backwards = by_name.iter().rev().cloned().collect();
    let shuffled = (0..20).map(|seed| {
        let mut keys = keys.to_vec();
        keys.sort_by_key(|key| xxh3_64_with_seed(key.as_bytes(), seed));
        keys
    });
    [keys.to_vec(), by_name, backwards].into_iter().chain(shuffled).collect()
}

/// Returns the index after writes in these orders, and after a listing of the result, ten minutes later.
/// Sizes do not help: older checkpoints have smaller files.
fn known(old: &[String], new: &[String]) -> [CheckpointIndex; 2] {
    let written: Vec<(&String, u64, u64)> =
        (old.iter().map(|key| (key, 1)).chain(new.iter().map(|key| (key, 100))))
            .zip(0..)
            .map(|((key, bytes), at)| (key, MINUTE_US + at, bytes))
            .collect();
    let (mut received, mut listed) = (super::new(), super::new());
    for (key, at_us, bytes) in &written {
        received.record_write(*at_us, 1, key, *bytes);
    }
    let there: BTreeMap<_, _> = written.iter().map(|(key, at_us, bytes)| (*key, (*at_us, *bytes))).collect();
    for (key, (at_us, bytes)) in there {
        listed.record_listed(at_us, 1, key, bytes);
    }
    [received, listed].map(|mut known| {
        known.mark_quiet(20 * MINUTE_US);
        known
    })
}

fn generation(known: &CheckpointIndex, key: &str) -> Option<u32> {
    known.group_of(1, key).and_then(|one| one.generation)
}

/// Returns the first guard of a checkpoint, except that its run has only two.
fn first_guard(known: &CheckpointIndex, key: &str) -> Option<DeletionGuard> {
    let doubts = known.deletion_guards(known.group_of(1, key).unwrap().id);
    doubts.into_iter().find(|doubt| *doubt != DeletionGuard::TooFewSteps)
}

#[test]
fn a_complete_upload_is_the_newest_in_any_order() {
    for case in &CASES {
        let (old, new) = (case.keys(OLD), case.keys(NEW));
        for order in orders(&new) {
            for known in known(&[], &order) {
                assert_eq!(generation(&known, &new[0]), Some(0), "{order:?}");
            }
            for known in known(&old, &order) {
                let found = [&new[0], &old[0]].map(|key| generation(&known, key));
                assert_eq!(found, [Some(0), Some(1)], "{order:?}");
            }
        }
        for known in known(&old, &new) {
            assert_eq!(first_guard(&known, &old[0]), None, "{new:?}: undoubted checkpoints are deleted");
        }
    }
}

#[test]
fn an_incomplete_upload_allows_no_deletion() {
    for case in &CASES {
        let (old, new) = (case.keys(OLD), case.keys(NEW));
        let mut torn: Vec<Vec<String>> = Vec::new();
        for order in orders(&new) {
            torn.extend((1..order.len()).map(|length| order[..length].to_vec()));
            torn.extend((0..order.len()).map(|at| [&order[..at], &order[at + 1..]].concat()));
        }
        let folder = CheckpointIndex::prefix_of(&new[0]).filter(|prefix| prefix.ends_with('/'));
        for mut torn in torn.into_iter().filter(|torn| case.is_incomplete(torn)) {
            // Results that were added do not make up for missing files.
            let more =
                ["eval_results.json", "all_results.json", "notes.txt", "log.txt", "test.json", "x.yaml"];
            torn.extend(folder.iter().flat_map(|folder| more.map(|name| format!("{folder}{name}"))));
            for known in known(&old, &torn) {
                let why = first_guard(&known, &old[0]);
                assert!(why.is_some(), "{torn:?}");
                if case.tells {
                    let is_complete = torn.iter().any(|key| generation(&known, key).is_some());
                    assert!(!is_complete, "{torn:?}");
                    assert_eq!(generation(&known, &old[0]), Some(0), "{torn:?}");
                }
            }
        }
    }
}

/// Without an older one, missing files are certain only if names reveal them.
#[test]
fn the_first_of_a_run_is_incomplete_without_weights_and_shards() {
    for (files, incompleteness) in [
        (&["config.json", "optimizer.pt", "trainer_state.json"][..], Incompleteness::Weights),
        (&["config.json", "trainer_state.json"], Incompleteness::Weights),
        (&["model.safetensors.index.json", "optimizer.pt", "trainer_state.json"], Incompleteness::Shards),
        (
            &["model.safetensors.index.json", "adapter_model.safetensors", "trainer_state.json"],
            Incompleteness::Shards,
        ),
        (&["model-00001-of-00002.safetensors", "trainer_state.json"], Incompleteness::Shards),
        (
            &["optimizer_0/__0_0.distcp", "optimizer_0/.metadata", "trainer_state.json"],
            Incompleteness::Weights,
        ),
        (
            &["fsdp/__0_0.distcp", "optim/__0_0.distcp", "fsdp/.metadata", "trainer_state.json"],
            Incompleteness::LastFile,
        ),
    ] {
        let keys: Vec<_> = files.iter().map(|file| format!("o/checkpoint-600/{file}")).collect();
        for known in known(&[], &keys) {
            assert_eq!(generation(&known, &keys[0]), None, "{files:?}");
        }
        let old = CASES[0].keys(OLD);
        for known in known(&old, &keys) {
            assert_eq!(
                first_guard(&known, &old[0]),
                Some(DeletionGuard::NewestIncomplete(incompleteness)),
                "{files:?}"
            );
        }
    }
}

#[test]
fn small_files_after_the_last_change_nothing_and_others_delay_completion() {
    let (old, new) = (CASES[0].keys(OLD), CASES[0].keys(NEW));
    let mut known = new_of(&[&old, &new]);
    let at = |minute: u64| minute * MINUTE_US;
    for small in ["eval_results.json", "README.md", "model_card.html", "tokenizer.model", "README.md"] {
        known.record_write(at(2), 1, &format!("o/checkpoint-{NEW}/{small}"), 10);
        assert_eq!(generation(&known, &new[0]), Some(0), "{small}");
    }
    known.record_write(at(3), 1, &format!("o/checkpoint-{NEW}/eval_results.json"), 10);
    assert_eq!(generation(&known, &new[0]), Some(0), "rewritten results are not part of the checkpoint");
    // Deletion requires more.
    assert_eq!(
        first_guard(&known, &old[0]),
        Some(DeletionGuard::NewestIncomplete(Incompleteness::AfterLast))
    );
    known.record_write(at(4), 1, &format!("o/checkpoint-{NEW}/model.onnx"), 10);
    assert_eq!(generation(&known, &new[0]), None);
    known.record_write(at(13), 1, &format!("o/checkpoint-{NEW}/eval_results.json"), 10);
    known.mark_quiet(at(15));
    assert_eq!(generation(&known, &new[0]), Some(0), "a while later");
    assert_eq!(
        first_guard(&known, &old[0]),
        Some(DeletionGuard::NewestIncomplete(Incompleteness::AfterLast))
    );
    known.record_delete(1, &format!("o/checkpoint-{NEW}/eval_results.json"));
    assert_eq!(generation(&known, &new[0]), Some(0));
    known.record_delete(1, &new[0]);
    assert_eq!(generation(&known, &new[0]), None, "the configuration is part of the checkpoint");
}

/// Returns the index after these writes, one after the other.
fn new_of(all: &[&[String]]) -> CheckpointIndex {
    let mut known = new();
    for (at, key) in all.iter().copied().flatten().enumerate() {
        known.record_write(MINUTE_US + at as u64, 1, key, 100);
    }
    known
}

#[test]
fn a_repeated_upload_is_complete_when_all_files_were_repeated() {
    for case in CASES.iter().filter(|case| case.mark.is_some()) {
        let keys = case.keys(NEW);
        for order in orders(&keys) {
            let mut known = new_of(&[&keys]);
            for (at, key) in order.iter().enumerate() {
                known.record_write(2 * MINUTE_US + at as u64, 1, key, 100);
            }
            known.mark_quiet(20 * MINUTE_US);
            assert_eq!(generation(&known, &keys[0]), Some(0), "{order:?}");
            // The same after an interrupted repetition.
            let needed = order.iter().position(|key| case.is_needed(key) && !case.is_mark(key)).unwrap();
            known.record_write(30 * MINUTE_US, 1, &order[needed], 100);
            known.mark_quiet(60 * MINUTE_US);
            let is_one = keys.iter().filter(|key| case.is_needed(key) && !case.is_mark(key)).count() == 1;
            assert_eq!(generation(&known, &keys[0]).is_some(), is_one, "{order:?}");
        }
    }
}

#[test]
fn a_smaller_unordered_checkpoint_counts_once_there_are_two() {
    let of = |step: u64, ranks: u32| -> Vec<String> {
        let ranks = (0..ranks).map(|rank| format!("r/step-{step}/__{rank}_0.distcp"));
        [format!("r/step-{step}/.metadata")].into_iter().chain(ranks).collect()
    };
    let (first, second, third) = (of(1000, 4), of(2000, 2), of(3000, 2));
    let mut known = new_of(&[&first, &second]);
    known.mark_quiet(20 * MINUTE_US);
    let found = |known: &CheckpointIndex| [&first, &second, &third].map(|keys| generation(known, &keys[0]));
    assert_eq!(found(&known), [Some(0), None, None]);
    for key in &third {
        known.record_write(30 * MINUTE_US, 1, key, 100);
    }
    known.mark_quiet(60 * MINUTE_US);
    assert_eq!(found(&known), [Some(2), Some(1), Some(0)]);
}

#[test]
fn an_unordered_checkpoint_is_complete_although_later_ones_are_larger() {
    let [first, second, third] = [1000, 2000, 3000].map(|step| {
        let name = |file: &str| format!("o/checkpoint-{step}/{file}");
        let more = if step == 1000 { vec![] } else { vec!["ema.pt", "scaler.pt"] };
        let files = [&["trainer_state.json", "optimizer.pt"][..], &more, &["model.safetensors"]].concat();
        files.into_iter().map(name).collect::<Vec<_>>()
    });
    let mut known = new_of(&[&first]);
    known.mark_quiet(20 * MINUTE_US);
    for key in second.iter().chain(&third) {
        known.record_write(30 * MINUTE_US, 1, key, 100);
        assert!(generation(&known, &first[0]).is_some(), "{key}");
    }
}

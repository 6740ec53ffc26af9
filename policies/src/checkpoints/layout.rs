//! Checkpoint layouts of frameworks: parses a key into its group and its role there.
//!
//! A group consists of all keys with one prefix: a folder (`run/checkpoint-500/`), a stem (`run/ckpt-500.`)
//! or a whole key. The innermost folder with a step's name is the group (`folder.rs`), and everything before
//! it is the run's name. Names alone decide, so a listing gives the same result as the writes. Invariant: a
//! name that may be either a run's or a checkpoint's is never treated in a way that allows its deletion.

use super::file_role::{FileRole, TENSOR_ENDINGS, TRAINER_STATE, is_dcp_file, role_in_folder, shard};
use super::folder::{self, FolderSearch, StepFolder};
use super::step::{
    NOT_IN_FOLDERS, StepNumber, has_no_other_words, has_only_step_numbers, has_other_step_number, shape,
    step_of, without_version,
};
use crate::key_parts::{extension, name_at, name_of, split, split_at_last_dot};
use crate::language::ModelFileKind;

/// Framework that writes such groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Layout {
    /// `torch.distributed.checkpoint`: `__RANK_INDEX.distcp`, and `.metadata` last.
    Dcp,
    /// Safetensors or `pytorch_model-*.bin`: shards numbered with a total, or a single file.
    Safetensors,
    /// The Trainer of transformers: `checkpoint-STEP/`, `trainer_state.json` last.
    Transformers,
    /// Lightning: `epoch=E-step=S.ckpt`, a file or a folder.
    Lightning,
    /// DeepSpeed: `global_stepSTEP/`, and a file `latest` beside it.
    DeepSpeed,
    /// Megatron: `iter_STEP/`, and `latest_checkpointed_iteration.txt` beside it.
    Megatron,
    /// Orbax: `STEP/`, `_CHECKPOINT_METADATA` or `commit_success.txt` last.
    Orbax,
    /// TensorFlow: `ckpt-STEP.data-00000-of-00002`, `.index` last.
    TensorFlow,
    /// Other files whose names contain the number of a step or an epoch.
    Plain,
}

impl Layout {
    /// Returns the name of the layout.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Dcp => "dcp",
            Self::Safetensors => "safetensors",
            Self::Transformers => "transformers",
            Self::Lightning => "lightning",
            Self::DeepSpeed => "deepspeed",
            Self::Megatron => "megatron",
            Self::Orbax => "orbax",
            Self::TensorFlow => "tensorflow",
            Self::Plain => "plain",
        }
    }

    /// True if a pointer file beside the groups is written when one of them is complete.
    pub(super) const fn has_pointer(self) -> bool {
        matches!(self, Self::DeepSpeed | Self::Megatron)
    }
}

/// A parsed key: its run, group, step and role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CheckpointKey<'k> {
    /// Common beginning of all generations of the run: a folder with its trailing slash, or empty.
    pub(super) parent: &'k str,
    /// Common prefix of all keys of the group.
    pub(super) prefix: &'k str,
    /// Part of the key after the prefix.
    pub(super) rest: &'k str,
    /// Name of its series: the prefix with `#` for its numbers if one of these is a step, the prefix itself
    /// otherwise.
    pub(super) series: String,
    pub(super) step: Option<u64>,
    pub(super) layout: Layout,
    pub(super) role: FileRole,
    /// True if groups with such files are never complete without a last file.
    pub(super) needs_last: bool,
    /// True if the part after the prefix contains another step: the group may be a run and not a checkpoint.
    pub(super) holds_steps: bool,
    /// True if its name may distinguish runs or parts, not only steps.
    pub(super) is_ambiguous: bool,
}

impl CheckpointKey<'_> {
    /// True if its folder has the name that the Trainer of transformers uses.
    pub(super) fn is_in_trainer_folder(&self) -> bool {
        is_trainer_folder(self.prefix, self.parent)
    }

    /// True if it is the Trainer's last file.
    pub(super) fn is_trainer_state(&self) -> bool {
        self.rest == TRAINER_STATE && self.is_in_trainer_folder()
    }
}

/// True if a group with this prefix, in the folder of this run, has the name that the Trainer of transformers
/// uses.
pub(super) fn is_trainer_folder(prefix: &str, parent: &str) -> bool {
    prefix[parent.len()..].starts_with("checkpoint-") && prefix.ends_with('/')
}

/// Extensions of texts and similar files, which may be added to a complete checkpoint.
const TEXT_ENDINGS: [&str; 13] =
    ["json", "jsonl", "txt", "md", "yaml", "yml", "toml", "csv", "tsv", "log", "py", "jinja", "html"];
/// Other files with a vocabulary; and files with the name of a description that may be the model itself.
const VOCABULARIES: [&str; 2] = ["spiece.model", "sentencepiece.bpe.model"];
const MODEL_NAMES: [&str; 2] = ["checkpoint", "model.json"];
/// Pointer files beside the groups that name the one to resume from; true if their framework writes no other
/// sign of completeness.
pub(super) const POINTERS: [(&str, bool); 8] = [
    ("latest", true),
    ("latest.txt", false),
    ("latest_checkpoint", false),
    ("latest_checkpointed_iteration.txt", true),
    ("latest_step", false),
    ("last_checkpoint", false),
    ("last_checkpoint.txt", false),
    ("checkpoint", false),
];

/// Parses a key; `None` if it is not part of a checkpoint. A key with a `#` is none, because `#` represents
/// numbers in names of series.
pub(super) fn parse_key(key: &str) -> Option<CheckpointKey<'_>> {
    let name_at = name_at(key);
    let place = match folder::find_step_folder(key, name_at) {
        FolderSearch::Unfinished => None,
        FolderSearch::InStep(folder) => Some(parse_in_folder(key, name_at, &folder)),
        FolderSearch::Other => parse_by_name(key, name_at),
    };
    place.filter(|_| !key.contains('#'))
}

/// Returns the folder whose groups a pointer file refers to: when it is written, one of them is complete.
pub(super) fn pointer(key: &str) -> Option<&str> {
    let (folder, name) = split(key);
    POINTERS.contains(&(name, true)).then_some(folder)
}

/// Parses a key in a step folder.
fn parse_in_folder<'k>(key: &'k str, name_at: usize, folder: &StepFolder) -> CheckpointKey<'k> {
    let (name, rest, own) = (&key[name_at..], &key[folder.end..], folder.name(key));
    let is_dcp = is_dcp_file(name);
    let layout = match layout_of_folder(own, name) {
        Layout::Plain if folder.is_orbax => Layout::Orbax,
        layout => layout,
    };
    let is_last = layout == Layout::Orbax && folder::ORBAX_LAST.contains(&rest);
    let role = match layout {
        _ if is_last => FileRole::Last,
        Layout::Orbax if folder.is_number => FileRole::Part,
        _ => role_in_folder(name),
    };
    let (parent, prefix) = (&key[..folder.at], &key[..folder.end]);
    // A group without a certain step is a run of its own and is never deleted.
    let series = if folder.step.is_some() { format!("{parent}{}/", shape(own)) } else { prefix.to_owned() };
    CheckpointKey {
        parent,
        prefix,
        rest,
        series,
        step: folder.step,
        layout,
        role,
        needs_last: layout == Layout::Orbax || is_dcp,
        holds_steps: holds_steps(rest, name, folder, layout),
        is_ambiguous: folder.is_nested
            || (folder.is_number && is_dcp && may_be_job(own))
            || (!folder.is_number && may_be_run(own, layout)),
    }
}

/// Numbers below this may count rounds of trainings, as in `iter9`, instead of steps.
const ROUND_NUMBERS_END: u64 = 10;

/// Minimum digits of a job id.
const JOB_DIGITS_MIN: usize = 5;

/// True if a number may be a job id: job ids have no leading zeros, and are longer or less round than steps.
/// Orbax numbers nothing but steps.
fn may_be_job(folder: &str) -> bool {
    let is_even = folder.ends_with('0') && folder.len() <= folder::NESTED_DIGITS_MAX;
    folder.len() >= JOB_DIGITS_MIN && !folder.starts_with('0') && !is_even
}

/// True if the name of a step folder may be a run's: `task-1-step-100`, and with files of no known framework
/// `iter1-sft` and `iter2`.
fn may_be_run(folder: &str, layout: Layout) -> bool {
    let Some(step) = step_of(folder, &NOT_IN_FOLDERS) else { return true };
    // Checkpoints at the second or third step are rare, but rounds of trainings are common.
    let is_round =
        !step.is_strong && step.value < ROUND_NUMBERS_END && !folder.to_ascii_lowercase().contains("epoch");
    let is_plain = layout == Layout::Plain;
    !has_only_step_numbers(folder) || (is_plain && (is_round || !has_no_other_words(&folder[step.end..])))
}

/// True if the content of a step folder names another step.
fn holds_steps(rest: &str, name: &str, folder: &StepFolder, layout: Layout) -> bool {
    if folder::has_numbered_folder(rest) {
        return true;
    }
    let is_plain = layout == Layout::Plain;
    // Frameworks number models and ranks of experts this way.
    let not: &[&str] = if is_plain { &[] } else { &["model", "weights", "ep"] };
    let stem = shard(name).map_or(name.len(), |(stem, _)| stem);
    let step = step_of(&name[..stem], not).map(|step| step.value);
    let is_numbered = is_plain
        && TENSOR_ENDINGS.contains(&extension(name))
        && has_other_step_number(&name[..stem], folder.step.unwrap_or(0));
    // Accelerate numbers objects that users register.
    (is_numbered || (step.is_some() && step != folder.step)) && !name.starts_with("custom_checkpoint_")
}

fn layout_of_folder(folder: &str, name: &str) -> Layout {
    if is_dcp_file(name) && !folder.ends_with(".ckpt") && !folder.starts_with("iter_") {
        Layout::Dcp
    } else if folder.starts_with("global_step") {
        Layout::DeepSpeed
    } else if folder.starts_with("iter_") {
        Layout::Megatron
    } else if folder.ends_with(".ckpt") {
        Layout::Lightning
    } else if folder.starts_with("checkpoint-") {
        Layout::Transformers
    } else {
        Layout::Plain
    }
}

/// Parses a key without a step folder.
fn parse_by_name(key: &str, name_at: usize) -> Option<CheckpointKey<'_>> {
    let (folder, name) = key.split_at(name_at);
    let whole = |at: usize, layout, role, wants_last| CheckpointKey {
        parent: folder,
        prefix: &key[..at],
        rest: &key[at..],
        series: key[..at].to_owned(),
        step: None,
        layout,
        role,
        needs_last: wants_last,
        holds_steps: false,
        is_ambiguous: false,
    };
    if is_dcp_file(name) {
        return Some(whole(name_at, Layout::Dcp, role_in_folder(name), true));
    }
    if let Some((stem, role)) = tensorflow_role(name) {
        let at = name_at + stem + 1;
        let mut place = whole(at, Layout::TensorFlow, role, true);
        if let Some(step) = step_of(&name[..stem], &[]) {
            place.step = Some(step.value);
            place.is_ambiguous = !has_only_step_numbers(&name[..stem]);
            place.series = format!("{folder}{}", shape(&name[..stem]));
        }
        return Some(place);
    }
    let (_, ending) = split_at_last_dot(name)?;
    let is_index = name.ends_with(".safetensors.index.json") || name.ends_with(".bin.index.json");
    let is_tensors = TENSOR_ENDINGS.contains(&ending);
    if is_tensors && let Some((_, of)) = shard(name) {
        return Some(whole(name_at, Layout::Safetensors, FileRole::Shard { of }, false));
    }
    if is_index {
        return Some(whole(name_at, Layout::Safetensors, FileRole::Last, false));
    }
    if !is_tensors {
        return None;
    }
    if let Some(step) = step_of(name, &[]) {
        return Some(parse_numbered(key, name_at, ending, step));
    }
    match name {
        "model.safetensors" | "pytorch_model.bin" | "diffusion_pytorch_model.safetensors" => {
            Some(whole(key.len(), Layout::Safetensors, FileRole::Whole, false))
        }
        "last.ckpt" => Some(whole(key.len(), Layout::Lightning, FileRole::Whole, false)),
        _ => None,
    }
}

/// Parses a file with a step in its name. A `.ckpt` file is a whole checkpoint; other files of one step may
/// be several.
fn parse_numbered<'k>(key: &'k str, name_at: usize, ending: &str, step: StepNumber) -> CheckpointKey<'k> {
    let name = &key[name_at..];
    let is_whole = ending == "ckpt";
    let at = if is_whole { key.len() } else { name_at + step.end };
    let stem = if is_whole { without_version(name) } else { name[..step.end].to_owned() };
    CheckpointKey {
        parent: &key[..name_at],
        prefix: &key[..at],
        rest: &key[at..],
        series: format!("{}{}", &key[..name_at], shape(&stem)),
        step: Some(step.value),
        layout: if is_whole { Layout::Lightning } else { Layout::Plain },
        role: if is_whole { FileRole::Whole } else { FileRole::Part },
        needs_last: false,
        holds_steps: false,
        is_ambiguous: !has_only_step_numbers(&stem),
    }
}

/// True if a file merely describes those beside it: an index of shards, a configuration, a tokenizer.
pub(super) fn is_description(name: &str) -> bool {
    !TENSOR_ENDINGS.contains(&extension(name))
        && matches!(super::model_file_kind(name), Some(ModelFileKind::Architecture | ModelFileKind::Metadata))
}

/// True if a part is a text or a description, which carries no information about the progress of its
/// checkpoint.
pub(super) fn is_small(parsed: &CheckpointKey<'_>) -> bool {
    // In Orbax no file with such a name is optional.
    parsed.role == FileRole::Part && parsed.layout != Layout::Orbax && is_text(name_of(parsed.rest))
}

/// True if a file is a text or a description by its name.
pub(super) fn is_text(name: &str) -> bool {
    let is_text = TEXT_ENDINGS.contains(&extension(name))
        || VOCABULARIES.contains(&name)
        || name.contains(".tfevents.");
    !MODEL_NAMES.contains(&name) && (is_text || is_description(name))
}

/// True if a file contains weights by its name, and not only state for training.
pub(super) fn is_weights(parsed: &CheckpointKey<'_>) -> bool {
    let kind = super::model_file_kind(parsed.rest);
    parsed.role != FileRole::Last
        && !parsed.rest.starts_with("optim")
        && matches!(kind, Some(ModelFileKind::Weights | ModelFileKind::Checkpoint))
}

/// Returns the length of the stem and the role of a file with a TensorFlow name.
fn tensorflow_role(name: &str) -> Option<(usize, FileRole)> {
    let (stem, ending) = split_at_last_dot(name)?;
    let role = match ending {
        "index" => FileRole::Last,
        "meta" => FileRole::Extra,
        _ => FileRole::Shard { of: shard(ending.strip_prefix("data")?)?.1 },
    };
    (stem == "variables" || stem.contains("ckpt") || step_of(stem, &[]).is_some())
        .then_some((stem.len(), role))
}

#[cfg(test)]
mod tests {
    use super::super::measure::value_of_measure;
    use super::super::step::shape;
    use super::{FileRole, Layout, parse_key, pointer};

    #[test]
    fn keys_are_parsed_for_all_layouts() {
        let shard = |of| FileRole::Shard { of };
        for (key, prefix, series, step, layout, role) in [
            ("r/step-500/__3_0.distcp", "r/step-500/", "r/step-#/", Some(500), Layout::Dcp, FileRole::Part),
            ("r/500/.metadata", "r/500/", "r/#/", Some(500), Layout::Dcp, FileRole::Last),
            ("r/final/__0_0.distcp", "r/final/", "r/final/", None, Layout::Dcp, FileRole::Part),
            (
                "m/llama-7b/model-00001-of-00005.safetensors",
                "m/llama-7b/",
                "m/llama-7b/",
                None,
                Layout::Safetensors,
                shard(5),
            ),
            (
                "m/llama-7b/model.safetensors.index.json",
                "m/llama-7b/",
                "m/llama-7b/",
                None,
                Layout::Safetensors,
                FileRole::Last,
            ),
            (
                "o/checkpoint-500/optimizer.pt",
                "o/checkpoint-500/",
                "o/checkpoint-#/",
                Some(500),
                Layout::Transformers,
                FileRole::Part,
            ),
            (
                "o/checkpoint-500/trainer_state.json",
                "o/checkpoint-500/",
                "o/checkpoint-#/",
                Some(500),
                Layout::Transformers,
                FileRole::Last,
            ),
            (
                "o/checkpoint-500/global_step500/mp_rank_00_model_states.pt",
                "o/checkpoint-500/",
                "o/checkpoint-#/",
                Some(500),
                Layout::Transformers,
                FileRole::Part,
            ),
            (
                "l/epoch=3-step=500.ckpt",
                "l/epoch=3-step=500.ckpt",
                "l/epoch=#-step=#.ckpt",
                Some(500),
                Layout::Lightning,
                FileRole::Whole,
            ),
            (
                "l/epoch=3-step=500-v1.ckpt",
                "l/epoch=3-step=500-v1.ckpt",
                "l/epoch=#-step=#.ckpt",
                Some(500),
                Layout::Lightning,
                FileRole::Whole,
            ),
            (
                "l/epoch=3-step=500-val_loss=0.25.ckpt",
                "l/epoch=3-step=500-val_loss=0.25.ckpt",
                "l/epoch=#-step=#-val_loss=#.ckpt",
                Some(500),
                Layout::Lightning,
                FileRole::Whole,
            ),
            (
                "l/epoch=3-step=500.ckpt/meta.pt",
                "l/epoch=3-step=500.ckpt/",
                "l/epoch=#-step=#.ckpt/",
                Some(500),
                Layout::Lightning,
                FileRole::Last,
            ),
            (
                "d/global_step500/zero_pp_rank_0_mp_rank_00_optim_states.pt",
                "d/global_step500/",
                "d/global_step#/",
                Some(500),
                Layout::DeepSpeed,
                FileRole::Part,
            ),
            (
                "g/iter_0000500/mp_rank_00/model_optim_rng.pt",
                "g/iter_0000500/",
                "g/iter_#/",
                Some(500),
                Layout::Megatron,
                FileRole::Part,
            ),
            (
                "j/500/default/ocdbt.process_0/d/0af3",
                "j/500/",
                "j/#/",
                Some(500),
                Layout::Orbax,
                FileRole::Part,
            ),
            ("j/500/commit_success.txt", "j/500/", "j/#/", Some(500), Layout::Orbax, FileRole::Last),
            (
                "t/ckpt-500.data-00000-of-00002",
                "t/ckpt-500.",
                "t/ckpt-#",
                Some(500),
                Layout::TensorFlow,
                shard(2),
            ),
            (
                "t/model.ckpt-500.index",
                "t/model.ckpt-500.",
                "t/model.ckpt-#",
                Some(500),
                Layout::TensorFlow,
                FileRole::Last,
            ),
            ("p/ep1-ba500-rank0.pt", "p/ep1-ba500", "p/ep#-ba#", Some(500), Layout::Plain, FileRole::Part),
            (
                "p/model_epoch_12.pth",
                "p/model_epoch_12",
                "p/model_epoch_#",
                Some(12),
                Layout::Plain,
                FileRole::Part,
            ),
            ("p/epoch_12/weights.pt", "p/epoch_12/", "p/epoch_#/", Some(12), Layout::Plain, FileRole::Part),
        ] {
            let found = parse_key(key).unwrap_or_else(|| panic!("{key}"));
            let got = (found.prefix, &*found.series, found.step, found.layout, found.role);
            assert_eq!(got, (prefix, series, step, layout, role), "{key}");
            assert_eq!(format!("{}{}", found.prefix, found.rest), key);
            assert!(found.prefix.starts_with(found.parent));
        }
    }

    #[test]
    fn other_keys_are_not_parsed() {
        for key in [
            "train/img_0001.jpg",
            "train/shard-00001-of-00100.tfrecord",
            "data/step_3/sample_000123.npz",
            "data/epoch_3/labels.parquet",
            "2026/07/part-00001.parquet",
            "j/500.orbax-checkpoint-tmp-17/default/d/0af3",
            "o/tmp-checkpoint-500/optimizer.pt",
            "best.pt",
            "model_7b.pt",
            "r/1/500.orbax-checkpoint-tmp-17/default/manifest.ocdbt",
            "data/epoch_3/_SUCCESS",
            "data/epoch_3/state/part-0.parquet",
            "model2/weights.bin",
            "",
            "/",
            "a//b",
            "step_99999999999999999999.pt",
            "über/шаг-5/é.bin",
        ] {
            assert_eq!(parse_key(key), None, "{key}");
        }
    }

    #[test]
    fn another_step_inside_a_step_folder_is_detected() {
        for (key, holds_steps) in [
            ("step_100/model.pt", false),
            ("step_100/rank/3/model.pt", false),
            ("step_100/rank_3/model_step_100.pt", false),
            ("step_100/resnet101-rank12.pt", false),
            ("step_100/model-00001-of-00002.safetensors", false),
            ("step_100/custom_checkpoint_0.pt", false),
            ("global_step100/layer_00-model_00-model_states.pt", false),
            ("checkpoint-100/global_step100/x.pt", false),
            ("100/default/ocdbt.process_0/d/123", false),
            ("iter-1/model_step_200.pt", true),
            ("iter-1/model010000.pt", true),
            ("iter-1/model_step_200-00001-of-00002.safetensors", true),
            ("ckpt-1/G_10000.pth", true),
            ("ckpt-1/7.pth", true),
            ("ckpt-1/100/model.pt", true),
            ("ckpt-1/model.ckpt-200.index", true),
            ("step-100/0/model.pt", true),
        ] {
            assert_eq!(parse_key(key).unwrap().holds_steps, holds_steps, "{key}");
        }
    }

    #[test]
    fn pointers_and_measures_are_read() {
        assert_eq!(pointer("d/latest"), Some("d/"));
        assert_eq!(pointer("latest_checkpointed_iteration.txt"), Some(""));
        assert_eq!(pointer("d/latest.pt"), None);
        for (name, measure) in [
            ("epoch=3-val_loss=0.25.ckpt", Some(0.25)),
            ("val_loss=-1.5-step=5.ckpt", Some(-1.5)),
            ("val_loss=2e-05-epoch=1.ckpt", Some(2e-5)),
            ("val_loss=1.5e3.ckpt", Some(1500.0)),
            ("val_loss=2epochs.ckpt", Some(2.0)),
            ("step=5.ckpt", None),
            ("val_loss=nan.ckpt", None),
        ] {
            assert_eq!(value_of_measure(name, "val_loss"), measure, "{name}");
        }
        assert_eq!(shape("a=1.5e-05-b=2.ckpt"), "a=#-b=#.ckpt");
        assert_eq!(shape("schön-12"), "schön-#");
    }

    #[test]
    fn shard_numbers_are_not_steps_and_nested_runs_are_separate() {
        for (key, prefix, step) in [
            ("m/flax_model-00001-of-00004.msgpack", "m/", None),
            ("m/tf_model-00001-of-00004.h5", "m/", None),
            ("m/model-00001-of-00004.pt", "m/", None),
            ("iter1/checkpoint-500/model.pt", "iter1/checkpoint-500/", Some(500)),
            ("checkpoint-500/global_step500/x.pt", "checkpoint-500/", Some(500)),
            ("checkpoint-1/global_step2/x.pt", "checkpoint-1/global_step2/", Some(2)),
            // The innermost folder is the step's, and a run's name may contain numbers.
            ("exp/1/step-100/.metadata", "exp/1/step-100/", Some(100)),
            ("ckpt-1/step-1/a.pt", "ckpt-1/step-1/", Some(1)),
            ("4711201/ckpt/step-5/__0_0.distcp", "4711201/ckpt/step-5/", Some(5)),
            ("1/checkpoints/step=100/weights/.metadata", "1/checkpoints/step=100/", Some(100)),
            ("1/ep1-ba100/__0_0.distcp", "1/ep1-ba100/", Some(100)),
            ("1/ck/100/.metadata", "1/ck/100/", Some(100)),
            ("1/100/default/manifest.ocdbt", "1/100/", Some(100)),
            ("1/100/default/d/abc", "1/100/", Some(100)),
            ("1/100/_CHECKPOINT_METADATA", "1/100/", Some(100)),
            ("1/step_100/default/d/abc", "1/step_100/", Some(100)),
            ("1/step_100/_CHECKPOINT_METADATA", "1/step_100/", Some(100)),
            // Numbers inside are parts.
            ("100/default/ocdbt.process_0/d/0af3", "100/", Some(100)),
            ("step-100/0/model.pt", "step-100/", Some(100)),
            ("step_100/rank/3/model.pt", "step_100/", Some(100)),
            ("step_100/rank/3/__3_0.distcp", "step_100/", Some(100)),
            // Ambiguous cases.
            ("step-100/0/__0_0.distcp", "step-100/0/", None),
            ("epoch_1/100/default/d/abc", "epoch_1/100/", None),
            ("epoch_1/100/_CHECKPOINT_METADATA", "epoch_1/100/", None),
            ("100/0/.metadata", "100/0/", None),
            ("step_100/ep_3/x.pt", "step_100/ep_3/", None),
            ("seeds/1/.metadata", "seeds/1/", None),
            ("seeds/1/default/d/abc", "seeds/1/", None),
            ("exp/1/.metadata", "exp/1/", None),
            ("exp/500/default/d/abc", "exp/500/", Some(500)),
            ("20261123/.metadata", "20261123/", None),
            ("20261123/100/.metadata", "20261123/100/", Some(100)),
            ("20261323/.metadata", "20261323/", Some(20_261_323)),
            // Files that are one checkpoint each, in a folder named after a run.
            ("iter-1/epoch=3-step=500.ckpt", "iter-1/epoch=3-step=500.ckpt", Some(500)),
            ("warmup-steps-100/last.ckpt", "warmup-steps-100/last.ckpt", None),
        ] {
            let place = parse_key(key).unwrap();
            assert_eq!((place.prefix, place.step), (prefix, step), "{key}");
        }
    }
}

//! How frameworks lay their checkpoints out: what a key says of the group that it belongs to.
//!
//! A group is all keys that begin with one prefix: a folder (`run/checkpoint-500/`), a stem (`run/ckpt-500.`)
//! or a whole key. The innermost folder that is called like a step is the group (`folder.rs`), and all that
//! is before it is the run's name. Names alone decide, so that a listing tells the same as the writes did.
//! Always: of a name that may be that of a run as well as that of a checkpoint, nothing is said that lets it
//! be deleted.

use super::folder::{self, Folder, Folders};
use super::step::{
    NOT_OF_FOLDERS, Step, has_no_other_words, has_number, shape, step_of, tells_steps_only, without_version,
};
use crate::key::{at_dot, ending, name_at, name_of, split};
use crate::language::ModelFileKind;

/// Who writes such groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Layout {
    /// `torch.distributed.checkpoint`: `__RANK_INDEX.distcp`, and `.metadata` last.
    Dcp,
    /// Safetensors, or `pytorch_model-*.bin`: shards that say how many they are, or a single file.
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
    /// Any other files whose names carry the number of a step or an epoch.
    Plain,
}

impl Layout {
    /// Its word.
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

    /// Whether a file beside the groups is written when one of them is complete.
    pub(super) const fn is_pointed(self) -> bool {
        matches!(self, Self::DeepSpeed | Self::Megatron)
    }
}

/// What a file is to its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// One that has to be there before the last one is written.
    Part,
    /// One of so many that are numbered.
    Shard { of: u32 },
    /// What is written when the others are there.
    Last,
    /// All there is.
    Whole,
    /// It belongs to the group, and may come whenever it likes.
    Extra,
}

/// Where a key belongs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place<'k> {
    /// What all generations of the run begin with: a folder with its slash, or nothing.
    pub(super) parent: &'k str,
    /// What all keys of the group begin with.
    pub(super) prefix: &'k str,
    /// What follows that.
    pub(super) rest: &'k str,
    /// What its series is called: the prefix with `#` for its numbers where a step is among these, the prefix
    /// itself otherwise.
    pub(super) series: String,
    pub(super) step: Option<u64>,
    pub(super) layout: Layout,
    pub(super) role: Role,
    /// Whether such a file is never complete without a last one.
    pub(super) wants_last: bool,
    /// Whether what follows the prefix names another step: then the group may be a run and no checkpoint.
    pub(super) holds_steps: bool,
    /// Whether its name may tell runs or parts apart, not only steps.
    pub(super) in_doubt: bool,
}

impl Place<'_> {
    /// Whether its folder is called as the Trainer of transformers does.
    pub(super) fn is_in_trainers(&self) -> bool {
        is_of_trainer(self.prefix, self.parent)
    }

    /// Whether it is what that writes last.
    pub(super) fn is_trainer_state(&self) -> bool {
        self.rest == TRAINER_STATE && self.is_in_trainers()
    }
}

/// Whether a group with this prefix, in the folder of this run, is called as the Trainer of transformers
/// calls its folders.
pub(super) fn is_of_trainer(prefix: &str, parent: &str) -> bool {
    prefix[parent.len()..].starts_with("checkpoint-") && prefix.ends_with('/')
}

/// What the Trainer of transformers writes of itself, last.
pub(super) const TRAINER_STATE: &str = "trainer_state.json";
/// How texts and their like end, which may come to a checkpoint when it is whole.
const TEXT_ENDINGS: [&str; 13] =
    ["json", "jsonl", "txt", "md", "yaml", "yml", "toml", "csv", "tsv", "log", "py", "jinja", "html"];
/// Others that hold a vocabulary; and what is called as a description is, and may be the model itself.
const VOCABULARIES: [&str; 2] = ["spiece.model", "sentencepiece.bpe.model"];
const MODELS: [&str; 2] = ["checkpoint", "model.json"];
/// How files that hold tensors end.
pub(super) const TENSOR_ENDINGS: [&str; 12] = [
    "pt",
    "pth",
    "ckpt",
    "bin",
    "safetensors",
    "h5",
    "keras",
    "msgpack",
    "pdparams",
    "pdopt",
    "distcp",
    "onnx",
];
/// Files beside the groups that name the one to go on from; and whether who writes it writes no other mark
/// that this one is complete.
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

/// Where a key belongs, if it is a part of a checkpoint. What has a `#` in its name, which stands for numbers
/// in names of series, is none.
pub(super) fn place(key: &str) -> Option<Place<'_>> {
    let name_at = name_at(key);
    let place = match folder::of(key, name_at) {
        Folders::Unfinished => None,
        Folders::Step(folder) => Some(in_folder(key, name_at, &folder)),
        Folders::Other => of_name(key, name_at),
    };
    place.filter(|_| !key.contains('#'))
}

/// The folder whose groups a key says something of: when it is written, one of them is complete.
pub(super) fn pointer(key: &str) -> Option<&str> {
    let (folder, name) = split(key);
    POINTERS.contains(&(name, true)).then_some(folder)
}

/// A key within a folder that is called like a step.
fn in_folder<'k>(key: &'k str, name_at: usize, folder: &Folder) -> Place<'k> {
    let (name, rest, own) = (&key[name_at..], &key[folder.end..], folder.name(key));
    let is_dcp = is_of_dcp(name);
    let layout = match layout_of_folder(own, name) {
        Layout::Plain if folder.is_orbax => Layout::Orbax,
        layout => layout,
    };
    let is_last = layout == Layout::Orbax && folder::ORBAX_LAST.contains(&rest);
    let role = match layout {
        _ if is_last => Role::Last,
        Layout::Orbax if folder.is_number => Role::Part,
        _ => role_in_folder(name),
    };
    let (parent, prefix) = (&key[..folder.at], &key[..folder.end]);
    // What is no step for sure is a run of its own, of which nothing goes.
    let series = if folder.step.is_some() { format!("{parent}{}/", shape(own)) } else { prefix.to_owned() };
    Place {
        parent,
        prefix,
        rest,
        series,
        step: folder.step,
        layout,
        role,
        wants_last: layout == Layout::Orbax || is_dcp,
        holds_steps: holds_steps(rest, name, folder, layout),
        in_doubt: folder.is_nested
            || (folder.is_number && is_dcp && may_be_job(own))
            || (!folder.is_number && may_be_run(own, layout)),
    }
}

/// `iter9` may be a round of trainings, and no step.
const ROUNDS_MAX: u64 = 10;

/// Fewer digits are no id of a job.
const JOB_DIGITS_MIN: usize = 5;

/// Whether a number may be the id of a job, which have no zeros in front, and are longer than steps are or
/// not as even. Orbax calls nothing by a number but steps.
fn may_be_job(folder: &str) -> bool {
    let is_even = folder.ends_with('0') && folder.len() <= folder::NESTED_DIGITS_MAX;
    folder.len() >= JOB_DIGITS_MIN && !folder.starts_with('0') && !is_even
}

/// Whether the name of a step's folder may be that of a run: `task-1-step-100`, and of files that nothing
/// says more of, `iter1-sft` and `iter2`.
fn may_be_run(folder: &str, layout: Layout) -> bool {
    let Some(step) = step_of(folder, &NOT_OF_FOLDERS) else { return true };
    // Few write checkpoints at the second and the third step, but trainings have rounds.
    let is_round =
        !step.is_strong && step.value < ROUNDS_MAX && !folder.to_ascii_lowercase().contains("epoch");
    let is_plain = layout == Layout::Plain;
    !tells_steps_only(folder) || (is_plain && (is_round || !has_no_other_words(&folder[step.end..])))
}

/// Whether what lies in a step's folder names a step for its part, other than that one.
fn holds_steps(rest: &str, name: &str, folder: &Folder, layout: Layout) -> bool {
    if folder::has_numbers(rest) {
        return true;
    }
    let is_plain = layout == Layout::Plain;
    // Frameworks number models and ranks of experts so.
    let not: &[&str] = if is_plain { &[] } else { &["model", "weights", "ep"] };
    let stem = shard(name).map_or(name.len(), |(stem, _)| stem);
    let step = step_of(&name[..stem], not).map(|step| step.value);
    let is_numbered = is_plain
        && TENSOR_ENDINGS.contains(&ending(name))
        && has_number(&name[..stem], folder.step.unwrap_or(0));
    // Accelerate numbers what users add.
    (is_numbered || (step.is_some() && step != folder.step)) && !name.starts_with("custom_checkpoint_")
}

fn layout_of_folder(folder: &str, name: &str) -> Layout {
    if is_of_dcp(name) && !folder.ends_with(".ckpt") && !folder.starts_with("iter_") {
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

fn role_in_folder(name: &str) -> Role {
    match name {
        // DCP; the Trainer; DeepSpeed within the folder of another; Lightning and Megatron beside DCP.
        ".metadata" | TRAINER_STATE | "latest" | "meta.pt" | "metadata.json" => Role::Last,
        // What ranks and scripts write without waiting for each other.
        "README.md" | "zero_to_fp32.py" | "training_args.bin" => Role::Extra,
        _ if name.starts_with("rng_state") => Role::Extra,
        _ => shard(name).map_or(Role::Part, |(_, of)| Role::Shard { of }),
    }
}

/// A key whose folders are no step's.
fn of_name(key: &str, name_at: usize) -> Option<Place<'_>> {
    let (folder, name) = key.split_at(name_at);
    let whole = |at: usize, layout, role, wants_last| Place {
        parent: folder,
        prefix: &key[..at],
        rest: &key[at..],
        series: key[..at].to_owned(),
        step: None,
        layout,
        role,
        wants_last,
        holds_steps: false,
        in_doubt: false,
    };
    if is_of_dcp(name) {
        return Some(whole(name_at, Layout::Dcp, role_in_folder(name), true));
    }
    if let Some((stem, role)) = of_tensorflow(name) {
        let at = name_at + stem + 1;
        let mut place = whole(at, Layout::TensorFlow, role, true);
        if let Some(step) = step_of(&name[..stem], &[]) {
            place.step = Some(step.value);
            place.in_doubt = !tells_steps_only(&name[..stem]);
            place.series = format!("{folder}{}", shape(&name[..stem]));
        }
        return Some(place);
    }
    let (_, ending) = at_dot(name)?;
    let is_index = name.ends_with(".safetensors.index.json") || name.ends_with(".bin.index.json");
    let is_tensors = TENSOR_ENDINGS.contains(&ending);
    if is_tensors && let Some((_, of)) = shard(name) {
        return Some(whole(name_at, Layout::Safetensors, Role::Shard { of }, false));
    }
    if is_index {
        return Some(whole(name_at, Layout::Safetensors, Role::Last, false));
    }
    if !is_tensors {
        return None;
    }
    if let Some(step) = step_of(name, &[]) {
        return Some(numbered(key, name_at, ending, step));
    }
    match name {
        "model.safetensors" | "pytorch_model.bin" | "diffusion_pytorch_model.safetensors" => {
            Some(whole(key.len(), Layout::Safetensors, Role::Whole, false))
        }
        "last.ckpt" => Some(whole(key.len(), Layout::Lightning, Role::Whole, false)),
        _ => None,
    }
}

/// A file with a step in its name. In one `.ckpt` is everything; others may come in several of one step.
fn numbered<'k>(key: &'k str, name_at: usize, ending: &str, step: Step) -> Place<'k> {
    let name = &key[name_at..];
    let is_whole = ending == "ckpt";
    let at = if is_whole { key.len() } else { name_at + step.end };
    let stem = if is_whole { without_version(name) } else { name[..step.end].to_owned() };
    Place {
        parent: &key[..name_at],
        prefix: &key[..at],
        rest: &key[at..],
        series: format!("{}{}", &key[..name_at], shape(&stem)),
        step: Some(step.value),
        layout: if is_whole { Layout::Lightning } else { Layout::Plain },
        role: if is_whole { Role::Whole } else { Role::Part },
        wants_last: false,
        holds_steps: false,
        in_doubt: !tells_steps_only(&stem),
    }
}

pub(super) fn is_of_dcp(name: &str) -> bool {
    name == ".metadata" || name.ends_with(".distcp")
}

/// Whether a file would be one of a checkpoint in a folder that has a step in its name.
pub(super) fn is_of_checkpoint(name: &str) -> bool {
    TENSOR_ENDINGS.contains(&ending(name))
        || role_in_folder(name) == Role::Last
        || super::model_file_kind(name).is_some()
}

/// Whether a file only describes those beside it: the index of shards, a configuration, a tokenizer.
pub(super) fn is_aside(name: &str) -> bool {
    !TENSOR_ENDINGS.contains(&ending(name))
        && matches!(super::model_file_kind(name), Some(ModelFileKind::Architecture | ModelFileKind::Metadata))
}

/// Whether a part is a text or a description, which tells nothing of how far its checkpoint has come.
pub(super) fn is_small(place: &Place<'_>) -> bool {
    // Orbax calls nothing so that can be done without.
    place.role == Role::Part && place.layout != Layout::Orbax && is_text(name_of(place.rest))
}

/// Whether a file is a text or a description by its name.
pub(super) fn is_text(name: &str) -> bool {
    let is_text =
        TEXT_ENDINGS.contains(&ending(name)) || VOCABULARIES.contains(&name) || name.contains(".tfevents.");
    !MODELS.contains(&name) && (is_text || is_aside(name))
}

/// Whether a file holds weights by its name, and not only what training needs besides.
pub(super) fn is_weights(place: &Place<'_>) -> bool {
    let kind = super::model_file_kind(place.rest);
    place.role != Role::Last
        && !place.rest.starts_with("optim")
        && matches!(kind, Some(ModelFileKind::Weights | ModelFileKind::Checkpoint))
}

/// The stem's length and what a file is to it, if it is called as TensorFlow does.
fn of_tensorflow(name: &str) -> Option<(usize, Role)> {
    let (stem, ending) = at_dot(name)?;
    let role = match ending {
        "index" => Role::Last,
        "meta" => Role::Extra,
        _ => Role::Shard { of: shard(ending.strip_prefix("data")?)?.1 },
    };
    (stem == "variables" || stem.contains("ckpt") || step_of(stem, &[]).is_some())
        .then_some((stem.len(), role))
}

/// `NAME-00001-of-00005.END`: the length of the name, and how many there are.
pub(super) fn shard(name: &str) -> Option<(usize, u32)> {
    let of_at = name.rfind("-of-")?;
    let (before, after) = (&name[..of_at], &name[of_at + 4..]);
    let digits = after.bytes().take_while(u8::is_ascii_digit).count();
    let stem = before.trim_end_matches(|c: char| c.is_ascii_digit());
    let of: u32 = after[..digits].parse().ok()?;
    (of > 0 && stem.ends_with('-') && stem.len() < before.len()).then_some((stem.len(), of))
}

#[cfg(test)]
mod tests {
    use super::super::measure::measure_in;
    use super::super::step::shape;
    use super::{Layout, Role, place, pointer};

    #[test]
    fn keys_say_where_they_belong() {
        let shard = |of| Role::Shard { of };
        for (key, prefix, series, step, layout, role) in [
            ("r/step-500/__3_0.distcp", "r/step-500/", "r/step-#/", Some(500), Layout::Dcp, Role::Part),
            ("r/500/.metadata", "r/500/", "r/#/", Some(500), Layout::Dcp, Role::Last),
            ("r/final/__0_0.distcp", "r/final/", "r/final/", None, Layout::Dcp, Role::Part),
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
                Role::Last,
            ),
            (
                "o/checkpoint-500/optimizer.pt",
                "o/checkpoint-500/",
                "o/checkpoint-#/",
                Some(500),
                Layout::Transformers,
                Role::Part,
            ),
            (
                "o/checkpoint-500/trainer_state.json",
                "o/checkpoint-500/",
                "o/checkpoint-#/",
                Some(500),
                Layout::Transformers,
                Role::Last,
            ),
            (
                "o/checkpoint-500/global_step500/mp_rank_00_model_states.pt",
                "o/checkpoint-500/",
                "o/checkpoint-#/",
                Some(500),
                Layout::Transformers,
                Role::Part,
            ),
            (
                "l/epoch=3-step=500.ckpt",
                "l/epoch=3-step=500.ckpt",
                "l/epoch=#-step=#.ckpt",
                Some(500),
                Layout::Lightning,
                Role::Whole,
            ),
            (
                "l/epoch=3-step=500-v1.ckpt",
                "l/epoch=3-step=500-v1.ckpt",
                "l/epoch=#-step=#.ckpt",
                Some(500),
                Layout::Lightning,
                Role::Whole,
            ),
            (
                "l/epoch=3-step=500-val_loss=0.25.ckpt",
                "l/epoch=3-step=500-val_loss=0.25.ckpt",
                "l/epoch=#-step=#-val_loss=#.ckpt",
                Some(500),
                Layout::Lightning,
                Role::Whole,
            ),
            (
                "l/epoch=3-step=500.ckpt/meta.pt",
                "l/epoch=3-step=500.ckpt/",
                "l/epoch=#-step=#.ckpt/",
                Some(500),
                Layout::Lightning,
                Role::Last,
            ),
            (
                "d/global_step500/zero_pp_rank_0_mp_rank_00_optim_states.pt",
                "d/global_step500/",
                "d/global_step#/",
                Some(500),
                Layout::DeepSpeed,
                Role::Part,
            ),
            (
                "g/iter_0000500/mp_rank_00/model_optim_rng.pt",
                "g/iter_0000500/",
                "g/iter_#/",
                Some(500),
                Layout::Megatron,
                Role::Part,
            ),
            ("j/500/default/ocdbt.process_0/d/0af3", "j/500/", "j/#/", Some(500), Layout::Orbax, Role::Part),
            ("j/500/commit_success.txt", "j/500/", "j/#/", Some(500), Layout::Orbax, Role::Last),
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
                Role::Last,
            ),
            ("p/ep1-ba500-rank0.pt", "p/ep1-ba500", "p/ep#-ba#", Some(500), Layout::Plain, Role::Part),
            (
                "p/model_epoch_12.pth",
                "p/model_epoch_12",
                "p/model_epoch_#",
                Some(12),
                Layout::Plain,
                Role::Part,
            ),
            ("p/epoch_12/weights.pt", "p/epoch_12/", "p/epoch_#/", Some(12), Layout::Plain, Role::Part),
        ] {
            let found = place(key).unwrap_or_else(|| panic!("{key}"));
            let got = (found.prefix, &*found.series, found.step, found.layout, found.role);
            assert_eq!(got, (prefix, series, step, layout, role), "{key}");
            assert_eq!(format!("{}{}", found.prefix, found.rest), key);
            assert!(found.prefix.starts_with(found.parent));
        }
    }

    #[test]
    fn what_is_no_checkpoint_is_none() {
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
            assert_eq!(place(key), None, "{key}");
        }
    }

    #[test]
    fn what_names_another_step_in_a_folder_of_one_is_noted() {
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
            assert_eq!(place(key).unwrap().holds_steps, holds_steps, "{key}");
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
            assert_eq!(measure_in(name, "val_loss"), measure, "{name}");
        }
        assert_eq!(shape("a=1.5e-05-b=2.ckpt"), "a=#-b=#.ckpt");
        assert_eq!(shape("schön-12"), "schön-#");
    }

    #[test]
    fn what_is_numbered_as_one_of_so_many_is_no_step_and_a_run_within_a_step_is_its_own() {
        for (key, prefix, step) in [
            ("m/flax_model-00001-of-00004.msgpack", "m/", None),
            ("m/tf_model-00001-of-00004.h5", "m/", None),
            ("m/model-00001-of-00004.pt", "m/", None),
            ("iter1/checkpoint-500/model.pt", "iter1/checkpoint-500/", Some(500)),
            ("checkpoint-500/global_step500/x.pt", "checkpoint-500/", Some(500)),
            ("checkpoint-1/global_step2/x.pt", "checkpoint-1/global_step2/", Some(2)),
            // The innermost folder is the step's, and a run's name may be numbered.
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
            // Numbers within are parts.
            ("100/default/ocdbt.process_0/d/0af3", "100/", Some(100)),
            ("step-100/0/model.pt", "step-100/", Some(100)),
            ("step_100/rank/3/model.pt", "step_100/", Some(100)),
            ("step_100/rank/3/__3_0.distcp", "step_100/", Some(100)),
            // Or one cannot tell.
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
            // Files that are a checkpoint each, in a folder that is called after a run.
            ("iter-1/epoch=3-step=500.ckpt", "iter-1/epoch=3-step=500.ckpt", Some(500)),
            ("warmup-steps-100/last.ckpt", "warmup-steps-100/last.ckpt", None),
        ] {
            let place = place(key).unwrap();
            assert_eq!((place.prefix, place.step), (prefix, step), "{key}");
        }
    }
}

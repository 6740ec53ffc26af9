//! How frameworks lay their checkpoints out: what a key says of the group that it belongs to.
//!
//! A group is all keys that begin with one prefix: a folder (`run/checkpoint-500/`), a stem (`run/ckpt-500.`) or a whole key. The outermost
//! folder that is called like a step is the group, whatever is within but the folders of other steps. Names alone decide, so that a listing tells the same as the writes did.

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
    /// What its series is called: the prefix with `#` for its numbers where a step is among these, the prefix itself otherwise.
    pub(super) series: String,
    pub(super) step: Option<u64>,
    pub(super) layout: Layout,
    pub(super) role: Role,
    /// Whether such a file is never complete without a last one.
    pub(super) wants_last: bool,
}

/// A step in a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step {
    value: u64,
    /// Behind the last number that belongs to a word for steps.
    end: usize,
    /// A word says that this is a checkpoint, whatever the files are called.
    is_strong: bool,
}

/// Words that a step's number follows; and whether it is an epoch's, or less.
const STEP_WORDS: [(&str, bool); 13] = [
    ("checkpoint", false),
    ("ckpt", false),
    ("chkpt", false),
    ("step", false),
    ("steps", false),
    ("globalstep", false),
    ("iter", false),
    ("iteration", false),
    ("ba", false),
    ("model", true),
    ("weights", true),
    ("epoch", true),
    ("ep", true),
];
/// Words whose numbers tell runs and ranks apart.
const RUN_WORDS: [&str; 12] =
    ["rank", "seed", "fold", "trial", "run", "exp", "lr", "wd", "bs", "gpu", "node", "worker"];
/// Words that number other things in names of folders.
pub(super) const NOT_OF_FOLDERS: [&str; 2] = ["model", "weights"];
/// Numbers of more digits are dates or hashes.
const STEP_DIGITS_MAX: usize = 12;
/// How files that hold tensors end.
const TENSOR_ENDINGS: [&str; 12] = [
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
/// Folders in which things are that are not there yet.
const UNFINISHED: [&str; 3] = ["orbax-checkpoint-tmp", "tmp-checkpoint-", "tmp_checkpoint"];
/// What Orbax calls what is in a step's folder, whose name is a number only.
const ORBAX_ITEMS: [&str; 9] =
    ["default", "state", "params", "train_state", "opt_state", "metrics", "items", "model", "d"];
const ORBAX_LAST: [&str; 2] = ["_CHECKPOINT_METADATA", "commit_success.txt"];
/// Files beside the groups that name the one to go on from; and whether who writes it writes no other mark that this one is complete.
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

/// Where a key belongs, if it is a part of a checkpoint.
pub(super) fn place(key: &str) -> Option<Place<'_>> {
    let name_at = key.rfind('/').map_or(0, |slash| slash + 1);
    if !key.as_bytes()[..name_at].iter().any(u8::is_ascii_digit) {
        return of_name(key, name_at);
    }
    let mut at = 0;
    let mut outermost: Option<Place<'_>> = None;
    for component in key[..name_at].split_terminator('/') {
        if outermost.is_none() && UNFINISHED.iter().any(|part| component.contains(part)) {
            return None;
        }
        let end = at + component.len() + 1;
        match &outermost {
            None => outermost = in_folder(key, at, end, component),
            // Another step within is a run of its own.
            Some(outer) => {
                let is_other = |step: &Step| step.is_strong && Some(step.value) != outer.step;
                if step_of(component, &NOT_OF_FOLDERS).is_some_and(|step| is_other(&step)) {
                    return in_folder(key, at, end, component);
                }
            }
        }
        at = end;
    }
    outermost.or_else(|| of_name(key, name_at))
}

/// The folder whose groups a key says something of: when it is written, one of them is complete.
pub(super) fn pointer(key: &str) -> Option<&str> {
    let name_at = key.rfind('/').map_or(0, |slash| slash + 1);
    POINTERS.contains(&(&key[name_at..], true)).then_some(&key[..name_at])
}

/// A key within a folder from `at` to `end` that may be a step's.
fn in_folder<'k>(key: &'k str, at: usize, end: usize, folder: &str) -> Option<Place<'k>> {
    let rest = &key[end..];
    let name = &rest[rest.rfind('/').map_or(0, |slash| slash + 1)..];
    let is_number = !folder.is_empty() && folder.bytes().all(|byte| byte.is_ascii_digit());
    let is_dcp = is_of_dcp(name);
    let (layout, step) = if is_number && folder.len() <= STEP_DIGITS_MAX && (is_of_orbax(rest) || is_dcp) {
        (if is_dcp { Layout::Dcp } else { Layout::Orbax }, folder.parse().ok()?)
    } else {
        let step = step_of(folder, &NOT_OF_FOLDERS)?;
        // A number in the name of a model is its size, and may be anything's that is not known to be a checkpoint's.
        if !step.is_strong && !is_dcp && !is_of_checkpoint(name) {
            return None;
        }
        (layout_of_folder(folder, name), step.value)
    };
    let role = match layout {
        Layout::Orbax if ORBAX_LAST.contains(&rest) => Role::Last,
        Layout::Orbax => Role::Part,
        _ => role_in_folder(name),
    };
    Some(Place {
        parent: &key[..at],
        prefix: &key[..end],
        rest,
        series: format!("{}{}/", &key[..at], shape(folder)),
        step: Some(step),
        layout,
        role,
        wants_last: layout == Layout::Orbax || is_dcp,
    })
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
        ".metadata" | "trainer_state.json" | "latest" | "meta.pt" | "metadata.json" => Role::Last,
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
    };
    if is_of_dcp(name) {
        return Some(whole(name_at, Layout::Dcp, role_in_folder(name), true));
    }
    if let Some((stem, role)) = of_tensorflow(name) {
        let at = name_at + stem + 1;
        let mut place = whole(at, Layout::TensorFlow, role, true);
        if let Some(step) = step_of(&name[..stem], &[]) {
            place.step = Some(step.value);
            place.series = format!("{folder}{}", shape(&name[..stem]));
        }
        return Some(place);
    }
    let (_, ending) = name.rsplit_once('.')?;
    let is_index = name.ends_with(".safetensors.index.json") || name.ends_with(".bin.index.json");
    if let Some((_, of)) = shard(name).filter(|_| TENSOR_ENDINGS.contains(&ending)) {
        return Some(whole(name_at, Layout::Safetensors, Role::Shard { of }, false));
    }
    if is_index {
        return Some(whole(name_at, Layout::Safetensors, Role::Last, false));
    }
    if !TENSOR_ENDINGS.contains(&ending) {
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
    }
}

fn is_of_dcp(name: &str) -> bool {
    name == ".metadata" || name.ends_with(".distcp")
}

fn is_of_orbax(rest: &str) -> bool {
    let first = rest.split('/').next().unwrap_or_default();
    ORBAX_LAST.contains(&rest)
        || rest.contains("ocdbt")
        || rest.starts_with('_')
        || rest == "checkpoint"
        || (ORBAX_ITEMS.contains(&first) && first.len() < rest.len())
}

/// Whether a file would be one of a checkpoint in a folder that has a step in its name.
fn is_of_checkpoint(name: &str) -> bool {
    let ending = name.rsplit_once('.').map_or("", |(_, ending)| ending);
    TENSOR_ENDINGS.contains(&ending)
        || role_in_folder(name) == Role::Last
        || super::model_file_kind(name).is_some()
}

/// The stem's length and what a file is to it, if it is called as TensorFlow does.
fn of_tensorflow(name: &str) -> Option<(usize, Role)> {
    let (stem, ending) = name.rsplit_once('.')?;
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

/// The step that a name carries; where it carries an epoch besides, that is not it.
pub(super) fn step_of(name: &str, not: &[&str]) -> Option<Step> {
    let bytes = name.as_bytes();
    let run = |at: usize, is: fn(&u8) -> bool| at + bytes[at..].iter().take_while(|byte| is(byte)).count();
    let (mut at, mut end, mut is_strong) = (0, 0, false);
    let mut best: Option<(bool, u64)> = None;
    while at < bytes.len() {
        let word_end = run(at, u8::is_ascii_alphabetic);
        if word_end == at {
            at += 1;
            continue;
        }
        let word = &name[at..word_end];
        let is_global = at > 0 && name[..at].ends_with("global_");
        is_strong |= is_global
            || ["checkpoint", "ckpt", "chkpt", "globalstep"].iter().any(|it| word.eq_ignore_ascii_case(it));
        let number_at = word_end + usize::from(bytes.get(word_end).is_some_and(|byte| b"-_=".contains(byte)));
        let number_end = run(number_at, u8::is_ascii_digit);
        let known = STEP_WORDS.iter().find(|(it, _)| word.eq_ignore_ascii_case(it) && !not.contains(it));
        if let Some((_, is_epoch)) = known
            // A number with a unit is a size.
            && !bytes.get(number_end).is_some_and(u8::is_ascii_alphabetic)
            && (1..=STEP_DIGITS_MAX).contains(&(number_end - number_at))
            && let Ok(value) = name[number_at..number_end].parse()
        {
            end = number_end;
            if best.is_none_or(|(was_epoch, _)| was_epoch || !is_epoch) {
                best = Some((*is_epoch, value));
            }
        }
        at = word_end;
    }
    best.map(|(_, value)| Step { value, end, is_strong })
}

/// Lightning adds `-v1` when a name is taken.
fn without_version(name: &str) -> String {
    let stem = name.strip_suffix(".ckpt").unwrap_or(name);
    match stem.rsplit_once("-v") {
        Some((before, version)) if !version.is_empty() && version.bytes().all(|b| b.is_ascii_digit()) => {
            format!("{before}.ckpt")
        }
        _ => name.to_owned(),
    }
}

/// A name with `#` for each number, be it a decimal one, but for those that tell runs and ranks apart: of `resnet50`, `7b`, `seed1` or `lr=1e-4`.
fn shape(name: &str) -> String {
    let mut shape = String::with_capacity(name.len());
    let bytes = name.as_bytes();
    let digits = |at: usize| bytes[at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let mut at = 0;
    while at < bytes.len() {
        let whole = digits(at);
        if whole == 0 {
            let length = name[at..].chars().next().map_or(1, char::len_utf8);
            shape.push_str(&name[at..at + length]);
            at += length;
            continue;
        }
        let begin = at;
        at += whole;
        if bytes.get(at) == Some(&b'.') && digits(at + 1) > 0 {
            at += 1 + digits(at + 1);
        }
        let exponent = usize::from(bytes.get(at) == Some(&b'e'))
            + usize::from(matches!(bytes.get(at..at + 2), Some(b"e-" | b"e+")));
        if exponent > 0 && at + exponent < bytes.len() && digits(at + exponent) > 0 {
            at += exponent + digits(at + exponent);
        }
        shape.push_str(if is_of_run(name, begin, at) { &name[begin..at] } else { "#" });
    }
    shape
}

/// Whether a number of a name says which run or rank it is: it is a part of a word that is none for steps, or of a setting.
fn is_of_run(name: &str, begin: usize, end: usize) -> bool {
    let word_before =
        |text: &str| text.len() - text.bytes().rev().take_while(u8::is_ascii_alphabetic).count();
    let bytes = name.as_bytes();
    if bytes.get(end).is_some_and(u8::is_ascii_alphabetic) {
        return true;
    }
    let is_known = |word: &str, words: &[&str]| words.iter().any(|it| word.eq_ignore_ascii_case(it));
    let joined = &name[word_before(&name[..begin])..begin];
    if !joined.is_empty() {
        return !STEP_WORDS.iter().any(|(it, _)| joined.eq_ignore_ascii_case(it));
    }
    let before = name[..begin].strip_suffix(['=', '-', '_']).unwrap_or_default();
    is_known(&before[word_before(before)..], &RUN_WORDS)
}

/// The number that follows `measure` and an equals sign in a name, as Lightning writes it: `val_loss=0.25`.
pub(super) fn measure_in(name: &str, measure: &str) -> Option<f64> {
    let at = name.match_indices(measure).find(|(at, _)| name[at + measure.len()..].starts_with('='))?.0;
    let text = &name[at + measure.len() + 1..];
    let sign = usize::from(text.starts_with('-'));
    let number = |c: char| c.is_ascii_digit() || c == '.';
    let digits = text[sign..].find(|c| !number(c)).unwrap_or(text.len() - sign);
    let (mantissa, rest) = text.split_at(sign + digits);
    let exponent = rest.strip_prefix('e').map_or(0, |exponent| {
        let sign = usize::from(exponent.starts_with(['-', '+']));
        let digits = exponent[sign..].bytes().take_while(u8::is_ascii_digit).count();
        if digits > 0 { 1 + sign + digits } else { 0 }
    });
    match exponent {
        0 => mantissa.trim_end_matches('.').parse().ok(),
        length => text[..mantissa.len() + length].parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::{Layout, Role, measure_in, place, pointer, shape};

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
    fn runs_and_ranks_are_told_apart_and_steps_are_not() {
        for (name, series) in [
            ("resnet50-epoch=3.ckpt", "resnet50-epoch=#.ckpt"),
            ("llama-7b-step-500", "llama-7b-step-#"),
            ("seed1-step-5", "seed1-step-#"),
            ("lr=1e-4-step=9", "lr=1e-4-step=#"),
            ("step=9-rank=3.ckpt", "step=#-rank=3.ckpt"),
            ("rank3_step100", "rank3_step#"),
            ("global_step100", "global_step#"),
            ("epoch3_val_loss=0.5", "epoch#_val_loss=#"),
            ("ckpt_2026-11-23", "ckpt_#-#-#"),
        ] {
            assert_eq!(shape(name), series);
        }
    }

    #[test]
    fn what_is_numbered_as_one_of_so_many_is_no_step_and_a_run_within_a_step_is_its_own() {
        for (key, prefix, step) in [
            ("m/flax_model-00001-of-00004.msgpack", "m/", None),
            ("m/tf_model-00001-of-00004.h5", "m/", None),
            ("m/model-00001-of-00004.pt", "m/", None),
            ("iter1/checkpoint-500/model.pt", "iter1/checkpoint-500/", Some(500)),
            ("checkpoint-500/global_step500/x.pt", "checkpoint-500/", Some(500)),
        ] {
            let place = place(key).unwrap();
            assert_eq!((place.prefix, place.step), (prefix, step), "{key}");
        }
    }
}

//! Step folder of a key: the folder that contains one checkpoint.
//!
//! It is the innermost folder with a step's name; the folders around it belong to the run's name, even if
//! they are numbered, and the folders in it are its parts. Invariant: a folder that may be either a part of a
//! checkpoint or a step of a run is treated as neither: it is a group without a step, which never expires.

use super::file_role::{TENSOR_ENDINGS, is_checkpoint_file, is_dcp_file};
use super::step::{NOT_IN_FOLDERS, STEP_DIGITS_MAX, step_of};
use crate::key_parts::extension;
use std::ops::Range;

/// Name parts of folders with unfinished content.
const UNFINISHED_NAMES: [&str; 3] = ["orbax-checkpoint-tmp", "tmp-checkpoint-", "tmp_checkpoint"];
/// Length of the shortest of these.
const UNFINISHED_BYTES_MIN: usize = "tmp_checkpoint".len();
/// Orbax's names for the items in a step folder whose name is a plain number.
const ORBAX_ITEMS: [&str; 9] =
    ["default", "state", "params", "train_state", "opt_state", "metrics", "items", "model", "d"];
/// Files that Orbax writes last.
pub(super) const ORBAX_LAST: [&str; 2] = ["_CHECKPOINT_METADATA", "commit_success.txt"];
/// Files that Orbax writes beside arrays.
const ORBAX_FILES: [&str; 3] = ["_METADATA", "_sharding", "manifest.ocdbt"];
/// Folders whose numbered subfolders are parts of one checkpoint.
const PART_FOLDERS: [&str; 10] =
    ["rank", "ranks", "gpu", "gpus", "node", "nodes", "worker", "workers", "shard", "shards"];
/// Folders whose numbered subfolders are runs, and folders for which this holds only with DCP files: Orbax
/// numbers nothing but steps.
const RUN_FOLDERS: [&str; 11] =
    ["seed", "seeds", "fold", "folds", "trial", "trials", "runs", "exps", "experiments", "jobs", "versions"];
/// Maximum digits of a step's number inside another numbered folder.
pub(super) const NESTED_DIGITS_MAX: usize = 6;
const RUN_OR_STEP_FOLDERS: [&str; 4] = ["run", "exp", "experiment", "job"];

/// Result for the folders of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FolderSearch {
    /// The key belongs to something unfinished.
    Unfinished,
    /// The key is in this step folder.
    InStep(StepFolder),
    /// The key is in no step folder.
    Other,
}

/// A folder with a step's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StepFolder {
    /// Byte offset of the folder's name in the key, and that of its content.
    pub(super) at: usize,
    pub(super) end: usize,
    /// The step; `None` if it may be a part of another checkpoint.
    pub(super) step: Option<u64>,
    /// True if the name is a plain number.
    pub(super) is_number: bool,
    /// True if the key is one that only Orbax writes.
    pub(super) is_orbax: bool,
    /// True if the content belongs to a checkpoint, by the name of the folder or of the file.
    is_evident: bool,
    is_ep: bool,
    /// True if both this folder and one around it are plain numbers, so that either may be the step.
    pub(super) is_nested: bool,
}

impl StepFolder {
    /// Returns the name of the folder.
    pub(super) fn name<'k>(&self, key: &'k str) -> &'k str {
        &key[self.at..self.end - 1]
    }

    fn without_step(self) -> Self {
        Self { step: None, ..self }
    }
}

/// Finds the step folder of a key whose own name begins at `name_at`; see the module.
pub(super) fn find_step_folder(key: &str, name_at: usize) -> FolderSearch {
    if !key.as_bytes()[..name_at].iter().any(u8::is_ascii_digit) {
        return FolderSearch::Other;
    }
    let mut found: Option<StepFolder> = None;
    let (mut at, mut above) = (0, "");
    for component in key[..name_at].split_terminator('/') {
        let end = at + component.len() + 1;
        if component.len() >= UNFINISHED_BYTES_MIN
            && UNFINISHED_NAMES.iter().any(|part| component.contains(part))
        {
            return FolderSearch::Unfinished;
        }
        if let Some(folder) = step_folder(key, name_at, at..end, above) {
            found = Some(match found {
                Some(outer) => choose_nested(key, outer, folder),
                None => folder,
            });
        }
        (at, above) = (end, component);
    }
    let name = &key[name_at..];
    match found.filter(|folder| folder.is_evident) {
        Some(folder) if !is_separate_checkpoint(name, folder.step) => FolderSearch::InStep(folder),
        _ => FolderSearch::Other,
    }
}

/// Returns the folder at `place`, with its slash, if it has a step's name; `above` is the name of its parent.
fn step_folder(key: &str, name_at: usize, place: Range<usize>, above: &str) -> Option<StepFolder> {
    let Range { start: at, end } = place;
    let (folder, rest, name) = (&key[at..end - 1], &key[end..], &key[name_at..]);
    let is_dcp = is_dcp_file(name);
    if is_number(folder) {
        let writer = match is_dcp {
            true => FolderWriter::Dcp,
            false if is_orbax_file(rest) => FolderWriter::Orbax,
            false => FolderWriter::Unknown,
        };
        return numbered_step(folder, above, writer).map(|step| StepFolder {
            at,
            end,
            step,
            is_number: true,
            is_orbax: !is_dcp,
            is_evident: true,
            is_ep: false,
            is_nested: false,
        });
    }
    let step = step_of(folder, &NOT_IN_FOLDERS)?;
    let is_orbax = is_exclusive_orbax_file(rest);
    // A number in a model's name is its size, and may have any meaning in a file that is not known to be of a
    // checkpoint.
    let is_evident = step.is_strong || is_dcp || is_orbax || is_checkpoint_file(name);
    let is_ep = step.is_ep && !step.is_strong;
    Some(StepFolder {
        at,
        end,
        step: Some(step.value),
        is_number: false,
        is_orbax,
        is_evident,
        is_ep,
        is_nested: false,
    })
}

/// Program that writes such a file into a folder with a plain number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FolderWriter {
    Dcp,
    Orbax,
    Unknown,
}

/// Returns whether a folder with a plain number is a step folder, and the step if there is no doubt.
fn numbered_step(folder: &str, above: &str, writer: FolderWriter) -> Option<Option<u64>> {
    let is_run = is_date(folder) || RUN_FOLDERS.contains(&above);
    let is_none = match writer {
        // DCP files without a step form a group in any case.
        FolderWriter::Dcp => is_run || RUN_OR_STEP_FOLDERS.contains(&above),
        FolderWriter::Orbax => false,
        FolderWriter::Unknown => true,
    };
    if is_none || PART_FOLDERS.contains(&above) {
        return None;
    }
    Some(folder.parse().ok().filter(|_| !is_run))
}

/// Returns the step folder of two nested folders that both have a step's name.
fn choose_nested(key: &str, outer: StepFolder, inner: StepFolder) -> StepFolder {
    // DeepSpeed inside a folder of the Trainer of transformers.
    if inner.at == outer.end
        && outer.name(key).starts_with("checkpoint")
        && inner.name(key).starts_with("global_step")
        && inner.step == outer.step
    {
        return outer;
    }
    // Ranks are numbered from zero, as steps may be.
    let is_ambiguous = if inner.is_number {
        !outer.is_number || outer.step.is_none() || inner.at == outer.end
    } else {
        inner.is_ep
    };
    // Job ids are longer than step numbers.
    let is_nested = inner.is_number && outer.end - outer.at <= NESTED_DIGITS_MAX + 1;
    let inner = StepFolder { is_nested, ..inner };
    if is_ambiguous { inner.without_step() } else { inner }
}

/// True if a file in a step folder is another complete checkpoint, as Lightning writes them: the folder is
/// then named after a setting or another run.
fn is_separate_checkpoint(name: &str, folder_step: Option<u64>) -> bool {
    let step = name.ends_with(".ckpt").then(|| step_of(name, &["model", "weights", "ep"])).flatten();
    step.is_some_and(|step| Some(step.value) != folder_step)
}

/// True if a folder below a step folder is a plain number, other than those of ranks.
pub(super) fn has_numbered_folder(rest: &str) -> bool {
    let Some((folders, _)) = rest.rsplit_once('/') else { return false };
    let mut above = "";
    folders.split('/').any(|folder| {
        let is_part = PART_FOLDERS.contains(&above);
        above = folder;
        !is_part && is_number(folder)
    })
}

/// True for `20261123`, with or without a time of day.
fn is_date(folder: &str) -> bool {
    let number = |at: usize| folder.get(at..at + 2).and_then(|text| text.parse().ok()).unwrap_or(0_u8);
    matches!(folder.len(), 8 | 12)
        && matches!(number(0), 19 | 20)
        && (1..=12).contains(&number(4))
        && (1..=31).contains(&number(6))
}

fn is_number(folder: &str) -> bool {
    (1..=STEP_DIGITS_MAX).contains(&folder.len()) && folder.bytes().all(|byte| byte.is_ascii_digit())
}

/// True if a file in a folder with a plain number is Orbax's.
fn is_orbax_file(rest: &str) -> bool {
    let first = rest.split('/').next().unwrap_or_default();
    let is_tensors = TENSOR_ENDINGS.contains(&extension(rest));
    is_exclusive_orbax_file(rest)
        || rest.starts_with('_')
        || rest == "checkpoint"
        || (ORBAX_ITEMS.contains(&first) && first.len() < rest.len() && !is_tensors)
}

/// True if only Orbax writes such a file: `commit_success.txt`, or `manifest.ocdbt` and `d/0af3`, in an
/// item's folder or without one.
fn is_exclusive_orbax_file(rest: &str) -> bool {
    let is_array = |inner: &str| {
        let hash = inner.strip_prefix("d/").unwrap_or_default();
        ORBAX_FILES.contains(&inner)
            || inner.starts_with("ocdbt.process_")
            || inner.starts_with("array_metadatas/")
            || (!hash.is_empty() && hash.bytes().all(|byte| byte.is_ascii_hexdigit()))
    };
    let in_item = rest.split_once('/').filter(|(item, _)| !is_number(item));
    ORBAX_LAST.contains(&rest) || is_array(rest) || in_item.is_some_and(|(_, inner)| is_array(inner))
}

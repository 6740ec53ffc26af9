//! Which folder of a key is the step's.
//!
//! The innermost one that is called like a step: those that it is in are of the run's name, be they numbered,
//! and those within are its parts. Always: what may be a part of a checkpoint as well as a step of a run is
//! neither: it is a group that has no step, which nothing makes superfluous.

use super::layout::{TENSOR_ENDINGS, is_of_checkpoint, is_of_dcp};
use super::step::{NOT_OF_FOLDERS, STEP_DIGITS_MAX, step_of};
use crate::key::ending;

/// Folders in which things are that are not there yet.
const UNFINISHED: [&str; 3] = ["orbax-checkpoint-tmp", "tmp-checkpoint-", "tmp_checkpoint"];
/// None of these is shorter.
const UNFINISHED_BYTES_MIN: usize = "tmp_checkpoint".len();
/// What Orbax calls what is in a step's folder, whose name is a number only.
const ORBAX_ITEMS: [&str; 9] =
    ["default", "state", "params", "train_state", "opt_state", "metrics", "items", "model", "d"];
/// What Orbax writes last.
pub(super) const ORBAX_LAST: [&str; 2] = ["_CHECKPOINT_METADATA", "commit_success.txt"];
/// Files that it writes beside arrays.
const ORBAX_FILES: [&str; 3] = ["_METADATA", "_sharding", "manifest.ocdbt"];
/// Folders in which numbered ones are parts of one checkpoint.
const OF_PARTS: [&str; 10] =
    ["rank", "ranks", "gpu", "gpus", "node", "nodes", "worker", "workers", "shard", "shards"];
/// Folders in which numbered ones are runs; and those in which they are with files of DCP, while Orbax calls
/// nothing by a number but steps.
const OF_RUNS: [&str; 11] =
    ["seed", "seeds", "fold", "folds", "trial", "trials", "runs", "exps", "experiments", "jobs", "versions"];
/// A number of more digits is no step's when another one is in its folder.
pub(super) const NESTED_DIGITS_MAX: usize = 6;
const OF_RUNS_OR_STEPS: [&str; 4] = ["run", "exp", "experiment", "job"];

/// What the folders of a key say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Folders {
    /// The key is of something that is not there yet.
    Unfinished,
    /// It is in this folder of a step.
    Step(Folder),
    /// None of them is its step's.
    Other,
}

/// A folder that is called like a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Folder {
    /// Where it begins in the key, and where what is in it does.
    pub(super) at: usize,
    pub(super) end: usize,
    /// Nothing where it may be a part of another.
    pub(super) step: Option<u64>,
    /// Nothing but a number.
    pub(super) is_number: bool,
    /// The key is of what only Orbax writes.
    pub(super) is_orbax: bool,
    /// What is in it is a checkpoint's, by the folder's name or by that of the file.
    is_evident: bool,
    is_ep: bool,
    /// It is called by a number, and so is a folder around it: either may be the step's.
    pub(super) is_nested: bool,
}

impl Folder {
    /// What it is called.
    pub(super) fn name<'k>(&self, key: &'k str) -> &'k str {
        &key[self.at..self.end - 1]
    }

    fn in_doubt(self) -> Self {
        Self { step: None, ..self }
    }
}

/// See the module. The key's own name begins at `name_at`.
pub(super) fn of(key: &str, name_at: usize) -> Folders {
    if !key.as_bytes()[..name_at].iter().any(u8::is_ascii_digit) {
        return Folders::Other;
    }
    let mut found: Option<Folder> = None;
    let (mut at, mut above) = (0, "");
    for component in key[..name_at].split_terminator('/') {
        let end = at + component.len() + 1;
        if component.len() >= UNFINISHED_BYTES_MIN && UNFINISHED.iter().any(|part| component.contains(part)) {
            return Folders::Unfinished;
        }
        if let Some(folder) = called_like_a_step(key, name_at, (at, end), above) {
            found = Some(match found {
                Some(outer) => within(key, outer, folder),
                None => folder,
            });
        }
        (at, above) = (end, component);
    }
    let name = &key[name_at..];
    match found.filter(|folder| folder.is_evident) {
        Some(folder) if !is_checkpoint_of_its_own(name, folder.step) => Folders::Step(folder),
        _ => Folders::Other,
    }
}

/// The folder from `at` to `end`, which is in one that is called `above`.
fn called_like_a_step(key: &str, name_at: usize, (at, end): (usize, usize), above: &str) -> Option<Folder> {
    let (folder, rest, name) = (&key[at..end - 1], &key[end..], &key[name_at..]);
    let is_dcp = is_of_dcp(name);
    if is_number(folder) {
        return numbered(folder, above, is_dcp, is_of_orbax(rest)).map(|step| Folder {
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
    let step = step_of(folder, &NOT_OF_FOLDERS)?;
    let is_orbax = is_only_of_orbax(rest);
    // A number in the name of a model is its size, and may be anything's that is not known to be a
    // checkpoint's.
    let is_evident = step.is_strong || is_dcp || is_orbax || is_of_checkpoint(name);
    let is_ep = step.is_ep && !step.is_strong;
    Some(Folder {
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

/// Whether a folder that is called by a number only is a step's, and the step where there is no doubt.
fn numbered(folder: &str, above: &str, is_dcp: bool, is_orbax: bool) -> Option<Option<u64>> {
    let is_run = is_date(folder) || OF_RUNS.contains(&above);
    // DCP without a step is a group as it is.
    let is_none = if is_dcp { is_run || OF_RUNS_OR_STEPS.contains(&above) } else { !is_orbax };
    if is_none || OF_PARTS.contains(&above) {
        return None;
    }
    Some(folder.parse().ok().filter(|_| !is_run))
}

/// Of a folder that is called like a step within another one, the one that is the step's.
fn within(key: &str, outer: Folder, inner: Folder) -> Folder {
    // DeepSpeed in the folder of the Trainer of transformers.
    if inner.at == outer.end
        && outer.name(key).starts_with("checkpoint")
        && inner.name(key).starts_with("global_step")
        && inner.step == outer.step
    {
        return outer;
    }
    // Ranks are numbered from zero, as steps may be.
    let is_doubtful = if inner.is_number {
        !outer.is_number || outer.step.is_none() || inner.at == outer.end
    } else {
        inner.is_ep
    };
    // Ids of jobs are longer than numbers of steps are.
    let is_nested = inner.is_number && outer.end - outer.at <= NESTED_DIGITS_MAX + 1;
    let inner = Folder { is_nested, ..inner };
    if is_doubtful { inner.in_doubt() } else { inner }
}

/// Whether a file in a step's folder is another checkpoint, whole, as Lightning writes them: the folder is
/// called after a setting, or after another run.
fn is_checkpoint_of_its_own(name: &str, of: Option<u64>) -> bool {
    let step = name.ends_with(".ckpt").then(|| step_of(name, &["model", "weights", "ep"])).flatten();
    step.is_some_and(|step| Some(step.value) != of)
}

/// Whether a folder of what follows a step's is called by a number only, and not as ranks are.
pub(super) fn has_numbers(rest: &str) -> bool {
    let Some((folders, _)) = rest.rsplit_once('/') else { return false };
    let mut above = "";
    folders.split('/').any(|folder| {
        let is_part = OF_PARTS.contains(&above);
        above = folder;
        !is_part && is_number(folder)
    })
}

/// `20261123`, with or without a time of the day.
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

/// Whether a file in a folder that is called by a number is one of Orbax.
fn is_of_orbax(rest: &str) -> bool {
    let first = rest.split('/').next().unwrap_or_default();
    let is_tensors = TENSOR_ENDINGS.contains(&ending(rest));
    is_only_of_orbax(rest)
        || rest.starts_with('_')
        || rest == "checkpoint"
        || (ORBAX_ITEMS.contains(&first) && first.len() < rest.len() && !is_tensors)
}

/// Whether nobody else writes such a file: `commit_success.txt`, or in an item's folder or without one
/// `manifest.ocdbt` and `d/0af3`.
fn is_only_of_orbax(rest: &str) -> bool {
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

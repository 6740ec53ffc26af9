//! Pointer files: small files beside checkpoints that name the one to resume from, such as DeepSpeed's
//! `latest` and TensorFlow's `checkpoint`.
//!
//! A user who goes back to an older checkpoint writes its name there. Frameworks use many names for this file
//! (`latest_ckpt_global_step.txt`, `latest-rank0.pt.symlink`) and many formats. A file therefore names a
//! checkpoint as soon as it contains the checkpoint's step number or name. The test runs only before a
//! deletion, where a false match is harmless.

use super::{CheckpointIndex, GroupId, file_role, layout};
use crate::key_parts::{extension, name_of, split};
use std::cmp::Reverse;

/// Beginning of TensorFlow's lines that list all checkpoints; another line names the one to resume from.
pub(super) const LIST_OF_ALL: &str = "all_model_checkpoint_paths";

/// Returns the folders in which a file may name a checkpoint of a run, given the run's folder: that folder
/// and the one above it.
pub fn folders_of_pointers(parent: &str) -> impl Iterator<Item = &str> {
    let outer = parent.strip_suffix('/').unwrap_or("");
    let above = split(outer).0;
    std::iter::once(parent).chain((above != parent).then_some(above))
}

/// Beginnings of the names of such files, in all spellings; and the one that is a whole name.
const POINTER_BEGINNINGS: [&str; 6] = ["LAST", "LATEST", "Last", "Latest", "last", "latest"];
/// See [`POINTER_BEGINNINGS`].
pub(super) const POINTER_NAME: &str = "checkpoint";
/// Maximum size of pointer files.
const POINTER_BYTES_MAX: u64 = 64 << 10;

/// True if a file in one of these folders may name a checkpoint by its step number: `latest`,
/// `latest_ckpt_global_step.txt`, `latest-rank0.pt.symlink`, and `checkpoint` of any size; not `last.ckpt`,
/// which is a checkpoint.
#[must_use]
pub fn may_point(name: &str, bytes: u64) -> bool {
    let is_one = file_role::TENSOR_ENDINGS.contains(&extension(name));
    let is_called_so = POINTER_BEGINNINGS.iter().any(|with| name.starts_with(with));
    name == POINTER_NAME || (is_called_so && !is_one && bytes <= POINTER_BYTES_MAX)
}

/// Maximum recently written checkpoints of a run whose state is read for the best one, in addition to the
/// highest.
const STATES_READ_MAX: usize = 2;

impl CheckpointIndex {
    /// Returns the keys of state files of the Trainer of transformers that may name a checkpoint as the best
    /// of its run; empty if the checkpoint is not the Trainer's.
    #[must_use]
    pub fn states_of_trainer(&self, id: GroupId) -> Vec<String> {
        let Some(one) = self.group(id).filter(|one| layout::is_trainer_folder(one.prefix, one.parent)) else {
            return Vec::new();
        };
        let mut others = self.generations(id.series());
        others.retain(|other| other.id != one.id);
        let highest = others.pop();
        others.sort_by_key(|other| Reverse(other.written));
        let candidates = others.into_iter().take(STATES_READ_MAX).chain(highest);
        candidates.map(|other| format!("{}{}", other.prefix, file_role::TRAINER_STATE)).collect()
    }
}

/// True if the state of the Trainer of transformers names this checkpoint as the best of its run, which it
/// loads when training has ended.
#[must_use]
pub fn names_as_best(state: &str, prefix: &str, step: Option<u64>) -> bool {
    let Some((_, value)) = state.split_once("\"best_model_checkpoint\"") else { return false };
    let path = value.trim_start_matches([' ', ':']).strip_prefix('"').and_then(|it| it.split('"').next());
    path.is_some_and(|path| names_checkpoint(path, prefix, step))
}

/// True if the content of a pointer file names the checkpoint with this prefix and step.
#[must_use]
pub fn names_checkpoint(content: &str, prefix: &str, step: Option<u64>) -> bool {
    // The name of a group of files is the part before the last dot or slash that they share.
    let own = name_of(prefix.trim_end_matches(['/', '.']));
    let has_name = |line: &str| {
        let mut found = line.match_indices(own).map(|(at, _)| &line[at + own.len()..]);
        !own.is_empty() && found.any(|rest| !rest.starts_with(|letter: char| letter.is_ascii_digit()))
    };
    content.lines().filter(|line| !line.trim_start().starts_with(LIST_OF_ALL)).any(|line| {
        let mut numbers =
            line.split(|letter: char| !letter.is_ascii_digit()).filter_map(|one| one.parse().ok());
        numbers.any(|number: u64| Some(number) == step) || has_name(line)
    })
}

#[cfg(test)]
mod tests {
    use super::{folders_of_pointers, may_point, names_as_best, names_checkpoint};
    use crate::checkpoints::layout::{POINTERS, parse_key};

    const TENSORFLOW_500: &str = "model_checkpoint_path: \"ckpt-500\"\n";
    const TENSORFLOW_900: &str =
        "model_checkpoint_path: \"ckpt-900\"\nall_model_checkpoint_paths: \"ckpt-500\"";
    const TENSORFLOW_BEST: &str = "model_checkpoint_path: \"best.ckpt\"\n";

    #[test]
    fn files_of_all_frameworks_name_steps() {
        for (content, key, prefix, step, expected) in [
            ("global_step500", "run/global_step500/a.pt", "run/global_step500/", Some(500), true),
            ("global_step500\n", "run/global_step50/a.pt", "run/global_step50/", Some(50), false),
            ("500", "run/iter_0000500/a.pt", "run/iter_0000500/", Some(500), true),
            ("0000500", "run/iter_0000500/a.pt", "run/iter_0000500/", Some(500), true),
            ("release", "run/iter_0000500/a.pt", "run/iter_0000500/", Some(500), false),
            (TENSORFLOW_500, "run/ckpt-500.index", "run/ckpt-500.", Some(500), true),
            (TENSORFLOW_900, "run/ckpt-500.index", "run/ckpt-500.", Some(500), false),
            (TENSORFLOW_500, "run/ckpt-50.index", "run/ckpt-50.", Some(50), false),
            (TENSORFLOW_BEST, "run/best.ckpt.index", "run/best.ckpt.", None, true),
            (TENSORFLOW_BEST, "run/worst.ckpt.index", "run/worst.ckpt.", None, false),
            ("runs/a/last.ckpt", "runs/a/last.ckpt", "runs/a/last.ckpt", None, true),
            ("", "run/step-1/a.pt", "run/step-1/", Some(1), false),
            ("99999999999999999999999", "run/step-1/a.pt", "run/step-1/", Some(1), false),
        ] {
            let place = parse_key(key).unwrap();
            assert_eq!((place.prefix, place.step), (prefix, step), "{key}");
            assert_eq!(names_checkpoint(content, prefix, step), expected, "{content:?} {prefix}");
        }
    }

    #[test]
    fn pointer_files_are_beside_the_checkpoint_or_above() {
        assert_eq!(folders_of_pointers("runs/a/").collect::<Vec<_>>(), ["runs/a/", "runs/"]);
        assert_eq!(folders_of_pointers("a/").collect::<Vec<_>>(), ["a/", ""]);
        assert_eq!(folders_of_pointers("").collect::<Vec<_>>(), [""]);
        assert!(POINTERS.iter().all(|(name, _)| may_point(name, 20)));
        for name in ["latest_ckpt_global_step.txt", "latest-rank0.pt.symlink", "latest_universal", "LATEST"] {
            assert!(may_point(name, 20), "{name}");
        }
        for name in ["last.ckpt", "latest.pt", "checkpoint-500", "metrics.json", "las", "länger"] {
            assert!(!may_point(name, 20), "{name}");
        }
        assert!(!may_point("last_run.log", 1 << 20) && may_point("checkpoint", 1 << 20));
    }

    #[test]
    fn the_trainer_names_its_best() {
        let state = |path: &str| {
            format!(
                "{{\n  \"best_metric\": 0.3,\n  \"best_model_checkpoint\": {path},\n  \"epoch\": 3.0,\n  \
                 \"global_step\": 900\n}}"
            )
        };
        let best = |path: &str, step: u64| {
            names_as_best(&state(path), &format!("run/checkpoint-{step}/"), Some(step))
        };
        assert!(best("\"./out/checkpoint-300\"", 300) && best("\"checkpoint-300\"", 300));
        assert!(!best("\"./out/checkpoint-300\"", 900) && !best("\"./out/checkpoint-300\"", 30));
        assert!(!best("null", 300) && !best("null", 900));
        assert!(!names_as_best("{}", "run/checkpoint-300/", Some(300)));
        assert!(names_as_best(
            "{\"best_model_checkpoint\":\"a/checkpoint-3\"}",
            "run/checkpoint-3/",
            Some(3)
        ));
    }
}

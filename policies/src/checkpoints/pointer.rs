//! Small files beside checkpoints that name the one to go on from: `latest` of DeepSpeed, `checkpoint` of TensorFlow and their like.
//!
//! Who goes back to an older checkpoint writes it there. Such a file may have any form, so it names a checkpoint as soon as the number of its step or
//! its own name stands in it: it is asked only before something is deleted, and then better once too often.

use super::layout;
use crate::key::{name_of, split};

/// TensorFlow tells in such lines what there is, and in another one what to go on from.
const OF_ALL: &str = "all_model_checkpoint_paths";

/// The keys of files that may name a checkpoint of a run, by the run's folder: in it, and in the one above.
pub fn pointers_to(parent: &str) -> impl Iterator<Item = String> {
    let outer = parent.strip_suffix('/').unwrap_or("");
    let above = split(outer).0;
    let folders = std::iter::once(parent).chain((above != parent).then_some(above));
    folders.flat_map(|folder| layout::POINTERS.iter().map(move |(name, _)| format!("{folder}{name}")))
}

/// Whether what stands in such a file names the checkpoint with this prefix, of this step.
#[must_use]
pub fn names(content: &str, prefix: &str, step: Option<u64>) -> bool {
    // A group of files is called as what comes before the last dot or slash that they share.
    let own = name_of(prefix.trim_end_matches(['/', '.']));
    let has_name = |line: &str| {
        let mut found = line.match_indices(own).map(|(at, _)| &line[at + own.len()..]);
        !own.is_empty() && found.any(|rest| !rest.starts_with(|letter: char| letter.is_ascii_digit()))
    };
    content.lines().filter(|line| !line.trim_start().starts_with(OF_ALL)).any(|line| {
        let mut numbers =
            line.split(|letter: char| !letter.is_ascii_digit()).filter_map(|one| one.parse().ok());
        numbers.any(|number: u64| Some(number) == step) || has_name(line)
    })
}

#[cfg(test)]
mod tests {
    use super::{names, pointers_to};
    use crate::checkpoints::layout::place;

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
            let place = place(key).unwrap();
            assert_eq!((place.prefix, place.step), (prefix, step), "{key}");
            assert_eq!(names(content, prefix, step), expected, "{content:?} {prefix}");
        }
    }

    #[test]
    fn they_are_beside_the_checkpoint_or_above() {
        let keys: Vec<_> = pointers_to("runs/a/").collect();
        assert!(keys.contains(&"runs/a/latest".into()) && keys.contains(&"runs/latest".into()), "{keys:?}");
        let keys: Vec<_> = pointers_to("").collect();
        assert!(keys.contains(&"latest".into()) && keys.len() == 8, "{keys:?}");
    }
}

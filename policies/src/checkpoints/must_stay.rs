//! Why a checkpoint is not deleted, though a rule lets it go.
//!
//! Names and listings tell much and not all: files of ranks, runs side by side and uploads that broke off can look like something else. Always: of a run
//! nothing is deleted unless its steps are told apart, and unless one that is newer, whole beyond doubt and no smaller stays; and nothing that may be a run
//! with steps of its own, or a part of another checkpoint.

use super::group::Group;
use super::layout::Layout;
use super::{Checkpoints, GroupId, Series, order};

/// Of a run's newer checkpoints one has at least this share of the bytes.
const BYTES_SHARE: f64 = 0.9;

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MustStay {
    /// It is not known any more.
    Unknown,
    /// Another of its run has the same step.
    SameStep,
    /// Other checkpoints are in its folder, or files or folders that are called like other steps.
    HoldsSteps,
    /// It is in the folder of another one.
    InAnother,
    /// No newer one of its run is whole beyond doubt, with as many files and bytes.
    NoneBetter,
}

impl MustStay {
    /// In a sentence's half.
    #[must_use]
    pub const fn why(self) -> &'static str {
        match self {
            Self::Unknown => "it is not known any more",
            Self::SameStep => "another of its run has the same step, as files of ranks or of two runs have",
            Self::HoldsSteps => "it holds steps of its own, as the folder of a run does",
            Self::InAnother => "it is in the folder of another checkpoint and may be a part of that",
            Self::NoneBetter => "no newer one of its run is certainly whole and has as many files and bytes",
        }
    }
}

impl Checkpoints {
    /// Why the files of a checkpoint are not to be deleted; nothing if they may be.
    #[must_use]
    pub fn must_stay(&self, id: GroupId) -> Option<MustStay> {
        let Some(series) = self.series.get(&id.series) else { return Some(MustStay::Unknown) };
        let Some(group) = series.find(id) else { return Some(MustStay::Unknown) };
        let bucket = series.bucket;
        let mut others = series.groups.values().filter(|other| other.serial != group.serial);
        if group.step.is_some() && others.clone().any(|other| other.step == group.step) {
            return Some(MustStay::SameStep);
        }
        let is_here = |series: &&Series| series.bucket == bucket;
        if group.holds_steps || self.series.values().filter(is_here).any(|series| holds(group, series)) {
            return Some(MustStay::HoldsSteps);
        }
        let may_be_part = matches!(group.layout, Layout::Dcp | Layout::Plain);
        if may_be_part && self.series.values().filter(is_here).any(|series| is_in(group, series)) {
            return Some(MustStay::InAnother);
        }
        let is_better = |other: &Group| {
            order(other) > order(group)
                && other.is_certain(&series.habits)
                && other.files >= group.files
                && other.bytes as f64 >= group.bytes as f64 * BYTES_SHARE
        };
        (!others.any(is_better)).then_some(MustStay::NoneBetter)
    }
}

/// Whether a checkpoint of this run, and not that group, has the group's prefix or is in the folder that this is.
fn holds(group: &Group, series: &Series) -> bool {
    let (prefix, parent) = (&*group.prefix, series.parent());
    let is_other = |other: &Group| other.serial != group.serial;
    prefix.ends_with('/') && (parent.starts_with(prefix) || series.groups.get(prefix).is_some_and(is_other))
}

/// Whether the group is in the folder of a step of this run.
fn is_in(group: &Group, series: &Series) -> bool {
    let Some(rest) = group.prefix.strip_prefix(series.parent()) else { return false };
    let Some(folder) = rest.find('/').map(|slash| &group.prefix[..=series.parent_length + slash]) else {
        return false;
    };
    folder.len() < group.prefix.len() && series.groups.get(folder).is_some_and(|outer| outer.step.is_some())
}

#[cfg(test)]
mod tests {
    use super::MustStay;
    use crate::checkpoints::{Checkpoints, Limits};

    fn known(files: &[(&str, u64)]) -> Checkpoints {
        let mut known = Checkpoints::new(Limits::default());
        for (at, (key, bytes)) in files.iter().enumerate() {
            known.listed(at as u64, 1, key, *bytes);
        }
        // Ten minutes later.
        known.settle(1_000_000_000);
        known
    }

    fn of(known: &Checkpoints, key: &str) -> Option<MustStay> {
        known.must_stay(known.group_of(1, key).unwrap().id)
    }

    const FIRST: [(&str, u64); 3] =
        [("r/step-1/__0_0.distcp", 10), ("r/step-1/__1_0.distcp", 10), ("r/step-1/.metadata", 1)];

    #[test]
    fn a_newer_one_that_is_whole_and_as_large_lets_it_go() {
        let second = [("r/step-2/__0_0.distcp", 10), ("r/step-2/__1_0.distcp", 9), ("r/step-2/.metadata", 1)];
        let both = known(&[FIRST, second].concat());
        assert_eq!(of(&both, "r/step-1/.metadata"), None);
        assert_eq!(of(&both, "r/step-2/.metadata"), Some(MustStay::NoneBetter), "it is the newest");
    }

    #[test]
    fn one_that_lacks_a_file_or_was_begun_anew_or_is_smaller_does_not() {
        for second in [
            // A shard was deleted, or never came.
            &[("r/step-2/__0_0.distcp", 20), ("r/step-2/.metadata", 1)][..],
            // It was written again and its writer died.
            &[("r/step-2/__1_0.distcp", 10), ("r/step-2/.metadata", 1), ("r/step-2/__0_0.distcp", 10)],
            &[("r/step-2/__0_0.distcp", 1), ("r/step-2/__1_0.distcp", 1), ("r/step-2/.metadata", 1)],
        ] {
            let both = known(&[&FIRST[..], second].concat());
            assert_eq!(of(&both, "r/step-1/.metadata"), Some(MustStay::NoneBetter), "{second:?}");
        }
        let plain =
            known(&[("r/epoch_2/model.pt", 9), ("r/epoch_2/optimizer.pt", 9), ("r/epoch_3/model.pt", 18)]);
        assert_eq!(of(&plain, "r/epoch_2/model.pt"), Some(MustStay::NoneBetter));
    }

    #[test]
    fn what_has_one_step_with_another_stays() {
        let two = known(&[("llama-2-step-5.pt", 9), ("llama-3-step-5.pt", 9), ("llama-3-step-6.pt", 9)]);
        assert_eq!(of(&two, "llama-2-step-5.pt"), Some(MustStay::SameStep));
        assert_eq!(of(&two, "llama-3-step-5.pt"), Some(MustStay::SameStep));
    }

    #[test]
    fn what_may_be_a_run_or_a_part_of_another_stays() {
        let of_run = |run: u64, file: &'static str| (format!("ckpt-{run}/{file}"), 9);
        for (files, why) in [
            // Two runs, by the step and by the folder.
            (&["100/model.pt", "200/model.pt"][..], Some(MustStay::HoldsSteps)),
            (&["model_step_100.pt", "model_step_200.pt"], Some(MustStay::HoldsSteps)),
            (&["model.pt", "step-100/model.pt"], Some(MustStay::HoldsSteps)),
            (&["model.pt", "0/.metadata"], Some(MustStay::HoldsSteps)),
            (&["model.pt", "optim.pt"], None),
        ] {
            let files: Vec<_> =
                [1, 2].iter().flat_map(|run| files.iter().map(|file| of_run(*run, file))).collect();
            let files: Vec<_> = files.iter().map(|(key, bytes)| (key.as_str(), *bytes)).collect();
            let both = known(&files);
            assert_eq!(of(&both, files[0].0), why, "{files:?}");
        }
        let ranks = [("step-9/ckpt_0/model.pt", 9), ("step-9/ckpt_1/model.pt", 9)];
        assert_eq!(of(&known(&ranks), ranks[0].0), None);
        let beside = known(&[&ranks[..], &[("step-9/model.pt", 9)]].concat());
        assert_eq!(of(&beside, ranks[0].0), Some(MustStay::InAnother));
    }
}

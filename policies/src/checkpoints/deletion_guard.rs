//! Deletion guards: reasons to keep a checkpoint although a rule would delete it.
//!
//! Names and listings contain much information but not all: files of ranks, parallel runs and interrupted
//! uploads can look like something else. Invariant: nothing of a run is deleted unless its steps are
//! distinguishable, and unless a newer checkpoint remains that is complete beyond doubt and not smaller.
//! Nothing is deleted that may be a run with steps of its own, a setting, or a part of another checkpoint.
//!
//! Newer means that the step is higher and that all of it was written later. A run that went back continues
//! from a lower step, and its new checkpoints are worth more than the abandoned ones. A checkpoint with some
//! older files is an interrupted rewrite. Runs with similar names may be parts of one, such as ranks, stages,
//! or an actor and its critic: a step that several of them have is deleted only if all of them have the same
//! newer one ([`are_siblings`]).

use super::group::{CheckpointGroup, GroupFile, SeriesHabits};
use super::incompleteness::Incompleteness;
use super::layout::{Layout, is_text};
use super::siblings::are_siblings;
use super::step::{shape_of_rest, step_of};
use super::{CheckpointIndex, GroupId, Series, SeriesId, sort_key};
use crate::key_parts::name_of;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Minimum bytes of a newer checkpoint, as a share of the older one's.
const BYTES_SHARE: f64 = 0.9;

/// Minimum number of steps that form a series: `steps-1000/` and `steps-2000/`, or `10/` and `20/`, may be
/// settings of two runs.
const SERIES_MIN: usize = 3;

/// Numbers within this distance that were written within this time may be those of ranks or segments, which
/// are written together; a checkpoint takes longer.
const CLOSE_STEPS: u64 = 100;
const CLOSE_US: u64 = 60_000_000;

/// Deletion guard; see the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeletionGuard {
    /// The checkpoint is no longer known.
    Unknown,
    /// Another checkpoint of its run has the same step.
    SameStep,
    /// Its folder contains other checkpoints, or files or folders with the names of other steps.
    HoldsSteps,
    /// Its name may distinguish runs, or parts of one checkpoint.
    Ambiguous,
    /// Files of its run with numbers like its own were written at the same time, and may be parts of one.
    WrittenTogether,
    /// Its run has fewer than three steps, which may be runs with different settings.
    TooFewSteps,
    /// The checkpoint is in the folder of another one.
    InsideAnother,
    /// No newer checkpoint of its run is complete beyond doubt with as many files and bytes.
    NoReplacement,
    /// The newest checkpoint of its run may be incomplete, and no other is newer and complete.
    NewestIncomplete(Incompleteness),
    /// There is a newer one, but a sibling run has this step and not the newer one.
    NotInSiblings,
    /// The rule keeps the best checkpoints, and its quality is unknown.
    NoMeasure,
    /// The rule matches only some of its files.
    PartlyMatched,
}

impl DeletionGuard {
    /// Returns the reason as a clause.
    #[must_use]
    pub fn reason(self) -> String {
        let why = match self {
            Self::Unknown => "it is no longer known",
            Self::SameStep => {
                "another checkpoint of its run has the same step; they may be files of ranks or \
                of two runs"
            }
            Self::Ambiguous => {
                "its name has numbers or words that may distinguish runs or parts, not only steps"
            }
            Self::HoldsSteps => "it contains checkpoints of its own, like the folder of a run",
            Self::WrittenTogether => {
                "files of its run were written within a minute of each other, like those of ranks"
            }
            Self::TooFewSteps => {
                "only two checkpoints have such a name, and the numbers may be settings, not steps"
            }
            Self::InsideAnother => "it is in the folder of another checkpoint and may be part of it",
            Self::NotInSiblings => {
                "runs with similar names, which may be parts of one run, share this step and no newer one \
                    with it"
            }
            Self::NoMeasure => {
                "the rule keeps the best, and neither the checkpoint's metadata nor its name has that measure"
            }
            Self::PartlyMatched => "the rule does not match all of its files, text files excepted",
            Self::NewestIncomplete(incompleteness) => {
                return format!(
                    "no newer checkpoint of its run is certainly complete: {}",
                    incompleteness.of_newest()
                );
            }
            Self::NoReplacement => {
                "no newer checkpoint of its run, with a higher step and written entirely later, is \
                    certainly complete and has as many files and bytes"
            }
        };
        why.to_owned()
    }

    /// Returns all reasons joined into one clause.
    #[must_use]
    pub fn reasons(doubts: &[Self]) -> String {
        doubts.iter().map(|doubt| doubt.reason()).collect::<Vec<_>>().join("; ")
    }
}

/// Guards of several checkpoints, computed one after another. State that the checkpoints of a run share is
/// computed once.
pub struct DeletionChecks<'a> {
    known: &'a CheckpointIndex,
    runs: HashMap<SeriesId, RunChecks<'a>>,
}

/// State that all checkpoints of a run share.
struct RunChecks<'a> {
    holds_steps: bool,
    /// True if the name of one of them may distinguish runs or parts.
    is_ambiguous: bool,
    /// True if it has too few steps to be a series.
    has_too_few_steps: bool,
    /// Sibling runs, which may be parts of the same one.
    siblings: Vec<SeriesRef<'a>>,
}

/// A run and its id.
#[derive(Clone, Copy)]
struct SeriesRef<'a> {
    id: SeriesId,
    series: &'a Series,
}

impl<'a> RunChecks<'a> {
    fn new(known: &'a CheckpointIndex, series: &'a Series) -> Self {
        let in_bucket = || known.series.iter().filter(|(_, other)| other.bucket == series.bucket);
        let is_beside =
            |other: &Series| !std::ptr::eq(series, other) && are_siblings(&series.name, &other.name);
        Self {
            holds_steps: series.groups.values().any(|one| one.holds_steps)
                || in_bucket().any(|(_, other)| contains_checkpoints_of(series, other)),
            // Many runs begin with step 0.
            is_ambiguous: series.groups.values().any(|one| one.is_ambiguous && one.step != Some(0)),
            has_too_few_steps: has_too_few_steps(series),
            siblings: in_bucket()
                .filter(|(_, other)| is_beside(other))
                .map(|(id, series)| SeriesRef { id: *id, series })
                .collect(),
        }
    }
}

impl DeletionChecks<'_> {
    /// Returns all guards of a checkpoint: its files are deleted only if there is none.
    pub fn guards_of(&mut self, id: GroupId) -> Vec<DeletionGuard> {
        self.check(id).err().unwrap_or_default()
    }

    /// Returns the checkpoints that replace one, so that its files may be deleted, or else its guards.
    fn check(&mut self, id: GroupId) -> Result<Vec<GroupId>, Vec<DeletionGuard>> {
        let known = self.known;
        let found = known.series.get(&id.series).and_then(|series| Some((series, series.find(id)?)));
        let (series, group) = found.ok_or_else(|| vec![DeletionGuard::Unknown])?;
        let run = self.runs.entry(id.series).or_insert_with(|| RunChecks::new(known, series));
        let others = || series.groups.values().filter(|other| other.serial != group.serial);
        let in_bucket = || known.series.values().filter(|other| other.bucket == series.bucket);
        let may_be_part = matches!(group.layout, Layout::Dcp | Layout::Plain);
        let replacement = known.find_replacement(SeriesRef { id: id.series, series }, group, &run.siblings);
        let all = [
            (group.step.is_some() && others().any(|other| other.step == group.step), DeletionGuard::SameStep),
            // A property of one checkpoint of the run may hold for all.
            (run.holds_steps, DeletionGuard::HoldsSteps),
            (
                may_be_part && in_bucket().any(|other| is_in_step_folder(group, other)),
                DeletionGuard::InsideAnother,
            ),
            (group.is_ambiguous || run.is_ambiguous, DeletionGuard::Ambiguous),
            (may_be_written_together(series, group), DeletionGuard::WrittenTogether),
            (
                run.has_too_few_steps || run.siblings.iter().any(|other| leaves_too_few(other.series, group)),
                DeletionGuard::TooFewSteps,
            ),
        ];
        let mut doubts: Vec<DeletionGuard> =
            all.into_iter().filter(|(is_so, _)| *is_so).map(|(_, why)| why).collect();
        match replacement {
            Ok(better) if doubts.is_empty() => Ok(better),
            Ok(_) => Err(doubts),
            Err(why) => {
                doubts.push(why);
                Err(doubts)
            }
        }
    }
}

impl CheckpointIndex {
    /// Returns the guards of a checkpoint; empty if its files may be deleted.
    #[must_use]
    pub fn deletion_guards(&self, id: GroupId) -> Vec<DeletionGuard> {
        self.deletion_checks().guards_of(id)
    }

    /// Returns a checker for the guards of many checkpoints.
    #[must_use]
    pub fn deletion_checks(&self) -> DeletionChecks<'_> {
        DeletionChecks { known: self, runs: HashMap::new() }
    }

    /// Returns the checkpoints that replace one, so that its files may be deleted: a newer one of its run,
    /// and those of sibling runs with the newer one's step.
    ///
    /// # Errors
    /// The guards, if there are any.
    pub fn replacements(&self, id: GroupId) -> Result<Vec<GroupId>, Vec<DeletionGuard>> {
        self.deletion_checks().check(id)
    }

    /// Returns the newer checkpoint of the run that replaces one, and those of sibling runs with the same
    /// step.
    fn find_replacement(
        &self,
        run: SeriesRef<'_>,
        group: &CheckpointGroup,
        siblings: &[SeriesRef<'_>],
    ) -> Result<Vec<GroupId>, DeletionGuard> {
        let SeriesRef { id, series } = run;
        let is_single_save = |one: &CheckpointGroup| was_saved_at_once(one, group, self.limits.quiet_us);
        let mut better = series
            .groups
            .values()
            .filter(|one| can_replace(series, one, group) && is_single_save(one))
            .peekable();
        better.peek().ok_or_else(|| why_no_replacement(series, group))?;
        let has_it = |one: &CheckpointGroup| {
            siblings.iter().all(|other| can_replace_step(other.series, one.step, group.step))
        };
        let found = better.find(|one| has_it(one)).ok_or(DeletionGuard::NotInSiblings)?;
        assert!(found.serial != group.serial, "a checkpoint does not replace itself");
        let of_beside = siblings.iter().flat_map(|other| {
            let alike = other.series.groups.values().filter(|one| one.step == found.step);
            alike.map(|one| GroupId { series: other.id, serial: one.serial })
        });
        Ok(std::iter::once(GroupId { series: id, serial: found.serial }).chain(of_beside).collect())
    }
}

/// True if a run has fewer complete checkpoints than form a series. A checkpoint without any sign of
/// completeness counts from its first file with tensors.
fn has_too_few_steps(series: &Series) -> bool {
    let is_whole = |one: &&CheckpointGroup| {
        matches!(one.incompleteness(&series.habits), None | Some(Incompleteness::MaybeUnfinished))
    };
    let steps: BTreeSet<_> = series.groups.values().filter(is_whole).map(|one| one.step).collect();
    steps.len() < SERIES_MIN
}

/// True if a sibling run has the checkpoint's step and is not a series: parts of one checkpoint are deleted
/// together or not at all.
fn leaves_too_few(sibling: &Series, group: &CheckpointGroup) -> bool {
    sibling.groups.values().any(|one| one.step == group.step) && has_too_few_steps(sibling)
}

/// Returns why no newer checkpoint of the run can replace one.
fn why_no_replacement(series: &Series, group: &CheckpointGroup) -> DeletionGuard {
    let newer = series.groups.values().filter(|other| sort_key(other) > sort_key(group));
    let newest = newer.max_by_key(|other| sort_key(other));
    newest
        .and_then(|one| one.uncertainty(&series.habits))
        .map_or(DeletionGuard::NoReplacement, DeletionGuard::NewestIncomplete)
}

/// True if checkpoint `one` of a run can replace `other`.
fn can_replace(series: &Series, one: &CheckpointGroup, other: &CheckpointGroup) -> bool {
    sort_key(one) > sort_key(other)
        && one.is_certain(&series.habits)
        && one.files >= other.files
        // Files that were added, such as results, do not make up for a missing shard.
        && one.tensors >= other.tensors
        && is_large_enough(one.bytes, other.bytes)
        && one.oldest() > other.written()
        && (has_framework(other, &series.habits)
            || (one.tensors == other.tensors && has_all_files(one, other)))
}

fn is_large_enough(one: u64, other: u64) -> bool {
    one as f64 >= other as f64 * BYTES_SHARE
}

/// True if the numbered files of a run may be parts of one checkpoint: `checkpoint_0.pt` to `checkpoint_7.pt`
/// of eight ranks are written in quick succession, apart from a slow one, and not a minute or more apart.
/// Words such as `step` do not number parts, but `epoch` may number segments of data.
fn may_be_written_together(series: &Series, group: &CheckpointGroup) -> bool {
    let name = name_of(&group.prefix);
    let is_hdf = || group.names().is_none_or(|names| names.keys().any(|rest| rest.ends_with(".h5")));
    let is_of_time = step_of(name, &[]).is_some_and(|step| step.is_of_time) && !is_hdf();
    let is_file = matches!(group.layout, Layout::Plain | Layout::Lightning) && !name.is_empty();
    if !is_file || is_of_time {
        return false;
    }
    let times = |one: &CheckpointGroup| Some((one.step?, one.oldest().at_us, one.written().at_us));
    let mut all: Vec<_> = series.groups.values().filter_map(times).collect();
    all.sort_unstable();
    all.windows(2).any(|pair| {
        let [(first, first_from_us, first_us), (second, from_us, until_us)] = pair else { return false };
        // After a run went back, the higher step was written earlier.
        let gap_us = from_us.saturating_sub(*first_us).max(first_from_us.saturating_sub(*until_us));
        second - first < CLOSE_STEPS && gap_us < CLOSE_US
    })
}

/// True if all required files of a checkpoint were written in one go, as far as times show: within less time
/// than passed since the other checkpoint, or within the quiet time. A partial rewrite has older files.
fn was_saved_at_once(one: &CheckpointGroup, other: &CheckpointGroup, quiet_us: u64) -> bool {
    let (oldest_us, written_us) = (one.oldest().at_us, one.written().at_us);
    let gap_us = oldest_us.saturating_sub(other.written().at_us);
    // A clock may have been set back in between; the order is that of the catalogue's sequence.
    written_us.abs_diff(oldest_us) <= gap_us.max(quiet_us)
}

/// True if the framework of a checkpoint is known, and marks completeness.
fn has_framework(group: &CheckpointGroup, habits: &SeriesHabits) -> bool {
    match group.layout {
        Layout::Plain => false,
        // Other programs name their folders the same but write no such file.
        Layout::Transformers => group.needs_last(habits),
        _ => true,
    }
}

/// True if the checkpoints of one step of a run can replace all checkpoints of another step.
fn can_replace_step(series: &Series, one: Option<u64>, other: Option<u64>) -> bool {
    let of = |step: Option<u64>| series.groups.values().filter(move |group| group.step == step);
    of(other).all(|other| of(one).any(|one| can_replace(series, one, other)))
}

/// True if a checkpoint has files with the same names as another, apart from steps and measures, and all but
/// texts as large.
fn has_all_files(one: &CheckpointGroup, other: &CheckpointGroup) -> bool {
    let (Some(names), Some(others)) = (one.names(), other.names()) else { return false };
    let shapes: BTreeMap<String, &GroupFile> =
        names.iter().map(|(rest, file)| (shape_of_rest(rest, one.step), file)).collect();
    others.iter().all(|(rest, file)| {
        // A number equal to the step may be a rank: `epoch_3/random_states_3.pkl`.
        let same = names.get(rest).or_else(|| shapes.get(&shape_of_rest(rest, other.step)).copied());
        same.is_some_and(|same| is_text(name_of(rest)) || is_large_enough(same.bytes, file.bytes))
    })
}

/// True if a checkpoint of one run contains checkpoints of another.
fn contains_checkpoints_of(series: &Series, other: &Series) -> bool {
    let is_same = std::ptr::eq(series, other);
    let inner = other.parent().strip_prefix(series.parent());
    let folder = inner.and_then(|rest| Some(&other.parent()[..=series.parent_length + rest.find('/')?]));
    folder.is_some_and(|folder| series.groups.contains_key(folder))
        || (!is_same
            && series.groups.keys().any(|prefix| prefix.ends_with('/') && other.groups.contains_key(prefix)))
}

/// True if the group is in a step folder of this run.
fn is_in_step_folder(group: &CheckpointGroup, series: &Series) -> bool {
    let Some(rest) = group.prefix.strip_prefix(series.parent()) else { return false };
    let Some(folder) = rest.find('/').map(|slash| &group.prefix[..=series.parent_length + slash]) else {
        return false;
    };
    folder.len() < group.prefix.len() && series.groups.get(folder).is_some_and(|outer| outer.step.is_some())
}

#[cfg(test)]
mod tests;

//! Why a checkpoint is not deleted, although a rule would delete it.
//!
//! Names and listings show much but not all: files of ranks, parallel runs and interrupted uploads can look
//! like something else. Always: nothing of a run is deleted unless its steps are distinguishable, and unless
//! a newer checkpoint stays that is whole beyond doubt and no smaller. Nothing is deleted that may be a run
//! with steps of its own, a setting, or a part of another checkpoint.
//!
//! Newer means that the step is higher and that all of it was written later. A run that went back counts on
//! from a lower step, and what it writes then is worth more than what it abandoned. A checkpoint with some
//! older files was written again and broken off. Runs with similar names may be parts of one, as those of
//! ranks, stages, or an actor and its critic: a step that several of them have is deleted only if all of them
//! have the same newer one ([`are_beside`]).

use super::beside::are_beside;
use super::group::{File, Group, Habits};
use super::lack::Lack;
use super::layout::{Layout, is_text};
use super::step::{shape_of_rest, step_of};
use super::{Checkpoints, GroupId, Series, SeriesId, order};
use crate::key::name_of;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Of a run's newer checkpoints one has at least this share of the bytes.
const BYTES_SHARE: f64 = 0.9;

/// Fewer steps than these are no series: `steps-1000/` and `steps-2000/`, or `10/` and `20/`, may be
/// settings of two runs.
const SERIES_MIN: usize = 3;

/// Numbers that are so close may be those of ranks or segments, which are written together; a checkpoint
/// takes at least so long.
const CLOSE_STEPS: u64 = 100;
const CLOSE_US: u64 = 60_000_000;

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MustStay {
    /// It is not known any more.
    Unknown,
    /// Another of its run has the same step.
    SameStep,
    /// Other checkpoints are in its folder, or files or folders that are called like other steps.
    HoldsSteps,
    /// Its name may tell runs apart, or parts of one checkpoint.
    InDoubt,
    /// Files of its run came at once that are numbered as it is, and may be parts of one.
    Together,
    /// Its run has only two, which may be two runs with a setting each.
    TwoAlone,
    /// It is in the folder of another one.
    InAnother,
    /// No newer one of its run is whole beyond doubt, with as many files and bytes.
    NoneBetter,
    /// The newest one of its run may not be whole, nor is another one better.
    NewestLacks(Lack),
    /// There is, but a run beside it has this step and not that one.
    NotBeside,
    /// The best are kept, and nothing says how good it is.
    NoMeasure,
    /// The rule speaks of some of its files only.
    InPart,
}

impl MustStay {
    /// In a sentence's half.
    #[must_use]
    pub fn why(self) -> String {
        let why = match self {
            Self::Unknown => "it is not known any more",
            Self::SameStep => "another of its run has the same step, as files of ranks or of two runs have",
            Self::InDoubt => {
                "its name has numbers or words that may distinguish runs or parts, not only steps"
            }
            Self::HoldsSteps => "it holds steps of its own, as the folder of a run does",
            Self::Together => "files of its run came within a minute of each other, as those of ranks do",
            Self::TwoAlone => {
                "only two are there that are called so, and the numbers may be settings, not steps"
            }
            Self::InAnother => "it is in the folder of another checkpoint and may be a part of that",
            Self::NotBeside => {
                "runs that are called alike, and may be parts of one, have this step and no newer one in common with it"
            }
            Self::NoMeasure => {
                "the rule keeps the best, and neither its metadata nor its name has that measure"
            }
            Self::InPart => "the rule does not match all of its files that hold more than text",
            Self::NewestLacks(lack) => {
                return format!("no newer one of its run is certainly whole: {}", lack.of_newest());
            }
            Self::NoneBetter => {
                "no newer one of its run, of a higher step and all written later, is certainly whole and has as many files and bytes"
            }
        };
        why.to_owned()
    }

    /// All of these, joined into one clause.
    #[must_use]
    pub fn all(doubts: &[Self]) -> String {
        doubts.iter().map(|doubt| doubt.why()).collect::<Vec<_>>().join("; ")
    }
}

/// The doubts about checkpoints, one checkpoint after another. What all of a run share is computed once.
pub struct Doubts<'a> {
    known: &'a Checkpoints,
    runs: HashMap<SeriesId, OfRun<'a>>,
}

/// What all checkpoints of a run share.
struct OfRun<'a> {
    holds_steps: bool,
    /// The name of one of them may distinguish runs or parts.
    in_doubt: bool,
    /// It has too few steps to be a series.
    two_alone: bool,
    /// Runs that may be parts of the same one.
    beside: Vec<(SeriesId, &'a Series)>,
}

impl<'a> OfRun<'a> {
    fn new(known: &'a Checkpoints, series: &'a Series) -> Self {
        let in_bucket = || known.series.iter().filter(|(_, other)| other.bucket == series.bucket);
        let is_beside =
            |other: &Series| !std::ptr::eq(series, other) && are_beside(&series.name, &other.name);
        Self {
            holds_steps: series.groups.values().any(|one| one.holds_steps)
                || in_bucket().any(|(_, other)| holds(series, other)),
            // Many runs begin with a step 0.
            in_doubt: series.groups.values().any(|one| one.in_doubt && one.step != Some(0)),
            two_alone: is_two_alone(series),
            beside: in_bucket().filter(|(_, other)| is_beside(other)).map(|(id, one)| (*id, one)).collect(),
        }
    }
}

impl Doubts<'_> {
    /// All doubts about a checkpoint: its files are deleted only if there is none.
    pub fn of(&mut self, id: GroupId) -> Vec<MustStay> {
        self.judge(id).err().unwrap_or_default()
    }

    /// Those for which the files of a checkpoint may be deleted, or else the doubts about it.
    fn judge(&mut self, id: GroupId) -> Result<Vec<GroupId>, Vec<MustStay>> {
        let known = self.known;
        let found = known.series.get(&id.series).and_then(|series| Some((series, series.find(id)?)));
        let (series, group) = found.ok_or_else(|| vec![MustStay::Unknown])?;
        let run = self.runs.entry(id.series).or_insert_with(|| OfRun::new(known, series));
        let others = || series.groups.values().filter(|other| other.serial != group.serial);
        let in_bucket = || known.series.values().filter(|other| other.bucket == series.bucket);
        let may_be_part = matches!(group.layout, Layout::Dcp | Layout::Plain);
        let stand_in = known.stand_in((id.series, series), group, &run.beside);
        let all = [
            (group.step.is_some() && others().any(|other| other.step == group.step), MustStay::SameStep),
            // What is so of one of them may be so of all.
            (run.holds_steps, MustStay::HoldsSteps),
            (may_be_part && in_bucket().any(|other| is_in(group, other)), MustStay::InAnother),
            (group.in_doubt || run.in_doubt, MustStay::InDoubt),
            (may_be_written_together(series, group), MustStay::Together),
            (
                run.two_alone || run.beside.iter().any(|(_, other)| leaves_two(other, group)),
                MustStay::TwoAlone,
            ),
        ];
        let mut doubts: Vec<MustStay> =
            all.into_iter().filter(|(is_so, _)| *is_so).map(|(_, why)| why).collect();
        match stand_in {
            Ok(better) if doubts.is_empty() => Ok(better),
            Ok(_) => Err(doubts),
            Err(why) => {
                doubts.push(why);
                Err(doubts)
            }
        }
    }
}

impl Checkpoints {
    /// Why the files of a checkpoint are not to be deleted; nothing if they may be.
    #[must_use]
    pub fn doubts(&self, id: GroupId) -> Vec<MustStay> {
        self.all_doubts().of(id)
    }

    /// The same for many checkpoints.
    #[must_use]
    pub fn all_doubts(&self) -> Doubts<'_> {
        Doubts { known: self, runs: HashMap::new() }
    }

    /// Those for which the files of a checkpoint may be deleted: a newer one of its run, and what runs beside
    /// it have of the same step.
    ///
    /// # Errors
    /// Why they may not.
    pub fn better(&self, id: GroupId) -> Result<Vec<GroupId>, Vec<MustStay>> {
        self.all_doubts().judge(id)
    }

    /// The newer checkpoint of its run that stands in for one, and what runs beside it have of the same step.
    fn stand_in(
        &self,
        (id, series): (SeriesId, &Series),
        group: &Group,
        beside: &[(SeriesId, &Series)],
    ) -> Result<Vec<GroupId>, MustStay> {
        let of_one_save = |one: &Group| is_of_one_save(one, group, self.limits.quiet_us);
        let mut better =
            series.groups.values().filter(|one| is_better(series, one, group) && of_one_save(one)).peekable();
        better.peek().ok_or_else(|| none_better(series, group))?;
        let has_it = |one: &Group| beside.iter().all(|(_, other)| is_better_in(other, one.step, group.step));
        let found = better.find(|one| has_it(one)).ok_or(MustStay::NotBeside)?;
        let of_beside = beside.iter().flat_map(|(id, other)| {
            let alike = other.groups.values().filter(|one| one.step == found.step);
            alike.map(|one| GroupId { series: *id, serial: one.serial })
        });
        Ok(std::iter::once(GroupId { series: id, serial: found.serial }).chain(of_beside).collect())
    }
}

/// Whether a run has fewer whole checkpoints than make a series. A checkpoint without a sign of when it is
/// whole counts from its first file with tensors.
fn is_two_alone(series: &Series) -> bool {
    let is_whole = |one: &&Group| matches!(one.lack(&series.habits), None | Some(Lack::Open));
    let steps: BTreeSet<_> = series.groups.values().filter(is_whole).map(|one| one.step).collect();
    steps.len() < SERIES_MIN
}

/// Whether a run beside that of a checkpoint has its step, and is no series: what may be one checkpoint
/// goes whole or stays whole.
fn leaves_two(beside: &Series, group: &Group) -> bool {
    beside.groups.values().any(|one| one.step == group.step) && is_two_alone(beside)
}

/// Why no newer checkpoint of a run may stand in for one.
fn none_better(series: &Series, group: &Group) -> MustStay {
    let newer = series.groups.values().filter(|other| order(other) > order(group));
    let newest = newer.max_by_key(|other| order(other));
    newest.and_then(|one| one.doubt(&series.habits)).map_or(MustStay::NoneBetter, MustStay::NewestLacks)
}

/// Whether one checkpoint of a run may stand in for another.
fn is_better(series: &Series, one: &Group, other: &Group) -> bool {
    order(one) > order(other)
        && one.is_certain(&series.habits)
        && one.files >= other.files
        // What was added to it, such as results, does not make up for a shard.
        && one.tensors >= other.tensors
        && is_as_large(one.bytes, other.bytes)
        && one.oldest() > other.written()
        && (has_framework(other, &series.habits) || (one.tensors == other.tensors && has_all(one, other)))
}

fn is_as_large(one: u64, other: u64) -> bool {
    one as f64 >= other as f64 * BYTES_SHARE
}

/// Whether the files of a run, with a number each, may be parts of one checkpoint: eight ranks'
/// `checkpoint_0.pt` to `checkpoint_7.pt` come as fast as they can be written, but for a slow one, and not a
/// minute or more after each other. Words such as `step` number no parts, but `epoch` segments of data.
fn may_be_written_together(series: &Series, group: &Group) -> bool {
    let name = name_of(&group.prefix);
    let is_hdf = || group.names().is_none_or(|names| names.keys().any(|rest| rest.ends_with(".h5")));
    let is_of_time = step_of(name, &[]).is_some_and(|step| step.is_of_time) && !is_hdf();
    let is_file = matches!(group.layout, Layout::Plain | Layout::Lightning) && !name.is_empty();
    if !is_file || is_of_time {
        return false;
    }
    let times = |one: &Group| Some((one.step?, one.oldest().at_us, one.written().at_us));
    let mut all: Vec<_> = series.groups.values().filter_map(times).collect();
    all.sort_unstable();
    all.windows(2).any(|pair| {
        let [(first, first_from_us, first_us), (second, from_us, until_us)] = pair else { return false };
        // A run that went back has the higher one before.
        let gap_us = from_us.saturating_sub(*first_us).max(first_from_us.saturating_sub(*until_us));
        second - first < CLOSE_STEPS && gap_us < CLOSE_US
    })
}

/// Whether all that has to be there of a checkpoint was written in one go, as far as times tell: within less
/// than passed since the other one, or than counts as long. What was written anew in part has older files.
fn is_of_one_save(one: &Group, other: &Group, quiet_us: u64) -> bool {
    let (oldest_us, written_us) = (one.oldest().at_us, one.written().at_us);
    let gap_us = oldest_us.saturating_sub(other.written().at_us);
    // By the catalogue's sequence a clock may have been set back in between.
    written_us.abs_diff(oldest_us) <= gap_us.max(quiet_us)
}

/// Whether it is known who writes a checkpoint, and that it says when it is whole.
fn has_framework(group: &Group, habits: &Habits) -> bool {
    match group.layout {
        Layout::Plain => false,
        // Others call their folders so who write no such file.
        Layout::Transformers => group.is_marked(habits),
        _ => true,
    }
}

/// Whether what a run has of one step may stand in for all that it has of another.
fn is_better_in(series: &Series, one: Option<u64>, other: Option<u64>) -> bool {
    let of = |step: Option<u64>| series.groups.values().filter(move |group| group.step == step);
    of(other).all(|other| of(one).any(|one| is_better(series, one, other)))
}

/// Whether a checkpoint has files that are called as those of another are, be it but for steps and measures,
/// and all but texts as large.
fn has_all(one: &Group, other: &Group) -> bool {
    let (Some(names), Some(others)) = (one.names(), other.names()) else { return false };
    let shapes: BTreeMap<String, &File> =
        names.iter().map(|(rest, file)| (shape_of_rest(rest, one.step), file)).collect();
    others.iter().all(|(rest, file)| {
        // What looks like its step may be a rank: `epoch_3/random_states_3.pkl`.
        let same = names.get(rest).or_else(|| shapes.get(&shape_of_rest(rest, other.step)).copied());
        same.is_some_and(|same| is_text(name_of(rest)) || is_as_large(same.bytes, file.bytes))
    })
}

/// Whether a checkpoint of one run holds some of another.
fn holds(series: &Series, other: &Series) -> bool {
    let is_same = std::ptr::eq(series, other);
    let inner = other.parent().strip_prefix(series.parent());
    let folder = inner.and_then(|rest| Some(&other.parent()[..=series.parent_length + rest.find('/')?]));
    folder.is_some_and(|folder| series.groups.contains_key(folder))
        || (!is_same
            && series.groups.keys().any(|prefix| prefix.ends_with('/') && other.groups.contains_key(prefix)))
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
mod tests;

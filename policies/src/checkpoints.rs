//! Checkpoint generations as groups: which files are one checkpoint, which are complete, and which generation
//! each of them is.
//!
//! It is told of what is written and deleted, and of what a listing finds, in any order of keys; names say
//! which files belong together (`layout.rs`) and what was written last says whether they are all there
//! (`group.rs`). Groups of one run are a series, ordered by the number of the step where names carry one, as
//! a number, otherwise by the time of the last write. Always: generation 0 is the newest complete one; a
//! group is not complete while it is written again; [`Checkpoints::retain`] never names the last complete
//! group, nor one that is written.
//!
//! Memory is bounded: beyond it the groups that were written longest ago are forgotten, and of a single one
//! that is larger the names of its files. What a crash loses is found again by listing; no byte depends on
//! it.

mod beside;
mod folder;
mod group;
mod kind;
mod lack;
mod layout;
mod measure;
mod mention;
mod moment;
mod must_stay;
mod named;
mod pointer;
mod retain;
mod spacing;
mod standing;
mod step;

pub use kind::model_file_kind;
pub use lack::Lack;
pub use layout::Layout;
pub use mention::{MENTION_BYTES_MAX, Mentionable, Mentionables, folders_above};
pub use moment::Moment;
pub use must_stay::{Doubts, MustStay};
pub use pointer::{folders_of_pointers, may_point, names, names_best};
pub use retain::Keep;
pub use spacing::Spacings;
pub use standing::{Standing, file_type_of, has_step};

use group::{Group, Habits};
use standing::Trained;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// What this may use, and what counts as long.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of memory for names and groups.
    pub memory_bytes_max: usize,
    /// A group without a file that is written last is complete when nothing was written to it for so long.
    pub quiet_us: u64,
}

impl Default for Limits {
    /// 16 MiB, which are a hundred thousand files or more; ten minutes.
    fn default() -> Self {
        Self { memory_bytes_max: 16 << 20, quiet_us: 600_000_000 }
    }
}

/// A run's checkpoints, as long as one of them is remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SeriesId(u32);

/// A checkpoint, as long as it is remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId {
    series: SeriesId,
    serial: u32,
}

impl GroupId {
    /// The run that it is of.
    #[must_use]
    pub const fn series(self) -> SeriesId {
        self.series
    }
}

/// A checkpoint.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Generation<'a> {
    /// Which one.
    pub id: GroupId,
    /// The bucket's id.
    pub bucket: u64,
    /// What the keys of all its files begin with. Which keys are its own, [`Checkpoints::prefix_of`] says.
    pub prefix: &'a str,
    /// The folder of its run, with its slash: the beginning of the prefix.
    pub parent: &'a str,
    /// Who writes such.
    pub layout: Layout,
    /// The number of its step, or of its epoch where there is no step.
    pub step: Option<u64>,
    /// Counted back from the newest complete one, which is 0; nothing while it is not complete.
    pub generation: Option<u32>,
    /// How many files it has.
    pub files: u32,
    /// How many of them are more than texts and descriptions ([`Checkpoints::is_tensor`]).
    pub tensors: u32,
    /// Their bytes.
    pub bytes: u64,
    /// When its first file was written.
    pub first: Moment,
    /// When its last file was.
    pub last: Moment,
    /// When the last of its files was that has to be there: texts that come later make it no newer.
    pub written: Moment,
}

impl Generation<'_> {
    /// Whether all of it is there.
    #[must_use]
    pub const fn is_complete(&self) -> bool {
        self.generation.is_some()
    }
}

/// A run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeriesView<'a> {
    /// Which one.
    pub id: SeriesId,
    /// The bucket's id.
    pub bucket: u64,
    /// What its checkpoints are called, with `#` for numbers: `run/checkpoint-#/`.
    pub name: &'a str,
    /// How many checkpoints of it are remembered, complete or not.
    pub groups: usize,
}

struct Series {
    bucket: u64,
    name: Box<str>,
    /// How long the folder of all is, in its name.
    parent_length: usize,
    groups: BTreeMap<Box<str>, Group>,
    habits: Habits,
    /// The smallest interval between two that came one after the other.
    spacing: Option<u64>,
    /// There may have been a smaller one, that nobody had room to remember.
    is_spacing_unsure: bool,
    /// The one that was written last, and its step or time.
    newest: Option<(u32, u64)>,
}

/// See the module.
pub struct Checkpoints {
    limits: Limits,
    ids: HashMap<u64, HashMap<Box<str>, SeriesId>>,
    series: BTreeMap<SeriesId, Series>,
    /// Groups by when they were written last.
    ages: BTreeSet<(Moment, GroupId)>,
    memory_bytes: usize,
    serials: u32,
    trained: Trained,
    /// When it was looked last for those that nobody writes any more.
    settled_us: u64,
}

/// It is looked so many times within the time that counts as long.
const LOOKS: u64 = 10;

impl Checkpoints {
    /// Nothing is known yet.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        let (ids, series, ages) = (HashMap::new(), BTreeMap::new(), BTreeSet::new());
        let trained = Trained::default();
        Self { limits, ids, series, ages, memory_bytes: 0, serials: 0, trained, settled_us: 0 }
    }

    /// An object was written whole; an upload in parts, when it was completed. Says which checkpoint it
    /// belongs to.
    pub fn wrote(&mut self, at_us: u64, bucket: u64, key: &str, bytes: u64) -> Option<GroupId> {
        let id = self.listed(at_us, bucket, key, bytes)?;
        self.series.get_mut(&id.series)?.note_spacing(id);
        Some(id)
    }

    /// As [`Checkpoints::stored`], for an object of which only the time of its write is known.
    pub fn listed(&mut self, at_us: u64, bucket: u64, key: &str, bytes: u64) -> Option<GroupId> {
        self.stored(Moment::at(at_us), bucket, key, bytes)
    }

    /// A listing found an object that was written then. What lies between checkpoints that are found may have
    /// been deleted, so that their intervals say nothing.
    pub fn stored(&mut self, at: Moment, bucket: u64, key: &str, bytes: u64) -> Option<GroupId> {
        let place = layout::place(key);
        self.trained.note(bucket, key, place.as_ref());
        let Some(place) = place else {
            if let Some(parent) = layout::pointer(key) {
                self.point(at, bucket, parent);
            }
            return None;
        };
        let id = self.series_of(bucket, &place);
        let series = self.series.get_mut(&id)?;
        if !series.groups.contains_key(place.prefix) {
            series.begin(Group::new(self.serials, &place, at), at);
            self.serials += 1;
        }
        let group = series.groups.get_mut(place.prefix)?;
        let group_id = GroupId { series: id, serial: group.serial };
        let (before_at, before_bytes, before_files) = (group.last, group.memory_bytes(), group.files);
        let (is_new, was_pointed) = (before_files == 0, group.is_pointed());
        let before = group.size().filter(|_| !is_new);
        group.wrote(&place, bytes, at, &series.habits);
        if was_pointed && !group.is_pointed() && group.files > before_files {
            // It was named before it was whole: how many files it had then says nothing of others.
            series.habits.pointed = series.habits.pointed.map(|it| group::Pointed { files: None, ..it });
        }
        series.habits.recount(before, group.size());
        let is_marked = place.role == layout::Role::Last && place.layout != Layout::Safetensors;
        series.habits.is_marked |= is_marked;
        series.habits.is_of_trainer |= place.is_trainer_state();
        self.memory_bytes += group.memory_bytes() - if is_new { 0 } else { before_bytes };
        self.ages.remove(&(before_at, group_id));
        self.ages.insert((group.last, group_id));
        self.forget_oldest(group_id);
        Some(group_id)
    }

    /// Whether a key says something of checkpoints: all others need not be told of.
    #[must_use]
    pub fn may_have(key: &str) -> bool {
        layout::place(key).is_some() || layout::pointer(key).is_some() || standing::is_state(key)
    }

    /// The prefixes of checkpoints that a key would belong to, by its name alone: that of its own one, or
    /// else, of what has none, the folders that it is in. That it begins with the prefix of another is not
    /// enough: `model-1` begins `model-10.pt`.
    pub fn prefixes_of(key: &str) -> impl Iterator<Item = &str> {
        let own = Self::prefix_of(key);
        let folders = key.match_indices('/').map(|(at, _)| &key[..=at]).filter(move |_| own.is_none());
        own.into_iter().chain(folders)
    }

    /// The prefix of the checkpoint of which a key is a file.
    #[must_use]
    pub fn prefix_of(key: &str) -> Option<&str> {
        layout::place(key).map(|place| place.prefix)
    }

    /// As [`Checkpoints::listed`], but of what is known already nothing is heard: not even that it is older
    /// than it was.
    pub fn found(&mut self, at_us: u64, bucket: u64, key: &str, bytes: u64) {
        let group = layout::place(key).and_then(|place| {
            let series = self.series.get(&self.find(bucket, &place.series)?)?;
            Some(series.groups.get(place.prefix)?.has(place.rest))
        });
        if group != Some(true) {
            self.listed(at_us, bucket, key, bytes);
        }
    }

    /// How many are complete, and which was completed last, in a number that changes when one becomes
    /// complete.
    #[must_use]
    pub fn completions(&self) -> (usize, u64) {
        let complete = self.series.values().flat_map(|series| {
            series
                .groups
                .values()
                .filter(|group| group.is_complete(&series.habits))
                .map(|group| group.last.at_us)
        });
        complete.fold((0, 0), |(count, last), at_us| (count + 1, last.max(at_us)))
    }

    /// An object was deleted.
    pub fn deleted(&mut self, bucket: u64, key: &str) {
        self.trained.forget(bucket, key);
        let Some(place) = layout::place(key) else { return };
        let Some(id) = self.find(bucket, &place.series) else { return };
        let Some(series) = self.series.get_mut(&id) else { return };
        let Some(group) = series.groups.get_mut(place.prefix) else { return };
        let (before, tensors) = (group.memory_bytes(), group.size());
        group.deleted(&place);
        series.habits.recount(tensors, group.size());
        self.memory_bytes = self.memory_bytes - before + group.memory_bytes();
        if group.files == 0 {
            let id = GroupId { series: id, serial: group.serial };
            self.forget(id);
        }
    }

    /// As [`Checkpoints::settle`], for whoever says often what time it is.
    pub fn pass(&mut self, now_us: u64) {
        if now_us.saturating_sub(self.settled_us) >= self.limits.quiet_us / LOOKS {
            self.settle(now_us);
            self.settled_us = now_us;
        }
    }

    /// Time has gone on: what nobody has written to for long, nobody is writing any more.
    pub fn settle(&mut self, now_us: u64) {
        let quiet_us = now_us.saturating_sub(self.limits.quiet_us);
        for group in self.series.values_mut().flat_map(|series| series.groups.values_mut()) {
            if now_us >= self.limits.quiet_us && group.written().at_us <= quiet_us {
                group.settle();
            }
        }
    }

    /// Forgets a checkpoint: it was released, or something else has taken its place.
    pub fn forget(&mut self, id: GroupId) {
        let Some(series) = self.series.get_mut(&id.series) else { return };
        let Some(prefix) = series.find(id).map(|group| group.prefix.clone()) else { return };
        let Some(group) = series.groups.remove(&prefix) else { return };
        series.habits.recount(group.size(), None);
        self.memory_bytes -= group.memory_bytes();
        self.ages.remove(&(group.last, id));
        if series.groups.is_empty() {
            self.memory_bytes -= series_bytes(&series.name);
            if let Some(ids) = self.ids.get_mut(&series.bucket) {
                ids.remove(&series.name);
                if ids.is_empty() {
                    self.ids.remove(&series.bucket);
                }
            }
            self.series.remove(&id.series);
        }
    }

    /// The checkpoint that a key belongs to, be the key there or not.
    #[must_use]
    pub fn group_of(&self, bucket: u64, key: &str) -> Option<Generation<'_>> {
        self.group_at(bucket, &layout::place(key)?)
    }

    fn group_at(&self, bucket: u64, place: &layout::Place<'_>) -> Option<Generation<'_>> {
        let id = self.find(bucket, &place.series)?;
        let series = self.series.get(&id)?;
        let group = series.groups.get(place.prefix)?;
        Some(series.view(id, group, series.generation(group)))
    }

    /// What rules want to know of a key, be it there or not.
    #[must_use]
    pub fn standing(&self, bucket: u64, key: &str) -> Standing {
        let place = layout::place(key);
        let group = place.as_ref().and_then(|place| self.group_at(bucket, place));
        let file_type = self.trained.file_type(bucket, key, place.as_ref());
        Standing { generation: group.and_then(|one| one.generation), file_type }
    }

    /// A checkpoint, if it is remembered.
    #[must_use]
    pub fn group(&self, id: GroupId) -> Option<Generation<'_>> {
        let series = self.series.get(&id.series)?;
        let group = series.find(id)?;
        Some(series.view(id.series, group, series.generation(group)))
    }

    /// All checkpoints of a run, the oldest first.
    #[must_use]
    pub fn generations(&self, series: SeriesId) -> Vec<Generation<'_>> {
        self.series.get(&series).map(|it| it.generations(series)).unwrap_or_default()
    }

    /// The newest complete checkpoint of a run.
    #[must_use]
    pub fn newest_complete(&self, series: SeriesId) -> Option<Generation<'_>> {
        self.generations(series).into_iter().rfind(Generation::is_complete)
    }

    /// All runs.
    pub fn series(&self) -> impl Iterator<Item = SeriesView<'_>> {
        self.series.iter().map(|(id, series)| SeriesView {
            id: *id,
            bucket: series.bucket,
            name: &series.name,
            groups: series.groups.len(),
        })
    }

    /// The files of a checkpoint: key behind its prefix, bytes, and time of the write. None if they are not
    /// in memory: then a listing of the prefix has them.
    #[must_use]
    pub fn members(&self, id: GroupId) -> Option<impl Iterator<Item = (&str, u64, Moment)>> {
        let names = self.series.get(&id.series)?.find(id)?.names()?;
        Some(names.iter().map(|(rest, file)| (&**rest, file.bytes, file.at)))
    }

    /// The number that a checkpoint's name, or that of a file of it, gives as `measure`, as Lightning writes
    /// it: `epoch=3-val_loss=0.25.ckpt`.
    #[must_use]
    pub fn measure(&self, id: GroupId, measure: &str) -> Option<f64> {
        let group = self.series.get(&id.series)?.find(id)?;
        let files = group.names().into_iter().flat_map(BTreeMap::keys);
        let mut names = std::iter::once(&group.prefix).chain(files);
        names.find_map(|name| measure::measure_in(name, measure))
    }

    /// Whether a file of a checkpoint is more than a text or a description, by its key.
    #[must_use]
    pub fn is_tensor(key: &str) -> bool {
        layout::place(key).is_some_and(|place| group::is_tensor(&place))
    }

    /// The checkpoints of a run that may go, the oldest first. `measure` says how good one is, where that is
    /// known.
    #[must_use]
    pub fn retain(
        &self,
        series: SeriesId,
        keep: Keep,
        measure: &dyn Fn(&Generation<'_>) -> Option<f64>,
    ) -> Vec<GroupId> {
        let generations = self.generations(series);
        // With no interval at all everything stays.
        let interval = |it: &Series| if it.is_spacing_unsure { Some(0) } else { it.spacing };
        let spacing = self.series.get(&series).and_then(interval);
        let named = if keep.best == 0 { self.named_measures(&generations) } else { retain::Named::new() };
        let goes = retain::may_go(&generations, keep, spacing, measure, named);
        goes.into_iter().map(|at| generations[at].id).collect()
    }

    /// The measures that names of checkpoints and of their files carry.
    fn named_measures(&self, generations: &[Generation<'_>]) -> retain::Named {
        let mut named = retain::Named::new();
        for (at, one) in generations.iter().enumerate() {
            let files = self.members(one.id).into_iter().flatten().map(|(rest, ..)| rest);
            for name in std::iter::once(&one.prefix[one.parent.len()..]).chain(files) {
                for measure in measure::measures(name) {
                    let of = named.entry(measure.name).or_insert((measure.good, Vec::new()));
                    of.1.push((measure.value, at));
                }
            }
        }
        named
    }

    /// Memory that all of it takes, in bytes; at most what the limits say.
    #[must_use]
    pub const fn memory_bytes(&self) -> usize {
        self.memory_bytes
    }

    fn find(&self, bucket: u64, name: &str) -> Option<SeriesId> {
        self.ids.get(&bucket)?.get(name).copied()
    }

    fn series_of(&mut self, bucket: u64, place: &layout::Place<'_>) -> SeriesId {
        if let Some(id) = self.find(bucket, &place.series) {
            return id;
        }
        let id = SeriesId(self.serials);
        self.serials += 1;
        let name: Box<str> = place.series.as_str().into();
        self.memory_bytes += series_bytes(&name);
        self.ids.entry(bucket).or_default().insert(name.clone(), id);
        let parent_length = place.parent.len();
        let (groups, habits) = (BTreeMap::new(), Habits::default());
        let series = Series {
            bucket,
            name,
            parent_length,
            groups,
            habits,
            spacing: None,
            is_spacing_unsure: false,
            newest: None,
        };
        self.series.insert(id, series);
        id
    }

    /// A file says that the checkpoint beside it which was written last is complete.
    fn point(&mut self, at: Moment, bucket: u64, parent: &str) {
        let in_parent = |series: &&mut Series| series.bucket == bucket && series.parent() == parent;
        for series in self.series.values_mut().filter(in_parent) {
            let written =
                series.groups.values_mut().filter(|it| it.layout.is_pointed() && it.written() <= at);
            if let Some(group) = written.max_by_key(|group| (group.written(), group.step)) {
                group.point_at(at);
                series.habits.pointed = Some(group.pointed(at));
            }
        }
    }

    /// Forgets the oldest until there is room; of the one that is being written only the names of files.
    fn forget_oldest(&mut self, written: GroupId) {
        while self.memory_bytes > self.limits.memory_bytes_max {
            let oldest = self.ages.iter().map(|(_, id)| *id).find(|id| *id != written);
            match oldest {
                Some(id) => self.forget(id),
                None => {
                    let series = self.series.get_mut(&written.series);
                    if let Some(series) = series {
                        self.memory_bytes -= series.drop_names(written);
                    }
                    return;
                }
            }
        }
    }
}

/// Memory of a series: its name stands in it and in the index.
const fn series_bytes(name: &str) -> usize {
    2 * name.len() + size_of::<Series>() + 128
}

impl Series {
    /// The folder that all of it is in.
    fn parent(&self) -> &str {
        &self.name[..self.parent_length]
    }

    /// A new checkpoint begins: the others are not written any more.
    fn begin(&mut self, group: Group, at: Moment) {
        for other in self.groups.values_mut().filter(|other| other.written() <= at) {
            other.close();
        }
        self.groups.insert(group.prefix.clone(), group);
    }

    /// A checkpoint is written: how far it is from the one that was written before.
    fn note_spacing(&mut self, id: GroupId) {
        if self.newest.is_some_and(|(serial, _)| serial == id.serial) {
            return;
        }
        let Some(group) = self.find(id) else { return };
        let position = group.step.unwrap_or(group.first.at_us);
        let gap = self.newest.map(|(_, newest)| position.abs_diff(newest)).filter(|gap| *gap > 0);
        self.spacing = self.spacing.into_iter().chain(gap).min();
        self.newest = Some((id.serial, position));
    }

    fn find(&self, id: GroupId) -> Option<&Group> {
        self.groups.values().find(|group| group.serial == id.serial)
    }

    /// Remembers only how many files a checkpoint has. Says how much less memory that takes.
    fn drop_names(&mut self, id: GroupId) -> usize {
        let Some(group) = self.groups.values_mut().find(|group| group.serial == id.serial) else { return 0 };
        let (before, tensors) = (group.memory_bytes(), group.size());
        group.drop_names();
        self.habits.recount(tensors, None);
        before - group.memory_bytes()
    }

    /// Complete ones that are newer, if this one is complete.
    fn generation(&self, group: &Group) -> Option<u32> {
        let is_newer = |other: &&Group| order(other) > order(group) && other.is_complete(&self.habits);
        group.is_complete(&self.habits).then(|| self.groups.values().filter(is_newer).count() as u32)
    }

    fn generations(&self, id: SeriesId) -> Vec<Generation<'_>> {
        let mut groups: Vec<&Group> = self.groups.values().collect();
        groups.sort_by_key(|group| order(group));
        let mut newer = 0;
        let mut views: Vec<_> = groups
            .into_iter()
            .rev()
            .map(|group| {
                let generation = group.is_complete(&self.habits).then_some(newer);
                newer += u32::from(generation.is_some());
                self.view(id, group, generation)
            })
            .collect();
        views.reverse();
        views
    }

    fn view<'a>(&self, series: SeriesId, group: &'a Group, generation: Option<u32>) -> Generation<'a> {
        Generation {
            id: GroupId { series, serial: group.serial },
            bucket: self.bucket,
            prefix: &group.prefix,
            parent: &group.prefix[..self.parent_length],
            layout: group.layout,
            step: group.step,
            generation,
            files: group.files,
            tensors: group.tensors,
            bytes: group.bytes,
            first: group.first,
            last: group.last,
            written: group.written(),
        }
    }
}

/// By step, where there is one; otherwise by when it was written last.
const fn order(group: &Group) -> (Option<u64>, Moment, u32) {
    (group.step, group.last, group.serial)
}

#[cfg(test)]
mod tests;

//! Checkpoint generations: groups the files of each checkpoint, decides which groups are complete, and
//! numbers them by age.
//!
//! The input consists of writes, deletions and results of listings, in any order of keys. Names determine
//! which files belong together (`layout.rs`), and the file written last determines whether all are there
//! (`group.rs`). The groups of one run form a series, ordered by the step number if the names have one, and
//! by the time of the last write otherwise. Invariants: generation 0 is the newest complete group; a group is
//! not complete while it is being written again; [`CheckpointIndex::retain`] never returns the last complete
//! group, nor one that is being written.
//!
//! Memory is bounded: beyond the limit, the groups with the oldest writes are forgotten, and for a single
//! group above the limit the names of its files. Data lost in a crash is found again by listing; no stored
//! byte depends on it.

mod checkpoint_facts;
mod deletion_guard;
mod expected_files;
mod file_role;
mod folder;
mod group;
mod incompleteness;
mod kind;
mod layout;
mod measure;
mod mention;
mod pointer;
mod retain;
mod siblings;
mod spacing;
mod step;
mod write_time;

pub use checkpoint_facts::{CheckpointFacts, file_type_of, has_step};
pub use deletion_guard::{DeletionChecks, DeletionGuard};
pub use incompleteness::Incompleteness;
pub use kind::model_file_kind;
pub use layout::Layout;
pub use mention::{MENTION_BYTES_MAX, MentionTarget, MentionTargets, folders_above};
pub use pointer::{folders_of_pointers, may_point, names_as_best, names_checkpoint};
pub use retain::RetentionRule;
pub use spacing::CheckpointSpacings;
pub use write_time::WriteTime;

use checkpoint_facts::TrainingFolders;
use group::{CheckpointGroup, SeriesHabits};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Limits of memory, and times.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum bytes of memory for names and groups.
    pub memory_bytes_max: usize,
    /// Time without a write after which a group without a last file is complete.
    pub quiet_us: u64,
}

impl Default for Limits {
    /// 16 MiB, enough for at least a hundred thousand files, and ten minutes.
    fn default() -> Self {
        Self { memory_bytes_max: 16 << 20, quiet_us: 600_000_000 }
    }
}

/// Id of a run's series of checkpoints, valid while one of them is remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SeriesId(u32);

/// Id of a checkpoint, valid while it is remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId {
    series: SeriesId,
    serial: u32,
}

impl GroupId {
    /// Returns the run of the checkpoint.
    #[must_use]
    pub const fn series(self) -> SeriesId {
        self.series
    }
}

/// A checkpoint.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Generation<'a> {
    /// Id of the checkpoint.
    pub id: GroupId,
    /// Bucket id.
    pub bucket: u64,
    /// Common prefix of the keys of all its files. [`CheckpointIndex::prefix_of`] decides which keys belong
    /// to it.
    pub prefix: &'a str,
    /// Folder of its run with the trailing slash; the beginning of the prefix.
    pub parent: &'a str,
    /// Framework layout of its files.
    pub layout: Layout,
    /// Number of its step, or of its epoch if there is no step.
    pub step: Option<u64>,
    /// Number counted back from the newest complete checkpoint, which is 0; `None` while it is not complete.
    pub generation: Option<u32>,
    /// Number of files.
    pub files: u32,
    /// Number of files that are more than texts and descriptions ([`CheckpointIndex::is_tensor`]).
    pub tensors: u32,
    /// Bytes of all files.
    pub bytes: u64,
    /// Time of the first write of a file.
    pub first: WriteTime,
    /// Time of the last write of a file.
    pub last: WriteTime,
    /// Time of the last write of a required file; texts that are added later do not change it.
    pub written: WriteTime,
}

impl Generation<'_> {
    /// True if all of its files are there.
    #[must_use]
    pub const fn is_complete(&self) -> bool {
        self.generation.is_some()
    }
}

/// A run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeriesView<'a> {
    /// Id of the run.
    pub id: SeriesId,
    /// Bucket id.
    pub bucket: u64,
    /// Name pattern of its checkpoints with `#` for numbers: `run/checkpoint-#/`.
    pub name: &'a str,
    /// Number of its remembered checkpoints, complete or not.
    pub groups: usize,
}

struct Series {
    bucket: u64,
    name: Box<str>,
    /// Length of the run's folder within the name.
    parent_length: usize,
    groups: BTreeMap<Box<str>, CheckpointGroup>,
    habits: SeriesHabits,
    /// Smallest interval between two successive checkpoints.
    spacing: Option<u64>,
    /// True if a smaller interval may have been forgotten for lack of room.
    is_spacing_uncertain: bool,
    /// Serial number of the checkpoint written last, and its step or time.
    newest: Option<(u32, u64)>,
}

/// Index of all checkpoints; see the module.
pub struct CheckpointIndex {
    limits: Limits,
    ids: HashMap<u64, HashMap<Box<str>, SeriesId>>,
    series: BTreeMap<SeriesId, Series>,
    /// Groups by the time of their last write.
    ages: BTreeSet<(WriteTime, GroupId)>,
    memory_bytes: usize,
    serials: u32,
    training_folders: TrainingFolders,
    /// Time of the last search for groups that are no longer written.
    quiet_checked_us: u64,
}

/// Number of searches for quiet groups per quiet time.
const QUIET_SEARCHES: u64 = 10;

impl CheckpointIndex {
    /// Returns an empty index.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        let (ids, series, ages) = (HashMap::new(), BTreeMap::new(), BTreeSet::new());
        let trained = TrainingFolders::default();
        Self {
            limits,
            ids,
            series,
            ages,
            memory_bytes: 0,
            serials: 0,
            training_folders: trained,
            quiet_checked_us: 0,
        }
    }

    /// Records that an object was written completely; a multipart upload when it is completed. Returns the
    /// checkpoint that it belongs to.
    pub fn record_write(&mut self, at_us: u64, bucket: u64, key: &str, bytes: u64) -> Option<GroupId> {
        let id = self.record_listed(at_us, bucket, key, bytes)?;
        self.series.get_mut(&id.series)?.record_spacing(id);
        Some(id)
    }

    /// Like [`CheckpointIndex::record_stored`], for an object with a known write time but no sequence number.
    pub fn record_listed(&mut self, at_us: u64, bucket: u64, key: &str, bytes: u64) -> Option<GroupId> {
        self.record_stored(WriteTime::at(at_us), bucket, key, bytes)
    }

    /// Records an object found by a listing, with the time of its write. Intervals between checkpoints found
    /// this way carry no information, since others between them may have been deleted.
    pub fn record_stored(&mut self, at: WriteTime, bucket: u64, key: &str, bytes: u64) -> Option<GroupId> {
        let parsed = layout::parse_key(key);
        self.training_folders.record(bucket, key, parsed.as_ref());
        let Some(place) = parsed else {
            if let Some(parent) = layout::pointer(key) {
                self.record_pointer(at, bucket, parent);
            }
            return None;
        };
        let id = self.get_or_add_series(bucket, &place);
        let series = self.series.get_mut(&id)?;
        if !series.groups.contains_key(place.prefix) {
            series.begin_group(CheckpointGroup::new(self.serials, &place, at), at);
            self.serials += 1;
        }
        let group = series.groups.get_mut(place.prefix)?;
        let group_id = GroupId { series: id, serial: group.serial };
        let (before_at, before_bytes, before_files) = (group.last, group.memory_bytes(), group.files);
        let (is_new, was_pointed) = (before_files == 0, group.is_pointed());
        let before = group.size().filter(|_| !is_new);
        group.record_write(&place, bytes, at, &series.habits);
        if was_pointed && !group.is_pointed() && group.files > before_files {
            // The pointer was written before the group was complete: its file count then does not apply to
            // others.
            series.habits.pointed =
                series.habits.pointed.map(|it| group::PointerRecord { files: None, ..it });
        }
        series.habits.recount(before, group.size());
        let is_marked = place.role == file_role::FileRole::Last && place.layout != Layout::Safetensors;
        series.habits.has_last_file |= is_marked;
        series.habits.is_of_trainer |= place.is_trainer_state();
        self.memory_bytes += group.memory_bytes() - if is_new { 0 } else { before_bytes };
        let had_age = self.ages.remove(&(before_at, group_id));
        assert_eq!(had_age, !is_new, "each group has one age");
        self.ages.insert((group.last, group_id));
        self.forget_oldest(group_id);
        Some(group_id)
    }

    /// True if a key is relevant for checkpoints; other keys need not be reported.
    #[must_use]
    pub fn is_relevant(key: &str) -> bool {
        layout::parse_key(key).is_some()
            || layout::pointer(key).is_some()
            || checkpoint_facts::is_training_state(key)
    }

    /// Returns the prefixes of checkpoints that a key can belong to by its name: that of its own checkpoint,
    /// or else the folders that contain it. A common beginning is not enough: `model-1` is the beginning of
    /// `model-10.pt`.
    pub fn prefixes_of(key: &str) -> impl Iterator<Item = &str> {
        let own = Self::prefix_of(key);
        let folders = key.match_indices('/').map(|(at, _)| &key[..=at]).filter(move |_| own.is_none());
        own.into_iter().chain(folders)
    }

    /// Returns the prefix of the checkpoint that a key is a file of.
    #[must_use]
    pub fn prefix_of(key: &str) -> Option<&str> {
        layout::parse_key(key).map(|place| place.prefix)
    }

    /// Like [`CheckpointIndex::record_listed`], but files that are known already are ignored, even if the
    /// listing has an older time.
    pub fn record_if_unknown(&mut self, at_us: u64, bucket: u64, key: &str, bytes: u64) {
        let group = layout::parse_key(key).and_then(|place| {
            let series = self.series.get(&self.find(bucket, &place.series)?)?;
            Some(series.groups.get(place.prefix)?.has(place.rest))
        });
        if group != Some(true) {
            self.record_listed(at_us, bucket, key, bytes);
        }
    }

    /// Returns the number of complete checkpoints and the latest write among them; the pair changes whenever
    /// a checkpoint becomes complete.
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

    /// Records that an object was deleted.
    pub fn record_delete(&mut self, bucket: u64, key: &str) {
        self.training_folders.forget(bucket, key);
        let Some(parsed) = layout::parse_key(key) else { return };
        let Some(id) = self.find(bucket, &parsed.series) else { return };
        let Some(series) = self.series.get_mut(&id) else { return };
        let Some(group) = series.groups.get_mut(parsed.prefix) else { return };
        let (before, tensors) = (group.memory_bytes(), group.size());
        group.record_delete(&parsed);
        series.habits.recount(tensors, group.size());
        self.memory_bytes = self.memory_bytes - before + group.memory_bytes();
        if group.files == 0 {
            let id = GroupId { series: id, serial: group.serial };
            self.forget(id);
        }
    }

    /// Calls [`CheckpointIndex::mark_quiet`] at suitable intervals; for callers that report the time often.
    pub fn tick(&mut self, now_us: u64) {
        if now_us.saturating_sub(self.quiet_checked_us) >= self.limits.quiet_us / QUIET_SEARCHES {
            self.mark_quiet(now_us);
            self.quiet_checked_us = now_us;
        }
    }

    /// Marks groups without recent writes as no longer written.
    pub fn mark_quiet(&mut self, now_us: u64) {
        let quiet_us = now_us.saturating_sub(self.limits.quiet_us);
        for group in self.series.values_mut().flat_map(|series| series.groups.values_mut()) {
            if now_us >= self.limits.quiet_us && group.written().at_us <= quiet_us {
                group.mark_quiet();
            }
        }
    }

    /// Forgets a checkpoint that was released or replaced.
    pub fn forget(&mut self, id: GroupId) {
        let Some(series) = self.series.get_mut(&id.series) else { return };
        let Some(prefix) = series.find(id).map(|group| group.prefix.clone()) else { return };
        let Some(group) = series.groups.remove(&prefix) else { return };
        series.habits.recount(group.size(), None);
        assert!(self.memory_bytes >= group.memory_bytes(), "the memory in use includes each group");
        self.memory_bytes -= group.memory_bytes();
        assert!(self.ages.remove(&(group.last, id)), "a group that is forgotten has an age");
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

    /// Returns the checkpoint that a key belongs to, whether the key exists or not.
    #[must_use]
    pub fn group_of(&self, bucket: u64, key: &str) -> Option<Generation<'_>> {
        self.group_at(bucket, &layout::parse_key(key)?)
    }

    fn group_at(&self, bucket: u64, parsed: &layout::CheckpointKey<'_>) -> Option<Generation<'_>> {
        let id = self.find(bucket, &parsed.series)?;
        let series = self.series.get(&id)?;
        let group = series.groups.get(parsed.prefix)?;
        Some(series.view(id, group, series.generation(group)))
    }

    /// Returns the facts that rules use about a key, whether it exists or not.
    #[must_use]
    pub fn key_facts(&self, bucket: u64, key: &str) -> CheckpointFacts {
        let place = layout::parse_key(key);
        let group = place.as_ref().and_then(|place| self.group_at(bucket, place));
        let file_type = self.training_folders.file_type(bucket, key, place.as_ref());
        CheckpointFacts { generation: group.and_then(|one| one.generation), file_type }
    }

    /// Returns a checkpoint, if it is remembered.
    #[must_use]
    pub fn group(&self, id: GroupId) -> Option<Generation<'_>> {
        let series = self.series.get(&id.series)?;
        let group = series.find(id)?;
        Some(series.view(id.series, group, series.generation(group)))
    }

    /// Returns all checkpoints of a run, oldest first.
    #[must_use]
    pub fn generations(&self, series: SeriesId) -> Vec<Generation<'_>> {
        self.series.get(&series).map(|it| it.generations(series)).unwrap_or_default()
    }

    /// Returns the newest complete checkpoint of a run.
    #[must_use]
    pub fn newest_complete(&self, series: SeriesId) -> Option<Generation<'_>> {
        self.generations(series).into_iter().rfind(Generation::is_complete)
    }

    /// Returns all runs.
    pub fn series(&self) -> impl Iterator<Item = SeriesView<'_>> {
        self.series.iter().map(|(id, series)| SeriesView {
            id: *id,
            bucket: series.bucket,
            name: &series.name,
            groups: series.groups.len(),
        })
    }

    /// Returns the files of a checkpoint: key after its prefix, bytes, and time of the write. `None` if they
    /// are not in memory; a listing of the prefix returns them then.
    #[must_use]
    pub fn members(&self, id: GroupId) -> Option<impl Iterator<Item = (&str, u64, WriteTime)>> {
        let names = self.series.get(&id.series)?.find(id)?.names()?;
        Some(names.iter().map(|(rest, file)| (&**rest, file.bytes, file.at)))
    }

    /// Returns the value of `measure` in the name of a checkpoint or of one of its files, in Lightning's
    /// format: `epoch=3-val_loss=0.25.ckpt`.
    #[must_use]
    pub fn measure(&self, id: GroupId, measure: &str) -> Option<f64> {
        let group = self.series.get(&id.series)?.find(id)?;
        let files = group.names().into_iter().flat_map(BTreeMap::keys);
        let mut names = std::iter::once(&group.prefix).chain(files);
        names.find_map(|name| measure::value_of_measure(name, measure))
    }

    /// True if a file of a checkpoint is more than a text or a description, by its key.
    #[must_use]
    pub fn is_tensor(key: &str) -> bool {
        layout::parse_key(key).is_some_and(|place| group::is_tensor(&place))
    }

    /// Returns the checkpoints of a run that may be deleted, oldest first. `measure` returns the quality of a
    /// checkpoint, where it is known.
    #[must_use]
    pub fn retain(
        &self,
        series: SeriesId,
        keep: RetentionRule,
        measure: &dyn Fn(&Generation<'_>) -> Option<f64>,
    ) -> Vec<GroupId> {
        let generations = self.generations(series);
        // Everything stays if no interval is known.
        let interval = |it: &Series| if it.is_spacing_uncertain { Some(0) } else { it.spacing };
        let spacing = self.series.get(&series).and_then(interval);
        let named =
            if keep.best == 0 { self.measures_in_names(&generations) } else { retain::MeasuresByName::new() };
        let expired = retain::deletable(&generations, keep, spacing, measure, named);
        expired.into_iter().map(|at| generations[at].id).collect()
    }

    /// Returns the measures in the names of checkpoints and their files.
    fn measures_in_names(&self, generations: &[Generation<'_>]) -> retain::MeasuresByName {
        let mut named = retain::MeasuresByName::new();
        for (at, one) in generations.iter().enumerate() {
            let files = self.members(one.id).into_iter().flatten().map(|(rest, ..)| rest);
            for name in std::iter::once(&one.prefix[one.parent.len()..]).chain(files) {
                for measure in measure::measures(name) {
                    let of = named
                        .entry(measure.name)
                        .or_insert(retain::NamedMeasure { good: measure.good, values: Vec::new() });
                    of.values.push(retain::MeasuredGeneration { value: measure.value, at });
                }
            }
        }
        named
    }

    /// Returns the bytes of memory in use; at most the limit.
    #[must_use]
    pub const fn memory_bytes(&self) -> usize {
        self.memory_bytes
    }

    fn find(&self, bucket: u64, name: &str) -> Option<SeriesId> {
        self.ids.get(&bucket)?.get(name).copied()
    }

    fn get_or_add_series(&mut self, bucket: u64, parsed: &layout::CheckpointKey<'_>) -> SeriesId {
        if let Some(id) = self.find(bucket, &parsed.series) {
            return id;
        }
        let id = SeriesId(self.serials);
        self.serials += 1;
        let name: Box<str> = parsed.series.as_str().into();
        self.memory_bytes += series_bytes(&name);
        self.ids.entry(bucket).or_default().insert(name.clone(), id);
        let parent_length = parsed.parent.len();
        let (groups, habits) = (BTreeMap::new(), SeriesHabits::default());
        let series = Series {
            bucket,
            name,
            parent_length,
            groups,
            habits,
            spacing: None,
            is_spacing_uncertain: false,
            newest: None,
        };
        self.series.insert(id, series);
        id
    }

    /// Records that a pointer file declares the checkpoint beside it that was written last complete.
    fn record_pointer(&mut self, at: WriteTime, bucket: u64, parent: &str) {
        let in_parent = |series: &&mut Series| series.bucket == bucket && series.parent() == parent;
        for series in self.series.values_mut().filter(in_parent) {
            let written =
                series.groups.values_mut().filter(|it| it.layout.has_pointer() && it.written() <= at);
            if let Some(group) = written.max_by_key(|group| (group.written(), group.step)) {
                group.mark_pointed(at);
                series.habits.pointed = Some(group.pointer_record(at));
            }
        }
    }

    /// Forgets the oldest groups until there is room; of the one being written only the file names.
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

/// Returns the memory of a series, whose name is stored in it and in the index.
const fn series_bytes(name: &str) -> usize {
    2 * name.len() + size_of::<Series>() + 128
}

impl Series {
    /// Returns the folder of the run.
    fn parent(&self) -> &str {
        &self.name[..self.parent_length]
    }

    /// Adds a new checkpoint; earlier ones are no longer written.
    fn begin_group(&mut self, group: CheckpointGroup, at: WriteTime) {
        for other in self.groups.values_mut().filter(|other| other.written() <= at) {
            other.close();
        }
        let earlier = self.groups.insert(group.prefix.clone(), group);
        assert!(earlier.is_none(), "a checkpoint that begins replaces no other");
    }

    /// Records the interval between a checkpoint and the one written before it.
    fn record_spacing(&mut self, id: GroupId) {
        if self.newest.is_some_and(|(serial, _)| serial == id.serial) {
            return;
        }
        let Some(group) = self.find(id) else { return };
        let position = group.step.unwrap_or(group.first.at_us);
        let gap = self.newest.map(|(_, newest)| position.abs_diff(newest)).filter(|gap| *gap > 0);
        self.spacing = self.spacing.into_iter().chain(gap).min();
        self.newest = Some((id.serial, position));
    }

    fn find(&self, id: GroupId) -> Option<&CheckpointGroup> {
        self.groups.values().find(|group| group.serial == id.serial)
    }

    /// Drops the file names of a checkpoint and keeps their count. Returns the memory that is freed.
    fn drop_names(&mut self, id: GroupId) -> usize {
        let Some(group) = self.groups.values_mut().find(|group| group.serial == id.serial) else { return 0 };
        let (before, tensors) = (group.memory_bytes(), group.size());
        group.drop_names();
        self.habits.recount(tensors, None);
        before - group.memory_bytes()
    }

    /// Returns the number of newer complete checkpoints, if this one is complete.
    fn generation(&self, group: &CheckpointGroup) -> Option<u32> {
        let is_newer =
            |other: &&CheckpointGroup| sort_key(other) > sort_key(group) && other.is_complete(&self.habits);
        group.is_complete(&self.habits).then(|| self.groups.values().filter(is_newer).count() as u32)
    }

    fn generations(&self, id: SeriesId) -> Vec<Generation<'_>> {
        let mut groups: Vec<&CheckpointGroup> = self.groups.values().collect();
        groups.sort_by_key(|group| sort_key(group));
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

    fn view<'a>(
        &self,
        series: SeriesId,
        group: &'a CheckpointGroup,
        generation: Option<u32>,
    ) -> Generation<'a> {
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

/// Returns the sort key: by step if there is one, otherwise by the last write.
const fn sort_key(group: &CheckpointGroup) -> (Option<u64>, WriteTime, u32) {
    (group.step, group.last, group.serial)
}

#[cfg(test)]
mod tests;

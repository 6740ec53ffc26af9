//! Group: the files of one checkpoint, and whether it is complete.
//!
//! A group is complete if the framework's last file was written after all other files with tensors. If the
//! last file came earlier, as with uploads of folders in no order, the group is complete once it is quiet and
//! no earlier group of its run has more files with tensors. Without a last file, it is complete if there are
//! as many files as their names announce, or if writing has ended. In all cases there are weights, and all
//! files that the names of others mention. A group with a file that was rewritten or deleted is complete once
//! these conditions hold again. The deletion of older groups requires certainty in addition: no file was
//! written after the last one.

use super::expected_files::ExpectedFiles;
use super::file_role::FileRole;
use super::incompleteness::Incompleteness;
use super::layout::{CheckpointKey, Layout, is_description, is_small, is_weights};
use super::write_time::WriteTime;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

/// Memory of a file in addition to its name, including its share of a tree node; and memory of a group.
const FILE_BYTES: usize = 64;
const GROUP_BYTES: usize = size_of::<CheckpointGroup>() + 128;

/// A file of a group.
#[derive(Clone, Copy, Debug)]
pub(super) struct GroupFile {
    pub(super) bytes: u64,
    pub(super) at: WriteTime,
}

/// Properties of the groups of a series as a whole.
#[derive(Clone, Debug, Default)]
pub(super) struct SeriesHabits {
    /// True if one of them had a last file.
    pub(super) has_last_file: bool,
    /// True if one of them had the file that the Trainer of transformers writes last.
    pub(super) is_of_trainer: bool,
    /// The latest pointer file beside them that declared a group complete.
    pub(super) pointed: Option<PointerRecord>,
    /// By number of files with tensors: the groups with that number, by start.
    tensors: BTreeMap<u32, BTreeSet<GroupStart>>,
}

/// Start of a group, its step and its serial number.
type GroupStart = (WriteTime, Option<u64>, u32);

/// Number of files with tensors in a group, and its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GroupSize {
    tensors: u32,
    began: GroupStart,
}

impl SeriesHabits {
    /// Updates the counts for a group whose size changes from `before` to `now`.
    pub(super) fn recount(&mut self, before: Option<GroupSize>, now: Option<GroupSize>) {
        if before == now {
            return;
        }
        if let Some(GroupSize { tensors, began }) = before
            && let Some(groups) = self.tensors.get_mut(&tensors)
        {
            groups.remove(&began);
            if groups.is_empty() {
                self.tensors.remove(&tensors);
            }
        }
        if let Some(GroupSize { tensors, began }) = now {
            self.tensors.entry(tensors).or_default().insert(began);
        }
    }

    /// True if an earlier group has more files with tensors than this one, and no other has as many. Later
    /// groups are ignored, because a run may begin to write more files.
    fn has_only_larger(&self, one: GroupSize) -> bool {
        let after = (Bound::Excluded(one.tensors), Bound::Unbounded);
        let is_earlier =
            |groups: &BTreeSet<GroupStart>| groups.first().is_some_and(|began| *began < one.began);
        let mut larger = self.tensors.range(after);
        self.tensors.get(&one.tensors).is_none_or(|alike| alike.len() < 2)
            && larger.any(|(_, groups)| is_earlier(groups))
    }
}

/// Time of a pointer file that declared a group complete, and the content of that group then.
#[derive(Clone, Copy, Debug)]
pub(super) struct PointerRecord {
    pub(super) at: WriteTime,
    /// `None` if files were added afterwards: the group was not complete then.
    pub(super) files: Option<u32>,
    pub(super) tensors: u32,
}

/// Group of files; see the module.
#[derive(Debug)]
pub(super) struct CheckpointGroup {
    /// Serial number among all groups.
    pub(super) serial: u32,
    pub(super) prefix: Box<str>,
    pub(super) layout: Layout,
    pub(super) step: Option<u64>,
    /// By the part of the key after the prefix; `None` if there were too many to remember.
    names: Option<BTreeMap<Box<str>, GroupFile>>,
    names_bytes: usize,
    pub(super) files: u32,
    pub(super) bytes: u64,
    pub(super) first: WriteTime,
    pub(super) last: WriteTime,
    parts: u32,
    wholes: u32,
    /// Parts that are not numbered with a total and are not mere descriptions.
    loose: u32,
    /// Parts that are more than texts and descriptions; and files with weights, among these or others.
    pub(super) tensors: u32,
    weights: u32,
    expected: ExpectedFiles,
    /// Time of the latest part, including late small ones; and time of the latest required part.
    parts_at: WriteTime,
    needed_at: WriteTime,
    /// Time of the latest last file, and time of the latest pointer file that named this group.
    last_file_at: Option<WriteTime>,
    pointed_at: Option<WriteTime>,
    last_files: u32,
    /// True if its folder has the name that the Trainer of transformers uses; and true if the Trainer's last
    /// file is there.
    is_in_trainer_folder: bool,
    has_trainer_state: bool,
    /// Start of the current rewrite, and shards and files with tensors written since.
    rewrite_at: WriteTime,
    rewrite_shards: u32,
    rewrite_tensors: u32,
    needs_last_file: bool,
    /// True if nothing writes it any more: the next group has begun, or it is quiet.
    is_closed: bool,
    /// True if it has not been written for the quiet time.
    is_quiet: bool,
    /// True if a part was deleted.
    has_deletion: bool,
    /// True if it was complete before and is being written again.
    is_rewrite: bool,
    /// True if a file of it carries another step's name: it may be a run and not a checkpoint.
    pub(super) holds_steps: bool,
    /// True if its name or that of a file may distinguish runs or parts.
    pub(super) is_ambiguous: bool,
}

impl CheckpointGroup {
    pub(super) fn new(serial: u32, parsed: &CheckpointKey<'_>, at: WriteTime) -> Self {
        Self {
            serial,
            prefix: parsed.prefix.into(),
            layout: parsed.layout,
            step: parsed.step,
            names: Some(BTreeMap::new()),
            names_bytes: 0,
            files: 0,
            bytes: 0,
            first: at,
            last: at,
            parts: 0,
            wholes: 0,
            loose: 0,
            tensors: 0,
            weights: 0,
            expected: ExpectedFiles::default(),
            parts_at: WriteTime::default(),
            needed_at: WriteTime::default(),
            last_file_at: None,
            pointed_at: None,
            last_files: 0,
            is_in_trainer_folder: parsed.is_in_trainer_folder(),
            has_trainer_state: false,
            rewrite_at: WriteTime::default(),
            rewrite_shards: 0,
            rewrite_tensors: 0,
            needs_last_file: false,
            is_closed: false,
            is_quiet: false,
            has_deletion: false,
            is_rewrite: false,
            holds_steps: false,
            is_ambiguous: false,
        }
    }

    /// True if a file of it is known; always true if there were too many to remember.
    pub(super) fn has(&self, rest: &str) -> bool {
        self.names.as_ref().is_none_or(|names| names.contains_key(rest))
    }

    /// Records the write of a file.
    pub(super) fn record_write(
        &mut self,
        parsed: &CheckpointKey<'_>,
        bytes: u64,
        at: WriteTime,
        habits: &SeriesHabits,
    ) {
        let restarts = self.is_complete(habits) && parsed.role != FileRole::Extra;
        let file = GroupFile { bytes, at };
        let before = self.names.as_mut().and_then(|names| names.insert(parsed.rest.into(), file));
        match before {
            Some(before) => self.bytes -= before.bytes,
            None => {
                self.files += 1;
                self.names_bytes += parsed.rest.len() + FILE_BYTES;
            }
        }
        self.bytes += bytes;
        (self.first, self.last) = (self.first.min(at), self.last.max(at));
        self.needs_last_file |= parsed.needs_last;
        self.holds_steps |= parsed.holds_steps;
        self.is_ambiguous |= parsed.is_ambiguous;
        if parsed.needs_last {
            // The content of a step folder is more informative than its name.
            self.layout = parsed.layout;
        }
        if parsed.role == FileRole::Extra {
            return;
        }
        if before.is_none() {
            self.count_added(parsed);
        }
        self.has_deletion &= parsed.role != FileRole::Last && (self.needs_last_file || habits.has_last_file);
        if self.is_late(parsed, before) {
            self.parts_at = self.parts_at.max(at);
            return;
        }
        // The first write of a file during a rewrite does not start another rewrite.
        if restarts && before.is_some_and(|file| file.at >= self.rewrite_at) {
            (self.is_rewrite, self.rewrite_at) = (true, at);
            (self.rewrite_shards, self.rewrite_tensors) = (0, 0);
        }
        (self.is_closed, self.is_quiet) = (false, false);
        if parsed.role == FileRole::Last {
            self.last_file_at = self.last_file_at.max(Some(at));
        } else {
            self.parts_at = self.parts_at.max(at);
            self.needed_at = self.needed_at.max(at);
        }
        if before.is_none_or(|file| file.at < self.rewrite_at) {
            self.rewrite_shards += u32::from(is_shard(parsed));
            self.rewrite_tensors += u32::from(is_tensor(parsed));
        }
        let is_last_missing = self.last_file_at.is_some_and(|last| last < self.rewrite_at);
        self.is_rewrite &= self.rewrite_tensors < self.tensors || is_last_missing;
    }

    /// True if a part does not affect completeness: a text or a description that is new, or that came after
    /// the last file.
    fn is_late(&self, parsed: &CheckpointKey<'_>, before: Option<GroupFile>) -> bool {
        let is_before_last = |file: GroupFile| self.last_sign().is_none_or(|last| file.at <= last);
        is_small(parsed) && !before.is_some_and(is_before_last)
    }

    /// Counts a new file.
    fn count_added(&mut self, parsed: &CheckpointKey<'_>) {
        self.expected.add(parsed);
        self.has_trainer_state |= parsed.is_trainer_state();
        self.tally(parsed, 1);
    }

    /// Counts a removed file.
    fn count_removed(&mut self, parsed: &CheckpointKey<'_>) {
        self.expected.remove(parsed);
        self.has_trainer_state &= !parsed.is_trainer_state();
        self.tally(parsed, -1);
    }

    /// Adds `by` to the counts of such files.
    fn tally(&mut self, parsed: &CheckpointKey<'_>, by: i32) {
        let is_part = parsed.role != FileRole::Last;
        for (count, is_such) in [
            (&mut self.last_files, !is_part),
            (&mut self.parts, is_part),
            (&mut self.wholes, parsed.role == FileRole::Whole),
            (&mut self.loose, is_unnumbered(parsed)),
            (&mut self.tensors, is_tensor(parsed)),
            (&mut self.weights, is_weights(parsed)),
        ] {
            if is_such {
                *count = count.saturating_add_signed(by);
            }
        }
    }

    /// Records the deletion of a file. Returns true if the group had it.
    pub(super) fn record_delete(&mut self, parsed: &CheckpointKey<'_>) -> bool {
        let Some(names) = &mut self.names else {
            // The remaining files are unknown, so the group is not complete.
            self.files = self.files.saturating_sub(1);
            self.has_deletion = true;
            return true;
        };
        assert_eq!(names.len(), self.files as usize, "each file of a group has a name");
        let Some(file) = names.remove(parsed.rest) else { return false };
        self.files -= 1;
        self.bytes -= file.bytes;
        self.names_bytes -= parsed.rest.len() + FILE_BYTES;
        if parsed.role == FileRole::Extra {
            return true;
        }
        self.count_removed(parsed);
        if parsed.role != FileRole::Last {
            self.has_deletion |= !self.is_late(parsed, Some(file));
        } else if self.last_files == 0 {
            self.last_file_at = None;
        }
        if file.at >= self.rewrite_at {
            self.rewrite_shards = self.rewrite_shards.saturating_sub(u32::from(is_shard(parsed)));
            self.rewrite_tensors = self.rewrite_tensors.saturating_sub(u32::from(is_tensor(parsed)));
        }
        true
    }

    /// True if all files are there.
    pub(super) fn is_complete(&self, habits: &SeriesHabits) -> bool {
        self.incompleteness(habits).is_none()
    }

    /// True if all files are there beyond doubt.
    pub(super) fn is_certain(&self, habits: &SeriesHabits) -> bool {
        self.uncertainty(habits).is_none()
    }

    /// Returns why it is not complete; `None` if it is.
    pub(super) fn incompleteness(&self, habits: &SeriesHabits) -> Option<Incompleteness> {
        if self.tensors == 0 {
            return Some(Incompleteness::Weights);
        }
        if self.has_deletion {
            return Some(Incompleteness::Deleted);
        }
        if !self.expected.has_shards() {
            return Some(Incompleteness::Shards);
        }
        let is_of_trainer = self.is_of_trainer(habits);
        if is_of_trainer && self.weights == 0 {
            return Some(Incompleteness::Weights);
        }
        if self.needs_last(habits) {
            let has_last = self.last_file_at.is_some() && self.expected.has_metadata();
            if !has_last || (is_of_trainer && !self.has_trainer_state) {
                return Some(Incompleteness::LastFile);
            }
            if self.is_sealed() && !is_of_trainer {
                return None;
            }
            return self.order_incompleteness(habits, Incompleteness::AfterLast);
        }
        if let (true, Some(pointed)) = (self.layout.has_pointer(), habits.pointed) {
            if self.is_pointed() || self.matches_pointed(&pointed) {
                return None;
            }
            return self.order_incompleteness(habits, Incompleteness::LastFile);
        }
        let are_all = u64::from(self.rewrite_shards) >= self.expected.shards();
        let is_all = match self.layout {
            _ if self.wholes == self.parts => true,
            Layout::Safetensors => self.is_sealed() || are_all,
            // In a step folder optimizer state may follow, which announces no total.
            Layout::Plain if self.expected.shards() > 0 && self.loose == 0 && are_all => true,
            _ => self.is_closed,
        };
        (!is_all).then_some(Incompleteness::MaybeUnfinished)
    }

    /// Returns why a group with all named files, which its framework does not declare complete, is not. An
    /// upload from a disk keeps no order; its repetition, or a smaller checkpoint than others, could pass
    /// for an interrupted one.
    fn order_incompleteness(&self, habits: &SeriesHabits, early: Incompleteness) -> Option<Incompleteness> {
        let is_in_order = self.is_sealed() && self.needs_last(habits);
        if !is_in_order && self.is_rewrite {
            return Some(Incompleteness::Rewritten);
        }
        if !is_in_order && !self.is_quiet {
            return Some(early);
        }
        (!self.is_as_large(habits)).then_some(Incompleteness::FewerTensors)
    }

    /// Returns why it may be incomplete: the last file is missing or did not come last, and only the quiet
    /// time indicates completeness.
    pub(super) fn uncertainty(&self, habits: &SeriesHabits) -> Option<Incompleteness> {
        if let Some(missing) = self.incompleteness(habits) {
            return Some(missing);
        }
        let needs_weights =
            matches!(self.layout, Layout::Transformers | Layout::DeepSpeed | Layout::Megatron);
        if needs_weights && self.weights == 0 {
            return Some(Incompleteness::Weights);
        }
        if self.needs_last(habits) {
            return (self.last_file_at < Some(self.parts_at)).then_some(Incompleteness::AfterLast);
        }
        let pointed = habits.pointed.filter(|_| self.layout.has_pointer())?;
        if self.pointed_at >= Some(self.parts_at) {
            return None;
        }
        let is_like = pointed.files == Some(self.files) && self.last <= pointed.at && !self.is_rewrite;
        (!is_like).then_some(Incompleteness::LastFile)
    }

    /// True if the framework's last file came last, apart from texts and descriptions.
    fn is_sealed(&self) -> bool {
        self.last_file_at.is_some_and(|at| at >= self.needed_at)
    }

    /// True if a pointer file named the group after its last required part was written.
    pub(super) fn is_pointed(&self) -> bool {
        self.pointed_at.is_some_and(|at| at >= self.needed_at)
    }

    /// True if it was there when another group was named, with as many files with tensors.
    fn matches_pointed(&self, pointed: &PointerRecord) -> bool {
        pointed.files.is_some()
            && pointed.tensors == self.tensors
            && self.needed_at <= pointed.at
            && !self.is_rewrite
    }

    /// Returns the time of the last sign that it is complete.
    fn last_sign(&self) -> Option<WriteTime> {
        self.last_file_at.max(self.pointed_at)
    }

    /// True if no earlier group of its run has more files with tensors, or another has as many: two uploads
    /// do not stop at the same file. For Orbax the number carries no information, as it varies.
    fn is_as_large(&self, habits: &SeriesHabits) -> bool {
        self.layout == Layout::Orbax || !self.size().is_some_and(|size| habits.has_only_larger(size))
    }

    /// True if its framework writes a last file.
    pub(super) fn needs_last(&self, habits: &SeriesHabits) -> bool {
        self.needs_last_file || (habits.has_last_file && self.layout != Layout::Safetensors)
    }

    /// True if the Trainer of transformers writes it.
    fn is_of_trainer(&self, habits: &SeriesHabits) -> bool {
        self.is_in_trainer_folder && (self.has_trainer_state || habits.is_of_trainer)
    }

    /// Returns the number of files with tensors and the start, if the file names are remembered.
    pub(super) fn size(&self) -> Option<GroupSize> {
        let began = (self.first, self.step, self.serial);
        self.names.is_some().then_some(GroupSize { tensors: self.tensors, began })
    }

    /// Records that a pointer file declares this group complete.
    pub(super) fn mark_pointed(&mut self, at: WriteTime) {
        if self.parts > 0 {
            self.pointed_at = self.pointed_at.max(Some(at));
        }
        self.has_deletion = false;
    }

    /// Returns the content at the time it is named.
    pub(super) fn pointer_record(&self, at: WriteTime) -> PointerRecord {
        PointerRecord { at, files: Some(self.files), tensors: self.tensors }
    }

    /// Records that the next group has begun.
    pub(super) fn close(&mut self) {
        self.is_closed = true;
    }

    /// Records that the quiet time has passed without a write.
    pub(super) fn mark_quiet(&mut self) {
        (self.is_closed, self.is_quiet) = (true, true);
    }

    /// Returns the time of the latest required file.
    pub(super) fn written(&self) -> WriteTime {
        self.needed_at.max(self.last_file_at.unwrap_or_default())
    }

    /// Returns the time of the oldest of the current files; if these are not remembered, that of the first
    /// write.
    pub(super) fn oldest(&self) -> WriteTime {
        let oldest = self.names.as_ref().and_then(|names| names.values().map(|file| file.at).min());
        oldest.unwrap_or(self.first)
    }

    /// Returns the files by the part of the key after the prefix, if they are remembered.
    pub(super) fn names(&self) -> Option<&BTreeMap<Box<str>, GroupFile>> {
        self.names.as_ref()
    }

    /// Drops the file names and keeps their count.
    pub(super) fn drop_names(&mut self) {
        self.names = None;
        self.names_bytes = 0;
    }

    /// Returns the bytes of memory in use.
    pub(super) fn memory_bytes(&self) -> usize {
        let names = if self.names.is_some() { self.names_bytes } else { 0 };
        GROUP_BYTES + self.prefix.len() + names + self.expected.memory_bytes()
    }
}

/// True if nothing indicates when all parts like this one are there.
fn is_unnumbered(parsed: &CheckpointKey<'_>) -> bool {
    parsed.role == FileRole::Part && !is_description(parsed.rest)
}

fn is_shard(parsed: &CheckpointKey<'_>) -> bool {
    matches!(parsed.role, FileRole::Shard { .. })
}

/// True if a part is more than a text or a description.
pub(super) fn is_tensor(parsed: &CheckpointKey<'_>) -> bool {
    matches!(parsed.role, FileRole::Part | FileRole::Whole | FileRole::Shard { .. }) && !is_small(parsed)
}

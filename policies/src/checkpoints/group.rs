//! Group: the files of one checkpoint, and whether it is complete.
//!
//! A group is complete if the framework's last file was written after all other files with tensors. If the
//! last file came earlier, as with uploads of folders in no order, the group is complete once it is quiet and
//! no earlier group of its run has more files with tensors. Without a last file, it is complete if there are
//! as many files as their names announce, or if writing has ended. In all cases there are weights, and all
//! files that the names of others mention. A group with a file that was rewritten or deleted is complete once
//! these conditions hold again. The deletion of older groups requires certainty in addition: no file was
//! written after the last one.

use super::lack::Lack;
use super::layout::{Layout, Place, Role, is_aside, is_small, is_weights};
use super::moment::Moment;
use super::named::Named;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

/// Memory of a file in addition to its name, including its share of a tree node; and memory of a group.
const FILE_BYTES: usize = 64;
const GROUP_BYTES: usize = size_of::<Group>() + 128;

/// A file of a group.
#[derive(Clone, Copy, Debug)]
pub(super) struct File {
    pub(super) bytes: u64,
    pub(super) at: Moment,
}

/// Properties of the groups of a series as a whole.
#[derive(Clone, Debug, Default)]
pub(super) struct Habits {
    /// True if one of them had a last file.
    pub(super) is_marked: bool,
    /// True if one of them had the file that the Trainer of transformers writes last.
    pub(super) is_of_trainer: bool,
    /// The latest pointer file beside them that declared a group complete.
    pub(super) pointed: Option<Pointed>,
    /// By number of files with tensors: the groups with that number, by start.
    tensors: BTreeMap<u32, BTreeSet<Began>>,
}

/// Start of a group, its step and its serial number.
type Began = (Moment, Option<u64>, u32);

/// Number of files with tensors in a group, and its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Size {
    tensors: u32,
    began: Began,
}

impl Habits {
    /// Updates the counts for a group whose size changes from `before` to `now`.
    pub(super) fn recount(&mut self, before: Option<Size>, now: Option<Size>) {
        if before == now {
            return;
        }
        if let Some(Size { tensors, began }) = before
            && let Some(groups) = self.tensors.get_mut(&tensors)
        {
            groups.remove(&began);
            if groups.is_empty() {
                self.tensors.remove(&tensors);
            }
        }
        if let Some(Size { tensors, began }) = now {
            self.tensors.entry(tensors).or_default().insert(began);
        }
    }

    /// True if an earlier group has more files with tensors than this one, and no other has as many. Later
    /// groups are ignored, because a run may begin to write more files.
    fn has_only_larger(&self, one: Size) -> bool {
        let after = (Bound::Excluded(one.tensors), Bound::Unbounded);
        let is_earlier = |groups: &BTreeSet<Began>| groups.first().is_some_and(|began| *began < one.began);
        let mut larger = self.tensors.range(after);
        self.tensors.get(&one.tensors).is_none_or(|alike| alike.len() < 2)
            && larger.any(|(_, groups)| is_earlier(groups))
    }
}

/// Time of a pointer file that declared a group complete, and the content of that group then.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pointed {
    pub(super) at: Moment,
    /// `None` if files were added afterwards: the group was not complete then.
    pub(super) files: Option<u32>,
    pub(super) tensors: u32,
}

/// Group of files; see the module.
#[derive(Debug)]
pub(super) struct Group {
    /// Serial number among all groups.
    pub(super) serial: u32,
    pub(super) prefix: Box<str>,
    pub(super) layout: Layout,
    pub(super) step: Option<u64>,
    /// By the part of the key after the prefix; `None` if there were too many to remember.
    names: Option<BTreeMap<Box<str>, File>>,
    names_bytes: usize,
    pub(super) files: u32,
    pub(super) bytes: u64,
    pub(super) first: Moment,
    pub(super) last: Moment,
    parts: u32,
    wholes: u32,
    /// Parts that are not numbered with a total and are not mere descriptions.
    loose: u32,
    /// Parts that are more than texts and descriptions; and files with weights, among these or others.
    pub(super) tensors: u32,
    weights: u32,
    named: Named,
    /// Time of the latest part, including late small ones; and time of the latest required part.
    parts_at: Moment,
    needed_at: Moment,
    /// Time of the latest last file, and time of the latest pointer file that named this group.
    last_file_at: Option<Moment>,
    pointed_at: Option<Moment>,
    last_files: u32,
    /// True if its folder has the name that the Trainer of transformers uses; and true if the Trainer's last
    /// file is there.
    is_in_trainers: bool,
    has_trainer_state: bool,
    /// Start of the current rewrite, and shards and files with tensors written since.
    round_at: Moment,
    round_shards: u32,
    round_tensors: u32,
    wants_last: bool,
    /// True if nothing writes it any more: the next group has begun, or it is quiet.
    is_closed: bool,
    /// True if it has not been written for the quiet time.
    is_quiet: bool,
    /// True if a part was deleted.
    is_torn: bool,
    /// True if it was complete before and is being written again.
    is_again: bool,
    /// True if a file of it carries another step's name: it may be a run and not a checkpoint.
    pub(super) holds_steps: bool,
    /// True if its name or that of a file may distinguish runs or parts.
    pub(super) in_doubt: bool,
}

impl Group {
    pub(super) fn new(serial: u32, place: &Place<'_>, at: Moment) -> Self {
        Self {
            serial,
            prefix: place.prefix.into(),
            layout: place.layout,
            step: place.step,
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
            named: Named::default(),
            parts_at: Moment::default(),
            needed_at: Moment::default(),
            last_file_at: None,
            pointed_at: None,
            last_files: 0,
            is_in_trainers: place.is_in_trainers(),
            has_trainer_state: false,
            round_at: Moment::default(),
            round_shards: 0,
            round_tensors: 0,
            wants_last: false,
            is_closed: false,
            is_quiet: false,
            is_torn: false,
            is_again: false,
            holds_steps: false,
            in_doubt: false,
        }
    }

    /// True if a file of it is known; always true if there were too many to remember.
    pub(super) fn has(&self, rest: &str) -> bool {
        self.names.as_ref().is_none_or(|names| names.contains_key(rest))
    }

    /// Records the write of a file.
    pub(super) fn wrote(&mut self, place: &Place<'_>, bytes: u64, at: Moment, habits: &Habits) {
        let begins_anew = self.is_complete(habits) && place.role != Role::Extra;
        let file = File { bytes, at };
        let before = self.names.as_mut().and_then(|names| names.insert(place.rest.into(), file));
        match before {
            Some(before) => self.bytes -= before.bytes,
            None => {
                self.files += 1;
                self.names_bytes += place.rest.len() + FILE_BYTES;
            }
        }
        self.bytes += bytes;
        (self.first, self.last) = (self.first.min(at), self.last.max(at));
        self.wants_last |= place.wants_last;
        self.holds_steps |= place.holds_steps;
        self.in_doubt |= place.in_doubt;
        if place.wants_last {
            // The content of a step folder is more informative than its name.
            self.layout = place.layout;
        }
        if place.role == Role::Extra {
            return;
        }
        if before.is_none() {
            self.count(place);
        }
        self.is_torn &= place.role != Role::Last && (self.wants_last || habits.is_marked);
        if self.is_late(place, before) {
            self.parts_at = self.parts_at.max(at);
            return;
        }
        // The first write of a file during a rewrite does not start another rewrite.
        if begins_anew && before.is_some_and(|file| file.at >= self.round_at) {
            (self.is_again, self.round_at) = (true, at);
            (self.round_shards, self.round_tensors) = (0, 0);
        }
        (self.is_closed, self.is_quiet) = (false, false);
        if place.role == Role::Last {
            self.last_file_at = self.last_file_at.max(Some(at));
        } else {
            self.parts_at = self.parts_at.max(at);
            self.needed_at = self.needed_at.max(at);
        }
        if before.is_none_or(|file| file.at < self.round_at) {
            self.round_shards += u32::from(is_shard(place));
            self.round_tensors += u32::from(is_tensor(place));
        }
        let lacks_last = self.last_file_at.is_some_and(|last| last < self.round_at);
        self.is_again &= self.round_tensors < self.tensors || lacks_last;
    }

    /// True if a part does not affect completeness: a text or a description that is new, or that came after
    /// the last file.
    fn is_late(&self, place: &Place<'_>, before: Option<File>) -> bool {
        let is_part_of_it = |file: File| self.last_said().is_none_or(|last| file.at <= last);
        is_small(place) && !before.is_some_and(is_part_of_it)
    }

    /// Counts a new file.
    fn count(&mut self, place: &Place<'_>) {
        self.named.came(place);
        self.has_trainer_state |= place.is_trainer_state();
        self.tally(place, 1);
    }

    /// Counts a removed file.
    fn discount(&mut self, place: &Place<'_>) {
        self.named.went(place);
        self.has_trainer_state &= !place.is_trainer_state();
        self.tally(place, -1);
    }

    /// Adds `by` to the counts of such files.
    fn tally(&mut self, place: &Place<'_>, by: i32) {
        let is_part = place.role != Role::Last;
        for (count, is_such) in [
            (&mut self.last_files, !is_part),
            (&mut self.parts, is_part),
            (&mut self.wholes, place.role == Role::Whole),
            (&mut self.loose, is_loose(place)),
            (&mut self.tensors, is_tensor(place)),
            (&mut self.weights, is_weights(place)),
        ] {
            if is_such {
                *count = count.saturating_add_signed(by);
            }
        }
    }

    /// Records the deletion of a file. Returns true if the group had it.
    pub(super) fn deleted(&mut self, place: &Place<'_>) -> bool {
        let Some(names) = &mut self.names else {
            // The remaining files are unknown, so the group is not complete.
            self.files = self.files.saturating_sub(1);
            self.is_torn = true;
            return true;
        };
        let Some(file) = names.remove(place.rest) else { return false };
        self.files -= 1;
        self.bytes -= file.bytes;
        self.names_bytes -= place.rest.len() + FILE_BYTES;
        if place.role == Role::Extra {
            return true;
        }
        self.discount(place);
        if place.role != Role::Last {
            self.is_torn |= !self.is_late(place, Some(file));
        } else if self.last_files == 0 {
            self.last_file_at = None;
        }
        if file.at >= self.round_at {
            self.round_shards = self.round_shards.saturating_sub(u32::from(is_shard(place)));
            self.round_tensors = self.round_tensors.saturating_sub(u32::from(is_tensor(place)));
        }
        true
    }

    /// True if all files are there.
    pub(super) fn is_complete(&self, habits: &Habits) -> bool {
        self.lack(habits).is_none()
    }

    /// True if all files are there beyond doubt.
    pub(super) fn is_certain(&self, habits: &Habits) -> bool {
        self.doubt(habits).is_none()
    }

    /// Returns why it is not complete; `None` if it is.
    pub(super) fn lack(&self, habits: &Habits) -> Option<Lack> {
        if self.tensors == 0 {
            return Some(Lack::Weights);
        }
        if self.is_torn {
            return Some(Lack::Deleted);
        }
        if !self.named.has_shards() {
            return Some(Lack::Shards);
        }
        let is_of_trainer = self.is_of_trainer(habits);
        if is_of_trainer && self.weights == 0 {
            return Some(Lack::Weights);
        }
        if self.is_marked(habits) {
            let has_last = self.last_file_at.is_some() && self.named.has_metadata();
            if !has_last || (is_of_trainer && !self.has_trainer_state) {
                return Some(Lack::Last);
            }
            return self.lack_of_order(habits, Lack::Late, self.is_sealed() && !is_of_trainer);
        }
        if let (true, Some(pointed)) = (self.layout.is_pointed(), habits.pointed) {
            return self.lack_of_order(habits, Lack::Last, self.is_pointed() || self.is_like(&pointed));
        }
        let are_all = u64::from(self.round_shards) >= self.named.shards();
        let is_all = match self.layout {
            _ if self.wholes == self.parts => true,
            Layout::Safetensors => self.is_sealed() || are_all,
            // In a step folder optimizer state may follow, which announces no total.
            Layout::Plain if self.named.shards() > 0 && self.loose == 0 && are_all => true,
            _ => self.is_closed,
        };
        (!is_all).then_some(Lack::Open)
    }

    /// Returns why a group with all named files is not complete, unless its framework declares it complete.
    /// An upload from a disk keeps no order; its repetition, or a smaller checkpoint than others, could pass
    /// for an interrupted one.
    fn lack_of_order(&self, habits: &Habits, early: Lack, is_said: bool) -> Option<Lack> {
        if is_said {
            return None;
        }
        let is_in_order = self.is_sealed() && self.is_marked(habits);
        if !is_in_order && self.is_again {
            return Some(Lack::Again);
        }
        if !is_in_order && !self.is_quiet {
            return Some(early);
        }
        (!self.is_as_large(habits)).then_some(Lack::Fewer)
    }

    /// Returns why it may be incomplete: the last file is missing or did not come last, and only the quiet
    /// time indicates completeness.
    pub(super) fn doubt(&self, habits: &Habits) -> Option<Lack> {
        if let Some(lack) = self.lack(habits) {
            return Some(lack);
        }
        let wants_weights =
            matches!(self.layout, Layout::Transformers | Layout::DeepSpeed | Layout::Megatron);
        if wants_weights && self.weights == 0 {
            return Some(Lack::Weights);
        }
        if self.is_marked(habits) {
            return (self.last_file_at < Some(self.parts_at)).then_some(Lack::Late);
        }
        let pointed = habits.pointed.filter(|_| self.layout.is_pointed())?;
        if self.pointed_at >= Some(self.parts_at) {
            return None;
        }
        let is_like = pointed.files == Some(self.files) && self.last <= pointed.at && !self.is_again;
        (!is_like).then_some(Lack::Last)
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
    fn is_like(&self, pointed: &Pointed) -> bool {
        pointed.files.is_some()
            && pointed.tensors == self.tensors
            && self.needed_at <= pointed.at
            && !self.is_again
    }

    /// Returns the time of the last sign that it is complete.
    fn last_said(&self) -> Option<Moment> {
        self.last_file_at.max(self.pointed_at)
    }

    /// True if no earlier group of its run has more files with tensors, or another has as many: two uploads
    /// do not stop at the same file. For Orbax the number carries no information, as it varies.
    fn is_as_large(&self, habits: &Habits) -> bool {
        self.layout == Layout::Orbax || !self.size().is_some_and(|size| habits.has_only_larger(size))
    }

    /// True if its framework writes a last file.
    pub(super) fn is_marked(&self, habits: &Habits) -> bool {
        self.wants_last || (habits.is_marked && self.layout != Layout::Safetensors)
    }

    /// True if the Trainer of transformers writes it.
    fn is_of_trainer(&self, habits: &Habits) -> bool {
        self.is_in_trainers && (self.has_trainer_state || habits.is_of_trainer)
    }

    /// Returns the number of files with tensors and the start, if the file names are remembered.
    pub(super) fn size(&self) -> Option<Size> {
        let began = (self.first, self.step, self.serial);
        self.names.is_some().then_some(Size { tensors: self.tensors, began })
    }

    /// Records that a pointer file declares this group complete.
    pub(super) fn point_at(&mut self, at: Moment) {
        if self.parts > 0 {
            self.pointed_at = self.pointed_at.max(Some(at));
        }
        self.is_torn = false;
    }

    /// Returns the content at the time it is named.
    pub(super) fn pointed(&self, at: Moment) -> Pointed {
        Pointed { at, files: Some(self.files), tensors: self.tensors }
    }

    /// Records that the next group has begun.
    pub(super) fn close(&mut self) {
        self.is_closed = true;
    }

    /// Records that the quiet time has passed without a write.
    pub(super) fn settle(&mut self) {
        (self.is_closed, self.is_quiet) = (true, true);
    }

    /// Returns the time of the latest required file.
    pub(super) fn written(&self) -> Moment {
        self.needed_at.max(self.last_file_at.unwrap_or_default())
    }

    /// Returns the time of the oldest of the current files; if these are not remembered, that of the first
    /// write.
    pub(super) fn oldest(&self) -> Moment {
        let oldest = self.names.as_ref().and_then(|names| names.values().map(|file| file.at).min());
        oldest.unwrap_or(self.first)
    }

    /// Returns the files by the part of the key after the prefix, if they are remembered.
    pub(super) fn names(&self) -> Option<&BTreeMap<Box<str>, File>> {
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
        GROUP_BYTES + self.prefix.len() + names + self.named.memory_bytes()
    }
}

/// True if nothing indicates when all parts like this one are there.
fn is_loose(place: &Place<'_>) -> bool {
    place.role == Role::Part && !is_aside(place.rest)
}

fn is_shard(place: &Place<'_>) -> bool {
    matches!(place.role, Role::Shard { .. })
}

/// True if a part is more than a text or a description.
pub(super) fn is_tensor(place: &Place<'_>) -> bool {
    matches!(place.role, Role::Part | Role::Whole | Role::Shard { .. }) && !is_small(place)
}

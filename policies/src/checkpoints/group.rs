//! A group: the files of one checkpoint, and whether they are all there.
//!
//! Complete means: what its framework writes last was written after all else that holds tensors; or before,
//! as uploads of folders do that keep no order, and it is quiet and no earlier one of its run has more of
//! these; without such a file, that there are as many as their names say, or that writing has ended. Always
//! there are weights, and all files of which names of others speak. A group of which a file was written again
//! or deleted is complete once that holds anew. What the deletion of older ones rests on is certain besides:
//! nothing of it came after what is written last.

use super::lack::Lack;
use super::layout::{Layout, Place, Role, is_aside, is_small, is_weights};
use super::moment::Moment;
use super::named::Named;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

/// Memory of a file beside its name, its part of a node included; and of a group.
const FILE_BYTES: usize = 64;
const GROUP_BYTES: usize = size_of::<Group>() + 128;

/// A file of a group.
#[derive(Clone, Copy, Debug)]
pub(super) struct File {
    pub(super) bytes: u64,
    pub(super) at: Moment,
}

/// What is known of all groups of a series.
#[derive(Clone, Debug, Default)]
pub(super) struct Habits {
    /// One of them had a file that is written last.
    pub(super) is_marked: bool,
    /// One of them had what the Trainer of transformers writes last.
    pub(super) is_of_trainer: bool,
    /// A file beside them said which one is complete.
    pub(super) pointed: Option<Pointed>,
    /// By how many files with tensors they have, which began when.
    tensors: BTreeMap<u32, BTreeSet<Began>>,
}

/// When a group began, and which one it is.
type Began = (Moment, Option<u64>, u32);

/// How many files with tensors a group has, and when it began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Size {
    tensors: u32,
    began: Began,
}

impl Habits {
    /// A group had this size, and has that one now.
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

    /// Whether a group that began earlier has more files with tensors than this one, and none has as many.
    /// What began later may have more habits.
    fn has_only_larger(&self, one: Size) -> bool {
        let after = (Bound::Excluded(one.tensors), Bound::Unbounded);
        let is_earlier = |groups: &BTreeSet<Began>| groups.first().is_some_and(|began| *began < one.began);
        let mut larger = self.tensors.range(after);
        self.tensors.get(&one.tensors).is_none_or(|alike| alike.len() < 2)
            && larger.any(|(_, groups)| is_earlier(groups))
    }
}

/// When a file beside the groups said that one of them is complete, and what that had.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pointed {
    pub(super) at: Moment,
    /// Nothing if more came to it afterwards: then it was not complete.
    pub(super) files: Option<u32>,
    pub(super) tensors: u32,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Group {
    /// Which one it is of all that there were.
    pub(super) serial: u32,
    pub(super) prefix: Box<str>,
    pub(super) layout: Layout,
    pub(super) step: Option<u64>,
    /// By what follows the prefix; nothing when there were too many to be remembered.
    names: Option<BTreeMap<Box<str>, File>>,
    names_bytes: usize,
    pub(super) files: u32,
    pub(super) bytes: u64,
    pub(super) first: Moment,
    pub(super) last: Moment,
    parts: u32,
    wholes: u32,
    /// Parts that neither say how many they are nor only describe others.
    loose: u32,
    /// Parts that are more than a text or a description; and of these or others those with weights.
    pub(super) tensors: u32,
    weights: u32,
    named: Named,
    /// When the latest part was written, be it a small one that came late; and the latest of those that have
    /// to be there.
    parts_at: Moment,
    needed_at: Moment,
    /// When the latest of the files that come last was, and when one beside the groups named this one.
    last_file_at: Option<Moment>,
    pointed_at: Option<Moment>,
    last_files: u32,
    /// Whether its folder is called as the Trainer of transformers does, and whether what that writes last is
    /// there.
    is_in_trainers: bool,
    has_trainer_state: bool,
    /// Since when it is written again, and how many shards and files with tensors were.
    round_at: Moment,
    round_shards: u32,
    round_tensors: u32,
    wants_last: bool,
    /// The next one has begun, or it is quiet: nobody writes it any more.
    is_closed: bool,
    /// Nobody has written it for long.
    is_quiet: bool,
    /// A part was deleted.
    is_torn: bool,
    /// It was complete before and is written again.
    is_again: bool,
    /// A file of it had the name of another step: it may be a run, and no checkpoint.
    pub(super) holds_steps: bool,
    /// Its name, or that of a file of it, may tell runs or parts apart.
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

    /// Whether a file of it is known; all are when there were too many to be remembered.
    pub(super) fn has(&self, rest: &str) -> bool {
        self.names.as_ref().is_none_or(|names| names.contains_key(rest))
    }

    /// A file of it was written.
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
            // What is in a step's folder says more than what the folder is called.
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
        // What was not written yet when all is written again does not begin that anew.
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

    /// Whether a part says nothing against its group's being complete: a text or a description that is new,
    /// or came when what is written last was there.
    fn is_late(&self, place: &Place<'_>, before: Option<File>) -> bool {
        let is_part_of_it = |file: File| self.last_said().is_none_or(|last| file.at <= last);
        is_small(place) && !before.is_some_and(is_part_of_it)
    }

    /// A file has come that was not there.
    fn count(&mut self, place: &Place<'_>) {
        self.named.came(place);
        self.has_trainer_state |= place.is_trainer_state();
        self.tally(place, 1);
    }

    /// One has gone.
    fn discount(&mut self, place: &Place<'_>) {
        self.named.went(place);
        self.has_trainer_state &= !place.is_trainer_state();
        self.tally(place, -1);
    }

    /// There are so many more of such files, or fewer.
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

    /// A file of it was deleted. Says whether it had it.
    pub(super) fn deleted(&mut self, place: &Place<'_>) -> bool {
        let Some(names) = &mut self.names else {
            // It is not known which files those are: what is left of it is not whole.
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

    /// Whether all of it is there.
    pub(super) fn is_complete(&self, habits: &Habits) -> bool {
        self.lack(habits).is_none()
    }

    /// Whether all of it is there, whoever doubts it.
    pub(super) fn is_certain(&self, habits: &Habits) -> bool {
        self.doubt(habits).is_none()
    }

    /// Why it is not complete.
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
            // In a step's folder state of an optimizer may follow, which says nothing of itself.
            Layout::Plain if self.named.shards() > 0 && self.loose == 0 && are_all => true,
            _ => self.is_closed,
        };
        (!is_all).then_some(Lack::Open)
    }

    /// Why one is not complete of which all names are there, unless its framework says that it is. Whoever
    /// uploads a checkpoint from a disk keeps no order; a second time that would pass for one that was not
    /// finished, and so would one that is smaller than others.
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

    /// Why it may not be whole: what is written last was not, or not after all else, and only nobody has
    /// written it for long.
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

    /// Whether what its framework writes last came last, but for texts and descriptions.
    fn is_sealed(&self) -> bool {
        self.last_file_at.is_some_and(|at| at >= self.needed_at)
    }

    /// Whether a file beside the groups named it when it was there.
    pub(super) fn is_pointed(&self) -> bool {
        self.pointed_at.is_some_and(|at| at >= self.needed_at)
    }

    /// Whether it was there when another one was named, with as many files.
    fn is_like(&self, pointed: &Pointed) -> bool {
        pointed.files.is_some()
            && pointed.tensors == self.tensors
            && self.needed_at <= pointed.at
            && !self.is_again
    }

    /// When it was said last that it is all there.
    fn last_said(&self) -> Option<Moment> {
        self.last_file_at.max(self.pointed_at)
    }

    /// Whether no earlier one of its run has more files with tensors, or one has as many: two uploads do not
    /// break off at the same place. Orbax's say nothing, as it writes as many as it likes.
    fn is_as_large(&self, habits: &Habits) -> bool {
        self.layout == Layout::Orbax || !self.size().is_some_and(|size| habits.has_only_larger(size))
    }

    /// Whether its framework writes such a file.
    pub(super) fn is_marked(&self, habits: &Habits) -> bool {
        self.wants_last || (habits.is_marked && self.layout != Layout::Safetensors)
    }

    /// Whether the Trainer of transformers writes it.
    fn is_of_trainer(&self, habits: &Habits) -> bool {
        self.is_in_trainers && (self.has_trainer_state || habits.is_of_trainer)
    }

    /// How many files with tensors it has, and when it began, if files are told apart that are written again.
    pub(super) fn size(&self) -> Option<Size> {
        let began = (self.first, self.step, self.serial);
        self.names.is_some().then_some(Size { tensors: self.tensors, began })
    }

    /// A file beside the groups says that this one is complete.
    pub(super) fn point_at(&mut self, at: Moment) {
        if self.parts > 0 {
            self.pointed_at = self.pointed_at.max(Some(at));
        }
        self.is_torn = false;
    }

    /// What it has when it is named.
    pub(super) fn pointed(&self, at: Moment) -> Pointed {
        Pointed { at, files: Some(self.files), tensors: self.tensors }
    }

    /// The next one has begun.
    pub(super) fn close(&mut self) {
        self.is_closed = true;
    }

    /// Nobody has written it for long.
    pub(super) fn settle(&mut self) {
        (self.is_closed, self.is_quiet) = (true, true);
    }

    /// When the latest of its files was written that has to be there.
    pub(super) fn written(&self) -> Moment {
        self.needed_at.max(self.last_file_at.unwrap_or_default())
    }

    /// When the oldest of its files was written, as they are now; of more than are remembered, when the first
    /// of all was.
    pub(super) fn oldest(&self) -> Moment {
        let oldest = self.names.as_ref().and_then(|names| names.values().map(|file| file.at).min());
        oldest.unwrap_or(self.first)
    }

    /// Its files by what follows the prefix, if they are remembered.
    pub(super) fn names(&self) -> Option<&BTreeMap<Box<str>, File>> {
        self.names.as_ref()
    }

    /// Remembers only how many files there are.
    pub(super) fn drop_names(&mut self) {
        self.names = None;
        self.names_bytes = 0;
    }

    /// Memory that it takes.
    pub(super) fn memory_bytes(&self) -> usize {
        let names = if self.names.is_some() { self.names_bytes } else { 0 };
        GROUP_BYTES + self.prefix.len() + names + self.named.memory_bytes()
    }
}

/// Whether of a part nothing tells when all like it are there.
fn is_loose(place: &Place<'_>) -> bool {
    place.role == Role::Part && !is_aside(place.rest)
}

fn is_shard(place: &Place<'_>) -> bool {
    matches!(place.role, Role::Shard { .. })
}

/// Whether a part is more than a text or a description.
pub(super) fn is_tensor(place: &Place<'_>) -> bool {
    matches!(place.role, Role::Part | Role::Whole | Role::Shard { .. }) && !is_small(place)
}

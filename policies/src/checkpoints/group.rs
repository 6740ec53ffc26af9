//! A group: the files of one checkpoint, and whether they are all there.
//!
//! Complete means: what its framework writes last was written after all else; without such a file, that there are as many as their names say,
//! or that writing has ended. A group of which a file was written again or deleted is complete once that holds anew.

use super::layout::{Layout, Place, Role, is_aside, shard};
use std::collections::BTreeMap;
use xxhash_rust::xxh3::xxh3_64;

/// Memory of a file beside its name, its part of a node included; and of a group.
const FILE_BYTES: usize = 64;
const GROUP_BYTES: usize = size_of::<Group>() + 64;

/// Different names of shards that are counted in a group.
const SHARD_SETS_MAX: usize = 64;

/// A file of a group.
#[derive(Clone, Copy, Debug)]
pub(super) struct File {
    pub(super) bytes: u64,
    pub(super) at_us: u64,
}

/// Files that say how many they are.
#[derive(Clone, Copy, Debug)]
struct ShardSet {
    stem: u64,
    of: u32,
    have: u32,
}

/// What is known of all groups of a series.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Habits {
    /// One of them had a file that is written last.
    pub(super) is_marked: bool,
    /// A file beside them said which one is complete: when, and how many files that had.
    pub(super) pointed: Option<(u64, u32)>,
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
    pub(super) first_us: u64,
    pub(super) last_us: u64,
    parts: u32,
    wholes: u32,
    /// Parts that neither say how many they are nor only describe others.
    loose: u32,
    /// When the latest part was written, and the latest of the files that come last.
    parts_us: u64,
    last_file_us: Option<u64>,
    last_files: u32,
    shards: Vec<ShardSet>,
    /// Since when shards are written again, and how many were.
    round_us: u64,
    round_shards: u32,
    wants_last: bool,
    is_pointed: bool,
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
    pub(super) fn new(serial: u32, place: &Place<'_>, at_us: u64) -> Self {
        Self {
            serial,
            prefix: place.prefix.into(),
            layout: place.layout,
            step: place.step,
            names: Some(BTreeMap::new()),
            names_bytes: 0,
            files: 0,
            bytes: 0,
            first_us: at_us,
            last_us: at_us,
            parts: 0,
            wholes: 0,
            loose: 0,
            parts_us: 0,
            last_file_us: None,
            last_files: 0,
            shards: Vec::new(),
            round_us: 0,
            round_shards: 0,
            wants_last: false,
            is_pointed: false,
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
    pub(super) fn wrote(&mut self, place: &Place<'_>, bytes: u64, at_us: u64, habits: &Habits) {
        let begins_anew = self.is_complete(habits) && place.role != Role::Extra;
        let file = File { bytes, at_us };
        let before = self.names.as_mut().and_then(|names| names.insert(place.rest.into(), file));
        match before {
            Some(before) => self.bytes -= before.bytes,
            None => {
                self.files += 1;
                self.names_bytes += place.rest.len() + FILE_BYTES;
            }
        }
        self.bytes += bytes;
        self.last_us = self.last_us.max(at_us);
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
        if begins_anew && before.is_some() {
            (self.is_again, self.round_us, self.round_shards) = (true, at_us, 0);
        }
        (self.is_closed, self.is_quiet, self.is_pointed) = (false, false, false);
        match place.role {
            Role::Last => {
                self.last_files += u32::from(before.is_none());
                self.last_file_us = self.last_file_us.max(Some(at_us));
                self.is_torn = false;
            }
            Role::Part | Role::Whole | Role::Shard { .. } => {
                self.parts += u32::from(before.is_none());
                self.wholes += u32::from(before.is_none() && place.role == Role::Whole);
                self.loose += u32::from(before.is_none() && is_loose(place));
                self.parts_us = self.parts_us.max(at_us);
                self.is_torn &= self.wants_last || habits.is_marked;
            }
            Role::Extra => {}
        }
        if let Role::Shard { of } = place.role {
            self.round_shards += u32::from(before.is_none_or(|file| file.at_us < self.round_us));
            if before.is_none() {
                self.count_shard(place.rest, of);
            }
        }
    }

    fn shard_set(&self, rest: &str, of: u32) -> (u64, Option<usize>) {
        let stem = xxh3_64(&rest.as_bytes()[..shard(rest).map_or(0, |(stem, _)| stem)]);
        (stem, self.shards.iter().position(|set| set.stem == stem && set.of == of))
    }

    fn count_shard(&mut self, rest: &str, of: u32) {
        match self.shard_set(rest, of) {
            (_, Some(at)) => self.shards[at].have += 1,
            (stem, None) if self.shards.len() < SHARD_SETS_MAX => {
                self.shards.push(ShardSet { stem, of, have: 1 });
            }
            // Nobody names a model's shards in so many ways.
            _ => {}
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
        match place.role {
            Role::Extra => return true,
            Role::Last => {
                self.last_files -= 1;
                if self.last_files == 0 {
                    self.last_file_us = None;
                }
            }
            Role::Part | Role::Whole | Role::Shard { .. } => {
                self.parts -= 1;
                self.wholes -= u32::from(place.role == Role::Whole);
                self.loose -= u32::from(is_loose(place));
                self.is_torn = true;
            }
        }
        if let Role::Shard { of } = place.role {
            self.round_shards -= u32::from(file.at_us >= self.round_us);
            if let (_, Some(at)) = self.shard_set(place.rest, of) {
                self.shards[at].have = self.shards[at].have.saturating_sub(1);
            }
            self.shards.retain(|set| set.have > 0);
        }
        true
    }

    /// Whether all of it is there.
    pub(super) fn is_complete(&self, habits: &Habits) -> bool {
        let shards: u64 = self.shards.iter().map(|set| u64::from(set.of)).sum();
        if self.parts == 0 || self.is_torn || self.shards.iter().any(|set| set.have < set.of) {
            return false;
        }
        if self.is_marked(habits) {
            // Whoever uploads a checkpoint from a disk keeps no order; a second time that would pass for one that was not finished.
            return self.is_sealed() || (self.is_quiet && self.last_file_us.is_some() && !self.is_again);
        }
        if let (true, Some((pointed_us, files))) = (self.layout.is_pointed(), habits.pointed) {
            return self.is_pointed || (self.files == files && self.last_us <= pointed_us && !self.is_again);
        }
        if self.wholes == self.parts {
            return true;
        }
        let are_all = u64::from(self.round_shards) >= shards;
        match self.layout {
            Layout::Safetensors => self.is_sealed() || are_all,
            // In a step's folder state of an optimizer may follow, which says nothing of itself.
            Layout::Plain if shards > 0 && self.loose == 0 && are_all => true,
            _ => self.is_closed,
        }
    }

    /// Whether all of it is there, whoever doubts it: what is written last was, and not only that nobody has written it for long.
    pub(super) fn is_certain(&self, habits: &Habits) -> bool {
        self.is_complete(habits) && (self.is_sealed() || !self.is_marked(habits))
    }

    /// Whether what its framework writes last came last.
    fn is_sealed(&self) -> bool {
        self.last_file_us.is_some_and(|at_us| at_us >= self.parts_us)
    }

    /// Whether its framework writes such a file.
    fn is_marked(&self, habits: &Habits) -> bool {
        self.wants_last || (habits.is_marked && self.layout != Layout::Safetensors)
    }

    /// A file beside the groups says that this one is complete.
    pub(super) fn point_at(&mut self) {
        self.is_pointed = self.parts > 0;
        self.is_torn = false;
    }

    /// The next one has begun.
    pub(super) fn close(&mut self) {
        self.is_closed = true;
    }

    /// Nobody has written it for long.
    pub(super) fn settle(&mut self) {
        (self.is_closed, self.is_quiet) = (true, true);
    }

    /// Whether a part of it was written by then and nothing since.
    pub(super) const fn is_quiet_since(&self, at_us: u64) -> bool {
        self.last_us <= at_us
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
        GROUP_BYTES + self.prefix.len() + names + self.shards.len() * size_of::<ShardSet>()
    }
}

/// Whether of a part nothing tells when all like it are there.
fn is_loose(place: &Place<'_>) -> bool {
    place.role == Role::Part && !is_aside(place.rest)
}

//! The trail of a stream: which objects it reads on in, whether it goes through them in the order of their
//! numbers, and how far ahead of it pays.
//!
//! Numbers are looked at within one name: `train-00017-of-01024.tar` is the 17th of `train-#-of-01024.tar`.
//! Who deals objects out to ranks leaves a step between them, which is the greatest common divisor of what
//! lies between the last ones. A number that turned out not to be there ends the row, counts as waste, and
//! says how long the next folder's row will be. Bounded: some dozen objects and numbers.

use super::{Ahead, Outcome};
use crate::access::Access;
use crate::engine::names::Hashed;
use crate::engine::order::Numbered;
use std::collections::{HashMap, VecDeque};
use std::ops::Range;

/// Objects that are read at a time, and those that were begun last, by number.
const OPEN_MAX: usize = 32;
const NUMBERS_MAX: usize = 16;
/// Objects of which blocks were said that have not been begun.
const SAID_MAX: usize = 512;
/// Requests of one object overtake each other by so many lengths of one; objects by so many steps.
const OVERTAKEN: u64 = 8;
/// A row is one from so many objects on that were near the last, and what is remembered of it at most.
const ROW_MIN: u32 = 3;
/// Equal differences in a row that are needed before a step is assumed.
const DIFFERENCES_MIN: u32 = 2;
const ROW_MAX: u32 = 16;
/// Numbers of which two alone are in a row lie no further apart.
const FIRST_STEP_MAX: u64 = 64;
/// The largest object of late counts, and less with each that is smaller.
const LARGEST_STAYS: f64 = 0.98;
/// What was said and not asked for is forgotten after so many objects, and twice those that were said.
const FORGET_EVERY: u32 = 32;
/// First it is read so many requests ahead.
const REQUESTS_AHEAD: f64 = 2.0;
/// Waste that is too much, of so many blocks at least; and for how many requests nothing is said then, twice
/// as many each time.
const WASTE_SHARE: f64 = 0.05;
const WASTE_BLOCKS: f64 = 16.0;
const SILENT_REQUESTS: u32 = 64;
const SILENT_REQUESTS_MAX: u32 = 1 << 14;
/// Blocks after which what became of earlier ones weighs half.
const MEMORY_BLOCKS: f64 = 512.0;

/// Blocks of an object that are wanted.
pub(super) struct Wanted<'a> {
    pub(super) bucket: u64,
    pub(super) key: &'a str,
    /// The id of its first block.
    pub(super) object: u64,
    pub(super) blocks: Range<u32>,
}

/// An object that is read.
#[derive(Clone, Copy, Debug)]
struct Open {
    object: u64,
    size: u64,
    /// Where its reader is.
    next: u64,
    /// Requests that went on where another had ended.
    goes_on: u32,
    /// It was begun at its first byte.
    from_begin: bool,
    /// What was said of it.
    said: Said,
}

/// What was said of an object.
#[derive(Clone, Copy, Debug, Default)]
struct Said {
    /// Up to which block.
    end: u32,
    /// Blocks of which nothing became yet.
    under_way: u32,
    /// Objects that had been begun then.
    begun: u32,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Trail {
    pub(super) last_us: u64,
    open: VecDeque<Open>,
    /// Objects of which blocks were said that have not been begun.
    said: HashMap<u64, Said, Hashed>,
    /// Objects that were begun.
    begun: u32,
    /// What the numbered objects are called, the last numbers of them, and how many were near each other.
    row: u64,
    numbers: VecDeque<u64>,
    near: u32,
    /// The first number of the row, and the greatest.
    first: u64,
    top: u64,
    /// Up to which number all was said.
    passed: u64,
    /// The number that is not there.
    end: u64,
    /// Of the last objects that were begun and not read in one request, the share that was read on.
    reads_on: f64,
    object_bytes: f64,
    request_bytes: f64,
    depth_bytes: f64,
    /// How much of a plan has been said.
    pub(super) planned: u64,
    /// Blocks that came too late before are those of the depth that was.
    settles: u32,
    became: f64,
    wasted: f64,
    silent: u32,
    silent_next: u32,
}

impl Trail {
    pub(super) fn new(block_bytes: u64) -> Self {
        Self {
            end: u64::MAX,
            depth_bytes: block_bytes as f64,
            silent_next: SILENT_REQUESTS,
            ..Self::default()
        }
    }

    /// Whether anything is to be said.
    pub(super) const fn is_awake(&self) -> bool {
        self.silent == 0
    }

    /// A read of an object.
    pub(super) fn note(&mut self, access: &Access<'_>, object: u64, block_bytes: u64, limits: &Ahead) {
        self.last_us = access.at_us;
        self.silent = self.silent.saturating_sub(1);
        let length = (access.range.end.saturating_sub(access.range.start)).max(1);
        self.request_bytes = (length as f64).max(self.request_bytes * 0.9);
        let least = (REQUESTS_AHEAD * self.request_bytes).min(limits.bytes_max as f64);
        self.depth_bytes = self.depth_bytes.max(least).min(limits.bytes_max as f64);
        let place = self.open.iter().position(|open| open.object == object);
        let known = place.and_then(|place| self.open.remove(place));
        let open = match known.filter(|open| access.range.start > 0 || open.next <= length) {
            Some(mut open) => {
                self.go_on(&mut open, access, length, block_bytes);
                open
            }
            None => self.begin(access, object),
        };
        if self.open.len() == OPEN_MAX
            && let Some(oldest) = self.open.pop_front()
            && oldest.from_begin
            && oldest.goes_on == 0
            && oldest.next < oldest.size
        {
            self.reads_on -= self.reads_on / 4.0;
        }
        self.open.push_back(open);
    }

    fn go_on(&mut self, open: &mut Open, access: &Access<'_>, length: u64, block_bytes: u64) {
        if access.range.start == open.next {
            if open.goes_on == 0 {
                self.reads_on += (1.0 - self.reads_on) / 4.0;
            }
            open.goes_on += 1;
        } else if access.range.start.abs_diff(open.next) > OVERTAKEN * length {
            if open.from_begin && open.goes_on == 0 {
                self.reads_on -= self.reads_on / 4.0;
            }
            (open.goes_on, open.from_begin) = (0, false);
            open.next = access.range.end;
            open.said.end = (open.next / block_bytes) as u32;
        }
        open.next = open.next.max(access.range.end);
    }

    fn begin(&mut self, access: &Access<'_>, object: u64) -> Open {
        let from_begin = access.range.start == 0;
        // In the place of one that has been read.
        if let Some(through) = self.open.iter().position(|open| open.next >= open.size) {
            self.open.remove(through);
        }
        let said = self.said.remove(&object).unwrap_or_default();
        self.begun = self.begun.wrapping_add(1);
        if self.begun.is_multiple_of(FORGET_EVERY) {
            // Who has not come for them for so long has passed them over.
            let (begun, patience) = (self.begun, FORGET_EVERY + 2 * self.said.len() as u32);
            self.said.retain(|_, said| begun.wrapping_sub(said.begun) <= patience);
        }
        if from_begin {
            // What the object ends before is not fetched; what it has beyond that is late.
            self.object_bytes = (access.size as f64).max(self.object_bytes * LARGEST_STAYS);
            self.note_number(access.key);
        }
        let (size, next) = (access.size, access.range.end);
        Open { object, size, next, goes_on: 0, from_begin, said }
    }

    /// Objects are in a row as long as each is near the last.
    fn note_number(&mut self, key: &str) {
        let name = Numbered::of(key);
        let Some(number) = name.number() else {
            self.near = 0;
            return;
        };
        let row = name.row();
        if row != self.row {
            self.begin_row(row, number);
        } else if self.is_near(number) {
            self.near = (self.near + 1).min(ROW_MAX);
            self.top = self.top.max(number);
        } else {
            (self.near, self.top, self.passed, self.first) = (0, number, number, number);
            self.numbers.clear();
            self.said.clear();
        }
        if number >= self.end {
            // It was not there before, or the row is longer than the last one.
            self.end = u64::MAX;
        }
        if self.numbers.len() == NUMBERS_MAX {
            self.numbers.pop_front();
        }
        self.numbers.push_back(number);
    }

    /// Another row begins, perhaps that of the next folder. A reader that read the last row in order is
    /// assumed to do so again after two equal differences, and folders are assumed to be equally long:
    /// numbers often continue from one folder to the next, and keys past the end of this folder are in the
    /// next one.
    fn begin_row(&mut self, row: u64, number: u64) {
        let span = self.end.checked_sub(self.first).filter(|_| self.end != u64::MAX);
        self.near = self.near.min(ROW_MIN - DIFFERENCES_MIN);
        (self.row, self.first, self.top, self.passed) = (row, number, number, number);
        self.end = span.and_then(|span| number.checked_add(span)).unwrap_or(u64::MAX);
        self.numbers.clear();
    }

    /// Whether a number is some steps from the last, of which the first is not known before the second.
    fn is_near(&self, number: u64) -> bool {
        let distance = number.abs_diff(self.top);
        let step = self.step().unwrap_or(FIRST_STEP_MAX / OVERTAKEN);
        number != self.top && distance <= OVERTAKEN * step
    }

    /// What lies between objects.
    fn step(&self) -> Option<u64> {
        let differences = self.numbers.iter().map(|number| number.abs_diff(self.top));
        Some(differences.fold(0, greatest_divisor)).filter(|step| *step > 0)
    }

    /// The next number and key of the row that `name` is in, of which not all was said; nothing when there is
    /// no such row, or it has ended.
    pub(super) fn successor(&self, name: &Numbered<'_>) -> Option<(u64, String)> {
        if self.near < ROW_MIN || name.row() != self.row {
            return None;
        }
        let step = self.step()?;
        // What was said may be in another step.
        let behind = (self.passed.max(self.top) - self.top) / step * step;
        let number = self.top.checked_add(behind)?.checked_add(step)?;
        if number >= self.end || name.total().is_some_and(|total| number >= total) {
            return None;
        }
        Some((number, name.with(number)?))
    }

    /// All was said of a number.
    pub(super) fn passed(&mut self, number: u64) {
        self.passed = number;
    }

    fn is_read_on(&self, open: &Open) -> bool {
        open.goes_on > 1 || open.from_begin && self.reads_on > 0.5
    }

    /// The next blocks of an object that is read, of which nothing was said.
    pub(super) fn within(&self, object: u64, block_bytes: u64) -> Option<Range<u32>> {
        let open = self.open.back().filter(|open| open.object == object && self.is_read_on(open))?;
        let to = (open.next + self.depth_bytes as u64).min(open.size).div_ceil(block_bytes) as u32;
        let from = ((open.next / block_bytes) as u32).max(open.said.end);
        (open.next < open.size && from < to).then_some(from..to)
    }

    /// Whether the object that is read is read to its end, so that others come after it.
    pub(super) fn goes_beyond(&self, object: u64) -> bool {
        let open = self.open.back().filter(|open| open.object == object);
        open.is_some_and(|open| open.next >= open.size || self.is_read_on(open))
    }

    /// Bytes for which there is depth behind the objects that are read, and of which nothing has been said
    /// yet.
    pub(super) fn left_bytes(&self, block_bytes: u64) -> f64 {
        let behind = |open: &Open| (self.depth_bytes - open.size.saturating_sub(open.next) as f64).max(0.0);
        let open = self.open.iter().filter(|open| self.is_read_on(open) || open.next >= open.size);
        open.map(behind).sum::<f64>() - f64::from(self.beyond()) * self.block_bytes(block_bytes)
    }

    /// A block is no larger than an object.
    fn block_bytes(&self, block_bytes: u64) -> f64 {
        (block_bytes as f64).min(self.object_bytes())
    }

    /// So many blocks of an object are said before it is begun.
    pub(super) fn object_blocks(&self, block_bytes: u64) -> u32 {
        let bytes = self.object_bytes().min(self.depth_bytes);
        (bytes / block_bytes as f64).ceil().max(1.0) as u32
    }

    /// Bytes of an object, lately.
    const fn object_bytes(&self) -> f64 {
        self.object_bytes.max(1.0)
    }

    /// Blocks that may be said now.
    pub(super) fn room(&self, limits: &Ahead, block_bytes: u64) -> u32 {
        let by_bytes = (limits.bytes_max as f64 / self.block_bytes(block_bytes)) as u32;
        limits.blocks_max.min(by_bytes).saturating_sub(self.under_way())
    }

    /// So many blocks were said of an object, up to one.
    pub(super) fn say(&mut self, object: u64, end: u32, blocks: u32) {
        if self.said.len() == SAID_MAX && !self.said.contains_key(&object) {
            self.said.clear();
        }
        let begun = self.begun;
        let said = match self.open.iter_mut().find(|open| open.object == object) {
            Some(open) => &mut open.said,
            None => self.said.entry(object).or_default(),
        };
        said.end = said.end.max(end);
        said.under_way += blocks;
        said.begun = begun;
    }

    /// Blocks of which nothing became yet, of objects that have not been begun.
    fn beyond(&self) -> u32 {
        self.said.values().map(|said| said.under_way).sum()
    }

    /// All blocks of which nothing became yet.
    fn under_way(&self) -> u32 {
        self.beyond() + self.open.iter().map(|open| open.said.under_way).sum::<u32>()
    }

    /// Up to which block something was said of an object.
    pub(super) fn said_of(&self, object: u64) -> u32 {
        let open = self.open.iter().find(|open| open.object == object).map(|open| open.said);
        open.or_else(|| self.said.get(&object).copied()).unwrap_or_default().end
    }

    /// What became of blocks.
    pub(super) fn became(&mut self, object: u64, key: &str, outcome: Outcome, blocks: u32) {
        let open = self.open.iter_mut().find(|open| open.object == object).map(|open| &mut open.said);
        if let Some(said) = open.or_else(|| self.said.get_mut(&object)) {
            said.under_way = said.under_way.saturating_sub(blocks);
        }
        match outcome {
            Outcome::Used => self.count(blocks, 0),
            Outcome::Late => {
                if self.settles == 0 {
                    // What is on its way was said at half of it.
                    self.depth_bytes *= 2.0;
                    self.settles = self.under_way() + blocks;
                }
                self.count(blocks, 0);
            }
            Outcome::Wasted => {
                self.depth_bytes /= 2.0;
                self.count(blocks, blocks);
            }
            Outcome::Declined => {}
            Outcome::Absent => {
                // A request for an absent key: too many of them end reading ahead, as unread blocks do.
                self.count(blocks, blocks);
                let name = Numbered::of(key);
                if let Some(number) = name.number().filter(|_| name.row() == self.row) {
                    self.end = self.end.min(number);
                }
            }
        }
        self.settles = self.settles.saturating_sub(blocks);
    }

    /// Too much that nobody read is the end of it for a while.
    fn count(&mut self, blocks: u32, wasted: u32) {
        self.became += f64::from(blocks);
        self.wasted += f64::from(wasted);
        if self.wasted >= WASTE_BLOCKS && self.wasted > WASTE_SHARE * self.became {
            self.silent = self.silent_next;
            self.silent_next = (2 * self.silent_next).min(SILENT_REQUESTS_MAX);
            (self.became, self.wasted) = (0.0, 0.0);
        } else if self.became > MEMORY_BLOCKS {
            self.became /= 2.0;
            self.wasted /= 2.0;
            self.silent_next = SILENT_REQUESTS;
        }
    }
}

/// Euclid's.
const fn greatest_divisor(mut one: u64, mut other: u64) -> u64 {
    while other != 0 {
        (one, other) = (other, one % other);
    }
    one
}

//! Trail of a stream: the objects that it reads sequentially, whether it reads objects in the order of their
//! numbers, and the read-ahead depth that pays off.
//!
//! Numbers are compared within one name pattern: `train-00017-of-01024.tar` is number 17 of
//! `train-#-of-01024.tar`. If ranks divide the objects, each reads every n-th number; n is the step, the
//! greatest common divisor of the distances between the last numbers. A number that does not exist ends the
//! sequence, counts as waste, and gives the expected length of the sequence in the next folder. Bounded: a
//! few dozen objects and numbers.

use super::{ReadAheadLimits, ReadAheadOutcome};
use crate::access::Access;
use crate::engine::names::BuildPassThroughHasher;
use crate::engine::order::NumberedKey;
use std::collections::{HashMap, VecDeque};
use std::ops::Range;

/// Maximum objects tracked as being read, and maximum recently begun objects by number.
const OPEN_MAX: usize = 32;
const NUMBERS_MAX: usize = 16;
/// Maximum objects with proposed blocks that have not been begun.
const PROPOSED_OBJECTS_MAX: usize = 512;
/// Tolerance for reordering: of requests within an object, in request lengths; of objects, in steps.
const REORDER_TOLERANCE: u64 = 8;
/// Minimum number of successive near objects that form a row, and maximum that is counted.
const ROW_MIN: u32 = 3;
/// Equal differences in a row that are needed before a step is assumed.
const DIFFERENCES_MIN: u32 = 2;
const ROW_MAX: u32 = 16;
/// Maximum distance of the first two numbers of a row.
const FIRST_STEP_MAX: u64 = 64;
/// Decay per object of the largest recent object size.
const LARGEST_DECAY: f64 = 0.98;
/// Proposals that were not requested are forgotten after this many objects plus twice the number of proposed
/// objects.
const FORGET_EVERY: u32 = 32;
/// Minimum depth, in requests.
const REQUESTS_AHEAD: f64 = 2.0;
/// Read-ahead pauses when the wasted share exceeds `WASTE_SHARE` and the waste is at least `WASTE_BLOCKS`.
/// The pause is `PAUSE_REQUESTS`, doubled each time up to the maximum.
const WASTE_SHARE: f64 = 0.05;
const WASTE_BLOCKS: f64 = 16.0;
const PAUSE_REQUESTS: u32 = 64;
const PAUSE_REQUESTS_MAX: u32 = 1 << 14;
/// Number of blocks after which the weight of earlier outcomes is halved.
const MEMORY_BLOCKS: f64 = 512.0;

/// Blocks of an object to be proposed.
pub(super) struct AheadCandidate<'a> {
    pub(super) bucket: u64,
    pub(super) key: &'a str,
    /// Id of the object's first block.
    pub(super) object: u64,
    pub(super) blocks: Range<u32>,
}

/// An object that is being read.
#[derive(Clone, Copy, Debug)]
struct OpenObject {
    object: u64,
    size: u64,
    /// Current position of the reader.
    next: u64,
    /// Number of requests that continued where another request had ended.
    continued: u32,
    /// True if it was read from its first byte.
    from_begin: bool,
    /// Proposed blocks of the object.
    proposed: ProposedBlocks,
}

/// Blocks of one object that were proposed.
#[derive(Clone, Copy, Debug, Default)]
struct ProposedBlocks {
    /// End of the proposed blocks.
    end: u32,
    /// Proposed blocks without an outcome yet.
    under_way: u32,
    /// Number of objects that had been begun at the last proposal.
    begun_objects: u32,
}

/// Trail of a stream; see the module.
#[derive(Debug, Default)]
pub(super) struct Trail {
    pub(super) last_us: u64,
    open: VecDeque<OpenObject>,
    /// Objects with proposed blocks that have not been begun.
    proposed: HashMap<u64, ProposedBlocks, BuildPassThroughHasher>,
    /// Number of objects begun.
    begun: u32,
    /// Row: hash of the name pattern, the last numbers, and how many successive objects were near each other.
    row: u64,
    numbers: VecDeque<u64>,
    near: u32,
    /// First number of the row, and the greatest.
    first: u64,
    top: u64,
    /// Number up to which all objects were proposed.
    proposed_number: u64,
    /// First number that does not exist.
    end: u64,
    /// Moving average, over recent objects that were begun but not read in one request, of the share that was
    /// read on.
    read_on_share: f64,
    object_bytes: f64,
    request_bytes: f64,
    depth_bytes: f64,
    /// Read position in a plan up to which all objects were proposed.
    pub(super) proposed_reads: u64,
    /// Blocks in flight when the depth was last doubled; until their outcomes are in, late blocks do not
    /// double it again.
    settling_blocks: u32,
    outcomes: f64,
    wasted: f64,
    paused_requests: u32,
    next_pause: u32,
}

impl Trail {
    pub(super) fn new(block_bytes: u64) -> Self {
        Self { end: u64::MAX, depth_bytes: block_bytes as f64, next_pause: PAUSE_REQUESTS, ..Self::default() }
    }

    /// True if read-ahead is not paused.
    pub(super) const fn is_active(&self) -> bool {
        self.paused_requests == 0
    }

    /// Records a read of an object.
    pub(super) fn record_read(
        &mut self,
        access: &Access<'_>,
        object: u64,
        block_bytes: u64,
        limits: &ReadAheadLimits,
    ) {
        self.last_us = access.at_us;
        self.paused_requests = self.paused_requests.saturating_sub(1);
        let length = (access.range.end.saturating_sub(access.range.start)).max(1);
        self.request_bytes = (length as f64).max(self.request_bytes * 0.9);
        let least = (REQUESTS_AHEAD * self.request_bytes).min(limits.bytes_max as f64);
        self.depth_bytes = self.depth_bytes.max(least).min(limits.bytes_max as f64);
        let place = self.open.iter().position(|open| open.object == object);
        let known = place.and_then(|place| self.open.remove(place));
        let open = match known.filter(|open| access.range.start > 0 || open.next <= length) {
            Some(mut open) => {
                self.continue_object(&mut open, access, length, block_bytes);
                open
            }
            None => self.begin_object(access, object),
        };
        if self.open.len() == OPEN_MAX
            && let Some(oldest) = self.open.pop_front()
            && oldest.from_begin
            && oldest.continued == 0
            && oldest.next < oldest.size
        {
            self.read_on_share -= self.read_on_share / 4.0;
        }
        self.open.push_back(open);
    }

    fn continue_object(&mut self, open: &mut OpenObject, access: &Access<'_>, length: u64, block_bytes: u64) {
        if access.range.start == open.next {
            if open.continued == 0 {
                self.read_on_share += (1.0 - self.read_on_share) / 4.0;
            }
            open.continued += 1;
        } else if access.range.start.abs_diff(open.next) > REORDER_TOLERANCE * length {
            if open.from_begin && open.continued == 0 {
                self.read_on_share -= self.read_on_share / 4.0;
            }
            (open.continued, open.from_begin) = (0, false);
            open.next = access.range.end;
            open.proposed.end = (open.next / block_bytes) as u32;
        }
        open.next = open.next.max(access.range.end);
    }

    fn begin_object(&mut self, access: &Access<'_>, object: u64) -> OpenObject {
        let from_begin = access.range.start == 0;
        // Takes the place of an object that has been read to its end.
        if let Some(finished) = self.open.iter().position(|open| open.next >= open.size) {
            self.open.remove(finished);
        }
        let proposed = self.proposed.remove(&object).unwrap_or_default();
        self.begun = self.begun.wrapping_add(1);
        if self.begun.is_multiple_of(FORGET_EVERY) {
            // Proposals that were not requested for this long have been skipped by the reader.
            let (begun, patience) = (self.begun, FORGET_EVERY + 2 * self.proposed.len() as u32);
            self.proposed.retain(|_, proposed| begun.wrapping_sub(proposed.begun_objects) <= patience);
        }
        if from_begin {
            // Proposed blocks past the end of a shorter object are not fetched; blocks of a longer one past
            // the estimate arrive late.
            self.object_bytes = (access.size as f64).max(self.object_bytes * LARGEST_DECAY);
            self.record_number(access.key);
        }
        let (size, next) = (access.size, access.range.end);
        OpenObject { object, size, next, continued: 0, from_begin, proposed }
    }

    /// Records the number of an object. Objects form a row as long as each is near the previous one.
    fn record_number(&mut self, key: &str) {
        let name = NumberedKey::of(key);
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
            (self.near, self.top, self.proposed_number, self.first) = (0, number, number, number);
            self.numbers.clear();
            self.proposed.clear();
        }
        if number >= self.end {
            // The object was missing before, or the row is longer than the previous one.
            self.end = u64::MAX;
        }
        if self.numbers.len() == NUMBERS_MAX {
            self.numbers.pop_front();
        }
        self.numbers.push_back(number);
    }

    /// Starts another row, perhaps that of the next folder. A reader that read the last row in order is
    /// assumed to do so again after two equal differences, and folders are assumed to be equally long:
    /// numbers often continue from one folder to the next, and keys past the end of this folder are in the
    /// next one.
    fn begin_row(&mut self, row: u64, number: u64) {
        let span = self.end.checked_sub(self.first).filter(|_| self.end != u64::MAX);
        self.near = self.near.min(ROW_MIN - DIFFERENCES_MIN);
        (self.row, self.first, self.top, self.proposed_number) = (row, number, number, number);
        self.end = span.and_then(|span| number.checked_add(span)).unwrap_or(u64::MAX);
        self.numbers.clear();
    }

    /// True if a number is a few steps from the greatest one. The first step is unknown before the second
    /// number.
    fn is_near(&self, number: u64) -> bool {
        let distance = number.abs_diff(self.top);
        let step = self.step().unwrap_or(FIRST_STEP_MAX / REORDER_TOLERANCE);
        number != self.top && distance <= REORDER_TOLERANCE * step
    }

    /// Returns the step between objects.
    fn step(&self) -> Option<u64> {
        let differences = self.numbers.iter().map(|number| number.abs_diff(self.top));
        Some(differences.fold(0, greatest_divisor)).filter(|step| *step > 0)
    }

    /// Returns the next number and key of the row that contains `name` up to which not all objects were
    /// proposed; `None` if there is no such row or it has ended.
    pub(super) fn successor(&self, name: &NumberedKey<'_>) -> Option<(u64, String)> {
        if self.near < ROW_MIN || name.row() != self.row {
            return None;
        }
        let step = self.step()?;
        // Earlier proposals may have used another step.
        let behind = (self.proposed_number.max(self.top) - self.top) / step * step;
        let number = self.top.checked_add(behind)?.checked_add(step)?;
        if number >= self.end || name.total().is_some_and(|total| number >= total) {
            return None;
        }
        Some((number, name.with_number(number)?))
    }

    /// Records that all blocks of an object number were proposed.
    pub(super) fn set_proposed_number(&mut self, number: u64) {
        assert!(number > self.proposed_number, "objects are proposed in ascending order");
        self.proposed_number = number;
    }

    fn is_sequential(&self, open: &OpenObject) -> bool {
        open.continued > 1 || open.from_begin && self.read_on_share > 0.5
    }

    /// Returns the next blocks of the current object that were not proposed yet.
    pub(super) fn next_in_object(&self, object: u64, block_bytes: u64) -> Option<Range<u32>> {
        let open = self.open.back().filter(|open| open.object == object && self.is_sequential(open))?;
        let to = (open.next + self.depth_bytes as u64).min(open.size).div_ceil(block_bytes) as u32;
        let from = ((open.next / block_bytes) as u32).max(open.proposed.end);
        (open.next < open.size && from < to).then_some(from..to)
    }

    /// True if the current object is read to its end, so that other objects follow it.
    pub(super) fn is_read_to_end(&self, object: u64) -> bool {
        let open = self.open.back().filter(|open| open.object == object);
        open.is_some_and(|open| open.next >= open.size || self.is_sequential(open))
    }

    /// Returns the bytes of depth beyond the objects being read for which nothing has been proposed yet.
    pub(super) fn unproposed_bytes(&self, block_bytes: u64) -> f64 {
        let behind =
            |open: &OpenObject| (self.depth_bytes - open.size.saturating_sub(open.next) as f64).max(0.0);
        let open = self.open.iter().filter(|open| self.is_sequential(open) || open.next >= open.size);
        open.map(behind).sum::<f64>() - f64::from(self.in_flight_beyond()) * self.block_bytes(block_bytes)
    }

    /// Returns the bytes of a block, which are at most those of an object.
    fn block_bytes(&self, block_bytes: u64) -> f64 {
        (block_bytes as f64).min(self.object_bytes())
    }

    /// Returns the number of blocks of an object that are proposed before it is begun.
    pub(super) fn object_blocks(&self, block_bytes: u64) -> u32 {
        let bytes = self.object_bytes().min(self.depth_bytes);
        (bytes / block_bytes as f64).ceil().max(1.0) as u32
    }

    /// Returns the recent object size, in bytes.
    const fn object_bytes(&self) -> f64 {
        self.object_bytes.max(1.0)
    }

    /// Returns the number of blocks that may be proposed now.
    pub(super) fn room(&self, limits: &ReadAheadLimits, block_bytes: u64) -> u32 {
        let by_bytes = (limits.bytes_max as f64 / self.block_bytes(block_bytes)) as u32;
        limits.blocks_max.min(by_bytes).saturating_sub(self.in_flight())
    }

    /// Records that `blocks` blocks of an object were proposed, up to block `end`.
    pub(super) fn record_proposal(&mut self, object: u64, end: u32, blocks: u32) {
        assert!(blocks <= end, "the proposed blocks precede their end");
        if self.proposed.len() == PROPOSED_OBJECTS_MAX && !self.proposed.contains_key(&object) {
            self.proposed.clear();
        }
        let begun = self.begun;
        let proposed = match self.open.iter_mut().find(|open| open.object == object) {
            Some(open) => &mut open.proposed,
            None => self.proposed.entry(object).or_default(),
        };
        proposed.end = proposed.end.max(end);
        proposed.under_way += blocks;
        proposed.begun_objects = begun;
    }

    /// Returns the proposed blocks without an outcome of objects that have not been begun.
    fn in_flight_beyond(&self) -> u32 {
        self.proposed.values().map(|proposed| proposed.under_way).sum()
    }

    /// Returns all proposed blocks without an outcome.
    fn in_flight(&self) -> u32 {
        self.in_flight_beyond() + self.open.iter().map(|open| open.proposed.under_way).sum::<u32>()
    }

    /// Returns the block up to which an object was proposed.
    pub(super) fn proposed_end(&self, object: u64) -> u32 {
        let open = self.open.iter().find(|open| open.object == object).map(|open| open.proposed);
        open.or_else(|| self.proposed.get(&object).copied()).unwrap_or_default().end
    }

    /// Records the outcome of blocks.
    pub(super) fn record_outcome(&mut self, object: u64, key: &str, outcome: ReadAheadOutcome, blocks: u32) {
        let open = self.open.iter_mut().find(|open| open.object == object).map(|open| &mut open.proposed);
        if let Some(proposed) = open.or_else(|| self.proposed.get_mut(&object)) {
            proposed.under_way = proposed.under_way.saturating_sub(blocks);
        }
        match outcome {
            ReadAheadOutcome::Used => self.count(blocks, 0),
            ReadAheadOutcome::Late => {
                if self.settling_blocks == 0 {
                    // The blocks in flight were proposed at half of the new depth.
                    self.depth_bytes *= 2.0;
                    self.settling_blocks = self.in_flight() + blocks;
                }
                self.count(blocks, 0);
            }
            ReadAheadOutcome::Wasted => {
                self.depth_bytes /= 2.0;
                self.count(blocks, blocks);
            }
            ReadAheadOutcome::Declined => {}
            ReadAheadOutcome::Absent => {
                // A request for an absent key is waste: too much of it pauses read-ahead, as unread blocks
                // do.
                self.count(blocks, blocks);
                let name = NumberedKey::of(key);
                if let Some(number) = name.number().filter(|_| name.row() == self.row) {
                    self.end = self.end.min(number);
                }
            }
        }
        self.settling_blocks = self.settling_blocks.saturating_sub(blocks);
    }

    /// Counts outcomes; too much waste pauses read-ahead.
    fn count(&mut self, blocks: u32, wasted: u32) {
        self.outcomes += f64::from(blocks);
        self.wasted += f64::from(wasted);
        if self.wasted >= WASTE_BLOCKS && self.wasted > WASTE_SHARE * self.outcomes {
            self.paused_requests = self.next_pause;
            self.next_pause = (2 * self.next_pause).min(PAUSE_REQUESTS_MAX);
            (self.outcomes, self.wasted) = (0.0, 0.0);
        } else if self.outcomes > MEMORY_BLOCKS {
            self.outcomes /= 2.0;
            self.wasted /= 2.0;
            self.next_pause = PAUSE_REQUESTS;
        }
    }
}

/// Euclid's algorithm.
const fn greatest_divisor(mut one: u64, mut other: u64) -> u64 {
    while other != 0 {
        (one, other) = (other, one % other);
    }
    one
}

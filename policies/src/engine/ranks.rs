//! Whether callers of a family are ranks of one job, or jobs of their own.
//!
//! Ranks deal a dataset out: what one of them has read in a pass no other one reads in it. Jobs of their own
//! know nothing of each other: each reads what others have read already as often as chance would have it,
//! which is the share of the dataset that they have read. So repeats are counted beside what chance would
//! bring, as in the birthday problem: of a dataset of n blocks a few times √n reads tell. And ranks begin an
//! epoch together: of callers who follow one another in one order, all but the first come back to what was
//! read, and that one reads what nobody has. So each of them has to be back, by most of what it reads.
//! Bounded: callers beyond [`RANKS_MAX`] are not told apart.

use super::names::Hashed;
use super::run::Read;
use std::collections::HashMap;

/// Repeats that chance has to bring, or that there have to be, before anything is said.
const REPEATS_MIN: f64 = 8.0;
/// Of what chance would bring, ranks have so many at most: what comes out even and who is late; jobs of their
/// own have so many at least.
const RANKS_SHARE: f64 = 0.25;
const APART_SHARE: f64 = 0.5;
/// Callers that are told apart.
const RANKS_MAX: usize = 1024;
/// With more ranks no more objects are waited for until a pass has begun.
const EVEN_MAX: u32 = 32;
/// Ranks pause when nothing is begun for so many times as long as it takes within a pass.
const PAUSE_INTERVALS: f64 = 4.0;

/// What it looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// They are ranks of one job.
    Ranks,
    /// They are not.
    Apart,
    /// Who knows.
    Unknown,
}

/// What a caller has done in a pass.
#[derive(Clone, Copy, Debug, Default)]
struct Share {
    /// Objects that it has begun.
    objects: u32,
    /// Those of them that were read in the pass before.
    again: u32,
}

impl Share {
    /// Whether it has begun the pass anew: one object may be a request that was sent twice.
    const fn is_back(self) -> bool {
        self.again > 1 && self.again * 2 > self.objects
    }
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct Ranks {
    shares: HashMap<u64, Share, Hashed>,
    /// Objects that all of them have begun in this pass.
    objects: u32,
    /// How many of them are back, and how many there were in the pass before.
    back: usize,
    before: usize,
    /// Over all reads the sum of what others had read: so many repeats would be by chance in a dataset of one
    /// block.
    others: f64,
    /// The same of the reads since a run of repeats began, which are of another pass if that is one.
    others_in_run: f64,
    /// Repeats that began no pass.
    repeats: u32,
}

impl Ranks {
    /// One of them reads a block, in a pass of which all have read so many; it was read in the pass before,
    /// or not; and there is a run of repeats, or not.
    pub(super) fn note(&mut self, read: &Read, is_again: bool, reads: u32, is_in_run: bool) {
        let share = self.deal(read, is_again);
        let others = 1.0 - f64::from(share.objects) / f64::from(self.objects.max(1));
        self.others_in_run += f64::from(reads) * others;
        if !is_in_run {
            self.others += std::mem::take(&mut self.others_in_run);
        }
    }

    fn deal(&mut self, read: &Read, is_again: bool) -> Share {
        if self.shares.len() >= RANKS_MAX && !self.shares.contains_key(&read.caller) {
            return Share::default();
        }
        let share = self.shares.entry(read.caller).or_default();
        self.back -= usize::from(share.is_back());
        self.objects += u32::from(read.begins);
        share.objects += u32::from(read.begins);
        share.again += u32::from(read.begins && is_again);
        self.back += usize::from(share.is_back());
        *share
    }

    /// There were repeats that began no pass.
    pub(super) const fn note_repeats(&mut self, repeats: u32) {
        self.repeats = self.repeats.saturating_add(repeats);
    }

    /// A pass has begun, with these reads.
    pub(super) fn begin_pass(&mut self, reads: &[Read]) {
        self.before = self.shares.len();
        self.shares.clear();
        (self.objects, self.back, self.others_in_run) = (0, 0, 0.0);
        for read in reads {
            self.deal(read, read.is_repeat);
        }
    }

    /// How many callers have read in this pass, as far as they are waited for.
    pub(super) fn count(&self) -> u32 {
        (self.shares.len() as u32).min(EVEN_MAX)
    }

    /// How long nothing is begun when they pause, in a pass that has taken so long.
    pub(super) fn pause_us(&self, pass_us: u64) -> f64 {
        PAUSE_INTERVALS * pass_us as f64 / f64::from(self.objects.max(1))
    }

    /// What they are, where `known` blocks of the dataset are known.
    pub(super) fn verdict(&self, known: u32) -> Verdict {
        let expected = self.others / f64::from(known.max(1));
        let repeats = f64::from(self.repeats);
        let are_back = self.back >= self.before.max(2);
        if repeats >= REPEATS_MIN && repeats > APART_SHARE * expected {
            Verdict::Apart
        } else if are_back && expected >= REPEATS_MIN && repeats <= RANKS_SHARE * expected {
            Verdict::Ranks
        } else {
            Verdict::Unknown
        }
    }
}

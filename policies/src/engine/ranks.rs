//! Detection of ranks: whether the callers of a family are ranks of one job or independent jobs.
//!
//! Ranks share a dataset: a block that one of them has read in a pass is read by no other in the same pass.
//! Independent jobs read blocks that others have read with the probability of chance, which is the share of
//! the dataset that the others have read. The repeats are therefore compared with the number expected by
//! chance, as in the birthday problem: in a dataset of n blocks, a small multiple of √n reads suffices. Ranks
//! also begin an epoch together. Of callers that follow one another in one order, all but the first return to
//! blocks that were read before, while the first reads blocks that no other caller has read. Each caller
//! therefore has to have returned, in most of its reads. Bounded: callers beyond [`RANKS_MAX`] are not
//! distinguished.

use super::names::BuildPassThroughHasher;
use super::run::CountedRead;
use std::collections::HashMap;

/// Minimum repeats, expected by chance or counted, before a verdict.
const REPEATS_MIN: f64 = 8.0;
/// Ranks have at most `RANKS_REPEATS_SHARE` of the repeats expected by chance (evened-out passes and
/// stragglers); independent jobs have at least `SEPARATE_REPEATS_SHARE`.
const RANKS_REPEATS_SHARE: f64 = 0.25;
const SEPARATE_REPEATS_SHARE: f64 = 0.5;
/// Maximum callers that are distinguished.
const RANKS_MAX: usize = 1024;
/// Maximum number of ranks whose evening-out objects are waited for before a pass counts as begun.
const WAITED_RANKS_MAX: u32 = 32;
/// Ranks pause when no object is begun for this many times the usual interval within a pass.
const PAUSE_INTERVALS: f64 = 4.0;

/// Result of the detection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RankVerdict {
    /// The callers are ranks of one job.
    Ranks,
    /// The callers are independent jobs.
    Separate,
    /// Not known yet.
    Unknown,
}

/// Reads of one caller in a pass.
#[derive(Clone, Copy, Debug, Default)]
struct CallerReads {
    /// Objects that it has begun.
    objects: u32,
    /// Objects among these that were read in the previous pass.
    returned_objects: u32,
}

impl CallerReads {
    /// True if it has begun the pass anew; a single object may be a duplicate request.
    const fn has_returned(self) -> bool {
        self.returned_objects > 1 && self.returned_objects * 2 > self.objects
    }
}

/// Rank detection; see the module.
#[derive(Clone, Debug, Default)]
pub(super) struct Ranks {
    shares: HashMap<u64, CallerReads, BuildPassThroughHasher>,
    /// Objects begun by all callers in this pass.
    objects: u32,
    /// Callers that have returned, and callers in the previous pass.
    returned: usize,
    earlier_callers: usize,
    /// Sum over all reads of the blocks that others had read: the number of repeats expected by chance in a
    /// dataset of one block.
    expected_repeats: f64,
    /// The same for reads since a run of repeats began; they belong to another pass if the run is a pass.
    expected_in_run: f64,
    /// Repeats that began no pass.
    repeats: u32,
}

impl Ranks {
    /// Records a read by a caller, in a pass with `reads` blocks read by all callers so far. The read may
    /// belong to a run of repeats.
    pub(super) fn record_read(&mut self, read: &CountedRead, reads: u32) {
        let share = self.count_read(read);
        let others = 1.0 - f64::from(share.objects) / f64::from(self.objects.max(1));
        self.expected_in_run += f64::from(reads) * others;
    }

    /// Records that the reads so far belong to no run of repeats.
    pub(super) fn end_run(&mut self) {
        self.expected_repeats += std::mem::take(&mut self.expected_in_run);
    }

    fn count_read(&mut self, read: &CountedRead) -> CallerReads {
        if self.shares.len() >= RANKS_MAX && !self.shares.contains_key(&read.caller) {
            return CallerReads::default();
        }
        let share = self.shares.entry(read.caller).or_default();
        self.returned -= usize::from(share.has_returned());
        self.objects += u32::from(read.begins_object);
        share.objects += u32::from(read.begins_object);
        share.returned_objects += u32::from(read.begins_object && read.is_return);
        self.returned += usize::from(share.has_returned());
        let share = *share;
        assert!(self.returned <= self.shares.len(), "only callers of the pass have returned");
        share
    }

    /// Counts repeats that began no pass.
    pub(super) const fn add_repeats(&mut self, repeats: u32) {
        self.repeats = self.repeats.saturating_add(repeats);
    }

    /// Starts a pass that begins with these reads.
    pub(super) fn begin_pass(&mut self, reads: &[CountedRead]) {
        self.earlier_callers = self.shares.len();
        self.shares.clear();
        (self.objects, self.returned, self.expected_in_run) = (0, 0, 0.0);
        for read in reads {
            self.count_read(&read.in_next_pass());
        }
    }

    /// Returns the number of callers in this pass, up to the maximum that is waited for.
    pub(super) fn count(&self) -> u32 {
        (self.shares.len() as u32).min(WAITED_RANKS_MAX)
    }

    /// Returns the time without a begun object that counts as a pause, in a pass that has taken `pass_us` so
    /// far.
    pub(super) fn pause_us(&self, pass_us: u64) -> f64 {
        PAUSE_INTERVALS * pass_us as f64 / f64::from(self.objects.max(1))
    }

    /// Returns the verdict for a dataset with `known` known blocks.
    pub(super) fn verdict(&self, known: u32) -> RankVerdict {
        let expected = self.expected_repeats / f64::from(known.max(1));
        let repeats = f64::from(self.repeats);
        let have_returned = self.returned >= self.earlier_callers.max(2);
        if repeats >= REPEATS_MIN && repeats > SEPARATE_REPEATS_SHARE * expected {
            RankVerdict::Separate
        } else if have_returned && expected >= REPEATS_MIN && repeats <= RANKS_REPEATS_SHARE * expected {
            RankVerdict::Ranks
        } else {
            RankVerdict::Unknown
        }
    }
}

//! Run of repeats: when a job reads blocks that it has already read in this pass, it may have begun a new
//! pass.
//!
//! Within a pass few reads are repeats (retries, stragglers); in a new pass most are, though not all where a
//! sampler leaves out the rest that fills no batch. The change is detected by a cumulative sum (Page,
//! "Continuous inspection schemes", 1954): a repeat adds to a score, a first read subtracts less from it, the
//! score is never negative, and the new pass began where it last left zero. Ranks with one object too few end
//! their pass with one repeat each, to even out; such repeats do not begin a pass. Bounded: the first reads
//! of a long run are remembered.

use super::slot::Slot;

/// Amount that a first read subtracts, relative to the 1 that a repeat adds: a run continues while more than
/// a third of the reads are repeats. A pass that leaves out one batch per rank of a small dataset has three
/// fifths of repeats; independent readers of one dataset approach a third slowly, after many repeats.
const FRESH_COST: f64 = 0.5;
/// Maximum remembered reads of a run.
const READS_MAX: usize = 32;

/// A counted read of a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct CountedRead {
    pub(super) at_us: u64,
    pub(super) slot: Slot,
    /// Stream of the read.
    pub(super) caller: u64,
    /// True if it is the first counted read of its object.
    pub(super) begins_object: bool,
    /// True if its job has already read the block in this pass.
    pub(super) is_repeat: bool,
    /// True if its job read the block in the previous pass, as far as known.
    pub(super) is_return: bool,
}

impl CountedRead {
    /// Returns the same read as seen from the pass that it has helped to begin.
    pub(super) const fn in_next_pass(self) -> Self {
        Self { is_repeat: false, is_return: self.is_repeat, ..self }
    }
}

/// Run of repeats; see the module.
#[derive(Clone, Debug, Default)]
pub(super) struct RepeatRun {
    reads: Vec<CountedRead>,
    score: f64,
    started_us: u64,
    repeats: u32,
    fresh: u32,
    /// Number of objects begun again.
    objects: u32,
}

impl RepeatRun {
    /// True if there is a run.
    pub(super) const fn is_active(&self) -> bool {
        self.repeats > 0
    }

    /// Returns the start of the current or last run.
    pub(super) const fn started_us(&self) -> u64 {
        self.started_us
    }

    /// Returns the number of reads in the run, repeats and first reads.
    pub(super) const fn length(&self) -> u32 {
        self.repeats + self.fresh
    }

    pub(super) const fn fresh(&self) -> u32 {
        self.fresh
    }

    /// Returns the first reads of the run.
    pub(super) fn reads(&self) -> &[CountedRead] {
        &self.reads
    }

    /// Records a read. If it ends a run that was no pass, returns its number of repeats; 0 otherwise.
    pub(super) fn record(&mut self, read: CountedRead) -> u32 {
        if read.is_repeat {
            self.add_repeat(read);
        } else if self.is_active() {
            self.score -= FRESH_COST;
            self.fresh += 1;
        } else {
            return 0;
        }
        if self.score <= 0.0 {
            let repeats = self.repeats;
            self.clear();
            return repeats;
        }
        if self.reads.len() < READS_MAX {
            self.reads.push(read);
        }
        0
    }

    fn add_repeat(&mut self, read: CountedRead) {
        if !self.is_active() {
            self.started_us = read.at_us;
        }
        self.score += 1.0;
        self.repeats += 1;
        self.objects += u32::from(read.begins_object);
    }

    fn clear(&mut self) {
        self.reads.clear();
        (self.score, self.repeats, self.fresh, self.objects) = (0.0, 0, 0, 0);
    }

    /// True if a pass has begun, given the required number of repeats and the number of ranks: to even out,
    /// ranks repeat fewer objects in total than there are ranks.
    pub(super) fn is_pass(&self, repeats: u32, ranks: u32) -> bool {
        self.score >= f64::from(repeats) && self.objects >= ranks
    }

    /// Removes the reads by which `ranks` ranks evened out: those before a pause, in which the ranks validate
    /// or wait for each other.
    pub(super) fn remove_evening_out(&mut self, ranks: u32, pause_us: f64) {
        let (mut objects, mut first) = (0, 0);
        for (at, pair) in self.reads.windows(2).enumerate() {
            objects += u32::from(pair[0].is_repeat && pair[0].begins_object);
            if objects >= ranks {
                break;
            }
            if (pair[1].at_us - pair[0].at_us) as f64 > pause_us {
                first = at + 1;
            }
        }
        let Some(more) = self.reads[first..].iter().position(|read| read.is_repeat) else { return };
        for read in self.reads.drain(..first + more) {
            *(if read.is_repeat { &mut self.repeats } else { &mut self.fresh }) -= 1;
        }
        self.started_us = self.reads[0].at_us;
    }
}

#[cfg(test)]
mod tests {
    use super::{CountedRead, READS_MAX, RepeatRun};

    fn read(at: u64, is_repeat: bool) -> CountedRead {
        CountedRead {
            at_us: at * 1000,
            slot: at as u32,
            caller: at % 4,
            begins_object: true,
            is_repeat,
            is_return: false,
        }
    }

    /// Returns a run of these reads, one per millisecond.
    fn run(repeats: impl IntoIterator<Item = bool>) -> RepeatRun {
        let mut run = RepeatRun::default();
        for (at, is_repeat) in repeats.into_iter().enumerate() {
            run.record(read(at as u64, is_repeat));
        }
        run
    }

    #[test]
    fn a_pass_begins_where_most_reads_become_repeats() {
        let before = (0..100).map(|at| at % 20 == 7);
        let run = run(before.chain((0..20).map(|at| at % 5 < 3)));
        assert!(run.is_pass(6, 0));
        assert_eq!((run.started_us(), run.length(), run.fresh()), (100_000, 20, 8));
    }

    #[test]
    fn few_repeats_are_not_a_pass_and_are_counted() {
        let mut run = RepeatRun::default();
        let mut strays = 0;
        for at in 0..400 {
            strays += run.record(read(at, at % 4 == 0));
            assert!(!run.is_pass(3, 0) && run.reads().len() <= 3);
        }
        assert!(strays >= 99, "{strays}");
    }

    #[test]
    fn repeats_that_even_out_ranks_begin_no_pass() {
        let mut run = run([true, true, true]);
        assert!(!run.is_pass(2, 4), "each of three ranks may have read one again");
        for at in 90..95 {
            run.record(read(at, true));
        }
        assert!(run.is_pass(6, 4));
        run.remove_evening_out(4, 10_000.0);
        assert_eq!((run.started_us(), run.length()), (90_000, 5));
        run.remove_evening_out(1, 0.0);
        assert_eq!(run.started_us(), 90_000, "one rank is even");
    }

    #[test]
    fn a_long_run_is_bounded() {
        let run = run((0..200).map(|_| true));
        assert_eq!((run.reads().len(), run.length()), (READS_MAX, 200));
    }
}

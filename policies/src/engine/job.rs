//! Job: a workload that reads a dataset pass after pass. Estimates its position in the pass and the time of
//! its next read of a block.
//!
//! A pass is recognized by repeated reads: a job that reads each block once per epoch reads no block twice
//! before the next epoch. A few repeats are not a pass (retries, stragglers among ranks); a [run](super::run)
//! of repeats is. All estimates are times, so jobs of any speed compare; they scale with the traffic and
//! contain no constants in seconds or bytes.

use super::ranks::Ranks;
use super::run::{CountedRead, RepeatRun};

/// Maximum jobs of a dataset; each takes four bits of an entry.
pub(super) const JOBS_MAX: usize = 8;
/// Maximum repeats that begin a new pass; fewer suffice in a small dataset.
const RUN_MAX: u32 = 6;
const RUN_MIN: u32 = 2;
/// Number of blocks in a pass per additional repeat that is required.
const BLOCKS_PER_REPEAT: u32 = 32;
/// Stamps of passes are 1 to 15, reused in a cycle; zero is the stamp of no pass.
pub(super) const FIRST_STAMP: u32 = 1;
const STAMPS: u32 = 15;
const _: () = assert!(STAMPS < 1 << 4 && 4 * JOBS_MAX <= u32::BITS as usize, "an entry holds all stamps");
/// Weight of the previous pass in the estimate of the current pass's speed.
const PASS_BEFORE_WEIGHT: f64 = 0.25;
/// Number of intervals without a read after which a job is stalled.
const STALL_INTERVALS: f64 = 8.0;
/// Weight of the newest pass in the moving averages over passes.
const NEWEST_WEIGHT: f64 = 0.5;
/// Lateness of the next pass, as a share of the period, at which the probability that it comes drops to 1/e.
/// A larger deviation of the periods increases it.
const OVERDUE_SHARE: f64 = 0.05;
/// Probability below which the next pass counts as overdue.
const OVERDUE_PROBABILITY: f64 = 0.2;

/// Number of reads in the moving average of irregular reads.
const SKEW_READS: f64 = 64.0;
/// Minimum blocks of a pass from which conclusions about other blocks are drawn.
const SURE_BLOCKS: u32 = 32;

/// Effect of a read on its job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum JobRead {
    /// First read of the block in this pass, after this many repeats that did not begin a new pass.
    Fresh { repeats: u32 },
    /// Repeated read in this pass.
    Repeat,
    /// Read that completes the evidence of a new pass; the job read this many blocks in the previous one.
    NewPass { blocks: u32 },
}

/// Reference to a job of a dataset: its index, and the serial number that distinguishes successive jobs with
/// that index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct JobRef {
    pub(super) place: usize,
    pub(super) serial: u32,
}

/// Fit of a read into passes, and the number of repeats before it, which do not fit.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadFit {
    pub(super) is_irregular: bool,
    pub(super) repeats: u32,
}

impl ReadFit {
    /// Adds the fit to a moving average.
    pub(super) fn add_to(self, skew: &mut f64) {
        for _ in 0..self.repeats {
            *skew += (1.0 - *skew) / SKEW_READS;
        }
        *skew += (f64::from(u8::from(self.is_irregular)) - *skew) / SKEW_READS;
    }
}

/// Callers whose reads make up a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum JobCallers {
    /// A single caller.
    Single,
    /// All callers of a family, on trial: they may go through the dataset together.
    Trial,
    /// All callers of a family, which are ranks of one job.
    Whole,
}

/// Source of a job's expected reads, and so of the worth of its blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadForecast {
    /// Its earlier passes.
    Estimate,
    /// The plan that it follows.
    Plan,
}

/// State of a job.
#[derive(Clone, Debug)]
pub(super) struct ReaderJob {
    pub(super) callers: JobCallers,
    /// Moving average of the share of reads that do not fit passes.
    pub(super) skew: f64,
    /// Number of reads in that average.
    pub(super) judged_reads: u32,
    /// Serial number among the jobs of its dataset.
    pub(super) serial: u32,
    /// True if its place among the jobs of its dataset is taken.
    pub(super) is_active: bool,
    /// Source of its expected reads.
    pub(super) forecast: ReadForecast,
    /// Family of its callers.
    pub(super) family: u64,
    /// Stamp of blocks that it has read in this pass.
    pub(super) stamp: u32,
    /// Blocks read in this pass.
    pub(super) reads: u32,
    /// Blocks of its last completed pass.
    pub(super) blocks: u32,
    /// Completed passes.
    pub(super) passes: u32,
    /// Completed passes that turned out not to be passes, because its dataset was read in no order.
    pub(super) void_passes: u32,
    /// Blocks that were requested again shortly after since the last fresh one: duplicate requests, or a new
    /// pass that begins with the blocks read last.
    repeats: u32,
    /// Time of the first of these repeats.
    repeating_since_us: u64,
    /// Number of these repeats at the start of this pass, and the length of the last completed pass including
    /// its own.
    repeats_at_start: u32,
    length: u32,
    /// Time of the first read, and start of the current pass.
    pub(super) first_us: u64,
    started_us: u64,
    /// Time of the last read.
    pub(super) last_us: u64,
    /// Time between the starts of successive passes, as a moving average, and its mean deviation.
    period_us: f64,
    deviation_us: f64,
    /// Time from the start of a pass to its last fresh read, as a moving average.
    duration_us: f64,
    last_fresh_us: u64,
    run: RepeatRun,
    /// Rank detection of a job of all callers of a family.
    pub(super) ranks: Ranks,
}

/// Returns the stamp of the pass after that of `stamp`.
pub(super) const fn next_stamp(stamp: u32) -> u32 {
    stamp % STAMPS + 1
}

impl ReaderJob {
    /// Returns a job of a family whose first pass has this stamp.
    pub(super) fn new(now_us: u64, family: u64, serial: u32, stamp: u32) -> Self {
        Self {
            callers: JobCallers::Single,
            skew: 0.0,
            judged_reads: 0,
            serial,
            is_active: true,
            forecast: ReadForecast::Estimate,
            family,
            stamp,
            reads: 0,
            blocks: 0,
            passes: 0,
            void_passes: 0,
            repeats: 0,
            repeating_since_us: now_us,
            repeats_at_start: 0,
            length: 0,
            first_us: now_us,
            started_us: now_us,
            last_us: now_us,
            period_us: 0.0,
            deviation_us: 0.0,
            duration_us: 0.0,
            last_fresh_us: now_us,
            run: RepeatRun::default(),
            ranks: Ranks::default(),
        }
    }

    /// Records a read of a block; `read.is_repeat` is true if the job has read it in this pass already.
    pub(super) fn read(&mut self, read: CountedRead) -> JobRead {
        self.last_us = read.at_us;
        let repeats = self.run.record(read);
        if !read.is_repeat {
            self.reads += 1;
            self.repeats = 0;
            self.last_fresh_us = read.at_us;
            return JobRead::Fresh { repeats };
        }
        if !self.run.is_pass(self.run_required(), self.ranks.count()) {
            return JobRead::Repeat;
        }
        self.run.remove_evening_out(
            self.ranks.count(),
            self.ranks.pause_us(self.last_fresh_us - self.started_us),
        );
        // Jobs occasionally repeat blocks that they have just read. Only `RUN_MAX` or more such repeats are
        // taken as the beginning of the pass.
        let has_repeats = self.repeats >= RUN_MAX;
        let began_us = self.run.started_us();
        self.begin_pass(if has_repeats { began_us.min(self.repeating_since_us) } else { began_us });
        JobRead::NewPass { blocks: self.blocks }
    }

    fn run_required(&self) -> u32 {
        (RUN_MIN + self.reads / BLOCKS_PER_REPEAT).min(RUN_MAX)
    }

    /// Ends a pass and starts the next one at `began_us`, with the run of repeats.
    fn begin_pass(&mut self, began_us: u64) {
        let period_us = (began_us - self.started_us) as f64;
        let duration_us = (self.last_fresh_us.min(began_us) - self.started_us) as f64;
        assert!(self.reads >= self.run.fresh(), "first reads of a run are reads of its pass");
        let blocks = self.reads - self.run.fresh();
        if self.passes == 0 {
            (self.period_us, self.duration_us) = (period_us, duration_us);
        } else {
            self.deviation_us += NEWEST_WEIGHT * ((period_us - self.period_us).abs() - self.deviation_us);
            self.period_us += NEWEST_WEIGHT * (period_us - self.period_us);
            self.duration_us += NEWEST_WEIGHT * (duration_us - self.duration_us);
        }
        self.length = blocks + self.repeats_at_start;
        self.repeats_at_start = std::mem::take(&mut self.repeats);
        self.blocks = blocks;
        self.passes += 1;
        self.stamp = next_stamp(self.stamp);
        self.reads = 0;
        self.started_us = began_us;
        self.last_fresh_us = self.last_us;
    }

    /// Counts the fit of a read into passes, and the repeats before it, which do not fit.
    pub(super) fn judge(&mut self, judged: ReadFit) {
        self.judged_reads = self.judged_reads.saturating_add(judged.repeats + 1);
        judged.add_to(&mut self.skew);
    }

    /// Takes the run of reads that revealed the start of the pass; they belong to this pass.
    pub(super) fn take_run(&mut self) -> RepeatRun {
        let run = std::mem::take(&mut self.run);
        self.reads += run.length();
        run
    }

    /// True if it repeats blocks as at the start of a pass.
    pub(super) const fn is_repeating(&self) -> bool {
        self.run.is_active()
    }

    /// Records a repeated request for a recently requested block.
    pub(super) const fn record_repeat(&mut self, now_us: u64) {
        if self.repeats == 0 {
            self.repeating_since_us = now_us;
        }
        self.repeats += 1;
    }

    /// Returns the passes that are over, including the current one once it is as long as the last completed
    /// one.
    pub(super) fn passes_over(&self) -> u32 {
        self.passes + u32::from(self.is_proven() && self.reads + self.repeats_at_start >= self.length)
    }

    /// True if it is the job of a single caller of this family.
    pub(super) fn is_single_of(&self, family: u64) -> bool {
        self.is_active && self.callers == JobCallers::Single && self.family == family
    }

    /// True if it has completed a pass and begun another.
    pub(super) const fn is_proven(&self) -> bool {
        self.passes > 0
    }

    /// True if that is beyond doubt.
    pub(super) const fn is_sure(&self) -> bool {
        self.passes > 1 && self.blocks >= SURE_BLOCKS
    }

    /// True if it has been silent for longer than this share of the time for which it was active.
    pub(super) fn is_done(&self, now_us: u64, share: f64) -> bool {
        let silent_us = now_us.saturating_sub(self.last_us) as f64;
        self.reads > 1 && silent_us > share * (self.last_us - self.first_us) as f64
    }

    /// Returns the share of the period that a pass takes.
    pub(super) fn pass_share(&self) -> f64 {
        if self.is_proven() {
            return self.duration_us / self.period_us.max(1.0);
        }
        (self.last_fresh_us - self.started_us) as f64
            / ((self.run.started_us() - self.started_us) as f64).max(1.0)
    }

    /// Returns the start of the current pass.
    pub(super) const fn started_us(&self) -> u64 {
        self.started_us
    }

    /// True if it appears to have begun a second pass.
    pub(super) const fn has_come_back(&self) -> bool {
        self.is_proven() || self.is_repeating()
    }

    /// Returns the time between the starts of successive passes.
    pub(super) const fn period_us(&self) -> f64 {
        self.period_us
    }

    /// Returns the blocks that it has yet to read in this pass, of a dataset with `known` known blocks.
    pub(super) fn left(&self, known: u32) -> u32 {
        let whole = if self.is_proven() { self.blocks } else { known };
        whole.saturating_sub(self.reads)
    }

    /// Returns the mean time between its reads within a pass.
    fn interval_us(&self, now_us: u64) -> f64 {
        let reads = f64::from(self.reads) + PASS_BEFORE_WEIGHT * f64::from(self.blocks);
        if reads < 1.0 {
            return (now_us - self.started_us) as f64 + 1.0;
        }
        let elapsed = (self.last_fresh_us - self.started_us) as f64;
        ((elapsed + PASS_BEFORE_WEIGHT * self.duration_us) / reads).max(1e-3)
    }

    /// Returns the rate at which it is expected to read a block.
    pub(super) fn expected_reads(&self, now_us: u64, known: u32) -> ExpectedReads {
        let left = f64::from(self.left(known));
        let interval_us = self.interval_us(now_us);
        let stall_us = ((now_us - self.last_us) as f64 - STALL_INTERVALS * interval_us).max(0.0);
        let pass_end_us = left * interval_us + stall_us;
        let read = if self.is_proven() {
            let due_us = self.due_us(now_us);
            let next_pass_us = due_us.abs().max(pass_end_us);
            let half_us = (interval_us * f64::from(self.blocks)).max(1.0) / 2.0;
            self.return_probability(due_us) / (next_pass_us + half_us)
        } else {
            0.0
        };
        let unread = if left > 0.0 { pass_end_us.max(interval_us).recip().max(read) } else { read };
        ExpectedReads { read, unread, interval_us }
    }

    /// Returns the time until its next pass is expected to begin; negative if it is overdue.
    fn due_us(&self, now_us: u64) -> f64 {
        self.period_us - (now_us - self.started_us) as f64
    }

    /// Returns the probability that the next pass, due in `due_us`, still comes.
    fn return_probability(&self, due_us: f64) -> f64 {
        let patience_us = (OVERDUE_SHARE * self.period_us).max(2.0 * self.deviation_us);
        if due_us >= 0.0 || patience_us <= 0.0 { 1.0 } else { (due_us / patience_us).exp() }
    }

    /// True if its next pass should have begun long ago.
    pub(super) fn is_overdue(&self, now_us: u64) -> bool {
        self.is_proven()
            && self.left(0) == 0
            && self.return_probability(self.due_us(now_us)) < OVERDUE_PROBABILITY
    }
}

/// Expected read rates of a job: one over the time until the read, in 1/microseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct ExpectedReads {
    /// Rate for a block that it has read in this pass.
    pub(super) read: f64,
    /// Rate for a block that it has not read in this pass.
    pub(super) unread: f64,
    /// Time between its reads, in microseconds.
    pub(super) interval_us: f64,
}

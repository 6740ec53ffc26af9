//! A job: a workload that reads a dataset, pass after pass. How far it is, when it will ask for a block
//! again.
//!
//! A pass is told from what is read twice: one that reads once per epoch reads nothing twice before it has
//! begun anew. A few repeats are none (retries, stragglers among ranks); a [run](super::run) of them is. What
//! is estimated is a time, so that jobs of any speed compare; it scales with the traffic and holds no
//! constant of seconds or bytes.

use super::ranks::Ranks;
use super::run::{Read, Run};

/// A new pass is begun by so many repeats at most; by fewer in a small dataset.
const RUN_MAX: u32 = 6;
const RUN_MIN: u32 = 2;
/// Of so many blocks in a pass, one repeat more is asked for.
const BLOCKS_PER_REPEAT: u32 = 32;
/// Stamps of passes go round from the first on; zero is of no pass.
pub(super) const FIRST_STAMP: u32 = 1;
const STAMPS: u32 = 15;
/// How much the pass before weighs in the estimate of this one's speed.
const PASS_BEFORE_WEIGHT: f64 = 0.25;
/// A job that is so many of its intervals late is stalling.
const STALL_INTERVALS: f64 = 8.0;
/// How much the newest pass weighs in what is known of passes.
const NEWEST_WEIGHT: f64 = 0.5;
/// When the next pass is late by this share of the period, hope that it comes is down to a third, unless
/// periods vary more.
const OVERDUE_SHARE: f64 = 0.05;
/// Less hope is none.
const OVERDUE_HOPE: f64 = 0.2;

/// Reads over which it is averaged how regular they are.
const SKEW_READS: f64 = 64.0;
/// Passes over fewer blocks prove nothing about others.
const SURE_BLOCKS: u32 = 32;

/// What a read was to a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reading {
    /// The first in this pass, behind so many repeats that began no new one.
    Fresh { repeats: u32 },
    /// One more in this pass.
    Repeat,
    /// The one that shows that a new pass has begun, of a job that had read so many blocks in the one before.
    NewPass { blocks: u32 },
}

/// A job of a dataset: its place among them, and which one it is of those that had that place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct JobRef {
    pub(super) place: usize,
    pub(super) serial: u32,
}

/// Whether a read fits passes, and how many repeats there were before it, which do not.
#[derive(Clone, Copy, Debug)]
pub(super) struct Judged {
    pub(super) is_irregular: bool,
    pub(super) repeats: u32,
}

impl Judged {
    /// Adds it to a moving average.
    pub(super) fn add_to(self, skew: &mut f64) {
        for _ in 0..self.repeats {
            *skew += (1.0 - *skew) / SKEW_READS;
        }
        *skew += (f64::from(u8::from(self.is_irregular)) - *skew) / SKEW_READS;
    }
}

/// Whose reads a job is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// One caller's.
    Single,
    /// Those of all callers of a family, to see whether they go through the dataset together.
    Trial,
    /// Those of all callers of a family, who are ranks of one job.
    Whole,
}

/// What is known of a job.
#[derive(Clone, Debug)]
pub(super) struct Job {
    pub(super) role: Role,
    /// How irregular its reads are: a moving average of those that do not fit passes.
    pub(super) skew: f64,
    /// Reads that this was averaged over.
    pub(super) judged: u32,
    /// Which one it is of its dataset's.
    pub(super) serial: u32,
    /// Its place among the jobs of its dataset is taken.
    pub(super) is_active: bool,
    /// It follows a plan, which says what its blocks are worth.
    pub(super) is_planned: bool,
    /// Who it is: what its callers have in common.
    pub(super) family: u64,
    /// What blocks are stamped with that it has read in this pass.
    pub(super) stamp: u32,
    /// Blocks that it has read in this pass.
    pub(super) reads: u32,
    /// Blocks of its last whole pass.
    pub(super) blocks: u32,
    /// Passes that it has been through.
    pub(super) passes: u32,
    /// Those of them that turned out to be none, as its dataset was read in no passes.
    pub(super) void: u32,
    /// Blocks that were asked for again at once since the last fresh one: requests that were sent twice, or a
    /// new pass that begins with what was read last.
    again: u32,
    /// Since when that is.
    again_us: u64,
    /// How many that were when this pass began, and how many the last whole one was with its own.
    skipped: u32,
    length: u32,
    /// When it came, and when this pass began.
    pub(super) came_us: u64,
    started_us: u64,
    /// When it read last.
    pub(super) last_us: u64,
    /// From one pass's begin to the next one's, as it was lately, and how much that varies.
    period_us: f64,
    deviation_us: f64,
    /// From a pass's begin to its last fresh read.
    duration_us: f64,
    last_fresh_us: u64,
    run: Run,
    /// Of a job of all callers of a family: whether they are ranks.
    pub(super) ranks: Ranks,
}

/// The stamp of the pass behind that of `stamp`.
pub(super) const fn next_stamp(stamp: u32) -> u32 {
    stamp % STAMPS + 1
}

impl Job {
    /// A job of a family whose first pass is stamped so.
    pub(super) fn new(now_us: u64, family: u64, serial: u32, stamp: u32) -> Self {
        Self {
            role: Role::Single,
            skew: 0.0,
            judged: 0,
            serial,
            is_active: true,
            is_planned: false,
            family,
            stamp,
            reads: 0,
            blocks: 0,
            passes: 0,
            void: 0,
            again: 0,
            again_us: now_us,
            skipped: 0,
            length: 0,
            came_us: now_us,
            started_us: now_us,
            last_us: now_us,
            period_us: 0.0,
            deviation_us: 0.0,
            duration_us: 0.0,
            last_fresh_us: now_us,
            run: Run::default(),
            ranks: Ranks::default(),
        }
    }

    /// It reads a block, which it has read in this pass already, or not.
    pub(super) fn read(&mut self, read: Read) -> Reading {
        self.last_us = read.at_us;
        let repeats = self.run.note(read);
        if !read.is_repeat {
            self.reads += 1;
            self.again = 0;
            self.last_fresh_us = read.at_us;
            return Reading::Fresh { repeats };
        }
        if !self.run.is_pass(self.run_wanted(), self.ranks.count()) {
            return Reading::Repeat;
        }
        self.run.even_out(self.ranks.count(), self.ranks.pause_us(self.last_fresh_us - self.started_us));
        // What it has read a moment ago it asks for once more now and then; so much of it begins the pass.
        let is_again = self.again >= RUN_MAX;
        let began_us = self.run.started_us();
        self.begin_pass(if is_again { began_us.min(self.again_us) } else { began_us });
        Reading::NewPass { blocks: self.blocks }
    }

    fn run_wanted(&self) -> u32 {
        (RUN_MIN + self.reads / BLOCKS_PER_REPEAT).min(RUN_MAX)
    }

    /// A pass is over and the next one began then, with the run of repeats.
    fn begin_pass(&mut self, began_us: u64) {
        let period_us = (began_us - self.started_us) as f64;
        let duration_us = (self.last_fresh_us.min(began_us) - self.started_us) as f64;
        let blocks = self.reads - self.run.fresh();
        if self.passes == 0 {
            (self.period_us, self.duration_us) = (period_us, duration_us);
        } else {
            self.deviation_us += NEWEST_WEIGHT * ((period_us - self.period_us).abs() - self.deviation_us);
            self.period_us += NEWEST_WEIGHT * (period_us - self.period_us);
            self.duration_us += NEWEST_WEIGHT * (duration_us - self.duration_us);
        }
        self.length = blocks + self.skipped;
        self.skipped = std::mem::take(&mut self.again);
        self.blocks = blocks;
        self.passes += 1;
        self.stamp = next_stamp(self.stamp);
        self.reads = 0;
        self.started_us = began_us;
        self.last_fresh_us = self.last_us;
    }

    /// Counts whether a read fits passes, and the repeats before it, which do not.
    pub(super) fn judge(&mut self, judged: Judged) {
        self.judged = self.judged.saturating_add(judged.repeats + 1);
        judged.add_to(&mut self.skew);
    }

    /// The reads that showed that a pass had begun: they belong to it.
    pub(super) fn take_run(&mut self) -> Run {
        let run = std::mem::take(&mut self.run);
        self.reads += run.length();
        run
    }

    /// Whether it repeats what it has read, as if it began a pass.
    pub(super) const fn is_repeating(&self) -> bool {
        self.run.is_on()
    }

    /// It asks again for a block that it has asked for a moment ago.
    pub(super) const fn note_again(&mut self, now_us: u64) {
        if self.again == 0 {
            self.again_us = now_us;
        }
        self.again += 1;
    }

    /// Passes that are over: also the one that it is in, once that is as long as the last whole one.
    pub(super) fn passes_over(&self) -> u32 {
        self.passes + u32::from(self.is_proven() && self.reads + self.skipped >= self.length)
    }

    /// Whether it is one caller's, of a family.
    pub(super) fn is_single_of(&self, family: u64) -> bool {
        self.is_active && self.role == Role::Single && self.family == family
    }

    /// Whether it has been through the dataset and come again.
    pub(super) const fn is_proven(&self) -> bool {
        self.passes > 0
    }

    /// Whether that is beyond doubt.
    pub(super) const fn is_sure(&self) -> bool {
        self.passes > 1 && self.blocks >= SURE_BLOCKS
    }

    /// Whether it has been silent for so large a share of the time that it was at work.
    pub(super) fn is_done(&self, now_us: u64, share: f64) -> bool {
        let silent_us = now_us.saturating_sub(self.last_us) as f64;
        self.reads > 1 && silent_us > share * (self.last_us - self.came_us) as f64
    }

    /// The share of the time that it is at a pass.
    pub(super) fn pass_share(&self) -> f64 {
        if self.is_proven() {
            return self.duration_us / self.period_us.max(1.0);
        }
        (self.last_fresh_us - self.started_us) as f64
            / ((self.run.started_us() - self.started_us) as f64).max(1.0)
    }

    /// When the pass that it is in began.
    pub(super) const fn started_us(&self) -> u64 {
        self.started_us
    }

    /// Whether it has begun a second pass, by all appearances.
    pub(super) const fn has_come_back(&self) -> bool {
        self.is_proven() || self.is_repeating()
    }

    /// From one pass's begin to the next one's.
    pub(super) const fn period_us(&self) -> f64 {
        self.period_us
    }

    /// Blocks that it will still ask for in this pass, of a dataset of which so many are known.
    pub(super) fn left(&self, known: u32) -> u32 {
        let whole = if self.is_proven() { self.blocks } else { known };
        whole.saturating_sub(self.reads)
    }

    /// Mean time between its reads within a pass.
    fn interval_us(&self, now_us: u64) -> f64 {
        let reads = f64::from(self.reads) + PASS_BEFORE_WEIGHT * f64::from(self.blocks);
        if reads < 1.0 {
            return (now_us - self.started_us) as f64 + 1.0;
        }
        let elapsed = (self.last_fresh_us - self.started_us) as f64;
        ((elapsed + PASS_BEFORE_WEIGHT * self.duration_us) / reads).max(1e-3)
    }

    /// How often it is expected to ask for a block.
    pub(super) fn expects(&self, now_us: u64, known: u32) -> Expected {
        let left = f64::from(self.left(known));
        let interval_us = self.interval_us(now_us);
        let stall_us = ((now_us - self.last_us) as f64 - STALL_INTERVALS * interval_us).max(0.0);
        let pass_end_us = left * interval_us + stall_us;
        let read = if self.is_proven() {
            let due_us = self.due_us(now_us);
            let next_pass_us = due_us.abs().max(pass_end_us);
            let half_us = (interval_us * f64::from(self.blocks)).max(1.0) / 2.0;
            self.hope(due_us) / (next_pass_us + half_us)
        } else {
            0.0
        };
        let unread = if left > 0.0 { pass_end_us.max(interval_us).recip().max(read) } else { read };
        Expected { read, unread, interval_us }
    }

    /// How long until its next pass is expected to begin; less than nothing when it is overdue.
    fn due_us(&self, now_us: u64) -> f64 {
        self.period_us - (now_us - self.started_us) as f64
    }

    /// How likely it still is that the next pass comes, which is due then.
    fn hope(&self, due_us: f64) -> f64 {
        let patience_us = (OVERDUE_SHARE * self.period_us).max(2.0 * self.deviation_us);
        if due_us >= 0.0 || patience_us <= 0.0 { 1.0 } else { (due_us / patience_us).exp() }
    }

    /// Whether its next pass should have begun long ago.
    pub(super) fn is_overdue(&self, now_us: u64) -> bool {
        self.is_proven() && self.left(0) == 0 && self.hope(self.due_us(now_us)) < OVERDUE_HOPE
    }
}

/// How often a job is expected to ask for a block: one over the time until then, in microseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Expected {
    /// For one that it has read in this pass.
    pub(super) read: f64,
    /// For one that it has not.
    pub(super) unread: f64,
    /// Time between its reads.
    pub(super) interval_us: f64,
}

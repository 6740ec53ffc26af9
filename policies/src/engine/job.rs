//! A job: a workload that reads a dataset, pass after pass. How far it is, when it will ask for a block again.
//!
//! A pass is told from what is read twice: one that reads once per epoch reads nothing twice before it has begun anew. A few repeats are
//! none (retries, stragglers among ranks); a run of them is. What is estimated is a time, so that jobs of any speed compare; it
//! scales with the traffic and holds no constant of seconds or bytes.

use super::table::{NONE, Slot};

/// A new pass is begun by so many repeats in a row at most; by fewer in a small dataset.
const RUN_MAX: usize = 6;
/// Of so many blocks in a pass, one repeat more is asked for.
const BLOCKS_PER_REPEAT: u32 = 50;
/// Stamps of passes go round; zero is of no pass.
const STAMPS: u32 = 14;
/// How much the pass before weighs in the estimate of this one's speed.
const PASS_BEFORE_WEIGHT: f64 = 0.25;
/// A job that is so many of its intervals late is stalling.
const STALL_INTERVALS: f64 = 8.0;
/// A dataset that is overdue by this share of its period, while its job reads something new, is given up.
pub(super) const OVERDUE_SHARE: f64 = 0.05;

/// What a read was to a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reading {
    /// The first in this pass.
    Fresh,
    /// One more in this pass.
    Repeat,
    /// The one that shows that a new pass has begun.
    NewPass,
}

/// What is known of a job.
#[derive(Clone, Debug)]
pub(super) struct Job {
    /// Its place among the jobs of its dataset is taken.
    pub(super) is_active: bool,
    /// What blocks are stamped with that it has read in this pass.
    pub(super) stamp: u32,
    /// Blocks that it has read in this pass.
    pub(super) reads: u32,
    /// Repeats in this pass that began no new one.
    pub(super) repeats: u32,
    /// Blocks of its last whole pass.
    pub(super) blocks: u32,
    /// Passes that it has been through.
    pub(super) passes: u32,
    /// When this pass began.
    pub(super) started_us: u64,
    /// When it read last.
    pub(super) last_us: u64,
    /// From one pass's begin to the next one's, as it was lately.
    pub(super) period_us: f64,
    /// From a pass's begin to its last fresh read.
    pub(super) duration_us: f64,
    last_fresh_us: u64,
    run_started_us: u64,
    run: [Slot; RUN_MAX],
    run_length: usize,
}

/// The stamp of the pass behind that of `stamp`.
pub(super) const fn next_stamp(stamp: u32) -> u32 {
    stamp % STAMPS + 1
}

impl Job {
    /// A job whose first pass is stamped so.
    pub(super) fn with_stamp(now_us: u64, stamp: u32) -> Self {
        Self {
            is_active: true,
            stamp,
            reads: 0,
            repeats: 0,
            blocks: 0,
            passes: 0,
            started_us: now_us,
            last_us: now_us,
            period_us: 0.0,
            duration_us: 0.0,
            last_fresh_us: now_us,
            run_started_us: now_us,
            run: [NONE; RUN_MAX],
            run_length: 0,
        }
    }

    /// It reads a block that it has read in this pass already, or not.
    pub(super) fn read(&mut self, now_us: u64, slot: Slot, was_read: bool) -> Reading {
        self.last_us = now_us;
        if !was_read {
            self.reads += 1;
            self.last_fresh_us = now_us;
            self.repeats += self.run_length as u32;
            self.run_length = 0;
            return Reading::Fresh;
        }
        if self.run_length == 0 {
            self.run_started_us = now_us;
        }
        self.run[self.run_length] = slot;
        self.run_length += 1;
        let wanted = (1 + self.reads / BLOCKS_PER_REPEAT).min(RUN_MAX as u32) as usize;
        if self.run_length < wanted {
            return Reading::Repeat;
        }
        self.begin_pass();
        Reading::NewPass
    }

    fn begin_pass(&mut self) {
        let period_us = (self.run_started_us - self.started_us) as f64;
        let duration_us = (self.last_fresh_us - self.started_us) as f64;
        let newest = if self.passes == 0 { 1.0 } else { 0.5 };
        self.period_us += newest * (period_us - self.period_us);
        self.duration_us += newest * (duration_us - self.duration_us);
        self.blocks = self.reads;
        self.passes += 1;
        self.stamp = next_stamp(self.stamp);
        self.reads = 0;
        self.repeats = 0;
        self.started_us = self.run_started_us;
        self.last_fresh_us = self.last_us;
    }

    /// The reads that showed that a pass had begun: they belong to it.
    pub(super) fn take_run(&mut self) -> ([Slot; RUN_MAX], usize) {
        let run = (self.run, self.run_length);
        self.run_length = 0;
        self.reads += run.1 as u32;
        run
    }

    /// Whether it has been through the dataset and come again.
    pub(super) const fn is_proven(&self) -> bool {
        self.passes > 0
    }

    /// Blocks that it will still ask for in this pass, of a dataset of which so many are known.
    pub(super) fn left(&self, known: u32) -> u32 {
        let whole = if self.is_proven() { self.blocks } else { known };
        whole.saturating_sub(self.reads)
    }

    /// Mean time between its reads within a pass.
    fn interval_us(&self, now_us: u64) -> f64 {
        let elapsed = (self.last_fresh_us - self.started_us) as f64;
        let before = PASS_BEFORE_WEIGHT * f64::from(self.blocks);
        let reads = f64::from(self.reads) + before;
        if reads < 1.0 {
            return (now_us - self.started_us) as f64 + 1.0;
        }
        ((elapsed + PASS_BEFORE_WEIGHT * self.duration_us) / reads).max(1e-3)
    }

    /// When it is expected to ask for a block that it has read in this pass, and for one that it has not: in microseconds from now, and nothing
    /// when it is not expected to.
    pub(super) fn expects(&self, now_us: u64, known: u32) -> Expected {
        let left = f64::from(self.left(known));
        let interval = self.interval_us(now_us);
        let stall = (now_us - self.last_us) as f64 - STALL_INTERVALS * interval;
        let stall = stall.max(0.0);
        let pass_end = left * interval + stall;
        if !self.is_proven() {
            return Expected {
                read_us: f64::INFINITY,
                unread_us: if left > 0.0 { pass_end } else { f64::INFINITY },
            };
        }
        let due = self.due_us(now_us);
        let duration = (interval * f64::from(self.blocks)).max(1.0);
        let next_pass = if due >= 0.0 { due.max(pass_end) } else { (-due).max(pass_end) };
        let read_us = next_pass + duration / 2.0;
        Expected { read_us, unread_us: if left > 0.0 { pass_end.max(interval) } else { read_us } }
    }

    /// How long until its next pass is expected to begin; less than nothing when it is overdue.
    fn due_us(&self, now_us: u64) -> f64 {
        self.period_us - (now_us - self.started_us) as f64
    }

    /// Whether its next pass should have begun long ago, by its period.
    pub(super) fn is_overdue(&self, now_us: u64) -> bool {
        self.due_us(now_us) < -OVERDUE_SHARE * self.period_us
    }
}

/// See [`Job::expects`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Expected {
    pub(super) read_us: f64,
    pub(super) unread_us: f64,
}

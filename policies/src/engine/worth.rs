//! Worth of a kept block: its expected reads per microsecond.
//!
//! The worth is the sum over jobs of one over the time until the next read by each. As a rate it compares
//! blocks of any dataset and size: bytes served per byte kept. Jobs that have not come yet are unknown. A
//! dataset that no job has read again gets a small worth: the probability of another read, divided by the
//! usual period of passes.

use super::job::ExpectedReads;
use super::job::JOBS_MAX;

/// Probability that a dataset without repeated reads is read again.
const RETURN_PROBABILITY: f64 = 0.1;
/// Assumed period of passes while none is known: a day.
const TEMPO_US: f64 = 86_400e6;
/// Weight of the newest interval in the moving average between arrivals.
const NEWEST_WEIGHT: f64 = 0.25;

/// Inputs for the computation of worth.
#[derive(Clone, Copy, Debug)]
pub(super) struct WorthContext {
    pub(super) now_us: u64,
    /// Number of accesses so far.
    pub(super) access: u64,
    /// Number of accesses for which a computed worth stays valid.
    pub(super) refresh_every: u64,
    /// Longest period of passes, in microseconds.
    pub(super) tempo_us: f64,
}

/// Worth of a dataset's blocks to one job.
#[derive(Clone, Copy, Debug)]
pub(super) struct JobWorth {
    pub(super) expected: ExpectedReads,
    /// The job that it follows, and the worth of a block that the leader has read.
    pub(super) leader: Option<(usize, f64)>,
}

/// Worth of a dataset's blocks at one time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct BlockWorth {
    pub(super) jobs: [Option<JobWorth>; JOBS_MAX],
    /// Worth that does not depend on the readers.
    pub(super) base: f64,
}

impl BlockWorth {
    /// Returns the worth of a block with this bit set of readers.
    pub(super) fn of(&self, readers: usize) -> f64 {
        let mut sum = self.base;
        for (place, job) in self.jobs.iter().enumerate() {
            let Some(JobWorth { expected, leader: following }) = job else { continue };
            sum += match following {
                _ if readers >> place & 1 == 1 => expected.read,
                Some((leader, worth)) if readers >> leader & 1 == 1 => *worth,
                _ => expected.unread,
            };
        }
        sum
    }
}

/// Returns the worth of a block in a dataset without repeated reads, whose last read was `silent_us` ago.
pub(super) fn unproven(silent_us: u64, tempo_us: f64) -> f64 {
    let tempo_us = if tempo_us > 0.0 { tempo_us } else { TEMPO_US };
    RETURN_PROBABILITY / (tempo_us + silent_us as f64)
}

/// Arrivals of new jobs at a dataset.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct JobArrivals {
    count: u32,
    last_us: u64,
    interval_us: f64,
}

impl JobArrivals {
    pub(super) fn count(&mut self, now_us: u64) {
        let interval_us = (now_us - self.last_us) as f64;
        match self.count {
            0 => {}
            1 => self.interval_us = interval_us,
            _ => self.interval_us += NEWEST_WEIGHT * (interval_us - self.interval_us),
        }
        self.count += 1;
        self.last_us = now_us;
    }

    /// Returns the worth of every block from expected new jobs. The estimated interval grows while no job
    /// arrives.
    fn worth_at(&self, now_us: u64) -> f64 {
        let silent_us = (now_us - self.last_us) as f64;
        self.interval_us.max(silent_us).max(1.0).recip()
    }

    pub(super) fn worth(&self, now_us: u64) -> f64 {
        if self.count < 3 { 0.0 } else { self.worth_at(now_us) }
    }
}

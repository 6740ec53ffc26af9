//! What a kept block is worth: how often it is expected to be asked for, per microsecond.
//!
//! The sum over jobs of one over the time until each asks for it next. A rate compares blocks of any dataset
//! and of any size: it is bytes that are served per byte that is kept. Nobody knows who comes for the first
//! time; what nobody has come back for is worth as much as if it were read again, with little hope, after as
//! long as passes take here.

use super::dataset::JOBS_MAX;
use super::job::Expected;

/// How likely it is that somebody comes back who has not yet.
const UNPROVEN_HOPE: f64 = 0.1;
/// How passes are assumed to take while none is known: a day.
const TEMPO_US: f64 = 86_400e6;
/// How much the newest interval between visits weighs.
const NEWEST_WEIGHT: f64 = 0.25;

/// When it is asked what blocks are worth.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    pub(super) now_us: u64,
    /// Accesses until then.
    pub(super) access: u64,
    /// What was found out holds for so many accesses.
    pub(super) looks_every: u64,
    /// How long passes take here.
    pub(super) tempo_us: f64,
}

/// What a job makes blocks of a dataset worth.
#[derive(Clone, Copy, Debug)]
pub(super) struct JobWorth {
    pub(super) expected: Expected,
    /// The job that it follows, and what a block is worth that this one has read.
    pub(super) following: Option<(usize, f64)>,
}

/// What blocks of a dataset are worth at a moment.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Worth {
    pub(super) jobs: [Option<JobWorth>; JOBS_MAX],
    /// Whoever has read them.
    pub(super) base: f64,
}

impl Worth {
    /// What a block is worth that these have read.
    pub(super) fn of(&self, readers: usize) -> f64 {
        let mut sum = self.base;
        for (place, job) in self.jobs.iter().enumerate() {
            let Some(JobWorth { expected, following }) = job else { continue };
            sum += match following {
                _ if readers >> place & 1 == 1 => expected.read,
                Some((leader, worth)) if readers >> leader & 1 == 1 => *worth,
                _ => expected.unread,
            };
        }
        sum
    }
}

/// What a block is worth of a dataset that nobody has come back to, which was read last so long ago.
pub(super) fn unproven(silent_us: u64, tempo_us: f64) -> f64 {
    let tempo_us = if tempo_us > 0.0 { tempo_us } else { TEMPO_US };
    UNPROVEN_HOPE / (tempo_us + silent_us as f64)
}

/// How often somebody new comes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Visits {
    count: u32,
    last_us: u64,
    interval_us: f64,
}

impl Visits {
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

    /// What that makes every block worth. The longer nobody has come, the longer it will be.
    fn worth_at(&self, now_us: u64) -> f64 {
        let silent_us = (now_us - self.last_us) as f64;
        self.interval_us.max(silent_us).max(1.0).recip()
    }

    pub(super) fn worth(&self, now_us: u64) -> f64 {
        if self.count < 3 { 0.0 } else { self.worth_at(now_us) }
    }
}

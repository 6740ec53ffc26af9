//! What a job does with a dataset, in one word: from the order of its reads, its passes, and what else its
//! family does.

use super::job::Job;
use super::order::Order;
use super::{Engine, Seen};

/// A job that has been silent for this share of the time it was at work, having read nothing twice, has read
/// once.
const SILENT_SHARE: f64 = 0.1;
/// A pass over a validation set takes less than this share of the time between two.
const PASS_SHARE: f64 = 0.5;
/// And the set is smaller than this share of what is read between them.
const SET_SHARE: f64 = 0.6;

/// What a job does with a dataset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pattern {
    /// Reads it in this order, again and again as far as one can tell.
    Epochs(Order),
    /// Read it once.
    OnePass,
    /// Reads some of it often, in no order.
    Skewed,
    /// Writes checkpoints, or reads them back.
    Checkpoint,
    /// Reads it now and then while it is trained with another.
    Validation,
}

impl Engine {
    /// What the job of an access does, as far as it can be told at that moment. What was written here and was
    /// not read again and again since is taken for checkpoints: who knows better asks for the [pattern of the
    /// reads](Self::pattern_of_reads).
    #[must_use]
    pub fn pattern(&self, seen: Seen, now_us: u64) -> Option<Pattern> {
        let dataset = self.datasets.get(&self.number(seen))?;
        if dataset.writes > 0 && !dataset.jobs.iter().any(Job::is_proven) {
            return Some(Pattern::Checkpoint);
        }
        self.pattern_of_reads(seen, now_us)
    }

    /// The same by reads alone, whoever wrote what is read.
    #[must_use]
    pub fn pattern_of_reads(&self, seen: Seen, now_us: u64) -> Option<Pattern> {
        let number = self.number(seen);
        let dataset = self.datasets.get(&number)?;
        if dataset.is_skewed {
            return Some(Pattern::Skewed);
        }
        let job = &dataset.jobs[self.place(seen, dataset)?];
        if !job.is_proven() && job.is_done(now_us, SILENT_SHARE) {
            return Some(Pattern::OnePass);
        }
        let mut ranks = dataset.jobs.iter().filter(|rank| rank.is_active && rank.family == job.family);
        if ranks.any(|rank| rank.has_come_back() && rank.pass_share() < PASS_SHARE)
            && self.trains_with_more(number, job)
        {
            return Some(Pattern::Validation);
        }
        self.streams.order(seen.family, self.names.shape(number)).map(Pattern::Epochs)
    }

    /// Whether a job's family reads another dataset, a larger one, between the passes of this one.
    fn trains_with_more(&self, number: u16, job: &Job) -> bool {
        let others = self.datasets.iter().filter(|(other, _)| **other != number);
        let mut jobs =
            others.flat_map(|(_, dataset)| &dataset.jobs).filter(|other| other.family == job.family);
        jobs.any(|other| {
            f64::from(other.blocks.max(other.reads)) * SET_SHARE > f64::from(job.blocks.max(job.reads))
        })
    }
}

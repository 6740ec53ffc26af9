//! Access pattern of a job on a dataset, from the order of its reads, its passes, and the other reads of its
//! family.

use super::job::ReaderJob;
use super::order::ReadOrder;
use super::{CacheEngine, ObservedAccess};

/// Share of its active time after which a silent job without repeated reads counts as a single pass.
const SILENT_SHARE: f64 = 0.1;
/// Maximum share of the time between two passes that a pass over a validation set takes.
const PASS_SHARE: f64 = 0.5;
/// Maximum size of a validation set as a share of the data that is read in between.
const SET_SHARE: f64 = 0.6;

/// Access pattern of a job on a dataset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DatasetPattern {
    /// Reads it in this order, repeatedly as far as is known.
    Epochs(ReadOrder),
    /// Read it once.
    OnePass,
    /// Reads some of it often, in no order.
    Skewed,
    /// Writes checkpoints, or reads them back.
    Checkpoint,
    /// Reads it from time to time while another dataset is used for training.
    Validation,
}

impl CacheEngine {
    /// Returns the pattern of the job of an access, if it is known at that time. Data that was written here
    /// and was not read repeatedly since is taken for checkpoints; a caller that knows better uses the
    /// [pattern of the reads](Self::pattern_of_reads).
    #[must_use]
    pub fn pattern(&self, seen: ObservedAccess, now_us: u64) -> Option<DatasetPattern> {
        let dataset = self.datasets.get(&self.number(seen))?;
        if dataset.writes > 0 && !dataset.jobs.iter().any(ReaderJob::is_proven) {
            return Some(DatasetPattern::Checkpoint);
        }
        self.pattern_of_reads(seen, now_us)
    }

    /// Returns the pattern from reads alone, regardless of writes.
    #[must_use]
    pub fn pattern_of_reads(&self, seen: ObservedAccess, now_us: u64) -> Option<DatasetPattern> {
        let number = self.number(seen);
        let dataset = self.datasets.get(&number)?;
        if dataset.is_skewed {
            return Some(DatasetPattern::Skewed);
        }
        let job = &dataset.jobs[self.job_index(seen, dataset)?];
        if !job.is_proven() && job.is_done(now_us, SILENT_SHARE) {
            return Some(DatasetPattern::OnePass);
        }
        let mut ranks = dataset.jobs.iter().filter(|rank| rank.is_active && rank.family == job.family);
        if ranks.any(|rank| rank.has_come_back() && rank.pass_share() < PASS_SHARE)
            && self.reads_larger_dataset(number, job)
        {
            return Some(DatasetPattern::Validation);
        }
        self.streams.order(seen.family, self.names.shape(number)).map(DatasetPattern::Epochs)
    }

    /// True if a job's family reads another, larger dataset between the passes of this one.
    fn reads_larger_dataset(&self, number: u16, job: &ReaderJob) -> bool {
        let others = self.datasets.iter().filter(|(other, _)| **other != number);
        let mut jobs =
            others.flat_map(|(_, dataset)| &dataset.jobs).filter(|other| other.family == job.family);
        jobs.any(|other| {
            f64::from(other.blocks.max(other.reads)) * SET_SHARE > f64::from(job.blocks.max(job.reads))
        })
    }
}

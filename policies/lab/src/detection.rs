//! Measures how well the engine classifies access patterns: its answers about labeled traffic, compared
//! with the labels.
//!
//! Each stream is queried once: after a tenth of its first epoch, or after a tenth of its first repeat if
//! only repetition reveals the pattern. Queries and answers depend on the seeds alone; only the elapsed
//! time does not.

use super::labelled::Traffic;
use super::scene::{GeneratedRequest, StreamPattern};
use mlgw_policies::engine::{
    CacheEngine, DatasetPattern as DetectedPattern, ObservedAccess, Options, ReadOrder,
};
use std::collections::BTreeMap;
use std::ops::Range;

const BLOCK_BYTES: u64 = 8 << 20;
/// Divisor of the number of requests in an epoch: the pattern is due after that part of the epoch.
const DUE_SHARE: usize = 10;

/// Patterns that the engine can distinguish.
const PATTERNS: [StreamPattern; 8] = [
    StreamPattern::Sequential,
    StreamPattern::Shuffled,
    StreamPattern::ShardShuffled,
    StreamPattern::Columnar,
    StreamPattern::OnePass,
    StreamPattern::Skewed,
    StreamPattern::Checkpoint,
    StreamPattern::Validation,
];

fn label(found: DetectedPattern) -> StreamPattern {
    match found {
        DetectedPattern::Epochs(ReadOrder::Sequential) => StreamPattern::Sequential,
        DetectedPattern::Epochs(ReadOrder::Shuffled) => StreamPattern::Shuffled,
        DetectedPattern::Epochs(ReadOrder::ShardShuffled) => StreamPattern::ShardShuffled,
        DetectedPattern::Epochs(ReadOrder::Ranged) => StreamPattern::Columnar,
        DetectedPattern::OnePass => StreamPattern::OnePass,
        DetectedPattern::Skewed => StreamPattern::Skewed,
        DetectedPattern::Checkpoint => StreamPattern::Checkpoint,
        DetectedPattern::Validation => StreamPattern::Validation,
    }
}

/// State of one stream of the traffic.
#[derive(Default)]
struct StreamObservations {
    /// Number of requests and start time of each epoch.
    epochs: BTreeMap<u32, (usize, u64)>,
    last: Option<(ObservedAccess, u64)>,
}

/// Detection results on labeled traffic.
#[derive(Clone, Debug, Default)]
pub struct Detection {
    /// For each stream, its true pattern and the pattern that the engine reported when it was due.
    pub verdicts: Vec<(StreamPattern, Option<StreamPattern>)>,
    /// Error of the estimated start of each stream's last epoch, as a fraction of an epoch, in ascending
    /// order.
    pub missed: Vec<f64>,
    /// Number of requests that the engine observed.
    pub requests: u64,
}

impl Detection {
    /// Runs the engine on the traffic of each seed and collects the results.
    #[must_use]
    pub fn from_seeds(seeds: Range<u64>) -> Self {
        let mut found = Self::default();
        seeds.for_each(|seed| found.replay(seed));
        found.missed.sort_by(f64::total_cmp);
        found
    }

    /// F1 score of a pattern: twice the correct detections, divided by the sum of the streams with that
    /// pattern and the streams reported to have it.
    #[must_use]
    pub fn f1(&self, pattern: StreamPattern) -> f64 {
        let is_reported = |found: &&(StreamPattern, Option<StreamPattern>)| found.1 == Some(pattern);
        let is = self.verdicts.iter().filter(|(truth, _)| *truth == pattern);
        let (all, right) = (is.clone().count(), is.filter(is_reported).count());
        let reported = self.verdicts.iter().filter(is_reported).count();
        2.0 * right as f64 / (all + reported).max(1) as f64
    }

    /// The mean of the scores of all patterns, and the worst pattern with its score.
    #[must_use]
    pub fn f1_of_all(&self) -> (f64, (StreamPattern, f64)) {
        let scores = PATTERNS.map(|pattern| (pattern, self.f1(pattern)));
        let mean = scores.iter().map(|(_, score)| score).sum::<f64>() / scores.len() as f64;
        let worst = scores.into_iter().min_by(|one, other| one.1.total_cmp(&other.1));
        (mean, worst.unwrap_or((StreamPattern::Skewed, 0.0)))
    }

    /// Quantile of the errors: the fraction `share` of the epoch starts has at most this error.
    #[must_use]
    pub fn missed_quantile(&self, share: f64) -> f64 {
        let at = (self.missed.len() as f64 * share) as usize;
        self.missed.get(at).copied().unwrap_or(1.0)
    }

    /// Mean error of the estimated epoch starts, as a fraction of an epoch.
    #[must_use]
    pub fn missed_mean(&self) -> f64 {
        self.missed.iter().sum::<f64>() / self.missed.len().max(1) as f64
    }

    /// The fraction of epoch starts with an error of at most `missed`.
    #[must_use]
    pub fn within(&self, missed: f64) -> f64 {
        let near = self.missed.partition_point(|one| *one <= missed);
        near as f64 / self.missed.len().max(1) as f64
    }

    fn replay(&mut self, seed: u64) {
        let made = Traffic::new(seed).generate();
        let requests: Vec<GeneratedRequest> = made.requests.collect();
        self.requests += requests.len() as u64;
        let mut whole: BTreeMap<u16, StreamObservations> = BTreeMap::new();
        for request in &requests {
            let epochs = &mut whole.entry(request.stream).or_default().epochs;
            epochs.entry(request.epoch).or_insert((0, request.at_us)).0 += 1;
        }
        let options =
            Options { capacity_bytes: 1 << 34, blocks_max: 1 << 18, block_bytes: BLOCK_BYTES, seed: 0 };
        let mut engine = CacheEngine::new(options);
        let mut counts: BTreeMap<(u16, u32), usize> = BTreeMap::new();
        for request in &requests {
            let access = made.scene.access(request);
            let seen = engine.observe(&access);
            for block in request.range.start / BLOCK_BYTES..=(request.range.end.max(1) - 1) / BLOCK_BYTES {
                engine.read(seen, &access, block as u32);
            }
            let pattern = made.scene.stream(request).pattern;
            let count = counts.entry((request.stream, request.epoch)).or_default();
            *count += 1;
            // Patterns that only repetition reveals are due after a tenth of the first repeat.
            let due_epoch =
                u32::from(matches!(pattern, StreamPattern::Validation | StreamPattern::Checkpoint));
            let stream = whole.entry(request.stream).or_default();
            let due = stream.epochs.get(&due_epoch).map_or(0, |(requests, _)| (requests / DUE_SHARE).max(1));
            if request.epoch == due_epoch && *count == due && pattern != StreamPattern::OnePass {
                self.verdicts.push((pattern, engine.pattern(seen, request.at_us).map(label)));
            }
            stream.last = Some((seen, request.at_us));
        }
        let end_us = requests.last().map_or(0, |request| request.at_us);
        for (number, stream) in &whole {
            let Some((seen, _)) = stream.last else { continue };
            let pattern = made.scene.streams[usize::from(*number)].pattern;
            if pattern == StreamPattern::OnePass {
                // Other streams have been repeated by then.
                self.verdicts
                    .push((pattern, engine.pattern(seen, end_us + end_us / DUE_SHARE as u64).map(label)));
            }
            let is_epochs = matches!(
                pattern,
                StreamPattern::Sequential | StreamPattern::Shuffled | StreamPattern::ShardShuffled
            );
            let begins: Vec<u64> = stream.epochs.values().map(|(_, begin_us)| *begin_us).collect();
            if let (true, [.., before, last], Some(passes)) = (is_epochs, &begins[..], engine.passes(seen)) {
                self.missed.push(passes.started_us.abs_diff(*last) as f64 / (last - before) as f64);
            }
        }
    }
}

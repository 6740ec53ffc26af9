//! What happened in the last minute: snapshots of the counters, taken every few seconds, and what
//! came on top of the oldest of them.
//!
//! Counters only grow; how a server is *now* is their growth. A scraper computes that for itself,
//! a person who asks `mlgw status` has it computed here.

use super::{Done, Metrics};
use mlgw_common::histogram::Durations;
use mlgw_objects::Shortage;
use mlgw_wire::operation::Operation;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// How often a snapshot is taken.
pub const EVERY: Duration = Duration::from_secs(10);
/// Snapshots that are kept: a minute's.
const KEPT: usize = 6;

/// Counters at one moment.
#[derive(Clone, Debug)]
pub struct Sample {
    at: Instant,
    done: Vec<(Operation, Done)>,
    shortages: [u64; Shortage::ALL.len()],
    syncs: Durations,
}

impl Sample {
    /// The counters of now; `syncs` are those of all files.
    #[must_use]
    pub fn take(metrics: &Metrics, syncs: Durations) -> Self {
        Self { at: Instant::now(), done: metrics.done(), shortages: metrics.objects.throttled(), syncs }
    }

    /// What came on top of `earlier`.
    fn since(&self, earlier: &Self) -> Growth {
        let done = self.done.iter().map(|(operation, now)| {
            let before = earlier.done.iter().find(|(other, _)| other == operation);
            (*operation, before.map_or(*now, |(_, before)| now.since(before)))
        });
        Growth {
            over: self.at.saturating_duration_since(earlier.at),
            done: done.filter(|(_, done)| done.requests > 0).collect(),
            shortages: std::array::from_fn(|at| self.shortages[at].saturating_sub(earlier.shortages[at])),
            syncs: self.syncs.since(&earlier.syncs),
        }
    }
}

/// How counters grew.
#[derive(Clone, Debug)]
pub struct Growth {
    /// Over how long.
    pub over: Duration,
    /// By operation.
    pub done: Vec<(Operation, Done)>,
    /// By reason, in the order of [`Shortage::ALL`].
    pub shortages: [u64; Shortage::ALL.len()],
    /// Syncs of all files.
    pub syncs: Durations,
}

/// The snapshots of the last minute.
#[derive(Debug)]
pub struct Recent(Mutex<VecDeque<Sample>>);

impl Recent {
    /// Begins with the counters of now.
    #[must_use]
    pub fn new(first: Sample) -> Self {
        Self(Mutex::new(VecDeque::from([first])))
    }

    /// Keeps a snapshot and forgets the oldest, if there are enough.
    pub fn keep(&self, sample: Sample) {
        let mut kept = self.0.lock();
        if kept.len() == KEPT {
            kept.pop_front();
        }
        kept.push_back(sample);
    }

    /// What came on top of the oldest snapshot.
    #[must_use]
    pub fn until(&self, now: &Sample) -> Growth {
        let kept = self.0.lock();
        now.since(kept.front().unwrap_or(now))
    }
}

#[cfg(test)]
mod tests {
    use super::{KEPT, Recent, Sample};
    use crate::Metrics;
    use mlgw_common::histogram::Durations;
    use mlgw_objects::Shortage;

    #[test]
    fn the_growth_of_the_last_minute_is_that_since_the_oldest_snapshot() {
        let metrics = std::sync::Arc::new(Metrics::new(0));
        let take = || Sample::take(&metrics, Durations::default());
        let recent = Recent::new(take());
        drop(metrics.begin());
        metrics.objects.throttle(Shortage::Memory);
        let growth = recent.until(&take());
        assert_eq!(growth.done.iter().map(|(_, done)| done.requests).sum::<u64>(), 1);
        assert_eq!(growth.shortages, [0, 0, 0, 1, 0]);
        for _ in 0..KEPT {
            recent.keep(take());
        }
        assert!(recent.until(&take()).done.is_empty(), "it is forgotten after a minute");
    }
}

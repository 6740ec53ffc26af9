//! Growth of the counters over the last minute: periodic snapshots, and the difference to the oldest of them.
//!
//! Counters only grow; the current state of a server is their growth. A scraper computes it itself, for `mlgw
//! status` it is computed here.

use super::{Done, Metrics};
use mlgw_common::histogram::Durations;
use mlgw_objects::Shortage;
use mlgw_wire::operation::Operation;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Interval between snapshots.
pub const EVERY: Duration = Duration::from_secs(10);
/// Number of snapshots that are kept: those of a minute.
const KEPT: usize = 6;

/// Counters at one time.
#[derive(Clone, Debug)]
pub struct Sample {
    at: Instant,
    done: Vec<(Operation, Done)>,
    shortages: [u64; Shortage::ALL.len()],
    syncs: Durations,
}

impl Sample {
    /// Takes a snapshot of the counters; `syncs` are those of all files.
    #[must_use]
    pub fn take(metrics: &Metrics, syncs: Durations) -> Self {
        Self { at: Instant::now(), done: metrics.done(), shortages: metrics.objects.throttled(), syncs }
    }

    /// Returns the growth since `earlier`.
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

/// Growth of counters over a period.
#[derive(Clone, Debug)]
pub struct Growth {
    /// Length of the period.
    pub over: Duration,
    /// Growth by operation.
    pub done: Vec<(Operation, Done)>,
    /// Growth by reason, in the order of [`Shortage::ALL`].
    pub shortages: [u64; Shortage::ALL.len()],
    /// Syncs of all files.
    pub syncs: Durations,
}

/// Snapshots of the last minute.
#[derive(Debug)]
pub struct Recent(Mutex<VecDeque<Sample>>);

impl Recent {
    /// Starts with the snapshot `first`.
    #[must_use]
    pub fn new(first: Sample) -> Self {
        Self(Mutex::new(VecDeque::from([first])))
    }

    /// Adds a snapshot and drops the oldest if the maximum is reached.
    pub fn keep(&self, sample: Sample) {
        let mut kept = self.0.lock();
        if kept.len() == KEPT {
            kept.pop_front();
        }
        kept.push_back(sample);
    }

    /// Returns the growth from the oldest snapshot to `now`.
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
    fn growth_is_measured_from_the_oldest_snapshot() {
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

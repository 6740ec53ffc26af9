//! Growth of the counters over the last minute: periodic snapshots, and the difference to the oldest of them.
//!
//! Counters only grow; the current state of a server is their growth. A scraper computes it itself, for `mlgw
//! status` it is computed here.

use super::{GatewayMetrics, OperationTotals};
use mlgw_common::histogram::Durations;
use mlgw_common::time::Instant;
use mlgw_objects::ResourceShortage;
use mlgw_wire::operation::Operation;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::time::Duration;

/// Interval between snapshots.
pub const SNAPSHOT_INTERVAL: Duration = Duration::from_secs(10);
/// Number of snapshots that are kept: those of a minute.
const SNAPSHOTS_MAX: usize = 6;

/// Counters at one time.
#[derive(Clone, Debug)]
pub struct CounterSnapshot {
    at: Instant,
    totals: Vec<(Operation, OperationTotals)>,
    shortages: [u64; ResourceShortage::ALL.len()],
    syncs: Durations,
}

impl CounterSnapshot {
    /// Takes a snapshot of the counters; `syncs` are those of all files.
    #[must_use]
    pub fn take(metrics: &GatewayMetrics, syncs: Durations) -> Self {
        Self { at: Instant::now(), totals: metrics.totals(), shortages: metrics.objects.throttled(), syncs }
    }

    /// Returns the growth since `earlier`.
    fn since(&self, earlier: &Self) -> CounterGrowth {
        let done = self.totals.iter().map(|(operation, now)| {
            let before = earlier.totals.iter().find(|(other, _)| other == operation);
            (*operation, before.map_or(*now, |(_, before)| now.since(before)))
        });
        CounterGrowth {
            over: self.at.saturating_duration_since(earlier.at),
            totals: done.filter(|(_, done)| done.requests > 0).collect(),
            shortages: std::array::from_fn(|at| self.shortages[at].saturating_sub(earlier.shortages[at])),
            syncs: self.syncs.since(&earlier.syncs),
        }
    }
}

/// Growth of counters over a period.
#[derive(Clone, Debug)]
pub struct CounterGrowth {
    /// Length of the period.
    pub over: Duration,
    /// Growth by operation.
    pub totals: Vec<(Operation, OperationTotals)>,
    /// Growth by reason, in the order of [`ResourceShortage::ALL`].
    pub shortages: [u64; ResourceShortage::ALL.len()],
    /// Syncs of all files.
    pub syncs: Durations,
}

/// Snapshots of the last minute.
#[derive(Debug)]
pub struct RecentCounters(Mutex<VecDeque<CounterSnapshot>>);

impl RecentCounters {
    /// Starts with the snapshot `first`.
    #[must_use]
    pub fn new(first: CounterSnapshot) -> Self {
        Self(Mutex::new(VecDeque::from([first])))
    }

    /// Adds a snapshot and drops the oldest if the maximum is reached.
    pub fn push(&self, sample: CounterSnapshot) {
        let mut kept = self.0.lock();
        if kept.len() == SNAPSHOTS_MAX {
            kept.pop_front();
        }
        kept.push_back(sample);
        assert!(kept.len() <= SNAPSHOTS_MAX, "the number of kept snapshots is bounded");
    }

    /// Returns the growth from the oldest snapshot to `now`.
    #[must_use]
    pub fn growth_until(&self, now: &CounterSnapshot) -> CounterGrowth {
        let kept = self.0.lock();
        now.since(kept.front().unwrap_or(now))
    }
}

#[cfg(test)]
mod tests {
    use super::{CounterSnapshot, RecentCounters, SNAPSHOTS_MAX};
    use crate::GatewayMetrics;
    use mlgw_common::histogram::Durations;
    use mlgw_objects::ResourceShortage;

    #[test]
    fn growth_is_measured_from_the_oldest_snapshot() {
        let metrics = std::sync::Arc::new(GatewayMetrics::new(0));
        let take = || CounterSnapshot::take(&metrics, Durations::default());
        let recent = RecentCounters::new(take());
        drop(metrics.begin());
        metrics.objects.throttle(ResourceShortage::Memory);
        let growth = recent.growth_until(&take());
        assert_eq!(growth.totals.iter().map(|(_, done)| done.requests).sum::<u64>(), 1);
        assert_eq!(growth.shortages, [0, 0, 0, 1, 0, 0, 0]);
        for _ in 0..SNAPSHOTS_MAX {
            recent.push(take());
        }
        assert!(recent.growth_until(&take()).totals.is_empty(), "it is dropped after a minute");
    }
}

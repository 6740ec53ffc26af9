//! Counts of durations by size, written without a lock.
//!
//! The buckets are fixed for all of them, so that a search over a few words and three additions
//! are the whole cost of an observation. A reader may see an observation in the sum that is not
//! yet in its bucket; scrapes are seconds apart, so that is no loss.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Upper bounds in microseconds: from a read of cached memory to the longest copy that answers
/// without white space in between; one more bucket takes the rest.
pub const BOUNDS_MICROS: [u64; 16] = [
    100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000,
    5_000_000, 15_000_000, 60_000_000,
];

/// A histogram of durations.
#[derive(Debug, Default)]
pub struct Histogram {
    buckets: [AtomicU64; BOUNDS_MICROS.len() + 1],
    nanos: AtomicU64,
}

impl Histogram {
    /// Counts one duration.
    pub fn record(&self, took: Duration) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let bucket = BOUNDS_MICROS.partition_point(|&bound| bound * 1000 < nanos);
        self.buckets[bucket].fetch_add(1, Relaxed);
        self.nanos.fetch_add(nanos, Relaxed);
    }

    /// The counts of now.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let counts = self.buckets.iter().map(|bucket| bucket.load(Relaxed));
        let bounds = BOUNDS_MICROS.iter().map(|&bound| seconds_of_micros(bound)).chain([f64::INFINITY]);
        Snapshot { buckets: bounds.zip(counts).collect(), sum_seconds: self.nanos.load(Relaxed) as f64 / 1e9 }
    }
}

/// Microseconds as the seconds that Prometheus wants.
#[must_use]
pub fn seconds_of_micros(micros: u64) -> f64 {
    micros as f64 / 1e6
}

/// Counts at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshot {
    /// Upper bound in seconds and how many fell under it but not under the one before; the last
    /// bound is infinity.
    pub buckets: Vec<(f64, u64)>,
    /// Their sum in seconds.
    pub sum_seconds: f64,
}

impl Snapshot {
    /// How many there were.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|(_, count)| count).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::Histogram;
    use std::time::Duration;

    #[test]
    fn a_duration_falls_under_the_first_bound_that_is_not_below_it() {
        let histogram = Histogram::default();
        for micros in [1, 100, 101, 99_000_000] {
            histogram.record(Duration::from_micros(micros));
        }
        let snapshot = histogram.snapshot();
        assert_eq!(snapshot.count(), 4);
        assert_eq!(snapshot.buckets[0], (0.0001, 2));
        assert_eq!(snapshot.buckets[1], (0.00025, 1));
        assert_eq!(snapshot.buckets.last().unwrap().1, 1);
        assert!((snapshot.sum_seconds - 99.000_202).abs() < 1e-6);
    }
}

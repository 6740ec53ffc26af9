//! Lock-free histograms of durations.
//!
//! All histograms have the same buckets. An observation costs a search over a few words and two additions,
//! and any two histograms can be added up or compared. A reader may see an observation in its bucket that is
//! not yet in the sum; that is harmless, because readers are seconds apart. Nothing survives a restart.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Upper bounds in microseconds: from a read of cached memory to the longest copy that is answered without
/// keep-alive white space. One more bucket counts longer durations.
pub const BOUNDS_MICROS: [u64; 18] = [
    50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000,
    2_500_000, 5_000_000, 15_000_000, 60_000_000,
];

/// Number of buckets, including the unbounded one.
pub const BUCKETS: usize = BOUNDS_MICROS.len() + 1;

/// A histogram of durations.
#[derive(Debug, Default)]
pub struct DurationHistogram {
    buckets: [AtomicU64; BUCKETS],
    nanos: AtomicU64,
}

impl DurationHistogram {
    /// Counts one duration.
    pub fn record(&self, took: Duration) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let bucket = BOUNDS_MICROS.partition_point(|&bound| bound * 1000 < nanos);
        self.buckets[bucket].fetch_add(1, Relaxed);
        self.nanos.fetch_add(nanos, Relaxed);
    }

    /// Current counts.
    #[must_use]
    pub fn snapshot(&self) -> Durations {
        let buckets = std::array::from_fn(|at| self.buckets[at].load(Relaxed));
        Durations { buckets, nanos: self.nanos.load(Relaxed) }
    }
}

/// Counts at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Durations {
    /// Number of durations in each bucket: above the previous bound of [`BOUNDS_MICROS`] and at most its own;
    /// the last bucket is unbounded.
    pub buckets: [u64; BUCKETS],
    /// Sum of all durations, in nanoseconds.
    pub nanos: u64,
}

impl Durations {
    /// Number of durations.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// Adds the counts of another snapshot.
    pub fn add(&mut self, other: &Self) {
        for (bucket, more) in self.buckets.iter_mut().zip(other.buckets) {
            *bucket += more;
        }
        self.nanos += other.nanos;
    }

    /// Counts added since `earlier`, a snapshot of the same histogram.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let buckets = std::array::from_fn(|at| self.buckets[at].saturating_sub(earlier.buckets[at]));
        Self { buckets, nanos: self.nanos.saturating_sub(earlier.nanos) }
    }

    /// The quantile `quantile` (0 to 1), assuming an even distribution within a bucket as Prometheus does;
    /// the last bound for durations beyond it. `None` if nothing was counted.
    #[must_use]
    pub fn quantile(&self, quantile: f64) -> Option<Duration> {
        let count = self.count();
        if count == 0 {
            return None;
        }
        let rank = quantile.clamp(0.0, 1.0) * count as f64;
        let (mut below, mut lower) = (0.0, 0);
        for (&in_bucket, &upper) in self.buckets.iter().zip(&BOUNDS_MICROS) {
            if below + in_bucket as f64 >= rank && in_bucket > 0 {
                let share = (rank - below) / in_bucket as f64;
                let micros = lower as f64 + share * (upper - lower) as f64;
                return Some(Duration::from_nanos((micros * 1e3) as u64));
            }
            (below, lower) = (below + in_bucket as f64, upper);
        }
        Some(Duration::from_micros(lower))
    }
}

#[cfg(test)]
mod tests {
    use super::{BOUNDS_MICROS, DurationHistogram, Durations};
    use std::time::Duration;

    fn of(micros: &[u64]) -> Durations {
        let histogram = DurationHistogram::default();
        micros.iter().for_each(|&micros| histogram.record(Duration::from_micros(micros)));
        histogram.snapshot()
    }

    #[test]
    fn a_duration_falls_under_the_first_bound_that_is_not_below_it() {
        assert!(BOUNDS_MICROS.is_sorted());
        let counted = of(&[1, 50, 51, 99_000_000]);
        assert_eq!(counted.count(), 4);
        assert_eq!(counted.buckets[..3], [2, 1, 0]);
        assert_eq!(counted.buckets.last(), Some(&1));
        assert_eq!(counted.nanos, 99_000_102_000);
    }

    #[test]
    fn quantiles_lie_within_the_bucket_of_their_rank() {
        assert_eq!(Durations::default().quantile(0.5), None);
        let counted = of(&[60; 100]);
        assert_eq!(counted.quantile(0.5), Some(Duration::from_micros(75)));
        assert_eq!(counted.quantile(1.0), Some(Duration::from_micros(100)));
        let beyond = of(&[90_000_000]);
        assert_eq!(beyond.quantile(0.99), Some(Duration::from_secs(60)));
    }

    #[test]
    fn since_returns_the_difference_of_two_snapshots() {
        let (early, late) = (of(&[60, 3000]), of(&[60, 3000, 3000]));
        assert_eq!(late.since(&early), of(&[3000]));
        let mut sum = early;
        sum.add(&of(&[3000]));
        assert_eq!(sum, late);
    }
}

//! Histograms for openraft's internal statistics, such as its batch sizes.
//!
//! This replaces the crate of the same name (`[patch.crates-io]` in the root `Cargo.toml`). The original
//! builds tables for sixteen resolutions, 27 MiB that stay in memory, when the first histogram is made,
//! although openraft uses one resolution. Here the bound of a bucket is computed on demand. The crate
//! provides only the items that openraft uses when its feature `runtime-stats` is off. Nothing survives a
//! restart.

use std::fmt;
use std::marker::PhantomData;

/// Buckets for each power of two.
const PARTS: usize = 4;

/// Number of bits that select one of them.
const PART_BITS: usize = PARTS.ilog2() as usize;

/// Number of buckets: one for each value below [`PARTS`], then [`PARTS`] for each further power of two of 64
/// bits.
const BUCKETS: usize = PARTS + (u64::BITS as usize - PART_BITS) * PARTS;

/// Counts of values by size: exact below 8, then with a resolution of a quarter of a power of two. `T` names
/// the counted quantity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram<T = ()> {
    counts: Box<[u64; BUCKETS]>,
    counted: PhantomData<T>,
}

impl<T> Histogram<T> {
    /// An empty histogram; it takes two KiB.
    #[must_use]
    pub fn new() -> Self {
        Self { counts: Box::new([0; BUCKETS]), counted: PhantomData }
    }

    /// Counts a value once.
    pub fn record(&mut self, value: u64) {
        self.record_n(value, 1);
    }

    /// Counts a value `times` times.
    pub fn record_n(&mut self, value: u64, times: u64) {
        self.counts[bucket_of(value)] += times;
    }

    /// Number of counted values.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Smallest value of the bucket that contains the quantile `share` (0 to 1) of the counted values; 0 if
    /// there are none.
    #[must_use]
    pub fn percentile(&self, share: f64) -> u64 {
        let rank = ((self.total() as f64 * share).ceil() as u64).max(1);
        let mut seen = 0;
        let bucket = self.counts.iter().position(|count| {
            seen += count;
            seen >= rank
        });
        bucket.map_or(0, least_of)
    }

    /// Several percentiles at once.
    #[must_use]
    pub fn percentile_stats(&self) -> PercentileStats {
        PercentileStats {
            samples: self.total(),
            p0_1: self.percentile(0.001),
            p1: self.percentile(0.01),
            p5: self.percentile(0.05),
            p10: self.percentile(0.1),
            p50: self.percentile(0.5),
            p90: self.percentile(0.9),
            p99: self.percentile(0.99),
            p99_9: self.percentile(0.999),
        }
    }
}

impl<T> Default for Histogram<T> {
    fn default() -> Self {
        Self::new()
    }
}

fn bucket_of(value: u64) -> usize {
    if value < PARTS as u64 {
        return value as usize;
    }
    let shift = value.ilog2() as usize - PART_BITS;
    PARTS + shift * PARTS + ((value >> shift) as usize - PARTS)
}

/// Smallest value of a bucket.
fn least_of(bucket: usize) -> u64 {
    match bucket.checked_sub(PARTS) {
        None => bucket as u64,
        Some(above) => ((PARTS + above % PARTS) as u64) << (above / PARTS),
    }
}

/// Percentiles of a histogram, each as [`Histogram::percentile`] computes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PercentileStats {
    /// Number of counted values.
    pub samples: u64,
    /// The 0.1th percentile.
    pub p0_1: u64,
    /// The 1st percentile.
    pub p1: u64,
    /// The 5th percentile.
    pub p5: u64,
    /// The 10th percentile.
    pub p10: u64,
    /// The median.
    pub p50: u64,
    /// The 90th percentile.
    pub p90: u64,
    /// The 99th percentile.
    pub p99: u64,
    /// The 99.9th percentile.
    pub p99_9: u64,
}

impl fmt::Display for PercentileStats {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { samples, p50, p90, p99, p99_9, .. } = self;
        write!(out, "{samples} samples: p50 {p50}, p90 {p90}, p99 {p99}, p99.9 {p99_9}")
    }
}

/// Histograms side by side, with a line of percentiles for each.
#[derive(Clone, Debug, Default)]
pub struct AsciiChart(Vec<(String, PercentileStats)>);

impl AsciiChart {
    /// A chart without lines.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a line.
    #[must_use]
    pub fn add<T>(mut self, name: &str, histogram: Histogram<T>) -> Self {
        self.0.push((name.to_owned(), histogram.percentile_stats()));
        self
    }
}

impl fmt::Display for AsciiChart {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|(name, stats)| writeln!(out, "{name}: {stats}"))
    }
}

#[cfg(test)]
mod tests {
    use super::{AsciiChart, BUCKETS, Histogram, bucket_of, least_of};

    #[test]
    fn buckets_follow_each_other_without_a_gap() {
        for bucket in 0..BUCKETS {
            let least = least_of(bucket);
            assert_eq!(bucket_of(least), bucket);
            assert!(bucket == 0 || bucket_of(least - 1) == bucket - 1, "before {least}");
        }
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn percentiles_are_accurate_to_a_fifth() {
        let mut counted = Histogram::<()>::new();
        assert_eq!(counted.percentile_stats().p99, 0);
        (1..=1000).for_each(|value| counted.record(value));
        counted.record_n(1_000_000, 10);
        assert_eq!(counted.total(), 1010);
        for (share, value) in [(0.001, 2), (0.1, 101), (0.5, 505), (0.9, 909), (0.999, 1_000_000)] {
            let found = counted.percentile(share);
            assert!(found <= value && value - found <= value / 5, "{share}: {found} for {value}");
        }
    }

    #[test]
    fn a_chart_has_a_line_for_each() {
        let mut counted = Histogram::<()>::default();
        counted.record(4);
        let chart = AsciiChart::new().add("a", counted.clone()).add("b", counted);
        assert_eq!(chart.to_string().lines().count(), 2);
        assert!(chart.to_string().starts_with("a: 1 samples: p50 4"));
    }
}

//! What the hot tier counts. Counters only grow and are read without stopping anyone, so a
//! snapshot is not one instant; each number in it is true by itself.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Upper bounds of the duration buckets, in microseconds; one more bucket takes the rest.
pub const DURATION_BOUNDS_MICROS: [u64; 11] =
    [50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 50_000, 250_000, 1_000_000];

/// How often something was done and how long it took.
#[derive(Debug, Default)]
pub(super) struct Histogram {
    buckets: [AtomicU64; DURATION_BOUNDS_MICROS.len() + 1],
    nanos: AtomicU64,
}

impl Histogram {
    pub(super) fn record(&self, took: Duration) {
        let micros = took.as_micros() as u64;
        let bucket = DURATION_BOUNDS_MICROS.iter().position(|&bound| micros <= bound);
        self.buckets[bucket.unwrap_or(DURATION_BOUNDS_MICROS.len())].fetch_add(1, Relaxed);
        self.nanos.fetch_add(took.as_nanos() as u64, Relaxed);
    }

    fn snapshot(&self) -> Durations {
        let buckets = std::array::from_fn(|i| self.buckets[i].load(Relaxed));
        Durations { buckets, nanos: self.nanos.load(Relaxed) }
    }
}

/// A snapshot of a histogram.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Durations {
    /// How many fell under each of [`DURATION_BOUNDS_MICROS`] but not under the one before, and
    /// above the last.
    pub buckets: [u64; DURATION_BOUNDS_MICROS.len() + 1],
    /// Their sum.
    pub nanos: u64,
}

impl Durations {
    /// How many there were.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }
}

#[derive(Debug, Default)]
pub(super) struct Metrics {
    pub(super) sync_segment: Histogram,
    pub(super) sync_segment_new: Histogram,
    pub(super) sync_directory: Histogram,
    pub(super) sync_recovery: Histogram,
    pub(super) queue_wait: Histogram,
    pub(super) appends: AtomicU64,
    pub(super) appended_bytes: AtomicU64,
    pub(super) append_errors: AtomicU64,
    pub(super) batches: AtomicU64,
    pub(super) batches_retried: AtomicU64,
    pub(super) segments_created: AtomicU64,
    pub(super) segments_sealed: AtomicU64,
    pub(super) reads_inline: AtomicU64,
    pub(super) reads_disk: AtomicU64,
    pub(super) read_errors: AtomicU64,
    pub(super) corrupt_blocks: AtomicU64,
    pub(super) read_bytes: AtomicU64,
}

/// What the hot tier has done since it was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HotMetrics {
    /// `mlgw_sync_{total,duration_seconds}{file}`: syncs by kind of file.
    pub syncs: Vec<(&'static str, Durations)>,
    /// `mlgw_queue_wait_seconds{queue="append"}`: from an append's arrival to its batch.
    pub queue_wait: Durations,
    /// Chunks stored.
    pub appends: u64,
    /// Bytes of their records.
    pub appended_bytes: u64,
    /// Chunks answered with an error.
    pub append_errors: u64,
    /// Batches written: one write and one sync each.
    pub batches: u64,
    /// Batches that were written again to a new segment.
    pub batches_retried: u64,
    /// Segments made.
    pub segments_created: u64,
    /// Segments sealed.
    pub segments_sealed: u64,
    /// Reads answered from the page cache in place.
    pub reads_inline: u64,
    /// Reads that went through the blocking pool.
    pub reads_disk: u64,
    /// Reads answered with an error.
    pub read_errors: u64,
    /// `mlgw_corrupt_blocks_total`: blocks and heads that did not verify.
    pub corrupt_blocks: u64,
    /// Payload bytes handed out.
    pub read_bytes: u64,
    /// Segment files open for reading.
    pub open_files: u64,
    /// `mlgw_tier_used_bytes{tier="hot"}`: bytes of segments.
    pub used_bytes: u64,
    /// Bytes that may still be stored: within the capacity, and without touching the reserve.
    pub room_bytes: u64,
}

impl Metrics {
    pub(super) fn snapshot(&self) -> HotMetrics {
        HotMetrics {
            syncs: vec![
                ("segment", self.sync_segment.snapshot()),
                ("segment_new", self.sync_segment_new.snapshot()),
                ("segment_directory", self.sync_directory.snapshot()),
                ("segment_recovery", self.sync_recovery.snapshot()),
            ],
            queue_wait: self.queue_wait.snapshot(),
            appends: self.appends.load(Relaxed),
            appended_bytes: self.appended_bytes.load(Relaxed),
            append_errors: self.append_errors.load(Relaxed),
            batches: self.batches.load(Relaxed),
            batches_retried: self.batches_retried.load(Relaxed),
            segments_created: self.segments_created.load(Relaxed),
            segments_sealed: self.segments_sealed.load(Relaxed),
            reads_inline: self.reads_inline.load(Relaxed),
            reads_disk: self.reads_disk.load(Relaxed),
            read_errors: self.read_errors.load(Relaxed),
            corrupt_blocks: self.corrupt_blocks.load(Relaxed),
            read_bytes: self.read_bytes.load(Relaxed),
            open_files: 0,
            used_bytes: 0,
            room_bytes: 0,
        }
    }
}

pub(super) fn add(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Relaxed);
}

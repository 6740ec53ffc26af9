//! Counters of the segment store. They only grow and are read without locks, so a snapshot is not of one
//! instant; each number in it is correct on its own.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use mlgw_common::SyncWatch;
use mlgw_common::histogram::{DurationHistogram, Durations};

#[derive(Debug, Default)]
pub(super) struct HotCounters {
    pub(super) sync_segment: DurationHistogram,
    /// Finds slow syncs of appends.
    pub(super) sync_watch: SyncWatch,
    pub(super) sync_segment_new: DurationHistogram,
    pub(super) sync_directory: DurationHistogram,
    pub(super) sync_recovery: DurationHistogram,
    pub(super) append_wait: DurationHistogram,
    pub(super) disk_read_wait: DurationHistogram,
    pub(super) appends: AtomicU64,
    pub(super) appended_bytes: AtomicU64,
    pub(super) append_errors: AtomicU64,
    pub(super) batches: AtomicU64,
    pub(super) batches_retried: AtomicU64,
    pub(super) segments_created: AtomicU64,
    pub(super) segments_sealed: AtomicU64,
    pub(super) reads_inline: AtomicU64,
    pub(super) reads_disk: AtomicU64,
    pub(super) reads_other_replica: AtomicU64,
    pub(super) read_bytes_other_replica: AtomicU64,
    pub(super) read_errors: AtomicU64,
    pub(super) corrupt_blocks: AtomicU64,
    pub(super) read_bytes: AtomicU64,
}

/// Metrics of the segment store since it was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HotMetrics {
    /// `mlgw_sync_{total,duration_seconds}{file}`: syncs by kind of file.
    pub syncs: Vec<(&'static str, Durations)>,
    /// `mlgw_queue_wait_seconds{queue="append"}`: from an append's arrival to its batch.
    pub append_wait: Durations,
    /// `mlgw_queue_wait_seconds{queue="disk_read"}`: for reads that go to the disk, from the request to the
    /// thread that executes it.
    pub disk_read_wait: Durations,
    /// Chunks stored.
    pub appends: u64,
    /// Bytes of the records of stored chunks.
    pub appended_bytes: u64,
    /// Chunks whose append failed.
    pub append_errors: u64,
    /// Batches written: one write and one sync each.
    pub batches: u64,
    /// Batches that were written again to a new segment.
    pub batches_retried: u64,
    /// Segments created.
    pub segments_created: u64,
    /// Segments sealed.
    pub segments_sealed: u64,
    /// Reads answered from the page cache without leaving the caller's thread.
    pub reads_inline: u64,
    /// Reads executed by the blocking pool.
    pub reads_disk: u64,
    /// Reads answered by a replica on another node, which the local disk did not answer.
    pub reads_other_replica: u64,
    /// `mlgw_replica_read_bytes_total`: bytes of records in those answers.
    pub read_bytes_other_replica: u64,
    /// Ranges of segments read from upstreams.
    pub remote_reads: u64,
    /// Bytes read from upstreams.
    pub remote_read_bytes: u64,
    /// Reads that returned an error.
    pub read_errors: u64,
    /// `mlgw_corrupt_blocks_total`: blocks and record headers that did not verify.
    pub corrupt_blocks: u64,
    /// Payload bytes returned to callers.
    pub read_bytes: u64,
    /// Segment files open for reading.
    pub open_files: u64,
    /// `mlgw_tier_used_bytes{tier="hot"}`: bytes of segments.
    pub used_bytes: u64,
    /// Bytes that may still be stored: within the capacity, and without touching the reserve.
    pub room_bytes: u64,
    /// Bytes of segments in the cold tier.
    pub cold_used_bytes: u64,
    /// Bytes that the cold tier can still take.
    pub cold_room_bytes: u64,
}

impl HotCounters {
    pub(super) fn snapshot(&self) -> HotMetrics {
        HotMetrics {
            syncs: vec![
                ("segment", self.sync_segment.snapshot()),
                ("segment_new", self.sync_segment_new.snapshot()),
                ("segment_directory", self.sync_directory.snapshot()),
                ("segment_recovery", self.sync_recovery.snapshot()),
            ],
            append_wait: self.append_wait.snapshot(),
            disk_read_wait: self.disk_read_wait.snapshot(),
            appends: self.appends.load(Relaxed),
            appended_bytes: self.appended_bytes.load(Relaxed),
            append_errors: self.append_errors.load(Relaxed),
            batches: self.batches.load(Relaxed),
            batches_retried: self.batches_retried.load(Relaxed),
            segments_created: self.segments_created.load(Relaxed),
            segments_sealed: self.segments_sealed.load(Relaxed),
            reads_inline: self.reads_inline.load(Relaxed),
            remote_reads: 0,
            remote_read_bytes: 0,
            reads_disk: self.reads_disk.load(Relaxed),
            reads_other_replica: self.reads_other_replica.load(Relaxed),
            read_bytes_other_replica: self.read_bytes_other_replica.load(Relaxed),
            read_errors: self.read_errors.load(Relaxed),
            corrupt_blocks: self.corrupt_blocks.load(Relaxed),
            read_bytes: self.read_bytes.load(Relaxed),
            open_files: 0,
            used_bytes: 0,
            room_bytes: 0,
            cold_used_bytes: 0,
            cold_room_bytes: 0,
        }
    }
}

pub(super) fn add(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Relaxed);
}

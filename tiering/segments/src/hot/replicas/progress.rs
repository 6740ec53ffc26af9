//! Progress of the copies that this node makes, since the start. In memory only.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Progress of the copies that this node makes, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplicationStatus {
    /// Replicas that this node added to records.
    pub copied_segments: u64,
    /// Bytes received from other nodes.
    pub copied_bytes: u64,
    /// Local replicas whose mark was cleared, because they were healed or found whole.
    pub healed_segments: u64,
    /// Tasks that failed and are repeated.
    pub failed_tasks: u64,
    /// Local files that were removed because no record lists them any more.
    pub removed_replicas: u64,
    /// Bytes that were found damaged in every replica.
    pub damaged_bytes: u64,
}

/// Counters behind the status.
#[derive(Debug, Default)]
pub(super) struct ReplicationCounters {
    /// Passes that the driver has begun.
    pub(super) passes: AtomicU64,
    pub(super) copied_segments: AtomicU64,
    pub(super) copied_bytes: AtomicU64,
    pub(super) healed_segments: AtomicU64,
    pub(super) failed_tasks: AtomicU64,
    pub(super) removed_replicas: AtomicU64,
    pub(super) damaged_bytes: AtomicU64,
}

impl ReplicationCounters {
    pub(super) fn status(&self) -> ReplicationStatus {
        ReplicationStatus {
            copied_segments: self.copied_segments.load(Relaxed),
            copied_bytes: self.copied_bytes.load(Relaxed),
            healed_segments: self.healed_segments.load(Relaxed),
            failed_tasks: self.failed_tasks.load(Relaxed),
            removed_replicas: self.removed_replicas.load(Relaxed),
            damaged_bytes: self.damaged_bytes.load(Relaxed),
        }
    }
}

/// Adds to a counter.
pub(super) fn count(counter: &AtomicU64, amount: u64) {
    counter.fetch_add(amount, Relaxed);
}

//! Support for moving a bucket to another origin: tracking of concurrent writes, and a freeze during which no
//! write is in flight.
//!
//! A writer holds a write guard ([`BucketWriteGuard`]) for the duration of its write. The job that moves the
//! bucket waits until no guard is held and prevents new ones ([`BucketFreezeGuard`]). While a tracker exists
//! ([`WriteTracker`]), the keys of completed writes are recorded, once each, up to [`CHANGED_MAX`]; with
//! more, only the overflow is recorded.
//!
//! Invariant: a write that ends while a tracker exists is among the keys that the tracker returns, whatever
//! its result. All state is in memory: a crash ends the tracking, and a resumed move compares all objects
//! again.

use super::CachedBucket;
use mlgw_common::ObjectKey;
use mlgw_common::Timestamp;
use mlgw_common::ids::BucketId;
use parking_lot::{Mutex, RwLock as ShortLock};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};

/// Maximum number of recorded keys; tens of megabytes at most.
const CHANGED_MAX: usize = 100_000;

/// Move state of the buckets of a node.
#[derive(Default)]
pub(super) struct BucketRebinding {
    gates: Mutex<HashMap<BucketId, Arc<RwLock<()>>>>,
    trackers: AtomicUsize,
    changed: Mutex<HashMap<BucketId, TrackedKeys>>,
    /// Times at which buckets were moved to another origin.
    rebound_at: ShortLock<HashMap<BucketId, Timestamp>>,
}

/// Guard of a write that may be in flight.
#[derive(Debug)]
pub struct BucketWriteGuard {
    _held: OwnedRwLockReadGuard<()>,
}

/// Guard that prevents writes: none is in flight, and none begins until it is dropped.
#[derive(Debug)]
pub struct BucketFreezeGuard {
    _held: OwnedRwLockWriteGuard<()>,
}

/// Tracker of the keys written to a bucket until it is dropped.
pub struct WriteTracker {
    bucket: CachedBucket,
}

/// Keys that were written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrackedKeys {
    /// Recorded keys.
    pub keys: BTreeSet<ObjectKey>,
    /// True if there were more keys than could be recorded.
    pub has_overflowed: bool,
}

impl BucketRebinding {
    fn gate(&self, bucket: BucketId) -> Arc<RwLock<()>> {
        self.gates.lock().entry(bucket).or_default().clone()
    }

    /// Records that a write of a key has ended.
    pub(super) fn record_write(&self, bucket: BucketId, key: &ObjectKey) {
        if self.trackers.load(Ordering::Acquire) == 0 {
            return;
        }
        if let Some(changed) = self.changed.lock().get_mut(&bucket) {
            changed.add(key.clone());
        }
    }

    /// Returns the time at which a bucket was moved to another origin. Metadata from before that time came
    /// from the earlier origin.
    pub(super) fn rebound_at(&self, bucket: BucketId) -> Timestamp {
        self.rebound_at.read().get(&bucket).copied().unwrap_or_default()
    }

    /// Drops the state of a deleted bucket, except for a gate that is held.
    pub(super) fn forget(&self, bucket: BucketId) {
        let mut gates = self.gates.lock();
        if gates.get(&bucket).is_some_and(|gate| Arc::strong_count(gate) == 1) {
            gates.remove(&bucket);
        }
        self.rebound_at.write().remove(&bucket);
    }
}

impl TrackedKeys {
    fn add(&mut self, key: ObjectKey) {
        if self.keys.len() < CHANGED_MAX {
            self.keys.insert(key);
        } else if !self.keys.contains(&key) {
            self.has_overflowed = true;
        }
    }
}

impl CachedBucket {
    /// Acquires the guard of a client's write, which must be held from before the lookup of the origin until
    /// the write is done. Waits while the bucket is frozen.
    pub async fn begin_write(&self) -> BucketWriteGuard {
        BucketWriteGuard { _held: self.inner.rebinding.gate(self.id).read_owned().await }
    }

    /// Waits until no write is in flight, and prevents new ones. Returns `None` if that takes longer than
    /// `patience`; new writes wait during that time.
    pub async fn freeze(&self, patience: Duration) -> Option<BucketFreezeGuard> {
        let held =
            mlgw_common::time::timeout(patience, self.inner.rebinding.gate(self.id).write_owned()).await;
        Some(BucketFreezeGuard { _held: held.ok()? })
    }

    /// Records that the bucket is bound to another origin now. Known metadata is revalidated there before it
    /// is used, and copies of identical objects stay. Nothing that the old origin still answers to this
    /// handle is stored.
    pub fn mark_rebound(&self) {
        // Metadata of the current millisecond may still come from the earlier origin.
        let from = Timestamp(self.inner.clock.now().as_millis() + 1);
        self.inner.rebinding.rebound_at.write().insert(self.id, from);
        self.inner.write_order.invalidate_all();
        self.inner.absent.clear();
    }

    /// True if the bucket is still bound to the same origin.
    #[must_use]
    pub fn is_current(&self) -> bool {
        self.rebound_at == self.inner.rebinding.rebound_at(self.id)
    }

    /// Starts to track writes. A bucket has at most one tracker.
    #[must_use]
    pub fn track_writes(&self) -> WriteTracker {
        let moving = &self.inner.rebinding;
        moving.changed.lock().insert(self.id, TrackedKeys::default());
        moving.trackers.fetch_add(1, Ordering::Release);
        WriteTracker { bucket: self.clone() }
    }
}

impl WriteTracker {
    /// Returns the keys written since the last call.
    #[must_use]
    pub fn take(&self) -> TrackedKeys {
        let mut changed = self.bucket.inner.rebinding.changed.lock();
        changed.get_mut(&self.bucket.id).map(std::mem::take).unwrap_or_default()
    }

    /// Returns keys that were taken and not processed.
    pub fn put_back(&self, keys: impl IntoIterator<Item = ObjectKey>) {
        if let Some(changed) = self.bucket.inner.rebinding.changed.lock().get_mut(&self.bucket.id) {
            keys.into_iter().for_each(|key| changed.add(key));
        }
    }
}

impl Drop for WriteTracker {
    fn drop(&mut self) {
        let moving = &self.bucket.inner.rebinding;
        let trackers = moving.trackers.fetch_sub(1, Ordering::Release);
        assert!(trackers > 0, "a tracker that is dropped was counted");
        moving.changed.lock().remove(&self.bucket.id);
    }
}

#[cfg(test)]
mod tests {
    use super::{BucketRebinding, CHANGED_MAX, TrackedKeys};
    use mlgw_common::ObjectKey;
    use mlgw_common::ids::BucketId;

    fn key(n: usize) -> ObjectKey {
        ObjectKey::new(&n.to_string()).unwrap()
    }

    #[test]
    fn keys_are_recorded_once_and_up_to_the_limit() {
        let mut changed = TrackedKeys::default();
        (0..CHANGED_MAX).chain(0..CHANGED_MAX).for_each(|n| changed.add(key(n)));
        assert!(changed.keys.len() == CHANGED_MAX && !changed.has_overflowed);
        changed.add(key(CHANGED_MAX));
        assert!(changed.keys.len() == CHANGED_MAX && changed.has_overflowed);
    }

    #[tokio::test]
    async fn a_held_gate_is_not_dropped() {
        let moving = BucketRebinding::default();
        let pass = moving.gate(BucketId(1)).read_owned().await;
        moving.forget(BucketId(1));
        assert!(moving.gate(BucketId(1)).try_write().is_err(), "a write is in progress");
        drop(pass);
        moving.forget(BucketId(1));
        assert!(moving.gates.lock().is_empty());
    }
}

//! What a bucket that is moved to another origin needs: to know what is written meanwhile, and a moment in
//! which nothing is.
//!
//! Who writes has a pass for as long as that takes, and who moves the bucket waits until nobody has one and
//! lets nobody have one ([`Frozen`]). As long as somebody listens ([`Listening`]) the keys of writes that end
//! are remembered, once each, up to [`CHANGED_MAX`]; with more it is remembered that there were.
//!
//! Always: a write that ended while somebody listened is among what he takes, whatever came of it. All of it
//! is in memory: a crash ends the listening, and who goes on compares everything anew.

use super::BoundBucket;
use mlgw_common::ObjectKey;
use mlgw_common::Timestamp;
use mlgw_common::ids::BucketId;
use parking_lot::{Mutex, RwLock as ShortLock};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};

/// Keys that are remembered; tens of megabytes at most.
const CHANGED_MAX: usize = 100_000;

/// The buckets of a node.
#[derive(Default)]
pub(super) struct Moving {
    gates: Mutex<HashMap<BucketId, Arc<RwLock<()>>>>,
    listeners: AtomicUsize,
    changed: Mutex<HashMap<BucketId, Changed>>,
    /// When buckets were moved to another origin.
    moved: ShortLock<HashMap<BucketId, Timestamp>>,
}

/// A write may be under way, until it is dropped.
#[derive(Debug)]
pub struct Pass {
    _held: OwnedRwLockReadGuard<()>,
}

/// No write is under way and none begins, until it is dropped.
#[derive(Debug)]
pub struct Frozen {
    _held: OwnedRwLockWriteGuard<()>,
}

/// Somebody wants to know what is written, until it is dropped.
pub struct Listening {
    bucket: BoundBucket,
}

/// Keys that were written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changed {
    /// They.
    pub keys: BTreeSet<ObjectKey>,
    /// Whether there were more than could be remembered.
    pub is_cut: bool,
}

impl Moving {
    fn gate(&self, bucket: BucketId) -> Arc<RwLock<()>> {
        self.gates.lock().entry(bucket).or_default().clone()
    }

    /// A write of a key has ended.
    pub(super) fn note(&self, bucket: BucketId, key: &ObjectKey) {
        if self.listeners.load(Ordering::Acquire) == 0 {
            return;
        }
        if let Some(changed) = self.changed.lock().get_mut(&bucket) {
            changed.add(key.clone());
        }
    }

    /// When a bucket was moved to another origin: what was said before was said by the one before.
    pub(super) fn moved(&self, bucket: BucketId) -> Timestamp {
        self.moved.read().get(&bucket).copied().unwrap_or_default()
    }

    /// The bucket is gone: what nobody holds of it goes.
    pub(super) fn forget(&self, bucket: BucketId) {
        let mut gates = self.gates.lock();
        if gates.get(&bucket).is_some_and(|gate| Arc::strong_count(gate) == 1) {
            gates.remove(&bucket);
        }
        self.moved.write().remove(&bucket);
    }
}

impl Changed {
    fn add(&mut self, key: ObjectKey) {
        if self.keys.len() < CHANGED_MAX {
            self.keys.insert(key);
        } else if !self.keys.contains(&key) {
            self.is_cut = true;
        }
    }
}

impl BoundBucket {
    /// To be held by whoever writes for a client, from before he looks up where to until it is done. Waits
    /// while the bucket is frozen.
    pub async fn pass(&self) -> Pass {
        Pass { _held: self.inner.moving.gate(self.id).read_owned().await }
    }

    /// Waits until nobody writes, and lets nobody write; nothing when that takes longer than `patience`, for
    /// which who wants to write waits, too.
    pub async fn freeze(&self, patience: Duration) -> Option<Frozen> {
        let held = tokio::time::timeout(patience, self.inner.moving.gate(self.id).write_owned()).await;
        Some(Frozen { _held: held.ok()? })
    }

    /// The bucket is bound to another origin now. What is known of objects is asked for once more there
    /// before it is said, and copies of what is the same stay; what this one is told still, in this shape,
    /// holds for nobody.
    pub fn was_moved(&self) {
        // What is said in this very millisecond may have been said by the one before.
        let from = Timestamp(self.inner.clock.now().as_millis() + 1);
        self.inner.moving.moved.write().insert(self.id, from);
        self.inner.order.expire_all();
        self.inner.absent.clear();
    }

    /// Whether the bucket fronts the same origin still.
    #[must_use]
    pub fn is_current(&self) -> bool {
        self.moved == self.inner.moving.moved(self.id)
    }

    /// Listens to what is written from now on. There is one who listens to a bucket.
    #[must_use]
    pub fn listen(&self) -> Listening {
        let moving = &self.inner.moving;
        moving.changed.lock().insert(self.id, Changed::default());
        moving.listeners.fetch_add(1, Ordering::Release);
        Listening { bucket: self.clone() }
    }
}

impl Listening {
    /// What was written since the last time.
    #[must_use]
    pub fn take(&self) -> Changed {
        let mut changed = self.bucket.inner.moving.changed.lock();
        changed.get_mut(&self.bucket.id).map(std::mem::take).unwrap_or_default()
    }

    /// What was taken and not seen to.
    pub fn give_back(&self, keys: impl IntoIterator<Item = ObjectKey>) {
        if let Some(changed) = self.bucket.inner.moving.changed.lock().get_mut(&self.bucket.id) {
            keys.into_iter().for_each(|key| changed.add(key));
        }
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        let moving = &self.bucket.inner.moving;
        moving.listeners.fetch_sub(1, Ordering::Release);
        moving.changed.lock().remove(&self.bucket.id);
    }
}

#[cfg(test)]
mod tests {
    use super::{CHANGED_MAX, Changed, Moving};
    use mlgw_common::ObjectKey;
    use mlgw_common::ids::BucketId;

    fn key(n: usize) -> ObjectKey {
        ObjectKey::new(&n.to_string()).unwrap()
    }

    #[test]
    fn keys_are_remembered_once_each_and_no_more_than_may_be() {
        let mut changed = Changed::default();
        (0..CHANGED_MAX).chain(0..CHANGED_MAX).for_each(|n| changed.add(key(n)));
        assert!(changed.keys.len() == CHANGED_MAX && !changed.is_cut);
        changed.add(key(CHANGED_MAX));
        assert!(changed.keys.len() == CHANGED_MAX && changed.is_cut);
    }

    #[tokio::test]
    async fn what_is_held_is_not_forgotten() {
        let moving = Moving::default();
        let pass = moving.gate(BucketId(1)).read_owned().await;
        moving.forget(BucketId(1));
        assert!(moving.gate(BucketId(1)).try_write().is_err(), "somebody writes");
        drop(pass);
        moving.forget(BucketId(1));
        assert!(moving.gates.lock().is_empty());
    }
}

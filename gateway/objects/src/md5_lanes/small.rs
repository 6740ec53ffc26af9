//! MD5s of small bodies, computed by their callers.
//!
//! A small body is complete when it arrives, and its MD5 is needed only after its append, which takes longer
//! than hashing. The body is therefore submitted as pending. The caller that submits the last body of a
//! batch, or needs a digest that is not computed yet, computes all pending bodies. No thread is woken and no
//! caller waits: a digest that another caller is computing is computed twice. All state is in memory, so a
//! power failure changes nothing.

use super::Md5Hasher;
use super::state::{Md5State, update_all};
use bytes::Bytes;
use md5::{Digest as _, Md5};
use parking_lot::Mutex;
use std::mem::take;
use std::sync::{Arc, OnceLock};

/// Bodies of a batch: the number of lanes.
const BATCH: usize = 8;

/// Pending bodies, fewer than [`BATCH`].
pub(super) type PendingBodies = Mutex<Vec<Arc<SmallBody>>>;

pub(super) struct SmallBody {
    bytes: Bytes,
    md5: OnceLock<[u8; 16]>,
}

/// A submitted body. Dropping it withdraws the body.
pub struct PendingMd5 {
    hasher: Md5Hasher,
    small: Arc<SmallBody>,
}

impl Md5Hasher {
    /// Submits a whole body. It is hashed together with others, at the latest when its digest is requested.
    #[must_use]
    pub fn submit(&self, bytes: Bytes) -> PendingMd5 {
        let small = Arc::new(SmallBody { bytes, md5: OnceLock::new() });
        let mut pending = self.0.pending.lock();
        pending.push(Arc::clone(&small));
        assert!(pending.len() <= BATCH, "a full batch is taken at once");
        let batch = if pending.len() == BATCH { take(&mut *pending) } else { Vec::new() };
        drop(pending);
        self.compute(batch);
        PendingMd5 { hasher: self.clone(), small }
    }

    fn compute(&self, batch: Vec<Arc<SmallBody>>) {
        let mut md5s: Vec<_> = batch.iter().map(|_| Md5State::new()).collect();
        update_all(self.0.level, md5s.iter_mut().zip(batch.iter().map(|small| &small.bytes[..])));
        for (small, md5) in batch.iter().zip(md5s) {
            // Another caller may have set the same value.
            let _ = small.md5.set(md5.finish());
        }
    }
}

impl PendingMd5 {
    /// Returns the MD5. Computes it, together with all pending bodies, if it is not computed yet.
    #[must_use]
    pub fn digest(self) -> [u8; 16] {
        if self.small.md5.get().is_none() {
            let batch = self.take_all();
            self.hasher.compute(batch);
        }
        *self.small.md5.get_or_init(|| Md5::digest(&self.small.bytes).into())
    }

    /// Takes all pending bodies if this one is among them.
    fn take_all(&self) -> Vec<Arc<SmallBody>> {
        let mut pending = self.hasher.0.pending.lock();
        let is_pending = pending.iter().any(|small| Arc::ptr_eq(small, &self.small));
        if is_pending { take(&mut *pending) } else { Vec::new() }
    }
}

impl Drop for PendingMd5 {
    fn drop(&mut self) {
        if self.small.md5.get().is_none() {
            self.hasher.0.pending.lock().retain(|small| !Arc::ptr_eq(small, &self.small));
        }
    }
}

#[cfg(test)]
mod tests {
    //! Tests that small bodies get their own digests, regardless of which caller computes them.

    use super::{Md5Hasher, PendingMd5};
    use bytes::Bytes;
    use md5::{Digest as _, Md5};
    use tokio::runtime::Handle;

    fn body(length: usize) -> Bytes {
        (0..length).map(|at| (at * 31 + length) as u8).collect()
    }

    fn md5(bytes: &Bytes) -> [u8; 16] {
        Md5::digest(bytes).into()
    }

    /// Returns the number of pending bodies, and the number of those of `left` that are hashed.
    fn counts(hasher: &Md5Hasher, left: &[PendingMd5]) -> (usize, usize) {
        let hashed = left.iter().filter(|left| left.small.md5.get().is_some());
        (hasher.0.pending.lock().len(), hashed.count())
    }

    #[tokio::test]
    async fn the_eighth_body_and_the_first_digest_hash_all_pending_bodies() {
        let hasher = Md5Hasher::new(Handle::current());
        let bodies: Vec<Bytes> = (0..11).map(|length| body(length * 100)).collect();
        let mut left: Vec<PendingMd5> = bodies[..7].iter().map(|body| hasher.submit(body.clone())).collect();
        assert_eq!(counts(&hasher, &left), (7, 0));
        left.push(hasher.submit(bodies[7].clone()));
        assert_eq!(counts(&hasher, &left), (0, 8));
        left.extend(bodies[8..].iter().map(|body| hasher.submit(body.clone())));
        assert_eq!(counts(&hasher, &left), (3, 8));
        assert_eq!(left.pop().unwrap().digest(), md5(&bodies[10]));
        assert_eq!(counts(&hasher, &left), (0, 10));
        for (left, body) in left.into_iter().zip(&bodies) {
            assert_eq!(left.digest(), md5(body));
        }
    }

    #[tokio::test]
    async fn a_dropped_body_is_no_longer_pending() {
        let hasher = Md5Hasher::new(Handle::current());
        let (one, other) = (hasher.submit(body(10)), hasher.submit(body(20)));
        drop(one);
        assert_eq!(counts(&hasher, &[]), (1, 0));
        assert_eq!(other.digest(), md5(&body(20)));
        assert_eq!(counts(&hasher, &[]), (0, 0));
    }

    #[tokio::test]
    async fn a_body_that_another_caller_has_taken_is_computed_as_well() {
        let hasher = Md5Hasher::new(Handle::current());
        let left = hasher.submit(body(33));
        hasher.0.pending.lock().clear();
        assert_eq!(left.digest(), md5(&body(33)));
    }

    #[tokio::test]
    async fn many_threads_get_the_digests_of_their_own_bodies() {
        let hasher = Md5Hasher::new(Handle::current());
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let hasher = &hasher;
                scope.spawn(move || {
                    for round in 0..500 {
                        let bodies: Vec<Bytes> = (0..3).map(|i| body(thread + 4 * round + i)).collect();
                        let left: Vec<PendingMd5> =
                            bodies.iter().map(|body| hasher.submit(body.clone())).collect();
                        for (left, body) in left.into_iter().zip(&bodies) {
                            assert_eq!(left.digest(), md5(body));
                        }
                    }
                });
            }
        });
        assert_eq!(counts(&hasher, &[]), (0, 0));
    }
}

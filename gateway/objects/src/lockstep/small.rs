//! MD5 of small bodies, by those who bring them.
//!
//! A small body is whole when it comes, and its MD5 is wanted only after its append, for which it waits longer than any hashing
//! takes. So it is left here meanwhile. Who brings the last one that goes into a batch, or wants a digest
//! that is not there yet, computes all that lie here. No thread is woken and nobody waits: a digest that somebody
//! else is just computing is computed once more.

use super::Hasher;
use super::running::{Running, update_all};
use bytes::Bytes;
use md5::{Digest as _, Md5};
use parking_lot::Mutex;
use std::mem::take;
use std::sync::{Arc, OnceLock};

/// As many as there are lanes.
const BATCH: usize = 8;

/// Bodies that lie here; less than a batch.
pub(super) type Lying = Mutex<Vec<Arc<Small>>>;

pub(super) struct Small {
    bytes: Bytes,
    md5: OnceLock<[u8; 16]>,
}

/// A body that was left to be hashed. When it is dropped, nobody hashes it any more.
pub struct Left {
    hasher: Hasher,
    small: Arc<Small>,
}

impl Hasher {
    /// Leaves a whole body here, to be hashed with others before its digest is asked for.
    #[must_use]
    pub fn leave(&self, bytes: Bytes) -> Left {
        let small = Arc::new(Small { bytes, md5: OnceLock::new() });
        let mut lying = self.0.lying.lock();
        lying.push(Arc::clone(&small));
        let batch = if lying.len() == BATCH { take(&mut *lying) } else { Vec::new() };
        drop(lying);
        self.compute(batch);
        Left { hasher: self.clone(), small }
    }

    fn compute(&self, batch: Vec<Arc<Small>>) {
        let mut md5s: Vec<_> = batch.iter().map(|_| Running::new()).collect();
        update_all(self.0.level, md5s.iter_mut().zip(batch.iter().map(|small| &small.bytes[..])));
        for (small, md5) in batch.iter().zip(md5s) {
            // Whoever was faster found the same.
            let _ = small.md5.set(md5.finish());
        }
    }
}

impl Left {
    /// Its MD5.
    #[must_use]
    pub fn digest(self) -> [u8; 16] {
        if self.small.md5.get().is_none() {
            let batch = self.take_all();
            self.hasher.compute(batch);
        }
        *self.small.md5.get_or_init(|| Md5::digest(&self.small.bytes).into())
    }

    /// Those that lie here, if this one is among them.
    fn take_all(&self) -> Vec<Arc<Small>> {
        let mut lying = self.hasher.0.lying.lock();
        let lies = lying.iter().any(|small| Arc::ptr_eq(small, &self.small));
        if lies { take(&mut *lying) } else { Vec::new() }
    }
}

impl Drop for Left {
    fn drop(&mut self) {
        if self.small.md5.get().is_none() {
            self.hasher.0.lying.lock().retain(|small| !Arc::ptr_eq(small, &self.small));
        }
    }
}

#[cfg(test)]
mod tests {
    //! Small bodies get their own digests, whoever computes them.

    use super::{Hasher, Left};
    use bytes::Bytes;
    use md5::{Digest as _, Md5};
    use tokio::runtime::Handle;

    fn body(length: usize) -> Bytes {
        (0..length).map(|at| (at * 31 + length) as u8).collect()
    }

    fn md5(bytes: &Bytes) -> [u8; 16] {
        Md5::digest(bytes).into()
    }

    /// How many lie there, and how many of these are hashed.
    fn counts(hasher: &Hasher, left: &[Left]) -> (usize, usize) {
        let hashed = left.iter().filter(|left| left.small.md5.get().is_some());
        (hasher.0.lying.lock().len(), hashed.count())
    }

    #[tokio::test]
    async fn the_eighth_has_all_of_them_hashed_and_so_has_who_asks_first() {
        let hasher = Hasher::new(Handle::current());
        let bodies: Vec<Bytes> = (0..11).map(|length| body(length * 100)).collect();
        let mut left: Vec<Left> = bodies[..7].iter().map(|body| hasher.leave(body.clone())).collect();
        assert_eq!(counts(&hasher, &left), (7, 0));
        left.push(hasher.leave(bodies[7].clone()));
        assert_eq!(counts(&hasher, &left), (0, 8));
        left.extend(bodies[8..].iter().map(|body| hasher.leave(body.clone())));
        assert_eq!(counts(&hasher, &left), (3, 8));
        assert_eq!(left.pop().unwrap().digest(), md5(&bodies[10]));
        assert_eq!(counts(&hasher, &left), (0, 10));
        for (left, body) in left.into_iter().zip(&bodies) {
            assert_eq!(left.digest(), md5(body));
        }
    }

    #[tokio::test]
    async fn who_gives_up_takes_his_body_away() {
        let hasher = Hasher::new(Handle::current());
        let (one, other) = (hasher.leave(body(10)), hasher.leave(body(20)));
        drop(one);
        assert_eq!(counts(&hasher, &[]), (1, 0));
        assert_eq!(other.digest(), md5(&body(20)));
        assert_eq!(counts(&hasher, &[]), (0, 0));
    }

    #[tokio::test]
    async fn what_somebody_else_has_taken_is_computed_all_the_same() {
        let hasher = Hasher::new(Handle::current());
        let left = hasher.leave(body(33));
        hasher.0.lying.lock().clear();
        assert_eq!(left.digest(), md5(&body(33)));
    }

    #[tokio::test]
    async fn many_threads_get_each_their_own() {
        let hasher = Hasher::new(Handle::current());
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let hasher = &hasher;
                scope.spawn(move || {
                    for round in 0..500 {
                        let bodies: Vec<Bytes> = (0..3).map(|i| body(thread + 4 * round + i)).collect();
                        let left: Vec<Left> = bodies.iter().map(|body| hasher.leave(body.clone())).collect();
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

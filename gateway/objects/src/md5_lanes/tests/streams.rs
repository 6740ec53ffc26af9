//! Tests of the whole hasher with its threads: many bodies at once, slow ones and dropped ones among them.

use crate::md5_lanes::{Md5Hasher, Stopped};
use bytes::Bytes;
use futures_util::future::join_all;
use md5::{Digest as _, Md5};
use std::collections::VecDeque;
use std::sync::Arc;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// Chunks that a body has in flight before its owner waits.
const IN_FLIGHT_MAX: usize = 4;

/// Deterministic pseudorandom numbers from a seed.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }
}

fn bytes_of(length: usize, seed: usize) -> Bytes {
    (0..length).map(|at| (at.wrapping_add(seed).wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

/// Hashes `body` chunk by chunk as its owner would. Stops after `given_up` bytes, if given.
async fn hash(hasher: Md5Hasher, body: Bytes, seed: u64, given_up: Option<usize>) -> Option<[u8; 16]> {
    let (mut numbers, mut stream) = (Numbers(seed), hasher.open());
    let (mut rest, mut waiting, mut hashed) = (body.clone(), VecDeque::new(), 0);
    while rest.len() > 70_000 {
        if given_up.is_some_and(|bytes| body.len() - rest.len() >= bytes) {
            return None;
        }
        if waiting.len() == IN_FLIGHT_MAX {
            stream.expedite(hashed + 1);
            assert_eq!(waiting.pop_front().unwrap().await, Ok(()));
            hashed += 1;
        }
        waiting.push_back(stream.push(rest.split_to(1 + numbers.below(70_000))));
        if numbers.below(3) == 0 {
            tokio::task::yield_now().await;
        }
    }
    Some(stream.finish(rest).await.unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn concurrent_bodies_have_their_digests_beside_slow_and_dropped_streams() {
    let hasher = Md5Hasher::new(Handle::current());
    let mut numbers = Numbers(1);
    // Streams that stay open without a chunk. Batches wait for them only once.
    let _slow = [hasher.open(), hasher.open()];
    let bodies = (0..100_u64).map(|seed| {
        let body = bytes_of(numbers.below(1_000_000), seed as usize);
        let given_up = (numbers.below(4) == 0).then(|| numbers.below(500_000));
        let hashing = tokio::spawn(hash(hasher.clone(), body.clone(), seed, given_up));
        async move {
            let found = hashing.await.unwrap();
            assert!(found.is_some() || given_up.is_some(), "body {seed}");
            if let Some(md5) = found {
                assert_eq!(md5, <[u8; 16]>::from(Md5::digest(&body)), "body {seed} of {} bytes", body.len());
            }
        }
    });
    join_all(bodies.collect::<Vec<_>>()).await;
    let work = hasher.0.work.lock();
    assert_eq!(work.schedule.waiting_bytes(), 0, "a dropped stream leaves no bytes");
}

#[tokio::test]
async fn a_waiter_of_a_dropped_stream_gets_an_error() {
    let hasher = Md5Hasher::new(Handle::current());
    let (_other, mut stream) = (hasher.open(), hasher.open());
    let (dropped, bytes) = oneshot::channel::<()>();
    let carried = Bytes::from_owner(Carrying { _dropped: dropped });
    let hashed = stream.push(carried);
    drop(stream);
    assert_eq!(hashed.await, Err(Stopped));
    assert!(bytes.await.is_err(), "its bytes are dropped with it");
}

/// Bytes that report when they are dropped.
struct Carrying {
    _dropped: oneshot::Sender<()>,
}

impl AsRef<[u8]> for Carrying {
    fn as_ref(&self) -> &[u8] {
        b"bytes"
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_panics_frees_its_seat() {
    let hasher = Md5Hasher::new(Handle::current());
    let seats = Arc::clone(&hasher.0.work.lock().seats);
    let taken: Vec<_> = (0..hasher.0.workers_max).map(|_| Arc::clone(&seats)).collect();
    drop(seats);
    let (mut stream, first) = (hasher.open(), bytes_of(100, 1));
    let hashed = stream.push(first.clone());
    stream.expedite_all();
    assert_eq!(hasher.0.work.lock().schedule.waiting_bytes(), 100, "it has no free slot");
    let worker = std::thread::spawn(move || {
        let _taken = taken;
        panic!("on purpose");
    });
    worker.join().unwrap_err();
    let last = bytes_of(50, 2);
    assert_eq!(stream.finish(last.clone()).await, Ok(Md5::digest([first, last].concat()).into()));
    assert_eq!(hashed.await, Ok(()));
}

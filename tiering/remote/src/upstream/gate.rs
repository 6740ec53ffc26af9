//! Adaptive concurrency limit of the requests to one store.
//!
//! Additive increase, multiplicative decrease: a full window of good responses raises the limit by one, a
//! "slow down" response halves it. Requests that were in flight when the limit was halved do not halve it
//! again, because they reflect the earlier load. A burst of rejections therefore counts once, and no clock is
//! needed to delimit it. A limit that is less than half used does not grow. Waiting requests are admitted in
//! order of arrival; a request that stops waiting does not delay the others. Nothing is kept over a restart.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

/// Initial limit: the parts of one segment, and some reads.
const LIMIT_FIRST: f64 = 8.0;
/// Maximum limit. At 30 ms to the first byte and 1 MiB a read, 64 requests are 2 GiB/s: more than a gateway's
/// network.
const LIMIT_MAX: f64 = 64.0;
/// Factor by which a rejection reduces the limit.
const DECREASE: f64 = 0.5;

/// Load of the store as a response indicates it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreLoad {
    /// The request was answered.
    Answered,
    /// The store requested fewer requests.
    SlowDown,
    /// The result does not indicate the load: rejected, broken off or not sent.
    Unknown,
}

/// Concurrency limit. Pure.
#[derive(Debug)]
struct AdaptiveLimit {
    limit: f64,
    in_flight: usize,
    /// Number of reductions so far; each request records the number at its start.
    reductions: u64,
}

impl AdaptiveLimit {
    fn has_room(&self) -> bool {
        self.in_flight < self.limit as usize
    }

    /// Begins a request. Returns the number of reductions before it.
    fn begin(&mut self) -> u64 {
        self.in_flight += 1;
        self.reductions
    }

    /// Ends a request that began after the given number of reductions.
    fn end(&mut self, began: u64, load: StoreLoad) {
        assert!(self.in_flight > 0, "a request that ends is in flight");
        assert!(began <= self.reductions, "a request began no later than it ends");
        let was_used = 2 * self.in_flight >= self.limit as usize;
        self.in_flight -= 1;
        match load {
            StoreLoad::Answered if was_used && began == self.reductions => {
                self.limit = (self.limit + 1.0 / self.limit.floor()).min(LIMIT_MAX);
            }
            StoreLoad::SlowDown if began == self.reductions => {
                self.limit = (self.limit * DECREASE).max(1.0);
                self.reductions += 1;
            }
            StoreLoad::Answered | StoreLoad::SlowDown | StoreLoad::Unknown => {}
        }
    }
}

/// Admission of requests to one store.
#[derive(Clone, Debug)]
pub struct UpstreamGate(Arc<Mutex<GateState>>);

#[derive(Debug)]
struct GateState {
    limit: AdaptiveLimit,
    waiters: VecDeque<oneshot::Sender<GatePermit>>,
}

/// Permit for one request in flight. Dropping it leaves the limit unchanged.
#[derive(Debug)]
pub struct GatePermit {
    /// `None` once the permit is returned.
    gate: Option<UpstreamGate>,
    began_after: u64,
}

impl Default for UpstreamGate {
    fn default() -> Self {
        let limit = AdaptiveLimit { limit: LIMIT_FIRST, in_flight: 0, reductions: 0 };
        Self(Arc::new(Mutex::new(GateState { limit, waiters: VecDeque::new() })))
    }
}

impl UpstreamGate {
    /// Waits until another request may be sent.
    pub async fn acquire(&self) -> GatePermit {
        let granted = {
            let mut state = self.0.lock();
            if state.limit.has_room() && state.waiters.is_empty() {
                return self.new_permit(&mut state);
            }
            let (grant, granted) = oneshot::channel();
            state.waiters.push_back(grant);
            granted
        };
        match granted.await {
            Ok(pass) => pass,
            // A waiter is granted its permit before its sender is dropped; a gate that no longer exists
            // limits nothing.
            Err(_) => GatePermit { gate: None, began_after: 0 },
        }
    }

    /// Returns the current limit.
    #[must_use]
    pub fn limit(&self) -> usize {
        self.0.lock().limit.limit as usize
    }

    /// Returns the number of requests in flight.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.0.lock().limit.in_flight
    }

    fn new_permit(&self, state: &mut GateState) -> GatePermit {
        GatePermit { gate: Some(self.clone()), began_after: state.limit.begin() }
    }

    fn release(&self, began: u64, load: StoreLoad) {
        self.0.lock().limit.end(began, load);
        loop {
            let (grant, pass) = {
                let mut state = self.0.lock();
                if !state.limit.has_room() {
                    return;
                }
                let Some(grant) = state.waiters.pop_front() else { return };
                (grant, self.new_permit(&mut state))
            };
            // A waiter that was dropped returns its permit, which admits the next one: in this loop, not by
            // recursion.
            if let Err(mut pass) = grant.send(pass) {
                pass.gate = None;
                self.0.lock().limit.end(pass.began_after, StoreLoad::Unknown);
            }
        }
    }
}

impl GatePermit {
    /// Ends the request and reports the load that its response indicated.
    pub fn finish(mut self, load: StoreLoad) {
        self.release(load);
    }

    fn release(&mut self, load: StoreLoad) {
        if let Some(gate) = self.gate.take() {
            gate.release(self.began_after, load);
        }
    }
}

impl Drop for GatePermit {
    fn drop(&mut self) {
        self.release(StoreLoad::Unknown);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt as _;

    fn limit(of: f64) -> AdaptiveLimit {
        AdaptiveLimit { limit: of, in_flight: 0, reductions: 0 }
    }

    /// Runs a full window of requests that all end with `load`.
    fn round(limit: &mut AdaptiveLimit, load: StoreLoad) {
        let began: Vec<u64> = std::iter::from_fn(|| limit.has_room().then(|| limit.begin())).collect();
        began.into_iter().for_each(|began| limit.end(began, load));
    }

    #[test]
    fn good_windows_add_one_and_a_burst_of_rejections_halves_once() {
        let mut limit = limit(8.0);
        round(&mut limit, StoreLoad::SlowDown);
        assert_eq!(limit.limit, 4.0, "eight refusals at once are one burst");
        round(&mut limit, StoreLoad::SlowDown);
        assert_eq!(limit.limit, 2.0, "the next ones are another");
        (0..3).for_each(|_| round(&mut limit, StoreLoad::SlowDown));
        assert_eq!(limit.limit, 1.0, "one request is always admitted");
        let mut rounds = 0;
        while limit.limit < 8.0 {
            let before = limit.limit;
            round(&mut limit, StoreLoad::Answered);
            assert!(limit.limit > before && limit.limit <= before + 1.01, "{before} → {}", limit.limit);
            rounds += 1;
        }
        assert!((7..=16).contains(&rounds), "{rounds}");
        (0..1000).for_each(|_| round(&mut limit, StoreLoad::Answered));
        assert_eq!(limit.limit, LIMIT_MAX);
    }

    #[test]
    fn the_limit_does_not_grow_while_underused_or_on_unknown_load() {
        let mut limit = limit(8.0);
        for _ in 0..100 {
            let began = limit.begin();
            limit.end(began, StoreLoad::Answered);
        }
        assert_eq!(limit.limit, 8.0);
        round(&mut limit, StoreLoad::Unknown);
        assert_eq!(limit.limit, 8.0);
    }

    #[tokio::test]
    async fn waiters_are_admitted_in_order_and_dropped_ones_are_skipped() {
        let gate = UpstreamGate::default();
        let mut passes = Vec::new();
        for _ in 0..gate.limit() {
            passes.push(gate.acquire().await);
        }
        let (mut first, mut second) = (Box::pin(gate.acquire()), Box::pin(gate.acquire()));
        assert!(first.as_mut().now_or_never().is_none() && second.as_mut().now_or_never().is_none());
        let mut third = Box::pin(gate.acquire());
        assert!(third.as_mut().now_or_never().is_none());
        drop(first);
        drop(passes.pop());
        let pass = second.await;
        assert!(third.as_mut().now_or_never().is_none(), "there was room for one");
        // The permit is granted and then dropped before it is used: the slot is free again.
        passes.push(pass);
        drop(passes.pop());
        drop(third);
        passes.push(gate.acquire().await);
        assert_eq!(gate.in_flight(), gate.limit());
        passes.clear();
        assert_eq!(gate.in_flight(), 0);
    }

    #[tokio::test]
    async fn a_reduced_gate_admits_no_request_until_enough_have_ended() {
        let gate = UpstreamGate::default();
        let mut passes = Vec::new();
        for _ in 0..8 {
            passes.push(gate.acquire().await);
        }
        passes.pop().expect("one").finish(StoreLoad::SlowDown);
        assert_eq!((gate.limit(), gate.in_flight()), (4, 7));
        let mut next = Box::pin(gate.acquire());
        for _ in 0..3 {
            passes.pop().expect("one").finish(StoreLoad::Answered);
            assert!(next.as_mut().now_or_never().is_none());
        }
        passes.pop().expect("one").finish(StoreLoad::SlowDown);
        assert_eq!(
            (gate.limit(), gate.in_flight()),
            (4, 4),
            "it began before the limit was reduced, and one was admitted"
        );
        assert!(next.as_mut().now_or_never().is_some());
    }
}

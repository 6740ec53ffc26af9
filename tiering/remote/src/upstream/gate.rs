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
pub enum Load {
    /// The request was answered.
    Borne,
    /// The store requested fewer requests.
    TooMuch,
    /// The result does not indicate the load: rejected, broken off or not sent.
    Unknown,
}

/// Concurrency limit. Pure.
#[derive(Debug)]
struct Limit {
    limit: f64,
    under_way: usize,
    /// Number of reductions so far; each request records the number at its start.
    cuts: u64,
}

impl Limit {
    fn has_room(&self) -> bool {
        self.under_way < self.limit as usize
    }

    /// Begins a request. Returns the number of reductions before it.
    fn begin(&mut self) -> u64 {
        self.under_way += 1;
        self.cuts
    }

    /// Ends a request that began after the given number of reductions.
    fn end(&mut self, began: u64, load: Load) {
        let was_used = 2 * self.under_way >= self.limit as usize;
        self.under_way -= 1;
        match load {
            Load::Borne if was_used && began == self.cuts => {
                self.limit = (self.limit + 1.0 / self.limit.floor()).min(LIMIT_MAX);
            }
            Load::TooMuch if began == self.cuts => {
                self.limit = (self.limit * DECREASE).max(1.0);
                self.cuts += 1;
            }
            Load::Borne | Load::TooMuch | Load::Unknown => {}
        }
    }
}

/// Admission of requests to one store.
#[derive(Clone, Debug)]
pub struct Gate(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    limit: Limit,
    waiting: VecDeque<oneshot::Sender<Pass>>,
}

/// Permit for one request in flight. Dropping it leaves the limit unchanged.
#[derive(Debug)]
pub struct Pass {
    /// `None` once the permit is returned.
    gate: Option<Gate>,
    began: u64,
}

impl Default for Gate {
    fn default() -> Self {
        let limit = Limit { limit: LIMIT_FIRST, under_way: 0, cuts: 0 };
        Self(Arc::new(Mutex::new(State { limit, waiting: VecDeque::new() })))
    }
}

impl Gate {
    /// Waits until another request may be sent.
    pub async fn enter(&self) -> Pass {
        let granted = {
            let mut state = self.0.lock();
            if state.limit.has_room() && state.waiting.is_empty() {
                return self.pass(&mut state);
            }
            let (grant, granted) = oneshot::channel();
            state.waiting.push_back(grant);
            granted
        };
        match granted.await {
            Ok(pass) => pass,
            // A waiter is granted its permit before its sender is dropped; a gate that no longer exists
            // limits nothing.
            Err(_) => Pass { gate: None, began: 0 },
        }
    }

    /// Returns the current limit.
    #[must_use]
    pub fn limit(&self) -> usize {
        self.0.lock().limit.limit as usize
    }

    /// Returns the number of requests in flight.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.0.lock().limit.under_way
    }

    fn pass(&self, state: &mut State) -> Pass {
        Pass { gate: Some(self.clone()), began: state.limit.begin() }
    }

    fn leave(&self, began: u64, load: Load) {
        self.0.lock().limit.end(began, load);
        loop {
            let (grant, pass) = {
                let mut state = self.0.lock();
                if !state.limit.has_room() {
                    return;
                }
                let Some(grant) = state.waiting.pop_front() else { return };
                (grant, self.pass(&mut state))
            };
            // A waiter that was dropped returns its permit, which admits the next one: in this loop, not by
            // recursion.
            if let Err(mut pass) = grant.send(pass) {
                pass.gate = None;
                self.0.lock().limit.end(pass.began, Load::Unknown);
            }
        }
    }
}

impl Pass {
    /// Ends the request and reports the load that its response indicated.
    pub fn done(mut self, load: Load) {
        self.give_back(load);
    }

    fn give_back(&mut self, load: Load) {
        if let Some(gate) = self.gate.take() {
            gate.leave(self.began, load);
        }
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        self.give_back(Load::Unknown);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt as _;

    fn limit(of: f64) -> Limit {
        Limit { limit: of, under_way: 0, cuts: 0 }
    }

    /// Runs a full window of requests that all end with `load`.
    fn round(limit: &mut Limit, load: Load) {
        let began: Vec<u64> = std::iter::from_fn(|| limit.has_room().then(|| limit.begin())).collect();
        began.into_iter().for_each(|began| limit.end(began, load));
    }

    #[test]
    fn good_windows_add_one_and_a_burst_of_rejections_halves_once() {
        let mut limit = limit(8.0);
        round(&mut limit, Load::TooMuch);
        assert_eq!(limit.limit, 4.0, "eight refusals at once are one burst");
        round(&mut limit, Load::TooMuch);
        assert_eq!(limit.limit, 2.0, "the next ones are another");
        (0..3).for_each(|_| round(&mut limit, Load::TooMuch));
        assert_eq!(limit.limit, 1.0, "one is always let through");
        let mut rounds = 0;
        while limit.limit < 8.0 {
            let before = limit.limit;
            round(&mut limit, Load::Borne);
            assert!(limit.limit > before && limit.limit <= before + 1.01, "{before} → {}", limit.limit);
            rounds += 1;
        }
        assert!((7..=16).contains(&rounds), "{rounds}");
        (0..1000).for_each(|_| round(&mut limit, Load::Borne));
        assert_eq!(limit.limit, LIMIT_MAX);
    }

    #[test]
    fn the_limit_does_not_grow_while_underused_or_on_unknown_load() {
        let mut limit = limit(8.0);
        for _ in 0..100 {
            let began = limit.begin();
            limit.end(began, Load::Borne);
        }
        assert_eq!(limit.limit, 8.0);
        round(&mut limit, Load::Unknown);
        assert_eq!(limit.limit, 8.0);
    }

    #[tokio::test]
    async fn waiters_are_admitted_in_order_and_dropped_ones_are_skipped() {
        let gate = Gate::default();
        let mut passes = Vec::new();
        for _ in 0..gate.limit() {
            passes.push(gate.enter().await);
        }
        let (mut first, mut second) = (Box::pin(gate.enter()), Box::pin(gate.enter()));
        assert!(first.as_mut().now_or_never().is_none() && second.as_mut().now_or_never().is_none());
        let mut third = Box::pin(gate.enter());
        assert!(third.as_mut().now_or_never().is_none());
        drop(first);
        drop(passes.pop());
        let pass = second.await;
        assert!(third.as_mut().now_or_never().is_none(), "there was room for one");
        // The permit is granted and then dropped before it is used: the slot is free again.
        passes.push(pass);
        drop(passes.pop());
        drop(third);
        passes.push(gate.enter().await);
        assert_eq!(gate.under_way(), gate.limit());
        passes.clear();
        assert_eq!(gate.under_way(), 0);
    }

    #[tokio::test]
    async fn a_reduced_gate_admits_no_request_until_enough_have_ended() {
        let gate = Gate::default();
        let mut passes = Vec::new();
        for _ in 0..8 {
            passes.push(gate.enter().await);
        }
        passes.pop().expect("one").done(Load::TooMuch);
        assert_eq!((gate.limit(), gate.under_way()), (4, 7));
        let mut next = Box::pin(gate.enter());
        for _ in 0..3 {
            passes.pop().expect("one").done(Load::Borne);
            assert!(next.as_mut().now_or_never().is_none());
        }
        passes.pop().expect("one").done(Load::TooMuch);
        assert_eq!((gate.limit(), gate.under_way()), (4, 4), "it began before the cut, and one was let in");
        assert!(next.as_mut().now_or_never().is_some());
    }
}

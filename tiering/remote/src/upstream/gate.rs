//! How many requests one store gets at a time: as many as it bears.
//!
//! Additive increase, multiplicative decrease: a round of answers that all were good lets one more in, an
//! answer that says "slow down" halves the number. Requests that were under way when it was halved do not
//! halve it again: they tell of the load before, not of the load now. So one burst of refusals counts once,
//! and no clock is needed to say what belongs to it. A number of which not half is made use of does not grow.
//! Who waits is let in in the order of arrival; who gives up waiting loses nothing for the others. Nothing is
//! kept over a restart.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

/// With how many requests a store is met first: a segment's parts, and some reads.
const LIMIT_FIRST: f64 = 8.0;
/// The most at once. At 30 ms to the first byte and 1 MiB a read, 64 are 2 GiB/s: more than a gateway's
/// network.
const LIMIT_MAX: f64 = 64.0;
/// The share of the number that is left after a refusal.
const DECREASE: f64 = 0.5;

/// How a request went, as far as the gate is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// It was answered.
    Borne,
    /// The store asked for fewer requests.
    TooMuch,
    /// It says nothing of the store's load: refused, broken off, not sent.
    Unknown,
}

/// How many requests may be under way: a pure decision.
#[derive(Debug)]
struct Limit {
    limit: f64,
    under_way: usize,
    /// How often it was cut; requests remember what it was when they began.
    cuts: u64,
}

impl Limit {
    fn has_room(&self) -> bool {
        self.under_way < self.limit as usize
    }

    /// A request begins; which cut it begins after.
    fn begin(&mut self) -> u64 {
        self.under_way += 1;
        self.cuts
    }

    /// A request that began after cut `began` has ended.
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

/// Lets requests to one store through.
#[derive(Clone, Debug)]
pub struct Gate(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    limit: Limit,
    waiting: VecDeque<oneshot::Sender<Pass>>,
}

/// The right to have one request under way; dropped, it says nothing of the store's load.
#[derive(Debug)]
pub struct Pass {
    /// None once it is given back.
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
    /// Waits until one more request may be sent.
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
            // Whoever waits is granted before its sender goes; a gate that is gone holds nobody back.
            Err(_) => Pass { gate: None, began: 0 },
        }
    }

    /// How many may be under way now.
    #[must_use]
    pub fn limit(&self) -> usize {
        self.0.lock().limit.limit as usize
    }

    /// How many are.
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
            // Who gave up waiting gives the pass back, which lets the next one in: here, not by another call
            // of this.
            if let Err(mut pass) = grant.send(pass) {
                pass.gate = None;
                self.0.lock().limit.end(pass.began, Load::Unknown);
            }
        }
    }
}

impl Pass {
    /// The request has ended, and what it tells of the store's load.
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

    /// A round: as many requests as there may be, all of which end alike.
    fn round(limit: &mut Limit, load: Load) {
        let began: Vec<u64> = std::iter::from_fn(|| limit.has_room().then(|| limit.begin())).collect();
        began.into_iter().for_each(|began| limit.end(began, load));
    }

    #[test]
    fn good_rounds_add_one_and_a_burst_of_refusals_halves_once() {
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
    fn it_does_not_grow_while_few_are_under_way_nor_by_what_says_nothing() {
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
    async fn who_waits_is_let_in_by_turn_and_who_gives_up_is_passed_over() {
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
        // Granted, and then given up before it looked: the place is free again.
        passes.push(pass);
        drop(passes.pop());
        drop(third);
        passes.push(gate.enter().await);
        assert_eq!(gate.under_way(), gate.limit());
        passes.clear();
        assert_eq!(gate.under_way(), 0);
    }

    #[tokio::test]
    async fn a_gate_that_was_cut_lets_nobody_in_until_enough_have_left() {
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

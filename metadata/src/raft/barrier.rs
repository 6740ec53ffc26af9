//! Barriers: reads that must see every change acknowledged before them wait here.
//!
//! One confirmation is in flight at a time. Readers that arrive meanwhile share the next one, because a
//! confirmation that began before a reader arrived does not cover it. Every node has confirmations of its
//! readers. Those of all nodes share the confirmations of the leader, each of which costs a round to a
//! quorum.

use crate::catalogue::options::BarrierError;
use parking_lot::Mutex;
use tokio::sync::oneshot;

/// Outcome of a confirmation, which returns a `T`.
type Confirmed<T> = Result<T, BarrierError>;

struct BarrierState<T> {
    is_confirming: bool,
    waiting: Vec<oneshot::Sender<Confirmed<T>>>,
}

/// Readers of a group that wait for a confirmation.
pub(crate) struct Barriers<T> {
    state: Mutex<BarrierState<T>>,
}

/// Part of a reader in the confirmations.
pub(crate) enum BarrierTurn<T> {
    /// The reader runs the confirmations, with [`Barriers::next_round`], until none is left.
    Confirm(oneshot::Receiver<Confirmed<T>>),
    /// The reader waits.
    Wait(oneshot::Receiver<Confirmed<T>>),
}

impl<T> Default for Barriers<T> {
    fn default() -> Self {
        Self { state: Mutex::new(BarrierState { is_confirming: false, waiting: Vec::new() }) }
    }
}

impl<T> Barriers<T> {
    /// Adds a reader to the next confirmation.
    pub(crate) fn join(&self) -> BarrierTurn<T> {
        let (passed, receiver) = oneshot::channel();
        let mut state = self.state.lock();
        state.waiting.push(passed);
        if std::mem::replace(&mut state.is_confirming, true) {
            BarrierTurn::Wait(receiver)
        } else {
            BarrierTurn::Confirm(receiver)
        }
    }

    /// The readers that the next confirmation covers; `None` if there are none, which ends the confirmations.
    pub(crate) fn next_round(&self) -> Option<Vec<oneshot::Sender<Confirmed<T>>>> {
        let mut state = self.state.lock();
        let round = std::mem::take(&mut state.waiting);
        state.is_confirming = !round.is_empty();
        state.is_confirming.then_some(round)
    }
}

#[cfg(test)]
mod tests {
    use super::{BarrierTurn, Barriers};

    #[test]
    fn a_reader_joins_a_confirmation_that_begins_after_it() {
        let barriers = Barriers::<()>::default();
        assert!(matches!(barriers.join(), BarrierTurn::Confirm(_)));
        assert!(matches!(barriers.join(), BarrierTurn::Wait(_)));
        assert_eq!(barriers.next_round().map(|round| round.len()), Some(2));
        assert!(matches!(barriers.join(), BarrierTurn::Wait(_)));
        assert_eq!(barriers.next_round().map(|round| round.len()), Some(1));
        assert!(barriers.next_round().is_none());
        assert!(matches!(barriers.join(), BarrierTurn::Confirm(_)), "the next reader starts again");
    }
}

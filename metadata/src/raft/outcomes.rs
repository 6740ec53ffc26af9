//! Outcomes of entries that another member proposed for this one, from the time of the proposal until this
//! member has applied them.
//!
//! A command that this member sent to the leader is answered from this member's own state: the leader returns
//! the id of the log entry, and the outcome is the one of that entry here. The entry may be applied before
//! the leader's answer arrives, so outcomes are kept while answers are expected. Nothing is kept otherwise.
//! The number of kept outcomes is bounded; the oldest go first, and their proposals have an unknown outcome.

use mlgw_common::limits::KEPT_OUTCOMES_MAX;
use mlgw_formats::log_batch::Outcomes;
use mlgw_formats::log_types::LogId;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::oneshot;

/// The outcome of an entry is not known here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OutcomeLost;

/// Outcomes of a group's entries for which a proposal waits.
#[derive(Debug, Default)]
pub(crate) struct AppliedOutcomes {
    expecting: AtomicUsize,
    kept: Mutex<KeptOutcomes>,
}

#[derive(Debug, Default)]
struct KeptOutcomes {
    by_index: BTreeMap<u64, (LogId, Outcomes)>,
    commands: usize,
    waiting: BTreeMap<u64, Vec<(LogId, oneshot::Sender<Outcomes>)>>,
    /// Index of the last entry that was applied while a proposal waited.
    applied: Option<u64>,
}

impl KeptOutcomes {
    fn insert(&mut self, id: LogId, outcomes: Outcomes) {
        self.commands += outcomes.0.len();
        self.by_index.insert(id.index, (id, outcomes));
        while self.commands > KEPT_OUTCOMES_MAX {
            let Some((_, (_, oldest))) = self.by_index.pop_first() else { break };
            self.commands -= oldest.0.len();
        }
    }

    fn take(&mut self, id: LogId) -> Option<Outcomes> {
        let (kept, outcomes) = self.by_index.remove(&id.index)?;
        self.commands -= outcomes.0.len();
        (kept == id).then_some(outcomes)
    }
}

/// Expectation of an outcome; outcomes are kept until it is dropped.
#[derive(Debug)]
pub(crate) struct OutcomeExpected(Arc<AppliedOutcomes>);

impl AppliedOutcomes {
    /// Keeps outcomes from now on. Call this before the proposal is sent.
    pub(crate) fn expect(self: &Arc<Self>) -> OutcomeExpected {
        self.expecting.fetch_add(1, Ordering::SeqCst);
        OutcomeExpected(Arc::clone(self))
    }

    /// True if outcomes have to be recorded.
    pub(crate) fn are_expected(&self) -> bool {
        self.expecting.load(Ordering::SeqCst) > 0
    }

    /// Records the outcomes of an applied entry. Call this after its rows are visible.
    pub(crate) fn record(&self, id: LogId, outcomes: Outcomes) {
        let mut kept = self.kept.lock();
        kept.applied = Some(id.index);
        let Some(waiting) = kept.waiting.remove(&id.index) else {
            return kept.insert(id, outcomes);
        };
        drop(kept);
        let mut outcomes = Some(outcomes);
        for (expected, answer) in waiting {
            // At most one proposal is in an entry. Another entry at the index means that it was discarded;
            // dropping the sender reports the outcome as lost.
            if expected == id
                && let Some(outcomes) = outcomes.take()
            {
                let _ = answer.send(outcomes);
            }
        }
    }

    /// Records that a snapshot replaced the entries up to `applied`: their outcomes are lost.
    pub(crate) fn replaced(&self, applied: u64) {
        if !self.are_expected() {
            return;
        }
        let mut kept = self.kept.lock();
        kept.applied = Some(applied);
        kept.waiting.retain(|index, _| *index > applied);
    }
}

impl OutcomeExpected {
    /// Outcomes of the entry `id`, when it is applied here.
    pub(crate) async fn wait(self, id: LogId) -> Result<Outcomes, OutcomeLost> {
        let answered = {
            let mut kept = self.0.kept.lock();
            if let Some(outcomes) = kept.take(id) {
                return Ok(outcomes);
            }
            if kept.applied >= Some(id.index) {
                return Err(OutcomeLost);
            }
            let (answer, answered) = oneshot::channel();
            kept.waiting.entry(id.index).or_default().push((id, answer));
            answered
        };
        answered.await.map_err(|_| OutcomeLost)
    }
}

impl Drop for OutcomeExpected {
    fn drop(&mut self) {
        let mut kept = self.0.kept.lock();
        for waiting in kept.waiting.values_mut() {
            waiting.retain(|(_, answer)| !answer.is_closed());
        }
        kept.waiting.retain(|_, waiting| !waiting.is_empty());
        if self.0.expecting.fetch_sub(1, Ordering::SeqCst) == 1 {
            *kept = KeptOutcomes::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{AppliedOutcomes, OutcomeLost};
    use mlgw_common::limits::KEPT_OUTCOMES_MAX;
    use mlgw_formats::command::Reply;
    use mlgw_formats::log_batch::Outcomes;
    use mlgw_formats::log_types::{Leadership, LogId};
    use std::sync::Arc;

    fn id(term: u64, index: u64) -> LogId {
        LogId::new(Leadership { term, node_id: 1 }, index)
    }

    fn outcomes(first: u64) -> Outcomes {
        Outcomes(vec![Ok(Reply::Bodies { first })])
    }

    #[tokio::test]
    async fn an_outcome_is_found_whether_its_entry_is_applied_before_or_after_the_answer() {
        let applied = Arc::<AppliedOutcomes>::default();
        let (before, after) = (applied.expect(), applied.expect());
        applied.record(id(2, 5), outcomes(5));
        assert_eq!(before.wait(id(2, 5)).await, Ok(outcomes(5)));
        let waits = tokio::spawn(after.wait(id(2, 6)));
        tokio::task::yield_now().await;
        assert!(!waits.is_finished());
        applied.record(id(2, 6), outcomes(6));
        assert_eq!(waits.await.unwrap(), Ok(outcomes(6)));
        assert!(!applied.are_expected());
    }

    #[tokio::test]
    async fn another_entry_at_the_index_is_not_the_outcome() {
        let applied = Arc::<AppliedOutcomes>::default();
        let (before, after) = (applied.expect(), applied.expect());
        applied.record(id(3, 5), outcomes(5));
        assert_eq!(before.wait(id(2, 5)).await, Err(OutcomeLost));
        let waits = tokio::spawn(after.wait(id(2, 6)));
        tokio::task::yield_now().await;
        applied.record(id(3, 6), outcomes(6));
        assert_eq!(waits.await.unwrap(), Err(OutcomeLost));
    }

    #[tokio::test]
    async fn a_snapshot_hides_the_outcomes_before_its_end() {
        let applied = Arc::<AppliedOutcomes>::default();
        let (early, late) = (applied.expect(), applied.expect());
        let early = tokio::spawn(early.wait(id(2, 5)));
        let late = tokio::spawn(late.wait(id(2, 9)));
        tokio::task::yield_now().await;
        applied.replaced(8);
        assert_eq!(early.await.unwrap(), Err(OutcomeLost));
        assert_eq!(applied.expect().wait(id(2, 7)).await, Err(OutcomeLost), "it waits for nothing");
        applied.record(id(2, 9), outcomes(9));
        assert_eq!(late.await.unwrap(), Ok(outcomes(9)));
    }

    #[tokio::test]
    async fn kept_outcomes_are_bounded_and_end_with_the_last_expectation() {
        let applied = Arc::<AppliedOutcomes>::default();
        let (oldest, newest) = (applied.expect(), applied.expect());
        let entries = 2 + KEPT_OUTCOMES_MAX as u64 / 16;
        for index in 0..entries {
            applied.record(id(2, index), Outcomes(vec![Ok(Reply::Done); 16]));
            assert!(applied.kept.lock().commands <= KEPT_OUTCOMES_MAX);
        }
        assert_eq!(oldest.wait(id(2, 0)).await, Err(OutcomeLost));
        assert_eq!(newest.wait(id(2, entries - 1)).await.unwrap().0.len(), 16);
        assert!(applied.kept.lock().by_index.is_empty(), "no proposal waits");
    }
}

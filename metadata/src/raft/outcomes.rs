//! Outcomes of entries that another member proposed for this one, from the time of the proposal until this
//! member has applied them.
//!
//! A command that this member sent to the leader is answered from this member's own state: the leader returns
//! the id of the log entry, and the outcome is the one of that entry here. The entry may be applied before
//! the leader's answer arrives, so outcomes are kept while answers are expected. Nothing is kept otherwise.
//! The number of kept outcomes is bounded; the oldest go first, and their proposals have an unknown outcome.
//!
//! A batch whose answer does not arrive is **settled**: its tag is applied here, or an entry of a later
//! leadership. The log of a later leadership has every entry of the earlier ones that will ever be applied,
//! and they are before its own. So a batch that was not applied before it will never be.

use mlgw_common::limits::KEPT_OUTCOMES_MAX;
use mlgw_formats::command::TagBatch;
use mlgw_formats::log_batch::Outcomes;
use mlgw_formats::log_types::{Leadership, LogId};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use tokio::sync::oneshot;

/// The outcome of an entry is not known here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OutcomeLost;

/// Outcomes of a group's entries for which a proposal waits.
#[derive(Debug, Default)]
pub(crate) struct AppliedOutcomes {
    expecting: AtomicUsize,
    kept: Mutex<KeptOutcomes>,
    /// How often outcomes of tagged batches were lost: by the bound, or by a snapshot.
    losses: AtomicU64,
    is_stopped: AtomicBool,
}

/// Outcomes of an applied entry.
#[derive(Debug)]
struct KeptEntry {
    id: LogId,
    tag: Option<TagBatch>,
    outcomes: Outcomes,
}

impl KeptEntry {
    /// The commands that the entry counts as; one if it has none.
    fn cost(&self) -> usize {
        self.outcomes.0.len().max(1)
    }
}

/// Wait for the outcome of a batch that may be in the log of a leadership.
#[derive(Debug)]
struct Settling {
    tag: TagBatch,
    leadership: Leadership,
    answer: oneshot::Sender<Option<(LogId, Outcomes)>>,
}

#[derive(Debug, Default)]
struct KeptOutcomes {
    by_index: BTreeMap<u64, KeptEntry>,
    commands: usize,
    waiting: BTreeMap<u64, Vec<(LogId, oneshot::Sender<Outcomes>)>>,
    settling: Vec<Settling>,
    /// Index of the last entry that was applied while a proposal waited.
    applied: Option<u64>,
    /// Leadership of the last entry that was applied while a proposal waited.
    reached: Option<Leadership>,
}

impl KeptOutcomes {
    /// Keeps the outcomes of an entry. Returns true if those of a tagged batch were lost for them.
    fn insert(&mut self, entry: KeptEntry) -> bool {
        self.commands += entry.cost();
        self.by_index.insert(entry.id.index, entry);
        let mut is_lossy = false;
        while self.commands > KEPT_OUTCOMES_MAX {
            let Some((_, oldest)) = self.by_index.pop_first() else { break };
            self.commands -= oldest.cost();
            is_lossy |= oldest.tag.is_some();
        }
        is_lossy
    }

    fn take(&mut self, index: u64) -> Option<KeptEntry> {
        let entry = self.by_index.remove(&index)?;
        self.commands -= entry.cost();
        Some(entry)
    }

    fn take_tagged(&mut self, tag: TagBatch) -> Option<KeptEntry> {
        let index = self.by_index.values().find(|entry| entry.tag == Some(tag))?.id.index;
        self.take(index)
    }
}

/// Expectation of an outcome; outcomes are kept until it is dropped.
#[derive(Debug)]
pub(crate) struct OutcomeExpected {
    applied: Arc<AppliedOutcomes>,
    /// Losses before.
    losses: u64,
}

impl AppliedOutcomes {
    /// Keeps outcomes from now on. Call this before the proposal is sent.
    pub(crate) fn expect(self: &Arc<Self>) -> OutcomeExpected {
        self.expecting.fetch_add(1, Ordering::SeqCst);
        OutcomeExpected { applied: Arc::clone(self), losses: self.losses.load(Ordering::SeqCst) }
    }

    /// True if outcomes have to be recorded.
    pub(crate) fn are_expected(&self) -> bool {
        self.expecting.load(Ordering::SeqCst) > 0
    }

    /// Records the outcomes of an applied entry. Call this after its rows are visible.
    pub(crate) fn record(&self, id: LogId, tag: Option<TagBatch>, outcomes: Outcomes) {
        let mut kept = self.kept.lock();
        kept.applied = Some(id.index);
        let waiting = kept.waiting.remove(&id.index);
        if let Some(at) = kept.settling.iter().position(|settling| Some(settling.tag) == tag) {
            let settling = kept.settling.swap_remove(at);
            drop(kept);
            // Those that wait for another entry at the index lose it, as below.
            drop(waiting);
            let _ = settling.answer.send(Some((id, outcomes)));
            return;
        }
        let Some(waiting) = waiting else {
            if kept.insert(KeptEntry { id, tag, outcomes }) {
                self.losses.fetch_add(1, Ordering::SeqCst);
            }
            return;
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

    /// Records that every entry up to one of `leadership` was applied and recorded.
    pub(crate) fn reached(&self, leadership: Leadership) {
        if !self.are_expected() {
            return;
        }
        let mut kept = self.kept.lock();
        kept.reached = Some(leadership);
        for settled in kept.settling.extract_if(.., |settling| settling.leadership < leadership) {
            let _ = settled.answer.send(None);
        }
    }

    /// Ends the waits for batches without an answer: this member applies nothing more.
    pub(crate) fn stop(&self) {
        self.is_stopped.store(true, Ordering::SeqCst);
        self.kept.lock().settling.clear();
    }

    /// Records that a snapshot replaced the entries up to `applied`: their outcomes are lost.
    pub(crate) fn replaced(&self, applied: u64) {
        if !self.are_expected() {
            return;
        }
        let mut kept = self.kept.lock();
        self.losses.fetch_add(1, Ordering::SeqCst);
        kept.applied = Some(applied);
        kept.waiting.retain(|index, _| *index > applied);
        kept.settling.clear();
    }
}

impl OutcomeExpected {
    /// Outcomes of the entry `id`, when it is applied here.
    pub(crate) async fn wait(self, id: LogId) -> Result<Outcomes, OutcomeLost> {
        let answered = {
            let mut kept = self.applied.kept.lock();
            if let Some(entry) = kept.take(id.index).filter(|entry| entry.id == id) {
                return Ok(entry.outcomes);
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

    /// The entry and the outcomes of the batch with this tag, which was proposed to the log of `leadership`,
    /// when it is settled. `None` if it will never be applied.
    pub(crate) async fn settled(
        self,
        tag: TagBatch,
        leadership: Leadership,
    ) -> Result<Option<(LogId, Outcomes)>, OutcomeLost> {
        let answered = {
            let mut kept = self.applied.kept.lock();
            if let Some(entry) = kept.take_tagged(tag) {
                return Ok(Some((entry.id, entry.outcomes)));
            }
            let is_stopped = self.applied.is_stopped.load(Ordering::SeqCst);
            if is_stopped || self.applied.losses.load(Ordering::SeqCst) != self.losses {
                return Err(OutcomeLost);
            }
            if kept.reached > Some(leadership) {
                return Ok(None);
            }
            let (answer, answered) = oneshot::channel();
            kept.settling.push(Settling { tag, leadership, answer });
            answered
        };
        answered.await.map_err(|_| OutcomeLost)
    }
}

impl Drop for OutcomeExpected {
    fn drop(&mut self) {
        let mut kept = self.applied.kept.lock();
        kept.settling.retain(|settling| !settling.answer.is_closed());
        for waiting in kept.waiting.values_mut() {
            waiting.retain(|(_, answer)| !answer.is_closed());
        }
        kept.waiting.retain(|_, waiting| !waiting.is_empty());
        if self.applied.expecting.fetch_sub(1, Ordering::SeqCst) == 1 {
            *kept = KeptOutcomes::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{AppliedOutcomes, OutcomeLost};
    use mlgw_common::limits::KEPT_OUTCOMES_MAX;
    use mlgw_formats::command::{Reply, TagBatch};
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
        applied.record(id(2, 5), None, outcomes(5));
        assert_eq!(before.wait(id(2, 5)).await, Ok(outcomes(5)));
        let waits = tokio::spawn(after.wait(id(2, 6)));
        tokio::task::yield_now().await;
        assert!(!waits.is_finished());
        applied.record(id(2, 6), None, outcomes(6));
        assert_eq!(waits.await.unwrap(), Ok(outcomes(6)));
        assert!(!applied.are_expected());
    }

    #[tokio::test]
    async fn another_entry_at_the_index_is_not_the_outcome() {
        let applied = Arc::<AppliedOutcomes>::default();
        let (before, after) = (applied.expect(), applied.expect());
        applied.record(id(3, 5), None, outcomes(5));
        assert_eq!(before.wait(id(2, 5)).await, Err(OutcomeLost));
        let waits = tokio::spawn(after.wait(id(2, 6)));
        tokio::task::yield_now().await;
        applied.record(id(3, 6), None, outcomes(6));
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
        applied.record(id(2, 9), None, outcomes(9));
        assert_eq!(late.await.unwrap(), Ok(outcomes(9)));
    }

    #[tokio::test]
    async fn kept_outcomes_are_bounded_and_end_with_the_last_expectation() {
        let applied = Arc::<AppliedOutcomes>::default();
        let (oldest, newest) = (applied.expect(), applied.expect());
        let entries = 2 + KEPT_OUTCOMES_MAX as u64 / 16;
        for index in 0..entries {
            applied.record(id(2, index), None, Outcomes(vec![Ok(Reply::Done); 16]));
            assert!(applied.kept.lock().commands <= KEPT_OUTCOMES_MAX);
        }
        assert_eq!(oldest.wait(id(2, 0)).await, Err(OutcomeLost));
        assert_eq!(newest.wait(id(2, entries - 1)).await.unwrap().0.len(), 16);
        assert!(applied.kept.lock().by_index.is_empty(), "no proposal waits");
    }

    fn tag(number: u64) -> TagBatch {
        TagBatch { node: 2, number }
    }

    fn leadership(term: u64) -> Leadership {
        Leadership { term, node_id: 1 }
    }

    #[tokio::test]
    async fn a_batch_is_settled_by_its_tag_or_by_an_entry_of_a_later_leadership() {
        let applied = Arc::<AppliedOutcomes>::default();
        let [before, after, gone, late] = [(); 4].map(|()| applied.expect());
        applied.record(id(2, 5), Some(tag(1)), outcomes(5));
        assert_eq!(before.settled(tag(1), leadership(2)).await, Ok(Some((id(2, 5), outcomes(5)))));
        let after = tokio::spawn(after.settled(tag(2), leadership(2)));
        let gone = tokio::spawn(gone.settled(tag(3), leadership(2)));
        tokio::task::yield_now().await;
        applied.record(id(2, 6), Some(tag(2)), outcomes(6));
        applied.reached(leadership(2));
        assert_eq!(after.await.unwrap(), Ok(Some((id(2, 6), outcomes(6)))));
        assert!(!gone.is_finished(), "its leader may still append it");
        applied.record(id(3, 7), None, outcomes(7));
        applied.reached(leadership(3));
        assert_eq!(gone.await.unwrap(), Ok(None));
        assert_eq!(late.settled(tag(4), leadership(2)).await, Ok(None));
        assert!(!applied.are_expected());
    }

    #[tokio::test]
    async fn a_batch_is_not_settled_if_entries_were_lost_since_it_was_proposed() {
        let applied = Arc::<AppliedOutcomes>::default();
        let [by_snapshot, waiting, by_bound] = [(); 3].map(|()| applied.expect());
        let waiting = tokio::spawn(waiting.settled(tag(2), leadership(2)));
        tokio::task::yield_now().await;
        applied.replaced(8);
        applied.reached(leadership(3));
        assert_eq!(waiting.await.unwrap(), Err(OutcomeLost));
        assert_eq!(by_snapshot.settled(tag(1), leadership(2)).await, Err(OutcomeLost));
        drop(by_bound);
        let [by_bound, found] = [(); 2].map(|()| applied.expect());
        let many = || Outcomes(vec![Ok(Reply::Done); KEPT_OUTCOMES_MAX]);
        applied.record(id(2, 9), Some(tag(3)), many());
        applied.record(id(2, 10), Some(tag(4)), many());
        applied.reached(leadership(3));
        assert_eq!(by_bound.settled(tag(3), leadership(2)).await, Err(OutcomeLost));
        assert_eq!(found.settled(tag(4), leadership(2)).await, Ok(Some((id(2, 10), many()))));
        let unaffected = applied.expect();
        applied.record(id(3, 11), None, many());
        applied.record(id(3, 12), Some(tag(5)), outcomes(12));
        applied.reached(leadership(3));
        assert_eq!(unaffected.settled(tag(6), leadership(2)).await, Ok(None), "no tagged batch was lost");
    }

    #[tokio::test]
    async fn a_member_that_stops_settles_nothing_more() {
        let applied = Arc::<AppliedOutcomes>::default();
        let [waiting, later] = [(); 2].map(|()| applied.expect());
        let waiting = tokio::spawn(waiting.settled(tag(1), leadership(2)));
        tokio::task::yield_now().await;
        applied.stop();
        assert_eq!(waiting.await.unwrap(), Err(OutcomeLost));
        assert_eq!(later.settled(tag(2), leadership(2)).await, Err(OutcomeLost));
    }

    #[tokio::test]
    async fn a_settled_batch_at_an_index_ends_the_waits_for_another_one_there() {
        let applied = Arc::<AppliedOutcomes>::default();
        let [settling, waiting] = [(); 2].map(|()| applied.expect());
        let settling = tokio::spawn(settling.settled(tag(1), leadership(2)));
        let waiting = tokio::spawn(waiting.wait(id(2, 5)));
        tokio::task::yield_now().await;
        applied.record(id(3, 5), Some(tag(1)), outcomes(5));
        assert_eq!(settling.await.unwrap(), Ok(Some((id(3, 5), outcomes(5)))));
        assert_eq!(waiting.await.unwrap(), Err(OutcomeLost));
    }
}

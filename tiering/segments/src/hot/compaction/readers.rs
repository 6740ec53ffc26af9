//! Readers on other nodes of the segments that a pass is about to release.
//!
//! A reader of a node pins segments of other owners, too. The owner asks all storage nodes before it releases
//! a segment, in one question about all segments that wait for their readers, since a node that hangs delays
//! every question by seconds. A segment that this question did not name is asked about alone. A pass asks no
//! more after a slow question: the first question of the next pass names what is left.
//!
//! Invariant: a segment counts as unused only while the nodes that answered so keep it closed to pins.
//! Without an answer it is in use. Nothing is stored: after a restart the segments are asked about again.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use mlgw_common::ids::SegmentId;
use mlgw_common::time::Instant;
use mlgw_metadata::Catalogue;

use crate::hot::pins::ELSEWHERE_CLOSED_MAX;

/// Time for which a segment counts as unused, from the question on. The rest of the closure is left for the
/// removal of the record.
const UNUSED_MAX: Duration = Duration::from_secs(8);

/// Duration from which on a question is slow: a node does not answer, or no leader confirms the nodes.
const SLOW_QUESTION: Duration = Duration::from_secs(1);

const _: () = assert!(UNUSED_MAX.as_secs() < ELSEWHERE_CLOSED_MAX.as_secs());

/// Answers of the other nodes in one pass.
#[derive(Debug, Default)]
pub(super) struct ReadersElsewhere {
    answers: BTreeMap<SegmentId, ReaderAnswer>,
    /// True after a slow question.
    is_slow: bool,
}

/// The answer about one segment.
#[derive(Clone, Copy, Debug)]
enum ReaderAnswer {
    /// A reader has pinned the segment, or a node did not answer.
    InUse,
    /// No reader has pinned the segment, and none can until this time.
    UnusedUntil(Instant),
}

impl ReadersElsewhere {
    /// Asks the other nodes about `segments`, in one question.
    pub(super) async fn ask(&mut self, catalogue: &Catalogue, segments: Vec<SegmentId>) {
        if segments.is_empty() {
            return;
        }
        let asked_at = Instant::now();
        let used = match catalogue.segments_in_use(segments.clone()).await {
            Ok(used) => used,
            Err(error) => {
                tracing::debug!(%error, "the readers on other nodes are unknown");
                segments.iter().copied().collect()
            }
        };
        self.record(segments, &used, asked_at, asked_at.elapsed());
    }

    /// True if no reader on another node has pinned the segment, nor can pin it now. Asks about it if the
    /// pass has no answer yet.
    pub(super) async fn is_unused(&mut self, catalogue: &Catalogue, segment: SegmentId) -> bool {
        if self.needs_question(segment, Instant::now()) {
            self.ask(catalogue, vec![segment]).await;
        }
        self.is_known_unused(segment, Instant::now())
    }

    /// Records the answer to a question of the time `asked_at`, in which `used` of `segments` are in use.
    fn record(
        &mut self,
        segments: Vec<SegmentId>,
        used: &BTreeSet<SegmentId>,
        asked_at: Instant,
        took: Duration,
    ) {
        let unused = ReaderAnswer::UnusedUntil(asked_at + UNUSED_MAX);
        let answer = |segment: SegmentId| if used.contains(&segment) { ReaderAnswer::InUse } else { unused };
        self.answers.extend(segments.into_iter().map(|segment| (segment, answer(segment))));
        self.is_slow |= took >= SLOW_QUESTION;
    }

    /// True if a question about the segment is due: it has no answer, or its answer is too old.
    fn needs_question(&self, segment: SegmentId, now: Instant) -> bool {
        let is_answered = match self.answers.get(&segment) {
            Some(ReaderAnswer::InUse) => true,
            Some(ReaderAnswer::UnusedUntil(end)) => now < *end,
            None => false,
        };
        !is_answered && !self.is_slow
    }

    fn is_known_unused(&self, segment: SegmentId, now: Instant) -> bool {
        match self.answers.get(&segment) {
            Some(ReaderAnswer::UnusedUntil(end)) => now < *end,
            Some(ReaderAnswer::InUse) | None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{ReadersElsewhere, SLOW_QUESTION, UNUSED_MAX};
    use mlgw_common::ids::SegmentId;
    use mlgw_common::time::Instant;
    use std::collections::BTreeSet;
    use std::time::Duration;

    const ONE: SegmentId = SegmentId(1);
    const TWO: SegmentId = SegmentId(2);
    const OTHER: SegmentId = SegmentId(3);

    /// Returns the answers after a question about the segments 1 and 2. Segment 2 is in use.
    fn answered(at: Instant, took: Duration) -> ReadersElsewhere {
        let mut readers = ReadersElsewhere::default();
        readers.record(vec![ONE, TWO], &BTreeSet::from([TWO]), at, took);
        readers
    }

    #[test]
    fn one_question_answers_for_all_segments_that_it_names() {
        let now = Instant::now();
        let readers = answered(now, Duration::ZERO);
        assert!([ONE, TWO].iter().all(|segment| !readers.needs_question(*segment, now)));
        assert!(readers.is_known_unused(ONE, now) && !readers.is_known_unused(TWO, now));
        assert!(readers.needs_question(OTHER, now) && !readers.is_known_unused(OTHER, now));
    }

    #[test]
    fn after_a_slow_question_no_other_one_is_asked_in_the_pass() {
        let now = Instant::now();
        let mut readers = answered(now, SLOW_QUESTION);
        assert!(!readers.needs_question(OTHER, now) && !readers.is_known_unused(OTHER, now));
        assert!(readers.is_known_unused(ONE, now), "its answer is used");
        let later = now + UNUSED_MAX;
        assert!(!readers.needs_question(ONE, later) && !readers.is_known_unused(ONE, later));
        readers.record(vec![OTHER], &BTreeSet::new(), later, Duration::ZERO);
        assert!(!readers.needs_question(ONE, later), "a quick one does not change that");
    }

    #[test]
    fn a_segment_counts_as_unused_while_the_other_nodes_keep_it_closed() {
        let now = Instant::now();
        let mut readers = answered(now, Duration::ZERO);
        let end = now + UNUSED_MAX;
        assert!(readers.is_known_unused(ONE, end - Duration::from_millis(1)));
        assert!(!readers.is_known_unused(ONE, end) && readers.needs_question(ONE, end));
        assert!(!readers.needs_question(TWO, end), "it waits for the next pass");
        readers.record(vec![ONE], &BTreeSet::new(), end, Duration::ZERO);
        assert!(readers.is_known_unused(ONE, end));
    }
}

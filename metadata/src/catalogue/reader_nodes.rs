//! Nodes that may read bodies and segments, and those whose answers are waited for. Pure: times are
//! parameters.
//!
//! A storage node that does not answer delays what it may be reading. Without an answer for
//! [`UNREACHABLE_READERS`] it is not waited for any more. Without a majority such a node serves no new
//! request, and its rows stay as they are until it has caught up. A read that it goes on with ends with an
//! error at the worst and never with wrong bytes: body ids are never used again, and every byte is verified.
//! A node that answers is waited for without a limit, also if it has not applied what the question is about.
//!
//! Nothing is stored. After a restart the time is measured from the first question without an answer.

use mlgw_common::time::Instant;
use mlgw_common::{NodeId, SegmentId};
use mlgw_formats::member_calls::ReadersReply;
use mlgw_formats::schema::{Node, NodeRole};
use parking_lot::{Mutex, RwLock};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// Time after which a node that has not answered is not waited for any more.
pub(super) const UNREACHABLE_READERS: Duration = Duration::from_secs(60);

/// Time after which an earlier question without an answer does not count: the node may have been reachable
/// since. Questions are repeated much sooner while anything waits for their answers.
const FORGOTTEN: Duration = Duration::from_mins(10);

const _: () = assert!(UNREACHABLE_READERS.as_secs() < FORGOTTEN.as_secs());

/// True for a segment that a reader of this node has pinned. False closes the segment to new pins, for long
/// enough that its owner can release it.
type SegmentPinCheck = Arc<dyn Fn(SegmentId) -> bool + Send + Sync>;

/// True while all segments are pinned on this node.
type PinOfAllCheck = Arc<dyn Fn() -> bool + Send + Sync>;

/// True if this node runs a version of the policy or a later one.
type PolicyCheck = Arc<dyn Fn(u64) -> bool + Send + Sync>;

/// Answers of the other storage nodes.
#[derive(Debug, Default)]
pub(super) struct ReadElsewhere {
    /// Bodies that are pinned on another node.
    pub(super) bodies: BTreeSet<u64>,
    /// Segments that are pinned on another node.
    pub(super) segments: BTreeSet<u64>,
    /// Nodes that did not answer and are waited for: their readers are unknown.
    pub(super) unanswered: BTreeSet<NodeId>,
    /// Nodes that have not answered for longer than the limit: their readers are not waited for.
    pub(super) given_up: BTreeSet<NodeId>,
    /// Nodes that answered and have not applied the entry of the question, so they may get further readers;
    /// or that do not run its policy.
    pub(super) behind: BTreeSet<NodeId>,
    /// True if another node has pinned all segments.
    pub(super) pins_all: bool,
}

impl ReadElsewhere {
    /// True if nothing but the named bodies and segments is read on another node, or may be.
    pub(super) fn is_complete(&self) -> bool {
        self.unanswered.is_empty() && self.behind.is_empty()
    }

    /// True if all nodes answered and have applied the entry of the question. A node that is given up may
    /// have older rows, and still serve requests by them.
    pub(super) fn is_applied_everywhere(&self) -> bool {
        self.is_complete() && self.given_up.is_empty()
    }
}

/// Storage nodes other than `own` that are not removed.
pub(super) fn nodes_with_readers<'a>(nodes: impl Iterator<Item = &'a Node>, own: NodeId) -> Vec<NodeId> {
    let has_readers = |node: &&Node| {
        let stores = match node.role() {
            NodeRole::Storage => true,
            NodeRole::Gateway => false,
        };
        stores && !node.is_removed() && node.node_id() != own
    };
    nodes.filter(has_readers).map(Node::node_id).collect()
}

/// Questions that a node has left without an answer, none of them longer than [`FORGOTTEN`] after the one
/// before.
#[derive(Clone, Copy, Debug)]
struct Unanswered {
    since: Instant,
    last: Instant,
}

/// Nodes that did not answer the last question.
#[derive(Debug)]
struct UnansweredNodes {
    limit: Duration,
    nodes: BTreeMap<NodeId, Unanswered>,
}

impl UnansweredNodes {
    const fn new(limit: Duration) -> Self {
        Self { limit, nodes: BTreeMap::new() }
    }

    /// Records which nodes answered a question of the time `at`. Returns those that did not, without those
    /// that have not answered for the limit.
    fn record(&mut self, nodes: &[NodeId], answered: &BTreeSet<NodeId>, at: Instant) -> BTreeSet<NodeId> {
        self.nodes.retain(|node, _| nodes.contains(node) && !answered.contains(node));
        let mut waited_for = BTreeSet::new();
        for node in nodes.iter().filter(|node| !answered.contains(node)) {
            let entry = self.nodes.entry(*node).or_insert(Unanswered { since: at, last: at });
            if at.saturating_duration_since(entry.last) >= FORGOTTEN {
                entry.since = at;
            }
            entry.last = entry.last.max(at);
            if at.saturating_duration_since(entry.since) < self.limit {
                waited_for.insert(*node);
            }
        }
        waited_for
    }
}

/// State of the questions about readers: those that this node asks, and those that it answers.
pub(super) struct ReaderQuestions {
    /// Check of the segments of this node; `None` while its tier is not open, which then has no readers.
    segment_pins: RwLock<Option<SegmentPinCheck>>,
    /// Check if all segments are pinned on this node; `None` as above.
    pin_of_all: RwLock<Option<PinOfAllCheck>>,
    /// Check of the running policy; `None` while nothing here uses it.
    policy: RwLock<Option<PolicyCheck>>,
    unanswered: Mutex<UnansweredNodes>,
}

impl Default for ReaderQuestions {
    fn default() -> Self {
        let unanswered = Mutex::new(UnansweredNodes::new(UNREACHABLE_READERS));
        let policy = RwLock::default();
        Self { segment_pins: RwLock::default(), pin_of_all: RwLock::default(), policy, unanswered }
    }
}

impl ReaderQuestions {
    /// Sets the check of the segments of this node, or removes it.
    pub(super) fn set_segment_pins(&self, is_pinned: Option<SegmentPinCheck>) {
        *self.segment_pins.write() = is_pinned;
    }

    /// Sets the check if all segments are pinned on this node, or removes it.
    pub(super) fn set_pin_of_all(&self, are_pinned: Option<PinOfAllCheck>) {
        *self.pin_of_all.write() = are_pinned;
    }

    /// Sets the check of the running policy, or removes it.
    pub(super) fn set_policy_check(&self, runs: Option<PolicyCheck>) {
        *self.policy.write() = runs;
    }

    /// True if this node runs this version of the policy or a later one, or none.
    pub(super) fn runs_policy(&self, version: u64) -> bool {
        let runs = self.policy.read().clone();
        runs.is_none_or(|runs| runs(version))
    }

    /// True if all segments are pinned on this node.
    pub(super) fn are_all_pinned(&self) -> bool {
        let are_pinned = self.pin_of_all.read().clone();
        are_pinned.is_some_and(|are_pinned| are_pinned())
    }

    /// Those of `segments` that are pinned on this node.
    pub(super) fn pinned_segments(&self, segments: Vec<u64>) -> Vec<u64> {
        let is_pinned = self.segment_pins.read().clone();
        let Some(is_pinned) = is_pinned else { return Vec::new() };
        segments.into_iter().filter(|id| is_pinned(SegmentId(*id))).collect()
    }

    /// What other nodes read, by their answers to a question of the time `at`.
    pub(super) fn read_elsewhere(
        &self,
        nodes: &[NodeId],
        answers: BTreeMap<NodeId, ReadersReply>,
        at: Instant,
    ) -> ReadElsewhere {
        let answered: BTreeSet<NodeId> = answers.keys().copied().collect();
        let unanswered = self.unanswered.lock().record(nodes, &answered, at);
        let is_given_up = |node: &&NodeId| !answered.contains(*node) && !unanswered.contains(*node);
        let given_up = nodes.iter().filter(is_given_up).copied().collect();
        let mut read = ReadElsewhere { unanswered, given_up, ..ReadElsewhere::default() };
        for (node, reply) in answers {
            if reply.is_behind {
                read.behind.insert(node);
            }
            read.bodies.extend(reply.bodies);
            read.segments.extend(reply.segments);
            read.pins_all |= reply.pins_all;
        }
        read
    }

    /// Replaces [`UNREACHABLE_READERS`].
    #[cfg(test)]
    pub(super) fn set_limit(&self, limit: Duration) {
        self.unanswered.lock().limit = limit;
    }
}

#[cfg(test)]
mod tests {
    use super::{FORGOTTEN, ReaderQuestions, UNREACHABLE_READERS, UnansweredNodes, nodes_with_readers};
    use mlgw_common::NodeId;
    use mlgw_common::time::Instant;
    use mlgw_formats::member_calls::ReadersReply;
    use mlgw_formats::schema::{Node, NodeRole, NodeState};
    use std::collections::{BTreeMap, BTreeSet};
    use std::time::Duration;

    const TWO: NodeId = NodeId(2);
    const THREE: NodeId = NodeId(3);
    const NODES: [NodeId; 2] = [TWO, THREE];

    fn set(nodes: &[NodeId]) -> BTreeSet<NodeId> {
        nodes.iter().copied().collect()
    }

    #[test]
    fn other_storage_nodes_that_are_not_removed_may_have_readers() {
        let node = |id: u64, role: NodeRole, state: NodeState| Node {
            id,
            role: role as i32,
            state: state as i32,
            ..Node::default()
        };
        let nodes = [
            node(1, NodeRole::Storage, NodeState::Active),
            node(2, NodeRole::Storage, NodeState::Active),
            node(3, NodeRole::Gateway, NodeState::Active),
            node(4, NodeRole::Storage, NodeState::Joining),
            node(5, NodeRole::Storage, NodeState::Draining),
            node(6, NodeRole::Storage, NodeState::Leaving),
            node(7, NodeRole::Storage, NodeState::Removed),
        ];
        let found = nodes_with_readers(nodes.iter(), NodeId(1));
        assert_eq!(found, [2, 4, 5, 6].map(NodeId));
    }

    #[test]
    fn a_node_that_does_not_answer_is_waited_for_until_the_limit() {
        let mut unanswered = UnansweredNodes::new(UNREACHABLE_READERS);
        let begin = Instant::now();
        let mut asked_after = |seconds: u64, answered: &[NodeId]| {
            unanswered.record(&NODES, &set(answered), begin + Duration::from_secs(seconds))
        };
        assert_eq!(asked_after(0, &NODES), set(&[]), "all answered");
        assert_eq!(asked_after(100, &[TWO]), set(&[THREE]), "the time begins with this question");
        assert_eq!(asked_after(130, &[]), set(&NODES));
        assert_eq!(asked_after(159, &[]), set(&NODES));
        assert_eq!(asked_after(160, &[]), set(&[TWO]), "node 3 has not answered for a minute");
        assert_eq!(asked_after(161, &[THREE]), set(&[TWO]), "it answers again");
        assert_eq!(asked_after(162, &[]), set(&NODES), "its time begins again");
        assert_eq!(asked_after(190, &[]), set(&[THREE]));
    }

    #[test]
    fn a_node_that_is_behind_is_waited_for_without_a_limit() {
        let questions = ReaderQuestions::default();
        let begin = Instant::now();
        let asked_after = |answers: &[(NodeId, ReadersReply)], seconds: u64| {
            let answers: BTreeMap<NodeId, ReadersReply> = answers.iter().cloned().collect();
            questions.read_elsewhere(&NODES, answers, begin + Duration::from_secs(seconds))
        };
        let behind = ReadersReply { bodies: vec![7], segments: vec![8], is_behind: true, pins_all: false };
        for seconds in [0, 60, 120, 600] {
            let read = asked_after(&[(TWO, behind.clone()), (THREE, ReadersReply::default())], seconds);
            assert_eq!((&read.unanswered, &read.behind), (&set(&[]), &set(&[TWO])), "{seconds} s");
            assert!(!read.is_complete() && read.bodies.contains(&7) && read.segments.contains(&8));
        }
        let read = asked_after(&[(THREE, ReadersReply::default())], 601);
        assert_eq!((read.unanswered, read.behind), (set(&[TWO]), set(&[])), "it does not answer any more");
        let current = ReadersReply { is_behind: false, ..behind };
        let read = asked_after(&[(TWO, current), (THREE, ReadersReply::default())], 602);
        assert!(read.is_complete() && read.bodies.contains(&7));
    }

    #[test]
    fn a_node_that_is_given_up_may_still_have_older_rows() {
        let questions = ReaderQuestions::default();
        let begin = Instant::now();
        let asked_after = |nodes: &[NodeId], seconds: u64| {
            let answers = nodes.iter().map(|node| (*node, ReadersReply::default())).collect();
            questions.read_elsewhere(&NODES, answers, begin + Duration::from_secs(seconds))
        };
        assert!(asked_after(&NODES, 0).is_applied_everywhere());
        let read = asked_after(&[TWO], 1);
        assert!(!read.is_complete() && !read.is_applied_everywhere() && read.given_up.is_empty());
        let read = asked_after(&[TWO], 61);
        assert_eq!(read.given_up, set(&[THREE]));
        assert!(read.is_complete() && !read.is_applied_everywhere());
        assert!(asked_after(&NODES, 62).is_applied_everywhere());
    }

    #[test]
    fn an_old_question_without_an_answer_does_not_count() {
        let mut unanswered = UnansweredNodes::new(UNREACHABLE_READERS);
        let begin = Instant::now();
        assert_eq!(unanswered.record(&NODES, &set(&[TWO]), begin), set(&[THREE]));
        let later = begin + FORGOTTEN;
        assert_eq!(unanswered.record(&NODES, &set(&[TWO]), later), set(&[THREE]), "as if it were the first");
        let last = later + UNREACHABLE_READERS;
        assert_eq!(unanswered.record(&NODES, &set(&[TWO]), last), set(&[]));
    }

    #[test]
    fn nodes_that_are_not_asked_any_more_are_not_kept() {
        let mut unanswered = UnansweredNodes::new(UNREACHABLE_READERS);
        let begin = Instant::now();
        unanswered.record(&NODES, &set(&[]), begin);
        assert_eq!(unanswered.nodes.len(), 2);
        assert_eq!(unanswered.record(&[TWO], &set(&[]), begin), set(&[TWO]));
        assert_eq!(unanswered.nodes.len(), 1);
    }
}

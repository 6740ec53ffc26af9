//! The seal of an open segment whose writer is gone, from the answers of its closed replicas.
//!
//! - When so many replicas with a file are closed that the others are fewer than the write quorum, nothing
//!   more can be acknowledged, and each acknowledged byte is in one of the answers. So the segment is sealed
//!   at the largest length.
//! - A replica without a file counts only when all replicas have answered: it may never have been opened, or
//!   its disk was lost with acknowledged bytes.
//! - Bytes after the last intact record of a replica are a torn write, which was never acknowledged, or a
//!   record that was acknowledged and is damaged. If they reach beyond the length, the seal waits until all
//!   have answered. What no replica has intact then stays out of the segment.
//! - The seal names the owner, every replica with a file, and those that did not answer. All that are not
//!   known to be whole are marked, and the repair of sealed segments pulls what they lack.
//!
//! - A removed node never answers. When all others have answered and are too few, acknowledged bytes may have
//!   been on removed nodes alone. The segment is sealed at what the others have, and the seal says so.
//!
//! Any node may decide this at any time: the first seal that is recorded counts, and each one has all
//! acknowledged bytes that are left. Nothing is kept; after a power loss closed replicas give the same
//! answers.

use crate::rules::{ReplicationRule, ReplicationRules};
use mlgw_common::NodeId;
use std::collections::{BTreeMap, BTreeSet};

/// State of a closed replica, which does not change any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClosedAnswer {
    /// True if there is a file with bytes of the segment.
    pub has_file: bool,
    /// End of the last intact record, which is synced; 0 without a file.
    pub length: u64,
    /// Bytes before that end that belong to no intact record.
    pub damaged_bytes: u64,
    /// Bytes after that end, up to the last one that is not zero. They belong to no intact record; 0 without
    /// a file.
    pub uncertain_bytes: u64,
}

/// The reason for which a segment is not sealed yet, with the nodes whose answers are missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SealWait {
    /// Too few replicas with a file are closed.
    TooFewAnswers(Vec<NodeId>),
    /// The last record of a replica may be damaged, and these nodes may have it.
    UncertainEnd(Vec<NodeId>),
}

/// A seal that follows from the answers of closed replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecoveredSeal {
    /// Length of the sealed segment.
    pub length: u64,
    /// The named replicas in the order of the record; empty if no replica has bytes.
    pub replicas: Vec<SealedReplica>,
    /// True if removed nodes may have had acknowledged bytes that no other node has.
    pub may_miss_bytes: bool,
}

/// The replicas of an open segment, as recorded.
#[derive(Clone, Copy, Debug)]
pub struct ListedReplicas<'a> {
    /// The nodes, the owner first.
    pub nodes: &'a [NodeId],
    /// Number of replicas that have synced what is acknowledged.
    pub write_quorum: usize,
    /// Nodes that were removed for ever.
    pub removed: &'a BTreeSet<NodeId>,
}

/// A replica that a seal names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SealedReplica {
    /// The node that holds the replica.
    pub node: NodeId,
    /// True if the replica is marked: it lacks bytes, or is damaged.
    pub is_suspect: bool,
}

/// Returns the number of replicas that must be closed before the segment is sealed.
#[must_use]
pub fn needed_answers(replicas: usize, write_quorum: usize) -> usize {
    (replicas + 1).saturating_sub(write_quorum.max(1)).max(1)
}

/// Decides the seal of an open segment. `answers` has closed replicas by node; nodes that the record does not
/// list do not count.
///
/// The owner stays the first replica, whether it answered or not: it serves the segment when it returns, and
/// pulls what it lacks. If it was removed, another node becomes the owner of the sealed segment.
///
/// # Errors
/// The reason and the nodes whose answers are missing, if there are too few answers.
pub fn decide_seal(
    listed: &ListedReplicas<'_>,
    answers: &BTreeMap<NodeId, ClosedAnswer>,
) -> Result<RecoveredSeal, SealWait> {
    decide_seal_by(listed, answers, ReplicationRules::ALL)
}

pub(crate) fn decide_seal_by(
    listed: &ListedReplicas<'_>,
    answers: &BTreeMap<NodeId, ClosedAnswer>,
    rules: ReplicationRules,
) -> Result<RecoveredSeal, SealWait> {
    let wait = seal_wait(listed, answers, rules);
    let never_answers =
        |node: &NodeId| listed.removed.contains(node) && rules.has(ReplicationRule::RemovedNeverAnswers);
    let can_wait = |node: &NodeId| !answers.contains_key(node) && !never_answers(node);
    match wait {
        Some(wait) if listed.nodes.iter().any(can_wait) => Err(wait),
        wait => Ok(RecoveredSeal { may_miss_bytes: wait.is_some(), ..seal_of(listed.nodes, answers, rules) }),
    }
}

/// The reason to wait for answers; `None` if those that are there decide.
fn seal_wait(
    listed: &ListedReplicas<'_>,
    answers: &BTreeMap<NodeId, ClosedAnswer>,
    rules: ReplicationRules,
) -> Option<SealWait> {
    let replicas = listed.nodes;
    let with_file = |node: &NodeId| answers.get(node).copied().filter(|answer| answer.has_file);
    let have_all_answered = replicas.iter().all(|node| answers.contains_key(node));
    let files: Vec<ClosedAnswer> = replicas.iter().filter_map(with_file).collect();
    let counted = match rules.has(ReplicationRule::NoFileCountsLast) {
        true => files.len(),
        false => replicas.iter().filter(|node| answers.contains_key(node)).count(),
    };
    let needed = match rules.has(ReplicationRule::EnoughAnswers) {
        true => needed_answers(replicas.len(), listed.write_quorum),
        false => 1,
    };
    if counted < needed && !have_all_answered {
        let missing = replicas.iter().copied().filter(|node| with_file(node).is_none());
        return Some(SealWait::TooFewAnswers(missing.collect()));
    }
    if !have_all_answered && is_end_uncertain(&files) && rules.has(ReplicationRule::UncertainEndWaits) {
        let missing = replicas.iter().copied().filter(|node| !answers.contains_key(node));
        return Some(SealWait::UncertainEnd(missing.collect()));
    }
    None
}

/// The seal that follows from the answers.
fn seal_of(
    replicas: &[NodeId],
    answers: &BTreeMap<NodeId, ClosedAnswer>,
    rules: ReplicationRules,
) -> RecoveredSeal {
    let with_file = |node: &NodeId| answers.get(node).copied().filter(|answer| answer.has_file);
    let files: Vec<ClosedAnswer> = replicas.iter().filter_map(with_file).collect();
    let lengths = files.iter().map(|answer| answer.length);
    let is_largest = rules.has(ReplicationRule::LargestLength);
    let length = if is_largest { lengths.max() } else { lengths.min() }.unwrap_or(0);
    if length == 0 {
        return RecoveredSeal { length, replicas: Vec::new(), may_miss_bytes: false };
    }
    // What is bad in all replicas stays bad. One of them must be the source of the others.
    let longest = files.iter().filter(|answer| answer.length >= length);
    let least_damage = longest.map(|answer| answer.damaged_bytes).min().unwrap_or(0);
    let is_source = |answer: ClosedAnswer| {
        let is_whole = answer.damaged_bytes == least_damage || !rules.has(ReplicationRule::DamagedIsMarked);
        is_whole && (answer.length >= length || !rules.has(ReplicationRule::ShorterIsMarked))
    };
    let owner = replicas.first().filter(|_| rules.has(ReplicationRule::OwnerIsNamed));
    // A replica that did not answer may have every acknowledged byte: it is marked and not left out.
    let is_named =
        |node: &&NodeId| with_file(node).is_some() || !answers.contains_key(*node) || owner == Some(*node);
    let named =
        |node: &NodeId| SealedReplica { node: *node, is_suspect: !with_file(node).is_some_and(is_source) };
    let replicas = replicas.iter().filter(is_named).map(named).collect();
    RecoveredSeal { length, replicas, may_miss_bytes: false }
}

/// True if a replica may have had a record that ends beyond the intact records of all of them.
pub(crate) fn is_end_uncertain(files: &[ClosedAnswer]) -> bool {
    let length = files.iter().map(|answer| answer.length).max().unwrap_or(0);
    files.iter().any(|answer| answer.length.saturating_add(answer.uncertain_bytes) > length)
}

#[cfg(test)]
mod tests {
    use super::{ClosedAnswer, ListedReplicas, RecoveredSeal, SealWait, decide_seal, needed_answers};
    use mlgw_common::NodeId;
    use std::collections::{BTreeMap, BTreeSet};

    /// Replicas of a record, and its write quorum.
    struct Listed(Vec<NodeId>, usize);

    fn listed(nodes: &[u64], write_quorum: usize) -> Listed {
        Listed(nodes.iter().copied().map(NodeId).collect(), write_quorum)
    }

    /// The decision when some nodes were removed. Answers as node and length.
    fn decided_without(
        removed: &[u64],
        record: &Listed,
        answers: &[(u64, u64)],
    ) -> Result<RecoveredSeal, SealWait> {
        let answer = |&(node, length): &(u64, u64)| {
            let has_file = length > 0;
            (NodeId(node), ClosedAnswer { has_file, length, damaged_bytes: 0, uncertain_bytes: 0 })
        };
        let removed: BTreeSet<NodeId> = removed.iter().copied().map(NodeId).collect();
        let listed = ListedReplicas { nodes: &record.0, write_quorum: record.1, removed: &removed };
        decide_seal(&listed, &answers.iter().map(answer).collect())
    }

    /// The length, and each node with its mark; or the nodes that are missed.
    type Decided = Result<(u64, Vec<(u64, bool)>), SealWait>;

    /// Answers as node, length and damaged bytes. A replica of length 0 has no file.
    fn decided(record: &Listed, answers: &[(u64, u64, u64)]) -> Decided {
        let whole_end = |&(node, length, damaged): &(u64, u64, u64)| (node, length, damaged, 0);
        decided_with_ends(record, &answers.iter().map(whole_end).collect::<Vec<_>>())
    }

    /// Answers with the bytes after the last intact record too.
    fn decided_with_ends(record: &Listed, answers: &[(u64, u64, u64, u64)]) -> Decided {
        let answer = |&(node, length, damaged_bytes, uncertain_bytes): &(u64, u64, u64, u64)| {
            let has_file = length > 0;
            (NodeId(node), ClosedAnswer { has_file, length, damaged_bytes, uncertain_bytes })
        };
        let answers: BTreeMap<NodeId, ClosedAnswer> = answers.iter().map(answer).collect();
        let removed = BTreeSet::new();
        let listed = ListedReplicas { nodes: &record.0, write_quorum: record.1, removed: &removed };
        let RecoveredSeal { length, replicas, may_miss_bytes } = decide_seal(&listed, &answers)?;
        assert!(!may_miss_bytes, "no node was removed");
        Ok((length, replicas.iter().map(|replica| (replica.node.0, replica.is_suspect)).collect()))
    }

    fn too_few(nodes: &[u64]) -> Decided {
        Err(SealWait::TooFewAnswers(nodes.iter().copied().map(NodeId).collect()))
    }

    fn uncertain(nodes: &[u64]) -> Decided {
        Err(SealWait::UncertainEnd(nodes.iter().copied().map(NodeId).collect()))
    }

    #[test]
    fn so_many_answers_are_needed_that_no_quorum_is_left() {
        for (replicas, quorum, needed) in [(3, 2, 2), (2, 2, 1), (3, 3, 1), (3, 1, 3), (2, 0, 2), (2, 9, 1)] {
            assert_eq!(needed_answers(replicas, quorum), needed, "{replicas:?} {quorum}");
        }
        let three = listed(&[1, 2, 3], 2);
        assert_eq!(decided(&three, &[(2, 500, 0)]), too_few(&[1, 3]));
        // A node that is not in the record never counts.
        assert_eq!(decided(&three, &[(2, 500, 0), (9, 900, 0)]), too_few(&[1, 3]));
    }

    #[test]
    fn a_replica_without_a_file_counts_only_when_all_have_answered() {
        let (three, pair) = (listed(&[1, 2, 3], 2), listed(&[1, 2], 2));
        assert_eq!(decided(&three, &[(2, 500, 0), (3, 0, 0)]), too_few(&[1, 3]));
        assert_eq!(decided(&pair, &[(1, 0, 0)]), too_few(&[1, 2]), "the owner lost its disk");
        assert_eq!(decided(&pair, &[(1, 0, 0), (2, 500, 0)]), Ok((500, vec![(1, true), (2, false)])));
        let all = [(1, 0, 0), (2, 500, 0), (3, 0, 0)];
        assert_eq!(decided(&three, &all), Ok((500, vec![(1, true), (2, false)])));
    }

    #[test]
    fn the_largest_length_is_sealed_and_shorter_replicas_are_marked() {
        let three = listed(&[1, 2, 3], 2);
        let expected = Ok((500, vec![(1, true), (2, false), (3, true)]));
        assert_eq!(decided(&three, &[(1, 400, 0), (2, 500, 0), (3, 64, 0)]), expected);
    }

    #[test]
    fn a_damaged_replica_is_marked_and_never_shortens_the_segment() {
        let three = listed(&[1, 2, 3], 2);
        let one_absent = Ok((500, vec![(1, true), (2, false), (3, true)]));
        assert_eq!(decided(&three, &[(1, 500, 9), (2, 500, 0)]), one_absent, "the third may have them all");
        let longest = Ok((500, vec![(1, true), (2, false), (3, true)]));
        assert_eq!(decided(&three, &[(1, 400, 0), (2, 500, 9), (3, 500, 20)]), longest, "no other is whole");
    }

    #[test]
    fn a_last_record_that_may_be_damaged_waits_for_the_node_that_may_have_it() {
        let three = listed(&[1, 2, 3], 2);
        let two = [(2, 400, 0, 100), (3, 300, 0, 0)];
        assert_eq!(decided_with_ends(&three, &two), uncertain(&[1]));
        let returned = [(1, 500, 0, 0), two[0], two[1]];
        let expected = Ok((500, vec![(1, false), (2, true), (3, true)]));
        assert_eq!(decided_with_ends(&three, &returned), expected, "it has the record");
        let torn = [(1, 400, 0, 30), two[0], two[1]];
        let expected = Ok((400, vec![(1, false), (2, false), (3, true)]));
        assert_eq!(decided_with_ends(&three, &torn), expected, "all have answered, and none has it");
        // Also if the end of a shorter replica is the uncertain one, or all ends are.
        assert_eq!(decided_with_ends(&three, &[(2, 400, 0, 0), (3, 300, 0, 101)]), uncertain(&[1]));
        assert_eq!(decided_with_ends(&three, &[(1, 400, 9, 7), (3, 400, 0, 7)]), uncertain(&[2]));
        let pair = listed(&[1, 2], 2);
        assert_eq!(decided_with_ends(&pair, &[(2, 400, 0, u64::MAX)]), uncertain(&[1]));
        // Too few answers come first.
        assert_eq!(decided_with_ends(&three, &[(2, 400, 0, 100), (3, 0, 0, 0)]), too_few(&[1, 3]));
    }

    #[test]
    fn an_uncertain_end_that_is_in_another_replica_delays_nothing() {
        let three = listed(&[1, 2, 3], 2);
        let expected = Ok((500, vec![(1, true), (2, true), (3, false)]));
        assert_eq!(decided_with_ends(&three, &[(2, 400, 0, 100), (3, 500, 0, 0)]), expected);
    }

    #[test]
    fn an_owner_that_does_not_answer_stays_the_owner_and_is_marked() {
        let three = listed(&[1, 2, 3], 2);
        let shorter = Ok((500, vec![(1, true), (2, true), (3, false)]));
        assert_eq!(decided(&three, &[(2, 400, 0), (3, 500, 0)]), shorter);
        let equal = Ok((500, vec![(1, true), (2, false), (3, false)]));
        assert_eq!(decided(&three, &[(2, 500, 0), (3, 500, 0)]), equal);
        let pair = listed(&[1, 2], 2);
        assert_eq!(decided(&pair, &[(2, 500, 0)]), Ok((500, vec![(1, true), (2, false)])));
    }

    #[test]
    fn a_removed_node_is_not_waited_for_and_a_possible_loss_is_stated() {
        let three = listed(&[1, 2, 3], 2);
        let enough = decided_without(&[1], &three, &[(2, 500), (3, 400)]).unwrap();
        assert_eq!((enough.length, enough.may_miss_bytes), (500, false), "two of three decide as ever");
        let wait = SealWait::TooFewAnswers([1, 3].map(NodeId).into());
        assert_eq!(decided_without(&[1], &three, &[(2, 500)]), Err(wait), "node 3 may return");
        let without_file = decided_without(&[1], &three, &[(2, 500), (3, 0)]).unwrap();
        assert_eq!((without_file.length, without_file.may_miss_bytes), (500, true));
        let two_lost = decided_without(&[1, 2], &three, &[(3, 400)]).unwrap();
        assert_eq!((two_lost.length, two_lost.may_miss_bytes), (400, true));
        let good = two_lost.replicas.iter().find(|replica| !replica.is_suspect);
        assert_eq!(good.map(|replica| replica.node), Some(NodeId(3)));
        let alone = decided_without(&[1], &listed(&[1], 1), &[]).unwrap();
        assert_eq!((alone.length, alone.may_miss_bytes), (0, true), "it was the only replica");
    }

    #[test]
    fn a_segment_without_bytes_keeps_its_list() {
        let three = listed(&[1, 2, 3], 2);
        assert_eq!(decided(&three, &[(1, 0, 0), (2, 0, 0), (3, 0, 0)]), Ok((0, vec![])));
        let all = [(1, 64, 0), (2, 0, 0), (3, 0, 0)];
        assert_eq!(decided(&three, &all), Ok((64, vec![(1, false)])));
    }
}

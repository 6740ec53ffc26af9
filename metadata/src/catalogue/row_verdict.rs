//! Result of a comparison of the rows of a group: which members differ from most others. Pure.

use mlgw_common::{NodeId, Timestamp};
use mlgw_formats::member_calls::RowVerdict;
use std::collections::{BTreeMap, BTreeSet};

/// The newest comparison of the rows of a group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RowComparison {
    /// Index of the log entry after which the members digested their rows.
    pub index: u64,
    /// Time of the result, by the clock of the leader.
    pub compared: Timestamp,
    /// Nodes whose rows differ from those of most members. If the digests differ and none is that of most
    /// members, all nodes with a digest. A node that was found by an earlier comparison stays until it has
    /// the digest of most members, or leaves the group.
    pub differing: BTreeSet<NodeId>,
    /// Nodes that gave no digest: they do not answer, or have restarted or installed a snapshot meanwhile.
    pub without: BTreeSet<NodeId>,
    /// True if the digests of `differing` are those of all, because none is that of most members.
    pub is_undecided: bool,
}

/// Outcome of one comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ComparisonOutcome {
    /// All members have the same rows.
    Equal,
    /// Two members have different rows.
    Different,
    /// No two digests differ, and a member gave none.
    Incomplete,
}

/// Digest of each member; `None` if it gave none.
pub(super) type MemberDigests = BTreeMap<NodeId, Option<[u8; 32]>>;

impl RowComparison {
    /// Compares the digests of all members. `before` is the comparison before this one.
    pub(super) fn of(
        index: u64,
        compared: Timestamp,
        digests: &MemberDigests,
        before: Option<&Self>,
    ) -> (Self, ComparisonOutcome) {
        let given: Vec<(NodeId, [u8; 32])> =
            digests.iter().filter_map(|(node, digest)| Some((*node, (*digest)?))).collect();
        let without: BTreeSet<NodeId> =
            digests.iter().filter(|(_, digest)| digest.is_none()).map(|(node, _)| *node).collect();
        let majority = majority(&given);
        let is_different = given.iter().any(|(_, digest)| *digest != given[0].1);
        let mut differing: BTreeSet<NodeId> = match is_different {
            false => BTreeSet::new(),
            true => given.iter().filter(|of| Some(of.1) != majority).map(|of| of.0).collect(),
        };
        let mut is_undecided = is_different && majority.is_none();
        if let Some(before) = before {
            let is_cleared = |node: &NodeId| {
                majority.is_some() && given.iter().any(|of| of.0 == *node && Some(of.1) == majority)
            };
            let kept =
                before.differing.iter().filter(|node| digests.contains_key(*node) && !is_cleared(node));
            let kept: BTreeSet<NodeId> = kept.copied().collect();
            is_undecided |= before.is_undecided && !kept.is_empty() && !is_different;
            differing.extend(kept);
        }
        let outcome = match (is_different, without.is_empty()) {
            (true, _) => ComparisonOutcome::Different,
            (false, true) => ComparisonOutcome::Equal,
            (false, false) => ComparisonOutcome::Incomplete,
        };
        (Self { index, compared, differing, without, is_undecided }, outcome)
    }

    /// Returns the message with this result.
    pub(super) fn message(&self) -> RowVerdict {
        RowVerdict {
            index: self.index,
            compared_ms: self.compared.as_millis(),
            differing: self.differing.iter().map(|node| node.get()).collect(),
            without: self.without.iter().map(|node| node.get()).collect(),
            is_undecided: self.is_undecided,
        }
    }

    /// Returns the result in a message.
    pub(super) fn of_message(verdict: &RowVerdict) -> Self {
        Self {
            index: verdict.index,
            compared: Timestamp(verdict.compared_ms),
            differing: verdict.differing.iter().copied().map(NodeId).collect(),
            without: verdict.without.iter().copied().map(NodeId).collect(),
            is_undecided: verdict.is_undecided,
        }
    }
}

/// The digest of more than half of at least two nodes.
fn majority(given: &[(NodeId, [u8; 32])]) -> Option<[u8; 32]> {
    let of_most = |digest: &[u8; 32]| {
        let same = given.iter().filter(|of| of.1 == *digest).count();
        same >= 2 && 2 * same > given.len()
    };
    given.iter().map(|of| of.1).find(of_most)
}

#[cfg(test)]
mod tests {
    use super::{ComparisonOutcome, MemberDigests, RowComparison};
    use mlgw_common::{NodeId, Timestamp};
    use std::collections::BTreeSet;

    /// Digests of nodes 1, 2, …; 0 stands for none.
    fn digests(of: &[u8]) -> MemberDigests {
        (1..).map(NodeId).zip(of.iter().map(|digest| (*digest != 0).then_some([*digest; 32]))).collect()
    }

    fn compare(of: &[u8], before: Option<&RowComparison>) -> (RowComparison, ComparisonOutcome) {
        RowComparison::of(7, Timestamp(5), &digests(of), before)
    }

    fn nodes(of: &[u64]) -> BTreeSet<NodeId> {
        of.iter().copied().map(NodeId).collect()
    }

    #[test]
    fn a_majority_names_the_odd_member() {
        for (of, differing, is_undecided) in [
            (vec![1, 1, 2], vec![3], false),
            (vec![2, 1, 1], vec![1], false),
            (vec![1, 2, 1, 3, 1], vec![2, 4], false),
            (vec![1, 2], vec![1, 2], true),
            (vec![1, 2, 0], vec![1, 2], true),
            (vec![1, 2, 3], vec![1, 2, 3], true),
            (vec![1, 1, 2, 2], vec![1, 2, 3, 4], true),
            (vec![1, 1, 2, 3, 4], vec![1, 2, 3, 4, 5], true),
        ] {
            let (found, outcome) = compare(&of, None);
            assert_eq!(found.differing, nodes(&differing), "{of:?}");
            assert_eq!((found.is_undecided, outcome), (is_undecided, ComparisonOutcome::Different), "{of:?}");
        }
    }

    #[test]
    fn a_member_without_a_digest_is_no_finding() {
        for (of, without, expected) in [
            (vec![1, 1, 1], vec![], ComparisonOutcome::Equal),
            (vec![1, 0, 1], vec![2], ComparisonOutcome::Incomplete),
            (vec![0, 0, 1], vec![1, 2], ComparisonOutcome::Incomplete),
            (vec![0, 0], vec![1, 2], ComparisonOutcome::Incomplete),
        ] {
            let (found, outcome) = compare(&of, None);
            let expected_fields = (nodes(&[]), nodes(&without), false, expected);
            assert_eq!(
                (found.differing, found.without, found.is_undecided, outcome),
                expected_fields,
                "{of:?}"
            );
        }
    }

    #[test]
    fn a_finding_stays_until_the_node_is_equal_or_leaves() {
        let found = compare(&[1, 1, 2], None).0;
        let kept = |of: &[u8]| compare(of, Some(&found)).0.differing;
        assert_eq!(kept(&[1, 1, 0]), nodes(&[3]), "it gave no digest");
        assert_eq!(kept(&[0, 0, 2]), nodes(&[3]), "there is nothing to compare with");
        assert_eq!(kept(&[1, 1, 1]), nodes(&[]));
        assert_eq!(kept(&[1, 1]), nodes(&[]), "it is no member any more");
        let undecided = compare(&[1, 2], None).0;
        let later = compare(&[1, 0], Some(&undecided)).0;
        assert_eq!((later.differing, later.is_undecided), (nodes(&[1, 2]), true));
        let decided = compare(&[1, 2, 1], Some(&undecided)).0;
        assert_eq!((decided.differing, decided.is_undecided), (nodes(&[2]), false));
        let (equal, outcome) = compare(&[1, 1], Some(&undecided));
        assert_eq!((equal.differing, equal.is_undecided), (nodes(&[]), false));
        assert_eq!(outcome, ComparisonOutcome::Equal);
    }

    #[test]
    fn a_message_has_the_whole_result() {
        let (found, _) = compare(&[1, 2, 0], None);
        assert_eq!(RowComparison::of_message(&found.message()), found);
    }
}

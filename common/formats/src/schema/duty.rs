//! The duty node: the storage node that does what runs once per cluster. One row of family `meta` in group 0.
//!
//! Without a row the node on which the cluster began is the duty node of term 0.

use super::meta::MetaRow;
use mlgw_common::NodeId;

/// The duty node, and how far it has taken over.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Duty {
    /// Id of the node.
    #[prost(uint64, tag = "1")]
    pub node: u64,
    /// Number of the take-over; each one has a higher term than all before it.
    #[prost(uint64, tag = "2")]
    pub term: u64,
    /// How far the node has taken over.
    #[prost(enumeration = "DutyPhase", tag = "3")]
    pub phase: i32,
}

/// Phases of a term of duty, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum DutyPhase {
    /// The node has the duty. A node before it may still write at an origin, so this one does not yet.
    Waiting = 0,
    /// The node may write at origins.
    Writing = 1,
    /// The node has stopped, and knows the outcome of each of its writes at an origin.
    Ended = 2,
}

impl Duty {
    /// The duty of a cluster without a row.
    pub const FIRST: Self = Self { node: NodeId::SINGLE.0, term: 0, phase: DutyPhase::Writing as i32 };

    /// Returns the row's key.
    #[must_use]
    pub fn row() -> Vec<u8> {
        MetaRow::Duty.row()
    }

    /// Returns the node's id.
    #[must_use]
    pub const fn node_id(&self) -> NodeId {
        NodeId(self.node)
    }

    /// Returns true if `next` may follow: a later phase of this term, or the next term. A node may begin to
    /// act at once only if the node before it has stopped, or is an earlier process of its own.
    #[must_use]
    pub fn may_be_followed_by(&self, next: &Self) -> bool {
        use DutyPhase::{Ended, Waiting, Writing};
        let phases = (self.phase(), next.phase());
        let is_own = self.node == next.node;
        if self.term == next.term {
            return is_own && matches!(phases, (Waiting, Writing) | (Writing, Ended));
        }
        let begins =
            matches!(phases, (_, Waiting) | (Ended, Writing)) || phases == (Writing, Writing) && is_own;
        self.term.checked_add(1) == Some(next.term) && begins
    }
}

#[cfg(test)]
mod tests {
    use super::DutyPhase::{self, Ended, Waiting, Writing};
    use super::{Duty, MetaRow};
    use crate::schema::golden;

    fn duty(node: u64, term: u64, phase: DutyPhase) -> Duty {
        Duty { node, term, phase: phase as i32 }
    }

    #[test]
    fn the_row_has_this_key_and_the_record_these_bytes() {
        assert_eq!(MetaRow::Duty.row(), [0x01, 13]);
        golden::check(&duty(2, 300, Writing), include_str!("golden/duty.hex"));
    }

    #[test]
    fn a_term_goes_through_its_phases_in_order() {
        let follows = |from, to| duty(2, 5, from).may_be_followed_by(&duty(2, 5, to));
        assert!(follows(Waiting, Writing) && follows(Writing, Ended));
        // One that never acted does not know what the node before it still does.
        assert!(!follows(Waiting, Ended) && !follows(Ended, Writing) && !follows(Writing, Waiting));
        assert!(!duty(2, 5, Waiting).may_be_followed_by(&duty(3, 5, Writing)), "another node");
    }

    #[test]
    fn another_node_acts_at_once_only_after_one_that_has_stopped() {
        let follows = |from, to, node| duty(2, 5, from).may_be_followed_by(&duty(node, 6, to));
        assert!(follows(Ended, Writing, 3) && !follows(Writing, Writing, 3) && !follows(Waiting, Writing, 3));
        assert!(follows(Writing, Writing, 2) && !follows(Waiting, Writing, 2), "a restart");
        for from in [Waiting, Writing, Ended] {
            assert!(follows(from, Waiting, 2) && follows(from, Waiting, 3) && !follows(from, Ended, 3));
        }
    }

    #[test]
    fn no_term_is_skipped_or_repeated() {
        let before = duty(2, 5, Ended);
        for term in [4, 5, 7] {
            assert!(!before.may_be_followed_by(&duty(3, term, Waiting)), "{term}");
        }
    }
}

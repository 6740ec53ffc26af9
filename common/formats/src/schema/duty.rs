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
    /// The node has the duty. Writes of an earlier term may still take effect at an origin, so this node does
    /// not write there yet.
    Waiting = 0,
    /// The node may write at origins.
    Active = 1,
    /// The node has stopped. Writes of this term or of an earlier one may still take effect at an origin.
    Left = 2,
    /// The node has stopped, and no write of this term or of an earlier one can take effect any more.
    Ended = 3,
}

impl Duty {
    /// The duty of a cluster without a row.
    pub const FIRST: Self = Self { node: NodeId::SINGLE.0, term: 0, phase: DutyPhase::Active as i32 };

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

    /// Returns true if `next` may follow: a later phase of this term, or the next term. A term begins with
    /// acts only after one that has ended. Every other begin waits, also that of the same node: its process
    /// may be a new one, which does not know what the one before it sent.
    #[must_use]
    pub fn may_be_followed_by(&self, next: &Self) -> bool {
        use DutyPhase::{Active, Ended, Left, Waiting};
        let phases = (self.phase(), next.phase());
        if self.term == next.term {
            let is_later = matches!(phases, (Waiting, Active | Left) | (Active, Left | Ended));
            return self.node == next.node && is_later;
        }
        self.term.checked_add(1) == Some(next.term) && matches!(phases, (_, Waiting) | (Ended, Active))
    }

    /// Returns true if the node has stopped: no node has the duty.
    #[must_use]
    pub fn is_over(&self) -> bool {
        matches!(self.phase(), DutyPhase::Left | DutyPhase::Ended)
    }
}

#[cfg(test)]
mod tests {
    use super::DutyPhase::{self, Active, Ended, Left, Waiting};
    use super::{Duty, MetaRow};
    use crate::schema::golden;

    fn duty(node: u64, term: u64, phase: DutyPhase) -> Duty {
        Duty { node, term, phase: phase as i32 }
    }

    #[test]
    fn the_row_has_this_key_and_the_record_these_bytes() {
        assert_eq!(MetaRow::Duty.row(), [0x01, 13]);
        golden::check(&duty(2, 300, Active), include_str!("golden/duty.hex"));
    }

    #[test]
    fn a_term_goes_through_its_phases_in_order() {
        let follows = |from, to| duty(2, 5, from).may_be_followed_by(&duty(2, 5, to));
        assert!(follows(Waiting, Active) && follows(Active, Ended));
        assert!(follows(Waiting, Left) && follows(Active, Left));
        // One that never acted does not know what the node before it still does.
        assert!(!follows(Waiting, Ended) && !follows(Left, Ended));
        assert!(!follows(Ended, Active) && !follows(Left, Active) && !follows(Active, Waiting));
        assert!(!duty(2, 5, Waiting).may_be_followed_by(&duty(3, 5, Active)), "another node");
    }

    #[test]
    fn a_term_begins_with_acts_only_after_one_that_has_ended() {
        for node in [2, 3] {
            let follows = |from, to| duty(2, 5, from).may_be_followed_by(&duty(node, 6, to));
            assert!(follows(Ended, Active));
            for from in [Waiting, Active, Left] {
                assert!(!follows(from, Active), "{from:?}, node {node}");
            }
            for from in [Waiting, Active, Left, Ended] {
                assert!(follows(from, Waiting) && !follows(from, Left) && !follows(from, Ended));
            }
        }
    }

    #[test]
    fn no_term_is_skipped_or_repeated() {
        let before = duty(2, 5, Ended);
        for term in [4, 5, 7] {
            assert!(!before.may_be_followed_by(&duty(3, term, Waiting)), "{term}");
        }
    }

    #[test]
    fn no_node_has_the_duty_after_its_holder_has_stopped() {
        assert!(duty(2, 5, Left).is_over() && duty(2, 5, Ended).is_over());
        assert!(!duty(2, 5, Waiting).is_over() && !duty(2, 5, Active).is_over());
    }
}

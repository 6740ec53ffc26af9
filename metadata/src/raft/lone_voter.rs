//! Whether this member is its group's only voter and has applied everything that the group acknowledged:
//! a read then needs no barrier.
//!
//! It is sure only if this member itself proposed the membership that makes it the only voter. From then on
//! no other member can win an election or commit an entry, so the applied state is the acknowledged one. A
//! second voter can lead only after this member has applied the membership that names it.

use std::sync::atomic::{AtomicBool, Ordering};

/// Knowledge of a member about its group's voters.
#[derive(Debug)]
pub(crate) struct LoneVoter {
    node: u64,
    is_sure: AtomicBool,
}

impl LoneVoter {
    /// The member `node` of a group whose voters are unknown.
    pub(crate) const fn new(node: u64) -> Self {
        Self { node, is_sure: AtomicBool::new(false) }
    }

    /// True if this member is the only voter, and its applied state contains every acknowledged change.
    pub(crate) fn is_sure(&self) -> bool {
        self.is_sure.load(Ordering::Acquire)
    }

    fn is_only(&self, voters: impl Iterator<Item = u64>) -> bool {
        voters.eq([self.node])
    }

    /// Records that the whole log was applied while this member leads `voters`.
    pub(crate) fn replayed(&self, voters: impl Iterator<Item = u64>) {
        self.is_sure.store(self.is_only(voters), Ordering::Release);
    }

    /// Records an applied membership that `leader` proposed. Call this before the proposal is answered.
    pub(crate) fn applied(&self, voters: impl Iterator<Item = u64>, leader: u64) {
        self.is_sure.store(self.is_only(voters) && leader == self.node, Ordering::Release);
    }

    /// Records that another member's state was installed.
    pub(crate) fn replaced(&self) {
        self.is_sure.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::LoneVoter;

    #[test]
    fn it_is_sure_only_of_a_membership_that_it_proposed_itself() {
        let member = LoneVoter::new(2);
        let after = |voters: &[u64], leader| {
            member.applied(voters.iter().copied(), leader);
            member.is_sure()
        };
        assert!(!after(&[1, 2, 3], 2));
        assert!(!after(&[2], 1), "the leader that left may have committed more");
        assert!(after(&[2], 2));
        member.replaced();
        assert!(!member.is_sure());
        assert!(after(&[2], 2));
        assert!(!after(&[1, 2], 2));
        member.replayed([2].into_iter());
        assert!(member.is_sure());
        member.replayed([1].into_iter());
        assert!(!member.is_sure(), "a learner");
    }
}

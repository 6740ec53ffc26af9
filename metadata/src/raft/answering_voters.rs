//! The choice of the voters that are asked for a read index: those that answered before. In memory.

use mlgw_common::NodeId;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The voters that answered last.
#[derive(Debug, Default)]
pub(super) struct AnsweringVoters {
    /// Number of those that did not answer.
    skipped: AtomicUsize,
}

impl AnsweringVoters {
    /// Chooses so many of the voters.
    pub(super) fn choose(&self, voters: &[NodeId], count: usize) -> Vec<NodeId> {
        let skipped = self.skipped.load(Ordering::Relaxed) % voters.len().max(1);
        voters.iter().cycle().skip(skipped).take(count.min(voters.len())).copied().collect()
    }

    /// Records that a chosen one did not answer.
    pub(super) fn skip(&self) {
        self.skipped.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::AnsweringVoters;
    use mlgw_common::NodeId;

    #[test]
    fn a_voter_that_does_not_answer_is_asked_later_than_others() {
        let (answering, voters) = (AnsweringVoters::default(), [2, 4, 7, 9].map(NodeId));
        assert_eq!(answering.choose(&voters, 2), [NodeId(2), NodeId(4)]);
        assert_eq!(answering.choose(&voters, 2), [NodeId(2), NodeId(4)]);
        answering.skip();
        assert_eq!(answering.choose(&voters, 2), [NodeId(4), NodeId(7)]);
        answering.skip();
        answering.skip();
        assert_eq!(answering.choose(&voters, 2), [NodeId(9), NodeId(2)]);
        assert_eq!(answering.choose(&voters[..1], 2), [NodeId(2)]);
        assert_eq!(answering.choose(&[], 1), []);
    }
}

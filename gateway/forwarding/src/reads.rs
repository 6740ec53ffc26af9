//! Reads of this node that are in flight at each member.
//!
//! Before a member answers a read, a majority confirms that its rows are current. Reads that are at a member
//! at once share the confirmation, and their objects are in the page cache of one member instead of each. So
//! this node sends its reads to one member, until as many are in flight there as share a confirmation well.
//! Further ones go to the next member. Each node begins with another one.

use mlgw_common::NodeId;
use mlgw_common::limits::FORWARD_SUSPECTS_MAX;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// Reads in flight at a member from which on the next member is better. A member that serves 32 clients
/// spends half as much CPU on a read as one that serves four.
pub(crate) const READS_TOGETHER: usize = 32;

/// Reads in flight by member.
#[derive(Debug, Default)]
pub(crate) struct ReadsInFlight(Mutex<HashMap<NodeId, Arc<()>>>);

/// A read in flight, until it is dropped.
#[derive(Debug)]
pub(crate) struct ReadInFlight(#[expect(dead_code, reason = "its owners are counted")] Arc<()>);

impl ReadsInFlight {
    /// Records that a read is sent to a member.
    pub(crate) fn begin(&self, member: NodeId) -> ReadInFlight {
        let mut members = self.0.lock();
        if members.len() >= FORWARD_SUSPECTS_MAX {
            members.retain(|_, reads| Arc::strong_count(reads) > 1);
        }
        ReadInFlight(Arc::clone(members.entry(member).or_default()))
    }

    /// Returns the number of reads at a member.
    pub(crate) fn count(&self, member: NodeId) -> usize {
        self.0.lock().get(&member).map_or(0, |reads| Arc::strong_count(reads) - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::ReadsInFlight;
    use mlgw_common::NodeId;
    use mlgw_common::limits::FORWARD_SUSPECTS_MAX;

    #[test]
    fn a_read_is_in_flight_until_it_is_dropped() {
        let reads = ReadsInFlight::default();
        let [first, _second] = [reads.begin(NodeId(1)), reads.begin(NodeId(1))];
        assert_eq!([1, 2].map(|node| reads.count(NodeId(node))), [2, 0]);
        drop(first);
        assert_eq!(reads.count(NodeId(1)), 1);
    }

    #[test]
    fn members_without_reads_are_forgotten() {
        let reads = ReadsInFlight::default();
        let kept = reads.begin(NodeId(0));
        for node in 0..3 * FORWARD_SUSPECTS_MAX as u64 {
            drop(reads.begin(NodeId(node)));
            assert!(reads.0.lock().len() <= FORWARD_SUSPECTS_MAX);
        }
        assert_eq!(reads.count(NodeId(0)), 1);
        drop(kept);
    }
}

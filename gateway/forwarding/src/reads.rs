//! Reads of this node that are in flight at each member.
//!
//! Before a member answers a read, a majority confirms that its rows are current. Reads that are at a member
//! at once share the confirmation, and their objects are in the page cache of one member instead of each. So
//! this node sends its reads to one member, until [`READS_TOGETHER`] are in flight there. Further ones go to
//! the next member. A long body takes as much room as that many reads, so long bodies are spread over the
//! members. Nodes begin with different members if their ids differ modulo the number of members.

use mlgw_common::NodeId;
use mlgw_common::limits::FORWARD_SUSPECTS_MAX;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Reads in flight at a member from which on further ones go to the next. More of them hardly reduce the CPU
/// of a read, 140 µs with 4 clients and about 80 with 32, and load one member alone.
pub(crate) const READS_TOGETHER: usize = 32;

/// Bytes from which a body is long: sending it takes longer than a confirmation.
const LONG_BODY_BYTES: u64 = 256 << 10;

/// Reads in flight by member.
#[derive(Debug, Default)]
pub(crate) struct ReadsInFlight(Mutex<HashMap<NodeId, Arc<AtomicUsize>>>);

/// A read in flight, until it is dropped.
#[derive(Debug)]
pub(crate) struct ReadInFlight {
    member: Arc<AtomicUsize>,
    /// The reads of small objects that it counts as.
    weight: usize,
}

impl ReadInFlight {
    /// Records the length of the body that follows; `None` if it is unknown.
    pub(crate) fn set_body_bytes(&mut self, bytes: Option<u64>) {
        if bytes.is_none_or(|bytes| bytes >= LONG_BODY_BYTES) {
            self.member.fetch_add(READS_TOGETHER - self.weight, Relaxed);
            self.weight = READS_TOGETHER;
        }
    }
}

impl Drop for ReadInFlight {
    fn drop(&mut self) {
        self.member.fetch_sub(self.weight, Relaxed);
    }
}

impl ReadsInFlight {
    /// Records that a read is sent to a member.
    pub(crate) fn begin(&self, member: NodeId) -> ReadInFlight {
        let mut members = self.0.lock();
        // Members with reads stay: the memory of requests bounds their number.
        if members.len() >= FORWARD_SUSPECTS_MAX {
            members.retain(|_, reads| Arc::strong_count(reads) > 1);
        }
        let member = Arc::clone(members.entry(member).or_default());
        member.fetch_add(1, Relaxed);
        ReadInFlight { member, weight: 1 }
    }

    /// Returns the number of reads at a member.
    pub(crate) fn count(&self, member: NodeId) -> usize {
        self.0.lock().get(&member).map_or(0, |reads| reads.load(Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::{LONG_BODY_BYTES, READS_TOGETHER, ReadsInFlight};
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
    fn a_read_with_a_long_body_fills_its_member() {
        let reads = ReadsInFlight::default();
        for (bytes, count) in [
            (Some(0), 1),
            (Some(LONG_BODY_BYTES - 1), 1),
            (Some(LONG_BODY_BYTES), READS_TOGETHER),
            (None, READS_TOGETHER),
        ] {
            let mut read = reads.begin(NodeId(1));
            read.set_body_bytes(bytes);
            assert_eq!(reads.count(NodeId(1)), count, "{bytes:?}");
            drop(read);
            assert_eq!(reads.count(NodeId(1)), 0);
        }
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

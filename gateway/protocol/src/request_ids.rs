//! Ids of requests.
//!
//! An id is the time in milliseconds, the number of the node and a counter, all in hexadecimal. So no other
//! request of the cluster has it, not even one from before a restart: the counter repeats after 65,536
//! requests, which take longer than a millisecond.

use mlgw_common::limits::REQUEST_ID_BYTES_MAX;
use mlgw_common::{NodeId, Timestamp};
use mlgw_listener::Peer;
use mlgw_telemetry::observed::Arrival;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bits of the counter in an id.
const COUNTER_BITS: u32 = 16;

/// Source of the ids of one node.
#[derive(Debug)]
pub struct RequestIds {
    node: NodeId,
    next: AtomicU64,
}

/// Number and id of a request.
#[derive(Debug)]
pub(crate) struct AssignedId {
    /// Number in this process, by which the request is sampled.
    pub(crate) number: u64,
    /// Id in the response.
    pub(crate) id: String,
}

impl AssignedId {
    /// Returns the arrival of the request at `time` from its client.
    pub(crate) fn arrival(&self, time: Timestamp, client: &Peer) -> Arrival<'_> {
        Arrival { number: self.number, id: &self.id, time, peer: client.address, forwarded_by: None }
    }
}

impl RequestIds {
    /// Returns the ids of `node`.
    #[must_use]
    pub const fn new(node: NodeId) -> Self {
        Self { node, next: AtomicU64::new(0) }
    }

    /// Returns the node.
    #[must_use]
    pub const fn node(&self) -> NodeId {
        self.node
    }

    /// Returns the number of the next request, without an id.
    pub(crate) fn next_number(&self) -> u64 {
        self.next.fetch_add(1, Relaxed)
    }

    /// Returns number and id of a request that arrives at `now`.
    pub(crate) fn assign(&self, now: Timestamp) -> AssignedId {
        let number = self.next_number();
        let mut id = Vec::with_capacity(REQUEST_ID_BYTES_MAX);
        // A node of a number below 4096 has ids of 18 digits. Ids of the same length have the same fields.
        push_hex(&mut id, now.as_millis().cast_unsigned(), 11);
        push_hex(&mut id, self.node.get(), 3);
        push_hex(&mut id, number & ((1 << COUNTER_BITS) - 1), COUNTER_BITS / 4);
        AssignedId { number, id: String::from_utf8(id).expect("hexadecimal digits are ASCII") }
    }
}

/// Appends a number in hexadecimal, with zeros up to `digits_min` digits. Formatting with `write!` would be a
/// hundredth of the instructions of a HEAD.
fn push_hex(text: &mut Vec<u8>, number: u64, digits_min: u32) {
    let digits = (u64::BITS - number.leading_zeros()).div_ceil(4).max(digits_min);
    let digit = |at: u32| b"0123456789ABCDEF"[usize::from((number >> (4 * at)).to_le_bytes()[0] & 0xF)];
    text.extend((0..digits).rev().map(digit));
}

#[cfg(test)]
mod tests {
    use super::RequestIds;
    use mlgw_common::limits::REQUEST_ID_BYTES_MAX;
    use mlgw_common::{NodeId, Timestamp};
    use std::collections::HashSet;

    #[test]
    fn requests_of_different_nodes_have_different_ids() {
        let now = Timestamp::from_secs(1_800_000_000);
        let nodes =
            [1, 2, 16, 4095, 4096, 0x1_0000, 0x1_0001, u64::MAX].map(|node| RequestIds::new(NodeId(node)));
        let ids: HashSet<String> =
            nodes.iter().flat_map(|ids| (0..1000).map(|_| ids.assign(now).id)).collect();
        assert_eq!(ids.len(), nodes.len() * 1000);
        let longest = ids.iter().map(String::len).max().unwrap();
        assert!(longest <= REQUEST_ID_BYTES_MAX, "{longest}");
    }

    #[test]
    fn an_id_of_a_small_cluster_has_18_digits() {
        let ids = RequestIds::new(NodeId::SINGLE);
        let (first, second) = (ids.assign(Timestamp(1)), ids.assign(Timestamp(1)));
        assert_eq!((first.number, &*first.id), (0, "000000000010010000"));
        assert_eq!((second.number, &*second.id), (1, "000000000010010001"));
        let later = RequestIds::new(NodeId(0xABC)).assign(Timestamp(0x0198_7654_3210));
        assert_eq!(&*later.id, "19876543210ABC0000");
    }

    #[test]
    fn a_number_with_more_digits_makes_an_id_longer() {
        let ids = RequestIds::new(NodeId(0x1_0000));
        assert_eq!(&*ids.assign(Timestamp(0x1234_5678_9ABC)).id, "123456789ABC100000000");
    }
}

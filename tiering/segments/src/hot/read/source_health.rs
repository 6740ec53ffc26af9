//! Nodes that answer reads of replicas late, so that one that hangs delays few reads of clients.
//!
//! A node that has not answered a read in time is *late* for a while, or until it answers: it is asked last,
//! and by few reads at a time. So reads that wait for it leave most of the permits to the others. The state
//! is in memory; after a start no node is late.

use std::collections::BTreeMap;
use std::time::Duration;

use mlgw_common::ids::NodeId;
use mlgw_common::time::Instant;
use parking_lot::Mutex;

/// Time for which a node is late.
const LATE_TIME: Duration = Duration::from_secs(5);
/// Maximum number of reads at a time that wait for a late node.
const LATE_READS_MAX: usize = 8;

/// Lateness of the nodes from which replicas are read.
#[derive(Debug, Default)]
pub(super) struct SourceHealth {
    nodes: Mutex<BTreeMap<NodeId, SourceState>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct SourceState {
    late_until: Option<Instant>,
    reads: usize,
}

impl SourceState {
    fn is_late(&self, now: Instant) -> bool {
        self.late_until.is_some_and(|until| now < until)
    }
}

/// A read of a node in progress.
pub(super) struct SourceRead<'a> {
    health: &'a SourceHealth,
    node: NodeId,
}

impl SourceHealth {
    /// True while a node is late.
    pub(super) fn is_late(&self, node: NodeId) -> bool {
        self.nodes.lock().get(&node).is_some_and(|of| of.is_late(Instant::now()))
    }

    /// Begins a read of a node; `None` if the node is late and enough reads wait for it.
    pub(super) fn begin(&self, node: NodeId) -> Option<SourceRead<'_>> {
        let mut nodes = self.nodes.lock();
        let of = nodes.entry(node).or_default();
        if of.reads >= LATE_READS_MAX && of.is_late(Instant::now()) {
            return None;
        }
        of.reads += 1;
        Some(SourceRead { health: self, node })
    }

    /// Records that a node has not answered a read in time.
    pub(super) fn record_late(&self, node: NodeId) {
        self.nodes.lock().entry(node).or_default().late_until = Some(Instant::now() + LATE_TIME);
    }

    /// Records that a node has answered.
    pub(super) fn record_answer(&self, node: NodeId) {
        self.nodes.lock().entry(node).or_default().late_until = None;
    }
}

impl Drop for SourceRead<'_> {
    fn drop(&mut self) {
        self.health.nodes.lock().entry(self.node).or_default().reads -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::{LATE_READS_MAX, LATE_TIME, SourceHealth, SourceRead};
    use mlgw_common::ids::NodeId;
    use mlgw_common::time::sleep;

    #[tokio::test(start_paused = true)]
    async fn few_reads_wait_for_a_node_that_is_late() {
        let (health, node) = (SourceHealth::default(), NodeId(2));
        let begun = || health.begin(node).expect("it is not late");
        let mut reads: Vec<SourceRead<'_>> = (0..2 * LATE_READS_MAX).map(|_| begun()).collect();
        assert!(!health.is_late(node));
        health.record_late(node);
        assert!(health.is_late(node) && !health.is_late(NodeId(3)));
        assert!(health.begin(node).is_none() && health.begin(NodeId(3)).is_some());
        reads.truncate(LATE_READS_MAX - 1);
        reads.push(health.begin(node).expect("some reads find out if it answers again"));
        assert!(health.begin(node).is_none());
        sleep(LATE_TIME).await;
        assert!(!health.is_late(node) && health.begin(node).is_some());
        health.record_late(node);
        health.record_answer(node);
        assert!(!health.is_late(node) && health.begin(node).is_some());
    }
}

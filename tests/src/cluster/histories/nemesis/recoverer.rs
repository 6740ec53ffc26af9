//! The node that recovers the open segments of a writer is killed meanwhile, and the writer, which did not
//! answer, goes on afterwards with its old right to append.

use std::time::Duration;

use mlgw_common::time::{Instant, block_for};

use super::{Nemesis, POLL_INTERVAL};
use crate::cluster::testbed::SYSTEM_GROUP;

/// Longest wait until the recovery of the segments of a node that does not answer begins, and until it ends.
const RECOVERY_MAX: Duration = Duration::from_secs(20);
/// A line in the log of a node that begins to recover a segment.
const RECOVERS: &str = "recovers an open segment";
/// A line in the log of a node that has recovered a segment.
const RECOVERED: &str = "recovered an open segment";

impl Nemesis<'_> {
    /// A storage node hangs until the duty node recovers its open segments. The duty node is killed before it
    /// has the answers of all replicas, and starts again. When the segments are recovered, the node goes on.
    pub(super) fn kill_recoverer(&mut self) {
        let storage = self.cluster.storage();
        let duty = self.leader_of(SYSTEM_GROUP).unwrap_or(storage[0]);
        let writer = storage.iter().copied().rev().find(|id| *id != duty).expect("there are others");
        let third = storage.iter().copied().find(|id| ![duty, writer].contains(id)).expect("a third one");
        self.cluster.pause(writer);
        // Its requests in progress get no response in time, and further ones would only delay the clients.
        self.endpoints.remove(writer);
        let has_begun = self.until_logged(RECOVERS, &[(duty, self.logged(duty, RECOVERS))]);
        self.trace.add(&format!("node {duty} is killed; it recovers node {writer}: {has_begun}"));
        let before = self.logged(third, RECOVERED);
        self.kill(duty);
        block_for(POLL_INTERVAL);
        self.start(&[duty]);
        let has_ended = self.until_logged(RECOVERED, &[(duty, 0), (third, before)]);
        self.trace.add(&format!("the segments of node {writer} are recovered: {has_ended}"));
        self.cluster.resume(writer);
        self.until_runs(writer);
    }

    /// Number of times that a node has logged a text since its start.
    fn logged(&self, node: usize, text: &str) -> usize {
        self.cluster.process(node).log().matches(text).count()
    }

    /// Waits for a limited time until one of these nodes has logged a text more often than before.
    fn until_logged(&self, text: &str, before: &[(usize, usize)]) -> bool {
        let begun = Instant::now();
        while !before.iter().any(|(node, count)| self.logged(*node, text) > *count) {
            if begun.elapsed() > RECOVERY_MAX {
                return false;
            }
            block_for(POLL_INTERVAL);
        }
        true
    }
}

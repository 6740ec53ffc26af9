//! The node that recovers the open segments of a writer is killed meanwhile, and the writer, which did not
//! answer, goes on afterwards with its old right to append.

use std::time::Duration;

use mlgw_common::time::{Instant, block_for};

use super::{Nemesis, POLL_INTERVAL};
use crate::cluster::testbed::{SYSTEM_GROUP, put, until_served};

/// Longest wait until the recovery of the segments of a node that does not answer begins, and until it ends.
/// Both take seconds; the rest is for a busy machine.
const RECOVERY_MAX: Duration = Duration::from_secs(120);
/// A line in the log of a node that begins to recover a segment.
const RECOVERS: &str = "recovers an open segment";
/// Lines in the log of a node that has recovered a segment, or finds that another one has.
const RECOVERED: [&str; 2] = ["recovered an open segment", "an open segment was sealed by another node"];

impl Nemesis<'_> {
    /// A storage node hangs until another one recovers its open segments. That one is killed meanwhile, and
    /// starts again. When the segments are recovered, the node goes on.
    ///
    /// Panics if no recovery begins, or if it does not end after the kill.
    pub(super) fn kill_recoverer(&mut self) {
        let storage = self.cluster.storage();
        let duty = self.leader_of(SYSTEM_GROUP).unwrap_or(storage[0]);
        let writer = storage.iter().copied().rev().find(|id| *id != duty).expect("there are others");
        let third = storage.iter().copied().find(|id| ![duty, writer].contains(id)).expect("a third one");
        let left = [duty, third];
        // Its segment is open: nothing seals it before it is idle for long.
        let (client, key) = (self.cluster.client(writer), format!("to-recover-{}", self.trace.lines.len()));
        let what = format!("a write through node {writer}");
        self.cluster.block_on(until_served(&what, async || put(&client, &key).await));
        let [begun, ended] = [&[RECOVERS][..], &RECOVERED].map(|texts| left.map(|id| self.logged(id, texts)));
        self.cluster.pause(writer);
        // Its requests in progress get no response in time, and further ones would only delay the clients.
        self.endpoints.remove(writer);
        let begins = |this: &Self| (0..2).find(|at| this.logged(left[*at], &[RECOVERS]) > begun[*at]);
        let at = self.until_found("the recovery of a node that hangs begins", begins);
        let (recoverer, other) = (left[at], left[1 - at]);
        let of_earlier = |this: &Self| count(this.cluster.member(recoverer).earlier_log(), &RECOVERED);
        let before = of_earlier(self);
        self.kill(recoverer);
        let was_faster = of_earlier(self) > before + ended[at];
        self.trace.add(&format!(
            "node {recoverer} is killed while it recovers node {writer}; a segment was recovered before: \
             {was_faster}"
        ));
        block_for(POLL_INTERVAL);
        self.start(&[recoverer]);
        let is_ended = |this: &Self| {
            let of_other = this.logged(other, &RECOVERED) > ended[1 - at];
            (of_other || this.logged(recoverer, &RECOVERED) > 0 || was_faster).then_some(())
        };
        self.until_found("a recovery ends although the recoverer was killed", is_ended);
        self.cluster.resume(writer);
        self.until_runs(writer);
    }

    /// Number of times that a node has logged one of these texts since its start.
    fn logged(&self, node: usize, texts: &[&str]) -> usize {
        count(&self.cluster.process(node).log(), texts)
    }

    /// Waits until there is a result. Panics after a limited time.
    fn until_found<T>(&self, what: &str, find: impl Fn(&Self) -> Option<T>) -> T {
        let begun = Instant::now();
        loop {
            if let Some(found) = find(self) {
                return found;
            }
            assert!(begun.elapsed() < RECOVERY_MAX, "never: {what}");
            block_for(POLL_INTERVAL);
        }
    }
}

fn count(log: &str, texts: &[&str]) -> usize {
    texts.iter().map(|text| log.matches(text).count()).sum()
}

//! Nodes join and leave while clients use the cluster: a further storage node takes the place of one that is
//! drained, or that is lost with its disk.

use std::fs;
use std::time::Duration;

use super::Nemesis;
use crate::cluster::segment_files::MINUTELY_MAX;
use crate::cluster::testbed::{FIRST, wait_at_most, wait_until};

impl Nemesis<'_> {
    /// A further storage node joins; a node is drained and removed.
    pub(super) fn replace_node(&mut self, node: usize) {
        let (old, new) = (self.leaving_for(node), self.join());
        self.run(&["drain", &old.to_string()]);
        self.remove_drained(old, MINUTELY_MAX);
        self.cluster.replace_storage(old, new);
    }

    /// Waits until a node is drained, and removes it.
    pub(super) fn remove_drained(&mut self, old: usize, limit: Duration) {
        wait_at_most(limit, &format!("no segment and no set needs node {old}"), || {
            self.cluster.view(FIRST).leaving.iter().any(|left| (left.node, left.done) == (old, true))
        });
        self.trace.add(&format!("node {old} is drained"));
        self.endpoints.remove(old);
        self.run(&["remove", &old.to_string(), "--yes"]);
        self.until_removed(old);
        self.cluster.until_refused(old);
    }

    /// A further storage node joins; a node is killed, loses its disk, and is removed.
    pub(super) fn destroy_node(&mut self, node: usize) {
        let (old, new) = (self.leaving_for(node), self.join());
        self.kill(old);
        fs::remove_dir_all(&self.cluster.member(old).setup.data_dir).expect("removed");
        wait_until(&format!("node {old} does not answer"), || {
            self.cluster.view(FIRST).node(old).is_some_and(|node| node.reachable == Some(false))
        });
        self.run(&["remove", &old.to_string(), "--lost", "--yes"]);
        self.until_removed(old);
        self.cluster.replace_storage(old, new);
    }

    /// The storage node that leaves in place of `node`: neither the first one, to which the test sends its
    /// commands, nor that with the faulty disk, which must stay.
    pub(super) fn leaving_for(&mut self, node: usize) -> usize {
        let with_disk = self.disk.as_ref().map(|disk| disk.node);
        let may_leave = |id: &usize| *id != FIRST && Some(*id) != with_disk;
        let storage = self.cluster.storage().iter().rev().copied();
        let mut candidates = [node].into_iter().chain(storage).filter(may_leave);
        let leaving = candidates.next().expect("there are three storage nodes");
        self.trace.add(&format!("node {leaving} leaves"));
        leaving
    }

    /// Adds a storage node and waits until it is active.
    pub(super) fn join(&mut self) -> usize {
        self.cluster.join_stopped("storage");
        let new = self.cluster.ids().len();
        self.links.serve(self.cluster, new);
        self.start(&[new]);
        self.cluster.until_active(new);
        self.trace.add(&format!("node {new} has joined"));
        new
    }

    /// Runs `mlgw cluster …` against the first node.
    pub(super) fn run(&self, words: &[&str]) {
        let words = [&["cluster"], words].concat();
        let (output, status) = self.cluster.member(FIRST).setup.command(&words);
        assert_eq!(status, Some(0), "{words:?}: {output}");
    }

    fn until_removed(&self, node: usize) {
        wait_at_most(MINUTELY_MAX, &format!("node {node} is removed"), || {
            self.cluster.view(FIRST).node(node).is_some_and(|node| node.state == "removed")
        });
    }
}

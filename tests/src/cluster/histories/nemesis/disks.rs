//! Faults of the disk below a node, and disks that are lost or copied.

use std::fs;

use mlgw_common::time::block_for;

use super::{Nemesis, RemovedFile};
use crate::cluster::clocks::shift_clock;
use crate::cluster::histories::faults::PlannedFault;
use crate::cluster::segment_files::{is_equal_on, segment_files};
use crate::cluster::testbed::{TestMember, wait_until};
use crate::seed::Rng;
use crate::store::copy_directory;

/// Length of a segment file without records.
const HEADER_BYTES: u64 = 64;
/// Part of the reason for which a copy of a node ends.
const REFUSED_COPY: &str = "a peer has recorded a later start of this node";

impl Nemesis<'_> {
    /// The disk of a node is in trouble for a while. The node may end by itself.
    pub(super) fn trouble_disk(&mut self, node: usize, fault: &PlannedFault) {
        self.faulty_disk().begin(fault.kind, fault.choice);
        self.block_while_it_may_end(node, fault.duration);
        self.faulty_disk().heal();
        self.until_runs(node);
    }

    /// The power of the disk fails, and with it the node.
    pub(super) fn cut_power(&mut self, node: usize, fault: &PlannedFault) {
        self.kill(node);
        let cut = self.faulty_disk().cut_power(fault.choice);
        self.trace.add(&cut);
        // The file that sets the clock of the node is on that disk too.
        shift_clock(self.cluster, node, 0);
        block_for(fault.duration);
        self.start(&[node]);
    }

    fn faulty_disk(&mut self) -> &mut super::FaultyDisk {
        self.disk.as_deref_mut().expect("mixes with faults of disks have a cluster with a faulty disk")
    }

    /// Removes the file of a segment that every storage node has, so two copies are left.
    pub(super) fn remove_segment(&mut self, node: usize, choice: u64) {
        if !self.may_destroy_copies() {
            return;
        }
        let files = segment_files(self.cluster, node).into_iter();
        let stored = files.filter(|(_, length)| *length > HEADER_BYTES).map(|(name, _)| name);
        let is_whole = |name: &String| is_equal_on(self.cluster, self.cluster.storage(), name);
        let whole: Vec<String> = stored.filter(is_whole).collect();
        if whole.is_empty() {
            self.trace.add("no segment has three copies: nothing is removed");
            return;
        }
        let name = Rng::new(choice).pick(&whole).clone();
        let path = self.cluster.segments_dir(node).join(&name);
        match fs::remove_file(&path) {
            Ok(()) => {
                self.trace.add(&format!("{name} was removed"));
                self.trace.removed = Some(RemovedFile { node, name });
            }
            // The node may have removed it meanwhile.
            Err(error) => self.trace.add(&format!("{name} was not removed: {error}")),
        }
    }

    /// A node is killed and starts without its segments, as an operator makes it do after the loss of a disk.
    pub(super) fn wipe_segments(&mut self, node: usize) {
        if !self.may_destroy_copies() {
            return;
        }
        self.kill(node);
        let dir = self.cluster.segments_dir(node);
        fs::remove_dir_all(&dir).expect("removed");
        fs::create_dir(&dir).expect("made");
        self.cluster.adopt_segments(node);
        self.start(&[node]);
    }

    /// False if copies were lost before in this round: a second loss could be that of the last copies.
    fn may_destroy_copies(&mut self) -> bool {
        let is_first = !std::mem::replace(&mut self.trace.has_removed, true);
        if !is_first {
            self.trace.add("copies were lost before: nothing is removed");
        }
        is_first
    }

    /// Starts a copy of the disk of a node beside the node. Its peers refuse it.
    pub(super) fn start_clone(&mut self, node: usize) {
        let copy = self.copy_disk(node);
        assert_refused(&copy);
    }

    /// Kills a node and starts an old copy of its disk in its place. Its peers refuse it.
    pub(super) fn start_old_copy(&mut self, node: usize) {
        let copy = self.copy_disk(node);
        self.kill(node);
        assert_refused(&copy);
        self.start(&[node]);
    }

    /// Stops a node, copies its directory, and starts it. Returns when two peers know this start.
    fn copy_disk(&mut self, node: usize) -> TestMember {
        self.endpoints.remove(node);
        self.cluster.stop(node);
        let copy = self.cluster.new_member(&format!("copy-of-{node}-{}", self.trace.lines.len()));
        copy_directory(&self.cluster.member(node).setup.data_dir, &copy.setup.data_dir);
        self.start(&[node]);
        let peers = self.cluster.storage().iter().copied().filter(|id| *id != node);
        for peer in peers {
            wait_until(&format!("node {peer} reaches node {node} after its restart"), || {
                let view = self.view(peer);
                let reachable = view.and_then(|view| view.node(node)?.reachable);
                reachable == Some(true)
            });
        }
        copy
    }
}

/// Starts a copy of a node, asserts that it ends because peers refuse it, and removes it.
fn assert_refused(copy: &TestMember) {
    let mut running = copy.setup.spawn();
    let status = running.wait_exit();
    let log = running.log();
    assert!(!status.success() && log.contains(REFUSED_COPY), "{status:?}\n{log}");
    fs::remove_dir_all(&copy.setup.data_dir).expect("removed");
}

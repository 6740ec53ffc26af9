//! Carries out the faults of a round on a cluster, one after the other, and heals each.
//!
//! After a fault every node runs and reaches every other one. A node that an error of its disk has ended is
//! started again, as a service manager does. The trace has each fault with its time and its node, because the
//! targets depend on the leaders of that moment.
//!
//! - `disks`: faults of the disk below a node, lost and copied disks;
//! - `members`: nodes that join and leave;
//! - `moves`: groups move between sets of nodes, while nodes fail;
//! - `recoverer`: the duty node is killed while it recovers the segments of another one.

use std::fs;
use std::path::Path;
use std::time::Duration;

use http::Method;
use mlgw_common::time::{Instant, block_for, timeout};
use serde_json::Value;

use super::faults::{FaultKind, FaultTarget, PlannedFault};
use super::faulty_disk::FaultyDisk;
use super::links::{LinkDirection, NodeLinks};
use super::load::NodeEndpoints;
use super::recorder::HistoryRecorder;
use crate::cluster::clocks::shift_clock;
use crate::cluster::testbed::{GATEWAY, SYSTEM_GROUP, TestCluster, wait_until};
use crate::cluster::view::ClusterView;
use crate::seed::Rng;
use crate::server::get_text;

mod disks;
mod members;
mod moves;
mod recoverer;

/// Object groups of the cluster.
const OBJECT_GROUPS: [u32; 3] = [1, 2, 3];
/// Longest wait until a group has a leader. Another node is the target then.
const LEADER_MAX: Duration = Duration::from_secs(10);
/// Longest wait for a view of the cluster.
const VIEW_MAX: Duration = Duration::from_secs(2);
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Times for which a flapping link is down or up, in milliseconds.
const FLAP_MS: [u64; 2] = [50, 800];
/// Deviations of a wrong clock in seconds. Beyond a quarter of an hour its node refuses all signatures.
const WRONG_CLOCK_SECS: [i64; 4] = [60, -60, DUE_CLOCK_SECS, -DUE_CLOCK_SECS];
/// Deviation of the clock of the duty node, by which everything with a schedule is due (`due_work`).
const DUE_CLOCK_SECS: i64 = 3 * 24 * 60 * 60;

/// The faults of a round so far.
pub(super) struct NemesisTrace {
    started: Instant,
    pub(super) lines: Vec<String>,
    /// True after the only fault of a round that loses copies of segments.
    has_removed: bool,
    /// The file of a segment that was removed.
    removed: Option<RemovedFile>,
}

/// The file of a segment that was removed from a node.
struct RemovedFile {
    node: usize,
    name: String,
}

/// The cluster of a round, on which faults are carried out.
pub(super) struct Nemesis<'a> {
    pub(super) cluster: &'a mut TestCluster,
    pub(super) links: &'a NodeLinks,
    pub(super) endpoints: &'a NodeEndpoints,
    pub(super) recorder: &'a HistoryRecorder,
    pub(super) disk: Option<&'a mut FaultyDisk>,
    pub(super) trace: &'a mut NemesisTrace,
}

impl NemesisTrace {
    pub(super) fn new() -> Self {
        Self { started: Instant::now(), lines: Vec::new(), has_removed: false, removed: None }
    }

    fn add(&mut self, line: &str) {
        self.lines.push(format!("{:6.2} s  {line}", self.started.elapsed().as_secs_f64()));
    }

    /// True if a file that was removed is in its place again, or its segment is gone from every node.
    pub(super) fn is_removed_file_back(&self, cluster: &TestCluster) -> bool {
        let Some(RemovedFile { node, name }) = &self.removed else { return true };
        let has_file = |id: usize| cluster.segments_dir(id).join(name).exists();
        has_file(*node) || !cluster.storage().iter().any(|id| has_file(*id))
    }

    /// Writes the logs of all nodes into a directory.
    ///
    /// # Errors
    /// A file cannot be written.
    pub(super) fn keep_logs(&self, cluster: &TestCluster, dir: &Path) -> std::io::Result<()> {
        fs::create_dir_all(dir)?;
        for node in cluster.ids() {
            fs::write(dir.join(format!("node-{node}.log")), cluster.member(node).whole_log())?;
        }
        Ok(())
    }
}

impl Nemesis<'_> {
    /// Carries out a fault, heals it, and rests.
    pub(super) fn carry_out(&mut self, fault: &PlannedFault) {
        let node = match &self.disk {
            Some(disk) if fault.kind.is_of_disk() => disk.node,
            _ => self.node_of(fault.target),
        };
        let PlannedFault { kind, duration, .. } = *fault;
        let parts = self.parts_of(node);
        self.trace.add(&format!("{kind:?} of node {node} ({parts}) for {duration:?}"));
        match kind {
            FaultKind::Kill
            | FaultKind::KillTwo
            | FaultKind::KillRecoverer
            | FaultKind::Pause
            | FaultKind::Restart
            | FaultKind::RollingRestart
            | FaultKind::ClockJump => self.fault_of_process(node, fault),
            FaultKind::Isolate | FaultKind::Cut | FaultKind::Mute | FaultKind::Deafen | FaultKind::Flap => {
                self.fault_of_links(node, fault)
            }
            FaultKind::RemoveSegment => self.remove_segment(node, fault.choice),
            FaultKind::WipeSegments => self.wipe_segments(node),
            FaultKind::CloneDisk => self.start_clone(node),
            FaultKind::RestoreDisk => self.start_old_copy(node),
            FaultKind::SlowSyncs
            | FaultKind::FullDisk
            | FaultKind::FailingSegments
            | FaultKind::FailingDisk => self.trouble_disk(node, fault),
            FaultKind::PowerCut => self.cut_power(node, fault),
            FaultKind::ReplaceNode => self.replace_node(node),
            FaultKind::DestroyNode => self.destroy_node(node),
            FaultKind::GrowIntoSets => self.grow_into_sets(fault.choice),
            FaultKind::ReplaceInSets => self.replace_in_sets(node, fault.choice),
        }
        self.trace.add("healed");
        block_for(fault.rest);
    }

    fn fault_of_process(&mut self, node: usize, fault: &PlannedFault) {
        let duration = fault.duration;
        match fault.kind {
            FaultKind::KillTwo => {
                let second = self.second_of(node, fault.choice);
                self.kill_for(&[node, second], duration);
            }
            FaultKind::KillRecoverer => self.kill_recoverer(),
            FaultKind::Pause => {
                self.cluster.pause(node);
                block_for(duration);
                self.cluster.resume(node);
            }
            FaultKind::Restart => self.restart(node),
            FaultKind::RollingRestart => {
                let all = [self.cluster.storage(), &[GATEWAY]].concat();
                all.into_iter().for_each(|node| self.restart(node));
            }
            FaultKind::ClockJump => self.shift_clock(node, fault),
            FaultKind::Kill => self.kill_for(&[node], duration),
            other => panic!("{other:?} is no fault of a process"),
        }
    }

    fn fault_of_links(&self, node: usize, fault: &PlannedFault) {
        let others: Vec<usize> = self.cluster.ids().into_iter().filter(|id| *id != node).collect();
        let duration = fault.duration;
        match fault.kind {
            FaultKind::Cut => {
                let second = self.second_of(node, fault.choice);
                self.block_for(between(node, &[second]), duration);
            }
            FaultKind::Mute => {
                self.block_for(others.iter().map(|to| LinkDirection { from: node, to: *to }), duration);
            }
            FaultKind::Deafen => {
                self.block_for(others.iter().map(|from| LinkDirection { from: *from, to: node }), duration);
            }
            FaultKind::Flap => self.flap(node, &others, fault),
            FaultKind::Isolate => self.block_for(between(node, &others), duration),
            other => panic!("{other:?} is no fault of connections"),
        }
    }

    /// The clock of a node is wrong for a while, that of the duty node by days ahead. Nothing that is due by
    /// time happens, so no client may miss an object or an upload.
    fn shift_clock(&mut self, node: usize, fault: &PlannedFault) {
        let secs = match fault.target {
            FaultTarget::SystemLeader => DUE_CLOCK_SECS,
            FaultTarget::ObjectLeader | FaultTarget::Other => *Rng::new(fault.choice).pick(&WRONG_CLOCK_SECS),
        };
        self.trace.add(&format!("its clock is wrong by {secs} s"));
        self.recorder.clocks_jump();
        shift_clock(self.cluster, node, secs);
        block_for(fault.duration);
        shift_clock(self.cluster, node, 0);
        self.until_runs(node);
    }

    /// Describes the part of a node in the cluster at this moment.
    fn parts_of(&self, node: usize) -> String {
        let Some(view) = self.view(node) else { return "no answer".to_owned() };
        let led = view.groups.iter().filter(|group| group.leader == Some(node)).map(|group| group.id);
        let led: Vec<u32> = led.collect();
        let duty = if view.duty == Some(node) { "duty node, " } else { "" };
        format!("{duty}leads groups {led:?}")
    }

    /// Returns the node with this part.
    fn node_of(&self, target: FaultTarget) -> usize {
        let storage = self.cluster.storage();
        let system = self.leader_of(SYSTEM_GROUP).unwrap_or(storage[0]);
        let object = || {
            let leaders = OBJECT_GROUPS.iter().filter_map(|group| self.leader_of(*group));
            let next = storage.iter().copied().find(|id| *id != system).expect("there are others");
            leaders.into_iter().find(|leader| *leader != system).unwrap_or(next)
        };
        match target {
            FaultTarget::SystemLeader => system,
            FaultTarget::ObjectLeader => object(),
            FaultTarget::Other => {
                let object = object();
                let other = storage.iter().copied().find(|id| *id != system && *id != object);
                other.expect("there are three storage nodes")
            }
        }
    }

    /// Returns a further storage node.
    fn second_of(&self, node: usize, choice: u64) -> usize {
        let storage = self.cluster.storage().iter().copied();
        let others: Vec<usize> = storage.filter(|id| *id != node).collect();
        *Rng::new(choice).pick(&others)
    }

    /// Returns the leader of a group as a running node describes it; `None` if there is none for long.
    fn leader_of(&self, group: u32) -> Option<usize> {
        let begun = Instant::now();
        loop {
            let leader = self.cluster.running().into_iter().find_map(|id| {
                let groups = self.view(id)?.groups;
                // A node is sure of the groups that it leads itself.
                groups.into_iter().find(|found| found.id == group && found.leader == Some(id))?.leader
            });
            if leader.is_some() || begun.elapsed() > LEADER_MAX {
                return leader;
            }
            block_for(POLL_INTERVAL);
        }
    }

    /// Returns the cluster as a node describes it, if that answers in time.
    fn view(&self, id: usize) -> Option<ClusterView> {
        let client = self.cluster.process(id).admin_client();
        let answer = self.cluster.block_on(async {
            timeout(VIEW_MAX, client.call_admin(Method::GET, "/v1/cluster", &Value::Null)).await
        });
        serde_json::from_value(answer.ok()?.ok()?).ok()
    }

    fn kill_for(&mut self, nodes: &[usize], duration: Duration) {
        nodes.iter().for_each(|node| self.kill(*node));
        block_for(duration);
        self.start(nodes);
    }

    fn kill(&mut self, node: usize) {
        self.cluster.kill(node);
        self.endpoints.remove(node);
    }

    fn restart(&mut self, node: usize) {
        self.endpoints.remove(node);
        self.cluster.stop(node);
        self.start(&[node]);
    }

    /// Starts nodes, which may need each other for a majority.
    fn start(&mut self, nodes: &[usize]) {
        for node in nodes {
            self.links.spawn(self.cluster, *node);
        }
        for node in nodes {
            self.cluster.until_ready(*node);
            self.endpoints.set(*node, self.cluster.client(*node));
        }
    }

    fn block_for(&self, directions: impl IntoIterator<Item = LinkDirection>, duration: Duration) {
        self.links.block(directions);
        block_for(duration);
        self.links.open();
    }

    fn flap(&self, node: usize, others: &[usize], fault: &PlannedFault) {
        let (begun, mut rng) = (Instant::now(), Rng::new(fault.choice));
        let [shortest, longest] = FLAP_MS;
        let mut pause = || Duration::from_millis(shortest + rng.below(longest - shortest));
        while begun.elapsed() < fault.duration {
            self.block_for(between(node, others), pause());
            block_for(pause());
        }
    }

    /// Waits until a node runs and is ready. If it has ended by itself, it is started again.
    fn until_runs(&mut self, node: usize) {
        wait_until(&format!("node {node} is ready"), || {
            self.note_end(node);
            if !self.cluster.running().contains(&node) {
                self.links.spawn(self.cluster, node);
                self.cluster.until_listening(node);
            }
            let ready = get_text(self.cluster.process(node).admin, "/readyz");
            ready.is_ok_and(|ready| ready.starts_with("HTTP/1.1 200"))
        });
        self.endpoints.set(node, self.cluster.client(node));
    }

    /// Notes it if a node has ended by itself. No client uses it then.
    fn note_end(&mut self, node: usize) {
        if self.cluster.take_ended(node).is_some() {
            self.endpoints.remove(node);
            self.trace.add(&format!("node {node} has ended by itself"));
        }
    }

    /// Waits for a time, in which a node may end by itself.
    fn block_while_it_may_end(&mut self, node: usize, duration: Duration) {
        let begun = Instant::now();
        while begun.elapsed() < duration {
            self.note_end(node);
            block_for(POLL_INTERVAL);
        }
    }
}

/// Both directions between a node and others.
pub(super) fn between(node: usize, others: &[usize]) -> Vec<LinkDirection> {
    let both =
        |other: &usize| [LinkDirection { from: node, to: *other }, LinkDirection { from: *other, to: node }];
    others.iter().flat_map(both).collect()
}

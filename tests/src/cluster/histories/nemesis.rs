//! Carries out the faults of a round on a cluster, one after the other, and heals each.
//!
//! After a fault every node runs and reaches every other one. The trace has each fault with its time and its
//! node, because the targets depend on the leaders of that moment.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use http::Method;
use mlgw_common::time::{Instant, block_for, timeout};
use serde_json::Value;

use super::faults::{FaultKind, FaultTarget, PlannedFault};
use super::links::{LinkDirection, NodeLinks};
use super::load::NodeEndpoints;
use crate::cluster::segment_files::{is_equal_on, segment_files};
use crate::cluster::testbed::{STORAGE, SYSTEM_GROUP, TestCluster};
use crate::cluster::view::ClusterView;
use crate::seed::Rng;

/// Object groups of the cluster.
const OBJECT_GROUPS: [u32; 3] = [1, 2, 3];
/// Longest wait until a group has a leader. Another node is the target then.
const LEADER_MAX: Duration = Duration::from_secs(10);
/// Longest wait for a view of the cluster.
const VIEW_MAX: Duration = Duration::from_secs(2);
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Times for which a flapping link is down or up, in milliseconds.
const FLAP_MS: [u64; 2] = [50, 800];
/// Length of a segment file without records.
const HEADER_BYTES: u64 = 64;

/// The faults of a round so far, and the logs of processes that have ended.
pub(super) struct NemesisTrace {
    started: Instant,
    pub(super) lines: Vec<String>,
    /// Logs by node.
    ended_logs: BTreeMap<usize, String>,
    has_removed: bool,
}

/// The cluster of a round, on which faults are carried out.
pub(super) struct Nemesis<'a> {
    pub(super) cluster: &'a mut TestCluster,
    pub(super) links: &'a NodeLinks,
    pub(super) endpoints: &'a NodeEndpoints,
    pub(super) trace: &'a mut NemesisTrace,
}

impl NemesisTrace {
    pub(super) fn new() -> Self {
        let (started, lines, ended_logs) = (Instant::now(), Vec::new(), BTreeMap::new());
        Self { started, lines, ended_logs, has_removed: false }
    }

    fn add(&mut self, line: &str) {
        self.lines.push(format!("{:6.2} s  {line}", self.started.elapsed().as_secs_f64()));
    }

    /// Writes the logs of all nodes into a directory.
    ///
    /// # Errors
    /// A file cannot be written.
    pub(super) fn keep_logs(&self, cluster: &TestCluster, dir: &Path) -> std::io::Result<()> {
        fs::create_dir_all(dir)?;
        for node in cluster.ids() {
            let mut log = self.ended_logs.get(&node).cloned().unwrap_or_default();
            if cluster.running().contains(&node) {
                log.push_str(&cluster.process(node).log());
            }
            fs::write(dir.join(format!("node-{node}.log")), log)?;
        }
        Ok(())
    }
}

impl Nemesis<'_> {
    /// Carries out a fault, heals it, and rests.
    pub(super) fn carry_out(&mut self, fault: &PlannedFault) {
        let node = self.node_of(fault.target);
        let PlannedFault { kind, target, duration, .. } = *fault;
        self.trace.add(&format!("{kind:?} of node {node} ({target:?}) for {duration:?}"));
        let others: Vec<usize> = self.cluster.ids().into_iter().filter(|id| *id != node).collect();
        let second = self.second_of(node, fault.choice);
        match kind {
            FaultKind::Kill => self.kill_for(&[node], duration),
            FaultKind::KillTwo => self.kill_for(&[node, second], duration),
            FaultKind::Pause => {
                self.cluster.pause(node);
                block_for(duration);
                self.cluster.resume(node);
            }
            FaultKind::Restart => self.restart(node),
            FaultKind::Isolate => self.block_for(between(node, &others), duration),
            FaultKind::Cut => self.block_for(between(node, &[second]), duration),
            FaultKind::Mute => {
                self.block_for(others.iter().map(|to| LinkDirection { from: node, to: *to }), duration);
            }
            FaultKind::Deafen => {
                self.block_for(others.iter().map(|from| LinkDirection { from: *from, to: node }), duration);
            }
            FaultKind::Flap => self.flap(node, &others, fault),
            FaultKind::RemoveSegment => self.remove_segment(node, fault.choice),
        }
        self.trace.add("healed");
        block_for(fault.rest);
    }

    /// Returns the node with this part.
    fn node_of(&self, target: FaultTarget) -> usize {
        let system = self.leader_of(SYSTEM_GROUP).unwrap_or(STORAGE[0]);
        let object = || {
            let leaders = OBJECT_GROUPS.iter().filter_map(|group| self.leader_of(*group));
            let next = STORAGE[system % STORAGE.len()];
            leaders.into_iter().find(|leader| *leader != system).unwrap_or(next)
        };
        match target {
            FaultTarget::SystemLeader => system,
            FaultTarget::ObjectLeader => object(),
            FaultTarget::Other => {
                let object = object();
                let other = STORAGE.into_iter().find(|id| *id != system && *id != object);
                other.expect("there are three storage nodes")
            }
        }
    }

    /// Returns a further storage node.
    fn second_of(&self, node: usize, choice: u64) -> usize {
        let others: Vec<usize> = STORAGE.into_iter().filter(|id| *id != node).collect();
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
        for node in nodes {
            self.keep_log(*node);
            self.cluster.kill(*node);
            self.endpoints.remove(*node);
        }
        block_for(duration);
        self.start(nodes);
    }

    fn restart(&mut self, node: usize) {
        self.keep_log(node);
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

    fn keep_log(&mut self, node: usize) {
        let log = self.cluster.process(node).log();
        self.trace.ended_logs.entry(node).or_default().push_str(&log);
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

    /// Removes the file of a segment that every storage node has, so two copies are left.
    fn remove_segment(&mut self, node: usize, choice: u64) {
        if std::mem::replace(&mut self.trace.has_removed, true) {
            self.trace.add("a segment was removed before: nothing is removed");
            return;
        }
        let files = segment_files(self.cluster, node).into_iter();
        let stored = files.filter(|(_, length)| *length > HEADER_BYTES).map(|(name, _)| name);
        let whole: Vec<String> = stored.filter(|name| is_equal_on(self.cluster, &STORAGE, name)).collect();
        if whole.is_empty() {
            self.trace.add("no segment has three copies: nothing is removed");
            return;
        }
        let name = Rng::new(choice).pick(&whole);
        let path = self.cluster.segments_dir(node).join(name);
        match fs::remove_file(&path) {
            Ok(()) => self.trace.add(&format!("{name} was removed")),
            // The node may have removed it meanwhile.
            Err(error) => self.trace.add(&format!("{name} was not removed: {error}")),
        }
    }
}

/// Both directions between a node and others.
pub(super) fn between(node: usize, others: &[usize]) -> Vec<LinkDirection> {
    let both =
        |other: &usize| [LinkDirection { from: node, to: *other }, LinkDirection { from: *other, to: node }];
    others.iter().flat_map(both).collect()
}

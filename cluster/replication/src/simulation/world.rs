//! The world of a schedule: nodes with memory and disks, messages, the records of the system group, and
//! events in the order of time.

use super::faults::Swarm;
use super::replicas::{SimFile, SimFollowed};
use super::writers::SimWriter;
use crate::health::PeerHealth;
use crate::primary::PrimaryEffect;
use crate::recovery::ClosedAnswer;
use crate::repair::{RepairTask, ReplicaFacts};
use crate::rules::{ReplicationRule, ReplicationRules};
use fastrand::Rng;
use mlgw_common::{NodeId, SegmentId};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Time between two ticks.
pub(super) const TICK_MS: u64 = 100;
/// Minimum write quorum of a segment.
pub(super) const QUORUM: usize = 2;
/// Most events of a schedule; more mean that it never ends.
const EVENTS_MAX: u64 = 400_000;

#[derive(Debug)]
pub(super) enum Event {
    Tick,
    Append,
    Fault,
    Restart(NodeId),
    Deliver {
        from: NodeId,
        to: NodeId,
        session: Session,
        message: Message,
    },
    /// A node sees that its connection to a peer is gone.
    Broken {
        node: NodeId,
        start: u32,
        peer: NodeId,
    },
    /// A call on the file of a followed replica has ended.
    Written {
        node: NodeId,
        start: u32,
        segment: SegmentId,
        end: u64,
    },
    /// A write of a primary to its own file has ended.
    OwnWritten {
        node: NodeId,
        start: u32,
        segment: SegmentId,
        end: u64,
    },
    Propose {
        node: NodeId,
        start: u32,
        command: Command,
    },
    Commit {
        node: NodeId,
        start: u32,
        command: Command,
    },
    Repaired {
        node: NodeId,
        start: u32,
        task: RepairTask,
    },
    Scrub {
        node: NodeId,
        segment: SegmentId,
    },
}

#[derive(Clone, Debug)]
pub(super) enum Message {
    Open(SegmentId),
    /// Bytes up to an end follow on the stream of a segment.
    Frame(SegmentId, u64),
    Acknowledge(SegmentId, u64),
    /// The follower has ended its replica, or did not open it.
    Ended(SegmentId),
    Close(SegmentId),
    Closed(SegmentId, ClosedAnswer),
}

#[derive(Clone, Debug)]
pub(super) enum Command {
    Create { segment: SegmentId, replicas: Vec<NodeId> },
    Seal { segment: SegmentId, length: u64, replicas: Vec<ReplicaFacts>, by: SealedBy },
    Replace { segment: SegmentId, changes: u64, replicas: Vec<ReplicaFacts> },
}

/// The origin of a seal.
#[derive(Clone, Debug)]
pub(super) enum SealedBy {
    Primary,
    /// A recovery, and the nodes whose answers stated damage.
    Recovery(Vec<NodeId>),
}

/// A connection: the processes at its ends, that of the lower node first, and its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Session {
    starts: (u32, u32),
    number: u64,
}

/// A node. All but `start` and `disk` ends with its process.
#[derive(Debug)]
pub(super) struct SimNode {
    pub(super) is_up: bool,
    pub(super) start: u32,
    pub(super) disk: BTreeMap<SegmentId, SimFile>,
    pub(super) writers: BTreeMap<SegmentId, SimWriter>,
    /// Segments that this process has created or proposed.
    pub(super) created: BTreeSet<SegmentId>,
    pub(super) is_creating: bool,
    pub(super) followed: BTreeMap<SegmentId, SimFollowed>,
    /// Requests to close that wait, with their senders.
    pub(super) closings: Vec<(SegmentId, NodeId)>,
    pub(super) recoveries: BTreeMap<SegmentId, (u64, BTreeMap<NodeId, ClosedAnswer>)>,
    pub(super) busy: BTreeSet<SegmentId>,
    pub(super) health: PeerHealth,
    pub(super) unreachable_since: BTreeMap<NodeId, u64>,
    pub(super) last_acknowledged: u64,
    /// Longest time between two acknowledgements, after a while.
    pub(super) longest_pause: u64,
    pub(super) slow_network_ms: u64,
    pub(super) slow_disk_ms: u64,
}

/// The record of a segment.
#[derive(Clone, Debug)]
pub(super) struct SimRecord {
    pub(super) replicas: Vec<ReplicaFacts>,
    pub(super) sealed: Option<u64>,
    pub(super) changes: u64,
}

/// Facts that no node knows.
#[derive(Debug, Default)]
pub(super) struct Truth {
    pub(super) acknowledged: BTreeMap<SegmentId, u64>,
    pub(super) owners: BTreeMap<SegmentId, NodeId>,
    /// Write quorums, as recorded.
    pub(super) quorums: BTreeMap<SegmentId, usize>,
    /// Ends that closed replicas with a file have stated; with their uncertain bytes if they lost some.
    pub(super) closed: BTreeMap<SegmentId, BTreeMap<NodeId, u64>>,
    /// Nodes that have lost a replica, or a part of it.
    pub(super) losses: BTreeMap<SegmentId, BTreeSet<NodeId>>,
    /// Nodes that have lost a file that no record lists yet.
    pub(super) unlisted_losses: BTreeMap<SegmentId, BTreeSet<NodeId>>,
    /// Segments that lost so many replicas at some time that bytes may be gone, whatever is listed later.
    pub(super) unguaranteed: BTreeSet<SegmentId>,
}

pub(super) struct World {
    pub(super) rules: ReplicationRules,
    pub(super) rng: Rng,
    pub(super) now: u64,
    pub(super) is_calm: bool,
    pub(super) swarm: Swarm,
    pub(super) nodes: BTreeMap<NodeId, SimNode>,
    pub(super) records: BTreeMap<SegmentId, SimRecord>,
    pub(super) truth: Truth,
    /// Pairs without a connection, and nodes that do not reach the system group.
    pub(super) broken: BTreeSet<(NodeId, NodeId)>,
    pub(super) cut_off: BTreeSet<NodeId>,
    /// Nodes that are drained.
    pub(super) leaving: BTreeSet<NodeId>,
    pub(super) removed: BTreeSet<NodeId>,
    /// Nodes of the set of all segments, once it has a row.
    pub(super) set: Option<Vec<NodeId>>,
    /// Nodes that were leaving, or outside of the set, at any time.
    pub(super) has_left: BTreeSet<NodeId>,
    pub(super) next_segment: u64,
    pub(super) trace: Vec<String>,
    pub(super) violation: Option<String>,
    numbers: BTreeMap<(NodeId, NodeId), u64>,
    arrivals: BTreeMap<(NodeId, NodeId), u64>,
    events: BTreeMap<(u64, u64), Event>,
    handled: u64,
}

impl World {
    pub(super) fn new(seed: u64, rules: ReplicationRules) -> Self {
        let mut rng = Rng::with_seed(seed);
        let swarm = Swarm::choose(&mut rng);
        let mut world = Self {
            rules,
            rng,
            now: 0,
            is_calm: false,
            nodes: BTreeMap::new(),
            records: BTreeMap::new(),
            truth: Truth::default(),
            broken: BTreeSet::new(),
            cut_off: BTreeSet::new(),
            leaving: BTreeSet::new(),
            removed: BTreeSet::new(),
            set: None,
            has_left: BTreeSet::new(),
            next_segment: 1,
            trace: Vec::new(),
            violation: None,
            numbers: BTreeMap::new(),
            arrivals: BTreeMap::new(),
            events: BTreeMap::new(),
            handled: 0,
            swarm,
        };
        for node in 1..=world.swarm.nodes {
            let fresh = world.fresh_node(NodeId(node), 1, BTreeMap::new());
            world.nodes.insert(NodeId(node), fresh);
        }
        world.slow_down();
        world.schedule(0, Event::Tick);
        world.schedule(1, Event::Append);
        world.schedule(50, Event::Fault);
        world
    }

    pub(super) fn fresh_node(&self, node: NodeId, start: u32, disk: BTreeMap<SegmentId, SimFile>) -> SimNode {
        let mut health = PeerHealth::by(self.rules);
        let peers = (1..=self.swarm.nodes).map(NodeId).filter(|peer| *peer != node);
        health.set_peers(&peers.collect());
        SimNode {
            is_up: true,
            start,
            disk,
            writers: BTreeMap::new(),
            created: BTreeSet::new(),
            is_creating: false,
            followed: BTreeMap::new(),
            closings: Vec::new(),
            recoveries: BTreeMap::new(),
            busy: BTreeSet::new(),
            health,
            unreachable_since: BTreeMap::new(),
            last_acknowledged: 0,
            longest_pause: 0,
            slow_network_ms: 0,
            slow_disk_ms: 0,
        }
    }

    pub(super) fn node(&mut self, node: NodeId) -> &mut SimNode {
        self.nodes.get_mut(&node).expect("nodes that are named exist")
    }

    pub(super) fn ids(&self) -> Vec<NodeId> {
        self.nodes.keys().copied().collect()
    }

    pub(super) fn is_process(&self, node: NodeId, start: u32) -> bool {
        self.nodes[&node].is_up && self.nodes[&node].start == start
    }

    pub(super) fn clock(&self) -> Duration {
        Duration::from_millis(self.now)
    }

    pub(super) fn schedule(&mut self, delay: u64, event: Event) {
        self.handled += 1;
        self.events.insert((self.now + delay, self.handled), event);
    }

    pub(super) fn note(&mut self, what: impl std::fmt::Display) {
        self.trace.push(format!("{} ms: {what}", self.now));
    }

    pub(super) fn violated(&mut self, what: impl Into<String>) {
        self.violation.get_or_insert(format!("{} (at {} ms)", what.into(), self.now));
    }

    /// The connection between two nodes, if there is one.
    pub(super) fn session(&self, one: NodeId, two: NodeId) -> Option<Session> {
        let pair = (one.min(two), one.max(two));
        if !self.nodes[&one].is_up || !self.nodes[&two].is_up || self.broken.contains(&pair) {
            return None;
        }
        let number = self.numbers.get(&pair).copied().unwrap_or(0);
        Some(Session { starts: (self.nodes[&pair.0].start, self.nodes[&pair.1].start), number })
    }

    /// Breaks a connection; both ends see that after a while.
    pub(super) fn end_sessions(&mut self, one: NodeId, two: NodeId) {
        *self.numbers.entry((one.min(two), one.max(two))).or_default() += 1;
        for (node, peer) in [(one, two), (two, one)] {
            let (delay, start) = (self.rng.u64(0..300), self.nodes[&node].start);
            self.schedule(delay, Event::Broken { node, start, peer });
        }
    }

    /// Sends a message on a connection that may be gone already. Messages arrive in order; requests to close
    /// have connections of their own.
    pub(super) fn send(&mut self, from: NodeId, to: NodeId, session: Session, message: Message) {
        let slow = self.nodes[&from].slow_network_ms.max(self.nodes[&to].slow_network_ms);
        let slow = if from == to { 0 } else { slow };
        let mut arrival = self.now + slow + self.rng.u64(1..20);
        if !matches!(message, Message::Close(_) | Message::Closed(..)) {
            let last = self.arrivals.entry((from, to)).or_default();
            arrival = arrival.max(*last);
            *last = arrival;
        }
        self.schedule(arrival - self.now, Event::Deliver { from, to, session, message });
    }

    /// Sends a command to the system group, which may record it late, also after the end of its node.
    pub(super) fn propose(&mut self, node: NodeId, command: Command) {
        let start = self.nodes[&node].start;
        if self.cut_off.contains(&node) {
            return self.schedule(TICK_MS, Event::Propose { node, start, command });
        }
        let is_late = self.rng.u64(0..1000) < self.swarm.late_commits;
        let delay = if is_late { self.rng.u64(300..3_000) } else { self.rng.u64(3..60) };
        self.schedule(delay, Event::Commit { node, start, command });
    }

    /// Runs events for a time, or until something is violated or done.
    pub(super) fn run_for(&mut self, time: u64, is_done: impl Fn(&Self) -> bool) {
        let end = self.now + time;
        while self.violation.is_none() && self.now < end {
            let Some(((at, _), event)) = self.events.pop_first() else { return };
            self.now = at;
            assert!(self.handled < EVENTS_MAX, "a schedule ends");
            let is_tick = matches!(event, Event::Tick);
            self.handle(event);
            if is_tick && is_done(self) {
                return;
            }
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Tick => self.tick(),
            Event::Append => self.append_somewhere(),
            Event::Fault => self.fault(),
            Event::Restart(node) => self.restart(node),
            Event::Deliver { from, to, session, message } => self.deliver(from, to, session, message),
            Event::Scrub { node, segment } => self.scrub(node, segment),
            Event::Commit { node, start, command } => self.commit(node, start, command),
            Event::Broken { node, start, .. }
            | Event::Written { node, start, .. }
            | Event::OwnWritten { node, start, .. }
            | Event::Propose { node, start, .. }
            | Event::Repaired { node, start, .. }
                if !self.is_process(node, start) => {}
            Event::Broken { node, peer, .. } => self.connection_ended(node, peer),
            Event::Written { node, segment, end, .. } => self.written(node, segment, end),
            Event::OwnWritten { node, segment, end, .. } => self.own_written(node, segment, end),
            Event::Propose { node, command, .. } => self.propose(node, command),
            Event::Repaired { node, task, .. } => self.repaired(node, &task),
        }
    }

    fn tick(&mut self) {
        for node in self.ids() {
            if self.nodes[&node].is_up {
                self.writers_tick(node);
                self.recoveries_tick(node);
                self.repairs_tick(node);
            }
        }
        self.schedule(TICK_MS, Event::Tick);
    }

    fn deliver(&mut self, from: NodeId, to: NodeId, session: Session, message: Message) {
        let current = self.session(from, to);
        // Without the rule a stream goes on with the next process.
        let is_stream = matches!(message, Message::Frame(..) | Message::Acknowledge(..));
        let survives = is_stream && !self.rules.has(ReplicationRule::RightEndsWithRestart);
        if current != Some(session) && (current.is_none() || !survives) {
            return;
        }
        match message {
            Message::Open(segment) => self.receive_open(to, from, session, segment),
            Message::Frame(segment, end) => self.receive_frame(to, segment, end),
            Message::Acknowledge(segment, length) => self.acknowledged(to, from, segment, length),
            Message::Ended(segment) => self.follower_ended(to, from, segment),
            Message::Close(segment) => self.receive_close(to, from, segment),
            Message::Closed(segment, answer) => {
                if let Some((_, answers)) = self.node(to).recoveries.get_mut(&segment) {
                    answers.insert(from, answer);
                }
            }
        }
    }

    fn connection_ended(&mut self, node: NodeId, peer: NodeId) {
        let current = self.session(node, peer);
        let ends: Vec<SegmentId> = self.nodes[&node].writers.keys().copied().collect();
        for segment in ends {
            let link = self.nodes[&node].writers.get(&segment).and_then(|writer| writer.links.get(&peer));
            if link.is_some_and(|link| Some(link.session) != current) {
                self.follower_ended(node, peer, segment);
            }
        }
        for followed in self.node(node).followed.values_mut() {
            if followed.writer == Some(peer) && followed.session != current {
                followed.state.end_right("the stream of the writer broke off");
            }
        }
        self.answer_closings(node);
    }

    /// Applies a command of the system group.
    fn commit(&mut self, node: NodeId, start: u32, command: Command) {
        self.note(format_args!("{command:?} of {node}"));
        match command {
            Command::Create { segment, replicas } => {
                let replica = |node: &NodeId| ReplicaFacts { node: *node, is_suspect: false };
                let listed = replicas.iter().map(replica).collect();
                self.records.insert(segment, SimRecord { replicas: listed, sealed: None, changes: 0 });
                self.truth.owners.insert(segment, node);
                self.truth.quorums.insert(segment, self.swarm.quorum_of(replicas.len()));
                // Its node may be removed by now.
                for removed in self.removed.iter().filter(|of| replicas.contains(of)) {
                    self.truth.losses.entry(segment).or_default().insert(*removed);
                }
                if self.is_process(node, start) {
                    self.create_files(node, segment, replicas);
                }
            }
            Command::Seal { segment, length, replicas, by } => {
                let first_decides = self.rules.has(ReplicationRule::FirstSealDecides);
                let Some(record) = self.records.get_mut(&segment) else { return };
                match record.sealed {
                    Some(_) if first_decides => return,
                    Some(first) if first != length => return self.violated("a seal changed"),
                    _ if length == 0 => {
                        self.records.remove(&segment);
                    }
                    _ => {
                        let changes = record.changes + 1;
                        let sealed = SimRecord { replicas, sealed: Some(length), changes };
                        let before = std::mem::replace(record, sealed);
                        self.check_seal(segment, &before.listed(), &by);
                    }
                }
                self.check(segment);
            }
            Command::Replace { segment, changes, replicas } => {
                let compares = self.rules.has(ReplicationRule::ChangesCompared);
                let own_work = self.is_process(node, start) && self.node(node).busy.remove(&segment);
                let Some(record) = self.records.get_mut(&segment) else { return };
                if compares && record.changes != changes {
                    return;
                }
                record.changes += 1;
                let before = std::mem::replace(&mut record.replicas, replicas);
                let after = record.replicas.clone();
                self.count_late_losses(segment, &after);
                self.check_replacement(segment, &before, &after);
                let Some(record) = self.records.get(&segment) else { return };
                let stays = |of: &ReplicaFacts| record.replicas.iter().any(|other| other.node == of.node);
                let dropped = before.iter().any(|of| of.node == node && !stays(of));
                if own_work && dropped {
                    self.node(node).disk.remove(&segment);
                }
                // The file may have been damaged or lost after the command was proposed.
                self.schedule(1_000, Event::Scrub { node, segment });
                self.check(segment);
            }
        }
    }

    /// Carries out the effects of a primary.
    pub(super) fn carry_out(&mut self, node: NodeId, segment: SegmentId, effects: Vec<PrimaryEffect>) {
        for effect in effects {
            match effect {
                PrimaryEffect::Acknowledge { length } => self.acknowledge(node, segment, length),
                PrimaryEffect::Dropped { node: follower } => {
                    if let Some(writer) = self.node(node).writers.get_mut(&segment) {
                        writer.links.remove(&follower);
                    }
                }
                PrimaryEffect::ProposeSeal(proposal) => {
                    let replica = |node: &NodeId| ReplicaFacts { node: *node, is_suspect: false };
                    let replicas = proposal.replicas.iter().map(replica).collect();
                    let length = proposal.length;
                    self.propose(node, Command::Seal { segment, length, replicas, by: SealedBy::Primary });
                    if self.rules.has(ReplicationRule::NothingAfterProposal) {
                        self.node(node).writers.remove(&segment);
                    }
                }
            }
        }
    }
}

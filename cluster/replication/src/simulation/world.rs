//! The world of a schedule: nodes with their memory and disks, events in the order of time, and the phases of a
//! run.

use super::copies::FailedRepair;
use super::disk::SimFile;
use super::faults::Swarm;
use super::group::{Proposal, ProposalOutcome, Purpose, SimGroup, SimRecord};
use super::network::{Envelope, Message, Network, Session};
use super::primaries::SimPrimary;
use super::recoveries::SimRecovery;
use super::replicas::{IoOperation, SimReplica};
use super::truth::Truth;
use super::violation::{Violation, ViolationKind};
use crate::health::PeerHealth;
use crate::repair::RepairTask;
use crate::rules::ReplicationRules;
use fastrand::Rng;
use mlgw_common::{NodeId, SegmentId};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Time between two ticks.
pub(super) const TICK_MS: u64 = 100;

/// Most events of a schedule; more mean that it never ends.
const EVENTS_MAX: u64 = 400_000;

#[derive(Debug)]
pub(super) enum Event {
    Tick,
    Client,
    Fault,
    Restart { node: NodeId },
    Deliver(Box<Envelope>),
    Io { node: NodeId, start: u32, segment: SegmentId, life: u64, operation: Box<IoOperation> },
    PowerCut { node: NodeId, start: u32 },
    Proposed(Box<Proposal>),
    Commit(Box<Proposal>),
    Outcome { node: NodeId, start: u32, purpose: Purpose, outcome: ProposalOutcome },
    ReadRecord { node: NodeId, start: u32, segment: SegmentId },
    RepairDone { node: NodeId, start: u32, segment: SegmentId },
}

/// A node. All but `disk`, `records`, `applied` and `lost_before` ends with its process.
#[derive(Debug)]
pub(super) struct SimNode {
    pub(super) is_up: bool,
    /// Number of its process.
    pub(super) start: u32,
    pub(super) disk: BTreeMap<SegmentId, SimFile>,
    /// Applied records.
    pub(super) records: BTreeMap<SegmentId, SimRecord>,
    pub(super) applied: usize,
    /// Replicas of segments up to this one were lost with their directory.
    pub(super) lost_until: SegmentId,
    /// The leader and term that the node knows.
    pub(super) belief: (Option<NodeId>, u64),
    pub(super) replicas: BTreeMap<SegmentId, SimReplica>,
    pub(super) primaries: BTreeMap<SegmentId, SimPrimary>,
    pub(super) is_creating: bool,
    pub(super) recoveries: Vec<SimRecovery>,
    pub(super) attempts: u32,
    pub(super) repairs: BTreeMap<SegmentId, RepairTask>,
    /// Segments whose repair failed.
    pub(super) failed_repairs: BTreeMap<SegmentId, FailedRepair>,
    pub(super) health: PeerHealth,
    /// Since when each other node is unreachable.
    pub(super) unreachable_since: BTreeMap<NodeId, u64>,
    /// Additional time for each message and each operation of the disk.
    pub(super) slow_ms: u64,
    pub(super) hangs_until: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Faults,
    Calm,
}

pub(super) struct World {
    pub(super) rules: ReplicationRules,
    pub(super) rng: Rng,
    pub(super) now: u64,
    pub(super) phase: Phase,
    pub(super) swarm: Swarm,
    pub(super) nodes: BTreeMap<NodeId, SimNode>,
    pub(super) group: SimGroup,
    pub(super) network: Network,
    pub(super) truth: Truth,
    /// W of new segments is the number of their replicas, not 2.
    pub(super) has_quorum_of_all: bool,
    /// Segments whose primary the leader takes for gone.
    pub(super) suspected: BTreeSet<SegmentId>,
    /// Segments that changed since the last check.
    pub(super) touched: BTreeSet<SegmentId>,
    pub(super) trace: Vec<String>,
    pub(super) violation: Option<Violation>,
    events: BTreeMap<(u64, u64), Event>,
    sequence: u64,
    handled: u64,
}

impl World {
    pub(super) fn new(seed: u64, rules: ReplicationRules) -> Self {
        let mut rng = Rng::with_seed(seed);
        let swarm = Swarm::choose(&mut rng);
        let mut world = Self {
            rules,
            now: 0,
            phase: Phase::Faults,
            nodes: BTreeMap::new(),
            group: SimGroup::led_by(NodeId(1)),
            network: Network::new(swarm.bulk, swarm.late_opens),
            truth: Truth::default(),
            has_quorum_of_all: swarm.starts_with_quorum_of_all,
            suspected: BTreeSet::new(),
            touched: BTreeSet::new(),
            trace: Vec::new(),
            violation: None,
            events: BTreeMap::new(),
            sequence: 0,
            handled: 0,
            rng,
            swarm,
        };
        for node in 1..=world.swarm.nodes {
            world.add_node(NodeId(node));
        }
        world.schedule(0, Event::Tick);
        world.schedule(1, Event::Client);
        world.schedule(50, Event::Fault);
        world
    }

    /// Adds a node with an empty disk.
    pub(super) fn add_node(&mut self, node: NodeId) {
        let fresh = SimNode {
            is_up: true,
            start: 1,
            disk: BTreeMap::new(),
            records: BTreeMap::new(),
            applied: 0,
            lost_until: SegmentId(0),
            belief: (None, 0),
            replicas: BTreeMap::new(),
            primaries: BTreeMap::new(),
            is_creating: false,
            recoveries: Vec::new(),
            attempts: 0,
            repairs: BTreeMap::new(),
            failed_repairs: BTreeMap::new(),
            health: PeerHealth::by(self.rules),
            unreachable_since: BTreeMap::new(),
            slow_ms: 0,
            hangs_until: 0,
        };
        self.nodes.insert(node, fresh);
    }

    pub(super) fn node(&mut self, node: NodeId) -> &mut SimNode {
        self.nodes.get_mut(&node).expect("nodes that are named exist")
    }

    pub(super) fn is_up(&self, node: NodeId) -> bool {
        self.nodes.get(&node).is_some_and(|node| node.is_up)
    }

    pub(super) fn up_nodes(&self) -> Vec<NodeId> {
        self.nodes.iter().filter(|(_, node)| node.is_up).map(|(id, _)| *id).collect()
    }

    /// True if the process of this number runs.
    pub(super) fn is_process(&self, node: NodeId, start: u32) -> bool {
        self.nodes.get(&node).is_some_and(|node| node.is_up && node.start == start)
    }

    /// True if a message could pass between two nodes.
    pub(super) fn reaches(&self, from: NodeId, to: NodeId) -> bool {
        self.is_up(to) && self.network.is_linked(from, to)
    }

    pub(super) fn clock(&self) -> Duration {
        Duration::from_millis(self.now)
    }

    /// A number that was not used before.
    pub(super) fn next_number(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence
    }

    pub(super) fn schedule(&mut self, delay: u64, event: Event) {
        let number = self.next_number();
        self.events.insert((self.now + delay, number), event);
    }

    /// Adds an event to the trace.
    pub(super) fn note(&mut self, what: impl std::fmt::Display) {
        self.trace.push(format!("{} ms: {what}", self.now));
    }

    pub(super) fn violated(&mut self, kind: ViolationKind, what: impl std::fmt::Display) {
        let what = format_args!("{what} (at {} ms)", self.now);
        self.violation.get_or_insert_with(|| Violation::new(kind, what));
    }

    /// Runs events for a time, or until something is violated or done.
    pub(super) fn run_for(&mut self, time: u64, is_done: impl Fn(&Self) -> bool) {
        let end = self.now + time;
        while self.violation.is_none() {
            let Some(((at, _), event)) = self.events.pop_first() else { return };
            self.now = at;
            self.handled += 1;
            assert!(self.handled < EVENTS_MAX, "a schedule ends");
            self.handle(event);
            self.check_touched();
            if self.now >= end || self.phase == Phase::Calm && is_done(self) {
                return;
            }
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Tick => self.tick(),
            Event::Client => self.client(),
            Event::Fault => self.fault(),
            Event::Restart { node } => self.restart(node),
            Event::Deliver(envelope) => self.deliver(*envelope),
            Event::PowerCut { node, start } => {
                if self.is_process(node, start) {
                    self.power_cut(node);
                }
            }
            Event::Io { node, start, segment, life, operation } => {
                if self.is_process(node, start) {
                    self.io_ended(node, segment, life, *operation);
                }
            }
            Event::Proposed(proposal) => self.proposed(proposal),
            Event::Commit(proposal) => self.commit(proposal),
            Event::Outcome { node, start, purpose, outcome } => {
                if self.is_process(node, start) {
                    self.outcome(node, purpose, outcome);
                }
            }
            Event::ReadRecord { node, start, segment } => {
                if self.is_process(node, start) {
                    self.read_record(node, segment);
                }
            }
            Event::RepairDone { node, start, segment } => {
                if self.is_process(node, start) {
                    self.repair_done(node, segment);
                }
            }
        }
    }

    fn tick(&mut self) {
        self.watch_leader();
        self.replicate_log();
        for node in self.up_nodes() {
            self.watch_peers(node);
            self.primaries_tick(node);
            self.recoveries_tick(node);
            self.repairs_tick(node);
        }
        self.check_trailing();
        self.schedule(TICK_MS, Event::Tick);
    }

    /// Sends a message, if there is a connection.
    pub(super) fn send(&mut self, from: NodeId, to: NodeId, message: Message) {
        let Some(session) = self.session(from, to) else { return };
        let slow = self.nodes[&from].slow_ms.max(self.nodes[&to].slow_ms);
        let hang = self.nodes[&from].hangs_until.max(self.nodes[&to].hangs_until);
        let earliest = if from == to { self.now } else { (self.now + slow).max(hang) };
        let arrival = self.network.arrival(from, to, &message, earliest, &mut self.rng);
        let envelope = Envelope { from, to, session, message };
        self.schedule(arrival - self.now, Event::Deliver(Box::new(envelope)));
    }

    /// The connection between two nodes, if there is one.
    pub(super) fn session(&self, from: NodeId, to: NodeId) -> Option<Session> {
        if !self.is_up(from) || !self.reaches(from, to) {
            return None;
        }
        let link_life = self.network.link_life(from, to);
        Some(Session { from_start: self.nodes[&from].start, to_start: self.nodes[&to].start, link_life })
    }

    fn deliver(&mut self, envelope: Envelope) {
        let Envelope { from, to, session, message } = envelope;
        if self.session(from, to) != Some(session) {
            return;
        }
        match message {
            Message::Open { segment, epoch } => self.receive_open(to, from, segment, epoch),
            Message::Append { segment, epoch, stretch, cells } => {
                self.receive_append(to, from, segment, epoch, stretch, cells);
            }
            Message::Close { segment, epoch } => self.receive_close(to, from, segment, epoch),
            Message::Copy { segment, copy } => self.receive_copy(to, from, segment, copy),
            Message::OpenAnswer { segment, is_open } => self.open_answered(to, from, segment, is_open),
            Message::Acknowledge { segment, length } => self.acknowledged(to, from, segment, length),
            Message::AppendRefused { segment, refusal } => self.append_refused(to, from, segment, refusal),
            Message::CloseAnswer { segment, answer } => self.close_answered(to, segment, answer),
            Message::CopyDone { segment, copy } => self.copy_done(to, segment, copy),
            Message::ReplicaLost { segment, epoch, replica } => {
                self.replica_lost(to, segment, epoch, replica);
            }
            Message::CopyUnreadable { segment, copy, bad } => self.copy_unreadable(to, segment, copy, &bad),
        }
    }
}

//! The driver of primaries in the simulation: clients, connections to followers, and seals.

use super::disk::{Cell, bytes, cells, cells_of};
use super::group::{ProposalOutcome, Purpose, SimCommand, SimRecord};
use super::network::{Message, Session};
use super::replicas::{HEADER, IoOperation};
use super::violation::ViolationKind;
use super::world::{Event, Phase, World};
use crate::health::PeerChange;
use crate::primary::{PrimaryEffect, PrimarySegment, PrimaryStart, SealOutcome};
use crate::repair::COPIES;
use crate::stretch::Stretch;
use mlgw_common::{NodeId, SegmentId};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Most cells of a message.
const MESSAGE_CELLS_MAX: u64 = 8;

/// An open segment in the memory of its primary.
#[derive(Debug)]
pub(super) struct SimPrimary {
    pub(super) machine: PrimarySegment,
    record: SimRecord,
    /// The header and all records.
    stream: Vec<Cell>,
    /// Ends of all records.
    ends: Vec<u64>,
    /// Ends of the records that are not acknowledged.
    pending: Vec<u64>,
    pub(super) followers: BTreeMap<NodeId, SimFollower>,
    is_own_open: bool,
    pub(super) is_proposed: bool,
    full_at: usize,
}

/// A follower as its primary knows it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SimFollower {
    is_open: bool,
    /// The last request without an answer.
    outstanding: Option<Outstanding>,
    pub(super) acknowledged: u64,
}

#[derive(Clone, Copy, Debug)]
struct Outstanding {
    session: Session,
    sent_at: u64,
    to: u64,
}

impl World {
    /// Clients append to every node.
    pub(super) fn client(&mut self) {
        if self.phase == Phase::Calm {
            return;
        }
        for node in self.up_nodes() {
            let primaries = self.nodes[&node].primaries.iter();
            let open = primaries.filter(|(_, primary)| primary.machine.takes_appends()).map(|(id, _)| *id);
            match open.last() {
                Some(segment) => self.append_record(node, segment),
                None => self.create_segment(node),
            }
        }
        let delay = self.rng.u64(1..=self.swarm.client_ms * 2);
        self.schedule(delay, Event::Client);
    }

    fn create_segment(&mut self, node: NodeId) {
        if self.nodes[&node].is_creating {
            return;
        }
        let mut peers: Vec<NodeId> = self.nodes[&node].health.usable().into_iter().collect();
        self.rng.shuffle(&mut peers);
        peers.truncate(COPIES - 1);
        if peers.is_empty() {
            return;
        }
        let replicas: Vec<NodeId> = [node].into_iter().chain(peers).collect();
        let write_quorum = if self.has_quorum_of_all { replicas.len() } else { 2 };
        self.node(node).is_creating = true;
        self.propose(node, SimCommand::Create { primary: node, replicas, write_quorum }, Purpose::Create);
    }

    pub(super) fn create_outcome(&mut self, node: NodeId, outcome: ProposalOutcome) {
        self.node(node).is_creating = false;
        let ProposalOutcome::Applied { segment, .. } = outcome else { return };
        let record = self.nodes[&node].records[&segment].clone();
        if record.sealed.is_some() {
            return;
        }
        self.note(format_args!("{segment} is created"));
        if self.rng.u64(0..1_000) < self.swarm.suspect_at_once {
            self.suspected.insert(segment);
            // Often the primary cannot be reached either, and goes on.
            if let Some(leader) = self.group.leader.filter(|_| self.rng.bool()) {
                self.network.cut(node, leader);
            }
        }
        let (epoch, replicas) = (record.epoch, record.nodes());
        let start =
            PrimaryStart { segment, epoch, replicas: replicas.clone(), write_quorum: record.write_quorum };
        let mut primary = SimPrimary {
            machine: PrimarySegment::by(start, self.rules),
            record,
            stream: vec![Cell::Header],
            ends: vec![HEADER],
            pending: Vec::new(),
            followers: replicas[1..].iter().map(|node| (*node, SimFollower::default())).collect(),
            is_own_open: false,
            is_proposed: false,
            full_at: self.rng.usize(5..self.swarm.full_cells),
        };
        primary.machine.append(HEADER);
        self.node(node).primaries.insert(segment, primary);
        self.open_own(node, segment, epoch);
        let usable = self.nodes[&node].health.usable();
        for follower in &replicas[1..] {
            match usable.contains(follower) {
                true => self.send_open(node, *follower, segment),
                false => self.follower_failed(node, *follower, segment),
            }
        }
    }

    fn primary(&mut self, node: NodeId, segment: SegmentId) -> Option<&mut SimPrimary> {
        self.node(node).primaries.get_mut(&segment)
    }

    fn send_open(&mut self, node: NodeId, follower: NodeId, segment: SegmentId) {
        let Some(session) = self.session(node, follower) else { return };
        let sent_at = self.now;
        let Some(primary) = self.primary(node, segment) else { return };
        let epoch = primary.record.epoch;
        let outstanding = Some(Outstanding { session, sent_at, to: HEADER });
        primary.followers.insert(follower, SimFollower { outstanding, ..SimFollower::default() });
        self.send(node, follower, Message::Open { segment, epoch });
    }

    fn append_record(&mut self, node: NodeId, segment: SegmentId) {
        let size = self.rng.usize(1..=4);
        let Some(primary) = self.primary(node, segment).filter(|primary| primary.is_own_open) else { return };
        let (begin, epoch) = (primary.stream.len(), primary.record.epoch);
        let stretch = Stretch::from(bytes(begin)..bytes(begin + size));
        let record = self.truth.append(segment, begin, size);
        let cells: Vec<Cell> = (0..size).map(|index| Cell::Data { record, begin, size, index }).collect();
        let Some(primary) = self.primary(node, segment) else { return };
        primary.stream.extend(&cells);
        primary.ends.push(stretch.to);
        primary.pending.push(stretch.to);
        primary.machine.append(stretch.to);
        let is_full = primary.stream.len() >= primary.full_at;
        self.receive_append(node, node, segment, epoch, stretch, cells);
        self.pump(node, segment);
        if is_full {
            self.request_seal(node, segment);
        }
    }

    fn request_seal(&mut self, node: NodeId, segment: SegmentId) {
        let now = self.clock();
        self.with_primary(node, segment, |primary| primary.machine.request_seal(now));
    }

    /// Runs a change of a primary, and its effects.
    fn with_primary(
        &mut self,
        node: NodeId,
        segment: SegmentId,
        change: impl FnOnce(&mut SimPrimary) -> Vec<PrimaryEffect>,
    ) {
        let Some(primary) = self.primary(node, segment) else { return };
        for effect in change(primary) {
            match effect {
                PrimaryEffect::Acknowledge { length } => self.acknowledge_clients(node, segment, length),
                PrimaryEffect::ProposeSeal(proposal) => {
                    if let Some(primary) = self.primary(node, segment) {
                        primary.is_proposed = true;
                    }
                    let command = SimCommand::Seal { proposal, recovery: None };
                    self.propose(node, command, Purpose::PrimarySeal(segment));
                }
                PrimaryEffect::ReadRecord => self.read_later(node, segment),
                PrimaryEffect::Truncate { length } => {
                    self.queue_io(node, segment, IoOperation::Truncate { length });
                }
                PrimaryEffect::Dropped { .. } | PrimaryEffect::AppendAgain { .. } => {}
            }
        }
    }

    fn acknowledge_clients(&mut self, node: NodeId, segment: SegmentId, length: u64) {
        let Some(primary) = self.primary(node, segment) else { return };
        let (done, pending): (Vec<u64>, Vec<u64>) = primary.pending.iter().partition(|end| **end <= length);
        primary.pending = pending;
        for end in done {
            self.client_acknowledged(node, segment, end);
        }
    }

    pub(super) fn own_synced(&mut self, node: NodeId, segment: SegmentId, length: u64) {
        let now = self.clock();
        self.with_primary(node, segment, |primary| {
            primary.is_own_open = true;
            primary.machine.own_synced(length, now)
        });
    }

    pub(super) fn own_failed(&mut self, node: NodeId, segment: SegmentId) {
        let now = self.clock();
        self.with_primary(node, segment, |primary| primary.machine.own_failed(now));
    }

    pub(super) fn open_answered(
        &mut self,
        node: NodeId,
        follower: NodeId,
        segment: SegmentId,
        is_open: bool,
    ) {
        if !is_open {
            self.follower_failed(node, follower, segment);
            return;
        }
        let now = self.clock();
        self.with_primary(node, segment, |primary| {
            primary.followers.entry(follower).or_default().is_open = true;
            primary.machine.opened(follower, HEADER, now)
        });
        self.answer_arrived(node, follower, segment, HEADER);
    }

    pub(super) fn acknowledged(&mut self, node: NodeId, follower: NodeId, segment: SegmentId, length: u64) {
        let now = self.clock();
        self.with_primary(node, segment, |primary| primary.machine.acknowledged_by(follower, length, now));
        self.answer_arrived(node, follower, segment, length);
    }

    fn answer_arrived(&mut self, node: NodeId, follower: NodeId, segment: SegmentId, length: u64) {
        let (now, clock) = (self.now, self.clock());
        let Some(known) =
            self.primary(node, segment).and_then(|primary| primary.followers.get_mut(&follower))
        else {
            return;
        };
        known.acknowledged = known.acknowledged.max(length);
        if let Some(outstanding) = known.outstanding.filter(|outstanding| outstanding.to <= length) {
            known.outstanding = None;
            let took = Duration::from_millis(now - outstanding.sent_at);
            let change = self.node(node).health.answered(follower, took, clock);
            self.peer_changed(node, change);
        }
        self.pump(node, segment);
    }

    pub(super) fn follower_failed(&mut self, node: NodeId, follower: NodeId, segment: SegmentId) {
        let now = self.clock();
        self.with_primary(node, segment, |primary| {
            primary.followers.entry(follower).or_default().outstanding = None;
            primary.machine.follower_failed(follower, now)
        });
    }

    pub(super) fn follower_ends_at(&mut self, node: NodeId, follower: NodeId, segment: SegmentId, end: u64) {
        let now = self.clock();
        self.with_primary(node, segment, |primary| {
            primary.followers.entry(follower).or_default().outstanding = None;
            primary.machine.resume(follower, end, now)
        });
        self.pump(node, segment);
    }

    fn peer_changed(&mut self, node: NodeId, change: Option<PeerChange>) {
        let Some(PeerChange::LeftOut(peer)) = change else { return };
        let segments: Vec<SegmentId> = self.nodes[&node].primaries.keys().copied().collect();
        for segment in segments {
            if self.nodes[&node].primaries[&segment].followers.contains_key(&peer) {
                self.follower_failed(node, peer, segment);
            }
        }
    }

    /// Sends to every follower that has answered what it still needs.
    fn pump(&mut self, node: NodeId, segment: SegmentId) {
        let Some(primary) = self.primary(node, segment) else { return };
        let ready =
            primary.followers.iter().filter(|(_, known)| known.is_open && known.outstanding.is_none());
        let ready: Vec<NodeId> = ready.map(|(follower, _)| *follower).collect();
        for follower in ready {
            let (session, sent_at) = (self.session(node, follower), self.now);
            let Some(primary) = self.primary(node, segment) else { return };
            let (Some(session), Some(range)) = (session, primary.machine.next_send(follower)) else {
                continue;
            };
            let last = range.from + bytes(1) * MESSAGE_CELLS_MAX;
            let ends = primary.ends.iter().copied().filter(|end| *end > range.from);
            let to = ends.enumerate().take_while(|(at, end)| *at == 0 || *end <= last).last();
            let to = to.map_or(range.to, |(_, end)| end);
            let stretch = Stretch::from(range.from..to);
            let cells = primary.stream[cells_of(stretch)].to_vec();
            primary.machine.sent(follower, to);
            let outstanding = Some(Outstanding { session, sent_at, to });
            primary.followers.entry(follower).or_default().outstanding = outstanding;
            let epoch = primary.record.epoch;
            self.send(node, follower, Message::Append { segment, epoch, stretch, cells });
        }
    }

    /// Peers without a lease are left out. All peers answer small requests besides appends.
    pub(super) fn watch_peers(&mut self, node: NodeId) {
        let peers: BTreeSet<NodeId> = self.nodes.keys().copied().filter(|peer| *peer != node).collect();
        for change in self.node(node).health.set_peers(&peers) {
            self.peer_changed(node, Some(change));
        }
        for peer in peers {
            let (now, clock, reaches) = (self.now, self.clock(), self.reaches(node, peer));
            let SimNodeAnswer { took, is_hanging } = self.answer_time(peer);
            let own = self.node(node);
            let change = if reaches {
                own.unreachable_since.remove(&peer);
                own.health.lease_held(peer);
                if is_hanging { None } else { own.health.answered(peer, took, clock) }
            } else {
                let since = *own.unreachable_since.entry(peer).or_insert(now);
                if now >= since + 1_500 { own.health.lease_ended(peer, clock) } else { None }
            };
            self.peer_changed(node, change);
        }
    }

    fn answer_time(&self, peer: NodeId) -> SimNodeAnswer {
        let peer = &self.nodes[&peer];
        let took = Duration::from_millis(2 + 2 * peer.slow_ms);
        SimNodeAnswer { took, is_hanging: peer.hangs_until > self.now }
    }

    pub(super) fn primaries_tick(&mut self, node: NodeId) {
        let segments: Vec<SegmentId> = self.nodes[&node].primaries.keys().copied().collect();
        for segment in segments {
            let now = self.clock();
            let followers: Vec<NodeId> =
                self.nodes[&node].primaries[&segment].followers.keys().copied().collect();
            for follower in followers {
                self.follower_tick(node, follower, segment);
            }
            self.with_primary(node, segment, |primary| primary.machine.tick(now));
            if self.phase == Phase::Calm || self.rng.u8(0..100) == 0 {
                self.request_seal(node, segment);
            }
        }
    }

    /// Watches the last request to a follower, and repeats it over a new connection.
    fn follower_tick(&mut self, node: NodeId, follower: NodeId, segment: SegmentId) {
        let (now, clock, session) = (self.now, self.clock(), self.session(node, follower));
        let Some(primary) = self.primary(node, segment) else { return };
        if !primary.machine.is_in_step(follower) {
            return;
        }
        let known = primary.followers[&follower];
        let Some(outstanding) = known.outstanding else {
            if !known.is_open && session.is_some() {
                self.send_open(node, follower, segment);
            }
            self.pump(node, segment);
            return;
        };
        if session.is_some_and(|session| session != outstanding.session) {
            if known.is_open {
                let has_more = primary.machine.next_send(follower).is_some();
                let effects = if has_more {
                    Vec::new()
                } else {
                    primary.machine.resume(follower, known.acknowledged, clock)
                };
                primary.followers.entry(follower).or_default().outstanding = None;
                self.with_primary(node, segment, |_| effects);
                self.pump(node, segment);
            } else {
                self.send_open(node, follower, segment);
            }
        }
        let age = Duration::from_millis(now - outstanding.sent_at);
        let change = self.node(node).health.unanswered(follower, age, clock);
        self.peer_changed(node, change);
    }

    pub(super) fn primary_seal_outcome(
        &mut self,
        node: NodeId,
        segment: SegmentId,
        outcome: ProposalOutcome,
    ) {
        match outcome {
            ProposalOutcome::Applied { .. } | ProposalOutcome::NotAppended => self.read_later(node, segment),
            ProposalOutcome::Unknown => {
                self.with_primary(node, segment, |primary| {
                    primary.machine.seal_outcome(SealOutcome::Unknown)
                });
            }
        }
    }

    fn read_later(&mut self, node: NodeId, segment: SegmentId) {
        let start = self.nodes[&node].start;
        self.schedule(200, Event::ReadRecord { node, start, segment });
    }

    /// Reads a record after a barrier.
    pub(super) fn read_record(&mut self, node: NodeId, segment: SegmentId) {
        if !self.group.leader.is_some_and(|leader| self.reaches(node, leader)) {
            self.read_later(node, segment);
            return;
        }
        self.apply_at(node, self.group.log.len());
        self.with_primary(node, segment, |primary| primary.machine.seal_outcome(SealOutcome::StillOpen));
    }

    /// The primary has applied the segment's seal.
    pub(super) fn seal_applied_by_primary(&mut self, node: NodeId, segment: SegmentId, length: u64) {
        self.with_primary(node, segment, |primary| {
            primary.machine.seal_outcome(SealOutcome::Recorded { length })
        });
        self.node(node).primaries.remove(&segment);
    }

    /// Checks that no follower in step lacks what was acknowledged long ago.
    pub(super) fn check_trailing(&mut self) {
        let mut late = None;
        for (node, primaries) in self.nodes.iter().map(|(id, node)| (id, &node.primaries)) {
            for (segment, primary) in primaries.iter().filter(|(_, primary)| !primary.is_proposed) {
                let old = self.truth.acknowledged_before(*segment, self.now.saturating_sub(1_300));
                let in_step =
                    primary.followers.iter().filter(|(follower, _)| primary.machine.is_in_step(**follower));
                for (follower, known) in in_step {
                    if cells(known.acknowledged) < old {
                        late = Some(format!("{follower} trails {node} by too much in {segment}"));
                    }
                }
            }
        }
        if let Some(what) = late {
            self.violated(ViolationKind::Trail, what);
        }
    }
}

struct SimNodeAnswer {
    took: Duration,
    is_hanging: bool,
}

//! Drivers of primaries: creation, appends and their acknowledgements.

use super::replicas::SimFile;
use super::world::{Command, Event, Message, SealedBy, Session, World};
use crate::primary::{PrimaryEffect, PrimarySegment, PrimaryStart};
use crate::repair::COPIES;
use crate::rules::ReplicationRule;
use mlgw_common::{NodeId, SegmentId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// Time within which followers open their files.
const OPEN_MS: u64 = 1_000;
/// Time after which a follower in step that lacks acknowledged bytes trails without bound.
const TRAIL_MS: u64 = 2_500;

#[derive(Debug)]
pub(super) struct SimWriter {
    /// `None` until the segment begins.
    pub(super) primary: Option<PrimarySegment>,
    replicas: Vec<NodeId>,
    pub(super) links: BTreeMap<NodeId, SimLink>,
    /// Followers that have opened their files.
    opened: BTreeSet<NodeId>,
    created_at: u64,
    appended: u64,
    pub(super) own_synced: u64,
    /// End of the write in progress.
    pub(super) writing: Option<u64>,
}

#[derive(Debug)]
pub(super) struct SimLink {
    pub(super) session: Session,
    sent: VecDeque<(u64, u64)>,
    progressed: u64,
}

impl World {
    pub(super) fn append_somewhere(&mut self) {
        if self.is_calm {
            return;
        }
        let node = NodeId(self.rng.u64(1..=self.swarm.nodes));
        if self.nodes[&node].is_up {
            self.append(node);
        }
        let delay = self.rng.u64(1..=2 * self.swarm.append_ms);
        self.schedule(delay, Event::Append);
    }

    fn append(&mut self, node: NodeId) {
        let takes =
            |writer: &SimWriter| writer.primary.as_ref().is_none_or(|primary| primary.takes_appends());
        let mut writers = self.nodes[&node].writers.iter();
        let Some((&segment, writer)) = writers.find(|(_, writer)| takes(writer)) else {
            return self.create(node);
        };
        if writer.writing.is_some() || writer.primary.is_none() {
            return;
        }
        self.with_primary(node, segment, |primary, now| primary.tick(now));
        let (end, now) = (self.rng.u64(1..4), self.now);
        let Some(writer) = self.node(node).writers.get_mut(&segment) else { return };
        let Some(primary) = writer.primary.as_mut().filter(|primary| primary.takes_appends()) else { return };
        let end = writer.appended + end;
        primary.append(end);
        (writer.appended, writer.writing) = (end, Some(end));
        let mut frames = Vec::new();
        for (peer, link) in &mut writer.links {
            link.sent.push_back((end, now));
            frames.push((*peer, link.session));
        }
        for (peer, session) in frames {
            self.send(node, peer, session, Message::Frame(segment, end));
        }
        self.write_own(node, segment, end);
    }

    fn write_own(&mut self, node: NodeId, segment: SegmentId, end: u64) {
        let (start, delay) = (self.nodes[&node].start, self.disk_ms(node));
        self.schedule(delay, Event::OwnWritten { node, start, segment, end });
    }

    pub(super) fn disk_ms(&mut self, node: NodeId) -> u64 {
        self.nodes[&node].slow_disk_ms + self.rng.u64(1..40)
    }

    /// Proposes a segment with followers that are healthy and answer.
    fn create(&mut self, node: NodeId) {
        if self.nodes[&node].is_creating {
            return;
        }
        // Clients of a node that leaves write through another one.
        if self.leaving.contains(&node) {
            return;
        }
        let usable = self.nodes[&node].health.usable().into_iter();
        let usable = usable.filter(|peer| !self.leaving.contains(peer));
        let mut replicas: Vec<NodeId> = usable.filter(|peer| self.session(node, *peer).is_some()).collect();
        if replicas.is_empty() {
            return;
        }
        self.rng.shuffle(&mut replicas);
        replicas.truncate(COPIES - 1);
        replicas.insert(0, node);
        let segment = SegmentId(self.next_segment);
        self.next_segment += 1;
        self.node(node).is_creating = true;
        self.node(node).created.insert(segment);
        self.propose(node, Command::Create { segment, replicas });
    }

    /// Creates the files of a segment that was recorded.
    pub(super) fn create_files(&mut self, node: NodeId, segment: SegmentId, replicas: Vec<NodeId>) {
        self.node(node).is_creating = false;
        let mut links = BTreeMap::new();
        for peer in &replicas[1..] {
            if let Some(session) = self.session(node, *peer) {
                links.insert(*peer, SimLink { session, sent: VecDeque::new(), progressed: self.now });
                self.send(node, *peer, session, Message::Open(segment));
            }
        }
        let writer = SimWriter {
            primary: None,
            replicas,
            links,
            opened: BTreeSet::new(),
            created_at: self.now,
            appended: 1,
            own_synced: 0,
            writing: None,
        };
        self.node(node).writers.insert(segment, writer);
        self.write_own(node, segment, 1);
    }

    /// Begins a segment whose files are there, or gives it up.
    fn try_begin(&mut self, node: NodeId, segment: SegmentId) {
        let (now, clock, rules) = (self.now, self.clock(), self.rules);
        let quorum = self.quorum(segment);
        let Some(writer) = self.node(node).writers.get_mut(&segment) else { return };
        if writer.primary.is_some() {
            return;
        }
        let followers = writer.replicas.len() - 1;
        let needed = if rules.has(ReplicationRule::BegunWhenAllOpened) { followers } else { 1 };
        let is_late = now > writer.created_at + OPEN_MS;
        let waits = writer.links.len() == followers && writer.opened.len() < followers;
        if writer.own_synced > 0 && writer.opened.len() >= needed && (!waits || is_late) {
            let mut replicas = writer.replicas.clone();
            replicas.retain(|of| *of == node || writer.opened.contains(of));
            writer.links.retain(|of, _| replicas.contains(of));
            let start = PrimaryStart {
                segment,
                replicas: replicas.clone(),
                // Without a rule some of the replicas are missing.
                write_quorum: quorum.min(replicas.len()),
            };
            let mut primary = PrimarySegment::by(start, rules);
            primary.append(1);
            let mut effects = primary.own_synced(1, clock);
            for follower in &replicas[1..] {
                effects.extend(primary.acknowledged_by(*follower, 1, clock));
            }
            writer.primary = Some(primary);
            self.carry_out(node, segment, effects);
        } else if is_late || writer.links.len() < needed {
            self.give_up(node, segment);
        }
    }

    /// Seals a segment that never begins.
    pub(super) fn give_up(&mut self, node: NodeId, segment: SegmentId) {
        self.node(node).writers.remove(&segment);
        let seal = Command::Seal { segment, length: 0, replicas: Vec::new(), by: SealedBy::Primary };
        self.propose(node, seal);
    }

    pub(super) fn own_written(&mut self, node: NodeId, segment: SegmentId, end: u64) {
        let has_failed = self.is_failure();
        let of = self.node(node);
        // A creation never replaces a file, or the empty file of a closed replica.
        let exists = end == 1 && of.disk.contains_key(&segment);
        if !exists && !has_failed {
            of.disk.entry(segment).or_default().write(end, true);
        }
        let Some(writer) = of.writers.get_mut(&segment) else { return };
        if writer.primary.is_none() {
            if exists || has_failed {
                return self.give_up(node, segment);
            }
            writer.own_synced = 1;
            return self.try_begin(node, segment);
        }
        writer.writing = None;
        if has_failed {
            self.with_primary(node, segment, PrimarySegment::own_failed);
        } else {
            writer.own_synced = end;
            self.with_primary(node, segment, |primary, now| primary.own_synced(end, now));
        }
        let full = self.swarm.full;
        if self.nodes[&node].writers.get(&segment).is_some_and(|writer| writer.appended >= full) {
            self.with_primary(node, segment, PrimarySegment::request_seal);
        }
        self.answer_closings(node);
    }

    pub(super) fn with_primary(
        &mut self,
        node: NodeId,
        segment: SegmentId,
        change: impl FnOnce(&mut PrimarySegment, Duration) -> Vec<PrimaryEffect>,
    ) {
        let now = self.clock();
        let writer = self.node(node).writers.get_mut(&segment);
        let Some(primary) = writer.and_then(|writer| writer.primary.as_mut()) else { return };
        let effects = change(primary, now);
        self.carry_out(node, segment, effects);
    }

    /// Records that a follower has synced its file up to a length.
    pub(super) fn acknowledged(&mut self, node: NodeId, from: NodeId, segment: SegmentId, length: u64) {
        let (now, clock) = (self.now, self.clock());
        let of = self.node(node);
        let Some(writer) = of.writers.get_mut(&segment) else { return };
        if writer.primary.is_none() {
            writer.opened.insert(from);
            return self.try_begin(node, segment);
        }
        let Some(link) = writer.links.get_mut(&from) else { return };
        let before = std::mem::replace(&mut link.progressed, now);
        let mut took = None;
        while link.sent.front().is_some_and(|(end, _)| *end <= length) {
            let at = link.sent.pop_front().map_or(now, |(_, at)| at);
            took = took.or(Some(now - at.max(before)));
        }
        if let Some(took) = took {
            of.health.answered(from, Duration::from_millis(took), clock);
        }
        self.with_primary(node, segment, |primary, now| primary.acknowledged_by(from, length, now));
    }

    /// Records that a follower ended its replica, or did not open it.
    pub(super) fn follower_ended(&mut self, node: NodeId, from: NodeId, segment: SegmentId) {
        let clock = self.clock();
        let Some(writer) = self.node(node).writers.get_mut(&segment) else { return };
        writer.links.remove(&from);
        let has_begun = writer.primary.is_some();
        self.node(node).health.failed(from, clock);
        if has_begun {
            self.with_primary(node, segment, |primary, now| primary.follower_failed(from, now));
        } else {
            self.try_begin(node, segment);
        }
    }

    pub(super) fn writers_tick(&mut self, node: NodeId) {
        let (now, clock) = (self.now, self.clock());
        for peer in self.ids() {
            // The nodes of the cluster exchange messages all the time.
            if peer != node && self.session(node, peer).is_some() {
                let took = 2 * self.nodes[&peer].slow_network_ms + self.nodes[&peer].slow_disk_ms;
                if self.nodes[&node].writers.values().all(|writer| !writer.links.contains_key(&peer)) {
                    self.node(node).health.answered(peer, Duration::from_millis(took), clock);
                }
            }
        }
        let segments: Vec<SegmentId> = self.nodes[&node].writers.keys().copied().collect();
        for segment in segments {
            if self.nodes[&node].writers[&segment].primary.is_none() {
                self.try_begin(node, segment);
                continue;
            }
            let replicas = &self.nodes[&node].writers[&segment].replicas;
            if self.is_calm || replicas.iter().any(|of| self.leaving.contains(of)) {
                self.with_primary(node, segment, PrimarySegment::request_seal);
            }
            let of = self.node(node);
            let Some(writer) = of.writers.get(&segment) else { continue };
            let acknowledged = writer.primary.as_ref().map_or(0, PrimarySegment::acknowledged_length);
            let mut trails = false;
            for (peer, link) in &writer.links {
                let Some((end, at)) = link.sent.front().copied() else { continue };
                of.health.unanswered(*peer, Duration::from_millis(now - at.max(link.progressed)), clock);
                trails |= end <= acknowledged && now > at + TRAIL_MS;
            }
            let usable = of.health.usable();
            let late: Vec<NodeId> = writer.links.keys().copied().filter(|of| !usable.contains(of)).collect();
            if trails {
                self.violated(format!("a follower of {segment} trails without bound"));
            }
            for peer in late {
                if let Some(writer) = self.node(node).writers.get_mut(&segment) {
                    writer.links.remove(&peer);
                }
                self.with_primary(node, segment, |primary, now| primary.follower_failed(peer, now));
            }
            self.with_primary(node, segment, |primary, now| primary.tick(now));
        }
    }

    /// Puts what was being written in part into the file, when a process ends.
    pub(super) fn tear_own_writes(&mut self, node: NodeId) {
        let writing = self.nodes[&node].writers.iter().filter_map(|(id, of)| Some((*id, of.writing?)));
        let writing: Vec<(SegmentId, u64)> = writing.collect();
        for (segment, end) in writing {
            let file: &mut SimFile = self.node(node).disk.entry(segment).or_default();
            let from = file.length();
            let to = self.rng.u64(from..=end.max(from));
            self.node(node).disk.entry(segment).or_default().write(to, false);
        }
    }
}

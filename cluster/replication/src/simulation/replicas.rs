//! Files, followed replicas, and their close.

use super::world::{Event, Message, Session, World};
use crate::follower::FollowedState;
use crate::primary::PrimarySegment;
use crate::recovery::ClosedAnswer;
use crate::rules::ReplicationRule;
use fastrand::Rng;
use mlgw_common::{NodeId, SegmentId};

/// Most bytes that one write of a follower has: a slow disk trails.
const WRITE_BYTES_MAX: u64 = 4;

/// A file: each byte is intact or not. The empty one is that of a closed replica.
#[derive(Clone, Debug, Default)]
pub(super) struct SimFile {
    pub(super) bytes: Vec<bool>,
    pub(super) synced: usize,
}

#[derive(Debug)]
pub(super) struct SimFollowed {
    pub(super) writer: Option<NodeId>,
    pub(super) session: Option<Session>,
    pub(super) state: FollowedState,
    /// End of the frames that have arrived.
    taken: u64,
    /// End of the call in progress.
    pub(super) writing: Option<u64>,
}

impl SimFile {
    pub(super) fn of(bytes: Vec<bool>) -> Self {
        let synced = bytes.len();
        Self { bytes, synced }
    }

    pub(super) fn length(&self) -> u64 {
        self.bytes.len() as u64
    }

    pub(super) fn write(&mut self, end: u64, is_synced: bool) {
        self.bytes.resize(self.bytes.len().max(usize::try_from(end).unwrap()), true);
        if is_synced {
            self.synced = self.bytes.len();
        }
    }

    pub(super) fn has(&self, at: u64) -> bool {
        self.bytes.get(usize::try_from(at).unwrap()).copied().unwrap_or(false)
    }

    /// Loses a part of what was not synced.
    pub(super) fn cut_power(&mut self, rng: &mut Rng) {
        let kept = rng.usize(self.synced..=self.bytes.len());
        self.bytes.truncate(kept);
        for byte in &mut self.bytes[self.synced..] {
            *byte = rng.bool();
        }
    }

    /// Reads the file. Bytes that are not intact are never zeros here, so all after the last intact one are
    /// uncertain.
    pub(super) fn scan(&self) -> ClosedAnswer {
        let length = self.bytes.iter().rposition(|byte| *byte).map_or(0, |last| last + 1);
        let damaged = self.bytes[..length].iter().filter(|byte| !**byte).count();
        let uncertain = if length > 0 { self.bytes.len() - length } else { 0 };
        ClosedAnswer {
            has_file: length > 0,
            length: length as u64,
            damaged_bytes: damaged as u64,
            uncertain_bytes: uncertain as u64,
        }
    }
}

impl World {
    pub(super) fn receive_open(&mut self, node: NodeId, from: NodeId, session: Session, segment: SegmentId) {
        let rules = self.rules;
        let of = self.node(node);
        let before = of.followed.get(&segment).map(|followed| &followed.state);
        let opened = FollowedState::open_by(before, rules).filter(|_| !of.disk.contains_key(&segment));
        let Some(state) = opened else {
            return self.send(node, from, session, Message::Ended(segment));
        };
        let (writer, session) = (Some(from), Some(session));
        of.followed.insert(segment, SimFollowed { writer, session, state, taken: 1, writing: Some(1) });
        self.begin_call(node, segment, 1);
    }

    fn begin_call(&mut self, node: NodeId, segment: SegmentId, end: u64) {
        let (start, delay) = (self.nodes[&node].start, self.disk_ms(node));
        self.schedule(delay, Event::Written { node, start, segment, end });
        if end > 1 && !self.rules.has(ReplicationRule::AcknowledgeSynced) {
            self.answer_writer(node, segment, Message::Acknowledge(segment, end));
        }
    }

    fn answer_writer(&mut self, node: NodeId, segment: SegmentId, message: Message) {
        let followed = &self.nodes[&node].followed[&segment];
        if let (Some(writer), Some(session)) = (followed.writer, followed.session) {
            self.send(node, writer, session, message);
        }
    }

    pub(super) fn receive_frame(&mut self, node: NodeId, segment: SegmentId, end: u64) {
        if let Some(followed) = self.node(node).followed.get_mut(&segment) {
            followed.taken = followed.taken.max(end);
            self.begin_write(node, segment);
        }
    }

    fn begin_write(&mut self, node: NodeId, segment: SegmentId) {
        let Some(followed) = self.node(node).followed.get_mut(&segment) else { return };
        let end = followed.taken.min(followed.state.synced + WRITE_BYTES_MAX);
        if followed.writing.is_none() && end > followed.state.synced && followed.state.begin_write() {
            followed.writing = Some(end);
            self.begin_call(node, segment, end);
        }
    }

    /// Records the end of a call on the file of a followed replica.
    pub(super) fn written(&mut self, node: NodeId, segment: SegmentId, end: u64) {
        let has_failed = self.is_failure();
        let of = self.node(node);
        let Some(followed) = of.followed.get_mut(&segment).filter(|of| of.writing == Some(end)) else {
            return;
        };
        followed.writing = None;
        // A creation never replaces a file, or the empty file of a closed replica.
        if has_failed || end == 1 && of.disk.contains_key(&segment) {
            followed.state.fail("a call on the file of the replica failed");
            if end > 1 {
                of.disk.entry(segment).or_default().write(end - 1, false);
            }
        } else {
            of.disk.entry(segment).or_default().write(end, true);
            followed.state.succeed(end);
            self.answer_writer(node, segment, Message::Acknowledge(segment, end));
        }
        if !self.nodes[&node].followed[&segment].state.may_append() {
            self.answer_writer(node, segment, Message::Ended(segment));
        }
        self.begin_write(node, segment);
        self.answer_closings(node);
    }

    pub(super) fn receive_close(&mut self, node: NodeId, from: NodeId, segment: SegmentId) {
        if self.nodes[&node].writers.get(&segment).is_some_and(|writer| writer.primary.is_none()) {
            self.give_up(node, segment);
        }
        self.with_primary(node, segment, PrimarySegment::request_seal);
        self.close_followed(node, segment);
        self.node(node).closings.push((segment, from));
        self.answer_closings(node);
    }

    /// Ends the right to append to a replica. Returns true if its state is final.
    pub(super) fn close_followed(&mut self, node: NodeId, segment: SegmentId) -> bool {
        let state = FollowedState::closed_by(self.rules);
        let closed = SimFollowed { writer: None, session: None, state, taken: 0, writing: None };
        let followed = self.node(node).followed.entry(segment).or_insert(closed);
        let had_right = followed.state.may_append();
        followed.state.close();
        let is_final = followed.state.is_final();
        if had_right && is_final {
            self.answer_writer(node, segment, Message::Ended(segment));
        }
        is_final
    }

    /// Answers the requests to close that nothing delays any more.
    pub(super) fn answer_closings(&mut self, node: NodeId) {
        let closings = std::mem::take(&mut self.node(node).closings);
        for (segment, from) in closings {
            let awaits = self.rules.has(ReplicationRule::CloseAwaitsWrite);
            let of = &self.nodes[&node];
            let writer = of.writers.get(&segment);
            let is_written = writer.is_some_and(|writer| writer.writing.is_some()) && awaits;
            let is_open = self.rules.has(ReplicationRule::CloseEndsRight);
            let is_followed = of.followed.get(&segment).is_some_and(|of| is_open && !of.state.is_final());
            if is_written || is_followed {
                self.node(node).closings.push((segment, from));
                continue;
            }
            let answer = match writer {
                Some(writer) => {
                    let length = writer.own_synced;
                    ClosedAnswer { has_file: true, length, damaged_bytes: 0, uncertain_bytes: 0 }
                }
                None => self.scan_closed(node, segment),
            };
            if answer.has_file {
                // Without later damage the bytes after the last intact one are torn: never acknowledged.
                let has_lost = self.truth.losses.get(&segment).is_some_and(|lost| lost.contains(&node));
                let end = answer.length + if has_lost { answer.uncertain_bytes } else { 0 };
                self.truth.closed.entry(segment).or_default().insert(node, end);
            }
            if let Some(session) = self.session(node, from) {
                self.send(node, from, session, Message::Closed(segment, answer));
            }
        }
    }

    /// Reads a file that nothing is appended to. A replica without one gets an empty one.
    fn scan_closed(&mut self, node: NodeId, segment: SegmentId) -> ClosedAnswer {
        let syncs = self.rules.has(ReplicationRule::CloseSyncs);
        let file = self.node(node).disk.entry(segment).or_default();
        if syncs {
            file.synced = file.bytes.len();
        }
        file.scan()
    }

    /// Puts what was being written in part into the files, when a process ends.
    pub(super) fn tear_followed_writes(&mut self, node: NodeId) {
        let mut followed = std::mem::take(&mut self.node(node).followed);
        for (segment, of) in &mut followed {
            let Some(end) = of.writing.filter(|end| *end > 1) else { continue };
            let to = self.rng.u64(self.nodes[&node].disk.get(segment).map_or(0, SimFile::length)..=end);
            self.node(node).disk.entry(*segment).or_default().write(to, false);
        }
        self.node(node).followed = followed;
    }

    /// Keeps the rights of a process for the next one. Bytes that were lost in between are a hole.
    pub(super) fn keep_rights(&mut self, node: NodeId) {
        let rules = self.rules;
        let followed = std::mem::take(&mut self.node(node).followed);
        for (segment, mut of) in followed {
            let Some(file) = self.node(node).disk.get_mut(&segment).filter(|file| file.length() > 0) else {
                continue;
            };
            if let Some(mut state) = FollowedState::open_by(None, rules).filter(|_| of.state.may_append()) {
                let end = of.taken.max(file.length());
                file.bytes.resize(usize::try_from(end).unwrap(), false);
                state.succeed(end);
                (of.state, of.writing) = (state, None);
                self.node(node).followed.insert(segment, of);
            }
        }
    }

    /// True if a call on a file fails.
    pub(super) fn is_failure(&mut self) -> bool {
        !self.is_calm && self.rng.u64(0..1000) < self.swarm.failures
    }
}

//! The driver of replicas in the simulation: it carries the effects of [`FollowerReplica`] out on a disk and
//! answers messages.

use super::disk::{CELL, Cell, cells, cells_of};
use super::group::SimRecord;
use super::network::Message;
use super::world::{Event, SimNode, World};
use crate::epoch::SegmentEpoch;
use crate::follower::{AppendRefusal, ClosedLength, FollowerReplica, ReplicaEffect, ReplicaOnDisk};
use crate::recovery::{CloseAnswer, ReplicaContent, TailCopy};
use crate::rules::ReplicationRule;
use crate::stretch::{Stretch, StretchSet};
use mlgw_common::{NodeId, SegmentId};
use std::collections::{BTreeMap, VecDeque};

/// Length of a file with its header only.
pub(super) const HEADER: u64 = CELL;

/// A replica in the memory of a process.
#[derive(Debug)]
pub(super) struct SimReplica {
    machine: FollowerReplica,
    /// Operations of the disk that wait, one after the other.
    waiting: VecDeque<IoOperation>,
    is_busy: bool,
    /// Distinguishes it from earlier replicas of the segment in this process.
    life: u64,
    primary: NodeId,
    /// Coordinators, by the epoch of their Close.
    coordinators: BTreeMap<SegmentEpoch, NodeId>,
}

#[derive(Clone, Debug)]
pub(super) enum IoOperation {
    Create,
    Write { stretch: Stretch, cells: Vec<Cell> },
    Sync { length: u64 },
    PersistClose { epoch: SegmentEpoch },
    WriteCopy { copy: TailCopy, cells: Vec<Cell> },
    Truncate { length: u64 },
}

impl World {
    /// The state machine of a replica; made from the disk if the process has none.
    fn machine(&mut self, node: NodeId, segment: SegmentId) -> &mut FollowerReplica {
        let (rules, life) = (self.rules, self.next_number());
        let node = self.node(node);
        let disk = node.disk.get(&segment).map_or_else(ReplicaOnDisk::default, |file| ReplicaOnDisk {
            file_bytes: file.current.length(),
            closed: file.current.closed,
        });
        let make = || SimReplica {
            machine: FollowerReplica::by(disk, rules),
            waiting: VecDeque::new(),
            is_busy: false,
            life,
            primary: NodeId(0),
            coordinators: BTreeMap::new(),
        };
        &mut node.replicas.entry(segment).or_insert_with(make).machine
    }

    fn replica(&mut self, node: NodeId, segment: SegmentId) -> &mut SimReplica {
        self.machine(node, segment);
        self.node(node).replicas.get_mut(&segment).expect("it was just made")
    }

    /// True if the node has applied the segment's seal.
    fn has_applied_seal(&self, node: NodeId, segment: SegmentId) -> bool {
        self.nodes[&node].records.get(&segment).is_some_and(|record| record.sealed.is_some())
    }

    pub(super) fn receive_open(
        &mut self,
        node: NodeId,
        primary: NodeId,
        segment: SegmentId,
        epoch: SegmentEpoch,
    ) {
        if self.has_applied_seal(node, segment) {
            self.send(node, primary, Message::OpenAnswer { segment, is_open: false });
            return;
        }
        self.replica(node, segment).primary = primary;
        let effects = self.machine(node, segment).open(epoch);
        self.run_effects(node, segment, effects, None);
    }

    pub(super) fn receive_append(
        &mut self,
        node: NodeId,
        primary: NodeId,
        segment: SegmentId,
        epoch: SegmentEpoch,
        stretch: Stretch,
        cells: Vec<Cell>,
    ) {
        if self.has_applied_seal(node, segment) {
            return;
        }
        self.replica(node, segment).primary = primary;
        let effects = self.machine(node, segment).append(epoch, stretch);
        self.run_effects(node, segment, effects, Some(cells));
    }

    pub(super) fn receive_close(
        &mut self,
        node: NodeId,
        coordinator: NodeId,
        segment: SegmentId,
        epoch: SegmentEpoch,
    ) {
        if self.has_applied_seal(node, segment) {
            return;
        }
        self.replica(node, segment).coordinators.insert(epoch, coordinator);
        let effects = self.machine(node, segment).close(epoch);
        self.run_effects(node, segment, effects, None);
    }

    /// Reads verified cells from the source, and writes them.
    pub(super) fn receive_copy(
        &mut self,
        node: NodeId,
        coordinator: NodeId,
        segment: SegmentId,
        copy: TailCopy,
    ) {
        if self.has_applied_seal(node, segment) || !self.reaches(node, copy.source) {
            return;
        }
        if let Some(replica) = [node, copy.source].into_iter().find(|node| self.is_lost(*node, segment)) {
            self.send(node, coordinator, Message::ReplicaLost { segment, epoch: copy.epoch, replica });
            return;
        }
        let image = self.nodes[&copy.source].disk.get(&segment).map(|file| file.current.clone());
        let image = image.unwrap_or_default();
        let verified = StretchSet::of(image.valid());
        let bad: Vec<Stretch> = StretchSet::of([copy.stretch]).without(&verified).iter().collect();
        if !bad.is_empty() {
            self.send(node, coordinator, Message::CopyUnreadable { segment, copy, bad });
            return;
        }
        let read = image.cells.unwrap_or_default()[cells_of(copy.stretch)].to_vec();
        self.replica(node, segment).coordinators.insert(copy.epoch, coordinator);
        let effects = self.machine(node, segment).copy(copy.epoch, copy.stretch);
        if effects.iter().any(|effect| matches!(effect, ReplicaEffect::WriteCopy { .. })) {
            self.queue_io(node, segment, IoOperation::WriteCopy { copy, cells: read });
        }
    }

    /// Opens the primary's own replica.
    pub(super) fn open_own(&mut self, node: NodeId, segment: SegmentId, epoch: SegmentEpoch) {
        self.receive_open(node, node, segment, epoch);
    }

    fn run_effects(
        &mut self,
        node: NodeId,
        segment: SegmentId,
        effects: Vec<ReplicaEffect>,
        mut data: Option<Vec<Cell>>,
    ) {
        let primary = self.replica(node, segment).primary;
        for effect in effects {
            match effect {
                ReplicaEffect::Create => self.queue_io(node, segment, IoOperation::Create),
                ReplicaEffect::Write(stretch) => {
                    let cells = data.take().expect("an append has cells");
                    self.queue_io(node, segment, IoOperation::Write { stretch, cells });
                }
                ReplicaEffect::Sync { length } => self.queue_io(node, segment, IoOperation::Sync { length }),
                ReplicaEffect::PersistClose { epoch } => {
                    self.queue_io(node, segment, IoOperation::PersistClose { epoch });
                }
                ReplicaEffect::Truncate { length } => {
                    self.queue_io(node, segment, IoOperation::Truncate { length });
                }
                ReplicaEffect::Opened => self.answer_open(node, primary, segment, true),
                ReplicaEffect::OpenRefused(_) => self.answer_open(node, primary, segment, false),
                ReplicaEffect::Acknowledge { length } if primary == node => {
                    self.own_synced(node, segment, length);
                }
                ReplicaEffect::Acknowledge { length } => {
                    self.send(node, primary, Message::Acknowledge { segment, length });
                }
                ReplicaEffect::AppendRefused(_) if primary == node => self.own_failed(node, segment),
                ReplicaEffect::AppendRefused(refusal) => {
                    self.send(node, primary, Message::AppendRefused { segment, refusal });
                }
                ReplicaEffect::Closed { epoch, length } => self.answer_close(node, segment, epoch, length),
                ReplicaEffect::CloseRefused { .. }
                | ReplicaEffect::IsSealed { .. }
                | ReplicaEffect::WriteCopy { .. }
                | ReplicaEffect::Copied { .. }
                | ReplicaEffect::CopyRefused => {}
            }
        }
    }

    fn answer_open(&mut self, node: NodeId, primary: NodeId, segment: SegmentId, is_open: bool) {
        if node == primary {
            match is_open {
                true => self.own_synced(node, segment, HEADER),
                false => self.own_failed(node, segment),
            }
        } else {
            self.send(node, primary, Message::OpenAnswer { segment, is_open });
        }
    }

    fn answer_close(&mut self, node: NodeId, segment: SegmentId, epoch: SegmentEpoch, length: ClosedLength) {
        let Some(coordinator) = self.replica(node, segment).coordinators.get(&epoch).copied() else { return };
        let file = self.nodes[&node].disk.get(&segment);
        let has_file = file.is_some_and(|file| file.current.cells.is_some());
        let content = match length {
            _ if segment <= self.nodes[&node].lost_until && !has_file => ReplicaContent::Lost,
            ClosedLength::Synced(length) => ReplicaContent::Synced { length },
            ClosedLength::Scan => {
                let valid = file.map(|file| file.current.valid()).unwrap_or_default();
                ReplicaContent::Scanned { valid }
            }
        };
        let answer = CloseAnswer { node, epoch, content };
        self.send(node, coordinator, Message::CloseAnswer { segment, answer });
        self.may_fail_now(node);
    }

    pub(super) fn queue_io(&mut self, node: NodeId, segment: SegmentId, operation: IoOperation) {
        self.replica(node, segment).waiting.push_back(operation);
        self.start_io(node, segment);
    }

    fn start_io(&mut self, node: NodeId, segment: SegmentId) {
        let replica = self.replica(node, segment);
        if replica.is_busy {
            return;
        }
        let Some(operation) = replica.waiting.pop_front() else { return };
        replica.is_busy = true;
        let life = replica.life;
        let mut delay = match operation {
            IoOperation::Write { .. } if self.rng.u8(0..20) == 0 => self.rng.u64(5..40),
            IoOperation::Write { .. } | IoOperation::Truncate { .. } => self.rng.u64(0..3),
            IoOperation::WriteCopy { .. } => self.rng.u64(5..60),
            _ => self.rng.u64(1..8),
        };
        if let IoOperation::WriteCopy { copy, .. } = &operation {
            let range = cells_of(copy.stretch);
            self.node(node).disk.entry(segment).or_default().begin_write(range);
            self.may_fail_now(node);
        }
        let SimNode { slow_ms, hangs_until, start, .. } = self.nodes[&node];
        delay = (delay + slow_ms / 2).max(hangs_until.saturating_sub(self.now));
        self.schedule(delay, Event::Io { node, start, segment, life, operation: Box::new(operation) });
    }

    pub(super) fn io_ended(&mut self, node: NodeId, segment: SegmentId, life: u64, operation: IoOperation) {
        let replica = self.node(node).replicas.get_mut(&segment);
        let Some(replica) = replica.filter(|replica| replica.life == life) else { return };
        replica.is_busy = false;
        self.touched.insert(segment);
        let is_durable = self.rules.has(ReplicationRule::CloseIsDurable);
        let file = self.node(node).disk.entry(segment).or_default();
        let mut done = None;
        match &operation {
            IoOperation::Create => file.create(),
            IoOperation::Write { stretch, cells: written } => file.write(cells(stretch.from), written),
            IoOperation::Sync { .. } => file.sync(),
            IoOperation::PersistClose { epoch } => {
                file.current.closed = file.current.closed.max(Some(*epoch));
                if is_durable {
                    file.durable.closed = file.current.closed;
                }
            }
            IoOperation::WriteCopy { copy, cells: written } => {
                file.write(cells(copy.stretch.from), written);
                file.sync();
                done = Some(*copy);
            }
            IoOperation::Truncate { length } => file.truncate(cells(*length)),
        }
        let machine = self.machine(node, segment);
        let effects = match operation {
            IoOperation::Create => machine.created(HEADER),
            IoOperation::Write { stretch, .. } => machine.written(stretch.to),
            IoOperation::Sync { length } => machine.synced(length),
            IoOperation::PersistClose { epoch } => machine.close_persisted(epoch),
            IoOperation::WriteCopy { copy, .. } => machine.copied(copy.epoch, copy.stretch),
            IoOperation::Truncate { .. } => Vec::new(),
        };
        self.run_effects(node, segment, effects, None);
        if let Some(copy) = done
            && let Some(coordinator) = self.replica(node, segment).coordinators.get(&copy.epoch).copied()
        {
            self.send(node, coordinator, Message::CopyDone { segment, copy });
        }
        self.start_io(node, segment);
    }

    /// A node has applied a changed record: its replica is cut off, or is no longer recorded.
    pub(super) fn record_applied(&mut self, node: NodeId, record: &SimRecord) {
        let (segment, Some(length)) = (record.segment, record.sealed) else { return };
        self.seal_applied_by_primary(node, segment, length);
        if record.replica_of(node).is_some() {
            let effects = self.machine(node, segment).sealed(length);
            self.run_effects(node, segment, effects, None);
        } else {
            self.touched.insert(segment);
            let node = self.node(node);
            node.replicas.remove(&segment);
            node.disk.remove(&segment);
        }
    }

    /// A refused append makes the primary go on elsewhere, or give the replica up.
    pub(super) fn append_refused(
        &mut self,
        node: NodeId,
        follower: NodeId,
        segment: SegmentId,
        refusal: AppendRefusal,
    ) {
        match refusal {
            AppendRefusal::NoRight => self.follower_failed(node, follower, segment),
            AppendRefusal::WrongOffset { end, synced } => {
                self.follower_ends_at(node, follower, segment, end);
                self.acknowledged(node, follower, segment, synced);
            }
        }
    }
}

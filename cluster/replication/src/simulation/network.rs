//! Messages and connections of the simulation. Messages of one stream between two processes arrive in order;
//! streams overtake each other. What is under way is lost when the link fails or a process ends.

use super::disk::Cell;
use crate::epoch::SegmentEpoch;
use crate::follower::AppendRefusal;
use crate::recovery::{CloseAnswer, TailCopy};
use crate::stretch::Stretch;
use fastrand::Rng;
use mlgw_common::{NodeId, SegmentId};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Debug)]
pub(super) enum Message {
    Open { segment: SegmentId, epoch: SegmentEpoch },
    OpenAnswer { segment: SegmentId, is_open: bool },
    Append { segment: SegmentId, epoch: SegmentEpoch, stretch: Stretch, cells: Vec<Cell> },
    Acknowledge { segment: SegmentId, length: u64 },
    AppendRefused { segment: SegmentId, refusal: AppendRefusal },
    Close { segment: SegmentId, epoch: SegmentEpoch },
    CloseAnswer { segment: SegmentId, answer: CloseAnswer },
    Copy { segment: SegmentId, copy: TailCopy },
    CopyDone { segment: SegmentId, copy: TailCopy },
    CopyUnreadable { segment: SegmentId, copy: TailCopy, bad: Vec<Stretch> },
    ReplicaLost { segment: SegmentId, epoch: SegmentEpoch, replica: NodeId },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stream {
    Log,
    Control,
    Bulk,
}

impl Message {
    const fn stream(&self) -> Stream {
        match self {
            Self::Open { .. }
            | Self::OpenAnswer { .. }
            | Self::Append { .. }
            | Self::Acknowledge { .. }
            | Self::AppendRefused { .. } => Stream::Log,
            Self::Close { .. } | Self::CloseAnswer { .. } => Stream::Control,
            Self::Copy { .. }
            | Self::CopyDone { .. }
            | Self::CopyUnreadable { .. }
            | Self::ReplicaLost { .. } => Stream::Bulk,
        }
    }
}

/// A connection: the processes at its ends, and the life of the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Session {
    pub(super) from_start: u32,
    pub(super) to_start: u32,
    pub(super) link_life: u32,
}

#[derive(Clone, Debug)]
pub(super) struct Envelope {
    pub(super) from: NodeId,
    pub(super) to: NodeId,
    pub(super) session: Session,
    pub(super) message: Message,
}

/// Links between nodes.
#[derive(Debug, Default)]
pub(super) struct Network {
    cut: BTreeSet<(NodeId, NodeId)>,
    lives: BTreeMap<(NodeId, NodeId), u32>,
    last_arrival: BTreeMap<(NodeId, NodeId, Stream), u64>,
    bulk: BulkSpeed,
    /// Per thousand: requests to open that are late.
    late_opens: u64,
}

/// Speed of the bulk stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum BulkSpeed {
    #[default]
    Even,
    /// Messages are sometimes late by seconds.
    Uneven,
}

fn pair(one: NodeId, two: NodeId) -> (NodeId, NodeId) {
    (one.min(two), one.max(two))
}

impl Network {
    pub(super) fn new(bulk: BulkSpeed, late_opens: u64) -> Self {
        Self { bulk, late_opens, ..Self::default() }
    }

    pub(super) fn is_linked(&self, one: NodeId, two: NodeId) -> bool {
        one == two || !self.cut.contains(&pair(one, two))
    }

    pub(super) fn cut(&mut self, one: NodeId, two: NodeId) {
        if one != two && self.cut.insert(pair(one, two)) {
            *self.lives.entry(pair(one, two)).or_default() += 1;
        }
    }

    /// Cuts a link, or heals it.
    pub(super) fn toggle(&mut self, one: NodeId, two: NodeId) {
        if !self.cut.remove(&pair(one, two)) {
            self.cut(one, two);
        }
    }

    pub(super) fn heal_all(&mut self) {
        self.cut.clear();
    }

    pub(super) fn link_life(&self, one: NodeId, two: NodeId) -> u32 {
        self.lives.get(&pair(one, two)).copied().unwrap_or(0)
    }

    /// Time at which a message arrives, not before earlier ones of its stream.
    pub(super) fn arrival(
        &mut self,
        from: NodeId,
        to: NodeId,
        message: &Message,
        earliest: u64,
        rng: &mut Rng,
    ) -> u64 {
        let stream = message.stream();
        let is_open = matches!(message, Message::Open { .. });
        let latency = match rng.u8(0..100) {
            _ if is_open && rng.u64(0..1_000) < self.late_opens => rng.u64(50..450),
            0..=2 if stream == Stream::Bulk && self.bulk == BulkSpeed::Uneven => rng.u64(500..4_000),
            0 => rng.u64(50..400),
            1..=5 => rng.u64(10..60),
            _ => rng.u64(1..5),
        };
        let last = self.last_arrival.entry((from, to, stream)).or_default();
        *last = (*last).max(earliest + latency);
        *last
    }
}

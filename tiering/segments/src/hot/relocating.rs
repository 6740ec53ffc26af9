//! Relocating: moves the bytes of a group to the nodes of the set in which the group is by now.
//!
//! A group that moved to another set refers to segments of its former sets, and of the first one. The leader
//! of the group, a node of its set, goes through the group's rows, reads the chunks that are in segments of
//! other sets, from its own disk or another node, appends them to segments of its set, and changes their
//! references by compare and set. When the group refers to no segment of a former set any more, it ceases to
//! be a guest of that set ([`Catalogue::end_guest`](mlgw_metadata::Catalogue::end_guest)). Compaction of the
//! owners then frees the space on the former nodes, and the nodes leave the group.
//!
//! It shares the rate of compaction and its part of the flash budget, and rests while space is short and
//! while the node leaves. One group is moved at a time. The counters of usage show whether anything is left:
//! if not, no row of an object is read. Passes over a group whose chunks cannot be moved, or that gets new
//! ones all the time, rest in between ([`rests`]).
//!
//! Invariants: those of compaction. A chunk is verified before it is written again under fresh checksums; one
//! that does not verify stays where it is, and its group remains a guest. One that no node can read now is
//! skipped until a later pass, and delays no chunk behind it. Nothing is stored here: a start goes through
//! the group again, and skips what has moved.

pub(super) mod driver;
mod rests;

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Progress of the moves of bytes to the nodes of their sets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RelocatingStatus {
    /// Bytes of the groups that this node leads in segments of other sets, as of the last pass.
    pub left_bytes: u64,
    /// Bytes that were moved since the start.
    pub moved_bytes: u64,
    /// Chunks that were not moved, because they do not verify, since the start. Each attempt counts.
    pub damaged_chunks: u64,
    /// Groups that ceased to be guests of a set since the start.
    pub ended_guests: u64,
}

/// Counters that the driver and the callers of the tier share.
#[derive(Debug, Default)]
pub(super) struct RelocatingCounters {
    left_bytes: AtomicU64,
    moved_bytes: AtomicU64,
    damaged_chunks: AtomicU64,
    ended_guests: AtomicU64,
}

impl RelocatingCounters {
    pub(super) fn status(&self) -> RelocatingStatus {
        RelocatingStatus {
            left_bytes: self.left_bytes.load(Relaxed),
            moved_bytes: self.moved_bytes.load(Relaxed),
            damaged_chunks: self.damaged_chunks.load(Relaxed),
            ended_guests: self.ended_guests.load(Relaxed),
        }
    }
}

//! Read-ahead: the blocks that a stream of reads is expected to read next and that are not kept.
//!
//! There are three sources. A reader that reads on in an object gets the object's next blocks. A reader that
//! reads objects in the order of their numbers gets the objects with the next numbers ([`trail`]), even if
//! they were never read before. A reader that follows a plan gets the plan's next objects. There is no
//! read-ahead of shuffled reads without a plan.
//!
//! The depth is learned from the outcomes: it grows when a read arrives before its blocks, shrinks when
//! blocks were never read, and read-ahead pauses when too many were unused. Invariants: no more blocks are
//! proposed than the caller allows; each block is proposed once until its outcome is reported.

mod trail;

use super::names::BuildPassThroughHasher;
use super::order::NumberedKey;
use super::streams::forget_quarter;
use super::{CacheEngine, ObservedAccess};
use crate::access::{Access, Op};
use std::collections::HashMap;
use trail::{AheadCandidate, Trail};

/// Limits of the read-ahead of one stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadAheadLimits {
    /// Maximum blocks in flight or waiting to be read.
    pub blocks_max: u32,
    /// Maximum bytes, counted alike.
    pub bytes_max: u64,
    /// Read-ahead of the objects after the current one.
    pub order: ReadAheadOrder,
}

/// Source of the objects that follow the current one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReadAheadOrder {
    /// Objects of a plan that is in use, or else those with the next numbers.
    #[default]
    Any,
    /// Objects with the next numbers.
    Numbered,
    /// Objects of a plan that is in use.
    Planned,
    /// None.
    Nothing,
}

/// A run of blocks that is expected to be read next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadAheadRange {
    /// Bucket id.
    pub bucket: u64,
    /// Object key. A key that was derived by number may not exist.
    pub key: String,
    /// First block.
    pub first: u32,
    /// Number of blocks. The object may have fewer.
    pub blocks: u32,
    /// Id of the stream, under which the outcome is reported.
    pub stream: u64,
}

/// Outcome of proposed blocks, to be reported exactly once per block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReadAheadOutcome {
    /// The blocks were present when a client requested them.
    Used,
    /// A client requested the blocks while they were still in flight.
    Late,
    /// The blocks were fetched, and evicted before any request for them.
    Wasted,
    /// The blocks were not fetched: there was no room, they were present, or the object ends before them.
    Declined,
    /// The object does not exist.
    Absent,
}

/// Maximum streams with read-ahead.
const TRAILS_MAX: usize = 1 << 11;
/// Maximum objects examined per access; some may be kept entirely.
const OBJECTS_EXAMINED_MAX: usize = 64;

/// Proposals for one trail, within limits.
struct AheadProposals<'a> {
    trail: &'a mut Trail,
    limits: &'a ReadAheadLimits,
    next: &'a mut Vec<ReadAheadRange>,
}

/// All trails, by stream.
#[derive(Default)]
pub(super) struct ReadAheadTrails(HashMap<u64, Trail, BuildPassThroughHasher>);

impl CacheEngine {
    /// Appends to `next` the blocks that the stream of a read is expected to request next and that are not
    /// kept. Accesses other than reads append nothing. The outcomes are to be reported with
    /// [`CacheEngine::record_ahead_outcome`].
    pub fn read_ahead(
        &mut self,
        seen: ObservedAccess,
        access: &Access<'_>,
        limits: &ReadAheadLimits,
        next: &mut Vec<ReadAheadRange>,
    ) {
        if access.op != Op::Read {
            return;
        }
        if self.trails.0.len() >= TRAILS_MAX && !self.trails.0.contains_key(&seen.stream) {
            forget_quarter(&mut self.trails.0, |trail| trail.last_us);
        }
        let block_bytes = self.options.block_bytes;
        // The trail is taken out of the map while other state is read, and put back.
        let trail = self.trails.0.remove(&seen.stream);
        let mut trail = trail.unwrap_or_else(|| Trail::new(block_bytes));
        let object = self.names.block_id(access.bucket, access.key, 0);
        trail.record_read(access, object, block_bytes, limits);
        if trail.is_active() {
            let mut proposals = AheadProposals { trail: &mut trail, limits, next };
            self.ahead_within(seen, access, object, &mut proposals);
            if proposals.trail.is_read_to_end(object) {
                self.ahead_beyond(seen, access, &mut proposals);
            }
        }
        self.trails.0.insert(seen.stream, trail);
    }

    /// Records the outcome of blocks that were proposed for a stream.
    pub fn record_ahead_outcome(
        &mut self,
        stream: u64,
        bucket: u64,
        key: &str,
        outcome: ReadAheadOutcome,
        blocks: u32,
    ) {
        let object = self.names.block_id(bucket, key, 0);
        if let Some(trail) = self.trails.0.get_mut(&stream) {
            trail.record_outcome(object, key, outcome, blocks);
        }
    }

    /// Proposes the next blocks of the current object.
    fn ahead_within(
        &self,
        seen: ObservedAccess,
        access: &Access<'_>,
        object: u64,
        proposals: &mut AheadProposals<'_>,
    ) {
        let block_bytes = self.options.block_bytes;
        let Some(mut blocks) = proposals.trail.next_in_object(object, block_bytes) else { return };
        blocks.end = blocks.end.min(blocks.start + proposals.trail.room(proposals.limits, block_bytes));
        if !blocks.is_empty() {
            self.propose(
                seen,
                &AheadCandidate { bucket: access.bucket, key: access.key, object, blocks },
                proposals,
            );
        }
    }

    /// Proposes the objects after the current one.
    fn ahead_beyond(&self, seen: ObservedAccess, access: &Access<'_>, proposals: &mut AheadProposals<'_>) {
        let beyond = proposals.limits.order;
        let may_be_planned = matches!(beyond, ReadAheadOrder::Any | ReadAheadOrder::Planned);
        let is_planned = may_be_planned && self.ahead_by_plan(seen, access, proposals);
        if !is_planned && matches!(beyond, ReadAheadOrder::Any | ReadAheadOrder::Numbered) {
            self.ahead_by_number(seen, access, proposals);
        }
    }

    /// Proposes the next objects of a plan that is in use. Returns true if there is such a plan.
    fn ahead_by_plan(
        &self,
        seen: ObservedAccess,
        access: &Access<'_>,
        proposals: &mut AheadProposals<'_>,
    ) -> bool {
        let object = self.names.block_id(access.bucket, access.key, 0);
        let Some(follower) = self.plans.follower(access.caller, object) else { return false };
        for (read, key) in follower.upcoming_reads(proposals.trail.proposed_reads).take(OBJECTS_EXAMINED_MAX)
        {
            let Some((bucket, key)) = self.plans.key(follower.list, key) else { break };
            if !self.ahead_object(seen, bucket, key, proposals) {
                break;
            }
            proposals.trail.proposed_reads = read + 1;
        }
        true
    }

    /// Proposes the objects with the next numbers.
    fn ahead_by_number(&self, seen: ObservedAccess, access: &Access<'_>, proposals: &mut AheadProposals<'_>) {
        let name = NumberedKey::of(access.key);
        for _ in 0..OBJECTS_EXAMINED_MAX {
            let Some((number, key)) = proposals.trail.successor(&name) else { break };
            if !self.ahead_object(seen, access.bucket, &key, proposals) {
                break;
            }
            proposals.trail.set_proposed_number(number);
        }
    }

    /// Proposes the first blocks of another object. Returns true if they reach the read-ahead depth within an
    /// object.
    fn ahead_object(
        &self,
        seen: ObservedAccess,
        bucket: u64,
        key: &str,
        proposals: &mut AheadProposals<'_>,
    ) -> bool {
        let object = self.names.block_id(bucket, key, 0);
        let block_bytes = self.options.block_bytes;
        let left = proposals.trail.unproposed_bytes(block_bytes);
        let room = proposals.trail.room(proposals.limits, block_bytes);
        if left <= 0.0 || room == 0 {
            return false;
        }
        let object_blocks = proposals.trail.object_blocks(block_bytes);
        let from = proposals.trail.proposed_end(object);
        let wanted = ((left / block_bytes as f64).ceil() as u32).clamp(1, room);
        let blocks = from..object_blocks.min(from + wanted);
        if !blocks.is_empty() {
            self.propose(seen, &AheadCandidate { bucket, key, object, blocks: blocks.clone() }, proposals);
        }
        blocks.end >= object_blocks
    }

    /// Proposes the blocks that are not kept, merging adjacent ones.
    fn propose(
        &self,
        seen: ObservedAccess,
        candidate: &AheadCandidate<'_>,
        proposals: &mut AheadProposals<'_>,
    ) {
        let AheadCandidate { bucket, key, object, blocks } = candidate;
        let mut proposed = 0;
        let mut run: Option<ReadAheadRange> = None;
        for block in blocks.clone() {
            let slot = self.table.find(self.names.block_id(*bucket, key, block));
            if slot.is_some_and(|slot| self.table[slot].state().is_kept()) {
                proposals.next.extend(run.take());
                continue;
            }
            proposed += 1;
            match &mut run {
                Some(run) => run.blocks += 1,
                None => {
                    let key = (*key).to_owned();
                    run = Some(ReadAheadRange {
                        bucket: *bucket,
                        key,
                        first: block,
                        blocks: 1,
                        stream: seen.stream,
                    });
                }
            }
        }
        proposals.next.extend(run);
        proposals.trail.record_proposal(*object, blocks.end, proposed);
    }
}

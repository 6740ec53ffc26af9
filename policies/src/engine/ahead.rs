//! Read-ahead: the blocks that a stream of reads is expected to read next and that are not kept.
//!
//! There are three sources. A reader that reads on in an object gets the object's next blocks. A reader that
//! reads objects in the order of their numbers gets the objects with the next numbers ([`trail`]), even if
//! they were never read before. A reader that follows a plan gets the plan's next objects. There is no
//! read-ahead of shuffled reads without a plan.
//!
//! The depth is learned from the outcomes: it grows when a read arrives before its blocks, shrinks when
//! blocks were never read, and read-ahead pauses when too many were unused. Always: no more blocks are
//! proposed than the caller allows; each block is proposed once until its outcome is reported.

mod trail;

use super::names::Hashed;
use super::order::Numbered;
use super::streams::forget_quarter;
use super::{Engine, Seen};
use crate::access::{Access, Op};
use std::collections::HashMap;
use trail::{Trail, Wanted};

/// Limits of the read-ahead of one stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ahead {
    /// Maximum blocks in flight or waiting to be read.
    pub blocks_max: u32,
    /// Maximum bytes, counted alike.
    pub bytes_max: u64,
    /// Read-ahead of the objects after the current one.
    pub beyond: Beyond,
}

/// Source of the objects that follow the current one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Beyond {
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
pub struct Next {
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
pub enum Outcome {
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
const LOOKS: usize = 64;

/// Proposals for one trail, within limits.
struct Said<'a> {
    trail: &'a mut Trail,
    limits: &'a Ahead,
    next: &'a mut Vec<Next>,
}

/// All trails, by stream.
#[derive(Default)]
pub(super) struct Trails(HashMap<u64, Trail, Hashed>);

impl Engine {
    /// Appends to `next` the blocks that the stream of a read is expected to request next and that are not
    /// kept. Accesses other than reads append nothing. The outcomes are to be reported with
    /// [`Engine::ahead_outcome`].
    pub fn ahead(&mut self, seen: Seen, access: &Access<'_>, limits: &Ahead, next: &mut Vec<Next>) {
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
        trail.note(access, object, block_bytes, limits);
        if trail.is_awake() {
            let mut said = Said { trail: &mut trail, limits, next };
            self.ahead_within(seen, access, object, &mut said);
            if said.trail.goes_beyond(object) {
                self.ahead_beyond(seen, access, &mut said);
            }
        }
        self.trails.0.insert(seen.stream, trail);
    }

    /// Records the outcome of blocks that were proposed for a stream.
    pub fn ahead_outcome(&mut self, stream: u64, bucket: u64, key: &str, outcome: Outcome, blocks: u32) {
        let object = self.names.block_id(bucket, key, 0);
        if let Some(trail) = self.trails.0.get_mut(&stream) {
            trail.became(object, key, outcome, blocks);
        }
    }

    /// Proposes the next blocks of the current object.
    fn ahead_within(&self, seen: Seen, access: &Access<'_>, object: u64, said: &mut Said<'_>) {
        let block_bytes = self.options.block_bytes;
        let Some(mut blocks) = said.trail.within(object, block_bytes) else { return };
        blocks.end = blocks.end.min(blocks.start + said.trail.room(said.limits, block_bytes));
        if !blocks.is_empty() {
            self.say(seen, &Wanted { bucket: access.bucket, key: access.key, object, blocks }, said);
        }
    }

    /// Proposes the objects after the current one.
    fn ahead_beyond(&self, seen: Seen, access: &Access<'_>, said: &mut Said<'_>) {
        let beyond = said.limits.beyond;
        let may_be_planned = matches!(beyond, Beyond::Any | Beyond::Planned);
        let is_planned = may_be_planned && self.ahead_by_plan(seen, access, said);
        if !is_planned && matches!(beyond, Beyond::Any | Beyond::Numbered) {
            self.ahead_by_number(seen, access, said);
        }
    }

    /// Proposes the next objects of a plan that is in use. Returns true if there is such a plan.
    fn ahead_by_plan(&self, seen: Seen, access: &Access<'_>, said: &mut Said<'_>) -> bool {
        let object = self.names.block_id(access.bucket, access.key, 0);
        let Some(follower) = self.plans.follower(access.caller, object) else { return false };
        for (read, key) in follower.ahead(said.trail.planned).take(LOOKS) {
            let Some((bucket, key)) = self.plans.key(follower.list, key) else { break };
            if !self.ahead_object(seen, bucket, key, said) {
                break;
            }
            said.trail.planned = read + 1;
        }
        true
    }

    /// Proposes the objects with the next numbers.
    fn ahead_by_number(&self, seen: Seen, access: &Access<'_>, said: &mut Said<'_>) {
        let name = Numbered::of(access.key);
        for _ in 0..LOOKS {
            let Some((number, key)) = said.trail.successor(&name) else { break };
            if !self.ahead_object(seen, access.bucket, &key, said) {
                break;
            }
            said.trail.passed(number);
        }
    }

    /// Proposes the first blocks of another object. Returns true if they reach the read-ahead depth within an
    /// object.
    fn ahead_object(&self, seen: Seen, bucket: u64, key: &str, said: &mut Said<'_>) -> bool {
        let object = self.names.block_id(bucket, key, 0);
        let block_bytes = self.options.block_bytes;
        let left = said.trail.left_bytes(block_bytes);
        let room = said.trail.room(said.limits, block_bytes);
        if left <= 0.0 || room == 0 {
            return false;
        }
        let enough = said.trail.object_blocks(block_bytes);
        let from = said.trail.said_of(object);
        let wanted = ((left / block_bytes as f64).ceil() as u32).clamp(1, room);
        let blocks = from..enough.min(from + wanted);
        if !blocks.is_empty() {
            self.say(seen, &Wanted { bucket, key, object, blocks: blocks.clone() }, said);
        }
        blocks.end >= enough
    }

    /// Proposes the blocks that are not kept, merging adjacent ones.
    fn say(&self, seen: Seen, wanted: &Wanted<'_>, said: &mut Said<'_>) {
        let Wanted { bucket, key, object, blocks } = wanted;
        let mut new = 0;
        let mut run: Option<Next> = None;
        for block in blocks.clone() {
            let slot = self.table.find(self.names.block_id(*bucket, key, block));
            if slot.is_some_and(|slot| self.table[slot].place().is_kept()) {
                said.next.extend(run.take());
                continue;
            }
            new += 1;
            match &mut run {
                Some(run) => run.blocks += 1,
                None => {
                    let key = (*key).to_owned();
                    run = Some(Next { bucket: *bucket, key, first: block, blocks: 1, stream: seen.stream });
                }
            }
        }
        said.next.extend(run);
        said.trail.say(*object, blocks.end, new);
    }
}

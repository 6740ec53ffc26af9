//! Reading ahead: what a stream of reads asks for next and is not kept.
//!
//! Three things tell it. Who reads on in an object gets its next blocks. Who reads objects in the order of
//! their numbers gets the next numbers ([`trail`]), which needs nothing to have been read before. Who follows
//! a plan gets what it says. Nothing else is guessed: shuffled reads without a plan are not read ahead of.
//!
//! How far ahead is learnt from what became of it: more when a read came before its blocks had, less when
//! blocks were never read, and nothing for a while when too many were not. Always: never more than the caller
//! allows; every block is said once until something became of it.

mod trail;

use super::names::Hashed;
use super::order::Numbered;
use super::streams::forget_quarter;
use super::{Engine, Seen};
use crate::access::{Access, Op};
use std::collections::HashMap;
use trail::{Trail, Wanted};

/// How far it may be read ahead for one stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ahead {
    /// Blocks that are under way or wait to be read.
    pub blocks_max: u32,
    /// Bytes, the same.
    pub bytes_max: u64,
    /// What is read ahead of the objects that come after the one that is read.
    pub beyond: Beyond,
}

/// Which objects come after one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Beyond {
    /// Those of a plan that counts, or else those with the next numbers.
    #[default]
    Any,
    /// Those with the next numbers.
    Numbered,
    /// Those of a plan that counts.
    Planned,
    /// None.
    Nothing,
}

/// What will be read next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Next {
    /// The bucket's id.
    pub bucket: u64,
    /// The key. Of one that was guessed nobody knows whether it is there.
    pub key: String,
    /// The first block.
    pub first: u32,
    /// How many. The object may have fewer.
    pub blocks: u32,
    /// For whom it is: what became of it is told by this number.
    pub stream: u64,
}

/// What became of blocks that were said to be next. Of each block it has to be told once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// They were there when they were asked for.
    Used,
    /// They were asked for, and still under way.
    Late,
    /// They were fetched, and let go before anybody asked for them.
    Wasted,
    /// They were not fetched: there was no room, they were there, or the object ends before.
    Declined,
    /// There is no such object.
    Absent,
}

/// Streams that are read ahead of.
const TRAILS_MAX: usize = 1 << 11;
/// Objects that are looked at for one access: of some all may be kept.
const LOOKS: usize = 64;

/// What is said of a trail, within limits.
struct Said<'a> {
    trail: &'a mut Trail,
    limits: &'a Ahead,
    next: &'a mut Vec<Next>,
}

/// All trails, by stream.
#[derive(Default)]
pub(super) struct Trails(HashMap<u64, Trail, Hashed>);

impl Engine {
    /// Appends to `next` what the stream of a read will ask for after it and what is not kept, as far as can
    /// be told; nothing for anything but reads. What became of it is to be told with
    /// [`Engine::ahead_outcome`].
    pub fn ahead(&mut self, seen: Seen, access: &Access<'_>, limits: &Ahead, next: &mut Vec<Next>) {
        if access.op != Op::Read {
            return;
        }
        if self.trails.0.len() >= TRAILS_MAX && !self.trails.0.contains_key(&seen.stream) {
            forget_quarter(&mut self.trails.0, |trail| trail.last_us);
        }
        let block_bytes = self.options.block_bytes;
        // It is out while others are looked at, and goes back.
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

    /// Tells what became of blocks that were said to be next for a stream.
    pub fn ahead_outcome(&mut self, stream: u64, bucket: u64, key: &str, outcome: Outcome, blocks: u32) {
        let object = self.names.block_id(bucket, key, 0);
        if let Some(trail) = self.trails.0.get_mut(&stream) {
            trail.became(object, key, outcome, blocks);
        }
    }

    /// The next blocks of the object that is read.
    fn ahead_within(&self, seen: Seen, access: &Access<'_>, object: u64, said: &mut Said<'_>) {
        let block_bytes = self.options.block_bytes;
        let Some(mut blocks) = said.trail.within(object, block_bytes) else { return };
        blocks.end = blocks.end.min(blocks.start + said.trail.room(said.limits, block_bytes));
        if !blocks.is_empty() {
            self.say(seen, &Wanted { bucket: access.bucket, key: access.key, object, blocks }, said);
        }
    }

    /// The objects that come after the one that is read.
    fn ahead_beyond(&self, seen: Seen, access: &Access<'_>, said: &mut Said<'_>) {
        let beyond = said.limits.beyond;
        let may_be_planned = matches!(beyond, Beyond::Any | Beyond::Planned);
        let is_planned = may_be_planned && self.ahead_by_plan(seen, access, said);
        if !is_planned && matches!(beyond, Beyond::Any | Beyond::Numbered) {
            self.ahead_by_number(seen, access, said);
        }
    }

    /// The next objects of a plan that counts. Says whether there is one.
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

    /// The objects with the next numbers.
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

    /// The first blocks of another object. Says whether these are as many as it is read ahead in any object.
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

    /// Says blocks that are not kept, those beside each other as one.
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

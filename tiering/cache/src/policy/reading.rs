//! Policy state of one read of an object: each block is decided once, when it is about to be read.

use super::{Asking, Keeper, Request, unread};
use crate::copies::block_id;
use mlgw_common::ObjectKey;
use mlgw_common::ids::BucketId;
use mlgw_policies::engine::{Advice, Seen};
use mlgw_policies::{Caller, Op, Rank, Ruling};
use std::ops::Range;

/// Policy state of one read.
pub struct Reading {
    keeper: Keeper,
    caller: Caller,
    bucket: BucketId,
    key: ObjectKey,
    size: u64,
    range: Range<u64>,
    seen: Seen,
    ruling: Ruling,
    rank: Option<Rank>,
    /// Last block that was decided, and whether it is kept.
    last: Option<(u64, bool)>,
}

impl Reading {
    pub(super) fn new(
        keeper: Keeper,
        request: &Request<'_>,
        range: Range<u64>,
        (seen, ruling, rank): (Seen, Ruling, Option<Rank>),
    ) -> Self {
        let Request { asking: Asking { caller, .. }, bucket, key, size, .. } = *request;
        Self { keeper, caller, bucket, key: key.clone(), size, range, seen, ruling, rank, last: None }
    }

    /// Returns true if block `number`, which is about to be read, is to be kept. Blocks are decided in
    /// ascending order.
    pub(crate) fn keeps(&mut self, number: u64) -> bool {
        if let Some((last, keeps)) = self.last
            && last == number
        {
            return keeps;
        }
        let keeps = self.ask(number) != Advice::Bypass;
        self.last = Some((number, keeps));
        keeps
    }

    /// Returns the requests of the rules for this read.
    pub(crate) fn ruling(&self) -> &Ruling {
        &self.ruling
    }

    /// Returns the disk rank that the rules assign to this read.
    pub(crate) fn rank(&self) -> Option<Rank> {
        self.rank
    }

    /// Forgets the last decision, because the copy of the block was invalidated.
    pub(crate) fn forget(&mut self) {
        self.last = None;
    }

    fn ask(&self, number: u64) -> Advice {
        let block = unread(self.bucket, &self.key, self.size, number);
        let asking = Asking::plain(self.caller);
        let request = Request { asking, bucket: self.bucket, key: &self.key, op: Op::Read, size: self.size };
        self.keeper.with(|state, now_us| {
            let id = block_id(self.bucket, &self.key, number);
            state.asked(id);
            let access = request.access(now_us, self.range.clone());
            let seen = self.seen.at(now_us);
            let mut advice = state.decider.read(seen, &access, block.number, &self.ruling);
            if let Some(recorder) = &mut state.recorder {
                recorder.decided().read(id, advice);
            }
            if advice != Advice::Kept && state.held.holds(&block) {
                let pinned = state.decider.engine.pin(now_us, &block, state.held.bytes_max());
                advice = if pinned == Advice::Bypass { advice } else { Advice::Keep };
            }
            match advice {
                Advice::Kept => state.metrics.hits += 1,
                Advice::Keep => state.metrics.kept += 1,
                Advice::Bypass => state.metrics.bypassed += 1,
            }
            advice
        })
    }
}

//! Policy state of one read of an object: each block is decided once, when it is about to be read.

use super::{ObservedRequest, PolicyDriver, PolicyRequestContext, unread};
use crate::copies::block_id;
use mlgw_common::ObjectKey;
use mlgw_common::ids::BucketId;
use mlgw_policies::engine::{Advice, ObservedAccess};
use mlgw_policies::{Caller, Op, RequestRank, Ruling};
use std::ops::Range;

/// Read as the engine has observed it, with the requests of the rules.
pub(super) struct RuledRead {
    pub(super) seen: ObservedAccess,
    pub(super) ruling: Ruling,
    /// Disk rank that the rules assign to the read.
    pub(super) rank: Option<RequestRank>,
}

/// Policy state of one read.
pub struct PolicyRead {
    policy_driver: PolicyDriver,
    caller: Caller,
    bucket: BucketId,
    key: ObjectKey,
    size: u64,
    range: Range<u64>,
    ruled: RuledRead,
    /// Last block that was decided, and whether it is kept.
    last: Option<(u64, bool)>,
}

impl PolicyRead {
    pub(super) fn new(
        policy_driver: PolicyDriver,
        request: &ObservedRequest<'_>,
        range: Range<u64>,
        ruled: RuledRead,
    ) -> Self {
        let ObservedRequest { context: PolicyRequestContext { caller, .. }, bucket, key, size, .. } =
            *request;
        Self { policy_driver, caller, bucket, key: key.clone(), size, range, ruled, last: None }
    }

    /// Returns true if block `number`, which is about to be read, is to be kept. Blocks are decided in
    /// ascending order.
    pub(crate) fn should_keep(&mut self, number: u64) -> bool {
        if let Some((last, keeps)) = self.last
            && last == number
        {
            return keeps;
        }
        let is_ascending = self.last.is_none_or(|(last, _)| last < number);
        assert!(is_ascending, "the blocks of a read are decided in order");
        let keeps = self.decide(number) != Advice::Bypass;
        self.last = Some((number, keeps));
        keeps
    }

    /// Returns the requests of the rules for this read.
    pub(crate) fn ruling(&self) -> &Ruling {
        &self.ruled.ruling
    }

    /// Returns the disk rank that the rules assign to this read.
    pub(crate) fn rank(&self) -> Option<RequestRank> {
        self.ruled.rank
    }

    /// Forgets the last decision, because the copy of the block was invalidated.
    pub(crate) fn forget_last(&mut self) {
        self.last = None;
    }

    fn decide(&self, number: u64) -> Advice {
        let block = unread(self.bucket, &self.key, self.size, number);
        let context = PolicyRequestContext::of_caller(self.caller);
        let request =
            ObservedRequest { context, bucket: self.bucket, key: &self.key, op: Op::Read, size: self.size };
        self.policy_driver.with_state(|state, now_us| {
            let id = block_id(self.bucket, &self.key, number);
            state.on_read(id);
            let access = request.access(now_us, self.range.clone());
            let seen = self.ruled.seen.at(now_us);
            let mut advice = state.policy_engine.read(seen, &access, block.number, &self.ruled.ruling);
            if let Some(recorder) = &mut state.recorder {
                recorder.decided().add_read(id, advice);
            }
            if advice != Advice::Kept && state.pinned.includes(&block) {
                let pinned = state.policy_engine.engine.pin(now_us, &block, state.pinned.bytes_max());
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

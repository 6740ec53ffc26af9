//! Results of read-ahead, from which the engine learns how far ahead reading is worthwhile.
//!
//! Invariants: exactly one result is reported for each block, also if it is never read ([`Expected::sweep`]);
//! at most [`EXPECTED_MAX`] blocks are remembered.

use super::{Keeper, State};
use crate::copies::block_id;
use mlgw_common::ObjectKey;
use mlgw_common::ids::BucketId;
use mlgw_policies::Prefetch;
use mlgw_policies::engine::{Next, Outcome};
use std::collections::HashMap;

/// Maximum number of expected blocks.
const EXPECTED_MAX: usize = 1 << 14;
/// Time after which a block that was not read counts as wasted, in microseconds.
const WAITED_MAX_US: u64 = 120_000_000;

/// Blocks that were or are being read ahead and have not been read.
#[derive(Debug, Default)]
pub(super) struct Expected(HashMap<u64, Block>);

#[derive(Debug)]
struct Block {
    stream: u64,
    bucket: u64,
    key: Box<str>,
    is_there: bool,
    since_us: u64,
}

impl State {
    /// Returns the blocks to read ahead, within the limits of rules and settings.
    pub(super) fn next(
        &mut self,
        seen: mlgw_policies::engine::Seen,
        access: &mlgw_policies::Access<'_>,
        ruled: Option<Prefetch>,
    ) -> Vec<Next> {
        let mut next = Vec::new();
        let reach = self.decider.reach(access.caller.family, ruled);
        self.decider.engine.ahead(seen, access, &reach, &mut next);
        next
    }

    /// Reports that a block is read.
    pub(super) fn asked(&mut self, id: u64) {
        if let Some(block) = self.expected.0.remove(&id) {
            let outcome = if block.is_there { Outcome::Used } else { Outcome::Late };
            self.tell(&block, outcome);
        }
    }

    /// Reports expected blocks as wasted that were not read in time.
    pub(super) fn sweep(&mut self, now_us: u64) {
        let is_old = |block: &Block| now_us.saturating_sub(block.since_us) > WAITED_MAX_US;
        let old: Vec<u64> =
            self.expected.0.iter().filter(|(_, block)| is_old(block)).map(|(id, _)| *id).collect();
        for id in old {
            if let Some(block) = self.expected.0.remove(&id) {
                self.tell(&block, Outcome::Wasted);
            }
        }
    }

    fn tell(&mut self, block: &Block, outcome: Outcome) {
        self.metrics.ahead[outcome as usize] += 1;
        self.decider.engine.ahead_outcome(block.stream, block.bucket, &block.key, outcome, 1);
    }
}

impl Keeper {
    /// Reports that the expected blocks are not fetched.
    pub(crate) fn declines(&self, next: &Next) {
        self.with(|state, _| {
            state.metrics.ahead[Outcome::Declined as usize] += u64::from(next.blocks);
            let Next { stream, bucket, key, blocks, .. } = next;
            state.decider.engine.ahead_outcome(*stream, *bucket, key, Outcome::Declined, *blocks);
        });
    }

    /// Records that the expected blocks are about to be fetched.
    pub(crate) fn expects(&self, next: &Next, bucket: BucketId, key: &ObjectKey) {
        self.with(|state, since_us| {
            for number in next.first..next.first.saturating_add(next.blocks) {
                let Next { stream, bucket: in_bucket, key: named, .. } = next;
                let (key_text, id) = (named.as_str().into(), block_id(bucket, key, number.into()));
                let block =
                    Block { stream: *stream, bucket: *in_bucket, key: key_text, is_there: false, since_us };
                if state.expected.0.len() >= EXPECTED_MAX {
                    state.tell(&block, Outcome::Declined);
                } else if let Some(before) = state.expected.0.insert(id, block) {
                    state.tell(&before, Outcome::Declined);
                }
            }
        });
    }

    /// Records that a block has arrived.
    pub(crate) fn came(&self, bucket: BucketId, key: &ObjectKey, number: u64) {
        let id = block_id(bucket, key, number);
        if let Some(block) = self.inner.state.lock().expected.0.get_mut(&id) {
            block.is_there = true;
        }
    }

    /// Ends the expectation of a block with this result, if it was not read before.
    pub(crate) fn became(&self, bucket: BucketId, key: &ObjectKey, number: u64, outcome: Outcome) {
        let id = block_id(bucket, key, number);
        self.with(|state, _| {
            if let Some(block) = state.expected.0.remove(&id) {
                state.tell(&block, outcome);
            }
        });
    }
}

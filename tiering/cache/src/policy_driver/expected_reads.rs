//! Results of read-ahead, from which the engine learns how far ahead reading is worthwhile.
//!
//! Invariants: exactly one result is reported for each block, also if it is never read
//! ([`PolicyDriverState::sweep`]); at most [`EXPECTED_MAX`] blocks are remembered.

use super::{PolicyDriver, PolicyDriverState};
use crate::copies::block_id;
use mlgw_common::ObjectKey;
use mlgw_common::ids::BucketId;
use mlgw_policies::PrefetchParameters;
use mlgw_policies::engine::{ReadAheadOutcome, ReadAheadRange};
use std::collections::HashMap;

/// Maximum number of expected blocks.
const EXPECTED_MAX: usize = 1 << 14;
/// Time after which a block that was not read counts as wasted, in microseconds.
const EXPECTED_MAX_US: u64 = 120_000_000;

/// Blocks that were or are being read ahead and have not been read.
#[derive(Debug, Default)]
pub(super) struct ReadAheadExpectations(HashMap<u64, ExpectedBlock>);

#[derive(Debug)]
struct ExpectedBlock {
    stream: u64,
    bucket: u64,
    key: Box<str>,
    has_arrived: bool,
    since_us: u64,
}

impl PolicyDriverState {
    /// Returns the blocks to read ahead, within the limits of rules and settings.
    pub(super) fn next_reads(
        &mut self,
        seen: mlgw_policies::engine::ObservedAccess,
        access: &mlgw_policies::Access<'_>,
        ruled: Option<PrefetchParameters>,
    ) -> Vec<ReadAheadRange> {
        let mut next = Vec::new();
        let reach = self.policy_engine.read_ahead_limits(access.caller.family, ruled);
        self.policy_engine.engine.read_ahead(seen, access, &reach, &mut next);
        next
    }

    /// Reports that a block is read.
    pub(super) fn on_read(&mut self, id: u64) {
        if let Some(block) = self.expected.0.remove(&id) {
            let outcome = if block.has_arrived { ReadAheadOutcome::Used } else { ReadAheadOutcome::Late };
            self.report(&block, outcome);
        }
    }

    /// Reports expected blocks as wasted that were not read in time.
    pub(super) fn sweep(&mut self, now_us: u64) {
        let is_old = |block: &ExpectedBlock| now_us.saturating_sub(block.since_us) > EXPECTED_MAX_US;
        let old: Vec<u64> =
            self.expected.0.iter().filter(|(_, block)| is_old(block)).map(|(id, _)| *id).collect();
        for id in old {
            if let Some(block) = self.expected.0.remove(&id) {
                self.report(&block, ReadAheadOutcome::Wasted);
            }
        }
    }

    fn report(&mut self, block: &ExpectedBlock, outcome: ReadAheadOutcome) {
        self.metrics.ahead[outcome as usize] += 1;
        self.policy_engine.engine.record_ahead_outcome(block.stream, block.bucket, &block.key, outcome, 1);
    }
}

impl PolicyDriver {
    /// Reports that the expected blocks are not fetched.
    pub(crate) fn decline(&self, next: &ReadAheadRange) {
        self.with_state(|state, _| {
            state.metrics.ahead[ReadAheadOutcome::Declined as usize] += u64::from(next.blocks);
            let ReadAheadRange { stream, bucket, key, blocks, .. } = next;
            state.policy_engine.engine.record_ahead_outcome(
                *stream,
                *bucket,
                key,
                ReadAheadOutcome::Declined,
                *blocks,
            );
        });
    }

    /// Records that the expected blocks are about to be fetched.
    pub(crate) fn expect(&self, next: &ReadAheadRange, bucket: BucketId, key: &ObjectKey) {
        self.with_state(|state, since_us| {
            for number in next.first..next.first.saturating_add(next.blocks) {
                let ReadAheadRange { stream, bucket: in_bucket, key: named, .. } = next;
                let (key_text, id) = (named.as_str().into(), block_id(bucket, key, number.into()));
                let block = ExpectedBlock {
                    stream: *stream,
                    bucket: *in_bucket,
                    key: key_text,
                    has_arrived: false,
                    since_us,
                };
                if state.expected.0.len() >= EXPECTED_MAX {
                    state.report(&block, ReadAheadOutcome::Declined);
                } else if let Some(before) = state.expected.0.insert(id, block) {
                    state.report(&before, ReadAheadOutcome::Declined);
                }
            }
        });
    }

    /// Records that a block has arrived.
    pub(crate) fn on_arrival(&self, bucket: BucketId, key: &ObjectKey, number: u64) {
        let id = block_id(bucket, key, number);
        if let Some(block) = self.inner.state.lock().expected.0.get_mut(&id) {
            block.has_arrived = true;
        }
    }

    /// Ends the expectation of a block with this result, if it was not read before.
    pub(crate) fn end_expectation(
        &self,
        bucket: BucketId,
        key: &ObjectKey,
        number: u64,
        outcome: ReadAheadOutcome,
    ) {
        let id = block_id(bucket, key, number);
        self.with_state(|state, _| {
            if let Some(block) = state.expected.0.remove(&id) {
                state.report(&block, outcome);
            }
        });
    }
}

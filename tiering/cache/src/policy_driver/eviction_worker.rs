//! Worker that applies the engine's decisions made without a reader: it removes evicted blocks, and adopts
//! the blocks that are present.
//!
//! Invariant: under the lock of the ledger a block is evicted only if the engine does not keep it at that
//! moment, so a block that is read again in between stays.

use super::{PolicyDriver, PolicyDriverShared, unread};
use crate::copies::{Copies, KeptCursor, KeptPage, WeakCopies};
use mlgw_formats::decision_words::DecisionReason;
use mlgw_policies::engine::Advice;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Interval of passes without work: other programs may fill the disk.
const PASS_INTERVAL: Duration = Duration::from_secs(1);

/// Runs until the driver or the copies are dropped.
pub(super) async fn run(policy_driver: Weak<PolicyDriverShared>, copies: WeakCopies) {
    let mut from = AdoptionScan::Begin;
    loop {
        let (Some(inner), Some(copies)) = (policy_driver.upgrade(), copies.upgrade()) else { return };
        let policy_driver = PolicyDriver { inner };
        if policy_driver.inner.state.lock().pinned.take_needs_scan() && !matches!(from, AdoptionScan::Begin) {
            from = AdoptionScan::Begin;
        }
        from = policy_driver.adopt_page(&copies, from).await;
        policy_driver.fit_capacity(&copies);
        policy_driver.evict_pending(&copies).await;
        let is_idle = matches!(from, AdoptionScan::End);
        let inner = policy_driver.inner.clone();
        drop((policy_driver, copies));
        if is_idle {
            // A pass follows whether the wait elapsed or was ended by a notification.
            let _ = mlgw_common::time::timeout(PASS_INTERVAL, inner.wake.notified()).await;
        }
    }
}

/// Progress of the scan over the present blocks.
enum AdoptionScan {
    Begin,
    At(KeptCursor),
    End,
}

impl PolicyDriver {
    /// Adapts the capacity of the engine to the space available now.
    fn fit_capacity(&self, copies: &Copies) {
        let capacity_bytes = copies.blocks_bytes_max();
        self.with_state(|state, now_us| {
            state.sweep(now_us);
            if state.policy_engine.engine.capacity_bytes() != capacity_bytes {
                state.policy_engine.set_capacity(now_us, capacity_bytes);
            }
        });
    }

    /// Removes the evicted blocks.
    async fn evict_pending(&self, copies: &Copies) {
        let evicted = std::mem::take(&mut self.inner.state.lock().pending_evictions);
        if !evicted.is_empty() {
            let inner = self.inner.clone();
            let stays = move |id: u64| inner.state.lock().policy_engine.engine.is_kept(id);
            copies.evict_blocks_unless(&evicted, Arc::new(stays), DecisionReason::Policy.into()).await;
        }
    }

    /// Scans a page of the present blocks: the engine adopts each of them, or it is evicted.
    async fn adopt_page(&self, copies: &Copies, scan: AdoptionScan) -> AdoptionScan {
        let from = match scan {
            AdoptionScan::Begin => None,
            AdoptionScan::At(cursor) => Some(cursor),
            AdoptionScan::End => return AdoptionScan::End,
        };
        let copies = copies.clone();
        let page = tokio::task::spawn_blocking(move || copies.kept_blocks(from)).await;
        let Ok(KeptPage { blocks, next }) = page else { return AdoptionScan::End };
        for block in &blocks {
            let unread = unread(block.bucket, &block.key, block.object_bytes, block.number);
            self.with_state(|state, now_us| {
                if !state.pinned.includes(&unread) {
                    state.policy_engine.engine.unpin(block.id);
                }
                if state.adopt(now_us, &unread) == Advice::Bypass {
                    state.pending_evictions.push(block.id);
                }
            });
        }
        next.map_or(AdoptionScan::End, AdoptionScan::At)
    }
}

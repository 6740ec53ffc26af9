//! Worker that applies the engine's decisions made without a reader: it removes evicted blocks, and adopts
//! the blocks that are present.
//!
//! Invariant: under the lock of the ledger a block is evicted only if the engine does not keep it at that
//! moment, so a block that is read again in between stays.

use super::{Inner, Keeper, unread};
use crate::copies::{Copies, KeptCursor, KeptPage, WeakCopies};
use mlgw_formats::decision_words::Reason;
use mlgw_policies::engine::Advice;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Interval of passes without work: other programs may fill the disk.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Runs until the driver or the copies are dropped.
pub(super) async fn run(keeper: Weak<Inner>, copies: WeakCopies) {
    let mut from = Walk::Begin;
    loop {
        let (Some(inner), Some(copies)) = (keeper.upgrade(), copies.upgrade()) else { return };
        let keeper = Keeper { inner };
        if keeper.inner.state.lock().held.take_new() && !matches!(from, Walk::Begin) {
            from = Walk::Begin;
        }
        from = keeper.take_in_page(&copies, from).await;
        keeper.fit(&copies);
        keeper.let_go(&copies).await;
        let is_idle = matches!(from, Walk::End);
        let inner = keeper.inner.clone();
        drop((keeper, copies));
        if is_idle {
            // A pass follows whether the wait elapsed or was ended by a notification.
            let _ = tokio::time::timeout(LOOK_EVERY, inner.wake.notified()).await;
        }
    }
}

/// Progress of the scan over the present blocks.
enum Walk {
    Begin,
    At(KeptCursor),
    End,
}

impl Keeper {
    /// Adapts the capacity of the engine to the space available now.
    fn fit(&self, copies: &Copies) {
        let capacity_bytes = copies.blocks_bytes_max();
        self.with(|state, now_us| {
            state.sweep(now_us);
            if state.decider.engine.capacity_bytes() != capacity_bytes {
                state.decider.set_capacity(now_us, capacity_bytes);
            }
        });
    }

    /// Removes the evicted blocks.
    async fn let_go(&self, copies: &Copies) {
        let evicted = std::mem::take(&mut self.inner.state.lock().evicted);
        if !evicted.is_empty() {
            let inner = self.inner.clone();
            let stays = move |id: u64| inner.state.lock().decider.engine.is_kept(id);
            copies.let_go_unless(&evicted, Arc::new(stays), Reason::Policy.into()).await;
        }
    }

    /// Scans a page of the present blocks: the engine adopts each of them, or it is evicted.
    async fn take_in_page(&self, copies: &Copies, walk: Walk) -> Walk {
        let from = match walk {
            Walk::Begin => None,
            Walk::At(cursor) => Some(cursor),
            Walk::End => return Walk::End,
        };
        let copies = copies.clone();
        let page = tokio::task::spawn_blocking(move || copies.kept_blocks(from)).await;
        let Ok(KeptPage { blocks, next }) = page else { return Walk::End };
        for block in &blocks {
            let unread = unread(block.bucket, &block.key, block.object_bytes, block.number);
            self.with(|state, now_us| {
                if !state.held.holds(&unread) {
                    state.decider.engine.unpin(block.id);
                }
                if state.adopt(now_us, &unread) == Advice::Bypass {
                    state.evicted.push(block.id);
                }
            });
        }
        next.map_or(Walk::End, Walk::At)
    }
}

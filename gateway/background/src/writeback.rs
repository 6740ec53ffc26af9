//! Sends dirty writes of write-back buckets to their origins.
//!
//! [`persist`] sends single writes in the order that the queue permits, [`parts`] sends multipart objects,
//! [`judge`] compares the origin's object with the write, [`orphans`] aborts uploads whose ids were never
//! learned. The record of a write is removed only after the origin has confirmed the write. After a power
//! failure every write with a record is looked up at its origin again.

mod judge;
mod orphans;
mod parts;
mod persist;
mod resend_schedule;

pub(crate) use persist::add_digests;

use mlgw_cache::writeback::record::Timelines;
use mlgw_cache::writeback::{NewWriteBackQueues, WriteBack};
use mlgw_metadata::Catalogue;
use mlgw_segments::decisions::Decisions;
use mlgw_segments::tiers::Tiers;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Dependencies of the sender.
pub struct SenderContext {
    /// Queues of dirty writes.
    pub writeback: WriteBack,
    /// Catalogue, which has the records.
    pub catalogue: Catalogue,
    /// Tiers, which have the bytes.
    pub tiers: Tiers,
    /// Log of placement decisions.
    pub decisions: Decisions,
}

/// Sender of a node, running until [`Sender::stop`].
pub struct Sender {
    inner: Arc<WriteBackSender>,
}

struct WriteBackSender {
    writeback: WriteBack,
    timelines: Arc<Timelines>,
    catalogue: Catalogue,
    tiers: Tiers,
    decisions: Decisions,
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl Sender {
    /// Starts sending. Must be called within a tokio runtime.
    #[must_use]
    pub fn start(context: SenderContext, mut queues: NewWriteBackQueues) -> Self {
        let SenderContext { writeback, catalogue, tiers, decisions } = context;
        let (timelines, stop) = (Arc::clone(writeback.timelines()), CancellationToken::new());
        let tasks = TaskTracker::new();
        let inner =
            Arc::new(WriteBackSender { writeback, timelines, catalogue, tiers, decisions, stop, tasks });
        let (sender, stop) = (Arc::clone(&inner), inner.stop.clone());
        inner.tasks.spawn(async move {
            while let Some(Some(queue)) = stop.run_until_cancelled(queues.recv()).await {
                persist::begin(&sender, &queue);
            }
        });
        Self { inner }
    }

    /// Begins no further sends, and ends those in progress. Does not wait for them.
    pub fn cancel(&self) {
        self.inner.stop.cancel();
    }

    /// Stops sending; dirty writes remain dirty until the next start.
    pub async fn stop(&self) {
        self.cancel();
        self.inner.tasks.close();
        self.inner.tasks.wait().await;
    }
}

impl Drop for Sender {
    /// Cancels all sends, also if [`Self::stop`] was not called.
    fn drop(&mut self) {
        self.cancel();
    }
}

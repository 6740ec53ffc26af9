//! Sends dirty writes of write-back buckets to their origins.
//!
//! [`persist`] sends one write after the other as the queue's order permits, [`parts`] sends a multipart
//! object, [`judge`] compares the origin's object with the write, [`orphans`] aborts uploads whose ids were
//! never learned. Always: the record of a write is removed only after the origin has shown the write. After a
//! power failure every write that has a record is looked up at its origin again.

mod doubt;
mod judge;
mod orphans;
mod parts;
mod persist;

pub(crate) use persist::prove;

use mlgw_cache::writeback::record::Timelines;
use mlgw_cache::writeback::{NewQueues, WriteBack};
use mlgw_metadata::Catalogue;
use mlgw_segments::decisions::Decisions;
use mlgw_segments::tiers::Tiers;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// The parts of the server that the sender works with.
pub struct SenderContext {
    /// The queues.
    pub writeback: WriteBack,
    /// The catalogue, which has the records.
    pub catalogue: Catalogue,
    /// The tiers, which have the bytes.
    pub tiers: Tiers,
    /// The log of placement decisions.
    pub decisions: Decisions,
}

/// The sender of a node, until [`Sender::stop`].
pub struct Sender {
    inner: Arc<Inner>,
}

struct Inner {
    writeback: WriteBack,
    timelines: Arc<Timelines>,
    catalogue: Catalogue,
    tiers: Tiers,
    decisions: Decisions,
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl Sender {
    /// Begins to send. Must be called within a tokio runtime.
    #[must_use]
    pub fn start(context: SenderContext, mut queues: NewQueues) -> Self {
        let SenderContext { writeback, catalogue, tiers, decisions } = context;
        let (timelines, stop) = (Arc::clone(writeback.timelines()), CancellationToken::new());
        let tasks = TaskTracker::new();
        let inner = Arc::new(Inner { writeback, timelines, catalogue, tiers, decisions, stop, tasks });
        let (sender, stop) = (Arc::clone(&inner), inner.stop.clone());
        inner.tasks.spawn(async move {
            while let Some(Some(queue)) = stop.run_until_cancelled(queues.recv()).await {
                persist::begin(&sender, &queue);
            }
        });
        Self { inner }
    }

    /// Stops sending; what is dirty stays so until the next start.
    pub async fn stop(&self) {
        self.inner.stop.cancel();
        self.inner.tasks.close();
        self.inner.tasks.wait().await;
    }
}

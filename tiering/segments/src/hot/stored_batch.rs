//! A batch that is written to a segment, and what follows when it is acknowledged.
//!
//! The writer's thread completes a batch without followers after its sync. A batch with followers is
//! completed by the thread that records the last sync it needs, which is the writer's or one that reads an
//! answer. The requests continue before the writer's thread is woken
//! ([decision](../../../../docs/decisions/2026-11-30-inline-polls.md)). A batch that is not acknowledged
//! returns its replies, and its writer stores it again. Nothing is stored here.

use std::io;
use std::sync::Arc;

use mlgw_formats::segment_header::SEGMENT_HEADER_BYTES;
use tokio::runtime::Handle;

use super::AppendError;
use super::holds::SegmentHold;
use super::location::RecordLocation;
use super::metrics::{HotCounters, add};
use super::queue::{AppendQueue, AppendReply, StoredAppend};
use super::space::DiskSpace;
use crate::flash::{FlashBudget, FlashWriteCause};

/// Space, metrics and flash budget that all writers charge.
pub(super) struct AppendAccounts {
    pub(super) space: Arc<DiskSpace>,
    pub(super) metrics: Arc<HotCounters>,
    pub(super) flash: FlashBudget,
    pub(super) runtime: Handle,
}

/// A written batch, before its requests are answered.
pub(super) struct StoredBatch {
    pub(super) accounts: Arc<AppendAccounts>,
    pub(super) queue: Arc<AppendQueue>,
    /// The hold of the writer on the segment.
    pub(super) hold: SegmentHold,
    /// Offset after the batch in its segment.
    pub(super) end: u64,
    /// Queued bytes of its chunks.
    pub(super) bytes: usize,
    /// Bytes of the log floor, in addition to the queued ones.
    pub(super) floor_bytes: u64,
    pub(super) cause: FlashWriteCause,
    pub(super) locations: Vec<RecordLocation>,
    pub(super) replies: Vec<AppendReply>,
}

/// A batch that failed. Some of it may be on the disk.
pub(super) struct FailedBatch {
    pub(super) error: BatchError,
    /// The replies to its appends.
    pub(super) replies: Vec<AppendReply>,
}

pub(super) enum BatchError {
    /// The own disk failed, and the open segment was given up.
    Disk(io::Error),
    /// The open segment was sealed before the batch, because a follower is in trouble.
    Followers,
    /// There is no segment to write to.
    NoSegment(AppendError),
}

impl StoredBatch {
    /// Records the batch as stored and answers its requests. The batch must be acknowledged, and every
    /// earlier batch of the segment completed. The writer's thread ends the reservation of the space
    /// afterwards, because that may read from the disk.
    pub(super) fn complete(self) {
        let Self { accounts, queue, hold, end, bytes, floor_bytes, cause, locations, replies } = self;
        assert_eq!(locations.len(), replies.len(), "each stored chunk has a location");
        assert!(end >= SEGMENT_HEADER_BYTES + bytes as u64, "the chunks follow the header");
        // The reservation does not cover the log floor.
        accounts.space.charge_extra(floor_bytes);
        hold.set_synced_bytes(end);
        let metrics = &accounts.metrics;
        add(&metrics.batches, 1);
        add(&metrics.appends, replies.len() as u64);
        add(&metrics.appended_bytes, bytes as u64);
        accounts.flash.record_write(cause, bytes as u64);
        let stored = |location| StoredAppend { location, hold: hold.clone() };
        let stored = locations.into_iter().map(stored);
        reply_to_all(&accounts.runtime, replies.into_iter().zip(stored).collect());
        queue.release_room(bytes);
    }
}

/// Refuses the requests of a batch with `bytes` queued bytes. Blocks now and then.
pub(super) fn refuse(
    accounts: &AppendAccounts,
    queue: &AppendQueue,
    bytes: usize,
    refused: Vec<AppendReply>,
    error: AppendError,
) {
    add(&accounts.metrics.append_errors, refused.len() as u64);
    for reply in refused {
        let _ = reply.send(Err(error));
    }
    accounts.space.finish(bytes as u64);
    queue.release_room(bytes);
}

/// Replies to a batch. Several replies are sent by one task, which wakes the requests on a worker of the
/// runtime: another thread would be preempted by the first request that it wakes, and their commands would
/// not be batched.
fn reply_to_all(runtime: &Handle, replies: Vec<(AppendReply, StoredAppend)>) {
    let many = replies.len() > 1;
    let reply = move || {
        for (reply, stored) in replies {
            // If the request was dropped, its chunk is dead bytes.
            let _ = reply.send(Ok(stored));
        }
    };
    if many {
        runtime.spawn(async move { reply() });
    } else {
        reply();
    }
}

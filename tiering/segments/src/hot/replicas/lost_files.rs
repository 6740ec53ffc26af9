//! Open segments whose file is no longer in its directory, as after an operator removed it.
//!
//! Appends to such a file would succeed, and its bytes would be gone after a restart. So its replica ends:
//! the writer seals the segment, and a follower refuses further appends to it. The replica is suspect from
//! then on, so a copy of another node takes its place when the segment is sealed. Sealed segments without a
//! file are found by the sweep.
//!
//! Nothing is persisted. After a power loss the recovery of the segment finds that the file is missing.

use std::sync::Arc;

use mlgw_common::ids::SegmentId;
use mlgw_formats::schema::SegmentRecord;

use super::Replication;
use crate::hot::HotTierInner;
use crate::hot::compaction::{MoveStepError, blocking};

/// Ends the replicas of open segments whose file is missing. `own_open` are those that this process appends
/// to.
pub(super) async fn end_replicas(
    inner: &Arc<HotTierInner>,
    replication: &Replication,
    own_open: &[SegmentRecord],
) -> Result<(), MoveStepError> {
    let holds = &inner.shared.segments.holds;
    let has_appends = |segment: &SegmentId| holds.synced_bytes(*segment).is_some_and(|bytes| bytes > 0);
    let mut open = inner.replicas.followed.with_files();
    open.extend(own_open.iter().map(SegmentRecord::segment_id).filter(has_appends));
    let of = inner.clone();
    let lost = blocking(move || {
        open.retain(|segment| !of.has_file(*segment));
        // What is missing because another directory is there is not lost yet.
        if open.is_empty() || of.check_directories().is_err() {
            return Ok(Vec::new());
        }
        open.retain(|segment| !of.has_file(*segment));
        Ok(open)
    });
    for segment in lost.await? {
        tracing::warn!(%segment, "the file of an open segment is missing on this node; its replica ends");
        inner.replicas.followed.end(segment, "the file of the replica is missing");
        holds.give_up(segment);
        inner.writer_queues.roll();
        replication.add_suspects([segment]);
    }
    Ok(())
}

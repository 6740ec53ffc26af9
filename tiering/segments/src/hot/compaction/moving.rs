//! Empties a segment: reads it record by record, appends referenced chunks elsewhere and changes their
//! references. A chunk goes to the set of its key's group, which may be another one by now.
//!
//! A chunk is verified before it is written again under fresh checksums; a chunk that does not verify stays
//! where it is, so that damage never gets valid checksums. If a chunk is replaced or deleted in the meantime,
//! that change wins: the compare and set fails, and the copy is dead.

use mlgw_common::time::Instant;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;
use mlgw_common::ids::SegmentId;
use mlgw_common::limits::{MOVE_BATCH_BYTES_MAX, MOVE_BATCH_CHUNKS_MAX};
use mlgw_metadata::{Catalogue, ChunkOwner, DeadSet, ProposeError, Reference};
use tokio::task::JoinSet;

use crate::hot::map::SegmentLocation;
use crate::hot::pace::ByteRateLimiter;
use crate::hot::scan::{ScanStep, SegmentScan};
use crate::hot::writer_queues::QueueKind;
use crate::hot::{AppendError, HotTierInner, OwnerPredicate, SegmentReadError};
use mlgw_formats::decision_entry::{DecisionCause, DecisionSubject, PlacementDecision};
use mlgw_formats::decision_words::{DecisionKind, DecisionOutcome, DecisionPlace};
use mlgw_formats::segment_payload::Payload;
use mlgw_formats::segment_record::RecordOwner;

/// Interval at which a wait checks for a shutdown.
const STOP_CHECK: Duration = Duration::from_millis(50);

/// A step failed. The job is abandoned and starts anew in a later pass.
#[derive(Debug, thiserror::Error)]
pub enum MoveStepError {
    /// The tier is shutting down.
    #[error("the tier is stopping")]
    Stopping,
    /// The catalogue cannot be read.
    #[error(transparent)]
    Read(#[from] mlgw_metadata::ReadError),
    /// The catalogue did not accept a command.
    #[error(transparent)]
    Propose(#[from] ProposeError),
    /// There is no space for moved chunks.
    #[error("moved data was not stored: {0}")]
    Append(#[from] AppendError),
    /// The disk failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Some chunks were skipped, the others were moved.
    #[error(transparent)]
    Unreadable(#[from] UnreadableChunks),
}

/// Chunks that no node can read now.
#[derive(Debug, thiserror::Error)]
#[error("{count} chunks were skipped; the first one: {first}")]
pub struct UnreadableChunks {
    /// Their number.
    pub count: u64,
    /// The error of the first one.
    pub first: Box<SegmentReadError>,
}

impl MoveStepError {
    /// Returns the outcome for the decision log.
    pub(in crate::hot) fn outcome(&self) -> DecisionOutcome {
        match self {
            Self::Append(AppendError::Full) => DecisionOutcome::NoRoom,
            Self::Io(error) if error.kind() == io::ErrorKind::StorageFull => DecisionOutcome::NoRoom,
            _ => DecisionOutcome::Failed,
        }
    }
}

/// Runs blocking work on the blocking pool.
pub(in crate::hot) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, MoveStepError> + Send + 'static,
) -> Result<T, MoveStepError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|stopped| Err(std::io::Error::other(stopped).into()))
}

/// Accounting of the chunks moved out of a segment within the hot tier, for the decision log.
pub(in crate::hot) struct RelocationLog {
    segment: SegmentId,
    moved_bytes: Arc<AtomicU64>,
}

impl RelocationLog {
    pub(in crate::hot) fn start(segment: SegmentId) -> Self {
        Self { segment, moved_bytes: Arc::default() }
    }

    /// Records the moved bytes, and the error if there is one.
    pub(in crate::hot) fn record(
        self,
        inner: &HotTierInner,
        why: DecisionCause,
        error: Option<&MoveStepError>,
    ) {
        let bytes = self.moved_bytes.load(Relaxed);
        let decided = |bytes, outcome| relocation(inner, self.segment, bytes, why, outcome);
        if bytes > 0 {
            inner.decisions.record(&decided(bytes, DecisionOutcome::Done));
        }
        if let Some(error) = error.filter(|error| !matches!(error, MoveStepError::Stopping)) {
            inner.decisions.record_because(&decided(0, error.outcome()), error);
        }
    }
}

/// A decision about bytes that are moved out of a segment within the hot tier.
pub(in crate::hot) fn relocation(
    inner: &HotTierInner,
    segment: SegmentId,
    bytes: u64,
    cause: DecisionCause,
    outcome: DecisionOutcome,
) -> PlacementDecision<'static> {
    PlacementDecision {
        kind: DecisionKind::Relocate,
        subject: DecisionSubject::Segment(segment),
        from: inner.decision_place(segment),
        to: DecisionPlace::Hot,
        bytes,
        cause,
        outcome,
    }
}

/// A referenced chunk.
pub(in crate::hot) struct LiveChunk {
    pub(in crate::hot) owner: RecordOwner,
    pub(in crate::hot) reference: Reference,
    /// The chunk's payload, as it will be stored elsewhere.
    pub(in crate::hot) data: Payload,
}

/// Converts the owner of a chunk to the catalogue's type.
pub(in crate::hot) fn chunk_owner(owner: &RecordOwner) -> ChunkOwner {
    let RecordOwner { bucket, key, body, part, offset, .. } = owner;
    ChunkOwner { bucket: *bucket, key: key.clone(), body: *body, part: *part, offset: *offset }
}

/// Some records of a segment.
struct RelocationBatch {
    live: Vec<LiveChunk>,
    read_bytes: u64,
    /// Scan of the remaining records; `None` at the end of the segment.
    rest: Option<SegmentScan>,
}

/// Moves all referenced chunks of the picked segment that verify. Chunks known to be dead are skipped at
/// first; if the segment still has references afterwards, all chunks are looked up.
pub(super) async fn empty_segment(
    inner: &Arc<HotTierInner>,
    catalogue: &Catalogue,
    picked: &RelocationLog,
) -> Result<(), MoveStepError> {
    let (segment, pace) = (picked.segment, &inner.compaction.pace);
    let dead = catalogue.known_dead(segment);
    let passed_over = !dead.is_empty();
    let rate = inner.compaction.settings().bytes_per_second;
    move_selected(ChunkSelection::all_but(dead), inner, catalogue, picked, pace, rate).await?;
    if passed_over && catalogue.segment_usage(segment)?.extents > 0 {
        let all = ChunkSelection::all_but(DeadSet::default());
        move_selected(all, inner, catalogue, picked, pace, rate).await?;
    }
    Ok(())
}

/// Destination of moved chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::hot) enum RelocationTarget {
    /// The segment of moved chunks.
    Moved,
    /// The segment of chunks that leave the tier next.
    Leaving,
}

/// Moves the chunks of the picked segment that are referenced and match `wanted`. Of other chunks little more
/// than the record header is read: the whole segment is about to be read again, and copied, at the same rate.
pub(in crate::hot) async fn move_matching(
    inner: &Arc<HotTierInner>,
    catalogue: &Catalogue,
    picked: &RelocationLog,
    wanted: OwnerPredicate,
    to: RelocationTarget,
    pace: &ByteRateLimiter,
) -> Result<(), MoveStepError> {
    let those = ChunkSelection { dead: catalogue.known_dead(picked.segment), wanted: Some(wanted), to };
    let rate = inner.placing.settings().bytes_per_second;
    move_selected(those, inner, catalogue, picked, pace, rate).await
}

/// Selection of chunks of a segment, and their destination.
struct ChunkSelection {
    /// Offsets of records to skip.
    dead: DeadSet,
    /// Only chunks that match, if there is a predicate.
    wanted: Option<OwnerPredicate>,
    to: RelocationTarget,
}

impl ChunkSelection {
    fn all_but(dead: DeadSet) -> Self {
        Self { dead, wanted: None, to: RelocationTarget::Moved }
    }

    fn contains(&self, offset: u64, owner: &RecordOwner) -> bool {
        !self.dead.contains(offset) && self.wanted.as_ref().is_none_or(|wants| wants(owner))
    }
}

/// Moves the selected chunks, reading at most `rate` bytes per second.
async fn move_selected(
    those: ChunkSelection,
    inner: &Arc<HotTierInner>,
    catalogue: &Catalogue,
    picked: &RelocationLog,
    pace: &ByteRateLimiter,
    rate: u64,
) -> Result<(), MoveStepError> {
    let segment = picked.segment;
    let Some(summary) = catalogue.segment(segment) else { return Ok(()) };
    let place = SegmentLocation { seed: summary.seed, created: Some(summary.created), tier: summary.tier };
    let file = match inner.volumes.dirs().open_verified(segment, &place) {
        Ok(file) => file,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidData) => {
            tracing::error!(%segment, %error,
                "the file of a segment with live data is missing or belongs to another segment");
            return Ok(());
        }
        Err(error) => return Err(error.into()),
    };
    let (to, those) = (those.to, Arc::new(those));
    let mut rest = {
        let places = inner.shared.queues.for_tier(summary.tier).clone();
        let scan = SegmentScan::new(file, segment, summary.seed, 0)?.with_disk_queue(places);
        Some(if those.wanted.is_some() { scan.with_small_window() } else { scan })
    };
    while let Some(scan) = rest {
        let (reads, those) = (catalogue.clone(), those.clone());
        let batch = tokio::task::spawn_blocking(move || next_batch(scan, &those, &reads, segment)).await;
        let batch = batch.unwrap_or_else(|stopped| Err(io::Error::other(stopped).into()))?;
        wait_until(inner, pace.due_at(Instant::now(), batch.read_bytes, rate)).await?;
        move_all(inner, catalogue, batch.live, to, &picked.moved_bytes).await?;
        rest = batch.rest;
    }
    Ok(())
}

/// Waits until `due`, or until the tier stops.
pub(in crate::hot) async fn wait_until(inner: &HotTierInner, due: Instant) -> Result<(), MoveStepError> {
    loop {
        if inner.compaction.is_stopped() {
            return Err(MoveStepError::Stopping);
        }
        let left = due.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        mlgw_common::time::sleep(left.min(STOP_CHECK)).await;
    }
}

/// Reads records until there are enough bytes to move, or to throttle. Blocks the calling thread.
fn next_batch(
    mut scan: SegmentScan,
    those: &ChunkSelection,
    catalogue: &Catalogue,
    segment: SegmentId,
) -> Result<RelocationBatch, MoveStepError> {
    let (mut live, mut looked_at, before) = (Vec::new(), 0, scan.read_bytes());
    while looked_at < MOVE_BATCH_BYTES_MAX && live.len() < MOVE_BATCH_CHUNKS_MAX {
        let record = match scan.step(&mut |offset, owner| those.contains(offset, owner))? {
            ScanStep::Record(record) => record,
            ScanStep::Passed(bytes) => {
                looked_at += bytes;
                continue;
            }
            ScanStep::End => {
                return Ok(RelocationBatch { live, read_bytes: scan.read_bytes() - before, rest: None });
            }
        };
        looked_at += record.end - record.offset;
        let Some((head, owner)) = record.head.and_then(|head| Some((head, head.owner()?))) else { continue };
        let Some(reference) = catalogue.reference(&chunk_owner(&owner), segment, record.offset)? else {
            continue;
        };
        let extent = &reference.extent;
        let same = extent.head_bytes as usize == head.head_bytes
            && extent.stored_bytes == head.stored_bytes as u64
            && extent.logical_bytes == head.logical_bytes as u64
            && extent.encoding == head.encoding as i32;
        if !record.whole || !same {
            tracing::error!(%segment, record.offset, "a referenced chunk fails verification; not moved");
            continue;
        }
        // Copied as stored, without decompression.
        let data = Payload::from_record(&head, Bytes::copy_from_slice(record.payload));
        live.push(LiveChunk { owner, reference, data });
    }
    Ok(RelocationBatch { live, read_bytes: scan.read_bytes() - before, rest: Some(scan) })
}

/// Moves chunks concurrently, so that their writes and their commands share syncs.
async fn move_all(
    inner: &Arc<HotTierInner>,
    catalogue: &Catalogue,
    live: Vec<LiveChunk>,
    to: RelocationTarget,
    moved_bytes: &Arc<AtomicU64>,
) -> Result<(), MoveStepError> {
    let mut moves = JoinSet::new();
    for one in live {
        let (inner, catalogue, moved_bytes) = (inner.clone(), catalogue.clone(), moved_bytes.clone());
        moves.spawn(async move {
            let bytes = one.data.stored_bytes() as u64;
            move_chunk(&inner, &catalogue, one, to).await?;
            moved_bytes.fetch_add(bytes, Relaxed);
            Ok(())
        });
    }
    let mut outcome = Ok(());
    while let Some(moved) = moves.join_next().await {
        let moved = moved.unwrap_or_else(|stopped| Err(io::Error::other(stopped).into()));
        outcome = outcome.and(moved);
    }
    outcome
}

/// Moves a chunk. Returns true if its old location was still referenced.
pub(in crate::hot) async fn move_chunk(
    inner: &HotTierInner,
    catalogue: &Catalogue,
    one: LiveChunk,
    to: RelocationTarget,
) -> Result<bool, MoveStepError> {
    let kind = match to {
        RelocationTarget::Moved => QueueKind::Moved,
        RelocationTarget::Leaving => QueueKind::Leaving,
    };
    let appended = inner.append_by(kind, &one.owner, &one.data).await?;
    if to == RelocationTarget::Leaving {
        inner.placing.add_leaving_segment(appended.extent.segment_id());
    }
    // The new segment is held until the reference is changed, as for any append.
    let is_named = catalogue.relocate(&chunk_owner(&one.owner), one.reference, appended.extent).await?;
    inner.compaction.moved_bytes.fetch_add(one.data.stored_bytes() as u64, Relaxed);
    Ok(is_named)
}

//! Empties a segment: reads it record by record, and whatever is referred to is appended elsewhere
//! and renamed.
//!
//! A chunk is verified before it is written anew under fresh checksums; one that does not verify is
//! left where it is, so that nobody takes damage for the real thing. A chunk that is replaced or
//! deleted meanwhile keeps its new fate: its compare and set finds nothing, and the copy is dead.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use bytes::Bytes;
use mlgw_common::ids::SegmentId;
use mlgw_common::limits::{MOVE_BATCH_BYTES_MAX, MOVE_BATCH_CHUNKS_MAX};
use mlgw_metadata::{Catalogue, ChunkOwner, DeadSet, ProposeError, Reference};
use tokio::task::JoinSet;

use crate::decisions;
use crate::hot::map::Whereabouts;
use crate::hot::pace::Pace;
use crate::hot::scan::{Scan, Step};
use crate::hot::{AppendError, Inner, Wanted};
use mlgw_formats::decision_entry::{Decided, What, Why};
use mlgw_formats::decision_words::{Kind, Outcome};
use mlgw_formats::segment_payload::Payload;
use mlgw_formats::segment_record::Owner;

/// How soon a wait ends when the tier stops.
const STOP_CHECK: Duration = Duration::from_millis(50);

/// Why a step was not made. The job is given up and begins anew with a later round.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    /// The tier stops.
    #[error("the tier is stopping")]
    Stopping,
    /// The catalogue cannot be read.
    #[error(transparent)]
    Read(#[from] mlgw_metadata::ReadError),
    /// The catalogue took no command.
    #[error(transparent)]
    Propose(#[from] ProposeError),
    /// There is no room for what is moved.
    #[error("what is moved was not stored: {0}")]
    Append(#[from] AppendError),
    /// The disk.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl StepError {
    /// What the log of decisions says of it.
    pub(in crate::hot) fn outcome(&self) -> Outcome {
        match self {
            Self::Append(AppendError::Full) => Outcome::NoRoom,
            Self::Io(error) if error.kind() == io::ErrorKind::StorageFull => Outcome::NoRoom,
            _ => Outcome::Failed,
        }
    }
}

/// The moving of a segment's chunks elsewhere in the hot tier, for the log of decisions.
pub(in crate::hot) struct Picked {
    segment: SegmentId,
    moved_bytes: Arc<AtomicU64>,
}

impl Picked {
    pub(in crate::hot) fn begin(segment: SegmentId) -> Self {
        Self { segment, moved_bytes: Arc::default() }
    }

    /// Records how much was moved, if anything was or should have been.
    pub(in crate::hot) fn end(self, inner: &Inner, why: Why, error: Option<&StepError>) {
        let bytes = self.moved_bytes.load(Relaxed);
        let decided = |bytes, outcome| Decided {
            kind: Kind::Relocate,
            what: What::Segment(self.segment),
            from: inner.place_of(self.segment),
            to: decisions::Place::Hot,
            bytes,
            why,
            outcome,
        };
        if bytes > 0 {
            inner.decisions.record(&decided(bytes, Outcome::Done));
        }
        if let Some(error) = error.filter(|error| !matches!(error, StepError::Stopping)) {
            inner.decisions.record_because(&decided(0, error.outcome()), error);
        }
    }
}

/// A chunk that is referred to.
pub(in crate::hot) struct Live {
    pub(in crate::hot) owner: Owner,
    pub(in crate::hot) reference: Reference,
    /// As it is stored elsewhere.
    pub(in crate::hot) data: Payload,
}

/// Whose a chunk is, as the catalogue asks.
pub(in crate::hot) fn chunk_owner(owner: &Owner) -> ChunkOwner {
    let Owner { bucket, key, body, part, offset, .. } = owner;
    ChunkOwner { bucket: *bucket, key: key.clone(), body: *body, part: *part, offset: *offset }
}

/// Some records of a segment.
struct Batch {
    live: Vec<Live>,
    read_bytes: u64,
    /// The rest of the segment.
    rest: Option<Scan>,
}

/// Moves all that is referred to in `segment` and can be. What is known to be dead is passed over; if
/// something refers to the segment then, all of it is asked about.
pub(super) async fn empty(
    inner: &Arc<Inner>,
    catalogue: &Catalogue,
    picked: &Picked,
    pace: &mut Pace,
) -> Result<(), StepError> {
    let segment = picked.segment;
    let dead = catalogue.known_dead(segment);
    let passed_over = !dead.is_empty();
    let rate = inner.compaction.settings().bytes_per_second;
    move_those(Those::all_but(dead), inner, catalogue, picked, (pace, rate)).await?;
    if passed_over && catalogue.segment_usage(segment)?.extents > 0 {
        move_those(Those::all_but(DeadSet::default()), inner, catalogue, picked, (pace, rate)).await?;
    }
    Ok(())
}

/// Where chunks go that are moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::hot) enum To {
    /// Among others that were moved.
    Others,
    /// Among those that leave the tier next.
    Leaving,
}

/// Moves what is referred to in `segment` and `wanted`. Of what is not wanted little more is read than the
/// heads of its records: the whole segment is about to be read once more, and copied, at the same rate.
pub(in crate::hot) async fn pick_out(
    inner: &Arc<Inner>,
    catalogue: &Catalogue,
    picked: &Picked,
    (wanted, to): (Wanted, To),
    pace: &mut Pace,
) -> Result<(), StepError> {
    let those = Those { dead: catalogue.known_dead(picked.segment), wanted: Some(wanted), to };
    let rate = inner.placing.settings().bytes_per_second;
    move_those(those, inner, catalogue, picked, (pace, rate)).await
}

/// Which chunks of a segment are moved, and where.
struct Those {
    /// Not these.
    dead: DeadSet,
    /// Only those that it wants.
    wanted: Option<Wanted>,
    to: To,
}

impl Those {
    fn all_but(dead: DeadSet) -> Self {
        Self { dead, wanted: None, to: To::Others }
    }

    fn are(&self, offset: u64, owner: &Owner) -> bool {
        !self.dead.contains(offset) && self.wanted.as_ref().is_none_or(|wants| wants(owner))
    }
}

async fn move_those(
    those: Those,
    inner: &Arc<Inner>,
    catalogue: &Catalogue,
    picked: &Picked,
    (pace, rate): (&mut Pace, u64),
) -> Result<(), StepError> {
    let segment = picked.segment;
    let Some(summary) = catalogue.segment(segment) else { return Ok(()) };
    let place = Whereabouts { seed: summary.seed, created: Some(summary.created), tier: summary.tier };
    let file = match inner.volumes.dirs().open_own(segment, &place) {
        Ok(file) => file,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidData) => {
            tracing::error!(%segment, %error, "a segment with live data has no file, or another one");
            return Ok(());
        }
        Err(error) => return Err(error.into()),
    };
    let (to, those) = (those.to, Arc::new(those));
    let mut rest = {
        let places = inner.shared.queues.of_tier(summary.tier).clone();
        let scan = Scan::new(file, segment, summary.seed, 0)?.in_background(places);
        Some(if those.wanted.is_some() { scan.sparing() } else { scan })
    };
    while let Some(scan) = rest {
        let (reads, those) = (catalogue.clone(), those.clone());
        let batch = tokio::task::spawn_blocking(move || next_batch(scan, &those, &reads, segment)).await;
        let batch = batch.unwrap_or_else(|stopped| Err(io::Error::other(stopped).into()))?;
        wait_until(inner, pace.due(Instant::now(), batch.read_bytes, rate)).await?;
        move_all(inner, catalogue, batch.live, to, &picked.moved_bytes).await?;
        rest = batch.rest;
    }
    Ok(())
}

/// Waits, unless the tier stops.
async fn wait_until(inner: &Inner, due: Instant) -> Result<(), StepError> {
    loop {
        if inner.compaction.is_stopped() {
            return Err(StepError::Stopping);
        }
        let left = due.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        tokio::time::sleep(left.min(STOP_CHECK)).await;
    }
}

/// Reads on until there is enough to move, or to wait for. Blocks.
fn next_batch(
    mut scan: Scan,
    those: &Those,
    catalogue: &Catalogue,
    segment: SegmentId,
) -> Result<Batch, StepError> {
    let (mut live, mut looked_at, before) = (Vec::new(), 0, scan.read_bytes());
    while looked_at < MOVE_BATCH_BYTES_MAX && live.len() < MOVE_BATCH_CHUNKS_MAX {
        let record = match scan.step(&mut |offset, owner| those.are(offset, owner))? {
            Step::Record(record) => record,
            Step::Passed(bytes) => {
                looked_at += bytes;
                continue;
            }
            Step::End => return Ok(Batch { live, read_bytes: scan.read_bytes() - before, rest: None }),
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
            tracing::error!(%segment, record.offset, "a chunk that is referred to does not verify; not moved");
            continue;
        }
        // As it is stored: nothing is decompressed to be moved.
        let data = Payload::of(&head, Bytes::copy_from_slice(record.payload));
        live.push(Live { owner, reference, data });
    }
    Ok(Batch { live, read_bytes: scan.read_bytes() - before, rest: Some(scan) })
}

/// Moves chunks side by side: their writes and their commands share syncs.
async fn move_all(
    inner: &Arc<Inner>,
    catalogue: &Catalogue,
    live: Vec<Live>,
    to: To,
    moved_bytes: &Arc<AtomicU64>,
) -> Result<(), StepError> {
    let mut moves = JoinSet::new();
    for one in live {
        let (inner, catalogue, moved_bytes) = (inner.clone(), catalogue.clone(), moved_bytes.clone());
        moves.spawn(async move {
            let bytes = one.data.stored_bytes() as u64;
            move_one(&inner, &catalogue, one, to).await?;
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

/// Moves a chunk; says whether it was still named where it was.
pub(in crate::hot) async fn move_one(
    inner: &Inner,
    catalogue: &Catalogue,
    one: Live,
    to: To,
) -> Result<bool, StepError> {
    let lane = match to {
        To::Others => inner.lanes.moved(),
        To::Leaving => inner.lanes.gathered(),
    };
    let appended = inner.append_by(lane, &one.owner, &one.data).await?;
    if to == To::Leaving {
        inner.placing.gathered(appended.extent.segment_id());
    }
    // Its segment is held until it is named, as for any append.
    let is_named = catalogue.relocate(&chunk_owner(&one.owner), one.reference, appended.extent).await?;
    inner.compaction.moved_bytes.fetch_add(one.data.stored_bytes() as u64, Relaxed);
    Ok(is_named)
}

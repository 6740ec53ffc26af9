//! Removes local files of replicas that no record lists on this node any more, and finds listed replicas
//! without a file.
//!
//! A file is redundant when the record of its segment is gone, since its owner released it, or lists enough
//! good replicas on nodes of its set without this node, or an upstream has the segment. It is removed as
//! compaction removes its files: under a claim, not while a reader or an append uses the segment, and after
//! the change of the record survives power loss. A file whose id was never given out stays: its record may
//! not have arrived yet.
//!
//! The directories are read once a minute. Segments that left the records of this node are looked at in the
//! next pass. So are those whose sealed record begins to list this node: a follower may have lost its disk
//! between its last append and the seal. At a power loss a file that was removed may be there again: the next
//! sweep or start removes it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use mlgw_common::SegmentTier;
use mlgw_common::ids::{NodeId, SegmentId};
use mlgw_common::time::Instant;
use mlgw_formats::schema::{SegmentRecord, SegmentState};
use mlgw_formats::segment_header::SEGMENT_HEADER_BYTES;
use mlgw_metadata::Catalogue;
use mlgw_replication::{StorageNode, StorageViews};

use super::Replication;
use super::progress::count;
use super::recorded::{RecordedSegments, is_local};
use crate::hot::HotTierInner;
use crate::hot::claims::{ClaimOwner, SegmentClaim};
use crate::hot::compaction::{MoveStepError, blocking};
use crate::hot::dirs::SegmentDirs;
use crate::hot::pins::SegmentPins;

/// Interval at which the directories are read.
const SWEEP_INTERVAL: Duration = Duration::from_mins(1);

/// The parts of the tier that a sweep uses.
pub(super) struct SweepContext<'a> {
    pub(super) inner: &'a Arc<HotTierInner>,
    pub(super) catalogue: &'a Catalogue,
    pub(super) replication: &'a Replication,
    pub(super) views: &'a StorageViews,
    /// Good replicas on other nodes with which a file that is not listed is redundant.
    pub(super) wanted_copies: usize,
}

/// State of the sweep between passes.
#[derive(Default)]
pub(super) struct ReplicaSweep {
    due: Option<Instant>,
    /// Segments that listed this node at the end of the last pass; sorted.
    listed: Vec<SegmentId>,
    /// Segments whose files were expected here at the last look for missing files; sorted.
    expected: Vec<SegmentId>,
    /// Segments that were in use when their files were to be removed.
    in_use: BTreeSet<SegmentId>,
}

impl ReplicaSweep {
    /// Removes redundant files and returns their segments.
    pub(super) async fn run(
        &mut self,
        context: &SweepContext<'_>,
        recorded: &RecordedSegments,
    ) -> Result<Vec<SegmentId>, MoveStepError> {
        let left = |segment: &SegmentId| recorded.listed.binary_search(segment).is_err();
        let mut candidates = std::mem::take(&mut self.in_use);
        candidates.extend(self.listed.iter().copied().filter(left));
        self.listed.clone_from(&recorded.listed);
        let mut expected = recorded.expected.clone();
        if self.due.is_none_or(|due| due <= Instant::now()) {
            self.due = Some(Instant::now() + SWEEP_INTERVAL);
            let files = files_in(context).await?;
            expected.retain(|segment| !files.contains(segment));
            candidates = files.into_iter().filter(left).collect();
        } else {
            expected.retain(|segment| self.expected.binary_search(segment).is_err());
        }
        let looked = report_missing(context, expected).await;
        if matches!(looked, Ok(MissingFiles::Reported)) {
            self.expected.clone_from(&recorded.expected);
        }
        let mut closed = Vec::new();
        for segment in candidates {
            match close(context, segment)? {
                ClosureAttempt::Closed(one) => closed.push(one),
                ClosureAttempt::InUse => drop(self.in_use.insert(segment)),
                ClosureAttempt::NotRedundant => {}
            }
        }
        let removed = remove(context, &closed).await?;
        looked.map(|_| removed)
    }

    /// Adds segments whose records list this node since the records of this pass were read. If one of them is
    /// released before the next pass, that pass removes its file.
    pub(super) fn add_listed(&mut self, segments: impl IntoIterator<Item = SegmentId>) {
        self.listed.extend(segments);
        self.listed.sort_unstable();
        self.listed.dedup();
    }
}

/// Returns the segments with a file in a local directory that is used.
async fn files_in(context: &SweepContext<'_>) -> Result<BTreeSet<SegmentId>, MoveStepError> {
    let inner = context.inner.clone();
    blocking(move || Ok(inner.files_in_use()?)).await
}

/// The result of a look for missing files.
enum MissingFiles {
    /// All that are missing are reported.
    Reported,
    /// A directory is not used. What is in it is not lost yet.
    Unknown,
}

/// Reports those of these listed replicas that have no file: they are copied again.
async fn report_missing(
    context: &SweepContext<'_>,
    mut listed: Vec<SegmentId>,
) -> Result<MissingFiles, MoveStepError> {
    if context.inner.has_refused_directory() {
        return Ok(MissingFiles::Unknown);
    }
    if listed.is_empty() {
        return Ok(MissingFiles::Reported);
    }
    let inner = context.inner.clone();
    let missing = blocking(move || {
        // A file that moved between the directories meanwhile is found now.
        let is_missing = |segment: &SegmentId| !has_file(inner.volumes.dirs(), *segment);
        listed.retain(is_missing);
        if listed.is_empty() {
            return Ok(listed);
        }
        // What is missing because another directory is there is not lost yet.
        inner.check_directories()?;
        listed.retain(is_missing);
        Ok(listed)
    });
    context.replication.add_suspects(missing.await?);
    Ok(MissingFiles::Reported)
}

fn has_file(dirs: &SegmentDirs, segment: SegmentId) -> bool {
    dirs.path(segment, SegmentTier::Hot).exists()
}

/// A redundant segment, claimed and closed to readers until it is dropped.
struct ClosedSegment<'a> {
    pins: &'a SegmentPins,
    segment: SegmentId,
    _claim: SegmentClaim,
}

impl Drop for ClosedSegment<'_> {
    fn drop(&mut self) {
        self.pins.end_closure(self.segment);
    }
}

/// The result of closing a segment.
enum ClosureAttempt<'a> {
    Closed(ClosedSegment<'a>),
    /// A worker, a reader or an append uses the segment.
    InUse,
    /// A record lists the replica, or there is no file.
    NotRedundant,
}

/// Claims a segment and closes it to readers, if its file is redundant.
fn close<'a>(context: &SweepContext<'a>, segment: SegmentId) -> Result<ClosureAttempt<'a>, MoveStepError> {
    let inner = context.inner;
    if !has_file(inner.volumes.dirs(), segment) {
        return Ok(ClosureAttempt::NotRedundant);
    }
    let Some(claim) = inner.claims.claim(segment, ClaimOwner::Replication, 0) else {
        return Ok(ClosureAttempt::InUse);
    };
    // Read under the claim; the next id first, since a segment that is created meanwhile has a higher one.
    let next_segment = context.catalogue.next_segment()?;
    let record = context.catalogue.segment_record(segment)?;
    if segment >= next_segment || !is_redundant(context, record.as_ref()) {
        return Ok(ClosureAttempt::NotRedundant);
    }
    if inner.shared.segments.holds.is_held(segment) || !inner.pins.close_if_unpinned(segment) {
        return Ok(ClosureAttempt::InUse);
    }
    Ok(ClosureAttempt::Closed(ClosedSegment { pins: &inner.pins, segment, _claim: claim }))
}

/// Removes the files of closed segments, after the changes of their records survive power loss. Returns the
/// segments that had a file.
async fn remove(
    context: &SweepContext<'_>,
    closed: &[ClosedSegment<'_>],
) -> Result<Vec<SegmentId>, MoveStepError> {
    if closed.is_empty() {
        return Ok(Vec::new());
    }
    let catalogue = context.catalogue.clone();
    blocking(move || Ok(catalogue.sync_log()?)).await?;
    let mut removed = Vec::new();
    for ClosedSegment { segment, .. } in closed {
        if context.inner.compaction.is_stopped() {
            return Err(MoveStepError::Stopping);
        }
        match unlink(context.inner, *segment).await {
            Ok(true) => removed.push(*segment),
            Ok(false) => {}
            Err(MoveStepError::Stopping) => return Err(MoveStepError::Stopping),
            Err(error) => tracing::warn!(%segment, %error, "cannot remove a redundant replica"),
        }
    }
    count(&context.replication.counters.removed_replicas, removed.len() as u64);
    Ok(removed)
}

/// True if the local file of a segment is redundant. The record is `None` if the segment was released.
fn is_redundant(context: &SweepContext<'_>, record: Option<&SegmentRecord>) -> bool {
    let Some(record) = record else { return true };
    let own = context.inner.node;
    // The owner's file may be named by a move of it whose outcome is not known yet. Compaction and moves
    // remove the files of an owner.
    if record.state() != SegmentState::Sealed
        || record.is_owned_by(own)
        || record.replica_of(own).is_some_and(is_local)
    {
        return false;
    }
    let nodes = context.views.of(record.set);
    record.is_at_upstream() || good_replicas(record, nodes) >= context.wanted_copies
}

/// Number of storage nodes that stay, as the segment sees them, and have a replica that is not marked.
fn good_replicas(record: &SegmentRecord, nodes: &[StorageNode]) -> usize {
    let is_good = |node: NodeId| record.replica_of(node).is_some_and(|replica| !replica.is_suspect);
    nodes.iter().filter(|node| !node.is_leaving && is_good(node.node)).count()
}

/// Removes the file of a segment. Returns true if there was one.
async fn unlink(inner: &Arc<HotTierInner>, segment: SegmentId) -> Result<bool, MoveStepError> {
    inner.reader.invalidate(segment);
    let of = inner.clone();
    blocking(move || {
        if let Some(place) = of.shared.segments.map.location(segment) {
            of.volumes.set_foreign_aside(segment, &place)?;
        }
        let hot = Some(&of.volumes.hot).filter(|hot| !hot.state().is_refused());
        let hot_bytes = hot.map_or(Ok(None), |hot| hot.remove(segment))?;
        if let Some(bytes) = hot_bytes {
            of.shared.space.record_freed(bytes.saturating_sub(SEGMENT_HEADER_BYTES));
        }
        let cold_bytes = of.volumes.remove_cold(segment)?;
        tracing::info!(%segment, "removed a redundant replica");
        Ok(hot_bytes.is_some() || cold_bytes > 0)
    })
    .await
}

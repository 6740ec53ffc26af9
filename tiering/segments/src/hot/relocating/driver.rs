//! Carries out relocating: scans the groups that this node leads in passes, and moves what is elsewhere.
//!
//! A chunk that no node can read now is skipped, and the pass goes on behind it. Nothing is remembered about
//! it: the next pass finds it again by the rows.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use mlgw_common::ids::SegmentId;
use mlgw_common::time::{Instant, timeout};
use mlgw_formats::command::Reject;
use mlgw_formats::decision_entry::PlacementDecision;
use mlgw_formats::decision_words::{DecisionOutcome, DecisionReason};
use mlgw_formats::schema::GroupSet;
use mlgw_metadata::{Catalogue, GroupChunk, OffSetUsages, ProposeError};

use super::rests::{PassEnd, PassRests};
use crate::fair::Lane;
use crate::hot::compaction::{
    Compaction, LiveChunk, MoveStepError, RelocationTarget, UnreadableChunks, blocking, move_chunk,
    relocation, wait_until,
};
use crate::hot::{HotTierInner, SegmentReadError};

/// Chunks that are read and moved at a time. Other nodes read them for this one beside their clients.
const MOVES_AT_ONCE: usize = 16;
/// Interval at which a wait for the next pass reads the settings again.
const SETTINGS_CHECK: Duration = Duration::from_secs(1);

/// Runs until the tier stops or is dropped.
pub(in crate::hot) async fn run(tier: Weak<HotTierInner>, compaction: Arc<Compaction>) {
    let mut driver = RelocatingDriver::default();
    while until_due(&compaction).await {
        let Some(inner) = tier.upgrade() else { return };
        let Some(catalogue) = inner.catalogue.clone() else { return };
        match driver.run_pass(&inner, &catalogue).await {
            Ok(()) => {}
            Err(MoveStepError::Stopping) => return,
            Err(error) => tracing::warn!(%error, "bytes were not moved to the nodes of their set"),
        }
    }
}

/// Waits until a pass is due: passes have the interval of compaction. False when the tier stops.
async fn until_due(compaction: &Compaction) -> bool {
    let begun = Instant::now();
    loop {
        let left = compaction.settings().interval.saturating_sub(begun.elapsed());
        if timeout(left.min(SETTINGS_CHECK), compaction.until_stopped()).await.is_ok() {
            return false;
        }
        if left <= SETTINGS_CHECK {
            return true;
        }
    }
}

/// What became of one chunk.
enum ChunkOutcome {
    /// Its bytes were moved: this many.
    Moved(u64),
    /// It was deleted, replaced or moved by another one.
    Gone,
    /// It does not verify at any node.
    Damaged,
    /// No node can read it now.
    Unreadable(SegmentReadError),
}

/// Scans groups, and rests in between.
#[derive(Default)]
pub(in crate::hot) struct RelocatingDriver {
    rests: PassRests,
}

impl RelocatingDriver {
    /// Scans all groups that this node leads and that may refer to segments of other sets.
    pub(in crate::hot) async fn run_pass(
        &mut self,
        inner: &Arc<HotTierInner>,
        catalogue: &Catalogue,
    ) -> Result<(), MoveStepError> {
        let groups = if inner.is_leaving() { Vec::new() } else { catalogue.off_set_groups() };
        self.rests.retain(&groups.iter().map(|of| of.group).collect());
        let (mut left_bytes, mut outcome) = (0, Ok(()));
        for of in groups {
            match self.relocate_group(inner, catalogue, &of, &mut left_bytes).await {
                Err(MoveStepError::Stopping) => return Err(MoveStepError::Stopping),
                done => outcome = outcome.and(done),
            }
        }
        inner.compaction.relocating.left_bytes.store(left_bytes, Relaxed);
        outcome
    }

    /// Moves what a group has in segments of other sets, or ends that it is a guest of a set. Adds its bytes
    /// there to `left_bytes`.
    async fn relocate_group(
        &mut self,
        inner: &Arc<HotTierInner>,
        catalogue: &Catalogue,
        of: &GroupSet,
        left_bytes: &mut u64,
    ) -> Result<(), MoveStepError> {
        let (reads, group) = (catalogue.clone(), of.clone());
        let usages = blocking(move || Ok(reads.off_set_usages(&group)?)).await?;
        *left_bytes += usages.bytes();
        // The row of the group has changed then: the next pass reads it again.
        let has_ended = end_guest(inner, catalogue, of, &usages.sets).await?;
        if has_ended || usages.segments.is_empty() || !self.rests.is_due(of.group, Instant::now()) {
            return Ok(());
        }
        if !inner.shared.flash.can_start_own_write() {
            record_over_budget(inner, &usages);
            return Ok(());
        }
        self.move_group(inner, catalogue, of, usages).await
    }

    /// Goes through the rows of a group once and moves its chunks, until it may not move any more.
    async fn move_group(
        &mut self,
        inner: &Arc<HotTierInner>,
        catalogue: &Catalogue,
        of: &GroupSet,
        usages: OffSetUsages,
    ) -> Result<(), MoveStepError> {
        let (usages, mut tally) = (Arc::new(usages), MoveTally::default());
        let (mut from, mut scanning) = (None, Duration::ZERO);
        let outcome = loop {
            if !may_move(inner, catalogue, of) {
                break Ok(PassEnd::Moved);
            }
            let begun = Instant::now();
            let (reads, group, wanted) = (catalogue.clone(), of.group, usages.clone());
            let scan = move || Ok(reads.chunks_of_group(group, from.as_ref(), &wanted.segments)?);
            let found = match blocking(scan).await {
                Ok(found) => found,
                Err(error) => break Err(error),
            };
            scanning += begun.elapsed();
            if let Err(error) = move_all(inner, catalogue, found.chunks, &mut tally).await {
                break Err(error);
            }
            match found.next {
                Some(next) => from = Some(next),
                None if tally.moved.is_empty() => break Ok(PassEnd::Idle),
                None => break Ok(PassEnd::Moved),
            }
        };
        // A pass that only skips rests longer and longer, as one that finds damage.
        let end = outcome.as_ref().map_or(PassEnd::Failed, |end| *end);
        self.rests.record(of.group, Instant::now(), scanning, end);
        let outcome = outcome.and_then(|_| tally.unreadable.take().map_or(Ok(()), |of| Err(of.into())));
        tally.record(inner, &usages, outcome.as_ref().err());
        outcome
    }
}

/// True if chunks of a group may be moved now.
fn may_move(inner: &HotTierInner, catalogue: &Catalogue, of: &GroupSet) -> bool {
    let has_disk = !inner.volumes.hot.state().is_refused() && !inner.is_pressed();
    has_disk && inner.shared.flash.can_start_own_write() && catalogue.leads_off_set(of) && !inner.is_leaving()
}

/// Ends that a group is a guest of a set, if it is a guest of one that is not among `referred`: those to
/// whose segments it refers. Returns true if it has ended.
async fn end_guest(
    inner: &HotTierInner,
    catalogue: &Catalogue,
    of: &GroupSet,
    referred: &BTreeSet<u32>,
) -> Result<bool, MoveStepError> {
    let Some(set) = of.guest_of.iter().copied().find(|set| !referred.contains(set)) else { return Ok(false) };
    match catalogue.end_guest(of, set).await {
        Ok(true) => {
            tracing::info!(
                group = of.group,
                set,
                "no byte of a group is in segments of a former set any more"
            );
            inner.compaction.relocating.ended_guests.fetch_add(1, Relaxed);
            Ok(true)
        }
        // The row has changed, or a segment was created meanwhile: the next pass decides anew.
        Ok(false) | Err(ProposeError::Rejected(Reject::GroupAssigned { .. } | Reject::SegmentInUse)) => {
            Ok(false)
        }
        Err(error) => Err(error.into()),
    }
}

/// Results of a pass over a group.
#[derive(Debug, Default)]
struct MoveTally {
    /// Bytes that were moved out of each segment, for the decision log.
    moved: BTreeMap<SegmentId, u64>,
    unreadable: Option<UnreadableChunks>,
}

impl MoveTally {
    /// Counts a chunk that was skipped. The error of the first one is kept.
    fn add_unreadable(&mut self, error: SegmentReadError) {
        let first = UnreadableChunks { count: 0, first: Box::new(error) };
        self.unreadable.get_or_insert(first).count += 1;
    }

    /// Records the moved bytes, and the error if there is one.
    fn record(&self, inner: &HotTierInner, usages: &OffSetUsages, error: Option<&MoveStepError>) {
        for (segment, bytes) in self.moved.iter().filter(|(_, bytes)| **bytes > 0) {
            inner.decisions.record(&decided(inner, *segment, *bytes, DecisionOutcome::Done));
        }
        let left = usages.segments.keys().find(|segment| !self.moved.contains_key(segment));
        let error = error.filter(|error| !matches!(error, MoveStepError::Stopping));
        if let (Some(error), Some(segment)) = (error, left.or(usages.segments.keys().next())) {
            inner.decisions.record_because(&decided(inner, *segment, 0, error.outcome()), error);
        }
    }
}

fn decided(
    inner: &HotTierInner,
    segment: SegmentId,
    bytes: u64,
    outcome: DecisionOutcome,
) -> PlacementDecision<'static> {
    relocation(inner, segment, bytes, DecisionReason::Rebalance.into(), outcome)
}

/// Records that bytes of a group wait for the flash budget: of one segment, since more add no information.
fn record_over_budget(inner: &HotTierInner, usages: &OffSetUsages) {
    if let Some((segment, usage)) = usages.segments.first_key_value() {
        inner.decisions.record(&decided(inner, *segment, usage.bytes, DecisionOutcome::OverBudget));
    }
}

/// Moves some chunks at the rate of compaction.
async fn move_all(
    inner: &Arc<HotTierInner>,
    catalogue: &Catalogue,
    chunks: Vec<GroupChunk>,
    tally: &mut MoveTally,
) -> Result<(), MoveStepError> {
    let bytes = chunks.iter().map(|chunk| chunk.extent.record_bytes()).sum();
    let rate = inner.compaction.settings().bytes_per_second;
    wait_until(inner, inner.compaction.pace.due_at(Instant::now(), bytes, rate)).await?;
    let moving = chunks.into_iter().map(|chunk| async move {
        let segment = chunk.extent.segment_id();
        (segment, move_one(inner, catalogue, chunk).await)
    });
    let mut moved = stream::iter(moving).buffer_unordered(MOVES_AT_ONCE);
    let mut outcome = Ok(());
    while let Some((segment, done)) = moved.next().await {
        match done {
            Ok(ChunkOutcome::Moved(bytes)) => {
                inner.compaction.relocating.moved_bytes.fetch_add(bytes, Relaxed);
                *tally.moved.entry(segment).or_default() += bytes;
            }
            Ok(ChunkOutcome::Gone) => {}
            Ok(ChunkOutcome::Unreadable(error)) => tally.add_unreadable(error),
            Ok(ChunkOutcome::Damaged) => {
                inner.compaction.relocating.damaged_chunks.fetch_add(1, Relaxed);
            }
            Err(error) => outcome = outcome.and(Err(error)),
        }
    }
    outcome
}

/// Moves a chunk to a segment of its set.
async fn move_one(
    inner: &HotTierInner,
    catalogue: &Catalogue,
    GroupChunk { owner, extent }: GroupChunk,
) -> Result<ChunkOutcome, MoveStepError> {
    let segment = extent.segment_id();
    let (written, data) = match inner.reader.chunk(&extent, owner.body, Lane::Background).await {
        Ok(read) => read,
        Err(SegmentReadError::Gone { .. }) => return Ok(ChunkOutcome::Gone),
        Err(error @ SegmentReadError::Corrupt { .. }) => {
            tracing::error!(%segment, extent.offset, %error, "a chunk fails verification; not moved");
            return Ok(ChunkOutcome::Damaged);
        }
        Err(error) => return Ok(ChunkOutcome::Unreadable(error)),
    };
    let (reads, offset) = (catalogue.clone(), extent.offset);
    let found = blocking(move || Ok(reads.reference(&owner, segment, offset)?)).await?;
    let Some(reference) = found else { return Ok(ChunkOutcome::Gone) };
    let bytes = data.stored_bytes() as u64;
    let live = LiveChunk { owner: written, reference, data };
    match move_chunk(inner, catalogue, live, RelocationTarget::Moved).await? {
        true => Ok(ChunkOutcome::Moved(bytes)),
        false => Ok(ChunkOutcome::Gone),
    }
}

//! Executes compaction: examines all segments, chooses some and runs one job after the other.
//!
//! A job whose segment still has readers, here or on another node, is parked and retried in each pass, after
//! one question to the other nodes about all parked segments. Any other failure abandons the job, which
//! starts anew later, since every step is idempotent. Placing moves segments at the same time: each segment
//! is claimed first, and a segment that placing has claimed is left for a later pass.

use mlgw_common::time::Instant;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::time::Duration;

use mlgw_common::ids::SegmentId;
use mlgw_formats::schema::SegmentState;
use mlgw_metadata::Catalogue;

use super::choose::{CompactionThresholds, SegmentStats, SpacePressure, choose_segments};
use super::death_rate::DeathRates;
use super::job::{CompactionEnd, CompactionEvent, CompactionJob, CompactionStep};
use super::moving::{MoveStepError, RelocationLog, blocking, empty_segment};
use super::readers::ReadersElsewhere;
use super::stats::segment_stats;
use crate::hot::claims::{ClaimOwner, SegmentClaim};
use crate::hot::placing::leftover_objects::sweep_objects;
use crate::hot::{HotTierInner, space_wait};
use mlgw_common::SegmentTier;
use mlgw_formats::decision_entry::{DecisionCause, DecisionSubject, PlacementDecision};
use mlgw_formats::decision_words::{DecisionKind, DecisionOutcome, DecisionPlace, DecisionReason};
use mlgw_formats::segment_header::SEGMENT_HEADER_BYTES;

/// Maximum duration of a pass that was not requested; after it the next pass examines all segments again.
const PASS_MAX: Duration = Duration::from_secs(5);
/// Interval at which a pass checks that open segments it asked to be sealed are sealed.
const SEAL_CHECK: Duration = Duration::from_millis(10);
const SEAL_CHECKS_MAX: usize = 200;

/// Maximum number of segments per pass that are recorded as not emptied for lack of space or of flash budget;
/// more would add no information.
const NO_ROOM_RECORDED_MAX: usize = 8;

/// Runs compaction until the tier stops or is dropped.
pub(in crate::hot) async fn run(tier: Weak<HotTierInner>, compaction: Arc<super::Compaction>) {
    let mut driver = CompactionDriver::default();
    while let Some(requested_percent) = compaction.next_pass().await {
        let Some(inner) = tier.upgrade() else { return };
        let Some(catalogue) = inner.catalogue.clone() else { return };
        match driver.run_pass(&inner, &catalogue, requested_percent).await {
            Ok(true) => compaction.wake_now(),
            Ok(false) => {}
            Err(MoveStepError::Stopping) => return,
            Err(error) => tracing::warn!(%error, "a compaction pass failed"),
        }
        compaction.pass_ended();
        // The set of sealed segments and of mostly dead ones may have changed.
        inner.placing.start_pass();
    }
}

/// A job whose segment has readers.
struct ParkedCompaction {
    job: CompactionJob,
    why: DecisionCause,
    claim: SegmentClaim,
}

#[derive(Default)]
struct CompactionDriver {
    parked: Vec<ParkedCompaction>,
    /// Answers of the other nodes in this pass.
    elsewhere: ReadersElsewhere,
    dying: DeathRates,
}

impl CompactionDriver {
    /// Empties and releases segments. Returns true if there is more to do immediately.
    async fn run_pass(
        &mut self,
        inner: &Arc<HotTierInner>,
        catalogue: &Catalogue,
        requested_percent: Option<u64>,
    ) -> Result<bool, MoveStepError> {
        let begun = Instant::now();
        self.run_parked(inner, catalogue).await?;
        let mut facts = segment_stats(inner, catalogue).await?;
        let pressure = space_pressure(inner, &facts);
        let pressed = pressure != SpacePressure::None;
        let dead_percent = pressure.dead_percent(inner.compaction.settings().dead_percent, requested_percent);
        if (pressed || requested_percent.is_some()) && seal_open(inner, catalogue, &facts, dead_percent).await
        {
            facts = segment_stats(inner, catalogue).await?;
        }
        inner.compaction.held_back.lock().retain(|id, _| facts.iter().any(|segment| segment.id == *id));
        self.dying.update(Instant::now(), &facts);
        if requested_percent.is_none() && has_room_to_wait(inner, &facts) {
            let patience = inner.compaction.settings().patience;
            facts.retain(|segment| !self.dying.is_worth_waiting_for(segment, patience));
        }
        let cold_dead_percent = requested_percent.unwrap_or(inner.compaction.settings().cold_dead_percent);
        let room_bytes = inner.shared.space.moved_room_bytes();
        let aim = CompactionThresholds { dead_percent, cold_dead_percent, room_bytes };
        record_no_room(inner, &facts, aim);
        let mut chosen = choose_segments(&facts, aim, &inner.compaction.held_back());
        if !pressed && requested_percent.is_none() && !inner.shared.flash.can_start_own_write() {
            postpone_writes(inner, &facts, &mut chosen);
        }
        retain_in_use(inner, &mut chosen).await?;
        retain_kept(inner, catalogue, &facts, &mut chosen);
        let mut has_more = false;
        for segment in chosen {
            let of = facts.iter().find(|of| of.id == segment);
            let why = of.map_or(DecisionReason::Compaction, |of| why(inner, of, requested_percent));
            if inner.compaction.is_stopped() {
                return Err(MoveStepError::Stopping);
            }
            // A requested pass does everything that was chosen.
            has_more = requested_percent.is_none() && begun.elapsed() > PASS_MAX;
            if has_more {
                break;
            }
            if let Some(claim) = of.and_then(|of| claim(inner, catalogue, of)) {
                self.run_job(inner, catalogue, CompactionJob::new(segment), why.into(), claim).await;
            }
        }
        inner.compaction.draining_segments.store(self.parked.len() as u64, Relaxed);
        segment_stats(inner, catalogue).await?;
        Ok(has_more)
    }

    /// Continues the jobs whose segments had readers. The other nodes are asked once about all segments that
    /// no reader of this node has pinned.
    async fn run_parked(
        &mut self,
        inner: &Arc<HotTierInner>,
        catalogue: &Catalogue,
    ) -> Result<(), MoveStepError> {
        let parked = std::mem::take(&mut self.parked);
        let mut unpinned: Vec<SegmentId> = parked.iter().map(|parked| parked.job.segment()).collect();
        unpinned.retain(|segment| !inner.pins.is_pinned(*segment));
        self.elsewhere = ReadersElsewhere::default();
        self.elsewhere.ask(catalogue, unpinned).await;
        for ParkedCompaction { job, why, claim } in parked {
            if inner.compaction.is_stopped() {
                return Err(MoveStepError::Stopping);
            }
            self.run_job(inner, catalogue, job, why, claim).await;
        }
        Ok(())
    }

    /// Runs a job as far as possible now.
    async fn run_job(
        &mut self,
        inner: &Arc<HotTierInner>,
        catalogue: &Catalogue,
        mut job: CompactionJob,
        why: DecisionCause,
        claim: SegmentClaim,
    ) {
        let segment = job.segment();
        loop {
            let step = match job.next() {
                Ok(step) => step,
                Err(CompactionEnd::Released) => {
                    inner.compaction.held_back.lock().remove(&segment);
                    return tracing::debug!(%segment, "segment released");
                }
                Err(CompactionEnd::HeldBack(references)) => {
                    inner.compaction.held_back.lock().insert(segment, references);
                    inner.decisions.record(&released(inner, segment, 0, why, DecisionOutcome::Damaged));
                    return tracing::error!(%segment, references,
                        "cannot compact a segment: its remaining chunks fail verification");
                }
            };
            match self.run_step(inner, catalogue, segment, step, why).await {
                Ok(CompactionEvent::Busy) => {
                    job.advance(CompactionEvent::Busy);
                    return self.parked.push(ParkedCompaction { job, why, claim: claim.parked() });
                }
                Ok(event) => job.advance(event),
                Err(error) => {
                    if step != CompactionStep::Move && !matches!(error, MoveStepError::Stopping) {
                        let refused = released(inner, segment, 0, why, error.outcome());
                        inner.decisions.record_because(&refused, &error);
                    }
                    inner.pins.end_closure(segment);
                    return tracing::warn!(%segment, ?step, %error, "compaction of a segment failed");
                }
            }
        }
    }

    async fn run_step(
        &mut self,
        inner: &Arc<HotTierInner>,
        catalogue: &Catalogue,
        segment: SegmentId,
        step: CompactionStep,
        why: DecisionCause,
    ) -> Result<CompactionEvent, MoveStepError> {
        match step {
            CompactionStep::Fence => catalogue.fence_segment(segment).await?,
            CompactionStep::Count => {
                return Ok(CompactionEvent::References(catalogue.segment_usage(segment)?.extents));
            }
            CompactionStep::Move => {
                let picked = RelocationLog::start(segment);
                let done = empty_segment(inner, catalogue, &picked).await;
                picked.record(inner, why, done.as_ref().err());
                done?;
            }
            CompactionStep::Drain if inner.pins.close_if_unpinned(segment) => {
                // A reader on another node may read the replica there. No row of any group refers to the
                // segment any more, so one that comes later needs no pin of it: it finds the moved bytes.
                if !self.elsewhere.is_unused(catalogue, segment).await {
                    inner.pins.end_closure(segment);
                    return Ok(CompactionEvent::Busy);
                }
            }
            CompactionStep::Drain => return Ok(CompactionEvent::Busy),
            CompactionStep::Remove => {
                add_leftover(inner, segment).await?;
                // Done while the record is still there to compare the files with.
                let of = inner.clone();
                blocking(move || match of.shared.segments.map.location(segment) {
                    Some(place) => Ok(of.volumes.set_foreign_aside(segment, &place)?),
                    None => Ok(()),
                })
                .await?;
                // The other nodes close the segment for a limited time. An upstream may have delayed the
                // leftovers for longer.
                if !self.elsewhere.is_unused(catalogue, segment).await {
                    inner.pins.end_closure(segment);
                    return Ok(CompactionEvent::Busy);
                }
                catalogue.remove_segment(segment).await?;
            }
            CompactionStep::Sync => {
                let (disk, catalogue) = (inner.shared.segments.disk.clone(), catalogue.clone());
                blocking(move || {
                    // Chunk bytes before the catalogue entries that name them.
                    disk.sync_all()?;
                    Ok(catalogue.sync_log()?)
                })
                .await?;
            }
            CompactionStep::Unlink => unlink(inner, catalogue, segment, why).await?,
        }
        Ok(CompactionEvent::Done)
    }
}

/// Returns the space pressure of the hot tier.
fn space_pressure(inner: &HotTierInner, facts: &[SegmentStats]) -> SpacePressure {
    if !inner.is_pressed() {
        SpacePressure::None
    } else if space_wait::can_spill(inner, facts) {
        SpacePressure::Spills
    } else {
        SpacePressure::Compacts
    }
}

/// Claims a segment in the state in which it was examined. `None` if placing has claimed it, or has moved it
/// since.
fn claim(inner: &HotTierInner, catalogue: &Catalogue, of: &SegmentStats) -> Option<SegmentClaim> {
    let frees_bytes = match (of.tier, of.references) {
        (SegmentTier::Hot, 0) => of.bytes,
        (SegmentTier::Hot, _) => of.dead_bytes(),
        _ => 0,
    };
    let claim = inner.claims.claim(of.id, ClaimOwner::Compaction, frees_bytes)?;
    catalogue.segment(of.id).filter(|segment| segment.tier == of.tier).map(|_| claim)
}

/// For a segment at an upstream: adds its object to the leftovers, which are removed when no record names
/// them.
async fn add_leftover(inner: &Arc<HotTierInner>, segment: SegmentId) -> Result<(), MoveStepError> {
    let of = inner.clone();
    let Some(remote) = blocking(move || Ok(of.remote_tier.find(segment)?)).await? else { return Ok(()) };
    // Locked only here: the lock is held while objects are removed from an upstream that may be slow.
    let mut leftovers = inner.leftovers.clone().lock_owned().await;
    blocking(move || Ok(leftovers.add(&remote.upstream, remote.id)?)).await
}

/// Returns the reason why a segment is emptied or released; a requested pass has its own threshold.
fn why(inner: &HotTierInner, segment: &SegmentStats, requested_percent: Option<u64>) -> DecisionReason {
    let settings = inner.compaction.settings();
    let usual =
        if segment.tier == SegmentTier::Hot { settings.dead_percent } else { settings.cold_dead_percent };
    match segment.references {
        0 => DecisionReason::Dead,
        _ if segment.has_dead_percent(usual) => DecisionReason::Compaction,
        _ if requested_percent.is_some() => DecisionReason::Requested,
        _ => DecisionReason::Pressure,
    }
}

fn released(
    inner: &HotTierInner,
    segment: SegmentId,
    bytes: u64,
    why: DecisionCause,
    outcome: DecisionOutcome,
) -> PlacementDecision<'static> {
    let (kind, what, from) =
        (DecisionKind::Release, DecisionSubject::Segment(segment), inner.decision_place(segment));
    PlacementDecision { kind, subject: what, from, to: DecisionPlace::Nowhere, bytes, cause: why, outcome }
}

/// Drops the chosen segments that need writes: the flash budget is used up and space is not short.
fn postpone_writes(inner: &HotTierInner, facts: &[SegmentStats], chosen: &mut Vec<SegmentId>) {
    let lives = |id: &SegmentId| facts.iter().find(|of| of.id == *id).filter(|of| of.references > 0);
    for of in chosen.iter().filter_map(lives).take(NO_ROOM_RECORDED_MAX) {
        inner.decisions.record(&postponed(inner, of, DecisionOutcome::OverBudget));
    }
    chosen.retain(|id| lives(id).is_none());
}

/// Returns the decision entry for a segment whose emptying is postponed.
fn postponed(
    inner: &HotTierInner,
    of: &SegmentStats,
    outcome: DecisionOutcome,
) -> PlacementDecision<'static> {
    PlacementDecision {
        kind: DecisionKind::Relocate,
        subject: DecisionSubject::Segment(of.id),
        from: inner.decision_place(of.id),
        to: DecisionPlace::Hot,
        bytes: of.referenced_bytes,
        cause: DecisionReason::Compaction.into(),
        outcome,
    }
}

/// Retains the segments whose files are in directories that are used. Without the directory of the hot tier
/// there is no place for moved chunks.
async fn retain_in_use(inner: &Arc<HotTierInner>, chosen: &mut Vec<SegmentId>) -> Result<(), MoveStepError> {
    if inner.volumes.hot.state().is_refused() {
        chosen.clear();
    }
    if inner.has_refused_directory() {
        let (of, segments) = (inner.clone(), chosen.clone());
        let refused = blocking(move || Ok(of.in_refused_directories(segments)?)).await?;
        let is_local = |segment: &SegmentId| inner.remote_tier.tier(*segment) != SegmentTier::Upstream;
        chosen.retain(|segment| !(is_local(segment) && refused.contains(segment)));
    }
    Ok(())
}

/// Drops the segments with references whose replicas this node gives up: other nodes become their owners.
/// What it moved out of them would be written to other nodes once more, or to another set.
fn retain_kept(
    inner: &HotTierInner,
    catalogue: &Catalogue,
    facts: &[SegmentStats],
    chosen: &mut Vec<SegmentId>,
) {
    let gives_up = inner.gives_up();
    let is_given_up = |id: SegmentId| catalogue.segment(id).is_some_and(|segment| gives_up(segment.set));
    let has_references = |id: SegmentId| facts.iter().any(|of| of.id == id && of.references > 0);
    chosen.retain(|id| !(is_given_up(*id) && has_references(*id)));
}

/// Records the segments that would be emptied if there were space for their live bytes.
fn record_no_room(inner: &HotTierInner, facts: &[SegmentStats], aim: CompactionThresholds) {
    let worth = |of: &&SegmentStats| {
        of.tier == SegmentTier::Hot && of.references > 0 && of.has_dead_percent(aim.dead_percent)
    };
    let full = facts.iter().filter(|of| of.is_idle() && of.referenced_bytes > aim.room_bytes);
    for of in full.filter(worth).take(NO_ROOM_RECORDED_MAX) {
        inner.decisions.record(&postponed(inner, of, DecisionOutcome::NoRoom));
    }
}

async fn unlink(
    inner: &Arc<HotTierInner>,
    catalogue: &Catalogue,
    segment: SegmentId,
    why: DecisionCause,
) -> Result<(), MoveStepError> {
    assert!(catalogue.segment(segment).is_none(), "a segment's file is removed after its record");
    inner.reader.invalidate(segment);
    let of = inner.clone();
    let (hot_bytes, cold_bytes) = blocking(move || {
        let hot_bytes = of.volumes.hot.remove(segment)?.unwrap_or(0);
        of.shared.space.record_freed(hot_bytes.saturating_sub(SEGMENT_HEADER_BYTES));
        Ok((hot_bytes, of.volumes.remove_cold(segment)?))
    })
    .await?;
    inner.pins.end_closure(segment);
    match (hot_bytes, cold_bytes) {
        // The segment was at an upstream.
        (0, 0) => sweep_objects(inner, catalogue, ClaimOwner::Compaction).await?,
        // A move of this segment to an upstream may have been interrupted and left an object. Its removal
        // must not delay the release of local space.
        _ => inner.placing.request_sweep(),
    }
    let bytes = hot_bytes + cold_bytes;
    // The record is gone, so the tier is that of the removed file.
    let from = match (hot_bytes, cold_bytes) {
        (0, 0) => DecisionPlace::Upstream,
        (0, _) => DecisionPlace::Cold,
        _ => DecisionPlace::Hot,
    };
    let decided = released(inner, segment, bytes, why, DecisionOutcome::Done);
    inner.decisions.record(&PlacementDecision { from, ..decided });
    inner.compaction.freed_bytes.fetch_add(bytes, Relaxed);
    inner.compaction.freed_segments.fetch_add(1, Relaxed);
    Ok(())
}

/// True if the free space is at least twice the dead bytes: then the tier can afford to wait for segments to
/// die.
fn has_room_to_wait(inner: &HotTierInner, facts: &[SegmentStats]) -> bool {
    let dead_bytes: u64 = facts.iter().map(SegmentStats::dead_bytes).sum();
    inner.shared.space.room_bytes() >= dead_bytes.saturating_mul(2)
}

/// Seals open segments that are worth emptying. Returns true if there were any.
async fn seal_open(
    inner: &HotTierInner,
    catalogue: &Catalogue,
    facts: &[SegmentStats],
    dead_percent: u64,
) -> bool {
    let open = facts.iter().filter(|segment| !segment.sealed && segment.has_dead_percent(dead_percent));
    let given_up: Vec<SegmentId> = open.map(|segment| segment.id).collect();
    seal(inner, catalogue, &given_up).await;
    !given_up.is_empty()
}

/// Seals open segments and waits for that, for a limited time.
pub(in crate::hot) async fn seal(inner: &HotTierInner, catalogue: &Catalogue, open: &[SegmentId]) {
    if open.is_empty() {
        return;
    }
    for &segment in open {
        inner.shared.segments.holds.give_up(segment);
    }
    inner.writer_queues.roll();
    for _ in 0..SEAL_CHECKS_MAX {
        let is_open = |id: &SegmentId| catalogue.segment(*id).is_some_and(|s| s.state == SegmentState::Open);
        if !open.iter().any(is_open) {
            break;
        }
        mlgw_common::time::sleep(SEAL_CHECK).await;
    }
}

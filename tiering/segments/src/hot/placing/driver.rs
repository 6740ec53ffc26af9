//! Executes moves between tiers: chooses segments and moves one after the other.
//!
//! A move that fails is abandoned and chosen again in a later pass, since every step is idempotent. A move
//! whose old file is still needed by a pin on all segments is parked. A segment that compaction has claimed
//! is left for a later pass.
//!
//! A move to an upstream takes the replicas of all nodes out of the record, so a backup through another node
//! cannot read the segment any more, and ends. While another node has pinned all segments, segments are
//! therefore not spilled to upstreams, unless appends wait for their space or an operator has ordered it.

use mlgw_common::time::Instant;
use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::time::Duration;

use mlgw_common::ids::SegmentId;
use mlgw_formats::schema::{Replica, SegmentRecord};
use mlgw_metadata::{Catalogue, ProposeError};

use super::Placing;
use super::PlacingOrder;
use super::choose::{PlacingCandidate, TierFill, TierPressure, choose_moves};
use super::copy::{CopyQueues, copy_segment};
use super::fetch::fetch;
use super::heat::SegmentHeat;
use super::job::{MoveEvent, MoveJob, MoveStep, SegmentMove};
use super::leftover_objects::{add_leftover, sweep_objects};
use super::reservation::{CopyReservation, no_room_error};
use super::stoppable_wait::{STOP_CHECK, until_stopped, wait};
use super::store::store;
use crate::flash::FlashWriteCause;
use crate::hot::claims::{ClaimOwner, SegmentClaim};
use crate::hot::compaction::choose::SegmentStats;
use crate::hot::compaction::stats::segment_stats;
use crate::hot::compaction::{
    Compaction, MoveStepError, RelocationLog, RelocationTarget, blocking, move_matching, wait_until,
};
use crate::hot::map::SegmentLocation;
use crate::hot::pace::ByteRateLimiter;
use crate::hot::remote_tier::object_of;
use crate::hot::{HotTierInner, OwnerPredicate};
use mlgw_common::SegmentTier;
use mlgw_formats::decision_entry::{DecisionCause, DecisionSubject, PlacementDecision};
use mlgw_formats::decision_words::{DecisionKind, DecisionOutcome, DecisionReason};
use mlgw_formats::segment_header::SEGMENT_HEADER_BYTES;
use mlgw_formats::segment_record::RecordOwner;

/// Maximum duration of a pass; after it the next pass examines all segments again.
pub(super) const PASS_MAX: Duration = Duration::from_secs(5);
/// Consecutive failures with an upstream after which the remaining segments of the pass fail without an
/// attempt.
const UPSTREAM_FAILURES_MAX: u32 = 3;
/// Time for which no segment is spilled to an upstream after one could not be stored there.
const UPSTREAM_BACKOFF: Duration = Duration::from_secs(10);
/// Interval between removals of leftover objects at upstreams.
const SWEEP_INTERVAL: Duration = Duration::from_mins(1);
/// Percentage of dead bytes at which a segment at an upstream is fetched to be emptied. High, since the whole
/// segment is fetched for its live bytes, and dead bytes cost a store's price and no local space.
const UPSTREAM_DEAD_PERCENT: u64 = 70;

/// Pause before a change of a record whose outcome is unknown is proposed again.
const UNKNOWN_OUTCOME_RETRY: Duration = Duration::from_secs(1);

/// Maximum number of segments per pass that are recorded as waiting for the flash budget.
const OVER_BUDGET_RECORDED_MAX: usize = 8;

/// Reason and size of a move, for the decision log.
#[derive(Clone, Copy)]
struct MoveReason {
    why: DecisionCause,
    bytes: u64,
}

/// A job whose old file is still needed.
struct ParkedMove {
    job: MoveJob,
    occasion: MoveReason,
    claim: SegmentClaim,
}

/// Moves segments until the tier stops or is dropped.
pub(in crate::hot) async fn run(
    tier: Weak<HotTierInner>,
    placing: Arc<Placing>,
    compaction: Arc<Compaction>,
) {
    let mut placer = PlacingDriver::new();
    loop {
        placing.next_pass(compaction.settings().interval).await;
        let Some(inner) = tier.upgrade().filter(|_| !compaction.is_stopped()) else { return };
        let Some(catalogue) = inner.catalogue.clone() else { return };
        match placer.run_pass(&inner, &catalogue).await {
            Ok(true) => drop(placing.start_pass()),
            Ok(false) => {}
            Err(MoveStepError::Stopping) => return,
            Err(error) => tracing::warn!(%error, "a pass of moves between tiers failed"),
        }
        placing.pass_ended();
    }
}

/// The driver of moves between tiers.
pub(super) struct PlacingDriver {
    parked: Vec<ParkedMove>,
    heat: SegmentHeat,
    pub(super) pace: Arc<ByteRateLimiter>,
    /// Location of the copy made by the current job.
    copied: Option<Replica>,
    /// Segments that the current order could not move: it continues with the others, and ends.
    pub(super) skipped: HashSet<SegmentId>,
    /// True if the open segments of a rule's order were sealed.
    pub(super) has_sealed: bool,
    /// Chunks that stay, of the segments that the current order spills.
    stays: Option<(OwnerPredicate, DecisionCause)>,
    /// Consecutive failures to move a segment to or from an upstream.
    upstream_failures: u32,
    /// Time until which segments are spilled to upstreams only by orders, since the last attempt failed.
    backoff_until: Option<Instant>,
    /// Time until which segments are not spilled to upstreams because another node makes a backup, unless
    /// appends wait for their space.
    backup_until: Option<Instant>,
    /// Time of the next removal of leftover objects.
    sweep_due: Option<Instant>,
}

impl PlacingDriver {
    fn new() -> Self {
        Self {
            parked: Vec::new(),
            heat: SegmentHeat::new(Instant::now()),
            pace: Arc::default(),
            copied: None,
            skipped: HashSet::new(),
            has_sealed: false,
            stays: None,
            upstream_failures: 0,
            backoff_until: None,
            backup_until: None,
            sweep_due: None,
        }
    }

    /// Runs a pass of limited duration. Returns true if there is more to do immediately.
    async fn run_pass(
        &mut self,
        inner: &Arc<HotTierInner>,
        catalogue: &Catalogue,
    ) -> Result<bool, MoveStepError> {
        self.heat.add(Instant::now(), inner.reader.take_reads());
        if inner.volumes.cold.is_empty() && inner.remote_tier.is_empty() {
            return Ok(false);
        }
        let is_requested = inner.placing.sweep_requested.swap(false, Relaxed);
        if is_requested || self.sweep_due.is_none_or(|due| due <= Instant::now()) {
            self.sweep_due = Some(Instant::now() + SWEEP_INTERVAL);
            sweep_objects(inner, catalogue, ClaimOwner::Placing).await?;
        }
        for ParkedMove { job, occasion, claim } in std::mem::take(&mut self.parked) {
            self.run_job(inner, catalogue, job, occasion, claim).await?;
        }
        let facts = &*segment_stats(inner, catalogue).await?;
        let order = inner.placing.current_order();
        if let Some(leaving) = order.as_ref().and_then(PlacingOrder::rule_spill) {
            if self.seal_open(inner, catalogue, facts, leaving).await {
                return Ok(true);
            }
            self.stays = Some((leaving.staying_chunks(), leaving.why()));
        }
        if let Some(PlacingOrder::Gather(leaving)) = &order {
            if self.gather(inner, catalogue, leaving, facts).await? {
                self.order_done(inner);
            }
            return Ok(true);
        }
        let mut chosen = self.choose(inner, facts, order.as_ref());
        let has_spill = chosen.iter().any(|(_, way)| way.to == SegmentTier::Upstream);
        if has_spill && is_deferrable(inner, order.as_ref()) && is_backed_up(catalogue).await {
            tracing::info!("another node makes a backup: segments are spilled to upstreams after it");
            self.leave_to_backup(&mut chosen, order.as_ref());
        }
        self.move_all(inner, catalogue, facts, chosen, order).await
    }

    /// Moves the chosen segments for a limited time. Returns true if there is more to do immediately.
    async fn move_all(
        &mut self,
        inner: &Arc<HotTierInner>,
        catalogue: &Catalogue,
        facts: &[SegmentStats],
        mut chosen: Vec<(SegmentId, SegmentMove)>,
        order: Option<PlacingOrder>,
    ) -> Result<bool, MoveStepError> {
        let bytes = |segment| bytes_of(facts, segment);
        // Orders are carried out regardless of the flash budget; jobs wait for it on their own.
        if order.is_none() && !inner.shared.flash.can_start_own_write() {
            remove_promotions(inner, facts, &mut chosen);
        }
        let mut waiting: u64 = chosen.iter().map(|(segment, _)| bytes(*segment)).sum();
        let (begun, mut is_left_out) = (Instant::now(), false);
        for (segment, way) in chosen {
            inner.placing.waiting_bytes.store(waiting, Relaxed);
            if inner.compaction.is_stopped() {
                return Err(MoveStepError::Stopping);
            }
            if begun.elapsed() > PASS_MAX {
                return Ok(true);
            }
            let Some(claim) =
                inner.claims.claim(segment, ClaimOwner::Placing, freed_bytes(way, bytes(segment)))
            else {
                is_left_out = true;
                continue;
            };
            // Compaction has released or moved the segment since it was examined.
            if catalogue.segment(segment).is_none_or(|now| now.tier != way.from) {
                continue;
            }
            let is_upstream_move = way.from == SegmentTier::Upstream || way.to == SegmentTier::Upstream;
            let why = order.as_ref().map_or_else(|| default_reason(way), PlacingOrder::why);
            let (job, occasion) = (MoveJob::new(segment, way), MoveReason { why, bytes: bytes(segment) });
            if is_upstream_move && self.upstream_failures >= UPSTREAM_FAILURES_MAX {
                inner.placing.failed.fetch_add(1, Relaxed);
                record_failed(
                    inner,
                    job,
                    occasion,
                    &"skipped: the upstream failed for the previous segments",
                );
                self.skip_or_back_off(segment, way, order.as_ref());
            } else if self.run_job(inner, catalogue, job, occasion, claim).await? {
                self.upstream_failures = 0;
            } else {
                self.upstream_failures += u32::from(is_upstream_move);
                self.skip_or_back_off(segment, way, order.as_ref());
            }
            waiting = waiting.saturating_sub(bytes(segment));
        }
        inner.placing.waiting_bytes.store(0, Relaxed);
        inner.placing.draining_segments.store(self.parked.len() as u64, Relaxed);
        self.upstream_failures = 0;
        if order.is_some() && is_left_out {
            // Compaction has claimed a segment and will soon be done.
            mlgw_common::time::sleep(STOP_CHECK).await;
            return Ok(true);
        }
        let failed = !self.skipped.is_empty();
        if order.is_some() {
            self.order_done(inner);
        }
        Ok(order.is_some() && !failed)
    }

    fn order_done(&mut self, inner: &HotTierInner) {
        inner.placing.order_done();
        self.skipped.clear();
        (self.has_sealed, self.stays) = (false, None);
    }

    /// Leaves a segment that could not be moved to a later order, or spills to upstreams to a later pass.
    fn skip_or_back_off(&mut self, segment: SegmentId, way: SegmentMove, order: Option<&PlacingOrder>) {
        if order.is_some() {
            self.skipped.insert(segment);
        } else if way.to == SegmentTier::Upstream {
            self.backoff_until = Some(Instant::now() + UPSTREAM_BACKOFF);
        }
    }

    /// Leaves the spills to upstreams to a later pass, or to a later order.
    fn leave_to_backup(&mut self, chosen: &mut Vec<(SegmentId, SegmentMove)>, order: Option<&PlacingOrder>) {
        let left = chosen.extract_if(.., |(_, way)| way.to == SegmentTier::Upstream);
        self.skipped.extend(left.map(|(segment, _)| segment).filter(|_| order.is_some()));
        if order.is_none() {
            self.backup_until = Some(Instant::now() + UPSTREAM_BACKOFF);
        }
    }

    /// True if a pass without an order may spill to upstreams. `is_deferrable` is true if its spills may wait
    /// for the backup of another node.
    fn may_spill(&self, is_deferrable: bool) -> bool {
        let is_over = |until: Option<Instant>| until.is_none_or(|until| until <= Instant::now());
        is_over(self.backoff_until) && (!is_deferrable || is_over(self.backup_until))
    }

    fn choose(
        &self,
        inner: &HotTierInner,
        facts: &[SegmentStats],
        order: Option<&PlacingOrder>,
    ) -> Vec<(SegmentId, SegmentMove)> {
        let dead_percent = inner.compaction.settings().dead_percent;
        let moved_room_bytes = inner.is_pressed().then(|| inner.shared.space.moved_room_bytes());
        let is_busy = |segment| match order {
            // An order waits for compaction, except for parked work.
            Some(_) => inner.claims.is_parked(segment),
            None => inner.claims.is_claimed(segment),
        };
        let kept = inner.placing.pinned();
        let placed: Vec<PlacingCandidate> = facts
            .iter()
            .map(|segment| PlacingCandidate {
                id: segment.id,
                tier: segment.tier,
                bytes: segment.bytes,
                is_idle: segment.is_idle()
                    && segment.bytes > SEGMENT_HEADER_BYTES
                    && !is_busy(segment.id)
                    && !self.skipped.contains(&segment.id),
                is_worth_keeping: is_worth_keeping(segment, dead_percent, moved_room_bytes),
                is_mostly_dead: segment.references > 0 && segment.has_dead_percent(UPSTREAM_DEAD_PERCENT),
                is_pinned: kept.contains(&segment.id),
                heat: self.heat.of(segment.id),
            })
            .collect();
        let mut aim = tier_pressure(inner);
        aim.has_upstream &= order.is_some() || self.may_spill(is_deferrable(inner, order));
        choose_moves(&placed, order, aim)
    }

    /// Runs a job as far as possible now. Returns true if it is done or parked, false if it failed and was
    /// abandoned.
    async fn run_job(
        &mut self,
        inner: &Arc<HotTierInner>,
        catalogue: &Catalogue,
        mut job: MoveJob,
        occasion: MoveReason,
        claim: SegmentClaim,
    ) -> Result<bool, MoveStepError> {
        let mut is_placed = false;
        while let Some(step) = job.next() {
            match self.run_step(inner, catalogue, job, step).await {
                Ok(MoveEvent::Busy) => {
                    self.parked.push(ParkedMove { job, occasion, claim: claim.parked() });
                    return Ok(true);
                }
                Ok(event) => {
                    if step == MoveStep::UpdateRecord {
                        is_placed = true;
                        inner.decisions.record(&decided(job, occasion, DecisionOutcome::Done));
                    }
                    job.advance(event);
                }
                Err(MoveStepError::Stopping) => return Err(MoveStepError::Stopping),
                Err(error) => {
                    inner.placing.failed.fetch_add(1, Relaxed);
                    if matches!(step, MoveStep::RelocateStaying | MoveStep::Copy | MoveStep::UpdateRecord)
                        && !is_placed
                    {
                        inner.decisions.record_because(&decided(job, occasion, error.outcome()), &error);
                    }
                    tracing::warn!(segment = %job.segment, way = ?job.way, ?step, %error,
                        "failed to move a segment");
                    return Ok(false);
                }
            }
        }
        tracing::debug!(segment = %job.segment, way = ?job.way, "moved");
        Ok(true)
    }

    async fn run_step(
        &mut self,
        inner: &Arc<HotTierInner>,
        catalogue: &Catalogue,
        job: MoveJob,
        step: MoveStep,
    ) -> Result<MoveEvent, MoveStepError> {
        match step {
            MoveStep::RelocateStaying => {
                // Skipped under pressure: it takes space and time, and appends wait for both. Hot chunks can
                // be promoted later.
                let by_heat = || if inner.is_pressed() { None } else { hot_chunks(inner) };
                if let Some((wanted, why)) = self.stays.clone().or_else(by_heat) {
                    let picked = RelocationLog::start(job.segment);
                    let to = RelocationTarget::Moved;
                    let done = move_matching(inner, catalogue, &picked, wanted, to, &self.pace).await;
                    picked.record(inner, why, done.as_ref().err());
                    done?;
                }
            }
            MoveStep::Copy => {
                assert!(self.copied.is_none(), "the copy of a job is not left to the next one");
                self.copied = Some(self.copy(inner, catalogue, job).await?);
            }
            MoveStep::UpdateRecord => {
                let to = self.copied.take().ok_or_else(|| io::Error::other("it was not copied"))?;
                update_record(inner, catalogue, job, to).await?;
            }
            MoveStep::Sync => {
                let catalogue = catalogue.clone();
                blocking(move || Ok(catalogue.sync_log()?)).await?;
            }
            MoveStep::Drain if inner.pins.has_global_pin() => return Ok(MoveEvent::Busy),
            MoveStep::Drain => {}
            MoveStep::Unlink => unlink(inner, catalogue, job).await?,
        }
        Ok(MoveEvent::Done)
    }

    /// Makes the copy and returns its location.
    async fn copy(
        &mut self,
        inner: &Arc<HotTierInner>,
        catalogue: &Catalogue,
        job: MoveJob,
    ) -> Result<Replica, MoveStepError> {
        let record = record(catalogue, job.segment)?;
        let from = own_replica(inner, &record, job.way.from)?.clone();
        let pace = &self.pace;
        let to = match (job.way.from, job.way.to) {
            (_, SegmentTier::Upstream) => until_stopped(inner, store(inner, &record, &from, pace)).await,
            (SegmentTier::Upstream, _) => {
                let fetched = until_stopped(inner, fetch(inner, &record, pace)).await;
                fetched.map(|()| Replica {
                    tier: SegmentTier::Hot.number(),
                    copy: 0,
                    sealed_key: Vec::new(),
                    incarnation: 0,
                    ..from
                })
            }
            (from_tier, to_tier) => {
                let copied = copy_file(inner, &record, from_tier, to_tier, pace).await;
                copied.map(|()| Replica { tier: to_tier.number(), ..from })
            }
        };
        if inner.compaction.is_stopped() {
            return Err(MoveStepError::Stopping);
        }
        let mut to = to?;
        assert_eq!(to.tier(), Ok(job.way.to), "the copy is in the destination tier");
        if job.way.to != SegmentTier::Upstream {
            let path = inner.volumes.dirs().path(job.segment, job.way.to);
            let dir = path.parent().and_then(|dir| dir.file_name()).unwrap_or_default();
            to.location = dir.to_string_lossy().into_owned();
        }
        Ok(to)
    }
}

/// True if spills may wait for the backup of another node: no append waits for their space, and no operator.
fn is_deferrable(inner: &HotTierInner, order: Option<&PlacingOrder>) -> bool {
    let is_of_operator = order.is_some_and(|order| order.rule_spill().is_none());
    !is_of_operator && inner.space_waiters.missing_bytes(&inner.shared.space) == 0
}

/// True if another node has pinned all segments. Without an answer there is no majority, and no backup.
async fn is_backed_up(catalogue: &Catalogue) -> bool {
    let pinned = catalogue.are_all_segments_pinned_elsewhere().await;
    pinned.inspect_err(|error| tracing::debug!(%error, "pins on other nodes are unknown")).unwrap_or(false)
}

/// True if a segment is better spilled than left to compaction. `moved_room_bytes` is the space for live
/// bytes of compaction while the tier is pressed: a segment whose live bytes do not fit is better spilled as
/// it is.
fn is_worth_keeping(segment: &SegmentStats, dead_percent: u64, moved_room_bytes: Option<u64>) -> bool {
    let cannot_be_emptied = moved_room_bytes.is_some_and(|room| segment.referenced_bytes > room);
    segment.references > 0 && (!segment.has_dead_percent(dead_percent) || cannot_be_emptied)
}

/// Bytes of the hot tier that a move frees.
fn freed_bytes(way: SegmentMove, bytes: u64) -> u64 {
    if way.from == SegmentTier::Hot { bytes } else { 0 }
}

/// Returns the predicate of the chunks that stay in a spill without a rule: hot ones.
fn hot_chunks(inner: &HotTierInner) -> Option<(OwnerPredicate, DecisionCause)> {
    let is_hot = inner.is_hot.get()?.clone();
    let wanted = move |owner: &RecordOwner| owner.part.is_none() && is_hot(owner.body, owner.offset);
    Some((Arc::new(wanted), DecisionReason::Heat.into()))
}

fn bytes_of(facts: &[SegmentStats], segment: SegmentId) -> u64 {
    facts.iter().find(|facts| facts.id == segment).map_or(0, |facts| facts.bytes)
}

/// Removes the promotions from a choice while the flash budget is used up, and records some of them.
fn remove_promotions(
    inner: &HotTierInner,
    facts: &[SegmentStats],
    chosen: &mut Vec<(SegmentId, SegmentMove)>,
) {
    let promotions: Vec<_> = chosen.extract_if(.., |(_, way)| way.to == SegmentTier::Hot).collect();
    for (segment, way) in promotions.into_iter().take(OVER_BUDGET_RECORDED_MAX) {
        let occasion = MoveReason { why: default_reason(way), bytes: bytes_of(facts, segment) };
        let decision = decided(MoveJob::new(segment, way), occasion, DecisionOutcome::OverBudget);
        inner.decisions.record(&decision);
    }
}

/// Returns the reason of a move without an order: a spill happens because the tier is too full, a promotion
/// so that the segment can be emptied.
fn default_reason(way: SegmentMove) -> DecisionCause {
    if way.to == SegmentTier::Hot {
        DecisionReason::Compaction.into()
    } else {
        DecisionReason::Watermark.into()
    }
}

fn decided(job: MoveJob, occasion: MoveReason, outcome: DecisionOutcome) -> PlacementDecision<'static> {
    PlacementDecision {
        kind: if job.way.to == SegmentTier::Hot { DecisionKind::Promote } else { DecisionKind::Spill },
        subject: DecisionSubject::Segment(job.segment),
        from: job.way.from.into(),
        to: job.way.to.into(),
        bytes: occasion.bytes,
        cause: occasion.why,
        outcome,
    }
}

fn record_failed(inner: &HotTierInner, job: MoveJob, occasion: MoveReason, error: &dyn std::fmt::Display) {
    inner.decisions.record_because(&decided(job, occasion, DecisionOutcome::Failed), error);
}

/// Returns the current pressure on the tiers.
fn tier_pressure(inner: &HotTierInner) -> TierPressure {
    let (settings, space) = (inner.placing.settings(), &inner.shared.space);
    let hot = TierFill { used_bytes: space.used_bytes(), room_bytes: space.room_bytes() };
    let (used_bytes, room_bytes) = inner.volumes.cold_bytes();
    TierPressure {
        has_cold: !inner.volumes.cold.is_empty(),
        // The owner of a segment at an upstream would change soon, and other nodes copy its replicas.
        has_upstream: inner.remote_tier.spill_target().is_some() && !inner.is_leaving(),
        // Space that an append waits for has precedence over the watermarks.
        hot_excess_bytes: hot.excess_bytes(settings).max(inner.space_waiters.missing_bytes(space)),
        cold_excess_bytes: TierFill { used_bytes, room_bytes }.excess_bytes(settings),
        hot_room_bytes: hot.room_bytes,
    }
}

/// Copies a segment from one local directory to another on the blocking pool.
async fn copy_file(
    inner: &Arc<HotTierInner>,
    record: &SegmentRecord,
    from_tier: SegmentTier,
    to_tier: SegmentTier,
    pace: &Arc<ByteRateLimiter>,
) -> Result<(), MoveStepError> {
    let (of, record, pace) = (inner.clone(), record.clone(), pace.clone());
    let rate = inner.placing.settings().bytes_per_second;
    blocking(move || {
        let place = SegmentLocation::of(&record, from_tier);
        let from = of.volumes.dirs().open_verified(record.segment_id(), &place)?;
        let before = &mut |bytes: u64| wait(&of, pace.due_at(Instant::now(), bytes, rate));
        Ok(copy_into(&of, &from, &record, to_tier, before)?)
    })
    .await
}

fn copy_into(
    inner: &HotTierInner,
    from: &File,
    record: &SegmentRecord,
    tier: SegmentTier,
    before: &mut dyn FnMut(u64) -> io::Result<()>,
) -> io::Result<()> {
    let (disk, space, name) = if tier == SegmentTier::Cold {
        inner.volumes.cold.iter().for_each(|volume| volume.space.refresh());
        let to = inner.volumes.least_full(record.length).ok_or_else(|| no_room_error("cold", record))?;
        (&to.disk, &to.space, "cold")
    } else {
        (&*inner.volumes.hot, &*inner.shared.space, "hot")
    };
    let room = CopyReservation::reserve(space, name, record)?;
    let queues = &inner.shared.queues;
    let turns = if tier == SegmentTier::Cold {
        CopyQueues { read: &queues.hot, write: &queues.cold }
    } else {
        CopyQueues { read: &queues.cold, write: &queues.hot }
    };
    copy_segment(from, record.length, disk, record.segment_id(), turns, before)?;
    room.keep();
    if tier == SegmentTier::Hot {
        inner.shared.flash.record_write(FlashWriteCause::Promote, record.length);
    }
    Ok(())
}

fn record(catalogue: &Catalogue, segment: SegmentId) -> Result<SegmentRecord, MoveStepError> {
    let record = catalogue.segment_record(segment)?;
    record.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "its record no longer exists").into())
}

/// Returns the replica in `tier` of a segment that this node owns. Only the owner moves a segment.
fn own_replica<'r>(
    inner: &HotTierInner,
    record: &'r SegmentRecord,
    tier: SegmentTier,
) -> io::Result<&'r Replica> {
    let replica = record.replica_of(inner.node).filter(|_| record.is_owned_by(inner.node));
    let replica = replica.filter(|replica| replica.tier() == Ok(tier));
    replica.ok_or_else(|| io::Error::other("its record names another location"))
}

async fn update_record(
    inner: &Arc<HotTierInner>,
    catalogue: &Catalogue,
    job: MoveJob,
    to: Replica,
) -> Result<(), MoveStepError> {
    let record = record(catalogue, job.segment)?;
    let from = own_replica(inner, &record, job.way.from)?.clone();
    if job.way.from == SegmentTier::Upstream {
        add_leftover(inner, from.location.clone(), object_of(job.segment, &from)).await?;
    }
    // A local copy is equal byte for byte. One at an upstream was verified.
    let is_suspect = from.is_suspect && to.tier() != Ok(SegmentTier::Upstream);
    let to = Replica { is_suspect, ..to };
    place(inner, catalogue, &record, from, to).await?;
    inner.remote_tier.invalidate(job.segment);
    let bytes = match (job.way.from, job.way.to) {
        (_, SegmentTier::Upstream) => &inner.placing.stored_bytes,
        (SegmentTier::Upstream, _) => &inner.placing.fetched_bytes,
        (SegmentTier::Hot, _) => &inner.placing.spilled_bytes,
        (SegmentTier::Cold, _) => &inner.placing.promoted_bytes,
    };
    bytes.fetch_add(record.length, Relaxed);
    Ok(())
}

/// Changes the record, and repeats that until its outcome is known: until then no file of the segment may be
/// removed, because the record may name it.
async fn place(
    inner: &Arc<HotTierInner>,
    catalogue: &Catalogue,
    record: &SegmentRecord,
    from: Replica,
    to: Replica,
) -> Result<(), MoveStepError> {
    let mut is_unknown = false;
    loop {
        let (segment, changes) = (record.segment_id(), record.changes);
        match catalogue.place_segment(segment, changes, from.clone(), to.clone()).await {
            Err(ProposeError::UnknownOutcome) => is_unknown = true,
            Err(ProposeError::NotLeader { .. } | ProposeError::Overloaded) if is_unknown => {}
            outcome => return Ok(outcome?),
        }
        wait_until(inner, Instant::now() + UNKNOWN_OUTCOME_RETRY).await?;
    }
}

async fn unlink(inner: &Arc<HotTierInner>, catalogue: &Catalogue, job: MoveJob) -> Result<(), MoveStepError> {
    inner.reader.invalidate(job.segment);
    if job.way.from == SegmentTier::Upstream {
        return sweep_objects(inner, catalogue, ClaimOwner::Placing).await;
    }
    let (of, segment) = (inner.clone(), job.segment);
    let names_copy = catalogue.segment(segment).is_none_or(|now| now.tier != job.way.from);
    assert!(names_copy, "an old file is removed after its record names the copy");
    blocking(move || {
        if let Some(place) = of.shared.segments.map.location(segment) {
            of.volumes.set_foreign_aside(segment, &place)?;
        }
        if job.way.from == SegmentTier::Hot {
            let bytes = of.volumes.hot.remove(segment)?.unwrap_or(0);
            of.shared.space.record_freed(bytes.saturating_sub(SEGMENT_HEADER_BYTES));
        } else {
            of.volumes.remove_cold(segment).map(drop)?;
        }
        Ok(())
    })
    .await?;
    // The object was added to the leftovers before the upload; now that a record names it, the sweep drops it
    // from the list.
    if job.way.to == SegmentTier::Upstream {
        sweep_objects(inner, catalogue, ClaimOwner::Placing).await
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{PlacingDriver, SegmentMove};
    use mlgw_common::SegmentTier;
    use mlgw_common::ids::SegmentId;

    #[test]
    fn a_backup_on_another_node_leaves_moves_to_the_cold_tier_and_promotions() {
        let way = |from, to| SegmentMove { from, to };
        let spilled = (SegmentId(1), way(SegmentTier::Hot, SegmentTier::Upstream));
        let rest = [
            (SegmentId(2), way(SegmentTier::Hot, SegmentTier::Cold)),
            (SegmentId(3), way(SegmentTier::Upstream, SegmentTier::Hot)),
        ];
        let mut driver = PlacingDriver::new();
        let mut chosen = vec![rest[0], spilled, rest[1]];
        driver.leave_to_backup(&mut chosen, None);
        assert_eq!(chosen, rest);
        assert!(!driver.may_spill(true), "later passes leave them too, for a while");
        assert!(driver.may_spill(false), "unless an append waits for the space");
        driver.skip_or_back_off(spilled.0, spilled.1, None);
        assert!(!driver.may_spill(false), "the upstream failed");
    }
}

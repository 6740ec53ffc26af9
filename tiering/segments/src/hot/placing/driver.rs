//! Executes moves between tiers: chooses segments and moves one after the other.
//!
//! A move that fails is abandoned and chosen again in a later pass, since every step is idempotent. A move
//! whose old file is still needed by a pin on all segments is parked. A segment that compaction has claimed
//! is left for a later pass.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use mlgw_common::ids::SegmentId;
use mlgw_formats::schema::{Replica, SegmentRecord};
use mlgw_metadata::Catalogue;

use super::Order;
use super::Placing;
use super::choose::{Aim, Fill, PlacedFacts, choose};
use super::copy::{Turns, copy};
use super::fetch::fetch;
use super::heat::Heat;
use super::job::{Event, Job, Step, Way};
use super::room::{Room, no_room};
use super::store::store;
use crate::flash::Cause;
use crate::hot::away::object_of;
use crate::hot::catalogue::{COLD, HOT, UPSTREAM};
use crate::hot::compaction::choose::SegmentFacts;
use crate::hot::compaction::driver::look;
use crate::hot::compaction::{Compaction, Picked, StepError, To, blocking, pick_out};
use crate::hot::in_hand::{Claim, Hand};
use crate::hot::map::Whereabouts;
use crate::hot::pace::Pace;
use crate::hot::{Inner, Wanted};
use mlgw_formats::decision_entry::{Decided, What, Why};
use mlgw_formats::decision_words::{Kind, Outcome, Place, Reason};
use mlgw_formats::segment_header::SEGMENT_HEADER_BYTES;
use mlgw_formats::segment_record::Owner;
use mlgw_remote::upstream::ObjectId;

/// Maximum duration of a pass; after it the next pass examines all segments again.
pub(super) const TURN: Duration = Duration::from_secs(5);
/// Interval at which a wait checks for a shutdown.
pub(super) const STOP_CHECK: Duration = Duration::from_millis(50);
/// Consecutive failures with an upstream after which the remaining segments of the pass fail without an
/// attempt.
const REFUSALS_MAX: u32 = 3;
/// Time for which no segment is spilled to an upstream after one could not be stored there.
const REST: Duration = Duration::from_secs(10);
/// Interval between removals of leftover objects at upstreams.
const SWEEP_EVERY: Duration = Duration::from_mins(1);
/// Percentage of dead bytes at which a segment at an upstream is fetched to be emptied. High, since the whole
/// segment is fetched for its live bytes, and dead bytes cost a store's price and no local space.
const UPSTREAM_DEAD_PERCENT: u64 = 70;

/// Maximum number of segments per pass that are recorded as waiting for the flash budget.
const OVER_BUDGET_NOTED_MAX: usize = 8;

/// Reason and size of a move, for the decision log.
#[derive(Clone, Copy)]
struct Occasion {
    why: Why,
    bytes: u64,
}

/// A job whose old file is still needed.
struct Parked {
    job: Job,
    occasion: Occasion,
    claim: Claim,
}

/// Moves segments until the tier stops or is dropped.
pub(in crate::hot) async fn run(tier: Weak<Inner>, placing: Arc<Placing>, compaction: Arc<Compaction>) {
    let mut placer = Placer::new();
    loop {
        placing.next_round(compaction.settings().interval).await;
        let Some(inner) = tier.upgrade().filter(|_| !compaction.is_stopped()) else { return };
        let Some(catalogue) = inner.catalogue.clone() else { return };
        match placer.round(&inner, &catalogue).await {
            Ok(true) => drop(placing.go_on()),
            Ok(false) => {}
            Err(StepError::Stopping) => return,
            Err(error) => tracing::warn!(%error, "moving segments between tiers was given up"),
        }
        placing.round_ended();
    }
}

/// The driver of moves between tiers.
pub(super) struct Placer {
    parked: Vec<Parked>,
    heat: Heat,
    pub(super) pace: Pace,
    /// Location of the copy made by the current job.
    copied: Option<Replica>,
    /// Segments that the current order could not move: it continues with the others, and ends.
    pub(super) given_up: HashSet<SegmentId>,
    /// True if the open segments of a rule's order were sealed.
    pub(super) has_sealed: bool,
    /// Chunks that stay, of the segments that the current order spills.
    stays: Option<(Wanted, Why)>,
    /// Consecutive failures to move a segment to or from an upstream.
    refusals: u32,
    /// Time until which segments are spilled to upstreams only by orders, since the last attempt failed.
    rests_until: Option<Instant>,
    /// Time of the next removal of leftover objects.
    sweep_due: Option<Instant>,
}

impl Placer {
    fn new() -> Self {
        Self {
            parked: Vec::new(),
            heat: Heat::new(Instant::now()),
            pace: Pace::default(),
            copied: None,
            given_up: HashSet::new(),
            has_sealed: false,
            stays: None,
            refusals: 0,
            rests_until: None,
            sweep_due: None,
        }
    }

    /// Runs a pass of limited duration. Returns true if there is more to do immediately.
    async fn round(&mut self, inner: &Arc<Inner>, catalogue: &Catalogue) -> Result<bool, StepError> {
        self.heat.add(Instant::now(), inner.reader.take_reads());
        if inner.volumes.cold.is_empty() && inner.away.is_nowhere() {
            return Ok(false);
        }
        let is_asked = inner.placing.sweeps_next.swap(false, Relaxed);
        if is_asked || self.sweep_due.is_none_or(|due| due <= Instant::now()) {
            self.sweep_due = Some(Instant::now() + SWEEP_EVERY);
            sweep_objects(inner, catalogue, Hand::Placing).await?;
        }
        for Parked { job, occasion, claim } in std::mem::take(&mut self.parked) {
            self.run_job(inner, catalogue, job, occasion, claim).await?;
        }
        let facts = &*look(inner, catalogue).await?;
        let order = inner.placing.order();
        if let Some(leaving) = order.as_ref().and_then(Order::leaving) {
            if self.seal_open(inner, catalogue, facts, leaving).await {
                return Ok(true);
            }
            self.stays = Some((leaving.stays(), leaving.why()));
        }
        if let Some(Order::Gather(leaving)) = &order {
            if self.gather(inner, catalogue, leaving, facts).await? {
                self.order_done(inner);
            }
            return Ok(true);
        }
        let chosen = self.choose(inner, facts, order.as_ref());
        self.move_all(inner, catalogue, facts, chosen, order).await
    }

    /// Moves the chosen segments for a limited time. Returns true if there is more to do immediately.
    async fn move_all(
        &mut self,
        inner: &Arc<Inner>,
        catalogue: &Catalogue,
        facts: &[SegmentFacts],
        mut chosen: Vec<(SegmentId, Way)>,
        order: Option<Order>,
    ) -> Result<bool, StepError> {
        let bytes = |segment| facts.iter().find(|f| f.id == segment).map_or(0, |f| f.bytes);
        if order.is_none() && !inner.shared.flash.allows() {
            // Orders are carried out regardless of the budget; jobs wait for it on their own.
            let up: Vec<_> = chosen.extract_if(.., |(_, way)| way.to == HOT).collect();
            for (segment, way) in up.into_iter().take(OVER_BUDGET_NOTED_MAX) {
                let occasion = Occasion { why: why(way), bytes: bytes(segment) };
                inner.decisions.record(&decided(Job::new(segment, way), occasion, Outcome::OverBudget));
            }
        }
        let mut waiting: u64 = chosen.iter().map(|(segment, _)| bytes(*segment)).sum();
        let (begun, mut is_left_out) = (Instant::now(), false);
        for (segment, way) in chosen {
            inner.placing.waiting_bytes.store(waiting, Relaxed);
            if inner.compaction.is_stopped() {
                return Err(StepError::Stopping);
            }
            if begun.elapsed() > TURN {
                return Ok(true);
            }
            let Some(claim) = inner.in_hand.claim(segment, Hand::Placing, frees_bytes(way, bytes(segment)))
            else {
                is_left_out = true;
                continue;
            };
            // Compaction has released or moved the segment since it was examined.
            if catalogue.segment(segment).is_none_or(|now| now.tier != way.from) {
                continue;
            }
            let away = way.from == UPSTREAM || way.to == UPSTREAM;
            let why = order.as_ref().map_or_else(|| why(way), Order::why);
            let (job, occasion) = (Job::new(segment, way), Occasion { why, bytes: bytes(segment) });
            if away && self.refusals >= REFUSALS_MAX {
                inner.placing.failed.fetch_add(1, Relaxed);
                note_refused(inner, job, occasion, &"the upstream failed with those before it");
                self.gave_up(segment, way, order.is_some());
            } else if self.run_job(inner, catalogue, job, occasion, claim).await? {
                self.refusals = 0;
            } else {
                self.refusals += u32::from(away);
                self.gave_up(segment, way, order.is_some());
            }
            waiting = waiting.saturating_sub(bytes(segment));
        }
        inner.placing.waiting_bytes.store(0, Relaxed);
        inner.placing.draining_segments.store(self.parked.len() as u64, Relaxed);
        self.refusals = 0;
        if order.is_some() && is_left_out {
            // Compaction has claimed a segment and will soon be done.
            tokio::time::sleep(STOP_CHECK).await;
            return Ok(true);
        }
        let failed = !self.given_up.is_empty();
        if order.is_some() {
            self.order_done(inner);
        }
        Ok(order.is_some() && !failed)
    }

    fn order_done(&mut self, inner: &Inner) {
        inner.placing.order_done();
        self.given_up.clear();
        (self.has_sealed, self.stays) = (false, None);
    }

    fn gave_up(&mut self, segment: SegmentId, way: Way, ordered: bool) {
        if ordered {
            self.given_up.insert(segment);
        } else if way.to == UPSTREAM {
            self.rests_until = Some(Instant::now() + REST);
        }
    }

    fn choose(&self, inner: &Inner, facts: &[SegmentFacts], order: Option<&Order>) -> Vec<(SegmentId, Way)> {
        let dead_percent = inner.compaction.settings().dead_percent;
        let moved_room_bytes = inner.is_pressed().then(|| inner.shared.space.moved_room_bytes());
        let is_busy = |segment| match order {
            // An order waits for compaction, except for parked work.
            Some(_) => inner.in_hand.is_parked(segment),
            None => inner.in_hand.holds(segment),
        };
        let kept = inner.placing.kept();
        let placed: Vec<PlacedFacts> = facts
            .iter()
            .map(|segment| PlacedFacts {
                id: segment.id,
                tier: segment.tier,
                bytes: segment.bytes,
                at_rest: segment.is_at_rest()
                    && segment.bytes > SEGMENT_HEADER_BYTES
                    && !is_busy(segment.id)
                    && !self.given_up.contains(&segment.id),
                worth_keeping: is_worth_keeping(segment, dead_percent, moved_room_bytes),
                mostly_dead: segment.references > 0 && segment.is_worth(UPSTREAM_DEAD_PERCENT),
                kept: kept.contains(&segment.id),
                heat: self.heat.of(segment.id),
            })
            .collect();
        let mut aim = aim(inner);
        aim.has_upstream &= order.is_some() || self.rests_until.is_none_or(|until| until <= Instant::now());
        choose(&placed, order, aim)
    }

    /// Runs a job as far as possible now. Returns true if it is done or parked, false if it failed and was
    /// abandoned.
    async fn run_job(
        &mut self,
        inner: &Arc<Inner>,
        catalogue: &Catalogue,
        mut job: Job,
        occasion: Occasion,
        claim: Claim,
    ) -> Result<bool, StepError> {
        let mut is_placed = false;
        while let Some(step) = job.next() {
            match self.carry_out(inner, catalogue, job, step).await {
                Ok(Event::Busy) => {
                    self.parked.push(Parked { job, occasion, claim: claim.parked() });
                    return Ok(true);
                }
                Ok(event) => {
                    if step == Step::Place {
                        is_placed = true;
                        inner.decisions.record(&decided(job, occasion, Outcome::Done));
                    }
                    job.on(event);
                }
                Err(StepError::Stopping) => return Err(StepError::Stopping),
                Err(error) => {
                    inner.placing.failed.fetch_add(1, Relaxed);
                    if matches!(step, Step::PickOut | Step::Copy | Step::Place) && !is_placed {
                        inner.decisions.record_because(&decided(job, occasion, error.outcome()), &error);
                    }
                    tracing::warn!(segment = %job.segment, way = ?job.way, ?step, %error, "a segment was not moved");
                    return Ok(false);
                }
            }
        }
        tracing::debug!(segment = %job.segment, way = ?job.way, "moved");
        Ok(true)
    }

    async fn carry_out(
        &mut self,
        inner: &Arc<Inner>,
        catalogue: &Catalogue,
        job: Job,
        step: Step,
    ) -> Result<Event, StepError> {
        match step {
            Step::PickOut => {
                // Skipped under pressure: it takes space and time, and appends wait for both. Hot chunks can
                // be promoted later.
                let by_heat = || if inner.is_pressed() { None } else { hot(inner) };
                if let Some((wanted, why)) = self.stays.clone().or_else(by_heat) {
                    let picked = Picked::begin(job.segment);
                    let those = (wanted, To::Others);
                    let done = pick_out(inner, catalogue, &picked, those, &mut self.pace).await;
                    picked.end(inner, why, done.as_ref().err());
                    done?;
                }
            }
            Step::Copy => self.copied = Some(self.copy(inner, catalogue, job).await?),
            Step::Place => {
                let to = self.copied.take().ok_or_else(|| io::Error::other("it was not copied"))?;
                place(inner, catalogue, job, to).await?;
            }
            Step::Settle => {
                let catalogue = catalogue.clone();
                blocking(move || Ok(catalogue.settle()?)).await?;
            }
            Step::Drain if inner.pins.are_segments_kept() => return Ok(Event::Busy),
            Step::Drain => {}
            Step::Unlink => unlink(inner, catalogue, job).await?,
        }
        Ok(Event::Done)
    }

    /// Makes the copy and returns its location.
    async fn copy(
        &mut self,
        inner: &Arc<Inner>,
        catalogue: &Catalogue,
        job: Job,
    ) -> Result<Replica, StepError> {
        let record = record(catalogue, job.segment)?;
        let from = record.replicas.first().filter(|at| at.node == inner.node.0 && at.tier == job.way.from);
        let from = from.ok_or_else(|| io::Error::other("its record names another place"))?.clone();
        // The rate limiter is moved into the copying task and returned by it.
        let pace = std::mem::take(&mut self.pace);
        let to = match (job.way.from, job.way.to) {
            (_, UPSTREAM) => {
                let (stored, pace) = until_stopped(inner, store(inner, &record, &from, pace)).await?;
                self.pace = pace;
                stored
            }
            (UPSTREAM, _) => {
                self.pace = until_stopped(inner, fetch(inner, &record, pace)).await?;
                Ok(Replica { tier: HOT, copy: 0, sealed_key: Vec::new(), incarnation: 0, ..from })
            }
            (from_tier, to_tier) => {
                let (copied, pace) = copy_file(inner, &record, from_tier, to_tier, pace).await?;
                self.pace = pace;
                copied.map(|()| Replica { tier: to_tier, ..from }).map_err(StepError::from)
            }
        };
        if inner.compaction.is_stopped() {
            return Err(StepError::Stopping);
        }
        let mut to = to?;
        if to.tier != UPSTREAM {
            let path = inner.volumes.dirs().path(job.segment, to.tier);
            let dir = path.parent().and_then(|dir| dir.file_name()).unwrap_or_default();
            to.location = dir.to_string_lossy().into_owned();
        }
        Ok(to)
    }
}

/// True if a segment is better spilled than left to compaction. `moved_room_bytes` is the space for live
/// bytes of compaction while the tier is pressed: a segment whose live bytes do not fit is better spilled as
/// it is.
fn is_worth_keeping(segment: &SegmentFacts, dead_percent: u64, moved_room_bytes: Option<u64>) -> bool {
    let cannot_be_emptied = moved_room_bytes.is_some_and(|room| segment.referenced_bytes > room);
    segment.references > 0 && (!segment.is_worth(dead_percent) || cannot_be_emptied)
}

/// Bytes of the hot tier that a move frees.
fn frees_bytes(way: Way, bytes: u64) -> u64 {
    if way.from == HOT { bytes } else { 0 }
}

/// Returns the predicate of the chunks that stay in a spill without a rule: hot ones.
fn hot(inner: &Inner) -> Option<(Wanted, Why)> {
    let is_hot = inner.is_hot.get()?.clone();
    let wanted = move |owner: &Owner| owner.part.is_none() && is_hot(owner.body, owner.offset);
    Some((Arc::new(wanted), Reason::Heat.into()))
}

/// Returns the reason of a move without an order: a spill happens because the tier is too full, a promotion
/// so that the segment can be emptied.
fn why(way: Way) -> Why {
    if way.to == HOT { Reason::Compaction.into() } else { Reason::Watermark.into() }
}

fn decided(job: Job, occasion: Occasion, outcome: Outcome) -> Decided<'static> {
    let place = |tier| match tier {
        HOT => Place::Hot,
        COLD => Place::Cold,
        _ => Place::Upstream,
    };
    Decided {
        kind: if job.way.to == HOT { Kind::Promote } else { Kind::Spill },
        what: What::Segment(job.segment),
        from: place(job.way.from),
        to: place(job.way.to),
        bytes: occasion.bytes,
        why: occasion.why,
        outcome,
    }
}

fn note_refused(inner: &Inner, job: Job, occasion: Occasion, error: &dyn std::fmt::Display) {
    inner.decisions.record_because(&decided(job, occasion, Outcome::Failed), error);
}

/// Returns the current pressure on the tiers.
fn aim(inner: &Inner) -> Aim {
    let (settings, space) = (inner.placing.settings(), &inner.shared.space);
    let hot = Fill { used_bytes: space.used_bytes(), room_bytes: space.room_bytes() };
    let (used_bytes, room_bytes) = inner.volumes.cold_bytes();
    Aim {
        has_cold: !inner.volumes.cold.is_empty(),
        has_upstream: inner.away.target().is_some(),
        // Space that an append waits for has precedence over the watermarks.
        hot_excess_bytes: hot.excess_bytes(settings).max(inner.relief.lacking_bytes(space)),
        cold_excess_bytes: Fill { used_bytes, room_bytes }.excess_bytes(settings),
        hot_room_bytes: hot.room_bytes,
    }
}

/// Waits for `work`; drops it if the tier stops.
async fn until_stopped<T>(
    inner: &Inner,
    work: impl Future<Output = Result<T, StepError>>,
) -> Result<T, StepError> {
    let mut work = std::pin::pin!(work);
    loop {
        if inner.compaction.is_stopped() {
            return Err(StepError::Stopping);
        }
        if let Ok(done) = tokio::time::timeout(STOP_CHECK, &mut work).await {
            return done;
        }
    }
}

/// Removes objects at upstreams that no record names, as far as upstreams are reachable, except those of
/// segments claimed by another worker than `by`.
pub(in crate::hot) async fn sweep_objects(
    inner: &Arc<Inner>,
    catalogue: &Catalogue,
    by: Hand,
) -> Result<(), StepError> {
    let mut leftovers = inner.leftovers.lock().await;
    if leftovers.is_empty() || inner.pins.are_segments_kept() {
        return Ok(());
    }
    let settles = catalogue.clone();
    blocking(move || Ok(settles.settle()?)).await?;
    let segments = &inner.shared.segments;
    let in_use = |segment| inner.in_hand.is_held_by_other(segment, by);
    leftovers.sweep(&*segments.map, inner.away.upstreams(), segments.clock.now(), &in_use).await?;
    inner.placing.leftover_objects.store(leftovers.len() as u64, Relaxed);
    Ok(())
}

/// Copies a segment from one local directory to another on the blocking pool.
async fn copy_file(
    inner: &Arc<Inner>,
    record: &SegmentRecord,
    from_tier: u32,
    to_tier: u32,
    mut pace: Pace,
) -> Result<(io::Result<()>, Pace), StepError> {
    let (of, record) = (inner.clone(), record.clone());
    let rate = inner.placing.settings().bytes_per_second;
    blocking(move || {
        let place = Whereabouts { tier: from_tier, ..Whereabouts::of(&record) };
        let from = of.volumes.dirs().open_own(record.segment_id(), &place)?;
        let before = &mut |bytes: u64| wait(&of, pace.due(Instant::now(), bytes, rate));
        let copied = copy_into(&of, &from, &record, to_tier, before);
        Ok((copied, pace))
    })
    .await
}

fn copy_into(
    inner: &Inner,
    from: &File,
    record: &SegmentRecord,
    tier: u32,
    before: &mut dyn FnMut(u64) -> io::Result<()>,
) -> io::Result<()> {
    let (disk, space, name) = if tier == COLD {
        inner.volumes.cold.iter().for_each(|volume| volume.space.look());
        let to = inner.volumes.least_full(record.length).ok_or_else(|| no_room("cold", record))?;
        (&to.disk, &to.space, "cold")
    } else {
        (&*inner.volumes.hot, &*inner.shared.space, "hot")
    };
    let room = Room::take(space, name, record)?;
    let queues = &inner.shared.queues;
    let turns = if tier == COLD {
        Turns { read: &queues.hot, write: &queues.cold }
    } else {
        Turns { read: &queues.cold, write: &queues.hot }
    };
    copy(from, record.length, disk, record.segment_id(), turns, before)?;
    room.keep();
    if tier == HOT {
        inner.shared.flash.wrote(Cause::Promote, record.length);
    }
    Ok(())
}

fn record(catalogue: &Catalogue, segment: SegmentId) -> Result<SegmentRecord, StepError> {
    let record = catalogue.segment_record(segment)?;
    record.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "its record is gone").into())
}

/// Waits until `due`; fails if the tier stops.
pub(super) fn wait(inner: &Inner, due: Instant) -> io::Result<()> {
    loop {
        if inner.compaction.is_stopped() {
            return Err(io::Error::other("the tier is stopping"));
        }
        let left = due.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        std::thread::sleep(left.min(STOP_CHECK));
    }
}

async fn place(inner: &Arc<Inner>, catalogue: &Catalogue, job: Job, to: Replica) -> Result<(), StepError> {
    let record = record(catalogue, job.segment)?;
    let from = record.replicas.into_iter().find(|at| at.node == inner.node.0 && at.tier == job.way.from);
    let from = from.ok_or_else(|| io::Error::other("its record names another place"))?;
    if from.tier == UPSTREAM {
        note(inner, from.location.clone(), object_of(job.segment, &from)).await?;
    }
    catalogue.place_segment(job.segment, from, to).await?;
    inner.away.forget(job.segment);
    let bytes = match (job.way.from, job.way.to) {
        (_, UPSTREAM) => &inner.placing.stored_bytes,
        (UPSTREAM, _) => &inner.placing.fetched_bytes,
        (HOT, _) => &inner.placing.spilled_bytes,
        _ => &inner.placing.promoted_bytes,
    };
    bytes.fetch_add(record.length, Relaxed);
    Ok(())
}

/// Adds an object to the leftovers, before it is stored or its record stops naming it.
pub(super) async fn note(inner: &Arc<Inner>, upstream: String, id: ObjectId) -> Result<(), StepError> {
    let mut leftovers = inner.leftovers.clone().lock_owned().await;
    blocking(move || Ok(leftovers.note(&upstream, id)?)).await
}

async fn unlink(inner: &Arc<Inner>, catalogue: &Catalogue, job: Job) -> Result<(), StepError> {
    inner.reader.forget(job.segment);
    if job.way.from == UPSTREAM {
        return sweep_objects(inner, catalogue, Hand::Placing).await;
    }
    let (of, segment) = (inner.clone(), job.segment);
    blocking(move || {
        if let Some(place) = of.shared.segments.map.place(segment) {
            of.volumes.set_strangers_aside(segment, &place)?;
        }
        if job.way.from == HOT {
            let bytes = of.volumes.hot.remove(segment)?.unwrap_or(0);
            of.shared.space.freed(bytes.saturating_sub(SEGMENT_HEADER_BYTES));
        } else {
            of.volumes.remove_cold(segment).map(drop)?;
        }
        Ok(())
    })
    .await?;
    // The object was added to the leftovers before the upload; now that a record names it, the sweep drops it
    // from the list.
    if job.way.to == UPSTREAM { sweep_objects(inner, catalogue, Hand::Placing).await } else { Ok(()) }
}

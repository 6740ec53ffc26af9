//! Executes compaction: examines all segments, chooses some and runs one job after the other.
//!
//! A job whose segment still has readers is parked and retried in each pass; any other failure abandons the
//! job, which starts anew later, since every step is idempotent. Placing moves segments at the same time:
//! each segment is claimed first, and a segment that placing has claimed is left for a later pass.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use mlgw_common::ids::SegmentId;
use mlgw_formats::schema::SegmentState;
use mlgw_metadata::Catalogue;

use super::choose::{Aim, Pressure, SegmentFacts, choose};
use super::dying::Dying;
use super::job::{End, Event, Job, Step};
use super::moving::{Picked, StepError, empty};
use crate::hot::catalogue::HOT;
use crate::hot::in_hand::{Claim, Hand};
use crate::hot::pace::Pace;
use crate::hot::placing::driver::sweep_objects;
use crate::hot::{Inner, relief};
use mlgw_formats::decision_entry::{Decided, What, Why};
use mlgw_formats::decision_words::{Kind, Outcome, Place, Reason};
use mlgw_formats::segment_header::SEGMENT_HEADER_BYTES;

/// Maximum duration of a pass that was not requested; after it the next pass examines all segments again.
const TURN: Duration = Duration::from_secs(5);
/// Interval at which a pass checks that open segments it asked to be sealed are sealed.
const SEAL_CHECK: Duration = Duration::from_millis(10);
const SEAL_CHECKS_MAX: usize = 200;

/// Maximum number of segments per pass that are recorded as not emptied for lack of space or of flash budget;
/// more would add no information.
const NO_ROOM_NOTED_MAX: usize = 8;

/// Runs compaction until the tier stops or is dropped.
pub(in crate::hot) async fn run(tier: Weak<Inner>, compaction: Arc<super::Compaction>) {
    let mut driver = Driver::default();
    while let Some(asked) = compaction.next_round().await {
        let Some(inner) = tier.upgrade() else { return };
        let Some(catalogue) = inner.catalogue.clone() else { return };
        match driver.round(&inner, &catalogue, asked).await {
            Ok(true) => compaction.go_on(),
            Ok(false) => {}
            Err(StepError::Stopping) => return,
            Err(error) => tracing::warn!(%error, "a round of compaction was given up"),
        }
        compaction.round_ended();
        // The set of sealed segments and of mostly dead ones may have changed.
        inner.placing.go_on();
    }
}

/// A job whose segment has readers.
struct Parked {
    job: Job,
    why: Why,
    claim: Claim,
}

#[derive(Default)]
struct Driver {
    parked: Vec<Parked>,
    dying: Dying,
    pace: Pace,
}

impl Driver {
    /// Empties and releases segments. Returns true if there is more to do immediately.
    async fn round(
        &mut self,
        inner: &Arc<Inner>,
        catalogue: &Catalogue,
        asked: Option<u64>,
    ) -> Result<bool, StepError> {
        let begun = Instant::now();
        for Parked { job, why, claim } in std::mem::take(&mut self.parked) {
            self.run_job(inner, catalogue, job, why, claim).await;
        }
        let mut facts = look(inner, catalogue).await?;
        let pressed = inner.is_pressed();
        let pressure = Pressure::of(pressed, pressed && relief::can_spill(inner, &facts));
        let dead_percent = pressure.dead_percent(inner.compaction.settings().dead_percent, asked);
        if (pressed || asked.is_some()) && give_up_open(inner, catalogue, &facts, dead_percent).await {
            facts = look(inner, catalogue).await?;
        }
        inner.compaction.held_back.lock().retain(|id, _| facts.iter().any(|segment| segment.id == *id));
        self.dying.look(Instant::now(), &facts);
        if asked.is_none() && has_room_to_wait(inner, &facts) {
            let patience = inner.compaction.settings().patience;
            facts.retain(|segment| !self.dying.is_worth_waiting_for(segment, patience));
        }
        let cold_dead_percent = asked.unwrap_or(inner.compaction.settings().cold_dead_percent);
        let room_bytes = inner.shared.space.moved_room_bytes();
        let aim = Aim { dead_percent, cold_dead_percent, room_bytes };
        note_no_room(inner, &facts, aim);
        let mut chosen = choose(&facts, aim, &inner.compaction.held_back());
        if !pressed && asked.is_none() && !inner.shared.flash.allows() {
            leave_to_later(inner, &facts, &mut chosen);
        }
        let mut has_more = false;
        for segment in chosen {
            let of = facts.iter().find(|of| of.id == segment);
            let why = of.map_or(Reason::Compaction, |of| why(inner, of, asked.is_some()));
            if inner.compaction.is_stopped() {
                return Err(StepError::Stopping);
            }
            // A requested pass does everything that was chosen.
            has_more = asked.is_none() && begun.elapsed() > TURN;
            if has_more {
                break;
            }
            if let Some(claim) = of.and_then(|of| claim(inner, catalogue, of)) {
                self.run_job(inner, catalogue, Job::new(segment), why.into(), claim).await;
            }
        }
        inner.compaction.draining_segments.store(self.parked.len() as u64, Relaxed);
        look(inner, catalogue).await?;
        Ok(has_more)
    }

    /// Runs a job as far as possible now.
    async fn run_job(
        &mut self,
        inner: &Arc<Inner>,
        catalogue: &Catalogue,
        mut job: Job,
        why: Why,
        claim: Claim,
    ) {
        let segment = job.segment();
        loop {
            let step = match job.next() {
                Ok(step) => step,
                Err(End::Released) => {
                    inner.compaction.held_back.lock().remove(&segment);
                    return tracing::debug!(%segment, "released");
                }
                Err(End::HeldBack(references)) => {
                    inner.compaction.held_back.lock().insert(segment, references);
                    inner.decisions.record(&released(inner, segment, 0, why, Outcome::Damaged));
                    return tracing::error!(%segment, references, "not emptied: what is left does not verify");
                }
            };
            match self.carry_out(inner, catalogue, segment, step, why).await {
                Ok(Event::Busy) => return self.parked.push(Parked { job, why, claim: claim.parked() }),
                Ok(event) => job.on(event),
                Err(error) => {
                    if step != Step::Move && !matches!(error, StepError::Stopping) {
                        let refused = released(inner, segment, 0, why, error.outcome());
                        inner.decisions.record_because(&refused, &error);
                    }
                    inner.pins.gone(segment);
                    return tracing::warn!(%segment, ?step, %error, "compaction of a segment was given up");
                }
            }
        }
    }

    async fn carry_out(
        &mut self,
        inner: &Arc<Inner>,
        catalogue: &Catalogue,
        segment: SegmentId,
        step: Step,
        why: Why,
    ) -> Result<Event, StepError> {
        match step {
            Step::Fence => catalogue.fence_segment(segment).await?,
            Step::Count => return Ok(Event::References(catalogue.segment_usage(segment)?.extents)),
            Step::Move => {
                let picked = Picked::begin(segment);
                let done = empty(inner, catalogue, &picked, &mut self.pace).await;
                picked.end(inner, why, done.as_ref().err());
                done?;
            }
            Step::Drain if inner.pins.let_go(segment) => {}
            Step::Drain => return Ok(Event::Busy),
            Step::Remove => {
                note_object(inner, segment).await?;
                // Done while the record is still there to compare the files with.
                let of = inner.clone();
                blocking(move || match of.shared.segments.map.place(segment) {
                    Some(place) => Ok(of.volumes.set_strangers_aside(segment, &place)?),
                    None => Ok(()),
                })
                .await?;
                catalogue.remove_segment(segment).await?;
            }
            Step::Settle => {
                let (disk, catalogue) = (inner.shared.segments.disk.clone(), catalogue.clone());
                blocking(move || {
                    // Chunk bytes before the catalogue entries that name them.
                    disk.settle()?;
                    Ok(catalogue.settle()?)
                })
                .await?;
            }
            Step::Unlink => unlink(inner, catalogue, segment, why).await?,
        }
        Ok(Event::Done)
    }
}

/// Claims a segment in the state in which it was examined. `None` if placing has claimed it, or has moved it
/// since.
fn claim(inner: &Inner, catalogue: &Catalogue, of: &SegmentFacts) -> Option<Claim> {
    let frees_bytes = match (of.tier, of.references) {
        (HOT, 0) => of.bytes,
        (HOT, _) => of.dead_bytes(),
        _ => 0,
    };
    let claim = inner.in_hand.claim(of.id, Hand::Compaction, frees_bytes)?;
    catalogue.segment(of.id).filter(|segment| segment.tier == of.tier).map(|_| claim)
}

/// For a segment at an upstream: adds its object to the leftovers, which are removed when no record names
/// them.
async fn note_object(inner: &Arc<Inner>, segment: SegmentId) -> Result<(), StepError> {
    let of = inner.clone();
    let Some(remote) = blocking(move || Ok(of.away.find(segment)?)).await? else { return Ok(()) };
    // Locked only here: the lock is held while objects are removed from an upstream that may be slow.
    let mut leftovers = inner.leftovers.clone().lock_owned().await;
    blocking(move || Ok(leftovers.note(&remote.upstream, remote.id)?)).await
}

/// Returns the reason why a segment is emptied or released.
fn why(inner: &Inner, segment: &SegmentFacts, is_asked: bool) -> Reason {
    let settings = inner.compaction.settings();
    let usual = if segment.tier == HOT { settings.dead_percent } else { settings.cold_dead_percent };
    match segment.references {
        0 => Reason::Dead,
        _ if segment.is_worth(usual) => Reason::Compaction,
        _ if is_asked => Reason::Asked,
        _ => Reason::Pressure,
    }
}

fn released(inner: &Inner, segment: SegmentId, bytes: u64, why: Why, outcome: Outcome) -> Decided<'static> {
    let (kind, what, from) = (Kind::Release, What::Segment(segment), inner.place_of(segment));
    Decided { kind, what, from, to: Place::Nowhere, bytes, why, outcome }
}

/// Drops the chosen segments that need writes: the flash budget is used up and space is not short.
fn leave_to_later(inner: &Inner, facts: &[SegmentFacts], chosen: &mut Vec<SegmentId>) {
    let lives = |id: &SegmentId| facts.iter().find(|of| of.id == *id).filter(|of| of.references > 0);
    for of in chosen.iter().filter_map(lives).take(NO_ROOM_NOTED_MAX) {
        inner.decisions.record(&waits(inner, of, Outcome::OverBudget));
    }
    chosen.retain(|id| lives(id).is_none());
}

/// Returns the decision entry for a segment whose emptying is postponed.
fn waits(inner: &Inner, of: &SegmentFacts, outcome: Outcome) -> Decided<'static> {
    Decided {
        kind: Kind::Relocate,
        what: What::Segment(of.id),
        from: inner.place_of(of.id),
        to: Place::Hot,
        bytes: of.referenced_bytes,
        why: Reason::Compaction.into(),
        outcome,
    }
}

/// Records the segments that would be emptied if there were space for their live bytes.
fn note_no_room(inner: &Inner, facts: &[SegmentFacts], aim: Aim) {
    let worth = |of: &&SegmentFacts| of.tier == HOT && of.references > 0 && of.is_worth(aim.dead_percent);
    let full = facts.iter().filter(|of| of.is_at_rest() && of.referenced_bytes > aim.room_bytes);
    for of in full.filter(worth).take(NO_ROOM_NOTED_MAX) {
        inner.decisions.record(&waits(inner, of, Outcome::NoRoom));
    }
}

async fn unlink(
    inner: &Arc<Inner>,
    catalogue: &Catalogue,
    segment: SegmentId,
    why: Why,
) -> Result<(), StepError> {
    inner.reader.forget(segment);
    let of = inner.clone();
    let (hot_bytes, cold_bytes) = blocking(move || {
        let hot_bytes = of.volumes.hot.remove(segment)?.unwrap_or(0);
        of.shared.space.freed(hot_bytes.saturating_sub(SEGMENT_HEADER_BYTES));
        Ok((hot_bytes, of.volumes.remove_cold(segment)?))
    })
    .await?;
    inner.pins.gone(segment);
    match (hot_bytes, cold_bytes) {
        // The segment was at an upstream.
        (0, 0) => sweep_objects(inner, catalogue, Hand::Compaction).await?,
        // A move of this segment to an upstream may have been interrupted and left an object. Its removal
        // must not delay the release of local space.
        _ => inner.placing.sweep_next(),
    }
    let bytes = hot_bytes + cold_bytes;
    // The record is gone, so the tier is that of the removed file.
    let from = match (hot_bytes, cold_bytes) {
        (0, 0) => Place::Upstream,
        (0, _) => Place::Cold,
        _ => Place::Hot,
    };
    let decided = released(inner, segment, bytes, why, Outcome::Done);
    inner.decisions.record(&Decided { from, ..decided });
    inner.compaction.freed_bytes.fetch_add(bytes, Relaxed);
    inner.compaction.freed_segments.fetch_add(1, Relaxed);
    Ok(())
}

/// True if the free space is at least twice the dead bytes: then the tier can afford to wait for segments to
/// die.
fn has_room_to_wait(inner: &Inner, facts: &[SegmentFacts]) -> bool {
    let dead_bytes: u64 = facts.iter().map(SegmentFacts::dead_bytes).sum();
    inner.shared.space.room_bytes() >= dead_bytes.saturating_mul(2)
}

/// Returns the state of every segment of this node, in all tiers.
pub(in crate::hot) async fn look(
    inner: &Arc<Inner>,
    catalogue: &Catalogue,
) -> Result<Vec<SegmentFacts>, StepError> {
    let (of, catalogue) = (inner.clone(), catalogue.clone());
    let facts = blocking(move || {
        let mut segments = catalogue.segments()?;
        segments.retain(|segment| segment.replicas.first().is_some_and(|at| at.node == of.node.0));
        // Holds are read before usages: a hold that was dropped by then has its reference counted.
        let holds = &of.shared.segments.holds;
        let held: Vec<bool> = segments.iter().map(|segment| holds.is_held(segment.segment_id())).collect();
        let usages = catalogue.segment_usages()?;
        let facts = segments.iter().zip(held).map(|(segment, in_flight)| {
            let id = segment.segment_id();
            let usage = usages.get(&id).copied().unwrap_or_default();
            let sealed = segment.state() == SegmentState::Sealed;
            SegmentFacts {
                id,
                tier: segment.replicas.first().map_or(HOT, |at| at.tier),
                sealed,
                bytes: if sealed { segment.length } else { holds.bytes(id).unwrap_or(0) },
                referenced_bytes: usage.bytes,
                references: usage.extents,
                in_flight,
            }
        });
        Ok(facts.collect::<Vec<_>>())
    })
    .await?;
    let garbage: u64 = facts.iter().map(SegmentFacts::dead_bytes).sum();
    inner.compaction.garbage_bytes.store(garbage, Relaxed);
    Ok(facts)
}

/// Seals open segments that are worth emptying. Returns true if there were any.
async fn give_up_open(
    inner: &Inner,
    catalogue: &Catalogue,
    facts: &[SegmentFacts],
    dead_percent: u64,
) -> bool {
    let open = facts.iter().filter(|segment| !segment.sealed && segment.is_worth(dead_percent));
    let given_up: Vec<SegmentId> = open.map(|segment| segment.id).collect();
    seal(inner, catalogue, &given_up).await;
    !given_up.is_empty()
}

/// Seals open segments and waits for that, for a limited time.
pub(in crate::hot) async fn seal(inner: &Inner, catalogue: &Catalogue, open: &[SegmentId]) {
    if open.is_empty() {
        return;
    }
    for &segment in open {
        inner.shared.segments.holds.give_up(segment);
    }
    inner.lanes.roll();
    for _ in 0..SEAL_CHECKS_MAX {
        let is_open = |id: &SegmentId| catalogue.segment(*id).is_some_and(|s| s.state == SegmentState::Open);
        if !open.iter().any(is_open) {
            break;
        }
        tokio::time::sleep(SEAL_CHECK).await;
    }
}

/// Runs blocking work on the blocking pool.
pub(in crate::hot) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StepError> + Send + 'static,
) -> Result<T, StepError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|stopped| Err(std::io::Error::other(stopped).into()))
}

//! Carries moves out: chooses, and brings one segment after the other to its new place.
//!
//! A move that fails is given up and chosen again with a later round, as every step may be repeated. One whose old
//! file somebody copies is parked.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use mlgw_common::ids::SegmentId;
use mlgw_metadata::Catalogue;
use mlgw_metadata::schema::{Replica, SegmentRecord};

use super::choose::{Fill, PlacedFacts, choose};
use super::copy::copy;
use super::heat::Heat;
use super::job::{Event, Job, Step, Way};
use crate::hot::Inner;
use crate::hot::catalogue::{COLD, HOT};
use crate::hot::compaction::choose::SegmentFacts;
use crate::hot::compaction::{StepError, blocking, pick_out};
use crate::hot::header::SEGMENT_HEADER_BYTES;
use crate::hot::pace::Pace;

/// After how long compaction gets its turn.
const TURN: Duration = Duration::from_secs(5);
/// How soon a wait ends when the tier stops.
const STOP_CHECK: Duration = Duration::from_millis(50);

/// Moves segments.
pub(in crate::hot) struct Placer {
    /// Jobs whose old files somebody copies.
    parked: Vec<Job>,
    heat: Heat,
    pace: Pace,
}

impl Placer {
    pub(in crate::hot) fn new() -> Self {
        Self { parked: Vec::new(), heat: Heat::new(Instant::now()), pace: Pace::default() }
    }

    /// Moves segments for a while; says whether there is more to do at once. `facts` of every segment as of now;
    /// those in `busy` are left alone.
    pub(in crate::hot) async fn round(
        &mut self,
        inner: &Arc<Inner>,
        catalogue: &Catalogue,
        facts: &[SegmentFacts],
        busy: &[SegmentId],
    ) -> Result<bool, StepError> {
        self.heat.add(Instant::now(), inner.reader.take_reads());
        if inner.volumes.cold.is_empty() {
            return Ok(false);
        }
        for job in std::mem::take(&mut self.parked) {
            self.run_job(inner, catalogue, job).await?;
        }
        let order = inner.placing.order();
        let chosen = self.choose(inner, facts, busy, order.as_ref());
        let bytes = |segment| facts.iter().find(|f| f.id == segment).map_or(0, |f| f.bytes);
        let mut waiting: u64 = chosen.iter().map(|(segment, _)| bytes(*segment)).sum();
        let (begun, mut failed) = (Instant::now(), false);
        for (segment, way) in chosen {
            inner.placing.waiting_bytes.store(waiting, Relaxed);
            if inner.compaction.is_stopped() {
                return Err(StepError::Stopping);
            }
            if begun.elapsed() > TURN {
                return Ok(true);
            }
            failed |= !self.run_job(inner, catalogue, Job::new(segment, way)).await?;
            waiting -= bytes(segment);
        }
        inner.placing.waiting_bytes.store(0, Relaxed);
        inner.placing.draining_segments.store(self.parked.len() as u64, Relaxed);
        if order.is_some() {
            inner.placing.order_done();
        }
        Ok(order.is_some() && !failed)
    }

    fn choose(
        &self,
        inner: &Inner,
        facts: &[SegmentFacts],
        busy: &[SegmentId],
        order: Option<&super::Order>,
    ) -> Vec<(SegmentId, Way)> {
        let dead_percent = inner.compaction.settings().dead_percent;
        let placed: Vec<PlacedFacts> = facts
            .iter()
            .map(|segment| PlacedFacts {
                id: segment.id,
                tier: segment.tier,
                bytes: segment.bytes,
                at_rest: segment.is_at_rest()
                    && segment.bytes > SEGMENT_HEADER_BYTES
                    && !busy.contains(&segment.id)
                    && !self.parked.iter().any(|job| job.segment == segment.id),
                worth_keeping: segment.references > 0 && !segment.is_worth(dead_percent),
                heat: self.heat.of(segment.id),
            })
            .collect();
        let space = &inner.shared.space;
        let fill = Fill { used_bytes: space.used_bytes(), room_bytes: space.room_bytes() };
        choose(&placed, order, fill.excess_bytes(inner.placing.settings()))
    }

    /// Brings a job as far as it comes now; says whether it is done, or only waits. One that fails is given up.
    async fn run_job(
        &mut self,
        inner: &Arc<Inner>,
        catalogue: &Catalogue,
        mut job: Job,
    ) -> Result<bool, StepError> {
        while let Some(step) = job.next() {
            match self.carry_out(inner, catalogue, job, step).await {
                Ok(Event::Busy) => {
                    self.parked.push(job);
                    return Ok(true);
                }
                Ok(event) => job.on(event),
                Err(StepError::Stopping) => return Err(StepError::Stopping),
                Err(error) => {
                    inner.placing.failed.fetch_add(1, Relaxed);
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
                if let Some(is_hot) = inner.is_hot.get() {
                    pick_out(inner, catalogue, job.segment, is_hot.clone(), &mut self.pace).await?;
                }
            }
            Step::Copy => self.copy(inner, catalogue, job).await?,
            Step::Place => place(inner, catalogue, job).await?,
            Step::Settle => {
                let catalogue = catalogue.clone();
                blocking(move || Ok(catalogue.settle()?)).await?;
            }
            Step::Drain if inner.pins.are_segments_kept() => return Ok(Event::Busy),
            Step::Drain => {}
            Step::Unlink => unlink(inner, job).await?,
        }
        Ok(Event::Done)
    }

    async fn copy(&mut self, inner: &Arc<Inner>, catalogue: &Catalogue, job: Job) -> Result<(), StepError> {
        let (segment, of) = (job.segment, inner.clone());
        let record = record(catalogue, segment)?;
        let rate = inner.placing.settings().bytes_per_second;
        // The pace goes with the thread that copies, and comes back.
        let mut pace = std::mem::take(&mut self.pace);
        let copied = blocking(move || {
            let from = of.volumes.dirs().open(segment, tier_of(job.way).0)?;
            let before = &mut |bytes: u64| wait(&of, pace.due(Instant::now(), bytes, rate));
            let copied = match job.way {
                Way::Spill => spill(&of, &from, &record, before),
                Way::Promote => promote(&of, &from, &record, before),
            };
            Ok((copied, pace))
        });
        let (copied, pace) = copied.await?;
        self.pace = pace;
        if inner.compaction.is_stopped() {
            return Err(StepError::Stopping);
        }
        Ok(copied?)
    }
}

/// From and to which tier.
fn tier_of(way: Way) -> (u32, u32) {
    match way {
        Way::Spill => (HOT, COLD),
        Way::Promote => (COLD, HOT),
    }
}

fn record(catalogue: &Catalogue, segment: SegmentId) -> Result<SegmentRecord, StepError> {
    let mut all = catalogue.segments()?.into_iter();
    all.find(|record| record.id == segment.0)
        .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "its record is gone").into())
}

fn spill(
    inner: &Inner,
    from: &File,
    record: &SegmentRecord,
    before: &mut dyn FnMut(u64) -> io::Result<()>,
) -> io::Result<()> {
    inner.volumes.cold.iter().for_each(|volume| volume.space.look());
    let to = inner.volumes.least_full(record.length).filter(|to| to.space.admit(record.length));
    let to = to.ok_or_else(|| no_room("cold", record))?;
    let copied = copy(from, record.length, &to.disk, record.segment_id(), before);
    match &copied {
        Ok(()) => to.space.settle(record.length),
        Err(_) => to.space.give_back(record.length),
    }
    copied
}

fn promote(
    inner: &Inner,
    from: &File,
    record: &SegmentRecord,
    before: &mut dyn FnMut(u64) -> io::Result<()>,
) -> io::Result<()> {
    let space = &inner.shared.space;
    if !space.admit(record.length) {
        return Err(no_room("hot", record));
    }
    let copied = copy(from, record.length, &inner.volumes.hot, record.segment_id(), before);
    match &copied {
        Ok(()) => space.settle(record.length),
        Err(_) => space.give_back(record.length),
    }
    copied
}

fn no_room(tier: &str, record: &SegmentRecord) -> io::Error {
    io::Error::new(
        io::ErrorKind::StorageFull,
        format!("the {tier} tier has no room for {} bytes", record.length),
    )
}

/// Waits, unless the tier stops.
fn wait(inner: &Inner, due: Instant) -> io::Result<()> {
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

async fn place(inner: &Inner, catalogue: &Catalogue, job: Job) -> Result<(), StepError> {
    let record = record(catalogue, job.segment)?;
    let (from_tier, to_tier) = tier_of(job.way);
    let from = record.replicas.into_iter().find(|at| at.node == inner.node.0 && at.tier == from_tier);
    let from = from.ok_or_else(|| io::Error::other("its record names another place"))?;
    let dirs = inner.volumes.dirs();
    let path = dirs.path(job.segment, to_tier);
    let location = path.parent().and_then(|dir| dir.file_name()).unwrap_or_default();
    let to = Replica { tier: to_tier, location: location.to_string_lossy().into_owned(), ..from.clone() };
    catalogue.place_segment(job.segment, from, to).await?;
    let bytes = match job.way {
        Way::Spill => &inner.placing.spilled_bytes,
        Way::Promote => &inner.placing.promoted_bytes,
    };
    bytes.fetch_add(record.length, Relaxed);
    Ok(())
}

async fn unlink(inner: &Arc<Inner>, job: Job) -> Result<(), StepError> {
    inner.reader.forget(job.segment);
    let (of, segment) = (inner.clone(), job.segment);
    blocking(move || {
        match job.way {
            Way::Spill => {
                let bytes = of.volumes.hot.remove(segment)?.unwrap_or(0);
                of.shared.space.freed(bytes.saturating_sub(SEGMENT_HEADER_BYTES));
            }
            Way::Promote => of.volumes.remove_cold(segment).map(drop)?,
        }
        Ok(())
    })
    .await
}

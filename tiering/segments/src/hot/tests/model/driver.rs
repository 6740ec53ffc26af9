//! Executes the real decisions of compaction, one step per action.

use mlgw_common::SegmentTier;
use mlgw_common::ids::SegmentId;
use mlgw_formats::command::{Change, Command, FenceSegment, Reject, RelocateExtent, RemoveSegment, Reply};
use mlgw_formats::schema::{SegmentState, segment};

use super::catalogue::Named;
use super::disk::File;
use super::world::{BrokenInvariant, ResultReceiver, World};
use crate::hot::compaction::choose::{CompactionThresholds, HeldBackSegments, SegmentStats, choose_segments};
use crate::hot::compaction::job::{CompactionEnd, CompactionEvent, CompactionJob, CompactionStep};
use crate::hot::holds::SegmentHold;

/// Memory of compaction, which a crash loses.
#[derive(Default)]
pub(super) struct Driver {
    job: Option<CompactionJob>,
    /// Number of visited records of the segment.
    at: usize,
    awaiting: bool,
    /// Hold on the copy that is about to be named.
    hold: Option<SegmentHold>,
    dead_percent: u64,
}

impl World {
    fn facts(&self) -> Vec<SegmentStats> {
        let segments = self.catalogue.segments();
        let facts = segments.iter().map(|record| {
            let usage = self.catalogue.usage(record.id);
            let sealed = record.state() == SegmentState::Sealed;
            let written = self.disk.files.get(&record.id).map_or(0, File::bytes);
            SegmentStats {
                tier: SegmentTier::Hot,
                id: record.segment_id(),
                sealed: sealed || !self.safeguards.in_flight,
                bytes: if sealed { record.length } else { written },
                referenced_bytes: usage.bytes,
                references: usage.extents,
                in_flight: self.safeguards.in_flight && self.holds.is_held(record.segment_id()),
            }
        });
        facts.collect()
    }

    pub(super) fn compact(&mut self) -> Result<(), BrokenInvariant> {
        if self.driver.awaiting {
            return Ok(());
        }
        let Some(job) = self.driver.job else {
            let aim = CompactionThresholds { dead_percent: 30 - self.driver.dead_percent, ..ALL_DEAD };
            let chosen = choose_segments(&self.facts(), aim, &HeldBackSegments::new());
            self.driver.job = chosen.first().map(|segment| CompactionJob::new(*segment));
            self.driver.at = 0;
            return Ok(());
        };
        match job.next() {
            Ok(step) => self.run_step(job.segment(), step),
            Err(CompactionEnd::Released) => {
                self.driver.job = None;
                self.seen.released += 1;
            }
            Err(CompactionEnd::HeldBack(left)) => return Err(format!("{left} references were not moved")),
        }
        Ok(())
    }

    fn run_step(&mut self, segment: SegmentId, step: CompactionStep) {
        let event = match step {
            CompactionStep::Fence if self.safeguards.fence => {
                return self.propose_change(Change::FenceSegment(FenceSegment { segment: segment.0 }));
            }
            CompactionStep::Fence => CompactionEvent::Done,
            CompactionStep::Count => CompactionEvent::References(self.catalogue.usage(segment.0).extents),
            CompactionStep::Move => match self.next_live(segment.0) {
                Some(named) => return self.relocate(named),
                None => CompactionEvent::Done,
            },
            CompactionStep::Drain if !self.safeguards.pins || self.pins.close_if_unpinned(segment) => {
                CompactionEvent::Done
            }
            CompactionStep::Drain => CompactionEvent::Busy,
            CompactionStep::Remove if self.safeguards.fence && self.safeguards.in_flight => {
                return self.propose_change(Change::RemoveSegment(RemoveSegment {
                    segment: segment.0,
                    ..RemoveSegment::default()
                }));
            }
            // The catalogue refuses to remove a segment that is not sealed and fenced; without those rules
            // the row is removed directly.
            CompactionStep::Remove => {
                self.catalogue.rows.0.remove(&segment::row(segment));
                CompactionEvent::Done
            }
            CompactionStep::Sync => {
                if self.safeguards.sync_before_unlink {
                    self.disk.sync();
                    self.catalogue.synced = self.catalogue.log.len();
                    self.record_durable();
                }
                CompactionEvent::Done
            }
            CompactionStep::Unlink => {
                self.disk.remove(segment.0);
                self.pins.end_closure(segment);
                CompactionEvent::Done
            }
        };
        self.advance(event);
    }

    fn advance(&mut self, event: CompactionEvent) {
        if let Some(job) = &mut self.driver.job {
            job.advance(event);
        }
    }

    /// Proposes a change; in two of three cases it is committed before anything else happens.
    fn propose_change(&mut self, change: Change) {
        self.driver.awaiting = true;
        if self.dice.roll(3) > 0 {
            let outcome = self.commit(change);
            self.answers.push((ResultReceiver::Driver, outcome));
        } else {
            self.in_transit.push((Command::from(change), ResultReceiver::Driver));
        }
    }

    /// Returns the next referenced record of the segment.
    fn next_live(&mut self, segment: u64) -> Option<Named> {
        let references = self.catalogue.references();
        let records = &self.disk.files.get(&segment)?.records;
        while let Some(record) = records.get(self.driver.at) {
            let here =
                |named: &&Named| named.extent.segment == segment && named.extent.offset == record.offset;
            if let Some(named) = references.iter().find(here) {
                return Some(named.clone());
            }
            self.driver.at += 1;
        }
        None
    }

    fn relocate(&mut self, named: Named) {
        let (body_id, part, ..) = named.chunk;
        let (to, hold) = self.append(1, named.chunk, named.extent.logical_bytes);
        self.driver.hold = Some(hold);
        let (page, from) = (named.page, named.extent);
        self.propose_change(Change::RelocateExtent(RelocateExtent {
            bucket_id: 1,
            key: named.key,
            body_id,
            part,
            page,
            from,
            to,
        }));
    }

    pub(super) fn driver_result(&mut self, outcome: Result<Reply, Reject>) {
        self.driver.awaiting = false;
        let step = self.driver.job.map(|job| job.next());
        match (step, outcome) {
            (Some(Ok(CompactionStep::Move)), Ok(_) | Err(Reject::NotReferenced)) => {
                self.seen.moved += 1;
                self.driver.at += 1;
                self.driver.hold = None;
            }
            // The copy's segment was fenced before the copy was named: retry.
            (Some(Ok(CompactionStep::Move)), Err(_)) => self.driver.hold = None,
            (Some(Ok(_)), Ok(_)) => self.advance(CompactionEvent::Done),
            // The job is abandoned; every step is idempotent.
            (Some(Ok(_)), Err(_)) => {
                if let Some(job) = self.driver.job.take() {
                    self.pins.end_closure(job.segment());
                }
            }
            (step, outcome) => panic!("{step:?} was answered {outcome:?}"),
        }
    }

    /// Compacts until nothing is dead; then no file contains more than the referenced records.
    pub(super) fn finish_compaction(&mut self) -> Result<(), BrokenInvariant> {
        self.driver.dead_percent = 30;
        for _ in 0..20 {
            self.roll(0)?;
            self.roll(1)?;
            self.drain_log()?;
            for _ in 0..400 {
                self.compact()?;
                self.drain_log()?;
                if self.driver.job.is_none()
                    && choose_segments(&self.facts(), ALL_DEAD, &HeldBackSegments::new()).is_empty()
                {
                    break;
                }
            }
        }
        self.check_references(false)?;
        let dead =
            |(id, file): (&u64, &File)| file.bytes() - super::disk::HEADER - self.catalogue.usage(*id).bytes;
        let dead: u64 = self.disk.files.iter().map(dead).sum();
        let empty = self.facts().iter().filter(|segment| segment.references == 0).count();
        if dead > 0 || empty > 0 {
            return Err(format!("{dead} dead bytes and {empty} empty segments are left"));
        }
        Ok(())
    }
}

const ALL_DEAD: CompactionThresholds =
    CompactionThresholds { dead_percent: 0, cold_dead_percent: 0, room_bytes: u64::MAX };

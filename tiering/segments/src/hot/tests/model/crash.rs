//! Kills and power losses in the model, recovery, and the invariants that always hold.

use std::collections::HashMap;

use mlgw_formats::command::{Change, SealSegment};
use mlgw_formats::schema::SegmentState;

use super::disk::{File, HEADER};
use super::world::{BrokenInvariant, World};

impl World {
    /// Simulates `kill -9`, which loses memory, or a power loss, which also loses unsynced data.
    pub(super) fn crash(&mut self) -> Result<(), BrokenInvariant> {
        self.seen.crashes += 1;
        let power = self.os || self.dice.roll(2) == 0;
        let mut length = self.catalogue.log.len();
        if power {
            let unsynced = length - self.catalogue.synced;
            length -= self.dice.roll(unsynced + 1);
            for file in self.disk.files.values_mut() {
                let unsynced = file.records.len() - file.synced;
                file.records.truncate(file.synced + self.dice.roll(unsynced + 1));
            }
            for (segment, file) in std::mem::take(&mut self.disk.removed) {
                if self.dice.roll(2) == 0 {
                    self.disk.files.entry(segment).or_insert(file);
                }
            }
        }
        self.forget_clients();
        (self.holds, self.pins) = Default::default();
        self.open = [None, None];
        self.in_transit.clear();
        self.waiting.clear();
        self.answers.clear();
        self.driver = Default::default();
        self.catalogue.recover(length);
        self.recover_segments();
        self.check_references(self.os && power)?;
        // Data that durability `os` may lose is lost; the rest of the schedule would only fail because of it.
        self.ended = self.os && power;
        Ok(())
    }

    /// Seals open segments and sweeps removed ones.
    fn recover_segments(&mut self) {
        for record in self.catalogue.segments() {
            if record.state() == SegmentState::Open {
                let length = self.disk.files.get(&record.id).map_or(HEADER, File::bytes);
                let seal = SealSegment { segment: record.id, length, ..SealSegment::default() };
                self.commit(Change::SealSegment(seal)).expect("an open segment is sealed");
            }
        }
        self.catalogue.synced = self.catalogue.log.len();
        let next = self.catalogue.next_segment();
        let known = |id: &u64| *id >= next || self.catalogue.segment(*id).is_some();
        let swept: Vec<u64> = self.disk.files.keys().copied().filter(|id| !known(id)).collect();
        swept.into_iter().for_each(|segment| self.disk.remove(segment));
    }

    /// Checks that every referenced chunk is at its location, except for chunks that were never on stable
    /// media when those may be lost, and that the usage counters match the references.
    pub(super) fn check_references(&self, may_miss_unsynced: bool) -> Result<(), BrokenInvariant> {
        let mut counted = HashMap::<u64, (u64, u64)>::new();
        for named in self.catalogue.references() {
            let file = self.disk.files.get(&named.extent.segment);
            let is_there = file.is_some_and(|file| file.holds(named.extent.offset, named.chunk));
            if !is_there && (!may_miss_unsynced || self.durable.contains(&named.chunk)) {
                return Err(format!("{:?} is not in segment {}", named.chunk, named.extent.segment));
            }
            let count = counted.entry(named.extent.segment).or_default();
            *count = (count.0 + named.extent.record_bytes(), count.1 + 1);
        }
        for record in self.catalogue.segments() {
            let usage = self.catalogue.usage(record.id);
            let truth = counted.remove(&record.id).unwrap_or_default();
            if (usage.bytes, usage.extents) != truth {
                return Err(format!("segment {} is referred to {truth:?}, counted {usage:?}", record.id));
            }
        }
        if !counted.is_empty() {
            return Err(format!("segments without a record are referred to: {counted:?}"));
        }
        let (fences, segments) = (self.catalogue.fences(), self.catalogue.segments().len());
        if fences > segments + 1 {
            return Err(format!("{fences} ranges of fences around {segments} segments"));
        }
        Ok(())
    }
}

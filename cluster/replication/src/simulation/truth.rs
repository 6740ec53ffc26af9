//! What really happened in the simulation: the records of each segment, the acknowledged ones, and the damage
//! that faults did and nobody has found yet.

use super::disk::Cell;
use mlgw_common::{NodeId, SegmentId};
use std::collections::BTreeMap;
use std::ops::Range;

/// A record that a primary appended.
#[derive(Clone, Copy, Debug)]
pub(super) struct TrueRecord {
    pub(super) begin: usize,
    pub(super) end: usize,
    pub(super) acknowledged_at: Option<u64>,
    /// A fault of a disk destroyed a replica's copy.
    pub(super) had_fault: bool,
}

#[derive(Debug)]
pub(super) struct TrueSegment {
    created_at: u64,
    /// The bytes that its primary appended.
    pub(super) cells: Vec<Cell>,
    pub(super) records: Vec<TrueRecord>,
    /// Copies of each record after the last step, once sealed. `None` after a fault of a disk.
    pub(super) copies: Option<Vec<usize>>,
}

/// Damage of a replica that its node has not found.
#[derive(Debug, Default)]
struct HiddenDamage {
    is_lost: bool,
    /// Damaged cells, and the time of the damage.
    cells: BTreeMap<usize, u64>,
}

#[derive(Debug, Default)]
pub(super) struct Truth {
    pub(super) segments: BTreeMap<SegmentId, TrueSegment>,
    hidden: BTreeMap<(NodeId, SegmentId), HiddenDamage>,
    records: u32,
    pub(super) acknowledged: u64,
    /// Time of the last acknowledgement of each primary.
    pub(super) last_acknowledged: BTreeMap<NodeId, u64>,
}

impl Truth {
    pub(super) fn create(&mut self, segment: SegmentId, created_at: u64) {
        let cells = vec![Cell::Header];
        self.segments.insert(segment, TrueSegment { created_at, cells, records: Vec::new(), copies: None });
    }

    pub(super) fn created_at(&self, segment: SegmentId) -> u64 {
        self.segments.get(&segment).map_or(0, |segment| segment.created_at)
    }

    /// Adds a record, and returns its number.
    pub(super) fn append(&mut self, segment: SegmentId, begin: usize, size: usize) -> u32 {
        self.records += 1;
        let record = self.records;
        let truth = self.segments.get_mut(&segment).expect("a segment is created before it is written");
        assert_eq!(truth.cells.len(), begin, "a segment has one primary");
        truth.cells.extend((0..size).map(|index| Cell::Data { record, begin, size, index }));
        let end = begin + size;
        truth.records.push(TrueRecord { begin, end, acknowledged_at: None, had_fault: false });
        record
    }

    /// End of the acknowledged records of a segment at a time.
    pub(super) fn acknowledged_before(&self, segment: SegmentId, time: u64) -> usize {
        let records = self.segments.get(&segment).into_iter().flat_map(|segment| &segment.records);
        let old = records.filter(|record| record.acknowledged_at.is_some_and(|at| at <= time));
        old.map(|record| record.end).max().unwrap_or(0)
    }

    /// A fault destroyed cells of a replica.
    pub(super) fn damaged(&mut self, node: NodeId, segment: SegmentId, range: Range<usize>, now: u64) {
        let cells = range.clone().map(|at| (at, now));
        self.hidden.entry((node, segment)).or_default().cells.extend(cells);
        if let Some(truth) = self.segments.get_mut(&segment) {
            truth.copies = None;
            for record in truth.records.iter_mut().filter(|record| range.start < record.end) {
                record.had_fault |= record.begin < range.end;
            }
        }
    }

    /// A fault took all replicas of a node.
    pub(super) fn lost_node(&mut self, node: NodeId) {
        for (id, segment) in &mut self.segments {
            segment.copies = None;
            segment.records.iter_mut().for_each(|record| record.had_fault = true);
            self.hidden.entry((node, *id)).or_default().is_lost = true;
        }
    }

    /// A replica was verified.
    pub(super) fn verified(&mut self, node: NodeId, segment: SegmentId) {
        self.hidden.remove(&(node, segment));
    }

    pub(super) fn is_hidden(&self, node: NodeId, segment: SegmentId, at: usize) -> bool {
        let hidden = self.hidden.get(&(node, segment));
        hidden.is_some_and(|hidden| hidden.is_lost || hidden.cells.contains_key(&at))
    }

    /// True if a fault damaged a cell after a time.
    pub(super) fn is_damaged_after(&self, node: NodeId, segment: SegmentId, at: usize, time: u64) -> bool {
        let hidden = self.hidden.get(&(node, segment));
        hidden.is_some_and(|hidden| hidden.is_lost || hidden.cells.get(&at).is_some_and(|when| *when > time))
    }
}

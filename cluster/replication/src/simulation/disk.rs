//! Disks of the simulation. A file consists of cells of 1 MiB; a power cut loses, keeps or tears what was not
//! synced, also where it overwrites synced cells.

use crate::epoch::SegmentEpoch;
use crate::stretch::Stretch;
use fastrand::Rng;
use std::ops::Range;

/// Bytes of a cell.
pub(super) const CELL: u64 = 1 << 20;

/// Number of cells in a length.
pub(super) fn cells(bytes: u64) -> usize {
    assert_eq!(bytes % CELL, 0, "lengths are whole cells");
    usize::try_from(bytes / CELL).expect("lengths are small")
}

/// Length of a number of cells.
pub(super) fn bytes(cells: usize) -> u64 {
    cells as u64 * CELL
}

/// Cells of a stretch.
pub(super) fn cells_of(stretch: Stretch) -> Range<usize> {
    cells(stretch.from)..cells(stretch.to)
}

/// Content of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cell {
    Garbage,
    /// The header of the file.
    Header,
    /// A part of a record, which verifies only where it was appended.
    Data {
        record: u32,
        begin: usize,
        size: usize,
        index: usize,
    },
}

/// A file, and the epoch of its Close, in memory or on the device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FileImage {
    pub(super) cells: Option<Vec<Cell>>,
    pub(super) closed: Option<SegmentEpoch>,
}

impl FileImage {
    pub(super) fn length(&self) -> Option<u64> {
        self.cells.as_ref().map(|cells| bytes(cells.len()))
    }

    /// The header and the records that verify.
    pub(super) fn valid(&self) -> Vec<Stretch> {
        let cells = self.cells.as_deref().unwrap_or_default();
        let (mut at, mut found) = (0, Vec::new());
        while at < cells.len() {
            let length = valid_length(cells, at);
            if length > 0 {
                found.push(Stretch::from(bytes(at)..bytes(at + length)));
            }
            at += length.max(1);
        }
        found
    }
}

/// Cells of the record or header at a place, if it verifies; else 0.
fn valid_length(cells: &[Cell], at: usize) -> usize {
    match cells[at] {
        Cell::Header if at == 0 => 1,
        Cell::Data { record, begin, size, index: 0 } if begin == at && at + size <= cells.len() => {
            let is_part = |index| cells[at + index] == Cell::Data { record, begin, size, index };
            if (0..size).all(is_part) { size } else { 0 }
        }
        _ => 0,
    }
}

/// A file on a disk.
#[derive(Clone, Debug, Default)]
pub(super) struct SimFile {
    /// The file as processes see it.
    pub(super) current: FileImage,
    /// The file as a power cut leaves it.
    pub(super) durable: FileImage,
    /// Cells that are being written, or are not synced.
    dirty: Vec<Range<usize>>,
}

impl SimFile {
    /// Creates the file with a header, durably. An existing file stays.
    pub(super) fn create(&mut self) {
        if self.current.cells.is_none() {
            self.current.cells = Some(vec![Cell::Header]);
        }
        self.sync();
    }

    /// Marks cells as being written.
    pub(super) fn begin_write(&mut self, range: Range<usize>) {
        self.dirty.push(range);
    }

    pub(super) fn write(&mut self, at: usize, written: &[Cell]) {
        let cells = self.current.cells.get_or_insert_default();
        if cells.len() < at + written.len() {
            cells.resize(at + written.len(), Cell::Garbage);
        }
        cells[at..at + written.len()].copy_from_slice(written);
        self.dirty.push(at..at + written.len());
    }

    pub(super) fn sync(&mut self) {
        self.durable.cells.clone_from(&self.current.cells);
        self.dirty.clear();
    }

    pub(super) fn truncate(&mut self, length: usize) {
        for image in [&mut self.current, &mut self.durable] {
            if let Some(cells) = &mut image.cells {
                cells.truncate(length);
            }
        }
    }

    /// Destroys cells on the device.
    pub(super) fn damage(&mut self, range: Range<usize>) {
        for image in [&mut self.current, &mut self.durable] {
            let cells = image.cells.iter_mut().flatten().enumerate();
            cells.filter(|(at, _)| range.contains(at)).for_each(|(_, cell)| *cell = Cell::Garbage);
        }
    }

    /// Loses what is not synced, keeps it, or keeps and tears some of it.
    pub(super) fn power_cut(&mut self, rng: &mut Rng) {
        match rng.u8(0..3) {
            0 => {}
            1 => self.durable.cells.clone_from(&self.current.cells),
            _ => self.tear(rng),
        }
        self.dirty.clear();
        self.current = self.durable.clone();
    }

    fn tear(&mut self, rng: &mut Rng) {
        let Some(current) = &self.current.cells else { return };
        let Some(durable) = &mut self.durable.cells else { return };
        let length = rng.usize(durable.len().min(current.len())..=durable.len().max(current.len()));
        if current.len() > durable.len() {
            durable.resize(length, Cell::Garbage);
        }
        for at in self.dirty.iter().cloned().flatten().filter(|at| *at < length) {
            durable[at] = match rng.u8(0..3) {
                0 => durable[at],
                1 => current.get(at).copied().unwrap_or(Cell::Garbage),
                _ => Cell::Garbage,
            };
        }
    }
}

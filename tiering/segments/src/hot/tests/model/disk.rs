//! Segment files of the model: appended records, their synced prefix, and the files that a power loss can
//! restore.

use std::collections::BTreeMap;

/// Owner of a chunk's bytes: body, part (0 for none), upload of the part, offset.
pub(super) type Chunk = (u64, u32, u64, u64);

#[derive(Clone, Debug)]
pub(super) struct Record {
    pub(super) chunk: Chunk,
    pub(super) offset: u64,
    pub(super) bytes: u64,
}

/// A segment's file. A batch is one record.
#[derive(Clone, Debug, Default)]
pub(super) struct File {
    pub(super) records: Vec<Record>,
    /// Number of records that survive power loss.
    pub(super) synced: usize,
}

pub(super) const HEADER: u64 = 64;
pub(super) const HEAD: u64 = 80;

impl File {
    pub(super) fn bytes(&self) -> u64 {
        self.records.last().map_or(HEADER, |last| last.offset + HEAD + last.bytes)
    }

    pub(super) fn holds(&self, offset: u64, chunk: Chunk) -> bool {
        self.records.iter().any(|record| record.offset == offset && record.chunk == chunk)
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Disk {
    pub(super) files: BTreeMap<u64, File>,
    /// Files whose removal is not synced: a power loss may restore them.
    pub(super) removed: Vec<(u64, File)>,
}

impl Disk {
    /// Appends a chunk of `bytes` and returns its offset.
    pub(super) fn append(&mut self, segment: u64, chunk: Chunk, bytes: u64, synced: bool) -> Option<u64> {
        let file = self.files.get_mut(&segment)?;
        let offset = file.bytes();
        file.records.push(Record { chunk, offset, bytes });
        if synced {
            file.synced = file.records.len();
        }
        Some(offset)
    }

    pub(super) fn sync(&mut self) {
        self.files.values_mut().for_each(|file| file.synced = file.records.len());
    }

    pub(super) fn remove(&mut self, segment: u64) {
        if let Some(file) = self.files.remove(&segment) {
            self.removed.push((segment, file));
        }
    }
}

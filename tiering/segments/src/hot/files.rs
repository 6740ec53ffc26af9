//! Cache of segment files opened for reading: bounded, the least recently used file is closed first.
//!
//! A hit takes a read lock for the duration of a lookup and never across an await. Recency is counted in
//! openings, not in reads, so that a hit writes only to its own entry.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed};

use mlgw_common::ids::{SegmentId, SegmentSeed};
use parking_lot::RwLock;

use super::dirs::SegmentDirs;
use super::map::SegmentMap;

/// A segment opened for reading.
pub(super) struct OpenSegmentFile {
    pub(super) file: File,
    pub(super) seed: SegmentSeed,
    last_used: AtomicU64,
    /// Reads since the last call of [`SegmentFileCache::take_reads`].
    reads: AtomicU64,
    /// True if the file system refuses `RWF_NOWAIT`.
    nowait_refused: AtomicBool,
}

impl OpenSegmentFile {
    /// True unless the file system is known to refuse reads that do not wait for the disk.
    pub(super) fn can_read_nowait(&self) -> bool {
        !self.nowait_refused.load(Relaxed)
    }

    /// Records that the file system refuses such reads.
    pub(super) fn disable_nowait(&self) {
        self.nowait_refused.store(true, Relaxed);
    }

    /// Counts a read.
    pub(super) fn count_read(&self) {
        self.reads.fetch_add(1, Relaxed);
    }
}

pub(super) struct SegmentFileCache {
    dirs: SegmentDirs,
    map: Arc<dyn SegmentMap>,
    open: RwLock<HashMap<SegmentId, Arc<OpenSegmentFile>>>,
    openings: AtomicU64,
    /// Changes with every invalidation.
    invalidations: AtomicU64,
    files_max: usize,
}

impl SegmentFileCache {
    pub(super) fn new(dirs: SegmentDirs, map: Arc<dyn SegmentMap>, files_max: usize) -> Self {
        let (openings, invalidations) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { dirs, map, open: RwLock::default(), openings, invalidations, files_max }
    }

    /// Returns the segment if it is open.
    pub(super) fn get(&self, id: SegmentId) -> Option<Arc<OpenSegmentFile>> {
        let open = self.open.read();
        let opened = open.get(&id)?;
        let now = self.openings.load(Relaxed);
        if opened.last_used.load(Relaxed) != now {
            opened.last_used.store(now, Relaxed);
        }
        Some(opened.clone())
    }

    /// Returns the segment, opening it if needed; `None` if it does not exist. Blocks the calling thread.
    pub(super) fn open(&self, id: SegmentId) -> io::Result<Option<Arc<OpenSegmentFile>>> {
        if let Some(opened) = self.get(id) {
            return Ok(Some(opened));
        }
        let invalidations = self.invalidations.load(Acquire);
        let Some(place) = self.map.location(id) else { return Ok(None) };
        let file = match self.dirs.open_verified(id, &place) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let used = AtomicU64::new(self.openings.fetch_add(1, Relaxed) + 1);
        let (reads, nowait_refused) = (AtomicU64::new(0), AtomicBool::new(false));
        let opened =
            Arc::new(OpenSegmentFile { file, seed: place.seed, last_used: used, reads, nowait_refused });
        let mut open = self.open.write();
        if open.len() >= self.files_max {
            let oldest =
                open.iter().min_by_key(|(_, opened)| opened.last_used.load(Relaxed)).map(|(&id, _)| id);
            oldest.map(|id| open.remove(&id));
        }
        // If the segment was removed, moved or healed since the lookup it must not be cached: the
        // invalidation may already have happened.
        let is_current = self.invalidations.load(Acquire) == invalidations;
        if is_current && self.map.location(id) == Some(place) {
            open.insert(id, opened.clone());
        }
        Ok(Some(opened))
    }

    /// Closes the file of a segment that the catalogue has removed or moved, or whose file was replaced,
    /// since an open file keeps its disk space allocated. Reads in progress keep the file open until they
    /// end.
    pub(super) fn invalidate(&self, id: SegmentId) {
        let mut open = self.open.write();
        self.invalidations.fetch_add(1, AcqRel);
        open.remove(&id);
    }

    /// Closes all files: they may be on a disk that is gone.
    pub(super) fn invalidate_all(&self) {
        let mut open = self.open.write();
        self.invalidations.fetch_add(1, AcqRel);
        open.clear();
    }

    /// Returns and resets the number of reads of each open segment. Counts of files closed since the last
    /// call are lost.
    pub(super) fn take_reads(&self) -> Vec<(SegmentId, u64)> {
        self.open.read().iter().map(|(&id, opened)| (id, opened.reads.swap(0, Relaxed))).collect()
    }

    pub(super) fn len(&self) -> usize {
        self.open.read().len()
    }

    /// Runs `work` while no further file can be opened or closed.
    #[cfg(test)]
    pub(super) fn while_closed(&self, work: impl FnOnce()) {
        let _open = self.open.read();
        work();
    }
}

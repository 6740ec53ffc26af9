//! The file of a copy that is being made, and the local file that it may replace.
//!
//! The copy has a name of its own until it is finished. In a hot directory its blocks are written with direct
//! I/O: a sync of dirty pages of the page cache would delay the syncs of clients. The checksum of each write
//! is kept. The copy is verified as it is on the disk: it is synced, dropped from the page cache and scanned,
//! at a rate of its own.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use mlgw_common::checksum::crc32c;
use mlgw_common::ids::SegmentId;
use mlgw_common::limits::MIB;
use mlgw_common::time::Instant;
use mlgw_formats::schema::SegmentRecord;
use mlgw_formats::segment_header::SEGMENT_HEADER_BYTES;
use rustix::fs::{Advice, fadvise};

use super::home::{OwnFile, ReplicaHome, own_file};
use crate::fair::Lane;
use crate::flash::FlashWriteCause;
use crate::hot::HotTierInner;
use crate::hot::compaction::{MoveStepError, blocking};
use crate::hot::file::copies::OpenCopy;
use crate::hot::placing::stoppable_wait::wait;
use crate::hot::scan::SegmentScan;

/// Bytes per write.
pub(super) const WINDOW_BYTES: u64 = MIB;
/// Bytes between syncs, so that the kernel never has many dirty bytes to write at once.
const PIECE_BYTES: u64 = 32 * MIB;
/// Bytes of a local file that are read alone where a larger read fails.
const SECTOR_BYTES: usize = 4096;

const _: () = assert!(WINDOW_BYTES <= PIECE_BYTES);

/// The local file of the segment, whether a record lists it or not.
pub(super) struct ExaminedFile {
    pub(super) home: ReplicaHome,
    file: Arc<File>,
    bytes: u64,
    /// Ranges up to the sealed length that belong to no intact record.
    damaged: Vec<Range<u64>>,
    /// True if the disk failed to read some of it, which it may read later.
    pub(super) is_unreadable: bool,
}

impl ExaminedFile {
    /// Reads the local file of the segment of `record` from the disk, after it was made durable: a record may
    /// list it next.
    pub(super) async fn examine(
        inner: &Arc<HotTierInner>,
        record: &SegmentRecord,
    ) -> Result<Option<Self>, MoveStepError> {
        let (of, record) = (inner.clone(), record.clone());
        blocking(move || {
            let Some(OwnFile { home, file }) = own_file(&of, &record) else { return Ok(None) };
            let (segment, bytes) = (record.segment_id(), file.metadata()?.len());
            home.disk(&of).sync_named(&file, segment)?;
            home.disk(&of).drop_cache(&file, segment, 0..bytes)?;
            let (damaged, is_unreadable) = match damaged_ranges(&of, &file, home, &record) {
                Err(_) if of.compaction.is_stopped() => return Err(MoveStepError::Stopping),
                Err(error) => {
                    tracing::warn!(%segment, %error, "the local file of a segment cannot be read whole");
                    (std::iter::once(0..record.length).collect(), true)
                }
                Ok(damaged) => (damaged, false),
            };
            Ok(Some(Self { home, file: Arc::new(file), bytes, damaged, is_unreadable }))
        })
        .await
    }

    pub(super) fn damaged_bytes(&self) -> u64 {
        bytes_in(&self.damaged)
    }
}

/// Returns the ranges of a file up to the sealed length that belong to no intact record. None of its bytes
/// stay in the page cache.
fn damaged_ranges(
    inner: &Arc<HotTierInner>,
    file: &File,
    home: ReplicaHome,
    record: &SegmentRecord,
) -> io::Result<Vec<Range<u64>>> {
    let (stops, replication) = (inner.clone(), inner.replicas.replication());
    let due_at = move |bytes| replication.as_ref().map_or_else(Instant::now, |of| of.verify_due_at(bytes));
    let before = move |_: &File, _: u64, bytes: u64| wait(&stops, due_at(bytes));
    let scan = SegmentScan::new(file.try_clone()?, record.segment_id(), record.seed(), 0)?;
    let scan = scan.with_disk_queue(home.queue(inner).clone()).with_throttle(Box::new(before));
    let damaged = scan.damaged_ranges(record.length)?;
    fadvise(file, 0, None, Advice::DontNeed)?;
    Ok(damaged)
}

fn bytes_in(ranges: &[Range<u64>]) -> u64 {
    ranges.iter().map(|range| range.end - range.start).sum()
}

/// Bytes that were written at once.
#[derive(Clone)]
struct WrittenWindow {
    range: Range<u64>,
    sum: u32,
}

impl WrittenWindow {
    fn new(at: u64, bytes: &[u8]) -> Self {
        Self { range: at..at + bytes.len() as u64, sum: crc32c(bytes) }
    }

    fn overlaps(&self, range: &Range<u64>) -> bool {
        self.range.start < range.end && range.start < self.range.end
    }
}

/// The file of a copy; discarded on drop unless it is finished.
pub(super) struct CopyFile {
    pub(super) inner: Arc<HotTierInner>,
    record: SegmentRecord,
    home: ReplicaHome,
    open: Arc<OpenCopy>,
    own: Option<ExaminedFile>,
    length: u64,
    /// Ranges up to the sealed length that are not verified.
    pub(super) damaged: Vec<Range<u64>>,
    written: Vec<WrittenWindow>,
    unsynced_bytes: u64,
    is_finished: bool,
}

impl CopyFile {
    /// Creates the file in `home`, beside the local one if there is one.
    pub(super) fn begin(
        inner: &Arc<HotTierInner>,
        record: &SegmentRecord,
        home: ReplicaHome,
        own: Option<ExaminedFile>,
    ) -> io::Result<Self> {
        assert!(record.length > 0, "a segment without bytes needs no copy");
        // Bytes after the sealed length are kept: a start may have sealed the segment before them.
        let length = own.as_ref().map_or(0, |own| own.bytes).max(record.length);
        let copy = Self {
            inner: inner.clone(),
            record: record.clone(),
            home,
            open: Arc::new(home.disk(inner).begin_open_copy(record.segment_id())?),
            own,
            length,
            damaged: std::iter::once(0..record.length).collect(),
            written: Vec::new(),
            unsynced_bytes: 0,
            is_finished: false,
        };
        home.disk(inner).set_copy_length(&copy.open.file, record.segment_id(), length)?;
        Ok(copy)
    }

    pub(super) fn has_own(&self) -> bool {
        self.own.is_some()
    }

    /// True if there is a local file, and some of it could not be read.
    pub(super) fn is_own_unreadable(&self) -> bool {
        self.own.as_ref().is_some_and(|own| own.is_unreadable)
    }

    pub(super) fn own_damaged_bytes(&self) -> Option<u64> {
        self.own.as_ref().map(ExaminedFile::damaged_bytes)
    }

    pub(super) fn damaged_bytes(&self) -> u64 {
        bytes_in(&self.damaged)
    }

    /// Copies all of the local file, except bytes that cannot be read.
    pub(super) async fn copy_own(&mut self) -> Result<(), MoveStepError> {
        let bytes = self.own.as_ref().map_or(0, |own| own.bytes);
        self.copy_own_ranges(std::iter::once(0..bytes).collect()).await
    }

    /// Copies what is not verified from the local file again.
    pub(super) async fn restore_own(&mut self) -> Result<(), MoveStepError> {
        let bytes = self.own.as_ref().map_or(0, |own| own.bytes);
        let readable = |range: &Range<u64>| range.start.min(bytes)..range.end.min(bytes);
        self.copy_own_ranges(self.damaged.iter().map(readable).collect()).await
    }

    async fn copy_own_ranges(&mut self, ranges: Vec<Range<u64>>) -> Result<(), MoveStepError> {
        let Some(own) = &self.own else { return Ok(()) };
        let (inner, from, to) = (self.inner.clone(), own.file.clone(), self.open.clone());
        let (home, segment) = (self.home, self.record.segment_id());
        let written = blocking(move || {
            let (mut written, mut unsynced_bytes) = (Vec::new(), 0);
            for window in ranges.into_iter().flat_map(windows) {
                wait(&inner, Instant::now())?;
                let mut bytes = vec![0; (window.end - window.start) as usize];
                {
                    let _slot = home.queue(&inner).acquire_blocking(Lane::Background, bytes.len() as u64);
                    read_readable(&from, &mut bytes, window.start);
                }
                write_window(&inner, home, &to, segment, window.start, &bytes)?;
                written.push(WrittenWindow::new(window.start, &bytes));
                unsynced_bytes += bytes.len() as u64;
                if unsynced_bytes >= PIECE_BYTES {
                    home.disk(&inner).sync_always(&to.file, segment)?;
                    unsynced_bytes = 0;
                }
            }
            fadvise(&*from, 0, None, Advice::DontNeed).map_err(io::Error::from)?;
            Ok(written)
        });
        for window in written.await? {
            self.add_written(window);
        }
        Ok(())
    }

    /// Writes bytes at `at`.
    pub(super) async fn write(&mut self, at: u64, bytes: Vec<u8>) -> Result<(), MoveStepError> {
        self.add_written(WrittenWindow::new(at, &bytes));
        self.unsynced_bytes += bytes.len() as u64;
        let is_sync_due = self.unsynced_bytes >= PIECE_BYTES;
        if is_sync_due {
            self.unsynced_bytes = 0;
        }
        let (inner, copy) = (self.inner.clone(), self.open.clone());
        let (home, segment) = (self.home, self.record.segment_id());
        blocking(move || {
            write_window(&inner, home, &copy, segment, at, &bytes)?;
            if is_sync_due {
                home.disk(&inner).sync_always(&copy.file, segment)?;
            }
            Ok(())
        })
        .await
    }

    fn add_written(&mut self, window: WrittenWindow) {
        self.written.retain(|earlier| !earlier.overlaps(&window.range));
        self.written.push(window);
    }

    /// Syncs the copy, reads it back from the disk, and finds the ranges that are not intact.
    pub(super) async fn verify(&mut self) -> Result<(), MoveStepError> {
        let (inner, copy, record) = (self.inner.clone(), self.open.clone(), self.record.clone());
        let (home, length) = (self.home, self.length);
        self.unsynced_bytes = 0;
        self.damaged = blocking(move || {
            let (segment, file) = (record.segment_id(), &copy.file);
            {
                let _slot = home.queue(&inner).acquire_blocking(Lane::Background, 0);
                home.disk(&inner).sync_always(file, segment)?;
            }
            home.disk(&inner).drop_cache(file, segment, 0..length)?;
            Ok(damaged_ranges(&inner, file, home, &record)?)
        })
        .await?;
        Ok(())
    }

    /// Compares what is not intact on the disk with what was written there: damage of the copy alone is a
    /// fault of this disk, and not of the sources.
    pub(super) async fn check_written(&self) -> Result<(), MoveStepError> {
        let is_damaged = |window: &&WrittenWindow| self.damaged.iter().any(|range| window.overlaps(range));
        let windows: Vec<WrittenWindow> = self.written.iter().filter(is_damaged).cloned().collect();
        let (copy, segment) = (self.open.clone(), self.record.segment_id());
        blocking(move || {
            for WrittenWindow { range, sum } in windows {
                let mut bytes = vec![0; (range.end - range.start) as usize];
                copy.file.read_exact_at(&mut bytes, range.start)?;
                if crc32c(&bytes) != sum {
                    let what = format!("the copy of segment {segment} differs at {}", range.start);
                    return Err(io::Error::new(io::ErrorKind::InvalidData, what).into());
                }
            }
            Ok(())
        })
        .await
    }

    /// Gives the copy its final name, durably, in place of the local file if there is one.
    pub(super) async fn finish(mut self) -> Result<(), MoveStepError> {
        let own_bytes = self.own.as_ref().map(|own| own.bytes);
        let (inner, copy) = (self.inner.clone(), self.open.clone());
        let (home, segment) = (self.home, self.record.segment_id());
        blocking(move || {
            let disk = home.disk(&inner);
            let named = match own_bytes {
                Some(_) => disk.replace_by_copy(&copy.file, segment),
                None => disk.finish_copy(&copy.file, segment),
            };
            // After an error as well: the file under the name may be another already.
            inner.reader.invalidate(segment);
            named?;
            if let Some(bytes) = own_bytes {
                home.space(&inner).record_freed(bytes.saturating_sub(SEGMENT_HEADER_BYTES));
            }
            Ok(())
        })
        .await?;
        self.is_finished = true;
        Ok(())
    }
}

impl Drop for CopyFile {
    fn drop(&mut self) {
        if !self.is_finished {
            self.home.disk(&self.inner).discard_copy(self.record.segment_id());
        }
    }
}

fn windows(range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let end = range.end;
    range.step_by(WINDOW_BYTES as usize).map(move |at| at..end.min(at + WINDOW_BYTES))
}

fn write_window(
    inner: &HotTierInner,
    home: ReplicaHome,
    copy: &OpenCopy,
    segment: SegmentId,
    at: u64,
    bytes: &[u8],
) -> io::Result<()> {
    let size = bytes.len() as u64;
    let _slot = home.queue(inner).acquire_blocking(Lane::Background, size);
    home.disk(inner).write_copy(copy, segment, bytes, at)?;
    if home == ReplicaHome::Hot {
        inner.shared.flash.record_write(FlashWriteCause::Client, size);
    }
    Ok(())
}

/// Reads bytes at `at`, or sector by sector if that fails. A sector that cannot be read counts as zeros: the
/// scan of the copy finds what is missing.
fn read_readable(file: &File, bytes: &mut [u8], at: u64) {
    if file.read_exact_at(bytes, at).is_ok() {
        return;
    }
    for (index, sector) in bytes.chunks_mut(SECTOR_BYTES).enumerate() {
        if file.read_exact_at(sector, at + (index * SECTOR_BYTES) as u64).is_err() {
            sector.fill(0);
        }
    }
}

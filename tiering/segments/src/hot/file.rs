//! Segment files on the disk: the only place that creates, writes and syncs them.
//!
//! A new file exists only after the file and its directory were synced. A file whose write or sync failed is
//! never written or synced again: after a failed sync the kernel may have dropped the pages that did not
//! reach the disk and would report the next sync as a success. With [`Durability::Os`] nothing is synced and
//! a power loss may lose acknowledged data; only moved chunks are synced, and everything is before a segment
//! is destroyed.
//!
//! An [`Intercept`] sees every call before it is executed and may make it fail, write less, or skip it: tests
//! and crash controls inject faults this way.

pub(super) mod copies;

use mlgw_common::time::Instant;
use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice};
use std::iter::once_with;
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mlgw_common::ids::SegmentId;
use mlgw_common::limits::WRITE_RECORDS_MAX;
use mlgw_common::{Identity, Lineage, regular};
use mlgw_formats::schema::SegmentClass;
use mlgw_metadata::Durability;
use rustix::fs::{FallocateFlags, SeekFrom};

use super::direct::{BLOCK, DirectFile};
use super::directory::{DirectoryFault, DirectoryState, ExaminedDirectory, FileNumber, write_probe};
use super::file_names::{ASIDE_EXTENSION, segment_file_name};
use super::header::header_of;
use super::map::SegmentLocation;
use super::mark_file::{DirectoryMark, mark_of, mark_on_disk};
use super::metrics::{HotCounters, add};
use mlgw_formats::segment_header::{SEGMENT_HEADER_BYTES, SegmentHeader};

/// A call that changes segment files or makes them durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileCall {
    /// Creates a file and writes its header.
    Create,
    /// Writes a batch of records.
    Write,
    /// Syncs a batch of records.
    Sync,
    /// Syncs a new file.
    SyncNew,
    /// Syncs the segment directory.
    SyncDirectory,
    /// Syncs a file that a start found open, before it is scanned.
    SyncRecovery,
    /// Removes the file of a released segment.
    Remove,
    /// Punches a hole into a segment.
    Punch,
    /// Drops synced bytes of a copy from the page cache, before they are read back.
    DropCache,
    /// Reads the mark, or a file that was just written, to find out if the disk reads.
    ExaminationRead,
}

/// The action that an [`Intercept`] selects for a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InterceptAction {
    /// Execute the call.
    Go,
    /// Skip the call and report success.
    Skip,
    /// Write at most this many bytes in this call.
    Short(usize),
    /// Skip the call and fail with this errno.
    Fail(i32),
}

/// Controls calls on segment files.
pub trait Intercept: Send + Sync + 'static {
    /// Called before every call; `segment` is `None` for calls on the directory.
    fn before(&self, call: FileCall, segment: Option<SegmentId>) -> InterceptAction;
}

/// A directory of segment files.
pub(super) struct SegmentDisk {
    dir: PathBuf,
    /// True if segments of a single body, and copies, are written with direct I/O.
    direct_writes: bool,
    durability: Durability,
    /// Identity whose files may be removed here; the default identity may remove every file.
    lineage: Arc<Lineage>,
    intercept: Option<Arc<dyn Intercept>>,
    metrics: Arc<HotCounters>,
    /// If the directory is used.
    state: Arc<DirectoryState>,
}

impl SegmentDisk {
    pub(super) fn open(
        dir: PathBuf,
        durability: Durability,
        lineage: Arc<Lineage>,
        intercept: Option<Arc<dyn Intercept>>,
        metrics: Arc<HotCounters>,
    ) -> io::Result<Self> {
        std::fs::create_dir_all(&dir)?;
        let state = Arc::default();
        let disk = Self { dir, direct_writes: false, durability, lineage, intercept, metrics, state };
        disk.sync_directory()?;
        disk.state.accept(FileNumber::of_path(&disk.dir)?);
        if let Some(parent) = disk.dir.parent() {
            disk.sync_dir(parent)?;
        }
        Ok(disk)
    }

    /// Writes segments of a single body, and copies, with direct I/O from now on.
    pub(super) fn with_direct_writes(self) -> Self {
        Self { direct_writes: true, ..self }
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// If the directory is used.
    pub(super) fn state(&self) -> &Arc<DirectoryState> {
        &self.state
    }

    /// Refuses the directory, which has none of the segments that belong there.
    pub(super) fn refuse_unproven(&self) -> io::Result<()> {
        let fault = match mark_of(&self.dir)? {
            Some(_) => DirectoryFault::Emptied,
            None => DirectoryFault::Unmarked,
        };
        self.state.refuse_unproven(fault);
        Ok(())
    }

    /// Identity of the server that owns the directory.
    pub(super) fn owner(&self) -> Identity {
        self.lineage.own
    }

    /// True if there is a file under the name of a segment.
    pub(super) fn has_file(&self, id: SegmentId) -> bool {
        self.path(id).exists()
    }

    /// True if the headers of files here are compared with the server's identity.
    pub(super) fn has_identity(&self) -> bool {
        self.lineage.own != Identity::default()
    }

    fn path(&self, id: SegmentId) -> PathBuf {
        self.dir.join(segment_file_name(id))
    }

    /// Creates the file of a new segment; it is durable when the call returns.
    pub(super) fn create(&self, header: &SegmentHeader) -> io::Result<File> {
        self.state.check_directory(&self.dir)?;
        self.record_error_of(self.create_file(header))
    }

    fn create_file(&self, header: &SegmentHeader) -> io::Result<File> {
        let id = header.id;
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(self.path(id))?;
        if self.intercept_call(FileCall::Create, Some(id))?.is_some() {
            file.write_all_at(&header.encode(), 0)?;
        }
        if self.intercept_sync(FileCall::SyncNew, Some(id))? {
            let begun = Instant::now();
            rustix::fs::fsync(&file)?;
            self.metrics.sync_segment_new.record(begun.elapsed());
        }
        self.sync_directory()?;
        add(&self.metrics.segments_created, 1);
        Ok(file)
    }

    /// Opens the file of a segment that was just created for direct I/O, if its class is written that way.
    pub(super) fn direct(&self, header: &SegmentHeader) -> Option<DirectFile> {
        let wanted = self.direct_writes && header.class == SegmentClass::Own;
        wanted.then(|| DirectFile::open(&self.path(header.id), &header.encode())).flatten()
    }

    /// Writes `pieces` at `at`: with direct I/O if the file is in `direct`, and otherwise through the page
    /// cache. What is in `direct` is removed if the file system does not support direct I/O.
    pub(super) fn append<'a>(
        &self,
        direct: &mut Option<DirectFile>,
        file: &File,
        id: SegmentId,
        at: u64,
        pieces: impl Iterator<Item = &'a [u8]> + Clone,
    ) -> io::Result<()> {
        let Some(open) = direct else { return self.append_cached(file, id, at, pieces) };
        assert_eq!(open.end(), at, "direct writes continue at the synced length");
        let write = |direct: &File, blocks: &[u8], at| self.write_blocks(direct, file, id, blocks, at);
        match open.append(pieces.clone(), write) {
            // Devices with larger blocks, and file systems that report only at the first write that direct
            // I/O is not supported.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                tracing::info!(segment = %id,
                    "the file system does not support direct writes; writing through the page cache");
                *direct = None;
                self.append_cached(file, id, at, pieces)
            }
            written => written,
        }
    }

    fn append_cached<'a>(
        &self,
        file: &File,
        id: SegmentId,
        mut at: u64,
        mut pieces: impl Iterator<Item = &'a [u8]>,
    ) -> io::Result<()> {
        loop {
            let mut slices: Vec<IoSlice<'_>> =
                pieces.by_ref().take(2 * WRITE_RECORDS_MAX).map(IoSlice::new).collect();
            if slices.is_empty() {
                return Ok(());
            }
            let bytes: usize = slices.iter().map(|slice| slice.len()).sum();
            self.write(file, id, &mut slices, at)?;
            at += bytes as u64;
        }
    }

    /// Writes `blocks` at `offset` through `direct`; after a short write that ended within a block, the rest
    /// through `file`.
    fn write_blocks(
        &self,
        direct: &File,
        file: &File,
        id: SegmentId,
        blocks: &[u8],
        offset: u64,
    ) -> io::Result<()> {
        self.check_file(file, id)?;
        self.record_error_of(self.try_write_blocks(direct, file, id, blocks, offset))
    }

    fn try_write_blocks(
        &self,
        direct: &File,
        file: &File,
        id: SegmentId,
        mut blocks: &[u8],
        mut offset: u64,
    ) -> io::Result<()> {
        while blocks.len().is_multiple_of(BLOCK) && !blocks.is_empty() {
            let Some(limit) = self.intercept_call(FileCall::Write, Some(id))? else { return Ok(()) };
            let written = match limit {
                usize::MAX => rustix::io::pwrite(direct, blocks, offset),
                limit => rustix::io::pwrite(file, &blocks[..blocks.len().min(limit)], offset),
            };
            let written = written_or_retry(written)?;
            offset += written as u64;
            blocks = &blocks[written..];
        }
        if blocks.is_empty() { Ok(()) } else { self.write(file, id, &mut [IoSlice::new(blocks)], offset) }
    }

    /// Cuts off the padding of the last block of a segment that takes no more records. Not synced: bytes
    /// after a segment's length are ignored.
    pub(super) fn trim_padding(file: &File, id: SegmentId, length: u64) {
        if let Err(error) = file.set_len(length) {
            tracing::debug!(segment = %id, %error, "failed to trim the padding after the end of a segment");
        }
    }

    /// Writes all of `slices` at `offset`. After an error the content of the written range is undefined.
    pub(super) fn write(
        &self,
        file: &File,
        id: SegmentId,
        slices: &mut [IoSlice<'_>],
        offset: u64,
    ) -> io::Result<()> {
        self.check_file(file, id)?;
        self.record_error_of(self.try_write(file, id, slices, offset))
    }

    fn try_write(
        &self,
        file: &File,
        id: SegmentId,
        mut slices: &mut [IoSlice<'_>],
        mut offset: u64,
    ) -> io::Result<()> {
        while !slices.is_empty() {
            let Some(limit) = self.intercept_call(FileCall::Write, Some(id))? else { return Ok(()) };
            let written = match limit {
                usize::MAX => rustix::io::pwritev(file, slices, offset),
                limit => rustix::io::pwrite(file, &slices[0][..slices[0].len().min(limit)], offset),
            };
            let written = written_or_retry(written)?;
            offset += written as u64;
            IoSlice::advance_slices(&mut slices, written);
        }
        Ok(())
    }

    /// Makes everything written to `file` durable; does nothing with durability `os`. After an error the file
    /// must not be used any more.
    pub(super) fn sync(&self, file: &File, id: SegmentId) -> io::Result<()> {
        if self.is_synced() { self.sync_always(file, id) } else { Ok(()) }
    }

    /// Like [`SegmentDisk::sync`], whatever the durability.
    pub(super) fn sync_always(&self, file: &File, id: SegmentId) -> io::Result<()> {
        self.check_file(file, id)?;
        if self.record_error_of(self.intercept_call(FileCall::Sync, Some(id)))?.is_some() {
            let begun = Instant::now();
            let synced = self.metrics.sync_watch.watch(|| rustix::fs::fdatasync(file));
            self.record_error_of(synced.map_err(io::Error::from))?;
            self.metrics.sync_segment.record(begun.elapsed());
        }
        Ok(())
    }

    /// Checks that an open file of a segment, or of a copy of it, is in the directory.
    fn check_file(&self, file: &File, id: SegmentId) -> io::Result<()> {
        self.state.check()?;
        let names = once_with(|| self.path(id)).chain(once_with(|| self.copying_path(id)));
        self.state.check_file(file, names)
    }

    /// Returns the result of a call, after recording its error.
    fn record_error_of<T>(&self, result: io::Result<T>) -> io::Result<T> {
        result.inspect_err(|error| self.state.record_error(error))
    }

    /// Creates an empty file under the name of a segment, or finds one, and makes it durable, whatever the
    /// durability. It marks a replica that was closed before it had a file, and prevents that one is created.
    /// Of kind `AlreadyExists` is the error if there is a file with bytes.
    pub(super) fn ensure_closed_marker(&self, id: SegmentId) -> io::Result<()> {
        self.state.check_directory(&self.dir)?;
        let path = self.path(id);
        let created = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
        let file = match created {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let file = regular::open_with(OpenOptions::new().write(true), &path)?;
                if file.metadata()?.len() > 0 {
                    return Err(error);
                }
                file
            }
            created => created?,
        };
        self.intercept_call(FileCall::Create, Some(id))?;
        self.sync_named(&file, id)
    }

    /// Opens the file of a segment that was left open so that it is read from the device: pages that a
    /// stopped process left unsynced in the page cache are synced, then dropped from the cache.
    pub(super) fn open_uncached(&self, id: SegmentId) -> io::Result<File> {
        self.state.check_directory(&self.dir)?;
        let file = regular::open_with(OpenOptions::new().read(true).write(true), &self.path(id))?;
        if self.intercept_sync(FileCall::SyncRecovery, Some(id))? {
            let begun = Instant::now();
            rustix::fs::fsync(&file)?;
            self.metrics.sync_recovery.record(begun.elapsed());
        }
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
        Ok(file)
    }

    /// Renames a file to a name that no segment has, durably, and returns that name.
    pub(super) fn set_aside(&self, name: &str) -> io::Result<String> {
        self.state.check_directory(&self.dir)?;
        let free = set_aside(&self.dir, name)?;
        self.sync_directory()?;
        Ok(free)
    }

    /// Sets the file under a segment's name aside, durably, if its header does not match the record at
    /// `place`. Returns true if it did.
    pub(super) fn set_foreign_aside(&self, id: SegmentId, place: &SegmentLocation) -> io::Result<bool> {
        if !self.has_identity() {
            return Ok(false);
        }
        let header = match header_of(&self.path(id)) {
            Ok((_, header)) => header.ok(),
            // There is no file, or not a regular file.
            Err(_) if regular::check(&self.path(id)).is_err() => None,
            Err(error) => return Err(error),
        };
        let Some(other) = header.filter(|of| !of.is_header_of(id, place.seed, place.created)) else {
            return Ok(false);
        };
        let aside = self.set_aside(&segment_file_name(id))?;
        let SegmentHeader { id: found, created, cluster, incarnation, .. } = other;
        tracing::error!(
            segment = %id, %aside, %found, %created, %cluster, %incarnation,
            "set aside a file: it is not the segment that the catalogue has under its name"
        );
        Ok(true)
    }

    /// Removes the file of a segment that the catalogue has removed and returns its length; `None` if there
    /// is no file. Not synced: a file that reappears after a power loss is removed at the next start. A file
    /// whose header names another segment, server or timeline is set aside instead.
    pub(super) fn remove(&self, id: SegmentId) -> io::Result<Option<u64>> {
        self.state.check_directory(&self.dir)?;
        let path = self.path(id);
        let bytes = match std::fs::metadata(&path) {
            Ok(found) if found.is_dir() => {
                tracing::warn!(path = %path.display(), "found a directory at the path of a segment; ignored");
                return Ok(None);
            }
            Ok(found) => found.len(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        if !self.is_removable(id, &path)? {
            let aside = self.set_aside(&segment_file_name(id))?;
            tracing::error!(segment = %id, %aside,
                "set aside a file instead of removing it: it does not belong to this server");
            return Ok(Some(bytes));
        }
        if self.intercept_call(FileCall::Remove, Some(id))?.is_some() {
            std::fs::remove_file(path)?;
        }
        Ok(Some(bytes))
    }

    /// True if the file under a segment's name may be removed: its header names this server, or is of format
    /// 1, which names no server, or was never written.
    fn is_removable(&self, id: SegmentId, path: &Path) -> io::Result<bool> {
        if !self.has_identity() {
            return Ok(true);
        }
        Ok(match header_of(path)? {
            (_, Ok(of)) => {
                of.id == id && (of.seed.stamp.0 == 0 || self.lineage.has_written(of.cluster, of.incarnation))
            }
            (length, Err(_)) => length < SEGMENT_HEADER_BYTES,
        })
    }

    /// Opens the file of a segment to punch holes into it; `None` if there is no file.
    pub(super) fn open_to_punch(&self, id: SegmentId) -> io::Result<Option<File>> {
        self.state.check_directory(&self.dir)?;
        match regular::open_with(OpenOptions::new().write(true), &self.path(id)) {
            Ok(file) => Ok(Some(file)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Frees the disk blocks under `range` of a segment's file, which then reads as zeros. Returns the bytes
    /// freed, fewer than the length of the range if part of it was a hole already, as after a crash. Not
    /// synced.
    pub(super) fn punch(&self, file: &File, id: SegmentId, range: &Range<u64>) -> io::Result<u64> {
        if self.intercept_call(FileCall::Punch, Some(id))?.is_none() {
            return Ok(0);
        }
        let bytes = data_in(file, range)?;
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(file, flags, range.start, range.end - range.start)?;
        Ok(bytes)
    }

    /// Waits until everything appended so far survives power loss. With [`Durability::Full`] all acknowledged
    /// appends do; with `Os` none may, so the whole file system is synced.
    pub(super) fn sync_all(&self) -> io::Result<()> {
        match self.durability {
            Durability::Full => Ok(()),
            Durability::Os => Ok(rustix::fs::syncfs(File::open(&self.dir)?)?),
        }
    }

    /// True if acknowledged appends are on stable media.
    pub(super) fn is_synced(&self) -> bool {
        self.durability == Durability::Full
    }

    /// Makes a file that is about to be named by a record durable, whatever the durability: the file itself
    /// and its name.
    pub(super) fn sync_named(&self, file: &File, id: SegmentId) -> io::Result<()> {
        self.sync_copy(file, id)?;
        self.sync_dir_always()
    }

    fn sync_copy(&self, file: &File, id: SegmentId) -> io::Result<()> {
        self.state.check_directory(&self.dir)?;
        self.check_file(file, id)?;
        if self.record_error_of(self.intercept_call(FileCall::SyncNew, Some(id)))?.is_some() {
            let begun = Instant::now();
            self.record_error_of(rustix::fs::fsync(file).map_err(io::Error::from))?;
            self.metrics.sync_segment_new.record(begun.elapsed());
        }
        Ok(())
    }

    fn sync_dir_always(&self) -> io::Result<()> {
        self.state.check()?;
        self.record_error_of(self.try_sync_directory())
    }

    /// Syncs the directory, whether it is used or not.
    fn try_sync_directory(&self) -> io::Result<()> {
        if self.intercepted(FileCall::SyncDirectory, None)?.is_some() {
            rustix::fs::fsync(File::open(&self.dir)?)?;
        }
        Ok(())
    }

    pub(super) fn sync_directory(&self) -> io::Result<()> {
        self.sync_dir(&self.dir)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        if self.intercept_sync(FileCall::SyncDirectory, None)? {
            let begun = Instant::now();
            rustix::fs::fsync(File::open(dir)?)?;
            self.metrics.sync_directory.record(begun.elapsed());
        }
        Ok(())
    }

    /// Checks that the directory is used, and consults the intercept.
    fn intercept_call(&self, call: FileCall, id: Option<SegmentId>) -> io::Result<Option<usize>> {
        self.state.check()?;
        self.intercepted(call, id)
    }

    /// Consults the intercept: `None` to skip the call, otherwise the number of bytes that it may write.
    fn intercepted(&self, call: FileCall, id: Option<SegmentId>) -> io::Result<Option<usize>> {
        match self.intercept.as_ref().map_or(InterceptAction::Go, |intercept| intercept.before(call, id)) {
            InterceptAction::Go => Ok(Some(usize::MAX)),
            InterceptAction::Skip => Ok(None),
            InterceptAction::Short(bytes) => Ok(Some(bytes)),
            InterceptAction::Fail(errno) => Err(io::Error::from_raw_os_error(errno)),
        }
    }

    fn intercept_sync(&self, call: FileCall, id: Option<SegmentId>) -> io::Result<bool> {
        Ok(self.durability == Durability::Full && self.intercept_call(call, id)?.is_some())
    }
}

/// Calls the disk also while the directory is not used.
impl ExaminedDirectory for SegmentDisk {
    fn dir(&self) -> &Path {
        &self.dir
    }

    fn mark(&self) -> io::Result<Option<DirectoryMark>> {
        self.intercepted(FileCall::ExaminationRead, None)?;
        mark_on_disk(&self.dir)
    }

    fn probe(&self) -> io::Result<()> {
        let probed = write_probe(&self.dir);
        self.intercepted(FileCall::ExaminationRead, None)?;
        // Also of a full disk: otherwise its failure is not noticed.
        self.try_sync_directory()?;
        probed
    }
}

/// Renames a file in `dir` to a name that no segment has and returns that name. Not synced.
pub(super) fn set_aside(dir: &Path, name: &str) -> io::Result<String> {
    let names = (1u64..).map(|number| format!("{name}.{ASIDE_EXTENSION}{number}"));
    let free = names.into_iter().find(|aside| !dir.join(aside).exists()).unwrap_or_default();
    std::fs::rename(dir.join(name), dir.join(&free))?;
    Ok(free)
}

/// Bytes of `range` that are not holes.
fn data_in(file: &File, range: &Range<u64>) -> io::Result<u64> {
    let (mut at, mut bytes) = (range.start, 0);
    while at < range.end {
        let data = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            // There is no data up to the end of the file.
            Err(rustix::io::Errno::NXIO) => break,
            data => data?.min(range.end),
        };
        at = rustix::fs::seek(file, SeekFrom::Hole(data))?.min(range.end);
        bytes += at - data;
    }
    Ok(bytes)
}

/// Returns the bytes that a call wrote: 0 if it was interrupted, so that the caller repeats it, and an error
/// if nothing can be written.
fn written_or_retry(written: rustix::io::Result<usize>) -> io::Result<usize> {
    match written {
        Ok(0) => Err(io::ErrorKind::WriteZero.into()),
        Err(rustix::io::Errno::INTR) => Ok(0),
        other => Ok(other?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn disk_of(dir: &Path, own: Identity) -> SegmentDisk {
        let lineage = Arc::new(Lineage { own, ..Lineage::default() });
        SegmentDisk::open(dir.to_owned(), Durability::Full, lineage, None, Arc::default()).unwrap()
    }

    #[test]
    fn files_of_a_directory_in_place_of_another_one_are_left_alone() {
        let room = tempfile::tempdir().unwrap();
        let (dir, id) = (room.path().join("segments"), SegmentId(7));
        let disk = disk_of(&dir, Identity::default());
        disk.state().begin_examination();
        let file = disk.begin_copy(id).unwrap();
        std::fs::rename(&dir, room.path().join("aside")).unwrap();
        std::fs::create_dir(&dir).unwrap();
        std::fs::write(disk.path(id), "other").unwrap();
        std::fs::write(disk.copying_path(id), "other").unwrap();
        assert!(disk.finish_copy(&file, id).is_err() && disk.replace_by_copy(&file, id).is_err());
        assert!(disk.open_to_punch(id).is_err() && disk.remove(id).is_err());
        disk.discard_copy(id);
        assert!(disk.path(id).exists() && disk.copying_path(id).exists());
    }
}

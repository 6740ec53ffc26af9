//! Use of a segment directory while the node runs: it is used, or refused because it failed or because
//! another directory is there.
//!
//! An examination reads the mark from the disk, so that a disk is found that writes and does not read. One
//! that does not return in time is left to itself, and the directory is refused until it returns: a disk that
//! does not respond holds one thread. What an examination found before a replacement of the directory is
//! ignored.
//!
//! A refused directory is not written: no segment is created, appended, copied or removed there. A node with
//! peers examines its directories every few seconds and accepts one again when it is right: after its disk
//! was mounted again, or after `mlgw disk replace` marked an empty one. A file that was opened before is then
//! written only if it is still the one under its name: otherwise it is on a disk that is gone. Nothing is
//! stored here: the next start checks the directories by their marks.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use mlgw_common::{Identity, regular};
use parking_lot::{Mutex, MutexGuard};
use rustix::fs::{Advice, fadvise};
use rustix::io::Errno;

use super::chunk::AppendError;
use super::mark_file::{DirectoryMark, has_segments};

/// Name of the file that is written to find out if a directory can be written.
pub(super) const PROBE_FILE_NAME: &str = "probe";

/// Longest wait of a replacement for another one of the same directory.
const REPLACEMENT_WAIT_MAX: Duration = Duration::from_secs(10);

/// Reason for which a directory is not used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DirectoryFault {
    /// The system reports errors.
    #[error("the disk fails: {0}")]
    Failed(String),
    /// It has no mark: another directory is there, as without the mount of its disk.
    #[error("it has no mark of this server: its disk is not mounted, or it is a new one")]
    Unmarked,
    /// It has the mark of another server or timeline.
    #[error("it has the mark of {0}")]
    Foreign(Identity),
    /// Another directory with the mark of this server is there, without any segment.
    #[error("another directory without segments is in its place")]
    Emptied,
    /// The system does not answer.
    #[error("its disk does not respond")]
    Hung,
    /// It is being replaced now.
    #[error("it is being replaced")]
    Replacing,
}

/// A directory as an examination of it calls the disk.
pub(super) trait ExaminedDirectory {
    /// Its path.
    fn dir(&self) -> &Path;

    /// Reads the mark from the disk; `None` if there is none.
    fn mark(&self) -> io::Result<Option<DirectoryMark>>;

    /// Writes to the directory and reads that back, to find out if it works.
    fn probe(&self) -> io::Result<()>;
}

/// Device and number of a directory or file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileNumber {
    device: u64,
    inode: u64,
}

impl FileNumber {
    pub(super) fn of_path(path: &Path) -> io::Result<Self> {
        let found = std::fs::metadata(path)?;
        Ok(Self { device: found.dev(), inode: found.ino() })
    }

    fn of_file(file: &File) -> io::Result<Self> {
        let found = file.metadata()?;
        Ok(Self { device: found.dev(), inode: found.ino() })
    }
}

/// Use of a directory.
#[derive(Debug, Default)]
pub(super) struct DirectoryState {
    is_refused: AtomicBool,
    /// True once the directory was refused: files that are open may be on a disk that is gone.
    was_refused: AtomicBool,
    /// True if the directory is examined while the node runs.
    is_examined: AtomicBool,
    /// True if a call failed since the last examination.
    has_failed: AtomicBool,
    /// Locked while the directory is replaced.
    replacement: Mutex<()>,
    inner: Mutex<KnownDirectory>,
}

#[derive(Debug, Default)]
struct KnownDirectory {
    fault: Option<DirectoryFault>,
    /// The directory that was used last.
    number: Option<FileNumber>,
    /// True if no directory with the expected segments was there yet.
    is_unproven: bool,
    /// Number of the current or next examination.
    examination: u64,
    is_in_examination: bool,
}

/// The effect of an examination on the use of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum DirectoryChange {
    /// It is used again.
    Accepted,
    /// It is not used any more, or for another reason.
    Refused(DirectoryFault),
}

impl DirectoryState {
    /// Checks that the directory is used.
    pub(super) fn check(&self) -> io::Result<()> {
        if !self.is_refused.load(Relaxed) {
            return Ok(());
        }
        match self.fault() {
            Some(fault) => Err(io::Error::other(format!("the segment directory is not used: {fault}"))),
            None => Ok(()),
        }
    }

    /// Checks that the directory is used and still the same one, before a file in it is created or removed.
    pub(super) fn check_directory(&self, dir: &Path) -> io::Result<()> {
        self.check()?;
        if !self.is_examined.load(Relaxed) {
            return Ok(());
        }
        let known = self.inner.lock().number;
        match FileNumber::of_path(dir) {
            Ok(number) if Some(number) == known => Ok(()),
            _ => Err(io::Error::other("another segment directory is in its place")),
        }
    }

    /// Locks the directory against another replacement; `None` if one does not end in time. Blocks the
    /// calling thread.
    pub(super) fn lock_replacement(&self) -> Option<MutexGuard<'_, ()>> {
        self.replacement.try_lock_for(REPLACEMENT_WAIT_MAX)
    }

    /// Begins an examination and returns its number; `None` if one is in progress, or the directory is being
    /// replaced.
    pub(super) fn start_examination(&self) -> Option<u64> {
        let mut inner = self.inner.lock();
        if inner.is_in_examination || inner.fault == Some(DirectoryFault::Replacing) {
            return None;
        }
        inner.is_in_examination = true;
        Some(inner.examination)
    }

    /// Ends an examination, and uses or refuses the directory as it found it.
    pub(super) fn end_examination(
        &self,
        number: u64,
        found: Result<FileNumber, DirectoryFault>,
    ) -> Option<DirectoryChange> {
        let mut inner = self.inner.lock();
        if inner.examination != number {
            return None;
        }
        inner.examination += 1;
        inner.is_in_examination = false;
        match found {
            Ok(found) => self.accept_locked(&mut inner, found).then_some(DirectoryChange::Accepted),
            Err(fault) => self.refuse_locked(&mut inner, fault),
        }
    }

    /// Refuses the directory, whose examination has not returned in time.
    pub(super) fn refuse_hung(&self, number: u64) -> Option<DirectoryChange> {
        let mut inner = self.inner.lock();
        match inner.examination == number {
            true => self.refuse_locked(&mut inner, DirectoryFault::Hung),
            false => None,
        }
    }

    /// Refuses the directory while it is replaced, and ignores the result of an examination in progress.
    /// Returns the fault of the directory before, for [`Self::abandon_replacement`].
    pub(super) fn begin_replacement(&self) -> Option<DirectoryFault> {
        let mut inner = self.inner.lock();
        let before = inner.fault.clone();
        self.refuse_locked(&mut inner, DirectoryFault::Replacing);
        inner.examination += 1;
        inner.is_in_examination = false;
        before
    }

    /// Ends a replacement that has failed. The directory that was used last stays the only one that may be
    /// written.
    pub(super) fn abandon_replacement(&self, before: Option<DirectoryFault>) {
        let mut inner = self.inner.lock();
        self.is_refused.store(before.is_some(), Relaxed);
        inner.fault = before;
    }

    /// From now on the directory is examined again and again.
    pub(super) fn begin_examination(&self) {
        self.is_examined.store(true, Relaxed);
    }

    /// True while the directory is not used.
    pub(super) fn is_refused(&self) -> bool {
        self.is_refused.load(Relaxed)
    }

    /// Checks that an open file is the one under one of its possible names, if that may have changed.
    pub(super) fn check_file(&self, file: &File, mut names: impl Iterator<Item = PathBuf>) -> io::Result<()> {
        if !self.was_refused.load(Relaxed) {
            return Ok(());
        }
        let number = FileNumber::of_file(file)?;
        match names.any(|name| FileNumber::of_path(&name).is_ok_and(|of| of == number)) {
            true => Ok(()),
            false => Err(io::Error::other("the file is not in its directory any more")),
        }
    }

    /// Records an error of a call, if a failed disk may be its cause.
    pub(super) fn record_error(&self, error: &io::Error) {
        let errno = error.raw_os_error();
        let is_device_error = [Errno::IO, Errno::NXIO, Errno::NODEV, Errno::ROFS, Errno::STALE]
            .iter()
            .any(|device_error| errno == Some(device_error.raw_os_error()));
        if is_device_error {
            self.has_failed.store(true, Relaxed);
        }
    }

    pub(super) fn fault(&self) -> Option<DirectoryFault> {
        self.inner.lock().fault.clone()
    }

    /// Stops using the directory. Returns true if it was used, or refused for another reason.
    #[cfg(test)]
    pub(super) fn refuse(&self, fault: DirectoryFault) -> bool {
        self.refuse_locked(&mut self.inner.lock(), fault).is_some()
    }

    fn refuse_locked(&self, inner: &mut KnownDirectory, fault: DirectoryFault) -> Option<DirectoryChange> {
        self.was_refused.store(true, Relaxed);
        self.is_refused.store(true, Relaxed);
        let is_new = inner.fault.as_ref() != Some(&fault);
        inner.fault = Some(fault.clone());
        is_new.then_some(DirectoryChange::Refused(fault))
    }

    /// Refuses the directory at the start: it has none of the segments that belong there.
    pub(super) fn refuse_unproven(&self, fault: DirectoryFault) {
        let mut inner = self.inner.lock();
        inner.is_unproven = true;
        self.refuse_locked(&mut inner, fault);
    }

    /// Uses the directory with this number. Returns true if it was refused before.
    pub(super) fn accept(&self, number: FileNumber) -> bool {
        self.accept_locked(&mut self.inner.lock(), number)
    }

    fn accept_locked(&self, inner: &mut KnownDirectory, number: FileNumber) -> bool {
        (inner.number, inner.is_unproven) = (Some(number), false);
        self.is_refused.store(false, Relaxed);
        inner.fault.take().is_some()
    }

    /// Examines the directory of the server `own`, and returns its number. `expects_segments` is called only
    /// if another directory is there than before.
    pub(super) fn examine(
        &self,
        directory: &impl ExaminedDirectory,
        own: &Identity,
        expects_segments: impl FnOnce() -> bool,
    ) -> Result<FileNumber, DirectoryFault> {
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::InvalidData => DirectoryFault::Unmarked,
            _ => DirectoryFault::Failed(error.to_string()),
        };
        // Before the mark: another directory that takes its place meanwhile has another number.
        let dir = directory.dir();
        let number = FileNumber::of_path(dir).map_err(failed)?;
        let mark = directory.mark().map_err(failed)?.ok_or(DirectoryFault::Unmarked)?;
        if mark.owner != *own {
            return Err(DirectoryFault::Foreign(mark.owner));
        }
        let (is_other, is_refused) = {
            let inner = self.inner.lock();
            let is_other = inner.is_unproven || inner.number.is_some_and(|known| known != number);
            (is_other, inner.fault.is_some())
        };
        if is_other && !mark.incomplete && expects_segments() && !has_segments(dir).map_err(failed)? {
            return Err(DirectoryFault::Emptied);
        }
        if self.has_failed.swap(false, Relaxed) || is_refused {
            match directory.probe() {
                // A full disk is not a failed one.
                Err(error) if AppendError::from_io(&error) == AppendError::Full => {}
                probed => probed.map_err(failed)?,
            }
        }
        Ok(number)
    }
}

/// Writes a small file, syncs it, reads it from the disk, and removes it.
pub(super) fn write_probe(dir: &Path) -> io::Result<()> {
    let path = dir.join(PROBE_FILE_NAME);
    let mut options = OpenOptions::new();
    let options = options.read(true).write(true).create(true).truncate(true);
    let mut file = regular::open_with(options, &path)?;
    let probed = write_and_read(&mut file);
    let removed = std::fs::remove_file(&path);
    probed.and(removed)
}

fn write_and_read(file: &mut File) -> io::Result<()> {
    let (text, mut read) = (b"mlgw writes this file to find out if the disk works\n", Vec::new());
    file.write_all(text)?;
    file.sync_all()?;
    // A file system without pages to drop reads from its own memory.
    let _ = fadvise(&*file, 0, None, Advice::DontNeed);
    file.rewind()?;
    file.read_to_end(&mut read)?;
    match read == text {
        true => Ok(()),
        false => Err(io::Error::other("the disk reads other bytes than were written")),
    }
}

#[cfg(test)]
mod tests {
    use super::{
        DirectoryChange, DirectoryFault, DirectoryState, ExaminedDirectory, FileNumber, write_probe,
    };
    use crate::hot::mark_file::{DirectoryMark, MARK_FILE_NAME, mark_on_disk, write_mark};
    use mlgw_common::{ClusterId, Identity};
    use std::fs::File;
    use std::io;
    use std::path::Path;

    fn identity(cluster: u64) -> Identity {
        Identity { cluster: ClusterId(cluster), ..Identity::default() }
    }

    /// A directory that is probed by this function.
    struct Probed<'a, F>(&'a Path, F);

    impl<F: Fn() -> io::Result<()>> ExaminedDirectory for Probed<'_, F> {
        fn dir(&self) -> &Path {
            self.0
        }

        fn mark(&self) -> io::Result<Option<DirectoryMark>> {
            mark_on_disk(self.0)
        }

        fn probe(&self) -> io::Result<()> {
            (self.1)()
        }
    }

    /// Examines a directory that expects segments and can be written.
    fn examine(state: &DirectoryState, dir: &Path) -> Result<(), DirectoryFault> {
        state.examine(&Probed(dir, || write_probe(dir)), &identity(1), || true).map(drop)
    }

    fn accept(state: &DirectoryState, dir: &Path) -> bool {
        state.accept(FileNumber::of_path(dir).unwrap())
    }

    #[test]
    fn a_directory_that_was_exchanged_is_refused_until_the_right_one_is_back() {
        let room = tempfile::tempdir().unwrap();
        let (dir, aside) = (room.path().join("segments"), room.path().join("aside"));
        let state = DirectoryState::default();
        std::fs::create_dir(&dir).unwrap();
        write_mark(&dir, &identity(1)).unwrap();
        accept(&state, &dir);
        assert_eq!(examine(&state, &dir), Ok(()));
        std::fs::rename(&dir, &aside).unwrap();
        assert_eq!(examine(&state, &dir), Err(DirectoryFault::Unmarked));
        std::fs::create_dir(&dir).unwrap();
        assert_eq!(examine(&state, &dir), Err(DirectoryFault::Unmarked));
        write_mark(&dir, &identity(2)).unwrap();
        assert_eq!(examine(&state, &dir), Err(DirectoryFault::Foreign(identity(2))));
        write_mark(&dir, &identity(1)).unwrap();
        assert_eq!(examine(&state, &dir), Err(DirectoryFault::Emptied), "as a marked mount point");
        File::create(dir.join("0000000000000007.seg")).unwrap();
        assert_eq!(examine(&state, &dir), Ok(()), "the disk was mounted again");
        std::fs::remove_dir_all(&dir).unwrap();
        std::fs::rename(&aside, &dir).unwrap();
        assert_eq!(examine(&state, &dir), Ok(()));
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 1, "no probe is left");
    }

    #[test]
    fn a_directory_without_the_expected_segments_at_the_start_is_refused_until_they_are_there() {
        let room = tempfile::tempdir().unwrap();
        let (dir, state) = (room.path(), DirectoryState::default());
        accept(&state, dir);
        state.refuse_unproven(DirectoryFault::Unmarked);
        write_mark(dir, &identity(1)).unwrap();
        assert_eq!(examine(&state, dir), Err(DirectoryFault::Emptied), "it was there before");
        File::create(dir.join("0000000000000007.seg")).unwrap();
        assert_eq!(examine(&state, dir), Ok(()));
        accept(&state, dir);
        std::fs::remove_file(dir.join("0000000000000007.seg")).unwrap();
        assert_eq!(examine(&state, dir), Ok(()), "the same directory, whose segments were removed");
    }

    #[test]
    fn a_disk_is_probed_after_an_error_of_the_device_and_while_it_is_refused() {
        let room = tempfile::tempdir().unwrap();
        let (dir, state) = (room.path(), DirectoryState::default());
        write_mark(dir, &identity(1)).unwrap();
        accept(&state, dir);
        let probed = |errno| {
            let fails = || Err(io::Error::from_raw_os_error(errno));
            state.examine(&Probed(dir, fails), &identity(1), || true).map(drop)
        };
        let (eio, enospc) = (5, 28);
        assert_eq!(probed(eio), Ok(()), "nothing failed: no probe");
        state.record_error(&io::Error::from_raw_os_error(enospc));
        assert_eq!(probed(eio), Ok(()));
        state.record_error(&io::Error::from_raw_os_error(eio));
        let Err(fault) = probed(eio) else { panic!("the probe failed") };
        assert!(matches!(fault, DirectoryFault::Failed(_)), "{fault}");
        assert!(state.refuse(fault.clone()) && !state.refuse(fault));
        assert!(state.check().unwrap_err().to_string().contains("the disk fails"));
        assert!(probed(eio).is_err(), "it is probed until it works");
        assert_eq!(probed(enospc), Ok(()), "a full disk works");
        assert!(accept(&state, dir));
        assert!(state.check().is_ok());
    }

    #[test]
    fn an_examination_that_does_not_return_refuses_the_directory_until_it_does() {
        let room = tempfile::tempdir().unwrap();
        let (state, found) = (DirectoryState::default(), FileNumber::of_path(room.path()).unwrap());
        let number = state.start_examination().unwrap();
        assert_eq!(state.start_examination(), None, "one at a time");
        assert_eq!(state.refuse_hung(number), Some(DirectoryChange::Refused(DirectoryFault::Hung)));
        assert_eq!(state.start_examination(), None, "the thread has not returned");
        assert_eq!(state.end_examination(number, Ok(found)), Some(DirectoryChange::Accepted));
        assert_eq!(state.refuse_hung(number), None, "it has returned");
        let next = state.start_examination().unwrap();
        assert_eq!(state.end_examination(next, Ok(found)), None, "nothing changes");
    }

    #[test]
    fn a_replacement_ignores_an_examination_that_began_before() {
        let room = tempfile::tempdir().unwrap();
        let (state, found) = (DirectoryState::default(), FileNumber::of_path(room.path()).unwrap());
        let number = state.start_examination().unwrap();
        assert_eq!(state.begin_replacement(), None);
        assert_eq!(state.start_examination(), None, "it is being replaced");
        assert_eq!(state.end_examination(number, Ok(found)), None);
        assert_eq!((state.refuse_hung(number), state.fault()), (None, Some(DirectoryFault::Replacing)));
        state.accept(found);
        assert!(state.start_examination().is_some(), "a thread that hangs delays no other one");
    }

    #[test]
    fn a_replacement_that_fails_accepts_no_other_directory() {
        let room = tempfile::tempdir().unwrap();
        let dir = room.path().join("segments");
        std::fs::create_dir(&dir).unwrap();
        let state = DirectoryState::default();
        state.begin_examination();
        accept(&state, &dir);
        let fail = || {
            let before = state.begin_replacement();
            assert!(state.check().is_err());
            state.abandon_replacement(before);
        };
        fail();
        assert!(state.check_directory(&dir).is_ok());
        std::fs::rename(&dir, room.path().join("aside")).unwrap();
        std::fs::create_dir(&dir).unwrap();
        fail();
        assert!(state.check().is_ok() && state.check_directory(&dir).is_err(), "no examination accepted it");
        state.refuse(DirectoryFault::Unmarked);
        fail();
        assert_eq!(state.fault(), Some(DirectoryFault::Unmarked));
        assert!(state.check().is_err());
    }

    #[test]
    fn a_mark_that_the_disk_fails_to_read_is_not_a_missing_one() {
        let room = tempfile::tempdir().unwrap();
        // Its first page is not mapped: a read fails with an error of the device.
        std::os::unix::fs::symlink("/proc/self/mem", room.path().join(MARK_FILE_NAME)).unwrap();
        let Err(fault) = examine(&DirectoryState::default(), room.path()) else { panic!("no mark was read") };
        assert!(matches!(fault, DirectoryFault::Failed(_)), "{fault}");
    }

    #[test]
    fn a_directory_that_was_exchanged_during_its_examination_is_not_written() {
        let room = tempfile::tempdir().unwrap();
        let (dir, aside) = (room.path().join("segments"), room.path().join("aside"));
        std::fs::create_dir(&dir).unwrap();
        write_mark(&dir, &identity(1)).unwrap();
        let state = DirectoryState::default();
        state.begin_examination();
        state.refuse(DirectoryFault::Unmarked);
        let probe = || {
            std::fs::rename(&dir, &aside)?;
            std::fs::create_dir(&dir)
        };
        let examined = state.examine(&Probed(&dir, probe), &identity(1), || true).unwrap();
        assert!(state.accept(examined));
        assert!(state.check_directory(&dir).is_err(), "it may be any directory");
        write_mark(&dir, &identity(1)).unwrap();
        assert_eq!(examine(&state, &dir), Err(DirectoryFault::Emptied));
    }

    #[test]
    fn a_file_of_a_disk_that_is_gone_is_not_written_after_a_replacement() {
        let room = tempfile::tempdir().unwrap();
        let name = room.path().join("a");
        let file = File::create(&name).unwrap();
        let state = DirectoryState::default();
        let check = |file: &File| state.check_file(file, std::iter::once(name.clone()));
        std::fs::remove_file(&name).unwrap();
        assert!(check(&file).is_ok(), "the directory was never refused");
        state.refuse(DirectoryFault::Unmarked);
        accept(&state, room.path());
        assert!(check(&file).is_err());
        assert!(check(&File::create(&name).unwrap()).is_ok());
    }

    #[test]
    fn no_file_is_created_in_another_directory_before_the_next_examination() {
        let room = tempfile::tempdir().unwrap();
        let dir = room.path().join("segments");
        std::fs::create_dir(&dir).unwrap();
        let state = DirectoryState::default();
        accept(&state, &dir);
        let exchange = || {
            std::fs::rename(&dir, room.path().join("aside")).unwrap();
            std::fs::create_dir(&dir).unwrap();
        };
        state.begin_examination();
        assert!(state.check_directory(&dir).is_ok());
        exchange();
        assert!(state.check_directory(&dir).is_err());
        accept(&state, &dir);
        assert!(state.check_directory(&dir).is_ok());
    }
}

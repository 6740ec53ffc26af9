//! The files that the kernel references, each by its inode number in the backing directory's file system.
//!
//! A file is held by a descriptor that only names it (`O_PATH`), not by a path, so that it stays the same
//! file when it is renamed or unlinked; while it is held, its number is not reused. The descriptor is closed
//! when the kernel has forgotten the file as often as it was looked up.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fuser::{FileAttr, FileType, INodeNo};
use rustix::fs::{Mode, OFlags, openat};

/// A file of the backing directory, or that directory, named but not open.
#[derive(Debug)]
pub(super) struct BackingNode(File);

impl BackingNode {
    pub(super) fn root(dir: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self(openat(rustix::fs::CWD, dir, flags, Mode::empty())?.into()))
    }

    /// The file with this name in this directory.
    pub(super) fn child(&self, name: &OsStr) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(Self(openat(&self.0, name, flags, Mode::empty())?.into()))
    }

    /// The directory, for calls that take a directory and a name.
    pub(super) const fn dir(&self) -> &File {
        &self.0
    }

    /// A path to the file, independent of its current name.
    pub(super) fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.0.as_raw_fd()))
    }

    pub(super) fn number(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.ino())
    }

    /// The attributes that `stat` shows, under the number that the kernel uses for the file.
    pub(super) fn attributes(&self, number: INodeNo) -> io::Result<FileAttr> {
        let found = self.0.metadata()?;
        let seconds = Duration::from_secs(found.ctime().try_into().unwrap_or(0));
        Ok(FileAttr {
            ino: number,
            size: found.len(),
            blocks: found.blocks(),
            atime: found.accessed()?,
            mtime: found.modified()?,
            ctime: SystemTime::UNIX_EPOCH + seconds,
            crtime: SystemTime::UNIX_EPOCH,
            kind: FileType::from_std(found.file_type()).unwrap_or(FileType::RegularFile),
            perm: u16::try_from(found.permissions().mode() & 0o7777).expect("permission bits fit"),
            nlink: u32::try_from(found.nlink()).unwrap_or(u32::MAX),
            uid: found.uid(),
            gid: found.gid(),
            rdev: 0,
            blksize: 4096,
            flags: 0,
        })
    }

    pub(super) fn set_mode(&self, mode: u32) -> io::Result<()> {
        fs::set_permissions(self.path(), fs::Permissions::from_mode(mode & 0o7777))
    }
}

/// The files that the kernel references.
#[derive(Debug)]
pub(super) struct KernelNodes {
    root: Arc<BackingNode>,
    referenced: HashMap<u64, (Arc<BackingNode>, u64)>,
}

impl KernelNodes {
    pub(super) fn new(root: BackingNode) -> Self {
        Self { root: Arc::new(root), referenced: HashMap::new() }
    }

    pub(super) fn find(&self, number: INodeNo) -> io::Result<Arc<BackingNode>> {
        if number == INodeNo::ROOT {
            return Ok(self.root.clone());
        }
        let found = self.referenced.get(&number.0).map(|(node, _)| node.clone());
        found.ok_or_else(|| rustix::io::Errno::STALE.into())
    }

    /// Counts a lookup of `node` by the kernel, the first or a later one; returns its attributes.
    pub(super) fn count_lookup(&mut self, node: BackingNode) -> io::Result<FileAttr> {
        let number = node.number()?;
        let attributes = node.attributes(INodeNo(number))?;
        self.referenced.entry(number).or_insert_with(|| (Arc::new(node), 0)).1 += 1;
        Ok(attributes)
    }

    /// Subtracts `times` lookups that the kernel has forgotten; the file is released at zero.
    pub(super) fn forget(&mut self, number: INodeNo, times: u64) {
        if let Some((_, lookups)) = self.referenced.get_mut(&number.0) {
            *lookups = lookups.saturating_sub(times);
            if *lookups == 0 {
                self.referenced.remove(&number.0);
            }
        }
    }
}

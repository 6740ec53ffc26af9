//! Files and directories that programs have open, each under a handle number of its own.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirEntryExt as _, OpenOptionsExt as _};
use std::sync::Arc;

use fuser::{FileHandle, FileType};
use rustix::fs::OFlags;

use super::nodes::BackingNode;

/// The entries of a directory at the time of its opening, so that removals meanwhile skip nothing.
pub(super) type DirectoryListing = Arc<[(OsString, u64, FileType)]>;

/// All open files and directory listings.
#[derive(Debug, Default)]
pub(super) struct OpenHandles {
    last: u64,
    files: HashMap<u64, Arc<File>>,
    listings: HashMap<u64, DirectoryListing>,
}

impl OpenHandles {
    pub(super) fn insert(&mut self, file: File) -> FileHandle {
        self.last += 1;
        self.files.insert(self.last, Arc::new(file));
        FileHandle(self.last)
    }

    pub(super) fn insert_listing(&mut self, listing: DirectoryListing) -> FileHandle {
        self.last += 1;
        self.listings.insert(self.last, listing);
        FileHandle(self.last)
    }

    pub(super) fn file(&self, handle: FileHandle) -> io::Result<Arc<File>> {
        self.files.get(&handle.0).cloned().ok_or_else(|| rustix::io::Errno::BADF.into())
    }

    pub(super) fn listing(&self, handle: FileHandle) -> io::Result<DirectoryListing> {
        self.listings.get(&handle.0).cloned().ok_or_else(|| rustix::io::Errno::BADF.into())
    }

    pub(super) fn close(&mut self, handle: FileHandle) {
        self.files.remove(&handle.0);
        self.listings.remove(&handle.0);
    }
}

/// The access mode, the only flag that matters here. Each write carries its offset, so nothing is appended
/// here, and the buffers are not aligned for direct writes.
pub(super) fn access_mode(flags: i32) -> OFlags {
    OFlags::from_bits_retain(flags.cast_unsigned()) & OFlags::RWMODE
}

/// Opens a file with the access mode that a program requested.
pub(super) fn open(node: &BackingNode, flags: i32) -> io::Result<File> {
    let used = access_mode(flags);
    let (read, write) = (used != OFlags::WRONLY, used != OFlags::RDONLY);
    let no_links = OFlags::CLOEXEC.bits().cast_signed();
    OpenOptions::new().read(read).write(write).custom_flags(no_links).open(node.path())
}

/// The entries of a directory.
pub(super) fn list(node: &BackingNode) -> io::Result<DirectoryListing> {
    let entry = |found: io::Result<fs::DirEntry>| {
        let found = found?;
        let kind = FileType::from_std(found.file_type()?).unwrap_or(FileType::RegularFile);
        Ok((found.file_name(), found.ino(), kind))
    };
    fs::read_dir(node.path())?.map(entry).collect()
}

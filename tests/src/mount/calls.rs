//! The file system calls of the kernel, each mapped to one operation of `disk`.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty,
    ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, Request, TimeOrNow, WriteFlags,
};

use crate::disk::{self, Disk, DiskCall, InodeAttributes};
use crate::recording::{Ino, InodeShape};

/// Time that the kernel may cache entries and attributes. Every change comes through this mount, so they
/// stay valid.
const ATTRIBUTE_TTL: Duration = Duration::from_secs(3600);

/// Space shown by `statfs`, in blocks of 4 KiB: 16 GiB, half of it free unless the disk is full.
const BLOCKS: u64 = 4 << 20;

/// Bytes of a block.
const BLOCK_BYTES: u32 = 4096;

type Listing = Vec<(Arc<str>, Ino, bool)>;

pub(super) struct RecordingFilesystem {
    disk: Arc<Mutex<Disk>>,
    /// Listings of open directories, as they were at `opendir`, so that deletions meanwhile skip no entry.
    listings: Mutex<(u64, HashMap<u64, Listing>)>,
}

impl RecordingFilesystem {
    pub(super) fn new(disk: Arc<Mutex<Disk>>) -> Self {
        Self { disk, listings: Mutex::new((0, HashMap::new())) }
    }

    fn disk(&self) -> MutexGuard<'_, Disk> {
        self.disk.lock().expect("the file system task does not panic")
    }

    /// Sleeps for the configured delay of a slow disk.
    fn apply_delay(&self, call: DiskCall) {
        let delay = self.disk().delay_of(call);
        if !delay.is_zero() {
            mlgw_common::time::block_for(delay);
        }
    }

    fn listings(&self) -> MutexGuard<'_, (u64, HashMap<u64, Listing>)> {
        self.listings.lock().expect("the file system task does not panic")
    }

    fn entry(&self, found: Result<Ino, disk::Errno>, reply: ReplyEntry) {
        match found.and_then(|ino| self.disk().attributes(ino)) {
            Ok(found) => reply.entry(&ATTRIBUTE_TTL, &attr(found), Generation(0)),
            Err(errno) => reply.error(error(errno)),
        }
    }

    fn make(&self, dir: INodeNo, name: &OsStr, shape: InodeShape) -> Result<InodeAttributes, disk::Errno> {
        let mut disk = self.disk();
        let ino = disk.create(dir.0, text(name)?, shape)?;
        disk.attributes(ino)
    }
}

fn error(errno: disk::Errno) -> Errno {
    Errno::from_i32(errno)
}

fn text(name: &OsStr) -> Result<&str, disk::Errno> {
    name.to_str().ok_or(libc::EILSEQ)
}

fn reply_empty(result: Result<(), disk::Errno>, reply: ReplyEmpty) {
    match result {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(error(errno)),
    }
}

fn attr(found: InodeAttributes) -> FileAttr {
    FileAttr {
        ino: INodeNo(found.ino),
        size: found.bytes,
        blocks: found.bytes.div_ceil(512),
        atime: SystemTime::UNIX_EPOCH,
        mtime: SystemTime::UNIX_EPOCH,
        ctime: SystemTime::UNIX_EPOCH,
        crtime: SystemTime::UNIX_EPOCH,
        kind: if found.directory { FileType::Directory } else { FileType::RegularFile },
        perm: u16::try_from(found.mode & 0o7777).expect("permission bits fit"),
        nlink: found.links,
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

impl Filesystem for RecordingFilesystem {
    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let found = text(name).and_then(|name| self.disk().lookup(parent.0, name));
        self.entry(found, reply);
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.disk().attributes(ino.0) {
            Ok(found) => reply.attr(&ATTRIBUTE_TTL, &attr(found)),
            Err(errno) => reply.error(error(errno)),
        }
    }

    fn setattr(
        &self,
        _: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        _: Option<u32>,
        _: Option<u32>,
        size: Option<u64>,
        _: Option<TimeOrNow>,
        _: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let mut disk = self.disk();
        let result = mode
            .map_or(Ok(()), |mode| disk.set_mode(ino.0, mode & 0o7777))
            .and_then(|()| size.map_or(Ok(()), |size| disk.resize(ino.0, size)))
            .and_then(|()| disk.attributes(ino.0));
        match result {
            Ok(found) => reply.attr(&ATTRIBUTE_TTL, &attr(found)),
            Err(errno) => reply.error(error(errno)),
        }
    }

    fn mkdir(&self, _: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, reply: ReplyEntry) {
        match self.make(parent, name, InodeShape { directory: true, mode: mode & !umask & 0o7777 }) {
            Ok(found) => reply.entry(&ATTRIBUTE_TTL, &attr(found), Generation(0)),
            Err(errno) => reply.error(error(errno)),
        }
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        reply_empty(text(name).and_then(|name| self.disk().remove(parent.0, name, false)), reply);
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        reply_empty(text(name).and_then(|name| self.disk().remove(parent.0, name, true)), reply);
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let mut disk = self.disk();
        let result = text(name).and_then(|name| {
            let newname = text(newname)?;
            if flags.contains(RenameFlags::RENAME_EXCHANGE) {
                return Err(libc::EINVAL);
            }
            if flags.contains(RenameFlags::RENAME_NOREPLACE) && disk.lookup(newparent.0, newname).is_ok() {
                return Err(libc::EEXIST);
            }
            disk.rename((parent.0, name), (newparent.0, newname))
        });
        reply_empty(result, reply);
    }

    fn link(&self, _: &Request, ino: INodeNo, newparent: INodeNo, newname: &OsStr, reply: ReplyEntry) {
        let result = text(newname).and_then(|name| self.disk().link(ino.0, newparent.0, name));
        self.entry(result.map(|()| ino.0), reply);
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO);
    }

    fn create(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        _: i32,
        reply: ReplyCreate,
    ) {
        match self.make(parent, name, InodeShape { directory: false, mode: mode & !umask & 0o7777 }) {
            Ok(found) => reply.created(
                &ATTRIBUTE_TTL,
                &attr(found),
                Generation(0),
                FileHandle(0),
                FopenFlags::FOPEN_DIRECT_IO,
            ),
            Err(errno) => reply.error(error(errno)),
        }
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.apply_delay(DiskCall::Read);
        match self.disk().read(ino.0, offset, size as usize) {
            Ok(data) => reply.data(&data),
            Err(errno) => reply.error(error(errno)),
        }
    }

    fn write(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match self.disk().write(ino.0, offset, data) {
            Ok(()) => reply.written(u32::try_from(data.len()).expect("a request fits")),
            Err(errno) => reply.error(error(errno)),
        }
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fsync(&self, _: &Request, ino: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        self.apply_delay(DiskCall::Sync);
        reply_empty(self.disk().sync(ino.0), reply);
    }

    fn fallocate(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let known = libc::FALLOC_FL_KEEP_SIZE | libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_ZERO_RANGE;
        if mode & !known != 0 {
            return reply.error(Errno::EOPNOTSUPP);
        }
        let zero = mode & (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_ZERO_RANGE) != 0;
        let keep_size = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
        reply_empty(self.disk().allocate(ino.0, (offset, length), keep_size, zero), reply);
    }

    fn opendir(&self, _: &Request, ino: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        match self.disk().list(ino.0) {
            Ok(listing) => {
                let mut listings = self.listings();
                listings.0 += 1;
                let handle = listings.0;
                listings.1.insert(handle, listing);
                reply.opened(FileHandle(handle), FopenFlags::empty());
            }
            Err(errno) => reply.error(error(errno)),
        }
    }

    fn readdir(&self, _: &Request, ino: INodeNo, fh: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let listings = self.listings();
        let Some(listing) = listings.1.get(&fh.0) else { return reply.error(Errno::EBADF) };
        let dots = [(Arc::from("."), ino.0, true), (Arc::from(".."), ino.0, true)];
        let start = usize::try_from(offset).expect("an index fits");
        for (index, (name, ino, directory)) in dots.iter().chain(listing).enumerate().skip(start) {
            let kind = if *directory { FileType::Directory } else { FileType::RegularFile };
            if reply.add(INodeNo(*ino), index as u64 + 1, kind, name.as_ref()) {
                break;
            }
        }
        reply.ok();
    }

    fn releasedir(&self, _: &Request, _: INodeNo, fh: FileHandle, _: OpenFlags, reply: ReplyEmpty) {
        self.listings().1.remove(&fh.0);
        reply.ok();
    }

    fn fsyncdir(&self, _: &Request, ino: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        reply_empty(self.disk().sync_names(ino.0), reply);
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        let free = self.disk().free_bytes().map_or(BLOCKS / 2, |bytes| bytes / u64::from(BLOCK_BYTES));
        reply.statfs(BLOCKS, free, free, 1 << 20, 1 << 19, BLOCK_BYTES, 255, BLOCK_BYTES);
    }
}

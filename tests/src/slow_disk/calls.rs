//! The kernel's calls, mapped one to one onto the backing directory, and the time that they take.

use mlgw_common::time::Instant;
use mlgw_common::time::block_for as sleep;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

use fuser::{
    BsdFileFlags, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, LockOwner,
    OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry,
    ReplyOpen, ReplyStatfs, ReplyWrite, Request, TimeOrNow, WriteFlags,
};
use rustix::fs::{AtFlags, CWD, FallocateFlags, Mode, OFlags, RenameFlags as Rename};

use super::handles::{self, OpenHandles};
use super::nodes::{BackingNode, KernelNodes};
use super::pace::{DiskAccess, Spindle};
use super::{Caching, DiskPace};

/// Every change comes through this mount, so the kernel may trust its cached attributes.
const ATTRIBUTE_TTL: Duration = Duration::from_secs(3600);

/// The slow disk as a FUSE file system. Its locks only satisfy the compiler: there is one thread.
pub(super) struct SlowFilesystem {
    nodes: Mutex<KernelNodes>,
    handles: Mutex<OpenHandles>,
    spindle: Mutex<Spindle>,
    /// Origin of the spindle's times.
    started: Instant,
    open_flags: FopenFlags,
}

impl SlowFilesystem {
    pub(super) fn new(backing: &Path, pace: DiskPace, caching: Caching) -> io::Result<Self> {
        let open_flags = match caching {
            Caching::Direct => FopenFlags::FOPEN_DIRECT_IO,
            Caching::PageCache => FopenFlags::empty(),
        };
        Ok(Self {
            nodes: Mutex::new(KernelNodes::new(BackingNode::root(backing)?)),
            handles: Mutex::default(),
            spindle: Mutex::new(Spindle::new(pace)),
            started: Instant::now(),
            open_flags,
        })
    }

    fn nodes(&self) -> MutexGuard<'_, KernelNodes> {
        self.nodes.lock().expect("the file system task does not panic")
    }

    fn handles(&self) -> MutexGuard<'_, OpenHandles> {
        self.handles.lock().expect("the file system task does not panic")
    }

    fn spindle(&self) -> MutexGuard<'_, Spindle> {
        self.spindle.lock().expect("the file system task does not panic")
    }

    fn node(&self, number: INodeNo) -> io::Result<Arc<BackingNode>> {
        self.nodes().find(number)
    }

    fn file(&self, handle: FileHandle) -> io::Result<Arc<File>> {
        self.handles().file(handle)
    }

    /// Sleeps until a request is due that arrived at `arrived` and was just done below.
    fn sleep_until_done(&self, arrived: Instant, access: DiskAccess) {
        let due = self.spindle().completion_time(arrived - self.started, access);
        sleep(due.saturating_sub(self.started.elapsed()));
    }

    /// Records the time of a response; called after the response to a request that took time.
    fn record_answer(&self) {
        self.spindle().record_answer(self.started.elapsed());
    }

    fn child(&self, parent: INodeNo, name: &OsStr) -> io::Result<FileAttr> {
        let child = self.node(parent)?.child(name)?;
        self.nodes().count_lookup(child)
    }

    fn create_file(
        &self,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        flags: i32,
    ) -> io::Result<(FileAttr, FileHandle)> {
        let dir = self.node(parent)?;
        let exclusively = OFlags::from_bits_retain(flags.cast_unsigned()) & OFlags::EXCL;
        let flags = handles::access_mode(flags) | exclusively | OFlags::CREATE | OFlags::CLOEXEC;
        let file = rustix::fs::openat(dir.dir(), name, flags, Mode::from_raw_mode(mode))?;
        let attributes = self.child(parent, name)?;
        Ok((attributes, self.handles().insert(file.into())))
    }

    fn set_attributes(
        &self,
        number: INodeNo,
        mode: Option<u32>,
        size: Option<u64>,
        handle: Option<FileHandle>,
    ) -> io::Result<FileAttr> {
        let node = self.node(number)?;
        if let Some(mode) = mode {
            node.set_mode(mode)?;
        }
        match (size, handle) {
            (Some(size), Some(handle)) => self.file(handle)?.set_len(size)?,
            (Some(size), None) => handles::open(&node, OFlags::WRONLY.bits().cast_signed())?.set_len(size)?,
            (None, _) => {}
        }
        node.attributes(number)
    }

    fn sync(&self, file: io::Result<Arc<File>>, only_data: bool, reply: ReplyEmpty) {
        let arrived = Instant::now();
        match file.and_then(|file| if only_data { file.sync_data() } else { file.sync_all() }) {
            Ok(()) => {
                self.sleep_until_done(arrived, DiskAccess::Sync);
                reply.ok();
                self.record_answer();
            }
            Err(error) => reply.error(error.into()),
        }
    }
}

fn entry(found: io::Result<FileAttr>, reply: ReplyEntry) {
    match found {
        Ok(found) => reply.entry(&ATTRIBUTE_TTL, &found, Generation(0)),
        Err(error) => reply.error(error.into()),
    }
}

fn attributes(found: io::Result<FileAttr>, reply: ReplyAttr) {
    match found {
        Ok(found) => reply.attr(&ATTRIBUTE_TTL, &found),
        Err(error) => reply.error(error.into()),
    }
}

fn done(result: io::Result<()>, reply: ReplyEmpty) {
    match result {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(error.into()),
    }
}

/// Reads `size` bytes, or fewer if the file ends before.
fn read_up_to(file: &File, offset: u64, size: u32) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; size as usize];
    let mut filled = 0;
    while filled < bytes.len() {
        match file.read_at(&mut bytes[filled..], offset + filled as u64)? {
            0 => break,
            read => filled += read,
        }
    }
    bytes.truncate(filled);
    Ok(bytes)
}

impl Filesystem for SlowFilesystem {
    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        entry(self.child(parent, name), reply);
    }

    fn forget(&self, _: &Request, number: INodeNo, times: u64) {
        self.nodes().forget(number, times);
    }

    fn getattr(&self, _: &Request, number: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        attributes(self.node(number).and_then(|node| node.attributes(number)), reply);
    }

    fn setattr(
        &self,
        _: &Request,
        number: INodeNo,
        mode: Option<u32>,
        _: Option<u32>,
        _: Option<u32>,
        size: Option<u64>,
        _: Option<TimeOrNow>,
        _: Option<TimeOrNow>,
        _: Option<SystemTime>,
        handle: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        attributes(self.set_attributes(number, mode, size, handle), reply);
    }

    fn mkdir(&self, _: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, reply: ReplyEntry) {
        let made = self.node(parent).and_then(|dir| {
            rustix::fs::mkdirat(dir.dir(), name, Mode::from_raw_mode(mode & !umask))?;
            self.child(parent, name)
        });
        entry(made, reply);
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let remove = |dir: Arc<BackingNode>| Ok(rustix::fs::unlinkat(dir.dir(), name, AtFlags::empty())?);
        done(self.node(parent).and_then(remove), reply);
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let remove = |dir: Arc<BackingNode>| Ok(rustix::fs::unlinkat(dir.dir(), name, AtFlags::REMOVEDIR)?);
        done(self.node(parent).and_then(remove), reply);
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
        let renamed = self.node(parent).and_then(|from| {
            let to = self.node(newparent)?;
            let flags = Rename::from_bits_retain(flags.bits());
            Ok(rustix::fs::renameat_with(from.dir(), name, to.dir(), newname, flags)?)
        });
        done(renamed, reply);
    }

    fn link(&self, _: &Request, number: INodeNo, newparent: INodeNo, newname: &OsStr, reply: ReplyEntry) {
        let linked = self.node(number).and_then(|node| {
            let dir = self.node(newparent)?;
            rustix::fs::linkat(CWD, node.path(), dir.dir(), newname, AtFlags::SYMLINK_FOLLOW)?;
            self.child(newparent, newname)
        });
        entry(linked, reply);
    }

    fn open(&self, _: &Request, number: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        match self.node(number).and_then(|node| handles::open(&node, flags.0)) {
            Ok(file) => reply.opened(self.handles().insert(file), self.open_flags),
            Err(error) => reply.error(error.into()),
        }
    }

    fn create(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        match self.create_file(parent, name, mode & !umask, flags) {
            Ok((found, handle)) => {
                reply.created(&ATTRIBUTE_TTL, &found, Generation(0), handle, self.open_flags)
            }
            Err(error) => reply.error(error.into()),
        }
    }

    fn read(
        &self,
        _: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let arrived = Instant::now();
        match self.file(handle).and_then(|file| read_up_to(&file, offset, size)) {
            // A read beyond a file's end does not read from the disk.
            Ok(read) if read.is_empty() => reply.data(&read),
            Ok(read) => {
                let bytes = read.len() as u64;
                self.sleep_until_done(arrived, DiskAccess::Transfer { file: number.0, offset, bytes });
                reply.data(&read);
                self.record_answer();
            }
            Err(error) => reply.error(error.into()),
        }
    }

    fn write(
        &self,
        _: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let arrived = Instant::now();
        match self.file(handle).and_then(|file| file.write_all_at(data, offset)) {
            Ok(()) => {
                let bytes = data.len() as u64;
                self.sleep_until_done(arrived, DiskAccess::Transfer { file: number.0, offset, bytes });
                reply.written(u32::try_from(data.len()).expect("a request fits"));
                self.record_answer();
            }
            Err(error) => reply.error(error.into()),
        }
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        self.handles().close(handle);
        reply.ok();
    }

    fn fsync(&self, _: &Request, _: INodeNo, handle: FileHandle, only_data: bool, reply: ReplyEmpty) {
        self.sync(self.file(handle), only_data, reply);
    }

    fn fallocate(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let flags = FallocateFlags::from_bits_retain(mode.cast_unsigned());
        let allocate = |file: Arc<File>| Ok(rustix::fs::fallocate(&file, flags, offset, length)?);
        done(self.file(handle).and_then(allocate), reply);
    }

    fn opendir(&self, _: &Request, number: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        match self.node(number).and_then(|dir| handles::list(&dir)) {
            Ok(listing) => reply.opened(self.handles().insert_listing(listing), FopenFlags::empty()),
            Err(error) => reply.error(error.into()),
        }
    }

    fn readdir(
        &self,
        _: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let listing = match self.handles().listing(handle) {
            Ok(listing) => listing,
            Err(error) => return reply.error(error.into()),
        };
        let dots = [".", ".."].map(|name| (name.into(), number.0, FileType::Directory));
        let start = usize::try_from(offset).expect("an index fits");
        for (index, (name, number, kind)) in dots.iter().chain(listing.iter()).enumerate().skip(start) {
            if reply.add(INodeNo(*number), index as u64 + 1, *kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn releasedir(&self, _: &Request, _: INodeNo, handle: FileHandle, _: OpenFlags, reply: ReplyEmpty) {
        self.handles().close(handle);
        reply.ok();
    }

    fn fsyncdir(&self, _: &Request, number: INodeNo, _: FileHandle, only_data: bool, reply: ReplyEmpty) {
        let dir = self.node(number).and_then(|dir| File::open(dir.path()).map(Arc::new));
        self.sync(dir, only_data, reply);
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        match self.node(INodeNo::ROOT).and_then(|root| Ok(rustix::fs::fstatvfs(root.dir())?)) {
            Ok(of) => {
                let small = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
                let (block, fragment) = (small(of.f_bsize), small(of.f_frsize));
                let names = small(of.f_namemax);
                reply.statfs(
                    of.f_blocks,
                    of.f_bfree,
                    of.f_bavail,
                    of.f_files,
                    of.f_ffree,
                    block,
                    names,
                    fragment,
                );
            }
            Err(error) => reply.error(error.into()),
        }
    }
}

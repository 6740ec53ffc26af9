//! A small file system in memory: the view of programs while their changes are recorded.
//!
//! This is the *live* view (every change is visible immediately, as the page cache shows it); `power_cut`
//! decides later, from the recording, which changes survive a power cut. One call can be made to fail once
//! ([`DiskFault`]): a failed write changes nothing; a failed sync leaves the unsynced data permanently
//! undecided. Until a [`DiskTrouble`] ends, the disk is full, or all calls below a directory fail. A file
//! keeps the space that it has, also what `fallocate` took beyond its end: a full disk takes writes there.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::power_cut::CrashTree;
use crate::recording::{DiskEvent, Ino, InodeShape, ROOT, Recording};

mod image;
mod trouble;

pub(crate) use image::FileImage;
pub(crate) use trouble::DiskTrouble;

/// An errno.
pub(crate) type Errno = i32;

/// The calls that can be made to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DiskCall {
    Read,
    Write,
    Sync,
}

/// An EIO: the first `call` on a path that `matches`, after `skip` others.
pub(crate) struct DiskFault {
    pub(crate) call: DiskCall,
    pub(crate) matches: fn(&str) -> bool,
    pub(crate) skip: usize,
}

#[derive(Debug)]
enum NodeBody {
    File(FileImage),
    Directory(BTreeMap<Arc<str>, Ino>),
}

#[derive(Debug)]
struct DiskNode {
    body: NodeBody,
    mode: u32,
    links: u32,
    /// Space that the file takes, from its begin.
    allocated_bytes: u64,
    /// Parent directory and name given to the inode last; other names of a hard link do not matter here.
    location: (Ino, Arc<str>),
}

/// The attributes that `stat` shows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InodeAttributes {
    pub(crate) ino: Ino,
    pub(crate) directory: bool,
    pub(crate) bytes: u64,
    pub(crate) mode: u32,
    pub(crate) links: u32,
}

/// The file system. One lock around it orders its events.
pub(crate) struct Disk {
    nodes: HashMap<Ino, DiskNode>,
    ino_next: Ino,
    recording: Recording,
    fault: Option<DiskFault>,
    trouble: DiskTrouble,
    /// Duration of each read.
    read_delay: Duration,
    /// Duration of each sync.
    sync_delay: Duration,
    /// Paths of the calls that were failed, so that tests can check that their fault occurred.
    failed_paths: Vec<String>,
}

impl Disk {
    pub(crate) fn new() -> Self {
        let root = DiskNode {
            body: NodeBody::Directory(BTreeMap::new()),
            mode: 0o755,
            links: 2,
            allocated_bytes: 0,
            location: (ROOT, Arc::from("")),
        };
        let mut recording = Recording::default();
        recording.shapes.insert(ROOT, InodeShape { directory: true, mode: 0o755 });
        let nodes = HashMap::from([(ROOT, root)]);
        Self {
            nodes,
            ino_next: ROOT + 1,
            recording,
            fault: None,
            trouble: DiskTrouble::None,
            read_delay: Duration::ZERO,
            sync_delay: Duration::ZERO,
            failed_paths: Vec::new(),
        }
    }

    /// A disk that contains all of `tree`, synced: the recording begins with the events that created it.
    pub(crate) fn from_tree(tree: &CrashTree) -> Self {
        let mut disk = Self::new();
        let mut copies = HashMap::from([(ROOT, ROOT)]);
        disk.copy(tree, ROOT, &mut copies).expect("an empty disk takes every tree");
        disk
    }

    fn copy(&mut self, tree: &CrashTree, from: Ino, copies: &mut HashMap<Ino, Ino>) -> Result<(), Errno> {
        let to = copies[&from];
        for (name, ino) in tree.directories.get(&from).into_iter().flatten() {
            if let Some(linked) = copies.get(ino) {
                self.link(*linked, to, name)?;
                continue;
            }
            let shape = tree.shapes[ino];
            let copy = self.create(to, name, shape)?;
            copies.insert(*ino, copy);
            if shape.directory {
                self.copy(tree, *ino, copies)?;
            } else if let Some(image) = tree.files.get(ino) {
                self.write(copy, 0, image.written())?;
                self.resize(copy, image.bytes())?;
                self.sync(copy)?;
            }
        }
        self.sync_names(to)
    }

    pub(crate) const fn recording(&self) -> &Recording {
        &self.recording
    }

    /// Makes each read and each sync take `delay` from now on.
    pub(crate) const fn slow_down(&mut self, delay: Duration) {
        self.read_delay = delay;
        self.sync_delay = delay;
    }

    /// Makes each sync take `delay` from now on.
    pub(crate) const fn slow_syncs(&mut self, delay: Duration) {
        self.sync_delay = delay;
    }

    /// Duration of a call.
    pub(crate) const fn delay_of(&self, call: DiskCall) -> Duration {
        match call {
            DiskCall::Read => self.read_delay,
            DiskCall::Write => Duration::ZERO,
            DiskCall::Sync => self.sync_delay,
        }
    }

    /// Puts the disk in trouble from now on, or ends it.
    pub(crate) fn set_trouble(&mut self, trouble: DiskTrouble) {
        self.trouble = trouble;
    }

    /// The free bytes, if they are few.
    pub(crate) const fn free_bytes(&self) -> Option<u64> {
        self.trouble.free_bytes()
    }

    pub(crate) fn fail_once(&mut self, fault: DiskFault) {
        self.fault = Some(fault);
    }

    pub(crate) fn failed_paths(&self) -> &[String] {
        &self.failed_paths
    }

    pub(crate) fn attributes(&self, ino: Ino) -> Result<InodeAttributes, Errno> {
        let node = self.node(ino)?;
        let (directory, bytes) = match &node.body {
            NodeBody::File(image) => (false, image.bytes()),
            NodeBody::Directory(_) => (true, 4096),
        };
        Ok(InodeAttributes { ino, directory, bytes, mode: node.mode, links: node.links })
    }

    pub(crate) fn lookup(&self, dir: Ino, name: &str) -> Result<Ino, Errno> {
        self.directory(dir)?.get(name).copied().ok_or(libc::ENOENT)
    }

    /// Entries of a directory: name, inode, and true if the entry is a directory.
    pub(crate) fn list(&self, dir: Ino) -> Result<Vec<(Arc<str>, Ino, bool)>, Errno> {
        let entry = |(name, ino): (&Arc<str>, &Ino)| {
            let directory = matches!(self.nodes.get(ino).map(|n| &n.body), Some(NodeBody::Directory(_)));
            (name.clone(), *ino, directory)
        };
        Ok(self.directory(dir)?.iter().map(entry).collect())
    }

    /// The path of an inode from the root, without a leading slash; the root's path is empty.
    pub(crate) fn path(&self, ino: Ino) -> String {
        let mut parts = Vec::new();
        let mut at = ino;
        while at != ROOT {
            let Some(node) = self.nodes.get(&at) else { break };
            parts.push(node.location.1.as_ref());
            at = node.location.0;
        }
        parts.reverse();
        parts.join("/")
    }

    pub(crate) fn create(&mut self, dir: Ino, name: &str, shape: InodeShape) -> Result<Ino, Errno> {
        if self.directory(dir)?.contains_key(name) {
            return Err(libc::EEXIST);
        }
        self.check_access(dir)?;
        let ino = self.ino_next;
        self.ino_next += 1;
        let name: Arc<str> = Arc::from(name);
        let (body, links) = if shape.directory {
            (NodeBody::Directory(BTreeMap::new()), 2)
        } else {
            (NodeBody::File(FileImage::default()), 1)
        };
        let location = (dir, name.clone());
        self.nodes.insert(ino, DiskNode { body, mode: shape.mode, links, allocated_bytes: 0, location });
        self.directory_mut(dir)?.insert(name.clone(), ino);
        self.recording.shapes.insert(ino, shape);
        self.recording.events.push(DiskEvent::AddName { dir, name, ino });
        Ok(ino)
    }

    pub(crate) fn link(&mut self, ino: Ino, dir: Ino, name: &str) -> Result<(), Errno> {
        if self.directory(dir)?.contains_key(name) {
            return Err(libc::EEXIST);
        }
        self.check_access(dir)?;
        let name: Arc<str> = Arc::from(name);
        self.node_mut(ino)?.links += 1;
        self.directory_mut(dir)?.insert(name.clone(), ino);
        self.recording.events.push(DiskEvent::AddName { dir, name, ino });
        Ok(())
    }

    /// Unlink or rmdir. The body stays for processes that have it open.
    pub(crate) fn remove(&mut self, dir: Ino, name: &str, directory: bool) -> Result<(), Errno> {
        let ino = self.lookup(dir, name)?;
        self.check_access(dir)?;
        match (&self.node(ino)?.body, directory) {
            (NodeBody::Directory(names), true) if names.is_empty() => {}
            (NodeBody::File(_), false) => {}
            (NodeBody::Directory(_), true) => return Err(libc::ENOTEMPTY),
            (NodeBody::Directory(_), false) => return Err(libc::EISDIR),
            (NodeBody::File(_), true) => return Err(libc::ENOTDIR),
        }
        self.directory_mut(dir)?.remove(name);
        self.remove_link(ino)?;
        self.recording.events.push(DiskEvent::RemoveName { dir, name: Arc::from(name), ino });
        Ok(())
    }

    pub(crate) fn rename(&mut self, from: (Ino, &str), to: (Ino, &str)) -> Result<(), Errno> {
        let ino = self.lookup(from.0, from.1)?;
        self.check_access(from.0)?;
        self.check_access(to.0)?;
        if let Ok(replaced) = self.lookup(to.0, to.1) {
            if replaced == ino {
                return Ok(());
            }
            if matches!(&self.node(replaced)?.body, NodeBody::Directory(names) if !names.is_empty()) {
                return Err(libc::ENOTEMPTY);
            }
            self.remove_link(replaced)?;
        }
        let name: Arc<str> = Arc::from(to.1);
        self.directory_mut(from.0)?.remove(from.1);
        self.directory_mut(to.0)?.insert(name.clone(), ino);
        self.node_mut(ino)?.location = (to.0, name.clone());
        let from = (from.0, Arc::from(from.1));
        self.recording.events.push(DiskEvent::Rename { from, to: (to.0, name), ino });
        Ok(())
    }

    pub(crate) fn set_mode(&mut self, ino: Ino, mode: u32) -> Result<(), Errno> {
        self.node_mut(ino)?.mode = mode;
        if let Some(shape) = self.recording.shapes.get_mut(&ino) {
            shape.mode = mode;
        }
        Ok(())
    }

    pub(crate) fn read(&mut self, ino: Ino, offset: u64, length: usize) -> Result<Vec<u8>, Errno> {
        self.maybe_fail(DiskCall::Read, ino)?;
        Ok(self.file(ino)?.read(offset, length))
    }

    pub(crate) fn write(&mut self, ino: Ino, offset: u64, data: &[u8]) -> Result<(), Errno> {
        self.maybe_fail(DiskCall::Write, ino)?;
        self.take_space(ino, offset + data.len() as u64)?;
        self.file_mut(ino)?.write(offset, data);
        self.recording.events.push(DiskEvent::Write { ino, offset, data: Bytes::copy_from_slice(data) });
        Ok(())
    }

    pub(crate) fn resize(&mut self, ino: Ino, bytes: u64) -> Result<(), Errno> {
        self.check_access(ino)?;
        self.take_space(ino, bytes)?;
        let freed = self.node(ino)?.allocated_bytes.saturating_sub(bytes);
        self.trouble.free(freed);
        self.node_mut(ino)?.allocated_bytes -= freed;
        self.file_mut(ino)?.resize(bytes);
        self.recording.events.push(DiskEvent::Resize { ino, bytes });
        Ok(())
    }

    /// `fallocate`: takes the space of the range, grows the file unless `keep_size`, zeroes the range if
    /// `zero`. The space of a punched hole (`zero` and `keep_size`) stays with the file.
    pub(crate) fn allocate(
        &mut self,
        ino: Ino,
        (offset, bytes): (u64, u64),
        keep_size: bool,
        zero: bool,
    ) -> Result<(), Errno> {
        self.maybe_fail(DiskCall::Write, ino)?;
        if !(zero && keep_size) {
            self.take_space(ino, offset + bytes)?;
        }
        if zero {
            self.file_mut(ino)?.zero(offset, bytes);
            self.recording.events.push(DiskEvent::Zero { ino, offset, bytes });
        }
        if !keep_size && self.file(ino)?.bytes() < offset + bytes {
            self.resize(ino, offset + bytes)?;
        }
        Ok(())
    }

    pub(crate) fn sync(&mut self, ino: Ino) -> Result<(), Errno> {
        self.file(ino)?;
        if let Err(errno) = self.maybe_fail(DiskCall::Sync, ino) {
            self.recording.events.push(DiskEvent::SyncFailed { ino });
            return Err(errno);
        }
        let path = Arc::from(self.path(ino));
        self.recording.events.push(DiskEvent::Sync { ino, path });
        Ok(())
    }

    pub(crate) fn sync_names(&mut self, dir: Ino) -> Result<(), Errno> {
        self.directory(dir)?;
        self.maybe_fail(DiskCall::Sync, dir)?;
        let path = Arc::from(self.path(dir));
        self.recording.events.push(DiskEvent::SyncNames { dir, path });
        Ok(())
    }

    /// Removes a link of an inode. The last one frees its space.
    fn remove_link(&mut self, ino: Ino) -> Result<(), Errno> {
        let node = self.node_mut(ino)?;
        node.links = node.links.saturating_sub(1);
        if let (NodeBody::File(_), 0) = (&node.body, node.links) {
            let freed = std::mem::take(&mut node.allocated_bytes);
            self.trouble.free(freed);
        }
        Ok(())
    }

    /// Takes the space for the first `bytes` bytes of a file, as far as it does not have it.
    fn take_space(&mut self, ino: Ino, bytes: u64) -> Result<(), Errno> {
        self.file(ino)?;
        let needed = bytes.saturating_sub(self.node(ino)?.allocated_bytes);
        if !self.trouble.take_bytes(needed) {
            return Err(libc::ENOSPC);
        }
        self.node_mut(ino)?.allocated_bytes += needed;
        Ok(())
    }

    /// Fails if all calls on this inode fail.
    fn check_access(&self, ino: Ino) -> Result<(), Errno> {
        if self.trouble.fails(|| self.path(ino)) { Err(libc::EIO) } else { Ok(()) }
    }

    fn maybe_fail(&mut self, call: DiskCall, ino: Ino) -> Result<(), Errno> {
        self.check_access(ino)?;
        let Some(fault) = &self.fault else { return Ok(()) };
        if fault.call != call || !(fault.matches)(&self.path(ino)) {
            return Ok(());
        }
        let path = self.path(ino);
        match &mut self.fault {
            Some(fault) if fault.skip > 0 => {
                fault.skip -= 1;
                Ok(())
            }
            _ => {
                self.fault = None;
                self.failed_paths.push(path);
                Err(libc::EIO)
            }
        }
    }

    fn node(&self, ino: Ino) -> Result<&DiskNode, Errno> {
        self.nodes.get(&ino).ok_or(libc::ENOENT)
    }

    fn node_mut(&mut self, ino: Ino) -> Result<&mut DiskNode, Errno> {
        self.nodes.get_mut(&ino).ok_or(libc::ENOENT)
    }

    fn file(&self, ino: Ino) -> Result<&FileImage, Errno> {
        match &self.node(ino)?.body {
            NodeBody::File(image) => Ok(image),
            NodeBody::Directory(_) => Err(libc::EISDIR),
        }
    }

    fn file_mut(&mut self, ino: Ino) -> Result<&mut FileImage, Errno> {
        match &mut self.node_mut(ino)?.body {
            NodeBody::File(image) => Ok(image),
            NodeBody::Directory(_) => Err(libc::EISDIR),
        }
    }

    fn directory(&self, ino: Ino) -> Result<&BTreeMap<Arc<str>, Ino>, Errno> {
        match &self.node(ino)?.body {
            NodeBody::Directory(names) => Ok(names),
            NodeBody::File(_) => Err(libc::ENOTDIR),
        }
    }

    fn directory_mut(&mut self, ino: Ino) -> Result<&mut BTreeMap<Arc<str>, Ino>, Errno> {
        match &mut self.node_mut(ino)?.body {
            NodeBody::Directory(names) => Ok(names),
            NodeBody::File(_) => Err(libc::ENOTDIR),
        }
    }
}

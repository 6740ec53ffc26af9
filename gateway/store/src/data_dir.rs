//! The data directory: used by one server at a time, in a format that this version knows.
//!
//! ```text
//! LOCK          held with flock while a server runs; contains the id of its process
//! start-reserve/  space for a start on a full disk
//! restore-unfinished  only until a restore ends
//! node.json     format version and identity; written as the last step of the first start
//! secrets.key   mode 0600; seals the secrets in the catalogue
//! admin.json    mode 0600; address and key for commands on this host, while a server runs
//! audit/        the audit log
//! catalogue/    the metadata; node.json names another directory on a node with peers
//! segments/     the bytes of objects
//! cluster/      key and certificate of a node with peers, and what it knows of their starts
//! ```
//!
//! A first start writes `secrets.key`, then `node.json`, each complete and synced, and only then the
//! catalogue. After a power failure, a directory without `node.json` therefore contains no data, and one with
//! `node.json` has the key. A node with peers counts its starts: the count is raised and synced before
//! anything else, so no two starts have the same one.

use super::node_file::{DataDirError, NODE_FILE, NodeDescription};
use super::restore_mark;
use super::start_reserve;
use super::synced_dir::create_dir_synced;
use crate::catalogue_dir::CatalogueName;
use crate::location::StoreLocation;
use mlgw_common::{Lineage, NodeId, Timestamp, regular};
use mlgw_config::Config;
use mlgw_credentials::Sealer;
use rustix::fs::{FlockOperation, flock};
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// Directory of the files of a node with peers: its key, its certificate, and the starts of the others.
pub const CLUSTER_DIR: &str = "cluster";

/// A data directory, locked until it is dropped.
#[derive(Debug)]
pub struct DataDir {
    path: PathBuf,
    node: NodeDescription,
    _lock: File,
}

impl DataDir {
    /// Creates the directory if it does not exist, locks it, checks its format and counts the start.
    ///
    /// # Errors
    /// See [`DataDirError`].
    pub fn open(path: &Path, now: Timestamp) -> Result<(Self, Sealer), DataDirError> {
        let io = |path: &Path, source| DataDirError::Io { path: path.to_owned(), source };
        create_dir_synced(path).map_err(|source| io(path, source))?;
        let lock = lock(path)?;
        start_reserve::take_if_short(path);
        write_process_id(&lock);
        let node_path = path.join(NODE_FILE);
        restore_mark::require_ended(path)?;
        let node = NodeDescription::read(path)?;
        let catalogues = CatalogueName::list(path).map_err(|source| io(path, source))?;
        if node.is_none() && !catalogues.is_empty() {
            let reason = "missing, although a catalogue exists".to_owned();
            return Err(DataDirError::Damaged { path: node_path, reason });
        }
        let sealer = if node.is_none() { Sealer::open_or_create(path)? } else { Sealer::open(path)? };
        let described = node.clone();
        let node = node.map_or_else(|| NodeDescription::first(now), NodeDescription::upgraded)?.started()?;
        if described.as_ref() != Some(&node) {
            node.write(path)?;
        }
        restore_mark::remove(path);
        Ok((Self { path: path.to_owned(), node, _lock: lock }, sealer))
    }

    /// Locks an existing directory until the returned file is dropped, so that no server starts. Changes no
    /// file in it. Returns `None` if no server ever used it.
    ///
    /// # Errors
    /// When a server uses it.
    pub fn hold(path: &Path) -> Result<Option<File>, DataDirError> {
        let lock = path.join("LOCK");
        match regular::open(&lock) {
            // No server ever used it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(DataDirError::Io { path: lock, source }),
            Ok(file) => take_lock(file, path, &lock).map(Some),
        }
    }

    /// Returns the contents of `node.json` of a directory, or `None` if it does not exist.
    ///
    /// # Errors
    /// When it is of a newer format, damaged or unreadable.
    pub fn description(path: &Path) -> Result<Option<NodeDescription>, DataDirError> {
        NodeDescription::read(path)
    }

    /// Returns the number, in its cluster, of the node that owns a directory.
    ///
    /// # Errors
    /// When the description is of a newer format, damaged or unreadable.
    pub fn node_id(path: &Path) -> Result<NodeId, DataDirError> {
        let described = Self::description(path)?;
        Ok(described.map_or(NodeId::SINGLE, |node| node.node_id()))
    }

    /// Returns the identity of its server, and the timelines that it descends from.
    #[must_use]
    pub fn lineage(&self) -> Lineage {
        self.node.lineage().unwrap_or_default()
    }

    /// Records that every part of the directory carries the identity.
    ///
    /// # Errors
    /// When the description cannot be written. The next start marks again.
    pub fn finish_marking(&mut self) -> Result<(), DataDirError> {
        if self.node.marking {
            self.describe(NodeDescription { marking: false, ..self.node.clone() })?;
        }
        Ok(())
    }

    /// Returns the path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Replaces the contents of `node.json`, durably.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub(crate) fn describe(&mut self, node: NodeDescription) -> Result<(), DataDirError> {
        node.write(&self.path)?;
        self.node = node;
        Ok(())
    }

    /// Returns the contents of `node.json`.
    #[must_use]
    pub const fn node(&self) -> &NodeDescription {
        &self.node
    }

    /// Returns the locations of the parts of this directory. `node.json` is not read again, because a read
    /// that fails must not choose another catalogue.
    #[must_use]
    pub fn location(&self, config: &Config) -> StoreLocation {
        StoreLocation::with_catalogue(config, self.node.catalogue)
    }
}

/// Creates a directory and locks it for this process until the file is dropped.
pub(crate) fn create_locked(dir: &Path) -> Result<File, DataDirError> {
    create_dir_synced(dir).map_err(|source| DataDirError::Io { path: dir.to_owned(), source })?;
    lock(dir)
}

fn lock(dir: &Path) -> Result<File, DataDirError> {
    let path = dir.join("LOCK");
    let io = |source| DataDirError::Io { path: path.clone(), source };
    let mut options = OpenOptions::new();
    let options = options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let file = regular::open_with(options, &path).map_err(io)?;
    take_lock(file, dir, &path)
}

/// Writes the id of this process into the lock file. It is informational: the kernel holds the lock, also on
/// a full disk.
fn write_process_id(mut lock: &File) {
    let written = lock.set_len(0).and_then(|()| writeln!(lock, "{}", std::process::id()));
    if let Err(error) = written {
        tracing::warn!(%error, "cannot write the process id into the lock file");
    }
}

/// Locks the file that a server of `dir` holds.
fn take_lock(mut file: File, dir: &Path, path: &Path) -> Result<File, DataDirError> {
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => {
            let mut process = String::new();
            let _ = file.read_to_string(&mut process);
            let process = process.trim().parse::<u32>().map(|id| format!(" (process {id})"));
            Err(DataDirError::InUse { path: dir.to_owned(), process: process.unwrap_or_default() })
        }
        Err(error) => Err(DataDirError::Io { path: path.to_owned(), source: error.into() }),
    }
}

/// Creates a directory outside the data directory and locks it for this server until the file is dropped. The
/// directory itself is locked, so no file is written into it.
///
/// # Errors
/// See [`DataDirError`].
pub fn lock_segment_dir(dir: &Path) -> Result<File, DataDirError> {
    let io = |source| DataDirError::Io { path: dir.to_owned(), source };
    create_dir_synced(dir).map_err(io)?;
    let taken = File::open(dir).map_err(io)?;
    match flock(&taken, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(taken),
        Err(rustix::io::Errno::WOULDBLOCK) => {
            Err(DataDirError::InUse { path: dir.to_owned(), process: String::new() })
        }
        Err(error) => Err(io(error.into())),
    }
}

/// Locks an existing directory. A missing one is an error, because a directory created at the place of a
/// missing mount would be on another disk.
///
/// # Errors
/// Those of [`lock_segment_dir`], and when the directory does not exist.
pub fn lock_existing_segment_dir(dir: &Path) -> Result<File, DataDirError> {
    if dir.is_dir() {
        return lock_segment_dir(dir);
    }
    let source = io::Error::new(io::ErrorKind::NotFound, "no such directory: create it, or mount its disk");
    Err(DataDirError::Io { path: dir.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::{DataDir, DataDirError, lock_segment_dir};
    use crate::catalogue_dir::CatalogueName;
    use mlgw_common::Timestamp;
    use mlgw_config::{Config, ConfigSources, LoadedConfig};
    use std::os::unix::fs::MetadataExt as _;

    #[test]
    fn a_second_server_on_one_directory_is_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deep/er");
        let (first, _) = DataDir::open(&path, Timestamp(0)).unwrap();
        let refused = DataDir::open(&path, Timestamp(0)).unwrap_err();
        let expected = format!("deep/er is in use by another mlgw server (process {})", std::process::id());
        assert!(refused.to_string().contains(&expected), "{refused}");
        let node = first.node().clone();
        drop(first);
        let (again, _) = DataDir::open(&path, Timestamp(1)).unwrap();
        assert_eq!(*again.node(), node, "a restart is the same node");
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o700);
    }

    #[test]
    fn a_segment_directory_elsewhere_is_locked_by_one_server() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("segments");
        let taken = lock_segment_dir(&path).unwrap();
        assert!(matches!(lock_segment_dir(&path), Err(DataDirError::InUse { .. })));
        drop(taken);
        assert!(lock_segment_dir(&path).is_ok());
        assert_eq!(std::fs::read_dir(&path).unwrap().count(), 0);
    }

    #[test]
    fn a_newer_format_is_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("node.json"), "{\"format\": 6, \"other\": []}").unwrap();
        let refused = DataDir::open(dir.path(), Timestamp(0)).unwrap_err();
        assert!(matches!(refused, DataDirError::Newer { found: 6, .. }), "{refused}");
    }

    #[test]
    fn a_directory_that_lost_its_description_or_its_key_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        drop(DataDir::open(dir.path(), Timestamp(0)).unwrap());
        let key = dir.path().join("secrets.key");
        std::fs::remove_file(&key).unwrap();
        assert!(matches!(DataDir::open(dir.path(), Timestamp(0)), Err(DataDirError::Sealer(_))));
        assert!(!key.exists(), "no other key is created instead");
        std::fs::remove_file(dir.path().join("node.json")).unwrap();
        std::fs::create_dir(dir.path().join("catalogue")).unwrap();
        assert!(matches!(DataDir::open(dir.path(), Timestamp(0)), Err(DataDirError::Damaged { .. })));
    }

    #[test]
    fn the_location_is_that_of_the_locked_directory_even_if_its_description_cannot_be_read_again() {
        let room = tempfile::tempdir().unwrap();
        let dir = room.path().join("d");
        let (mut open, _) = DataDir::open(&dir, Timestamp(0)).unwrap();
        let second = CatalogueName::FIRST.next();
        open.describe(open.node().clustered(second).unwrap()).unwrap();
        for catalogue in ["catalogue", "catalogue-1"] {
            std::fs::create_dir_all(dir.join(catalogue)).unwrap();
        }
        std::fs::write(dir.join("node.json"), "cut off").unwrap();
        let config = LoadedConfig::load(&ConfigSources::default()).unwrap().config;
        let config = Config { data_dir: dir.clone(), ..config };
        assert_eq!(open.location(&config).catalogue_name(), second);
    }

    #[test]
    fn a_node_with_peers_counts_its_starts_before_anything_else() {
        let dir = tempfile::tempdir().unwrap();
        let (mut first, _) = DataDir::open(dir.path(), Timestamp(0)).unwrap();
        assert_eq!(first.node().start, None);
        let node = first.node().clustered(CatalogueName::FIRST.next()).unwrap();
        first.describe(node).unwrap();
        drop(first);
        let mut seen = Vec::new();
        for _ in 0..3 {
            let (open, _) = DataDir::open(dir.path(), Timestamp(0)).unwrap();
            let written = DataDir::description(dir.path()).unwrap().unwrap();
            assert_eq!(*open.node(), written, "the count is on disk when the start goes on");
            seen.push(written.start.unwrap());
        }
        assert_eq!(seen.iter().map(|of| of.counter).collect::<Vec<_>>(), [1, 2, 3]);
        drop(DataDir::hold(dir.path()).unwrap());
        let held = DataDir::description(dir.path()).unwrap().unwrap().start;
        assert_eq!(held, seen.last().copied(), "a check is no start");
    }

    #[test]
    fn a_first_start_that_was_cut_short_is_begun_again() {
        let dir = tempfile::tempdir().unwrap();
        drop(DataDir::open(dir.path(), Timestamp(0)).unwrap());
        std::fs::remove_file(dir.path().join("node.json")).unwrap();
        assert!(DataDir::open(dir.path(), Timestamp(0)).is_ok());
    }
}

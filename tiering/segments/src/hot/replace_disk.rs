//! Segment directories that fail or are exchanged while the node runs, and their replacement.
//!
//! A node with peers examines its directories every few seconds. One that fails, does not answer, or is
//! another one than before, is refused ([`super::directory`]): reads use the replicas of other nodes, and
//! nothing is written there. [`HotTier::replace_directory`] takes an empty directory in its place: it marks
//! it, and the replicas that were in it become suspect, so that the driver of replicas copies them from other
//! nodes.
//!
//! The mark is durable before anything is written. After a power loss the next start accepts the directory,
//! and the sweep finds the listed replicas without a file.

use std::collections::BTreeSet;
use std::fs::DirEntry;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::join_all;
use mlgw_common::ids::{NodeId, SegmentId};
use mlgw_common::limits::REPLACED_ONLY_COPIES_NAMED_MAX;
use mlgw_common::time::timeout;
use mlgw_common::{Identity, SegmentTier};
use mlgw_formats::schema::{SegmentRecord, SegmentState};
use mlgw_formats::segment_header::SEGMENT_HEADER_BYTES;
use mlgw_metadata::ReadError;
use mlgw_replication::StorageNode;

use super::directory::{
    DirectoryChange, DirectoryFault, ExaminedDirectory as _, FileNumber, PROBE_FILE_NAME,
};
use super::file::SegmentDisk;
use super::file_names::segment_of_file_name;
use super::mark_file::{MARK_FILE_NAME, MARK_TEMP_NAME, read_mark, write_incomplete_mark};
use super::replicas::is_local;
use super::space::{BALLAST_FILE_NAME, DiskSpace};
use super::{HotTier, HotTierInner};

/// Interval between examinations.
const EXAMINE_INTERVAL: Duration = Duration::from_secs(2);
/// Time after which a disk that does not answer an examination counts as hung. One that retries a bad sector
/// takes a few seconds.
const EXAMINE_MAX: Duration = Duration::from_secs(10);

/// Names that an empty directory may have: those of its own server, and that of a new file system.
const NAMES_OF_EMPTY: [&str; 5] =
    [MARK_FILE_NAME, MARK_TEMP_NAME, PROBE_FILE_NAME, BALLAST_FILE_NAME, "lost+found"];

/// A segment directory that is not used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedDirectory {
    /// The directory.
    pub dir: PathBuf,
    /// The tier.
    pub tier: SegmentTier,
    /// The reason.
    pub fault: DirectoryFault,
}

/// Treatment of segments whose only good copy was in the directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnlyCopies {
    /// The directory is not replaced.
    Refused,
    /// Their loss is accepted.
    Accepted,
}

/// A directory that was replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplacedDirectory {
    /// The directory.
    pub dir: PathBuf,
    /// Number of segments that are copied from other nodes.
    pub copied_again: u64,
    /// Segments whose only good copy was lost.
    pub lost: Vec<SegmentId>,
}

/// Reason for which a directory is not replaced. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum ReplaceDirectoryError {
    /// The node has no peers.
    #[error("this server has no other nodes with copies of its segments: restore a backup")]
    NoPeers,
    /// It is no segment directory.
    #[error("{dir} is not a segment directory of this node: it has {known}")]
    Unknown {
        /// The directory.
        dir: PathBuf,
        /// The segment directories of this node.
        known: String,
    },
    /// There are files in it, or the mark of another server.
    #[error(
        "{dir} is not empty: it has {name}. Mount an empty file system there, or move the files elsewhere; \
         a directory of this node that is right is used again by itself"
    )]
    NotEmpty {
        /// The directory.
        dir: PathBuf,
        /// The first name in it.
        name: String,
    },
    /// Segments would be lost, or a node with a copy does not answer.
    #[error(
        "{dir} had the only good copy of {} segments, as far as nodes answer, and what is in them would be \
         lost: {}. Bring the old disk back, start the nodes that do not answer, or accept the loss with \
         --yes", .segments.len(), named(.segments)
    )]
    OnlyCopies {
        /// The directory.
        dir: PathBuf,
        /// The segments, by id.
        segments: Vec<SegmentId>,
    },
    /// The directory cannot be read or written.
    #[error("{dir}: {source}")]
    Io {
        /// The directory.
        dir: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// The catalogue cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The node stops.
    #[error("the node stops")]
    Stopping,
}

fn named(segments: &[SegmentId]) -> String {
    let mut names: Vec<String> =
        segments.iter().take(REPLACED_ONLY_COPIES_NAMED_MAX).map(ToString::to_string).collect();
    if segments.len() > REPLACED_ONLY_COPIES_NAMED_MAX {
        names.push("…".to_owned());
    }
    names.join(", ")
}

impl HotTier {
    /// Segment directories that are not used, and why. Empty for a node without peers.
    #[must_use]
    pub fn refused_directories(&self) -> Vec<RefusedDirectory> {
        let refused = |place: DirectoryPlace<'_>| {
            let (dir, tier) = (place.disk.dir().to_owned(), place.tier);
            place.disk.state().fault().map(|fault| RefusedDirectory { dir, tier, fault })
        };
        self.inner.directories().filter_map(refused).collect()
    }

    /// False while the directory of the hot tier is not used, so that every append fails.
    #[must_use]
    pub fn can_append(&self) -> bool {
        !self.inner.volumes.hot.state().is_refused()
    }

    /// True if other nodes store segments too, so that they may store what this node cannot.
    #[must_use]
    pub fn has_peers(&self) -> bool {
        self.inner.replicas.replication().is_some()
    }

    /// Takes the empty directory `dir` in place of a lost one with the same path. Its replicas are copied
    /// from other nodes.
    ///
    /// # Errors
    /// See [`ReplaceDirectoryError`].
    pub async fn replace_directory(
        &self,
        dir: &Path,
        only_copies: OnlyCopies,
    ) -> Result<ReplacedDirectory, ReplaceDirectoryError> {
        let (inner, dir) = (self.inner.clone(), dir.to_owned());
        // A task of its own: it is completed if the caller is dropped.
        let replaced = tokio::task::spawn_blocking(move || inner.replace(&dir, only_copies));
        replaced.await.map_err(|_| ReplaceDirectoryError::Stopping)?
    }
}

/// A segment directory with its tier and its space.
#[derive(Clone, Copy)]
struct DirectoryPlace<'a> {
    tier: SegmentTier,
    disk: &'a SegmentDisk,
    space: &'a DiskSpace,
}

/// Segments of this node without a file.
#[derive(Default)]
struct MissingReplicas {
    /// Those with a good replica on another node that answers.
    elsewhere: Vec<SegmentId>,
    /// Those without.
    only_here: Vec<SegmentId>,
}

impl HotTierInner {
    fn directories(&self) -> impl Iterator<Item = DirectoryPlace<'_>> {
        let hot =
            DirectoryPlace { tier: SegmentTier::Hot, disk: &self.volumes.hot, space: &self.shared.space };
        let cold = self.volumes.cold.iter().map(|volume| DirectoryPlace {
            tier: SegmentTier::Cold,
            disk: &volume.disk,
            space: &volume.space,
        });
        std::iter::once(hot).chain(cold)
    }

    /// True while a segment directory is not used.
    pub(super) fn has_refused_directory(&self) -> bool {
        self.directories().any(|place| place.disk.state().is_refused())
    }

    /// The directories that are used.
    pub(super) fn used_directories(&self) -> impl Iterator<Item = &Path> {
        let used = self.directories().filter(|place| !place.disk.state().is_refused());
        used.map(|place| place.disk.dir())
    }

    /// Returns those of `segments` whose file may be in a directory that is not used: it is in no other one.
    pub(super) fn in_refused_directories(
        &self,
        segments: impl IntoIterator<Item = SegmentId>,
    ) -> io::Result<BTreeSet<SegmentId>> {
        if !self.has_refused_directory() {
            return Ok(BTreeSet::new());
        }
        let found = self.files_in_use()?;
        Ok(segments.into_iter().filter(|segment| !found.contains(segment)).collect())
    }

    /// Returns the segments with a file in a directory that is used.
    pub(super) fn files_in_use(&self) -> io::Result<BTreeSet<SegmentId>> {
        let mut files = BTreeSet::new();
        for dir in self.used_directories() {
            for entry in std::fs::read_dir(dir)? {
                files.extend(entry?.file_name().to_str().and_then(segment_of_file_name));
            }
        }
        Ok(files)
    }

    /// True if a directory that is not used may have the file of a segment: none that answers has it.
    pub(super) fn may_be_in_refused_directory(&self, segment: SegmentId) -> bool {
        self.has_refused_directory() && !self.has_file(segment)
    }

    /// Checks that each directory is used, and is the one that was examined last.
    pub(super) fn check_directories(&self) -> io::Result<()> {
        self.directories().try_for_each(|place| place.disk.state().check_directory(place.disk.dir()))
    }

    /// Examines all directories at the same time, and refuses those that do not answer within `limit`.
    pub(super) async fn examine_directories(self: &Arc<Self>, limit: Duration) {
        let places = 0..self.directories().count();
        join_all(places.map(|place| self.examine_within(place, limit))).await;
    }

    /// Examines a directory, unless an examination of it is in progress.
    async fn examine_within(self: &Arc<Self>, place: usize, limit: Duration) {
        let Some(DirectoryPlace { disk, .. }) = self.directories().nth(place) else { return };
        let state = disk.state();
        let Some(number) = state.start_examination() else { return };
        let of = self.clone();
        // A thread that does not return goes on without this task.
        let examining = tokio::task::spawn_blocking(move || {
            if let Some(DirectoryPlace { tier, disk, space }) = of.directories().nth(place) {
                let found = of.examine(tier, disk);
                // Counted before anything is written there again.
                let is_back = found.is_ok() && disk.state().is_refused();
                let bytes = if is_back { bytes_of_segments(disk.dir()) } else { None };
                let change = disk.state().end_examination(number, found);
                if let (Some(DirectoryChange::Accepted), Some(bytes)) = (&change, bytes) {
                    space.set_found(bytes);
                }
                of.report_change(disk.dir(), change);
            }
        });
        match timeout(limit, examining).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                let fault = DirectoryFault::Failed(format!("its examination failed: {error}"));
                self.report_change(disk.dir(), state.end_examination(number, Err(fault)));
            }
            Err(_) => self.report_change(disk.dir(), state.refuse_hung(number)),
        }
    }

    /// Examines a directory. Blocks the calling thread.
    fn examine(&self, tier: SegmentTier, disk: &SegmentDisk) -> Result<FileNumber, DirectoryFault> {
        let expects = || {
            let expected = self.shared.segments.map.referenced_segments(tier);
            expected.map_or(true, |segments| !segments.is_empty())
        };
        disk.state().examine(disk, &self.volumes.hot.owner(), expects)
    }

    fn report_change(&self, dir: &Path, change: Option<DirectoryChange>) {
        let Some(change) = change else { return };
        // Files that are open may be in another directory than the one that is used now.
        self.reader.invalidate_all();
        match change {
            DirectoryChange::Accepted => {
                tracing::warn!(dir = %dir.display(), "a segment directory is used again");
            }
            DirectoryChange::Refused(fault) => {
                tracing::error!(dir = %dir.display(), %fault,
                    "a segment directory is not used any more: mount its disk, or replace it with `mlgw \
                     disk replace`");
            }
        }
    }

    /// Takes an empty directory in place of a lost one.
    fn replace(
        &self,
        dir: &Path,
        only_copies: OnlyCopies,
    ) -> Result<ReplacedDirectory, ReplaceDirectoryError> {
        let replication = self.replicas.replication().ok_or(ReplaceDirectoryError::NoPeers)?;
        let place = self.place_of(dir)?;
        let (dir, state) = (place.disk.dir().to_owned(), place.disk.state());
        let io = |source| ReplaceDirectoryError::Io { dir: dir.clone(), source };
        let locked = state.lock_replacement();
        let _locked =
            locked.ok_or_else(|| io(io::Error::other("another replacement of it has not ended")))?;
        let number = FileNumber::of_path(&dir).map_err(io)?;
        check_empty(&dir, &self.volumes.hot.owner())?;
        let before = state.begin_replacement();
        self.reader.invalidate_all();
        let missing = self.replace_refused(place, &replication.storage_nodes(), only_copies);
        match &missing {
            Ok(_) => drop(state.accept(number)),
            Err(_) => state.abandon_replacement(before),
        }
        let MissingReplicas { elsewhere, only_here: lost } = missing?;
        replication.add_suspects(elsewhere.iter().chain(&lost).copied());
        replication.start_pass();
        let copied_again = elsewhere.len() as u64;
        tracing::warn!(
            dir = %dir.display(), segments = copied_again, lost = lost.len(),
            "a segment directory was replaced by an empty one"
        );
        Ok(ReplacedDirectory { dir, copied_again, lost })
    }

    fn replace_refused(
        &self,
        place: DirectoryPlace<'_>,
        nodes: &[StorageNode],
        only_copies: OnlyCopies,
    ) -> Result<MissingReplicas, ReplaceDirectoryError> {
        let dir = place.disk.dir();
        let missing = self.missing_replicas(nodes)?;
        if !missing.only_here.is_empty() && only_copies == OnlyCopies::Refused {
            let segments = missing.only_here;
            return Err(ReplaceDirectoryError::OnlyCopies { dir: dir.to_owned(), segments });
        }
        let io = |source| ReplaceDirectoryError::Io { dir: dir.to_owned(), source };
        place.disk.probe().map_err(io)?;
        write_incomplete_mark(dir, &self.volumes.hot.owner()).map_err(io)?;
        place.space.set_emptied();
        Ok(missing)
    }

    /// Returns the directory of this node that a path names.
    fn place_of(&self, dir: &Path) -> Result<DirectoryPlace<'_>, ReplaceDirectoryError> {
        let is_same = |of: &Path| {
            of == dir || matches!((of.canonicalize(), dir.canonicalize()), (Ok(a), Ok(b)) if a == b)
        };
        self.directories().find(|place| is_same(place.disk.dir())).ok_or_else(|| {
            let known: Vec<String> =
                self.directories().map(|place| place.disk.dir().display().to_string()).collect();
            ReplaceDirectoryError::Unknown { dir: dir.to_owned(), known: known.join(", ") }
        })
    }

    /// Returns the segments that list this node and are in none of its directories.
    fn missing_replicas(&self, nodes: &[StorageNode]) -> Result<MissingReplicas, ReplaceDirectoryError> {
        let mut missing = MissingReplicas::default();
        let Some(catalogue) = &self.catalogue else { return Ok(missing) };
        let answers = |node: NodeId| nodes.iter().any(|of| of.node == node && of.is_reachable);
        for record in catalogue.segments()? {
            let segment = record.segment_id();
            let is_here = record.replica_of(self.node).is_some_and(is_local);
            if !is_here || !has_bytes(&record) || self.has_file(segment) {
                continue;
            }
            match has_good_copy(&record, |node| node != self.node && answers(node)) {
                true => missing.elsewhere.push(segment),
                false => missing.only_here.push(segment),
            }
        }
        Ok(missing)
    }

    /// True if a directory that answers has the file of a segment.
    pub(super) fn has_file(&self, segment: SegmentId) -> bool {
        let answers = |place: &DirectoryPlace<'_>| place.disk.state().fault() != Some(DirectoryFault::Hung);
        self.directories().filter(answers).any(|place| place.disk.has_file(segment))
    }
}

/// Returns the bytes of the segments in a directory that is used again: they may have been there at no start.
fn bytes_of_segments(dir: &Path) -> Option<u64> {
    let bytes = |entry: io::Result<DirEntry>| -> io::Result<u64> {
        let entry = entry?;
        let is_segment = entry.file_name().to_str().and_then(segment_of_file_name).is_some();
        let length = if is_segment { entry.metadata()?.len() } else { 0 };
        Ok(length.saturating_sub(SEGMENT_HEADER_BYTES))
    };
    let counted = std::fs::read_dir(dir).and_then(|entries| entries.map(bytes).sum());
    let warn =
        |error: &io::Error| tracing::warn!(dir = %dir.display(), %error, "the segments were not counted");
    counted.inspect_err(warn).ok()
}

/// True if a segment has, or may have, bytes.
fn has_bytes(record: &SegmentRecord) -> bool {
    record.state() == SegmentState::Open || record.length > 0
}

/// True if one of the nodes that count has a replica without known damage.
fn has_good_copy(record: &SegmentRecord, counts: impl Fn(NodeId) -> bool) -> bool {
    record.replicas.iter().any(|replica| !replica.is_suspect && counts(NodeId(replica.node)))
}

/// Checks that a directory has no files, except a mark of the server `own`.
fn check_empty(dir: &Path, own: &Identity) -> Result<(), ReplaceDirectoryError> {
    let io = |source| ReplaceDirectoryError::Io { dir: dir.to_owned(), source };
    for entry in std::fs::read_dir(dir).map_err(io)? {
        let name = entry.map_err(io)?.file_name().to_string_lossy().into_owned();
        let is_foreign = || !matches!(read_mark(dir), Ok(Some(owner)) if owner == *own);
        if !NAMES_OF_EMPTY.contains(&name.as_str()) || name == MARK_FILE_NAME && is_foreign() {
            return Err(ReplaceDirectoryError::NotEmpty { dir: dir.to_owned(), name });
        }
    }
    Ok(())
}

/// Examines the directories until the tier stops or is dropped.
pub(super) async fn run(tier: Weak<HotTierInner>) {
    if let Some(inner) = tier.upgrade() {
        inner.directories().for_each(|place| place.disk.state().begin_examination());
    }
    loop {
        mlgw_common::time::sleep(EXAMINE_INTERVAL).await;
        let Some(inner) = tier.upgrade().filter(|inner| !inner.compaction.is_stopped()) else { return };
        inner.examine_directories(EXAMINE_MAX).await;
    }
}

#[cfg(test)]
mod tests {
    use super::has_good_copy;
    use mlgw_common::ids::NodeId;
    use mlgw_formats::schema::{Replica, SegmentRecord};

    #[test]
    fn a_suspect_copy_does_not_replace_a_lost_one() {
        let replica = |node, is_suspect| Replica { node, is_suspect, ..Replica::default() };
        let record = |is_suspect| {
            let replicas = vec![replica(1, false), replica(2, is_suspect)];
            SegmentRecord { replicas, ..SegmentRecord::default() }
        };
        let is_other = |node| node != NodeId(1);
        assert!(has_good_copy(&record(false), is_other));
        assert!(!has_good_copy(&record(true), is_other));
        assert!(!has_good_copy(&record(false), |_| false));
    }
}

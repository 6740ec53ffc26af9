//! Segment directories that fail or are exchanged while the node runs, and their replacement.
//!
//! A node with peers examines its directories every few seconds. One that fails, or is another one than
//! before, is refused ([`super::directory`]): reads use the replicas of other nodes, and nothing is written
//! there. [`HotTier::replace_directory`] takes an empty directory in its place: it marks it, and the replicas
//! that were in it become suspect, so that the driver of replicas copies them from other nodes.
//!
//! The mark is durable before anything is written. After a power loss the next start accepts the directory,
//! and the sweep finds the listed replicas without a file.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use mlgw_common::SegmentTier;
use mlgw_common::ids::{NodeId, SegmentId};
use mlgw_common::limits::REPLACED_ONLY_COPIES_NAMED_MAX;
use mlgw_formats::schema::{SegmentRecord, SegmentState};
use mlgw_metadata::ReadError;

use super::compaction::{MoveStepError, blocking};
use super::directory::{DirectoryFault, PROBE_FILE_NAME};
use super::file::SegmentDisk;
use super::mark_file::{MARK_FILE_NAME, MARK_TEMP_NAME, write_incomplete_mark};
use super::replicas::is_local;
use super::space::{BALLAST_FILE_NAME, DiskSpace};
use super::{HotTier, HotTierInner};

/// Interval between examinations.
const EXAMINE_INTERVAL: Duration = Duration::from_secs(2);

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

/// Treatment of segments whose only copy was in the directory.
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
    /// Segments whose only copy was lost.
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
    /// There are files in it.
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
    /// Segments would be lost.
    #[error(
        "{dir} had the only copy of {} segments, and what is in them would be lost: {}. Bring the old disk \
         back, or accept the loss with --yes", .segments.len(), named(.segments)
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
        let replication = self.inner.replicas.replication().ok_or(ReplaceDirectoryError::NoPeers)?;
        let (inner, dir) = (self.inner.clone(), dir.to_owned());
        let replaced = tokio::task::spawn_blocking(move || inner.replace(&dir, only_copies));
        let (replaced, missing) = replaced.await.map_err(|_| ReplaceDirectoryError::Stopping)??;
        replication.add_suspects(missing);
        replication.start_pass();
        tracing::warn!(
            dir = %replaced.dir.display(), segments = replaced.copied_again, lost = replaced.lost.len(),
            "a segment directory was replaced by an empty one"
        );
        Ok(replaced)
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
struct MissingReplicas {
    /// Those with a replica on another node.
    elsewhere: BTreeSet<SegmentId>,
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

    /// Examines all directories.
    fn examine_directories(&self) {
        let own = self.volumes.hot.owner();
        for DirectoryPlace { tier, disk, .. } in self.directories() {
            let (dir, state) = (disk.dir(), disk.state());
            if state.fault() == Some(DirectoryFault::Replacing) {
                continue;
            }
            let expects = || {
                let expected = self.shared.segments.map.referenced_segments(tier);
                expected.map_or(true, |segments| !segments.is_empty())
            };
            match state.examine(dir, &own, expects, || disk.probe()) {
                Ok(()) if state.accept(dir) => {
                    tracing::warn!(dir = %dir.display(), "a segment directory is used again");
                }
                Ok(()) => {}
                Err(fault) if state.refuse(fault.clone()) => {
                    self.reader.invalidate_all();
                    tracing::error!(dir = %dir.display(), %fault,
                        "a segment directory is not used any more: mount its disk, or replace it with `mlgw \
                         disk replace`");
                }
                Err(_) => {}
            }
        }
    }

    /// Takes an empty directory in place of a lost one. Returns the segments without a file as well.
    fn replace(
        &self,
        dir: &Path,
        only_copies: OnlyCopies,
    ) -> Result<(ReplacedDirectory, BTreeSet<SegmentId>), ReplaceDirectoryError> {
        let place = self.place_of(dir)?;
        let (dir, state) = (place.disk.dir().to_owned(), place.disk.state());
        check_empty(&dir)?;
        let before = state.fault();
        state.refuse(DirectoryFault::Replacing);
        self.reader.invalidate_all();
        let replaced = self.replace_refused(place, only_copies);
        match (&replaced, before) {
            (Ok(_), _) => {
                state.accept(&dir);
            }
            (Err(_), Some(fault)) => {
                state.refuse(fault);
            }
            // The directory was used and had no segments, so it stays right.
            (Err(_), None) => {
                state.accept(&dir);
            }
        }
        replaced
    }

    fn replace_refused(
        &self,
        place: DirectoryPlace<'_>,
        only_copies: OnlyCopies,
    ) -> Result<(ReplacedDirectory, BTreeSet<SegmentId>), ReplaceDirectoryError> {
        let dir = place.disk.dir().to_owned();
        let MissingReplicas { elsewhere, only_here } = self.missing_replicas()?;
        if !only_here.is_empty() && only_copies == OnlyCopies::Refused {
            return Err(ReplaceDirectoryError::OnlyCopies { dir, segments: only_here });
        }
        let io = |source| ReplaceDirectoryError::Io { dir: dir.clone(), source };
        write_incomplete_mark(&dir, &self.volumes.hot.owner()).map_err(io)?;
        place.disk.probe().map_err(io)?;
        place.space.set_emptied();
        let copied_again = elsewhere.len() as u64;
        Ok((ReplacedDirectory { dir, copied_again, lost: only_here }, elsewhere))
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
    fn missing_replicas(&self) -> Result<MissingReplicas, ReplaceDirectoryError> {
        let mut missing = MissingReplicas { elsewhere: BTreeSet::new(), only_here: Vec::new() };
        let Some(catalogue) = &self.catalogue else { return Ok(missing) };
        let is_removed = |node: NodeId| catalogue.is_removed_node(node);
        for record in catalogue.segments()? {
            let segment = record.segment_id();
            let is_here = record.replica_of(self.node).is_some_and(is_local);
            if !is_here || !has_bytes(&record) || self.has_file(segment) {
                continue;
            }
            let mut others = record.replicas.iter().map(|replica| NodeId(replica.node));
            match others.any(|node| node != self.node && !is_removed(node)) {
                true => drop(missing.elsewhere.insert(segment)),
                false => missing.only_here.push(segment),
            }
        }
        Ok(missing)
    }

    /// True if a directory has the file of a segment.
    fn has_file(&self, segment: SegmentId) -> bool {
        self.directories().any(|place| place.disk.has_file(segment))
    }
}

/// True if a segment has, or may have, bytes.
fn has_bytes(record: &SegmentRecord) -> bool {
    record.state() == SegmentState::Open || record.length > 0
}

fn check_empty(dir: &Path) -> Result<(), ReplaceDirectoryError> {
    let io = |source| ReplaceDirectoryError::Io { dir: dir.to_owned(), source };
    for entry in std::fs::read_dir(dir).map_err(io)? {
        let name = entry.map_err(io)?.file_name().to_string_lossy().into_owned();
        if !NAMES_OF_EMPTY.contains(&name.as_str()) {
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
        let examined: Arc<HotTierInner> = inner;
        let examined = blocking(move || {
            examined.examine_directories();
            Ok::<(), MoveStepError>(())
        });
        if let Err(error) = examined.await {
            tracing::warn!(%error, "the segment directories were not examined");
        }
    }
}

//! Subcommands on a whole data directory without a running server: check, repair, back up, restore.
//!
//! Each subcommand holds the directory's lock, so no server starts meanwhile. `check` writes nothing in the
//! directory. The others write new files beside those that they replace, sync them, and only then rename
//! them.

mod backup;
mod backup_plan;
pub mod catalogue_dir;
mod check;
pub mod checkpoint_dir;
mod cluster_backup;
mod cluster_init;
mod cluster_join;
mod cluster_recover;
mod copied_segments;
pub mod data_dir;
mod incomplete;
mod leftovers;
mod location;
pub mod node_file;
mod repair;
mod restore;
mod restore_mark;
mod small_files;
pub mod start_reserve;
mod synced_dir;
mod timeline;

pub use backup::{BackedUp, backup_closed, backup_serving};
pub use backup_plan::UpstreamData;
pub use check::{Checked, check};
pub use cluster_init::{ClusterInitError, InitializedCluster, cluster_init};
pub use cluster_join::{ClusterJoinError, JoiningDir};
pub use cluster_recover::{
    ClusterRecoverError, RecoveredServer, cluster_recover, cluster_take_over, recoverable_cluster,
};
pub use incomplete::{IncompleteObject, MissingSegments};
pub use leftovers::remove_leftovers;
pub use location::StoreLocation;
pub use mlgw_metadata::offline::OldRows;
pub use repair::{Repaired, repair};
pub use restore::{Restored, restore};
pub use small_files::{UnfitFile, unfit_files};
pub use timeline::{LostTail, accept_lost_tail, adopt};

use crate::data_dir::DataDir;
use crate::node_file::{DataDirError, NodeDescription};
use mlgw_common::{ClusterId, Lineage, NodeId, SegmentId};
use mlgw_metadata::CutError;
use mlgw_metadata::copy::CopyError;
use mlgw_metadata::identity::ExpectedServer;
use mlgw_metadata::offline::{self, CheckFinding, ProgressCallback, RebuildError, RebuildLog, RebuildReport};
use mlgw_segments::hot::{SalvageReport, SegmentDirs, log_floor, segment_of_file_name};
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Error of a subcommand.
#[derive(Debug, thiserror::Error)]
pub enum StoreVerbError {
    /// The directory cannot be used.
    #[error(transparent)]
    DataDir(#[from] DataDirError),
    /// There is no data directory.
    #[error("{0} is not a data directory: it has neither node.json nor a catalogue")]
    NoDataDir(PathBuf),
    /// A system call failed.
    #[error("{path}: {source}")]
    Io {
        /// The path.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// The target of a new directory is not empty.
    #[error("{0} is not empty: use an empty or absent directory")]
    NotEmpty(PathBuf),
    /// A backup would be restored over another server.
    #[error(
        "{dir} is the data directory of a server of cluster {cluster}: restore the backup to an empty or \
         absent directory"
    )]
    ExistingServer {
        /// The directory.
        dir: PathBuf,
        /// Cluster of that server.
        cluster: ClusterId,
    },
    /// The copy is damaged and is not restored.
    #[error("the copy is damaged: {0}")]
    Damaged(String),
    /// A copy could not be written or read.
    #[error(transparent)]
    Copy(#[from] CopyError),
    /// The state could not be rebuilt.
    #[error(transparent)]
    Rebuild(#[from] RebuildError),
    /// Segments that should be copied are missing, or lack bytes.
    #[error("{0}")]
    Missing(MissingSegments),
    /// A gateway has no data.
    #[error("{0} is of a gateway, which has no objects: use a storage node")]
    Gateway(PathBuf),
    /// The catalogue of a cluster was not copied.
    #[error("the catalogue was not copied: {0}")]
    Cut(#[from] CutError),
    /// Buckets were deleted each time that the catalogue of a cluster was copied.
    #[error("buckets were deleted during each of {0} copies of the catalogue: try again")]
    BucketsDeleted(u32),
    /// A segment was spilled while a cluster was copied.
    #[error("segment {0} was spilled to an upstream during the backup: try again")]
    Spilled(SegmentId),
    /// Bytes of objects are not on disks of this machine.
    #[error(
        "{0} segments are in upstreams, and a backup contains local data only: bring them back first with \
         `mlgw tier drain upstream --wait`, or use --leave-upstreams for a backup that needs the upstreams \
         in their present state"
    )]
    InUpstreams(u64),
    /// The floor of the log could not be read.
    #[error("{0}")]
    Floor(String),
    /// The catalogue could not be read or written.
    #[error("the catalogue: {0}")]
    Catalogue(String),
    /// A node of a cluster lost entries that it acknowledged to others.
    #[error(
        "node {0} of a cluster must not continue without entries that it acknowledged: remove it from the \
         cluster, and let it join under a new id with empty directories"
    )]
    Member(NodeId),
}

impl StoreVerbError {
    fn io(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { path, source }
    }
}

/// Rebuilds the catalogue's state from its newest checkpoint and a log. Newer checkpoints that are incomplete
/// are appended to `unusable`.
///
/// # Errors
/// When a server uses the directory, or the state cannot be rebuilt. No file was changed then.
pub fn rebuild(
    place: &StoreLocation,
    log: RebuildLog,
    unusable: &mut Vec<CheckFinding>,
    watch: ProgressCallback<'_>,
) -> Result<RebuildReport, StoreVerbError> {
    let _held = DataDir::hold(&place.dir)?;
    let node = DataDir::description(&place.dir)?;
    if log == RebuildLog::Checkpoint {
        node.as_ref().map_or(Ok(()), refuse_member)?;
    }
    let expected = expected(place, node.as_ref())?;
    let lineage = expected.as_ref().map(|expected| &expected.lineage);
    let (dir, checkpoints) = (place.catalogue(), checkpoint_dir::described(&place.checkpoints, lineage));
    let rebuilt = offline::rebuild(&dir, checkpoints, log, expected.as_ref(), &scratch()?, unusable, watch)?;
    // The timeline of a cluster is not one node's to end, and its own log is complete.
    node.filter(|node| !node.is_clustered()).map_or(Ok(()), |node| timeline::begin_timeline(place, node))?;
    Ok(rebuilt)
}

/// Refuses an operation that forgets log entries on a node of a cluster.
fn refuse_member(node: &NodeDescription) -> Result<(), StoreVerbError> {
    if node.is_clustered() { Err(StoreVerbError::Member(node.node_id())) } else { Ok(()) }
}

/// Returns true if no server has written data in this directory yet.
fn is_unborn(place: &StoreLocation) -> Result<bool, StoreVerbError> {
    let catalogue = place.catalogue();
    let unborn =
        offline::is_never_written(&catalogue, &place.checkpoints).map_err(StoreVerbError::io(catalogue))?;
    let files = place.segments.all().flat_map(std::fs::read_dir).flatten().flatten();
    let mut names = files.map(|entry| entry.file_name().to_string_lossy().into_owned());
    Ok(unborn && !names.any(|name| segment_of_file_name(&name).is_some()))
}

/// Lists the objects that can be recovered from the segments alone, without a catalogue.
///
/// # Errors
/// When a server uses the directory, it is of a newer format, or the segments cannot be listed.
pub fn salvage(place: &StoreLocation, watch: ProgressCallback<'_>) -> Result<SalvageReport, StoreVerbError> {
    let _held = DataDir::hold(&place.dir)?;
    // Segments are salvaged also if the description is damaged.
    if let Err(newer @ DataDirError::Newer { .. }) = DataDir::description(&place.dir) {
        return Err(newer.into());
    }
    mlgw_segments::hot::salvage(&place.segments, watch).map_err(StoreVerbError::io(place.segments.hot()))
}

/// Returns the identity and floor that the catalogue must agree with, or `None` if its server has no
/// identity.
fn expected(
    place: &StoreLocation,
    node: Option<&NodeDescription>,
) -> Result<Option<ExpectedServer>, StoreVerbError> {
    let Some(lineage) = node.and_then(NodeDescription::lineage) else { return Ok(None) };
    let hot = StoreVerbError::io(place.segments.hot());
    let floor = segment_floor(&place.segments, &lineage).map_err(hot)?;
    let expected = ExpectedServer::read(&place.catalogue(), lineage, floor);
    expected.map(Some).map_err(|error| StoreVerbError::Floor(error.to_string()))
}

/// Returns the minimum number of entries of a server's log, by its segments. Only a node that votes alone
/// writes floors into segments, so they are those of node 1, from before other nodes voted. It is 0 on every
/// other node: floors in its copies of these segments count entries of the log of node 1, which its own log
/// may lack.
///
/// # Errors
/// When the directory or a file cannot be read.
pub fn segment_floor(segments: &SegmentDirs, lineage: &Lineage) -> io::Result<u64> {
    if lineage.node == NodeId::SINGLE { log_floor(segments, lineage.own.incarnation) } else { Ok(0) }
}

/// Creates an empty directory for a scratch copy, readable by its owner only.
fn scratch() -> Result<PathBuf, StoreVerbError> {
    static MADE: AtomicU64 = AtomicU64::new(0);
    loop {
        let number = MADE.fetch_add(1, Relaxed);
        let path = std::env::temp_dir().join(format!("mlgw-store-{}-{number}", std::process::id()));
        match DirBuilder::new().mode(0o700).create(&path) {
            Ok(()) => return Ok(path),
            // Left by an earlier process with this id, which was killed.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(StoreVerbError::io(path)(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::segment_floor;
    use mlgw_common::{
        BodyId, BucketId, Clock, ClusterId, Identity, Incarnation, Lineage, NodeId, NodeName, ObjectKey,
        SystemClock,
    };
    use mlgw_formats::segment_payload::Payload;
    use mlgw_metadata::{Catalogue, CatalogueOptions};
    use mlgw_segments::hot::{Chunk, HotOptions, HotTier, Placement, SegmentDirs};
    use std::path::Path;
    use std::sync::Arc;

    /// Stores a chunk in a segment that this server writes.
    async fn write_segment(room: &Path, lineage: &Lineage) {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let options = CatalogueOptions::new(room.join("catalogue"), Arc::clone(&clock));
        let catalogue = Catalogue::open(options).await.unwrap();
        let mut options = HotOptions::new(room.join("segments"), 1 << 30, clock);
        options.lineage = lineage.clone();
        let hot = HotTier::open(options, catalogue.clone()).await.unwrap();
        let chunk = Chunk {
            bucket: BucketId(1),
            key: ObjectKey::new("key").unwrap(),
            body: BodyId(1),
            part: None,
            offset: 0,
            data: Payload::raw(b"data".to_vec().into()),
            placement: Placement::Shared,
        };
        drop(hot.append(chunk).await.unwrap());
        hot.shutdown().await;
        catalogue.shutdown().await;
    }

    #[tokio::test]
    async fn copies_of_segments_state_nothing_about_the_log_of_their_node() {
        let room = tempfile::tempdir().unwrap();
        let own = Identity { cluster: ClusterId(1), node: NodeName(2), incarnation: Incarnation(3) };
        let first = Lineage { own, ..Lineage::default() };
        write_segment(room.path(), &first).await;
        let segments = SegmentDirs::new(room.path().join("segments"), Vec::new());
        assert!(segment_floor(&segments, &first).unwrap() > 0);
        let other = Lineage { node: NodeId(2), ..first };
        assert_eq!(segment_floor(&segments, &other).unwrap(), 0);
    }
}

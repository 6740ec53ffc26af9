//! The subcommand `mlgw store backup`: a complete and verified copy of a data directory, also while it is in
//! use. A running storage node of a cluster makes a backup of the whole cluster.
//!
//! While a server runs, no segment is released from the start of the catalogue's copy until all segments are
//! open: an open file can be removed, but its bytes stay readable. The copied catalogue is read as a start
//! would read it. All data that it refers to was synced before it was copied, so the segments that it knows
//! are copied in their later state, and each referenced segment must exist. Data in an upstream is not
//! copied. If there is any, the backup fails unless the caller requests one that refers to the upstream. The
//! list of contents is written last. A copy without the list is no backup.

use super::{StoreLocation, StoreVerbError};
use crate::backup_plan::{BackupPlan, OtherNodes, open_copied};
use crate::cluster_backup::ClusterBackup;
use crate::data_dir::DataDir;
use crate::node_file::{DirectoryRole, NODE_FILE, NodeDescription};
use mlgw_common::regular;
use mlgw_common::{Clock, NodeId, SegmentId};
use mlgw_credentials::sealer;
use mlgw_metadata::Catalogue;
use mlgw_metadata::copy::{Copier, CopyError};
use mlgw_metadata::offline::{ProgressCallback, copy_closed};
use mlgw_segments::hot::{HotTier, segment_file_name, segment_of_file_name};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Seek as _;
use std::path::Path;

/// Directory of the catalogue in a copy.
pub(super) const CATALOGUE: &str = "catalogue/";

/// Directory of the audit log.
const AUDIT: &str = "audit";

/// Size of a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackedUp {
    /// Number of files.
    pub files: u64,
    /// Bytes of the files.
    pub bytes: u64,
}

/// Treatment of data in upstreams by a backup, which cannot copy it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpstreamData {
    /// The data stays in its upstream, and the backup refers to it.
    LeftInPlace,
    /// The backup fails if there is any.
    Refused,
}

/// Copies a data directory that no server uses to `out`, which must be empty or absent.
///
/// # Errors
/// When a server uses it, when `out` is not empty, when bytes are missing, or when a file cannot be read or
/// written.
pub fn backup_closed(
    source: &StoreLocation,
    out: &Path,
    upstream_data: UpstreamData,
    clock: &dyn Clock,
    watch: ProgressCallback<'_>,
) -> Result<BackedUp, StoreVerbError> {
    let _held = DataDir::hold(&source.dir)?;
    let node = DataDir::description(&source.dir)?;
    if node.as_ref().is_some_and(|node| node.role == DirectoryRole::Gateway) {
        return Err(StoreVerbError::Gateway(source.dir.clone()));
    }
    let node = node.map_or(NodeId::SINGLE, |node| node.node_id());
    require_empty(out)?;
    let mut copier = Copier::new(out, None)?;
    let segments = open_segments(source)?;
    copy_closed(&source.catalogue(), &mut copier, CATALOGUE)?;
    let segments = local_segments(out, node, segments, upstream_data)?;
    add_segments(&mut copier, segments, watch)?;
    finish(copier, source, clock)
}

/// Copies the data of this running server, or of its cluster, to `out`, which must be empty or absent.
///
/// # Errors
/// When `out` is not empty, when bytes are missing, or when a file cannot be read or written. On a node of a
/// cluster also when no majority confirms the newest state.
pub async fn backup_serving(
    source: &StoreLocation,
    out: &Path,
    upstream_data: UpstreamData,
    catalogue: &Catalogue,
    hot: &HotTier,
    clock: &dyn Clock,
    watch: impl Fn(&'static str, u64, u64) + Send + Sync + 'static,
) -> Result<BackedUp, StoreVerbError> {
    require_empty(out)?;
    let described = DataDir::description(&source.dir)?;
    let node = described.as_ref().map_or(NodeId::SINGLE, NodeDescription::node_id);
    let has_peers = described.is_some_and(|node| node.is_clustered());
    let (mut copier, segments) = if has_peers {
        let cluster = ClusterBackup { source, out, node, catalogue, hot, upstream_data };
        cluster.begin(&watch).await?
    } else {
        let _kept = hot.pin_all();
        (catalogue.copy_into(Copier::new(out, None)?, CATALOGUE).await?, open_segments(source)?)
    };
    let out = out.to_owned();
    let copied = tokio::task::spawn_blocking(move || {
        let segments =
            if has_peers { segments } else { local_segments(&out, node, segments, upstream_data)? };
        Ok::<_, StoreVerbError>(add_segments(&mut copier, segments, &watch).map(|()| copier)?)
    });
    let copier = copied.await.map_err(|stopped| StoreVerbError::Catalogue(stopped.to_string()))??;
    finish(copier, source, clock)
}

pub(super) fn require_empty(out: &Path) -> Result<(), StoreVerbError> {
    match std::fs::read_dir(out) {
        Ok(mut entries) => match entries.next() {
            None => Ok(()),
            Some(_) => Err(StoreVerbError::NotEmpty(out.to_owned())),
        },
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(StoreVerbError::io(out)(error)),
    }
}

/// Opens every segment of all tiers. An open file can be removed, but its bytes stay readable.
pub(super) fn open_segments(source: &StoreLocation) -> Result<BTreeMap<SegmentId, File>, StoreVerbError> {
    let mut open = BTreeMap::new();
    for dir in source.segments.all() {
        open_segments_of(dir, &mut open)?;
    }
    Ok(open)
}

fn open_segments_of(dir: &Path, open: &mut BTreeMap<SegmentId, File>) -> Result<(), StoreVerbError> {
    let io = || StoreVerbError::io(dir);
    for entry in std::fs::read_dir(dir).map_err(io())? {
        let entry = entry.map_err(io())?;
        let Some(id) = entry.file_name().to_str().and_then(segment_of_file_name) else { continue };
        match regular::open(&entry.path()) {
            Ok(file) => drop(open.insert(id, file)),
            // Removed since it was listed.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(StoreVerbError::io(entry.path())(error)),
        }
    }
    Ok(())
}

fn add_segments(
    copier: &mut Copier,
    segments: BTreeMap<SegmentId, File>,
    watch: ProgressCallback<'_>,
) -> Result<(), CopyError> {
    let total = segments.values().filter_map(|file| file.metadata().ok()).map(|found| found.len()).sum();
    let mut done = 0;
    for (id, mut file) in segments {
        copier.add_open(&mut file, u64::MAX, &segment_name(id), &mut |bytes| {
            done += bytes;
            watch("copying segments", done, total);
        })?;
    }
    Ok(())
}

/// Adds the file of a segment that was read from other nodes.
pub(super) fn add_segment(
    mut copier: Copier,
    segment: SegmentId,
    mut file: &File,
) -> Result<Copier, StoreVerbError> {
    let name = segment_name(segment);
    file.rewind().map_err(StoreVerbError::io(&name))?;
    let mut file = file.try_clone().map_err(StoreVerbError::io(&name))?;
    copier.add_open(&mut file, u64::MAX, &name, &mut |_| {})?;
    Ok(copier)
}

/// Path of a segment in a copy.
fn segment_name(segment: SegmentId) -> String {
    format!("segments/{}", segment_file_name(segment))
}

/// Returns those of this server's segments that the copied catalogue knows.
fn local_segments(
    out: &Path,
    node: NodeId,
    segments: BTreeMap<SegmentId, File>,
    upstream_data: UpstreamData,
) -> Result<BTreeMap<SegmentId, File>, StoreVerbError> {
    let copied = open_copied(out, node)?;
    BackupPlan::of(&copied, node, segments, OtherNodes::Unread, upstream_data)?.only_local(&copied)
}

/// Copies the small files, then writes the list of contents.
fn finish(mut copier: Copier, source: &StoreLocation, clock: &dyn Clock) -> Result<BackedUp, StoreVerbError> {
    for name in [NODE_FILE, sealer::FILE_NAME] {
        let path = source.dir.join(name);
        if path.exists() {
            copier.add(&path, name)?;
        }
    }
    for entry in std::fs::read_dir(source.dir.join(AUDIT)).into_iter().flatten().flatten() {
        let mut file = regular::open(&entry.path()).map_err(StoreVerbError::io(entry.path()))?;
        let name = format!("{AUDIT}/{}", entry.file_name().to_string_lossy());
        copier.add_open(&mut file, u64::MAX, &name, &mut |_| {})?;
    }
    let contents = copier.finish(clock.now())?;
    Ok(BackedUp { files: contents.files.len() as u64, bytes: contents.bytes() })
}

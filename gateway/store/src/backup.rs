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
use crate::backup_plan::{BackupPlan, CATALOGUE, OtherNodes, UpstreamData, open_copied};
use crate::cluster_backup::ClusterBackup;
use crate::copied_segments::{add_segments, open_segments};
use crate::data_dir::DataDir;
use crate::node_file::{DirectoryRole, NODE_FILE, NodeDescription};
use mlgw_common::regular;
use mlgw_common::{Clock, NodeId, SegmentId};
use mlgw_credentials::sealer;
use mlgw_metadata::Catalogue;
use mlgw_metadata::copy::Copier;
use mlgw_metadata::offline::{ProgressCallback, copy_closed};
use mlgw_segments::hot::HotTier;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

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
    let audit = source.dir.join(AUDIT);
    let entries = match std::fs::read_dir(&audit) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        listed => Some(listed.map_err(StoreVerbError::io(&audit))?),
    };
    for entry in entries.into_iter().flatten() {
        let entry = entry.map_err(StoreVerbError::io(&audit))?;
        let mut file = regular::open(&entry.path()).map_err(StoreVerbError::io(entry.path()))?;
        let name = format!("{AUDIT}/{}", entry.file_name().to_string_lossy());
        copier.add_open(&mut file, u64::MAX, &name, &mut |_| {})?;
    }
    let contents = copier.finish(clock.now())?;
    Ok(BackedUp { files: contents.files.len() as u64, bytes: contents.bytes() })
}

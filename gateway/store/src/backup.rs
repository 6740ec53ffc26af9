//! The subcommand `mlgw store backup`: a complete and verified copy of a data directory, also while it is in
//! use.
//!
//! While a server runs, no segment is released from the start of the catalogue's copy until all segments are
//! open: an open file can be removed, but its bytes stay readable. The copied catalogue is read as a start
//! would read it. All data that it refers to was synced before it was copied, so the segments that it knows
//! are copied in their later state, and each referenced segment must exist. Data in an upstream is not
//! copied. If there is any, the backup fails unless the caller requests one that refers to the upstream. The
//! list of contents is written last. A copy without the list is no backup.

use super::{StoreLocation, StoreVerbError};
use crate::data_dir::{CLUSTER_DIR, DataDir};
use crate::node_file::NODE_FILE;
use mlgw_common::regular;
use mlgw_common::{Clock, NodeId, SegmentId, SegmentTier};
use mlgw_credentials::sealer;
use mlgw_metadata::Catalogue;
use mlgw_metadata::copy::{Copier, CopyError};
use mlgw_metadata::offline::{Offline, ProgressCallback, copy_closed, ignore_progress};
use mlgw_segments::hot::{HotTier, segment_of_file_name};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

/// Directory of the catalogue in a copy.
const CATALOGUE: &str = "catalogue/";

/// Directories of small files: the audit log, and what a node with peers knows of them.
const SMALL_FOLDERS: [&str; 2] = ["audit", CLUSTER_DIR];

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
/// When a server uses it, when `out` is not empty, or when a file cannot be read or written.
pub fn backup_closed(
    source: &StoreLocation,
    out: &Path,
    upstream_data: UpstreamData,
    clock: &dyn Clock,
    watch: ProgressCallback<'_>,
) -> Result<BackedUp, StoreVerbError> {
    let _held = DataDir::hold(&source.dir)?;
    require_empty(out)?;
    let mut copier = Copier::new(out, None)?;
    let segments = open_segments(source)?;
    copy_closed(&source.catalogue(), &mut copier, CATALOGUE)?;
    let segments = segments_to_copy(out, DataDir::node_id(&source.dir)?, segments, upstream_data)?;
    add_segments(&mut copier, segments, watch)?;
    finish(copier, source, clock)
}

/// Copies the data directory of this running server to `out`, which must be empty or absent.
///
/// # Errors
/// When `out` is not empty, or when a file cannot be read or written.
pub async fn backup_serving(
    source: &StoreLocation,
    out: &Path,
    upstream_data: UpstreamData,
    catalogue: &Catalogue,
    hot: &HotTier,
    clock: &dyn Clock,
    watch: impl Fn(&'static str, u64, u64) + Send + 'static,
) -> Result<BackedUp, StoreVerbError> {
    require_empty(out)?;
    let kept = hot.pin_all();
    let mut copier = catalogue.copy_into(Copier::new(out, None)?, CATALOGUE).await?;
    let segments = open_segments(source)?;
    drop(kept);
    let (out_dir, node) = (out.to_owned(), DataDir::node_id(&source.dir)?);
    let copied = tokio::task::spawn_blocking(move || {
        let segments = segments_to_copy(&out_dir, node, segments, upstream_data)?;
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
fn open_segments(source: &StoreLocation) -> Result<BTreeMap<SegmentId, File>, StoreVerbError> {
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
        let name = format!("segments/{}", mlgw_segments::hot::segment_file_name(id));
        copier.add_open(&mut file, u64::MAX, &name, &mut |bytes| {
            done += bytes;
            watch("copying segments", done, total);
        })?;
    }
    Ok(())
}

/// Returns the segments that the copied catalogue knows. Each referenced segment must exist, or may stay in
/// its upstream.
fn segments_to_copy(
    out: &Path,
    node: NodeId,
    mut segments: BTreeMap<SegmentId, File>,
    upstream_data: UpstreamData,
) -> Result<BTreeMap<SegmentId, File>, StoreVerbError> {
    let mut findings = Vec::new();
    // In the copy itself, because a server may have no other writable directory.
    let scratch = out.join("proving");
    let catalogue =
        Offline::open(&out.join(CATALOGUE), &scratch, node, None, &mut findings, &ignore_progress)
            .map_err(|error| StoreVerbError::Catalogue(error.0))?;
    if let Some(damage) = findings.iter().find(|finding| finding.is_damage()) {
        return Err(StoreVerbError::Catalogue(format!("{}: {}", damage.place, damage.what)));
    }
    let Some(catalogue) = catalogue else { return Ok(BTreeMap::new()) };
    let known = &catalogue.facts.segments;
    let referred = catalogue.facts.usage.keys().map(|id| SegmentId(*id));
    let mut in_upstreams = 0;
    for missing in referred.filter(|id| !segments.contains_key(id)) {
        if known.get(&missing.0).is_none_or(|record| record.tier_for(node) != Ok(SegmentTier::Upstream)) {
            return Err(StoreVerbError::SegmentMissing(missing));
        }
        in_upstreams += 1;
    }
    if in_upstreams > 0 && upstream_data == UpstreamData::Refused {
        return Err(StoreVerbError::InUpstreams(in_upstreams));
    }
    segments.retain(|id, _| known.contains_key(&id.0));
    Ok(segments)
}

/// Copies the small files, then writes the list of contents.
fn finish(mut copier: Copier, source: &StoreLocation, clock: &dyn Clock) -> Result<BackedUp, StoreVerbError> {
    for name in [NODE_FILE, sealer::FILE_NAME] {
        let path = source.dir.join(name);
        if path.exists() {
            copier.add(&path, name)?;
        }
    }
    for folder in SMALL_FOLDERS {
        for entry in std::fs::read_dir(source.dir.join(folder)).into_iter().flatten().flatten() {
            let mut file = regular::open(&entry.path()).map_err(StoreVerbError::io(entry.path()))?;
            let name = format!("{folder}/{}", entry.file_name().to_string_lossy());
            copier.add_open(&mut file, u64::MAX, &name, &mut |_| {})?;
        }
    }
    let contents = copier.finish(clock.now())?;
    Ok(BackedUp { files: contents.files.len() as u64, bytes: contents.bytes() })
}

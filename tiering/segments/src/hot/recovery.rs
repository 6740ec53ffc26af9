//! Recovery at start: seals segments that the last process left open, and cleans up the directories.
//!
//! Each open segment that only this node has is read from the device, not from the page cache (unsynced data
//! of the last process may look intact there and be lost at the next power loss), record by record from the
//! length that the catalogue has marked as whole, and sealed where the last record ends that verifies. It is
//! never appended to again, so a torn record cannot be mistaken for a later one. Damage before that record
//! does not shorten the segment: the scan continues after it, since acknowledged records may follow. A
//! missing file means that the segment was created in the catalogue only: it is sealed at 0. After a power
//! loss during recovery the next start repeats it. An open segment with several replicas is left to the
//! recovery that closes enough of them. Its file here stays, and nothing is appended to it.
//!
//! For a file without a segment record there are two cases. Every id below the catalogue's next one was given
//! out, and a record is created before its file; so a file under such an id belongs to a removed segment, and
//! power failed before the file was removed. It is removed now, after the catalogue is synced, since the
//! removal of the record may not be durable yet. A file under an id that was not given out yet belongs to a
//! newer catalogue than this one (the catalogue was restored, or a power loss took its end, with durability
//! `os`): the file is set aside under another name, since the id will be given out again and the old file
//! must not be mistaken for the new segment. A node with peers keeps such a file if this timeline wrote it,
//! or if it is empty: the node may have followed or closed a segment before its rows had the record. An empty
//! file of a removed segment is removed. A file in another tier than its record names was left by a move
//! between tiers: if the recorded tier has the file too, this one is removed; otherwise it is valid. A file
//! whose record lists no replica on this node stays: the driver of replicas adopts it, or the sweep removes
//! it. An unfinished copy is removed. Any other file is reported and left alone.

use std::fs::File;
use std::io;
use std::path::Path;

use mlgw_common::ids::{SegmentId, SegmentSeed};
use mlgw_common::{Identity, Lineage};

use super::directory::PROBE_FILE_NAME;
use super::dirs::SegmentDirs;
use super::file::SegmentDisk;
use super::file_names::{is_copying, segment_file_name, segment_of_file_name};
use super::header::header_of;
use super::map::{MapError, OpenSegment, SegmentLocation, SegmentMap};
use super::mark_file::{MARK_FILE_NAME, MARK_TEMP_NAME};
use super::marks::DirectorySweep;
use super::scan::{ScanSummary, SegmentScan};
use super::space::BALLAST_FILE_NAME;
use mlgw_common::SegmentTier;
use mlgw_formats::segment_header::{SEGMENT_HEADER_BYTES, SegmentHeader};

/// The open segments could not be sealed.
#[derive(Debug, thiserror::Error)]
pub enum RecoveryError {
    /// The disk failed. No unread segment was sealed; the start can be repeated.
    #[error("cannot read segment {segment}: {source}")]
    Io {
        /// The segment.
        segment: SegmentId,
        /// The error of the disk.
        source: io::Error,
    },
    /// The catalogue could not list the open segments.
    #[error(transparent)]
    Map(MapError),
    /// The catalogue did not accept a seal.
    #[error("cannot seal segment {segment}: {source}")]
    Catalogue {
        /// The segment.
        segment: SegmentId,
        /// The error of the catalogue.
        source: MapError,
    },
}

/// Seals every segment that is open in the catalogue and has only the replica of this node.
pub(super) async fn recover(
    map: &dyn SegmentMap,
    disk: &std::sync::Arc<SegmentDisk>,
) -> Result<Vec<(SegmentId, ScanSummary)>, RecoveryError> {
    let mut found = Vec::new();
    for open in map.open_segments().map_err(RecoveryError::Map)? {
        let segment = open.id;
        let on = disk.clone();
        let scanned = tokio::task::spawn_blocking(move || scan_open(&on, open)).await;
        let scanned = scanned
            .unwrap_or_else(|stopped| Err(io::Error::other(stopped)))
            .map_err(|source| RecoveryError::Io { segment, source })?;
        tracing::info!(
            %segment, scanned.length, scanned.records, scanned.damaged_bytes,
                "sealed a segment that was left open"
        );
        map.seal(segment, scanned.length, Vec::new())
            .await
            .map_err(|source| RecoveryError::Catalogue { segment, source })?;
        found.push((segment, scanned));
    }
    Ok(found)
}

fn scan_open(disk: &SegmentDisk, open: OpenSegment) -> io::Result<ScanSummary> {
    let place = SegmentLocation { seed: open.seed, created: Some(open.created), tier: SegmentTier::Hot };
    if disk.set_foreign_aside(open.id, &place)? {
        return Ok(ScanSummary::default());
    }
    let file = match disk.open_uncached(open.id) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(ScanSummary::default()),
        Err(error) => return Err(error),
    };
    scan(file, open.id, open.seed, open.marked)
}

/// Reads a segment file record by record, from `marked` on; the bytes before are known to be whole records.
///
/// # Errors
/// When the file cannot be read; damage is not an error.
pub fn scan(file: File, id: SegmentId, seed: SegmentSeed, marked: u64) -> io::Result<ScanSummary> {
    SegmentScan::new(file, id, seed, marked)?.survey(&mut |_| {})
}

/// Content of a segment directory.
#[derive(Default)]
pub(super) struct SegmentDirListing {
    /// Files that belong to no present or former segment of the catalogue, under their current names.
    pub(super) stray: Vec<String>,
    /// Segments whose file here is to be removed, since they were removed or are in another tier.
    pub(super) removed: Vec<SegmentId>,
    /// Bytes of records in the remaining segments.
    pub(super) used_bytes: u64,
}

/// Treatment of a segment file at start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SegmentFileFate {
    /// The file is valid and stays.
    Kept,
    /// The file is removed.
    Removed,
    /// The file is renamed.
    SetAside,
}

/// Knowledge of the catalogue about a segment id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SegmentHistory {
    /// A record has the segment at this location.
    Recorded(SegmentLocation),
    /// The id was given out, and the segment was removed.
    Removed,
    /// The id was never given out.
    NeverMinted,
}

/// Decides the treatment of a segment file in `tier`. `is_there` returns true if a tier has the segment.
pub(super) fn fate(
    history: SegmentHistory,
    tier: SegmentTier,
    is_there: impl FnOnce(SegmentTier) -> bool,
) -> SegmentFileFate {
    match history {
        SegmentHistory::Recorded(place) if place.tier != tier && is_there(place.tier) => {
            SegmentFileFate::Removed
        }
        SegmentHistory::Recorded(_) => SegmentFileFate::Kept,
        SegmentHistory::Removed => SegmentFileFate::Removed,
        SegmentHistory::NeverMinted => SegmentFileFate::SetAside,
    }
}

/// Context of a directory listing.
#[derive(Clone, Copy)]
pub(super) struct ListingContext<'a> {
    pub(super) map: &'a dyn SegmentMap,
    pub(super) dirs: &'a SegmentDirs,
    /// True if all upstreams named by records are configured. Then a segment recorded at an upstream is
    /// there, since a record names an upstream only after the whole segment was read back from it.
    pub(super) has_all_upstreams: bool,
    pub(super) lineage: &'a Lineage,
    /// True if segments of other nodes may have replicas on this one.
    pub(super) has_peers: bool,
}

impl ListingContext<'_> {
    /// True if the file at `path` matches the record at `place`, or headers are not compared.
    fn is_own(&self, path: &Path, id: SegmentId, place: &SegmentLocation) -> bool {
        let unchecked = self.lineage.own == Identity::default();
        let is_of = |of: SegmentHeader| of.is_header_of(id, place.seed, place.created);
        header_of(path).is_ok_and(|(length, header)| length > 0 && (unchecked || header.is_ok_and(is_of)))
    }

    /// True if the file at `path` was written by this timeline of this server. Format 1 names no server; and
    /// a file of an earlier timeline without a record may be needed by another descendant of that timeline.
    fn is_of_this_timeline(&self, path: &Path, id: SegmentId) -> bool {
        let (unchecked, own) = (self.lineage.own == Identity::default(), self.lineage.own);
        let wrote =
            |of: SegmentHeader| of.id == id && (of.cluster, of.incarnation) == (own.cluster, own.incarnation);
        header_of(path).is_ok_and(|(_, header)| unchecked || header.is_ok_and(wrote))
    }

    /// Decides the treatment of the segment file at `path`, which is in `tier`.
    fn fate(&self, id: SegmentId, tier: SegmentTier, path: &Path) -> io::Result<SegmentFileFate> {
        let history = match self.map.location(id) {
            Some(place) => SegmentHistory::Recorded(place),
            // Looked up only if needed: there may be 100,000 files.
            None if self.map.was_minted(id).map_err(io::Error::other)? => SegmentHistory::Removed,
            None => SegmentHistory::NeverMinted,
        };
        let is_there = |at: SegmentTier| match (at, history) {
            (SegmentTier::Upstream, _) => self.has_all_upstreams,
            (at, SegmentHistory::Recorded(place)) => {
                let name = segment_file_name(id);
                self.dirs.of_tier(at).iter().any(|dir| self.is_own(&dir.join(&name), id, &place))
            }
            (_, SegmentHistory::Removed | SegmentHistory::NeverMinted) => false,
        };
        Ok(match fate(history, tier, is_there) {
            SegmentFileFate::Removed => {
                let is_removable = is_empty(path)
                    || match history {
                        SegmentHistory::Recorded(place) => self.is_own(path, id, &place),
                        SegmentHistory::Removed | SegmentHistory::NeverMinted => {
                            self.is_of_this_timeline(path, id)
                        }
                    };
                if is_removable { SegmentFileFate::Removed } else { SegmentFileFate::SetAside }
            }
            SegmentFileFate::SetAside if self.may_precede_record(path, id) => SegmentFileFate::Kept,
            decided @ (SegmentFileFate::Kept | SegmentFileFate::SetAside) => decided,
        })
    }

    /// True if this node may have created the file before its rows had the record of the segment: it was to
    /// follow the writer, or was requested to close the replica. Every node with peers follows others. The
    /// file is in the way of no new segment: the record of its segment was committed before any node created
    /// a file, so its id is not given out again. A server without peers follows no other node.
    fn may_precede_record(&self, path: &Path, id: SegmentId) -> bool {
        self.has_peers && (is_empty(path) || self.is_of_this_timeline(path, id))
    }
}

/// True for the closed marker of a replica, and for a file that was not written before power failed.
fn is_empty(path: &Path) -> bool {
    header_of(path).is_ok_and(|(length, _)| length == 0)
}

/// Lists a segment directory of `tier`. Nothing in it is removed or renamed unless it is swept now. One that
/// is not used has nothing.
pub(super) fn list_files(
    of: ListingContext<'_>,
    disk: &SegmentDisk,
    tier: SegmentTier,
    sweep: DirectorySweep,
) -> io::Result<SegmentDirListing> {
    if sweep == DirectorySweep::Unused {
        return Ok(SegmentDirListing::default());
    }
    let sweeps = sweep == DirectorySweep::Now;
    let mut listed = SegmentDirListing::default();
    let mut unknown = Vec::new();
    for entry in std::fs::read_dir(disk.dir())? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        match segment_of_file_name(&name) {
            Some(id) => match of.fate(id, tier, &entry.path())? {
                SegmentFileFate::Removed if sweeps => listed.removed.push(id),
                SegmentFileFate::SetAside if sweeps => unknown.push(name),
                SegmentFileFate::Kept | SegmentFileFate::Removed | SegmentFileFate::SetAside => {
                    listed.used_bytes += entry.metadata()?.len().saturating_sub(SEGMENT_HEADER_BYTES);
                }
            },
            None if [BALLAST_FILE_NAME, MARK_FILE_NAME].contains(&name.as_str()) => {}
            None if is_copying(&name) || [MARK_TEMP_NAME, PROBE_FILE_NAME].contains(&name.as_str()) => {
                if sweeps {
                    std::fs::remove_file(entry.path())?;
                }
            }
            None => {
                tracing::warn!(file = %name, "found a file that is not a segment; ignored");
                listed.stray.push(name);
            }
        }
    }
    for name in unknown {
        let aside = disk.set_aside(&name)?;
        tracing::error!(
            file = %name, %aside,
                "set aside a file: the catalogue has no such segment; it may belong to another server"
        );
        listed.stray.push(aside);
    }
    listed.stray.sort();
    Ok(listed)
}

/// Removes the files of removed segments.
pub(super) fn sweep(map: &dyn SegmentMap, disk: &SegmentDisk, removed: &[SegmentId]) -> io::Result<()> {
    if removed.is_empty() {
        return Ok(());
    }
    map.sync().map_err(io::Error::other)?;
    for &segment in removed {
        tracing::info!(%segment, dir = %disk.dir().display(),
            "removing the file of a removed or moved segment");
        disk.remove(segment)?;
    }
    Ok(())
}

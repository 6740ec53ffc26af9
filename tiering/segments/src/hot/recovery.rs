//! What a start does about segments that the last process left open.
//!
//! Each is read from the device, not from the page cache (what the process wrote without syncing
//! may look fine there and be gone after the next power loss), record by record from the length on
//! that the catalogue has marked as whole, and sealed by the
//! catalogue where its last record ends that verifies whole. It is never appended to again, so a
//! torn record can never be mistaken for a later one. Damage before that record does not shorten
//! the segment: the search goes on behind it, since acknowledged records may follow. A file that
//! is missing was minted but never made: sealed at 0. Power loss during recovery repeats it.
//!
//! A file without a record is one of two things. Every id below the catalogue's next one was minted, and the
//! record of a segment is there before its file is; so such a file under such an id belongs to a segment that
//! was removed, and the power failed before its file was. It is removed now, after the catalogue was settled,
//! as the removal may itself be on its way to the disk. A file under an id that was not minted yet is of a
//! catalogue that knew more than this one (it was put back, or power loss took its end, with durability
//! `os`): it is set aside under another name, as the id will be minted again and the new segment's end must
//! not be its end. A file in a tier where its record does not say it is was left by a move between tiers:
//! when it is where the record says, too, this one goes; when it is only here, it counts. A copy that was not
//! finished goes. Any other file is reported and left alone.

use std::fs::File;
use std::io;
use std::path::Path;

use mlgw_common::ids::{SegmentId, SegmentSeed};
use mlgw_common::{Identity, Lineage};

use super::catalogue::{HOT, UPSTREAM};
use super::dirs::SegmentDirs;
use super::file::{Disk, is_copying, segment_file_name, segment_of_file_name};
use super::map::{MapError, OpenSegment, SegmentMap, Whereabouts};
use super::marks::{MARK_FILE_NAME, MARK_NEW_NAME, header_of};
use super::scan::{Scan, Scanned};
use super::space::BALLAST_FILE_NAME;
use mlgw_formats::segment_header::{SEGMENT_HEADER_BYTES, SegmentHeader};

/// Why the segments left open could not be sealed.
#[derive(Debug, thiserror::Error)]
pub enum RecoverError {
    /// The disk failed; nothing was sealed that was not read. Start again.
    #[error("cannot read segment {segment}: {source}")]
    Io {
        /// The segment.
        segment: SegmentId,
        /// What the disk said.
        source: io::Error,
    },
    /// The catalogue does not say which segments are open.
    #[error(transparent)]
    Map(MapError),
    /// The catalogue took no seal.
    #[error("cannot seal segment {segment}: {source}")]
    Catalogue {
        /// The segment.
        segment: SegmentId,
        /// What the catalogue said.
        source: MapError,
    },
}

/// Seals every segment the catalogue holds for open.
pub(super) async fn recover(
    map: &dyn SegmentMap,
    disk: &std::sync::Arc<Disk>,
) -> Result<Vec<(SegmentId, Scanned)>, RecoverError> {
    let mut found = Vec::new();
    for open in map.open_segments().map_err(RecoverError::Map)? {
        let segment = open.id;
        let on = disk.clone();
        let scanned = tokio::task::spawn_blocking(move || scan_open(&on, open)).await;
        let scanned = scanned
            .unwrap_or_else(|stopped| Err(io::Error::other(stopped)))
            .map_err(|source| RecoverError::Io { segment, source })?;
        tracing::info!(
            %segment, scanned.length, scanned.records, scanned.damaged_bytes, "sealed a segment left open"
        );
        map.seal(segment, scanned.length)
            .await
            .map_err(|source| RecoverError::Catalogue { segment, source })?;
        found.push((segment, scanned));
    }
    Ok(found)
}

fn scan_open(disk: &Disk, open: OpenSegment) -> io::Result<Scanned> {
    let place = Whereabouts { seed: open.seed, created: Some(open.created), tier: HOT };
    if disk.set_stranger_aside(open.id, &place)? {
        return Ok(Scanned::default());
    }
    let file = match disk.open_uncached(open.id) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Scanned::default()),
        Err(error) => return Err(error),
    };
    scan(file, open.id, open.seed, open.marked)
}

/// Reads a segment file record by record, from `marked` on: what is before is known to be whole.
///
/// # Errors
/// When the file cannot be read; damage is not an error.
pub fn scan(file: File, id: SegmentId, seed: SegmentSeed, marked: u64) -> io::Result<Scanned> {
    Scan::new(file, id, seed, marked)?.survey(&mut |_| {})
}

/// What the directory holds.
#[derive(Default)]
pub(super) struct Listed {
    /// Files that belong to no segment the catalogue knows or knew, under the names they have now.
    pub(super) stray: Vec<String>,
    /// Files of segments that were removed, or are elsewhere.
    pub(super) removed: Vec<SegmentId>,
    /// Bytes of records in the segments it does know.
    pub(super) used_bytes: u64,
}

/// What becomes of the file of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It counts.
    Kept,
    /// It goes.
    Removed,
    /// It gets another name.
    SetAside,
}

/// What becomes of the file of a segment that lies in `tier`. `place` is where its record says it is,
/// `is_there` whether it is there, `was_minted` whether its id was ever given away.
pub(super) fn fate(
    place: Option<Whereabouts>,
    tier: u32,
    is_there: impl FnOnce(u32) -> bool,
    was_minted: bool,
) -> Fate {
    match place {
        Some(place) if place.tier != tier && is_there(place.tier) => Fate::Removed,
        Some(_) => Fate::Kept,
        None if was_minted => Fate::Removed,
        None => Fate::SetAside,
    }
}

/// What a listing of a directory goes by.
#[derive(Clone, Copy)]
pub(super) struct Listing<'a> {
    pub(super) map: &'a dyn SegmentMap,
    pub(super) dirs: &'a SegmentDirs,
    /// All upstreams that records name are configured: what a record names there is there, as a record names
    /// an upstream only when all of the segment was read back from it.
    pub(super) upstreams_are_there: bool,
    pub(super) lineage: &'a Lineage,
}

impl Listing<'_> {
    /// Whether the file at `path` is the one that the record at `place` means, where headers are compared.
    fn is_own(&self, path: &Path, id: SegmentId, place: &Whereabouts) -> bool {
        let unchecked = self.lineage.own == Identity::default();
        let is_of = |of: SegmentHeader| of.is_of(id, place.seed, place.created);
        header_of(path).is_ok_and(|(_, header)| unchecked || header.is_ok_and(is_of))
    }

    /// Whether the file at `path` was written on this timeline of this server. Format 1 names no server, and
    /// a file of an earlier timeline without a record may be one that another descendant of that timeline
    /// needs.
    fn is_ours(&self, path: &Path, id: SegmentId) -> bool {
        let (unchecked, own) = (self.lineage.own == Identity::default(), self.lineage.own);
        let wrote =
            |of: SegmentHeader| of.id == id && (of.cluster, of.incarnation) == (own.cluster, own.incarnation);
        header_of(path).is_ok_and(|(_, header)| unchecked || header.is_ok_and(wrote))
    }

    /// What becomes of the file at `path` of a segment that lies in `tier`.
    fn fate(&self, id: SegmentId, tier: u32, path: &Path) -> io::Result<Fate> {
        let place = self.map.place(id);
        let is_there = |at: u32| match at {
            UPSTREAM => self.upstreams_are_there,
            at => place.is_some_and(|place| {
                let name = segment_file_name(id);
                self.dirs.of(at).iter().any(|dir| self.is_own(&dir.join(&name), id, &place))
            }),
        };
        // Asked only where it matters: there may be 100,000 files.
        let was_minted = place.is_some() || self.map.was_minted(id).map_err(io::Error::other)?;
        let fate = fate(place, tier, is_there, was_minted);
        let removable = fate != Fate::Removed
            || match place {
                Some(place) => self.is_own(path, id, &place),
                None => self.is_ours(path, id),
            };
        Ok(if removable { fate } else { Fate::SetAside })
    }
}

/// Lists a directory of segments of `tier`. Nothing in it is removed or renamed unless `sweeps`.
pub(super) fn list_files(of: Listing<'_>, disk: &Disk, tier: u32, sweeps: bool) -> io::Result<Listed> {
    let mut listed = Listed::default();
    let mut unknown = Vec::new();
    for entry in std::fs::read_dir(disk.dir())? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        match segment_of_file_name(&name) {
            Some(id) => match of.fate(id, tier, &entry.path())? {
                Fate::Removed if sweeps => listed.removed.push(id),
                Fate::SetAside if sweeps => unknown.push(name),
                Fate::Kept | Fate::Removed | Fate::SetAside => {
                    listed.used_bytes += entry.metadata()?.len().saturating_sub(SEGMENT_HEADER_BYTES);
                }
            },
            None if [BALLAST_FILE_NAME, MARK_FILE_NAME].contains(&name.as_str()) => {}
            None if is_copying(&name) || name == MARK_NEW_NAME => {
                if sweeps {
                    std::fs::remove_file(entry.path())?;
                }
            }
            None => {
                tracing::warn!(file = %name, "a file of no segment; left alone");
                listed.stray.push(name);
            }
        }
    }
    for name in unknown {
        let aside = disk.set_aside(&name)?;
        tracing::error!(
            file = %name, %aside, "set aside: the catalogue has no such segment, and it may be another server's"
        );
        listed.stray.push(aside);
    }
    listed.stray.sort();
    Ok(listed)
}

/// Removes the files of segments that were removed.
pub(super) fn sweep(map: &dyn SegmentMap, disk: &Disk, removed: &[SegmentId]) -> io::Result<()> {
    if removed.is_empty() {
        return Ok(());
    }
    map.settle().map_err(io::Error::other)?;
    for &segment in removed {
        tracing::info!(%segment, dir = %disk.dir().display(), "the file of a removed or moved segment goes");
        disk.remove(segment)?;
    }
    Ok(())
}

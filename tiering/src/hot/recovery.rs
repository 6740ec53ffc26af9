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
//! A file without a record is one of two things. Every id below the catalogue's next one was minted,
//! and the record of a segment is there before its file is; so such a file under such an id belongs to a
//! segment that was removed, and the power failed before its file was. It is removed now, after the
//! catalogue was settled, as the removal may itself be on its way to the disk. A file under an id that was
//! not minted yet is of a catalogue that knew more than this one (it was put back, or power loss took its
//! end, with durability `os`): it is set aside under another name, as the id will be minted again and the
//! new segment's end must not be its end. A file in a tier where its record does not say it is was left by a move
//! between tiers: when it is where the record says, too, this one goes; when it is only here, it counts. A copy that was not
//! finished goes. Any other file is reported and left alone.

use std::fs::File;
use std::io;

use mlgw_common::ids::{Generation, SegmentId};

use super::catalogue::UPSTREAM;
use super::dirs::SegmentDirs;
use super::file::{Disk, is_copying, segment_of_file_name};
use super::header::SEGMENT_HEADER_BYTES;
use super::map::{MapError, OpenSegment, SegmentMap, Whereabouts};
use super::scan::{Scan, Scanned};
use super::space::BALLAST_FILE_NAME;

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
    let file = match disk.open_uncached(open.id) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Scanned::default()),
        Err(error) => return Err(error),
    };
    scan(file, open.id, open.generation, open.marked)
}

/// Reads a segment file record by record, from `marked` on: what is before is known to be whole.
///
/// # Errors
/// When the file cannot be read; damage is not an error.
pub fn scan(file: File, id: SegmentId, generation: Generation, marked: u64) -> io::Result<Scanned> {
    Scan::new(file, id, generation, marked)?.survey(&mut |_| {})
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

/// What becomes of the file of a segment that lies in `tier`. `place` is where its record says it is, `is_there` whether it
/// is there, `was_minted` whether its id was ever given away.
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

/// Lists a directory of segments of `tier`. What a record names in an upstream is there when all upstreams are: a record
/// names one only when all of the segment was read back from it.
pub(super) fn list_files(
    map: &dyn SegmentMap,
    disk: &Disk,
    tier: u32,
    dirs: &SegmentDirs,
    upstreams_are_there: bool,
) -> io::Result<Listed> {
    let mut listed = Listed::default();
    let mut unknown = Vec::new();
    for entry in std::fs::read_dir(disk.dir())? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        match segment_of_file_name(&name) {
            Some(id) => {
                let is_there = |tier| match tier {
                    UPSTREAM => upstreams_are_there,
                    tier => dirs.of(tier).iter().any(|dir| dir.join(&name).exists()),
                };
                match fate(map.place(id), tier, is_there, map.was_minted(id).map_err(io::Error::other)?) {
                    Fate::Kept => {
                        listed.used_bytes += entry.metadata()?.len().saturating_sub(SEGMENT_HEADER_BYTES);
                    }
                    Fate::Removed => listed.removed.push(id),
                    Fate::SetAside => unknown.push(name),
                }
            }
            None if name == BALLAST_FILE_NAME => {}
            None if is_copying(&name) => std::fs::remove_file(entry.path())?,
            None => {
                tracing::warn!(file = %name, "a file of no segment; left alone");
                listed.stray.push(name);
            }
        }
    }
    for name in unknown {
        let aside = disk.set_aside(&name)?;
        tracing::error!(
            file = %name, %aside, "set aside: the catalogue has not made this segment yet, so it is an older one"
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

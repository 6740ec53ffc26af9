//! What a start does about segments that the last process left open.
//!
//! Each is read from the device, not from the page cache (what the process wrote without syncing
//! may look fine there and be gone after the next power loss), record by record, and sealed by the
//! catalogue where its last record ends that verifies whole. It is never appended to again, so a
//! torn record can never be mistaken for a later one. Damage before that record does not shorten
//! the segment: the search goes on behind it, since acknowledged records may follow. A file that
//! is missing was minted but never made: sealed at 0. Power loss during recovery repeats it.
//!
//! Files that the catalogue does not know are reported and left alone.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use mlgw_common::ids::{Generation, SegmentId};

use super::file::{Disk, segment_of_file_name};
use super::header::{SEGMENT_HEADER_BYTES, SegmentHeader};
use super::map::{MapError, OpenSegment, SegmentMap};
use super::record::{
    HEAD_BYTES_MAX, HEAD_FIXED_BYTES, Head, MAGIC, MAGIC_AT, Place, RecordFault, peek_lengths,
};
use super::space::BALLAST_FILE_NAME;

/// Bytes read from the device at a time.
const WINDOW_BYTES: usize = 4 << 20;

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

/// What a scan found in a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scanned {
    /// Where the last record ends that verifies; 0 when not even the segment's header does.
    pub length: u64,
    /// Records that verify.
    pub records: u64,
    /// Bytes before `length` that belong to no such record.
    pub damaged_bytes: u64,
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
    scan(&file, open.id, open.generation)
}

/// Reads a segment file record by record.
///
/// # Errors
/// When the file cannot be read; damage is not an error.
pub fn scan(file: &File, id: SegmentId, generation: Generation) -> io::Result<Scanned> {
    let mut window = Window { file, start: 0, bytes: Vec::new(), file_bytes: file.metadata()?.len() };
    let mut scanned = Scanned::default();
    let header = SegmentHeader::decode(window.at(0, SEGMENT_HEADER_BYTES as usize)?);
    if header.is_ok_and(|header| header.id == id && header.generation == generation) {
        scanned.length = SEGMENT_HEADER_BYTES;
    }
    let mut offset = SEGMENT_HEADER_BYTES;
    while offset < window.file_bytes {
        let place = Place { segment: id, generation, offset };
        offset = match record_at(&mut window, place)? {
            Found::Whole { end } => {
                scanned.records += 1;
                scanned.damaged_bytes += offset - scanned.length.max(SEGMENT_HEADER_BYTES);
                scanned.length = end;
                end
            }
            Found::Damaged { end } => end,
            Found::Nothing => next_magic(&mut window, offset + 1)?,
        };
    }
    Ok(scanned)
}

enum Found {
    /// A record that verifies.
    Whole {
        end: u64,
    },
    /// A record whose head verifies and whose payload does not.
    Damaged {
        end: u64,
    },
    Nothing,
}

fn record_at(window: &mut Window<'_>, place: Place) -> io::Result<Found> {
    let bytes = window.at(place.offset, HEAD_BYTES_MAX)?;
    let understood = match Head::decode(place, bytes) {
        Ok(_) => true,
        // Of a later format, but intact: its writer may have acknowledged it, so it counts.
        Err(RecordFault::Unsupported) => false,
        Err(_) => return Ok(Found::Nothing),
    };
    let Ok((head_bytes, stored_bytes)) = peek_lengths(bytes) else { return Ok(Found::Nothing) };
    let length = head_bytes + stored_bytes;
    let record = window.at(place.offset, length)?;
    let whole = record.len() == length
        && (!understood
            || Head::decode(place, record).is_ok_and(|head| head.bad_block(&record[head_bytes..]).is_none()));
    let end = place.offset + length as u64;
    Ok(if whole { Found::Whole { end } } else { Found::Damaged { end } })
}

/// The next offset from `from` on at which a record may begin, or the end of the file.
fn next_magic(window: &mut Window<'_>, from: u64) -> io::Result<u64> {
    let mut offset = from;
    loop {
        let bytes = window.at(offset, WINDOW_BYTES)?;
        if bytes.len() < HEAD_FIXED_BYTES {
            return Ok(window.file_bytes);
        }
        let here = bytes[MAGIC_AT..].windows(MAGIC.len()).position(|four| four == MAGIC);
        if let Some(position) = here {
            return Ok(offset + position as u64);
        }
        offset += (bytes.len() - MAGIC_AT - MAGIC.len() + 1) as u64;
    }
}

/// A stretch of the file in memory.
struct Window<'a> {
    file: &'a File,
    start: u64,
    bytes: Vec<u8>,
    file_bytes: u64,
}

impl Window<'_> {
    /// Up to `length` bytes from `offset`: fewer only at the end of the file.
    fn at(&mut self, offset: u64, length: usize) -> io::Result<&[u8]> {
        let length = self.file_bytes.saturating_sub(offset).min(length as u64) as usize;
        let held = offset.checked_sub(self.start).map(|from| from as usize);
        if let Some(from) = held.filter(|from| from + length <= self.bytes.len()) {
            return Ok(&self.bytes[from..from + length]);
        }
        let fill = self.file_bytes.saturating_sub(offset).min(WINDOW_BYTES.max(length) as u64) as usize;
        self.bytes.resize(fill, 0);
        self.start = offset;
        let mut filled = 0;
        while filled < fill {
            match self.file.read_at(&mut self.bytes[filled..], offset + filled as u64) {
                Ok(0) => break,
                Ok(more) => filled += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.bytes.truncate(filled);
        Ok(&self.bytes[..filled.min(length)])
    }
}

/// What the directory holds.
pub(super) struct Listed {
    /// Files that belong to no segment the catalogue knows.
    pub(super) stray: Vec<String>,
    /// Bytes of the segments it does know.
    pub(super) used_bytes: u64,
}

/// Lists the directory of segments.
pub(super) fn list_files(map: &dyn SegmentMap, disk: &Disk) -> io::Result<Listed> {
    let mut listed = Listed { stray: Vec::new(), used_bytes: 0 };
    for entry in std::fs::read_dir(disk.dir())? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if segment_of_file_name(&name).is_some_and(|id| map.generation(id).is_some()) {
            listed.used_bytes += entry.metadata()?.len();
        } else if name != BALLAST_FILE_NAME {
            tracing::warn!(file = %name, "a file of no known segment; left alone");
            listed.stray.push(name);
        }
    }
    listed.stray.sort();
    Ok(listed)
}

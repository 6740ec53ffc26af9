//! The log floor in segments: the number of catalogue log entries that a start can expect.
//!
//! Batches of records carry the number of log entries that were synced before them, so the floor is as recent
//! as the last sync of a segment. Only segments that this timeline wrote count. The newest files are read
//! near their ends, where each batch is that was synced before the last acknowledged write.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use mlgw_common::ids::SegmentId;
use mlgw_common::limits::MIB;
use mlgw_common::{Incarnation, regular};

use super::dirs::SegmentDirs;
use super::file_names::{segment_file_name, segment_of_file_name};
use super::header::header_of;
use super::scan::SegmentScan;

/// Maximum number of files to read by each criterion: there is one open segment per class, and one of each
/// class may have been sealed recently.
const FILES_MAX: usize = 8;
/// Bytes to read of each file: at least two batches of the largest chunks.
const TAIL_BYTES: u64 = 4 * MIB;

/// Returns the highest floor in the newest hot segments that `incarnation` wrote; 0 if there is none.
///
/// # Errors
/// When the directory or a file cannot be read.
pub fn log_floor(dirs: &SegmentDirs, incarnation: Incarnation) -> io::Result<u64> {
    let mut floor = 0;
    for path in newest(dirs)? {
        let (length, header) = match header_of(&path) {
            // Removed since it was listed, or not a regular file.
            Err(_) if regular::check(&path).is_err() => continue,
            found => found?,
        };
        let Some(header) = header.ok().filter(|header| header.incarnation == incarnation) else { continue };
        let from = length.saturating_sub(TAIL_BYTES);
        let scan = SegmentScan::new(regular::open(&path)?, header.id, header.seed, from)?;
        scan.survey(&mut |record| {
            floor = floor.max(record.head.as_ref().and_then(|head| head.floor).unwrap_or(0));
        })?;
    }
    Ok(floor)
}

/// Returns the segment files of the hot tier that were modified last, and those that were created last: in a
/// copied directory the modification times are those of the copy.
fn newest(dirs: &SegmentDirs) -> io::Result<Vec<PathBuf>> {
    let mut files = segments_in(dirs.hot())?;
    files.sort_unstable();
    let mut newest: Vec<SegmentId> = files.iter().rev().take(FILES_MAX).map(|&(_, id)| id).collect();
    files.sort_unstable_by_key(|&(_, id)| Reverse(id));
    newest.extend(files.into_iter().take(FILES_MAX).map(|(_, id)| id));
    newest.sort_unstable();
    newest.dedup();
    Ok(newest.into_iter().map(|id| dirs.hot().join(segment_file_name(id))).collect())
}

/// Returns the segments whose files are in a directory, with the modification times of the files.
fn segments_in(dir: &Path) -> io::Result<Vec<(SystemTime, SegmentId)>> {
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut files = Vec::new();
    for entry in entries {
        let entry = entry?;
        if let Some(id) = entry.file_name().to_str().and_then(segment_of_file_name) {
            files.push((entry.metadata()?.modified()?, id));
        }
    }
    Ok(files)
}

/// Returns chunks in segments of `incarnation`, in all local tiers, that `named` (segment and offset) does
/// not contain and that were written when the log had at least `entries` entries less one batch: bucket and
/// key, each once, sorted.
///
/// # Errors
/// When a directory or a file cannot be read.
pub fn unnamed_chunks_after(
    dirs: &SegmentDirs,
    incarnation: Incarnation,
    entries: u64,
    named: &HashSet<(u64, u64)>,
) -> io::Result<Vec<(u64, String)>> {
    let mut keys = BTreeSet::new();
    for dir in dirs.all() {
        for (_, id) in segments_in(dir)? {
            let path = dir.join(segment_file_name(id));
            let Ok((length, Ok(header))) = header_of(&path) else { continue };
            let scan = |from| SegmentScan::new(regular::open(&path)?, header.id, header.seed, from);
            let is_late = |floor: Option<u64>| floor.is_some_and(|floor| floor + 1 >= entries);
            let mut ends_late = false;
            scan(length.saturating_sub(TAIL_BYTES))?.survey(&mut |record| {
                ends_late |= is_late(record.head.as_ref().and_then(|head| head.floor));
            })?;
            if header.incarnation != incarnation || !ends_late {
                continue;
            }
            let mut floor = None;
            scan(0)?.survey(&mut |record| {
                let Some(head) = &record.head else { return };
                floor = head.floor.or(floor);
                if is_late(floor) && !named.contains(&(header.id.0, record.offset)) {
                    keys.insert((head.bucket.0, String::from_utf8_lossy(head.key).into_owned()));
                }
            })?;
        }
    }
    Ok(keys.into_iter().collect())
}

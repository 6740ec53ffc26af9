//! Ownership marks of segment directories: the server, and its timeline, that owns each.
//!
//! A mark is the file `owner` of a directory, a line `mlgw-owner 1 CRC IDENTITY`. A start reads it before it
//! changes anything in a directory. A directory of another server, or of another timeline, is refused and
//! stays untouched. A directory without a mark is marked if it agrees with the catalogue: no file in it
//! contradicts a record, and some file agrees with one unless the catalogue expects no file there. The start
//! that marks a directory removes nothing from it.
//!
//! A mark alone does not prove that a directory is the right one: a start before a disk was mounted may have
//! marked the mount point. A marked directory without any segment is refused where the catalogue expects
//! some, unless the mark ends with `incomplete`, which adopting the directory writes.
//!
//! A node with peers starts without a directory that has none of the expected segments, and leaves it as it
//! is: other nodes have copies. It is used once it is the right one, or was replaced ([`super::directory`]).
//!
//! The mark is written under another name, synced, renamed, and the directory synced: a crash leaves no mark
//! or a complete one, and the next start checks again.

mod adopt;

pub use adopt::{AdoptedDirectory, adopt, check_marks};

use std::io;
use std::path::{Path, PathBuf};

use mlgw_common::ids::SegmentId;
use mlgw_common::{Identity, Kinship, Lineage, SegmentTier, Timestamp, regular};
use mlgw_formats::schema::{SegmentRecord, SegmentState};

use super::dirs::SegmentDirs;
use super::file_names::{segment_file_name, segment_of_file_name};
use super::header::{header_of, is_header_of};
use super::map::SegmentMap;
use super::mark_file::{
    DirectoryMark, MARK_FILE_NAME, has_segments, mark_of, read_mark, store_mark, write_mark,
};
use super::options::{HotOptions, MissingSegments};
use super::scan::SegmentScan;
use mlgw_formats::segment_header::{HeaderFault, SEGMENT_HEADER_BYTES, SegmentHeader};

/// A segment directory cannot be used. Nothing in it was changed.
#[derive(Debug, thiserror::Error)]
pub enum MarkError {
    /// The mark names another server.
    #[error(
        "{dir} belongs to the server {found}; this server is {own}. Nothing was changed; correct hot.dir \
         and cold.dirs"
    )]
    Foreign {
        /// The directory.
        dir: PathBuf,
        /// The identity in its mark.
        found: Identity,
        /// Identity of this server.
        own: Identity,
    },
    /// The mark names an earlier timeline of this server, which may still run elsewhere.
    #[error(
        "{dir} belongs to {found}, an earlier timeline of this server: if no other server uses it, run \
         `mlgw store repair --adopt {dir}` to verify and adopt it"
    )]
    Earlier {
        /// The directory.
        dir: PathBuf,
        /// The identity in its mark.
        found: Identity,
    },
    /// The mark is not readable.
    #[error(
        "the mark in {dir} is damaged: run `mlgw store repair --adopt {dir}` to verify and mark the directory"
    )]
    Damaged {
        /// The directory.
        dir: PathBuf,
    },
    /// The directory has no mark, and a file in it does not match the catalogue.
    #[error(
        "{dir} has no mark, and {file} in it does not belong to this server ({why}): mount the right disk; \
         if only some files are foreign, run `mlgw store repair --adopt {dir}` to list them"
    )]
    Disagrees {
        /// The directory.
        dir: PathBuf,
        /// The file.
        file: String,
        /// The difference.
        why: String,
    },
    /// The directory has none of the segments that the catalogue expects there.
    #[error(
        "{dir} has none of the {segments} segments that belong there (the first is {first}): mount its \
         disk; if its data is lost, run `mlgw store repair --adopt {dir}` to accept it as it is, or set \
         cold.start_without_missing = true to accept every cold directory as it is"
    )]
    Empty {
        /// The directory.
        dir: PathBuf,
        /// Number of referenced segments that are in no directory.
        segments: usize,
        /// The first missing segment.
        first: SegmentId,
    },
    /// The disk failed.
    #[error("{dir}: {source}")]
    Io {
        /// The directory.
        dir: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// Source of the records that segment files are compared with.
pub(super) trait SegmentRecords {
    /// Returns the record of a segment.
    fn record(&self, id: SegmentId) -> io::Result<Option<SegmentRecord>>;

    /// Returns the referenced segments of a tier.
    fn expected(&self, tier: SegmentTier) -> io::Result<Vec<SegmentId>>;
}

/// The result of checking a directory that a start may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MarkVerdict {
    /// The directory has this server's mark.
    Marked,
    /// The directory has no mark and agrees with the catalogue: it is to be marked.
    Agrees,
}

/// Time at which a start removes remains, such as files of removed segments, from a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DirectorySweep {
    /// This start removes them.
    Now,
    /// This start marks the directory, and the next one removes them.
    NextStart,
    /// The directory is not used: it has none of the segments that belong there.
    Unused,
}

impl From<MarkVerdict> for DirectorySweep {
    fn from(verdict: MarkVerdict) -> Self {
        match verdict {
            MarkVerdict::Marked => Self::Now,
            MarkVerdict::Agrees => Self::NextStart,
        }
    }
}

/// Checks every directory of a start, and only then marks those without a mark. Returns for each, in the
/// order of [`SegmentDirs::all`], if files may be removed from it. Empty cold directories are accepted if
/// `missing` segments are.
///
/// # Errors
/// The fault of the first directory that is not this server's.
pub(super) fn check_and_mark(
    dirs: &SegmentDirs,
    records: &dyn SegmentRecords,
    lineage: &Lineage,
    missing: MissingSegments,
) -> Result<Vec<DirectorySweep>, MarkError> {
    check_and_mark_by(dirs, lineage, |tier, dir| {
        let verdict = check_directory(dir, dirs, tier, records, lineage, missing)?;
        Ok(DirectorySweep::from(verdict))
    })
}

/// Marks the directories without a mark, after `check` has accepted each.
fn check_and_mark_by(
    dirs: &SegmentDirs,
    lineage: &Lineage,
    check: impl Fn(SegmentTier, &Path) -> Result<DirectorySweep, MarkError>,
) -> Result<Vec<DirectorySweep>, MarkError> {
    let checked = dirs.tiers().map(|(tier, dir)| check(tier, dir)).collect::<Result<Vec<_>, _>>()?;
    for (dir, sweep) in dirs.all().zip(&checked) {
        if *sweep == DirectorySweep::NextStart {
            let io = |source| MarkError::Io { dir: dir.to_owned(), source };
            write_mark(dir, &lineage.own).map_err(io)?;
            tracing::info!(dir = %dir.display(), owner = %lineage.own, "marked a segment directory");
        }
    }
    Ok(checked)
}

/// Like [`check_and_mark`], for the directories of a tier that is being opened. Without an identity nothing
/// is marked. A node with peers leaves a directory without expected segments out, unless only that directory
/// can have what was appended last.
pub(super) fn check_and_mark_all(
    dirs: &SegmentDirs,
    map: &dyn SegmentMap,
    options: &HotOptions,
) -> Result<Vec<DirectorySweep>, MarkError> {
    if options.lineage.own == Identity::default() {
        return Ok(dirs.all().map(|_| DirectorySweep::Now).collect());
    }
    let (records, lineage, missing) = (CatalogueRecords(map), &options.lineage, options.missing_segments());
    if options.replication.is_none() {
        return check_and_mark(dirs, &records, lineage, missing);
    }
    let hot_io = |error| MarkError::Io { dir: dirs.hot().to_owned(), source: io::Error::other(error) };
    // Those that this start recovers.
    let has_open = !map.open_segments().map_err(hot_io)?.is_empty();
    check_and_mark_by(dirs, lineage, |tier, dir| {
        match check_directory(dir, dirs, tier, &records, lineage, missing) {
            Err(error @ MarkError::Empty { .. }) if !(has_open && tier == SegmentTier::Hot) => {
                tracing::error!(%error, "a segment directory is not used");
                Ok(DirectorySweep::Unused)
            }
            checked => checked.map(DirectorySweep::from),
        }
    })
}

/// Records of a running catalogue.
struct CatalogueRecords<'m>(&'m dyn SegmentMap);

impl SegmentRecords for CatalogueRecords<'_> {
    fn record(&self, id: SegmentId) -> io::Result<Option<SegmentRecord>> {
        self.0.record(id).map_err(io::Error::other)
    }

    fn expected(&self, tier: SegmentTier) -> io::Result<Vec<SegmentId>> {
        self.0.referenced_segments(tier).map_err(io::Error::other)
    }
}

/// Checks the directory `dir` of a tier, which is one of `dirs`.
pub(super) fn check_directory(
    dir: &Path,
    dirs: &SegmentDirs,
    tier: SegmentTier,
    records: &dyn SegmentRecords,
    lineage: &Lineage,
    missing: MissingSegments,
) -> Result<MarkVerdict, MarkError> {
    let io = |source| MarkError::Io { dir: dir.to_owned(), source };
    let mark = match mark_of(dir) {
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            return Err(MarkError::Damaged { dir: dir.to_owned() });
        }
        mark => mark.map_err(io)?,
    };
    let may_be_missing = missing == MissingSegments::Accepted && tier != SegmentTier::Hot;
    let (verdict, has_expected_segments) = match mark.map(|mark| (lineage.kinship(&mark.owner), mark)) {
        Some((Kinship::Own, mark)) => {
            (MarkVerdict::Marked, mark.incomplete || has_segments(dir).map_err(io)?)
        }
        Some((_, mark)) => return Err(foreign_mark_error(dir, mark.owner, lineage)),
        None => {
            let compared = compare(dir, records, lineage).map_err(io)?;
            compared.verdict(dir)?;
            (MarkVerdict::Agrees, compared.agreeing > 0)
        }
    };
    if has_expected_segments || may_be_missing {
        return Ok(verdict);
    }
    let missing = missing_in(dirs, tier, records).map_err(io)?;
    match missing.first() {
        Some(&first) => Err(MarkError::Empty { dir: dir.to_owned(), segments: missing.len(), first }),
        None => Ok(verdict),
    }
}

/// Returns the error for a directory with the mark of `found`, which is not this server's identity.
fn foreign_mark_error(dir: &Path, found: Identity, lineage: &Lineage) -> MarkError {
    let dir = dir.to_owned();
    match lineage.kinship(&found) {
        Kinship::Earlier => MarkError::Earlier { dir, found },
        Kinship::Own | Kinship::Foreign => MarkError::Foreign { dir, found, own: lineage.own },
    }
}

/// True if a directory is marked by another server, or by a timeline that this one does not descend from.
/// Nothing in such a directory is changed, whatever repair is requested.
pub(super) fn is_foreign(dir: &Path, lineage: &Lineage) -> bool {
    read_mark(dir).ok().flatten().is_some_and(|found| lineage.kinship(&found) == Kinship::Foreign)
}

/// Result of comparing the files of a directory with the catalogue.
#[derive(Default)]
pub(super) struct DirectoryComparison {
    /// Number of files that match their record.
    pub(super) agreeing: usize,
    /// Files that do not match their record, with the difference.
    pub(super) disagreeing: Vec<(SegmentId, String)>,
    /// Files without a record whose header does not name this server.
    pub(super) unknown: Vec<SegmentId>,
}

impl DirectoryComparison {
    fn verdict(&self, dir: &Path) -> Result<(), MarkError> {
        let disagrees = |id: SegmentId, why: String| MarkError::Disagrees {
            dir: dir.to_owned(),
            file: segment_file_name(id),
            why,
        };
        if let Some((id, why)) = self.disagreeing.first() {
            return Err(disagrees(*id, why.clone()));
        }
        match self.unknown.first() {
            // Accepted beside files that agree: a segment that was removed before a crash.
            Some(&id) if self.agreeing == 0 => {
                Err(disagrees(id, "the catalogue has no record of any segment in this directory".to_owned()))
            }
            _ => Ok(()),
        }
    }
}

/// Compares every segment file in `dir` with its record.
pub(super) fn compare(
    dir: &Path,
    records: &dyn SegmentRecords,
    lineage: &Lineage,
) -> io::Result<DirectoryComparison> {
    let mut compared = DirectoryComparison::default();
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        // An interrupted first start.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(compared),
        Err(error) => return Err(error),
    };
    for entry in entries {
        let entry = entry?;
        let Some(id) = entry.file_name().to_str().and_then(segment_of_file_name) else { continue };
        let (length, header) = header_of(&entry.path())?;
        match records.record(id)? {
            Some(record) => match difference(&entry.path(), &record, length, header)? {
                None => compared.agreeing += 1,
                Some(why) => compared.disagreeing.push((id, why)),
            },
            None if header.is_ok_and(|of| of.id == id && lineage.has_written(of.cluster, of.incarnation)) => {
            }
            None => compared.unknown.push(id),
        }
    }
    compared.disagreeing.sort();
    compared.unknown.sort();
    Ok(compared)
}

/// Returns the difference between a file and its record; `None` if they agree.
fn difference(
    path: &Path,
    record: &SegmentRecord,
    length: u64,
    header: Result<SegmentHeader, HeaderFault>,
) -> io::Result<Option<String>> {
    let sealed = record.state() == SegmentState::Sealed;
    let kept_bytes = if sealed { record.length } else { record.marked };
    Ok(match header {
        // Power failed before the header reached the disk.
        Err(_) if kept_bytes < SEGMENT_HEADER_BYTES => None,
        Err(fault) => Some(fault.to_string()),
        Ok(header) if !is_header_of(&header, record) || is_made_later(path, record, &header)? => {
            Some(format!("it is segment {}, created at {}, of {}", header.id, header.created, header.cluster))
        }
        Ok(_) if length < kept_bytes => Some(format!("{length} bytes of {kept_bytes}")),
        Ok(_) => None,
    })
}

/// True if a file of format 1 was created later than the segment of its record, by another server with equal
/// ids. The first record decides where the header alone does not: it is older than a segment whose creation
/// took long.
fn is_made_later(path: &Path, record: &SegmentRecord, header: &SegmentHeader) -> io::Result<bool> {
    if !header.is_inconclusive(Timestamp(record.created_ms)) {
        return Ok(false);
    }
    let mut scan = SegmentScan::new(regular::open(path)?, header.id, header.seed, 0)?.with_small_window();
    let first = scan.next()?.and_then(|record| record.head.map(|head| head.written));
    Ok(first.is_some_and(|written| written.0 > record.created_ms))
}

/// Returns the segments that belong to a tier and are in no directory.
fn missing_in(
    dirs: &SegmentDirs,
    tier: SegmentTier,
    records: &dyn SegmentRecords,
) -> io::Result<Vec<SegmentId>> {
    let mut missing = records.expected(tier)?;
    missing.retain(|&id| !dirs.path(id, tier).exists());
    missing.sort();
    Ok(missing)
}

#[cfg(test)]
mod tests;

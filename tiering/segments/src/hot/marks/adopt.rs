//! Checks and adoption of segment directories by offline commands: `mlgw store check` reports wrong marks,
//! `mlgw store repair --adopt` replaces them.
//!
//! Adopting a directory reads every segment in it and marks the directory if all of them are this server's. A
//! directory with another server's mark, or with files that do not match their records, is refused and stays
//! as it is. A crash leaves the directory as it was, or marked.

use std::io;
use std::path::Path;

use mlgw_common::ids::SegmentId;
use mlgw_common::{Lineage, SegmentTier, regular};
use mlgw_formats::schema::{Replica, SegmentRecord, SegmentState};
use mlgw_metadata::offline::{CheckFinding, FindingKind, Offline, ProgressCallback};

use super::{
    DirectoryMark, MARK_FILE_NAME, MarkError, SegmentRecords, check_directory, foreign_mark_error,
    is_foreign, is_made_later, missing_in, read_mark, store_mark,
};
use crate::hot::check::is_replicated;
use crate::hot::dirs::SegmentDirs;
use crate::hot::file::set_aside;
use crate::hot::file_names::segment_of_file_name;
use crate::hot::header::{header_of, is_header_of};
use crate::hot::options::MissingSegments;
use crate::hot::scan::SegmentScan;
use mlgw_formats::segment_header::SEGMENT_HEADER_BYTES;

/// The result of adopting a directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AdoptedDirectory {
    /// Number of segments that match their records.
    pub verified: u64,
    /// Segment files without a record in the catalogue. The next start removes those that this server wrote,
    /// and sets the others aside.
    pub unknown: Vec<String>,
    /// Referenced segments of the directory's tier that are in no directory.
    pub missing: Vec<SegmentId>,
}

impl SegmentRecords for Offline {
    fn record(&self, id: SegmentId) -> io::Result<Option<SegmentRecord>> {
        Ok(self.facts.segments.get(&id.0).cloned())
    }

    fn expected(&self, tier: SegmentTier) -> io::Result<Vec<SegmentId>> {
        let referenced = self.facts.usage.iter().filter(|(_, usage)| usage.bytes > 0);
        let records = referenced.filter_map(|(id, _)| self.facts.segments.get(id));
        let is_in_tier = |replica: &Replica| replica.tier() == Ok(tier);
        let here = records.filter(|record| record.replica_of(self.node).is_some_and(is_in_tier));
        Ok(here.map(SegmentRecord::segment_id).collect())
    }
}

/// Reports directories that a start would refuse.
pub fn check_marks(
    dirs: &SegmentDirs,
    catalogue: &Offline,
    lineage: &Lineage,
    findings: &mut Vec<CheckFinding>,
) {
    for (tier, dir) in dirs.tiers() {
        if let Err(error) = check_directory(dir, dirs, tier, catalogue, lineage, MissingSegments::Refused) {
            let is_replicated = |segment: &SegmentId| is_replicated(catalogue, segment.0);
            let kind = match (&error, catalogue.expected(tier)) {
                (MarkError::Empty { .. }, Ok(missing)) if missing.iter().all(is_replicated) => {
                    FindingKind::Replica
                }
                (MarkError::Empty { .. }, _) => FindingKind::SegmentMissing,
                _ => FindingKind::Foreign,
            };
            findings.push(CheckFinding::damage(kind, dir.display(), error));
        }
    }
}

/// Maximum number of disagreeing files that an error names.
const NAMED_MAX: usize = 20;

/// Verifies the directory `dir`, which must be one of `dirs`, and marks it.
///
/// # Errors
/// When `dir` is none of `dirs` or not this server's, or the disk fails. Nothing was changed then.
pub fn adopt(
    dir: &Path,
    dirs: &SegmentDirs,
    catalogue: &Offline,
    lineage: &Lineage,
    watch: ProgressCallback<'_>,
) -> io::Result<AdoptedDirectory> {
    let is_same =
        |of: &Path| of == dir || matches!((of.canonicalize(), dir.canonicalize()), (Ok(a), Ok(b)) if a == b);
    let Some((tier, dir)) = dirs.tiers().find(|(_, of)| is_same(of)) else {
        let what = "it is neither hot.dir nor one of cold.dirs in the configuration";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    };
    if is_foreign(dir, lineage) {
        let found = read_mark(dir)?.unwrap_or_default();
        return Err(io::Error::other(foreign_mark_error(dir, found, lineage)));
    }
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        files.extend(segment_of_file_name(&name).map(|id| (id, name)));
    }
    files.sort();
    let (mut adopted, mut disagreeing) = (AdoptedDirectory::default(), Vec::new());
    for (done, (id, name)) in files.iter().enumerate() {
        watch("verifying segments", done as u64, files.len() as u64);
        match catalogue.record(*id)? {
            Some(record) => match foreign_segment(&dir.join(name), &record)? {
                None => adopted.verified += 1,
                Some(why) => disagreeing.push(format!("{name} ({why})")),
            },
            None => adopted.unknown.push(name.clone()),
        }
    }
    if let Some(refused) = refusal(&adopted, &disagreeing) {
        return Err(io::Error::other(refused));
    }
    adopted.missing = missing_in(dirs, tier, catalogue)?;
    // A mark that is not a regular file cannot be replaced by a rename.
    if std::fs::symlink_metadata(dir.join(MARK_FILE_NAME)).is_ok_and(|found| !found.is_file()) {
        set_aside(dir, MARK_FILE_NAME)?;
    }
    let incomplete = adopted.verified == 0 && !adopted.missing.is_empty();
    store_mark(dir, DirectoryMark { owner: lineage.own, incomplete })?;
    Ok(adopted)
}

/// Returns the reason why a directory with these files is not this server's; `None` if it is.
fn refusal(adopted: &AdoptedDirectory, disagreeing: &[String]) -> Option<String> {
    if !disagreeing.is_empty() {
        let more = disagreeing.len().saturating_sub(NAMED_MAX);
        let more = if more == 0 { String::new() } else { format!(", and {more} more") };
        let named = disagreeing[..disagreeing.len().min(NAMED_MAX)].join(", ");
        return Some(format!(
            "these files are not the segments that the catalogue has under their names: {named}{more}. \
             Nothing was changed. If the directory is the right one, move them elsewhere and adopt it again"
        ));
    }
    let unknown = adopted.unknown.first().filter(|_| adopted.verified == 0)?;
    Some(format!(
        "the catalogue has no record of any segment in it (the first is {unknown}): it belongs to another \
         server. Nothing was changed"
    ))
}

/// Returns the reason why a segment's file is not the one of its record; `None` if it is. A short or damaged
/// file is still this server's.
fn foreign_segment(path: &Path, record: &SegmentRecord) -> io::Result<Option<String>> {
    let (length, header) = header_of(path)?;
    match header {
        Ok(header) if !is_header_of(&header, record) || is_made_later(path, record, &header)? => Ok(Some(
            format!("it is segment {}, created at {}, of {}", header.id, header.created, header.cluster),
        )),
        _ if length <= SEGMENT_HEADER_BYTES || has_valid_records(path, record)? => Ok(None),
        Ok(_) => Ok(Some("none of its records belongs to this segment".to_owned())),
        Err(fault) => Ok(Some(fault.to_string())),
    }
}

/// True if a file has a record that verifies under the segment's seed, or is expected to have none.
fn has_valid_records(path: &Path, record: &SegmentRecord) -> io::Result<bool> {
    let kept_bytes = if record.state() == SegmentState::Sealed { record.length } else { record.marked };
    if kept_bytes <= SEGMENT_HEADER_BYTES {
        return Ok(true);
    }
    let scan = SegmentScan::new(regular::open(path)?, record.segment_id(), record.seed(), 0)?;
    Ok(scan.survey(&mut |_| {})?.records > 0)
}

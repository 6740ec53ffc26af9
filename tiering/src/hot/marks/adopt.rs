//! Marks seen from outside a running server: reported by `mlgw store check`, taken by `mlgw store repair --adopt`.
//!
//! To adopt a directory is to read every segment in it through, set aside what is not this server's, and mark it.
//! Nothing is removed. A crash leaves the directory as it was, or with some files set aside; adopting again goes on.

use std::fs::File;
use std::io;
use std::path::Path;

use mlgw_common::ids::SegmentId;
use mlgw_common::{Lineage, regular};
use mlgw_metadata::offline::{Finding, Kind, Offline, Watch};
use mlgw_metadata::schema::{SegmentRecord, SegmentState};

use super::{MarkError, Records, difference, header_of, judge, missing, write_mark};
use crate::hot::dirs::SegmentDirs;
use crate::hot::file::{segment_of_file_name, set_aside};
use crate::hot::header::SEGMENT_HEADER_BYTES;
use crate::hot::scan::Scan;

/// What adopting a directory found in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Adopted {
    /// Segments that are this server's.
    pub verified: u64,
    /// Files that are not, under the names that they have now.
    pub set_aside: Vec<String>,
    /// Segments with bytes of objects that belong to the directory's tier and are in no directory.
    pub missing: Vec<SegmentId>,
}

impl Records for Offline {
    fn record(&self, id: SegmentId) -> io::Result<Option<SegmentRecord>> {
        Ok(self.known.segments.get(&id.0).cloned())
    }

    fn expected(&self, tier: u32) -> io::Result<Vec<SegmentId>> {
        let referenced = self.known.usage.iter().filter(|(_, usage)| usage.bytes > 0);
        let records = referenced.filter_map(|(id, _)| self.known.segments.get(id));
        let here = records.filter(|record| record.summary().tier == tier);
        Ok(here.map(SegmentRecord::segment_id).collect())
    }
}

/// Reports directories that a start would refuse.
pub fn check_marks(dirs: &SegmentDirs, catalogue: &Offline, lineage: &Lineage, findings: &mut Vec<Finding>) {
    for (tier, dir) in dirs.tiers() {
        if let Err(error) = judge(dir, (dirs, tier), catalogue, lineage, false) {
            let kind =
                if matches!(error, MarkError::Empty { .. }) { Kind::SegmentMissing } else { Kind::Foreign };
            findings.push(Finding::damage(kind, dir.display(), error));
        }
    }
}

/// Verifies the directory `dir`, which is one of `dirs`, and marks it.
///
/// # Errors
/// When `dir` is none of `dirs`, or the disk fails.
pub fn adopt(
    dir: &Path,
    dirs: &SegmentDirs,
    catalogue: &Offline,
    lineage: &Lineage,
    watch: Watch<'_>,
) -> io::Result<Adopted> {
    let Some((tier, _)) = dirs.tiers().find(|(_, of)| *of == dir) else {
        let what = "it is neither hot.dir nor one of cold.dirs of this configuration";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    };
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        files.extend(segment_of_file_name(&name).map(|id| (id, name)));
    }
    files.sort();
    let mut adopted = Adopted::default();
    for (done, (id, name)) in files.iter().enumerate() {
        watch("verifying segments", done as u64, files.len() as u64);
        let path = dir.join(name);
        let (length, header) = header_of(&path)?;
        let ours = match catalogue.record(*id)? {
            Some(record) => difference(&record, length, header).is_none() && holds_records(&path, &record)?,
            None => header.is_ok_and(|of| of.id == *id && lineage.wrote(of.cluster, of.incarnation)),
        };
        if ours {
            adopted.verified += 1;
        } else {
            adopted.set_aside.push(set_aside(dir, name)?);
        }
    }
    File::open(dir)?.sync_all()?;
    adopted.missing = missing(dirs, tier, catalogue)?;
    write_mark(dir, &lineage.own)?;
    Ok(adopted)
}

/// Whether a file has a record that verifies under the seed of its segment, unless it is to have none.
fn holds_records(path: &Path, record: &SegmentRecord) -> io::Result<bool> {
    let kept_bytes = if record.state() == SegmentState::Sealed { record.length } else { record.marked };
    if kept_bytes <= SEGMENT_HEADER_BYTES {
        return Ok(true);
    }
    let scan = Scan::new(regular::open(path)?, record.segment_id(), record.seed(), 0)?;
    Ok(scan.survey(&mut |_| {})?.records > 0)
}

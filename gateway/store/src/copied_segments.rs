//! The segment files of a backup: those of this node, which stay open until they are copied, and those that
//! were read from other nodes.
//!
//! Nothing here is durable before the list of contents of the copy.

use crate::StoreVerbError;
use crate::location::StoreLocation;
use mlgw_common::{SegmentId, regular};
use mlgw_metadata::copy::{Copier, CopyError};
use mlgw_metadata::offline::ProgressCallback;
use mlgw_segments::hot::{segment_file_name, segment_of_file_name};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Seek as _;
use std::path::Path;

/// Opens every segment of all tiers. An open file can be removed, but its bytes stay readable.
pub(super) fn open_segments(source: &StoreLocation) -> Result<BTreeMap<SegmentId, File>, StoreVerbError> {
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

/// Adds the open files of segments to a copy.
pub(super) fn add_segments(
    copier: &mut Copier,
    segments: BTreeMap<SegmentId, File>,
    watch: ProgressCallback<'_>,
) -> Result<(), CopyError> {
    let total = segments.values().filter_map(|file| file.metadata().ok()).map(|found| found.len()).sum();
    let mut done = 0;
    for (id, mut file) in segments {
        copier.add_open(&mut file, u64::MAX, &segment_name(id), &mut |bytes| {
            done += bytes;
            watch("copying segments", done, total);
        })?;
    }
    Ok(())
}

/// Adds the file of a segment that was read from other nodes.
pub(super) fn add_segment(
    mut copier: Copier,
    segment: SegmentId,
    mut file: &File,
) -> Result<Copier, StoreVerbError> {
    let name = segment_name(segment);
    file.rewind().map_err(StoreVerbError::io(&name))?;
    let mut file = file.try_clone().map_err(StoreVerbError::io(&name))?;
    copier.add_open(&mut file, u64::MAX, &name, &mut |_| {})?;
    Ok(copier)
}

/// Path of a segment in a copy.
fn segment_name(segment: SegmentId) -> String {
    format!("segments/{}", segment_file_name(segment))
}

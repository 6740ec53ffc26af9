//! Offline repair of names and headers of segment files. Records are never touched.
//!
//! A file gets the name of a segment only if it matches the catalogue's record of that segment. Nothing is
//! changed in a directory that has another server's mark.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use mlgw_common::{Lineage, Timestamp, regular};
use mlgw_metadata::offline::Offline;

use super::dirs::SegmentDirs;
use super::file_names::{segment_file_name, segment_of_file_name};
use super::header::is_header_of;
use super::map::NewSegment;
use super::marks::is_foreign;
use super::scan::SegmentScan;
use mlgw_formats::segment_header::{SEGMENT_HEADER_BYTES, SegmentHeader};

/// Extension of a file while it is renamed; an interrupted repair continues with it.
const MOVING: &str = ".moving";

/// Renames segment files that have each other's names, by their headers, and returns a description of each
/// change.
///
/// # Errors
/// When a directory cannot be read or written.
pub fn repair_names(dirs: &SegmentDirs, catalogue: &Offline, lineage: &Lineage) -> io::Result<Vec<String>> {
    let own = dirs.all().filter(|dir| !is_foreign(dir, lineage));
    let repaired = own.map(|dir| repair_names_in(dir, catalogue)).collect::<io::Result<Vec<_>>>()?;
    Ok(repaired.concat())
}

fn repair_names_in(dir: &Path, catalogue: &Offline) -> io::Result<Vec<String>> {
    let is_recorded = |of: &SegmentHeader| {
        catalogue.facts.segments.get(&of.id.0).is_some_and(|record| is_header_of(of, record))
    };
    let mut moving = Vec::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let segment = segment_of_file_name(name.trim_end_matches(MOVING));
        let header = segment.and_then(|_| header_of(&path)).filter(is_recorded);
        let Some(header) = header else { continue };
        let right = segment_file_name(header.id);
        if name != right {
            moving.push((path, name, right));
        }
    }
    // A file that already has its right name keeps it.
    let names: BTreeSet<String> = moving.iter().map(|(_, name, _)| name.clone()).collect();
    moving.retain(|(_, _, right)| names.contains(right) || !dir.join(right).exists());
    for (path, name, right) in &moving {
        if !name.ends_with(MOVING) {
            fs::rename(path, dir.join(format!("{right}{MOVING}")))?;
        }
    }
    let mut repaired = Vec::new();
    for (_, name, right) in moving {
        let (from, to) = (dir.join(format!("{right}{MOVING}")), dir.join(&right));
        // Two files claim to be the same segment: this needs a manual decision.
        if !to.exists() && from.exists() {
            fs::rename(from, to)?;
            repaired.push(format!("{name} contains {right} and was renamed"));
        }
    }
    File::open(dir)?.sync_all()?;
    Ok(repaired)
}

/// Rewrites damaged headers of segments whose records verify under the segment's seed, and returns a
/// description of each change.
///
/// # Errors
/// When a file cannot be read or written.
pub fn repair_headers(dirs: &SegmentDirs, catalogue: &Offline, lineage: &Lineage) -> io::Result<Vec<String>> {
    let mut mended = Vec::new();
    for record in catalogue.facts.segments.values() {
        let Ok(tier) = record.tier_for(catalogue.node) else { continue };
        let path = dirs.path(record.segment_id(), tier);
        let is_foreign = path.parent().is_some_and(|dir| is_foreign(dir, lineage));
        if is_foreign || !path.exists() || header_of(&path).is_some() {
            continue;
        }
        let file = regular::open_with(OpenOptions::new().read(true).write(true), &path)?;
        let (id, seed, created) = (record.segment_id(), record.seed(), Timestamp(record.created_ms));
        if SegmentScan::new(file.try_clone()?, id, seed, 0)?.survey(&mut |_| {})?.records == 0 {
            continue;
        }
        let header = SegmentHeader::of(&NewSegment { id, seed, created }, record.class(), &lineage.own);
        file.write_all_at(&header.encode(), 0)?;
        file.sync_all()?;
        mended.push(format!("{}: its header was rewritten", path.display()));
    }
    Ok(mended)
}

fn header_of(path: &Path) -> Option<SegmentHeader> {
    let mut bytes = [0; SEGMENT_HEADER_BYTES as usize];
    regular::open(path).and_then(|file| file.read_exact_at(&mut bytes, 0)).ok()?;
    SegmentHeader::decode(&bytes).ok()
}

//! Salvage: lists the bodies in segment files without a catalogue.
//!
//! Every record contains its bucket (by number), key, body, part, offset in the body and time, and verifies
//! on its own. It does not contain the bucket's name, the object's length, headers, tags or ETag, nor if the
//! object was acknowledged, deleted or overwritten. So the list has everything that was written, not the
//! objects that existed. Nothing is written.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;

use mlgw_common::Timestamp;
use mlgw_common::ids::{BodyId, Generation, SegmentId, SegmentSeed};
use mlgw_common::regular;
use mlgw_metadata::offline::ProgressCallback;

use super::dirs::SegmentDirs;
use super::file_names::{segment_of_aside_name, segment_of_file_name};
use super::scan::SegmentScan;
use mlgw_formats::segment_header::{SEGMENT_HEADER_BYTES, SegmentHeader};

/// A body, or a part of one, as far as its records were found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SalvagedBody {
    /// The bucket's number.
    pub bucket: u64,
    /// The key.
    pub key: String,
    /// The body.
    pub body: BodyId,
    /// The part if the body was uploaded in parts; otherwise 0.
    pub part: u16,
    /// Bytes that were found and verify.
    pub bytes: u64,
    /// True if these bytes are contiguous from the first byte on. The body may have been longer.
    pub contiguous: bool,
    /// Time at which the last of the records was written.
    pub written: Timestamp,
}

/// The result of a salvage.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SalvageReport {
    /// The bodies, sorted by bucket, key, body and part.
    pub bodies: Vec<SalvagedBody>,
    /// Number of segments read.
    pub segments: u64,
    /// Number of records that verify.
    pub records: u64,
    /// Bytes of segments outside of records that verify.
    pub damaged_bytes: u64,
    /// Files that could not be read, with the error.
    pub unreadable: Vec<(String, String)>,
}

/// Bucket, key, body and part.
type SalvagedName = (u64, String, BodyId, u16);

#[derive(Default)]
struct SalvagedPieces {
    /// Length of each piece by its first byte.
    lengths: BTreeMap<u64, u64>,
    written: i64,
}

/// Reads all segments in `dirs`. A segment that is in two of them is read once.
///
/// # Errors
/// When a directory cannot be read.
pub fn salvage(dirs: &SegmentDirs, watch: ProgressCallback<'_>) -> io::Result<SalvageReport> {
    let mut found = SalvageReport::default();
    let mut bodies = BTreeMap::<SalvagedName, SalvagedPieces>::new();
    let mut files = Vec::new();
    for entry in dirs.all().map(std::fs::read_dir).collect::<io::Result<Vec<_>>>()?.into_iter().flatten() {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if let Some(id) = segment_of_file_name(&name).or_else(|| segment_of_aside_name(&name)) {
            files.push((id, name, entry.path(), entry.metadata().map_or(0, |metadata| metadata.len())));
        }
    }
    files.sort();
    files.dedup_by(|later, earlier| later.1 == earlier.1);
    let total = files.iter().map(|(_, _, _, bytes)| bytes).sum();
    let mut done = 0;
    for (id, name, path, bytes) in files {
        watch("reading segments", done, total);
        match regular::open(&path).and_then(|file| read(file, id, &mut found, &mut bodies)) {
            Ok(()) => found.segments += 1,
            Err(error) => found.unreadable.push((name, error.to_string())),
        }
        done += bytes;
    }
    found.bodies = bodies.into_iter().map(|(name, pieces)| salvaged_body(name, &pieces)).collect();
    Ok(found)
}

fn read(
    file: File,
    id: SegmentId,
    found: &mut SalvageReport,
    bodies: &mut BTreeMap<SalvagedName, SalvagedPieces>,
) -> io::Result<()> {
    let mut bytes = [0; SEGMENT_HEADER_BYTES as usize];
    // Without a header the id of the file's name and the first generation are assumed, which hold for nearly
    // all segments of format 1.
    let header = std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, 0)
        .ok()
        .and_then(|()| SegmentHeader::decode(&bytes).ok());
    let unstamped = SegmentSeed::unstamped(Generation(1));
    let (id, seed) = header.map_or((id, unstamped), |header| (header.id, header.seed));
    let scanned = SegmentScan::new(file, id, seed, 0)?.survey(&mut |record| {
        let Some(head) = &record.head else { return };
        let key = String::from_utf8_lossy(head.key).into_owned();
        let part = head.part.map_or(0, |part| part.get());
        let pieces = bodies.entry((head.bucket.0, key, head.body, part)).or_default();
        pieces.lengths.insert(head.body_offset, head.logical_bytes as u64);
        pieces.written = pieces.written.max(head.written.0);
    })?;
    found.records += scanned.records;
    found.damaged_bytes += scanned.damaged_bytes;
    Ok(())
}

fn salvaged_body((bucket, key, body, part): SalvagedName, pieces: &SalvagedPieces) -> SalvagedBody {
    let mut end = 0;
    let contiguous = pieces.lengths.iter().all(|(&first, &bytes)| {
        let follows = first == end;
        end = first + bytes;
        follows
    });
    let bytes = pieces.lengths.values().sum();
    SalvagedBody { bucket, key, body, part, bytes, contiguous, written: Timestamp(pieces.written) }
}

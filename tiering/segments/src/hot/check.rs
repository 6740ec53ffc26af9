//! Offline check: compares the segment files of a closed data directory, in all tiers, with the references in
//! its catalogue.
//!
//! Every extent that an object, a version or an upload refers to is read and verified; unreferenced bytes are
//! ignored (they may be remains of writes that were never acknowledged). Nothing is written. Extents are
//! verified in batches, each sorted by position in the files, so memory is bounded and the disk reads
//! forward.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use mlgw_common::ids::{BodyId, BucketId, PartNumber, SegmentId, SegmentSeed};
use mlgw_common::{Timestamp, regular};
use mlgw_formats::schema::{Extent, SegmentRecord, SegmentState};
use mlgw_metadata::offline::{Finding, Kind, Offline, Referenced, Watch};
use mlgw_metadata::store_error::StoreError;

use super::catalogue::{COLD, HOT, UPSTREAM};
use super::dirs::SegmentDirs;
use super::file::{is_copying, segment_file_name, segment_of_file_name};
use super::location::Location;
use super::marks::{MARK_FILE_NAME, MARK_NEW_NAME};
use super::space::BALLAST_FILE_NAME;
use super::verify::{Wrong, verify};
use mlgw_formats::segment_header::{SEGMENT_HEADER_BYTES, SegmentHeader};

/// Extents per verification batch: about 32 MiB of memory.
const BATCH_EXTENTS: usize = 1 << 18;
/// Maximum number of damaged records that are reported individually.
const LISTED_MAX: usize = 10_000;

/// Checks the segments in `dirs` against `catalogue`.
///
/// # Errors
/// When a directory or the catalogue cannot be read at all.
pub fn check_segments(
    dirs: &SegmentDirs,
    catalogue: &Offline,
    findings: &mut Vec<Finding>,
    watch: Watch<'_>,
) -> io::Result<()> {
    let mut check = Check {
        first: findings.len(),
        dirs,
        catalogue,
        findings,
        watch,
        files: HashMap::new(),
        unusable: BTreeMap::new(),
        away: BTreeSet::new(),
        batch: Vec::new(),
        verified_bytes: 0,
        listed: 0,
        total_bytes: catalogue.known.usage.values().map(|usage| usage.bytes).sum(),
    };
    check.files_of_segments();
    check.strays()?;
    let walked = catalogue.each_extent(&mut |referenced| {
        check.take(referenced);
        Ok::<(), StoreError>(())
    });
    check.verify_batch();
    check.summary();
    walked.map_err(|error| io::Error::other(error.0))
}

struct Check<'a> {
    dirs: &'a SegmentDirs,
    catalogue: &'a Offline,
    findings: &'a mut Vec<Finding>,
    watch: Watch<'a>,
    files: HashMap<u64, (File, SegmentSeed)>,
    /// Segments whose file cannot be opened, with the error and the number of extents that refer to them.
    unusable: BTreeMap<u64, (String, u64)>,
    /// Segments at upstreams, which are not checked.
    away: BTreeSet<u64>,
    batch: Vec<Item>,
    verified_bytes: u64,
    total_bytes: u64,
    listed: usize,
    /// Index of this check's first finding; findings about whole segments are inserted there.
    first: usize,
}

/// An extent to verify.
struct Item {
    location: Location,
    bucket: BucketId,
    body: BodyId,
    part: Option<PartNumber>,
    offset: u64,
    key: Box<[u8]>,
}

impl Check<'_> {
    /// Opens the file of every segment and checks its length and header.
    fn files_of_segments(&mut self) {
        for record in self.catalogue.known.segments.values() {
            let referred = self.catalogue.known.usage.get(&record.id).is_some_and(|usage| usage.extents > 0);
            let path = self.path_of(record);
            match regular::open(&path) {
                Ok(file) => {
                    let found = file_fault(&file, record);
                    self.files.insert(record.id, (file, record.seed()));
                    if let Some((kind, what)) = found {
                        self.findings.push(told(referred, kind, &path, what));
                    }
                }
                Err(_) if record.summary().tier == UPSTREAM => {
                    self.away.insert(record.id);
                }
                Err(error) => {
                    let is_there = error.kind() != io::ErrorKind::NotFound;
                    if is_there && !referred && record.state() == SegmentState::Open {
                        // A start reads an open segment to its end and fails without it.
                        let finding = Finding::damage(Kind::SegmentMissing, path.display(), &error);
                        self.findings.push(finding);
                    }
                    self.unusable.insert(record.id, (error.to_string(), 0));
                }
            }
        }
    }

    /// Path at which a segment's file is expected.
    fn path_of(&self, record: &SegmentRecord) -> PathBuf {
        self.dirs.path(record.segment_id(), record.summary().tier)
    }

    /// Reports segment files that the catalogue does not contain, or has in another tier.
    fn strays(&mut self) -> io::Result<()> {
        let dirs = self.dirs;
        dirs.all().try_for_each(|dir| self.strays_in(dir))
    }

    fn strays_in(&mut self, dir: &Path) -> io::Result<()> {
        let mut names = BTreeSet::new();
        match std::fs::read_dir(dir) {
            Ok(entries) => {
                for entry in entries {
                    names.insert(entry?.file_name().to_string_lossy().into_owned());
                }
            }
            // An interrupted first start. If objects refer to its segments, they are reported as missing.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        for name in names {
            let place = dir.join(&name);
            let known = segment_of_file_name(&name).and_then(|id| self.catalogue.known.segments.get(&id.0));
            match segment_of_file_name(&name) {
                Some(_) if known.is_some_and(|record| self.path_of(record) == place) => {}
                Some(_) if known.is_some() => {
                    let what = "a copy of a segment that is elsewhere; a crash can leave it";
                    self.findings.push(Finding::note(Kind::Stray, place.display(), what));
                }
                Some(id) if id.0 >= self.catalogue.known.next_segment.max(1) => {
                    let what = "the catalogue has not made this segment yet: the catalogue is an older one";
                    self.findings.push(Finding::damage(Kind::StaleCatalogue, place.display(), what));
                }
                Some(_) => {
                    let what = "a segment that the catalogue has freed; a crash can leave it";
                    self.findings.push(Finding::note(Kind::Stray, place.display(), what));
                }
                None if [BALLAST_FILE_NAME, MARK_FILE_NAME, MARK_NEW_NAME].contains(&name.as_str()) => {}
                None if is_copying(&name) => {
                    let what = "a copy of a segment that is not finished; a crash can leave it";
                    self.findings.push(Finding::note(Kind::Stray, place.display(), what));
                }
                None => {
                    let what = "no file of a segment";
                    self.findings.push(Finding::note(Kind::Stray, place.display(), what));
                }
            }
        }
        Ok(())
    }

    fn take(&mut self, referenced: &Referenced<'_>) {
        let Referenced { bucket, key, body, part, offset, extent } = *referenced;
        let Some(location) = Location::of(extent) else {
            let what = format!("an impossible extent: {extent:?}");
            let place = self.object(bucket, key);
            return self.findings.push(Finding::damage(Kind::Row, place, what));
        };
        if self.away.contains(&location.segment.0) {
            return;
        }
        let item = Item { location, bucket, body, part, offset, key: key.into() };
        if let Some((_, concerned)) = self.unusable.get_mut(&location.segment.0) {
            *concerned += 1;
            return self.damaged(&item, Kind::SegmentMissing, "its segment cannot be read");
        }
        self.batch.push(item);
        if self.batch.len() >= BATCH_EXTENTS {
            self.verify_batch();
        }
    }

    fn verify_batch(&mut self) {
        let mut batch = std::mem::take(&mut self.batch);
        batch.sort_unstable_by_key(|item| (item.location.segment, item.location.offset));
        let mut record = Vec::new();
        for item in &batch {
            let bytes = u64::from(item.location.head_bytes) + u64::from(item.location.payload_bytes);
            if let Err((kind, what)) = self.verify(item, &mut record) {
                self.damaged(item, kind, &what);
            }
            self.verified_bytes += bytes;
            (self.watch)("verifying segments", self.verified_bytes, self.total_bytes);
        }
    }

    /// Reads a record whole and compares it with the catalogue's reference.
    fn verify(&self, item: &Item, record: &mut Vec<u8>) -> Result<(), (Kind, String)> {
        let Some((file, seed)) = self.files.get(&item.location.segment.0) else {
            return Err((Kind::SegmentMissing, "its segment is not known".into()));
        };
        let Item { bucket, body, part, offset, .. } = *item;
        let extent = Extent::from(item.location);
        let referenced = Referenced { bucket, key: &item.key, body, part, offset, extent: &extent };
        match verify(file, *seed, item.location, &referenced, record) {
            Ok(None) => Ok(()),
            Ok(Some(Wrong::Head(what))) => Err((Kind::RecordHead, what)),
            Ok(Some(Wrong::Blocks(blocks))) => {
                let blocks: Vec<_> = blocks.into_iter().map(|(index, _)| index).collect();
                Err((Kind::Block, format!("blocks {blocks:?} do not match their checksums")))
            }
            Err(error) => Err((Kind::RecordHead, error.to_string())),
        }
    }

    fn damaged(&mut self, item: &Item, kind: Kind, what: &str) {
        self.listed += 1;
        if self.listed > LISTED_MAX {
            return;
        }
        let Location { segment, offset, logical_bytes, .. } = item.location;
        let part = item.part.map_or_else(String::new, |part| format!(" of part {part}"));
        let place = format!(
            "{} bytes {} to {}{part}, {} at {offset}",
            self.object(item.bucket, &item.key),
            item.offset,
            item.offset + u64::from(logical_bytes) - 1,
            segment_file_name(segment),
        );
        self.findings.push(Finding::damage(kind, place, what));
    }

    fn object(&self, bucket: BucketId, key: &[u8]) -> String {
        let name = self.catalogue.known.buckets.get(&bucket.0).map(|bucket| bucket.name.clone());
        format!("s3://{}/{}", name.unwrap_or_else(|| format!("#{bucket}")), String::from_utf8_lossy(key))
    }

    /// Reports the segments that were not checked, by upstream.
    fn tell_away(&mut self) {
        let mut by_upstream = BTreeMap::<String, (u64, u64)>::new();
        for id in &self.away {
            let Some(record) = self.catalogue.known.segments.get(id) else { continue };
            let Some(place) = record.replicas.first() else { continue };
            let (segments, bytes) = by_upstream.entry(place.location.clone()).or_default();
            (*segments, *bytes) = (*segments + 1, *bytes + record.length);
        }
        for (upstream, (segments, bytes)) in by_upstream {
            let what = format!("{segments} segments with {bytes} bytes are there and were not looked at");
            self.findings.push(Finding::note(Kind::SegmentAway, format!("upstream {upstream}"), what));
        }
    }

    fn summary(&mut self) {
        self.tell_away();
        // A segment without references was created in the catalogue only, or freed: nothing is lost with its
        // file.
        for (id, (why, concerned)) in self.unusable.iter().filter(|(_, (_, concerned))| *concerned > 0) {
            let record = self.catalogue.known.segments.get(id);
            let path =
                record.map_or_else(|| self.dirs.path(SegmentId(*id), HOT), |record| self.path_of(record));
            let cold = record.is_some_and(|record| record.summary().tier == COLD);
            let hint = if cold && self.dirs.cold().is_empty() {
                "; it is in the cold tier: name its directories in cold.dirs"
            } else {
                ""
            };
            let what = format!("{why}; {concerned} extents of objects were in it{hint}");
            self.findings.insert(self.first, Finding::damage(Kind::SegmentMissing, path.display(), what));
        }
        if self.listed > LISTED_MAX {
            let what = format!("{} more records are damaged", self.listed - LISTED_MAX);
            self.findings.push(Finding::damage(Kind::Block, self.dirs.hot().display(), what));
        }
    }
}

/// Returns the fault of a segment's file as a whole, if any.
fn file_fault(file: &File, record: &SegmentRecord) -> Option<(Kind, String)> {
    let length = match file.metadata() {
        Ok(metadata) => metadata.len(),
        Err(error) => return Some((Kind::SegmentShort, error.to_string())),
    };
    let sealed = record.state() == SegmentState::Sealed;
    let mut bytes = [0; SEGMENT_HEADER_BYTES as usize];
    let read = file.read_exact_at(&mut bytes, 0);
    let header = SegmentHeader::decode(&bytes);
    // Checked first: a file of another segment has no other fault worth reporting.
    if let (Ok(()), Ok(header)) = (&read, header)
        && !is_of(&header, record)
    {
        let what = format!(
            "it is another segment {} of cluster {} and incarnation {}, made at {}",
            header.id, header.cluster, header.incarnation, header.created
        );
        return Some((Kind::SegmentHeader, what));
    }
    if sealed && length < record.length {
        return Some((Kind::SegmentShort, format!("{length} bytes; sealed at {}", record.length)));
    }
    if length < record.marked {
        let what = format!("{length} bytes; {} of it were on stable media", record.marked);
        return Some((Kind::SegmentShort, what));
    }
    if sealed && record.length < SEGMENT_HEADER_BYTES {
        return None;
    }
    if let Err(error) = read {
        return Some((Kind::SegmentHeader, error.to_string()));
    }
    header.err().map(|fault| (Kind::SegmentHeader, fault.to_string()))
}

/// True if a header belongs to the segment of a record.
pub(super) fn is_of(header: &SegmentHeader, record: &SegmentRecord) -> bool {
    header.is_of(record.segment_id(), record.seed(), Some(Timestamp(record.created_ms)))
}

/// Returns a finding: damage if objects refer to the segment, otherwise a note.
fn told(referred: bool, kind: Kind, path: &Path, what: String) -> Finding {
    if referred {
        Finding::damage(kind, path.display(), what)
    } else {
        Finding::note(kind, path.display(), what)
    }
}

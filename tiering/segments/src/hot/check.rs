//! Offline check: compares the segment files of a closed data directory, in all tiers, with the references in
//! its catalogue.
//!
//! Every extent that an object, a version or an upload refers to is read and verified; unreferenced bytes are
//! ignored (they may be remains of writes that were never acknowledged). Segments that only other nodes or
//! upstreams have are counted and not checked. So are replicas that are marked as suspect (damaged, missing
//! or perhaps incomplete), if another node has a replica without a mark.
//!
//! Nothing is written. Extents are verified in batches, each sorted by position in the files, so memory is
//! bounded and the disk reads forward.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use mlgw_common::ids::{BodyId, BucketId, PartNumber, SegmentId, SegmentSeed};
use mlgw_common::{SegmentTier, regular};
use mlgw_formats::schema::{Extent, SegmentRecord, SegmentState};
use mlgw_metadata::offline::{
    CheckFinding, FindingKind, Offline, ProgressCallback, ReferencedExtent, Severity,
};
use mlgw_metadata::store_error::StoreError;

use super::directory::PROBE_FILE_NAME;
use super::dirs::SegmentDirs;
use super::file_names::{is_copying, segment_file_name, segment_of_file_name};
use super::header::is_header_of;
use super::location::RecordLocation;
use super::mark_file::{MARK_FILE_NAME, MARK_TEMP_NAME};
use super::space::BALLAST_FILE_NAME;
use super::verify::{RecordDamage, verify_record};
use mlgw_formats::segment_header::{SEGMENT_HEADER_BYTES, SegmentHeader};

/// Extents per verification batch: about 32 MiB of memory.
const BATCH_EXTENTS: usize = 1 << 18;
/// Maximum number of damaged records of a kind that are reported individually.
const LISTED_MAX: usize = 10_000;
/// Names of other files in a segment directory.
const OWN_NAMES: [&str; 4] = [BALLAST_FILE_NAME, MARK_FILE_NAME, MARK_TEMP_NAME, PROBE_FILE_NAME];

/// Checks the segments in `dirs` against `catalogue`.
///
/// # Errors
/// When a directory or the catalogue cannot be read at all.
pub fn check_segments(
    dirs: &SegmentDirs,
    catalogue: &Offline,
    findings: &mut Vec<CheckFinding>,
    watch: ProgressCallback<'_>,
) -> io::Result<()> {
    let mut check = SegmentCheck {
        first_finding: findings.len(),
        dirs,
        catalogue,
        findings,
        watch,
        files: HashMap::new(),
        unusable: BTreeMap::new(),
        elsewhere: BTreeSet::new(),
        suspect: BTreeSet::new(),
        batch: Vec::new(),
        verified_bytes: 0,
        damaged_records: BTreeMap::new(),
        total_bytes: catalogue.facts.usage.values().map(|usage| usage.bytes).sum(),
    };
    check.check_segment_files();
    check.report_strays()?;
    let walked = catalogue.each_extent(&mut |referenced| {
        check.check_extent(referenced);
        Ok::<(), StoreError>(())
    });
    check.verify_batch();
    check.report_summary();
    walked.map_err(|error| io::Error::other(error.0))
}

struct SegmentCheck<'a> {
    dirs: &'a SegmentDirs,
    catalogue: &'a Offline,
    findings: &'a mut Vec<CheckFinding>,
    watch: ProgressCallback<'a>,
    files: HashMap<u64, (File, SegmentSeed)>,
    /// Segments whose file cannot be opened, with the error and the number of extents that refer to them.
    unusable: BTreeMap<u64, (String, u64)>,
    /// Segments without a replica on this node, or at upstreams: they are not checked.
    elsewhere: BTreeSet<u64>,
    /// Segments whose replica on this node is marked as suspect. Another node has a good replica, so they are
    /// not checked.
    suspect: BTreeSet<u64>,
    batch: Vec<ExtentToVerify>,
    verified_bytes: u64,
    total_bytes: u64,
    /// Number of damaged records by the kind of their finding.
    damaged_records: BTreeMap<FindingKind, usize>,
    /// Index of this check's first finding; findings about whole segments are inserted there.
    first_finding: usize,
}

/// Segments that were not checked.
#[derive(Clone, Copy, Debug, Default)]
struct Counted {
    segments: u64,
    bytes: u64,
}

impl Counted {
    const fn add(&mut self, record: &SegmentRecord) {
        self.segments += 1;
        self.bytes += record.length;
    }
}

/// An extent to verify.
struct ExtentToVerify {
    location: RecordLocation,
    bucket: BucketId,
    body: BodyId,
    part: Option<PartNumber>,
    offset: u64,
    key: Box<[u8]>,
}

impl SegmentCheck<'_> {
    /// Opens the file of every segment and checks its length and header.
    fn check_segment_files(&mut self) {
        for record in self.catalogue.facts.segments.values() {
            let referred = self.catalogue.facts.usage.get(&record.id).is_some_and(|usage| usage.extents > 0);
            let tier = match record.tier_for(self.catalogue.node) {
                Ok(tier) => tier,
                Err(error) => {
                    self.unusable.insert(record.id, (error.to_string(), 0));
                    continue;
                }
            };
            match record.replica_of(self.catalogue.node) {
                Some(replica) if replica.is_suspect && is_replicated(self.catalogue, record.id) => {
                    self.suspect.insert(record.id);
                    continue;
                }
                Some(_) => {}
                None => {
                    self.elsewhere.insert(record.id);
                    continue;
                }
            }
            let path = self.dirs.path(record.segment_id(), tier);
            match regular::open(&path) {
                Ok(file) => {
                    let found = file_fault(&file, record);
                    self.files.insert(record.id, (file, record.seed()));
                    if let Some((kind, what)) = found {
                        // Nothing is lost with a file to which no object refers.
                        let severity = if referred { Severity::Damage } else { Severity::Info };
                        let (kind, place) = (self.kind_in(record.id, kind), path.display().to_string());
                        self.findings.push(CheckFinding { severity, kind, place, what });
                    }
                }
                Err(_) if tier == SegmentTier::Upstream => {
                    self.elsewhere.insert(record.id);
                }
                Err(error) => {
                    let is_there = error.kind() != io::ErrorKind::NotFound;
                    let is_alone = record.replicas.len() == 1;
                    if is_there && !referred && is_alone && record.state() == SegmentState::Open {
                        // A start reads such a segment to its end and fails if it cannot.
                        let finding =
                            CheckFinding::damage(FindingKind::SegmentMissing, path.display(), &error);
                        self.findings.push(finding);
                    }
                    self.unusable.insert(record.id, (error.to_string(), 0));
                }
            }
        }
    }

    /// The kind of a finding in a segment: bytes that other nodes have too are not lost.
    fn kind_in(&self, segment: u64, kind: FindingKind) -> FindingKind {
        match kind {
            FindingKind::SegmentMissing
            | FindingKind::SegmentShort
            | FindingKind::RecordHead
            | FindingKind::Block
                if is_replicated(self.catalogue, segment) =>
            {
                FindingKind::Replica
            }
            kind => kind,
        }
    }

    /// True if a segment's file is expected at `place`.
    fn is_expected_at(&self, record: &SegmentRecord, place: &Path) -> bool {
        let tier = record.replica_of(self.catalogue.node).and_then(|replica| replica.tier().ok());
        tier.is_some_and(|tier| self.dirs.path(record.segment_id(), tier) == place)
    }

    /// Reports segment files that the catalogue does not contain, or has in another tier or on other nodes
    /// only.
    fn report_strays(&mut self) -> io::Result<()> {
        let dirs = self.dirs;
        dirs.all().try_for_each(|dir| self.report_strays_in(dir))
    }

    fn report_strays_in(&mut self, dir: &Path) -> io::Result<()> {
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
            let known = segment_of_file_name(&name).and_then(|id| self.catalogue.facts.segments.get(&id.0));
            match segment_of_file_name(&name) {
                Some(_) if known.is_some_and(|record| self.is_expected_at(record, &place)) => {}
                Some(_) if known.is_some_and(|record| record.replica_of(self.catalogue.node).is_none()) => {
                    let what = "a copy of a segment that no record lists on this node; a crash can leave one";
                    self.findings.push(CheckFinding::note(FindingKind::Stray, place.display(), what));
                }
                Some(_) if known.is_some() => {
                    let what = "a copy of a segment that is in another directory; a crash can leave one";
                    self.findings.push(CheckFinding::note(FindingKind::Stray, place.display(), what));
                }
                Some(id) if id.0 >= self.catalogue.facts.next_segment.max(1) => {
                    let what = "the catalogue has not created this segment yet: the catalogue is outdated";
                    self.findings.push(CheckFinding::damage(
                        FindingKind::StaleCatalogue,
                        place.display(),
                        what,
                    ));
                }
                Some(_) => {
                    let what = "a segment that the catalogue has freed; a crash can leave one";
                    self.findings.push(CheckFinding::note(FindingKind::Stray, place.display(), what));
                }
                None if OWN_NAMES.contains(&name.as_str()) => {}
                None if is_copying(&name) => {
                    let what = "an unfinished copy of a segment; a crash can leave one";
                    self.findings.push(CheckFinding::note(FindingKind::Stray, place.display(), what));
                }
                None => {
                    let what = "not a segment file";
                    self.findings.push(CheckFinding::note(FindingKind::Stray, place.display(), what));
                }
            }
        }
        Ok(())
    }

    fn check_extent(&mut self, referenced: &ReferencedExtent<'_>) {
        let ReferencedExtent { bucket, key, body, part, offset, extent } = *referenced;
        let Some(location) = RecordLocation::of(extent) else {
            let what = format!("invalid extent: {extent:?}");
            let place = self.object_url(bucket, key);
            return self.findings.push(CheckFinding::damage(FindingKind::Row, place, what));
        };
        if self.elsewhere.contains(&location.segment.0) || self.suspect.contains(&location.segment.0) {
            return;
        }
        let item = ExtentToVerify { location, bucket, body, part, offset, key: key.into() };
        if let Some((_, concerned)) = self.unusable.get_mut(&location.segment.0) {
            *concerned += 1;
            return self.report_damage(&item, FindingKind::SegmentMissing, "its segment cannot be read");
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
                self.report_damage(item, kind, &what);
            }
            self.verified_bytes += bytes;
            (self.watch)("verifying segments", self.verified_bytes, self.total_bytes);
        }
    }

    /// Reads a record whole and compares it with the catalogue's reference.
    fn verify(&self, item: &ExtentToVerify, record: &mut Vec<u8>) -> Result<(), (FindingKind, String)> {
        let Some((file, seed)) = self.files.get(&item.location.segment.0) else {
            return Err((FindingKind::SegmentMissing, "its segment is unknown".into()));
        };
        let ExtentToVerify { bucket, body, part, offset, .. } = *item;
        let extent = Extent::from(item.location);
        let referenced = ReferencedExtent { bucket, key: &item.key, body, part, offset, extent: &extent };
        match verify_record(file, *seed, item.location, &referenced, record) {
            Ok(None) => Ok(()),
            Ok(Some(RecordDamage::Head(what))) => Err((FindingKind::RecordHead, what)),
            Ok(Some(RecordDamage::Blocks(blocks))) => {
                let blocks: Vec<_> = blocks.into_iter().map(|(index, _)| index).collect();
                Err((FindingKind::Block, format!("blocks {blocks:?} do not match their checksums")))
            }
            Err(error) => Err((FindingKind::RecordHead, error.to_string())),
        }
    }

    fn report_damage(&mut self, item: &ExtentToVerify, kind: FindingKind, what: &str) {
        let RecordLocation { segment, offset, logical_bytes, .. } = item.location;
        let kind = self.kind_in(segment.0, kind);
        let damaged = self.damaged_records.entry(kind).or_default();
        *damaged += 1;
        if *damaged > LISTED_MAX {
            return;
        }
        let part = item.part.map_or_else(String::new, |part| format!(" of part {part}"));
        let place = format!(
            "{} bytes {} to {}{part}, {} at {offset}",
            self.object_url(item.bucket, &item.key),
            item.offset,
            item.offset + u64::from(logical_bytes) - 1,
            segment_file_name(segment),
        );
        self.findings.push(CheckFinding::damage(kind, place, what));
    }

    fn object_url(&self, bucket: BucketId, key: &[u8]) -> String {
        let name = self.catalogue.facts.buckets.get(&bucket.0).map(|bucket| bucket.name.clone());
        format!("s3://{}/{}", name.unwrap_or_else(|| format!("#{bucket}")), String::from_utf8_lossy(key))
    }

    /// Reports the segments that were not checked: by upstream, those of other nodes only, and suspect ones.
    fn report_unchecked(&mut self) {
        let mut by_place = BTreeMap::<String, Counted>::new();
        for record in self.records_of(&self.elsewhere) {
            let at_upstream =
                record.replicas.iter().find(|replica| replica.tier() == Ok(SegmentTier::Upstream));
            let place = at_upstream
                .map_or_else(|| "other nodes".to_owned(), |replica| format!("upstream {}", replica.location));
            by_place.entry(place).or_default().add(record);
        }
        for (place, Counted { segments, bytes }) in by_place {
            let what =
                format!("{segments} segments with {bytes} bytes are stored there and were not checked");
            self.findings.push(CheckFinding::note(FindingKind::RemoteSegment, place, what));
        }
        let mut suspect = Counted::default();
        self.records_of(&self.suspect).for_each(|record| suspect.add(record));
        let Counted { segments, bytes } = suspect;
        if segments > 0 {
            let what = format!(
                "{segments} segments with {bytes} bytes are marked as suspect on this node and were not \
                 checked; other nodes have replicas of them, and this node copies them again when it runs"
            );
            self.findings.push(CheckFinding::note(FindingKind::Replica, "this node", what));
        }
    }

    fn records_of<'s>(&'s self, segments: &'s BTreeSet<u64>) -> impl Iterator<Item = &'s SegmentRecord> {
        segments.iter().filter_map(|id| self.catalogue.facts.segments.get(id))
    }

    fn report_summary(&mut self) {
        self.report_unchecked();
        // A segment without references was created in the catalogue only, or freed: nothing is lost with its
        // file.
        for (id, (why, concerned)) in self.unusable.iter().filter(|(_, (_, concerned))| *concerned > 0) {
            let record = self.catalogue.facts.segments.get(id);
            let tier = record.and_then(|record| record.tier_for(self.catalogue.node).ok());
            // A new segment is in the hot tier.
            let path = self.dirs.path(SegmentId(*id), tier.unwrap_or(SegmentTier::Hot));
            let hint = if tier == Some(SegmentTier::Cold) && self.dirs.cold().is_empty() {
                "; it is in the cold tier: set cold.dirs to its directories"
            } else {
                ""
            };
            let what = format!("{why}; it contained {concerned} extents of objects{hint}");
            let kind = self.kind_in(*id, FindingKind::SegmentMissing);
            self.findings.insert(self.first_finding, CheckFinding::damage(kind, path.display(), what));
        }
        for (kind, damaged) in &self.damaged_records {
            if let Some(more @ 1..) = damaged.checked_sub(LISTED_MAX) {
                let what = format!("{more} more records are damaged");
                self.findings.push(CheckFinding::damage(*kind, self.dirs.hot().display(), what));
            }
        }
    }
}

/// True if another node has a replica of a segment that is not marked as suspect.
pub(super) fn is_replicated(catalogue: &Offline, segment: u64) -> bool {
    let record = catalogue.facts.segments.get(&segment);
    let mut replicas = record.into_iter().flat_map(|record| &record.replicas);
    replicas.any(|replica| replica.node != catalogue.node.0 && !replica.is_suspect)
}

/// Returns the fault of a segment's file as a whole, if any.
fn file_fault(file: &File, record: &SegmentRecord) -> Option<(FindingKind, String)> {
    let length = match file.metadata() {
        Ok(metadata) => metadata.len(),
        Err(error) => return Some((FindingKind::SegmentShort, error.to_string())),
    };
    let sealed = record.state() == SegmentState::Sealed;
    let mut bytes = [0; SEGMENT_HEADER_BYTES as usize];
    let read = file.read_exact_at(&mut bytes, 0);
    let header = SegmentHeader::decode(&bytes);
    // Checked first: a file of another segment has no other fault worth reporting.
    if let (Ok(()), Ok(header)) = (&read, header)
        && !is_header_of(&header, record)
    {
        let what = format!(
            "it is another segment {} of cluster {} and incarnation {}, created at {}",
            header.id, header.cluster, header.incarnation, header.created
        );
        return Some((FindingKind::SegmentHeader, what));
    }
    if sealed && length < record.length {
        return Some((
            FindingKind::SegmentShort,
            format!("{length} bytes; the sealed length is {}", record.length),
        ));
    }
    if length < record.marked {
        let what = format!("{length} bytes; {} bytes had been synced", record.marked);
        return Some((FindingKind::SegmentShort, what));
    }
    if sealed && record.length < SEGMENT_HEADER_BYTES {
        return None;
    }
    if let Err(error) = read {
        return Some((FindingKind::SegmentHeader, error.to_string()));
    }
    header.err().map(|fault| (FindingKind::SegmentHeader, fault.to_string()))
}

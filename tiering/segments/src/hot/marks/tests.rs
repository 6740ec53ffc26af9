//! Tests of ownership marks: directories of other servers and timelines are refused and not changed; own ones
//! are marked once.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use mlgw_common::ids::{NodeId, SegmentId};
use mlgw_common::{ClusterId, Identity, Incarnation, Lineage, NodeName, SegmentTier, Timestamp};
use mlgw_formats::schema::{Replica, SegmentClass, SegmentRecord, SegmentState};
use proptest::prelude::*;

use super::{
    DirectorySweep, MARK_FILE_NAME, MarkError, SegmentRecords, check_and_mark, read_mark, write_mark,
};
use crate::hot::dirs::SegmentDirs;
use crate::hot::file_names::segment_file_name;
use crate::hot::map::NewSegment;
use crate::hot::options::MissingSegments;
use mlgw_formats::segment_header::{SEGMENT_HEADER_BYTES, SegmentHeader};

const OURS: Identity = Identity { cluster: ClusterId(1), node: NodeName(2), incarnation: Incarnation(3) };
const EARLIER: Identity = Identity { incarnation: Incarnation(7), ..OURS };
const SIBLING: Identity = Identity { incarnation: Incarnation(8), ..OURS };
const OTHER: Identity = Identity { cluster: ClusterId(9), ..OURS };

fn lineage() -> Lineage {
    Lineage { own: OURS, earlier: vec![EARLIER.incarnation], ..Lineage::default() }
}

#[derive(Default)]
struct Catalogue(BTreeMap<u64, SegmentRecord>);

impl SegmentRecords for Catalogue {
    fn record(&self, id: SegmentId) -> io::Result<Option<SegmentRecord>> {
        Ok(self.0.get(&id.0).cloned())
    }

    fn expected(&self, tier: SegmentTier) -> io::Result<Vec<SegmentId>> {
        let here = self.0.values().filter(|record| record.tier_for(NodeId::SINGLE) == Ok(tier));
        Ok(here.map(SegmentRecord::segment_id).collect())
    }
}

fn record(id: u64, stamp: u64, tier: SegmentTier) -> SegmentRecord {
    SegmentRecord {
        id,
        generation: 1,
        state: SegmentState::Sealed as i32,
        length: SEGMENT_HEADER_BYTES + 100,
        created_ms: 1_000_000,
        replicas: vec![Replica { node: 1, tier: tier.number(), ..Replica::default() }],
        stamp,
        ..SegmentRecord::default()
    }
}

/// Writes the file of a segment as `owner` would have, created `later_ms` after the time in its record.
fn write_segment(dir: &Path, record: &SegmentRecord, owner: Identity, later_ms: i64) {
    let created = Timestamp(record.created_ms + later_ms);
    let minted = NewSegment { id: record.segment_id(), seed: record.seed(), created };
    let header = SegmentHeader::of(&minted, SegmentClass::Small, &owner).encode();
    let bytes = [header.as_slice(), &[7; 100]].concat();
    fs::write(dir.join(segment_file_name(record.segment_id())), bytes).unwrap();
}

struct Bench {
    _room: tempfile::TempDir,
    dirs: SegmentDirs,
    catalogue: Catalogue,
}

impl Bench {
    fn new() -> Self {
        let room = tempfile::tempdir().unwrap();
        let [hot, cold] = ["hot", "cold"].map(|name| room.path().join(name));
        fs::create_dir(&hot).unwrap();
        fs::create_dir(&cold).unwrap();
        let dirs = SegmentDirs::new(hot, vec![cold]);
        Self { _room: room, dirs, catalogue: Catalogue::default() }
    }

    fn hot(&self) -> &Path {
        self.dirs.hot()
    }

    fn cold(&self) -> &Path {
        &self.dirs.cold()[0]
    }

    fn dir(&self, tier: SegmentTier) -> &Path {
        &self.dirs.of_tier(tier)[0]
    }

    fn keep(&mut self, record: &SegmentRecord) {
        self.catalogue.0.insert(record.id, record.clone());
    }

    /// Returns for each directory if files may be removed from it.
    fn admit(&self, may_be_missing: bool) -> Result<Vec<bool>, MarkError> {
        let missing = if may_be_missing { MissingSegments::Accepted } else { MissingSegments::Refused };
        let sweeps = check_and_mark(&self.dirs, &self.catalogue, &lineage(), missing)?;
        Ok(sweeps.into_iter().map(|sweep| sweep == DirectorySweep::Now).collect())
    }

    /// Names and contents of every file.
    fn contents(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let entries = self.dirs.all().flat_map(|dir| fs::read_dir(dir).unwrap());
        entries
            .map(|entry| entry.unwrap().path())
            .map(|path| (path.clone(), fs::read(path).unwrap()))
            .collect()
    }

    /// Asserts that a start refuses the directories and changes nothing.
    fn refuses(&self) -> MarkError {
        let before = self.contents();
        let refused = self.admit(false).unwrap_err();
        assert_eq!(self.contents(), before, "{refused}");
        refused
    }
}

#[test]
fn new_directories_are_marked_and_then_recognized() {
    let bench = Bench::new();
    assert_eq!(bench.admit(false).unwrap(), [false, false], "the start that marks removes nothing");
    assert_eq!(bench.admit(false).unwrap(), [true, true]);
    assert_eq!(read_mark(bench.hot()).unwrap(), Some(OURS));
}

#[test]
fn a_directory_with_a_foreign_mark_is_refused() {
    for tier in [SegmentTier::Hot, SegmentTier::Cold] {
        for (owner, earlier) in [(EARLIER, true), (SIBLING, false), (OTHER, false)] {
            let bench = Bench::new();
            write_mark(bench.dir(tier), &owner).unwrap();
            let refused = bench.refuses();
            assert_eq!(matches!(refused, MarkError::Earlier { .. }), earlier, "{refused}");
        }
    }
}

#[test]
fn an_unmarked_directory_is_marked_if_every_file_matches_its_record() {
    let mut bench = Bench::new();
    for (id, stamp) in [(1, 0), (2, 55), (3, 0)] {
        bench.keep(&record(id, stamp, SegmentTier::Hot));
        write_segment(
            bench.hot(),
            &record(id, stamp, SegmentTier::Hot),
            EARLIER,
            if stamp == 0 { 12 } else { 0 },
        );
    }
    // The catalogue removed this segment, and power failed before its file was removed.
    write_segment(bench.hot(), &record(4, 77, SegmentTier::Hot), OURS, 0);
    assert_eq!(bench.admit(false).unwrap(), [false, false]);
    assert!(bench.hot().join(segment_file_name(SegmentId(4))).exists());
}

#[test]
fn an_unmarked_directory_that_disagrees_is_refused() {
    let ours = record(1, 55, SegmentTier::Hot);
    let unstamped = record(1, 0, SegmentTier::Hot);
    let cases: [(&str, SegmentRecord, SegmentRecord, Identity, i64); 4] = [
        ("another stamp", ours.clone(), SegmentRecord { stamp: 56, ..ours.clone() }, OTHER, 0),
        ("no stamp", ours.clone(), unstamped.clone(), OTHER, 0),
        ("made at another time", unstamped.clone(), unstamped.clone(), OURS, 3_600_000),
        ("another generation", ours.clone(), SegmentRecord { generation: 2, ..ours.clone() }, OURS, 0),
    ];
    for (what, kept, written, owner, later_ms) in cases {
        for tier in [SegmentTier::Hot, SegmentTier::Cold] {
            let mut bench = Bench::new();
            bench.keep(&record(2, 66, SegmentTier::Hot));
            write_segment(bench.hot(), &record(2, 66, SegmentTier::Hot), OURS, 0);
            bench.keep(&kept);
            write_segment(bench.dir(tier), &written, owner, later_ms);
            assert!(matches!(bench.refuses(), MarkError::Disagrees { .. }), "{what}");
        }
    }
}

#[test]
fn files_without_a_record_belong_to_another_server() {
    for stamp in [0, 55] {
        let bench = Bench::new();
        write_segment(bench.cold(), &record(1, stamp, SegmentTier::Hot), OTHER, 0);
        assert!(matches!(bench.refuses(), MarkError::Disagrees { .. }), "{stamp}");
    }
}

#[test]
fn a_short_or_damaged_file_disagrees() {
    for cut in [0, 10, 63, 64, 163] {
        let mut bench = Bench::new();
        bench.keep(&record(1, 55, SegmentTier::Hot));
        write_segment(bench.hot(), &record(1, 55, SegmentTier::Hot), OURS, 0);
        let path = bench.hot().join(segment_file_name(SegmentId(1)));
        let bytes = fs::read(&path).unwrap();
        fs::write(&path, &bytes[..cut]).unwrap();
        assert!(matches!(bench.refuses(), MarkError::Disagrees { .. }), "cut at {cut}");
    }
}

#[test]
fn an_empty_directory_is_refused_where_segments_are_expected() {
    for tier in [SegmentTier::Hot, SegmentTier::Cold] {
        let mut bench = Bench::new();
        bench.keep(&record(1, 55, tier));
        let refused = bench.refuses();
        assert!(matches!(refused, MarkError::Empty { segments: 1, .. }), "{refused}");
        // An operator can declare a cold disk lost, but not that of the hot tier.
        assert_eq!(bench.admit(true).is_ok(), tier == SegmentTier::Cold);
    }
    // A segment in the other tier counts as present: after a restore all segments are hot.
    let mut bench = Bench::new();
    bench.keep(&record(1, 55, SegmentTier::Cold));
    write_segment(bench.hot(), &record(1, 55, SegmentTier::Cold), OURS, 0);
    assert_eq!(bench.admit(false).unwrap(), [false, false]);
}

#[test]
fn nothing_is_marked_when_one_directory_is_refused() {
    let bench = Bench::new();
    write_mark(bench.cold(), &OTHER).unwrap();
    bench.refuses();
    assert_eq!(read_mark(bench.hot()).unwrap(), None);
}

#[test]
fn a_fifo_or_a_directory_instead_of_a_mark_is_damage() {
    let bench = Bench::new();
    fs::create_dir(bench.hot().join(MARK_FILE_NAME)).unwrap();
    assert!(bench.admit(false).is_err());
    let bench = Bench::new();
    let path = bench.hot().join(MARK_FILE_NAME);
    let made = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
    assert!(made.success());
    assert!(matches!(bench.admit(false), Err(MarkError::Damaged { .. })));
}

proptest! {
    #[test]
    fn any_changed_bit_of_a_mark_is_detected(at in 0usize..80, bit in 0u8..8) {
        let room = tempfile::tempdir().unwrap();
        write_mark(room.path(), &OURS).unwrap();
        let path = room.path().join(MARK_FILE_NAME);
        let mut bytes = fs::read(&path).unwrap();
        let at = at % bytes.len();
        bytes[at] ^= 1 << bit;
        fs::write(&path, &bytes).unwrap();
        prop_assert!(read_mark(room.path()).is_err());
    }
}

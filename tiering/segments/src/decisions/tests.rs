//! Tests of the decision log: order, limits, merging, and the file.

use super::{DecisionFilter, Decisions};
use mlgw_common::Timestamp;
use mlgw_common::clock::ManualClock;
use mlgw_common::ids::{BucketId, SegmentId};
use mlgw_common::limits::{DECISIONS_FILE_BYTES_MAX, DECISIONS_MAX};
use mlgw_formats::decision_entry::{DecisionCause, DecisionEntry, DecisionSubject, PlacementDecision};
use mlgw_formats::decision_words::{DecisionKind, DecisionOutcome, DecisionPlace, DecisionReason};
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;

const ALL: DecisionFilter = DecisionFilter { limit: usize::MAX, kind: None, bucket: None };

fn spill(segment: u64, outcome: DecisionOutcome) -> PlacementDecision<'static> {
    PlacementDecision {
        kind: DecisionKind::Spill,
        subject: DecisionSubject::Segment(SegmentId(segment)),
        from: DecisionPlace::Hot,
        to: DecisionPlace::Cold,
        bytes: 100,
        cause: DecisionReason::Watermark.into(),
        outcome,
    }
}

fn kept(bucket: u64, key: &'static str) -> PlacementDecision<'static> {
    let (kind, from, to) = (DecisionKind::Keep, DecisionPlace::Origin, DecisionPlace::Copies);
    let what = DecisionSubject::Object(BucketId(bucket), key);
    PlacementDecision {
        kind,
        subject: what,
        from,
        to,
        bytes: 10,
        cause: DecisionCause::job(7),
        outcome: DecisionOutcome::Done,
    }
}

fn segments(entries: &[DecisionEntry]) -> Vec<u64> {
    entries.iter().filter_map(|entry| entry.segment).collect()
}

#[test]
fn entries_are_listed_newest_first_and_the_oldest_are_dropped() {
    let decisions = Decisions::new(Arc::new(ManualClock::default()));
    let all = DECISIONS_MAX as u64 + 10;
    (1..=all).for_each(|segment| decisions.record(&spill(segment, DecisionOutcome::Done)));
    let listed = decisions.list(ALL);
    assert_eq!(listed.len(), DECISIONS_MAX);
    assert_eq!((listed[0].segment, listed.last().unwrap().segment), (Some(all), Some(11)));
    assert!(listed.windows(2).all(|pair| pair[0].seq > pair[1].seq));
    assert_eq!(segments(&decisions.list(DecisionFilter { limit: 2, ..ALL })), [all, all - 1]);
    let moved = decisions.moved_bytes();
    assert_eq!(
        moved[&(DecisionPlace::Hot, DecisionPlace::Cold, DecisionReason::Watermark)],
        100 * all,
        "sums forget nothing"
    );
}

#[test]
fn filters_select_by_kind_and_bucket() {
    let decisions = Decisions::new(Arc::new(ManualClock::default()));
    decisions.record(&spill(1, DecisionOutcome::Done));
    decisions.record(&kept(5, "a"));
    decisions.record(&kept(6, "b"));
    let of = |kind, bucket: Option<u64>| {
        let listed = decisions.list(DecisionFilter { kind, bucket: bucket.map(BucketId), ..ALL });
        listed.iter().map(|entry| entry.seq).collect::<Vec<_>>()
    };
    assert_eq!((of(None, None), of(Some(DecisionKind::Spill), None)), (vec![3, 2, 1], vec![1]));
    assert_eq!((of(None, Some(6)), of(Some(DecisionKind::Keep), Some(5))), (vec![3], vec![2]));
    assert_eq!(of(Some(DecisionKind::Spill), Some(5)), [0u64; 0]);
}

#[test]
fn equal_decisions_share_one_entry_with_a_count() {
    let clock = Arc::new(ManualClock::default());
    let decisions = Decisions::new(clock.clone());
    (0..10_000).for_each(|_| decisions.record(&kept(5, "first")));
    clock.set(Timestamp(999));
    decisions.record(&kept(5, "last"));
    let listed = decisions.list(ALL);
    assert_eq!((listed.len(), listed[0].count, listed[0].bytes), (1, 10_001, 100_010));
    assert_eq!((listed[0].key.as_str(), listed[0].until_ms, listed[0].job), ("first", 999, Some(7)));
    clock.set(Timestamp(1000));
    decisions.record(&kept(5, "later"));
    assert_eq!(decisions.list(ALL).len(), 2, "a second is over");
}

#[test]
fn repeated_failures_share_one_entry_with_the_last_error() {
    let clock = Arc::new(ManualClock::default());
    let decisions = Decisions::new(clock.clone());
    for round in 0..12 {
        clock.set(Timestamp(5000 * round));
        decisions.record_because(&spill(1, DecisionOutcome::Failed), &format!("round {round}"));
        decisions.record(&spill(2, DecisionOutcome::NoRoom));
    }
    let listed = decisions.list(ALL);
    assert_eq!((listed.len(), listed[1].count, listed[1].error.as_str()), (2, 12, "round 11"));
    assert_eq!(
        decisions.moved_bytes()[&(DecisionPlace::Hot, DecisionPlace::Cold, DecisionReason::Watermark)],
        0,
        "nothing moved"
    );
    decisions.record_because(&spill(3, DecisionOutcome::Failed), &"ä".repeat(10_000));
    assert!(decisions.list(ALL)[0].error.len() <= 256, "however long the error is");
}

fn open(dir: &Path) -> Decisions {
    let clock = Arc::new(ManualClock::default());
    clock.set(Timestamp(1_000_000));
    Decisions::open(dir, clock).unwrap()
}

#[tokio::test]
async fn a_restart_reads_the_entries_and_skips_a_torn_line() {
    let dir = tempfile::tempdir().unwrap();
    let file = || dir.path().join("decisions.jsonl");
    let before = open(dir.path());
    (1..=3).for_each(|segment| before.record(&spill(segment, DecisionOutcome::Done)));
    before.write();
    before.record(&spill(3, DecisionOutcome::Done));
    before.record_because(&spill(4, DecisionOutcome::Failed), &"a disk\nthat fails");
    before.write();
    let listed = before.list(ALL);
    assert_eq!(open(dir.path()).list(ALL), listed);
    // Simulates a power loss in the middle of a line, at any byte of it.
    let whole = std::fs::read(file()).unwrap();
    let last = whole[..whole.len() - 2].iter().rposition(|byte| *byte == b'\n').unwrap() + 1;
    for end in last..whole.len() - 2 {
        std::fs::write(file(), &whole[..end]).unwrap();
        let after = open(dir.path());
        assert_eq!(after.list(ALL), listed[1..], "cut at {end}");
        after.record(&spill(9, DecisionOutcome::Done));
        after.write();
        assert_eq!(
            segments(&open(dir.path()).list(ALL)),
            [9, 3, 2, 1],
            "the log continues after the torn line"
        );
    }
}

#[tokio::test]
async fn files_are_bounded_and_a_newer_format_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let decisions = open(dir.path());
    let long = "x".repeat(256);
    for round in 0..40 {
        for segment in 0..500 {
            let segment = round * 1000 + segment;
            decisions.record_because(&spill(segment, DecisionOutcome::Failed), &long);
        }
        decisions.write();
    }
    let bytes: u64 =
        std::fs::read_dir(dir.path()).unwrap().map(|f| f.unwrap().metadata().unwrap().len()).sum();
    assert!((DECISIONS_FILE_BYTES_MAX / 2..=2 * DECISIONS_FILE_BYTES_MAX).contains(&bytes), "{bytes}");
    let found = open(dir.path()).list(ALL);
    assert_eq!(found[..1000], decisions.list(ALL)[..1000]);
    let mut file = std::fs::OpenOptions::new().append(true).open(dir.path().join("decisions.jsonl")).unwrap();
    file.write_all(b"{\"v\":2,\"all\":\"new\"}\n").unwrap();
    let refused = Decisions::open(dir.path(), Arc::new(ManualClock::default())).err().unwrap();
    assert!(refused.to_string().contains("newer mlgw"), "{refused}");
}

#[test]
fn every_word_is_found_by_its_name() {
    assert!(DecisionKind::ALL.iter().all(|kind| DecisionKind::of(kind.name()) == Some(*kind)));
    assert_eq!(
        (DecisionKind::of("sideways"), DecisionOutcome::of("over_budget")),
        (None, Some(DecisionOutcome::OverBudget))
    );
    assert_eq!(serde_json::to_string(&DecisionPlace::Nowhere).unwrap(), "\"-\"");
}

/// The word of a row is the part of its code span before the first space: `job N` is the reason `job`.
#[test]
fn every_reason_and_outcome_is_in_the_manual() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/OPERATIONS.md");
    let manual = std::fs::read_to_string(path).unwrap();
    let documented = |heading: &str| -> Vec<String> {
        let (_, table) = manual.split_once(heading).unwrap_or_else(|| panic!("no table {heading:?}"));
        let rows = table.lines().skip(1).take_while(|row| row.starts_with("| "));
        let cells = rows.filter_map(|row| row.split('|').nth(1));
        let mut words: Vec<_> = cells
            .flat_map(|cell| cell.split('`').skip(1).step_by(2))
            .map(|word| word.split(' ').next().unwrap_or_default().to_owned())
            .collect();
        words.sort();
        words
    };
    let sorted = |mut words: Vec<&'static str>| {
        words.sort_unstable();
        words
    };
    let reasons = sorted(DecisionReason::ALL.iter().map(|one| one.name()).collect());
    assert_eq!(documented("| reason | meaning |\n"), reasons);
    let outcomes = sorted(DecisionOutcome::ALL.iter().map(|one| one.name()).collect());
    assert_eq!(documented("| outcome | meaning |\n"), outcomes);
}

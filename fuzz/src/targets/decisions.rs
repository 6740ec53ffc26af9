//! The decision log, read from a file with arbitrary content. Property: entries that were read decode to
//! the same entries after encoding, and can be counted further.

use mlgw_common::Timestamp;
use mlgw_common::ids::{BucketId, SegmentId};
use mlgw_common::limits::{DECISION_ERROR_BYTES_MAX, DECISIONS_MAX};
use mlgw_formats::decision_entry::{DecisionCause, DecisionEntry, DecisionSubject, PlacementDecision};
use mlgw_formats::decision_lines;
use std::collections::BTreeMap;

/// Returns the entries of a file, and the reason why lines were skipped, if any.
fn read(text: &[u8]) -> Result<(BTreeMap<u64, DecisionEntry>, Option<String>), u32> {
    let mut found = BTreeMap::new();
    let passed_over = decision_lines::read_lines(text, &mut found)?;
    Ok((found, passed_over))
}

/// Encodes entries as lines.
fn write(entries: &[DecisionEntry]) -> Vec<u8> {
    decision_lines::encode_lines(entries).expect("numbers and text")
}

/// Counts a decision made at `now` in the entry and returns true, if the entry is of the same kind of
/// decision.
fn count_on(entry: &mut DecisionEntry, now: Timestamp, decided: &PlacementDecision<'_>, error: &str) -> bool {
    let is_alike = entry.can_merge(now, decided);
    if is_alike {
        entry.add(now, decided, error);
    }
    is_alike
}

/// Reads the file.
pub fn run(data: &[u8]) {
    let Ok((found, _)) = read(data) else { return };
    assert!(found.len() <= DECISIONS_MAX && found.iter().all(|(seq, entry)| *seq == entry.seq));
    assert!(
        found.last_key_value().is_none_or(|(seq, _)| seq.checked_mul(2).is_some()),
        "there is a next one"
    );
    let mut entries: Vec<DecisionEntry> = found.values().cloned().collect();
    let written = write(&entries);
    assert_eq!(read(&written), Ok((found, None)));
    // The last line of each number is valid, and a torn line is skipped.
    if !written.is_empty() {
        let (torn, why) = read(&[&written, &written[..written.len() - 2]].concat()).expect("our own format");
        assert!(torn.values().eq(&entries) && why.is_some());
    }
    for entry in &mut entries {
        more_of(entry);
    }
}

/// Counts the same decision once more, at several times.
fn more_of(entry: &mut DecisionEntry) {
    let key = entry.key.clone();
    let what = match (entry.segment, entry.bucket) {
        (Some(segment), _) => DecisionSubject::Segment(SegmentId(segment)),
        (None, bucket) => {
            DecisionSubject::Objects { bucket: BucketId(bucket.unwrap_or_default()), count: 2, prefix: &key }
        }
    };
    let decided = PlacementDecision {
        kind: entry.kind,
        subject: what,
        from: entry.from,
        to: entry.to,
        bytes: 3,
        cause: DecisionCause { reason: entry.reason, job: entry.job, ..DecisionCause::rule(&entry.rule) },
        outcome: entry.outcome,
    };
    for now in [entry.at_ms, entry.at_ms.saturating_add(999), i64::MIN, 0, i64::MAX] {
        let before = (entry.count, entry.bytes);
        let counted = count_on(entry, Timestamp(now), &decided, &key);
        assert!(!counted || before <= (entry.count, entry.bytes));
        assert!(!counted || key.is_empty() || entry.error.len() <= DECISION_ERROR_BYTES_MAX);
    }
}

//! A thousand power cuts; every promise must be kept.

use mlgw_common::time::Instant;

use super::classes::SYNC_CLASSES;
use super::recorded::{RecordedRun, record, record_after};
use super::states::{cuts, cuts_before, describe_rate, recover_all};
use crate::power_cut::{CutStyle, IgnoredSyncs, NO_SYNCS_IGNORED};
use crate::seed::{seeded_rng, setting};

const RECORDINGS: u64 = 20;
const STATES: u64 = 1000;

/// Recordings, and states per class of syncs, of the test of torn writes.
const TORN_RECORDINGS: u64 = 2;
const TORN_STATES: usize = 16;

/// Number of broken states shown; more add no information.
const SHOWN: usize = 3;

#[test]
fn after_any_power_cut_every_promise_is_kept() {
    let mut rng = seeded_rng("power loss", 2);
    let states = setting("MLGW_CRASH_STATES", STATES);
    let start = Instant::now();
    let (mut tried, mut compacted) = (0, 0);
    let mut before: Option<RecordedRun> = None;
    for number in 0..RECORDINGS {
        let recorded = match &before {
            // Every other recording continues from a cut in the one before: two power cuts in a row.
            Some(before) if number % 2 == 1 => {
                let cut = cuts(before, 1, CutStyle::choose)[0];
                record_after(before, cut, rng.next())
            }
            _ => record(rng.next(), "full"),
        };
        let share = states * (number + 1) / RECORDINGS - states * number / RECORDINGS;
        let cuts = cuts(&recorded, usize::try_from(share).expect("small"), CutStyle::choose);
        let recovering = Instant::now();
        let (broken, done) = recover_all(&recorded, &cuts, NO_SYNCS_IGNORED, SHOWN);
        tried += done;
        eprintln!(
            "power loss: recording {} of {RECORDINGS}: {} events, {} KiB, {} segments, {} removed, \
             {} tables, {} answers; {}",
            number + 1,
            recorded.recording.position(),
            recorded.recording.written_bytes() >> 10,
            recorded.recording.created_count(".seg"),
            recorded.recording.removed_count(".seg"),
            recorded.recording.created_count(".sst"),
            *recorded.history.answers().borrow(),
            describe_rate(done, recovering),
        );
        let shown: Vec<String> = broken.iter().map(ToString::to_string).collect();
        assert!(broken.is_empty(), "power cuts violated guarantees:\n{}", shown.join("\n"));
        compacted += recorded.recording.removed_count(".seg");
        before = Some(recorded);
    }
    assert!(compacted > 100, "segments were removed during the recording, not {compacted}");
    eprintln!("power loss: {} in total, recording included", describe_rate(tried, start));
}

#[test]
fn a_write_torn_just_before_its_sync_is_survived() {
    let mut rng = seeded_rng("torn", 6);
    let mut broken = Vec::new();
    for _ in 0..TORN_RECORDINGS {
        let recorded = record(rng.next(), "full");
        // Names are not torn: only classes of files are used.
        let of_files = |class: IgnoredSyncs| {
            !recorded.recording.syncs(|path, names| !names && class(path, names)).is_empty()
        };
        for (name, class) in SYNC_CLASSES.iter().filter(|(_, class)| of_files(*class)) {
            let start = Instant::now();
            let cuts = cuts_before(&recorded, *class, TORN_STATES);
            let (found, done) = recover_all(&recorded, &cuts, NO_SYNCS_IGNORED, 1);
            eprintln!(
                "torn: before a sync of {name}: {}, {} broken",
                describe_rate(done, start),
                found.len()
            );
            broken.extend(found);
        }
    }
    let shown: Vec<String> = broken.iter().map(ToString::to_string).collect();
    assert!(broken.is_empty(), "power cuts violated guarantees:\n{}", shown.join("\n"));
}

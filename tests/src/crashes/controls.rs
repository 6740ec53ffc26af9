//! Controls: with one class of syncs left out, the same check must fail.
//!
//! The model leaves a sync out by making nothing durable, so one recording serves every class. A class whose
//! omission is never detected would be either a sync without effect or a gap in the tests.

use mlgw_common::time::Instant;

use super::classes::SYNC_CLASSES;
use super::recorded::{RecordedRun, record};
use super::states::{cuts, describe_rate, recover_all};
use crate::power_cut::{CutStyle, IgnoredSyncs, NO_SYNCS_IGNORED, PowerCut};
use crate::seed::{Rng, seeded_rng};

/// States per recording within which a missing sync must be detected.
const STATES_MAX: usize = 60;
const RECORDINGS: u64 = 2;

#[test]
fn every_omitted_class_of_syncs_is_detected() {
    let mut rng = seeded_rng("controls", 3);
    let recordings: Vec<RecordedRun> = (0..RECORDINGS).map(|_| record(rng.next(), "full")).collect();
    assert!(!is_detected("nothing", &recordings[..1], NO_SYNCS_IGNORED), "the recording itself is complete");
    let missed: Vec<&str> = SYNC_CLASSES
        .iter()
        .filter(|(name, ignored)| !is_detected(name, &recordings, *ignored))
        .map(|(name, _)| *name)
        .collect();
    assert!(missed.is_empty(), "omitted without a detected violation: {missed:?}");
}

#[test]
fn durability_os_loses_acknowledged_writes_at_a_power_cut() {
    let mut rng = seeded_rng("controls, os", 4);
    let recorded = [record(rng.next(), "os")];
    assert!(is_detected("every sync, with durability = \"os\",", &recorded, NO_SYNCS_IGNORED));
}

fn is_detected(name: &str, recordings: &[RecordedRun], ignored: IgnoredSyncs) -> bool {
    let start = Instant::now();
    let mut tried = 0;
    for recorded in recordings {
        let (broken, done) = recover_all(recorded, &most_destructive_cuts(recorded), ignored, 1);
        tried += done;
        if let Some(first) = broken.first() {
            eprintln!(
                "controls: {name} omitted: detected after {}: {}",
                describe_rate(tried, start),
                first.summary()
            );
            return true;
        }
    }
    eprintln!("controls: {name} omitted: not detected in {}", describe_rate(tried, start));
    false
}

/// Cuts that lose the most: they detect a missing sync first.
fn most_destructive_cuts(recorded: &RecordedRun) -> Vec<PowerCut> {
    cuts(recorded, STATES_MAX, |rng: &mut Rng| match rng.below(4) {
        0 => CutStyle::Mixed,
        1 => CutStyle::PerFile,
        _ => CutStyle::DropAll,
    })
}

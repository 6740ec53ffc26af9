//! Controls: with one class of syncs left out, the same check must fail.
//!
//! The model leaves a sync out by making nothing durable, so one recording serves every class. A class whose
//! omission is never detected would be either a sync without effect or a gap in the tests.

use std::time::Instant;

use super::classes::CLASSES;
use super::recorded::{Recorded, record};
use super::states::{cuts, rate, recover_all};
use crate::power_cut::{Cut, Ignored, NONE_IGNORED, Style};
use crate::seed::{Rng, announce};

/// States per recording within which a missing sync must be detected.
const STATES_MAX: usize = 60;
const RECORDINGS: u64 = 2;

#[test]
fn every_omitted_class_of_syncs_is_detected() {
    let mut rng = announce("controls", 3);
    let recordings: Vec<Recorded> = (0..RECORDINGS).map(|_| record(rng.next(), "full")).collect();
    assert!(!is_found("nothing", &recordings[..1], NONE_IGNORED), "the recording itself is whole");
    let missed: Vec<&str> = CLASSES
        .iter()
        .filter(|(name, ignored)| !is_found(name, &recordings, *ignored))
        .map(|(name, _)| *name)
        .collect();
    assert!(missed.is_empty(), "left out and not missed: {missed:?}");
}

#[test]
fn durability_os_loses_acknowledged_writes_at_a_power_cut() {
    let mut rng = announce("controls, os", 4);
    let recorded = [record(rng.next(), "os")];
    assert!(is_found("every sync, by durability = \"os\",", &recorded, NONE_IGNORED));
}

fn is_found(name: &str, recordings: &[Recorded], ignored: Ignored) -> bool {
    let start = Instant::now();
    let mut tried = 0;
    for recorded in recordings {
        let (broken, done) = recover_all(recorded, &severe(recorded), ignored, 1);
        tried += done;
        if let Some(first) = broken.first() {
            eprintln!("controls: {name} left out: found after {}: {}", rate(tried, start), first.summary());
            return true;
        }
    }
    eprintln!("controls: {name} left out: nothing found in {}", rate(tried, start));
    false
}

/// Cuts that lose the most: they detect a missing sync first.
fn severe(recorded: &Recorded) -> Vec<Cut> {
    cuts(recorded, STATES_MAX, |rng: &mut Rng| match rng.below(4) {
        0 => Style::Mixed,
        1 => Style::PerFile,
        _ => Style::LoseAll,
    })
}

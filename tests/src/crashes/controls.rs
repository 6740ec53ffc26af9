//! Controls: with one class of syncs left out, the very same check must turn red.
//!
//! A sync is left out by the model (it makes nothing durable), so one recording serves every class. A class
//! that is never missed would be either a sync that does nothing or a hole in the tests.

use std::time::Instant;

use super::classes::CLASSES;
use super::recorded::{Recorded, record};
use super::states::{cuts, rate, recover_all};
use crate::power_cut::{Cut, Ignored, NONE_IGNORED, Style};
use crate::seed::{Rng, announce};

/// States within which a missing sync must show, for each of the recordings.
const STATES_MAX: usize = 60;
const RECORDINGS: u64 = 2;

#[test]
fn a_class_of_syncs_that_is_left_out_is_found() {
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
fn durability_of_the_operating_system_loses_what_it_answered_for() {
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

/// Cuts that lose most: they find a missing sync first.
fn severe(recorded: &Recorded) -> Vec<Cut> {
    cuts(recorded, STATES_MAX, |rng: &mut Rng| match rng.below(4) {
        0 => Style::Mixed,
        1 => Style::PerFile,
        _ => Style::LoseAll,
    })
}

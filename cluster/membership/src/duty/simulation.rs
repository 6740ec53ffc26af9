//! Simulation of the duty: nodes with a common row are killed, paused and cut off, leaders change, and
//! answers to changes of the row are lost or changes are made late.
//!
//! Properties: while a change of an origin may still have an effect, no node begins one in another term; and
//! when everything is healthy long enough, some node acts. Each wait, left out, breaks the first one.

mod node;
mod world;

use super::{DutyStep, DutyWaits};
use world::World;

/// Schedules in which a wait that was left out must be missed.
const SEEDS_WITHOUT_WAIT: u64 = 20_000;

/// Replaces a step.
type AlteredStep = fn(DutyStep) -> DutyStep;

/// Runs a schedule. Returns the first violation.
fn run(seed: u64, alter: AlteredStep) -> Result<(), String> {
    let mut world = World::new(seed, alter);
    world.fail_at_random();
    world.calm_down()
}

/// Replaces the waits of take-overs that have `waits` by `by`.
fn replaced(step: DutyStep, waits: DutyWaits, by: DutyWaits) -> DutyStep {
    match step {
        DutyStep::TakeOver(duty, known) if known == waits => DutyStep::TakeOver(duty, by),
        other => other,
    }
}

/// Removes the rest of the waits of a process after a term of its own.
fn without_rest(step: DutyStep) -> DutyStep {
    match step {
        DutyStep::TakeOver(duty, waits) if waits != DutyWaits::LEFT && waits != DutyWaits::LOST => {
            DutyStep::TakeOver(duty, DutyWaits::NONE)
        }
        other => other,
    }
}

#[test]
fn acts_of_two_terms_never_overlap_and_some_term_acts_at_last() {
    mlgw_schedules::check_each(|seed| run(seed, |step| step));
}

#[test]
fn every_wait_is_needed() {
    let altered: [(&str, AlteredStep); 3] = [
        ("the end of a lease", |step| replaced(step, DutyWaits::LOST, DutyWaits::LEFT)),
        ("requests of a node that has stopped", |step| replaced(step, DutyWaits::LEFT, DutyWaits::NONE)),
        ("requests of the same process", without_rest),
    ];
    for (wait, alter) in altered {
        let schedule = (0..SEEDS_WITHOUT_WAIT).find(|seed| run(*seed, alter).is_err());
        let seed = schedule.unwrap_or_else(|| panic!("no schedule misses the wait for {wait}"));
        assert_eq!(run(seed, |step| step), Ok(()), "the wait for {wait} is not the cause");
    }
}

#[test]
fn a_schedule_is_determined_by_its_seed() {
    let trace = |seed| {
        let mut world = World::new(seed, |step| step);
        world.fail_at_random();
        world.trace
    };
    assert!(trace(3).len() > 3, "{:?}", trace(3));
    assert_eq!(trace(3), trace(3));
    assert_ne!(trace(3), trace(4));
}

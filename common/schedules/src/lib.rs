//! Random schedules of pure deciders: how many a test runs, and from which seed on. No part of the program
//! links this package. Tests read other numbers from the environment by it too ([`setting`]).
//!
//! A simulation chooses everything by its seed, so a failure is repeated with the seed that it names. Two
//! variables of the environment hold for all simulations:
//!
//! - `MLGW_SCHEDULES`: number of schedules (2,000)
//! - `MLGW_SEED`: seed of the first schedule (0); the next one has the next seed
//!
//! `tests/steps/rust-tests` sets the first seed by the number of commits, so that each commit runs schedules
//! that no commit before it has run, and a second run of one commit the same ones.

use std::ops::Range;

/// Schedules of a run, unless `MLGW_SCHEDULES` names another number.
pub const SCHEDULES: u64 = 2_000;

/// Returns the seeds of the schedules of this run.
///
/// # Panics
/// If a variable is set to something else than a number.
#[must_use]
pub fn seeds() -> Range<u64> {
    let first = setting("MLGW_SEED", 0);
    first..first.saturating_add(setting("MLGW_SCHEDULES", SCHEDULES))
}

/// Runs the schedule of each seed of this run.
///
/// # Panics
/// At the first schedule that returns an error, with its seed and the error.
pub fn check_each(run: impl FnMut(u64) -> Result<(), String>) {
    check_all(seeds(), run);
}

fn check_all(seeds: Range<u64>, mut run: impl FnMut(u64) -> Result<(), String>) {
    eprintln!("schedules of seeds {seeds:?}");
    for seed in seeds {
        if let Err(violation) = run(seed) {
            panic!("seed {seed} (repeat with MLGW_SEED={seed} MLGW_SCHEDULES=1): {violation}");
        }
    }
}

/// Returns a number from the environment, or the default, which CI uses.
///
/// # Panics
/// If the variable is set to something else than a number.
#[must_use]
pub fn setting(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name} must be a number, not {text:?}")),
        Err(_) => default,
    }
}

#[cfg(test)]
mod tests {
    use super::{SCHEDULES, check_all, setting};

    #[test]
    fn a_variable_that_is_not_set_has_its_default() {
        assert_eq!(setting("MLGW_SCHEDULES_OF_NO_TEST", SCHEDULES), SCHEDULES);
    }

    #[test]
    #[should_panic(expected = "PATH must be a number")]
    fn a_variable_that_is_no_number_is_named() {
        let _: u64 = setting("PATH", 0);
    }

    #[test]
    fn every_schedule_runs_once() {
        let mut seen = Vec::new();
        check_all(7..10, |seed| {
            seen.push(seed);
            Ok(())
        });
        assert_eq!(seen, [7, 8, 9]);
    }

    #[test]
    #[should_panic(expected = "seed 8 (repeat with MLGW_SEED=8 MLGW_SCHEDULES=1): it broke")]
    fn a_violation_is_named_with_its_seed() {
        check_all(7..10, |seed| if seed < 8 { Ok(()) } else { Err("it broke".to_owned()) });
    }
}

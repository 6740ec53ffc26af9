//! Simulation of decisions over a small Raft: nodes join, fail, return, drain and are removed; steps fail,
//! and their outcomes are unknown when a leader fails. After that, another group moves between sets of nodes,
//! and the sets of a cluster of several groups change while its nodes leave.
//!
//! Properties: no step violates an invariant (`checks`), no committed entry is lost (`raft`), and when
//! everything is healthy long enough, the goal is reached. Each rule, left out, breaks one of them.

mod checks;
mod moved;
mod placed;
mod raft;
mod world;

use crate::rules::{Rule, RuleSet};
use world::World;

/// Schedules in which a rule that was left out must be missed.
const SEEDS_WITHOUT_RULE: u64 = 20_000;

/// Runs a schedule. Returns the first violation.
fn run(seed: u64, rules: RuleSet) -> Result<(), String> {
    let mut world = World::new(seed, rules);
    world.grow();
    world.fail_at_random();
    world.calm_down();
    checks::goal_is_reached(&world)?;
    world.fail_one_for_long();
    checks::goal_is_reached(&world)?;
    placed::run(seed, rules)?;
    moved::run(seed, rules)
}

#[test]
fn no_schedule_breaks_an_invariant_and_the_goal_is_reached() {
    mlgw_schedules::check_each(|seed| run(seed, RuleSet::ALL));
}

#[test]
fn every_rule_is_needed() {
    for rule in Rule::ALL {
        let misses = |seed: &u64| run(*seed, RuleSet::without(rule)).is_err();
        let schedule = (0..SEEDS_WITHOUT_RULE).find(misses);
        let seed = schedule.unwrap_or_else(|| panic!("no schedule misses {rule:?}"));
        assert_eq!(run(seed, RuleSet::ALL), Ok(()), "{rule:?} is not the cause");
    }
}

#[test]
fn a_schedule_is_determined_by_its_seed() {
    let trace = |seed| {
        let mut world = World::new(seed, RuleSet::ALL);
        world.grow();
        world.fail_at_random();
        world.trace
    };
    assert!(trace(3).len() > 3, "{:?}", trace(3));
    assert_eq!(trace(3), trace(3));
    assert_ne!(trace(3), trace(4));
}

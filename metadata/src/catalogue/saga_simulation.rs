//! Simulation of the sagas of buckets: the real steps and the real `apply`, over a system group and three
//! groups of objects. Leaders change, runners are killed, answers are lost, and commands arrive late, also
//! after their runner has ended. Clients write and delete objects meanwhile.
//!
//! Properties: an active bucket is writable in all of its groups, no acknowledged object is lost, and when
//! nothing fails any more every bucket is active or gone. Each rule, left out, breaks one of them.

mod world;

use world::{SagaRules, World};

/// Schedules within which a rule that was left out must be missed.
const SEEDS_WITHOUT_RULE: u64 = 20_000;

/// Actions while faults happen.
const ACTIONS: usize = 300;

/// Runs a schedule. Returns the first violation.
fn run(seed: u64, rules: SagaRules) -> Result<(), String> {
    let mut world = World::new(seed, rules);
    for _ in 0..ACTIONS {
        world.act()?;
    }
    world.calm_down()
}

#[test]
fn no_schedule_loses_an_object_or_leaves_a_bucket_between_two_states() {
    mlgw_schedules::check_each(|seed| run(seed, SagaRules::ALL));
}

#[test]
fn every_rule_of_sagas_is_needed() {
    let left_out = [
        ("one runner writes to the system group", SagaRules { one_leadership: false, ..SagaRules::ALL }),
        ("freezes and thaws name their epoch", SagaRules { named_epochs: false, ..SagaRules::ALL }),
        ("mirrors and drops name their run", SagaRules { named_runs: false, ..SagaRules::ALL }),
        ("the leader looks again for buckets", SagaRules { looks_again: false, ..SagaRules::ALL }),
    ];
    for (rule, rules) in left_out {
        let schedule = (0..SEEDS_WITHOUT_RULE).find(|seed| run(*seed, rules).is_err());
        let seed = schedule.unwrap_or_else(|| panic!("no schedule misses that {rule}"));
        println!("{rule}: seed {seed}, {:?}", run(seed, rules));
        assert_eq!(run(seed, SagaRules::ALL), Ok(()), "it is not the cause that {rule}");
    }
}

#[test]
fn the_schedules_of_sagas_do_something() {
    let mut seen = world::Seen::default();
    for seed in 0..200 {
        let mut world = World::new(seed, SagaRules::ALL);
        for _ in 0..ACTIONS {
            assert_eq!(world.act(), Ok(()), "seed {seed}");
        }
        seen += world.seen;
    }
    let counts = [seen.created, seen.removed, seen.kept, seen.written, seen.resumed];
    assert!(counts.iter().all(|count| *count > 100), "{seen:?}");
}

//! Simulation of the ends of guests: the real steps and the real `apply`, over a system group and two groups
//! of objects, on three nodes with a set each. Groups move between the sets, and nodes leave groups and join
//! them again, with the rows that they have kept. Each node applies what is committed late. Writers create
//! segments and refer to them by commands that arrive late, segments are removed, runners are killed and
//! answers are lost.
//!
//! Property: a group refers to no removed segment, and to none of a set that it is not in and no guest of.
//! Each rule, left out, breaks it.

mod world;

use world::{GuestRules, World};

/// Schedules within which a rule that was left out must be missed.
const SEEDS_WITHOUT_RULE: u64 = 20_000;

/// Actions of a schedule.
const ACTIONS: usize = 300;

/// Runs a schedule. Returns the first violation.
fn run(seed: u64, rules: GuestRules) -> Result<(), String> {
    let mut world = World::new(seed, rules);
    (0..ACTIONS).try_for_each(|_| world.act())
}

#[test]
fn no_schedule_leaves_a_reference_to_a_segment_of_a_former_set() {
    mlgw_schedules::check_each(|seed| run(seed, GuestRules::ALL));
}

#[test]
fn every_rule_of_the_end_of_a_guest_is_needed() {
    let all = GuestRules::ALL;
    let left_out = [
        ("a node reads its rows after an append", GuestRules { checks_set: false, ..all }),
        ("an end names the next segment", GuestRules { names_segment: false, ..all }),
        (
            "a removal names the groups that have released the segment",
            GuestRules { names_groups: false, ..all },
        ),
    ];
    for (rule, rules) in left_out {
        let schedule = (0..SEEDS_WITHOUT_RULE).find(|seed| run(*seed, rules).is_err());
        let seed = schedule.unwrap_or_else(|| panic!("no schedule misses that {rule}"));
        println!("{rule}: seed {seed}, {:?}", run(seed, rules));
        assert_eq!(run(seed, all), Ok(()), "it is not the cause that {rule}");
    }
}

#[test]
fn the_schedules_of_guests_do_something() {
    let mut seen = world::Seen::default();
    for seed in 0..200 {
        let mut world = World::new(seed, GuestRules::ALL);
        for _ in 0..ACTIONS {
            assert_eq!(world.act(), Ok(()), "seed {seed}");
        }
        seen += world.seen;
    }
    let counts =
        [seen.ended, seen.not_ended, seen.removed, seen.written, seen.fenced, seen.left, seen.joined];
    assert!(counts.iter().all(|count| *count > 50), "{seen:?}");
}

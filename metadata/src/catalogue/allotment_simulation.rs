//! Simulation of allotments: the real steps and the real `apply`, over a system group and three groups of
//! objects. Several nodes divide the quota of an access key at once, runners are killed, answers are lost,
//! and commands arrive late, also after their runner has ended. Clients write and delete objects meanwhile,
//! and the quota changes.
//!
//! Properties: between two changes of the quota, slices that fit never exceed it together, and others never
//! grow from one allotment to the next; so neither does the usage. When nothing fails any more, the slices
//! fit, and the whole quota can be used in any group, and nothing beyond it. Each rule, left out, breaks one
//! of them.

mod world;

use world::{AllotmentRules, World};

/// Schedules within which a rule that was left out must be missed.
const SEEDS_WITHOUT_RULE: u64 = 20_000;

/// Actions while faults happen.
const ACTIONS: usize = 300;

/// Runs a schedule. Returns the first violation.
fn run(seed: u64, rules: AllotmentRules) -> Result<(), String> {
    let mut world = World::new(seed, rules);
    for _ in 0..ACTIONS {
        world.act()?;
    }
    world.calm_down()
}

#[test]
fn no_schedule_exceeds_a_divided_quota_or_leaves_a_part_of_it_unusable() {
    mlgw_schedules::check_each(|seed| run(seed, AllotmentRules::ALL));
}

#[test]
fn every_rule_of_allotments_is_needed() {
    let left_out = [
        (
            "each allotment has a number of its own",
            AllotmentRules { own_numbers: false, ..AllotmentRules::ALL },
        ),
        (
            "the whole quota is divided among all groups",
            AllotmentRules { all_groups: false, ..AllotmentRules::ALL },
        ),
    ];
    for (rule, rules) in left_out {
        let schedule = (0..SEEDS_WITHOUT_RULE).find(|seed| run(*seed, rules).is_err());
        let seed = schedule.unwrap_or_else(|| panic!("no schedule misses that {rule}"));
        println!("{rule}: seed {seed}, {:?}", run(seed, rules));
        assert_eq!(run(seed, AllotmentRules::ALL), Ok(()), "it is not the cause that {rule}");
    }
}

#[test]
fn the_schedules_of_allotments_do_something() {
    let mut seen = world::Seen::default();
    for seed in 0..400 {
        let mut world = World::new(seed, AllotmentRules::ALL);
        for _ in 0..ACTIONS {
            assert_eq!(world.act(), Ok(()), "seed {seed}");
        }
        seen += world.seen;
    }
    let counts = [seen.written, seen.full, seen.exceeded, seen.divided, seen.late, seen.changed];
    assert!(counts.iter().all(|count| *count > 100), "{seen:?}");
}

#[test]
fn groups_that_answer_move_slices_among_each_other_and_others_keep_theirs() {
    let mut world = World::new(0, AllotmentRules::ALL);
    assert_eq!(world.divide_calmly(30), Ok(()));
    world.take_down(Some(3));
    assert_eq!(world.writes_with_room(1, 15), Ok(true), "group 2 has room");
    assert_eq!(world.writes_with_room(1, 6), Ok(false), "only group 3 has room for it");
    assert_eq!(world.writes_with_room(2, 5), Ok(true));
    assert_eq!(world.seen.exceeded, 0, "the quota has room");
    world.take_down(None);
    assert_eq!(world.writes_with_room(1, 6), Ok(true));
    assert_eq!(world.writes_with_room(2, 5), Ok(false));
    assert_eq!(world.seen.exceeded, 1);
}

//! Compaction against everything that goes on around it, in memory, a seed for every schedule.
//!
//! The [world](world) is a catalogue with the real `apply`, a log that can lose its tail, segment
//! files that can lose theirs, requests whose proposals are delayed at will, readers that take their
//! time, and the real decisions of compaction, carried out one step at a time in between. A schedule
//! is random; whatever it does, no byte that a record refers to is ever gone, no reader loses the body
//! it began with, no request fails because of compaction, and in the end every dead byte comes back.
//!
//! The controls leave out one rule each, and must then find a schedule that breaks a promise.
//! `MLGW_MODEL_SCHEDULES` and `MLGW_MODEL_SEED` make the run longer or another one.

mod catalogue;
mod crash;
mod disk;
mod driver;
mod world;

use world::{Rules, Seen, World};

/// Schedules of a usual run.
const SCHEDULES: u64 = 12_000;
/// Within so many schedules a rule that is left out must show.
const CONTROL_SCHEDULES: u64 = 20_000;
/// Actions of one schedule.
const ACTIONS: usize = 140;

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Runs schedules on two threads: the first broken promise, with its seed, and what was seen.
fn first_broken(rules: Rules, schedules: u64) -> (Option<(u64, String)>, Seen) {
    let first = setting("MLGW_MODEL_SEED", 1);
    let half = |parity: u64| {
        let mut seen = Seen::default();
        let broken = (first..first + schedules).filter(|seed| seed % 2 == parity).find_map(|seed| {
            let mut world = World::new(seed, rules);
            let broken = world.run(ACTIONS).err();
            seen += world.seen;
            broken.map(|broken| (seed, broken))
        });
        (broken, seen)
    };
    std::thread::scope(|scope| {
        let odd = scope.spawn(|| half(1));
        let (even, mut seen) = half(0);
        let (odd, also) = odd.join().unwrap();
        seen += also;
        (odd.into_iter().chain(even).min(), seen)
    })
}

#[test]
fn no_schedule_loses_a_referenced_byte_or_keeps_a_dead_one() {
    let schedules = setting("MLGW_MODEL_SCHEDULES", SCHEDULES);
    let (broken, seen) = first_broken(Rules::ALL, schedules);
    assert_eq!(broken, None, "of {schedules} schedules");
    eprintln!("{schedules} schedules: {seen:?}");
    assert!(seen.released > schedules && seen.moved > schedules, "compaction happens: {seen:?}");
    assert!(
        seen.looked_again > schedules / 500 && seen.crashes > schedules,
        "and what disturbs it: {seen:?}"
    );
}

fn is_missed(what: &str, rules: Rules, expected: &[&str]) {
    let (broken, seen) = first_broken(rules, CONTROL_SCHEDULES);
    let (seed, why) = broken.unwrap_or_else(|| panic!("without {what} nothing broke: {seen:?}"));
    eprintln!("without {what}: seed {seed}: {why}");
    assert!(expected.iter().any(|part| why.contains(part)), "without {what} something else broke: {why}");
}

#[test]
fn without_the_rule_of_appends_in_flight_a_request_fails() {
    let rules = Rules { in_flight: false, ..Rules::ALL };
    is_missed("holds", rules, &["went while a request held", "a request was refused", "is not in segment"]);
}

#[test]
fn without_the_fence_a_referenced_byte_is_lost() {
    is_missed("fences", Rules { fence: false, ..Rules::ALL }, &["is not in segment"]);
}

#[test]
fn without_pins_a_reader_loses_its_body() {
    is_missed("pins", Rules { pins: false, ..Rules::ALL }, &["a reader lost body"]);
}

#[test]
fn without_looking_again_a_reader_fails() {
    is_missed("looking again", Rules { look_again: false, ..Rules::ALL }, &["a reader found segment"]);
}

#[test]
fn without_waiting_for_what_freed_it_to_be_synced_a_byte_is_lost() {
    is_missed("settling", Rules { settle: false, ..Rules::ALL }, &["is not in segment"]);
}

#[test]
fn a_schedule_is_the_same_every_time() {
    for seed in 1..50 {
        let trace = |mut world: World| (world.run(ACTIONS), world.trace());
        assert_eq!(trace(World::new(seed, Rules::ALL)), trace(World::new(seed, Rules::ALL)));
    }
}

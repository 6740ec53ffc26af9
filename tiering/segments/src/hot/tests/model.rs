//! Model test of compaction against all concurrent activity, in memory, with one seed per schedule.
//!
//! The [world](world) consists of a catalogue with the real `apply`, a log that can lose its tail, segment
//! files that can lose theirs, requests whose proposals are delayed arbitrarily, slow readers, and the real
//! decisions of compaction, executed one step at a time in between. Schedules are random. In every schedule
//! no referenced byte is ever lost, no reader loses the body that it started with, no request fails because
//! of compaction, and in the end every dead byte is freed.
//!
//! The controls leave out one rule each, and must then find a schedule that breaks an invariant.

mod catalogue;
mod crash;
mod disk;
mod driver;
mod world;

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use world::{Safeguards, ScheduleStats, World};

/// Number of schedules within which a missing rule must be detected.
const CONTROL_SCHEDULES: u64 = 20_000;
/// Actions per schedule.
const ACTIONS: usize = 140;

/// Runs schedules on two threads. Returns the first broken invariant with its seed, and the statistics.
fn first_broken(safeguards: Safeguards, seeds: Range<u64>) -> (Option<(u64, String)>, ScheduleStats) {
    // Neither thread runs the schedules after a broken one.
    let end = AtomicU64::new(seeds.end);
    let half = |parity: u64| {
        let mut seen = ScheduleStats::default();
        let seeds = seeds.clone().filter(|seed| seed % 2 == parity);
        let broken = seeds.take_while(|seed| *seed < end.load(Ordering::Relaxed)).find_map(|seed| {
            let mut world = World::new(seed, safeguards);
            let broken = world.run(ACTIONS).err();
            seen += world.seen;
            broken.map(|broken| (seed, broken))
        });
        if let Some((seed, _)) = &broken {
            end.fetch_min(*seed, Ordering::Relaxed);
        }
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
fn no_schedule_loses_a_referenced_byte_or_leaves_a_dead_one() {
    let seeds = mlgw_schedules::seeds();
    let schedules = seeds.end - seeds.start;
    let (broken, seen) = first_broken(Safeguards::ALL, seeds.clone());
    assert_eq!(broken, None, "of the schedules {seeds:?}");
    eprintln!("schedules {seeds:?}: {seen:?}");
    // Second lookups are rare. A control needs them.
    let often = [seen.released, seen.moved, seen.crashes];
    assert!(often.iter().all(|count| *count > schedules / 2), "it happens, and what disturbs it: {seen:?}");
}

fn assert_control_fails(what: &str, safeguards: Safeguards, expected: &[&str]) {
    let (broken, seen) = first_broken(safeguards, 1..1 + CONTROL_SCHEDULES);
    let (seed, why) = broken.unwrap_or_else(|| panic!("without {what} nothing broke: {seen:?}"));
    eprintln!("without {what}: seed {seed}: {why}");
    assert!(expected.iter().any(|part| why.contains(part)), "without {what} something else broke: {why}");
}

#[test]
fn without_holds_a_request_fails() {
    let safeguards = Safeguards { in_flight: false, ..Safeguards::ALL };
    assert_control_fails(
        "holds",
        safeguards,
        &["was removed while a request held", "a request was refused", "is not in segment"],
    );
}

#[test]
fn without_the_fence_a_referenced_byte_is_lost() {
    assert_control_fails("fences", Safeguards { fence: false, ..Safeguards::ALL }, &["is not in segment"]);
}

#[test]
fn without_pins_a_reader_loses_its_body() {
    assert_control_fails("pins", Safeguards { pins: false, ..Safeguards::ALL }, &["a reader lost body"]);
}

#[test]
fn without_a_second_lookup_a_reader_fails() {
    assert_control_fails(
        "looking again",
        Safeguards { second_lookup: false, ..Safeguards::ALL },
        &["a reader found segment"],
    );
}

#[test]
fn without_the_sync_before_unlink_a_byte_is_lost() {
    assert_control_fails(
        "settling",
        Safeguards { sync_before_unlink: false, ..Safeguards::ALL },
        &["is not in segment"],
    );
}

#[test]
fn a_schedule_is_deterministic() {
    for seed in 1..50 {
        let trace = |mut world: World| (world.run(ACTIONS), world.trace());
        assert_eq!(trace(World::new(seed, Safeguards::ALL)), trace(World::new(seed, Safeguards::ALL)));
    }
}

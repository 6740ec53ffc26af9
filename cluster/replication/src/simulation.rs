//! Simulation of replication: nodes with disks that lose what was not synced, messages that are late or lost,
//! a segment group whose leaders change, faults, and everything that this crate decides.
//!
//! Properties: no step violates an invariant (`checks`), writes never stand still because of one slow node,
//! and when nothing fails any more all segments are sealed and have their copies. Each rule, left out, breaks
//! one of them. `MLGW_SCHEDULES` sets the number of schedules; a failure names its seed.

mod checks;
mod copies;
mod disk;
mod faults;
mod group;
mod network;
mod primaries;
mod recoveries;
mod referrers;
mod replicas;
mod truth;
mod violation;
mod world;

use crate::rules::{ReplicationRule, ReplicationRules};
use faults::ScheduleKind;
use violation::{Violation, ViolationKind};
use world::World;

/// Schedules of a run, unless `MLGW_SCHEDULES` names another number.
const SCHEDULES: u64 = 400;

/// Schedules within which a rule that was left out must be missed.
const SEEDS_WITHOUT_RULE: u64 = 4_000;

/// Time with faults, and the longest time until everything is repaired.
const FAULTS_MS: u64 = 12_000;
const CALM_MS: u64 = 60_000;

/// Time within which a slow node may delay writes.
const PAUSE_MS: u64 = 4_000;

/// Last events that a failure shows.
const EVENTS_SHOWN: usize = 60;

/// Runs a schedule. Returns the first violation.
fn run(seed: u64, rules: ReplicationRules) -> Result<(), Violation> {
    run_world(seed, rules).violation.map_or(Ok(()), Err)
}

fn run_world(seed: u64, rules: ReplicationRules) -> World {
    let mut world = World::new(seed, rules);
    world.run_for(FAULTS_MS, |_| false);
    if world.swarm.kind == ScheduleKind::SlowNode {
        writes_go_on(&mut world);
    }
    world.calm_down();
    world.run_for(CALM_MS, World::is_converged);
    if let Some(what) = world.unfinished() {
        world.violated(ViolationKind::Unfinished, what);
    }
    world
}

/// Every node but the slow one has acknowledged something lately.
fn writes_go_on(world: &mut World) {
    let fast = world.nodes.iter().filter(|(_, node)| node.slow_ms == 0).map(|(id, _)| *id);
    let last = |node| world.truth.last_acknowledged.get(&node).copied().unwrap_or(0);
    let stands_still = fast.into_iter().find(|node| last(*node) + PAUSE_MS < world.now);
    if let Some(node) = stands_still {
        world.violated(ViolationKind::Pause, format_args!("writes to {node} stand still"));
    }
}

#[test]
fn no_schedule_breaks_an_invariant_and_all_copies_are_made() {
    let schedules = std::env::var("MLGW_SCHEDULES").map_or(SCHEDULES, |count| count.parse().unwrap());
    for seed in 0..schedules {
        let World { violation, trace, .. } = run_world(seed, ReplicationRules::ALL);
        let last = &trace[trace.len().saturating_sub(EVENTS_SHOWN)..];
        assert_eq!(violation, None, "seed {seed}, after {last:#?}");
        assert_eq!(referrers::run(seed, ReplicationRules::ALL), Ok(()), "seed {seed}");
    }
}

#[test]
fn a_schedule_is_determined_by_its_seed() {
    let trace = |seed| run_world(seed, ReplicationRules::ALL).trace;
    assert!(trace(3).len() > 3, "{:?}", trace(3));
    assert_eq!(trace(3), trace(3));
    assert_ne!(trace(3), trace(4));
}

#[test]
fn schedules_do_something() {
    let worlds: Vec<World> = (0..50).map(|seed| run_world(seed, ReplicationRules::ALL)).collect();
    let acknowledged: u64 = worlds.iter().map(|world| world.truth.acknowledged).sum();
    let sealed = worlds.iter().flat_map(|world| world.group.records.values());
    let sealed = sealed.filter(|record| record.sealed.is_some()).count();
    assert!(acknowledged > 5_000, "{acknowledged}");
    assert!(sealed > 500, "{sealed}");
}

type RunSchedule = fn(u64, ReplicationRules) -> Result<(), Violation>;

/// Finds a schedule that is violated in this way without a rule, and not at all with it.
fn is_needed(rule: ReplicationRule, kind: ViolationKind, run: RunSchedule) {
    let without = |seed| run(seed, ReplicationRules::without(rule)).err();
    let misses = |seed: &u64| without(*seed).is_some_and(|violation| violation.kind == kind);
    let schedule = (0..SEEDS_WITHOUT_RULE).find(misses);
    let seed = schedule.unwrap_or_else(|| panic!("no schedule misses {rule:?}"));
    println!("{rule:?}: seed {seed}, {:?}", without(seed));
    assert_eq!(run(seed, ReplicationRules::ALL), Ok(()), "{rule:?} is not the cause");
}

macro_rules! needed {
    ($($test:ident: $rule:ident prevents $kind:ident in $run:path;)*) => {
        $(
            #[test]
            fn $test() {
                is_needed(ReplicationRule::$rule, ViolationKind::$kind, $run);
            }
        )*

        #[test]
        fn every_rule_has_a_test() {
            let tested = [$(ReplicationRule::$rule),*];
            assert_eq!(tested, ReplicationRule::ALL);
        }
    };
}

needed! {
    without_quorum_synced: QuorumSynced prevents Loss in run;
    without_primary_among_them: PrimaryAmongThem prevents Loss in run;
    without_dropped_count: DroppedCount prevents Loss in run;
    without_trail_is_bounded: TrailIsBounded prevents Trail in run;
    without_nothing_after_proposal: NothingAfterProposal prevents Loss in run;
    without_record_decides: RecordDecides prevents Loss in run;
    without_truncate_after_seal: TruncateAfterSeal prevents Loss in run;
    without_open_only_once: OpenOnlyOnce prevents Loss in run;
    without_right_ends_with_restart: RightEndsWithRestart prevents Loss in run;
    without_offset_is_end: OffsetIsEnd prevents Loss in run;
    without_acknowledge_synced: AcknowledgeSynced prevents Loss in run;
    without_close_is_durable: CloseIsDurable prevents Loss in run;
    without_marker_without_file: MarkerWithoutFile prevents Loss in run;
    without_close_ends_writes: CloseEndsWrites prevents Loss in run;
    without_close_syncs: CloseSyncs prevents Loss in run;
    without_nothing_after_close: NothingAfterClose prevents Loss in run;
    without_old_copies_refused: OldCopiesRefused prevents Loss in run;
    without_enough_answers: EnoughAnswers prevents Loss in run;
    without_distinct_answers: DistinctAnswers prevents Loss in run;
    without_own_replicas_only: OwnReplicasOnly prevents Loss in run;
    without_recorded_quorum: RecordedQuorum prevents Loss in run;
    without_primary_answers: PrimaryAnswers prevents Loss in run;
    without_lost_never_counts: LostNeverCounts prevents Loss in run;
    without_largest_end: LargestEnd prevents Loss in run;
    without_scan_past_damage: ScanPastDamage prevents Loss in run;
    without_damage_is_filled: DamageIsFilled prevents Loss in run;
    without_damage_never_shortens: DamageNeverShortens prevents Loss in run;
    without_named_have_length: NamedHaveLength prevents Loss in run;
    without_quorum_is_named: QuorumIsNamed prevents Loss in run;
    without_first_seal_decides: FirstSealDecides prevents Loss in run;
    without_fence_before_count: FenceBeforeCount prevents Loss in referrers::run;
    without_extents_before_lookup: ExtentsBeforeLookup prevents Loss in referrers::run;
    without_suspect_is_source: SuspectIsSource prevents Unfinished in run;
    without_drop_after_enough: DropAfterEnough prevents Loss in run;
    without_last_stays: LastStays prevents Loss in run;
    without_changes_compared: ChangesCompared prevents Loss in run;
    without_late_is_left_out: LateIsLeftOut prevents Pause in run;
    without_last_two_stay: LastTwoStay prevents Pause in run;
}

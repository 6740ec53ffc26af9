//! Simulation of replication: nodes with disks that lose what was not synced, streams that break off,
//! commands that are recorded late, faults, nodes that leave, and everything that this crate decides.
//!
//! Properties: no step violates an invariant (`checks`), writes never stall because of one slow node,
//! and when nothing fails any more all segments are sealed and have their copies. Each rule, left out, breaks
//! one of them. A failure names its seed and the last events; `mlgw_schedules` has the number of schedules.

mod checks;
mod faults;
mod recoveries;
mod replicas;
mod world;
mod writers;

use crate::rules::{ReplicationRule, ReplicationRules};
use faults::ScheduleKind;
use world::World;

/// Schedules within which a rule that was left out must be missed.
const SEEDS_WITHOUT_RULE: u64 = 20_000;

/// Time with faults, and the longest time until everything is repaired.
const FAULTS_MS: u64 = 8_000;
const CALM_MS: u64 = 30_000;

/// Time for which a slow node may delay writes: its two answers with two nodes left, and none otherwise.
const PAUSE_MS: u64 = 900;
const PAUSE_OF_TWO_MS: u64 = 4_000;

/// Last events that a failure shows.
const EVENTS_SHOWN: usize = 60;

fn run(seed: u64, rules: ReplicationRules) -> World {
    let mut world = World::new(seed, rules);
    world.run_for(FAULTS_MS, |_| false);
    if world.swarm.kind == ScheduleKind::SlowNode {
        writes_go_on(&mut world);
    }
    world.calm_down();
    world.run_for(CALM_MS, |world| world.unfinished().is_none());
    if let Some(what) = world.unfinished() {
        world.violated(what);
    }
    world
}

/// Every node but the slow one acknowledges all the time.
fn writes_go_on(world: &mut World) {
    let is_fast = |node: &world::SimNode| node.slow_disk_ms + node.slow_network_ms == 0;
    let fast = world.nodes.iter().filter(|(_, node)| is_fast(node));
    let pause_max = if world.nodes.len() == 2 { PAUSE_OF_TWO_MS } else { PAUSE_MS };
    let pause = |node: &world::SimNode| node.longest_pause.max(world.now - node.last_acknowledged);
    let still = fast.map(|(id, node)| (*id, pause(node))).find(|(_, pause)| *pause > pause_max);
    if let Some((node, _)) = still {
        world.violated(format!("writes to {node} stand still"));
    }
}

#[test]
fn no_schedule_breaks_an_invariant_and_all_copies_are_made() {
    mlgw_schedules::check_each(|seed| {
        let World { violation, trace, .. } = run(seed, ReplicationRules::ALL);
        let last = &trace[trace.len().saturating_sub(EVENTS_SHOWN)..];
        violation.map_or(Ok(()), |violation| Err(format!("{violation}, after {last:#?}")))
    });
}

#[test]
fn a_schedule_is_determined_by_its_seed() {
    let trace = |seed| run(seed, ReplicationRules::ALL).trace;
    assert!(trace(3).len() > 3, "{:?}", trace(3));
    assert_eq!(trace(3), trace(3));
    assert_ne!(trace(3), trace(4));
}

#[test]
fn schedules_do_something() {
    let worlds: Vec<World> = (0..50).map(|seed| run(seed, ReplicationRules::ALL)).collect();
    let acknowledged: u64 = worlds.iter().flat_map(|world| world.truth.acknowledged.values()).sum();
    let sealed = worlds.iter().flat_map(|world| world.records.values());
    let sealed = sealed.filter(|record| record.sealed.is_some()).count();
    assert!(acknowledged > 5_000, "{acknowledged}");
    assert!(sealed > 500, "{sealed}");
}

/// Finds a schedule that is violated without a rule, and not with it.
fn is_needed(rule: ReplicationRule) {
    let violation = |seed: u64, rules| run(seed, rules).violation;
    let misses = |seed: &u64| violation(*seed, ReplicationRules::without(rule)).is_some();
    let schedule = (0..SEEDS_WITHOUT_RULE).find(misses);
    let seed = schedule.unwrap_or_else(|| panic!("no schedule misses {rule:?}"));
    println!("{rule:?}: seed {seed}, {:?}", violation(seed, ReplicationRules::without(rule)));
    assert_eq!(violation(seed, ReplicationRules::ALL), None, "{rule:?} is not the cause");
}

macro_rules! needed {
    ($($test:ident: $rule:ident;)*) => {
        $(
            #[test]
            fn $test() {
                is_needed(ReplicationRule::$rule);
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
    without_quorum_synced: QuorumSynced;
    without_primary_among_them: PrimaryAmongThem;
    without_dropped_count: DroppedCount;
    without_trail_is_bounded: TrailIsBounded;
    without_nothing_after_proposal: NothingAfterProposal;
    without_named_have_length: NamedHaveLength;
    without_all_are_named: AllAreNamed;
    without_begun_when_all_opened: BegunWhenAllOpened;
    without_acknowledge_synced: AcknowledgeSynced;
    without_right_ends_with_restart: RightEndsWithRestart;
    without_close_ends_right: CloseEndsRight;
    without_close_awaits_write: CloseAwaitsWrite;
    without_close_syncs: CloseSyncs;
    without_enough_answers: EnoughAnswers;
    without_no_file_counts_last: NoFileCountsLast;
    without_largest_length: LargestLength;
    without_uncertain_end_waits: UncertainEndWaits;
    without_shorter_is_marked: ShorterIsMarked;
    without_damaged_is_marked: DamagedIsMarked;
    without_owner_is_named: OwnerIsNamed;
    without_first_seal_decides: FirstSealDecides;
    without_suspect_is_source: SuspectIsSource;
    without_drop_after_enough: DropAfterEnough;
    without_last_stays: LastStays;
    without_leaving_is_no_copy: LeavingIsNoCopy;
    without_leaving_takes_no_copy: LeavingTakesNoCopy;
    without_leaving_drops_last: LeavingDropsLast;
    without_owner_is_replaced: OwnerIsReplaced;
    without_only_leaving_is_replaced: OnlyLeavingIsReplaced;
    without_heir_is_good: HeirIsGood;
    without_removed_is_forgotten: RemovedIsForgotten;
    without_removed_never_answers: RemovedNeverAnswers;
    without_set_is_kept: SetIsKept;
    without_changes_compared: ChangesCompared;
    without_late_is_left_out: LateIsLeftOut;
    without_last_two_stay: LastTwoStay;
}

//! The faults of a round, and their schedule, which the seed determines. Pure.
//!
//! Faults follow each other: each is healed before the next one begins. So a majority is missing only while
//! two nodes are down, and never for longer than that fault.

use std::time::Duration;

use crate::seed::Rng;

/// Pause between two faults.
const REST: [Duration; 2] = [Duration::from_millis(1_000), Duration::from_millis(2_500)];

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FaultKind {
    /// `kill -9`, and a start.
    Kill,
    /// `kill -9` of the node and a further storage node: no majority is left.
    KillTwo,
    /// SIGSTOP, and SIGCONT.
    Pause,
    /// SIGTERM, on which a leader hands over, and a start.
    Restart,
    /// Nothing passes between the node and all others.
    Isolate,
    /// Nothing passes between the node and one other storage node.
    Cut,
    /// Nothing passes from the node to the others.
    Mute,
    /// Nothing passes from the others to the node.
    Deafen,
    /// Like `Isolate`, many times for a moment.
    Flap,
    /// The file of a sealed segment is removed from the node, once in a round.
    RemoveSegment,
}

/// The part of a node in the cluster when a fault begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FaultTarget {
    /// It leads the system group.
    SystemLeader,
    /// It leads a group of objects that another node than the system leader leads.
    ObjectLeader,
    /// The storage node that is neither of them.
    Other,
}

impl FaultTarget {
    const ALL: [Self; 3] = [Self::SystemLeader, Self::ObjectLeader, Self::Other];
}

/// A fault that is planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PlannedFault {
    pub(super) kind: FaultKind,
    pub(super) target: FaultTarget,
    /// Time until it is healed.
    pub(super) duration: Duration,
    /// Pause after it.
    pub(super) rest: Duration,
    /// Seed of further choices, such as that of a file.
    pub(super) choice: u64,
}

/// The kinds of faults of a round.
#[derive(Clone, Copy, Debug)]
pub(super) struct FaultMix {
    pub(super) name: &'static str,
    pub(super) kinds: &'static [FaultKind],
}

pub(super) const KILLS: FaultMix = FaultMix { name: "kills", kinds: &[FaultKind::Kill] };
pub(super) const PAUSES: FaultMix =
    FaultMix { name: "pauses", kinds: &[FaultKind::Pause, FaultKind::Restart, FaultKind::Pause] };
pub(super) const PARTITIONS: FaultMix =
    FaultMix { name: "partitions", kinds: &[FaultKind::Isolate, FaultKind::Cut] };
pub(super) const ONE_WAY: FaultMix =
    FaultMix { name: "one way", kinds: &[FaultKind::Mute, FaultKind::Deafen] };
pub(super) const FLAPPING: FaultMix =
    FaultMix { name: "flapping", kinds: &[FaultKind::Flap, FaultKind::RemoveSegment, FaultKind::Flap] };
pub(super) const ALL: FaultMix = FaultMix {
    name: "all",
    kinds: &[
        FaultKind::Kill,
        FaultKind::Isolate,
        FaultKind::Pause,
        FaultKind::KillTwo,
        FaultKind::Mute,
        FaultKind::RemoveSegment,
        FaultKind::Restart,
        FaultKind::Flap,
        FaultKind::Cut,
        FaultKind::Deafen,
    ],
};

/// All mixes. The seed of a round chooses one.
pub(super) const MIXES: [FaultMix; 6] = [KILLS, PAUSES, PARTITIONS, ONE_WAY, FLAPPING, ALL];

/// Returns the faults of a round, which together last as long as the load, and at least as many as there are
/// targets. Kinds and targets take turns from random ones on.
pub(super) fn schedule(rng: &mut Rng, mix: &FaultMix, load: Duration) -> Vec<PlannedFault> {
    let (first_kind, first_target) = (rng.index(mix.kinds.len()), rng.index(FaultTarget::ALL.len()));
    // The longer ones outlast the limits after which connections and nodes count as lost.
    let lengths = [Duration::from_millis(1_500), load / 2 - load / 8];
    let mut planned = Vec::new();
    let mut length = Duration::ZERO;
    for turn in 0.. {
        if length >= load && planned.len() >= FaultTarget::ALL.len() {
            break;
        }
        let fault = PlannedFault {
            kind: mix.kinds[(first_kind + turn) % mix.kinds.len()],
            target: FaultTarget::ALL[(first_target + turn) % FaultTarget::ALL.len()],
            duration: between(rng, lengths),
            rest: between(rng, REST),
            choice: rng.next(),
        };
        length += fault.duration + fault.rest;
        planned.push(fault);
    }
    planned
}

/// A time between these two, small ones more often.
fn between(rng: &mut Rng, [shortest, longest]: [Duration; 2]) -> Duration {
    let range = u64::try_from((longest - shortest).as_millis()).expect("small");
    let extra = rng.below(range + 1).min(rng.below(range + 1));
    shortest + Duration::from_millis(extra)
}

#[test]
fn a_schedule_is_determined_by_its_seed_and_reaches_every_target() {
    const LOAD: Duration = Duration::from_secs(16);
    for mix in &MIXES {
        for seed in 0..50 {
            let planned = schedule(&mut Rng::new(seed), mix, LOAD);
            assert_eq!(planned, schedule(&mut Rng::new(seed), mix, LOAD), "{}", mix.name);
            for target in FaultTarget::ALL {
                assert!(planned.iter().any(|fault| fault.target == target), "{}: {planned:?}", mix.name);
            }
            assert!(planned.iter().all(|fault| fault.duration < LOAD / 2), "{}: {planned:?}", mix.name);
        }
    }
    let kinds = |seed| schedule(&mut Rng::new(seed), &ALL, LOAD).first().map(|fault| fault.kind);
    assert!((1..20).any(|seed| kinds(seed) != kinds(0)));
}

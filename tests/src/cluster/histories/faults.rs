//! The faults of a round, and their schedule, which the seed determines. Pure.
//!
//! Faults follow each other: each is healed before the next one begins. So a majority is missing only while
//! two nodes are down, and never for longer than that fault.

use std::time::Duration;

use crate::seed::Rng;

/// Pause between two faults.
const REST: [Duration; 2] = [Duration::from_millis(1_000), Duration::from_millis(2_500)];

/// Kinds of a mix that all occur in each of its rounds, if they are not more.
const KINDS_PER_ROUND: usize = 6;
/// Shortest time of a fault of a disk: a sync may take two seconds.
const DISK_FAULT_MIN: Duration = Duration::from_secs(4);

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FaultKind {
    /// `kill -9`, and a start.
    Kill,
    /// `kill -9` of the node and a further storage node: no majority is left.
    KillTwo,
    /// A writer hangs until the duty node recovers its open segments. The duty node is killed meanwhile.
    KillRecoverer,
    /// SIGSTOP, and SIGCONT.
    Pause,
    /// SIGTERM, on which a leader hands over, and a start.
    Restart,
    /// The same of all nodes, one after the other.
    RollingRestart,
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
    /// The file of a sealed segment is removed from the node.
    RemoveSegment,
    /// The node is killed, and starts with an empty segment directory.
    WipeSegments,
    /// A copy of the disk of the node starts while the node runs.
    CloneDisk,
    /// An old copy of the disk of the node starts after the node was killed.
    RestoreDisk,
    /// The clock of the node is wrong by a minute or by days, in either direction.
    ClockJump,
    /// Each sync of the faulty disk takes two seconds.
    SlowSyncs,
    /// The faulty disk has no free space.
    FullDisk,
    /// EIO of the segment directory on the faulty disk.
    FailingSegments,
    /// EIO of everything that the node has on the faulty disk.
    FailingDisk,
    /// Power loss under the node with the faulty disk.
    PowerCut,
    /// A further storage node joins; the node is drained and removed.
    ReplaceNode,
    /// A further storage node joins; the node is killed, its disk is lost, and it is removed.
    DestroyNode,
    /// Two further storage nodes join, and a rebalance moves groups to sets of nodes. Meanwhile nodes fail,
    /// one after the other, among them one of the first set.
    GrowIntoSets,
    /// A further storage node joins, and the node is drained out of its sets and removed. Meanwhile a
    /// rebalance is requested, and a node of the first set is killed.
    ReplaceInSets,
}

impl FaultKind {
    /// True if the target of the fault is the node with some part. The others have a node of their own.
    const fn has_target(self) -> bool {
        match self {
            Self::Kill
            | Self::KillTwo
            | Self::Pause
            | Self::Restart
            | Self::Isolate
            | Self::Cut
            | Self::Mute
            | Self::Deafen
            | Self::Flap
            | Self::RemoveSegment
            | Self::WipeSegments
            | Self::CloneDisk
            | Self::RestoreDisk
            | Self::ClockJump
            | Self::ReplaceNode
            | Self::DestroyNode
            | Self::ReplaceInSets => true,
            Self::KillRecoverer
            | Self::RollingRestart
            | Self::SlowSyncs
            | Self::FullDisk
            | Self::FailingSegments
            | Self::FailingDisk
            | Self::PowerCut
            | Self::GrowIntoSets => false,
        }
    }

    /// True if the fault needs the faulty disk below a node.
    pub(super) const fn is_of_disk(self) -> bool {
        matches!(
            self,
            Self::SlowSyncs | Self::FullDisk | Self::FailingSegments | Self::FailingDisk | Self::PowerCut
        )
    }
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

impl FaultMix {
    /// True if the nodes of a round get into sets. They stay there, so such a round has a cluster of its own.
    pub(super) fn has_sets(&self) -> bool {
        self.kinds.contains(&FaultKind::ReplaceInSets)
    }
}

pub(super) const KILLS: FaultMix = FaultMix {
    name: "kills",
    kinds: &[FaultKind::Kill, FaultKind::KillTwo, FaultKind::Kill, FaultKind::Kill, FaultKind::KillRecoverer],
};
pub(super) const PAUSES: FaultMix = FaultMix {
    name: "pauses and restarts",
    kinds: &[FaultKind::Pause, FaultKind::Restart, FaultKind::Pause, FaultKind::RollingRestart],
};
pub(super) const PARTITIONS: FaultMix = FaultMix {
    name: "partitions",
    kinds: &[FaultKind::Isolate, FaultKind::Mute, FaultKind::Flap, FaultKind::Cut, FaultKind::Deafen],
};
pub(super) const DISKS: FaultMix = FaultMix {
    name: "disks",
    kinds: &[
        FaultKind::SlowSyncs,
        FaultKind::PowerCut,
        FaultKind::FailingSegments,
        FaultKind::FullDisk,
        FaultKind::FailingDisk,
    ],
};
pub(super) const CLOCKS_AND_COPIES: FaultMix = FaultMix {
    name: "clocks and copied or lost disks",
    kinds: &[
        FaultKind::ClockJump,
        FaultKind::CloneDisk,
        FaultKind::ClockJump,
        FaultKind::WipeSegments,
        FaultKind::ClockJump,
        FaultKind::RestoreDisk,
    ],
};
pub(super) const MEMBERS: FaultMix =
    FaultMix { name: "members", kinds: &[FaultKind::ReplaceNode, FaultKind::DestroyNode] };
pub(super) const SETS: FaultMix = FaultMix {
    name: "moves between sets of nodes",
    kinds: &[
        FaultKind::Kill,
        FaultKind::ReplaceInSets,
        FaultKind::Pause,
        FaultKind::WipeSegments,
        FaultKind::Isolate,
    ],
};
pub(super) const ALL: FaultMix = FaultMix {
    name: "all",
    kinds: &[
        FaultKind::Kill,
        FaultKind::Isolate,
        FaultKind::SlowSyncs,
        FaultKind::Pause,
        FaultKind::FailingSegments,
        FaultKind::KillTwo,
        FaultKind::ClockJump,
        FaultKind::Mute,
        FaultKind::PowerCut,
        FaultKind::RemoveSegment,
        FaultKind::CloneDisk,
        FaultKind::Restart,
        FaultKind::FullDisk,
        FaultKind::Flap,
        FaultKind::KillRecoverer,
        FaultKind::Cut,
        FaultKind::RestoreDisk,
        FaultKind::FailingDisk,
        FaultKind::Deafen,
        FaultKind::RollingRestart,
        FaultKind::WipeSegments,
    ],
};

/// All mixes. The seed of a round chooses one.
pub(super) const MIXES: [FaultMix; 8] =
    [KILLS, PAUSES, PARTITIONS, DISKS, CLOCKS_AND_COPIES, MEMBERS, SETS, ALL];

/// Returns the faults of a round, which together last as long as the load, and at least as many as the mix
/// has kinds, up to a limit. Kinds and targets take turns from random ones on. In a round with sets of nodes
/// these are made before everything else.
pub(super) fn schedule(rng: &mut Rng, mix: &FaultMix, load: Duration) -> Vec<PlannedFault> {
    let (first_kind, mut next_target) = (rng.index(mix.kinds.len()), rng.index(FaultTarget::ALL.len()));
    // The longer ones outlast the limits after which connections and nodes count as lost.
    let lengths = [Duration::from_millis(1_500), load / 2 - load / 8];
    let turned = (0..).map(|turn| mix.kinds[(first_kind + turn) % mix.kinds.len()]);
    let begin = mix.has_sets().then_some(FaultKind::GrowIntoSets);
    let kinds_min = mix.kinds.len().min(KINDS_PER_ROUND) + usize::from(begin.is_some());
    let mut planned = Vec::new();
    let mut length = Duration::ZERO;
    for kind in begin.into_iter().chain(turned) {
        if length >= load && planned.len() >= kinds_min {
            break;
        }
        let target = FaultTarget::ALL[next_target % FaultTarget::ALL.len()];
        next_target += usize::from(kind.has_target());
        let duration = between(rng, lengths);
        let duration = if kind.is_of_disk() { duration.max(DISK_FAULT_MIN) } else { duration };
        let fault = PlannedFault { kind, target, duration, rest: between(rng, REST), choice: rng.next() };
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
fn a_schedule_is_determined_by_its_seed_and_has_every_kind_and_target() {
    const LOAD: Duration = Duration::from_secs(16);
    for mix in &MIXES {
        for seed in 0..50 {
            let planned = schedule(&mut Rng::new(seed), mix, LOAD);
            assert_eq!(planned, schedule(&mut Rng::new(seed), mix, LOAD), "{}", mix.name);
            assert!(planned.iter().all(|fault| fault.duration < LOAD / 2), "{}: {planned:?}", mix.name);
            let has_kind = |kind: &FaultKind| planned.iter().any(|fault| fault.kind == *kind);
            let has_all = mix.kinds.len() <= KINDS_PER_ROUND;
            assert!(!has_all || mix.kinds.iter().all(has_kind), "{}: {planned:?}", mix.name);
            let growths = planned.iter().map(|fault| fault.kind == FaultKind::GrowIntoSets);
            assert!(growths.eq((0..planned.len()).map(|at| at == 0 && mix.has_sets())), "{}", mix.name);
        }
    }
    // A node with each part is killed.
    for seed in 0..50 {
        let planned = schedule(&mut Rng::new(seed), &KILLS, LOAD);
        let targets = planned.iter().filter(|fault| fault.kind.has_target()).map(|fault| fault.target);
        let targets: Vec<FaultTarget> = targets.collect();
        assert!(FaultTarget::ALL.iter().all(|target| targets.contains(target)), "{planned:?}");
    }
    let kinds = |seed| schedule(&mut Rng::new(seed), &ALL, LOAD).first().map(|fault| fault.kind);
    assert!((1..20).any(|seed| kinds(seed) != kinds(0)));
}

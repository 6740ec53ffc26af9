//! Simulated soak: overwrites into a small hot tier, with spilling and compaction in parallel.
//!
//! The decisions are the real ones: the choice of segments to empty and to spill, and whether an append
//! without space waits or is refused. The model around them is simple: keys that are overwritten at random,
//! segments that fill and die, a disk on which compaction and copies have fixed rates, and clients that wait.
//! Time advances in ticks, so every run of a seed is the same. With a cold tier that has space no write is
//! refused, and none waits too long; the control runs compaction and spilling sequentially, as an older
//! version did, and must run out of space.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use mlgw_common::ids::SegmentId;
use mlgw_common::limits::DISK_SPACE_WAIT_MS;

use crate::hot::PlacingSettings;
use crate::hot::compaction::HeldBackSegments;
use crate::hot::compaction::choose::{
    CompactionThresholds as Compacting, SegmentStats, SpacePressure, choose_segments as to_empty,
};
use crate::hot::placing::choose::{
    PlacingCandidate, TierFill, TierPressure as Spilling, choose_moves as to_spill,
};
use crate::hot::space_wait::shortage::{ProspectInputs, SpaceProspects};
use mlgw_common::SegmentTier;
use mlgw_formats::segment_header::SEGMENT_HEADER_BYTES;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const TICK_MS: u64 = 50;
/// Maximum ticks of a pass of compaction or of moves.
const TURN: u64 = 5000 / TICK_MS;
const CAPACITY: u64 = 600 * MIB;
const SEGMENT: u64 = CAPACITY / 64;
const OBJECT: u64 = 256 * KIB;
/// Number of keys: twice as many bytes as the hot tier holds.
const KEYS: u64 = 2 * CAPACITY / OBJECT;
const CLIENTS: usize = 32;

const fn per_tick(bytes_per_second: u64) -> u64 {
    bytes_per_second * TICK_MS / 1000
}

#[derive(Clone, Copy)]
struct Rates {
    write: u64,
    compaction: u64,
    spill: u64,
}

const RATES: Rates =
    Rates { write: per_tick(50 * MIB), compaction: per_tick(64 * MIB), spill: per_tick(120 * MIB) };

/// Work on one segment at a time, in the chosen order.
#[derive(Default)]
struct Hand {
    chosen: VecDeque<SegmentId>,
    at: Option<(SegmentId, u64)>,
    began: u64,
}

struct Segment {
    tier: SegmentTier,
    sealed: bool,
    bytes: u64,
    living: HashSet<u64>,
}

struct World {
    state: u64,
    now: u64,
    cold_room: u64,
    rates: Rates,
    /// True if compaction and spilling run in parallel, and appends wait for space.
    side_by_side: bool,
    segments: BTreeMap<SegmentId, Segment>,
    places: HashMap<u64, SegmentId>,
    open: SegmentId,
    moved: SegmentId,
    next: u64,
    compaction: Hand,
    spilling: Hand,
    /// Time at which each client's write began to wait.
    clients: Vec<Option<u64>>,
    written: u64,
    refused: u64,
    slowed: u64,
    longest_wait: u64,
}

impl World {
    fn new(seed: u64, side_by_side: bool, cold_room: u64, rates: Rates) -> Self {
        let mut world = Self {
            state: seed,
            now: 0,
            cold_room,
            rates,
            side_by_side,
            segments: BTreeMap::new(),
            places: HashMap::new(),
            open: SegmentId(0),
            moved: SegmentId(0),
            next: 0,
            compaction: Hand::default(),
            spilling: Hand::default(),
            clients: vec![None; CLIENTS],
            written: 0,
            refused: 0,
            slowed: 0,
            longest_wait: 0,
        };
        (world.open, world.moved) = (world.begin(), world.begin());
        world
    }

    /// SplitMix64.
    fn roll(&mut self, sides: u64) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % sides
    }

    fn begin(&mut self) -> SegmentId {
        self.next += 1;
        let segment = Segment {
            tier: SegmentTier::Hot,
            sealed: false,
            bytes: SEGMENT_HEADER_BYTES,
            living: HashSet::new(),
        };
        self.segments.insert(SegmentId(self.next), segment);
        SegmentId(self.next)
    }

    fn used(&self) -> u64 {
        self.segments
            .values()
            .filter(|segment| segment.tier == SegmentTier::Hot)
            .map(|segment| segment.bytes)
            .sum()
    }

    fn room(&self) -> u64 {
        CAPACITY.saturating_sub(self.used())
    }

    /// Stores an object in an open segment, and seals the segment when it is full.
    fn store(&mut self, key: u64, is_moved: bool) {
        let id = if is_moved { self.moved } else { self.open };
        let segment = self.segments.get_mut(&id).unwrap();
        segment.bytes += OBJECT;
        segment.living.insert(key);
        let is_full = segment.bytes >= SEGMENT;
        segment.sealed = is_full;
        if let Some(before) = self.places.insert(key, id) {
            self.segments.get_mut(&before).map(|segment| (before != id).then(|| segment.living.remove(&key)));
        }
        if is_full {
            let fresh = self.begin();
            *(if is_moved { &mut self.moved } else { &mut self.open }) = fresh;
        }
    }

    fn facts(&self) -> Vec<SegmentStats> {
        let facts = self.segments.iter().map(|(id, segment)| SegmentStats {
            id: *id,
            tier: segment.tier,
            sealed: segment.sealed,
            bytes: segment.bytes,
            referenced_bytes: segment.living.len() as u64 * OBJECT,
            references: segment.living.len() as u64,
            in_flight: false,
        });
        facts.collect()
    }

    fn is_in_hand(&self, segment: SegmentId) -> bool {
        let at = |hand: &Hand| hand.at.is_some_and(|(at, _)| at == segment);
        at(&self.compaction) || at(&self.spilling)
    }

    fn prospects(&self, facts: &[SegmentStats]) -> SpaceProspects {
        let frees = |hand: &Hand| hand.at.map_or(0, |(at, _)| self.segments[&at].bytes);
        let given = ProspectInputs {
            in_hand_bytes: frees(&self.spilling),
            is_claimed: &|segment| self.is_in_hand(segment),
            is_pinned: &|_| false,
            held_back: &HeldBackSegments::new(),
            below_room_bytes: self.cold_room,
            moved_room_bytes: u64::MAX / 2,
        };
        SpaceProspects::new(facts, &given)
    }

    fn choose_to_empty(&self) -> VecDeque<SegmentId> {
        let facts = self.facts();
        let pressed = self.room() < SEGMENT.max(32 * MIB);
        let can_spill = self.side_by_side && self.prospects(&facts).spillable_bytes > 0;
        let pressure = match (pressed, can_spill) {
            (false, _) => SpacePressure::None,
            (true, true) => SpacePressure::Spills,
            (true, false) => SpacePressure::Compacts,
        };
        let dead_percent = pressure.dead_percent(30, None);
        let aim = Compacting { dead_percent, cold_dead_percent: 50, room_bytes: u64::MAX / 2 };
        to_empty(&facts, aim, &HeldBackSegments::new()).into()
    }

    fn choose_to_spill(&self) -> VecDeque<SegmentId> {
        let settings = PlacingSettings { high_percent: 40, low_percent: 30, ..PlacingSettings::default() };
        let fill = TierFill { used_bytes: self.used(), room_bytes: self.room() };
        let aim = Spilling {
            has_cold: true,
            hot_excess_bytes: fill.excess_bytes(settings),
            hot_room_bytes: self.room(),
            ..Spilling::default()
        };
        let placed = self.facts().into_iter().map(|segment| PlacingCandidate {
            id: segment.id,
            tier: segment.tier,
            bytes: segment.bytes,
            is_idle: segment.is_idle() && !self.is_in_hand(segment.id),
            is_worth_keeping: segment.references > 0 && !segment.has_dead_percent(30),
            is_mostly_dead: false,
            is_pinned: false,
            heat: 0.0,
        });
        to_spill(&placed.collect::<Vec<_>>(), None, aim).into_iter().map(|(id, _)| id).collect()
    }

    /// Continues to empty segments.
    fn compact(&mut self) {
        let mut budget = self.rates.compaction;
        while budget > 0 {
            if self.compaction.at.is_none() {
                let is_over = self.now > self.compaction.began + TURN && self.side_by_side;
                if self.compaction.chosen.is_empty() || is_over {
                    return self.compaction.chosen.clear();
                }
                let Some(next) = self.compaction.chosen.pop_front() else { return };
                let as_chosen = self.segments.get(&next).filter(|_| !self.is_in_hand(next));
                self.compaction.at = as_chosen.map(|segment| (next, segment.living.len() as u64 * OBJECT));
                continue;
            }
            let Some((id, left)) = self.compaction.at else { return };
            let done = left.min(budget);
            budget -= done;
            self.compaction.at = Some((id, left - done));
            if left == done {
                let mut living: Vec<u64> = self.segments[&id].living.iter().copied().collect();
                living.sort_unstable();
                living.into_iter().for_each(|key| self.store(key, true));
                let gone = self.segments.remove(&id).unwrap();
                self.cold_room += if gone.tier == SegmentTier::Cold { gone.bytes } else { 0 };
                self.compaction.at = None;
            }
        }
    }

    /// Continues to spill segments.
    fn spill(&mut self) {
        let mut budget = self.rates.spill;
        while budget > 0 {
            if self.spilling.at.is_none() {
                if self.now > self.spilling.began + TURN {
                    self.spilling.chosen.clear();
                }
                let Some(next) = self.spilling.chosen.pop_front() else { return };
                let as_chosen = self
                    .segments
                    .get(&next)
                    .filter(|of| of.tier == SegmentTier::Hot && !self.is_in_hand(next));
                let fits = as_chosen.filter(|segment| segment.bytes <= self.cold_room);
                self.spilling.at = fits.map(|segment| (next, segment.bytes));
                continue;
            }
            let Some((id, left)) = self.spilling.at else { return };
            let done = left.min(budget);
            budget -= done;
            self.spilling.at = Some((id, left - done));
            if left == done {
                let segment = self.segments.get_mut(&id).unwrap();
                segment.tier = SegmentTier::Cold;
                self.cold_room -= segment.bytes;
                self.spilling.at = None;
            }
        }
    }

    /// Runs both kinds of work: in parallel and woken by waiting writes, or sequentially every five seconds.
    fn work(&mut self) {
        let idle = |hand: &Hand| hand.chosen.is_empty() && hand.at.is_none();
        let is_time = self.now.is_multiple_of(TURN);
        let is_short = self.clients.iter().any(Option::is_some);
        if self.side_by_side {
            if idle(&self.compaction) && (is_time || is_short) {
                (self.compaction.chosen, self.compaction.began) = (self.choose_to_empty(), self.now);
            }
            if idle(&self.spilling) {
                (self.spilling.chosen, self.spilling.began) = (self.choose_to_spill(), self.now);
            }
            self.compact();
            self.spill();
        } else if !idle(&self.compaction) {
            self.compact();
            if idle(&self.compaction) {
                (self.spilling.chosen, self.spilling.began) = (self.choose_to_spill(), self.now);
            }
        } else if !idle(&self.spilling) {
            self.spill();
        } else if is_time {
            (self.compaction.chosen, self.compaction.began) = (self.choose_to_empty(), self.now);
            (self.spilling.chosen, self.spilling.began) = (self.choose_to_spill(), self.now);
        }
    }

    /// Overwrites random keys by all clients, as fast as the disk allows.
    fn write(&mut self) {
        let mut budget = self.rates.write / OBJECT;
        let facts = self.facts();
        let prospects = self.prospects(&facts);
        for client in 0..CLIENTS {
            while budget > 0 && self.room() >= OBJECT {
                budget -= 1;
                if let Some(since) = self.clients[client].take() {
                    self.longest_wait = self.longest_wait.max((self.now - since) * TICK_MS);
                }
                let key = self.roll(KEYS);
                self.store(key, false);
                self.written += OBJECT;
                if client + 1 < CLIENTS {
                    break;
                }
            }
            if self.room() >= OBJECT {
                continue;
            }
            let since = *self.clients[client].get_or_insert(self.now);
            let waits = self.side_by_side && prospects.can_free(OBJECT.saturating_sub(self.room()));
            if !waits {
                self.refused += 1;
            } else if (self.now - since) * TICK_MS >= DISK_SPACE_WAIT_MS {
                self.slowed += 1;
                self.longest_wait = self.longest_wait.max((self.now - since) * TICK_MS);
                self.clients[client] = None;
            }
        }
    }

    fn run(&mut self, seconds: u64) {
        while self.now < seconds * 1000 / TICK_MS {
            self.work();
            self.write();
            self.now += 1;
        }
    }
}

fn soaked(seed: u64, side_by_side: bool, cold_room: u64, rates: Rates) -> World {
    let mut world = World::new(seed, side_by_side, cold_room, rates);
    world.run(240);
    world
}

#[test]
fn overwrites_are_not_refused_while_the_cold_tier_has_room() {
    for seed in 1..=3 {
        let world = soaked(seed, true, 34 << 30, RATES);
        assert_eq!(world.refused, 0, "seed {seed}");
        assert!(world.longest_wait < 10_000, "seed {seed}: {} ms", world.longest_wait);
        assert!(world.written > 4 * CAPACITY, "seed {seed}: {} written", world.written);
    }
}

#[test]
fn a_slow_cold_disk_delays_writes_and_refuses_none() {
    for seed in 1..=3 {
        let rates = Rates { spill: per_tick(20 * MIB), compaction: per_tick(5 * MIB), ..RATES };
        let world = soaked(seed, true, 34 << 30, rates);
        assert_eq!(world.refused, 0, "seed {seed}");
        assert!(world.longest_wait < 10_000, "seed {seed}: {} ms", world.longest_wait);
        assert!(world.written > 2 * CAPACITY, "seed {seed}: {} written", world.written);
    }
}

#[test]
fn a_cold_tier_without_space_leads_to_refusals() {
    let world = soaked(1, true, 0, RATES);
    assert!(world.refused > 0, "the live data exceeds the capacity");
    let used = world.segments.values().map(|segment| segment.living.len() as u64 * OBJECT).sum::<u64>();
    assert!(used > CAPACITY / 10 * 8, "{used} bytes were live at the first refusal");
}

#[test]
fn sequential_work_runs_out_of_space() {
    let world = soaked(1, false, 34 << 30, RATES);
    assert!(world.refused > 100, "{} refused", world.refused);
}

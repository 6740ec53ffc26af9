//! Model test of moves between tiers with crashes, in memory, with one seed per schedule.
//!
//! The steps are the real ones ([`MoveJob`]), and so is the treatment of files by a start ([`fate`]). The
//! world is one segment: its files, which may reappear while their removal is not synced; its objects at an
//! upstream, and the list of leftovers; its record, which is the last entry of a log whose end may be lost;
//! occasional pins on all segments; and crashes at any point. Invariants: the segment can always
//! be read, and in the end there is one file or object, at the location in the record. Without the step that
//! syncs the record before the old file is removed, some schedule must lose the segment; without the list,
//! some schedule must leave an object behind.

use std::collections::BTreeSet;

use crate::hot::map::SegmentLocation;
use crate::hot::placing::job::{MoveEvent, MoveJob, MoveStep, SegmentMove};
use crate::hot::recovery::{SegmentFileFate, SegmentHistory, fate};
use mlgw_common::SegmentTier;
use mlgw_common::ids::{Generation, SegmentId, SegmentSeed};

/// Number of schedules within which a missing rule must be detected.
const CONTROL_SCHEDULES: u64 = 20_000;
const ACTIONS: usize = 60;

/// SplitMix64.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % sides
    }
}

/// The file of the segment in one tier.
#[derive(Clone, Copy, PartialEq, Eq)]
enum File {
    No,
    Yes,
    /// Removed; a crash may restore it.
    Removed,
}

/// Location of the segment according to its record.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Named {
    tier: SegmentTier,
    /// Number of the object; 0 for a file.
    copy: u64,
}

/// Rules that are left out in a control.
#[derive(Clone, Copy, Default)]
struct LeftOutRules {
    record_sync: bool,
    leftovers_list: bool,
}

struct World {
    dice: Dice,
    /// Files by tier.
    files: [File; 2],
    /// Numbers of the objects at the upstream.
    objects: BTreeSet<u64>,
    /// The list of leftovers.
    leftovers: BTreeSet<u64>,
    copies: u64,
    /// Locations that the record had, oldest first; the first `synced` of them are durable.
    log: Vec<Named>,
    synced: usize,
    job: Option<MoveJob>,
    kept: bool,
    without: LeftOutRules,
}

impl World {
    fn new(seed: u64, without: LeftOutRules) -> Self {
        Self {
            dice: Dice(seed),
            files: [File::Yes, File::No],
            objects: BTreeSet::new(),
            leftovers: BTreeSet::new(),
            copies: 0,
            log: vec![Named { tier: SegmentTier::Hot, copy: 0 }],
            synced: 1,
            job: None,
            kept: false,
            without,
        }
    }

    fn place(&self) -> Named {
        *self.log.last().unwrap()
    }

    fn has(&self, tier: SegmentTier) -> bool {
        self.files[tier as usize] == File::Yes
    }

    fn add_leftover(&mut self, copy: u64) {
        if !self.without.leftovers_list {
            self.leftovers.insert(copy);
        }
    }

    fn sync_record(&mut self) {
        if !self.without.record_sync {
            self.synced = self.log.len();
        }
    }

    /// Removes listed objects that the record does not name.
    fn sweep(&mut self) {
        if self.leftovers.is_empty() || self.kept {
            return;
        }
        self.sync_record();
        let place = self.place();
        for copy in std::mem::take(&mut self.leftovers) {
            if place != (Named { tier: SegmentTier::Upstream, copy }) {
                self.objects.remove(&copy);
            }
        }
    }

    fn way(&mut self) -> SegmentMove {
        let from = self.place().tier;
        let other = if from == SegmentTier::Hot { SegmentTier::Cold } else { SegmentTier::Hot };
        let to = if from != SegmentTier::Upstream && self.dice.roll(2) == 0 {
            SegmentTier::Upstream
        } else {
            other
        };
        SegmentMove { from, to: if from == SegmentTier::Upstream { SegmentTier::Hot } else { to } }
    }

    /// Executes one step of a move; starts a new move if there is none.
    fn step(&mut self) {
        let Some(mut job) = self.job else {
            self.sweep();
            let way = self.way();
            self.job = Some(MoveJob::new(SegmentId(1), way));
            return;
        };
        let (SegmentMove { from, to }, Some(step)) = (job.way, job.next()) else { return self.job = None };
        match step {
            MoveStep::RelocateStaying => {}
            MoveStep::Copy if to == SegmentTier::Upstream => {
                self.copies += 1;
                self.add_leftover(self.copies);
                // The object may arrive and the response be lost: then the move is retried with another
                // object.
                self.objects.insert(self.copies);
                if self.dice.roll(8) == 0 {
                    return self.job = None;
                }
            }
            MoveStep::Copy => self.files[to as usize] = File::Yes,
            MoveStep::UpdateRecord => {
                if from == SegmentTier::Upstream {
                    self.add_leftover(self.place().copy);
                }
                self.log.push(Named {
                    tier: to,
                    copy: if to == SegmentTier::Upstream { self.copies } else { 0 },
                });
            }
            MoveStep::Sync => self.sync_record(),
            MoveStep::Drain if self.kept => return,
            MoveStep::Drain => {}
            MoveStep::Unlink if from == SegmentTier::Upstream => self.sweep(),
            MoveStep::Unlink => {
                self.files[from as usize] = File::Removed;
                self.sweep();
            }
        }
        job.advance(MoveEvent::Done);
        self.job = Some(job);
    }

    /// Simulates a kill or a power loss, and the next start.
    fn crash(&mut self) {
        let left = self.synced + self.dice.roll((self.log.len() - self.synced) as u64 + 1) as usize;
        self.log.truncate(left);
        self.synced = self.log.len();
        for file in &mut self.files {
            if *file == File::Removed {
                *file = if self.dice.roll(2) == 0 { File::Yes } else { File::No };
            }
        }
        (self.job, self.kept) = (None, false);
        let recorded = SegmentHistory::Recorded(SegmentLocation {
            seed: SegmentSeed::unstamped(Generation(1)),
            created: None,
            tier: self.place().tier,
        });
        for tier in [SegmentTier::Hot, SegmentTier::Cold] {
            let is_there = |other| other == SegmentTier::Upstream || self.has(other);
            if self.has(tier) && fate(recorded, tier, is_there) == SegmentFileFate::Removed {
                self.files[tier as usize] = File::Removed;
            }
        }
    }

    fn can_be_read(&self) -> bool {
        match self.place() {
            Named { tier: SegmentTier::Upstream, copy } => self.objects.contains(&copy),
            _ => self.has(SegmentTier::Hot) || self.has(SegmentTier::Cold),
        }
    }

    fn run(&mut self) -> Result<(), String> {
        for action in 0..ACTIONS {
            match self.dice.roll(12) {
                0 => self.crash(),
                1 => self.kept = !self.kept,
                _ => self.step(),
            }
            if !self.can_be_read() {
                return Err(format!("after action {action} it is lost"));
            }
        }
        self.kept = false;
        while self.job.is_some() {
            self.step();
        }
        self.sweep();
        let (place, files) = (self.place(), [self.has(SegmentTier::Hot), self.has(SegmentTier::Cold)]);
        let objects: Vec<u64> = self.objects.iter().copied().collect();
        let expected = match place.tier {
            SegmentTier::Hot => ([true, false], vec![]),
            SegmentTier::Cold => ([false, true], vec![]),
            _ => ([false, false], vec![place.copy]),
        };
        let tier = place.tier;
        if (files, objects.clone()) == expected {
            return Ok(());
        }
        Err(format!("in the end files are {files:?}, objects {objects:?} and the record says tier {tier}"))
    }
}

/// True if the failure of a schedule contains these words.
fn is_broken(without: LeftOutRules, words: &str) -> bool {
    let violation = |seed| World::new(seed, without).run().err();
    (1..=CONTROL_SCHEDULES).filter_map(violation).any(|broken| broken.contains(words))
}

#[test]
fn no_schedule_loses_a_segment_or_leaves_two() {
    mlgw_schedules::check_each(|seed| World::new(seed, LeftOutRules::default()).run());
}

#[test]
fn without_a_durable_record_a_segment_is_lost() {
    assert!(is_broken(LeftOutRules { record_sync: true, leftovers_list: false }, "lost"));
}

#[test]
fn without_the_list_an_object_is_left_behind() {
    assert!(is_broken(LeftOutRules { record_sync: false, leftovers_list: true }, "objects"));
}

//! Moves between tiers against crashes, in memory, a seed for every schedule.
//!
//! The steps are the real ones ([`Job`]), and so is what a start does about files ([`fate`]). The world is one segment: its
//! files, of which a removed one may come back while its removal is not synced; its record, which is what is left of a log
//! whose end may be lost; somebody who copies segments now and then; and crashes anywhere. The segment can always be
//! read, and once all is quiet there is one file, where the record says. Without the step that makes the record
//! durable before the old file goes, a schedule must show that the segment is lost.

use crate::hot::catalogue::{COLD, HOT};
use crate::hot::map::Whereabouts;
use crate::hot::placing::job::{Event, Job, Step, Way};
use crate::hot::recovery::{Fate, fate};
use mlgw_common::ids::{Generation, SegmentId};

const SCHEDULES: u64 = 20_000;
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
    /// Removed; a crash may bring it back.
    Removed,
}

struct World {
    dice: Dice,
    /// By tier.
    files: [File; 2],
    /// Places that the record had, oldest first; so many of them are durable.
    log: Vec<u32>,
    synced: usize,
    job: Option<Job>,
    kept: bool,
    settles: bool,
}

impl World {
    fn new(seed: u64, settles: bool) -> Self {
        let files = [File::Yes, File::No];
        Self { dice: Dice(seed), files, log: vec![HOT], synced: 1, job: None, kept: false, settles }
    }

    fn place(&self) -> u32 {
        *self.log.last().unwrap()
    }

    fn has(&self, tier: u32) -> bool {
        self.files[tier as usize] == File::Yes
    }

    /// One step of a move; a new move when there is none.
    fn step(&mut self) {
        let Some(mut job) = self.job else {
            let way = if self.place() == HOT { Way::Spill } else { Way::Promote };
            self.job = Some(Job::new(SegmentId(1), way));
            return;
        };
        let (from, to) = if job.way == Way::Spill { (HOT, COLD) } else { (COLD, HOT) };
        let Some(step) = job.next() else { return self.job = None };
        match step {
            Step::PickOut => {}
            Step::Copy => self.files[to as usize] = File::Yes,
            Step::Place => self.log.push(to),
            Step::Settle if self.settles => self.synced = self.log.len(),
            Step::Settle => {}
            Step::Drain if self.kept => return,
            Step::Drain => {}
            Step::Unlink => self.files[from as usize] = File::Removed,
        }
        job.on(Event::Done);
        self.job = Some(job);
    }

    /// The process stops, perhaps with the machine, and starts again.
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
        let place = Whereabouts { generation: Generation(1), tier: self.place() };
        for tier in [HOT, COLD] {
            if self.has(tier) && fate(Some(place), tier, |other| self.has(other), true) == Fate::Removed {
                self.files[tier as usize] = File::Removed;
            }
        }
    }

    fn run(&mut self) -> Result<(), String> {
        for action in 0..ACTIONS {
            match self.dice.roll(12) {
                0 => self.crash(),
                1 => self.kept = !self.kept,
                _ => self.step(),
            }
            if !self.has(HOT) && !self.has(COLD) {
                return Err(format!("after action {action} there is no file"));
            }
        }
        self.kept = false;
        while self.job.is_some() {
            self.step();
        }
        match [self.has(HOT), self.has(COLD)] {
            [true, false] if self.place() == HOT => Ok(()),
            [false, true] if self.place() == COLD => Ok(()),
            files => Err(format!("in the end files are {files:?} and the record says {}", self.place())),
        }
    }
}

fn first_broken(settles: bool) -> Option<(u64, String)> {
    (1..=SCHEDULES).find_map(|seed| World::new(seed, settles).run().err().map(|broken| (seed, broken)))
}

#[test]
fn no_schedule_loses_a_segment_or_leaves_two() {
    assert_eq!(first_broken(true), None);
}

#[test]
fn without_a_durable_record_a_segment_is_lost() {
    assert!(first_broken(false).is_some());
}

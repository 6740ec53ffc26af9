//! A dataset: its jobs, and what of it is kept, in groups of who has read it.
//!
//! All kept blocks that the same jobs have read in their passes are worth the same, so they are one group, and the search for what to evict is
//! over groups (EPOCH-HAZARD). What a block is worth is how often it is expected to be asked for, per unit of time: the sum over jobs of one over
//! the time until the job asks for it next. Always: a kept block is in the group of those who have read it.

use super::job::{Expected, Job, Reading, next_stamp};
use super::list::{List, Lists};
use super::table::{Place, Slot, Table};

/// Most jobs whose reads of a dataset are told apart: each has four bits in an entry.
pub(super) const JOBS_MAX: usize = 8;
/// A job that follows another one reads what that has read before it so often, of this many reads.
const FOLLOW_READS: u32 = 32;
const FOLLOW_SHARE: f64 = 0.9;
/// That says something only where chance would bring this much less.
const FOLLOW_CHANCE: f64 = 0.5;

/// Blocks that the same jobs have read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Group {
    pub(super) list: List,
    pub(super) count: u32,
    pub(super) bytes: u64,
}

/// How two jobs of a dataset go together, as far as one follows the other.
#[derive(Clone, Copy, Debug, Default)]
struct Pair {
    /// Blocks that both have read in the passes that they are in.
    both: u32,
    /// Of the follower's reads that said something, as a moving average: those that the leader had before it.
    share: f64,
    /// Reads that said something.
    reads: u32,
}

/// What is known of a dataset.
pub(super) struct Dataset {
    pub(super) jobs: Vec<Job>,
    /// By the bits of the jobs that have read it.
    groups: Vec<Group>,
    /// By leader and follower.
    pairs: [[Pair; JOBS_MAX]; JOBS_MAX],
    /// Blocks that were ever seen and are still remembered.
    pub(super) known: u32,
    /// Bytes of it that are kept.
    pub(super) kept_bytes: u64,
    /// When it was read last.
    pub(super) last_us: u64,
    /// Its job has gone on to another: what is kept goes first.
    pub(super) is_released: bool,
    /// What of it is worth least, and how much; as of when it was looked at.
    pub(super) lowest: Option<(usize, f64)>,
}

impl Dataset {
    pub(super) fn new(lists: &mut Lists) -> Self {
        let group = Group { list: lists.make(), count: 0, bytes: 0 };
        Self {
            jobs: Vec::new(),
            groups: vec![group],
            pairs: Default::default(),
            known: 0,
            kept_bytes: 0,
            last_us: 0,
            is_released: false,
            lowest: None,
        }
    }

    /// A place for another job: a free one, a new one, or that of the one that has been silent longest.
    pub(super) fn add_job(&mut self, table: &mut Table, lists: &mut Lists, now_us: u64) -> usize {
        let place = match self.jobs.iter().position(|job| !job.is_active) {
            Some(free) => free,
            None if self.jobs.len() < JOBS_MAX => {
                self.jobs.push(Job::with_stamp(now_us, 1));
                let more = self.groups.len();
                self.groups.extend((0..more).map(|_| Group { list: lists.make(), count: 0, bytes: 0 }));
                return self.jobs.len() - 1;
            }
            None => {
                let silent = (0..JOBS_MAX).min_by_key(|place| self.jobs[*place].last_us).unwrap_or(0);
                self.end_job(table, lists, silent);
                silent
            }
        };
        self.jobs[place] = Job::with_stamp(now_us, self.jobs[place].stamp);
        place
    }

    /// A job is over: nothing depends on what it has read.
    pub(super) fn end_job(&mut self, table: &mut Table, lists: &mut Lists, place: usize) {
        self.clear_bit(table, lists, place);
        let job = &mut self.jobs[place];
        job.is_active = false;
        job.stamp = next_stamp(job.stamp);
    }

    /// The bits of the jobs that have read a block in the passes that they are in.
    pub(super) fn readers(&self, stamps: u32) -> usize {
        let mut readers = 0;
        for (place, job) in self.jobs.iter().enumerate() {
            readers |= usize::from(stamps >> (4 * place) & 15 == job.stamp && job.is_active) << place;
        }
        readers
    }

    /// A job reads a block.
    pub(super) fn read(
        &mut self,
        table: &mut Table,
        lists: &mut Lists,
        place: usize,
        slot: Slot,
        now_us: u64,
    ) -> Reading {
        self.last_us = now_us;
        self.is_released = false;
        let readers = self.readers(table[slot].stamps);
        let was_read = readers >> place & 1 == 1;
        let reading = self.jobs[place].read(now_us, slot, was_read);
        match reading {
            Reading::Fresh => {
                self.count_pairs(place, readers);
                self.stamp(table, lists, place, slot);
            }
            Reading::Repeat => {}
            Reading::NewPass => {
                self.clear_bit(table, lists, place);
                for other in 0..self.jobs.len() {
                    self.pairs[place][other].both = 0;
                    self.pairs[other][place].both = 0;
                }
                let (run, length) = self.jobs[place].take_run();
                run[..length].iter().for_each(|slot| self.stamp(table, lists, place, *slot));
            }
        }
        reading
    }

    /// Notes that a job has read a block; it changes groups then.
    fn stamp(&mut self, table: &mut Table, lists: &mut Lists, place: usize, slot: Slot) {
        let is_grouped = table[slot].place() == Place::Group;
        if is_grouped {
            self.leave_group(table, lists, slot);
        }
        let shift = 4 * place;
        let entry = &mut table[slot];
        entry.stamps = entry.stamps & !(15 << shift) | self.jobs[place].stamp << shift;
        if is_grouped {
            self.join_group(table, lists, slot);
        }
    }

    /// A kept block comes into its group.
    pub(super) fn join_group(&mut self, table: &mut Table, lists: &mut Lists, slot: Slot) {
        let bytes = table[slot].bytes();
        let readers = self.readers(table[slot].stamps);
        let group = &mut self.groups[readers];
        group.count += 1;
        group.bytes += bytes;
        lists.push(table, group.list, slot);
        table[slot].set_place(Place::Group);
    }

    /// A kept block leaves its group.
    pub(super) fn leave_group(&mut self, table: &mut Table, lists: &mut Lists, slot: Slot) {
        let bytes = table[slot].bytes();
        let readers = self.readers(table[slot].stamps);
        let group = &mut self.groups[readers];
        group.count -= 1;
        group.bytes -= bytes;
        lists.remove(table, slot);
    }

    /// A job begins anew: no block was read by it.
    fn clear_bit(&mut self, table: &mut Table, lists: &mut Lists, place: usize) {
        let bit = 1 << place;
        for readers in (0..self.groups.len()).filter(|readers| readers & bit != 0) {
            let Group { list, count, bytes } = self.groups[readers];
            let into = &mut self.groups[readers & !bit];
            into.count += count;
            into.bytes += bytes;
            lists.join(table, into.list, list);
            self.groups[readers] = Group { list, count: 0, bytes: 0 };
        }
    }

    /// All of another dataset's blocks come into this one, as if nobody had read them.
    pub(super) fn take_in(&mut self, table: &mut Table, lists: &mut Lists, other: &mut Self) {
        for group in &mut other.groups {
            let into = &mut self.groups[0];
            into.count += group.count;
            into.bytes += group.bytes;
            lists.join(table, into.list, group.list);
            lists.end(group.list);
        }
        other.groups.clear();
        other.jobs.clear();
        self.known += std::mem::take(&mut other.known);
        self.kept_bytes += std::mem::take(&mut other.kept_bytes);
        other.lowest = None;
    }

    fn count_pairs(&mut self, follower: usize, readers: usize) {
        for leader in (0..self.jobs.len()).filter(|leader| *leader != follower) {
            let (led, follows) = (&self.jobs[leader], &self.jobs[follower]);
            let has_led = readers >> leader & 1 == 1;
            let ahead = led.reads.saturating_sub(self.pairs[leader][follower].both);
            let left = follows.left(self.known).max(1);
            let is_telling = led.is_active
                && led.reads > follows.reads
                && f64::from(ahead) < FOLLOW_CHANCE * f64::from(left);
            let pair = &mut self.pairs[leader][follower];
            if is_telling && ahead > 0 {
                pair.reads = (pair.reads + 1).min(FOLLOW_READS);
                pair.share += (f64::from(u8::from(has_led)) - pair.share) / f64::from(pair.reads);
            }
            if has_led {
                pair.both += 1;
                self.pairs[follower][leader].both += 1;
            }
        }
    }

    /// How many blocks the job that another follows is ahead of it.
    fn follows(&self, follower: usize) -> Option<(usize, u32)> {
        let mut nearest: Option<(usize, u32)> = None;
        for leader in 0..self.jobs.len() {
            let pair = &self.pairs[leader][follower];
            let led = &self.jobs[leader];
            if pair.reads < FOLLOW_READS
                || pair.share < FOLLOW_SHARE
                || !led.is_active
                || led.reads <= self.jobs[follower].reads
            {
                continue;
            }
            let ahead = led.reads.saturating_sub(pair.both);
            if ahead > 0 && nearest.is_none_or(|(_, least)| ahead < least) {
                nearest = Some((leader, ahead));
            }
        }
        nearest
    }

    /// What each group is worth: reads per microsecond of each block in it.
    pub(super) fn worth(&self, now_us: u64) -> Worth {
        let mut worth = Worth { jobs: [None; JOBS_MAX], is_released: self.is_released };
        for (place, job) in self.jobs.iter().enumerate().filter(|(_, job)| job.is_active) {
            let expected = job.expects(now_us, self.known);
            let following = self.follows(place).map(|(leader, ahead)| {
                let interval = expected.unread_us / f64::from(job.left(self.known).max(1));
                (leader, f64::from(ahead) * interval)
            });
            worth.jobs[place] = Some((expected, following));
        }
        worth
    }

    /// Looks for the group that is worth least.
    pub(super) fn look(&mut self, now_us: u64) {
        let worth = self.worth(now_us);
        let held = self.groups.iter().enumerate().filter(|(_, group)| group.count > 0);
        let valued = held.map(|(readers, _)| (readers, worth.of(readers)));
        self.lowest = valued.min_by(|(_, one), (_, other)| one.total_cmp(other));
    }

    /// The block that goes first of a group: the oldest.
    pub(super) fn victim(&self, table: &Table, lists: &Lists, readers: usize) -> Option<Slot> {
        lists.first(table, self.groups[readers].list)
    }
}

/// What blocks of a dataset are worth at a moment.
pub(super) struct Worth {
    jobs: [Option<(Expected, Option<(usize, f64)>)>; JOBS_MAX],
    is_released: bool,
}

/// What a block is worth that nobody has come back for, but might: more than one that was given up, and less than any that is expected.
const UNPROVEN: f64 = 1e-18;

impl Worth {
    /// What a block is worth that these have read.
    pub(super) fn of(&self, readers: usize) -> f64 {
        if self.is_released {
            return 0.0;
        }
        let mut sum = UNPROVEN;
        for (place, job) in self.jobs.iter().enumerate() {
            let Some((expected, following)) = job else { continue };
            let us = match following {
                _ if readers >> place & 1 == 1 => expected.read_us,
                Some((leader, ahead_us)) if readers >> leader & 1 == 1 => *ahead_us,
                _ => expected.unread_us / std::env::var("UN").map_or(1.0, |m| m.parse().unwrap()),
            };
            sum += us.max(1e-3).recip();
        }
        sum
    }
}

//! Dataset: its jobs and its kept blocks, grouped by the jobs that have read them.
//!
//! All kept blocks that the same jobs have read in their current passes have the same worth. They form one
//! group, and the search for a block to evict is over groups (EPOCH-HAZARD). Always: a kept block that is in
//! no queue is in the group of the jobs that have read it.

use super::job::{FIRST_STAMP, Job, JobRef, Judged, Reading, Role, next_stamp};
use super::list::{List, Lists};
use super::pairs::Pairs;
use super::ranks::Verdict;
use super::run::Read;
use super::shares::Queue;
use super::table::{Entry, Place, Slot, Table};
use super::worth::{JobWorth, Moment, Visits, Worth};
use std::collections::VecDeque;

/// Maximum jobs of a dataset; each takes four bits of an entry.
pub(super) const JOBS_MAX: usize = 8;
/// Share of irregular reads above which a dataset is no longer treated as read in passes, and below which it
/// is again.
const SKEW_HIGH: f64 = 0.2;
const SKEW_LOW: f64 = 0.05;
/// Minimum reads before callers can be merged into one job.
const TRIAL_READS: u32 = 64;
/// Maximum remembered families that are not one job.
const APART_MAX: usize = 16;
/// A pass shorter than this share of the previous one is not a pass.
const SHORT_PASS: f64 = 0.5;

/// Blocks that the same jobs have read.
#[derive(Clone, Copy, Debug)]
struct Group {
    list: List,
    count: u32,
    bytes: u64,
}

/// State of a dataset.
pub(super) struct Dataset {
    /// Number of the dataset.
    number: u16,
    pub(super) jobs: Vec<Job>,
    /// Number of jobs so far.
    serial: u32,
    /// Groups, indexed by the bit set of the jobs that have read their blocks.
    groups: Vec<Group>,
    pub(super) pairs: Pairs,
    pub(super) visits: Visits,
    /// Remembered blocks, kept or not.
    pub(super) known: u32,
    /// Weight of each read.
    weight: f64,
    /// Bytes in its groups.
    pub(super) grouped_bytes: u64,
    /// Objects written.
    pub(super) writes: u32,
    /// Time of the last access, in microseconds.
    pub(super) last_us: u64,
    /// Moving average of the share of reads that do not fit passes.
    skew: f64,
    /// Families whose callers are not ranks of one job.
    apart: VecDeque<u64>,
    /// True if its blocks belong to the pool.
    pub(super) is_skewed: bool,
    /// True if a rule requests to keep its blocks by recency, as of the last block that was added or moved.
    pub(super) is_recent: bool,
    /// True if its job has moved on to another dataset: its kept blocks are evicted first.
    is_released: bool,
    /// Worth of its blocks and its group of lowest worth, as of the access in `looked_at`.
    worth: Worth,
    lowest: Option<(usize, f64)>,
    looked_at: Option<u64>,
}

impl Dataset {
    pub(super) fn new(number: u16, lists: &mut Lists) -> Self {
        let group = Group { list: lists.make(), count: 0, bytes: 0 };
        Self {
            number,
            jobs: Vec::new(),
            serial: 0,
            groups: vec![group],
            pairs: Pairs::default(),
            visits: Visits::default(),
            known: 0,
            grouped_bytes: 0,
            writes: 0,
            weight: 1.0,
            last_us: 0,
            skew: 0.0,
            apart: VecDeque::new(),
            is_skewed: false,
            is_recent: false,
            is_released: false,
            worth: Worth::default(),
            lowest: None,
            looked_at: None,
        }
    }

    /// Returns the job of a caller of a family: the family's common job, or one of the caller's own; `None`
    /// if there is no place for another job.
    pub(super) fn job_of(
        &mut self,
        table: &mut Table,
        lists: &mut Lists,
        now_us: u64,
        family: u64,
    ) -> Option<JobRef> {
        if let Some(place) = self.together(family).filter(|place| self.jobs[*place].role == Role::Whole) {
            return Some(JobRef { place, serial: self.jobs[place].serial });
        }
        let job = self.add_job(table, lists, now_us, family, Role::Single);
        let singles = self.jobs.iter().filter(|job| job.is_single_of(family)).count();
        if singles > 1 && self.together(family).is_none() && !self.apart.contains(&family) {
            self.add_job(table, lists, now_us, family, Role::Trial);
        }
        job
    }

    /// Returns the index of the common job of all callers of a family, if they are or may be one job.
    pub(super) fn together(&self, family: u64) -> Option<usize> {
        let is_it = |job: &Job| job.is_active && job.role != Role::Single && job.family == family;
        self.jobs.iter().position(is_it)
    }

    /// Adds a job in a free place, a new one, or that of an idle job; `None` if all jobs are active.
    fn add_job(
        &mut self,
        table: &mut Table,
        lists: &mut Lists,
        now_us: u64,
        family: u64,
        role: Role,
    ) -> Option<JobRef> {
        let free = self.jobs.iter().position(|job| !job.is_active);
        let place = if free.is_none() && self.jobs.len() < JOBS_MAX {
            let more = self.groups.len();
            self.groups.extend((0..more).map(|_| Group { list: lists.make(), count: 0, bytes: 0 }));
            self.jobs.push(Job::new(now_us, family, 0, FIRST_STAMP));
            self.jobs.len() - 1
        } else {
            let place = free.or_else(|| self.gone(now_us))?;
            self.end_job(table, lists, place);
            place
        };
        if role == Role::Single {
            self.visits.count(now_us);
        }
        self.serial += 1;
        self.jobs[place] = Job::new(now_us, family, self.serial, self.jobs[place].stamp);
        self.jobs[place].role = role;
        Some(JobRef { place, serial: self.serial })
    }

    /// Returns the index of a job, if it still exists.
    pub(super) fn place(&self, job: JobRef) -> Option<usize> {
        let found = self.jobs.get(job.place)?;
        (found.is_active && found.serial == job.serial).then_some(job.place)
    }

    /// Returns the job that has been silent longest, if it has been silent for longer than it was active or
    /// is through with the dataset.
    fn gone(&self, now_us: u64) -> Option<usize> {
        let place = (0..self.jobs.len()).min_by_key(|place| self.jobs[*place].last_us)?;
        let job = &self.jobs[place];
        let active_us = (job.last_us - job.came_us).max(job.period_us() as u64);
        let is_through = !job.is_proven() && job.left(self.known) == 0;
        (is_through || now_us - job.last_us > active_us).then_some(place)
    }

    /// Ends a job: no state depends on its reads any more.
    pub(super) fn end_job(&mut self, table: &mut Table, lists: &mut Lists, place: usize) {
        self.clear_bit(table, lists, place);
        self.pairs.end(place);
        let job = &mut self.jobs[place];
        job.is_active = false;
        job.stamp = next_stamp(job.stamp);
        self.forget_stamps(table, place);
    }

    /// Clears the stamps of a job when its stamp numbers wrap around, so that no block keeps a stamp of the
    /// previous cycle and counts as read.
    fn forget_stamps(&self, table: &mut Table, place: usize) {
        if self.jobs[place].stamp == FIRST_STAMP {
            for slot in 0..table.end() {
                let entry = &mut table[slot];
                if entry.dataset() == self.number {
                    entry.stamps &= !(15 << (4 * place));
                }
            }
        }
    }

    /// Returns the bit set of the jobs that have read a block in their current passes. A block that came from
    /// another dataset has no readers.
    pub(super) fn readers(&self, entry: &Entry) -> usize {
        if entry.dataset() != self.number {
            return 0;
        }
        let mut readers = 0;
        for (place, job) in self.jobs.iter().enumerate() {
            readers |= usize::from(entry.stamps >> (4 * place) & 15 == job.stamp && job.is_active) << place;
        }
        readers
    }

    /// Records the read of a block by a caller, whose own job has index `place`, if any.
    pub(super) fn read(
        &mut self,
        table: &mut Table,
        lists: &mut Lists,
        place: Option<usize>,
        family: u64,
        read: Read,
    ) {
        let trial = self.together(family);
        let place = place.filter(|place| trial != Some(*place));
        let alone = place.map(|place| self.read_as(table, lists, place, read));
        let together = trial.map(|place| self.read_together(table, lists, place, read));
        let skew = |place: Option<usize>| place.map_or(f64::INFINITY, |place| self.jobs[place].skew);
        // The more regular of the two describes the callers.
        let judged = if skew(trial) < skew(place) { together } else { alone.or(together) };
        if let Some(judged) = judged.flatten() {
            judged.add_to(&mut self.skew);
        }
        if self.is_skewed {
            for place in place.into_iter().chain(trial) {
                self.jobs[place].void = self.jobs[place].passes;
            }
        }
        if let Some(place) = trial {
            self.judge_together(table, lists, place);
        }
    }

    /// Records a repeated request for a recently requested block by a caller whose own job has index `place`,
    /// if any.
    pub(super) fn note_again(&mut self, place: Option<usize>, family: u64, now_us: u64) {
        let together = self.together(family).filter(|together| Some(*together) != place);
        for place in place.into_iter().chain(together) {
            self.jobs[place].note_again(now_us);
        }
    }

    /// Merges the callers of a family into one job if they repeatedly go through the dataset together; marks
    /// the family as separate if they do not.
    fn judge_together(&mut self, table: &mut Table, lists: &mut Lists, place: usize) {
        let job = &mut self.jobs[place];
        let family = job.family;
        let verdict = job.ranks.verdict(self.known);
        let is_whole = job.role == Role::Whole;
        if verdict == Verdict::Apart || is_whole && job.judged >= TRIAL_READS && job.skew > SKEW_HIGH {
            self.end_job(table, lists, place);
            if self.apart.len() == APART_MAX {
                self.apart.pop_front();
            }
            self.apart.push_back(family);
        } else if !is_whole
            && verdict == Verdict::Ranks
            && job.is_proven()
            && job.judged >= TRIAL_READS
            && f64::from(job.blocks) >= SHORT_PASS * f64::from(self.known)
        {
            job.role = Role::Whole;
            self.skew = self.skew.min(job.skew);
            for single in 0..self.jobs.len() {
                if self.jobs[single].is_single_of(family) {
                    self.end_job(table, lists, single);
                }
            }
        }
    }

    /// Records the read of a block under the common job of a family.
    fn read_together(
        &mut self,
        table: &mut Table,
        lists: &mut Lists,
        place: usize,
        read: Read,
    ) -> Option<Judged> {
        let is_again = self.was_read_before(&table[read.slot], place) == Some(true);
        let job = &mut self.jobs[place];
        job.ranks.note(&read, is_again, job.reads, job.is_repeating());
        let judged = self.read_as(table, lists, place, read);
        self.jobs[place].ranks.note_repeats(judged.map_or(0, |judged| judged.repeats));
        judged
    }

    /// True if a job read the block in the pass before the current one; `None` if unknown, as in the first
    /// pass of a stamp cycle.
    fn was_read_before(&self, entry: &Entry, place: usize) -> Option<bool> {
        let job = &self.jobs[place];
        let stamp = entry.stamps >> (4 * place) & 15;
        (job.is_proven() && job.stamp != FIRST_STAMP).then(|| stamp == job.stamp - 1)
    }

    /// Records the read of a block by a job. Returns how it fits into passes, if that is known yet.
    fn read_as(&mut self, table: &mut Table, lists: &mut Lists, place: usize, read: Read) -> Option<Judged> {
        let slot = read.slot;
        let readers = self.readers(&table[slot]);
        let is_repeat = readers >> place & 1 == 1;
        // Ranks skip other blocks in each pass: each rank leaves out the rest that fills no batch, which is a
        // large share of a small dataset.
        let is_new =
            self.jobs[place].role == Role::Single && self.was_read_before(&table[slot], place) == Some(false);
        let judged = match self.jobs[place].read(Read { is_repeat, ..read }) {
            Reading::Fresh { repeats } => {
                if self.jobs[place].role != Role::Trial {
                    self.pairs.count(&self.jobs, self.known, place, readers);
                }
                self.stamp(table, lists, place, slot);
                Some(Judged { is_irregular: is_new, repeats })
            }
            Reading::Repeat => None,
            Reading::NewPass { blocks } => self.begin_pass(table, lists, place, blocks),
        };
        if let Some(judged) = judged {
            self.jobs[place].judge(judged);
        }
        judged
    }

    fn begin_pass(
        &mut self,
        table: &mut Table,
        lists: &mut Lists,
        place: usize,
        blocks: u32,
    ) -> Option<Judged> {
        self.clear_bit(table, lists, place);
        self.forget_stamps(table, place);
        self.pairs.begin_pass(place);
        let run = self.jobs[place].take_run();
        for Read { slot, .. } in run.reads() {
            // A slot that was forgotten meanwhile may belong to another block.
            if table[*slot].id != 0 && table[*slot].dataset() == self.number {
                self.stamp(table, lists, place, *slot);
            }
        }
        if self.jobs[place].role != Role::Single {
            self.jobs[place].ranks.begin_pass(run.reads());
        }
        let is_short = f64::from(blocks) < SHORT_PASS * f64::from(self.known);
        is_short.then_some(Judged { is_irregular: true, repeats: run.length() - run.fresh() })
    }

    /// Returns the period of the passes if the dataset is read in passes beyond doubt; 0 otherwise.
    pub(super) fn period_us(&self, now_us: u64) -> f64 {
        if self.is_skewed || self.skew > SKEW_LOW {
            return 0.0;
        }
        let sure = self.jobs.iter().filter(|job| job.is_active && job.is_sure() && !job.is_overdue(now_us));
        sure.map(Job::period_us).fold(0.0, f64::max)
    }

    /// Sets whether its job has moved on to another dataset.
    pub(super) fn set_released(&mut self, is_released: bool) {
        if self.is_released != is_released {
            self.is_released = is_released;
            self.looked_at = None;
        }
    }

    /// Returns the queue of its blocks, if they belong to a queue and not to groups.
    pub(super) fn queue(&self) -> Option<Queue> {
        match (self.is_recent, self.is_skewed) {
            (true, _) => Some(Queue::Recent),
            (false, true) => Some(Queue::Pool),
            (false, false) => None,
        }
    }

    /// True if it has to change between passes and the pool.
    pub(super) fn changes_class(&self) -> bool {
        if self.is_skewed {
            self.skew < SKEW_LOW && self.jobs.iter().any(|job| job.is_active && job.is_proven())
        } else {
            self.skew > SKEW_HIGH
        }
    }

    /// Records that a job has read a block, which moves the block to another group.
    fn stamp(&mut self, table: &mut Table, lists: &mut Lists, place: usize, slot: Slot) {
        let is_grouped = table[slot].place() == Place::Group;
        if is_grouped {
            self.leave_group(table, lists, slot);
        }
        let shift = 4 * place;
        let entry = &mut table[slot];
        if entry.dataset() != self.number {
            entry.set_dataset(self.number);
            entry.stamps = 0;
        }
        entry.stamps = entry.stamps & !(15 << shift) | self.jobs[place].stamp << shift;
        if is_grouped {
            self.join_group(table, lists, slot);
        }
    }

    /// Adds a kept block to its group.
    pub(super) fn join_group(&mut self, table: &mut Table, lists: &mut Lists, slot: Slot) {
        let bytes = table[slot].bytes();
        let readers = self.readers(&table[slot]);
        let group = &mut self.groups[readers];
        group.count += 1;
        group.bytes += bytes;
        self.grouped_bytes += bytes;
        lists.push(table, group.list, slot);
        table[slot].set_place(Place::Group);
        let worth = self.worth.of(readers);
        if self.lowest.is_none_or(|(_, lowest)| worth < lowest) {
            self.lowest = Some((readers, worth));
        }
    }

    /// Removes a kept block from its group.
    pub(super) fn leave_group(&mut self, table: &mut Table, lists: &mut Lists, slot: Slot) {
        let bytes = table[slot].bytes();
        let readers = self.readers(&table[slot]);
        let group = &mut self.groups[readers];
        group.count -= 1;
        group.bytes -= bytes;
        self.grouped_bytes -= bytes;
        let is_empty = group.count == 0;
        lists.remove(table, slot);
        table[slot].set_place(Place::Away);
        if is_empty && self.lowest.is_some_and(|(lowest, _)| lowest == readers) {
            self.find_lowest();
        }
    }

    /// Returns any block of its groups.
    pub(super) fn any_grouped(&self, table: &Table, lists: &Lists) -> Option<Slot> {
        self.groups.iter().find_map(|group| lists.first(table, group.list))
    }

    /// Starts a job anew: clears its bit in all groups.
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
        self.looked_at = None;
        self.find_lowest();
    }

    /// Moves all blocks of another dataset into this one, without readers.
    pub(super) fn take_in(&mut self, table: &mut Table, lists: &mut Lists, other: Self) {
        for group in other.groups {
            let into = &mut self.groups[0];
            into.count += group.count;
            into.bytes += group.bytes;
            lists.join(table, into.list, group.list);
            lists.end(group.list);
        }
        self.known += other.known;
        self.grouped_bytes += other.grouped_bytes;
        self.looked_at = None;
        self.find_lowest();
    }

    /// Refreshes the worth if it is older than `looks_every` accesses.
    pub(super) fn look(&mut self, moment: &Moment) {
        if self.looked_at.is_some_and(|at| moment.access - at < moment.looks_every) {
            return;
        }
        self.looked_at = Some(moment.access);
        self.worth = self.worth_at(moment);
        self.find_lowest();
    }

    fn worth_at(&self, moment: &Moment) -> Worth {
        if self.is_released {
            return Worth::default();
        }
        let mut worth = Worth { base: self.visits.worth(moment.now_us), ..Worth::default() };
        let mut is_proven = false;
        let counted = |job: &Job| job.is_active && job.role != Role::Trial;
        for (place, job) in self.jobs.iter().enumerate().filter(|(_, job)| counted(job)) {
            is_proven |= job.is_proven();
            if job.is_planned {
                continue;
            }
            let expected = job.expects(moment.now_us, self.known);
            let following = self.pairs.leader(&self.jobs, place).map(|(leader, ahead)| {
                let soon_us = f64::from(ahead) * expected.interval_us;
                (leader, soon_us.recip())
            });
            worth.jobs[place] = Some(JobWorth { expected, following });
        }
        if !is_proven {
            worth.base += super::worth::unproven(moment.now_us - self.last_us, moment.tempo_us);
        }
        worth
    }

    fn find_lowest(&mut self) {
        let held = self.groups.iter().enumerate().filter(|(_, group)| group.count > 0);
        let valued = held.map(|(readers, _)| (readers, self.worth.of(readers)));
        self.lowest = valued.min_by(|(_, one), (_, other)| one.total_cmp(other));
    }

    /// Sets whether a job follows a plan.
    pub(super) fn set_planned(&mut self, place: usize, is_planned: bool) {
        let job = &mut self.jobs[place];
        if job.is_planned != is_planned {
            job.is_planned = is_planned;
            self.looked_at = None;
        }
    }

    /// Returns the part of a block's worth that comes from jobs with a known time of their next read.
    pub(super) fn expected_of(&self, entry: &Entry) -> f64 {
        (self.worth.of(self.readers(entry)) - self.worth.base) * self.weight
    }

    /// Returns the worth of a block.
    pub(super) fn worth_of(&self, entry: &Entry) -> f64 {
        self.worth.of(self.readers(entry)) * self.weight
    }

    /// Sets the weight of each read. Returns true if it changed.
    pub(super) fn set_weight(&mut self, weight: f32) -> bool {
        let is_new = self.weight != f64::from(weight);
        self.weight = weight.into();
        is_new
    }

    /// Returns the lowest worth among blocks in its groups.
    pub(super) fn lowest_worth(&self) -> Option<f64> {
        self.lowest.map(|(_, worth)| worth * self.weight)
    }

    /// Removes and returns the block of lowest worth: the oldest of its group.
    pub(super) fn take_lowest(&mut self, table: &mut Table, lists: &mut Lists) -> Option<Slot> {
        let (readers, _) = self.lowest?;
        let victim = lists.first(table, self.groups[readers].list)?;
        self.leave_group(table, lists, victim);
        Some(victim)
    }
}

#[cfg(test)]
impl Dataset {
    pub(super) const fn weight(&self) -> f64 {
        self.weight
    }

    /// Checks that every grouped block is in the group of its readers.
    pub(super) fn check(&self, table: &Table, lists: &Lists) {
        for (readers, group) in self.groups.iter().enumerate() {
            let held = lists.all(table, group.list);
            assert_eq!(held.len(), group.count as usize, "group {readers}");
            assert!(held.iter().all(|slot| self.readers(&table[*slot]) == readers), "group {readers}");
            assert_eq!(held.iter().map(|slot| table[*slot].bytes()).sum::<u64>(), group.bytes);
        }
    }
}

//! Dataset: its jobs and its kept blocks, grouped by the jobs that have read them.
//!
//! All kept blocks that the same jobs have read in their current passes have the same worth. They form one
//! group, and the search for a block to evict is over groups (EPOCH-HAZARD). Invariant: a kept block that is
//! in no queue is in the group of the jobs that have read it.

use super::job::{
    FIRST_STAMP, JOBS_MAX, JobCallers, JobRead, JobRef, ReadFit, ReadForecast, ReaderJob, next_stamp,
};
use super::list::{List, Lists};
use super::pairs::JobPairs;
use super::ranks::RankVerdict;
use super::run::CountedRead;
use super::slot::Slot;
use super::table::{BlockTable, EntryState, TableEntry};
use super::worth::{BlockWorth, JobArrivals, JobWorth, WorthContext};
use std::collections::VecDeque;

/// Share of irregular reads above which a dataset is no longer treated as read in passes, and below which it
/// is again.
const SKEW_HIGH: f64 = 0.2;
const SKEW_LOW: f64 = 0.05;
/// Minimum reads before callers can be merged into one job.
const TRIAL_READS: u32 = 64;
/// Maximum remembered families that are not one job.
const SEPARATE_FAMILIES_MAX: usize = 16;
/// A pass shorter than this share of the previous one is not a pass.
const SHORT_PASS: f64 = 0.5;

/// Blocks that the same jobs have read.
#[derive(Clone, Copy, Debug)]
struct ReaderGroup {
    list: List,
    count: u32,
    bytes: u64,
}

/// A queue that accepts every block and whose worth as a whole is that of its end.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum CacheQueue {
    /// Blocks that are read in no order.
    Pool,
    /// Blocks that are kept by recency.
    Recent,
}

/// Eviction order that a rule requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EvictionOrder {
    /// Lowest worth first, as the engine estimates it.
    Worth,
    /// Least recently read first.
    Recency,
}

/// State of a dataset.
pub(super) struct TrackedDataset {
    /// Number of the dataset.
    number: u16,
    pub(super) jobs: Vec<ReaderJob>,
    /// Number of jobs so far.
    jobs_added: u32,
    /// Groups, indexed by the bit set of the jobs that have read their blocks.
    groups: Vec<ReaderGroup>,
    pub(super) pairs: JobPairs,
    pub(super) visits: JobArrivals,
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
    separate_families: VecDeque<u64>,
    /// True if its blocks belong to the pool.
    pub(super) is_skewed: bool,
    /// Order that applied to the last block that was added or moved.
    pub(super) eviction_order: EvictionOrder,
    /// True if its job has moved on to another dataset: its kept blocks are evicted first.
    is_released: bool,
    /// Worth of its blocks and its group of lowest worth, as of the access in `looked_at`.
    worth: BlockWorth,
    lowest: Option<(usize, f64)>,
    worth_as_of: Option<u64>,
}

impl TrackedDataset {
    pub(super) fn new(number: u16, lists: &mut Lists) -> Self {
        let group = ReaderGroup { list: lists.make(), count: 0, bytes: 0 };
        Self {
            number,
            jobs: Vec::new(),
            jobs_added: 0,
            groups: vec![group],
            pairs: JobPairs::default(),
            visits: JobArrivals::default(),
            known: 0,
            grouped_bytes: 0,
            writes: 0,
            weight: 1.0,
            last_us: 0,
            skew: 0.0,
            separate_families: VecDeque::new(),
            is_skewed: false,
            eviction_order: EvictionOrder::Worth,
            is_released: false,
            worth: BlockWorth::default(),
            lowest: None,
            worth_as_of: None,
        }
    }

    /// Returns the job of a caller of a family: the family's common job, or one of the caller's own; `None`
    /// if there is no place for another job.
    pub(super) fn assign_job(
        &mut self,
        table: &mut BlockTable,
        lists: &mut Lists,
        now_us: u64,
        family: u64,
    ) -> Option<JobRef> {
        if let Some(place) =
            self.family_job(family).filter(|place| self.jobs[*place].callers == JobCallers::Whole)
        {
            return Some(JobRef { place, serial: self.jobs[place].serial });
        }
        let job = self.add_job(table, lists, now_us, family, JobCallers::Single);
        let singles = self.jobs.iter().filter(|job| job.is_single_of(family)).count();
        if singles > 1 && self.family_job(family).is_none() && !self.separate_families.contains(&family) {
            self.add_job(table, lists, now_us, family, JobCallers::Trial);
        }
        job
    }

    /// Returns the index of the common job of all callers of a family, if they are or may be one job.
    pub(super) fn family_job(&self, family: u64) -> Option<usize> {
        let is_common =
            |job: &ReaderJob| job.is_active && job.callers != JobCallers::Single && job.family == family;
        self.jobs.iter().position(is_common)
    }

    /// Adds a job in a free place, a new one, or that of an idle job; `None` if all jobs are active.
    fn add_job(
        &mut self,
        table: &mut BlockTable,
        lists: &mut Lists,
        now_us: u64,
        family: u64,
        role: JobCallers,
    ) -> Option<JobRef> {
        let free = self.jobs.iter().position(|job| !job.is_active);
        let place = if free.is_none() && self.jobs.len() < JOBS_MAX {
            let more = self.groups.len();
            self.groups.extend((0..more).map(|_| ReaderGroup { list: lists.make(), count: 0, bytes: 0 }));
            self.jobs.push(ReaderJob::new(now_us, family, 0, FIRST_STAMP));
            assert_eq!(self.groups.len(), 1 << self.jobs.len(), "each set of readers has a group");
            self.jobs.len() - 1
        } else {
            let place = free.or_else(|| self.replaceable_job(now_us))?;
            self.end_job(table, lists, place);
            place
        };
        if role == JobCallers::Single {
            self.visits.count(now_us);
        }
        self.jobs_added += 1;
        self.jobs[place] = ReaderJob::new(now_us, family, self.jobs_added, self.jobs[place].stamp);
        self.jobs[place].callers = role;
        Some(JobRef { place, serial: self.jobs_added })
    }

    /// Returns the index of a job, if it still exists.
    pub(super) fn job_index(&self, job: JobRef) -> Option<usize> {
        let found = self.jobs.get(job.place)?;
        (found.is_active && found.serial == job.serial).then_some(job.place)
    }

    /// Returns the job that has been silent longest, if it has been silent for longer than it was active or
    /// is through with the dataset.
    fn replaceable_job(&self, now_us: u64) -> Option<usize> {
        let place = (0..self.jobs.len()).min_by_key(|place| self.jobs[*place].last_us)?;
        let job = &self.jobs[place];
        let active_us = (job.last_us - job.first_us).max(job.period_us() as u64);
        let is_finished = !job.is_proven() && job.left(self.known) == 0;
        (is_finished || now_us - job.last_us > active_us).then_some(place)
    }

    /// Ends a job: no state depends on its reads any more.
    pub(super) fn end_job(&mut self, table: &mut BlockTable, lists: &mut Lists, place: usize) {
        self.clear_reader(table, lists, place);
        self.pairs.end(place);
        let job = &mut self.jobs[place];
        job.is_active = false;
        job.stamp = next_stamp(job.stamp);
        self.forget_stamps(table, place);
    }

    /// Clears the stamps of a job when its stamp numbers wrap around, so that no block keeps a stamp of the
    /// previous cycle and counts as read.
    fn forget_stamps(&self, table: &mut BlockTable, place: usize) {
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
    pub(super) fn readers(&self, entry: &TableEntry) -> usize {
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
        table: &mut BlockTable,
        lists: &mut Lists,
        place: Option<usize>,
        family: u64,
        read: CountedRead,
    ) {
        let trial = self.family_job(family);
        let place = place.filter(|place| trial != Some(*place));
        let alone = place.map(|place| self.read_as(table, lists, place, read));
        let as_family = trial.map(|place| self.read_as_family(table, lists, place, read));
        let skew = |place: Option<usize>| place.map_or(f64::INFINITY, |place| self.jobs[place].skew);
        // The more regular of the two describes the callers.
        let judged = if skew(trial) < skew(place) { as_family } else { alone.or(as_family) };
        if let Some(judged) = judged.flatten() {
            judged.add_to(&mut self.skew);
        }
        if self.is_skewed {
            for place in place.into_iter().chain(trial) {
                self.jobs[place].void_passes = self.jobs[place].passes;
            }
        }
        if let Some(place) = trial {
            self.judge_family(table, lists, place);
        }
    }

    /// Records a repeated request for a recently requested block by a caller whose own job has index `place`,
    /// if any.
    pub(super) fn record_repeat(&mut self, place: Option<usize>, family: u64, now_us: u64) {
        let common = self.family_job(family).filter(|together| Some(*together) != place);
        for place in place.into_iter().chain(common) {
            self.jobs[place].record_repeat(now_us);
        }
    }

    /// Merges the callers of a family into one job if they repeatedly go through the dataset together; marks
    /// the family as separate if they do not.
    fn judge_family(&mut self, table: &mut BlockTable, lists: &mut Lists, place: usize) {
        let job = &mut self.jobs[place];
        let family = job.family;
        let verdict = job.ranks.verdict(self.known);
        let is_whole = job.callers == JobCallers::Whole;
        if verdict == RankVerdict::Separate
            || is_whole && job.judged_reads >= TRIAL_READS && job.skew > SKEW_HIGH
        {
            self.end_job(table, lists, place);
            if self.separate_families.len() == SEPARATE_FAMILIES_MAX {
                self.separate_families.pop_front();
            }
            self.separate_families.push_back(family);
        } else if !is_whole
            && verdict == RankVerdict::Ranks
            && job.is_proven()
            && job.judged_reads >= TRIAL_READS
            && f64::from(job.blocks) >= SHORT_PASS * f64::from(self.known)
        {
            job.callers = JobCallers::Whole;
            self.skew = self.skew.min(job.skew);
            for single in 0..self.jobs.len() {
                if self.jobs[single].is_single_of(family) {
                    self.end_job(table, lists, single);
                }
            }
        }
    }

    /// Records the read of a block under the common job of a family.
    fn read_as_family(
        &mut self,
        table: &mut BlockTable,
        lists: &mut Lists,
        place: usize,
        read: CountedRead,
    ) -> Option<ReadFit> {
        let is_return = self.was_read_before(&table[read.slot], place) == Some(true);
        let job = &mut self.jobs[place];
        job.ranks.record_read(&CountedRead { is_return, ..read }, job.reads);
        if !job.is_repeating() {
            job.ranks.end_run();
        }
        let judged = self.read_as(table, lists, place, read);
        self.jobs[place].ranks.add_repeats(judged.map_or(0, |judged| judged.repeats));
        judged
    }

    /// True if a job read the block in the pass before the current one; `None` if unknown, as in the first
    /// pass of a stamp cycle.
    fn was_read_before(&self, entry: &TableEntry, place: usize) -> Option<bool> {
        let job = &self.jobs[place];
        let stamp = entry.stamps >> (4 * place) & 15;
        (job.is_proven() && job.stamp != FIRST_STAMP).then(|| stamp == job.stamp - 1)
    }

    /// Records the read of a block by a job. Returns how it fits into passes, if that is known yet.
    fn read_as(
        &mut self,
        table: &mut BlockTable,
        lists: &mut Lists,
        place: usize,
        read: CountedRead,
    ) -> Option<ReadFit> {
        let slot = read.slot;
        let readers = self.readers(&table[slot]);
        let is_repeat = readers >> place & 1 == 1;
        // Ranks skip other blocks in each pass: each rank leaves out the rest that fills no batch, which is a
        // large share of a small dataset.
        let is_new = self.jobs[place].callers == JobCallers::Single
            && self.was_read_before(&table[slot], place) == Some(false);
        let judged = match self.jobs[place].read(CountedRead { is_repeat, ..read }) {
            JobRead::Fresh { repeats } => {
                if self.jobs[place].callers != JobCallers::Trial {
                    self.pairs.count(&self.jobs, self.known, place, readers);
                }
                self.stamp_read(table, lists, place, slot);
                Some(ReadFit { is_irregular: is_new, repeats })
            }
            JobRead::Repeat => None,
            JobRead::NewPass { blocks } => self.begin_pass(table, lists, place, blocks),
        };
        if let Some(judged) = judged {
            self.jobs[place].judge(judged);
        }
        judged
    }

    fn begin_pass(
        &mut self,
        table: &mut BlockTable,
        lists: &mut Lists,
        place: usize,
        blocks: u32,
    ) -> Option<ReadFit> {
        self.clear_reader(table, lists, place);
        self.forget_stamps(table, place);
        self.pairs.begin_pass(place);
        let run = self.jobs[place].take_run();
        for CountedRead { slot, .. } in run.reads() {
            // A slot that was forgotten meanwhile may belong to another block.
            if table[*slot].id != 0 && table[*slot].dataset() == self.number {
                self.stamp_read(table, lists, place, *slot);
            }
        }
        if self.jobs[place].callers != JobCallers::Single {
            self.jobs[place].ranks.begin_pass(run.reads());
        }
        let is_short = f64::from(blocks) < SHORT_PASS * f64::from(self.known);
        is_short.then_some(ReadFit { is_irregular: true, repeats: run.length() - run.fresh() })
    }

    /// Records that a remembered block is forgotten or belongs to another dataset.
    pub(super) fn forget_block(&mut self) {
        assert!(self.known > 0, "each entry of a dataset is counted in it");
        self.known -= 1;
    }

    /// Returns the period of the passes if the dataset is read in passes beyond doubt; 0 otherwise.
    pub(super) fn period_us(&self, now_us: u64) -> f64 {
        if self.is_skewed || self.skew > SKEW_LOW {
            return 0.0;
        }
        let sure = self.jobs.iter().filter(|job| job.is_active && job.is_sure() && !job.is_overdue(now_us));
        sure.map(ReaderJob::period_us).fold(0.0, f64::max)
    }

    /// Records that its job has moved on to another dataset.
    pub(super) fn release(&mut self) {
        if !self.is_released {
            self.is_released = true;
            self.worth_as_of = None;
        }
    }

    /// Records that its job has come back.
    pub(super) fn resume(&mut self) {
        if self.is_released {
            self.is_released = false;
            self.worth_as_of = None;
        }
    }

    /// Returns the queue of its blocks, if they belong to a queue and not to groups.
    pub(super) fn queue(&self) -> Option<CacheQueue> {
        match (self.eviction_order, self.is_skewed) {
            (EvictionOrder::Recency, _) => Some(CacheQueue::Recent),
            (EvictionOrder::Worth, true) => Some(CacheQueue::Pool),
            (EvictionOrder::Worth, false) => None,
        }
    }

    /// True if it has to change between passes and the pool.
    pub(super) fn must_change_class(&self) -> bool {
        if self.is_skewed {
            self.skew < SKEW_LOW && self.jobs.iter().any(|job| job.is_active && job.is_proven())
        } else {
            self.skew > SKEW_HIGH
        }
    }

    /// Records that a job has read a block, which moves the block to another group.
    fn stamp_read(&mut self, table: &mut BlockTable, lists: &mut Lists, place: usize, slot: Slot) {
        let is_grouped = table[slot].state() == EntryState::Group;
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
    pub(super) fn join_group(&mut self, table: &mut BlockTable, lists: &mut Lists, slot: Slot) {
        let bytes = table[slot].bytes();
        let readers = self.readers(&table[slot]);
        let group = &mut self.groups[readers];
        group.count += 1;
        group.bytes += bytes;
        self.grouped_bytes += bytes;
        lists.push(table, group.list, slot);
        table[slot].set_state(EntryState::Group);
        let worth = self.worth.of(readers);
        if self.lowest.is_none_or(|(_, lowest)| worth < lowest) {
            self.lowest = Some((readers, worth));
        }
    }

    /// Removes a kept block from its group.
    pub(super) fn leave_group(&mut self, table: &mut BlockTable, lists: &mut Lists, slot: Slot) {
        let bytes = table[slot].bytes();
        let readers = self.readers(&table[slot]);
        let group = &mut self.groups[readers];
        assert!(group.count > 0 && group.bytes >= bytes, "a grouped block is in the group of its readers");
        group.count -= 1;
        group.bytes -= bytes;
        self.grouped_bytes -= bytes;
        let is_empty = group.count == 0;
        lists.remove(table, slot);
        table[slot].set_state(EntryState::NotKept);
        if is_empty && self.lowest.is_some_and(|(lowest, _)| lowest == readers) {
            self.find_lowest();
        }
    }

    /// Returns any block of its groups.
    pub(super) fn any_grouped(&self, table: &BlockTable, lists: &Lists) -> Option<Slot> {
        self.groups.iter().find_map(|group| lists.first(table, group.list))
    }

    /// Starts a job anew: clears its bit in all groups.
    fn clear_reader(&mut self, table: &mut BlockTable, lists: &mut Lists, place: usize) {
        let bit = 1 << place;
        for readers in (0..self.groups.len()).filter(|readers| readers & bit != 0) {
            let ReaderGroup { list, count, bytes } = self.groups[readers];
            let target = &mut self.groups[readers & !bit];
            target.count += count;
            target.bytes += bytes;
            lists.append_all(table, target.list, list);
            self.groups[readers] = ReaderGroup { list, count: 0, bytes: 0 };
        }
        self.worth_as_of = None;
        self.find_lowest();
    }

    /// Moves all blocks of another dataset into this one, without readers.
    pub(super) fn absorb(&mut self, table: &mut BlockTable, lists: &mut Lists, other: Self) {
        for group in other.groups {
            let target = &mut self.groups[0];
            target.count += group.count;
            target.bytes += group.bytes;
            lists.append_all(table, target.list, group.list);
            lists.free_list(group.list);
        }
        self.known += other.known;
        self.grouped_bytes += other.grouped_bytes;
        self.worth_as_of = None;
        self.find_lowest();
    }

    /// Refreshes the worth if it is older than `looks_every` accesses.
    pub(super) fn refresh_worth(&mut self, moment: &WorthContext) {
        if self.worth_as_of.is_some_and(|at| moment.access - at < moment.refresh_every) {
            return;
        }
        self.worth_as_of = Some(moment.access);
        self.worth = self.worth_at(moment);
        self.find_lowest();
    }

    fn worth_at(&self, moment: &WorthContext) -> BlockWorth {
        if self.is_released {
            return BlockWorth::default();
        }
        let mut worth = BlockWorth { base: self.visits.worth(moment.now_us), ..BlockWorth::default() };
        let mut is_proven = false;
        let counted = |job: &ReaderJob| job.is_active && job.callers != JobCallers::Trial;
        for (place, job) in self.jobs.iter().enumerate().filter(|(_, job)| counted(job)) {
            is_proven |= job.is_proven();
            if job.forecast == ReadForecast::Plan {
                continue;
            }
            let expected = job.expected_reads(moment.now_us, self.known);
            let leader = self.pairs.leader(&self.jobs, place).map(|(leader, ahead)| {
                let delay_us = f64::from(ahead) * expected.interval_us;
                (leader, delay_us.recip())
            });
            worth.jobs[place] = Some(JobWorth { expected, leader });
        }
        if !is_proven {
            worth.base += super::worth::unproven(moment.now_us - self.last_us, moment.tempo_us);
        }
        worth
    }

    fn find_lowest(&mut self) {
        let nonempty = self.groups.iter().enumerate().filter(|(_, group)| group.count > 0);
        let valued = nonempty.map(|(readers, _)| (readers, self.worth.of(readers)));
        self.lowest = valued.min_by(|(_, one), (_, other)| one.total_cmp(other));
    }

    /// Sets the source of a job's expected reads.
    pub(super) fn set_forecast(&mut self, place: usize, forecast: ReadForecast) {
        let job = &mut self.jobs[place];
        if job.forecast != forecast {
            job.forecast = forecast;
            self.worth_as_of = None;
        }
    }

    /// Returns the part of a block's worth that comes from jobs with a known time of their next read.
    pub(super) fn expected_of(&self, entry: &TableEntry) -> f64 {
        (self.worth.of(self.readers(entry)) - self.worth.base) * self.weight
    }

    /// Returns the worth of a block.
    pub(super) fn worth_of(&self, entry: &TableEntry) -> f64 {
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
    pub(super) fn take_lowest(&mut self, table: &mut BlockTable, lists: &mut Lists) -> Option<Slot> {
        let (readers, _) = self.lowest?;
        let victim = lists.first(table, self.groups[readers].list)?;
        self.leave_group(table, lists, victim);
        Some(victim)
    }
}

#[cfg(test)]
impl TrackedDataset {
    pub(super) const fn weight(&self) -> f64 {
        self.weight
    }

    /// Checks that every grouped block is in the group of its readers.
    pub(super) fn check(&self, table: &BlockTable, lists: &Lists) {
        for (readers, group) in self.groups.iter().enumerate() {
            let slots = lists.all(table, group.list);
            assert_eq!(slots.len(), group.count as usize, "group {readers}");
            assert!(slots.iter().all(|slot| self.readers(&table[*slot]) == readers), "group {readers}");
            assert_eq!(slots.iter().map(|slot| table[*slot].bytes()).sum::<u64>(), group.bytes);
        }
    }
}

//! Cache engine: observes every access and advises which blocks to keep.
//!
//! Datasets are found by the names of their objects ([`names`]), and the jobs that read them by their passes
//! ([`job`]). Blocks that are read in passes are kept by the time of their next expected read ([`worth`]);
//! blocks read in no order are kept by S3-FIFO ([`pool`]), or by LRU where a rule requests it ([`recent`]).
//! The share of the capacity of each of these follows from what each would gain from more room. Invariants:
//! the blocks to keep fit the capacity; an evicted block was kept and not pinned; the same accesses give the
//! same answers.

mod ahead;
mod dataset;
mod hazard;
mod index;
mod job;
mod keeping;
mod list;
mod lookup;
mod names;
mod order;
mod pairs;
mod patterns;
mod planned;
mod plans;
mod pool;
mod ranks;
mod recent;
mod recycling;
mod run;
mod shares;
mod slot;
mod streams;
mod table;
mod worth;

pub use ahead::{ReadAheadLimits, ReadAheadOrder, ReadAheadOutcome, ReadAheadRange};
pub use keeping::CachingRule;
pub use lookup::KeptBlocks;
pub use names::{DatasetId, DatasetName};
pub use order::ReadOrder;
pub use patterns::DatasetPattern;
pub use planned::{LISTS_MAX, PLANS_MAX, PlanProgress, PlanReaders, ReadyPlan, TooManyPlans};

use crate::access::{Access, Caller, Op};
use ahead::ReadAheadTrails;
use dataset::{EvictionOrder, TrackedDataset};
use list::Lists;
use names::DatasetNames;
use order::ReadStart;
use planned::Plans;
use pool::Pool;
use recent::LruQueue;
use run::CountedRead;
use shares::LowestGroup;
use slot::Slot;
use std::collections::BTreeMap;
use streams::{BlockTouch, Streams};
use table::{BlockTable, DATASETS_MAX, EntryState};

/// Limits of the engine.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Maximum bytes of kept blocks.
    pub capacity_bytes: u64,
    /// Maximum number of remembered blocks, kept or not; each takes 32 bytes of memory.
    pub blocks_max: usize,
    /// Bytes of a block; smaller objects are one block.
    pub block_bytes: u64,
    /// Seed of the block ids.
    pub seed: u64,
}

/// Advice on a block that is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Advice {
    /// The block is kept already.
    Kept,
    /// The block is to be kept.
    Keep,
    /// The block is passed through and not kept.
    Bypass,
}

/// A block that is stored here, or is being fetched, without a read by a client.
#[derive(Clone, Copy, Debug)]
pub struct UnreadBlock<'a> {
    /// Bucket id.
    pub bucket: u64,
    /// Object key.
    pub key: &'a str,
    /// Bytes of the whole object.
    pub size: u64,
    /// Number of the block in the object.
    pub number: u32,
}

/// An observed access, the context of the reads of its blocks.
#[derive(Clone, Copy, Debug)]
pub struct ObservedAccess {
    now_us: u64,
    dataset: DatasetId,
    stream: u64,
    family: u64,
    start: ReadStart,
}

impl ObservedAccess {
    /// Returns the same access with a block read at `at_us`, which is no earlier than the last access.
    #[must_use]
    pub const fn at(self, at_us: u64) -> Self {
        Self { now_us: at_us, ..self }
    }

    /// Returns the number of its dataset as of the last resolution.
    const fn number(self) -> u16 {
        self.dataset.number()
    }

    /// True if the read begins an object or continues where another read ended.
    pub(crate) const fn is_sequential(self) -> bool {
        matches!(self.start, ReadStart::Sequential)
    }
}

/// Progress of a job through a dataset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PassProgress {
    /// Completed passes after which the job came back to the beginning.
    pub completed: u32,
    /// Passes that are over, including the current one once it has read as many blocks as the last completed
    /// pass.
    pub over: u32,
    /// Passes that counted at first but turned out not to be passes: the dataset was read repeatedly in no
    /// order during that time.
    pub void_passes: u32,
    /// Start of the current pass, in microseconds.
    pub started_us: u64,
    /// Blocks read in the last completed pass.
    pub blocks: u32,
    /// Known blocks of the dataset.
    pub known: u32,
    /// Blocks read in the current pass.
    pub read: u32,
}

/// Cache engine; see the module.
pub struct CacheEngine {
    options: Options,
    names: DatasetNames,
    table: BlockTable,
    lists: Lists,
    datasets: BTreeMap<u16, TrackedDataset>,
    streams: Streams,
    pool: Pool,
    recent: LruQueue,
    plans: Plans,
    trails: ReadAheadTrails,
    /// Bytes of all kept blocks.
    kept_bytes: u64,
    /// Bytes of the pinned blocks, which are never evicted.
    pinned_bytes: u64,
    /// Longest period of the passes of any dataset, in microseconds.
    tempo_us: f64,
    accesses: u64,
    least_known: Option<LowestGroup>,
    evicted: Vec<u64>,
}

impl CacheEngine {
    /// Returns an engine without any knowledge.
    #[must_use]
    pub fn new(options: Options) -> Self {
        Self::with_numbers(options, DATASETS_MAX)
    }

    /// Returns an engine with a limit on the number of datasets.
    fn with_numbers(options: Options, numbers_max: usize) -> Self {
        assert!(options.block_bytes > 0, "a block has bytes");
        let mut lists = Lists::default();
        Self {
            names: DatasetNames::new(options.seed, numbers_max),
            table: BlockTable::new(options.blocks_max),
            pool: Pool::new(&mut lists),
            recent: LruQueue::new(&mut lists),
            lists,
            datasets: BTreeMap::new(),
            streams: Streams::default(),
            plans: Plans::default(),
            trails: ReadAheadTrails::default(),
            kept_bytes: 0,
            pinned_bytes: 0,
            tempo_us: 0.0,
            accesses: 0,
            least_known: None,
            evicted: Vec::new(),
            options,
        }
    }

    /// Records an access.
    pub fn observe(&mut self, access: &Access<'_>) -> ObservedAccess {
        let now_us = access.at_us;
        let mut number = self.number_of(access.bucket, access.key);
        if let Some(last) = self.streams.switch(access.caller, self.names.id(number))
            && let Some(last) = self.names.current_number(last)
            && self.is_same_dataset(access.caller, last, number)
        {
            self.names.join(last, number);
            self.merge_united_datasets();
            number = last;
            self.streams.switch(access.caller, self.names.id(number));
        }
        self.accesses += 1;
        if self.accesses.is_multiple_of(TEMPO_ACCESSES) {
            let periods = self.datasets.values().map(|dataset| dataset.period_us(now_us));
            self.tempo_us = periods.fold(0.0, f64::max);
        }
        let Self { table, lists, datasets, streams, names, .. } = self;
        let dataset = datasets.entry(number).or_insert_with(|| TrackedDataset::new(number, lists));
        dataset.last_us = now_us;
        let start = match access.op {
            Op::Read => streams.record_order(access, names.shape(number)),
            Op::Write | Op::Delete => ReadStart::Sequential,
        };
        dataset.writes = dataset.writes.saturating_add(u32::from(access.op == Op::Write));
        let id = names.id(number);
        let stream = streams.record_access(access, id);
        let job = streams.job(stream).filter(|job| dataset.job_index(*job).is_some());
        let job = job.or_else(|| dataset.assign_job(table, lists, now_us, access.caller.family));
        streams.set_job(stream, job);
        if let Some(job) = job {
            dataset.jobs[job.place].last_us = now_us;
        }
        if !self.plans.is_idle() {
            self.follow_plans(access, number, job);
        }
        ObservedAccess { now_us, dataset: id, stream, family: access.caller.family, start }
    }

    /// True if a caller that reads `next` after `last` reads one dataset in several parts: the names are
    /// alike, and the caller has not come back to the beginning yet.
    fn is_same_dataset(&self, caller: Caller, last: u16, next: u16) -> bool {
        if last == next || !self.names.are_alike(last, next) {
            return false;
        }
        let (Some(job), Some(dataset)) =
            (self.streams.job_of(caller, self.names.id(last)), self.datasets.get(&last))
        else {
            return false;
        };
        let is_unproven = dataset.job_index(job).is_some_and(|place| !dataset.jobs[place].is_proven());
        is_unproven
            && self.datasets.get(&next).is_none_or(|dataset| dataset.jobs.iter().all(|job| !job.is_proven()))
    }

    /// Records a read of a block of an observed access and returns the advice on it.
    pub fn read(&mut self, seen: ObservedAccess, access: &Access<'_>, block: u32) -> Advice {
        self.read_block(seen, access, block, EvictionOrder::Worth)
    }

    /// Does the same for a block that is evicted in this order.
    fn read_block(
        &mut self,
        seen: ObservedAccess,
        access: &Access<'_>,
        block: u32,
        order: EvictionOrder,
    ) -> Advice {
        let seen = self.refresh(seen, access);
        let id = self.names.block_id(access.bucket, access.key, block);
        if access.op == Op::Delete {
            self.invalidate(id);
            return Advice::Bypass;
        }
        let first = u64::from(block) * self.options.block_bytes;
        let bytes = self.bytes_of(access.size, block);
        let Some(slot) = self.entry(id, seen.number(), bytes) else { return Advice::Bypass };
        if access.op == Op::Read {
            self.record_read(seen, access, slot, first..first + bytes);
        }
        let due = self.plan_due(seen.now_us, access.bucket, access.key);
        if self.table[slot].state().is_kept() {
            self.read_kept(seen.now_us, slot, order);
            self.keep_by_plan(slot, due);
            return Advice::Kept;
        }
        self.admit(seen, slot, due, order)
    }

    /// Records a read of a block that is not cacheable: updates statistics and returns no advice.
    pub fn read_uncached(&mut self, seen: ObservedAccess, access: &Access<'_>, block: u32) {
        let seen = self.refresh(seen, access);
        let id = self.names.block_id(access.bucket, access.key, block);
        let first = u64::from(block) * self.options.block_bytes;
        let bytes = self.bytes_of(access.size, block);
        if let Some(slot) = self.entry(id, seen.number(), bytes) {
            self.record_read(seen, access, slot, first..first + bytes);
        }
    }

    /// Records a block that is present without a read: it was kept before the engine started, or an order
    /// fetches it. Returns whether it is kept, which depends on the value of an unread block of its dataset.
    /// `at_us` is no earlier than the last access.
    pub fn admit_unread(&mut self, at_us: u64, block: &UnreadBlock<'_>) -> Advice {
        let Some((slot, number)) = self.entry_of(block) else { return Advice::Bypass };
        if self.table[slot].state().is_kept() {
            return Advice::Kept;
        }
        let due = self.plan_due(at_us, block.bucket, block.key);
        let order = self.datasets.get(&number).map_or(EvictionOrder::Worth, |dataset| dataset.eviction_order);
        let dataset = self.names.id(number);
        let seen =
            ObservedAccess { now_us: at_us, dataset, stream: 0, family: 0, start: ReadStart::Sequential };
        self.admit(seen, slot, due, order)
    }

    /// Returns the entry of a block and the number of its dataset.
    fn entry_of(&mut self, block: &UnreadBlock<'_>) -> Option<(Slot, u16)> {
        let number = self.number_of(block.bucket, block.key);
        let Self { lists, datasets, .. } = self;
        datasets.entry(number).or_insert_with(|| TrackedDataset::new(number, lists));
        let id = self.names.block_id(block.bucket, block.key, block.number);
        let bytes = self.bytes_of(block.size, block.number);
        Some((self.entry(id, number, bytes)?, number))
    }

    /// Returns the ids of the blocks that are kept, as far as the engine knows.
    pub fn kept_ids(&self) -> impl Iterator<Item = u64> + '_ {
        let slots = (0..self.table.end()).map(|slot| &self.table[slot]);
        slots.filter(|entry| entry.state().is_kept()).map(|entry| entry.id)
    }

    /// True if a block is kept, as far as the engine knows.
    #[must_use]
    pub fn is_kept(&self, id: u64) -> bool {
        self.table.find(id).is_some_and(|slot| self.table[slot].state().is_kept())
    }

    /// Records that a block is no longer kept for a reason other than eviction.
    pub fn invalidate(&mut self, id: u64) {
        let Some(slot) = self.table.find(id).filter(|slot| self.table[*slot].state().is_kept()) else {
            return;
        };
        self.remove_from_queue(slot);
        self.subtract_kept(slot);
    }

    /// Adds the bytes of a block for which room was made.
    fn add_kept(&mut self, bytes: u64) {
        self.kept_bytes += bytes;
        assert!(self.kept_bytes <= self.options.capacity_bytes, "kept blocks fit the capacity");
    }

    /// Subtracts the bytes of a block that is no longer kept.
    fn subtract_kept(&mut self, slot: Slot) {
        let entry = &self.table[slot];
        assert!(!entry.state().is_kept(), "a block leaves its queue or group before its bytes are free");
        assert!(self.kept_bytes >= entry.bytes(), "the sum of kept bytes includes each kept block");
        self.kept_bytes -= entry.bytes();
    }

    /// Removes a kept block from its queue or group.
    fn remove_from_queue(&mut self, slot: Slot) {
        let Self { table, lists, datasets, pool, recent, plans, names, .. } = self;
        match table[slot].state() {
            EntryState::Group => {
                if let Some(dataset) = datasets.get_mut(&names.root(table[slot].dataset())) {
                    dataset.leave_group(table, lists, slot);
                }
            }
            EntryState::Planned => plans.leave(table, slot),
            EntryState::Recent | EntryState::Older | EntryState::Evicted => recent.leave(table, lists, slot),
            _ => pool.leave(table, lists, slot),
        }
        if table[slot].state() == EntryState::Pinned {
            assert!(self.pinned_bytes >= table[slot].bytes(), "the sum of pinned bytes includes each pin");
            self.pinned_bytes -= table[slot].bytes();
        }
        table[slot].set_state(EntryState::NotKept);
    }

    /// Returns the id of a block, by which evicted and lost blocks are identified.
    #[must_use]
    pub fn block_id(&self, bucket: u64, key: &str, block: u32) -> u64 {
        self.names.block_id(bucket, key, block)
    }

    /// Returns the bytes of all kept blocks.
    #[must_use]
    pub const fn kept_bytes(&self) -> u64 {
        self.kept_bytes
    }

    /// Returns the bytes of block `block` of an object of `size` bytes.
    #[must_use]
    pub fn bytes_of(&self, size: u64, block: u32) -> u64 {
        let first = u64::from(block) * self.options.block_bytes;
        size.saturating_sub(first).min(self.options.block_bytes)
    }

    /// Returns the maximum bytes of a block.
    #[must_use]
    pub const fn block_bytes(&self) -> u64 {
        self.options.block_bytes
    }

    /// Returns the maximum bytes of kept blocks.
    #[must_use]
    pub const fn capacity_bytes(&self) -> u64 {
        self.options.capacity_bytes
    }

    /// Returns the bytes of pinned blocks, which are never evicted.
    #[must_use]
    pub const fn pinned_bytes(&self) -> u64 {
        self.pinned_bytes
    }

    /// Returns the bytes of memory of the block table.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.table.memory_bytes()
    }

    /// Returns the name of the dataset of an access.
    #[must_use]
    pub fn dataset(&self, seen: ObservedAccess) -> &DatasetName {
        self.names.name(self.number(seen))
    }

    /// Returns the id of the dataset of an access. Datasets that turn out to be one share one id from then
    /// on.
    #[must_use]
    pub fn dataset_id(&self, seen: ObservedAccess) -> DatasetId {
        self.names.id(self.number(seen))
    }

    /// Returns the current id of a dataset; `id` itself if nothing is known of the dataset any more.
    #[must_use]
    pub fn dataset_now(&self, id: DatasetId) -> DatasetId {
        self.names.current_number(id).map_or(id, |number| self.names.id(number))
    }

    /// Returns the index of the job of an access in its dataset.
    fn job_index(&self, seen: ObservedAccess, dataset: &TrackedDataset) -> Option<usize> {
        let own = self.streams.job(seen.stream).and_then(|job| dataset.job_index(job));
        own.or_else(|| dataset.family_job(seen.family))
    }

    /// Returns the progress of the job of an access through its dataset.
    #[must_use]
    pub fn passes(&self, seen: ObservedAccess) -> Option<PassProgress> {
        let dataset = self.datasets.get(&self.number(seen))?;
        let job = &dataset.jobs[self.job_index(seen, dataset)?];
        Some(PassProgress {
            completed: job.passes,
            over: job.passes_over(),
            void_passes: job.void_passes,
            started_us: job.started_us(),
            blocks: job.blocks,
            known: dataset.known,
            read: job.reads,
        })
    }

    /// Returns the ids of the blocks evicted since the last call.
    pub fn take_evicted(&mut self) -> impl Iterator<Item = u64> + '_ {
        self.evicted.drain(..)
    }

    fn record_read(
        &mut self,
        seen: ObservedAccess,
        access: &Access<'_>,
        slot: Slot,
        bytes: std::ops::Range<u64>,
    ) {
        let Self { table, lists, datasets, streams, .. } = self;
        let Some(dataset) = datasets.get_mut(&seen.number()) else { return };
        let Some(touch) = streams.record_read(seen.stream, access, slot, bytes, seen.start) else {
            return;
        };
        let place = streams.job(seen.stream).and_then(|job| dataset.job_index(job));
        let Some(first) = place.or_else(|| dataset.family_job(seen.family)) else { return };
        let is_new = dataset.readers(&table[slot]) >> first & 1 == 0;
        let begins = match touch {
            BlockTouch::First { begins } => begins,
            _ if is_new => false,
            BlockTouch::Within => return,
            BlockTouch::Again => return dataset.record_repeat(place, seen.family, seen.now_us),
        };
        let passes = dataset.jobs[first].passes;
        let read = CountedRead {
            at_us: seen.now_us,
            slot,
            caller: seen.stream,
            begins_object: begins,
            is_repeat: false,
            is_return: false,
        };
        dataset.read(table, lists, place, seen.family, read);
        if is_new {
            streams.remember(seen.stream, slot, dataset.jobs[first].reads);
        }
        if dataset.jobs[first].passes > passes {
            dataset.resume();
        }
        if dataset.must_change_class() {
            self.change_class(seen.number());
        }
        self.release_predecessor(seen);
    }

    /// Releases the previous dataset of a caller that has moved on to a new dataset and has not come back to
    /// it.
    fn release_predecessor(&mut self, seen: ObservedAccess) {
        let Some((before, family)) = self.streams.previous_dataset(seen.stream) else { return };
        let Some(before) = self.names.current_number(before) else { return };
        let Some(next) = self.datasets.get(&seen.number()) else { return };
        let reads = next
            .jobs
            .iter()
            .filter(|job| job.family == family && !job.is_proven())
            .map(|job| job.reads)
            .max();
        let Some(dataset) = self.datasets.get_mut(&before).filter(|_| before != seen.number()) else {
            return;
        };
        let is_over = dataset.jobs.iter().filter(|job| job.is_active).all(|job| job.is_overdue(seen.now_us));
        let proven =
            dataset.jobs.iter().filter(|job| job.is_active && job.is_proven()).map(|job| job.blocks).max();
        if let (Some(reads), Some(blocks)) = (reads, proven)
            && is_over
            && reads >= SUCCESSOR_READS_MIN.max(blocks / SUCCESSOR_SHARE)
        {
            dataset.release();
        }
    }

    /// Returns the entry of a block, creating one if there is none; `None` if the table is full.
    fn entry(&mut self, id: u64, dataset: u16, bytes: u64) -> Option<Slot> {
        if let Some(slot) = self.table.find(id) {
            self.move_to_current_dataset(slot, dataset);
            return Some(slot);
        }
        if self.table.is_full() && !self.forget_entry() {
            return None;
        }
        let owner = self.datasets.get_mut(&dataset)?;
        owner.known += 1;
        Some(self.table.insert(id, dataset, bytes))
    }

    /// Moves a block to the dataset to which its key belongs by now, after folders turned out to be one
    /// dataset.
    fn move_to_current_dataset(&mut self, slot: Slot, dataset: u16) {
        let before = self.names.root(self.table[slot].dataset());
        if before == dataset {
            return;
        }
        let Self { table, lists, datasets, .. } = self;
        let is_grouped = table[slot].state() == EntryState::Group;
        if let Some(before) = datasets.get_mut(&before) {
            before.forget_block();
            if is_grouped {
                before.leave_group(table, lists, slot);
            }
        }
        let entry = &mut table[slot];
        entry.set_dataset(dataset);
        entry.stamps = 0;
        if let Some(after) = datasets.get_mut(&dataset) {
            after.known += 1;
            if is_grouped {
                after.join_group(table, lists, slot);
            }
        }
    }

    fn forget_entry(&mut self) -> bool {
        for _ in 0..FORGET_LOOKS {
            let Some(slot) = self.table.advance_hand() else { continue };
            if self.table[slot].state().is_kept() {
                continue;
            }
            self.forget_ghost(slot);
            let dataset = self.names.root(self.table[slot].dataset());
            if let Some(dataset) = self.datasets.get_mut(&dataset) {
                dataset.forget_block();
            }
            self.table.remove(slot);
            return true;
        }
        false
    }

    /// Removes an unkept block from the queue that remembers it.
    fn forget_ghost(&mut self, slot: Slot) {
        let Self { table, lists, pool, recent, .. } = self;
        match table[slot].state() {
            EntryState::Ghost => pool.forget(table, lists, slot),
            EntryState::Evicted => recent.leave(table, lists, slot),
            _ => {}
        }
    }

    fn merge_united_datasets(&mut self) {
        while let Some((whole, part)) = self.names.pop_united() {
            let Some(part) = self.datasets.remove(&part) else { continue };
            let dataset =
                self.datasets.entry(whole).or_insert_with(|| TrackedDataset::new(whole, &mut self.lists));
            dataset.absorb(&mut self.table, &mut self.lists, part);
        }
    }
}

/// Number of accesses between updates of the tempo.
const TEMPO_ACCESSES: u64 = 256;
/// Minimum blocks that the job reads of another dataset, absolute and as a divisor of its own blocks, before
/// that dataset counts as a successor.
const SUCCESSOR_READS_MIN: u32 = 32;
const SUCCESSOR_SHARE: u32 = 50;
/// Maximum entries examined to find one to forget.
const FORGET_LOOKS: u32 = 64;

#[cfg(test)]
impl CacheEngine {
    /// Returns the weight of a read of the dataset of an access.
    pub(crate) fn weight(&self, seen: ObservedAccess) -> Option<f64> {
        self.datasets.get(&self.number(seen)).map(TrackedDataset::weight)
    }

    /// Checks the invariants: every kept block is in exactly one list, the sums equal those of the blocks,
    /// and all of it fits.
    fn check(&self) {
        for dataset in self.datasets.values() {
            dataset.check(&self.table, &self.lists);
        }
        self.check_numbers();
        self.recent.check(&self.table, &self.lists);
        let kept = (0..self.table.end()).filter(|slot| self.table[*slot].state().is_kept());
        assert_eq!(self.kept_bytes, kept.map(|slot| self.table[slot].bytes()).sum::<u64>());
        let grouped: u64 = self.datasets.values().map(|dataset| dataset.grouped_bytes).sum();
        let planned = self.plans.heap.check(&self.table);
        assert_eq!(
            self.kept_bytes,
            self.pool.kept_bytes() + self.recent.kept_bytes() + grouped + planned + self.pinned_bytes
        );
        assert!(self.kept_bytes <= self.options.capacity_bytes.max(self.pinned_bytes));
    }
}

#[cfg(test)]
mod tests;

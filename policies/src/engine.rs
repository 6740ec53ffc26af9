//! The engine: it is told of every access and says what to keep.
//!
//! Datasets are found by their names ([`names`]), the jobs that read them by their passes ([`job`]); what is
//! read in passes is kept by when it will be asked for again ([`worth`]), what is read in no order as S3-FIFO
//! keeps it ([`pool`]), what somebody wants kept so as LRU does ([`recent`]), and what each would gain by
//! more room decides how they share it. Always: what it says to keep fits its capacity; what it evicts was
//! kept and not pinned; the same accesses give the same answers.

mod ahead;
mod dataset;
mod hazard;
mod index;
mod job;
mod keeping;
mod known;
mod list;
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
mod streams;
mod table;
mod worth;

pub use ahead::{Ahead, Beyond, Next, Outcome};
pub use keeping::Keeping;
pub use known::KeptBlocks;
pub use names::{DatasetId, DatasetName};
pub use order::Order;
pub use patterns::Pattern;
pub use planned::{Followed, LISTS_MAX, PLANS_MAX, ReadyPlan, TooManyPlans, Who};

use crate::access::{Access, Caller, Op};
use ahead::Trails;
use dataset::Dataset;
use list::Lists;
use names::Names;
use planned::Plans;
use pool::Pool;
use recent::Recent;
use run::Read;
use shares::LeastKnown;
use std::collections::BTreeMap;
use streams::{Streams, Touch};
use table::{DATASETS_MAX, Place, Slot, Table};

/// What the engine may use.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Bytes that kept blocks may take.
    pub capacity_bytes: u64,
    /// Blocks that are remembered, kept or not: 32 bytes of memory each.
    pub blocks_max: usize,
    /// Bytes of a block; smaller objects are one block.
    pub block_bytes: u64,
    /// What ids of blocks depend on beside their names.
    pub seed: u64,
}

/// What to do with a block that is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Advice {
    /// It is kept already.
    Kept,
    /// Keep it.
    Keep,
    /// Pass it on and keep nothing of it.
    Bypass,
}

/// A block of an object that is here, or comes, though nobody reads it.
#[derive(Clone, Copy, Debug)]
pub struct Unread<'a> {
    /// The bucket's id.
    pub bucket: u64,
    /// The object's key.
    pub key: &'a str,
    /// Bytes of the whole object.
    pub size: u64,
    /// The number of the block in the object.
    pub number: u32,
}

/// An access that was observed: what its blocks are asked for with.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    now_us: u64,
    dataset: DatasetId,
    stream: u64,
    family: u64,
    goes_on: bool,
}

impl Seen {
    /// The same access, of which a block is read at `at_us`: no earlier than the last access of all.
    #[must_use]
    pub const fn at(self, at_us: u64) -> Self {
        Self { now_us: at_us, ..self }
    }

    /// The number of its dataset, as of when it was looked at last.
    const fn number(self) -> u16 {
        self.dataset.number()
    }

    /// Whether it begins an object, or goes on where something else ended.
    pub(crate) const fn goes_on(self) -> bool {
        self.goes_on
    }
}

/// How far a job is with a dataset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passes {
    /// Passes that it has been through and has come back from.
    pub whole: u32,
    /// Passes that are over: also the one that it is in, once it has read as much in it as in the last whole
    /// one.
    pub over: u32,
    /// Those of both that were none after all: that long the dataset was read again and again in no passes.
    pub void: u32,
    /// When the one that it is in began.
    pub began_us: u64,
    /// Blocks of the last whole one.
    pub blocks: u32,
    /// Blocks of the dataset that are known.
    pub known: u32,
    /// Blocks that it has read in the one that it is in.
    pub read: u32,
}

/// See the module.
pub struct Engine {
    options: Options,
    names: Names,
    table: Table,
    lists: Lists,
    datasets: BTreeMap<u16, Dataset>,
    streams: Streams,
    pool: Pool,
    recent: Recent,
    plans: Plans,
    trails: Trails,
    /// Bytes of all that is kept.
    kept_bytes: u64,
    /// Bytes of that which is not to be evicted.
    pinned_bytes: u64,
    /// How long passes take here: the longest period there is.
    tempo_us: f64,
    accesses: u64,
    least_known: Option<LeastKnown>,
    evicted: Vec<u64>,
}

impl Engine {
    /// An engine that knows nothing.
    #[must_use]
    pub fn new(options: Options) -> Self {
        Self::with_numbers(options, DATASETS_MAX)
    }

    /// The same, with so many numbers of datasets.
    fn with_numbers(options: Options, numbers_max: usize) -> Self {
        let mut lists = Lists::default();
        Self {
            names: Names::new(options.seed, numbers_max),
            table: Table::new(options.blocks_max),
            pool: Pool::new(&mut lists),
            recent: Recent::new(&mut lists),
            lists,
            datasets: BTreeMap::new(),
            streams: Streams::default(),
            plans: Plans::default(),
            trails: Trails::default(),
            kept_bytes: 0,
            pinned_bytes: 0,
            tempo_us: 0.0,
            accesses: 0,
            least_known: None,
            evicted: Vec::new(),
            options,
        }
    }

    /// Notes an access.
    pub fn observe(&mut self, access: &Access<'_>) -> Seen {
        let now_us = access.at_us;
        let mut number = self.number_of(access.bucket, access.key);
        if let Some(last) = self.streams.switch(access.caller, self.names.id(number))
            && let Some(last) = self.names.now(last)
            && self.are_one(access.caller, last, number)
        {
            self.names.join(last, number);
            self.take_united();
            number = last;
            self.streams.switch(access.caller, self.names.id(number));
        }
        self.accesses += 1;
        if self.accesses.is_multiple_of(TEMPO_ACCESSES) {
            let periods = self.datasets.values().map(|dataset| dataset.period_us(now_us));
            self.tempo_us = periods.fold(0.0, f64::max);
        }
        let Self { table, lists, datasets, streams, names, .. } = self;
        let dataset = datasets.entry(number).or_insert_with(|| Dataset::new(number, lists));
        dataset.last_us = now_us;
        let goes_on = match access.op {
            Op::Read => streams.note_order(access, names.shape(number)),
            Op::Write | Op::Delete => true,
        };
        dataset.writes = dataset.writes.saturating_add(u32::from(access.op == Op::Write));
        let id = names.id(number);
        let stream = streams.note(access, id);
        let job = streams.job(stream).filter(|job| dataset.place(*job).is_some());
        let job = job.or_else(|| dataset.job_of(table, lists, now_us, access.caller.family));
        streams.set_job(stream, job);
        if let Some(job) = job {
            dataset.jobs[job.place].last_us = now_us;
        }
        if !self.plans.is_idle() {
            self.follow_plans(access, number, job);
        }
        Seen { now_us, dataset: id, stream, family: access.caller.family, goes_on }
    }

    /// Whether a caller who reads `next` after `last` reads one dataset in parts: they are called alike, and
    /// it goes on before it comes back.
    fn are_one(&self, caller: Caller, last: u16, next: u16) -> bool {
        if last == next || !self.names.are_alike(last, next) {
            return false;
        }
        let (Some(job), Some(dataset)) =
            (self.streams.job_of(caller, self.names.id(last)), self.datasets.get(&last))
        else {
            return false;
        };
        let goes_on = dataset.place(job).is_some_and(|place| !dataset.jobs[place].is_proven());
        goes_on
            && self.datasets.get(&next).is_none_or(|dataset| dataset.jobs.iter().all(|job| !job.is_proven()))
    }

    /// A block of what was observed is read.
    pub fn read(&mut self, seen: Seen, access: &Access<'_>, block: u32) -> Advice {
        self.read_to_keep(seen, access, block, false)
    }

    /// The same, and whether it is to be kept by how recently it was read.
    fn read_to_keep(&mut self, seen: Seen, access: &Access<'_>, block: u32, is_recent: bool) -> Advice {
        let seen = self.now(seen, access);
        let id = self.names.block_id(access.bucket, access.key, block);
        if access.op == Op::Delete {
            self.lost(id);
            return Advice::Bypass;
        }
        let first = u64::from(block) * self.options.block_bytes;
        let bytes = self.bytes_of(access.size, block);
        let Some(slot) = self.entry(id, seen.number(), bytes) else { return Advice::Bypass };
        if access.op == Op::Read {
            self.note_read(seen, access, slot, first..first + bytes);
        }
        let due = self.due(seen.now_us, access.bucket, access.key);
        if self.table[slot].place().is_kept() {
            self.read_kept(seen.now_us, slot, is_recent);
            self.keep_by_plan(slot, due);
            return Advice::Kept;
        }
        self.admit(seen, slot, due, is_recent)
    }

    /// A block of what was observed is read that is none of what the engine keeps: it learns from it, and
    /// says nothing.
    pub fn follow(&mut self, seen: Seen, access: &Access<'_>, block: u32) {
        let seen = self.now(seen, access);
        let id = self.names.block_id(access.bucket, access.key, block);
        let first = u64::from(block) * self.options.block_bytes;
        let bytes = self.bytes_of(access.size, block);
        if let Some(slot) = self.entry(id, seen.number(), bytes) {
            self.note_read(seen, access, slot, first..first + bytes);
        }
    }

    /// A block is here that nobody has asked for: it was kept before the engine began, or somebody orders it
    /// to be brought in. Says whether it is kept, by what a block of its dataset is worth that nobody has
    /// read. No earlier than the last access.
    pub fn adopt(&mut self, at_us: u64, block: &Unread<'_>) -> Advice {
        let Some((slot, number)) = self.entry_of(block) else { return Advice::Bypass };
        if self.table[slot].place().is_kept() {
            return Advice::Kept;
        }
        let due = self.due(at_us, block.bucket, block.key);
        let is_recent = self.datasets.get(&number).is_some_and(|dataset| dataset.is_recent);
        let dataset = self.names.id(number);
        let seen = Seen { now_us: at_us, dataset, stream: 0, family: 0, goes_on: true };
        self.admit(seen, slot, due, is_recent)
    }

    /// The entry of a block, and its dataset's number.
    fn entry_of(&mut self, block: &Unread<'_>) -> Option<(Slot, u16)> {
        let number = self.number_of(block.bucket, block.key);
        let Self { lists, datasets, .. } = self;
        datasets.entry(number).or_insert_with(|| Dataset::new(number, lists));
        let id = self.names.block_id(block.bucket, block.key, block.number);
        let bytes = self.bytes_of(block.size, block.number);
        Some((self.entry(id, number, bytes)?, number))
    }

    /// The blocks that are kept, as far as the engine knows.
    pub fn kept_ids(&self) -> impl Iterator<Item = u64> + '_ {
        let slots = (0..self.table.end()).map(|slot| &self.table[slot]);
        slots.filter(|entry| entry.place().is_kept()).map(|entry| entry.id)
    }

    /// Whether a block is kept, as far as the engine knows.
    #[must_use]
    pub fn is_kept(&self, id: u64) -> bool {
        self.table.find(id).is_some_and(|slot| self.table[slot].place().is_kept())
    }

    /// A block is not kept any more, for another reason than that it was evicted.
    pub fn lost(&mut self, id: u64) {
        let Some(slot) = self.table.find(id).filter(|slot| self.table[*slot].place().is_kept()) else {
            return;
        };
        self.leave(slot);
        self.kept_bytes -= self.table[slot].bytes();
    }

    /// A kept block leaves where it is kept.
    fn leave(&mut self, slot: Slot) {
        let Self { table, lists, datasets, pool, recent, plans, names, .. } = self;
        match table[slot].place() {
            Place::Group => {
                if let Some(dataset) = datasets.get_mut(&names.root(table[slot].dataset())) {
                    dataset.leave_group(table, lists, slot);
                }
            }
            Place::Planned => plans.leave(table, slot),
            Place::Recent | Place::Older | Place::Past => recent.leave(table, lists, slot),
            _ => pool.leave(table, lists, slot),
        }
        if table[slot].place() == Place::Pinned {
            self.pinned_bytes -= table[slot].bytes();
        }
        table[slot].set_place(Place::Away);
    }

    /// The id of a block, by which it is told which ones are evicted and lost.
    #[must_use]
    pub fn block_id(&self, bucket: u64, key: &str, block: u32) -> u64 {
        self.names.block_id(bucket, key, block)
    }

    /// Bytes of all that is kept.
    #[must_use]
    pub const fn kept_bytes(&self) -> u64 {
        self.kept_bytes
    }

    /// Bytes of a block of an object of so many.
    #[must_use]
    pub fn bytes_of(&self, size: u64, block: u32) -> u64 {
        let first = u64::from(block) * self.options.block_bytes;
        size.saturating_sub(first).min(self.options.block_bytes)
    }

    /// Bytes of a block that no other is longer than.
    #[must_use]
    pub const fn block_bytes(&self) -> u64 {
        self.options.block_bytes
    }

    /// Bytes that may be kept.
    #[must_use]
    pub const fn capacity_bytes(&self) -> u64 {
        self.options.capacity_bytes
    }

    /// Bytes of that which is not to be evicted.
    #[must_use]
    pub const fn pinned_bytes(&self) -> u64 {
        self.pinned_bytes
    }

    /// Bytes of memory that it takes for blocks.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.table.memory_bytes()
    }

    /// What the dataset of an access is called.
    #[must_use]
    pub fn dataset(&self, seen: Seen) -> &DatasetName {
        self.names.name(self.number(seen))
    }

    /// The dataset of an access. Datasets that turn out to be one have one id from then on.
    #[must_use]
    pub fn dataset_id(&self, seen: Seen) -> DatasetId {
        self.names.id(self.number(seen))
    }

    /// What a dataset is by now; itself, when nothing is known of it any more.
    #[must_use]
    pub fn dataset_now(&self, id: DatasetId) -> DatasetId {
        self.names.now(id).map_or(id, |number| self.names.id(number))
    }

    /// The place of the job of an access in its dataset.
    fn place(&self, seen: Seen, dataset: &Dataset) -> Option<usize> {
        let own = self.streams.job(seen.stream).and_then(|job| dataset.place(job));
        own.or_else(|| dataset.together(seen.family))
    }

    /// How far the job of an access is with its dataset.
    #[must_use]
    pub fn passes(&self, seen: Seen) -> Option<Passes> {
        let dataset = self.datasets.get(&self.number(seen))?;
        let job = &dataset.jobs[self.place(seen, dataset)?];
        Some(Passes {
            whole: job.passes,
            over: job.passes_over(),
            void: job.void,
            began_us: job.started_us(),
            blocks: job.blocks,
            known: dataset.known,
            read: job.reads,
        })
    }

    /// Ids of the blocks that were evicted since this was asked.
    pub fn take_evicted(&mut self) -> impl Iterator<Item = u64> + '_ {
        self.evicted.drain(..)
    }

    fn note_read(&mut self, seen: Seen, access: &Access<'_>, slot: Slot, bytes: std::ops::Range<u64>) {
        let Self { table, lists, datasets, streams, .. } = self;
        let Some(dataset) = datasets.get_mut(&seen.number()) else { return };
        let Some(touch) = streams.touch(seen.stream, access, slot, bytes, seen.goes_on) else { return };
        let place = streams.job(seen.stream).and_then(|job| dataset.place(job));
        let Some(first) = place.or_else(|| dataset.together(seen.family)) else { return };
        let is_new = dataset.readers(&table[slot]) >> first & 1 == 0;
        let begins = match touch {
            Touch::First { begins } => begins,
            _ if is_new => false,
            Touch::Within => return,
            Touch::Again => return dataset.note_again(place, seen.family, seen.now_us),
        };
        let passes = dataset.jobs[first].passes;
        let read = Read { at_us: seen.now_us, slot, caller: seen.stream, begins, is_repeat: false };
        dataset.read(table, lists, place, seen.family, read);
        if is_new {
            streams.remember(seen.stream, slot, dataset.jobs[first].reads);
        }
        if dataset.jobs[first].passes > passes {
            dataset.set_released(false);
        }
        if dataset.changes_class() {
            self.change_class(seen.number());
        }
        self.look_for_successor(seen);
    }

    /// When a caller has gone on to something new and does not come back to what it has read so far, that is
    /// released.
    fn look_for_successor(&mut self, seen: Seen) {
        let Some((before, family)) = self.streams.before(seen.stream) else { return };
        let Some(before) = self.names.now(before) else { return };
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
            dataset.set_released(true);
        }
    }

    /// The entry of a block; a new one if it has none, unless there is no place for it.
    fn entry(&mut self, id: u64, dataset: u16, bytes: u64) -> Option<Slot> {
        if let Some(slot) = self.table.find(id) {
            self.move_home(slot, dataset);
            return Some(slot);
        }
        if self.table.is_full() && !self.forget_one() {
            return None;
        }
        let held = self.datasets.get_mut(&dataset)?;
        held.known += 1;
        Some(self.table.insert(id, dataset, bytes))
    }

    /// A block whose key belongs to another dataset by now, as folders turned out to be one, goes there.
    fn move_home(&mut self, slot: Slot, dataset: u16) {
        let before = self.names.root(self.table[slot].dataset());
        if before == dataset {
            return;
        }
        let Self { table, lists, datasets, .. } = self;
        let is_grouped = table[slot].place() == Place::Group;
        if let Some(before) = datasets.get_mut(&before) {
            before.known -= 1;
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

    fn forget_one(&mut self) -> bool {
        for _ in 0..FORGET_LOOKS {
            let Some(slot) = self.table.next_of_round() else { continue };
            if self.table[slot].place().is_kept() {
                continue;
            }
            self.forget_ghost(slot);
            let dataset = self.names.root(self.table[slot].dataset());
            if let Some(dataset) = self.datasets.get_mut(&dataset) {
                dataset.known -= 1;
            }
            self.table.remove(slot);
            return true;
        }
        false
    }

    /// No queue remembers a block that is not kept.
    fn forget_ghost(&mut self, slot: Slot) {
        let Self { table, lists, pool, recent, .. } = self;
        match table[slot].place() {
            Place::Ghost => pool.forget(table, lists, slot),
            Place::Past => recent.leave(table, lists, slot),
            _ => {}
        }
    }

    fn take_united(&mut self) {
        while let Some((whole, part)) = self.names.pop_united() {
            let Some(part) = self.datasets.remove(&part) else { continue };
            let dataset = self.datasets.entry(whole).or_insert_with(|| Dataset::new(whole, &mut self.lists));
            dataset.take_in(&mut self.table, &mut self.lists, part);
        }
    }
}

/// How long passes take is looked at once in so many accesses.
const TEMPO_ACCESSES: u64 = 256;
/// A dataset has a successor when its job has read so many blocks of another, and one for so many of its own.
const SUCCESSOR_READS_MIN: u32 = 32;
const SUCCESSOR_SHARE: u32 = 50;
/// So many entries are looked at for one to forget.
const FORGET_LOOKS: u32 = 64;

#[cfg(test)]
impl Engine {
    /// How many times a read of the dataset of an access counts.
    pub(crate) fn weight(&self, seen: Seen) -> Option<f64> {
        self.datasets.get(&self.number(seen)).map(Dataset::weight)
    }

    /// Its books are right: every kept block is in one list, the sums are those of the blocks, and all of it
    /// fits.
    fn check(&self) {
        for dataset in self.datasets.values() {
            dataset.check(&self.table, &self.lists);
        }
        self.check_numbers();
        self.recent.check(&self.table, &self.lists);
        let kept = (0..self.table.end()).filter(|slot| self.table[*slot].place().is_kept());
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

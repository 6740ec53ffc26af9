//! The engine: it is told of every access and says what to keep.
//!
//! Datasets are found by their names ([`names`]), the jobs that read them by their passes ([`job`]); what is read in passes is kept by when it will
//! be asked for again ([`worth`]), what is read in no order as S3-FIFO keeps it ([`pool`]), and what either would gain by more room decides how they
//! share it. Always: what it says to keep fits its capacity; what it evicts was kept; the same accesses give the same answers.

mod dataset;
mod job;
mod list;
mod names;
mod order;
mod pairs;
mod patterns;
mod pool;
mod shares;
mod streams;
mod table;
mod worth;

pub use names::DatasetName;
pub use order::Order;
pub use patterns::Pattern;

use crate::access::{Access, Caller, Op};
use dataset::Dataset;
use list::Lists;
use names::Names;
use pool::Pool;
use std::collections::BTreeMap;
use streams::{Streams, Touch};
use table::{Place, Slot, Table};

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

/// An access that was observed: what its blocks are asked for with.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    now_us: u64,
    dataset: u16,
    stream: u64,
    family: u64,
    goes_on: bool,
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
    /// Bytes of all that is kept.
    kept_bytes: u64,
    /// How long passes take here: the longest period there is.
    tempo_us: f64,
    accesses: u64,
    evicted: Vec<u64>,
}

impl Engine {
    /// An engine that knows nothing.
    #[must_use]
    pub fn new(options: Options) -> Self {
        let mut lists = Lists::default();
        Self {
            names: Names::new(options.seed),
            table: Table::new(options.blocks_max),
            pool: Pool::new(&mut lists),
            lists,
            datasets: BTreeMap::new(),
            streams: Streams::default(),
            kept_bytes: 0,
            tempo_us: 0.0,
            accesses: 0,
            evicted: Vec::new(),
            options,
        }
    }

    /// Notes an access.
    pub fn observe(&mut self, access: &Access<'_>) -> Seen {
        let now_us = access.at_us;
        let mut number = self.names.dataset(access.bucket, access.key);
        self.take_united();
        if let Some(last) = self.streams.switch(access.caller, number)
            && self.are_one(access.caller, last, number)
        {
            self.names.join(last, number);
            self.take_united();
            number = last;
            self.streams.switch(access.caller, number);
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
        let stream =
            streams.note(access, number, || dataset.add_job(table, lists, now_us, access.caller.family));
        if let Some(job) = streams.place_of(stream).and_then(|place| dataset.jobs.get_mut(place)) {
            job.last_us = now_us;
        }
        Seen { now_us, dataset: number, stream, family: access.caller.family, goes_on }
    }

    /// Whether a caller who reads `next` after `last` reads one dataset in parts: they are called alike, and it goes on before it comes back.
    fn are_one(&self, caller: Caller, last: u16, next: u16) -> bool {
        let last = self.names.root(last);
        if last == next || !self.names.are_alike(last, next) {
            return false;
        }
        let Some(place) = self.streams.place(caller, last) else { return false };
        let goes_on = self.datasets.get(&last).is_some_and(|dataset| !dataset.jobs[place].is_proven());
        goes_on
            && self.datasets.get(&next).is_none_or(|dataset| dataset.jobs.iter().all(|job| !job.is_proven()))
    }

    /// A block of what was observed is read.
    pub fn read(&mut self, seen: Seen, access: &Access<'_>, block: u32) -> Advice {
        let id = self.names.block_id(access.bucket, access.key, block);
        let first = u64::from(block) * self.options.block_bytes;
        let bytes = access.size.saturating_sub(first).min(self.options.block_bytes);
        let Some(slot) = self.entry(id, seen.dataset, bytes) else { return Advice::Bypass };
        if access.op == Op::Read {
            self.note_read(seen, access, slot, first..first + bytes);
        }
        if self.table[slot].place().is_kept() {
            self.pool.read(&mut self.table, slot);
            return Advice::Kept;
        }
        self.admit(seen, slot)
    }

    /// Ids of the blocks that were evicted since this was asked.
    pub fn take_evicted(&mut self) -> impl Iterator<Item = u64> + '_ {
        self.evicted.drain(..)
    }

    fn note_read(&mut self, seen: Seen, access: &Access<'_>, slot: Slot, bytes: std::ops::Range<u64>) {
        let Self { table, lists, datasets, streams, .. } = self;
        let Some(dataset) = datasets.get_mut(&seen.dataset) else { return };
        dataset.reads_without_news = dataset.reads_without_news.saturating_add(1);
        let Some((touch, place)) = streams.touch(seen.stream, access, slot, bytes, seen.goes_on) else {
            return;
        };
        let Some(place) = place else { return };
        let is_new = dataset.readers(&table[slot]) >> place & 1 == 0;
        if touch == Touch::Within && !is_new {
            return;
        }
        let passes = dataset.jobs[place].passes;
        dataset.read(table, lists, place, slot, seen.now_us);
        if is_new {
            streams.remember(seen.stream, slot, dataset.jobs[place].reads);
        }
        if dataset.jobs[place].passes > passes {
            dataset.set_released(false);
        }
        if dataset.changes_class() {
            self.change_class(seen.dataset);
        }
        self.look_for_ranks(seen);
        self.look_for_successor(seen);
    }

    fn look_for_ranks(&mut self, seen: Seen) {
        let Self { table, lists, datasets, streams, .. } = self;
        let Some(dataset) = datasets.get_mut(&seen.dataset) else { return };
        let quiet = dataset.reads_without_news;
        if quiet < NEWS_READS_MIN
            || !quiet.is_multiple_of(NEWS_READS_MIN)
            || quiet < dataset.known / NEWS_SHARE
        {
            return;
        }
        if let Some((one, other)) = dataset.pairs.apart(&dataset.jobs, dataset.known) {
            dataset.merge(table, lists, one, other, seen.now_us);
            streams.move_place(seen.dataset, other, one);
        }
    }

    /// When a caller has gone on to something new and does not come back to what it has read so far, that is released.
    fn look_for_successor(&mut self, seen: Seen) {
        let Some((before, family)) = self.streams.before(seen.stream) else { return };
        let before = self.names.root(before);
        let Some(next) = self.datasets.get(&seen.dataset) else { return };
        let reads = next
            .jobs
            .iter()
            .filter(|job| job.family == family && !job.is_proven())
            .map(|job| job.reads)
            .max();
        let Some(dataset) = self.datasets.get_mut(&before).filter(|_| before != seen.dataset) else { return };
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
        held.reads_without_news = 0;
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
            match self.table[slot].place() {
                Place::Away => {}
                Place::Ghost => self.pool.forget(&mut self.table, &mut self.lists, slot),
                _ => continue,
            }
            let dataset = self.names.root(self.table[slot].dataset());
            if let Some(dataset) = self.datasets.get_mut(&dataset) {
                dataset.known -= 1;
            }
            self.table.remove(slot);
            return true;
        }
        false
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
/// A dataset is known whole when so many reads, and one in so many of its blocks, have brought nothing new.
const NEWS_READS_MIN: u32 = 32;
const NEWS_SHARE: u32 = 20;
/// A dataset has a successor when its job has read so many blocks of another, and one for so many of its own.
const SUCCESSOR_READS_MIN: u32 = 32;
const SUCCESSOR_SHARE: u32 = 50;
/// So many entries are looked at for one to forget.
const FORGET_LOOKS: u32 = 64;

#[cfg(test)]
impl Engine {
    fn check(&self, what: &str) {
        for dataset in self.datasets.values() {
            dataset.check(&self.table, &self.lists, what);
        }
    }
}

#[cfg(test)]
mod tests;

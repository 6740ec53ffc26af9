//! The engine: it is told of every access and says what to keep.
//!
//! Always: what it says to keep fits its capacity; what it evicts was kept; the same accesses give the same answers.

mod dataset;
mod job;
mod list;
mod names;
mod table;

pub use names::DatasetName;

use crate::access::{Access, Op};
use dataset::Dataset;
use list::Lists;
use names::{Hashed, Names, mixed};
use std::collections::HashMap;
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    place: usize,
}

/// A stream of accesses: a caller and a dataset.
struct Stream {
    place: usize,
    last_us: u64,
}

/// See the module.
pub struct Engine {
    options: Options,
    names: Names,
    table: Table,
    lists: Lists,
    datasets: HashMap<u16, Dataset>,
    streams: HashMap<u64, Stream, Hashed>,
    kept_bytes: u64,
    evicted: Vec<u64>,
}

impl Engine {
    /// An engine that knows nothing.
    #[must_use]
    pub fn new(options: Options) -> Self {
        Self {
            names: Names::new(options.seed),
            table: Table::new(options.blocks_max),
            lists: Lists::default(),
            datasets: HashMap::new(),
            streams: HashMap::default(),
            kept_bytes: 0,
            evicted: Vec::new(),
            options,
        }
    }

    /// Notes an access.
    pub fn observe(&mut self, access: &Access<'_>) -> Seen {
        let now_us = access.at_us;
        let dataset = self.names.dataset(access.bucket, access.key);
        let held = self.datasets.entry(dataset).or_insert_with(|| Dataset::new(&mut self.lists));
        let stream = mixed(access.caller.id ^ u64::from(dataset) << 48);
        let stream = self.streams.entry(stream).or_insert_with(|| Stream {
            place: held.add_job(&mut self.table, &mut self.lists, now_us),
            last_us: now_us,
        });
        stream.last_us = now_us;
        Seen { now_us, dataset, place: stream.place }
    }

    /// A block of what was observed is read.
    pub fn read(&mut self, seen: Seen, access: &Access<'_>, block: u32) -> Advice {
        let id = self.names.block_id(access.bucket, access.key, block);
        let bytes = (access.size - u64::from(block) * self.options.block_bytes).min(self.options.block_bytes);
        let Some(slot) = self.entry(id, seen.dataset, bytes) else { return Advice::Bypass };
        let Some(dataset) = self.datasets.get_mut(&seen.dataset) else { return Advice::Bypass };
        if access.op == Op::Read {
            dataset.read(&mut self.table, &mut self.lists, seen.place, slot, seen.now_us);
        }
        if self.table[slot].place().is_kept() {
            return Advice::Kept;
        }
        if self.make_room(seen, slot) { self.keep(seen.dataset, slot) } else { Advice::Bypass }
    }

    /// Ids of the blocks that were evicted since this was asked.
    pub fn take_evicted(&mut self) -> impl Iterator<Item = u64> + '_ {
        self.evicted.drain(..)
    }

    fn entry(&mut self, id: u64, dataset: u16, bytes: u64) -> Option<Slot> {
        if let Some(slot) = self.table.find(id) {
            return Some(slot);
        }
        if self.table.is_full() && !self.forget_one() {
            return None;
        }
        self.datasets.get_mut(&dataset)?.known += 1;
        Some(self.table.insert(id, dataset, bytes))
    }

    fn forget_one(&mut self) -> bool {
        for _ in 0..64 {
            if let Some(slot) = self.table.next_of_round()
                && self.table[slot].place() == Place::Away
            {
                let dataset = self.names.root(self.table[slot].dataset());
                if let Some(dataset) = self.datasets.get_mut(&dataset) {
                    dataset.known -= 1;
                }
                self.table.remove(slot);
                return true;
            }
        }
        false
    }

    fn keep(&mut self, dataset: u16, slot: Slot) -> Advice {
        let bytes = self.table[slot].bytes();
        let Some(dataset) = self.datasets.get_mut(&dataset) else { return Advice::Bypass };
        dataset.join_group(&mut self.table, &mut self.lists, slot);
        dataset.kept_bytes += bytes;
        self.kept_bytes += bytes;
        Advice::Keep
    }

    /// Evicts what is worth less than a block until there is room for it.
    fn make_room(&mut self, seen: Seen, slot: Slot) -> bool {
        let bytes = self.table[slot].bytes();
        let worth = {
            let dataset = &self.datasets[&seen.dataset];
            let readers = dataset.readers(self.table[slot].stamps);
            dataset.worth(seen.now_us).of(readers)
        };
        while self.kept_bytes + bytes > self.options.capacity_bytes {
            let Some((dataset, readers, least)) = self.least(seen) else { return false };
            if least >= worth * (1.0 - std::env::var("MARGIN").map_or(1e-9, |m| m.parse().unwrap())) {
                return false;
            }
            let Some(held) = self.datasets.get_mut(&dataset) else { return false };
            let Some(victim) = held.victim(&self.table, &self.lists, readers) else { return false };
            held.leave_group(&mut self.table, &mut self.lists, victim);
            let entry = &mut self.table[victim];
            entry.set_place(Place::Away);
            held.kept_bytes -= entry.bytes();
            self.kept_bytes -= entry.bytes();
            self.evicted.push(entry.id);
        }
        true
    }

    fn least(&mut self, seen: Seen) -> Option<(u16, usize, f64)> {
        let mut least: Option<(u16, usize, f64)> = None;
        for (number, dataset) in &mut self.datasets {
            if dataset.kept_bytes == 0 {
                continue;
            }
            dataset.look(seen.now_us);
            if let Some((readers, worth)) = dataset.lowest
                && least.is_none_or(|(_, _, other)| worth < other)
            {
                least = Some((*number, readers, worth));
            }
        }
        least
    }
}

#[cfg(test)]
mod tests;

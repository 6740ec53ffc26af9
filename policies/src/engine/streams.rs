//! Streams: who reads which dataset, and where in its blocks.
//!
//! A stream is a caller and a dataset. It tells reads that count (the first bytes of a block, or an object's
//! last where a caller begins with a footer) from those that go on within a block, and a request that is sent
//! again from a block that is read again. Bounded: the streams that have been silent longest are forgotten.

use super::job::JobRef;
use super::names::{DatasetId, Hashed, mixed};
use super::order::{Order, OrderFinder};
use super::table::Slot;
use crate::access::{Access, Caller};
use std::collections::HashMap;
use std::ops::Range;

/// Streams that are told apart.
const STREAMS_MAX: usize = 1 << 14;
/// Families and datasets of which the order is looked for.
const ORDERS_MAX: usize = 1 << 11;
/// Blocks that a stream has read last, among which a repeat is no new pass.
const RECENT_MAX: usize = 64;
/// A caller that begins with footers reads the first byte of so many blocks at most for each.
const FIRSTS_PER_FOOTER: u32 = 8;
/// So many reads for each of them: in a small dataset blocks come again soon.
const READS_PER_RECENT: u32 = 4;

/// What a read of a block is to a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Touch {
    /// It begins the block; and the object, or is all of it that counts.
    First { begins: bool },
    /// It goes on in it.
    Within,
    /// It repeats what was just asked for.
    Again,
}

/// A stream.
struct Stream {
    family: u64,
    /// The job that it is of, in its dataset.
    job: Option<JobRef>,
    last_us: u64,
    /// Reads that contained the first byte of a block, and the last one of an object without that.
    firsts: u32,
    lasts: u32,
    recent: [Slot; RECENT_MAX],
    recent_at: usize,
    recent_length: usize,
    /// The dataset that its caller read most of before this one.
    before: Option<DatasetId>,
}

/// All streams.
#[derive(Default)]
pub(super) struct Streams {
    streams: HashMap<u64, Stream, Hashed>,
    /// The dataset that each family of callers began last.
    newest: HashMap<u64, DatasetId, Hashed>,
    /// The dataset that each caller read last.
    last: HashMap<u64, DatasetId, Hashed>,
    /// By family and dataset: in which order it is read.
    orders: HashMap<u64, OrderFinder, Hashed>,
}

impl Streams {
    /// A caller reads a dataset; the one that it read before, if that is another.
    pub(super) fn switch(&mut self, caller: Caller, dataset: DatasetId) -> Option<DatasetId> {
        if self.last.len() >= STREAMS_MAX {
            self.last.clear();
        }
        self.last.insert(mixed(caller.id), dataset).filter(|last| *last != dataset)
    }

    /// Bytes of an object are read, of what is called like `shape`. Says whether that begins or goes on where
    /// something else did.
    pub(super) fn note_order(&mut self, access: &Access<'_>, shape: u64) -> bool {
        let id = mixed(access.caller.family ^ shape);
        if self.orders.len() >= ORDERS_MAX && !self.orders.contains_key(&id) {
            self.orders.clear();
        }
        let finder = self.orders.entry(id).or_insert_with(OrderFinder::new);
        finder.note(access.key, &access.range, access.size)
    }

    /// In which order a family reads what is called like `shape`.
    pub(super) fn order(&self, family: u64, shape: u64) -> Option<Order> {
        self.orders.get(&mixed(family ^ shape))?.order()
    }

    /// A caller's job in a dataset.
    pub(super) fn job_of(&self, caller: Caller, dataset: DatasetId) -> Option<JobRef> {
        self.job(id_of(caller, dataset))
    }

    /// The job of a stream.
    pub(super) fn job(&self, id: u64) -> Option<JobRef> {
        self.streams.get(&id)?.job
    }

    /// The stream in which a caller reads a dataset, if it does.
    pub(super) fn id(caller: Caller, dataset: DatasetId) -> u64 {
        id_of(caller, dataset)
    }

    /// The stream of an access.
    pub(super) fn note(&mut self, access: &Access<'_>, dataset: DatasetId) -> u64 {
        let id = id_of(access.caller, dataset);
        if self.streams.len() >= STREAMS_MAX && !self.streams.contains_key(&id) {
            forget_quarter(&mut self.streams, |stream| stream.last_us);
        }
        let family = access.caller.family;
        if self.newest.len() >= STREAMS_MAX {
            self.newest.clear();
        }
        let newest = &mut self.newest;
        let stream = self.streams.entry(id).or_insert_with(|| Stream {
            family,
            job: None,
            last_us: access.at_us,
            firsts: 0,
            lasts: 0,
            recent: [0; RECENT_MAX],
            recent_at: 0,
            recent_length: 0,
            before: newest.insert(family, dataset),
        });
        stream.last_us = access.at_us;
        id
    }

    /// A stream is of this job.
    pub(super) fn set_job(&mut self, id: u64, job: Option<JobRef>) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.job = job;
        }
    }

    /// A block is read, which are these bytes of its object; and the place of the job that does it.
    pub(super) fn touch(
        &mut self,
        id: u64,
        access: &Access<'_>,
        slot: Slot,
        block: Range<u64>,
        goes_on: bool,
    ) -> Option<Touch> {
        let stream = self.streams.get_mut(&id)?;
        let begins = access.range.start <= block.start;
        let ends = !goes_on && access.range.end >= access.size;
        let begins = begins && !ends;
        stream.firsts = stream.firsts.saturating_add(u32::from(begins));
        stream.lasts = stream.lasts.saturating_add(u32::from(ends));
        let by_footer = stream.lasts * FIRSTS_PER_FOOTER > stream.firsts;
        let counts = if by_footer { ends } else { begins };
        let begins = by_footer || block.start == 0;
        let is_recent = stream.recent[..stream.recent_length].contains(&slot);
        Some(match (counts, is_recent) {
            (false, _) => Touch::Within,
            (true, false) => Touch::First { begins },
            (true, true) => Touch::Again,
        })
    }

    /// A stream has read a block for the first time in a pass, in which its job has read so many.
    pub(super) fn remember(&mut self, id: u64, slot: Slot, reads: u32) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let length = (1 + reads / READS_PER_RECENT).min(RECENT_MAX as u32) as usize;
        stream.recent_at = (stream.recent_at + 1) % length;
        stream.recent[stream.recent_at] = slot;
        stream.recent_length = stream.recent_length.max(stream.recent_at + 1).min(length);
    }

    /// What the callers of a stream began before it.
    pub(super) fn before(&self, id: u64) -> Option<(DatasetId, u64)> {
        let stream = self.streams.get(&id)?;
        Some((stream.before?, stream.family))
    }
}

/// Forgets the quarter of all that has been silent longest.
pub(super) fn forget_quarter<V>(all: &mut HashMap<u64, V, Hashed>, last_us: impl Fn(&V) -> u64) {
    let mut times: Vec<u64> = all.values().map(&last_us).collect();
    let quarter = times.len() / 4;
    let (_, oldest, _) = times.select_nth_unstable(quarter);
    let oldest = *oldest;
    all.retain(|_, one| last_us(one) > oldest);
}

fn id_of(caller: Caller, dataset: DatasetId) -> u64 {
    mixed(caller.id ^ dataset.bits())
}

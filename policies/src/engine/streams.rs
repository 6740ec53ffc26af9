//! Streams: the reads of one dataset by one caller.
//!
//! A stream distinguishes counted reads (the first bytes of a block, or an object's last bytes where a caller
//! begins with a footer) from reads that continue within a block, and a request that is sent again from a
//! block that is read again. Bounded: the streams that have been silent longest are forgotten.

use super::job::JobRef;
use super::names::{BuildPassThroughHasher, DatasetId, mix_hash};
use super::order::{OrderDetector, ReadOrder, ReadStart};
use super::slot::Slot;
use crate::access::{Access, Caller};
use std::collections::HashMap;
use std::ops::Range;

/// Maximum streams.
const STREAMS_MAX: usize = 1 << 14;
/// Maximum pairs of family and dataset with order detection.
const ORDERS_MAX: usize = 1 << 11;
/// Recently read blocks per stream, among which a repeat does not begin a pass.
const RECENT_MAX: usize = 64;
/// A caller begins with footers if it reads at most this many first bytes of blocks per footer.
const FIRSTS_PER_FOOTER: u32 = 8;
/// Reads in a pass per remembered block: in a small dataset blocks are read again soon.
const READS_PER_RECENT: u32 = 4;

/// Effect of a read of a block on its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BlockTouch {
    /// First read of the block; `begins` is true if it begins the object or is the object's only counted
    /// read.
    First { begins: bool },
    /// Read that continues within the block.
    Within,
    /// Repeat of a recent request.
    Again,
}

/// State of a stream.
struct ReadStream {
    family: u64,
    /// Job of the stream, in its dataset.
    job: Option<JobRef>,
    last_us: u64,
    /// Reads with the first byte of a block, and reads with the last byte of an object but not the first.
    firsts: u32,
    lasts: u32,
    recent: [Slot; RECENT_MAX],
    recent_at: usize,
    recent_length: usize,
    /// Dataset that was the newest of its family when this stream began.
    previous: Option<DatasetId>,
}

/// All streams.
#[derive(Default)]
pub(super) struct Streams {
    streams: HashMap<u64, ReadStream, BuildPassThroughHasher>,
    /// Dataset that each family began most recently.
    newest: HashMap<u64, DatasetId, BuildPassThroughHasher>,
    /// Dataset that each caller read last.
    last: HashMap<u64, DatasetId, BuildPassThroughHasher>,
    /// Order detection by family and dataset shape.
    orders: HashMap<u64, OrderDetector, BuildPassThroughHasher>,
}

impl Streams {
    /// Records that a caller reads a dataset. Returns the dataset that it read before, if that is another.
    pub(super) fn switch(&mut self, caller: Caller, dataset: DatasetId) -> Option<DatasetId> {
        if self.last.len() >= STREAMS_MAX {
            self.last.clear();
        }
        self.last.insert(mix_hash(caller.id), dataset).filter(|last| *last != dataset)
    }

    /// Records a read in a dataset of shape `shape`. Returns its start.
    pub(super) fn record_order(&mut self, access: &Access<'_>, shape: u64) -> ReadStart {
        let id = mix_hash(access.caller.family ^ shape);
        if self.orders.len() >= ORDERS_MAX && !self.orders.contains_key(&id) {
            self.orders.clear();
        }
        let finder = self.orders.entry(id).or_insert_with(OrderDetector::new);
        finder.record(access.key, &access.range, access.size)
    }

    /// Returns the order in which a family reads datasets of shape `shape`.
    pub(super) fn order(&self, family: u64, shape: u64) -> Option<ReadOrder> {
        self.orders.get(&mix_hash(family ^ shape))?.order()
    }

    /// Returns a caller's job in a dataset.
    pub(super) fn job_of(&self, caller: Caller, dataset: DatasetId) -> Option<JobRef> {
        self.job(stream_id_of(caller, dataset))
    }

    /// Returns the job of a stream.
    pub(super) fn job(&self, id: u64) -> Option<JobRef> {
        self.streams.get(&id)?.job
    }

    /// Returns the id of a caller's stream for a dataset.
    pub(super) fn stream_id(caller: Caller, dataset: DatasetId) -> u64 {
        stream_id_of(caller, dataset)
    }

    /// Records an access. Returns the id of its stream.
    pub(super) fn record_access(&mut self, access: &Access<'_>, dataset: DatasetId) -> u64 {
        let id = stream_id_of(access.caller, dataset);
        if self.streams.len() >= STREAMS_MAX && !self.streams.contains_key(&id) {
            forget_quarter(&mut self.streams, |stream| stream.last_us);
        }
        let family = access.caller.family;
        if self.newest.len() >= STREAMS_MAX {
            self.newest.clear();
        }
        let newest = &mut self.newest;
        let stream = self.streams.entry(id).or_insert_with(|| ReadStream {
            family,
            job: None,
            last_us: access.at_us,
            firsts: 0,
            lasts: 0,
            recent: [0; RECENT_MAX],
            recent_at: 0,
            recent_length: 0,
            previous: newest.insert(family, dataset),
        });
        stream.last_us = access.at_us;
        id
    }

    /// Sets the job of a stream.
    pub(super) fn set_job(&mut self, id: u64, job: Option<JobRef>) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.job = job;
        }
    }

    /// Records a read of a block, which is this byte range of its object. Returns its effect on the stream.
    pub(super) fn record_read(
        &mut self,
        id: u64,
        access: &Access<'_>,
        slot: Slot,
        block: Range<u64>,
        start: ReadStart,
    ) -> Option<BlockTouch> {
        let stream = self.streams.get_mut(&id)?;
        let begins = access.range.start <= block.start;
        let ends = start == ReadStart::Gap && access.range.end >= access.size;
        let begins = begins && !ends;
        stream.firsts = stream.firsts.saturating_add(u32::from(begins));
        stream.lasts = stream.lasts.saturating_add(u32::from(ends));
        let by_footer = stream.lasts * FIRSTS_PER_FOOTER > stream.firsts;
        let counts = if by_footer { ends } else { begins };
        let begins = by_footer || block.start == 0;
        let is_recent = stream.recent[..stream.recent_length].contains(&slot);
        Some(match (counts, is_recent) {
            (false, _) => BlockTouch::Within,
            (true, false) => BlockTouch::First { begins },
            (true, true) => BlockTouch::Again,
        })
    }

    /// Remembers a block that a stream has read for the first time in a pass, in which its job has read
    /// `reads` blocks.
    pub(super) fn remember(&mut self, id: u64, slot: Slot, reads: u32) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let length = (1 + reads / READS_PER_RECENT).min(RECENT_MAX as u32) as usize;
        stream.recent_at = (stream.recent_at + 1) % length;
        stream.recent[stream.recent_at] = slot;
        stream.recent_length = stream.recent_length.max(stream.recent_at + 1).min(length);
    }

    /// Returns the dataset that the stream's family began before this one, and the family.
    pub(super) fn previous_dataset(&self, id: u64) -> Option<(DatasetId, u64)> {
        let stream = self.streams.get(&id)?;
        Some((stream.previous?, stream.family))
    }
}

/// Forgets the quarter of the entries that has been silent longest.
pub(super) fn forget_quarter<V>(
    entries: &mut HashMap<u64, V, BuildPassThroughHasher>,
    last_us: impl Fn(&V) -> u64,
) {
    let before = entries.len();
    let mut times: Vec<u64> = entries.values().map(&last_us).collect();
    let quarter = times.len() / 4;
    let (_, oldest, _) = times.select_nth_unstable(quarter);
    let oldest = *oldest;
    entries.retain(|_, one| last_us(one) > oldest);
    assert!(entries.len() < before, "at least one entry is forgotten");
}

fn stream_id_of(caller: Caller, dataset: DatasetId) -> u64 {
    mix_hash(caller.id ^ dataset.bits())
}

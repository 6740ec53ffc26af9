//! Jobs that read datasets in epochs.

use super::DatasetOrder;
use crate::scene::{GeneratedRequest, RequestIter};
use mlgw_policies::access::Op;
use std::ops::Range;
use std::sync::Arc;

/// Objects with consecutive numbers.
#[derive(Clone, Debug)]
pub(super) struct GeneratedDataset {
    /// Number of the first key.
    pub(super) first: u32,
    /// Bytes of each object.
    pub(super) sizes: Arc<[u64]>,
    /// Start of each shard, then the number of objects; at least one shard.
    pub(super) shards: Arc<[u32]>,
}

impl GeneratedDataset {
    pub(super) fn len(&self) -> u32 {
        self.sizes.len() as u32
    }

    pub(super) fn bytes(&self) -> u64 {
        self.sizes.iter().sum()
    }

    /// Objects, numbered from the first of the dataset, in the order in which an epoch reads them.
    pub(super) fn order(&self, order: DatasetOrder, random: &mut fastrand::Rng) -> Vec<u32> {
        let mut objects: Vec<u32> = (0..self.len()).collect();
        match order {
            DatasetOrder::Sequential => {}
            DatasetOrder::Shuffled => random.shuffle(&mut objects),
            DatasetOrder::ShardShuffled => {
                let mut shards: Vec<_> = self.shards.windows(2).map(|ends| ends[0]..ends[1]).collect();
                random.shuffle(&mut shards);
                objects = shards.into_iter().flatten().collect();
            }
        }
        objects
    }
}

/// Boundaries of shards of `each` objects.
pub(super) fn shards(objects: u32, each: u32) -> Arc<[u32]> {
    (0..objects).step_by(each.max(1) as usize).chain([objects]).collect()
}

/// A pass over a dataset that is part of every epoch.
#[derive(Clone, Debug)]
pub(super) struct EpochPass {
    pub(super) dataset: GeneratedDataset,
    pub(super) order: DatasetOrder,
    /// Number of objects that are read at the same time, in turns.
    pub(super) open_max: usize,
    /// Bytes of an object that are read in one request.
    pub(super) range_bytes: u64,
    /// Fixed duration of a request; the next field is the additional duration per byte.
    pub(super) request_us: f64,
    pub(super) byte_us: f64,
    pub(super) stream: u16,
}

/// A caller that runs all its passes in every epoch.
#[derive(Clone, Debug)]
pub(super) struct TrainingReader {
    pub(super) passes: Vec<EpochPass>,
    pub(super) epochs: u32,
    pub(super) caller: u16,
    pub(super) start_us: f64,
    /// Seed of the orders; jobs with the same seed read in the same order.
    pub(super) order_seed: u64,
    /// Seed of the times of requests.
    pub(super) pace_seed: u64,
}

impl TrainingReader {
    /// Requests of the job. Each occurs at a random time within its duration, so that jobs of the same pace
    /// do not drift apart.
    pub(super) fn requests(self) -> RequestIter {
        let Self { passes: phases, epochs, caller, start_us, order_seed, pace_seed } = self;
        let mut orders = fastrand::Rng::with_seed(order_seed);
        let mut pace = fastrand::Rng::with_seed(pace_seed);
        let passes =
            (0..epochs).flat_map(move |epoch| phases.clone().into_iter().map(move |phase| (epoch, phase)));
        let mut begin_us = start_us;
        let requests = passes.flat_map(move |(epoch, phase)| {
            let order = phase.dataset.order(phase.order, &mut orders);
            PassRequests::new(phase, order)
                .map(move |(range, key, phase_stream, us)| (range, key, phase_stream, us, epoch))
        });
        Box::new(requests.map(move |(range, key, stream, takes_us, epoch)| {
            let at_us = begin_us + takes_us * pace.f64();
            begin_us += takes_us;
            GeneratedRequest { at_us: at_us as u64, range, key, epoch, caller, stream, op: Op::Read }
        }))
    }
}

/// Requests of one pass: ranges of `open_max` objects at a time, in turns.
struct PassRequests {
    pass: EpochPass,
    order: std::vec::IntoIter<u32>,
    /// Objects that are being read, each with its next offset.
    open: Vec<(u32, u64)>,
    turn: usize,
}

impl PassRequests {
    fn new(phase: EpochPass, order: Vec<u32>) -> Self {
        let mut order = order.into_iter();
        let open = order.by_ref().take(phase.open_max.max(1)).map(|object| (object, 0)).collect();
        Self { pass: phase, order, open, turn: 0 }
    }

    fn range(&mut self) -> Option<(u32, Range<u64>)> {
        if self.open.is_empty() {
            return None;
        }
        self.turn %= self.open.len();
        let (object, begin) = self.open[self.turn];
        let size = self.pass.dataset.sizes[object as usize];
        let end = begin.saturating_add(self.pass.range_bytes).min(size);
        if end < size {
            self.open[self.turn].1 = end;
            self.turn += 1;
        } else if let Some(next) = self.order.next() {
            self.open[self.turn] = (next, 0);
            self.turn += 1;
        } else {
            self.open.remove(self.turn);
        }
        Some((object, begin..end))
    }
}

impl Iterator for PassRequests {
    /// Range, key, stream and duration of a request.
    type Item = (Range<u64>, u32, u16, f64);

    fn next(&mut self) -> Option<Self::Item> {
        let (object, range) = self.range()?;
        let bytes = (range.end - range.start) as f64;
        let takes_us = self.pass.request_us + bytes * self.pass.byte_us;
        Some((range, self.pass.dataset.first + object, self.pass.stream, takes_us))
    }
}

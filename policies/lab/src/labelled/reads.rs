//! Readers of datasets in epochs, with their irregularities.

use crate::scene::{GeneratedRequest, RequestIter};
use crate::workload::{DatasetOrder, Zipf};
use mlgw_policies::access::Op;
use std::ops::Range;
use std::sync::Arc;

/// A range of an object.
pub(super) type ReadItem = (u32, Range<u64>);

/// Groups of ranges that are read as one stream.
#[derive(Clone)]
pub(super) struct ReadGroups {
    pub(super) stream: u16,
    pub(super) groups: Arc<[Vec<ReadItem>]>,
}

/// A job that reads groups of ranges: objects, shards or files. Ranges of a group are read in order.
#[derive(Clone)]
pub(super) struct LabelledReader {
    groups: Arc<[Vec<ReadItem>]>,
    stream: u16,
    epochs: u32,
    /// Order of the groups.
    order: DatasetOrder,
    validation: Option<ReadGroups>,
    /// True if every group is one object that is read in one request.
    is_of_objects: bool,
    /// True if every request is for one whole object, including objects in a shard.
    has_samples: bool,
    /// Number of groups that loader workers read at the same time, in random turns.
    pub(super) open_max: usize,
    /// Number of objects in a batch; an incomplete last batch is dropped.
    pub(super) batch: usize,
    /// Fraction of requests that are repeated.
    pub(super) retried: f64,
    /// Number of requests that arrive at almost the same time.
    pub(super) burst: usize,
    pub(super) start_us: f64,
    /// Length of all epochs together, in microseconds.
    pub(super) length_us: f64,
    pub(super) order_seed: u64,
}

impl LabelledReader {
    pub(super) fn new(
        groups: Vec<Vec<ReadItem>>,
        stream: u16,
        epochs: u32,
        order: DatasetOrder,
        validation: Option<ReadGroups>,
    ) -> Self {
        let is_of_objects = groups.iter().all(|group| group.len() == 1);
        let has_samples = groups.iter().all(|group| group.len() == 1 || group[0].0 != group[1].0);
        Self {
            is_of_objects,
            has_samples,
            groups: groups.into(),
            stream,
            epochs,
            order,
            validation,
            open_max: 1,
            batch: 1,
            retried: 0.0,
            burst: 1,
            start_us: 0.0,
            length_us: 1e6,
            order_seed: 0,
        }
    }

    /// Requests of one rank out of `ranks`. All ranks share one order, and rank `rank` reads every
    /// `ranks`-th group of it.
    pub(super) fn requests(self, caller: u16, rank: usize, ranks: usize, seed: u64) -> RequestIter {
        let mut orders = fastrand::Rng::with_seed(self.order_seed);
        let mut random = fastrand::Rng::with_seed(seed);
        let mut pace = fastrand::Rng::with_seed(seed ^ 1);
        let epoch_us = self.length_us / f64::from(self.epochs);
        let requests = (0..self.epochs).flat_map(move |epoch| {
            let items = self.epoch(rank, ranks, &mut orders, &mut random);
            let begin_us = self.start_us + epoch_us * f64::from(epoch);
            let step_us = epoch_us / items.len().max(1) as f64;
            let times = times(begin_us, step_us, self.burst, items.len(), &mut pace);
            items.into_iter().zip(times).map(move |((stream, (key, range)), at_us)| GeneratedRequest {
                at_us,
                range,
                key,
                epoch,
                caller,
                stream,
                op: Op::Read,
            })
        });
        Box::new(requests)
    }

    fn epoch(
        &self,
        rank: usize,
        ranks: usize,
        orders: &mut fastrand::Rng,
        random: &mut fastrand::Rng,
    ) -> Vec<(u16, ReadItem)> {
        let mut order: Vec<usize> = (0..self.groups.len()).collect();
        if self.order != DatasetOrder::Sequential {
            orders.shuffle(&mut order);
        }
        // A sampler starts over from the first object if ranks would otherwise get different numbers of
        // objects. Shards are not read twice for that purpose.
        let each = if self.is_of_objects { order.len().div_ceil(ranks) * ranks } else { order.len() };
        let mine = order.iter().cycle().take(each).skip(rank).step_by(ranks).copied().collect();
        let mut items = self.interleaved(&self.groups, mine, self.stream, random);
        if items.len() > self.batch && self.has_samples {
            items.truncate(items.len() / self.batch * self.batch);
        }
        if let Some(ReadGroups { stream, groups }) = &self.validation {
            let mine = (rank..groups.len()).step_by(ranks).collect();
            items.extend(self.interleaved(groups, mine, *stream, random));
        }
        items
    }

    /// The ranges of `open_max` groups at a time, in random turns.
    fn interleaved(
        &self,
        groups: &[Vec<ReadItem>],
        order: Vec<usize>,
        stream: u16,
        random: &mut fastrand::Rng,
    ) -> Vec<(u16, ReadItem)> {
        let mut order = order.into_iter();
        let mut open: Vec<_> = order.by_ref().take(self.open_max).map(|group| groups[group].iter()).collect();
        let mut items = Vec::new();
        while !open.is_empty() {
            let turn = random.usize(0..open.len());
            if let Some(item) = open[turn].next() {
                items.push((stream, item.clone()));
                if random.f64() < self.retried {
                    items.push((stream, item.clone()));
                }
            } else if let Some(group) = order.next() {
                open[turn] = groups[group].iter();
            } else {
                drop(open.swap_remove(turn));
            }
        }
        items
    }

    /// Draws groups by a Zipf distribution, ten draws for each group; callers take turns at random.
    pub(super) fn skewed(self, callers: Vec<u16>, alpha: f64, seed: u64) -> RequestIter {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut ranks: Vec<usize> = (0..self.groups.len()).collect();
        random.shuffle(&mut ranks);
        let zipf = Zipf::new(ranks.len() as u32, alpha);
        let count = ranks.len() * 10;
        let step_us = self.length_us / count as f64;
        let times = times(self.start_us, step_us, self.burst, count, &mut random);
        Box::new(times.into_iter().flat_map(move |at_us| {
            let group = ranks[zipf.draw(&mut random) as usize - 1];
            let caller = callers[random.usize(0..callers.len())];
            let stream = self.stream;
            let request = move |(key, range): ReadItem| GeneratedRequest {
                at_us,
                range,
                key,
                epoch: 0,
                caller,
                stream,
                op: Op::Read,
            };
            self.groups[group].clone().into_iter().map(request)
        }))
    }
}

/// Times of `count` requests; each burst of `burst` requests arrives within a tenth of its share of the
/// time.
fn times(begin_us: f64, step_us: f64, burst: usize, count: usize, random: &mut fastrand::Rng) -> Vec<u64> {
    let moment = |number: usize| {
        let (begun, within) = (number / burst * burst, number % burst);
        let within = (within as f64 + random.f64()) * if burst > 1 { 0.1 } else { 1.0 };
        (begin_us + (begun as f64 + within) * step_us) as u64
    };
    (0..count).map(moment).collect()
}

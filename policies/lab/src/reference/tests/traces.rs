//! Traces of this project's reference simulator: epochs in three orders, several jobs on one dataset, and its
//! mixed workload, MIX-1.

use super::python::Random;
use crate::reference::{BlockClass, Event};
use mlgw_policies::access::Op;
use std::collections::HashMap;

#[derive(Clone, Copy)]
pub(super) enum ReferenceOrder {
    Shuffled,
    Sequential,
    Shards,
}

/// Epochs of `n` blocks in shards of 100.
pub(super) fn epochs(order: ReferenceOrder, n: u32, count: u32, random: &mut Random) -> Vec<Event> {
    let mut blocks = Vec::new();
    for _ in 0..count {
        match order {
            ReferenceOrder::Sequential => blocks.extend(0..n),
            ReferenceOrder::Shuffled => blocks.extend(permutation(n, random)),
            ReferenceOrder::Shards => {
                for shard in permutation(n / 100, random) {
                    blocks.extend(shard * 100..(shard + 1) * 100);
                }
            }
        }
    }
    blocks.into_iter().map(read).collect()
}

pub(super) fn read(block: u32) -> Event {
    Event { block, bytes: 1, op: Op::Read }
}

fn permutation(n: u32, random: &mut Random) -> Vec<u32> {
    let mut items: Vec<u32> = (0..n).collect();
    random.shuffle(&mut items);
    items
}

/// Pairs of block and job: each job reads `n` blocks in `count` epochs in its own order, starting at its
/// own time.
pub(super) fn jobs(n: u32, jobs: usize, count: u32) -> Vec<(u32, usize)> {
    let mut random = Random::new(5);
    let order = |job: usize| {
        let mut random = Random::new(100 + job as u32);
        (0..count).flat_map(|_| permutation(n, &mut random)).collect::<Vec<_>>()
    };
    let orders: Vec<_> = (0..jobs).map(order).collect();
    let offsets: Vec<_> = (0..jobs).map(|_| random.below(n) as usize).collect();
    let length = (n * count) as usize;
    let mut reads = Vec::new();
    for t in 0..length + offsets.iter().max().unwrap() {
        let mut turn: Vec<usize> = (0..jobs).collect();
        random.shuffle(&mut turn);
        for job in turn {
            if t >= offsets[job] && t - offsets[job] < length {
                reads.push((orders[job][t - offsets[job]], job));
            }
        }
    }
    reads
}

/// Identity of a block of MIX-1: the file set, a number within it, and the block number.
type Name = (&'static str, u32, u32);

#[derive(Default)]
struct ReferenceMix {
    events: Vec<(f64, Name, Op, BlockClass)>,
}

impl ReferenceMix {
    fn add(&mut self, at: f64, name: Name, op: Op, class: BlockClass) {
        self.events.push((at, name, op, class));
    }

    /// Two training jobs, six epochs each, with a validation set read after each epoch.
    fn training(&mut self, random: &mut Random) -> f64 {
        let mut t = 0.0;
        for (dataset, train, validation) in [(1, "A1", "A1v"), (2, "A2", "A2v")] {
            for _ in 0..6 {
                for x in permutation(4000, random) {
                    self.add(t, (train, 0, x), Op::Read, BlockClass::Train { dataset });
                    t += 1.0;
                }
                for x in 0..200 {
                    self.add(t, (validation, 0, x), Op::Read, BlockClass::Kept);
                    t += 0.5;
                }
            }
        }
        t
    }

    fn scan(&mut self, end: f64) {
        for (x, t) in (0..).map(|x| (x, f64::from(x) * 2.0)).take_while(|(_, t)| *t < end) {
            self.add(t, ("B", 0, x), Op::Read, BlockClass::Scan);
        }
    }

    fn checkpoints(&mut self, end: f64) {
        for n in (0..).take_while(|n| 800.0 + f64::from(*n) * 800.0 < end) {
            let t = 800.0 + f64::from(n) * 800.0;
            let class = BlockClass::Checkpoint { generation: n };
            for x in 0..150 {
                self.add(t + f64::from(x) * 0.3, ("ck", n, x), Op::Write, class);
            }
            for x in 0..if n % 8 == 7 { 150 } else { 0 } {
                self.add(t + 300.0 + f64::from(x) * 0.1, ("ck", n, x), Op::Read, class);
            }
        }
    }

    fn model(&mut self, end: f64, random: &mut Random) {
        let mut t = 0.0;
        while t < end {
            t += random.exponential(1.0 / 900.0);
            for x in 0..100 {
                self.add(t + f64::from(x) * 0.05, ("M", 0, x), Op::Read, BlockClass::Kept);
            }
        }
    }

    fn search(&mut self) {
        let mut random = Random::new(9);
        let order: Vec<u32> = (0..8).flat_map(|_| permutation(1500, &mut random)).collect();
        for job in 0..4 {
            for (i, x) in order.iter().enumerate() {
                let at = 6000.0 + i as f64 * 1.5 + f64::from(job) * 60.0;
                self.add(at, ("C", 0, *x), Op::Read, BlockClass::Shared { readers: 4 });
            }
        }
    }
}

/// MIX-1 with seed 1.
pub(super) fn mix() -> Vec<(Event, BlockClass)> {
    let mut random = Random::new(1);
    let mut mix = ReferenceMix::default();
    let end = mix.training(&mut random);
    mix.scan(end);
    mix.checkpoints(end);
    mix.model(end, &mut random);
    mix.search();
    mix.events.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut numbers = HashMap::new();
    let number = |(_, name, op, class)| {
        let next = numbers.len() as u32;
        let block = *numbers.entry(name).or_insert(next);
        (Event { block, bytes: 1, op }, class)
    };
    mix.events.into_iter().map(number).collect()
}

//! EPOCH-HAZARD: for several jobs that each read every block of one dataset once per epoch. It is told what
//! it would have to find out.
//!
//! A block is worth the sum, over all jobs, of the rate at which the job is expected to ask for it next: 1/r
//! for a job that has not read it in its epoch, where r is how many reads are left in that epoch, and 1/(r +
//! N/2) for one that has, as it is half an epoch away on average once the next one begins. Blocks that the
//! same jobs have read are worth the same, so that a victim is looked for among at most 2ᵏ groups. What is
//! worth least is evicted, or not admitted. All blocks weigh 1. It is here to compare with, and a measure of
//! what can be reached without knowing the jobs' seeds.

use super::links::{Links, NONE, Queue};

/// A cache for jobs that read a dataset in epochs.
#[derive(Debug)]
pub struct EpochHazard {
    capacity: u32,
    blocks: u32,
    /// Reads of each job in its epoch.
    read: Vec<u32>,
    /// For each block, a bit for each job that has read it in its epoch.
    readers: Vec<u16>,
    held: Vec<bool>,
    count: u32,
    links: Links,
    /// What is held, by who has read it.
    groups: Vec<Queue>,
    /// What a block of each group is worth at the moment.
    worth: Vec<f64>,
}

impl EpochHazard {
    /// More jobs than these would make too many groups.
    pub const JOBS_MAX: usize = 12;

    /// A cache of `capacity` blocks of a dataset of `blocks`, which are numbered from 0, that `jobs` jobs
    /// read.
    ///
    /// # Panics
    /// For more than [`Self::JOBS_MAX`] jobs.
    #[must_use]
    pub fn new(blocks: u32, jobs: usize, capacity: u32) -> Self {
        assert!(jobs <= Self::JOBS_MAX, "at most {} jobs", Self::JOBS_MAX);
        let mut links = Links::default();
        links.cover(blocks);
        Self {
            capacity,
            blocks,
            read: vec![0; jobs],
            readers: vec![0; blocks as usize],
            held: vec![false; blocks as usize],
            count: 0,
            links,
            groups: std::iter::repeat_with(Queue::default).take(1 << jobs).collect(),
            worth: vec![0.0; 1 << jobs],
        }
    }

    /// Takes a read of `block` by `job`, and says whether the cache held it.
    ///
    /// # Panics
    /// For a job or a block that it was not told of.
    pub fn access(&mut self, job: usize, block: u32) -> bool {
        let index = block as usize;
        let before = self.readers[index];
        let hit = self.held[index];
        if hit {
            self.links.remove(&mut self.groups[usize::from(before)], block);
        }
        self.readers[index] = before | 1 << job;
        self.read[job] += 1;
        if self.read[job] >= self.blocks {
            self.begin_epoch(job);
        }
        let readers = usize::from(self.readers[index]);
        if hit || self.make_room(readers) {
            self.links.push(&mut self.groups[readers], block, 1);
            self.count += u32::from(!hit);
            self.held[index] = true;
        }
        hit
    }

    /// Nobody has read anything in the new epoch: two groups become one each time.
    fn begin_epoch(&mut self, job: usize) {
        let bit = 1 << job;
        self.read[job] = 0;
        for readers in &mut self.readers {
            *readers &= !bit;
        }
        let bit = usize::from(bit);
        for with in (0..self.groups.len()).filter(|group| group & bit != 0) {
            let (low, high) = self.groups.split_at_mut(with);
            self.links.append(&mut low[with & !bit], &mut high[0]);
        }
    }

    /// Evicts a block if there must be room for one of the group `readers` and any is worth less.
    fn make_room(&mut self, readers: usize) -> bool {
        if self.count < self.capacity {
            return true;
        }
        self.weigh();
        let held = (0..self.groups.len()).filter(|group| self.groups[*group].oldest() != NONE);
        let Some(least) = held.min_by(|a, b| self.worth[*a].total_cmp(&self.worth[*b])) else { return false };
        // Equal but for rounding is not less.
        if self.worth[least] >= self.worth[readers] - 1e-15 {
            return false;
        }
        let victim = self.groups[least].oldest();
        self.links.remove(&mut self.groups[least], victim);
        self.held[victim as usize] = false;
        self.count -= 1;
        true
    }

    /// Fills in the worth of every group, each from one with a reader less.
    fn weigh(&mut self) {
        let left = |read: u32| f64::from((self.blocks - read).max(1));
        self.worth[0] = self.read.iter().map(|read| 1.0 / left(*read)).sum();
        for (job, read) in self.read.iter().enumerate() {
            let change = 1.0 / (left(*read) + f64::from(self.blocks) / 2.0) - 1.0 / left(*read);
            let (without, with) = self.worth.split_at_mut(1 << job);
            for (with, without) in with.iter_mut().zip(without) {
                *with = *without + change;
            }
        }
    }
}

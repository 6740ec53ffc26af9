//! EPOCH-HAZARD, an algorithm of this project's reference simulator: a cache for several jobs that each read
//! every block of one dataset once per epoch. It receives the facts that a real policy would have to infer.
//!
//! The value of a block is the sum, over all jobs, of the rate at which the job is expected to request it
//! next: 1/r for a job that has not read it in its epoch, where r is the number of reads left in that
//! epoch, and 1/(r + N/2) for a job that has, because the block is half an epoch away on average once the
//! next epoch begins. Blocks that the same jobs have read have the same value, so that a victim is selected
//! among at most 2ᵏ groups. The block with the lowest value is evicted, or not admitted. The
//! weight of every block is 1. The cache serves for comparison, and as a measure of what is possible without
//! knowledge of the jobs' seeds.

use mlgw_policies::reference::links::{BlockQueue, Links, NONE};

/// A cache for jobs that read a dataset in epochs.
#[derive(Debug)]
pub struct EpochHazard {
    capacity: u32,
    blocks: u32,
    /// Number of reads of each job in its current epoch.
    read: Vec<u32>,
    /// For each block, one bit for each job that has read it in its current epoch.
    readers: Vec<u16>,
    is_cached: Vec<bool>,
    count: u32,
    links: Links,
    /// Cached blocks, grouped by the set of jobs that have read them.
    groups: Vec<BlockQueue>,
    /// Current value of a block of each group.
    values: Vec<f64>,
}

impl EpochHazard {
    /// Maximum number of jobs; more jobs would make too many groups.
    pub const JOBS_MAX: usize = 12;

    /// Creates a cache of `capacity` blocks for `jobs` jobs that read a dataset of `blocks` blocks, which
    /// are numbered from 0.
    ///
    /// # Panics
    /// If there are more than [`Self::JOBS_MAX`] jobs.
    #[must_use]
    pub fn new(blocks: u32, jobs: usize, capacity: u32) -> Self {
        assert!(jobs <= Self::JOBS_MAX, "at most {} jobs", Self::JOBS_MAX);
        let mut links = Links::default();
        links.grow_to(blocks);
        Self {
            capacity,
            blocks,
            read: vec![0; jobs],
            readers: vec![0; blocks as usize],
            is_cached: vec![false; blocks as usize],
            count: 0,
            links,
            groups: std::iter::repeat_with(BlockQueue::default).take(1 << jobs).collect(),
            values: vec![0.0; 1 << jobs],
        }
    }

    /// Processes a read of `block` by `job` and returns true if it was a hit.
    ///
    /// # Panics
    /// If the job or the block is out of range.
    pub fn access(&mut self, job: usize, block: u32) -> bool {
        let index = block as usize;
        let before = self.readers[index];
        let hit = self.is_cached[index];
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
            self.is_cached[index] = true;
        }
        hit
    }

    /// Marks all blocks as unread by `job` in its new epoch, which merges pairs of groups.
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

    /// Makes room for a block of the group `readers`. Evicts a block if the cache is full and another group
    /// has a lower value; returns false if there is no room.
    fn make_room(&mut self, readers: usize) -> bool {
        if self.count < self.capacity {
            return true;
        }
        self.update_values();
        let held = (0..self.groups.len()).filter(|group| self.groups[*group].oldest() != NONE);
        let Some(least) = held.min_by(|a, b| self.values[*a].total_cmp(&self.values[*b])) else {
            return false;
        };
        // A difference within rounding errors does not count as lower.
        if self.values[least] >= self.values[readers] - 1e-15 {
            return false;
        }
        let victim = self.groups[least].oldest();
        self.links.remove(&mut self.groups[least], victim);
        self.is_cached[victim as usize] = false;
        self.count -= 1;
        true
    }

    /// Computes the value of every group, each from the group with one reader less.
    fn update_values(&mut self) {
        let left = |read: u32| f64::from((self.blocks - read).max(1));
        self.values[0] = self.read.iter().map(|read| 1.0 / left(*read)).sum();
        for (job, read) in self.read.iter().enumerate() {
            let change = 1.0 / (left(*read) + f64::from(self.blocks) / 2.0) - 1.0 / left(*read);
            let (without, with) = self.values.split_at_mut(1 << job);
            for (with, without) in with.iter_mut().zip(without) {
                *with = *without + change;
            }
        }
    }
}

//! Worth of room at the end of a queue: the rate at which blocks are read that have just left it or are about
//! to.
//!
//! The rate compares to the worth of a block of a group: reads of such blocks, divided by the number of these
//! blocks times the duration. The sums are halved whenever more than half as many reads as there are blocks,
//! and at least 16, were counted.

/// Blocks on one side of the end of a queue.
#[derive(Default)]
pub(super) struct Hazard {
    blocks: u32,
    /// Reads of these blocks since the tally began, and the integral of their number over time, in blocks
    /// times microseconds.
    reads: f64,
    block_us: f64,
    /// Time of the last tally; the first tally starts the integral.
    last_us: Option<u64>,
}

impl Hazard {
    /// Adds a block.
    pub(super) fn join(&mut self) {
        self.blocks += 1;
    }

    /// Removes a block.
    pub(super) fn leave(&mut self) {
        assert!(self.blocks > 0, "a block joins before it leaves");
        self.blocks -= 1;
    }

    /// Counts a read of one of these blocks.
    pub(super) fn count_own_read(&mut self, now_us: u64) {
        self.count_other_read(now_us);
        self.reads += 1.0;
    }

    /// Counts a read of another block.
    pub(super) fn count_other_read(&mut self, now_us: u64) {
        if self.reads > f64::from((self.blocks / 2).max(16)) {
            self.reads /= 2.0;
            self.block_us /= 2.0;
        }
        self.block_us = self.block_us_at(now_us);
        self.last_us = Some(now_us);
    }

    fn block_us_at(&self, now_us: u64) -> f64 {
        let since_us = self.last_us.unwrap_or(now_us);
        self.block_us + f64::from(self.blocks) * (now_us - since_us) as f64
    }

    /// Returns the expected gain from room for one more block, in reads per microsecond.
    pub(super) fn worth(&self, now_us: u64) -> f64 {
        let block_us = self.block_us_at(now_us);
        if block_us > 0.0 { self.reads / block_us } else { 0.0 }
    }
}

//! What room is worth at the end of a queue: how often blocks are asked for that have just gone out of it, or
//! are about to.
//!
//! A rate like what a block of a group is worth: so many of them were read, over how many there were for how
//! long. Half of what was is forgotten as often as all of them have been replaced.

/// Blocks at the end of a queue, on either side of it.
#[derive(Default)]
pub(super) struct Hazard {
    blocks: u32,
    /// How many of them were read since the tally began, and for how long there were how many of them: blocks
    /// times microseconds.
    reads: f64,
    block_us: f64,
    /// When it was tallied last; blocks that there were before it was first are nobody's measure.
    last_us: Option<u64>,
}

impl Hazard {
    /// There is one more.
    pub(super) fn join(&mut self) {
        self.blocks += 1;
    }

    /// There is one less.
    pub(super) fn leave(&mut self) {
        self.blocks -= 1;
    }

    /// A block is asked for that is one of them, or another.
    pub(super) fn tally(&mut self, now_us: u64, is_one: bool) {
        if self.reads > f64::from((self.blocks / 2).max(16)) {
            self.reads /= 2.0;
            self.block_us /= 2.0;
        }
        self.block_us = self.block_us_at(now_us);
        self.last_us = Some(now_us);
        self.reads += f64::from(u8::from(is_one));
    }

    fn block_us_at(&self, now_us: u64) -> f64 {
        let since_us = self.last_us.unwrap_or(now_us);
        self.block_us + f64::from(self.blocks) * (now_us - since_us) as f64
    }

    /// What a block more would bring: reads per microsecond.
    pub(super) fn worth(&self, now_us: u64) -> f64 {
        let block_us = self.block_us_at(now_us);
        if block_us > 0.0 { self.reads / block_us } else { 0.0 }
    }
}

//! Pairs of jobs of a dataset: detection of jobs that follow others.
//!
//! A follower reads the blocks that its leader has read some time before, in the same order.

use super::job::JOBS_MAX;
use super::job::{JobCallers, ReaderJob};

/// Minimum reads, and minimum share of them that the leader had read before, from which a job counts as a
/// follower.
const FOLLOW_READS: u32 = 32;
const FOLLOW_SHARE: f64 = 0.9;
/// Maximum expected share by chance for a read to carry information.
const FOLLOW_CHANCE: f64 = 0.5;
/// A pair of jobs.
#[derive(Clone, Copy, Debug, Default)]
struct JobPair {
    /// Blocks that both have read in their current passes.
    both: u32,
    /// Share of the follower's informative reads that the leader had read before, as a moving average.
    share: f64,
    /// Informative reads.
    reads: u32,
}

/// All pairs of jobs, by leader and follower.
#[derive(Default)]
pub(super) struct JobPairs {
    pairs: [[JobPair; JOBS_MAX]; JOBS_MAX],
}

impl JobPairs {
    /// Counts the first read of a block in the follower's pass, in a dataset with `known` known blocks;
    /// `readers` is the bit set of the jobs that read the block before.
    pub(super) fn count(&mut self, jobs: &[ReaderJob], known: u32, follower: usize, readers: usize) {
        for leader in (0..jobs.len()).filter(|leader| *leader != follower && can_lead(&jobs[*leader])) {
            let (led, follows) = (&jobs[leader], &jobs[follower]);
            let has_led = readers >> leader & 1 == 1;
            let pair = &mut self.pairs[leader][follower];
            let ahead = led.reads.saturating_sub(pair.both);
            let left = follows.left(known).max(1);
            let is_informative = ahead > 0 && led.reads > follows.reads;
            if is_informative && f64::from(ahead) < FOLLOW_CHANCE * f64::from(left) {
                pair.reads = (pair.reads + 1).min(FOLLOW_READS);
                pair.share += (f64::from(u8::from(has_led)) - pair.share) / f64::from(pair.reads);
            }
            if has_led {
                pair.both += 1;
                self.pairs[follower][leader].both += 1;
            }
        }
    }

    /// Records that a job begins a pass.
    pub(super) fn begin_pass(&mut self, place: usize) {
        for other in 0..JOBS_MAX {
            self.pairs[place][other].both = 0;
            self.pairs[other][place].both = 0;
        }
    }

    /// Records that a job has ended.
    pub(super) fn end(&mut self, place: usize) {
        for other in 0..JOBS_MAX {
            self.pairs[place][other] = JobPair::default();
            self.pairs[other][place] = JobPair::default();
        }
    }

    /// Returns the leader that a job follows most closely, and the number of blocks by which it is ahead.
    pub(super) fn leader(&self, jobs: &[ReaderJob], follower: usize) -> Option<(usize, u32)> {
        let mut nearest: Option<(usize, u32)> = None;
        for (leader, led) in jobs.iter().enumerate() {
            let pair = &self.pairs[leader][follower];
            let is_led = pair.reads >= FOLLOW_READS && pair.share >= FOLLOW_SHARE;
            if !is_led || !can_lead(led) || led.reads <= jobs[follower].reads {
                continue;
            }
            let ahead = led.reads.saturating_sub(pair.both);
            if ahead > 0 && nearest.is_none_or(|(_, least)| ahead < least) {
                nearest = Some((leader, ahead));
            }
        }
        nearest
    }
}

fn can_lead(job: &ReaderJob) -> bool {
    job.is_active && job.callers != JobCallers::Trial
}

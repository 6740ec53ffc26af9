//! How the jobs of a dataset go together, two by two: who follows whom, and who is the same job as another.
//!
//! A follower reads what its leader has read a while ago, in the same order. Ranks of one job never read what another has read in the same pass,
//! though by chance they would.

use super::dataset::JOBS_MAX;
use super::job::Job;

/// A job that follows another one reads what that has read before it so often, of so many reads.
const FOLLOW_READS: u32 = 32;
const FOLLOW_SHARE: f64 = 0.9;
/// That says something only where chance would bring this much less.
const FOLLOW_CHANCE: f64 = 0.5;
/// Two jobs have so few blocks in common that chance would bring that once in e²¹ times: it is asked again and again.
const APART_EXPONENT: f64 = 21.0;

/// One job and another.
#[derive(Clone, Copy, Debug, Default)]
struct Pair {
    /// Blocks that both have read in the passes that they are in.
    both: u32,
    /// Of the follower's reads that said something, as a moving average: those that the leader had before it.
    share: f64,
    /// Reads that said something.
    reads: u32,
}

/// All pairs of jobs, by leader and follower.
#[derive(Default)]
pub(super) struct Pairs {
    pairs: [[Pair; JOBS_MAX]; JOBS_MAX],
}

impl Pairs {
    /// A job reads a block for the first time in its pass, of a dataset of which `known` blocks are; `readers` have read it before.
    pub(super) fn count(&mut self, jobs: &[Job], known: u32, follower: usize, readers: usize) {
        for leader in (0..jobs.len()).filter(|leader| *leader != follower && jobs[*leader].is_active) {
            let (led, follows) = (&jobs[leader], &jobs[follower]);
            let has_led = readers >> leader & 1 == 1;
            let pair = &mut self.pairs[leader][follower];
            let ahead = led.reads.saturating_sub(pair.both);
            let left = follows.left(known).max(1);
            let is_telling = ahead > 0 && led.reads > follows.reads;
            if is_telling && f64::from(ahead) < FOLLOW_CHANCE * f64::from(left) {
                pair.reads = (pair.reads + 1).min(FOLLOW_READS);
                pair.share += (f64::from(u8::from(has_led)) - pair.share) / f64::from(pair.reads);
            }
            if has_led {
                pair.both += 1;
                self.pairs[follower][leader].both += 1;
            }
        }
    }

    /// A job begins a pass.
    pub(super) fn begin_pass(&mut self, place: usize) {
        for other in 0..JOBS_MAX {
            self.pairs[place][other].both = 0;
            self.pairs[other][place].both = 0;
        }
    }

    /// A job is over.
    pub(super) fn end(&mut self, place: usize) {
        for other in 0..JOBS_MAX {
            self.pairs[place][other] = Pair::default();
            self.pairs[other][place] = Pair::default();
        }
    }

    /// The job that another follows most closely, and how many blocks it is ahead.
    pub(super) fn leader(&self, jobs: &[Job], follower: usize) -> Option<(usize, u32)> {
        let mut nearest: Option<(usize, u32)> = None;
        for (leader, led) in jobs.iter().enumerate() {
            let pair = &self.pairs[leader][follower];
            let is_led = pair.reads >= FOLLOW_READS && pair.share >= FOLLOW_SHARE;
            if !is_led || !led.is_active || led.reads <= jobs[follower].reads {
                continue;
            }
            let ahead = led.reads.saturating_sub(pair.both);
            if ahead > 0 && nearest.is_none_or(|(_, least)| ahead < least) {
                nearest = Some((leader, ahead));
            }
        }
        nearest
    }

    /// Two jobs of one family that are ranks of one, in a dataset that is no larger than what is `known`.
    pub(super) fn apart(&self, jobs: &[Job], known: u32) -> Option<(usize, usize)> {
        for one in 0..jobs.len() {
            for other in one + 1..jobs.len() {
                let (a, b) = (&jobs[one], &jobs[other]);
                let chance = f64::from(a.reads) * f64::from(b.reads) / f64::from(known.max(1));
                let both = f64::from(self.pairs[one][other].both);
                let are_alike = a.is_active && b.is_active && a.family == b.family;
                if are_alike && unlikely(both, chance) >= APART_EXPONENT {
                    return Some((one, other));
                }
            }
        }
        None
    }
}

/// How unlikely it is to find as little as `found` where `expected` is the mean: a bound of the negative logarithm of that (Chernoff, "A
/// measure of asymptotic efficiency for tests of a hypothesis based on the sum of observations", 1952).
fn unlikely(found: f64, expected: f64) -> f64 {
    if found >= expected {
        return 0.0;
    }
    let logarithm = if found > 0.0 { found * (expected / found).ln() } else { 0.0 };
    expected - found - logarithm
}

//! Loads of a model: how often it was loaded, and by how many, since data was read.
//!
//! Ranks of one job load a model together and then read data; replicas of a service load it whenever one
//! comes up. A wave of loads is over when nobody has read for longer than it took, and than it takes to move
//! what was read.

use super::set::{bit, count};

/// A wave is over when nobody has read for so many times as long as it took.
const SILENCE: f64 = 2.0;
/// Requests are told when they begin. That they end is only known from what a network can carry: a gigabyte a
/// second, in bytes a microsecond.
const BYTES_PER_US: f64 = 1000.0;
/// One read is no wave that others could follow.
const READS_MIN: u32 = 2;

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct Loads {
    callers: u64,
    waves: u32,
    reads: u32,
    bytes: u64,
    began_us: u64,
    last_us: u64,
}

impl Loads {
    /// A caller, by hash, reads something that is no data.
    pub(super) fn read(&mut self, now_us: u64, caller: u64, bytes: u64) {
        let silent_us = now_us.saturating_sub(self.last_us) as f64;
        let took_us = (self.last_us - self.began_us) as f64;
        let is_over =
            self.reads >= READS_MIN && silent_us > SILENCE * took_us.max(self.bytes as f64 / BYTES_PER_US);
        if self.waves == 0 || is_over {
            self.waves += 1;
            (self.reads, self.bytes, self.began_us) = (0, 0, now_us);
        }
        self.callers |= bit(caller);
        self.reads = self.reads.saturating_add(1);
        self.bytes = self.bytes.saturating_add(bytes);
        self.last_us = now_us;
    }

    /// Data is read: what was loaded was loaded for that.
    pub(super) fn end(&mut self) {
        *self = Self::default();
    }

    /// How many waves there were.
    pub(super) const fn waves(&self) -> u32 {
        self.waves
    }

    /// About how many callers there were.
    pub(super) fn callers(&self) -> u32 {
        count(self.callers)
    }
}

#[cfg(test)]
mod tests {
    use super::Loads;

    #[test]
    fn waves_are_told_by_silence_that_is_longer_than_they_were() {
        let mut loads = Loads::default();
        // Ranks begin one after the other, which is no wave each; replicas come up much later.
        for (begin_us, caller, waves) in [(0, 1, 1), (500_000, 2, 1), (9_000_000, 3, 1), (60_000_000, 4, 2)] {
            for read in 0..4 {
                loads.read(begin_us + read * 1000, caller << 58, 1 << 30);
            }
            assert_eq!(loads.waves(), waves, "{begin_us}");
        }
        assert_eq!(loads.callers(), 4);
        loads.end();
        loads.read(90_000_000, 1, 1);
        assert_eq!((loads.waves(), loads.callers()), (1, 1));
    }
}

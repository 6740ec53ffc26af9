//! Loads of a model: number of waves and callers since data was last read.
//!
//! Ranks of one job load a model together and then read data; replicas of a service load it whenever a
//! replica starts. A wave of loads ends when no caller reads for longer than the wave took, and for longer
//! than a network needs to transfer the bytes read.

use super::dataset_use::{bit, count};

/// Idle time that ends a wave, as a multiple of its duration.
const WAVE_PAUSE: f64 = 2.0;
/// Assumed network rate in bytes per microsecond, a gigabyte a second. Requests are reported when they
/// start; their end is estimated from this rate.
const BYTES_PER_US: f64 = 1000.0;
/// Minimum number of reads in a wave, before another wave can follow.
const READS_MIN: u32 = 2;

/// Waves of loads since data was last read.
#[derive(Clone, Debug, Default)]
pub(super) struct ModelLoads {
    callers: u64,
    waves: u32,
    reads: u32,
    bytes: u64,
    began_us: u64,
    last_us: u64,
}

impl ModelLoads {
    /// Records a read by a caller, given by hash, of an object that is not training or test data.
    pub(super) fn read(&mut self, now_us: u64, caller: u64, bytes: u64) {
        let silent_us = now_us.saturating_sub(self.last_us) as f64;
        let took_us = (self.last_us - self.began_us) as f64;
        let is_over =
            self.reads >= READS_MIN && silent_us > WAVE_PAUSE * took_us.max(self.bytes as f64 / BYTES_PER_US);
        if self.waves == 0 || is_over {
            self.waves += 1;
            (self.reads, self.bytes, self.began_us) = (0, 0, now_us);
        }
        self.callers |= bit(caller);
        self.reads = self.reads.saturating_add(1);
        self.bytes = self.bytes.saturating_add(bytes);
        self.last_us = now_us;
    }

    /// Resets the counts when data is read, because the load was a preparation for it.
    pub(super) fn end(&mut self) {
        *self = Self::default();
    }

    /// Number of waves.
    pub(super) const fn waves(&self) -> u32 {
        self.waves
    }

    /// Approximate number of callers.
    pub(super) fn callers(&self) -> u32 {
        count(self.callers)
    }
}

#[cfg(test)]
mod tests {
    use super::ModelLoads;

    #[test]
    fn waves_are_separated_by_pauses_longer_than_the_waves() {
        let mut loads = ModelLoads::default();
        // Ranks start one after another without a new wave; replicas start much later.
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

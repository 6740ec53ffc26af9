//! Read heat of segments: an exponentially decaying count of reads with a half-life of ten minutes.
//!
//! In memory only: after a restart all segments are equally cold, and older segments are spilled before newer
//! ones.

use mlgw_common::time::Instant;
use std::collections::HashMap;
use std::time::Duration;

use mlgw_common::ids::SegmentId;

/// Time after which a read counts half.
const HALF_LIFE: Duration = Duration::from_mins(10);
/// Heat below which a segment is dropped from the table.
const HEAT_MIN: f64 = 0.01;

/// Heat of all segments that were read.
#[derive(Debug)]
pub(in crate::hot) struct SegmentHeat {
    reads: HashMap<SegmentId, f64>,
    decayed: Instant,
}

impl SegmentHeat {
    pub(in crate::hot) fn new(now: Instant) -> Self {
        Self { reads: HashMap::new(), decayed: now }
    }

    /// Adds the reads of each segment since the last call.
    pub(in crate::hot) fn add(&mut self, now: Instant, reads: impl IntoIterator<Item = (SegmentId, u64)>) {
        let halves = now.saturating_duration_since(self.decayed).as_secs_f64() / HALF_LIFE.as_secs_f64();
        let keeps = 0.5_f64.powf(halves);
        self.decayed = now;
        self.reads.retain(|_, reads| {
            *reads *= keeps;
            *reads >= HEAT_MIN
        });
        for (segment, more) in reads.into_iter().filter(|(_, more)| *more > 0) {
            *self.reads.entry(segment).or_default() += more as f64;
        }
    }

    /// Returns the heat of a segment.
    pub(in crate::hot) fn of(&self, segment: SegmentId) -> f64 {
        self.reads.get(&segment).copied().unwrap_or(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::{HALF_LIFE, SegmentHeat};
    use mlgw_common::ids::SegmentId;
    use mlgw_common::time::Instant;

    #[test]
    fn reads_count_half_after_ten_minutes_and_nothing_after_hours() {
        let (begun, one, two) = (Instant::now(), SegmentId(1), SegmentId(2));
        let mut heat = SegmentHeat::new(begun);
        heat.add(begun, [(one, 8), (two, 0)]);
        assert_eq!((heat.of(one), heat.of(two), heat.reads.len()), (8.0, 0.0, 1));
        heat.add(begun + HALF_LIFE, [(one, 1)]);
        assert!((heat.of(one) - 5.0).abs() < 1e-9, "{}", heat.of(one));
        heat.add(begun + 20 * HALF_LIFE, []);
        assert_eq!((heat.of(one), heat.reads.len()), (0.0, 0));
    }
}

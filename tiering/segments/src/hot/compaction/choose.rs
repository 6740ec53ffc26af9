//! Selects the segments to empty or to release. Pure.

use std::collections::HashMap;

use mlgw_common::ids::SegmentId;

use mlgw_common::SegmentTier;
use mlgw_formats::segment_header::SEGMENT_HEADER_BYTES;

/// Percentage of dead bytes at which a hot segment is emptied while appends lack space and no segment can be
/// spilled.
pub(in crate::hot) const PRESSED_DEAD_PERCENT: u64 = 5;

/// Space pressure of the hot tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::hot) enum SpacePressure {
    /// Enough space.
    None,
    /// Little space, and whole segments can be spilled, which frees more per byte written.
    Spills,
    /// Little space, and nothing can be spilled.
    Compacts,
}

impl SpacePressure {
    /// Percentage of dead bytes at which a hot segment is emptied.
    pub(in crate::hot) fn dead_percent(self, usual: u64, requested: Option<u64>) -> u64 {
        let percent = requested.map_or(usual, |requested| requested.min(usual));
        if self == Self::Compacts { percent.min(PRESSED_DEAD_PERCENT) } else { percent }
    }
}

/// State of a segment as seen by a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::hot) struct SegmentStats {
    pub(in crate::hot) id: SegmentId,
    /// Tier of the segment.
    pub(in crate::hot) tier: SegmentTier,
    /// True if its length is final.
    pub(in crate::hot) sealed: bool,
    /// Length of a sealed segment, or the synced length of an open one.
    pub(in crate::hot) bytes: u64,
    /// Bytes that the catalogue refers to, over all groups.
    pub(in crate::hot) referenced_bytes: u64,
    /// Number of extents that refer to the segment.
    pub(in crate::hot) references: u64,
    /// True if an unfinished request appended to the segment or may do so.
    pub(in crate::hot) in_flight: bool,
}

/// Thresholds of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::hot) struct CompactionThresholds {
    /// Percentage of dead bytes at which a hot segment is emptied.
    pub(in crate::hot) dead_percent: u64,
    /// The same for segments in colder tiers.
    pub(in crate::hot) cold_dead_percent: u64,
    /// Bytes of space for moved chunks.
    pub(in crate::hot) room_bytes: u64,
}

impl CompactionThresholds {
    /// True if enough of a segment is dead. A segment at an upstream is never emptied there: when enough of
    /// it is dead it is promoted first.
    fn has_enough_dead(self, segment: &SegmentStats) -> bool {
        match segment.tier {
            SegmentTier::Hot => segment.has_dead_percent(self.dead_percent),
            SegmentTier::Upstream => false,
            SegmentTier::Cold => segment.has_dead_percent(self.cold_dead_percent),
        }
    }
}

/// Segments that could not be emptied, with the number of references that were left.
pub(in crate::hot) type HeldBackSegments = HashMap<SegmentId, u64>;

impl SegmentStats {
    /// Bytes of all records, live or dead.
    fn record_bytes(&self) -> u64 {
        self.bytes.saturating_sub(SEGMENT_HEADER_BYTES)
    }

    /// Bytes of unreferenced records.
    pub(in crate::hot) fn dead_bytes(&self) -> u64 {
        self.record_bytes().saturating_sub(self.referenced_bytes)
    }

    /// True if any byte is dead, and at least `dead_percent` of the segment.
    pub(in crate::hot) fn has_dead_percent(&self, dead_percent: u64) -> bool {
        let dead = u128::from(self.dead_bytes());
        dead > 0 && dead * 100 >= u128::from(self.record_bytes()) * u128::from(dead_percent)
    }

    /// True if the segment can be changed: it is sealed and has no appends in flight.
    pub(in crate::hot) fn is_idle(&self) -> bool {
        self.sealed && !self.in_flight
    }
}

/// Returns the segments to empty or to release, in order: first those without references, as releasing them
/// costs nothing; then by dead share, largest first, which frees most per byte moved. A segment whose live
/// bytes do not fit into the free space is skipped; a segment that was held back is skipped until it loses
/// references.
pub(in crate::hot) fn choose_segments(
    facts: &[SegmentStats],
    aim: CompactionThresholds,
    held_back: &HeldBackSegments,
) -> Vec<SegmentId> {
    let mut chosen: Vec<&SegmentStats> = facts
        .iter()
        .filter(|segment| segment.is_idle())
        .filter(|segment| held_back.get(&segment.id).is_none_or(|left| *left != segment.references))
        .filter(|segment| {
            let fits = segment.referenced_bytes <= aim.room_bytes;
            segment.references == 0 || (fits && aim.has_enough_dead(segment))
        })
        .collect();
    // Compares the shares by cross-multiplication, without division.
    let share = |a: &SegmentStats, b: &SegmentStats| {
        let cross =
            |x: &SegmentStats, y: &SegmentStats| u128::from(x.dead_bytes()) * u128::from(y.record_bytes());
        cross(b, a).cmp(&cross(a, b))
    };
    chosen.sort_by(|a, b| {
        let emptied = (a.references > 0).cmp(&(b.references > 0));
        emptied
            .then_with(|| if a.references == 0 { a.id.cmp(&b.id) } else { share(a, b).then(a.id.cmp(&b.id)) })
    });
    chosen.into_iter().map(|segment| segment.id).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(id: u64, bytes: u64, referenced_bytes: u64) -> SegmentStats {
        SegmentStats {
            id: SegmentId(id),
            tier: SegmentTier::Hot,
            sealed: true,
            bytes: bytes + SEGMENT_HEADER_BYTES,
            referenced_bytes,
            references: referenced_bytes.div_ceil(100),
            in_flight: false,
        }
    }

    fn chosen(facts: &[SegmentStats], room_bytes: u64) -> Vec<u64> {
        let aim = CompactionThresholds { dead_percent: 30, cold_dead_percent: 50, room_bytes };
        choose_segments(facts, aim, &HeldBackSegments::new()).into_iter().map(|segment| segment.0).collect()
    }

    #[test]
    fn dead_segments_come_first_then_the_largest_dead_share() {
        let all =
            [facts(1, 1000, 700), facts(2, 1000, 100), facts(3, 10, 0), facts(4, 1000, 701), facts(5, 0, 0)];
        assert_eq!(chosen(&all, 1000), [3, 5, 2, 1]);
        assert_eq!(chosen(&all, 600), [3, 5, 2], "the live data of segment 1 does not fit");
        assert_eq!(chosen(&all, 0), [3, 5]);
    }

    #[test]
    fn a_cold_segment_needs_a_larger_dead_share() {
        let cold = |id, referenced| SegmentStats { tier: SegmentTier::Cold, ..facts(id, 1000, referenced) };
        assert_eq!(chosen(&[cold(1, 501), cold(2, 500), facts(3, 1000, 501), cold(4, 0)], 5000), [4, 2, 3]);
    }

    #[test]
    fn a_segment_at_an_upstream_is_released_but_not_emptied() {
        let upstream_segment =
            |id, referenced| SegmentStats { tier: SegmentTier::Upstream, ..facts(id, 1000, referenced) };
        assert_eq!(chosen(&[upstream_segment(1, 1), upstream_segment(2, 0)], 5000), [2]);
    }

    #[test]
    fn open_and_in_flight_segments_are_skipped() {
        let open = SegmentStats { sealed: false, ..facts(1, 1000, 0) };
        let in_flight = SegmentStats { in_flight: true, ..facts(2, 1000, 0) };
        assert_eq!(chosen(&[open, in_flight], 1000), [0u64; 0]);
        assert_eq!(open.dead_bytes(), 1000);
    }

    #[test]
    fn a_held_back_segment_is_chosen_again_after_losing_references() {
        let aim = CompactionThresholds { dead_percent: 30, cold_dead_percent: 50, room_bytes: 1000 };
        let held_back = HeldBackSegments::from([(SegmentId(1), 3), (SegmentId(2), 4)]);
        let all = [facts(1, 1000, 300), facts(2, 1000, 300)];
        assert_eq!(choose_segments(&all, aim, &held_back), [SegmentId(2)]);
    }

    #[test]
    fn the_pressure_threshold_applies_only_if_nothing_can_be_spilled() {
        let percents = |pressure: SpacePressure| {
            [None, Some(50), Some(1)].map(|requested| pressure.dead_percent(30, requested))
        };
        assert_eq!(percents(SpacePressure::None), [30, 30, 1]);
        assert_eq!(percents(SpacePressure::Spills), [30, 30, 1]);
        assert_eq!(percents(SpacePressure::Compacts), [5, 5, 1]);
    }

    #[test]
    fn a_segment_without_dead_bytes_is_never_chosen() {
        assert!(!facts(1, 1000, 1000).has_dead_percent(0));
        assert!(facts(1, 1000, 999).has_dead_percent(0));
        assert!(facts(1, 1000, 0).has_dead_percent(100) && !facts(1, 1000, 1).has_dead_percent(100));
    }
}

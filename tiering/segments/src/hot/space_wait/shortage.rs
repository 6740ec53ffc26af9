//! Decides whether a space shortage of the hot tier is temporary. Pure.
//!
//! A shortage is temporary while spilling and compaction can free the missing bytes, and do free some.
//! Otherwise the tier is full, and only a delete or a larger disk helps. In doubt it is temporary: the client
//! retries, and the next scan decides.

use mlgw_common::time::Instant;
use std::time::Duration;

use mlgw_common::ids::SegmentId;

use crate::hot::compaction::choose::{HeldBackSegments, PRESSED_DEAD_PERCENT, SegmentStats};
use mlgw_common::SegmentTier;

/// Time without any freed byte, with appends waiting, after which the work in progress counts as stalled.
/// Copying the largest segment (256 MiB) to a disk of 20 MB/s takes half of it.
const STALLED_AFTER: Duration = Duration::from_secs(30);
/// Scans further apart than this belong to different shortages.
const SAME_SHORTAGE: Duration = Duration::from_secs(10);

/// Bytes of the hot tier that can become free.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::hot) struct SpaceProspects {
    /// Bytes that become free when the work in progress is done.
    pub(in crate::hot) in_hand_bytes: u64,
    /// Bytes of segments that may be spilled, as far as lower tiers have space.
    pub(in crate::hot) spillable_bytes: u64,
    /// Dead bytes that compaction can free.
    pub(in crate::hot) dead_bytes: u64,
    /// True if nothing became free for so long that the work counts as stalled.
    pub(in crate::hot) is_stalled: bool,
}

/// Inputs of the prospects, besides the segments.
pub(in crate::hot) struct ProspectInputs<'g> {
    /// Bytes that become free when the work in progress is done.
    pub(in crate::hot) in_hand_bytes: u64,
    /// True for a segment that is claimed, so that its bytes are already counted.
    pub(in crate::hot) is_claimed: &'g dyn Fn(SegmentId) -> bool,
    /// True for a segment that a rule pins in its tier.
    pub(in crate::hot) is_pinned: &'g dyn Fn(SegmentId) -> bool,
    /// Segments that could not be emptied.
    pub(in crate::hot) held_back: &'g HeldBackSegments,
    /// Bytes that the lower tiers can take.
    pub(in crate::hot) below_room_bytes: u64,
    /// Bytes of space for chunks that compaction moves.
    pub(in crate::hot) moved_room_bytes: u64,
}

impl SpaceProspects {
    /// Computes the prospects of a hot tier with these segments.
    pub(in crate::hot) fn new(facts: &[SegmentStats], given: &ProspectInputs<'_>) -> Self {
        let mut found = Self { in_hand_bytes: given.in_hand_bytes, ..Self::default() };
        let hot = facts
            .iter()
            .filter(|of| of.tier == SegmentTier::Hot && !of.in_flight && !(given.is_claimed)(of.id));
        for segment in hot {
            let is_spilled = segment.is_idle() && segment.references > 0 && !(given.is_pinned)(segment.id);
            let spilled_bytes = found.spillable_bytes.saturating_add(segment.bytes);
            if segment.references == 0 && segment.sealed {
                found.dead_bytes += segment.bytes;
            } else if is_spilled && spilled_bytes <= given.below_room_bytes {
                found.spillable_bytes = spilled_bytes;
            } else if can_be_emptied(segment, given) {
                found.dead_bytes += segment.dead_bytes();
            }
        }
        found
    }

    /// True if `lacking_bytes` become free within seconds.
    pub(in crate::hot) fn can_free(&self, lacking_bytes: u64) -> bool {
        let coming = self.in_hand_bytes.saturating_add(self.spillable_bytes).saturating_add(self.dead_bytes);
        !self.is_stalled && coming > 0 && coming >= lacking_bytes
    }
}

/// True if compaction empties the segment while the tier is pressed. An open one is sealed first.
fn can_be_emptied(segment: &SegmentStats, given: &ProspectInputs<'_>) -> bool {
    let is_held_back = given.held_back.get(&segment.id).is_some_and(|left| *left == segment.references);
    segment.has_dead_percent(PRESSED_DEAD_PERCENT)
        && segment.referenced_bytes <= given.moved_room_bytes
        && !is_held_back
}

/// Tracks if any bytes become free during a shortage.
#[derive(Debug, Default)]
pub(in crate::hot) struct ShortageProgress {
    last: Option<FreedBytesSample>,
}

#[derive(Clone, Copy, Debug)]
struct FreedBytesSample {
    looked: Instant,
    freed_bytes: u64,
    /// Time at which bytes became free last, or the shortage began.
    freed: Instant,
}

impl ShortageProgress {
    /// Records a scan with the total of all bytes ever freed. Returns true if nothing became free for too
    /// long.
    pub(in crate::hot) fn is_stalled(&mut self, now: Instant, freed_bytes: u64) -> bool {
        let goes_on = self.last.filter(|last| {
            now.saturating_duration_since(last.looked) < SAME_SHORTAGE && last.freed_bytes == freed_bytes
        });
        let freed = goes_on.map_or(now, |last| last.freed);
        self.last = Some(FreedBytesSample { looked: now, freed_bytes, freed });
        now.saturating_duration_since(freed) >= STALLED_AFTER
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mlgw_common::SegmentTier;
    use mlgw_formats::segment_header::SEGMENT_HEADER_BYTES;

    fn segment(id: u64, bytes: u64, referenced_bytes: u64) -> SegmentStats {
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

    fn prospects(facts: &[SegmentStats], below_room_bytes: u64, moved_room_bytes: u64) -> SpaceProspects {
        let given = ProspectInputs {
            in_hand_bytes: 0,
            is_claimed: &|segment| segment == SegmentId(100),
            is_pinned: &|segment| segment == SegmentId(200),
            held_back: &HeldBackSegments::from([(SegmentId(300), 5)]),
            below_room_bytes,
            moved_room_bytes,
        };
        SpaceProspects::new(facts, &given)
    }

    /// Spillable bytes and dead bytes by kind of segment, with space in lower tiers and without.
    #[test]
    fn prospects_by_kind_of_segment() {
        let whole = 1000 + SEGMENT_HEADER_BYTES;
        let open = SegmentStats { sealed: false, ..segment(1, 1000, 500) };
        let cases = [
            ("full of live data", segment(1, 1000, 1000), (whole, 0), (0, 0)),
            ("half dead", segment(1, 1000, 500), (whole, 0), (0, 500)),
            ("dead", segment(1, 1000, 0), (0, whole), (0, whole)),
            ("hardly dead", segment(1, 1000, 951), (whole, 0), (0, 0)),
            ("open", open, (0, 500), (0, 500)),
            (
                "open and dead",
                SegmentStats { references: 0, referenced_bytes: 0, ..open },
                (0, 1000),
                (0, 1000),
            ),
            ("in flight", SegmentStats { in_flight: true, ..segment(1, 1000, 500) }, (0, 0), (0, 0)),
            ("being compacted", segment(100, 1000, 500), (0, 0), (0, 0)),
            ("kept by a rule", segment(200, 1000, 500), (0, 500), (0, 500)),
            ("kept by a rule, nothing dead", segment(200, 1000, 1000), (0, 0), (0, 0)),
            ("cannot be compacted", segment(300, 1000, 500), (whole, 0), (0, 0)),
            (
                "in the cold tier",
                SegmentStats { tier: SegmentTier::Cold, ..segment(1, 1000, 0) },
                (0, 0),
                (0, 0),
            ),
            (
                "in an upstream",
                SegmentStats { tier: SegmentTier::Upstream, ..segment(1, 1000, 500) },
                (0, 0),
                (0, 0),
            ),
        ];
        for (name, facts, with, without) in cases {
            let both = |found: SpaceProspects| (found.spillable_bytes, found.dead_bytes);
            assert_eq!(
                both(prospects(&[facts], u64::MAX, u64::MAX)),
                with,
                "{name}, with space in lower tiers"
            );
            assert_eq!(both(prospects(&[facts], 0, u64::MAX)), without, "{name}, without");
        }
        let no_room_to_move = prospects(&[segment(1, 1000, 500)], 0, 499);
        assert_eq!(no_room_to_move, SpaceProspects::default());
    }

    #[test]
    fn spillable_bytes_are_limited_by_lower_tiers() {
        let all = [segment(1, 1000, 1000), segment(2, 1000, 1000), segment(3, 1000, 1000)];
        let whole = 1000 + SEGMENT_HEADER_BYTES;
        assert_eq!(prospects(&all, 2 * whole + 1, 0).spillable_bytes, 2 * whole);
    }

    #[test]
    fn a_shortage_is_temporary_while_enough_can_be_freed() {
        let some = SpaceProspects { in_hand_bytes: 1, spillable_bytes: 2, dead_bytes: 4, is_stalled: false };
        assert!(some.can_free(0) && some.can_free(7) && !some.can_free(8));
        assert!(!SpaceProspects { is_stalled: true, ..some }.can_free(1));
        assert!(!SpaceProspects::default().can_free(0), "nothing becomes free, however small the request");
    }

    #[test]
    fn work_that_frees_nothing_for_long_is_stalled() {
        let (mut progress, begun) = (ShortageProgress::default(), Instant::now());
        // Returns the result of the last scan in a range of seconds.
        let mut looks = |seconds: std::ops::Range<u64>, freed| {
            seconds.fold(false, |_, at| progress.is_stalled(begun + Duration::from_secs(at), freed))
        };
        assert!(!looks(0..30, 0));
        assert!(looks(30..32, 0));
        assert!(!looks(32..61, 1), "something became free");
        assert!(looks(61..64, 1));
        assert!(!looks(74..75, 1), "another shortage");
    }
}

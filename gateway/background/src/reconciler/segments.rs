//! Turns objects to be spilled into orders by segment. Pure.
//!
//! A hot segment with at least half of its live bytes to be spilled is spilled, after its other records were
//! appended elsewhere. From other hot segments, the objects to be spilled are gathered in segments of their
//! own, which the next pass spills. In the cold tier, only segments whose live bytes are all to be spilled
//! are moved on. An object that a rule pins does not move with its segment. The number of segments in one
//! order is limited.

use mlgw_common::limits::{MOVE_REQUEST_SEGMENTS_MAX, PASS_OBJECTS_MAX};
use mlgw_common::{BodyId, SegmentId};
use mlgw_formats::decision_entry::RuleName;
use mlgw_segments::hot::{PlacingOrder, RuleSpill};
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

/// Facts known about a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SegmentSnapshot {
    /// True if the segment is in the hot tier.
    pub(super) is_hot: bool,
    /// True if the segment is still being written.
    pub(super) is_open: bool,
    /// True if a rule pins an object in the segment.
    pub(super) is_pinned: bool,
    /// Bytes of its records that something refers to.
    pub(super) live_bytes: u64,
}

/// Destination of a spill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SpillDestination {
    /// The next lower tier.
    NextTier,
    /// An upstream.
    Upstream,
}

/// Objects to be spilled to one destination.
#[derive(Clone, Debug, Default)]
pub(super) struct SpillCandidates {
    bodies: HashSet<BodyId>,
    /// Bytes of records to be spilled, by segment and rule.
    segments: BTreeMap<SegmentId, BTreeMap<Arc<str>, u64>>,
}

/// An order and its segments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SegmentOrder {
    pub(super) order: PlacingOrder,
    pub(super) segments: Vec<SegmentId>,
    /// Estimated size of the new segments if they may be undersized.
    pub(super) small_bytes: Option<u64>,
}

impl SpillCandidates {
    /// Returns true if nothing is to be spilled.
    pub(super) fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// Returns true if no more objects can be added.
    pub(super) fn is_full(&self) -> bool {
        self.bodies.len() >= PASS_OBJECTS_MAX
    }

    /// Adds a number of bytes of a body in a segment.
    pub(super) fn add(&mut self, body: BodyId, segment: SegmentId, bytes: u64, rule: &Arc<str>) {
        self.bodies.insert(body);
        *self.segments.entry(segment).or_default().entry(Arc::clone(rule)).or_default() += bytes;
    }

    /// Returns the orders, one for each rule and kind, each with at most [`MOVE_REQUEST_SEGMENTS_MAX`]
    /// segments.
    pub(super) fn orders(
        self,
        destination: SpillDestination,
        snapshot_of: impl Fn(SegmentId) -> Option<SegmentSnapshot>,
    ) -> Vec<SegmentOrder> {
        let bodies = Arc::new(self.bodies);
        let mut by_rule = BTreeMap::<(Arc<str>, bool), (Vec<SegmentId>, u64, bool)>::new();
        for (segment, rules) in self.segments {
            let Some(now) = snapshot_of(segment) else { continue };
            let spill_bytes: u64 = rules.values().sum();
            let Some((rule, _)) = rules.into_iter().max_by_key(|(_, bytes)| *bytes) else { continue };
            let is_spilled_whole =
                if now.is_hot { spill_bytes >= now.live_bytes / 2 } else { spill_bytes >= now.live_bytes };
            let spills_segment = is_spilled_whole && !now.is_pinned;
            if !spills_segment && !now.is_hot {
                continue;
            }
            let (segments, bytes, may_be_small) = by_rule.entry((rule, spills_segment)).or_default();
            if segments.len() < MOVE_REQUEST_SEGMENTS_MAX {
                segments.push(segment);
                *bytes += spill_bytes;
                *may_be_small |= now.is_open || !spills_segment;
            }
        }
        let ordered = |((rule, spills_segment), (segments, bytes, may_be_small)): (
            (Arc<str>, bool),
            (Vec<_>, u64, bool),
        )| {
            assert!(
                (1..=MOVE_REQUEST_SEGMENTS_MAX).contains(&segments.len()),
                "an order has segments, and no more than one order may have"
            );
            let (rule, bodies) = (RuleName::new(&rule), Arc::clone(&bodies));
            let spill = RuleSpill { segments: segments.clone(), bodies, rule };
            let order = if spills_segment {
                let to_upstream = destination == SpillDestination::Upstream;
                PlacingOrder::Spill { leaving: spill, to_upstream }
            } else {
                PlacingOrder::Gather(spill)
            };
            SegmentOrder { order, segments, small_bytes: may_be_small.then_some(bytes) }
        };
        by_rule.into_iter().map(ordered).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::{SegmentOrder, SegmentSnapshot, SpillCandidates, SpillDestination};
    use mlgw_common::limits::MOVE_REQUEST_SEGMENTS_MAX;
    use mlgw_common::{BodyId, SegmentId};
    use mlgw_segments::hot::PlacingOrder;
    use std::sync::Arc;

    const HOT: SegmentSnapshot =
        SegmentSnapshot { is_hot: true, is_open: false, is_pinned: false, live_bytes: 100 };

    fn spill_candidates(of: &[(u64, u64, u64, &str)]) -> SpillCandidates {
        let mut candidates = SpillCandidates::default();
        for (body, segment, bytes, rule) in of {
            candidates.add(BodyId(*body), SegmentId(*segment), *bytes, &Arc::from(*rule));
        }
        candidates
    }

    fn order_rows(ordered: &[SegmentOrder]) -> Vec<(bool, Vec<u64>, Option<u64>)> {
        let row = |one: &SegmentOrder| {
            let is_spill = matches!(one.order, PlacingOrder::Spill { .. });
            (is_spill, one.segments.iter().map(|segment| segment.0).collect(), one.small_bytes)
        };
        ordered.iter().map(row).collect()
    }

    #[test]
    fn the_smaller_part_of_a_segment_is_appended_elsewhere() {
        let all = spill_candidates(&[(1, 1, 50, "r"), (2, 2, 49, "r"), (3, 3, 60, "r"), (4, 4, 60, "r")]);
        let look = |segment: SegmentId| match segment.0 {
            3 => Some(SegmentSnapshot { is_pinned: true, ..HOT }),
            4 => None,
            _ => Some(HOT),
        };
        let orders = all.orders(SpillDestination::NextTier, look);
        assert_eq!(order_rows(&orders), [(false, vec![2, 3], Some(109)), (true, vec![1], None)]);
    }

    #[test]
    fn only_whole_cold_segments_move_on_and_open_ones_count_as_small() {
        let all = spill_candidates(&[(1, 1, 99, "r"), (2, 2, 100, "r"), (3, 3, 80, "r")]);
        let look = |segment: SegmentId| {
            let cold = SegmentSnapshot { is_hot: false, ..HOT };
            Some(if segment.0 == 3 { SegmentSnapshot { is_open: true, ..HOT } } else { cold })
        };
        assert_eq!(
            order_rows(&all.orders(SpillDestination::Upstream, look)),
            [(true, vec![2, 3], Some(180))]
        );
    }

    #[test]
    fn each_rule_has_its_orders_and_none_is_too_large() {
        let mut all = spill_candidates(&[(1, 1, 30, "a"), (2, 1, 40, "b")]);
        for segment in 10..200 {
            all.add(BodyId(segment), SegmentId(segment), 90, &Arc::from("a"));
        }
        let orders = all.orders(SpillDestination::NextTier, |_| Some(HOT));
        let rule = |one: &SegmentOrder| match &one.order {
            PlacingOrder::Spill { leaving, .. } => leaving.rule.as_str().to_owned(),
            _ => String::new(),
        };
        assert_eq!(orders.iter().map(rule).collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(
            (orders[0].segments.len(), &*orders[1].segments),
            (MOVE_REQUEST_SEGMENTS_MAX, &[SegmentId(1)][..])
        );
    }
}

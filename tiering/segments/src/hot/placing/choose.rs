//! Selects the segments to move. Pure.

use mlgw_common::ids::SegmentId;

use super::job::SegmentMove;
use super::{PlacingOrder, PlacingSettings};
use mlgw_common::SegmentTier;

/// State of a segment as seen by a pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::hot) struct PlacingCandidate {
    pub(in crate::hot) id: SegmentId,
    /// Tier of the segment.
    pub(in crate::hot) tier: SegmentTier,
    /// Length of the segment's file.
    pub(in crate::hot) bytes: u64,
    /// True if the segment is sealed, has no appends in flight, and is not claimed by compaction.
    pub(in crate::hot) is_idle: bool,
    /// True if the segment is referenced, by enough bytes that compaction will not empty it.
    pub(in crate::hot) is_worth_keeping: bool,
    /// True if the segment has live bytes and so many dead bytes that it should be emptied; for segments at
    /// an upstream.
    pub(in crate::hot) is_mostly_dead: bool,
    /// True if a rule pins something in the segment.
    pub(in crate::hot) is_pinned: bool,
    /// Read heat of the segment.
    pub(in crate::hot) heat: f64,
}

/// Fill level of a tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::hot) struct TierFill {
    /// Bytes of the tier's segments.
    pub(in crate::hot) used_bytes: u64,
    /// Bytes that the tier can still take.
    pub(in crate::hot) room_bytes: u64,
}

/// The available tiers, and the bytes that must leave them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::hot) struct TierPressure {
    /// True if there is a cold tier.
    pub(in crate::hot) has_cold: bool,
    /// True if segments may be spilled to an upstream.
    pub(in crate::hot) has_upstream: bool,
    /// Bytes that must leave the hot tier.
    pub(in crate::hot) hot_excess_bytes: u64,
    /// Bytes that must leave the cold tier.
    pub(in crate::hot) cold_excess_bytes: u64,
    /// Bytes that the hot tier can still take.
    pub(in crate::hot) hot_room_bytes: u64,
}

impl TierPressure {
    /// The tier below the hot one.
    fn tier_below_hot(self) -> Option<SegmentTier> {
        if self.has_cold {
            Some(SegmentTier::Cold)
        } else {
            self.has_upstream.then_some(SegmentTier::Upstream)
        }
    }
}

impl TierFill {
    /// Bytes that must leave the tier; 0 while it is below its high watermark.
    pub(in crate::hot) fn excess_bytes(self, settings: PlacingSettings) -> u64 {
        let all = u128::from(self.used_bytes) + u128::from(self.room_bytes);
        let share = |percent: u64| (all * u128::from(percent) / 100) as u64;
        if self.used_bytes <= share(settings.high_percent) {
            return 0;
        }
        self.used_bytes - share(settings.low_percent).min(self.used_bytes)
    }
}

/// Returns the segments to move, in order. With an order: the segments that it selects. Otherwise, for each
/// tier that is too full, its segments with the fewest reads per byte, to the tier below, until enough bytes
/// are chosen, the oldest of equals first; then mostly dead segments at upstreams, as far as they fit, so
/// that compaction can empty them.
pub(in crate::hot) fn choose_moves(
    facts: &[PlacingCandidate],
    order: Option<&PlacingOrder>,
    aim: TierPressure,
) -> Vec<(SegmentId, SegmentMove)> {
    let movable =
        |tier: SegmentTier| facts.iter().filter(move |segment| segment.tier == tier && segment.is_idle);
    let promoted =
        |segment: &PlacingCandidate| (segment.id, SegmentMove { from: segment.tier, to: SegmentTier::Hot });
    match (order, aim.tier_below_hot()) {
        (Some(PlacingOrder::DrainCold), _) => movable(SegmentTier::Cold).map(promoted).collect(),
        (Some(PlacingOrder::DrainUpstream), _) => movable(SegmentTier::Upstream).map(promoted).collect(),
        (Some(PlacingOrder::Promote { segments: wanted, .. }), _) => {
            let lower = movable(SegmentTier::Cold).chain(movable(SegmentTier::Upstream));
            lower.filter(|segment| wanted.contains(&segment.id)).map(promoted).collect()
        }
        (Some(PlacingOrder::Spill { leaving, to_upstream }), Some(below)) => {
            let to = if *to_upstream && aim.has_upstream { SegmentTier::Upstream } else { below };
            let lower = if to == SegmentTier::Upstream { SegmentTier::Cold } else { SegmentTier::Hot };
            let all = movable(SegmentTier::Hot)
                .chain(movable(SegmentTier::Cold).filter(|_| lower == SegmentTier::Cold));
            let leaves = all.filter(|segment| !segment.is_pinned && leaving.segments.contains(&segment.id));
            leaves.map(|segment| (segment.id, SegmentMove { from: segment.tier, to })).collect()
        }
        // There is no lower tier, or the order does not move whole segments.
        (Some(PlacingOrder::Spill { .. }), None) | (Some(PlacingOrder::Gather(_)), _) => Vec::new(),
        (Some(PlacingOrder::DrainHot), Some(below)) => coldest(movable(SegmentTier::Hot), u64::MAX, below),
        (Some(PlacingOrder::DrainHot), None) => Vec::new(),
        (None, below) => {
            let worth = |tier| movable(tier).filter(|segment| segment.is_worth_keeping && !segment.is_pinned);
            let mut chosen = Vec::new();
            if let Some(below) = below {
                chosen.extend(coldest(worth(SegmentTier::Hot), aim.hot_excess_bytes, below));
            }
            if aim.has_cold && aim.has_upstream {
                chosen.extend(coldest(
                    worth(SegmentTier::Cold),
                    aim.cold_excess_bytes,
                    SegmentTier::Upstream,
                ));
            }
            chosen.extend(mostly_dead_that_fit(movable(SegmentTier::Upstream), aim).map(promoted));
            chosen
        }
    }
}

/// Returns mostly dead segments while they fit into half of the hot tier's free space.
fn mostly_dead_that_fit<'f>(
    of: impl Iterator<Item = &'f PlacingCandidate>,
    aim: TierPressure,
) -> impl Iterator<Item = &'f PlacingCandidate> {
    let mut room = if aim.hot_excess_bytes == 0 { aim.hot_room_bytes / 2 } else { 0 };
    of.filter(|segment| segment.is_mostly_dead).take_while(move |segment| {
        let fits = segment.bytes <= room;
        room = room.saturating_sub(segment.bytes);
        fits
    })
}

fn coldest<'f>(
    of: impl Iterator<Item = &'f PlacingCandidate>,
    bytes: u64,
    to: SegmentTier,
) -> Vec<(SegmentId, SegmentMove)> {
    let mut by_heat: Vec<&PlacingCandidate> = of.collect();
    let density = |segment: &PlacingCandidate| segment.heat / segment.bytes.max(1) as f64;
    by_heat.sort_by(|a, b| density(a).total_cmp(&density(b)).then(a.id.cmp(&b.id)));
    let mut left = bytes;
    let enough = |segment: &&&PlacingCandidate| {
        let wanted = left > 0;
        left = left.saturating_sub(segment.bytes);
        wanted
    };
    let spilled = |segment: &&PlacingCandidate| (segment.id, SegmentMove { from: segment.tier, to });
    by_heat.iter().take_while(enough).map(spilled).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hot::RuleSpill;
    use mlgw_formats::decision_entry::RuleName;
    use mlgw_formats::decision_words::DecisionReason;
    use std::sync::Arc;

    fn facts(id: u64, tier: SegmentTier, heat: f64) -> PlacingCandidate {
        PlacingCandidate {
            id: SegmentId(id),
            tier,
            bytes: 100,
            is_idle: true,
            is_worth_keeping: true,
            is_mostly_dead: false,
            is_pinned: false,
            heat,
        }
    }

    fn chosen(facts: &[PlacingCandidate], order: Option<&PlacingOrder>, excess: u64) -> Vec<u64> {
        let aim = TierPressure { has_cold: true, hot_excess_bytes: excess, ..TierPressure::default() };
        choose_moves(facts, order, aim).into_iter().map(|(segment, _)| segment.0).collect()
    }

    #[test]
    fn segments_with_the_fewest_reads_per_byte_go_first_until_enough() {
        let long = PlacingCandidate { bytes: 1000, ..facts(4, SegmentTier::Hot, 2.0) };
        let all = [
            facts(1, SegmentTier::Hot, 1.0),
            facts(2, SegmentTier::Hot, 0.0),
            facts(3, SegmentTier::Hot, 0.0),
            long,
            facts(5, SegmentTier::Cold, 0.0),
        ];
        assert_eq!(chosen(&all, None, 0), [0u64; 0]);
        assert_eq!(chosen(&all, None, 1), [2]);
        assert_eq!(chosen(&all, None, 101), [2, 3]);
        assert_eq!(chosen(&all, None, 201), [2, 3, 4]);
        assert_eq!(chosen(&all, None, 5000), [2, 3, 4, 1]);
    }

    #[test]
    fn busy_segments_and_those_to_be_emptied_stay() {
        let busy = PlacingCandidate { is_idle: false, ..facts(1, SegmentTier::Hot, 0.0) };
        let dying = PlacingCandidate { is_worth_keeping: false, ..facts(2, SegmentTier::Hot, 0.0) };
        assert_eq!(chosen(&[busy, dying], None, 5000), [0u64; 0]);
        assert_eq!(chosen(&[busy, dying], Some(&PlacingOrder::DrainHot), 0), [2]);
    }

    #[test]
    fn an_order_has_precedence_over_pressure() {
        let all = [
            facts(1, SegmentTier::Hot, 0.0),
            facts(2, SegmentTier::Cold, 0.0),
            facts(3, SegmentTier::Cold, 9.0),
        ];
        assert_eq!(chosen(&all, Some(&PlacingOrder::DrainCold), 5000), [2, 3]);
        let segments = vec![SegmentId(3), SegmentId(1), SegmentId(9)];
        let promote = PlacingOrder::Promote { segments, why: DecisionReason::Requested.into() };
        let aim = TierPressure { has_cold: true, ..TierPressure::default() };
        assert_eq!(
            choose_moves(&all, Some(&promote), aim),
            [(SegmentId(3), SegmentMove { from: SegmentTier::Cold, to: SegmentTier::Hot })]
        );
        let down = SegmentMove { from: SegmentTier::Hot, to: SegmentTier::Cold };
        assert_eq!(choose_moves(&all, Some(&PlacingOrder::DrainHot), aim), [(SegmentId(1), down)]);
        assert_eq!(
            choose_moves(&all, Some(&PlacingOrder::DrainHot), TierPressure::default()),
            [],
            "there is no target tier"
        );
    }

    #[test]
    fn a_rule_spills_to_the_lowest_requested_tier_that_exists() {
        let all = [
            facts(1, SegmentTier::Hot, 9.0),
            facts(2, SegmentTier::Cold, 0.0),
            facts(3, SegmentTier::Hot, 0.0),
        ];
        let spill = |to_upstream| {
            let segments = vec![SegmentId(1), SegmentId(2)];
            let leaving = RuleSpill { segments, bodies: Arc::default(), rule: RuleName::new("down") };
            PlacingOrder::Spill { leaving, to_upstream }
        };
        let way = |id, from, to| (SegmentId(id), SegmentMove { from, to });
        let cold = TierPressure { has_cold: true, ..TierPressure::default() };
        let both = TierPressure { has_upstream: true, ..cold };
        assert_eq!(
            choose_moves(&all, Some(&spill(false)), both),
            [way(1, SegmentTier::Hot, SegmentTier::Cold)]
        );
        assert_eq!(
            choose_moves(&all, Some(&spill(true)), both),
            [
                way(1, SegmentTier::Hot, SegmentTier::Upstream),
                way(2, SegmentTier::Cold, SegmentTier::Upstream)
            ]
        );
        assert_eq!(
            choose_moves(&all, Some(&spill(true)), cold),
            [way(1, SegmentTier::Hot, SegmentTier::Cold)]
        );
        assert_eq!(choose_moves(&all, Some(&spill(true)), TierPressure::default()), []);
    }

    #[test]
    fn a_pinned_segment_is_spilled_only_by_a_drain() {
        let all = [
            PlacingCandidate { is_pinned: true, ..facts(1, SegmentTier::Hot, 0.0) },
            facts(2, SegmentTier::Hot, 9.0),
        ];
        assert_eq!(chosen(&all, None, 5000), [2]);
        let segments = vec![SegmentId(1)];
        let leaving = RuleSpill { segments, bodies: Arc::default(), rule: RuleName::new("down") };
        assert_eq!(chosen(&all, Some(&PlacingOrder::Spill { leaving, to_upstream: false }), 0), [0u64; 0]);
        assert_eq!(chosen(&all, Some(&PlacingOrder::DrainHot), 0), [1, 2]);
    }

    #[test]
    fn each_tier_spills_to_the_next_one_below() {
        let all = [
            facts(1, SegmentTier::Hot, 0.0),
            facts(2, SegmentTier::Cold, 0.0),
            facts(3, SegmentTier::Upstream, 0.0),
        ];
        let full = TierPressure { hot_excess_bytes: 1, cold_excess_bytes: 1, ..TierPressure::default() };
        let way = |id, from, to| (SegmentId(id), SegmentMove { from, to });
        assert_eq!(choose_moves(&all, None, full), []);
        let upstream = TierPressure { has_upstream: true, ..full };
        assert_eq!(choose_moves(&all, None, upstream), [way(1, SegmentTier::Hot, SegmentTier::Upstream)]);
        assert_eq!(
            choose_moves(&all, None, TierPressure { has_cold: true, ..full }),
            [way(1, SegmentTier::Hot, SegmentTier::Cold)]
        );
        let both = TierPressure { has_cold: true, ..upstream };
        assert_eq!(
            choose_moves(&all, None, both),
            [way(1, SegmentTier::Hot, SegmentTier::Cold), way(2, SegmentTier::Cold, SegmentTier::Upstream)]
        );
        assert_eq!(
            choose_moves(&all, Some(&PlacingOrder::DrainUpstream), both),
            [way(3, SegmentTier::Upstream, SegmentTier::Hot)]
        );
    }

    #[test]
    fn mostly_dead_upstream_segments_are_promoted_while_they_fit() {
        let dead = |id| PlacingCandidate { is_mostly_dead: true, ..facts(id, SegmentTier::Upstream, 0.0) };
        let all = [dead(1), facts(2, SegmentTier::Upstream, 0.0), dead(3), dead(4)];
        let chosen = |room, excess| {
            let aim =
                TierPressure { hot_room_bytes: room, hot_excess_bytes: excess, ..TierPressure::default() };
            choose_moves(&all, None, aim).into_iter().map(|(segment, _)| segment.0).collect::<Vec<_>>()
        };
        assert_eq!(chosen(400, 0), [1, 3], "half of the free space is left for writes");
        assert_eq!((chosen(199, 0), chosen(400, 1)), (vec![], vec![]));
    }

    #[test]
    fn a_spill_goes_from_the_high_to_the_low_watermark() {
        let settings = PlacingSettings { high_percent: 85, low_percent: 80, ..PlacingSettings::default() };
        let excess = |used_bytes, room_bytes| TierFill { used_bytes, room_bytes }.excess_bytes(settings);
        assert_eq!((excess(850, 150), excess(851, 149), excess(1000, 0), excess(0, 0)), (0, 51, 200, 0));
        assert_eq!(excess(u64::MAX / 2, 0), u64::MAX / 2 - (u64::MAX / 2) / 100 * 80 - 5, "no overflow");
    }
}

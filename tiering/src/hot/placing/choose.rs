//! Which segments are moved next: a pure decision.

use mlgw_common::ids::SegmentId;

use super::job::Way;
use super::{Order, PlacingSettings};
use crate::hot::catalogue::{COLD, HOT};

/// What is known of a segment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::hot) struct PlacedFacts {
    pub(in crate::hot) id: SegmentId,
    /// The tier that it is in.
    pub(in crate::hot) tier: u32,
    /// Length of its file.
    pub(in crate::hot) bytes: u64,
    /// Whether it is sealed, nothing of it is in flight, and compaction is not at it.
    pub(in crate::hot) at_rest: bool,
    /// Whether anything refers to it, and not so little that compaction will empty it.
    pub(in crate::hot) worth_keeping: bool,
    /// How much it is read.
    pub(in crate::hot) heat: f64,
}

/// How full the hot tier is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::hot) struct Fill {
    /// Bytes of its segments.
    pub(in crate::hot) used_bytes: u64,
    /// Bytes that it can still take.
    pub(in crate::hot) room_bytes: u64,
}

impl Fill {
    /// Bytes that are to go, if it is so full that some are.
    pub(in crate::hot) fn excess_bytes(self, settings: PlacingSettings) -> u64 {
        let all = u128::from(self.used_bytes) + u128::from(self.room_bytes);
        let share = |percent: u64| (all * u128::from(percent) / 100) as u64;
        if self.used_bytes <= share(settings.high_percent) {
            return 0;
        }
        self.used_bytes - share(settings.low_percent).min(self.used_bytes)
    }
}

/// The segments to be moved, in this order: what was asked for, or else, when the hot tier is too full, those of it that are
/// read least for their length until enough is chosen, the oldest of equals first.
pub(in crate::hot) fn choose(
    facts: &[PlacedFacts],
    order: Option<&Order>,
    excess_bytes: u64,
) -> Vec<(SegmentId, Way)> {
    let movable = |tier: u32| facts.iter().filter(move |segment| segment.tier == tier && segment.at_rest);
    match order {
        Some(Order::DrainCold) => movable(COLD).map(|segment| (segment.id, Way::Promote)).collect(),
        Some(Order::Promote(wanted)) => {
            let asked = movable(COLD).filter(|segment| wanted.contains(&segment.id));
            asked.map(|segment| (segment.id, Way::Promote)).collect()
        }
        Some(Order::DrainHot) => coldest(movable(HOT), u64::MAX),
        None => coldest(movable(HOT).filter(|segment| segment.worth_keeping), excess_bytes),
    }
}

fn coldest<'f>(of: impl Iterator<Item = &'f PlacedFacts>, bytes: u64) -> Vec<(SegmentId, Way)> {
    let mut by_heat: Vec<&PlacedFacts> = of.collect();
    let density = |segment: &PlacedFacts| segment.heat / segment.bytes.max(1) as f64;
    by_heat.sort_by(|a, b| density(a).total_cmp(&density(b)).then(a.id.cmp(&b.id)));
    let mut left = bytes;
    let enough = |segment: &&&PlacedFacts| {
        let wanted = left > 0;
        left = left.saturating_sub(segment.bytes);
        wanted
    };
    by_heat.iter().take_while(enough).map(|segment| (segment.id, Way::Spill)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(id: u64, tier: u32, heat: f64) -> PlacedFacts {
        PlacedFacts { id: SegmentId(id), tier, bytes: 100, at_rest: true, worth_keeping: true, heat }
    }

    fn chosen(facts: &[PlacedFacts], order: Option<&Order>, excess: u64) -> Vec<u64> {
        choose(facts, order, excess).into_iter().map(|(segment, _)| segment.0).collect()
    }

    #[test]
    fn what_is_read_least_for_its_length_goes_first_and_no_more_than_enough() {
        let long = PlacedFacts { bytes: 1000, ..facts(4, HOT, 2.0) };
        let all = [facts(1, HOT, 1.0), facts(2, HOT, 0.0), facts(3, HOT, 0.0), long, facts(5, COLD, 0.0)];
        assert_eq!(chosen(&all, None, 0), [0u64; 0]);
        assert_eq!(chosen(&all, None, 1), [2]);
        assert_eq!(chosen(&all, None, 101), [2, 3]);
        assert_eq!(chosen(&all, None, 201), [2, 3, 4]);
        assert_eq!(chosen(&all, None, 5000), [2, 3, 4, 1]);
    }

    #[test]
    fn what_is_busy_or_will_be_emptied_stays() {
        let busy = PlacedFacts { at_rest: false, ..facts(1, HOT, 0.0) };
        let dying = PlacedFacts { worth_keeping: false, ..facts(2, HOT, 0.0) };
        assert_eq!(chosen(&[busy, dying], None, 5000), [0u64; 0]);
        assert_eq!(chosen(&[busy, dying], Some(&Order::DrainHot), 0), [2]);
    }

    #[test]
    fn an_order_comes_before_pressure() {
        let all = [facts(1, HOT, 0.0), facts(2, COLD, 0.0), facts(3, COLD, 9.0)];
        assert_eq!(chosen(&all, Some(&Order::DrainCold), 5000), [2, 3]);
        let promote = Order::Promote(vec![SegmentId(3), SegmentId(1), SegmentId(9)]);
        assert_eq!(choose(&all, Some(&promote), 0), [(SegmentId(3), Way::Promote)]);
        assert_eq!(choose(&all, Some(&Order::DrainHot), 0), [(SegmentId(1), Way::Spill)]);
    }

    #[test]
    fn it_spills_from_the_high_mark_down_to_the_low_one() {
        let settings = PlacingSettings { high_percent: 85, low_percent: 80, ..PlacingSettings::default() };
        let excess = |used_bytes, room_bytes| Fill { used_bytes, room_bytes }.excess_bytes(settings);
        assert_eq!((excess(850, 150), excess(851, 149), excess(1000, 0), excess(0, 0)), (0, 51, 200, 0));
        assert_eq!(excess(u64::MAX / 2, 0), u64::MAX / 2 - (u64::MAX / 2) / 100 * 80 - 5, "no overflow");
    }
}

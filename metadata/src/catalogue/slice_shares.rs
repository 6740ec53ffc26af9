//! Decides how a quota is divided among object groups. Pure: amounts of one quantity go in, those of slices
//! come out.
//!
//! Each group gets its usage and a share of what no group uses. The shares are equal, except for the group in
//! which a write needs more. Slices never exceed the quota together, unless the usage does.

use mlgw_formats::schema::{Measure, Quota, SliceState};

/// Least mean share for which a group with little room is reason enough to divide a quota again: 1 MiB, or 16
/// objects. A write that needs room divides a smaller rest.
const fn mean_share_min(measure: Measure) -> u64 {
    match measure {
        Measure::Bytes => 1 << 20,
        Measure::Objects => 16,
    }
}

/// Fraction of the mean share below which a group has little room.
const LITTLE_ROOM_DIVISOR: u64 = 4;

/// Need of a write in the group at an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NeedAt {
    /// Index of the group.
    pub(super) index: usize,
    /// Amount that is added there.
    pub(super) amount: u64,
}

/// Returns the slices of groups with this usage. They exceed the limit together only if the usage does.
pub(super) fn shares(limit: u64, used: &[u64], need: Option<NeedAt>) -> Vec<u64> {
    assert!(need.is_none_or(|need| need.index < used.len()), "a write is in one of the groups");
    let free = limit.saturating_sub(sum(used));
    let count = used.len() as u64;
    let need = need.filter(|need| need.amount <= free).unwrap_or(NeedAt { index: 0, amount: 0 });
    let others = match count {
        0 | 1 => 0,
        count => (free - need.amount.max(free / count)) / (count - 1),
    };
    let own = free - others * count.saturating_sub(1);
    let share = |index| if index == need.index { own } else { others };
    used.iter().enumerate().map(|(index, used)| used.saturating_add(share(index))).collect()
}

/// Returns the slices that grow from `held` towards `targets` within a budget, that at `first` before the
/// others. They exceed the budget together only if the slices before did.
pub(super) fn grown(budget: u64, held: &[u64], targets: &[u64], first: usize) -> Vec<u64> {
    assert_eq!(held.len(), targets.len(), "each group has a target");
    let mut left = budget.saturating_sub(sum(held));
    let mut slices = held.to_vec();
    let others = (0..held.len()).filter(|index| *index != first);
    for index in [first].into_iter().chain(others).filter(|index| *index < held.len()) {
        let growth = left.min(targets[index].saturating_sub(held[index]));
        slices[index] += growth;
        left -= growth;
    }
    assert!(sum(&slices) <= budget.max(sum(held)), "slices grow within their budget");
    slices
}

/// Returns true if the slices of a quota should be changed: some are missing, they do not add up to the
/// quota, or a group has little room although others have much.
pub(super) fn is_due(quota: &Quota, groups: &[SliceState]) -> bool {
    Measure::ALL
        .into_iter()
        .any(|measure| quota.limit(measure).is_some_and(|limit| is_measure_due(measure, limit, groups)))
}

fn is_measure_due(measure: Measure, limit: u64, groups: &[SliceState]) -> bool {
    let slices: Option<Vec<u64>> = groups.iter().map(|group| group.limits.limit(measure)).collect();
    let Some(slices) = slices else { return true };
    let used: Vec<u64> = groups.iter().map(|group| group.used(measure)).collect();
    let held: Vec<u64> = slices.iter().zip(&used).map(|(slice, used)| *slice.max(used)).collect();
    let has_room = slices.iter().zip(&used).any(|(slice, used)| slice > used);
    let (sum_held, mean_share) = (sum(&held), limit.saturating_sub(sum(&used)) / groups.len().max(1) as u64);
    if sum_held != limit {
        return sum_held < limit || has_room;
    }
    let has_little = |(held, used): (&u64, &u64)| held - used < mean_share / LITTLE_ROOM_DIVISOR;
    mean_share >= mean_share_min(measure) && held.iter().zip(&used).any(has_little)
}

/// Returns the sum of amounts.
pub(super) fn sum(amounts: &[u64]) -> u64 {
    amounts.iter().fold(0, |sum, amount| sum.saturating_add(*amount))
}

#[cfg(test)]
mod tests {
    use super::{NeedAt, grown, is_due, shares, sum};
    use mlgw_formats::schema::{Quota, SliceState};
    use proptest::prelude::{Strategy, any, prop};
    use proptest::{prop_assert, prop_assert_eq, proptest};

    fn amounts() -> impl Strategy<Value = Vec<u64>> {
        prop::collection::vec(prop::num::u64::ANY.prop_map(|n| n % 1000), 1..7)
    }

    proptest! {
        #[test]
        fn shares_use_up_the_limit_and_meet_a_need_that_fits(
            limit in 0u64..4000, used in amounts(), at in any::<usize>(), amount in 0u64..1000
        ) {
            let index = at % used.len();
            let slices = shares(limit, &used, Some(NeedAt { index, amount }));
            prop_assert_eq!(sum(&slices), limit.max(sum(&used)));
            prop_assert!(slices.iter().zip(&used).all(|(slice, used)| slice >= used));
            if sum(&used) + amount <= limit {
                prop_assert!(slices[index] >= used[index] + amount);
            }
            let even = shares(limit, &used, None);
            let room: Vec<u64> = even.iter().zip(&used).map(|(slice, used)| slice - used).collect();
            let most = room.iter().max().unwrap() - room.iter().min().unwrap();
            prop_assert!(most < used.len() as u64, "{room:?}");
        }

        #[test]
        fn growing_slices_stay_within_the_budget_and_reach_their_targets_if_it_suffices(
            budget in 0u64..5000, held in amounts(), targets in amounts(), first in 0usize..8
        ) {
            let targets: Vec<u64> = targets.iter().copied().cycle().take(held.len()).collect();
            let slices = grown(budget, &held, &targets, first);
            prop_assert!(sum(&slices) <= budget.max(sum(&held)));
            for ((slice, held), target) in slices.iter().zip(&held).zip(&targets) {
                prop_assert!(slice >= held && *slice <= *held.max(target));
            }
            let pairs = held.iter().zip(&targets);
            let wanted: Vec<u64> = pairs.map(|(held, target)| *held.max(target)).collect();
            if sum(&wanted) <= budget {
                prop_assert_eq!(slices, wanted);
            } else if let (Some(slice), Some(wanted)) = (slices.get(first), wanted.get(first)) {
                let most = held[first] + budget.saturating_sub(sum(&held));
                prop_assert_eq!(*slice, (*wanted).min(most), "the first one comes before the others");
            }
        }

        #[test]
        fn a_quota_is_not_divided_again_as_long_as_nothing_changes(
            limit in 0u64..1 << 32, used in amounts()
        ) {
            let quota = Quota { bytes: Some(limit), objects: None };
            let slices = shares(limit, &used, None);
            let states: Vec<SliceState> = slices.iter().zip(&used).map(|(slice, used)| {
                let limits = Quota { bytes: Some(*slice), objects: None };
                SliceState { limits, used_bytes: *used, used_objects: 0 }
            }).collect();
            prop_assert!(!is_due(&quota, &states));
        }
    }

    #[test]
    fn a_division_is_due_when_slices_are_missing_or_do_not_fit() {
        const MIB: u64 = 1 << 20;
        let quota = Quota { bytes: Some(30 * MIB), objects: None };
        let group = |slice: Option<u64>, used: u64| SliceState {
            limits: Quota { bytes: slice.map(|slice| slice * MIB), objects: None },
            used_bytes: used * MIB,
            used_objects: 0,
        };
        let even = [group(Some(10), 0), group(Some(10), 0), group(Some(10), 0)];
        for (groups, due) in [
            (even, false),
            ([group(None, 0), even[1], even[2]], true),
            ([group(Some(9), 0), even[1], even[2]], true),
            ([group(Some(11), 0), even[1], even[2]], true),
            // 21 MiB are left: one third of that is fair, a quarter of it enough.
            ([group(Some(10), 9), even[1], even[2]], true),
            ([group(Some(10), 8), even[1], even[2]], false),
            // The usage is over the quota, and no group may grow.
            ([group(Some(20), 20), group(Some(20), 20), group(Some(5), 5)], false),
            ([group(Some(20), 20), group(Some(20), 19), group(Some(5), 5)], true),
            // Little is left: a write divides it.
            ([group(Some(10), 9), group(Some(10), 10), group(Some(10), 10)], false),
        ] {
            assert_eq!(is_due(&quota, &groups), due, "{groups:?}");
        }
        let objects = Quota { bytes: Some(30 * MIB), objects: Some(5) };
        assert!(is_due(&objects, &even), "a limit was added");
    }
}

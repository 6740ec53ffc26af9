//! Retention: selects the checkpoints of a series that may be deleted.
//!
//! Never selected are the newest complete checkpoint, the one that was completed last (a restarted run counts
//! its steps from zero), and checkpoints that were written to since, because they are in progress. A selected
//! checkpoint may be deleted as far as this module knows; pins and users' marks are checked elsewhere.

use super::Generation;
use super::measure::GoodEnd;
use std::collections::BTreeMap;

/// Checkpoints of a series to keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetentionRule {
    /// Number of newest complete ones; at least one.
    pub last: u32,
    /// Number with the best measure. With 0 the best one by each measure in the names stays.
    pub best: u32,
    /// True if a low measure is good.
    pub lowest_is_best: bool,
    /// Interval, as a multiple of the smallest distance, at which one checkpoint stays, starting with the
    /// first; none with 0. Distances are in steps, or in time where there are no steps. If distances vary,
    /// more stay.
    pub every: u32,
}

/// Measure of a checkpoint of a series.
#[derive(Clone, Copy, Debug)]
pub(super) struct MeasuredGeneration {
    pub(super) value: f64,
    /// Index of the checkpoint.
    pub(super) at: usize,
}

/// Values of one measure in names.
pub(super) struct NamedMeasure {
    pub(super) good: GoodEnd,
    pub(super) values: Vec<MeasuredGeneration>,
}

/// Measures in names, by measure name.
pub(super) type MeasuresByName = BTreeMap<String, NamedMeasure>;

/// Returns the indexes of the checkpoints that may be deleted, oldest first. `generations` are those of a
/// series, oldest first; `spacing` is the smallest interval that was ever seen between two of them.
pub(super) fn deletable(
    generations: &[Generation<'_>],
    keep: RetentionRule,
    spacing: Option<u64>,
    measure: &dyn Fn(&Generation<'_>) -> Option<f64>,
    named: MeasuresByName,
) -> Vec<usize> {
    let complete: Vec<usize> = (0..generations.len()).filter(|at| generations[*at].is_complete()).collect();
    let Some(newest) = complete.last() else { return Vec::new() };
    let latest = complete.iter().max_by_key(|at| generations[**at].written).unwrap_or(newest);
    let written = generations[*latest].last.min(generations[*newest].last);
    let mut is_kept = vec![false; generations.len()];
    is_kept[*newest] = true;
    // Any of several with equal times may be the one that was completed last.
    for at in &complete {
        is_kept[*at] |= generations[*at].written == generations[*latest].written;
    }
    is_kept[newest + 1..].fill(true);
    for (at, generation) in generations.iter().enumerate() {
        is_kept[at] |= !generation.is_complete() && generation.last >= written;
    }
    for at in complete.iter().rev().take(keep.last.max(1) as usize) {
        is_kept[*at] = true;
    }
    let of_names = named.into_values().flat_map(|named| best_by_name(generations, &named));
    for at in best_by_measure(generations, keep, measure).into_iter().chain(of_names) {
        is_kept[at] = true;
    }
    for at in one_per_interval(generations, &complete, keep, spacing) {
        is_kept[at] = true;
    }
    assert!(is_kept[*newest] && is_kept[*latest], "the newest complete checkpoint is never deleted");
    (0..generations.len()).filter(|at| !is_kept[*at]).collect()
}

/// Returns the interval between checkpoints of a series to remember, from the existing ones and the known
/// interval: the smallest, unless it is that of a single checkpoint saved out of turn.
pub(super) fn spacing(
    generations: &[Generation<'_>],
    keep: RetentionRule,
    known: Option<u64>,
) -> Option<u64> {
    let complete: Vec<usize> = (0..generations.len()).filter(|at| generations[*at].is_complete()).collect();
    let mut gaps: Vec<u64> = gaps(generations, &complete, keep).collect();
    gaps.sort_unstable();
    let usual = match gaps[..] {
        [smallest, next, ..] if next <= smallest.saturating_mul(2) => Some(smallest),
        _ => None,
    };
    known.into_iter().chain(usual).min()
}

/// Returns the intervals between existing checkpoints. Between the newest ones, if more than one stays, none
/// was deleted.
fn gaps<'g>(
    generations: &'g [Generation<'_>],
    complete: &'g [usize],
    keep: RetentionRule,
) -> impl Iterator<Item = u64> + 'g {
    let gap = |pair: &[usize]| position(&generations[pair[1]]).abs_diff(position(&generations[pair[0]]));
    complete.windows(2).map(gap).filter(move |gap| *gap > 0 && keep.last > 1)
}

const fn position(one: &Generation<'_>) -> u64 {
    match one.step {
        Some(step) => step,
        None => one.last.at_us,
    }
}

fn best_by_measure(
    generations: &[Generation<'_>],
    keep: RetentionRule,
    measure: &dyn Fn(&Generation<'_>) -> Option<f64>,
) -> Vec<usize> {
    if keep.best == 0 {
        return Vec::new();
    }
    let sign = if keep.lowest_is_best { 1.0 } else { -1.0 };
    let measured =
        |at: usize| measure(&generations[at]).map(|it| MeasuredGeneration { value: it * sign, at });
    lowest(generations, keep.best, (0..generations.len()).filter_map(measured).collect())
}

/// Returns the best checkpoint by one measure in names; both ends if either may be good.
fn best_by_name(generations: &[Generation<'_>], named: &NamedMeasure) -> Vec<usize> {
    let signs: &[f64] = match named.good {
        GoodEnd::Low => &[1.0],
        GoodEnd::High => &[-1.0],
        GoodEnd::Either => &[1.0, -1.0],
    };
    let signed = |sign: f64| {
        let values = named.values.iter();
        values.map(|one| MeasuredGeneration { value: one.value * sign, ..*one }).collect()
    };
    signs.iter().flat_map(|sign| lowest(generations, 1, signed(*sign))).collect()
}

/// Returns the given number of checkpoints with the lowest measures.
fn lowest(generations: &[Generation<'_>], count: u32, mut measures: Vec<MeasuredGeneration>) -> Vec<usize> {
    measures.retain(|one| !one.value.is_nan());
    // Of equal ones the newer is as good and closer to the following ones.
    measures.sort_by(|a, b| a.value.total_cmp(&b.value).then(b.at.cmp(&a.at)));
    let (mut best, mut left) = (Vec::new(), count);
    // An incomplete one, such as one stripped of its optimizer state, does not count and stays as long as it
    // is better than those that do.
    for MeasuredGeneration { at, .. } in measures {
        if left == 0 {
            break;
        }
        best.push(at);
        left -= u32::from(generations[at].is_complete());
    }
    best
}

/// Returns one checkpoint per interval. Selection is by distance and not by counting, because deleted ones
/// can no longer be counted the next time.
fn one_per_interval(
    generations: &[Generation<'_>],
    complete: &[usize],
    keep: RetentionRule,
    spacing: Option<u64>,
) -> Vec<usize> {
    let (true, [first, ..]) = (keep.every > 0, complete) else { return Vec::new() };
    let present = gaps(generations, complete, keep);
    let Some(spacing) = spacing.into_iter().chain(present).min() else { return complete.to_vec() };
    let distance = spacing.saturating_mul(keep.every.into());
    let position = |at: usize| position(&generations[at]);
    let mut kept = vec![*first];
    for at in complete {
        if kept.last().is_some_and(|last| position(*at).abs_diff(position(*last)) >= distance) {
            kept.push(*at);
        }
    }
    kept
}

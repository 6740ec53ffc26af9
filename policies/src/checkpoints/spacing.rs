//! Spacing of the checkpoints of a run: the smallest interval, unless it occurs only once and all others are
//! more than twice as large.
//!
//! `keep_every` depends on it. After deletions the original spacing cannot be derived from the remaining
//! checkpoints, so it is stored, durably by the component that deletes. Invariant: the stored interval only
//! becomes smaller, because a smaller one keeps more.

use super::{CheckpointIndex, RetentionRule, SeriesId, retain};
use mlgw_common::limits::SPACINGS_MAX;
use std::collections::{BTreeMap, BTreeSet};

/// Smallest intervals by bucket and name of the run, in steps, or in microseconds where there are no steps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckpointSpacings(BTreeMap<(u64, String), u64>);

impl FromIterator<((u64, String), u64)> for CheckpointSpacings {
    fn from_iter<I: IntoIterator<Item = ((u64, String), u64)>>(rows: I) -> Self {
        Self(rows.into_iter().take(SPACINGS_MAX).collect())
    }
}

impl CheckpointSpacings {
    /// Returns all intervals.
    pub fn rows(&self) -> impl Iterator<Item = (&(u64, String), u64)> {
        self.0.iter().map(|(name, spacing)| (name, *spacing))
    }

    /// Remembers the intervals of these runs. If there is no room, runs that no longer exist are forgotten
    /// first.
    pub fn learn(&mut self, known: &CheckpointIndex, runs: impl Iterator<Item = (SeriesId, RetentionRule)>) {
        if self.is_full() {
            let existing: BTreeSet<_> = known.series.values().map(|one| (one.bucket, &*one.name)).collect();
            self.0.retain(|(bucket, name), _| existing.contains(&(*bucket, name.as_str())));
        }
        for (run, keep) in runs {
            let Some((name, spacing)) = known.spacing(run, keep) else { continue };
            let is_room = !self.is_full();
            match self.0.get_mut(&name) {
                Some(stored) => *stored = spacing.min(*stored),
                None if is_room => drop(self.0.insert(name, spacing)),
                None => {}
            }
        }
    }

    fn is_full(&self) -> bool {
        self.0.len() >= SPACINGS_MAX
    }
}

impl CheckpointIndex {
    /// Restores remembered intervals.
    pub fn restore_spacings(&mut self, spacings: &CheckpointSpacings) {
        // Readers wait while this runs: names are looked up, and none is copied.
        self.series.values_mut().for_each(|series| series.is_spacing_uncertain = spacings.is_full());
        for ((bucket, name), spacing) in spacings.rows() {
            let series = self.find(*bucket, name).and_then(|id| self.series.get_mut(&id));
            if let Some(series) = series {
                series.is_spacing_uncertain = false;
                series.spacing = series.spacing.into_iter().chain([spacing]).min();
            }
        }
    }

    /// Returns the bucket and name of a run, and its interval to remember, if there is one.
    fn spacing(&self, id: SeriesId, keep: RetentionRule) -> Option<((u64, String), u64)> {
        let series = self.series.get(&id)?;
        let spacing = retain::spacing(&self.generations(id), keep, series.spacing)?;
        Some(((series.bucket, series.name.to_string()), spacing))
    }
}

#[cfg(test)]
mod tests {
    use super::CheckpointSpacings;
    use crate::checkpoints::{CheckpointIndex, Limits, RetentionRule};
    use mlgw_common::limits::SPACINGS_MAX;

    const KEEP: RetentionRule = RetentionRule { last: 2, best: 0, lowest_is_best: true, every: 5 };

    fn listed(run: &str, steps: &[u64]) -> CheckpointIndex {
        let mut known = CheckpointIndex::new(Limits::default());
        for step in steps {
            known.record_listed(*step, 1, &format!("{run}/step-{step}/__0_0.distcp"), 9);
            known.record_listed(*step, 1, &format!("{run}/step-{step}/.metadata"), 9);
        }
        known
    }

    /// Returns the steps that stay after one pass over these steps.
    fn pass(spacings: &mut CheckpointSpacings, steps: &[u64]) -> Vec<u64> {
        let mut known = listed("r", steps);
        known.restore_spacings(spacings);
        let run = known.series().next().unwrap().id;
        spacings.learn(&known, [(run, KEEP)].into_iter());
        let goes = known.retain(run, KEEP, &|_| None);
        let goes: Vec<_> = goes.into_iter().filter_map(|id| known.group(id)?.step).collect();
        steps.iter().copied().filter(|step| !goes.contains(step)).collect()
    }

    #[test]
    fn checkpoints_kept_by_interval_stay_when_a_run_is_saved_less_often() {
        let mut spacings = CheckpointSpacings::default();
        let first: Vec<u64> = (1..=20).map(|n| n * 100).collect();
        let kept = pass(&mut spacings, &first);
        assert_eq!(kept, [100, 600, 1100, 1600, 1900, 2000]);
        // The intervals as they are read back after a restart.
        let mut spacings: CheckpointSpacings =
            spacings.rows().map(|(name, spacing)| (name.clone(), spacing)).collect();
        let kept = pass(&mut spacings, &[&kept[..], &[3000, 4000, 5000]].concat());
        assert_eq!(kept, [100, 600, 1100, 1600, 3000, 4000, 5000], "1900 and 2000 are not fifth steps");
        let forgotten = pass(&mut CheckpointSpacings::default(), &[100, 600, 1100, 1600, 3000, 4000, 5000]);
        assert_eq!(forgotten, [100, 3000, 4000, 5000], "without the remembered spacing");
    }

    #[test]
    fn a_checkpoint_saved_out_of_turn_is_not_remembered() {
        let mut spacings = CheckpointSpacings::default();
        pass(&mut spacings, &[1000, 2000, 3000]);
        let kept = pass(&mut spacings, &[1000, 2000, 3000, 3010, 4000, 5000]);
        assert_eq!(kept, [1000, 2000, 3000, 4000, 5000], "an existing checkpoint counts");
        assert_eq!(spacings.rows().map(|(_, spacing)| spacing).collect::<Vec<_>>(), [1000]);
        assert_eq!(pass(&mut spacings, &kept), [1000, 4000, 5000]);
    }

    #[test]
    fn beyond_the_limit_all_checkpoints_of_a_run_stay() {
        let row = |n: usize| ((1, format!("gone-{n}/step-#/")), 1);
        let mut spacings: CheckpointSpacings = (0..SPACINGS_MAX + 5).map(row).collect();
        assert_eq!(spacings.rows().count(), SPACINGS_MAX);
        let steps: Vec<u64> = (1..=20).map(|n| n * 100).collect();
        let mut full = listed("r", &steps);
        full.restore_spacings(&spacings);
        let run = full.series().next().unwrap().id;
        assert_eq!(full.retain(run, KEEP, &|_| None), []);
        spacings.learn(&full, [(run, KEEP)].into_iter());
        let left: Vec<_> = spacings.rows().map(|((_, name), spacing)| (name.clone(), spacing)).collect();
        assert_eq!(left, [("r/step-#/".to_owned(), 100)]);
        full.restore_spacings(&spacings);
        assert_eq!(full.retain(run, KEEP, &|_| None).len(), 14);
    }
}

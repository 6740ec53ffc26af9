//! Watched checkpoints: prefixes for which the time of the last read or write is recorded.
//!
//! Invariant: in a bucket without watched prefixes a key costs one map lookup.

use crate::checkpoints::CheckpointIndex;
use std::collections::BTreeMap;

/// Watched prefixes with their last use; see the module.
#[derive(Debug, Default)]
pub struct WatchedPrefixes {
    prefixes: BTreeMap<u64, BTreeMap<Box<str>, Option<u64>>>,
}

impl WatchedPrefixes {
    /// Replaces the set of watched prefixes; the recorded times of those that remain are kept.
    pub fn set<'p>(&mut self, prefixes: impl Iterator<Item = (u64, &'p str)>) {
        let before = std::mem::take(&mut self.prefixes);
        for (bucket, prefix) in prefixes {
            let touched = before.get(&bucket).and_then(|of| of.get(prefix)).copied().flatten();
            self.prefixes.entry(bucket).or_default().insert(prefix.into(), touched);
        }
    }

    /// Returns the time of the last recorded use of a prefix since it is watched, in microseconds.
    #[must_use]
    pub fn last_used_us(&self, bucket: u64, prefix: &str) -> Option<u64> {
        self.prefixes.get(&bucket)?.get(prefix).copied().flatten()
    }

    /// Records a read, copy or write of a key.
    pub fn record_use(&mut self, at_us: u64, bucket: u64, key: &str) {
        let Some(prefixes) = self.prefixes.get_mut(&bucket) else { return };
        for prefix in CheckpointIndex::prefixes_of(key) {
            if let Some(touched) = prefixes.get_mut(prefix) {
                *touched = Some(at_us);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::WatchedPrefixes;

    #[test]
    fn a_longer_name_with_the_same_beginning_is_not_touched() {
        let mut watched = WatchedPrefixes::default();
        watched.set([(1, "run/model-1"), (1, "run/model-1-step-5"), (1, "run/model-10")].into_iter());
        let touched = |watched: &WatchedPrefixes| {
            ["run/model-1", "run/model-1-step-5", "run/model-10"]
                .map(|prefix| watched.last_used_us(1, prefix))
        };
        watched.record_use(1, 1, "run/model-10.pt");
        watched.record_use(2, 1, "run/model-100.pt");
        assert_eq!(touched(&watched), [None, None, Some(1)]);
        watched.record_use(3, 1, "run/model-1.pt");
        assert_eq!(touched(&watched), [Some(3), None, Some(1)]);
    }

    #[test]
    fn uses_of_watched_prefixes_are_recorded_and_kept() {
        let mut watched = WatchedPrefixes::default();
        watched.record_use(1, 1, "a/x");
        watched.set([(1, "a/"), (1, "b/"), (2, "a/")].into_iter());
        for (at, bucket, key) in [(5, 1, "a/x"), (6, 1, "a"), (7, 1, "c"), (8, 3, "a/"), (9, 2, "a/")] {
            watched.record_use(at, bucket, key);
        }
        let touched = |watched: &WatchedPrefixes, bucket, prefix| watched.last_used_us(bucket, prefix);
        assert_eq!((touched(&watched, 1, "a/"), touched(&watched, 1, "b/")), (Some(5), None));
        assert_eq!(touched(&watched, 2, "a/"), Some(9));
        watched.set([(1, "a/")].into_iter());
        assert_eq!((touched(&watched, 1, "a/"), touched(&watched, 2, "a/")), (Some(5), None));
    }
}

//! Checkpoints, by their prefixes, of which it is to be known when anything of them was read or written last.
//!
//! Always: in a bucket of which none is watched a key costs a look into a map.

use crate::checkpoints::Checkpoints;
use std::collections::BTreeMap;

/// See the module.
#[derive(Debug, Default)]
pub struct Watched {
    prefixes: BTreeMap<u64, BTreeMap<Box<str>, Option<u64>>>,
}

impl Watched {
    /// From now on these are watched; what is known of those that were before stays known.
    pub fn set<'p>(&mut self, prefixes: impl Iterator<Item = (u64, &'p str)>) {
        let before = std::mem::take(&mut self.prefixes);
        for (bucket, prefix) in prefixes {
            let touched = before.get(&bucket).and_then(|of| of.get(prefix)).copied().flatten();
            self.prefixes.entry(bucket).or_default().insert(prefix.into(), touched);
        }
    }

    /// When something of a prefix was touched last since it is watched, in microseconds.
    #[must_use]
    pub fn touched(&self, bucket: u64, prefix: &str) -> Option<u64> {
        self.prefixes.get(&bucket)?.get(prefix).copied().flatten()
    }

    /// A key is read, copied or written.
    pub fn touch(&mut self, at_us: u64, bucket: u64, key: &str) {
        let Some(prefixes) = self.prefixes.get_mut(&bucket) else { return };
        for prefix in Checkpoints::prefixes_of(key) {
            if let Some(touched) = prefixes.get_mut(prefix) {
                *touched = Some(at_us);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Watched;

    #[test]
    fn another_that_begins_alike_is_not_touched() {
        let mut watched = Watched::default();
        watched.set([(1, "run/model-1"), (1, "run/model-1-step-5"), (1, "run/model-10")].into_iter());
        let touched = |watched: &Watched| {
            ["run/model-1", "run/model-1-step-5", "run/model-10"].map(|prefix| watched.touched(1, prefix))
        };
        watched.touch(1, 1, "run/model-10.pt");
        watched.touch(2, 1, "run/model-100.pt");
        assert_eq!(touched(&watched), [None, None, Some(1)]);
        watched.touch(3, 1, "run/model-1.pt");
        assert_eq!(touched(&watched), [Some(3), None, Some(1)]);
    }

    #[test]
    fn what_is_watched_is_known_to_be_touched_and_stays_so() {
        let mut watched = Watched::default();
        watched.touch(1, 1, "a/x");
        watched.set([(1, "a/"), (1, "b/"), (2, "a/")].into_iter());
        for (at, bucket, key) in [(5, 1, "a/x"), (6, 1, "a"), (7, 1, "c"), (8, 3, "a/"), (9, 2, "a/")] {
            watched.touch(at, bucket, key);
        }
        let touched = |watched: &Watched, bucket, prefix| watched.touched(bucket, prefix);
        assert_eq!((touched(&watched, 1, "a/"), touched(&watched, 1, "b/")), (Some(5), None));
        assert_eq!(touched(&watched, 2, "a/"), Some(9));
        watched.set([(1, "a/")].into_iter());
        assert_eq!((touched(&watched, 1, "a/"), touched(&watched, 2, "a/")), (Some(5), None));
    }
}

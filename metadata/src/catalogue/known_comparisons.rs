//! Comparisons of rows that this node knows, and how many it made. They are in memory, and end with the
//! process.

use super::row_verdict::{ComparisonOutcome, RowComparison};
use mlgw_common::time::Instant;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counts of comparisons that this node made as a leader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RowComparisonCounts {
    /// All members had the same rows.
    pub equal: u64,
    /// Two members had different rows.
    pub different: u64,
    /// No two digests differed, and a member gave none.
    pub incomplete: u64,
}

/// A comparison that this node knows, and the time at which it got it.
#[derive(Clone, Debug)]
pub struct KnownComparison {
    /// The result.
    pub comparison: RowComparison,
    /// When this node got it.
    pub known_since: Instant,
}

/// The newest comparison of each group, and counts.
#[derive(Default)]
pub(super) struct RowComparisons {
    newest: Mutex<BTreeMap<u32, KnownComparison>>,
    equal: AtomicU64,
    different: AtomicU64,
    incomplete: AtomicU64,
}

impl RowComparisons {
    /// The newest comparison of each group.
    pub(super) fn all(&self) -> BTreeMap<u32, KnownComparison> {
        self.newest.lock().clone()
    }

    /// The newest comparison of a group.
    pub(super) fn get(&self, group: u32) -> Option<RowComparison> {
        self.newest.lock().get(&group).map(|known| known.comparison.clone())
    }

    /// Records a comparison, unless a later one is known.
    pub(super) fn record(&self, group: u32, comparison: RowComparison) {
        let mut newest = self.newest.lock();
        if newest.get(&group).is_none_or(|known| known.comparison.index < comparison.index) {
            newest.insert(group, KnownComparison { comparison, known_since: Instant::now() });
        }
    }

    pub(super) fn counts(&self) -> RowComparisonCounts {
        RowComparisonCounts {
            equal: self.equal.load(Ordering::Relaxed),
            different: self.different.load(Ordering::Relaxed),
            incomplete: self.incomplete.load(Ordering::Relaxed),
        }
    }

    pub(super) fn count(&self, outcome: ComparisonOutcome) {
        let counter = match outcome {
            ComparisonOutcome::Equal => &self.equal,
            ComparisonOutcome::Different => &self.different,
            ComparisonOutcome::Incomplete => &self.incomplete,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

//! Counters of the object layer: waits and refusals by cause.
//!
//! Counters start at zero with the process.

use crate::ResourceShortage;
use mlgw_formats::command::QuotaSubject;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Names of the quotas that can refuse a write, in the order of [`ObjectMetrics::quota_refused`].
pub const QUOTAS: [&str; 2] = ["bucket", "key"];

/// Counters of waits and refusals.
#[derive(Debug, Default)]
pub struct ObjectMetrics {
    throttled: [AtomicU64; ResourceShortage::ALL.len()],
    quota_refused: [AtomicU64; QUOTAS.len()],
}

impl ObjectMetrics {
    /// Counts a client that had to wait or was refused because of `shortage`.
    pub fn throttle(&self, shortage: ResourceShortage) {
        self.throttled[shortage as usize].fetch_add(1, Relaxed);
    }

    /// Counts a write that a quota refused.
    pub fn refuse_by_quota(&self, of: &QuotaSubject) {
        let at = match of {
            QuotaSubject::Bucket => 0,
            QuotaSubject::Key(_) => 1,
        };
        self.quota_refused[at].fetch_add(1, Relaxed);
    }

    /// Returns the count of each shortage, in the order of [`ResourceShortage::ALL`].
    #[must_use]
    pub fn throttled(&self) -> [u64; ResourceShortage::ALL.len()] {
        std::array::from_fn(|at| self.throttled[at].load(Relaxed))
    }

    /// Returns the refusals of each quota, in the order of [`QUOTAS`].
    #[must_use]
    pub fn quota_refused(&self) -> [u64; QUOTAS.len()] {
        std::array::from_fn(|at| self.quota_refused[at].load(Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::ObjectMetrics;
    use crate::ResourceShortage;
    use mlgw_formats::command::QuotaSubject;

    #[test]
    fn each_cause_has_a_counter_of_its_own() {
        let metrics = ObjectMetrics::default();
        for (at, shortage) in ResourceShortage::ALL.into_iter().enumerate() {
            assert_eq!(shortage as usize, at, "{}", shortage.name());
            (0..=at).for_each(|_| metrics.throttle(shortage));
        }
        metrics.refuse_by_quota(&QuotaSubject::Key("k".into()));
        assert_eq!((metrics.throttled(), metrics.quota_refused()), ([1, 2, 3, 4, 5, 6, 7], [0, 1]));
    }
}

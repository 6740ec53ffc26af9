//! Learning in a server: measurements are reviewed periodically, and each learned change becomes a version of
//! the policy.
//!
//! A changed bound is stored in the catalogue, with its evidence, before it takes effect; a rollback
//! reverts it. Measurements start anew after a restart; learned bounds are durable.

use super::Policies;
use mlgw_cache::policy_driver::PolicyDriver;
use mlgw_common::{CheckedClock, Clock as _};
use mlgw_formats::schema::LearntBound;
use mlgw_policies::learned_bounds::{LearnedBound, LearnedBounds};
use mlgw_policies::learning::Learner;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Author of versions made by learning.
pub(super) const LEARNING_AUTHOR: &str = "learning";
const PREFETCH_DEPTH: &str = "prefetch_depth";
/// Bounds are stored in millionths.
const MILLION: f64 = 1e6;
const MIN_READS: &str = "min_reads/";

/// Reviews measurements at the interval `every`, until the policy is dropped.
pub async fn run(
    policies: Weak<Policies>,
    policy_driver: PolicyDriver,
    clock: CheckedClock,
    every: Duration,
) {
    let mut learner = Learner::default();
    loop {
        mlgw_common::time::sleep(every).await;
        let Some(policies) = policies.upgrade() else { return };
        review_measurements(&policies, &policy_driver, &clock, &mut learner).await;
    }
}

async fn review_measurements(
    policies: &Arc<Policies>,
    policy_driver: &PolicyDriver,
    clock: &CheckedClock,
    learner: &mut Learner,
) {
    // Reviews depend on days. In a cluster other nodes confirm the clock. The time is read before the check,
    // which finds every jump until then.
    let now_ms = clock.now().as_millis();
    if !*policies.learning().borrow() || !clock.is_confirmed() {
        return;
    }
    let program = Arc::clone(&policies.running().program);
    let Some(change) = policy_driver.review(learner, &program, now_ms) else { return };
    match policies.learn(&program, change).await {
        Ok(true) => {}
        Ok(false) => tracing::debug!("the policy changed before a learned bound was applied"),
        Err(error) => tracing::warn!(%error, "a learned bound was not applied"),
    }
}

/// Converts learned bounds to their stored form.
pub(super) fn to_stored_bounds(learnt: &LearnedBounds) -> Vec<LearntBound> {
    let bound = |name: String, bound: &LearnedBound| {
        let LearnedBound { value, written: from, day_ms, day_value } = *bound;
        let [value, from, day_value] = [value, from, day_value].map(|one| (one * MILLION).round() as u64);
        LearntBound { name, value, from, day_ms, day_value }
    };
    let depth = learnt.prefetch_depth.iter().map(|depth| bound(PREFETCH_DEPTH.to_owned(), depth));
    let rules = learnt.min_reads.iter().map(|(rule, reads)| bound(format!("{MIN_READS}{rule}"), reads));
    depth.chain(rules).collect()
}

/// Converts stored bounds to learned bounds. Bounds of unknown names, from a newer server, are ignored.
pub(super) fn from_stored_bounds(bounds: &[LearntBound]) -> LearnedBounds {
    let mut learnt = LearnedBounds::default();
    for one in bounds {
        let LearntBound { day_ms, .. } = *one;
        let [value, from, day_value] = [one.value, one.from, one.day_value].map(|one| one as f64 / MILLION);
        let bound = LearnedBound { value, written: from, day_ms, day_value };
        if one.name == PREFETCH_DEPTH {
            learnt.prefetch_depth = Some(bound);
        } else if let Some(rule) = one.name.strip_prefix(MIN_READS) {
            learnt.min_reads.insert(rule.into(), bound);
        }
    }
    learnt
}

#[cfg(test)]
mod tests {
    use super::{from_stored_bounds, to_stored_bounds};
    use mlgw_policies::learned_bounds::{LearnedBound, LearnedBounds};

    #[test]
    fn learned_bounds_round_trip_through_their_stored_form() {
        let bound = |value| LearnedBound { value, written: 2.0, day_ms: 7, day_value: 3.0 };
        let mut learnt = LearnedBounds { prefetch_depth: Some(bound(1.5)), ..LearnedBounds::default() };
        learnt.min_reads.insert("a/b".into(), bound(2.5));
        assert_eq!(from_stored_bounds(&to_stored_bounds(&learnt)), learnt);
        assert_eq!(
            from_stored_bounds(&to_stored_bounds(&LearnedBounds::default())),
            LearnedBounds::default()
        );
    }
}

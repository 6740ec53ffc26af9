//! Learning in a server: measurements are reviewed periodically, and each lesson becomes a version of the
//! policy.
//!
//! A changed bound is stored in the catalogue, with its evidence, before it takes effect; a rollback
//! reverts it. Measurements start anew after a restart; learnt bounds are durable.

use super::Policies;
use mlgw_cache::policy::Keeper;
use mlgw_common::Clock;
use mlgw_formats::schema::LearntBound;
use mlgw_policies::learning::{Bound, Learner, Learnt};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Author of versions made by learning.
pub(super) const WHO: &str = "learning";
const PREFETCH_DEPTH: &str = "prefetch_depth";
/// Bounds are stored in millionths.
const MILLION: f64 = 1e6;
const MIN_READS: &str = "min_reads/";

/// Reviews measurements at the interval `every`, until the policy is dropped.
pub async fn run(policies: Weak<Policies>, keeper: Keeper, clock: Arc<dyn Clock>, every: Duration) {
    let mut learner = Learner::default();
    loop {
        tokio::time::sleep(every).await;
        let Some(policies) = policies.upgrade() else { return };
        look(&policies, &keeper, &*clock, &mut learner).await;
    }
}

async fn look(policies: &Arc<Policies>, keeper: &Keeper, clock: &dyn Clock, learner: &mut Learner) {
    if !*policies.learning().borrow() {
        return;
    }
    let program = Arc::clone(&policies.running().program);
    let Some(lesson) = keeper.review(learner, &program, clock.now().as_millis()) else { return };
    match policies.learn(&program, lesson).await {
        Ok(true) => {}
        Ok(false) => tracing::debug!("the policy changed before a lesson was learnt"),
        Err(error) => tracing::warn!(%error, "a lesson was not learnt"),
    }
}

/// Converts learnt bounds to their stored form.
pub(super) fn bounds_of(learnt: &Learnt) -> Vec<LearntBound> {
    let bound = |name: String, bound: &Bound| {
        let Bound { value, from, day_ms, day_value } = *bound;
        let [value, from, day_value] = [value, from, day_value].map(|one| (one * MILLION).round() as u64);
        LearntBound { name, value, from, day_ms, day_value }
    };
    let depth = learnt.prefetch_depth.iter().map(|depth| bound(PREFETCH_DEPTH.to_owned(), depth));
    let rules = learnt.min_reads.iter().map(|(rule, reads)| bound(format!("{MIN_READS}{rule}"), reads));
    depth.chain(rules).collect()
}

/// Converts stored bounds to learnt bounds. Bounds of unknown names, from a newer server, are ignored.
pub(super) fn learnt_of(bounds: &[LearntBound]) -> Learnt {
    let mut learnt = Learnt::default();
    for one in bounds {
        let LearntBound { day_ms, .. } = *one;
        let [value, from, day_value] = [one.value, one.from, one.day_value].map(|one| one as f64 / MILLION);
        let bound = Bound { value, from, day_ms, day_value };
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
    use super::{bounds_of, learnt_of};
    use mlgw_policies::learning::{Bound, Learnt};

    #[test]
    fn learnt_bounds_round_trip_through_their_stored_form() {
        let bound = |value| Bound { value, from: 2.0, day_ms: 7, day_value: 3.0 };
        let mut learnt = Learnt { prefetch_depth: Some(bound(1.5)), ..Learnt::default() };
        learnt.min_reads.insert("a/b".into(), bound(2.5));
        assert_eq!(learnt_of(&bounds_of(&learnt)), learnt);
        assert_eq!(learnt_of(&bounds_of(&Learnt::default())), Learnt::default());
    }
}

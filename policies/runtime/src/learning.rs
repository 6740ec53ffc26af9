//! Learning in a server: what was measured is looked at now and then, and what it teaches becomes a version
//! of the policy.
//!
//! Always: a bound that has moved is in the catalogue, with what moved it, before anybody goes by it; who
//! rolls back takes it back. What was measured is counted anew after a restart, what was learnt is not lost.

use super::Policies;
use mlgw_cache::policy::Keeper;
use mlgw_common::Clock;
use mlgw_formats::schema::LearntBound;
use mlgw_policies::learning::{Bound, Learner, Learnt};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Who makes such versions.
pub(super) const WHO: &str = "learning";
const PREFETCH_DEPTH: &str = "prefetch_depth";
/// Stored are millionths.
const MILLION: f64 = 1e6;
const MIN_READS: &str = "min_reads/";

/// Looks every so often, until the policy is dropped.
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

/// What is stored of what was learnt.
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

/// What was learnt, as it is stored. What a newer server has learnt that this one does not know is passed
/// over.
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
    fn what_was_learnt_is_stored_and_read_back() {
        let bound = |value| Bound { value, from: 2.0, day_ms: 7, day_value: 3.0 };
        let mut learnt = Learnt { prefetch_depth: Some(bound(1.5)), ..Learnt::default() };
        learnt.min_reads.insert("a/b".into(), bound(2.5));
        assert_eq!(learnt_of(&bounds_of(&learnt)), learnt);
        assert_eq!(learnt_of(&bounds_of(&Learnt::default())), Learnt::default());
    }
}

//! Access plans for a generated workload: the plan of each caller if it announced all its reads in advance.

use super::scene::{GeneratedRequest, Scene};
use mlgw_policies::access::Op;
use mlgw_policies::engine::PlanReaders;
use mlgw_policies::plan::{InvalidAccessPlan, Plan, PlanSchedule};
use std::collections::BTreeMap;

/// Access plan of one caller for one bucket.
#[derive(Clone, Debug)]
pub struct CallerPlan {
    /// Caller to which the plan applies.
    pub who: PlanReaders,
    /// Bucket that the caller reads.
    pub bucket: u64,
    /// Keys that the caller reads there.
    pub plan: Plan,
}

/// Builds the plans of all reading callers, one for each bucket: their keys in the order of their first
/// reads, epoch after epoch.
///
/// # Errors
/// If a caller reads more than a plan may contain.
pub fn build_caller_plans(
    scene: &Scene,
    requests: impl Iterator<Item = GeneratedRequest>,
) -> Result<Vec<CallerPlan>, InvalidAccessPlan> {
    let mut read: BTreeMap<(u16, u64), Vec<u32>> = BTreeMap::new();
    for request in requests.filter(|request| request.op == Op::Read && request.range.start == 0) {
        let keys = read.entry((request.caller, scene.keys.bucket(request.key))).or_default();
        keys.push(request.key);
    }
    let plans = read.into_iter().map(|((caller, bucket), keys)| {
        let names = keys.iter().map(|key| scene.keys.name(*key));
        let plan = Plan::new(names, PlanSchedule::default())?;
        Ok(CallerPlan { who: PlanReaders::Caller(scene.callers[usize::from(caller)].id), bucket, plan })
    });
    plans.collect()
}

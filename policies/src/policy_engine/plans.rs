//! Plans for named workloads: a plan exists before its followers, and all workloads with the name follow it.

use super::PolicyEngine;
use crate::engine::{ReadyPlan, TooManyPlans};
use crate::workloads::WorkloadIdentity;

impl PolicyEngine {
    /// Adds a plan for [`crate::engine::PlanReaders::Families`], replacing the plan with the same number: the
    /// families of present and future workloads with this name follow it.
    ///
    /// # Errors
    /// If there are too many plans.
    pub fn put_plan(&mut self, number: u64, name: &str, ready: ReadyPlan) -> Result<(), TooManyPlans> {
        self.engine.put_ready_plan(ready)?;
        self.plans.retain(|(other, _)| *other != number);
        self.plans.push((number, name.into()));
        for (family, workload) in self.workloads.families() {
            if workload.identity.name.as_deref() == Some(name) {
                self.engine.add_family(number, family);
            }
        }
        Ok(())
    }

    /// Forgets a plan. Returns true if it existed.
    pub fn drop_plan(&mut self, number: u64) -> bool {
        self.plans.retain(|(other, _)| *other != number);
        self.engine.drop_plan(number)
    }

    /// Lets a new family follow the plans for its workload's name.
    pub(super) fn assign_plans(&mut self, family: u64, identity: &WorkloadIdentity) {
        for (number, name) in &self.plans {
            if identity.name.as_deref() == Some(&**name) {
                self.engine.add_family(*number, family);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::access::{Access, Caller, Op};
    use crate::engine::{Options, PlanReaders, ReadyPlan};
    use crate::language::Program;
    use crate::plan::{Plan, PlanSchedule};
    use crate::policy_engine::PolicyEngine;
    use crate::workloads::WorkloadIdentity;
    use std::sync::Arc;

    const KEYS: u64 = 100;

    fn decider() -> PolicyEngine {
        let options = Options { capacity_bytes: 1 << 20, blocks_max: 1 << 10, block_bytes: 8 << 20, seed: 7 };
        PolicyEngine::new(options, Arc::new(Program::compile_built_in().unwrap()))
    }

    fn put(decider: &mut PolicyEngine, number: u64, name: &str) {
        let keys: Vec<String> = (0..KEYS).map(|n| format!("train/{n}")).collect();
        let reading = PlanSchedule { epochs: 3, ..PlanSchedule::default() };
        let plan = Plan::new(keys.iter().map(String::as_str), reading).unwrap();
        let ready = ReadyPlan::new(7, number, PlanReaders::Families, 1, plan);
        decider.put_plan(number, name, ready).unwrap();
    }

    /// Reads all keys once, in order, as a family with this name.
    fn read(decider: &mut PolicyEngine, family: u64, name: Option<&str>, from_us: u64) {
        for n in 0..KEYS {
            let caller = Caller { id: family + 1, family };
            let key = format!("train/{n}");
            let (at_us, range) = (from_us + n * 1000, 0..10);
            let access = Access { at_us, caller, bucket: 1, key: &key, op: Op::Read, size: 10, range };
            decider.observe(&access, || WorkloadIdentity {
                name: name.map(Into::into),
                ..WorkloadIdentity::default()
            });
        }
    }

    #[test]
    fn workloads_with_the_name_follow_whether_they_come_before_or_after_the_plan() {
        let mut decider = decider();
        read(&mut decider, 10, Some("resnet"), 0);
        put(&mut decider, 1, "resnet");
        put(&mut decider, 2, "bert");
        let trusted = |decider: &PolicyEngine| {
            [1, 2].map(|number| decider.engine.plan_progress(number).unwrap().is_trusted)
        };
        read(&mut decider, 20, None, 1_000_000);
        assert_eq!(trusted(&decider), [false, false], "no workload with this name has read yet");
        read(&mut decider, 10, Some("resnet"), 2_000_000);
        assert_eq!(trusted(&decider), [true, false], "an existing workload follows the plan");
        read(&mut decider, 30, Some("bert"), 3_000_000);
        assert_eq!(trusted(&decider), [true, true], "a new workload follows the plan, too");
        assert!(decider.drop_plan(2) && !decider.drop_plan(2));
        assert_eq!(decider.engine.plan_progress(2), None);
    }
}

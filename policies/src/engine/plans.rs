//! Use of plans in the engine: it tracks their followers and prefers the plan's prediction for a block to its
//! own estimate.
//!
//! Jobs without a plan on the same dataset are estimated as usual: the worth of a block is the maximum of
//! both.

use super::job::{JobRef, ReadForecast};
use super::planned::{self, PlanDue, PlanProgress, PlanReaders, ReadyPlan, TooManyPlans};
use super::shares::{EvictionSource, GAIN_MIN};
use super::slot::Slot;
use super::table::EntryState;
use super::{Advice, CacheEngine, ObservedAccess};
use crate::access::{Access, Op};
use crate::plan::Plan;

/// Maximum blocks returned to groups per eviction.
const RETURNED_MAX: usize = 8;

impl CacheEngine {
    /// Adds a plan of the reads of `who` in a bucket, replacing the plan with the same number. Takes time and
    /// about 34 bytes of memory per key. The plan counts once its job has read as predicted for a while.
    ///
    /// # Errors
    /// If there are too many plans.
    pub fn put_plan(
        &mut self,
        number: u64,
        who: PlanReaders,
        bucket: u64,
        plan: Plan,
    ) -> Result<(), TooManyPlans> {
        self.put_ready_plan(ReadyPlan::new(self.options.seed, number, who, bucket, plan))
    }

    /// Adds a prepared plan like [`CacheEngine::put_plan`], but quickly, unless its keys are those of another
    /// plan in its bucket: these are compared key by key.
    ///
    /// # Errors
    /// If there are too many plans.
    pub fn put_ready_plan(&mut self, ready: ReadyPlan) -> Result<(), TooManyPlans> {
        self.plans.add_plan(ready, self.options.seed)?;
        self.mark_jobs_unplanned();
        Ok(())
    }

    /// Lets all callers of a family follow a plan for [`PlanReaders::Families`].
    pub fn add_family(&mut self, number: u64, family: u64) {
        self.plans.add_family(number, family);
    }

    /// Forgets a plan. Returns true if it existed.
    pub fn drop_plan(&mut self, number: u64) -> bool {
        self.mark_jobs_unplanned();
        self.plans.drop_plan(number)
    }

    /// Marks all jobs as unplanned; jobs with other plans are marked again at their next read.
    fn mark_jobs_unplanned(&mut self) {
        for dataset in self.datasets.values_mut() {
            for place in 0..dataset.jobs.len() {
                dataset.set_forecast(place, ReadForecast::Estimate);
            }
        }
    }

    /// Returns the progress of a plan.
    #[must_use]
    pub fn plan_progress(&self, number: u64) -> Option<PlanProgress> {
        self.plans.progress(number)
    }

    /// Records an access with the plans.
    pub(super) fn follow_plans(&mut self, access: &Access<'_>, number: u16, job: Option<JobRef>) {
        if access.op == Op::Read {
            let object = self.names.block_id(access.bucket, access.key, 0);
            let forecast = self.plans.record_read(access.caller, object, access.at_us);
            if let (Some(dataset), Some(job)) = (self.datasets.get_mut(&number), job) {
                dataset.set_forecast(job.place, forecast);
            }
            self.adopt_planned_blocks(access);
        }
        if let Some(slot) = self.plans.update_due_times(&mut self.table, access.at_us) {
            self.return_to_group(slot);
        }
    }

    /// Moves blocks that were kept before their plan was trusted to the plan's heap, a few keys at a time.
    fn adopt_planned_blocks(&mut self, access: &Access<'_>) {
        let Some((list, keys)) = self.plans.take_keys_to_adopt(access.caller) else { return };
        for key in keys {
            for block in 0.. {
                let Some((bucket, name)) = self.plans.key(list, key) else { break };
                let object = self.names.block_id(bucket, name, 0);
                let Some(slot) = self.table.find(self.names.block_id(bucket, name, block)) else { break };
                let due = self.plans.due_us(object, access.at_us).map(|at_us| PlanDue { object, at_us });
                self.keep_by_plan(slot, due);
            }
        }
    }

    /// Returns the expected read of an object according to plans, if any.
    pub(super) fn plan_due(&mut self, now_us: u64, bucket: u64, key: &str) -> Option<PlanDue> {
        if self.plans.is_idle() {
            return None;
        }
        let object = self.names.block_id(bucket, key, 0);
        self.plans.due_us(object, now_us).map(|at_us| PlanDue { object, at_us })
    }

    /// Moves a kept block that a plan contains to the plan's heap.
    pub(super) fn keep_by_plan(&mut self, slot: Slot, due: Option<PlanDue>) {
        let place = self.table[slot].state();
        let Some(due) = due.filter(|_| place.is_kept() && place != EntryState::Pinned) else { return };
        self.remove_from_queue(slot);
        self.plans.join(&mut self.table, slot, due.object, due.at_us);
    }

    /// Returns a kept block that no plan contains any more, or that is worth more to other jobs, to the group
    /// of its readers.
    fn return_to_group(&mut self, slot: Slot) {
        self.plans.leave(&mut self.table, slot);
        self.keep_with_dataset(slot);
    }

    /// Decides about a block that is not kept by its plan; `None` if other jobs make it worth more.
    pub(super) fn admit_by_plan(&mut self, seen: ObservedAccess, slot: Slot, due: PlanDue) -> Option<Advice> {
        let worth = planned::worth(due.at_us, seen.now_us);
        if self.expected_of(slot, seen.now_us) > worth {
            return None;
        }
        let bytes = self.table[slot].bytes();
        while self.kept_bytes + bytes > self.options.capacity_bytes {
            let (least, lowest_worth) = self.lowest(seen.now_us)?;
            if lowest_worth * GAIN_MIN >= worth || !self.evict(least) {
                return Some(Advice::Bypass);
            }
        }
        self.forget_ghost(slot);
        self.plans.join(&mut self.table, slot, due.object, due.at_us);
        self.add_kept(bytes);
        Some(Advice::Keep)
    }

    /// Returns the worth of a block to jobs without a plan.
    fn expected_of(&mut self, slot: Slot, now_us: u64) -> f64 {
        let moment = self.worth_context(now_us);
        let number = self.names.root(self.table[slot].dataset());
        let Some(dataset) = self.datasets.get_mut(&number) else { return 0.0 };
        dataset.refresh_worth(&moment);
        dataset.expected_of(&self.table[slot])
    }

    /// Returns the planned block of lowest worth: the one with the latest expected read.
    pub(super) fn lowest_planned(&mut self, now_us: u64) -> Option<(EvictionSource, f64)> {
        for _ in 0..RETURNED_MAX {
            let (slot, due_us) = self.plans.latest(&mut self.table, now_us)?;
            let worth = due_us.map(|due_us| planned::worth(due_us, now_us));
            match worth {
                Some(worth) if self.expected_of(slot, now_us) <= worth => {
                    return Some((EvictionSource::Planned(slot), worth));
                }
                _ => self.return_to_group(slot),
            }
        }
        let (slot, due_us) = self.plans.latest(&mut self.table, now_us)?;
        Some((EvictionSource::Planned(slot), due_us.map_or(0.0, |due_us| planned::worth(due_us, now_us))))
    }
}

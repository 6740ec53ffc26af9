//! Metrics of datasets and jobs.
//!
//! The bytes by tier are those of the last count. The largest datasets have their own series; the others are
//! summed up as `other`.

use super::Admin;
use mlgw_background::jobs::residency::{Readiness, Residency, ResidencyPlace};
use mlgw_background::jobs::{KINDS, kind_name, state_name};
use mlgw_common::limits::METRIC_BUCKETS_MAX;
use mlgw_formats::schema::JobState;
use mlgw_telemetry::exposition::{MetricFamily, MetricValue};
use mlgw_telemetry::table::{
    DATASET_BYTES, DATASET_READY, DATASET_RESIDENT_BYTES, JOB_ACTIVE, JOB_BYTES, JOB_ENDED, JOB_OBJECTS,
    JOB_PROGRESS,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Label of the sum of all datasets without a series of their own.
const OTHER: &str = "other";
const ENDS: [JobState; 3] = [JobState::Done, JobState::Failed, JobState::Cancelled];

impl Admin {
    pub(super) fn dataset_families(&self) -> Vec<MetricFamily> {
        let mut families = self.job_families();
        families.extend(self.residency_families());
        families
    }

    fn job_families(&self) -> Vec<MetricFamily> {
        let (ended, moved) = (self.jobs.ended(), self.jobs.moved());
        let mut active = BTreeMap::new();
        let mut progress = MetricFamily::new(JOB_PROGRESS);
        let mut shown = 0;
        for dataset in self.stored.catalogue.datasets() {
            let Some(job) = self.stored.catalogue.job(dataset.active_job) else { continue };
            *active.entry((job.kind(), job.state())).or_insert(0) += 1;
            if shown < METRIC_BUCKETS_MAX {
                let (job, _) = self.jobs.current_state(&job);
                let done = u128::from(job.progress.bytes_done) * 100;
                let percent = done / u128::from(job.progress.bytes_total.max(1));
                progress.push(&[&dataset.name], MetricValue::Level(percent.min(100) as i64));
                shown += 1;
            }
        }
        let mut states = MetricFamily::new(JOB_ACTIVE);
        let mut ends = MetricFamily::new(JOB_ENDED);
        let (mut objects, mut bytes) = (MetricFamily::new(JOB_OBJECTS), MetricFamily::new(JOB_BYTES));
        for kind in KINDS {
            let name = kind_name(kind);
            for state in [JobState::Queued, JobState::Running] {
                let count = active.get(&(kind, state)).copied().unwrap_or(0);
                states.push(&[name, state_name(state)], MetricValue::Level(count));
            }
            for state in ENDS {
                let count = ended.get(&(kind, state)).copied().unwrap_or(0);
                ends.push(&[name, state_name(state)], MetricValue::Count(count));
            }
            let moved = moved.get(&kind).copied().unwrap_or_default();
            objects.push(&[name], MetricValue::Count(moved.objects));
            bytes.push(&[name], MetricValue::Count(moved.bytes));
        }
        vec![states, ends, objects, bytes, progress]
    }

    fn residency_families(&self) -> Vec<MetricFamily> {
        let mut counted: Vec<(String, Arc<Residency>)> = self.jobs.residencies().into_iter().collect();
        counted.sort_by_key(|(_, residency)| std::cmp::Reverse(residency.bytes));
        let rest = counted.split_off(counted.len().min(METRIC_BUCKETS_MAX));
        let node = self.jobs.node();
        let (mut bytes, mut resident) =
            (MetricFamily::new(DATASET_BYTES), MetricFamily::new(DATASET_RESIDENT_BYTES));
        let mut ready = MetricFamily::new(DATASET_READY);
        for (name, residency) in &counted {
            if let Some(all) = residency.bytes {
                bytes.push(&[name], level(all));
            }
            for (tier, here) in &residency.bytes_here {
                resident.push(&[name, node, tier.name()], level(*here));
            }
            let is_ready = residency.readiness() == Readiness::Ready;
            ready.push(&[name, node], MetricValue::Level(i64::from(is_ready)));
        }
        if !rest.is_empty() {
            bytes.push(&[OTHER], level(rest.iter().filter_map(|(_, residency)| residency.bytes).sum()));
            let mut tiers: BTreeMap<ResidencyPlace, u64> = BTreeMap::new();
            for (tier, here) in rest.iter().flat_map(|(_, residency)| &residency.bytes_here) {
                *tiers.entry(*tier).or_default() += here;
            }
            for (tier, here) in tiers {
                resident.push(&[OTHER, node, tier.name()], level(here));
            }
        }
        vec![bytes, resident, ready]
    }
}

fn level(bytes: u64) -> MetricValue {
    MetricValue::Level(i64::try_from(bytes).unwrap_or(i64::MAX))
}

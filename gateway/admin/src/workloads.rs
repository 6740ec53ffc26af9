//! `/v1/workloads`: workloads with their phase and its evidence, their datasets and their progress.
//!
//! The data is what the policy engine has inferred from requests since the server started, and nothing else.

use super::extract::{AdminPath, AdminQuery};
use super::words::{
    copy_policy, counted_phase, optimization_level, read_ahead_strategy, workload_dataset_role,
    workload_phase,
};
use super::{Admin, ApiError};
use axum::Json;
use axum::extract::State;
use http::StatusCode;
use mlgw_api::{
    CountedPhase, PhaseCount, TreatmentInfo, WorkloadDataset, WorkloadInfo, WorkloadList, WorkloadTotals,
};
use mlgw_common::Timestamp;
use mlgw_common::limits::WORKLOADS_SHOWN_MAX;
use mlgw_policies::PolicyEngine;
use mlgw_policies::language::Phase;
use mlgw_policies::workloads::{DatasetUse, TrackedWorkload, WorkloadTrackerTotals, framework_names};
use mlgw_telemetry::exposition::{MetricFamily, MetricValue};
use mlgw_telemetry::table::{WORKLOAD_BATCHES, WORKLOAD_EPOCHS, WORKLOADS};
use schemars::JsonSchema;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Number of workloads listed by default.
const WORKLOADS_SHOWN: usize = 100;

/// Query parameters: maximum number of workloads.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct WorkloadQuery {
    /// Maximum number of results.
    #[schemars(range(min = 1, max = WORKLOADS_SHOWN_MAX), extend("default" = WORKLOADS_SHOWN))]
    limit: Option<usize>,
}

/// Data about a workload, copied while the policy engine is locked and accesses wait.
struct WorkloadSnapshot {
    workload: TrackedWorkload,
    now_us: u64,
    is_active: bool,
    workers: usize,
    /// Bucket and key pattern of each dataset.
    sets: Vec<(u64, String)>,
    checkpoint: Option<(u64, String)>,
    frameworks: Vec<String>,
}

pub(super) async fn list(
    State(admin): State<Arc<Admin>>,
    AdminQuery(query): AdminQuery<WorkloadQuery>,
) -> Result<Json<WorkloadList>, ApiError> {
    let limit = query.limit.unwrap_or(WORKLOADS_SHOWN);
    if !(1..=WORKLOADS_SHOWN_MAX).contains(&limit) {
        return Err(ApiError::invalid(format!("limit is {limit}; expected 1 to {WORKLOADS_SHOWN_MAX}.")));
    }
    let (taken, totals) = admin.policy_driver.with_engine(|decider, now_us| {
        let newest = newest(decider, |_| true);
        let taken: Vec<_> =
            newest.into_iter().take(limit).map(|one| snapshot(decider, one, now_us)).collect();
        (taken, decider.workloads.totals(&decider.engine, now_us, 0))
    });
    let names = admin.bucket_names();
    let workloads = taken.into_iter().map(|one| admin.workload_info(one, &names)).collect();
    Ok(Json(WorkloadList { workloads, totals: admin.totals(totals) }))
}

pub(super) async fn show(
    State(admin): State<Arc<Admin>>,
    AdminPath(workload): AdminPath<String>,
) -> Result<Json<WorkloadInfo>, ApiError> {
    let taken = admin.policy_driver.with_engine(|decider, now_us| {
        let by_id = newest(decider, |it| *it.id == *workload);
        let by_name = || newest(decider, |it| it.identity.name.as_deref() == Some(&workload));
        let found = by_id.first().copied().or_else(|| by_name().first().copied());
        found.map(|one| snapshot(decider, one, now_us))
    });
    let none = || {
        let why = format!("No such workload: {workload:?}; inactive ones are removed.");
        ApiError::new(StatusCode::NOT_FOUND, "NoSuchWorkload", why)
    };
    let names = admin.bucket_names();
    Ok(Json(admin.workload_info(taken.ok_or_else(none)?, &names)))
}

/// Returns the workloads that match a predicate, the most recently active first.
fn newest(decider: &PolicyEngine, is_match: impl Fn(&TrackedWorkload) -> bool) -> Vec<&TrackedWorkload> {
    let mut found: Vec<&TrackedWorkload> = decider.workloads.iter().filter(|it| is_match(it)).collect();
    found.sort_by(|a, b| b.last_us.cmp(&a.last_us).then_with(|| a.id.cmp(&b.id)));
    found
}

fn snapshot(decider: &PolicyEngine, workload: &TrackedWorkload, now_us: u64) -> WorkloadSnapshot {
    let set = |set: &DatasetUse| {
        let name = decider.engine.dataset_name(set.dataset);
        name.map_or_else(
            // The engine has forgotten a dataset without recent reads; the workload still has its name.
            || (set.bucket, set.name.to_string()),
            |name| (name.bucket, format!("{}{}", name.folder, name.pattern)),
        )
    };
    let checkpoint = workload.saved.and_then(|group| decider.checkpoints.group(group));
    WorkloadSnapshot {
        is_active: decider.workloads.is_active(workload, now_us),
        workers: decider.workloads.workers(workload, now_us),
        sets: workload.datasets.iter().map(set).collect(),
        checkpoint: checkpoint.map(|group| (group.bucket, group.prefix.to_owned())),
        frameworks: framework_names(decider.program(), workload.frameworks()).map(str::to_owned).collect(),
        workload: workload.with_current_epochs(&decider.engine, now_us),
        now_us,
    }
}

impl Admin {
    /// Returns the names of buckets by id.
    pub(super) fn bucket_names(&self) -> BTreeMap<u64, String> {
        let buckets = self.stored.catalogue.buckets(None, None, usize::MAX);
        buckets.iter().map(|bucket| (bucket.id, bucket.name.clone())).collect()
    }

    /// Converts a time of the engine to text.
    fn time(&self, us: u64) -> String {
        let ms = self.policy_driver.began_ms().saturating_add(us / 1000);
        Timestamp(i64::try_from(ms).unwrap_or(i64::MAX)).to_string()
    }

    fn workload_info(&self, taken: WorkloadSnapshot, names: &BTreeMap<u64, String>) -> WorkloadInfo {
        let WorkloadSnapshot { workload, now_us, is_active, workers, sets, checkpoint, frameworks } = taken;
        let bucket = |id: u64| names.get(&id).cloned().unwrap_or_else(|| format!("#{id}"));
        let mut datasets: Vec<(&DatasetUse, (u64, String))> = workload.datasets.iter().zip(sets).collect();
        datasets.sort_by(|(a, _), (b, _)| (a.role.name(), b.reads).cmp(&(b.role.name(), a.reads)));
        let dataset = |(set, (id, keys)): (&DatasetUse, (u64, String))| WorkloadDataset {
            role: workload_dataset_role(set.role),
            bucket: bucket(id),
            keys,
            reads: set.reads.into(),
            bytes: set.bytes,
            passes: set.epochs.into(),
            last_read: self.time(set.last_us),
        };
        WorkloadInfo {
            id: workload.id.to_string(),
            name: workload.identity.name.as_deref().map(str::to_owned),
            user_agent: workload.identity.user_agent.as_deref().map(str::to_owned),
            active: is_active,
            phase: workload.phase.map(workload_phase),
            treatment: self.treatment(workload.phase),
            since: self.time(workload.phase_since_us),
            evidence: workload.evidence(),
            started: self.time(workload.first_us),
            last_access: self.time(workload.last_us),
            workers: workers as u64,
            datasets: datasets.into_iter().map(dataset).collect(),
            epochs: workload.epochs.into(),
            batches: workload.batches,
            batch_size: workload.batch_size().map(in_thousandths),
            items: workload.items,
            items_per_second: in_thousandths(workload.items_per_second(now_us)),
            bytes_read: workload.bytes_read,
            bytes_written: workload.bytes_written,
            checkpoints: workload.saves.into(),
            last_checkpoint: workload.saved_us.map(|us| self.time(us)),
            last_checkpoint_prefix: checkpoint.map(|(id, prefix)| format!("s3://{}/{prefix}", bucket(id))),
            checkpoint_interval_seconds: workload.save_interval_us.map(|us| in_thousandths(us as f64 / 1e6)),
            frameworks,
        }
    }

    fn treatment(&self, phase: Option<Phase>) -> TreatmentInfo {
        let running = self.policies.running();
        let settings = running.program.settings();
        TreatmentInfo {
            optimization: optimization_level(settings.optimization(phase)),
            prefetch: read_ahead_strategy(settings.prefetch(phase)),
            cache: copy_policy(settings.cache(phase)),
        }
    }

    fn totals(&self, totals: WorkloadTrackerTotals) -> WorkloadTotals {
        let metrics = self.policy_driver.metrics();
        let in_phases: usize = totals.phases.iter().map(|(_, count)| count).sum();
        let count = |phase, count: usize| PhaseCount { phase, workloads: count as u64 };
        let mut phases: Vec<_> =
            totals.phases.iter().map(|(phase, workloads)| count(counted_phase(*phase), *workloads)).collect();
        phases.push(count(CountedPhase::Unknown, totals.active - in_phases));
        WorkloadTotals {
            workloads: totals.workloads as u64,
            active: totals.active as u64,
            epochs: totals.epochs,
            batches: totals.batches,
            decisions: metrics.kept + metrics.bypassed + metrics.evicted,
            phases,
        }
    }

    pub(super) fn workload_families(&self) -> Vec<MetricFamily> {
        let totals = self
            .policy_driver
            .with_engine(|decider, now_us| decider.workloads.totals(&decider.engine, now_us, 0));
        let totals = self.totals(totals);
        let mut count = MetricFamily::new(WORKLOADS);
        for PhaseCount { phase, workloads } in &totals.phases {
            count.push(&[phase.name()], MetricValue::Level(i64::try_from(*workloads).unwrap_or(i64::MAX)));
        }
        let epochs = MetricFamily::single(WORKLOAD_EPOCHS, MetricValue::Count(totals.epochs));
        vec![count, epochs, MetricFamily::single(WORKLOAD_BATCHES, MetricValue::Count(totals.batches))]
    }
}

fn in_thousandths(number: f64) -> f64 {
    (number * 1000.0).round() / 1000.0
}

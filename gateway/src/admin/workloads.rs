//! `/v1/workloads`: who trains, evaluates or serves, in which phase and why, with what, and how far.
//!
//! What the policy engine has found out from requests since the server started, and nothing else.

use super::extract::{Path, Query};
use super::{Admin, ApiError};
use crate::metrics::exposition::{Family, Value};
use crate::metrics::table::{WORKLOAD_BATCHES, WORKLOAD_EPOCHS, WORKLOADS};
use axum::Json;
use axum::extract::State;
use http::StatusCode;
use mlgw_common::Timestamp;
use mlgw_common::limits::WORKLOADS_SHOWN_MAX;
use mlgw_policies::Decider;
use mlgw_policies::language::{Phase, Word as _};
use mlgw_policies::workloads::{Set, Totals, Workload, framework_names};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Workloads that are shown when nobody says how many.
const SHOWN: usize = 100;
/// The phase of workloads of which none is known yet.
const NO_PHASE: &str = "unknown";

/// Workloads.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WorkloadList {
    /// Who asked for something last is first.
    pub workloads: Vec<WorkloadInfo>,
    /// Of all that are remembered.
    pub totals: WorkloadTotals,
}

/// How many there are and what they have done since the server started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkloadTotals {
    /// Workloads that are remembered.
    pub workloads: u64,
    /// Those of them that have asked for something lately.
    pub active: u64,
    /// Epochs that all have completed, those that are forgotten included.
    pub epochs: u64,
    /// Batches that all have read.
    pub batches: u64,
    /// Blocks that were kept, passed by and evicted for them.
    pub decisions: u64,
    /// Active workloads by phase.
    pub phases: Vec<PhaseCount>,
}

/// Active workloads of a phase.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PhaseCount {
    /// The phase; `unknown` as long as nobody can tell.
    pub phase: String,
    /// How many.
    pub workloads: u64,
}

/// A workload.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WorkloadInfo {
    /// Its id.
    pub id: String,
    /// The name that it gives itself.
    pub name: Option<String>,
    /// The user agent of its requests.
    pub user_agent: Option<String>,
    /// Whether it has asked for something lately.
    pub active: bool,
    /// What it is doing, as far as that is known.
    pub phase: Option<String>,
    /// What the policy's settings say for that, where no rule says otherwise.
    pub treatment: TreatmentInfo,
    /// Since when.
    pub since: String,
    /// Why that is thought, in a sentence.
    pub evidence: String,
    /// When it asked for something first.
    pub started: String,
    /// When it did last.
    pub last_access: String,
    /// Processes that read for it, as far as addresses tell.
    pub workers: u64,
    /// The datasets that it reads, by role; model files among them.
    pub datasets: Vec<WorkloadDataset>,
    /// Epochs that it has completed over what it trains with.
    pub epochs: u64,
    /// Batches that it has read.
    pub batches: u64,
    /// Objects, or ranges of them, that it reads at once, if that is known.
    pub batch_size: Option<f64>,
    /// Requests for data.
    pub items: u64,
    /// The same a second, lately.
    pub items_per_second: f64,
    /// Bytes that it has read.
    pub bytes_read: u64,
    /// Bytes that it has written.
    pub bytes_written: u64,
    /// Checkpoints that it has begun to write.
    pub checkpoints: u64,
    /// When it began the last one.
    pub last_checkpoint: Option<String>,
    /// What the keys of that begin with, where names tell.
    pub last_checkpoint_prefix: Option<String>,
    /// Seconds between two of them, lately.
    pub checkpoint_interval_seconds: Option<f64>,
    /// The frameworks that its user agent or the names of what it reads speak for.
    pub frameworks: Vec<String>,
}

/// How what a workload reads is treated by the settings of the policy, for the phase that it is in.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TreatmentInfo {
    /// How far is read ahead: `basic`, `balanced`, `aggressive` or `maximum`.
    pub optimization: String,
    /// How eagerly: `conservative`, `balanced`, `aggressive` or `adaptive`.
    pub prefetch: String,
    /// Which copies stay: `none`, `lru`, `training-aware` or `learned`.
    pub cache: String,
}

/// A dataset that a workload reads.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkloadDataset {
    /// What it is to the workload: `training`, `validation`, `evaluation`, `model`, `small`, `serving` or `undecided`.
    pub role: String,
    /// Its bucket; its id after `#`, when it is gone.
    pub bucket: String,
    /// What its keys are like, with `#` for numbers; a folder with a slash at its end stands for all that is below it.
    pub keys: String,
    /// Requests that read it.
    pub reads: u64,
    /// Bytes that they asked for.
    pub bytes: u64,
    /// Times that a job of the workload has read all of it.
    pub passes: u64,
    /// When it was read last.
    pub last_read: String,
}

/// How many.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WorkloadQuery {
    limit: Option<usize>,
}

/// What is taken of a workload while all reads wait.
struct Taken {
    workload: Workload,
    now_us: u64,
    is_active: bool,
    workers: usize,
    /// Bucket and keys of each dataset.
    sets: Vec<(u64, String)>,
    checkpoint: Option<(u64, String)>,
    frameworks: Vec<String>,
}

pub(super) async fn list(
    State(admin): State<Arc<Admin>>,
    Query(query): Query<WorkloadQuery>,
) -> Result<Json<WorkloadList>, ApiError> {
    let limit = query.limit.unwrap_or(SHOWN);
    if !(1..=WORKLOADS_SHOWN_MAX).contains(&limit) {
        return Err(ApiError::invalid(format!("limit is {limit}, not 1 to {WORKLOADS_SHOWN_MAX}.")));
    }
    let (taken, totals) = admin.keeper.ask(|decider, now_us| {
        let newest = newest(decider, |_| true);
        let taken: Vec<_> = newest.into_iter().take(limit).map(|one| take(decider, one, now_us)).collect();
        (taken, decider.workloads.totals(&decider.engine, now_us, 0))
    });
    let names = admin.bucket_names();
    let workloads = taken.into_iter().map(|one| admin.told(one, &names)).collect();
    Ok(Json(WorkloadList { workloads, totals: admin.totals(totals) }))
}

pub(super) async fn show(
    State(admin): State<Arc<Admin>>,
    Path(workload): Path<String>,
) -> Result<Json<WorkloadInfo>, ApiError> {
    let taken = admin.keeper.ask(|decider, now_us| {
        let by_id = newest(decider, |it| *it.id == *workload);
        let by_name = || newest(decider, |it| it.identity.name.as_deref() == Some(&workload));
        let found = by_id.first().copied().or_else(|| by_name().first().copied());
        found.map(|one| take(decider, one, now_us))
    });
    let none = || {
        let why = format!("There is no workload {workload:?}, or it is not remembered any more.");
        ApiError::new(StatusCode::NOT_FOUND, "NoSuchWorkload", why)
    };
    let names = admin.bucket_names();
    Ok(Json(admin.told(taken.ok_or_else(none)?, &names)))
}

/// Workloads that are so, the one that asked for something last first.
fn newest(decider: &Decider, is_so: impl Fn(&Workload) -> bool) -> Vec<&Workload> {
    let mut found: Vec<&Workload> = decider.workloads.iter().filter(|it| is_so(it)).collect();
    found.sort_by(|a, b| b.last_us.cmp(&a.last_us).then_with(|| a.id.cmp(&b.id)));
    found
}

fn take(decider: &Decider, workload: &Workload, now_us: u64) -> Taken {
    let set = |set: &Set| {
        let name = decider.engine.dataset_name(set.dataset);
        name.map_or_else(
            // What was silent for long is told from others here alone.
            || (set.bucket, set.name.to_string()),
            |name| (name.bucket, format!("{}{}", name.folder, name.pattern)),
        )
    };
    let checkpoint = workload.saved.and_then(|group| decider.checkpoints.group(group));
    Taken {
        is_active: decider.workloads.is_active(workload, now_us),
        workers: decider.workloads.workers(workload, now_us),
        sets: workload.sets.iter().map(set).collect(),
        checkpoint: checkpoint.map(|group| (group.bucket, group.prefix.to_owned())),
        frameworks: framework_names(decider.program(), workload.frameworks()).map(str::to_owned).collect(),
        workload: workload.caught_up(&decider.engine, now_us),
        now_us,
    }
}

impl Admin {
    /// Buckets by id.
    pub(super) fn bucket_names(&self) -> BTreeMap<u64, String> {
        let buckets = self.catalogue.buckets(None, None, usize::MAX);
        buckets.iter().map(|bucket| (bucket.id, bucket.name.clone())).collect()
    }

    /// A time of the engine.
    fn time(&self, us: u64) -> String {
        let ms = self.keeper.began_ms().saturating_add(us / 1000);
        Timestamp(i64::try_from(ms).unwrap_or(i64::MAX)).to_string()
    }

    fn told(&self, taken: Taken, names: &BTreeMap<u64, String>) -> WorkloadInfo {
        let Taken { workload, now_us, is_active, workers, sets, checkpoint, frameworks } = taken;
        let bucket = |id: u64| names.get(&id).cloned().unwrap_or_else(|| format!("#{id}"));
        let mut datasets: Vec<(&Set, (u64, String))> = workload.sets.iter().zip(sets).collect();
        datasets.sort_by(|(a, _), (b, _)| (a.role.name(), b.reads).cmp(&(b.role.name(), a.reads)));
        let dataset = |(set, (id, keys)): (&Set, (u64, String))| WorkloadDataset {
            role: set.role.name().to_owned(),
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
            phase: workload.phase.map(|phase| phase.name().to_owned()),
            treatment: self.treatment(workload.phase),
            since: self.time(workload.since_us),
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
            optimization: settings.optimization(phase).name().to_owned(),
            prefetch: settings.prefetch(phase).name().to_owned(),
            cache: settings.cache(phase).name().to_owned(),
        }
    }

    fn totals(&self, totals: Totals) -> WorkloadTotals {
        let said = self.keeper.metrics();
        let in_phases: usize = totals.phases.iter().map(|(_, count)| count).sum();
        let count =
            |phase: &str, count: usize| PhaseCount { phase: phase.to_owned(), workloads: count as u64 };
        let mut phases: Vec<_> =
            totals.phases.iter().map(|(phase, workloads)| count(phase.name(), *workloads)).collect();
        phases.push(count(NO_PHASE, totals.active - in_phases));
        WorkloadTotals {
            workloads: totals.workloads as u64,
            active: totals.active as u64,
            epochs: totals.epochs,
            batches: totals.batches,
            decisions: said.kept + said.bypassed + said.evicted,
            phases,
        }
    }

    pub(super) fn workload_families(&self) -> Vec<Family> {
        let totals = self.keeper.ask(|decider, now_us| decider.workloads.totals(&decider.engine, now_us, 0));
        let totals = self.totals(totals);
        let mut count = Family::new(WORKLOADS);
        for PhaseCount { phase, workloads } in &totals.phases {
            count.push(&[phase], Value::Level(i64::try_from(*workloads).unwrap_or(i64::MAX)));
        }
        let epochs = Family::single(WORKLOAD_EPOCHS, Value::Count(totals.epochs));
        vec![count, epochs, Family::single(WORKLOAD_BATCHES, Value::Count(totals.batches))]
    }
}

fn in_thousandths(number: f64) -> f64 {
    (number * 1000.0).round() / 1000.0
}

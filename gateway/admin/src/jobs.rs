//! `/v1/jobs` and `/v1/datasets/{dataset}/jobs`: current and past jobs on datasets.

use super::change::{AuditedAction, AuditedChange, json, parse};
use super::extract::{AdminPath, AdminQuery};
use super::signed::AdminCaller;
use super::words::{dataset_job_kind, dataset_job_state, job_kind, job_order, warm_order};
use super::{Admin, ApiError};
use axum::body::Bytes;
use axum::extract::State;
use axum::response::Response;
use axum::{Extension, Json};
use http::StatusCode;
use mlgw_api::{JobInfo, JobList, JobRequest, MigrationTarget};
use mlgw_common::Timestamp;
use mlgw_common::limits::KEY_LEN_MAX;
use mlgw_config::SettingType as _;
use mlgw_formats::command::Reject;
use mlgw_formats::command::{CancelJob, CreateJob, JobStep, StepJob};
use mlgw_formats::schema::{Dataset, Job, JobKind, JobOrder, JobParams};
use mlgw_metadata::ProposeError;
use mlgw_wire::error::S3Error;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;

/// Maximum number of jobs listed: the newest.
const JOBS_SHOWN_MAX: usize = 1000;

/// Query parameters: filter of jobs.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct JobQuery {
    /// Only jobs of this dataset.
    dataset: Option<String>,
    /// Only jobs that have not ended.
    #[serde(default)]
    active: bool,
}

pub(super) async fn list(
    State(admin): State<Arc<Admin>>,
    AdminQuery(query): AdminQuery<JobQuery>,
) -> Json<JobList> {
    let jobs = admin.stored.catalogue.jobs();
    let is_wanted = |job: &&Arc<Job>| {
        let is_of_dataset = query.dataset.as_ref().is_none_or(|dataset| *dataset == job.dataset);
        is_of_dataset && !(query.active && job.has_ended())
    };
    Json(JobList {
        jobs: jobs
            .iter()
            .rev()
            .filter(is_wanted)
            .take(JOBS_SHOWN_MAX)
            .map(|job| admin.job_info(job))
            .collect(),
    })
}

pub(super) async fn show(
    State(admin): State<Arc<Admin>>,
    AdminPath(id): AdminPath<String>,
) -> Result<Json<JobInfo>, ApiError> {
    let job = admin.job(&id)?;
    Ok(Json(admin.job_info(&job)))
}

pub(super) async fn create(
    State(admin): State<Arc<Admin>>,
    Extension(caller): Extension<AdminCaller>,
    AdminPath(name): AdminPath<String>,
    body: Bytes,
) -> Result<Response, ApiError> {
    let request: JobRequest = parse(&body)?;
    let action = AuditedAction { action: "job.create", resource: name.clone(), status: StatusCode::ACCEPTED };
    let shared = Arc::clone(&admin);
    let requested_by = caller.access_key.clone();
    let work = async move {
        let dataset = shared.dataset(&name)?;
        let (kind, params) = checked_params(&request, &dataset, &shared)?;
        let new = CreateJob {
            dataset: name.clone(),
            kind: kind as i32,
            params,
            created_ms: shared.clock.now().as_millis(),
            requested_by,
            is_scheduled: false,
            duty_term: None,
        };
        let made = shared.stored.catalogue.create_job(new).await;
        let job = made.map_err(|error| shared.job_refusal(error, &name))?;
        let after = json(&shared.job_info(&job))?;
        Ok(AuditedChange { resource: name, before: Value::Null, after, answer: None })
    };
    admin.change(caller, action, work).await
}

pub(super) async fn cancel(
    State(admin): State<Arc<Admin>>,
    Extension(caller): Extension<AdminCaller>,
    AdminPath(id): AdminPath<String>,
) -> Result<Response, ApiError> {
    let action = AuditedAction { action: "job.cancel", resource: id.clone(), status: StatusCode::ACCEPTED };
    let shared = Arc::clone(&admin);
    let work = async move {
        let job = shared.job(&id)?;
        let before = json(&shared.job_info(&job))?;
        let step = StepJob {
            dataset: job.dataset.clone(),
            job: job.id,
            node: 0,
            now_ms: shared.clock.now().as_millis(),
            step: Some(JobStep::Cancel(CancelJob {})),
            duty_term: None,
        };
        let stepped = shared.stored.catalogue.step_job(step).await;
        let job = stepped.map_err(|error| match error {
            ProposeError::Rejected(Reject::JobEnded) => {
                let state = shared.job(&id).map_or("gone", |job| dataset_job_state(job.state()).name());
                let why = format!("The job {id} is already {state}.");
                ApiError::new(StatusCode::CONFLICT, "JobEnded", why)
            }
            error => catalogue_refusal(error, &id),
        })?;
        let after = json(&shared.job_info(&job))?;
        Ok(AuditedChange { resource: id, before, after, answer: None })
    };
    admin.change(caller, action, work).await
}

impl Admin {
    fn job(&self, id: &str) -> Result<Arc<Job>, ApiError> {
        let found = id.parse().ok().and_then(|id| self.stored.catalogue.job(id));
        found.ok_or_else(|| {
            let why = format!("No such job: {id}; see `mlgw job list`.");
            ApiError::new(StatusCode::NOT_FOUND, "NoSuchJob", why)
        })
    }

    /// Converts a job to its API type.
    pub(super) fn job_info(&self, job: &Job) -> JobInfo {
        let (job, pace) = self.jobs.current_state(job);
        let time = |ms: i64| (ms != 0).then(|| Timestamp(ms).to_string());
        let progress = job.progress;
        let order = (job.kind() == JobKind::Warm).then(|| warm_order(job.params.order()));
        JobInfo {
            id: job.id,
            kind: dataset_job_kind(job.kind()),
            state: dataset_job_state(job.state()),
            created: Timestamp(job.created_ms).to_string(),
            started: time(job.started_ms),
            ended: time(job.ended_ms),
            starts: u64::from(job.starts),
            cancel_asked: job.cancel_asked,
            older_than: job.params.older_than_ms.map(|ms| Duration::from_millis(ms).to_text()),
            delete: job.params.delete,
            objects_done: progress.objects_done,
            objects_total: progress.objects_total,
            bytes_done: progress.bytes_done,
            bytes_total: progress.bytes_total,
            counted: progress.is_counted,
            moved_objects: progress.moved_objects,
            moved_bytes: progress.moved_bytes,
            failed_objects: progress.failed_objects,
            deleted_objects: progress.deleted_objects,
            bytes_per_second: pace.map(|pace| pace.bytes_per_second),
            eta_seconds: pace.and_then(|pace| pace.left).map(|left| left.as_secs()),
            error: Some(job.error).filter(|error| !error.is_empty()),
            prefix: job.params.prefix,
            order,
            to: job.params.to.map(|to| MigrationTarget { upstream: to.upstream, prefix: to.prefix }),
            dataset: job.dataset,
            requested_by: job.requested_by,
        }
    }

    /// Returns the error for a refused job, which names the job that is running.
    pub(super) fn job_refusal(&self, error: ProposeError, dataset: &str) -> ApiError {
        let ProposeError::Rejected(Reject::DatasetBusy { job }) = error else {
            return catalogue_refusal(error, dataset);
        };
        let what = self.stored.catalogue.job(job).map_or("a job", |job| dataset_job_kind(job.kind()).name());
        let why = format!(
            "The dataset {dataset:?} has an active job: {what}, job {job}. Wait for it with `mlgw job wait \
             {job}`, or cancel it with `mlgw job cancel {job}`."
        );
        ApiError::new(StatusCode::CONFLICT, "DatasetBusy", why)
    }
}

/// Validates a job request for a dataset. Returns its kind and parameters.
pub(super) fn checked_params(
    request: &JobRequest,
    dataset: &Dataset,
    admin: &Admin,
) -> Result<(JobKind, JobParams), ApiError> {
    let invalid = |why: String| Err(ApiError::invalid(why));
    let kind = job_kind(request.kind);
    let is_bound =
        admin.stored.catalogue.bucket(&dataset.bucket).is_some_and(|bucket| bucket.binding.is_some());
    let (name, bucket) = (&dataset.name, &dataset.bucket);
    match kind {
        JobKind::Evict | JobKind::Clear if !is_bound => {
            return invalid(format!(
                "The bucket {bucket:?} is not remote-backed: it has no copies to evict."
            ));
        }
        JobKind::Evict | JobKind::Clear if dataset.pin_bytes_max.is_some() => {
            return invalid(format!(
                "The dataset {name:?} is pinned: run `mlgw dataset unpin {name}` first."
            ));
        }
        JobKind::Sync if dataset.sources.is_empty() => {
            return invalid(format!("The dataset {name:?} has no sources to sync from."));
        }
        JobKind::Migrate => {
            return invalid(format!(
                "Only a whole bucket can be migrated: use `mlgw bucket migrate {bucket} --upstream NAME`."
            ));
        }
        JobKind::Warm | JobKind::Sync | JobKind::Evict | JobKind::Clear => {}
    }
    if (kind == JobKind::Evict) != request.older_than.is_some() {
        return invalid("older_than is required for evict, and allowed only there.".into());
    }
    if request.delete && kind != JobKind::Sync {
        return invalid("delete is allowed only for sync.".into());
    }
    if !request.prefix.is_empty() && (kind == JobKind::Sync || request.prefix.len() > KEY_LEN_MAX) {
        return invalid(format!("A prefix has at most {KEY_LEN_MAX} bytes; sync accepts none."));
    }
    if request.order.is_some() && kind != JobKind::Warm {
        return invalid("order is allowed only for warm.".into());
    }
    let order = request.order.map_or(JobOrder::Sequential, job_order);
    let older_than = request.older_than.as_deref().map(Duration::from_text).transpose();
    let older_than = older_than
        .map_err(|why| ApiError::invalid(format!("older_than: {why}; expected {}", Duration::EXPECTS)))?;
    let older_than_ms = older_than.map(|age| u64::try_from(age.as_millis()).unwrap_or(u64::MAX));
    let prefix = request.prefix.clone();
    Ok((kind, JobParams { older_than_ms, delete: request.delete, prefix, order: order as i32, to: None }))
}

/// Converts a refusal by the catalogue to an API error; `name` is the dataset or job concerned.
pub(super) fn catalogue_refusal(error: ProposeError, name: &str) -> ApiError {
    let ProposeError::Rejected(reject) = &error else { return S3Error::from(error).into() };
    let conflict = |code, why: String| ApiError::new(StatusCode::CONFLICT, code, why);
    match reject {
        Reject::DatasetExists => conflict("DatasetExists", format!("The dataset {name:?} already exists.")),
        Reject::DatasetChanged => conflict(
            "DatasetChanged",
            format!("The dataset {name:?} was changed concurrently: check it, and try again."),
        ),
        Reject::TooManyDatasets => {
            conflict("TooManyDatasets", "The maximum number of datasets exists already.".into())
        }
        Reject::DatasetBusy { job } => {
            let why =
                format!("The dataset {name:?} has an active job: cancel it with `mlgw job cancel {job}`.");
            conflict("DatasetBusy", why)
        }
        Reject::NoSuchDataset => {
            ApiError::new(StatusCode::NOT_FOUND, "NoSuchDataset", format!("No such dataset: {name:?}."))
        }
        Reject::NoSuchJob => {
            ApiError::new(StatusCode::NOT_FOUND, "NoSuchJob", format!("No such job: {name}."))
        }
        _ => S3Error::from(error).into(),
    }
}

//! `/v1/buckets/{bucket}/migration`: moves a remote-backed bucket to another upstream, as a job.

use super::change::{AuditedAction, AuditedChange, json, parse};
use super::extract::AdminPath;
use super::jobs::catalogue_refusal;
use super::signed::AdminCaller;
use super::{Admin, ApiError};
use axum::Extension;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::Response;
use http::StatusCode;
use mlgw_api::MigrationTarget;
use mlgw_background::jobs::{dataset_of_bucket, is_nothing_there};
use mlgw_formats::command::CreateJob;
use mlgw_formats::command::Reject;
use mlgw_formats::schema::{Binding, Bucket, Dataset, Job, JobKind, JobParams, JobState, MigrateTo};
use mlgw_metadata::ProposeError;
use mlgw_wire::error::{Code, S3Error};
use serde_json::Value;
use std::sync::Arc;

pub(super) async fn begin(
    State(admin): State<Arc<Admin>>,
    Extension(caller): Extension<AdminCaller>,
    AdminPath(name): AdminPath<String>,
    body: Bytes,
) -> Result<Response, ApiError> {
    let request: MigrationTarget = parse(&body)?;
    let action =
        AuditedAction { action: "bucket.migrate", resource: name.clone(), status: StatusCode::ACCEPTED };
    let shared = Arc::clone(&admin);
    let requested_by = caller.access_key.clone();
    let work = async move {
        let bucket = shared.stored.catalogue.bucket(&name).ok_or_else(|| S3Error::new(Code::NoSuchBucket))?;
        let to = MigrateTo { upstream: request.upstream, prefix: request.prefix };
        shared.check_migration(&bucket, &to).await?;
        let dataset = dataset_of_bucket(&name);
        let bucket_dataset = Dataset {
            name: dataset.clone(),
            bucket: name.clone(),
            created_ms: shared.clock.now().as_millis(),
            ..Dataset::default()
        };
        match shared.stored.catalogue.put_dataset(bucket_dataset).await {
            Ok(_) | Err(ProposeError::Rejected(Reject::DatasetExists)) => {}
            Err(error) => return Err(catalogue_refusal(error, &dataset)),
        }
        let new = CreateJob {
            dataset: dataset.clone(),
            kind: JobKind::Migrate as i32,
            params: JobParams { to: Some(to), ..JobParams::default() },
            created_ms: shared.clock.now().as_millis(),
            requested_by,
            is_scheduled: false,
            duty_term: None,
        };
        let made = shared.stored.catalogue.create_job(new).await;
        let job = made.map_err(|error| shared.job_refusal(error, &dataset))?;
        let after = json(&shared.job_info(&job))?;
        Ok(AuditedChange { resource: name, before: Value::Null, after, answer: None })
    };
    admin.change(caller, action, work).await
}

impl Admin {
    /// Checks that the bucket can be moved to `to`.
    async fn check_migration(&self, bucket: &Arc<Bucket>, to: &MigrateTo) -> Result<(), ApiError> {
        let name = &bucket.name;
        let conflict = |code, why: String| Err(ApiError::new(StatusCode::CONFLICT, code, why));
        let Some(binding) = &bucket.binding else {
            return Err(ApiError::invalid(format!("The bucket {name:?} is not remote-backed.")));
        };
        check_apart(name, binding, to)?;
        let origin = self
            .stored
            .remote_backed
            .origin(&to.upstream)
            .ok_or_else(|| self.no_such_upstream(&to.upstream))?;
        let is_empty = is_nothing_there(&*origin, &to.prefix).await;
        let is_empty = is_empty.map_err(|error| self.upstream_failed(&to.upstream, &error))?;
        if !is_empty && !self.has_unfinished_migration(name, to) {
            return conflict(
                "NotEmpty",
                format!(
                    "The upstream {:?} has objects under the prefix {:?}, and the migration would delete \
                     those that the bucket {name:?} does not have: choose another prefix, or empty it first.",
                    to.upstream, to.prefix
                ),
            );
        }
        let queue = self.writeback.queue(bucket).map_err(S3Error::from)?;
        match queue.and_then(|queue| queue.dirty().foreign.first().cloned()) {
            None => Ok(()),
            Some(key) => conflict(
                "Contested",
                format!(
                    "Another client wrote {key:?} at the upstream {:?} before the local write was sent: see \
                     `mlgw bucket flush {name}`.",
                    binding.upstream
                ),
            ),
        }
    }

    /// Returns true if the last migration of the bucket had the same target and is not done: objects at the
    /// target are then leftovers of it.
    fn has_unfinished_migration(&self, bucket: &str, to: &MigrateTo) -> bool {
        let dataset = dataset_of_bucket(bucket);
        let is_one = |job: &&Arc<Job>| job.dataset == dataset && job.kind() == JobKind::Migrate;
        let jobs = self.stored.catalogue.jobs();
        let last = jobs.iter().rev().find(is_one);
        last.is_some_and(|job| job.params.to.as_ref() == Some(to) && job.state() != JobState::Done)
    }

    /// Refuses operations that are impossible while a bucket is being migrated.
    pub(super) fn check_not_migrating(&self, bucket: &str) -> Result<(), ApiError> {
        let job =
            self.stored.catalogue.dataset(&dataset_of_bucket(bucket)).map_or(0, |dataset| dataset.active_job);
        if job == 0 {
            return Ok(());
        }
        let why = format!(
            "The bucket {bucket:?} is being migrated to another upstream: wait with `mlgw job wait {job}`, \
             or cancel with `mlgw job cancel {job}`."
        );
        Err(ApiError::new(StatusCode::CONFLICT, "BucketBusy", why))
    }
}

/// Checks that neither prefix contains the other at the same upstream.
fn check_apart(bucket: &str, from: &Binding, to: &MigrateTo) -> Result<(), ApiError> {
    let (here, there) = (&from.prefix, &to.prefix);
    if from.upstream != to.upstream || !(here.starts_with(there) || there.starts_with(here)) {
        return Ok(());
    }
    Err(ApiError::invalid(format!(
        "The bucket {bucket:?} is bound to {here:?} in the upstream {:?}, which overlaps with {there:?}.",
        from.upstream
    )))
}

#[cfg(test)]
mod tests {
    use super::check_apart;
    use mlgw_formats::schema::{Binding, MigrateTo};

    #[test]
    fn a_bucket_is_not_moved_into_itself() {
        let is_apart = |upstream: &str, here: &str, there: &str| {
            let from = Binding { upstream: "u".into(), prefix: here.into(), ..Binding::default() };
            check_apart("b", &from, &MigrateTo { upstream: upstream.into(), prefix: there.into() }).is_ok()
        };
        assert!(is_apart("v", "", "") && is_apart("v", "a/", "a/") && is_apart("u", "a/", "b/"));
        assert!(!is_apart("u", "a/", "a/") && !is_apart("u", "", "a/") && !is_apart("u", "a/b/", "a/"));
    }
}

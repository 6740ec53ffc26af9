//! `/v1/workload-plans`: access plans, by which workloads announce their reads.
//!
//! The prefix in a plan is expanded to its keys when the plan is stored: they are listed in the catalogue or
//! at the origin.

use super::change::{AuditedAction, AuditedChange, json, parse};
use super::extract::AdminPath;
use super::signed::AdminCaller;
use super::words::plan_sampler;
use super::{Admin, ApiError};
use axum::body::Bytes;
use axum::extract::State;
use axum::response::Response;
use axum::{Extension, Json};
use http::StatusCode;
use mlgw_api::{AccessPlanInfo, AccessPlanList, NewAccessPlan};
use mlgw_background::access_plans::{AccessPlan, AccessPlanError, AccessPlanOwner, check};
use mlgw_cache::remote_backed::CachedBucket;
use mlgw_common::time::Instant;
use mlgw_formats::schema::Bucket;
use mlgw_policies::language::{PlanDocument, PlannedKeys};
use mlgw_policies::plan::{InvalidAccessPlan, KEYS_MAX, Plan, PlanSchedule, TEXT_BYTES_MAX};
use mlgw_remote::origin::{ListLine, ListQuery};
use mlgw_wire::error::{Code, S3Error};
use serde_json::Value;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

/// Keys of a page.
const PAGE_KEYS: usize = 1000;
/// Time limit for listing the keys of a prefix: enough for two million keys at an origin that needs 250 ms
/// per thousand.
pub(crate) const LISTING_MAX: Duration = Duration::from_secs(540);

pub(super) async fn list(State(admin): State<Arc<Admin>>) -> Result<Json<AccessPlanList>, ApiError> {
    let plans = run_blocking(&admin, |admin| Ok(admin.plans.list())).await?;
    Ok(Json(AccessPlanList { plans: plans.into_iter().map(access_plan_info).collect() }))
}

pub(super) async fn show(
    State(admin): State<Arc<Admin>>,
    AdminPath(plan): AdminPath<String>,
) -> Result<Json<AccessPlanInfo>, ApiError> {
    Ok(Json(access_plan_info(run_blocking(&admin, move |admin| admin.plans.show(&plan)).await?)))
}

pub(super) async fn put(
    State(admin): State<Arc<Admin>>,
    Extension(caller): Extension<AdminCaller>,
    AdminPath(id): AdminPath<String>,
    body: Bytes,
) -> Result<Response, ApiError> {
    let new: NewAccessPlan = parse(&body)?;
    drop(body);
    check(&id).map_err(plan_refusal)?;
    let action = AuditedAction { action: "workload.plan.put", resource: id.clone(), status: StatusCode::OK };
    let shared = Arc::clone(&admin);
    let work = async move {
        let (about, plan) = shared.parse_plan(new).await?;
        let putting = id.clone();
        let (before, after) =
            run_blocking(&shared, move |admin| admin.plans.put(&putting, about, plan)).await?;
        let before = before.map(access_plan_info);
        Ok(AuditedChange {
            resource: id,
            before: json(&before)?,
            after: json(&access_plan_info(after))?,
            answer: None,
        })
    };
    admin.change(caller, action, work).await
}

pub(super) async fn delete(
    State(admin): State<Arc<Admin>>,
    Extension(caller): Extension<AdminCaller>,
    AdminPath(id): AdminPath<String>,
) -> Result<Response, ApiError> {
    let action =
        AuditedAction { action: "workload.plan.delete", resource: id.clone(), status: StatusCode::OK };
    let shared = Arc::clone(&admin);
    let work = async move {
        let deleting = id.clone();
        let before =
            access_plan_info(run_blocking(&shared, move |admin| admin.plans.delete(&deleting)).await?);
        Ok(AuditedChange { resource: id, before: json(&before)?, after: Value::Null, answer: None })
    };
    admin.change(caller, action, work).await
}

/// Runs work that waits for the disk on a blocking thread.
async fn run_blocking<T: Send + 'static>(
    admin: &Arc<Admin>,
    work: impl FnOnce(&Admin) -> Result<T, AccessPlanError> + Send + 'static,
) -> Result<T, ApiError> {
    let admin = Arc::clone(admin);
    let done = tokio::task::spawn_blocking(move || work(&admin)).await;
    done.map_err(S3Error::internal)?.map_err(plan_refusal)
}

fn plan_refusal(error: AccessPlanError) -> ApiError {
    let message = format!("{error}.");
    match error {
        AccessPlanError::BadId(_) | AccessPlanError::BadWorkload(_) => ApiError::invalid(message),
        AccessPlanError::TooMany | AccessPlanError::TooManyKeys(_) | AccessPlanError::Engine(_) => {
            ApiError::new(StatusCode::CONFLICT, "TooManyPlans", message)
        }
        AccessPlanError::NoSuchPlan(_) => ApiError::new(StatusCode::NOT_FOUND, "NoSuchPlan", message),
        AccessPlanError::Io(..) => ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", message),
    }
}

fn access_plan_info(plan: AccessPlan) -> AccessPlanInfo {
    let put = plan.put().to_string();
    let AccessPlan { id, about, reading, keys, followed, workloads } = plan;
    let PlanSchedule { sampler, seed, first_epoch, epochs, ranks, rank, drop_last } = reading;
    AccessPlanInfo {
        id,
        workload: about.workload,
        bucket: about.bucket,
        put,
        keys: keys.into(),
        sampler: plan_sampler(sampler),
        seed,
        first_epoch,
        epochs,
        ranks,
        rank,
        drop_last,
        trusted: followed.is_some_and(|it| it.is_trusted),
        epoch: followed.map_or(first_epoch, |it| it.epoch),
        read: followed.map_or(0, |it| it.read.into()),
        reads: followed.map_or(0, |it| it.keys.into()),
        workloads,
    }
}

fn invalid_plan(message: String) -> ApiError {
    ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, "InvalidPlan", message)
}

impl Admin {
    /// Parses a plan document and expands its prefix. Returns the plan and its owner.
    async fn parse_plan(self: &Arc<Self>, new: NewAccessPlan) -> Result<(AccessPlanOwner, Plan), ApiError> {
        let NewAccessPlan { workload, name, text } = new;
        let file = name.clone();
        let parsed = tokio::task::spawn_blocking(move || PlanDocument::parse(&file, &text)).await;
        let document = parsed
            .map_err(S3Error::internal)?
            .map_err(|diagnostics| invalid_plan(format!("{name} is invalid:\n{diagnostics}")))?;
        let bucket = self.stored.catalogue.bucket(&document.bucket);
        let bucket = bucket.ok_or_else(|| S3Error::new(Code::NoSuchBucket))?;
        let about =
            AccessPlanOwner { workload, bucket: bucket.name.clone(), bucket_id: bucket.id, put_ms: 0 };
        let reading = document.schedule;
        let keys = match document.keys {
            PlannedKeys::Listed(keys) => keys,
            PlannedKeys::Prefix(prefix) => self.keys_of(&bucket, &prefix).await?,
        };
        let made = tokio::task::spawn_blocking(move || Plan::new(keys.iter().map(|key| &**key), reading));
        let plan = made.await.map_err(S3Error::internal)?;
        Ok((about, plan.map_err(|why| invalid_plan(format!("{name} is invalid: {why}")))?))
    }

    /// Lists the keys of a bucket with a prefix, in byte order.
    async fn keys_of(
        self: &Arc<Self>,
        bucket: &Arc<Bucket>,
        prefix: &str,
    ) -> Result<Vec<Box<str>>, ApiError> {
        let mut found = PlanKeyListing { keys: Vec::new(), bytes: 0, until: Instant::now() + LISTING_MAX };
        let found = if bucket.binding.is_some() {
            let bound = self.remote_backed_bucket(&bucket.name)?;
            self.list_origin(&bound, prefix, &mut found).await?;
            found
        } else {
            let (admin, bucket, prefix) = (Arc::clone(self), Arc::clone(bucket), prefix.to_owned());
            let listed = tokio::task::spawn_blocking(move || {
                admin.list_own(&bucket, &prefix, &mut found)?;
                Ok::<_, ApiError>(found)
            });
            listed.await.map_err(S3Error::internal)??
        };
        Ok(found.keys)
    }

    async fn list_origin(
        &self,
        bound: &CachedBucket,
        prefix: &str,
        found: &mut PlanKeyListing,
    ) -> Result<(), ApiError> {
        let mut query = ListQuery { prefix: prefix.to_owned(), max_keys: PAGE_KEYS, ..ListQuery::default() };
        loop {
            let page = bound.list(query.clone()).await;
            let page = page.map_err(|error| self.upstream_failed(bound.upstream(), &error))?;
            for line in page.lines {
                if let ListLine::Object(key, _) = line {
                    found.add(&key)?;
                }
            }
            let Some(token) = page.next else { return Ok(()) };
            query.token = Some(token);
            found.check_time()?;
        }
    }

    fn list_own(&self, bucket: &Bucket, prefix: &str, found: &mut PlanKeyListing) -> Result<(), ApiError> {
        let reader = self.stored.catalogue.reader();
        let from = if prefix.is_empty() { Bound::Unbounded } else { Bound::Included(prefix.as_bytes()) };
        for (number, row) in reader.scan(bucket.bucket_id(), from).enumerate() {
            let (key, entry) = row.map_err(S3Error::from)?;
            if !key.as_str().starts_with(prefix) {
                break;
            }
            if !entry.version().map_err(S3Error::from)?.delete_marker {
                found.add(key.as_str())?;
            }
            if number % PAGE_KEYS == 0 {
                found.check_time()?;
            }
        }
        Ok(())
    }
}

/// Keys listed so far, with their limits.
struct PlanKeyListing {
    keys: Vec<Box<str>>,
    bytes: usize,
    until: Instant,
}

impl PlanKeyListing {
    fn add(&mut self, key: &str) -> Result<(), ApiError> {
        let too =
            |why: InvalidAccessPlan| Err(invalid_plan(format!("The prefix contains too many keys: {why}.")));
        if self.keys.len() == KEYS_MAX {
            return too(InvalidAccessPlan::TooManyKeys);
        }
        self.bytes += key.len();
        if self.bytes > TEXT_BYTES_MAX {
            return too(InvalidAccessPlan::TooLong);
        }
        self.keys.push(key.into());
        Ok(())
    }

    fn check_time(&self) -> Result<(), ApiError> {
        if Instant::now() < self.until {
            return Ok(());
        }
        let why = format!(
            "Listing the prefix took more than {} seconds, with {} keys so far: list the keys in the plan \
             instead.",
            LISTING_MAX.as_secs(),
            self.keys.len()
        );
        Err(ApiError::new(StatusCode::GATEWAY_TIMEOUT, "ListingTooSlow", why))
    }
}

#[cfg(test)]
mod tests {
    use super::PlanKeyListing;
    use mlgw_common::time::Instant;
    use mlgw_policies::plan::{KEYS_MAX, TEXT_BYTES_MAX};
    use std::time::Duration;

    #[test]
    fn a_listing_ends_at_limits_and_in_time() {
        let mut found = PlanKeyListing { keys: Vec::new(), bytes: 0, until: Instant::now() };
        assert_eq!(found.check_time().unwrap_err().code, "ListingTooSlow");
        found.until = Instant::now() + Duration::from_secs(3600);
        assert!(found.check_time().is_ok() && found.add("a").is_ok());
        found.keys.resize(KEYS_MAX, "".into());
        assert!(found.add("a").unwrap_err().message.contains("more than"));
        (found.keys, found.bytes) = (Vec::new(), TEXT_BYTES_MAX);
        assert!(found.add("a").unwrap_err().message.contains("bytes"));
    }
}

//! `/v1/buckets/{bucket}/binding` and `…/refresh`: remote-backed buckets, which front a bucket of another
//! object store.

use super::buckets::{bucket_name, find, info};
use super::change::{AuditedAction, AuditedChange, json, parse, parse_optional};
use super::extract::AdminPath;
use super::signed::AdminCaller;
use super::words::bind_mode;
use super::{Admin, ApiError};
use axum::Extension;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::Response;
use http::StatusCode;
use mlgw_api::{BindRequest, RefreshRequest, RefreshResult};
use mlgw_background::jobs::dataset_of_bucket;
use mlgw_cache::remote_backed::CachedBucket;
use mlgw_common::SplitKeys;
use mlgw_config::SettingType as _;
use mlgw_formats::schema::{BindMode, Binding, Bucket};
use mlgw_metadata::{DeleteBucketError, NewBucket};
use mlgw_remote::origin::{ListQuery, OriginError};
use mlgw_wire::access::OWNER;
use mlgw_wire::error::{Code, S3Error};
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;

/// Parses the binding that `request` specifies.
fn parse_binding(request: &BindRequest) -> Result<Binding, ApiError> {
    let mode = request.mode.map_or(BindMode::ReadThrough, bind_mode);
    let ttl = request.ttl.as_deref().map(|text| {
        let wrong = |why| ApiError::invalid(format!("ttl: {why}; expected {}", Duration::EXPECTS));
        Duration::from_text(text).map_err(wrong)
    });
    let ttl_ms = ttl.transpose()?.map(|ttl| u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX));
    let (upstream, prefix) = (request.upstream.clone(), request.prefix.clone());
    Ok(Binding { upstream, prefix, mode: mode as i32, ttl_ms })
}

pub(super) async fn bind(
    State(admin): State<Arc<Admin>>,
    Extension(caller): Extension<AdminCaller>,
    AdminPath(name): AdminPath<String>,
    body: Bytes,
) -> Result<Response, ApiError> {
    let request: BindRequest = parse(&body)?;
    let audited =
        AuditedAction { action: "bucket.bind", resource: name.clone(), status: StatusCode::CREATED };
    let this = Arc::clone(&admin);
    let work = async move {
        let name = bucket_name(&name)?;
        let binding = parse_binding(&request)?;
        this.check_origin(&binding).await?;
        let region = this.loaded.load().config.s3.region.clone();
        let resource = name.as_str().to_owned();
        let new = NewBucket {
            name,
            owner: OWNER.to_owned(),
            region,
            binding: Some(binding),
            split_keys: SplitKeys::default(),
        };
        let catalogue = &this.stored.catalogue;
        let bucket = catalogue.create_bucket(new).await.map_err(S3Error::from)?;
        let after = json(&info(catalogue, &bucket)?)?;
        Ok(AuditedChange { resource, before: Value::Null, after, answer: None })
    };
    admin.change(caller, audited, work).await
}

pub(super) async fn unbind(
    State(admin): State<Arc<Admin>>,
    Extension(caller): Extension<AdminCaller>,
    AdminPath(name): AdminPath<String>,
) -> Result<Response, ApiError> {
    let audited = AuditedAction { action: "bucket.unbind", resource: name.clone(), status: StatusCode::OK };
    let this = Arc::clone(&admin);
    let work = async move {
        let bound = this.remote_backed_bucket(&name);
        let found = find(&this.stored.catalogue, &name)?;
        if found.binding.is_none() {
            return Err(ApiError::invalid(format!("The bucket {name:?} is not remote-backed.")));
        }
        this.check_not_migrating(&name)?;
        let id = this.stored.catalogue.bucket(&name).map(|bucket| bucket.bucket_id());
        this.stored.catalogue.delete_bucket(&bucket_name(&name)?).await.map_err(|error| match error {
            DeleteBucketError::NotEmpty => S3Error::new(Code::BucketNotEmpty).message(format!(
                "Some writes to the bucket {name:?} are not yet at its upstream: wait for them with `mlgw \
                 bucket flush {name}`."
            )),
            error => S3Error::from(error),
        })?;
        id.inspect(|id| this.writeback.forget(*id));
        // The dataset exists only if the bucket was migrated before.
        drop(this.stored.catalogue.delete_dataset(&dataset_of_bucket(&name)).await);
        // If the upstream is no longer configured, its copies remain unreachable until they are evicted
        // to make room for others.
        if let Ok(bound) = bound {
            tokio::task::spawn_blocking(move || bound.forget());
        }
        Ok(AuditedChange { resource: name, before: json(&found)?, after: Value::Null, answer: None })
    };
    admin.change(caller, audited, work).await
}

pub(super) async fn refresh(
    State(admin): State<Arc<Admin>>,
    Extension(caller): Extension<AdminCaller>,
    AdminPath(name): AdminPath<String>,
    body: Bytes,
) -> Result<Response, ApiError> {
    let request: RefreshRequest = parse_optional(&body)?;
    let audited = AuditedAction { action: "bucket.refresh", resource: name.clone(), status: StatusCode::OK };
    let bound = admin.remote_backed_bucket(&name)?;
    let work = async move {
        let refreshed = tokio::task::spawn_blocking(move || bound.refresh(&request.prefix)).await;
        let objects = refreshed.map_err(|stopped| S3Error::internal(stopped.to_string()))?;
        let after = json(&RefreshResult { objects })?;
        Ok(AuditedChange { resource: name, before: Value::Null, after, answer: None })
    };
    admin.change(caller, audited, work).await
}

impl Admin {
    pub(super) fn remote_backed_bucket(&self, name: &str) -> Result<CachedBucket, ApiError> {
        let bucket = self.stored.catalogue.bucket(name);
        let bucket = bucket.ok_or_else(|| S3Error::new(Code::NoSuchBucket))?;
        let Some(binding) = &bucket.binding else {
            return Err(ApiError::invalid(format!("The bucket {name:?} is not remote-backed.")));
        };
        self.stored
            .remote_backed
            .bucket(&bucket, binding)
            .ok_or_else(|| self.no_such_upstream(&binding.upstream))
    }

    /// Lists one key of the origin, so that a binding that cannot work is refused.
    async fn check_origin(&self, binding: &Binding) -> Result<(), ApiError> {
        let bound = self.stored.remote_backed.bucket(&Bucket::default(), binding);
        let bound = bound.ok_or_else(|| self.no_such_upstream(&binding.upstream))?;
        let query = ListQuery { max_keys: 1, ..ListQuery::default() };
        bound.list(query).await.map(drop).map_err(|error| {
            let why = format!(
                "The upstream {:?} cannot be listed: {error}. The bucket was not bound; see the settings of \
                 the upstream with `mlgw config show`.",
                binding.upstream
            );
            ApiError::new(StatusCode::BAD_GATEWAY, "UpstreamFailed", why)
        })
    }

    /// Returns the error for a failed request to an origin.
    pub(super) fn upstream_failed(&self, upstream: &str, error: &OriginError) -> ApiError {
        let why = format!("The upstream {upstream:?}: {error}.");
        ApiError::new(StatusCode::BAD_GATEWAY, "UpstreamFailed", why)
    }

    pub(super) fn no_such_upstream(&self, name: &str) -> ApiError {
        let known = self.stored.remote_backed.upstreams();
        let there_are = if known.is_empty() {
            "None is configured".to_owned()
        } else {
            format!("Configured: {}", known.join(", "))
        };
        ApiError::invalid(format!(
            "Upstream {name:?} is not configured, or is not of kind s3. {there_are}. Add a section \
             [upstream.{name}] to the configuration."
        ))
    }
}

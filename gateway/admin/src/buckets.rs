//! `/v1/buckets`: buckets and their contents.

use super::change::{AuditedAction, AuditedChange, json, parse};
use super::extract::{AdminPath, AdminQuery};
use super::signed::AdminCaller;
use super::words::binding_mode;
use super::{Admin, ApiError};
use axum::body::Bytes;
use axum::extract::State;
use axum::response::Response;
use axum::{Extension, Json};
use http::StatusCode;
use mlgw_api::{BindingInfo, BucketInfo, BucketPage, KeyRangeInfo, NewBucketRequest, QuotaRequest};
use mlgw_common::{BucketName, SplitKeys, Timestamp};
use mlgw_config::SettingType as _;
use mlgw_credentials::quota::{parse_request, quota_info, used_info};
use mlgw_formats::schema::{Binding, Bucket};
use mlgw_metadata::{Catalogue, NewBucket};
use mlgw_wire::access::OWNER;
use mlgw_wire::error::{Code, S3Error};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;

/// Maximum number of buckets on a page; each costs a read of its counters.
const PAGE_BUCKETS_MAX: usize = 1000;

/// Query parameters: page of the listing.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct PageQuery {
    /// Only buckets after this name.
    after: Option<String>,
    /// Maximum number of results.
    #[schemars(range(min = 1, max = PAGE_BUCKETS_MAX))]
    max: Option<usize>,
}

pub(super) async fn list(
    State(admin): State<Arc<Admin>>,
    AdminQuery(page): AdminQuery<PageQuery>,
) -> Result<Json<BucketPage>, ApiError> {
    let max = page.max.unwrap_or(PAGE_BUCKETS_MAX).clamp(1, PAGE_BUCKETS_MAX);
    let found = admin.stored.catalogue.buckets(None, page.after.as_deref(), max);
    let next = (found.len() == max).then(|| found.last().map(|bucket| bucket.name.clone())).flatten();
    let buckets =
        found.iter().map(|bucket| info(&admin.stored.catalogue, bucket)).collect::<Result<_, _>>()?;
    Ok(Json(BucketPage { buckets, next }))
}

pub(super) async fn show(
    State(admin): State<Arc<Admin>>,
    AdminPath(name): AdminPath<String>,
) -> Result<Json<BucketInfo>, ApiError> {
    Ok(Json(find(&admin.stored.catalogue, &name)?))
}

pub(super) async fn create(
    State(admin): State<Arc<Admin>>,
    Extension(caller): Extension<AdminCaller>,
    body: Bytes,
) -> Result<Response, ApiError> {
    let request: NewBucketRequest = parse(&body)?;
    let action = AuditedAction {
        action: "bucket.create",
        resource: request.name.clone(),
        status: StatusCode::CREATED,
    };
    let region = request.region.unwrap_or_else(|| admin.loaded.load().config.s3.region.clone());
    let catalogue = admin.stored.catalogue.clone();
    let work = async move {
        let name = bucket_name(&request.name)?;
        let split_keys = SplitKeys::new(&request.split_keys)
            .map_err(|why| ApiError::invalid(format!("split_keys: {why}.")))?;
        let new = NewBucket { name, owner: OWNER.to_owned(), region, binding: None, split_keys };
        let bucket = catalogue.create_bucket(new).await.map_err(S3Error::from)?;
        let after = json(&info(&catalogue, &bucket)?)?;
        Ok(AuditedChange { resource: request.name, before: Value::Null, after, answer: None })
    };
    admin.change(caller, action, work).await
}

pub(super) async fn delete(
    State(admin): State<Arc<Admin>>,
    Extension(caller): Extension<AdminCaller>,
    AdminPath(name): AdminPath<String>,
) -> Result<Response, ApiError> {
    let action = AuditedAction { action: "bucket.delete", resource: name.clone(), status: StatusCode::OK };
    let catalogue = admin.stored.catalogue.clone();
    let work = async move {
        let found = find(&catalogue, &name)?;
        if found.binding.is_some() {
            let why =
                format!("The bucket {name:?} is remote-backed: remove it with `mlgw bucket unbind {name}`.");
            return Err(ApiError::invalid(why));
        }
        let before = json(&found)?;
        catalogue.delete_bucket(&bucket_name(&name)?).await.map_err(S3Error::from)?;
        Ok(AuditedChange { resource: name, before, after: Value::Null, answer: None })
    };
    admin.change(caller, action, work).await
}

pub(super) async fn change_quota(
    State(admin): State<Arc<Admin>>,
    Extension(caller): Extension<AdminCaller>,
    AdminPath(name): AdminPath<String>,
    body: Bytes,
) -> Result<Response, ApiError> {
    let request: QuotaRequest = parse(&body)?;
    let change = parse_request(&request).map_err(ApiError::invalid)?;
    let action = AuditedAction { action: "bucket.quota", resource: name.clone(), status: StatusCode::OK };
    let catalogue = admin.stored.catalogue.clone();
    let work = async move {
        let changed = catalogue.change_bucket_quota(&name, |quota| change.apply(quota)).await;
        let (before, after) = changed.map_err(S3Error::from)?;
        let (before, after) = (json(&info(&catalogue, &before)?)?, json(&info(&catalogue, &after)?)?);
        Ok(AuditedChange { resource: name, before, after, answer: None })
    };
    admin.change(caller, action, work).await
}

pub(super) fn bucket_name(name: &str) -> Result<BucketName, ApiError> {
    let invalid =
        |why: mlgw_common::NameError| S3Error::new(Code::InvalidBucketName).message(why.to_string());
    Ok(BucketName::new(name).map_err(invalid)?)
}

pub(super) fn find(catalogue: &Catalogue, name: &str) -> Result<BucketInfo, ApiError> {
    let bucket = catalogue.bucket(name).ok_or_else(|| S3Error::new(Code::NoSuchBucket))?;
    info(catalogue, &bucket)
}

pub(super) fn info(catalogue: &Catalogue, bucket: &Bucket) -> Result<BucketInfo, ApiError> {
    let usage = catalogue.usage(bucket.bucket_id()).map_err(S3Error::from)?;
    Ok(BucketInfo {
        name: bucket.name.clone(),
        owner: bucket.owner.clone(),
        created: Timestamp(bucket.created_ms).to_string(),
        region: bucket.region.clone(),
        objects: usage.objects,
        versions: usage.versions,
        bytes: usage.bytes,
        uploads: usage.uploads,
        upload_bytes: usage.upload_bytes,
        binding: bucket.binding.as_ref().map(binding_info),
        quota: quota_info(bucket.quota),
        used: used_info(&usage),
        ranges: key_ranges(catalogue, bucket),
    })
}

/// Returns the ranges of a bucket. Split keys are UTF-8.
fn key_ranges(catalogue: &Catalogue, bucket: &Bucket) -> Vec<KeyRangeInfo> {
    let text = |from: Vec<u8>| String::from_utf8_lossy(&from).into_owned();
    let ranges = catalogue.bucket_ranges(bucket.bucket_id()).into_iter();
    ranges.map(|(from, group)| KeyRangeInfo { from: text(from), group }).collect()
}

/// Converts a binding to its API type.
fn binding_info(binding: &Binding) -> BindingInfo {
    BindingInfo {
        upstream: binding.upstream.clone(),
        prefix: binding.prefix.clone(),
        mode: binding_mode(binding.mode()),
        ttl: binding.ttl_ms.map(|ms| Duration::from_millis(ms).to_text()),
    }
}

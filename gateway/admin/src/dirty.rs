//! `/v1/buckets/{bucket}/dirty` and `…/discard`: writes of write-back buckets that have not reached their
//! origin yet.

use super::change::{AuditedAction, AuditedChange, json};
use super::extract::AdminPath;
use super::signed::AdminCaller;
use super::{Admin, ApiError};
use axum::extract::State;
use axum::response::Response;
use axum::{Extension, Json};
use http::StatusCode;
use mlgw_api::{DirtyInfo, DiscardResult};
use mlgw_cache::writeback::{DirtySummary, WriteBackQueue};
use mlgw_common::Timestamp;
use mlgw_wire::error::{Code, S3Error};
use serde_json::Value;
use std::sync::Arc;

fn dirty_info(dirty: DirtySummary) -> DirtyInfo {
    DirtyInfo {
        writes: dirty.writes,
        bytes: dirty.bytes,
        oldest: dirty.oldest_ms.map(|ms| Timestamp(ms).to_string()),
        foreign_writes: dirty.foreign_writes,
        foreign: dirty.foreign,
        trouble: dirty.trouble,
        unconfirmed: dirty.unconfirmed,
        stuck: dirty.stuck,
    }
}

pub(super) async fn show(
    State(admin): State<Arc<Admin>>,
    AdminPath(name): AdminPath<String>,
) -> Result<Json<DirtyInfo>, ApiError> {
    Ok(Json(dirty_info(admin.dirty_of(&name)?.dirty())))
}

pub(super) async fn discard(
    State(admin): State<Arc<Admin>>,
    Extension(caller): Extension<AdminCaller>,
    AdminPath(name): AdminPath<String>,
) -> Result<Response, ApiError> {
    let action = AuditedAction { action: "bucket.discard", resource: name.clone(), status: StatusCode::OK };
    let queue = admin.dirty_of(&name)?;
    let discarding = Arc::clone(&admin);
    let work = async move {
        let before = json(&dirty_info(queue.dirty()))?;
        let writes = discarding.writeback.discard(&queue).await.map_err(S3Error::from)?;
        let after = json(&DiscardResult { writes })?;
        Ok(AuditedChange { resource: name, before, after, answer: None::<Value> })
    };
    admin.change(caller, action, work).await
}

impl Admin {
    fn dirty_of(&self, name: &str) -> Result<Arc<WriteBackQueue>, ApiError> {
        let bucket = self.stored.catalogue.bucket(name).ok_or_else(|| S3Error::new(Code::NoSuchBucket))?;
        let queue = self.writeback.queue(&bucket).map_err(S3Error::from)?;
        queue.ok_or_else(|| {
            ApiError::invalid(format!("The bucket {name:?} is not remote-backed with the mode write-back."))
        })
    }
}

//! `/v1/store/backup`: a backup of the data directory while it is in use. Every storage node of a cluster has
//! this route, and backs up the whole cluster.
//!
//! At most one backup runs at a time. It continues if its caller disconnects; its state can be requested at
//! any time. A backup that is interrupted by the end of the server has no file list and is not valid.

use super::ApiError;
use super::change::{AuditedAction, AuditedChange, json, parse};
use super::context::AdminContext;
use super::signed::AdminCaller;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::Response;
use axum::{Extension, Json};
use http::StatusCode;
use mlgw_api::{BackupState, BackupStatus, NewBackup};
use mlgw_segments::hot::HotTier;
use mlgw_store::{StoreLocation, UpstreamData, backup_serving};
use serde_json::Value;
use std::path::PathBuf;
use std::sync::Arc;

pub(super) async fn show(State(context): State<AdminContext>) -> Json<BackupStatus> {
    Json(context.backup_status())
}

pub(super) async fn start(
    State(context): State<AdminContext>,
    Extension(caller): Extension<AdminCaller>,
    body: Bytes,
) -> Result<Response, ApiError> {
    let NewBackup { out, leave_upstreams } = parse(&body)?;
    let action =
        AuditedAction { action: "store.backup", resource: out.clone(), status: StatusCode::ACCEPTED };
    let shared = context.clone();
    let work = async move {
        let upstream_data = if leave_upstreams { UpstreamData::LeftInPlace } else { UpstreamData::Refused };
        shared.start_backup(&out, upstream_data)?;
        let after = json(&shared.backup_status())?;
        Ok(AuditedChange { resource: out, before: Value::Null, after, answer: None })
    };
    context.change(caller, action, work).await
}

impl AdminContext {
    fn backup_status(&self) -> BackupStatus {
        self.backups.lock().clone()
    }

    /// Returns the segments to back up.
    fn backed_up(&self) -> Result<HotTier, ApiError> {
        self.segments.clone().ok_or_else(|| {
            let message = "This node has no segments, because it is a gateway or waits at its start: send \
                           the request to a storage node that serves.";
            ApiError::new(StatusCode::CONFLICT, "NothingStored", message)
        })
    }

    fn start_backup(&self, out: &str, upstream_data: UpstreamData) -> Result<(), ApiError> {
        let hot = self.backed_up()?;
        let path = PathBuf::from(out);
        if !path.is_absolute() {
            return Err(ApiError::invalid(format!("{out:?} is not an absolute path on the server's host.")));
        }
        let mut status = self.backups.lock();
        if status.state == BackupState::Running {
            let message = format!("A backup to {} is running.", status.out);
            return Err(ApiError::new(StatusCode::CONFLICT, "BackupRunning", message));
        }
        *status =
            BackupStatus { state: BackupState::Running, out: out.to_owned(), ..BackupStatus::default() };
        drop(status);
        let context = self.clone();
        tokio::spawn(async move { context.make_backup(path, upstream_data, &hot).await });
        Ok(())
    }

    async fn make_backup(&self, out: PathBuf, upstream_data: UpstreamData, hot: &HotTier) {
        let source = StoreLocation::of(&self.loaded.load().config);
        let shared = Arc::clone(&self.backups);
        let watch = move |stage: &'static str, done, total| {
            let mut status = shared.lock();
            stage.clone_into(&mut status.stage);
            (status.done_bytes, status.total_bytes) = (done, total);
        };
        let made = backup_serving(&source, &out, upstream_data, &self.catalogue, hot, &*self.clock, watch);
        let made = made.await;
        let mut status = self.backups.lock();
        assert_eq!(status.state, BackupState::Running, "a backup that ends was running");
        match made {
            Ok(made) => {
                tracing::info!(out = %out.display(), files = made.files, bytes = made.bytes, "backup made");
                status.state = BackupState::Done;
                (status.files, status.done_bytes, status.total_bytes) = (made.files, made.bytes, made.bytes);
            }
            Err(error) => {
                tracing::error!(out = %out.display(), %error, "backup failed");
                status.state = BackupState::Failed;
                status.error = Some(error.to_string());
            }
        }
    }
}

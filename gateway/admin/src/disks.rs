//! `/v1/disks/replace`: takes an empty directory in place of a segment directory of this node that was lost.
//! Every storage node has this route, for its own directories.

use super::ApiError;
use super::change::{AuditedAction, AuditedChange, json, parse, sentence};
use super::context::AdminContext;
use super::signed::AdminCaller;
use axum::Extension;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::Response;
use http::StatusCode;
use mlgw_api::{Health, HealthFinding, ReplaceDiskRequest, ReplacedDiskInfo};
use mlgw_segments::hot::{HotTier, OnlyCopies, RefusedDirectory, ReplaceDirectoryError};
use mlgw_wire::error::S3Error;
use serde_json::Value;
use std::path::PathBuf;

pub(super) async fn replace(
    State(context): State<AdminContext>,
    Extension(caller): Extension<AdminCaller>,
    body: Bytes,
) -> Result<Response, ApiError> {
    context.cluster()?;
    let hot = context.segments()?.clone();
    let request: ReplaceDiskRequest = parse(&body)?;
    let action = AuditedAction {
        action: "disk.replace",
        resource: request.directory.clone(),
        status: StatusCode::ACCEPTED,
    };
    let work = async move {
        let only_copies = if request.accept_loss { OnlyCopies::Accepted } else { OnlyCopies::Refused };
        let dir = PathBuf::from(request.directory);
        let replaced = hot.replace_directory(&dir, only_copies).await?;
        let directory = replaced.dir.display().to_string();
        let lost = replaced.lost.iter().map(|segment| segment.0).collect();
        let after =
            ReplacedDiskInfo { directory: directory.clone(), copied_again: replaced.copied_again, lost };
        Ok(AuditedChange { resource: directory, before: Value::Null, after: json(&after)?, answer: None })
    };
    context.change(caller, action, work).await
}

/// Returns a finding for each segment directory that is not used.
pub(super) fn disk_findings(hot: &HotTier) -> Vec<HealthFinding> {
    hot.refused_directories().iter().map(disk_finding).collect()
}

pub(super) fn disk_finding(refused: &RefusedDirectory) -> HealthFinding {
    let dir = refused.dir.display();
    HealthFinding {
        severity: Health::Critical,
        what: format!("The segment directory {dir} is not used: {}.", refused.fault),
        advice: format!(
            "Mount its disk. If that is lost, mount an empty one there and run `mlgw disk replace {dir}`: \
             other nodes have copies of its segments."
        ),
    }
}

impl From<ReplaceDirectoryError> for ApiError {
    fn from(error: ReplaceDirectoryError) -> Self {
        let message = sentence(&error);
        let conflict = |code| Self::new(StatusCode::CONFLICT, code, message.clone());
        match error {
            ReplaceDirectoryError::NoPeers => Self::new(StatusCode::NOT_FOUND, "NotClustered", message),
            ReplaceDirectoryError::Unknown { .. } => Self::new(StatusCode::NOT_FOUND, "NoSuchDisk", message),
            ReplaceDirectoryError::NotEmpty { .. } => conflict("DiskNotEmpty"),
            ReplaceDirectoryError::OnlyCopies { .. } => conflict("OnlyCopies"),
            ReplaceDirectoryError::Io { .. } => conflict("DiskFailed"),
            ReplaceDirectoryError::Read(error) => S3Error::from(error).into(),
            ReplaceDirectoryError::Stopping => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "Stopping", message)
            }
        }
    }
}

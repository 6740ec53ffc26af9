//! `/v1/status`: the status of the server in one document, in a cluster with the figures of all nodes.

use super::Admin;
use super::health::upstream_findings;
use super::node_status::with_findings;
use super::signed::AdminCaller;
use super::whole_status::whole_status;
use axum::extract::State;
use axum::{Extension, Json};
use mlgw_api::Status;
use mlgw_metadata::ReadError;
use mlgw_telemetry::recent::CounterSnapshot;
use mlgw_wire::error::S3Error;
use std::sync::Arc;

pub(super) async fn show(
    State(admin): State<Arc<Admin>>,
    caller: Extension<AdminCaller>,
) -> Result<Json<Status>, super::ApiError> {
    let Json(own) = show_own(State(Arc::clone(&admin))).await?;
    Ok(Json(whole_status(own, admin.cluster.as_ref(), &caller).await))
}

/// Answers with the part of this node.
pub(super) async fn show_own(State(admin): State<Arc<Admin>>) -> Result<Json<Status>, super::ApiError> {
    answer(move || admin.status()).await
}

/// Returns the answer with a status. Counting the contents of buckets reads the catalogue, which would block
/// an async worker thread too long.
pub(super) async fn answer(
    status: impl FnOnce() -> Result<Status, ReadError> + Send + 'static,
) -> Result<Json<Status>, super::ApiError> {
    let status = tokio::task::spawn_blocking(status).await.map_err(S3Error::internal)?;
    Ok(Json(status.map_err(S3Error::from)?))
}

impl Admin {
    /// Returns the current counters.
    #[must_use]
    pub fn sample(&self) -> CounterSnapshot {
        self.figures().sample()
    }

    fn status(&self) -> Result<Status, ReadError> {
        let node = self.figures();
        let status = Status { policy: Some(self.policy_status()), ..node.status()? };
        let mut more = upstream_findings(&self.upstreams);
        more.extend(node.cluster_findings());
        Ok(with_findings(status, more))
    }
}

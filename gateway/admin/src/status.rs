//! `/v1/status`: the status of the server in one document.

use super::Admin;
use super::health::upstream_findings;
use super::node_status::with_findings;
use axum::Json;
use axum::extract::State;
use mlgw_api::Status;
use mlgw_metadata::ReadError;
use mlgw_telemetry::recent::CounterSnapshot;
use mlgw_wire::error::S3Error;
use std::sync::Arc;

pub(super) async fn show(State(admin): State<Arc<Admin>>) -> Result<Json<Status>, super::ApiError> {
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

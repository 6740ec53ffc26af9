//! Metrics, traces, the access log and the audit log of a server, as its configuration names them.

use super::ServeError;
use super::error::io_error;
use mlgw_config::Config;
use mlgw_store::node_file::NodeDescription;
use mlgw_telemetry::GatewayMetrics;
use mlgw_telemetry::access_log::AccessLog;
use mlgw_telemetry::audit::AuditLog;
use mlgw_telemetry::traces::Traces;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// Returns the metrics of a server, with its access log and its traces.
pub(super) fn metrics_of(config: &Config, node: &NodeDescription) -> Result<GatewayMetrics, ServeError> {
    let mut metrics = GatewayMetrics::new(config.log.slow_request_ms);
    metrics.forwarding = node.is_clustered().then(Arc::default);
    metrics.access_log = AccessLog::start(&config.access_log_dir(), &config.access_log)
        .map_err(io_error("the access log's thread"))?;
    if let Some(endpoint) = &config.traces.endpoint {
        let traces = Traces::start(endpoint, config.traces.one_in, &node.node.to_string());
        let traces = traces.map_err(|error| io_error("traces.endpoint")(io::Error::other(error)))?;
        metrics.traces = Some(traces);
    }
    Ok(metrics)
}

/// Opens the audit log of the data directory `dir`.
pub(super) fn audit_of(config: &Config, dir: &Path) -> Result<Arc<AuditLog>, ServeError> {
    let dir = dir.join("audit");
    let opened = AuditLog::open(&dir, &config.audit);
    opened.map(Arc::new).map_err(io_error(format!("the audit log in {}", dir.display())))
}

/// Sends the remaining traces, if traces are exported.
pub(super) async fn stop_traces(metrics: &GatewayMetrics) {
    if let Some(traces) = &metrics.traces {
        traces.stop().await;
    }
}

//! What a server tells of itself: metrics, logs, traces, status, and the alerts over them.
//!
//! - `alerts`: every alert of deploy/ fires, once its state is brought about, and none does before;
//! - `scrape`: what Prometheus would read;
//! - `promtool`: Prometheus's own evaluation of rules;
//! - `access_log`, `traces`: single requests, in a file and at a collector;
//! - `commands`: `mlgw status`, `mlgw top`, and commands about buckets and objects.

mod access_log;
mod alerts;
mod commands;
mod promtool;
pub(crate) mod scrape;
mod traces;

use crate::server::runtime;

/// The bucket of these tests.
const BUCKET: &str = "observed";

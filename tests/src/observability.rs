//! Observability of a server: metrics, logs, traces, status, and the alerts over them.
//!
//! - `alerts`: every alert of deploy/ fires once its state is reached, and none fires before;
//! - `scrape`: the metrics that Prometheus would read;
//! - `promtool`: Prometheus's own evaluation of rules;
//! - `access_log`, `traces`: single requests, in a file and at a collector;
//! - `commands`: `mlgw status`, `mlgw top`, and commands about buckets and objects;
//! - `completion`: names of a server as a shell completes them.

pub(crate) mod access_log;
mod alerts;
mod commands;
mod completion;
mod promtool;
pub(crate) mod scrape;
mod traces;

use crate::server::runtime;

/// The bucket of these tests.
const BUCKET: &str = "observed";

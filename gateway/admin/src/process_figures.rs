//! Metrics of the process, and the value of a metric that goes up and down.

use mlgw_common::Timestamp;
use mlgw_telemetry::exposition::{MetricFamily, MetricValue};
use mlgw_telemetry::process::ProcessUsage;
use mlgw_telemetry::table::{BUILD_INFO, CPU, OPEN_FILES, OPEN_FILES_LIMIT, RESIDENT, START_TIME};

/// Returns the metrics of the process, which started at a time.
pub(super) fn process_families(started: Timestamp) -> Vec<MetricFamily> {
    let process = ProcessUsage::now();
    let started = started.as_millis() as f64 / 1e3;
    vec![
        MetricFamily::new(BUILD_INFO).with(&[env!("CARGO_PKG_VERSION")], MetricValue::Level(1)),
        MetricFamily::single(START_TIME, MetricValue::Seconds(started)),
        MetricFamily::single(CPU, MetricValue::Seconds(process.cpu_seconds)),
        MetricFamily::single(RESIDENT, level(process.resident_bytes)),
        MetricFamily::single(OPEN_FILES, level(process.open_files)),
        MetricFamily::single(OPEN_FILES_LIMIT, level(process.open_files_max)),
    ]
}

/// Returns a level, which is at most the largest signed number.
pub(super) fn level(value: u64) -> MetricValue {
    MetricValue::Level(i64::try_from(value).unwrap_or(i64::MAX))
}

//! Exposition of metrics in the OpenMetrics text format.
//!
//! Stateless: each scrape reads the counters of the requests and the snapshots of the catalogue and the
//! tiers.

use super::table::{MetricDefinition, MetricKind};
use mlgw_common::histogram::{BOUNDS_MICROS, Durations};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::registry::Registry;
use std::fmt;

/// Content type of the output of [`text`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Value of a metric.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MetricValue {
    /// Value of a counter.
    Count(u64),
    /// Value of a gauge.
    Level(i64),
    /// Value of a counter or gauge in seconds.
    Seconds(f64),
    /// Value of a histogram.
    Durations(Durations),
}

/// Values of one metric, each with its label values in the order of the table.
#[derive(Debug)]
pub struct MetricFamily {
    metric: &'static MetricDefinition,
    values: Vec<(Vec<String>, MetricValue)>,
}

impl MetricFamily {
    /// Returns a family without values.
    #[must_use]
    pub const fn new(metric: &'static MetricDefinition) -> Self {
        Self { metric, values: Vec::new() }
    }

    /// Returns a family of one value without labels.
    #[must_use]
    pub fn single(metric: &'static MetricDefinition, value: MetricValue) -> Self {
        Self::new(metric).with(&[], value)
    }

    /// Returns the family with another value.
    #[must_use]
    pub fn with(mut self, labels: &[&str], value: MetricValue) -> Self {
        self.push(labels, value);
        self
    }

    /// Adds a value.
    pub fn push(&mut self, labels: &[&str], value: MetricValue) {
        assert_eq!(labels.len(), self.metric.labels.len(), "the labels of {}", self.metric.name);
        self.values.push((labels.iter().map(|&label| label.to_owned()).collect(), value));
    }

    fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        if self.values.is_empty() {
            return Ok(());
        }
        let MetricDefinition { doc, kind, labels, .. } = self.metric;
        let unit = self.metric.unit();
        let mut metric =
            encoder.encode_descriptor(self.metric.stem(), doc, unit.as_ref(), kind.metric_type())?;
        for (values, value) in &self.values {
            let set: Vec<(&str, &str)> =
                labels.iter().copied().zip(values.iter().map(String::as_str)).collect();
            if set.is_empty() {
                encode_value(&mut metric, *kind, value)?;
            } else {
                encode_value(&mut metric.encode_family(&set)?, *kind, value)?;
            }
        }
        Ok(())
    }
}

fn encode_value(encoder: &mut MetricEncoder<'_>, kind: MetricKind, value: &MetricValue) -> fmt::Result {
    match value {
        MetricValue::Count(count) => encoder.encode_counter::<NoLabelSet, _, f64>(count, None),
        MetricValue::Level(level) => encoder.encode_gauge(level),
        MetricValue::Seconds(seconds) if kind == MetricKind::Counter => {
            encoder.encode_counter::<NoLabelSet, _, f64>(seconds, None)
        }
        MetricValue::Seconds(seconds) => encoder.encode_gauge(seconds),
        MetricValue::Durations(durations) => {
            let (sum_seconds, count) = (durations.nanos as f64 / 1e9, durations.count());
            encoder.encode_histogram::<NoLabelSet>(sum_seconds, count, &buckets(durations), None)
        }
    }
}

/// Returns the buckets with their upper bounds in seconds.
fn buckets(durations: &Durations) -> Vec<(f64, u64)> {
    let bounds = BOUNDS_MICROS.iter().map(|&micros| micros as f64 / 1e6).chain([f64::INFINITY]);
    bounds.zip(durations.buckets).collect()
}

/// Passes the families of a scrape to the encoder.
#[derive(Debug)]
struct Scrape(Vec<MetricFamily>);

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|family| family.encode(&mut encoder))
    }
}

/// Returns the families as text.
///
/// # Errors
/// Returns the encoder's error; encoding to memory does not fail.
pub fn text(families: Vec<MetricFamily>) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Scrape(families)));
    let mut out = String::new();
    prometheus_client::encoding::text::encode(&mut out, &registry)?;
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::super::table::{METRICS, MetricKind, REQUEST_DURATION};
    use super::{MetricFamily, MetricValue, text};
    use mlgw_common::histogram::DurationHistogram;

    /// The exposed names are those of the table, whatever suffixes the encoder adds to a stem.
    #[test]
    fn every_metric_is_exposed_under_its_name_in_the_table() {
        for metric in METRICS {
            let labels: Vec<&str> = metric.labels.iter().map(|_| "x").collect();
            let value = match metric.kind {
                MetricKind::Counter => MetricValue::Count(7),
                MetricKind::Gauge => MetricValue::Level(7),
                MetricKind::Histogram => {
                    let histogram = DurationHistogram::default();
                    histogram.record(std::time::Duration::from_secs(7));
                    MetricValue::Durations(histogram.snapshot())
                }
            };
            let text = text(vec![MetricFamily::new(metric).with(&labels, value)]).unwrap();
            let sample = match metric.kind {
                MetricKind::Histogram => format!("{}_count", metric.name),
                MetricKind::Counter | MetricKind::Gauge => metric.name.to_owned(),
            };
            let line = text.lines().find(|line| {
                line.starts_with(&format!("{sample}{{")) || line.starts_with(&format!("{sample} "))
            });
            assert!(line.is_some(), "{} is not in\n{text}", metric.name);
            for label in metric.labels {
                assert!(line.unwrap().contains(&format!("{label}=\"x\"")), "{label} in {line:?}");
            }
            assert!(text.contains(metric.doc) && text.ends_with("# EOF\n"), "{text}");
        }
    }

    #[test]
    fn histogram_buckets_are_cumulative() {
        let histogram = DurationHistogram::default();
        for millis in [1, 2, 3] {
            histogram.record(std::time::Duration::from_millis(millis));
        }
        let family = MetricFamily::new(REQUEST_DURATION)
            .with(&["GetObject"], MetricValue::Durations(histogram.snapshot()));
        let text = text(vec![family]).unwrap();
        for line in [
            "mlgw_request_duration_seconds_bucket{le=\"0.001\",op=\"GetObject\"} 1",
            "mlgw_request_duration_seconds_bucket{le=\"0.005\",op=\"GetObject\"} 3",
            "mlgw_request_duration_seconds_bucket{le=\"+Inf\",op=\"GetObject\"} 3",
        ] {
            assert!(text.contains(line), "{text}");
        }
    }
}

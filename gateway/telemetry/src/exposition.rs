//! Writes metrics in the OpenMetrics text format when they are asked for.
//!
//! Nothing is kept here: each scrape reads the counters where they live, in the requests' own and
//! in the snapshots that the catalogue and the tiers give.

use super::table::{Definition, Kind};
use mlgw_common::histogram::{BOUNDS_MICROS, Durations};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::registry::Registry;
use std::fmt;

/// The content type of [`text`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// What one metric has to say.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value {
    /// Of a counter.
    Count(u64),
    /// Of a gauge.
    Level(i64),
    /// Of a counter or gauge whose unit is the second.
    Seconds(f64),
    /// Of a histogram.
    Durations(Durations),
}

/// The values of one metric, each with its labels' values in the order of the table.
#[derive(Debug)]
pub struct Family {
    metric: &'static Definition,
    values: Vec<(Vec<String>, Value)>,
}

impl Family {
    /// A family without values yet.
    #[must_use]
    pub const fn new(metric: &'static Definition) -> Self {
        Self { metric, values: Vec::new() }
    }

    /// A family of one value without labels.
    #[must_use]
    pub fn single(metric: &'static Definition, value: Value) -> Self {
        Self::new(metric).with(&[], value)
    }

    /// Adds a value.
    #[must_use]
    pub fn with(mut self, labels: &[&str], value: Value) -> Self {
        self.push(labels, value);
        self
    }

    /// Adds a value.
    pub fn push(&mut self, labels: &[&str], value: Value) {
        assert_eq!(labels.len(), self.metric.labels.len(), "the labels of {}", self.metric.name);
        self.values.push((labels.iter().map(|&label| label.to_owned()).collect(), value));
    }

    fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        if self.values.is_empty() {
            return Ok(());
        }
        let Definition { doc, kind, labels, .. } = self.metric;
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

fn encode_value(encoder: &mut MetricEncoder<'_>, kind: Kind, value: &Value) -> fmt::Result {
    match value {
        Value::Count(count) => encoder.encode_counter::<NoLabelSet, _, f64>(count, None),
        Value::Level(level) => encoder.encode_gauge(level),
        Value::Seconds(seconds) if kind == Kind::Counter => {
            encoder.encode_counter::<NoLabelSet, _, f64>(seconds, None)
        }
        Value::Seconds(seconds) => encoder.encode_gauge(seconds),
        Value::Durations(durations) => {
            let (sum_seconds, count) = (durations.nanos as f64 / 1e9, durations.count());
            encoder.encode_histogram::<NoLabelSet>(sum_seconds, count, &buckets(durations), None)
        }
    }
}

/// Buckets by their upper bounds in seconds.
fn buckets(durations: &Durations) -> Vec<(f64, u64)> {
    let bounds = BOUNDS_MICROS.iter().map(|&micros| micros as f64 / 1e6).chain([f64::INFINITY]);
    bounds.zip(durations.buckets).collect()
}

/// Hands a scrape's families to the encoder.
#[derive(Debug)]
struct Scrape(Vec<Family>);

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|family| family.encode(&mut encoder))
    }
}

/// The families as text.
///
/// # Errors
/// When an encoder fails, which writing to memory does not.
pub fn text(families: Vec<Family>) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Scrape(families)));
    let mut out = String::new();
    prometheus_client::encoding::text::encode(&mut out, &registry)?;
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::super::table::{Kind, METRICS, REQUEST_DURATION};
    use super::{Family, Value, text};
    use mlgw_common::histogram::Histogram;

    /// The names that the encoder shows are those of the table, whatever it adds to a stem.
    #[test]
    fn every_metric_is_shown_under_the_name_of_the_table() {
        for metric in METRICS {
            let labels: Vec<&str> = metric.labels.iter().map(|_| "x").collect();
            let value = match metric.kind {
                Kind::Counter => Value::Count(7),
                Kind::Gauge => Value::Level(7),
                Kind::Histogram => {
                    let histogram = Histogram::default();
                    histogram.record(std::time::Duration::from_secs(7));
                    Value::Durations(histogram.snapshot())
                }
            };
            let text = text(vec![Family::new(metric).with(&labels, value)]).unwrap();
            let sample = match metric.kind {
                Kind::Histogram => format!("{}_count", metric.name),
                Kind::Counter | Kind::Gauge => metric.name.to_owned(),
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
        let histogram = Histogram::default();
        for millis in [1, 2, 3] {
            histogram.record(std::time::Duration::from_millis(millis));
        }
        let family =
            Family::new(REQUEST_DURATION).with(&["GetObject"], Value::Durations(histogram.snapshot()));
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

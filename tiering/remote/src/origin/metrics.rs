//! Counters of requests to an origin and of their results.

use super::OriginError;
use mlgw_common::histogram::{DurationHistogram, Durations};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Counters of an origin since it was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OriginMetrics {
    /// Requests, each retry counted, by operation (`list`, `get`, `put` and so on) and by result (`ok` or one
    /// word for the error).
    pub requests: BTreeMap<(&'static str, &'static str), u64>,
    /// Time from the moment a request may be sent until its response head arrived or it failed, by operation.
    pub durations: BTreeMap<&'static str, Durations>,
    /// Bytes of response bodies received.
    pub received_bytes: u64,
    /// Bytes of request bodies sent, each retry counted.
    pub sent_bytes: u64,
}

/// Live counters of an origin.
#[derive(Debug, Default)]
pub(super) struct OriginCounters {
    requests: Mutex<BTreeMap<(&'static str, &'static str), u64>>,
    durations: Mutex<BTreeMap<&'static str, DurationHistogram>>,
    pub(super) received_bytes: AtomicU64,
    pub(super) sent_bytes: AtomicU64,
}

impl OriginCounters {
    /// Counts a request and the time until its response began.
    pub(super) fn add(&self, operation: &'static str, failed: Option<&OriginError>, took: Duration) {
        self.durations.lock().entry(operation).or_default().record(took);
        *self.requests.lock().entry((operation, failed.map_or("ok", label))).or_default() += 1;
    }

    pub(super) fn metrics(&self) -> OriginMetrics {
        OriginMetrics {
            requests: self.requests.lock().clone(),
            durations: self
                .durations
                .lock()
                .iter()
                .map(|(operation, took)| (*operation, took.snapshot()))
                .collect(),
            received_bytes: self.received_bytes.load(Relaxed),
            sent_bytes: self.sent_bytes.load(Relaxed),
        }
    }
}

/// Metric label of an error.
const fn label(error: &OriginError) -> &'static str {
    match error {
        OriginError::NoSuchKey | OriginError::NoSuchBucket => "absent",
        OriginError::Denied(_) => "denied",
        OriginError::NotModified(_) => "not_modified",
        OriginError::Changed => "changed",
        OriginError::OutOfRange(_) => "out_of_range",
        OriginError::Throttled(_) => "throttled",
        OriginError::Failed(_) => "failed",
        OriginError::Unreachable(_) => "unreachable",
        OriginError::ConnectionLost(_) => "broken",
        OriginError::TimedOut => "timed_out",
        OriginError::Unconfirmed(_) => "unconfirmed",
        OriginError::WrongBytes(_) => "wrong_bytes",
        OriginError::Refused { .. } | OriginError::InvalidResponse(_) => "refused",
    }
}

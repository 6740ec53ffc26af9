//! What was asked of an origin, and what came of it.

use super::OriginError;
use mlgw_common::histogram::{Durations, Histogram};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// What was asked of an origin since it was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OriginMetrics {
    /// Requests, repeated ones each by itself, by operation (`list`, `get`, `put` and so on) and by what came
    /// of them (`ok`, or in a word why not).
    pub requests: BTreeMap<(&'static str, &'static str), u64>,
    /// By operation, how long it took from the moment a request may be sent until the head of its answer
    /// came, or none did.
    pub took: BTreeMap<&'static str, Durations>,
    /// Bytes of bodies that came.
    pub received_bytes: u64,
    /// Bytes of bodies that were sent, repeated ones each time.
    pub sent_bytes: u64,
}

/// Counts what is asked.
#[derive(Debug, Default)]
pub(super) struct Counts {
    requests: Mutex<BTreeMap<(&'static str, &'static str), u64>>,
    took: Mutex<BTreeMap<&'static str, Histogram>>,
    pub(super) received_bytes: AtomicU64,
    pub(super) sent_bytes: AtomicU64,
}

impl Counts {
    /// One more request, and how long its answer took to begin.
    pub(super) fn add(&self, operation: &'static str, failed: Option<&OriginError>, took: Duration) {
        self.took.lock().entry(operation).or_default().record(took);
        *self.requests.lock().entry((operation, failed.map_or("ok", word))).or_default() += 1;
    }

    pub(super) fn metrics(&self) -> OriginMetrics {
        OriginMetrics {
            requests: self.requests.lock().clone(),
            took: self.took.lock().iter().map(|(operation, took)| (*operation, took.snapshot())).collect(),
            received_bytes: self.received_bytes.load(Relaxed),
            sent_bytes: self.sent_bytes.load(Relaxed),
        }
    }
}

/// An error in a word.
const fn word(error: &OriginError) -> &'static str {
    match error {
        OriginError::NoSuchKey | OriginError::NoSuchBucket => "absent",
        OriginError::Denied(_) => "denied",
        OriginError::NotModified(_) => "not_modified",
        OriginError::Changed => "changed",
        OriginError::OutOfRange(_) => "out_of_range",
        OriginError::Throttled(_) => "throttled",
        OriginError::Failed(_) => "failed",
        OriginError::Unreachable(_) => "unreachable",
        OriginError::Broken(_) => "broken",
        OriginError::TimedOut => "timed_out",
        OriginError::Unconfirmed(_) => "unconfirmed",
        OriginError::WrongBytes(_) => "wrong_bytes",
        OriginError::Refused { .. } | OriginError::Nonsense(_) => "refused",
    }
}

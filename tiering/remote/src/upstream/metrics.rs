//! Counters of the requests to one store.
//!
//! Counters only grow and are read without a lock, so a snapshot is not one instant; each number in it is
//! correct on its own. Nothing is kept over a restart.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use mlgw_common::histogram::{DurationHistogram, Durations};

/// Kind of request to a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UpstreamOp {
    /// Reads bytes of an object.
    Read,
    /// Writes an object or a part of one, or creates or completes an upload.
    Write,
    /// Reads the metadata of an object.
    Stat,
    /// Lists objects.
    List,
    /// Deletes an object.
    Delete,
}

/// Result of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UpstreamOutcome {
    /// Success.
    Ok,
    /// The object does not exist.
    Missing,
    /// The store rejects it: credentials, permission, the request itself.
    Refused,
    /// The store requests fewer requests.
    SlowDown,
    /// No response, or one that reports a failure of the store.
    Failed,
}

impl UpstreamOp {
    /// All kinds.
    pub const ALL: [Self; 5] = [Self::Read, Self::Write, Self::Stat, Self::List, Self::Delete];

    /// Name in metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Stat => "stat",
            Self::List => "list",
            Self::Delete => "delete",
        }
    }
}

impl UpstreamOutcome {
    /// All results.
    pub const ALL: [Self; 5] = [Self::Ok, Self::Missing, Self::Refused, Self::SlowDown, Self::Failed];

    /// Name in metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Missing => "missing",
            Self::Refused => "refused",
            Self::SlowDown => "slow_down",
            Self::Failed => "failed",
        }
    }
}

// The counters are indexed by kind and by result, and listed in the order of `ALL`.
const _: () = {
    let mut at = 0;
    while at < UpstreamOp::ALL.len() {
        assert!(UpstreamOp::ALL[at] as usize == at);
        at += 1;
    }
    at = 0;
    while at < UpstreamOutcome::ALL.len() {
        assert!(UpstreamOutcome::ALL[at] as usize == at);
        at += 1;
    }
};

/// Live counters of a store.
#[derive(Debug, Default)]
pub(super) struct UpstreamCounters {
    /// By kind, then by result.
    requests: [[AtomicU64; UpstreamOutcome::ALL.len()]; UpstreamOp::ALL.len()],
    durations: [DurationHistogram; UpstreamOp::ALL.len()],
    pub(super) sent_bytes: AtomicU64,
    pub(super) received_bytes: AtomicU64,
    pub(super) retries: AtomicU64,
    pub(super) puts: AtomicU64,
    pub(super) puts_already_present: AtomicU64,
    pub(super) proven_bytes: AtomicU64,
    pub(super) corrupt_reads: AtomicU64,
}

/// Counters of a store since it was opened.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct UpstreamMetrics {
    /// Requests by kind and result, retries included.
    pub requests: Vec<(UpstreamOp, UpstreamOutcome, u64)>,
    /// Time from the moment a request may be sent until the end of its response, by kind.
    pub durations: Vec<(UpstreamOp, Durations)>,
    /// Bytes of request bodies.
    pub sent_bytes: u64,
    /// Bytes of response bodies.
    pub received_bytes: u64,
    /// Requests that were sent again.
    pub retries: u64,
    /// Segments that were stored.
    pub puts: u64,
    /// Segments among them that were already present.
    pub puts_already_present: u64,
    /// Bytes that were read back to prove that they arrived.
    pub proven_bytes: u64,
    /// Reads whose bytes did not decrypt, or whose response was shorter or longer than requested.
    pub corrupt_reads: u64,
    /// Current concurrency limit.
    pub limit: u64,
    /// Requests in flight.
    pub in_flight: u64,
}

impl UpstreamCounters {
    pub(super) fn record_request(&self, op: UpstreamOp, outcome: UpstreamOutcome, took: Duration) {
        self.requests[op as usize][outcome as usize].fetch_add(1, Relaxed);
        self.durations[op as usize].record(took);
    }

    /// Returns the current counts; the caller fills in those of the gate.
    pub(super) fn snapshot(&self) -> UpstreamMetrics {
        let requests = UpstreamOp::ALL.into_iter().flat_map(|op| {
            let of = &self.requests[op as usize];
            UpstreamOutcome::ALL
                .into_iter()
                .map(move |outcome| (op, outcome, of[outcome as usize].load(Relaxed)))
        });
        UpstreamMetrics {
            requests: requests.collect(),
            durations: UpstreamOp::ALL
                .into_iter()
                .map(|op| (op, self.durations[op as usize].snapshot()))
                .collect(),
            sent_bytes: self.sent_bytes.load(Relaxed),
            received_bytes: self.received_bytes.load(Relaxed),
            retries: self.retries.load(Relaxed),
            puts: self.puts.load(Relaxed),
            puts_already_present: self.puts_already_present.load(Relaxed),
            proven_bytes: self.proven_bytes.load(Relaxed),
            corrupt_reads: self.corrupt_reads.load(Relaxed),
            limit: 0,
            in_flight: 0,
        }
    }
}

pub(super) fn add(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Relaxed);
}

#[cfg(test)]
mod tests {
    use super::{UpstreamCounters, UpstreamOp, UpstreamOutcome};
    use std::time::Duration;

    #[test]
    fn every_op_and_outcome_has_its_own_count() {
        let metrics = UpstreamCounters::default();
        for (n, op) in UpstreamOp::ALL.into_iter().enumerate() {
            for (m, outcome) in UpstreamOutcome::ALL.into_iter().enumerate() {
                (0..=5 * n + m).for_each(|_| metrics.record_request(op, outcome, Duration::ZERO));
            }
        }
        let counted = metrics.snapshot();
        let wanted: Vec<u64> = (1..=25).collect();
        assert_eq!(counted.requests.iter().map(|(_, _, count)| *count).collect::<Vec<_>>(), wanted);
        assert_eq!(counted.durations[1].1.count(), 6 + 7 + 8 + 9 + 10);
        let names: std::collections::BTreeSet<_> =
            UpstreamOp::ALL.map(UpstreamOp::name).into_iter().collect();
        assert_eq!(names.len(), UpstreamOp::ALL.len());
    }
}

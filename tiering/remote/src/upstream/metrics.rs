//! Counters of the requests to one store.
//!
//! Counters only grow and are read without a lock, so a snapshot is not one instant; each number in it is
//! correct on its own. Nothing is kept over a restart.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use mlgw_common::histogram::{Durations, Histogram};

/// Kind of request to a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
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
pub enum Outcome {
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

impl Op {
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

impl Outcome {
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

/// Live counters of a store.
#[derive(Debug, Default)]
pub(super) struct Metrics {
    /// By kind, then by result.
    requests: [[AtomicU64; Outcome::ALL.len()]; Op::ALL.len()],
    took: [Histogram; Op::ALL.len()],
    pub(super) sent_bytes: AtomicU64,
    pub(super) received_bytes: AtomicU64,
    pub(super) retries: AtomicU64,
    pub(super) puts: AtomicU64,
    pub(super) puts_found: AtomicU64,
    pub(super) proven_bytes: AtomicU64,
    pub(super) corrupt_reads: AtomicU64,
}

/// Counters of a store since it was opened.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct UpstreamMetrics {
    /// Requests by kind and result, retries included.
    pub requests: Vec<(Op, Outcome, u64)>,
    /// Time from the moment a request may be sent until the end of its response, by kind.
    pub took: Vec<(Op, Durations)>,
    /// Bytes of request bodies.
    pub sent_bytes: u64,
    /// Bytes of response bodies.
    pub received_bytes: u64,
    /// Requests that were sent again.
    pub retries: u64,
    /// Segments that were stored.
    pub puts: u64,
    /// Segments among them that were already present.
    pub puts_found: u64,
    /// Bytes that were read back to prove that they arrived.
    pub proven_bytes: u64,
    /// Reads whose bytes did not decrypt, or whose response was shorter or longer than requested.
    pub corrupt_reads: u64,
    /// Current concurrency limit.
    pub limit: u64,
    /// Requests in flight.
    pub under_way: u64,
}

impl Metrics {
    pub(super) fn request(&self, op: Op, outcome: Outcome, took: Duration) {
        self.requests[op as usize][outcome as usize].fetch_add(1, Relaxed);
        self.took[op as usize].record(took);
    }

    /// Returns the current counts; the caller fills in those of the gate.
    pub(super) fn snapshot(&self) -> UpstreamMetrics {
        let requests = Op::ALL.into_iter().flat_map(|op| {
            let of = &self.requests[op as usize];
            Outcome::ALL.into_iter().map(move |outcome| (op, outcome, of[outcome as usize].load(Relaxed)))
        });
        UpstreamMetrics {
            requests: requests.collect(),
            took: Op::ALL.into_iter().map(|op| (op, self.took[op as usize].snapshot())).collect(),
            sent_bytes: self.sent_bytes.load(Relaxed),
            received_bytes: self.received_bytes.load(Relaxed),
            retries: self.retries.load(Relaxed),
            puts: self.puts.load(Relaxed),
            puts_found: self.puts_found.load(Relaxed),
            proven_bytes: self.proven_bytes.load(Relaxed),
            corrupt_reads: self.corrupt_reads.load(Relaxed),
            limit: 0,
            under_way: 0,
        }
    }
}

pub(super) fn add(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Relaxed);
}

#[cfg(test)]
mod tests {
    use super::{Metrics, Op, Outcome};
    use std::time::Duration;

    #[test]
    fn every_op_and_outcome_has_its_own_count() {
        let metrics = Metrics::default();
        for (n, op) in Op::ALL.into_iter().enumerate() {
            for (m, outcome) in Outcome::ALL.into_iter().enumerate() {
                (0..=5 * n + m).for_each(|_| metrics.request(op, outcome, Duration::ZERO));
            }
        }
        let counted = metrics.snapshot();
        let wanted: Vec<u64> = (1..=25).collect();
        assert_eq!(counted.requests.iter().map(|(_, _, count)| *count).collect::<Vec<_>>(), wanted);
        assert_eq!(counted.took[1].1.count(), 6 + 7 + 8 + 9 + 10);
        let names: std::collections::BTreeSet<_> = Op::ALL.map(Op::name).into_iter().collect();
        assert_eq!(names.len(), Op::ALL.len());
    }
}

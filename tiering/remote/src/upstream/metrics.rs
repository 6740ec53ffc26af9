//! What is counted of the requests to one store. Counters only grow and are read without stopping anyone, so
//! a snapshot is not one instant; each number in it is true by itself. Nothing is kept over a restart.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use mlgw_common::histogram::{Durations, Histogram};

/// What is asked of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// Bytes of an object.
    Read,
    /// An object, or a part of one, and what begins and ends it.
    Write,
    /// What an object is.
    Stat,
    /// Which objects there are.
    List,
    /// That an object goes.
    Delete,
}

/// How a request went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// As it should.
    Ok,
    /// There is no such object.
    Missing,
    /// The store refuses it: credentials, permission, the request itself.
    Refused,
    /// The store asks for fewer requests.
    SlowDown,
    /// No answer, or one that says that the store failed.
    Failed,
}

impl Op {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Read, Self::Write, Self::Stat, Self::List, Self::Delete];

    /// Its name in metrics.
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
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Ok, Self::Missing, Self::Refused, Self::SlowDown, Self::Failed];

    /// Its name in metrics.
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

#[derive(Debug, Default)]
pub(super) struct Metrics {
    /// By op, then by outcome.
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

/// What was asked of a store since it was opened.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct UpstreamMetrics {
    /// Requests by what was asked and how it went, repeated ones included.
    pub requests: Vec<(Op, Outcome, u64)>,
    /// From the moment a request may be sent to the end of its answer, by what was asked.
    pub took: Vec<(Op, Durations)>,
    /// Bytes in bodies of requests.
    pub sent_bytes: u64,
    /// Bytes in bodies of answers.
    pub received_bytes: u64,
    /// Requests that were sent again.
    pub retries: u64,
    /// Segments that were stored.
    pub puts: u64,
    /// Those among them that were there already.
    pub puts_found: u64,
    /// Bytes that were read back to prove that they arrived.
    pub proven_bytes: u64,
    /// Reads whose bytes did not decrypt, or whose answer had another length than was asked for.
    pub corrupt_reads: u64,
    /// How many requests may be under way now.
    pub limit: u64,
    /// How many are.
    pub under_way: u64,
}

impl Metrics {
    pub(super) fn request(&self, op: Op, outcome: Outcome, took: Duration) {
        self.requests[op as usize][outcome as usize].fetch_add(1, Relaxed);
        self.took[op as usize].record(took);
    }

    /// The counts of now; the gate's are the caller's to fill in.
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

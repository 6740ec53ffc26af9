//! Load of a server between two refreshes of `mlgw top`; at the first one, that of the last minute.

use super::StatusPair;
use mlgw_api::{OperationStatus, Status};
use mlgw_common::histogram::{BUCKETS, Durations};

/// Load between two refreshes.
pub(super) struct IntervalLoad {
    pub(super) seconds: f64,
    pub(super) operations: Vec<OperationStatus>,
    pub(super) syncs: u64,
    pub(super) cpu_seconds: Option<f64>,
}

impl IntervalLoad {
    pub(super) fn of(look: &StatusPair) -> Self {
        let now = &look.now;
        let Some((before, over)) = &look.before else {
            let recent = &now.recent;
            return Self {
                seconds: recent.seconds,
                operations: recent.operations.clone(),
                syncs: recent.syncs,
                cpu_seconds: None,
            };
        };
        let syncs = |status: &Status| status.syncs.iter().map(|sync| sync.count).sum::<u64>();
        let grown = now.s3.operations.iter().map(|done| since(done, before));
        Self {
            seconds: over.as_secs_f64(),
            operations: grown.filter(|done| done.requests > 0).collect(),
            syncs: syncs(now).saturating_sub(syncs(before)),
            cpu_seconds: Some((now.process.cpu_seconds - before.process.cpu_seconds).max(0.0)),
        }
    }

    /// Returns the sum over all operations.
    pub(super) fn total(&self) -> OperationStatus {
        let sum = |of: fn(&OperationStatus) -> u64| self.operations.iter().map(of).sum();
        let mut all = Durations::default();
        self.operations.iter().for_each(|done| all.add(&durations(done)));
        of_durations(
            "all",
            all,
            [sum(|d| d.requests), sum(|d| d.errors), sum(|d| d.refused)],
            [sum(|d| d.bytes_in), sum(|d| d.bytes_out)],
        )
    }
}

fn durations(done: &OperationStatus) -> Durations {
    let mut buckets = [0; BUCKETS];
    buckets.iter_mut().zip(&done.duration_buckets).for_each(|(bucket, count)| *bucket = *count);
    Durations { buckets, nanos: 0 }
}

fn of_durations(
    name: &str,
    durations: Durations,
    [requests, errors, refused]: [u64; 3],
    [bytes_in, bytes_out]: [u64; 2],
) -> OperationStatus {
    let quantile = |q| durations.quantile(q).map(|duration| duration.as_secs_f64());
    OperationStatus {
        operation: name.to_owned(),
        requests,
        errors,
        refused,
        bytes_in,
        bytes_out,
        p50_seconds: quantile(0.5),
        p99_seconds: quantile(0.99),
        duration_buckets: durations.buckets.to_vec(),
    }
}

/// Returns the difference of an operation to its counters in `before`.
fn since(done: &OperationStatus, before: &Status) -> OperationStatus {
    let Some(then) = before.s3.operations.iter().find(|then| then.operation == done.operation) else {
        return done.clone();
    };
    let counts = [
        done.requests.saturating_sub(then.requests),
        done.errors.saturating_sub(then.errors),
        done.refused.saturating_sub(then.refused),
    ];
    let bytes = [done.bytes_in.saturating_sub(then.bytes_in), done.bytes_out.saturating_sub(then.bytes_out)];
    of_durations(&done.operation, durations(done).since(&durations(then)), counts, bytes)
}

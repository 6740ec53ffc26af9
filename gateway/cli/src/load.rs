//! Load of a server, or of the nodes of a cluster, between two refreshes of `mlgw top`; at the first one,
//! that of the last minute.

use mlgw_api::{ClusterNodeReport, OperationStatus, ReportedFigures, Status};
use mlgw_common::histogram::{BUCKETS, Durations};
use std::time::Duration;

/// Load between two refreshes.
pub(super) struct IntervalLoad {
    pub(super) seconds: f64,
    pub(super) operations: Vec<OperationStatus>,
    pub(super) syncs: u64,
    pub(super) cpu_seconds: Option<f64>,
}

/// A node of a cluster with its load.
pub(super) struct ReportedLoad<'a> {
    pub(super) report: &'a ClusterNodeReport,
    /// `None` if it gives no answer.
    pub(super) load: Option<IntervalLoad>,
}

impl IntervalLoad {
    /// Returns the load of the server, or of all nodes of the cluster together.
    pub(super) fn of(now: &Status, before: Option<(&Status, Duration)>) -> Self {
        if now.nodes.is_empty() {
            let figures = |status: &Status| ReportedFigures::from(status.clone());
            let before = before.map(|(before, over)| (figures(before), over));
            return Self::since(&figures(now), before.as_ref().map(|(before, over)| (before, *over)));
        }
        let nodes = Self::of_nodes(&now.nodes, before);
        Self::sum(nodes.into_iter().filter_map(|node| node.load))
    }

    /// Returns the load of each node; none of a node that gives no answer.
    pub(super) fn of_nodes<'a>(
        nodes: &'a [ClusterNodeReport],
        before: Option<(&Status, Duration)>,
    ) -> Vec<ReportedLoad<'a>> {
        let load = |report: &'a ClusterNodeReport| {
            let figures = report.figures.as_ref()?;
            let then = before.and_then(|(before, over)| {
                let then = before.nodes.iter().find(|then| then.node == report.node)?;
                Some((then.figures.as_ref()?, over))
            });
            Some(Self::since(figures, then))
        };
        nodes.iter().map(|report| ReportedLoad { report, load: load(report) }).collect()
    }

    /// Returns the load since `before`. Counters of another process cannot be compared.
    fn since(now: &ReportedFigures, before: Option<(&ReportedFigures, Duration)>) -> Self {
        let Some((before, over)) = before.filter(|(before, _)| before.started == now.started) else {
            return Self {
                seconds: now.recent.seconds,
                operations: now.recent.operations.clone(),
                syncs: now.recent.syncs,
                cpu_seconds: None,
            };
        };
        let syncs = |figures: &ReportedFigures| figures.syncs.iter().map(|sync| sync.count).sum::<u64>();
        let grown = now.s3.operations.iter().map(|done| since(done, &before.s3.operations));
        Self {
            seconds: over.as_secs_f64(),
            operations: grown.filter(|done| done.requests > 0).collect(),
            syncs: syncs(now).saturating_sub(syncs(before)),
            cpu_seconds: Some((now.process.cpu_seconds - before.process.cpu_seconds).max(0.0)),
        }
    }

    /// Returns the load of several nodes together, over the longest of their intervals.
    fn sum(loads: impl Iterator<Item = Self>) -> Self {
        let none = Self { seconds: 0.0, operations: Vec::new(), syncs: 0, cpu_seconds: None };
        loads.fold(none, |mut all, load| {
            all.seconds = all.seconds.max(load.seconds);
            all.syncs += load.syncs;
            all.cpu_seconds = match (all.cpu_seconds, load.cpu_seconds) {
                (Some(a), Some(b)) => Some(a + b),
                (one, None) | (None, one) => one,
            };
            for done in load.operations {
                match all.operations.iter_mut().find(|known| known.operation == done.operation) {
                    Some(known) => *known = together(known, &done),
                    None => all.operations.push(done),
                }
            }
            all
        })
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

/// Returns the same operation on two nodes as one.
fn together(a: &OperationStatus, b: &OperationStatus) -> OperationStatus {
    let mut all = durations(a);
    all.add(&durations(b));
    let counts = [a.requests + b.requests, a.errors + b.errors, a.refused + b.refused];
    of_durations(&a.operation, all, counts, [a.bytes_in + b.bytes_in, a.bytes_out + b.bytes_out])
}

/// Returns the difference of an operation to its counters in `before`.
fn since(done: &OperationStatus, before: &[OperationStatus]) -> OperationStatus {
    let Some(then) = before.iter().find(|then| then.operation == done.operation) else {
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

#[cfg(test)]
mod tests {
    use super::IntervalLoad;
    use crate::nodes::tests::of_three;
    use mlgw_testing::sample_status::operation;
    use std::time::Duration;

    #[test]
    fn the_load_of_a_cluster_is_that_of_all_nodes_that_answer() {
        let total = IntervalLoad::of(&of_three(), None).total();
        assert_eq!((total.requests, total.bytes_out), (120_000, 120_000 * 4096));

        let (before, mut now) = (of_three(), of_three());
        for (at, gets) in [(0, 1_000_300), (1, 1_000_050)] {
            let figures = now.nodes[at].figures.as_mut().unwrap();
            figures.s3.operations = vec![operation("GetObject", gets)];
        }
        let load = IntervalLoad::of(&now, Some((&before, Duration::from_secs(2))));
        assert_eq!((load.total().requests, load.operations.len(), load.seconds), (350, 1, 2.0));
    }

    #[test]
    fn a_node_that_was_started_again_shows_its_last_minute() {
        let (before, mut now) = (of_three(), of_three());
        now.nodes[1].figures.as_mut().unwrap().started = "2026-11-21T00:00:00.000Z".into();
        let loads = IntervalLoad::of_nodes(&now.nodes, Some((&before, Duration::from_secs(2))));
        let requests = |at: usize| loads[at].load.as_ref().map(|load| load.total().requests);
        assert_eq!([requests(0), requests(1), requests(2)], [Some(0), Some(60_000), None]);
    }
}

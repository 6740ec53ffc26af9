//! Metrics of datasets and jobs.
//!
//! The bytes by node and tier are those of the last count. The largest datasets have their own series; the
//! others are summed up as `other`. In a cluster the duty node alone counts, for all nodes.

use super::Admin;
use mlgw_background::jobs::residency::{Residency, ResidencyPlace};
use mlgw_background::jobs::{KINDS, kind_name, state_name};
use mlgw_common::NodeId;
use mlgw_common::limits::METRIC_BUCKETS_MAX;
use mlgw_formats::schema::JobState;
use mlgw_telemetry::exposition::{MetricFamily, MetricValue};
use mlgw_telemetry::table::{
    DATASET_BYTES, DATASET_READY, DATASET_RESIDENT_BYTES, JOB_ACTIVE, JOB_BYTES, JOB_ENDED, JOB_OBJECTS,
    JOB_PROGRESS,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Label of the sum of all datasets without a series of their own.
const OTHER: &str = "other";
const ENDS: [JobState; 3] = [JobState::Done, JobState::Failed, JobState::Cancelled];

/// Bytes on each node, by tier.
type BytesOnNodes = BTreeMap<NodeId, BTreeMap<ResidencyPlace, u64>>;

impl Admin {
    pub(super) fn dataset_families(&self) -> Vec<MetricFamily> {
        let mut families = self.job_families();
        families.extend(residency_families(self.jobs.residencies(), self.stored.catalogue.node()));
        families
    }

    fn job_families(&self) -> Vec<MetricFamily> {
        let (ended, moved) = (self.jobs.ended(), self.jobs.moved());
        let mut active = BTreeMap::new();
        let mut progress = MetricFamily::new(JOB_PROGRESS);
        let mut shown = 0;
        for dataset in self.stored.catalogue.datasets() {
            let Some(job) = self.stored.catalogue.job(dataset.active_job) else { continue };
            *active.entry((job.kind(), job.state())).or_insert(0) += 1;
            if shown < METRIC_BUCKETS_MAX {
                let (job, _) = self.jobs.current_state(&job);
                let done = u128::from(job.progress.bytes_done) * 100;
                let percent = done / u128::from(job.progress.bytes_total.max(1));
                progress.push(&[&dataset.name], MetricValue::Level(percent.min(100) as i64));
                shown += 1;
            }
        }
        let mut states = MetricFamily::new(JOB_ACTIVE);
        let mut ends = MetricFamily::new(JOB_ENDED);
        let (mut objects, mut bytes) = (MetricFamily::new(JOB_OBJECTS), MetricFamily::new(JOB_BYTES));
        for kind in KINDS {
            let name = kind_name(kind);
            for state in [JobState::Queued, JobState::Running] {
                let count = active.get(&(kind, state)).copied().unwrap_or(0);
                states.push(&[name, state_name(state)], MetricValue::Level(count));
            }
            for state in ENDS {
                let count = ended.get(&(kind, state)).copied().unwrap_or(0);
                ends.push(&[name, state_name(state)], MetricValue::Count(count));
            }
            let moved = moved.get(&kind).copied().unwrap_or_default();
            objects.push(&[name], MetricValue::Count(moved.objects));
            bytes.push(&[name], MetricValue::Count(moved.bytes));
        }
        vec![states, ends, objects, bytes, progress]
    }
}

/// Returns the metrics of counts, which the node `own` has made.
fn residency_families(counts: BTreeMap<String, Arc<Residency>>, own: NodeId) -> Vec<MetricFamily> {
    let mut counted: Vec<(String, Arc<Residency>)> = counts.into_iter().collect();
    counted.sort_by_key(|(_, residency)| std::cmp::Reverse(residency.bytes));
    let rest = counted.split_off(counted.len().min(METRIC_BUCKETS_MAX));
    let (mut bytes, mut resident) =
        (MetricFamily::new(DATASET_BYTES), MetricFamily::new(DATASET_RESIDENT_BYTES));
    let mut ready = MetricFamily::new(DATASET_READY);
    for (name, residency) in &counted {
        if let Some(all) = residency.bytes {
            bytes.push(&[name], level(all));
        }
        push_resident(&mut resident, name, &residency.bytes_on);
        // A dataset that could not be counted is on no node, and has a series all the same.
        let nodes: BTreeSet<NodeId> = residency.bytes_on.keys().copied().chain([own]).collect();
        for node in nodes {
            let is_ready = residency.is_ready_on(node);
            ready.push(&[name, &node.to_string()], MetricValue::Level(i64::from(is_ready)));
        }
    }
    if !rest.is_empty() {
        bytes.push(&[OTHER], level(rest.iter().filter_map(|(_, residency)| residency.bytes).sum()));
        let mut sums: BytesOnNodes = BTreeMap::new();
        for (node, places) in rest.iter().flat_map(|(_, residency)| &residency.bytes_on) {
            let sum = sums.entry(*node).or_default();
            for (place, bytes) in places {
                *sum.entry(*place).or_default() += bytes;
            }
        }
        push_resident(&mut resident, OTHER, &sums);
    }
    vec![bytes, resident, ready]
}

/// Adds the bytes of a dataset by node and tier.
fn push_resident(resident: &mut MetricFamily, dataset: &str, bytes_on: &BytesOnNodes) {
    for (node, places) in bytes_on {
        let node = node.to_string();
        for (place, bytes) in places {
            resident.push(&[dataset, &node, place.name()], level(*bytes));
        }
    }
}

fn level(bytes: u64) -> MetricValue {
    MetricValue::Level(i64::try_from(bytes).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::{METRIC_BUCKETS_MAX, residency_families};
    use mlgw_background::jobs::residency::{Residency, ResidencyPlace};
    use mlgw_common::NodeId;
    use mlgw_telemetry::exposition::text;
    use std::collections::BTreeMap;
    use std::sync::Arc;

    /// Returns a dataset of `bytes` with these bytes in the hot tier of nodes.
    fn resident(bytes: u64, hot: &[(u64, u64)]) -> Arc<Residency> {
        let on = |(node, hot): &(u64, u64)| (NodeId(*node), BTreeMap::from([(ResidencyPlace::Hot, *hot)]));
        let bytes_on = hot.iter().map(on).collect();
        Arc::new(Residency { bytes: Some(bytes), bytes_on, ..Residency::default() })
    }

    fn exposed(counts: impl IntoIterator<Item = (String, Arc<Residency>)>) -> String {
        text(residency_families(counts.into_iter().collect(), NodeId(1))).unwrap()
    }

    fn assert_exposed(text: &str, lines: &[&str]) {
        for line in lines {
            assert!(text.lines().any(|exposed| exposed == *line), "{line} is missing in\n{text}");
        }
    }

    #[test]
    fn each_node_has_its_bytes_and_its_own_readiness() {
        let broken = Residency { fault: Some("gone".to_owned()), ..Residency::default() };
        let counts = [("a".to_owned(), resident(9, &[(1, 4), (3, 9)])), ("b".to_owned(), Arc::new(broken))];
        assert_exposed(
            &exposed(counts),
            &[
                "mlgw_dataset_bytes{dataset=\"a\"} 9",
                "mlgw_dataset_resident_bytes{dataset=\"a\",node=\"1\",tier=\"hot\"} 4",
                "mlgw_dataset_resident_bytes{dataset=\"a\",node=\"3\",tier=\"hot\"} 9",
                "mlgw_dataset_ready{dataset=\"a\",node=\"1\"} 0",
                "mlgw_dataset_ready{dataset=\"a\",node=\"3\"} 1",
                "mlgw_dataset_ready{dataset=\"b\",node=\"1\"} 0",
            ],
        );
    }

    #[test]
    fn the_rest_of_the_datasets_is_added_up_by_node() {
        let large = (0..METRIC_BUCKETS_MAX).map(|n| (format!("large{n}"), resident(100, &[])));
        let small = [("s", resident(5, &[(1, 5), (2, 3)])), ("t", resident(2, &[(2, 1)]))];
        let small = small.map(|(name, residency)| (name.to_owned(), residency));
        assert_exposed(
            &exposed(large.chain(small)),
            &[
                "mlgw_dataset_bytes{dataset=\"other\"} 7",
                "mlgw_dataset_resident_bytes{dataset=\"other\",node=\"1\",tier=\"hot\"} 5",
                "mlgw_dataset_resident_bytes{dataset=\"other\",node=\"2\",tier=\"hot\"} 4",
            ],
        );
    }
}

//! Metrics of the copies of segments on the nodes of a cluster.
//!
//! Every storage node exposes the progress of its own copies, and its reads of those of other nodes. Segments
//! with missing or damaged copies are exposed by the duty node of the cluster alone, because every node
//! counts the same segments.

use super::process_figures::level;
use mlgw_node::CopyStatus;
use mlgw_segments::hot::{HotTier, ReplicationStatus};
use mlgw_telemetry::exposition::{MetricFamily, MetricValue};
use mlgw_telemetry::table::{
    OFF_SET_BYTES, REPLICA_COPIED, REPLICA_COPIED_BYTES, REPLICA_FAILED, REPLICA_HEALED, REPLICA_READ_BYTES,
    REPLICA_REMOVED, SEGMENTS_BELOW_COPIES, SEGMENTS_OFF_SET, SEGMENTS_SUSPECT,
};

/// Returns what a storage node of a cluster exposes: the progress of the copies that it makes, and its reads
/// of replicas of other nodes.
pub(super) fn node_families(hot: &HotTier) -> Vec<MetricFamily> {
    progress_families(&hot.replication(), hot.metrics().read_bytes_other_replica)
}

fn progress_families(progress: &ReplicationStatus, read_bytes: u64) -> Vec<MetricFamily> {
    vec![
        MetricFamily::single(REPLICA_COPIED_BYTES, MetricValue::Count(progress.copied_bytes)),
        MetricFamily::single(REPLICA_COPIED, MetricValue::Count(progress.copied_segments)),
        MetricFamily::single(REPLICA_HEALED, MetricValue::Count(progress.healed_segments)),
        MetricFamily::single(REPLICA_FAILED, MetricValue::Count(progress.failed_tasks)),
        MetricFamily::single(REPLICA_REMOVED, MetricValue::Count(progress.removed_replicas)),
        MetricFamily::single(REPLICA_READ_BYTES, MetricValue::Count(read_bytes)),
    ]
}

/// Returns the numbers of segments with missing and with damaged copies, and with copies outside of their
/// set, and the bytes in segments of other sets than that of their group, if they could be read.
pub(super) fn copy_families(copies: &CopyStatus) -> Vec<MetricFamily> {
    let mut families = vec![
        MetricFamily::single(SEGMENTS_BELOW_COPIES, level(copies.counts.below_segments)),
        MetricFamily::single(SEGMENTS_SUSPECT, level(copies.counts.suspect_segments)),
        MetricFamily::single(SEGMENTS_OFF_SET, level(copies.off_set_segments)),
    ];
    families.extend(copies.off_set_bytes.map(|bytes| MetricFamily::single(OFF_SET_BYTES, level(bytes))));
    families
}

#[cfg(test)]
mod tests {
    use super::{copy_families, progress_families};
    use mlgw_node::CopyStatus;
    use mlgw_segments::hot::ReplicationStatus;
    use mlgw_telemetry::exposition::text;

    #[test]
    fn each_number_has_its_metric() {
        let progress = ReplicationStatus {
            copied_segments: 1,
            copied_bytes: 2,
            healed_segments: 3,
            failed_tasks: 4,
            removed_replicas: 5,
            damaged_bytes: 6,
        };
        let mut copies =
            CopyStatus { wanted: 3, off_set_segments: 11, off_set_bytes: Some(12), ..CopyStatus::default() };
        (copies.counts.below_segments, copies.counts.suspect_segments) = (7, 8);
        let mut families = progress_families(&progress, 9);
        families.extend(copy_families(&copies));
        let text = text(families).unwrap();
        for line in [
            "mlgw_replica_copied_segments_total 1",
            "mlgw_replica_copied_bytes_total 2",
            "mlgw_replica_healed_segments_total 3",
            "mlgw_replica_failed_tasks_total 4",
            "mlgw_replica_removed_total 5",
            "mlgw_replica_read_bytes_total 9",
            "mlgw_segments_below_copies 7",
            "mlgw_segments_suspect 8",
            "mlgw_segments_off_set 11",
            "mlgw_off_set_bytes 12",
        ] {
            assert!(text.lines().any(|exposed| exposed == line), "{line} is missing in\n{text}");
        }
    }

    #[test]
    fn bytes_that_could_not_be_read_are_not_exposed_as_none() {
        let text = text(copy_families(&CopyStatus::default())).unwrap();
        assert!(text.contains("mlgw_segments_off_set 0") && !text.contains("mlgw_off_set_bytes"), "{text}");
    }
}

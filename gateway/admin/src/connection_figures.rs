//! Metrics of the cluster as this node sees it: the other nodes, the Raft groups, its clock, its duty and
//! its certificate; and of the connections with other nodes.
//!
//! Every node exposes its own, also a gateway. They are added up over all other nodes, so the number of
//! series does not depend on the size of the cluster.

use super::process_figures::level;
use mlgw_common::{ClockComparison, Timestamp};
use mlgw_metadata::{RowComparison, RowComparisonCounts};
use mlgw_node::{ChannelTotals, ClusterNode, GroupStatus, NodeStatus, SetsStatus};
use mlgw_telemetry::exposition::{MetricFamily, MetricValue};
use mlgw_telemetry::table::{
    CLUSTER_BYTES, CLUSTER_CALLS, CLUSTER_CERTIFICATE, CLUSTER_CLOCK_SKEW, CLUSTER_CONNECTIONS,
    CLUSTER_CONNECTS, CLUSTER_DIFFERING_GROUPS, CLUSTER_GROUPS, CLUSTER_MOVING_GROUPS, CLUSTER_NODES,
    CLUSTER_ROWS_COMPARED, CLUSTER_SETS, CLUSTER_STREAMS, DUTY, DUTY_LEASE,
};
use std::collections::BTreeMap;

/// Returns the metrics of a node of a cluster.
pub(super) fn connection_families(cluster: &ClusterNode, now: Timestamp) -> Vec<MetricFamily> {
    let (mut families, status) = (channel_families(&cluster.connections()), cluster.status());
    families.push(nodes_family(&status.nodes));
    families.push(groups_family(&status.groups));
    families.extend(set_families(&status.sets));
    families.extend(row_families(cluster.row_comparison_counts(), &status.rows));
    families.push(clock_family(status.clock));
    families.push(MetricFamily::single(DUTY, level(u64::from(cluster.acts_on_duty()))));
    families.push(MetricFamily::single(DUTY_LEASE, level(u64::from(cluster.has_duty()))));
    families.push(certificate_family(status.certificate_expires, now));
    families
}

/// Returns the metrics of the connections, by channel.
fn channel_families(channels: &[ChannelTotals]) -> Vec<MetricFamily> {
    let (mut open, mut connects) =
        (MetricFamily::new(CLUSTER_CONNECTIONS), MetricFamily::new(CLUSTER_CONNECTS));
    let (mut calls, mut streams) = (MetricFamily::new(CLUSTER_CALLS), MetricFamily::new(CLUSTER_STREAMS));
    let mut bytes = MetricFamily::new(CLUSTER_BYTES);
    for of in channels {
        let channel = of.channel;
        open.push(&[channel], level(of.open));
        connects.push(&[channel, "dialed"], MetricValue::Count(of.dialed));
        connects.push(&[channel, "accepted"], MetricValue::Count(of.accepted));
        connects.push(&[channel, "failed"], MetricValue::Count(of.dials_failed));
        calls.push(&[channel], level(of.calls_in_flight));
        streams.push(&[channel], level(of.streams_in_flight));
        bytes.push(&[channel, "in"], MetricValue::Count(of.received_bytes));
        bytes.push(&[channel, "out"], MetricValue::Count(of.sent_bytes));
    }
    vec![open, connects, calls, streams, bytes]
}

/// Returns the number of nodes that answer this one, and of those that do not. A node that was not called yet
/// is not counted.
fn nodes_family(nodes: &[NodeStatus]) -> MetricFamily {
    let count = |answers: bool| {
        let others = nodes.iter().filter(|node| !node.is_own && node.reachable == Some(answers));
        level(others.count() as u64)
    };
    MetricFamily::new(CLUSTER_NODES).with(&["yes"], count(true)).with(&["no"], count(false))
}

/// Returns the number of groups whose changes are decided, and of those whose are not.
fn groups_family(groups: &[GroupStatus]) -> MetricFamily {
    // The leader of a group elsewhere is not known here.
    let is_led = |group: &&GroupStatus| group.has_majority && (group.leader.is_some() || !group.is_here);
    let led = groups.iter().filter(is_led).count();
    let count = |count: usize| level(count as u64);
    MetricFamily::new(CLUSTER_GROUPS).with(&["yes"], count(led)).with(&["no"], count(groups.len() - led))
}

/// Returns the number of sets of nodes, and that of the groups that move between them.
fn set_families(sets: &SetsStatus) -> [MetricFamily; 2] {
    [
        MetricFamily::single(CLUSTER_SETS, level(sets.sets.len() as u64)),
        MetricFamily::single(CLUSTER_MOVING_GROUPS, level(sets.moving.len() as u64)),
    ]
}

/// Returns the number of comparisons of rows, and that of the groups whose rows differ.
fn row_families(counts: RowComparisonCounts, rows: &BTreeMap<u32, RowComparison>) -> [MetricFamily; 2] {
    let compared = MetricFamily::new(CLUSTER_ROWS_COMPARED)
        .with(&["equal"], MetricValue::Count(counts.equal))
        .with(&["different"], MetricValue::Count(counts.different))
        .with(&["incomplete"], MetricValue::Count(counts.incomplete));
    let differing = rows.values().filter(|rows| !rows.differing.is_empty()).count();
    [compared, MetricFamily::single(CLUSTER_DIFFERING_GROUPS, level(differing as u64))]
}

/// Returns the remaining life of the certificate of this node.
fn certificate_family(expires: Timestamp, now: Timestamp) -> MetricFamily {
    let remaining_ms = expires.as_millis().saturating_sub(now.as_millis());
    MetricFamily::single(CLUSTER_CERTIFICATE, MetricValue::Seconds(remaining_ms as f64 / 1000.0))
}

/// Returns the deviation of the clock of this node, if it is known.
fn clock_family(clock: ClockComparison) -> MetricFamily {
    let ms = match clock {
        ClockComparison::Alone => Some(0),
        ClockComparison::Unknown => None,
        ClockComparison::Disagree { by_ms } => Some(by_ms),
        ClockComparison::Compared { skew_ms } => Some(skew_ms),
    };
    let mut family = MetricFamily::new(CLUSTER_CLOCK_SKEW);
    if let Some(ms) = ms {
        family.push(&[], MetricValue::Seconds(ms as f64 / 1000.0));
    }
    family
}

#[cfg(test)]
mod tests {
    use super::{
        certificate_family, channel_families, clock_family, groups_family, row_families, set_families,
    };
    use mlgw_common::{ClockComparison, NodeId, Timestamp};
    use mlgw_metadata::{RowComparison, RowComparisonCounts};
    use mlgw_node::{ChannelTotals, GroupStatus, SetStatus, SetsStatus};
    use mlgw_telemetry::exposition::text;

    #[test]
    fn each_number_of_a_channel_has_its_metric() {
        let log = ChannelTotals {
            channel: "log",
            dialed: 1,
            accepted: 2,
            dials_failed: 3,
            open: 4,
            calls_in_flight: 5,
            streams_in_flight: 6,
            received_bytes: 7,
            sent_bytes: 8,
        };
        let bulk = ChannelTotals { channel: "bulk", open: 9, ..ChannelTotals::default() };
        let text = text(channel_families(&[log, bulk])).unwrap();
        for line in [
            "mlgw_cluster_connects_total{channel=\"log\",result=\"dialed\"} 1",
            "mlgw_cluster_connects_total{channel=\"log\",result=\"accepted\"} 2",
            "mlgw_cluster_connects_total{channel=\"log\",result=\"failed\"} 3",
            "mlgw_cluster_connections{channel=\"log\"} 4",
            "mlgw_cluster_calls{channel=\"log\"} 5",
            "mlgw_cluster_streams{channel=\"log\"} 6",
            "mlgw_cluster_bytes_total{channel=\"log\",direction=\"in\"} 7",
            "mlgw_cluster_bytes_total{channel=\"log\",direction=\"out\"} 8",
            "mlgw_cluster_connections{channel=\"bulk\"} 9",
        ] {
            assert!(text.lines().any(|exposed| exposed == line), "{line} is missing in\n{text}");
        }
    }

    #[test]
    fn groups_without_a_leader_or_a_majority_are_counted_apart() {
        let group = |leader: Option<u64>, has_majority| GroupStatus {
            id: 0,
            is_here: true,
            leader: leader.map(NodeId),
            has_majority,
            members: vec![],
        };
        let elsewhere = |has_majority| GroupStatus { is_here: false, ..group(None, has_majority) };
        let here = [group(Some(1), true), group(Some(1), false), group(None, true)];
        let groups = [&here[..], &[elsewhere(true), elsewhere(false)]].concat();
        let text = text(vec![groups_family(&groups)]).unwrap();
        assert!(text.contains("{led=\"yes\"} 2\n") && text.contains("{led=\"no\"} 3\n"), "{text}");
    }

    #[test]
    fn sets_and_moving_groups_are_counted() {
        let set = |id| SetStatus { id, nodes: vec![NodeId(1)], groups: vec![1, 2], guests: vec![] };
        let sets = SetsStatus { sets: vec![set(0), set(1)], moving: vec![1, 2, 3], ..SetsStatus::default() };
        let text = text(set_families(&sets).into()).unwrap();
        let has = |line: &str| text.contains(line);
        assert!(has("\nmlgw_cluster_sets 2\n") && has("\nmlgw_cluster_moving_groups 3\n"), "{text}");
    }

    #[test]
    fn comparisons_of_rows_and_groups_that_differ_are_counted() {
        let differing = RowComparison { differing: [NodeId(3)].into(), ..RowComparison::default() };
        let incomplete = RowComparison { without: [NodeId(3)].into(), ..RowComparison::default() };
        let rows = [(0, RowComparison::default()), (1, differing), (2, incomplete)].into();
        let counts = RowComparisonCounts { equal: 4, different: 5, incomplete: 6 };
        let text = text(row_families(counts, &rows).into()).unwrap();
        for line in [
            "mlgw_cluster_rows_compared_total{result=\"equal\"} 4",
            "mlgw_cluster_rows_compared_total{result=\"different\"} 5",
            "mlgw_cluster_rows_compared_total{result=\"incomplete\"} 6",
            "mlgw_cluster_differing_groups 1",
        ] {
            assert!(text.lines().any(|exposed| exposed == line), "{line} is missing in\n{text}");
        }
    }

    #[test]
    fn the_remaining_life_of_a_certificate_is_negative_after_its_end() {
        let of = |expires| text(vec![certificate_family(Timestamp(expires), Timestamp(5_000))]).unwrap();
        assert!(of(7_500).contains("\nmlgw_cluster_certificate_remaining_seconds 2.5\n"));
        assert!(of(4_000).contains("\nmlgw_cluster_certificate_remaining_seconds -1.0\n"));
    }

    #[test]
    fn the_deviation_of_a_clock_is_exposed_while_it_is_known() {
        let of = |clock| text(vec![clock_family(clock)]).unwrap();
        for clock in
            [ClockComparison::Compared { skew_ms: -1_500 }, ClockComparison::Disagree { by_ms: -1_500 }]
        {
            let text = of(clock);
            assert!(text.contains("\nmlgw_cluster_clock_skew_seconds -1.5\n"), "{text}");
        }
        assert!(of(ClockComparison::Alone).contains("\nmlgw_cluster_clock_skew_seconds 0.0\n"));
        assert!(!of(ClockComparison::Unknown).contains("\nmlgw_cluster_clock_skew_seconds "));
    }
}

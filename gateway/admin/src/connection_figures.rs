//! Metrics of the other nodes of a cluster, as this node reaches them, and of the connections with them.
//!
//! Every node exposes its own, also a gateway. They are added up over all other nodes, so the number of
//! series does not depend on the size of the cluster.

use super::process_figures::level;
use mlgw_node::{ChannelTotals, ClusterNode, NodeStatus};
use mlgw_telemetry::exposition::{MetricFamily, MetricValue};
use mlgw_telemetry::table::{
    CLUSTER_BYTES, CLUSTER_CALLS, CLUSTER_CONNECTIONS, CLUSTER_CONNECTS, CLUSTER_NODES, CLUSTER_STREAMS,
};

/// Returns the metrics of a node of a cluster.
pub(super) fn connection_families(cluster: &ClusterNode) -> Vec<MetricFamily> {
    let mut families = channel_families(&cluster.connections());
    families.push(nodes_family(&cluster.status().nodes));
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

#[cfg(test)]
mod tests {
    use super::channel_families;
    use mlgw_node::ChannelTotals;
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
}

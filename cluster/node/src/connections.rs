//! Connections of this node with all other nodes, added up for each channel. Pure.

use mlgw_transport::{Channel, ChannelCounters};

/// Counts of the connections with all peers on one channel, since the start of the node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChannelTotals {
    /// Name of the channel.
    pub channel: &'static str,
    /// Connections that this node made.
    pub dialed: u64,
    /// Connections that peers made.
    pub accepted: u64,
    /// Dials of this node that failed.
    pub dials_failed: u64,
    /// Connections that are open, in both directions.
    pub open: u64,
    /// Calls of this node that wait for an answer.
    pub calls_in_flight: u64,
    /// Streams of this node whose bodies have not ended.
    pub streams_in_flight: u64,
    /// Bytes received, before TLS.
    pub received_bytes: u64,
    /// Bytes sent, before TLS.
    pub sent_bytes: u64,
}

/// Adds the counters of all peers up, for each channel.
pub(crate) fn channel_totals(counters: &[ChannelCounters]) -> Vec<ChannelTotals> {
    let total = |channel: Channel| {
        let mut total = ChannelTotals { channel: channel.name(), ..ChannelTotals::default() };
        for peer in counters.iter().filter(|peer| peer.channel == channel) {
            total.dialed += peer.dialed;
            total.accepted += peer.accepted;
            total.dials_failed += peer.dials_failed;
            total.open += peer.open + peer.exclusive + peer.multiplexed;
            total.calls_in_flight += peer.calls_in_flight;
            total.streams_in_flight += peer.streams_in_flight;
            total.received_bytes += peer.bytes_in;
            total.sent_bytes += peer.bytes_out;
        }
        total
    };
    Channel::ALL.map(total).to_vec()
}

#[cfg(test)]
mod tests {
    use super::{ChannelTotals, channel_totals};
    use mlgw_common::NodeId;
    use mlgw_transport::{Channel, ChannelCounters};

    #[test]
    fn the_counters_of_all_peers_are_added_up_for_each_channel() {
        let counters = |node, channel, first| ChannelCounters {
            node: NodeId(node),
            channel,
            dialed: first,
            accepted: first + 1,
            dials_failed: first + 2,
            open: first + 3,
            exclusive: first + 8,
            multiplexed: 1,
            calls_in_flight: first + 4,
            streams_in_flight: first + 5,
            bytes_in: first + 6,
            bytes_out: first + 7,
        };
        let peers = [
            counters(2, Channel::Log, 100),
            counters(3, Channel::Log, 1_000),
            counters(3, Channel::Bulk, 10_000),
        ];
        let log = ChannelTotals {
            channel: "log",
            dialed: 1_100,
            accepted: 1_102,
            dials_failed: 1_104,
            open: 2_224,
            calls_in_flight: 1_108,
            streams_in_flight: 1_110,
            received_bytes: 1_112,
            sent_bytes: 1_114,
        };
        let totals = channel_totals(&peers);
        let control = ChannelTotals { channel: "control", ..ChannelTotals::default() };
        assert_eq!((totals[0], totals[1]), (control, log));
        assert_eq!((totals[2].channel, totals[2].dialed, totals[2].sent_bytes), ("bulk", 10_000, 10_007));
    }
}

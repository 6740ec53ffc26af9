//! Counters of the connections with each peer, for metrics.

use crate::channel::Channel;
use mlgw_common::NodeId;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counts of the connections with one peer on one channel, those that it dialed included.
#[derive(Debug, Default)]
pub(crate) struct ChannelMeter {
    pub(crate) dialed: AtomicU64,
    pub(crate) accepted: AtomicU64,
    pub(crate) dials_failed: AtomicU64,
    pub(crate) open: AtomicU64,
    pub(crate) exclusive: AtomicU64,
    pub(crate) multiplexed: AtomicU64,
    pub(crate) calls_in_flight: AtomicU64,
    pub(crate) streams_in_flight: AtomicU64,
    pub(crate) bytes_in: AtomicU64,
    pub(crate) bytes_out: AtomicU64,
}

/// Values of the counters of one peer and channel at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelCounters {
    /// The peer.
    pub node: NodeId,
    /// The channel.
    pub channel: Channel,
    /// Connections that this node made.
    pub dialed: u64,
    /// Connections that the peer made.
    pub accepted: u64,
    /// Dials of this node that failed.
    pub dials_failed: u64,
    /// Shared connections that are open, in both directions.
    pub open: u64,
    /// Exclusive connections that are open, in both directions.
    pub exclusive: u64,
    /// Multiplexed connections that are open, in both directions.
    pub multiplexed: u64,
    /// Calls of this node that wait for an answer.
    pub calls_in_flight: u64,
    /// Streams of this node whose bodies have not ended.
    pub streams_in_flight: u64,
    /// Bytes received, before TLS.
    pub bytes_in: u64,
    /// Bytes sent, before TLS.
    pub bytes_out: u64,
}

impl ChannelMeter {
    pub(crate) fn counters(&self, node: NodeId, channel: Channel) -> ChannelCounters {
        ChannelCounters {
            node,
            channel,
            dialed: self.dialed.load(Relaxed),
            accepted: self.accepted.load(Relaxed),
            dials_failed: self.dials_failed.load(Relaxed),
            open: self.open.load(Relaxed),
            exclusive: self.exclusive.load(Relaxed),
            multiplexed: self.multiplexed.load(Relaxed),
            calls_in_flight: self.calls_in_flight.load(Relaxed),
            streams_in_flight: self.streams_in_flight.load(Relaxed),
            bytes_in: self.bytes_in.load(Relaxed),
            bytes_out: self.bytes_out.load(Relaxed),
        }
    }
}

/// A gauge that is raised while this guard exists.
#[derive(Debug)]
pub(crate) struct Raised {
    meter: Arc<ChannelMeter>,
    gauge: fn(&ChannelMeter) -> &AtomicU64,
}

impl Raised {
    pub(crate) fn new(meter: Arc<ChannelMeter>, gauge: fn(&ChannelMeter) -> &AtomicU64) -> Self {
        gauge(&meter).fetch_add(1, Relaxed);
        Self { meter, gauge }
    }
}

impl Drop for Raised {
    fn drop(&mut self) {
        let before = (self.gauge)(&self.meter).fetch_sub(1, Relaxed);
        debug_assert!(before > 0, "a gauge is lowered as often as it was raised");
    }
}

//! Everything about one peer: its links, its open connections in both directions, and its counters.
//!
//! Invariant: no connection is open whose peer runs with another start than the known one, or is removed. The
//! rule is kept under one lock: a connection that is registered is compared with the known start, and one
//! that brings a newer start closes all others.

use crate::channel::Channel;
use crate::counters::{ChannelCounters, ChannelMeter, Raised};
use crate::handshake::HandshakeRefusal;
use crate::link::PeerLink;
use crate::rules::PeerRules;
use mlgw_common::NodeId;
use mlgw_common::limits::PEER_EXCLUSIVE_MAX;
use mlgw_trust::{NodeStart, judge_start};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use tokio_util::sync::CancellationToken;

/// Kind of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionKind {
    /// One of HTTP/2, which many requests share.
    Shared,
    /// One that carries one request at a time.
    Exclusive,
    /// One that carries many short requests at a time.
    Multiplexed,
}

impl ConnectionKind {
    /// Open connections with one peer, in both directions, of this kind. With more, the oldest is closed.
    const fn connections_max(self) -> usize {
        match self {
            // Three each, and three each that are being replaced after a break that one side has not noticed.
            Self::Shared => 12,
            // The same with one each.
            Self::Multiplexed => 4,
            Self::Exclusive => 2 * Channel::ALL.len() * PEER_EXCLUSIVE_MAX,
        }
    }

    fn gauge(self) -> fn(&ChannelMeter) -> &AtomicU64 {
        match self {
            Self::Shared => |meter| &meter.open,
            Self::Exclusive => |meter| &meter.exclusive,
            Self::Multiplexed => |meter| &meter.multiplexed,
        }
    }
}

/// State of one peer.
pub(crate) struct PeerState {
    pub(crate) node: NodeId,
    links: [PeerLink; 3],
    meters: [Arc<ChannelMeter>; 3],
    open: Mutex<Vec<RegisteredConnection>>,
}

struct RegisteredConnection {
    kind: ConnectionKind,
    start: NodeStart,
    cancel: CancellationToken,
}

/// Registration of an open connection, which ends with this guard.
pub(crate) struct Registration {
    peer: Arc<PeerState>,
    cancel: CancellationToken,
    _open: Raised,
}

impl PeerState {
    pub(crate) fn new(node: NodeId) -> Self {
        Self { node, links: Default::default(), meters: Default::default(), open: Mutex::default() }
    }

    pub(crate) const fn link(&self, channel: Channel) -> &PeerLink {
        &self.links[channel.index()]
    }

    pub(crate) const fn meter(&self, channel: Channel) -> &Arc<ChannelMeter> {
        &self.meters[channel.index()]
    }

    pub(crate) fn counters(&self) -> impl Iterator<Item = ChannelCounters> {
        Channel::ALL.into_iter().map(|channel| self.meter(channel).counters(self.node, channel))
    }

    /// Registers a connection to a peer with this start, which is on stable media. `cancel` closes it.
    ///
    /// # Errors
    /// If a newer start was accepted meanwhile, or the peer was removed.
    pub(crate) fn register(
        self: &Arc<Self>,
        rules: &PeerRules,
        start: NodeStart,
        channel: Channel,
        kind: ConnectionKind,
        cancel: CancellationToken,
    ) -> Result<Registration, HandshakeRefusal> {
        let mut open = self.open.lock();
        if rules.removed().contains(&self.node) {
            return Err(HandshakeRefusal::Removed(self.node));
        }
        judge_start(self.node, rules.starts.known(self.node), start)?;
        open.retain(|connection| {
            if connection.start != start {
                connection.cancel.cancel();
            }
            !connection.cancel.is_cancelled()
        });
        let of_kind = |connection: &RegisteredConnection| connection.kind == kind;
        if open.iter().filter(|connection| of_kind(connection)).count() >= kind.connections_max()
            && let Some(oldest) = open.iter().position(of_kind)
        {
            open.remove(oldest).cancel.cancel();
        }
        open.push(RegisteredConnection { kind, start, cancel: cancel.clone() });
        let raised = Raised::new(self.meter(channel).clone(), kind.gauge());
        Ok(Registration { peer: self.clone(), cancel, _open: raised })
    }

    /// Closes all connections.
    pub(crate) fn close(&self) {
        for connection in self.open.lock().drain(..) {
            connection.cancel.cancel();
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.cancel.cancel();
        self.peer.open.lock().retain(|connection| !connection.cancel.is_cancelled());
    }
}

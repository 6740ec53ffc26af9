//! Dials of exclusive connections, beside an open connection of HTTP/2 to the same address.

use crate::channel::Channel;
use crate::connection::OpenConnection;
use crate::error::DialError;
use crate::exclusive::{CountedConnection, ExclusiveConnection};
use crate::framed_dial::{DialedFrames, FramedDial};
use crate::peer::{ConnectionKind, PeerState};
use crate::state::TransportState;
use mlgw_common::time::{Instant, timeout_at};
use std::sync::Arc;

/// Takes an idle connection; `None` if there is none. Then one is being made for later requests.
pub(crate) fn take_or_dial(
    state: &Arc<TransportState>,
    peer: &Arc<PeerState>,
    channel: Channel,
    beside: &Arc<OpenConnection>,
) -> Option<ExclusiveConnection> {
    let taken = beside.exclusive.take();
    if taken.is_none()
        && let Some(counted) = beside.exclusive.begin_dial()
    {
        let (peer, beside) = (peer.clone(), beside.clone());
        let dial = FramedDial { state: state.clone(), peer, channel, beside };
        state.tasks.spawn(ExclusiveDial { dial, counted }.run());
    }
    taken
}

/// A dial of an exclusive connection beside an open one.
struct ExclusiveDial {
    dial: FramedDial,
    counted: CountedConnection,
}

/// Takes an idle connection, or makes one until `deadline`. `None` if that fails; then the next ones do not
/// wait for a while.
pub(crate) async fn take_or_wait(
    state: &Arc<TransportState>,
    peer: &Arc<PeerState>,
    channel: Channel,
    beside: &Arc<OpenConnection>,
    deadline: Instant,
) -> Option<ExclusiveConnection> {
    if let Some(taken) = beside.exclusive.take() {
        return Some(taken);
    }
    let counted = beside.exclusive.begin_own_dial()?;
    let (state, peer, pool) = (state.clone(), peer.clone(), beside.exclusive.clone());
    let dial = FramedDial { state, peer, channel, beside: beside.clone() };
    let Ok(Ok(dialed)) = timeout_at(deadline, ExclusiveDial { dial, counted }.connect()).await else {
        pool.pause_dials();
        return None;
    };
    dialed
}

impl ExclusiveDial {
    async fn run(self) {
        let (pool, node) = (self.counted.pool().clone(), self.dial.peer.node);
        match self.connect().await {
            Ok(connection) => {
                connection.into_iter().for_each(|connection| pool.put(connection));
                pool.end_dial();
            }
            // Requests go over HTTP/2.
            Err(error) => {
                tracing::debug!(%node, %error, "cannot make an exclusive connection to a node");
                pool.fail_dial();
            }
        }
    }

    /// Returns `None` if the shared connection ends meanwhile, or this node stops.
    async fn connect(self) -> Result<Option<ExclusiveConnection>, DialError> {
        let Self { dial, counted } = self;
        let dialed = dial.connect(ConnectionKind::Exclusive).await?;
        Ok(dialed.map(|DialedFrames { io, facts, registered, .. }| {
            ExclusiveConnection::new(io, facts, [Box::new(registered), Box::new(counted)])
        }))
    }
}

//! Dials of multiplexed connections, beside an open connection of HTTP/2 to the same address.

use crate::channel::Channel;
use crate::connection::OpenConnection;
use crate::framed_dial::{DialedFrames, connect};
use crate::frames::NumberedRequest;
use crate::multiplexed::{MultiplexedConnection, RequestInFlight};
use crate::peer::{ConnectionKind, PeerState};
use crate::state::TransportState;
use std::sync::Arc;

/// Queues a request on the multiplexed connection to a peer. `None` if it takes none now, or there is none:
/// then one is being made for later requests.
pub(crate) fn queue_or_dial(
    state: &Arc<TransportState>,
    peer: &Arc<PeerState>,
    channel: Channel,
    beside: &Arc<OpenConnection>,
    request: NumberedRequest,
) -> Option<RequestInFlight> {
    if let Some(connection) = beside.multiplexed.get() {
        return connection.queue(request);
    }
    if beside.multiplexed.begin_dial() {
        let (of, peer, beside) = (state.clone(), peer.clone(), beside.clone());
        state.tasks.spawn(async move { dial_and_run(&of, &peer, channel, &beside).await });
    }
    None
}

async fn dial_and_run(
    state: &Arc<TransportState>,
    peer: &Arc<PeerState>,
    channel: Channel,
    beside: &Arc<OpenConnection>,
) {
    let slot = &beside.multiplexed;
    match connect(state, peer, channel, beside, ConnectionKind::Multiplexed).await {
        Ok(Some(DialedFrames { io, facts, cancel, registered })) => {
            let connection = Arc::new(MultiplexedConnection::new(facts, cancel));
            slot.end_dial(Some(connection.clone()));
            tokio::select! {
                () = connection.run(io) => {}
                () = state.ended.cancelled() => {}
            }
            connection.end();
            drop(registered);
            if !connection.has_received() {
                slot.pause_dials();
            }
        }
        Ok(None) => slot.end_dial(None),
        // Requests go over exclusive connections, or over HTTP/2.
        Err(error) => {
            let node = peer.node;
            tracing::debug!(%node, %error, "cannot make a multiplexed connection to a node");
            slot.pause_dials();
        }
    }
}

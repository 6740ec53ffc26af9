//! Dials of multiplexed connections, beside an open connection of HTTP/2 to the same address.

use crate::channel::Channel;
use crate::connection::OpenConnection;
use crate::framed_dial::{DialedFrames, FramedDial};
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
        let (peer, beside) = (peer.clone(), beside.clone());
        let dial = FramedDial { state: state.clone(), peer, channel, beside };
        state.tasks.spawn(dial_and_run(dial));
    }
    None
}

async fn dial_and_run(dial: FramedDial) {
    let slot = &dial.beside.multiplexed;
    match dial.connect(ConnectionKind::Multiplexed).await {
        Ok(Some(DialedFrames { io, facts, cancel, registered })) => {
            let connection = Arc::new(MultiplexedConnection::new(facts, cancel));
            slot.end_dial(Some(connection.clone()));
            tokio::select! {
                () = connection.run(io) => {}
                () = dial.state.ended.cancelled() => {}
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
            let node = dial.peer.node;
            tracing::debug!(%node, %error, "cannot make a multiplexed connection to a node");
            slot.fail_dial();
        }
    }
}

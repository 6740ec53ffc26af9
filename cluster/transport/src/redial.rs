//! Connections to peers on demand: dialed by one task for all callers, and again after a break.

use crate::channel::Channel;
use crate::connection::OpenConnection;
use crate::dial;
use crate::error::{CallError, NotSent};
use crate::link::{LinkUse, PendingDial};
use crate::peer::PeerState;
use crate::state::TransportState;
use futures_util::FutureExt as _;
use mlgw_common::time::{Instant, timeout_at};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use tokio::sync::oneshot;

/// Returns the connection to a peer, and dials if there is none.
///
/// # Errors
/// [`CallError::NotSent`] or [`CallError::PeerRefused`].
pub(crate) async fn connection(
    state: &Arc<TransportState>,
    peer: &Arc<PeerState>,
    channel: Channel,
    deadline: Instant,
) -> Result<Arc<OpenConnection>, CallError> {
    let begin = |failures| begin_dial(state.clone(), peer.clone(), channel, failures);
    match peer.link(channel).connect(begin) {
        LinkUse::Now(outcome) => outcome,
        LinkUse::After(dial) => {
            let late = || CallError::NotSent { node: peer.node, reason: NotSent::Deadline(channel) };
            timeout_at(deadline, dial).await.unwrap_or_else(|_| Err(late()))
        }
    }
}

/// Dials in a task of its own, so that a caller that gives up does not stop the dial for others.
fn begin_dial(
    state: Arc<TransportState>,
    peer: Arc<PeerState>,
    channel: Channel,
    failures: u32,
) -> PendingDial {
    let node = peer.node;
    let stopping = move || CallError::NotSent { node, reason: NotSent::Stopping };
    let (sender, outcome) = oneshot::channel();
    let tasks = state.tasks.clone();
    tasks.spawn(async move {
        let outcome = tokio::select! {
            outcome = dial::dial_peer(&state, &peer, channel) => outcome,
            () = state.ended.cancelled() => Err(stopping()),
        };
        let meter = peer.meter(channel);
        match &outcome {
            Ok(connection) => {
                meter.dialed.fetch_add(1, Relaxed);
                tracing::info!(%node, %channel, address = %connection.address, "connected to a node");
            }
            Err(error) => {
                meter.dials_failed.fetch_add(1, Relaxed);
                // Only the first of a series: the others repeat it every two seconds.
                if failures == 0 {
                    tracing::warn!(%channel, %error, "cannot connect to a node");
                }
            }
        }
        peer.link(channel).finish(&outcome, failures);
        let _ = sender.send(outcome);
    });
    outcome.map(move |outcome| outcome.unwrap_or_else(|_| Err(stopping()))).boxed().shared()
}

//! Connection from this node to a peer on one channel: dialed on first use by one task for all callers, and
//! again after a break, with growing waits.
//!
//! A caller during a wait gets the error of the last dial at once. The wait ends early when the peer connects
//! to this node, or states another address.

use crate::address::PeerAddress;
use crate::backoff::redial_wait;
use crate::body::SentBody;
use crate::channel::{Channel, StreamClass};
use crate::dial;
use crate::error::{CallError, NotSent};
use crate::metered::StreamFacts;
use crate::peer::PeerState;
use crate::state::TransportState;
use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Shared};
use hyper::client::conn::http2::SendRequest;
use mlgw_common::NodeId;
use mlgw_common::limits::{PEER_CALLS_MAX, PEER_REQUEST_STREAMS_MAX, PEER_TRANSFER_STREAMS_MAX};
use mlgw_common::time::{Instant, timeout_at};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use tokio::sync::{Semaphore, oneshot};
use tokio_util::sync::CancellationToken;

/// Connection that passed the handshake.
pub(crate) struct OpenConnection {
    pub(crate) node: NodeId,
    pub(crate) address: PeerAddress,
    pub(crate) sender: SendRequest<SentBody>,
    pub(crate) facts: StreamFacts,
    pub(crate) cancel: CancellationToken,
}

impl OpenConnection {
    fn is_open(&self) -> bool {
        !self.cancel.is_cancelled() && !self.sender.is_closed()
    }
}

/// Link to a peer on one channel.
pub(crate) struct PeerLink {
    stage: Mutex<LinkStage>,
    pub(crate) calls: Arc<Semaphore>,
    streams: [Arc<Semaphore>; 2],
}

enum LinkStage {
    Idle(RedialWait),
    Dialing(PendingDial),
    Open(Arc<OpenConnection>),
}

type PendingDial = Shared<BoxFuture<'static, Result<Arc<OpenConnection>, CallError>>>;

/// Failed dials in a row, and the next one.
#[derive(Default)]
struct RedialWait {
    failures: u32,
    last: Option<FailedDial>,
}

struct FailedDial {
    error: CallError,
    retry_at: Instant,
}

impl Default for PeerLink {
    fn default() -> Self {
        let semaphore = |permits| Arc::new(Semaphore::new(permits));
        Self {
            stage: Mutex::new(LinkStage::Idle(RedialWait::default())),
            calls: semaphore(PEER_CALLS_MAX),
            streams: [semaphore(PEER_REQUEST_STREAMS_MAX), semaphore(PEER_TRANSFER_STREAMS_MAX)],
        }
    }
}

/// Permits of streams by class, on the side that accepts.
pub(crate) fn stream_permits() -> [Arc<Semaphore>; 2] {
    PeerLink::default().streams
}

impl PeerLink {
    pub(crate) const fn streams(&self, class: StreamClass) -> &Arc<Semaphore> {
        &self.streams[class.index()]
    }

    /// Ends a wait before the next dial: the peer is known to run.
    pub(crate) fn end_wait(&self) {
        if let LinkStage::Idle(wait) = &mut *self.stage.lock() {
            *wait = RedialWait::default();
        }
    }

    /// Records the end of a dial.
    fn finish(&self, outcome: &Result<Arc<OpenConnection>, CallError>, failures: u32) {
        *self.stage.lock() = match outcome {
            Ok(connection) => LinkStage::Open(connection.clone()),
            // Without an address nothing was dialed, and the next one is tried at once.
            Err(CallError::NotSent { reason: NotSent::NoAddress, .. }) => {
                LinkStage::Idle(RedialWait::default())
            }
            Err(error) => {
                let failures = failures.saturating_add(1);
                let retry_at = Instant::now() + redial_wait(failures);
                LinkStage::Idle(RedialWait {
                    failures,
                    last: Some(FailedDial { error: error.clone(), retry_at }),
                })
            }
        };
    }
}

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
    let dial = {
        let mut stage = peer.link(channel).stage.lock();
        match &*stage {
            LinkStage::Open(connection) if connection.is_open() => return Ok(connection.clone()),
            LinkStage::Idle(RedialWait { last: Some(failed), .. }) if Instant::now() < failed.retry_at => {
                return Err(failed.error.clone());
            }
            LinkStage::Dialing(dial) => dial.clone(),
            LinkStage::Idle(RedialWait { failures, .. }) => {
                let dial = begin_dial(state.clone(), peer.clone(), channel, *failures);
                *stage = LinkStage::Dialing(dial.clone());
                dial
            }
            LinkStage::Open(_) => {
                let dial = begin_dial(state.clone(), peer.clone(), channel, 0);
                *stage = LinkStage::Dialing(dial.clone());
                dial
            }
        }
    };
    let late = || CallError::NotSent { node: peer.node, reason: NotSent::Deadline(channel) };
    timeout_at(deadline, dial).await.unwrap_or_else(|_| Err(late()))
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
            () = state.stopping.cancelled() => Err(stopping()),
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

#[cfg(test)]
mod tests {
    use super::{LinkStage, PeerLink};
    use crate::error::{CallError, NotSent};
    use mlgw_common::NodeId;
    use mlgw_common::time::{Instant, sleep};
    use std::time::Duration;

    /// Failures in a row, and the wait until the next dial.
    fn wait(link: &PeerLink) -> Option<Duration> {
        let LinkStage::Idle(wait) = &*link.stage.lock() else { panic!("it is not idle") };
        wait.last.as_ref().map(|failed| failed.retry_at - Instant::now())
    }

    #[tokio::test(start_paused = true)]
    async fn waits_grow_with_failures_and_end_when_the_peer_is_known_to_run() {
        let link = PeerLink::default();
        let failed = Err(CallError::NotSent { node: NodeId(2), reason: NotSent::Removed });
        link.finish(&failed, 0);
        assert_eq!(wait(&link), Some(Duration::from_millis(50)));
        sleep(Duration::from_millis(20)).await;
        assert_eq!(wait(&link), Some(Duration::from_millis(30)));
        link.finish(&failed, 3);
        assert_eq!(wait(&link), Some(Duration::from_millis(400)));
        link.end_wait();
        assert_eq!(wait(&link), None);
        link.finish(&Err(CallError::NotSent { node: NodeId(2), reason: NotSent::NoAddress }), 3);
        assert_eq!(wait(&link), None, "nothing was dialed");
    }
}

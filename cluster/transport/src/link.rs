//! State of the connection from this node to a peer on one channel, and the limits of its use.
//!
//! One dial serves all callers. After a dial that failed, a caller gets its error at once until the wait is
//! over. The wait ends early when the peer connects to this node, or states another address.

use crate::backoff::redial_wait;
use crate::channel::StreamClass;
use crate::connection::OpenConnection;
use crate::error::{CallError, NotSent};
use futures_util::future::{BoxFuture, Shared};
use mlgw_common::limits::{
    PEER_APPEND_STREAMS_MAX, PEER_CALLS_MAX, PEER_REQUEST_STREAMS_MAX, PEER_TRANSFER_STREAMS_MAX,
};
use mlgw_common::time::Instant;
use parking_lot::Mutex;
use std::sync::Arc;
use tokio::sync::Semaphore;

/// Result of a dial.
pub(crate) type DialOutcome = Result<Arc<OpenConnection>, CallError>;

/// Dial in progress, for which several callers wait.
pub(crate) type PendingDial = Shared<BoxFuture<'static, DialOutcome>>;

/// Link to a peer on one channel.
pub(crate) struct PeerLink {
    stage: Mutex<LinkStage>,
    pub(crate) calls: Arc<Semaphore>,
    streams: StreamPermits,
}

/// Permits of streams, by class.
pub(crate) type StreamPermits = [Arc<Semaphore>; StreamClass::ALL.len()];

enum LinkStage {
    Idle(RedialWait),
    Dialing(PendingDial),
    Open(Arc<OpenConnection>),
}

/// Failed dials in a row, and the last of them.
#[derive(Default)]
struct RedialWait {
    failures: u32,
    last: Option<FailedDial>,
}

struct FailedDial {
    error: CallError,
    retry_at: Instant,
}

/// State of a link for its next user.
pub(crate) enum LinkUse {
    /// The connection, or the error of the last dial.
    Now(DialOutcome),
    /// A dial for which the caller waits.
    After(PendingDial),
}

impl Default for PeerLink {
    fn default() -> Self {
        let stage = Mutex::new(LinkStage::Idle(RedialWait::default()));
        Self { stage, calls: Arc::new(Semaphore::new(PEER_CALLS_MAX)), streams: stream_permits() }
    }
}

/// Permits of the streams of one connection. A class whose streams have another connection uses none of its
/// own.
pub(crate) fn stream_permits() -> StreamPermits {
    StreamClass::ALL.map(|class| {
        let permits = match class {
            StreamClass::Request => PEER_REQUEST_STREAMS_MAX,
            StreamClass::Transfer => PEER_TRANSFER_STREAMS_MAX,
            StreamClass::Append => PEER_APPEND_STREAMS_MAX,
        };
        Arc::new(Semaphore::new(permits))
    })
}

impl PeerLink {
    pub(crate) const fn streams(&self, class: StreamClass) -> &Arc<Semaphore> {
        &self.streams[class.index()]
    }

    /// Returns the connection, or begins a dial. `dial` gets the number of dials that failed before it.
    pub(crate) fn connect(&self, dial: impl FnOnce(u32) -> PendingDial) -> LinkUse {
        let mut stage = self.stage.lock();
        let failures = match &*stage {
            LinkStage::Open(connection) if connection.is_open() => {
                return LinkUse::Now(Ok(connection.clone()));
            }
            LinkStage::Idle(RedialWait { last: Some(failed), .. }) if Instant::now() < failed.retry_at => {
                return LinkUse::Now(Err(failed.error.clone()));
            }
            LinkStage::Dialing(dial) => return LinkUse::After(dial.clone()),
            LinkStage::Idle(wait) => wait.failures,
            LinkStage::Open(_) => 0,
        };
        let dial = dial(failures);
        *stage = LinkStage::Dialing(dial.clone());
        LinkUse::After(dial)
    }

    /// The connection, if there is one.
    #[cfg(test)]
    pub(crate) fn opened(&self) -> Option<Arc<OpenConnection>> {
        match &*self.stage.lock() {
            LinkStage::Open(connection) => Some(connection.clone()),
            LinkStage::Idle(_) | LinkStage::Dialing(_) => None,
        }
    }

    /// Ends a wait before the next dial: the peer is known to run.
    pub(crate) fn end_wait(&self) {
        if let LinkStage::Idle(wait) = &mut *self.stage.lock() {
            *wait = RedialWait::default();
        }
    }

    /// Records the end of a dial.
    pub(crate) fn finish(&self, outcome: &DialOutcome, failures: u32) {
        *self.stage.lock() = match outcome {
            Ok(connection) => LinkStage::Open(connection.clone()),
            // Without an address nothing was dialed, and the next one is tried at once.
            Err(CallError::NotSent { reason: NotSent::NoAddress, .. }) => {
                LinkStage::Idle(RedialWait::default())
            }
            Err(error) => {
                let failures = failures.saturating_add(1);
                let retry_at = Instant::now() + redial_wait(failures);
                let last = Some(FailedDial { error: error.clone(), retry_at });
                LinkStage::Idle(RedialWait { failures, last })
            }
        };
    }
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

//! The other members of the catalogue's groups, over the transport.
//!
//! The transport starts after the catalogue has opened and stops before it closes. Outside of that time each
//! call fails as not sent.

use crate::numbers::{CATALOGUE, SNAPSHOT};
use arc_swap::ArcSwapOption;
use bytes::Bytes;
use futures_util::stream;
use http_body::Frame;
use http_body_util::{BodyExt as _, Limited, StreamBody};
use mlgw_common::NodeId;
use mlgw_common::time::{Instant, sleep_until};
use mlgw_metadata::{MemberLane, MemberPeers, PeerError, PeerFuture, SnapshotBytes};
use mlgw_transport::{CallError, Channel, ClusterTransport, PeerBody, PeerBodyError, StreamClass};
use parking_lot::Mutex;
use std::io;
use std::sync::Arc;
use std::task::{Poll, ready};
use std::time::Duration;

/// Longest time until another node accepts the head of a snapshot.
const SNAPSHOT_ACCEPT_MAX: Duration = Duration::from_secs(10);

/// Longest time in which no piece of a snapshot is sent.
const SNAPSHOT_STALL_MAX: Duration = Duration::from_secs(60);

/// Longest time from the last piece of a snapshot to the answer: the receiver checks and installs it. It ends
/// the stream earlier when its node stops or the connection breaks.
const SNAPSHOT_INSTALL_MAX: Duration = Duration::from_mins(10);

/// Longest answer to a snapshot.
const SNAPSHOT_ANSWER_BYTES_MAX: usize = 64 << 10;

/// The transport of this node while it runs.
#[derive(Debug, Default)]
pub(crate) struct RunningTransport(ArcSwapOption<ClusterTransport>);

impl RunningTransport {
    /// Makes a started transport available.
    pub(crate) fn set(&self, transport: ClusterTransport) {
        self.0.store(Some(Arc::new(transport)));
    }

    /// Takes the transport, so that later calls fail.
    pub(crate) fn take(&self) -> Option<Arc<ClusterTransport>> {
        self.0.swap(None)
    }

    /// The transport; `None` before its start and after its end.
    pub(crate) fn get(&self) -> Option<Arc<ClusterTransport>> {
        self.0.load_full()
    }

    fn running(&self) -> Result<Arc<ClusterTransport>, PeerError> {
        self.get().ok_or_else(|| PeerError::NotSent("the transport of this node does not run".to_owned()))
    }
}

/// The other nodes, as the catalogue calls them.
#[derive(Debug)]
pub(crate) struct TransportPeers {
    transport: Arc<RunningTransport>,
}

impl TransportPeers {
    pub(crate) const fn new(transport: Arc<RunningTransport>) -> Self {
        Self { transport }
    }

    async fn send(&self, node: NodeId, head: Bytes, body: SnapshotBytes) -> Result<Bytes, PeerError> {
        let transport = self.transport.running()?;
        let limit = Arc::new(TransferLimit::new());
        let body = limited_body(body, Arc::clone(&limit));
        let deadline = Instant::now() + SNAPSHOT_ACCEPT_MAX;
        let opened = transport.stream(node, StreamClass::Transfer, SNAPSHOT, head, body, deadline).await;
        let answer = Limited::new(opened.map_err(peer_error)?.body, SNAPSHOT_ANSWER_BYTES_MAX).collect();
        tokio::select! {
            collected = answer => match collected {
                Ok(collected) => Ok(collected.to_bytes()),
                Err(error) => Err(PeerError::Unknown(error.to_string())),
            },
            () = limit.passed() => Err(PeerError::Unknown("the snapshot makes no progress".to_owned())),
        }
    }
}

impl MemberPeers for TransportPeers {
    fn call(&self, node: NodeId, lane: MemberLane, call: Bytes, deadline: Instant) -> PeerFuture<'_> {
        let channel = match lane {
            MemberLane::Control => Channel::Control,
            MemberLane::Log => Channel::Log,
        };
        Box::pin(async move {
            let transport = self.transport.running()?;
            transport.call(node, channel, CATALOGUE, call, deadline).await.map_err(peer_error)
        })
    }

    fn send_snapshot(&self, node: NodeId, head: Bytes, body: SnapshotBytes) -> PeerFuture<'_> {
        Box::pin(self.send(node, head, body))
    }
}

/// Time at which a transfer counts as stalled.
#[derive(Debug)]
struct TransferLimit(Mutex<Instant>);

impl TransferLimit {
    fn new() -> Self {
        Self(Mutex::new(Instant::now() + SNAPSHOT_STALL_MAX))
    }

    fn extend(&self, time: Duration) {
        *self.0.lock() = Instant::now() + time;
    }

    /// Waits until the transfer is stalled.
    async fn passed(&self) {
        loop {
            let limit = *self.0.lock();
            if Instant::now() >= limit {
                return;
            }
            sleep_until(limit).await;
        }
    }
}

/// The bytes of a snapshot as the body of a stream. Each piece that the transport takes, and the end, extend
/// the limit.
fn limited_body(mut body: SnapshotBytes, limit: Arc<TransferLimit>) -> PeerBody {
    let frames = stream::poll_fn(move |cx| {
        let piece = ready!(body.as_mut().poll_next(cx));
        limit.extend(if piece.is_some() { SNAPSHOT_STALL_MAX } else { SNAPSHOT_INSTALL_MAX });
        let failed = |error: io::Error| PeerBodyError::Failed(error.to_string());
        Poll::Ready(piece.map(|piece| piece.map(Frame::data).map_err(failed)))
    });
    PeerBody::new(StreamBody::new(frames))
}

/// The error of a call by what the catalogue may do next.
fn peer_error(error: CallError) -> PeerError {
    match error {
        CallError::NotSent { .. } | CallError::PeerRefused { .. } => PeerError::NotSent(error.to_string()),
        CallError::Refused { refusal, .. } => PeerError::Refused(refusal.message),
        CallError::Unknown { .. } => PeerError::Unknown(error.to_string()),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::{SNAPSHOT_INSTALL_MAX, SNAPSHOT_STALL_MAX, TransferLimit, limited_body, peer_error};
    use bytes::Bytes;
    use futures_util::{StreamExt as _, stream};
    use http_body_util::BodyExt as _;
    use mlgw_common::NodeId;
    use mlgw_common::time::Instant;
    use mlgw_metadata::PeerError;
    use mlgw_transport::{CallError, Channel, HandshakeRefusal, NotSent, ServiceRefusal, UnknownOutcome};
    use std::sync::Arc;

    /// Position of a kind of error in [`call_errors`].
    const fn position(error: &CallError) -> usize {
        match error {
            CallError::NotSent { reason, .. } => match reason {
                NotSent::NoAddress => 0,
                NotSent::Removed => 1,
                NotSent::OwnNode => 2,
                NotSent::Unreachable { .. } => 3,
                NotSent::Deadline(_) => 4,
                NotSent::Busy(_) => 5,
                NotSent::TooLarge { .. } => 6,
                NotSent::NotUnderstood(_) => 7,
                NotSent::Closed(_) => 8,
                NotSent::Stopping => 9,
            },
            CallError::PeerRefused { .. } => 10,
            CallError::Refused { .. } => 11,
            CallError::Unknown { reason, .. } => match reason {
                UnknownOutcome::Deadline => 12,
                UnknownOutcome::Broken(_) => 13,
                UnknownOutcome::BadAnswer(_) => 14,
            },
        }
    }

    /// One error of each kind.
    pub(crate) fn call_errors() -> Vec<CallError> {
        let node = NodeId(2);
        let address = || "node-2:7000".parse().unwrap();
        let not_sent = [
            NotSent::NoAddress,
            NotSent::Removed,
            NotSent::OwnNode,
            NotSent::Unreachable { address: address(), cause: "refused".to_owned() },
            NotSent::Deadline(Channel::Bulk),
            NotSent::Busy(Channel::Bulk),
            NotSent::TooLarge { bytes: 2, limit: 1 },
            NotSent::NotUnderstood(400),
            NotSent::Closed(Channel::Bulk),
            NotSent::Stopping,
        ];
        let refused = ServiceRefusal { code: 1, message: "no".to_owned() };
        let unknown = [
            UnknownOutcome::Deadline,
            UnknownOutcome::Broken("reset".to_owned()),
            UnknownOutcome::BadAnswer("short".to_owned()),
        ];
        let not_sent = not_sent.into_iter().map(|reason| CallError::NotSent { node, reason });
        let answered = [
            CallError::PeerRefused { node, address: address(), refusal: HandshakeRefusal::Removed(node) },
            CallError::Refused { node, refusal: refused },
        ];
        let unknown = unknown.into_iter().map(|reason| CallError::Unknown { node, reason });
        let all: Vec<CallError> = not_sent.chain(answered).chain(unknown).collect();
        assert!(all.iter().map(position).eq(0..15), "a kind is missing");
        all
    }

    #[test]
    fn an_unknown_outcome_stays_unknown_and_a_refusal_a_refusal() {
        for error in call_errors() {
            let mapped = peer_error(error.clone());
            let is_expected = match error {
                CallError::NotSent { .. } | CallError::PeerRefused { .. } => {
                    matches!(mapped, PeerError::NotSent(_))
                }
                CallError::Refused { .. } => matches!(mapped, PeerError::Refused(_)),
                CallError::Unknown { .. } => matches!(mapped, PeerError::Unknown(_)),
            };
            assert!(is_expected, "{mapped:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_snapshot_is_stalled_a_minute_after_a_piece_and_ten_minutes_after_its_end() {
        let limit = Arc::new(TransferLimit::new());
        let begin = Instant::now();
        limit.passed().await;
        assert_eq!(begin.elapsed(), SNAPSHOT_STALL_MAX);

        let pieces = stream::iter([Ok(Bytes::from_static(b"piece"))]).boxed();
        let mut body = limited_body(pieces, Arc::clone(&limit));
        let begin = Instant::now();
        assert!(body.frame().await.unwrap().is_ok());
        limit.passed().await;
        assert_eq!(begin.elapsed(), SNAPSHOT_STALL_MAX);

        let begin = Instant::now();
        assert!(body.frame().await.is_none());
        limit.passed().await;
        assert_eq!(begin.elapsed(), SNAPSHOT_INSTALL_MAX);
    }
}

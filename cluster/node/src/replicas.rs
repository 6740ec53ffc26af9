//! Bytes of replicas of segments, from and to other nodes, as streams of the transport.
//!
//! The head of a stream is an encoded request, and the body of its answer has the bytes. Neither side
//! verifies them: the receiver compares the checksums in them before it uses a copy. A body that ends early
//! ends with an error, never as if it were complete. Nothing is stored here.

use crate::numbers::REPLICA;
use crate::peers::RunningTransport;
use crate::refusals::{NOT_SERVING, REPLICA_REFUSED, refusal};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::{FutureExt as _, StreamExt as _, stream};
use http_body::Frame;
use http_body_util::{BodyDataStream, BodyExt as _, Empty, StreamBody};
use mlgw_common::NodeId;
use mlgw_common::time::{Instant, timeout};
use mlgw_segments::hot::{ReplicaBytes, SegmentPeers};
use mlgw_transport::{PeerBody, PeerBodyError, ServiceRefusal, StreamAnswer, StreamClass};
use parking_lot::RwLock;
use std::io;
use std::sync::Arc;
use std::task::{Poll, ready};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Longest time until another node accepts a request.
const ACCEPT_MAX: Duration = Duration::from_secs(10);

/// Longest time in which an answer delivers nothing to a reader that waits for it.
const STALL_MAX: Duration = Duration::from_mins(1);

/// Serves bytes of the replicas of this node.
pub trait SegmentServer: Send + Sync + 'static {
    /// Opens the bytes that an encoded request names.
    ///
    /// # Errors
    /// The reason for which they are not served.
    fn read(&self, from: NodeId, request: &[u8]) -> Result<ReplicaBytes, String>;
}

/// The server of the replicas of this node, from its start until its stop.
#[derive(Default)]
pub(crate) struct ServedReplicas {
    server: RwLock<Option<Arc<dyn SegmentServer>>>,
    stop: CancellationToken,
}

impl ServedReplicas {
    /// Serves replicas from now on. A server that begins after the stop is ignored.
    pub(crate) fn serve(&self, server: Arc<dyn SegmentServer>) {
        let mut served = self.server.write();
        debug_assert!(served.is_none(), "a node has one server of replicas");
        if !self.stop.is_cancelled() {
            *served = Some(server);
        }
    }

    /// Serves no replicas from now on, and cuts the streams that have begun.
    pub(crate) fn stop(&self) {
        self.stop.cancel();
        *self.server.write() = None;
    }

    /// Answers a request of a peer.
    ///
    /// # Errors
    /// When this node has no server, or the server refuses.
    pub(crate) fn open(&self, from: NodeId, request: &[u8]) -> Result<StreamAnswer, ServiceRefusal> {
        let server = self.server.read().clone();
        let server = server.ok_or_else(|| {
            refusal(NOT_SERVING, "this node serves no replicas: it starts or stops, or is a gateway")
        })?;
        let bytes = server.read(from, request).map_err(|why| refusal(REPLICA_REFUSED, &why))?;
        Ok(StreamAnswer { head: Bytes::new(), body: sent_body(bytes, self.stop.clone()) })
    }
}

/// The bytes of a replica as the body of an answer, which a stop of this node cuts.
fn sent_body(mut bytes: ReplicaBytes, stop: CancellationToken) -> PeerBody {
    let mut stopping = Box::pin(stop.cancelled_owned());
    let failed = |error: io::Error| PeerBodyError::Failed(error.to_string());
    let frames = stream::poll_fn(move |cx| {
        if stopping.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Some(Err(PeerBodyError::Failed("the node stops".to_owned()))));
        }
        let piece = ready!(bytes.as_mut().poll_next(cx));
        Poll::Ready(piece.map(|piece| piece.map(Frame::data).map_err(failed)))
    });
    PeerBody::new(StreamBody::new(frames))
}

/// The replicas of the other nodes.
#[derive(Debug)]
pub(crate) struct TransportSegmentPeers {
    transport: Arc<RunningTransport>,
}

impl TransportSegmentPeers {
    pub(crate) const fn new(transport: Arc<RunningTransport>) -> Self {
        Self { transport }
    }

    async fn open(&self, node: NodeId, request: Bytes) -> io::Result<ReplicaBytes> {
        let stopped = || io::Error::other("the transport of this node does not run");
        let transport = self.transport.get().ok_or_else(stopped)?;
        let deadline = Instant::now() + ACCEPT_MAX;
        let body = PeerBody::new(Empty::<Bytes>::new().map_err(|never| match never {}));
        let opened = transport.stream(node, StreamClass::Transfer, REPLICA, request, body, deadline).await;
        Ok(received_bytes(opened.map_err(io::Error::other)?.body))
    }
}

impl SegmentPeers for TransportSegmentPeers {
    fn read(&self, node: NodeId, request: Bytes) -> BoxFuture<'_, io::Result<ReplicaBytes>> {
        self.open(node, request).boxed()
    }
}

/// The bytes of an answer. After an error the stream of the peer is given up, also when nothing arrives for
/// [`STALL_MAX`]. Only the time counts in which the reader waits: a reader may be slower than that.
fn received_bytes(body: PeerBody) -> ReplicaBytes {
    let pieces = stream::unfold(Some(BodyDataStream::new(body)), |open| async move {
        let mut pieces = open?;
        match timeout(STALL_MAX, pieces.next()).await {
            Ok(Some(Ok(piece))) => Some((Ok(piece), Some(pieces))),
            Ok(Some(Err(error))) => Some((Err(io::Error::other(error)), None)),
            Ok(None) => None,
            Err(_) => {
                let stalled = format!("no bytes of the replica arrived for {} s", STALL_MAX.as_secs());
                Some((Err(io::Error::new(io::ErrorKind::TimedOut, stalled)), None))
            }
        }
    });
    pieces.boxed()
}

#[cfg(test)]
mod tests {
    use super::{STALL_MAX, SegmentServer, ServedReplicas, TransportSegmentPeers, received_bytes};
    use crate::refusals::{NOT_SERVING, REPLICA_REFUSED};
    use bytes::Bytes;
    use futures_util::{StreamExt as _, stream};
    use http_body::Frame;
    use http_body_util::{BodyExt as _, StreamBody};
    use mlgw_common::NodeId;
    use mlgw_common::time::{Instant, sleep};
    use mlgw_segments::hot::{ReplicaBytes, SegmentPeers as _};
    use mlgw_transport::{PeerBody, PeerBodyError};
    use std::io;
    use std::sync::Arc;

    const TWO: NodeId = NodeId(2);

    /// Serves two pieces and then waits for ever. Only node 2 may read.
    struct TestReplicas;

    impl SegmentServer for TestReplicas {
        fn read(&self, from: NodeId, request: &[u8]) -> Result<ReplicaBytes, String> {
            if from != TWO {
                return Err(format!("node {from} may not read"));
            }
            let pieces = [Bytes::copy_from_slice(request), Bytes::from_static(b"end")].map(Ok);
            Ok(stream::iter(pieces).chain(stream::pending()).boxed())
        }
    }

    fn peer_body(pieces: Vec<Result<&'static str, PeerBodyError>>) -> PeerBody {
        let frames = pieces.into_iter().map(|piece| piece.map(|text| Frame::data(Bytes::from(text))));
        PeerBody::new(StreamBody::new(stream::iter(frames.collect::<Vec<_>>())))
    }

    #[tokio::test]
    async fn replicas_are_served_from_the_start_of_the_server_until_the_stop() {
        let served = ServedReplicas::default();
        let refused = served.open(TWO, b"request").unwrap_err();
        assert_eq!(refused.code, NOT_SERVING);
        assert!(refused.message.contains("serves no replicas"), "{refused}");

        served.serve(Arc::new(TestReplicas));
        let refused = served.open(NodeId(3), b"request").unwrap_err();
        assert_eq!((refused.code, refused.message.as_str()), (REPLICA_REFUSED, "node 3 may not read"));
        let mut answer = served.open(TWO, b"request").unwrap();
        assert!(answer.head.is_empty());
        for expected in [&b"request"[..], b"end"] {
            let frame = answer.body.frame().await.unwrap().unwrap();
            assert_eq!(frame.data_ref().unwrap(), expected);
        }

        served.stop();
        let cut = answer.body.frame().await.unwrap().unwrap_err();
        assert_eq!(cut, PeerBodyError::Failed("the node stops".to_owned()));
        served.serve(Arc::new(TestReplicas));
        assert_eq!(served.open(TWO, b"request").unwrap_err().code, NOT_SERVING);
    }

    #[tokio::test]
    async fn received_bytes_end_as_the_body_does() {
        let whole = received_bytes(peer_body(vec![Ok("a"), Ok("b")])).collect::<Vec<_>>().await;
        let whole: Vec<Bytes> = whole.into_iter().map(Result::unwrap).collect();
        assert_eq!(whole, ["a", "b"]);
        let cut = PeerBodyError::Cut("reset".to_owned());
        let mut cut = received_bytes(peer_body(vec![Ok("a"), Err(cut), Ok("b")]));
        assert_eq!(cut.next().await.unwrap().unwrap(), "a");
        let error = cut.next().await.unwrap().unwrap_err();
        assert_eq!(error.to_string(), "the body was cut off: reset");
        assert!(cut.next().await.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_delivers_nothing_is_given_up_after_a_minute() {
        let frames = stream::iter([Ok(Frame::data(Bytes::from_static(b"a")))]).chain(stream::pending());
        let mut bytes = received_bytes(PeerBody::new(StreamBody::new(frames)));
        assert!(bytes.next().await.unwrap().is_ok());
        // The reader waits for something else.
        sleep(2 * STALL_MAX).await;
        let begin = Instant::now();
        let error = bytes.next().await.unwrap().unwrap_err();
        assert_eq!((error.kind(), begin.elapsed()), (io::ErrorKind::TimedOut, STALL_MAX));
        assert!(bytes.next().await.is_none());
    }

    #[tokio::test]
    async fn without_a_transport_nothing_is_read() {
        let peers = TransportSegmentPeers::new(Arc::default());
        let Err(error) = peers.read(TWO, Bytes::new()).await else { panic!("there is no transport") };
        assert_eq!(error.to_string(), "the transport of this node does not run");
    }
}

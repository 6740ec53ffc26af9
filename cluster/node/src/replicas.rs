//! Replicas of segments of this node for other nodes, and those of other nodes, over the transport.
//!
//! The head of a stream is an encoded request. The body of its answer has the bytes of a replica or, for
//! appends, whose frames are the body of the request, the synced lengths. Neither side verifies the bytes:
//! who uses them compares their checksums. A body that ends early ends with an error, never as if it were
//! complete. Nothing is stored here.

use crate::numbers::{APPEND, CLOSE, REPLICA};
use crate::peers::RunningTransport;
use crate::refusals::{NOT_SERVING, REPLICA_REFUSED, refusal};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::{FutureExt as _, StreamExt as _, stream};
use http_body::Frame;
use http_body_util::{BodyDataStream, BodyExt as _, Empty, Limited, StreamBody};
use mlgw_common::NodeId;
use mlgw_common::time::{Instant, timeout, timeout_at};
use mlgw_formats::segment_calls::RECORD_READ_BYTES_MAX;
use mlgw_segments::hot::{ReplicaBytes, SegmentPeers};
use mlgw_transport::{
    Channel, ClusterTransport, PeerBody, PeerBodyError, ServiceRefusal, StreamAnswer, StreamClass,
};
use parking_lot::RwLock;
use std::io;
use std::sync::Arc;
use std::task::{Poll, ready};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Longest time until another node accepts a request.
const ACCEPT_MAX: Duration = Duration::from_secs(10);

/// Longest time until another node has created a replica of an open segment.
const APPEND_ACCEPT_MAX: Duration = Duration::from_secs(3);

/// Longest time until another node has closed a replica: it may read the whole file.
const CLOSE_MAX: Duration = Duration::from_secs(30);

/// Longest time until the bytes that a client waits for have arrived.
const CLIENT_READ_MAX: Duration = Duration::from_secs(5);

/// Longest time in which an answer delivers nothing to a reader that waits for it.
const STALL_MAX: Duration = Duration::from_mins(1);

/// Serves the replicas of this node.
pub trait SegmentServer: Send + Sync + 'static {
    /// Opens the bytes that an encoded request names, for a copy or for a client of another node.
    ///
    /// # Errors
    /// The reason for which they are not served.
    fn read(&self, from: NodeId, request: &[u8]) -> Result<ReplicaBytes, String>;

    /// Creates a replica of an open segment, and stores the frames of its writer. The answer has the synced
    /// lengths.
    ///
    /// # Errors
    /// The reason for which the replica is not opened.
    fn append(
        &self,
        from: NodeId,
        head: Bytes,
        frames: ReplicaBytes,
    ) -> BoxFuture<'static, Result<ReplicaBytes, String>>;

    /// Closes a replica of an open segment, and returns its encoded state.
    ///
    /// # Errors
    /// The reason for which the state is not known.
    fn close(&self, request: Bytes) -> BoxFuture<'static, Result<Bytes, String>>;

    /// Returns the space for segments on this node.
    fn space(&self) -> SegmentSpace;
}

/// Space for segments on the hot tier of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentSpace {
    /// Bytes of segments.
    pub used_bytes: u64,
    /// Bytes that can still be stored.
    pub free_bytes: u64,
    /// True if there is no space for further segments.
    pub is_full: bool,
    /// True if syncs of appends take longer than a second.
    pub is_slow: bool,
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
        let bytes = self.server()?.read(from, request).map_err(|why| refusal(REPLICA_REFUSED, &why))?;
        Ok(StreamAnswer { head: Bytes::new(), body: sent_body(bytes, self.stop.clone()) })
    }

    /// Opens a replica for a peer that appends to it. A stop cuts both directions.
    ///
    /// # Errors
    /// When this node has no server, or the server refuses.
    pub(crate) async fn append(
        &self,
        from: NodeId,
        head: Bytes,
        body: PeerBody,
    ) -> Result<StreamAnswer, ServiceRefusal> {
        let frames = received_frames(body, self.stop.clone());
        let opened = self.server()?.append(from, head, frames).await;
        let lengths = opened.map_err(|why| refusal(REPLICA_REFUSED, &why))?;
        Ok(StreamAnswer { head: Bytes::new(), body: sent_body(lengths, self.stop.clone()) })
    }

    /// Closes a replica for a peer.
    ///
    /// # Errors
    /// When this node has no server, or the server refuses.
    pub(crate) async fn close(&self, request: Bytes) -> Result<Bytes, ServiceRefusal> {
        self.server()?.close(request).await.map_err(|why| refusal(REPLICA_REFUSED, &why))
    }

    /// The space for segments; `None` while this node has no server.
    pub(crate) fn space(&self) -> Option<SegmentSpace> {
        self.server.read().as_ref().map(|server| server.space())
    }

    /// True if this node has no space for further segments.
    pub(crate) fn is_full(&self) -> bool {
        self.space().is_some_and(|space| space.is_full)
    }

    fn server(&self) -> Result<Arc<dyn SegmentServer>, ServiceRefusal> {
        let server = self.server.read().clone();
        server.ok_or_else(|| {
            refusal(NOT_SERVING, "this node serves no replicas: it starts or stops, or is a gateway")
        })
    }
}

/// Frames of a peer, which a stop of this node cuts.
fn received_frames(body: PeerBody, stop: CancellationToken) -> ReplicaBytes {
    let frames = stream::unfold(Some(BodyDataStream::new(body)), move |open| {
        let stop = stop.clone();
        async move {
            let mut pieces = open?;
            let piece = tokio::select! {
                piece = pieces.next() => piece?,
                () = stop.cancelled() => return Some((Err(io::Error::other("the node stops")), None)),
            };
            match piece {
                Ok(piece) => Some((Ok(piece), Some(pieces))),
                Err(error) => Some((Err(io::Error::other(error)), None)),
            }
        }
    });
    frames.boxed()
}

/// Bytes as a body that this node sends, which its stop cuts.
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

    fn running(&self) -> io::Result<Arc<ClusterTransport>> {
        self.transport.get().ok_or_else(|| io::Error::other("the transport of this node does not run"))
    }

    async fn open(&self, node: NodeId, request: Bytes) -> io::Result<ReplicaBytes> {
        let transport = self.running()?;
        let deadline = Instant::now() + ACCEPT_MAX;
        let class = StreamClass::Transfer;
        let opened = transport.stream(node, class, REPLICA, request, empty_body(), deadline).await;
        Ok(received_bytes(opened.map_err(io::Error::other)?.body))
    }

    /// Reads bytes in a stream of the class of forwarded requests, which copies never use up.
    async fn collect(&self, node: NodeId, request: Bytes) -> io::Result<Bytes> {
        let transport = self.running()?;
        let deadline = Instant::now() + CLIENT_READ_MAX;
        let class = StreamClass::Request;
        let opened = transport.stream(node, class, REPLICA, request, empty_body(), deadline).await;
        collected_bytes(opened.map_err(io::Error::other)?.body, deadline).await
    }

    async fn open_append(&self, node: NodeId, head: Bytes, frames: ReplicaBytes) -> io::Result<ReplicaBytes> {
        let transport = self.running()?;
        let deadline = Instant::now() + APPEND_ACCEPT_MAX;
        // The writer ends the frames when it stops.
        let body = sent_body(frames, CancellationToken::new());
        let opened = transport.stream(node, StreamClass::Append, APPEND, head, body, deadline).await;
        Ok(received_lengths(opened.map_err(io::Error::other)?.body))
    }

    async fn send_close(&self, node: NodeId, request: Bytes) -> io::Result<Bytes> {
        let deadline = Instant::now() + CLOSE_MAX;
        let closed = self.running()?.call(node, Channel::Log, CLOSE, request, deadline).await;
        closed.map_err(io::Error::other)
    }
}

impl SegmentPeers for TransportSegmentPeers {
    fn read(&self, node: NodeId, request: Bytes) -> BoxFuture<'_, io::Result<ReplicaBytes>> {
        self.open(node, request).boxed()
    }

    fn read_for_client(&self, node: NodeId, request: Bytes) -> BoxFuture<'_, io::Result<Bytes>> {
        self.collect(node, request).boxed()
    }

    fn append(
        &self,
        node: NodeId,
        head: Bytes,
        frames: ReplicaBytes,
    ) -> BoxFuture<'_, io::Result<ReplicaBytes>> {
        self.open_append(node, head, frames).boxed()
    }

    fn close(&self, node: NodeId, request: Bytes) -> BoxFuture<'_, io::Result<Bytes>> {
        self.send_close(node, request).boxed()
    }
}

fn empty_body() -> PeerBody {
    PeerBody::new(Empty::<Bytes>::new().map_err(|never| match never {}))
}

/// The synced lengths of a replica on another node, as they arrive. The writer judges their delay.
fn received_lengths(body: PeerBody) -> ReplicaBytes {
    BodyDataStream::new(body).map(|length| length.map_err(io::Error::other)).boxed()
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

/// All bytes of an answer, as many as a client waits for at most.
async fn collected_bytes(body: PeerBody, deadline: Instant) -> io::Result<Bytes> {
    let bytes_max = usize::try_from(RECORD_READ_BYTES_MAX).unwrap_or(usize::MAX);
    match timeout_at(deadline, Limited::new(body, bytes_max).collect()).await {
        Ok(collected) => Ok(collected.map_err(io::Error::other)?.to_bytes()),
        Err(_) => {
            let late = format!("the bytes did not arrive within {} s", CLIENT_READ_MAX.as_secs());
            Err(io::Error::new(io::ErrorKind::TimedOut, late))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        CLIENT_READ_MAX, STALL_MAX, SegmentServer, SegmentSpace, ServedReplicas, TransportSegmentPeers,
        collected_bytes, received_bytes, received_frames, received_lengths,
    };
    use crate::refusals::{NOT_SERVING, REPLICA_REFUSED};
    use bytes::Bytes;
    use futures_util::future::BoxFuture;
    use futures_util::{FutureExt as _, StreamExt as _, stream};
    use http_body::Frame;
    use http_body_util::{BodyExt as _, StreamBody};
    use mlgw_common::NodeId;
    use mlgw_common::time::{Instant, sleep};
    use mlgw_formats::segment_calls::RECORD_READ_BYTES_MAX;
    use mlgw_segments::hot::{ReplicaBytes, SegmentPeers as _};
    use mlgw_transport::{PeerBody, PeerBodyError};
    use std::io;
    use std::sync::Arc;
    use tokio_util::sync::CancellationToken;

    const TWO: NodeId = NodeId(2);

    const SPACE: SegmentSpace = SegmentSpace { used_bytes: 3, free_bytes: 4, is_full: false, is_slow: false };

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

        fn append(
            &self,
            from: NodeId,
            head: Bytes,
            frames: ReplicaBytes,
        ) -> BoxFuture<'static, Result<ReplicaBytes, String>> {
            // Answers with the head, and then with the frames.
            let answer = stream::iter([Ok(head)]).chain(frames).boxed();
            let opened = if from == TWO { Ok(answer) } else { Err(format!("node {from} may not append")) };
            async move { opened }.boxed()
        }

        fn close(&self, request: Bytes) -> BoxFuture<'static, Result<Bytes, String>> {
            async move { if request.is_empty() { Err("no request".to_owned()) } else { Ok(request) } }.boxed()
        }

        fn space(&self) -> SegmentSpace {
            SPACE
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
        assert_eq!(served.space(), None);

        served.serve(Arc::new(TestReplicas));
        assert_eq!(served.space(), Some(SPACE));
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
    async fn appends_are_served_until_the_stop_cuts_both_directions() {
        let served = ServedReplicas::default();
        let empty = || peer_body(Vec::new());
        let refused = served.append(TWO, Bytes::new(), empty()).await.unwrap_err();
        assert_eq!(refused.code, NOT_SERVING);
        served.serve(Arc::new(TestReplicas));
        let refused = served.append(NodeId(3), Bytes::new(), empty()).await.unwrap_err();
        assert_eq!((refused.code, refused.message.as_str()), (REPLICA_REFUSED, "node 3 may not append"));

        let frames = stream::iter([Ok(Frame::data(Bytes::from_static(b"frame")))]).chain(stream::pending());
        let body = PeerBody::new(StreamBody::new(frames));
        let mut answer = served.append(TWO, Bytes::from_static(b"head"), body).await.unwrap();
        for expected in [&b"head"[..], b"frame"] {
            let frame = answer.body.frame().await.unwrap().unwrap();
            assert_eq!(frame.data_ref().unwrap(), expected);
        }
        served.stop();
        let cut = answer.body.frame().await.unwrap().unwrap_err();
        assert_eq!(cut, PeerBodyError::Failed("the node stops".to_owned()));
        assert_eq!(served.append(TWO, Bytes::new(), empty()).await.unwrap_err().code, NOT_SERVING);
    }

    #[tokio::test]
    async fn a_stop_cuts_the_frames_of_a_peer() {
        let stop = CancellationToken::new();
        let frames = stream::iter([Ok(Frame::data(Bytes::from_static(b"frame")))]).chain(stream::pending());
        let mut frames = received_frames(PeerBody::new(StreamBody::new(frames)), stop.clone());
        assert_eq!(frames.next().await.unwrap().unwrap(), "frame");
        stop.cancel();
        assert_eq!(frames.next().await.unwrap().unwrap_err().to_string(), "the node stops");
        assert!(frames.next().await.is_none());
        let whole = received_frames(peer_body(vec![Ok("a")]), CancellationToken::new());
        assert_eq!(whole.collect::<Vec<_>>().await.len(), 1, "a clean end is one");
    }

    #[tokio::test]
    async fn requests_to_close_are_answered_by_the_server() {
        let served = ServedReplicas::default();
        assert_eq!(served.close(Bytes::new()).await.unwrap_err().code, NOT_SERVING);
        served.serve(Arc::new(TestReplicas));
        assert_eq!(served.close(Bytes::new()).await.unwrap_err().code, REPLICA_REFUSED);
        assert_eq!(served.close(Bytes::from_static(b"close")).await.unwrap(), "close");
        served.stop();
        assert_eq!(served.close(Bytes::from_static(b"close")).await.unwrap_err().code, NOT_SERVING);
    }

    #[tokio::test(start_paused = true)]
    async fn lengths_are_awaited_for_any_time_and_end_as_the_body_does() {
        let late = stream::once(async {
            sleep(10 * STALL_MAX).await;
            Ok(Frame::data(Bytes::from_static(b"length")))
        });
        let cut = stream::iter([Err(PeerBodyError::Cut("reset".to_owned()))]);
        let mut lengths = received_lengths(PeerBody::new(StreamBody::new(late.chain(cut))));
        assert_eq!(lengths.next().await.unwrap().unwrap(), "length");
        let error = lengths.next().await.unwrap().unwrap_err();
        assert_eq!(error.to_string(), "the body was cut off: reset");
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

    #[tokio::test(start_paused = true)]
    async fn bytes_for_a_client_arrive_whole_in_limited_number_and_time() {
        let deadline = || Instant::now() + CLIENT_READ_MAX;
        let whole = collected_bytes(peer_body(vec![Ok("a"), Ok("b")]), deadline()).await;
        assert_eq!(whole.unwrap(), "ab");
        let cut = PeerBodyError::Cut("reset".to_owned());
        let cut = collected_bytes(peer_body(vec![Ok("a"), Err(cut)]), deadline()).await.unwrap_err();
        assert_eq!(cut.to_string(), "the body was cut off: reset");

        let bytes_max = usize::try_from(RECORD_READ_BYTES_MAX).unwrap();
        for (length, is_accepted) in [(bytes_max, true), (bytes_max + 1, false)] {
            let frame = Ok::<_, PeerBodyError>(Frame::data(Bytes::from(vec![0; length])));
            let body = PeerBody::new(StreamBody::new(stream::iter([frame])));
            assert_eq!(collected_bytes(body, deadline()).await.is_ok(), is_accepted, "{length} bytes");
        }

        let frames = stream::iter([Ok(Frame::data(Bytes::from_static(b"a")))]).chain(stream::pending());
        let begin = Instant::now();
        let late = collected_bytes(PeerBody::new(StreamBody::new(frames)), deadline()).await.unwrap_err();
        assert_eq!((late.kind(), begin.elapsed()), (io::ErrorKind::TimedOut, CLIENT_READ_MAX));
    }

    #[tokio::test]
    async fn without_a_transport_nothing_is_sent() {
        let peers = TransportSegmentPeers::new(Arc::default());
        let frames = || stream::pending().boxed();
        let errors = [
            peers.read(TWO, Bytes::new()).await.err(),
            peers.read_for_client(TWO, Bytes::new()).await.err(),
            peers.append(TWO, Bytes::new(), frames()).await.err(),
            peers.close(TWO, Bytes::new()).await.err(),
        ];
        for error in errors {
            assert_eq!(error.unwrap().to_string(), "the transport of this node does not run");
        }
    }
}

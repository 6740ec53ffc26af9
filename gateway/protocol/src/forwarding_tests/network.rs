//! Streams between nodes in this process: every byte is copied, each direction of a stream has a window, and
//! a link can be cut or paused.

use crate::forwarded::ForwardedRequests;
use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::poll_fn;
use http_body::{Body as _, Frame};
use http_body_util::{BodyExt as _, StreamBody};
use mlgw_common::NodeId;
use mlgw_forwarding::{MemberBody, MemberStreams, OpenedStream, StreamOpenError};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Poll, ready};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio_util::sync::CancellationToken;

/// Bytes in flight of one direction of a stream.
pub(super) const WINDOW_BYTES: usize = 256 << 10;
/// Bytes of one piece.
const PIECE_BYTES: usize = 16 << 10;

/// State of the link to a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkState {
    /// Streams are opened.
    Up,
    /// The member cannot be reached.
    Down,
    /// The member receives the request, and its verdict is lost.
    LosesVerdicts,
}

/// A member and the link to it.
pub(super) struct MemberLink {
    requests: ForwardedRequests,
    pub(super) state: Mutex<LinkState>,
    /// Cancelled to cut all streams.
    pub(super) cut: CancellationToken,
    /// While true, no request bytes are carried.
    pub(super) is_paused: watch::Sender<bool>,
    /// Streams that were opened.
    pub(super) opened: AtomicUsize,
    /// Bytes of requests, and of answers, that were carried.
    pub(super) carried: [AtomicUsize; 2],
    in_flight: AtomicUsize,
    /// Most bytes in flight at a time.
    pub(super) peak: AtomicUsize,
}

/// All members.
#[derive(Default)]
pub(super) struct TestNetwork(Mutex<HashMap<NodeId, Arc<MemberLink>>>);

impl TestNetwork {
    /// Adds a member.
    pub(super) fn add(&self, member: NodeId, requests: ForwardedRequests) -> Arc<MemberLink> {
        let link = Arc::new(MemberLink {
            requests,
            state: Mutex::new(LinkState::Up),
            cut: CancellationToken::new(),
            is_paused: watch::Sender::new(false),
            opened: AtomicUsize::new(0),
            carried: Default::default(),
            in_flight: AtomicUsize::new(0),
            peak: AtomicUsize::new(0),
        });
        self.0.lock().insert(member, Arc::clone(&link));
        link
    }
}

/// The network as the node `from` reaches it.
pub(super) struct NetworkOfNode {
    pub(super) network: Arc<TestNetwork>,
    pub(super) from: NodeId,
}

impl MemberStreams for NetworkOfNode {
    fn is_stopping(&self, _member: NodeId) -> bool {
        false
    }

    fn open(
        &self,
        member: NodeId,
        head: Bytes,
        body: MemberBody,
    ) -> BoxFuture<'_, Result<OpenedStream, StreamOpenError>> {
        let link = self.network.0.lock().get(&member).cloned();
        let from = self.from;
        async move {
            let link = link.ok_or_else(|| StreamOpenError::NotSent("no such node".to_owned()))?;
            let state = *link.state.lock();
            if state == LinkState::Down || link.cut.is_cancelled() {
                return Err(StreamOpenError::NotSent("the link is down".to_owned()));
            }
            link.opened.fetch_add(1, Relaxed);
            let broken = link.cut.child_token();
            let head = Bytes::copy_from_slice(&head);
            let received = carry(CarriedDirection::Request, body, &link, &broken);
            let OpenedStream { head, body } = link.requests.serve(from, head, received).await;
            let answer = carry(CarriedDirection::Answer, body, &link, &broken);
            if state == LinkState::LosesVerdicts {
                broken.cancel();
                return Err(StreamOpenError::Lost("the link was cut".to_owned()));
            }
            Ok(OpenedStream { head: Bytes::copy_from_slice(&head), body: answer })
        }
        .boxed()
    }
}

/// A direction of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CarriedDirection {
    Request,
    Answer,
}

enum CarriedPiece {
    Bytes(Bytes, PieceInFlight),
    End,
    Fault,
}

struct PieceInFlight {
    link: Arc<MemberLink>,
    bytes: usize,
    _window: OwnedSemaphorePermit,
}

impl Drop for PieceInFlight {
    fn drop(&mut self) {
        self.link.in_flight.fetch_sub(self.bytes, Relaxed);
    }
}

/// Carries a body over a link. The returned body ends with an error if the link or the other direction fails.
fn carry(
    direction: CarriedDirection,
    source: MemberBody,
    link: &Arc<MemberLink>,
    broken: &CancellationToken,
) -> MemberBody {
    let (sender, mut receiver) = mpsc::unbounded_channel();
    let pump = Pump { direction, sender, link: Arc::clone(link), broken: broken.clone() };
    tokio::spawn(pump.run(source));
    let (mut unread, mut has_ended) = (None, false);
    MemberBody::new(StreamBody::new(poll_fn(move |cx| {
        // The reader is ready for more: the window moves.
        drop(unread.take());
        if has_ended {
            return Poll::Ready(None);
        }
        Poll::Ready(match ready!(receiver.poll_recv(cx)) {
            Some(CarriedPiece::Bytes(bytes, in_flight)) => {
                unread = Some(in_flight);
                Some(Ok(Frame::data(bytes)))
            }
            Some(CarriedPiece::End) => {
                has_ended = true;
                None
            }
            Some(CarriedPiece::Fault) | None => Some(Err("the stream was cut".into())),
        })
    })))
}

struct Pump {
    direction: CarriedDirection,
    sender: mpsc::UnboundedSender<CarriedPiece>,
    link: Arc<MemberLink>,
    broken: CancellationToken,
}

impl Pump {
    async fn run(self, source: MemberBody) {
        let broken = self.broken.clone();
        let last = tokio::select! {
            biased;
            () = broken.cancelled() => CarriedPiece::Fault,
            () = self.sender.closed() => match self.direction {
                // A member may answer without reading the whole body.
                CarriedDirection::Request => CarriedPiece::End,
                CarriedDirection::Answer => CarriedPiece::Fault,
            },
            last = self.carry_all(source) => last,
        };
        if matches!(last, CarriedPiece::Fault) {
            // One direction that fails ends both.
            broken.cancel();
        }
        let _ = self.sender.send(last);
    }

    /// Carries all bytes. Returns the end.
    async fn carry_all(&self, mut source: MemberBody) -> CarriedPiece {
        let window = Arc::new(Semaphore::new(WINDOW_BYTES));
        let mut is_paused = self.link.is_paused.subscribe();
        while !source.is_end_stream() {
            let bytes = match source.frame().await {
                None => return CarriedPiece::End,
                Some(Err(_)) => return CarriedPiece::Fault,
                Some(Ok(frame)) => frame.into_data().unwrap(),
            };
            for piece in bytes.chunks(PIECE_BYTES) {
                if self.direction == CarriedDirection::Request {
                    is_paused.wait_for(|is_paused| !is_paused).await.unwrap();
                }
                let permits = u32::try_from(piece.len()).unwrap();
                let permit = window.clone().acquire_many_owned(permits).await.unwrap();
                self.send(piece, permit);
            }
        }
        CarriedPiece::End
    }

    fn send(&self, piece: &[u8], window: OwnedSemaphorePermit) {
        let now = self.link.in_flight.fetch_add(piece.len(), Relaxed) + piece.len();
        self.link.peak.fetch_max(now, Relaxed);
        self.link.carried[self.direction as usize].fetch_add(piece.len(), Relaxed);
        let in_flight = PieceInFlight { link: Arc::clone(&self.link), bytes: piece.len(), _window: window };
        let _ = self.sender.send(CarriedPiece::Bytes(Bytes::copy_from_slice(piece), in_flight));
    }
}

//! Exclusive connections of this node to a peer: each carries one request at a time, in frames of its own.
//!
//! A call, or the stream of a client's request without a body, is short, and there are many. On an exclusive
//! connection it costs a third of what it costs as a stream of HTTP/2, because its own task writes and reads
//! the socket.
//! Connections are kept for the next request. When none is idle, a request goes over HTTP/2 while another one
//! is made, up to [`EXCLUSIVE_MAX`] for each channel. Large calls go over HTTP/2 too, whose windows bound
//! the bytes in memory.
//!
//! They belong to the connection of HTTP/2 on the same channel, which detects that the peer has gone. When it
//! has ended they are used no more, and what is in flight on them has as long as a peer that stops gives it.
//! Nothing is stored.

use crate::channel::Channel;
use crate::connection::OpenConnection;
use crate::dial::{DIAL_LIMIT, certified_peer, secure};
use crate::error::{DialError, UnknownOutcome};
use crate::framed_io::FramedIo;
use crate::frames::{AnswerStatus, Frame, FrameKind, RequestFrame, put_frame, put_request};
use crate::handshake::{BadHandshake, HandshakeRefusal, decode_answer};
use crate::metered::{MeteredIo, StreamFacts};
use crate::peer::{ConnectionKind, PeerState, Registration};
use crate::state::{STOP_LIMIT, TransportState};
use bytes::Bytes;
use futures_util::FutureExt as _;
use mlgw_common::limits::{PEER_CALLS_MAX, PEER_STRANGERS_MAX};
use mlgw_common::time::{Instant, timeout, timeout_at};
use parking_lot::Mutex;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Exclusive connections from one node to another on one channel. Further requests at the same time share a
/// connection.
pub(crate) const EXCLUSIVE_MAX: usize = 64;
/// Time after which an idle connection is closed.
const IDLE_MAX: Duration = Duration::from_secs(30);
/// Pause after a dial that failed.
const REDIAL_PAUSE: Duration = Duration::from_secs(10);

const _: () = assert!(EXCLUSIVE_MAX <= PEER_CALLS_MAX && EXCLUSIVE_MAX <= PEER_STRANGERS_MAX);

/// An exclusive connection whose handshake passed.
pub(crate) struct ExclusiveConnection {
    pub(crate) io: FramedIo,
    pub(crate) facts: StreamFacts,
    /// True if the peer closes it soon.
    pub(crate) is_ending: bool,
    used: Instant,
    _registered: Registration,
    _counted: CountedConnection,
}

/// The exclusive connections to a peer on one channel.
#[derive(Default)]
pub(crate) struct ExclusivePool {
    state: Mutex<PoolState>,
    /// Cancels all of them, those in use too.
    cancel: CancellationToken,
}

#[derive(Default)]
struct PoolState {
    /// Idle connections; the one that was used last is at the end.
    idle: Vec<ExclusiveConnection>,
    /// Connections that are open or being made.
    count: usize,
    is_dialing: bool,
    redial_at: Option<Instant>,
    /// True when no connection is kept any more.
    is_closed: bool,
}

/// A connection that counts for the limit of its pool.
struct CountedConnection(Arc<ExclusivePool>);

impl Drop for CountedConnection {
    fn drop(&mut self) {
        self.0.state.lock().count -= 1;
    }
}

impl ExclusivePool {
    /// Takes an idle connection; `None` if there is none. Then one is being made for later requests.
    pub(crate) fn take(
        self: &Arc<Self>,
        state: &Arc<TransportState>,
        peer: &Arc<PeerState>,
        channel: Channel,
        beside: &Arc<OpenConnection>,
    ) -> Option<ExclusiveConnection> {
        while let Some(mut connection) = self.pop() {
            if connection.is_usable() {
                return Some(connection);
            }
        }
        if let Some(counted) = self.begin_dial() {
            let dial = ExclusiveDial {
                state: state.clone(),
                peer: peer.clone(),
                channel,
                beside: beside.clone(),
                counted,
            };
            state.tasks.spawn(dial.run());
        }
        None
    }

    /// Number of connections that wait for a request.
    #[cfg(test)]
    pub(crate) fn idle(&self) -> usize {
        self.state.lock().idle.len()
    }

    fn pop(&self) -> Option<ExclusiveConnection> {
        self.state.lock().idle.pop()
    }

    /// Keeps a connection for the next request.
    pub(crate) fn put(&self, mut connection: ExclusiveConnection) {
        connection.io.shrink();
        connection.used = Instant::now();
        // A connection that is not kept is dropped after the lock.
        let mut state = self.state.lock();
        if !connection.is_ending && !state.is_closed {
            state.idle.push(connection);
        }
    }

    /// Closes connections that were idle for long. The caller drops them without the lock.
    fn expire(&self) -> Vec<ExclusiveConnection> {
        let mut state = self.state.lock();
        let expired =
            state.idle.iter().take_while(|connection| connection.used.elapsed() >= IDLE_MAX).count();
        state.idle.drain(..expired).collect()
    }

    /// Closes the idle connections, and keeps no further ones.
    fn close(&self) {
        let idle = {
            let mut state = self.state.lock();
            state.is_closed = true;
            std::mem::take(&mut state.idle)
        };
        drop(idle);
    }

    fn begin_dial(self: &Arc<Self>) -> Option<CountedConnection> {
        let mut state = self.state.lock();
        let waits = state.redial_at.is_some_and(|at| Instant::now() < at);
        if state.is_dialing || state.is_closed || waits || state.count >= EXCLUSIVE_MAX {
            return None;
        }
        (state.is_dialing, state.count) = (true, state.count + 1);
        Some(CountedConnection(self.clone()))
    }

    fn end_dial(&self, has_failed: bool) {
        let mut state = self.state.lock();
        state.is_dialing = false;
        state.redial_at = has_failed.then(|| Instant::now() + REDIAL_PAUSE);
    }
}

/// Closes connections that are idle for long, and all when `shared`, the one of HTTP/2, has ended.
pub(crate) async fn keep_pool(pool: Arc<ExclusivePool>, shared: CancellationToken, ended: CancellationToken) {
    while timeout(IDLE_MAX / 2, shared.cancelled()).await.is_err() {
        drop(pool.expire());
    }
    pool.close();
    let _ = timeout(STOP_LIMIT, ended.cancelled()).await;
    pool.cancel.cancel();
}

impl ExclusiveConnection {
    /// True if the peer has neither closed the connection nor announced that.
    fn is_usable(&mut self) -> bool {
        self.io.frame().now_or_never().is_none()
    }

    /// Sends a request and returns its answer.
    ///
    /// # Errors
    /// The request may have been carried out.
    pub(crate) async fn ask(
        &mut self,
        request: &RequestFrame,
        deadline: Instant,
    ) -> Result<(AnswerStatus, Bytes), UnknownOutcome> {
        put_request(&mut self.io.outbox, request);
        let answered = async {
            self.io.send().await?;
            loop {
                match self.io.frame().await? {
                    Some(Frame::Answer(status, bytes)) => return Ok((status, bytes)),
                    Some(Frame::Goodbye) => self.is_ending = true,
                    Some(_) => return Err(io::Error::other("the peer sent another frame than an answer")),
                    None => return Err(io::ErrorKind::UnexpectedEof.into()),
                }
            }
        };
        match timeout_at(deadline, answered).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => Err(UnknownOutcome::Broken(self.facts.cause(&error))),
            Err(_) => Err(UnknownOutcome::Deadline),
        }
    }
}

/// A dial of an exclusive connection beside an open one.
struct ExclusiveDial {
    state: Arc<TransportState>,
    peer: Arc<PeerState>,
    channel: Channel,
    beside: Arc<OpenConnection>,
    counted: CountedConnection,
}

impl ExclusiveDial {
    async fn run(self) {
        let (pool, beside) = (self.counted.0.clone(), self.beside.clone());
        let ended = self.state.ended.clone();
        let dialed = tokio::select! {
            dialed = timeout(DIAL_LIMIT, self.dial()) => dialed,
            () = beside.cancel.cancelled() => return pool.end_dial(false),
            () = ended.cancelled() => return pool.end_dial(false),
        };
        let failed = match dialed {
            Ok(Ok(connection)) => {
                pool.put(connection);
                None
            }
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some(crate::dial::no_answer(DIAL_LIMIT)),
        };
        if let Some(error) = &failed {
            // Requests go over HTTP/2.
            tracing::debug!(node = %beside.node, error, "cannot make an exclusive connection to a node");
        }
        pool.end_dial(failed.is_some());
    }

    async fn dial(self) -> Result<ExclusiveConnection, DialError> {
        let Self { state, peer, channel, beside, counted } = self;
        let address = &beside.address;
        let refused = |refusal| DialError::Refused { address: address.clone(), refusal };
        let tls = secure(address, state.tls.load().exclusive.clone()).await?;
        let certified = certified_peer(&tls).map_err(refused)?;
        if certified.node != peer.node {
            return Err(refused(HandshakeRefusal::WrongNode { dialed: peer.node, found: certified.node }));
        }
        let (facts, cancel) = (StreamFacts::default(), counted.0.cancel.child_token());
        let mut io = FramedIo::new(MeteredIo::new(tls, facts.clone(), cancel.clone()));
        put_frame(&mut io.outbox, FrameKind::Hello, &[&state.hello(channel).encode()]);
        let broken = |error: io::Error| DialError::Unreachable {
            address: address.clone(),
            cause: facts.cause(&error),
        };
        io.send().await.map_err(broken)?;
        let Some(Frame::Hello(answer)) = io.frame().await.map_err(broken)? else {
            return Err(refused(BadHandshake::Encoding.into()));
        };
        let answer = decode_answer(&answer).map_err(refused)?;
        if answer.channel != channel {
            return Err(refused(BadHandshake::Field("connection").into()));
        }
        let accepted = state.accept(certified, &answer).await.map_err(refused)?;
        let registered = accepted
            .register(&state.rules, answer.start, channel, ConnectionKind::Exclusive, cancel)
            .map_err(refused)?;
        facts.count(peer.meter(channel).clone());
        Ok(ExclusiveConnection {
            io,
            facts,
            is_ending: false,
            used: Instant::now(),
            _registered: registered,
            _counted: counted,
        })
    }
}

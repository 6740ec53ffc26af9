//! Dials of exclusive connections, beside an open connection of HTTP/2 to the same address.

use crate::channel::Channel;
use crate::connection::OpenConnection;
use crate::dial::{DIAL_LIMIT, certified_peer, no_answer, secure};
use crate::error::DialError;
use crate::exclusive::{CountedConnection, ExclusiveConnection};
use crate::framed_io::FramedIo;
use crate::frames::{Frame, FrameKind, ReceivedFrames, put_frame};
use crate::handshake::{BadHandshake, HandshakeRefusal, decode_answer};
use crate::metered::{MeteredIo, StreamFacts};
use crate::peer::{ConnectionKind, PeerState};
use crate::state::TransportState;
use mlgw_common::time::{Instant, timeout, timeout_at};
use std::io;
use std::sync::Arc;

/// Takes an idle connection; `None` if there is none. Then one is being made for later requests.
pub(crate) fn take_or_dial(
    state: &Arc<TransportState>,
    peer: &Arc<PeerState>,
    channel: Channel,
    beside: &Arc<OpenConnection>,
) -> Option<ExclusiveConnection> {
    let taken = beside.exclusive.take();
    if taken.is_none()
        && let Some(counted) = beside.exclusive.begin_dial()
    {
        let (peer, beside) = (peer.clone(), beside.clone());
        let dial = ExclusiveDial { state: state.clone(), peer, channel, beside, counted };
        state.tasks.spawn(dial.run());
    }
    taken
}

/// A dial of an exclusive connection beside an open one.
struct ExclusiveDial {
    state: Arc<TransportState>,
    peer: Arc<PeerState>,
    channel: Channel,
    beside: Arc<OpenConnection>,
    counted: CountedConnection,
}

/// Takes an idle connection, or makes one until `deadline`. `None` if that fails; then the next ones do not
/// wait for a while.
pub(crate) async fn take_or_wait(
    state: &Arc<TransportState>,
    peer: &Arc<PeerState>,
    channel: Channel,
    beside: &Arc<OpenConnection>,
    deadline: Instant,
) -> Option<ExclusiveConnection> {
    if let Some(taken) = beside.exclusive.take() {
        return Some(taken);
    }
    let counted = beside.exclusive.begin_own_dial()?;
    let (state, peer, pool) = (state.clone(), peer.clone(), beside.exclusive.clone());
    let dial = ExclusiveDial { state, peer, channel, beside: beside.clone(), counted };
    let Ok(Ok(dialed)) = timeout_at(deadline, dial.connect()).await else {
        pool.pause_dials();
        return None;
    };
    dialed
}

impl ExclusiveDial {
    async fn run(self) {
        let (pool, node) = (self.counted.pool().clone(), self.peer.node);
        match self.connect().await {
            Ok(connection) => {
                connection.into_iter().for_each(|connection| pool.put(connection));
                pool.end_dial();
            }
            // Requests go over HTTP/2.
            Err(error) => {
                tracing::debug!(%node, %error, "cannot make an exclusive connection to a node");
                pool.fail_dial();
            }
        }
    }

    /// Returns `None` if the shared connection ends meanwhile, or this node stops.
    async fn connect(self) -> Result<Option<ExclusiveConnection>, DialError> {
        let (beside, ended) = (self.beside.clone(), self.state.ended.clone());
        let dialed = tokio::select! {
            dialed = timeout(DIAL_LIMIT, self.dial()) => dialed,
            () = beside.cancel.cancelled() => return Ok(None),
            () = ended.cancelled() => return Ok(None),
        };
        match dialed {
            Ok(connection) => connection.map(Some),
            Err(_) => {
                let cause = no_answer(DIAL_LIMIT);
                Err(DialError::Unreachable { address: beside.address.clone(), cause })
            }
        }
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
        let (facts, cancel) = (StreamFacts::default(), counted.pool().connection_token());
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
        io.receive(ReceivedFrames::Answers);
        let answer = decode_answer(&answer).map_err(refused)?;
        if answer.channel != channel {
            return Err(refused(BadHandshake::Field("connection").into()));
        }
        let accepted = state.accept(certified, &answer).await.map_err(refused)?;
        let registered = accepted
            .register(&state.rules, answer.start, channel, ConnectionKind::Exclusive, cancel)
            .map_err(refused)?;
        facts.count(peer.meter(channel).clone());
        Ok(ExclusiveConnection::new(io, facts, [Box::new(registered), Box::new(counted)]))
    }
}

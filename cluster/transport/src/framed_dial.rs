//! Dials of connections with frames of their own, beside an open connection of HTTP/2 to the same address.

use crate::channel::Channel;
use crate::connection::OpenConnection;
use crate::dial::{DIAL_LIMIT, certified_peer, no_answer, secure};
use crate::error::DialError;
use crate::framed_io::FramedIo;
use crate::frames::{Frame, FrameKind, ReceivedFrames, put_frame};
use crate::handshake::{BadHandshake, HandshakeRefusal, decode_answer};
use crate::metered::{MeteredIo, StreamFacts};
use crate::peer::{ConnectionKind, PeerState, Registration};
use crate::state::TransportState;
use mlgw_common::time::timeout;
use std::io;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// A connection whose handshake passed. Its registration ends with it.
pub(crate) struct DialedFrames {
    pub(crate) io: FramedIo,
    pub(crate) facts: StreamFacts,
    /// Closes it.
    pub(crate) cancel: CancellationToken,
    pub(crate) registered: Registration,
}

/// A dial beside an open connection of HTTP/2.
pub(crate) struct FramedDial {
    pub(crate) state: Arc<TransportState>,
    pub(crate) peer: Arc<PeerState>,
    pub(crate) channel: Channel,
    pub(crate) beside: Arc<OpenConnection>,
}

impl FramedDial {
    /// Dials a connection of this kind. Returns `None` if the shared connection ends meanwhile, or this node
    /// stops.
    ///
    /// # Errors
    /// See [`DialError`].
    pub(crate) async fn connect(&self, kind: ConnectionKind) -> Result<Option<DialedFrames>, DialError> {
        let dialed = tokio::select! {
            dialed = timeout(DIAL_LIMIT, self.dial(kind)) => dialed,
            () = self.beside.cancel.cancelled() => return Ok(None),
            () = self.state.ended.cancelled() => return Ok(None),
        };
        match dialed {
            Ok(connection) => connection.map(Some),
            Err(_) => {
                let address = self.beside.address.clone();
                Err(DialError::Unreachable { address, cause: no_answer(DIAL_LIMIT) })
            }
        }
    }

    async fn dial(&self, kind: ConnectionKind) -> Result<DialedFrames, DialError> {
        let Self { state, peer, channel, beside } = self;
        let (address, cancel) = (&beside.address, beside.exclusive.connection_token());
        let refused = |refusal| DialError::Refused { address: address.clone(), refusal };
        let tls = secure(address, state.tls.load().client_of(kind).clone()).await?;
        let certified = certified_peer(&tls).map_err(refused)?;
        if certified.node != peer.node {
            return Err(refused(HandshakeRefusal::WrongNode { dialed: peer.node, found: certified.node }));
        }
        let facts = StreamFacts::default();
        let mut io = FramedIo::new(MeteredIo::new(tls, facts.clone(), cancel.clone()));
        put_frame(&mut io.outbox, FrameKind::Hello, &[&state.hello(*channel).encode()]);
        let broken = |error: io::Error| DialError::Unreachable {
            address: address.clone(),
            cause: facts.cause(&error),
        };
        io.send().await.map_err(broken)?;
        let Some(Frame::Hello(answer)) = io.frame().await.map_err(broken)? else {
            return Err(refused(BadHandshake::Encoding.into()));
        };
        io.receive(match kind {
            ConnectionKind::Multiplexed => ReceivedFrames::NumberedAnswers,
            ConnectionKind::Exclusive | ConnectionKind::Shared => ReceivedFrames::Answers,
        });
        let answer = decode_answer(&answer).map_err(refused)?;
        if answer.channel != *channel {
            return Err(refused(BadHandshake::Field("connection").into()));
        }
        let accepted = state.accept(certified, &answer).await.map_err(refused)?;
        let registered =
            accepted.register(&state.rules, answer.start, *channel, kind, cancel.clone()).map_err(refused)?;
        facts.count(peer.meter(*channel).clone());
        Ok(DialedFrames { io, facts, cancel, registered })
    }
}

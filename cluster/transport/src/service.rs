//! Services that a node offers to its peers.
//!
//! Only peers that passed the handshake reach [`PeerServices::call`] and [`PeerServices::stream`]; the node
//! id is the one in their certificate. [`PeerServices::join`] is for strangers.

use crate::address::PeerAddress;
use crate::channel::{Channel, StreamClass};
use crate::error::{PeerBodyError, ServiceRefusal};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use http_body_util::combinators::UnsyncBoxBody;
use mlgw_common::NodeId;
use mlgw_common::limits::PEER_STREAM_HEAD_BYTES_MAX;
use mlgw_common::time::Instant;
use std::net::SocketAddr;

/// Body of a stream, in either direction. It ends cleanly or with an error, never silently short.
pub type PeerBody = UnsyncBoxBody<Bytes, PeerBodyError>;

/// Call of a peer.
#[derive(Clone, Debug)]
pub struct IncomingCall {
    /// The peer.
    pub peer: NodeId,
    /// Connection on which it came.
    pub channel: Channel,
    /// Number of the service.
    pub service: u16,
    /// The request.
    pub body: Bytes,
    /// Time at which the caller stops waiting.
    pub deadline: Instant,
}

/// Stream of a peer, before it is accepted.
#[derive(Debug)]
pub struct IncomingStream {
    /// The peer.
    pub peer: NodeId,
    /// Class of the stream.
    pub class: StreamClass,
    /// Number of the service.
    pub service: u16,
    /// The head.
    pub head: Bytes,
    /// The body. The peer sends it only after the stream is accepted.
    pub body: PeerBody,
    /// Time at which the peer stops waiting for the acceptance.
    pub deadline: Instant,
}

/// Acceptance of a stream, or what the peer answered: a head, and a body that is sent while the body of the
/// request may still be read.
#[derive(Debug)]
pub struct StreamAnswer {
    /// The head.
    pub head: Bytes,
    /// The body.
    pub body: PeerBody,
}

/// How the opening of a stream ended.
pub(crate) enum StreamEnd {
    Answered(StreamAnswer),
    Refused(ServiceRefusal),
    /// The head of the answer is too large.
    Failed,
}

impl StreamEnd {
    pub(crate) fn of(answered: Result<StreamAnswer, ServiceRefusal>) -> Self {
        match answered {
            Ok(answer) if answer.head.len() <= PEER_STREAM_HEAD_BYTES_MAX => Self::Answered(answer),
            Ok(StreamAnswer { head, .. }) => {
                tracing::error!(bytes = head.len(), "the head of an answer of a service is too large");
                Self::Failed
            }
            Err(refusal) => Self::Refused(refusal),
        }
    }
}

/// Services of this node.
pub trait PeerServices: Send + Sync + 'static {
    /// Carries out a call. It runs to its end even if the caller gives up.
    fn call(&self, call: IncomingCall) -> BoxFuture<'static, Result<Bytes, ServiceRefusal>>;

    /// Accepts or refuses a stream. The future and both bodies are dropped when the peer gives up.
    fn stream(&self, stream: IncomingStream) -> BoxFuture<'static, Result<StreamAnswer, ServiceRefusal>>;

    /// Admits a node that has no certificate. `from` is its address on the network, `body` at most
    /// [`mlgw_common::limits::JOIN_BYTES_MAX`] bytes of anybody.
    fn join(&self, from: SocketAddr, body: Bytes) -> BoxFuture<'static, Result<Bytes, ServiceRefusal>>;

    /// Returns true if the cluster has a record of the node, which is not removed. A node without any record
    /// yet returns true. Called at each handshake, on both sides, before the start of the node is stored; the
    /// time for it is that of the handshake.
    fn is_admitted(&self, node: NodeId) -> BoxFuture<'static, bool>;

    /// Takes notice of the address that a node stated at its handshake, when it is another than before.
    fn address_stated(&self, node: NodeId, address: PeerAddress);
}

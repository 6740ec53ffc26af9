//! Connections between the nodes of a cluster: HTTP/2 over mutual TLS.
//!
//! From each node to each other there are three connections ([`Channel`]), dialed on first use. Each begins
//! with a handshake in which both sides state cluster, node, start and address; nothing else is served before
//! both have accepted. Then there are *calls* (bytes there, bytes back) and *streams* (a head there, a head
//! back, then both bodies at once with flow control). Nothing is stored here; the starts of peers are stored
//! by `mlgw-trust` before a handshake is answered.

mod address;
mod channel;
mod error;
mod handshake;
mod service;

pub use address::{AddressBook, BadPeerAddress, PeerAddress};
pub use channel::{Channel, StreamClass};
pub use error::{CallError, NotSent, PeerBodyError, ServiceRefusal, UnknownOutcome};
pub use handshake::HandshakeRefusal;
pub use service::{IncomingCall, IncomingStream, PeerBody, PeerServices, StreamAnswer};

use bytes::Bytes;
use mlgw_common::time::Instant;
use mlgw_common::{ClusterId, NodeId};
use mlgw_trust::{JoinToken, NodeCredentials, NodeStart, PeerStarts};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;

/// Description of this node, with which a transport starts.
#[derive(Debug)]
pub struct TransportConfig {
    /// The cluster.
    pub cluster: ClusterId,
    /// This node.
    pub node: NodeId,
    /// Its start.
    pub start: NodeStart,
    /// Address under which the others dial this node.
    pub address: PeerAddress,
    /// Its key and certificate, and the authorities that it trusts.
    pub credentials: NodeCredentials,
    /// Starts of the other nodes, on disk.
    pub starts: Arc<PeerStarts>,
    /// Addresses of the other nodes.
    pub book: AddressBook,
    /// Ids that are refused for ever.
    pub removed: BTreeSet<NodeId>,
}

/// Transport of this node. Clones share it.
#[derive(Clone)]
pub struct ClusterTransport {}

impl ClusterTransport {
    /// Serves peers on `listener` and connects to them on demand, until [`Self::stop`].
    pub fn start(
        config: TransportConfig,
        listener: tokio::net::TcpListener,
        services: Arc<dyn PeerServices>,
    ) -> Result<Self, rustls::Error> {
        todo!()
    }

    /// Sends `body` to a service of `node` and returns its answer.
    pub async fn call(
        &self,
        node: NodeId,
        channel: Channel,
        service: u16,
        body: Bytes,
        deadline: Instant,
    ) -> Result<Bytes, CallError> {
        todo!()
    }

    /// Opens a stream. `body` is polled only after the service of `node` accepted the head. `deadline` is for
    /// the acceptance; the bodies have none.
    pub async fn stream(
        &self,
        node: NodeId,
        class: StreamClass,
        service: u16,
        head: Bytes,
        body: PeerBody,
        deadline: Instant,
    ) -> Result<StreamAnswer, CallError> {
        todo!()
    }

    /// Dials an address whose node is not known, as of `cluster.seeds`, and returns the node there. The
    /// address that it states is then in the book.
    pub async fn probe(&self, address: &PeerAddress, deadline: Instant) -> Result<NodeId, CallError> {
        todo!()
    }

    /// Replaces the removed ids, and closes the connections with them.
    pub fn set_removed(&self, removed: BTreeSet<NodeId>) {
        todo!()
    }

    /// Replaces key, certificate and authorities for new connections.
    pub fn set_credentials(&self, credentials: &NodeCredentials) -> Result<(), rustls::Error> {
        todo!()
    }

    /// Closes all connections and waits for the tasks.
    pub async fn stop(&self) {
        todo!()
    }
}

/// Sends a join request to the first node of `addresses` that answers, and returns its answer. The node is
/// checked against the token's hash of the authority.
pub async fn join(
    addresses: &[PeerAddress],
    token: &JoinToken,
    body: Bytes,
    deadline: Instant,
) -> Result<Bytes, CallError> {
    todo!()
}

//! Connections between the nodes of a cluster: HTTP/2, or frames of its own, over mutual TLS.
//!
//! From each node to each other there are three shared connections ([`Channel`]), dialed on first use, and
//! beside them exclusive ones, each for one request at a time ([`exclusive`]), and one for many short
//! requests at a time ([`multiplexed`]). Each begins with a handshake
//! in which both sides state cluster, node, start and address; nothing else is served before both have
//! accepted. Then there are *calls* (bytes there, bytes back) and *streams* (a head there, a head back,
//! then both bodies at once with flow control). Nothing is stored here; the starts of peers are stored by
//! `mlgw-trust` before a handshake is answered.

mod accept;
mod address;
mod append_stream;
mod backoff;
mod body;
mod channel;
mod config;
mod connection;
mod counters;
mod dial;
mod error;
mod exchange;
mod exclusive;
mod exclusive_body;
mod exclusive_dial;
mod exclusive_serve;
mod framed_dial;
mod framed_io;
mod frames;
mod handshake;
mod inbound;
mod join;
mod link;
mod metered;
mod multiplexed;
mod multiplexed_dial;
mod multiplexed_serve;
mod peer;
mod redial;
mod rests;
mod rules;
mod service;
mod socket;
mod state;
mod wire;

pub use address::{AddressBook, BadPeerAddress, PeerAddress};
pub use channel::{Channel, StreamClass};
pub use config::{TransportConfig, TransportError};
pub use counters::ChannelCounters;
pub use error::{CallError, DialError, JoinError, NotSent, PeerBodyError, ServiceRefusal, UnknownOutcome};
pub use frames::read_frames;
pub use handshake::{
    BadHandshake, HandshakeRefusal, Hello, HelloJudge, WireVersions, decode_answer, encode_answer,
};
pub use join::join;
pub use service::{IncomingCall, IncomingStream, PeerBody, PeerServices, StreamAnswer};

use crate::body::empty_body;
use crate::config::check_credentials;
use crate::exchange::{OutgoingCall, OutgoingStream};
use crate::state::{TlsSides, TransportState};
use bytes::Bytes;
use mlgw_common::NodeId;
use mlgw_common::time::{Instant, timeout_at};
use mlgw_trust::NodeCredentials;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio_util::sync::DropGuard;

/// Transport of this node. Clones share it; it ends with the last one.
#[derive(Clone)]
pub struct ClusterTransport {
    state: Arc<TransportState>,
    _stop: Arc<DropGuard>,
}

impl fmt::Debug for ClusterTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClusterTransport(node {} of {})", self.state.node, self.state.cluster)
    }
}

impl ClusterTransport {
    /// Serves peers on `listener` and connects to them on demand, until [`Self::stop`].
    ///
    /// # Errors
    /// See [`TransportError`].
    pub fn start(
        config: TransportConfig,
        listener: TcpListener,
        services: Arc<dyn PeerServices>,
    ) -> Result<Self, TransportError> {
        check_credentials(&config.credentials, config.node, config.cluster)?;
        let state = Arc::new(TransportState::new(config, services)?);
        state.tasks.spawn(accept::accept_connections(state.clone(), listener));
        let stop = Arc::new(state.ended.clone().drop_guard());
        Ok(Self { state, _stop: stop })
    }

    /// Sends `body` to a service of `node` and returns its answer.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn call(
        &self,
        node: NodeId,
        channel: Channel,
        service: u16,
        body: Bytes,
        deadline: Instant,
    ) -> Result<Bytes, CallError> {
        exchange::call(&self.state, OutgoingCall { node, channel, service, body, deadline }).await
    }

    /// Opens a stream. `body` is polled only after the service of `node` accepted the head; that of appends
    /// only while the body of the answer is polled. `deadline` is for the acceptance; the bodies have none.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn stream(
        &self,
        node: NodeId,
        class: StreamClass,
        service: u16,
        head: Bytes,
        body: PeerBody,
        deadline: Instant,
    ) -> Result<StreamAnswer, CallError> {
        exchange::open(&self.state, OutgoingStream { node, class, service, head, body, deadline }).await
    }

    /// Opens a stream of class [`StreamClass::Request`] without a body, for a request that changes nothing
    /// and that has a short answer as a rule. It may share a connection with others.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn read(
        &self,
        node: NodeId,
        service: u16,
        head: Bytes,
        deadline: Instant,
    ) -> Result<StreamAnswer, CallError> {
        let (class, body) = (StreamClass::Request, empty_body());
        exchange::read(&self.state, OutgoingStream { node, class, service, head, body, deadline }).await
    }

    /// Dials an address whose node is not known, as of `cluster.seeds`, and returns the node there. The
    /// address that it states is then in the book, and this node's address in its book.
    ///
    /// # Errors
    /// See [`DialError`].
    pub async fn probe(&self, address: &PeerAddress, deadline: Instant) -> Result<NodeId, DialError> {
        let deadline = deadline.min(Instant::now() + dial::DIAL_LIMIT);
        match timeout_at(deadline, dial::dial_address(&self.state, None, Channel::Control, address)).await {
            Ok(dialed) => {
                let connection = dialed?;
                connection.cancel.cancel();
                Ok(connection.node)
            }
            Err(_) => {
                let cause = dial::no_answer(dial::DIAL_LIMIT);
                Err(DialError::Unreachable { address: address.clone(), cause })
            }
        }
    }

    /// Replaces the removed ids, and closes the connections with them.
    pub fn set_removed(&self, removed: BTreeSet<NodeId>) {
        self.state.set_removed(removed);
    }

    /// Replaces key, certificate and authorities for new connections.
    ///
    /// # Errors
    /// See [`TransportError`]; the old ones stay.
    pub fn set_credentials(&self, credentials: &NodeCredentials) -> Result<(), TransportError> {
        check_credentials(credentials, self.state.node, self.state.cluster)?;
        self.state.tls.store(Arc::new(TlsSides::new(credentials)?));
        Ok(())
    }

    /// The addresses of peers. Changes apply to the next dial.
    #[must_use]
    pub fn book(&self) -> &AddressBook {
        &self.state.book
    }

    /// Counters of all peers and channels.
    #[must_use]
    pub fn counters(&self) -> Vec<ChannelCounters> {
        self.state.peers().iter().flat_map(|peer| peer.counters().collect::<Vec<_>>()).collect()
    }

    /// Refuses new connections at once and finishes the calls and streams that peers have begun, for at most
    /// five seconds. Until then calls of this node are sent. Afterwards all connections are closed, and all
    /// tasks have ended.
    pub async fn stop(&self) {
        self.state.stop().await;
    }
}

#[cfg(test)]
mod tests;

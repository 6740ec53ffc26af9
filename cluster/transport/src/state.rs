//! State that the tasks of a transport share, and their end.
//!
//! A stop has two phases. First nothing new of a peer is accepted, and calls and streams that peers have
//! begun are finished. This node's own calls go on, because an answer may need them. Afterwards everything
//! ends. Nothing is stored here.

use crate::address::{AddressBook, PeerAddress};
use crate::backoff::JoinRate;
use crate::channel::Channel;
use crate::config::TransportConfig;
use crate::handshake::{HandshakeRefusal, Hello, HelloJudge, WireVersions};
use crate::peer::{ConnectionKind, PeerState};
use crate::rests::{REST_OF_BODY, RestsOfBodies};
use crate::rules::PeerRules;
use crate::service::{IncomingStream, PeerServices, StreamEnd};
use arc_swap::ArcSwap;
use mlgw_common::limits::PEER_STRANGERS_MAX;
use mlgw_common::time::{Instant, timeout};
use mlgw_common::{ClusterId, NodeId};
use mlgw_trust::{
    CertifiedNode, EXCLUSIVE_PROTOCOL, MULTIPLEXED_PROTOCOL, NodeCredentials, NodeStart, StartsFileError,
};
use parking_lot::Mutex;
use rustls::{ClientConfig, ServerConfig};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Longest time for which a stop waits for calls and streams of peers that are in flight.
pub(crate) const STOP_LIMIT: Duration = Duration::from_secs(5);

/// TLS settings of both sides.
pub(crate) struct TlsSides {
    pub(crate) client: Arc<ClientConfig>,
    exclusive: Arc<ClientConfig>,
    multiplexed: Arc<ClientConfig>,
    pub(crate) server: Arc<ServerConfig>,
}

impl TlsSides {
    pub(crate) fn new(credentials: &NodeCredentials) -> Result<Self, rustls::Error> {
        let (client, server) = (credentials.client_config()?, credentials.server_config()?);
        let of_protocol = |protocol: &[u8]| {
            let mut config = client.clone();
            config.alpn_protocols = vec![protocol.to_vec()];
            Arc::new(config)
        };
        let (exclusive, multiplexed) = (of_protocol(EXCLUSIVE_PROTOCOL), of_protocol(MULTIPLEXED_PROTOCOL));
        Ok(Self { client: Arc::new(client), exclusive, multiplexed, server: Arc::new(server) })
    }

    /// Settings with which connections of a kind are dialed.
    pub(crate) const fn client_of(&self, kind: ConnectionKind) -> &Arc<ClientConfig> {
        match kind {
            ConnectionKind::Shared => &self.client,
            ConnectionKind::Exclusive => &self.exclusive,
            ConnectionKind::Multiplexed => &self.multiplexed,
        }
    }
}

/// State of a transport.
pub(crate) struct TransportState {
    pub(crate) cluster: ClusterId,
    pub(crate) node: NodeId,
    pub(crate) start: NodeStart,
    pub(crate) address: PeerAddress,
    pub(crate) versions: WireVersions,
    pub(crate) rules: PeerRules,
    pub(crate) book: AddressBook,
    pub(crate) services: Arc<dyn PeerServices>,
    pub(crate) tls: ArcSwap<TlsSides>,
    peers: Mutex<BTreeMap<NodeId, Arc<PeerState>>>,
    /// The rests of bodies that wait for their peers.
    pub(crate) rests: RestsOfBodies,
    /// Cancelled when a stop begins.
    pub(crate) stopping: CancellationToken,
    /// Cancelled when everything ends, which is also the begin of a stop without any wait.
    pub(crate) ended: CancellationToken,
    /// Accepted connections.
    pub(crate) inbound: TaskTracker,
    /// All other tasks.
    pub(crate) tasks: TaskTracker,
    /// Permits of accepted connections that have not passed the handshake.
    pub(crate) strangers: Arc<Semaphore>,
    pub(crate) joins: Mutex<JoinRate>,
}

impl TransportState {
    pub(crate) fn new(
        config: TransportConfig,
        services: Arc<dyn PeerServices>,
    ) -> Result<Self, rustls::Error> {
        let ended = CancellationToken::new();
        Ok(Self {
            cluster: config.cluster,
            node: config.node,
            start: config.start,
            address: config.address,
            versions: config.versions,
            rules: PeerRules::new(config.starts, config.removed),
            book: config.book,
            services,
            tls: ArcSwap::from_pointee(TlsSides::new(&config.credentials)?),
            peers: Mutex::default(),
            rests: RestsOfBodies::default(),
            stopping: ended.child_token(),
            ended,
            inbound: TaskTracker::new(),
            tasks: TaskTracker::new(),
            strangers: Arc::new(Semaphore::new(PEER_STRANGERS_MAX)),
            joins: Mutex::new(JoinRate::new(Instant::now())),
        })
    }

    /// Hello of this node.
    pub(crate) fn hello(&self, channel: Channel) -> Hello {
        Hello {
            versions: self.versions,
            cluster: self.cluster,
            node: self.node,
            start: self.start,
            channel,
            address: self.address.clone(),
        }
    }

    /// Replaces the removed ids and closes the connections with them.
    pub(crate) fn set_removed(&self, removed: BTreeSet<NodeId>) {
        let removed = Arc::new(removed);
        self.rules.set_removed(removed.clone());
        let mut peers = self.peers.lock();
        for node in removed.iter() {
            if let Some(peer) = peers.remove(node) {
                peer.close();
            }
            self.book.forget_stated(*node);
        }
    }

    /// Answers a stream of a peer: with the rest of a body that waits for it, or by a service.
    pub(crate) async fn answer_stream(&self, stream: IncomingStream) -> StreamEnd {
        StreamEnd::of(match stream.service {
            REST_OF_BODY => self.rests.take(stream.peer, &stream.head),
            _ => self.services.stream(stream).await,
        })
    }

    /// State of a peer.
    pub(crate) fn peer(&self, node: NodeId) -> Arc<PeerState> {
        self.peers.lock().entry(node).or_insert_with(|| Arc::new(PeerState::new(node))).clone()
    }

    pub(crate) fn peers(&self) -> Vec<Arc<PeerState>> {
        self.peers.lock().values().cloned().collect()
    }

    /// Finishes what peers have begun, for at most [`STOP_LIMIT`], and ends everything else afterwards. Idle
    /// connections of peers end at once, so nodes that stop together do not wait for each other.
    pub(crate) async fn stop(&self) {
        self.stopping.cancel();
        self.inbound.close();
        if timeout(STOP_LIMIT, self.inbound.wait()).await.is_err() {
            tracing::warn!("calls or streams of other nodes did not end in time, and are cut off");
        }
        self.ended.cancel();
        for peer in self.peers() {
            peer.close();
        }
        self.inbound.wait().await;
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// Accepts the hello of a peer with this certificate, or refuses it. Its start is then on stable media
    /// and its address in the book.
    ///
    /// # Errors
    /// The reason to refuse it.
    pub(crate) async fn accept(
        self: &Arc<Self>,
        certified: CertifiedNode,
        hello: &Hello,
    ) -> Result<Arc<PeerState>, HandshakeRefusal> {
        let removed = self.rules.removed();
        let judge =
            HelloJudge { versions: self.versions, cluster: self.cluster, node: self.node, removed: &removed };
        judge.judge(certified, hello)?;
        // A member can sign certificates: one that was removed can make a new id for itself.
        if !self.services.is_admitted(hello.node).await {
            return Err(HandshakeRefusal::NotMember(hello.node));
        }
        self.admit(hello.node, hello.start).await?;
        if self.book.record_stated(hello.node, &hello.address) {
            self.services.address_stated(hello.node, hello.address.clone());
        }
        let peer = self.peer(hello.node);
        for channel in Channel::ALL {
            peer.link(channel).end_wait();
        }
        Ok(peer)
    }

    async fn admit(self: &Arc<Self>, node: NodeId, start: NodeStart) -> Result<(), HandshakeRefusal> {
        if self.rules.starts.known(node) == Some(start) {
            return Ok(());
        }
        let starts = self.rules.starts.clone();
        let admitted = tokio::task::spawn_blocking(move || starts.admit(node, start)).await;
        match admitted {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(StartsFileError::Refused(refusal))) => Err(refusal.into()),
            Ok(Err(error)) => Err(HandshakeRefusal::NotStored(error.to_string())),
            Err(error) => Err(HandshakeRefusal::NotStored(error.to_string())),
        }
    }
}

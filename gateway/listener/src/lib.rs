//! Accepts a bounded number of connections.
//!
//! A connection beyond the limit is not kept waiting. It is answered `503 SlowDown` and closed, so that the
//! client retries later or at another server. The number of such refusals at a time is also bounded: beyond
//! it a connection is closed without an answer. On a listener for operators and probes, an idle connection is
//! closed first to make room ([`crate::room`]). Such a listener also has reserved slots in which only probes
//! are answered, so that other connections cannot displace the probes.
//!
//! Behind a trusted proxy, address and account of a client are those that the proxy states
//! ([`crate::proxies`]).

pub mod connection;
pub mod forwarded_for;
pub mod framing;
pub mod interim;
pub mod linger;
pub mod pace;
mod peer;
pub mod proxies;
pub mod proxy_header;
pub mod refusal;
pub mod room;
pub mod scratch;
pub mod tls;
pub mod unread;
pub mod watch;
pub mod withheld;

pub use peer::Peer;

use crate::connection::HttpServer;
use crate::pace::PacedRequestBody;
use crate::proxies::{ProxyReadError, TrustedProxies};
use crate::proxy_header::ProxiedClient;
use crate::room::{ConnectionRegistry, ConnectionState};
use crate::tls::Certificate;
use crate::watch::ClientTimeouts;
use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use mlgw_common::time::timeout;
use mlgw_config::Address;
use mlgw_objects::ResourceShortage;
use mlgw_objects::memory::RequestMemory;
use mlgw_telemetry::GatewayMetrics;
use mlgw_wire::error::{Code, S3Error};
use std::error::Error;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Connections that the kernel queues until they are accepted: a burst of as many clients as one second of
/// work.
const BACKLOG: u32 = 4096;
/// Time that a connection beyond the limit waits for another to close. A client that closes one connection
/// and opens the next is not refused because the close is detected a moment later.
const REFUSAL_GRACE: Duration = Duration::from_millis(200);
/// Pause between two searches for a connection that can make room.
const ROOM_PAUSE: Duration = Duration::from_millis(10);
/// Pause after an accept that failed because the process or the system is short of something.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// Error of opening a listener.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// The name has no address.
    #[error("cannot listen on {address} ({setting}): the name {host:?} has no address: {source}")]
    Resolve {
        /// The requested address.
        address: String,
        /// Setting that requests it.
        setting: &'static str,
        /// The host name.
        host: String,
        /// Error of the system.
        source: io::Error,
    },
    /// The address is not available.
    #[error("cannot listen on {address} ({setting}): {source}; {advice}")]
    Bind {
        /// The requested address.
        address: String,
        /// Setting that requests it.
        setting: &'static str,
        /// Error of the system.
        source: io::Error,
        /// Recommended action.
        advice: &'static str,
    },
}

/// Opens the listener of `setting` on the first address of `address` that can be bound.
///
/// # Errors
/// See [`BindError`].
pub async fn bind(setting: &'static str, address: &Address) -> Result<TcpListener, BindError> {
    let failed = |source: io::Error| BindError::Bind {
        address: address.to_string(),
        setting,
        advice: match source.kind() {
            io::ErrorKind::AddrInUse => "stop the process that uses it, or choose another port",
            io::ErrorKind::AddrNotAvailable => "this machine has no such address",
            io::ErrorKind::PermissionDenied => "ports below 1024 require a privilege; choose a higher port",
            _ => "choose another address",
        },
        source,
    };
    let resolved = tokio::net::lookup_host((address.host.as_str(), address.port)).await;
    let resolved = resolved.map_err(|source| BindError::Resolve {
        address: address.to_string(),
        setting,
        host: address.host.clone(),
        source,
    })?;
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for socket in resolved {
        match listen(socket) {
            Ok(listener) => return Ok(listener),
            Err(error) => last = error,
        }
    }
    Err(failed(last))
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// A listener with its limits and the server of its connections.
pub struct ConnectionListener {
    /// The listener.
    pub listener: TcpListener,
    /// Certificate for HTTPS. `None` for HTTP.
    pub certificate: Option<Certificate>,
    /// Maximum number of connections at a time.
    pub connections_max: usize,
    /// True if idle connections are closed to make room for others.
    pub makes_room: bool,
    /// Reserved slots for probes, beyond `connections_max`.
    pub probe_slots: Option<ProbeSlots>,
    /// Maximum number of connections being refused at a time.
    pub refusals_max: usize,
    /// Serves the connections.
    pub server: HttpServer,
    /// Memory of the connections.
    pub memory: RequestMemory,
    /// Proxies whose statements about their clients are used.
    pub proxies: TrustedProxies,
    /// Counts the connections, if they are counted.
    pub metrics: Option<Arc<GatewayMetrics>>,
    /// Stops accepting, and then ends each connection after its requests.
    pub stop: CancellationToken,
    /// Tasks of the connections.
    pub tasks: TaskTracker,
}

/// Reserved slots for probes.
pub struct ProbeSlots {
    /// Number of slots.
    pub connections_max: usize,
    /// Time limits of their clients.
    pub timeouts: ClientTimeouts,
    /// Memory of their connections.
    pub memory: RequestMemory,
}

/// The free slots of a listener.
#[derive(Clone)]
struct ListenerSlots {
    open: Arc<Semaphore>,
    probes: Arc<Semaphore>,
    refusals: Arc<Semaphore>,
    registry: Option<Arc<ConnectionRegistry>>,
}

impl ConnectionListener {
    /// Accepts connections until `stop` is cancelled.
    pub async fn accept<H, F, B>(self, handler: H)
    where
        H: Fn(Request<PacedRequestBody>, Peer) -> F + Clone + Send + Sync + Unpin + 'static,
        F: Future<Output = Response<B>> + Send + 'static,
        B: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + Unpin + Send + 'static,
    {
        let probe_slots = self.probe_slots.as_ref().map_or(0, |slots| slots.connections_max);
        let slots = ListenerSlots {
            open: Arc::new(Semaphore::new(self.connections_max.min(Semaphore::MAX_PERMITS))),
            probes: Arc::new(Semaphore::new(probe_slots)),
            refusals: Arc::new(Semaphore::new(self.refusals_max)),
            registry: self
                .makes_room
                .then(|| Arc::new(ConnectionRegistry::new(self.connections_max.saturating_add(probe_slots)))),
        };
        loop {
            let accepted = tokio::select! {
                () = self.stop.cancelled() => return,
                accepted = self.listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, address)) if self.proxies.is_admitted(address.ip()) => {
                    self.admit(&slots, stream, address, &handler).await;
                }
                Ok((_, address)) => {
                    tracing::warn!(%address, "refused a connection from none of s3.trusted_proxies");
                }
                Err(error) => accept_failed(&error).await,
            }
        }
    }

    /// Assigns a slot to a connection, or refuses it. Without a free slot it waits up to [`REFUSAL_GRACE`]
    /// for a refusal slot, so that a burst is not cut off before idle connections have made room for it.
    async fn admit<H, F, B>(
        &self,
        places: &ListenerSlots,
        stream: TcpStream,
        address: SocketAddr,
        handler: &H,
    ) where
        H: Fn(Request<PacedRequestBody>, Peer) -> F + Clone + Send + Sync + Unpin + 'static,
        F: Future<Output = Response<B>> + Send + 'static,
        B: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + Unpin + Send + 'static,
    {
        let arrived = self.accepted(stream, address);
        let (count, handler) = (self.metrics.as_ref().map(GatewayMetrics::connection), handler.clone());
        let ListenerSlots { open, registry: crowd, .. } = places.clone();
        if let Ok(permit) = open.clone().try_acquire_owned() {
            self.tasks.spawn(async move {
                crowd.iter().for_each(|crowd| crowd.add(&arrived.state));
                arrived.serve(handler).await;
                drop((permit, count));
            });
            return;
        }
        let mut has_made_room = crowd.as_ref().is_some_and(|crowd| crowd.make_room());
        let Some(refusing) = acquire_soon(places.refusals.clone()).await else { return };
        let probe_server = self
            .probe_slots
            .as_ref()
            .map(|slots| (self.server.with_timeouts(slots.timeouts), slots.memory.clone()));
        let (spares, metrics) = (places.probes.clone(), self.metrics.clone());
        let is_crowded = places.refusals.available_permits() < self.refusals_max / 2;
        let patience = if is_crowded { refusal::CROWDED_REFUSAL_TIMEOUT } else { refusal::REFUSAL_TIMEOUT };
        self.tasks.spawn(async move {
            // Kept until the task ends, because an open connection is counted.
            let _count = count;
            let room = async {
                // A connection that has no answer yet may become idle a moment later.
                while let Some(crowd) = crowd.as_ref().filter(|_| !has_made_room) {
                    mlgw_common::time::sleep(ROOM_PAUSE).await;
                    has_made_room = crowd.make_room();
                }
                std::future::pending().await
            };
            let open = tokio::select! {
                permit = acquire_soon(open) => permit,
                never = room => never,
            };
            let (arrived, _permit) = if let Some(permit) = open {
                (arrived, permit)
            } else if let Some((server, memory)) = probe_server
                && let Some(permit) = acquire_soon(spares).await
            {
                (arrived.in_probe_slot(server, &memory), permit)
            } else {
                return refuse(arrived, metrics.as_deref(), patience).await;
            };
            drop(refusing);
            crowd.iter().for_each(|crowd| crowd.add(&arrived.state));
            arrived.serve(handler).await;
        });
    }

    fn accepted(&self, stream: TcpStream, address: SocketAddr) -> AcceptedConnection {
        AcceptedConnection {
            stream,
            certificate: self.certificate.clone(),
            proxies: self.proxies.clone(),
            server: self.server.clone(),
            stop: self.stop.clone(),
            peer: Peer {
                address,
                account: self.proxies.account(&self.memory, address.ip()),
                is_secure: self.certificate.is_some(),
                is_probe_only: false,
            },
            state: ConnectionState::new(),
        }
    }
}

/// Acquires a slot that is free within [`REFUSAL_GRACE`].
async fn acquire_soon(places: Arc<Semaphore>) -> Option<OwnedSemaphorePermit> {
    timeout(REFUSAL_GRACE, places.acquire_owned()).await.ok()?.ok()
}

/// Handles a failed accept. A connection that was closed before it was accepted is ignored. A lack of
/// descriptors or memory lasts until something is closed, so accepting pauses.
async fn accept_failed(error: &io::Error) {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    if !matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset) {
        tracing::warn!(%error, "failed to accept a connection");
        mlgw_common::time::sleep(ACCEPT_PAUSE).await;
    }
}

/// An accepted connection with the state needed to serve it.
struct AcceptedConnection {
    stream: TcpStream,
    certificate: Option<Certificate>,
    proxies: TrustedProxies,
    server: HttpServer,
    stop: CancellationToken,
    peer: Peer,
    state: Arc<ConnectionState>,
}

impl AcceptedConnection {
    /// Returns the same connection in a reserved slot for probes.
    fn in_probe_slot(mut self, server: HttpServer, memory: &RequestMemory) -> Self {
        self.peer.account = memory.account(self.peer.address.ip());
        self.peer.is_probe_only = true;
        self.server = server;
        self
    }

    /// Reads the header of the proxy, which names the client. Returns false if the connection has to be
    /// closed.
    async fn read_proxy_header(&mut self) -> bool {
        let header = timeout(self.server.timeouts.head, proxies::read_header(&mut self.stream));
        let read = tokio::select! {
            () = self.stop.cancelled() => return false,
            () = self.state.room_needed.cancelled() => return false,
            read = header => read,
        };
        match read {
            Ok(Ok(ProxiedClient::Proxy)) => true,
            Ok(Ok(ProxiedClient::Remote(address))) => {
                self.peer.account = self.proxies.account(self.peer.account.memory(), address.ip());
                self.peer.address = address;
                true
            }
            Ok(Err(ProxyReadError::Header(error))) => {
                tracing::warn!(proxy = %self.peer.address, %error, "closed a connection of a proxy");
                false
            }
            // A proxy that connects and sends nothing checks that the listener accepts connections.
            Ok(Err(ProxyReadError::Connection(_))) | Err(_) => false,
        }
    }

    async fn serve<H, F, B>(mut self, handler: H)
    where
        H: Fn(Request<PacedRequestBody>, Peer) -> F + Clone + Send + Sync + Unpin + 'static,
        F: Future<Output = Response<B>> + Send + 'static,
        B: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + Unpin + Send + 'static,
    {
        // Boxed, because most listeners have no such header.
        if self.proxies.has_header() && !Box::pin(self.read_proxy_header()).await {
            return;
        }
        let Self { stream, certificate, proxies, server, stop, peer, state: seat } = self;
        // Answers are written whole, so a delay to collect more bytes would only cost time.
        let _ = stream.set_nodelay(true);
        let account = peer.account.clone();
        let handler = move |request: Request<PacedRequestBody>| {
            let client = proxies.client(&peer, request.headers());
            handler(request, client)
        };
        let Some(certificate) = certificate else {
            return server.serve(stream, seat, account, stop, handler).await;
        };
        let handshake = timeout(server.timeouts.head, certificate.acceptor().accept(stream));
        let encrypted = tokio::select! {
            () = stop.cancelled() => return,
            () = seat.room_needed.cancelled() => return,
            encrypted = handshake => encrypted,
        };
        if let Ok(Ok(encrypted)) = encrypted {
            server.serve(encrypted, seat, account, stop, handler).await;
        }
    }
}

async fn refuse(connection: AcceptedConnection, metrics: Option<&GatewayMetrics>, patience: Duration) {
    metrics.into_iter().for_each(|metrics| metrics.objects.throttle(ResourceShortage::Connections));
    let error = S3Error::new(Code::SlowDown)
        .message("The server has reached its limit of connections. Please reduce your request rate.");
    let AcceptedConnection { mut stream, certificate, proxies, .. } = connection;
    if proxies.has_header() {
        let read = timeout(patience, proxies::read_header(&mut stream)).await;
        if !matches!(read, Ok(Ok(_))) {
            return;
        }
    }
    let Some(certificate) = certificate else { return refusal::send(stream, error, patience).await };
    if let Ok(Ok(encrypted)) = timeout(patience, certificate.acceptor().accept(stream)).await {
        refusal::send(encrypted, error, patience).await;
    }
}

#[cfg(test)]
mod tests;

//! Accepts connections, a bounded number of them.
//!
//! The connection beyond the limit is not left to wait: it is answered `503 SlowDown` at once and closed, so
//! that its client's retry goes somewhere else or comes later. Even that is bounded: when too many are being
//! refused, one more is just closed. On a listener for people and probes a connection that is idle makes
//! room first ([`crate::room`]), and there are some spare places where nothing but probes is answered, so
//! that no crowd of other connections can take the probes away.

pub mod connection;
pub mod framing;
pub mod interim;
pub mod linger;
pub mod pace;
pub mod refusal;
pub mod room;
pub mod scratch;
pub mod tls;
pub mod unread;
pub mod watch;
pub mod withheld;

use crate::connection::Server;
use crate::pace::Incoming;
use crate::room::{Crowd, Seat};
use crate::tls::Certificate;
use crate::watch::Patience;
use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use mlgw_config::Address;
use mlgw_objects::Shortage;
use mlgw_objects::memory::{Account, Memory};
use mlgw_telemetry::Metrics;
use mlgw_wire::error::{Code, S3Error};
use std::error::Error;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Connections that the kernel keeps until they are accepted: a burst of as many clients as one
/// second of work.
const BACKLOG: u32 = 4096;
/// How long a connection beyond the limit waits for another to close: a client that closes one and
/// opens the next is not to be refused because its end is seen a moment later.
const REFUSAL_GRACE: Duration = Duration::from_millis(200);
/// Pause between two searches for a connection that can make room.
const ROOM_PAUSE: Duration = Duration::from_millis(10);
/// Pause after an accept that failed because the process or the system is short of something.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// Why a listener did not open.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// The name has no address.
    #[error("cannot listen on {address} ({setting}): the name {host:?} has no address: {source}")]
    Resolve {
        /// What was asked for.
        address: String,
        /// Where it was asked for.
        setting: &'static str,
        /// The name.
        host: String,
        /// What the system said.
        source: io::Error,
    },
    /// The address is not to be had.
    #[error("cannot listen on {address} ({setting}): {source}; {advice}")]
    Bind {
        /// What was asked for.
        address: String,
        /// Where it was asked for.
        setting: &'static str,
        /// What the system said.
        source: io::Error,
        /// What to do.
        advice: &'static str,
    },
}

/// Opens the listener of `setting`.
///
/// # Errors
/// See [`BindError`].
pub async fn bind(setting: &'static str, address: &Address) -> Result<TcpListener, BindError> {
    let failed = |source: io::Error| BindError::Bind {
        address: address.to_string(),
        setting,
        advice: match source.kind() {
            io::ErrorKind::AddrInUse => "stop what uses it, or choose another port",
            io::ErrorKind::AddrNotAvailable => "this machine has no such address",
            io::ErrorKind::PermissionDenied => "ports below 1024 need a privilege; choose a higher one",
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

/// Who is at the other end.
#[derive(Clone)]
pub struct Peer {
    /// Its address.
    pub address: SocketAddr,
    /// What its connection may hold.
    pub account: Account,
    /// Whether its connection has a spare place: probes are answered there, and nothing else.
    pub is_spare: bool,
}

/// A listener and what it needs to serve.
pub struct Door {
    /// The listener.
    pub listener: TcpListener,
    /// For HTTPS.
    pub certificate: Option<Certificate>,
    /// Connections at once.
    pub connections_max: usize,
    /// Whether idle ones make room for others.
    pub makes_room: bool,
    /// Further connections, for probes, and what these may hold.
    pub spare: Option<Spare>,
    /// Connections being refused at once.
    pub refusals_max: usize,
    /// Serves them.
    pub server: Server,
    /// What they may hold.
    pub memory: Memory,
    /// Counts them, where they are to be counted.
    pub metrics: Option<Arc<Metrics>>,
    /// Ends the accepting, and then each connection after its requests.
    pub stop: CancellationToken,
    /// The connections' tasks.
    pub tasks: TaskTracker,
}

/// Places for probes.
pub struct Spare {
    /// How many.
    pub connections_max: usize,
    /// How long their clients may take.
    pub patience: Patience,
    /// What they may hold.
    pub memory: Memory,
}

/// The places of a listener that are free.
#[derive(Clone)]
struct Places {
    open: Arc<Semaphore>,
    spare: Arc<Semaphore>,
    refusals: Arc<Semaphore>,
    crowd: Option<Arc<Crowd>>,
}

impl Door {
    /// Accepts until it is told to stop.
    pub async fn accept<H, F, B>(self, handler: H)
    where
        H: Fn(Request<Incoming>, Peer) -> F + Clone + Send + Sync + Unpin + 'static,
        F: Future<Output = Response<B>> + Send + 'static,
        B: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + Unpin + Send + 'static,
    {
        let spare = self.spare.as_ref().map_or(0, |spare| spare.connections_max);
        let places = Places {
            open: Arc::new(Semaphore::new(self.connections_max.min(Semaphore::MAX_PERMITS))),
            spare: Arc::new(Semaphore::new(spare)),
            refusals: Arc::new(Semaphore::new(self.refusals_max)),
            crowd: self.makes_room.then(|| Arc::new(Crowd::new(self.connections_max.saturating_add(spare)))),
        };
        loop {
            let accepted = tokio::select! {
                () = self.stop.cancelled() => return,
                accepted = self.listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, address)) => self.place(&places, stream, address, &handler).await,
                Err(error) => accept_failed(&error).await,
            }
        }
    }

    /// Gives a connection a place, or a refusal. Where there is no place it waits a moment for those before
    /// it, so that a burst is not cut off before idle connections have made room for it.
    async fn place<H, F, B>(&self, places: &Places, stream: TcpStream, address: SocketAddr, handler: &H)
    where
        H: Fn(Request<Incoming>, Peer) -> F + Clone + Send + Sync + Unpin + 'static,
        F: Future<Output = Response<B>> + Send + 'static,
        B: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + Unpin + Send + 'static,
    {
        let arrived = self.arrived(stream, address);
        let (count, handler) = (self.metrics.as_ref().map(Metrics::connection), handler.clone());
        let Places { open, crowd, .. } = places.clone();
        if let Ok(permit) = open.clone().try_acquire_owned() {
            self.tasks.spawn(async move {
                crowd.iter().for_each(|crowd| crowd.enter(&arrived.seat));
                arrived.converse(handler).await;
                drop((permit, count));
            });
            return;
        }
        let mut made = crowd.as_ref().is_some_and(|crowd| crowd.make_room());
        let Some(refusing) = soon(places.refusals.clone()).await else { return };
        let spare = self.spare.as_ref().map(|spare| (self.server.with(spare.patience), spare.memory.clone()));
        let (spares, metrics) = (places.spare.clone(), self.metrics.clone());
        let is_crowded = places.refusals.available_permits() < self.refusals_max / 2;
        self.tasks.spawn(async move {
            // Held until this ends: a connection counts while it is open.
            let _count = count;
            let room = async {
                // A connection that has no answer yet when it is looked at may make room a moment later.
                while let Some(crowd) = crowd.as_ref().filter(|_| !made) {
                    tokio::time::sleep(ROOM_PAUSE).await;
                    made = crowd.make_room();
                }
                std::future::pending().await
            };
            let open = tokio::select! {
                permit = soon(open) => permit,
                never = room => never,
            };
            let (arrived, _permit) = if let Some(permit) = open {
                (arrived, permit)
            } else if let Some((server, memory)) = spare
                && let Some(permit) = soon(spares).await
            {
                (arrived.spare(server, &memory), permit)
            } else {
                return refuse(arrived.stream, arrived.certificate, metrics.as_deref(), is_crowded).await;
            };
            drop(refusing);
            crowd.iter().for_each(|crowd| crowd.enter(&arrived.seat));
            arrived.converse(handler).await;
        });
    }

    fn arrived(&self, stream: TcpStream, address: SocketAddr) -> Arrived {
        Arrived {
            stream,
            certificate: self.certificate.clone(),
            server: self.server.clone(),
            stop: self.stop.clone(),
            peer: Peer { address, account: self.memory.account(address.ip()), is_spare: false },
            seat: Seat::new(),
        }
    }
}

/// A place that is free now or in a moment.
async fn soon(places: Arc<Semaphore>) -> Option<OwnedSemaphorePermit> {
    timeout(REFUSAL_GRACE, places.acquire_owned()).await.ok()?.ok()
}

/// A connection that was gone before it was accepted is nothing; a lack of descriptors or memory
/// passes only when something closes, so the accepting pauses.
async fn accept_failed(error: &io::Error) {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    if !matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset) {
        tracing::warn!(%error, "a connection cannot be accepted");
        tokio::time::sleep(ACCEPT_PAUSE).await;
    }
}

/// A connection, and what it takes to serve it.
struct Arrived {
    stream: TcpStream,
    certificate: Option<Certificate>,
    server: Server,
    stop: CancellationToken,
    peer: Peer,
    seat: Arc<Seat>,
}

impl Arrived {
    /// The same connection in a place for probes.
    fn spare(mut self, server: Server, memory: &Memory) -> Self {
        self.peer.account = memory.account(self.peer.address.ip());
        self.peer.is_spare = true;
        self.server = server;
        self
    }

    async fn converse<H, F, B>(self, handler: H)
    where
        H: Fn(Request<Incoming>, Peer) -> F + Clone + Send + Sync + Unpin + 'static,
        F: Future<Output = Response<B>> + Send + 'static,
        B: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + Unpin + Send + 'static,
    {
        let Self { stream, certificate, server, stop, peer, seat } = self;
        // Answers are written whole; waiting for more of them would only cost time.
        let _ = stream.set_nodelay(true);
        let account = peer.account.clone();
        let handler = move |request| handler(request, peer.clone());
        let Some(certificate) = certificate else {
            return server.serve(stream, seat, account, stop, handler).await;
        };
        let handshake = timeout(server.patience.head, certificate.acceptor().accept(stream));
        let encrypted = tokio::select! {
            () = stop.cancelled() => return,
            () = seat.give_up.cancelled() => return,
            encrypted = handshake => encrypted,
        };
        if let Ok(Ok(encrypted)) = encrypted {
            server.serve(encrypted, seat, account, stop, handler).await;
        }
    }
}

async fn refuse(
    stream: TcpStream,
    certificate: Option<Certificate>,
    metrics: Option<&Metrics>,
    is_crowded: bool,
) {
    metrics.into_iter().for_each(|metrics| metrics.objects.throttle(Shortage::Connections));
    let error = S3Error::new(Code::SlowDown).message("The server has as many connections as it may.");
    let patience = if is_crowded { refusal::IN_A_CROWD } else { refusal::PATIENCE };
    let Some(certificate) = certificate else { return refusal::say(stream, error, patience).await };
    if let Ok(Ok(encrypted)) = timeout(patience, certificate.acceptor().accept(stream)).await {
        refusal::say(encrypted, error, patience).await;
    }
}

#[cfg(test)]
mod tests;

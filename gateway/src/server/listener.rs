//! Accepts connections, a bounded number of them.
//!
//! The connection beyond the limit is not left to wait: it is told `503 SlowDown` at once and
//! closed, so that its client's retry goes somewhere else or comes later. Even that is bounded: when
//! too many are being refused, one more is just closed.

use super::connection::Server;
use super::pace::Incoming;
use super::refusal;
use super::tls::Certificate;
use crate::config::Address;
use crate::memory::{Account, Memory};
use crate::metrics::{Metrics, throttled};
use crate::s3::error::{Code, S3Error};
use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use std::error::Error;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Connections that the kernel keeps until they are accepted: a burst of as many clients as one
/// second of work.
const BACKLOG: u32 = 4096;
/// Connections being refused at once.
const REFUSALS_MAX: usize = 256;
/// How long a connection beyond the limit waits for another to close: a client that closes one and
/// opens the next is not to be refused because its end is seen a moment later.
const REFUSAL_GRACE: Duration = Duration::from_millis(100);
/// How long a client that will be refused may take to agree on keys.
const HANDSHAKE_PATIENCE: Duration = Duration::from_secs(2);
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
}

/// A listener and what it needs to serve.
pub struct Door {
    /// The listener.
    pub listener: TcpListener,
    /// For HTTPS.
    pub certificate: Option<Certificate>,
    /// Connections at once.
    pub connections_max: usize,
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

impl Door {
    /// Accepts until it is told to stop.
    pub async fn accept<H, F, B>(self, handler: H)
    where
        H: Fn(Request<Incoming>, Peer) -> F + Clone + Send + Sync + Unpin + 'static,
        F: Future<Output = Response<B>> + Send + 'static,
        B: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + Unpin + Send + 'static,
    {
        let open = Arc::new(Semaphore::new(self.connections_max.min(Semaphore::MAX_PERMITS)));
        let refusals = Arc::new(Semaphore::new(REFUSALS_MAX));
        loop {
            let accepted = tokio::select! {
                () = self.stop.cancelled() => return,
                accepted = self.listener.accept() => accepted,
            };
            let (stream, address) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    accept_failed(&error).await;
                    continue;
                }
            };
            let count = self.metrics.as_ref().map(Metrics::connection);
            let (server, stop, handler) = (self.server.clone(), self.stop.clone(), handler.clone());
            let (certificate, metrics) = (self.certificate.clone(), self.metrics.clone());
            let peer = Peer { address, account: self.memory.account(address.ip()) };
            match (open.clone().try_acquire_owned(), refusals.clone().try_acquire_owned()) {
                (Ok(permit), _) => self.tasks.spawn(async move {
                    converse(stream, certificate, server, stop, peer, handler).await;
                    drop((permit, count));
                }),
                (Err(_), Ok(refusing)) => {
                    let free = timeout(REFUSAL_GRACE, open.clone().acquire_owned());
                    self.tasks.spawn(async move {
                        if let Ok(Ok(permit)) = free.await {
                            drop(refusing);
                            converse(stream, certificate, server, stop, peer, handler).await;
                            drop(permit);
                        } else {
                            refuse(stream, certificate, metrics.as_deref()).await;
                            drop(refusing);
                        }
                        drop(count);
                    })
                }
                (Err(_), Err(_)) => continue,
            };
        }
    }
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

async fn converse<H, F, B>(
    stream: TcpStream,
    certificate: Option<Certificate>,
    server: Server,
    stop: CancellationToken,
    peer: Peer,
    handler: H,
) where
    H: Fn(Request<Incoming>, Peer) -> F + Clone + Send + Sync + Unpin + 'static,
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + Unpin + Send + 'static,
{
    // Answers are written whole; waiting for more of them would only cost time.
    let _ = stream.set_nodelay(true);
    let account = peer.account.clone();
    let handler = move |request| handler(request, peer.clone());
    let Some(certificate) = certificate else { return server.serve(stream, account, stop, handler).await };
    let handshake = timeout(server.patience.head, certificate.acceptor().accept(stream));
    let encrypted = tokio::select! {
        () = stop.cancelled() => return,
        encrypted = handshake => encrypted,
    };
    if let Ok(Ok(encrypted)) = encrypted {
        server.serve(encrypted, account, stop, handler).await;
    }
}

async fn refuse(stream: TcpStream, certificate: Option<Certificate>, metrics: Option<&Metrics>) {
    metrics.into_iter().for_each(|metrics| throttled(metrics, "connections"));
    let error = S3Error::new(Code::SlowDown).message("The server has as many connections as it may.");
    let Some(certificate) = certificate else { return refusal::say(stream, error).await };
    if let Ok(Ok(encrypted)) = timeout(HANDSHAKE_PATIENCE, certificate.acceptor().accept(stream)).await {
        refusal::say(encrypted, error).await;
    }
}

#[cfg(test)]
mod tests;

//! Accepts connections, a bounded number of them.
//!
//! The connection beyond the limit is not left to wait: it is told `503 SlowDown` at once and
//! closed, so that its client's retry goes somewhere else or comes later. Even that is bounded: when
//! too many are being refused, one more is just closed.

use super::connection::Server;
use super::tls::Certificate;
use crate::config::Address;
use crate::metrics::{Metrics, throttled};
use crate::s3::error::{Code, S3Error};
use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use hyper::body::Incoming;
use std::error::Error;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::Semaphore;
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
/// How long a refused client may take to read its answer.
const REFUSAL_PATIENCE: Duration = Duration::from_secs(2);
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
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// Its address.
    pub address: SocketAddr,
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
        H: Fn(Request<Incoming>, Peer) -> F + Clone + Send + Sync + 'static,
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
            let serve = move |request| handler(request, Peer { address });
            match (open.clone().try_acquire_owned(), refusals.clone().try_acquire_owned()) {
                (Ok(permit), _) => self.tasks.spawn(async move {
                    converse(stream, certificate, server, stop, serve).await;
                    drop((permit, count));
                }),
                (Err(_), Ok(refusing)) => {
                    let free = tokio::time::timeout(REFUSAL_GRACE, open.clone().acquire_owned());
                    self.tasks.spawn(async move {
                        if let Ok(Ok(permit)) = free.await {
                            drop(refusing);
                            converse(stream, certificate, server, stop, serve).await;
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
    handler: H,
) where
    H: Fn(Request<Incoming>) -> F + Clone + Send + 'static,
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + Unpin + Send + 'static,
{
    // Answers are written whole; waiting for more of them would only cost time.
    let _ = stream.set_nodelay(true);
    let Some(certificate) = certificate else { return server.serve(stream, stop, handler).await };
    let handshake = tokio::time::timeout(server.patience.head, certificate.acceptor().accept(stream));
    let encrypted = tokio::select! {
        () = stop.cancelled() => return,
        encrypted = handshake => encrypted,
    };
    if let Ok(Ok(encrypted)) = encrypted {
        server.serve(encrypted, stop, handler).await;
    }
}

async fn refuse(stream: TcpStream, certificate: Option<Certificate>, metrics: Option<&Metrics>) {
    metrics.into_iter().for_each(|metrics| throttled(metrics, "connections"));
    let said = async {
        match certificate {
            Some(certificate) => say_slow_down(certificate.acceptor().accept(stream).await?).await,
            None => say_slow_down(stream).await,
        }
    };
    // What comes of it is the client's affair.
    let _ = tokio::time::timeout(REFUSAL_PATIENCE, said).await;
}

/// Writes the answer, then reads what the client still sends: closing with unread bytes would
/// reset the connection and take the answer with it.
async fn say_slow_down(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> io::Result<()> {
    let error = S3Error::new(Code::SlowDown).message("The server has as many connections as it may.");
    let body = error.to_xml(true, "", "");
    let answer = format!(
        "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/xml\r\nContent-Length: {}\r\n\
         Retry-After: 1\r\nConnection: close\r\nServer: mlgw\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(answer.as_bytes()).await?;
    stream.shutdown().await?;
    let mut rest = [0; 4096];
    while stream.read(&mut rest).await? > 0 {}
    Ok(())
}

#[cfg(test)]
mod tests;

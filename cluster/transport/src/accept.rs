//! Accepts connections of peers and of nodes that join.
//!
//! A connection has [`HANDSHAKE_LIMIT`] for TLS and for the handshake, and [`JOIN_LIMIT`] in all if it has
//! no certificate. Until then it holds one of [`mlgw_common::limits::PEER_STRANGERS_MAX`] permits; without a
//! permit it is closed at once.

use crate::dial::no_answer;
use crate::exclusive_serve;
use crate::handshake::HANDSHAKE_LIMIT;
use crate::inbound::InboundConnection;
use crate::metered::{MeteredIo, StreamFacts, tls_error};
use crate::multiplexed_serve;
use crate::peer::ConnectionKind;
use crate::socket::{Socket, without_delay};
use crate::state::TransportState;
use hyper::server::conn::http2::Builder;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use mlgw_common::limits::{
    PEER_CONNECTION_WINDOW_BYTES, PEER_FRAME_BYTES_MAX, PEER_HEADER_BYTES_MAX, PEER_HTTP_STREAMS_MAX,
    PEER_PING_MS, PEER_PING_TIMEOUT_MS, PEER_SEND_BUFFER_BYTES, PEER_STREAM_WINDOW_BYTES,
};
use mlgw_common::time::{Instant, sleep, sleep_until, timeout};
use mlgw_trust::{CertifiedNode, EXCLUSIVE_PROTOCOL, MULTIPLEXED_PROTOCOL, tls_reason};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::OwnedSemaphorePermit;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;

/// Time of a connection without a certificate, with its one request: some commands of the catalogue.
pub(crate) const JOIN_LIMIT: Duration = Duration::from_secs(60);
/// Bytes that are read of a connection after TLS failed, and time for it.
const UNREAD_BYTES_MAX: usize = 64 << 10;
const UNREAD_LIMIT: Duration = Duration::from_secs(1);
/// Wait after an error of the listener, such as too many open files.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// Accepts connections until the stop of the transport begins.
pub(crate) async fn accept_connections(state: Arc<TransportState>, listener: TcpListener) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = state.stopping.cancelled() => return,
        };
        match accepted {
            Ok((tcp, from)) => accept_connection(&state, tcp, from),
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection of a peer");
                sleep(ACCEPT_RETRY).await;
            }
        }
    }
}

fn accept_connection(state: &Arc<TransportState>, tcp: TcpStream, from: SocketAddr) {
    let Ok(permit) = state.strangers.clone().try_acquire_owned() else {
        tracing::warn!(%from, "closed a connection: too many have not passed the handshake");
        return;
    };
    let (state, inbound) = (state.clone(), state.inbound.clone());
    inbound.spawn(async move { secure_and_serve(&state, tcp, from, permit).await });
}

async fn secure_and_serve(
    state: &Arc<TransportState>,
    tcp: TcpStream,
    from: SocketAddr,
    permit: OwnedSemaphorePermit,
) {
    let secured = tokio::select! {
        secured = accept_tls(state, tcp, from) => secured,
        () = state.stopping.cancelled() => return,
    };
    let Some(tls) = secured else { return };
    let chain = tls.get_ref().1.peer_certificates();
    let certified = match chain.and_then(|chain| chain.first()).map(CertifiedNode::of_certificate) {
        Some(Ok(certified)) => Some(certified),
        None => None,
        // The verifier of TLS has read the same certificate.
        Some(Err(_)) => return,
    };
    let kind = match tls.get_ref().1.alpn_protocol() {
        Some(EXCLUSIVE_PROTOCOL) => ConnectionKind::Exclusive,
        Some(MULTIPLEXED_PROTOCOL) => ConnectionKind::Multiplexed,
        _ => ConnectionKind::Shared,
    };
    let (facts, cancel) = (StreamFacts::default(), CancellationToken::new());
    let io = MeteredIo::new(tls, facts.clone(), cancel.clone());
    let connection = InboundConnection::new(state.clone(), from, certified, facts, cancel, permit);
    match kind {
        ConnectionKind::Exclusive => exclusive_serve::serve(io, Arc::new(connection)).await,
        ConnectionKind::Multiplexed => multiplexed_serve::serve(io, Arc::new(connection)).await,
        ConnectionKind::Shared => serve(io, Arc::new(connection)).await,
    }
}

/// Completes TLS. Returns `None` if it failed.
async fn accept_tls(state: &TransportState, tcp: TcpStream, from: SocketAddr) -> Option<TlsStream<Socket>> {
    let socket = without_delay(tcp).ok()?;
    let acceptor = TlsAcceptor::from(state.tls.load().server.clone());
    match timeout(HANDSHAKE_LIMIT, acceptor.accept(socket).into_fallible()).await {
        Ok(Ok(tls)) => return Some(tls),
        Ok(Err((error, socket))) => {
            let error = tls_error(&error).map_or_else(|| error.to_string(), tls_reason);
            tracing::info!(%from, error, "refused a connection: TLS failed");
            read_to_end(socket).await;
        }
        Err(_) => {
            tracing::info!(%from, error = no_answer(HANDSHAKE_LIMIT), "refused a connection: TLS failed");
        }
    }
    None
}

/// Reads and drops what a refused client still sends. A socket that is closed with unread bytes is reset, and
/// the client may then not get the alert with the reason.
async fn read_to_end(mut socket: Socket) {
    let _ = socket.shutdown().await;
    let mut unread = [0; 4096];
    let reading = async {
        let mut left = UNREAD_BYTES_MAX;
        while let Ok(bytes @ 1..) = socket.read(&mut unread).await
            && bytes <= left
        {
            left -= bytes;
        }
    };
    let _ = timeout(UNREAD_LIMIT, reading).await;
}

/// Serves a connection until it ends, or until its time without a handshake is over. After the begin of a
/// stop it ends when its calls and streams have ended.
pub(crate) async fn serve<T>(io: MeteredIo<T>, inbound: Arc<InboundConnection>)
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let limit = if inbound.has_certificate() { HANDSHAKE_LIMIT } else { JOIN_LIMIT };
    let limit = sleep_until(Instant::now() + limit);
    let service = {
        let inbound = inbound.clone();
        service_fn(move |request| {
            let inbound = inbound.clone();
            async move { Ok::<_, Infallible>(inbound.handle(request).await) }
        })
    };
    let mut connection = pin!(builder().serve_connection(TokioIo::new(io), service));
    let mut limit = pin!(limit);
    let (mut is_ending, mut is_limited) = (false, true);
    loop {
        tokio::select! {
            ended = connection.as_mut() => {
                if let Err(error) = ended {
                    tracing::debug!(%error, "a connection of a peer broke");
                }
                return;
            }
            () = inbound.last_answer().cancelled(), if !is_ending => {
                is_ending = true;
                connection.as_mut().graceful_shutdown();
            }
            () = inbound.state().stopping.cancelled(), if !is_ending => match inbound.is_in_use() {
                true => inbound.last_answer().cancel(),
                false => return,
            },
            () = inbound.state().ended.cancelled() => return,
            // Judged at its end: the handshake may have passed while this waited.
            () = limit.as_mut(), if is_limited => match inbound.is_accepted() {
                true => is_limited = false,
                false => return,
            },
        }
    }
}

fn builder() -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .auto_date_header(false)
        .initial_stream_window_size(PEER_STREAM_WINDOW_BYTES)
        .initial_connection_window_size(PEER_CONNECTION_WINDOW_BYTES)
        .max_concurrent_streams(PEER_HTTP_STREAMS_MAX)
        .max_frame_size(PEER_FRAME_BYTES_MAX)
        .max_send_buf_size(PEER_SEND_BUFFER_BYTES)
        .max_header_list_size(PEER_HEADER_BYTES_MAX)
        // Peers are trusted, and either side may end a stream while the other one still sends. Each such end
        // counts as an error, and the limits against hostile clients would close the connection.
        .max_local_error_reset_streams(None)
        .max_pending_accept_reset_streams(None)
        .keep_alive_interval(Duration::from_millis(PEER_PING_MS))
        .keep_alive_timeout(Duration::from_millis(PEER_PING_TIMEOUT_MS));
    builder
}

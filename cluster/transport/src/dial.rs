//! Dials: names are resolved, TCP, TLS, and the handshake of this protocol.

use crate::address::PeerAddress;
use crate::body::SentBody;
use crate::channel::Channel;
use crate::connection::OpenConnection;
use crate::error::{CallError, DialError, NotSent};
use crate::exclusive::{ExclusivePool, keep_pool};
use crate::handshake::{BadHandshake, HandshakeRefusal, Hello, decode_answer};
use crate::metered::{MeteredIo, StreamFacts, tls_error};
use crate::multiplexed::MultiplexedSlot;
use crate::peer::{ConnectionKind, PeerState, Registration};
use crate::socket::{Socket, without_delay};
use crate::state::{STOP_LIMIT, TransportState};
use crate::wire::{ANSWERED, PeerTarget};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Limited};
use hyper::client::conn::http2::{Builder, Connection, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use mlgw_common::NodeId;
use mlgw_common::limits::{
    HANDSHAKE_BYTES_MAX, PEER_CONNECTION_WINDOW_BYTES, PEER_FRAME_BYTES_MAX, PEER_HANDSHAKE_MS,
    PEER_HEADER_BYTES_MAX, PEER_PING_MS, PEER_PING_TIMEOUT_MS, PEER_SEND_BUFFER_BYTES,
    PEER_STREAM_WINDOW_BYTES,
};
use mlgw_common::time::{Instant, timeout};
use mlgw_trust::{CertifiedNode, tls_reason};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, lookup_host};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::sync::CancellationToken;

/// Name for TLS. Nodes are known by the names in their certificates, which are compared afterwards.
const TLS_NAME: &str = "node.mlgw.internal";

/// Time for a dial with all addresses of a node.
pub(crate) const DIAL_LIMIT: Duration = Duration::from_millis(PEER_HANDSHAKE_MS);

/// Both halves of HTTP/2 on a connection that this node made, and what is known of it.
pub(crate) struct HttpClient<T = TlsStream<Socket>>
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    pub(crate) sender: SendRequest<SentBody>,
    pub(crate) connection: Connection<TokioIo<MeteredIo<T>>, SentBody, TokioExecutor>,
    pub(crate) facts: StreamFacts,
    pub(crate) cancel: CancellationToken,
}

/// Dials the addresses of a peer until one answers.
///
/// # Errors
/// The refusal of a peer if one refused, the last error otherwise.
pub(crate) async fn dial_peer(
    state: &Arc<TransportState>,
    peer: &Arc<PeerState>,
    channel: Channel,
) -> Result<Arc<OpenConnection>, CallError> {
    let node = peer.node;
    let addresses = state.book.addresses(node);
    let each = DIAL_LIMIT / u32::try_from(addresses.len().max(1)).unwrap_or(1);
    let mut failed = CallError::NotSent { node, reason: NotSent::NoAddress };
    for address in addresses {
        let error = match timeout(each, dial_address(state, Some(node), channel, &address)).await {
            Ok(Ok(connection)) => return Ok(Arc::new(connection)),
            Ok(Err(error)) => error,
            Err(_) => DialError::Unreachable { address: address.clone(), cause: no_answer(each) },
        };
        // A refusal has precedence over an address that does not answer.
        match error {
            DialError::Refused { address, refusal } => {
                failed = CallError::PeerRefused { node, address, refusal };
            }
            DialError::Unreachable { address, cause } if !matches!(failed, CallError::PeerRefused { .. }) => {
                failed = CallError::NotSent { node, reason: NotSent::Unreachable { address, cause } };
            }
            DialError::Unreachable { .. } => {}
        }
    }
    Err(failed)
}

/// Text of a dial that did not end within its limit.
pub(crate) fn no_answer(limit: Duration) -> String {
    format!("no answer within {} ms", limit.as_millis())
}

/// Dials one address. `dialed` is the node that is expected there, `None` if any node of the cluster is.
///
/// # Errors
/// See [`DialError`].
pub(crate) async fn dial_address(
    state: &Arc<TransportState>,
    dialed: Option<NodeId>,
    channel: Channel,
    address: &PeerAddress,
) -> Result<OpenConnection, DialError> {
    let refused = |refusal| DialError::Refused { address: address.clone(), refusal };
    let tls = secure(address, state.tls.load().client.clone()).await?;
    let certified = certified_peer(&tls).map_err(refused)?;
    if let Some(dialed) = dialed.filter(|dialed| *dialed != certified.node) {
        return Err(refused(HandshakeRefusal::WrongNode { dialed, found: certified.node }));
    }
    let mut client = http_client(address, tls).await?;
    let answer = exchange_hellos(&mut client, state.hello(channel), address).await?;
    if answer.channel != channel {
        return Err(refused(BadHandshake::Field("connection").into()));
    }
    let peer = state.accept(certified, &answer).await.map_err(refused)?;
    let registered =
        peer.register(&state.rules, answer.start, channel, ConnectionKind::Shared, client.cancel.clone());
    let registered = registered.map_err(refused)?;
    client.facts.count(peer.meter(channel).clone());
    Ok(drive(state, client, registered, OpenAddress { node: peer.node, address: address.clone() }))
}

struct OpenAddress {
    node: NodeId,
    address: PeerAddress,
}

/// Runs the connection in a task; its registration ends when the connection is closed.
fn drive(
    state: &Arc<TransportState>,
    client: HttpClient,
    registered: Registration,
    to: OpenAddress,
) -> OpenConnection {
    let HttpClient { sender, connection, facts, cancel } = client;
    let (ended, closed) = (state.ended.clone(), facts.closed().clone());
    state.tasks.spawn(async move {
        let _registered = registered;
        let driven = async {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection to a node broke");
            }
            // When the peer stops, hyper ends the half that takes requests first. Answers follow it.
            closed.cancelled().await;
        };
        tokio::select! {
            () = driven => {}
            () = ended.cancelled() => {}
        }
    });
    let exclusive = Arc::<ExclusivePool>::default();
    state.tasks.spawn(keep_pool(exclusive.clone(), cancel.clone(), state.ended.clone(), STOP_LIMIT));
    let multiplexed = MultiplexedSlot::default();
    OpenConnection { node: to.node, address: to.address, sender, facts, cancel, exclusive, multiplexed }
}

/// Resolves an address and completes TLS with the first socket that accepts.
///
/// # Errors
/// See [`DialError`].
pub(crate) async fn secure(
    address: &PeerAddress,
    config: Arc<ClientConfig>,
) -> Result<TlsStream<Socket>, DialError> {
    let unreachable = |cause: String| DialError::Unreachable { address: address.clone(), cause };
    let sockets = lookup_host((address.host(), address.port())).await;
    let sockets: Vec<_> =
        sockets.map_err(|error| unreachable(format!("cannot resolve it: {error}")))?.collect();
    let each = DIAL_LIMIT / u32::try_from(sockets.len().max(1)).unwrap_or(1);
    let mut failed = unreachable("its name has no address".to_owned());
    for socket in sockets {
        match timeout(each, TcpStream::connect(socket)).await {
            Ok(Ok(tcp)) => return handshake_tls(address, tcp, config).await,
            Ok(Err(error)) => failed = unreachable(format!("{socket}: {error}")),
            Err(_) => failed = unreachable(format!("{socket}: {}", no_answer(each))),
        }
    }
    Err(failed)
}

async fn handshake_tls(
    address: &PeerAddress,
    tcp: TcpStream,
    config: Arc<ClientConfig>,
) -> Result<TlsStream<Socket>, DialError> {
    let unreachable = |cause: String| DialError::Unreachable { address: address.clone(), cause };
    let socket = without_delay(tcp).map_err(|error| unreachable(error.to_string()))?;
    let name = ServerName::try_from(TLS_NAME).map_err(|error| unreachable(error.to_string()))?;
    TlsConnector::from(config).connect(name, socket).await.map_err(|error| match tls_error(&error) {
        Some(error) => {
            let refusal = HandshakeRefusal::Tls(tls_reason(error));
            DialError::Refused { address: address.clone(), refusal }
        }
        None => unreachable(format!("TLS: {error}")),
    })
}

pub(crate) fn certified_peer(tls: &TlsStream<Socket>) -> Result<CertifiedNode, HandshakeRefusal> {
    let chain = tls.get_ref().1.peer_certificates().unwrap_or_default();
    let certificate = chain.first().ok_or_else(|| HandshakeRefusal::Tls("no certificate".to_owned()))?;
    CertifiedNode::of_certificate(certificate).map_err(|error| HandshakeRefusal::Tls(error.to_string()))
}

/// Begins HTTP/2.
///
/// # Errors
/// See [`DialError`].
pub(crate) async fn http_client<T>(address: &PeerAddress, io: T) -> Result<HttpClient<T>, DialError>
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (facts, cancel) = (StreamFacts::default(), CancellationToken::new());
    let io = TokioIo::new(MeteredIo::new(io, facts.clone(), cancel.clone()));
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .initial_stream_window_size(PEER_STREAM_WINDOW_BYTES)
        .initial_connection_window_size(PEER_CONNECTION_WINDOW_BYTES)
        .max_frame_size(PEER_FRAME_BYTES_MAX)
        .max_send_buf_size(PEER_SEND_BUFFER_BYTES)
        .max_header_list_size(PEER_HEADER_BYTES_MAX)
        // As on the accepting side.
        .max_local_error_reset_streams(None)
        .keep_alive_interval(Duration::from_millis(PEER_PING_MS))
        .keep_alive_timeout(Duration::from_millis(PEER_PING_TIMEOUT_MS))
        .keep_alive_while_idle(true);
    match builder.handshake(io).await {
        Ok((sender, connection)) => Ok(HttpClient { sender, connection, facts, cancel }),
        Err(error) => Err(broken(address, &facts, &error)),
    }
}

/// Error of a connection that broke before its handshake passed. A TLS alert is the refusal of this node's
/// certificate: with TLS 1.3 it arrives after this side has completed TLS.
fn broken(address: &PeerAddress, facts: &StreamFacts, error: &dyn std::error::Error) -> DialError {
    let (address, cause) = (address.clone(), facts.cause(error));
    if facts.failure().is_some_and(|failure| failure.is_tls) {
        return DialError::Refused { address, refusal: HandshakeRefusal::Tls(cause) };
    }
    DialError::Unreachable { address, cause }
}

/// Sends the hello of this node and returns that of the peer.
async fn exchange_hellos(
    client: &mut HttpClient,
    hello: Hello,
    address: &PeerAddress,
) -> Result<Hello, DialError> {
    let body = SentBody::whole(hello.encode().into());
    let request = PeerTarget::Handshake.request(body, Instant::now() + DIAL_LIMIT);
    let response = client.sender.send_request(request);
    let answer = async {
        let response = response.await.map_err(|error| broken(address, &client.facts, &error))?;
        let status = response.status();
        let body = Limited::new(response.into_body(), HANDSHAKE_BYTES_MAX).collect().await;
        let bytes = body.map_err(|error| broken(address, &client.facts, &*error))?.to_bytes();
        if status == ANSWERED { Ok(bytes) } else { Err(not_understood(address)) }
    };
    let mut answer = pin!(answer);
    // A peer that refuses ends the connection, which may be noticed before its answer is read.
    let mut is_ended = false;
    let bytes: Bytes = tokio::select! {
        answer = &mut answer => answer?,
        _ = &mut client.connection => {
            is_ended = true;
            answer.await?
        }
    };
    let answer =
        decode_answer(&bytes).map_err(|refusal| DialError::Refused { address: address.clone(), refusal })?;
    if is_ended {
        let closed = io::Error::from(io::ErrorKind::ConnectionReset);
        return Err(broken(address, &client.facts, &closed));
    }
    Ok(answer)
}

fn not_understood(address: &PeerAddress) -> DialError {
    DialError::Refused { address: address.clone(), refusal: BadHandshake::Encoding.into() }
}

//! Tests of connections through proxies: the client that the handler receives, and connections that are
//! closed.

use super::{LONG, PATIENT, read_until, send};
use crate::bind;
use crate::connection::HttpServer;
use crate::pace::PacedRequestBody;
use crate::proxies::TrustedProxies;
use crate::proxy_header::tests::{header_of, local_header};
use crate::tls::Certificate;
use crate::watch::ClientTimeouts;
use crate::{ConnectionListener, Peer};
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use mlgw_common::time::timeout;
use mlgw_config::{Address, IpNetwork, SettingType as _};
use mlgw_objects::memory::RequestMemory;
use rustls::pki_types::ServerName;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

const CLIENT: &str = "192.0.2.7:4711";
/// Name in the certificate.
const NAME: &str = "s3.example";

/// A listener whose handler answers with its client: address, memory account, and whether it is secure.
struct ProxiedListener {
    address: SocketAddr,
    _stop: DropGuard,
}

/// Returns the proxies of this text.
fn trusting(text: &str) -> TrustedProxies {
    TrustedProxies::new(&Vec::<IpNetwork>::from_text(text).unwrap())
}

async fn start(proxies: TrustedProxies) -> ProxiedListener {
    start_with(proxies, PATIENT, None).await
}

async fn start_with(
    proxies: TrustedProxies,
    timeouts: ClientTimeouts,
    certificate: Option<Certificate>,
) -> ProxiedListener {
    let listener = bind("s3.listen", &Address::from_text("127.0.0.1:0").unwrap()).await.unwrap();
    let address = listener.local_addr().unwrap();
    let stop = CancellationToken::new();
    let listener = ConnectionListener {
        listener,
        certificate,
        connections_max: 10,
        makes_room: false,
        probe_slots: None,
        refusals_max: 10,
        server: HttpServer::new(timeouts),
        memory: RequestMemory::new(0, 100, None),
        proxies,
        metrics: None,
        stop: stop.clone(),
        tasks: TaskTracker::new(),
    };
    let handler = |_: Request<PacedRequestBody>, peer: Peer| {
        let text = format!("<{} {} {}>", peer.address, peer.account.address(), peer.is_secure);
        std::future::ready(Response::new(Full::new(Bytes::from(text))))
    };
    tokio::spawn(listener.accept(handler));
    ProxiedListener { address, _stop: stop.drop_guard() }
}

/// Sends a request with these header lines and returns the client that the handler received.
async fn client_of(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), lines: &str) -> String {
    stream.write_all(format!("GET / HTTP/1.1\r\nhost: h\r\n{lines}\r\n").as_bytes()).await.unwrap();
    let (mut got, mut bytes) = (Vec::new(), [0; 1024]);
    loop {
        let text = String::from_utf8_lossy(&got).into_owned();
        if let Some((_, rest)) = text.split_once('<')
            && let Some((client, _)) = rest.split_once('>')
        {
            return client.to_owned();
        }
        match timeout(LONG, stream.read(&mut bytes)).await.unwrap() {
            Ok(0) | Err(_) => return format!("closed after {text:?}"),
            Ok(count) => got.extend_from_slice(&bytes[..count]),
        }
    }
}

/// Opens a connection that begins with these bytes.
async fn connect(server: &ProxiedListener, begin: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.write_all(begin).await.unwrap();
    stream
}

/// Asserts that the connection is closed without an answer.
async fn assert_closed(mut stream: TcpStream, what: &str) {
    let got = timeout(LONG, read_until(&mut stream, "never")).await.unwrap();
    assert_eq!(got, "", "{what}");
}

#[tokio::test]
async fn each_request_through_a_trusted_proxy_has_the_client_that_the_proxy_states() {
    let server = start(trusting("127.0.0.1")).await;
    let mut stream = connect(&server, b"").await;
    let own = stream.local_addr().unwrap();
    for (lines, expected) in [
        ("x-forwarded-for: 192.0.2.7\r\n", "192.0.2.7:0 192.0.2.7 false".to_owned()),
        ("x-forwarded-for: 192.0.2.8\r\n", "192.0.2.8:0 192.0.2.8 false".to_owned()),
        ("", format!("{own} 127.0.0.1 false")),
        ("x-forwarded-for: unknown\r\n", format!("{own} 127.0.0.1 false")),
    ] {
        assert_eq!(client_of(&mut stream, lines).await, expected, "{lines:?}");
    }
}

#[tokio::test]
async fn the_headers_of_a_client_that_is_no_trusted_proxy_have_no_effect() {
    for proxies in [TrustedProxies::default(), trusting("10.0.0.0/8")] {
        let server = start(proxies).await;
        let mut stream = connect(&server, b"").await;
        let own = stream.local_addr().unwrap();
        let lines = "x-forwarded-for: 192.0.2.7\r\n";
        assert_eq!(client_of(&mut stream, lines).await, format!("{own} 127.0.0.1 false"));
    }
}

#[tokio::test]
async fn the_header_of_a_connection_states_its_client() {
    let server = start(trusting("127.0.0.1").with_header()).await;
    let client: SocketAddr = CLIENT.parse().unwrap();
    let mut stream = connect(&server, &header_of(client, b"fields")).await;
    // The client of a connection is no proxy, so its own headers have no effect.
    for lines in ["", "x-forwarded-for: 203.0.113.9\r\n"] {
        assert_eq!(client_of(&mut stream, lines).await, format!("{CLIENT} {} false", client.ip()));
    }
    let mut stream = connect(&server, &local_header()).await;
    let own = stream.local_addr().unwrap();
    assert_eq!(client_of(&mut stream, "").await, format!("{own} 127.0.0.1 false"));
}

#[tokio::test]
async fn the_header_of_a_connection_precedes_tls() {
    let dir = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(vec![NAME.to_owned()]).unwrap();
    let (cert, key) = (dir.path().join("cert.pem"), dir.path().join("key.pem"));
    std::fs::write(&cert, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let certificate = Certificate::load(&cert, &key).unwrap();
    let server = start_with(trusting("127.0.0.1").with_header(), PATIENT, Some(certificate)).await;

    let mut roots = rustls::RootCertStore::empty();
    roots.add(made.cert.der().clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.unwrap().with_root_certificates(roots).with_no_client_auth();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let stream = connect(&server, &header_of(CLIENT.parse().unwrap(), b"")).await;
    let mut stream = connector.connect(ServerName::try_from(NAME).unwrap(), stream).await.unwrap();
    assert_eq!(client_of(&mut stream, "").await, format!("{CLIENT} 192.0.2.7 true"));
}

#[tokio::test]
async fn a_connection_without_a_usable_header_is_closed() {
    let server = start(trusting("127.0.0.1").with_header()).await;
    for begin in [
        "GET / HTTP/1.1\r\nhost: h\r\n\r\n",
        "PROXY TCP4 192.0.2.7 192.0.2.1 4711 9000\r\nGET / HTTP/1.1\r\nhost: h\r\n\r\n",
        "\r\n\r\n\0\r\nQUIT\n\x31\x11\0\x0c0123456789ab",
    ] {
        assert_closed(connect(&server, begin.as_bytes()).await, begin).await;
    }
}

#[tokio::test]
async fn a_header_that_does_not_arrive_closes_the_connection() {
    let timeouts = ClientTimeouts { head: Duration::from_millis(1), ..PATIENT };
    let server = start_with(trusting("127.0.0.1").with_header(), timeouts, None).await;
    let header = header_of(CLIENT.parse().unwrap(), b"");
    for length in [0, 10, header.len() - 1] {
        assert_closed(connect(&server, &header[..length]).await, &format!("{length} bytes")).await;
    }
}

#[tokio::test]
async fn with_headers_of_connections_a_stranger_is_refused() {
    let server = start(trusting("10.0.0.0/8").with_header()).await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    // The connection may be closed before it is written to.
    drop(stream.write_all(&header_of(CLIENT.parse().unwrap(), b"")).await);
    assert_closed(stream, "a stranger").await;
}

#[tokio::test]
async fn a_refused_connection_gets_its_answer_after_the_header() {
    let server = start(trusting("127.0.0.1").with_header()).await;
    let header = header_of(CLIENT.parse().unwrap(), b"");
    let mut open = Vec::new();
    for _ in 0..10 {
        let mut stream = connect(&server, &header).await;
        client_of(&mut stream, "").await;
        open.push(stream);
    }
    let mut refused = connect(&server, &header).await;
    send(&mut refused, "GET / HTTP/1.1\r\nhost: h\r\n\r\n").await;
    let answer = timeout(LONG, read_until(&mut refused, "</Error>")).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
}

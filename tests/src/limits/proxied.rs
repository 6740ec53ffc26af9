//! Clients behind a proxy: the access log has the address that a trusted proxy states, by `X-Forwarded-For`
//! or by the header of a connection. Addresses that other peers state have no effect.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

use http::Method;

use crate::observability::access_log::lines;
use crate::raw::head_text;
use crate::s3::full_body;
use crate::server::{ServerProcess, ServerSetup};

/// Header of the PROXY protocol, version 2, for a client at 192.0.2.7, port 56324.
const PROXY_HEADER: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xc0\0\x02\x07\xc0\0\x02\x01\xdc\x04\x01\xbb";
/// Longest wait for a byte of a response.
const RESPONSE_WAIT_MAX: Duration = Duration::from_secs(30);

/// A server with an access log of all requests.
fn logging(dir: &Path) -> ServerSetup {
    ServerSetup::new(dir.join("mlgw-data")).with("access_log.one_in", 1)
}

/// Sends these bytes and then a signed request for the buckets, on a connection of its own. Returns the whole
/// answer, which is empty if the connection is closed without one.
fn list_buckets(server: &ServerProcess, begin: &[u8], header: Option<&str>) -> String {
    let lines: Vec<_> = header.into_iter().map(|value| ("x-forwarded-for", value.to_owned())).collect();
    let lines = [&lines[..], &[("connection", "close".to_owned())]].concat();
    let request = server.client().request(Method::GET, "/", &lines, full_body(""));
    let mut stream = TcpStream::connect(server.s3).expect("connected");
    stream.set_read_timeout(Some(RESPONSE_WAIT_MAX)).expect("set");
    let mut answer = Vec::new();
    let sent = stream.write_all(&[begin, head_text(&request).as_bytes()].concat());
    // A connection that is closed with unread bytes ends with a reset.
    let _ = sent.and_then(|()| stream.read_to_end(&mut answer));
    String::from_utf8_lossy(&answer).into_owned()
}

fn address(text: &str) -> SocketAddr {
    text.parse().expect("an address")
}

fn assert_listed(answer: &str) {
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

/// Returns the clients of the access log of a server that has stopped.
fn clients(setup: &ServerSetup) -> Vec<SocketAddr> {
    let from = |line: &serde_json::Value| line["from"].as_str().and_then(|from| from.parse().ok());
    lines(&setup.data_dir).iter().map(|line| from(line).expect("an address")).collect()
}

#[test]
fn the_client_of_a_trusted_proxy_is_logged() {
    let dir = tempfile::tempdir().expect("a directory");
    let setup = logging(dir.path()).with("s3.trusted_proxies", "10.0.0.0/8,127.0.0.1");
    let server = setup.start();
    for header in [Some("203.0.113.1, 192.0.2.7, 10.0.0.1"), Some("unknown"), None] {
        assert_listed(&list_buckets(&server, b"", header));
    }
    server.stop();
    let clients = clients(&setup);
    assert_eq!(clients[0], address("192.0.2.7:0"));
    assert_eq!(clients.len(), 3);
    assert!(clients[1..].iter().all(|client| client.ip().is_loopback() && client.port() > 0), "{clients:?}");
}

#[test]
fn the_client_of_any_other_proxy_is_not_logged() {
    let dir = tempfile::tempdir().expect("a directory");
    let setup = logging(dir.path()).with("s3.trusted_proxies", "10.0.0.0/8");
    let server = setup.start();
    assert_listed(&list_buckets(&server, b"", Some("192.0.2.7")));
    server.stop();
    let clients = clients(&setup);
    assert!(clients.len() == 1 && clients[0].ip().is_loopback(), "{clients:?}");
}

#[test]
fn the_client_of_a_connection_with_a_header_is_logged_and_others_are_closed() {
    let dir = tempfile::tempdir().expect("a directory");
    let setup = logging(dir.path()).with("s3.trusted_proxies", "127.0.0.1").with("s3.proxy_protocol", true);
    let server = setup.start();
    assert_listed(&list_buckets(&server, PROXY_HEADER, Some("203.0.113.1")));
    for begin in [&b""[..], b"PROXY TCP4 192.0.2.7 192.0.2.1 56324 443\r\n"] {
        assert_eq!(list_buckets(&server, begin, None), "");
    }
    while !server.log().contains("version 1 of the PROXY protocol is not supported") {
        mlgw_common::time::block_for(Duration::from_millis(2));
    }
    server.stop();
    assert_eq!(clients(&setup), [address("192.0.2.7:56324")]);
}

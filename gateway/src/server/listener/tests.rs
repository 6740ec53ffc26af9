//! Connections against a listener with a handler of its own.

use super::{Door, bind};
use crate::config::{Address, Value as _};
use crate::server::connection::Server;
use crate::server::watch::Patience;
use bytes::Bytes;
use http::Response;
use http_body_util::{BodyExt as _, Full};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

const LONG: Duration = Duration::from_secs(60);
const PATIENT: Patience = Patience { head: LONG, idle: LONG, body: LONG };

struct Running {
    address: SocketAddr,
    stop: CancellationToken,
    tasks: TaskTracker,
    /// A handler of `/wait` goes on when it gets a permit.
    go_on: Arc<Semaphore>,
    accepting: tokio::task::JoinHandle<()>,
}

async fn start(connections_max: usize, patience: Patience) -> Running {
    let listener = bind("s3.listen", &Address::from_text("127.0.0.1:0").unwrap()).await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, tasks, go_on) = (CancellationToken::new(), TaskTracker::new(), Arc::new(Semaphore::new(0)));
    let door = Door {
        listener,
        certificate: None,
        connections_max,
        server: Server::new(patience),
        metrics: None,
        stop: stop.clone(),
        tasks: tasks.clone(),
    };
    let gate = go_on.clone();
    let accepting = tokio::spawn(door.accept(move |request: http::Request<hyper::body::Incoming>, _| {
        let gate = gate.clone();
        async move {
            if request.uri().path() == "/wait" {
                gate.acquire().await.unwrap().forget();
            }
            let read = request.into_body().collect().await.map(http_body_util::Collected::to_bytes);
            Response::new(Full::new(read.unwrap_or_else(|_| Bytes::from_static(b"cut"))))
        }
    }));
    Running { address, stop, tasks, go_on, accepting }
}

async fn send(stream: &mut TcpStream, text: &str) {
    stream.write_all(text.as_bytes()).await.unwrap();
}

/// Reads until the text of an answer has come, or the end.
async fn read_until(stream: &mut TcpStream, end: &str) -> String {
    let mut got = Vec::new();
    let mut bytes = [0; 1024];
    while !String::from_utf8_lossy(&got).contains(end) {
        match stream.read(&mut bytes).await {
            Ok(0) | Err(_) => break,
            Ok(n) => got.extend_from_slice(&bytes[..n]),
        }
    }
    String::from_utf8_lossy(&got).into_owned()
}

#[tokio::test]
async fn the_connection_beyond_the_limit_is_told_to_slow_down_and_closed() {
    let server = start(1, PATIENT).await;
    let mut first = TcpStream::connect(server.address).await.unwrap();
    send(&mut first, "PUT / HTTP/1.1\r\nhost: h\r\ncontent-length: 5\r\n\r\nhello").await;
    assert!(read_until(&mut first, "hello").await.starts_with("HTTP/1.1 200"));
    let mut second = TcpStream::connect(server.address).await.unwrap();
    send(&mut second, "GET / HTTP/1.1\r\nhost: h\r\n\r\n").await;
    second.shutdown().await.unwrap();
    let mut answer = String::new();
    second.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("Retry-After: 1"), "{answer}");
    assert!(answer.contains("<Code>SlowDown</Code>"), "{answer}");
    send(&mut first, "GET / HTTP/1.1\r\nhost: h\r\n\r\n").await;
    assert!(read_until(&mut first, "\r\n\r\n").await.starts_with("HTTP/1.1 200"), "the first one goes on");
}

#[tokio::test]
async fn a_drain_answers_what_is_in_flight_and_takes_nothing_new() {
    let server = start(10, PATIENT).await;
    let mut idle = TcpStream::connect(server.address).await.unwrap();
    let mut busy = TcpStream::connect(server.address).await.unwrap();
    send(&mut busy, "GET /wait HTTP/1.1\r\nhost: h\r\n\r\n").await;
    let mut probe = TcpStream::connect(server.address).await.unwrap();
    send(&mut probe, "GET / HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n").await;
    read_until(&mut probe, "\r\n\r\n").await;
    server.stop.cancel();
    server.accepting.await.unwrap();
    assert!(TcpStream::connect(server.address).await.is_err(), "nothing listens any more");
    assert_eq!(read_until(&mut idle, "never").await, "", "an idle connection is closed");
    server.go_on.add_permits(1);
    assert!(read_until(&mut busy, "\r\n\r\n").await.starts_with("HTTP/1.1 200"));
    server.tasks.close();
    server.tasks.wait().await;
}

#[tokio::test]
async fn a_client_that_is_slow_in_any_way_is_closed() {
    let short = Duration::from_millis(1);
    for (patience, text) in [
        (Patience { idle: short, ..PATIENT }, ""),
        (Patience { head: short, ..PATIENT }, "GET / HT"),
        (Patience { head: short, ..PATIENT }, "PRI * HTTP"),
        (Patience { body: short, ..PATIENT }, "PUT / HTTP/1.1\r\nhost: h\r\ncontent-length: 9\r\n\r\nab"),
    ] {
        let server = start(10, patience).await;
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        send(&mut stream, text).await;
        let got = tokio::time::timeout(LONG, read_until(&mut stream, "never")).await.unwrap();
        assert!(!got.contains("200 OK"), "{text:?}: {got}");
    }
}

#[tokio::test]
async fn continue_is_sent_when_asked_also_for_no_bytes() {
    let server = start(10, PATIENT).await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    for body in ["ok", "", "more"] {
        let length = body.len();
        let head =
            format!("PUT / HTTP/1.1\r\nhost: h\r\nexpect: 100-continue\r\ncontent-length: {length}\r\n\r\n");
        send(&mut stream, &head).await;
        let mut interim = [0; 25];
        stream.read_exact(&mut interim).await.unwrap();
        assert_eq!(&interim, b"HTTP/1.1 100 Continue\r\n\r\n", "{body:?}");
        send(&mut stream, body).await;
        let answer = read_until(&mut stream, &format!("\r\n\r\n{body}")).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{body:?}: {answer}");
    }
}

#[tokio::test]
async fn a_busy_port_is_refused_with_its_setting_and_a_way_out() {
    let server = start(1, PATIENT).await;
    let address = Address { host: "127.0.0.1".into(), port: server.address.port() };
    let refused = bind("admin.listen", &address).await.unwrap_err().to_string();
    assert!(refused.contains("(admin.listen)") && refused.contains("ddress already in use"), "{refused}");
    assert!(refused.ends_with("stop what uses it, or choose another port"), "{refused}");
}

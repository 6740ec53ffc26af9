//! Tests of a listener that many connections occupy, and of admitting others.

use super::{LONG, PATIENT, RequestMemory, Running, read_until, send, start, start_as, start_with};
use mlgw_common::time::timeout;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

const OK: &str = "PUT / HTTP/1.1\r\nhost: h\r\ncontent-length: 2\r\n\r\nok";
/// Bytes of clients that occupy a connection without ever completing a request.
const SILENT: [&str; 5] =
    ["", "\r\n", "GET / HT", "GET / HTTP/1.1\r\nhost: h\r\nx: y\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"];

/// A request that is refused and whose body never arrives.
const HALF: &str = "PUT /refuse HTTP/1.1\r\nhost: h\r\ncontent-length: 9\r\n\r\n";

async fn crowd(server: &Running, count: usize, texts: &[&str]) -> Vec<TcpStream> {
    let mut crowd = Vec::new();
    for number in 0..count {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        drop(stream.write_all(texts[number % texts.len()].as_bytes()).await);
        crowd.push(stream);
    }
    crowd
}

/// Returns the answer to a request on a new connection.
async fn ask(server: &Running) -> String {
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    send(&mut stream, OK).await;
    timeout(LONG, read_until(&mut stream, "\r\n\r\nok")).await.unwrap()
}

#[tokio::test]
async fn connections_without_a_request_never_block_one_with_a_request() {
    let server = start_as(10, PATIENT, RequestMemory::new(0, 100, None), true, 0).await;
    for texts in [&SILENT[..], &[HALF]] {
        let _crowd = crowd(&server, 40, texts).await;
        for _ in 0..3 {
            let answer = ask(&server).await;
            assert!(answer.starts_with("HTTP/1.1 200"), "{texts:?}: {answer}");
        }
    }
}

#[tokio::test]
async fn an_idle_connection_makes_room_where_probes_are_answered() {
    let server = start_as(2, PATIENT, RequestMemory::new(0, 100, None), true, 0).await;
    let mut idle = Vec::new();
    for _ in 0..2 {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        send(&mut stream, OK).await;
        assert!(read_until(&mut stream, "\r\n\r\nok").await.starts_with("HTTP/1.1 200"));
        idle.push(stream);
        // Idle times are compared in milliseconds.
        mlgw_common::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(ask(&server).await.starts_with("HTTP/1.1 200"));
    assert_eq!(
        timeout(LONG, read_until(&mut idle[0], "never")).await.unwrap(),
        "",
        "the older one is closed"
    );
}

#[tokio::test]
async fn a_busy_connection_is_never_closed_for_another_and_a_reserved_slot_is_reported() {
    let server = start_as(1, PATIENT, RequestMemory::new(0, 100, None), true, 1).await;
    let mut busy = TcpStream::connect(server.address).await.unwrap();
    send(&mut busy, "GET /wait HTTP/1.1\r\nhost: h\r\n\r\n").await;
    // A connection is safe once its request is in flight. Before that another one may displace it.
    while server.begun.load(Relaxed) == 0 {
        tokio::task::yield_now().await;
    }
    let mut probe = TcpStream::connect(server.address).await.unwrap();
    send(&mut probe, OK).await;
    let answer = timeout(LONG, read_until(&mut probe, "\r\n\r\nno")).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 403"), "the handler sees that the place is a spare one: {answer}");
    server.go_on.add_permits(1);
    assert!(read_until(&mut busy, "\r\n\r\n").await.starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn incomplete_heads_take_no_slot_from_complete_ones() {
    // There is one active slot.
    let server = start_with(100, PATIENT, RequestMemory::new(0, 1, None)).await;
    let _crowd = crowd(&server, 40, &SILENT).await;
    let answer = ask(&server).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[tokio::test]
async fn an_incomplete_next_head_of_a_connection_returns_its_slot_to_those_that_wait() {
    let server = start_with(100, PATIENT, RequestMemory::new(0, 1, None)).await;
    let mut half = TcpStream::connect(server.address).await.unwrap();
    send(&mut half, OK).await;
    assert!(read_until(&mut half, "\r\n\r\nok").await.starts_with("HTTP/1.1 200"));
    send(&mut half, "PUT / HTTP/1.1\r\nho").await;
    mlgw_common::time::sleep(Duration::from_millis(20)).await;
    let answer = ask(&server).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    send(&mut half, "st: h\r\ncontent-length: 4\r\n\r\nmore").await;
    assert!(
        read_until(&mut half, "\r\n\r\nmore").await.starts_with("HTTP/1.1 200"),
        "the connection continues"
    );
}

#[tokio::test]
async fn a_long_head_in_pieces_is_served() {
    let server = start(10, PATIENT).await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let head =
        format!("PUT / HTTP/1.1\r\nhost: h\r\nx: {}\r\ncontent-length: 2\r\n\r\nok", "y".repeat(40_000));
    for piece in head.as_bytes().chunks(3000) {
        stream.write_all(piece).await.unwrap();
        tokio::task::yield_now().await;
    }
    assert!(timeout(LONG, read_until(&mut stream, "\r\n\r\nok")).await.unwrap().starts_with("HTTP/1.1 200"));
}

//! Messages that match no rule pass unchanged: heads, bodies, interim responses, and the ends of connections.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use bytes::Bytes;
use http::Method;

use super::callers::{TestCaller, raw, raw_get, unchunked};
use super::origin::{TestOrigin, body, chunked, scripted, sized};
use super::{WAIT_MAX, runtime, wait_until};
use crate::proxy::FaultProxy;

/// Lengths around the buffer size, and 0.
const LENGTHS: &[usize] = &[0, 1, 10_007, 131_071, 131_072, 131_073, 3_000_000];

#[test]
fn proxy_passes_answers_of_all_kinds_on_one_connection() {
    let runtime = runtime();
    let origin = TestOrigin::start(&runtime);
    let proxy = FaultProxy::start(origin.addr);
    runtime.block_on(async {
        let mut caller = TestCaller::connect(proxy.addr()).await;
        for length in LENGTHS {
            for kind in ["sized", "chunked"] {
                let path = format!("/{kind}/{length}");
                let answer = caller.get(&path).await.expect("answered");
                assert!(answer.body == body(*length), "{path}");
                assert_eq!(answer.headers.contains_key("content-length"), kind == "sized", "{path}");
                let head = caller.call(Method::HEAD, &path, sized(Bytes::new())).await.expect("answered");
                assert_eq!((head.status.as_u16(), head.body.len()), (200, 0), "{path}");
            }
        }
        assert_eq!(caller.get("/nothing").await.expect("answered").status, 204);
        assert_eq!(caller.get("/sized/9").await.expect("answered").body, body(9));
    });
    let counters = proxy.counters();
    assert_eq!((counters.connections, counters.requests), (1, LENGTHS.len() as u64 * 4 + 2));
    assert_eq!(counters.answer_bytes, 2 * LENGTHS.iter().sum::<usize>() as u64 + 9);
}

#[test]
fn proxy_passes_requests_of_all_kinds_on_one_connection() {
    let runtime = runtime();
    let origin = TestOrigin::start(&runtime);
    let proxy = FaultProxy::start(origin.addr);
    runtime.block_on(async {
        let mut caller = TestCaller::connect(proxy.addr()).await;
        for length in LENGTHS {
            for (kind, body) in [("sized", sized(body(*length))), ("chunked", chunked(&body(*length)))] {
                let answer = caller.call(Method::PUT, &format!("/{kind}"), body).await.expect("answered");
                assert_eq!((answer.status.as_u16(), &*answer.body), (200, &b"taken"[..]));
            }
        }
    });
    let received = origin.received();
    assert_eq!(received.len(), LENGTHS.len() * 2);
    for (two, length) in received.chunks(2).zip(LENGTHS) {
        assert!(two.iter().all(|(_, received)| *received == body(*length)), "{length}");
    }
    let (counters, log) = (proxy.counters(), proxy.log());
    assert_eq!((counters.connections, counters.by_method["PUT"]), (1, log.len() as u64));
    assert!(log.iter().all(|line| line.status == Some(200) && line.rule.is_none()), "{log:?}");
    assert_eq!(log.iter().map(|line| line.request_bytes).sum::<u64>(), counters.request_bytes);
    assert_eq!(counters.request_bytes, 2 * LENGTHS.iter().sum::<usize>() as u64);
}

#[test]
fn proxy_passes_heads_and_framing_byte_for_byte() {
    let request = "PUT /a%2fb//c?x=%20&y HTTP/1.1\r\nHOST:  elsewhere:9 \r\nX-a: 1\r\nx-A:2\r\n\
                   Transfer-Encoding: chunked\r\n\r\n";
    let chunks = "003;ext=1\r\nabc\r\n0\r\nX-Sum: q\r\n\r\n";
    let answer = "HTTP/1.1 200 Fine\r\neTAG:\"x\"\r\nTransfer-Encoding:chunked\r\nConnection: close\r\n\r\n\
                  2;y\r\nok\r\n00\r\nEnd: 1\r\n\r\n";
    let (addr, received) = scripted(answer, false);
    let proxy = FaultProxy::start(addr);
    let got = raw(proxy.addr(), request, chunks.as_bytes());
    assert_eq!([got.head.as_bytes(), &got.body].concat(), answer.as_bytes());
    let sent = received.recv_timeout(WAIT_MAX).expect("the connection to the origin is closed too");
    assert_eq!(String::from_utf8_lossy(&sent), format!("{request}{chunks}"));
    let line = &proxy.log()[0];
    assert_eq!((line.request_bytes, line.answer_bytes, &*line.target), (3, 2, "/a%2fb//c?x=%20&y"));
}

#[test]
fn proxy_passes_an_answer_that_ends_with_its_connection() {
    let (addr, _) = scripted("HTTP/1.0 200 OK\r\nServer: old\r\n\r\nall there is", true);
    let proxy = FaultProxy::start(addr);
    assert_eq!(raw_get(proxy.addr(), "/").body, b"all there is");
    let (addr, _) = scripted("HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\nnot all there is", true);
    proxy.set_origin(addr);
    assert_eq!(raw_get(proxy.addr(), "/").body, b"not all there is");
    assert_eq!(proxy.counters().in_flight, 0);
}

/// The body is sent only after 100 Continue, which comes from the origin.
#[test]
fn proxy_passes_100_continue() {
    let runtime = runtime();
    let origin = TestOrigin::start(&runtime);
    let proxy = FaultProxy::start(origin.addr);
    let mut stream = TcpStream::connect(proxy.addr()).expect("connected");
    stream.set_read_timeout(Some(WAIT_MAX)).expect("set");
    for _ in 0..2 {
        let head = "PUT /k HTTP/1.1\r\nhost: o\r\nexpect: 100-continue\r\ncontent-length: 5\r\n\r\n";
        stream.write_all(head.as_bytes()).expect("sent");
        let mut leave = [0; 25];
        stream.read_exact(&mut leave).expect("leave");
        assert_eq!(&leave, b"HTTP/1.1 100 Continue\r\n\r\n");
        stream.write_all(b"hello").expect("sent");
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\ntaken") {
            let mut byte = [0];
            stream.read_exact(&mut byte).expect("an answer");
            answer.extend_from_slice(&byte);
        }
        assert!(answer.starts_with(b"HTTP/1.1 200 "));
    }
    assert_eq!(origin.received(), vec![("/k".to_owned(), Bytes::from("hello")); 2]);
}

#[test]
fn proxy_passes_a_refusal_sent_before_the_body() {
    let answer = "HTTP/1.1 403 Forbidden\r\ncontent-length: 2\r\nconnection: close\r\n\r\nno";
    for expect in ["", "expect: 100-continue\r\n"] {
        let (addr, _) = scripted(answer, true);
        let proxy = FaultProxy::start(addr);
        // No byte of the body follows: the response comes first, and then the end of the connection.
        let head = format!("PUT /k HTTP/1.1\r\nhost: o\r\n{expect}content-length: 5\r\n\r\n");
        let mut stream = TcpStream::connect(proxy.addr()).expect("connected");
        stream.set_read_timeout(Some(WAIT_MAX)).expect("set");
        stream.write_all(head.as_bytes()).expect("sent");
        let mut got = String::new();
        stream.read_to_string(&mut got).expect("an answer and the end");
        assert_eq!(got, answer);
        assert_eq!(proxy.log()[0].status, Some(403));
    }
}

#[test]
fn proxy_passes_the_rest_of_a_body_that_was_answered_early() {
    let (addr, received) = scripted("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok", false);
    let proxy = FaultProxy::start(addr);
    let mut stream = TcpStream::connect(proxy.addr()).expect("connected");
    stream.set_read_timeout(Some(WAIT_MAX)).expect("set");
    stream.write_all(b"PUT /k HTTP/1.1\r\ncontent-length: 8\r\n\r\nfour").expect("sent");
    let mut answer = [0; 40];
    stream.read_exact(&mut answer).expect("an answer");
    assert!(answer.ends_with(b"ok"), "{}", String::from_utf8_lossy(&answer));
    stream.write_all(b"more").expect("sent");
    drop(stream);
    let sent = received.recv_timeout(WAIT_MAX).expect("closed");
    assert!(sent.ends_with(b"\r\n\r\nfourmore"), "{}", String::from_utf8_lossy(&sent));
    assert_eq!(proxy.log()[0].request_bytes, 8);
}

#[test]
fn proxy_closes_one_side_when_the_other_closes() {
    let runtime = runtime();
    let origin = TestOrigin::start(&runtime);
    let proxy = FaultProxy::start(origin.addr);
    runtime.block_on(async {
        // A client that waits for a response, and one in the middle of a body.
        let waiting = TcpStream::connect(proxy.addr()).expect("connected");
        (&waiting).write_all(b"GET /held HTTP/1.1\r\nhost: o\r\n\r\n").expect("sent");
        let sending = TcpStream::connect(proxy.addr()).expect("connected");
        (&sending).write_all(b"PUT /k HTTP/1.1\r\ncontent-length: 9\r\n\r\nfour").expect("sent");
        wait_until("both requests are in progress", || origin.requests_in_progress() == 2).await;
        drop((waiting, sending));
        wait_until("both requests are aborted", || {
            origin.requests_in_progress() == 0 && proxy.counters().in_flight == 0
        })
        .await;
        assert_eq!((origin.broken_bodies(), origin.received().len()), (1, 0));
    });
    // An origin that closes an idle connection.
    let (addr, _) = scripted("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok", true);
    proxy.set_origin(addr);
    let got = raw(proxy.addr(), "GET / HTTP/1.1\r\nhost: o\r\n\r\n", b"");
    assert_eq!((got.status(), &*got.body), (200, &b"ok"[..]));
}

#[test]
fn proxy_without_an_origin_closes() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let addr = port.local_addr().expect("bound");
    drop(port);
    let proxy = FaultProxy::start(addr);
    let got = raw_get(proxy.addr(), "/");
    assert_eq!((&*got.head, got.body.len()), ("", 0));
    assert_eq!(proxy.log()[0].status, None);
}

#[test]
fn proxy_closes_all_connections_when_dropped() {
    let runtime = runtime();
    let origin = TestOrigin::start(&runtime);
    let proxy = FaultProxy::start(origin.addr);
    let addr = proxy.addr();
    runtime.block_on(async {
        let mut caller = TestCaller::connect(addr).await;
        caller.get("/chunked/20000").await.expect("answered");
        let held = tokio::spawn(async move { caller.get("/held").await });
        wait_until("held", || origin.requests_in_progress() == 1).await;
        drop(proxy);
        held.await.expect("no panic").expect_err("closed");
        wait_until("given up", || origin.requests_in_progress() == 0).await;
    });
    TcpStream::connect(addr).expect_err("the port is closed");
}

#[test]
fn proxy_passes_chunks_unchanged() {
    let runtime = runtime();
    let origin = TestOrigin::start(&runtime);
    let proxy = FaultProxy::start(origin.addr);
    let (direct, passed) = (raw_get(origin.addr, "/chunked/30000"), raw_get(proxy.addr(), "/chunked/30000"));
    assert_eq!(direct.body, passed.body);
    assert_eq!(unchunked(&passed.body), body(30_000));
}

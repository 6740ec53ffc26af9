//! Each fault has exactly its effect, to the byte; the client's input is read by hand.

use mlgw_common::time::Instant;
use std::net::TcpStream;
use std::time::Duration;

use bytes::Bytes;
use http::Method;
use tokio::runtime::Runtime;

use super::callers::{TestCaller, raw, raw_get, raw_put, unchunked};
use super::origin::{TestOrigin, body, scripted, sized};
use super::{runtime, wait_until};
use crate::proxy::{Fault, FaultProxy, Rule};

/// More than a buffer, with positions in the first buffer and in later ones.
const LENGTH: usize = 300_000;
const PLACES: &[u64] = &[0, 1, 5_000, 200_001, 299_999];

fn started() -> (Runtime, TestOrigin, FaultProxy) {
    let runtime = runtime();
    let origin = TestOrigin::start(&runtime);
    let proxy = FaultProxy::start(origin.addr);
    (runtime, origin, proxy)
}

fn set(proxy: &FaultProxy, fault: Fault) {
    proxy.set_rules(vec![Rule::new(fault)]);
}

#[test]
fn proxy_answers_with_a_status_itself_and_keeps_the_connection() {
    let (runtime, origin, proxy) = started();
    set(&proxy, Fault::Status { status: 503, code: "SlowDown".to_owned() });
    runtime.block_on(async {
        let mut caller = TestCaller::connect(proxy.addr()).await;
        for _ in 0..2 {
            let put = caller.call(Method::PUT, "/k", sized(body(LENGTH))).await.expect("answered");
            assert_eq!(put.status, 503);
            assert!(String::from_utf8_lossy(&put.body).contains("<Error><Code>SlowDown</Code>"));
            let head = caller.call(Method::HEAD, "/k", sized(Bytes::new())).await.expect("answered");
            assert_eq!((head.status.as_u16(), head.body.len()), (503, 0));
        }
        proxy.set_rules(Vec::new());
        assert_eq!(caller.get("/sized/4").await.expect("answered").body, body(4));
    });
    assert_eq!((origin.request_count(), proxy.counters().connections), (1, 1));
    let log = proxy.log();
    assert_eq!((log[0].status, log[0].rule, log[0].request_bytes), (Some(503), Some(0), LENGTH as u64));
    assert_eq!(proxy.counters().faults, 4);
}

#[test]
fn proxy_refuses_a_request_that_expects_100_continue_before_its_body() {
    let (_runtime, origin, proxy) = started();
    set(&proxy, Fault::Status { status: 429, code: "TooMany".to_owned() });
    let head = "PUT /k HTTP/1.1\r\nexpect: 100-continue\r\ncontent-length: 9\r\n\r\n";
    let got = raw(proxy.addr(), head, b"");
    assert!(got.status() == 429 && got.has("connection: close"), "{got:?}");
    assert_eq!(origin.request_count(), 0);
}

#[test]
fn proxy_delays_a_request() {
    let (_runtime, _origin, proxy) = started();
    set(&proxy, Fault::Delay { by: Duration::from_millis(50) });
    let begun = Instant::now();
    assert_eq!(raw_get(proxy.addr(), "/sized/4").body, body(4));
    assert!(begun.elapsed() >= Duration::from_millis(50));
}

#[test]
fn proxy_closes_the_client_connection_after_the_request_took_effect() {
    let (_runtime, origin, proxy) = started();
    set(&proxy, Fault::CutBeforeAnswer);
    let got = raw_put(proxy.addr(), "/k", &body(LENGTH));
    assert_eq!((&*got.head, got.body.len()), ("", 0));
    assert_eq!(origin.received(), [("/k".to_owned(), body(LENGTH))]);
    let line = &proxy.log()[0];
    assert_eq!((line.status, line.request_bytes, line.answer_bytes), (None, LENGTH as u64, 0));
    assert_eq!(raw_get(proxy.addr(), "/chunked/30000").head, "");
}

#[test]
fn proxy_cuts_a_request_after_a_number_of_bytes() {
    for after in PLACES {
        let (runtime, origin, proxy) = started();
        set(&proxy, Fault::CutRequest { after: *after });
        assert_eq!(raw_put(proxy.addr(), "/k", &body(LENGTH)).head, "");
        runtime.block_on(wait_until("broken", || origin.broken_bodies() == 1));
        assert_eq!((origin.received().len(), proxy.log()[0].request_bytes), (0, *after));
        assert_eq!(raw_put(proxy.addr(), "/k", b"").status() == 200, *after > 0, "a shorter body passes");
    }
}

#[test]
fn proxy_passes_exactly_the_bytes_before_the_cut_of_a_request() {
    let (addr, received) = scripted("", false);
    let proxy = FaultProxy::start(addr);
    set(&proxy, Fault::CutRequest { after: 4 });
    let head = "PUT /k HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n";
    raw(proxy.addr(), head, b"3\r\nabc\r\n3\r\ndef\r\n0\r\n\r\n");
    let sent = received.recv_timeout(super::WAIT_MAX).expect("closed");
    assert_eq!(String::from_utf8_lossy(&sent), format!("{head}3\r\nabc\r\n3\r\nd"));
}

#[test]
fn proxy_cuts_an_answer_after_a_number_of_bytes() {
    let (_runtime, _origin, proxy) = started();
    for after in PLACES {
        set(&proxy, Fault::CutAnswer { after: *after });
        let got = raw_get(proxy.addr(), "/sized/300000");
        assert!(got.status() == 200 && got.has("content-length: 300000"), "{}", got.head);
        assert!(got.body == body(LENGTH)[..usize::try_from(*after).unwrap()], "{after}: {}", got.body.len());
        proxy.clear_log();
        let got = raw_get(proxy.addr(), "/chunked/300000");
        assert!(!got.body.ends_with(b"\r\n0\r\n\r\n"), "the last chunk is missing");
        assert_eq!(proxy.log()[0].answer_bytes, *after);
    }
    assert!(raw_get(proxy.addr(), "/sized/299998").body == body(LENGTH - 2), "a shorter body passes");
}

#[test]
fn proxy_truncates_an_answer_with_consistent_framing() {
    let (runtime, _origin, proxy) = started();
    runtime.block_on(async {
        let mut caller = TestCaller::connect(proxy.addr()).await;
        for after in PLACES {
            set(&proxy, Fault::Truncate { after: *after });
            let wanted = body(LENGTH).slice(..usize::try_from(*after).unwrap());
            let answer = caller.get("/sized/300000").await.expect("a whole answer");
            assert_eq!(answer.headers["content-length"], after.to_string());
            assert!(answer.body == wanted, "{after}");
            let answer = caller.get("/chunked/300000").await.expect("a whole answer");
            assert!(answer.body == wanted, "{after}, chunked");
        }
        for shorter in ["/sized/299998", "/chunked/299998"] {
            assert!(caller.get(shorter).await.expect("answered").body == body(LENGTH - 2), "{shorter}");
        }
        let head = caller.call(Method::HEAD, "/sized/300000", sized(Bytes::new())).await.expect("answered");
        assert_eq!(head.headers["content-length"], "300000");
    });
    assert_eq!(proxy.counters().connections, 1);
    let (addr, _) = scripted("HTTP/1.0 200 OK\r\n\r\nall there is", true);
    proxy.set_origin(addr);
    set(&proxy, Fault::Truncate { after: 3 });
    assert_eq!(raw_get(proxy.addr(), "/").body, b"all");
}

#[test]
fn proxy_flips_one_bit() {
    let (_runtime, _origin, proxy) = started();
    for at in PLACES {
        set(&proxy, Fault::Corrupt { at: *at });
        let mut wanted = body(LENGTH).to_vec();
        wanted[usize::try_from(*at).unwrap()] ^= 1;
        assert!(raw_get(proxy.addr(), "/sized/300000").body == wanted, "{at}");
        assert!(unchunked(&raw_get(proxy.addr(), "/chunked/300000").body) == wanted, "{at}, chunked");
    }
    assert!(raw_get(proxy.addr(), "/sized/299999").body == body(LENGTH - 1), "a shorter body passes");
}

#[test]
fn proxy_replaces_a_header_of_an_answer() {
    let fault = Fault::Header { name: "ETag".to_owned(), value: "\"false\"".to_owned() };
    let (_runtime, origin, proxy) = started();
    set(&proxy, fault);
    let (direct, got) = (raw_get(origin.addr, "/sized/4"), raw_get(proxy.addr(), "/sized/4"));
    let without_date =
        |head: &str| head.lines().filter(|line| !line.starts_with("date")).collect::<Vec<_>>().join("\n");
    let changed = without_date(&direct.head).replace("etag: \"true\"", "etag: \"false\"");
    assert_eq!((without_date(&got.head), got.body), (changed, body(4).to_vec()));
}

#[test]
fn proxy_stalls_in_the_middle_of_an_answer() {
    let pause = Duration::from_millis(60);
    let (_runtime, _origin, proxy) = started();
    for after in PLACES {
        set(&proxy, Fault::Stall { after: *after, pause });
        let begun = Instant::now();
        assert!(raw_get(proxy.addr(), "/sized/300000").body == body(LENGTH), "{after}");
        assert!(begun.elapsed() >= pause);
    }
    set(&proxy, Fault::Stall { after: 7, pause: Duration::from_secs(3600) });
    let (mut stream, mut got) = (TcpStream::connect(proxy.addr()).unwrap(), Vec::new());
    std::io::Write::write_all(&mut stream, b"GET /sized/300000 HTTP/1.1\r\n\r\n").unwrap();
    while !got.ends_with(&body(LENGTH)[..7]) {
        let mut byte = [0];
        std::io::Read::read_exact(&mut stream, &mut byte).unwrap();
        got.push(byte[0]);
    }
    assert_eq!((proxy.counters().in_flight, proxy.log().last().unwrap().answer_bytes), (1, 7));
}

#[test]
fn proxy_refuses_connections_and_requests() {
    let (_runtime, origin, proxy) = started();
    set(&proxy, Fault::Refuse);
    // Not even a request is needed.
    assert_eq!(raw(proxy.addr(), "", b"").head, "");
    assert_eq!((proxy.counters().refused, proxy.counters().requests), (1, 0));
    proxy.set_rules(vec![Rule::new(Fault::Refuse).method("PUT").times(1)]);
    assert_eq!(raw_put(proxy.addr(), "/k", b"body").head, "");
    assert_eq!(origin.request_count(), 0);
    assert_eq!(raw_put(proxy.addr(), "/k", b"body").status(), 200);
    let log = proxy.log();
    assert_eq!((log[0].status, log[0].rule, log[1].rule), (None, Some(0), None));
}

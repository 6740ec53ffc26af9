//! Counters are exact when a client has its response, and the control port has the same effects as the
//! methods.

use std::net::SocketAddr;

use futures_util::future::join_all;
use http::Method;
use serde_json::{Value, json};

use super::callers::{TestCaller, raw, raw_get, raw_put};
use super::origin::{TestOrigin, body};
use super::{runtime, wait_until};
use crate::proxy::{FaultProxy, LogLine, TrafficShape};

fn call_control(control: SocketAddr, method: Method, path: &str, document: &Value) -> (u16, String) {
    let document = if document.is_null() { String::new() } else { document.to_string() };
    let length = document.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: c\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n"
    );
    let got = raw(control, &head, document.as_bytes());
    (got.status(), String::from_utf8(got.body).expect("text"))
}

#[test]
fn proxy_counts_requests_in_flight_exactly() {
    let runtime = runtime();
    let origin = TestOrigin::start(&runtime);
    let proxy = FaultProxy::start(origin.addr);
    let addr = proxy.addr();
    runtime.block_on(async {
        let get = |_| async move { TestCaller::connect(addr).await.get("/held").await.expect("answered") };
        let all = tokio::spawn(join_all((0..3).map(get)));
        wait_until("all requests have arrived", || origin.requests_in_progress() == 3).await;
        assert_eq!((proxy.counters().in_flight, proxy.counters().in_flight_max), (3, 3));
        origin.release_held(3);
        all.await.expect("no panic");
        assert_eq!((proxy.counters().in_flight, proxy.counters().in_flight_max), (0, 3));
        proxy.clear_log();
        let mut caller = TestCaller::connect(addr).await;
        for round in 1..=200 {
            caller.get(if round % 2 == 0 { "/chunked/70000" } else { "/nothing" }).await.expect("answered");
            assert_eq!((proxy.counters().requests, proxy.counters().in_flight), (round, 0));
        }
        assert_eq!(proxy.counters().in_flight_max, 1);
    });
}

#[test]
fn proxy_logs_each_request() {
    let runtime = runtime();
    let proxy = FaultProxy::start(TestOrigin::start(&runtime).addr);
    let head =
        "GET /sized/10?a=b HTTP/1.1\r\nRange: bytes=0-9\r\nif-match: \"e\"\r\nconnection: close\r\n\r\n";
    raw(proxy.addr(), head, b"");
    raw_put(proxy.addr(), "/k", b"body");
    let get = LogLine {
        method: "GET".to_owned(),
        target: "/sized/10?a=b".to_owned(),
        range: Some("bytes=0-9".to_owned()),
        if_match: Some("\"e\"".to_owned()),
        status: Some(200),
        answer_bytes: 10,
        ..LogLine::default()
    };
    let put = LogLine {
        method: "PUT".to_owned(),
        target: "/k".to_owned(),
        status: Some(200),
        request_bytes: 4,
        answer_bytes: 5,
        ..LogLine::default()
    };
    assert_eq!(proxy.log(), [get, put]);
}

#[test]
fn proxy_obeys_its_control_port() {
    let runtime = runtime();
    let proxy = FaultProxy::start(TestOrigin::start(&runtime).addr);
    let control = proxy.control_at("127.0.0.1:0".parse().unwrap()).expect("a port");
    let rules = json!([
        {"method": "GET", "times": 1, "fault": {"cut_answer": {"after": 3}}},
        {"fault": "refuse", "nth": 9}
    ]);
    assert_eq!(call_control(control, Method::POST, "/rules", &rules), (200, String::new()));
    assert_eq!(raw_get(proxy.addr(), "/sized/10").body, body(10)[..3]);
    assert_eq!(raw_get(proxy.addr(), "/sized/10").body, body(10));
    let (status, counters) = call_control(control, Method::GET, "/counters", &Value::Null);
    let counters: Value = serde_json::from_str(&counters).expect("JSON");
    assert_eq!((status, &counters["by_method"], &counters["faults"]), (200, &json!({"GET": 2}), &json!(1)));
    assert_eq!((&counters["answer_bytes"], &counters["in_flight"]), (&json!(13), &json!(0)));
    let (_, log) = call_control(control, Method::GET, "/log", &Value::Null);
    let log: Value = serde_json::from_str(&log).expect("JSON");
    assert_eq!(
        (&log[0]["rule"], &log[1]["rule"], &log[1]["target"]),
        (&json!(0), &json!(null), &json!("/sized/10"))
    );
    assert_eq!(call_control(control, Method::POST, "/clear", &Value::Null).0, 200);
    assert_eq!((proxy.counters().requests, proxy.log().len()), (0, 0));
}

#[test]
fn proxy_changes_only_the_given_fields_of_its_shape() {
    let proxy = FaultProxy::start("127.0.0.1:1".parse().unwrap());
    let control = proxy.control_at("127.0.0.1:0".parse().unwrap()).expect("a port");
    let shape = |document| {
        let (status, _) = call_control(control, Method::POST, "/shape", &document);
        (status, proxy.shared.shaper.shape())
    };
    let delay = std::time::Duration::from_millis(20);
    let first = TrafficShape { delay, connection_rate: 60_000_000, total_rate: 7 };
    assert_eq!(shape(json!({"delay": "20ms", "connection_rate": "60MB", "total_rate": 7})), (200, first));
    let second = TrafficShape { total_rate: 0, ..first };
    assert_eq!(shape(json!({"total_rate": "0"})), (200, second));
    for wrong in [json!({"delay": "20"}), json!({"rate": 1}), json!({"total_rate": "fast"}), json!(3)] {
        assert_eq!(shape(wrong.clone()), (400, second), "{wrong}");
    }
    for wrong in [json!([{"fault": "nothing"}]), json!([{"fault": "refuse", "nth": 0}]), json!({})] {
        assert_eq!(call_control(control, Method::POST, "/rules", &wrong).0, 400, "{wrong}");
    }
    assert_eq!(call_control(control, Method::GET, "/elsewhere", &Value::Null).0, 404);
}

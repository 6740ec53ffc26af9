//! Tests of delay and rates. Nothing ever passes faster than allowed, which holds on a busy machine too; the
//! bound on slowness is generous.

use mlgw_common::time::Instant;
use std::time::Duration;

use futures_util::future::join_all;
use http::Method;

use super::callers::{TestCaller, raw_get};
use super::origin::{TestOrigin, body, sized};
use super::{WAIT_MAX, runtime, wait_until};
use crate::proxy::{FaultProxy, TrafficShape};

const LENGTH: usize = 1_000_000;
const RATE: u64 = 5_000_000;
/// Duration of a body of that length at that rate, less the idle time for which a line compensates.
const AT_LEAST: Duration = Duration::from_millis(190);
const AT_MOST: Duration = Duration::from_secs(30);

#[test]
fn proxy_delays_every_request() {
    let runtime = runtime();
    let proxy = FaultProxy::start(TestOrigin::start(&runtime).addr);
    let delay = Duration::from_millis(20);
    proxy.set_shape(TrafficShape { delay, ..TrafficShape::default() });
    runtime.block_on(async {
        let mut caller = TestCaller::connect(proxy.addr()).await;
        let begun = Instant::now();
        for _ in 0..5 {
            caller.get("/sized/4").await.expect("answered");
        }
        assert!(begun.elapsed() >= 5 * delay);
    });
}

#[test]
fn proxy_holds_the_rate_of_a_connection_both_ways() {
    let runtime = runtime();
    let proxy = FaultProxy::start(TestOrigin::start(&runtime).addr);
    proxy.set_shape(TrafficShape { connection_rate: RATE, ..TrafficShape::default() });
    runtime.block_on(async {
        let mut caller = TestCaller::connect(proxy.addr()).await;
        for path in ["/sized/1000000", "/chunked/1000000"] {
            let begun = Instant::now();
            assert!(caller.get(path).await.expect("answered").body == body(LENGTH), "{path}");
            assert!((AT_LEAST..AT_MOST).contains(&begun.elapsed()), "{path}: {:?}", begun.elapsed());
        }
        let begun = Instant::now();
        caller.call(Method::PUT, "/k", sized(body(LENGTH))).await.expect("answered");
        assert!((AT_LEAST..AT_MOST).contains(&begun.elapsed()), "PUT: {:?}", begun.elapsed());
    });
}

#[test]
fn proxy_shares_the_total_rate_among_connections() {
    let runtime = runtime();
    let proxy = FaultProxy::start(TestOrigin::start(&runtime).addr);
    proxy.set_shape(TrafficShape { total_rate: RATE, ..TrafficShape::default() });
    let addr = proxy.addr();
    let took = runtime.block_on(async {
        // A caller that connected late would leave the others more than their share.
        let callers = join_all((0..4).map(|_| TestCaller::connect(addr))).await;
        let begun = Instant::now();
        let get = |mut caller: TestCaller| async move {
            assert!(caller.get("/sized/250000").await.expect("answered").body == body(LENGTH / 4));
            begun.elapsed()
        };
        join_all(callers.into_iter().map(get)).await
    });
    let (first, last) = (*took.iter().min().expect("four"), *took.iter().max().expect("four"));
    assert!((AT_LEAST..AT_MOST).contains(&last), "{last:?}");
    // One after another, the bodies would take a quarter, a half, ... of the time.
    assert!(first > AT_LEAST / 2, "the others get a share from the start: {took:?}");
}

#[test]
fn proxy_passes_an_even_stream() {
    let runtime = runtime();
    let proxy = FaultProxy::start(TestOrigin::start(&runtime).addr);
    proxy.set_shape(TrafficShape { connection_rate: RATE, ..TrafficShape::default() });
    let addr = proxy.addr();
    runtime.block_on(async {
        let begun = Instant::now();
        let getting = tokio::task::spawn_blocking(move || raw_get(addr, "/sized/1000000"));
        while !getting.is_finished() {
            // A piece is counted when it is due: never more than the rate, its credit and the piece.
            let passed = proxy.counters().answer_bytes;
            let due = begun.elapsed().as_micros() as u64 * RATE / 1_000_000;
            assert!(passed <= due + 2 * RATE / 100, "{passed} bytes instead of {due}");
            mlgw_common::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(getting.await.expect("no panic").body.len(), LENGTH);
    });
}

#[test]
fn proxy_takes_another_shape_in_the_middle_of_a_body() {
    let runtime = runtime();
    let proxy = FaultProxy::start(TestOrigin::start(&runtime).addr);
    // 1,000 seconds, which the test does not wait for.
    proxy.set_shape(TrafficShape { connection_rate: 1_000, ..TrafficShape::default() });
    let addr = proxy.addr();
    runtime.block_on(async {
        let getting = tokio::task::spawn_blocking(move || raw_get(addr, "/sized/1000000"));
        wait_until("begun", || proxy.counters().answer_bytes > 0).await;
        proxy.set_shape(TrafficShape::default());
        let got = mlgw_common::time::timeout(WAIT_MAX, getting).await.expect("in time").expect("no panic");
        assert!(got.body == body(LENGTH));
    });
}

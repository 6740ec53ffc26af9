//! Tests of the counters that a request updates, and of the cost of updating them.

use super::observe_response;
use crate::response::{ResponseBody, S3Response, empty};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::StatusCode;
use http::request::Parts;
use mlgw_common::time::Instant;
use mlgw_objects::ResourceShortage;
use mlgw_telemetry::{GatewayMetrics, exposition};
use mlgw_wire::operation::Operation;
use std::sync::Arc;

fn head() -> Parts {
    let request = http::Request::put("/b/k?X-Amz-Signature=secret").header("content-length", "12");
    request.body(()).unwrap().into_parts().0
}

fn text(metrics: &GatewayMetrics) -> String {
    exposition::text(metrics.families()).unwrap()
}

fn answer(metrics: &Arc<GatewayMetrics>, operation: Operation, mut response: S3Response) -> S3Response {
    let mut observed = metrics.begin();
    observed.operation = operation;
    observe_response(observed, &head(), &mut response);
    response
}

#[test]
fn an_answer_is_counted_by_operation_and_status() {
    let metrics = Arc::new(GatewayMetrics::new(0));
    answer(&metrics, Operation::PutObject, empty(StatusCode::OK));
    answer(&metrics, Operation::PutObject, empty(StatusCode::IM_A_TEAPOT));
    answer(&metrics, Operation::HeadObject, empty(StatusCode::INTERNAL_SERVER_ERROR));
    answer(&metrics, Operation::HeadObject, empty(StatusCode::SERVICE_UNAVAILABLE));
    answer(&metrics, Operation::CreateBucket, empty(StatusCode::NOT_IMPLEMENTED));
    let text = text(&metrics);
    for line in [
        "mlgw_requests_total{op=\"PutObject\",status=\"200\"} 1",
        "mlgw_requests_total{op=\"PutObject\",status=\"other\"} 1",
        "mlgw_requests_total{op=\"CreateBucket\",status=\"501\"} 1",
        "mlgw_request_errors_total 1",
        "mlgw_request_bytes_total{op=\"PutObject\",direction=\"in\"} 24",
        "mlgw_request_duration_seconds_count{op=\"PutObject\"} 2",
        "mlgw_first_byte_seconds_count{op=\"PutObject\",tier=\"none\"} 2",
        "mlgw_inflight_requests 0",
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
    assert!(!text.contains("DeleteObject"), "operations without requests are omitted");
}

#[tokio::test]
async fn a_stream_counts_at_its_last_byte() {
    let metrics = Arc::new(GatewayMetrics::new(0));
    let pieces = stream::iter([Ok(Bytes::from_static(b"ab")), Ok(Bytes::from_static(b"c"))]);
    let mut response = empty(StatusCode::PARTIAL_CONTENT);
    *response.body_mut() = ResponseBody::sized(3, pieces);
    let response = answer(&metrics, Operation::GetObject, response);
    assert_eq!(metrics.inflight_requests(), 1);
    let ResponseBody::Sized { left_bytes: 3, mut stream } = response.into_body() else { panic!("a stream") };
    while stream.next().await.is_some() {}
    drop(stream);
    let text = text(&metrics);
    assert!(text.contains("mlgw_requests_total{op=\"GetObject\",status=\"206\"} 1"), "{text}");
    assert!(text.contains("mlgw_request_bytes_total{op=\"GetObject\",direction=\"out\"} 3"), "{text}");
    assert_eq!(metrics.inflight_requests(), 0);
}

#[tokio::test]
async fn a_client_that_disconnects_counts_as_499() {
    let metrics = Arc::new(GatewayMetrics::new(0));
    drop(metrics.begin());
    let mut response = empty(StatusCode::OK);
    *response.body_mut() = ResponseBody::sized(9, stream::pending());
    drop(answer(&metrics, Operation::GetObject, response));
    let text = text(&metrics);
    assert!(text.contains("mlgw_requests_total{op=\"GetObject\",status=\"499\"} 1"), "{text}");
    assert!(text.contains("mlgw_requests_total{op=\"Unknown\",status=\"499\"} 1"), "{text}");
    assert_eq!(metrics.inflight_requests(), 0);
}

#[test]
fn shortages_and_connections_are_counted() {
    let metrics = Arc::new(GatewayMetrics::new(0));
    metrics.objects.throttle(ResourceShortage::Memory);
    let connection = metrics.connection();
    assert!(text(&metrics).contains("mlgw_connections 1"));
    drop(connection);
    let text = text(&metrics);
    assert!(text.contains("mlgw_connections 0"));
    assert!(text.contains("mlgw_throttled_total{reason=\"memory\"} 1"));
}

/// Measures the fastest of many passes, so that load on the machine does not fail the test.
#[test]
#[ignore = "measures time; instructions of whole requests are counted in every run"]
fn observing_a_request_costs_less_than_400_ns() {
    const CALLS: u32 = 10_000;
    let metrics = Arc::new(GatewayMetrics::new(1000));
    let head = head();
    let mut response = empty(StatusCode::OK);
    let round = |_| {
        let started = Instant::now();
        for _ in 0..CALLS {
            let mut observed = metrics.begin();
            observed.operation = Operation::GetObject;
            observe_response(observed, &head, &mut response);
        }
        started.elapsed() / CALLS
    };
    let quickest = (0..50).map(round).min().unwrap();
    eprintln!("observing a request costs {quickest:?}, Server-Timing included");
    assert!(quickest.as_nanos() < 400, "{quickest:?}");
}

//! Traces of the shipped binary, received by an OTLP/HTTP collector inside the test.

use mlgw_common::time::Instant;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message as _;
use tokio::net::TcpListener;

use super::{BUCKET, runtime};
use crate::s3::full_body;
use crate::server::ServerSetup;

const TRACE_ID: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT_ID: &str = "b7ad6b7169203331";

/// Spans that the collector received.
#[derive(Clone, Default)]
struct ReceivedSpans(Arc<Mutex<Vec<Span>>>);

impl ReceivedSpans {
    fn spans(&self) -> Vec<Span> {
        self.0.lock().expect("lock is not poisoned").clone()
    }

    /// Receives one batch.
    fn take(&self, path: &str, body: &Bytes) {
        assert_eq!(path, "/v1/traces");
        let request = ExportTraceServiceRequest::decode(body.clone()).expect("OTLP");
        for resource in request.resource_spans {
            let about = resource.resource.expect("a resource").attributes;
            assert_eq!(texts(&about).get("service.name").map(String::as_str), Some("mlgw"));
            let spans = resource.scope_spans.into_iter().flat_map(|scope| scope.spans);
            self.0.lock().expect("lock is not poisoned").extend(spans);
        }
    }
}

fn texts(attributes: &[opentelemetry_proto::tonic::common::v1::KeyValue]) -> BTreeMap<String, String> {
    let text = |attribute: &opentelemetry_proto::tonic::common::v1::KeyValue| {
        let value = attribute.value.as_ref().and_then(|value| value.value.as_ref());
        let value = match value {
            Some(Value::StringValue(text)) => text.clone(),
            Some(Value::IntValue(number)) => number.to_string(),
            other => format!("{other:?}"),
        };
        (attribute.key.clone(), value)
    };
    attributes.iter().map(text).collect()
}

async fn collect(listener: TcpListener, received: ReceivedSpans) {
    loop {
        let Ok((stream, _)) = listener.accept().await else { return };
        let received = received.clone();
        let service = service_fn(move |request: hyper::Request<Incoming>| {
            let received = received.clone();
            async move {
                let path = request.uri().path().to_owned();
                assert_eq!(request.headers()["content-type"], "application/x-protobuf");
                let body = request.into_body().collect().await.expect("whole").to_bytes();
                received.take(&path, &body);
                let answer = ExportTraceServiceResponse::default().encode_to_vec();
                Ok::<_, Infallible>(Response::new(Full::new(Bytes::from(answer))))
            }
        });
        tokio::spawn(
            hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service),
        );
    }
}

/// Returns the names of the stages below a span.
fn stages<'a>(spans: &'a [Span], of: &Span) -> Vec<&'a str> {
    let mut below: Vec<_> = spans.iter().filter(|span| span.parent_span_id == of.span_id).collect();
    below.sort_by_key(|span| span.start_time_unix_nano);
    below.iter().map(|span| span.name.as_str()).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn a_collector_receives_traced_requests_with_their_stages() {
    let received = ReceivedSpans::default();
    let runtime = runtime();
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("a port");
    let endpoint = format!("http://{}/v1/traces", listener.local_addr().expect("bound"));
    runtime.spawn(collect(listener, received.clone()));

    let dir = tempfile::tempdir().expect("a directory");
    let setup = ServerSetup::new(dir.path().join("mlgw-data"))
        .with("traces.endpoint", &endpoint)
        .with("traces.one_in", 0);
    let server = setup.start();
    runtime.block_on(async {
        let client = server.client();
        client.create_bucket(BUCKET).await.expect("made");
        let of_caller = |sampled: &str| [("traceparent", format!("00-{TRACE_ID}-{PARENT_ID}-{sampled}"))];
        let path = format!("/{BUCKET}/key");
        let put = client.call(Method::PUT, &path, &of_caller("01"), full_body("body")).await.expect("stored");
        let timing = put.header("server-timing").expect("a header").to_owned();
        assert!(timing.contains("append;dur=") && timing.contains("commit;dur="), "{timing}");
        client.call(Method::GET, &path, &of_caller("01"), full_body("")).await.expect("read");
        client.call(Method::GET, &path, &of_caller("00"), full_body("")).await.expect("read, not traced");
        client.get(BUCKET, "key").await.expect("read, not traced");
    });
    let begun = Instant::now();
    while received.spans().iter().filter(|span| span.name.ends_with("Object")).count() < 2 {
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}\n{}", received.spans(), server.log());
        mlgw_common::time::block_for(Duration::from_millis(5));
    }
    server.stop();

    let spans = received.spans();
    let requests: Vec<&Span> = spans.iter().filter(|span| hex(&span.parent_span_id) == PARENT_ID).collect();
    let names: Vec<_> = requests.iter().map(|span| span.name.as_str()).collect();
    assert_eq!(names, ["PutObject", "GetObject"], "only those whose callers trace them");
    assert!(spans.iter().all(|span| hex(&span.trace_id) == TRACE_ID), "{spans:?}");
    assert_eq!(stages(&spans, requests[0]), ["authenticate", "append", "commit"]);
    assert_eq!(stages(&spans, requests[1]), ["authenticate", "read"]);
    let about = texts(&requests[0].attributes);
    for (name, value) in [
        ("http.request.method", "PUT"),
        ("http.response.status_code", "200"),
        ("url.path", "/observed/key"),
        ("aws.s3.bucket", BUCKET),
        ("http.request.body.size", "4"),
    ] {
        assert_eq!(about.get(name).map(String::as_str), Some(value), "{about:?}");
    }
    assert!(requests.iter().all(|span| span.end_time_unix_nano >= span.start_time_unix_nano));
}

/// An unreachable collector neither delays responses nor the shutdown of the server.
#[test]
fn an_unreachable_collector_does_not_delay_the_server() {
    let dir = tempfile::tempdir().expect("a directory");
    let setup = ServerSetup::new(dir.path().join("mlgw-data"))
        .with("traces.endpoint", "http://127.0.0.1:1/v1/traces")
        .with("traces.one_in", 1);
    let server = setup.start();
    runtime().block_on(async {
        let client = server.client();
        client.create_bucket(BUCKET).await.expect("made");
        client.put(BUCKET, "key", full_body("body")).await.expect("stored");
        assert_eq!(client.get(BUCKET, "key").await.expect("read").body, "body");
    });
    server.stop();
}

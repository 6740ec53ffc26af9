//! Traces of single requests, exported to an OpenTelemetry collector by OTLP over HTTP.
//!
//! Traces are off without `traces.endpoint`. A request is traced if its `traceparent` header marks the
//! caller's trace as sampled; requests without a valid header are sampled, one in N. The spans are created
//! when the request has ended, from the recorded stages, and enter the exporter's bounded queue. Spans that
//! do not fit are dropped: no request waits for a collector. A power loss loses the queued spans.

use super::request_record::{RequestEnding, RequestNotes};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt as _, Full, Limited};
use mlgw_carrier::{Authorities, Client, ClientSettings, SettingError};
use mlgw_common::limits::TRACE_QUEUE_SPANS;
use mlgw_objects::stages::Stages;
use opentelemetry::propagation::TextMapPropagator as _;
use opentelemetry::trace::Span as _;
use opentelemetry::trace::{
    SpanBuilder, SpanKind, Status, TraceContextExt as _, Tracer as _, TracerProvider as _,
};
use opentelemetry::{Context, KeyValue};
use opentelemetry_http::{HeaderExtractor, HttpClient, HttpError};
use opentelemetry_otlp::{ExporterBuildError, SpanExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, Sampler, SdkTracer, SdkTracerProvider,
};
use std::time::{Duration, UNIX_EPOCH};
use tokio::runtime::Handle;

/// Timeout of the collector for one batch.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for which spans are collected before they are sent.
const BATCH_DELAY: Duration = Duration::from_secs(1);
/// Maximum bytes that are read of a collector's response.
const ANSWER_BYTES_MAX: usize = 64 * 1024;
/// Time for which queued spans are sent when the server stops.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);

/// Time after which an idle connection to the collector is closed.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// An exporter that cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum TracesError {
    /// The endpoint cannot be used.
    #[error(transparent)]
    Endpoint(#[from] ExporterBuildError),
    /// The HTTP client cannot be created.
    #[error(transparent)]
    Client(#[from] SettingError),
}

/// Exporter of traces.
#[derive(Debug)]
pub struct Traces {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
    propagator: TraceContextPropagator,
    one_in: u64,
}

impl Traces {
    /// Starts the export of traces of node `node` to `endpoint`: one request in `one_in` (0: only requests
    /// whose callers trace them). Must be called within a runtime, which sends the batches.
    ///
    /// # Errors
    /// The endpoint is not a URL.
    pub fn start(endpoint: &str, one_in: u64, node: &str) -> Result<Self, TracesError> {
        let http = Client::new(&ClientSettings {
            authorities: Authorities::None,
            proxy: None,
            connect_timeout: SEND_TIMEOUT,
            idle_timeout: IDLE_TIMEOUT,
        })?;
        let exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(OtlpHttpClient { http, runtime: Handle::current() })
            .with_endpoint(endpoint)
            .with_timeout(SEND_TIMEOUT)
            .build()?;
        let config = BatchConfigBuilder::default()
            .with_max_queue_size(TRACE_QUEUE_SPANS)
            .with_scheduled_delay(BATCH_DELAY);
        let batches = BatchSpanProcessor::builder(exporter).with_batch_config(config.build()).build();
        let resource = Resource::builder()
            .with_service_name("mlgw")
            .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
            .with_attribute(KeyValue::new("service.instance.id", node.to_owned()))
            .build();
        let provider = SdkTracerProvider::builder()
            .with_span_processor(batches)
            // Sampling is decided before a request is recorded.
            .with_sampler(Sampler::AlwaysOn)
            .with_resource(resource)
            .build();
        let tracer = provider.tracer("mlgw");
        Ok(Self { provider, tracer, propagator: TraceContextPropagator::new(), one_in })
    }

    /// Returns the parent context of the request with this number and these headers, if it is to be traced.
    pub(super) fn parent_context(&self, number: u64, headers: &HeaderMap) -> Option<Context> {
        let sampled_root = || (self.one_in > 0 && number.is_multiple_of(self.one_in)).then(Context::new);
        if !headers.contains_key("traceparent") {
            return sampled_root();
        }
        let parent = self.propagator.extract_with_context(&Context::new(), &HeaderExtractor(headers));
        let (known, sampled) = {
            let span = parent.span();
            (span.span_context().is_valid(), span.span_context().is_sampled())
        };
        if known { sampled.then_some(parent) } else { sampled_root() }
    }

    /// Creates the spans of a request that has ended.
    pub(super) fn export(
        &self,
        notes: &RequestNotes,
        parent: &Context,
        stages: &Stages,
        ending: &RequestEnding,
    ) {
        let started = UNIX_EPOCH + Duration::from_millis(u64::try_from(notes.time.as_millis()).unwrap_or(0));
        let request = SpanBuilder::from_name(ending.operation.name())
            .with_kind(SpanKind::Server)
            .with_start_time(started)
            .with_attributes(attributes(notes, ending));
        let request = self.tracer.build_with_context(request, parent);
        let context = parent.with_span(request);
        let send = (ending.took > ending.first_byte).then_some(("send", ending.first_byte, ending.took));
        let recorded = stages.all().into_iter().map(|stage| (stage.name, stage.begin, stage.end));
        for (name, begin, end) in recorded.chain(send) {
            let stage = SpanBuilder::from_name(name).with_start_time(started + begin);
            let mut stage = self.tracer.build_with_context(stage, &context);
            stage.end_with_timestamp(started + end);
        }
        let span = context.span();
        if ending.status >= 500 {
            span.set_status(Status::error(ending.status.to_string()));
        }
        span.end_with_timestamp(started + ending.took);
    }

    /// Sends the queued spans and stops the export.
    pub async fn stop(&self) {
        let provider = self.provider.clone();
        let stopped = tokio::task::spawn_blocking(move || provider.shutdown_with_timeout(STOP_TIMEOUT));
        if let Ok(Err(error)) = stopped.await {
            tracing::warn!(%error, "failed to send the last traces");
        }
    }
}

/// Returns the attributes of a request's span, named by OpenTelemetry's semantic conventions where they
/// exist.
fn attributes(notes: &RequestNotes, ending: &RequestEnding) -> Vec<KeyValue> {
    let number = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
    let mut all = vec![
        KeyValue::new("http.request.method", notes.method.clone()),
        KeyValue::new("url.path", notes.path.clone()),
        KeyValue::new("http.response.status_code", i64::from(ending.status)),
        KeyValue::new("http.request.body.size", number(ending.bytes_in)),
        KeyValue::new("http.response.body.size", number(ending.bytes_out)),
        KeyValue::new("client.address", notes.peer.ip().to_string()),
        KeyValue::new("user_agent.original", notes.user_agent.clone()),
        KeyValue::new("aws.request_id", notes.id.clone()),
    ];
    let failure = ending.failure;
    all.extend(failure.map(|failure| KeyValue::new("error.type", failure.code.as_str())));
    let short_of = failure.and_then(|failure| failure.shortage);
    all.extend(short_of.map(|name| KeyValue::new("mlgw.short_of", name)));
    all.extend(notes.bucket.clone().map(|bucket| KeyValue::new("aws.s3.bucket", bucket)));
    all.extend(notes.access_key.clone().map(|key| KeyValue::new("enduser.id", key)));
    all
}

/// Sends batches to the collector. The exporter calls from its own thread, outside of the runtime that the
/// connections need.
#[derive(Debug)]
struct OtlpHttpClient {
    http: Client<Full<Bytes>>,
    runtime: Handle,
}

impl HttpClient for OtlpHttpClient {
    fn send_bytes<'a, 'f>(
        &'a self,
        request: Request<Bytes>,
    ) -> BoxFuture<'f, Result<Response<Bytes>, HttpError>>
    where
        'a: 'f,
        Self: 'f,
    {
        let http = self.http.clone();
        let send = async move {
            let (head, body) = http.send(request.map(Full::new)).await?.into_parts();
            let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await?.to_bytes();
            Ok::<_, HttpError>(Response::from_parts(head, body))
        };
        // The request and its timer are created inside the runtime, because both need it.
        let sent = self.runtime.spawn(async move { mlgw_common::time::timeout(SEND_TIMEOUT, send).await });
        Box::pin(async move { sent.await?? })
    }
}

//! What happened: counters, their table and their exposition, and the slow-request log.
//!
//! A request is observed with a clock reading and a handful of atomic additions to counters that
//! were laid out at start by operation and status; nothing is looked up by name on the way. All of
//! it is lost when power fails, as Prometheus expects of counters.

pub mod exposition;
pub mod histogram;
pub mod slow_log;
pub mod table;

use crate::s3::operation::Operation;
use crate::s3::response::{BodyError, ResponseBody, S3Response};
use bytes::Bytes;
use exposition::{Family, Value};
use futures_util::stream::BoxStream;
use futures_util::{Stream, StreamExt};
use histogram::Histogram;
use http::header::CONTENT_LENGTH;
use http::request::Parts;
use slow_log::{Slow, SlowLog};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use table::{
    CONNECTIONS, FIRST_BYTE, INFLIGHT_REQUESTS, REQUEST_BYTES, REQUEST_DURATION, REQUESTS, THROTTLED,
};

/// The statuses that answers have, in order; any other one is counted as `other`.
const STATUSES: [u16; 24] = [
    100, 200, 204, 206, 301, 303, 304, 307, 400, 401, 403, 404, 405, 408, 409, 411, 412, 413, 416, 499, 500,
    501, 503, 507,
];
/// The status of a request whose client went away.
const CLIENT_GONE: u16 = 499;
/// What may be short.
const REASONS: [&str; 4] = ["connections", "disk", "memory", "queue"];
/// Where an answer's bytes came from.
const TIERS: [&str; 2] = ["none", "hot"];

/// The counters of one operation.
#[derive(Debug, Default)]
struct OfOperation {
    statuses: [AtomicU64; STATUSES.len() + 1],
    duration: Histogram,
    first_byte: [Histogram; TIERS.len()],
    bytes_in: AtomicU64,
    bytes_out: AtomicU64,
}

/// The counters of the gateway.
#[derive(Debug)]
pub struct Metrics {
    operations: Vec<OfOperation>,
    inflight: AtomicI64,
    connections: AtomicI64,
    throttled: [AtomicU64; REASONS.len()],
    /// The slow-request log.
    pub slow_log: SlowLog,
}

/// A request that is being answered. Dropped without an answer, it counts as a client that went
/// away.
#[derive(Debug)]
pub struct Observed {
    /// What it asks for, once that is known.
    pub operation: Operation,
    metrics: Arc<Metrics>,
    started: Instant,
    answered: bool,
}

impl Drop for Observed {
    fn drop(&mut self) {
        if !self.answered {
            self.metrics.count(self.operation, CLIENT_GONE, self.started.elapsed());
        }
    }
}

/// Counts one time that a client had to wait or was refused because `reason` was short.
pub fn throttled(metrics: &Metrics, reason: &'static str) {
    let known = REASONS.iter().position(|known| *known == reason);
    assert!(known.is_some(), "{reason} is in no row of the reasons");
    known.into_iter().for_each(|at| {
        metrics.throttled[at].fetch_add(1, Relaxed);
    });
}

impl Metrics {
    /// Counters at zero; requests that take `slow_request_millis` are logged, none when it is 0.
    #[must_use]
    pub fn new(slow_request_millis: u64) -> Self {
        Self {
            operations: Operation::ALL.iter().map(|_| OfOperation::default()).collect(),
            inflight: AtomicI64::new(0),
            connections: AtomicI64::new(0),
            throttled: Default::default(),
            slow_log: SlowLog::new(slow_request_millis),
        }
    }

    /// A request begins.
    #[must_use]
    pub fn begin(self: &Arc<Self>) -> Observed {
        self.inflight.fetch_add(1, Relaxed);
        Observed {
            operation: Operation::Unknown,
            metrics: Arc::clone(self),
            started: Instant::now(),
            answered: false,
        }
    }

    /// The head of the answer is known. An answer that is a stream goes on being observed until
    /// its last byte.
    pub fn end(&self, mut observed: Observed, head: &Parts, response: &mut S3Response) {
        let took = observed.started.elapsed();
        let operation = observed.operation;
        let of = self.of(operation);
        of.first_byte[usize::from(operation == Operation::GetObject)].record(took);
        if let Some(bytes) = announced_bytes(head) {
            of.bytes_in.fetch_add(bytes, Relaxed);
        }
        let status = response.status().as_u16();
        let sent = match response.body() {
            ResponseBody::Full(bytes) | ResponseBody::Early(bytes, _) => {
                bytes.as_ref().map_or(0, Bytes::len) as u64
            }
            ResponseBody::Sized { .. } | ResponseBody::KeptAlive(_) => {
                return observe_stream(observed, head, response);
            }
        };
        of.bytes_out.fetch_add(sent, Relaxed);
        observed.answered = true;
        self.count(operation, status, took);
        if self.slow_log.is_slow(took) {
            let request_id = request_id(response);
            self.slow_log.note(Slow {
                operation: operation.name(),
                path: head.uri.path(),
                status,
                took,
                request_id,
            });
        }
    }

    fn count(&self, operation: Operation, status: u16, took: Duration) {
        let of = self.of(operation);
        let at = STATUSES.binary_search(&status).unwrap_or(STATUSES.len());
        of.statuses[at].fetch_add(1, Relaxed);
        of.duration.record(took);
        self.inflight.fetch_sub(1, Relaxed);
    }

    fn of(&self, operation: Operation) -> &OfOperation {
        &self.operations[operation as usize]
    }

    /// A connection opens; it counts until the value is dropped.
    #[must_use]
    pub fn connection(self: &Arc<Self>) -> ConnectionCount {
        self.connections.fetch_add(1, Relaxed);
        ConnectionCount(Arc::clone(self))
    }

    /// Requests begun and not yet answered whole.
    #[must_use]
    pub fn inflight_requests(&self) -> i64 {
        self.inflight.load(Relaxed)
    }

    /// Open connections to the S3 endpoint.
    #[must_use]
    pub fn open_connections(&self) -> i64 {
        self.connections.load(Relaxed)
    }

    /// The values of now.
    #[must_use]
    pub fn families(&self) -> Vec<Family> {
        let mut requests = Family::new(REQUESTS);
        let mut duration = Family::new(REQUEST_DURATION);
        let mut first_byte = Family::new(FIRST_BYTE);
        let mut bytes = Family::new(REQUEST_BYTES);
        for (operation, of) in Operation::ALL.iter().zip(&self.operations) {
            let op = operation.name();
            let sizes = of.duration.snapshot();
            if sizes.count() == 0 {
                continue;
            }
            for (at, count) in of.statuses.iter().enumerate() {
                let count = count.load(Relaxed);
                if count > 0 {
                    let status = STATUSES.get(at).map_or_else(|| "other".to_owned(), u16::to_string);
                    requests.push(&[op, &status], Value::Count(count));
                }
            }
            duration.push(&[op], Value::Sizes(sizes));
            for (tier, sizes) in TIERS.iter().zip(of.first_byte.iter().map(Histogram::snapshot)) {
                if sizes.count() > 0 {
                    first_byte.push(&[op, tier], Value::Sizes(sizes));
                }
            }
            bytes.push(&[op, "in"], Value::Count(of.bytes_in.load(Relaxed)));
            bytes.push(&[op, "out"], Value::Count(of.bytes_out.load(Relaxed)));
        }
        let mut short = Family::new(THROTTLED);
        for (reason, count) in REASONS.iter().zip(&self.throttled) {
            short.push(&[reason], Value::Count(count.load(Relaxed)));
        }
        let inflight = Family::single(INFLIGHT_REQUESTS, Value::Level(self.inflight_requests()));
        let connections = Family::single(CONNECTIONS, Value::Level(self.open_connections()));
        vec![requests, duration, first_byte, bytes, inflight, connections, short]
    }
}

/// Counts as an open connection while it lives.
#[derive(Debug)]
pub struct ConnectionCount(Arc<Metrics>);

impl Drop for ConnectionCount {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Relaxed);
    }
}

/// The body bytes that a request announces: of an aws-chunked one, without its framing.
fn announced_bytes(head: &Parts) -> Option<u64> {
    let header =
        head.headers.get("x-amz-decoded-content-length").or_else(|| head.headers.get(CONTENT_LENGTH));
    header?.to_str().ok()?.parse().ok()
}

fn request_id(response: &S3Response) -> &str {
    response.headers().get("x-amz-request-id").and_then(|id| id.to_str().ok()).unwrap_or_default()
}

/// Puts `observed` into the stream of the answer.
fn observe_stream(observed: Observed, head: &Parts, response: &mut S3Response) {
    let status = response.status().as_u16();
    let request_id = request_id(response).to_owned();
    let path = head.uri.path().to_owned();
    let body = std::mem::replace(response.body_mut(), ResponseBody::empty());
    let watch = |inner| {
        ObservedStream { inner, observed, status, path, request_id, sent_bytes: 0, ended: false }.boxed()
    };
    *response.body_mut() = match body {
        ResponseBody::Sized { left_bytes, stream } => {
            ResponseBody::Sized { left_bytes, stream: watch(Left { stream, left_bytes }) }
        }
        ResponseBody::KeptAlive(stream) => {
            ResponseBody::KeptAlive(watch(Left { stream, left_bytes: u64::MAX }))
        }
        other @ (ResponseBody::Full(_) | ResponseBody::Early(..)) => other,
    };
}

/// A stream and how many bytes of it are still to come.
struct Left {
    stream: BoxStream<'static, Result<Bytes, BodyError>>,
    left_bytes: u64,
}

/// The stream of an answer, counted and timed to its end or to the moment it is given up.
struct ObservedStream {
    inner: Left,
    observed: Observed,
    status: u16,
    path: String,
    request_id: String,
    sent_bytes: u64,
    ended: bool,
}

impl Stream for ObservedStream {
    type Item = Result<Bytes, BodyError>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        let next = this.inner.stream.poll_next_unpin(cx);
        match &next {
            Poll::Ready(Some(Ok(bytes))) => {
                this.sent_bytes += bytes.len() as u64;
                // A body of known length is not polled again behind its last byte.
                this.ended |= this.sent_bytes >= this.inner.left_bytes;
            }
            Poll::Ready(None) => this.ended = true,
            Poll::Ready(Some(Err(_))) | Poll::Pending => {}
        }
        next
    }
}

impl Drop for ObservedStream {
    fn drop(&mut self) {
        let metrics = Arc::clone(&self.observed.metrics);
        let operation = self.observed.operation;
        metrics.of(operation).bytes_out.fetch_add(self.sent_bytes, Relaxed);
        if !self.ended {
            return;
        }
        let took = self.observed.started.elapsed();
        self.observed.answered = true;
        metrics.count(operation, self.status, took);
        if metrics.slow_log.is_slow(took) {
            metrics.slow_log.note(Slow {
                operation: operation.name(),
                path: &self.path,
                status: self.status,
                took,
                request_id: &self.request_id,
            });
        }
    }
}

#[cfg(test)]
mod tests;

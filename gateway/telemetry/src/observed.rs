//! Observation of a request from its head to the last byte of its response, for counters, logs and traces.
//!
//! Every request is timed and counted. Sampling by the access log or a trace is decided when a request
//! begins; only sampled requests carry [`RequestNotes`], the others pay for a comparison. An abandoned
//! request (its future or its response is dropped) counts as a disconnected client.

use super::access_log::AccessLogLine;
use super::request_record::{RequestEnding, RequestFailure, RequestNotes};
use super::slow_log::SlowRequest;
use super::{CLIENT_GONE, GatewayMetrics};
use bytes::BufMut;
use http::header::{CONTENT_LENGTH, USER_AGENT};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue};
use mlgw_common::time::Instant;
use mlgw_common::{NodeId, Timestamp};
use mlgw_objects::stages::Stages;
use mlgw_wire::operation::Operation;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Maximum recorded length of a user agent, in bytes.
const USER_AGENT_BYTES_MAX: usize = 256;

/// A request that is being answered. A request that is dropped without a response counts as a disconnected
/// client.
#[derive(Debug)]
pub struct Observed {
    /// Operation of the request, once it is known.
    pub operation: Operation,
    metrics: Arc<GatewayMetrics>,
    started: Instant,
    answered: bool,
    failure: Option<RequestFailure>,
    notes: Option<Box<RequestNotes>>,
}

/// Sender of a request, with the request's number and id.
#[derive(Clone, Copy, Debug)]
pub struct Arrival<'a> {
    /// Number of the request in this process, by which it is sampled.
    pub number: u64,
    /// Id in the response.
    pub id: &'a str,
    /// Time of arrival.
    pub time: Timestamp,
    /// Address of the client.
    pub peer: SocketAddr,
    /// Node that forwarded the request, if it was not received from its client.
    pub forwarded_by: Option<NodeId>,
}

impl Drop for Observed {
    fn drop(&mut self) {
        if !self.answered {
            let took = self.started.elapsed();
            let ending = RequestEnding {
                operation: self.operation,
                status: CLIENT_GONE,
                first_byte: took,
                took,
                bytes_in: 0,
                bytes_out: 0,
                failure: None,
            };
            self.finish(ending, || ("", ""));
        }
    }
}

impl Observed {
    /// Records the request for the access log and traces, if one of them samples it.
    pub fn record_arrival(&mut self, arrival: Arrival<'_>, head: &Parts) {
        let logged = self.metrics.access_log.is_sampled(arrival.number);
        let traced =
            self.metrics.traces.as_ref().and_then(|t| t.parent_context(arrival.number, &head.headers));
        if !logged && traced.is_none() {
            return;
        }
        let started = self.started;
        self.notes = Some(Box::new(RequestNotes {
            id: arrival.id.to_owned(),
            time: arrival.time,
            peer: arrival.peer,
            forwarded_by: arrival.forwarded_by,
            forwarded_to: None,
            method: head.method.as_str().to_owned(),
            path: head.uri.path().to_owned(),
            user_agent: user_agent(&head.headers),
            access_key: None,
            bucket: None,
            logged,
            traced: traced.map(|parent| (parent, Arc::new(Stages::new(started)))),
        }));
    }

    /// Records the signer of the request and its bucket.
    pub fn record_caller(&mut self, access_key: &str, bucket: Option<&str>) {
        if let Some(notes) = &mut self.notes {
            notes.access_key = Some(access_key.to_owned());
            notes.bucket = bucket.map(str::to_owned);
        }
    }

    /// Records the member that answers the request.
    pub fn record_forwarding(&mut self, member: NodeId) {
        if let Some(notes) = &mut self.notes {
            notes.forwarded_to = Some(member);
        }
    }

    /// Records the error with which the request is answered.
    pub const fn record_failure(&mut self, failure: RequestFailure) {
        self.failure = Some(failure);
    }

    /// Returns the recorder of stages, if the request is traced.
    #[must_use]
    pub fn stages(&self) -> Option<Arc<Stages>> {
        self.notes.as_ref()?.traced.as_ref().map(|(_, stages)| Arc::clone(stages))
    }

    /// Records the head of the response: its time and the announced bytes of the request. Adds the
    /// Server-Timing header. Returns the request's ending as far as it is known.
    pub fn record_response_head(
        &self,
        request: &HeaderMap,
        status: u16,
        answer: &mut HeaderMap,
    ) -> RequestEnding {
        let took = self.started.elapsed();
        let operation = self.operation;
        let of = self.metrics.counters_of(operation);
        of.first_byte[usize::from(operation == Operation::GetObject)].record(took);
        let bytes_in = announced_bytes(request).unwrap_or(0);
        if bytes_in > 0 {
            of.bytes_in.fetch_add(bytes_in, Relaxed);
        }
        answer.insert(&SERVER_TIMING, server_timing(took, self.stages().as_deref()));
        RequestEnding {
            operation,
            status,
            first_byte: took,
            took,
            bytes_in,
            bytes_out: 0,
            failure: self.failure,
        }
    }

    /// Finishes a request with a streamed response body that was sent whole or abandoned. The closure returns
    /// the path and the id of the request, for a line of the slow log.
    pub fn end_of_stream<'a>(
        &mut self,
        mut ending: RequestEnding,
        path_and_id: impl FnOnce() -> (&'a str, &'a str),
    ) {
        ending.took = self.started.elapsed();
        self.finish(ending, path_and_id);
    }

    /// Counts the request and writes its log lines. The closure returns its path and id, for a line of the
    /// slow log.
    pub fn finish<'a>(&mut self, ending: RequestEnding, path_and_id: impl FnOnce() -> (&'a str, &'a str)) {
        assert!(!self.answered, "a request is counted once");
        let metrics = &self.metrics;
        self.answered = true;
        if ending.bytes_out > 0 {
            metrics.counters_of(ending.operation).bytes_out.fetch_add(ending.bytes_out, Relaxed);
        }
        let RequestEnding { operation, status, took, failure, .. } = ending;
        if let Some(failure) = failure {
            metrics.count_error(failure.code);
        }
        metrics.count(operation, status, took);
        if status != CLIENT_GONE && metrics.slow_log.is_slow(took) {
            let (path, request_id) = path_and_id();
            metrics.slow_log.log_request(SlowRequest {
                operation: operation.name(),
                path,
                status,
                took,
                request_id,
            });
        }
        let Some(notes) = self.notes.take() else { return };
        if let (Some(traces), Some((parent, stages))) = (&metrics.traces, &notes.traced) {
            traces.export(&notes, parent, stages, &ending);
        }
        if notes.logged {
            metrics.access_log.write(AccessLogLine::new(*notes, &ending));
        }
    }
}

impl GatewayMetrics {
    /// Starts the observation of a request.
    #[must_use]
    pub fn begin(self: &Arc<Self>) -> Observed {
        self.inflight.fetch_add(1, Relaxed);
        Observed {
            operation: Operation::Unknown,
            metrics: Arc::clone(self),
            started: Instant::now(),
            answered: false,
            failure: None,
            notes: None,
        }
    }
}

/// Header with the decoded length of an aws-chunked body.
static DECODED_LENGTH: HeaderName = HeaderName::from_static("x-amz-decoded-content-length");

/// Returns the announced bytes of the request body; for an aws-chunked body, without its framing.
fn announced_bytes(headers: &HeaderMap) -> Option<u64> {
    let header = headers.get(&DECODED_LENGTH).or_else(|| headers.get(CONTENT_LENGTH));
    header?.to_str().ok()?.parse().ok()
}

fn user_agent(headers: &HeaderMap) -> String {
    let bytes = headers.get(USER_AGENT).map(HeaderValue::as_bytes).unwrap_or_default();
    String::from_utf8_lossy(&bytes[..bytes.len().min(USER_AGENT_BYTES_MAX)]).into_owned()
}

/// Name of the W3C's Server-Timing header; its durations are in milliseconds.
static SERVER_TIMING: HeaderName = HeaderName::from_static("server-timing");

/// Maximum bytes of `total;dur=` and any number of milliseconds.
const TOTAL_BYTES_MAX: usize = 40;

/// Returns the Server-Timing header. `total` is the time to the head of the response; a traced request also
/// reports its stages.
fn server_timing(took: Duration, stages: Option<&Stages>) -> HeaderValue {
    let mut total = [0; TOTAL_BYTES_MAX];
    let mut free = total.as_mut_slice();
    put_entry(&mut free, "total", took);
    let used = TOTAL_BYTES_MAX - free.len();
    let value = match stages {
        None => HeaderValue::from_bytes(&total[..used]),
        Some(stages) => {
            let mut text = total[..used].to_vec();
            for stage in stages.all() {
                text.put_slice(b", ");
                put_entry(&mut text, stage.name, stage.end.saturating_sub(stage.begin));
            }
            HeaderValue::from_bytes(&text)
        }
    };
    value.unwrap_or(HeaderValue::from_static("total"))
}

/// Appends a name and milliseconds with three decimals, without the cost of float formatting.
fn put_entry(text: &mut impl BufMut, name: &str, took: Duration) {
    text.put_slice(name.as_bytes());
    text.put_slice(b";dur=");
    let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
    let mut digits = [0; 20];
    let mut at = digits.len();
    let mut rest = micros / 1000;
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    text.put_slice(&digits[at..]);
    let below = micros % 1000;
    let digit = |digit: u64| b'0' + (digit % 10) as u8;
    text.put_slice(&[b'.', digit(below / 100), digit(below / 10), digit(below)]);
}

#[cfg(test)]
mod tests {
    use super::{Stages, server_timing};
    use mlgw_common::time::Instant;
    use std::time::Duration;

    #[test]
    fn server_timing_is_in_milliseconds() {
        for (micros, text) in
            [(0, "total;dur=0.000"), (31, "total;dur=0.031"), (12_345_678, "total;dur=12345.678")]
        {
            assert_eq!(server_timing(Duration::from_micros(micros), None), text);
        }
        let stages = Stages::new(Instant::now());
        stages.push("commit", Instant::now());
        let header = server_timing(Duration::from_micros(1), Some(&stages));
        assert!(header.to_str().unwrap().starts_with("total;dur=0.001, commit;dur=0."), "{header:?}");
    }
}

//! One request from its head to the last byte of its answer, as counters, logs and traces see it.
//!
//! Every request is timed and counted. One that the access log or a trace takes, which is decided
//! when it begins, carries [`Notes`] besides; the others pay for a comparison. A request that is
//! given up (its future or its answer is dropped) counts as a client that went away.

use super::access_log::Line;
use super::slow_log::Slow;
use super::{CLIENT_GONE, Metrics};
use bytes::BufMut;
use http::header::{CONTENT_LENGTH, USER_AGENT};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue};
use mlgw_common::Timestamp;
use mlgw_objects::stages::Stages;
use mlgw_wire::error::Code;
use mlgw_wire::operation::Operation;
use opentelemetry::Context;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Longest user agent that is noted, in bytes.
const USER_AGENT_BYTES_MAX: usize = 256;

/// A request that is being answered. Dropped without an answer, it counts as a client that went
/// away.
#[derive(Debug)]
pub struct Observed {
    /// What it asks for, once that is known.
    pub operation: Operation,
    metrics: Arc<Metrics>,
    started: Instant,
    answered: bool,
    failure: Option<Failure>,
    notes: Option<Box<Notes>>,
}

/// Why a request was answered with an error.
#[derive(Clone, Copy, Debug)]
pub struct Failure {
    /// The S3 code of the answer.
    pub code: Code,
    /// The name of what was short, if that was why.
    pub short_of: Option<&'static str>,
}

/// Who sends a request, and under which number and id it is known.
#[derive(Clone, Copy, Debug)]
pub struct Arrival<'a> {
    /// Which request of this process it is; samples are taken by it.
    pub number: u64,
    /// The id that the answer carries.
    pub id: &'a str,
    /// When it came.
    pub time: Timestamp,
    /// From where.
    pub peer: SocketAddr,
}

/// What the access log and traces say of a request beyond the counters.
#[derive(Debug)]
pub(super) struct Notes {
    pub(super) id: String,
    pub(super) time: Timestamp,
    pub(super) peer: SocketAddr,
    pub(super) method: String,
    /// Without the query, which may hold a signature.
    pub(super) path: String,
    pub(super) user_agent: String,
    pub(super) access_key: Option<String>,
    pub(super) bucket: Option<String>,
    pub(super) logged: bool,
    /// The trace that it belongs to, and the stages it goes through.
    pub(super) traced: Option<(Context, Arc<Stages>)>,
}

/// How a request ended.
#[derive(Clone, Copy, Debug)]
pub struct Ending {
    pub(super) operation: Operation,
    pub(super) status: u16,
    /// To the head of the answer.
    pub(super) first_byte: Duration,
    /// To the last byte of the answer.
    pub(super) took: Duration,
    pub(super) bytes_in: u64,
    /// Bytes of the answer's body that were sent.
    pub bytes_out: u64,
    pub(super) failure: Option<Failure>,
}

impl Drop for Observed {
    fn drop(&mut self) {
        if !self.answered {
            let took = self.started.elapsed();
            let ending = Ending {
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
    /// Notes what the logs want to know of this request, if one of them takes it.
    pub fn note(&mut self, arrival: Arrival<'_>, head: &Parts) {
        let logged = self.metrics.access_log.takes(arrival.number);
        let traced = self.metrics.traces.as_ref().and_then(|t| t.takes(arrival.number, &head.headers));
        if !logged && traced.is_none() {
            return;
        }
        let started = self.started;
        self.notes = Some(Box::new(Notes {
            id: arrival.id.to_owned(),
            time: arrival.time,
            peer: arrival.peer,
            method: head.method.as_str().to_owned(),
            path: head.uri.path().to_owned(),
            user_agent: user_agent(&head.headers),
            access_key: None,
            bucket: None,
            logged,
            traced: traced.map(|parent| (parent, Arc::new(Stages::new(started)))),
        }));
    }

    /// Notes who signed the request and the bucket that it names.
    pub fn note_caller(&mut self, access_key: &str, bucket: Option<&str>) {
        if let Some(notes) = &mut self.notes {
            notes.access_key = Some(access_key.to_owned());
            notes.bucket = bucket.map(str::to_owned);
        }
    }

    /// Notes why the request is answered with an error.
    pub const fn note_failure(&mut self, failure: Failure) {
        self.failure = Some(failure);
    }

    /// Where the stages of a traced request are noted.
    #[must_use]
    pub fn stages(&self) -> Option<Arc<Stages>> {
        self.notes.as_ref()?.traced.as_ref().map(|(_, stages)| Arc::clone(stages))
    }

    /// The head of the answer is known. Counts the time to it and the bytes that the request announced, and adds
    /// the header of Server Timing. Returns the request's ending as far as it is known.
    pub fn answer_head(&self, request: &HeaderMap, status: u16, answer: &mut HeaderMap) -> Ending {
        let took = self.started.elapsed();
        let operation = self.operation;
        let of = self.metrics.of(operation);
        of.first_byte[usize::from(operation == Operation::GetObject)].record(took);
        let bytes_in = announced_bytes(request).unwrap_or(0);
        if bytes_in > 0 {
            of.bytes_in.fetch_add(bytes_in, Relaxed);
        }
        answer.insert(&SERVER_TIMING, server_timing(took, self.stages().as_deref()));
        Ending { operation, status, first_byte: took, took, bytes_in, bytes_out: 0, failure: self.failure }
    }

    /// The streamed body of the answer was sent whole, or was given up. `told` returns the path and the id of
    /// the request, for a line of the log.
    pub fn end_of_stream<'a>(
        &mut self,
        mut ending: Ending,
        is_whole: bool,
        told: impl FnOnce() -> (&'a str, &'a str),
    ) {
        ending.took = self.started.elapsed();
        if !is_whole {
            ending.status = CLIENT_GONE;
        }
        self.finish(ending, told);
    }

    /// Counts the request and writes its lines in the logs. `told` returns its path and id.
    pub fn finish<'a>(&mut self, ending: Ending, told: impl FnOnce() -> (&'a str, &'a str)) {
        let metrics = &self.metrics;
        self.answered = true;
        if ending.bytes_out > 0 {
            metrics.of(ending.operation).bytes_out.fetch_add(ending.bytes_out, Relaxed);
        }
        let Ending { operation, status, took, failure, .. } = ending;
        if let Some(failure) = failure {
            metrics.count_error(failure.code);
        }
        metrics.count(operation, status, took);
        if status != CLIENT_GONE && metrics.slow_log.is_slow(took) {
            let (path, request_id) = told();
            metrics.slow_log.note(Slow { operation: operation.name(), path, status, took, request_id });
        }
        let Some(notes) = self.notes.take() else { return };
        if let (Some(traces), Some((parent, stages))) = (&metrics.traces, &notes.traced) {
            traces.tell(&notes, parent, stages, &ending);
        }
        if notes.logged {
            metrics.access_log.write(Line::new(*notes, &ending));
        }
    }
}

impl Metrics {
    /// A request begins.
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

/// Where an aws-chunked body says how long it is without its framing.
static DECODED_LENGTH: HeaderName = HeaderName::from_static("x-amz-decoded-content-length");

/// The body bytes that a request announces: of an aws-chunked one, without its framing.
fn announced_bytes(headers: &HeaderMap) -> Option<u64> {
    let header = headers.get(&DECODED_LENGTH).or_else(|| headers.get(CONTENT_LENGTH));
    header?.to_str().ok()?.parse().ok()
}

fn user_agent(headers: &HeaderMap) -> String {
    let bytes = headers.get(USER_AGENT).map(HeaderValue::as_bytes).unwrap_or_default();
    String::from_utf8_lossy(&bytes[..bytes.len().min(USER_AGENT_BYTES_MAX)]).into_owned()
}

/// The header of the W3C's Server Timing, in milliseconds.
static SERVER_TIMING: HeaderName = HeaderName::from_static("server-timing");

/// Room for `total;dur=` and any number of milliseconds.
const TOTAL_BYTES_MAX: usize = 40;

/// `total` is the time to the head of the answer; a traced request tells its stages, too.
fn server_timing(took: Duration, stages: Option<&Stages>) -> HeaderValue {
    let mut total = [0; TOTAL_BYTES_MAX];
    let mut free = total.as_mut_slice();
    put_entry(&mut free, "total", took);
    let used = TOTAL_BYTES_MAX - free.len();
    let told = match stages {
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
    told.unwrap_or(HeaderValue::from_static("total"))
}

/// A name and milliseconds with three decimals, without the machinery of formatting floats.
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
    use std::time::{Duration, Instant};

    #[test]
    fn server_timing_is_in_milliseconds() {
        for (micros, text) in
            [(0, "total;dur=0.000"), (31, "total;dur=0.031"), (12_345_678, "total;dur=12345.678")]
        {
            assert_eq!(server_timing(Duration::from_micros(micros), None), text);
        }
        let stages = Stages::new(Instant::now());
        stages.push("commit", Instant::now());
        let told = server_timing(Duration::from_micros(1), Some(&stages));
        assert!(told.to_str().unwrap().starts_with("total;dur=0.001, commit;dur=0."), "{told:?}");
    }
}

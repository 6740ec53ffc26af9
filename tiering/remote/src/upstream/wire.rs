//! HTTP transport of opendal: sends each request through the meter of its store and within its timeout.
//!
//! opendal sends the parts of one upload concurrently, and only the transport sees them individually;
//! therefore budget, gate, timeouts and counters are applied here and not around opendal's operations. A
//! response is read completely before it is passed on, and never more of it than was requested: a store that
//! ignores a range would otherwise send a whole segment for every read. Responses that report a failure or an
//! overload of the store become temporary errors, with texts that do not depend on the kind of store.
//! Requests for credentials bypass the meter, because they go to another host.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::CONTENT_LENGTH;
use http::response::Parts;
use http::{Extensions, HeaderMap, Request, Response, StatusCode};
use mlgw_common::limits::MIB;
use opendal::raw::Operation;
use opendal::{Buffer, Error, ErrorKind, HttpBody, HttpTransport};

use super::error::{UNREACHABLE, shortened};
use super::meter::UpstreamMeter;
use super::metrics::{UpstreamOp, UpstreamOutcome};

/// Bytes per second assumed for the timeout of sending a body: a tenth of a slow line, because parts share
/// it.
const SEND_RATE_MIN: u64 = 64 * 1024;
/// Maximum length of a response to a request without a range: a page of 1,000 names of 1,024 bytes, escaped.
const ANSWER_BYTES_MAX: u64 = 8 * MIB;

/// Sends requests; replaced in tests.
pub(super) trait RequestSender: Send + Sync + Unpin + 'static {
    /// Sends a request and returns the head of the response with its pending body.
    fn send(
        &self,
        request: Request<Bytes>,
    ) -> impl Future<Output = Result<(Parts, impl ResponseBody), String>> + Send;
}

/// Body of a response.
pub(super) trait ResponseBody: Send {
    /// Returns the next piece of the body; `None` at the end.
    fn piece(&mut self) -> impl Future<Output = Result<Option<Bytes>, String>> + Send;
}

/// HTTP transport of one store.
pub(super) struct MeteredTransport<C> {
    sender: C,
    meter: Arc<UpstreamMeter>,
    timeout: Duration,
}

/// Reason for a missing response.
enum ExchangeError {
    Broken(String),
    TooLong { requested_bytes: u64 },
}

impl<C: RequestSender> MeteredTransport<C> {
    pub(super) fn new(sender: C, meter: Arc<UpstreamMeter>, timeout: Duration) -> Self {
        Self { sender, meter, timeout }
    }

    /// Sends a request and reads its response. A successful response may be at most as long as requested.
    async fn exchange(
        &self,
        request: Request<Bytes>,
        requested_bytes: Option<u64>,
    ) -> Result<(Parts, Bytes), ExchangeError> {
        let patience = self.timeout + Duration::from_secs(request.body().len() as u64 / SEND_RATE_MIN);
        let late = |_| ExchangeError::Broken(format!("no response within {} s", patience.as_secs_f32()));
        let sent = mlgw_common::time::timeout(patience, self.sender.send(request)).await.map_err(late)?;
        let (head, mut body) = sent.map_err(ExchangeError::Broken)?;
        let bytes_max = requested_bytes.filter(|_| head.status.is_success()).unwrap_or(ANSWER_BYTES_MAX);
        let mut all: Vec<Bytes> = Vec::new();
        let mut bytes = 0;
        let paused =
            |_| ExchangeError::Broken(format!("the response paused for {} s", self.timeout.as_secs_f32()));
        while let Some(piece) = mlgw_common::time::timeout(self.timeout, body.piece())
            .await
            .map_err(paused)?
            .map_err(ExchangeError::Broken)?
        {
            bytes += piece.len() as u64;
            if bytes > bytes_max {
                return Err(ExchangeError::TooLong { requested_bytes: bytes_max });
            }
            all.push(piece);
        }
        Ok((head, joined(all)))
    }
}

impl<C: RequestSender> HttpTransport for MeteredTransport<C> {
    async fn fetch(&self, request: Request<Buffer>) -> opendal::Result<Response<HttpBody>> {
        let request = request.map(|body| body.to_bytes());
        let Some(op) = op(request.extensions()) else {
            let (head, body) = self.exchange(request, None).await.map_err(error)?;
            return Ok(response(head, body));
        };
        let requested_bytes = range_bytes(request.headers());
        let ticket = self.meter.begin(op, request.body().len() as u64, requested_bytes.unwrap_or(0)).await;
        let answer = self.exchange(request, requested_bytes).await;
        let (outcome, bytes) = match &answer {
            Ok((head, body)) => (outcome(head.status), body.len() as u64),
            Err(_) => (UpstreamOutcome::Failed, 0),
        };
        ticket.finish(outcome, bytes);
        let (head, body) = answer.map_err(error)?;
        match outcome {
            UpstreamOutcome::SlowDown => Err(failed(ErrorKind::RateLimited, &head, &body)),
            UpstreamOutcome::Failed => Err(failed(ErrorKind::Unexpected, &head, &body)),
            UpstreamOutcome::Ok | UpstreamOutcome::Missing | UpstreamOutcome::Refused => {
                Ok(response(head, body))
            }
        }
    }
}

fn response(mut head: Parts, body: Bytes) -> Response<HttpBody> {
    let bytes = body.len() as u64;
    // A chunked response has no Content-Length, which opendal requires. The length of a HEAD response is not
    // that of its body.
    if bytes > 0 && !head.headers.contains_key(CONTENT_LENGTH) {
        head.headers.insert(CONTENT_LENGTH, bytes.into());
    }
    let whole = futures_util::stream::iter([Ok(Buffer::from(body))]);
    Response::from_parts(head, HttpBody::new(whole, Some(bytes)))
}

fn error(fault: ExchangeError) -> Error {
    match fault {
        ExchangeError::Broken(message) => {
            // A certificate that is not trusted will not be trusted at the next try.
            let may_pass = !message.contains("certificate");
            let error = Error::new(ErrorKind::Unexpected, format!("{UNREACHABLE}{}", shortened(&message)));
            error.with_temporary(may_pass)
        }
        ExchangeError::TooLong { requested_bytes } => Error::new(
            ErrorKind::Unexpected,
            format!(
                "the response exceeds the {requested_bytes} requested bytes; the store may ignore ranges"
            ),
        ),
    }
}

fn failed(kind: ErrorKind, head: &Parts, body: &Bytes) -> Error {
    let message = shortened(&String::from_utf8_lossy(body));
    Error::new(kind, format!("{UNREACHABLE}it answered {}: {message}", head.status)).set_temporary()
}

/// Maps the status of a response to a result.
fn outcome(status: StatusCode) -> UpstreamOutcome {
    match status.as_u16() {
        404 => UpstreamOutcome::Missing,
        429 | 503 => UpstreamOutcome::SlowDown,
        408 | 499 | 500 | 502 | 504 => UpstreamOutcome::Failed,
        400.. => UpstreamOutcome::Refused,
        _ => UpstreamOutcome::Ok,
    }
}

/// Returns the kind of request that opendal states; `None` for requests for credentials.
fn op(extensions: &Extensions) -> Option<UpstreamOp> {
    match extensions.get::<Operation>()? {
        Operation::Read => Some(UpstreamOp::Read),
        Operation::Stat => Some(UpstreamOp::Stat),
        Operation::List => Some(UpstreamOp::List),
        Operation::Delete => Some(UpstreamOp::Delete),
        _ => Some(UpstreamOp::Write),
    }
}

/// Returns the number of bytes that a request asks for, if it has a bounded range.
fn range_bytes(headers: &HeaderMap) -> Option<u64> {
    let range = headers.get(http::header::RANGE).or_else(|| headers.get("x-ms-range"))?.to_str().ok()?;
    let (first, last) = range.strip_prefix("bytes=")?.split_once('-')?;
    let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
    last.checked_sub(first)?.checked_add(1)
}

/// Joins the pieces into one buffer, without a copy if there is only one.
fn joined(mut pieces: Vec<Bytes>) -> Bytes {
    if pieces.len() <= 1 {
        return pieces.pop().unwrap_or_default();
    }
    let mut all = BytesMut::with_capacity(pieces.iter().map(Bytes::len).sum());
    pieces.iter().for_each(|piece| all.extend_from_slice(piece));
    all.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_states_the_number_of_requested_bytes() {
        let requested_bytes = |name: &'static str, value: &'static str| {
            range_bytes(&HeaderMap::from_iter([(
                http::HeaderName::from_static(name),
                http::HeaderValue::from_static(value),
            )]))
        };
        assert_eq!(requested_bytes("range", "bytes=10-19"), Some(10));
        assert_eq!(requested_bytes("x-ms-range", "bytes=0-0"), Some(1));
        for other in ["bytes=10-", "bytes=-5", "bytes=9-3", "bytes=0-18446744073709551615", "lines=1-2"] {
            assert_eq!(requested_bytes("range", other), None, "{other}");
        }
    }

    #[test]
    fn pieces_are_joined_in_order() {
        assert_eq!(joined(vec![]), Bytes::new());
        let one = Bytes::from(vec![7; 9]);
        assert_eq!(joined(vec![one.clone()]).as_ptr(), one.as_ptr(), "not copied");
        assert_eq!(joined(vec![Bytes::from("ab"), Bytes::from("c")]), "abc");
    }
}

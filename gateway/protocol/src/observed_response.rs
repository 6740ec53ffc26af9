//! Observes a response until its last byte, or until it is abandoned.

use super::response::{BodyError, ResponseBody, S3Response};
use bytes::Bytes;
use futures_util::stream::BoxStream;
use futures_util::{Stream, StreamExt as _};
use http::request::Parts;
use mlgw_telemetry::observed::Observed;
use mlgw_telemetry::request_record::RequestEnding;
use std::pin::Pin;
use std::task;

/// Records the head of a response and adds the Server-Timing header. A streamed response is observed until
/// its last byte.
pub(super) fn observe_response(mut observed: Observed, head: &Parts, response: &mut S3Response) {
    let status = response.status().as_u16();
    let mut ending = observed.record_response_head(&head.headers, status, response.headers_mut());
    match response.body() {
        ResponseBody::Full(bytes) => {
            ending.bytes_out = bytes.as_ref().map_or(0, Bytes::len) as u64;
            observed.finish(ending, || (head.uri.path(), request_id(response)));
        }
        ResponseBody::Sized { .. } | ResponseBody::KeptAlive(_) => {
            observe_stream(observed, ending, head, response);
        }
    }
}

fn request_id(response: &S3Response) -> &str {
    response.headers().get("x-amz-request-id").and_then(|id| id.to_str().ok()).unwrap_or_default()
}

/// Moves `observed` into the stream of the response.
fn observe_stream(observed: Observed, ending: RequestEnding, head: &Parts, response: &mut S3Response) {
    let request_id = request_id(response).to_owned();
    let path = head.uri.path().to_owned();
    let body = std::mem::replace(response.body_mut(), ResponseBody::empty());
    let watch = |inner| ObservedStream { inner, observed, ending, path, request_id, ended: false }.boxed();
    *response.body_mut() = match body {
        ResponseBody::Sized { left_bytes, stream } => {
            ResponseBody::Sized { left_bytes, stream: watch(RemainingBody { stream, left_bytes }) }
        }
        ResponseBody::KeptAlive(stream) => {
            ResponseBody::KeptAlive(watch(RemainingBody { stream, left_bytes: u64::MAX }))
        }
        other @ ResponseBody::Full(_) => other,
    };
}

/// A stream with the number of bytes still to be sent.
struct RemainingBody {
    stream: BoxStream<'static, Result<Bytes, BodyError>>,
    left_bytes: u64,
}

/// The stream of a response, counted and timed until it ends or is abandoned.
struct ObservedStream {
    inner: RemainingBody,
    observed: Observed,
    ending: RequestEnding,
    path: String,
    request_id: String,
    ended: bool,
}

impl Stream for ObservedStream {
    type Item = Result<Bytes, BodyError>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> task::Poll<Option<Self::Item>> {
        let this = self.get_mut();
        let next = this.inner.stream.poll_next_unpin(cx);
        match &next {
            task::Poll::Ready(Some(Ok(bytes))) => {
                this.ending.bytes_out += bytes.len() as u64;
                // A body of known length is not polled again after its last byte.
                this.ended |= this.ending.bytes_out >= this.inner.left_bytes;
            }
            task::Poll::Ready(None) => this.ended = true,
            task::Poll::Ready(Some(Err(_))) | task::Poll::Pending => {}
        }
        next
    }
}

impl Drop for ObservedStream {
    fn drop(&mut self) {
        if !self.ended {
            self.ending.mark_abandoned();
        }
        self.observed.end_of_stream(self.ending, || (&self.path, &self.request_id));
    }
}

#[cfg(test)]
mod tests;

//! Dispatch of requests, and the effects of writes.

use super::http::{FaultyOriginRequest, FaultyOriginResponse};
use super::response_fault::{FaultOperation, ResponseFault};
use super::store::{OriginNaming, OriginState};
use super::{FaultyOriginShared, reads, uploads};
use bytes::Bytes;

/// Responds to a request; one request at a time.
pub(super) fn answer(shared: &FaultyOriginShared, request: &FaultyOriginRequest) -> FaultyOriginResponse {
    let mut store = shared.store();
    let range = request.header("range").map(|range| format!(" {range}")).unwrap_or_default();
    let line = format!("{}{range}", request.method);
    store.log.push(line);
    let mut answer = handle(&mut store, request);
    if store.naming == OriginNaming::Kms && answer.status < 300 {
        answer = answer.with("x-amz-server-side-encryption", "aws:kms");
    }
    if request.method != "HEAD" {
        store.sent_bytes += answer.body.len() as u64;
    }
    answer
}

fn handle(store: &mut OriginState, request: &FaultyOriginRequest) -> FaultyOriginResponse {
    match (request.method.as_str(), request.query("uploadId"), request.key.is_empty()) {
        ("PUT", Some(id), _) => uploads::put_part(store, request, id),
        ("POST", Some(id), _) => uploads::complete(store, request, id),
        ("DELETE", Some(id), _) => uploads::abort(store, id),
        ("GET", Some(id), _) => uploads::list_parts(store, request, id),
        ("POST", None, _) => uploads::begin(store, request),
        ("GET", None, true) if request.query("uploads").is_some() => uploads::list(store, request),
        ("GET", None, true) => reads::list(store, request),
        ("GET" | "HEAD", None, false) => reads::get(store, request),
        ("PUT", None, false) => put(store, request),
        ("DELETE", None, false) => delete(store, request),
        _ => FaultyOriginResponse::error(501, "NotImplemented"),
    }
}

/// True if the conditions of a write hold.
pub(super) fn are_conditions_met(store: &OriginState, request: &FaultyOriginRequest) -> bool {
    let found = store.objects.get(&request.key).map(|object| format!("\"{}\"", object.etag));
    let matches = request.header("if-match").is_none_or(|etag| found.as_deref() == Some(etag));
    matches && (request.header("if-none-match").is_none() || found.is_none())
}

fn put(store: &mut OriginState, request: &FaultyOriginRequest) -> FaultyOriginResponse {
    if !are_conditions_met(store, request) {
        return FaultyOriginResponse::error(412, "PreconditionFailed");
    }
    let (key, bytes, headers) = (&request.key, request.body.clone(), request.stored_headers());
    match store.take_fault(|lie| lie.operation() == FaultOperation::Put) {
        None => acknowledged(&store.put(key, bytes, headers, None)),
        Some(lie) => match stored_instead(lie, &bytes) {
            Ok(bytes) => acknowledged(&store.put(key, bytes, headers, None)),
            Err(answer) => answer,
        },
    }
}

/// Returns the bytes to store instead, or the response if none are stored.
pub(super) fn stored_instead(lie: ResponseFault, bytes: &Bytes) -> Result<Bytes, FaultyOriginResponse> {
    match lie {
        ResponseFault::StoresOtherBytes(_) => Ok(with_flipped_bit(bytes, bytes.len().saturating_sub(1))),
        ResponseFault::StoresHalf(_) => Ok(bytes.slice(..bytes.len() / 2)),
        lie => Err(wrong_response(lie)),
    }
}

/// Returns a response that claims success.
pub(super) fn wrong_response(lie: ResponseFault) -> FaultyOriginResponse {
    match lie {
        ResponseFault::Status(_, status) => FaultyOriginResponse::of(status).with("etag", "\"claimed\""),
        ResponseFault::ErrorDocument(_) => FaultyOriginResponse::error(200, "InternalError"),
        ResponseFault::HtmlPage(_) => FaultyOriginResponse::of(200)
            .with("content-type", "text/html")
            .body("<html><head><title>Welcome</title></head><body>Please log in.</body></html>"),
        _ => FaultyOriginResponse::of(200),
    }
}

pub(super) fn acknowledged(etag: &str) -> FaultyOriginResponse {
    FaultyOriginResponse::of(200).with("etag", format!("\"{etag}\""))
}

/// Returns the bytes with one bit flipped.
pub(super) fn with_flipped_bit(bytes: &Bytes, at: usize) -> Bytes {
    let mut bytes = bytes.to_vec();
    if let Some(byte) = bytes.get_mut(at) {
        *byte ^= 1;
    }
    bytes.into()
}

fn delete(store: &mut OriginState, request: &FaultyOriginRequest) -> FaultyOriginResponse {
    if !are_conditions_met(store, request) {
        return FaultyOriginResponse::error(412, "PreconditionFailed");
    }
    if let Some(lie) = store.take_fault(|lie| lie.operation() == FaultOperation::Delete) {
        return wrong_response(lie);
    }
    store.objects.remove(&request.key);
    FaultyOriginResponse::of(204)
}

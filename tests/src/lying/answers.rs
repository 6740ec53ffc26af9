//! Dispatch of requests, and the effects of writes.

use super::http::{Answer, Request};
use super::lie::{Lie, On};
use super::store::{Manner, Store};
use super::{Shared, reads, uploads};
use bytes::Bytes;

/// Responds to a request; one request at a time.
pub(super) fn answer(shared: &Shared, request: &Request) -> Answer {
    let mut store = shared.store();
    let range = request.header("range").map(|range| format!(" {range}")).unwrap_or_default();
    let line = format!("{}{range}", request.method);
    store.log.push(line);
    let mut answer = done(&mut store, request);
    if store.manner == Manner::Kms && answer.status < 300 {
        answer = answer.with("x-amz-server-side-encryption", "aws:kms");
    }
    if request.method != "HEAD" {
        store.sent_bytes += answer.body.len() as u64;
    }
    answer
}

fn done(store: &mut Store, request: &Request) -> Answer {
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
        _ => Answer::error(501, "NotImplemented"),
    }
}

/// True if the conditions of a write hold.
pub(super) fn holds(store: &Store, request: &Request) -> bool {
    let found = store.objects.get(&request.key).map(|object| format!("\"{}\"", object.etag));
    let matches = request.header("if-match").is_none_or(|etag| found.as_deref() == Some(etag));
    matches && (request.header("if-none-match").is_none() || found.is_none())
}

fn put(store: &mut Store, request: &Request) -> Answer {
    if !holds(store, request) {
        return Answer::error(412, "PreconditionFailed");
    }
    let (key, bytes, headers) = (&request.key, request.body.clone(), request.kept());
    match store.lies(|lie| lie.on() == On::Put) {
        None => acknowledged(&store.put(key, bytes, headers, None)),
        Some(lie) => match instead(lie, &bytes) {
            Ok(bytes) => acknowledged(&store.put(key, bytes, headers, None)),
            Err(answer) => answer,
        },
    }
}

/// Returns the bytes to store instead, or the response if none are stored.
pub(super) fn instead(lie: Lie, bytes: &Bytes) -> Result<Bytes, Answer> {
    match lie {
        Lie::StoresOthers(_) => Ok(flipped(bytes, bytes.len().saturating_sub(1))),
        Lie::StoresHalf(_) => Ok(bytes.slice(..bytes.len() / 2)),
        lie => Err(no_success(lie)),
    }
}

/// Returns a response that claims success.
pub(super) fn no_success(lie: Lie) -> Answer {
    match lie {
        Lie::Status(_, status) => Answer::of(status).with("etag", "\"claimed\""),
        Lie::ErrorDocument(_) => Answer::error(200, "InternalError"),
        Lie::Page(_) => Answer::of(200)
            .with("content-type", "text/html")
            .body("<html><head><title>Welcome</title></head><body>Please log in.</body></html>"),
        _ => Answer::of(200),
    }
}

pub(super) fn acknowledged(etag: &str) -> Answer {
    Answer::of(200).with("etag", format!("\"{etag}\""))
}

/// Returns the bytes with one bit flipped.
pub(super) fn flipped(bytes: &Bytes, at: usize) -> Bytes {
    let mut bytes = bytes.to_vec();
    if let Some(byte) = bytes.get_mut(at) {
        *byte ^= 1;
    }
    bytes.into()
}

fn delete(store: &mut Store, request: &Request) -> Answer {
    if !holds(store, request) {
        return Answer::error(412, "PreconditionFailed");
    }
    if let Some(lie) = store.lies(|lie| lie.on() == On::Delete) {
        return no_success(lie);
    }
    store.objects.remove(&request.key);
    Answer::of(204)
}

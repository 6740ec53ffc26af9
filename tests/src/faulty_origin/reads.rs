//! Responses to reads of objects and to listings.

use std::ops::Range;
use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;
use mlgw_common::Timestamp;

use super::dispatch::{with_flipped_bit, wrong_response};
use super::http::{FaultyBodyFraming, FaultyOriginRequest, FaultyOriginResponse};
use super::response_fault::{FaultOperation, ResponseFault};
use super::store::{OriginNaming, OriginState, StoredObject};

pub(super) fn get(store: &mut OriginState, request: &FaultyOriginRequest) -> FaultyOriginResponse {
    let Some(object) = store.objects.get(&request.key).cloned() else {
        return FaultyOriginResponse::error(404, "NoSuchKey");
    };
    let quoted = format!("\"{}\"", object.etag);
    if request.header("if-match").is_some_and(|etag| etag != quoted) {
        return FaultyOriginResponse::error(412, "PreconditionFailed");
    }
    if request.header("if-none-match").is_some_and(|etag| etag == quoted) {
        return FaultyOriginResponse::of(304).with("etag", quoted);
    }
    let size = object.bytes.len() as u64;
    let Some(range) = requested_range(request, size) else {
        return FaultyOriginResponse::error(416, "InvalidRange")
            .with("content-range", format!("bytes */{size}"));
    };
    let is_read = request.method == "GET";
    match store.take_fault(|lie| lie.operation() == FaultOperation::Get && is_read) {
        Some(lie) => faulty_response(lie, &object, range, request.header("range").is_some()),
        None => object_response(&object, object.bytes.clone(), range, request.header("range").is_some()),
    }
}

/// Parses the requested range; `None` if it is empty.
fn requested_range(request: &FaultyOriginRequest, size: u64) -> Option<Range<u64>> {
    let Some(text) = request.header("range") else { return Some(0..size) };
    let (first, last) = text.strip_prefix("bytes=")?.split_once('-')?;
    let range = match (first, last) {
        ("", last) => size.saturating_sub(last.parse().ok()?)..size,
        (first, "") => first.parse().ok()?..size,
        (first, last) => first.parse().ok()?..size.min(last.parse::<u64>().ok()? + 1),
    };
    (range.start < range.end).then_some(range)
}

/// Responds with `range` of an object whose bytes are `all`.
fn object_response(
    object: &StoredObject,
    all: Bytes,
    range: Range<u64>,
    is_part: bool,
) -> FaultyOriginResponse {
    let modified = httpdate(object.modified_ms);
    let mut answer = FaultyOriginResponse::of(if is_part { 206 } else { 200 })
        .with("etag", format!("\"{}\"", object.etag))
        .with("last-modified", modified);
    answer.headers.extend(object.headers.iter().cloned());
    if is_part {
        let value = format!("bytes {}-{}/{}", range.start, range.end - 1, all.len());
        answer = answer.with("content-range", value);
    }
    answer.body(all.slice(range.start as usize..range.end as usize))
}

fn faulty_response(
    lie: ResponseFault,
    object: &StoredObject,
    range: Range<u64>,
    is_part: bool,
) -> FaultyOriginResponse {
    let all = object.bytes.clone();
    let size = all.len();
    let whole = |bytes: Bytes| {
        let range = range.start.min(bytes.len() as u64 - 1)..range.end.min(bytes.len() as u64);
        object_response(object, bytes, range, is_part)
    };
    let right = |bytes: Bytes| object_response(object, bytes, range.clone(), is_part);
    match lie {
        ResponseFault::Half => whole(all.slice(..size / 2)),
        ResponseFault::Longer => {
            let more = Bytes::from([&all[..], &[7; 50]].concat());
            let end = if range.end == size as u64 { range.end + 50 } else { range.end };
            object_response(object, more, range.start..end, is_part)
        }
        ResponseFault::Flip => right(with_flipped_bit(&all, size - 1)),
        ResponseFault::FlipFirst => right(with_flipped_bit(&all, 0)),
        ResponseFault::FlipOfWhole => {
            object_response(object, with_flipped_bit(&all, size / 2), 0..size as u64, false)
        }
        ResponseFault::ErrorAsObject => {
            let document =
                "<Error><Code>InternalError</Code><Message>We encountered an error.</Message></Error>";
            whole(Bytes::from_static(document.as_bytes()))
        }
        ResponseFault::Compressed => whole(Bytes::from_static(b"\x1f\x8b\x08 as if it were compressed")),
        ResponseFault::ReadNoEtag => without(right(all), "etag"),
        ResponseFault::ReadNoLength => {
            let response = object_response(object, all, 0..size as u64, false);
            FaultyOriginResponse { sending: FaultyBodyFraming::Chunked, ..response }
        }
        ResponseFault::Huge => {
            let value = format!("bytes {}-{}/{}", range.start, range.end - 1, 1_u64 << 63);
            let part = object_response(object, all, range.clone(), true);
            without(part, "content-range").with("content-range", value)
        }
        ResponseFault::LongTotal => {
            let value = format!("bytes {}-{}/{}", range.start, range.end - 1, size + 5);
            let part = object_response(object, all, range.clone(), true);
            without(part, "content-range").with("content-range", value)
        }
        ResponseFault::BadLength => right(all).with("content-length", "many"),
        ResponseFault::SlowBody => FaultyOriginResponse { sending: FaultyBodyFraming::Slow, ..right(all) },
        lie => wrong_response(lie),
    }
}

fn without(mut answer: FaultyOriginResponse, name: &str) -> FaultyOriginResponse {
    answer.headers.retain(|(known, _)| known != name);
    answer
}

/// Lists the keys of a prefix, on one page.
pub(super) fn list(store: &mut OriginState, request: &FaultyOriginRequest) -> FaultyOriginResponse {
    if let Some(lie) = store.take_fault(|lie| lie.operation() == FaultOperation::List) {
        return wrong_response(lie);
    }
    let (prefix, after) =
        (request.query("prefix").unwrap_or_default(), request.query("start-after").unwrap_or_default());
    let max = request.query("max-keys").and_then(|max| max.parse().ok()).unwrap_or(1000);
    let is_whole = store.naming == OriginNaming::WholeSeconds;
    let line = |(key, object): (&String, &StoredObject)| {
        let ms = if is_whole { object.modified_ms / 1000 * 1000 } else { object.modified_ms };
        format!(
            "<Contents><Key>{key}</Key><LastModified>{}</LastModified><ETag>&quot;{}&quot;</ETag>\
             <Size>{}</Size></Contents>",
            Timestamp(ms as i64),
            object.etag,
            object.bytes.len()
        )
    };
    let keys = store.objects.iter().filter(|(key, _)| key.starts_with(prefix) && key.as_str() > after);
    let mut lines: Vec<String> = keys.take(max + 1).map(line).collect();
    let is_truncated = lines.len() > max;
    lines.truncate(max);
    let token = if is_truncated { "<NextContinuationToken>more</NextContinuationToken>" } else { "" };
    FaultyOriginResponse::of(200).with("content-type", "application/xml").body(format!(
        "<ListBucketResult><IsTruncated>{is_truncated}</IsTruncated>{token}{}</ListBucketResult>",
        lines.concat()
    ))
}

/// Returns a time in the format of HTTP dates.
fn httpdate(ms: u64) -> String {
    httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_millis(ms))
}

//! Responses to reads of objects and to listings.

use std::ops::Range;
use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;
use mlgw_common::Timestamp;

use super::answers::{flipped, no_success};
use super::http::{Answer, Request, Sending};
use super::lie::{Lie, On};
use super::store::{Manner, Store, Stored};

pub(super) fn get(store: &mut Store, request: &Request) -> Answer {
    let Some(object) = store.objects.get(&request.key).cloned() else {
        return Answer::error(404, "NoSuchKey");
    };
    let quoted = format!("\"{}\"", object.etag);
    if request.header("if-match").is_some_and(|etag| etag != quoted) {
        return Answer::error(412, "PreconditionFailed");
    }
    if request.header("if-none-match").is_some_and(|etag| etag == quoted) {
        return Answer::of(304).with("etag", quoted);
    }
    let size = object.bytes.len() as u64;
    let Some(range) = asked(request, size) else {
        return Answer::error(416, "InvalidRange").with("content-range", format!("bytes */{size}"));
    };
    let is_read = request.method == "GET";
    match store.lies(|lie| lie.on() == On::Get && is_read) {
        Some(lie) => lied(lie, &object, range, request.header("range").is_some()),
        None => told(&object, object.bytes.clone(), range, request.header("range").is_some()),
    }
}

/// Parses the requested range; `None` if it is empty.
fn asked(request: &Request, size: u64) -> Option<Range<u64>> {
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
fn told(object: &Stored, all: Bytes, range: Range<u64>, is_part: bool) -> Answer {
    let modified = httpdate(object.modified_ms);
    let mut answer = Answer::of(if is_part { 206 } else { 200 })
        .with("etag", format!("\"{}\"", object.etag))
        .with("last-modified", modified);
    answer.headers.extend(object.headers.iter().cloned());
    if is_part {
        let value = format!("bytes {}-{}/{}", range.start, range.end - 1, all.len());
        answer = answer.with("content-range", value);
    }
    answer.body(all.slice(range.start as usize..range.end as usize))
}

fn lied(lie: Lie, object: &Stored, range: Range<u64>, is_part: bool) -> Answer {
    let all = object.bytes.clone();
    let size = all.len();
    let whole = |bytes: Bytes| {
        let range = range.start.min(bytes.len() as u64 - 1)..range.end.min(bytes.len() as u64);
        told(object, bytes, range, is_part)
    };
    let right = |bytes: Bytes| told(object, bytes, range.clone(), is_part);
    match lie {
        Lie::Half => whole(all.slice(..size / 2)),
        Lie::More => {
            let more = Bytes::from([&all[..], &[7; 50]].concat());
            let end = if range.end == size as u64 { range.end + 50 } else { range.end };
            told(object, more, range.start..end, is_part)
        }
        Lie::Flip => right(flipped(&all, size - 1)),
        Lie::FlipFirst => right(flipped(&all, 0)),
        Lie::FlipOfAll => told(object, flipped(&all, size / 2), 0..size as u64, false),
        Lie::ErrorAsObject => {
            let document =
                "<Error><Code>InternalError</Code><Message>We encountered an error.</Message></Error>";
            whole(Bytes::from_static(document.as_bytes()))
        }
        Lie::Packed => whole(Bytes::from_static(b"\x1f\x8b\x08 as if it were compressed")),
        Lie::ReadNoEtag => without(right(all), "etag"),
        Lie::ReadNoLength => {
            let told = told(object, all, 0..size as u64, false);
            Answer { sending: Sending::Chunked, ..told }
        }
        Lie::Huge => {
            let value = format!("bytes {}-{}/{}", range.start, range.end - 1, 1_u64 << 63);
            let part = told(object, all, range.clone(), true);
            without(part, "content-range").with("content-range", value)
        }
        Lie::LongTotal => {
            let value = format!("bytes {}-{}/{}", range.start, range.end - 1, size + 5);
            let part = told(object, all, range.clone(), true);
            without(part, "content-range").with("content-range", value)
        }
        Lie::BadLength => right(all).with("content-length", "many"),
        Lie::Drip => Answer { sending: Sending::Drip, ..right(all) },
        lie => no_success(lie),
    }
}

fn without(mut answer: Answer, name: &str) -> Answer {
    answer.headers.retain(|(known, _)| known != name);
    answer
}

/// Lists the keys of a prefix, on one page.
pub(super) fn list(store: &mut Store, request: &Request) -> Answer {
    if let Some(lie) = store.lies(|lie| lie.on() == On::List) {
        return no_success(lie);
    }
    let (prefix, after) =
        (request.query("prefix").unwrap_or_default(), request.query("start-after").unwrap_or_default());
    let max = request.query("max-keys").and_then(|max| max.parse().ok()).unwrap_or(1000);
    let is_whole = store.manner == Manner::WholeSeconds;
    let line = |(key, object): (&String, &Stored)| {
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
    Answer::of(200).with("content-type", "application/xml").body(format!(
        "<ListBucketResult><IsTruncated>{is_truncated}</IsTruncated>{token}{}</ListBucketResult>",
        lines.concat()
    ))
}

/// Returns a time in the format of HTTP dates.
fn httpdate(ms: u64) -> String {
    httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_millis(ms))
}

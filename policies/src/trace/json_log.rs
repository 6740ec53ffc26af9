//! Lines of this program's access log: an object of JSON each.
//!
//! A line has the path that was asked for, which begins with the bucket unless that was named by the host. It
//! does not have the size of the object.

use super::import::{BadLine, Deed, Entry, Request};
use mlgw_common::Timestamp;
use percent_encoding::percent_decode_str;
use serde::Deserialize;
use std::borrow::Cow;

/// The fields of a line that are of use here.
#[derive(Deserialize)]
struct Line<'a> {
    #[serde(borrow)]
    time: Cow<'a, str>,
    #[serde(borrow)]
    from: Cow<'a, str>,
    #[serde(borrow)]
    access_key: Option<Cow<'a, str>>,
    #[serde(borrow)]
    operation: Cow<'a, str>,
    #[serde(borrow)]
    bucket: Option<Cow<'a, str>>,
    #[serde(borrow)]
    path: Cow<'a, str>,
    status: u16,
    bytes_in: u64,
    bytes_out: u64,
    #[serde(borrow)]
    user_agent: Cow<'a, str>,
}

/// What the line says; nothing if it does not tell of an object that was read or changed.
pub(super) fn entry(line: &str) -> Result<Option<Entry>, BadLine> {
    let line: Line<'_> = serde_json::from_str(line).map_err(|_| BadLine::Json)?;
    let time = Timestamp::of_rfc3339(&line.time).ok_or(BadLine::Field("the time"))?;
    let (deed, bytes, size) = match &*line.operation {
        "GetObject" => (Deed::Read { is_part: line.status == 206 }, line.bytes_out, None),
        "PutObject" => (Deed::Write, line.bytes_in, Some(line.bytes_in)),
        "CopyObject" => (Deed::Write, 0, None),
        "UploadPart" => (Deed::WritePart, line.bytes_in, None),
        "CompleteMultipartUpload" => (Deed::Complete, 0, None),
        "DeleteObject" => (Deed::Delete, 0, None),
        _ => return Ok(None),
    };
    if !(200..300).contains(&line.status) {
        return Ok(None);
    }
    let (bucket, key) = split(&line.path, line.bucket.as_deref()).ok_or(BadLine::Field("the path"))?;
    let key = percent_decode_str(key).decode_utf8().map_err(|_| BadLine::Field("the path"))?;
    let request = Request {
        at_ms: time.as_millis(),
        requester: line.access_key.as_deref().unwrap_or("-"),
        // Connections of one process come from many ports.
        address: line.from.rsplit_once(':').map_or(&*line.from, |(address, _)| address),
        user_agent: &line.user_agent,
        bucket,
        key: key.into_owned(),
    };
    Entry::new(request, deed, bytes, size).map(Some)
}

/// Bucket and key.
fn split<'a>(path: &'a str, bucket: Option<&'a str>) -> Option<(&'a str, &'a str)> {
    let path = path.strip_prefix('/')?;
    match (path.split_once('/'), bucket) {
        (Some((first, key)), None) => Some((first, key)),
        (Some((first, key)), Some(bucket)) if first == bucket => Some((bucket, key)),
        (_, Some(bucket)) => Some((bucket, path)),
        (None, None) => None,
    }
}

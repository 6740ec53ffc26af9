//! Parser for lines of the access log of mlgw: one JSON object per line.
//!
//! A line has the path of the request, which begins with the bucket unless the host name contained it. A
//! line does not have the size of the object.

use super::log_line::{BadLine, LogLineAccess, LoggedOperation, LoggedRequest};
use mlgw_common::Timestamp;
use percent_encoding::percent_decode_str;
use serde::Deserialize;
use std::borrow::Cow;

/// Fields of a line that the import needs.
#[derive(Deserialize)]
struct JsonLogLine<'a> {
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

/// Parses a line; `None` if the line does not describe a read or a change of an object.
pub(super) fn entry(line: &str) -> Result<Option<LogLineAccess>, BadLine> {
    let line: JsonLogLine<'_> = serde_json::from_str(line).map_err(|_| BadLine::Json)?;
    let time = Timestamp::parse_rfc3339(&line.time).ok_or(BadLine::Field("the time"))?;
    let (deed, bytes, size) = match &*line.operation {
        "GetObject" => (LoggedOperation::Read { is_part: line.status == 206 }, line.bytes_out, None),
        "PutObject" => (LoggedOperation::Write, line.bytes_in, Some(line.bytes_in)),
        "CopyObject" => (LoggedOperation::Write, 0, None),
        "UploadPart" => (LoggedOperation::WritePart, line.bytes_in, None),
        "CompleteMultipartUpload" => (LoggedOperation::Complete, 0, None),
        "DeleteObject" => (LoggedOperation::Delete, 0, None),
        _ => return Ok(None),
    };
    if !(200..300).contains(&line.status) {
        return Ok(None);
    }
    let (bucket, key) = split(&line.path, line.bucket.as_deref()).ok_or(BadLine::Field("the path"))?;
    let key = percent_decode_str(key).decode_utf8().map_err(|_| BadLine::Field("the path"))?;
    let request = LoggedRequest {
        at_ms: time.as_millis(),
        requester: line.access_key.as_deref().unwrap_or("-"),
        // Connections of one process come from different ports.
        address: line.from.rsplit_once(':').map_or(&*line.from, |(address, _)| address),
        user_agent: &line.user_agent,
        bucket,
        key: key.into_owned(),
    };
    LogLineAccess::new(request, deed, bytes, size).map(Some)
}

/// Splits a path into bucket and key.
fn split<'a>(path: &'a str, bucket: Option<&'a str>) -> Option<(&'a str, &'a str)> {
    let path = path.strip_prefix('/')?;
    match (path.split_once('/'), bucket) {
        (Some((first, key)), None) => Some((first, key)),
        (Some((first, key)), Some(bucket)) if first == bucket => Some((bucket, key)),
        (_, Some(bucket)) => Some((bucket, path)),
        (None, None) => None,
    }
}

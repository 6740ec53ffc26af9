//! Parser for lines of S3 server access logs.
//!
//! A line has fields separated by spaces; the time is in brackets and fields sent by the client are in
//! quotes; `-` marks an unknown value. Later versions have more fields at the end, which are ignored. Keys
//! are percent-encoded, in many logs twice; the request line has the key encoded once and reveals the
//! difference.

use super::log_line::{BadLine, LogLineAccess, LoggedOperation, LoggedRequest};
use mlgw_common::Timestamp;
use percent_encoding::percent_decode_str;

const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// Parses a line; `None` if the line does not describe a read or a change of an object.
pub(super) fn entry(line: &str) -> Result<Option<LogLineAccess>, BadLine> {
    let mut fields = S3LogFields(line);
    fields.next();
    let bucket = fields.required("the bucket")?;
    let at_ms = time_ms(fields.required("the time")?).ok_or(BadLine::Field("the time"))?;
    let address = fields.required("the address")?;
    let requester = fields.required("the requester")?;
    fields.next();
    let operation = fields.required("the operation")?;
    let key = fields.required("the key")?;
    let request_line = fields.required("the request")?;
    let status = fields.required("the status")?;
    fields.next();
    let sent = number(fields.required("the bytes sent")?, "the bytes sent")?;
    let size = number(fields.required("the object's size")?, "the object's size")?;
    let user_agent = fields.nth(3).unwrap_or("-");
    // Operations by S3 itself have no status.
    let is_done =
        status == "-" || number(status, "the status")?.is_some_and(|status| (200..300).contains(&status));
    let Some(deed) = operation_of(operation, status) else { return Ok(None) };
    if !is_done || key == "-" {
        return Ok(None);
    }
    let key = decoded(key, request_line).ok_or(BadLine::Field("the key"))?;
    let request = LoggedRequest { at_ms, requester, address, user_agent, bucket, key };
    let bytes = match deed {
        LoggedOperation::Read { .. } => sent.unwrap_or_default(),
        _ => size.unwrap_or_default(),
    };
    LogLineAccess::new(request, deed, bytes, size).map(Some)
}

fn operation_of(operation: &str, status: &str) -> Option<LoggedOperation> {
    match operation {
        "REST.GET.OBJECT" | "WEBSITE.GET.OBJECT" => Some(LoggedOperation::Read { is_part: status == "206" }),
        "REST.PUT.OBJECT" | "REST.POST.OBJECT" | "REST.COPY.OBJECT" => Some(LoggedOperation::Write),
        "REST.PUT.PART" | "REST.COPY.PART" => Some(LoggedOperation::WritePart),
        "REST.POST.UPLOAD" => Some(LoggedOperation::Complete),
        "REST.DELETE.OBJECT" | "BATCH.DELETE.OBJECT" | "S3.EXPIRE.OBJECT" => Some(LoggedOperation::Delete),
        _ => None,
    }
}

fn number(field: &str, name: &'static str) -> Result<Option<u64>, BadLine> {
    match field {
        "-" => Ok(None),
        digits => digits.parse().map(Some).map_err(|_| BadLine::Field(name)),
    }
}

/// Milliseconds since 1970 of a time such as `06/Feb/2019:00:00:38 +0000`.
fn time_ms(text: &str) -> Option<i64> {
    let (date, time) = text.split_once(':')?;
    let (time, zone) = time.split_once(' ')?;
    let [day, month, year] = *date.split('/').collect::<Vec<_>>() else { return None };
    let month = MONTHS.iter().position(|name| *name == month)? + 1;
    let (hours, minutes) = zone.split_at_checked(3)?;
    let text = format!("{year}-{month:02}-{day}T{time}{hours}:{minutes}");
    Timestamp::parse_rfc3339(&text).map(Timestamp::as_millis)
}

fn decoded(key: &str, request_line: &str) -> Option<String> {
    let once = percent_decode_str(key).decode_utf8().ok()?;
    let path = request_line.split(' ').nth(1).unwrap_or_default();
    let path = path.split('?').next().unwrap_or_default();
    if once.contains('%') && path.ends_with(once.as_ref()) {
        return Some(percent_decode_str(&once).decode_utf8().ok()?.into_owned());
    }
    Some(once.into_owned())
}

/// Fields of a line that have not been parsed yet.
struct S3LogFields<'a>(&'a str);

impl<'a> S3LogFields<'a> {
    fn required(&mut self, name: &'static str) -> Result<&'a str, BadLine> {
        self.next().ok_or(BadLine::Missing(name))
    }

    /// Splits off the text before `end`, where `end` is followed by a space or the end of the line.
    fn until(&mut self, begin: usize, end: char) -> Option<&'a str> {
        let rest = self.0.get(begin..)?;
        let is_end = |at: &usize| rest[at + 1..].is_empty() || rest[at + 1..].starts_with(' ');
        let at = rest.match_indices(end).map(|(at, _)| at).find(is_end)?;
        self.0 = &rest[at + 1..];
        Some(&rest[..at])
    }
}

impl<'a> Iterator for S3LogFields<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        self.0 = self.0.trim_start_matches(' ');
        match self.0.bytes().next()? {
            b'"' => self.until(1, '"'),
            b'[' => self.until(1, ']'),
            _ => {
                let (field, rest) = self.0.split_once(' ').unwrap_or((self.0, ""));
                self.0 = rest;
                Some(field)
            }
        }
    }
}

//! Translation of an error response of an S3 origin (status, headers, document) into an [`OriginError`].
//! Pure.

use super::{head, xml};
use crate::origin::OriginError;
use http::{HeaderMap, StatusCode, header};
use std::time::Duration;

/// Returns the error that an unsuccessful response reports.
pub(super) fn error_of_response(status: StatusCode, headers: &HeaderMap, document: &[u8]) -> OriginError {
    let (code, message) = xml::parse_error(document);
    let retry_after = || {
        let seconds = headers.get(header::RETRY_AFTER)?.to_str().ok()?.parse().ok()?;
        Some(Duration::from_secs(seconds))
    };
    match (status.as_u16(), code.as_str()) {
        (304, _) => OriginError::NotModified(head::modified(headers)),
        (404, "NoSuchBucket") => OriginError::NoSuchBucket,
        (404, "NoSuchUpload" | "NoSuchVersion") => OriginError::Refused { status: 404, code, message },
        (404, _) => OriginError::NoSuchKey,
        (412, _) => OriginError::Changed,
        (416, _) => OriginError::OutOfRange(head::size_beyond(headers)),
        (401 | 403, _) => OriginError::Denied(format!("{status} {code} {message}").trim_end().to_owned()),
        (429, _) | (503, _) | (_, "SlowDown") => OriginError::Throttled(retry_after()),
        (status @ (501 | 505), _) => OriginError::Refused { status, code, message },
        (500..=599, _) => OriginError::Failed(status.as_u16()),
        (status, _) => OriginError::Refused { status, code, message },
    }
}

//! Content of a line of a log: what the parsers of all formats return.

use super::KEY_BYTES_MAX;
use crate::stable_hash::hash;
use thiserror::Error;

/// Error in a line.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum BadLine {
    /// A field is missing.
    #[error("the field for {0} is missing")]
    Missing(&'static str),
    /// A field has an invalid value.
    #[error("the field for {0} is invalid")]
    Field(&'static str),
    /// The line is not a JSON object with the fields of an access log.
    #[error("not a line of JSON with the fields of an access log")]
    Json,
}

/// Operation of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum LoggedOperation {
    /// Bytes of an object were sent; `is_part` is true if a range was requested.
    Read { is_part: bool },
    /// An object was written.
    Write,
    /// A part of an unfinished multipart upload was written.
    WritePart,
    /// A multipart upload was completed.
    Complete,
    /// An object was deleted.
    Delete,
}

/// Content of a line.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LogLineAccess {
    pub(super) at_us: u64,
    /// Line number; of lines with the same time, the earlier one comes first.
    pub(super) line: u64,
    pub(super) operation: LoggedOperation,
    pub(super) caller: (u64, u64),
    pub(super) bucket: u64,
    pub(super) key: String,
    /// Bytes that were sent or received.
    pub(super) bytes: u64,
    /// Size of the whole object, if the line has it.
    pub(super) size: Option<u64>,
}

/// Request of a line: time, requester and object.
pub(super) struct LoggedRequest<'a> {
    pub(super) at_ms: i64,
    pub(super) requester: &'a str,
    pub(super) address: &'a str,
    pub(super) user_agent: &'a str,
    pub(super) bucket: &'a str,
    pub(super) key: String,
}

impl LogLineAccess {
    /// Creates the entry of a request.
    ///
    /// # Errors
    /// If the key is empty or too long, or the time is before 1970.
    pub(super) fn new(
        request: LoggedRequest<'_>,
        deed: LoggedOperation,
        bytes: u64,
        size: Option<u64>,
    ) -> Result<Self, BadLine> {
        if request.key.is_empty() || request.key.len() > KEY_BYTES_MAX {
            return Err(BadLine::Field("the key"));
        }
        let at_us =
            u64::try_from(request.at_ms).map_err(|_| BadLine::Field("the time"))?.saturating_mul(1000);
        let family = hash(hash(0, request.requester), request.user_agent);
        Ok(Self {
            at_us,
            line: 0,
            operation: deed,
            caller: (hash(family, request.address), family),
            bucket: hash(0, request.bucket),
            key: request.key,
            bytes,
            size,
        })
    }
}

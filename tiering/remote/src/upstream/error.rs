//! Errors of an upstream, classified by the action that they require.
//!
//! An error contains the message of the store, its error code included, and never the request: requests carry
//! signatures and tokens, so neither they nor their headers are ever shown.

use std::io;

use mlgw_common::ids::SegmentId;
use opendal::ErrorKind;

use super::metrics::UpstreamOutcome;
use crate::origin::OriginError;

/// Prefix of transport errors, which a retry may resolve.
pub(super) const UNREACHABLE: &str = "unreachable: ";
/// Prefixes of opendal's messages about missing credentials.
const NO_CREDENTIALS: [&str; 2] = ["loading credential", "signing http request"];
/// Opendal's message for a response that is shorter than requested although HTTP reported no error.
const SHORT_READ: &str = "reader got too little data";
/// Maximum length of a store's message, in characters.
const MESSAGE_CHARS_MAX: usize = 400;

/// Reason why an upstream did not carry out a request.
#[derive(Debug, thiserror::Error)]
pub enum UpstreamError {
    /// A setting is invalid and must be changed.
    #[error("upstream.{upstream}.{setting} {fault}")]
    Setting {
        /// Name of the upstream.
        upstream: String,
        /// Name of the setting.
        setting: &'static str,
        /// Description of the fault, with advice.
        fault: String,
    },
    /// The segment is missing. The caller looks its record up again.
    #[error("segment {segment} is not in upstream {upstream}")]
    Missing {
        /// Name of the upstream.
        upstream: String,
        /// Segment.
        segment: SegmentId,
    },
    /// No response, or the store failed or was overloaded, after several retries. The caller retries later.
    #[error("upstream {upstream} is unreachable: {message}")]
    Unreachable {
        /// Name of the upstream.
        upstream: String,
        /// Error message.
        message: String,
    },
    /// The store rejects the request. Credentials, permissions or the bucket name must be corrected; `mlgw
    /// upstream check` reports which.
    #[error("upstream {upstream} refused the request: {message}; run `mlgw upstream check {upstream}`")]
    Refused {
        /// Name of the upstream.
        upstream: String,
        /// Message of the store.
        message: String,
    },
    /// The response does not fit the request: a defect of this gateway or of the store.
    #[error("upstream {upstream} gave an unexpected answer: {message}")]
    UnexpectedAnswer {
        /// Name of the upstream.
        upstream: String,
        /// Message of the store.
        message: String,
    },
    /// The object is shorter than the segment that was stored. Another copy is needed.
    #[error(
        "segment {segment} in upstream {upstream} ends early: it does not have {wanted} bytes from {offset}"
    )]
    Truncated {
        /// Name of the upstream.
        upstream: String,
        /// Segment.
        segment: SegmentId,
        /// Offset in the object.
        offset: u64,
        /// Number of bytes requested.
        wanted: u64,
    },
    /// The object differs from the segment that was stored. Another copy is needed.
    #[error("segment {segment} in upstream {upstream} differs from the stored segment: {fault}")]
    Corrupt {
        /// Name of the upstream.
        upstream: String,
        /// Segment.
        segment: SegmentId,
        /// Description of the difference and its place.
        fault: String,
    },
    /// The prefix does not carry the mark of this server, so nothing is deleted there.
    #[error("nothing is deleted in upstream {upstream}: {advice}")]
    NotOwner {
        /// Name of the upstream.
        upstream: String,
        /// Description of the fault of the mark, with advice.
        advice: String,
    },
    /// The upload was ended by its source: the segment file could not be read, or the caller cancelled.
    #[error("segment {segment} was not sent to upstream {upstream}: {source}")]
    Source {
        /// Name of the upstream.
        upstream: String,
        /// Segment.
        segment: SegmentId,
        /// Error of the source.
        source: io::Error,
    },
}

impl UpstreamError {
    /// True if the same request may succeed later without any change.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Unreachable { .. })
    }
}

/// Meaning of an error of opendal or of the S3 client, independent of the object concerned.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum UpstreamFault {
    Missing,
    Unreachable(String),
    Refused(String),
    /// The object ends before the requested range does.
    Truncated,
    UnexpectedAnswer(String),
    /// The condition of the request does not hold.
    ConditionFailed,
}

impl UpstreamFault {
    /// Classifies an error of a store with HTTP.
    pub(super) fn from_opendal(error: &opendal::Error) -> Self {
        let message = message_of(error);
        match error.kind() {
            ErrorKind::NotFound if is_missing_bucket(&message) => Self::Refused(message),
            ErrorKind::NotFound => Self::Missing,
            ErrorKind::RangeNotSatisfied => Self::Truncated,
            ErrorKind::ConditionNotMatch => Self::ConditionFailed,
            ErrorKind::Unexpected if message.contains(SHORT_READ) => Self::Truncated,
            ErrorKind::RateLimited => Self::Unreachable(message),
            ErrorKind::PermissionDenied | ErrorKind::ConfigInvalid => Self::Refused(message),
            _ if NO_CREDENTIALS.iter().any(|words| message.starts_with(words)) => Self::Refused(message),
            _ => match message.strip_prefix(UNREACHABLE) {
                Some(message) => Self::Unreachable(message.to_owned()),
                None if error.is_temporary() => Self::Unreachable(message),
                None => Self::UnexpectedAnswer(message),
            },
        }
    }

    /// Classifies an error of a directory. Without HTTP an unclassified error is a disk error, which is
    /// retryable.
    pub(super) fn from_directory(error: &opendal::Error) -> Self {
        match Self::from_opendal(error) {
            Self::UnexpectedAnswer(message) => Self::Unreachable(message),
            fault => fault,
        }
    }

    /// Classifies an error of the S3 client.
    pub(super) fn from_origin(error: &OriginError) -> Self {
        match error {
            OriginError::NoSuchKey => Self::Missing,
            OriginError::NoSuchBucket | OriginError::Denied(_) => Self::Refused(error.to_string()),
            OriginError::OutOfRange(_) => Self::Truncated,
            error if error.is_transient() => Self::Unreachable(error.to_string()),
            error => Self::UnexpectedAnswer(error.to_string()),
        }
    }

    pub(super) fn outcome(&self) -> UpstreamOutcome {
        match self {
            Self::Missing => UpstreamOutcome::Missing,
            Self::Unreachable(_) => UpstreamOutcome::Failed,
            Self::Refused(_) | Self::Truncated | Self::UnexpectedAnswer(_) | Self::ConditionFailed => {
                UpstreamOutcome::Refused
            }
        }
    }

    /// Description of the fault.
    pub(super) fn into_message(self) -> String {
        match self {
            Self::Missing => "the object does not exist".to_owned(),
            Self::Truncated => "the object ends before the range does".to_owned(),
            Self::ConditionFailed => "the condition of the request failed".to_owned(),
            Self::Unreachable(message) | Self::Refused(message) | Self::UnexpectedAnswer(message) => message,
        }
    }

    /// Error of a request about the mark of the prefix.
    pub(super) fn into_mark_error(self, upstream: &str) -> UpstreamError {
        // No segment is concerned; id 0 is never assigned.
        match self {
            Self::Missing => {
                Self::UnexpectedAnswer(Self::Missing.into_message()).into_error(upstream, SegmentId(0))
            }
            fault => fault.into_error(upstream, SegmentId(0)),
        }
    }

    /// Error of a request about `segment`.
    pub(super) fn into_error(self, upstream: &str, segment: SegmentId) -> UpstreamError {
        let upstream = upstream.to_owned();
        match self {
            Self::Missing => UpstreamError::Missing { upstream, segment },
            Self::Unreachable(message) => UpstreamError::Unreachable { upstream, message },
            Self::Refused(message) => UpstreamError::Refused { upstream, message },
            Self::Truncated | Self::UnexpectedAnswer(_) | Self::ConditionFailed => {
                UpstreamError::UnexpectedAnswer { upstream, message: self.into_message() }
            }
        }
    }
}

/// True if the message is about a missing bucket. Some stores answer "not found" then, although no object was
/// deleted.
fn is_missing_bucket(message: &str) -> bool {
    ["NoSuchBucket", "ContainerNotFound", "bucket does not exist"].iter().any(|words| message.contains(words))
}

/// Returns the message of an error with those of its sources. The context of the error is left out, because
/// it contains addresses and headers.
fn message_of(error: &opendal::Error) -> String {
    // A response to HEAD has no message.
    let mut message = match error.message() {
        "" => error.kind().to_string(),
        message => message.to_owned(),
    };
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        message = format!("{message}: {error}");
        cause = error.source();
    }
    shortened(&message)
}

/// Reduces a text to one line of limited length.
pub(super) fn shortened(text: &str) -> String {
    let one_line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match one_line.char_indices().nth(MESSAGE_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &one_line[..end]),
        None => one_line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(kind: ErrorKind, message: &str) -> UpstreamFault {
        UpstreamFault::from_opendal(&opendal::Error::new(kind, message))
    }

    #[test]
    fn faults_are_classified_by_the_required_action() {
        use ErrorKind::{ConfigInvalid, NotFound, PermissionDenied, RateLimited, Unexpected};
        assert_eq!(fault(NotFound, "S3Error { code: \"NoSuchKey\" }"), UpstreamFault::Missing);
        let refused = |fault| matches!(fault, UpstreamFault::Refused(_));
        assert!(refused(fault(NotFound, "code: \"ContainerNotFound\"")), "the segment may exist");
        assert!(
            refused(fault(PermissionDenied, "AccessDenied")) && refused(fault(ConfigInvalid, "NoSuchBucket"))
        );
        assert!(refused(fault(Unexpected, "loading credential to sign http request")));
        assert_eq!(
            fault(Unexpected, "unreachable: no route"),
            UpstreamFault::Unreachable("no route".to_owned())
        );
        assert_eq!(fault(RateLimited, "SlowDown"), UpstreamFault::Unreachable("SlowDown".to_owned()));
        assert_eq!(fault(Unexpected, "400"), UpstreamFault::UnexpectedAnswer("400".to_owned()));
        let disk = UpstreamFault::from_directory(&opendal::Error::new(Unexpected, "input/output error"));
        assert_eq!(disk, UpstreamFault::Unreachable("input/output error".to_owned()));
    }

    #[test]
    fn the_context_of_an_error_is_not_shown() {
        let error = opendal::Error::new(ErrorKind::Unexpected, "odd\n answer")
            .with_context("response", "authorization: hush")
            .set_source(io::Error::other("deep down"));
        assert_eq!(message_of(&error), "odd answer: deep down");
        assert_eq!(message_of(&opendal::Error::new(ErrorKind::PermissionDenied, "")), "PermissionDenied");
        assert_eq!(shortened(&"é".repeat(500)).chars().count(), MESSAGE_CHARS_MAX + 1);
    }
}

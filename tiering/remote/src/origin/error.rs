//! Errors of requests to an origin.

use std::time::Duration;

/// Reason why an origin did not carry out a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OriginError {
    /// The object does not exist.
    #[error("the origin has no such key")]
    NoSuchKey,
    /// The bucket does not exist: the configuration or the binding is wrong.
    #[error("the origin has no such bucket")]
    NoSuchBucket,
    /// Access denied: the credentials lack a permission.
    #[error("the origin denied access: {0}")]
    Denied(String),
    /// The object is the one that the caller already has.
    #[error("the object has not changed")]
    NotModified(
        /// Time of the last write in milliseconds since 1970, if the origin states it.
        Option<i64>,
    ),
    /// A precondition failed: the object is not the version that the caller expects.
    #[error("the object has changed at the origin")]
    Changed,
    /// The object has no byte in the requested range. The value is its size, if known.
    #[error("the range is outside the object (size: {0:?})")]
    OutOfRange(Option<u64>),
    /// The origin throttles requests. Retryable, after the given wait if there is one.
    #[error("the origin throttles requests")]
    Throttled(Option<Duration>),
    /// The origin failed with this 5xx status. Retryable.
    #[error("the origin failed with status {0}")]
    Failed(u16),
    /// The connection could not be made, or the response broke off. Retryable.
    #[error("the origin cannot be reached: {0}")]
    Unreachable(String),
    /// The connection broke after the request was sent, so the outcome is unknown. Retryable.
    #[error("the connection to the origin broke: {0}")]
    ConnectionLost(String),
    /// The origin did not answer in time. Retryable.
    #[error("the origin did not answer in time")]
    TimedOut,
    /// The origin rejected the request as it is. Not retryable.
    #[error("the origin refused the request with status {status}: {code} {message}")]
    Refused {
        /// HTTP status.
        status: u16,
        /// S3 error code such as `InvalidPart`; may be empty.
        code: String,
        /// Message of the origin.
        message: String,
    },
    /// The response to a write does not prove that the write was stored, although it reports success.
    #[error("the origin did not confirm the write: {0}")]
    Unconfirmed(String),
    /// The bytes received do not match the ETag or the length of the object.
    #[error("the origin sent wrong bytes: {0}")]
    WrongBytes(String),
    /// The response violates the protocol. Not retryable.
    #[error("the origin sent an invalid response: {0}")]
    InvalidResponse(String),
}

impl OriginError {
    /// Creates a [`Self::Refused`].
    pub(crate) fn refused(status: u16, code: &str, message: &str) -> Self {
        Self::Refused { status, code: code.to_owned(), message: message.to_owned() }
    }

    /// True if a write that failed with this error certainly had no effect: it was rejected or never sent.
    #[must_use]
    pub const fn is_undone(&self) -> bool {
        match self {
            Self::NoSuchKey
            | Self::NoSuchBucket
            | Self::Denied(_)
            | Self::NotModified(_)
            | Self::Changed
            | Self::OutOfRange(_)
            | Self::Throttled(_)
            | Self::Unreachable(_)
            | Self::Refused { .. } => true,
            Self::Failed(_)
            | Self::ConnectionLost(_)
            | Self::TimedOut
            | Self::Unconfirmed(_)
            | Self::WrongBytes(_)
            | Self::InvalidResponse(_) => false,
        }
    }

    /// True if the same request may succeed a little later.
    #[must_use]
    pub const fn is_transient(&self) -> bool {
        match self {
            Self::Throttled(_)
            | Self::Failed(_)
            | Self::Unreachable(_)
            | Self::ConnectionLost(_)
            | Self::TimedOut => true,
            Self::NoSuchKey
            | Self::NoSuchBucket
            | Self::Denied(_)
            | Self::NotModified(_)
            | Self::Changed
            | Self::OutOfRange(_)
            | Self::Refused { .. }
            | Self::Unconfirmed(_)
            | Self::WrongBytes(_)
            | Self::InvalidResponse(_) => false,
        }
    }
}

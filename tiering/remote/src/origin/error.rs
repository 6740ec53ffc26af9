//! Why an origin did not do what it was asked.

use std::time::Duration;

/// Why an origin did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OriginError {
    /// It has no such object.
    #[error("the origin has no such key")]
    NoSuchKey,
    /// It has no such bucket: the configuration or the binding is wrong.
    #[error("the origin has no such bucket")]
    NoSuchBucket,
    /// It does not allow it: its credentials lack a permission.
    #[error("the origin denies it: {0}")]
    Denied(String),
    /// The object is the one that the caller has.
    #[error("the object has not changed")]
    NotModified(
        /// When it was written last, if it says, in milliseconds since 1970.
        Option<i64>,
    ),
    /// The object is another one than the caller wants.
    #[error("the object has changed at the origin")]
    Changed,
    /// The object has no byte in the range.
    #[error("the object has {0:?} bytes, and none in the range")]
    OutOfRange(Option<u64>),
    /// It is asked too much: again, later.
    #[error("the origin is asked too much")]
    Throttled(Option<Duration>),
    /// It failed: again, later.
    #[error("the origin failed with status {0}")]
    Failed(u16),
    /// There is no connection to it, or its answer broke off: again, later.
    #[error("the origin cannot be reached: {0}")]
    Unreachable(String),
    /// The connection broke while it had the request, and nobody knows whether it was done: again, later.
    #[error("the connection to the origin broke: {0}")]
    Broken(String),
    /// It does not answer: again, later.
    #[error("the origin does not answer in time")]
    TimedOut,
    /// It refuses the request as it is: again does not help.
    #[error("the origin refuses it with status {status}: {code} {message}")]
    Refused {
        /// The status.
        status: u16,
        /// Its code, as `InvalidPart`; it may be empty.
        code: String,
        /// What it says.
        message: String,
    },
    /// Its answer to a write is no proof that it has the write, though it claims success.
    #[error("the origin does not confirm the write: {0}")]
    Unconfirmed(String),
    /// The bytes that it sent are not those that its ETag or its length names.
    #[error("the origin sent wrong bytes: {0}")]
    WrongBytes(String),
    /// It does not speak the protocol: again does not help.
    #[error("the origin answers nonsense: {0}")]
    Nonsense(String),
}

impl OriginError {
    /// A refusal.
    pub(crate) fn refused(status: u16, code: &str, message: &str) -> Self {
        Self::Refused { status, code: code.to_owned(), message: message.to_owned() }
    }

    /// Whether a write that failed so was surely not done: it was refused, or never sent.
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
            | Self::Broken(_)
            | Self::TimedOut
            | Self::Unconfirmed(_)
            | Self::WrongBytes(_)
            | Self::Nonsense(_) => false,
        }
    }

    /// Whether the same request may do better a little later.
    #[must_use]
    pub const fn is_transient(&self) -> bool {
        match self {
            Self::Throttled(_)
            | Self::Failed(_)
            | Self::Unreachable(_)
            | Self::Broken(_)
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
            | Self::Nonsense(_) => false,
        }
    }
}

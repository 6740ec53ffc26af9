//! Reasons for which a request was not forwarded or has no answer, and the error responses for them.

use crate::verdict::UnconfirmedCause;
use http::HeaderValue;
use http::header::RETRY_AFTER;
use mlgw_wire::error::{Code, S3Error};
use std::fmt::Display;

/// Reason why a request was not forwarded, or has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForwardFailure {
    /// The range map has no member for the key.
    NoMember,
    /// No member gave a verdict in time.
    Unreachable,
    /// Every member answered that it does not own the key.
    NotOwned,
    /// Every member was out of room, or no stream to it was free.
    Busy,
    /// A member that can be reached has no confirmation that its rows are the newest, and no other member
    /// accepted the request.
    Unconfirmed(UnconfirmedCause),
    /// The member cannot read the request, or reads another bucket from it.
    Refused,
    /// The member accepted the request, and its answer did not arrive.
    Lost,
}

impl UnconfirmedCause {
    /// Message of the error for a request that needs the confirmation.
    pub const MESSAGE: &str =
        "This node cannot confirm that it has the newest state. Try again, or use another node.";

    /// Name of the reason in the `Error` document.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Leader => "NoLeader",
            Self::Majority => "NoMajority",
        }
    }
}

impl ForwardFailure {
    /// Name of the reason in the `Error` document.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::NoMember => "NoMemberOfRange",
            Self::Unreachable => "NoMemberReachable",
            Self::NotOwned => "RangeMoving",
            Self::Busy => "MembersBusy",
            Self::Unconfirmed(cause) => cause.name(),
            Self::Refused => "MemberVersion",
            Self::Lost => "MemberLost",
        }
    }

    const fn message(self) -> &'static str {
        match self {
            Self::NoMember => "No node of the cluster is known to store this key. Try again.",
            Self::Unreachable => "No node that stores this key can be reached. Try again.",
            Self::NotOwned => "The key is being moved between nodes. Try again.",
            Self::Busy => "The nodes that store this key are busy. Try again.",
            Self::Unconfirmed(_) => UnconfirmedCause::MESSAGE,
            Self::Refused => {
                "The nodes that store this key run another version or have other settings. Try again."
            }
            Self::Lost => {
                "The node that processed the request failed. The request may have been carried out. \
                 Try again."
            }
        }
    }

    /// Returns true if this failure is reported although `later` followed: a member that is not reached adds
    /// nothing to one that states that a group has no majority.
    pub(crate) const fn is_reported_over(self, later: Self) -> bool {
        matches!((self, later), (Self::Unconfirmed(_), Self::Unreachable))
    }

    /// Returns the error response for this reason.
    #[must_use]
    pub fn error(self, cause: impl Display) -> S3Error {
        S3Error::new(Code::ServiceUnavailable)
            .message(self.message())
            .field("Reason", self.name())
            .header(RETRY_AFTER, HeaderValue::from_static(S3Error::RETRY_AFTER_SECS))
            .caused_by(cause)
    }
}

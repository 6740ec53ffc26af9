//! Errors of calls and streams, by what the caller may do next.
//!
//! [`CallError::NotSent`] and [`CallError::PeerRefused`]: nothing was carried out, another attempt is safe.
//! [`CallError::Refused`]: the service of the peer answered. [`CallError::Unknown`]: the request may have
//! been carried out, or may still be.

use crate::address::PeerAddress;
use crate::channel::Channel;
use crate::handshake::HandshakeRefusal;
use mlgw_common::NodeId;

/// Error of a call or of the beginning of a stream.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The service of the peer did not get the request: it is safe to send it again, also to another node.
    #[error("not sent to node {node}: {reason}")]
    NotSent {
        /// The peer.
        node: NodeId,
        /// Reason of the failure.
        reason: NotSent,
    },
    /// The peer, or this node, refused the other at the handshake. The service did not get the request.
    #[error("node {node} at {address}: {refusal}")]
    PeerRefused {
        /// The peer.
        node: NodeId,
        /// The address that was dialed.
        address: PeerAddress,
        /// Reason.
        refusal: HandshakeRefusal,
    },
    /// The service of the peer answered with a refusal.
    #[error("node {node} refused: {refusal}")]
    Refused {
        /// The peer.
        node: NodeId,
        /// The answer.
        refusal: ServiceRefusal,
    },
    /// The outcome is unknown: the request may have been carried out.
    #[error("node {node} may have carried out the request: {reason}")]
    Unknown {
        /// The peer.
        node: NodeId,
        /// Cause.
        reason: UnknownOutcome,
    },
}

/// Reason for which the service of a peer did not get a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotSent {
    /// No address is known.
    #[error("no address is known; start that node, or set cluster.seeds")]
    NoAddress,
    /// The node is removed from the cluster.
    #[error("it is removed from the cluster")]
    Removed,
    /// The node is this one.
    #[error("it is this node")]
    OwnNode,
    /// The peer could not be reached. The next attempt is at the end of the wait between two dials.
    #[error("{address} cannot be reached: {cause}")]
    Unreachable {
        /// The last address that was tried.
        address: PeerAddress,
        /// Cause of the last attempt.
        cause: String,
    },
    /// The deadline passed before the request could be sent.
    #[error("the deadline passed while it waited for the {0} connection")]
    Deadline(Channel),
    /// The peer executes as many requests of this node as it accepts.
    #[error("too many requests on the {0} connection; try again")]
    Busy(Channel),
    /// The request is larger than the limit.
    #[error("the request has {bytes} bytes, and at most {limit} can be sent")]
    TooLarge {
        /// Bytes of the request.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// The peer does not know the request: it runs another version.
    #[error("it does not accept the request, with status {0}: use the same version on both nodes")]
    NotUnderstood(u16),
    /// The connection closed before the request was sent.
    #[error("the {0} connection closed; try again")]
    Closed(Channel),
    /// This node stops.
    #[error("this node stops")]
    Stopping,
}

/// Error of a dial of an address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DialError {
    /// The address does not answer.
    #[error("{address} cannot be reached: {cause}")]
    Unreachable {
        /// The address.
        address: PeerAddress,
        /// Cause.
        cause: String,
    },
    /// One of the sides refused the other.
    #[error("{address}: {refusal}")]
    Refused {
        /// The address.
        address: PeerAddress,
        /// Reason.
        refusal: HandshakeRefusal,
    },
}

/// Error of a request to join.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JoinError {
    /// No address was given.
    #[error("no address of a member was given")]
    NoAddress,
    /// The request is too large.
    #[error("the request to join has {bytes} bytes, and at most {limit} are accepted")]
    TooLarge {
        /// Bytes of the request.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// No member was reached that accepts the token's authority. The request was not sent.
    #[error(transparent)]
    Dial(#[from] DialError),
    /// Members get too many requests to join. The request was not carried out.
    #[error("{address} gets too many requests to join: try again in a minute")]
    Busy {
        /// The last address.
        address: PeerAddress,
    },
    /// The member refused.
    #[error("the cluster refuses this node: {0}")]
    Refused(ServiceRefusal),
    /// The request may have been carried out. It may be repeated with the same key.
    #[error("the cluster may have accepted this node: {0}; repeat the command")]
    Unknown(UnknownOutcome),
}

/// Cause for which the outcome of a request is unknown.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnknownOutcome {
    /// No answer came before the deadline.
    #[error("no answer before the deadline")]
    Deadline,
    /// The connection broke before the answer.
    #[error("the connection broke before the answer: {0}")]
    Broken(String),
    /// The answer is not one of this protocol, or too large.
    #[error("the answer is not valid: {0}")]
    BadAnswer(String),
}

/// Refusal of a request by a service: a code that both sides define, and a text for people.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message} (code {code})")]
pub struct ServiceRefusal {
    /// Code of the service.
    pub code: u32,
    /// Problem and remedy; cut at [`mlgw_common::limits::REFUSAL_TEXT_BYTES_MAX`].
    pub message: String,
}

/// Error of a body that a peer sends.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PeerBodyError {
    /// The body ended before its end: its sender gave up, or the connection broke.
    #[error("the body was cut off: {0}")]
    Cut(String),
    /// The body of this side failed, and the other side was notified by a reset.
    #[error("the body failed: {0}")]
    Failed(String),
}

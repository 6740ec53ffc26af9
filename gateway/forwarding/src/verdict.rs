//! Encoding of a member's verdict about a forwarded request, which it gives before it reads more than the
//! head.

use crate::route::MapEpoch;
use bytes::Bytes;
use mlgw_common::NodeId;
use mlgw_common::limits::FORWARD_VERDICT_BYTES_MAX;
use prost::Message as _;

/// Bytes of a reason that are sent.
const REASON_BYTES_MAX: usize = 256;

/// Reason why a member cannot confirm that its rows are the newest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub enum UnconfirmedCause {
    /// A group has no leader that the member knows.
    Leader = 1,
    /// A group has no majority of voters that the member reaches.
    Majority = 2,
}

/// RoutingVerdict of a member about a forwarded request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RoutingVerdict {
    /// The member owns the key and will answer the request.
    Accepted {
        /// Epoch of its range map.
        epoch: MapEpoch,
    },
    /// The member does not own the key, or does not know the range map of the request yet.
    NotMine {
        /// Leader of the group that owns the key by its map.
        leader: Option<NodeId>,
        /// Epoch of its range map.
        epoch: MapEpoch,
    },
    /// The member has no room for the request.
    Busy {
        /// The shortage.
        reason: String,
    },
    /// No member can confirm that its rows are the newest, as far as this one knows. A build that does not
    /// know this verdict reads [`RoutingVerdict::Busy`].
    Unconfirmed {
        /// The kind of the reason.
        cause: UnconfirmedCause,
        /// The reason.
        reason: String,
    },
    /// The member cannot read the request.
    Refused {
        /// The defect.
        reason: String,
    },
}

/// The bytes are no verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the verdict about a forwarded request is malformed; both nodes may have different versions")]
pub struct MalformedVerdict;

#[derive(Clone, PartialEq, prost::Message)]
struct VerdictMessage {
    #[prost(oneof = "VerdictKind", tags = "1, 2, 3, 4")]
    kind: Option<VerdictKind>,
    /// Beside `Busy`: the verdict is `Unconfirmed`.
    #[prost(enumeration = "UnconfirmedCause", optional, tag = "5")]
    cause: Option<i32>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum VerdictKind {
    #[prost(message, tag = "1")]
    Accepted(AcceptedMessage),
    #[prost(message, tag = "2")]
    NotMine(NotMineMessage),
    #[prost(string, tag = "3")]
    Busy(String),
    #[prost(string, tag = "4")]
    Refused(String),
}

#[derive(Clone, PartialEq, prost::Message)]
struct AcceptedMessage {
    #[prost(uint64, tag = "1")]
    epoch: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct NotMineMessage {
    #[prost(uint64, tag = "1")]
    epoch: u64,
    #[prost(uint64, optional, tag = "2")]
    leader: Option<u64>,
}

impl RoutingVerdict {
    /// Encodes the verdict. A long reason is cut.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let kind = match self {
            Self::Accepted { epoch } => VerdictKind::Accepted(AcceptedMessage { epoch: epoch.0 }),
            Self::NotMine { leader, epoch } => {
                VerdictKind::NotMine(NotMineMessage { epoch: epoch.0, leader: leader.map(NodeId::get) })
            }
            Self::Busy { reason } | Self::Unconfirmed { reason, .. } => VerdictKind::Busy(shortened(reason)),
            Self::Refused { reason } => VerdictKind::Refused(shortened(reason)),
        };
        let cause = if let Self::Unconfirmed { cause, .. } = self { Some(*cause as i32) } else { None };
        let bytes = VerdictMessage { kind: Some(kind), cause }.encode_to_vec();
        assert!(bytes.len() <= FORWARD_VERDICT_BYTES_MAX, "a verdict is short");
        bytes.into()
    }

    /// Decodes a verdict.
    ///
    /// # Errors
    /// [`MalformedVerdict`].
    pub fn decode(bytes: &[u8]) -> Result<Self, MalformedVerdict> {
        if bytes.len() > FORWARD_VERDICT_BYTES_MAX {
            return Err(MalformedVerdict);
        }
        let message = VerdictMessage::decode(bytes).map_err(|_| MalformedVerdict)?;
        Ok(match message.kind.ok_or(MalformedVerdict)? {
            VerdictKind::Accepted(accepted) => Self::Accepted { epoch: MapEpoch(accepted.epoch) },
            VerdictKind::NotMine(other) => {
                Self::NotMine { leader: other.leader.map(NodeId), epoch: MapEpoch(other.epoch) }
            }
            VerdictKind::Busy(reason) => {
                let reason = shortened(&reason);
                // A kind of a later build is a shortage.
                match message.cause.and_then(|cause| UnconfirmedCause::try_from(cause).ok()) {
                    Some(cause) => Self::Unconfirmed { cause, reason },
                    None => Self::Busy { reason },
                }
            }
            VerdictKind::Refused(reason) => Self::Refused { reason: shortened(&reason) },
        })
    }
}

fn shortened(reason: &str) -> String {
    reason[..reason.floor_char_boundary(REASON_BYTES_MAX)].to_owned()
}

//! The handshake: the first request of every connection, its answer, and their judgment. Pure.
//!
//! A *hello* states the range of wire versions, the cluster, the node, its start, the connection and the
//! address of its sender. The answer is the hello of the other side, or a refusal. Both sides check: nothing
//! is served on a connection until both have accepted. The starts are checked by
//! [`mlgw_trust::PeerStarts`], which stores a new one before the answer is sent.

use crate::address::PeerAddress;
use crate::channel::Channel;
use mlgw_common::limits::{HANDSHAKE_BYTES_MAX, PEER_HANDSHAKE_MS, REFUSAL_TEXT_BYTES_MAX};
use mlgw_common::{ClusterId, Incarnation, NodeId};
use mlgw_trust::{CertifiedNode, NodeStart, StartRefusal};
use prost::Message as _;
use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

/// Time for TLS, and for the handshake of a peer.
pub(crate) const HANDSHAKE_LIMIT: Duration = Duration::from_millis(PEER_HANDSHAKE_MS);

/// Wire versions that a node supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WireVersions {
    /// The lowest.
    pub min: u32,
    /// The highest.
    pub max: u32,
}

impl WireVersions {
    /// Versions of this build.
    pub const OWN: Self = Self { min: 1, max: 1 };

    /// The version that both support: the lower of the two highest ones. `None` if there is none.
    #[must_use]
    pub fn common(self, other: Self) -> Option<u32> {
        let version = self.max.min(other.max);
        (version >= self.min && version >= other.min).then_some(version)
    }
}

impl fmt::Display for WireVersions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to {}", self.min, self.max)
    }
}

/// Statement of one side of a handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Wire versions that it supports.
    pub versions: WireVersions,
    /// Its cluster.
    pub cluster: ClusterId,
    /// Its id.
    pub node: NodeId,
    /// Its start.
    pub start: NodeStart,
    /// The connection.
    pub channel: Channel,
    /// Address under which others dial it.
    pub address: PeerAddress,
}

/// Reason for which one side of a handshake refuses the other.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeRefusal {
    /// There is no common wire version.
    #[error("this node supports wire versions {own}, the other {other}: upgrade the older one")]
    WireVersion {
        /// Versions of the side that refuses.
        own: WireVersions,
        /// Versions of the other.
        other: WireVersions,
    },
    /// The other side is in another cluster.
    #[error("this node is in cluster {own}, the other in {other}: correct the address")]
    Cluster {
        /// Cluster of the side that refuses.
        own: ClusterId,
        /// Cluster of the other.
        other: ClusterId,
    },
    /// The other side states an id that is not in its certificate.
    #[error("the certificate is of node {certified}, but the node states to be {stated}: let it join again")]
    NotItsCertificate {
        /// Id in the certificate.
        certified: NodeId,
        /// Id that it states.
        stated: NodeId,
    },
    /// Another node than the dialed one answers at the address.
    #[error("node {found} answers there instead of node {dialed}: correct the address")]
    WrongNode {
        /// The node that was dialed.
        dialed: NodeId,
        /// The node that answered.
        found: NodeId,
    },
    /// The other side has the id of this node.
    #[error("both sides are node {0}: correct the address, or stop the copy of the data directory")]
    OwnNode(NodeId),
    /// The other side is removed from the cluster.
    #[error("node {0} is removed from the cluster: let it join under a new id, with an empty data directory")]
    Removed(NodeId),
    /// The cluster has no record of the other side.
    #[error("node {0} is not a member of the cluster: remove its data and let it join")]
    NotMember(NodeId),
    /// The start of the other side is older than one that is known, or of a copy.
    #[error(transparent)]
    Start(#[from] StartRefusal),
    /// The start of the other side could not be stored. Another attempt may succeed.
    #[error("the start of the node could not be stored: {0}")]
    NotStored(String),
    /// The other side sent something else than a handshake of this protocol.
    #[error("the handshake is not valid: {0}")]
    Malformed(#[from] BadHandshake),
    /// One of the certificates is refused.
    #[error("TLS failed: {0}")]
    Tls(String),
    /// The peer refused this node.
    #[error("it refuses this node: {message}")]
    ByPeer {
        /// Code of the refusal, as of [`HandshakeRefusal::code`].
        code: u32,
        /// Reason, in the words of the peer.
        message: String,
    },
}

impl HandshakeRefusal {
    /// Code of [`Self::Start`], by which a node on an old copy of its disk finds out that it must stop.
    pub const START_CODE: u32 = 7;

    /// Code of [`Self::Removed`], by which a removed node finds out that it must stop.
    pub const REMOVED_CODE: u32 = 6;

    /// Number of the reason on the wire and in metrics.
    #[must_use]
    pub const fn code(&self) -> u32 {
        match self {
            Self::WireVersion { .. } => 1,
            Self::Cluster { .. } => 2,
            Self::NotItsCertificate { .. } => 3,
            Self::WrongNode { .. } => 4,
            Self::OwnNode(_) => 5,
            Self::Removed(_) => Self::REMOVED_CODE,
            // The start of the other side is not wrong.
            Self::Start(StartRefusal::TooManyNodes { .. }) => 12,
            Self::Start(_) => Self::START_CODE,
            Self::NotStored(_) => 8,
            Self::Malformed(_) => 9,
            Self::Tls(_) => 10,
            Self::NotMember(_) => 11,
            Self::ByPeer { code, .. } => *code,
        }
    }
}

/// Error of bytes that are no handshake.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadHandshake {
    /// There are too many.
    #[error("it has {0} bytes, and at most {HANDSHAKE_BYTES_MAX} are accepted")]
    TooLong(usize),
    /// They are not of the encoding.
    #[error("it cannot be decoded")]
    Encoding,
    /// A field is missing or has a value that none may have.
    #[error("its {0} is not valid")]
    Field(&'static str),
}

/// Facts about this side by which a hello is checked.
#[derive(Clone, Copy, Debug)]
pub struct HelloJudge<'a> {
    /// Wire versions of this node.
    pub versions: WireVersions,
    /// Its cluster.
    pub cluster: ClusterId,
    /// Its id.
    pub node: NodeId,
    /// Ids that are refused for ever.
    pub removed: &'a BTreeSet<NodeId>,
}

impl HelloJudge<'_> {
    /// Returns the wire version of the connection, or the reason to refuse the sender of `hello`, whose
    /// certificate is `certified`. The caller judges the start afterwards.
    ///
    /// # Errors
    /// The first reason to refuse it.
    pub fn judge(&self, certified: CertifiedNode, hello: &Hello) -> Result<u32, HandshakeRefusal> {
        let Some(version) = self.versions.common(hello.versions) else {
            return Err(HandshakeRefusal::WireVersion { own: self.versions, other: hello.versions });
        };
        for other in [certified.cluster, hello.cluster] {
            if other != self.cluster {
                return Err(HandshakeRefusal::Cluster { own: self.cluster, other });
            }
        }
        if certified.node != hello.node {
            let (certified, stated) = (certified.node, hello.node);
            return Err(HandshakeRefusal::NotItsCertificate { certified, stated });
        }
        if hello.node == self.node {
            return Err(HandshakeRefusal::OwnNode(hello.node));
        }
        if self.removed.contains(&hello.node) {
            return Err(HandshakeRefusal::Removed(hello.node));
        }
        Ok(version)
    }
}

#[derive(Clone, PartialEq, prost::Message)]
struct HelloMessage {
    #[prost(uint32, tag = "1")]
    version_min: u32,
    #[prost(uint32, tag = "2")]
    version_max: u32,
    #[prost(fixed64, tag = "3")]
    cluster: u64,
    #[prost(uint64, tag = "4")]
    node: u64,
    #[prost(fixed64, tag = "5")]
    incarnation: u64,
    #[prost(uint64, tag = "6")]
    counter: u64,
    #[prost(fixed64, tag = "7")]
    nonce: u64,
    /// Number of the connection, plus 1.
    #[prost(uint32, tag = "8")]
    channel: u32,
    #[prost(string, tag = "9")]
    address: String,
}

/// Refusal of a handshake or by a service: 0 is a code like any other, so presence is marked by the message.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct RefusalMessage {
    #[prost(uint32, tag = "1")]
    pub(crate) code: u32,
    #[prost(string, tag = "2")]
    pub(crate) message: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct AnswerMessage {
    #[prost(message, optional, tag = "1")]
    accepted: Option<HelloMessage>,
    #[prost(message, optional, tag = "2")]
    refused: Option<RefusalMessage>,
}

impl Hello {
    /// Bytes of the hello.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        self.message().encode_to_vec()
    }

    /// Decodes a hello.
    ///
    /// # Errors
    /// See [`BadHandshake`].
    pub fn decode(bytes: &[u8]) -> Result<Self, BadHandshake> {
        check_length(bytes)?;
        Self::of_message(HelloMessage::decode(bytes).map_err(|_| BadHandshake::Encoding)?)
    }

    fn message(&self) -> HelloMessage {
        HelloMessage {
            version_min: self.versions.min,
            version_max: self.versions.max,
            cluster: self.cluster.0,
            node: self.node.0,
            incarnation: self.start.incarnation.0,
            counter: self.start.counter,
            nonce: self.start.nonce,
            channel: u32::try_from(self.channel.index() + 1).unwrap_or(u32::MAX),
            address: self.address.as_str().to_owned(),
        }
    }

    fn of_message(message: HelloMessage) -> Result<Self, BadHandshake> {
        let versions = WireVersions { min: message.version_min, max: message.version_max };
        if versions.min == 0 || versions.min > versions.max {
            return Err(BadHandshake::Field("range of wire versions"));
        }
        if message.node == 0 {
            return Err(BadHandshake::Field("node id"));
        }
        if message.counter == 0 {
            return Err(BadHandshake::Field("start counter"));
        }
        let number = usize::try_from(message.channel).ok();
        let channel = number.and_then(|number| Channel::ALL.get(number.checked_sub(1)?).copied());
        Ok(Self {
            versions,
            cluster: ClusterId(message.cluster),
            node: NodeId(message.node),
            start: NodeStart {
                incarnation: Incarnation(message.incarnation),
                counter: message.counter,
                nonce: message.nonce,
            },
            channel: channel.ok_or(BadHandshake::Field("connection"))?,
            address: message.address.parse().map_err(|_| BadHandshake::Field("address"))?,
        })
    }
}

/// Bytes of the answer to a hello.
#[must_use]
pub fn encode_answer(answer: &Result<Hello, HandshakeRefusal>) -> Vec<u8> {
    let message = match answer {
        Ok(hello) => AnswerMessage { accepted: Some(hello.message()), refused: None },
        Err(refusal) => {
            let refused = RefusalMessage { code: refusal.code(), message: cut(refusal.to_string()) };
            AnswerMessage { accepted: None, refused: Some(refused) }
        }
    };
    message.encode_to_vec()
}

/// Decodes the answer to a hello: the hello of the other side, or its refusal.
///
/// # Errors
/// [`HandshakeRefusal::ByPeer`] if the peer refused, [`HandshakeRefusal::Malformed`] for other bytes.
pub fn decode_answer(bytes: &[u8]) -> Result<Hello, HandshakeRefusal> {
    check_length(bytes)?;
    let answer = AnswerMessage::decode(bytes).map_err(|_| BadHandshake::Encoding)?;
    match (answer.accepted, answer.refused) {
        (Some(hello), None) => Ok(Hello::of_message(hello)?),
        (None, Some(refused)) => {
            Err(HandshakeRefusal::ByPeer { code: refused.code, message: cut(refused.message) })
        }
        (Some(_), Some(_)) | (None, None) => Err(BadHandshake::Encoding.into()),
    }
}

fn check_length(bytes: &[u8]) -> Result<(), BadHandshake> {
    if bytes.len() > HANDSHAKE_BYTES_MAX {
        return Err(BadHandshake::TooLong(bytes.len()));
    }
    Ok(())
}

/// Cuts a text at the longest length of a refusal.
pub(crate) fn cut(mut text: String) -> String {
    if text.len() > REFUSAL_TEXT_BYTES_MAX {
        text.truncate(text.floor_char_boundary(REFUSAL_TEXT_BYTES_MAX));
    }
    text
}

#[cfg(test)]
mod tests;

//! Request of a node that joins a cluster, and the answer of a member, as bytes.
//!
//! Both are one byte for the version and then a protobuf message. Decoders are pure, check the limit of every
//! field, and never panic: requests come from anybody. The decoded secret of a token and key of a cluster are
//! wiped when they are dropped, and no `Debug` shows them. Nothing is stored.

use bytes::Bytes;
use mlgw_common::limits::{
    AUTHORITIES_MAX, AUTHORITY_BYTES_MAX, CERTIFICATE_REQUEST_BYTES_MAX, INCARNATIONS_MAX, JOIN_BYTES_MAX,
    NODE_TEXT_BYTES_MAX, PEER_ADDRESS_BYTES_MAX, TRUSTED_AUTHORITIES_MAX,
};
use mlgw_common::{ClusterId, Incarnation, NodeId};
use mlgw_formats::schema::NodeRole;
use mlgw_transport::PeerAddress;
use mlgw_trust::{TokenId, Validity};
use prost::Message;
use std::fmt;
use zeroize::{Zeroize as _, Zeroizing};

/// Version of both encodings.
const VERSION: u8 = 1;

/// Bytes of the secret of a token.
const SECRET_BYTES: usize = 32;

/// Largest certificate of a node, which has about 500 bytes.
const NODE_CERTIFICATE_BYTES_MAX: usize = 4 << 10;

/// Longest text of a cluster's key, which has 84 bytes.
const CLUSTER_KEY_BYTES_MAX: usize = 256;

/// Members that an answer names; one that answers is enough.
pub(crate) const JOIN_MEMBERS_MAX: usize = 32;

// The largest answer of a member can be sent.
const _: () = {
    let members = JOIN_MEMBERS_MAX * (PEER_ADDRESS_BYTES_MAX + 24);
    let certificates = AUTHORITIES_MAX * AUTHORITY_BYTES_MAX + NODE_CERTIFICATE_BYTES_MAX;
    assert!(INCARNATIONS_MAX * 8 + members + certificates + CLUSTER_KEY_BYTES_MAX + 1024 <= JOIN_BYTES_MAX);
};

/// Error of bytes that are no request to join, or no answer to one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadJoinMessage {
    /// There are too many.
    #[error("it has {0} bytes, and at most {JOIN_BYTES_MAX} are accepted")]
    Length(usize),
    /// There are none.
    #[error("it is empty")]
    Empty,
    /// A later version made it.
    #[error(
        "it has version {0}, and the receiver supports {VERSION}: use the same version of mlgw on both nodes"
    )]
    Version(u8),
    /// It is no message.
    #[error("it cannot be decoded ({0}): use the same version of mlgw on both nodes")]
    Encoding(String),
    /// A field is missing, or outside its limits.
    #[error("its {field} {problem}")]
    Field {
        /// The field.
        field: &'static str,
        /// Problem, after the name of the field.
        problem: String,
    },
}

impl BadJoinMessage {
    fn field(field: &'static str, problem: impl Into<String>) -> Self {
        Self::Field { field, problem: problem.into() }
    }
}

/// Request of a node that joins. The certificate request, the address and the role are not verified yet.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct JoinRequest {
    /// Id of the token.
    pub(crate) token: TokenId,
    /// Secret of the token.
    pub(crate) secret: Zeroizing<[u8; SECRET_BYTES]>,
    /// Encoded request for a certificate.
    pub(crate) certificate_request: Vec<u8>,
    /// Address at which other nodes dial the node.
    pub(crate) address: String,
    /// Name for operators.
    pub(crate) name: String,
    /// Number of the role.
    pub(crate) role: i32,
    /// Build of the node.
    pub(crate) build: String,
    /// Newest cluster version that the build knows.
    pub(crate) cluster_version: u32,
}

impl fmt::Debug for JoinRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JoinRequest(token {}, address {:?}, …)", self.token, self.address)
    }
}

#[derive(Clone, PartialEq, prost::Message)]
#[prost(skip_debug)]
struct JoinRequestMessage {
    #[prost(fixed64, tag = "1")]
    token: u64,
    #[prost(bytes = "vec", tag = "2")]
    secret: Vec<u8>,
    #[prost(bytes = "vec", tag = "3")]
    certificate_request: Vec<u8>,
    #[prost(string, tag = "4")]
    address: String,
    #[prost(string, tag = "5")]
    name: String,
    #[prost(int32, tag = "6")]
    role: i32,
    #[prost(string, tag = "7")]
    build: String,
    #[prost(uint32, tag = "8")]
    cluster_version: u32,
}

impl JoinRequest {
    /// Bytes of the request. They have the secret.
    pub(crate) fn encode(&self) -> Bytes {
        let mut message = JoinRequestMessage {
            token: self.token.0,
            secret: self.secret.to_vec(),
            certificate_request: self.certificate_request.clone(),
            address: self.address.clone(),
            name: self.name.clone(),
            role: self.role,
            build: self.build.clone(),
            cluster_version: self.cluster_version,
        };
        let bytes = encode(&message);
        message.secret.zeroize();
        bytes
    }

    /// Decodes a request.
    ///
    /// # Errors
    /// See [`BadJoinMessage`].
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, BadJoinMessage> {
        let mut message: JoinRequestMessage = decode(bytes)?;
        let secret = Zeroizing::new(std::mem::take(&mut message.secret));
        let problem = || format!("has {} bytes instead of {SECRET_BYTES}", secret.len());
        let secret = <[u8; SECRET_BYTES]>::try_from(&secret[..])
            .map(Zeroizing::new)
            .map_err(|_| BadJoinMessage::field("secret", problem()))?;
        let request = message.certificate_request.len();
        check_length("certificate request", request, CERTIFICATE_REQUEST_BYTES_MAX)?;
        check_length("address", message.address.len(), PEER_ADDRESS_BYTES_MAX)?;
        check_length("name", message.name.len(), NODE_TEXT_BYTES_MAX)?;
        check_length("build", message.build.len(), NODE_TEXT_BYTES_MAX)?;
        Ok(Self {
            token: TokenId(message.token),
            secret,
            certificate_request: message.certificate_request,
            address: message.address,
            name: message.name,
            role: message.role,
            build: message.build,
            cluster_version: message.cluster_version,
        })
    }
}

/// A member that a new node may dial.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JoinMember {
    /// The member.
    pub(crate) node: NodeId,
    /// Its address.
    pub(crate) address: PeerAddress,
}

/// Answer of a member to a node that it admitted.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct JoinAnswer {
    /// The cluster.
    pub(crate) cluster: ClusterId,
    /// Its timeline.
    pub(crate) incarnation: Incarnation,
    /// The timelines that it descends from, the oldest first.
    pub(crate) earlier: Vec<Incarnation>,
    /// Id of the new node.
    pub(crate) node: NodeId,
    /// Role in the record of the new node.
    pub(crate) role: NodeRole,
    /// Certificate of the new node, DER.
    pub(crate) certificate: Vec<u8>,
    /// Validity of the certificate.
    pub(crate) validity: Validity,
    /// Certificates of the authorities, DER; the one that signed the node's certificate comes first.
    pub(crate) authorities: Vec<Vec<u8>>,
    /// Text of the key file of the cluster.
    pub(crate) cluster_key: Zeroizing<String>,
    /// Members of the cluster, at most [`JOIN_MEMBERS_MAX`].
    pub(crate) members: Vec<JoinMember>,
}

impl fmt::Debug for JoinAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JoinAnswer(node {} of {}, {:?}, …)", self.node, self.cluster, self.role)
    }
}

#[derive(Clone, PartialEq, prost::Message)]
#[prost(skip_debug)]
struct JoinAnswerMessage {
    #[prost(fixed64, tag = "1")]
    cluster: u64,
    #[prost(fixed64, tag = "2")]
    incarnation: u64,
    #[prost(fixed64, repeated, tag = "3")]
    earlier: Vec<u64>,
    #[prost(uint64, tag = "4")]
    node: u64,
    #[prost(int32, tag = "5")]
    role: i32,
    #[prost(bytes = "vec", tag = "6")]
    certificate: Vec<u8>,
    #[prost(int64, tag = "7")]
    not_before_ms: i64,
    #[prost(int64, tag = "8")]
    not_after_ms: i64,
    #[prost(bytes = "vec", repeated, tag = "9")]
    authorities: Vec<Vec<u8>>,
    #[prost(string, tag = "10")]
    cluster_key: String,
    #[prost(message, repeated, tag = "11")]
    members: Vec<JoinMemberMessage>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct JoinMemberMessage {
    #[prost(uint64, tag = "1")]
    node: u64,
    #[prost(string, tag = "2")]
    address: String,
}

impl JoinAnswer {
    /// Bytes of the answer. They have the key of the cluster.
    pub(crate) fn encode(&self) -> Bytes {
        let member = |member: &JoinMember| JoinMemberMessage {
            node: member.node.0,
            address: member.address.as_str().to_owned(),
        };
        let mut message = JoinAnswerMessage {
            cluster: self.cluster.0,
            incarnation: self.incarnation.0,
            earlier: self.earlier.iter().map(|earlier| earlier.0).collect(),
            node: self.node.0,
            role: self.role as i32,
            certificate: self.certificate.clone(),
            not_before_ms: self.validity.not_before_ms,
            not_after_ms: self.validity.not_after_ms,
            authorities: self.authorities.clone(),
            cluster_key: self.cluster_key.as_str().to_owned(),
            members: self.members.iter().map(member).collect(),
        };
        let bytes = encode(&message);
        message.cluster_key.zeroize();
        bytes
    }

    /// Decodes an answer.
    ///
    /// # Errors
    /// See [`BadJoinMessage`].
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, BadJoinMessage> {
        let mut message: JoinAnswerMessage = decode(bytes)?;
        let cluster_key = Zeroizing::new(std::mem::take(&mut message.cluster_key));
        check_answer(&message)?;
        check_bytes("cluster key", cluster_key.len(), CLUSTER_KEY_BYTES_MAX)?;
        let role = NodeRole::try_from(message.role)
            .map_err(|_| BadJoinMessage::field("role", format!("{} is unknown", message.role)))?;
        Ok(Self {
            cluster: ClusterId(message.cluster),
            incarnation: Incarnation(message.incarnation),
            earlier: message.earlier.into_iter().map(Incarnation).collect(),
            node: NodeId(message.node),
            role,
            certificate: message.certificate,
            validity: Validity { not_before_ms: message.not_before_ms, not_after_ms: message.not_after_ms },
            authorities: message.authorities,
            cluster_key,
            members: message.members.into_iter().map(member).collect::<Result<_, _>>()?,
        })
    }
}

/// Checks the fields of an answer whose types allow values that no member sends.
fn check_answer(message: &JoinAnswerMessage) -> Result<(), BadJoinMessage> {
    for (field, number) in
        [("cluster", message.cluster), ("timeline", message.incarnation), ("node", message.node)]
    {
        if number == 0 {
            return Err(BadJoinMessage::field(field, "is missing"));
        }
    }
    check_count("earlier timelines", message.earlier.len(), INCARNATIONS_MAX)?;
    if message.earlier.contains(&0) {
        return Err(BadJoinMessage::field("earlier timelines", "contain 0"));
    }
    check_bytes("certificate", message.certificate.len(), NODE_CERTIFICATE_BYTES_MAX)?;
    if message.not_before_ms >= message.not_after_ms {
        return Err(BadJoinMessage::field("certificate", "ends before it begins"));
    }
    if message.authorities.is_empty() {
        return Err(BadJoinMessage::field("authorities", "are missing"));
    }
    check_count("authorities", message.authorities.len(), TRUSTED_AUTHORITIES_MAX)?;
    for authority in &message.authorities {
        check_bytes("authority", authority.len(), AUTHORITY_BYTES_MAX)?;
    }
    check_count("members", message.members.len(), JOIN_MEMBERS_MAX)
}

fn member(message: JoinMemberMessage) -> Result<JoinMember, BadJoinMessage> {
    let JoinMemberMessage { node, address } = message;
    if node == 0 {
        return Err(BadJoinMessage::field("members", "contain node 0"));
    }
    let address = address.parse::<PeerAddress>();
    let address =
        address.map_err(|bad| BadJoinMessage::field("members", format!("have an address: {bad}")))?;
    Ok(JoinMember { node: NodeId(node), address })
}

fn check_length(field: &'static str, bytes: usize, max: usize) -> Result<(), BadJoinMessage> {
    if bytes <= max {
        return Ok(());
    }
    Err(BadJoinMessage::field(field, format!("has {bytes} bytes, more than {max}")))
}

/// Checks a field that must not be empty.
fn check_bytes(field: &'static str, bytes: usize, max: usize) -> Result<(), BadJoinMessage> {
    if bytes == 0 { Err(BadJoinMessage::field(field, "is empty")) } else { check_length(field, bytes, max) }
}

fn check_count(field: &'static str, count: usize, max: usize) -> Result<(), BadJoinMessage> {
    if count <= max {
        return Ok(());
    }
    Err(BadJoinMessage::field(field, format!("are {count}, more than {max}")))
}

fn encode(message: &impl Message) -> Bytes {
    let mut bytes = Vec::with_capacity(1 + message.encoded_len());
    bytes.push(VERSION);
    message.encode_raw(&mut bytes);
    Bytes::from(bytes)
}

fn decode<M: Message + Default>(bytes: &[u8]) -> Result<M, BadJoinMessage> {
    if bytes.len() > JOIN_BYTES_MAX {
        return Err(BadJoinMessage::Length(bytes.len()));
    }
    match bytes.split_first() {
        Some((&VERSION, message)) => {
            M::decode(message).map_err(|error| BadJoinMessage::Encoding(error.to_string()))
        }
        Some((&other, _)) => Err(BadJoinMessage::Version(other)),
        None => Err(BadJoinMessage::Empty),
    }
}

// The fuzz targets compile this file under another path.
#[cfg(test)]
#[path = "join_wire/tests.rs"]
mod tests;

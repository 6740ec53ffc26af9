//! Encoding of the head of a forwarded request: the request's own head as it was received, and the facts that
//! only the receiving node knows.
//!
//! The decoder accepts what another version of this program may have sent, and refuses anything else with its
//! reason before it allocates more than the size of its input.

use crate::header_block::{self, HeaderBlockError};
use crate::route::{MapEpoch, RouteTarget};
use bytes::Bytes;
use http::request::Parts;
use http::uri::Uri;
use http::{Method, Version};
use mlgw_common::Timestamp;
use mlgw_common::limits::{BUCKET_NAME_LEN_MAX, FORWARDED_HEAD_BYTES_MAX, REQUEST_ID_BYTES_MAX};
use prost::Message as _;
use std::net::{IpAddr, SocketAddr};

/// Version of the encoding. A member refuses heads of a later one.
const HEAD_VERSION: u32 = 1;

/// Facts about a forwarded request besides its own head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForwardedContext {
    /// Address of the client, without the scope of an IPv6 address.
    pub client: SocketAddr,
    /// True if the client's connection is encrypted.
    pub is_secure: bool,
    /// Time at which the forwarding node received the head. Signatures are verified by it.
    pub received: Timestamp,
    /// Id in the response and in the logs of both nodes.
    pub request_id: String,
    /// Epoch of the range map by which the member was chosen.
    pub epoch: MapEpoch,
    /// Bucket and key as the forwarding node reads them from the head.
    pub target: ForwardedTarget,
    /// Body that the client announced.
    pub body: DeclaredBody,
}

/// Bucket and key that a node reads from the head of a request. The bucket may be in the host: nodes with
/// other host names of buckets read another one from the same head, and the signature is valid for both.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ForwardedTarget {
    bucket: Option<String>,
    key: Option<String>,
}

impl ForwardedTarget {
    /// Returns the target of a request. A name that is too long for a bucket is cut, so that it fits beside
    /// the head.
    #[must_use]
    pub fn of(target: RouteTarget<'_>) -> Self {
        let cut = |name: &str| name[..name.floor_char_boundary(BUCKET_NAME_LEN_MAX + 1)].to_owned();
        Self { bucket: target.bucket.map(cut), key: target.key.map(str::to_owned) }
    }
}

/// Body of a request as its HTTP framing announces it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeclaredBody {
    /// No bytes.
    Empty,
    /// This number of bytes.
    Sized(u64),
    /// Bytes up to the end of the stream.
    Unsized,
}

impl DeclaredBody {
    /// Returns the announcement of a body that was not read yet.
    pub fn of(body: &impl http_body::Body) -> Self {
        match body.size_hint().exact() {
            _ if body.is_end_stream() => Self::Empty,
            Some(0) => Self::Empty,
            Some(bytes) => Self::Sized(bytes),
            None => Self::Unsized,
        }
    }
}

/// Error of encoding or decoding the head of a forwarded request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeadError {
    /// The head has too many bytes.
    #[error("the head of the forwarded request has {0} bytes, more than {FORWARDED_HEAD_BYTES_MAX}")]
    TooLong(usize),
    /// The bytes are no message.
    #[error("the head of the forwarded request is not a message: {0}")]
    NotMessage(String),
    /// The head is from a later version of this program.
    #[error("the head of the forwarded request has version {0}; upgrade this node")]
    Version(u32),
    /// A field has no valid value.
    #[error("the head of the forwarded request has an invalid {0}")]
    Field(&'static str),
    /// A header line cannot be encoded or decoded.
    #[error("the head of the forwarded request: {0}")]
    Headers(#[from] HeaderBlockError),
}

#[derive(Clone, PartialEq, prost::Message)]
struct HeadMessage {
    #[prost(uint32, tag = "1")]
    version: u32,
    #[prost(uint64, tag = "2")]
    epoch: u64,
    #[prost(bytes = "bytes", tag = "3")]
    request_id: Bytes,
    #[prost(int64, tag = "4")]
    received_ms: i64,
    #[prost(bytes = "bytes", tag = "5")]
    client_ip: Bytes,
    #[prost(uint32, tag = "6")]
    client_port: u32,
    #[prost(bool, tag = "7")]
    is_secure: bool,
    /// Major version of HTTP times ten, plus the minor version.
    #[prost(uint32, tag = "8")]
    http_version: u32,
    #[prost(bytes = "bytes", tag = "9")]
    method: Bytes,
    #[prost(bytes = "bytes", tag = "10")]
    target: Bytes,
    #[prost(bytes = "bytes", tag = "11")]
    headers: Bytes,
    #[prost(bool, tag = "12")]
    has_body: bool,
    #[prost(uint64, optional, tag = "13")]
    body_bytes: Option<u64>,
    #[prost(string, optional, tag = "14")]
    bucket: Option<String>,
    #[prost(string, optional, tag = "15")]
    key: Option<String>,
}

/// Encodes the head of a request and the facts about it.
///
/// # Errors
/// See [`HeadError`]. A head that the listener and [`mlgw_wire::headers::check_size`] accept fails only for a
/// very long host.
pub fn encode_head(head: &Parts, context: &ForwardedContext) -> Result<Bytes, HeadError> {
    assert!(is_request_id(context.request_id.as_bytes()), "the id of a request is made here");
    let ip = match context.client.ip() {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let message = HeadMessage {
        version: HEAD_VERSION,
        epoch: context.epoch.0,
        request_id: context.request_id.clone().into(),
        received_ms: context.received.as_millis(),
        client_ip: ip.into(),
        client_port: context.client.port().into(),
        is_secure: context.is_secure,
        http_version: number_of(head.version).ok_or(HeadError::Field("HTTP version"))?,
        method: Bytes::copy_from_slice(head.method.as_str().as_bytes()),
        target: head.uri.to_string().into(),
        headers: header_block::encode(&head.headers)?,
        has_body: context.body != DeclaredBody::Empty,
        body_bytes: match context.body {
            DeclaredBody::Sized(bytes) => Some(bytes),
            DeclaredBody::Empty | DeclaredBody::Unsized => None,
        },
        bucket: context.target.bucket.clone(),
        key: context.target.key.clone(),
    };
    let bytes = message.encode_to_vec();
    if bytes.len() > FORWARDED_HEAD_BYTES_MAX {
        return Err(HeadError::TooLong(bytes.len()));
    }
    Ok(bytes.into())
}

/// Decodes the head of a forwarded request.
///
/// # Errors
/// See [`HeadError`].
pub fn decode_head(bytes: Bytes) -> Result<(Parts, ForwardedContext), HeadError> {
    if bytes.len() > FORWARDED_HEAD_BYTES_MAX {
        return Err(HeadError::TooLong(bytes.len()));
    }
    let message = HeadMessage::decode(bytes).map_err(|error| HeadError::NotMessage(error.to_string()))?;
    if message.version != HEAD_VERSION {
        return Err(HeadError::Version(message.version));
    }
    let context = ForwardedContext {
        client: client_of(&message)?,
        is_secure: message.is_secure,
        received: Timestamp(message.received_ms),
        request_id: request_id_of(&message.request_id)?,
        epoch: MapEpoch(message.epoch),
        body: match (message.has_body, message.body_bytes) {
            (false, None) => DeclaredBody::Empty,
            (true, None) => DeclaredBody::Unsized,
            (true, Some(bytes)) if bytes > 0 => DeclaredBody::Sized(bytes),
            (_, Some(_)) => return Err(HeadError::Field("length of the body")),
        },
        target: ForwardedTarget { bucket: message.bucket, key: message.key },
    };
    let mut head = http::Request::new(()).into_parts().0;
    head.version = version_of(message.http_version).ok_or(HeadError::Field("HTTP version"))?;
    head.method = Method::from_bytes(&message.method).map_err(|_| HeadError::Field("method"))?;
    head.uri = Uri::from_maybe_shared(message.target).map_err(|_| HeadError::Field("target"))?;
    head.headers = header_block::decode(message.headers)?;
    Ok((head, context))
}

fn client_of(message: &HeadMessage) -> Result<SocketAddr, HeadError> {
    let invalid = HeadError::Field("client address");
    let port = u16::try_from(message.client_port).map_err(|_| invalid.clone())?;
    let ip = match (<[u8; 4]>::try_from(&message.client_ip[..]), <[u8; 16]>::try_from(&message.client_ip[..]))
    {
        (Ok(octets), _) => IpAddr::from(octets),
        (_, Ok(octets)) => IpAddr::from(octets),
        (Err(_), Err(_)) => return Err(invalid),
    };
    Ok(SocketAddr::new(ip, port))
}

fn request_id_of(id: &Bytes) -> Result<String, HeadError> {
    let text = std::str::from_utf8(id).ok().filter(|id| is_request_id(id.as_bytes()));
    text.map(str::to_owned).ok_or(HeadError::Field("request id"))
}

fn is_request_id(id: &[u8]) -> bool {
    (1..=REQUEST_ID_BYTES_MAX).contains(&id.len()) && id.iter().all(u8::is_ascii_hexdigit)
}

fn number_of(version: Version) -> Option<u32> {
    match version {
        Version::HTTP_10 => Some(10),
        Version::HTTP_11 => Some(11),
        Version::HTTP_2 => Some(20),
        _ => None,
    }
}

fn version_of(number: u32) -> Option<Version> {
    match number {
        10 => Some(Version::HTTP_10),
        11 => Some(Version::HTTP_11),
        20 => Some(Version::HTTP_2),
        _ => None,
    }
}

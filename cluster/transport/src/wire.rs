//! Requests and answers of the protocol on HTTP/2: paths, headers, statuses and the frame of a head.
//!
//! The head of a stream is the beginning of its body: 4 bytes of length (big-endian) and the bytes. A body of
//! a stream ends with a trailer; one without it was cut off, however the connection ended.

use crate::channel::StreamClass;
use crate::error::{PeerBodyError, ServiceRefusal};
use crate::handshake::{RefusalMessage, cut};
use bytes::{Buf as _, Bytes, BytesMut};
use http::header::CONTENT_LENGTH;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri, request};
use http_body::Body;
use http_body_util::BodyExt as _;
use mlgw_common::limits::{HANDSHAKE_BYTES_MAX, PEER_STREAM_HEAD_BYTES_MAX};
use mlgw_common::time::Instant;
use prost::Message as _;
use std::time::Duration;

/// Path of the handshake.
pub(crate) const HANDSHAKE_PATH: &str = "/mlgw/handshake";
/// Path of a request to join.
pub(crate) const JOIN_PATH: &str = "/mlgw/join";
/// Path of calls, before the number of the service.
const CALL_PATH: &str = "/mlgw/call/";
/// Path of streams, before the class and the number of the service.
const STREAM_PATH: &str = "/mlgw/stream/";

const DEADLINE: HeaderName = HeaderName::from_static("mlgw-deadline-ms");
const END: HeaderName = HeaderName::from_static("mlgw-end");

/// Longest wait that a peer may state.
pub(crate) const DEADLINE_MAX: Duration = Duration::from_hours(1);

/// Status of an answer of a service.
pub(crate) const ANSWERED: StatusCode = StatusCode::OK;
/// Status of a refusal by a service, with a [`RefusalMessage`] as its body.
pub(crate) const REFUSED: StatusCode = StatusCode::UNPROCESSABLE_ENTITY;
/// Status of a request that no service got, because there are too many.
pub(crate) const BUSY: StatusCode = StatusCode::SERVICE_UNAVAILABLE;
/// Status of a request that no service got, because it is not one of this protocol.
pub(crate) const NOT_UNDERSTOOD: StatusCode = StatusCode::BAD_REQUEST;
/// Status of a service that panicked, or whose answer is too large.
pub(crate) const FAILED: StatusCode = StatusCode::INTERNAL_SERVER_ERROR;

/// Target of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PeerTarget {
    Handshake,
    Join,
    Call { service: u16 },
    Stream { class: StreamClass, service: u16 },
}

impl PeerTarget {
    /// Target of a path; `None` for any other path.
    pub(crate) fn of_path(path: &str) -> Option<Self> {
        match path {
            HANDSHAKE_PATH => return Some(Self::Handshake),
            JOIN_PATH => return Some(Self::Join),
            _ => {}
        }
        if let Some(service) = path.strip_prefix(CALL_PATH) {
            return Some(Self::Call { service: number(service)? });
        }
        let (class, service) = path.strip_prefix(STREAM_PATH)?.split_once('/')?;
        Some(Self::Stream { class: StreamClass::of_name(class.as_bytes())?, service: number(service)? })
    }

    fn path(self) -> String {
        match self {
            Self::Handshake => HANDSHAKE_PATH.to_owned(),
            Self::Join => JOIN_PATH.to_owned(),
            Self::Call { service } => format!("{CALL_PATH}{service}"),
            Self::Stream { class, service } => format!("{STREAM_PATH}{}/{service}", class.name()),
        }
    }

    /// Makes a request. The host is no name: peers are known by their certificates.
    pub(crate) fn request<B: Body>(self, body: B, deadline: Instant) -> Request<B> {
        let length = body.size_hint().exact();
        let mut request = Request::new(body);
        if let Some(length) = length {
            request.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(length));
        }
        *request.method_mut() = Method::POST;
        let uri = Uri::builder().scheme("https").authority("node").path_and_query(self.path()).build();
        debug_assert!(uri.is_ok(), "a path of fixed words and numbers is valid");
        *request.uri_mut() = uri.unwrap_or_default();
        let wait = deadline.saturating_duration_since(Instant::now());
        let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
        request.headers_mut().insert(DEADLINE, HeaderValue::from(wait_ms));
        request
    }
}

/// A number without signs or leading zeros.
fn number(text: &str) -> Option<u16> {
    text.parse::<u16>().ok().filter(|number| number.to_string() == text)
}

/// Time at which the sender of a request stops waiting; `None` if the header is missing or not valid.
pub(crate) fn deadline(head: &request::Parts, now: Instant) -> Option<Instant> {
    let wait_ms = head.headers.get(DEADLINE)?.to_str().ok()?.parse().ok()?;
    Some(now + Duration::from_millis(wait_ms).min(DEADLINE_MAX))
}

/// Length of a body by its header; `None` if it is missing or not valid.
pub(crate) fn content_length(headers: &HeaderMap) -> Option<usize> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// Trailer of a body that is complete.
pub(crate) fn end_trailer() -> HeaderMap {
    HeaderMap::from_iter([(END, HeaderValue::from_static("1"))])
}

/// True if a trailer marks a body as complete.
pub(crate) fn is_end(trailers: &HeaderMap) -> bool {
    trailers.get(END).is_some_and(|value| value == "1")
}

/// Response with a status and a body, whose length is stated if it is known: an end without it could be that
/// of a stream that was reset.
pub(crate) fn response<B: Body>(status: StatusCode, body: B) -> Response<B> {
    let length = body.size_hint().exact();
    let mut response = Response::new(body);
    *response.status_mut() = status;
    if let Some(length) = length {
        response.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(length));
    }
    response
}

/// Bytes of a refusal by a service.
pub(crate) fn encode_refusal(refusal: ServiceRefusal) -> Bytes {
    RefusalMessage { code: refusal.code, message: cut(refusal.message) }.encode_to_vec().into()
}

/// Decodes the refusal by a service; `None` for other bytes.
pub(crate) fn decode_refusal(bytes: &[u8]) -> Option<ServiceRefusal> {
    if bytes.len() > HANDSHAKE_BYTES_MAX {
        return None;
    }
    let refusal = RefusalMessage::decode(bytes).ok()?;
    Some(ServiceRefusal { code: refusal.code, message: cut(refusal.message) })
}

/// Frame of the head of a stream.
pub(crate) fn frame_head(head: &[u8]) -> Bytes {
    assert!(head.len() <= PEER_STREAM_HEAD_BYTES_MAX, "the caller checks the length of a head");
    let length = u32::try_from(head.len()).unwrap_or(u32::MAX);
    let mut frame = BytesMut::with_capacity(4 + head.len());
    frame.extend_from_slice(&length.to_be_bytes());
    frame.extend_from_slice(head);
    frame.freeze()
}

/// Head of a stream, and the bytes of the body that came with it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct HeadAndRest {
    pub(crate) head: Bytes,
    pub(crate) rest: Bytes,
}

/// Collects the head of a stream from the pieces of a body. Pure.
#[derive(Debug, Default)]
pub(crate) struct HeadReader {
    bytes: BytesMut,
}

impl HeadReader {
    /// Adds a piece; returns the head when it is complete.
    ///
    /// # Errors
    /// The reason for which it is not valid.
    pub(crate) fn push(&mut self, piece: &[u8]) -> Result<Option<HeadAndRest>, String> {
        self.bytes.extend_from_slice(piece);
        let Some(length) = self.bytes.first_chunk::<4>() else { return Ok(None) };
        let length = usize::try_from(u32::from_be_bytes(*length)).unwrap_or(usize::MAX);
        if length > PEER_STREAM_HEAD_BYTES_MAX {
            return Err(format!("a head has {length} bytes, more than {PEER_STREAM_HEAD_BYTES_MAX}"));
        }
        if self.bytes.len() < 4 + length {
            return Ok(None);
        }
        let mut bytes = std::mem::take(&mut self.bytes);
        bytes.advance(4);
        let head = bytes.split_to(length).freeze();
        Ok(Some(HeadAndRest { head, rest: bytes.freeze() }))
    }
}

/// Reads the head of a stream from the begin of a body.
///
/// # Errors
/// The body ended before, or the head is not valid.
pub(crate) async fn read_head<B>(body: &mut B) -> Result<HeadAndRest, PeerBodyError>
where
    B: Body<Data = Bytes, Error: std::error::Error> + Unpin,
{
    let mut reader = HeadReader::default();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| PeerBodyError::Cut(error.to_string()))?;
        let Ok(piece) = frame.into_data() else { continue };
        if let Some(found) = reader.push(&piece).map_err(PeerBodyError::Cut)? {
            return Ok(found);
        }
    }
    Err(PeerBodyError::Cut("it ended before its head".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::{
        HeadReader, PeerTarget, content_length, deadline, decode_refusal, encode_refusal, frame_head,
    };
    use crate::channel::StreamClass;
    use crate::error::ServiceRefusal;
    use bytes::Bytes;
    use http::{HeaderMap, HeaderValue};
    use http_body_util::Empty;
    use mlgw_common::limits::{PEER_STREAM_HEAD_BYTES_MAX, REFUSAL_TEXT_BYTES_MAX};
    use mlgw_common::time::Instant;
    use proptest::prelude::*;
    use std::time::Duration;

    #[test]
    fn a_path_is_read_back_and_others_are_none() {
        for target in [
            PeerTarget::Handshake,
            PeerTarget::Join,
            PeerTarget::Call { service: 0 },
            PeerTarget::Call { service: u16::MAX },
            PeerTarget::Stream { class: StreamClass::Request, service: 7 },
            PeerTarget::Stream { class: StreamClass::Transfer, service: 8 },
            PeerTarget::Stream { class: StreamClass::Append, service: 9 },
        ] {
            assert_eq!(PeerTarget::of_path(&target.path()), Some(target));
            let request = target.request(Empty::<Bytes>::new(), Instant::now());
            assert_eq!(request.uri().path(), target.path());
        }
        for path in [
            "/",
            "/mlgw/call/",
            "/mlgw/call/65536",
            "/mlgw/call/-1",
            "/mlgw/call/01",
            "/mlgw/call/1/",
            "/mlgw/stream/1",
            "/mlgw/stream/other/1",
            "/mlgw/stream/request/",
            "/mlgw/handshake/",
        ] {
            assert_eq!(PeerTarget::of_path(path), None, "{path}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_deadline_crosses_the_wire_as_a_wait() {
        let now = Instant::now();
        let request = PeerTarget::Join.request(Empty::<Bytes>::new(), now + Duration::from_millis(1500));
        let (mut head, _) = request.into_parts();
        assert_eq!(content_length(&head.headers), Some(0));
        assert_eq!(deadline(&head, now), Some(now + Duration::from_millis(1500)));
        head.headers.insert(super::DEADLINE, HeaderValue::from(u64::MAX));
        assert_eq!(deadline(&head, now), Some(now + super::DEADLINE_MAX));
        head.headers.insert(super::DEADLINE, HeaderValue::from_static("x"));
        assert_eq!(deadline(&head, now), None);
        assert_eq!(content_length(&HeaderMap::new()), None);
    }

    #[test]
    fn a_refusal_is_read_back_and_cut() {
        let refusal = ServiceRefusal { code: 0, message: String::new() };
        assert_eq!(decode_refusal(&encode_refusal(refusal.clone())), Some(refusal));
        let long = ServiceRefusal { code: 7, message: "x".repeat(1 << 20) };
        let read = decode_refusal(&encode_refusal(long)).unwrap();
        assert_eq!((read.code, read.message.len()), (7, REFUSAL_TEXT_BYTES_MAX));
        assert_eq!(decode_refusal(&[0xff]), None);
        assert_eq!(decode_refusal(&vec![0; 1 << 20]), None);
    }

    proptest! {
        #[test]
        fn a_head_is_found_however_it_is_cut(
            head in proptest::collection::vec(any::<u8>(), 0..300),
            body in proptest::collection::vec(any::<u8>(), 0..50),
            piece in 1_usize..80,
        ) {
            let bytes = [&frame_head(&head), &body[..]].concat();
            let mut reader = HeadReader::default();
            let mut found = None;
            let mut at = 0;
            while found.is_none() && at < bytes.len() {
                let end = bytes.len().min(at + piece);
                found = reader.push(&bytes[at..end]).unwrap();
                at = end;
            }
            let found = found.unwrap();
            prop_assert_eq!(&found.head[..], &head[..]);
            prop_assert_eq!([&found.rest[..], &bytes[at..]].concat(), body);
        }
    }

    #[test]
    fn a_head_that_is_too_long_is_refused_by_its_length() {
        let length = u32::try_from(PEER_STREAM_HEAD_BYTES_MAX + 1).unwrap().to_be_bytes();
        assert!(HeadReader::default().push(&length).unwrap_err().contains("more than"));
        let longest = Bytes::from(vec![7; PEER_STREAM_HEAD_BYTES_MAX]);
        let found = HeadReader::default().push(&frame_head(&longest)).unwrap().unwrap();
        assert_eq!(found.head, longest);
    }
}

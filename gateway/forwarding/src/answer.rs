//! Encoding of a member's answer: frames, the last of which is the head of the answer, then the body.
//!
//! A frame is its kind (one byte), the length of its content (four bytes, big-endian) and its content. The
//! pieces in which the bytes arrive have no meaning.

use crate::header_block::{self, HeaderBlockError};
use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use http::{HeaderMap, Response, StatusCode};
use mlgw_common::limits::FORWARDED_ANSWER_HEAD_BYTES_MAX;
use prost::Message as _;

/// Bytes of kind and length.
const FRAME_HEAD_BYTES: usize = 5;
const BODY_WANTED: u8 = 1;
const HEAD: u8 = 2;

/// A frame before the body of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnswerFrame {
    /// The member's handler reads the body of the request. Sent only if the client waits for it.
    BodyRequest,
    /// The head of the answer. The rest of the stream is its body.
    Head(ForwardedAnswerHead),
}

/// Head of an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ForwardedAnswerHead {
    /// Status.
    pub status: StatusCode,
    /// Header lines.
    pub headers: HeaderMap,
    /// Length of the body, if it is known.
    pub body_bytes: Option<u64>,
}

/// Error of an answer that cannot be encoded or decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AnswerError {
    /// The head of the answer has too many bytes.
    #[error("the head of the answer has {0} bytes, more than {FORWARDED_ANSWER_HEAD_BYTES_MAX}")]
    TooLong(usize),
    /// A frame is not of a known kind, or its content is not valid.
    #[error("the answer to the forwarded request is malformed; both nodes may have different versions")]
    Malformed,
    /// A header line cannot be encoded or decoded.
    #[error("the answer to the forwarded request: {0}")]
    Headers(#[from] HeaderBlockError),
}

#[derive(Clone, PartialEq, prost::Message)]
struct ForwardedAnswerHeadMessage {
    #[prost(uint32, tag = "1")]
    status: u32,
    #[prost(bytes = "bytes", tag = "2")]
    headers: Bytes,
    #[prost(uint64, optional, tag = "3")]
    body_bytes: Option<u64>,
}

impl AnswerFrame {
    /// Appends the frame to `out`.
    ///
    /// # Errors
    /// See [`AnswerError`].
    pub fn write(&self, out: &mut BytesMut) -> Result<(), AnswerError> {
        let head = match self {
            Self::BodyRequest => {
                out.put_u8(BODY_WANTED);
                out.put_u32(0);
                return Ok(());
            }
            Self::Head(head) => head,
        };
        let message = ForwardedAnswerHeadMessage {
            status: head.status.as_u16().into(),
            headers: header_block::encode(&head.headers)?,
            body_bytes: head.body_bytes,
        };
        let length = message.encoded_len();
        if length > FORWARDED_ANSWER_HEAD_BYTES_MAX {
            return Err(AnswerError::TooLong(length));
        }
        out.reserve(FRAME_HEAD_BYTES + length);
        out.put_u8(HEAD);
        out.put_u32(u32::try_from(length).map_err(|_| AnswerError::TooLong(length))?);
        message.encode_raw(out);
        Ok(())
    }
}

impl ForwardedAnswerHead {
    /// Returns the head of a response with a body of this length.
    #[must_use]
    pub fn of<B>(response: &mut Response<B>, body_bytes: Option<u64>) -> Self {
        Self { status: response.status(), headers: std::mem::take(response.headers_mut()), body_bytes }
    }

    fn decode(bytes: Bytes) -> Result<Self, AnswerError> {
        let message = ForwardedAnswerHeadMessage::decode(bytes).map_err(|_| AnswerError::Malformed)?;
        let status = u16::try_from(message.status).ok().and_then(|status| StatusCode::from_u16(status).ok());
        // An interim status is no answer.
        let status = status.filter(|status| !status.is_informational()).ok_or(AnswerError::Malformed)?;
        let headers = header_block::decode(message.headers)?;
        Ok(Self { status, headers, body_bytes: message.body_bytes })
    }
}

/// Decoder of the frames of an answer. A pure state machine.
#[derive(Debug, Default)]
pub struct AnswerDecoder {
    buffer: Bytes,
}

impl AnswerDecoder {
    /// Adds bytes that have arrived. To be called when [`AnswerDecoder::next_frame`] has returned `None`.
    pub fn feed(&mut self, bytes: Bytes) {
        if self.buffer.is_empty() {
            self.buffer = bytes;
        } else {
            let mut joined = BytesMut::with_capacity(self.buffer.len() + bytes.len());
            joined.extend_from_slice(&self.buffer);
            joined.extend_from_slice(&bytes);
            self.buffer = joined.freeze();
        }
    }

    /// Returns the next frame, or `None` if more bytes are required.
    ///
    /// # Errors
    /// See [`AnswerError`].
    pub fn next_frame(&mut self) -> Result<Option<AnswerFrame>, AnswerError> {
        let Some((&[kind, a, b, c, d], _)) = self.buffer.split_first_chunk::<FRAME_HEAD_BYTES>() else {
            return Ok(None);
        };
        let length = u32::from_be_bytes([a, b, c, d]) as usize;
        match kind {
            BODY_WANTED if length == 0 => {
                self.buffer.advance(FRAME_HEAD_BYTES);
                Ok(Some(AnswerFrame::BodyRequest))
            }
            HEAD if length > FORWARDED_ANSWER_HEAD_BYTES_MAX => Err(AnswerError::TooLong(length)),
            HEAD if self.buffer.len() < FRAME_HEAD_BYTES + length => Ok(None),
            HEAD => {
                self.buffer.advance(FRAME_HEAD_BYTES);
                Ok(Some(AnswerFrame::Head(ForwardedAnswerHead::decode(self.buffer.split_to(length))?)))
            }
            _ => Err(AnswerError::Malformed),
        }
    }

    /// Returns the bytes that follow the last frame.
    #[must_use]
    pub fn into_rest(self) -> Bytes {
        self.buffer
    }
}

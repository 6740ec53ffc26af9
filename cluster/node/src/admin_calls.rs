//! Messages of requests to the admin API that one node sends to another one, and their server.
//!
//! The sending node has authenticated the caller. The transport sends a body only after the stream is
//! accepted, so the head of the answer is the beginning of the answer's stream. Nothing is stored here.

use crate::refusals::{MALFORMED, refusal};
use bytes::{Bytes, BytesMut};
use futures_util::future::{BoxFuture, ready};
use futures_util::{Stream, StreamExt as _, stream};
use http_body::{Body, Frame};
use http_body_util::{BodyExt as _, BodyStream, StreamBody};
use mlgw_common::NodeId;
use mlgw_forwarding::{MemberBody, StreamFault};
use mlgw_transport::ServiceRefusal;
use prost::Message;

/// Maximum length of the head of an answer.
const ANSWER_HEAD_BYTES_MAX: usize = 1024;
/// Maximum length of an encoded length.
const LENGTH_BYTES_MAX: usize = 10;
/// Reason for which an answer is refused.
const MALFORMED_ANSWER: &str = "the head of its answer is malformed";

/// A request to the admin API of another node, without its body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdminCall {
    /// HTTP method.
    pub method: String,
    /// Path and query.
    pub target: String,
    /// Access key of the caller. The sending node has authenticated it.
    pub access_key: String,
    /// Address of the caller.
    pub from: String,
}

/// Answer to a request to the admin API.
pub struct AdminAnswer {
    /// HTTP status.
    pub status: u16,
    /// Type of the content.
    pub content_type: String,
    /// The content.
    pub body: MemberBody,
}

/// Serves requests to the admin API that other nodes send.
pub trait AdminServer: Send + Sync + 'static {
    /// Carries out a request that `from` sends.
    fn serve(&self, from: NodeId, call: AdminCall, body: MemberBody) -> BoxFuture<'static, AdminAnswer>;
}

#[derive(Clone, PartialEq, prost::Message)]
struct CallMessage {
    #[prost(string, tag = "1")]
    method: String,
    #[prost(string, tag = "2")]
    target: String,
    #[prost(string, tag = "3")]
    access_key: String,
    #[prost(string, tag = "4")]
    from: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct AnswerMessage {
    #[prost(uint32, tag = "1")]
    status: u32,
    #[prost(string, tag = "2")]
    content_type: String,
}

impl AdminCall {
    /// Encodes the head of a request.
    pub(crate) fn encode(&self) -> Bytes {
        let Self { method, target, access_key, from } = self.clone();
        CallMessage { method, target, access_key, from }.encode_to_vec().into()
    }

    /// Decodes the head of a request.
    ///
    /// # Errors
    /// If it is no message.
    pub(crate) fn decode(head: &[u8]) -> Result<Self, ServiceRefusal> {
        let malformed = |_| refusal(MALFORMED, "the head of a request to the admin API is malformed");
        let CallMessage { method, target, access_key, from } =
            CallMessage::decode(head).map_err(malformed)?;
        Ok(Self { method, target, access_key, from })
    }
}

impl AdminAnswer {
    /// Makes an answer whose content is `body`.
    pub fn new<B>(status: u16, content_type: String, body: B) -> Self
    where
        B: Body<Data = Bytes, Error: std::error::Error + Send + Sync> + Send + 'static,
    {
        let body = MemberBody::new(body.map_err(|error| -> StreamFault { Box::new(error) }));
        Self { status, content_type, body }
    }

    /// Returns the answer as one body: the length of the head, the head, the content.
    pub(crate) fn into_stream(self) -> impl Stream<Item = Result<Frame<Bytes>, StreamFault>> + Send {
        let Self { status, content_type, body } = self;
        let message = AnswerMessage { status: status.into(), content_type };
        let head = Frame::data(message.encode_length_delimited_to_vec().into());
        stream::once(ready(Ok(head))).chain(BodyStream::new(body))
    }

    /// Reads the head of an answer, and returns the answer with the content that is left.
    ///
    /// # Errors
    /// If the body fails or ends within the head, or the head is malformed.
    pub(crate) async fn read(mut body: MemberBody) -> Result<Self, String> {
        let mut read = BytesMut::new();
        let message = loop {
            if let Some(message) = decode_head(&mut read)? {
                break message;
            }
            let frame = body.frame().await.ok_or("it ended before its answer")?;
            let frame = frame.map_err(|error| format!("its answer failed: {error}"))?;
            if let Ok(piece) = frame.into_data() {
                read.extend_from_slice(&piece);
            }
        };
        let AnswerMessage { status, content_type } = message;
        let status = u16::try_from(status).map_err(|_| MALFORMED_ANSWER)?;
        let rest = stream::once(ready(Ok(Frame::data(read.freeze()))));
        let body = MemberBody::new(StreamBody::new(rest.chain(BodyStream::new(body))));
        Ok(Self { status, content_type, body })
    }
}

/// Removes a head with its length from the beginning of an answer; `None` if it is not complete.
fn decode_head(read: &mut BytesMut) -> Result<Option<AnswerMessage>, String> {
    let Ok(length) = prost::decode_length_delimiter(&read[..]) else {
        return if read.len() < LENGTH_BYTES_MAX { Ok(None) } else { Err(MALFORMED_ANSWER.to_owned()) };
    };
    if length > ANSWER_HEAD_BYTES_MAX {
        return Err(MALFORMED_ANSWER.to_owned());
    }
    let whole = prost::length_delimiter_len(length) + length;
    if read.len() < whole {
        return Ok(None);
    }
    let head = read.split_to(whole);
    let message = AnswerMessage::decode_length_delimited(&head[..]);
    message.map(Some).map_err(|_| MALFORMED_ANSWER.to_owned())
}

#[cfg(test)]
mod tests {
    use super::{AdminAnswer, AdminCall};
    use bytes::Bytes;
    use futures_util::stream;
    use http_body::Frame;
    use http_body_util::{BodyExt as _, Full, StreamBody};
    use mlgw_forwarding::{MemberBody, StreamFault};

    #[test]
    fn a_request_is_read_back_and_other_bytes_are_refused() {
        let text = str::to_owned;
        let (method, target) = (text("GET"), text("/v1/jobs?active=true"));
        let call = AdminCall { method, target, access_key: text("AK"), from: text("10.0.0.9:50000") };
        assert_eq!(AdminCall::decode(&call.encode()), Ok(call));
        assert!(AdminCall::decode(&[0xff]).is_err());
    }

    /// An answer whose stream arrives in these pieces.
    async fn read(pieces: Vec<Bytes>) -> Result<AdminAnswer, String> {
        let frames = pieces.into_iter().map(|piece| Ok::<_, StreamFault>(Frame::data(piece)));
        AdminAnswer::read(MemberBody::new(StreamBody::new(stream::iter(frames)))).await
    }

    #[tokio::test]
    async fn an_answer_is_read_back_from_pieces_of_any_size() {
        let content = Full::new(Bytes::from_static(b"the content"));
        let content = content.map_err(|never| -> std::io::Error { match never {} });
        let answer = AdminAnswer::new(404, "text/plain".to_owned(), content);
        let sent = StreamBody::new(answer.into_stream()).collect().await.unwrap().to_bytes();
        for size in [1, 3, sent.len()] {
            let pieces = sent.chunks(size).map(Bytes::copy_from_slice).collect();
            let answer = read(pieces).await.unwrap();
            assert_eq!((answer.status, answer.content_type.as_str()), (404, "text/plain"));
            assert_eq!(answer.body.collect().await.unwrap().to_bytes(), "the content");
        }
        assert!(read(vec![sent.slice(..3)]).await.is_err(), "it ends within the head");
    }

    #[tokio::test]
    async fn a_malformed_head_of_an_answer_is_refused() {
        // A head of 2,000 bytes, one that is no message, and the status 70000.
        for bytes in [&[0xd0, 0x0f][..], &[1, 0xff], &[4, 8, 0xf0, 0xa2, 4], &[0xff; 10]] {
            let refused = read(vec![Bytes::copy_from_slice(bytes)]).await.err();
            assert_eq!(refused.as_deref(), Some(super::MALFORMED_ANSWER), "{bytes:?}");
        }
    }
}

//! Messages of requests to the admin API that one node sends to another one, and their server.
//!
//! The sending node has authenticated the caller. Decoding is pure, and nothing is stored here.

use crate::refusals::{MALFORMED, refusal};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use http_body::Body;
use http_body_util::BodyExt as _;
use mlgw_common::NodeId;
use mlgw_forwarding::{MemberBody, StreamFault};
use mlgw_transport::ServiceRefusal;
use prost::Message;

/// A request to the admin API of another node, without its body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdminCall {
    /// HTTP method.
    pub method: String,
    /// Path and query.
    pub target: String,
    /// Access key of the caller, whom this node has authenticated.
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

    /// Encodes the head of the answer.
    pub(crate) fn encode_head(&self) -> Bytes {
        let (status, content_type) = (self.status.into(), self.content_type.clone());
        AnswerMessage { status, content_type }.encode_to_vec().into()
    }

    /// Returns the answer with an encoded head; `None` if that is malformed.
    pub(crate) fn decode(head: &[u8], body: MemberBody) -> Option<Self> {
        let AnswerMessage { status, content_type } = AnswerMessage::decode(head).ok()?;
        Some(Self { status: u16::try_from(status).ok()?, content_type, body })
    }
}

#[cfg(test)]
mod tests {
    use super::{AdminAnswer, AdminCall};
    use mlgw_forwarding::streams::empty_body;

    #[test]
    fn a_request_is_read_back_and_other_bytes_are_refused() {
        let text = str::to_owned;
        let (method, target) = (text("GET"), text("/v1/jobs?active=true"));
        let call = AdminCall { method, target, access_key: text("AK"), from: text("10.0.0.9:50000") };
        assert_eq!(AdminCall::decode(&call.encode()), Ok(call));
        assert!(AdminCall::decode(&[0xff]).is_err());
    }

    #[test]
    fn the_head_of_an_answer_is_read_back_and_others_are_none() {
        let answer = AdminAnswer { status: 404, content_type: "text/plain".into(), body: empty_body() };
        let read = AdminAnswer::decode(&answer.encode_head(), empty_body()).unwrap();
        assert_eq!((read.status, read.content_type.as_str()), (404, "text/plain"));
        assert!(AdminAnswer::decode(&[0xff], empty_body()).is_none());
        // The status 70000.
        assert!(AdminAnswer::decode(&[8, 0xf0, 0xa2, 4], empty_body()).is_none());
    }
}

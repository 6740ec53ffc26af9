//! The body of a request, from its client's connection or from a node that forwards it.

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use mlgw_forwarding::{ForwardedRequestBody, StreamFault};
use mlgw_listener::pace::PacedRequestBody;
use mlgw_wire::error::{Code, S3Error};
use std::pin::Pin;
use std::task::{Context, Poll};

/// The body of a request as bytes of the wire.
pub enum ReceivedClientBody {
    /// From the connection of the client.
    Direct(PacedRequestBody),
    /// From the node that received the request.
    Forwarded(Box<ForwardedRequestBody>),
}

fn broken(fault: StreamFault) -> S3Error {
    S3Error::new(Code::IncompleteBody).caused_by(fault)
}

impl Body for ReceivedClientBody {
    type Data = Bytes;
    type Error = S3Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, S3Error>>> {
        match self.get_mut() {
            Self::Direct(body) => Pin::new(body).poll_frame(cx).map_err(S3Error::from),
            Self::Forwarded(body) => Pin::new(body).poll_frame(cx).map_err(broken),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Direct(body) => body.is_end_stream(),
            Self::Forwarded(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Direct(body) => body.size_hint(),
            Self::Forwarded(body) => body.size_hint(),
        }
    }
}

//! Forwards S3 requests to a node that serves them.
//!
//! A node that does not serve a request itself, such as a gateway, sends it unchanged over the cluster's
//! transport ([`MemberStreams`]) to a node that does, here called a member, and passes the answer on. One
//! request is one stream with two directions:
//!
//! 1. The forwarding node sends the head ([`ForwardedContext`] and the request's own head). The member reads
//!    bucket and key from it and compares them with those of the forwarding node ([`ForwardedTarget`]). It
//!    decides by its range map and its rows, and sends a [`RoutingVerdict`] before it reads anything else.
//! 2. After `Accepted` the forwarding node sends [`GO`], one byte, and then the bytes of the client's body. A
//!    read without a body has neither.
//! 3. The member sends [`AnswerFrame`]s, the last of which is the head of its answer, and then the bytes of
//!    the answer's body.
//!
//! Invariants:
//! - A member carries out a change only after [`GO`]. Until it is sent, the next member may be tried,
//!   whatever happened to the stream. After it a failure is answered with 503, and the request is never sent
//!   again.
//! - The body of the client is not read before a member has accepted the request. If the client waits for
//!   `100 Continue`, the body is read when the member's handler reads it.
//! - A forwarded request is never forwarded again: the serving side has no [`Forwarder`].
//! - An end of a stream with an error never looks like the end of a body.
//!
//! All state is in memory; a power failure ends the requests in flight.

pub mod answer;
pub mod answer_stream;
pub mod counters;
mod failure;
mod forwarder;
mod gate;
mod head;
mod header_block;
mod health;
mod reads;
mod request_body;
pub mod route;
pub mod streams;
mod verdict;

#[cfg(test)]
mod tests;

pub use answer::AnswerFrame;
pub use answer_stream::AnswerStream;
pub use failure::ForwardFailure;
pub use forwarder::{ForwardedBody, ForwardedResponse, Forwarder, OutgoingRequest};
pub use forwarder::{is_body_awaited, is_released_later};
pub use gate::GO;
pub use head::{DeclaredBody, ForwardedContext, ForwardedTarget, HeadError, decode_head, encode_head};
pub use request_body::ForwardedRequestBody;
pub use route::{MapEpoch, RouteTable};
pub use streams::{MemberBody, MemberStreams, OpenedStream, StreamFault, StreamOpenError};
pub use verdict::{MalformedVerdict, RoutingVerdict, UnconfirmedCause};

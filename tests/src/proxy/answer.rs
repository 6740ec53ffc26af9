//! The response path: the origin's response, and the part of it that reaches the client.
//!
//! Interim responses pass as they arrive, before the body that they request. Faults apply to the final
//! response.

use std::io;

use http::StatusCode;
use tokio::io::AsyncWriteExt as _;
use tokio::net::tcp::OwnedWriteHalf;

use super::framing::Framing;
use super::head::{MessageHead, has_no_body};
use super::relay::{BodyRelay, FaultMark, RelayEnd, drop_body};
use super::rule::Fault;
use super::shape::{RateLane, Shaper};
use super::source::{BufferedSource, eof_error};
use super::traffic::RequestEntry;

/// State of both connections after a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ResponseOutcome {
    /// True if the client may send another request.
    pub(super) client_reusable: bool,
    /// True if another request may be sent to the origin.
    pub(super) origin_reusable: bool,
    /// Indicates that the client was permitted to send its body (an interim response such as 100 Continue).
    pub(super) sent_continue: bool,
}

impl ResponseOutcome {
    /// True if an origin that responded before it had the whole body is to receive the rest of it. Otherwise
    /// the origin will close, or the rest is not sent to it.
    pub(super) fn needs_rest_of_body(self, request: &MessageHead) -> bool {
        self.client_reusable && (self.sent_continue || !request.expects_continue())
    }
}

/// The response to one request while it is being passed.
pub(super) struct ResponseRelay<'a> {
    pub(super) request: &'a MessageHead,
    pub(super) fault: Option<&'a Fault>,
    pub(super) from: &'a mut BufferedSource,
    pub(super) to: &'a mut OwnedWriteHalf,
    pub(super) lane: &'a mut RateLane,
    pub(super) shaper: &'a Shaper,
    pub(super) entry: &'a RequestEntry,
}

impl ResponseRelay<'_> {
    /// # Errors
    /// The response was incomplete, or the client is gone.
    pub(super) async fn run(mut self) -> io::Result<ResponseOutcome> {
        let (head, sent_continue) = self.final_head().await?;
        let mut framing = head.answer_framing(&self.request.method())?;
        if self.fault == Some(&Fault::CutBeforeAnswer) {
            drop_body(self.from, &mut framing).await?;
            return Ok(ResponseOutcome { client_reusable: false, origin_reusable: false, sent_continue });
        }
        self.entry.status(head.status()?);
        let may_reuse = framing != Framing::UntilClosed && head.answer_keeps_alive();
        let (is_whole, origin_reusable) = self.pass(head, framing).await?;
        let client_reusable = is_whole && may_reuse && self.request.request_keeps_alive();
        Ok(ResponseOutcome {
            client_reusable,
            origin_reusable: client_reusable && origin_reusable,
            sent_continue,
        })
    }

    /// The final head; true if an interim one came before.
    async fn final_head(&mut self) -> io::Result<(MessageHead, bool)> {
        let mut sent_continue = false;
        loop {
            let head = self.from.head().await?.ok_or_else(eof_error)?;
            if !matches!(head.status()?, 100 | 102..=199) {
                return Ok((head, sent_continue));
            }
            sent_continue = true;
            self.to.write_all(&head.into_bytes()).await?;
        }
    }

    /// Passes a response on, with its fault. Returns two flags: true if the client received a complete
    /// response, and true if the whole response of the origin was read.
    async fn pass(&mut self, mut head: MessageHead, mut framing: Framing) -> io::Result<(bool, bool)> {
        let mut mark = None;
        let mut origin_reusable = true;
        match (self.fault, framing) {
            (Some(Fault::Header { name, value }), _) => head.set(name, value),
            (Some(Fault::CutAnswer { after }), _) => mark = Some(FaultMark::Cut(*after)),
            (Some(Fault::Stall { after, pause }), _) => mark = Some(FaultMark::Stall(*after, *pause)),
            (Some(Fault::Corrupt { at }), _) => mark = Some(FaultMark::Corrupt(*at)),
            (Some(Fault::Truncate { after }), Framing::Chunked(_)) => {
                let passage = self.passage(head, framing, None);
                return passage.run_shortened(*after).await.map(|is_all| (true, is_all)).map_err(end_error);
            }
            // The end of such a body is the close of the connection.
            (Some(Fault::Truncate { after }), Framing::UntilClosed) => mark = Some(FaultMark::Cut(*after)),
            (Some(Fault::Truncate { after }), Framing::Sized(bytes)) if bytes > *after => {
                head.set("content-length", &after.to_string());
                framing = Framing::sized(*after);
                origin_reusable = false;
            }
            _ => {}
        }
        match self.passage(head, framing, mark).run().await {
            RelayEnd::Whole => Ok((true, origin_reusable)),
            RelayEnd::Cut => Ok((false, false)),
            gone => Err(end_error(gone)),
        }
    }

    fn passage(&mut self, head: MessageHead, framing: Framing, mark: Option<FaultMark>) -> BodyRelay<'_> {
        BodyRelay {
            from: self.from,
            to: self.to,
            head: head.into_bytes(),
            framing,
            mark,
            lane: self.lane,
            shaper: self.shaper,
            entry: self.entry,
        }
    }
}

fn end_error(end: RelayEnd) -> io::Error {
    match end {
        RelayEnd::SenderGone(error) | RelayEnd::ReceiverGone(error) => error,
        RelayEnd::Whole | RelayEnd::Cut => eof_error(),
    }
}

/// A response made by the proxy: an error in the form of S3.
pub(super) fn error_answer(method: &str, status: u16, code: &str, keeps_alive: bool) -> String {
    let reason =
        StatusCode::from_u16(status).ok().and_then(|status| status.canonical_reason()).unwrap_or("Fault");
    let connection = if keeps_alive { "keep-alive" } else { "close" };
    let body = if has_no_body(method, status) {
        String::new()
    } else {
        format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>{code}</Code>\
             <Message>Injected by a rule of the fault proxy.</Message>\
             <RequestId>fault-proxy</RequestId></Error>"
        )
    };
    let length = body.len();
    format!(
        "HTTP/1.1 {status} {reason}\r\ncontent-type: application/xml\r\nx-amz-request-id: fault-proxy\r\n\
         content-length: {length}\r\nconnection: {connection}\r\n\r\n{body}"
    )
}

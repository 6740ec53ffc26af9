//! A client's connection: its requests, one after another, and the connection to the origin that belongs to
//! it.
//!
//! Body and response of a request pass at the same time, as an origin may respond before it has the whole
//! body. A close on one side is passed to the other: both sides observe the same events as without a proxy. A
//! broken connection is closed without a report.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use mlgw_common::time::{sleep, timeout};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use super::ProxyState;
use super::answer::{ResponseOutcome, ResponseRelay, error_answer};
use super::head::MessageHead;
use super::relay::{BodyRelay, FaultMark, RelayEnd, drop_body};
use super::rule::Fault;
use super::shape::{Direction, RateLane};
use super::source::ProxyPeer;
use super::traffic::RequestEntry;

/// Time for which a client that still sends may read its response. Closing while it sends would discard
/// response bytes that it has not read yet.
const LINGER_TIMEOUT: Duration = Duration::from_secs(1);

/// The step after a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NextStep {
    /// Another request.
    Request,
    Close,
    /// Close, but the client still sends and must be able to read its response.
    Linger,
}

pub(super) struct Connection {
    client: ProxyPeer,
    /// Connected for the first request that needs it.
    origin: Option<ProxyPeer>,
    requests: RateLane,
    answers: RateLane,
    shared: Arc<ProxyState>,
}

impl Connection {
    pub(super) fn new(client: TcpStream, shared: Arc<ProxyState>) -> io::Result<Self> {
        let (requests, answers) = (RateLane::new(Direction::Request), RateLane::new(Direction::Answer));
        Ok(Self { client: ProxyPeer::new(client)?, origin: None, requests, answers, shared })
    }

    /// Serves the connection until one of the two sides or a fault closes it.
    pub(super) async fn serve(mut self) {
        loop {
            match self.exchange().await {
                Ok(NextStep::Request) => {}
                Ok(NextStep::Linger) => return linger(&mut self.client).await,
                Ok(NextStep::Close) | Err(_) => return,
            }
        }
    }

    async fn exchange(&mut self) -> io::Result<NextStep> {
        let Some(request) = self.next_request().await? else { return Ok(NextStep::Close) };
        let fired = self.shared.rules().for_request(&request);
        let entry = self.shared.traffic.begin_request(&request, fired.as_ref().map(|(rule, _)| *rule));
        let fault = fired.map(|(_, fault)| fault);
        if fault == Some(Fault::Refuse) {
            return Ok(NextStep::Close);
        }
        self.delay(fault.as_ref()).await;
        match fault {
            Some(Fault::Status { status, code }) => {
                self.respond_locally(&request, status, &code, &entry).await
            }
            fault => self.forward(&request, fault.as_ref(), &entry).await,
        }
    }

    async fn delay(&self, fault: Option<&Fault>) {
        let more = if let Some(Fault::Delay { by }) = fault { *by } else { Duration::ZERO };
        let delay = self.shared.shaper.shape().delay + more;
        // Even the shortest sleep takes a millisecond.
        if !delay.is_zero() {
            sleep(delay).await;
        }
    }

    /// The next request; `None` if no request can follow, because the client or the origin closed.
    async fn next_request(&mut self) -> io::Result<Option<MessageHead>> {
        if let (true, Some(origin)) = (self.client.from.bytes().is_empty(), &mut self.origin) {
            tokio::select! {
                biased;
                read = self.client.from.fill() => drop(read?),
                // The origin closed, or sent data without a request: its connection is no longer usable.
                _ = origin.from.fill() => return Ok(None),
            }
        }
        self.client.from.head().await
    }

    async fn respond_locally(
        &mut self,
        request: &MessageHead,
        status: u16,
        code: &str,
        entry: &RequestEntry,
    ) -> io::Result<NextStep> {
        let mut body = request.request_framing()?;
        // A client that waits for 100 Continue has not sent its body yet, and may never do.
        let waits_for_continue = request.expects_continue() && !body.is_done();
        if !waits_for_continue {
            let bytes = drop_body(&mut self.client.from, &mut body).await?;
            entry.bytes(Direction::Request, bytes);
        }
        let stays = request.request_keeps_alive() && !waits_for_continue;
        entry.status(status);
        entry.end();
        let answer = error_answer(&request.method(), status, code, stays);
        self.client.to.write_all(answer.as_bytes()).await?;
        Ok(match (stays, waits_for_continue) {
            (true, _) => NextStep::Request,
            (false, true) => NextStep::Linger,
            (false, false) => NextStep::Close,
        })
    }

    async fn forward(
        &mut self,
        request: &MessageHead,
        fault: Option<&Fault>,
        entry: &RequestEntry,
    ) -> io::Result<NextStep> {
        let mut origin = match self.origin.take() {
            Some(origin) => origin,
            None => ProxyPeer::new(TcpStream::connect(self.shared.origin()).await?)?,
        };
        let (next, origin_reusable) = self.relay_exchange(&mut origin, request, fault, entry).await?;
        if origin_reusable {
            self.origin = Some(origin);
        }
        Ok(next)
    }

    /// Passes request and response. Returns the next step, and true if the origin's connection may be reused.
    async fn relay_exchange(
        &mut self,
        origin: &mut ProxyPeer,
        request: &MessageHead,
        fault: Option<&Fault>,
        entry: &RequestEntry,
    ) -> io::Result<(NextStep, bool)> {
        let (framing, head) = (request.request_framing()?, request.clone().into_bytes());
        let mark =
            if let Some(Fault::CutRequest { after }) = fault { Some(FaultMark::Cut(*after)) } else { None };
        let shaper = &self.shared.shaper;
        let (from, to, lane) = (&mut origin.from, &mut self.client.to, &mut self.answers);
        let mut answer = pin!(ResponseRelay { request, fault, from, to, lane, shaper, entry }.run());
        let first_end = {
            let (from, to, lane) = (&mut self.client.from, &mut origin.to, &mut self.requests);
            let mut sending = pin!(BodyRelay { from, to, head, framing, mark, lane, shaper, entry }.run());
            tokio::select! {
                biased;
                sent = &mut sending => FirstEnd::SentFirst(sent),
                answered = &mut answer => match answered? {
                    answered if answered.needs_rest_of_body(request) => {
                        FirstEnd::AnsweredFirst(sending.await, answered)
                    }
                    _ => return Ok((NextStep::Linger, false)),
                },
            }
        };
        match first_end {
            FirstEnd::SentFirst(RelayEnd::Whole) => tokio::select! {
                biased;
                answered = &mut answer => answered.map(next_step),
                () = self.client.from.closed() => Ok((NextStep::Close, false)),
            },
            // The origin may have sent a response before it closed.
            FirstEnd::SentFirst(RelayEnd::ReceiverGone(_)) => answer.await.map(|_| (NextStep::Linger, false)),
            FirstEnd::SentFirst(RelayEnd::Cut | RelayEnd::SenderGone(_)) => Ok((NextStep::Close, false)),
            FirstEnd::AnsweredFirst(RelayEnd::Whole, answered) => Ok(next_step(answered)),
            FirstEnd::AnsweredFirst(_, _) => Ok((NextStep::Linger, false)),
        }
    }
}

/// The direction of an exchange that ended first.
enum FirstEnd {
    SentFirst(RelayEnd),
    /// The response ended first, and the rest of the body was passed to the origin up to this end.
    AnsweredFirst(RelayEnd, ResponseOutcome),
}

fn next_step(answered: ResponseOutcome) -> (NextStep, bool) {
    (if answered.client_reusable { NextStep::Request } else { NextStep::Close }, answered.origin_reusable)
}

/// Shuts the connection down so that the client can read its response to the end.
async fn linger(client: &mut ProxyPeer) {
    let drain = async {
        client.to.shutdown().await?;
        while client.from.fill().await? > 0 {
            client.from.consume(client.from.bytes().len());
        }
        io::Result::Ok(())
    };
    // In either case the connection is closed afterwards.
    drop(timeout(LINGER_TIMEOUT, drain).await);
}

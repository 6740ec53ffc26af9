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

use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use super::Shared;
use super::answer::{Answer, Answered, error_answer};
use super::book::Entry;
use super::head::Head;
use super::relay::{End, Mark, Passage, drop_body};
use super::rule::Fault;
use super::shape::{Lane, Way};
use super::source::Peer;

/// Time for which a client that still sends may read its response. Closing while it sends would discard
/// response bytes that it has not read yet.
const LINGER: Duration = Duration::from_secs(1);

/// The step after a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// Another request.
    Request,
    Close,
    /// Close, but the client still sends and must be able to read its response.
    LetRead,
}

pub(super) struct Connection {
    client: Peer,
    /// Connected for the first request that needs it.
    origin: Option<Peer>,
    requests: Lane,
    answers: Lane,
    shared: Arc<Shared>,
}

impl Connection {
    pub(super) fn new(client: TcpStream, shared: Arc<Shared>) -> io::Result<Self> {
        let (requests, answers) = (Lane::new(Way::Request), Lane::new(Way::Answer));
        Ok(Self { client: Peer::new(client)?, origin: None, requests, answers, shared })
    }

    /// Serves the connection until one of the two sides or a fault closes it.
    pub(super) async fn serve(mut self) {
        loop {
            match self.exchange().await {
                Ok(Next::Request) => {}
                Ok(Next::LetRead) => return linger(&mut self.client).await,
                Ok(Next::Close) | Err(_) => return,
            }
        }
    }

    async fn exchange(&mut self) -> io::Result<Next> {
        let Some(request) = self.next_request().await? else { return Ok(Next::Close) };
        let fired = self.shared.rules().for_request(&request);
        let entry = self.shared.book.open(&request, fired.as_ref().map(|(rule, _)| *rule));
        let fault = fired.map(|(_, fault)| fault);
        if fault == Some(Fault::Refuse) {
            return Ok(Next::Close);
        }
        self.delay(fault.as_ref()).await;
        match fault {
            Some(Fault::Status { status, code }) => self.answer_itself(&request, status, &code, &entry).await,
            fault => self.pass_on(&request, fault.as_ref(), &entry).await,
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
    async fn next_request(&mut self) -> io::Result<Option<Head>> {
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

    async fn answer_itself(
        &mut self,
        request: &Head,
        status: u16,
        code: &str,
        entry: &Entry,
    ) -> io::Result<Next> {
        let mut body = request.request_framing()?;
        // A client that waits for 100 Continue has not sent its body yet, and may never do.
        let waits = request.expects_leave() && !body.is_done();
        if !waits {
            let bytes = drop_body(&mut self.client.from, &mut body).await?;
            entry.bytes(Way::Request, bytes);
        }
        let stays = request.request_keeps_alive() && !waits;
        entry.status(status);
        entry.end();
        let answer = error_answer(&request.method(), status, code, stays);
        self.client.to.write_all(answer.as_bytes()).await?;
        Ok(match (stays, waits) {
            (true, _) => Next::Request,
            (false, true) => Next::LetRead,
            (false, false) => Next::Close,
        })
    }

    async fn pass_on(&mut self, request: &Head, fault: Option<&Fault>, entry: &Entry) -> io::Result<Next> {
        let mut origin = match self.origin.take() {
            Some(origin) => origin,
            None => Peer::new(TcpStream::connect(self.shared.origin()).await?)?,
        };
        let (next, origin_stays) = self.both_ways(&mut origin, request, fault, entry).await?;
        if origin_stays {
            self.origin = Some(origin);
        }
        Ok(next)
    }

    /// Passes request and response. Returns the next step, and true if the origin's connection may be reused.
    async fn both_ways(
        &mut self,
        origin: &mut Peer,
        request: &Head,
        fault: Option<&Fault>,
        entry: &Entry,
    ) -> io::Result<(Next, bool)> {
        let (framing, head) = (request.request_framing()?, request.clone().into_bytes());
        let mark = if let Some(Fault::CutRequest { after }) = fault { Some(Mark::Cut(*after)) } else { None };
        let shaper = &self.shared.shaper;
        let (from, to, lane) = (&mut origin.from, &mut self.client.to, &mut self.answers);
        let mut answer = pin!(Answer { request, fault, from, to, lane, shaper, entry }.run());
        let met = {
            let (from, to, lane) = (&mut self.client.from, &mut origin.to, &mut self.requests);
            let mut sending = pin!(Passage { from, to, head, framing, mark, lane, shaper, entry }.run());
            tokio::select! {
                biased;
                sent = &mut sending => Met::SentFirst(sent),
                answered = &mut answer => match answered? {
                    answered if answered.wants_the_rest(request) => Met::AnsweredFirst(sending.await, answered),
                    _ => return Ok((Next::LetRead, false)),
                },
            }
        };
        match met {
            Met::SentFirst(End::Whole) => tokio::select! {
                biased;
                answered = &mut answer => answered.map(next),
                () = self.client.from.hung_up() => Ok((Next::Close, false)),
            },
            // The origin may have sent a response before it closed.
            Met::SentFirst(End::ReceiverGone(_)) => answer.await.map(|_| (Next::LetRead, false)),
            Met::SentFirst(End::Cut | End::SenderGone(_)) => Ok((Next::Close, false)),
            Met::AnsweredFirst(End::Whole, answered) => Ok(next(answered)),
            Met::AnsweredFirst(_, _) => Ok((Next::LetRead, false)),
        }
    }
}

/// The direction of an exchange that ended first.
enum Met {
    SentFirst(End),
    /// The response ended first, and the rest of the body was passed to the origin up to this end.
    AnsweredFirst(End, Answered),
}

fn next(answered: Answered) -> (Next, bool) {
    (if answered.client_stays { Next::Request } else { Next::Close }, answered.origin_stays)
}

/// Shuts the connection down so that the client can read its response to the end.
async fn linger(client: &mut Peer) {
    let drain = async {
        client.to.shutdown().await?;
        while client.from.fill().await? > 0 {
            client.from.use_up(client.from.bytes().len());
        }
        io::Result::Ok(())
    };
    // In either case the connection is closed afterwards.
    drop(timeout(LINGER, drain).await);
}

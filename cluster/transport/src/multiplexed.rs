//! Multiplexed connections of this node to a peer: each carries many reads with short answers at a time.
//!
//! A forwarded read is a head of some hundred bytes and an answer of a few KiB. With many in flight, one
//! write to the socket carries several of them in each direction, which costs half of what a connection for
//! each request does ([`crate::exclusive`]). The task of the connection writes what was queued after the
//! other tasks of its thread have run. There is no flow control: an answer is short, or it has the beginning
//! of a body whose rest is a stream of its own ([`crate::rests`]).
//!
//! There is one such connection to a peer beside the shared one of HTTP/2. A request goes elsewhere while
//! there is none, while few streams are in flight ([`SHARED_FROM`]), while the connection has
//! [`REQUESTS_MAX`] requests, and while the socket does not take what is queued. A connection on which
//! nothing arrives while a request waits in vain is closed: the shared one may work although this one does
//! not. When it ends, the outcome of what is in flight is unknown. Nothing is stored.

use crate::error::UnknownOutcome;
use crate::framed_io::{Exchanged, FramedIo, OUTBOX_BYTES_MAX};
use crate::frames::{Frame, NumberedAnswer, NumberedRequest, put_cancel, put_numbered_request};
use crate::metered::StreamFacts;
use bytes::BytesMut;
use mlgw_common::time::{Instant, timeout_at};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, oneshot};
use tokio_util::sync::CancellationToken;

/// Requests in flight on one connection.
pub(crate) const REQUESTS_MAX: usize = 64;
/// Streams in flight, transfers of the same channel included, from which requests share the connection. With
/// fewer, a write carries one or two, and the task of the connection costs more than that saves.
pub(crate) const SHARED_FROM: u64 = 8;
/// Time without any answer after which a connection is closed whose request was given up.
const SILENT_MAX: Duration = Duration::from_millis(500);
/// Pause after a dial that failed.
const REDIAL_PAUSE: Duration = Duration::from_secs(10);

/// A connection whose handshake passed.
pub(crate) struct MultiplexedConnection {
    state: Mutex<ConnectionState>,
    /// Notified when something is queued.
    queued: Notify,
    facts: StreamFacts,
    /// Closes it.
    cancel: CancellationToken,
}

#[derive(Default)]
struct ConnectionState {
    /// Frames that the task of the connection has not taken.
    queue: BytesMut,
    /// Requests without an answer.
    waiting: BTreeMap<u32, oneshot::Sender<NumberedAnswer>>,
    last_number: u32,
    /// Number of answers that have arrived.
    received: u64,
    /// True if it takes no further request: the peer closes it soon, or it has ended.
    is_ending: bool,
}

/// A request that was queued. Dropped before its answer, it is cancelled.
pub(crate) struct RequestInFlight {
    connection: Arc<MultiplexedConnection>,
    number: u32,
    answer: oneshot::Receiver<NumberedAnswer>,
    begun: Instant,
    /// Answers that had arrived before.
    received: u64,
}

impl MultiplexedConnection {
    pub(crate) fn new(facts: StreamFacts, cancel: CancellationToken) -> Self {
        Self { state: Mutex::default(), queued: Notify::new(), facts, cancel }
    }

    /// Number of requests that were queued so far.
    #[cfg(test)]
    pub(crate) fn requests(&self) -> u32 {
        self.state.lock().last_number
    }

    /// True if an answer has arrived.
    pub(crate) fn has_received(&self) -> bool {
        self.state.lock().received > 0
    }

    fn is_ending(&self) -> bool {
        self.state.lock().is_ending
    }

    /// Queues a request, and gives it a number; `None` if the connection takes none now.
    pub(crate) fn queue(self: &Arc<Self>, mut request: NumberedRequest) -> Option<RequestInFlight> {
        let (sender, answer) = oneshot::channel();
        let (number, received) = {
            let mut state = self.state.lock();
            if !state.takes_requests() {
                return None;
            }
            request.number = state.next_number();
            state.waiting.insert(request.number, sender);
            put_numbered_request(&mut state.queue, &request);
            (request.number, state.received)
        };
        self.queued.notify_one();
        Some(RequestInFlight { connection: self.clone(), number, answer, begun: Instant::now(), received })
    }

    /// Sends what is queued and passes answers on, until the connection ends. [`Self::end`] must follow.
    pub(crate) async fn run(&self, mut io: FramedIo) {
        let _ = self.exchange(&mut io).await;
    }

    /// Ends the requests in flight, whose outcome is unknown, and takes no further ones.
    pub(crate) fn end(&self) {
        let waiting = {
            let mut state = self.state.lock();
            state.is_ending = true;
            std::mem::take(&mut state.waiting)
        };
        drop(waiting);
    }

    async fn exchange(&self, io: &mut FramedIo) -> io::Result<()> {
        while !self.has_ended() {
            tokio::select! {
                exchanged = io.exchange() => match exchanged? {
                    Exchanged::Sent => {}
                    Exchanged::Frame(Frame::NumberedAnswer(answer)) => self.pass_on(answer),
                    Exchanged::Frame(Frame::Goodbye) => self.state.lock().is_ending = true,
                    Exchanged::Frame(_) => return Err(io::Error::other("another frame than an answer")),
                    Exchanged::End => return Ok(()),
                },
                () = self.queued.notified(), if io.outbox.is_empty() => {
                    // Requests of tasks that run now go with the first one.
                    tokio::task::yield_now().await;
                    io.outbox = std::mem::take(&mut self.state.lock().queue);
                }
            }
        }
        Ok(())
    }

    /// True if no request will be queued, and none waits for an answer.
    fn has_ended(&self) -> bool {
        let state = self.state.lock();
        state.is_ending && state.waiting.is_empty()
    }

    fn pass_on(&self, answer: NumberedAnswer) {
        let waiting = {
            let mut state = self.state.lock();
            state.received += 1;
            state.waiting.remove(&answer.fields.number)
        };
        if let Some(waiting) = waiting {
            let _ = waiting.send(answer);
        }
    }
}

impl ConnectionState {
    fn takes_requests(&self) -> bool {
        !self.is_ending && self.waiting.len() < REQUESTS_MAX && self.queue.len() < OUTBOX_BYTES_MAX
    }

    /// A number that no request in flight has.
    fn next_number(&mut self) -> u32 {
        loop {
            self.last_number = self.last_number.wrapping_add(1);
            if !self.waiting.contains_key(&self.last_number) {
                return self.last_number;
            }
        }
    }
}

impl RequestInFlight {
    /// The answer.
    ///
    /// # Errors
    /// The request may have been carried out.
    pub(crate) async fn answer(mut self, deadline: Instant) -> Result<NumberedAnswer, UnknownOutcome> {
        match timeout_at(deadline, &mut self.answer).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(_)) => {
                let ended = io::Error::from(io::ErrorKind::UnexpectedEof);
                Err(UnknownOutcome::Broken(self.connection.facts.cause(&ended)))
            }
            Err(_) => Err(UnknownOutcome::Deadline),
        }
    }
}

impl Drop for RequestInFlight {
    fn drop(&mut self) {
        let connection = &self.connection;
        let mut state = connection.state.lock();
        if state.waiting.remove(&self.number).is_none() {
            return;
        }
        if state.received == self.received && self.begun.elapsed() >= SILENT_MAX {
            state.is_ending = true;
            drop(state);
            connection.cancel.cancel();
            return;
        }
        put_cancel(&mut state.queue, self.number);
        drop(state);
        connection.queued.notify_one();
    }
}

/// The multiplexed connection beside a shared one.
#[derive(Default)]
pub(crate) struct MultiplexedSlot(Mutex<SlotState>);

#[derive(Default)]
struct SlotState {
    connection: Option<Arc<MultiplexedConnection>>,
    is_dialing: bool,
    redial_at: Option<Instant>,
}

impl MultiplexedSlot {
    /// Returns the connection, if there is one that takes requests.
    pub(crate) fn get(&self) -> Option<Arc<MultiplexedConnection>> {
        self.0.lock().connection.clone().filter(|connection| !connection.is_ending())
    }

    /// Begins a dial; false if one is in progress, or has failed a moment ago. [`Self::end_dial`] or
    /// [`Self::fail_dial`] must follow.
    pub(crate) fn begin_dial(&self) -> bool {
        let mut slot = self.0.lock();
        let begins = !slot.is_dialing && slot.redial_at.is_none_or(|at| at <= Instant::now());
        slot.is_dialing |= begins;
        begins
    }

    /// Ends a dial that made a connection, or that was given up.
    pub(crate) fn end_dial(&self, dialed: Option<Arc<MultiplexedConnection>>) {
        let mut slot = self.0.lock();
        (slot.is_dialing, slot.connection) = (false, dialed);
    }

    /// Ends a dial that failed: the next one waits.
    pub(crate) fn fail_dial(&self) {
        let mut slot = self.0.lock();
        (slot.is_dialing, slot.redial_at) = (false, Some(Instant::now() + REDIAL_PAUSE));
    }

    /// Makes the next dial wait, because a connection has ended without any answer.
    pub(crate) fn pause_dials(&self) {
        self.0.lock().redial_at = Some(Instant::now() + REDIAL_PAUSE);
    }
}
